//! A config as it is written: that of files, of variables that override keys and of the store in one tree, before
//! anything in it is expanded. It says where each value comes from.

use std::{collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value as Json;

use super::{
    Config,
    diagnostics::report::ConfigTexts,
    node::{ConfigValue, Node, Span, TableEntry, ValueOrigin, join_path},
    source::variables,
};

/// A config as files, variables and the store have it. It may hold secrets, and shows nothing of itself.
pub struct WrittenConfig {
    /// What files and store say.
    pub(super) tree: Node,
    /// What variables say over it.
    pub(super) overrides: Node,
    pub(super) texts: ConfigTexts,
}

impl fmt::Debug for WrittenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrittenConfig").finish_non_exhaustive()
    }
}

/// Where a value of the config comes from.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ValuePlace {
    /// Nobody has written it.
    Default,
    /// A variable overrides the key, or an option of the command line that stands for it.
    Environment {
        /// The variable, such as `TOLLBRIDGE_LISTEN`.
        variable: String,
    },
    /// It stands in a file.
    File {
        /// The file, as it was named.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What it refers to, such as `DOCS_TOKEN` or `secret:docs`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        variables: Vec<String>,
    },
    /// It stands in an entry of the store.
    Store {
        /// The secrets that it refers to, such as `secret:docs`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        variables: Vec<String>,
    },
}

impl WrittenConfig {
    /// The names of the variables that override keys.
    pub(super) fn overriding_variables(&self) -> impl Iterator<Item = String> {
        let mut names = Vec::new();
        collect_variables(&self.overrides, &self.texts, &mut names);
        names.into_iter()
    }
}

fn collect_variables(node: &Node, texts: &ConfigTexts, names: &mut Vec<String>) {
    if node.is_leaf() || node.origin == ValueOrigin::Environment {
        names.push(variable_name(texts, node.span));
    } else {
        let below = node.children();
        below.for_each(|node| collect_variables(node, texts, names));
    }
}

/// The name of the variable whose value is at `span`.
fn variable_name(texts: &ConfigTexts, span: Span) -> String {
    let text = &texts.get(span.source).text;
    text.split('=').next().unwrap_or_default().to_owned()
}

impl Config {
    /// Where each value that [`Config::to_display`] shows comes from, by its key, such as `servers.docs.url`. A list
    /// is one value.
    pub fn value_places(&self) -> BTreeMap<String, ValuePlace> {
        let Some(written) = &self.entries.written else {
            return BTreeMap::new();
        };
        let texts = &written.texts;
        let mut places = PlaceFinder {
            texts,
            line_ends: texts.all().map(line_ends).collect(),
            places: BTreeMap::new(),
        };
        let shown = self.to_display().to_json();
        let layers = [&written.overrides, &written.tree].map(|tree| (tree.span, tree));
        places.add(&shown, &layers, "");
        places.places
    }
}

struct PlaceFinder<'w> {
    texts: &'w ConfigTexts,
    /// Of each text, where its lines end.
    line_ends: Vec<Vec<usize>>,
    places: BTreeMap<String, ValuePlace>,
}

impl PlaceFinder<'_> {
    /// Adds the places of all values below `shown`, which is at `path` and written in `layers`, the first of which
    /// counts.
    fn add(&mut self, shown: &Json, layers: &[(Span, &Node)], path: &str) {
        let entries = shown.as_object().filter(|entries| !entries.is_empty());
        let Some(entries) = entries else {
            let mut places = layers
                .iter()
                .filter_map(|(key, node)| self.place(*key, node));
            let place = places.next().unwrap_or(ValuePlace::Default);
            self.places.insert(path.to_owned(), place);
            return;
        };
        for (key, value) in entries {
            let below = layers
                .iter()
                .filter_map(|(at, node)| match node.as_table() {
                    Some(_) => entry_of(node, key).map(|entry| (entry.key, &entry.node)),
                    // One value that says all of a table, such as `tools = ["a"]`.
                    None => Some((*at, *node)),
                });
            let below: Vec<_> = below.collect();
            self.add(value, &below, &join_path(path, key));
        }
    }

    fn place(&self, key: Span, node: &Node) -> Option<ValuePlace> {
        if matches!(node.value, ConfigValue::Null) {
            return None;
        }
        let text = self.texts.get(key.source);
        if node.origin == ValueOrigin::Environment {
            let variable = variable_name(self.texts, key);
            return Some(ValuePlace::Environment { variable });
        }
        let variables = variables::references(node);
        if text.is_stored {
            return Some(ValuePlace::Store { variables });
        }
        let ends = &self.line_ends[key.source];
        Some(ValuePlace::File {
            file: text.name.clone(),
            line: ends.partition_point(|end| *end < key.start) + 1,
            variables,
        })
    }
}

/// What `table` says of `key`, which is also written otherwise.
fn entry_of<'n>(table: &'n Node, key: &str) -> Option<&'n TableEntry> {
    let entry = table.get(key);
    entry.or_else(|| table.get("admin").filter(|_| key == "role"))
}

fn line_ends(text: &str) -> Vec<usize> {
    text.match_indices('\n').map(|(at, _)| at).collect()
}
