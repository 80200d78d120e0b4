//! Where a server or an instance of it stands and how it came there: one machine, and a short history
//! of its transitions.
//!
//! Fed by `supervisor` (what becomes of a connection), `health`, `discovery` (what becomes of the
//! lists, by way of [`Backend`](super::Backend)) and by calls that were refused for their
//! credential; read by `report`. A server stands where the catalog's instance does. `connected`
//! means greeted and listed: every way back to it is a listing. A server is listed on the catalog's
//! connection; for an instance beside it that counts as its own. What is being tried again stays
//! what it was, so that nothing flaps.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::Span;

use super::BackendError;
use crate::{clock, lock::lock, names::ServerName};

/// Transitions of one server or instance that are remembered; the oldest are forgotten first.
pub(crate) const HISTORY_MAX: usize = 32;

/// The state of a server or of an instance of it, as people see it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ServerState {
    /// Initialised and listed.
    Connected,
    /// The first connection is being made, or a new one has not been listed yet.
    Connecting,
    /// Connected, but not all of its lists can be read, or it misses health checks.
    Degraded,
    /// Switched off in the config.
    Disabled,
    /// Was connected; being connected again, or asleep until somebody uses it.
    Disconnected,
    /// Could not be connected, or stayed away for longer than `grace`; being tried again.
    Failed,
    /// Refuses our credential.
    NeedsReauth,
    /// Waits until somebody signs in to it.
    NeedsSignIn,
}

impl ServerState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Connected,
        Self::Connecting,
        Self::Degraded,
        Self::Disabled,
        Self::Disconnected,
        Self::Failed,
        Self::NeedsReauth,
        Self::NeedsSignIn,
    ];

    /// Whether it is one that somebody may have to see to.
    pub fn needs_attention(self) -> bool {
        match self {
            Self::Connected | Self::Connecting | Self::Disabled | Self::NeedsSignIn => false,
            Self::Degraded | Self::Disconnected | Self::Failed | Self::NeedsReauth => true,
        }
    }

    /// Whether it lacks a credential that it takes.
    pub fn lacks_credential(self) -> bool {
        matches!(self, Self::NeedsReauth | Self::NeedsSignIn)
    }

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
            Self::NeedsSignIn => "needs_sign_in",
        }
    }

    /// Where `event` leads from here.
    pub(super) fn next(self, event: ServerEvent) -> Self {
        match (self, event) {
            (Self::Disabled, _) | (_, ServerEvent::SwitchedOff) => Self::Disabled,
            (_, ServerEvent::Refused) => Self::NeedsReauth,
            (_, ServerEvent::SignInNeeded) => Self::NeedsSignIn,
            (_, ServerEvent::Greeted | ServerEvent::Started) => Self::Connecting,
            (
                Self::Connected
                | Self::Connecting
                | Self::Degraded
                | Self::NeedsReauth
                | Self::NeedsSignIn,
                ServerEvent::Listed,
            ) => Self::Connected,
            (Self::NeedsReauth | Self::NeedsSignIn, ServerEvent::ListedPartly)
            | (
                Self::Connected | Self::Connecting | Self::Degraded,
                ServerEvent::ListedPartly | ServerEvent::CheckMissed | ServerEvent::Unlistable,
            ) => Self::Degraded,
            (_, ServerEvent::FellAsleep)
            | (Self::Connected | Self::Degraded, ServerEvent::Lost | ServerEvent::Unreachable)
            | (Self::NeedsReauth | Self::NeedsSignIn, ServerEvent::Lost) => Self::Disconnected,
            (Self::Connecting, ServerEvent::Lost | ServerEvent::Unreachable)
            | (Self::NeedsReauth | Self::NeedsSignIn, ServerEvent::Unreachable)
            | (Self::Disconnected, ServerEvent::Withdrawn) => Self::Failed,
            // What concerns a connection that has ended meanwhile, or changes nothing.
            (
                Self::Connected
                | Self::Connecting
                | Self::Degraded
                | Self::NeedsReauth
                | Self::NeedsSignIn,
                ServerEvent::Withdrawn,
            )
            | (
                Self::NeedsReauth | Self::NeedsSignIn,
                ServerEvent::CheckMissed | ServerEvent::Unlistable,
            )
            | (
                Self::Disconnected,
                ServerEvent::Listed
                | ServerEvent::ListedPartly
                | ServerEvent::Lost
                | ServerEvent::CheckMissed
                | ServerEvent::Unlistable
                | ServerEvent::Unreachable,
            )
            | (
                Self::Failed,
                ServerEvent::Listed
                | ServerEvent::ListedPartly
                | ServerEvent::Lost
                | ServerEvent::CheckMissed
                | ServerEvent::Unlistable
                | ServerEvent::Unreachable
                | ServerEvent::Withdrawn,
            ) => self,
        }
    }
}

