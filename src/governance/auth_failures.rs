//! Who is refused for want of a key that opens something: each is counted, and the audit and the log
//! hear of them so seldom that a flood fills no disk and slows nobody.
//!
//! What comes first from a network with a reason is told at once; what comes like it within a minute
//! is counted, and told in one with that count. A task looks after this, so that the count is told also
//! when nobody comes any more.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    Governance,
    refusal_meter::{HeldBackSum, summary},
};
use crate::{
    audit::{EventKind, FloodMeter, FloodSum},
    auth::{AuthError, RefusedRequest},
    lock::lock,
    names::PeerAddress,
    store::KeyId,
    task::Tasks,
};

/// Between two looks whether something has waited so long.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Networks that are told apart for each reason. More at a time are an attack, of which single
/// addresses say little: the rest are told together. So callers without a key, who can choose between two
/// reasons, cause 66 events a minute at most, which is some 25 MB of the audit a day.
const SOURCES_MAX: usize = 32;

/// Whom the audit and the log have heard of lately: by reason, so that many who have one hide nobody
/// who has another.
#[derive(Debug)]
pub(super) struct AuthFailureLog(Mutex<FloodMeter<&'static str, FailureGroup, PeerAddress>>);

impl Default for AuthFailureLog {
    fn default() -> Self {
        Self(Mutex::new(FloodMeter::new(1, SOURCES_MAX)))
    }
}

/// What is told in one.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct FailureGroup {
    /// `None` for all for whom there is no room.
    network: Option<PeerAddress>,
    /// The id of a key that has ended: behind a proxy, all come from one address.
    key: Option<KeyId>,
}

/// What is to be told.
#[derive(Clone, Debug, Eq, PartialEq)]
struct FailureNotice {
    /// An address, or what stands for several.
    source: String,
    reason: &'static str,
    key: Option<KeyId>,
    /// How many are told in one, beside the one that was told before.
    suppressed: u64,
}

impl Governance {
    /// Counts that a request from `source` has no agent; the audit and the log are told, if they have
    /// not just been. Behind a reverse proxy, `source` is its address.
    pub fn record_auth_failure(
        &self,
        why: &AuthError,
        source: PeerAddress,
        request: RefusedRequest<'_>,
    ) {
        self.counters.count_unauthenticated(why.reason());
        if let Some(notice) = self.auth_failures.record(source, why, Instant::now()) {
            self.record_notice(&notice, Some((request, why.subject())));
        }
    }

    /// The same of a request to the authorization server.
    pub fn record_oauth_refusal(
        &self,
        reason: &'static str,
        source: PeerAddress,
        request: RefusedRequest<'_>,
    ) {
        self.counters.count_unauthenticated(reason);
        let now = Instant::now();
        if let Some(notice) = self.auth_failures.record_reason(source, reason, None, now) {
            self.record_notice(&notice, Some((request, None)));
        }
    }

    /// Counts that a request was refused for a header: `reason` is `host` or `origin`.
    pub fn record_forbidden(&self, reason: &'static str) {
        self.counters.count_forbidden(reason);
    }

