//! JSON Schemas that servers wrote, compiled and asked without trust.
//!
//! References make a short schema long: they lead in circles, follow one another by the thousand, or
//! fan out until thirty of them make a billion. So a schema is compiled without references: [`expand`]
//! puts what they refer to in their place, and only a schema that is small enough then is used. A
//! schema that refers to itself or to another document, by a name or dynamically, is not. How long a
//! question takes is known from the sizes of the schema and the value.
//!
//! Schemas are JSON Schema 2020-12 unless `$schema` names another draft. Nothing is fetched.

mod client_rules;
mod expand;

use jsonschema::{PatternOptions, ValidationError, error::ValidationErrorKind};
use serde_json::{Map, Value};

pub(crate) use client_rules::{RootId, SERVER_PATTERNS_MAX, check_for_clients};
use expand::{Expanded, SchemaPatterns, parts};

/// Bytes of a schema that is compiled.
pub(crate) const SCHEMA_BYTES_MAX: usize = 1 << 20;

/// What the schemas that are kept of one server, or of all for what they answer, may take in memory;
/// beyond it they are compiled anew.
pub(crate) const KEPT_BYTES_MAX: usize = 256 << 20;

/// Bytes of what a schema or its faults are said to be, here and in `/status`: a schema may list any
/// number of values.
pub(crate) const REASON_BYTES_MAX: usize = 300;

/// Parts of a schema times those of a value up to which one is put to the other: a second or a few.
const WORK_MAX: usize = 1 << 26;

/// The same up to which it takes less than ten microseconds, which another thread would cost.
const QUICK_MAX: usize = 1 << 16;

/// Bytes that the faults of a value may take. All are collected before the first can be told, so of a
/// value that may have more only whether it is valid is told.
const FAULTS_BYTES_MAX: usize = 32 << 20;

/// Bytes of a fault beside the value that it keeps a copy of below an alternative.
const FAULT_BYTES: usize = 512;

/// What a part of a schema takes in memory when it is compiled, and a pattern as people write them.
const PART_BYTES: usize = 256;
const PROGRAM_BYTES: usize = 128 << 10;

/// Patterns of a schema that is compiled.
pub(crate) const PATTERNS_MAX: usize = 256;

/// Bytes of a pattern that is compiled, and of all of them: that takes time by their square.
pub(crate) const PATTERN_TEXT_MAX: usize = 4 << 10;
const PATTERNS_TEXT_MAX: usize = 32 << 10;

/// Bytes that all patterns of a schema may take, of their programs and of what is kept while they run:
/// a short pattern may have a long program.
const PATTERNS_BYTES_MAX: usize = 64 << 20;

/// The same of one of them, where there are few.
const PATTERN_BYTES_MAX: usize = 10 << 20;

/// Steps back in one text after which a pattern with look-around is given up.
const BACKTRACK_MAX: usize = 100_000;

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
    validator: jsonschema::Validator,
    size: usize,
    repeated: usize,
    alternatives: usize,
    patterns: usize,
    is_slow: bool,
}

/// Why a schema is not used; the fault is its server's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaFault {
    #[error("it has {0} bytes, {SCHEMA_BYTES_MAX} are read")]
    Large(usize),
    #[error(
        "with its references in place it has more than {} parts",
        expand::SIZE_MAX
    )]
    Expanded,
    #[error(
        "with its references in place it is more than {} deep",
        expand::LEVELS_MAX
    )]
    Deep,
    #[error("its reference `{0}` leads in a circle")]
    Circle(String),
    #[error("it has `{0}`, whose meaning depends on the way to it")]
    Dynamic(String),
    #[error("it refers to `{0}`, which is no JSON pointer to a part of it")]
    Elsewhere(String),
    #[error("it has references and parts with an `$id`, from which they may count")]
    InnerId,
    #[error("it has {0} patterns, {PATTERNS_MAX} are compiled")]
    Patterns(usize),
    #[error(
        "its patterns have {0} bytes, {PATTERNS_TEXT_MAX} are compiled, {PATTERN_TEXT_MAX} of each"
    )]
    Long(usize),
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is no pattern, or a large one.
    #[error("{reason}, or takes more than {bytes} bytes")]
    Pattern { reason: String, bytes: usize },
    #[error("{0}")]
    Invalid(String),
}

/// Why the faults of a value are not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unknown {
    /// It is too large to be put to the schema.
    Unasked,
    /// It has some, but too many may have to be collected.
    Uncollected,
}

impl Schema {
    /// Compiles `source`.
    ///
    /// # Errors
    /// When it is not used.
    pub(crate) fn compile(source: &[u8], formats: Formats) -> Result<Self, SchemaFault> {
        let expanded = read(source)?;
        Ok(Self {
            validator: build(&expanded.schema, &expanded.patterns, formats)?,
            size: expanded.size,
            repeated: expanded.repeated,
            alternatives: expanded.alternatives,
            patterns: expanded.patterns.count(),
            is_slow: expanded.is_slow,
        })
    }

