//! Clients of every era and transport that never give up, and the ledger of what they heard.

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{process::Gateway, seeded_random::Dice, servers::Servers, support::wire};

/// Longer than any call takes: the gateway gives up after two seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a call ended for its client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answered {
    /// With its own result.
    Result,
    /// With an error.
    Error,
    /// With what somebody else had asked for.
    Stranger,
    /// Not at all.
    Never,
}

/// One call as its client saw it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) trace: String,
    #[expect(dead_code, reason = "it is shown with a call that went wrong")]
    pub(crate) mode: &'static str,
    pub(crate) how: How,
    pub(crate) answers: usize,
    pub(crate) answered: Answered,
    /// What came, when it is not what was wanted.
    pub(crate) odd: Option<String>,
}

/// What servers are asked to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Modes {
    Calm,
    Wild,
}

/// All calls of all clients.
#[derive(Default)]
pub(crate) struct Ledger {
    calls: Mutex<Vec<Made>>,
    calm: AtomicBool,
    stop: AtomicBool,
    sessions: AtomicU64,
}

impl Ledger {
    pub(crate) fn set_modes(&self, modes: Modes) {
        self.calm.store(modes == Modes::Calm, Ordering::Relaxed);
    }

    /// Clients end after their present call.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn calls(&self) -> Vec<Made> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn summary(&self) -> String {
        let calls = self.calls.lock().unwrap();
        let of = |kind| calls.iter().filter(|call| call.answered == kind).count();
        format!(
            "{} calls: {} results, {} errors; {} sessions opened",
            calls.len(),
            of(Answered::Result),
            of(Answered::Error),
            self.sessions.load(Ordering::Relaxed)
        )
    }
}

/// How a client talks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum How {
    /// Streamable HTTP in a session.
    Legacy,
    /// Streamable HTTP, stateless.
    Modern,
    /// A connection for each call, half closed once the request is out.
    HalfClosed,
}

type Http = Client<HttpConnector, Full<Bytes>>;

/// One client.
pub(crate) struct Caller {
    number: usize,
    how: How,
    url: String,
    servers: Vec<String>,
    http: Http,
    session: Option<String>,
    ledger: Arc<Ledger>,
    dice: Dice,
}

impl Caller {
    pub(crate) fn new(
        number: usize,
        gateway: &Gateway,
        servers: &Servers,
        ledger: &Arc<Ledger>,
        dice: Dice,
    ) -> Self {
        Self {
            number,
            how: match number % 5 {
                0 | 1 => How::Legacy,
                2 | 3 => How::Modern,
                _ => How::HalfClosed,
            },
            url: format!("{}/mcp", gateway.url),
            servers: servers.names(),
            http: Client::builder(TokioExecutor::new()).build_http(),
            session: None,
            ledger: Arc::clone(ledger),
            dice,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut count = 0;
        while !self.ledger.stop.load(Ordering::Relaxed) {
            if self.how == How::Legacy && (self.session.is_none() || self.dice.below(50) == 0) {
                self.open().await;
            }
            count += 1;
            self.call(count).await;
            sleep(Duration::from_millis(100 + self.dice.below(300))).await;
        }
    }

    async fn open(&mut self) {
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "chaos", "version": "1" } } });
        let request = post(&self.url, &[], &hello.to_string());
        let answer = self.http.request(request).await.unwrap();
        let session = answer.headers().get("mcp-session-id");
        self.session = Some(session.unwrap().to_str().unwrap().to_owned());
        answer.into_body().collect().await.unwrap();
        self.ledger.sessions.fetch_add(1, Ordering::Relaxed);
        let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let session = self.session.clone().unwrap();
        let request = post(
            &self.url,
            &[("mcp-session-id", &session)],
            &told.to_string(),
        );
        self.http.request(request).await.unwrap();
    }

    async fn call(&mut self, count: u64) {
        let mode = if self.ledger.calm.load(Ordering::Relaxed) {
            "echo"
        } else {
            self.mode()
        };
        let server = self.dice.one_of(&self.servers).clone();
        let asked = Asked {
            id: count,
            token: format!("c{}-{count}", self.number),
            trace: format!("{:016x}{count:016x}", self.number + 1),
            server,
            mode,
        };
        let texts = timeout(PATIENCE, self.ask(&asked)).await;
        let mut made = Made {
            trace: asked.trace.clone(),
            mode,
            how: self.how,
            answers: 0,
            answered: Answered::Never,
            odd: None,
        };
        match texts {
            Ok(Ok(body)) => asked.judge(&body, &mut made),
            Ok(Err(error)) => made.odd = Some(error),
            Err(_) => made.odd = Some("nothing came".to_owned()),
        }
        self.ledger.calls.lock().unwrap().push(made);
    }

    fn mode(&mut self) -> &'static str {
        // What breaks a connection fails every call on it: servers that die all the time serve nobody.
        match self.dice.below(1000) {
            0..840 => "echo",
            840..890 => "slow",
            890..900 => "hang",
            900..902 => "die",
            902..930 => "junk",
            930..960 => "large",
            _ => "fail",
        }
    }

    async fn ask(&self, asked: &Asked) -> Result<String, String> {
        match self.how {
            How::Legacy => {
                let session = self.session.as_deref().unwrap_or_default();
                let trace = asked.traceparent();
                let headers = [("mcp-session-id", session), ("traceparent", &*trace)];
                let request = post(&self.url, &headers, &asked.body("{}"));
                text(self.http.request(request).await).await
            }
            How::Modern => {
                let trace = asked.traceparent();
                let tool = asked.tool();
                let headers = [
                    ("mcp-protocol-version", "2026-07-28"),
                    ("mcp-method", "tools/call"),
                    ("mcp-name", &tool),
                    ("traceparent", &*trace),
                ];
                let request = post(&self.url, &headers, &asked.body(MODERN));
                text(self.http.request(request).await).await
            }
            How::HalfClosed => half_closed(&self.url, asked).await,
        }
    }
}

