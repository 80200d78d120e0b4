//! The keys of one server of another program.

use std::path::{Path, PathBuf};

use super::{
    DocumentImport, bridge,
    formats::{BRIDGE, CommandLine, Notation, OPENCODE, TimeUnit, VS_CODE},
    into_table,
    keys::{KeyMeaning, UNKNOWN_PROTECTIONS, meaning_of},
    moved_entry,
    notation::rewrite,
    values::{ForeignTime, read_switch, read_time, split_words, text_node, variable_node},
};
use crate::config::{
    diagnostics::{redact, report::Diagnostic, suggest},
    node::{ConfigTable, ConfigValue, Node, Span, TableEntry},
    schema::{Section, resolve},
    validate,
};

/// Our keys that keep something from happening.
const PROTECTING_KEYS: [&str; 8] = [
    "budget",
    "expose",
    "isolation",
    "limits",
    "rate",
    "roots",
    "scan",
    "validate",
];

/// Programs that expand variables in their arguments themselves.
const SHELLS: [&str; 8] = [
    "bash",
    "cmd",
    "dash",
    "fish",
    "ksh",
    "powershell",
    "sh",
    "zsh",
];

pub(super) struct ServerImport<'s, 'i> {
    /// What the document calls it.
    pub(super) name: String,
    /// Where it stands in ours.
    pub(super) path: String,
    /// The project that it is for, when the document has several.
    project: Option<PathBuf>,
    /// Arguments that stand behind the program.
    words: Vec<Node>,
    /// Whether it has arguments of its own.
    has_arguments: bool,
    ours: ConfigTable,
    pub(super) document: &'s mut DocumentImport<'i>,
}

