//! HTTP+SSE of 2024-11-05: the stream is the session, messages are posted beside it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request as HttpRequest, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use super::{
    HttpEdge, RequestContext, RequestPeer, accepted, bad_post, batch,
    body::{self, Body, EventFormat},
    call_response, correlation, media_types, missing_scopes, rpc_error_response,
    session_not_opened, shutting_down,
    streamable::begin_call_with_scopes,
};
use crate::{
    auth::{Identity, token::Scopes},
    mcp::{
        Era, Message, Method, Outcome, Request, Revision, RpcError, envelope, envelope::Malformed,
        error, gateway_headers::GATEWAY_HEADER,
    },
    names::{PeerAddress, Scope},
    session::{
        Correlation, EventReader, ForwardedHeaders, Session, legacy, modern,
        replay::{ReplayStream, StreamItem},
        running_calls::IdSharing,
        state::SessionKind,
    },
};

/// What proxies call the prefix that they have taken off a path.
const FORWARDED_PREFIX: &str = "x-forwarded-prefix";
/// Longest such prefix.
const PREFIX_BYTES_MAX: usize = 256;

/// The query parameter that names the session.
const SESSION_PARAM: &str = "session_id";

/// Opens the stream; its first event names the endpoint for messages.
pub(super) fn open<B>(
    edge: &Arc<HttpEdge>,
    context: &RequestContext,
    request: &HttpRequest<B>,
) -> Response<Body> {
    if edge.proxy.is_draining() {
        return shutting_down(None);
    }
    let RequestContext { agent, scope, .. } = context;
    let (agent, scope) = (Arc::clone(agent), scope.clone());
    let session = match edge.proxy.sessions().open(SessionKind::Sse, agent, scope) {
        Ok(session) => session,
        Err(why) => return session_not_opened(why, None),
    };
    let stream = session.open_standalone_stream();
    let place = stream.attach_at_end();
    let endpoint = format!(
        "event: endpoint\ndata: {}messages/?{SESSION_PARAM}={}\n\n",
        endpoint_base(request),
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
        lifetime: context.lifetime.clone(),
        _guard: Some(gone.drop_guard()),
        _reader: edge.stream_readers.enter(),
    };
    body::events(stream, place, writing)
}

/// Where `messages/` is for whoever asked for the stream. A proxy may have taken a prefix off the path: it
/// says which in a header, or the client finds out, since the reference is relative to the URL it asked for.
fn endpoint_base<B>(request: &HttpRequest<B>) -> String {
    let prefix = request.headers().get(FORWARDED_PREFIX);
    let prefix = prefix.and_then(|prefix| prefix.to_str().ok());
    if let Some(prefix) = prefix.filter(|prefix| is_path(prefix)) {
        return format!("{}/", prefix.trim_end_matches('/'));
    }
    let directories = request.uri().path().matches('/').count();
    "../".repeat(directories.saturating_sub(1))
}

/// Whether `prefix` is a path, and nothing that leads to another host.
fn is_path(prefix: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%+".contains(c);
    prefix.len() <= PREFIX_BYTES_MAX
        && prefix.starts_with('/')
        && !prefix.contains("//")
        && prefix.chars().all(is_plain)
}

/// What is known of a request from elsewhere.
#[derive(Clone, Debug)]
struct RequestOrigin {
    /// What it is called there.
    correlation: Option<Box<Correlation>>,
    address: PeerAddress,
    forwarded: Option<Arc<ForwardedHeaders>>,
    /// What its token is good for.
    scopes: Option<Arc<Scopes>>,
}

/// The id of the session that a message is for.
fn session_id<B>(request: &HttpRequest<B>) -> Option<&str> {
    let mut pairs = request.uri().query()?.split('&');
    pairs.find_map(|pair| pair.strip_prefix(SESSION_PARAM)?.strip_prefix('='))
}

/// The path of the route on which the session of a message was opened.
pub(super) fn route_of_session<B>(edge: &HttpEdge, request: &HttpRequest<B>) -> Option<String> {
    let session = edge.proxy.sessions().get(session_id(request)?)?;
    Some(match &session.scope {
        Scope::All => "/sse".to_owned(),
        Scope::Profile(profile) => format!("/sse/profiles/{profile}"),
        Scope::Server(server) => format!("/sse/servers/{server}"),
        Scope::View { id, .. } => format!("/sse/views/{id}"),
    })
}

