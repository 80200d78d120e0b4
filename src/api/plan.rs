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

    /// Leaves out what is not of the servers that somebody `sees`. Files that were changed and are not read yet are
    /// part of a plan.
    pub(super) fn retain_servers(&mut self, sees: impl Fn(&str) -> bool) {
        self.servers_added.retain(|name| sees(name));
        self.servers_removed.retain(|name| sees(name));
        self.servers_changed.retain(|change| sees(&change.name));
        self.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_left_out() {
        let servers = || vec!["a@science".to_owned(), "b@arts".to_owned(), "c".to_owned()];
        let changed = servers().into_iter().map(|name| ServerSettingsChange {
            name,
            settings: vec!["url".to_owned()],
            restarts: true,
        });
        let mut plan = ChangePlan {
            servers_added: servers(),
            servers_removed: servers(),
            servers_changed: changed.collect(),
            others: vec!["agents added: x".to_owned()],
        };
        plan.retain_servers(|name| name.ends_with("@science"));
        assert_eq!(plan.servers_added, ["a@science"]);
        assert_eq!(plan.servers_removed, ["a@science"]);
        assert_eq!(plan.servers_changed.len(), 1);
        assert_eq!(plan.servers_changed[0].name, "a@science");
        assert!(plan.others.is_empty());
    }
}
