//! Looking at data on its way: arguments before they reach a server, and what comes back before it
//! reaches the client. What passes between the two beside these is looked at too: notifications,
//! what a server asks its client, and what that answers.

mod record_redaction;

use std::{
    cell::Cell,
    collections::BTreeMap,
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, Weak},
};

use futures_util::FutureExt;

use super::{
    refusal,
    server_checks::ServerChecks,
    state_field::{REQUEST_STATE, is_input_required},
};
use crate::{
    config::{ErrorCodes, Scan, ScanAction},
    lock::lock,
    mcp::{
        Method, Outcome, Raw, Revision, RpcError,
        json::{self, Patch},
        method::notice,
        tasks,
    },
    scan::{Direction, InvalidScan, OutputSchema, Scanner, Verdict},
    task::{LARGE_BYTES, run_blocking_if_large},
};

pub(crate) use record_redaction::redact_name;
pub(super) use record_redaction::{client_name, redact_arguments};

/// Every scanner in use, once for each `scan` section that says the same.
#[derive(Debug, Default)]
pub(super) struct Scanners(Mutex<Vec<(Scan, Weak<Scanner>)>>);

impl Scanners {
    /// The scanner for `scan`, compiled where nobody has it.
    pub(super) fn get_or_compile(&self, scan: &Scan) -> Result<Arc<Scanner>, InvalidScan> {
        // Compiling takes milliseconds and happens at the start and when an agent changes: whoever
        // wants the same meanwhile waits for it.
        let mut known = lock(&self.0);
        known.retain(|(_, scanner)| scanner.strong_count() > 0);
        let same = known.iter().find(|(of, _)| of == scan);
        if let Some(scanner) = same.and_then(|(_, scanner)| scanner.upgrade()) {
            return Ok(scanner);
        }
        let scanner = Arc::new(Scanner::new(scan)?);
        known.push((scan.clone(), Arc::downgrade(&scanner)));
        Ok(scanner)
    }
}

/// The scanners that apply to what passes between a client and a server: that of the agent's terms, and
/// that of the server.
#[derive(Clone, Debug)]
pub struct CallScanners(Arc<ScannerPair>);

#[derive(Debug)]
struct ScannerPair {
    terms_scanner: Option<Arc<Scanner>>,
    server_scanner: Option<Arc<Scanner>>,
    /// Whether nothing passes, whatever it is.
    blocks_everything: bool,
    /// Whether what would be blocked or redacted is only reported.
    observe: bool,
    /// The codes of refusals.
    codes: ErrorCodes,
    /// Those of what the server wrote.
    checks: ServerChecks,
    /// What was found beside the arguments and the answer; nothing takes it once the record of the
    /// call is written, or where there is no call.
    other_findings: Mutex<Option<ScanReport>>,
}

/// The class of what nobody has looked at, which does not pass.
const UNSCANNED_CLASS: &str = "unscanned";

/// What a look at some data has found.
#[derive(Debug, Default)]
pub(super) struct ScanReport {
    /// The data with masks, when something was redacted.
    pub(super) redacted: Option<Raw>,
    /// The classes for which it must not pass.
    pub(super) blocked: Vec<Arc<str>>,
    /// Whether it would not pass, were the scan more than observed.
    pub(super) would_block: bool,
    /// What was found, for the record: class, times, what was done.
    pub(super) found: BTreeMap<(Arc<str>, ScanAction), u64>,
}

impl CallScanners {
    /// `data` without what classes of the config find; `None` where they find nothing.
    fn redact_custom_classes(&self, data: &Raw) -> Option<Raw> {
        let scanners = [&self.0.terms_scanner, &self.0.server_scanner]
            .into_iter()
            .flatten();
        scanners.fold(None, |left, scanner| {
            let again = scanner.redact_custom(left.as_ref().unwrap_or(data));
            again.or(left)
        })
    }

    /// The scanner of the terms comes first; nothing where there is none at all. `codes` are those of
    /// refusals.
    pub(super) fn new(
        (terms, server): (Option<&Arc<Scanner>>, Option<&Arc<Scanner>>),
        observe: bool,
        codes: ErrorCodes,
        checks: ServerChecks,
    ) -> Option<Self> {
        let mut all = [terms, server].into_iter().flatten();
        Some(Self(Arc::new(ScannerPair {
            terms_scanner: Some(Arc::clone(all.next()?)),
            server_scanner: all.next().map(Arc::clone),
            blocks_everything: false,
            observe,
            codes,
            checks,
            other_findings: Mutex::default(),
        })))
    }

