//! From the credentials of a request to who sent it.
//!
//! A request may have several: a key in one header and a token in another, or a client certificate. All that are good
//! have to be those of one agent; what is not good beside one that is does no harm, since clients keep sending keys and
//! tokens that have ended.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, GetAll},
};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    API_KEY_HEADER, Agent, AgentDirectory, AuthError, CredentialLifetime, KeyRejection,
    PeerCertificate, ResourceUrl, TokenValidity,
    match_rules::has_group_overage,
    roster::{Roster, is_expired},
    token::{Scopes, TokenRejection, TokenSubject, VerifiedToken},
    token_cache::TokenUse,
};
use crate::{
    clock,
    config::{AuthMethod, Authentication},
    names::AgentId,
    store::KeyHash,
};

/// How often a token is verified for one request while grants are being revoked.
const VERIFICATIONS_MAX: u32 = 100;

/// What a request says of who sent it.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'r> {
    /// Its headers.
    pub headers: &'r HeaderMap,
    /// The verified certificate of its connection.
    pub certificate: Option<&'r PeerCertificate>,
    /// The URL of the route that it came to: what a token has to be issued for (RFC 8707).
    pub resource: ResourceUrl<'r>,
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The agent.
    pub agent: Arc<Agent>,
    /// What the token is good for; `None` for everything that the agent may do.
    pub scopes: Option<Arc<Scopes>>,
    /// When the time of the token passes.
    pub expires: Option<Timestamp>,
    /// Whether the token was revoked since.
    pub(super) token: TokenValidity,
}

impl Identity {
    /// How long what is begun with the credential may go on.
    pub fn lifetime(&self) -> CredentialLifetime {
        let grant = self.agent.session_validity.grant();
        CredentialLifetime {
            expires: self.expires,
            grant: grant.cloned(),
            token: self.token.clone(),
        }
    }

    /// The agent that looks at what the gateway says of itself: with a token that is not for reading, nobody.
    pub fn viewer(&self) -> Arc<Agent> {
        let may_read = |scopes: &Arc<Scopes>| scopes.contains(Scopes::READ);
        if self.scopes.as_ref().is_none_or(may_read) {
            Arc::clone(&self.agent)
        } else {
            Arc::new(Agent::unauthenticated())
        }
    }
}

impl From<Arc<Agent>> for Identity {
    fn from(agent: Arc<Agent>) -> Self {
        Self {
            agent,
            scopes: None,
            expires: None,
            token: TokenValidity::default(),
        }
    }
}

/// What came of the credentials that were looked at so far.
#[derive(Debug, Default)]
struct Findings {
    good: Option<Identity>,
    failure: Option<AuthError>,
    has_two_agents: bool,
}

impl Findings {
    fn add(&mut self, found: Result<Identity, AuthError>) {
        match (found, self.good.take()) {
            (Ok(found), None) => self.good = Some(found),
            (Ok(found), Some(other)) => match join(other, found) {
                Some(one) => self.good = Some(one),
                None => self.has_two_agents = true,
            },
            (Err(failure), good) => {
                self.good = good;
                self.failure = Some(failure);
            }
        }
    }

    fn finish(self) -> Result<Option<Identity>, AuthError> {
        match (self.good, self.failure) {
            _ if self.has_two_agents => Err(AuthError::TwoAgents),
            (Some(good), _) => Ok(Some(good)),
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(None),
        }
    }
}

/// Who sent a request with the credentials of both. The user of an agent is that agent for who has its key too, and
/// the one that says more.
fn join(one: Identity, other: Identity) -> Option<Identity> {
    let is_user_of = |user: &Agent, base: &Agent| {
        user.user.is_some() && base.user.is_none() && user.base == base.id
    };
    if one.agent.id == other.agent.id {
        // A key is good for all that the agent may do.
        Some(if one.scopes.is_none() { one } else { other })
    } else if is_user_of(&one.agent, &other.agent) {
        Some(one)
    } else if is_user_of(&other.agent, &one.agent) {
        Some(other)
    } else {
        None
    }
}

impl AgentDirectory {
    /// Who sent a request with these credentials.
    ///
    /// # Errors
    /// Why that is nobody; over HTTP the answer is 401.
    pub async fn authenticate(&self, shown: Credentials<'_>) -> Result<Identity, AuthError> {
        let methods = self.roster.load().authentication;
        self.authenticate_by(methods, shown).await
    }

