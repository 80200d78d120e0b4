//! One connection as its users know it: a phase they can wait on, and what outlives a reconnect.

pub(super) mod breaker;
pub(super) mod connector;
pub(super) mod handshake;
pub(super) mod health;
pub(super) mod identity;
pub(super) mod reconnect;
mod roots;
pub(super) mod shared_state;
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
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{BackendError, ServerState, link::Link, state_machine::ServerEvent};
use crate::{
    clock::{self, millis_since},
    lock::lock,
    mcp::{Era, LogFilter},
    names::AgentId,
};
use handshake::ServerInitialization;
use identity::InstanceIdentity;
use reconnect::RetryTimer;

/// How long an instance that is down or asleep is shown while its callers do not come again.
pub(super) const ABANDONED_TTL: Duration = Duration::from_secs(600);

static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

/// A connection that can be used.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    pub(crate) hello: ServerInitialization,
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
    Asleep(Arc<ServerInitialization>),
    /// A connection is being made.
    Connecting,
    /// There is none; why.
    Down { failure: BackendError },
    /// It can be used.
    Ready(Arc<Connection>),
}

/// One connection, present or to be.
#[derive(Debug)]
pub(crate) struct Instance {
    phase: watch::Sender<InstancePhase>,
    /// When it entered its phase.
    since: Mutex<Timestamp>,
    used_ms: AtomicU64,
    created: Instant,
    /// Unique in this process.
    pub(crate) id: u64,
    /// What it goes on with where others were before it.
    pub(super) identity: Arc<InstanceIdentity>,
    /// Whose call it was started for; `None` for the catalog's.
    pub(super) started_by: Option<AgentId>,
    /// Since when nobody keeps it any more.
    abandoned: OnceLock<Instant>,
    pub(super) retry: RetryTimer,
    /// Resources that clients subscribed to through it, in the server's spelling.
    subscriptions: Mutex<BTreeSet<String>>,
    /// Ends the instance.
    pub(crate) stop: CancellationToken,
}

impl Instance {
    pub(super) fn new(identity: Arc<InstanceIdentity>, started_by: Option<AgentId>) -> Arc<Self> {
        let (phase, _) = watch::channel(InstancePhase::Connecting);
        let stop = identity.tasks.stop_token().child_token();
        Arc::new(Self {
            phase,
            since: Mutex::new(clock::now()),
            used_ms: AtomicU64::new(0),
            created: Instant::now(),
            id: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
            retry: RetryTimer::new(&identity.reconnect),
            identity,
            started_by,
            abandoned: OnceLock::new(),
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
    pub(super) async fn sleep(&self, hello: Arc<ServerInitialization>) {
        self.set_phase(InstancePhase::Asleep(hello));
        self.retry.wanted().await;
    }

    /// Wakes it, where it sleeps.
    pub(super) fn wake(&self) {
        if matches!(self.phase(), InstancePhase::Asleep(_)) {
            self.retry.want();
        }
    }

    /// Triggers an attempt of the catalog's instance, since a call needs it; whether that is made at once. One
    /// that is up needs none.
    pub(super) fn retry_now(&self) -> bool {
        let phase = self.phase();
        if matches!(&phase, InstancePhase::Ready(connection) if !connection.closed().is_cancelled())
        {
            return false;
        }
        self.retry.want();
        self.identity.shared_by.is_none() && self.retry.may_hurry()
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
                InstancePhase::Down { failure } if !self.is_retryable_after(failure) => {
                    return Err(failure.clone());
                }
                InstancePhase::Asleep(_)
                | InstancePhase::Connecting
                | InstancePhase::Down { .. }
                | InstancePhase::Ready(_) => self.retry.want(),
            }
            if phase.changed().await.is_err() {
                return Err(BackendError::Lost {
                    reason: "it is being stopped".to_owned(),
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

    /// When another attempt may be made, where that is not now. The catalog's instance is tried by itself.
    fn retry_at(&self) -> Option<Instant> {
        self.identity.shared_by.as_ref()?;
        self.retry.due_at()
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
                self.retry.note_answered();
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

/// Whoever waits for an instance that is no longer kept is told so.
pub(super) struct AbandonGuard<'a>(pub(super) &'a Instance);

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        if !self.0.is_abandoned() {
            self.0.abandon(BackendError::Lost {
                reason: "it is being stopped".to_owned(),
            });
        }
    }
}
