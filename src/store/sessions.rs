//! Sessions of clients as the store knows them.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::StoreError;
use crate::names::AgentId;

/// What is kept of a session's id: its SHA-256, so that nobody who reads the store can go on with
/// the session.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SessionHash(pub [u8; 32]);

impl SessionHash {
    /// The hash of an id.
    pub fn of(id: &str) -> Self {
        Self(Sha256::digest(id.as_bytes()).into())
    }
}

/// A session of the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredSession {
    /// Its id.
    pub id: SessionHash,
    /// Whose it is.
    pub agent: AgentId,
    /// When it was last used, to some minutes.
    pub used: Timestamp,
    /// What it is; JSON that only `session` reads.
    pub body: String,
}

/// Keeps sessions. A session that is lost costs its client a new `initialize`.
pub trait SessionStore: std::fmt::Debug + Send + Sync {
    /// Keeps sessions, in place of what was known of them.
    fn put<'a>(&'a self, sessions: &'a [StoredSession]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// The session of this id.
    fn session(&self, id: SessionHash) -> BoxFuture<'_, Result<Option<StoredSession>, StoreError>>;

    /// Notes when sessions were last used; those that are not kept are left out.
    fn touch<'a>(
        &'a self,
        used: &'a [(SessionHash, Timestamp)],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes sessions.
    fn remove<'a>(&'a self, ids: &'a [SessionHash]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes all that were not used since `time`, and of each agent all but the `per_agent_max`
    /// that were used last.
    fn trim(&self, time: Timestamp, per_agent_max: usize) -> BoxFuture<'_, Result<(), StoreError>>;
}
