//! Streamable HTTP, both eras on one path. The era is read from each body (Spec 2026-07-28,
//! versioning); headers only have to agree with it.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, Response, StatusCode, Uri,
};
use hyper::body::Incoming;

use super::{
    HttpEdge, RequestContext, accepted, bad_post, batch,
    batch_response::BatchResponse,
    body::{self, Body, EventFormat},
    call_response::{self, PendingCall},
    challenged, correlation, is_method, json_response,
    media_types::{self, AnswerForm},
    method_not_allowed,
    oauth::RequestTarget,
    request_log, rpc_error_response, session_not_opened, shutting_down, text_response,
    with_retry_after,
};
use crate::{
    auth::{AuthError, CredentialLifetime, token::Scopes},
    mcp::{
        Era, Id, LogFilter, Message, Method, Notification, Request, Revision, RpcError, envelope,
        envelope::Malformed, error, header,
    },
    session::{
        Call, Client, Interest, Session, legacy,
        modern::{self, ModernRefusal},
        replay::ReplayStream,
        running_calls::IdSharing,
        state::SessionKind,
    },
};

pub(super) async fn handle(
    edge: &Arc<HttpEdge>,
    context: &RequestContext,
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    if is_method(&Verb::POST, request) {
        return post(edge, context, request).await;
    }
    if is_method(&Verb::GET, request) {
        return get(edge, context, request.headers()).await;
    }
    // The route takes one more verb.
    delete(edge, context, request.headers()).await
}

async fn post(
    edge: &Arc<HttpEdge>,
    context: &RequestContext,
    request: &mut HttpRequest<Incoming>,
) -> Response<Body> {
    if let Err(refusal) = media_types::check_body(request.headers()) {
        return refusal;
    }
    if !media_types::is_json(request.headers()) {
        return bad_post(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type must be application/json",
        );
    }
    let Some(form) = media_types::answer_form(request.headers()) else {
        let message =
            "Accept must list application/json, and text/event-stream for what precedes an answer";
        return bad_post(StatusCode::NOT_ACCEPTABLE, message);
    };
    let from = (context.agent.id, &context.peer);
    let bytes = match body::read_body(request, edge, from).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    let post = Post {
        edge,
        context,
        uri: request.uri(),
        headers: request.headers(),
        form,
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
            Box::pin(post.reject_while_draining(request)).await
        }
        // In a box: a future is as large as its largest branch, and is moved with it.
        Ok(Message::Request(request)) => match context.missing_scopes(&request.method) {
            None => Box::pin(post.request(request)).await,
            Some(missing) => Box::pin(post.request_without_scope(request, missing)).await,
        },
        Ok(Message::Notification(notification)) => post.notification(&notification).await,
        Ok(Message::Response(response)) => {
            let taken = match post.session(None).await {
                Ok(Some(session)) => session.handle_response(response),
                Ok(None) => false,
                Err(refusal) => return refusal,
            };
            if taken {
                accepted()
            } else {
                bad_post(StatusCode::BAD_REQUEST, "no pending request with this id")
            }
        }
        Err(Malformed::Batch) => Box::pin(post.batch(&bytes)).await,
        Err(malformed) => rpc_error_response(
            StatusCode::BAD_REQUEST,
            malformed.id(),
            &malformed.to_error(),
        ),
    }
}

struct Post<'a> {
    edge: &'a Arc<HttpEdge>,
    context: &'a RequestContext,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    form: AnswerForm,
}

