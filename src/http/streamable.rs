//! Streamable HTTP, both eras on one path. The era is read from each body (Spec 2026-07-28,
//! versioning); headers only have to agree with it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, Response, StatusCode};
use hyper::body::Incoming;

use super::{
    HttpEdge, RequestContext, accepted, batch,
    batch_response::BatchResponse,
    body::{self, Body, EventFormat},
    come_back, correlation,
    exchange::{self, PendingCall},
    is, json, media, not_allowed, refused, rpc_error, stopping, text, unopened,
};
use crate::{
    mcp::{
        Era, Id, Logs, Message, Method, Notification, Request, Revision, RpcError, envelope,
        envelope::Malformed, error, header,
    },
    session::{
        Call, Client, Interest, Session, legacy,
        modern::{self, ModernRefusal},
        replay::ReplayStream,
        state::SessionKind,
    },
};

pub(super) async fn handle(
    edge: &Arc<HttpEdge>,
    visitor: &RequestContext,
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    if is(&Verb::POST, request) {
        return post(edge, visitor, request).await;
    }
    if is(&Verb::GET, request) {
        return get(edge, visitor, request.headers()).await;
    }
    // The route takes one more verb.
    delete(edge, visitor, request.headers()).await
}

async fn post(
    edge: &Arc<HttpEdge>,
    visitor: &RequestContext,
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    if let Err(refusal) = media::check_body(request.headers()) {
        return refusal;
    }
    if !media::is_json(request.headers()) {
        return refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json",
        );
    }
    if !media::accepts_both(request.headers()) {
        let message = "Accept must list both application/json and text/event-stream";
        return refused(StatusCode::NOT_ACCEPTABLE, message);
    }
    let from = (visitor.agent.id, &visitor.peer);
    let bytes = match body::read(request, edge, from).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    let post = Post {
        edge,
        visitor,
        headers: request.headers(),
    };
    let message = Message::parse(&bytes);
    // A request may say in its body what it speaks.
    if !matches!(message, Ok(Message::Request(_)))
        && let Err(refusal) = check_version(post.headers)
    {
        return refusal;
    }
    match message {
        Ok(Message::Request(request)) if edge.proxy.is_draining() => {
            Box::pin(post.turn_away(request)).await
        }
        // In a box: a future is as large as its largest branch, and is moved with it.
        Ok(Message::Request(request)) => Box::pin(post.request(request)).await,
        Ok(Message::Notification(notification)) => post.notification(&notification).await,
        Ok(Message::Response(response)) => {
            let taken = match post.session(None).await {
                Ok(Some(session)) => session.take_response(response),
                Ok(None) => false,
                Err(refusal) => return refusal,
            };
            if taken {
                accepted()
            } else {
                refused(StatusCode::BAD_REQUEST, "no request waits for it")
            }
        }
        Err(Malformed::Batch) => Box::pin(post.batch(&bytes)).await,
        Err(malformed) => rpc_error(
            StatusCode::BAD_REQUEST,
            malformed.id(),
            &malformed.to_error(),
        ),
    }
}

struct Post<'a> {
    edge: &'a Arc<HttpEdge>,
    visitor: &'a RequestContext,
    headers: &'a HeaderMap,
}

