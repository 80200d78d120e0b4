//! When a lost connection is made again, and which calls wait for that.
//!
//! - An instance waits longer after each failure in a row: its [`RetryTimer`].
//! - Calls wait for the first attempts ([`RETRIES_AWAITED_MAX`]). Later they fail at once, and trigger an
//!   attempt every two seconds at most.
//! - All instances of a server share a [`ReconnectPolicy`]. It limits how many starts come to nothing in a
//!   minute. Behind a URL all connections lead to the same server: if one is made, the others need not wait.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until},
};

use super::identity::InstanceIdentity;
use crate::{
    backend::{
        BackendError, link::pending::PendingRequests, sharing::Sharing, state_machine::StateMachine,
    },
    config::{Retry, Transport},
    lock::lock,
};

/// Failed attempts in a row that calls wait through, within their timeout.
pub(in crate::backend) const RETRIES_AWAITED_MAX: u32 = 3;
/// Least time from a failure to an attempt that a call triggers.
const RETRY_INTERVAL_MIN: Duration = Duration::from_secs(2);
/// Doublings of `retry.base`, so that no product overflows.
const DOUBLINGS_MAX: u32 = 16;
/// How far back starts are counted.
const STARTS_WINDOW: Duration = Duration::from_secs(60);
/// Instances without calls that are started at a time, so that a server that is back is not flooded.
const LISTENER_STARTS_MAX: usize = 4;

/// When the next attempt of one instance is made, and whether a call waits for it.
#[derive(Debug)]
pub(in crate::backend) struct RetryTimer {
    policy: Arc<ReconnectPolicy>,
    backoff: Mutex<Backoff>,
    wanted: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Backoff {
    /// In a row.
    failures: u32,
    /// `None` before the first failure and during an attempt.
    pause: Option<RetryPause>,
}

#[derive(Clone, Copy, Debug)]
struct RetryPause {
    /// When the attempt began that failed, or the connection was lost. A connection that another
    /// instance has made since ends the pause.
    since: Instant,
    failed_at: Instant,
    until: Instant,
}

impl Backoff {
    /// Counts a failure of a connection that had lasted for `up`; how long to wait.
    fn next_delay(&mut self, retry: Retry, up: Duration) -> Duration {
        if up >= retry.stable_after {
            self.failures = 0;
        }
        let factor = 1u32 << self.failures.min(DOUBLINGS_MAX);
        self.failures = self.failures.saturating_add(1);
        let full = retry.base.saturating_mul(factor).min(retry.max);
        full.mul_f64(1.0 - retry.jitter * random_fraction())
    }
}

impl RetryTimer {
    pub(in crate::backend) fn new(policy: &Arc<ReconnectPolicy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            backoff: Mutex::default(),
            wanted: watch::Sender::default(),
        }
    }

    /// An attempt begins.
    pub(in crate::backend) fn note_attempt(&self) {
        lock(&self.backoff).pause = None;
    }

    /// An attempt that began at `since` failed, or a connection was lost then that had lasted for `up`.
    pub(in crate::backend) fn note_failure(&self, retry: Retry, since: Instant, up: Duration) {
        let mut backoff = lock(&self.backoff);
        let failed_at = Instant::now();
        let until = failed_at + backoff.next_delay(retry, up);
        backoff.pause = Some(RetryPause {
            since,
            failed_at,
            until,
        });
    }

    /// The server no longer knew the session of a connection that had lasted for `up`. It is there, so there
    /// is no pause unless that happens again and again.
    pub(in crate::backend) fn note_forgotten(&self, retry: Retry, up: Duration) {
        self.note_failure(retry, Instant::now(), up);
        let mut backoff = lock(&self.backoff);
        if backoff.failures <= 1 {
            backoff.pause = None;
        }
    }

    /// Failures in a row.
    pub(in crate::backend) fn failures(&self) -> u32 {
        lock(&self.backoff).failures
    }

    /// Goes on with the count of a predecessor.
    pub(in crate::backend) fn set_failures(&self, failures: u32) {
        lock(&self.backoff).failures = failures;
    }

    fn pause(&self) -> Option<RetryPause> {
        lock(&self.backoff).pause
    }

    /// When the next attempt may be made, if not now.
    pub(in crate::backend) fn due_at(&self) -> Option<Instant> {
        let pause = self.pause()?;
        let is_over = Instant::now() >= pause.until || self.policy.was_reached(pause.since);
        (!is_over).then_some(pause.until)
    }

    /// Time until the next attempt, at most `max` after the failure.
    pub(in crate::backend) fn remaining(&self, max: Duration) -> Duration {
        let Some(until) = self.due_at() else {
            return Duration::ZERO;
        };
        let latest = self.pause().map(|pause| pause.failed_at + max);
        let until = latest.map_or(until, |latest| until.min(latest));
        until.saturating_duration_since(Instant::now())
    }

