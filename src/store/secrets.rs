//! Secrets that the gateways of a data directory make themselves and share.

use futures_util::future::BoxFuture;

use super::StoreError;

/// A secret.
pub type Secret = [u8; 32];

/// Keeps secrets. They are as safe as the data directory: who reads it can do what a gateway does.
pub trait Secrets: std::fmt::Debug + Send + Sync {
    /// The secret called `name`: the one that is kept, or else `fresh`, which is kept from now on.
    fn secret<'a>(
        &'a self,
        name: &'a str,
        fresh: Secret,
    ) -> BoxFuture<'a, Result<Secret, StoreError>>;
}
