//! What is remembered of calls that have ended, so that what a server says afterwards reaches
//! nobody but the client it is about.
//!
//! A server may go on with a call whose client gave up, and then ask or tell something without
//! naming the call. As long as such a ghost may be at work, only its own client can be meant.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use tokio::time::Instant;

use crate::{lock::lock, session::Session};

/// How long after the end of a call what a server says without an origin is taken for its echo.
const ATTRIBUTION_GRACE: Duration = Duration::from_millis(500);
/// How long a server may still ask something for a call that it was told to cancel. Nobody else is
/// asked meanwhile: a question shows what the call was about, and the answer feeds it.
pub(in crate::backend) const LATE_REQUEST_WINDOW: Duration = Duration::from_secs(60);
/// How long it may still tell something of such a call.
pub(in crate::backend) const LATE_NOTIFICATION_WINDOW: Duration = Duration::from_secs(2);
/// Unanswered calls that are remembered; with more, nothing is attributed for a while.
const UNANSWERED_MAX: usize = 256;

/// Calls of one link that have ended.
#[derive(Debug, Default)]
pub(in crate::backend) struct RecentCalls {
    inner: Mutex<RecentCallsInner>,
}

#[derive(Debug, Default)]
struct RecentCallsInner {
    latest: Option<(Instant, Weak<Session>)>,
    /// Until then calls of several clients may echo.
    ambiguous_until: Option<Instant>,
    unanswered: HashMap<u64, UnansweredCall>,
    overflow_until: Option<Instant>,
}

#[derive(Debug)]
struct UnansweredCall {
    /// Dangling for a call without a session.
    session: Weak<Session>,
    since: Instant,
}

impl RecentCalls {
    /// Notes the end of call `id`; `answered` says whether the server is through with it.
    pub(in crate::backend) fn call_ended(
        &self,
        id: u64,
        session: Option<&Arc<Session>>,
        answered: bool,
    ) {
        let now = Instant::now();
        let session = session.map_or_else(Weak::new, Arc::downgrade);
        let mut inner = self.lock();
        if !answered {
            inner.remember_unanswered(id, session.clone(), now);
        }
        let other = |(at, latest): &(Instant, Weak<Session>)| {
            now.duration_since(*at) < ATTRIBUTION_GRACE && !Weak::ptr_eq(latest, &session)
        };
        if session.strong_count() == 0 || inner.latest.as_ref().is_some_and(other) {
            inner.ambiguous_until = Some(now + ATTRIBUTION_GRACE);
        }
        inner.latest = Some((now, session));
    }

    /// The server has answered call `id` after all.
    pub(in crate::backend) fn late_answer(&self, id: u64) {
        self.lock().unanswered.remove(&id);
    }

    /// The session that a message right after the end of all calls can only be about.
    pub(in crate::backend) fn last_session(&self) -> Option<Arc<Session>> {
        let inner = self.lock();
        let now = Instant::now();
        if inner.ambiguous_until.is_some_and(|until| now < until) {
            return None;
        }
        let (at, session) = inner.latest.as_ref()?;
        session
            .upgrade()
            .filter(|_| now.duration_since(*at) < ATTRIBUTION_GRACE)
    }

    /// Whether a message that names no call may be about a client other than that of `session`,
    /// because of a call that ended unanswered no longer than `within` ago.
    pub(in crate::backend) fn may_concern_others(
        &self,
        session: Option<&Arc<Session>>,
        within: Duration,
    ) -> bool {
        let mut inner = self.lock();
        let now = Instant::now();
        if inner.overflow_until.is_some_and(|until| now < until) {
            return true;
        }
        inner
            .unanswered
            .retain(|_, ghost| now.duration_since(ghost.since) < LATE_REQUEST_WINDOW);
        let own = |ghost: &UnansweredCall| {
            session
                .is_some_and(|session| std::ptr::eq(ghost.session.as_ptr(), Arc::as_ptr(session)))
        };
        let recent = |ghost: &UnansweredCall| now.duration_since(ghost.since) < within;
        inner
            .unanswered
            .values()
            .any(|ghost| recent(ghost) && !own(ghost))
    }

    fn lock(&self) -> MutexGuard<'_, RecentCallsInner> {
        lock(&self.inner)
    }
}

impl RecentCallsInner {
    fn remember_unanswered(&mut self, id: u64, session: Weak<Session>, since: Instant) {
        if self.unanswered.len() < UNANSWERED_MAX {
            self.unanswered
                .insert(id, UnansweredCall { session, since });
        } else {
            self.overflow_until = Some(since + LATE_REQUEST_WINDOW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Agent, names::Scope, session::state::SessionKind};

    fn session() -> Arc<Session> {
        Arc::new(Session::new(
            SessionKind::Stdio,
            Arc::new(Agent::anonymous()),
            Scope::All,
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn an_echo_belongs_to_the_one_client_that_called() {
        let (one, other) = (session(), session());
        let recent = RecentCalls::default();
        recent.call_ended(1, Some(&one), true);
        assert!(Arc::ptr_eq(&recent.last_session().unwrap(), &one));
        recent.call_ended(2, Some(&other), true);
        assert!(recent.last_session().is_none(), "it may be either's");
        tokio::time::advance(ATTRIBUTION_GRACE).await;
        assert!(recent.last_session().is_none(), "too long ago");
        recent.call_ended(3, None, true);
        recent.call_ended(4, Some(&one), true);
        assert!(
            recent.last_session().is_none(),
            "one without a session ended just before"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_ghost_keeps_others_from_being_meant() {
        let (one, other) = (session(), session());
        let recent = RecentCalls::default();
        recent.call_ended(1, Some(&one), false);
        assert!(!recent.may_concern_others(Some(&one), LATE_REQUEST_WINDOW));
        assert!(recent.may_concern_others(Some(&other), LATE_REQUEST_WINDOW));
        assert!(recent.may_concern_others(None, LATE_REQUEST_WINDOW));
        tokio::time::advance(LATE_NOTIFICATION_WINDOW).await;
        assert!(
            !recent.may_concern_others(Some(&other), LATE_NOTIFICATION_WINDOW),
            "it has fallen silent"
        );
        assert!(
            recent.may_concern_others(Some(&other), LATE_REQUEST_WINDOW),
            "it may still ask"
        );
        recent.late_answer(1);
        assert!(!recent.may_concern_others(Some(&other), LATE_REQUEST_WINDOW));
        for id in 0..=UNANSWERED_MAX as u64 {
            recent.call_ended(id, Some(&one), false);
        }
        assert!(
            recent.may_concern_others(Some(&one), LATE_REQUEST_WINDOW),
            "past the limit nobody is meant"
        );
        tokio::time::advance(LATE_REQUEST_WINDOW).await;
        assert!(
            !recent.may_concern_others(Some(&other), LATE_REQUEST_WINDOW),
            "in the end it is over"
        );
    }
}
