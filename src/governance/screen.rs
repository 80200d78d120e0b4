//! Looking at data on its way: arguments before they reach a server, and what comes back before it
//! reaches the client.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{sync::Semaphore, task::spawn_blocking};

use super::refusal::Refusal;
use crate::{
    config::{Scan, ScanAction},
    mcp::{Method, Outcome, Raw, json::Patch},
    scan::{Direction, InvalidScan, OutputSchema, Scanner, Verdict},
};

/// Data larger than this is looked at on a thread of its own, so that other calls go on meanwhile.
pub const LARGE_BYTES: usize = 256 << 10;

/// How many such threads work at once; the rest wait for their turn.
static LARGE: Semaphore = Semaphore::const_new(4);

/// Every scanner in use, once for each `scan` section that says the same.
#[derive(Debug, Default)]
pub(super) struct Scanners(Mutex<Vec<(Scan, Weak<Scanner>)>>);

impl Scanners {
    /// The scanner for `scan`, compiled where nobody has it.
    pub(super) fn of(&self, scan: &Scan) -> Result<Arc<Scanner>, InvalidScan> {
        // Compiling takes milliseconds and happens at the start and when an agent changes: whoever
        // wants the same meanwhile waits for it.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The scanners that apply to a call: that of the agent's terms, and that of the server.
#[derive(Clone, Debug)]
pub struct Screens {
    first: Arc<Scanner>,
    second: Option<Arc<Scanner>>,
    /// Whether what would be blocked or redacted is only reported.
    observe: bool,
}

/// What a look at some data has found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The data with masks, when something was redacted.
    pub(super) redacted: Option<Raw>,
    /// The classes for which it must not pass.
    pub(super) blocked: Vec<Arc<str>>,
    /// Whether it would not pass, were the scan more than observed.
    pub(super) would_block: bool,
    /// What was found, for the record: class, times, what was done.
    pub(super) found: BTreeMap<(Arc<str>, ScanAction), u64>,
}

impl Screens {
    /// The scanner of the terms comes first; nothing where there is none at all.
    pub(super) fn new(
        terms: Option<&Arc<Scanner>>,
        server: Option<&Arc<Scanner>>,
        observe: bool,
    ) -> Option<Self> {
        let mut all = [terms, server].into_iter().flatten();
        Some(Self {
            first: Arc::clone(all.next()?),
            second: all.next().map(Arc::clone),
            observe,
        })
    }

    fn scanners(&self) -> impl Iterator<Item = &Scanner> {
        std::iter::once(&*self.first).chain(self.second.as_deref())
    }

    fn is_idle(&self, direction: Direction) -> bool {
        self.scanners().all(|scanner| scanner.is_idle(direction))
    }

    /// Looks at `data`; large data on a thread of its own. `schema` is asked for only where something
    /// is redacted.
    pub(super) async fn look(
        &self,
        direction: Direction,
        data: &Raw,
        schema: impl Fn() -> Option<OutputSchema>,
    ) -> Seen {
        if self.is_idle(direction) {
            return Seen::default();
        }
        if data.as_bytes().len() <= LARGE_BYTES {
            return self.look_now(direction, data, schema);
        }
        let (screens, data, schema) = (self.clone(), data.clone(), schema());
        let turn = LARGE.acquire().await;
        let work = spawn_blocking(move || screens.look_now(direction, &data, || schema.clone()));
        let seen = work.await.unwrap_or_else(|error| {
            // Fail closed: what could not be looked at does not pass.
            tracing::error!(%error, "a scan broke off");
            Seen {
                blocked: vec!["unscanned".into()],
                ..Seen::default()
            }
        });
        drop(turn);
        seen
    }

    fn look_now(
        &self,
        direction: Direction,
        data: &Raw,
        schema: impl Fn() -> Option<OutputSchema>,
    ) -> Seen {
        let mut seen = Seen::default();
        for scanner in self.scanners() {
            let current = seen.redacted.as_ref().unwrap_or(data);
            let verdict = scanner.scan(direction, current, &schema);
            self.take(verdict, &mut seen);
        }
        seen
    }

