//! The downstream edge on stdin and stdout, for clients that launch a command. Both eras.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::Agent,
    backend::{LineExcess, Lines, OutputLine, push_line},
    http::{overloaded_error, split_batch},
    limiter::ByteBudgetExceeded,
    mcp::{
        Id, Message, Method, Outcome, Raw, Request, RpcError,
        envelope::{self, MessageOutline},
        error, json as scan,
        method::notice,
    },
    names::Scope,
    proxy::Proxy,
    session::{
        Call, Client, Event, EventReader, Interest, Session, legacy, modern,
        replay::{ReplayStream, StreamItem},
        running_calls::{CallRejected, IdSharing, RunningGuard},
        state::SessionKind,
    },
    task::{InFlight, InFlightGuard, Tasks},
};

/// Serves one client until its input ends or `stop` is cancelled.
#[derive(Debug)]
pub struct StdioEdge {
    proxy: Arc<Proxy>,
    session: Arc<Session>,
    stream: Arc<ReplayStream>,
    agent: Arc<Agent>,
    /// Requests under way but for those that listen.
    calls: InFlight,
    /// Cancelled when the input has ended: nothing is left to be listened to.
    input_closed: CancellationToken,
    tasks: Tasks,
}

impl StdioEdge {
    /// An edge for one client that sees `scope`; a server without an owner may be that of the workspace.
    pub fn new(proxy: Arc<Proxy>, agent: Arc<Agent>, scope: Scope, tasks: &Tasks) -> Arc<Self> {
        let resolved = proxy.resolve_route(&agent, scope.clone());
        let scope = resolved.unwrap_or(scope);
        let session = Arc::new(Session::new(SessionKind::Stdio, Arc::clone(&agent), scope));
        proxy.sessions().register_external(&session);
        let stream = session.open_standalone_stream();
        Arc::new(Self {
            proxy,
            session,
            stream,
            agent,
            calls: InFlight::default(),
            input_closed: CancellationToken::new(),
            tasks: tasks.clone(),
        })
    }

    /// Reads requests and writes answers. Ends when the input does, once every answer is written or
    /// the drain timeout is over, and when the output is closed. Whether nothing was cut off by that.
    pub async fn serve<R, W>(self: Arc<Self>, input: R, output: W, stop: CancellationToken) -> bool
    where
        R: AsyncRead + Send + Unpin,
        W: AsyncWrite + Send + Unpin,
    {
        let write = self.write(output);
        tokio::pin!(write);
        let read = async {
            tokio::select! {
                () = self.read(input) => self.drain(&stop).await,
                () = stop.cancelled() => {}
                () = self.session.ended.cancelled() => {}
            }
            // What still runs is cancelled, and answered.
            self.end()
        };
        tokio::select! {
            // The writer takes its place in the stream before anything is pushed.
            biased;
            () = &mut write => self.end(),
            is_whole = read => {
                let is_written = timeout(FLUSH_TIMEOUT, write).await.is_ok();
                if !is_written {
                    tracing::warn!("the client does not read its input; responses were dropped");
                }
                is_whole && is_written
            }
        }
    }

    /// Whether a call is under way, or its answer on the way to the stream: those are no longer in flight.
    fn has_calls(&self) -> bool {
        self.calls.count() > 0
    }

    /// Ends the session; whether no call was under way. Streams that are listened to end like this.
    fn end(&self) -> bool {
        let is_idle = !self.has_calls();
        self.proxy.sessions().close(&self.session.id);
        is_idle
    }

