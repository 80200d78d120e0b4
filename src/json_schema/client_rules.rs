//! Whether clients that compile a schema when a tool is listed could: the official SDK does so with AJV and
//! shows no tool of any server where one schema does not compile.
//!
//! The rules are those of AJV with `strict: false`: the shapes of keywords as in the metaschemas of draft 7
//! and of the draft that `$schema` names, and what AJV itself refuses when it compiles. Where these differ
//! between its versions, the stricter holds, but for `$schema`, which the SDK does not look up. `regress`
//! reads patterns as `RegExp` with the flag `u` does. Each part is visited once, so references may lead in
//! circles.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use percent_encoding::percent_decode_str;
use regress::{Flags, Regex};
use serde_json::{Map, Value};

use super::{PATTERN_TEXT_MAX, PATTERNS_MAX, PATTERNS_TEXT_MAX, SCHEMA_BYTES_MAX, shortened};

/// Why clients could not compile a schema: where, and what is wrong there.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}{reason}", place(.pointer))]
pub(crate) struct ClientFault {
    /// JSON pointer into the schema; empty for the schema as a whole.
    pointer: String,
    reason: String,
}

fn place(pointer: &str) -> String {
    if pointer.is_empty() {
        return String::new();
    }
    format!("at `{}`: ", shortened(pointer.to_owned()))
}

/// The `$id` of a schema that compiles.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RootId {
    /// Without an empty fragment, as it is compared with those of other schemas.
    pub(crate) uri: String,
    /// Whether references of the schema begin with it.
    pub(crate) is_used: bool,
}

/// Bytes of patterns of the schemas of one server that are checked at once: half a second at most.
pub(crate) const SERVER_PATTERNS_MAX: usize = 64 << 10;

/// Says whether clients could compile the schema `source`; its `$id`, if it has one. Its patterns are taken
/// from `patterns_left`, the bytes that those of its server may have.
///
/// # Errors
/// What they refuse first.
pub(crate) fn check_for_clients(
    source: &[u8],
    patterns_left: &mut usize,
) -> Result<Option<RootId>, ClientFault> {
    let whole = |reason: String| ClientFault {
        pointer: String::new(),
        reason,
    };
    if source.len() > SCHEMA_BYTES_MAX {
        return Err(whole(format!("it has more than {SCHEMA_BYTES_MAX} bytes")));
    }
    let root: Value = serde_json::from_slice(source)
        .map_err(|error| whole(format!("it cannot be read: {error}")))?;
    let mut check = ClientCheck {
        root: &root,
        root_id: None,
        is_id_used: false,
        allows_tuples: false,
        anchors: HashMap::new(),
        visited: HashSet::new(),
        ending: HashSet::new(),
        pattern_count: 0,
        pattern_bytes: 0,
        pattern_bytes_max: PATTERNS_TEXT_MAX.min(*patterns_left),
        pending: vec![(&root, Vec::new())],
        at: Vec::new(),
    };
    let checked = check.run();
    *patterns_left = patterns_left.saturating_sub(check.pattern_bytes);
    checked.map_err(|reason| ClientFault {
        pointer: check.pointer(),
        reason: shortened(reason),
    })?;
    Ok(check.root_id.map(|uri| RootId {
        uri: uri.to_owned(),
        is_used: check.is_id_used,
    }))
}

/// What a keyword wants its value to be.
#[derive(Clone, Copy, Debug)]
enum KeywordShape {
    Bool,
    /// A number from 0 on without a fraction.
    Count,
    /// Names, or a schema, for each of several names.
    Dependencies,
    /// A list of different values that is not empty.
    Enum,
    /// A schema, or up to 2019-09 one for each item.
    Items,
    List,
    /// Different texts.
    Names,
    /// Names for each of several names.
    NamesByName,
    Number,
    Pattern,
    /// A number above 0.
    Positive,
    Reference,
    Schema,
    Schemas,
    SchemasByName,
    SchemasByPattern,
    Text,
    Type,
    /// Nothing that is known to all clients, or that AJV refuses.
    Refused,
}