impl<'s, 'i> ServerImport<'s, 'i> {
    /// The import of the server `name`, which is called `ours` here, and may be for one `project` alone.
    pub(super) fn new(
        (name, ours): (&str, &str),
        project: Option<&Path>,
        document: &'s mut DocumentImport<'i>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            path: format!("servers.{ours}"),
            project: project.map(Path::to_owned),
            words: Vec::new(),
            has_arguments: false,
            ours: ConfigTable::new(),
            document,
        }
    }

    pub(super) fn run(mut self, theirs: ConfigTable) -> ConfigTable {
        let args = theirs.get("args");
        self.has_arguments = args.is_some_and(|args| args.node.children().next().is_some());
        for (key, entry) in theirs {
            if matches!(entry.node.value, ConfigValue::Null) {
                continue;
            }
            match meaning_of(&key) {
                Some(meaning) => self.import_key(&key, meaning, entry),
                None if self.document.format.name == BRIDGE && !self.is_unknown(&key) => {
                    let findings = &mut *self.document.findings;
                    bridge::import_server_key(&key, entry, &mut self.ours, findings);
                }
                None => self.import_other(&key, entry),
            }
        }
        self.finish();
        self.ours
    }

    fn import_key(&mut self, key: &str, meaning: KeyMeaning, entry: TableEntry) {
        match meaning {
            KeyMeaning::Allow => self.import_allowed(key, entry),
            KeyMeaning::Auth => self.import_auth(key, entry),
            KeyMeaning::Bearer => self.set_bearer(key, entry),
            KeyMeaning::BearerVariable => match variable_node(&entry.node) {
                // The token itself, most likely.
                Some(_) if entry.node.as_text().is_some_and(redact::is_generated) => {
                    self.ignore(key, &entry, Some("it names a variable, not the token"));
                }
                Some(node) => self.set_bearer(key, TableEntry { node, ..entry }),
                None => self.ignore(key, &entry, None),
            },
            KeyMeaning::Command => self.import_command(key, entry),
            KeyMeaning::Deny => self.import_denied(key, entry),
            KeyMeaning::Disabled => self.import_switch(key, entry, false),
            KeyMeaning::Enabled => self.import_switch(key, entry, true),
            KeyMeaning::Env => self.import_env(key, entry),
            KeyMeaning::Headers => self.merge("headers", key, entry),
            KeyMeaning::HeaderVariables => self.import_header_variables(key, &entry),
            KeyMeaning::Options => self.import_options(key, entry),
            KeyMeaning::Protects if asks_nothing(&entry.node) => self.ignore(key, &entry, None),
            KeyMeaning::Protects => self.lose_protection(key, &entry),
            KeyMeaning::Renamed(ours) => self.set(ours, key, entry),
            KeyMeaning::RequestOptions => self.import_request_options(key, entry),
            KeyMeaning::StreamableUrl => {
                let http = text_node(&entry.node, "http");
                let transport = TableEntry {
                    key: entry.key,
                    node: http,
                };
                self.ours.insert("transport".to_owned(), transport);
                self.set("url", key, entry);
            }
            KeyMeaning::Time(ours, unit) => self.import_time(ours, key, entry, unit),
            KeyMeaning::Tools => self.import_tools(key, entry),
            KeyMeaning::Transport => self.import_transport(key, entry),
            KeyMeaning::Unsupported(_) if read_switch(&entry.node) == Some(false) => {}
            KeyMeaning::Unsupported(note) => self.ignore(key, &entry, Some(note)),
            KeyMeaning::VariableNames => self.import_variable_names(key, &entry),
        }
    }

    /// Whether `key` is neither theirs nor ours.
    fn is_unknown(&self, key: &str) -> bool {
        self.schema_of(key).is_none() && !bridge::SERVER_KEYS.contains(&key)
    }

    fn schema_of(&self, key: &str) -> Option<&serde_json::Value> {
        let root = self.document.context.schema;
        let schema = root.get("$defs")?.get("ServerSection")?;
        let (name, schema) = resolve(root, schema);
        Section { name, schema }.key(key)
    }

    /// A key that no other program is known to have: ours, or nobody's.
    fn import_other(&mut self, key: &str, entry: TableEntry) {
        let root = self.document.context.schema;
        let Some(schema) = self.schema_of(key).cloned() else {
            if UNKNOWN_PROTECTIONS.contains(&key) && read_switch(&entry.node) != Some(false) {
                self.lose_protection(key, &entry);
                return;
            }
            let servers = root
                .get("$defs")
                .and_then(|types| types.get("ServerSection"));
            let names = servers.map(|schema| Section { name: "", schema }.keys());
            let close = suggest::closest(key, names.unwrap_or_default());
            let note = close.map(|close| format!("did you mean `{close}` for `{key}`?"));
            self.ignore(key, &entry, note.as_deref());
            return;
        };
        let is_specific = self.document.format.is_specific();
        if is_specific && !validate::conforms(&entry.node, (root, &schema), self.document.sources) {
            if PROTECTING_KEYS.contains(&key) {
                self.lose_protection(key, &entry);
            } else {
                self.ignore(key, &entry, None);
            }
            return;
        }
        self.set(key, key, entry);
    }

    /// Sets our key `ours`, unless another key of theirs did: then only one that says the same may follow.
    pub(super) fn set(&mut self, ours: &str, key: &str, entry: TableEntry) {
        match self.ours.get(ours) {
            None => {
                self.ours.insert(ours.to_owned(), entry);
            }
            Some(other)
                if other
                    .node
                    .as_text()
                    .is_some_and(|text| entry.node.as_text() == Some(text)) => {}
            Some(other) if other.node.as_text() == Some("") => {
                self.ours.insert(ours.to_owned(), entry);
            }
            Some(_) => self.ignore(key, &entry, None),
        }
    }

    /// Adds the entries of a table to our key `ours`.
    pub(super) fn merge(&mut self, ours: &str, key: &str, entry: TableEntry) {
        let ConfigValue::Table(entries) = entry.node.value else {
            self.set(ours, key, entry);
            return;
        };
        let (at, span) = (entry.key, entry.node.span);
        for (name, entry) in entries {
            if matches!(entry.node.value, ConfigValue::Null) {
                self.ignore(&format!("{key}.{name}"), &entry, Some(NULL_NOTE));
                continue;
            }
            if let Some(table) = self.section(ours, at, span) {
                table.entry(name).or_insert(entry);
            }
        }
    }

    /// Our table `name`, made where it is not there.
    pub(super) fn section(
        &mut self,
        name: &str,
        key: Span,
        span: Span,
    ) -> Option<&mut ConfigTable> {
        let empty = || moved_entry(key, span, ConfigValue::Table(ConfigTable::new()));
        let section = self.ours.entry(name.to_owned()).or_insert_with(empty);
        section.node.as_table_mut()
    }

    fn import_command(&mut self, key: &str, entry: TableEntry) {
        let at = entry.key;
        let splits = match self.document.format.command_line {
            CommandLine::Always => true,
            CommandLine::Never => false,
            CommandLine::WithoutArguments => !self.has_arguments,
        };
        let words = match &entry.node.value {
            ConfigValue::List(words) => Some(words.clone()),
            ConfigValue::Text(text) if splits && text.contains(char::is_whitespace) => {
                split_words(&entry.node)
            }
            // The older notation of Zed.
            ConfigValue::Table(_) => {
                for (inner, entry) in into_table(entry.node) {
                    match inner.as_str() {
                        "path" => self.set("command", key, entry),
                        "args" => self.set("args", key, entry),
                        "env" => self.merge("env", key, entry),
                        _ => self.ignore(&format!("{key}.{inner}"), &entry, None),
                    }
                }
                return;
            }
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::Null
            | ConfigValue::Text(_) => None,
        };
        let mut words = words.into_iter().flatten();
        let program = words.next().map(|node| TableEntry { key: at, node });
        self.words.extend(words);
        self.set("command", key, program.unwrap_or(entry));
    }

    /// The switches of an MCP proxy.
    fn import_options(&mut self, key: &str, entry: TableEntry) {
        for (inner, entry) in into_table(entry.node) {
            let path = format!("{key}.{inner}");
            match inner.as_str() {
                "authTokens" => self.lose_protection(&path, &entry),
                "disabled" => self.import_switch(&path, entry, false),
                "toolFilter" => {
                    let mode = entry.node.get("mode").and_then(|mode| mode.node.as_text());
                    let is_allow = mode == Some("allow");
                    match into_table(entry.node.clone()).shift_remove("list") {
                        Some(list) if is_allow => self.import_allowed(&path, list),
                        Some(list) => self.import_denied(&path, list),
                        None => self.lose_protection(&path, &entry),
                    }
                }
                _ => self.ignore(&path, &entry, None),
            }
        }
    }

    /// A switch: `is_on` says what its `true` means. A server that any of them switches off is off.
    fn import_switch(&mut self, key: &str, entry: TableEntry, is_on: bool) {
        let read = read_switch(&entry.node);
        let is_variable = is_on && entry.node.as_text().is_some_and(|text| text.contains("${"));
        if is_variable {
            self.set("enabled", key, entry);
            return;
        }
        if key == "quarantined" && read == Some(true) {
            self.lose_protection(key, &entry);
        }
        let enabled = read.is_some_and(|read| read == is_on);
        if !matches!(entry.node.value, ConfigValue::Bool(_)) {
            let label = format!("read as `enabled = {enabled}`");
            self.document.findings.add(
                Diagnostic::warning(format!("`{}.{key}` is no boolean", self.path))
                    .at(Some(entry.node.span), label)
                    .help("use `true` or `false`"),
            );
        }
        let was_off = self
            .ours
            .get("enabled")
            .and_then(|it| read_switch(&it.node))
            == Some(false);
        let node = Node::new(entry.node.span, ConfigValue::Bool(enabled && !was_off));
        self.ours
            .insert("enabled".to_owned(), TableEntry { node, ..entry });
    }

    fn import_transport(&mut self, key: &str, entry: TableEntry) {
        let word = entry.node.as_text().map(|word| self.transport_word(word));
        match word {
            // The URL says as much.
            Some(None) => {}
            Some(Some(word)) => {
                let node = text_node(&entry.node, word);
                let is_set = self.ours.contains_key("transport");
                if !is_set {
                    self.set("transport", key, TableEntry { node, ..entry });
                }
            }
            None => self.set("transport", key, entry),
        }
    }

    /// The word of ours for their `type`; `None` where the URL says as much.
    fn transport_word(&self, word: &str) -> Option<String> {
        let ours = match word {
            "local" => "stdio",
            "remote" => return None,
            // VS Code falls back to the older transport by itself, and tries the newer one first
            // whatever the word.
            "http" | "sse" if self.document.format.name == VS_CODE => "auto",
            "streamable" | "streamable-http" | "streamableHttp" | "streamable_http"
            | "streamablehttp" | "http-stream" => "http",
            "ws" => "websocket",
            other => other,
        };
        Some(ours.to_owned())
    }

    fn import_time(&mut self, ours: &str, key: &str, entry: TableEntry, unit: Option<TimeUnit>) {
        let TableEntry { key: at, node } = entry;
        let Some(time) = read_time(&node, unit.or(self.document.format.timeout_unit)) else {
            self.set(ours, key, TableEntry { key: at, node });
            return;
        };
        let message = format!("`{}.{key}`", self.path);
        let (text, finding) = match time {
            ForeignTime::Known(text) => (text, None),
            ForeignTime::Guessed(text) => {
                let help = format!("use \"{text}\" to be explicit");
                let finding = Diagnostic::warning("the timeout is read as milliseconds")
                    .at(Some(node.span), format!("read as \"{text}\""));
                (text, Some(finding.help(help)))
            }
            ForeignTime::Capped(text) => {
                let finding = Diagnostic::warning(format!("{message} is longer than we wait"))
                    .at(Some(node.span), format!("read as \"{text}\""));
                (text, Some(finding))
            }
            ForeignTime::Unlimited => {
                self.ignore(
                    key,
                    &TableEntry { key: at, node },
                    Some("a limit of 0 is none"),
                );
                return;
            }
        };
        if let Some(finding) = finding {
            self.document.findings.add(finding);
        }
        let node = text_node(&node, text);
        if self.document.format.name == OPENCODE {
            let startup = TableEntry {
                key: at,
                node: node.clone(),
            };
            self.set("startup_timeout", key, startup);
        }
        self.set(ours, key, TableEntry { key: at, node });
    }

    /// Brings what is read into the shape of one server.
    fn finish(&mut self) {
        for (empty, other) in [("command", "url"), ("url", "command")] {
            let is_empty = self.text(empty).is_some_and(str::is_empty);
            if is_empty && self.ours.contains_key(other) {
                self.ours.shift_remove(empty);
            }
        }
        if !self.words.is_empty() {
            self.prepend_words();
        }
        self.set_directory();
        let is_off = self
            .ours
            .get("enabled")
            .and_then(|it| read_switch(&it.node))
            == Some(false);
        self.rewrite_variables(is_off);
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.ours.get(key).and_then(|entry| entry.node.as_text())
    }

    fn prepend_words(&mut self) {
        let words = std::mem::take(&mut self.words);
        let at = words.first().map_or(Span::new(0, 0..0), |word| word.span);
        let empty = || moved_entry(at, at, ConfigValue::List(Vec::new()));
        let args = self.ours.entry("args".to_owned()).or_insert_with(empty);
        if let ConfigValue::List(args) = &mut args.node.value {
            args.splice(0..0, words);
        }
    }

    /// A program of a project is started there.
    fn set_directory(&mut self) {
        let Some(program) = self.ours.get("command") else {
            return;
        };
        let (key, span) = (program.key, program.node.span);
        let folder = match (&self.project, &self.document.project) {
            (Some(project), _) => project.to_string_lossy().into_owned(),
            (None, Some(_)) => "${workspaceFolder}".to_owned(),
            (None, None) => return,
        };
        if self.project.is_some() {
            for key in ["command", "cwd"] {
                let is_path = |text: &str| key == "cwd" || text.contains('/');
                if let Some(entry) = self.ours.get_mut(key)
                    && let ConfigValue::Text(text) = &mut entry.node.value
                    && is_path(text)
                    && !text.starts_with(['$', '~'])
                {
                    *text = Path::new(&folder)
                        .join(&*text)
                        .to_string_lossy()
                        .into_owned();
                }
            }
        }
        let folder = moved_entry(key, span, ConfigValue::Text(folder));
        self.ours.entry("cwd".to_owned()).or_insert(folder);
    }

    /// Writes the variables of their program as ours, and warns of what it takes literally, unless the
    /// server is off.
    fn rewrite_variables(&mut self, is_off: bool) {
        let command = Path::new(self.text("command").unwrap_or_default());
        let stem = command.file_stem().unwrap_or_default();
        let is_shell = SHELLS.iter().any(|shell| *shell == stem);
        let format = self.document.format;
        let program = if format.is_named() {
            format.name
        } else {
            "the program"
        };
        let mut literals = Vec::new();
        for key in [
            "command", "args", "cwd", "env_file", "env", "url", "headers", "auth",
        ] {
            let Some(entry) = self.ours.get_mut(key) else {
                continue;
            };
            let home = match key {
                "args" => Some(Notation::TildeArguments),
                "command" | "cwd" | "env_file" => Some(Notation::Tilde),
                _ => None,
            };
            let mut found = Vec::new();
            rewrite_texts(&mut entry.node, format.notations, home, &mut found);
            if !(is_shell && key == "args") {
                literals.extend(found.into_iter().map(|(span, form)| (key, span, form)));
            }
        }
        if is_off {
            return;
        }
        for (key, span, form) in literals {
            let help = match form {
                "~/" => "use `${HOME}/`",
                _ => "use `${VARIABLE}`",
            };
            self.document.findings.add(
                Diagnostic::warning(format!(
                    "`{}.{key}` has `{form}`, which {program} does not expand",
                    self.path
                ))
                .at(Some(span), "taken literally")
                .help(help),
            );
        }
    }

    pub(super) fn ignore(&mut self, key: &str, entry: &TableEntry, note: Option<&str>) {
        self.add_ignored(key, entry, (false, note));
    }

    pub(super) fn lose_protection(&mut self, key: &str, entry: &TableEntry) {
        self.add_ignored(key, entry, (true, None));
    }

    fn add_ignored(&mut self, key: &str, entry: &TableEntry, why: (bool, Option<&str>)) {
        let path = format!("{}.{key}", self.path);
        let pattern = Some(format!("servers.*.{key}"));
        self.document.add_ignored((&path, pattern), entry, why);
    }
}