    /// The same for what nobody may do without a sign-in, whatever clients may: keys are good for it everywhere.
    ///
    /// # Errors
    /// As [`AgentDirectory::authenticate`].
    pub async fn authenticate_signed_in(
        &self,
        shown: Credentials<'_>,
    ) -> Result<Identity, AuthError> {
        let methods: Authentication = {
            let written = self.roster.load().authentication;
            let with_keys = written.methods().chain([AuthMethod::Keys]);
            with_keys
                .filter(|it| *it != AuthMethod::Anonymous)
                .collect()
        };
        self.authenticate_by(methods, shown).await
    }

    async fn authenticate_by(
        &self,
        methods: Authentication,
        shown: Credentials<'_>,
    ) -> Result<Identity, AuthError> {
        let (mut findings, token) = {
            let roster = self.roster.load();
            let certificate = shown
                .certificate
                .filter(|_| methods.allows(AuthMethod::Mtls));
            if !methods.allows_tokens() && certificate.is_none() {
                return self.identify_by_roster(methods, shown, &roster);
            }
            let mut findings = Findings::default();
            if let Some(certificate) = certificate {
                findings.add(agent_of_certificate(certificate, &roster));
            }
            let token = self.examine_secrets(methods, shown.headers, (&roster, &mut findings))?;
            (findings, token)
        };
        if let Some(token) = token {
            let found = self.identity_of_token(token, shown.resource).await;
            findings.add(found.map_err(AuthError::Token));
        }
        match findings.finish()? {
            Some(identity) => Ok(identity),
            None => Self::anonymous_or_missing(&self.roster.load(), methods),
        }
    }

    /// The same where nothing but the roster has to be asked.
    fn identify_by_roster(
        &self,
        methods: Authentication,
        shown: Credentials<'_>,
        roster: &Roster,
    ) -> Result<Identity, AuthError> {
        if !methods.allows(AuthMethod::Keys) {
            return Self::anonymous_or_missing(roster, methods);
        }
        match key_from_headers(shown.headers)? {
            Some(key) => {
                let agent = self.agent_of_key(key, roster);
                agent.map(Identity::from).map_err(AuthError::Rejected)
            }
            None => Self::anonymous_or_missing(roster, methods),
        }
    }

