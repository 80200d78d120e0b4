//! Grants towards servers, as the store knows them.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;
use crate::names::AgentId;

/// What grants and notes are sealed for.
pub const GRANTS_PURPOSE: &str = "grants";

/// Whose a grant towards a server is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum GrantOwner {
    /// One of the gateway, which serves every caller.
    Gateway,
    /// That of one agent, which serves nobody else.
    Agent(AgentId),
}

/// Which grant it is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct GrantKey {
    /// The server: its name and URL. Two servers with one URL have grants of their own.
    pub resource: String,
    /// Who granted it.
    pub issuer: String,
    /// Whose it is.
    pub owner: GrantOwner,
}

impl GrantKey {
    /// The place that its secrets are sealed for.
    pub fn place(&self) -> String {
        let owner = match self.owner {
            GrantOwner::Gateway => String::new(),
            GrantOwner::Agent(agent) => agent.to_string(),
        };
        let key = serde_json::json!([self.resource, self.issuer, owner]);
        format!("grants/{key}")
    }
}

/// Whether a grant can be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantState {
    /// As far as anybody knows.
    Active,
    /// Its issuer takes its refresh token no more: somebody has to sign in again.
    Rejected,
}

/// A grant towards a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredGrant {
    /// Which one it is.
    pub key: GrantKey,
    /// Whether it can be used.
    pub state: GrantState,
    /// What it is good for, separated by spaces.
    pub scopes: String,
    /// When somebody signed in.
    pub granted: Timestamp,
    /// When its issuer gave a token last.
    pub refreshed: Timestamp,
    /// When the time of its access token passes, where the issuer said so.
    pub expires: Option<Timestamp>,
    /// Its tokens and its client, sealed for [`GrantKey::place`].
    pub sealed: Vec<u8>,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantNote {
    /// A sign-in that has begun.
    SignIn,
    /// How an issuer departs from the standards.
    Quirks,
    /// A client that an issuer registered for us.
    Registration,
}

impl GrantNote {
    /// How it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SignIn => "sign_in",
            Self::Quirks => "quirks",
            Self::Registration => "registration",
        }
    }

    /// The place that the note of `key` is sealed for.
    pub fn place(self, key: &str) -> String {
        format!("grant_notes/{}/{key}", self.as_str())
    }
}

/// Keeps grants towards servers. What was put is on disk when that has returned.
pub trait GrantStore: std::fmt::Debug + Send + Sync {
    /// Keeps `grant`, also in place of an older one of the same key.
    fn put_grant<'a>(&'a self, grant: &'a StoredGrant) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The grants of `owner` towards `resource`, the one that was refreshed last first.
    fn grants<'a>(
        &'a self,
        resource: &'a str,
        owner: GrantOwner,
    ) -> BoxFuture<'a, Result<Vec<StoredGrant>, StoreError>>;

    /// Who has an active grant towards `resource` of `issuer`, or of any issuer: the gateway, or else who signed in
    /// first. A slash at the end of an issuer makes no other of it.
    fn first_owner<'a>(
        &'a self,
        resource: &'a str,
        issuer: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Option<GrantOwner>, StoreError>>;

    /// Every grant of `owner`; of everybody where there is none.
    fn all_grants(
        &self,
        owner: Option<GrantOwner>,
    ) -> BoxFuture<'_, Result<Vec<StoredGrant>, StoreError>>;

    /// Forgets the grant of `key`. Whether there was one.
    fn remove_grant<'a>(&'a self, key: &'a GrantKey) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Forgets every grant, and every note, which the same key seals; it takes no key.
    fn remove_all_grants(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Keeps a note, and forgets those whose time has passed at `now`.
    fn put_note<'a>(
        &'a self,
        note: (GrantNote, &'a str),
        sealed: &'a [u8],
        expires: Option<Timestamp>,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// What a note says.
    fn note<'a>(
        &'a self,
        note: (GrantNote, &'a str),
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>>;

    /// What a note says whose time has not passed at `now`; it is forgotten. Of those who ask for it together
    /// one gets it.
    fn take_note<'a>(
        &'a self,
        note: (GrantNote, &'a str),
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>>;
}
