//! One connection as its users know it: a phase they can wait on, and what outlives a reconnect.

pub(super) mod breaker;
pub(super) mod connector;
pub(super) mod handshake;
pub(super) mod health;
pub(super) mod identity;
pub(super) mod reachability;
mod roots;
pub(super) mod shared_state;
pub(super) mod start_limiter;
pub(super) mod supervisor;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{BackendError, ServerState, link::Link, state_machine::ServerEvent};
use crate::{
    clock::{self, millis_since},
    config::Retry,
    lock::lock,
    mcp::{Era, LogFilter},
};
use handshake::Hello;
use identity::InstanceIdentity;
use start_limiter::Backoff;

/// Least time from an attempt that failed to one that calls lead to, however many come.
const RETRY_INTERVAL_MIN: Duration = Duration::from_secs(2);

/// How long an instance that is down or asleep is shown while its callers do not come again.
pub(super) const ABANDONED_TTL: Duration = Duration::from_secs(600);

static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

/// A connection that can be used.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    pub(crate) hello: Hello,
    /// Process id of a child.
    pub(crate) pid: Option<u32>,
    /// Whether its stream of list changes was opened.
    pub(super) follows_lists: AtomicBool,
}

impl Connection {
    pub(crate) fn era(&self) -> Era {
        self.hello.revision.era()
    }

    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.link.requests.closed
    }

    /// Whether it is a legacy one whose server has log messages, and does not send all that are `wanted`
    /// yet.
    pub(super) fn lacks_log_level(&self, wanted: LogFilter) -> bool {
        self.era() == Era::Legacy
            && self.link.requests.levels.lacks(wanted)
            && self.hello.capabilities.member("logging").is_some()
    }

    /// Notes that the stream of list changes is opened; whether it was not before.
    pub(crate) fn start_following(&self) -> bool {
        !self.follows_lists.swap(true, Ordering::Relaxed)
    }

    /// Ends the connection, politely where the transport allows it.
    pub(crate) async fn end(&self, reason: &str) {
        if let Some(http) = self.link.as_http() {
            http.delete_session().await;
        }
        self.link.requests.close(reason);
    }
}

/// Where an instance is in its life.
#[derive(Clone, Debug)]
pub(crate) enum InstancePhase {
    /// Nobody used it for long, so that it was ended; the next call wakes it. With what its server
    /// said of itself.
    Asleep(Arc<Hello>),
    /// A connection is being made.
    Connecting,
    /// There is none; why.
    Down { failure: BackendError },
    /// It can be used.
    Ready(Arc<Connection>),
}

/// The time after a failure in which no other attempt is made.
#[derive(Clone, Copy, Debug)]
struct BackoffPause {
    since: Instant,
    until: Instant,
}

impl BackoffPause {
    fn of(delay: Duration) -> Self {
        let since = Instant::now();
        let until = since + delay;
        Self { since, until }
    }
}

/// One connection, present or to be.
#[derive(Debug)]
pub(crate) struct Instance {
    phase: watch::Sender<InstancePhase>,
    /// When it entered its phase.
    since: Mutex<Timestamp>,
    /// Tells whoever keeps it that a call needs it.
    wake: Notify,
    /// Whether a call needs it that was not told yet that it is there, or is not.
    is_needed: AtomicBool,
    /// From when on a call has the next attempt made, while its keeper waits with that.
    retry_allowed_at: Mutex<Option<Instant>>,
    used_ms: AtomicU64,
    created: Instant,
    /// Unique in this process.
    pub(crate) id: u64,
    /// What it goes on with where others were before it.
    pub(super) identity: Arc<InstanceIdentity>,
    /// Since when nobody keeps it any more.
    abandoned: OnceLock<Instant>,
    /// Failures in a row before and with this one, and the pause after that.
    backoff: Mutex<(Backoff, Option<BackoffPause>)>,
    /// Resources that clients subscribed to through it, in the server's spelling.
    subscriptions: Mutex<BTreeSet<String>>,
    /// Ends the instance.
    pub(crate) stop: CancellationToken,
}

impl Instance {
    pub(super) fn new(lineage: Arc<InstanceIdentity>) -> Arc<Self> {
        let (phase, _) = watch::channel(InstancePhase::Connecting);
        let stop = lineage.tasks.stop_token().child_token();
        Arc::new(Self {
            phase,
            since: Mutex::new(clock::now()),
            wake: Notify::new(),
            is_needed: AtomicBool::new(false),
            retry_allowed_at: Mutex::default(),
            used_ms: AtomicU64::new(0),
            created: Instant::now(),
            id: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
            identity: lineage,
            abandoned: OnceLock::new(),
            backoff: Mutex::default(),
            subscriptions: Mutex::default(),
            stop,
        })
    }

