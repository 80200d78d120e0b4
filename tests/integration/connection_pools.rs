//! A connection for one call at a time: `isolation = "pool"` and `isolation = "call"`.

use serde_json::Value;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, backend::Asked, soon,
};

const CALL: &str = r#""name":"mcp_x_echo""#;
const DONE: &str = r#"{"content":[]}"#;
const EACH: [Transport; 4] = [
    Transport::Http,
    Transport::Sse,
    Transport::Stdio,
    Transport::WebSocket,
];

/// A gateway in front of one legacy server, and a client of it.
async fn one(transport: Transport, keys: &str) -> (Backend, Gateway, Client) {
    let (backend, gateway) = Gateway::governed(transport, Era::Legacy, keys).await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    (backend, gateway, client)
}

async fn ask(client: &Client, id: &str) {
    client.ask(id, "tools/call", CALL).await;
}

/// Waits until `count` calls are under way, those that wait for a connection included.
async fn in_flight(gateway: &Gateway, count: u64) {
    let of = |status: &Value, key: &str| status[key].as_u64().unwrap();
    let reached = |status: &Value| of(status, "in_flight") + of(status, "queued") == count;
    gateway.status_until("x", reached).await;
}

async fn nothing_is_asked(backend: &Backend) {
    assert!(backend.was_asked().await.is_none(), "a call did not wait");
}

