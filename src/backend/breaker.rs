//! A circuit breaker: after enough failures in a row calls are answered at once for a while, and
//! then one of them finds out whether the server is well again.
//!
//! [`Core`] decides and knows no clock; [`Breaker`] is one with a lock, for whoever takes calls to
//! one server, or to one replica of it. What counts is how the server does, never what it answers.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;

use super::Failure;
use crate::{clock::turn_time, config, lock::lock};

/// What a caller is told to wait while another call finds out whether the server is well again.
const TRIAL_WAIT: Duration = Duration::from_secs(1);

/// What the end of a call says of its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sign {
    /// There was no connection to be had.
    Away,
    /// It failed a call that it was connected for.
    Ill,
    /// Nothing: the call was given up, refused, or wrong in itself.
    None,
    /// It answered.
    Well,
}

impl Sign {
    /// What `failure` says; `away` tells whether there was no connection for the call.
    pub(crate) fn of(failure: &Failure, away: bool) -> Self {
        let bad = if away { Self::Away } else { Self::Ill };
        match failure {
            // One that is still starting has not failed.
            Failure::Absent { cause } if matches!(**cause, Failure::Timeout { .. }) => Self::None,
            Failure::Absent { cause } => Self::of(cause, true),
            Failure::Connect { .. }
            | Failure::Directory { .. }
            | Failure::Spawn { .. }
            | Failure::Startup { .. }
            | Failure::Tls { .. } => Self::Away,
            Failure::Lost { .. } | Failure::Timeout { .. } | Failure::Unread { .. } => bad,
            Failure::Http { status, .. } if status.is_server_error() => bad,
            // Nobody asked the server.
            Failure::BackingOff { .. }
            | Failure::BreakerOpen { .. }
            | Failure::Cancelled { .. }
            | Failure::Crossing(_)
            | Failure::Disabled
            | Failure::Echo
            | Failure::Era { .. }
            | Failure::Garbled { .. }
            | Failure::Header { .. }
            | Failure::Http { .. }
            | Failure::InstancesBusy { .. }
            | Failure::Overloaded { .. }
            | Failure::Refused { .. }
            | Failure::RequestTooLarge { .. }
            | Failure::ResponseTooLarge { .. }
            | Failure::Revision { .. }
            | Failure::SessionGone
            | Failure::StartsLimited { .. }
            | Failure::Unauthorized { .. }
            | Failure::Unknown
            | Failure::Unlisted { .. } => Self::None,
        }
    }
}

/// What a breaker shows of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct BreakerReport {
    /// `closed`, `open` or `half_open`.
    pub state: &'static str,
    /// Failures in a row; 0 while it is not closed.
    pub failures: u32,
    /// How often it has opened.
    pub opened: u64,
    /// Milliseconds until a call is let through again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
}

/// The decisions of a breaker; whoever asks says what time it is.
#[derive(Debug)]
pub(crate) struct Core {
    settings: config::Breaker,
    phase: Phase,
    /// Counts changes of phase: how a call ends is heard in the phase that it began in.
    epoch: u64,
    opened: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Closed {
        /// In a row.
        failures: u32,
    },
    HalfOpen {
        on_trial: bool,
    },
    Open {
        until: Instant,
        /// Whether a new connection is all that was wanting.
        away: bool,
    },
}

/// What became of a breaker by how a call ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Change {
    Closed,
    Opened,
}

/// That a call may go to the server.
#[derive(Debug)]
pub(crate) struct Pass {
    epoch: u64,
}

impl Core {
    pub(crate) fn new(settings: config::Breaker) -> Self {
        Self {
            settings,
            phase: Phase::Closed { failures: 0 },
            epoch: 0,
            opened: 0,
        }
    }

    /// Whether a call may go to the server now; else, how long its caller should wait.
    pub(crate) fn ask(&mut self, now: Instant) -> Result<Pass, Duration> {
        if let Phase::Open { until, .. } = self.phase {
            if now < until {
                return Err(until - now);
            }
            self.enter(Phase::HalfOpen { on_trial: false });
        }
        if let Phase::HalfOpen { on_trial } = &mut self.phase {
            if *on_trial {
                return Err(TRIAL_WAIT.min(self.settings.open_for));
            }
            *on_trial = true;
        }
        Ok(Pass { epoch: self.epoch })
    }

