//! Servers behind streamable HTTP, of both eras: one POST a message, answers as JSON or as events.

mod connection;
mod content_encoding;
pub(super) mod http_client;
mod link_headers;
mod pool;
mod read_budget;
pub(in crate::backend) mod redirect;
pub(in crate::backend) mod remote_tls;
mod server_events;
mod server_resolver;
pub(in crate::backend) mod sse;
mod streams;
#[cfg(test)]
mod tests;
mod transport;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, Response, StatusCode,
    header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER},
};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::unconstrained,
    time::timeout,
};

use crate::{
    backend::{
        BackendError,
        credential::CredentialSource,
        link::{
            Exchange, HttpChannel, Link, each_message,
            pending::{PendingExchange, PendingRequests},
        },
    },
    body::BodyError,
    config::Remote,
    lock::lock,
    mcp::{
        Era, Id, Message, Method, Outcome, Revision,
        envelope::{self, Malformed},
        header,
        method::notice,
    },
};
use content_encoding::ResponseBodyError;
use link_headers::LinkHeaders;
use redirect::{REDIRECTS_MAX, RequestUrl};
use transport::{HttpTransport, ResponseBody};

/// How long the server may take to close a session that we end.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server may take to accept a notification or an answer.
const POST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a post under way may still take once the link has ended.
const POST_GRACE: Duration = Duration::from_secs(2);
/// Notifications and answers that are posted at a time, each on a connection of its own; more wait.
const POSTS_MAX: usize = 64;
/// Bytes read of the body of an answer that is no answer.
const ERROR_BODY_BYTES: usize = 512;

/// The HTTP side of a link.
#[derive(Debug)]
pub(crate) struct HttpLink {
    transport: HttpTransport,
    requests: Arc<PendingRequests>,
    link: OnceLock<Weak<Link>>,
    headers: Mutex<LinkHeaders>,
    /// What gives each request its access token, where the server takes such.
    credential: Option<CredentialSource>,
    posts: Semaphore,
    url: RequestUrl,
}

/// Opens a link to `remote`. Nothing is sent yet.
pub(crate) fn open(
    remote: &Remote,
    requests: Arc<PendingRequests>,
    connect: Duration,
    credential: Option<CredentialSource>,
) -> Result<Arc<Link>, BackendError> {
    let way = HttpTransport::new(remote, connect, &requests.tasks)?;
    let mut headers = http_client::request_headers(remote, &requests.settings.peer.own_id)?;
    if let Some(host) = way.host() {
        headers.entry(HOST).or_insert(host);
    }
    let http = Arc::new(HttpLink {
        transport: way,
        requests: Arc::clone(&requests),
        link: OnceLock::new(),
        headers: Mutex::new(LinkHeaders::new(headers)),
        credential,
        posts: Semaphore::new(POSTS_MAX),
        url: RequestUrl::new(&remote.url, !remote.is_from_variable)?,
    });
    let link = Arc::new(Link::http(
        requests,
        Arc::clone(&http) as Arc<dyn HttpChannel>,
    ));
    drop(http.link.set(Arc::downgrade(&link)));
    Ok(link)
}

impl HttpChannel for HttpLink {
    fn exchange<'a>(
        &'a self,
        bytes: Bytes,
        exchange: &'a Exchange<'_>,
        pending: PendingExchange,
    ) -> BoxFuture<'a, Result<Outcome, BackendError>> {
        Box::pin(self.converse_until(bytes, exchange, pending))
    }

    fn post<'a>(
        &'a self,
        bytes: Bytes,
        method: &'a str,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        Box::pin(self.post_in_time(bytes, method))
    }

    fn spawn_post(&self, bytes: Bytes, method: &str, place: OwnedSemaphorePermit) -> bool {
        let server = self.requests.settings.server.clone();
        let Some(link) = self.link() else {
            return false;
        };
        let method = method.to_owned();
        self.requests.tasks.spawn("post", async move {
            let Some(http) = link.as_http() else { return };
            if let Err(failure) = http.post(bytes, &method).await {
                tracing::debug!(%server, %failure, "cannot deliver a message");
            }
            drop(place);
        });
        true
    }

    fn set_revision(&self, revision: Revision) {
        self.headers().set_revision(revision);
    }

    fn reset(&self) {
        self.headers().reset();
    }

    fn listen(self: Arc<Self>, opened: oneshot::Sender<()>) -> BoxFuture<'static, ()> {
        Box::pin(self.listen_until_closed(opened))
    }

    fn delete_session(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !self.headers().has_session() {
                return;
            }
            let deleted = self.send(Verb::DELETE, (Bytes::new(), Bytes::new), |_, _| {});
            drop(timeout(DELETE_TIMEOUT, deleted).await);
        })
    }
}

