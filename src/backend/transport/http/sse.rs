//! Servers behind HTTP+SSE of 2024-11-05: a stream in, POSTs to the endpoint it names out.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, Response, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full, Limited};
use tokio::{sync::mpsc, task::yield_now, time::timeout};

use super::{
    client::{self, HttpClient, WatchedBody},
    denies_session,
    events::{ServerEvents, StreamExcess},
    odd, redirected, retry_after, shown_type,
};
use crate::{
    backend::{
        BackendError,
        link::{Link, outbound::QueuedMessage, pending::PendingRequests},
    },
    config::Remote,
    mcp::{Message, sse},
};

/// Messages that may wait for their acknowledgement at a time.
const POSTS_MAX: usize = 64;
/// How long a message goes unacknowledged before the next one is sent.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long the server may take to acknowledge a message. Some do so only with the answer.
const ACK_PATIENCE: Duration = Duration::from_secs(600);
/// How long the body of an acknowledgement may take.
const ACK_BODY_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes read of the body of an acknowledgement.
const ACK_BYTES_MAX: usize = 64 * 1024;
/// How long the server may take to name its endpoint.
const ENDPOINT_PATIENCE: Duration = Duration::from_secs(30);

/// Opens the stream, waits for the endpoint, and starts reader and writer.
pub(crate) async fn open(
    remote: &Remote,
    mux: Arc<PendingRequests>,
    connect: Duration,
) -> Result<Arc<Link>, BackendError> {
    let client = client::new(&remote.url, connect)?;
    let peer = &mux.settings.peer;
    let headers = client::headers(remote, &peer.own)?;
    let answer = get(&client, remote, &headers).await?;
    peer.hear(&answer)?;
    let mut stream = SseStream {
        body: events(remote, answer)?,
        events: ServerEvents::of_connection(&mux.settings),
        excess: None,
    };
    let named = timeout(ENDPOINT_PATIENCE, stream.endpoint());
    let named = named.await.ok().flatten().ok_or_else(|| {
        BackendError::garbled("its event stream did not begin with an `endpoint` event")
    })?;
    let endpoint = resolve(&remote.url, &named)?;
    let (link, queue) = Link::queued(&mux);
    let tasks = mux.tasks.clone();
    tasks.spawn("sse reader", read(stream, Arc::clone(&link)));
    let outlet = PostOutlet {
        client,
        endpoint,
        headers,
        mux,
    };
    tasks.spawn("sse writer", write(outlet, queue));
    Ok(link)
}

struct SseStream {
    body: WatchedBody,
    events: ServerEvents,
    /// The stream ended because the server sent what it may not.
    excess: Option<StreamExcess>,
}