impl Post<'_> {
    async fn request(&self, request: Request) -> Response<Body> {
        match self.asked(request).await {
            Ok(asked) => match self.edge.proxy.held_back(&asked.call).await {
                None => exchange::respond(self.edge, asked).await,
                Some(error) => {
                    let status = StatusCode::TOO_MANY_REQUESTS;
                    come_back(rpc_error(status, Some(&asked.call.id), &error))
                }
            },
            Err(answer) => answer,
        }
    }

    /// What is to be answered; else, what the client is told at once.
    async fn asked(&self, request: Request) -> Result<PendingCall, Response<Body>> {
        if modern::is_claimed_by(&request) {
            return self.modern(request);
        }
        if request.method == Method::Initialize {
            return Err(self.initialize(&request));
        }
        match Version::of(self.headers) {
            Version::Modern => {
                let message = "a request of 2026-07-28 needs `_meta` with its protocol version";
                let error = RpcError::new(error::INVALID_PARAMS, message);
                return Err(rpc_error(
                    StatusCode::BAD_REQUEST,
                    Some(&request.id),
                    &error,
                ));
            }
            Version::Unknown(asked) => return Err(unsupported(Some(&request.id), &asked)),
            Version::Absent | Version::Legacy(_) => {}
        }
        match self.session(Some(&request.id)).await? {
            Some(session) => self.in_session(&session, request),
            None => Ok(self.stateless(request)),
        }
    }

    /// Refuses a request that comes while the gateway stops: as any other, so that a call has its record,
    /// but in a status that says more. No session is opened or taken back for it.
    async fn turn_away(&self, request: Request) -> Response<Body> {
        let id = request.id.clone();
        if matches!(request.method, Method::Initialize | Method::Ping) {
            return stopping(Some(&id));
        }
        let asked = if modern::is_claimed_by(&request) {
            self.modern(request)
        } else {
            match self.session(Some(&id)).await {
                Ok(Some(session)) => self.in_session(&session, request),
                // The next process may know it.
                Ok(None) | Err(_) => Ok(self.stateless(request)),
            }
        };
        match asked {
            Ok(asked) => come_back(json(
                StatusCode::SERVICE_UNAVAILABLE,
                envelope::response(Some(&id), &self.edge.proxy.answer(asked.call).await),
            )),
            Err(_) => stopping(Some(&id)),
        }
    }

    fn modern(&self, mut request: Request) -> Result<PendingCall, Response<Body>> {
        if request.method == Method::Listen {
            request = request.detached();
        }
        let envelope = match modern::check(&request, Some(self.headers)) {
            Ok(envelope) => envelope,
            Err(ModernRefusal { status, error }) => {
                return Err(rpc_error(status, Some(&request.id), &error));
            }
        };
        if let Err(error) = self.check_param_headers(&request) {
            return Err(rpc_error(
                StatusCode::BAD_REQUEST,
                Some(&request.id),
                &error,
            ));
        }
        let (client, wants) = envelope.into_client(Arc::clone(&self.visitor.agent));
        Ok(self.outside(request, client, wants))
    }

    /// A request outside of any session.
    fn outside(&self, request: Request, mut client: Client, wants: Interest) -> PendingCall {
        client.gateway.clone_from(&self.visitor.gateway);
        let (mut call, events) =
            Call::new(request, Arc::new(client), self.visitor.scope.clone(), wants);
        call.correlation = correlation::of(self.headers);
        call.address = Some(self.visitor.peer.address);
        // That of a session is cancelled with the session.
        let standing = &call.client.agent.standing;
        call.cancel = standing.token().child_token().into();
        PendingCall {
            call,
            events,
            prefers_events: media::prefers_events(self.headers),
            running: None,
        }
    }

    /// Checks `Mcp-Param-*` headers against the arguments they repeat.
    fn check_param_headers(&self, request: &Request) -> Result<(), RpcError> {
        if request.method != Method::ToolsCall {
            return Ok(());
        }
        let Some(params) = &request.params else {
            return Ok(());
        };
        let Some(name) = params.text_of("name") else {
            return Ok(());
        };
        let catalog = self.edge.proxy.board().catalog();
        let Some(tool) = catalog.tool(&self.visitor.scope, &name) else {
            return Ok(());
        };
        let RequestContext { agent, scope, .. } = self.visitor;
        // Whoever may not use it is told nothing of it.
        let sight = || self.edge.proxy.governance().sight(agent, scope);
        if tool.headers.is_empty() || !sight().shows_tool(tool) {
            return Ok(());
        }
        for param in tool.headers.iter() {
            let header = format!("{}{}", header::PARAM_PREFIX, param.header).to_ascii_lowercase();
            let mut values = self.headers.get_all(&header).iter();
            let (sent, doubled) = (values.next(), values.next().is_some());
            let mismatch = |why: &str| {
                let message = format!("the header {header} {why}");
                RpcError::new(error::HEADER_MISMATCH, message)
            };
            if doubled {
                return Err(mismatch("is there more than once"));
            }
            match (param.text(params), sent) {
                (None, None) => {}
                (None, Some(_)) => return Err(mismatch("repeats an argument that is absent")),
                (Some(_), None) => return Err(mismatch("is missing")),
                (Some(argument), Some(sent)) => {
                    let decoded = sent.to_str().ok().and_then(header::decode);
                    let decoded = decoded.ok_or_else(|| mismatch("cannot be decoded"))?;
                    if !param.agrees(&decoded, &argument) {
                        return Err(mismatch("differs from the argument"));
                    }
                }
            }
        }
        Ok(())
    }

    fn initialize(&self, request: &Request) -> Response<Body> {
        let opening = match legacy::open(request.params.as_deref()) {
            Ok(opening) => opening,
            Err(error) => return rpc_error(StatusCode::OK, Some(&request.id), &error),
        };
        let agent = Arc::clone(&self.visitor.agent);
        let sessions = self.edge.proxy.sessions();
        let scope = self.visitor.scope.clone();
        let session = match sessions.open(SessionKind::Streamable, agent, scope) {
            Ok(session) => session,
            Err(why) => return unopened(why, Some(&request.id)),
        };
        self.visitor.mark(&session);
        let result = self.edge.proxy.initialize(&session, opening);
        let mut response = json(
            StatusCode::OK,
            envelope::response(Some(&request.id), &Ok(result)),
        );
        if let Ok(id) = HeaderValue::from_str(&session.id) {
            response.headers_mut().insert(header::SESSION_ID, id);
        }
        response
    }

    fn in_session(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<PendingCall, Response<Body>> {
        let mut asked = asked_in(session, request).map_err(|(id, error)| {
            if session.ended.is_cancelled() {
                return gone(self.edge, Some(&id));
            }
            rpc_error(StatusCode::BAD_REQUEST, Some(&id), &error)
        })?;
        asked.call.correlation = correlation::of(self.headers);
        asked.call.address = Some(self.visitor.peer.address);
        asked.prefers_events = media::prefers_events(self.headers);
        Ok(asked)
    }

    /// A legacy request without a session: served, but nothing can be asked of its client.
    fn stateless(&self, request: Request) -> PendingCall {
        let revision = match Version::of(self.headers) {
            Version::Legacy(revision) => revision,
            // Spec 2025-11-25: without a header, 2025-03-26 is assumed.
            Version::Absent | Version::Modern | Version::Unknown(_) => Revision::V2025March,
        };
        let client = Client::stateless(Arc::clone(&self.visitor.agent), revision);
        let wants = Interest::of(&request, Logs::All);
        self.outside(request, client, wants)
    }

    async fn notification(&self, notification: &Notification) -> Response<Body> {
        match self.session(None).await {
            Ok(Some(session)) => {
                self.edge.proxy.told(&session, notification);
                accepted()
            }
            Ok(None) => {
                let method = &*notification.method;
                tracing::debug!(method, "a notification without a session concerns nobody");
                accepted()
            }
            Err(refusal) => refusal,
        }
    }

    /// A batch of 2025-03-26: each message for itself, the answers as one array, or as events.
    async fn batch(&self, bytes: &Bytes) -> Response<Body> {
        let refuse = |error: &RpcError| rpc_error(StatusCode::BAD_REQUEST, None, error);
        let session = match self.session(None).await {
            Ok(Some(session)) => session,
            Ok(None) => {
                let message = "a batch needs a session of 2025-03-26";
                return refuse(&RpcError::new(error::INVALID_REQUEST, message));
            }
            Err(refusal) => return refusal,
        };
        let parts = match batch::split(bytes, &session) {
            Ok(parts) => parts,
            Err(error) => return refuse(&error),
        };
        let asks = |part: &Result<Message, Bytes>| matches!(part, Ok(Message::Request(_)));
        if self.edge.proxy.is_draining() && parts.iter().any(asks) {
            return self.turn_away_batch(&session, parts).await;
        }
        let (mut asked, mut answers) = (Vec::new(), Vec::new());
        for part in parts {
            let begun = part
                .map_err(Some)
                .and_then(|part| self.begun(&session, part));
            match begun {
                Ok(begun) => asked.push(begun),
                Err(answer) => answers.extend(answer),
            }
        }
        if asked.is_empty() && answers.is_empty() {
            return accepted();
        }
        let mut several = BatchResponse::start(self.edge, &session, asked, answers);
        match several.whole(self.edge.proxy.settings().keep_alive).await {
            Some(body) => json(StatusCode::OK, body),
            None => several.into_events(self.edge),
        }
    }

    /// Refuses a batch as a whole that comes while the gateway stops; each call in it has its record.
    async fn turn_away_batch(
        &self,
        session: &Arc<Session>,
        parts: Vec<Result<Message, Bytes>>,
    ) -> Response<Body> {
        for part in parts {
            if let Ok(Message::Request(request)) = part
                && let Ok(asked) = asked_in(session, request)
            {
                // What it is told is told of all.
                drop(self.edge.proxy.answer(asked.call).await);
            }
        }
        stopping(None)
    }

    /// The request that one message of a batch is; else, what is answered to it at once, if anything.
    fn begun(
        &self,
        session: &Arc<Session>,
        message: Message,
    ) -> Result<PendingCall, Option<Bytes>> {
        match message {
            Message::Request(request) => match asked_in(session, request) {
                Ok(mut asked) => {
                    asked.call.address = Some(self.visitor.peer.address);
                    Ok(asked)
                }
                Err((id, error)) => {
                    let refusal = Err(error.to_raw());
                    Err(Some(envelope::response(Some(&id), &refusal)))
                }
            },
            Message::Notification(notification) => {
                self.edge.proxy.told(session, &notification);
                Err(None)
            }
            Message::Response(response) => {
                session.take_response(response);
                Err(None)
            }
        }
    }

    /// The session that the headers name; `None` when they name none. What is refused is the request `id`.
    async fn session(&self, id: Option<&Id>) -> Result<Option<Arc<Session>>, Response<Body>> {
        find_session(self.edge, self.visitor, self.headers, id).await
    }
}

