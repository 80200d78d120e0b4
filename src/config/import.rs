//! Configs of other programs, as they are: clients, editors and gateways.
//!
//! Runs on the tree of one source and leaves a tree in our shape: keys are renamed, values keep
//! their places. `formats` is the table of programs, `keys` that of the keys of servers. Our own keys may
//! stand beside theirs. What has no equivalent is ignored, with one warning for all of it, and left out
//! at once, so that nothing in it can be a mistake.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::{
    ConfigFormat, Environment,
    diagnostics::{
        ignored_keys::IgnoredKey,
        renamed_keys,
        report::{ConfigTexts, Diagnostic, Diagnostics},
        suggest,
    },
    file::EXTENSION_PREFIX,
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
    schema::Section,
    validate,
};
use formats::{CLAUDE_CODE, ClientFormat, ForeignDocument, GEMINI, PROTECTIONS, project_of};

mod bridge;
mod credentials;
mod formats;
mod keys;
mod notation;
mod server;
mod servers;
mod tools;
mod values;

/// Sections of ours that must be right wherever they stand, since they protect.
const STRICT_SECTIONS: [&str; 2] = ["audit", "governance"];

/// How many keys of an unknown document are named.
const KEYS_SHOWN: usize = 5;

/// What is known of a source before it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportContext<'c> {
    /// Its number.
    pub(super) source: usize,
    pub(super) format: ConfigFormat,
    pub(super) environment: &'c Environment,
    /// The schema of our own configs.
    pub(super) schema: &'c Json,
}

/// Brings `node`, the tree of a source, into our shape.
pub(super) fn import_document(
    node: &mut Node,
    context: ImportContext<'_>,
    sources: &mut ConfigTexts,
    diagnostics: &mut Diagnostics,
) {
    let path = sources.get(context.source).path();
    let whole = node.span;
    let Some(table) = node.as_table_mut() else {
        return;
    };
    let document = ForeignDocument {
        table,
        format: context.format,
        path: path.clone(),
    };
    let Some(format) = document.detect() else {
        if let Some(finding) = refuse_unknown(table, whole, &path, context.schema) {
            table
                .values()
                .for_each(|entry| sources.hide_values(&entry.node));
            table.clear();
            diagnostics.add(finding);
        }
        return;
    };
    let project = project_of(&path);
    sources.mark_foreign(context.source, project.clone());
    let importer = DocumentImport {
        context,
        format,
        project: project.filter(|project| !is_of_user(project, context.environment)),
        defaults: ConfigTable::new(),
        switched_off: Vec::new(),
        sources,
        findings: diagnostics,
    };
    importer.run(table);
}

/// Whether files in `directory` are the user's, and belong to no project.
fn is_of_user(directory: &Path, environment: &Environment) -> bool {
    environment.get("HOME").is_some_and(|home| {
        let home = Path::new(home);
        directory == home || directory.starts_with(home.join(".config"))
    })
}

/// Refuses a document that is neither ours nor one of those that we read: says what it looks like.
fn refuse_unknown(
    table: &ConfigTable,
    whole: Span,
    path: &Path,
    schema: &Json,
) -> Option<Diagnostic> {
    let ours = Section { name: "", schema }.keys();
    let is_named = |key: &str| ours.contains(&key) && key != "$schema";
    let is_known = |key: &str| {
        is_named(key)
            || key.starts_with(EXTENSION_PREFIX)
            || renamed_keys::is_planned_key("", key)
            || renamed_keys::equivalent_of("", key).is_some()
            || (key != "$schema" && suggest::closest(key, ours.iter().copied()).is_some())
    };
    // A file of ours that is just begun has no more than what editors want.
    let is_begun = table.keys().all(|key| key == "$schema");
    if is_begun || table.contains_key("servers") {
        return None;
    }
    let client = formats::FORMATS
        .iter()
        .find(|format| format.file_of(path).is_some());
    let shape = if let Some(format) = client {
        format!(
            "a file of {} without `{}`",
            format.name,
            format.section.join(".")
        )
    } else if table.keys().any(|key| is_named(key)) {
        return None;
    } else if let Some(shape) = known_shape(table) {
        shape.to_owned()
    } else if table.keys().any(|key| is_known(key)) || path.file_stem()? == "tollbridge" {
        return None;
    } else {
        let keys: Vec<&str> = table.keys().map(String::as_str).take(KEYS_SHOWN).collect();
        format!(
            "a document of another program, with {}",
            suggest::list_and(&keys)
        )
    };
    let first = table.values().next().map_or(whole, |entry| entry.key);
    Some(
        Diagnostic::error(format!("this config cannot be read: it looks like {shape}"))
            .at(Some(first), "no servers here")
            .help("write the servers under `mcpServers` (or our own `servers`)"),
    )
}

