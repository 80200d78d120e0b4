//! What servers listed last.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;
use crate::names::ServerName;

/// The last listing of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredListing {
    /// The server.
    pub server: ServerName,
    /// The SHA-256 of how it is reached: a server of the same name that is reached in another way is
    /// another server.
    pub connection: [u8; 32],
    /// When it was listed, to the millisecond.
    pub listed: Timestamp,
    /// What it listed; JSON that only `discovery` reads.
    pub body: String,
}

/// Keeps listings. Losing some costs nothing but time.
pub trait Listings: std::fmt::Debug + Send + Sync {
    /// Keeps a listing in place of the one before.
    fn put<'a>(&'a self, listing: &'a StoredListing) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Notes that what is kept of `server` as it is reached over `connection` was listed again at
    /// `time`; whether anything is.
    fn confirm<'a>(
        &'a self,
        server: &'a ServerName,
        connection: [u8; 32],
        time: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The last listing of `server` as it is reached over `connection`.
    fn listing<'a>(
        &'a self,
        server: &'a ServerName,
        connection: [u8; 32],
    ) -> BoxFuture<'a, Result<Option<StoredListing>, StoreError>>;

    /// Removes what was listed before `time`.
    fn remove_before(&self, time: Timestamp) -> BoxFuture<'_, Result<(), StoreError>>;
}
