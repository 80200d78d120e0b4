//! Secrets of the operator, and marks of the keys that things are sealed with.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;
use crate::names::SecretName;

/// The purpose of the key that values of secrets are sealed with.
pub const SECRETS_PURPOSE: &str = "secrets";

/// What may be known of a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredSecret {
    /// Its name, which is unique.
    pub name: SecretName,
    /// When it was first set, to the millisecond.
    pub created: Timestamp,
    /// When it was last set.
    pub changed: Timestamp,
}

/// A mark of a key, which does not tell the key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyFingerprint {
    /// The mark.
    pub bytes: [u8; 16],
    /// Where the key stood when it was first used.
    pub place: String,
}

/// Keeps secrets.
pub trait SecretStore: std::fmt::Debug + Send + Sync {
    /// Sets a secret, new or not, to what was sealed for its [`secret_place`].
    ///
    /// # Errors
    /// [`StoreError`].
    fn set<'a>(
        &'a self,
        name: &'a SecretName,
        sealed: &'a [u8],
        at: Timestamp,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All secrets, by name.
    fn secrets(&self) -> BoxFuture<'_, Result<Vec<StoredSecret>, StoreError>>;

    /// What is sealed of a secret.
    fn sealed<'a>(
        &'a self,
        name: &'a SecretName,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>>;

    /// Removes a secret; `false` when there is none. With the last one goes the mark of their key.
    fn remove<'a>(&'a self, name: &'a SecretName) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Keeps the mark of the key for `purpose` where there is none yet; the mark that is kept.
    fn claim_key<'a>(
        &'a self,
        purpose: &'a str,
        key: &'a KeyFingerprint,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<KeyFingerprint, StoreError>>;

    /// The mark of the key for `purpose`, if anything was sealed for it.
    fn key_of<'a>(
        &'a self,
        purpose: &'a str,
    ) -> BoxFuture<'a, Result<Option<KeyFingerprint>, StoreError>>;
}

/// Where the value of a secret is sealed for.
pub fn secret_place(name: &SecretName) -> String {
    format!("secrets/{name}")
}
