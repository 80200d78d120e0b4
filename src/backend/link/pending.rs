//! The book of one link: what is under way, and who is behind it.
//!
//! Fed by whatever reads from the server. What a server says goes to the call on whose stream it came;
//! else, when all calls under way are of one client, to the latest of them; else, when none is under
//! way, to the session that owns the link; else nowhere.
//! `recipient` finds out whose it is, `told` passes it on, `levels` says which log messages, `server_requests` is what it asks,
//! `recording` what is recorded of that, `signals` what it says to the gateway itself, `url_elicitations` whose the URLs are that it sent clients to.

mod levels;
mod recipient;
mod recording;
mod server_requests;
mod signals;
mod task_owners;
mod told;
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

pub(in crate::backend) use recording::Recording;
pub(in crate::backend) use server_requests::{QuestionProgress, WaitingRequest, asks_for_roots};
pub(crate) use signals::NotedSignals;
pub(crate) use task_owners::LinkTaskOwners;

use super::{
    Caller, Exchange, activity::Activity, backlog::Backlog, peer::GatewayPeer,
    recent_calls::Aftermath, session_filter::SessionFilters,
};
use crate::{
    backend::BackendError,
    clock::millis_since,
    config::{MemorySize, Root},
    limiter::ByteBudget,
    lock::lock,
    mcp::{Era, Id, Method, Outcome, Raw, Response, Revision, envelope::Malformed, meta, tasks},
    names::InvocationId,
    session::Session,
    task::Tasks,
};
use levels::Levels;
use server_requests::ForwardedRequest;
use signals::Signals;
use url_elicitations::Visits;

/// Answers to requests of a server that may wait until it takes them.
pub(in crate::backend) const ANSWERS_MAX: usize = 4096;

/// Cancellations that may wait until a server takes them; it works on the rest in vain.
pub(in crate::backend) const CANCELLATIONS_MAX: usize = 1024;

/// How long the end of a link may wait for what is being read.
const READ_PATIENCE: Duration = Duration::from_secs(5);

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
    pub(crate) views: SessionFilters,
    /// What answers may take of the memory of the process.
    pub(crate) bytes: ByteBudget,
    /// The tasks that were begun on it, and on those before it.
    pub(crate) begun: Arc<LinkTaskOwners>,
}

#[cfg(test)]
impl LinkSettings {
    /// Those of a server `x`, for tests that need any.
    pub(crate) fn example() -> Self {
        Self {
            server: crate::names::ServerName::parse("x").unwrap(),
            peer: GatewayPeer::example(),
            request_bytes_max: 1024,
            response_bytes_max: 1024,
            memory_max: None,
            ask_timeout: Duration::from_secs(1),
            roots: None,
            is_for_lists: false,
            views: SessionFilters::clear(),
            bytes: ByteBudget::new(usize::MAX),
            begun: Arc::default(),
        }
    }
}

/// The book of one link: what is under way, and who is behind it.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    pub(crate) settings: LinkSettings,
    pub(crate) tasks: Tasks,
    /// The revision that the handshake settled on.
    pub(crate) spoken: OnceLock<Revision>,
    /// Cancelled when the link is gone.
    pub(crate) closed: CancellationToken,
    /// The session whose own this link is, where it serves one alone.
    home: Option<Arc<Session>>,
    /// What the supervisor is to know: lists changed, resources updated.
    pub(in crate::backend) signals: Signals,
    pub(in crate::backend) levels: Levels,
    next: AtomicU64,
    pending: Mutex<foldhash::HashMap<u64, PendingEntry>>,
    asked: Mutex<HashMap<Id, ForwardedRequest>>,
    /// Places of our own answers to requests of the server.
    pub(in crate::backend) answers: Arc<Semaphore>,
    /// Places of cancellations that their server does not take at once.
    pub(in crate::backend) cancellations: Arc<Semaphore>,
    /// Notifications of clients that their server does not take at once.
    pub(in crate::backend) backlog: Backlog,
    visits: Visits,
    reason: Mutex<Option<String>>,
    aftermath: Aftermath,
    forgotten: AtomicBool,
    born: Instant,
    /// Milliseconds from `born` to the last sign of life.
    heard_ms: AtomicU64,
    /// Listen streams of our own that the server acknowledged.
    acknowledged: AtomicU64,
    /// A call failed in a way that the server may be gone.
    suspicion: Notify,
    /// A call was answered in a way that another server may be there.
    doubt: Notify,
    /// How far it is with the roots of its client.
    pub(in crate::backend) roots: watch::Sender<Roots>,
    unattributed: AtomicU64,
    late: AtomicU64,
    /// Large messages that are being read.
    reads: watch::Sender<usize>,
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
pub(in crate::backend) type Tell = oneshot::Sender<Result<Outcome, BackendError>>;

