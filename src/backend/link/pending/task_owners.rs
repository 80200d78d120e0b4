//! Tasks that calls on a link have begun, and whose each is: a server goes on with one when its call
//! is over, and may speak of it at any time (2025-11-25).
//!
//! Where a link is not one agent's own, what is about a task goes to nobody but its agent: not to the
//! only one that was seen either, since tasks outlive links and gateways. Those of a server behind a URL
//! are remembered by its `InstanceIdentity` when a link to it is made anew; those of a program end with it.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{PendingRequests, recipient::Recipient};
use crate::{
    lock::lock,
    mcp::{Raw, tasks},
    names::{AgentId, TaskHash},
};

/// Tasks of one link that are remembered; the oldest gives way, and nobody hears of it any more.
const TASKS_MAX: usize = 1024;

/// The tasks of one link, or of those that take one another's place.
#[derive(Debug, Default)]
pub(crate) struct LinkTaskOwners {
    /// Whether all calls are of one agent, whoever that is.
    is_single_agent: bool,
    /// Whose calls came first.
    first_agent: OnceLock<AgentId>,
    /// Whether calls of others came too.
    has_other_agents: AtomicBool,
    /// Each with whose it is; `None` where several were given it.
    tasks: Mutex<VecDeque<(TaskHash, Option<AgentId>)>>,
}

impl LinkTaskOwners {
    /// Of links that serve one agent alone.
    pub(crate) fn single_agent() -> Self {
        Self {
            is_single_agent: true,
            ..Self::default()
        }
    }

    /// Notes that `agent` makes a call.
    pub(super) fn note_agent(&self, agent: AgentId) {
        if *self.first_agent.get_or_init(|| agent) != agent {
            self.has_other_agents.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the task that a call of `agent` has begun, if it has.
    pub(super) fn note(&self, result: &Raw, agent: AgentId) {
        // Readers of connections have no time for a walk through a large result without any.
        if !tasks::may_reference_task(result) {
            return;
        }
        let Some(id) = tasks::created_task(result, None) else {
            return;
        };
        let id = TaskHash::of(&id);
        let mut tasks = lock(&self.tasks);
        let at = tasks.iter().position(|(known, _)| *known == id);
        let known = at.and_then(|at| tasks.remove(at));
        // As in the store: a result cannot make the task of another agent its own.
        let is_own = known.is_none_or(|(_, whose)| whose == Some(agent));
        if tasks.len() >= TASKS_MAX {
            tasks.pop_front();
        }
        tasks.push_back((id, is_own.then_some(agent)));
    }

    /// Whether there is no other agent than `agent` that a task could be of.
    fn is_only_agent(&self, agent: AgentId) -> bool {
        // Where nobody needs a key there is one agent.
        let is_open =
            || agent == AgentId::ANONYMOUS && !self.has_other_agents.load(Ordering::Relaxed);
        self.is_single_agent || is_open()
    }

    fn is_owner(&self, id: &str, agent: AgentId) -> bool {
        let id = TaskHash::of(id);
        let tasks = lock(&self.tasks);
        tasks.iter().any(|it| *it == (id, Some(agent)))
    }
}

impl PendingRequests {
    /// Whether `recipient` is meant by a message that names no call: not by one about the task of
    /// another agent.
    pub(super) fn is_addressed_to(
        &self,
        recipient: &Recipient,
        method: &str,
        params: Option<&Raw>,
    ) -> bool {
        if self.settings.task_owners.is_only_agent(recipient.agent()) {
            return true;
        }
        match params.map(|params| tasks::task_of_notification(method, params)) {
            None | Some(tasks::TaskReference::Nothing) => true,
            Some(tasks::TaskReference::One(id)) => {
                self.settings.task_owners.is_owner(&id, recipient.agent())
            }
            Some(tasks::TaskReference::Ambiguous) => false,
        }
    }
}
