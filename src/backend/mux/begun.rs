//! Tasks that calls on a link have begun, and whose each is: a server goes on with one when its call
//! is over, and may speak of it at any time (2025-11-25).
//!
//! Where a link serves several agents, what is about a task goes to nobody but its agent.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use memchr::memmem;

use super::{Mux, recipient::Recipient};
use crate::{
    lock::lock,
    mcp::{Raw, tasks},
    names::AgentId,
};

/// Tasks of one link that are remembered; the oldest gives way, and nobody hears of it any more.
const TASKS_MAX: usize = 1024;

/// Longest id of a task that is remembered, bytes.
const ID_BYTES_MAX: usize = 1024;

/// Whether a task may have been begun with `result`.
pub(super) fn may_name_task(result: &Raw) -> bool {
    memmem::find(result.as_bytes(), b"taskId").is_some()
}

/// The tasks of one link.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Whose calls came first.
    first: OnceLock<AgentId>,
    /// Whether calls of others came too.
    serves_several: AtomicBool,
    tasks: Mutex<VecDeque<(String, AgentId)>>,
}

impl Begun {
    /// Notes that `agent` makes a call.
    pub(super) fn serves(&self, agent: AgentId) {
        if *self.first.get_or_init(|| agent) != agent {
            self.serves_several.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the task that a call of `agent` has begun, if it has.
    pub(super) fn note(&self, result: &Raw, agent: AgentId) {
        // Readers of connections have no time for a walk through a large result without any.
        if !may_name_task(result) {
            return;
        }
        // One that is not remembered is told to nobody where there are several.
        let id = tasks::begun(result, None).filter(|id| id.len() <= ID_BYTES_MAX);
        let Some(id) = id else {
            return;
        };
        let mut tasks = lock(&self.tasks);
        tasks.retain(|(known, _)| *known != id);
        if tasks.len() >= TASKS_MAX {
            tasks.pop_front();
        }
        tasks.push_back((id, agent));
    }

    fn is_of(&self, id: &str, agent: AgentId) -> bool {
        let tasks = lock(&self.tasks);
        tasks
            .iter()
            .any(|(known, whose)| known == id && *whose == agent)
    }
}

impl Mux {
    /// Whether `recipient` is meant by a message that names no call: not by one about the task of
    /// another agent.
    pub(super) fn is_meant(
        &self,
        recipient: &Recipient,
        method: &str,
        params: Option<&Raw>,
    ) -> bool {
        if !self.begun.serves_several.load(Ordering::Relaxed) {
            return true;
        }
        match params.map(|params| tasks::told_of(method, params)) {
            None | Some(tasks::Named::Nothing) => true,
            Some(tasks::Named::One(id)) => self.begun.is_of(&id, recipient.agent()),
            Some(tasks::Named::Unclear) => false,
        }
    }
}
