//! Servers behind HTTP+SSE of 2024-11-05: a stream in, POSTs to the endpoint it names out.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method as Verb, Request as HttpRequest, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::{
    Failure,
    client::{self, HttpClient},
    link::Link,
    mux::Mux,
    pipe,
};
use crate::{
    config::Remote,
    mcp::{Message, sse},
};

/// Messages that may wait for the server to take them.
const QUEUE_MAX: usize = 256;
/// How long the server may take to name its endpoint.
const ENDPOINT_PATIENCE: Duration = Duration::from_secs(30);

/// Opens the stream, waits for the endpoint, and starts reader and writer.
pub(crate) async fn open(
    remote: &Remote,
    mux: Arc<Mux>,
    connect: Duration,
) -> Result<Arc<Link>, Failure> {
    let client = client::new(&remote.url, connect)?;
    let headers = client::headers(remote)?;
    let mut stream = Stream {
        body: get(&client, &remote.url, &headers).await?,
        reader: sse::Reader::new(mux.settings.response_bytes_max),
        is_oversized: false,
    };
    let named = tokio::time::timeout(ENDPOINT_PATIENCE, stream.endpoint());
    let named = named.await.ok().flatten().ok_or_else(|| Failure::Garbled {
        what: "its event stream did not begin with an `endpoint` event".to_owned(),
    })?;
    let endpoint = resolve(&remote.url, &named)?;
    let (send, queue) = mpsc::channel(QUEUE_MAX);
    let link = Arc::new(Link::pipe(Arc::clone(&mux), send));
    let tasks = mux.tasks.clone();
    tasks.spawn("sse reader", read(stream, Arc::clone(&link)));
    tasks.spawn("sse writer", write(client, endpoint, headers, queue, mux));
    Ok(link)
}

struct Stream {
    body: Incoming,
    reader: sse::Reader,
    /// The stream ended because an event was larger than `limits.response`.
    is_oversized: bool,
}

impl Stream {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.reader.next_event() {
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            self.is_oversized = self.reader.push(&chunk).is_err();
            if self.is_oversized {
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

async fn get(client: &HttpClient, url: &Uri, headers: &HeaderMap) -> Result<Incoming, Failure> {
    let mut request = HttpRequest::new(Full::new(Bytes::new()));
    request.uri_mut().clone_from(url);
    request.headers_mut().clone_from(headers);
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let response = client
        .request(request)
        .await
        .map_err(|error| Failure::Connect {
            reason: client::explain(&error),
        })?;
    let status = response.status();
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(Failure::Unauthorized { status });
    }
    if !status.is_success() {
        return Err(Failure::Http {
            status,
            body: String::new(),
        });
    }
    Ok(response.into_body())
}

/// The endpoint relative to the stream's URL. Another origin is refused: it would receive our
/// credentials.
fn resolve(base: &Uri, named: &str) -> Result<Uri, Failure> {
    let garbled = |why: &str| Failure::Garbled {
        what: format!("its endpoint `{named}` {why}"),
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

async fn read(mut stream: Stream, link: Arc<Link>) {
    let closed = link.mux.closed.clone();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = closed.cancelled() => return,
        };
        let Some(event) = event else {
            return link.mux.close(if stream.is_oversized {
                pipe::oversized(link.mux.settings.response_bytes_max)
            } else {
                "it closed its event stream".to_owned()
            });
        };
        match Message::parse(&event.data) {
            Ok(message) => link.incoming(message, None),
            Err(malformed) => {
                tracing::debug!(server = %link.mux.settings.server, %malformed, "odd event");
            }
        }
    }
}

async fn write(
    client: HttpClient,
    endpoint: Uri,
    headers: HeaderMap,
    mut queue: mpsc::Receiver<Bytes>,
    mux: Arc<Mux>,
) {
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            () = mux.closed.cancelled() => return,
        };
        let Some(message) = message else { return };
        let mut request = HttpRequest::new(Full::new(message));
        *request.method_mut() = Verb::POST;
        request.uri_mut().clone_from(&endpoint);
        request.headers_mut().clone_from(&headers);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match client.request(request).await {
            Ok(response) if response.status().is_success() => {
                // The acknowledgement is read so that the connection can be used again.
                drop(response.into_body().collect().await);
            }
            Ok(response) => {
                return mux.close(format!("it answered {} to a message", response.status()));
            }
            Err(error) => return mux.close(client::explain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
