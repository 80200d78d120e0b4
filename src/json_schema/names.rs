//! What a schema calls its parts, and what its references mean.
//!
//! A reference means one part or nothing: by JSON pointer or anchor within the document, by the `$id` of
//! a part as that is written, or JSON Schema itself. Names have done their work then: the schema that is
//! compiled has none, and refers by pointers alone ([`SchemaNames::without`]). So it leads where it is known
//! to lead, and a validator has nothing to resolve.

use std::collections::HashMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map as Members, Value};

use super::shortened;

/// Bytes of the JSON pointers to all parts of a schema, and in its references: a validator keeps them.
pub(crate) const POINTERS_BYTES_MAX: usize = 32 << 20;

/// What stands for itself in the JSON pointer of a URI.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'~')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

/// Why a schema cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfollowed {
    #[error("it refers to `{0}`, which is no one part of it")]
    Nowhere(String),
    #[error("a part of it has more than one reference")]
    Twice,
    #[error("it has `$recursiveRef` beside parts with an `$id`")]
    Recursive,
    #[error("the JSON pointers to its parts have more than {POINTERS_BYTES_MAX} bytes")]
    Long,
}

/// A part, and the JSON pointer to it.
#[derive(Clone, Debug)]
pub(super) struct NamedPart<'a> {
    pub(super) schema: &'a Value,
    pointer: String,
}

/// What a reference means.
#[derive(Debug)]
pub(super) enum Meaning<'a> {
    Part(NamedPart<'a>),
    JsonSchema,
}

#[derive(Debug)]
pub(super) struct SchemaNames<'a> {
    /// The whole, and the parts with an `$id`: what references within them count from.
    resources: Vec<NamedPart<'a>>,
    /// By `$id`; `None` where more than one part has it.
    ids: HashMap<&'a str, Option<usize>>,
    anchors: HashMap<&'a str, Option<NamedPart<'a>>>,
    /// The parts that are schemas, and the resource that each is in.
    parts: HashMap<*const Value, usize>,
    style: NamingStyle,
    /// Bytes of all JSON pointers, and of the longest.
    pub(super) pointers: usize,
    pub(super) longest: usize,
}

/// How parts are named, which depends on the draft.
#[derive(Clone, Copy, Debug)]
struct NamingStyle {
    /// Up to draft 7 nothing counts beside a `$ref`.
    is_classic: bool,
    /// `$id` once was `id`.
    has_plain_id: bool,
}

/// What is kept of a schema when its names have done their work.
#[derive(Debug, Default)]
pub(super) struct References(HashMap<*const Value, String>);

impl NamingStyle {
    fn of(root: &Value) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str);
        let is = |name| draft.is_some_and(|draft| draft.contains(name));
        Self {
            is_classic: ["draft-04", "draft-06", "draft-07"].into_iter().any(is),
            has_plain_id: is("draft-04"),
        }
    }

    /// Whether `keyword` may say the identifier of a part.
    fn is_id(self, keyword: &str) -> bool {
        keyword == "$id" || (self.has_plain_id && keyword == "id")
    }
}

/// Whether `uri` is in the place of the documents of JSON Schema itself.
fn is_json_schema(uri: &str) -> bool {
    let rest = uri.strip_prefix("https://");
    let rest = rest.or_else(|| uri.strip_prefix("http://"));
    rest.is_some_and(|rest| rest.starts_with("json-schema.org/"))
}

impl<'a> SchemaNames<'a> {
    /// # Errors
    /// When the pointers to its parts are too long.
    pub(super) fn read(root: &'a Value) -> Result<Self, Unfollowed> {
        let whole = NamedPart {
            schema: root,
            pointer: String::new(),
        };
        let mut names = Self {
            resources: vec![whole],
            ids: HashMap::new(),
            anchors: HashMap::new(),
            parts: HashMap::new(),
            style: NamingStyle::of(root),
            pointers: 0,
            longest: 0,
        };
        names.learn(root, &mut String::new(), 0)?;
        Ok(names)
    }