    /// Completes when the next attempt may be made.
    pub(in crate::backend) async fn due(&self) {
        if let Some(pause) = self.pause() {
            tokio::select! {
                () = sleep_until(pause.until) => {}
                () = self.policy.reached(pause.since) => {}
            }
        }
    }

    /// Completes when another instance has made a connection since the last failure.
    pub(in crate::backend) async fn reached(&self) {
        match self.pause() {
            Some(pause) => self.policy.reached(pause.since).await,
            None => std::future::pending().await,
        }
    }

    /// A call waits for a connection.
    pub(in crate::backend) fn want(&self) {
        self.wanted.send_replace(true);
    }

    /// All calls that waited know what came of it.
    pub(in crate::backend) fn note_answered(&self) {
        self.wanted.send_replace(false);
    }

    pub(in crate::backend) fn is_wanted(&self) -> bool {
        *self.wanted.borrow()
    }

    /// Completes when a call waits for a connection.
    pub(in crate::backend) async fn wanted(&self) {
        // The sender is at hand: this cannot fail.
        drop(self.wanted.subscribe().wait_for(|wanted| *wanted).await);
    }

    /// Whether a call triggers an attempt at once: the last failure is [`RETRY_INTERVAL_MIN`] ago.
    pub(in crate::backend) fn may_hurry(&self) -> bool {
        let pause = self.pause();
        pause.is_some_and(|pause| pause.failed_at.elapsed() >= RETRY_INTERVAL_MIN)
    }

    /// Completes when a call triggers an attempt.
    pub(in crate::backend) async fn hurried(&self) {
        if let Some(pause) = self.pause() {
            sleep_until(pause.failed_at + RETRY_INTERVAL_MIN).await;
        }
        self.wanted().await;
    }
}

/// What the instances of one server have in common.
#[derive(Debug)]
pub(in crate::backend) struct ReconnectPolicy {
    starts: Mutex<StartLimiter>,
    listener_starts: Arc<Semaphore>,
    /// Whether all connections lead to one server; a program runs once for each.
    is_remote: bool,
    /// The catalog's connection, by which the state of the server is known.
    catalog: Mutex<Weak<PendingRequests>>,
    /// When a connection was made last, or a health check succeeded again.
    reached: watch::Sender<Option<Instant>>,
}

impl ReconnectPolicy {
    pub(in crate::backend) fn new(transport: &Transport, starts_per_minute: usize) -> Arc<Self> {
        let is_remote = match transport {
            Transport::Auto(_)
            | Transport::Http(_)
            | Transport::Sse(_)
            | Transport::WebSocket(_) => true,
            Transport::Builtin | Transport::ControlSocket(_) | Transport::Stdio(_) => false,
        };
        Arc::new(Self {
            starts: Mutex::new(StartLimiter::new(starts_per_minute)),
            listener_starts: Arc::new(Semaphore::new(LISTENER_STARTS_MAX)),
            is_remote,
            catalog: Mutex::default(),
            reached: watch::Sender::default(),
        })
    }

    pub(in crate::backend) fn set_starts_per_minute(&self, max: usize) {
        lock(&self.starts).set_max(max);
    }

    /// Whether what one connection finds out holds for all.
    pub(in crate::backend) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// The catalog's connection was made.
    pub(in crate::backend) fn note_catalog(&self, connection: &Arc<PendingRequests>) {
        *lock(&self.catalog) = Arc::downgrade(connection);
        self.note_reached();
    }

    /// A connection was made, or a health check succeeded again.
    pub(in crate::backend) fn note_reached(&self) {
        self.reached.send_replace(Some(Instant::now()));
    }

    fn was_reached(&self, since: Instant) -> bool {
        self.is_remote && self.reached.borrow().is_some_and(|at| at >= since)
    }

    async fn reached(&self, since: Instant) {
        if !self.is_remote {
            return std::future::pending().await;
        }
        let mut reached = self.reached.subscribe();
        // The sender is at hand: this cannot fail.
        drop(
            reached
                .wait_for(|at| at.is_some_and(|at| at >= since))
                .await,
        );
    }

    /// The server seems to be away: checks the catalog's connection.
    pub(in crate::backend) fn check_catalog(&self) {
        let catalog = lock(&self.catalog).upgrade();
        if let Some(catalog) = catalog.filter(|_| self.is_remote) {
            catalog.note_suspicion();
        }
    }

