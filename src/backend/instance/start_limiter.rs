//! When connections may be started again: later after each failure in a row, and only so many a minute
//! that come to nothing.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{
    backend::{BackendError, sharing::Sharing},
    config::Retry,
};

/// Exponential delays with jitter, from the start again after a stable time.
#[derive(Debug, Default)]
pub(in crate::backend) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After so many `failures` in a row.
    pub(in crate::backend) fn after_failures(failures: u32) -> Self {
        Self { failures }
    }

    /// A connection that held for `stable_after` clears the count.
    pub(in crate::backend) fn after_uptime(&mut self, retry: Retry, up: Duration) {
        if up >= retry.stable_after {
            self.failures = 0;
        }
    }

    /// Delays since the count was cleared.
    pub(in crate::backend) fn failures(&self) -> u32 {
        self.failures
    }

    pub(in crate::backend) fn next_delay(&mut self, retry: Retry) -> Duration {
        let factor = 1u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let full = retry.base.saturating_mul(factor).min(retry.max);
        full.mul_f64(1.0 - retry.jitter * random_fraction())
    }
}

/// How far back starts are counted.
const STARTS_WINDOW: Duration = Duration::from_secs(60);

/// Who uses up half of the starts at most, so that the others are started for all the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::backend) enum StartParty {
    /// One caller with connections of its own.
    Caller(Sharing),
    /// All whose calls have the catalog's connection tried.
    Callers,
    /// All who are subscribed on connections of their own, and do not call.
    Listeners,
}

/// Starts of one server that came to nothing lately, on whichever connection; of programs, each
/// process counts.
#[derive(Debug)]
pub(in crate::backend) struct StartLimiter {
    max: usize,
    /// When, and whose; `None` where nobody led to it.
    failed: VecDeque<(Instant, Option<StartParty>)>,
}

impl StartLimiter {
    /// At most `max` of them in a minute.
    pub(in crate::backend) fn new(max: usize) -> Self {
        Self {
            max,
            failed: VecDeque::new(),
        }
    }

    /// Allows `max` of them in a minute from now on.
    pub(in crate::backend) fn set_max(&mut self, max: usize) {
        self.max = max;
        let surplus = self.failed.len().saturating_sub(max);
        self.failed.drain(..surplus);
    }

    /// Notes a start of `party` that came to nothing.
    pub(in crate::backend) fn record(&mut self, start_party: Option<&StartParty>, now: Instant) {
        if self.failed.len() >= self.max {
            self.failed.pop_front();
        }
        self.failed.push_back((now, start_party.cloned()));
    }

    /// How long the next start of `party` has to wait.
    pub(in crate::backend) fn wait_time(
        &self,
        start_party: Option<&StartParty>,
        now: Instant,
    ) -> Duration {
        let all = self.failed.iter();
        let of_all = all.clone().nth_back(self.max - 1);
        let own = all.filter(|(_, whose)| start_party.is_some() && whose.as_ref() == start_party);
        let own = own.rev().nth(self.party_max() - 1);
        let ends = of_all.into_iter().chain(own);
        let ends = ends.map(|(at, _)| (*at + STARTS_WINDOW).saturating_duration_since(now));
        ends.max().unwrap_or_default()
    }

    /// What callers are told, as long as the next start of `party` has to wait.
    pub(in crate::backend) fn limit_error(
        &self,
        start_party: Option<&StartParty>,
        now: Instant,
    ) -> Option<BackendError> {
        let wait = self.wait_time(start_party, now);
        let is_own = self.wait_time(None, now) < wait;
        (!wait.is_zero()).then(|| BackendError::StartsLimited {
            starts: if is_own { self.party_max() } else { self.max },
            until: now + wait,
        })
    }

    /// How many may be of one party.
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
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let retry = Retry {
            base: Duration::from_millis(100),
            max: Duration::from_millis(500),
            jitter: 0.0,
            stable_after: Duration::from_secs(1),
            starts_per_minute: 1,
            failed_after: 1,
        };
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..4)
            .map(|_| backoff.next_delay(retry).as_millis())
            .collect();
        assert_eq!(delays, [100, 200, 400, 500]);
        backoff.after_uptime(retry, Duration::from_millis(999));
        assert_eq!(
            backoff.next_delay(retry).as_millis(),
            500,
            "it did not hold long enough"
        );
        backoff.after_uptime(retry, Duration::from_secs(1));
        assert_eq!(backoff.next_delay(retry).as_millis(), 100);
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
            StartParty::Caller(Sharing::Session("a".into())),
            StartParty::Listeners,
        );
        let (one, other) = (Some(&one), Some(&other));
        let mut starts = StartLimiter::new(5);
        let wait = |starts: &StartLimiter, second| {
            [one, other, None].map(|party| starts.wait_time(party, at(second)).as_secs())
        };
        for (second, expect) in [(0, [0, 0, 0]), (1, [0, 0, 0]), (2, [58, 0, 0])] {
            starts.record(one, at(second));
            assert_eq!(wait(&starts, second), expect, "after {second} s");
        }
        let told = starts.limit_error(one, at(2));
        assert!(matches!(
            told,
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
        let retry = Retry {
            base: Duration::from_secs(1),
            max: Duration::from_secs(1),
            jitter: 0.5,
            stable_after: Duration::from_secs(1),
            starts_per_minute: 1,
            failed_after: 1,
        };
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            let delay = backoff.next_delay(retry);
            assert!((Duration::from_millis(500)..=Duration::from_secs(1)).contains(&delay));
        }
    }
}
