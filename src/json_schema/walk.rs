//! How far it leads to ask a schema about a value.
//!
//! The walk goes wherever a validator of any draft may go, and knows less: it takes every alternative,
//! and every reference to all that it may mean. So it finds no less than a validator does, but for the
//! documents of JSON Schema itself, which are harmless and known to the validator alone.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map as Members, Value};

/// Subschemas that a question may lead through, each counted as often as it does.
pub(crate) const VISITS_MAX: usize = 1 << 22;

/// How deep within one another those may be.
pub(crate) const LEVELS_MAX: usize = 4096;

/// Where the documents of JSON Schema itself are.
const JSON_SCHEMA: &str = "json-schema.org/";

/// A schema leads further than anybody goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum TooFar {
    #[error("its references lead more than {LEVELS_MAX} deep, or in a circle")]
    Levels,
    #[error("its references lead through more than {VISITS_MAX} subschemas")]
    Visits,
}

/// A schema and where its references lead.
#[derive(Debug)]
pub(super) struct Map {
    root: Value,
    names: Names,
}

/// What a schema calls its parts, and what else it has.
#[derive(Debug, Default)]
struct Names {
    /// Where subschemas with an identifier of their own stand, as JSON pointers: a reference counts
    /// from the one it is in, which the walk does not keep in mind. The whole is not among them.
    resources: Vec<String>,
    /// The same of subschemas with a name.
    anchors: HashMap<String, Vec<String>>,
    patterns: usize,
    /// Whether something refers to the documents of JSON Schema itself.
    refers_to_json_schema: bool,
    /// Whether a part is called like one of those.
    is_json_schema: bool,
}

/// How far walks came.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Walked {
    pub(super) visits: usize,
    /// The most of them that were within one another.
    pub(super) levels: usize,
}

/// A subschema that is asked, about a value where there is one.
#[derive(Clone, Copy)]
struct Visit<'a> {
    schema: &'a Value,
    value: Option<&'a Value>,
    level: usize,
}

/// What is still to be visited.
#[derive(Default)]
struct Open<'a> {
    visits: Vec<Visit<'a>>,
    walked: Walked,
}

impl Map {
    /// Reads `root`, and finds out how far each of its parts leads without going into a value.
    pub(super) fn of(root: Value) -> Result<Self, TooFar> {
        let mut names = Names::default();
        each_part(&root, &mut String::new(), &mut |part, pointer| {
            names.learn(part, pointer);
            Ok(())
        })?;
        let map = Self { root, names };
        let mut known = HashMap::new();
        each_part(&map.root, &mut String::new(), &mut |part, _| {
            map.survey(part, &mut known)
        })?;
        Ok(map)
    }

    pub(super) fn root(&self) -> &Value {
        &self.root
    }

    pub(super) fn patterns(&self) -> usize {
        self.names.patterns
    }

    /// Whether some of its references lead to documents that are not in it.
    pub(super) fn leads_elsewhere(&self) -> bool {
        self.names.leads_elsewhere()
    }

    /// How far it leads to ask about `value`.
    pub(super) fn walk(&self, value: &Value) -> Result<Walked, TooFar> {
        let mut open = Open::default();
        open.visit(&self.root, Some(value), 1)?;
        self.go_on(&mut open)?;
        Ok(open.walked)
    }

    /// Goes on to whatever is open.
    fn go_on<'a>(&'a self, open: &mut Open<'a>) -> Result<(), TooFar> {
        while let Some(visit) = open.visits.pop() {
            let Visit {
                schema,
                value,
                level,
            } = visit;
            for next in self.in_place(schema) {
                open.visit(next, value, level + 1)?;
            }
            let (Some(value), Value::Object(members)) = (value, schema) else {
                continue;
            };
            for (keyword, inner) in members {
                open.inside(keyword, inner, value, level + 1)?;
            }
        }
        Ok(())
    }

    /// Finds out how far `schema` leads in place, as `known` may have it. What is open there has been
    /// entered, so that whoever comes to it has gone in a circle.
    fn survey<'a>(
        &'a self,
        schema: &'a Value,
        known: &mut HashMap<*const Value, Option<Walked>>,
    ) -> Result<(), TooFar> {
        let mut open = vec![(schema, None)];
        while let Some((schema, next)) = open.pop() {
            let Some(next): Option<Vec<&Value>> = next else {
                match known.get(&std::ptr::from_ref(schema)) {
                    Some(Some(_)) => continue,
                    Some(None) => return Err(TooFar::Levels),
                    None => {}
                }
                known.insert(schema, None);
                let next = self.in_place(schema);
                open.push((schema, Some(next.clone())));
                open.extend(next.into_iter().map(|next| (next, None)));
                continue;
            };
            let mut walked = Walked::default();
            for next in next {
                let further = known.get(&std::ptr::from_ref(next)).copied().flatten();
                walked.add(further.expect("it was left before"));
            }
            walked.visit(walked.levels + 1)?;
            known.insert(schema, Some(walked));
        }
        Ok(())
    }

    /// What `schema` asks about the value that it is asked about itself, each as often as it does.
    fn in_place<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let mut next = Vec::new();
        let Value::Object(members) = schema else {
            return next;
        };
        for (keyword, inner) in members {
            match keyword.as_str() {
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    next.extend(self.targets(inner.as_str().unwrap_or_default()));
                }
                "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" => {
                    next.extend(one_or_more(inner));
                }
                "dependentSchemas" | "dependencies" => {
                    next.extend(inner.as_object().into_iter().flat_map(Members::values));
                }
                _ => {}
            }
        }
        // What nothing has evaluated is found by asking all others again.
        let asks_again = ["unevaluatedProperties", "unevaluatedItems"];
        if asks_again
            .iter()
            .any(|keyword| members.contains_key(*keyword))
        {
            next.extend_from_within(..);
        }
        next
    }

    /// All that `reference` may mean.
    fn targets(&self, reference: &str) -> Vec<&Value> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if document.contains(JSON_SCHEMA) && self.leads_elsewhere() {
            return Vec::new();
        }
        let fragment = percent_decode_str(fragment).decode_utf8_lossy();
        let at = |pointer: &String| self.root.pointer(pointer);
        if fragment.is_empty() || fragment.starts_with('/') {
            let resources = self.names.resources.iter().filter_map(at);
            return std::iter::once(&self.root)
                .chain(resources)
                .filter_map(|resource| resource.pointer(&fragment))
                .collect();
        }
        let named = self.names.anchors.get(&*fragment);
        named.into_iter().flatten().filter_map(at).collect()
    }
}

