//! The state machine of one circuit breaker; callers pass in the time.

use std::time::Duration;

use tokio::time::Instant;

use super::{BreakerReport, BreakerTransition};
use crate::config;
use crate::{backend::call_health::CallHealth, mcp::error::millis};

/// `retryAfterMs` of calls that fail while another call tests the server.
const HALF_OPEN_RETRY: Duration = Duration::from_secs(1);

/// Closed until `failures` calls in a row have failed; then open for `open_for`; then half open until one
/// call has tested the server.
#[derive(Debug)]
pub(super) struct BreakerCore {
    config: config::BreakerConfig,
    phase: BreakerPhase,
    /// Number of phase changes: the end of a call counts only in the phase in which the call began.
    epoch: u64,
    opened: u64,
}

#[derive(Clone, Copy, Debug)]
enum BreakerPhase {
    Closed {
        /// Consecutive ones.
        failures: u32,
    },
    Open {
        until: Instant,
        /// Whether it opened because there was no connection.
        unreachable: bool,
    },
    HalfOpen {
        is_testing: bool,
        unreachable: bool,
    },
}

/// Permission for one call.
#[derive(Debug)]
pub(super) struct BreakerPermit {
    epoch: u64,
}

impl BreakerPermit {
    /// That of a breaker that has not changed yet.
    pub(super) const INITIAL: Self = Self { epoch: 0 };
}

impl BreakerCore {
    pub(super) fn new(config: config::BreakerConfig) -> Self {
        Self {
            config,
            phase: BreakerPhase::Closed { failures: 0 },
            epoch: 0,
            opened: 0,
        }
    }

    /// Lets a call through, as the test if it is half open; else says how long to wait.
    pub(super) fn try_acquire(&mut self, now: Instant) -> Result<BreakerPermit, Duration> {
        if let Some(wait) = self.retry_in(now) {
            return Err(wait);
        }
        if let BreakerPhase::Open { unreachable, .. } = self.phase {
            self.half_open(unreachable);
        }
        if let BreakerPhase::HalfOpen { is_testing, .. } = &mut self.phase {
            *is_testing = true;
        }
        Ok(BreakerPermit { epoch: self.epoch })
    }

