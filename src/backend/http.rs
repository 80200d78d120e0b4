//! Servers behind streamable HTTP, of both eras: one POST a message, answers as JSON or as events.

mod streams;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method as Verb, Request as HttpRequest, Response,
    StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{
    Failure,
    client::{self, HttpClient},
    link::{Exchange, Link},
    mux::{Mux, Pending},
};
use crate::{
    config::Remote,
    mcp::{Era, Id, Message, Method, Outcome, Raw, Revision, envelope, header, method::notice},
    task::Tasks,
};

/// How long the server may take to close a session that we end.
const DELETE_PATIENCE: Duration = Duration::from_secs(2);
/// How long the server may take to accept a notification or an answer.
const POST_PATIENCE: Duration = Duration::from_secs(30);
/// How long a post under way may still take once the link has ended.
const POST_GRACE: Duration = Duration::from_secs(2);
/// Bytes read of the body of an answer that is no answer.
const ODD_BODY_BYTES: usize = 512;

/// The HTTP side of a link.
#[derive(Debug)]
pub(crate) struct HttpLink {
    client: HttpClient,
    remote: Remote,
    headers: HeaderMap,
    mux: Arc<Mux>,
    link: OnceLock<Weak<Link>>,
    talk: Mutex<Talk>,
}

/// What is settled with the server.
#[derive(Clone, Debug, Default)]
struct Talk {
    revision: Option<Revision>,
    session: Option<HeaderValue>,
}

/// Opens a link to `remote`. Nothing is sent yet.
pub(crate) fn open(
    remote: &Remote,
    mux: Arc<Mux>,
    connect: Duration,
) -> Result<Arc<Link>, Failure> {
    let http = Arc::new(HttpLink {
        client: client::new(&remote.url, connect)?,
        remote: remote.clone(),
        headers: client::headers(remote)?,
        mux: Arc::clone(&mux),
        link: OnceLock::new(),
        talk: Mutex::default(),
    });
    let link = Arc::new(Link::http(mux, Arc::clone(&http)));
    drop(http.link.set(Arc::downgrade(&link)));
    Ok(link)
}

impl HttpLink {
    /// Settles the revision; its headers accompany every later message.
    pub(crate) fn speak(&self, revision: Revision) {
        self.talk().revision = Some(revision);
    }

    /// Forgets revision and session, before a new handshake.
    pub(crate) fn forget(&self) {
        *self.talk() = Talk::default();
    }

    /// Sends a request and reads its answer, whichever form it takes.
    pub(crate) async fn exchange(
        &self,
        bytes: Bytes,
        exchange: &Exchange,
        pending: Pending,
    ) -> Result<Outcome, Failure> {
        let failure = tokio::select! {
            biased;
            outcome = self.converse(bytes, exchange, &pending) => {
                if outcome.is_ok() {
                    pending.answered();
                }
                return outcome;
            }
            () = self.broken() => return Err(self.mux.lost()),
            () = exchange.cancel.cancelled() => Failure::Cancelled,
            after = pending.activity.expired(exchange.limits) => Failure::Timeout { after },
        };
        // In 2026-07-28 the closed stream is the cancellation; before, it takes a message.
        let legacy = self
            .talk()
            .revision
            .is_some_and(|revision| revision.era() == Era::Legacy);
        if legacy && exchange.method != Method::Initialize {
            let params =
                serde_json::json!({ "requestId": pending.id, "reason": failure.to_string() });
            let bytes = envelope::notification(notice::CANCELLED, Some(&Raw::from_value(&params)));
            self.post_aside(bytes, notice::CANCELLED, &self.mux.tasks);
        }
        Err(failure)
    }

    /// Completes when the link has ended for what is under way too: a request that meets a session
    /// which the server has forgotten is told so itself.
    async fn broken(&self) {
        self.mux.closed.cancelled().await;
        if self.mux.is_forgotten() {
            self.mux.tasks.stop_token().cancelled().await;
        }
    }