impl HttpLink {
    /// Sends a request and reads its answer, whichever form it takes.
    async fn converse_until(
        &self,
        bytes: Bytes,
        exchange: &Exchange<'_>,
        pending: PendingExchange,
    ) -> Result<Outcome, BackendError> {
        let limit = &self.requests.settings.http_calls;
        let _permit = match limit.enter() {
            Ok(permit) => permit,
            Err(limit) => return Err(BackendError::NoFiles { limit }),
        };
        // In a box: there is room for it twice in what selects.
        let conversation = Box::pin(self.send_and_read(bytes, exchange, &pending));
        let failure = tokio::select! {
            biased;
            outcome = conversation => {
                if outcome.is_ok() {
                    pending.activity.wait_out_of_band_quiet().await;
                    pending.mark_answered();
                }
                return outcome;
            }
            () = self.link_failed() => return Err(self.requests.lost_error()),
            () = exchange.cancel.cancelled() => BackendError::Cancelled { is_sent: true },
            // A server that always has something to say uses up the budget of each turn.
            failure = unconstrained(pending.activity.deadline_exceeded(exchange.limits)) => failure,
        };
        // In 2026-07-28 the closed stream is the cancellation; before, it takes a message.
        let legacy = self.headers().era() == Some(Era::Legacy);
        if legacy && *exchange.method != Method::Initialize {
            let params = exchange.cancellation(pending.id, &failure);
            let bytes = envelope::encode_notification(notice::CANCELLED, Some(&params));
            if let Some(place) = self.requests.reserve_cancellation() {
                self.spawn_post(bytes, notice::CANCELLED, place);
            }
        }
        Err(failure)
    }

    /// Completes when the link has ended for what is under way too: a request that meets a session
    /// which the server has forgotten is told so itself.
    async fn link_failed(&self) {
        self.requests.closed.cancelled().await;
        if self.requests.is_session_lost() {
            self.requests.tasks.stop_token().cancelled().await;
        }
    }

    async fn send_and_read(
        &self,
        bytes: Bytes,
        exchange: &Exchange<'_>,
        pending: &PendingExchange,
    ) -> Result<Outcome, BackendError> {
        // The bytes of a call are not shared: that would cost all of them something.
        let again = || exchange.encode(pending);
        let response = self.send(Verb::POST, (bytes, again), |headers, era| {
            if *exchange.method == Method::Discover {
                link_headers::add_discover_headers(headers);
            }
            if era == Some(Era::Modern) || *exchange.method == Method::Discover {
                link_headers::add_method_headers(exchange, headers);
            }
            link_headers::add_correlation_headers(exchange, headers);
        });
        let response = response.await?;
        if *exchange.method == Method::Initialize {
            let session = response.headers().get(header::SESSION_ID);
            self.headers().set_session(session.cloned());
        }
        if let Err(failure) = self.check_status(&response) {
            return match content_type(&response) {
                Content::Json if exchange.caller.is_some() && is_unavailable(response.status()) => {
                    Box::pin(self.read_error_body(failure, response, pending)).await
                }
                Content::Events | Content::Json | Content::Other => Err(failure),
            };
        }
        if response.status() == StatusCode::BAD_REQUEST && *exchange.method != Method::Initialize {
            return Box::pin(self.read_bad_request(response, pending)).await;
        }
        match content_type(&response) {
            Content::Events => Box::pin(self.read_events(response, exchange, pending)).await,
            Content::Json => {
                let status = response.status();
                let body = self.read_body(response.into_body()).await?;
                self.find_answer(&body, status, pending).await
            }
            Content::Other => Err(Box::pin(describe_unexpected(response)).await),
        }
    }

