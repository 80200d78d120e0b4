//! One server of another program's config.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{ForeignDialect, bridge, moved_entry, no_equivalent_warning};
use crate::{
    config::{
        diagnostics::report::{Diagnostic, Diagnostics},
        node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
        units::Time,
    },
    names::ServerName,
};

/// From here on a number is taken for milliseconds: no call takes that many seconds, and several
/// clients write milliseconds.
const MILLIS_MIN: f64 = 1000.0;

/// Keys that are ours under another name, with the same values.
const RENAMED_KEYS: [(&str, &str); 3] = [
    ("envFile", "env_file"),
    ("serverUrl", "url"),
    ("transportType", "type"),
];

/// Keys that nothing here answers to, and why that is so.
const UNSUPPORTED_KEYS: [(&str, &str); 11] = [
    ("alwaysAllow", "clients prompt their users themselves"),
    ("autoApprove", "clients prompt their users themselves"),
    ("description", "informational only"),
    ("dev", "for server developers only"),
    ("gallery", "informational only"),
    ("headersHelper", "use `headers`"),
    (
        "oauth",
        "not supported by this version: use `auth` or `headers`",
    ),
    ("sandbox", "not supported by this version"),
    ("sandboxEnabled", "not supported by this version"),
    ("trust", "clients prompt their users themselves"),
    ("version", "informational only"),
];

/// The servers of `section`, in our shape and with names that we can use.
pub(super) fn import_servers(
    section: Node,
    dialect: ForeignDialect,
    is_of_project: bool,
    diagnostics: &mut Diagnostics,
) -> Node {
    let ConfigValue::Table(entries) = section.value else {
        return section;
    };
    let mut servers = ConfigTable::new();
    for (name, mut entry) in entries {
        let name = to_valid_name(name, &entry, diagnostics);
        if let Some(table) = entry.node.as_table_mut() {
            let mut theirs = std::mem::take(table);
            if dialect == ForeignDialect::VsCode {
                apply_vs_code_launch(&mut theirs, is_of_project);
            }
            *table = ServerImport {
                dialect,
                findings: diagnostics,
                ours: ConfigTable::new(),
            }
            .run(theirs);
        }
        diagnostics.insert_key(&mut servers, name, entry);
    }
    Node {
        value: ConfigValue::Table(servers),
        ..section
    }
}

/// `name`, or what we call a server with a name that we cannot use: what is left of it, or, where that is
/// nothing (a name in Chinese, say), a hash of it, so that no other has the same.
fn to_valid_name(name: String, entry: &TableEntry, diagnostics: &mut Diagnostics) -> String {
    if ServerName::parse(&name).is_ok() {
        return name;
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let words: Vec<&str> = name
        .split(|c| !legal(c))
        .filter(|word| !word.is_empty())
        .collect();
    let mut usable: String = words
        .join("-")
        .chars()
        .take(ServerName::LENGTH_MAX)
        .collect();
    if name.is_empty() {
        return name;
    }
    if usable.is_empty() {
        let hash: [u8; 32] = Sha256::digest(&name).into();
        let [a, b, c, d, ..] = hash;
        usable = format!("server-{a:02x}{b:02x}{c:02x}{d:02x}");
    }
    diagnostics.add(
        Diagnostic::warning(format!("the server is renamed to `{usable}`")).at(
            Some(entry.key),
            "names consist of letters, digits, `_`, `-` and `.`",
        ),
    );
    usable
}

/// What VS Code does with programs: `~` is the user's directory, and those of a project start in it.
fn apply_vs_code_launch(server: &mut ConfigTable, is_of_project: bool) {
    for key in ["args", "command", "cwd", "envFile"] {
        if let Some(entry) = server.get_mut(key) {
            expand_home(&mut entry.node);
        }
    }
    if let Some(program) = server.get("command").filter(|_| is_of_project) {
        let folder = ConfigValue::Text("${workspaceFolder}".to_owned());
        let here = moved_entry(program.key, program.node.span, folder);
        server.entry("cwd".to_owned()).or_insert(here);
    }
}

fn expand_home(node: &mut Node) {
    match &mut node.value {
        ConfigValue::List(items) => items.iter_mut().for_each(expand_home),
        ConfigValue::Text(text) => {
            if let Some(rest) = text.strip_prefix('~')
                && (rest.is_empty() || rest.starts_with('/'))
            {
                *text = format!("${{userHome}}{rest}");
            }
        }
        ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::Null
        | ConfigValue::Table(_) => {}
    }
}

struct ServerImport<'f> {
    dialect: ForeignDialect,
    findings: &'f mut Diagnostics,
    ours: ConfigTable,
}