#[derive(Debug)]
struct PendingEntry {
    /// Who waits for the answer; `None` where that comes to the exchange by a way of its own.
    tell: Option<Tell>,
    caller: Option<Caller>,
    activity: Arc<Activity>,
    /// Whether it is a listen stream, which is not answered before it ends.
    listens: bool,
    /// Whether a task of the legacy era may come of it.
    may_begin_task: bool,
    /// How long it waits for a sign of life.
    patience: Duration,
}

impl PendingEntry {
    fn end(self, answer: Result<Outcome, BackendError>) {
        if let Some(tell) = self.tell {
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
            aftermath: Aftermath::default(),
            spoken: OnceLock::new(),
            closed: tasks.stop_token().child_token(),
            tasks,
            home,
            signals: Signals::default(),
            levels: Levels::default(),
            next: AtomicU64::new(1),
            pending: Mutex::default(),
            asked: Mutex::default(),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
            cancellations: Arc::new(Semaphore::new(CANCELLATIONS_MAX)),
            backlog: Backlog::default(),
            visits: Visits::default(),
            reason: Mutex::default(),
            forgotten: AtomicBool::new(false),
            born: Instant::now(),
            heard_ms: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            suspicion: Notify::new(),
            doubt: Notify::new(),
            roots: watch::Sender::new(Roots::Unasked),
            unattributed: AtomicU64::new(0),
            late: AtomicU64::new(0),
            reads: watch::Sender::new(0),
        })
    }

    /// Registers `exchange`, whose answer goes to `tell`.
    pub(in crate::backend) fn begin(
        self: &Arc<Self>,
        exchange: &Exchange<'_>,
        tell: Option<Tell>,
    ) -> Result<PendingExchange, BackendError> {
        let caller = exchange.caller.as_ref();
        if let Some(caller) = caller {
            self.settings.begun.serves(caller.client.agent.id);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new());
        let entry = PendingEntry {
            tell,
            caller: caller.cloned(),
            activity: Arc::clone(&activity),
            listens: *exchange.method == Method::Listen,
            may_begin_task: !self.speaks_modern() && asks_for_task(exchange),
            patience: exchange.limits.idle,
        };
        let mut pending = lock(&self.pending);
        if self.closed.is_cancelled() {
            // Nothing was sent: whoever asked may ask again.
            return Err(BackendError::SessionGone);
        }
        pending.insert(id, entry);
        drop(pending);
        let has_token = caller.is_some_and(|caller| caller.progress.is_some());
        let party = caller.map_or(ExchangeParty::Ourselves, |caller| {
            ExchangeParty::Client(caller.client.session.clone())
        });
        Ok(PendingExchange {
            id,
            activity,
            party,
            has_token,
            mux: Arc::clone(self),
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
        let reason = "it was idle";
        lock(&self.reason).get_or_insert_with(|| reason.to_owned());
        self.closed.cancel();
        drop(pending);
        self.close(reason);
        true
    }

    /// Ends the link because the server no longer knows its session. What is under way is left to
    /// find out for itself: the server may have begun it. What it asked, nobody can answer it.
    pub(crate) fn forget_session(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
        self.withdraw_all();
        self.closed.cancel();
        self.withdraw_all();
    }

    /// Whether the link ended because the server no longer knows its session.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Why the link ended.
    pub(crate) fn lost(&self) -> BackendError {
        if self.is_forgotten() {
            return BackendError::SessionGone;
        }
        let reason = lock(&self.reason).clone();
        BackendError::Lost {
            reason: reason.unwrap_or_else(|| "it is being stopped".to_owned()),
        }
    }

    /// Notes that the server said something.
    pub(in crate::backend) fn hear(&self) {
        self.heard_ms
            .store(millis_since(self.born), Ordering::Relaxed);
    }

    /// How long the server has said nothing.
    pub(in crate::backend) fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(heard)
    }

    /// Notes that a large message is being read, until the guard is dropped.
    pub(in crate::backend) fn reading(&self) -> LargeMessage<'_> {
        self.reads.send_modify(|count| *count += 1);
        LargeMessage(self)
    }

    /// Waits until no large message is being read, for a while at most: who ends the link would lose
    /// what has come already.
    pub(in crate::backend) async fn read_out(&self) {
        let mut reads = self.reads.subscribe();
        drop(timeout(READ_PATIENCE, reads.wait_for(|count| *count == 0)).await);
    }

    /// Notes that a call failed as if the server were gone.
    pub(in crate::backend) fn suspect(&self) {
        self.suspicion.notify_one();
    }

    /// Notes that a call was answered as if another server had taken its place.
    pub(in crate::backend) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Completes when a call was answered as if another server had taken its place.
    pub(in crate::backend) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Completes when a call failed as if the server were gone, or another were there.
    pub(in crate::backend) async fn suspected(&self) {
        self.suspicion.notified().await;
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
    pub(in crate::backend) fn place_of_notification(
        &self,
        bytes: usize,
    ) -> Option<OwnedSemaphorePermit> {
        self.or_lost(self.backlog.place(bytes))
    }

    /// The same for the cancellation of a request.
    pub(in crate::backend) fn place_of_cancellation(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.cancellations).try_acquire_owned();
        self.or_lost(place.ok())
    }

    fn or_lost(&self, place: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        if place.is_none() {
            let server = &self.settings.server;
            tracing::debug!(%server, "a message is lost: too many others wait");
        }
        place
    }

    /// How long the most patient of the calls under way waits for a sign of life: a server may be at
    /// work on those, and on nothing else. `None` where there are none.
    pub(in crate::backend) fn patience(&self) -> Option<Duration> {
        let pending = lock(&self.pending);
        let owed = pending
            .values()
            .filter(|entry| entry.caller.is_some() && !entry.listens);
        owed.map(|entry| entry.patience).max()
    }

    /// Whether an exchange under way waits for the answer of a client.
    pub(in crate::backend) fn waits_for_person(&self) -> bool {
        let pending = lock(&self.pending);
        pending.values().any(|entry| entry.activity.is_suspended())
    }

    /// The exchanges of clients under way.
    pub(in crate::backend) fn under_way(&self) -> Vec<InvocationId> {
        let pending = lock(&self.pending);
        let callers = pending.values().filter_map(|entry| entry.caller.as_ref());
        callers.map(|caller| caller.invocation).collect()
    }

    pub(in crate::backend) fn answered(&self, response: Response) {
        let id = response.id.as_ref().and_then(Id::as_number);
        let Some(entry) = id.and_then(|id| lock(&self.pending).remove(&id)) else {
            self.late.fetch_add(1, Ordering::Relaxed);
            if let Some(id) = id {
                self.aftermath.laid_to_rest(id);
            }
            return;
        };
        // Before the server says more: it may have a visit or a task done at once.
        self.heed(&entry, &response.outcome);
        entry.end(Ok(response.outcome));
    }

    /// Fails the exchange `id`, whose answer came but cannot be used.
    pub(in crate::backend) fn failed(&self, id: u64, failure: BackendError) {
        if let Some(entry) = lock(&self.pending).remove(&id) {
            entry.end(Err(failure));
        }
    }

    /// Fails the exchange whose answer this would be, if it said anything. What else is no message may
    /// be a line of a log, or a request that counts like we do.
    pub(in crate::backend) fn failed_by(&self, malformed: &Malformed) {
        if let Malformed::Bare { id: Some(id) } = malformed
            && let Some(id) = id.as_number()
        {
            self.failed(id, BackendError::no_answer(malformed));
        }
    }

    pub(in crate::backend) fn speaks_modern(&self) -> bool {
        let spoken = self.spoken.get();
        spoken.is_some_and(|revision| revision.era() == Era::Modern)
    }

    /// Notes what is to be known of the answer to the exchange `id`, which came by a way of its own.
    pub(in crate::backend) fn note_outcome(&self, id: u64, outcome: &Outcome) {
        // Other exchanges wait for what is done below.
        let is_usual = |result| self.speaks_modern() || !tasks::may_be_named(result);
        if outcome.as_ref().is_ok_and(is_usual) {
            return;
        }
        if let Some(entry) = lock(&self.pending).get(&id) {
            self.heed(entry, outcome);
        }
    }

    /// Notes the task that a call has begun, or the visits without which it is refused.
    fn heed(&self, entry: &PendingEntry, outcome: &Outcome) {
        let Some(caller) = &entry.caller else { return };
        match outcome {
            Ok(result) if entry.may_begin_task => {
                self.settings.begun.note(result, caller.client.agent.id);
            }
            Ok(_) => {}
            Err(refusal) => self.visits.note_required(refusal, &caller.session()),
        }
    }
}

