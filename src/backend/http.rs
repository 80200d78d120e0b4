//! Servers behind streamable HTTP, of both eras: one POST a message, answers as JSON or as events.

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
use tokio::{sync::oneshot, time::timeout};

use super::{
    Failure,
    client::{self, HttpClient},
    link::{Exchange, Link},
    mux::{Mux, Pending},
};
use crate::{
    config::Remote,
    mcp::{
        Era, Id, Message, Method, Outcome, Raw, Revision, envelope, header, method::notice, sse,
    },
    session::Event,
    task::Tasks,
};

/// How long the server may take to close a session that we end.
const DELETE_PATIENCE: Duration = Duration::from_secs(2);
/// Wait before a broken stream is resumed, when the server named none.
const RESUME_AFTER: Duration = Duration::from_millis(500);
/// Shortest such wait that a server may name.
const RESUME_AFTER_MIN: Duration = Duration::from_millis(10);
/// Longest such wait that a server may name.
const RESUME_AFTER_MAX: Duration = Duration::from_secs(60);
/// Attempts to resume one broken stream without any event in between.
const RESUMES_MAX: u32 = 5;
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

    /// Reads events until the answer; resumes where a legacy server lets go of the stream.
    async fn read_events(
        &self,
        response: Response<Incoming>,
        exchange: &Exchange,
        pending: &Pending,
    ) -> Result<Outcome, Failure> {
        let mut place = Place::default();
        let mut body = Some(response.into_body());
        loop {
            if let Some(outcome) = self.follow(body.take(), &mut place, pending).await? {
                return Ok(outcome);
            }
            let legacy = self
                .talk()
                .revision
                .is_none_or(|revision| revision.era() == Era::Legacy);
            let Some(last) = place.last_id.clone().filter(|_| legacy) else {
                return Err(Failure::Lost {
                    reason: "it closed the stream of the call".to_owned(),
                });
            };
            if place.idle_ends > RESUMES_MAX {
                return Err(Failure::Lost {
                    reason: "the stream of the call keeps breaking".to_owned(),
                });
            }
            if let Some(caller) = &exchange.caller {
                drop(caller.events.try_send(Event::Pause {
                    retry_ms: place.retry_ms,
                }));
            }
            tokio::time::sleep(place.delay()).await;
            body = match self.resume(Some(&last)).await {
                Opening::Stream(body) => Some(body),
                Opening::Failed | Opening::NoneEver | Opening::NotFound => None,
            };
            place.idle_ends += 1;
        }
    }

    /// Follows one stream; the answer, or `None` when the stream ended without it.
    async fn follow(
        &self,
        body: Option<Incoming>,
        place: &mut Place,
        pending: &Pending,
    ) -> Result<Option<Outcome>, Failure> {
        let Some(mut body) = body else {
            return Ok(None);
        };
        let mut reader = sse::Reader::new(self.mux.settings.response_bytes_max);
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Ok(None) };
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            let limit = self.mux.settings.response_bytes_max;
            reader
                .push(&chunk)
                .map_err(|_| Failure::ResponseTooLarge { limit })?;
            while let Some(event) = reader.next_event() {
                place.note(&event);
                match Message::parse(&event.data) {
                    Ok(Message::Response(found))
                        if is_ours(found.id.as_ref(), pending, StatusCode::OK) =>
                    {
                        return Ok(Some(found.outcome));
                    }
                    Ok(message) => self.hand_in(message, pending.id),
                    Err(_) => {}
                }
            }
        }
        Ok(None)
    }

    /// Opens a stream: the rest of the one whose event is `last`, or the standing one.
    async fn resume(&self, last: Option<&str>) -> Opening {
        let request = self.request(Verb::GET, Bytes::new(), |headers, _| {
            if let Some(Ok(last)) = last.map(HeaderValue::from_str) {
                headers.insert(header::LAST_EVENT_ID, last);
            }
        });
        match self.send(request).await {
            Ok(response) => match (content_type(&response), response.status()) {
                (Content::Events, _) => Opening::Stream(response.into_body()),
                (_, StatusCode::METHOD_NOT_ALLOWED) => Opening::NoneEver,
                (_, StatusCode::NOT_FOUND) => Opening::NotFound,
                (Content::Json | Content::Other, _) => Opening::Failed,
            },
            Err(_) => Opening::Failed,
        }
    }

    /// Follows the stream for messages that belong to no call, for as long as the link lives. A
    /// server that has none answers 405, which is fine. `opened` is told of the first answer.
    pub(crate) async fn listen(self: Arc<Self>, opened: oneshot::Sender<()>) {
        tokio::select! {
            biased;
            () = self.mux.closed.cancelled() => {}
            () = self.stand(opened) => {}
        }
    }

    async fn stand(&self, opened: oneshot::Sender<()>) {
        let mut place = Place::default();
        let mut opened = Some(opened);
        let mut was_open = false;
        let mut failures = 0;
        loop {
            let opening = self.resume(place.last_id.as_deref()).await;
            drop(opened.take());
            match opening {
                Opening::Stream(body) => {
                    was_open = true;
                    failures = 0;
                    self.follow_aside(body, &mut place).await;
                }
                // Where a stream was, only the session can be what is missing.
                Opening::NotFound if was_open && self.talk().session.is_some() => {
                    return self.mux.forget_session();
                }
                Opening::NoneEver | Opening::NotFound => return,
                Opening::Failed => failures += 1,
            }
            tokio::time::sleep(place.delay_after(failures)).await;
        }
    }

    async fn follow_aside(&self, mut body: Incoming, place: &mut Place) {
        let mut reader = sse::Reader::new(self.mux.settings.response_bytes_max);
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            if reader.push(&chunk).is_err() {
                return;
            }
            while let Some(event) = reader.next_event() {
                place.note(&event);
                if let (Ok(message), Some(link)) = (Message::parse(&event.data), self.link()) {
                    link.incoming(message, None);
                }
            }
        }
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
        self.client.request(request).await.map_err(|error| {
            let reason = client::explain(&error);
            // Once there is a connection, the server may have acted on what went into it.
            if error.is_connect() {
                Failure::Connect { reason }
            } else {
                Failure::Lost { reason }
            }
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

/// How far a stream of events was read.
#[derive(Debug, Default)]
struct Place {
    last_id: Option<String>,
    retry_ms: Option<u64>,
    idle_ends: u32,
}

impl Place {
    fn note(&mut self, event: &sse::Event) {
        if let Some(id) = &event.id {
            self.last_id = Some(id.clone());
        }
        if event.retry.is_some() {
            self.retry_ms = event.retry;
        }
        self.idle_ends = 0;
    }

    fn delay(&self) -> Duration {
        self.retry_ms
            .map_or(RESUME_AFTER, Duration::from_millis)
            .clamp(RESUME_AFTER_MIN, RESUME_AFTER_MAX)
    }

    /// The wait after so many failures in a row, each of which doubles it.
    fn delay_after(&self, failures: u32) -> Duration {
        let delay = match failures {
            0 => self.delay(),
            _ => self.delay().max(RESUME_AFTER),
        };
        delay
            .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)))
            .min(RESUME_AFTER_MAX)
    }
}