impl Post<'_> {
    async fn request(&self, request: Request) -> Response<Body> {
        match self.start_call(request).await {
            Ok(asked) => match self.edge.proxy.refusal_backoff(&asked.call).await {
                None => call_response::respond(self.edge, asked).await,
                Some(error) => {
                    let status = StatusCode::TOO_MANY_REQUESTS;
                    with_retry_after(rpc_error_response(status, Some(&asked.call.id), &error))
                }
            },
            Err(answer) => answer,
        }
    }

    /// Refuses a request that its token is not good for. A call is refused as any other, so that it has its record, and
    /// hears of what no scope would change before it hears of scopes.
    async fn request_without_scope(&self, request: Request, missing: Scopes) -> Response<Body> {
        let id = request.id.clone();
        let why = AuthError::InsufficientScope(missing.clone());
        if request.method != Method::ToolsCall {
            return self.challenge(&why, &id);
        }
        let mut asked = match self.start_call(request).await {
            Ok(asked) => asked,
            Err(answer) => return answer,
        };
        asked.set_missing_scopes(missing);
        let outcome = self.edge.proxy.answer(asked.call).await;
        // Nothing but a refusal of ours can be in it.
        let text = match &outcome {
            Ok(answer) | Err(answer) => answer.as_str(),
        };
        if text.contains(error::INSUFFICIENT_SCOPE) {
            return self.challenge(&why, &id);
        }
        json_response(
            StatusCode::OK,
            envelope::encode_response(Some(&id), &outcome),
        )
    }

    /// The answer to the request `id`, which its token is not good for.
    fn challenge(&self, why: &AuthError, id: &Id) -> Response<Body> {
        let request = RequestTarget {
            uri: self.uri,
            headers: self.headers,
        };
        let refused = request_log::refused_target(request);
        let governance = self.edge.proxy.governance();
        governance.record_auth_failure(why, self.context.peer.address, refused);
        let path = self.uri.path();
        let path = path.strip_suffix('/').unwrap_or(path);
        challenged(why, Some(id), self.edge.challenge(why, path, request))
    }

    /// What is to be answered; else, what the client is told at once.
    async fn start_call(&self, request: Request) -> Result<PendingCall, Response<Body>> {
        if modern::is_modern(&request) {
            return self.start_modern_call(request);
        }
        if request.method == Method::Initialize {
            return Err(self.initialize(&request));
        }
        match Version::of(self.headers) {
            Version::Modern => {
                let message = "a 2026-07-28 request requires `_meta` with its protocol version";
                let error = RpcError::new(error::INVALID_PARAMS, message);
                return Err(rpc_error_response(
                    StatusCode::BAD_REQUEST,
                    Some(&request.id),
                    &error,
                ));
            }
            Version::Unsupported(asked) => {
                return Err(unsupported_version(Some(&request.id), &asked));
            }
            Version::Absent | Version::Legacy(_) => {}
        }
        match self.session(Some(&request.id)).await? {
            Some(session) => self.start_session_call(&session, request),
            None => Ok(self.start_stateless_call(request)),
        }
    }

    /// Refuses a request that comes while the gateway stops: as any other, so that a call has its record,
    /// but in a status that says more. No session is opened or taken back for it.
    async fn reject_while_draining(&self, request: Request) -> Response<Body> {
        let id = request.id.clone();
        if matches!(request.method, Method::Initialize | Method::Ping) {
            return shutting_down(Some(&id));
        }
        let asked = if modern::is_modern(&request) {
            self.start_modern_call(request)
        } else {
            match self.session(Some(&id)).await {
                Ok(Some(session)) => self.start_session_call(&session, request),
                // The next process may know it.
                Ok(None) | Err(_) => Ok(self.start_stateless_call(request)),
            }
        };
        match asked {
            Ok(asked) => with_retry_after(json_response(
                StatusCode::SERVICE_UNAVAILABLE,
                envelope::encode_response(Some(&id), &self.edge.proxy.answer(asked.call).await),
            )),
            Err(_) => shutting_down(Some(&id)),
        }
    }

    fn start_modern_call(&self, mut request: Request) -> Result<PendingCall, Response<Body>> {
        if request.method == Method::Listen {
            if self.form == AnswerForm::JsonOnly {
                let error = RpcError::new(
                    error::INVALID_REQUEST,
                    "the answer to this request is a stream: Accept must list text/event-stream",
                );
                let status = StatusCode::NOT_ACCEPTABLE;
                return Err(rpc_error_response(status, Some(&request.id), &error));
            }
            request = request.to_owned_memory();
        }
        let envelope = match modern::check_request(&request, Some(self.headers)) {
            Ok(envelope) => envelope,
            Err(ModernRefusal { status, error }) => {
                return Err(rpc_error_response(status, Some(&request.id), &error));
            }
        };
        if let Err(error) = self.check_param_headers(&request) {
            return Err(rpc_error_response(
                StatusCode::BAD_REQUEST,
                Some(&request.id),
                &error,
            ));
        }
        let (client, wants) = envelope.into_client(Arc::clone(&self.context.agent));
        Ok(self.start_sessionless_call(request, client, wants))
    }

    /// A request outside of any session.
    fn start_sessionless_call(
        &self,
        request: Request,
        mut client: Client,
        wants: Interest,
    ) -> PendingCall {
        client.forwarded = self.edge.forwarded_headers(self.headers);
        let (mut call, events) =
            Call::new(request, Arc::new(client), self.context.scope.clone(), wants);
        call.correlation = correlation::of(self.headers);
        call.address = Some(self.context.peer.address);
        // That of a session is cancelled with the session.
        let standing = &call.client.agent.session_validity;
        call.cancel = standing.token().child_token().into();
        PendingCall {
            call,
            events,
            form: self.form,
            lifetime: self.context.lifetime.clone(),
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
        let Some(name) = params.text_member("name") else {
            return Ok(());
        };
        let owners = self.edge.proxy.owners_seen_by(&self.context.agent);
        let route = (&owners, &self.context.scope);
        let catalog = self.edge.proxy.catalog_store().catalog(route);
        let Some(tool) = catalog.tool(&self.context.scope, &name) else {
            return Ok(());
        };
        let RequestContext { agent, scope, .. } = self.context;
        // Whoever may not use it is told nothing of it.
        let visibility = || self.edge.proxy.governance().visibility(agent, scope);
        if tool.headers.is_empty() || !visibility().shows_tool(tool) {
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
                return Err(mismatch("is given more than once"));
            }
            match (param.header_text(params), sent) {
                (None, None) => {}
                (None, Some(_)) => return Err(mismatch("repeats an argument that is absent")),
                (Some(_), None) => return Err(mismatch("is missing")),
                (Some(argument), Some(sent)) => {
                    let decoded = sent.to_str().ok().and_then(header::decode);
                    let decoded = decoded.ok_or_else(|| mismatch("cannot be decoded"))?;
                    if !param.matches_argument(&decoded, &argument) {
                        return Err(mismatch("differs from the argument"));
                    }
                }
            }
        }
        Ok(())
    }

    fn initialize(&self, request: &Request) -> Response<Body> {
        let opening = match legacy::parse_initialize(request.params.as_deref()) {
            Ok(opening) => opening,
            Err(error) => return rpc_error_response(StatusCode::OK, Some(&request.id), &error),
        };
        let agent = Arc::clone(&self.context.agent);
        let sessions = self.edge.proxy.sessions();
        let scope = self.context.scope.clone();
        let session = match sessions.open(SessionKind::Streamable, agent, scope) {
            Ok(session) => session,
            Err(why) => return session_not_opened(why, Some(&request.id)),
        };
        let result = self.edge.proxy.initialize(&session, opening);
        let mut response = json_response(
            StatusCode::OK,
            envelope::encode_response(Some(&request.id), &Ok(result)),
        );
        if let Ok(id) = HeaderValue::from_str(&session.id) {
            response.headers_mut().insert(header::SESSION_ID, id);
        }
        response
    }

    fn start_session_call(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<PendingCall, Response<Body>> {
        let mut asked =
            begin_call(session, request, IdSharing::Allowed).map_err(|(id, error)| {
                if session.ended.is_cancelled() {
                    return session_not_found(self.edge, Some(&id));
                }
                rpc_error_response(StatusCode::BAD_REQUEST, Some(&id), &error)
            })?;
        asked.set_forwarded(self.edge.forwarded_headers(self.headers));
        asked.call.correlation = correlation::of(self.headers);
        asked.call.address = Some(self.context.peer.address);
        asked.form = self.form;
        asked.lifetime = self.context.lifetime.clone();
        Ok(asked)
    }

    /// A legacy request without a session: served, but nothing can be asked of its client.
    fn start_stateless_call(&self, request: Request) -> PendingCall {
        let revision = match Version::of(self.headers) {
            Version::Legacy(revision) => revision,
            // Spec 2025-11-25: without a header, 2025-03-26 is assumed.
            Version::Absent | Version::Modern | Version::Unsupported(_) => Revision::V2025March,
        };
        let client = Client::stateless(Arc::clone(&self.context.agent), revision);
        let wants = Interest::of(&request, LogFilter::All);
        self.start_sessionless_call(request, client, wants)
    }

    async fn notification(&self, notification: &Notification) -> Response<Body> {
        match self.session(None).await {
            Ok(Some(session)) => {
                self.edge.proxy.handle_notification(&session, notification);
                accepted()
            }
            Ok(None) => {
                let method = &*notification.method;
                tracing::debug!(method, "a notification requires a session");
                accepted()
            }
            Err(refusal) => refusal,
        }
    }

    /// A batch of 2025-03-26: each message for itself, the answers as one array, or as events.
    async fn batch(&self, bytes: &Bytes) -> Response<Body> {
        let refuse = |error: &RpcError| rpc_error_response(StatusCode::BAD_REQUEST, None, error);
        let session = match self.session(None).await {
            Ok(Some(session)) => session,
            Ok(None) => {
                let message = "a batch requires a 2025-03-26 session";
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
            return self.reject_batch_while_draining(&session, parts).await;
        }
        let (mut asked, mut answers) = (Vec::new(), Vec::new());
        for part in parts {
            let begun = part
                .map_err(Some)
                .and_then(|part| self.start_batch_element(&session, part));
            match begun {
                Ok(begun) => asked.push(begun),
                Err(answer) => answers.extend(answer),
            }
        }
        if asked.is_empty() && answers.is_empty() {
            return accepted();
        }
        let mut several = BatchResponse::start(self.edge, (&session, self.form), asked, answers);
        match several.collect(self.edge.proxy.settings().keep_alive).await {
            Some(body) => json_response(StatusCode::OK, body),
            None => several.into_events(self.edge, self.context.lifetime.clone()),
        }
    }

    /// Refuses a batch as a whole that comes while the gateway stops; each call in it has its record.
    async fn reject_batch_while_draining(
        &self,
        session: &Arc<Session>,
        parts: Vec<Result<Message, Bytes>>,
    ) -> Response<Body> {
        for part in parts {
            if let Ok(Message::Request(request)) = part
                && let Ok(asked) = begin_call(session, request, IdSharing::Refused)
            {
                // What it is told is told of all.
                drop(self.edge.proxy.answer(asked.call).await);
            }
        }
        shutting_down(None)
    }

    /// The request that one message of a batch is; else, what is answered to it at once, if anything.
    fn start_batch_element(
        &self,
        session: &Arc<Session>,
        message: Message,
    ) -> Result<PendingCall, Option<Bytes>> {
        match message {
            Message::Request(request) => match self.begin_batch_call(session, request) {
                Ok(mut asked) => {
                    asked.set_forwarded(self.edge.forwarded_headers(self.headers));
                    asked.call.correlation = correlation::of(self.headers);
                    asked.call.address = Some(self.context.peer.address);
                    Ok(asked)
                }
                Err((id, error)) => {
                    let refusal = Err(error.to_raw());
                    Err(Some(envelope::encode_response(Some(&id), &refusal)))
                }
            },
            Message::Notification(notification) => {
                self.edge.proxy.handle_notification(session, &notification);
                Err(None)
            }
            Message::Response(response) => {
                session.handle_response(response);
                Err(None)
            }
        }
    }

    /// A request of a batch, unless its token is not good for it.
    fn begin_batch_call(
        &self,
        session: &Arc<Session>,
        request: Request,
    ) -> Result<PendingCall, (Id, RpcError)> {
        let missing = self.context.missing_scopes(&request.method);
        begin_call_with_scopes(session, request, (IdSharing::Refused, missing))
    }

    /// The session that the headers name; `None` when they name none. What is refused is the request `id`.
    async fn session(&self, id: Option<&Id>) -> Result<Option<Arc<Session>>, Response<Body>> {
        find_session(self.edge, self.context, self.headers, id).await
    }
}

/// What the header `MCP-Protocol-Version` says.
enum Version {
    Absent,
    Legacy(Revision),
    Modern,
    Unsupported(String),
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
                None => Self::Unsupported(date.to_owned()),
            },
            Some(Err(_)) => Self::Unsupported("(not legible)".to_owned()),
        }
    }
}

