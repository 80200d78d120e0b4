//! Views as the store knows them.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{EntryWrite, StoreError};
use crate::names::{AgentId, ViewId};

/// A view of the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredView {
    /// Its id.
    pub id: ViewId,
    /// Whose it is.
    pub agent: AgentId,
    /// What it shows; JSON that only `views` reads.
    pub document: String,
    /// When it was made, to the millisecond.
    pub created: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// When it was last changed; it grows with each change, so that it tells versions apart.
    pub changed: Timestamp,
}

/// Keeps views until they end.
pub trait ViewStore: std::fmt::Debug + Send + Sync {
    /// Adds a view, unless its agent has `per_agent_max` already that have not ended by its creation; whether it did.
    fn add<'a>(
        &'a self,
        view: &'a StoredView,
        per_agent_max: usize,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Replaces what a view shows and when it ends, where it was last changed when `view` says.
    fn replace<'a>(
        &'a self,
        view: &'a StoredView,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>>;

    /// Removes a view, where it has still the version `expected`.
    fn remove(
        &self,
        id: ViewId,
        expected: Timestamp,
    ) -> BoxFuture<'_, Result<EntryWrite, StoreError>>;

    /// Removes those that end by `now`: these.
    fn remove_expired(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<StoredView>, StoreError>>;

    /// All of them.
    fn views(&self) -> BoxFuture<'_, Result<Vec<StoredView>, StoreError>>;
}
