//! Whose tasks of servers are.
//!
//! All agents come to a server as one and the same client, so it cannot tell who asks for what has come
//! of whose call. Therefore an agent has the tasks that a server gave to calls of its own, and no
//! others: those are unknown in its requests and are left out of lists and of what it is told. Ids
//! pass as they are. Where nobody needs a key there is one agent, and nothing is looked at.
//!
//! Whose a task is stands in the store before its id is told: it outlives a restart, and every gateway
//! of a data directory knows it. It never becomes another's: an answer may be in the words of who made
//! the call, and ids are of one task each (Spec 2025-11-25 basic/utilities/tasks). What a server gives to
//! a second agent all the same, since it counts anew, is nobody's.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::{CallContext, Governance, PolicySet, Refusal};
use crate::{
    auth::Agent,
    clock,
    mcp::{
        Method, Outcome, Raw,
        json::{self, Patch},
        tasks::{self, TaskReference},
    },
    names::{AgentId, ServerName, TaskHash},
    router::Routed,
    store::{StoreError, StoredTask, TaskClaim, TaskIdScope},
};

/// Tasks of one agent that are remembered: servers need never say that one is over, and must not fill
/// the disk. A task that this many younger ones have followed is nobody's.
const TASKS_PER_AGENT_MAX: usize = 10_000;

impl Governance {
    /// Step 2: whether the task of a request is its agent's, and whether a call asks for one.
    pub(super) async fn check_task(
        &self,
        routed: &Routed,
        policies: &PolicySet,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        if policies.has_agent_identities && context.method == Method::ToolsCall {
            context.asks_for_task = routed.params.as_ref().is_some_and(tasks::requests_task);
        }
        let is_about_one = policies.has_agent_identities && tasks::names_one_task(&context.method);
        let Some(params) = routed.params.as_ref().filter(|_| is_about_one) else {
            return Ok(());
        };
        let is_own = match tasks::referenced_task(params.as_bytes(), 0) {
            // The server refuses it itself.
            TaskReference::Nothing => true,
            TaskReference::One(id) => {
                let id = [TaskHash::of(&id)];
                let own = self.owned_tasks(context.agent().id, &routed.server, &id);
                let own = Box::pin(own).await.map_err(|error| {
                    let invocation = context.id;
                    tracing::error!(%invocation, %error, "cannot look up the task owner");
                    Refusal::TaskUnavailable
                })?;
                own.contains(&id[0])
            }
            TaskReference::Ambiguous => false,
        };
        if is_own {
            Ok(())
        } else {
            Err(Refusal::UnknownTask)
        }
    }

    /// Step 5: what a server answered, without tasks of others. Whose a task is that it has begun is kept
    /// first, together with what it says of an older one of that id.
    pub(super) async fn filter_task_answer(
        &self,
        outcome: Outcome,
        same_id: TaskIdScope,
        revision: Option<&str>,
        context: &CallContext,
    ) -> Result<Outcome, Refusal> {
        let (Ok(result), Some(target)) = (&outcome, &context.target) else {
            return Ok(outcome);
        };
        if context.method == Method::ToolsCall {
            let may_begin = tasks::may_have_created_task(context.asks_for_task, revision);
            let begun = may_begin.then(|| tasks::created_task(result, revision));
            if let Some(id) = begun.flatten() {
                let task = StoredTask {
                    server: target.server.clone(),
                    id: TaskHash::of(&id),
                    agent: context.agent().id,
                    claimed: clock::now(),
                };
                Box::pin(self.store_task_owner(&task, same_id, context)).await?;
            }
        } else if tasks::is_list(&context.method) {
            let own = self.filter_task_list(result, context.agent().id, &target.server);
            return Ok(Ok(Box::pin(own).await));
        }
        Ok(outcome)
    }