/// What the header `MCP-Protocol-Version` says.
enum Version {
    Absent,
    Legacy(Revision),
    Modern,
    Unknown(String),
}

impl Version {
    fn of(headers: &HeaderMap) -> Self {
        match headers
            .get(header::PROTOCOL_VERSION)
            .map(HeaderValue::to_str)
        {
            None => Self::Absent,
            Some(Ok(date)) => match Revision::parse(date) {
                Some(revision) if revision.era() == Era::Modern => Self::Modern,
                Some(revision) => Self::Legacy(revision),
                None => Self::Unknown(date.to_owned()),
            },
            Some(Err(_)) => Self::Unknown("(not legible)".to_owned()),
        }
    }
}

/// Refuses a header with a version that is not known (Spec 2025-06-18, transports, protocol version
/// header), where no body can say otherwise.
fn check_version(headers: &HeaderMap) -> Result<(), Response<Body>> {
    match Version::of(headers) {
        Version::Unknown(asked) => Err(unsupported(None, &asked)),
        Version::Absent | Version::Legacy(_) | Version::Modern => Ok(()),
    }
}

/// No legacy client names such a revision: one of a later revision learns what it may speak here.
fn unsupported(id: Option<&Id>, asked: &str) -> Response<Body> {
    let refusal = modern::refuse_version(asked, &Revision::ALL);
    rpc_error(refusal.status, id, &refusal.error)
}

