//! Who is calling: from a credential to the [`Agent`] behind a request.
//!
//! The [`AgentDirectory`] knows the agents of the config and of the store and whose key is whose. It is
//! a snapshot behind one swap: a changed store is read as a whole, and from then on every request
//! meets the new one.

mod authenticate;
mod certificate;
mod error;
mod grant_agents;
pub mod jwt;
pub mod key;
mod match_rules;
mod resource;
mod roster;
pub mod token;
mod token_cache;
mod user;
mod users;
mod validity;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::watch;

pub use self::{
    authenticate::{Credentials, Identity},
    certificate::PeerCertificate,
    error::{AuthError, KeyRejection, RefusedRequest},
    resource::{MERGED_ROUTE, ResourceUrl, audience_covers, route_url},
    user::User,
    validity::{AgentValidity, CredentialLifetime, TokenValidity},
};
use self::{
    grant_agents::GrantAgents,
    key::KeyUses,
    roster::{AgentSources, Roster, is_expired},
    token::TokenVerifier,
    token_cache::TokenCache,
    users::Users,
};
use crate::{
    clock,
    config::{self, Authentication, Role, Terms},
    lock::lock,
    names::{AgentId, ProfileName, ServerOwner},
    store::{KeyId, StoredAgent, StoredKey},
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
    /// What of the admin API is open to it.
    pub role: Role,
    /// Profiles it may use, and nothing beside them; `None`: every route.
    pub profiles: Option<Vec<ProfileName>>,
    /// What it may do.
    pub terms: Terms,
    /// The person or program behind it, where a token says so: each user is an agent of their own, so that nothing
    /// of one is another's.
    pub user: Option<Arc<User>>,
    /// The agent whose terms a user has; itself for who is no user.
    pub base: AgentId,
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
            role: Role::Agent,
            profiles: None,
            terms: Terms::default(),
            user: None,
            base: AgentId::ANONYMOUS,
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

    /// Whether it sees the servers of `owner`.
    pub fn sees_servers_of(&self, owner: &ServerOwner) -> bool {
        owner.is_visible_to(self.id, self.team.as_deref())
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
            role: agent.role,
            profiles: agent.profiles.clone(),
            terms: agent.terms.clone(),
            user: None,
            base: id,
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
            role: stored.role,
            profiles: stored.profiles,
            terms: stored.terms,
            user: None,
            base: stored.id,
            quota_owner: stored.id,
            revocations: 0,
            session_validity: AgentValidity::default(),
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
    verifiers: ArcSwap<Vec<Arc<dyn TokenVerifier>>>,
    tokens: TokenCache,
    users: Users,
    grants: GrantAgents,
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
            rules: Vec::new(),
            members: HashMap::new(),
            stored: Default::default(),
        };
        Self {
            roster: ArcSwap::from_pointee(Roster::new(&sources, &Roster::empty())),
            sources: Mutex::new(sources),
            uses: KeyUses::default(),
            changes: watch::Sender::new(()),
            verifiers: ArcSwap::default(),
            tokens: TokenCache::default(),
            users: Users::default(),
            grants: GrantAgents::default(),
        }
    }

    /// Replaces who knows the tokens of issuers. What they said before is forgotten.
    pub fn set_token_verifiers(&self, verifiers: Vec<Arc<dyn TokenVerifier>>) {
        self.verifiers.store(Arc::new(verifiers));
        self.tokens.clear();
    }

    /// Forgets which tokens were good, so that all are verified again: one may have been revoked.
    pub fn forget_tokens(&self) {
        self.tokens.clear();
    }

    /// Replaces what the config says. Who is not written there any longer, or lost a key, is treated
    /// as one whose key was revoked.
    pub fn update_config(&self, authentication: Authentication, agents: Vec<config::AgentConfig>) {
        let mut sources = lock(&self.sources);
        sources.authentication = authentication;
        sources.configured = agents;
        self.publish(&sources);
    }

    /// Replaces the rules that say which agents the subjects of tokens are. Who is nobody by the new ones is shown out.
    pub fn set_agent_matches(&self, rules: Vec<config::AgentMatch>) {
        let mut sources = lock(&self.sources);
        sources.rules = rules;
        self.publish(&sources);
    }

    /// Replaces which workspaces name agents, by the names of the agents: those without a team have it as theirs.
    pub fn set_workspace_members(&self, members: HashMap<String, String>) {
        let mut sources = lock(&self.sources);
        if sources.members != members {
            sources.members = members;
            self.publish(&sources);
        }
    }

    /// Shows out who came in as the agent `id`: a grant was revoked, say. They may come in anew.
    pub fn revoke_user(&self, id: AgentId) {
        let sources = lock(&self.sources);
        if !self.users.revoke(id) {
            let old = self.roster.load();
            let roster = old.with_agent_revoked(id);
            if let Some(agent) = old.agents.get(&id) {
                self.roster.store(Arc::new(roster));
                agent.session_validity.revoke();
            }
        }
        self.tokens.clear();
        drop(sources);
        self.changes.send_replace(());
    }

    /// Which of the rules for subjects of tokens fits these claims, counted from 0.
    pub fn matching_rule(
        &self,
        claims: &serde_json::Map<String, serde_json::Value>,
    ) -> Option<usize> {
        let roster = self.roster.load();
        let mut rules = roster.rules.iter();
        rules.position(|rule| match_rules::fits(&rule.written, claims))
    }

    /// How many users behind tokens are known.
    pub fn user_count(&self) -> usize {
        self.users.count()
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
        self.users.update(&self.roster.load().rules);
        self.tokens.clear();
        for agent in old.agents.values() {
            if !self.is_still_authorized(agent) {
                agent.session_validity.revoke();
            }
        }
        self.changes.send_replace(());
    }

    /// Ends what is under way by the grant `id` of the built-in authorization server, whose tokens are no longer good.
    pub fn end_grant(&self, id: &str) {
        // First, so that who is found by a token at this moment is found anew.
        self.tokens.clear();
        if self.grants.end(id) {
            self.changes.send_replace(());
        }
    }

    /// The ids of the grants by which something may be under way.
    pub fn grants(&self) -> Vec<String> {
        self.grants.ids()
    }

    /// Ends what is under way for anybody, as the gateway stops.
    pub fn revoke_all(&self) {
        for agent in self.roster.load().agents.values() {
            agent.session_validity.revoke();
        }
        self.users.revoke_all();
    }

    /// Whether who came in as `agent` may stay: the agent is known, and since then neither was it
    /// disabled, nor has one of its keys been revoked or expired, nor the grant by which it came in been revoked. One
    /// that was disabled already hears of it with each call.
    ///
    /// Nobody stays anonymous once a credential is asked for.
    pub fn is_still_authorized(&self, agent: &Agent) -> bool {
        let known = self.current(agent.id);
        known.is_some_and(|known| {
            known.enabled >= agent.enabled && known.revocations == agent.revocations
        }) && !agent.session_validity.is_grant_revoked()
            && (agent.id != AgentId::ANONYMOUS || self.authentication().allows_anonymous())
    }

    /// The agent `id` as it is at present.
    pub fn current(&self, id: AgentId) -> Option<Arc<Agent>> {
        let known = self.roster.load().agents.get(&id).map(Arc::clone);
        known.or_else(|| self.users.get(id))
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

    /// How callers say who they are.
    pub fn authentication(&self) -> Authentication {
        self.roster.load().authentication
    }

    /// Whether nobody can say who they are.
    pub fn is_anonymous(&self) -> bool {
        !self.authentication().identifies_callers()
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

    /// Whether somebody can come in as the agent `id` with a key.
    pub fn has_key(&self, id: AgentId) -> bool {
        let roster = self.roster.load();
        let mut credentials = roster.credentials.values();
        roster.authentication.allows(config::AuthMethod::Keys)
            && credentials.any(|credential| credential.agent.id == id)
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

#[cfg(test)]
mod tests;
