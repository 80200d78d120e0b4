//! What an agent may do beside calling tools: what of the admin API is open to it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What of the admin API is open to an agent.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It sees what is its own.
    #[default]
    Agent,
    /// It sees and changes what belongs to its workspace, which is its team.
    WorkspaceAdmin,
    /// It sees everything but secrets, and changes nothing.
    Auditor,
    /// It sees and changes everything.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [
        Self::Agent,
        Self::WorkspaceAdmin,
        Self::Auditor,
        Self::Admin,
    ];

    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::WorkspaceAdmin => "workspace_admin",
            Self::Auditor => "auditor",
            Self::Admin => "admin",
        }
    }

    /// Whether it may see everything of the gateway but secrets.
    pub const fn sees_everything(self) -> bool {
        matches!(self, Self::Auditor | Self::Admin)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
