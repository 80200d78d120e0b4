//! A schema as a map: which of its parts are asked, and where each of them leads.

use std::collections::{HashMap, HashSet};

use serde_json::{Map as Members, Value};

use super::names::{Meaning, POINTERS_BYTES_MAX, References, SchemaNames, Unfollowed};

/// What finds out what nothing else has evaluated asks all others again, more than once each.
const AGAIN: usize = 3;

/// What a value takes in memory beside its texts, and an object and each of its members.
const VALUE_BYTES: usize = 64;
const OBJECT_BYTES: usize = 640;
const MEMBER_BYTES: usize = 128;

/// What a subschema takes in memory when it is compiled, and a pattern as people write them.
const NODE_BYTES: usize = 512;
const PROGRAM_BYTES: usize = 128 << 10;

/// The parts that the whole leads to.
#[derive(Debug)]
pub(super) struct Map {
    /// The first is the whole.
    pub(super) nodes: Vec<SchemaNode>,
    pub(super) patterns: SchemaPatterns,
    pub(super) references: usize,
    /// Bytes of the longest JSON pointer to a part.
    pub(super) longest: usize,
    /// Bytes of the subschemas that are kept beside what is compiled of them.
    pub(super) copies: usize,
    /// What all that is compiled takes in memory, roughly.
    pub(super) weight: usize,
}

/// What patterns there are.
#[derive(Debug, Default)]
pub(super) struct SchemaPatterns {
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) bytes_max: usize,
    /// How many groups the one has that looks around most often: each is a program of its own.
    pub(super) looks_max: usize,
}

/// One subschema.
#[derive(Debug, Default)]
pub(super) struct SchemaNode {
    pub(super) leads: Vec<SchemaEdge>,
    /// Whether references lead to it, so that one may come to it on several ways.
    pub(super) is_named: bool,
    /// Whether it has what asks others again.
    pub(super) asks_again: bool,
    /// Whether a value is asked to be a schema, which the documents of JSON Schema say.
    pub(super) asks_for_a_schema: bool,
    /// Faults that its own keywords may find in a value, and bytes of those keywords, which a fault
    /// repeats.
    pub(super) faults: usize,
    pub(super) bytes: usize,
    /// Members that it knows by name.
    pub(super) names: usize,
    /// Keywords that go through a text or all names, and patterns that may go back in it.
    pub(super) scans: usize,
    pub(super) looks: usize,
    /// Values that one is compared with.
    pub(super) compares: usize,
}

/// Where a subschema leads.
#[derive(Debug)]
pub(super) struct SchemaEdge {
    pub(super) to: usize,
    pub(super) way: SchemaStep,
    /// How often it is asked there.
    pub(super) times: usize,
}

/// What of a value is asked there.
#[derive(Debug)]
pub(super) enum SchemaStep {
    Whole,
    Member(Box<str>),
    EachMember,
    EachName,
    Item(usize),
    EachItem,
}

impl Map {
    /// The map of `root`, and what is to be compiled in the place of that.
    ///
    /// # Errors
    /// When it has references that are not followed.
    pub(super) fn of(root: &Value) -> Result<(Self, Value), Unfollowed> {
        let names = SchemaNames::read(root)?;
        let mut survey = Survey::default();
        survey.node(names.root());
        let mut nodes = Vec::new();
        while let Some(schema) = survey.schemas.get(nodes.len()) {
            nodes.push(survey.read(&names, schema)?);
        }
        for index in survey.named {
            nodes[index].is_named = true;
        }
        if survey.references.bytes() > POINTERS_BYTES_MAX {
            return Err(Unfollowed::Long);
        }
        let said: usize = nodes.iter().map(|node| NODE_BYTES + node.bytes).sum();
        let programs = survey.patterns.len() * PROGRAM_BYTES;
        let lengths = survey.patterns.iter().map(|pattern| pattern.len());
        let map = Self {
            nodes,
            patterns: SchemaPatterns {
                count: survey.patterns.len(),
                bytes: lengths.clone().sum(),
                bytes_max: lengths.max().unwrap_or_default(),
                looks_max: survey
                    .patterns
                    .iter()
                    .map(|it| looks(it))
                    .max()
                    .unwrap_or(0),
            },
            references: survey.references.count(),
            longest: names.longest,
            copies: survey.copies,
            weight: said + programs + survey.copies + names.pointers,
        };
        Ok((map, names.without(root, &survey.references)))
    }
}

/// What was found on the way.
#[derive(Default)]
struct Survey<'a> {
    schemas: Vec<&'a Value>,
    /// Their indices.
    known: HashMap<*const Value, usize>,
    named: HashSet<usize>,
    patterns: HashSet<&'a str>,
    references: References,
    copies: usize,
}

impl<'a> Survey<'a> {
    /// The index of `schema`.
    fn node(&mut self, schema: &'a Value) -> usize {
        *self.known.entry(schema).or_insert_with(|| {
            self.schemas.push(schema);
            self.schemas.len() - 1
        })
    }

