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
    tree: Node,
    texts: ConfigTexts,
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
        #[serde(skip_serializing_if = "Vec::is_empty")]
        variables: Vec<String>,
    },
    /// It stands in an entry of the store.
    Store {
        /// The secrets that it refers to, such as `secret:docs`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        variables: Vec<String>,
    },
}

impl WrittenConfig {
    /// What `tree` says, whose places are in `texts`.
    pub(super) fn new(tree: Node, texts: ConfigTexts) -> Self {
        Self { tree, texts }
    }
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
        places.add(&shown, Some((written.tree.span, &written.tree)), "");
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
    /// Adds the places of all values below `shown`, which is at `path` and `written` so.
    fn add(&mut self, shown: &Json, written: Option<(Span, &Node)>, path: &str) {
        let entries = shown.as_object().filter(|entries| !entries.is_empty());
        let Some(entries) = entries else {
            let place = written.and_then(|(key, node)| self.place(key, node));
            let place = place.unwrap_or(ValuePlace::Default);
            self.places.insert(path.to_owned(), place);
            return;
        };
        for (key, value) in entries {
            let below = match written {
                Some((_, node)) if node.as_table().is_some() => {
                    entry_of(node, key).map(|entry| (entry.key, &entry.node))
                }
                // One value that says all of a table, such as `budget = "off"`.
                written => written,
            };
            self.add(value, below, &join_path(path, key));
        }
    }

    fn place(&self, key: Span, node: &Node) -> Option<ValuePlace> {
        if matches!(node.value, ConfigValue::Null) {
            return None;
        }
        let text = self.texts.get(key.source);
        if node.origin == ValueOrigin::Environment {
            let name = text.text.split('=').next().unwrap_or_default();
            let variable = name.to_owned();
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
