//! The environment: values of `${VAR}`, and `TOLLBRIDGE_...` variables that override keys.
//!
//! Nothing else in the crate reads environment variables; what a config may see of them is an
//! [`Environment`], so that tests need no real one.

use std::{collections::BTreeMap, sync::Arc};

use figment::value::Value as FigmentValue;
use indexmap::IndexMap;
use serde_json::Value as Json;

use super::{
    json, override_path,
    secret_values::{SharedReader, StoreReader},
    variables,
};
use crate::config::{
    SecretKeyPlace,
    diagnostics::report::{ConfigTexts, Diagnostics},
    node::{ConfigValue, Node, Span, TableEntry, ValueOrigin},
};

/// What the variables that override keys begin with.
const PREFIX: &str = "TOLLBRIDGE_";

/// Variables with the prefix that are none of the config's: the command line reads them.
const NON_CONFIG_VARIABLES: [&str; 2] = ["TOLLBRIDGE_CONFIG", SecretKeyPlace::VARIABLE];

/// How messages name the source of an override.
const SOURCE_NAME: &str = "environment";

/// Deepest nesting of a list or table in a variable's value.
const DEPTH_MAX: usize = 16;

/// Environment variables by name, and who reads what the store has for configs.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    store: Option<SharedReader>,
    is_assumed: bool,
}

impl Environment {
    /// The variables of this process that are Unicode.
    pub fn from_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Those of them that name proxies, which count for every server.
    pub fn proxies_of_process() -> Self {
        let mut environment = Self::from_process();
        let is_of_proxies = |name: &str| name.to_ascii_lowercase().ends_with("_proxy");
        environment.variables.retain(|name, _| is_of_proxies(name));
        environment
    }

    /// The same variables, and `name` set to `value`: how options of the command line override
    /// keys and pass the same checks.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// The same variables, and `reader` for secrets and entries of the store.
    #[must_use]
    pub fn with_store(mut self, reader: impl StoreReader + 'static) -> Self {
        self.store = Some(Arc::new(reader));
        self
    }

    /// An environment of which nothing is known: what a config refers to is taken to have a value that fits.
    pub fn assumed() -> Self {
        Self {
            is_assumed: true,
            ..Self::default()
        }
    }

    /// Whether every variable is taken to have a value.
    pub(in crate::config) fn is_assumed(&self) -> bool {
        self.is_assumed
    }

    /// Who reads what the store has; nobody where a config is only looked at.
    pub(in crate::config) fn store_reader(&self) -> Option<&SharedReader> {
        self.store.as_ref()
    }

    /// The value of the variable `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The names of the variables, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self {
            variables: variables.collect(),
            store: None,
            is_assumed: false,
        }
    }
}

/// Shows names only: values may be secret.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// Lays the variables `TOLLBRIDGE_<SECTION>__<KEY>` over `config`, each as a source of its own.
///
/// Those that `config` names in `${...}` are values, not overrides. They are given back on their own.
pub(in crate::config) fn override_keys(
    config: &mut Node,
    schema: &Json,
    environment: &Environment,
    sources: &mut ConfigTexts,
    diagnostics: &mut Diagnostics,
) -> Node {
    let mut all = Node::empty();
    let used = variables::variable_names(config);
    for (name, text) in &environment.variables {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if NON_CONFIG_VARIABLES.contains(&name.as_str()) || used.contains(name) {
            continue;
        }
        let line = format!("{name}={text}");
        let source = sources.add(SOURCE_NAME.to_owned(), line, std::path::PathBuf::from("."));
        let spans = OverrideSpans {
            name: Span::new(source, 0..name.len()),
            value: Span::new(source, name.len() + 1..name.len() + 1 + text.len()),
        };
        match override_path::find_key(rest, config, schema) {
            Ok(path) => {
                let mut value = Node {
                    span: spans.value,
                    value: ConfigValue::Text(text.clone()),
                    origin: ValueOrigin::Environment,
                    shown: None,
                };
                // Over a table a table is laid as that of a file is. Whether other text is one, the key
                // that it is for decides.
                let below = path.iter().try_fold(&*config, |node, key| {
                    let entry = node.get(key)?;
                    Some(&entry.node)
                });
                if below.is_some_and(|below| below.as_table().is_some()) {
                    parse_compound(&mut value);
                }
                let over = nest_at(&path, value, spans.name);
                sources.hide(source, |hidden, text| hidden.add_secrets(&over, text));
                all.merge_over(over.clone());
                config.merge_over(over);
            }
            Err(problem) => {
                sources.hide(source, |hidden, text| hidden.add(spans.value.range(), text));
                diagnostics.add(problem.into_diagnostic(name, spans.name));
            }
        }
    }
    all
}

