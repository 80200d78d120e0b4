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