/// Whether a key that protects says no more than that nothing is to be asked for: an empty list, or trust.
fn asks_nothing(node: &Node) -> bool {
    match &node.value {
        ConfigValue::Bool(trusts) => *trusts,
        ConfigValue::List(_) | ConfigValue::Table(_) => node.children().next().is_none(),
        ConfigValue::Null => true,
        ConfigValue::Float(_) | ConfigValue::Integer(_) | ConfigValue::Text(_) => false,
    }
}

/// What is said of a null where a value is wanted.
const NULL_NOTE: &str = "null sets nothing";

/// Rewrites the texts below `node`, and finds the forms that are taken literally; `home` is the notation that
/// expands `~/` there, where that would be a path.
fn rewrite_texts(
    node: &mut Node,
    notations: &[Notation],
    home: Option<Notation>,
    literals: &mut Vec<(Span, &'static str)>,
) {
    match &mut node.value {
        ConfigValue::List(items) => {
            for item in items {
                rewrite_texts(item, notations, home, literals);
            }
        }
        ConfigValue::Table(entries) => {
            for entry in entries.values_mut() {
                rewrite_texts(&mut entry.node, notations, home, literals);
            }
        }
        ConfigValue::Text(text) => {
            let rewritten = rewrite(text, notations);
            *text = rewritten.text;
            let literal = rewritten.literal;
            literals.extend(literal.map(|form| (node.span, form)));
            let (Some(home), Some(rest)) = (home, text.strip_prefix('~')) else {
                return;
            };
            if notations.contains(&home) && is_home_path(rest) {
                *text = format!("${{userHome}}{rest}");
            } else if is_home_path(rest) {
                literals.push((node.span, "~/"));
            }
        }
        ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::Null => {}
    }
}

/// Whether `rest` stands behind the `~` of the user's own directory.
fn is_home_path(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}