/// Takes one message; its answer comes on the stream.
pub(super) async fn post(
    edge: &Arc<HttpEdge>,
    (identity, peer): (&Identity, &RequestPeer),
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    let agent = &identity.agent;
    let found = session_id(request).and_then(|id| edge.proxy.sessions().find(id, agent));
    let Some(session) = found.filter(|session| session.kind == SessionKind::Sse) else {
        return bad_post(StatusCode::NOT_FOUND, "no such session: open /sse first");
    };
    if let Err(refusal) = media_types::check_body(request.headers()) {
        return refusal;
    }
    let origin_info = RequestOrigin {
        correlation: correlation::of(request.headers()),
        address: peer.address,
        forwarded: edge.forwarded_headers(request.headers()),
        scopes: identity.scopes.clone(),
    };
    let for_gateway = request.headers().contains_key(GATEWAY_HEADER);
    let bytes = match body::read_body(request, edge, (agent.id, peer)).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    match Message::parse(&bytes) {
        Ok(message) => handle_message(edge, &session, message, origin_info),
        Err(Malformed::Batch) => match batch::split(&bytes, &session) {
            Ok(parts) => handle_batch(edge, &session, parts, &origin_info),
            Err(error) => return rpc_error_response(StatusCode::BAD_REQUEST, None, &error),
        },
        Err(malformed) => {
            let error = malformed.to_error();
            return rpc_error_response(StatusCode::BAD_REQUEST, malformed.id(), &error);
        }
    }
    let mut response = accepted();
    if for_gateway {
        edge.tell_depth(&session.scope, &mut response);
    }
    response
}

/// A batch of 2025-03-26, which a client on this transport may have settled on.
fn handle_batch(
    edge: &Arc<HttpEdge>,
    session: &Arc<Session>,
    parts: Vec<Result<Message, Bytes>>,
    origin_info: &RequestOrigin,
) {
    for part in parts {
        match part {
            Ok(message) => handle_message(edge, session, message, origin_info.clone()),
            Err(refusal) => session
                .open_standalone_stream()
                .push_required(StreamItem::Message(refusal)),
        }
    }
}

fn handle_message(
    edge: &Arc<HttpEdge>,
    session: &Arc<Session>,
    message: Message,
    origin_info: RequestOrigin,
) {
    match message {
        Message::Notification(notification) => {
            edge.proxy.handle_notification(session, &notification);
        }
        Message::Response(response) => {
            session.handle_response(response);
        }
        Message::Request(request) => start_call(edge, session, request, origin_info),
    }
}

fn start_call(
    edge: &Arc<HttpEdge>,
    session: &Arc<Session>,
    request: Request,
    origin_info: RequestOrigin,
) {
    let stream = session.open_standalone_stream();
    let id = request.id.clone();
    let at_once = |outcome: Outcome| {
        stream.push_required(StreamItem::Message(envelope::encode_response(
            Some(&id),
            &outcome,
        )));
    };
    if modern::is_modern(&request) {
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
    if session.client_info().is_none() {
        let outcome = if request.method == Method::Ping {
            Ok(crate::mcp::Raw::from_static("{}"))
        } else {
            let message = "send `initialize` first";
            Err(RpcError::new(error::INVALID_REQUEST, message).to_raw())
        };
        return at_once(outcome);
    }
    let granted = origin_info.scopes.as_deref();
    let missing = granted.and_then(|it| missing_scopes(it, &request.method, &session.scope));
    match begin_call_with_scopes(session, request, (IdSharing::Refused, missing)) {
        Ok(mut asked) => {
            asked.set_forwarded(origin_info.forwarded);
            asked.call.correlation = origin_info.correlation;
            asked.call.address = Some(origin_info.address);
            let (answer, events) = call_response::start(edge, asked);
            let carry = pump_call(Arc::clone(session), Arc::clone(&stream), id, answer, events);
            edge.tasks.spawn("call on a stream", carry);
        }
        Err((_, error)) => at_once(Err(error.to_raw())),
    }
}

/// Answers `initialize` in `session`.
fn initialize(edge: &HttpEdge, session: &Session, request: &Request) -> Outcome {
    let opening =
        legacy::parse_initialize(request.params.as_deref()).map_err(|error| error.to_raw())?;
    Ok(edge.proxy.initialize(session, opening))
}

/// Carries one call's events and answer to a stream that is shared with others.
async fn pump_call(
    session: Arc<Session>,
    stream: Arc<ReplayStream>,
    id: crate::mcp::Id,
    answer: call_response::AnswerFuture,
    mut events: EventReader,
) {
    let put = |event| call_response::write_event(event, Some(&session), &stream);
    let mut answered = events.drain_until(answer, put).await;
    let Some(response) = answered.expected_response(&id) else {
        return;
    };
    if session.send(response, &stream).await.is_err() {
        tracing::warn!(
            session = session.log_id,
            "ended a stream: the client does not read it"
        );
        session.end();
    }
}
