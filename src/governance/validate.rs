//! Arguments against the input schema of their tool, before the call leaves (`validate` of a server).
//!
//! Part of step 2. Schemas are JSON Schema 2020-12 unless `$schema` names another draft; formats are
//! not checked, since there they are annotations. Nothing is fetched: a schema that refers to
//! documents elsewhere, that takes too long, or that is none, is reported in `/status` and checks nothing. What is relayed
//! is never touched: the check reads a copy.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use jsonschema::{PatternOptions, ValidationError, error::ValidationErrorKind};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::screen::LARGE_BYTES;
use crate::{
    catalog::Tool,
    config::Validate,
    lock::lock,
    mcp::{Method, Raw},
    router::Routed,
};

/// Faults that are told of one call; there may be more.
pub const FAULTS_MAX: usize = 8;
/// Bytes of a reason that are told: a schema may list any number of values.
pub const REASON_BYTES_MAX: usize = 300;
/// Schemas kept compiled for one server; beyond it they are compiled anew. No key sets it: no server
/// that people use lists as many tools, and it only costs time.
pub const SCHEMAS_MAX: usize = 4096;
/// Bytes of a schema that is compiled; a larger one checks nothing.
pub const SCHEMA_BYTES_MAX: usize = 1 << 20;
/// Unusable schemas of one server that `/status` names.
pub const UNUSABLE_MAX: usize = 64;

/// How long a check may take, and wait for its turn. A schema that takes longer is one that cannot be
/// used: references to references can make a small one endless.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Checks of one server that took longer and go on in threads of their own, since nothing ends them:
/// where so many do, none of its schemas that are new are used.
pub const ENDLESS_MAX: usize = 2;

/// Checks at a time; the runtime's workers make none.
static TURNS: Semaphore = Semaphore::const_new(4);

/// How the arguments of calls to one server are checked.
#[derive(Debug)]
pub struct Inputs {
    mode: Validate,
    /// Outlives the config that says how.
    kept: Arc<Kept>,
}

/// What was compiled and counted of one server.
#[derive(Debug, Default)]
struct Kept {
    /// By the tool's original name.
    known: DashMap<Arc<str>, Known>,
    reported: AtomicU64,
    refused: AtomicU64,
    /// Why the schemas of tools check nothing.
    unusable: Mutex<BTreeMap<String, String>>,
    /// Checks that nobody waits for any more and that still run.
    endless: Arc<AtomicUsize>,
}

/// A compiled schema, and what it was compiled from.
#[derive(Clone, Debug)]
struct Known {
    source: Raw,
    /// `None` when it cannot be used.
    validator: Option<Arc<jsonschema::Validator>>,
}

/// Where arguments do not match the schema of their tool.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Fault {
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
pub(super) enum Verdict {
    Fits,
    Refused(Vec<Fault>),
    Reported(Vec<Fault>),
}

impl Inputs {
    /// Checks as `mode` says.
    pub fn new(mode: Validate) -> Self {
        Self {
            mode,
            kept: Arc::default(),
        }
    }

    /// Goes on with what `predecessor` has compiled and counted.
    pub(super) fn succeed(&mut self, predecessor: &Self) {
        self.kept = Arc::clone(&predecessor.kept);
    }

    /// Whether anything is checked.
    pub(super) fn is_on(&self) -> bool {
        match self.mode {
            Validate::Off => false,
            Validate::Refuse | Validate::Report => true,
        }
    }

    /// Whether anything is kept that [`Inputs::forget_unlisted`] could forget.
    pub(super) fn keeps_schemas(&self) -> bool {
        !self.kept.known.is_empty()
    }