    /// Lets nothing pass: where there are no rules, nobody can say that something may.
    pub(super) fn block_all(codes: ErrorCodes) -> Self {
        Self::without_scanners(codes, true)
    }

    /// Lets everything pass.
    pub(super) fn pass_all(codes: ErrorCodes) -> Self {
        Self::without_scanners(codes, false)
    }

    fn without_scanners(codes: ErrorCodes, is_shut: bool) -> Self {
        Self(Arc::new(ScannerPair {
            terms_scanner: None,
            server_scanner: None,
            blocks_everything: is_shut,
            observe: false,
            codes,
            checks: ServerChecks::default(),
            other_findings: Mutex::default(),
        }))
    }

    /// The same for a call, whose record says what is found.
    pub(super) fn for_call(self) -> Self {
        *lock(&self.0.other_findings) = Some(ScanReport::default());
        self
    }

    /// What was found beside the arguments and the answer of the call, for its record.
    pub(super) fn take_findings(&self) -> ScanReport {
        lock(&self.0.other_findings).take().unwrap_or_default()
    }

    fn scanners(&self) -> impl Iterator<Item = &Scanner> {
        let both = [&self.0.terms_scanner, &self.0.server_scanner];
        both.into_iter().filter_map(Option::as_deref)
    }

    fn is_idle(&self, direction: Direction) -> bool {
        !self.0.blocks_everything && self.scanners().all(|scanner| scanner.is_idle(direction))
    }

    /// Looks at `data`; aside, when it is large. `schema` is asked for only where something
    /// is redacted that it may have a say in.
    pub(super) async fn scan(
        &self,
        direction: Direction,
        data: &Raw,
        schema: impl Fn() -> Option<OutputSchema>,
    ) -> ScanReport {
        if self.is_idle(direction) {
            return ScanReport::default();
        }
        let look = async {
            if data.as_bytes().len() <= LARGE_BYTES {
                self.scan_now(direction, data, None)
            } else {
                self.scan_large(direction, data).await
            }
        };
        let (seen, asks) = scan_or_block(look).await;
        if asks && let Some(schema) = schema() {
            let heeding = self.scan_with_schema(direction, data, schema).await;
            return heeding.unwrap_or(seen);
        }
        seen
    }

    async fn scan_large(&self, direction: Direction, data: &Raw) -> (ScanReport, bool) {
        let (screens, bytes, data) = (self.clone(), data.as_bytes().len(), data.clone());
        run_blocking_if_large(bytes, move || screens.scan_now(direction, &data, None)).await
    }

    /// Looks at `data` so that it fits `schema` also with masks. `None` where that takes too long:
    /// masks are more than a schema.
    async fn scan_with_schema(
        &self,
        direction: Direction,
        data: &Raw,
        schema: OutputSchema,
    ) -> Option<ScanReport> {
        let checks = &self.0.checks;
        let (screens, data) = (self.clone(), data.clone());
        let work = move || {
            let schema = schema.is_usable().then_some(&schema);
            screens.scan_now(direction, &data, schema).0
        };
        let looked = checks.run(work).await;
        looked
            .inspect_err(|why| {
                tracing::warn!(?why, "the redacted result may not match its output schema");
            })
            .ok()
    }

    /// Looks at `data` in this thread; says too whether a schema has been asked for, which there may
    /// be none of.
    fn scan_now(
        &self,
        direction: Direction,
        data: &Raw,
        schema: Option<&OutputSchema>,
    ) -> (ScanReport, bool) {
        let asks = Cell::new(false);
        let schema = || {
            asks.set(true);
            schema
        };
        let mut seen = ScanReport::default();
        if self.0.blocks_everything {
            seen.blocked.push(UNSCANNED_CLASS.into());
        }
        for scanner in self.scanners() {
            let current = seen.redacted.as_ref().unwrap_or(data);
            let mut verdict = scanner.scan(direction, current, schema);
            if seen.redacted.is_some() {
                // The stricter wins: what one masks, another may refuse.
                let whole = scanner.scan(direction, data, schema);
                if whole.blocked.is_some() {
                    verdict = whole;
                }
            }
            self.apply_verdict(verdict, &mut seen);
        }
        (seen, asks.get())
    }

