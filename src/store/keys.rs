//! API keys as the store knows them: a hash, and what people are shown.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use super::{StoreError, StoredRows};
use crate::names::AgentId;

/// The public id of a key, by which people revoke it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// Wraps `id`.
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is kept of a key's text: its SHA-256.
///
/// A plain hash is right here. Slow, salted hashes protect secrets that people choose and that can
/// be guessed; our keys have 256 random bits, so that nobody can try them all and no two are alike,
/// and a slow hash would only make every call slower.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// The hash of a key's text.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(***)")
    }
}

/// How long before its time passes people are told of a key.
const EXPIRES_SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A key of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredKey {
    /// Its public id.
    pub id: KeyId,
    /// Whose it is; an agent of the store or of the config.
    pub agent: AgentId,
    /// The hash of its text.
    pub hash: KeyHash,
    /// How it begins, for people: `tbk_abcd`.
    pub prefix: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends; `None`: never.
    pub expires: Option<Timestamp>,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
    /// When it was last seen, to the minute.
    pub last_used: Option<Timestamp>,
}

impl StoredKey {
    /// Whether the key opens anything at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether the key still opens something at `now`, and its time passes within 30 days: of one that is
    /// good for less than four times as long, within the last quarter of its time.
    pub fn expires_soon(&self, now: Timestamp) -> bool {
        let Some(expires) = self.expires.filter(|_| self.is_live(now)) else {
            return false;
        };
        let lifetime = expires.duration_since(self.created);
        expires.duration_since(now) <= EXPIRES_SOON.min(lifetime / 4)
    }
}

/// Keeps keys.
pub trait KeyStore: fmt::Debug + Send + Sync {
    /// Adds a key.
    fn add<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All keys, live or not, oldest first.
    fn keys(&self) -> BoxFuture<'_, Result<StoredRows<StoredKey>, StoreError>>;

    /// Those of one agent, by their ids.
    fn keys_of(&self, agent: AgentId) -> BoxFuture<'_, Result<StoredRows<StoredKey>, StoreError>>;

    /// Revokes a key as of `at`, which ends the sessions of its agent; `false` when there is none or
    /// it was revoked before. One whose row was refused opens nothing already, and is known as revoked.
    fn revoke<'a>(
        &'a self,
        id: &'a KeyId,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Notes when keys were last seen; a time before the one kept changes nothing.
    fn touch<'a>(&'a self, seen: &'a [(KeyId, Timestamp)])
    -> BoxFuture<'a, Result<(), StoreError>>;
}
