//! What clients may take of the process: at each limit, past it, and back under it.

use std::time::Duration;

use crate::{
    harness::{Raw, launch},
    support::{Gateway, wire},
};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
const KEY: &str = "tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7";

/// Until something is closed that is closed soon.
const SOON: Duration = Duration::from_secs(10);

/// After which something is still open that stays.
const WHILE: Duration = Duration::from_millis(1200);

async fn launch_with(setting: &str) -> Gateway {
    launch(&format!("listen = \"127.0.0.1:0\"\n{setting}")).await
}

/// The head of a POST with a body of so many bytes.
fn head(gateway: &Gateway, bytes: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {bytes}\r\n\r\n",
        gateway.addr()
    )
}

/// Those past the limit are closed at once, until another has left.
#[tokio::test]
pub(crate) async fn connections_per_address() {
    for limit in [2, 3] {
        let setting = format!("limits.connections_per_address = {limit}");
        let gateway = launch_with(&setting).await;
        let open = async || {
            let request = format!("GET /sse HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.addr());
            Raw::send(gateway.addr(), &request).await
        };
        let (mut first, mut second) = (open().await, open().await);
        assert_eq!((first.status().await, second.status().await), (200, 200));
        let mut third = open().await;
        let is_closed = third.is_closed_within(WHILE).await;
        assert_eq!(is_closed, limit == 2);
        if is_closed {
            drop(first);
            let status = async { while open().await.is_closed_within(WHILE).await {} };
            crate::support::soon("there is room", status).await;
        }
    }
}

#[tokio::test]
pub(crate) async fn bytes_in_flight() {
    let padded = |bytes: usize| format!("{PING}{}", " ".repeat(bytes - PING.len()));
    // Requests have half of it, and what a body is read into grows to twice its size.
    let small = launch_with("limits.bytes_in_flight = \"512KiB\"").await;
    let half = 256 << 10;
    for (bytes, expect) in [(half / 2, 200), (half + 1, 503), (half / 2 - 1, 200)] {
        let answer = small.http().post("/mcp", padded(bytes)).await;
        assert_eq!(answer.status().as_u16(), expect, "{bytes} bytes");
        let retry = answer.header("retry-after").map(str::to_owned);
        assert_eq!(retry.is_some(), expect == 503);
        if expect == 503 {
            let failure = wire::Envelope::of(&answer.text().await).failure();
            assert_eq!(failure["data"]["retryable"], true, "{failure}");
        }
    }
    let large = launch_with("limits.bytes_in_flight = \"2MiB\"").await;
    let answer = large.http().post("/mcp", padded(half + 1)).await;
    assert_eq!(answer.status(), 200);
}

/// The head has its time from the first byte on, on a new connection and after a request.
#[tokio::test]
pub(crate) async fn headers_timeout() {
    for (timeout, is_closed) in [("300ms", true), ("1m", false)] {
        let gateway = launch_with(&format!("limits.headers_timeout = \"{timeout}\"")).await;
        let whole = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", gateway.addr());
        let mut fresh = Raw::send(gateway.addr(), "GET /he").await;
        let mut used = Raw::send(gateway.addr(), &whole).await;
        assert_eq!(used.status().await, 200);
        let mut idle = Raw::send(gateway.addr(), &whole).await;
        assert_eq!(idle.status().await, 200);
        used.more("GET /he").await;
        for raw in [&mut fresh, &mut used] {
            assert_eq!(
                raw.is_closed_within(if is_closed { SOON } else { WHILE })
                    .await,
                is_closed
            );
        }
        assert!(
            !idle.is_closed_within(WHILE).await,
            "nothing was begun on it"
        );
    }
}

/// A body that stops is refused once the grace is over, unless no rate is asked for.
#[tokio::test]
pub(crate) async fn body_rate() {
    for (setting, expect) in [
        (
            "body_rate_min = \"1KiB\"\nbody_grace = \"200ms\"",
            Some(408),
        ),
        ("body_rate_min = \"1KiB\"\nbody_grace = \"1m\"", None),
        ("body_rate_min = \"0B\"\nbody_grace = \"200ms\"", None),
        ("body_rate_min = \"10B\"\nbody_grace = \"200ms\"", None),
    ] {
        let gateway = launch_with(&format!("[limits]\n{setting}")).await;
        let start = format!("{}{}", head(&gateway, PING.len()), &PING[..PING.len() - 1]);
        let mut raw = Raw::send(gateway.addr(), &start).await;
        if let Some(status) = expect {
            assert_eq!(raw.status().await, status, "{setting}");
            assert!(raw.is_closed_within(SOON).await);
            continue;
        }
        assert!(!raw.is_closed_within(WHILE).await, "{setting}");
        raw.more(&PING[PING.len() - 1..]).await;
        assert_eq!(raw.status().await, 200, "{setting}");
    }
}

/// So much of the body of a stranger is taken, which keeps the connection; with more it is closed.
#[tokio::test]
pub(crate) async fn unauthenticated_body() {
    let keys = format!("[governance]\nauth = \"keys\"\n[agents.ann]\nkeys = [\"{KEY}\"]");
    for (limit, bytes, is_closed) in [
        ("2KiB", 2048, false),
        ("2KiB", 2049, true),
        ("2KiB", 2047, false),
        ("4KiB", 2049, false),
        ("0B", 1, true),
    ] {
        let setting = format!("limits.unauthenticated_body = \"{limit}\"\n{keys}");
        let gateway = launch_with(&setting).await;
        let mut raw = Raw::send(gateway.addr(), &head(&gateway, bytes)).await;
        assert_eq!(raw.status().await, 401, "{limit} {bytes}");
        if is_closed {
            assert!(raw.is_closed_within(SOON).await, "{limit} {bytes}");
            continue;
        }
        raw.more(&" ".repeat(bytes)).await;
        raw.more(&format!(
            "GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n",
            gateway.addr()
        ))
        .await;
        raw.until("HTTP/1.1 200", 1).await;
    }
}
