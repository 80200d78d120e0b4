//! A server that never stops talking costs its own callers at most, and never a stop.
//!
//! The gateway has a runtime with a single worker: whoever keeps that one busy for good keeps all
//! clients waiting, and would do so here.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    time::{Instant, timeout},
};

use crate::support::{Front, Gateway, TestGateway};

/// Much longer than a test takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time of what has nothing to do with the server. Nothing would ever be answered where the
/// one worker is kept; other tests may have the processor for a while.
const AT_ONCE: Duration = Duration::from_secs(20);

/// One flood at a time: each keeps two threads busy.
static TURN: Mutex<()> = Mutex::new(());

const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// Where the server does not stop, and what it says again and again.
#[derive(Clone, Copy)]
struct Endless {
    /// The method, of HTTP or of MCP, in whose answer it does so.
    method: &'static str,
    head: &'static str,
    words: &'static str,
}

/// One server of HTTP that is well but for what `endless` says.
fn serve(endless: Endless) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Ends with the connection.
            thread::spawn(move || converse(&stream, endless));
        }
    });
    address
}

fn converse(mut stream: &TcpStream, endless: Endless) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body)?;
        let message: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let verb = head.split(' ').next().unwrap_or_default();
        if [verb, message["method"].as_str().unwrap_or_default()].contains(&endless.method) {
            stream.write_all(endless.head.as_bytes())?;
            let words = endless.words.repeat(2000);
            loop {
                stream.write_all(words.as_bytes())?;
            }
        }
        stream.write_all(answer(verb, &message).as_bytes())?;
    }
}

fn answer(verb: &str, message: &serde_json::Value) -> String {
    let result = match message["method"].as_str() {
        Some("initialize") => {
            r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"e","version":"1"}}"#
        }
        Some("tools/list") => r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#,
        _ => "{}",
    };
    if verb != "POST" {
        return "HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n".to_owned();
    }
    if message["id"].is_null() {
        return "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n".to_owned();
    }
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
        message["id"]
    );
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Runs `test` on a gateway in front of the server; fails where nothing moves any more.
fn check(endless: Endless, test: impl AsyncFnOnce(&Gateway) + Send + 'static) {
    check_within("1s", endless, test);
}

/// The same where a call may take so long.
fn check_within(
    timeout: &str,
    endless: Endless,
    test: impl AsyncFnOnce(&Gateway) + Send + 'static,
) {
    let url = format!("url = \"http://{}/mcp\"", serve(endless));
    let keys = format!("{url}\ntransport = \"http\"\nera = \"legacy\"\ntimeout = \"{timeout}\"");
    check_beside(keys, &["mcp_bad_echo", "mcp_good_uuid"], test);
}

/// The same with a server of these `keys`, as soon as the tools `listed` are.
fn check_beside(
    keys: String,
    listed: &'static [&'static str],
    test: impl AsyncFnOnce(&Gateway) + Send + 'static,
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, end) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let plan = TestGateway::new().section("bad", &keys);
            let gateway = plan
                .section("good", "transport = \"builtin\"")
                .launch()
                .await;
            let are_listed = |tools: &[String]| {
                let is_listed = |name: &&str| tools.iter().any(|tool| tool == name);
                listed.iter().all(is_listed)
            };
            gateway.tools_until(are_listed).await;
            test(&gateway).await;
            timeout(PATIENCE, gateway.stop()).await.unwrap();
        });
        done.send(()).unwrap();
    });
    end.recv_timeout(2 * PATIENCE).expect("the gateway goes on");
}

/// The good server answers at once, many times.
async fn others_are_served(gateway: &Gateway) {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for id in 0..10 {
        let (id, start) = (id.to_string(), Instant::now());
        client
            .ask(&id, "tools/call", r#""name":"mcp_good_uuid""#)
            .await;
        let answer = client.answer(&id).await;
        assert!(answer.result.is_some(), "{answer:?}");
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    }
}

/// The call ends when its time is over, and others are served meanwhile.
async fn only_its_call_fails(gateway: &Gateway) {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let start = Instant::now();
    client
        .ask("1", "tools/call", r#""name":"mcp_bad_echo""#)
        .await;
    others_are_served(gateway).await;
    let answer = client.answer("1").await;
    let error = answer.error.unwrap();
    assert!(error.contains("no response within 1s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1) + AT_ONCE);
}

/// A call fails for what its server does, which is named, before its time is over.
async fn is_given_up(gateway: &Gateway, why: &str) {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_bad_echo""#)
        .await;
    let error = client.answer("1").await.error.unwrap();
    assert!(
        error.contains("server `bad`") && error.contains(why),
        "{error}"
    );
    others_are_served(gateway).await;
}

/// What makes no event is not read for as long as a call may take, but given up.
#[test]
fn comments_in_place_of_an_answer() {
    for words in [":\n", "\n\n", ": keep-alive\n\n", "id: 1\ndata: \n\n"] {
        let endless = Endless {
            method: "tools/call",
            head: EVENTS,
            words,
        };
        check(endless, async |gateway| {
            is_given_up(gateway, "comments and blank lines").await;
        });
    }
}

#[test]
fn informational_responses_in_place_of_an_answer() {
    for words in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 Processing\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
    ] {
        let endless = Endless {
            method: "tools/call",
            head: "",
            words,
        };
        check_within("60s", endless, async |gateway| {
            is_given_up(gateway, "informational responses").await;
        });
    }
}

#[test]
fn answers_to_nothing() {
    let endless = Endless {
        method: "tools/call",
        head: EVENTS,
        words: "data: {\"jsonrpc\":\"2.0\",\"id\":\"another\",\"result\":{}}\n\n",
    };
    check(endless, only_its_call_fails);
}

#[test]
fn a_standing_stream_of_comments() {
    let endless = Endless {
        method: "GET",
        head: EVENTS,
        words: ":\n",
    };
    check(endless, others_are_served);
}

#[test]
fn a_body_of_one_byte_at_a_time() {
    let endless = Endless {
        method: "tools/call",
        head: "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        words: "1\r\n \r\n",
    };
    check(endless, only_its_call_fails);
}

/// Lines that are no messages, from a program that is never greeted.
#[test]
fn a_program_that_prints_on_and_on() {
    let keys = "command = \"yes\"".to_owned();
    check_beside(keys, &["mcp_good_uuid"], others_are_served);
}

/// Messages that nobody asked for, from one that was.
#[test]
fn a_program_that_tells_on_and_on() {
    let script = r#"
        say() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
        while read -r line; do
            id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case $line in
            *'"initialize"'*) say '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}' ;;
            *'"tools/list"'*)
                say '{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}'
                exec yes '{"jsonrpc":"2.0","method":"notifications/message","params":{}}' ;;
            *) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id" ;;
            esac
        done"#;
    let keys = format!("command = 'sh'\nargs = ['-c', '''{script}''']\nera = 'legacy'");
    check_beside(keys, &["mcp_bad_echo", "mcp_good_uuid"], others_are_served);
}