    async fn converse(
        &self,
        bytes: Bytes,
        exchange: &Exchange,
        pending: &Pending,
    ) -> Result<Outcome, Failure> {
        let request = self.request(Verb::POST, bytes, |headers, talk| {
            name_headers(exchange, talk, headers);
        });
        let response = self.send(request).await?;
        if exchange.method == Method::Initialize {
            self.talk().session = response.headers().get(header::SESSION_ID).cloned();
        }
        self.check(&response)?;
        match content_type(&response) {
            Content::Events => self.read_events(response, exchange, pending).await,
            Content::Json => self.read_json(response, pending).await,
            Content::Other => Err(odd(response).await),
        }
    }

    /// Turns statuses that say something about the link, not the request, into failures.
    fn check(&self, response: &Response<Incoming>) -> Result<(), Failure> {
        let status = response.status();
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(Failure::Unauthorized { status })
            }
            StatusCode::NOT_FOUND if self.talk().session.is_some() => {
                self.mux.forget_session();
                Err(Failure::SessionGone)
            }
            _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::Http {
                    status,
                    body: String::new(),
                })
            }
            _ => Ok(()),
        }
    }

    async fn read_json(
        &self,
        response: Response<Incoming>,
        pending: &Pending,
    ) -> Result<Outcome, Failure> {
        let status = response.status();
        let body = self.body(response).await?;
        if let Some(answer) = only_answer(&body, pending) {
            return Ok(answer);
        }
        let parts = envelope::split_batch(&body).unwrap_or_else(|_| vec![body.clone()]);
        let mut answer = None;
        for part in &parts {
            match Message::parse(part) {
                Ok(Message::Response(found)) if is_ours(found.id.as_ref(), pending, status) => {
                    answer = Some(found.outcome);
                }
                Ok(message) => self.hand_in(message, pending.id),
                Err(_) => {}
            }
        }
        answer.ok_or_else(|| garbled_or_http(status, &body))
    }

    /// Posts a notification or an answer. It ends soon after the link does.
    pub(crate) async fn post(&self, bytes: Bytes, method: &str) -> Result<(), Failure> {
        let ended = async {
            self.mux.closed.cancelled().await;
            tokio::time::sleep(POST_GRACE).await;
        };
        tokio::select! {
            biased;
            posted = timeout(POST_PATIENCE, self.post_whole(bytes, method)) => {
                posted.unwrap_or(Err(Failure::Timeout { after: POST_PATIENCE }))
            }
            () = ended => Err(self.mux.lost()),
        }
    }

    async fn post_whole(&self, bytes: Bytes, method: &str) -> Result<(), Failure> {
        let request = self.request(Verb::POST, bytes, |headers, talk| {
            let modern = talk
                .revision
                .is_some_and(|revision| revision.era() == Era::Modern);
            if modern && let Ok(value) = HeaderValue::from_str(method) {
                headers.insert(header::METHOD, value);
            }
        });
        let response = self.send(request).await?;
        self.check(&response)?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        Err(odd(response).await)
    }

    /// Posts in a task of its own; whether it arrives is only logged.
    pub(crate) fn post_aside(&self, bytes: Bytes, method: &str, tasks: &Tasks) {
        let Some(link) = self.link() else { return };
        let method = method.to_owned();
        tasks.spawn("post", async move {
            let Some(http) = link.as_http() else { return };
            if let Err(failure) = http.post(bytes, &method).await {
                tracing::debug!(server = %http.mux.settings.server, %failure, "a message was not taken");
            }
        });
    }

    /// Ends the session, when there is one.
    pub(crate) async fn goodbye(&self) {
        if self.talk().session.is_none() {
            return;
        }
        let request = self.request(Verb::DELETE, Bytes::new(), |_, _| {});
        drop(timeout(DELETE_PATIENCE, self.send(request)).await);
    }

    fn request(
        &self,
        verb: Verb,
        body: Bytes,
        add: impl FnOnce(&mut HeaderMap, &Talk),
    ) -> HttpRequest<Full<Bytes>> {
        let talk = self.talk().clone();
        let mut request = HttpRequest::new(Full::new(body));
        *request.uri_mut() = self.remote.url.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        if verb == Verb::POST {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(
                ACCEPT,
                HeaderValue::from_static("application/json, text/event-stream"),
            );
        } else if verb == Verb::GET {
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        }
        if let Some(revision) = talk.revision {
            headers.insert(
                header::PROTOCOL_VERSION,
                HeaderValue::from_static(revision.as_str()),
            );
        }
        if let Some(session) = &talk.session {
            headers.insert(header::SESSION_ID, session.clone());
        }
        add(headers, &talk);
        *request.method_mut() = verb;
        request
    }

    async fn send(&self, request: HttpRequest<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        self.client
            .request(request)
            .await
            .map_err(|error| Failure::Connect {
                reason: client::explain(&error),
            })
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, Failure> {
        let limit = self.mux.settings.response_bytes_max;
        let body = Limited::new(response.into_body(), limit).collect().await;
        body.map(http_body_util::Collected::to_bytes)
            .map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    Failure::ResponseTooLarge { limit }
                } else {
                    Failure::Lost {
                        reason: format!("its answer broke off: {error}"),
                    }
                }
            })
    }

    fn hand_in(&self, message: Message, origin: u64) {
        if let Some(link) = self.link() {
            link.incoming(message, Some(origin));
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        self.link.get().and_then(Weak::upgrade)
    }

    fn talk(&self) -> MutexGuard<'_, Talk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Content {
    Events,
    Json,
    Other,
}

