//! One file that says what the files of a config and the store say together.
//!
//! It has no value of a secret: where one is written out, a reference stands instead. What cannot be carried over is
//! told in comments. The export of a gateway that runs with an export is the same.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::Write as _,
};

use serde_json::Value as Json;
use toml::{Table, Value};

use super::{
    AgentConfig, Config, Environment, LoadScope,
    diagnostics::redact::{self, HiddenRanges, MASK},
    diagnostics::report::{ConfigTexts, Diagnostics},
    display::shorten_budgets,
    file::EXTENSION_PREFIX,
    file_access::FileAccess,
    node::{ConfigTable, ConfigValue, Node, Span, ValueOrigin},
    source::{
        secret_values::SecretValues,
        variables::{self, allows_references},
    },
    written::WrittenConfig,
};
use crate::names::SecretName;

/// A key of the section `agents` that no agent can have.
const RULES_KEY: &str = "match";

/// What stands in the store beside entries of the config.
#[derive(Clone, Debug, Default)]
pub struct ExportedAgents {
    /// The agents that no file has.
    pub agents: Vec<AgentConfig>,
    /// How many keys the store has, by the name of their agent.
    pub keys: BTreeMap<String, usize>,
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The config was not read from files; whoever made it has it.
    #[error("the config was not read from files")]
    NotWritten,
    /// The entries of the store could not be read, so that they would be missing; the operator mends the store.
    #[error("the entries of the store could not be read: {0}")]
    Unread(String),
}

impl Config {
    /// One file, TOML, that says what the files and the entries of the store say, and has the agents of `store`.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&self, store: &ExportedAgents) -> Result<String, ExportError> {
        if let Some(why) = &self.entries.unread {
            return Err(ExportError::Unread(why.clone()));
        }
        let written = self.entries.written.as_ref();
        let WrittenConfig { tree, texts, .. } = &**written.ok_or(ExportError::NotWritten)?;
        let own_form = texts.has_foreign().then(|| to_own_form(tree, texts));
        let names = variables::references(tree).into_iter();
        let names = names.filter_map(|it| it.strip_prefix("secret:").map(str::to_owned));
        let mut exporter = Exporter {
            texts,
            paths: self.entries.path_spans.iter().copied().collect(),
            names: names.collect(),
        };
        let shown = self.to_display().to_json();
        let place = LeafPlace {
            path: &[],
            item: None,
        };
        let exported = exporter.value((tree, own_form.as_ref()), Some(&shown), place);
        let mut table = match exported {
            Some(Value::Table(table)) => table,
            _ => Table::new(),
        };
        add_agents(&mut table, &store.agents);
        let text = toml::to_string_pretty(&table).unwrap_or_default();
        Ok(format!("{}{text}", self.export_notes(&table, store)))
    }

    /// What an operator has to know of an export, in comments.
    fn export_notes(&self, table: &Table, store: &ExportedAgents) -> String {
        let mut notes =
            "# What the config files and the store of a gateway say, in one file.\n".to_owned();
        let mut add = |title: &str, lines: BTreeSet<String>| {
            if !lines.is_empty() {
                let lines = lines.iter().map(|line| format!("#   {line}\n"));
                let lines: String = lines.collect();
                write!(notes, "#\n# {title}:\n{lines}").unwrap_or_default();
            }
        };
        let mut references = BTreeSet::new();
        each_text(table, &mut Vec::new(), &mut |path, text| {
            let found = variables::references_in(text);
            references.extend(found.map(|it| with_owner(it, path)));
        });
        add(
            "It refers to these variables, secrets and files",
            references,
        );
        let keys = store.keys.iter();
        let keys = keys.map(|(agent, count)| format!("{agent}: {count}"));
        add(
            "Not in it: keys of agents that the store has as hashes",
            keys.collect(),
        );
        let overrides = self.entries.written.iter();
        let overrides = overrides.flat_map(|written| written.overriding_variables());
        add(
            "Not in it: variables that override keys",
            overrides.collect(),
        );
        let faulty = self.entries.faulty.iter();
        let faulty = faulty.map(|it| format!("{}: {}", it.key, it.fault.replace('\n', " ")));
        let unnamed = store.agents.iter().filter(|agent| agent.name == RULES_KEY);
        let unnamed =
            unnamed.map(|agent| format!("agent `{}`: a file has no such name", agent.name));
        add(
            "Not in it, since it does not count or cannot be written",
            faulty.chain(unnamed).collect(),
        );
        notes.push('\n');
        notes
    }
}

/// `tree` with the variables of other programs in our form.
fn to_own_form(tree: &Node, texts: &ConfigTexts) -> Node {
    let mut expanded = tree.clone();
    let environment = Environment::assumed();
    let scope = (LoadScope::DataDir, &environment);
    let mut values =
        SecretValues::new(LoadScope::DataDir, FileAccess::ASSUME_PRESENT, &environment);
    let mut findings = Diagnostics::default();
    variables::expand_variables(&mut expanded, scope, texts, (&mut values, &mut findings));
    expanded
}