    /// Begins to tell of those of whom only the number is left to tell.
    pub fn spawn_auth_failure_notices(self: &Arc<Self>, tasks: &Tasks) {
        let governance = Arc::clone(self);
        let stop = tasks.stop_token().clone();
        tasks.spawn("auth failures", async move {
            let mut look = interval(CHECK_INTERVAL);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = look.tick() => {}
                    () = stop.cancelled() => break,
                }
                governance.record_notices(&governance.auth_failures.due_notices(Instant::now()));
                governance.record_summed_refusals(&governance.refusals.due_sums());
                governance.note_question_sums(&governance.questions.due_sums());
            }
            governance.record_notices(&governance.auth_failures.remaining_notices());
            governance.record_summed_refusals(&governance.refusals.remaining_sums());
            governance.note_question_sums(&governance.questions.remaining_sums());
        });
    }

    /// Records how many requests were held back.
    fn record_summed_refusals(&self, sums: &[HeldBackSum]) {
        for sum in sums {
            let refusals = summary(sum);
            let (agent, count) = (refusals.agent_name, refusals.count);
            tracing::warn!(
                agent,
                count,
                "requests were throttled after too many refusals"
            );
            // Kept in order with everything else; nobody waits for it.
            drop(self.storage.audit.record_refusals(&refusals));
        }
    }

    fn record_notices(&self, notices: &[FailureNotice]) {
        for notice in notices {
            self.record_notice(notice, None);
        }
    }

    /// Tells of `notice`, and of the request with the subject of its certificate, if it is about one.
    fn record_notice(
        &self,
        notice: &FailureNotice,
        request: Option<(RefusedRequest<'_>, Option<&str>)>,
    ) {
        let detail = notice.detail();
        let (request, subject) = request.unzip();
        // A decision, not a fault of ours, but somebody has to renew a key or to look who this is.
        tracing::warn!(
            source = notice.source,
            reason = detail,
            subject = subject.flatten(),
            path = request.map(|it| it.path),
            user_agent = request.map(|it| it.user_agent),
            "authentication refused"
        );
        let event = EventKind::AuthenticationRefused;
        self.record_event(event, &notice.source, None, Some(&detail));
    }
}

impl AuthFailureLog {
    /// Notes a request, and gives what is to be told of it.
    fn record(&self, source: PeerAddress, why: &AuthError, now: Instant) -> Option<FailureNotice> {
        // Many clients begin without a key and come again with one once they have read the challenge:
        // one that is missing is no sign of anything, and its number says enough.
        if why.is_missing() {
            return None;
        }
        self.record_reason(source, why.reason(), why.key(), now)
    }

    fn record_reason(
        &self,
        source: PeerAddress,
        reason: &'static str,
        key: Option<&KeyId>,
        now: Instant,
    ) -> Option<FailureNotice> {
        let key = FailureGroup {
            network: Some(source.to_network()),
            key: key.cloned(),
        };
        let others = FailureGroup {
            network: None,
            key: None,
        };
        let group = lock(&self.0).count(reason, (key, others), (source, 1), now)?;
        Some(FailureNotice::new(reason, group, source, 0))
    }

    /// What has waited long enough at `now`; whoever did not come again meanwhile is forgotten.
    fn due_notices(&self, now: Instant) -> Vec<FailureNotice> {
        let due = lock(&self.0).due_sums(now).into_iter();
        due.map(FailureNotice::of_sum).collect()
    }

    /// What was not told yet, at the end.
    fn remaining_notices(&self) -> Vec<FailureNotice> {
        let rest = lock(&self.0).remaining_sums().into_iter();
        rest.map(FailureNotice::of_sum).collect()
    }
}

impl FailureNotice {
    fn new(reason: &'static str, group: FailureGroup, last: PeerAddress, suppressed: u64) -> Self {
        let source = group.network.map(|_| last.to_string());
        Self {
            source: source.unwrap_or_else(|| "other addresses".to_owned()),
            reason,
            key: group.key,
            suppressed,
        }
    }