    pub(super) fn root(&self) -> &'a Value {
        self.resources[0].schema
    }

    /// What `reference` means in `part`.
    ///
    /// # Errors
    /// When that is nothing that is known.
    pub(super) fn meaning(
        &self,
        reference: &str,
        part: &'a Value,
    ) -> Result<Meaning<'a>, Unfollowed> {
        if let Some(part) = self.part(reference, part) {
            return Ok(Meaning::Part(part));
        }
        if is_json_schema(reference) {
            return Ok(Meaning::JsonSchema);
        }
        Err(Unfollowed::Nowhere(shortened(reference.to_owned())))
    }

    /// What `$recursiveRef` means.
    ///
    /// # Errors
    /// Where that depends on the way on which one came to it.
    pub(super) fn recursive(&self) -> Result<Meaning<'a>, Unfollowed> {
        match &self.resources[..] {
            [whole] => Ok(Meaning::Part(whole.clone())),
            _ => Err(Unfollowed::Recursive),
        }
    }

    fn part(&self, reference: &str, within: &'a Value) -> Option<NamedPart<'a>> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match document {
            "" => *self.parts.get(&std::ptr::from_ref(within))?,
            id => (*self.ids.get(id)?)?,
        };
        let resource = &self.resources[resource];
        if fragment.is_empty() {
            return Some(resource.clone());
        }
        if !fragment.starts_with('/') {
            return self.anchors.get(fragment)?.clone();
        }
        let pointer = percent_decode_str(fragment).decode_utf8().ok()?;
        let schema = resource.schema.pointer(&pointer)?;
        self.parts.get(&std::ptr::from_ref(schema))?;
        let pointer = format!("{}{pointer}", resource.pointer);
        Some(NamedPart { schema, pointer })
    }

    /// Takes in what the schema `part` at `pointer` and its parts are called.
    fn learn(
        &mut self,
        part: &'a Value,
        pointer: &mut String,
        mut resource: usize,
    ) -> Result<(), Unfollowed> {
        self.longest = self.longest.max(pointer.len());
        self.pointers += pointer.len();
        if self.pointers > POINTERS_BYTES_MAX {
            return Err(Unfollowed::Long);
        }
        match part {
            Value::Object(members) => {
                resource = self.name(part, members, pointer, resource);
                self.parts.insert(part, resource);
                for (keyword, inner) in members {
                    match (keyword.as_str(), inner) {
                        // Values, whatever they look like.
                        ("enum" | "const" | "default" | "examples", _) => {}
                        (
                            "properties" | "patternProperties" | "$defs" | "definitions"
                            | "dependentSchemas" | "dependencies",
                            Value::Object(schemas),
                        ) => {
                            let length = enter(pointer, keyword);
                            for (name, schema) in schemas {
                                self.learn_within(schema, pointer, name, resource)?;
                            }
                            pointer.truncate(length);
                        }
                        _ => self.learn_within(inner, pointer, keyword, resource)?,
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.learn_within(item, pointer, &index.to_string(), resource)?;
                }
            }
            Value::Bool(_) => _ = self.parts.insert(part, resource),
            Value::Null | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }

    fn learn_within(
        &mut self,
        part: &'a Value,
        pointer: &mut String,
        segment: &str,
        resource: usize,
    ) -> Result<(), Unfollowed> {
        if part.is_string() {
            return Ok(());
        }
        let length = enter(pointer, segment);
        self.learn(part, pointer, resource)?;
        pointer.truncate(length);
        Ok(())
    }

    /// Takes in what `schema` itself is called; the resource that it is in.
    fn name(
        &mut self,
        schema: &'a Value,
        members: &'a Members<String, Value>,
        pointer: &str,
        mut resource: usize,
    ) -> usize {
        let part = || NamedPart {
            schema,
            pointer: pointer.to_owned(),
        };
        let hides_id = self.style.is_classic && members.contains_key("$ref");
        for (keyword, said) in members {
            let Some(said) = said.as_str() else {
                continue;
            };
            let anchor = match keyword.as_str() {
                "$anchor" | "$dynamicAnchor" => Some(said),
                id if self.style.is_id(id) && !hides_id => said.strip_prefix('#'),
                _ => continue,
            };
            if let Some(anchor) = anchor {
                let known = self.anchors.entry(anchor);
                known
                    .and_modify(|it| *it = None)
                    .or_insert_with(|| Some(part()));
                continue;
            }
            if !pointer.is_empty() {
                self.resources.push(part());
                resource = self.resources.len() - 1;
            }
            let id = said.strip_suffix('#').unwrap_or(said);
            let known = self.ids.entry(id);
            known.and_modify(|it| *it = None).or_insert(Some(resource));
        }
        resource
    }

    /// `part` without names and what only people read, and with `references` by pointers.
    pub(super) fn without(&self, part: &Value, references: &References) -> Value {
        let inner = |part| self.without(part, references);
        let members = match part {
            Value::Object(members) => members,
            Value::Array(items) => return items.iter().map(inner).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return part.clone();
            }
        };
        let is_schema = self.parts.contains_key(&std::ptr::from_ref(part));
        let is_whole = std::ptr::eq(part, self.root());
        let is_kept = |keyword: &str, said: &Value| match keyword {
            // All is of one draft: others name parts otherwise.
            "$schema" => is_whole,
            "$ref" | "$dynamicRef" | "$recursiveRef" | "$recursiveAnchor" | "title"
            | "description" | "default" | "examples" | "$comment" => false,
            "$anchor" | "$dynamicAnchor" => !said.is_string(),
            id if self.style.is_id(id) => !said.is_string(),
            _ => true,
        };
        let kept = members
            .iter()
            .filter(|(keyword, said)| !is_schema || is_kept(keyword, said))
            .map(|(keyword, said)| (keyword.clone(), inner(said)));
        let mut kept: Members<_, _> = kept.collect();
        // Of a part that nothing leads to nobody knows what it refers to.
        if let Some(reference) = references.0.get(&std::ptr::from_ref(part)) {
            kept.insert("$ref".to_owned(), reference.clone().into());
        }
        Value::Object(kept)
    }
}

impl References {
    /// Notes what `part` refers to by `reference`.
    ///
    /// # Errors
    /// When it refers to more than that.
    pub(super) fn note(
        &mut self,
        part: &Value,
        reference: &str,
        meaning: &Meaning<'_>,
    ) -> Result<(), Unfollowed> {
        let reference = match meaning {
            Meaning::Part(to) => format!("#{}", utf8_percent_encode(&to.pointer, PLAIN)),
            Meaning::JsonSchema => reference.to_owned(),
        };
        match self.0.insert(part, reference) {
            None => Ok(()),
            Some(_) => Err(Unfollowed::Twice),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.0.values().map(String::len).sum()
    }
}

/// Appends `segment` to `pointer`; the length before.
fn enter(pointer: &mut String, segment: &str) -> usize {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(&segment.replace('~', "~0").replace('/', "~1"));
    length
}
