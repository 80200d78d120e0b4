//! The servers of another program's config, and their names.

use std::{collections::HashSet, path::Path};

use sha2::{Digest as _, Sha256};

use super::{
    DocumentImport, LocalServer, into_table, keys::NO_SERVERS, moved_entry, server::ServerImport,
};
use crate::{
    config::{
        diagnostics::report::Diagnostic,
        node::{ConfigTable, ConfigValue, Node, TableEntry},
    },
    names::ServerName,
};

/// What a number takes that is put behind a name.
const SUFFIX_MAX: usize = 8;

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
        let mut servers = ConfigTable::new();
        let mut taken: HashSet<String> = entries.keys().cloned().collect();
        for (name, entry) in entries {
            if matches!(entry.node.value, ConfigValue::Null) {
                continue;
            }
            if let Some((mut usable, mut entry)) = self.import_server(&name, entry, None) {
                if usable != name && !taken.insert(usable.clone()) {
                    usable = self.share_namespace(usable, &mut entry, &mut taken);
                }
                self.findings.insert_key(&mut servers, usable, entry);
            }
        }
        Node::new(span, ConfigValue::Table(servers))
    }

    /// The first free name after `name`, which another server has. As far as exposed names go the two are
    /// one: it is not known which of them is meant.
    fn share_namespace(
        &mut self,
        name: String,
        entry: &mut TableEntry,
        taken: &mut HashSet<String>,
    ) -> String {
        let short = &name[..name.len().min(ServerName::LENGTH_MAX - SUFFIX_MAX)];
        let mut free = (2..=taken.len() + 2).map(|n| format!("{short}-{n}"));
        let free = free.find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(free.clone());
        let (key, span) = (entry.key, entry.node.span);
        self.findings.add(
            Diagnostic::warning(format!("another server is called `{name}`"))
                .at(Some(key), format!("this one is called `{free}`")),
        );
        if let Some(table) = entry.node.as_table_mut() {
            let namespace = moved_entry(key, span, ConfigValue::Text(name));
            table.insert("namespace".to_owned(), namespace);
        }
        free
    }

    /// Adds a server of one project, under a name that no other has.
    pub(super) fn add_local_server(&mut self, local: LocalServer, servers: &mut Node) {
        let LocalServer {
            name,
            entry,
            project,
        } = local;
        let key = entry.key;
        let imported = self.import_server(&name, entry, Some(&project));
        let (Some((mut name, entry)), Some(servers)) = (imported, servers.as_table_mut()) else {
            return;
        };
        if servers.contains_key(&name) {
            let folder = project.file_name().unwrap_or_default().to_string_lossy();
            let mut free = to_usable_name(&format!("{name}-{folder}"));
            let mut count = 1;
            while servers.contains_key(&free) {
                count += 1;
                free = to_usable_name(&format!("{name}-{folder}-{count}"));
            }
            self.findings.add(
                Diagnostic::warning(format!("the server is renamed to `{free}`")).at(
                    Some(key),
                    "another project, or the user, has one of this name",
                ),
            );
            name = free;
        }
        servers.insert(name, entry);
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

    /// The server, and the name we have for it; `None` for what is no server.
    fn import_server(
        &mut self,
        name: &str,
        mut entry: TableEntry,
        project: Option<&Path>,
    ) -> Option<(String, TableEntry)> {
        let usable = self.usable_name(name, &entry);
        let Some(keys) = entry.node.as_table() else {
            return Some((usable, entry));
        };
        if let Some(kind) = no_server_kind(keys) {
            let note = format!(
                "servers of type `{kind}` are skipped: they are no MCP servers of their own"
            );
            self.ignore(&format!("servers.{usable}"), &entry, Some(&note));
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
        let mut ours = ServerImport::new(&usable, project, self).run(theirs);
        if is_excluded {
            let off = moved_entry(entry.key, entry.key, ConfigValue::Bool(false));
            ours.insert("enabled".to_owned(), off);
        }
        entry.node.value = ConfigValue::Table(ours);
        Some((usable, entry))
    }

    fn usable_name(&mut self, name: &str, entry: &TableEntry) -> String {
        if name.is_empty() || ServerName::parse(name).is_ok() {
            return name.to_owned();
        }
        let usable = to_usable_name(name);
        self.findings.add(
            Diagnostic::warning(format!("the server is renamed to `{usable}`")).at(
                Some(entry.key),
                "names consist of letters, digits, `_`, `-` and `.`",
            ),
        );
        usable
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
