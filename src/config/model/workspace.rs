//! Workspaces: teams with servers, members and a budget of their own.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits::{Budget, BudgetList};
use crate::config::Config;

/// A workspace: the agents whose `team` has its name, and the servers `SERVER@NAME`, which nobody else sees.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workspace {
    /// What it is for, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Names of agents, of files or store, that have no `team` of their own: it is this one. So it is for the users that
    /// `agents.match` gives one of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// What all its agents together may spend, in place of `governance.teams`.
    #[serde(with = "BudgetList", skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<Budget>,
}

impl Config {
    /// The workspace of each agent that one names, by the name of the agent.
    pub fn workspace_members(&self) -> HashMap<String, String> {
        let workspaces = self.workspaces.iter();
        let members = workspaces.flat_map(|(name, workspace)| {
            let members = workspace.members.iter();
            members.map(move |member| (member.clone(), name.to_string()))
        });
        members.collect()
    }
}
