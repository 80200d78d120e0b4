//! A scripted server: it greets and lists by itself, everything else is the test's to answer.
//!
//! One script runs over every transport; [`Asked`] is a request that waits for the test.

mod http;
mod pipe;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use ::http::HeaderMap;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use super::wire::{self, Envelope, soon, spawn};

/// How the gateway reaches the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transport {
    /// Streamable HTTP that answers with JSON, as long as nothing precedes the answer.
    Http,
    /// Streamable HTTP that answers with events.
    HttpEvents,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// A child process.
    Stdio,
    /// WebSocket.
    WebSocket,
}

/// Which era the server speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// Every transport in every era it exists in.
pub(crate) const ALL: [(Transport, Era); 9] = [
    (Transport::Stdio, Era::Legacy),
    (Transport::Stdio, Era::Modern),
    (Transport::Http, Era::Legacy),
    (Transport::Http, Era::Modern),
    (Transport::HttpEvents, Era::Legacy),
    (Transport::HttpEvents, Era::Modern),
    (Transport::Sse, Era::Legacy),
    (Transport::WebSocket, Era::Legacy),
    (Transport::WebSocket, Era::Modern),
];

/// What the script does with a request by itself.
#[derive(Clone, Debug)]
pub(crate) enum Auto {
    /// Honours this part of a listen stream.
    #[allow(dead_code, reason = "only some tests have streams that honour less")]
    Acknowledge(&'static str),
    /// Breaks the connection.
    Die,
    /// Answers with this error.
    Error(String),
    /// Hands it to the test.
    Hand,
    /// Breaks every connection, and takes no other from then on.
    Leave,
    /// Never answers.
    Nothing,
    /// Answers with this result.
    Result(String),
    /// Answers with this HTTP status.
    Status(u16),
}

type Hook = Arc<dyn Fn(&Envelope) -> Option<Auto> + Send + Sync>;
type Gate = Arc<dyn Fn(&str, &HeaderMap) -> Option<u16> + Send + Sync>;

/// A running scripted server.
pub(crate) struct Backend {
    pub(crate) script: Arc<Script>,
    requests: tokio::sync::Mutex<mpsc::Receiver<Asked>>,
    notices: tokio::sync::Mutex<mpsc::Receiver<Heard>>,
    answers: tokio::sync::Mutex<mpsc::Receiver<Heard>>,
}

/// A notification or an answer that the server received.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) envelope: Envelope,
    pub(crate) headers: HeaderMap,
}

/// What the server is and does.
pub(crate) struct Script {
    pub(crate) transport: Transport,
    era: Mutex<Era>,
    /// What it answers to `initialize`.
    revision: Mutex<&'static str>,
    address: SocketAddr,
    capabilities: Mutex<String>,
    lists: Mutex<HashMap<&'static str, String>>,
    hook: Mutex<Option<Hook>>,
    gate: Mutex<Option<Gate>>,
    /// HTTP+SSE: messages are heard at once, and acknowledged never.
    late: AtomicBool,
    /// The status and the body of the answer in a session that is not known.
    denial: Mutex<(u16, &'static str)>,
    /// Cancelled when the server goes for good.
    gone: CancellationToken,
    conns: Mutex<Vec<Arc<Conn>>>,
    listens: Mutex<Vec<Arc<Asked>>>,
    ignored: Mutex<Vec<Asked>>,
    /// Moves when a connection can be spoken on, or a listen stream is open.
    open: watch::Sender<usize>,
    greeted: AtomicUsize,
    next: AtomicUsize,
    requests: mpsc::Sender<Asked>,
    notices: mpsc::Sender<Heard>,
    answers: mpsc::Sender<Heard>,
}

/// One connection of the gateway.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) id: usize,
    /// Where messages that belong to no request go.
    out: Mutex<Option<mpsc::Sender<Out>>>,
    /// Cancelled to break the connection.
    broken: CancellationToken,
    /// Cancelled when the gateway has closed it.
    pub(crate) closed: CancellationToken,
}

