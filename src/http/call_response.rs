//! One request over HTTP: as JSON when the answer comes first, as events when something precedes
//! it or the client has waited for a while.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use tokio::{
    task::unconstrained,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    HttpEdge,
    body::{self, Body, EventFormat},
    challenged, json_response,
    media_types::AnswerForm,
};
use crate::{
    auth::{AuthError, CredentialLifetime, KeyRejection, token::Scopes},
    limiter::ByteBudget,
    mcp::{Era, Id, Method, Outcome, envelope, error, sse},
    names::AgentId,
    session::{
        Call, Client, Event, EventReader, ForwardedHeaders, Session,
        outgoing::Encoded,
        replay::{ReplayStream, StreamItem},
        running_calls::RunningGuard,
    },
    task::Detached,
};

/// How soon a client may come back for the rest of a stream, milliseconds.
const RETRY_MS: u64 = 1000;

/// A call that is to be answered.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) call: Box<Call>,
    /// What precedes its answer.
    pub(super) events: EventReader,
    /// What the client takes.
    pub(super) form: AnswerForm,
    /// How long its client may read.
    pub(super) lifetime: CredentialLifetime,
    /// Marks the call as running in its session.
    pub(super) running: Option<RunningGuard>,
}

impl PendingCall {
    /// Lets governance know which scopes its token does not have.
    pub(super) fn set_missing_scopes(&mut self, missing: Scopes) {
        Arc::make_mut(&mut self.call.client).missing_scopes = Some(Arc::new(missing));
    }

    /// Lets servers have these headers of its request. Subscriptions have none: they outlast it.
    pub(super) fn set_forwarded(&mut self, forwarded: Option<Arc<ForwardedHeaders>>) {
        let is_subscription = matches!(
            self.call.method,
            Method::ResourcesSubscribe | Method::ResourcesUnsubscribe
        );
        if forwarded.is_some() && !is_subscription {
            Arc::make_mut(&mut self.call.client).forwarded = forwarded;
        }
    }
}

/// The future of an answer, which survives its connection.
pub(super) type AnswerFuture = Detached<PendingAnswer>;

/// An answer on its way to the client.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) outcome: Outcome,
    /// Whose it is, and what is to count what that has not read.
    agent: AgentId,
    bytes: ByteBudget,
    /// Dropped when the answer is out.
    pub(super) running: Option<RunningGuard>,
}

impl PendingAnswer {
    /// The answer as it goes out, after which the client may use the id again. Also to a client that
    /// cancelled the call: the stream is of this answer alone, and one that ends without it may be taken
    /// for a broken one, which the client comes back for.
    pub(super) fn response(&mut self, id: &Id) -> Bytes {
        if let Some(running) = &mut self.running {
            running.mark_answered();
        }
        self.encode(id)
    }

    /// The same on a stream of many, where a client that cancelled the call expects no answer.
    pub(super) fn expected_response(&mut self, id: &Id) -> Option<Bytes> {
        let is_expected = self
            .running
            .as_mut()
            .is_none_or(RunningGuard::mark_answered);
        is_expected.then(|| self.encode(id))
    }

    fn encode(&self, id: &Id) -> Bytes {
        let response = envelope::encode_response(Some(id), &self.outcome);
        self.bytes.count_unread(self.agent, response)
    }
}

/// Starts to answer; the events that precede the answer come through the receiver.
pub(super) fn start(edge: &HttpEdge, asked: PendingCall) -> (AnswerFuture, EventReader) {
    let PendingCall {
        call,
        events,
        running,
        ..
    } = asked;
    let gone = cancelled_by_disconnect(&call);
    let (proxy, agent) = (Arc::clone(&edge.proxy), call.client.agent.id);
    let bytes = proxy.limiter().bytes.clone();
    let future = Box::pin(async move {
        PendingAnswer {
            outcome: proxy.answer(call).await,
            agent,
            bytes,
            running,
        }
    });
    (Detached::new(future, gone, edge.tasks.clone()), events)
}