    /// Looks at the keys among the secrets in the headers; gives the one that may be a token.
    fn examine_secrets<'h>(
        &self,
        methods: Authentication,
        headers: &'h HeaderMap,
        (roster, findings): (&Roster, &mut Findings),
    ) -> Result<Option<&'h str>, AuthError> {
        let takes_tokens = methods.allows_tokens();
        let knows_keys = methods.allows(AuthMethod::Keys);
        let key = |text: &str| {
            if knows_keys {
                self.agent_of_key(text, roster).map(Identity::from)
            } else {
                Err(KeyRejection::Unknown)
            }
        };
        for text in own_headers(headers) {
            let found = text.map_or(Err(KeyRejection::Unknown), key);
            findings.add(found.map_err(AuthError::Rejected));
        }
        let mut token = None;
        for text in bearers(headers) {
            let found = text.map_or(Err(KeyRejection::Unknown), key);
            match (found, text) {
                (Err(KeyRejection::Unknown), Some(text)) if takes_tokens => {
                    if token.is_some_and(|other| other != text) {
                        return Err(AuthError::Ambiguous);
                    }
                    token = Some(text);
                }
                (found, _) => findings.add(found.map_err(AuthError::Rejected)),
            }
        }
        Ok(token)
    }

    async fn identity_of_token(
        &self,
        token: &str,
        resource: ResourceUrl<'_>,
    ) -> Result<Identity, TokenRejection> {
        let used = TokenUse::new(token, resource);
        if let Some(known) = self.tokens.find(used, clock::now()) {
            return Ok(known);
        }
        for _ in 0..VERIFICATIONS_MAX {
            let generation = self.tokens.generation();
            let verified = self.verify_token(token, &resource.to_string()).await?;
            let agent = self.agent_of_subject(&verified.subject)?;
            let agent = match &verified.grant {
                Some(grant) => self.grants.agent(grant, &agent),
                None => agent,
            };
            // Its grant may have been revoked meanwhile, perhaps before it was known here.
            if verified.grant.is_some() && self.tokens.generation() != generation {
                continue;
            }
            let identity = Identity {
                agent,
                scopes: Some(Arc::new(verified.scopes)),
                expires: Some(verified.expires),
                token: verified.validity,
            };
            self.tokens.insert(used, identity.clone(), generation);
            return Ok(identity);
        }
        Err(TokenRejection::Revoked)
    }

    /// What the token says, where it is good.
    ///
    /// # Errors
    /// Why it is not.
    pub async fn verify_token(
        &self,
        token: &str,
        resource: &str,
    ) -> Result<VerifiedToken, TokenRejection> {
        let verifiers = self.verifiers.load_full();
        for verifier in verifiers.iter() {
            if let Some(verified) = verifier.verify(token, resource).await {
                return verified;
            }
        }
        Err(TokenRejection::Unknown)
    }

    /// The agent of whom a token is.
    ///
    /// # Errors
    /// Where nobody is.
    pub fn agent_of_subject(&self, subject: &TokenSubject) -> Result<Arc<Agent>, TokenRejection> {
        match subject {
            TokenSubject::Agent(id) => self.current(*id).ok_or(TokenRejection::Revoked),
            TokenSubject::Claims(claims) => self.agent_of_claims(claims),
        }
    }

    /// The agent of who has these claims, which is known from then on.
    ///
    /// # Errors
    /// Where no rule maps them to an agent.
    pub fn agent_of_claims(
        &self,
        claims: &Map<String, Value>,
    ) -> Result<Arc<Agent>, TokenRejection> {
        loop {
            let roster = self.roster.load_full();
            let registered = self
                .users
                .register(claims.clone(), &roster.rules, clock::now());
            let (agent, has_forgotten) = registered.inspect_err(|why| {
                if *why == TokenRejection::Subject && has_group_overage(claims) {
                    tracing::warn!(
                        "a token has no `groups` since its subject has too many of them: let the issuer put roles into \
                         it, or only groups assigned to the application"
                    );
                }
            })?;
            if has_forgotten {
                self.tokens.clear();
            }
            // Everybody was derived anew meanwhile, perhaps before this one was there.
            if Arc::ptr_eq(&roster, &self.roster.load()) {
                return Ok(agent);
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

    fn anonymous_or_missing(
        roster: &Roster,
        methods: Authentication,
    ) -> Result<Identity, AuthError> {
        if !methods.allows_anonymous() {
            return Err(AuthError::Missing(methods));
        }
        let anonymous = roster.agents.get(&AgentId::ANONYMOUS).map(Arc::clone);
        let anonymous = anonymous.ok_or(AuthError::Rejected(KeyRejection::Unknown))?;
        Ok(anonymous.into())
    }
}

/// The agent that a certificate is that of. One that is that of several is that of none.
fn agent_of_certificate(
    certificate: &PeerCertificate,
    roster: &Roster,
) -> Result<Identity, AuthError> {
    let refused = || AuthError::Certificate(certificate.subject().into());
    match certificate.agents(&roster.certificates).as_slice() {
        [only] => {
            let agent = roster.agents.get(only).map(Arc::clone);
            agent.map(Identity::from).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

/// The secrets in `Authorization`; `None` for what is sent in another way.
fn bearers(headers: &HeaderMap) -> impl Iterator<Item = Option<&str>> {
    values(headers.get_all(AUTHORIZATION)).map(|value| {
        let (scheme, secret) = value?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
    })
}

/// The keys in our own header.
fn own_headers(headers: &HeaderMap) -> impl Iterator<Item = Option<&str>> {
    values(headers.get_all(API_KEY_HEADER))
}

fn values(all: GetAll<'_, HeaderValue>) -> impl Iterator<Item = Option<&str>> {
    all.into_iter().map(|value| value.to_str().ok())
}

/// The one key that the headers carry, where nothing else can be in them.
fn key_from_headers(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let mut found = None;
    for key in bearers(headers).chain(own_headers(headers)) {
        let key = key.ok_or(AuthError::Rejected(KeyRejection::Unknown))?;
        if found.is_some_and(|other| other != key) {
            return Err(AuthError::Ambiguous);
        }
        found = Some(key);
    }
    Ok(found)
}
