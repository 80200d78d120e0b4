//! A server behind a URL that goes away and comes back: what one of its connections finds out holds of
//! the others.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde_json::Value;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon, way::Way,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// A legacy server that answers calls, a gateway, and the way between the two.
async fn behind_a_way(keys: &str) -> (Backend, Way, Gateway) {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.on_request(|request| {
        let answer = || Auto::Result(r#"{"content":[]}"#.to_owned());
        (request.method() == "tools/call").then(answer)
    });
    let way = Way::new(backend.address());
    let keys = format!("url = \"{}\"\ntransport = \"http\"\n{keys}", way.url());
    let gateway = TestGateway::new().section("x", &keys).start().await;
    (backend, way, gateway)
}

/// A client that gets an instance of its own for what it can do.
async fn able(gateway: &Gateway, capabilities: &str) -> Client {
    gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await
}

/// Calls `echo` on and on until what comes is as `expected`: the code of an error, or nothing.
async fn call_until(client: &Client, expected: Option<&str>) {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let calls = async {
        loop {
            let id = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
            client.ask(&id, "tools/call", ECHO).await;
            let answer = client.answer(&id).await;
            let failure = answer.error.is_some().then(|| answer.failure());
            let code = failure
                .as_ref()
                .map(|it| it["data"]["code"].as_str().unwrap());
            if code == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(&format!("a call ends as {expected:?}"), calls).await;
}

/// Nobody calls on the catalog's connection, and nothing is due on it for half a minute.
#[tokio::test]
async fn what_an_instance_finds_holds_of_its_server() {
    let (_backend, mut way, gateway) = behind_a_way("breaker = { open_for = \"1h\" }").await;
    let client = able(&gateway, r#"{"sampling":{}}"#).await;
    call_until(&client, None).await;
    way.shut().await;
    call_until(&client, Some("BREAKER_OPEN")).await;
    let is_away = |status: &Value| status["state"] != "connected";
    gateway.status_until("x", is_away).await;
    way.open();
    // The breaker closes once the server is reached, however long it would be open.
    call_until(&client, None).await;
    let is_back =
        |status: &Value| status["state"] == "connected" && status["breaker"]["state"] == "closed";
    gateway.status_until("x", is_back).await;
    gateway.stop().await;
}

const SUBSCRIBED: &str = r#""uri":"x+file:///a.txt""#;

/// A client that is subscribed to a resource on an instance of its own, which was lost and could not be
/// made again at first; and what the status of its server is then.
async fn listener_of_a_lost_server() -> (Backend, Way, Gateway, Client, Value) {
    let keys = "breaker = { failures = 0 }\n\
                health = { interval = \"1h\", failures = 1 }\n\
                retry = { base = \"10ms\", max = \"10ms\", starts_per_minute = 1000 }";
    let (backend, mut way, gateway) = behind_a_way(keys).await;
    let client = able(&gateway, r#"{"sampling":{}}"#).await;
    client.listen().await;
    client.ask("\"s\"", "resources/subscribe", SUBSCRIBED).await;
    let asked = backend.asked("resources/subscribe").await;
    asked.answer("{}").await;
    client.answer("\"s\"").await.value();
    way.shut().await;
    // Who finds out that it is away need not be who listens.
    let other = able(&gateway, r#"{"sampling":{}}"#).await;
    let lost = async {
        loop {
            call_until(&other, Some("UNAVAILABLE")).await;
            let status = gateway.status("x").await;
            let instance = &status["instances"][0];
            let states = [&status["state"], &instance["state"]];
            if states.iter().all(|state| **state != "connected") && starts(instance) > 0 {
                return status;
            }
        }
    };
    let status = soon("it is looked for in vain", lost).await;
    (backend, way, gateway, client, status)
}

/// Attempts that came to nothing.
fn starts(status: &Value) -> u64 {
    status["failed_starts"].as_u64().unwrap_or_default()
}

/// Who only listens is resubscribed once the server is back, also after it was looked for in vain.
#[tokio::test]
async fn who_only_listens_is_subscribed_again() {
    let (backend, mut way, gateway, client, _) = listener_of_a_lost_server().await;
    way.open();
    let again = backend.asked("resources/subscribe").await;
    again.answer("{}").await;
    let told = client.must("notifications/resources/updated").await;
    let uri = told.param(&["uri"]);
    assert_eq!(uri.as_deref(), Some(r#""x+file:///a.txt""#));
    gateway.stop().await;
}

/// Who only listens waits until the server is found to be back; a call has it looked for.
#[tokio::test]
async fn a_call_looks_for_what_others_only_listen_to() {
    let (_backend, _way, gateway, client, lost) = listener_of_a_lost_server().await;
    // The catalog's connection is tried on and on meanwhile.
    let later = |status: &Value| starts(status) > starts(&lost) + 10;
    let before = starts(&gateway.status_until("x", later).await["instances"][0]);
    call_until(&client, Some("UNAVAILABLE")).await;
    let is_tried = |status: &Value| starts(&status["instances"][0]) > before;
    gateway.status_until("x", is_tried).await;
    gateway.stop().await;
}

/// Who reaches it again spares the others the pause that each of them would make.
#[tokio::test]
async fn one_that_reaches_a_server_spares_the_others_their_pause() {
    let keys = "breaker = { failures = 0 }\n\
                health = { interval = \"1h\", failures = 1 }\n\
                retry = { base = \"1h\", max = \"1h\" }";
    let (_backend, mut way, gateway) = behind_a_way(keys).await;
    let first = able(&gateway, r#"{"sampling":{}}"#).await;
    call_until(&first, None).await;
    way.shut().await;
    call_until(&first, Some("UNAVAILABLE")).await;
    let are_lost = |status: &Value| {
        let instance = &status["instances"][0];
        [&status["state"], &instance["state"]].map(Value::as_str) == [Some("disconnected"); 2]
    };
    gateway.status_until("x", are_lost).await;
    way.open();
    let second = able(&gateway, r#"{"elicitation":{}}"#).await;
    call_until(&second, None).await;
    let is_back = |status: &Value| status["state"] == "connected";
    gateway.status_until("x", is_back).await;
    call_until(&first, None).await;
    gateway.stop().await;
}
