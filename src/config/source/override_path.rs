//! The key that the name of an override stands for: `NAMING__MAX_LENGTH` is `naming.max_length`.
//!
//! Which tables have keys that operators chose, the schema says.

use serde_json::Value as Json;

use crate::config::{
    diagnostics::{report::Diagnostic, suggest},
    node::{Node, Span},
    schema::{MapKeys, entry_schema, map_keys},
};

/// Why a variable names no key.
pub(super) enum PathError {
    Ambiguous { candidates: Vec<String> },
    Empty,
    UnknownName { entry: String, known: Vec<String> },
}

impl PathError {
    pub(super) fn into_diagnostic(self, name: &str, span: Span) -> Diagnostic {
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
            Self::UnknownName { entry, known } => diagnostic
                .at(
                    Some(span),
                    format!("the config has no {entry} of this name"),
                )
                .help(match known.len() {
                    0 => format!("no {entry} is configured in the files"),
                    _ => format!("the {entry}s are {}", suggest::list_and(&known)),
                }),
        }
    }
}

/// The path of the key that `name` stands for in the config that `schema` describes.
///
/// Keys that operators chose (names of servers, keys of `env`) are looked up in `config`, ignoring
/// case and taking every other character for `_`. One that is not there is taken as it is written; a
/// class of a scan in lower case, as those of the product are.
///
/// # Errors
/// When a segment is empty, more than one key is meant, or only files can add what is named.
pub(super) fn find_key(name: &str, config: &Node, schema: &Json) -> Result<Vec<String>, PathError> {
    let segments: Vec<&str> = name.split("__").collect();
    if segments.iter().any(|segment| segment.is_empty()) {
        return Err(PathError::Empty);
    }
    let mut path: Vec<String> = Vec::new();
    let (mut node, mut table) = (Some(config), Some(schema));
    for segment in segments {
        let existing = || node.map(keys_of).unwrap_or_default();
        let key = match table.and_then(|table| map_keys(schema, table)) {
            None => segment.to_lowercase(),
            Some(MapKeys::Any) => {
                find_same(segment, existing())?.unwrap_or_else(|| segment.to_owned())
            }
            Some(MapKeys::Classes) => {
                let mut classes = Vec::new();
                collect_classes(config, schema, schema, &mut classes);
                find_same(segment, classes)?.unwrap_or_else(|| segment.to_lowercase())
            }
            Some(MapKeys::Entries(entry)) => {
                let known = existing();
                find_same(segment, known.clone())?.ok_or_else(|| PathError::UnknownName {
                    entry: entry.to_owned(),
                    known: known.into_iter().map(str::to_owned).collect(),
                })?
            }
        };
        node = node.and_then(|node| node.get(&key)).map(|it| &it.node);
        table = table.and_then(|table| entry_schema(schema, table, &key));
        path.push(key);
    }
    Ok(path)
}

fn keys_of(node: &Node) -> Vec<&str> {
    let table = node.as_table();
    table
        .into_iter()
        .flat_map(|table| table.keys())
        .map(String::as_str)
        .collect()
}

/// Adds the classes of scans that `node`, which `table` of the schema `root` describes, names.
fn collect_classes<'n>(node: &'n Node, root: &Json, table: &Json, classes: &mut Vec<&'n str>) {
    if map_keys(root, table) == Some(MapKeys::Classes) {
        classes.extend(keys_of(node));
    }
    for (key, entry) in node.as_table().into_iter().flatten() {
        if let Some(schema) = entry_schema(root, table, key) {
            collect_classes(&entry.node, root, schema, classes);
        }
    }
}

/// The one of `keys` that `segment` stands for, if there is one.
fn find_same(segment: &str, keys: Vec<&str>) -> Result<Option<String>, PathError> {
    let same = |key: &str| normalize_segment(key) == segment.to_uppercase();
    let same = keys.into_iter().filter(|key| same(key));
    let mut candidates: Vec<String> = same.map(str::to_owned).collect();
    candidates.sort_unstable();
    candidates.dedup();
    match candidates.len() {
        0 | 1 => Ok(candidates.pop()),
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
