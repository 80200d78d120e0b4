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
    http::{overloaded, split_batch},
    limiter::Full,
    mcp::{
        Id, Message, Method, Outcome, Raw, Request, RpcError,
        envelope::{self, Outline},
        error, json as scan,
        method::notice,
    },
    names::Scope,
    proxy::Proxy,
    session::{
        Call, Client, Event, EventReader, Interest, Session,
        calls::{NotBegun, RunningGuard},
        legacy, modern,
        replay::{ReplayStream, StreamItem},
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
    listening: CancellationToken,
    tasks: Tasks,
}

impl StdioEdge {
    /// An edge for one client that sees `scope`.
    pub fn new(proxy: Arc<Proxy>, agent: Arc<Agent>, scope: Scope, tasks: &Tasks) -> Arc<Self> {
        let session = Arc::new(Session::new(SessionKind::Stdio, Arc::clone(&agent), scope));
        proxy.sessions().adopt(&session);
        let stream = session.open_standing();
        Arc::new(Self {
            proxy,
            session,
            stream,
            agent,
            calls: InFlight::default(),
            listening: CancellationToken::new(),
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
                let is_written = timeout(FLUSH_PATIENCE, write).await.is_ok();
                if !is_written {
                    tracing::warn!("the client does not read its input; answers are lost");
                }
                is_whole && is_written
            }
        }
    }

    /// Whether a call is under way, or its answer on the way to the stream: those are no longer in flight.
    fn is_calling(&self) -> bool {
        self.calls.now() > 0
    }

    /// Ends the session; whether no call was under way. Streams that are listened to end like this.
    fn end(&self) -> bool {
        let is_idle = !self.is_calling();
        self.proxy.sessions().close(&self.session.id);
        is_idle
    }