    /// How long a call has to wait; `None` if it may pass now.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        match self.phase {
            BreakerPhase::Closed { .. } => None,
            BreakerPhase::HalfOpen { is_testing, .. } => {
                is_testing.then(|| HALF_OPEN_RETRY.min(self.config.open_for))
            }
            BreakerPhase::Open { until, .. } => (now < until).then(|| until - now),
        }
    }

    /// Takes how a call ended.
    pub(super) fn record(
        &mut self,
        permit: &BreakerPermit,
        health: CallHealth,
        now: Instant,
    ) -> Option<BreakerTransition> {
        if permit.epoch != self.epoch {
            return None;
        }
        match (&mut self.phase, health) {
            (BreakerPhase::Closed { failures }, CallHealth::Success) => *failures = 0,
            (BreakerPhase::Closed { failures }, CallHealth::Unreachable | CallHealth::Error) => {
                *failures = failures.saturating_add(1);
                if self.config.failures > 0 && *failures >= self.config.failures {
                    return Some(self.trip(health, now));
                }
            }
            (BreakerPhase::HalfOpen { .. }, CallHealth::Success) => return Some(self.close()),
            (BreakerPhase::HalfOpen { .. }, CallHealth::Unreachable | CallHealth::Error) => {
                return Some(self.trip(health, now));
            }
            // The next call is the test.
            (BreakerPhase::HalfOpen { is_testing, .. }, CallHealth::Neutral) => {
                *is_testing = false;
            }
            (BreakerPhase::Closed { .. }, CallHealth::Neutral) | (BreakerPhase::Open { .. }, _) => {
            }
        }
        None
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, BreakerPhase::Closed { .. })
    }

    /// Whether it opened because there was no connection.
    pub(super) fn is_unreachable(&self) -> bool {
        match self.phase {
            BreakerPhase::HalfOpen { unreachable, .. } | BreakerPhase::Open { unreachable, .. } => {
                unreachable
            }
            BreakerPhase::Closed { .. } => false,
        }
    }

    /// A connection was made: if that was the problem, the next call may test the server at once.
    pub(super) fn note_reconnected(&mut self) {
        if let BreakerPhase::Open {
            unreachable: true, ..
        } = self.phase
        {
            self.half_open(true);
        }
    }

    /// The server asked a client something, so it works: nobody waits until a person answers the call that
    /// is the test.
    pub(super) fn note_client_request(&mut self) -> Option<BreakerTransition> {
        match self.phase {
            BreakerPhase::HalfOpen {
                is_testing: true, ..
            } => Some(self.close()),
            BreakerPhase::Closed { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::Open { .. } => None,
        }
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_pristine(&self) -> bool {
        matches!(self.phase, BreakerPhase::Closed { failures: 0 })
    }

    pub(super) fn report(&self, now: Instant) -> BreakerReport {
        let (state, failures, wait) = match self.phase {
            BreakerPhase::Closed { failures } => ("closed", failures, None),
            BreakerPhase::HalfOpen { .. } => ("half_open", 0, None),
            BreakerPhase::Open { until, .. } => {
                ("open", 0, Some(until.saturating_duration_since(now)))
            }
        };
        BreakerReport {
            state,
            failures,
            opened: self.opened,
            retry_in_ms: wait.map(millis),
        }
    }

    /// Takes other settings: an open breaker takes the earlier of both times, one that never opens is closed.
    pub(super) fn set_config(
        &mut self,
        config: config::BreakerConfig,
        now: Instant,
    ) -> Option<BreakerTransition> {
        self.config = config;
        if config.failures == 0 && !self.is_closed() {
            return Some(self.close());
        }
        if let BreakerPhase::Open { until, .. } = &mut self.phase {
            *until = (*until).min(now + config.open_for);
        }
        None
    }

    fn trip(&mut self, health: CallHealth, now: Instant) -> BreakerTransition {
        self.opened += 1;
        self.enter_phase(BreakerPhase::Open {
            until: now + self.config.open_for,
            unreachable: health == CallHealth::Unreachable,
        });
        BreakerTransition::Opened
    }

    fn half_open(&mut self, unreachable: bool) {
        self.enter_phase(BreakerPhase::HalfOpen {
            is_testing: false,
            unreachable,
        });
    }

    fn close(&mut self) -> BreakerTransition {
        self.enter_phase(BreakerPhase::Closed { failures: 0 });
        BreakerTransition::Closed
    }

    fn enter_phase(&mut self, phase: BreakerPhase) {
        self.phase = phase;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_FOR: Duration = Duration::from_secs(10);

    fn core(failures: u32) -> BreakerCore {
        BreakerCore::new(config::BreakerConfig {
            failures,
            open_for: OPEN_FOR,
        })
    }

    /// A core, and what happens to it one second after the other: `w`, `i`, `a` and `n` are whole
    /// calls with that sign, `(` begins one that `)` ends well, `b` says that the server is back, `q`
    /// that it asks a client something, `.` only lets time pass. What is refused is in the answer as `!`, what passes as itself.
    fn run(failures: u32, events: &str) -> (String, &'static str) {
        let mut core = core(failures);
        let mut now = Instant::now();
        let mut held = Vec::new();
        let mut seen = String::new();
        for event in events.chars() {
            let sign = match event {
                'w' => CallHealth::Success,
                'i' => CallHealth::Error,
                'a' => CallHealth::Unreachable,
                _ => CallHealth::Neutral,
            };
            let passed = match event {
                '.' => true,
                'b' => {
                    core.note_reconnected();
                    true
                }
                'q' => {
                    let was_closed = core.is_closed();
                    let change = core.note_client_request();
                    assert_eq!(change.is_some(), core.is_closed() && !was_closed);
                    true
                }
                '(' => core.try_acquire(now).map(|pass| held.push(pass)).is_ok(),
                ')' => {
                    core.record(&held.remove(0), CallHealth::Success, now);
                    true
                }
                _ => core
                    .try_acquire(now)
                    .map(|pass| core.record(&pass, sign, now))
                    .is_ok(),
            };
            seen.push(if passed { event } else { '!' });
            now += Duration::from_secs(1);
        }
        (seen, core.report(now).state)
    }

    #[test]
    fn it_opens_and_closes() {
        let check = |events: &str, expect: &str, state: &str| {
            assert_eq!(
                run(3, events),
                (
                    expect.to_owned(),
                    match state {
                        "closed" => "closed",
                        "open" => "open",
                        _ => "half_open",
                    }
                ),
                "{events}"
            );
        };
        check("ii", "ii", "closed");
        check("iii", "iii", "open");
        check("iiw", "iiw", "closed");
        // Only failures in a row count, and what says nothing does not end the row.
        check("iiwii", "iiwii", "closed");
        check("inini", "inini", "open");
        check("iia", "iia", "open");
        // Refused for ten seconds, the second of the last failure included.
        check("iii.........w", "iii.........w", "closed");
        check("iii........w", "iii........!", "open");
        // One call at a time tries; a failure opens it again, well or nothing does not.
        check("iii.........((", "iii.........(!", "half_open");
        check("iii.........(w)w", "iii.........(!)w", "closed");
        check("iii.........iw", "iii.........i!", "open");
        check("iii.........nw", "iii.........nw", "closed");
        // A trial that asks a person is well, whatever becomes of it later; nobody waits for that.
        check("iii.........(qww", "iii.........(qww", "closed");
        check("iii.........(qiw)iw", "iii.........(qiw)iw", "closed");
        check("iiiqw", "iiiq!", "open");
        check("iiqi", "iiqi", "open");
        // What began before it opened says nothing afterwards.
        check("(iii)w", "(iii)!", "open");
        check("(iii.........n)w", "(iii.........n)w", "closed");
        // A server that was away may be tried as soon as it is back, one that failed may not.
        check("aaabw", "aaabw", "closed");
        check("iiibw", "iiib!", "open");
        check("bw", "bw", "closed");
    }

    #[test]
    fn without_a_limit_it_never_opens() {
        assert_eq!(run(0, "iiiiiiiiiiii"), ("i".repeat(12), "closed"));
        assert_eq!(run(1, "iw"), ("i!".to_owned(), "open"));
    }

    #[test]
    fn it_says_how_long_to_wait() {
        let start = Instant::now();
        let mut core = core(1);
        let pass = core.try_acquire(start).unwrap();
        core.record(&pass, CallHealth::Error, start);
        let later = start + Duration::from_millis(2500);
        assert_eq!(
            core.try_acquire(later).unwrap_err(),
            Duration::from_millis(7500)
        );
        assert_eq!(
            core.report(later),
            BreakerReport {
                state: "open",
                failures: 0,
                opened: 1,
                retry_in_ms: Some(7500)
            }
        );
        assert!(core.try_acquire(start + OPEN_FOR).is_ok());
        assert_eq!(
            core.try_acquire(start + OPEN_FOR).unwrap_err(),
            HALF_OPEN_RETRY
        );
    }

    #[test]
    fn other_settings_hold_at_once() {
        let settings = |failures, open_for| config::BreakerConfig { failures, open_for };
        let start = Instant::now();
        let mut core = core(2);
        let fail = |core: &mut BreakerCore| {
            let pass = core.try_acquire(start).unwrap();
            core.record(&pass, CallHealth::Error, start);
        };
        fail(&mut core);
        assert_eq!(core.set_config(settings(3, OPEN_FOR), start), None);
        fail(&mut core);
        assert_eq!(core.retry_in(start), None, "two of three");
        fail(&mut core);
        assert_eq!(core.set_config(settings(3, OPEN_FOR * 9), start), None);
        assert_eq!(
            core.try_acquire(start).unwrap_err(),
            OPEN_FOR,
            "as it was said"
        );
        let short = Duration::from_secs(1);
        assert_eq!(core.set_config(settings(3, short), start), None);
        assert_eq!(core.try_acquire(start).unwrap_err(), short);
        assert_eq!(
            core.set_config(settings(0, short), start),
            Some(BreakerTransition::Closed)
        );
        assert_eq!(
            core.set_config(settings(0, short), start),
            None,
            "said once"
        );
        assert!(core.try_acquire(start).is_ok(), "it never opens");
    }
}
