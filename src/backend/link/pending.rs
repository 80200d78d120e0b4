//! The book of one link: what is under way, and who is behind it.
//!
//! Fed by whatever reads from the server. What a server says goes to the call on whose stream it came;
//! else, when all calls under way are of one client, to the latest of them; else, when none is under
//! way, to the session that owns the link; else nowhere.
//! `recipient` finds out whose it is, `told` passes it on, `levels` says which log messages, `server_requests` is what it asks,
//! `question_record` what is recorded of that, `signals` what it says to the gateway itself, `url_elicitations` whose the URLs are that it sent clients to.

mod log_levels;
mod notifications;
mod question_record;
mod recipient;
mod server_requests;
mod signals;
mod task_owners;
mod url_elicitations;

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

pub(in crate::backend) use question_record::QuestionRecording;
pub(in crate::backend) use server_requests::{QuestionProgress, WaitingRequest, asks_for_roots};
pub(crate) use signals::NotedSignals;
pub(crate) use task_owners::LinkTaskOwners;

use super::{
    Caller, Exchange, backlog::Backlog, exchange_activity::Activity, gateway_peer::GatewayPeer,
    recent_calls::RecentCalls, session_filter::SessionFilters,
};
use crate::{
    backend::BackendError,
    clock::millis_since,
    config::{MemorySize, Root},
    limiter::{ByteBudget, CallLimit},
    lock::lock,
    mcp::{Era, Id, Method, Outcome, Raw, Response, Revision, envelope::Unreadable, meta, tasks},
    names::InvocationId,
    session::Session,
    task::Tasks,
};
use log_levels::Levels;
use server_requests::ForwardedRequest;
use signals::Signals;
use url_elicitations::UrlElicitations;

/// Answers to requests of a server that may wait until it takes them.
pub(in crate::backend) const ANSWERS_MAX: usize = 4096;

/// Cancellations that may wait until a server takes them; it works on the rest in vain.
pub(in crate::backend) const CANCELLATIONS_MAX: usize = 1024;

/// How long the end of a link may wait for what is being read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What a link needs to know of its server.
#[derive(Clone, Debug)]
pub(crate) struct LinkSettings {
    pub(crate) server: crate::names::ServerName,
    /// Who it is among gateways, over HTTP.
    pub(crate) peer: Arc<GatewayPeer>,
    pub(crate) request_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
    /// What a child may use; for other servers it means nothing.
    pub(crate) memory_max: Option<MemorySize>,
    pub(crate) ask_timeout: Duration,
    pub(crate) roots: Option<Vec<Root>>,
    /// Whether the link is for the lists of the server alone, so that no client is behind it.
    pub(crate) is_for_lists: bool,
    /// How sessions see what the server says outside of calls.
    pub(crate) session_filters: SessionFilters,
    /// What answers may take of the memory of the process.
    pub(crate) byte_budget: ByteBudget,
    /// How many requests over HTTP may be under way, to all servers.
    pub(crate) http_calls: CallLimit,
    /// The tasks that were begun on it, and on those before it.
    pub(crate) task_owners: Arc<LinkTaskOwners>,
}

#[cfg(test)]
impl LinkSettings {
    /// Those of a server `x`, for tests that need any.
    pub(crate) fn example() -> Self {
        Self {
            server: crate::names::ServerName::parse("x").unwrap(),
            peer: Arc::new(GatewayPeer::example()),
            request_bytes_max: 1024,
            response_bytes_max: 1024,
            memory_max: None,
            ask_timeout: Duration::from_secs(1),
            roots: None,
            is_for_lists: false,
            session_filters: SessionFilters::unfiltered(),
            byte_budget: ByteBudget::new(usize::MAX),
            http_calls: CallLimit::new(usize::MAX),
            task_owners: Arc::default(),
        }
    }
}

