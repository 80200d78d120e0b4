//! Redacted results that still are what their tool's output schema says.
//!
//! A client that validates would refuse `[EMAIL]` where an address is due, and a result that our
//! mask made invalid is worse than none. So masks give way step by step, value by value: the other
//! mask, then stand-ins of the right form.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use jsonschema::{ValidationError, error::ValidationErrorKind as Kind};
use serde_json::{Value, json};

use crate::{
    json_schema::{Formats, Schema},
    mcp::Raw,
};

/// Rounds of replacing what does not fit; each costs one validation.
const ROUNDS_MAX: usize = 48;
/// Failures of one validation that are looked at; a round mends them, the next sees the rest.
const FAILURES_MAX: usize = 4096;
/// Hints that are kept for one value; a schema says a few, and each is tried in turn.
const HINTS_MAX: usize = 64;
/// Values of an `enum` that are tried in place of one.
const OPTIONS_MAX: usize = 256;

/// The output schema of a tool, compiled when it is first asked. Nothing is fetched: one that refers to
/// elsewhere cannot be used.
#[derive(Clone, Debug)]
pub struct OutputSchema(Arc<WrittenValue>);

#[derive(Debug)]
struct WrittenValue {
    source: Raw,
    /// `None` when it cannot be used.
    compiled: OnceLock<Option<Schema>>,
}

impl OutputSchema {
    /// As a server wrote it.
    pub fn new(source: Raw) -> Self {
        Self(Arc::new(WrittenValue {
            source,
            compiled: OnceLock::new(),
        }))
    }

    /// As a server wrote it.
    pub fn source(&self) -> &Raw {
        &self.0.source
    }

    /// What it takes in memory beside its text, roughly, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let compiled = self.0.compiled.get().and_then(Option::as_ref);
        compiled.map_or(0, Schema::weight)
    }

    /// Whether it can be used. This and the scan of what it says something about may take long.
    pub fn is_usable(&self) -> bool {
        self.compiled().is_some()
    }

    /// Formats are checked, as the SDKs of clients do.
    fn compiled(&self) -> Option<&Schema> {
        let compile = || {
            Schema::compile(self.0.source.as_bytes(), Formats::Checked)
                .inspect_err(|error| tracing::warn!(%error, "invalid output schema"))
                .ok()
        };
        self.0.compiled.get_or_init(compile).as_ref()
    }

    pub(in crate::scan) fn accepts(&self, value: &Value) -> bool {
        self.compiled().is_some_and(|schema| schema.is_valid(value))
    }
}

/// A value that was redacted.
#[derive(Debug)]
pub(in crate::scan) struct Redacted {
    /// JSON pointer from the root of the structured content.
    pub(in crate::scan) pointer: String,
    pub(in crate::scan) original: Value,
    /// Under the other mask.
    pub(in crate::scan) alternate: Value,
}

/// Replaces redacted values of `current` until `schema` accepts it; what stands at each pointer that had
/// to change again.
///
/// # Errors
/// When it accepts nothing: the first of the values for which nothing fits.
pub(in crate::scan) fn fit_redaction(
    schema: &OutputSchema,
    current: &mut Value,
    redacted: &[Redacted],
    harmless: &mut dyn FnMut(&Redacted, &Value) -> bool,
) -> Result<HashMap<String, Value>, usize> {
    let mut unfit = 0;
    let mut replaced = HashMap::new();
    let places = redacted.iter().map(|leaf| leaf.pointer.clone());
    let mut hints: HashMap<String, Vec<ReplacementHint>> =
        places.map(|at| (at, Vec::new())).collect();
    let mut tried: Vec<Vec<Value>> = vec![Vec::new(); redacted.len()];
    for _ in 0..ROUNDS_MAX {
        let failing = validation_failures(schema, current, &mut hints).ok_or(unfit)?;
        if failing.is_empty() {
            return Ok(replaced);
        }
        let concerned = affected_values(redacted, &failing);
        unfit = concerned.first().copied().unwrap_or(unfit);
        let mut progress = false;
        for index in concerned {
            let leaf = &redacted[index];
            let own = hints.get(&leaf.pointer).map_or(&[][..], Vec::as_slice);
            let candidates = replacement_candidates(leaf, own);
            let next = candidates.into_iter().find(|value| {
                !tried[index].contains(value) && *value != leaf.original && harmless(leaf, value)
            });
            let (Some(next), Some(place)) = (next, current.pointer_mut(&leaf.pointer)) else {
                continue;
            };
            *place = next.clone();
            tried[index].push(next.clone());
            replaced.insert(leaf.pointer.clone(), next);
            progress = true;
        }
        if !progress {
            return Err(unfit);
        }
    }
    if schema.accepts(current) {
        return Ok(replaced);
    }
    Err(unfit)
}

/// What a failure says about the value that is wanted.
#[derive(Debug, PartialEq)]
enum ReplacementHint {
    Format(String),
    Near(Value),
    Options(Vec<Value>),
}

