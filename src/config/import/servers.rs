//! The servers of another program's config, and their names.

use std::{collections::HashSet, ffi::OsStr, path::Path};

use sha2::{Digest as _, Sha256};

use super::{
    DocumentImport, LocalServer, into_table, keys::NO_SERVERS, moved_entry, server::ServerImport,
};
use crate::{
    config::{
        diagnostics::report::Diagnostic,
        node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
    },
    names::ServerName,
};

impl DocumentImport<'_> {
    /// The servers of `section`, in our shape and with names that we can use.
    pub(super) fn import_servers(&mut self, section: Node) -> Node {
        let span = section.span;
        let entries = match section.value {
            ConfigValue::Table(entries) => entries,
            ConfigValue::List(items) => self.by_name(items),
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::Null
            | ConfigValue::Text(_) => return section,
        };
        let names: HashSet<String> = entries.keys().cloned().collect();
        let mut servers = ConfigTable::new();
        for (name, entry) in entries {
            if matches!(entry.node.value, ConfigValue::Null) {
                continue;
            }
            let is_taken =
                |free: &str| free != name && (names.contains(free) || servers.contains_key(free));
            let ours = self.free_name(&name, entry.key, None, is_taken);
            if let Some(mut entry) = self.import_server((&name, &ours), entry, None) {
                let wanted = to_usable_name(&name);
                if ServerName::parse_local(&name).is_err() && ours != wanted {
                    share_namespace(&mut entry, wanted);
                }
                servers.insert(ours, entry);
            }
        }
        Node::new(span, ConfigValue::Table(servers))
    }

    /// Adds a server of one project, under a name that no other has.
    pub(super) fn add_local_server(&mut self, local: LocalServer, servers: &mut Node) {
        let LocalServer {
            name,
            entry,
            project,
        } = local;
        let Some(servers) = servers.as_table_mut() else {
            return;
        };
        let is_taken = |free: &str| servers.contains_key(free);
        let ours = self.free_name(&name, entry.key, project.file_name(), is_taken);
        if let Some(entry) = self.import_server((&name, &ours), entry, Some(&project)) {
            servers.insert(ours, entry);
        }
    }

    /// A list of servers by their names.
    fn by_name(&mut self, items: Vec<Node>) -> ConfigTable {
        let mut entries = ConfigTable::new();
        for (index, mut node) in items.into_iter().enumerate() {
            let name = node
                .as_table_mut()
                .and_then(|keys| keys.shift_remove("name"));
            let name = name.filter(|name| name.node.as_text().is_some());
            if let Some(name) = name {
                let key = name.node.span;
                let name = name.node.as_text().unwrap_or_default().to_owned();
                let entry = TableEntry { key, node };
                self.findings.insert_key(&mut entries, name, entry);
            } else {
                let key = node.span;
                let path = format!("{}[{index}]", self.format.section.join("."));
                let entry = TableEntry { key, node };
                self.ignore(&path, &entry, Some("servers need a `name`"));
            }
        }
        entries
    }

    /// The server, by its name and the one we have for it; `None` for what is no server.
    fn import_server(
        &mut self,
        (name, ours): (&str, &str),
        mut entry: TableEntry,
        project: Option<&Path>,
    ) -> Option<TableEntry> {
        let Some(keys) = entry.node.as_table() else {
            return Some(entry);
        };
        if let Some(kind) = no_server_kind(keys) {
            let note = format!(
                "servers of type `{kind}` are skipped: they are no MCP servers of their own"
            );
            self.ignore(&format!("servers.{ours}"), &entry, Some(&note));
            return None;
        }
        let mut theirs = into_table(entry.node.clone());
        let is_program = theirs.contains_key("command");
        let unused = if is_program { "headers" } else { "env" };
        for (key, default) in self.defaults.iter().filter(|(key, _)| *key != unused) {
            let value = theirs.entry(key.clone()).or_insert_with(|| default.clone());
            for (name, default) in default.node.as_table().into_iter().flatten() {
                if let Some(table) = value.node.as_table_mut() {
                    table.entry(name.clone()).or_insert_with(|| default.clone());
                }
            }
        }
        let is_excluded = self.switched_off.iter().any(|off| off == name);
        let mut keys = ServerImport::new((name, ours), project, self).run(theirs);
        if is_excluded {
            let off = moved_entry(entry.key, entry.key, ConfigValue::Bool(false));
            keys.insert("enabled".to_owned(), off);
        }
        entry.node.value = ConfigValue::Table(keys);
        Some(entry)
    }

    /// The name we have for the server `name` at `key`: its own, when we can use it and no other has it; or one
    /// like it, of the `folder` of its project.
    fn free_name(
        &mut self,
        name: &str,
        key: Span,
        folder: Option<&OsStr>,
        is_taken: impl Fn(&str) -> bool,
    ) -> String {
        let is_usable = ServerName::parse_local(name).is_ok();
        if name.is_empty() || (is_usable && !is_taken(name)) {
            return name.to_owned();
        }
        let wanted = match folder {
            Some(folder) if is_usable => to_usable_name(&format!("{name}-{}", folder.display())),
            _ => to_usable_name(name),
        };
        let mut free = wanted.clone();
        let mut count = 1;
        while is_taken(&free) {
            count += 1;
            let suffix = format!("-{count}");
            let kept = wanted.chars().take(ServerName::LENGTH_MAX - suffix.len());
            free = kept.chain(suffix.chars()).collect();
        }
        let label = if is_usable {
            "another project, or the user, has one of this name"
        } else {
            "names consist of letters, digits, `_`, `-` and `.`"
        };
        self.findings.add(
            Diagnostic::warning(format!("the server is renamed to `{free}`")).at(Some(key), label),
        );
        free
    }
}

