//! A schema with what its references refer to in their place, and only with what it says of values.

use std::{collections::BTreeSet, ptr};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::{SchemaFault, shortened};

/// Parts of a schema whose references are in place.
pub(super) const SIZE_MAX: usize = 1 << 16;

/// Bytes of a text that are kept or gone through at the cost of a part.
const TEXT: usize = 64;

/// How deep subschemas may be within one another: for so many a thread has room on its stack beside
/// what it does otherwise, also with a build that is not optimised.
pub(super) const LEVELS_MAX: usize = 64;

/// What finds out what nothing else has evaluated asks all others again, more than once each.
const AGAIN: usize = 3;

/// Parts that a pattern which may go back in a text counts for.
const LOOK: usize = 256;

/// What a value takes in memory beside its texts, and an object and each of its members.
const VALUE_BYTES: usize = 64;
const OBJECT_BYTES: usize = 640;
const MEMBER_BYTES: usize = 128;

/// A schema without references.
#[derive(Debug)]
pub(super) struct Expanded {
    pub(super) schema: Value,
    /// Its parts; those count as more that are asked or kept more than once.
    pub(super) size: usize,
    /// Those of them that many members or items may be put to.
    pub(super) repeated: usize,
    /// Those of them that are below alternatives, of which faults keep a copy of the value.
    pub(super) alternatives: usize,
    pub(super) patterns: SchemaPatterns,
    /// Whether it has a keyword that takes longer than its size says.
    pub(super) is_slow: bool,
}

/// The patterns of a schema.
#[derive(Debug, Default)]
pub(super) struct SchemaPatterns(BTreeSet<String>);

struct SchemaExpander<'a> {
    root: &'a Value,
    /// Up to draft 7 nothing counts beside a `$ref`.
    is_classic: bool,
    has_inner_id: bool,
    /// What the references refer to in which the walk is.
    open: Vec<&'a Value>,
    found: Expanded,
}

/// Where in a schema a part is.
#[derive(Clone, Copy)]
struct PartPosition {
    level: usize,
    /// Bytes of the JSON pointer to it, which a validator keeps.
    pointer: usize,
    /// How often it is asked or kept.
    times: usize,
    is_repeated: bool,
    is_alternative: bool,
}

impl Expanded {
    /// # Errors
    /// When `root` is cyclic, dynamic, refers to elsewhere, or is too large.
    pub(super) fn of(root: &Value) -> Result<Self, SchemaFault> {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or("");
        let is = |name| draft.contains(name);
        let mut expander = SchemaExpander {
            root,
            is_classic: is("draft-04") || is("draft-06") || is("draft-07"),
            has_inner_id: has_inner_id(root, is("draft-04")),
            open: Vec::new(),
            found: Self {
                schema: Value::Null,
                size: 0,
                repeated: 0,
                alternatives: 0,
                patterns: SchemaPatterns::default(),
                is_slow: false,
            },
        };
        let mut schema = expander.part(
            root,
            PartPosition {
                level: 0,
                pointer: 0,
                times: 1,
                is_repeated: false,
                is_alternative: false,
            },
        )?;
        if let (Some(draft), Value::Object(members)) = (root.get("$schema"), &mut schema) {
            members.insert("$schema".to_owned(), draft.clone());
        }
        expander.found.schema = schema;
        Ok(expander.found)
    }
}

impl<'a> SchemaExpander<'a> {
    /// What `part` says: a schema, or several, or something else that a keyword has.
    fn part(&mut self, part: &'a Value, at: PartPosition) -> Result<Value, SchemaFault> {
        match part {
            Value::Object(members) => self.schema(members, at),
            Value::Array(items) => {
                let parts = items.iter().map(|item| self.part(item, at.below("00")));
                parts.collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.copy(part, at)
            }
        }
    }