/// The book of one link: what is under way, and who is behind it.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    pub(crate) settings: LinkSettings,
    pub(crate) tasks: Tasks,
    /// The revision that the handshake settled on.
    pub(crate) revision: OnceLock<Revision>,
    /// Cancelled when the link is gone.
    pub(crate) closed: CancellationToken,
    /// The session whose own this link is, where it serves one alone.
    session: Option<Arc<Session>>,
    /// What the supervisor is to know: lists changed, resources updated.
    pub(in crate::backend) signals: Signals,
    pub(in crate::backend) levels: Levels,
    next_id: AtomicU64,
    pending: Mutex<foldhash::HashMap<u64, PendingEntry>>,
    forwarded: Mutex<HashMap<Id, ForwardedRequest>>,
    /// Places of our own answers to requests of the server.
    pub(in crate::backend) answers: Arc<Semaphore>,
    /// Places of cancellations that their server does not take at once.
    pub(in crate::backend) cancellations: Arc<Semaphore>,
    /// Notifications of clients that their server does not take at once.
    pub(in crate::backend) backlog: Backlog,
    url_elicitations: UrlElicitations,
    reason: Mutex<Option<String>>,
    recent_calls: RecentCalls,
    session_lost: AtomicBool,
    created: Instant,
    /// Milliseconds from `created` to the last sign of life.
    last_heard_ms: AtomicU64,
    /// Listen streams of our own that the server acknowledged.
    acknowledged: AtomicU64,
    /// A call failed in a way that the server may be gone.
    failure_notify: Notify,
    /// A call was answered in a way that another server may be there.
    identity_doubt: Notify,
    /// How far it is with the roots of its client.
    pub(in crate::backend) roots: watch::Sender<Roots>,
    unattributed: AtomicU64,
    late_answers: AtomicU64,
    /// Large messages that are being read.
    large_reads: watch::Sender<usize>,
}

/// Whether a server has the roots of its client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::backend) enum Roots {
    /// It has not asked for them.
    Unasked,
    Asked,
    /// They were sent, or refused.
    Answered,
}

/// Takes the answer to an exchange.
pub(in crate::backend) type Responder = oneshot::Sender<Result<Outcome, BackendError>>;

#[derive(Debug)]
struct PendingEntry {
    /// Who waits for the answer; `None` where that comes to the exchange by a way of its own.
    responder: Option<Responder>,
    caller: Option<Caller>,
    activity: Arc<Activity>,
    /// Whether it is a listen stream, which is not answered before it ends.
    is_listen_stream: bool,
    /// Whether a task of the legacy era may come of it.
    may_create_task: bool,
    /// How long it waits for a sign of life.
    idle_timeout: Duration,
}

impl PendingEntry {
    fn complete(self, answer: Result<Outcome, BackendError>) {
        if let Some(tell) = self.responder {
            drop(tell.send(answer));
        }
    }
}