/// Lets a server have the exposed names of the one whose name it would have: nobody knows which of them is
/// meant, so that neither is served.
fn share_namespace(entry: &mut TableEntry, namespace: String) {
    let (key, span) = (entry.key, entry.node.span);
    if let Some(table) = entry.node.as_table_mut() {
        let namespace = moved_entry(key, span, ConfigValue::Text(namespace));
        // One that the document sets keeps them apart.
        table.entry("namespace".to_owned()).or_insert(namespace);
    }
}

/// What we call a server with a name that we cannot use: what is left of it, or, where that is
/// nothing (a name in Chinese, say), a hash of it, so that no other has the same.
fn to_usable_name(name: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let words: Vec<&str> = name
        .split(|c| !legal(c))
        .filter(|word| !word.is_empty())
        .collect();
    let usable: String = words
        .join("-")
        .chars()
        .take(ServerName::LENGTH_MAX)
        .collect();
    if usable.is_empty() {
        let hash: [u8; 32] = Sha256::digest(name).into();
        let [a, b, c, d, ..] = hash;
        return format!("server-{a:02x}{b:02x}{c:02x}{d:02x}");
    }
    usable
}

/// What an entry is that is no server: something inside the client, or of a kind that we do not run.
fn no_server_kind(keys: &ConfigTable) -> Option<String> {
    let text = |key: &str| keys.get(key).and_then(|entry| entry.node.as_text());
    let kind = text("type").filter(|kind| NO_SERVERS.contains(kind));
    let is_reached = [
        "baseUrl",
        "command",
        "cmd",
        "httpUrl",
        "serverUrl",
        "uri",
        "url",
    ]
    .iter()
    .any(|key| keys.contains_key(*key));
    // Zed and Gemini have servers of their extensions, with settings alone.
    let is_extension =
        !is_reached && (keys.contains_key("settings") || text("source") == Some("extension"));
    kind.map(str::to_owned)
        .or_else(|| is_extension.then(|| "extension".to_owned()))
}