/// What AJV knows, and what the metaschemas say of annotations; other keywords are ignored.
fn shape_of(keyword: &str) -> Option<KeywordShape> {
    use KeywordShape as Shape;
    Some(match keyword {
        "additionalItems"
        | "additionalProperties"
        | "contains"
        | "else"
        | "if"
        | "not"
        | "propertyNames"
        | "then"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Shape::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Shape::Schemas,
        "$defs" | "definitions" | "dependentSchemas" | "properties" => Shape::SchemasByName,
        "patternProperties" => Shape::SchemasByPattern,
        "items" => Shape::Items,
        "dependencies" => Shape::Dependencies,
        "dependentRequired" => Shape::NamesByName,
        "required" => Shape::Names,
        "enum" => Shape::Enum,
        "examples" => Shape::List,
        "type" => Shape::Type,
        "pattern" => Shape::Pattern,
        "$dynamicRef" | "$recursiveRef" | "$ref" => Shape::Reference,
        "maxContains" | "maxItems" | "maxLength" | "maxProperties" | "minContains" | "minItems"
        | "minLength" | "minProperties" => Shape::Count,
        "exclusiveMaximum" | "exclusiveMinimum" | "maximum" | "minimum" => Shape::Number,
        "multipleOf" => Shape::Positive,
        "$recursiveAnchor" | "deprecated" | "nullable" | "readOnly" | "uniqueItems"
        | "writeOnly" => Shape::Bool,
        "$anchor" | "$comment" | "$dynamicAnchor" | "$id" | "$schema" | "contentEncoding"
        | "contentMediaType" | "description" | "format" | "title" => Shape::Text,
        "formatExclusiveMaximum"
        | "formatExclusiveMinimum"
        | "formatMaximum"
        | "formatMinimum"
        | "id" => Shape::Refused,
        _ => return None,
    })
}

/// References that lead to one another at once; more are a circle, or of no use.
const REFERENCES_MAX: usize = 64;

/// Members whose values are no schemas, whatever is in them.
const NO_SCHEMAS: [&str; 4] = ["const", "default", "enum", "examples"];

const TYPES: [&str; 7] = [
    "array", "boolean", "integer", "null", "number", "object", "string",
];

struct ClientCheck<'s> {
    root: &'s Value,
    root_id: Option<&'s str>,
    is_id_used: bool,
    /// Whether `items` may be a list.
    allows_tuples: bool,
    anchors: HashMap<&'s str, &'s Value>,
    /// Schemas that were looked at, or are being looked at.
    visited: HashSet<*const Value>,
    /// Those of which it is known that they refer on to an end.
    ending: HashSet<*const Value>,
    pattern_count: usize,
    pattern_bytes: usize,
    pattern_bytes_max: usize,
    /// Parts that references lead to, to be looked at, each with where the reference is.
    pending: Vec<(&'s Value, Vec<Cow<'s, str>>)>,
    /// The members that lead to what is looked at.
    at: Vec<Cow<'s, str>>,
}

impl<'s> ClientCheck<'s> {
    fn run(&mut self) -> Result<(), String> {
        let root = self.root;
        if let Some(draft) = root.get("$schema").and_then(Value::as_str) {
            self.allows_tuples = allows_tuples(draft)?;
        }
        let id = root.get("$id").and_then(Value::as_str);
        self.root_id = id.map(without_empty_fragment);
        self.find_anchors(root, true)?;
        while let Some((part, at)) = self.pending.pop() {
            self.at = at;
            self.schema(part)?;
        }
        Ok(())
    }

    fn pointer(&self) -> String {
        let escaped = self.at.iter().map(|name| {
            let name = name.replace('~', "~0").replace('/', "~1");
            format!("/{name}")
        });
        escaped.collect()
    }

    /// Notes the names of parts, wherever they are: clients do so before they compile anything.
    fn find_anchors(&mut self, part: &'s Value, is_root: bool) -> Result<(), String> {
        let members = match part {
            Value::Array(items) => {
                return items.iter().try_for_each(|it| self.find_anchors(it, false));
            }
            Value::Object(members) => members,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Ok(()),
        };
        if !is_root && members.get("$id").is_some_and(Value::is_string) {
            return Err("a part of it has an `$id`, from which references would count".to_owned());
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            let Some(name) = members.get(keyword).and_then(Value::as_str) else {
                continue;
            };
            let is_free = !is_root && is_anchor(name) && !self.anchors.contains_key(name);
            if !is_free {
                return Err(format!("`{keyword}`: `{name}` names no part, or several"));
            }
            self.anchors.insert(name, part);
        }
        let inner = members.iter();
        let mut inner = inner.filter(|(name, _)| !NO_SCHEMAS.contains(&name.as_str()));
        inner.try_for_each(|(_, it)| self.find_anchors(it, false))
    }