    /// Forgets the schemas that `listed` no longer has, by the original name of their tool.
    pub(super) fn forget_unlisted<'t>(&self, listed: impl Fn(&str) -> Option<&'t Arc<Tool>>) {
        let is_listed = |tool: &str, known: &Known| {
            let source = listed(tool).and_then(|tool| tool.source.get("inputSchema"));
            source.is_some_and(|source| is_same(&known.source, &source))
        };
        let kept = &self.kept;
        kept.known.retain(|tool, known| is_listed(tool, known));
        kept.unusable()
            .retain(|tool, _| kept.known.contains_key(tool.as_str()));
    }

    /// Checks the arguments of a call, and counts.
    pub(super) async fn check(&self, routed: &Routed) -> Verdict {
        if !self.is_on() {
            return Verdict::Fits;
        }
        let Some(tool) = routed
            .tool
            .as_deref()
            .filter(|_| routed.call.method == Method::ToolsCall)
        else {
            return Verdict::Fits;
        };
        let faults = self.kept.faults(tool, routed.params.as_ref()).await;
        let Some(first) = faults.first() else {
            return Verdict::Fits;
        };
        if self.mode == Validate::Refuse {
            self.kept.refused.fetch_add(1, Ordering::Relaxed);
            return Verdict::Refused(faults);
        }
        self.kept.reported.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            server = %tool.server,
            tool = &*tool.original,
            keyword = first.keyword,
            "arguments do not match the input schema"
        );
        Verdict::Reported(faults)
    }

    /// What was counted; `None` while nothing is checked.
    pub fn validation(&self) -> Option<Validation> {
        let kept = &self.kept;
        self.is_on().then(|| Validation {
            reported: kept.reported.load(Ordering::Relaxed),
            refused: kept.refused.load(Ordering::Relaxed),
            unusable: kept.unusable().clone(),
        })
    }
}

impl Kept {
    async fn faults(&self, tool: &Tool, params: Option<&Raw>) -> Vec<Fault> {
        let Some(source) = tool.source.get("inputSchema") else {
            return Vec::new();
        };
        let known = self
            .known
            .get(&tool.original)
            .filter(|known| is_same(&known.source, &source))
            .map(|known| known.validator.clone());
        let validator = match known {
            Some(None) => return Vec::new(),
            Some(validator) => validator,
            None => None,
        };
        let is_new = validator.is_none();
        if is_new && self.endless.load(Ordering::SeqCst) >= ENDLESS_MAX {
            let problem = format!("{ENDLESS_MAX} checks of its server do not end");
            self.remember(tool, source, Err(problem));
            return Vec::new();
        }
        let arguments = params.and_then(|params| params.get("arguments"));
        let schema = source.clone();
        let check = Check::of(&self.endless);
        let ended = Ended(check.clone());
        let work = move || {
            let _ended = ended;
            let validator = match validator {
                Some(validator) => validator,
                None => compile(&schema)?,
            };
            let faults = match &arguments {
                Some(arguments) => read(&validator, arguments),
                None => faults(&validator, &json!({}), FAULTS_MAX),
            };
            Ok((validator, faults))
        };
        let Ok(turn) = timeout(PATIENCE, TURNS.acquire()).await else {
            let reason = "they cannot be checked: too many checks at once";
            return vec![Fault {
                is_for_now: true,
                ..Fault::whole(reason)
            }];
        };
        // What takes for ever takes a thread, and is not tried again.
        let done = timeout(PATIENCE, spawn_blocking(work)).await;
        drop(turn);
        if done.is_err() {
            check.give_up();
        }
        let (checked, faults): (Result<_, String>, _) = match done {
            Ok(Ok(Ok((validator, faults)))) => (Ok(validator), faults),
            Ok(Ok(Err(problem))) => (Err(problem), Vec::new()),
            Ok(Err(error)) => {
                tracing::error!(%error, "a check of arguments broke off");
                return vec![Fault::whole("they could not be checked")];
            }
            Err(_) => (
                Err(format!("a check takes longer than {PATIENCE:?}")),
                vec![Fault::whole("they could not be checked in time")],
            ),
        };
        if is_new || checked.is_err() {
            self.remember(tool, source, checked);
        }
        faults
    }

    /// Keeps what became of the schema of a tool.
    fn remember(
        &self,
        tool: &Tool,
        source: Raw,
        compiled: Result<Arc<jsonschema::Validator>, String>,
    ) {
        self.note(tool, compiled.as_ref().err());
        if self.known.len() >= SCHEMAS_MAX {
            self.known.clear();
        }
        let known = Known {
            source,
            validator: compiled.ok(),
        };
        self.known.insert(Arc::clone(&tool.original), known);
    }

    /// Notes whether the schema of a tool can be used.
    fn note(&self, tool: &Tool, problem: Option<&String>) {
        let mut unusable = self.unusable();
        let Some(problem) = problem else {
            unusable.remove(&*tool.original);
            return;
        };
        tracing::warn!(
            server = %tool.server,
            tool = &*tool.original,
            problem,
            "an input schema cannot be used; arguments are not checked against it"
        );
        if unusable.len() < UNUSABLE_MAX {
            unusable.insert(tool.original.to_string(), problem.clone());
        }
    }

    fn unusable(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        lock(&self.unusable)
    }
}