    fn take(&self, verdict: Verdict, seen: &mut Seen) {
        for hit in verdict.hits {
            seen.would_block |= self.observe && hit.action == ScanAction::Block;
            let action = if self.observe {
                ScanAction::Report
            } else {
                hit.action
            };
            if action == ScanAction::Block && !seen.blocked.contains(&hit.class) {
                seen.blocked.push(hit.class.clone());
            }
            *seen.found.entry((hit.class, action)).or_default() += hit.count;
        }
        if !self.observe {
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

    /// A notification's params as the client may see them; `None` when it must not pass.
    pub fn notification(&self, params: Raw) -> Option<Raw> {
        if self.is_idle(Direction::Notifications) {
            return Some(params);
        }
        if params.as_bytes().len() > LARGE_BYTES {
            tracing::warn!(
                "a notification is too large to be looked at on its way; it is withheld"
            );
            return None;
        }
        let seen = self.look_now(Direction::Notifications, &params, || None);
        if !seen.blocked.is_empty() {
            return None;
        }
        Some(seen.redacted.unwrap_or(params))
    }
}

impl Seen {
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

/// What is looked at in a request, and in which direction it counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// This member of the params.
    Member(Direction, &'static str),
    /// All of the params.
    Whole(Direction),
}

impl Part {
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::Member(direction, _) | Self::Whole(direction) => direction,
        }
    }

    /// Where it stands in `params`; nowhere when they have no such member.
    pub(super) fn span(self, params: &Raw) -> Option<std::ops::Range<usize>> {
        match self {
            Self::Member(_, member) => params.member(member),
            Self::Whole(_) => Some(0..params.as_bytes().len()),
        }
    }
}

/// What is looked at in requests of `method`.
pub(super) fn of_request(method: &Method) -> &'static [Part] {
    match method {
        Method::ToolsCall => &[Part::Member(Direction::Arguments, "arguments")],
        Method::PromptsGet => &[Part::Member(Direction::Prompts, "arguments")],
        // What was completed before is in the context.
        Method::Complete => &[
            Part::Member(Direction::Prompts, "argument"),
            Part::Member(Direction::Prompts, "context"),
        ],
        Method::Other(_) => &[Part::Whole(Direction::Arguments)],
        Method::Discover
        | Method::Initialize
        | Method::Listen
        | Method::Ping
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => &[],
    }
}

/// In which direction the answer to a request counts.
pub(super) fn of_answer(method: &Method) -> Direction {
    match method {
        Method::PromptsGet | Method::Complete => Direction::Prompts,
        Method::ResourcesRead => Direction::Resources,
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
        | Method::ToolsList => Direction::Results,
    }
}

/// The params with the part at `span` replaced.
pub(super) fn with_part(params: &Raw, span: std::ops::Range<usize>, part: &Raw) -> Raw {
    let mut patch = Patch::new(params.as_bytes());
    patch.replace(span, part.as_bytes().to_vec());
    patch.finish()
}

/// The outcome with another body.
pub(super) fn with_body(outcome: &Outcome, body: Raw) -> Outcome {
    match outcome {
        Ok(_) => Ok(body),
        Err(_) => Err(body),
    }
}

/// Where on its way something must not pass.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Leg {
    /// From the server to the client.
    Answer,
    /// From the client to the server.
    Request,
}

/// The refusal for what must not pass on `leg`.
pub(super) fn refuse(classes: Vec<Arc<str>>, leg: Leg) -> Refusal {
    match leg {
        Leg::Answer => Refusal::PiiInResult { classes },
        Leg::Request => Refusal::PiiInParams { classes },
    }
}

/// What arguments pass on their way into a record: everything that any detector finds is masked.
pub(super) fn masker() -> Result<Scanner, InvalidScan> {
    Scanner::new(&Scan {
        arguments: std::iter::once(("*".to_owned(), ScanAction::Redact)).collect(),
        ..Scan::default()
    })
}

/// Arguments as a record may hold them; `None` when that cannot be done.
pub(super) fn masked(masker: &Scanner, arguments: &Raw) -> Option<Raw> {
    let verdict = masker.scan(Direction::Arguments, arguments, || None);
    if verdict.blocked.is_some() {
        return None;
    }
    Some(verdict.redacted.unwrap_or_else(|| arguments.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(class: &str) -> Scan {
        Scan {
            results: std::iter::once((class.to_owned(), ScanAction::Redact)).collect(),
            ..Scan::default()
        }
    }

    #[test]
    fn what_scans_for_the_same_is_compiled_once() {
        let scanners = Scanners::default();
        let email = scanners.of(&scan("email")).unwrap();
        let again = scanners.of(&scan("email")).unwrap();
        let phone = scanners.of(&scan("phone")).unwrap();
        assert!(Arc::ptr_eq(&email, &again));
        assert!(!Arc::ptr_eq(&email, &phone));
        assert!(scanners.of(&scan("weather")).is_err());
    }

    #[test]
    fn a_scanner_that_nobody_uses_is_forgotten() {
        let scanners = Scanners::default();
        for _ in 0..3 {
            drop(scanners.of(&scan("email")).unwrap());
        }
        assert_eq!(scanners.0.lock().unwrap().len(), 1, "the last one");
    }

    #[test]
    fn both_scanners_look() {
        let scanners = Scanners::default();
        let compiled = |class| scanners.of(&scan(class)).unwrap();
        let (email, card) = (compiled("email"), compiled("credit_card"));
        let data = Raw::from_static(r#"["ann.lee@example.org","4111 1111 1111 1111"]"#);
        let check = |terms, server, expect: &str| {
            let Some(screens) = Screens::new(terms, server, false) else {
                return assert_eq!(expect, "", "nothing looks");
            };
            let seen = screens.look_now(Direction::Results, &data, || None);
            assert_eq!(seen.redacted.unwrap().as_str(), expect);
        };
        check(None, None, "");
        check(Some(&email), None, r#"["[EMAIL]","4111 1111 1111 1111"]"#);
        check(None, Some(&email), r#"["[EMAIL]","4111 1111 1111 1111"]"#);
        check(Some(&email), Some(&card), r#"["[EMAIL]","[CREDIT_CARD]"]"#);
    }
}