    /// Turns statuses that say something about the link, not the request, into failures.
    fn check_status(&self, response: &Response<ResponseBody>) -> Result<(), BackendError> {
        let peer = &self.requests.settings.peer;
        if let Err(failure) = peer.note_response(response) {
            if peer.is_in_loop() {
                self.requests.close(failure.to_string());
            }
            return Err(failure);
        }
        let status = response.status();
        if let Some(refused) = BackendError::from_auth_status(status, response.headers()) {
            return Err(refused);
        }
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE if self.headers().has_session() => {
                self.requests.close_session_lost();
                Err(BackendError::SessionGone)
            }
            _ if is_unavailable(status) => Err(BackendError::Http {
                status,
                body: String::new(),
                retry_after: retry_after(response.headers()),
            }),
            _ => Ok(()),
        }
    }

    /// Whether an answer without a message denies our session, which is then forgotten. Some servers
    /// answer 400 in a session that they do not know, where the specification has 404.
    fn clears_denied_session(&self, status: StatusCode, body: &[u8]) -> bool {
        let is_denied = status == StatusCode::BAD_REQUEST
            && self.headers().has_session()
            && denies_session(body);
        if is_denied {
            self.requests.close_session_lost();
        }
        is_denied
    }

    /// A 400 may answer the request, or the whole session.
    async fn read_bad_request(
        &self,
        response: Response<ResponseBody>,
        pending: &PendingExchange,
    ) -> Result<Outcome, BackendError> {
        let body = self.read_body(response.into_body()).await?;
        if !self.body_answers(&body, pending).await
            && self.clears_denied_session(StatusCode::BAD_REQUEST, &body)
        {
            return Err(BackendError::SessionGone);
        }
        self.find_answer(&body, StatusCode::BAD_REQUEST, pending)
            .await
    }

    /// Beneath a status that says the server is out of order, it may have answered the call all the same,
    /// by its id; else that is the `failure`.
    async fn read_error_body(
        &self,
        failure: BackendError,
        response: Response<ResponseBody>,
        pending: &PendingExchange,
    ) -> Result<Outcome, BackendError> {
        let status = response.status();
        match self.read_body(response.into_body()).await {
            Ok(body) if self.body_answers(&body, pending).await => {
                self.find_answer(&body, status, pending).await
            }
            Ok(_) | Err(_) => Err(failure),
        }
    }

    /// Whether a body holds an answer to the exchange by its own id.
    async fn body_answers(&self, body: &Bytes, pending: &PendingExchange) -> bool {
        let mut is_named = false;
        each_message(&self.requests, body, |_, parsed| {
            if let Ok(Message::Response(found)) = parsed {
                is_named |= found.id.as_ref().and_then(Id::as_number) == Some(pending.id);
            }
        })
        .await;
        is_named
    }

    async fn find_answer(
        &self,
        body: &Bytes,
        status: StatusCode,
        pending: &PendingExchange,
    ) -> Result<Outcome, BackendError> {
        let Payload { answer, malformed } = self.handle_payload(body, status, pending).await;
        answer.unwrap_or_else(|| {
            let mut what = "the response body has no response to this request".to_owned();
            if let Some(malformed) = malformed {
                what = format!("{what}: {malformed}{}", describe_body(body));
            }
            Err(not_a_message_error(status, (what, None), body))
        })
    }

    /// Takes what a body or an event of an exchange holds.
    async fn handle_payload(
        &self,
        bytes: &Bytes,
        status: StatusCode,
        pending: &PendingExchange,
    ) -> Payload {
        let mut answer = None;
        let mut malformed = None;
        each_message(&self.requests, bytes, |_, parsed| match parsed {
            Ok(Message::Response(found))
                if answers_exchange(found.id.as_ref(), pending, status) =>
            {
                // Before the server says more on other streams.
                self.requests.note_outcome(pending.id, &found.outcome);
                answer = Some(Ok(found.outcome));
            }
            Ok(message) => self.deliver(message, pending.id),
            Err(unread) if status.is_success() && unread.answers(pending.id) => {
                let why = format!("{}{}", unread.malformed, describe_body(bytes));
                answer = Some(Err(BackendError::invalid_response(why)));
            }
            Err(unread) => malformed = Some(unread.malformed),
        })
        .await;
        Payload { answer, malformed }
    }

    /// Posts a notification or an answer. It ends soon after the link does.
    async fn post_in_time(&self, bytes: Bytes, method: &str) -> Result<(), BackendError> {
        let ended = async {
            self.requests.closed.cancelled().await;
            tokio::time::sleep(POST_GRACE).await;
        };
        tokio::select! {
            biased;
            posted = timeout(POST_TIMEOUT, self.send_post(bytes, method)) => {
                posted.unwrap_or(Err(BackendError::Timeout { after: POST_TIMEOUT, key: None }))
            }
            () = ended => Err(self.requests.lost_error()),
        }
    }

    async fn send_post(&self, bytes: Bytes, method: &str) -> Result<(), BackendError> {
        // It is never closed.
        let _place = self.posts.acquire().await;
        let again = || bytes.clone();
        let response = self.send(Verb::POST, (bytes.clone(), again), |headers, era| {
            if era == Some(Era::Modern)
                && let Ok(value) = HeaderValue::from_str(method)
            {
                headers.insert(header::METHOD, value);
            }
        });
        let response = response.await?;
        self.check_status(&response)?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        Err(self.unexpected_response(response).await)
    }

    /// What an answer without a message says.
    async fn unexpected_response(&self, response: Response<ResponseBody>) -> BackendError {
        let failure = describe_unexpected(response).await;
        if let BackendError::Http { status, body, .. } = &failure
            && self.clears_denied_session(*status, body.as_bytes())
        {
            return BackendError::SessionGone;
        }
        failure
    }

    /// Sends a request with the access token of the moment, and once more with the next one.
    async fn send(
        &self,
        verb: Verb,
        (body, again): (Bytes, impl Fn() -> Bytes + Send + Sync),
        add: impl Fn(&mut HeaderMap, Option<Era>) + Send + Sync,
    ) -> Result<Response<ResponseBody>, BackendError> {
        let Some(credential) = &self.credential else {
            return self.send_redirected(verb, (body, again), add).await;
        };
        let (add, body) = (&add, &body);
        let send = |authorization: Option<HeaderValue>| {
            let add = move |headers: &mut HeaderMap, era| {
                add(headers, era);
                if let Some(authorization) = &authorization {
                    headers.insert(AUTHORIZATION, authorization.clone());
                }
            };
            let again = || body.clone();
            self.send_redirected(verb.clone(), (body.clone(), again), add)
        };
        let sent = Box::pin(credential.send(send)).await;
        if let Err(BackendError::SessionGone) = &sent {
            // Before anybody asks for another connection.
            self.requests.close_session_lost();
        }
        sent
    }

    /// Sends a request, and `again` where it is redirected within the origin.
    async fn send_redirected(
        &self,
        verb: Verb,
        (body, again): (Bytes, impl Fn() -> Bytes + Send + Sync),
        add: impl Fn(&mut HeaderMap, Option<Era>) + Send + Sync,
    ) -> Result<Response<ResponseBody>, BackendError> {
        let request = self.request(&verb, body, &add);
        let response = self.transport.send(request).await?;
        if !response.status().is_redirection() {
            return Ok(response);
        }
        Box::pin(self.follow_redirects(response, (verb, again), &add)).await
    }

    async fn follow_redirects(
        &self,
        mut response: Response<ResponseBody>,
        (verb, again): (Verb, impl Fn() -> Bytes + Send + Sync),
        add: &(impl Fn(&mut HeaderMap, Option<Era>) + Send + Sync),
    ) -> Result<Response<ResponseBody>, BackendError> {
        let mut url = self.url.clone();
        for _ in 0..REDIRECTS_MAX {
            url = url.redirect(&verb, &response)?;
            let mut request = self.request(&verb, again(), add);
            *request.uri_mut() = self.transport.target_of(&url.to_uri());
            response = self.transport.send(request).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
        }
        Err(url.too_many_redirects(&response))
    }

    /// In a box: futures hold what they are given several times over.
    fn request(
        &self,
        verb: &Verb,
        body: Bytes,
        add: &impl Fn(&mut HeaderMap, Option<Era>),
    ) -> Box<HttpRequest<Full<Bytes>>> {
        let (headers, era) = self.headers().for_request(verb, body.len());
        let mut request = Box::new(HttpRequest::new(Full::new(body)));
        request.uri_mut().clone_from(self.transport.target());
        *request.headers_mut() = headers;
        add(request.headers_mut(), era);
        request.method_mut().clone_from(verb);
        request
    }

    async fn read_body(&self, mut body: ResponseBody) -> Result<Bytes, BackendError> {
        let limit = self.requests.settings.response_bytes_max;
        let room = self.requests.settings.byte_budget.reserve_answer();
        let body = crate::body::read_to_end(&mut body, limit, room).await;
        body.map_err(|unread| match unread {
            BodyError::OutOfMemory(_) => BackendError::NoMemory,
            BodyError::TooLarge { limit } => BackendError::ResponseTooLarge { limit },
            BodyError::Connection(error @ ResponseBodyError::Encoding { .. }) => {
                BackendError::protocol_violation(error.to_string())
            }
            BodyError::Connection(ResponseBodyError::Connection(error)) => BackendError::Lost {
                reason: format!("the response was incomplete: {error}"),
            },
        })
    }

    fn deliver(&self, message: Message, origin: u64) {
        if let Some(link) = self.link() {
            link.handle_message(message, Some(origin));
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.link.get().and_then(Weak::upgrade)
    }

    fn headers(&self) -> MutexGuard<'_, LinkHeaders> {
        lock(&self.headers)
    }
}

