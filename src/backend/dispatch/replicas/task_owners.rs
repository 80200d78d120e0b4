//! Which replica began which task: what is asked about a task goes there, since others need not know it.

use std::collections::{HashMap, VecDeque};

use crate::{
    backend::Answer,
    governance::Admitted,
    mcp::{
        Method,
        tasks::{self, TaskReference},
    },
    names::{AgentId, TaskHash},
};

/// Tasks that are remembered. What is asked about an older one goes where any other request would.
const TASKS_MAX: usize = 10_000;

/// Programs that serve one agent each may call tasks the same.
type Task = (AgentId, TaskHash);

/// Which replica began which task.
#[derive(Debug, Default)]
pub(super) struct TaskReplicas {
    at: HashMap<Task, usize>,
    /// The oldest first.
    order: VecDeque<Task>,
}

impl TaskReplicas {
    /// Notes that the replica numbered `at` began the task.
    pub(super) fn note(&mut self, task: Task, at: usize) {
        if self.at.insert(task, at).is_some() {
            return;
        }
        self.order.push_back(task);
        if self.order.len() > TASKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.at.remove(&oldest);
        }
    }

    /// The replica that began it.
    pub(super) fn at(&self, task: &Task) -> Option<usize> {
        self.at.get(task).copied()
    }
}

/// The task that a request is about.
pub(super) fn referenced_task(admitted: &Admitted) -> Option<Task> {
    let call = &admitted.routed().call;
    let params = admitted.routed().params.as_ref();
    let params = params.filter(|_| tasks::names_one_task(&call.method))?;
    match tasks::referenced_task(params.as_bytes(), 0) {
        TaskReference::One(id) => Some((call.client.agent.id, TaskHash::of(&id))),
        TaskReference::Nothing | TaskReference::Ambiguous => None,
    }
}

/// The task that a call has begun.
pub(super) fn created_task(admitted: &Admitted, answer: &Answer) -> Option<Task> {
    let call = &admitted.routed().call;
    let result = answer.outcome.as_ref().ok()?;
    if call.method != Method::ToolsCall || !tasks::may_reference_task(result) {
        return None;
    }
    let revision = Some(answer.revision.as_str());
    let params = admitted.routed().params.as_ref();
    let asks = params.is_some_and(tasks::requests_task);
    let id =
        tasks::may_have_created_task(asks, revision).then(|| tasks::created_task(result, revision));
    Some((call.client.agent.id, TaskHash::of(&id.flatten()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tasks_are_remembered() {
        let task = |id: usize| (AgentId::ANONYMOUS, TaskHash::of(&id.to_string()));
        let mut begun = TaskReplicas::default();
        for id in 0..TASKS_MAX {
            begun.note(task(id), id % 3);
        }
        begun.note(task(1), 7);
        assert_eq!(
            begun.at(&task(0)),
            Some(0),
            "none gives way for one that is known"
        );
        begun.note(task(TASKS_MAX), 2);
        assert_eq!(begun.at(&task(0)), None);
        assert_eq!(begun.at(&task(1)), Some(7));
        assert_eq!(begun.at(&task(2)), Some(2));
        assert_eq!(begun.at(&(AgentId::from_name("a"), task(2).1)), None);
        assert_eq!((begun.at.len(), begun.order.len()), (TASKS_MAX, TASKS_MAX));
    }
}