    /// Lets running calls finish, but for those that wait for the client.
    async fn drain(&self, stop: &CancellationToken) {
        self.listening.cancel();
        self.session.set_mute();
        let idle = async {
            while self.session.in_flight() > 0 || self.is_calling() {
                tokio::time::sleep(DRAIN_LOOK).await;
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
        let room = self.proxy.limiter().bytes.request(self.agent.id);
        let mut lines = Lines::new(input, limit, room);
        while let Ok(Some(line)) = lines.next().await {
            let line_limit = limit;
            limit = self.proxy.settings().limits.body;
            lines.set_bytes_max(limit);
            self.take_line(&line, line_limit);
        }
        // Whoever pipes messages in may end the last with the input alone.
        if let Some(line) = lines.rest() {
            self.take_line(&line, limit);
        }
    }

    async fn write<W: AsyncWrite + Unpin>(&self, mut output: W) {
        let mut place = self.stream.take_over();
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

    fn take_line(self: &Arc<Self>, line: &OutputLine, limit: usize) {
        match line {
            OutputLine::Whole(line) => self.take_text(line),
            OutputLine::Skipped(outline, LineExcess::Length) => {
                let message = format!("a message is larger than limits.body ({limit} bytes)");
                let error = RpcError::new(error::INVALID_REQUEST, message);
                self.refuse(outline.request(), &error);
            }
            OutputLine::Skipped(outline, LineExcess::Memory) => {
                self.refuse(outline.request(), &overloaded(Full));
            }
            // It is refused at its end: only then it is known what it asks. One that never ends is the
            // user's own client's.
            OutputLine::Endless | OutputLine::TooLong { .. } => {}
        }
    }

    fn take_text(self: &Arc<Self>, line: &bytes::Bytes) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let limit = self.proxy.settings().limits.depth;
        if scan::is_deeper(line, limit) {
            let message = format!("a message is nested deeper than limits.depth ({limit})");
            let error = RpcError::new(error::INVALID_REQUEST, message);
            return self.refuse(Outline::of(line).request(), &error);
        }
        match Message::parse(line) {
            Ok(message) => self.take(message),
            Err(envelope::Malformed::Batch) => self.take_batch(line),
            // What is no JSON may still have an id, and a client that waits.
            Err(malformed @ envelope::Malformed::Json { .. }) => {
                self.refuse(Outline::of(line).request(), &malformed.to_error());
            }
            Err(malformed) => self.refuse(malformed.id(), &malformed.to_error()),
        }
    }

    fn take_batch(self: &Arc<Self>, line: &bytes::Bytes) {
        match split_batch(line, &self.session) {
            Ok(parts) => parts.into_iter().for_each(|part| match part {
                Ok(message) => self.take(message),
                Err(refusal) => self.stream.push(StreamItem::Message(refusal)),
            }),
            Err(error) => self.refuse(None, &error),
        }
    }

    fn take(self: &Arc<Self>, message: Message) {
        match message {
            Message::Request(request) => self.ask(request),
            Message::Notification(notification) => self.proxy.told(&self.session, &notification),
            Message::Response(response) => {
                self.session.take_response(response);
            }
        }
    }

    fn ask(self: &Arc<Self>, request: Request) {
        let id = request.id.clone();
        if let Err(full) = self.proxy.limiter().bytes.admit(self.agent.id) {
            return self.refuse(Some(&id), &overloaded(full));
        }
        match self.call(request) {
            Ok(Started::Done(outcome)) => self.answer(Some(&id), &outcome),
            Ok(Started::Running(running)) => {
                let edge = Arc::clone(self);
                self.tasks.spawn(
                    "call on stdio",
                    async move { edge.carry(id, running).await },
                );
            }
            Err(error) => self.refuse(Some(&id), &error),
        }
    }

    fn call(&self, request: Request) -> Result<Started, RpcError> {
        if modern::is_claimed_by(&request) {
            return self.call_modern(request);
        }
        if request.method == Method::Initialize {
            let opening = legacy::open(request.params.as_deref())?;
            let result = self.proxy.initialize(&self.session, opening);
            return Ok(Started::Done(Ok(result)));
        }
        let Some(client) = Client::of(&self.session) else {
            if request.method == Method::Ping {
                return Ok(Started::Done(Ok(Raw::from_static("{}"))));
            }
            let message = "initialize first, or send the `_meta` of a 2026-07-28 request";
            return Err(RpcError::new(error::INVALID_REQUEST, message));
        };
        let wants = Interest::of(&request, self.session.logs());
        self.start(request, client, wants)
    }

    fn call_modern(&self, mut request: Request) -> Result<Started, RpcError> {
        if request.method == Method::Listen {
            request = request.detached();
        }
        let envelope = modern::check(&request, None).map_err(|refusal| refusal.error)?;
        let (client, wants) = envelope.into_client(Arc::clone(&self.agent));
        self.start(request, client, wants)
    }

    fn start(
        &self,
        request: Request,
        client: Client,
        wants: Interest,
    ) -> Result<Started, RpcError> {
        let scope = self.session.scope.clone();
        let (mut call, events) = Call::new(request, Arc::new(client), scope, wants);
        call.kind = self.session.kind;
        call.ended = Some(self.session.ended.clone());
        let listens = call.method == Method::Listen;
        if listens {
            call.cancel = self.listening.child_token().into();
        }
        let running = self
            .session
            .begin(&call.id, call.cancel.heard())
            .map_err(NotBegun::to_error)?;
        let proxy = Arc::clone(&self.proxy);
        let answer = Box::pin(async move {
            let outcome = proxy.answer(call).await;
            (outcome, running)
        });
        Ok(Started::Running(RunningCall {
            answer,
            events,
            counted: (!listens).then(|| self.calls.enter()),
        }))
    }

    async fn carry(&self, id: Id, running: RunningCall) {
        let RunningCall {
            answer,
            mut events,
            counted,
        } = running;
        let (outcome, mut running) = events.until(answer, |event| self.put(event)).await;
        if !running.answered() {
            return;
        }
        let message = envelope::response(Some(&id), &outcome);
        let message = self.proxy.limiter().bytes.unread(self.agent.id, message);
        if self.session.send(message, &self.stream).await.is_err() {
            tracing::warn!("the client does not read its input");
        }
        if counted.is_none() && outcome.is_ok() {
            self.end_listening(&id);
        }
    }

    /// Says that we end a listen stream, since no stream closes here: some clients go by the result,
    /// others by this (spec 2026-07-28, subscriptions).
    fn end_listening(&self, id: &Id) {
        let params = Raw::parse(format!(r#"{{"requestId":{}}}"#, id.raw().as_str()));
        let params = params.expect("an id is valid JSON");
        let message = envelope::notification(notice::CANCELLED, Some(&params));
        self.stream.push(StreamItem::Message(message));
    }

    fn put(&self, event: Event) {
        if let Some(encoded) = self.session.encode(event) {
            encoded.put(&self.stream);
        }
    }

    fn answer(&self, id: Option<&Id>, outcome: &Outcome) {
        self.stream
            .push(StreamItem::Message(envelope::response(id, outcome)));
    }

    fn refuse(&self, id: Option<&Id>, error: &RpcError) {
        self.answer(id, &Err(error.to_raw()));
    }
}

/// A request that was taken.
enum Started {
    Done(Outcome),
    Running(RunningCall),
}

struct RunningCall {
    answer: std::pin::Pin<Box<dyn Future<Output = (Outcome, RunningGuard)> + Send>>,
    events: EventReader,
    /// Counts it until it is answered; `None` for a listen stream.
    counted: Option<InFlightGuard>,
}

/// Pause between looks at the calls that are still running.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// How long a client may take to read the last answers.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);