/// The session that the headers name; one of another route is as unknown as one that has ended. What is
/// refused is the request `id`.
async fn find_session(
    edge: &HttpEdge,
    visitor: &RequestContext,
    headers: &HeaderMap,
    id: Option<&Id>,
) -> Result<Option<Arc<Session>>, Response<Body>> {
    let Some(named) = headers.get(header::SESSION_ID) else {
        return Ok(None);
    };
    let found = match named.to_str() {
        Ok(named) => {
            let RequestContext { agent, scope, .. } = visitor;
            edge.proxy.session(named, agent, scope).await
        }
        Err(_) => Ok(None),
    };
    match found {
        Ok(Some(session)) => {
            // One of an earlier process does not know it.
            visitor.mark(&session);
            Ok(Some(session))
        }
        Ok(None) => Err(gone(edge, id)),
        Err(why) => Err(unopened(why, id)),
    }
}

/// The answer to who names a session that is not known, or no longer.
fn gone(edge: &HttpEdge, id: Option<&Id>) -> Response<Body> {
    // The next process may know it.
    if edge.proxy.is_draining() {
        return stopping(id);
    }
    let error = RpcError::new(
        error::INVALID_REQUEST,
        "Session not found: initialize again",
    );
    rpc_error(StatusCode::NOT_FOUND, id, &error)
}

