//! The decisions of one breaker; whoever asks says what time it is.

use std::time::Duration;

use tokio::time::Instant;

use super::{BreakerReport, BreakerTransition};
use crate::config;
use crate::{backend::call_health::CallHealth, mcp::error::millis};

/// What a caller is told to wait while another call finds out whether the server is well again.
const HALF_OPEN_RETRY: Duration = Duration::from_secs(1);

/// The decisions of a breaker; whoever asks says what time it is.
#[derive(Debug)]
pub(super) struct BreakerCore {
    config: config::BreakerConfig,
    phase: BreakerPhase,
    /// Counts changes of phase: how a call ends is heard in the phase that it began in.
    epoch: u64,
    opened: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BreakerPhase {
    Closed {
        /// In a row.
        failures: u32,
    },
    HalfOpen {
        on_trial: bool,
        /// As while it was open.
        away: bool,
    },
    Open {
        until: Instant,
        /// Whether a new connection is all that was wanting.
        away: bool,
    },
}

/// That a call may go to the server.
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

    /// Whether a call may go to the server now; else, how long its caller should wait.
    pub(super) fn try_acquire(&mut self, now: Instant) -> Result<BreakerPermit, Duration> {
        if let Some(wait) = self.retry_in(now) {
            return Err(wait);
        }
        let pass = self.permit_during_trial(now);
        if let BreakerPhase::HalfOpen { on_trial, .. } = &mut self.phase {
            *on_trial = true;
        }
        Ok(pass)
    }

    /// That of a call that may go to the server without being the one that finds out whether it is well
    /// again.
    pub(super) fn permit_during_trial(&mut self, now: Instant) -> BreakerPermit {
        if let BreakerPhase::Open { away, until } = self.phase
            && now >= until
        {
            self.enter_phase(BreakerPhase::HalfOpen {
                on_trial: false,
                away,
            });
        }
        BreakerPermit { epoch: self.epoch }
    }

    /// Whether calls are refused since the last failure is too recent.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        matches!(self.phase, BreakerPhase::Open { until, .. } if now < until)
    }

    /// How long the caller should wait whose call would be refused; `None` where none would be.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        match self.phase {
            BreakerPhase::Closed { .. } => None,
            BreakerPhase::HalfOpen { on_trial, .. } => {
                on_trial.then(|| HALF_OPEN_RETRY.min(self.config.open_for))
            }
            BreakerPhase::Open { until, .. } => (now < until).then(|| until - now),
        }
    }

    /// Whether the end of a call with this pass is heard.
    pub(super) fn is_current(&self, pass: &BreakerPermit) -> bool {
        pass.epoch == self.epoch
    }

    /// Takes how a call ended; what became of it by that.
    pub(super) fn record(
        &mut self,
        pass: &BreakerPermit,
        health: CallHealth,
        now: Instant,
    ) -> Option<BreakerTransition> {
        if !self.is_current(pass) {
            return None;
        }
        let opened = self.opened;
        let was_closed = self.is_closed();
        match (&mut self.phase, health) {
            (BreakerPhase::Closed { failures }, CallHealth::Success) => *failures = 0,
            (
                BreakerPhase::Closed { failures },
                CallHealth::Unreachable | CallHealth::Disconnected | CallHealth::Error,
            ) => {
                *failures = failures.saturating_add(1);
                if self.config.failures > 0 && *failures >= self.config.failures {
                    self.trip(health, now);
                }
            }
            (BreakerPhase::HalfOpen { .. }, CallHealth::Success) => {
                self.enter_phase(BreakerPhase::Closed { failures: 0 });
            }
            (
                BreakerPhase::HalfOpen { .. },
                CallHealth::Unreachable | CallHealth::Disconnected | CallHealth::Error,
            ) => self.trip(health, now),
            // The next call finds out.
            (BreakerPhase::HalfOpen { on_trial, .. }, CallHealth::Neutral) => *on_trial = false,
            (BreakerPhase::Closed { .. }, CallHealth::Neutral) | (BreakerPhase::Open { .. }, _) => {
            }
        }
        if self.opened > opened {
            return Some(BreakerTransition::Opened);
        }
        (self.is_closed() && !was_closed).then_some(BreakerTransition::Closed)
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, BreakerPhase::Closed { .. })
    }

    /// The server was connected anew: where that is what was wanting, the next call may try.
    pub(super) fn note_reconnected(&mut self) {
        match self.phase {
            BreakerPhase::Open { away: true, .. } => self.enter_phase(BreakerPhase::HalfOpen {
                on_trial: false,
                away: true,
            }),
            BreakerPhase::Closed { .. }
            | BreakerPhase::HalfOpen { .. }
            | BreakerPhase::Open { away: false, .. } => {}
        }
    }

    /// Whether it is not closed since there was no connection to be had.
    pub(super) fn is_unreachable(&self) -> bool {
        match self.phase {
            BreakerPhase::HalfOpen { away, .. } | BreakerPhase::Open { away, .. } => away,
            BreakerPhase::Closed { .. } => false,
        }
    }

    /// The server asked a client something: while it waits for that answer, it is well. The call that
    /// is on trial may take as long as people do.
    pub(super) fn note_client_request(&mut self) -> Option<BreakerTransition> {
        match self.phase {
            BreakerPhase::HalfOpen { on_trial: true, .. } => {
                self.enter_phase(BreakerPhase::Closed { failures: 0 });
                Some(BreakerTransition::Closed)
            }
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

    /// Keeps to other settings from now on: one that is open lets a call through as soon as both
    /// would, one that never opens is closed.
    pub(super) fn set_config(
        &mut self,
        settings: config::BreakerConfig,
        now: Instant,
    ) -> Option<BreakerTransition> {
        self.config = settings;
        if settings.failures == 0 {
            let was_closed = self.is_closed();
            self.enter_phase(BreakerPhase::Closed { failures: 0 });
            return (!was_closed).then_some(BreakerTransition::Closed);
        }
        if let BreakerPhase::Open { until, .. } = &mut self.phase {
            *until = (*until).min(now + settings.open_for);
        }
        None
    }

    fn trip(&mut self, health: CallHealth, now: Instant) {
        self.opened += 1;
        self.enter_phase(BreakerPhase::Open {
            until: now + self.config.open_for,
            away: matches!(health, CallHealth::Unreachable | CallHealth::Disconnected),
        });
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