/// What is cancelled when the client of `call` closes its stream. In 2026-07-28 that is the call;
/// before, a closed stream must not be taken for a cancellation.
fn cancelled_by_disconnect(call: &Call) -> Option<CancellationToken> {
    (call.client.era() == Era::Modern).then(|| call.cancel.token().clone())
}

/// Answers over streamable HTTP.
pub(super) async fn respond(edge: &Arc<HttpEdge>, asked: PendingCall) -> Response<Body> {
    let id = asked.call.id.clone();
    let gone = cancelled_by_disconnect(&asked.call);
    let (client, lifetime) = (Arc::clone(&asked.call.client), asked.lifetime.clone());
    let prefers_events = match asked.form {
        AnswerForm::JsonOnly => return Box::pin(respond_in_json(edge, asked)).await,
        AnswerForm::EventsFirst => true,
        AnswerForm::Any => false,
    };
    let silent_until = Instant::now() + edge.proxy.settings().keep_alive;
    let (mut answer, mut events) = start(edge, asked);
    // In 2026-07-28 an error has a status, which can be said as long as nothing has begun.
    let begins_at_once = prefers_events && client.era() == Era::Legacy;
    let (first, answered) = tokio::select! {
        biased;
        () = std::future::ready(()), if begins_at_once => (None, None),
        event = events.next() => (Some(event), None),
        answered = &mut answer => match events.try_next() {
            // It came before the answer, if only just.
            Some(event) => (Some(event), Some(answered)),
            None if prefers_events && answered.outcome.is_ok() => (None, Some(answered)),
            None => return single_response(edge, &id, answered, &client),
        },
        // What the server sends may use up the budget of each turn.
        () = unconstrained(sleep_until(silent_until)) => (None, None),
    };
    if !edge.is_still_authorized(&client) {
        return session_gone_response();
    }
    let pump = CallStream {
        id,
        client,
        answer,
        answered,
        events,
        lifetime,
    };
    pump.into_events(edge, first, gone)
}

/// Answers a client that takes nothing but JSON. What precedes the answer goes to the other stream of its
/// session, where there is one; else progress and logs are lost, and a server that asks is told that nobody
/// answers.
async fn respond_in_json(edge: &Arc<HttpEdge>, asked: PendingCall) -> Response<Body> {
    let id = asked.call.id.clone();
    let client = Arc::clone(&asked.call.client);
    let (answer, mut events) = start(edge, asked);
    let put = |event| {
        if edge.is_still_authorized(&client) {
            deliver_beside(event, client.session.as_deref());
        }
    };
    let answered = events.drain_until(answer, put).await;
    single_response(edge, &id, answered, &client)
}

/// Sends what precedes an answer that is JSON alone to the stream of `session` for what belongs to no call.
pub(super) fn deliver_beside(event: Event, session: Option<&Session>) {
    let is_sent = session.is_some_and(|session| session.deliver(event));
    if !is_sent {
        tracing::debug!("a message that precedes an answer is lost: its client takes no events");
    }
}

