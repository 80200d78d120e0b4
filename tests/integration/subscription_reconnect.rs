//! Who is only subscribed, on a connection of its own that was lost: it is made again by itself, at
//! nobody's expense.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::support::{Auto, Backend, Client, Era, Front, Gateway, Transport, soon, wire::Envelope};

const ECHO: &str = r#""name":"mcp_x_echo""#;
const LISTENS: &str = r#"{"sampling":{}}"#;
const CALLS: &str = r#"{"elicitation":{}}"#;

async fn client(gateway: &Gateway, capabilities: &str) -> Client {
    gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await
}

/// Whether `request` greets for clients with these `capabilities`.
fn greets(request: &Envelope, capabilities: &str) -> bool {
    request.method() == "initialize"
        && request.param(&["capabilities"]).as_deref() == Some(capabilities)
}

/// A client that is subscribed on a connection of its own.
async fn listener(backend: &Backend, gateway: &Gateway) -> Client {
    let client = client(gateway, LISTENS).await;
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask("\"s\"", "resources/subscribe", uri).await;
    let asked = backend.asked("resources/subscribe").await;
    asked.answer("{}").await;
    client.answer("\"s\"").await.value();
    client
}

/// The connection of `client` is lost during a call.
async fn lose(backend: &Backend, client: &Client) {
    client.ask("\"l\"", "tools/call", ECHO).await;
    backend.asked("tools/call").await.die().await;
    client.answer("\"l\"").await.failure();
}

/// The starts that have failed, once there are no more of them for a while.
async fn failed_starts(gateway: &Gateway) -> u64 {
    let counted = async {
        let mut known = 0;
        loop {
            let status = gateway.status("x").await;
            let now = status["failed_starts"].as_u64().unwrap();
            if now > 0 && now == known {
                return now;
            }
            known = now;
            sleep(Duration::from_millis(300)).await;
        }
    };
    soon("no more starts fail", counted).await
}

const KEYS: &str = "isolation = 'session'\nbreaker = { failures = 0 }\n";

/// However many listen to what cannot be started for them, others are started for.
#[tokio::test]
async fn those_who_listen_hold_back_no_start_of_others() {
    let retry = "retry = { base = '10ms', max = '10ms', jitter = 0.0, stable_after = '1ms' }";
    let keys = format!("{KEYS}{retry}");
    let (backend, gateway) = Gateway::governed(Transport::WebSocket, Era::Legacy, &keys).await;
    let mut listeners = Vec::new();
    for _ in 0..12 {
        listeners.push(listener(&backend, &gateway).await);
    }
    backend.on_request(|request| greets(request, LISTENS).then_some(Auto::Die));
    for listener in &listeners {
        lose(&backend, listener).await;
    }
    let found = failed_starts(&gateway).await;
    assert!(
        (15..=18).contains(&found),
        "half of 30, and few more: {found}"
    );
    let other = client(&gateway, CALLS).await;
    other.ask("1", "tools/call", ECHO).await;
    backend.asked("tools/call").await.answer("{}").await;
    other.answer("1").await.value();
    gateway.stop().await;
}

/// Whose call wants what others only listen to is told at once where nothing more can be started.
#[tokio::test]
async fn a_call_of_one_who_listened_is_told_that_starts_are_limited() {
    let retry = "retry = { base = '10ms', max = '10ms', jitter = 0.0, stable_after = '1ms', \
                 starts_per_minute = 4 }";
    let keys = format!("{KEYS}{retry}");
    let (backend, gateway) = Gateway::governed(Transport::WebSocket, Era::Legacy, &keys).await;
    let listener = listener(&backend, &gateway).await;
    backend.on_request(|request| {
        let fails = greets(request, LISTENS) || greets(request, CALLS);
        fails.then_some(Auto::Die)
    });
    lose(&backend, &listener).await;
    assert_eq!(failed_starts(&gateway).await, 2, "half of 4");
    let other = client(&gateway, CALLS).await;
    soon("no more starts", limited(&other)).await;
    assert_eq!(failed_starts(&gateway).await, 4);
    listener.ask("1", "tools/call", ECHO).await;
    let failure = listener.answer("1").await.failure();
    assert_eq!(failure["data"]["reason"], "starts_limited", "{failure}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.contains("4 failed starts within a minute"),
        "{message}"
    );
    gateway.stop().await;
}

/// Calls until no more starts are to be had.
async fn limited(client: &Client) {
    for id in 1.. {
        let id = id.to_string();
        client.ask(&id, "tools/call", ECHO).await;
        let failure = client.answer(&id).await.failure();
        if failure["data"]["reason"] == "starts_limited" {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// A server that knows its session until a subscription is renewed is greeted less and less often.
#[tokio::test]
async fn a_server_that_forgets_at_each_subscription_is_left_pauses() {
    let retry = "retry = { base = '100ms', max = '10s', jitter = 0.0 }";
    let keys = format!("{KEYS}{retry}");
    let (backend, gateway) = Gateway::governed(Transport::Http, Era::Legacy, &keys).await;
    let listener = listener(&backend, &gateway).await;
    let greeted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&greeted);
    backend.on_request(move |request| {
        if greets(request, LISTENS) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        let forgets = matches!(request.method(), "resources/subscribe" | "tools/call");
        forgets.then_some(Auto::Status(404))
    });
    let start = Instant::now();
    listener.ask("1", "tools/call", ECHO).await;
    listener.answer("1").await.failure();
    let again = async {
        while greeted.load(Ordering::SeqCst) < 4 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it is greeted several times", again).await;
    // The first is made at once; then 200, 400 and 800 ms pass.
    assert!(
        start.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        start.elapsed()
    );
    gateway.stop().await;
}