/// A large message that is being read.
#[derive(Debug)]
pub(in crate::backend) struct LargeMessage<'m>(&'m PendingRequests);

impl Drop for LargeMessage<'_> {
    fn drop(&mut self) {
        self.0.reads.send_modify(|count| *count -= 1);
    }
}

/// An exchange under way; forgotten when dropped.
#[derive(Debug)]
pub(crate) struct PendingExchange {
    pub(crate) id: u64,
    pub(crate) activity: Arc<Activity>,
    party: ExchangeParty,
    has_token: bool,
    mux: Arc<PendingRequests>,
}

/// Who is behind an exchange.
#[derive(Debug)]
enum ExchangeParty {
    /// A client, and its session if it has one.
    Client(Option<Arc<Session>>),
    /// Nobody but us.
    Ourselves,
}

impl PendingExchange {
    /// Notes that the answer came by a way of its own.
    pub(in crate::backend) fn answered(&self) {
        lock(&self.mux.pending).remove(&self.id);
    }

    /// Notes that the server has not heard of it.
    pub(in crate::backend) fn never_sent(&mut self) {
        self.party = ExchangeParty::Ourselves;
    }

    /// `params` with our token in place of the client's; without any where its progress is wanted by
    /// nobody, since another token may be the id of an exchange of somebody else.
    pub(in crate::backend) fn with_token<'p>(&self, params: &'p Raw) -> Cow<'p, Raw> {
        meta::with_progress_token(params, self.has_token.then_some(self.id))
    }
}

impl Drop for PendingExchange {
    fn drop(&mut self) {
        let answered = lock(&self.mux.pending).remove(&self.id).is_none();
        if self.activity.leaving.withdraw() {
            // Its server never hears of it.
            return;
        }
        if let ExchangeParty::Client(session) = &self.party {
            if !answered {
                self.mux.withdraw_asked_in(&self.activity);
            }
            self.mux
                .aftermath
                .ended(self.id, session.as_ref(), answered);
        }
    }
}

/// Whether a task may come of `exchange`: others answer what they like.
fn asks_for_task(exchange: &Exchange<'_>) -> bool {
    let params = exchange.params.as_deref();
    *exchange.method == Method::ToolsCall && params.is_some_and(tasks::is_asked_for)
}
