//! Who is calling: from a credential to the [`Agent`] behind a request.
//!
//! The [`AgentDirectory`] knows the agents of the config and of the store and whose key is whose. It is
//! a snapshot behind one swap: a changed store is read as a whole, and from then on every request
//! meets the new one.

pub mod key;
mod roster;
pub mod token;
mod user;
mod validity;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use jiff::Timestamp;
use tokio::sync::watch;

use self::{
    key::KeyUses,
    roster::{AgentSources, Roster, is_expired},
};
pub use self::{user::User, validity::AgentValidity};
use crate::{
    clock,
    config::{self, Authentication, Terms},
    lock::lock,
    names::{AgentId, ProfileName},
    store::{KeyHash, KeyId, StoredAgent, StoredKey},
};

/// The header for an API key beside `Authorization: Bearer`.
pub const API_KEY_HEADER: &str = "x-api-key";

/// The name of the agent behind callers without a credential; a config may give it terms.
pub const ANONYMOUS: &str = "anonymous";

/// The identity being governed.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Its id.
    pub id: AgentId,
    /// Name for people, unique.
    pub name: String,
    /// The team whose budget it shares.
    pub team: Option<String>,
    /// Whether it may do anything at all.
    pub enabled: bool,
    /// Whether it sees everything in `/status`.
    pub admin: bool,
    /// Profiles it may use, and nothing beside them; `None`: every route.
    pub profiles: Option<Vec<ProfileName>>,
    /// What it may do.
    pub terms: Terms,
    /// The person or program behind it, where a token says so: each user is an agent of their own, so that nothing
    /// of one is another's.
    pub user: Option<Arc<User>>,
    /// Whose budgets and rates its calls count to: itself, or the agent whose terms a user has.
    pub quota_owner: AgentId,
    /// How many of its keys have been revoked or have expired; who came before the last time comes in anew.
    pub revocations: u64,
    /// Whether who came in as this agent may stay.
    pub session_validity: AgentValidity,
}

impl Agent {
    /// The agent of callers that present no credential; its id is the same everywhere.
    pub fn anonymous() -> Self {
        Self {
            id: AgentId::ANONYMOUS,
            name: ANONYMOUS.to_owned(),
            team: None,
            enabled: true,
            admin: false,
            profiles: None,
            terms: Terms::default(),
            user: None,
            quota_owner: AgentId::ANONYMOUS,
            revocations: 0,
            session_validity: AgentValidity::default(),
        }
    }

    /// Who has shown no key where one is needed: nobody, who may do nothing.
    pub fn unauthenticated() -> Self {
        Self {
            name: "stranger".to_owned(),
            enabled: false,
            ..Self::anonymous()
        }
    }

    /// An agent of the config.
    pub(crate) fn from_config(agent: &config::AgentConfig) -> Self {
        let id = if agent.name == ANONYMOUS {
            AgentId::ANONYMOUS
        } else {
            agent.id
        };
        Self {
            id,
            name: agent.name.clone(),
            team: agent.team.clone(),
            enabled: agent.enabled,
            admin: agent.admin,
            profiles: agent.profiles.clone(),
            terms: agent.terms.clone(),
            user: None,
            quota_owner: id,
            revocations: 0,
            session_validity: AgentValidity::default(),
        }
    }
}

impl From<StoredAgent> for Agent {
    fn from(stored: StoredAgent) -> Self {
        Self {
            id: stored.id,
            name: stored.name,
            team: stored.team,
            enabled: stored.enabled,
            admin: stored.admin,
            profiles: stored.profiles,
            terms: stored.terms,
            user: None,
            quota_owner: stored.id,
            revocations: 0,
            session_validity: AgentValidity::default(),
        }
    }
}

/// Why a request has no agent.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AuthError {
    /// There is no key where one is needed.
    #[error(
        "an API key is required: set the header `Authorization: Bearer KEY` or `X-API-Key: KEY`; there is \
         no OAuth sign-in"
    )]
    Missing,
    /// More than one key, and they differ.
    #[error("the request has several different API keys")]
    Ambiguous,
    /// The key opens nothing. Whoever presents it is not told which it is: that would say of a found
    /// key that it was one.
    #[error("the API key is invalid, revoked or expired")]
    Rejected(KeyRejection),
}

/// What the log says of a request that is refused, as its client put it.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'r> {
    /// That of its URL.
    pub path: &'r str,
    /// What its client calls itself.
    pub user_agent: &'r str,
}