/// What is sent to the gateway.
#[derive(Debug)]
pub(crate) enum Out {
    /// The connection breaks off.
    Break,
    /// A JSON body, or a message where there are no bodies.
    Message(String),
    /// Text of an event stream.
    Raw(String),
    /// An HTTP status without an answer.
    Status(u16),
    /// A JSON body beneath an HTTP status.
    Under(u16, String),
}

/// A request that waits for the test.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) conn: Arc<Conn>,
    pub(crate) envelope: Envelope,
    pub(crate) headers: HeaderMap,
    reply: Reply,
    events: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
enum Reply {
    Http(mpsc::Sender<Out>),
    Pipe,
}

impl Backend {
    /// Starts a server with one item of each kind.
    pub(crate) async fn start(transport: Transport, era: Era) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (requests, asked) = mpsc::channel(1024);
        let (notices, told) = mpsc::channel(1024);
        let (answers, answered) = mpsc::channel(1024);
        let lists = [
            (
                "tools/list",
                r#"[{"name":"echo","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}}]"#,
            ),
            ("resources/list", r#"[{"uri":"file:///a.txt","name":"a"}]"#),
            (
                "resources/templates/list",
                r#"[{"uriTemplate":"file:///{path}","name":"t"}]"#,
            ),
            (
                "prompts/list",
                r#"[{"name":"greet","arguments":[{"name":"who"}]}]"#,
            ),
        ];
        let script = Arc::new(Script {
            transport,
            era: era.into(),
            revision: Mutex::new("2025-11-25"),
            address: listener.local_addr().unwrap(),
            capabilities: Mutex::new(CAPABILITIES.to_owned()),
            lists: Mutex::new(
                lists
                    .map(|(method, items)| (method, items.to_owned()))
                    .into(),
            ),
            hook: Mutex::default(),
            gate: Mutex::default(),
            late: AtomicBool::default(),
            denial: Mutex::new((404, "")),
            gone: CancellationToken::new(),
            conns: Mutex::default(),
            listens: Mutex::default(),
            ignored: Mutex::default(),
            open: watch::channel(0).0,
            greeted: AtomicUsize::new(0),
            next: AtomicUsize::new(1),
            requests,
            notices,
            answers,
        });
        let serve = Arc::clone(&script);
        spawn(async move {
            let gone = serve.gone.clone();
            let served = async {
                match transport {
                    Transport::Stdio | Transport::WebSocket => pipe::serve(serve, listener).await,
                    Transport::Http | Transport::HttpEvents | Transport::Sse => {
                        http::serve(serve, listener).await;
                    }
                }
            };
            gone.run_until_cancelled(served).await;
        });
        Self {
            script,
            requests: asked.into(),
            notices: told.into(),
            answers: answered.into(),
        }
    }

    /// Replaces the items of a list.
    pub(crate) fn set_list(&self, method: &'static str, items: impl Into<String>) -> &Self {
        lock(&self.script.lists).insert(method, items.into());
        self
    }

    /// Replaces the declared capabilities.
    pub(crate) fn set_capabilities(&self, capabilities: &str) -> &Self {
        capabilities.clone_into(&mut lock(&self.script.capabilities));
        self
    }

    /// Agrees on an older revision of the legacy era.
    pub(crate) fn set_revision(&self, revision: &'static str) -> &Self {
        *lock(&self.script.revision) = revision;
        self
    }

    /// Lets `hook` decide on requests first.
    pub(crate) fn on_request(
        &self,
        hook: impl Fn(&Envelope) -> Option<Auto> + Send + Sync + 'static,
    ) -> &Self {
        *lock(&self.script.hook) = Some(Arc::new(hook));
        self
    }

    /// Lets `gate` answer HTTP requests with a bare status; the handshake of WebSocket is a GET.
    pub(crate) fn on_http(
        &self,
        gate: impl Fn(&str, &HeaderMap) -> Option<u16> + Send + Sync + 'static,
    ) -> &Self {
        *lock(&self.script.gate) = Some(Arc::new(gate));
        self
    }

