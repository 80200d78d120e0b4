//! Clients of every kind behind one face: what they send goes out as it is, and everything that
//! reaches them, on whichever stream, lands in one inbox.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf},
    sync::{Mutex, mpsc},
    task::JoinHandle,
};
use tollbridge::{
    auth::Agent,
    names::{ProfileName, Scope, ServerName},
    stdio::StdioEdge,
};

use super::{
    gateway::Gateway,
    http::{Answer, Events, Http},
    wire::{self, Envelope, member, soon, spawn, value},
};

/// How a client speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Front {
    /// Streamable HTTP without a session.
    Modern,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// stdin and stdout, with `initialize`.
    Stdio,
    /// stdin and stdout, stateless.
    StdioModern,
    /// Streamable HTTP with a session.
    Streamable,
}

impl Front {
    pub(crate) const ALL: [Self; 5] = [
        Self::Modern,
        Self::Sse,
        Self::Stdio,
        Self::StdioModern,
        Self::Streamable,
    ];
    pub(crate) const LEGACY: [Self; 3] = [Self::Sse, Self::Stdio, Self::Streamable];

    pub(crate) fn is_modern(self) -> bool {
        matches!(self, Self::Modern | Self::StdioModern)
    }
}

/// What a client says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction<'a> {
    /// The revision that its `initialize` names.
    pub(crate) revision: &'static str,
    pub(crate) capabilities: &'a str,
    pub(crate) who: Option<Who<'a>>,
}

/// An agent as its client presents itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub(crate) name: &'a str,
    pub(crate) key: &'a str,
}

/// A client past its handshake.
pub(crate) struct Client {
    pub(crate) front: Front,
    pub(crate) path: String,
    pub(crate) http: Http,
    capabilities: String,
    /// The revision that its `initialize` names.
    revision: &'static str,
    /// What the gateway answered to that.
    pub(crate) introduced: OnceLock<Value>,
    /// The session of streamable HTTP.
    pub(crate) session: Option<String>,
    /// Where messages of HTTP+SSE are posted.
    endpoint: Option<String>,
    input: Option<Mutex<WriteHalf<DuplexStream>>>,
    inbox: Mutex<mpsc::Receiver<Envelope>>,
    put: mpsc::Sender<Envelope>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
}

/// A message on its way; what comes back is read as long as the test wants.
#[derive(Debug)]
pub(crate) struct Sent(Option<JoinHandle<()>>);

impl Sent {
    /// Closes the connection that the message was sent on.
    pub(crate) fn disconnect(self) {
        self.0.expect("HTTP only").abort();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for task in self.tasks.lock().unwrap().drain(..) {
            task.abort();
        }
    }
}

impl Client {
    pub(super) async fn open(
        gateway: &Gateway,
        front: Front,
        path: &str,
        introduction: Introduction<'_>,
    ) -> Self {
        let Introduction {
            revision,
            capabilities,
            who,
        } = introduction;
        let (put, inbox) = mpsc::channel(4096);
        let mut client = Self {
            front,
            path: path.to_owned(),
            http: match who {
                Some(who) => gateway.http().with_key(who.key),
                None => gateway.http(),
            },
            capabilities: capabilities.to_owned(),
            revision,
            introduced: OnceLock::new(),
            session: None,
            endpoint: None,
            input: None,
            inbox: inbox.into(),
            put,
            tasks: std::sync::Mutex::default(),
            next: AtomicU64::new(1_000_000),
        };
        match front {
            Front::Modern => {}
            Front::Sse => client.open_sse().await,
            Front::Stdio | Front::StdioModern => client.open_stdio(gateway, who),
            Front::Streamable => client.initialize_session().await,
        }
        if matches!(front, Front::Sse | Front::Stdio) {
            let params = client.initialize_params();
            client.send(wire::request("0", "initialize", &params)).await;
            client.agreed(&client.answer("0").await);
        }
        if !front.is_modern() {
            client.notify("notifications/initialized", "{}").await;
        }
        client
    }

    /// The gateway speaks the revision that was asked for.
    fn agreed(&self, answer: &Envelope) {
        let introduced = self.introduced.get_or_init(|| answer.value());
        assert_eq!(introduced["protocolVersion"], self.revision);
    }

    fn initialize_params(&self) -> String {
        let revision = self.revision;
        format!(
            r#"{{"protocolVersion":"{revision}","capabilities":{},"clientInfo":{{"name":"test","version":"1"}}}}"#,
            self.capabilities
        )
    }

    async fn initialize_session(&mut self) {
        let params = self.initialize_params();
        let initialize = wire::request("0", "initialize", &params);
        let answer = self.http.post(&self.path, initialize).await;
        let session = answer.header("mcp-session-id").map(str::to_owned);
        let text = answer.text().await;
        assert!(session.is_some(), "{text}");
        self.agreed(&Envelope::of(&text));
        self.session = session;
    }

