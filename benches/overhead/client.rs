//! One client: a keep-alive HTTP/1.1 connection, with its session if it is a legacy one.
//!
//! `cell` makes calls through it one after the other, `memory`, `soak` and `plan` use it to look around.
//! Dropping it closes the connection and leaves the session open, as clients do that crash.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet};

use crate::{
    Fault,
    call::{self, Era, Message, SESSION_ID},
};

const PATH: &str = "/mcp";
const EVENTS: &str = "text/event-stream";

/// Longest answer that is believed, bytes.
const ANSWER_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    /// Drives the connection, and ends with it.
    _driver: JoinSet<()>,
    era: Era,
    host: HeaderValue,
    session: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
    last_id: u64,
}

impl Client {
    /// Connects, and opens a session if clients of `era` have one; `key` is shown with every request.
    pub(crate) async fn open(
        address: SocketAddr,
        era: Era,
        key: Option<&str>,
    ) -> Result<Self, Fault> {
        let mut client = Self::connect(address, era, None).await?;
        let bearer = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}")));
        client.authorization = bearer.transpose()?;
        client.begin().await?;
        Ok(client)
    }

    /// Opens a session, if clients of the era have one; an earlier one is left as it is.
    pub(crate) async fn begin(&mut self) -> Result<(), Fault> {
        if self.era == Era::Legacy {
            self.session = None;
            let response = self.post(call::initialize()).await?;
            self.session = response.headers().get(SESSION_ID).cloned();
            read(response).await?;
            let response = self.post(call::initialized()).await?;
            if response.status() != StatusCode::ACCEPTED {
                return Err(format!("the client's notice was met by {}", response.status()).into());
            }
            response.into_body().collect().await?;
        }
        Ok(())
    }

    /// Connects and goes on with a session that an earlier connection opened.
    pub(crate) async fn connect(
        address: SocketAddr,
        era: Era,
        session: Option<HeaderValue>,
    ) -> Result<Self, Fault> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        // How a connection ends shows in the answer that is missing then.
        driver.spawn(async move { drop(connection.await) });
        let host = HeaderValue::from_str(&address.to_string())?;
        Ok(Self {
            sender,
            _driver: driver,
            era,
            host,
            session,
            authorization: None,
            last_id: 0,
        })
    }

    /// The session, for a connection that goes on with it.
    pub(crate) fn session(&self) -> Option<HeaderValue> {
        self.session.clone()
    }

    /// Calls `tool` as the connection `number` and checks the answer.
    pub(crate) async fn call(&mut self, number: usize, tool: &Tool) -> Result<(), Fault> {
        self.last_id += 1;
        let id = self.last_id;
        let text = call::call_text(number, id);
        let body = call::call_body(self.era, &tool.name, id, &text);
        let response = self
            .post(Message {
                headers: tool.headers.clone(),
                body,
            })
            .await?;
        call::check(&read(response).await?, self.era, id, &text)
    }

    /// The names of the tools.
    pub(crate) async fn tools(&mut self) -> Result<Vec<String>, Fault> {
        self.last_id += 1;
        let response = self.post(call::list(self.era, self.last_id)).await?;
        call::listed(&read(response).await?)
    }

    /// Opens the stream for messages that belong to no call.
    pub(crate) async fn listen(&mut self) -> Result<Incoming, Fault> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(EVENTS))]);
        let body = Bytes::new();
        let response = self.send(Method::GET, Message { headers, body }).await?;
        let kind = response.headers().get(CONTENT_TYPE);
        if kind.is_none_or(|kind| !kind.as_bytes().starts_with(EVENTS.as_bytes())) {
            return Err(format!("the stream is refused: {}", response.status()).into());
        }
        Ok(response.into_body())
    }

    /// Ends the session, if there is one.
    pub(crate) async fn end(&mut self) -> Result<(), Fault> {
        if self.session.is_some() {
            let message = Message {
                headers: HeaderMap::new(),
                body: Bytes::new(),
            };
            let response = self.send(Method::DELETE, message).await?;
            let status = response.status();
            response.into_body().collect().await?;
            self.session = None;
            if !status.is_success() {
                return Err(format!("the end of a session was met by {status}").into());
            }
        }
        Ok(())
    }

    /// Ends the session, if there is one, and the connection.
    pub(crate) async fn close(mut self) -> Result<(), Fault> {
        self.end().await
    }

    async fn post(&mut self, message: Message) -> Result<Response<Incoming>, Fault> {
        self.send(Method::POST, message).await
    }

    async fn send(
        &mut self,
        method: Method,
        message: Message,
    ) -> Result<Response<Incoming>, Fault> {
        let mut request = Request::new(Full::new(message.body));
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_static(PATH);
        *request.headers_mut() = message.headers;
        request.headers_mut().insert(HOST, self.host.clone());
        if let Some(session) = &self.session {
            request.headers_mut().insert(SESSION_ID, session.clone());
        }
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }
}

/// A tool with the headers that calls of it have.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    name: String,
    headers: HeaderMap,
}

impl Tool {
    pub(crate) fn new(name: String, era: Era) -> Self {
        let headers = call::call_headers(era, &name);
        Self { name, headers }
    }
}

/// The JSON of a good answer, also if it came as the one event of a stream.
async fn read(response: Response<Incoming>) -> Result<Bytes, Fault> {
    let status = response.status();
    let kind = response.headers().get(CONTENT_TYPE).cloned();
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_MAX);
    let body = body.collect().await?.to_bytes();
    if status != StatusCode::OK {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
    }
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(EVENTS.as_bytes())) {
        let events = std::str::from_utf8(&body)?;
        let mut data = events.lines().filter_map(|line| line.strip_prefix("data:"));
        let last = data.next_back().ok_or("a stream ended without an answer")?;
        return Ok(body.slice_ref(last.trim_start().as_bytes()));
    }
    Ok(body)
}