    fn apply_verdict(&self, verdict: Verdict, seen: &mut ScanReport) {
        seen.would_block |= self.0.observe && verdict.blocked.is_some();
        for hit in verdict.hits {
            let action = if self.0.observe {
                ScanAction::Report
            } else {
                hit.action
            };
            if action == ScanAction::Block && !seen.blocked.contains(&hit.class) {
                seen.blocked.push(hit.class.clone());
            }
            *seen.found.entry((hit.class, action)).or_default() += hit.count;
        }
        if !self.0.observe {
            if let Some(class) = verdict
                .blocked
                .filter(|class| !seen.blocked.contains(class))
            {
                seen.blocked.push(class);
            }
            if verdict.redacted.is_some() {
                seen.redacted = verdict.redacted;
            }
        }
    }

    /// The params of a notification of `method` as the client may see them; `None` when it must not pass.
    pub fn scan_notification(&self, method: &str, params: Raw) -> Option<Raw> {
        self.scan_notification_of_call(self, method, params)
    }

    /// The same on the stream of a call that was admitted with other `screens`: its record says what is
    /// found.
    pub fn scan_notification_of_call(
        &self,
        scanners: &Self,
        method: &str,
        params: Raw,
    ) -> Option<Raw> {
        let token = match method {
            notice::PROGRESS => {
                UnscannedMember::of(&params, "progressToken", Raw::from_static("0"))
            }
            _ => None,
        };
        self.scan_except(token, method, params, scanners)
    }

    /// The same of an update of a resource that the client itself has named.
    pub fn scan_resource_update(&self, scanners: &Self, params: Raw) -> Option<Raw> {
        let uri = UnscannedMember::of(&params, "uri", Raw::from_static("\"\""));
        self.scan_except(uri, notice::RESOURCE_UPDATED, params, scanners)
    }

    /// What of `params` may pass, with `named` as it is: that is the word of the client, who knows by it
    /// what is meant.
    fn scan_except(
        &self,
        named: Option<UnscannedMember>,
        method: &str,
        params: Raw,
        scanners: &Self,
    ) -> Option<Raw> {
        let Some(named) = named else {
            return self.scan_params(notification_directions(method), params, scanners);
        };
        let passed = self.scan_params(
            notification_directions(method),
            named.without.clone(),
            scanners,
        )?;
        Some(named.restore(&passed))
    }

    /// The params of what a client tells as its server may see them; `None` when it must not pass.
    pub fn scan_client_notification(&self, params: Raw) -> Option<Raw> {
        self.scan_params(&[Direction::Arguments], params, self)
    }

    /// What of `params` may pass; what is found is noted for the call of `noting`.
    fn scan_params(&self, directions: &[Direction], params: Raw, noting: &Self) -> Option<Raw> {
        if directions.iter().all(|direction| self.is_idle(*direction)) {
            return Some(params);
        }
        if params.as_bytes().len() > LARGE_BYTES {
            tracing::warn!("dropped a notification that is too large to scan");
            return None;
        }
        let seen = self.scan_directions(directions, &params);
        noting.note_findings(&seen);
        seen.into_params(params)
    }

    /// Looks at `data` in this thread, in several directions.
    fn scan_directions(&self, directions: &[Direction], data: &Raw) -> ScanReport {
        let mut seen = ScanReport::default();
        for direction in directions {
            let current = seen.redacted.as_ref().unwrap_or(data);
            let (mut more, _) = self.scan_now(*direction, current, None);
            if seen.redacted.is_some() {
                // The stricter wins here too.
                let (whole, _) = self.scan_now(*direction, data, None);
                if !whole.blocked.is_empty() {
                    more = whole;
                }
            }
            seen.merge(more);
        }
        seen
    }

    /// Whether what a server asks is so large that [`CallScanners::scan_large_question`] is for it.
    pub fn is_large_question(&self, params: &Raw) -> bool {
        !self.is_idle(Direction::Results) && params.as_bytes().len() > LARGE_BYTES
    }

    /// What a server asks its client, as the client may see it.
    ///
    /// # Errors
    /// What the server is told when the client may not be asked that.
    pub fn scan_question(&self, params: Raw) -> Result<Raw, RpcError> {
        if self.is_idle(Direction::Results) {
            return Ok(params);
        }
        let (seen, _) = self.scan_now(Direction::Results, &params, None);
        self.question_verdict(seen, params)
    }

