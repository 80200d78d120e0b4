//! Arguments against the input schema of their tool, before the call leaves (`validate` of a server).
//!
//! Part of step 2. By default it is done for tools that argument rules are about. A schema that is none, too
//! large, cyclic or dynamic, or that refers to elsewhere, is not used and named in `/status`: calls of its
//! tool are not checked, and refused where argument rules are about it.
//! Arguments that are too large or take too long do not match.
//! Held to is what the route of the call shows: on merged routes the schema may be repaired.
//! What is relayed is never touched: the check reads a copy.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use jsonschema::{ValidationError, error::ValidationErrorKind};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::server_checks::{ServerChecks, Unchecked};
use crate::{
    catalog::Tool,
    config::Validate,
    json_schema::{Formats, KEPT_BYTES_MAX, Schema, Unknown, shortened},
    lock::lock,
    mcp::{Method, Raw},
    router::Routed,
};

/// Faults that are told of one call; there may be more.
pub const MISMATCHES_MAX: usize = 8;
/// Schemas kept compiled for one server; beyond it they are compiled anew. No key sets it: no server
/// that people use lists as many tools, and it only costs time.
pub const SCHEMAS_MAX: usize = 4096;
/// Memory that arguments may take to be checked.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// Unusable schemas of one server that `/status` names.
pub const UNUSABLE_MAX: usize = 64;

/// How the arguments of calls to one server are checked.
#[derive(Debug)]
pub struct InputValidator {
    mode: Validate,
    /// Outlives the config that says how.
    schemas: Arc<CompiledSchemas>,
}

/// What was compiled and counted of one server.
#[derive(Debug, Default)]
struct CompiledSchemas {
    /// By the tool's original name, and whether merged routes show another schema than the server's.
    by_tool: DashMap<(Arc<str>, bool), CompiledSchema>,
    reported: AtomicU64,
    refused: AtomicU64,
    /// Why the schemas of tools check nothing.
    unusable: Mutex<BTreeMap<String, String>>,
    checks: ServerChecks,
}

/// A compiled schema, and what it was compiled from.
#[derive(Clone, Debug)]
struct CompiledSchema {
    source: Raw,
    /// Or why it is not used.
    schema: Result<Arc<Schema>, Arc<str>>,
}

/// Where arguments do not match the schema of their tool.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct SchemaMismatch {
    /// JSON pointer into the arguments; empty for the arguments as a whole.
    pub pointer: String,
    /// What is wrong there, without the value itself.
    pub reason: String,
    /// The keyword that says so, as a JSON pointer into the schema: what logs and the audit have,
    /// since no word of the client is in it.
    #[serde(skip)]
    pub keyword: String,
    /// Whether the same arguments may fit when others are no longer checked.
    #[serde(skip)]
    pub is_for_now: bool,
}

/// What the check of one server did since the start.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Validation {
    /// Calls that passed although their arguments did not match.
    pub reported: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Tools whose schema cannot be used, and why; 64 at most.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unusable: BTreeMap<String, String>,
}

/// What becomes of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ValidationVerdict {
    Valid,
    Refused(Vec<SchemaMismatch>),
    Reported(Vec<SchemaMismatch>),
}

impl InputValidator {
    /// Checks as `mode` says.
    pub fn new(mode: Validate) -> Self {
        Self {
            mode,
            schemas: Arc::default(),
        }
    }

    /// Goes on with what `predecessor` has compiled and counted.
    pub(super) fn inherit_from(&mut self, predecessor: &Self) {
        self.schemas = Arc::clone(&predecessor.schemas);
    }

    /// Whether calls of a tool are checked; `has_rules`: its argument rules may refuse some.
    pub(super) fn is_enabled_for(&self, has_rules: bool) -> bool {
        match self.mode {
            Validate::Auto => has_rules,
            Validate::Off => false,
            Validate::Refuse | Validate::Report => true,
        }
    }

