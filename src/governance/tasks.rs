//! Whose tasks of servers are.
//!
//! All agents come to a server as one and the same client, so it cannot tell who asks for what has come
//! of whose call. Therefore an agent has the tasks that a server gave to calls of its own, and no
//! others: those are unknown in its requests and are left out of lists and of what it is told. Ids
//! pass as they are. Where nobody needs a key there is one agent, and nothing is looked at.
//!
//! Whose a task is stands in the store before its id is told: it outlives a restart, and every gateway
//! of a data directory knows it.

use serde_json::Value;

use super::{Governance, Law, Refusal, Ticket};
use crate::{
    auth::Agent,
    clock,
    mcp::{
        Method, Outcome, Raw,
        json::{self, Patch},
        tasks::{self, Named},
    },
    names::{AgentId, ServerName},
    router::Routed,
    store::{SameId, StoreError, StoredTask, TaskHash},
};

/// Tasks of one agent that are remembered: servers need never say that one is over, and must not fill
/// the disk. A task that this many younger ones have followed is nobody's.
const TASKS_PER_AGENT_MAX: usize = 10_000;

impl Governance {
    /// Step 2: whether the task of a request is its agent's.
    pub(super) async fn check_task(
        &self,
        routed: &Routed,
        law: &Law,
        ticket: &Ticket,
    ) -> Result<(), Refusal> {
        let is_about_one = law.tells_agents_apart && tasks::is_about_one(&ticket.method);
        let Some(params) = routed.params.as_ref().filter(|_| is_about_one) else {
            return Ok(());
        };
        let is_own = match tasks::named(params.as_bytes(), 0) {
            // The server refuses it itself.
            Named::Nothing => true,
            Named::One(id) => {
                let owns = self.owns(ticket.agent().id, &routed.server, &id);
                Box::pin(owns).await.map_err(|error| {
                    let invocation = ticket.id;
                    tracing::error!(%invocation, %error, "it is not known whose a task is");
                    Refusal::TaskUnavailable
                })?
            }
            Named::Unclear => false,
        };
        if is_own {
            Ok(())
        } else {
            Err(Refusal::UnknownTask)
        }
    }

    /// Step 5: what a server answered, without tasks of others. Whose a task is that it has begun is kept
    /// first, together with what it says of an older one of that id.
    pub(super) async fn heed_tasks(
        &self,
        outcome: Outcome,
        same_id: SameId,
        revision: Option<&str>,
        ticket: &Ticket,
    ) -> Result<Outcome, Refusal> {
        let (Ok(result), Some(target)) = (&outcome, &ticket.target) else {
            return Ok(outcome);
        };
        if ticket.method == Method::ToolsCall {
            if let Some(id) = tasks::begun(result, revision) {
                let task = StoredTask {
                    server: target.server.clone(),
                    id: TaskHash::of(&id),
                    agent: ticket.agent().id,
                    given: clock::now(),
                };
                Box::pin(self.give(&task, same_id, ticket)).await?;
            }
        } else if tasks::is_list(&ticket.method) {
            let own = self.own_of_list(result, ticket.agent().id, &target.server);
            return Ok(Ok(Box::pin(own).await));
        }
        Ok(outcome)
    }

    /// Keeps whose a task is. One that nobody could ask for was better not told of.
    async fn give(
        &self,
        task: &StoredTask,
        same_id: SameId,
        ticket: &Ticket,
    ) -> Result<(), Refusal> {
        let Some(store) = &self.books.tasks else {
            return Err(Refusal::Unrecorded);
        };
        match store.give(task, same_id, TASKS_PER_AGENT_MAX).await {
            Ok(0) => {}
            Ok(_) => {
                let (agent, limit) = (&ticket.agent().name, TASKS_PER_AGENT_MAX);
                tracing::warn!(agent, limit, "the oldest task of an agent is forgotten");
            }
            Err(error) => {
                let invocation = ticket.id;
                tracing::error!(%invocation, %error, "it cannot be kept whose a task is");
                return Err(Refusal::Unrecorded);
            }
        }
        Ok(())
    }

    /// A list of tasks of `server` with those of `agent` alone.
    async fn own_of_list(&self, list: &Raw, agent: AgentId, server: &ServerName) -> Raw {
        let json = list.as_bytes();
        let mut patch = Patch::new(json);
        for listed in tasks::lists(json) {
            // What is no list is not shown.
            let (mut own, mut is_whole) = (Vec::new(), json[listed.start] == b'[');
            for task in json::elements(json, listed.start) {
                if self
                    .is_own(agent, server, tasks::named(json, task.start))
                    .await
                {
                    own.push(&json[task]);
                } else {
                    is_whole = false;
                }
            }
            if !is_whole {
                patch.replace(listed, [b"[", &*own.join(&b','), b"]"].concat());
            }
        }
        if patch.is_empty() {
            return list.clone();
        }
        patch.finish()
    }

    /// Of the ids of tasks that a client of `agent` wants to hear of from `server`, those of its own
    /// tasks; `None` when there are none.
    pub async fn own_tasks(
        &self,
        wanted: &Value,
        agent: &Agent,
        server: &ServerName,
    ) -> Option<Value> {
        if !self.law.load().tells_agents_apart {
            return Some(wanted.clone());
        }
        let mut own = Vec::new();
        for id in wanted.as_array()? {
            let named = Named::One(id.as_str().unwrap_or_default().to_owned());
            if self.is_own(agent.id, server, named).await {
                own.push(id.clone());
            }
        }
        (!own.is_empty()).then_some(Value::Array(own))
    }

    /// Whether the client of `agent` may hear a notification of `server`: one about a task belongs to
    /// whose the task is.
    pub async fn may_hear(
        &self,
        method: &str,
        params: &Raw,
        agent: &Agent,
        server: &ServerName,
    ) -> bool {
        if !tasks::is_told_by(method) || !self.law.load().tells_agents_apart {
            return true;
        }
        let named = tasks::named(params.as_bytes(), 0);
        self.is_own(agent.id, server, named).await
    }

    async fn is_own(&self, agent: AgentId, server: &ServerName, named: Named) -> bool {
        let Named::One(id) = named else {
            return false;
        };
        let owns = self.owns(agent, server, &id).await;
        owns.unwrap_or_else(|error| {
            tracing::error!(%server, %error, "it is not known whose a task is");
            false
        })
    }

    async fn owns(
        &self,
        agent: AgentId,
        server: &ServerName,
        id: &str,
    ) -> Result<bool, StoreError> {
        match &self.books.tasks {
            Some(store) => store.is_of(agent, server, TaskHash::of(id)).await,
            None => Ok(false),
        }
    }
}
