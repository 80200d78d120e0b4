//! Calls that are made again: behind a URL whose server starts anew, and on another replica.

use std::time::Duration;

use tokio::time::sleep;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, way::Way,
};

/// A tool that may be called twice.
const TOOLS: &str =
    r#"[{"name":"sets","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true}}]"#;
const SETS: &str = r#""name":"mcp_x_sets""#;
const DONE: &str = r#"{"content":[]}"#;

async fn behind(way: &Way) -> (Gateway, Client) {
    let keys = format!("url = \"{}\"\ntransport = \"http\"\n", way.url());
    let gateway = TestGateway::new().section("x", &keys).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    (gateway, client)
}

async fn ask(client: &Client, id: &str, name: &str) {
    client.ask(id, "tools/call", name).await;
}

/// A server behind a URL that is away for a moment loses its sessions, and costs no call that may be
/// made twice.
#[tokio::test]
async fn a_server_behind_a_url_that_starts_anew_is_waited_for() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.set_list("tools/list", TOOLS);
    let mut way = Way::new(backend.address());
    let (gateway, client) = behind(&way).await;
    ask(&client, "1", SETS).await;
    let first = backend.asked("tools/call").await;
    way.shut().await;
    backend.forget_sessions();
    sleep(Duration::from_millis(200)).await;
    way.open();
    let again = backend.asked("tools/call").await;
    again.answer(DONE).await;
    assert!(client.answer("1").await.result.is_some());
    drop(first);
    gateway.stop().await;
}

/// What a lost replica had begun goes to another where doing it twice does no harm, and the same
/// where it answered with an HTTP error.
#[tokio::test]
async fn another_replica_takes_what_may_be_done_twice() {
    for status in [None, Some(503)] {
        let (a, b) = (
            Backend::start(Transport::Http, Era::Legacy).await,
            Backend::start(Transport::Http, Era::Legacy).await,
        );
        for backend in [&a, &b] {
            backend.set_list("tools/list", TOOLS);
        }
        b.on_request(|request| {
            let is_call = request.method() == "tools/call";
            is_call.then(|| Auto::Result(DONE.to_owned()))
        });
        let reached = [&a, &b].map(|it| it.config().trim().replace('\n', ", "));
        let replicas = format!("replicas = [{{ {} }}, {{ {} }}]", reached[0], reached[1]);
        let gateway = TestGateway::new().section("x", &replicas).start().await;
        gateway
            .status_until("x", |status| {
                let mut replicas = status["replicas"].as_array().unwrap().iter();
                replicas.all(|replica| replica["state"] == "connected")
            })
            .await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        if let Some(status) = status {
            a.on_http(move |verb, _| (verb == "POST").then_some(status));
        } else {
            a.on_request(|request| (request.method() == "tools/call").then_some(Auto::Die));
        }
        ask(&client, "1", SETS).await;
        assert!(client.answer("1").await.result.is_some(), "{status:?}");
        gateway.stop().await;
    }
}

/// Progress is that of the call, whichever connections it is made on: clients of 2026-07-28 hear what the
/// second says once it is more than what the first said.
#[tokio::test]
async fn progress_of_a_call_that_is_made_again_goes_on() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::WebSocket, Era::Modern),
        (Transport::HttpEvents, Era::Modern),
    ] {
        for front in [Front::Modern, Front::Streamable] {
            let backend = Backend::start(transport, era).await;
            backend.set_list("tools/list", TOOLS);
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.call("1", "mcp_x_sets", "42").await;
            let first = backend.asked("tools/call").await;
            first.progress(5).await;
            let what = format!("{transport:?} {front:?}");
            expect_progress(&client, 5, &what).await;
            first.die().await;
            let again = backend.asked("tools/call").await;
            for amount in [3, 5, 6] {
                again.progress(amount).await;
            }
            again.answer(DONE).await;
            let older = if front.is_modern() { &[][..] } else { &[3, 5] };
            for amount in older.iter().chain(&[6]) {
                expect_progress(&client, *amount, &what).await;
            }
            assert!(client.answer("1").await.result.is_some(), "{what}");
            gateway.stop().await;
        }
    }
}

async fn expect_progress(client: &Client, amount: u32, what: &str) {
    let told = client.must("notifications/progress").await;
    let progress = told.param(&["progress"]);
    assert_eq!(progress, Some(amount.to_string()), "{what}");
}