impl PendingRequests {
    pub(crate) fn new(
        settings: LinkSettings,
        home: Option<Arc<Session>>,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            recent_calls: RecentCalls::default(),
            revision: OnceLock::new(),
            closed: tasks.stop_token().child_token(),
            tasks,
            session: home,
            signals: Signals::default(),
            levels: Levels::default(),
            next_id: AtomicU64::new(1),
            pending: Mutex::default(),
            forwarded: Mutex::default(),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
            cancellations: Arc::new(Semaphore::new(CANCELLATIONS_MAX)),
            backlog: Backlog::default(),
            url_elicitations: UrlElicitations::default(),
            reason: Mutex::default(),
            session_lost: AtomicBool::new(false),
            created: Instant::now(),
            last_heard_ms: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            failure_notify: Notify::new(),
            identity_doubt: Notify::new(),
            roots: watch::Sender::new(Roots::Unasked),
            unattributed: AtomicU64::new(0),
            late_answers: AtomicU64::new(0),
            large_reads: watch::Sender::new(0),
        })
    }

    /// Registers `exchange`, whose answer goes to `tell`.
    pub(in crate::backend) fn register(
        self: &Arc<Self>,
        exchange: &Exchange<'_>,
        tell: Option<Responder>,
    ) -> Result<PendingExchange, BackendError> {
        let caller = exchange.caller.as_ref();
        if let Some(caller) = caller {
            self.settings.task_owners.note_agent(caller.client.agent.id);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new());
        let entry = PendingEntry {
            responder: tell,
            caller: caller.cloned(),
            activity: Arc::clone(&activity),
            is_listen_stream: *exchange.method == Method::Listen,
            may_create_task: !self.speaks_modern() && may_create_task(exchange),
            idle_timeout: exchange.limits.idle,
        };
        let mut pending = lock(&self.pending);
        if self.closed.is_cancelled() {
            // Nothing was sent: whoever asked may ask again.
            return Err(BackendError::SessionGone);
        }
        pending.insert(id, entry);
        drop(pending);
        let has_token = caller.is_some_and(|caller| caller.progress.is_some());
        let start_quota_key = caller.map_or(ExchangeParty::Gateway, |caller| {
            ExchangeParty::Client(caller.client.session.clone())
        });
        Ok(PendingExchange {
            id,
            activity,
            party: start_quota_key,
            has_token,
            requests: Arc::clone(self),
        })
    }

    /// Ends the link: whoever waits is told `reason`.
    pub(crate) fn close(&self, reason: impl Into<String>) {
        lock(&self.reason).get_or_insert_with(|| reason.into());
        self.withdraw_all();
        self.closed.cancel();
        lock(&self.pending).clear();
        // What was asked meanwhile.
        self.withdraw_all();
    }

    /// Ends the link unless a client waits for an answer; whether it did. Who comes later is told
    /// that nothing was sent.
    pub(crate) fn close_if_unused(&self) -> bool {
        let pending = lock(&self.pending);
        if pending.values().any(|entry| entry.caller.is_some()) {
            return false;
        }
        let reason = "idle";
        lock(&self.reason).get_or_insert_with(|| reason.to_owned());
        self.closed.cancel();
        drop(pending);
        self.close(reason);
        true
    }

    /// Ends the link because the server no longer knows its session. What is under way is left to
    /// find out for itself: the server may have begun it. What it asked, nobody can answer it.
    pub(crate) fn close_session_lost(&self) {
        self.session_lost.store(true, Ordering::Relaxed);
        self.withdraw_all();
        self.closed.cancel();
        self.withdraw_all();
    }

    /// Whether the link ended because the server no longer knows its session.
    pub(crate) fn is_session_lost(&self) -> bool {
        self.session_lost.load(Ordering::Relaxed)
    }

    /// Why the link ended.
    pub(crate) fn lost_error(&self) -> BackendError {
        if self.is_session_lost() {
            return BackendError::SessionGone;
        }
        let reason = lock(&self.reason).clone();
        BackendError::Lost {
            reason: reason.unwrap_or_else(|| "stopping".to_owned()),
        }
    }

    /// Notes that the server said something.
    pub(in crate::backend) fn note_heard(&self) {
        self.last_heard_ms
            .store(millis_since(self.created), Ordering::Relaxed);
    }

    /// How long the server has said nothing.
    pub(in crate::backend) fn silent_for(&self) -> Duration {
        let heard = Duration::from_millis(self.last_heard_ms.load(Ordering::Relaxed));
        self.created.elapsed().saturating_sub(heard)
    }

    /// Notes that a large message is being read, until the guard is dropped.
    pub(in crate::backend) fn begin_large_read(&self) -> LargeMessage<'_> {
        self.large_reads.send_modify(|count| *count += 1);
        LargeMessage(self)
    }

    /// Waits until no large message is being read, for a while at most: who ends the link would lose
    /// what has come already.
    pub(in crate::backend) async fn wait_large_reads(&self) {
        let mut reads = self.large_reads.subscribe();
        drop(timeout(READ_TIMEOUT, reads.wait_for(|count| *count == 0)).await);
    }

    /// Notes that a call failed as if the server were gone.
    pub(in crate::backend) fn note_suspicion(&self) {
        self.failure_notify.notify_one();
    }

    /// Notes that a call was answered as if another server had taken its place.
    pub(in crate::backend) fn note_identity_doubt(&self) {
        self.identity_doubt.notify_one();
    }

    /// Completes when a call was answered as if another server had taken its place.
    pub(in crate::backend) async fn identity_doubted(&self) {
        self.identity_doubt.notified().await;
    }

    /// Completes when a call failed as if the server were gone, or another were there.
    pub(in crate::backend) async fn failure_suspected(&self) {
        self.failure_notify.notified().await;
    }

    /// How many listen streams of our own the server has acknowledged.
    pub(in crate::backend) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Exchanges of clients under way.
    pub(crate) fn in_flight(&self) -> usize {
        lock(&self.pending)
            .values()
            .filter(|entry| entry.caller.is_some())
            .count()
    }

    /// A place for a notification of so many bytes that waits for its server; it is lost where there is
    /// none.
    pub(in crate::backend) fn reserve_notification(
        &self,
        bytes: usize,
    ) -> Option<OwnedSemaphorePermit> {
        self.count_if_lost(self.backlog.try_reserve(bytes))
    }

    /// The same for the cancellation of a request.
    pub(in crate::backend) fn reserve_cancellation(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.cancellations).try_acquire_owned();
        self.count_if_lost(place.ok())
    }

    fn count_if_lost(&self, place: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        if place.is_none() {
            let server = &self.settings.server;
            tracing::debug!(%server, "dropped a message: queue full");
        }
        place
    }

    /// How long the most patient of the calls under way waits for a sign of life: a server may be at
    /// work on those, and on nothing else. `None` where there are none.
    pub(in crate::backend) fn idle_timeout_max(&self) -> Option<Duration> {
        let pending = lock(&self.pending);
        let owed = pending
            .values()
            .filter(|entry| entry.caller.is_some() && !entry.is_listen_stream);
        owed.map(|entry| entry.idle_timeout).max()
    }

    /// Whether an exchange under way waits for the answer of a client.
    pub(in crate::backend) fn waits_for_person(&self) -> bool {
        let pending = lock(&self.pending);
        pending.values().any(|entry| entry.activity.is_suspended())
    }

    /// The exchanges of clients under way.
    pub(in crate::backend) fn invocations(&self) -> Vec<InvocationId> {
        let pending = lock(&self.pending);
        let callers = pending.values().filter_map(|entry| entry.caller.as_ref());
        callers.map(|caller| caller.invocation).collect()
    }

    pub(in crate::backend) fn complete(&self, response: Response) {
        let id = response.id.as_ref().and_then(Id::as_number);
        let Some(entry) = id.and_then(|id| lock(&self.pending).remove(&id)) else {
            self.late_answers.fetch_add(1, Ordering::Relaxed);
            if let Some(id) = id {
                self.recent_calls.late_answer(id);
            }
            return;
        };
        // Before the server says more: it may have a visit or a task done at once.
        self.note_side_effects(&entry, &response.outcome);
        entry.complete(Ok(response.outcome));
    }

    /// Fails the exchange `id`, whose answer came but cannot be used.
    pub(in crate::backend) fn fail(&self, id: u64, failure: BackendError) {
        if let Some(entry) = lock(&self.pending).remove(&id) {
            entry.complete(Err(failure));
        }
    }

    /// Fails the exchanges whose answers this would be, if it could be read.
    pub(in crate::backend) fn fail_unreadable(&self, stray: &Unreadable) {
        for id in stray.answered.iter().filter_map(Id::as_number) {
            self.fail(id, BackendError::invalid_response(&stray.malformed));
        }
    }

    pub(in crate::backend) fn speaks_modern(&self) -> bool {
        let spoken = self.revision.get();
        spoken.is_some_and(|revision| revision.era() == Era::Modern)
    }

    /// Notes what is to be known of the answer to the exchange `id`, which came by a way of its own.
    pub(in crate::backend) fn note_outcome(&self, id: u64, outcome: &Outcome) {
        // Other exchanges wait for what is done below.
        let is_usual = |result| self.speaks_modern() || !tasks::may_reference_task(result);
        if outcome.as_ref().is_ok_and(is_usual) {
            return;
        }
        if let Some(entry) = lock(&self.pending).get(&id) {
            self.note_side_effects(entry, outcome);
        }
    }

    /// Notes the task that a call has begun, or the visits without which it is refused.
    fn note_side_effects(&self, entry: &PendingEntry, outcome: &Outcome) {
        let Some(caller) = &entry.caller else { return };
        match outcome {
            Ok(result) if entry.may_create_task => {
                self.settings
                    .task_owners
                    .note(result, caller.client.agent.id);
            }
            Ok(_) => {}
            Err(refusal) => self
                .url_elicitations
                .note_required(refusal, &caller.session()),
        }
    }
}

