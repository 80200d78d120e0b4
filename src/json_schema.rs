//! JSON Schemas that servers wrote, compiled and asked without trust.
//!
//! References make a short schema long: they lead in circles, follow one another by the thousand, or
//! fan out until thirty of them make a billion. Who asks such a schema runs out of stack, which ends
//! the process, or out of memory or time. So a schema is read as a [`map`] of where it leads, of which
//! all is known, and compiled without its names ([`names`]). How far a
//! question leads is found out first, by a [`walk`] on that map; what leads too far is not asked. What
//! leads far is asked on a thread with room for it.
//!
//! Schemas are JSON Schema 2020-12 unless `$schema` names another draft. Nothing is fetched: what
//! refers to documents elsewhere cannot be used.

mod map;
mod names;
mod walk;

use std::{
    io,
    panic::resume_unwind,
    thread::{self, Builder},
};

use jsonschema::{PatternOptions, ValidationError, error::ValidationErrorKind};
use serde_json::Value;

use map::{Map, SchemaPatterns};
pub(crate) use names::Unfollowed;
pub(crate) use walk::TooFar;
use walk::Walked;

/// Bytes of a schema that is compiled.
pub(crate) const SCHEMA_BYTES_MAX: usize = 1 << 20;

/// What the schemas that are kept of one server, or of all for what they answer, may take in memory;
/// beyond it they are compiled anew.
pub(crate) const KEPT_BYTES_MAX: usize = 256 << 20;

/// Bytes of what a schema or its faults are said to be, here and in `/status`: a schema may list any
/// number of values.
pub(crate) const REASON_BYTES_MAX: usize = 300;

/// Bytes of the faults that a question may have. All are collected before the first can be told, so
/// one that may have more is answered by yes or no alone.
pub(crate) const FAULTS_BYTES_MAX: usize = 32 << 20;

/// Bytes of a fault beside the paths and values that it keeps.
const FAULT_BYTES: usize = 512;

/// Levels of subschemas for which a thread has room beside what it does otherwise.
const LEVELS_AT_HAND: usize = 64;

/// Stack that a level of subschemas takes at most, with a build that is not optimised.
const LEVEL_BYTES: usize = 16 << 10;

/// Patterns of a schema that is compiled.
pub(crate) const PATTERNS_MAX: usize = 256;

/// Bytes of a pattern that is compiled, and of all of them: that takes time by their square.
pub(crate) const PATTERN_TEXT_MAX: usize = 4 << 10;
const PATTERNS_TEXT_MAX: usize = 32 << 10;

/// Bytes of subschemas that a validator keeps beside what is compiled of them: what is below `not`.
const COPIES_BYTES_MAX: usize = 8 << 20;

/// Bytes that all patterns of a schema may take, of their programs and of what is kept while they run:
/// a short pattern may have a long program.
const PATTERNS_BYTES_MAX: usize = 64 << 20;

/// The same of one of them, where there are few.
const PATTERN_BYTES_MAX: usize = 10 << 20;

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
    /// There until it is dropped.
    validator: Option<jsonschema::Validator>,
}