    pub(crate) fn phase(&self) -> InstancePhase {
        self.phase.borrow().clone()
    }

    /// The era that is spoken on its connection, or was before it fell asleep.
    pub(super) fn era(&self) -> Option<Era> {
        match &*self.phase.borrow() {
            InstancePhase::Asleep(hello) => Some(hello.revision.era()),
            InstancePhase::Ready(connection) => Some(connection.era()),
            InstancePhase::Connecting | InstancePhase::Down { .. } => None,
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<InstancePhase> {
        self.phase.subscribe()
    }

    /// The connection, when it can be used now.
    pub(crate) fn ready(&self) -> Option<Arc<Connection>> {
        self.touch();
        match &*self.phase.borrow() {
            InstancePhase::Ready(connection) if !connection.closed().is_cancelled() => {
                Some(Arc::clone(connection))
            }
            InstancePhase::Asleep(_)
            | InstancePhase::Connecting
            | InstancePhase::Down { .. }
            | InstancePhase::Ready(_) => None,
        }
    }

    /// Whether its connection has ended a moment ago: its calls hear of that before its keeper.
    pub(super) fn is_lost(&self) -> bool {
        let phase = self.phase.borrow();
        matches!(&*phase, InstancePhase::Ready(connection) if connection.closed().is_cancelled())
    }

    /// Where it stands, or those that went on from it.
    pub(super) fn state(&self) -> ServerState {
        // In this order: whoever notes the loss takes the connection away after it.
        let is_lost = self.is_lost();
        let known = self.identity.state_machine.state();
        if is_lost {
            known.next(ServerEvent::Lost)
        } else {
            known
        }
    }

    /// Sleeps until somebody wants a connection.
    pub(super) async fn sleep(&self, hello: Arc<Hello>) {
        let mut woken = std::pin::pin!(self.wake.notified());
        // Before anyone can see that it sleeps.
        woken.as_mut().enable();
        self.set_phase(InstancePhase::Asleep(hello));
        woken.await;
    }

    /// Wakes it, where it sleeps.
    pub(super) fn wake(&self) {
        if matches!(self.phase(), InstancePhase::Asleep(_)) {
            self.wake.notify_waiters();
        }
    }

    /// Completes when a call needs it, though not just after the last attempt.
    pub(super) async fn retry_requested(&self) {
        let from = Instant::now() + RETRY_INTERVAL_MIN;
        let _waiting = RetryWindow::new(&self.retry_allowed_at, from);
        sleep_until(from).await;
        self.use_requested().await;
    }

    /// Completes when a call needs it.
    pub(super) async fn use_requested(&self) {
        loop {
            let mut woken = std::pin::pin!(self.wake.notified());
            woken.as_mut().enable();
            if self.is_use_requested() {
                return;
            }
            woken.await;
        }
    }

    /// Whether a call needs it, and waits to be told.
    pub(super) fn is_use_requested(&self) -> bool {
        self.is_needed.load(Ordering::SeqCst)
    }

    /// Has the next attempt made as soon as it may be, since a call needs it; whether that is at once. Of one
    /// that is up there is none: whoever loses it later was not called for.
    pub(super) fn retry_now(&self) -> bool {
        let is_up = match &*self.phase.borrow() {
            InstancePhase::Ready(connection) => !connection.closed().is_cancelled(),
            InstancePhase::Asleep(_) | InstancePhase::Connecting | InstancePhase::Down { .. } => {
                false
            }
        };
        !is_up && self.request_retry()
    }

    /// The same, of one that is known not to be up.
    fn request_retry(&self) -> bool {
        self.is_needed.store(true, Ordering::SeqCst);
        self.wake.notify_waiters();
        let from = *lock(&self.retry_allowed_at);
        from.is_some_and(|from| Instant::now() >= from)
    }

    /// What comes of the next attempt, made at once; `None` where none is about to be.
    pub(super) async fn retry_result(&self) -> Option<Result<Arc<Connection>, BackendError>> {
        let mut phase = self.phase.subscribe();
        if !self.retry_now() {
            return None;
        }
        // Whoever keeps it says that an attempt is made, or why not.
        phase.changed().await.ok();
        Some(self.connection().await)
    }

    /// The connection, as soon as there is one; the failure, when there will be none for now.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                InstancePhase::Ready(connection) if !connection.closed().is_cancelled() => {
                    return Ok(Arc::clone(connection));
                }
                InstancePhase::Asleep(_) => self.wake.notify_waiters(),
                InstancePhase::Down { failure } if !self.is_retryable_after(failure) => {
                    return Err(failure.clone());
                }
                InstancePhase::Connecting
                | InstancePhase::Down { .. }
                | InstancePhase::Ready(_) => drop(self.request_retry()),
            }
            if phase.changed().await.is_err() {
                return Err(BackendError::Lost {
                    reason: "stopping".to_owned(),
                });
            }
        }
    }

    /// Whether it is beside the catalog's, and down after `failure` only until a call wants it.
    fn is_retryable_after(&self, failure: &BackendError) -> bool {
        let now = Instant::now();
        let is_held_back =
            matches!(failure, BackendError::StartsLimited { until, .. } if *until > now);
        let is_kept = self.identity.shared_by.is_some() && !self.is_abandoned();
        is_kept && !is_held_back && !self.is_backing_off()
    }

    /// Counts as used just now.
    pub(crate) fn touch(&self) {
        self.used_ms
            .store(millis_since(self.created), Ordering::Relaxed);
    }

    /// Whether another connection in its place has to wait, since this one failed just now.
    pub(crate) fn is_backing_off(&self) -> bool {
        self.retry_at().is_some()
    }

    /// When another attempt may be made, where that is not now.
    fn retry_at(&self) -> Option<Instant> {
        let BackoffPause { since, until } = lock(&self.backoff).1?;
        let is_over = Instant::now() >= until || self.identity.reachability.is_catalog_back(since);
        (!is_over).then_some(until)
    }

    /// What callers are told while another connection in its place has to wait.
    pub(super) fn backoff_error(&self) -> Option<BackendError> {
        let until = self.retry_at()?;
        match self.phase() {
            // What does not pass by itself is said as it is.
            InstancePhase::Down { failure } if failure.is_transient() => {
                let cause = Box::new(failure);
                Some(BackendError::BackingOff { cause, until })
            }
            InstancePhase::Down { failure } => Some(failure),
            InstancePhase::Asleep(_) | InstancePhase::Connecting | InstancePhase::Ready(_) => None,
        }
    }

    /// Failures in a row that a successor goes on counting from.
    pub(crate) fn failures(&self) -> u32 {
        lock(&self.backoff).0.failures()
    }

    pub(super) fn set_failures(&self, failures: u32) {
        lock(&self.backoff).0 = Backoff::after_failures(failures);
    }

    /// Is kept no more: there is no connection, and another instance may take its place.
    pub(super) fn abandon(&self, failure: BackendError) {
        // Whoever sees that it is down knows whether to wait for it.
        self.abandoned.set(Instant::now()).ok();
        self.set_phase(InstancePhase::Down { failure });
    }

    /// Whether it is kept no more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.get().is_some()
    }

    /// Completes when it is kept no more.
    pub(super) async fn until_abandoned(&self) {
        let mut phase = self.phase.subscribe();
        while !self.is_abandoned() {
            // The sender is at hand: this cannot fail.
            phase.changed().await.ok();
        }
    }

    /// Whether it is nobody's concern any more: its callers are gone, or it was abandoned long ago and
    /// they have not come again.
    pub(super) fn is_removable(&self) -> bool {
        let abandoned = self.abandoned.get();
        let is_old = abandoned.is_some_and(|at| at.elapsed() >= ABANDONED_TTL);
        is_old || self.identity.is_orphaned()
    }

    /// Completes when the next attempt may be made.
    pub(super) async fn until_retry_time(&self) {
        let pause = lock(&self.backoff).1;
        if let Some(BackoffPause { since, until }) = pause {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.identity.reachability.until_catalog_back(since) => {}
            }
        }
    }

    /// Notes that an attempt failed, or that a connection was lost which was `up` for so long.
    pub(super) fn note_failure(&self, retry: Retry, up: Duration) {
        let (backoff, pause) = &mut *lock(&self.backoff);
        backoff.after_uptime(retry, up);
        *pause = Some(BackoffPause::of(backoff.next_delay(retry)));
    }

    /// Notes that the server no longer knew a connection which was `up` for so long. It is there, and may
    /// have started anew: only where that goes on and on is there a pause.
    pub(super) fn note_session_lost(&self, retry: Retry, up: Duration) {
        let (backoff, pause) = &mut *lock(&self.backoff);
        backoff.after_uptime(retry, up);
        let is_first = backoff.failures() == 0;
        let delay = backoff.next_delay(retry);
        *pause = (!is_first).then(|| BackoffPause::of(delay));
    }

    /// Notes a subscription to a resource: it keeps the connection, and outlives it. Whether there was
    /// none.
    pub(crate) fn add_subscription(&self, uri: &str) -> bool {
        lock(&self.subscriptions).insert(uri.to_owned())
    }

    /// Notes the end of a subscription.
    pub(crate) fn remove_subscription(&self, uri: &str) {
        lock(&self.subscriptions).remove(uri);
    }

    /// Whether its server was subscribed to a resource, given in the server's spelling.
    pub(super) fn is_subscribed(&self, uri: &str) -> bool {
        lock(&self.subscriptions).contains(uri)
    }

    pub(super) fn subscriptions(&self) -> Vec<String> {
        lock(&self.subscriptions).iter().cloned().collect()
    }

    /// How long ago it was last used.
    pub(crate) fn idle_for(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.created.elapsed().saturating_sub(used)
    }

    pub(crate) fn set_phase(&self, phase: InstancePhase) {
        *lock(&self.since) = clock::now();
        self.phase.send_modify(|current| {
            // Who needed it is told now; who comes later sees the new phase first.
            if matches!(phase, InstancePhase::Down { .. } | InstancePhase::Ready(_)) {
                self.is_needed.store(false, Ordering::SeqCst);
            }
            *current = phase;
        });
    }

    /// The state in which it is at work, and since when, where it is connected or being connected.
    pub(super) fn activity_state(&self) -> Option<(ServerState, Timestamp)> {
        let state = match &*self.phase.borrow() {
            InstancePhase::Asleep(_) | InstancePhase::Down { .. } => return None,
            InstancePhase::Connecting => ServerState::Connecting,
            InstancePhase::Ready(connection) if connection.closed().is_cancelled() => return None,
            InstancePhase::Ready(_) => self.identity.state_machine.state(),
        };
        (!self.stop.is_cancelled()).then(|| (state, *lock(&self.since)))
    }

    /// Whether calls are under way, or clients are subscribed to its resources.
    pub(crate) fn is_busy(&self) -> bool {
        if !lock(&self.subscriptions).is_empty() {
            return true;
        }

        matches!(&*self.phase.borrow(), InstancePhase::Ready(connection) if connection.link.requests.in_flight() > 0)
    }
}