/// The answer to who was known when the call came and is no longer.
fn session_gone_response() -> Response<Body> {
    let why = AuthError::Rejected(KeyRejection::Unknown);
    let challenge = HeaderValue::from_static(r#"Bearer realm="tollbridge", error="invalid_token""#);
    challenged(&why, None, challenge)
}

/// An answer that nothing precedes.
fn single_response(
    edge: &HttpEdge,
    id: &Id,
    mut answered: PendingAnswer,
    client: &Client,
) -> Response<Body> {
    if !edge.is_still_authorized(client) {
        return session_gone_response();
    }
    let era = client.era();
    let status = match &answered.outcome {
        Err(refusal) if era == Era::Modern => http_status(error::code(refusal)),
        Ok(_) | Err(_) => StatusCode::OK,
    };
    json_response(status, answered.response(id))
}

/// The HTTP status of an error in 2026-07-28.
fn http_status(code: Option<i64>) -> StatusCode {
    match code {
        Some(error::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(error::HEADER_MISMATCH | error::MISSING_CAPABILITY | error::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        Some(_) | None => StatusCode::OK,
    }
}

/// Carries events and the answer of one call into a stream.
struct CallStream {
    id: Id,
    client: Arc<Client>,
    answer: AnswerFuture,
    /// The answer, when it is there already.
    answered: Option<PendingAnswer>,
    events: EventReader,
    lifetime: CredentialLifetime,
}

impl CallStream {
    fn into_events(
        self,
        edge: &Arc<HttpEdge>,
        first: Option<Event>,
        gone: Option<CancellationToken>,
    ) -> Response<Body> {
        let session = self.client.session.clone();
        let stream = match &session {
            Some(session) => session.open_stream(),
            None => Arc::new(ReplayStream::new(0)),
        };
        let place = stream.attach_at_end();
        let priming = session.is_some() && self.client.revision.has_priming();
        let writing = EventFormat {
            keep_alive: edge.proxy.settings().keep_alive,
            ids: session.is_some(),
            first: if priming {
                Some(sse::write_priming(
                    &body::event_id(stream.id, 0),
                    Some(RETRY_MS),
                ))
            } else if first.is_none() && self.answered.is_none() {
                Some(sse::KEEP_ALIVE)
            } else {
                None
            },
            // What can be resumed is cut, and goes on with the next token. Else the call ends, with an answer.
            lifetime: match gone {
                Some(_) => CredentialLifetime::default(),
                None => self.lifetime.clone(),
            },
            _guard: gone.clone().map(CancellationToken::drop_guard),
            _reader: edge.stream_readers.enter(),
        };
        let run = self.run(Arc::clone(edge), (Arc::clone(&stream), first), gone);
        edge.tasks.spawn("stream of a call", run);
        body::events(stream, place, writing)
    }

    /// Carries them; the call is cancelled with `gone` when its client may read no longer.
    async fn run(
        self,
        edge: Arc<HttpEdge>,
        (stream, first): (Arc<ReplayStream>, Option<Event>),
        gone: Option<CancellationToken>,
    ) {
        let Self {
            id,
            client,
            answer,
            answered,
            mut events,
            lifetime,
        } = self;
        let push = |event| {
            if edge.is_still_authorized(&client) {
                push_event(event, &client, &stream);
            }
        };
        if let Some(event) = first {
            push(event);
        }
        let answer = async {
            match answered {
                Some(answered) => answered,
                None => answer.await,
            }
        };
        let mut answering = std::pin::pin!(events.drain_until(answer, push));
        let mut answered = tokio::select! {
            answered = &mut answering => answered,
            () = lifetime.ended(), if gone.is_some() => {
                gone.as_ref().inspect(|gone| gone.cancel());
                answering.await
            }
        };
        stream.push_required(StreamItem::Message(answered.response(&id)));
        stream.finish();
    }
}

fn push_event(event: Event, client: &Client, stream: &ReplayStream) {
    if let Event::Pause { retry_ms } = event {
        if client.revision.has_priming() && client.session.is_some() {
            stream.pause(retry_ms);
        }
        return;
    }
    write_event(event, client.session.as_deref(), stream);
}

/// Writes an event to a stream. A server request that finds no session is dropped, which tells the
/// server that nobody will answer.
pub(super) fn write_event(event: Event, session: Option<&Session>, stream: &ReplayStream) {
    let encoded = match (session, event) {
        (Some(session), event) => session.encode(event),
        (None, Event::Notification { method, params }) => {
            Some(Encoded::notification(&method, params.as_ref()))
        }
        (None, Event::Request(_) | Event::Pause { .. }) => None,
    };
    if let Some(encoded) = encoded {
        encoded.push_to(stream);
    }
}