/// Adds agents of the store, where the file has none of their name.
fn add_agents(table: &mut Table, agents: &[AgentConfig]) {
    for agent in agents.iter().filter(|agent| agent.name != RULES_KEY) {
        let section = table.entry("agents").or_insert_with(|| Table::new().into());
        // As in a whole config that is shown.
        let mut written = Table::try_from(agent).expect("an agent is TOML");
        shorten_budgets(&mut written);
        if let Some(section) = section.as_table_mut() {
            let entry = section.entry(agent.name.as_str());
            entry.or_insert_with(|| written.into());
        }
    }
}

/// `reference`, which stands at `path`; a secret has its owner.
fn with_owner(reference: String, path: &[String]) -> String {
    let name = reference.strip_prefix("secret:");
    let named = name
        .zip(variables::owner_at(path))
        .and_then(|(name, owner)| SecretName::parse_of(&owner, name).ok());
    named.map_or(reference, |name| format!("secret:{name}"))
}

fn each_text(table: &Table, path: &mut Vec<String>, visit: &mut impl FnMut(&[String], &str)) {
    fn visit_value(value: &Value, path: &mut Vec<String>, visit: &mut impl FnMut(&[String], &str)) {
        match value {
            Value::String(text) => visit(path, text),
            Value::Array(items) => items.iter().for_each(|item| visit_value(item, path, visit)),
            Value::Table(table) => each_text(table, path, visit),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {}
        }
    }
    for (key, value) in table {
        path.push(key.clone());
        visit_value(value, path, visit);
        path.pop();
    }
}

/// Where a value stands: the keys that lead to it, and its place in a list.
#[derive(Clone, Copy)]
struct LeafPlace<'p> {
    path: &'p [String],
    item: Option<usize>,
}

struct Exporter<'w> {
    texts: &'w ConfigTexts,
    /// The values that are paths.
    paths: HashSet<Span>,
    /// Names of secrets that are taken.
    names: HashSet<String>,
}

impl Exporter<'_> {
    /// What `node` says, which `shown` is what anybody may see of; beside it the same in our form, where it may be in
    /// another. Nothing where it says nothing.
    fn value(
        &mut self,
        (node, own_form): (&Node, Option<&Node>),
        shown: Option<&Json>,
        place: LeafPlace<'_>,
    ) -> Option<Value> {
        Some(match &node.value {
            ConfigValue::Null => return None,
            ConfigValue::Table(table) => self.table((table, own_form), shown, place.path).into(),
            ConfigValue::List(items) => {
                let each = items.iter().enumerate();
                let each = each.filter_map(|(item, node)| {
                    let own_form = own_form.and_then(Node::as_list);
                    let own_form = own_form.and_then(|items| items.get(item));
                    let shown = shown.and_then(|shown| shown.get(item));
                    let item = Some(item);
                    self.value((node, own_form), shown, LeafPlace { item, ..place })
                });
                each.collect::<Vec<Value>>().into()
            }
            ConfigValue::Bool(value) => (*value).into(),
            _ if self.is_secret(node, shown) => self.reference_for((node, own_form), place).into(),
            ConfigValue::Float(value) => (*value).into(),
            ConfigValue::Integer(value) => (*value).into(),
            ConfigValue::Text(text) => {
                let text = self.in_own_form(node, own_form, text);
                self.with_absolute_paths(node, &text).into()
            }
        })
    }

    fn table(
        &mut self,
        (table, own_form): (&ConfigTable, Option<&Node>),
        shown: Option<&Json>,
        path: &[String],
    ) -> Table {
        let is_wanted =
            |key: &str| !path.is_empty() || !key.starts_with(EXTENSION_PREFIX) && key != "$schema";
        let mut written = Table::new();
        for (key, entry) in table.iter().filter(|(key, _)| is_wanted(key)) {
            let path = [path, std::slice::from_ref(key)].concat();
            let own_form = own_form.and_then(|it| it.get(key));
            let nodes = (&entry.node, own_form.map(|entry| &entry.node));
            let shown = shown.and_then(|shown| shown.get(key));
            let place = LeafPlace {
                path: &path,
                item: None,
            };
            let value = self.value(nodes, shown, place);
            written.extend(value.map(|value| (key.clone(), value)));
        }
        written
    }
}

