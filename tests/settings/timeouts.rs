//! How long things may take. Where a key makes something happen, a gateway with a longer time
//! beside it shows that it has not happened there by then.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::mpsc,
    time::{Instant, interval},
};

use crate::{
    harness::{Raw, http_backend, launch, parse, with_one},
    support::{
        Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport,
        http::Http,
        soon, value,
        wire::{request, spawn},
    },
};

const CALL: &str = r#""name":"mcp_one_echo""#;
const DONE: &str = r#"{"content":[]}"#;

/// Comments keep every stream alive on which nothing is said: those of calls that take long, in both
/// eras; the standing stream of a session; that of HTTP+SSE; and one of notifications.
#[tokio::test]
pub(crate) async fn keep_alive() {
    let (quiet, _backend) = silent_server("1h").await;
    let (chatty, _other) = silent_server("1s").await;
    let check = async |stream: Silent| {
        let mut silent = stream.open(&quiet).await;
        let mut lively = stream.open(&chatty).await;
        lively.until(COMMENT, 2).await;
        assert!(!silent.so_far().contains(COMMENT), "{stream:?}");
    };
    join_all(Silent::ALL.map(check)).await;
}

const COMMENT: &str = ": keep-alive\n\n";

/// A gateway in front of a server that answers no call.
async fn silent_server(keep_alive: &str) -> (Gateway, Backend) {
    let backend = http_backend().await;
    let gateway = with_one(&backend, &format!("keep_alive = \"{keep_alive}\""), "").await;
    (gateway, backend)
}

/// A stream on which nothing is said for long.
#[derive(Clone, Copy, Debug)]
enum Silent {
    Call,
    Listen,
    ModernCall,
    OldSse,
    Standing,
}

impl Silent {
    const ALL: [Self; 5] = [
        Self::Call,
        Self::Listen,
        Self::ModernCall,
        Self::OldSse,
        Self::Standing,
    ];

    /// Opens it, and waits for what begins it.
    async fn open(self, gateway: &Gateway) -> Raw {
        let (verb, path, body) = match self {
            Self::Call => (
                "POST",
                "/mcp",
                request("1", "tools/call", r#"{"name":"mcp_one_echo"}"#),
            ),
            Self::Listen => (
                "POST",
                "/mcp",
                modern(
                    "subscriptions/listen",
                    r#""notifications":{"toolsListChanged":true}"#,
                ),
            ),
            Self::ModernCall => ("POST", "/mcp", modern("tools/call", CALL)),
            Self::OldSse => ("GET", "/sse", String::new()),
            Self::Standing => ("GET", "/mcp", String::new()),
        };
        let accept = match self {
            // Who would rather have JSON gets it unless it takes too long.
            Self::ModernCall => "application/json, text/event-stream",
            Self::Call | Self::Listen | Self::OldSse | Self::Standing => {
                "text/event-stream, application/json"
            }
        };
        let headers = self.headers(gateway).await;
        let length = body.len();
        let text = format!(
            "{verb} {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        let mut stream = Raw::send(gateway.addr(), &text).await;
        match self {
            Self::Call | Self::Standing => stream.until("id: ", 1).await,
            Self::Listen => {
                stream
                    .until("notifications/subscriptions/acknowledged", 1)
                    .await
            }
            // Nothing is said, not even a status, as long as its error may have one.
            Self::ModernCall => "",
            Self::OldSse => stream.until("event: endpoint", 1).await,
        };
        stream
    }

    /// What says whose stream it is.
    async fn headers(self, gateway: &Gateway) -> String {
        let named =
            |method: &str| format!("mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n");
        match self {
            Self::Call | Self::Standing => {
                let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
                format!("mcp-session-id: {}\r\n", client.session.as_deref().unwrap())
            }
            Self::Listen => named("subscriptions/listen"),
            Self::ModernCall => format!("{}mcp-name: mcp_one_echo\r\n", named("tools/call")),
            Self::OldSse => String::new(),
        }
    }
}

/// A request of 2026-07-28.
fn modern(method: &str, members: &str) -> String {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}}"#;
    request("1", method, &format!("{{{members},{meta}}}"))
}