impl SseStream {
    async fn next(&mut self) -> Option<sse::SseEvent> {
        loop {
            if let Some(event) = self.events.next().await {
                return Some(event);
            }
            // A server that never stops talking leaves something to others.
            yield_now().await;
            let frame = self.body.frame().await?.ok()?;
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            self.excess = self.events.push(&chunk).err();
            if self.excess.is_some() {
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

async fn get(
    client: &HttpClient,
    remote: &Remote,
    headers: &HeaderMap,
) -> Result<Response<WatchedBody>, BackendError> {
    let mut request = HttpRequest::new(Full::new(Bytes::new()));
    request.uri_mut().clone_from(&remote.url);
    request.headers_mut().clone_from(headers);
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let response = client.request(request).await;
    response.map_err(|error| BackendError::Connect {
        reason: client::explain(&error),
    })
}

/// The event stream that an answer to our GET is.
fn events(remote: &Remote, response: Response<WatchedBody>) -> Result<WatchedBody, BackendError> {
    let status = response.status();
    if let Some(refused) = BackendError::of_credential(status) {
        return Err(refused);
    }
    if status.is_redirection() {
        let shows_path = !remote.is_of_variable;
        return Err(redirected(status, response.headers(), shows_path));
    }
    if !status.is_success() {
        return Err(BackendError::Http {
            status,
            body: String::new(),
            retry_after: retry_after(response.headers()),
        });
    }
    match other_kind(response.headers()) {
        Some(kind) => Err(BackendError::garbled(format!(
            "it answers with `{kind}` in place of an event stream; is its URL that of an MCP server?"
        ))),
        None => Ok(response.into_body()),
    }
}

/// What an answer with these headers is, where it says so and is no event stream.
fn other_kind(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?;
    let kind = shown_type(headers).unwrap_or("something");
    (!kind.eq_ignore_ascii_case("text/event-stream")).then_some(kind)
}

/// The endpoint relative to the stream's URL. Another origin is refused: it would receive our
/// credentials.
fn resolve(base: &Uri, named: &str) -> Result<Uri, BackendError> {
    let garbled = |why: &str| BackendError::Garbled {
        what: format!("its endpoint {why}"),
        quoted: named.to_owned(),
    };
    let target: Uri = named.trim().parse().map_err(|_| garbled("is no URL"))?;
    let Some(authority) = target.authority() else {
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            let directory = base
                .path()
                .rsplit_once('/')
                .map_or("", |(directory, _)| directory);
            format!("{directory}/{path}")
        };
        let mut parts = base.clone().into_parts();
        parts.path_and_query = Some(path.parse().map_err(|_| garbled("is no path"))?);
        return Uri::from_parts(parts).map_err(|_| garbled("is no URL"));
    };
    if Some(authority) != base.authority() || target.scheme() != base.scheme() {
        return Err(garbled("is on another origin"));
    }
    Ok(target)
}

async fn read(mut stream: SseStream, link: Arc<Link>) {
    let closed = link.mux.closed.clone();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = closed.cancelled() => return,
        };
        let Some(event) = event else {
            return link.mux.close(match stream.excess {
                Some(excess) => excess.to_string(),
                None => "it closed its event stream".to_owned(),
            });
        };
        link.take(&event.data, "odd event").await;
    }
}

/// Where messages for the server go.
struct PostOutlet {
    client: HttpClient,
    endpoint: Uri,
    headers: HeaderMap,
    mux: Arc<PendingRequests>,
}

async fn write(outlet: PostOutlet, queue: mpsc::Receiver<QueuedMessage>) {
    tokio::select! {
        biased;
        ended = outlet.send_all(queue) => if let Err(reason) = ended {
            outlet.mux.close(reason);
        },
        () = outlet.mux.closed.cancelled() => {}
    }
}

impl PostOutlet {
    /// Posts what the queue holds, in order as long as the server acknowledges soon. One that
    /// acknowledges a call only with its end holds the next message up by [`HEAD_START`].
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
            let Some(message) = message.take() else {
                continue;
            };
            let mut post = Box::pin(self.post(message));
            match timeout(HEAD_START, &mut post).await {
                Ok(posted) => posted?,
                Err(_) => slow.push(post),
            }
        }
    }

    async fn post(&self, message: Bytes) -> Result<(), String> {
        let mut request = HttpRequest::new(Full::new(message.clone()));
        *request.method_mut() = Verb::POST;
        request.uri_mut().clone_from(&self.endpoint);
        request.headers_mut().clone_from(&self.headers);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = timeout(ACK_PATIENCE, self.client.request(request))
            .await
            .map_err(|_| format!("it did not acknowledge a message within {ACK_PATIENCE:?}"))?
            .map_err(|error| client::explain(&error))?;
        let heard = self.mux.settings.peer.hear(&response);
        heard.map_err(|failure| failure.to_string())?;
        if !response.status().is_success() {
            return self.refused(&message, response).await;
        }
        // The acknowledgement is read so that the connection can be used again; one that is long
        // or slow costs the connection.
        let body = Limited::new(response.into_body(), ACK_BYTES_MAX);
        drop(timeout(ACK_BODY_PATIENCE, body.collect()).await);
        Ok(())
    }

    /// A refusal concerns its message alone, as over streamable HTTP, also one of our credential. A
    /// server that denies the session, or is out of order, ends the link: that is the reason.
    async fn refused(
        &self,
        message: &Bytes,
        response: Response<WatchedBody>,
    ) -> Result<(), String> {
        let status = response.status();
        let over = || Err(format!("it answered {status} to a message"));
        let is_gone = matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE);
        if !status.is_client_error() || is_gone {
            return over();
        }
        let failure = refusal(response).await;
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
        let server = &self.mux.settings.server;
        if let Some(id) = id {
            self.mux.failed(id, failure);
        } else {
            tracing::debug!(%server, %failure, "a message was not taken");
        }
        Ok(())
    }
}

/// Why a server took no message.
async fn refusal(response: Response<WatchedBody>) -> BackendError {
    let status = response.status();
    if let Some(refused) = BackendError::of_credential(status) {
        return refused;
    }
    let odd = timeout(ACK_BODY_PATIENCE, odd(response)).await;
    odd.unwrap_or_else(|_| BackendError::Http {
        status,
        body: String::new(),
        retry_after: None,
    })
}

#[cfg(test)]
mod tests {
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
        let outlet = PostOutlet {
            client: client::new(&endpoint, ACK_PATIENCE * 10).unwrap(),
            endpoint,
            headers: HeaderMap::new(),
            mux: PendingRequests::new(LinkSettings::example(), None, Tasks::new()),
        };
        let (send, queue) = mpsc::channel(1);
        send.send(Bytes::from_static(b"{}").into()).await.unwrap();
        let reason = outlet.send_all(queue).await.unwrap_err();
        assert_eq!(reason, "it did not acknowledge a message within 600s");
    }

    #[test]
    fn endpoints_stay_on_their_origin() {
        let check = |named: &str, expect: Option<&str>| {
            let base: Uri = "http://host:1/a/sse?x=1".parse().unwrap();
            let found = resolve(&base, named).ok().map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expect, "{named}");
        };
        check(
            "/messages/?session_id=1",
            Some("http://host:1/messages/?session_id=1"),
        );
        check("http://host:1/m?s=2", Some("http://host:1/m?s=2"));
        check("http://other:1/m", None);
        check("https://host:1/m", None);
    }
}