    /// The checks of what its server wrote, whatever else they are of.
    pub(super) fn checks(&self) -> &ServerChecks {
        &self.schemas.checks
    }

    /// Whether anything is kept that [`InputValidator::forget_unlisted`] could forget.
    pub(super) fn keeps_schemas(&self) -> bool {
        !self.schemas.by_tool.is_empty()
    }

    /// Forgets the schemas that `listed` no longer has, by the original name of their tool.
    pub(super) fn forget_unlisted<'t>(&self, listed: impl Fn(&str) -> Option<&'t Arc<Tool>>) {
        let is_listed = |tool: &str, known: &CompiledSchema| {
            let source = listed(tool).and_then(|tool| tool.source.get("inputSchema"));
            source.is_some_and(|source| is_same(&known.source, &source))
        };
        let kept = &self.schemas;
        let mut gone = Vec::new();
        kept.by_tool.retain(|(tool, _), known| {
            let is_listed = is_listed(tool, known);
            gone.extend(known.schema.clone().ok().filter(|_| !is_listed));
            is_listed
        });
        if !gone.is_empty() {
            // A large one takes a while.
            spawn_blocking(move || drop(gone));
        }
        kept.unusable()
            .retain(|tool, _| kept.by_tool.iter().any(|it| *it.key().0 == **tool));
    }

    /// Checks the arguments of a call, and counts; for where they [are checked](Self::is_enabled_for).
    /// Where argument rules are about it, a schema that is not used refuses.
    pub(super) async fn check(&self, routed: &Routed, has_rules: bool) -> ValidationVerdict {
        let Some(tool) = routed
            .tool
            .as_ref()
            .filter(|_| routed.call.method == Method::ToolsCall)
        else {
            return ValidationVerdict::Valid;
        };
        let arguments = routed.params.as_ref().and_then(|it| it.get("arguments"));
        let faults = match self.schemas.schema(tool).await {
            Ok(Some(Ok(schema))) => self.schemas.mismatches(schema, arguments).await,
            Ok(Some(Err(problem))) if has_rules => vec![SchemaMismatch::unusable(&problem)],
            Ok(None | Some(Err(_))) => Vec::new(),
            Err(why) => vec![SchemaMismatch::unchecked(why)],
        };
        let Some(first) = faults.first() else {
            return ValidationVerdict::Valid;
        };
        if self.mode != Validate::Report {
            self.schemas.refused.fetch_add(1, Ordering::Relaxed);
            return ValidationVerdict::Refused(faults);
        }
        self.schemas.reported.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            server = %tool.server,
            tool = &*tool.original,
            keyword = first.keyword,
            "arguments do not match the input schema"
        );
        ValidationVerdict::Reported(faults)
    }

    /// What was counted; `None` while nothing is checked.
    pub fn validation(&self) -> Option<Validation> {
        let kept = &self.schemas;
        let is_on = self.is_enabled_for(!kept.by_tool.is_empty());
        is_on.then(|| Validation {
            reported: kept.reported.load(Ordering::Relaxed),
            refused: kept.refused.load(Ordering::Relaxed),
            unusable: kept.unusable().clone(),
        })
    }
}

impl CompiledSchemas {
    async fn mismatches(&self, schema: Arc<Schema>, arguments: Option<Raw>) -> Vec<SchemaMismatch> {
        let bytes = arguments.as_ref().map_or(0, |it| it.as_bytes().len());
        let is_quick = schema.is_quick(bytes);
        let ask = move || match &arguments {
            Some(arguments) => validate_raw(&schema, arguments),
            None => first_mismatches(&schema, &json!({})),
        };
        let asked = if is_quick {
            catch_unwind(AssertUnwindSafe(ask)).map_err(|_| Unchecked::Panicked)
        } else {
            self.checks.run(ask).await
        };
        asked.unwrap_or_else(|why| vec![SchemaMismatch::unchecked(why)])
    }