/// What a body or an event holds.
struct Payload {
    /// The answer, or that it cannot be read.
    answer: Option<Result<Outcome, BackendError>>,
    /// Why a part of it is no message.
    malformed: Option<Malformed>,
}

#[derive(Debug, Eq, PartialEq)]
enum Content {
    Events,
    Json,
    Other,
}

fn content_type<B>(response: &Response<B>) -> Content {
    let value = response.headers().get(CONTENT_TYPE);
    let value = value.map_or(&b""[..], HeaderValue::as_bytes);
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    let is = |name: &[u8]| value[..end].trim_ascii().eq_ignore_ascii_case(name);
    if is(b"application/json") {
        Content::Json
    } else if is(b"text/event-stream") && response.status().is_success() {
        Content::Events
    } else {
        Content::Other
    }
}

/// Whether a status says that the server, or what stands before it, is out of order for the moment.
fn is_unavailable(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Whether an answer is the one to our exchange; errors may come without a legible id.
fn answers_exchange(id: Option<&Id>, pending: &PendingExchange, status: StatusCode) -> bool {
    match id {
        Some(id) => id.as_number() == Some(pending.id),
        None => !status.is_success(),
    }
}

/// Whether the body of a 400 that answers no request says that the session is not known. There is no
/// code for that; these are the words of SDKs and of servers that follow them.
pub(in crate::backend) fn denies_session(body: &[u8]) -> bool {
    let start = &body[..body.len().min(ERROR_BODY_BYTES)];
    let words = String::from_utf8_lossy(start).to_ascii_lowercase();
    let has = |any: &[&str]| any.iter().any(|phrase| words.contains(phrase));
    // Servers have sessions of other kinds too: a word alone says nothing.
    let denials = [
        "invalid session",
        "no valid session",
        "no transport found",
        "unknown session",
        "session not found",
        "session expired",
        "session has expired",
        "session terminated",
        "server not initialized",
    ];
    let faults = [
        "invalid",
        "unknown",
        "not found",
        "expired",
        "not recognized",
    ];
    has(&denials) || has(&["session id", "session-id"]) && has(&faults)
}

/// What a body that is no JSON seems to be, as the end of a sentence.
fn describe_body(body: &[u8]) -> &'static str {
    let is = |starts: &[&[u8]]| starts.iter().any(|start| body.starts_with(start));
    if is(&[b"data:", b"event:", b"id:", b":"]) {
        "; it looks like `text/event-stream`, which its content type does not say"
    } else if is(&[b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]) {
        "; it looks compressed, which its `Content-Encoding` does not say"
    } else if is(&[b"<"]) {
        "; it looks like HTML"
    } else {
        ""
    }
}

