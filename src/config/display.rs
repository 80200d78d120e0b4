//! A [`Config`] for people and for scripts: what would run, with secrets hidden.
//!
//! It is shown as a config file with every key, so that it can be read like one; where it has no
//! secrets, loading it again gives the same config.

use std::{fmt, path::Path};

use serde::Serializer;
use toml::{Table, Value};

use super::{
    Config, Profile, Server, Workspace,
    diagnostics::{
        redact::{HiddenRanges, MASK, RedactedText},
        report::Diagnostics,
    },
    node::{ConfigValue, Node},
    resolve::TRANSPORT_KEYS,
    source::json,
};

/// A config as text (`Display`: TOML) or as JSON; secrets are `***`.
#[derive(Clone, Debug)]
pub struct ShownConfig {
    table: Table,
}

impl Config {
    /// What would run, secrets hidden.
    pub fn to_display(&self) -> ShownConfig {
        // Keys are texts, numbers are checked to fit TOML's, and conditions with null are refused.
        let mut table = Table::try_from(self).expect("a config is TOML");
        let mut shown = table.get_mut("servers").and_then(Value::as_table_mut);
        for (name, server) in &self.servers {
            let shown = shown
                .as_mut()
                .and_then(|shown| shown.get_mut(name.as_str()));
            if let Some(shown) = shown.and_then(Value::as_table_mut) {
                remove_implied(server, shown);
            }
        }
        self.show_agent_matches(&mut table);
        self.hide_workspace_budgets(&mut table);
        shorten_budgets(&mut table);
        ShownConfig { table }
    }
}

impl Config {
    /// Leaves out the budgets of teams that stand with their workspaces.
    fn hide_workspace_budgets(&self, table: &mut Table) {
        let governance = table.get_mut("governance").and_then(Value::as_table_mut);
        let Some(governance) = governance else { return };
        let Some(teams) = governance.get_mut("teams").and_then(Value::as_table_mut) else {
            return;
        };
        for (name, _) in self
            .workspaces
            .iter()
            .filter(|(_, it)| !it.budget.is_empty())
        {
            teams.remove(name.as_str());
        }
        if teams.is_empty() {
            governance.remove("teams");
        }
    }

    /// Puts the rules among the agents, where a config has them.
    fn show_agent_matches(&self, table: &mut Table) {
        let rules = Value::try_from(&self.agent_matches).expect("rules are TOML");
        if self.agent_matches.is_empty() {
            return;
        }
        let agents = table.entry("agents").or_insert_with(|| Table::new().into());
        if let Some(agents) = agents.as_table_mut() {
            agents.insert("match".to_owned(), rules);
        }
    }
}

/// Writes budgets below `table` as people do: none as `"off"`, one as a table.
pub(super) fn shorten_budgets(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        if let Some(table) = value.as_table_mut() {
            shorten_budgets(table);
        } else if key == "budget"
            && let Some(budgets) = value.as_array()
        {
            *value = match budgets.as_slice() {
                [] => Value::from("off"),
                [only] if only.is_table() => only.clone(),
                _ => continue,
            };
        }
    }
}

/// Removes from `shown` what `server` has although its config must not say it.
fn remove_implied(server: &Server, shown: &mut Table) {
    if !server.replicas.is_empty() {
        for key in TRANSPORT_KEYS {
            shown.remove(key);
        }
    }
    if !server.sleeps && server.idle_timeout == Server::IDLE_TIMEOUT {
        shown.remove("idle_timeout");
    }
}

impl ShownConfig {
    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(&self.table).expect("every key is a string")
    }
}

impl fmt::Display for ShownConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = toml::to_string_pretty(&self.table).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// A path as a config writes it.
pub(super) fn path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A path that need not be written.
#[expect(clippy::ref_option, reason = "serde asks so")]
pub(super) fn optional_path<S: Serializer>(
    path: &Option<std::path::PathBuf>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.as_deref().unwrap_or(Path::new("")).display())
}

/// A number of which 0 is none.
#[expect(clippy::ref_option, reason = "serde asks so")]
pub(super) fn zero_if_none<S: Serializer>(
    number: &Option<usize>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_u64(number.unwrap_or_default() as u64)
}

/// The document of an entry of the store as anybody may see it: each secret in it is `***`, but for references to
/// secrets. What is no JSON is null.
pub fn mask_document(document: &str) -> serde_json::Value {
    let mut findings = Diagnostics::default();
    let Some(node) = json::read(0, document, &mut findings) else {
        return serde_json::Value::Null;
    };
    let mut hidden = HiddenRanges::default();
    hidden.add_secrets(&node, document);
    let shown = RedactedText::new("", document, &hidden);
    masked_value(&node, &hidden, &shown)
}

fn masked_value(node: &Node, hidden: &HiddenRanges, shown: &RedactedText) -> serde_json::Value {
    use serde_json::Value as Json;
    match &node.value {
        ConfigValue::Table(table) => {
            let entries = table.iter();
            let masked =
                entries.map(|(key, entry)| (key.clone(), masked_value(&entry.node, hidden, shown)));
            Json::Object(masked.collect())
        }
        ConfigValue::List(items) => {
            let masked = items.iter().map(|item| masked_value(item, hidden, shown));
            masked.collect()
        }
        _ if hidden.hides(&node.span.range()) => {
            let text = shown.text.get(shown.map_range(node.span.range()));
            let text = text.and_then(|text| serde_json::from_str(text).ok());
            text.unwrap_or_else(|| MASK.into())
        }
        ConfigValue::Bool(value) => (*value).into(),
        ConfigValue::Float(value) => (*value).into(),
        ConfigValue::Integer(value) => (*value).into(),
        ConfigValue::Null => Json::Null,
        ConfigValue::Text(text) => text.as_str().into(),
    }
}

/// `document` with what stands in `stored` wherever it has a mask in place of a secret.
pub fn unmask_document(
    document: &mut serde_json::Value,
    stored: &serde_json::Value,
    masked: &serde_json::Value,
) {
    use serde_json::Value as Json;
    match (document, stored, masked) {
        (value, old, seen) if value == seen => *value = old.clone(),
        (Json::Object(new), Json::Object(old), Json::Object(seen)) => {
            for (key, value) in new {
                if let (Some(old), Some(seen)) = (old.get(key), seen.get(key)) {
                    unmask_document(value, old, seen);
                }
            }
        }
        (Json::Array(new), Json::Array(old), Json::Array(seen)) => {
            for ((value, old), seen) in new.iter_mut().zip(old).zip(seen) {
                unmask_document(value, old, seen);
            }
        }
        _ => {}
    }
}

impl Profile {
    /// What it says, as a config file would have it.
    pub fn to_display(&self) -> serde_json::Value {
        // As for a whole config.
        let mut table = Table::try_from(self).expect("a profile is TOML");
        shorten_budgets(&mut table);
        serde_json::to_value(&table).expect("every key is a string")
    }
}

impl Workspace {
    /// What it says, as a config file would have it.
    pub fn to_display(&self) -> serde_json::Value {
        // As for a whole config.
        let mut table = Table::try_from(self).expect("a workspace is TOML");
        shorten_budgets(&mut table);
        serde_json::to_value(&table).expect("every key is a string")
    }
}

impl Server {
    /// What of it would run, secrets hidden, as a config file would have it.
    pub fn to_display(&self) -> serde_json::Value {
        // As for a whole config.
        let mut table = Table::try_from(self).expect("a server is TOML");
        remove_implied(self, &mut table);
        shorten_budgets(&mut table);
        serde_json::to_value(&table).expect("every key is a string")
    }
}