/// A large message that is being read.
#[derive(Debug)]
pub(in crate::backend) struct LargeMessage<'m>(&'m PendingRequests);

impl Drop for LargeMessage<'_> {
    fn drop(&mut self) {
        self.0.large_reads.send_modify(|count| *count -= 1);
    }
}

/// An exchange under way; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct PendingExchange {
    pub(crate) id: u64,
    pub(crate) activity: Arc<Activity>,
    party: ExchangeParty,
    has_token: bool,
    requests: Arc<PendingRequests>,
}

/// Who is behind an exchange.
#[derive(Debug)]
enum ExchangeParty {
    /// A client, and its session if it has one.
    Client(Option<Arc<Session>>),
    /// Nobody but us.
    Gateway,
}

impl PendingExchange {
    /// Notes that the answer came by a way of its own.
    pub(in crate::backend) fn mark_answered(&self) {
        lock(&self.requests.pending).remove(&self.id);
    }

    /// Notes that the server has not heard of it.
    pub(in crate::backend) fn mark_not_sent(&mut self) {
        self.party = ExchangeParty::Gateway;
    }

    /// `params` with our token in place of the client's; without any where its progress is wanted by
    /// nobody, since another token may be the id of an exchange of somebody else.
    pub(in crate::backend) fn with_token<'p>(&self, params: &'p Raw) -> Cow<'p, Raw> {
        meta::with_progress_token(params, self.has_token.then_some(self.id))
    }
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        let answered = lock(&self.requests.pending).remove(&self.id).is_none();
        if self.activity.send_state.withdraw() {
            // Its server never hears of it.
            return;
        }
        if let ExchangeParty::Client(session) = &self.party {
            if !answered {
                self.requests.withdraw_of_exchange(&self.activity);
            }
            self.requests
                .recent_calls
                .call_ended(self.id, session.as_ref(), answered);
        }
    }
}

/// Whether a task may come of `exchange`: others answer what they like.
fn may_create_task(exchange: &Exchange<'_>) -> bool {
    let params = exchange.params.as_deref();
    *exchange.method == Method::ToolsCall && params.is_some_and(tasks::requests_task)
}