/// Where `value` fails; what the failures say of the places in `hints` goes there. `None` when that
/// cannot be found out.
fn validation_failures(
    schema: &OutputSchema,
    value: &Value,
    hints: &mut HashMap<String, Vec<ReplacementHint>>,
) -> Option<Vec<String>> {
    let failures = schema.compiled()?.faults(value, |_| true, FAILURES_MAX);
    let place = |error: &ValidationError<'_>| {
        collect_hint(error, hints);
        error.instance_path().to_string()
    };
    Some(failures.ok()?.iter().map(place).collect())
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is of others; what says nothing of a value is passed over"
)]
fn collect_hint(error: &ValidationError<'_>, hints: &mut HashMap<String, Vec<ReplacementHint>>) {
    if let Kind::AnyOf { context }
    | Kind::OneOfNotValid { context }
    | Kind::OneOfMultipleValid { context } = error.kind()
    {
        for inner in context.iter().flatten() {
            collect_hint(inner, hints);
        }
        return;
    }
    let known = hints.get_mut(error.instance_path().as_str());
    let Some(known) = known.filter(|known| known.len() < HINTS_MAX) else {
        return;
    };
    let hint = match error.kind() {
        Kind::Constant { expected_value } => option_hint([&**expected_value]),
        Kind::Enum { options: all } => option_hint(all.as_array().into_iter().flatten()),
        Kind::ExclusiveMaximum { limit }
        | Kind::ExclusiveMinimum { limit }
        | Kind::Maximum { limit }
        | Kind::Minimum { limit } => ReplacementHint::Near(limit.clone()),
        Kind::Format { format } => ReplacementHint::Format(format.clone()),
        _ => return,
    };
    if !known.contains(&hint) {
        known.push(hint);
    }
}

/// Those of `values` that may stand where a text or a number did.
fn option_hint<'v>(values: impl IntoIterator<Item = &'v Value>) -> ReplacementHint {
    let simple = |value: &&Value| !value.is_array() && !value.is_object();
    let values = values.into_iter().filter(simple).take(OPTIONS_MAX);
    ReplacementHint::Options(values.cloned().collect())
}

/// The redacted values that a failure is about: those at or below a failing place, else all.
fn affected_values(redacted: &[Redacted], failing: &[String]) -> Vec<usize> {
    let failing: std::collections::HashSet<&str> = failing.iter().map(String::as_str).collect();
    let below = |pointer: &str| {
        failing.contains(pointer)
            || pointer
                .match_indices('/')
                .any(|(at, _)| failing.contains(&pointer[..at]))
    };
    let exact: Vec<usize> = (0..redacted.len())
        .filter(|i| below(&redacted[*i].pointer))
        .collect();
    if exact.is_empty() {
        (0..redacted.len()).collect()
    } else {
        exact
    }
}

/// What may stand in place of a value, the least surprising first.
fn replacement_candidates(leaf: &Redacted, hints: &[ReplacementHint]) -> Vec<Value> {
    let mut found = vec![leaf.alternate.clone()];
    for hint in hints {
        match hint {
            ReplacementHint::Format(format) => {
                found.extend(format_examples(format).into_iter().map(Value::from));
            }
            ReplacementHint::Near(limit) => found.extend(near_values(limit)),
            ReplacementHint::Options(options) => found.extend(options.iter().cloned()),
        }
    }
    match &leaf.original {
        Value::String(text) => found.extend(similar_texts(text).into_iter().map(Value::from)),
        Value::Number(number) => {
            let digits = number.to_string().len().min(18);
            let smallest = 10i64.pow(u32::try_from(digits.saturating_sub(1)).expect("below 18"));
            found.extend([json!(0), json!(1), json!(smallest)]);
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {}
    }
    found
}

/// Stand-ins that a format of JSON Schema accepts; RFC 2606 and RFC 5737 keep them from being real.
fn format_examples(format: &str) -> Vec<&'static str> {
    match format {
        "email" | "idn-email" => vec!["redacted@redacted.invalid"],
        "hostname" | "idn-hostname" => vec!["redacted.invalid"],
        "ipv4" => vec!["0.0.0.0"],
        "ipv6" => vec!["::"],
        "uri" | "iri" | "uri-reference" | "iri-reference" | "uri-template" => {
            vec!["https://redacted.invalid/"]
        }
        "date" => vec!["1900-01-01"],
        "date-time" => vec!["1900-01-01T00:00:00Z"],
        "time" => vec!["00:00:00Z"],
        "duration" => vec!["PT0S"],
        "uuid" => vec!["00000000-0000-0000-0000-000000000000"],
        "json-pointer" => vec![""],
        "relative-json-pointer" => vec!["0"],
        "regex" => vec!["redacted"],
        _ => Vec::new(),
    }
}

fn near_values(limit: &Value) -> Vec<Value> {
    match (limit.as_i64(), limit.as_f64()) {
        (Some(limit), _) => [0, 1, -1]
            .into_iter()
            .filter_map(|d| limit.checked_add(d))
            .map(Value::from)
            .collect(),
        (None, Some(limit)) => vec![json!(limit), json!(limit + 1.0), json!(limit - 1.0)],
        (None, None) => Vec::new(),
    }
}

/// Texts of the same length and form, without what the original says.
fn similar_texts(text: &str) -> Vec<String> {
    let fill = |digit: char, keep: usize| -> String {
        let stand_in = |(at, c): (usize, char)| match c {
            _ if at < keep => c,
            '0'..='9' => digit,
            'A'..='Z' => 'X',
            'a'..='z' => 'x',
            _ if c.is_alphanumeric() => 'x',
            _ => c,
        };
        text.chars().enumerate().map(stand_in).collect()
    };
    let mut found = vec!["*".repeat(text.chars().count())];
    found.extend(('0'..='9').map(|digit| fill(digit, 0)));
    // A pattern such as `^4[0-9]{15}$` pins the beginning; what it pins is no secret.
    found.extend((1..=4).flat_map(|keep| [fill('0', keep), fill('1', keep)]));
    found
}
