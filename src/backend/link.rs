//! One live link to a server: requests out, answers and everything else in, each to its party.
//!
//! A [`Link`] hides whether messages travel over a pipe or over HTTP. It owns the ids towards the
//! server, so two clients may both use `1`; the progress tokens, which are those ids; and the rule
//! that what a server says goes to the call it belongs to, or nowhere.

pub(super) mod backlog;
pub(super) mod era;
pub(super) mod exchange_activity;
pub(super) mod gateway_peer;
pub(super) mod outbound;
pub(super) mod pending;
mod recent_calls;
pub(super) mod resource_updates;
pub(super) mod session_filter;

use std::{
    borrow::Cow,
    fmt::Debug,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::{
    OwnedSemaphorePermit,
    mpsc::{
        self,
        error::{SendTimeoutError, TrySendError},
    },
    oneshot,
};

use super::{BackendError, call_health::CallHealth};
use crate::{
    catalog::{Tool, UriMap},
    governance::{CallScanners, QuestionEnd},
    mcp::{
        Id, LogFilter, Message, Method, Outcome, Raw, Request, Revision, RpcError,
        envelope::{self, Unreadable},
        error, json,
        method::notice,
    },
    names::InvocationId,
    session::{Cancel, Client, Correlation, Event, EventSender, Session},
    task::{LARGE_BYTES, run_blocking_if_large},
};
use outbound::{QUEUE_MAX, QueuedMessage};
use pending::{
    ANSWERS_MAX, PendingExchange, PendingRequests, QuestionProgress, QuestionRecording, Responder,
    Roots, WaitingRequest, asks_for_roots,
};

/// How long a notification or an answer may wait until the server reads what is before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long what a client says unasked may: that it cancels a request, which waits there too and is work
/// in vain, or what nobody would say again.
const CLIENT_NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(600);

/// A live link to a server.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) requests: Arc<PendingRequests>,
    transport: LinkTransport,
}

#[derive(Debug)]
enum LinkTransport {
    Http(Arc<dyn HttpChannel>),
    /// Messages for the writer of a pipe or socket.
    Pipe(mpsc::Sender<QueuedMessage>),
}

/// What a link asks of streamable HTTP, where each request is a POST of its own.
pub(super) trait HttpChannel: Debug + Send + Sync {
    /// Sends a request and reads its answer, whichever form it takes.
    fn exchange<'a>(
        &'a self,
        bytes: Bytes,
        exchange: &'a Exchange<'_>,
        pending: PendingExchange,
    ) -> BoxFuture<'a, Result<Outcome, BackendError>>;

    /// Posts a notification or an answer. It ends soon after the link does.
    fn post<'a>(&'a self, bytes: Bytes, method: &'a str)
    -> BoxFuture<'a, Result<(), BackendError>>;

    /// Posts in a task of its own, in the place that the message got until the server has taken it;
    /// whether it arrives is only logged. Whether it is on its way.
    fn spawn_post(&self, bytes: Bytes, method: &str, place: OwnedSemaphorePermit) -> bool;

    /// Settles the revision; its headers accompany every later message.
    fn set_revision(&self, revision: Revision);

    /// Forgets revision and session, before a new handshake.
    fn reset(&self);

    /// Follows the stream for messages that belong to no call, for as long as the link lives. A
    /// server that has none answers 405, which is fine. `opened` is told of the first answer.
    fn listen(self: Arc<Self>, opened: oneshot::Sender<()>) -> BoxFuture<'static, ()>;

    /// Ends the session, when there is one.
    fn delete_session(&self) -> BoxFuture<'_, ()>;
}

/// Reads what a server said at once on the link of `requests`, in its order, as [`Message::parse_each`] does;
/// aside where it is large. Until it has been taken, [`PendingRequests::wait_large_reads`] waits.
pub(super) async fn each_message(
    requests: &PendingRequests,
    bytes: &Bytes,
    mut take: impl FnMut(&Bytes, Result<Message, Unreadable>),
) {
    if bytes.len() <= LARGE_BYTES {
        return Message::parse_each(bytes, take);
    }
    let _reading = requests.begin_large_read();
    let whole = bytes.clone();
    let read = move || {
        let mut all = Vec::new();
        Message::parse_each(&whole, |part, parsed| all.push((part.clone(), parsed)));
        all
    };
    for (part, parsed) in run_blocking_if_large(bytes.len(), read).await {
        take(&part, parsed);
    }
}