    /// The same as seen by `instance`. The catalog's own finds out by itself.
    pub(in crate::backend) fn note_suspicion(&self, instance: &InstanceIdentity) {
        if instance.shared_by.is_some() {
            self.check_catalog();
        }
    }

    /// A start that counts for `quota_key` failed, or its connection did not last.
    pub(in crate::backend) fn note_failed_start(&self, quota_key: Option<&StartQuotaKey>) {
        lock(&self.starts).record(quota_key, Instant::now());
    }

    /// How long the next start for `quota_key` has to wait, because too many came to nothing.
    pub(in crate::backend) fn start_wait(&self, quota_key: Option<&StartQuotaKey>) -> Duration {
        lock(&self.starts).wait_time(quota_key, Instant::now())
    }

    /// Why nothing can be started for `quota_key` now, if too many starts came to nothing.
    pub(in crate::backend) fn start_limit_error(
        &self,
        quota_key: Option<&StartQuotaKey>,
    ) -> Option<BackendError> {
        lock(&self.starts).limit_error(quota_key, Instant::now())
    }

    /// Completes when an instance without calls may be started: the server, whose state is `server`, is not
    /// down, few others are being started, and not too many such starts came to nothing.
    pub(in crate::backend) async fn listener_start_permit(
        &self,
        server: &StateMachine,
    ) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.listener_starts).acquire_owned().await;
        let turn = turn.expect("it is never closed");
        let mut changes = server.changes();
        loop {
            while server.is_down() {
                // The sender is at hand: this cannot fail.
                changes.changed().await.ok();
            }
            let wait = self.start_wait(Some(&StartQuotaKey::Listeners));
            if wait.is_zero() {
                return turn;
            }
            // Much may happen meanwhile.
            sleep(wait).await;
        }
    }
}

/// Who may use half of the starts at most, so that there are some left for others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::backend) enum StartQuotaKey {
    /// One caller with connections of its own.
    Caller(Sharing),
    /// All calls that trigger attempts of the catalog's instance.
    Callers,
    /// All subscribers with connections of their own that do not call.
    Listeners,
}

/// The starts of one server in the last minute that came to nothing; each process of a program counts.
#[derive(Debug)]
struct StartLimiter {
    max: usize,
    /// When, and for whom.
    failed: VecDeque<(Instant, Option<StartQuotaKey>)>,
}

impl StartLimiter {
    fn new(max: usize) -> Self {
        Self {
            max,
            failed: VecDeque::new(),
        }
    }

    fn set_max(&mut self, max: usize) {
        self.max = max;
        let surplus = self.failed.len().saturating_sub(max);
        self.failed.drain(..surplus);
    }

    fn record(&mut self, quota_key: Option<&StartQuotaKey>, now: Instant) {
        if self.failed.len() >= self.max {
            self.failed.pop_front();
        }
        self.failed.push_back((now, quota_key.cloned()));
    }

    fn wait_time(&self, quota_key: Option<&StartQuotaKey>, now: Instant) -> Duration {
        let all = self.failed.iter();
        let of_all = all.clone().nth_back(self.max - 1);
        let own = all.filter(|(_, whose)| quota_key.is_some() && whose.as_ref() == quota_key);
        let own = own.rev().nth(self.party_max() - 1);
        let ends = of_all.into_iter().chain(own);
        let ends = ends.map(|(at, _)| (*at + STARTS_WINDOW).saturating_duration_since(now));
        ends.max().unwrap_or_default()
    }

    fn limit_error(&self, quota_key: Option<&StartQuotaKey>, now: Instant) -> Option<BackendError> {
        let wait = self.wait_time(quota_key, now);
        let is_own = self.wait_time(None, now) < wait;
        (!wait.is_zero()).then(|| BackendError::StartsLimited {
            starts: if is_own { self.party_max() } else { self.max },
            until: now + wait,
        })
    }

    /// How many starts one key may use.
    fn party_max(&self) -> usize {
        self.max.div_ceil(2)
    }
}