/// Why a schema cannot be used; the fault is its server's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaFault {
    #[error("it has {0} bytes, {SCHEMA_BYTES_MAX} are read")]
    Large(usize),
    #[error("it has {0} patterns, {PATTERNS_MAX} are compiled")]
    Patterns(usize),
    #[error(
        "its patterns have {0} bytes, {PATTERNS_TEXT_MAX} are compiled, {PATTERN_TEXT_MAX} of each"
    )]
    Long(usize),
    #[error("what it says must not be has more than {COPIES_BYTES_MAX} bytes")]
    Copies,
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Unfollowed(#[from] Unfollowed),
    #[error(transparent)]
    TooFar(#[from] TooFar),
    /// It is no pattern, or a large one.
    #[error("{reason}, or takes more than {bytes} bytes")]
    Pattern { reason: String, bytes: usize },
    /// It is no schema, or refers to what is not there.
    #[error("{0}")]
    Invalid(String),
    #[error("there is no thread to compile it: {0}")]
    Thread(#[from] io::Error),
}

/// A value that may be put to a schema, since that does not lead too far.
#[derive(Debug)]
pub(crate) struct SchemaQuestion<'a> {
    schema: &'a Schema,
    value: &'a Value,
    walked: Walked,
}

impl Schema {
    /// Compiles `source`.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(crate) fn compile(source: &[u8], formats: Formats) -> Result<Self, SchemaFault> {
        if source.len() > SCHEMA_BYTES_MAX {
            return Err(SchemaFault::Large(source.len()));
        }
        let root = serde_json::from_slice(source)?;
        on_a_thread(|| {
            let (map, written) = Map::of(&root)?;
            map.survey()?;
            if map.copies > COPIES_BYTES_MAX {
                return Err(SchemaFault::Copies);
            }
            check_patterns(&map.patterns)?;
            let validator = Some(build(&written, &map.patterns, formats)?);
            Ok(Self { map, validator })
        })?
    }

    /// Finds out how far it leads to ask whether `value` is as the schema says.
    ///
    /// # Errors
    /// When that is too far.
    pub(crate) fn question<'a>(&'a self, value: &'a Value) -> Result<SchemaQuestion<'a>, TooFar> {
        let walk = |levels| self.map.walk(value, levels);
        let walked = match walk(LEVELS_AT_HAND) {
            Err(TooFar::Levels) => on_a_thread(|| walk(walk::LEVELS_MAX))
                .inspect_err(|error| tracing::error!(%error, "there is no thread to ask a schema"))
                .unwrap_or(Err(TooFar::Levels)),
            walked => walked,
        };
        Ok(SchemaQuestion {
            schema: self,
            value,
            walked: walked?,
        })
    }

    /// What it takes in memory, roughly, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.map.weight
    }

    fn validator(&self) -> &jsonschema::Validator {
        self.validator.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Schema {
    /// What references lead to may own one another: it is dropped where there is stack for all of it.
    fn drop(&mut self) {
        if self.map.references <= LEVELS_AT_HAND {
            return;
        }
        let dropped = on_a_thread(|| drop(self.validator.take()));
        if let Err(error) = dropped {
            tracing::error!(%error, "there is no thread to drop a schema");
            std::mem::forget(self.validator.take());
        }
    }
}

impl<'a> SchemaQuestion<'a> {
    /// Whether the value is as the schema says; what cannot be asked is not.
    pub(crate) fn is_valid(&self) -> bool {
        self.ask(|| self.schema.validator().is_valid(self.value))
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
        if self.faults_bytes() > FAULTS_BYTES_MAX {
            return self.is_valid().then(Vec::new);
        }
        let faults = || self.schema.validator().iter_errors(self.value);
        self.ask(|| faults().filter(is_wanted).take(max).collect())
            .inspect_err(|error| tracing::error!(%error, "there is no thread to ask a schema"))
            .ok()
    }

    /// What all faults may take. Each keeps the way through the schema to it and the way into the value,
    /// and where there are alternatives also what stands there.
    fn faults_bytes(&self) -> usize {
        let way = self.walked.levels * self.schema.map.longest;
        let each = FAULT_BYTES + way + map::bytes(self.value);
        let all = self.walked.faults.saturating_mul(each);
        all.saturating_add(self.walked.bytes)
    }

    fn ask<T: Send>(&self, ask: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.walked.levels <= LEVELS_AT_HAND {
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

fn check_patterns(patterns: &SchemaPatterns) -> Result<(), SchemaFault> {
    if patterns.count > PATTERNS_MAX {
        return Err(SchemaFault::Patterns(patterns.count));
    }
    if patterns.bytes > PATTERNS_TEXT_MAX || patterns.bytes_max > PATTERN_TEXT_MAX {
        return Err(SchemaFault::Long(patterns.bytes));
    }
    Ok(())
}

fn build(
    schema: &Value,
    patterns: &SchemaPatterns,
    formats: Formats,
) -> Result<jsonschema::Validator, SchemaFault> {
    let programs = patterns.count.max(1) * (1 + patterns.looks_max);
    let bytes = (PATTERNS_BYTES_MAX / programs).min(PATTERN_BYTES_MAX);
    let options = || {
        let is_checked = formats == Formats::Checked;
        jsonschema::options().should_validate_formats(is_checked)
    };
    // The linear engine first; it lacks look-around and back references, which few need.
    let linear = PatternOptions::regex()
        .size_limit(bytes)
        .dfa_size_limit(bytes);
    let is_of_pattern = |error: &ValidationError<'_>| matches!(error.kind(), ValidationErrorKind::Format { format } if format == "regex");
    let validator = match options().with_pattern_options(linear).build(schema) {
        Err(error) if is_of_pattern(&error) => {
            let other = PatternOptions::fancy_regex()
                .size_limit(bytes)
                .dfa_size_limit(bytes);
            options().with_pattern_options(other).build(schema)
        }
        validator => validator,
    };
    validator.map_err(|error| {
        let reason = shortened(error.masked().to_string());
        if is_of_pattern(&error) {
            return SchemaFault::Pattern { reason, bytes };
        }
        SchemaFault::Invalid(reason)
    })
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