    /// Takes how a call ended; what became of it by that.
    pub(crate) fn tell(&mut self, pass: &Pass, sign: Sign, now: Instant) -> Option<Change> {
        if pass.epoch != self.epoch {
            return None;
        }
        let opened = self.opened;
        let was_closed = self.is_closed();
        match (&mut self.phase, sign) {
            (Phase::Closed { failures }, Sign::Well) => *failures = 0,
            (Phase::Closed { failures }, Sign::Away | Sign::Ill) => {
                *failures = failures.saturating_add(1);
                if self.settings.failures > 0 && *failures >= self.settings.failures {
                    self.open(sign, now);
                }
            }
            (Phase::HalfOpen { .. }, Sign::Well) => self.enter(Phase::Closed { failures: 0 }),
            (Phase::HalfOpen { .. }, Sign::Away | Sign::Ill) => self.open(sign, now),
            // The next call finds out.
            (Phase::HalfOpen { on_trial }, Sign::None) => *on_trial = false,
            (Phase::Closed { .. }, Sign::None) | (Phase::Open { .. }, _) => {}
        }
        if self.opened > opened {
            return Some(Change::Opened);
        }
        (self.is_closed() && !was_closed).then_some(Change::Closed)
    }

    fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed { .. })
    }

    /// The server was connected anew: where that is what was wanting, the next call may try.
    pub(crate) fn is_back(&mut self) {
        match self.phase {
            Phase::Open { away: true, .. } => self.enter(Phase::HalfOpen { on_trial: false }),
            Phase::Closed { .. } | Phase::HalfOpen { .. } | Phase::Open { away: false, .. } => {}
        }
    }

    /// Whether calls are refused since there was no connection to be had.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.phase, Phase::Open { away: true, .. })
    }

    /// The server asked a client something: while it waits for that answer, it is well. The call that
    /// is on trial may take as long as people do.
    pub(crate) fn asks(&mut self) {
        match self.phase {
            Phase::HalfOpen { on_trial: true } => self.enter(Phase::Closed { failures: 0 }),
            Phase::Closed { .. } | Phase::HalfOpen { .. } | Phase::Open { .. } => {}
        }
    }

    /// Whether a call would be refused.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        match self.phase {
            Phase::Closed { .. } => false,
            Phase::HalfOpen { on_trial } => on_trial,
            Phase::Open { until, .. } => now < until,
        }
    }

    pub(crate) fn report(&self, now: Instant) -> BreakerReport {
        let (state, failures, wait) = match self.phase {
            Phase::Closed { failures } => ("closed", failures, None),
            Phase::HalfOpen { .. } => ("half_open", 0, None),
            Phase::Open { until, .. } => ("open", 0, Some(until.saturating_duration_since(now))),
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
    pub(crate) fn set(&mut self, settings: config::Breaker, now: Instant) {
        self.settings = settings;
        if settings.failures == 0 {
            self.enter(Phase::Closed { failures: 0 });
        } else if let Phase::Open { until, .. } = &mut self.phase {
            *until = (*until).min(now + settings.open_for);
        }
    }

    fn open(&mut self, sign: Sign, now: Instant) {
        self.opened += 1;
        self.enter(Phase::Open {
            until: now + self.settings.open_for,
            away: sign == Sign::Away,
        });
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.epoch += 1;
    }
}

/// Whole milliseconds, rounded up: who waits that long is not too early.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A breaker that calls of many tasks pass.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<Core>);

impl Breaker {
    pub(crate) fn new(settings: config::Breaker) -> Self {
        Self(Mutex::new(Core::new(settings)))
    }

    /// Lets a call that begins `now` to the server, or says for how long not.
    ///
    /// # Errors
    /// [`Failure::BreakerOpen`].
    pub(crate) fn enter(&self, now: Instant) -> Result<Passage<'_>, Failure> {
        let pass = self.lock().ask(now);
        let pass = pass.map_err(|retry_after| Failure::BreakerOpen { retry_after })?;
        Ok(Passage {
            breaker: self,
            pass,
            sign: Sign::None,
        })
    }

    /// Keeps to other settings from now on.
    pub(crate) fn set(&self, settings: config::Breaker) {
        self.lock().set(settings, Instant::now());
    }

    /// The server was connected anew.
    pub(crate) fn is_back(&self) {
        self.lock().is_back();
    }

    /// Whether calls are refused since there was no connection to be had.
    pub(crate) fn is_away(&self) -> bool {
        self.lock().is_away()
    }

    /// The server asked a client something.
    pub(crate) fn asks(&self) {
        self.lock().asks();
    }

    /// Whether a call would be refused now.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().is_open(Instant::now())
    }

    pub(crate) fn report(&self) -> BreakerReport {
        self.lock().report(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.0)
    }
}