    /// Keeps whose a task is. One that nobody could ask for was better not told of.
    async fn store_task_owner(
        &self,
        task: &StoredTask,
        same_id: TaskIdScope,
        context: &CallContext,
    ) -> Result<(), Refusal> {
        let Some(store) = &self.storage.tasks else {
            return Err(Refusal::Unrecorded);
        };
        match store.claim(task, same_id, TASKS_PER_AGENT_MAX).await {
            Ok(TaskClaim::Claimed(0)) => {}
            Ok(TaskClaim::Contested) => {
                let (invocation, server) = (context.id, &task.server);
                tracing::warn!(
                    %invocation, %server,
                    "task id issued to two agents; revoked"
                );
                return Err(Refusal::Unrecorded);
            }
            Ok(TaskClaim::Claimed(_)) => {
                let (agent, limit) = (&context.agent().name, TASKS_PER_AGENT_MAX);
                tracing::warn!(agent, limit, "dropped the oldest task of an agent");
            }
            Err(error) => {
                let invocation = context.id;
                tracing::error!(%invocation, %error, "failed to persist task owner");
                return Err(Refusal::Unrecorded);
            }
        }
        Ok(())
    }

    /// A list of tasks of `server` with those of `agent` alone.
    async fn filter_task_list(&self, list: &Raw, agent: AgentId, server: &ServerName) -> Raw {
        let json = list.as_bytes();
        // By where each task begins.
        let mut ids = BTreeMap::new();
        let lists: Vec<_> = tasks::task_lists(json).collect();
        for task in lists.iter().flat_map(|it| json::elements(json, it.start)) {
            if let TaskReference::One(id) = tasks::referenced_task(json, task.start) {
                ids.insert(task.start, TaskHash::of(&id));
            }
        }
        let all: Vec<_> = ids.values().copied().collect();
        let own = self.owned_or_none(agent, server, &all).await;
        let is_own = |at| ids.get(&at).is_some_and(|id| own.contains(id));
        let mut patch = Patch::new(json);
        for listed in lists {
            patch.retain_elements(listed, is_own);
        }
        if patch.is_empty() {
            return list.clone();
        }
        patch.finish()
    }

    /// Of the ids of tasks that a client of `agent` wants to hear of from `server`, those of its own
    /// tasks; `None` when there are none.
    pub async fn filter_task_ids(
        &self,
        wanted: &Value,
        agent: &Agent,
        server: &ServerName,
    ) -> Option<Value> {
        if !self.policy_set.load().has_agent_identities {
            return Some(wanted.clone());
        }
        let wanted = wanted.as_array()?;
        let hash = |id: &Value| TaskHash::of(id.as_str().unwrap_or_default());
        let ids: Vec<_> = wanted.iter().map(hash).collect();
        let own = self.owned_or_none(agent.id, server, &ids).await;
        let own: Vec<_> = wanted
            .iter()
            .filter(|id| own.contains(&hash(id)))
            .cloned()
            .collect();
        (!own.is_empty()).then_some(Value::Array(own))
    }

    /// Whether the client of `agent` may hear a notification of `server`: one about a task belongs to
    /// whose the task is.
    pub async fn may_receive_notification(
        &self,
        method: &str,
        params: &Raw,
        agent: &Agent,
        server: &ServerName,
    ) -> bool {
        if !tasks::is_task_notification(method) || !self.policy_set.load().has_agent_identities {
            return true;
        }
        let TaskReference::One(id) = tasks::referenced_task(params.as_bytes(), 0) else {
            return false;
        };
        let id = [TaskHash::of(&id)];
        let own = self.owned_or_none(agent.id, server, &id).await;
        own.contains(&id[0])
    }

    /// As [`Governance::owned_tasks`]; where that cannot be known, none are.
    async fn owned_or_none(
        &self,
        agent: AgentId,
        server: &ServerName,
        ids: &[TaskHash],
    ) -> HashSet<TaskHash> {
        let own = self.owned_tasks(agent, server, ids).await;
        own.unwrap_or_else(|error| {
            tracing::error!(%server, %error, "cannot look up task owners");
            HashSet::new()
        })
    }

    /// Those of the tasks `ids` of `server` that are `agent`'s, which is asked of the store once, however
    /// many they are.
    async fn owned_tasks(
        &self,
        agent: AgentId,
        server: &ServerName,
        ids: &[TaskHash],
    ) -> Result<HashSet<TaskHash>, StoreError> {
        match &self.storage.tasks {
            Some(store) if !ids.is_empty() => store.owned_by(agent, server, ids).await,
            Some(_) | None => Ok(HashSet::new()),
        }
    }
}

#[cfg(test)]
mod tests;