    /// HTTP+SSE: from now on messages are heard at once, and acknowledged never.
    pub(crate) fn acknowledge_late(&self) {
        self.script.late.store(true, Ordering::SeqCst);
    }

    /// The config of this server.
    pub(crate) fn config(&self) -> String {
        let address = self.script.address;
        match self.script.transport {
            Transport::Stdio => {
                let program = pipe::program().display();
                format!("command = \"{program}\"\nargs = [\"{}\"]\n", address.port())
            }
            Transport::Http | Transport::HttpEvents => {
                format!("url = \"http://{address}/mcp\"\ntransport = \"http\"\n")
            }
            Transport::Sse => format!("url = \"http://{address}/sse\"\ntransport = \"sse\"\n"),
            Transport::WebSocket => format!("url = \"ws://{address}/mcp\"\n"),
        }
    }

    /// The address it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.script.address
    }

    /// The next request that the script leaves to the test.
    pub(crate) async fn asked(&self, method: &str) -> Asked {
        let next = async { self.requests.lock().await.recv().await.unwrap() };
        let asked = soon(&format!("the server is asked for {method}"), next).await;
        assert_eq!(asked.envelope.method(), method, "{asked:?}");
        asked
    }

    /// The next request that the script leaves to the test, whenever it comes.
    #[allow(dead_code, reason = "only those that break servers have no plan")]
    pub(crate) async fn next(&self) -> Option<Asked> {
        self.requests.lock().await.recv().await
    }

    /// The next notification.
    pub(crate) async fn told(&self, method: &str) -> Heard {
        let next = async { self.notices.lock().await.recv().await.unwrap() };
        let heard = soon(&format!("the server is told {method}"), next).await;
        assert_eq!(heard.envelope.method(), method, "{heard:?}");
        heard
    }

    /// The next answer to a request of the server.
    pub(crate) async fn answered(&self) -> Envelope {
        let next = async { self.answers.lock().await.recv().await.unwrap() };
        soon("the server is answered", next).await.envelope
    }

    /// Whether a notification has come that nobody asked for yet.
    pub(crate) async fn was_told(&self) -> Option<Heard> {
        self.notices.lock().await.try_recv().ok()
    }

    /// Whether a request has come that nobody asked for yet.
    pub(crate) async fn was_asked(&self) -> Option<Asked> {
        self.requests.lock().await.try_recv().ok()
    }

    /// Waits until so many connections are open.
    #[allow(dead_code, reason = "only tests of owners count them")]
    pub(crate) async fn open_until(&self, count: usize) {
        let open = || {
            let conns = lock(&self.script.conns);
            conns.iter().filter(|it| !it.closed.is_cancelled()).count()
        };
        let reached = async {
            while open() != count {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        soon(&format!("{count} connections are open"), reached).await;
    }

    /// Handshakes so far.
    pub(crate) fn greeted(&self) -> usize {
        self.script.greeted.load(Ordering::SeqCst)
    }

    /// Says that a list changed, on the connection of the catalog.
    pub(crate) async fn list_changed(&self, kind: &str) {
        let method = format!("notifications/{kind}/list_changed");
        match self.script.era() {
            Era::Legacy => self.speak(&method, "{}").await,
            Era::Modern => {
                let listen = self.listen(&format!("{kind}ListChanged")).await;
                listen.tell(&method, &listen.tagged("")).await;
            }
        }
    }

    /// Sends a notification on the first connection, outside of any request.
    pub(crate) async fn speak(&self, method: &str, params: &str) {
        self.utter(wire::notification(method, params)).await;
    }

    /// Sends text on the first connection, outside of any request.
    pub(crate) async fn utter(&self, text: String) {
        let conn = self.script.wait(|script| {
            let conns = lock(&script.conns);
            conns.iter().find(|conn| conn.is_open()).cloned()
        });
        let conn = soon("a connection can be spoken on", conn).await;
        conn.send(text).await;
    }

    /// Sends text of the event stream on the first connection, outside of any request (HTTP only).
    pub(crate) async fn utter_raw(&self, text: &str) {
        let out = self.standing(|out| out.clone()).await;
        drop(out.send(Out::Raw(text.to_owned())).await);
    }

    /// Breaks the stream for messages that belong to no request, or lets go of it (HTTP only).
    pub(crate) async fn cut_stream(&self, breaks: bool) {
        let out = self.standing(Option::take).await;
        if breaks {
            drop(out.send(Out::Break).await);
        }
    }

    /// The way out of the first connection that can be spoken on, once there is one.
    async fn standing(
        &self,
        out: impl Fn(&mut Option<mpsc::Sender<Out>>) -> Option<mpsc::Sender<Out>>,
    ) -> mpsc::Sender<Out> {
        let found = self.script.wait(|script| {
            let conns = lock(&script.conns);
            let conn = conns.iter().find(|conn| conn.is_open())?;
            out(&mut lock(&conn.out))
        });
        soon("a connection can be spoken on", found).await
    }

    /// The listen stream whose filter names `flag`.
    pub(crate) async fn listen(&self, flag: &str) -> Arc<Asked> {
        let listen = self.script.wait(|script| {
            let listens = lock(&script.listens);
            listens
                .iter()
                .rev()
                .find(|asked| {
                    asked
                        .envelope
                        .params
                        .as_deref()
                        .unwrap_or_default()
                        .contains(flag)
                })
                .cloned()
        });
        soon(&format!("a listen stream for {flag} is open"), listen).await
    }

    /// Breaks every connection.
    pub(crate) fn die(&self) {
        for conn in lock(&self.script.conns).drain(..) {
            conn.broken.cancel();
        }
    }

    /// Over HTTP a server of another era takes the place of this one.
    pub(crate) fn becomes(&self, era: Era) {
        *lock(&self.script.era) = era;
        self.forget_sessions();
        lock(&self.script.listens).clear();
    }

    /// From now on this is the answer in an HTTP session that is not known.
    pub(crate) fn deny_sessions_with(&self, status: u16, body: &'static str) {
        *lock(&self.script.denial) = (status, body);
    }

    /// Forgets every HTTP session, so that requests in them are answered 404, unless another answer
    /// was chosen.
    pub(crate) fn forget_sessions(&self) {
        lock(&self.script.conns).clear();
    }
}

const CAPABILITIES: &str = r#"{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{}}"#;

impl Script {
    pub(crate) fn era(&self) -> Era {
        *lock(&self.era)
    }

    async fn wait<T>(&self, found: impl Fn(&Self) -> Option<T>) -> T {
        let mut open = self.open.subscribe();
        loop {
            open.mark_unchanged();
            if let Some(found) = found(self) {
                return found;
            }
            open.changed().await.unwrap();
        }
    }

    fn connect(&self, out: Option<mpsc::Sender<Out>>) -> Arc<Conn> {
        let conn = Arc::new(Conn {
            id: self.next.fetch_add(1, Ordering::SeqCst),
            out: Mutex::new(out),
            broken: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        lock(&self.conns).push(Arc::clone(&conn));
        self.open.send_modify(|count| *count += 1);
        conn
    }

    /// Takes one message of the gateway.
    async fn take(&self, text: &str, conn: &Arc<Conn>, headers: HeaderMap, reply: Reply) {
        let envelope = Envelope::of(text);
        if envelope.is_response() {
            let heard = Heard { envelope, headers };
            return self.answers.send(heard).await.unwrap_or_default();
        }
        if envelope.id.is_none() {
            if envelope.method() != "notifications/initialized" {
                let heard = Heard { envelope, headers };
                self.notices.send(heard).await.unwrap_or_default();
            }
            return;
        }
        let asked = Asked {
            conn: Arc::clone(conn),
            envelope,
            headers,
            reply,
            events: (self.transport == Transport::HttpEvents).into(),
        };
        let hook = lock(&self.hook).clone();
        let auto = hook.and_then(|hook| hook(&asked.envelope));
        match auto.unwrap_or_else(|| self.auto(&asked)) {
            Auto::Die => asked.die().await,
            Auto::Error(error) => asked.refuse(&error).await,
            Auto::Acknowledge(honoured) => self.acknowledge(asked, honoured).await,
            Auto::Hand if asked.envelope.method() == "subscriptions/listen" => {
                let wish = asked.envelope.param(&["notifications"]).unwrap_or_default();
                self.acknowledge(asked, &wish).await;
            }
            Auto::Hand => drop(self.requests.send(asked).await),
            Auto::Leave => self.gone.cancel(),
            Auto::Nothing => lock(&self.ignored).push(asked),
            Auto::Result(result) => asked.answer(&result).await,
            Auto::Status(status) => asked.out(Out::Status(status)).await,
        }
    }

    async fn acknowledge(&self, asked: Asked, honoured: &str) {
        let ack = asked.tagged(&format!(r#""notifications":{honoured},"#));
        asked
            .tell("notifications/subscriptions/acknowledged", &ack)
            .await;
        lock(&self.listens).push(Arc::new(asked));
        self.open.send_modify(|count| *count += 1);
    }

    fn auto(&self, asked: &Asked) -> Auto {
        let request = &asked.envelope;
        let unknown = || Auto::Error(r#"{"code":-32601,"message":"no such method"}"#.to_owned());
        let capabilities = lock(&self.capabilities).clone();
        let era = self.era();
        if era == Era::Modern && request.param(&VERSION).is_none() {
            let refusal = r#"{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":""}}"#;
            return Auto::Error(refusal.to_owned());
        }
        let is_http = matches!(self.transport, Transport::Http | Transport::HttpEvents);
        let revision = asked.headers.get("mcp-protocol-version");
        if era == Era::Modern && is_http && revision.is_none_or(|it| it != "2026-07-28") {
            return Auto::Error(r#"{"code":-32020,"message":"no"}"#.to_owned());
        }
        match (request.method(), era) {
            ("initialize", Era::Legacy) => {
                self.greeted.fetch_add(1, Ordering::SeqCst);
                let revision = *lock(&self.revision);
                Auto::Result(format!(
                    r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"serverInfo":{{"name":"scripted","version":"1"}}}}"#
                ))
            }
            ("server/discover", Era::Modern) => {
                self.greeted.fetch_add(1, Ordering::SeqCst);
                Auto::Result(format!(
                    r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":["2026-07-28"],"capabilities":{capabilities},"_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"scripted","version":"1"}}}}}}"#
                ))
            }
            ("initialize" | "server/discover", _) => unknown(),
            ("ping" | "logging/setLevel", Era::Legacy) => Auto::Result("{}".to_owned()),
            (method, era) => match lock(&self.lists).get(method) {
                Some(items) => Auto::Result(list(method, items, era)),
                None => Auto::Hand,
            },
        }
    }
}