    /// The schema of `tool` or why it is not used; `None` where there is none.
    async fn schema(
        self: &Arc<Self>,
        tool: &Arc<Tool>,
    ) -> Result<Option<Result<Arc<Schema>, Arc<str>>>, Unchecked> {
        let Some(source) = tool.input_schema.clone() else {
            return Ok(None);
        };
        let key = (Arc::clone(&tool.original), tool.has_repaired_input);
        let known = self.by_tool.get(&key);
        let known = known.filter(|known| is_same(&known.source, &source));
        if let Some(known) = known.map(|known| known.schema.clone()) {
            return Ok(Some(known));
        }
        let written = source;
        let (kept, tool) = (Arc::clone(self), Arc::clone(tool));
        // Also where nobody waits for it any more: what takes long is not begun again and again.
        let compiled = self.checks.run(move || {
            let compiled = compile(&written);
            kept.store(&tool, written, compiled.clone());
            compiled
        });
        compiled.await.map(Some)
    }

    /// Keeps what became of the schema of a tool.
    fn store(&self, tool: &Tool, source: Raw, schema: Result<Arc<Schema>, Arc<str>>) {
        self.note_usability(tool, schema.as_ref().err());
        self.evict_if_full();
        let known = CompiledSchema { source, schema };
        let key = (Arc::clone(&tool.original), tool.has_repaired_input);
        self.by_tool.insert(key, known);
    }

    /// Forgets all schemas where one more might be too many.
    fn evict_if_full(&self) {
        let weight = |known: &CompiledSchema| known.schema.as_ref().map_or(0, |it| it.weight());
        let kept: usize = self.by_tool.iter().map(|known| weight(&known)).sum();
        if self.by_tool.len() >= SCHEMAS_MAX || kept > KEPT_BYTES_MAX {
            self.by_tool.clear();
        }
    }

    /// Notes whether the schema of a tool can be used.
    fn note_usability(&self, tool: &Tool, problem: Option<&Arc<str>>) {
        let mut unusable = self.unusable();
        let Some(problem) = problem else {
            unusable.remove(&*tool.original);
            return;
        };
        tracing::warn!(
            server = %tool.server,
            tool = &*tool.original,
            %problem,
            "invalid input schema; arguments are not validated"
        );
        if unusable.len() < UNUSABLE_MAX {
            unusable.insert(tool.original.to_string(), problem.to_string());
        }
    }

    fn unusable(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        lock(&self.unusable)
    }
}

impl SchemaMismatch {
    fn unchecked(why: Unchecked) -> Self {
        let reason = match why {
            Unchecked::Busy => "cannot validate: too many validations in progress",
            Unchecked::TimedOut => "validation timed out",
            Unchecked::Panicked => "validation failed",
        };
        Self {
            is_for_now: why == Unchecked::Busy,
            ..Self::of_whole_arguments(reason)
        }
    }

    fn unusable(problem: &str) -> Self {
        let reason = format!("the input schema of the tool cannot be used: {problem}");
        Self {
            keyword: "inputSchema".to_owned(),
            ..Self::of_whole_arguments(&reason)
        }
    }

    fn of_whole_arguments(reason: &str) -> Self {
        Self {
            pointer: String::new(),
            reason: reason.to_owned(),
            keyword: String::new(),
            is_for_now: false,
        }
    }

    fn of(error: &ValidationError<'_>) -> Self {
        Self {
            pointer: shortened(error.instance_path().to_string()),
            reason: shortened(error.masked().to_string()),
            keyword: shortened(error.schema_path().to_string()),
            is_for_now: false,
        }
    }
}

impl std::fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = if self.pointer.is_empty() {
            "the arguments"
        } else {
            &self.pointer
        };
        write!(f, "{at}: {}", self.reason)
    }
}