/// Without a call and without a stream that is read a session ends; how many there are is no use of
/// them.
#[tokio::test]
pub(crate) async fn session_idle_timeout() {
    let start = async |timeout: &str| {
        let text = format!("listen = \"127.0.0.1:0\"\nsession_idle_timeout = \"{timeout}\"");
        let gateway = launch(&text).await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        (gateway, client)
    };
    let open = async |gateway: &Gateway| {
        let status = gateway.http().get("/status", &[]).await.text().await;
        value(&status)["sessions"].as_array().unwrap().len()
    };
    let (long, _client) = start("1h").await;
    let (short, client) = start("1s").await;
    soon("the session ends", async {
        while open(&short).await > 0 {}
    })
    .await;
    assert_eq!(open(&long).await, 1);
    let id = client.session.as_deref().unwrap();
    let headers = [("mcp-session-id", id)];
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.to_owned();
    let answer = short.http().post_with("/mcp", &headers, ping).await;
    assert_eq!(answer.status(), 404, "nor does it come back from the store");
}

/// The state that a server gave away with a question comes back to it only for so long.
#[tokio::test]
pub(crate) async fn request_state_ttl() {
    const ASKS: &str = r#"{"resultType":"input_required","requestState":"s"}"#;
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    backend.on_request(|envelope| {
        let is_call = envelope.method() == "tools/call";
        is_call.then(|| Auto::Result(ASKS.to_owned()))
    });
    let start = async |ttl: &str| {
        let text = format!("request_state_ttl = \"{ttl}\"\n");
        let gateway = TestGateway::new().setting(&text);
        let gateway = gateway.server("one", &backend).start().await;
        let client = gateway.client(Front::Modern, "/mcp", "{}").await;
        client.ask("1", "tools/call", CALL).await;
        let state = client.answer("1").await.value()["requestState"].clone();
        (gateway, client, format!(r#"{CALL},"requestState":{state}"#))
    };
    let (_long, patient, of_patient) = start("1h").await;
    let (_short, hasty, of_hasty) = start("1s").await;
    hasty.ask("2", "tools/call", &of_hasty).await;
    hasty.answer("2").await.value();
    soon("the state expires", async {
        loop {
            hasty.ask("3", "tools/call", &of_hasty).await;
            let answer = hasty.answer("3").await;
            if answer.error.is_some() {
                let failed = answer.failure();
                assert!(
                    failed["message"].as_str().unwrap().contains("has expired"),
                    "{failed}"
                );
                break;
            }
            // It is good for a few requests only.
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    })
    .await;
    patient.ask("2", "tools/call", &of_patient).await;
    patient.answer("2").await.value();
}

#[tokio::test]
pub(crate) async fn drain_timeout() {
    let (gateway, _backend, _client) = with_running_call("0s").await;
    let drained = soon("the stop", gateway.running.stop()).await;
    assert!(!drained, "the call was cut off");

    let (gateway, backend, client) = with_running_call("1m").await;
    let asked = backend.asked("tools/call").await;
    let addr = gateway.addr();
    let stop = spawn(gateway.running.stop());
    let http = Http::new(addr);
    let draining = async { while http.get("/readyz", &[]).await.status() == 200 {} };
    soon("it is not ready any more", draining).await;
    asked.answer(DONE).await;
    assert!(client.answer("1").await.result.is_some());
    assert!(soon("the stop", stop).await.unwrap(), "the call finished");
}

async fn with_running_call(drain: &str) -> (Gateway, Backend, Client) {
    let backend = http_backend().await;
    let server = backend.config();
    let config =
        format!("listen = \"127.0.0.1:0\"\ndrain_timeout = \"{drain}\"\n[servers.one]\n{server}");
    let gateway = launch(&config).await;
    gateway.settled().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.ask("1", "tools/call", CALL).await;
    gateway
        .status_until("one", |status| status["in_flight"] == 1)
        .await;
    (gateway, backend, client)
}

/// Starts a gateway with `patient` keys and one with `hasty` keys for its server `one`; waits
/// until the second gives up for `reason`, and then checks that the first has not.
async fn check_start(url: &str, patient: &str, hasty: &str, reason: &str) {
    let start = async |keys: &str| {
        let keys = format!("{url}\n{keys}");
        TestGateway::new().section("one", &keys).launch().await
    };
    let waits = start(patient).await;
    let gives_up = start(hasty).await;
    let gave_up = |status: &serde_json::Value| status["state"] == "failed";
    let status = gives_up.status_until("one", gave_up).await;
    let found = status["reason"].as_str().unwrap();
    assert!(found.starts_with(reason), "{found}");
    assert_eq!(waits.status("one").await["state"], "connecting");
}

#[tokio::test]
pub(crate) async fn startup_timeout() {
    let backend = http_backend().await;
    backend.on_request(|_| Some(Auto::Nothing));
    check_start(
        &backend.config(),
        "startup_timeout = \"10m\"",
        "startup_timeout = \"200ms\"",
        "start timed out after 200ms (`startup_timeout`)",
    )
    .await;
}

#[tokio::test]
pub(crate) async fn connect_timeout() {
    let (hasty, patient) = ("connect_timeout = \"200ms\"", "connect_timeout = \"10m\"");
    let late = "start timed out after 200ms (`connect_timeout`)";
    // It takes connections and never answers the handshake of WebSocket.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute_addr = mute.local_addr().unwrap();
    let url = format!("url = \"ws://{mute_addr}/\"");
    check_start(&url, patient, hasty, late).await;
    // Nor that of TLS.
    let url = format!("url = \"wss://{mute_addr}/\"");
    check_start(&url, patient, hasty, late).await;
    let url = format!("url = \"https://{mute_addr}/\"\ntransport = \"http\"");
    check_start(
        &url,
        patient,
        hasty,
        "no connection: connection timed out after 200ms (`connect_timeout`)",
    )
    .await;

    let (full, _waiting) = full_listener().await;
    let url = format!("url = \"http://{}/\"", full.local_addr().unwrap());
    check_start(&url, patient, hasty, "no connection: ").await;
}

/// A listener at which no connection opens, since too many already wait to be accepted.
async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let opening = TcpStream::connect(addr);
        match tokio::time::timeout(Duration::from_millis(200), opening).await {
            Ok(opened) => waiting.push(opened.unwrap()),
            Err(_) => return (listener, waiting),
        }
    }
    panic!("the queue of the listener has no end");
}

#[tokio::test]
pub(crate) async fn timeout() {
    check_timeout("timeout = \"10m\"", "timeout = \"200ms\"", "timeout").await;
}

/// What a tool says wins over what its server says, and over what another tool says.
#[tokio::test]
pub(crate) async fn tool_timeout() {
    check_timeout(
        "timeout = \"200ms\"\ntools.timeout = { echo = \"10m\", other = \"200ms\" }",
        "timeout = \"10m\"\ntools.timeout = { echo = \"200ms\", other = \"10m\" }",
        "tools.timeout",
    )
    .await;
}

/// Checks that a call of `echo` waits with `patient` keys of its server, beyond the 200 ms after
/// which it ends with `hasty` ones, whose `key` it is told.
async fn check_timeout(patient: &str, hasty: &str, key: &str) {
    let start = async |keys: &str| {
        let backend = http_backend().await;
        let gateway = Box::pin(with_one(&backend, "", keys)).await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.ask("1", "tools/call", CALL).await;
        let asked = backend.asked("tools/call").await;
        (gateway, backend, client, asked)
    };
    let (_patient, _slow, waits, asked) = start(patient).await;
    let (_hasty, _backend, gives_up, _asked) = start(hasty).await;
    let failure = gives_up.answer("1").await.failure();
    assert_eq!(failure["data"]["reason"], "timeout");
    let expect = format!("server `one`: no response within 200ms (its `{key}`)");
    assert_eq!(failure["message"], *expect);
    assert!(waits.pending().await.is_none());
    asked.answer(DONE).await;
    assert!(waits.answer("1").await.result.is_some());
}

#[tokio::test]
pub(crate) async fn max_total_timeout() {
    let ended = call_with_progress("timeout = \"1s\"\nmax_total_timeout = \"2500ms\"").await;
    let failure = ended.unwrap_err();
    assert!(
        failure.contains("2.5s (its `max_total_timeout`)"),
        "{failure}"
    );
    let ended = call_with_progress("timeout = \"1s\"\nmax_total_timeout = \"10m\"").await;
    assert_eq!(
        ended,
        Ok(()),
        "progress kept it running beyond both other times"
    );
}

/// Makes a call that reports progress for three seconds before it is answered.
async fn call_with_progress(keys: &str) -> Result<(), String> {
    let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
    let gateway = with_one(&backend, "", keys).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.call("1", "mcp_one_echo", "\"t\"").await;
    let asked = backend.asked("tools/call").await;
    let report = async {
        let mut ticks = interval(Duration::from_millis(100));
        for tick in 1..=30 {
            ticks.tick().await;
            asked.progress(tick).await;
        }
        asked.answer(DONE).await;
        std::future::pending::<()>().await;
    };
    let answer = async {
        loop {
            let message = client.next().await;
            if message.is_response() {
                return message;
            }
        }
    };
    let answer = tokio::select! {
        answer = answer => answer,
        () = report => unreachable!("it goes on for ever"),
    };
    match answer.error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The pauses between attempts to reach a server that is out of order, until there are `count`
/// or `enough` says so of the last one.
async fn pauses(retry: &str, count: usize, enough: impl Fn(Duration) -> bool) -> Vec<Duration> {
    let backend = http_backend().await;
    let (attempt, mut attempts) = mpsc::channel(64);
    backend.on_http(move |_, _| {
        attempt.try_send(Instant::now()).unwrap_or_default();
        Some(500)
    });
    let keys = format!("era = \"legacy\"\nretry = {{ {retry} }}");
    let gateway = TestGateway::new().server_with("one", &backend, &keys);
    let _gateway = gateway.launch().await;
    let mut last = soon("an attempt", attempts.recv()).await.unwrap();
    let mut pauses = Vec::new();
    while pauses.len() < count {
        let next = soon("another attempt", attempts.recv()).await.unwrap();
        pauses.push(next - last);
        last = next;
        if enough(pauses[pauses.len() - 1]) {
            break;
        }
    }
    pauses
}

#[tokio::test]
pub(crate) async fn retry_base() {
    let long = pauses("base = \"2s\", max = \"2s\", jitter = 0.0", 1, |_| false).await;
    assert!(long[0] >= Duration::from_secs(2), "{long:?}");
    let short = pauses("base = \"10ms\", max = \"2s\", jitter = 0.0", 1, |_| false).await;
    assert!(short[0] < Duration::from_secs(2), "{short:?}");
}

/// Six pauses that double from 50 ms on take 3.15 s in all.
#[tokio::test]
pub(crate) async fn retry_max() {
    let doubled = Duration::from_millis(50 * (1 + 2 + 4 + 8 + 16 + 32));
    let sum = async |max: &str| {
        let retry = format!("base = \"50ms\", max = \"{max}\", jitter = 0.0");
        pauses(&retry, 6, |_| false).await.iter().sum::<Duration>()
    };
    assert!(sum("1m").await >= doubled);
    assert!(sum("50ms").await < doubled);
}

/// Jitter takes a random part away; that twenty such parts are all small does not happen.
#[tokio::test]
pub(crate) async fn retry_jitter() {
    let base = Duration::from_millis(400);
    let steady = pauses("base = \"400ms\", max = \"400ms\", jitter = 0.0", 3, |_| {
        false
    })
    .await;
    assert!(steady.iter().all(|pause| *pause >= base), "{steady:?}");
    let early = |pause| pause < base / 4 * 3;
    let random = pauses("base = \"400ms\", max = \"400ms\", jitter = 1.0", 20, early).await;
    assert!(random.into_iter().any(early));
}

/// Without a word of the config: 30 s to open a connection, 2 minutes to start (package runners
/// download), 1 minute for a call, and 10 with progress.
#[test]
fn times_that_nobody_wrote() {
    let of = |keys: &str| {
        let config = parse(&format!("[servers.a]\ncommand = \"a\"\n{keys}")).unwrap();
        let server = config.servers.values().next().unwrap().clone();
        let times = [
            server.connect_timeout,
            server.startup_timeout,
            server.timeout,
            server.max_total_timeout,
        ];
        times.map(|time| time.as_secs())
    };
    assert_eq!(of(""), [30, 120, 60, 600]);
    assert_eq!(of("timeout = \"20m\""), [30, 120, 1200, 1200]);
}