const MODERN: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"chaos","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

struct Asked {
    id: u64,
    token: String,
    trace: String,
    server: String,
    mode: &'static str,
}

impl Asked {
    fn tool(&self) -> String {
        format!("mcp_{}_echo", self.server)
    }

    fn traceparent(&self) -> String {
        format!("00-{}-00000000000000ff-01", self.trace)
    }

    fn body(&self, meta: &str) -> String {
        let Self { token, mode, .. } = self;
        let tool = self.tool();
        let params = format!(
            r#"{{"name":"{tool}","arguments":{{"token":"{token}","mode":"{mode}"}},"_meta":{meta}}}"#
        );
        wire::request(&self.id.to_string(), "tools/call", &params)
    }

    /// Looks for answers in `body`, which is one message or a stream of events.
    fn judge(&self, body: &str, made: &mut Made) {
        let mut buffer = body.as_bytes().to_vec();
        let messages: Vec<String> = if body.trim_start().starts_with('{') {
            vec![body.to_owned()]
        } else {
            let events = wire::take_events(&mut buffer);
            events.into_iter().filter_map(|event| event.data).collect()
        };
        let answers = messages.iter().filter_map(|text| {
            let message: Value = serde_json::from_str(text).ok()?;
            message.get("method").is_none().then_some(message)
        });
        for answer in answers {
            made.answers += 1;
            made.answered = if answer["id"] != self.id {
                Answered::Stranger
            } else if answer["error"].is_object() {
                Answered::Error
            } else if answer["result"]["content"][0]["text"] == *self.token {
                Answered::Result
            } else {
                Answered::Stranger
            };
        }
        if made.answers != 1 || made.answered == Answered::Stranger {
            made.odd = Some(body.chars().take(500).collect());
        }
    }
}

fn post(url: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap()
}

type Response = Result<http::Response<hyper::body::Incoming>, hyper_util::client::legacy::Error>;

/// The whole body; a status without one counts as an error.
async fn text(answer: Response) -> Result<String, String> {
    let answer = answer.map_err(|error| format!("{error:?}"))?;
    let status = answer.status();
    let body = answer.into_body().collect().await;
    let body = body.map_err(|error| format!("{status}: {error:?}"))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// Sends one request on a connection of its own, closes its half, and reads until the other does.
async fn half_closed(url: &str, asked: &Asked) -> Result<String, String> {
    let address = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .unwrap();
    let body = asked.body("{}");
    let mut head = String::new();
    write!(
        head,
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ntraceparent: {}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        asked.traceparent(),
        body.len()
    )
    .unwrap();
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all((head + &body).as_bytes()).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return Ok(dechunked(body));
    }
    Ok(body.to_owned())
}

/// The text of a chunked body.
fn dechunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}

/// The body of a page.
pub(crate) async fn get(url: &str) -> String {
    let http: Http = Client::builder(TokioExecutor::new()).build_http();
    let answer = http.get(url.parse().unwrap()).await;
    timeout(PATIENCE, text(answer)).await.unwrap().unwrap()
}

/// One call that nobody disturbs.
pub(crate) async fn one_call(url: &str, server: &str) -> Answered {
    let asked = Asked {
        id: 1,
        token: format!("last-{server}"),
        trace: "f".repeat(32),
        server: server.to_owned(),
        mode: "echo",
    };
    let http: Http = Client::builder(TokioExecutor::new()).build_http();
    let answer = http
        .request(post(&format!("{url}/mcp"), &[], &asked.body("{}")))
        .await;
    let body = timeout(PATIENCE, text(answer)).await.unwrap().unwrap();
    let mut made = Made {
        trace: asked.trace.clone(),
        mode: asked.mode,
        how: How::Legacy,
        answers: 0,
        answered: Answered::Never,
        odd: None,
    };
    asked.judge(&body, &mut made);
    made.answered
}
