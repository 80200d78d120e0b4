//! How the schema of a config is read: as much of JSON Schema as the types of `file` generate.

pub(in crate::config) mod key_tables;

use serde_json::Value as Json;

/// Where a schema keeps the types that it refers to.
const DEFINITIONS: &str = "#/$defs/";

/// The key that tells the options of a tagged table apart.
pub(in crate::config) const TAG: &str = "type";

/// The keyword at a map of entries that only files can add: what one of them is called.
const ENTRY_KEYWORD: &str = "x-entry";

/// The keyword at a map whose keys are classes of a scan.
const CLASSES_KEYWORD: &str = "x-classes";

/// What the keys of a map are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::config) enum MapKeys<'s> {
    /// Whatever an operator chose.
    Any,
    /// Classes of a scan: the product's, or an operator's own.
    Classes,
    /// Names of entries that only files can add, and what one of them is called.
    Entries(&'s str),
}

/// What `schema` refers to in `root`, with its name, or `schema` itself, without one.
pub(in crate::config) fn resolve<'s>(root: &'s Json, schema: &'s Json) -> (&'s str, &'s Json) {
    let reference = schema.get("$ref").and_then(Json::as_str);
    let name = reference.and_then(|reference| reference.strip_prefix(DEFINITIONS));
    name.and_then(|name| Some((name, root.get("$defs")?.get(name)?)))
        .unwrap_or(("", schema))
}

/// What the keys of the map that `schema` describes are; `None` for a table of a type, or no table.
pub(in crate::config) fn map_keys<'s>(root: &'s Json, schema: &'s Json) -> Option<MapKeys<'s>> {
    let (_, schema) = resolve(root, schema);
    schema.get("additionalProperties")?.as_object()?;
    Some(match schema.get(ENTRY_KEYWORD).and_then(Json::as_str) {
        Some(entry) => MapKeys::Entries(entry),
        None if schema.get(CLASSES_KEYWORD).is_some() => MapKeys::Classes,
        None => MapKeys::Any,
    })
}

/// The schema of the entry `key` of the table that `schema`, or an option of it, describes.
pub(in crate::config) fn entry_schema<'s>(
    root: &'s Json,
    schema: &'s Json,
    key: &str,
) -> Option<&'s Json> {
    let (name, schema) = resolve(root, schema);
    let entry = Section { name, schema }.key(key);
    entry.or_else(|| {
        let mut options = options_of(schema).iter();
        options.find_map(|option| entry_schema(root, option, key))
    })
}

/// What JSON Schema calls the type of a value that `schema` describes.
pub(in crate::config) fn type_of(schema: &Json) -> &str {
    match schema.get("type").and_then(Json::as_str) {
        Some(name) => name,
        None if enum_words(schema).is_empty() => "",
        None => "string",
    }
}

/// The words that are all that `schema` allows.
pub(in crate::config) fn enum_words(schema: &Json) -> Vec<&str> {
    let listed = schema.get("enum").and_then(Json::as_array);
    let described = schema.get("oneOf").and_then(Json::as_array);
    let words = listed.into_iter().flatten().filter_map(Json::as_str);
    let constants = described
        .into_iter()
        .flatten()
        .filter_map(|option| option.get("const").and_then(Json::as_str));
    words.chain(constants).collect()
}

/// The shapes of which a value of `schema` has one; empty where it has one shape alone.
pub(in crate::config) fn options_of(schema: &Json) -> &[Json] {
    let options = schema.get("oneOf").or_else(|| schema.get("anyOf"));
    options.and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// The value of the tag in the schema `option`.
pub(in crate::config) fn tag_value(option: &Json) -> Option<&str> {
    option.get("properties")?.get(TAG)?.get("const")?.as_str()
}

/// The least and the greatest legal integer; the schema names the width of a type, not always
/// its bounds.
pub(in crate::config) fn integer_bounds(schema: &Json) -> (i64, i64) {
    let (min, max) = match schema.get("format").and_then(Json::as_str) {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Some("uint16") => (0, i64::from(u16::MAX)),
        Some("uint32") => (0, i64::from(u32::MAX)),
        Some("uint" | "uint64") => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    let bound = |keyword: &str| schema.get(keyword).and_then(Json::as_i64);
    (
        bound("minimum").unwrap_or(min),
        bound("maximum").unwrap_or(max),
    )
}

/// A table of the schema: the type it was generated from, and its schema.
#[derive(Clone, Copy)]
pub(in crate::config) struct Section<'s> {
    pub(in crate::config) name: &'s str,
    pub(in crate::config) schema: &'s Json,
}

impl<'s> Section<'s> {
    /// The schema of the entry `key`: a key of the type, or any key of a map.
    pub(in crate::config) fn key(self, key: &str) -> Option<&'s Json> {
        let property = self
            .schema
            .get("properties")
            .and_then(|properties| properties.get(key));
        property.or_else(|| {
            self.schema
                .get("additionalProperties")
                .filter(|others| others.is_object())
        })
    }

    pub(in crate::config) fn keys(self) -> Vec<&'s str> {
        let properties = self.schema.get("properties").and_then(Json::as_object);
        properties
            .into_iter()
            .flat_map(|p| p.keys())
            .map(String::as_str)
            .collect()
    }

    pub(in crate::config) fn required(self) -> Vec<&'s str> {
        let names = self.schema.get("required").and_then(Json::as_array);
        names
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
            .collect()
    }
}