/// Refuses a header with a version that is not known (Spec 2025-06-18, transports, protocol version
/// header), where no body can say otherwise.
fn check_version(headers: &HeaderMap) -> Result<(), Response<Body>> {
    match Version::of(headers) {
        Version::Unsupported(asked) => Err(unsupported_version(None, &asked)),
        Version::Absent | Version::Legacy(_) | Version::Modern => Ok(()),
    }
}

/// No legacy client names such a revision: one of a later revision learns what it may speak here.
fn unsupported_version(id: Option<&Id>, asked: &str) -> Response<Body> {
    let refusal = modern::refuse_version(asked, &Revision::ALL);
    rpc_error_response(refusal.status, id, &refusal.error)
}

/// The session that the headers name; one of another route is as unknown as one that has ended. What is
/// refused is the request `id`.
async fn find_session(
    edge: &HttpEdge,
    context: &RequestContext,
    headers: &HeaderMap,
    id: Option<&Id>,
) -> Result<Option<Arc<Session>>, Response<Body>> {
    let Some(named) = headers.get(header::SESSION_ID) else {
        return Ok(None);
    };
    let found = match named.to_str() {
        Ok(named) => {
            let RequestContext { agent, scope, .. } = context;
            edge.proxy
                .find_or_restore_session(named, agent, scope)
                .await
        }
        Err(_) => Ok(None),
    };
    match found {
        Ok(Some(session)) => Ok(Some(session)),
        Ok(None) => Err(session_not_found(edge, id)),
        Err(why) => Err(session_not_opened(why, id)),
    }
}