    /// Says whether `source` would compile. Most schemas are plain; to compile the first that is not
    /// takes 3 MB for good.
    ///
    /// # Errors
    /// When it is not used.
    pub(crate) fn check(source: &[u8]) -> Result<(), SchemaFault> {
        let expanded = read(source)?;
        if !is_plain(&expanded.schema) {
            build(&expanded.schema, &expanded.patterns, Formats::Annotations)?;
        }
        Ok(())
    }

    /// Whether a value of so many bytes is put to it in less time than another thread would take.
    pub(crate) fn is_quick(&self, bytes: usize) -> bool {
        !self.is_slow && self.size.saturating_mul(bytes) <= QUICK_MAX
    }

    /// Whether `value` is as it says; what is too large to be asked is not.
    pub(crate) fn is_valid(&self, value: &Value) -> bool {
        self.work(value).is_some() && self.validator.is_valid(value)
    }

    /// The first `max` faults of `value` that are wanted.
    ///
    /// # Errors
    /// When they are not known.
    pub(crate) fn faults<'a>(
        &'a self,
        value: &'a Value,
        is_wanted: impl Fn(&ValidationError<'_>) -> bool,
        max: usize,
    ) -> Result<Vec<ValidationError<'a>>, Unknown> {
        self.work(value).ok_or(Unknown::Unasked)?;
        if self.validator.is_valid(value) {
            return Ok(Vec::new());
        }
        let faults = self.size + self.repeated.saturating_mul(parts(value));
        let copies = self.alternatives.saturating_mul(expand::bytes(value));
        if faults.saturating_mul(FAULT_BYTES).saturating_add(copies) > FAULTS_BYTES_MAX {
            return Err(Unknown::Uncollected);
        }
        let faults = self.validator.iter_errors(value);
        Ok(faults.filter(is_wanted).take(max).collect())
    }

    /// What it takes in memory, roughly, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.size * PART_BYTES + self.patterns * PROGRAM_BYTES
    }

    /// Parts to be visited to put `value` to it; `None` where they are too many.
    fn work(&self, value: &Value) -> Option<usize> {
        let work = self.size.checked_mul(parts(value))?;
        (work <= WORK_MAX).then_some(work)
    }
}

fn read(source: &[u8]) -> Result<Expanded, SchemaFault> {
    if source.len() > SCHEMA_BYTES_MAX {
        return Err(SchemaFault::Large(source.len()));
    }
    let expanded = Expanded::of(&serde_json::from_slice(source)?)?;
    let patterns = &expanded.patterns;
    if patterns.count() > PATTERNS_MAX {
        return Err(SchemaFault::Patterns(patterns.count()));
    }
    if patterns.bytes() > PATTERNS_TEXT_MAX || patterns.longest() > PATTERN_TEXT_MAX {
        return Err(SchemaFault::Long(patterns.bytes()));
    }
    Ok(expanded)
}

fn build(
    schema: &Value,
    patterns: &SchemaPatterns,
    formats: Formats,
) -> Result<jsonschema::Validator, SchemaFault> {
    let bytes = (PATTERNS_BYTES_MAX / patterns.programs().max(1)).min(PATTERN_BYTES_MAX);
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
                .backtrack_limit(BACKTRACK_MAX)
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

/// Whether an expanded `schema` has only the commonest keywords, each with a value of its kind: nothing
/// can be wrong with it then.
fn is_plain(schema: &Value) -> bool {
    const DIALECTS: [&str; 2] = [
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    ];
    const TYPES: [&str; 7] = [
        "array", "boolean", "integer", "null", "number", "object", "string",
    ];
    let is_plain_keyword = |(keyword, value): (&String, &Value)| match keyword.as_str() {
        "$schema" => value.as_str().is_some_and(|name| DIALECTS.contains(&name)),
        "additionalProperties" | "items" => is_plain(value),
        "format" => value.is_string(),
        "maximum" | "minimum" => value.is_number(),
        "properties" => value
            .as_object()
            .is_some_and(|properties| properties.values().all(is_plain)),
        "required" => value.as_array().is_some_and(|names| {
            let distinct: Map<_, _> = names
                .iter()
                .filter_map(|name| Some((name.as_str()?.to_owned(), Value::Null)))
                .collect();
            distinct.len() == names.len()
        }),
        "type" => value.as_str().is_some_and(|name| TYPES.contains(&name)),
        _ => false,
    };
    let members = schema.as_object();
    members.map_or(schema.is_boolean(), |all| all.iter().all(is_plain_keyword))
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