impl ServerImport<'_> {
    fn run(mut self, theirs: ConfigTable) -> ConfigTable {
        for (key, entry) in theirs {
            let known = UNSUPPORTED_KEYS.iter().find(|(name, _)| *name == key);
            if let Some((_, why)) = known {
                self.findings
                    .add(no_equivalent_warning(&key, entry.key, why));
                continue;
            }
            let renamed = RENAMED_KEYS.iter().find(|(name, _)| *name == key);
            self.import_key(renamed.map_or(key.as_str(), |(_, ours)| ours), entry);
        }
        self.ours
    }

    fn import_key(&mut self, key: &str, entry: TableEntry) {
        match (key, &entry.node.value) {
            ("auth", ConfigValue::Table(auth)) if !auth.contains_key("type") => {
                let why = "not supported by this version: use `headers`";
                self.findings
                    .add(no_equivalent_warning(key, entry.key, why));
            }
            ("disabled", ConfigValue::Bool(disabled)) => {
                let enabled = ConfigValue::Bool(!disabled);
                self.set(
                    "enabled",
                    entry.key,
                    Node {
                        value: enabled,
                        ..entry.node
                    },
                );
            }
            ("httpUrl", _) => {
                let http = Node::new(entry.key, ConfigValue::Text("http".to_owned()));
                self.set("transport", entry.key, http);
                self.set("url", entry.key, entry.node);
            }
            ("type", ConfigValue::Text(word)) => {
                let ours = transport_word(word, self.dialect);
                if let Some(word) = ours {
                    let value = ConfigValue::Text(word.to_owned());
                    self.set(
                        "transport",
                        entry.key,
                        Node {
                            value,
                            ..entry.node
                        },
                    );
                }
            }
            ("timeout", ConfigValue::Integer(_) | ConfigValue::Float(_)) => {
                self.import_timeout(entry.key, &entry.node);
            }
            ("disabledTools" | "excludeTools", _) => self.import_tools("deny", entry),
            ("enabledTools" | "includeTools", _) => self.import_tools("allow", entry),
            // Copilot lists the tools it may use, or all of them.
            ("tools", ConfigValue::List(names)) => {
                if !names.iter().any(|name| name.as_text() == Some("*")) {
                    self.import_tools("allow", entry);
                }
            }
            _ if self.dialect == ForeignDialect::Bridge => {
                bridge::import_server_key(key, entry, &mut self.ours, self.findings);
            }
            _ => self.set(key, entry.key, entry.node),
        }
    }

    fn set(&mut self, key: &str, span: Span, node: Node) {
        self.findings.insert_key(
            &mut self.ours,
            key.to_owned(),
            TableEntry { key: span, node },
        );
    }

    /// A bare number is seconds, as the older gateway has it, or milliseconds.
    fn import_timeout(&mut self, key: Span, node: &Node) {
        let seconds = number(node).unwrap_or_default();
        let is_millis = self.dialect != ForeignDialect::Bridge && seconds >= MILLIS_MIN;
        let time = if is_millis {
            millis_text(seconds)
        } else {
            millis_text(seconds * 1000.0)
        };
        if is_millis {
            self.findings.add(
                Diagnostic::warning("the timeout is read as milliseconds")
                    .at(Some(node.span), format!("read as \"{time}\""))
                    .help(format!("use \"{time}\" to be explicit")),
            );
        }
        self.set(
            "timeout",
            key,
            Node::new(node.span, ConfigValue::Text(time)),
        );
    }

    /// A list of tools, as the rule `rule` of ours.
    fn import_tools(&mut self, rule: &str, list: TableEntry) {
        let TableEntry { key, node } = list;
        let span = node.span;
        let tools = self
            .ours
            .entry("tools".to_owned())
            .or_insert_with(|| moved_entry(key, span, ConfigValue::Table(ConfigTable::new())));
        if let Some(rules) = tools.node.as_table_mut() {
            self.findings
                .insert_key(rules, rule.to_owned(), TableEntry { key, node });
        }
    }
}

/// The word of ours for their `type`; `None` where the URL says as much.
fn transport_word(word: &str, dialect: ForeignDialect) -> Option<&str> {
    match word {
        "local" => Some("stdio"),
        "remote" => None,
        // VS Code falls back to the older transport by itself, and tries the newer one first
        // whatever the word.
        "http" | "sse" if dialect == ForeignDialect::VsCode => Some("auto"),
        "streamable-http" | "streamableHttp" | "streamable_http" => Some("http"),
        "ws" => Some("websocket"),
        other => Some(other),
    }
}

pub(super) fn number(node: &Node) -> Option<f64> {
    match node.value {
        #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52")]
        ConfigValue::Integer(number) => Some(number as f64),
        ConfigValue::Float(number) => Some(number),
        ConfigValue::Bool(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Table(_)
        | ConfigValue::Text(_) => None,
    }
}

/// A time in our notation; what is none is left for the later checks to report.
pub(super) fn millis_text(millis: f64) -> String {
    match Duration::try_from_secs_f64(millis.round() / 1000.0) {
        Ok(time) => Time(time).to_string(),
        Err(_) => format!("{millis}ms"),
    }
}