/// A keeper waits until this is dropped.
struct RetryWindow<'a>(&'a Mutex<Option<Instant>>);

impl<'a> RetryWindow<'a> {
    fn new(hurry_from: &'a Mutex<Option<Instant>>, from: Instant) -> Self {
        *lock(hurry_from) = Some(from);
        Self(hurry_from)
    }
}

impl Drop for RetryWindow<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

/// Whoever waits for an instance that is no longer kept is told so.
pub(super) struct AbandonGuard<'a>(pub(super) &'a Instance);

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if !self.0.is_abandoned() {
            self.0.abandon(BackendError::Lost {
                reason: "stopping".to_owned(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::mpsc, time::timeout};

    use super::{reachability::Reachability, *};
    use crate::{
        backend::link::pending::{LinkSettings, PendingRequests},
        config::Transport,
        mcp::{Raw, Revision},
        names::ServerName,
        task::Tasks,
    };

    /// Calls that waited for an attempt which failed lead to no other once they were told.
    #[tokio::test(start_paused = true)]
    async fn who_was_told_needs_no_other_attempt() {
        let server = ServerName::parse("x").unwrap();
        let reach = Arc::new(Reachability::new(&Transport::Builtin));
        let lineage = InstanceIdentity::for_catalog(&server, 1, &reach, &Tasks::new());
        let instance = Instance::new(lineage);
        let is_needed = || async {
            timeout(2 * RETRY_INTERVAL_MIN, instance.retry_requested())
                .await
                .is_ok()
        };
        assert!(!is_needed().await);
        instance.retry_now();
        assert!(is_needed().await);
        instance.set_phase(InstancePhase::Connecting);
        assert!(is_needed().await, "they wait on");
        let failure = BackendError::SessionGone;
        instance.set_phase(InstancePhase::Down { failure });
        assert!(!is_needed().await, "they were told");
        instance.retry_now();
        assert!(is_needed().await);

        let (writer, _sent) = mpsc::channel(1);
        let mux = PendingRequests::new(LinkSettings::example(), None, Tasks::new());
        let connection = Arc::new(Connection {
            link: Arc::new(Link::pipe(mux, writer)),
            hello: Hello {
                revision: Revision::MODERN,
                capabilities: Raw::from_static("{}"),
                info: None,
                instructions: None,
            },
            pid: None,
            follows_lists: AtomicBool::new(false),
        });
        instance.set_phase(InstancePhase::Ready(Arc::clone(&connection)));
        instance.retry_now();
        assert!(!is_needed().await, "it is there");
        connection.link.requests.close("it is lost");
        instance.retry_now();
        assert!(is_needed().await, "it is there no more");
    }
}
