//! Whose tasks of servers are, as the store knows it.

use std::collections::HashSet;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::StoreError;
use crate::names::{AgentId, ServerName, TaskHash};

/// A task that a server gave to an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredTask {
    /// The server.
    pub server: ServerName,
    /// What it calls the task.
    pub id: TaskHash,
    /// Whose it is.
    pub agent: AgentId,
    /// When it was given, to the millisecond.
    pub claimed: Timestamp,
}

/// What a task that is given to one agent says of an older one of the same id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskIdScope {
    /// It is another task of another agent: each agent has a server of its own.
    PerAgent,
    /// It is the same task: all agents are clients of one server.
    Shared,
}

/// What became of a task that was given to an agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskClaim {
    /// It is the agent's. So many older ones of the agent were forgotten for it.
    Claimed(u64),
    /// Another agent was given it before: it is nobody's from now on, whoever is given it again.
    Contested,
}

/// Keeps whose tasks are. One that is forgotten is nobody's.
pub trait TaskOwners: std::fmt::Debug + Send + Sync {
    /// Keeps that a task was given to its agent, and of that agent the `per_agent_max` that were
    /// given last; of those that are nobody's as many.
    fn claim<'a>(
        &'a self,
        task: &'a StoredTask,
        same_id: TaskIdScope,
        per_agent_max: usize,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>>;

    /// Those of the tasks that `server` calls `ids` which are `agent`'s.
    fn owned_by<'a>(
        &'a self,
        agent: AgentId,
        server: &'a ServerName,
        ids: &'a [TaskHash],
    ) -> BoxFuture<'a, Result<HashSet<TaskHash>, StoreError>>;
}