fn content_type(response: &Response<Incoming>) -> Content {
    let value = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    match value.map(|value| value.split(';').next().unwrap_or_default().trim()) {
        Some("application/json") => Content::Json,
        Some("text/event-stream") if response.status().is_success() => Content::Events,
        Some(_) | None => Content::Other,
    }
}

/// The answer, when the body is that and nothing else, as it nearly always is.
fn only_answer(body: &Bytes, pending: &Pending) -> Option<Outcome> {
    match Message::parse(body) {
        Ok(Message::Response(found)) if is_ours(found.id.as_ref(), pending, StatusCode::OK) => {
            Some(found.outcome)
        }
        Ok(_) | Err(_) => None,
    }
}

/// Whether an answer is the one to our exchange; errors may come without a legible id.
fn is_ours(id: Option<&Id>, pending: &Pending, status: StatusCode) -> bool {
    match id {
        Some(id) => id.as_number() == Some(pending.id),
        None => !status.is_success(),
    }
}

fn name_headers(exchange: &Exchange, talk: &Talk, headers: &mut HeaderMap) {
    if talk
        .revision
        .is_none_or(|revision| revision.era() == Era::Legacy)
    {
        return;
    }
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(&header::encode(value)) {
            headers.insert(name, value);
        }
    };
    put(
        header::METHOD,
        exchange.method.as_str(),
    );
    let member = exchange.method.name_member();
    let name = member.and_then(|member| exchange.params.as_ref()?.get(member));
    if let Some(name) = name.as_ref().and_then(Raw::as_text) {
        put(header::NAME, &name);
    }
    for (name, value) in &exchange.header_params {
        let name = format!("{}{name}", header::PARAM_PREFIX).to_ascii_lowercase();
        if let Ok(name) = HeaderName::try_from(name) {
            put(name, value);
        }
    }
}

fn garbled_or_http(status: StatusCode, body: &[u8]) -> Failure {
    let shown = String::from_utf8_lossy(&body[..body.len().min(ODD_BODY_BYTES)]).into_owned();
    if status.is_success() {
        return Failure::Garbled {
            what: format!("the body of its answer is no answer: {shown}"),
        };
    }
    Failure::Http {
        status,
        body: shown,
    }
}

async fn odd(response: Response<Incoming>) -> Failure {
    let status = response.status();
    let allow = response.headers().get(ALLOW).cloned();
    let body = Limited::new(response.into_body(), ODD_BODY_BYTES)
        .collect()
        .await;
    let body = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let failure = garbled_or_http(status, &body);
    tracing::debug!(%failure, ?allow, "no answer to a message");
    failure
}