impl Names {
    /// Takes in what `part`, which is at `pointer`, is called and what it refers to.
    fn learn(&mut self, part: &Value, pointer: &str) {
        for (keyword, value) in part.as_object().into_iter().flatten() {
            if let ("patternProperties", Value::Object(patterns)) = (keyword.as_str(), value) {
                self.patterns += patterns.len();
            }
            let Some(text) = value.as_str() else {
                continue;
            };
            match keyword.as_str() {
                "pattern" => self.patterns += 1,
                "$id" | "id" => {
                    let (document, name) = text.split_once('#').unwrap_or((text, ""));
                    self.is_json_schema |= document.contains(JSON_SCHEMA);
                    if !pointer.is_empty() {
                        self.resources.push(pointer.to_owned());
                    }
                    self.name(name, pointer);
                }
                "$anchor" | "$dynamicAnchor" => self.name(text, pointer),
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    self.refers_to_json_schema |= text.contains(JSON_SCHEMA);
                }
                _ => {}
            }
        }
    }

    fn name(&mut self, name: &str, pointer: &str) {
        let places = self.anchors.entry(name.to_owned()).or_default();
        places.push(pointer.to_owned());
    }

    fn leads_elsewhere(&self) -> bool {
        self.refers_to_json_schema && !self.is_json_schema
    }
}

impl Walked {
    fn visit(&mut self, level: usize) -> Result<(), TooFar> {
        self.visits += 1;
        self.levels = self.levels.max(level);
        if self.visits > VISITS_MAX {
            return Err(TooFar::Visits);
        }
        if self.levels > LEVELS_MAX {
            return Err(TooFar::Levels);
        }
        Ok(())
    }

    fn add(&mut self, other: Self) {
        self.visits = self.visits.saturating_add(other.visits);
        self.levels = self.levels.max(other.levels);
    }
}

impl<'a> Open<'a> {
    fn visit(
        &mut self,
        schema: &'a Value,
        value: Option<&'a Value>,
        level: usize,
    ) -> Result<(), TooFar> {
        self.walked.visit(level)?;
        self.visits.push(Visit {
            schema,
            value,
            level,
        });
        Ok(())
    }

    /// Opens what `keyword` asks about the members or items of `value`.
    fn inside(
        &mut self,
        keyword: &str,
        inner: &'a Value,
        value: &'a Value,
        level: usize,
    ) -> Result<(), TooFar> {
        match (keyword, value) {
            ("properties", Value::Object(members)) => {
                let schemas = inner.as_object().into_iter().flatten();
                for (name, schema) in schemas {
                    if let Some(member) = members.get(name) {
                        self.visit(schema, Some(member), level)?;
                    }
                }
            }
            ("patternProperties", Value::Object(members)) => {
                for schema in inner.as_object().into_iter().flat_map(Members::values) {
                    self.each(schema, members.values(), level)?;
                }
            }
            ("propertyNames", Value::Object(members)) => {
                let names = std::iter::repeat_n(&Value::Null, members.len());
                self.each(inner, names, level)?;
            }
            ("additionalProperties" | "unevaluatedProperties", Value::Object(members)) => {
                self.each(inner, members.values(), level)?;
            }
            ("prefixItems" | "items", Value::Array(items)) if inner.is_array() => {
                for (schema, item) in one_or_more(inner).zip(items) {
                    self.visit(schema, Some(item), level)?;
                }
            }
            (
                "items" | "additionalItems" | "contains" | "unevaluatedItems",
                Value::Array(items),
            ) => {
                self.each(inner, items, level)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn each(
        &mut self,
        schema: &'a Value,
        values: impl IntoIterator<Item = &'a Value>,
        level: usize,
    ) -> Result<(), TooFar> {
        values
            .into_iter()
            .try_for_each(|value| self.visit(schema, Some(value), level))
    }
}

/// The items of an array, or what is none itself.
fn one_or_more(value: &Value) -> impl Iterator<Item = &Value> {
    let items = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    items.iter()
}

/// Calls `of` with `value` and every part of it, and where that stands, as a JSON pointer.
fn each_part<'a>(
    value: &'a Value,
    pointer: &mut String,
    of: &mut impl FnMut(&'a Value, &str) -> Result<(), TooFar>,
) -> Result<(), TooFar> {
    let length = pointer.len();
    of(value, pointer)?;
    match value {
        Value::Object(members) => {
            for (name, inner) in members {
                pointer.push('/');
                pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
                each_part(inner, pointer, of)?;
                pointer.truncate(length);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                pointer.push('/');
                pointer.push_str(&index.to_string());
                each_part(inner, pointer, of)?;
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}