#[tokio::test]
async fn a_connection_of_a_pool_has_one_call_at_a_time() {
    for transport in EACH {
        let keys = "isolation = \"pool\"\npool_size = 2";
        let (backend, gateway, client) = one(transport, keys).await;
        ask(&client, "1").await;
        let first = backend.asked("tools/call").await;
        ask(&client, "2").await;
        let second = backend.asked("tools/call").await;
        assert_ne!(first.conn.id, second.conn.id, "{transport:?}");
        // They are served in the order in which they came.
        for (id, count) in [("3", 3), ("4", 4), ("5", 5)] {
            ask(&client, id).await;
            in_flight(&gateway, count).await;
        }
        let status = gateway.status("x").await;
        let counts = [&status["in_flight"], &status["queued"], &status["refused"]];
        assert_eq!(counts, [2, 3, 0], "{transport:?}");
        nothing_is_asked(&backend).await;
        second.answer(DONE).await;
        client.answer("2").await;
        let third = backend.asked("tools/call").await;
        assert_eq!(third.conn.id, second.conn.id, "{transport:?}");
        first.answer(DONE).await;
        client.answer("1").await;
        let fourth = backend.asked("tools/call").await;
        assert_eq!(fourth.conn.id, first.conn.id, "{transport:?}");
        nothing_is_asked(&backend).await;
        for (asked, id) in [(third, "3"), (fourth, "4")] {
            asked.answer(DONE).await;
            client.answer(id).await;
        }
        backend.asked("tools/call").await.answer(DONE).await;
        client.answer("5").await;
        assert_eq!(backend.greeted(), 3, "{transport:?}: with the catalog's");
        assert_eq!(gateway.status("x").await["instances_live"], 2);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_connection_can_be_cancelled_and_has_a_deadline() {
    for keys in [
        "isolation = \"pool\"\npool_size = 1",
        "isolation = \"call\"\nmax_instances = 1",
    ] {
        let keys = format!("{keys}\ntools = {{ timeout = {{ other = \"100ms\" }} }}");
        let (backend, gateway, client) = one(Transport::WebSocket, &keys).await;
        ask(&client, "1").await;
        let first = backend.asked("tools/call").await;
        client
            .ask("2", "tools/call", r#""name":"mcp_x_other""#)
            .await;
        let late = client.answer("2").await.failure();
        assert_eq!(late["data"]["reason"], "busy", "{late}");
        assert_eq!(late["data"]["retryAfterMs"], 1000, "{late}");
        let limit = keys.split(['\n', ' ']).nth(3);
        let message = late["message"].as_str().unwrap();
        assert!(message.contains(limit.unwrap()), "{message}");
        ask(&client, "3").await;
        in_flight(&gateway, 2).await;
        ask(&client, "4").await;
        in_flight(&gateway, 3).await;
        client.cancel("3").await;
        client.answer("3").await;
        in_flight(&gateway, 2).await;
        first.answer(DONE).await;
        client.answer("1").await;
        // The one that was cancelled never reaches the server.
        backend.asked("tools/call").await.answer(DONE).await;
        client.answer("4").await;
        nothing_is_asked(&backend).await;
        gateway.stop().await;
    }
}

/// A server may still be at work on a call that nobody waits for: its connection is not lent again.
#[tokio::test]
async fn a_connection_with_an_unanswered_call_is_replaced() {
    let keys = "isolation = \"pool\"\npool_size = 1\ntools = { timeout = { other = \"100ms\" } }";
    for transport in [Transport::Stdio, Transport::WebSocket] {
        let (backend, gateway, client) = one(transport, keys).await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_other""#)
            .await;
        let slow = backend.asked("tools/call").await;
        assert_eq!(
            client.answer("1").await.failure()["data"]["reason"],
            "timeout"
        );
        soon("its connection ends", slow.conn.closed.cancelled()).await;
        ask(&client, "2").await;
        let next = backend.asked("tools/call").await;
        assert_ne!(next.conn.id, slow.conn.id, "{transport:?}");
        next.answer(DONE).await;
        client.answer("2").await;
        gateway.stop().await;
    }
}

/// A crash fails the call on the connection, and no other.
#[tokio::test]
async fn a_crash_in_a_pool_costs_one_call() {
    let keys = "isolation = \"pool\"\npool_size = 2\nretry = { base = \"10m\", max = \"10m\" }";
    let (backend, gateway, client) = one(Transport::WebSocket, keys).await;
    ask(&client, "1").await;
    let first = backend.asked("tools/call").await;
    ask(&client, "2").await;
    let second = backend.asked("tools/call").await;
    first.die().await;
    let lost = client.answer("1").await.failure();
    assert_eq!(lost["data"]["reason"], "lost", "{lost}");
    ask(&client, "3").await;
    let third = backend.asked("tools/call").await;
    let known = [first.conn.id, second.conn.id];
    assert!(!known.contains(&third.conn.id), "it is a fresh one");
    for (asked, id) in [(second, "2"), (third, "3")] {
        asked.answer(DONE).await;
        client.answer(id).await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn each_call_has_a_fresh_connection_that_ends_with_it() {
    for transport in EACH {
        let keys = "isolation = \"call\"\nmax_instances = 2";
        let (backend, gateway, client) = one(transport, keys).await;
        let mut conns = Vec::new();
        for id in ["1", "2"] {
            ask(&client, id).await;
            let asked = backend.asked("tools/call").await;
            asked.answer(DONE).await;
            client.answer(id).await;
            ended(transport, &asked).await;
            conns.push(asked.conn.id);
        }
        ask(&client, "3").await;
        let third = backend.asked("tools/call").await;
        ask(&client, "4").await;
        let fourth = backend.asked("tools/call").await;
        ask(&client, "5").await;
        in_flight(&gateway, 3).await;
        nothing_is_asked(&backend).await;
        third.answer(DONE).await;
        client.answer("3").await;
        let fifth = backend.asked("tools/call").await;
        conns.extend([&third, &fourth, &fifth].map(|asked| asked.conn.id));
        conns.sort_unstable();
        conns.dedup();
        assert_eq!(conns.len(), 5, "{transport:?}");
        for (asked, id) in [(fourth, "4"), (fifth, "5")] {
            asked.answer(DONE).await;
            client.answer(id).await;
        }
        let none = |status: &Value| status["instances_live"] == 0;
        gateway.status_until("x", none).await;
        gateway.stop().await;
    }
}

async fn ended(transport: Transport, asked: &Asked) {
    // Over HTTP there is nothing that breaks.
    if matches!(transport, Transport::Stdio | Transport::WebSocket) {
        soon("its connection ends", asked.conn.closed.cancelled()).await;
    }
}

/// A connection is told what its client can do: another client has another one, within the limit.
#[tokio::test]
async fn a_pool_is_shared_by_clients_that_can_do_the_same() {
    let keys = "isolation = \"pool\"\npool_size = 1";
    let (backend, gateway, plain) = one(Transport::WebSocket, keys).await;
    let able = gateway
        .client(Front::Streamable, "/mcp", r#"{"elicitation":{}}"#)
        .await;
    let twin = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let mut conns = Vec::new();
    for client in [&plain, &twin, &able, &able] {
        let id = (conns.len() + 1).to_string();
        ask(client, &id).await;
        let asked = backend.asked("tools/call").await;
        asked.answer(DONE).await;
        client.answer(&id).await;
        conns.push(asked.conn.id);
    }
    assert_eq!(conns[0], conns[1]);
    assert_ne!(conns[1], conns[2], "it was told something else");
    assert_eq!(conns[2], conns[3]);
    let instances = gateway.status("x").await["instances_live"].clone();
    assert_eq!(instances, 1, "it took the other's place");
    gateway.stop().await;
}

/// A subscription holds none of the connections, and does not end with a call.
#[tokio::test]
async fn a_subscription_uses_a_connection_that_no_call_uses() {
    for keys in [
        "isolation = \"pool\"\npool_size = 1",
        "isolation = \"call\"\nmax_instances = 1",
    ] {
        let (backend, gateway, client) = one(Transport::WebSocket, keys).await;
        let uri = client.list("resources").await[0]["uri"].to_string();
        let subscribe = format!(r#""uri":{uri}"#);
        client.ask("1", "resources/subscribe", &subscribe).await;
        let subscribed = backend.asked("resources/subscribe").await;
        subscribed.answer("{}").await;
        client.answer("1").await;
        ask(&client, "2").await;
        let asked = backend.asked("tools/call").await;
        assert_ne!(asked.conn.id, subscribed.conn.id, "{keys}");
        asked.answer(DONE).await;
        client.answer("2").await;
        client.listen().await;
        let update = r#"{"uri":"file:///a.txt"}"#;
        backend
            .speak("notifications/resources/updated", update)
            .await;
        let told = client.must("notifications/resources/updated").await;
        assert_eq!(told.param(&["uri"]), Some(uri), "{keys}");
        gateway.stop().await;
    }
}

/// A modern listen stream lasts for ever; calls go on beside it.
#[tokio::test]
async fn a_listen_stream_holds_no_connection_of_a_pool() {
    for keys in [
        "isolation = \"pool\"\npool_size = 1",
        "isolation = \"call\"\nmax_instances = 1",
    ] {
        let backend = Backend::start(Transport::WebSocket, Era::Modern).await;
        let gateway = TestGateway::new().server_with("x", &backend, keys);
        let gateway = gateway.start().await;
        let client = gateway.client(Front::Modern, "/mcp", "{}").await;
        let uri = client.list("resources").await[0]["uri"].to_string();
        let wish = format!(r#""notifications":{{"resourceSubscriptions":[{uri}]}}"#);
        let listening = client.ask("1", "subscriptions/listen", &wish).await;
        client
            .must("notifications/subscriptions/acknowledged")
            .await;
        let listen = backend.listen("resourceSubscriptions").await;
        backend.on_request(|request| {
            (request.method() == "tools/call").then(|| Auto::Result(DONE.to_owned()))
        });
        for id in ["2", "3"] {
            ask(&client, id).await;
            client.answer(id).await;
        }
        assert!(!listen.conn.closed.is_cancelled());
        let update = listen.tagged(r#""uri":"file:///a.txt","#);
        listen
            .tell("notifications/resources/updated", &update)
            .await;
        let told = client.must("notifications/resources/updated").await;
        assert_eq!(told.param(&["uri"]), Some(uri), "{keys}");
        drop(listening);
        gateway.stop().await;
    }
}
