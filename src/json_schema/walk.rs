//! How far it leads to ask a schema about a value.
//!
//! A validator goes through all that a schema leads to, as often as it does, and stops where it knows
//! enough. The walk counts the same, but goes through what references lead to once for each value: so
//! it is soon done also where the validator would not be. It takes every alternative, and so finds no
//! less than a validator does.

use std::{
    collections::{HashMap, hash_map::Entry},
    ptr,
};

use serde_json::Value;

use super::map::{Map, SchemaEdge, SchemaNode, SchemaStep};

/// Subschemas that a question may lead through, each counted as often as it does. Where one goes through
/// a text, or compares a value with others, it counts as more.
pub(crate) const VISITS_MAX: usize = 1 << 24;

/// The same of all that look for what nothing has evaluated, without going into a value, and the names
/// of members there: a validator keeps each of them.
pub(crate) const UNEVALUATED_MAX: usize = 1 << 16;

/// Steps of a walk.
pub(crate) const STEPS_MAX: usize = 1 << 22;

/// How deep subschemas may be within one another.
pub(crate) const LEVELS_MAX: usize = 4096;

/// What a walk keeps of what it has been through; it takes more steps where that is more.
const KNOWN_MAX: usize = 1 << 18;

/// What the documents of JSON Schema lead through for each part of a value, and levels for each of it.
const VISITS_OF_JSON_SCHEMA: usize = 64;
const LEVELS_OF_JSON_SCHEMA: usize = 8;

/// A schema leads further than anybody goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum TooFar {
    #[error("its references lead in a circle")]
    Circle,
    #[error("its references lead more than {LEVELS_MAX} deep")]
    Levels,
    #[error("its references lead through more than {VISITS_MAX} subschemas")]
    Visits,
    #[error("it takes more than {STEPS_MAX} steps to see how far it leads")]
    Steps,
    #[error("what is `unevaluated` leads through more than {UNEVALUATED_MAX} subschemas")]
    Unevaluated,
}

/// How far a walk came.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Walked {
    pub(super) visits: usize,
    /// The most of them that were within one another.
    pub(super) levels: usize,
    /// Faults that may be found, and bytes of what the schema says there.
    pub(super) faults: usize,
    pub(super) bytes: usize,
    /// Names of members that the subschemas know.
    names: usize,
}

/// A subschema, and a value that it is asked about.
type VisitKey = (usize, *const Value);

/// Bytes of a text that are gone through, and steps back in it, in the time of a visit.
const SCANNED: usize = 16;
const GONE_BACK: usize = 64;

struct SchemaWalk<'m> {
    map: &'m Map,
    /// `None` while it is gone through.
    known: HashMap<VisitKey, Option<Walked>>,
    steps: usize,
    levels_max: usize,
}

impl Map {
    /// Finds out how far each part leads without going into a value.
    ///
    /// # Errors
    /// When that is too far.
    pub(super) fn survey(&self) -> Result<(), TooFar> {
        let mut walk = SchemaWalk::new(self, LEVELS_MAX);
        let mut unevaluated: usize = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            let walked = walk.visit(index, None, 1)?;
            if node.asks_again {
                unevaluated += walked.visits + walked.names;
            }
            if unevaluated > UNEVALUATED_MAX {
                return Err(TooFar::Unevaluated);
            }
        }
        Ok(())
    }

    /// How far it leads to ask about `value`, through no more than `levels_max`.
    ///
    /// # Errors
    /// When that is too far.
    pub(super) fn walk(&self, value: &Value, levels_max: usize) -> Result<Walked, TooFar> {
        let mut walk = SchemaWalk::new(self, levels_max);
        walk.visit(0, Some(value), 1)
    }
}

impl<'m> SchemaWalk<'m> {
    fn new(map: &'m Map, levels_max: usize) -> Self {
        Self {
            map,
            known: HashMap::new(),
            steps: 0,
            levels_max,
        }
    }

    /// Goes through the subschema `index` and all that it leads to.
    fn visit(
        &mut self,
        index: usize,
        value: Option<&Value>,
        level: usize,
    ) -> Result<Walked, TooFar> {
        self.step(1)?;
        let node = &self.map.nodes[index];
        let key = (index, value.map_or(ptr::null(), ptr::from_ref));
        let is_kept = value.is_none() || (node.is_named && self.known.len() < KNOWN_MAX);
        if is_kept {
            match self.known.entry(key) {
                Entry::Vacant(entry) => _ = entry.insert(None),
                Entry::Occupied(entry) => {
                    let walked = entry.get().ok_or(TooFar::Circle)?;
                    return self.is_within(level, walked);
                }
            }
        }
        let mut walked = self.is_within(level, Walked::of(node, value))?;
        if node.asks_for_a_schema {
            walked.add(self.schema(value, level)?, 1);
        }
        for lead in &node.leads {
            self.follow(lead, value, level + 1, &mut walked)?;
        }
        if walked.visits > VISITS_MAX {
            return Err(TooFar::Visits);
        }
        if is_kept {
            self.known.insert(key, Some(walked));
        }
        Ok(walked)
    }