    fn schema(
        &mut self,
        members: &'a Map<String, Value>,
        at: PartPosition,
    ) -> Result<Value, SchemaFault> {
        if at.level > LEVELS_MAX {
            return Err(SchemaFault::Deep);
        }
        self.count(1 + at.pointer / TEXT, at)?;
        let mut inner = PartPosition {
            level: at.level + 1,
            ..at
        };
        if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems")
        {
            inner.times = at.times.saturating_mul(AGAIN);
            self.found.is_slow = true;
        }
        let reference = members.get("$ref").and_then(Value::as_str);
        let mut said = Map::new();
        for (keyword, value) in members {
            if self.is_classic && reference.is_some() {
                break;
            }
            let inner = inner.below(keyword);
            let value = match keyword.as_str() {
                "$dynamicRef" | "$recursiveRef" if value.is_string() => {
                    return Err(SchemaFault::Dynamic(keyword.clone()));
                }
                "allOf" | "else" | "if" | "prefixItems" | "then" => self.part(value, inner)?,
                "additionalItems"
                | "additionalProperties"
                | "contains"
                | "items"
                | "unevaluatedItems"
                | "unevaluatedProperties" => self.part(value, inner.repeated())?,
                "anyOf" | "oneOf" => self.part(value, inner.alternative())?,
                "propertyNames" => self.part(value, inner.repeated().alternative())?,
                // A validator keeps it as it is too, and so do its faults.
                "not" => self.part(value, inner.alternative().twice())?,
                "dependencies" | "dependentSchemas" | "properties" => self.parts(value, inner)?,
                "patternProperties" => {
                    let patterns = value.as_object().into_iter().flat_map(Map::keys);
                    patterns
                        .into_iter()
                        .try_for_each(|it| self.pattern(it, at))?;
                    self.parts(value, inner.repeated())?
                }
                "pattern" => {
                    self.pattern(value.as_str().unwrap_or_default(), at)?;
                    self.copy(value, inner)?
                }
                keyword if SAYS_SOMETHING.contains(&keyword) => {
                    self.found.is_slow |= keyword == "uniqueItems";
                    self.copy(value, inner)?
                }
                // It is for people, or names parts.
                _ => continue,
            };
            said.insert(keyword.clone(), value);
        }
        let Some(reference) = reference else {
            return Ok(Value::Object(said));
        };
        let referred = self.refer(reference, inner.below("allOf"))?;
        if said.is_empty() {
            return Ok(referred);
        }
        let all = said.entry("allOf").or_insert_with(|| json!([]));
        // What is no list there is found when it is compiled.
        if let Value::Array(all) = all {
            all.push(referred);
        }
        Ok(Value::Object(said))
    }

    /// Schemas by name.
    fn parts(&mut self, value: &'a Value, at: PartPosition) -> Result<Value, SchemaFault> {
        let Value::Object(named) = value else {
            return self.copy(value, at);
        };
        let parts = named.iter().map(|(name, part)| {
            let at = at.below(name);
            self.count(name.len() / TEXT, at)?;
            Ok((name.clone(), self.part(part, at)?))
        });
        parts.collect()
    }

    /// What `reference` refers to.
    fn refer(&mut self, reference: &str, at: PartPosition) -> Result<Value, SchemaFault> {
        if self.has_inner_id {
            return Err(SchemaFault::InnerId);
        }
        let pointer = reference.strip_prefix('#');
        let pointer = pointer.and_then(|it| percent_decode_str(it).decode_utf8().ok());
        let part = pointer.and_then(|pointer| self.root.pointer(&pointer));
        let Some(part) = part.filter(|part| part.is_object() || part.is_boolean()) else {
            return Err(SchemaFault::Elsewhere(shortened(reference.to_owned())));
        };
        if self.open.iter().any(|open| ptr::eq(*open, part)) {
            return Err(SchemaFault::Circle(shortened(reference.to_owned())));
        }
        self.open.push(part);
        let said = self.part(part, at);
        self.open.pop();
        said
    }