/// A request on its way to the server.
#[derive(Debug)]
pub(crate) struct Exchange<'c> {
    pub(crate) method: &'c Method,
    /// As the server shall see them, but for the progress token.
    pub(crate) params: Option<Cow<'c, Raw>>,
    /// Whether there may be a progress token in them.
    pub(crate) may_name_token: bool,
    /// The tool that is called, when one is.
    pub(crate) tool: Option<&'c Tool>,
    /// The client on whose behalf it is sent; `None` for requests of our own.
    pub(crate) caller: Option<Caller>,
    /// Values of `Mcp-Param-*` headers, for modern HTTP.
    pub(crate) header_params: Vec<(String, String)>,
    /// The trace that the caller named in a header, for HTTP (one in `_meta` is in the params), and the
    /// gateways that its request has passed.
    pub(crate) correlation: Option<&'c Correlation>,
    pub(crate) limits: Deadlines,
    pub(crate) cancel: Cow<'c, Cancel>,
}

impl Exchange<'_> {
    /// The bytes of the request.
    pub(super) fn encode(&self, pending: &PendingExchange) -> Bytes {
        let params = self.params.as_deref();
        let params = params.map(|params| {
            if self.may_name_token {
                pending.with_token(params)
            } else {
                Cow::Borrowed(params)
            }
        });
        let id = Id::number(pending.id);
        envelope::encode_request(&id, self.method.as_str(), params.as_deref())
    }

    /// What the server is told of this, which it calls `id`, once it has ended as `failure`: in the
    /// words of the client where that cancelled it in words that may pass, else in ours.
    pub(super) fn cancellation(&self, id: u64, failure: &BackendError) -> Raw {
        let said = self.cancel.params();
        let said = said.filter(|_| matches!(failure, BackendError::Cancelled { .. }));
        let scanners = self
            .caller
            .as_ref()
            .and_then(|caller| caller.scanners.as_ref());
        let said = said.cloned().and_then(|said| match scanners {
            Some(screens) => screens.scan_client_notification(said),
            None => Some(said),
        });
        said.map_or_else(
            || {
                Raw::from_value(
                    &serde_json::json!({ "requestId": id, "reason": failure.to_string() }),
                )
            },
            |said| with_request_id(&said, id),
        )
    }
}

/// Who gets what precedes the answer.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) invocation: InvocationId,
    pub(crate) client: Arc<Client>,
    pub(crate) events: EventSender,
    pub(crate) logs: LogFilter,
    /// What it hears of progress, where it wants to.
    pub(crate) progress: Option<Arc<crate::session::Progress>>,
    /// How URIs in what precedes the answer become exposed ones.
    pub(crate) uris: Option<Arc<UriMap>>,
    /// What notifications are looked at with.
    pub(crate) scanners: Option<CallScanners>,
}

impl Caller {
    /// Sends what precedes the answer; whether it went, or must not go.
    pub(crate) fn send(&self, event: Event) -> bool {
        scan_event(event, self.scanners.as_ref()).is_none_or(|event| self.events.send(event))
    }

    /// The session of its client, if it has one.
    pub(super) fn session(&self) -> Weak<Session> {
        let session = self.client.session.as_ref();
        session.map_or_else(Weak::new, Arc::downgrade)
    }
}

/// The event as its client may see it; `None` when it may not.
pub(super) fn scan_event(event: Event, scanners: Option<&CallScanners>) -> Option<Event> {
    match (event, scanners) {
        (
            Event::Notification {
                method,
                params: Some(params),
            },
            Some(screens),
        ) => {
            let params = Some(screens.scan_notification(&method, params)?);
            Some(Event::Notification { method, params })
        }
        (event, _) => Some(event),
    }
}

/// How long an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Without any sign of progress.
    pub(crate) idle: Duration,
    /// The key that says so.
    pub(crate) idle_key: &'static str,
    /// In all.
    pub(crate) total: Duration,
}

impl Deadlines {
    /// What is left of them after `elapsed`.
    pub(super) fn minus_elapsed(self, elapsed: Duration) -> Self {
        Self {
            idle: self.idle.saturating_sub(elapsed),
            idle_key: self.idle_key,
            total: self.total.saturating_sub(elapsed),
        }
    }

    /// Whether no time is left.
    pub(super) fn are_expired(self) -> bool {
        self.idle.min(self.total).is_zero()
    }
}