/// Where a request of 2026-07-28 says what it is.
const VERSION: [&str; 2] = ["_meta", "io.modelcontextprotocol/protocolVersion"];

fn list(method: &str, items: &str, era: Era) -> String {
    let member = match method {
        "resources/templates/list" => "resourceTemplates",
        other => other.strip_suffix("/list").unwrap(),
    };
    match era {
        Era::Legacy => format!(r#"{{"{member}":{items}}}"#),
        Era::Modern => format!(
            r#"{{"{member}":{items},"resultType":"complete","ttlMs":0,"cacheScope":"private"}}"#
        ),
    }
}

impl Conn {
    fn is_open(&self) -> bool {
        lock(&self.out).is_some() && !self.broken.is_cancelled() && !self.closed.is_cancelled()
    }

    /// Sends a message that belongs to no request.
    pub(crate) async fn send(&self, message: String) {
        let out = lock(&self.out).clone();
        drop(out.unwrap().send(Out::Message(message)).await);
    }
}

impl Asked {
    /// The id that the gateway gave it.
    pub(crate) fn id(&self) -> &str {
        self.envelope.id.as_deref().unwrap()
    }

    /// The progress token that the gateway gave it.
    pub(crate) fn token(&self) -> Option<String> {
        self.envelope.param(&["_meta", "progressToken"])
    }

    /// Answers with a result.
    pub(crate) async fn answer(&self, result: &str) {
        self.finish(wire::result(self.id(), result)).await;
    }

    /// Answers with an error.
    pub(crate) async fn refuse(&self, error: &str) {
        self.finish(wire::error(self.id(), error)).await;
    }

    /// Answers with its id alone.
    pub(crate) async fn answer_nothing(&self) {
        let nothing = format!(r#"{{"jsonrpc":"2.0","id":{}}}"#, self.id());
        self.finish(nothing).await;
    }

    /// Answers over HTTP with an error beneath a status; as the answer to `id`, whatever that is.
    pub(crate) async fn refuse_under(&self, status: u16, id: &str, error: &str) {
        self.out(Out::Under(status, wire::error(id, error))).await;
    }

    /// Answers in an array with what goes before and after it, as servers of 2025-03-26 may.
    pub(crate) async fn answer_between(&self, before: &str, result: &str, after: &str) {
        let answer = wire::result(self.id(), result);
        self.finish(format!("[{before},{answer},{after}]")).await;
    }

    async fn finish(&self, message: String) {
        if self.events.load(Ordering::SeqCst) {
            return self.say(message).await;
        }
        self.out(Out::Message(message)).await;
    }

    /// Sends a notification that belongs to this request.
    pub(crate) async fn tell(&self, method: &str, params: &str) {
        self.say(wire::notification(method, params)).await;
    }

    /// Sends progress of this request.
    pub(crate) async fn progress(&self, amount: u32) {
        let token = self.token().unwrap();
        let params = format!(r#"{{"progressToken":{token},"progress":{amount}}}"#);
        self.tell("notifications/progress", &params).await;
    }

    /// Sends a request to the client during this request.
    pub(crate) async fn ask(&self, id: &str, method: &str, params: &str) {
        self.say(wire::request(id, method, params)).await;
    }

    async fn say(&self, message: String) {
        match &self.reply {
            Reply::Http(_) => {
                self.events.store(true, Ordering::SeqCst);
                self.out(Out::Raw(wire::event(None, &message))).await;
            }
            Reply::Pipe => self.out(Out::Message(message)).await,
        }
    }

    /// Sends text of the event stream as it is.
    pub(crate) async fn raw(&self, text: impl Into<String>) {
        self.out(Out::Raw(text.into())).await;
    }

    async fn out(&self, out: Out) {
        match &self.reply {
            Reply::Http(send) => drop(send.send(out).await),
            Reply::Pipe => {
                let Some(send) = lock(&self.conn.out).clone() else {
                    return;
                };
                drop(send.send(out).await);
            }
        }
    }

    /// Breaks the connection that it came on.
    pub(crate) async fn die(&self) {
        match &self.reply {
            Reply::Http(send) => drop(send.send(Out::Break).await),
            Reply::Pipe => self.conn.broken.cancel(),
        }
    }

    /// Completes when the gateway has closed the stream of this request (HTTP only).
    pub(crate) async fn closed(&self) {
        let Reply::Http(send) = &self.reply else {
            panic!("a pipe has no stream of its own");
        };
        soon("the gateway closes the stream", send.closed()).await;
    }

    /// Params of a notification of this listen stream; `members` end in a comma.
    pub(crate) fn tagged(&self, members: &str) -> String {
        let id = self.id();
        format!(r#"{{{members}"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}
