//! Who can be named on a command line: the agents of the config, and those of the store.

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use jiff::Timestamp;

use super::{CommandError, unknown_name};
use crate::{
    auth::{ANONYMOUS, Agent, AgentDirectory},
    config::Config,
    names::AgentId,
    store::{RefusedRow, StoredAgent, StoredRows},
};

/// The config and the agents.
#[derive(Debug)]
pub(in crate::cli) struct KnownAgents {
    pub(in crate::cli) config: Config,
    /// The files that the config was read from.
    files: Vec<PathBuf>,
    directory: AgentDirectory,
    stored: Vec<StoredAgent>,
    /// Agents of the store that count for nothing.
    refused: Vec<RefusedRow>,
    locked_out: HashSet<AgentId>,
}

/// Where an agent is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::cli) enum AgentOrigin {
    /// Nowhere: it stands for callers without a key.
    Builtin,
    Config,
    Store,
}

impl AgentOrigin {
    pub(in crate::cli) const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Config => "config",
            Self::Store => "store",
        }
    }
}

impl KnownAgents {
    /// The agents of `config`, which was read from `files`, and `stored`, those of the store.
    pub(super) fn new(
        config: Config,
        files: Vec<PathBuf>,
        stored: StoredRows<StoredAgent>,
    ) -> Self {
        let StoredRows {
            rows: stored,
            refused,
        } = stored;
        let agents = config.agents.values().cloned();
        let directory = AgentDirectory::new(config.governance.auth, agents);
        directory.set_workspace_members(config.workspace_members());
        let loaded = stored.iter().cloned().map(Agent::from).collect();
        directory.update_store(loaded, Vec::new());
        Self {
            config,
            files,
            locked_out: directory.locked_out_agents(),
            directory,
            stored,
            refused,
        }
    }

    /// Where the audit lies.
    pub(in crate::cli) fn log_dir(&self) -> PathBuf {
        self.config.data_dir.join("audit")
    }

    /// Whether callers have to show a key.
    pub(in crate::cli) fn requires_keys(&self) -> bool {
        !self.config.governance.auth.allows_anonymous()
    }

    /// The agents that callers can be, by name.
    pub(in crate::cli) fn agents(&self) -> Vec<Arc<Agent>> {
        let mut agents = self.directory.agents();
        agents.retain(|agent| agent.id != AgentId::ANONYMOUS || !self.requires_keys());
        agents
    }

    /// The agents of the store that those of the config hide.
    pub(in crate::cli) fn shadowed(&self) -> impl Iterator<Item = &StoredAgent> {
        let stored = self.stored.iter();
        stored.filter(|agent| self.directory.is_in_config(agent.id))
    }

    /// The agents of the store that count for nothing, since they have no MAC that fits.
    pub(in crate::cli) fn refused(&self) -> &[RefusedRow] {
        &self.refused
    }

    /// Id and name of the one of these that `name` names, or whose id it is.
    pub(in crate::cli) fn refused_agent(&self, name: &str) -> Option<(AgentId, String)> {
        let mut refused = self.refused.iter();
        let found = refused.find(|it| it.name == name || it.id == name)?;
        Some((found.id.parse().ok()?, found.name.clone()))
    }

    /// Whether the keys of `id` open nothing, since its agent of the store is disabled and hidden.
    pub(in crate::cli) fn is_locked_out(&self, id: AgentId) -> bool {
        self.locked_out.contains(&id)
    }

    pub(in crate::cli) fn origin(&self, id: AgentId) -> AgentOrigin {
        if id == AgentId::ANONYMOUS {
            AgentOrigin::Builtin
        } else if self.directory.is_in_config(id) {
            AgentOrigin::Config
        } else {
            AgentOrigin::Store
        }
    }

    /// When an agent of the store was made.
    pub(in crate::cli) fn created(&self, id: AgentId) -> Option<Timestamp> {
        let stored = self.stored.iter().find(|agent| agent.id == id);
        let stored = stored.filter(|_| self.origin(id) == AgentOrigin::Store);
        stored.map(|agent| agent.created)
    }

    /// What people call the agent `id`; the id itself when there is no such agent.
    pub(in crate::cli) fn name_of(&self, id: AgentId) -> String {
        let agent = self.directory.current(id);
        agent.map_or_else(|| id.to_string(), |agent| agent.name.clone())
    }

    /// The agent that `name` names, or whose id it is.
    pub(in crate::cli) fn agent(&self, name: &str) -> Result<Arc<Agent>, CommandError> {
        let agents = self.directory.agents();
        if let Ok(id) = name.parse::<AgentId>()
            && let Some(agent) = self.directory.current(id)
        {
            return Ok(agent);
        }
        let named = || agents.iter().filter(|agent| agent.name == name);
        let written = named().find(|agent| self.directory.is_in_config(agent.id));
        if let Some(agent) = written.or_else(|| named().next()) {
            return Ok(Arc::clone(agent));
        }
        let known: Vec<&str> = agents
            .iter()
            .filter(|agent| agent.id != AgentId::ANONYMOUS || !self.requires_keys())
            .map(|agent| agent.name.as_str())
            .collect();
        Err(unknown_name(
            "agent",
            name,
            &known,
            "create one with `tollbridge agents add`",
        ))
    }

    /// The agent `name` of the store; those of the config are refused.
    pub(in crate::cli) fn stored_agent(&self, name: &str) -> Result<StoredAgent, CommandError> {
        let agent = self.agent(name)?;
        match self.origin(agent.id) {
            AgentOrigin::Builtin => Err(CommandError::usage(format!(
                "`{ANONYMOUS}` (callers without a key) is configured in `[governance]`"
            ))),
            AgentOrigin::Config => Err(CommandError::usage(format!(
                "agent `{}` is configured in {}; change it there{}",
                agent.name,
                self.config_files_text(),
                self.shadowed_agent_hint(&agent)
            ))),
            AgentOrigin::Store => {
                let stored = self.stored.iter().find(|stored| stored.id == agent.id);
                stored.cloned().ok_or_else(|| {
                    CommandError::usage(format!("agent `{}` is not in the store", agent.name))
                })
            }
        }
    }

    /// How to get at the agent of the store that is called like `written` or has its id.
    fn shadowed_agent_hint(&self, written: &Agent) -> String {
        let mut stored = self.stored.iter();
        if let Some(hidden) = stored.find(|stored| stored.id == written.id) {
            return format!(
                ". It overrides the stored agent `{}`, which can be changed once the configured \
                 agent has another name or `id`",
                hidden.name
            );
        }
        let mut stored = self.stored.iter();
        let namesake = stored.find(|stored| stored.name == written.name);
        namesake.map_or_else(String::new, |namesake| {
            format!("; the one of the store is {}", namesake.id)
        })
    }

    /// Where agents are configured, for people.
    pub(in crate::cli) fn config_files_text(&self) -> String {
        match self.files.as_slice() {
            [file] => file.display().to_string(),
            _ => "the config".to_owned(),
        }
    }
}