/// The answer to who names a session that is not known, or no longer.
fn session_not_found(edge: &HttpEdge, id: Option<&Id>) -> Response<Body> {
    // The next process may know it.
    if edge.proxy.is_draining() {
        return shutting_down(id);
    }
    let error = RpcError::new(
        error::INVALID_REQUEST,
        "Session not found: initialize again",
    );
    rpc_error_response(StatusCode::NOT_FOUND, id, &error)
}

/// A request inside a session; the id with the refusal of one that is in use.
pub(super) fn begin_call(
    session: &Arc<Session>,
    request: Request,
    sharing: IdSharing,
) -> Result<PendingCall, (Id, RpcError)> {
    let Some(client) = Client::of(session) else {
        let error = RpcError::new(error::INVALID_REQUEST, "the session is not initialized");
        return Err((request.id, error));
    };
    let wants = Interest::of(&request, session.logs());
    let (mut call, events) = Call::new(request, Arc::new(client), session.scope.clone(), wants);
    call.session_ended = Some(session.ended.clone());
    let running = session
        .begin(&call.id, sharing, call.cancel.with_params())
        .map_err(|reason| (call.id.clone(), reason.to_error()))?;
    Ok(PendingCall {
        call,
        events,
        form: AnswerForm::Any,
        lifetime: CredentialLifetime::default(),
        running: Some(running),
    })
}

