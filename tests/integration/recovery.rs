//! Servers that fail and come back: what is shown of them, who waits, and what is done twice.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;

use crate::support::{Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// The states that `/status` remembers of a server, the current one last.
fn states(status: &Value) -> Vec<String> {
    let history = status["history"].as_array().unwrap();
    let state = |past: &Value| past["state"].as_str().unwrap().to_owned();
    history.iter().map(state).collect()
}

/// Calls `echo`; the answer or the error.
async fn call(client: &Client, id: usize) -> Result<Value, Value> {
    let id = id.to_string();
    client.ask(&id, "tools/call", ECHO).await;
    let answer = client.answer(&id).await;
    if answer.error.is_some() {
        return Err(answer.failure());
    }
    Ok(answer.value())
}

async fn streamable(gateway: &Gateway) -> Client {
    gateway.client(Front::Streamable, "/mcp", "{}").await
}

/// A server that drops and comes back was connected, disconnected, connecting, connected; each
/// state once, with its time and reason.
#[tokio::test]
async fn each_state_is_shown_once() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let status = gateway.status("x").await;
    assert_eq!(states(&status), ["connecting", "connected"]);
    assert!(status["reason"].is_null(), "{status}");
    backend.on_request(|_| Some(Auto::Die));
    backend.die();
    let tried = |s: &Value| s["failed_starts"].as_u64() >= Some(3);
    let status = gateway.status_until("x", tried).await;
    assert_eq!(
        states(&status),
        ["connecting", "connected", "disconnected"],
        "however often it is tried again"
    );
    let last = status["history"].as_array().unwrap().last().unwrap();
    assert_eq!(status["state"], "disconnected");
    assert_eq!(status["since"], last["at"]);
    assert!(last["reason"].as_str().unwrap().contains("lost"), "{last}");
    backend.on_request(|_| None);
    let back = |s: &Value| s["state"] == "connected";
    let status = gateway.status_until("x", back).await;
    let tail = &states(&status)[2..];
    assert_eq!(tail, ["disconnected", "connecting", "connected"]);
    let page = gateway
        .http()
        .get("/status", &[("accept", "text/html")])
        .await;
    let page = page.text().await;
    assert!(page.contains(&format!("{} disconnected", last["at"].as_str().unwrap())));
    gateway.stop().await;
}

/// A server that is greeted and cannot be listed is not connected.
#[tokio::test]
async fn connected_means_listed() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        let refusal = r#"{"code":-32603,"message":"no tools today"}"#;
        (request.method() == "tools/list").then(|| Auto::Error(refusal.to_owned()))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let status = gateway.status("x").await;
    assert_eq!(states(&status), ["connecting", "degraded"], "{status}");
    assert!(
        status["reason"]
            .as_str()
            .unwrap()
            .contains("no tools today")
    );
    gateway.stop().await;
}

/// Lets the server answer calls as `answer` says, and counts them.
fn counting(backend: &Backend, answer: Auto) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    backend.on_request(move |request| {
        (request.method() == "tools/call").then(|| {
            counted.fetch_add(1, Ordering::SeqCst);
            answer.clone()
        })
    });
    count
}

/// Once the breaker is open nothing reaches the server; when its time is over one call does, and
/// the others follow.
#[tokio::test]
async fn an_open_breaker_answers_at_once() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let breaker = "breaker = { failures = 2, open_for = \"2s\" }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, breaker)
        .start()
        .await;
    let client = streamable(&gateway).await;
    let count = counting(&backend, Auto::Status(502));
    for id in 0..2 {
        let failure = call(&client, id).await.unwrap_err();
        assert_eq!(failure["data"]["reason"], "bad_answer", "{failure}");
    }
    let failure = call(&client, 2).await.unwrap_err();
    assert_eq!(failure["data"]["reason"], "breaker_open", "{failure}");
    assert_eq!(failure["data"]["server"], "x");
    let wait = failure["data"]["retryAfterMs"].as_u64().unwrap();
    assert!((1..=2000).contains(&wait), "{failure}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("server `x`: it keeps failing"),
        "{message}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 2, "nothing more reached it");
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "open", "{status}");
    assert_eq!(status["breaker"]["opened"], 1);

    let count = counting(&backend, Auto::Result("{}".to_owned()));
    let mut id = 3;
    let passes = async {
        while call(&client, id).await.is_err() {
            id += 1;
        }
    };
    soon("a call is let through", passes).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "closed", "{status}");
    gateway.stop().await;
}

/// What a tool answers is its own business, however often it is an error.
#[tokio::test]
async fn errors_of_tools_open_no_breaker() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let breaker = "breaker = { failures = 1, open_for = \"1h\" }";
    let gateway = TestGateway::new()
        .server_with("x", &backend, breaker)
        .start()
        .await;
    let client = streamable(&gateway).await;
    let own = r#"{"code":-32603,"message":"out of paper"}"#.to_owned();
    let failed = r#"{"content":[],"isError":true}"#.to_owned();
    for answer in [Auto::Error(own), Auto::Result(failed)] {
        let count = counting(&backend, answer);
        for id in 0..3 {
            drop(call(&client, id).await);
        }
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }
    let status = gateway.status("x").await;
    assert_eq!(status["breaker"]["state"], "closed", "{status}");
    gateway.stop().await;
}