    fn pattern(&mut self, pattern: &str, at: PartPosition) -> Result<(), SchemaFault> {
        self.found.is_slow = true;
        self.found.patterns.0.insert(pattern.to_owned());
        self.count(looks(pattern) * LOOK, at)
    }

    /// What is no schema.
    fn copy(&mut self, value: &Value, at: PartPosition) -> Result<Value, SchemaFault> {
        self.count(parts(value), at)?;
        Ok(value.clone())
    }

    fn count(&mut self, parts: usize, at: PartPosition) -> Result<(), SchemaFault> {
        let parts = parts.saturating_mul(at.times);
        let found = &mut self.found;
        found.size = found.size.saturating_add(parts);
        if at.is_repeated {
            found.repeated = found.repeated.saturating_add(parts);
        }
        if at.is_alternative {
            found.alternatives = found.alternatives.saturating_add(parts);
        }
        if found.size > SIZE_MAX {
            return Err(SchemaFault::Expanded);
        }
        Ok(())
    }
}

impl PartPosition {
    fn below(self, name: &str) -> Self {
        Self {
            pointer: self.pointer + 1 + name.len(),
            ..self
        }
    }

    fn repeated(self) -> Self {
        Self {
            is_repeated: true,
            ..self
        }
    }

    fn alternative(self) -> Self {
        Self {
            is_alternative: true,
            ..self
        }
    }

    fn twice(self) -> Self {
        Self {
            times: self.times.saturating_mul(2),
            ..self
        }
    }
}

impl SchemaPatterns {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(String::len).sum()
    }

    pub(super) fn longest(&self) -> usize {
        self.0.iter().map(String::len).max().unwrap_or_default()
    }

    /// How many programs they become: each group that looks around is one of its own.
    pub(super) fn programs(&self) -> usize {
        self.0.iter().map(|pattern| 1 + looks(pattern)).sum()
    }
}

/// Keywords that say something of a value, and have no schemas in them.
const SAYS_SOMETHING: [&str; 22] = [
    "const",
    "contentEncoding",
    "contentMediaType",
    "dependentRequired",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "required",
    "type",
    "uniqueItems",
];

/// Whether a part of `root` has an identifier, from which references in it count.
fn has_inner_id(root: &Value, is_id_plain: bool) -> bool {
    let mut open: Vec<&Value> = inner(root).collect();
    while let Some(part) = open.pop() {
        let id = part
            .get("$id")
            .or_else(|| part.get("id").filter(|_| is_id_plain));
        // What begins with `#` only names the part.
        if id
            .and_then(Value::as_str)
            .is_some_and(|id| !id.starts_with('#'))
        {
            return true;
        }
        open.extend(inner(part));
    }
    false
}

/// The values in `value`.
fn inner(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value.as_array().into_iter().flatten();
    items.chain(value.as_object().into_iter().flat_map(Map::values))
}

/// How many groups of `pattern` look around or back, for which one may have to go back in a text.
fn looks(pattern: &str) -> usize {
    let around = ["(?=", "(?!", "(?<", "(?>", "\\k"];
    let around: usize = around.iter().map(|it| pattern.matches(it).count()).sum();
    let pairs = pattern.as_bytes().array_windows();
    let back = pairs.filter(|[slash, digit]| *slash == b'\\' && matches!(digit, b'1'..=b'9'));
    around + back.count()
}

/// The parts of `value`; long texts count as more.
pub(super) fn parts(value: &Value) -> usize {
    let inner: usize = match value {
        Value::String(text) => text.len() / TEXT,
        Value::Array(items) => items.iter().map(parts).sum(),
        Value::Object(members) => {
            let member = |(name, it): (&String, &Value)| name.len() / TEXT + parts(it);
            members.iter().map(member).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    1 + inner
}

/// What `value` takes in memory.
pub(super) fn bytes(value: &Value) -> usize {
    let inner: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(members) => {
            let member = |(name, it): (&String, &Value)| MEMBER_BYTES + name.len() + bytes(it);
            OBJECT_BYTES + members.iter().map(member).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE_BYTES + inner
}