/// Why a key opens nothing, for the operator.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum KeyRejection {
    /// Its time has passed; whose it is needs another.
    Expired(KeyId),
    /// It was revoked, and somebody has it still.
    Revoked(KeyId),
    /// Nobody has such a key, or it is not even sent as one.
    Unknown,
}

impl AuthError {
    /// What `WWW-Authenticate` says (RFC 6750, 3).
    pub fn www_authenticate(&self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Missing => r#"Bearer realm="tollbridge""#,
            Self::Ambiguous => r#"Bearer realm="tollbridge", error="invalid_request""#,
            Self::Rejected(_) => r#"Bearer realm="tollbridge", error="invalid_token""#,
        })
    }

    /// The reason in a word, as it is counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Ambiguous => "several",
            Self::Rejected(KeyRejection::Expired(_)) => "expired",
            Self::Rejected(KeyRejection::Revoked(_)) => "revoked",
            Self::Rejected(KeyRejection::Unknown) => "unknown",
        }
    }

    /// The id of the key that opened something once.
    pub const fn key(&self) -> Option<&KeyId> {
        match self {
            Self::Rejected(KeyRejection::Expired(key) | KeyRejection::Revoked(key)) => Some(key),
            Self::Missing | Self::Ambiguous | Self::Rejected(KeyRejection::Unknown) => None,
        }
    }
}

/// A key whose time passes soon.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpiringKey {
    /// The key.
    pub key: KeyId,
    /// The name of its agent.
    pub agent: String,
    /// When its time passes.
    pub expires: Timestamp,
}

/// The agents and whose key is whose.
#[derive(Debug)]
pub struct AgentDirectory {
    /// What the roster is made of; locked by whoever makes a new one.
    sources: Mutex<AgentSources>,
    roster: ArcSwap<Roster>,
    uses: KeyUses,
    changes: watch::Sender<()>,
}

impl AgentDirectory {
    /// The agents of the config; [`AgentDirectory::update_store`] adds those of the store.
    pub fn new(
        authentication: Authentication,
        agents: impl Iterator<Item = config::AgentConfig>,
    ) -> Self {
        let sources = AgentSources {
            authentication,
            configured: agents.collect(),
            stored: Default::default(),
        };
        Self {
            roster: ArcSwap::from_pointee(Roster::new(&sources, &Roster::empty())),
            sources: Mutex::new(sources),
            uses: KeyUses::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Replaces what the config says. Who is not written there any longer, or lost a key, is treated
    /// as one whose key was revoked.
    pub fn update_config(&self, authentication: Authentication, agents: Vec<config::AgentConfig>) {
        let mut sources = lock(&self.sources);
        sources.authentication = authentication;
        sources.configured = agents;
        self.publish(&sources);
    }

    /// Replaces what is known of the store, with the keys that have ended, which let nobody in but
    /// are told apart from unknown ones. Where an agent is in both, the config has it. Nobody is told when nothing has changed.
    pub fn update_store(&self, agents: Vec<Agent>, keys: Vec<StoredKey>) {
        let mut sources = lock(&self.sources);
        sources.stored = (agents, keys);
        self.publish(&sources);
    }

    /// Forgets keys whose time has passed: whoever came in with one is shown out, as if it had been
    /// revoked.
    pub fn remove_expired(&self) {
        let sources = lock(&self.sources);
        let now = clock::now();
        let roster = self.roster.load();
        let mut credentials = roster.credentials.values();
        if credentials.any(|credential| is_expired(credential.expires, now)) {
            self.publish(&sources);
        }
    }

    /// When the next key passes its time; `None`: never.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let roster = self.roster.load();
        let times = roster.credentials.values();
        times.filter_map(|credential| credential.expires).min()
    }

    /// The keys of the store that expire soon, by whose they are.
    pub fn expiring(&self) -> Vec<ExpiringKey> {
        let sources = lock(&self.sources);
        let (roster, now) = (self.roster.load(), clock::now());
        let soon = sources.stored.1.iter().filter(|key| key.expires_soon(now));
        let mut soon: Vec<ExpiringKey> = soon
            .filter_map(|key| {
                Some(ExpiringKey {
                    key: key.id.clone(),
                    agent: roster.agents.get(&key.agent)?.name.clone(),
                    expires: key.expires?,
                })
            })
            .collect();
        soon.sort_by_key(|it| it.expires);
        soon
    }

    /// Makes who the sources know now the roster. An agent that lost a key is another than before.
    fn publish(&self, sources: &AgentSources) {
        let old = self.roster.load();
        let roster = Roster::new(sources, &old);
        if roster == **old {
            return;
        }
        self.roster.store(Arc::new(roster));
        for agent in old.agents.values() {
            if !self.is_still_authorized(agent) {
                agent.session_validity.revoke();
            }
        }
        self.changes.send_replace(());
    }

    /// Ends what is under way for anybody, as the gateway stops.
    pub fn revoke_all(&self) {
        for agent in self.roster.load().agents.values() {
            agent.session_validity.revoke();
        }
    }

    /// Whether who came in as `agent` may stay: the agent is known, and since then neither was it
    /// disabled, nor has one of its keys been revoked or expired. One that was disabled already hears of
    /// it with each call.
    ///
    /// Nobody stays anonymous once keys are asked for.
    pub fn is_still_authorized(&self, agent: &Agent) -> bool {
        let known = self.current(agent.id);
        known.is_some_and(|known| {
            known.enabled >= agent.enabled && known.revocations == agent.revocations
        }) && (agent.id != AgentId::ANONYMOUS || self.is_anonymous())
    }

    /// The agent behind a request with these headers.
    ///
    /// # Errors
    /// Why there is none; over HTTP the answer is 401.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Arc<Agent>, AuthError> {
        let roster = self.roster.load();
        match roster.authentication {
            Authentication::Anonymous => {
                let anonymous = roster.agents.get(&AgentId::ANONYMOUS).map(Arc::clone);
                anonymous.ok_or(AuthError::Rejected(KeyRejection::Unknown))
            }
            Authentication::Keys => {
                let key = key_from_headers(headers)?;
                self.agent_of_key(key, &roster).map_err(AuthError::Rejected)
            }
        }
    }

