//! Where a server stands and how it came there: one machine, and a short history of its transitions.
//!
//! Fed by `supervisor` (what becomes of the catalog's connection), `discovery` (what becomes of the
//! lists, by way of [`Backend`](super::Backend)) and by calls that were refused for their
//! credential; read by `report`. `connected` means greeted and listed: every way back to it is a
//! listing. A server that is being tried again stays what it was, so that nothing flaps.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
};

use serde::Serialize;
use tracing::Span;

use super::Failure;
use crate::{clock, lock::lock, names::ServerName};

/// Transitions of one server that are remembered; the oldest are forgotten first.
pub const HISTORY_MAX: usize = 32;

/// The state of a server, as people see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// Initialised and listed.
    Connected,
    /// The first connection is being made, or a new one has not been listed yet.
    Connecting,
    /// Connected, but its lists cannot be read, or it misses health checks.
    Degraded,
    /// Switched off in the config.
    Disabled,
    /// Was connected; being connected again, or asleep until somebody uses it.
    Disconnected,
    /// Could not be connected, or stayed away for longer than `grace`; being tried again.
    Failed,
    /// Refuses our credential.
    NeedsReauth,
}

impl State {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Connected,
        Self::Connecting,
        Self::Degraded,
        Self::Disabled,
        Self::Disconnected,
        Self::Failed,
        Self::NeedsReauth,
    ];

    /// Its name, as in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Degraded => "degraded",
            Self::Disabled => "disabled",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
            Self::NeedsReauth => "needs_reauth",
        }
    }

    /// Where `event` leads from here.
    pub(super) fn after(self, event: Event) -> Self {
        match (self, event) {
            (Self::Disabled, _) | (_, Event::SwitchedOff) => Self::Disabled,
            (_, Event::Refused) => Self::NeedsReauth,
            (_, Event::Greeted) => Self::Connecting,
            (
                Self::Connected | Self::Connecting | Self::Degraded | Self::NeedsReauth,
                Event::Listed,
            ) => Self::Connected,
            (
                Self::Connected | Self::Connecting | Self::Degraded,
                Event::Missed | Event::Unlisted,
            ) => Self::Degraded,
            (_, Event::FellAsleep)
            | (Self::Connected | Self::Degraded, Event::Lost | Event::Unreachable)
            | (Self::NeedsReauth, Event::Lost) => Self::Disconnected,
            (Self::Connecting, Event::Lost | Event::Unreachable)
            | (Self::NeedsReauth, Event::Unreachable)
            | (Self::Disconnected, Event::Withdrawn) => Self::Failed,
            // What concerns a connection that has ended meanwhile, or changes nothing.
            (
                Self::Connected | Self::Connecting | Self::Degraded | Self::NeedsReauth,
                Event::Withdrawn,
            )
            | (Self::NeedsReauth, Event::Missed | Event::Unlisted)
            | (
                Self::Disconnected,
                Event::Listed | Event::Lost | Event::Missed | Event::Unlisted | Event::Unreachable,
            )
            | (
                Self::Failed,
                Event::Listed
                | Event::Lost
                | Event::Missed
                | Event::Unlisted
                | Event::Unreachable
                | Event::Withdrawn,
            ) => self,
        }
    }
}

/// Something was learnt of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// Nobody used it, and the connection was ended until somebody does.
    FellAsleep,
    /// It was greeted on a new connection.
    Greeted,
    /// Its lists were read.
    Listed,
    /// The connection ended.
    Lost,
    /// It did not answer a health check.
    Missed,
    /// It refused our credential.
    Refused,
    /// It is switched off in the config.
    SwitchedOff,
    /// Its lists cannot be read.
    Unlisted,
    /// No connection could be made.
    Unreachable,
    /// It stayed away for so long that its items are not listed any more.
    Withdrawn,
}

