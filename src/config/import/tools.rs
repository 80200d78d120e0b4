//! Which tools of a server other programs allow.

use super::{
    formats::GOOSE,
    into_table, moved_entry,
    server::ServerImport,
    values::{read_switch, text_node},
};
use crate::config::{
    diagnostics::report::Diagnostic,
    node::{ConfigTable, ConfigValue, Node, TableEntry},
};

/// The rules of our own section of tools that no other program has.
const RULES: [&str; 4] = ["describe", "price", "rename", "timeout"];

impl ServerImport<'_, '_> {
    pub(super) fn import_allowed(&mut self, key: &str, list: TableEntry) {
        let is_empty = list.node.as_list().is_some_and(Vec::is_empty);
        if is_empty && self.document.format.name == GOOSE {
            return;
        }
        self.add_rule("allow", key, list);
    }

    pub(super) fn import_denied(&mut self, key: &str, list: TableEntry) {
        self.add_rule("deny", key, list);
    }

    /// `tools`: a list of those that may be used, or all of them; settings of single tools; or rules.
    pub(super) fn import_tools(&mut self, key: &str, entry: TableEntry) {
        match &entry.node.value {
            ConfigValue::Text(text) if text == "*" => {}
            ConfigValue::List(names) if names.iter().any(|name| name.as_text() == Some("*")) => {}
            ConfigValue::List(_) | ConfigValue::Text(_) => self.add_rule("allow", key, entry),
            ConfigValue::Table(_) => self.import_tool_settings(key, entry),
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::Null => self.lose_protection(key, &entry),
        }
    }

    fn import_tool_settings(&mut self, key: &str, entry: TableEntry) {
        let at = entry.key;
        let mut denied = Vec::new();
        for (name, entry) in into_table(entry.node) {
            let path = format!("{key}.{name}");
            match name.as_str() {
                "allow" | "include" => self.add_rule("allow", &path, entry),
                "deny" | "exclude" => self.add_rule("deny", &path, entry),
                _ if RULES.contains(&name.as_str()) => {
                    if let Some(rules) = self.section("tools", at, at) {
                        rules.insert(name, entry);
                    }
                }
                _ => {
                    let enabled = match entry.node.get("enabled") {
                        Some(switch) => read_switch(&switch.node),
                        None => read_switch(&entry.node),
                    };
                    if enabled == Some(false) {
                        denied.push(text_node(&entry.node, self.own_tool_name(&name)));
                    } else if enabled.is_none() {
                        self.lose_protection(&path, &entry);
                    }
                }
            }
        }
        if !denied.is_empty() {
            self.add_rule("deny", key, moved_entry(at, at, ConfigValue::List(denied)));
        }
    }

    /// The name that the server itself has for a tool, where another gateway has put its name before it.
    fn own_tool_name(&self, name: &str) -> String {
        let ours = self.path.strip_prefix("servers.").unwrap_or_default();
        let own = [self.name.as_str(), ours].into_iter().find_map(|server| {
            let rest = name.strip_prefix(server).filter(|_| !server.is_empty());
            rest.and_then(|rest| rest.strip_prefix(['-', '/', ':']))
        });
        own.unwrap_or(name).to_owned()
    }

    /// A list of tools, as the rule `rule` of ours.
    fn add_rule(&mut self, rule: &str, key: &str, list: TableEntry) {
        let TableEntry { key: at, mut node } = list;
        let span = node.span;
        if node.as_text().is_some() {
            node = Node::new(span, ConfigValue::List(vec![node]));
        }
        if let ConfigValue::List(names) = &mut node.value {
            for name in names {
                self.strip_arguments(rule, key, name);
            }
        }
        let rules: Option<&mut ConfigTable> = self.section("tools", at, span);
        let Some(rules) = rules else {
            return;
        };
        match (
            rules.get_mut(rule).map(|old| &mut old.node.value),
            node.value,
        ) {
            (None, value) => {
                rules.insert(rule.to_owned(), moved_entry(at, span, value));
            }
            (Some(ConfigValue::List(old)), ConfigValue::List(names)) if rule == "deny" => {
                old.extend(names);
            }
            // Only what both lists have may be used.
            (Some(ConfigValue::List(old)), ConfigValue::List(names)) => {
                old.retain(|name| names.iter().any(|it| it.as_text() == name.as_text()));
            }
            (Some(_), value) => {
                let entry = moved_entry(at, span, value);
                self.lose_protection(key, &entry);
            }
        }
    }

    /// A rule of a tool with arguments is one for all of it: denied as a whole, so that nothing is let
    /// through, or allowed as a whole, as its program has it.
    fn strip_arguments(&mut self, rule: &str, key: &str, name: &mut Node) {
        let parts = name.as_text().and_then(|text| text.split_once('('));
        let Some((tool, _)) = parts.filter(|(tool, _)| !tool.trim().is_empty()) else {
            return;
        };
        let tool = tool.trim().to_owned();
        let what = if rule == "deny" { "denied" } else { "allowed" };
        self.document.findings.add(
            Diagnostic::warning(format!("`{}.{key}` has a tool with arguments", self.path))
                .at(
                    Some(name.span),
                    format!("the tool is {what} whatever its arguments"),
                )
                .help("use `governance.args` for rules about arguments"),
        );
        name.value = ConfigValue::Text(tool);
    }
}
