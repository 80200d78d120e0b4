//! Sizes, depths and counts: at each limit, past it, and back under it.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    harness::{Raw, ask, http_backend, launch, names, try_launch, with_one},
    support::{Backend, Client, Front, Gateway, TestGateway, soon, wire},
};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

async fn launch_with(setting: &str) -> Gateway {
    launch(&format!("listen = \"127.0.0.1:0\"\n{setting}")).await
}

async fn posted(gateway: &Gateway, body: String) -> u16 {
    gateway.http().post("/mcp", body).await.status().as_u16()
}

#[tokio::test]
pub(crate) async fn body() {
    let small = launch_with("limits.body = \"2KiB\"").await;
    let padded = |bytes: usize| format!("{PING}{}", " ".repeat(bytes - PING.len()));
    for (bytes, expect) in [(2048, 200), (2049, 413), (2047, 200)] {
        assert_eq!(posted(&small, padded(bytes)).await, expect, "{bytes} bytes");
    }
    let large = launch_with("limits.body = \"3KiB\"").await;
    assert_eq!(posted(&large, padded(2049)).await, 200);
}

/// Whoever comes past the limit waits until somebody leaves.
#[tokio::test]
pub(crate) async fn connections() {
    for limit in [2, 3] {
        let gateway = launch_with(&format!("limits.connections = {limit}")).await;
        let open = async |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.addr());
            Raw::send(gateway.addr(), &request).await
        };
        // Streams that stay.
        let (mut first, mut second) = (open("/sse").await, open("/sse").await);
        assert_eq!((first.status().await, second.status().await), (200, 200));
        let mut third = open("/healthz").await;
        let at_once = timeout(Duration::from_millis(1500), third.status()).await;
        assert_eq!(at_once.is_ok(), limit == 3);
        drop(first);
        if limit == 2 {
            assert_eq!(soon("an answer", third.status()).await, 200);
        }
    }
}

#[tokio::test]
pub(crate) async fn depth() {
    let shallow = launch_with("limits.depth = 8").await;
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 2), "]".repeat(depth - 2));
        let params = format!(r#"{{"x":{open}{close}}}"#);
        wire::request("1", "ping", &params)
    };
    for (depth, expect) in [(8, 200), (9, 400), (7, 200)] {
        assert_eq!(
            posted(&shallow, nested(depth)).await,
            expect,
            "{depth} deep"
        );
    }
    let deep = launch_with("limits.depth = 9").await;
    assert_eq!(posted(&deep, nested(9)).await, 200);
    assert!(try_launch("limits.depth = 129").await.is_err());
}

#[tokio::test]
pub(crate) async fn headers() {
    for (setting, max) in [("1KiB", 1024), ("16KiB", 16 * 1024)] {
        let gateway = launch_with(&format!("limits.headers = \"{setting}\"")).await;
        for (bytes, expect) in [(max, 200), (max + 1, 431), (max - 1, 200)] {
            let host = gateway.addr().to_string();
            let pad = "x".repeat(bytes - "host".len() - host.len() - "pad".len());
            let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\npad: {pad}\r\n\r\n");
            let status = Raw::send(gateway.addr(), &request).await.status().await;
            assert_eq!(status, expect, "{bytes} bytes, limits.headers = {setting}");
            let status = over_http2(&gateway, bytes).await;
            assert_eq!(status, expect, "{bytes} bytes over HTTP/2");
        }
    }
    // How many there may be is not for the config to say.
    let gateway = launch_with("limits.headers = \"64KiB\"").await;
    for (count, expect) in [(100, 200), (101, 431), (99, 200)] {
        let others = "a: b\r\n".repeat(count - 1);
        let host = gateway.addr();
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n{others}\r\n");
        let status = Raw::send(host, &request).await.status().await;
        assert_eq!(status, expect, "{count} headers");
    }
}

/// The status of a request over HTTP/2 with headers of so many `bytes`.
async fn over_http2(gateway: &Gateway, bytes: usize) -> u16 {
    let client = legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let request = Request::get(format!("{}/healthz", gateway.running.url))
        .header("pad", "x".repeat(bytes - "pad".len()))
        .body(Full::<Bytes>::default())
        .unwrap();
    let answer = soon("an answer", client.request(request)).await;
    answer.unwrap().status().as_u16()
}

#[tokio::test]
pub(crate) async fn sessions_per_agent() {
    for (limit, expect) in [(2, [404, 200, 200]), (3, [200, 200, 200])] {
        let gateway = launch_with(&format!("limits.sessions_per_agent = {limit}")).await;
        let mut sessions = Vec::new();
        for _ in 0..3 {
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            sessions.push(client.session.clone().unwrap());
        }
        let mut statuses = Vec::new();
        for session in &sessions {
            let header = [("mcp-session-id", session.as_str())];
            let answer = gateway.http().post_with("/mcp", &header, PING).await;
            statuses.push(answer.status().as_u16());
        }
        assert_eq!(statuses, expect, "{limit} sessions");
    }
}