    /// As [`CallScanners::scan_question`], aside when `params` are large.
    ///
    /// # Errors
    /// As [`CallScanners::scan_question`].
    pub async fn scan_large_question(&self, params: Raw) -> Result<Raw, RpcError> {
        let seen = self.scan(Direction::Results, &params, || None).await;
        self.question_verdict(seen, params)
    }

    fn question_verdict(&self, seen: ScanReport, params: Raw) -> Result<Raw, RpcError> {
        self.note_findings(&seen);
        if seen.blocked.is_empty() {
            return Ok(seen.redacted.unwrap_or(params));
        }
        Err(refusal::server_error(
            self.0.codes,
            "PII in the request to the client",
        ))
    }

    /// What a client answered its server, as the server may see it. `schema` says what the `content`
    /// of the answer must be like, where the server said so.
    pub async fn scan_client_reply(&self, outcome: Outcome, schema: Option<&Raw>) -> Outcome {
        if self.is_idle(Direction::Arguments) {
            return outcome;
        }
        let schema = || schema.cloned().map(OutputSchema::new);
        let (Ok(body) | Err(body)) = &outcome;
        let seen = self.scan(Direction::Arguments, body, schema).await;
        self.note_findings(&seen);
        if !seen.blocked.is_empty() {
            return Err(refusal::server_error(self.0.codes, "PII in the client's answer").to_raw());
        }
        match seen.redacted {
            Some(masked) => replace_body(&outcome, masked),
            None => outcome,
        }
    }

    /// Notes what was found beside the arguments and the answer of a call.
    fn note_findings(&self, seen: &ScanReport) {
        let Some(summary) = seen.summary() else {
            return;
        };
        if let Some(beside) = lock(&self.0.other_findings).as_mut() {
            beside.would_block |= seen.would_block;
            beside.count(&seen.found);
        } else {
            tracing::info!(found = summary, "scanned data outside of a call");
        }
    }
}

impl ScanReport {
    /// `params`, in which this was found, as they may pass; `None` when they must not.
    fn into_params(self, params: Raw) -> Option<Raw> {
        let may_pass = self.blocked.is_empty();
        may_pass.then(|| self.redacted.unwrap_or(params))
    }

    /// Adds what another look at the same has found.
    fn merge(&mut self, more: Self) {
        self.blocked.extend(more.blocked);
        self.would_block |= more.would_block;
        self.count(&more.found);
        self.redacted = more.redacted.or(self.redacted.take());
    }

    fn count(&mut self, found: &BTreeMap<(Arc<str>, ScanAction), u64>) {
        for (what, times) in found {
            *self.found.entry(what.clone()).or_default() += times;
        }
    }

    /// What the record says was found.
    pub(super) fn summary(&self) -> Option<String> {
        if self.found.is_empty() {
            return None;
        }
        let parts = self.found.iter().map(|((class, action), times)| {
            let verb = match action {
                ScanAction::Block => "blocked",
                ScanAction::Off | ScanAction::Report => "reported",
                ScanAction::Redact => "redacted",
            };
            format!("{class} x{times} {verb}")
        });
        Some(format!("scan: {}", parts.collect::<Vec<_>>().join(", ")))
    }
}

/// Where in the `params` of a request of `method` is what is looked at, and in which direction it counts:
/// all that is written into them, but what says what is asked for, is for the protocol, or is sealed. A member that stands there twice is looked at
/// twice, since servers differ in which they take; some ignore case.
pub(super) fn request_parts(method: &Method, params: &Raw) -> Vec<(Direction, Range<usize>)> {
    // What the client answers to what its server asked before (2026-07-28).
    const INPUT_RESPONSES: &str = "inputResponses";
    let (direction, subject) = match method {
        Method::ToolsCall => (Direction::Arguments, "name"),
        Method::ResourcesRead => (Direction::Arguments, "uri"),
        Method::PromptsGet => (Direction::Prompts, "name"),
        Method::Complete => (Direction::Prompts, "ref"),
        Method::Other(_) => return vec![(Direction::Arguments, 0..params.as_bytes().len())],
        Method::Discover
        | Method::Initialize
        | Method::Listen
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => return Vec::new(),
    };
    let json = params.as_bytes();
    let is_looked_at = |member: &json::Member| {
        let mut hidden = [subject, "_meta", REQUEST_STATE].into_iter();
        !hidden.any(|name| member.matches_ignoring_case(json, name))
    };
    let looked_at = json::members(json, 0).filter(is_looked_at).map(|member| {
        let is_answer = member.matches_ignoring_case(json, INPUT_RESPONSES);
        let direction = if is_answer {
            Direction::Arguments
        } else {
            direction
        };
        (direction, member.value)
    });
    looked_at.collect()
}