/// What a document looks like that is no config of servers.
fn known_shape(table: &ConfigTable) -> Option<&'static str> {
    let known = keys::OTHER_DOCUMENTS.iter();
    let known = known.clone().find(|(key, _)| table.contains_key(*key));
    let is_bare = table.values().all(|server| {
        let keys = ["command", "httpUrl", "serverUrl", "url"];
        keys.iter().any(|key| server.node.get(key).is_some())
    });
    known
        .map(|(_, shape)| *shape)
        .or_else(|| is_bare.then_some("servers without `mcpServers` around them"))
}

/// The import of one document.
struct DocumentImport<'i> {
    context: ImportContext<'i>,
    format: &'static ClientFormat,
    /// The project whose programs these are.
    project: Option<PathBuf>,
    /// Keys that every server has that does not say so itself.
    defaults: ConfigTable,
    /// Names of servers that are switched off elsewhere in the document.
    switched_off: Vec<String>,
    sources: &'i mut ConfigTexts,
    findings: &'i mut Diagnostics,
}

/// A server that one project alone has.
struct LocalServer {
    name: String,
    entry: TableEntry,
    project: PathBuf,
}

impl DocumentImport<'_> {
    fn run(mut self, table: &mut ConfigTable) {
        let theirs = self.take_section(table);
        self.read_inputs(table.shift_remove("inputs").as_ref());
        if let Some(defaults) = table.shift_remove("serverDefaults") {
            self.defaults = into_table(defaults.node);
        }
        if self.format.name == GEMINI {
            self.read_switches(table, theirs.as_ref());
        }
        let bridge = table.shift_remove("bridge");
        let ours = table.shift_remove("servers");
        let local = self.take_local_servers(table);
        let key = theirs.as_ref().map(|theirs| theirs.key);
        let key = key.or_else(|| local.first().map(|server| server.entry.key));
        let section = theirs.map(|theirs| self.import_servers(theirs.node));
        let key = key.unwrap_or_else(|| Span::new(self.context.source, 0..0));
        let mut servers = TableEntry {
            key,
            node: section.unwrap_or_else(|| Node::new(key, ConfigValue::Table(ConfigTable::new()))),
        };
        for server in local {
            self.add_local_server(server, &mut servers.node);
        }
        self.remove_foreign_keys(table);
        if let Some(bridge) = bridge {
            for (key, entry) in bridge.node.as_table().into_iter().flatten() {
                // What nobody knows may be secret.
                if !bridge::SECTION_KEYS.contains(&key.as_str()) {
                    self.sources.hide_values(&entry.node);
                }
            }
            bridge::import_bridge_section(bridge, &mut servers.node, table, self.findings);
        }
        if let Some(ours) = ours {
            self.add_servers(&mut servers, ours);
        }
        table.insert("servers".to_owned(), servers);
    }

    /// Adds the servers that the document has in our own section.
    fn add_servers(&mut self, servers: &mut TableEntry, ours: TableEntry) {
        match (servers.node.as_table_mut(), ours.node.value) {
            (Some(table), ConfigValue::Table(ours)) => {
                for (name, entry) in ours {
                    self.findings.insert_key(table, name, entry);
                }
            }
            (_, value) => {
                let node = Node::new(ours.node.span, value);
                self.ignore("servers", &TableEntry { node, ..ours }, None);
            }
        }
    }

    /// Takes the servers out of `table`, with the key that leads to them.
    fn take_section(&mut self, table: &mut ConfigTable) -> Option<TableEntry> {
        let [outer, inner] = self.format.section else {
            return table.shift_remove(*self.format.section.first()?);
        };
        let mut keys = into_table(table.shift_remove(*outer)?.node);
        let servers = keys.shift_remove(*inner);
        self.read_inputs(keys.shift_remove("inputs").as_ref());
        for (key, entry) in keys {
            self.ignore(&format!("{outer}.{key}"), &entry, None);
        }
        servers
    }

    fn read_inputs(&mut self, inputs: Option<&TableEntry>) {
        let items = inputs.and_then(|inputs| inputs.node.as_list());
        for input in items.into_iter().flatten() {
            if let Some((id, default)) = parse_input(input) {
                self.sources.add_input(self.context.source, id, default);
            }
        }
    }

    /// Gemini's lists of servers that may run and that may not.
    fn read_switches(&mut self, table: &mut ConfigTable, servers: Option<&TableEntry>) {
        let Some(switches) = table.shift_remove("mcp") else {
            return;
        };
        let names = |key: &str| {
            let list = switches.node.get(key).and_then(|list| list.node.as_list());
            list.map(|names| names.iter().filter_map(Node::as_text).collect::<Vec<_>>())
        };
        let excluded = names("excluded").unwrap_or_default();
        self.switched_off
            .extend(excluded.into_iter().map(str::to_owned));
        if let Some(allowed) = names("allowed") {
            let names = servers
                .into_iter()
                .filter_map(|it| it.node.as_table())
                .flatten();
            let off = names.map(|(name, _)| name);
            let off = off.filter(|name| !allowed.contains(&name.as_str()));
            self.switched_off.extend(off.cloned());
        }
        for (key, entry) in into_table(switches.node.clone()) {
            let is_switch = ["allowed", "excluded"].contains(&key.as_str());
            if !is_switch {
                self.ignore(&format!("mcp.{key}"), &entry, None);
            } else if entry.node.as_list().is_none() {
                self.ignore_top(&format!("mcp.{key}"), &entry, true);
            }
        }
    }

    /// Takes the servers that Claude Code has for single projects.
    fn take_local_servers(&mut self, table: &mut ConfigTable) -> Vec<LocalServer> {
        let has_projects = self.format.name == CLAUDE_CODE && table.contains_key("projects");
        let projects = has_projects
            .then(|| table.shift_remove("projects"))
            .flatten();
        let mut found = Vec::new();
        for (project, entry) in projects.into_iter().flat_map(|it| into_table(it.node)) {
            let mut keys = into_table(entry.node);
            let servers = keys.shift_remove("mcpServers");
            let off = keys
                .get("disabledMcpServers")
                .and_then(|off| off.node.as_list());
            let off: Vec<&str> = off
                .into_iter()
                .flatten()
                .filter_map(Node::as_text)
                .collect();
            for (name, mut entry) in servers.into_iter().flat_map(|it| into_table(it.node)) {
                if off.contains(&name.as_str())
                    && let Some(keys) = entry.node.as_table_mut()
                {
                    let disabled = moved_entry(entry.key, entry.key, ConfigValue::Bool(true));
                    keys.insert("disabled".to_owned(), disabled);
                }
                found.push(LocalServer {
                    name,
                    entry,
                    project: PathBuf::from(&project),
                });
            }
            // Those of the user are started for all projects.
            let all_are_local = off.iter().all(|name| {
                let mut of_project = found.iter().filter(|it| it.project == Path::new(&project));
                of_project.any(|it| it.name == *name)
            });
            if !all_are_local && let Some(entry) = keys.get("disabledMcpServers") {
                self.ignore_top("projects.*.disabledMcpServers", entry, true);
            }
            for (key, entry) in keys {
                let is_protection = ["allowedTools", "disabledMcpjsonServers"];
                if is_protection.contains(&key.as_str()) {
                    self.ignore_top(&format!("projects.*.{key}"), &entry, true);
                }
            }
        }
        found
    }

    /// Leaves out what is another program's, also under names of ours.
    fn remove_foreign_keys(&mut self, table: &mut ConfigTable) {
        let names = Section {
            name: "",
            schema: self.context.schema,
        }
        .keys();
        let is_our_name = |key: &str| {
            key.starts_with(EXTENSION_PREFIX)
                || names.contains(&key)
                || renamed_keys::is_planned_key("", key)
        };
        let is_mixed = !table.keys().all(|key| is_our_name(key));
        for (key, entry) in std::mem::take(table) {
            if matches!(entry.node.value, ConfigValue::Null) {
                continue;
            }
            if is_our_name(&key) && self.is_ours(&key, &entry.node, is_mixed) {
                table.insert(key, entry);
                continue;
            }
            let lists = [self.format.protections, PROTECTIONS.as_slice()];
            let protects = lists.iter().any(|list| list.contains(&key.as_str()));
            self.ignore_top(&key, &entry, protects);
        }
    }

    /// Whether what stands under our name `key` is meant for us. In the settings of a program that is known it
    /// is not; `is_mixed` says whether the document has such, keys that are not ours.
    fn is_ours(&mut self, key: &str, node: &Node, is_mixed: bool) -> bool {
        if self.format.own_names.contains(&key) {
            return false;
        }
        let is_schema = key == "$schema" && node.as_text().is_some();
        if is_schema || STRICT_SECTIONS.contains(&key) || key.starts_with(EXTENSION_PREFIX) {
            return true;
        }
        if is_mixed && self.format.is_specific() {
            return false;
        }
        let root = self.context.schema;
        let Some(schema) = (Section {
            name: "",
            schema: root,
        })
        .key(key) else {
            return !is_mixed;
        };
        validate::conforms(node, (root, schema), self.sources)
            || !(is_mixed || validate::shares_no_key(node, root, schema))
    }

    /// Notes that a key at the top is not read.
    fn ignore_top(&mut self, path: &str, entry: &TableEntry, protects: bool) {
        let is_empty = match &entry.node.value {
            ConfigValue::Bool(on) => !on,
            ConfigValue::List(_) | ConfigValue::Table(_) => entry.node.children().next().is_none(),
            ConfigValue::Null => true,
            ConfigValue::Float(_) | ConfigValue::Integer(_) => false,
            ConfigValue::Text(text) => text.is_empty(),
        };
        self.add_ignored((path, None), entry, (protects && !is_empty, None));
    }

    /// Notes that a key is not read, and what to do instead.
    fn ignore(&mut self, path: &str, entry: &TableEntry, note: Option<&str>) {
        self.add_ignored((path, None), entry, (false, note));
    }

    /// Notes that the key at a path is not read: `pattern` is its path in any server, `protects` says whether it
    /// protects something, and `note` what to do instead.
    fn add_ignored(
        &mut self,
        (path, pattern): (&str, Option<String>),
        entry: &TableEntry,
        (protects, note): (bool, Option<&str>),
    ) {
        self.sources.hide_values(&entry.node);
        self.findings.ignore_key(IgnoredKey {
            span: entry.key,
            path: path.to_owned(),
            pattern,
            is_protection: protects,
            note: note.map(str::to_owned),
        });
    }
}

/// Id and default of one of the `inputs` of VS Code.
fn parse_input(node: &Node) -> Option<(String, Option<String>)> {
    let text = |key: &str| node.get(key).and_then(|entry| entry.node.as_text());
    Some((text("id")?.to_owned(), text("default").map(str::to_owned)))
}

/// The entries of `node`; none when it is no table.
fn into_table(node: Node) -> ConfigTable {
    match node.value {
        ConfigValue::Table(table) => table,
        ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Text(_) => ConfigTable::new(),
    }
}

/// An entry that `key` of theirs gives us.
fn moved_entry(key: Span, span: Span, value: ConfigValue) -> TableEntry {
    TableEntry {
        key,
        node: Node::new(span, value),
    }
}

/// A key of the older gateway that is not read, and what to do instead.
fn ignored_key(path: &str, span: Span, note: Option<&str>) -> IgnoredKey {
    IgnoredKey {
        span,
        path: path.to_owned(),
        pattern: None,
        is_protection: false,
        note: note.map(str::to_owned),
    }
}
