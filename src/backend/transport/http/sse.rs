//! Servers behind HTTP+SSE of 2024-11-05: a stream in, POSTs to the endpoint it names out.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use tokio::{sync::mpsc, task::yield_now, time::timeout};

use super::{
    content_encoding::{self, ResponseBodyError},
    content_type_label, denies_session, describe_unexpected,
    http_client::{self, HttpClient},
    redirect::{BadReference, REDIRECTS_MAX, RequestUrl},
    retry_after,
    server_events::{ServerEvents, fail_unframed},
    transport::ResponseBody,
};
use crate::{
    backend::{
        BackendError,
        credential::CredentialSource,
        link::{Link, outbound::QueuedMessage, pending::PendingRequests},
    },
    config::Remote,
    lock::lock,
    mcp::{Message, sse},
};

/// Messages that may wait for their acknowledgement at a time.
const POSTS_MAX: usize = 64;
/// How long a message goes unacknowledged before the next one is sent.
const ACK_PIPELINE_DELAY: Duration = Duration::from_millis(50);
/// How long the server may take to acknowledge a message. Some do so only with the answer.
const ACK_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the body of an acknowledgement may take.
const ACK_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes read of the body of an acknowledgement.
const ACK_BYTES_MAX: usize = 64 * 1024;
/// How long the server may take to name its endpoint.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens the stream, waits for the endpoint, and starts reader and writer.
pub(crate) async fn open(
    remote: &Remote,
    requests: Arc<PendingRequests>,
    connect: Duration,
    credential: Option<CredentialSource>,
) -> Result<Arc<Link>, BackendError> {
    let client = http_client::new(remote, connect)?;
    let peer = &requests.settings.peer;
    let headers = http_client::request_headers(remote, &peer.own_id)?;
    let (url, answer) = get_stream(&client, remote, (&headers, credential.as_ref())).await?;
    peer.note_response(&answer)?;
    let mut stream = SseStream {
        body: event_body(answer)?,
        events: ServerEvents::for_connection(&requests.settings),
        fault: None,
    };
    let named = timeout(ENDPOINT_TIMEOUT, stream.endpoint());
    let named = named.await.ok().flatten().ok_or_else(|| {
        BackendError::protocol_violation("the event stream did not start with an `endpoint` event")
    })?;
    let endpoint = resolve(&url, &named)?;
    let (link, queue) = Link::new_queued(&requests);
    let tasks = requests.tasks.clone();
    tasks.spawn("sse reader", read(stream, Arc::clone(&link)));
    let context = SsePoster {
        client,
        endpoint,
        headers,
        credential,
        requests,
    };
    tasks.spawn("sse writer", write(context, queue));
    Ok(link)
}

struct SseStream {
    body: ResponseBody,
    events: ServerEvents,
    /// Why the stream ended, where the server sent what it may not.
    fault: Option<String>,
}

impl SseStream {
    async fn next(&mut self) -> Option<sse::SseEvent> {
        loop {
            if let Some(event) = self.events.next().await {
                return Some(event);
            }
            // A server that never stops talking leaves something to others.
            yield_now().await;
            let frame = match self.body.frame().await? {
                Ok(frame) => frame,
                Err(ResponseBodyError::Connection(_)) => return None,
                Err(encoded @ ResponseBodyError::Encoding { .. }) => {
                    self.fault = Some(encoded.to_string());
                    return None;
                }
            };
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            self.fault = self.events.push(&chunk).err().map(|it| it.to_string());
            if self.fault.is_some() {
                return None;
            }
        }
    }

    async fn endpoint(&mut self) -> Option<String> {
        loop {
            let event = self.next().await?;
            if event.name == "endpoint" {
                return String::from_utf8(event.data.to_vec()).ok();
            }
        }
    }
}

/// Asks for the stream, where redirects lead to; with the URL that it has in the end.
async fn get_stream(
    client: &HttpClient,
    remote: &Remote,
    (headers, credential): (&HeaderMap, Option<&CredentialSource>),
) -> Result<(RequestUrl, Response<ResponseBody>), BackendError> {
    let url = RequestUrl::new(&remote.url, !remote.is_from_variable)?;
    let request = || {
        let mut request = HttpRequest::new(Full::new(Bytes::new()));
        request.headers_mut().clone_from(headers);
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        request
    };
    send_authorized(client, (url, credential), request).await
}