impl Event {
    /// The same, unless `failure` is that our credential was refused.
    pub(super) fn or_refused(self, failure: &Failure) -> Self {
        if matches!(failure, Failure::Unauthorized { .. }) {
            Self::Refused
        } else {
            self
        }
    }
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transition {
    /// When, RFC 3339.
    pub at: String,
    /// The state that was entered.
    pub state: State,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where one server stands, and how it came there.
#[derive(Debug)]
pub(crate) struct Life {
    server: ServerName,
    /// What its log lines are within.
    about: Span,
    /// The state once more, to be read without the lock.
    state: AtomicU8,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The last is the current one.
    history: VecDeque<Transition>,
    /// Why it is in that state by what is known now; the transition has what was known then.
    reason: Option<String>,
}

impl Life {
    /// Of `server`; log lines are within `about`.
    pub(super) fn new(server: &ServerName, about: &Span) -> Self {
        let state = State::Connecting;
        let first = Transition {
            at: clock::now().to_string(),
            state,
            reason: None,
        };
        Self {
            server: server.clone(),
            about: about.clone(),
            state: AtomicU8::new(state as u8),
            inner: Mutex::new(Inner {
                history: [first].into(),
                reason: None,
            }),
        }
    }

    /// The state.
    pub(crate) fn state(&self) -> State {
        State::ALL[usize::from(self.state.load(Ordering::Relaxed)) % State::ALL.len()]
    }

    /// Takes what was learnt, and why it is so.
    pub(super) fn take(&self, event: Event, reason: Option<String>) {
        self.take_if(event, reason, || true);
    }

    /// Takes what was learnt where `still_holds`, which is asked while nothing else is taken.
    pub(super) fn take_if(
        &self,
        event: Event,
        reason: Option<String>,
        still_holds: impl FnOnce() -> bool,
    ) {
        let mut inner = self.lock();
        if !still_holds() {
            return;
        }
        let (old, new) = (self.state(), self.state().after(event));
        // That it stayed away is no cause of its own.
        let kept = || inner.reason.clone().filter(|_| event == Event::Withdrawn);
        let reason = reason.or_else(kept);
        if old == new {
            // Why a server cannot be reached may be another thing now.
            if reason.is_some() && !matches!(new, State::Connected | State::Disabled) {
                inner.reason = reason;
            }
            return;
        }
        let _about = self.about.enter();
        if event == Event::FellAsleep {
            let server = &self.server;
            tracing::debug!(%server, from = old.as_str(), reason, "server is asleep");
        } else {
            self.log(old, new, reason.as_deref());
        }
        if inner.history.len() == HISTORY_MAX {
            inner.history.pop_front();
        }
        inner.reason.clone_from(&reason);
        inner.history.push_back(Transition {
            at: clock::now().to_string(),
            state: new,
            reason,
        });
        self.state.store(new as u8, Ordering::Relaxed);
    }

    /// Why it is in its state, and the transitions that led there, the current one last.
    pub(super) fn history(&self) -> (Option<String>, Vec<Transition>) {
        let inner = self.lock();
        (
            inner.reason.clone(),
            inner.history.iter().cloned().collect(),
        )
    }

    fn log(&self, old: State, new: State, reason: Option<&str>) {
        let (server, from, to) = (&self.server, old.as_str(), new.as_str());
        match new {
            State::Connected | State::Connecting | State::Disabled => {
                tracing::info!(%server, from, reason, "server is {to}");
            }
            State::Degraded | State::Disconnected | State::Failed | State::NeedsReauth => {
                tracing::warn!(%server, from, reason, "server is {to}");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [(char, Event); 10] = [
        ('g', Event::Greeted),
        ('l', Event::Listed),
        ('o', Event::Lost),
        ('m', Event::Missed),
        ('r', Event::Refused),
        ('s', Event::SwitchedOff),
        ('u', Event::Unlisted),
        ('x', Event::Unreachable),
        ('w', Event::Withdrawn),
        ('z', Event::FellAsleep),
    ];

    /// Each row says where every event leads from one state.
    #[test]
    fn every_event_in_every_state() {
        use State::{
            Connected as C, Connecting as N, Degraded as D, Disabled as Off, Disconnected as Dis,
            Failed as F, NeedsReauth as R,
        };
        let table = [
            //    g    l    o    m    r    s    u    x    w    z
            (C, [N, C, Dis, D, R, Off, D, Dis, C, Dis]),
            (N, [N, C, F, D, R, Off, D, F, N, Dis]),
            (D, [N, C, Dis, D, R, Off, D, Dis, D, Dis]),
            (Off, [Off; 10]),
            (Dis, [N, Dis, Dis, Dis, R, Off, Dis, Dis, F, Dis]),
            (F, [N, F, F, F, R, Off, F, F, F, Dis]),
            (R, [N, C, Dis, R, R, Off, R, F, R, Dis]),
        ];
        for (index, (state, row)) in table.into_iter().enumerate() {
            assert_eq!(State::ALL[index], state, "the table has every state");
            for ((_, event), expect) in EVENTS.into_iter().zip(row) {
                assert_eq!(state.after(event), expect, "{state:?} after {event:?}");
            }
        }
    }

    /// Whatever happens, the last thing before `connected` is a listing.
    #[test]
    fn only_a_listing_leads_to_connected() {
        for state in State::ALL {
            for (_, event) in EVENTS {
                let enters = state != State::Connected && state.after(event) == State::Connected;
                assert!(
                    !enters || event == Event::Listed,
                    "{state:?} after {event:?}"
                );
            }
        }
    }

    /// Takes events, each with its letter as the reason.
    fn lived(events: &str) -> Life {
        let life = Life::new(&ServerName::parse("x").unwrap(), &Span::none());
        for letter in events.chars() {
            let (_, event) = EVENTS
                .into_iter()
                .find(|(known, _)| *known == letter)
                .unwrap();
            life.take(event, Some(letter.to_string()));
        }
        life
    }

    #[test]
    fn each_transition_is_kept_once() {
        let check = |events: &str, reason: &str, expect: &[(State, &str)]| {
            let (now, history) = lived(events).history();
            let found: Vec<_> = history
                .iter()
                .map(|t| (t.state, t.reason.as_deref().unwrap_or_default()))
                .collect();
            assert_eq!(found, expect, "{events}");
            assert_eq!(now.as_deref().unwrap_or_default(), reason, "{events}");
        };
        let start = (State::Connecting, "");
        check("", "", &[start]);
        check("g", "g", &[start]);
        check("gl", "l", &[start, (State::Connected, "l")]);
        // What is tried again stays what it was, with the latest reason.
        check(
            "xxr",
            "r",
            &[start, (State::Failed, "x"), (State::NeedsReauth, "r")],
        );
        check(
            "glox",
            "x",
            &[start, (State::Connected, "l"), (State::Disconnected, "o")],
        );
    }

    #[test]
    fn the_history_has_an_end() {
        for (rounds, expect) in [(15, 31), (16, 32), (30, 32)] {
            let life = lived(&"lo".replace('o', "u").repeat(rounds));
            let (_, history) = life.history();
            assert_eq!(history.len(), expect.min(HISTORY_MAX), "{rounds} rounds");
            assert_eq!(history.last().unwrap().state, State::Degraded);
        }
    }

    #[test]
    fn what_no_longer_holds_is_not_taken() {
        let life = lived("g");
        life.take_if(Event::Listed, None, || false);
        assert_eq!(life.state(), State::Connecting);
        life.take_if(Event::Listed, None, || true);
        assert_eq!(life.state(), State::Connected);
    }
}