/// Whether two schemas are one text; most often they are the very same bytes.
pub(super) fn is_same(known: &Raw, source: &Raw) -> bool {
    let (known, source) = (known.as_bytes(), source.as_bytes());
    std::ptr::eq(known, source) || known == source
}

fn compile(source: &Raw) -> Result<Arc<Schema>, Arc<str>> {
    let schema = Schema::compile(source.as_bytes(), Formats::Annotations);
    schema
        .map(Arc::new)
        .map_err(|error| error.to_string().into())
}

fn validate_raw(schema: &Schema, arguments: &Raw) -> Vec<SchemaMismatch> {
    if memory_estimate(arguments.as_bytes()) > VALUE_BYTES_MAX {
        return vec![SchemaMismatch::of_whole_arguments("too large to validate")];
    }
    match arguments.read::<Value>() {
        Ok(value) => first_mismatches(schema, &value),
        // It is JSON, but no machine's number: what cannot be checked does not match.
        Err(_) => vec![SchemaMismatch::of_whole_arguments(
            "a number is out of range",
        )],
    }
}

/// What arguments take in memory at most when they are read: an object has room for eleven members.
fn memory_estimate(json: &[u8]) -> usize {
    let of = |byte: &u8| match byte {
        b'{' => 800,
        b',' | b'[' => 80,
        _ => 1,
    };
    json.iter().map(of).sum()
}