impl Exporter<'_> {
    /// Whether anybody may not see `node`.
    fn is_secret(&self, node: &Node, shown: Option<&Json>) -> bool {
        match shown {
            Some(Json::String(shown)) => shown.contains(MASK),
            Some(Json::Bool(_) | Json::Number(_)) => false,
            Some(Json::Null | Json::Array(_) | Json::Object(_)) | None => {
                let text = self.texts.get(node.span.source);
                text.hidden.hides(&node.span.range())
            }
        }
    }

    /// The text of `node` as our own configs write it.
    fn in_own_form(&self, node: &Node, own_form: Option<&Node>, text: &str) -> String {
        match own_form {
            Some(own_form) if self.texts.get(node.span.source).is_foreign => {
                let is_known = own_form.origin != ValueOrigin::Invalid;
                let shown = own_form.shown.clone().filter(|_| is_known);
                shown.unwrap_or_else(|| text.replace('$', "$$"))
            }
            _ => text.to_owned(),
        }
    }

    /// What is written in place of `node`, which is secret: the references in it, or one to where its value is to be
    /// put.
    fn reference_for(
        &mut self,
        (node, own_form): (&Node, Option<&Node>),
        place: LeafPlace<'_>,
    ) -> String {
        if let Some(text) = node.as_text() {
            let text = self.in_own_form(node, own_form, text);
            if !text.contains(MASK) && !has_literal_secret(&text) {
                return self.with_absolute_paths(node, &without_secret_defaults(&text));
            }
        }
        let item = place.item.map(|item| item.to_string());
        let keys = place.path.iter().cloned().chain(item);
        if !allows_references(place.path) {
            let name = keys.collect::<Vec<_>>().join("_").to_ascii_uppercase();
            let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            return format!("${{{name}}}");
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let name = keys.collect::<Vec<_>>().join(".");
        let name = name.replace(|c: char| !legal(c), "_");
        let name: String = name.chars().take(SecretName::LENGTH_MAX - 4).collect();
        let mut free = name.clone();
        let mut count = 1;
        while !self.names.insert(free.clone()) {
            count += 1;
            free = format!("{name}_{count}");
        }
        format!("${{secret:{free}}}")
    }

    /// `text` of `node` with relative paths from the root on, since the export may stand elsewhere.
    fn with_absolute_paths(&self, node: &Node, text: &str) -> String {
        let base = self.texts.get(node.span.source).base_dir();
        let absolute = |path: &str| {
            let path = base.join(path);
            let path = std::path::absolute(&path).unwrap_or(path);
            path.to_string_lossy().into_owned()
        };
        let is_relative = |path: &str| !path.starts_with(['/', '$', '~']);
        if self.paths.contains(&node.span) {
            let socket = text.strip_prefix("unix:");
            let path = socket.unwrap_or(text);
            if is_relative(path) {
                let scheme = socket.map_or("", |_| "unix:");
                return format!("{scheme}{}", absolute(path));
            }
        }
        let mut written = String::new();
        let mut rest = text;
        while let Some((before, path)) = rest.split_once("${file:") {
            written.extend([before, "${file:"]);
            rest = path;
            if is_relative(path) {
                let end = path.find('}').unwrap_or(path.len());
                written.push_str(&absolute(&path[..end]));
                rest = &path[end..];
            }
        }
        written + rest
    }
}

/// Whether `text`, which stands where secrets do, has more of one than references.
fn has_literal_secret(text: &str) -> bool {
    let references = variables::reference_ranges(text);
    if references.is_empty() {
        return true;
    }
    let mut hidden = HiddenRanges::default();
    let node = Node::new(
        Span::new(0, 0..text.len()),
        ConfigValue::Text(text.to_owned()),
    );
    hidden.add_secrets(&node, text);
    let starts = [0].into_iter().chain(references.iter().map(|it| it.end));
    let ends = references.iter().map(|it| it.start).chain([text.len()]);
    starts.zip(ends).any(|(start, end)| {
        let literal = &text[start..end];
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        // A name such as `key=` or `user:` before what it names.
        let named = literal
            .strip_suffix(['=', ':'])
            .filter(|_| end < text.len());
        let named = named.map_or(literal, |name| name.trim_end_matches(is_word));
        let named = named.trim_end_matches(['?', '&', '#']);
        let mut words = literal.split(|c: char| !is_word(c));
        hidden.hides(&(start..start + named.len())) || words.any(redact::is_generated)
    })
}

/// `text` without defaults of variables that may be secret.
fn without_secret_defaults(text: &str) -> String {
    let mut written = text.to_owned();
    for range in variables::reference_ranges(text).into_iter().rev() {
        let inner = &text[range.start + 2..range.end - 1];
        let (name, default) = inner.split_once(':').unwrap_or((inner, ""));
        let is_form = matches!(name, "secret" | "file" | "exec");
        if !is_form
            && (redact::sounds_secret(name) && !default.is_empty() || redact::is_generated(default))
        {
            written.replace_range(range, &format!("${{{name}}}"));
        }
    }
    written
}
