//! Agents that the command line manages; those of the config are not here.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{EntryWrite, StoreError, StoredRows};
use crate::{
    config::{Role, Terms},
    names::{AgentId, ProfileName},
};

/// An agent of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAgent {
    /// Its id.
    pub id: AgentId,
    /// Its name, unique among agents of the store.
    pub name: String,
    /// The team whose budget it shares.
    pub team: Option<String>,
    /// Whether it may do anything at all.
    pub enabled: bool,
    /// What of the admin API is open to it.
    pub role: Role,
    /// Profiles it may use; `None`: all.
    pub profiles: Option<Vec<ProfileName>>,
    /// What it may do.
    pub terms: Terms,
    /// When it was made, to the millisecond.
    pub created: Timestamp,
    /// When it was last changed; it grows with each change, so that it tells versions apart.
    pub changed: Timestamp,
}

/// Keeps agents.
pub trait AgentStore: std::fmt::Debug + Send + Sync {
    /// Adds an agent.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when the name is in use, also by an agent of another id.
    fn add<'a>(&'a self, agent: &'a StoredAgent) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Replaces all but id and creation time of an agent that has still the version `expected`, where one is given.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`] when another agent has the name.
    fn update<'a>(
        &'a self,
        agent: &'a StoredAgent,
        expected: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>>;

    /// The agent of this id.
    fn agent(&self, id: AgentId) -> BoxFuture<'_, Result<Option<StoredAgent>, StoreError>>;

    /// All agents, by name.
    fn agents(&self) -> BoxFuture<'_, Result<StoredRows<StoredAgent>, StoreError>>;

    /// Removes an agent, its keys and its sessions; `false` when there is none. What it spent stays.
    fn remove(&self, id: AgentId) -> BoxFuture<'_, Result<bool, StoreError>>;
}