    fn read(
        &mut self,
        names: &SchemaNames<'a>,
        schema: &'a Value,
    ) -> Result<SchemaNode, Unfollowed> {
        let mut node = SchemaNode::default();
        let Value::Object(members) = schema else {
            node.faults = 1;
            return Ok(node);
        };
        let has = |keyword: &str| members.contains_key(keyword);
        let again = |does| if does { AGAIN } else { 1 };
        let whole = again(has("unevaluatedProperties") || has("unevaluatedItems"));
        let items = again(has("unevaluatedItems"));
        node.asks_again = whole == AGAIN;
        for (keyword, inner) in members {
            node.faults += 1;
            if let "$ref" | "$dynamicRef" | "$recursiveRef" = keyword.as_str() {
                self.refer(&mut node, names, schema, (keyword, inner, whole))?;
                continue;
            }
            let mut lead = |schema: &'a Value, way, times| {
                let to = self.node(schema);
                node.leads.push(SchemaEdge { to, way, times });
            };
            match keyword.as_str() {
                "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" => {
                    one_or_more(inner).for_each(|it| lead(it, SchemaStep::Whole, whole));
                    if keyword == "not" {
                        // A fault repeats it.
                        node.bytes += bytes(inner);
                        self.copies += bytes(inner);
                    }
                }
                "dependentSchemas" | "dependencies" => {
                    values(inner).for_each(|it| lead(it, SchemaStep::Whole, whole));
                    values(inner).for_each(|names| node.require(names));
                }
                "properties" => {
                    for (name, it) in inner.as_object().into_iter().flatten() {
                        lead(it, SchemaStep::Member(name.as_str().into()), 1);
                        node.names += 1;
                    }
                }
                "patternProperties" => {
                    values(inner).for_each(|it| lead(it, SchemaStep::EachMember, 1));
                    for pattern in inner.as_object().into_iter().flat_map(Members::keys) {
                        self.pattern(&mut node, pattern);
                    }
                }
                "additionalProperties" | "unevaluatedProperties" => {
                    lead(inner, SchemaStep::EachMember, 1);
                }
                "propertyNames" => lead(inner, SchemaStep::EachName, 1),
                "prefixItems" | "items" if inner.is_array() => {
                    let all = one_or_more(inner).enumerate();
                    all.for_each(|(index, it)| lead(it, SchemaStep::Item(index), 1));
                }
                "items" | "additionalItems" | "contains" | "unevaluatedItems" => {
                    lead(inner, SchemaStep::EachItem, items);
                }
                "pattern" => {
                    node.bytes += bytes(inner);
                    if let Some(pattern) = inner.as_str() {
                        self.pattern(&mut node, pattern);
                    }
                }
                _ => node.simple(keyword, inner),
            }
        }
        Ok(node)
    }

    fn pattern(&mut self, node: &mut SchemaNode, pattern: &'a str) {
        self.patterns.insert(pattern);
        node.scans += 1;
        node.looks += looks(pattern);
    }

    /// Takes in the reference that `keyword` makes in `schema`.
    fn refer(
        &mut self,
        node: &mut SchemaNode,
        names: &SchemaNames<'a>,
        schema: &'a Value,
        (keyword, reference, times): (&str, &Value, usize),
    ) -> Result<(), Unfollowed> {
        let written = reference.as_str().unwrap_or_default();
        let meaning = match keyword {
            // Of this a validator takes anything for `#`.
            "$recursiveRef" => names.recursive()?,
            _ if reference.is_string() => names.meaning(written, schema)?,
            _ => return Ok(()),
        };
        self.references.note(schema, written, &meaning)?;
        match meaning {
            Meaning::Part(part) => {
                let to = self.node(part.schema);
                self.named.insert(to);
                let way = SchemaStep::Whole;
                node.leads.push(SchemaEdge { to, way, times });
            }
            Meaning::JsonSchema => node.asks_for_a_schema = true,
        }
        Ok(())
    }
}

impl SchemaNode {
    /// Takes in what leads nowhere.
    fn simple(&mut self, keyword: &str, said: &Value) {
        match keyword {
            "$defs" | "definitions" | "title" | "description" | "examples" | "default"
            | "$comment" => return,
            "required" => return self.require(said),
            "dependentRequired" => return values(said).for_each(|names| self.require(names)),
            "enum" => self.compares += one_or_more(said).count(),
            "const" | "uniqueItems" => self.compares += 1,
            "format" | "minLength" | "maxLength" | "contentEncoding" | "contentMediaType" => {
                self.scans += 1;
            }
            _ => {}
        }
        self.bytes += bytes(said);
    }

    /// Counts `names`, if they are: each that is not there is a fault.
    fn require(&mut self, names: &Value) {
        self.bytes += bytes(names);
        self.faults += names.as_array().map_or(0, Vec::len);
    }
}

/// How many groups of `pattern` look around or back, for which one may have to go back in a text.
fn looks(pattern: &str) -> usize {
    let around = ["(?=", "(?!", "(?<", "(?>", "\\k"];
    let around: usize = around.iter().map(|it| pattern.matches(it).count()).sum();
    let pairs = pattern.as_bytes().array_windows();
    let back = pairs.filter(|[slash, digit]| *slash == b'\\' && matches!(digit, b'1'..=b'9'));
    around + back.count()
}

/// What `value` takes in memory.
pub(super) fn bytes(value: &Value) -> usize {
    let inner: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(members) => {
            let member = |(name, it): (&String, &Value)| MEMBER_BYTES + name.len() + bytes(it);
            let members: usize = members.iter().map(member).sum();
            if members == 0 {
                0
            } else {
                OBJECT_BYTES + members
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE_BYTES + inner
}

/// The items of an array, or what is none itself.
fn one_or_more(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    items.iter()
}

/// The values of the members of an object.
fn values(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_object().into_iter().flat_map(Members::values)
}