/// Sends what `request` makes to the URL with the access token of the moment, and once more with the next one; see
/// [`send_redirected`].
async fn send_authorized(
    client: &HttpClient,
    (url, credential): (RequestUrl, Option<&CredentialSource>),
    request: impl Fn() -> HttpRequest<Full<Bytes>>,
) -> Result<(RequestUrl, Response<ResponseBody>), BackendError> {
    let Some(credential) = credential else {
        return send_redirected(client, url, request).await;
    };
    let reached = Mutex::new(url.clone());
    let (request, at) = (&request, &reached);
    let response = credential.send(|authorization| {
        let url = url.clone();
        async move {
            let sent = send_redirected(client, url, || {
                let mut request = request();
                if let Some(authorization) = &authorization {
                    let headers = request.headers_mut();
                    headers.insert(AUTHORIZATION, authorization.clone());
                }
                request
            });
            let (url, response) = sent.await?;
            *lock(at) = url;
            Ok(response)
        }
    });
    let response = response.await?;
    Ok((lock(&reached).clone(), response))
}

/// Sends what `request` makes to `url`, and where redirects lead to; with the URL that it has in the end.
async fn send_redirected(
    client: &HttpClient,
    mut url: RequestUrl,
    request: impl Fn() -> HttpRequest<Full<Bytes>>,
) -> Result<(RequestUrl, Response<ResponseBody>), BackendError> {
    let mut redirects = 0;
    loop {
        let mut request = request();
        *request.uri_mut() = url.to_uri();
        let verb = request.method().clone();
        let response = client.request(request).await;
        let response = response.map_err(|error| BackendError::Connect {
            reason: http_client::root_cause(&error),
        })?;
        if !response.status().is_redirection() {
            let response = response.map(ResponseBody::Secure);
            return Ok((url, content_encoding::decode(response)));
        }
        if redirects == REDIRECTS_MAX {
            return Err(url.too_many_redirects(&response));
        }
        url = url.redirect(&verb, &response)?;
        redirects += 1;
    }
}

/// The event stream that an answer to our GET is.
fn event_body(response: Response<ResponseBody>) -> Result<ResponseBody, BackendError> {
    let status = response.status();
    if let Some(refused) = BackendError::from_auth_status(status, response.headers()) {
        return Err(refused);
    }
    if !status.is_success() {
        return Err(BackendError::Http {
            status,
            body: String::new(),
            retry_after: retry_after(response.headers()),
        });
    }
    match other_content_type(response.headers()) {
        Some(kind) => Err(BackendError::protocol_violation(format!(
            "expected an event stream but got `{kind}`; is this the URL of an MCP server?"
        ))),
        None => Ok(response.into_body()),
    }
}

/// What an answer with these headers is, where it says so and is no event stream.
fn other_content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?;
    let kind = content_type_label(headers).unwrap_or("something");
    (!kind.eq_ignore_ascii_case("text/event-stream")).then_some(kind)
}

/// The endpoint relative to the stream's URL. Another origin is refused: it would receive our
/// credentials.
fn resolve(base: &RequestUrl, named: &str) -> Result<RequestUrl, BackendError> {
    base.join(named.trim()).map_err(|bad| {
        let why = match bad {
            BadReference::NoUrl => "is not a URL",
            BadReference::OtherOrigin(_) => "has a different origin",
        };
        BackendError::ProtocolViolation {
            what: format!("its endpoint {why}"),
            quoted: named.to_owned(),
        }
    })
}

async fn read(mut stream: SseStream, link: Arc<Link>) {
    let closed = link.requests.closed.clone();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = closed.cancelled() => return,
        };
        let Some(event) = event else {
            let fault = stream.fault;
            let reason = fault.unwrap_or_else(|| "the server closed its event stream".to_owned());
            return link.requests.close(reason);
        };
        if event.is_unframed {
            fail_unframed(&link.requests, &event.data);
            continue;
        }
        link.receive(&event.data, "ignored an unexpected event")
            .await;
    }
}

/// Where messages for the server go.
struct SsePoster {
    client: HttpClient,
    endpoint: RequestUrl,
    headers: HeaderMap,
    credential: Option<CredentialSource>,
    requests: Arc<PendingRequests>,
}

async fn write(context: SsePoster, queue: mpsc::Receiver<QueuedMessage>) {
    tokio::select! {
        biased;
        ended = context.send_all(queue) => if let Err(reason) = ended {
            context.requests.close(reason);
        },
        () = context.requests.closed.cancelled() => {}
    }
}

