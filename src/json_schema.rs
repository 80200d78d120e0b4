//! JSON Schemas that servers wrote, compiled and asked without trust.
//!
//! References make a short schema long: they lead in circles, follow one another by the thousand, or
//! fan out until thirty of them make a billion. Who asks such a schema runs out of stack, which ends
//! the process, or out of memory or time. So how far a question leads is found out first, by a
//! [`walk`] that takes no stack and only so many steps; what leads too far is not asked. What leads
//! far is asked on a thread with room for it.
//!
//! Schemas are JSON Schema 2020-12 unless `$schema` names another draft. Nothing is fetched: what
//! refers to documents elsewhere cannot be used.

mod walk;

use std::{
    io,
    panic::resume_unwind,
    thread::{self, Builder},
};

use jsonschema::{PatternOptions, ValidationError};
use serde_json::Value;

use walk::Map;
pub(crate) use walk::TooFar;

/// Bytes of a schema that is compiled.
pub(crate) const SCHEMA_BYTES_MAX: usize = 1 << 20;

/// Bytes of what a schema or its faults are said to be, here and in `/status`: a schema may list any
/// number of values.
pub(crate) const REASON_BYTES_MAX: usize = 300;

/// A question that leads through more subschemas is answered by yes or no alone: all faults are
/// collected before the first can be told, and there may be one in each.
pub(crate) const TOLD_VISITS_MAX: usize = 1 << 18;

/// Levels of subschemas for which a thread has room beside what it does otherwise.
const LEVELS_AT_HAND: usize = 64;

/// Stack that a level of subschemas takes at most, with a build that is not optimised.
const LEVEL_BYTES: usize = 16 << 10;

/// Patterns of a schema that is compiled, and bytes that each of them may take, of its program and of
/// what is kept while it runs: a short pattern may have a long program.
pub(crate) const PATTERNS_MAX: usize = 256;
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Whether `format` says anything of a value. By JSON Schema 2020-12 it is an annotation; clients'
/// SDKs check it in results.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Formats {
    Annotations,
    Checked,
}

/// A compiled schema.
#[derive(Debug)]
pub(crate) struct Schema {
    map: Map,
    validator: jsonschema::Validator,
}

/// Why a schema cannot be used; the fault is its server's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it has {0} bytes, {SCHEMA_BYTES_MAX} are read")]
    Large(usize),
    #[error("it has {0} patterns, {PATTERNS_MAX} are compiled")]
    Patterns(usize),
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    TooFar(#[from] TooFar),
    /// It is no schema, or refers to what is not there.
    #[error("{0}")]
    Invalid(String),
    #[error("there is no thread to compile it: {0}")]
    Thread(#[from] io::Error),
}

/// A value that may be put to a schema, since that does not lead too far.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    schema: &'a Schema,
    value: &'a Value,
    /// How many subschemas it leads through, each counted as often as it does.
    visits: usize,
    levels: usize,
}

impl Schema {
    /// Compiles `source`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(crate) fn compile(source: &[u8], formats: Formats) -> Result<Self, Unusable> {
        if source.len() > SCHEMA_BYTES_MAX {
            return Err(Unusable::Large(source.len()));
        }
        let map = Map::of(serde_json::from_slice(source)?)?;
        if map.patterns() > PATTERNS_MAX {
            return Err(Unusable::Patterns(map.patterns()));
        }
        let build = || build(map.root(), formats);
        let validator = on_a_thread(build)??;
        Ok(Self { map, validator })
    }

    /// Finds out how far it leads to ask whether `value` is as the schema says.
    ///
    /// # Errors
    /// When that is too far.
    pub(crate) fn question<'a>(&'a self, value: &'a Value) -> Result<Question<'a>, TooFar> {
        let walked = self.map.walk(value)?;
        Ok(Question {
            schema: self,
            value,
            visits: walked.visits,
            levels: walked.levels,
        })
    }
}

impl<'a> Question<'a> {
    /// Whether the value is as the schema says; what cannot be asked is not.
    pub(crate) fn is_valid(&self) -> bool {
        self.ask(|| self.schema.validator.is_valid(self.value))
            .unwrap_or_else(|error| {
                tracing::error!(%error, "there is no thread to ask a schema");
                false
            })
    }

    /// The first `max` faults that are wanted; `None` where the value has some, but too many may have
    /// to be collected.
    pub(crate) fn faults(
        &self,
        is_wanted: impl Fn(&ValidationError<'_>) -> bool + Send,
        max: usize,
    ) -> Option<Vec<ValidationError<'a>>> {
        if self.visits > TOLD_VISITS_MAX {
            return self.is_valid().then(Vec::new);
        }
        let faults = || self.schema.validator.iter_errors(self.value);
        self.ask(|| faults().filter(is_wanted).take(max).collect())
            .inspect_err(|error| tracing::error!(%error, "there is no thread to ask a schema"))
            .ok()
    }

    fn ask<T: Send>(&self, ask: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.levels <= LEVELS_AT_HAND && !self.schema.map.leads_elsewhere() {
            return Ok(ask());
        }
        on_a_thread(ask)
    }
}

/// Does `work` where there is stack for all levels that a walk allows.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let builder = Builder::new().name("schema".to_owned());
    let builder = builder.stack_size(walk::LEVELS_MAX * LEVEL_BYTES);
    thread::scope(|scope| {
        let done = builder.spawn_scoped(scope, work)?.join();
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn build(schema: &Value, formats: Formats) -> Result<jsonschema::Validator, Unusable> {
    let options = || {
        let is_checked = formats == Formats::Checked;
        jsonschema::options().should_validate_formats(is_checked)
    };
    // The linear engine first; it lacks look-around and back references, which few need.
    let linear = PatternOptions::regex()
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX);
    let validator = options().with_pattern_options(linear).build(schema);
    let validator = validator.or_else(|_| {
        let other = PatternOptions::fancy_regex()
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX);
        options().with_pattern_options(other).build(schema)
    });
    validator.map_err(|error| Unusable::Invalid(shortened(error.masked().to_string())))
}

/// `text` up to [`REASON_BYTES_MAX`].
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
