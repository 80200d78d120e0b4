//! Whose a message of a server is, and how that party is reached.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{LinkSettings, PendingEntry, PendingRequests};
use crate::{
    backend::link::{
        Caller, exchange_activity::Activity, recent_calls::LATE_NOTIFICATION_WINDOW, scan_event,
        session_filter::SessionView,
    },
    catalog::UriMap,
    governance::CallScanners,
    lock::lock,
    mcp::{Era, LogFilter},
    names::AgentId,
    session::{Client, ClientInfo, Event, Session},
};

/// The one party a message belongs to.
#[derive(Clone, Debug)]
pub(super) enum Recipient {
    Call {
        caller: Caller,
        activity: Arc<Activity>,
    },
    /// A session outside of its calls, and how it sees the server at this moment.
    Session(Arc<Session>, SessionView),
}

impl Recipient {
    pub(super) fn client(&self) -> Option<&Client> {
        match self {
            Self::Call { caller, .. } => Some(&caller.client),
            Self::Session(..) => None,
        }
    }

    /// Whose client it is.
    pub(super) fn agent(&self) -> AgentId {
        match self {
            Self::Call { caller, .. } => caller.client.agent.id,
            Self::Session(session, _) => session.agent.id,
        }
    }

    /// What its client said about itself; `None` before it did.
    pub(super) fn client_info(&self) -> Option<Arc<ClientInfo>> {
        match self {
            Self::Call { caller, .. } => Some(Arc::clone(&caller.client.client_info)),
            Self::Session(session, _) => session.client_info(),
        }
    }

    pub(super) fn uris(&self) -> Option<Arc<UriMap>> {
        match self {
            Self::Call { caller, .. } => caller.uris.clone(),
            Self::Session(_, view) => view.uris.clone(),
        }
    }

    /// What passes between it and the server is looked at with.
    pub(super) fn scanners(&self) -> Option<CallScanners> {
        match self {
            Self::Call { caller, .. } => caller.scanners.clone(),
            Self::Session(_, view) => view.scanners.clone(),
        }
    }

    pub(super) fn session(&self) -> Weak<Session> {
        match self {
            Self::Call { caller, .. } => caller.session(),
            Self::Session(session, _) => Arc::downgrade(session),
        }
    }

    pub(super) fn is_of(&self, session: &Arc<Session>) -> bool {
        is_same_session(&self.session(), session)
    }

    /// Which log messages it wants.
    pub(super) fn logs(&self) -> LogFilter {
        match self {
            Self::Call { caller, .. } => caller.client.logs(caller.logs),
            Self::Session(session, _) => session.logs(),
        }
    }

    /// Whether it is the call whose exchange has this `activity`.
    pub(super) fn is_of_exchange(&self, activity: &Arc<Activity>) -> bool {
        match self {
            Self::Call { activity: own, .. } => Arc::ptr_eq(own, activity),
            Self::Session(..) => false,
        }
    }

    /// Sends what concerns the client also once its call is over: then as what belongs to no call.
    pub(super) fn send_late(&self, event: impl Fn() -> Event) -> bool {
        let after = || {
            let Self::Call { caller, .. } = self else {
                return false;
            };
            let session = caller.client.session.clone();
            let view = SessionView {
                scanners: caller.scanners.clone(),
                uris: caller.uris.clone(),
            };
            session.is_some_and(|session| Self::Session(session, view).send(event()))
        };
        self.send(event()) || after()
    }

    pub(super) fn send(&self, event: Event) -> bool {
        match self {
            Self::Call { caller, .. } => caller.send(event),
            Self::Session(session, view) => {
                scan_event(event, view.scanners.as_ref()).is_none_or(|event| session.deliver(event))
            }
        }
    }
}

impl PendingRequests {
    /// Whether `origin` is a call of a modern client: of such, only a listen stream has updates.
    pub(super) fn is_listen_stream(&self, origin: Option<u64>) -> bool {
        let Some(id) = origin else { return false };
        let recipient = self.recipient(Some(id), LATE_NOTIFICATION_WINDOW);
        let client = recipient.as_ref().and_then(Recipient::client);
        client.is_some_and(|client| client.era() == Era::Modern)
    }

    /// Where a notification without an origin goes: as [`PendingRequests::recipient`] says; else, right after
    /// the only call under way has ended, to the session that made it. Servers that send log
    /// messages on a stream of their own lose the race against the answer.
    pub(super) fn notification_recipient(&self, origin: Option<u64>) -> Option<Recipient> {
        let found = self.recipient(origin, LATE_NOTIFICATION_WINDOW);
        if found.is_some() || origin.is_some() || self.in_flight() > 0 {
            return found;
        }
        let session = self.recent_calls.last_session()?;
        let is_sure = !self
            .recent_calls
            .may_concern_others(Some(&session), LATE_NOTIFICATION_WINDOW);
        is_sure.then(|| self.session_recipient(session)).flatten()
    }

    /// The call `origin`; else, when all calls under way are of one client, the latest of them;
    /// else, when there are none, the session that owns the link.
    pub(super) fn recipient(&self, origin: Option<u64>, haunting: Duration) -> Option<Recipient> {
        let pending = lock(&self.pending);
        let of = |entry: &PendingEntry| {
            let activity = Arc::clone(&entry.activity);
            entry
                .caller
                .clone()
                .map(|caller| Recipient::Call { caller, activity })
        };
        if let Some(id) = origin {
            return pending.get(&id).and_then(of);
        }
        let mut latest: Option<(u64, &PendingEntry)> = None;
        for (id, entry) in pending.iter() {
            let Some(caller) = &entry.caller else {
                continue;
            };
            let same = latest.is_none_or(|(_, other)| {
                other
                    .caller
                    .as_ref()
                    .is_some_and(|other| is_same_client(other, caller))
            });
            if !same {
                return None;
            }
            if latest.is_none_or(|(best, _)| best < *id) {
                latest = Some((*id, entry));
            }
        }
        let Some((_, entry)) = latest else {
            drop(pending);
            return self.session_recipient(self.session.clone()?);
        };
        let session = entry
            .caller
            .as_ref()
            .and_then(|caller| caller.client.session.as_ref());
        if self.recent_calls.may_concern_others(session, haunting) {
            return None;
        }
        of(entry)
    }

    /// Whether a call of `session` is under way.
    pub(in crate::backend) fn serves(&self, session: &Arc<Session>) -> bool {
        let pending = lock(&self.pending);
        let mut callers = pending.values().filter_map(|entry| entry.caller.as_ref());
        callers.any(|caller| is_same_session(&caller.session(), session))
    }

    /// The session outside of its calls; `None` where nobody can say what it may see.
    pub(super) fn session_recipient(&self, session: Arc<Session>) -> Option<Recipient> {
        let LinkSettings {
            server,
            session_filters: views,
            ..
        } = &self.settings;
        let view = views.view(&session, server)?;
        Some(Recipient::Session(session, view))
    }
}

/// Whether two calls are of one session; without sessions nobody can tell.
fn is_same_client(one: &Caller, other: &Caller) -> bool {
    match (&one.client.session, &other.client.session) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, _) | (_, None) => false,
    }
}

fn is_same_session(one: &Weak<Session>, other: &Arc<Session>) -> bool {
    std::ptr::eq(one.as_ptr(), Arc::as_ptr(other))
}