impl SsePoster {
    /// Posts what the queue holds, in order as long as the server acknowledges soon. One that
    /// acknowledges a call only with its end holds the next message up by [`ACK_PIPELINE_DELAY`].
    async fn send_all(&self, mut queue: mpsc::Receiver<QueuedMessage>) -> Result<(), String> {
        let mut slow = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                Some(posted) = slow.next() => {
                    posted?;
                    continue;
                }
                message = queue.recv(), if slow.len() < POSTS_MAX => message,
            };
            let Some(message) = message else {
                return Ok(());
            };
            let Some(message) = message.into_bytes_if_wanted() else {
                continue;
            };
            let mut post = Box::pin(self.post(message));
            match timeout(ACK_PIPELINE_DELAY, &mut post).await {
                Ok(posted) => posted?,
                Err(_) => slow.push(post),
            }
        }
    }

    async fn post(&self, message: Bytes) -> Result<(), String> {
        let answered = timeout(ACK_TIMEOUT, self.send(&message)).await;
        let response = answered
            .map_err(|_| format!("a message was not acknowledged within {ACK_TIMEOUT:?}"))??;
        let heard = self.requests.settings.peer.note_response(&response);
        heard.map_err(|failure| failure.to_string())?;
        if !response.status().is_success() {
            return self.handle_refusal(&message, response).await;
        }
        // The acknowledgement is read so that the connection can be used again; one that is long
        // or slow costs the connection.
        let body = Limited::new(response.into_body(), ACK_BYTES_MAX);
        drop(timeout(ACK_BODY_TIMEOUT, body.collect()).await);
        Ok(())
    }

    /// Posts a message, where redirects lead to.
    async fn send(&self, message: &Bytes) -> Result<Response<ResponseBody>, String> {
        let to = (self.endpoint.clone(), self.credential.as_ref());
        let sent = send_authorized(&self.client, to, || {
            let mut request = HttpRequest::new(Full::new(message.clone()));
            *request.method_mut() = Verb::POST;
            request.headers_mut().clone_from(&self.headers);
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request
        });
        match sent.await {
            Ok((_, response)) => Ok(response),
            Err(BackendError::Connect { reason }) => Err(reason),
            Err(failure) => Err(failure.to_string()),
        }
    }

    /// A refusal concerns its message alone, as over streamable HTTP, also one of our credential. A
    /// server that denies the session, or is out of order, ends the link: that is the reason.
    async fn handle_refusal(
        &self,
        message: &Bytes,
        response: Response<ResponseBody>,
    ) -> Result<(), String> {
        let status = response.status();
        let over = || Err(format!("the server responded with {status} to a message"));
        let is_gone = matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE);
        if !status.is_client_error() || is_gone {
            return over();
        }
        let failure = refusal_error(response).await;
        if status == StatusCode::BAD_REQUEST
            && let BackendError::Http { body, .. } = &failure
            && denies_session(body.as_bytes())
        {
            return over();
        }
        let id = match Message::parse(message) {
            Ok(Message::Request(request)) => request.id.as_number(),
            Ok(Message::Notification(_) | Message::Response(_)) | Err(_) => None,
        };
        let server = &self.requests.settings.server;
        if let Some(id) = id {
            self.requests.fail(id, failure);
        } else {
            tracing::debug!(%server, %failure, "cannot deliver a message");
        }
        Ok(())
    }
}

/// Why a server took no message.
async fn refusal_error(response: Response<ResponseBody>) -> BackendError {
    let status = response.status();
    if let Some(refused) = BackendError::from_auth_status(status, response.headers()) {
        return refused;
    }
    let stray = timeout(ACK_BODY_TIMEOUT, describe_unexpected(response)).await;
    stray.unwrap_or_else(|_| BackendError::Http {
        status,
        body: String::new(),
        retry_after: None,
    })
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{backend::link::pending::LinkSettings, task::Tasks};

    /// Its connections open, and nobody ever reads what is posted.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_acknowledges_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint: Uri = format!("http://{}/messages", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let outlet = SsePoster {
            client: http_client::new(&Remote::example(&endpoint), ACK_TIMEOUT * 10).unwrap(),
            endpoint: RequestUrl::new(&endpoint, true).unwrap(),
            headers: HeaderMap::new(),
            credential: None,
            requests: PendingRequests::new(LinkSettings::example(), None, Tasks::new()),
        };
        let (send, queue) = mpsc::channel(1);
        send.send(Bytes::from_static(b"{}").into()).await.unwrap();
        let reason = outlet.send_all(queue).await.unwrap_err();
        assert_eq!(reason, "a message was not acknowledged within 600s");
    }

    #[test]
    fn endpoints_stay_on_their_origin() {
        let check = |named: &str, expect: Option<&str>| {
            let base: Uri = "http://host:1/a/sse?x=1".parse().unwrap();
            let base = RequestUrl::new(&base, true).unwrap();
            let found = resolve(&base, named).ok();
            let found = found.map(|url| url.to_uri().to_string());
            assert_eq!(found.as_deref(), expect, "{named}");
        };
        check(
            "/messages/?session_id=1",
            Some("http://host:1/messages/?session_id=1"),
        );
        check("http://host:1/m?s=2", Some("http://host:1/m?s=2"));
        check("messages?s=1", Some("http://host:1/a/messages?s=1"));
        check("?messages", Some("http://host:1/a/sse?messages"));
        check("../m", Some("http://host:1/m"));
        check("//host:1/m", Some("http://host:1/m"));
        check("HTTP://HOST:1/m", Some("http://host:1/m"));
        check("//other:1/m", None);
        check("http://user@other/m", None);
        check("http://other:1/m", None);
        check("https://host:1/m", None);
    }
}