impl Link {
    /// The link of `requests` over a pipe or socket, and what its writer takes.
    pub(super) fn new_queued(
        requests: &Arc<PendingRequests>,
    ) -> (Arc<Self>, mpsc::Receiver<QueuedMessage>) {
        let (send, queue) = mpsc::channel(QUEUE_MAX);
        (Arc::new(Self::pipe(Arc::clone(requests), send)), queue)
    }

    pub(crate) fn pipe(
        requests: Arc<PendingRequests>,
        writer: mpsc::Sender<QueuedMessage>,
    ) -> Self {
        Self {
            requests,
            transport: LinkTransport::Pipe(writer),
        }
    }

    /// Takes what came in one event or frame; `stray` is what is logged of what is no message.
    pub(super) async fn receive(self: &Arc<Self>, bytes: &Bytes, stray: &'static str) {
        each_message(&self.requests, bytes, |_, parsed| match parsed {
            Ok(message) => self.handle_message(message, None),
            Err(unread) => {
                self.requests.fail_unreadable(&unread);
                let malformed = unread.malformed;
                tracing::debug!(server = %self.requests.settings.server, %malformed, "{stray}");
            }
        })
        .await;
    }

    pub(crate) fn http(requests: Arc<PendingRequests>, http: Arc<dyn HttpChannel>) -> Self {
        Self {
            requests,
            transport: LinkTransport::Http(http),
        }
    }