/// One check, as who waits for it knows it.
#[derive(Clone, Debug)]
struct Check {
    /// Whether it has ended, or nobody waits for it.
    is_left: Arc<AtomicBool>,
    endless: Arc<AtomicUsize>,
}

impl Check {
    fn of(endless: &Arc<AtomicUsize>) -> Self {
        Self {
            is_left: Arc::default(),
            endless: Arc::clone(endless),
        }
    }

    /// Nobody waits for it any more.
    fn give_up(&self) {
        if !self.is_left.swap(true, Ordering::SeqCst) {
            self.endless.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Dropped when a check has ended, which may be after it was given up.
#[derive(Debug)]
struct Ended(Check);

impl Drop for Ended {
    fn drop(&mut self) {
        let Check { is_left, endless } = &self.0;
        if is_left.swap(true, Ordering::SeqCst) {
            endless.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Fault {
    fn whole(reason: &str) -> Self {
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

impl std::fmt::Display for Fault {
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

fn compile(source: &Raw) -> Result<Arc<jsonschema::Validator>, String> {
    let bytes = source.as_bytes().len();
    if bytes > SCHEMA_BYTES_MAX {
        return Err(format!("it has {bytes} bytes, {SCHEMA_BYTES_MAX} are read"));
    }
    let schema: Value = source.read().map_err(|error| error.to_string())?;
    // The linear engine first; it lacks look-around and back references, which few need.
    let linear = jsonschema::options()
        .should_validate_formats(false)
        .with_pattern_options(PatternOptions::regex())
        .build(&schema);
    let validator = linear.or_else(|_| {
        jsonschema::options()
            .should_validate_formats(false)
            .build(&schema)
    });
    let validator = validator.map_err(|error| shortened(error.masked().to_string()))?;
    Ok(Arc::new(validator))
}

fn read(validator: &jsonschema::Validator, arguments: &Raw) -> Vec<Fault> {
    match arguments.read::<Value>() {
        Ok(value) if arguments.as_bytes().len() > LARGE_BYTES => faults(validator, &value, 1),
        Ok(value) => faults(validator, &value, FAULTS_MAX),
        // It is JSON, but no machine's number: what cannot be checked does not match.
        Err(_) => vec![Fault::whole("they have a number that is out of range")],
    }
}

/// The first `faults_max` faults. All of them are collected before the first is told, but where only
/// one is asked for.
fn faults(validator: &jsonschema::Validator, arguments: &Value, faults_max: usize) -> Vec<Fault> {
    // A pattern of the server that is given up on is no fault of the client.
    let is_fault = |error: &ValidationError<'_>| {
        !matches!(
            error.kind(),
            ValidationErrorKind::BacktrackLimitExceeded { .. }
        )
    };
    if faults_max == 1 {
        let first = validator.validate(arguments).err();
        let first = first.filter(is_fault);
        return first.iter().map(Fault::of).collect();
    }
    let errors = validator.iter_errors(arguments).filter(is_fault);
    errors
        .take(faults_max)
        .map(|error| Fault::of(&error))
        .collect()
}

/// `text` up to [`REASON_BYTES_MAX`].
fn shortened(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: &Value, arguments: &str, expect: &[(&str, &str)]) {
        let validator = compile(&Raw::from_value(schema)).unwrap();
        let arguments = Raw::parse(arguments.to_owned()).unwrap();
        let faults = read(&validator, &arguments);
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
        let reason = "they have a number that is out of range";
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
    fn faults_and_their_words_are_bounded() {
        let names: Vec<_> = (0..20).map(|n| format!("n{n}")).collect();
        let found = |schema: Value, arguments: Value| {
            faults(
                &compile(&Raw::from_value(&schema)).unwrap(),
                &arguments,
                FAULTS_MAX,
            )
        };
        let missing = found(json!({ "required": names }), json!({}));
        assert_eq!(missing.len(), FAULTS_MAX);
        let long = found(json!({ "enum": ["y".repeat(999)] }), json!({}));
        assert_eq!(long[0].reason.len(), REASON_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn a_check_counts_from_when_it_is_given_up_until_it_ends() {
        let endless = Arc::new(AtomicUsize::new(0));
        let count = || endless.load(Ordering::SeqCst);
        let begin = || {
            let check = Check::of(&endless);
            (check.clone(), Ended(check))
        };
        let (long, ended) = begin();
        long.give_up();
        assert_eq!(count(), 1);
        drop(ended);
        assert_eq!(count(), 0);
        let (late, ended) = begin();
        drop(ended);
        late.give_up();
        assert_eq!(count(), 0, "it ended in the very moment");
    }
}
