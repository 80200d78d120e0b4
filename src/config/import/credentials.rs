//! Variables, headers and credentials of a server of another program.

use super::{
    into_table,
    keys::NO_OAUTH,
    moved_entry,
    server::ServerImport,
    values::{text_node, variable_node},
};
use crate::config::{
    diagnostics::redact,
    node::{ConfigTable, ConfigValue, Node, TableEntry},
};

impl ServerImport<'_, '_> {
    pub(super) fn import_env(&mut self, key: &str, entry: TableEntry) {
        let ConfigValue::List(items) = entry.node.value else {
            self.merge("env", key, entry);
            return;
        };
        let mut table = ConfigTable::new();
        for item in items {
            let Some((name, value)) = item.as_text().and_then(|text| text.split_once('=')) else {
                self.pass_variable(key, &item, &mut table);
                continue;
            };
            let value = TableEntry {
                key: item.span,
                node: text_node(&item, value),
            };
            table.insert(name.to_owned(), value);
        }
        let node = Node::new(entry.node.span, ConfigValue::Table(table));
        self.merge("env", key, TableEntry { node, ..entry });
    }

    pub(super) fn import_variable_names(&mut self, key: &str, entry: &TableEntry) {
        let mut table = ConfigTable::new();
        for item in entry.node.as_list().into_iter().flatten() {
            let name = item.get("name").map_or(item, |name| &name.node);
            self.pass_variable(key, name, &mut table);
        }
        let node = Node::new(entry.node.span, ConfigValue::Table(table));
        self.merge(
            "env",
            key,
            TableEntry {
                key: entry.key,
                node,
            },
        );
    }

    /// Lets the program have the variable that `node` names, if it is set.
    fn pass_variable(&mut self, key: &str, node: &Node, table: &mut ConfigTable) {
        let name = node.as_text().unwrap_or_default();
        match (
            self.document.context.environment.get(name),
            variable_node(node),
        ) {
            (Some(_), Some(value)) => {
                let value = TableEntry {
                    key: node.span,
                    node: value,
                };
                table.insert(name.to_owned(), value);
            }
            _ => self.note_unset(key, node),
        }
    }

    /// Notes that a variable which the document names is not set.
    fn note_unset(&mut self, key: &str, node: &Node) {
        let entry = TableEntry {
            key: node.span,
            node: node.clone(),
        };
        let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let name = node.as_text().filter(is_name);
        let name = name.filter(|name| !redact::is_generated(name));
        let note = format!(
            "set the variable {}: it is not set",
            name.unwrap_or("it names")
        );
        self.ignore(key, &entry, Some(&note));
    }

    pub(super) fn import_header_variables(&mut self, key: &str, entry: &TableEntry) {
        let mut table = ConfigTable::new();
        for (header, entry) in into_table(entry.node.clone()) {
            let name = entry.node.as_text().unwrap_or_default();
            match (
                self.document.context.environment.get(name),
                variable_node(&entry.node),
            ) {
                (Some(_), Some(node)) => {
                    table.insert(header, TableEntry { node, ..entry });
                }
                _ => self.note_unset(key, &entry.node),
            }
        }
        let node = Node::new(entry.node.span, ConfigValue::Table(table));
        self.merge(
            "headers",
            key,
            TableEntry {
                key: entry.key,
                node,
            },
        );
    }

    pub(super) fn import_request_options(&mut self, key: &str, entry: TableEntry) {
        for (inner, entry) in into_table(entry.node) {
            match inner.as_str() {
                "headers" => self.merge("headers", key, entry),
                _ => self.ignore(&format!("{key}.{inner}"), &entry, None),
            }
        }
    }

    pub(super) fn import_auth(&mut self, key: &str, entry: TableEntry) {
        let kind = entry.node.get("type").and_then(|kind| kind.node.as_text());
        match (&entry.node.value, kind) {
            (ConfigValue::Text(word), _) if ["", "none"].contains(&word.as_str()) => {}
            (ConfigValue::Text(word), _) if !word.to_lowercase().starts_with("oauth") => {
                self.set_bearer(key, entry);
            }
            (ConfigValue::Table(_), Some("static")) => {
                self.import_static_key(key, into_table(entry.node));
            }
            (ConfigValue::Table(_), Some(kind)) if !kind.starts_with("oauth") => {
                self.set("auth", key, entry);
            }
            (ConfigValue::Bool(false), _) => {}
            _ => self.ignore(key, &entry, Some(NO_OAUTH)),
        }
    }

    /// The key of Mistral Vibe: the name of a variable, a header and its format.
    fn import_static_key(&mut self, key: &str, mut keys: ConfigTable) {
        let header = keys.shift_remove("api_key_header");
        let format = keys.shift_remove("api_key_format");
        let text = |entry: &Option<TableEntry>, default: &str| {
            let text = entry.as_ref().and_then(|entry| entry.node.as_text());
            text.unwrap_or(default).to_owned()
        };
        let (header, format) = (
            text(&header, "Authorization"),
            text(&format, "Bearer {token}"),
        );
        for (inner, entry) in keys {
            match inner.as_str() {
                "type" => {}
                "headers" => self.merge("headers", key, entry),
                "api_key_env" => {
                    let name = entry.node.as_text().unwrap_or_default();
                    let value = format.replace("{token}", &format!("${{{name}}}"));
                    let node = text_node(&entry.node, value);
                    if let Some(headers) = self.section("headers", entry.key, entry.node.span) {
                        headers.insert(header.clone(), TableEntry { node, ..entry });
                    }
                }
                _ => self.ignore(&format!("{key}.{inner}"), &entry, None),
            }
        }
    }

    pub(super) fn set_bearer(&mut self, key: &str, entry: TableEntry) {
        if entry
            .node
            .as_text()
            .is_some_and(|token| token.trim().is_empty())
        {
            self.ignore(key, &entry, Some("a token without a value is not sent"));
            return;
        }
        let (at, span) = (entry.key, entry.node.span);
        let kind = moved_entry(at, span, ConfigValue::Text("bearer".to_owned()));
        let auth = [("type".to_owned(), kind), ("token".to_owned(), entry)];
        let auth = ConfigValue::Table(auth.into_iter().collect());
        self.set("auth", key, moved_entry(at, span, auth));
    }
}