/// Calls with `pad` bytes more than nothing; the bytes that reached the server, or the reason why
/// none did.
async fn call_padded(
    client: &Client,
    backend: &Backend,
    id: &str,
    pad: usize,
) -> Result<usize, String> {
    let pad = "x".repeat(pad);
    let members = format!(r#""name":"mcp_one_echo","arguments":{{"pad":"{pad}"}}"#);
    client.ask(id, "tools/call", &members).await;
    tokio::select! {
        asked = backend.asked("tools/call") => {
            asked.answer(r#"{"content":[]}"#).await;
            client.answer(id).await;
            Ok(asked.headers["content-length"].to_str().unwrap().parse().unwrap())
        }
        answer = client.answer(id) => Err(reason(&answer.failure())),
    }
}

fn reason(failure: &Value) -> String {
    failure["data"]["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
pub(crate) async fn server_request() {
    let backend = http_backend().await;
    let gateway = with_one(&backend, "", "limits.request = \"1KiB\"").await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    // Ids of two digits on both sides keep their length from here on.
    let mut overhead = 0;
    for id in 10..20 {
        overhead = call_padded(&client, &backend, &id.to_string(), 0)
            .await
            .unwrap();
    }
    let fits = 1024 - overhead;
    let too_large = Err("too_large".to_owned());
    for (id, pad, expect) in [
        ("20", fits, Ok(1024)),
        ("21", fits + 1, too_large),
        ("22", fits - 1, Ok(1023)),
    ] {
        assert_eq!(call_padded(&client, &backend, id, pad).await, expect);
    }
    let other = http_backend().await;
    let gateway = with_one(&other, "", "limits.request = \"2KiB\"").await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert!(call_padded(&client, &other, "20", fits + 1).await.is_ok());
}

#[tokio::test]
pub(crate) async fn server_response() {
    let backend = http_backend().await;
    let gateway = with_one(&backend, "", "limits.response = \"1KiB\"").await;
    for (bytes, fits) in [(1024, true), (1025, false), (1023, true)] {
        assert_eq!(
            answered(&gateway, &backend, bytes).await,
            fits,
            "{bytes} bytes"
        );
    }
    let other = http_backend().await;
    let gateway = with_one(&other, "", "limits.response = \"2KiB\"").await;
    assert!(answered(&gateway, &other, 1025).await);
}

/// Whether an answer of `bytes` comes through.
async fn answered(gateway: &Gateway, backend: &Backend, bytes: usize) -> bool {
    let answer = async {
        let asked = backend.asked("tools/call").await;
        let result = |pad: &str| format!(r#"{{"content":[],"pad":"{pad}"}}"#);
        let empty = wire::result(asked.id(), &result("")).len();
        asked.answer(&result(&"x".repeat(bytes - empty))).await;
    };
    let params = r#"{"name":"mcp_one_echo"}"#;
    let (answer, ()) = tokio::join!(ask(gateway, "/mcp", "tools/call", params), answer);
    if answer.error.is_some() {
        assert_eq!(reason(&answer.failure()), "too_large");
    }
    answer.result.is_some()
}

/// Makes `before` calls that stay under way, and `waiting` more; what one more is told, if anything.
async fn one_more(top: &str, keys: &str, before: usize, waiting: usize) -> Option<Value> {
    let backend = http_backend().await;
    let gateway = with_one(&backend, top, keys).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let call = async |id: usize| {
        let id = id.to_string();
        client
            .ask(&id, "tools/call", r#""name":"mcp_one_echo""#)
            .await;
    };
    let mut running = Vec::new();
    for id in 0..before {
        call(id).await;
        running.push(backend.asked("tools/call").await);
    }
    for id in 0..waiting {
        call(before + id).await;
        let reached = |status: &Value| status["queued"] == id + 1;
        gateway.status_until("one", reached).await;
    }
    let last = (before + waiting).to_string();
    call(before + waiting).await;
    let come = |status: &Value| status["queued"] == waiting + 1;
    tokio::select! {
        _ = backend.asked("tools/call") => None,
        _ = gateway.status_until("one", come) => None,
        answer = client.answer(&last) => Some(answer.failure()),
    }
}

#[tokio::test]
pub(crate) async fn in_flight_per_agent() {
    let more = async |limit, before| {
        let top = format!("limits.in_flight_per_agent = {limit}");
        one_more(&top, "", before, 0).await
    };
    assert_eq!(more(2, 1).await, None, "at the limit");
    let refused = more(2, 2).await.expect("past it");
    assert_eq!(refused["data"]["code"], "RATE_LIMITED");
    assert_eq!(more(3, 2).await, None, "a limit of three");
}

#[tokio::test]
pub(crate) async fn server_in_flight() {
    let more = async |limit, before| {
        let keys = format!("limits = {{ in_flight = {limit}, queue = 0 }}");
        one_more("", &keys, before, 0).await
    };
    assert_eq!(more(2, 1).await, None, "at the limit");
    assert_eq!(reason(&more(2, 2).await.expect("past it")), "busy");
    assert_eq!(more(3, 2).await, None, "a limit of three");
}

#[tokio::test]
pub(crate) async fn server_queue() {
    let more = async |limit, waiting| {
        let keys = format!("limits = {{ in_flight = 1, queue = {limit} }}");
        one_more("", &keys, 1, waiting).await
    };
    assert_eq!(more(2, 1).await, None, "at the limit");
    assert_eq!(reason(&more(2, 2).await.expect("past it")), "busy");
    assert_eq!(more(3, 2).await, None, "a limit of three");
}

/// A program that never speaks and holds so many bytes; or one that has another one hold them.
fn glutton(bytes: usize, is_grandchild: bool) -> String {
    let hold =
        format!("x=$(head -c {bytes} /dev/zero | tr '\\\\0' x); echo full >&2; sleep 100; echo $x");
    let script = if is_grandchild {
        format!("(: ; {hold}) & wait")
    } else {
        hold
    };
    format!("command = \"sh\"\nargs = [\"-c\", \"\"\"{script}\"\"\"]\n")
}

/// Who uses more than it may is ended for a reason that is told, also where it is what the program
/// has started that uses it; who uses less goes on.
#[tokio::test]
pub(crate) async fn server_memory() {
    for is_grandchild in [false, true] {
        let program = glutton(64 << 20, is_grandchild);
        let start = async |limit: &str| {
            let keys = format!("{program}limits = {{ memory = \"{limit}\" }}");
            TestGateway::new().section("one", &keys).launch().await
        };
        let (roomy, tight) = (start("1GiB").await, start("32MiB").await);
        let reason = |status: &Value| status["reason"].as_str().unwrap_or_default().to_owned();
        let over = |status: &Value| reason(status).contains("limits.memory");
        let told = reason(&tight.status_until("one", over).await);
        assert!(told.contains("exceeded limits.memory = 32MiB: "), "{told}");
        let full = |status: &Value| status["stderr"].to_string().contains("full");
        let status = roomy.status_until("one", full).await;
        assert_eq!(status["state"], "connecting", "{status}");
        assert_eq!(status["failed_starts"], 0);
        tight.stop().await;
        roomy.stop().await;
    }
}

/// What is listed of two tools, of which the second has these members more, and what is said of that.
async fn listed_with(limit: &str, members: &str) -> (usize, Value) {
    let backend = http_backend().await;
    let plain = r#"{"name":"plain","inputSchema":{"type":"object"}}"#;
    let other = format!(r#"{{"name":"other","inputSchema":{{"type":"object"}}{members}}}"#);
    backend.set_list("tools/list", format!("[{plain},{other}]"));
    let gateway = with_one(&backend, "", limit).await;
    let own = names(&gateway, "/mcp/servers/one", "tools").await;
    assert_eq!(names(&gateway, "/mcp", "tools").await.len(), own.len());
    (own.len(), gateway.status("one").await["problems"].clone())
}

#[tokio::test]
pub(crate) async fn server_item() {
    let other = |bytes: usize| format!(r#","x":"{}""#, "y".repeat(bytes - 55));
    for (limit, bytes, expect) in [
        (1024, 1024, 2),
        (1024, 1025, 1),
        (1024, 1023, 2),
        (2048, 1025, 2),
    ] {
        let limit = format!("limits.item = \"{limit}B\"");
        let (count, problems) = listed_with(&limit, &other(bytes)).await;
        assert_eq!(count, expect, "{limit} {bytes}");
        assert_eq!(
            problems.to_string().contains("`other`"),
            expect == 1,
            "{problems}"
        );
    }
}

#[tokio::test]
pub(crate) async fn server_item_depth() {
    let deep = |levels: usize| {
        format!(
            r#","_meta":{}{}"#,
            r#"{"a":"#.repeat(levels - 1) + "1",
            "}".repeat(levels - 1)
        )
    };
    for (limit, levels, expect) in [
        ("", 32, 2),
        ("", 33, 1),
        ("", 31, 2),
        ("limits.item_depth = 40", 33, 2),
        ("limits.item_depth = 4", 5, 1),
    ] {
        let (count, problems) = listed_with(limit, &deep(levels)).await;
        assert_eq!(count, expect, "{limit} {levels}");
        assert_eq!(
            problems.to_string().contains("`other`"),
            expect == 1,
            "{problems}"
        );
    }
}
