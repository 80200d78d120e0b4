//! Entries of the config that stand in the store.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{StoreError, StoredRows};
use crate::config::{ConfigEntry, EntryKey};

/// An entry and when it was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredEntry {
    /// What it says.
    pub entry: ConfigEntry,
    /// When it was made, to the millisecond.
    pub created: Timestamp,
    /// When it was last changed; it grows with each change, so that it tells versions apart.
    pub changed: Timestamp,
}

/// What became of a change to an entry, an agent or a view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EntryWrite {
    /// It was made; the entry has this version now.
    Done(Timestamp),
    /// Somebody else changed it meanwhile, to this version: nothing was changed.
    Conflict(Timestamp),
    /// There is no such entry.
    Missing,
}

impl EntryWrite {
    /// Whether the change was made.
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Done(_))
    }
}

/// Keeps entries of the config.
pub trait EntryStore: std::fmt::Debug + Send + Sync {
    /// Adds an entry, and says which version it has.
    ///
    /// # Errors
    /// [`StoreError::EntryExists`].
    fn add<'a>(
        &'a self,
        entry: &'a ConfigEntry,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<Timestamp, StoreError>>;

    /// Replaces the document of an entry that has still the version `expected`, where one is given.
    ///
    /// # Errors
    /// [`StoreError`].
    fn replace<'a>(
        &'a self,
        entry: &'a ConfigEntry,
        expected: Option<Timestamp>,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>>;

    /// Removes an entry that has still the version `expected`, where one is given.
    ///
    /// # Errors
    /// [`StoreError`].
    fn remove<'a>(
        &'a self,
        key: &'a EntryKey,
        expected: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>>;

    /// All entries, by section and name.
    fn entries(&self) -> BoxFuture<'_, Result<StoredRows<StoredEntry>, StoreError>>;
}