    fn agent_of_key(&self, key: &str, roster: &Roster) -> Result<Arc<Agent>, KeyRejection> {
        let hash = KeyHash::of(key);
        let Some(credential) = roster.credentials.get(&hash) else {
            let ended = roster.rejected.get(&hash);
            return Err(ended.cloned().unwrap_or(KeyRejection::Unknown));
        };
        let now = clock::now();
        if let Some(key) = &credential.key {
            if is_expired(credential.expires, now) {
                return Err(KeyRejection::Expired(key.clone()));
            }
            self.uses.note_seen(key, now);
        }
        Ok(Arc::clone(&credential.agent))
    }

    /// The agent `id` as it is at present.
    pub fn current(&self, id: AgentId) -> Option<Arc<Agent>> {
        self.roster.load().agents.get(&id).map(Arc::clone)
    }

    /// The agent called `name`, or with that id.
    pub fn named(&self, name: &str) -> Option<Arc<Agent>> {
        let roster = self.roster.load();
        if let Ok(id) = name.parse() {
            return roster.agents.get(&id).map(Arc::clone);
        }
        // Where the config and the store have the name under different ids, the config has it.
        let sources = lock(&self.sources);
        let written = sources.configured.iter().find(|agent| agent.name == name);
        if let Some(written) = written {
            let id = Agent::from_config(written).id;
            return roster.agents.get(&id).map(Arc::clone);
        }
        let mut stored = roster.agents.values();
        stored.find(|agent| agent.name == name).map(Arc::clone)
    }

    /// All agents, by name; the anonymous one is among them.
    pub fn agents(&self) -> Vec<Arc<Agent>> {
        let mut agents: Vec<_> = self.roster.load().agents.values().map(Arc::clone).collect();
        agents.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        agents
    }

    /// Whether nobody has to say who they are.
    pub fn is_anonymous(&self) -> bool {
        self.roster.load().authentication == Authentication::Anonymous
    }

    /// Whether `id` is written in the config, which then has the last word about it.
    pub fn is_in_config(&self, id: AgentId) -> bool {
        let sources = lock(&self.sources);
        sources.configured.iter().any(|agent| agent.id == id)
    }

    /// The names of the agents of the store that nobody can be, since the config has their ids, and that
    /// are enabled, by name. What keys they have open the agents of the config.
    pub fn shadowed_agents(&self) -> Vec<String> {
        let sources = lock(&self.sources);
        let hidden = sources.shadowed().filter(|agent| agent.enabled);
        let mut names: Vec<String> = hidden.map(|agent| agent.name.clone()).collect();
        names.sort();
        names
    }

    /// The agents whose keys in the store open nothing: those there are disabled, and hidden by the ones
    /// of the config.
    pub fn locked_out_agents(&self) -> HashSet<AgentId> {
        lock(&self.sources).locked_out()
    }