    fn schema(&mut self, schema: &'s Value) -> Result<(), String> {
        let members = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(members) => members,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("it is no schema".to_owned());
            }
        };
        if !self.visited.insert(std::ptr::from_ref(schema)) {
            return Ok(());
        }
        check_nullable(members)?;
        if members.get("$async").is_some_and(|it| *it != false) {
            return Err("`$async` makes it no schema of values".to_owned());
        }
        for (keyword, value) in members {
            let Some(shape) = shape_of(keyword) else {
                continue;
            };
            self.at.push(keyword.into());
            self.keyword(shape, value)?;
            self.at.pop();
        }
        Ok(())
    }

    fn keyword(&mut self, shape: KeywordShape, value: &'s Value) -> Result<(), String> {
        use KeywordShape as Shape;
        let is_right = match shape {
            Shape::Bool => value.is_boolean(),
            Shape::Count => value
                .as_f64()
                .is_some_and(|it| it >= 0.0 && it.fract() == 0.0),
            Shape::Enum => value.as_array().is_some_and(|all| {
                let mut seen = HashSet::new();
                !all.is_empty() && all.iter().all(|option| seen.insert(option))
            }),
            Shape::List => value.is_array(),
            Shape::Names => are_names(value),
            Shape::NamesByName => {
                let named = value.as_object();
                named.is_some_and(|named| named.values().all(are_names))
            }
            Shape::Number => value.is_number(),
            Shape::Positive => value.as_f64().is_some_and(|it| it > 0.0),
            Shape::Text => value.is_string(),
            Shape::Type => is_type(value),
            Shape::Refused => return Err("clients refuse this keyword".to_owned()),
            Shape::Pattern => {
                let pattern = value.as_str().ok_or_else(|| wrong_value(value))?;
                return self.pattern(pattern);
            }
            Shape::Reference => {
                let reference = value.as_str().ok_or_else(|| wrong_value(value))?;
                return self.reference(reference);
            }
            Shape::Schemas => return self.schemas(value),
            Shape::Items if self.allows_tuples && value.is_array() => return self.schemas(value),
            Shape::Items | Shape::Schema => return self.schema(value),
            Shape::Dependencies | Shape::SchemasByName | Shape::SchemasByPattern => {
                return self.named_schemas(shape, value);
            }
        };
        is_right.then_some(()).ok_or_else(|| wrong_value(value))
    }

    fn schemas(&mut self, value: &'s Value) -> Result<(), String> {
        let all = value.as_array().filter(|all| !all.is_empty());
        let all = all.ok_or_else(|| wrong_value(value))?;
        for (index, schema) in all.iter().enumerate() {
            self.at.push(index.to_string().into());
            self.schema(schema)?;
            self.at.pop();
        }
        Ok(())
    }

    fn named_schemas(&mut self, shape: KeywordShape, value: &'s Value) -> Result<(), String> {
        let named = value.as_object().ok_or_else(|| wrong_value(value))?;
        for (name, schema) in named {
            self.at.push(name.into());
            if matches!(shape, KeywordShape::SchemasByPattern) {
                self.pattern(name)?;
            }
            let is_list = matches!(shape, KeywordShape::Dependencies) && are_names(schema);
            if !is_list {
                self.schema(schema)?;
            }
            self.at.pop();
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        self.pattern_count += 1;
        self.pattern_bytes += pattern.len();
        if pattern.len() > PATTERN_TEXT_MAX
            || self.pattern_count > PATTERNS_MAX
            || self.pattern_bytes > self.pattern_bytes_max
        {
            return Err("its patterns are too long or too many to be checked".to_owned());
        }
        check_pattern(pattern)
    }

    fn reference(&mut self, reference: &'s str) -> Result<(), String> {
        let part = self.resolve(reference)?;
        // Clients follow what refers on at once while they compile.
        let (mut last, mut followed) = (part, Vec::new());
        while followed.len() < REFERENCES_MAX {
            let is_known = self.ending.contains(&std::ptr::from_ref(last));
            let next = last.get("$ref").and_then(Value::as_str);
            followed.push(std::ptr::from_ref(last));
            let Some(next) = next.filter(|_| !is_known) else {
                self.ending.extend(followed);
                if !self.visited.contains(&std::ptr::from_ref(part)) {
                    self.pending.push((part, self.at.clone()));
                }
                return Ok(());
            };
            last = self.resolve(next)?;
        }
        Err(format!(
            "`{reference}` leads in a circle, or through too many references"
        ))
    }

    /// The part that `reference` refers to.
    fn resolve(&mut self, reference: &'s str) -> Result<&'s Value, String> {
        let absent = || format!("`{reference}` is no part of the schema");
        let local = self.root_id.filter(|id| !id.is_empty());
        let local = local.and_then(|id| reference.strip_prefix(id));
        let is_absolute = local.is_some_and(|rest| rest.starts_with('#'));
        self.is_id_used |= is_absolute;
        let local = local.filter(|_| is_absolute).unwrap_or(reference);
        let fragment = local.strip_prefix('#').ok_or_else(absent)?;
        if fragment.is_empty() {
            return Ok(self.root);
        }
        // What clients read otherwise than JSON pointers say.
        if fragment == "/"
            || fragment.contains('#')
            || fragment.to_ascii_lowercase().contains("%2f")
        {
            return Err(absent());
        }
        let fragment = percent_decode_str(fragment);
        let fragment = fragment.decode_utf8().map_err(|_| absent())?;
        let part = if fragment.starts_with('/') {
            self.root.pointer(&fragment)
        } else {
            self.anchors.get(&*fragment).copied()
        };
        part.ok_or_else(absent)
    }
}

/// Whether lists of schemas are `items` in `draft`, which `$schema` names.
fn allows_tuples(draft: &str) -> Result<bool, String> {
    let name = without_empty_fragment(draft);
    let name = name
        .strip_prefix("https:")
        .or_else(|| name.strip_prefix("http:"));
    match name {
        Some(
            "//json-schema.org/draft-04/schema"
            | "//json-schema.org/draft-06/schema"
            | "//json-schema.org/draft-07/schema"
            | "//json-schema.org/draft/2019-09/schema",
        ) => Ok(true),
        Some("//json-schema.org/draft/2020-12/schema") => Ok(false),
        Some(_) | None => Err(format!("`$schema`: `{draft}` is no draft that is known")),
    }
}

/// Whether `pattern` is one of ECMAScript that clients of all ages read.
fn check_pattern(pattern: &str) -> Result<(), String> {
    let flags = Flags {
        unicode: true,
        no_opt: true,
        ..Flags::default()
    };
    Regex::with_flags(pattern, flags)
        .map_err(|error| format!("`{pattern}` is no pattern of ECMAScript: {error}"))?;
    // Groups with flags are of ECMAScript 2025, which few clients have.
    let has_flags = ["(?i", "(?m", "(?s", "(?-"];
    if has_flags.iter().any(|it| pattern.contains(it)) {
        return Err(format!("`{pattern}` has flags that clients may not know"));
    }
    Ok(())
}

/// AJV makes types of `nullable`, which is of no draft.
fn check_nullable(members: &Map<String, Value>) -> Result<(), String> {
    let Some(nullable) = members.get("nullable") else {
        return Ok(());
    };
    let types = members.get("type");
    let is_null = types.is_some_and(|types| {
        types == "null"
            || types
                .as_array()
                .is_some_and(|all| all.contains(&"null".into()))
    });
    if types.is_none() {
        return Err("`nullable` without `type`".to_owned());
    }
    if is_null && *nullable == false {
        return Err("`nullable` contradicts `type`".to_owned());
    }
    Ok(())
}

fn is_type(value: &Value) -> bool {
    let is_known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let Some(all) = value.as_array() else {
        return is_known(value);
    };
    !all.is_empty() && are_names(value) && all.iter().all(is_known)
}

/// Whether `value` is a list of different texts.
fn are_names(value: &Value) -> bool {
    let mut seen = HashSet::new();
    let is_new = |name: &Value| {
        name.as_str()
            .is_some_and(|name| seen.insert(name.to_owned()))
    };
    value.as_array().is_some_and(|all| all.iter().all(is_new))
}

/// Whether `name` is one that AJV takes: a letter or `_`, and then those, digits, `-` and `.`.
fn is_anchor(name: &str) -> bool {
    let mut bytes = name.bytes();
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    bytes.next().is_some_and(is_first)
        && bytes.all(|byte| is_first(byte) || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

fn without_empty_fragment(id: &str) -> &str {
    id.strip_suffix("#/")
        .or_else(|| id.strip_suffix('#'))
        .unwrap_or(id)
}

fn wrong_value(value: &Value) -> String {
    let what = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "this number",
        Value::String(_) => "this text",
        Value::Array(_) => "this list",
        Value::Object(_) => "an object",
    };
    format!("{what} is not allowed here")
}

#[cfg(test)]
mod tests;
