//! HTTP+SSE of 2024-11-05: the stream is the session, messages are posted beside it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request as HttpRequest, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::{
    HttpEdge, RequestContext, RequestPeer, accepted, batch,
    body::{self, Body, EventFormat},
    correlation, exchange, media, refused, rpc_error, stopping,
    streamable::asked_in,
    unopened,
};
use crate::{
    auth::Agent,
    mcp::{
        Era, Message, Method, Outcome, Request, Revision, RpcError, envelope, envelope::Malformed,
        error,
    },
    names::PeerAddress,
    session::{
        Correlation, EventReader, Session, legacy, modern,
        replay::{ReplayStream, StreamItem},
        state::SessionKind,
    },
};

/// The query parameter that names the session.
const SESSION: &str = "session_id";

/// Opens the stream; its first event names the endpoint for messages.
pub(super) fn open(edge: &Arc<HttpEdge>, visitor: &RequestContext) -> Response<Body> {
    if edge.proxy.is_draining() {
        return stopping(None);
    }
    let RequestContext { agent, scope, .. } = visitor;
    let (agent, scope) = (Arc::clone(agent), scope.clone());
    let session = match edge.proxy.sessions().open(SessionKind::Sse, agent, scope) {
        Ok(session) => session,
        Err(why) => return unopened(why, None),
    };
    visitor.mark(&session);
    let stream = session.open_standing();
    let place = stream.take_over();
    let endpoint = format!(
        "event: endpoint\ndata: /messages/?{SESSION}={}\n\n",
        session.id
    );
    // The guard ends the session together with its stream.
    let gone = CancellationToken::new();
    let ended = gone.clone();
    let (proxy, id) = (Arc::clone(&edge.proxy), session.id.clone());
    let finished = session.ended.clone();
    edge.tasks.spawn("sse session", async move {
        tokio::select! {
            () = ended.cancelled() => {}
            () = finished.cancelled() => {}
        }
        proxy.sessions().close(&id);
    });
    let writing = EventFormat {
        keep_alive: edge.proxy.settings().keep_alive,
        ids: false,
        first: Some(Bytes::from(endpoint)),
        _guard: Some(gone.drop_guard()),
        _reader: edge.readers.enter(),
    };
    body::events(stream, place, writing)
}

/// What is known of a request from elsewhere.
#[derive(Clone, Debug)]
struct Beside {
    /// What it is called there.
    correlation: Option<Box<Correlation>>,
    address: PeerAddress,
}

/// Takes one message; its answer comes on the stream.
pub(super) async fn post(
    edge: &Arc<HttpEdge>,
    (agent, peer): (&Agent, &RequestPeer),
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let id = query
        .split('&')
        .find_map(|pair| pair.strip_prefix(SESSION)?.strip_prefix('='));
    let found = id.and_then(|id| edge.proxy.sessions().find(id, agent));
    let Some(session) = found.filter(|session| session.kind == SessionKind::Sse) else {
        return refused(StatusCode::NOT_FOUND, "no such session: open /sse first");
    };
    if let Err(refusal) = media::check_body(request.headers()) {
        return refusal;
    }
    let beside = Beside {
        correlation: correlation::of(request.headers()),
        address: peer.address,
    };
    let bytes = match body::read(request, edge, (agent.id, peer)).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    match Message::parse(&bytes) {
        Ok(message) => take(edge, &session, message, beside),
        Err(Malformed::Batch) => match batch::split(&bytes, &session) {
            Ok(parts) => take_batch(edge, &session, parts, &beside),
            Err(error) => return rpc_error(StatusCode::BAD_REQUEST, None, &error),
        },
        Err(malformed) => {
            let error = malformed.to_error();
            return rpc_error(StatusCode::BAD_REQUEST, malformed.id(), &error);
        }
    }
    accepted()
}

/// A batch of 2025-03-26, which a client on this transport may have settled on.
fn take_batch(
    edge: &Arc<HttpEdge>,
    session: &Arc<Session>,
    parts: Vec<Result<Message, Bytes>>,
    beside: &Beside,
) {
    for part in parts {
        match part {
            Ok(message) => take(edge, session, message, beside.clone()),
            Err(refusal) => session.open_standing().push(StreamItem::Message(refusal)),
        }
    }
}

fn take(edge: &Arc<HttpEdge>, session: &Arc<Session>, message: Message, beside: Beside) {
    match message {
        Message::Notification(notification) => edge.proxy.told(session, &notification),
        Message::Response(response) => {
            session.take_response(response);
        }
        Message::Request(request) => ask(edge, session, request, beside),
    }
}

fn ask(edge: &Arc<HttpEdge>, session: &Arc<Session>, request: Request, beside: Beside) {
    let stream = session.open_standing();
    let id = request.id.clone();
    let at_once = |outcome: Outcome| {
        stream.push(StreamItem::Message(envelope::response(Some(&id), &outcome)));
    };
    if modern::is_claimed_by(&request) {
        // Modern requests do not exist on this transport: offering their revision would invite
        // them again.
        let modern = Revision::MODERN.as_str();
        let is_legacy = |revision: &Revision| revision.era() == Era::Legacy;
        let legacy: Vec<_> = Revision::ALL.into_iter().filter(is_legacy).collect();
        return at_once(Err(modern::refuse_version(modern, &legacy).error.to_raw()));
    }
    if request.method == Method::Initialize {
        return at_once(initialize(edge, session, &request));
    }
    if session.opening().is_none() {
        let outcome = if request.method == Method::Ping {
            Ok(crate::mcp::Raw::from_static("{}"))
        } else {
            let message = "initialize first";
            Err(RpcError::new(error::INVALID_REQUEST, message).to_raw())
        };
        return at_once(outcome);
    }
    match asked_in(session, request) {
        Ok(mut asked) => {
            asked.call.correlation = beside.correlation;
            asked.call.address = Some(beside.address);
            let (answer, events) = exchange::start(edge, asked);
            let carry = carry(Arc::clone(session), Arc::clone(&stream), id, answer, events);
            edge.tasks.spawn("call on a stream", carry);
        }
        Err((_, error)) => at_once(Err(error.to_raw())),
    }
}

/// Answers `initialize` in `session`.
fn initialize(edge: &HttpEdge, session: &Session, request: &Request) -> Outcome {
    let opening = legacy::open(request.params.as_deref()).map_err(|error| error.to_raw())?;
    Ok(edge.proxy.initialize(session, opening))
}

/// Carries one call's events and answer to a stream that is shared with others.
async fn carry(
    session: Arc<Session>,
    stream: Arc<ReplayStream>,
    id: crate::mcp::Id,
    answer: exchange::AnswerFuture,
    mut events: EventReader,
) {
    let put = |event| exchange::put(event, Some(&session), &stream);
    let mut answered = events.until(answer, put).await;
    let Some(response) = answered.expected_response(&id) else {
        return;
    };
    if session.send(response, &stream).await.is_err() {
        tracing::warn!(
            session = session.mark,
            "a client does not read its stream; it is ended"
        );
        session.end();
    }
}
