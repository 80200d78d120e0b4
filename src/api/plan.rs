//! What a change of the config does to the gateway that runs.

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::Config;

/// What a change does.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, JsonSchema)]
pub struct ChangePlan {
    /// Servers that are new.
    pub servers_added: Vec<String>,
    /// Servers that are gone.
    pub servers_removed: Vec<String>,
    /// Servers whose settings change, and which.
    pub servers_changed: Vec<ServerSettingsChange>,
    /// What else changes, by the names of agents, profiles and keys.
    pub others: Vec<String>,
}

/// What changes of a server.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, JsonSchema)]
pub struct ServerSettingsChange {
    /// The server.
    pub name: String,
    /// The settings that change.
    pub settings: Vec<String>,
    /// Whether its connections are made anew.
    pub restarts: bool,
}

impl ChangePlan {
    /// What makes `new` of the config `old`, beside `others`.
    pub fn of(old: &Config, new: &Config, others: Vec<String>) -> Self {
        let mut plan = Self {
            others,
            ..Self::default()
        };
        for (name, server) in &new.servers {
            let Some(before) = old.servers.get(name) else {
                plan.servers_added.push(name.to_string());
                continue;
            };
            let settings = before.changed_settings(server);
            if !settings.is_empty() {
                plan.servers_changed.push(ServerSettingsChange {
                    name: name.to_string(),
                    settings: settings.into_iter().map(str::to_owned).collect(),
                    restarts: !before.is_compatible_with(server),
                });
            }
        }
        let gone = old.servers.keys();
        let gone = gone.filter(|name| !new.servers.contains_key(*name));
        plan.servers_removed = gone.map(ToString::to_string).collect();
        plan
    }
}