/// A random number from 0 to 1; the quality of UUIDs is more than enough for jitter.
pub(in crate::backend) fn random_fraction() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_bytes()[15]) / 255.0
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::config;

    fn retry(base: u64, max: u64, jitter: f64) -> Retry {
        Retry {
            base: Duration::from_millis(base),
            max: Duration::from_millis(max),
            jitter,
            stable_after: Duration::from_secs(1),
            starts_per_minute: 1,
            failed_after: 1,
        }
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let retry = retry(100, 500, 0.0);
        let mut backoff = Backoff::default();
        let mut delay = |up| {
            let delay = backoff.next_delay(retry, Duration::from_millis(up));
            delay.as_millis()
        };
        assert_eq!([0, 0, 0, 0].map(&mut delay), [100, 200, 400, 500]);
        assert_eq!(delay(999), 500, "it did not last long enough");
        assert_eq!(delay(1000), 100);
    }

    /// Behind a URL a connection that is made ends the pauses that began before it.
    #[tokio::test(start_paused = true)]
    async fn one_that_reaches_the_server_ends_the_pause_of_others() {
        let remote = config::Remote::example(&"http://127.0.0.1/mcp".parse().unwrap());
        for (transport, is_common) in [(Transport::Http(remote), true), (Transport::Builtin, false)]
        {
            let policy = ReconnectPolicy::new(&transport, 1);
            let timer = RetryTimer::new(&policy);
            policy.note_reached();
            sleep(Duration::from_millis(1)).await;
            timer.note_failure(retry(100, 100, 0.0), Instant::now(), Duration::ZERO);
            assert!(timer.due_at().is_some(), "it was reached before");
            policy.note_reached();
            assert_eq!(timer.due_at().is_none(), is_common);
            let start = Instant::now();
            timer.due().await;
            assert_eq!(start.elapsed().is_zero(), is_common);
            assert!(timer.due_at().is_none());
        }
    }

    /// Calls trigger one attempt in two seconds, and those that were answered trigger none.
    #[tokio::test(start_paused = true)]
    async fn calls_trigger_attempts_at_a_pace() {
        let timer = RetryTimer::new(&ReconnectPolicy::new(&Transport::Builtin, 1));
        let is_hurried = async || {
            timeout(RETRY_INTERVAL_MIN * 2, timer.hurried())
                .await
                .is_ok()
        };
        let hour = 3_600_000;
        timer.note_failure(retry(hour, hour, 0.0), Instant::now(), Duration::ZERO);
        timer.want();
        assert!(!timer.may_hurry());
        let start = Instant::now();
        assert!(is_hurried().await);
        assert_eq!(start.elapsed(), RETRY_INTERVAL_MIN);
        assert!(timer.may_hurry());
        timer.note_attempt();
        assert!(!timer.may_hurry(), "one is under way");
        timer.note_answered();
        assert!(!is_hurried().await);
    }

    #[test]
    fn of_futile_starts_there_are_so_many_a_minute() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut starts = StartLimiter::new(3);
        let wait = |starts: &StartLimiter, second| starts.wait_time(None, at(second)).as_secs();
        for second in [0, 10] {
            starts.record(None, at(second));
            assert_eq!(wait(&starts, second), 0, "after {second} s");
        }
        starts.record(None, at(20));
        assert_eq!(wait(&starts, 20), 40);
        assert_eq!(wait(&starts, 60), 0, "the first is a minute ago");
        starts.record(None, at(60));
        assert_eq!(wait(&starts, 61), 9);
        starts.set_max(4);
        assert_eq!(wait(&starts, 61), 0, "one more is allowed");
        starts.set_max(2);
        assert_eq!(wait(&starts, 61), 19);
    }

    #[test]
    fn one_party_uses_up_half_of_the_starts() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (one, other) = (
            StartQuotaKey::Caller(Sharing::Session("a".into())),
            StartQuotaKey::Listeners,
        );
        let (one, other) = (Some(&one), Some(&other));
        let mut starts = StartLimiter::new(5);
        let wait = |starts: &StartLimiter, second| {
            [one, other, None].map(|quota_key| starts.wait_time(quota_key, at(second)).as_secs())
        };
        for (second, expect) in [(0, [0, 0, 0]), (1, [0, 0, 0]), (2, [58, 0, 0])] {
            starts.record(one, at(second));
            assert_eq!(wait(&starts, second), expect, "after {second} s");
        }
        let error = starts.limit_error(one, at(2));
        assert!(matches!(
            error,
            Some(BackendError::StartsLimited { starts: 3, .. })
        ));
        starts.record(other, at(3));
        assert_eq!(wait(&starts, 3), [57, 0, 0], "there is one left");
        starts.record(other, at(4));
        assert_eq!(wait(&starts, 4), [56, 56, 56]);
        assert_eq!(wait(&starts, 60), [0, 0, 0], "their first is a minute ago");
        // Of one there is no half.
        let mut starts = StartLimiter::new(1);
        assert_eq!(wait(&starts, 0), [0, 0, 0]);
        starts.record(one, at(0));
        assert_eq!(wait(&starts, 0), [60, 60, 60]);
    }

    #[test]
    fn jitter_only_shortens() {
        let retry = retry(1000, 1000, 0.5);
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            let delay = backoff.next_delay(retry, Duration::ZERO);
            assert!((Duration::from_millis(500)..=Duration::from_secs(1)).contains(&delay));
        }
    }
}