/// In which directions the answer to a request counts. What its server asks in it (2026-07-28)
/// counts as a result, whatever the request is.
pub(super) fn answer_directions(method: &Method, outcome: &Outcome) -> &'static [Direction] {
    let asks = || {
        let result = outcome.as_ref();
        result.is_ok_and(|result| result.member("inputRequests").is_some())
    };
    match method {
        Method::PromptsGet if asks() => &[Direction::Prompts, Direction::Results],
        Method::ResourcesRead if asks() => &[Direction::Resources, Direction::Results],
        Method::PromptsGet | Method::Complete => &[Direction::Prompts],
        Method::ResourcesRead => &[Direction::Resources],
        Method::Discover
        | Method::Initialize
        | Method::Listen
        | Method::Other(_)
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsCall
        | Method::ToolsList => &[Direction::Results],
    }
}

/// In which directions a notification counts: that of a task has in it what a `tasks/get` would be
/// answered, the result of the task and what its server asks meanwhile.
fn notification_directions(method: &str) -> &'static [Direction] {
    if tasks::is_task_notification(method) {
        &[Direction::Notifications, Direction::Results]
    } else {
        &[Direction::Notifications]
    }
}

/// The params with other parts in the place of some.
pub(super) fn replace_parts(params: &Raw, parts: Vec<(Range<usize>, Raw)>) -> Raw {
    let mut patch = Patch::new(params.as_bytes());
    for (span, part) in parts {
        patch.replace(span, part.as_bytes().to_vec());
    }
    patch.finish()
}

/// A member that nobody looks at.
pub(super) struct UnscannedMember {
    name: &'static str,
    /// All the rest, and something in its place.
    pub(super) without: Raw,
    written: Raw,
}

/// The `requestState` in `body`, the answer of a server of `revision`, where it has one: opaque to all
/// but its server, which gets it back and may refuse the call when a byte of it differs.
pub(super) fn unscanned_state(body: &Raw, revision: Option<&str>) -> Option<UnscannedMember> {
    if revision != Some(Revision::MODERN.as_str()) || !is_input_required(body) {
        return None;
    }
    UnscannedMember::of(body, REQUEST_STATE, Raw::from_static("\"\""))
}

impl UnscannedMember {
    /// The member `name` of `body`, where it has one, and `stands_in` for it.
    fn of(body: &Raw, name: &'static str, stands_in: Raw) -> Option<Self> {
        let span = body.member(name)?;
        Some(Self {
            name,
            written: body.slice(span.clone()),
            without: replace_parts(body, vec![(span, stands_in)]),
        })
    }

    /// `masked`, which came of what is without it, with the member as it was written.
    pub(super) fn restore(&self, masked: &Raw) -> Raw {
        match masked.member(self.name) {
            Some(span) => replace_parts(masked, vec![(span, self.written.clone())]),
            None => masked.clone(),
        }
    }
}

/// The outcome with another body.
pub(super) fn replace_body(outcome: &Outcome, body: Raw) -> Outcome {
    match outcome {
        Ok(_) => Ok(body),
        Err(_) => Err(body),
    }
}

/// What `look` has found. What could not be looked at, since that broke off, does not pass; why is not
/// said, as that may quote the data.
async fn scan_or_block(look: impl Future<Output = (ScanReport, bool)>) -> (ScanReport, bool) {
    let looked = AssertUnwindSafe(look).catch_unwind().await;
    looked.unwrap_or_else(|_| {
        tracing::error!("a scan panicked");
        let seen = ScanReport {
            blocked: vec![UNSCANNED_CLASS.into()],
            ..ScanReport::default()
        };
        (seen, false)
    })
}

#[cfg(test)]
mod tests;