/// Something was learnt of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ServerEvent {
    /// Nobody used it, and the connection was ended until somebody does.
    FellAsleep,
    /// It was greeted on a new connection.
    Greeted,
    /// Its lists were read.
    Listed,
    /// Some of its lists were read, others could not be.
    ListedPartly,
    /// The connection ended.
    Lost,
    /// It did not answer a health check.
    CheckMissed,
    /// It refused our credential.
    Refused,
    /// There is no credential for it until somebody signs in.
    SignInNeeded,
    /// An instance beside the catalog's is being connected, since somebody needs it. The catalog's is
    /// tried again by itself, and stays what it was meanwhile.
    Started,
    /// It is switched off in the config.
    SwitchedOff,
    /// Its lists cannot be read.
    Unlistable,
    /// No connection could be made.
    Unreachable,
    /// It stayed away for so long that its items are not listed any more.
    Withdrawn,
}

impl ServerEvent {
    /// Whether what was asleep, or was not, is afterwards.
    fn asleep_after(self, was: bool) -> bool {
        match self {
            Self::FellAsleep => true,
            Self::Greeted
            | Self::Lost
            | Self::Refused
            | Self::SignInNeeded
            | Self::Started
            | Self::SwitchedOff
            | Self::Unreachable
            | Self::Withdrawn => false,
            Self::Listed | Self::ListedPartly | Self::CheckMissed | Self::Unlistable => was,
        }
    }

    /// What is known afterwards of its lists on the connection of that moment.
    fn lists_after(self, was: ListState) -> ListState {
        match self {
            Self::Greeted | Self::Started => ListState::Untried,
            Self::Listed => ListState::Read,
            Self::ListedPartly => ListState::ReadPartly,
            Self::Unlistable => ListState::Unreadable,
            Self::FellAsleep
            | Self::Lost
            | Self::CheckMissed
            | Self::Refused
            | Self::SignInNeeded
            | Self::SwitchedOff
            | Self::Unreachable
            | Self::Withdrawn => was,
        }
    }

    /// The same, unless `failure` is that our credential was refused.
    pub(super) fn or_refused(self, failure: &BackendError) -> Self {
        if let BackendError::TokenRefused { .. } | BackendError::Unauthorized { .. } = failure {
            Self::Refused
        } else if let BackendError::NeedsSignIn { .. } = failure {
            Self::SignInNeeded
        } else {
            self
        }
    }
}

/// What came of reading the lists on the connection of the moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ListState {
    Untried,
    Read,
    /// Not all of them could be read.
    ReadPartly,
    Unreadable,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transition {
    /// When, RFC 3339.
    pub at: String,
    /// The state that was entered.
    pub state: ServerState,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Transition {
    /// Whether something was wrong, and it is said what.
    pub(super) fn is_error(&self) -> bool {
        self.state.needs_attention() && self.reason.is_some()
    }
}

/// What a life is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MachineSubject {
    /// An instance beside the catalog's. They come and go with their callers: of what is usual the
    /// log says little.
    Instance,
    Server,
}