/// What an answer says that is none: that of a success is `what`.
fn not_a_message_error(
    status: StatusCode,
    (what, retry_after): (String, Option<Duration>),
    body: &[u8],
) -> BackendError {
    let quoted = String::from_utf8_lossy(&body[..body.len().min(ERROR_BODY_BYTES)]);
    // Nobody can read what is no text.
    let is_text = !quoted.contains(|c: char| c.is_control() && !c.is_whitespace());
    let quoted = if is_text {
        quoted.into_owned()
    } else {
        String::new()
    };
    if status.is_success() {
        return BackendError::ProtocolViolation { what, quoted };
    }
    BackendError::Http {
        status,
        body: quoted,
        retry_after,
    }
}

/// The longest time until a server lets us come back that is told.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// When to come back, where these headers say it in seconds; of dates no server of this kind was seen.
pub(in crate::backend) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse();
    seconds
        .ok()
        .map(|it| Duration::from_secs(it).min(RETRY_AFTER_MAX))
}

/// What type of content these headers name, as far as it may be shown.
pub(in crate::backend) fn content_type_label(headers: &HeaderMap) -> Option<&str> {
    let named = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let named = named.split(';').next().unwrap_or_default().trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '+' | '-');
    let is_shown = !named.is_empty() && named.len() <= 64 && named.chars().all(is_plain);
    is_shown.then_some(named)
}

/// What an answer without a message says.
pub(in crate::backend) async fn describe_unexpected<B>(response: Response<B>) -> BackendError
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    let allow = response.headers().get(ALLOW).cloned();
    let retry_after = retry_after(response.headers());
    let what = match content_type_label(response.headers()) {
        Some(named) => format!("unexpected content type `{named}`"),
        None => "the response is not a message and has no content type".to_owned(),
    };
    let body = Limited::new(response.into_body(), ERROR_BODY_BYTES)
        .collect()
        .await;
    let body = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let failure = not_a_message_error(status, (what, retry_after), &body);
    // What a server writes may quote what it was sent, which is for no log.
    let bytes = body.len();
    tracing::debug!(%status, bytes, ?allow, "no response to a message");
    failure
}