    /// Lets running calls finish, but for those that wait for the client.
    async fn drain(&self, stop: &CancellationToken) {
        self.input_closed.cancel();
        self.session.disconnect_client();
        let idle = async {
            while self.session.in_flight() > 0 || self.has_calls() {
                tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        let drain_timeout = self.proxy.settings().drain_timeout;
        tokio::select! {
            drained = timeout(drain_timeout, idle) => if drained.is_err() {
                tracing::warn!("calls did not finish within {drain_timeout:?}");
            },
            () = stop.cancelled() => {}
        }
    }

    async fn read<R: AsyncRead + Unpin>(self: &Arc<Self>, input: R) {
        let mut limit = self.proxy.settings().limits.body;
        let room = self.proxy.limiter().bytes.reserve_request(self.agent.id);
        let mut lines = Lines::new(input, limit, room);
        while let Ok(Some(line)) = lines.next().await {
            let line_limit = limit;
            limit = self.proxy.settings().limits.body;
            lines.set_bytes_max(limit);
            self.handle_line(&line, line_limit);
        }
        // Whoever pipes messages in may end the last with the input alone.
        if let Some(line) = lines.take_remainder() {
            self.handle_line(&line, limit);
        }
    }

    async fn write<W: AsyncWrite + Unpin>(&self, mut output: W) {
        let mut place = self.stream.attach_at_end();
        let mut out = BytesMut::new();
        while let Some(item) = self.stream.next(&mut place).await {
            let StreamItem::Message(message) = item else {
                continue;
            };
            push_line(&message, &mut out);
            let written = async {
                output.write_all(&out).await?;
                output.flush().await
            };
            if written.await.is_err() {
                return self.stream.finish();
            }
            out.clear();
        }
    }

    fn handle_line(self: &Arc<Self>, line: &OutputLine, limit: usize) {
        match line {
            OutputLine::Complete(line) => self.handle_text(line),
            OutputLine::Skipped(outline, LineExcess::Length) => {
                let message = format!("the message exceeds limits.body ({limit} bytes)");
                let error = RpcError::new(error::INVALID_REQUEST, message);
                self.write_error(outline.request_id(), &error);
            }
            OutputLine::Skipped(outline, LineExcess::Memory) => {
                self.write_error(outline.request_id(), &overloaded_error(ByteBudgetExceeded));
            }
            // It is refused at its end: only then it is known what it asks. One that never ends is the
            // user's own client's.
            OutputLine::Unterminated | OutputLine::TooLong { .. } => {}
        }
    }

    fn handle_text(self: &Arc<Self>, line: &bytes::Bytes) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let limit = self.proxy.settings().limits.depth;
        if scan::is_nested_deeper(line, limit) {
            let message = format!("the message is nested deeper than limits.depth ({limit})");
            let error = RpcError::new(error::INVALID_REQUEST, message);
            return self.write_error(MessageOutline::of(line).request_id(), &error);
        }
        match Message::parse(line) {
            Ok(message) => self.handle_message(message),
            Err(envelope::Malformed::Batch) => self.handle_batch(line),
            // What is no JSON may still have an id, and a client that waits.
            Err(malformed @ envelope::Malformed::Json { .. }) => {
                self.write_error(MessageOutline::of(line).request_id(), &malformed.to_error());
            }
            Err(malformed) => self.write_error(malformed.id(), &malformed.to_error()),
        }
    }

    fn handle_batch(self: &Arc<Self>, line: &bytes::Bytes) {
        match split_batch(line, &self.session) {
            Ok(parts) => parts.into_iter().for_each(|part| match part {
                Ok(message) => self.handle_message(message),
                Err(refusal) => self.stream.push_required(StreamItem::Message(refusal)),
            }),
            Err(error) => self.write_error(None, &error),
        }
    }

    fn handle_message(self: &Arc<Self>, message: Message) {
        match message {
            Message::Request(request) => self.handle_request(request),
            Message::Notification(notification) => {
                self.proxy.handle_notification(&self.session, &notification);
            }
            Message::Response(response) => {
                self.session.handle_response(response);
            }
        }
    }

    fn handle_request(self: &Arc<Self>, request: Request) {
        let id = request.id.clone();
        if let Err(full) = self.proxy.limiter().bytes.admit(self.agent.id) {
            return self.write_error(Some(&id), &overloaded_error(full));
        }
        match self.start_session_call(request) {
            Ok(StartedRequest::Done(outcome)) => self.write_answer(Some(&id), &outcome),
            Ok(StartedRequest::Running(running)) => {
                let edge = Arc::clone(self);
                self.tasks.spawn(
                    "call on stdio",
                    async move { edge.pump_call(id, running).await },
                );
            }
            Err(error) => self.write_error(Some(&id), &error),
        }
    }

    fn start_session_call(&self, request: Request) -> Result<StartedRequest, RpcError> {
        if modern::is_modern(&request) {
            return self.start_modern_call(request);
        }
        if request.method == Method::Initialize {
            let opening = legacy::parse_initialize(request.params.as_deref())?;
            let result = self.proxy.initialize(&self.session, opening);
            return Ok(StartedRequest::Done(Ok(result)));
        }
        let Some(client) = Client::of(&self.session) else {
            if request.method == Method::Ping {
                return Ok(StartedRequest::Done(Ok(Raw::from_static("{}"))));
            }
            let message = "send `initialize` first, or a 2026-07-28 request with `_meta`";
            return Err(RpcError::new(error::INVALID_REQUEST, message));
        };
        let wants = Interest::of(&request, self.session.logs());
        self.start_call(request, client, wants)
    }

    fn start_modern_call(&self, mut request: Request) -> Result<StartedRequest, RpcError> {
        if request.method == Method::Listen {
            request = request.to_owned_memory();
        }
        let envelope = modern::check_request(&request, None).map_err(|refusal| refusal.error)?;
        let (client, wants) = envelope.into_client(Arc::clone(&self.agent));
        self.start_call(request, client, wants)
    }

    fn start_call(
        &self,
        request: Request,
        client: Client,
        wants: Interest,
    ) -> Result<StartedRequest, RpcError> {
        let scope = self.session.scope.clone();
        let (mut call, events) = Call::new(request, Arc::new(client), scope, wants);
        call.kind = self.session.kind;
        call.session_ended = Some(self.session.ended.clone());
        let listens = call.method == Method::Listen;
        if listens {
            call.cancel = self.input_closed.child_token().into();
        }
        let running = self
            .session
            .begin(&call.id, IdSharing::Refused, call.cancel.with_params())
            .map_err(CallRejected::to_error)?;
        let proxy = Arc::clone(&self.proxy);
        let answer = Box::pin(async move {
            let outcome = proxy.answer(call).await;
            (outcome, running)
        });
        Ok(StartedRequest::Running(RunningCall {
            answer,
            events,
            in_flight_guard: (!listens).then(|| self.calls.enter()),
        }))
    }

    async fn pump_call(&self, id: Id, running: RunningCall) {
        let RunningCall {
            answer,
            mut events,
            in_flight_guard: counted,
        } = running;
        let (outcome, mut running) = events
            .drain_until(answer, |event| self.write_event(event))
            .await;
        if !running.mark_answered() {
            return;
        }
        let message = envelope::encode_response(Some(&id), &outcome);
        let message = self
            .proxy
            .limiter()
            .bytes
            .count_unread(self.agent.id, message);
        if self.session.send(message, &self.stream).await.is_err() {
            tracing::warn!("the client does not read its input");
        }
        if counted.is_none() && outcome.is_ok() {
            self.send_listen_end(&id);
        }
    }

    /// Says that we end a listen stream, since no stream closes here: some clients go by the result,
    /// others by this (spec 2026-07-28, subscriptions).
    fn send_listen_end(&self, id: &Id) {
        let params = Raw::parse(format!(r#"{{"requestId":{}}}"#, id.raw().as_str()));
        let params = params.expect("an id is valid JSON");
        let message = envelope::encode_notification(notice::CANCELLED, Some(&params));
        self.stream.push_required(StreamItem::Message(message));
    }

    fn write_event(&self, event: Event) {
        if let Some(encoded) = self.session.encode(event) {
            encoded.push_to(&self.stream);
        }
    }

    fn write_answer(&self, id: Option<&Id>, outcome: &Outcome) {
        self.stream
            .push_required(StreamItem::Message(envelope::encode_response(id, outcome)));
    }

    fn write_error(&self, id: Option<&Id>, error: &RpcError) {
        self.write_answer(id, &Err(error.to_raw()));
    }
}

/// A request that was taken.
enum StartedRequest {
    Done(Outcome),
    Running(RunningCall),
}

struct RunningCall {
    answer: std::pin::Pin<Box<dyn Future<Output = (Outcome, RunningGuard)> + Send>>,
    events: EventReader,
    /// Counts it until it is answered; `None` for a listen stream.
    in_flight_guard: Option<InFlightGuard>,
}

/// Pause between looks at the calls that are still running.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a client may take to read the last answers.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