#[derive(Clone, Copy)]
struct OverrideSpans {
    name: Span,
    value: Span,
}

/// A table that holds `text` at `path` and nothing else.
fn nest_at(path: &[String], value: Node, name: Span) -> Node {
    path.iter().rev().fold(value, |node, key| {
        let entry = TableEntry { key: name, node };
        Node::new(
            name,
            ConfigValue::Table(IndexMap::from([(key.clone(), entry)])),
        )
    })
}

/// Makes `node` the list or table that is written in it, where a variable holds one.
pub(in crate::config) fn parse_compound(node: &mut Node) {
    let text = node
        .as_text()
        .filter(|_| node.origin == ValueOrigin::Environment);
    if let Some(compound) = text.and_then(|text| read_compound(text, node.span)) {
        *node = compound;
    }
}

/// The list or table written in the value of a variable: JSON, as templates of deployments write it, or
/// as in `[a, b]` or `{a = "b"}`; `None` when it is neither.
fn read_compound(text: &str, span: Span) -> Option<Node> {
    let node = from_json(text, span).or_else(|| parse_bare_list(text, span))?;
    matches!(node.value, ConfigValue::List(_) | ConfigValue::Table(_)).then_some(node)
}

fn from_json(text: &str, span: Span) -> Option<Node> {
    let mut diagnostics = Diagnostics::default();
    let node = json::read(span.source, text, &mut diagnostics)?;
    let is_right = diagnostics.into_notices(&ConfigTexts::default()).is_empty();
    is_right.then(|| with_span(node, span))
}

/// `node`, which was read from what stands at `span`, at its place.
fn with_span(node: Node, span: Span) -> Node {
    let place = |at: Span| Span::new(span.source, at.start + span.start..at.end + span.start);
    let value = match node.value {
        ConfigValue::List(items) => ConfigValue::List(
            items
                .into_iter()
                .map(|item| with_span(item, span))
                .collect(),
        ),
        ConfigValue::Table(entries) => {
            let entries = entries.into_iter().map(|(name, entry)| {
                let entry = TableEntry {
                    key: place(entry.key),
                    node: with_span(entry.node, span),
                };
                (name, entry)
            });
            ConfigValue::Table(entries.collect())
        }
        other @ (ConfigValue::Bool(_)
        | ConfigValue::Float(_)
        | ConfigValue::Integer(_)
        | ConfigValue::Null
        | ConfigValue::Text(_)) => other,
    };
    Node {
        span: place(node.span),
        value,
        origin: ValueOrigin::Environment,
        shown: None,
    }
}

fn parse_bare_list(text: &str, span: Span) -> Option<Node> {
    // The parser of figment recurses without a limit of its own, and 0.10.19 takes bytes for
    // characters when it meets an escape.
    let depth = text.chars().filter(|c| matches!(c, '[' | '{')).count();
    if depth > DEPTH_MAX || (text.contains('\\') && !text.is_ascii()) {
        return None;
    }
    let Ok(value) = text.parse::<FigmentValue>();
    Some(from_figment(value, span))
}

fn from_figment(value: FigmentValue, span: Span) -> Node {
    let value = match value {
        FigmentValue::String(_, text) => ConfigValue::Text(text),
        FigmentValue::Char(_, c) => ConfigValue::Text(c.to_string()),
        FigmentValue::Bool(_, value) => ConfigValue::Bool(value),
        FigmentValue::Num(_, number) => {
            let signed = number.to_i128().and_then(|n| i64::try_from(n).ok());
            let integer = signed.or_else(|| number.to_u128().and_then(|n| i64::try_from(n).ok()));
            let float = || ConfigValue::Float(number.to_f64().unwrap_or(f64::NAN));
            integer.map_or_else(float, ConfigValue::Integer)
        }
        FigmentValue::Empty(..) => ConfigValue::Null,
        FigmentValue::Dict(_, entries) => {
            let entry = |node| TableEntry {
                key: span,
                node: from_figment(node, span),
            };
            ConfigValue::Table(
                entries
                    .into_iter()
                    .map(|(key, node)| (key, entry(node)))
                    .collect(),
            )
        }
        FigmentValue::Array(_, items) => ConfigValue::List(
            items
                .into_iter()
                .map(|item| from_figment(item, span))
                .collect(),
        ),
    };
    Node {
        span,
        value,
        origin: ValueOrigin::Environment,
        shown: None,
    }
}
