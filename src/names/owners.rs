//! Which owners of servers somebody sees.

use std::{collections::HashSet, sync::Arc};

use super::{AgentId, ServerName, ServerOwner, WorkspaceName};

/// The workspaces and agents that own servers of a config.
#[derive(Clone, Debug, Default)]
pub struct OwnerIndex {
    workspaces: HashSet<Arc<str>>,
    agents: HashSet<AgentId>,
}

impl OwnerIndex {
    /// Those of `servers`.
    pub fn of<'n>(servers: impl IntoIterator<Item = &'n ServerName>) -> Self {
        let mut index = Self::default();
        for server in servers {
            match server.owner() {
                ServerOwner::Gateway => {}
                ServerOwner::Workspace(name) => drop(index.workspaces.insert(name.as_str().into())),
                ServerOwner::Agent(id) => drop(index.agents.insert(id)),
            }
        }
        index
    }

    /// Whether every server is the gateway's, so that all agents see the same.
    pub fn is_empty(&self) -> bool {
        self.workspaces.is_empty() && self.agents.is_empty()
    }

    /// The owners whose servers the agent `id` of `team` sees beside the gateway's.
    pub fn seen_by(&self, id: AgentId, team: Option<&str>) -> OwnerSet {
        OwnerSet {
            workspace: team.and_then(|team| self.workspaces.get(team)).cloned(),
            agent: self.agents.get(&id).copied(),
        }
    }
}

/// The owners whose servers somebody sees beside the gateway's; by default none.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct OwnerSet {
    workspace: Option<Arc<str>>,
    agent: Option<AgentId>,
}

impl OwnerSet {
    /// Whether only the gateway's servers are seen.
    pub fn is_empty(&self) -> bool {
        self.workspace.is_none() && self.agent.is_none()
    }

    /// The agent who sees servers of its own.
    pub fn agent(&self) -> Option<AgentId> {
        self.agent
    }

    /// What a server without an owner that is called `name` would be called as one of these owners; first as the
    /// agent's own, which hides that of its workspace.
    pub fn names_of(&self, name: &ServerName) -> impl Iterator<Item = ServerName> {
        let agent = self.agent.map(ServerOwner::Agent);
        let workspace = self.workspace.as_deref();
        let workspace = workspace.and_then(|name| WorkspaceName::parse(name).ok());
        let owners = [agent, workspace.map(ServerOwner::Workspace)];
        let is_local = !name.is_owned();
        let owners = owners.into_iter().flatten().filter(move |_| is_local);
        owners.map(|owner| name.owned_by(&owner))
    }

    /// Whether `server` is of one of these owners or of the gateway.
    pub fn sees(&self, server: &ServerName) -> bool {
        let Some(owner) = server.owner_text() else {
            return true;
        };
        // No name of a workspace is one of an agent.
        let is_agent = |id: AgentId| owner.parse() == Ok(id);
        self.workspace.as_deref() == Some(owner) || self.agent.is_some_and(is_agent)
    }
}