/// The same where the token of the request does not have the scopes `missing`: a call is refused later, as any other.
pub(super) fn begin_call_with_scopes(
    session: &Arc<Session>,
    request: Request,
    (sharing, missing): (IdSharing, Option<Scopes>),
) -> Result<PendingCall, (Id, RpcError)> {
    let Some(missing) = missing else {
        return begin_call(session, request, sharing);
    };
    if request.method != Method::ToolsCall {
        let why = AuthError::InsufficientScope(missing);
        let data = serde_json::json!({ "code": error::INSUFFICIENT_SCOPE });
        let error = RpcError::new(error::INVALID_REQUEST, why.to_string()).with_data(data);
        return Err((request.id, error));
    }
    let mut asked = begin_call(session, request, sharing)?;
    asked.set_missing_scopes(missing);
    Ok(asked)
}

/// The stream for messages that belong to no call, or the rest of one that broke off.
async fn get(
    edge: &Arc<HttpEdge>,
    context: &RequestContext,
    headers: &HeaderMap,
) -> Response<Body> {
    if !media_types::accepts(headers, media_types::EVENTS) {
        return text_response(
            StatusCode::NOT_ACCEPTABLE,
            "Accept must list text/event-stream",
        );
    }
    if let Err(refusal) = check_version(headers) {
        return refusal;
    }
    let session = match find_session(edge, context, headers, None).await {
        Ok(Some(session)) => session,
        Ok(None) => {
            let why = "GET requires the header Mcp-Session-Id";
            return method_not_allowed("GET, POST, DELETE", why);
        }
        Err(refusal) => return refusal,
    };
    let priming = session
        .client_info()
        .is_some_and(|opening| opening.revision.has_priming());
    let last = headers
        .get(header::LAST_EVENT_ID)
        .and_then(|id| id.to_str().ok());
    let resumed = last
        .and_then(body::parse_event_id)
        // What came on it before a restart is lost: it goes on as a new one.
        .filter(|(stream, _)| !session.was_standalone(*stream))
        .map(|(stream, seq)| {
            (
                session
                    .stream(stream)
                    .unwrap_or_else(|| finished_stream(stream)),
                seq,
            )
        });
    let (stream, place) = if let Some((stream, seq)) = resumed {
        let place = stream.resume(seq);
        (stream, place)
    } else {
        // A second stream of a session replaces the first at once.
        let stream = session.open_standalone_stream();
        let place = stream.attach_at_end();
        edge.proxy.notify_session(&session);
        (stream, place)
    };
    let first = if priming {
        crate::mcp::sse::write_priming(&body::event_id(stream.id, place.seq), None)
    } else {
        crate::mcp::sse::KEEP_ALIVE
    };
    let writing = EventFormat {
        keep_alive: edge.proxy.settings().keep_alive,
        ids: true,
        first: Some(first),
        lifetime: context.lifetime.clone(),
        _guard: None,
        _reader: edge.stream_readers.enter(),
    };
    body::events(stream, place, writing)
}

/// A stream that is no longer kept: nothing more comes on it.
fn finished_stream(id: u64) -> Arc<ReplayStream> {
    let stream = ReplayStream::new(id);
    stream.finish();
    Arc::new(stream)
}

async fn delete(edge: &HttpEdge, context: &RequestContext, headers: &HeaderMap) -> Response<Body> {
    if let Err(refusal) = check_version(headers) {
        return refusal;
    }
    match find_session(edge, context, headers, None).await {
        Ok(Some(session)) => {
            edge.proxy.sessions().close(&session.id);
            text_response(StatusCode::OK, "the session has ended")
        }
        Ok(None) => text_response(
            StatusCode::BAD_REQUEST,
            "DELETE requires the header Mcp-Session-Id",
        ),
        Err(refusal) => refusal,
    }
}