    /// Goes where `lead` leads.
    fn follow(
        &mut self,
        lead: &SchemaEdge,
        value: Option<&Value>,
        level: usize,
        walked: &mut Walked,
    ) -> Result<(), TooFar> {
        let SchemaEdge { to, way, times } = lead;
        let mut visit = |value: Option<&Value>, each: usize| {
            walked.add(self.visit(*to, value, level)?, times * each);
            Ok(())
        };
        match (way, value) {
            (SchemaStep::Whole, value) => visit(value, 1)?,
            (SchemaStep::Member(name), Some(Value::Object(members))) => {
                if let Some(member) = members.get(&**name) {
                    visit(Some(member), 1)?;
                }
            }
            (SchemaStep::EachMember, Some(Value::Object(members))) => {
                members.values().try_for_each(|it| visit(Some(it), 1))?;
            }
            (SchemaStep::EachName, Some(Value::Object(members))) if !members.is_empty() => {
                // Names are no values here: what goes through them counts with each.
                visit(None, members.keys().map(|name| 1 + scan(name, 1, 1)).sum())?;
            }
            (SchemaStep::Item(index), Some(Value::Array(items))) => {
                if let Some(item) = items.get(*index) {
                    visit(Some(item), 1)?;
                }
            }
            (SchemaStep::EachItem, Some(Value::Array(items))) => {
                items.iter().try_for_each(|it| visit(Some(it), 1))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a value for a schema.
    fn schema(&mut self, value: Option<&Value>, level: usize) -> Result<Walked, TooFar> {
        let (parts, depth) = value.map_or((1, 1), extent);
        self.step(parts)?;
        let walked = Walked {
            visits: parts.saturating_mul(VISITS_OF_JSON_SCHEMA),
            levels: depth * LEVELS_OF_JSON_SCHEMA,
            // What those may find is not known here.
            faults: usize::MAX,
            ..Walked::default()
        };
        self.is_within(level, walked)
    }

    fn step(&mut self, steps: usize) -> Result<(), TooFar> {
        self.steps += steps;
        if self.steps > STEPS_MAX {
            return Err(TooFar::Steps);
        }
        Ok(())
    }

    /// Hands `walked` on where there is room for its levels.
    fn is_within(&self, level: usize, walked: Walked) -> Result<Walked, TooFar> {
        if level - 1 + walked.levels > self.levels_max {
            return Err(TooFar::Levels);
        }
        Ok(walked)
    }
}

/// How many visits it takes to go through `text`, `scans` times, and back in it `looks` times.
fn scan(text: &str, scans: usize, looks: usize) -> usize {
    let length = text.len();
    let back = length.saturating_mul(length) / GONE_BACK;
    (scans * length / SCANNED).saturating_add(looks.saturating_mul(back))
}

impl Walked {
    /// What `node` alone says of `value`.
    fn of(node: &SchemaNode, value: Option<&Value>) -> Self {
        let SchemaNode {
            scans,
            looks,
            compares,
            ..
        } = *node;
        let more = match value {
            Some(Value::String(text)) => scan(text, scans, looks) + compares / SCANNED,
            Some(Value::Object(members)) if scans > 0 => {
                let names = members.keys().map(|name| scan(name, scans, looks));
                names.fold(compares, usize::saturating_add)
            }
            Some(Value::Array(items)) => compares.saturating_mul(1 + items.len() / SCANNED),
            _ => compares,
        };
        Self {
            visits: more.saturating_add(1),
            levels: 1,
            faults: node.faults,
            bytes: node.bytes,
            names: node.names,
        }
    }

    /// Takes in what was led to, as often as it was.
    fn add(&mut self, inner: Self, times: usize) {
        let sum = |sum: &mut usize, more: usize| {
            *sum = sum.saturating_add(more.saturating_mul(times));
        };
        sum(&mut self.visits, inner.visits);
        sum(&mut self.faults, inner.faults);
        sum(&mut self.bytes, inner.bytes);
        sum(&mut self.names, inner.names);
        self.levels = self.levels.max(inner.levels + 1);
    }
}

/// The parts of `value`, and how deep they are within one another.
fn extent(value: &Value) -> (usize, usize) {
    let inner = |(parts, depth): (usize, usize), inner: &Value| {
        let (more, deeper) = extent(inner);
        (parts + more, depth.max(deeper + 1))
    };
    match value {
        Value::Array(items) => items.iter().fold((1, 1), inner),
        Value::Object(members) => members.values().fold((1, 1), inner),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (1, 1),
    }
}