    fn of_sum((reason, group, sum): (&'static str, FailureGroup, FloodSum<PeerAddress>)) -> Self {
        Self::new(reason, group, sum.last, sum.count)
    }

    /// For people, and free of secrets: the id of a key is none.
    fn detail(&self) -> String {
        let mut detail = self.reason.to_owned();
        if let Some(key) = &self.key {
            detail = format!("{detail} {key}");
        }
        if self.suppressed > 0 {
            detail = format!("{detail}: {} more since the last report", self.suppressed);
        }
        detail
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::{
        audit::{AuditLog, SUM_INTERVAL},
        auth::{AgentDirectory, KeyRejection},
        config::{self, Environment},
        governance::{Seal, Storage},
    };

    const REQUEST: RefusedRequest<'_> = RefusedRequest {
        path: "/mcp",
        user_agent: "test",
    };
    const UNKNOWN: AuthError = AuthError::Rejected(KeyRejection::Unknown);

    /// What came of a request or of a look, as the audit has it.
    fn said(notices: impl IntoIterator<Item = FailureNotice>) -> Vec<String> {
        let said = notices
            .into_iter()
            .map(|it| format!("{} {}", it.source, it.detail()));
        let mut said: Vec<String> = said.collect();
        said.sort_unstable();
        said
    }

    fn ip(text: &str) -> PeerAddress {
        PeerAddress::Ip(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_told_once_a_minute_and_counted() {
        let (failures, start) = (AuthFailureLog::default(), Instant::now());
        let meet = |source, at| said(failures.record(ip(source), &UNKNOWN, start + at));
        let due = |at| said(failures.due_notices(start + at));
        assert_eq!(meet("192.0.2.1", Duration::ZERO), ["192.0.2.1 unknown"]);
        for _ in 0..1000 {
            assert!(meet("192.0.2.1", SUM_INTERVAL / 2).is_empty());
        }
        assert!(due(CHECK_INTERVAL * 3).is_empty(), "too early");
        let more = "192.0.2.1 unknown: 1000 more since the last report";
        assert_eq!(due(SUM_INTERVAL), [more]);
        assert!(meet("192.0.2.1", SUM_INTERVAL + CHECK_INTERVAL).is_empty());
        assert!(
            due(SUM_INTERVAL + CHECK_INTERVAL * 3).is_empty(),
            "it was just said"
        );
        let more = "192.0.2.1 unknown: 1 more since the last report";
        assert_eq!(due(SUM_INTERVAL * 2), [more]);
        assert!(due(SUM_INTERVAL * 3).is_empty(), "nobody came");
        assert_eq!(meet("192.0.2.1", SUM_INTERVAL * 3), ["192.0.2.1 unknown"]);
        assert!(meet("192.0.2.1", SUM_INTERVAL * 3).is_empty());
        assert_eq!(said(failures.remaining_notices()), [more], "at the end");
        assert!(failures.remaining_notices().is_empty());
    }

    /// What was held back is told though nobody comes any more, and what is left at the end.
    #[tokio::test(start_paused = true)]
    async fn a_task_tells_what_was_held_back() {
        let directory = tempfile::tempdir().unwrap();
        let log_dir = directory.path().join("audit");
        let (governance, tasks) = (governance(&log_dir), Tasks::new());
        governance.spawn_auth_failure_notices(&tasks);
        let details = || {
            while !governance.audit().is_synced() {
                std::thread::yield_now();
            }
            let segments = std::fs::read_dir(&log_dir).unwrap();
            let texts = segments.map(|it| std::fs::read(it.unwrap().path()).unwrap());
            let texts = texts.map(|text| String::from_utf8(text).unwrap());
            let detail = |line: &str| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                let is_it = line["event"] == "authentication_refused";
                is_it.then(|| line["detail"].as_str().unwrap().to_owned())
            };
            let lines = texts.flat_map(|text| text.lines().filter_map(detail).collect::<Vec<_>>());
            lines.collect::<Vec<_>>()
        };
        for _ in 0..3 {
            governance.record_auth_failure(&UNKNOWN, ip("192.0.2.1"), REQUEST);
        }
        assert_eq!(details(), ["unknown"]);
        tokio::time::sleep(SUM_INTERVAL + CHECK_INTERVAL).await;
        let more = |count| format!("unknown: {count} more since the last report");
        assert_eq!(details(), ["unknown", &more(2)]);
        governance.record_auth_failure(&UNKNOWN, ip("192.0.2.1"), REQUEST);
        tasks.finish().await;
        assert_eq!(details(), ["unknown", &more(2), &more(1)]);
        assert_eq!(governance.counts().unauthenticated["unknown"], 4);
    }

    fn governance(log_dir: &Path) -> Arc<Governance> {
        let source = config::ConfigText {
            name: "test.toml".to_owned(),
            format: config::ConfigFormat::Toml,
            text: "[governance]\nauth = 'keys'\n".to_owned(),
            directory: PathBuf::new(),
        };
        let loaded = config::parse([source], &Environment::default()).unwrap();
        let config = loaded.config;
        let storage = Storage {
            directory: Arc::new(AgentDirectory::new(
                config.governance.auth,
                std::iter::empty(),
            )),
            audit: Arc::new(AuditLog::open(log_dir, config.audit).unwrap()),
            budgets: None,
            seal: Seal::new(&[0; 32]),
            tasks: None,
        };
        Arc::new(Governance::new(&config, storage).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn more_sources_than_are_told_apart_are_told_together() {
        let (failures, start) = (AuthFailureLog::default(), Instant::now());
        let meet = |last: usize, at| {
            let source = ip(&format!("192.0.2.{last}"));
            said(failures.record(source, &UNKNOWN, start + at))
        };
        for last in 0..SOURCES_MAX {
            let expect = format!("192.0.2.{last} unknown");
            assert_eq!(meet(last, Duration::ZERO), [expect]);
        }
        let past = SOURCES_MAX;
        assert_eq!(meet(past, CHECK_INTERVAL), ["other addresses unknown"]);
        for last in past..200 {
            assert!(meet(last, CHECK_INTERVAL).is_empty());
        }
        assert_eq!(lock(&failures.0).keys(), SOURCES_MAX + 1);
        let why = AuthError::Rejected(KeyRejection::Revoked(KeyId::new("key_1")));
        let other = said(failures.record(ip("192.0.2.250"), &why, start + CHECK_INTERVAL));
        assert_eq!(other, ["192.0.2.250 revoked key_1"], "it is not hidden");
        assert!(
            failures.due_notices(start + SUM_INTERVAL).is_empty(),
            "no more of them"
        );
        assert_eq!(
            meet(past, SUM_INTERVAL),
            ["192.0.2.32 unknown"],
            "there is room"
        );
        let rest = said(failures.remaining_notices());
        let others = "other addresses unknown: 168 more since the last report";
        assert_eq!(rest, [others]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alike_is_told_in_one() {
        let (failures, start) = (AuthFailureLog::default(), Instant::now());
        let meet = |source, why: &AuthError| said(failures.record(ip(source), why, start));
        let expired = |key| AuthError::Rejected(KeyRejection::Expired(KeyId::new(key)));
        assert!(
            meet(
                "192.0.2.1",
                &AuthError::Missing(config::Authentication::KEYS)
            )
            .is_empty()
        );
        assert!(said(failures.remaining_notices()).is_empty());
        let key_1 = meet("192.0.2.1", &expired("key_1"));
        assert_eq!(key_1, ["192.0.2.1 expired key_1"]);
        let key_2 = meet("192.0.2.1", &expired("key_2"));
        assert_eq!(key_2, ["192.0.2.1 expired key_2"], "another key");
        let several = meet("192.0.2.1", &AuthError::Ambiguous);
        assert_eq!(several, ["192.0.2.1 several"], "another reason");
        let mapped = meet("::ffff:192.0.2.1", &expired("key_1"));
        assert!(mapped.is_empty(), "the same address in another form");
        let first = meet("2001:db8:0:1::1", &UNKNOWN);
        assert_eq!(first, ["2001:db8:0:1::1 unknown"]);
        assert!(meet("2001:db8:0:1:ffff::2", &UNKNOWN).is_empty());
        let other = meet("2001:db8:0:2::1", &UNKNOWN);
        assert_eq!(other, ["2001:db8:0:2::1 unknown"], "another network");
        assert!(meet("2001:db8:0:1::3", &UNKNOWN).is_empty());
        let expect = [
            "192.0.2.1 expired key_1: 1 more since the last report",
            "2001:db8:0:1::3 unknown: 2 more since the last report",
        ];
        assert_eq!(said(failures.remaining_notices()), expect);
    }
}