/// A request inside a session; the id with the refusal of one that is in use.
pub(super) fn asked_in(
    session: &Arc<Session>,
    request: Request,
) -> Result<PendingCall, (Id, RpcError)> {
    let Some(client) = Client::of(session) else {
        let error = RpcError::new(error::INVALID_REQUEST, "the session is not initialized");
        return Err((request.id, error));
    };
    let wants = Interest::of(&request, session.logs());
    let (mut call, events) = Call::new(request, Arc::new(client), session.scope.clone(), wants);
    call.ended = Some(session.ended.clone());
    let running = session
        .begin(&call.id, call.cancel.heard())
        .map_err(|reason| (call.id.clone(), reason.to_error()))?;
    Ok(PendingCall {
        call,
        events,
        prefers_events: false,
        running: Some(running),
    })
}

/// The stream for messages that belong to no call, or the rest of one that broke off.
async fn get(
    edge: &Arc<HttpEdge>,
    visitor: &RequestContext,
    headers: &HeaderMap,
) -> Response<Body> {
    if !media::accepts(headers, &[media::EVENTS]) {
        return text(
            StatusCode::NOT_ACCEPTABLE,
            "Accept must list text/event-stream",
        );
    }
    if let Err(refusal) = check_version(headers) {
        return refusal;
    }
    let session = match find_session(edge, visitor, headers, None).await {
        Ok(Some(session)) => session,
        Ok(None) => {
            let why = "GET needs the header Mcp-Session-Id: only a session has a stream to follow";
            return not_allowed("GET, POST, DELETE", why);
        }
        Err(refusal) => return refusal,
    };
    let priming = session
        .opening()
        .is_some_and(|opening| opening.revision.has_priming());
    let last = headers
        .get(header::LAST_EVENT_ID)
        .and_then(|id| id.to_str().ok());
    let resumed = last
        .and_then(body::parse_event_id)
        // What came on it before a restart is lost: it goes on as a new one.
        .filter(|(stream, _)| !session.was_standing(*stream))
        .map(|(stream, seq)| (session.stream(stream).unwrap_or_else(|| over(stream)), seq));
    let (stream, place) = if let Some((stream, seq)) = resumed {
        let place = stream.resume(seq);
        (stream, place)
    } else {
        // A second stream of a session replaces the first at once.
        let stream = session.open_standing();
        let place = stream.take_over();
        edge.proxy.tell_session(&session);
        (stream, place)
    };
    let first = if priming {
        crate::mcp::sse::priming(&body::event_id(stream.id, place.seq), None)
    } else {
        crate::mcp::sse::KEEP_ALIVE
    };
    let writing = EventFormat {
        keep_alive: edge.proxy.settings().keep_alive,
        ids: true,
        first: Some(first),
        _guard: None,
        _reader: edge.readers.enter(),
    };
    body::events(stream, place, writing)
}

/// A stream that is no longer kept: nothing more comes on it.
fn over(id: u64) -> Arc<ReplayStream> {
    let stream = ReplayStream::new(id);
    stream.finish();
    Arc::new(stream)
}

async fn delete(edge: &HttpEdge, visitor: &RequestContext, headers: &HeaderMap) -> Response<Body> {
    if let Err(refusal) = check_version(headers) {
        return refusal;
    }
    match find_session(edge, visitor, headers, None).await {
        Ok(Some(session)) => {
            edge.proxy.sessions().close(&session.id);
            text(StatusCode::OK, "the session has ended")
        }
        Ok(None) => text(
            StatusCode::BAD_REQUEST,
            "DELETE needs the header Mcp-Session-Id",
        ),
        Err(refusal) => refusal,
    }
}