/// A call on its way; the breaker hears of its end when this is dropped, by which it says nothing
/// of the server unless [`Passage::end`] was told.
#[derive(Debug)]
pub(crate) struct Passage<'a> {
    breaker: &'a Breaker,
    pass: Pass,
    sign: Sign,
}

impl Passage<'_> {
    /// The call ended with this sign; what became of the breaker by that.
    pub(crate) fn end(mut self, sign: Sign) -> Option<Change> {
        self.sign = sign;
        // One that says nothing is told of when it is dropped.
        (sign != Sign::None).then(|| self.tell()).flatten()
    }

    fn tell(&self) -> Option<Change> {
        let mut core = self.breaker.lock();
        core.tell(&self.pass, self.sign, turn_time())
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.sign == Sign::None {
            self.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_FOR: Duration = Duration::from_secs(10);

    fn core(failures: u32) -> Core {
        Core::new(config::Breaker {
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
                'w' => Sign::Well,
                'i' => Sign::Ill,
                'a' => Sign::Away,
                _ => Sign::None,
            };
            let passed = match event {
                '.' => true,
                'b' => {
                    core.is_back();
                    true
                }
                'q' => {
                    core.asks();
                    true
                }
                '(' => core.ask(now).map(|pass| held.push(pass)).is_ok(),
                ')' => {
                    core.tell(&held.remove(0), Sign::Well, now);
                    true
                }
                _ => core
                    .ask(now)
                    .map(|pass| core.tell(&pass, sign, now))
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
        let pass = core.ask(start).unwrap();
        core.tell(&pass, Sign::Ill, start);
        let later = start + Duration::from_millis(2500);
        assert_eq!(core.ask(later).unwrap_err(), Duration::from_millis(7500));
        assert_eq!(
            core.report(later),
            BreakerReport {
                state: "open",
                failures: 0,
                opened: 1,
                retry_in_ms: Some(7500)
            }
        );
        assert!(core.ask(start + OPEN_FOR).is_ok());
        assert_eq!(core.ask(start + OPEN_FOR).unwrap_err(), TRIAL_WAIT);
    }

    #[test]
    fn other_settings_hold_at_once() {
        let settings = |failures, open_for| config::Breaker { failures, open_for };
        let start = Instant::now();
        let mut core = core(2);
        let fail = |core: &mut Core| {
            let pass = core.ask(start).unwrap();
            core.tell(&pass, Sign::Ill, start);
        };
        fail(&mut core);
        core.set(settings(3, OPEN_FOR), start);
        fail(&mut core);
        assert!(!core.is_open(start), "two of three");
        fail(&mut core);
        core.set(settings(3, OPEN_FOR * 9), start);
        assert_eq!(core.ask(start).unwrap_err(), OPEN_FOR, "as it was said");
        let short = Duration::from_secs(1);
        core.set(settings(3, short), start);
        assert_eq!(core.ask(start).unwrap_err(), short);
        core.set(settings(0, short), start);
        assert!(core.ask(start).is_ok(), "it never opens");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_lets_the_next_one_try() {
        let breaker = Breaker::new(config::Breaker {
            failures: 1,
            open_for: OPEN_FOR,
        });
        assert!(!breaker.is_open());
        breaker.enter(Instant::now()).unwrap().end(Sign::Ill);
        assert!(breaker.is_open());
        let retry_after = OPEN_FOR;
        let refused = breaker.enter(Instant::now()).map(drop);
        assert_eq!(refused, Err(Failure::BreakerOpen { retry_after }));
        tokio::time::advance(OPEN_FOR).await;
        assert!(!breaker.is_open());
        let given_up = breaker.enter(Instant::now()).unwrap();
        assert!(breaker.enter(Instant::now()).is_err(), "one tries");
        drop(given_up);
        breaker.enter(Instant::now()).unwrap().end(Sign::Well);
        assert_eq!(breaker.report().state, "closed");
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(5)), 5);
    }
}
