//! A program whose `idle_timeout` is written sleeps while nobody uses it.

use serde_json::Value;
use tollbridge::config::Server;

use crate::support::{Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon};

const CALL: &str = r#""name":"mcp_x_echo""#;
const DONE: &str = r#"{"content":[]}"#;
/// What a server says of itself.
const HELLO: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}"#;
const IDLE: &str = "idle; the next call starts it";

async fn one(keys: &str) -> (Backend, Gateway, Client) {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    (backend, gateway, client)
}

async fn asleep(gateway: &Gateway) -> Value {
    gateway
        .status_until("x", |status| status["reason"] == IDLE)
        .await
}

/// Makes a call, which takes the given connection.
async fn call(client: &Client, backend: &Backend, id: &str) -> usize {
    client.ask(id, "tools/call", CALL).await;
    let asked = backend.asked("tools/call").await;
    asked.answer(DONE).await;
    client.answer(id).await;
    asked.conn.id
}

#[tokio::test]
async fn it_sleeps_until_a_call_wakes_it_and_stays_listed() {
    let (backend, gateway, client) = one("idle_timeout = \"50ms\"").await;
    let mut last = 0;
    for id in 1..=3 {
        let status = asleep(&gateway).await;
        assert_eq!(status["state"], "disconnected", "{status}");
        assert_eq!(status["pid"], Value::Null, "{status}");
        assert_eq!(status["restarts"], 0, "{status}");
        assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
        let conn = call(&client, &backend, &id.to_string()).await;
        assert_ne!(conn, last, "it is another process");
        last = conn;
    }
    gateway.stop().await;
}

/// A client of which servers are told that it can be asked has a connection of its own: while that
/// one is made or used, the server is not shown as asleep although the catalog's connection is.
#[tokio::test]
async fn it_is_not_shown_as_asleep_while_it_works() {
    let (backend, gateway, _) = one("idle_timeout = \"50ms\"").await;
    let capabilities = r#"{"elicitation":{}}"#;
    let client = gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await;
    asleep(&gateway).await;
    backend.on_request(|request| (request.method() == "initialize").then_some(Auto::Hand));
    client.ask("1", "tools/call", CALL).await;
    let greeting = backend.asked("initialize").await;
    let check = async |state: &str| {
        let is_in_it = |status: &Value| status["state"] == state;
        let status = gateway.status_until("x", is_in_it).await;
        for part in ["asleep", "reason"] {
            assert_eq!(status[part], Value::Null, "{status}");
        }
        let last = status["history"].as_array().unwrap().last().unwrap();
        assert_eq!(last["state"], state, "{status}");
        assert_eq!(last["at"], status["since"], "{status}");
        assert_eq!(status["instances_live"], 1, "{status}");
    };
    check("connecting").await;
    greeting.answer(HELLO).await;
    let asked = backend.asked("tools/call").await;
    check("connected").await;
    asked.answer(DONE).await;
    client.answer("1").await.value();
    let status = asleep(&gateway).await;
    assert_eq!(status["asleep"], true, "{status}");
    assert_eq!(status["state"], "disconnected", "{status}");
    gateway.stop().await;
}

/// A config that no longer lets it sleep wakes it; another time does not.
#[tokio::test]
async fn a_config_wakes_it() {
    let (backend, gateway, _client) = one("idle_timeout = \"50ms\"").await;
    asleep(&gateway).await;
    let greeted = backend.greeted();
    let reload = |change: fn(&mut Server)| {
        let mut config = gateway.config.clone();
        config.servers.values_mut().for_each(change);
        gateway.running.core().apply_config(&config).unwrap()
    };
    reload(|x| x.idle_timeout *= 2);
    asleep(&gateway).await;
    assert_eq!(backend.greeted(), greeted);
    reload(|x| x.sleeps = false);
    let status = gateway
        .status_until("x", |status| status["state"] == "connected")
        .await;
    assert_eq!(
        (backend.greeted(), &status["restarts"]),
        (greeted + 1, &0.into())
    );
    gateway.stop().await;
}

/// Neither lists nor `/status` are a use of it.
#[tokio::test]
async fn nothing_but_a_use_wakes_it() {
    let (backend, gateway, client) = one("idle_timeout = \"50ms\"").await;
    asleep(&gateway).await;
    let greeted = backend.greeted();
    for kind in ["tools", "resources", "prompts"] {
        client.list(kind).await;
    }
    client.is_quiet().await;
    asleep(&gateway).await;
    assert_eq!(backend.greeted(), greeted);
    gateway.stop().await;
}

/// A call under way and a subscription keep it awake.
#[tokio::test]
async fn it_does_not_sleep_while_it_is_used() {
    let (backend, gateway, client) = one("idle_timeout = \"50ms\"").await;
    client.ask("1", "tools/call", CALL).await;
    let asked = backend.asked("tools/call").await;
    // Another server of the same kind falls asleep meanwhile.
    let (_other, others, _client) = one("idle_timeout = \"200ms\"").await;
    asleep(&others).await;
    assert!(!asked.conn.closed.is_cancelled());
    asked.answer(DONE).await;
    client.answer("1").await;
    soon("it sleeps", asked.conn.closed.cancelled()).await;
    asleep(&gateway).await;
    let uri = client.list("resources").await[0]["uri"].to_string();
    let subscribe = format!(r#""uri":{uri}"#);
    client.ask("2", "resources/subscribe", &subscribe).await;
    let subscribed = backend.asked("resources/subscribe").await;
    subscribed.answer("{}").await;
    client.answer("2").await;
    let (_other, others, _client) = one("idle_timeout = \"200ms\"").await;
    asleep(&others).await;
    assert!(!subscribed.conn.closed.is_cancelled());
    gateway.stop().await;
}

/// Many calls at once wake it once.
#[tokio::test]
async fn calls_at_once_wake_it_once() {
    let (backend, gateway, client) = one("idle_timeout = \"100ms\"").await;
    asleep(&gateway).await;
    let greeted = backend.greeted();
    for id in 1..=8 {
        client.ask(&id.to_string(), "tools/call", CALL).await;
    }
    for _ in 1..=8 {
        backend.asked("tools/call").await.answer(DONE).await;
        client.next().await;
    }
    assert_eq!(backend.greeted(), greeted + 1);
    gateway.stop().await;
}

/// Of replicas one is listed; the others sleep all the same, and a call wakes the one it goes to.
#[tokio::test]
async fn every_replica_sleeps() {
    let start = || Backend::start(Transport::Stdio, Era::Legacy);
    let (a, b) = (start().await, start().await);
    let reached = |backend: &Backend| backend.config().trim().replace('\n', ", ");
    let keys = format!(
        "replicas = [{{ {} }}, {{ {} }}]\nidle_timeout = \"50ms\"",
        reached(&a),
        reached(&b)
    );
    let gateway = TestGateway::new().section("x", &keys).start().await;
    let all_asleep = |status: &Value| {
        let mut replicas = status["replicas"].as_array().unwrap().iter();
        replicas.all(|replica| replica["asleep"] == true)
    };
    gateway.status_until("x", all_asleep).await;
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    call(&client, &a, "1").await;
    assert_eq!(b.greeted(), 1, "nobody needed it");
    gateway.status_until("x", all_asleep).await;
    gateway.stop().await;
}