    /// Tells when somebody came, went or changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// When keys of the store were last seen.
    pub fn uses(&self) -> &KeyUses {
        &self.uses
    }
}

/// The one key that the headers carry.
fn key_from_headers(headers: &HeaderMap) -> Result<&str, AuthError> {
    let bearer = headers.get_all(AUTHORIZATION).iter().map(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let own = headers
        .get_all(API_KEY_HEADER)
        .iter()
        .map(|value| value.to_str().ok());
    let mut found = None;
    for key in bearer.chain(own) {
        let key = key.ok_or(AuthError::Rejected(KeyRejection::Unknown))?;
        if found.is_some_and(|other| other != key) {
            return Err(AuthError::Ambiguous);
        }
        found = Some(key);
    }
    found.ok_or(AuthError::Missing)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::config::Secret;

    const UNKNOWN: AuthError = AuthError::Rejected(KeyRejection::Unknown);
    const KEY: &str = "tbk_0123456789012345678901234567890123456789";

    #[test]
    fn a_key_is_found_in_either_header_and_nowhere_else() {
        let directory = directory(Authentication::Keys);
        let check = |headers: &[(&str, &str)], expect: Result<&str, AuthError>| {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| {
                    let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                    (name, HeaderValue::from_str(value).unwrap())
                })
                .collect();
            let found = directory.identify(&map).map(|agent| agent.name.clone());
            assert_eq!(
                found.as_deref(),
                expect.as_ref().map(|name| *name),
                "{headers:?}"
            );
        };
        let bearer = format!("Bearer {KEY}");
        check(&[("authorization", &bearer)], Ok("researcher"));
        check(
            &[("authorization", &format!("bearer  {KEY}"))],
            Ok("researcher"),
        );
        check(&[("x-api-key", KEY)], Ok("researcher"));
        check(
            &[("x-api-key", KEY), ("authorization", &bearer)],
            Ok("researcher"),
        );
        check(&[], Err(AuthError::Missing));
        check(&[("authorization", KEY)], Err(UNKNOWN));
        check(&[("authorization", "Basic abc")], Err(UNKNOWN));
        check(&[("x-api-key", "tbk_other")], Err(UNKNOWN));
        check(
            &[("x-api-key", KEY), ("authorization", "Bearer x")],
            Err(AuthError::Ambiguous),
        );
    }

    #[test]
    fn without_authentication_everybody_is_the_anonymous_agent() {
        let directory = directory(Authentication::Anonymous);
        let agent = directory.identify(&HeaderMap::new()).unwrap();
        assert_eq!(agent.id, AgentId::ANONYMOUS);
    }

    #[test]
    fn a_key_ends_with_its_time_and_with_the_store_that_drops_it() {
        let directory = directory(Authentication::Keys);
        let agent = Agent {
            id: AgentId::from_name("stored"),
            name: "stored".to_owned(),
            ..Agent::anonymous()
        };
        let key = |expires: Option<&str>| StoredKey {
            expires: expires.map(|at| at.parse().unwrap()),
            ..key_of(&agent)
        };
        let mut headers = HeaderMap::new();
        headers.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
        assert_eq!(directory.identify(&headers), Err(UNKNOWN));
        directory.update_store(vec![agent.clone()], vec![key(None)]);
        let first = directory.identify(&headers).unwrap();
        assert_eq!(first.name, "stored");
        directory.update_store(vec![agent.clone()], vec![key(Some("2999-01-01T00:00:00Z"))]);
        assert!(Arc::ptr_eq(&first, &directory.identify(&headers).unwrap()));
        let later = "2999-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(directory.next_expiry(), Some(later));
        directory.remove_expired();
        assert!(
            directory.is_still_authorized(&first),
            "its time has not come"
        );
        directory.update_store(vec![agent.clone()], vec![key(Some("2001-01-01T00:00:00Z"))]);
        let why =
            |wrong: fn(KeyId) -> KeyRejection| Err(AuthError::Rejected(wrong(KeyId::new("k1"))));
        assert_eq!(directory.identify(&headers), why(KeyRejection::Expired));
        assert!(!directory.is_still_authorized(&first));
        assert!(first.session_validity.token().is_cancelled());
        assert_eq!(directory.next_expiry(), None);
        directory.update_store(vec![agent.clone()], vec![key(None)]);
        let first = directory.identify(&headers).unwrap();
        assert!(
            !first.session_validity.token().is_cancelled(),
            "it came in anew"
        );
        let revoked = StoredKey {
            revoked: Some(clock::now()),
            ..key(Some("2001-01-01T00:00:00Z"))
        };
        directory.update_store(vec![agent.clone()], vec![revoked]);
        assert_eq!(directory.identify(&headers), why(KeyRejection::Revoked));
        assert!(!directory.is_still_authorized(&first));
        directory.update_store(vec![agent.clone()], vec![key(None)]);
        let first = directory.identify(&headers).unwrap();
        directory.update_store(vec![agent.clone()], Vec::new());
        assert_eq!(directory.identify(&headers), Err(UNKNOWN));
        assert!(!directory.is_still_authorized(&first));
        directory.update_store(Vec::new(), Vec::new());
        assert_eq!(directory.current(agent.id), None);
    }

    #[test]
    fn who_is_disabled_is_shown_out_but_not_who_came_in_so() {
        let directory = directory(Authentication::Keys);
        let load = |enabled| {
            let agent = Agent {
                id: AgentId::from_name("stored"),
                name: "stored".to_owned(),
                enabled,
                ..Agent::anonymous()
            };
            directory.update_store(vec![agent.clone()], vec![key_of(&agent)]);
            directory.current(agent.id).unwrap()
        };
        let (enabled, disabled) = (load(true), load(false));
        assert!(!directory.is_still_authorized(&enabled));
        assert!(
            directory.is_still_authorized(&disabled),
            "each call says so"
        );
        load(true);
        assert!(
            directory.is_still_authorized(&enabled) && directory.is_still_authorized(&disabled)
        );
    }

    #[test]
    fn a_disabled_agent_of_the_store_has_no_keys_behind_one_of_the_config() {
        let directory = directory(Authentication::Keys);
        let written = directory.named("researcher").unwrap();
        let stored = |enabled| Agent {
            name: "of the store".to_owned(),
            enabled,
            ..(*written).clone()
        };
        let key = key_of(&written);
        let mut of_store = HeaderMap::new();
        of_store.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
        let mut of_config = HeaderMap::new();
        of_config.insert(API_KEY_HEADER, HeaderValue::from_static(KEY));
        directory.update_store(vec![stored(true)], vec![key.clone()]);
        let opened = directory.identify(&of_store).unwrap();
        assert_eq!(opened.name, "researcher", "the config hides the other");
        directory.update_store(vec![stored(false)], vec![key.clone()]);
        let revoked = AuthError::Rejected(KeyRejection::Revoked(key.id.clone()));
        assert_eq!(directory.identify(&of_store), Err(revoked));
        assert!(!directory.is_still_authorized(&opened), "it is shown out");
        directory.identify(&of_config).unwrap();
        directory.update_store(vec![stored(true)], vec![key]);
        directory.identify(&of_store).unwrap();
    }

    #[tokio::test]
    async fn the_use_of_a_key_outlives_a_reading_of_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = crate::store::Store::open(dir.path()).await.unwrap();
        let directory = directory(Authentication::Keys);
        let agent = directory.named("researcher").unwrap();
        let key = key_of(&agent);
        store.keys.add(&key).await.unwrap();
        directory.update_store(Vec::new(), vec![key.clone()]);
        let mut headers = HeaderMap::new();
        headers.insert(API_KEY_HEADER, HeaderValue::from_static("secret"));
        directory.identify(&headers).unwrap();
        let mut changes = directory.changes();
        directory.update_store(Vec::new(), vec![key]);
        assert!(!changes.has_changed().unwrap(), "nothing has changed");
        directory.update_store(Vec::new(), Vec::new());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        directory
            .uses()
            .write_due(&*store.keys, clock::now())
            .await
            .unwrap();
        let keys = store.keys.keys().await.unwrap().rows;
        assert!(keys[0].last_used.is_some());
        store.close().await;
    }

    /// A live key of the store, which is `secret`.
    fn key_of(agent: &Agent) -> StoredKey {
        StoredKey {
            id: KeyId::new("k1"),
            agent: agent.id,
            hash: KeyHash::of("secret"),
            prefix: "tbk_abcd".to_owned(),
            created: clock::now(),
            expires: None,
            revoked: None,
            last_used: None,
        }
    }

    fn directory(authentication: Authentication) -> AgentDirectory {
        let agent = config::AgentConfig {
            id: AgentId::from_name("researcher"),
            name: "researcher".to_owned(),
            team: None,
            enabled: true,
            admin: false,
            keys: vec![Secret::new(KEY)],
            profiles: None,
            terms: Terms::default(),
        };
        AgentDirectory::new(authentication, [agent].into_iter())
    }
}
