//! The environment: values of `${VAR}`, and `TOLLBRIDGE_...` variables that override keys.
//!
//! Nothing else in the crate reads environment variables; what a config may see of them is an
//! [`Environment`], so that tests need no real one.

use std::collections::BTreeMap;

use figment::value::Value as FigmentValue;
use indexmap::IndexMap;

use super::json;
use crate::config::{
    diagnostics::{
        report::{ConfigTexts, Diagnostic, Diagnostics},
        suggest,
    },
    node::{ConfigValue, Node, Span, TableEntry, ValueOrigin},
};

/// What the variables that override keys begin with.
const PREFIX: &str = "TOLLBRIDGE_";

/// Variables with the prefix that are none of the config's: the command line reads them.
const NON_CONFIG_VARIABLES: [&str; 1] = ["TOLLBRIDGE_CONFIG"];

/// How messages name the source of an override.
const SOURCE_NAME: &str = "environment";

/// Deepest nesting of a list or table in a variable's value.
const DEPTH_MAX: usize = 16;

/// Environment variables by name.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process that are Unicode.
    pub fn from_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The same variables, and `name` set to `value`: how options of the command line override
    /// keys and pass the same checks.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
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
/// `used` are the variables that the files name in `${...}`: they are values, not overrides.
pub(in crate::config) fn override_keys(
    config: &mut Node,
    environment: &Environment,
    used: &[String],
    sources: &mut ConfigTexts,
    diagnostics: &mut Diagnostics,
) {
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
        match key_path(rest, config) {
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
                config.merge_over(over);
            }
            Err(problem) => {
                sources.hide(source, |hidden, text| hidden.add(spans.value.range(), text));
                diagnostics.add(problem.into_diagnostic(name, spans.name));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct OverrideSpans {
    name: Span,
    value: Span,
}

/// Why a variable stands for no key.
enum PathError {
    Ambiguous {
        candidates: Vec<String>,
    },
    Empty,
    UnknownName {
        noun: &'static str,
        known: Vec<String>,
    },
}

impl PathError {
    fn into_diagnostic(self, name: &str, span: Span) -> Diagnostic {
        let diagnostic = Diagnostic::error(format!(
            "the variable {name} does not match any config \
            key"
        ));
        match self {
            Self::Ambiguous { candidates } => diagnostic
                .at(
                    Some(span),
                    format!(
                        "ambiguous: may mean any of {}",
                        suggest::list_and(&candidates)
                    ),
                )
                .help("rename one of them"),
            Self::Empty => diagnostic
                .at(Some(span), "the name has an empty segment")
                .help("use names such as TOLLBRIDGE_LISTEN or TOLLBRIDGE_NAMING__CHARSET"),
            Self::UnknownName { noun, known } => diagnostic
                .at(Some(span), format!("the config has no {noun} of this name"))
                .help(match known.len() {
                    0 => format!("no {noun} is configured in the files"),
                    _ => format!("the {noun}s are {}", suggest::list_and(&known)),
                }),
        }
    }
}

/// `NAMING__MAX_LENGTH` -> `naming`, `max_length`.
///
/// Names that operators chose (servers, and keys of tables such as `env`) are looked up in
/// `config`, ignoring case and taking every other character for `_`; a name that is not there is
/// taken as it is written, but for those of [`NAMED_SECTIONS`]. Where classes of a scan are keys, they are
/// those of the product or an operator's own.
fn key_path(name: &str, config: &Node) -> Result<Vec<String>, PathError> {
    let segments: Vec<&str> = name.split("__").collect();
    if segments.iter().any(|segment| segment.is_empty()) {
        return Err(PathError::Empty);
    }
    let mut path: Vec<String> = Vec::new();
    let mut at = Some(config);
    for segment in segments {
        let above: Vec<&str> = path.iter().map(String::as_str).collect();
        let named = NAMED_SECTIONS
            .iter()
            .find(|(section, _)| above == [*section]);
        let key = if let Some((_, noun)) = named {
            resolve_existing_key(segment, at, Some(noun))?
        } else if is_chosen_by_operator(&above) {
            resolve_existing_key(segment, at, None)?
        } else if let [.., "scan", part] = above.as_slice()
            && SCAN_CLASS_TABLES.contains(part)
        {
            let mut tables: Vec<&Node> = at.into_iter().collect();
            collect_class_tables(config, &mut tables);
            resolve_class(segment, &tables)?
        } else {
            segment.to_lowercase()
        };
        at = at.and_then(|node| node.get(&key)).map(|entry| &entry.node);
        path.push(key);
    }
    Ok(path)
}

/// Sections whose entries only files can add, and what one entry is.
const NAMED_SECTIONS: [(&str, &str); 3] = [
    ("agents", "agent"),
    ("profiles", "profile"),
    ("servers", "server"),
];

/// Keys of `scan` whose keys are classes.
const SCAN_CLASS_TABLES: [&str; 5] = [
    "arguments",
    "notifications",
    "prompts",
    "resources",
    "results",
];

/// Adds the tables below `node` in which an operator names classes of a scan.
fn collect_class_tables<'n>(node: &'n Node, tables: &mut Vec<&'n Node>) {
    for (key, TableEntry { node, .. }) in node.as_table().into_iter().flatten() {
        if key == "scan" {
            let own = ["custom", "dictionaries"].map(|key| node.get(key));
            tables.extend(own.into_iter().flatten().map(|entry| &entry.node));
        } else {
            collect_class_tables(node, tables);
        }
    }
}

/// The class that `segment` stands for: a key of `tables`, else one of the product's.
fn resolve_class(segment: &str, tables: &[&Node]) -> Result<String, PathError> {
    let keys = tables.iter().filter_map(|table| table.as_table());
    let same = |key: &&String| normalize_segment(key) == segment.to_uppercase();
    let keys = keys.flat_map(|table| table.keys()).filter(same);
    let mut candidates: Vec<String> = keys.cloned().collect();
    candidates.sort_unstable();
    candidates.dedup();
    match candidates.len() {
        0 => Ok(segment.to_lowercase()),
        1 => Ok(candidates.remove(0)),
        _ => Err(PathError::Ambiguous { candidates }),
    }
}

/// Whether the keys of the table at `path` are names that operators chose.
fn is_chosen_by_operator(path: &[&str]) -> bool {
    matches!(
        path,
        ["governance", "teams"]
            | ["servers", _, "env" | "headers"]
            | ["servers", _, _, "rename" | "describe" | "price" | "timeout"]
            | ["profiles", _, "rename" | "describe"]
            | [.., "scan", "custom" | "dictionaries"]
    )
}

/// The key of `table` that `segment` stands for; with a `noun` it must be there.
fn resolve_existing_key(
    segment: &str,
    table: Option<&Node>,
    noun: Option<&'static str>,
) -> Result<String, PathError> {
    let keys = || {
        table
            .and_then(Node::as_table)
            .into_iter()
            .flat_map(|table| table.keys())
    };
    let same = |key: &&String| normalize_segment(key) == segment.to_uppercase();
    let mut candidates: Vec<String> = keys().filter(same).cloned().collect();
    match (candidates.len(), noun) {
        (1, _) => Ok(candidates.remove(0)),
        (0, Some(noun)) => Err(PathError::UnknownName {
            noun,
            known: keys().cloned().collect(),
        }),
        (0, None) => Ok(segment.to_owned()),
        _ => Err(PathError::Ambiguous { candidates }),
    }
}

/// `aws-s3` -> `AWS_S3`.
fn normalize_segment(key: &str) -> String {
    key.chars()
        .map(|c| if c.is_alphanumeric() { c } else { '_' })
        .collect::<String>()
        .to_uppercase()
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