    /// The HTTP side, when there is one.
    pub(crate) fn as_http(&self) -> Option<&Arc<dyn HttpChannel>> {
        match &self.transport {
            LinkTransport::Http(http) => Some(http),
            LinkTransport::Pipe(_) => None,
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn request(&self, exchange: &Exchange<'_>) -> Result<Outcome, BackendError> {
        // It may have waited for a server that was not there.
        if exchange.cancel.is_cancelled() {
            return Err(BackendError::Cancelled { is_sent: false });
        }
        // In boxes: a future is as large as its largest branch, and is moved with it.
        let answer = match &self.transport {
            LinkTransport::Pipe(writer) => Box::pin(self.request_over_pipe(writer, exchange)).await,
            // The answer comes to the exchange itself.
            LinkTransport::Http(http) => {
                let (pending, bytes) = self.register(exchange, None)?;
                http.exchange(bytes, exchange, pending).await
            }
        };
        if answer.is_ok() {
            self.requests.note_heard();
        }
        if exchange.caller.is_none() {
            // Who sends them knows what to make of the answer; a `ping` may be answered with anything.
            return answer;
        }
        let answer = answer.and_then(validate_outcome);
        // Our own requests are the checks that a suspected failure leads to.
        self.note_suspicion(&answer);
        answer
    }

    /// Notes where it looks as if the server were gone, or, behind a URL, as if another were there.
    fn note_suspicion(&self, answer: &Result<Outcome, BackendError>) {
        if self.refuses_headers(answer) {
            self.requests.signals.lists_suspected();
        }
        let is_bad = |failure| CallHealth::of(failure, false) != CallHealth::Neutral;
        let is_remote = self.as_http().is_some();
        if is_remote && era::suggests_other_era(answer) {
            self.requests.note_identity_doubt();
            self.requests.note_suspicion();
        } else if is_remote && !self.requests.speaks_modern() && era::suggests_modern(answer) {
            // Each agent can bring about such answers: they are no reason to look whether it is there.
            self.requests.note_identity_doubt();
        } else if answer.as_ref().is_err_and(is_bad) {
            self.requests.note_suspicion();
        }
    }

    /// Whether the server wants other headers than it was sent. Which ones is in its list of tools, which
    /// we may have from before a change.
    pub(super) fn refuses_headers(&self, answer: &Result<Outcome, BackendError>) -> bool {
        let refusal = answer
            .as_ref()
            .ok()
            .and_then(|outcome| outcome.as_ref().err());
        let is_mismatch = refusal.is_some_and(|it| error::code(it) == Some(error::HEADER_MISMATCH));
        is_mismatch && self.as_http().is_some() && self.requests.speaks_modern()
    }

    /// Registers an exchange, whose answer goes to `tell` where another reads it; with what is to be
    /// sent.
    fn register(
        &self,
        exchange: &Exchange<'_>,
        tell: Option<Responder>,
    ) -> Result<(PendingExchange, Bytes), BackendError> {
        let mut pending = self.requests.register(exchange, tell)?;
        let bytes = exchange.encode(&pending);
        let limit = self.requests.settings.request_bytes_max;
        if bytes.len() > limit {
            pending.mark_not_sent();
            let bytes = bytes.len();
            return Err(BackendError::RequestTooLarge { bytes, limit });
        }
        Ok((pending, bytes))
    }

    async fn request_over_pipe(
        &self,
        writer: &mpsc::Sender<QueuedMessage>,
        exchange: &Exchange<'_>,
    ) -> Result<Outcome, BackendError> {
        let (tell, answer) = oneshot::channel();
        let (mut pending, bytes) = self.register(exchange, Some(tell))?;
        let sent = match writer.try_send(QueuedMessage::request(bytes, &pending.activity)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(self.link_closed_error(exchange)),
            // The server does not read as fast as it is written to.
            Err(TrySendError::Full(request)) => {
                Box::pin(self.wait_for_room(writer, request, exchange)).await
            }
        };
        if let Err(failure) = sent {
            pending.mark_not_sent();
            return Err(failure);
        }
        let closed = &self.requests.closed;
        let failure = tokio::select! {
            biased;
            answer = answer => return answer.unwrap_or_else(|_| Err(self.requests.lost_error())),
            () = closed.cancelled() => return Err(self.requests.lost_error()),
            () = exchange.cancel.cancelled() => BackendError::Cancelled { is_sent: true },
            failure = pending.activity.deadline_exceeded(exchange.limits) => failure,
        };
        if pending.activity.send_state.withdraw() {
            pending.mark_not_sent();
            return Err(failure.into_not_delivered());
        }
        // Spec: `initialize` is never cancelled.
        if *exchange.method != Method::Initialize {
            self.cancel(writer, &exchange.cancellation(pending.id, &failure));
        }
        Err(failure)
    }

    /// Gives a request to the writer of a pipe as soon as that has room. Where it fails, nothing was
    /// sent.
    async fn wait_for_room(
        &self,
        writer: &mpsc::Sender<QueuedMessage>,
        request: QueuedMessage,
        exchange: &Exchange<'_>,
    ) -> Result<(), BackendError> {
        let after = exchange.limits.idle;
        tokio::select! {
            biased;
            sent = writer.send(request) => sent.map_err(|_| self.link_closed_error(exchange)),
            () = self.requests.closed.cancelled() => Err(self.link_closed_error(exchange)),
            () = exchange.cancel.cancelled() => Err(BackendError::Cancelled { is_sent: false }),
            () = tokio::time::sleep(after) => Err(BackendError::WriteTimeout {
                after,
                key: Some(exchange.limits.idle_key),
            }),
        }
    }

    /// Tells the server behind a pipe that nobody wants an answer any more: as soon as it reads, where
    /// it does not read as fast as it is written to.
    fn cancel(&self, writer: &mpsc::Sender<QueuedMessage>, params: &Raw) {
        let bytes = envelope::encode_notification(notice::CANCELLED, Some(params));
        if let Err(TrySendError::Full(message)) = writer.try_send(bytes.into())
            && let Some(place) = self.requests.reserve_cancellation()
        {
            self.spawn_enqueue(writer, message, place);
        }
    }

    /// Passes on what a client says unasked: as soon as the server reads, where it does not read as fast
    /// as it is written to, and before what follows. Whether it is on its way.
    pub(crate) fn forward_notification(&self, method: &str, params: Option<&Raw>) -> bool {
        let bytes = envelope::encode_notification(method, params);
        let length = bytes.len();
        match &self.transport {
            LinkTransport::Pipe(writer) => match writer.try_send(bytes.into()) {
                Ok(()) => true,
                Err(TrySendError::Full(message)) => {
                    let place = self.requests.reserve_notification(length);
                    place.is_some_and(|place| {
                        self.spawn_enqueue(writer, message, place);
                        true
                    })
                }
                Err(TrySendError::Closed(_)) => false,
            },
            LinkTransport::Http(http) => {
                let place = self.requests.reserve_notification(length);
                place.is_some_and(|place| http.spawn_post(bytes, method, place))
            }
        }
    }

    /// Lets a message wait, in the place it got, until the writer of a pipe has room.
    fn spawn_enqueue(
        &self,
        writer: &mpsc::Sender<QueuedMessage>,
        message: QueuedMessage,
        place: OwnedSemaphorePermit,
    ) {
        let server = self.requests.settings.server.clone();
        let (requests, writer) = (Arc::clone(&self.requests), writer.clone());
        let mut taken = Box::pin(async move {
            if let Err(failure) =
                enqueue(&requests, &writer, message, CLIENT_NOTIFICATION_TIMEOUT).await
            {
                tracing::debug!(%server, %failure, "cannot deliver a message");
            }
            drop(place);
        });
        // It gets in line now, not when its task has its turn: nothing that follows overtakes it.
        if (&mut taken).now_or_never().is_none() {
            self.requests.tasks.spawn("message aside", taken);
        }
    }

    /// That the link ended before the exchange was sent: a call may be sent on another.
    fn link_closed_error(&self, exchange: &Exchange<'_>) -> BackendError {
        match exchange.caller {
            Some(_) => BackendError::SessionGone,
            None => self.requests.lost_error(),
        }
    }

    /// Sends a notification and waits until it is on its way.
    pub(crate) async fn notify(
        &self,
        method: &str,
        params: Option<&Raw>,
    ) -> Result<(), BackendError> {
        let bytes = envelope::encode_notification(method, params);
        match &self.transport {
            LinkTransport::Pipe(writer) => {
                enqueue(&self.requests, writer, bytes.into(), QUEUE_TIMEOUT).await
            }
            LinkTransport::Http(http) => http.post(bytes, method).await,
        }
    }

    /// Takes a message from the server. `origin` is the exchange on whose own stream it came.
    pub(crate) fn handle_message(self: &Arc<Self>, message: Message, origin: Option<u64>) {
        self.requests.note_heard();
        match message {
            Message::Response(response) => self.requests.complete(response),
            Message::Notification(notification) => {
                self.requests.handle_notification(notification, origin);
            }
            Message::Request(request) => self.handle_request(request, origin),
        }
    }

    /// A request of the server: answered here, or by the one client it belongs to.
    fn handle_request(self: &Arc<Self>, request: Request, origin: Option<u64>) {
        let Request { id, method, params } = request;
        let params = params.map(Raw::from);
        if let (Method::Discover | Method::Initialize, Some(own)) = (&method, id.as_number()) {
            // No server asks this. Whoever does sends back what it was sent.
            self.requests.fail(own, BackendError::Echo);
        }
        if let Some(outcome) = self.requests.answer_locally(&method) {
            return self.respond(id, outcome);
        }
        let of_roots = asks_for_roots(&method);
        if let Some(outcome) = self
            .requests
            .answer_without_client(&method, params.as_ref())
        {
            self.respond(id, outcome);
            return self.note_roots_answered(of_roots);
        }
        match self.requests.relay_to_client(&id, method, params, origin) {
            Ok(asked) => self.await_answer(id, asked, of_roots),
            Err(refusal) => {
                self.respond(id, Err(refusal.to_raw()));
                self.note_roots_answered(of_roots);
            }
        }
    }

    fn note_roots_answered(&self, are_answered: bool) {
        if are_answered {
            self.requests.roots.send_replace(Roots::Answered);
        }
    }

    /// Waits for the client's answer in a task of its own.
    fn await_answer(
        self: &Arc<Self>,
        id: Id,
        (waiting, recording): (WaitingRequest, QuestionRecording),
        of_roots: bool,
    ) {
        let link = Arc::clone(self);
        self.requests.tasks.spawn("server request", async move {
            let key = waiting.key();
            let (outcome, end) = link.client_answer(&id, waiting).await;
            recording.finish(end);
            if link.requests.closed.is_cancelled() {
                return;
            }
            if link.requests.remove_forwarded(&id, key) {
                link.send_response(id, outcome).await;
            }
            link.note_roots_answered(of_roots);
        });
    }

    /// What the server gets to hear of its question `id`, unless it withdrew that, or is gone; and what became
    /// of the question.
    async fn client_answer(&self, id: &Id, mut waiting: WaitingRequest) -> (Outcome, QuestionEnd) {
        if let Err(refusal) = waiting.deliver().await {
            return (Err(refusal.to_raw()), QuestionEnd::Refused);
        }
        let expired = tokio::time::sleep(self.requests.settings.ask_timeout);
        tokio::pin!(expired);
        let end = loop {
            tokio::select! {
                biased;
                params = QuestionProgress::next(&mut waiting.progress) => self.send_progress(&params).await,
                answer = &mut waiting.answer => {
                    let Ok(said) = answer else {
                        let is_withdrawn = waiting.withdrawn.is_cancelled();
                        break if is_withdrawn { QuestionEnd::Withdrawn } else { QuestionEnd::ClientGone };
                    };
                    let (is_result, end) = (said.is_ok(), QuestionEnd::from_answer(&said));
                    let outcome = waiting.filter_answer(said).await;
                    let is_refused = is_result && outcome.is_err();
                    return (outcome, if is_refused { QuestionEnd::Refused } else { end });
                }
                () = waiting.withdrawn.cancelled() => break QuestionEnd::Withdrawn,
                () = self.requests.closed.cancelled() => break QuestionEnd::Withdrawn,
                () = &mut expired => {
                    self.requests.withdraw_unanswered(id, waiting.key());
                    break QuestionEnd::TimedOut;
                }
            }
        };
        (Err(no_client_error()), end)
    }

    /// Tells the server how far a client is with what it was asked, before the answer follows.
    async fn send_progress(&self, params: &Raw) {
        if let Err(failure) = self.notify(notice::PROGRESS, Some(params)).await {
            tracing::debug!(server = %self.requests.settings.server, %failure, "cannot deliver a \
                progress notification");
        }
    }

    /// Answers in a task of its own. A server that asks on and on and takes no answers is given up.
    pub(super) fn respond(self: &Arc<Self>, id: Id, outcome: Outcome) {
        let Ok(place) = Arc::clone(&self.requests.answers).try_acquire_owned() else {
            let reason =
                format!("the server does not read responses to its requests: {ANSWERS_MAX} queued");
            return self.requests.close(reason);
        };
        let link = Arc::clone(self);
        self.requests.tasks.spawn("answer to server", async move {
            link.send_response(id, outcome).await;
            drop(place);
        });
    }

    async fn send_response(&self, id: Id, outcome: Outcome) {
        let bytes = envelope::encode_response(Some(&id), &outcome);
        let sent = match &self.transport {
            LinkTransport::Pipe(writer) => {
                enqueue(&self.requests, writer, bytes.into(), QUEUE_TIMEOUT).await
            }
            LinkTransport::Http(http) => http.post(bytes, "").await,
        };
        if let Err(failure) = sent {
            tracing::debug!(server = %self.requests.settings.server, %failure, "cannot deliver a \
                response");
        }
    }
}

/// Gives a message that nothing waits for to the writer of a pipe, which has room `after` at most.
async fn enqueue(
    requests: &PendingRequests,
    writer: &mpsc::Sender<QueuedMessage>,
    message: QueuedMessage,
    after: Duration,
) -> Result<(), BackendError> {
    tokio::select! {
        biased;
        sent = writer.send_timeout(message, after) => sent.map_err(|error| match error {
            SendTimeoutError::Closed(_) => requests.lost_error(),
            SendTimeoutError::Timeout(_) => BackendError::Timeout { after, key: None },
        }),
        () = requests.closed.cancelled() => Err(requests.lost_error()),
    }
}

/// An answer as a client can read it. Some wait for ever for a result that is no object, or an error
/// without a code.
fn validate_outcome(outcome: Outcome) -> Result<Outcome, BackendError> {
    let wrong = match &outcome {
        Ok(result) => (!result.is_object()).then_some("the result is not an object"),
        Err(refusal) => (!error::is_valid(refusal))
            .then_some("the error lacks an integer `code` or a string `message`"),
    };
    wrong.map_or(Ok(outcome), |wrong| {
        Err(BackendError::invalid_response(wrong))
    })
}

fn no_client_error() -> Raw {
    RpcError::new(
        error::INTERNAL,
        "the client disconnected or did not respond in time",
    )
    .to_raw()
}

/// What a client said when it cancelled a request that the server calls `id`, also where the server
/// ignores the case of names, or takes the last of two.
fn with_request_id(said: &Raw, id: u64) -> Raw {
    let json = said.as_bytes();
    let mut patch = json::Patch::new(json);
    for member in
        json::members(json, 0).filter(|member| member.matches_ignoring_case(json, "requestId"))
    {
        patch.replace(member.value, id.to_string().into_bytes());
    }
    patch.finish()
}

#[cfg(test)]
mod tests;