    async fn open_sse(&mut self) {
        let path = self.path.replacen("/mcp", "/sse", 1);
        let accept = [("accept", "text/event-stream")];
        let mut events = self.http.get(&path, &accept).await.events();
        let endpoint = events.must().await;
        assert_eq!(endpoint.name.as_deref(), Some("endpoint"));
        self.endpoint = endpoint.data;
        self.follow(events);
    }

    fn open_stdio(&mut self, gateway: &Gateway, who: Option<Who<'_>>) {
        let core = gateway.running.core();
        let directory = core.proxy.governance().directory();
        let agent = match who {
            Some(who) => directory.named(who.name).unwrap(),
            None => Arc::new(Agent::anonymous()),
        };
        let part = self.path.strip_prefix("/mcp/").unwrap_or_default();
        let scope = match part.split_once('/') {
            Some(("servers", server)) => Scope::Server(ServerName::parse(server).unwrap()),
            Some((_, profile)) => Scope::Profile(ProfileName::parse(profile).unwrap()),
            None => Scope::All,
        };
        let edge = StdioEdge::new(Arc::clone(&core.proxy), agent, scope, core.tasks());
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (input, output) = tokio::io::split(theirs);
        let stop = core.tasks().stop_token().child_token();
        self.keep(spawn(async move {
            edge.serve(input, output, stop).await;
        }));
        let (reader, writer) = tokio::io::split(ours);
        self.input = Some(writer.into());
        let put = self.put.clone();
        self.keep(spawn(async move {
            let mut lines = BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                drop(put.send(Envelope::of(&line)).await);
            }
        }));
    }

    fn keep(&self, task: JoinHandle<()>) {
        self.tasks.lock().unwrap().push(task);
    }

    fn follow(&self, mut events: Events) {
        let put = self.put.clone();
        self.keep(spawn(async move {
            while let Some(event) = events.next().await {
                if let Some(data) = event.data.filter(|data| !data.is_empty()) {
                    drop(put.send(Envelope::of(&data)).await);
                }
            }
        }));
    }

    /// Opens the stream for messages that belong to no call, where there is one to open.
    pub(crate) async fn listen(&self) {
        if let Some(session) = &self.session {
            let headers = [("accept", "text/event-stream"), ("mcp-session-id", session)];
            let answer = self.http.get(&self.path, &headers).await;
            self.follow(answer.events());
        }
    }

    /// The header that clients of streamable HTTP send since 2025-06-18.
    fn version_header(&self) -> Option<(String, String)> {
        let has_header = self.revision >= "2025-06-18";
        has_header.then(|| ("mcp-protocol-version".to_owned(), self.revision.to_owned()))
    }

    /// Sends a message as it is.
    pub(crate) async fn send(&self, text: String) -> Sent {
        match self.front {
            Front::Stdio | Front::StdioModern => {
                let mut input = self.input.as_ref().unwrap().lock().await;
                let line = text.replace('\n', " ") + "\n";
                soon("the gateway reads", input.write_all(line.as_bytes()))
                    .await
                    .unwrap();
                Sent(None)
            }
            Front::Sse => {
                let endpoint = self.endpoint.as_ref().unwrap();
                let answer = self.http.post(endpoint, text).await;
                assert_eq!(answer.status(), 202);
                Sent(None)
            }
            Front::Modern | Front::Streamable => self.post(text).await,
        }
    }

    /// Sends text that is perhaps no message; what HTTP says at once.
    pub(crate) async fn ask_raw(&self, text: String) -> Option<Answer> {
        if let Some(endpoint) = &self.endpoint {
            return Some(self.http.post(endpoint, text).await);
        }
        self.send(text).await;
        None
    }

    async fn post(&self, text: String) -> Sent {
        let envelope = Envelope::of(&text);
        let mut headers = Vec::new();
        if let Some(session) = &self.session {
            headers.push(("mcp-session-id".to_owned(), session.clone()));
            headers.extend(self.version_header());
        }
        if self.front == Front::Modern {
            headers = modern_headers(&envelope);
        }
        let (http, path, put) = (self.http.clone(), self.path.clone(), self.put.clone());
        let session = self.session.clone();
        if envelope.id.is_none() || envelope.is_response() {
            let answer = http.post_with(&path, &borrow(&headers), text).await;
            assert!(answer.status().is_success(), "{answer:?}");
            return Sent(None);
        }
        Sent(Some(spawn(async move {
            let answer = http.post_with(&path, &borrow(&headers), text).await;
            if !answer.is_events() {
                drop(put.send(Envelope::of(&answer.text().await)).await);
                return;
            }
            let mut events = answer.events();
            let mut last = None;
            loop {
                while let Some(event) = events.next().await {
                    last = event.id.or(last);
                    let Some(data) = event.data.filter(|data| !data.is_empty()) else {
                        continue;
                    };
                    let message = Envelope::of(&data);
                    let is_answer = message.is_response();
                    drop(put.send(message).await);
                    if is_answer {
                        return;
                    }
                }
                // 2025-11-25: a stream that ends before its answer is followed again.
                let (Some(last), Some(session)) = (&last, &session) else {
                    return;
                };
                let headers = [
                    ("accept", "text/event-stream"),
                    ("mcp-session-id", session.as_str()),
                    ("last-event-id", last.as_str()),
                ];
                events = http.get(&path, &headers).await.events();
            }
        })))
    }

    /// Params of a request: `members` and `_meta` with `meta`, both as written, and what the era
    /// adds.
    pub(crate) fn params(&self, members: &str, meta: &str) -> String {
        let own = format!(
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{{"name":"test","version":"1"}}"#,
            self.capabilities
        );
        let meta = match (self.front.is_modern(), meta.is_empty()) {
            (true, true) => own,
            (true, false) => format!("{own},{meta}"),
            (false, _) => meta.to_owned(),
        };
        match (meta.is_empty(), members.is_empty()) {
            (true, _) => format!("{{{members}}}"),
            (false, true) => format!(r#"{{"_meta":{{{meta}}}}}"#),
            (false, false) => format!(r#"{{{members},"_meta":{{{meta}}}}}"#),
        }
    }

    /// Sends a request.
    pub(crate) async fn ask(&self, id: &str, method: &str, members: &str) -> Sent {
        let params = self.params(members, "");
        self.send(wire::request(id, method, &params)).await
    }

    /// Calls a tool without arguments, with a progress token.
    pub(crate) async fn call(&self, id: &str, tool: &str, token: &str) -> Sent {
        let meta = format!(r#""progressToken":{token}"#);
        let params = self.params(&format!(r#""name":"{tool}""#), &meta);
        self.send(wire::request(id, "tools/call", &params)).await
    }

    pub(crate) async fn notify(&self, method: &str, params: &str) {
        self.send(wire::notification(method, params)).await;
    }

    /// Cancels a request of its own.
    pub(crate) async fn cancel(&self, id: &str) {
        let params = format!(r#"{{"requestId":{id}}}"#);
        self.notify("notifications/cancelled", &params).await;
    }

    /// Answers a request of the server.
    pub(crate) async fn respond(&self, id: &str, result: &str) {
        self.send(wire::result(id, result)).await;
    }

    /// Ends its session of streamable HTTP.
    pub(crate) async fn end(&self) {
        let session = self.session.as_deref().expect("streamable HTTP only");
        let header = [("mcp-session-id", session)];
        let ended = self.http.send("DELETE", &self.path, &header, "").await;
        assert_eq!(ended.status(), 200);
    }

    /// Ends its side of stdio.
    pub(crate) async fn close_input(&self) {
        let input = self.input.as_ref().expect("stdio only");
        input.lock().await.shutdown().await.unwrap();
    }

    /// The next message.
    pub(crate) async fn next(&self) -> Envelope {
        let next = async { self.inbox.lock().await.recv().await.unwrap() };
        soon(
            &format!("a message for a client over {:?}", self.front),
            next,
        )
        .await
    }

    /// A message that has come already.
    pub(crate) async fn pending(&self) -> Option<Envelope> {
        self.inbox.lock().await.try_recv().ok()
    }

    /// The next message, which must be the answer to `id`.
    pub(crate) async fn answer(&self, id: &str) -> Envelope {
        let next = self.next().await;
        assert!(
            next.is_response() && next.id.as_deref() == Some(id),
            "not the answer to {id}: {next:?}"
        );
        next
    }

    /// The next message, which must be this notification or request.
    pub(crate) async fn must(&self, method: &str) -> Envelope {
        let next = self.next().await;
        assert_eq!(next.method(), method, "{next:?}");
        next
    }

    /// Asks a question that the gateway answers by itself; nothing else may come before the answer.
    pub(crate) async fn is_quiet(&self) {
        let id = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let method = if self.front.is_modern() {
            "server/discover"
        } else {
            "ping"
        };
        self.ask(&id, method, "").await;
        self.answer(&id).await;
    }

    /// The list of `kind`, such as `tools`.
    pub(crate) async fn list(&self, kind: &str) -> Vec<serde_json::Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        self.ask(&id, &format!("{kind}/list"), "").await;
        let answer = self.answer(&id).await.value();
        answer[kind].as_array().unwrap().clone()
    }
}

/// The headers that 2026-07-28 wants beside a message.
pub(crate) fn modern_headers(envelope: &Envelope) -> Vec<(String, String)> {
    let mut headers = vec![
        ("mcp-protocol-version".to_owned(), "2026-07-28".to_owned()),
        ("mcp-method".to_owned(), envelope.method().to_owned()),
    ];
    let key = match envelope.method() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return headers,
    };
    let name = envelope
        .params
        .as_deref()
        .and_then(|params| member(params, &[key]));
    if let Some(name) = name {
        let name = value(&name);
        headers.push(("mcp-name".to_owned(), name.as_str().unwrap().to_owned()));
    }
    headers
}

fn borrow(headers: &[(String, String)]) -> Vec<(&str, &str)> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}