/// Where one server or instance stands, and how it came there.
#[derive(Debug)]
pub(crate) struct StateMachine {
    subject: MachineSubject,
    server: ServerName,
    /// What its log lines are within.
    span: Span,
    /// The state once more, to be read without the lock.
    state: AtomicU8,
    inner: Mutex<StateMachineInner>,
    /// Tells that the state is another, or what is known of the lists.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct StateMachineInner {
    /// The last is the current one.
    history: VecDeque<Transition>,
    /// Why it is in that state by what is known now; the transition has what was known then.
    reason: Option<String>,
    lists: ListState,
    /// Whether it was ended since nobody used it, and has not been connected since.
    is_asleep: bool,
    /// Attempts that came to nothing since it was last connected.
    attempts: u32,
    /// So many of them in a row, and it has failed.
    failed_after: u32,
    /// Whether it is in trouble, or was and is being connected.
    in_trouble: bool,
}

impl StateMachineInner {
    /// Where one more attempt that came to nothing leads.
    fn after_failed_attempt(&mut self) -> ServerState {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts < self.failed_after {
            ServerState::Connecting
        } else {
            ServerState::Failed
        }
    }
}

/// Where something stands, to be shown.
#[derive(Clone, Debug)]
pub(super) struct StateSnapshot {
    pub(super) state: ServerState,
    /// Whether the next call wakes it.
    pub(super) asleep: bool,
    pub(super) reason: Option<String>,
    /// The current state last.
    pub(super) history: Vec<Transition>,
}

impl StateSnapshot {
    /// Since when it is in its state.
    pub(super) fn since(&self) -> String {
        let now = self.history.last();
        now.map(|now| now.at.clone()).unwrap_or_default()
    }
}

impl StateMachine {
    /// Of `server` or an instance of it; log lines are within `about`.
    pub(super) fn new(subject: MachineSubject, server: &ServerName, about: &Span) -> Self {
        let state = ServerState::Connecting;
        let first = Transition {
            at: clock::now().to_string(),
            state,
            reason: None,
        };
        Self {
            subject,
            server: server.clone(),
            span: about.clone(),
            state: AtomicU8::new(state as u8),
            inner: Mutex::new(StateMachineInner {
                history: [first].into(),
                reason: None,
                lists: ListState::Untried,
                is_asleep: false,
                attempts: 0,
                failed_after: 1,
                in_trouble: false,
            }),
            changed: watch::channel(()).0,
        }
    }

    /// Lets it be failed after so many attempts in a row that come to nothing, from the next one on.
    pub(super) fn set_failed_after(&self, attempts: u32) {
        self.lock().failed_after = attempts;
    }

    /// The state.
    pub(crate) fn state(&self) -> ServerState {
        ServerState::ALL[usize::from(self.state.load(Ordering::Relaxed)) % ServerState::ALL.len()]
    }

    /// What is known of the lists on the connection of the moment.
    pub(super) fn lists(&self) -> ListState {
        self.lock().lists
    }

    /// Tells when the state is another, or what is known of the lists.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Takes what was learnt, and why it is so.
    pub(super) fn apply(&self, event: ServerEvent, reason: Option<String>) {
        self.apply_if(event, reason, || true);
    }

    /// Takes what was learnt where `still_holds`, which is asked while nothing else is taken.
    pub(super) fn apply_if(
        &self,
        event: ServerEvent,
        reason: Option<String>,
        still_holds: impl FnOnce() -> bool,
    ) {
        let mut inner = self.lock();
        if !still_holds() {
            return;
        }
        let (old, old_lists) = (self.state(), inner.lists);
        inner.lists = event.lists_after(old_lists);
        self.transition(old.next(event), event, reason, &mut inner);
        if (self.state(), inner.lists) != (old, old_lists) {
            self.changed.send_replace(());
        }
    }

