//! An HTTP client that sends exactly what it is told to.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

use super::wire::{Event, soon, take_events, value};

/// Headers as written in tests.
pub(crate) type Headers<'a> = &'a [(&'a str, &'a str)];

/// What a client of streamable HTTP sends with a message.
pub(crate) const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
pub(crate) const JSON: [(&str, &str); 2] = [
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
];

#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    addr: SocketAddr,
    /// Sent with every request.
    key: Option<String>,
}

impl Http {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            addr,
            key: None,
        }
    }

    /// The same, with an API key in every request.
    pub(crate) fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Sends a request as it is.
    pub(crate) async fn send(
        &self,
        verb: &str,
        path: &str,
        headers: Headers<'_>,
        body: impl Into<Bytes>,
    ) -> Answer {
        // An endpoint of HTTP+SSE is relative to the URL of its stream, and at the root.
        let path = path.trim_start_matches("../").trim_start_matches('/');
        let mut request = Request::builder()
            .method(verb)
            .uri(format!("http://{}/{path}", self.addr));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = soon(
            &format!("{verb} {path} is answered"),
            self.client.request(request),
        )
        .await;
        Answer(response.unwrap())
    }

    /// Posts a message.
    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send("POST", path, &JSON, body).await
    }

    #[allow(dead_code, reason = "tests of governance need it")]
    /// Posts a message to a gateway that may be gone before it has answered.
    pub(crate) async fn try_post(&self, path: &str, body: impl Into<Bytes>) -> Option<String> {
        let mut request = Request::post(format!("http://{}{path}", self.addr));
        for (name, value) in JSON {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = soon("the gateway answers or ends", self.client.request(request)).await;
        let body = soon("the body ends", response.ok()?.into_body().collect()).await;
        String::from_utf8(body.ok()?.to_bytes().to_vec()).ok()
    }

    /// Posts a message with further headers.
    pub(crate) async fn post_with(
        &self,
        path: &str,
        headers: Headers<'_>,
        body: impl Into<Bytes>,
    ) -> Answer {
        self.send("POST", path, &[&JSON, headers].concat(), body)
            .await
    }

    pub(crate) async fn get(&self, path: &str, headers: Headers<'_>) -> Answer {
        self.send("GET", path, headers, "").await
    }
}

/// A response whose body has not been read.
#[derive(Debug)]
pub(crate) struct Answer(Response<Incoming>);

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.0
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_events(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// The whole body.
    pub(crate) async fn text(self) -> String {
        let body = soon("the body ends", self.0.into_body().collect()).await;
        String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap()
    }

    /// The body as events.
    pub(crate) fn events(self) -> Events {
        assert!(self.is_events(), "{:?}", self.0);
        Events {
            body: self.0.into_body(),
            buffer: Vec::new(),
            ready: Vec::new(),
        }
    }
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    ready: Vec<Event>,
}

impl Events {
    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if !self.ready.is_empty() {
                return Some(self.ready.remove(0));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(chunk) = frame.into_data() {
                self.buffer.extend_from_slice(&chunk);
                self.ready = take_events(&mut self.buffer);
            }
        }
    }

    /// The next event, which must come.
    pub(crate) async fn must(&mut self) -> Event {
        let event = soon("an event comes", self.next()).await;
        event.expect("the stream goes on")
    }

    /// The next event that carries a message.
    pub(crate) async fn message(&mut self) -> String {
        loop {
            let event = self.must().await;
            if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                return data;
            }
        }
    }

    /// Asserts that nothing but comments comes before the end.
    pub(crate) async fn ends(&mut self) {
        let rest = soon("the stream ends", self.next()).await;
        assert_eq!(rest, None);
    }
}

/// The code of the error that is the answer.
pub(crate) async fn code(answer: Answer) -> i64 {
    value(&answer.text().await)["error"]["code"]
        .as_i64()
        .unwrap()
}