/// The first faults.
fn first_mismatches(schema: &Schema, arguments: &Value) -> Vec<SchemaMismatch> {
    // A pattern of the server that is given up on is no fault of the client.
    let is_fault = |error: &ValidationError<'_>| {
        !matches!(
            error.kind(),
            ValidationErrorKind::BacktrackLimitExceeded { .. }
        )
    };
    let reason = match schema.faults(arguments, is_fault, MISMATCHES_MAX) {
        Ok(faults) => return faults.iter().map(SchemaMismatch::of).collect(),
        Err(Unknown::Unasked) => "they cannot be checked: they are too large for their schema",
        Err(Unknown::Uncollected) => "they do not match; too large to report where",
    };
    vec![SchemaMismatch::of_whole_arguments(reason)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_schema::{REASON_BYTES_MAX, SCHEMA_BYTES_MAX};

    fn check(schema: &Value, arguments: &str, expect: &[(&str, &str)]) {
        let compiled = compile(&Raw::from_value(schema)).unwrap();
        let arguments = Raw::parse(arguments.to_owned()).unwrap();
        let faults = validate_raw(&compiled, &arguments);
        let found: Vec<_> = faults
            .iter()
            .map(|fault| (fault.pointer.as_str(), fault.reason.as_str()))
            .collect();
        assert_eq!(found, expect, "{schema} {}", arguments.as_str());
    }

    #[test]
    fn faults_say_where_and_why_without_the_value() {
        let schema = || {
            json!({
                "type": "object",
                "properties": { "n": { "type": "integer", "maximum": 5 }, "s": { "enum": ["a", "b"] } },
                "required": ["n"],
            })
        };
        check(&schema(), r#"{"n":1}"#, &[]);
        check(&schema(), r#"{"n":5.0,"s":"a"}"#, &[]);
        check(
            &schema(),
            r#"{"n":"secret"}"#,
            &[("/n", r#"value is not of type "integer""#)],
        );
        check(
            &schema(),
            r#"{"n":6,"s":"c"}"#,
            &[
                ("/n", "value is greater than the maximum of 5"),
                ("/s", r#"value is not one of "a" or "b""#),
            ],
        );
        check(&schema(), "{}", &[("", r#""n" is a required property"#)]);
        check(
            &schema(),
            "null",
            &[("", r#"value is not of type "object""#)],
        );
    }

    #[test]
    fn drafts_are_told_apart() {
        let tuple = json!({ "properties": { "p": { "items": [{ "type": "string" }] } } });
        let mut old = tuple.clone();
        old["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        let wrong = r#"{"p":[1]}"#;
        check(&old, wrong, &[("/p/0", r#"value is not of type "string""#)]);
        assert!(compile(&Raw::from_value(&tuple)).is_err(), "not of 2020-12");
        let new = json!({ "properties": { "p": { "prefixItems": [{ "type": "string" }] } } });
        check(&new, wrong, &[("/p/0", r#"value is not of type "string""#)]);
    }

    #[test]
    fn formats_are_annotations() {
        let schema = json!({ "properties": { "at": { "type": "string", "format": "date" } } });
        check(&schema, r#"{"at":"soon"}"#, &[]);
    }

    #[test]
    fn numbers_beyond_a_machines_do_not_match() {
        let schema = json!({ "properties": { "n": { "type": "integer" } } });
        check(&schema, r#"{"n":12345678901234567890123}"#, &[]);
        let reason = "a number is out of range";
        check(&schema, r#"{"n":1e999}"#, &[("", reason)]);
    }

    #[test]
    fn nothing_is_fetched_and_what_is_broken_checks_nothing() {
        for schema in [
            json!({ "$ref": "https://example.com/schema.json" }),
            json!({ "$ref": "file:///etc/schema.json" }),
            json!({ "$ref": "#/$defs/none" }),
            json!({ "type": "objekt" }),
            json!({ "properties": 5 }),
            json!({ "$schema": "https://example.com/own" }),
            json!({ "title": "x".repeat(SCHEMA_BYTES_MAX) }),
        ] {
            let problem = compile(&Raw::from_value(&schema)).unwrap_err();
            assert!(!problem.is_empty() && problem.len() < 400, "{problem}");
        }
        let inner = json!({ "$defs": { "n": { "type": "null" } }, "properties": { "x": { "$ref": "#/$defs/n" } } });
        check(
            &inner,
            r#"{"x":1}"#,
            &[("/x", r#"value is not of type "null""#)],
        );
    }

    #[test]
    fn so_much_is_kept_and_no_more() {
        let patterns: Vec<_> = (0..200)
            .map(|n| json!({ "pattern": n.to_string() }))
            .collect();
        let source = Raw::from_value(&json!({ "allOf": patterns }));
        let schema = compile(&source).unwrap();
        let (kept, weight) = (CompiledSchemas::default(), schema.weight());
        assert!(weight > 200 << 17, "{weight}");
        let mut most = 0;
        for n in 0..20 {
            kept.evict_if_full();
            let known = CompiledSchema {
                source: source.clone(),
                schema: Ok(Arc::clone(&schema)),
            };
            kept.by_tool.insert((n.to_string().into(), false), known);
            most = most.max(kept.by_tool.len());
        }
        assert_eq!(most, KEPT_BYTES_MAX / weight + 1);
    }

    #[test]
    fn arguments_of_many_parts_are_not_read() {
        let schema = compile(&Raw::from_value(&json!({}))).unwrap();
        let of = |count: usize| {
            let arguments = format!("[{}{{}}]", "{},".repeat(count - 1));
            validate_raw(&schema, &Raw::parse(arguments).unwrap())
        };
        let most = VALUE_BYTES_MAX / 881;
        assert_eq!(of(most - 100), []);
        let reason = "too large to validate";
        assert_eq!(of(most + 100), [SchemaMismatch::of_whole_arguments(reason)]);
    }

    #[test]
    fn faults_and_their_words_are_bounded() {
        let names: Vec<_> = (0..20).map(|n| format!("n{n}")).collect();
        let found = |schema: Value, arguments: Value| {
            first_mismatches(&compile(&Raw::from_value(&schema)).unwrap(), &arguments)
        };
        let missing = found(json!({ "required": names }), json!({}));
        assert_eq!(missing.len(), MISMATCHES_MAX);
        let long = found(json!({ "enum": ["y".repeat(999)] }), json!({}));
        assert_eq!(long[0].reason.len(), REASON_BYTES_MAX + '…'.len_utf8());
    }
}