    /// Goes to `new`, where `event` leads.
    fn transition(
        &self,
        mut new: ServerState,
        event: ServerEvent,
        reason: Option<String>,
        inner: &mut StateMachineInner,
    ) {
        let old = self.state();
        if (old, new) == (ServerState::Connecting, ServerState::Failed) {
            new = inner.after_failed_attempt();
        }
        // That it stayed away is no cause of its own.
        let kept = || {
            inner
                .reason
                .clone()
                .filter(|_| event == ServerEvent::Withdrawn)
        };
        let reason = reason.or_else(kept);
        let was_asleep = inner.is_asleep;
        inner.is_asleep = event.asleep_after(was_asleep);
        if new == ServerState::Connected {
            inner.attempts = 0;
        }
        // One that cannot be woken is down from now on.
        if old == new && inner.is_asleep == was_asleep {
            // Why a server cannot be reached may be another thing now.
            if reason.is_some() && !matches!(new, ServerState::Connected | ServerState::Disabled) {
                self.log_reason(new, inner.reason.as_deref(), reason.as_deref());
                inner.reason = reason;
            }
            return;
        }
        let _about = self.span.enter();
        let is_news = self.subject == MachineSubject::Server
            || inner.in_trouble && new == ServerState::Connected;
        let to = if inner.is_asleep {
            None
        } else {
            Some((new, is_news))
        };
        self.log_transition(old, to, reason.as_deref());
        inner.in_trouble = !inner.is_asleep
            && (new.needs_attention() || inner.in_trouble && new == ServerState::Connecting);
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

    /// Where it stands. One lock for all: the last transition is the current state.
    pub(super) fn snapshot(&self) -> StateSnapshot {
        let inner = self.lock();
        StateSnapshot {
            state: self.state(),
            asleep: inner.is_asleep,
            reason: inner.reason.clone(),
            history: inner.history.iter().cloned().collect(),
        }
    }

    /// Whether it was ended since nobody used it, and has not been connected since.
    pub(super) fn is_asleep(&self) -> bool {
        self.lock().is_asleep
    }

    /// Whether it was lost or could not be had, and is not back.
    pub(super) fn is_down(&self) -> bool {
        let inner = self.lock();
        match self.state() {
            ServerState::Disconnected => !inner.is_asleep,
            ServerState::Failed | ServerState::NeedsReauth | ServerState::NeedsSignIn => true,
            ServerState::Connected
            | ServerState::Connecting
            | ServerState::Degraded
            | ServerState::Disabled => false,
        }
    }

    /// Says where it went, louder where that is news; `None` is to sleep.
    fn log_transition(
        &self,
        old: ServerState,
        to: Option<(ServerState, bool)>,
        reason: Option<&str>,
    ) {
        let (server, from) = (&self.server, old.as_str());
        let what = match self.subject {
            MachineSubject::Instance => "instance",
            MachineSubject::Server => "server",
        };
        let Some((new, is_news)) = to else {
            return tracing::debug!(%server, from, reason, "{what} is asleep");
        };
        let to = new.as_str();
        if new.needs_attention() {
            tracing::warn!(%server, from, reason, "{what} is {to}");
        } else if is_news {
            tracing::info!(%server, from, reason, "{what} is {to}");
        } else {
            tracing::debug!(%server, from, reason, "{what} is {to}");
        }
    }

    /// Says why what is not connected still is not, where that is not what it was.
    fn log_reason(&self, state: ServerState, old: Option<&str>, new: Option<&str>) {
        if old != new {
            let _about = self.span.enter();
            let (server, state) = (&self.server, state.as_str());
            if old.is_none() {
                tracing::debug!(%server, reason = new, "still {state}");
            } else {
                tracing::info!(%server, reason = new, "still {state}, for another reason");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, StateMachineInner> {
        lock(&self.inner)
    }
}

#[cfg(test)]
mod tests;
