//! Who shares a connection, how long it lives, and which roots it offers.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{
    harness::{http_backend, with_one},
    support::{Backend, Client, Era, Front, Gateway, Transport, soon, value},
};

const CALL: &str = r#""name":"mcp_one_echo""#;
const DONE: &str = r#"{"content":[]}"#;

/// Makes a call; the number of the connection that it took.
async fn conn_of_call(client: &Client, backend: &Backend, id: &str) -> usize {
    client.ask(id, "tools/call", CALL).await;
    let asked = backend.asked("tools/call").await;
    asked.answer(DONE).await;
    client.answer(id).await;
    asked.conn.id
}

/// Makes a call during which the server asks for roots; the connection that it took.
async fn conn_of_curious_call(client: &Client, backend: &Backend, id: &str) -> usize {
    client.ask(id, "tools/call", CALL).await;
    let asked = backend.asked("tools/call").await;
    asked.ask("7", "roots/list", "{}").await;
    let roots = client.must("roots/list").await;
    client
        .respond(roots.id.as_deref().unwrap(), r#"{"roots":[]}"#)
        .await;
    backend.answered().await;
    asked.answer(DONE).await;
    client.answer(id).await;
    asked.conn.id
}

async fn session(gateway: &Gateway, capabilities: &str) -> Client {
    gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await
}

/// As long as everybody is the same agent, `agent` and `shared` do the same; `auto` differs from
/// them where a server asks for roots, which are those of one client.
#[tokio::test]
pub(crate) async fn isolation() {
    for (value, split) in [
        ("agent", false),
        ("auto", false),
        ("session", true),
        ("shared", false),
    ] {
        let backend = http_backend().await;
        let gateway = with_one(&backend, "", &format!("isolation = \"{value}\"")).await;
        let (a, b) = (session(&gateway, "{}").await, session(&gateway, "{}").await);
        let first = conn_of_call(&a, &backend, "1").await;
        let second = conn_of_call(&b, &backend, "1").await;
        assert_eq!(first != second, split, "{value}");
        assert_eq!(conn_of_call(&a, &backend, "2").await, first, "{value}");
        let greetings = if split { 3 } else { 1 };
        assert_eq!(backend.greeted(), greetings, "{value}");
    }
    for (value, connections) in [("pool", 1), ("call", 3)] {
        let backend = http_backend().await;
        let gateway = with_one(&backend, "", &format!("isolation = \"{value}\"")).await;
        let (a, b) = (session(&gateway, "{}").await, session(&gateway, "{}").await);
        let mut conns = BTreeSet::new();
        for (client, id) in [(&a, "1"), (&b, "1"), (&a, "2")] {
            conns.insert(conn_of_call(client, &backend, id).await);
        }
        assert_eq!(conns.len(), connections, "{value}");
        assert_eq!(backend.greeted(), 1 + connections, "{value}");
    }
    for (value, split) in [("agent", false), ("auto", true), ("shared", false)] {
        assert_eq!(splits_by_roots(value).await, split, "{value}");
    }
}

/// Whether sessions have connections of their own after the server asked one for its roots.
async fn splits_by_roots(isolation: &str) -> bool {
    let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
    let gateway = with_one(&backend, "", &format!("isolation = \"{isolation}\"")).await;
    let roots = r#"{"roots":{}}"#;
    let (a, b) = (
        session(&gateway, roots).await,
        session(&gateway, roots).await,
    );
    conn_of_curious_call(&a, &backend, "1").await;
    conn_of_call(&a, &backend, "2").await != conn_of_call(&b, &backend, "2").await
}

/// Of two calls at once, with one connection the second waits for the first.
#[tokio::test]
pub(crate) async fn pool_size() {
    for (size, at_once) in [(1, false), (2, true)] {
        let backend = http_backend().await;
        let keys = format!("isolation = \"pool\"\npool_size = {size}");
        let gateway = with_one(&backend, "", &keys).await;
        let client = session(&gateway, "{}").await;
        client.ask("1", "tools/call", CALL).await;
        let first = backend.asked("tools/call").await;
        client.ask("2", "tools/call", CALL).await;
        let count = |status: &serde_json::Value, key: &str| status[key].as_u64().unwrap_or(0);
        let both =
            |status: &serde_json::Value| count(status, "in_flight") + count(status, "queued") == 2;
        gateway.status_until("one", both).await;
        let second = if at_once {
            let second = backend.asked("tools/call").await;
            first.answer(DONE).await;
            second
        } else {
            assert!(backend.was_asked().await.is_none());
            first.answer(DONE).await;
            backend.asked("tools/call").await
        };
        client.answer("1").await;
        second.answer(DONE).await;
        client.answer("2").await;
        assert_eq!(first.conn.id != second.conn.id, at_once);
        assert_eq!(gateway.status("one").await["instances_live"], size);
    }
}

#[tokio::test]
pub(crate) async fn max_instances() {
    for (limit, kept) in [(1, false), (2, true)] {
        let backend = http_backend().await;
        let keys = format!("isolation = \"session\"\nmax_instances = {limit}");
        let gateway = with_one(&backend, "", &keys).await;
        let (a, b) = (session(&gateway, "{}").await, session(&gateway, "{}").await);
        let first = conn_of_call(&a, &backend, "1").await;
        conn_of_call(&b, &backend, "1").await;
        let again = conn_of_call(&a, &backend, "2").await;
        assert_eq!(first == again, kept, "max_instances = {limit}");
        let instances = gateway.status("one").await["instances_live"].clone();
        assert_eq!(instances, limit);
    }
}

#[tokio::test]
pub(crate) async fn idle_timeout() {
    let start = async |timeout: &str| {
        let backend = Backend::start(Transport::WebSocket, Era::Legacy).await;
        let keys = format!("isolation = \"session\"\nidle_timeout = \"{timeout}\"");
        let gateway = with_one(&backend, "", &keys).await;
        let client = session(&gateway, "{}").await;
        client.ask("1", "tools/call", CALL).await;
        let asked = backend.asked("tools/call").await;
        asked.answer(DONE).await;
        client.answer("1").await;
        (gateway, backend, client, asked)
    };
    let (_long, _keeper, _idler, kept) = start("10m").await;
    let (_short, _backend, _client, left) = start("100ms").await;
    soon("the idle connection ends", left.conn.closed.cancelled()).await;
    assert!(!kept.conn.closed.is_cancelled());
    // The catalog's own program sleeps where the key is written.
    for (keys, sleeps) in [("", false), ("idle_timeout = \"100ms\"", true)] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let gateway = with_one(&backend, "", keys).await;
        let state = if sleeps { "disconnected" } else { "connected" };
        let reached = |status: &serde_json::Value| status["state"] == state;
        let status = gateway.status_until("one", reached).await;
        let reason = sleeps.then_some("idle; the next call starts it");
        assert_eq!(status["reason"].as_str(), reason, "{keys}");
    }
}

#[tokio::test]
pub(crate) async fn roots() {
    let keys = r#"roots = ["file:///srv/data", { uri = "file:///srv/work", name = "Work" }]"#;
    let configured = json!([
        {"uri": "file:///srv/data"},
        {"uri": "file:///srv/work", "name": "Work"},
    ]);
    for (keys, expect) in [
        (keys, configured),
        ("roots = []", json!([])),
        ("", json!([{"uri": "file:///client"}])),
    ] {
        let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
        let gateway = with_one(&backend, "", keys).await;
        let client = session(&gateway, r#"{"roots":{}}"#).await;
        client.ask("1", "tools/call", CALL).await;
        let asked = backend.asked("tools/call").await;
        asked.ask("7", "roots/list", "{}").await;
        if keys.is_empty() {
            let question = client.must("roots/list").await;
            let roots = r#"{"roots":[{"uri":"file:///client"}]}"#;
            client.respond(question.id.as_deref().unwrap(), roots).await;
        }
        let answer = backend.answered().await;
        let answer = value(answer.result.as_deref().unwrap());
        assert_eq!(answer["roots"], expect, "{keys}");
        asked.answer(DONE).await;
        client.answer("1").await;
    }
}
