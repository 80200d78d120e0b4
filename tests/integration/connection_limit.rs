//! As many connections as there may be: those that are not used make room, and no other does.

use std::time::Duration;

use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::support::{Backend, Era, Front, TestGateway, Transport, soon};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// Each of them would hold its place for 15 s.
#[tokio::test]
async fn a_probe_is_answered_beside_silent_connections() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting("limits.connections = 8")
        .server("x", &backend)
        .start()
        .await;
    let mut calls = Vec::new();
    for front in [Front::Sse, Front::Streamable] {
        let client = gateway.client(front, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        calls.push((client, backend.asked("tools/call").await));
    }
    let mut silent = Vec::new();
    for _ in 0..24 {
        silent.push(TcpStream::connect(gateway.addr()).await.unwrap());
    }
    let start = Instant::now();
    let answer = gateway.http().get("/healthz", &[]).await;
    assert_eq!(answer.status(), 200);
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    let mut byte = [0];
    let first = silent[0].read(&mut byte);
    let closed = soon("the first of them is closed", first).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    // The last few may stay, as long as nobody waits.
    let last = silent[23].read(&mut byte);
    assert!(timeout(Duration::from_secs(1), last).await.is_err());
    for (client, asked) in calls {
        asked.answer(r#"{"content":[]}"#).await;
        client.answer("1").await.value();
    }
    gateway.stop().await;
}

/// Clients that come in turn and keep their connections do not shut each other out.
#[tokio::test]
async fn connections_between_requests_make_room() {
    let gateway = TestGateway::new()
        .setting("limits.connections = 2")
        .start()
        .await;
    let clients = [(); 6].map(|()| gateway.http());
    for _ in 0..2 {
        for client in &clients {
            let answer = client.get("/healthz", &[]).await;
            assert_eq!(answer.status(), 200);
            answer.text().await;
        }
    }
    gateway.stop().await;
}