/// What came of opening a stream.
enum Opening {
    /// No answer, or one that says nothing about the next attempt.
    Failed,
    /// The server has no such streams.
    NoneEver,
    /// The server has no such stream, or no such session.
    NotFound,
    Stream(Incoming),
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
        HeaderName::from_static(header::METHOD),
        exchange.method.as_str(),
    );
    let member = exchange.method.name_member();
    let name = member.and_then(|member| exchange.params.as_ref()?.get(member));
    if let Some(name) = name.as_ref().and_then(Raw::as_text) {
        put(HeaderName::from_static(header::NAME), &name);
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::{backend::mux::Settings, config::Auth, names::ServerName};

    /// Its connections open, and nobody ever reads what is posted.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_takes_no_message_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Remote {
            url: format!("http://{}/mcp", listener.local_addr().unwrap())
                .parse()
                .unwrap(),
            headers: indexmap::IndexMap::new(),
            auth: Auth::None,
        };
        let settings = Settings {
            server: ServerName::parse("x").unwrap(),
            request_bytes_max: 1024,
            response_bytes_max: 1024,
            ask_timeout: Duration::from_secs(1),
            roots: None,
        };
        let (signals, _unheard) = tokio::sync::mpsc::channel(1);
        let mux = Mux::new(settings, None, signals, Tasks::new());
        let link = open(&remote, mux, POST_PATIENCE * 10).unwrap();
        let after = POST_PATIENCE;
        let posted = link.notify("notifications/x", None).await;
        assert_eq!(posted, Err(Failure::Timeout { after }));
    }
}
