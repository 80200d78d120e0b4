//! Lists and resources that change: who follows them is told once, and nobody else is.

use crate::support::{ALL, Auto, Backend, Client, Era, Front, TestGateway, Transport, wire};

const THREE: &str = r#"[{"name":"echo","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}},{"name":"third","inputSchema":{"type":"object"}}]"#;
const CHANGED: &str = "notifications/tools/list_changed";

/// Opens a listen stream and takes its acknowledgement.
async fn follow(client: &Client, id: &str, filter: &str) -> wire::Envelope {
    let members = format!(r#""notifications":{filter}"#);
    client.ask(id, "subscriptions/listen", &members).await;
    let ack = client
        .must("notifications/subscriptions/acknowledged")
        .await;
    assert_eq!(subscription(&ack).as_deref(), Some(id));
    ack
}

fn subscription(told: &wire::Envelope) -> Option<String> {
    told.param(&["_meta", "io.modelcontextprotocol/subscriptionId"])
}

/// A burst of changes is one notification to every kind of client, after which the list is new.
#[tokio::test]
async fn a_changed_list_is_told_once_to_everybody() {
    for (transport, era) in ALL {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let mut clients = Vec::new();
        for front in Front::ALL {
            for path in ["/mcp", "/mcp/servers/x"] {
                let client = gateway.client(front, path, "{}").await;
                if front.is_modern() {
                    follow(&client, r#""sub""#, r#"{"toolsListChanged":true}"#).await;
                } else {
                    client.listen().await;
                }
                clients.push(client);
            }
        }
        backend.set_list("tools/list", THREE);
        for _ in 0..5 {
            backend.list_changed("tools").await;
        }
        for client in &clients {
            let told = client.must(CHANGED).await;
            if client.front.is_modern() {
                assert_eq!(subscription(&told).as_deref(), Some(r#""sub""#));
            }
            assert_eq!(client.list("tools").await.len(), 3);
        }
        for client in &clients {
            client.is_quiet().await;
        }
        gateway.stop().await;
    }
}

/// What changes between `initialize` and the word that it is done is told right after that word.
#[tokio::test]
async fn a_change_amid_the_handshake_is_told() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let (http, accept) = (gateway.http(), ("accept", "text/event-stream"));
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let hello = wire::request("1", "initialize", params);
    let answer = http.post("/mcp", hello.clone()).await;
    let session = answer.header("mcp-session-id").unwrap();
    let session = ("mcp-session-id", session);
    let standing = http.get("/mcp", &[accept, session]).await.events();
    let mut sse = http.get("/sse", &[accept]).await.events();
    let endpoint = sse.must().await.data.unwrap();
    http.post(&endpoint, hello).await;
    sse.message().await;
    backend.set_list("tools/list", THREE);
    backend.list_changed("tools").await;
    gateway.tools_until(|tools| tools.len() == 3).await;
    let done = wire::notification("notifications/initialized", "{}");
    http.post_with("/mcp", &[session], done.clone()).await;
    http.post(&endpoint, done).await;
    for mut stream in [standing, sse] {
        let told = stream.message().await;
        assert!(told.contains(CHANGED), "{told}");
    }
    gateway.stop().await;
}

/// A change that changes nothing in the view of a client is not told.
#[tokio::test]
async fn what_did_not_change_is_not_told() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .server("x", &x)
        .server("y", &y)
        .start()
        .await;
    let on_y = gateway
        .client(Front::Streamable, "/mcp/servers/y", "{}")
        .await;
    let all = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let prompts = gateway.client(Front::Modern, "/mcp", "{}").await;
    on_y.listen().await;
    all.listen().await;
    follow(&prompts, "1", r#"{"promptsListChanged":true}"#).await;
    // Says that it changed, lists the same.
    y.list_changed("tools").await;
    x.set_list("tools/list", THREE);
    x.list_changed("tools").await;
    all.must(CHANGED).await;
    x.set_list("prompts/list", "[]");
    x.list_changed("prompts").await;
    all.must("notifications/prompts/list_changed").await;
    prompts.must("notifications/prompts/list_changed").await;
    x.set_list("resources/list", "[]");
    x.list_changed("resources").await;
    all.must("notifications/resources/list_changed").await;
    on_y.is_quiet().await;
    prompts.is_quiet().await;
    all.is_quiet().await;
    gateway.stop().await;
}

/// A client that opens its stream late hears of what it missed.
#[tokio::test]
async fn a_late_stream_catches_up() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    backend.set_list("tools/list", THREE);
    backend.list_changed("tools").await;
    gateway.tools_until(|tools| tools.len() == 3).await;
    client.listen().await;
    client.must(CHANGED).await;
    client.is_quiet().await;
    gateway.stop().await;
}

/// A listen stream is acknowledged with what can be honoured, and ends with a result.
#[tokio::test]
async fn a_listen_stream_begins_with_what_is_honoured() {
    for front in [Front::Modern, Front::StdioModern] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(front, "/mcp", "{}").await;
        let filter = r#"{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["x+file:///a.txt"],"inventedListChanged":true}"#;
        let ack = follow(&client, "5", filter).await;
        // A legacy server has no stream that could be tied to this one.
        assert_eq!(
            ack.param(&["notifications"]).as_deref(),
            Some(r#"{"toolsListChanged":true}"#)
        );
        if front == Front::StdioModern {
            client.cancel("5").await;
            client.is_quiet().await;
        }
        gateway.stop().await;
    }
}

const UPDATED: &str = "notifications/resources/updated";

/// An update reaches the subscriber in its own spelling, and nobody else; after it unsubscribed,
/// nobody.
#[tokio::test]
async fn an_update_reaches_its_subscriber_only() {
    for transport in [
        Transport::Stdio,
        Transport::Http,
        Transport::Sse,
        Transport::WebSocket,
    ] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        for front in Front::LEGACY {
            let merged = gateway.client(front, "/mcp", "{}").await;
            let alone = gateway.client(front, "/mcp/servers/x", "{}").await;
            let stranger = gateway.client(front, "/mcp", "{}").await;
            for client in [&merged, &alone, &stranger] {
                client.listen().await;
            }
            subscription_of(&merged, &backend, "subscribe", "x+file:///a.txt").await;
            subscription_of(&alone, &backend, "subscribe", "file:///a.txt").await;
            backend
                .speak(UPDATED, r#"{"uri":"file:///a.txt","title":"A"}"#)
                .await;
            let told = merged.must(UPDATED).await;
            assert_eq!(
                told.params.as_deref(),
                Some(r#"{"uri":"x+file:///a.txt","title":"A"}"#)
            );
            let told = alone.must(UPDATED).await;
            assert_eq!(
                told.params.as_deref(),
                Some(r#"{"uri":"file:///a.txt","title":"A"}"#)
            );
            // The server hears of the last to leave only.
            merged
                .ask("2", "resources/unsubscribe", r#""uri":"x+file:///a.txt""#)
                .await;
            merged.answer("2").await;
            backend.speak(UPDATED, r#"{"uri":"file:///a.txt"}"#).await;
            alone.must(UPDATED).await;
            stranger.is_quiet().await;
            merged.is_quiet().await;
            assert!(
                backend.was_asked().await.is_none(),
                "{transport:?} {front:?}"
            );
            subscription_of(&alone, &backend, "unsubscribe", "file:///a.txt").await;
        }
        gateway.stop().await;
    }
}

/// Who is subscribed to a resource hears of those below it, however it called it.
#[tokio::test]
async fn an_update_below_a_resource_reaches_its_subscribers() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        let subscribes = request.method().ends_with("subscribe");
        subscribes.then(|| Auto::Result("{}".to_owned()))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    for uri in ["file:///a.txt", "x+file:///a.txt"] {
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.listen().await;
        let params = format!(r#""uri":"{uri}""#);
        client.ask("7", "resources/subscribe", &params).await;
        assert_eq!(client.answer("7").await.result.as_deref(), Some("{}"));
        for below in ["file:///a.txt", "file:///a.txt/part", "file:///a.txts"] {
            let params = format!(r#"{{"uri":"{below}"}}"#);
            backend.speak(UPDATED, &params).await;
        }
        for told in ["x+file:///a.txt", "x+file:///a.txt/part"] {
            let update = client.must(UPDATED).await;
            assert_eq!(update.param(&["uri"]), Some(format!("\"{told}\"")), "{uri}");
        }
        client.is_quiet().await;
        client.end().await;
    }
    gateway.stop().await;
}

/// What a server says while it is away nobody hears: once it is resubscribed, each subscriber is
/// told once that the resource may have been updated.
#[tokio::test]
async fn an_interruption_counts_as_an_update() {
    for transport in [Transport::Stdio, Transport::Http, Transport::WebSocket] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let merged = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let alone = gateway
            .client(Front::Streamable, "/mcp/servers/x", "{}")
            .await;
        let stranger = gateway.client(Front::Streamable, "/mcp", "{}").await;
        for client in [&merged, &alone, &stranger] {
            client.listen().await;
        }
        subscription_of(&merged, &backend, "subscribe", "x+file:///a.txt").await;
        subscription_of(&alone, &backend, "subscribe", "file:///a.txt").await;
        backend.die();
        let again = backend.asked("resources/subscribe").await;
        for client in [&merged, &alone] {
            client.is_quiet().await;
        }
        again.answer("{}").await;
        for (client, uri) in [(&merged, "x+file:///a.txt"), (&alone, "file:///a.txt")] {
            let told = client.must(UPDATED).await;
            assert_eq!(told.param(&["uri"]), Some(format!("\"{uri}\"")));
        }
        for client in [&merged, &alone, &stranger] {
            client.is_quiet().await;
        }
        gateway.stop().await;
    }
}

/// With the last session that had it, a subscription ends at the server too; whichever way the
/// sessions end.
#[tokio::test]
async fn a_subscription_ends_with_its_last_session() {
    for (transport, front) in [
        (Transport::Stdio, Front::Streamable),
        (Transport::Http, Front::Streamable),
        (Transport::Stdio, Front::Sse),
        (Transport::WebSocket, Front::Sse),
    ] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let one = gateway.client(front, "/mcp", "{}").await;
        let two = gateway.client(front, "/mcp/servers/x", "{}").await;
        // What it declares gives it a connection of its own, so its subscription is its own too.
        let other = gateway.client(front, "/mcp", r#"{"sampling":{}}"#).await;
        two.listen().await;
        subscription_of(&one, &backend, "subscribe", "x+file:///a.txt").await;
        subscription_of(&two, &backend, "subscribe", "file:///a.txt").await;
        subscription_of(&other, &backend, "subscribe", "x+file:///a.txt").await;
        let end = async |client: Client| {
            if client.session.is_some() {
                client.end().await;
            }
        };
        end(one).await;
        backend.speak(UPDATED, r#"{"uri":"file:///a.txt"}"#).await;
        two.must(UPDATED).await;
        two.is_quiet().await;
        let early = backend.was_asked().await;
        assert!(early.is_none(), "{transport:?} {front:?} {early:?}");
        end(two).await;
        let first = backend.asked("resources/unsubscribe").await;
        let uri = first.envelope.param(&["uri"]);
        assert_eq!(uri.as_deref(), Some(r#""file:///a.txt""#));
        first.answer("{}").await;
        end(other).await;
        let second = backend.asked("resources/unsubscribe").await;
        assert_ne!(first.conn.id, second.conn.id, "{transport:?} {front:?}");
        second.answer("{}").await;
        gateway.stop().await;
    }
}

/// Subscribes or unsubscribes; the server hears of it in its own spelling.
async fn subscription_of(client: &Client, backend: &Backend, verb: &str, uri: &str) {
    let method = format!("resources/{verb}");
    client.ask("1", &method, &format!(r#""uri":"{uri}""#)).await;
    let asked = backend.asked(&method).await;
    let original = asked.envelope.param(&["uri"]);
    assert_eq!(original.as_deref(), Some(r#""file:///a.txt""#));
    asked.answer("{}").await;
    client.answer("1").await;
}

/// A server may tell of an update right behind its answer to the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_right_behind_the_subscription_arrives() {
    for _ in 0..20 {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Stdio, "/mcp/servers/x", "{}").await;
        client
            .ask("1", "resources/subscribe", r#""uri":"file:///a.txt""#)
            .await;
        let asked = backend.asked("resources/subscribe").await;
        asked.answer("{}").await;
        asked.tell(UPDATED, r#"{"uri":"file:///a.txt"}"#).await;
        let (first, second) = (client.next().await, client.next().await);
        let methods = [first.method(), second.method()];
        assert!(methods.contains(&UPDATED), "{methods:?}");
        gateway.stop().await;
    }
}

/// A modern server tells of updates on the listen stream of the one client that wants them.
#[tokio::test]
async fn an_update_travels_on_the_listen_stream() {
    for transport in [Transport::Http, Transport::Stdio, Transport::WebSocket] {
        for front in [Front::Modern, Front::StdioModern] {
            let backend = Backend::start(transport, Era::Modern).await;
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(front, "/mcp", "{}").await;
            let stranger = gateway.client(front, "/mcp", "{}").await;
            let filter = r#"{"resourceSubscriptions":["x+file:///a.txt"]}"#;
            let ack = follow(&client, "5", filter).await;
            assert_eq!(ack.param(&["notifications"]).as_deref(), Some(filter));
            follow(&stranger, "5", r#"{"toolsListChanged":true}"#).await;
            let listen = backend.listen("file:///a.txt").await;
            listen
                .tell(UPDATED, &listen.tagged(r#""uri":"file:///a.txt","#))
                .await;
            let told = client.must(UPDATED).await;
            assert_eq!(
                told.param(&["uri"]).as_deref(),
                Some(r#""x+file:///a.txt""#),
                "{transport:?} {front:?}"
            );
            assert_eq!(subscription(&told).as_deref(), Some("5"));
            stranger.is_quiet().await;
            gateway.stop().await;
        }
    }
}

/// What a server does not honour is not acknowledged, and ends nothing else: where it does not declare
/// that it tells of resources, where it refuses the stream, and where it leaves out one of them.
#[tokio::test]
async fn what_a_server_does_not_honour_is_left_out() {
    const BOTH: &str = r#"["x+file:///a.txt","x+file:///b.txt"]"#;
    const ONE: &str = r#"{"resourceSubscriptions":["x+file:///b.txt"],"toolsListChanged":true}"#;
    const NONE: &str = r#"{"toolsListChanged":true}"#;
    const PARTLY: &str = r#"{"tools":{"listChanged":true},"resources":{}}"#;
    const WHOLLY: &str = r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#;
    let refuses = |request: &wire::Envelope| {
        let is_one = request.method() == "subscriptions/listen" && wants(request);
        is_one.then(|| Auto::Error(r#"{"code":-32601,"message":"no"}"#.to_owned()))
    };
    let takes_part = |request: &wire::Envelope| {
        let is_one = request.method() == "subscriptions/listen" && wants(request);
        is_one.then_some(Auto::Acknowledge(
            r#"{"resourceSubscriptions":["file:///b.txt"]}"#,
        ))
    };
    let leaves_all = |request: &wire::Envelope| {
        let is_one = request.method() == "subscriptions/listen" && wants(request);
        is_one.then_some(Auto::Acknowledge("{}"))
    };
    for transport in [Transport::Http, Transport::Stdio] {
        let cases: [(&str, Hook, &str); 4] = [
            (PARTLY, Box::new(|_| None), NONE),
            (WHOLLY, Box::new(refuses), NONE),
            (WHOLLY, Box::new(takes_part), ONE),
            (WHOLLY, Box::new(leaves_all), NONE),
        ];
        for (capabilities, hook, expect) in cases {
            let backend = Backend::start(transport, Era::Modern).await;
            backend.set_capabilities(capabilities).on_request(hook);
            let files =
                r#"[{"uri":"file:///a.txt","name":"a"},{"uri":"file:///b.txt","name":"b"}]"#;
            backend.set_list("resources/list", files);
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(Front::Modern, "/mcp", "{}").await;
            let filter = format!(r#"{{"toolsListChanged":true,"resourceSubscriptions":{BOTH}}}"#);
            let ack = follow(&client, "5", &filter).await;
            let found = ack.param(&["notifications"]);
            assert_eq!(
                found.as_deref(),
                Some(expect),
                "{transport:?} {capabilities}"
            );
            // The stream goes on.
            backend.set_list("tools/list", THREE);
            backend.list_changed("tools").await;
            client.must(CHANGED).await;
            gateway.stop().await;
        }
    }
}

type Hook = Box<dyn Fn(&wire::Envelope) -> Option<Auto> + Send + Sync>;

fn wants(request: &wire::Envelope) -> bool {
    let wish = request.param(&["notifications"]);
    wish.is_some_and(|wish| wish.contains("resourceSubscriptions"))
}

/// The stream of a client ends with that of a server, so that it asks anew.
#[tokio::test]
async fn a_listen_stream_ends_with_that_of_its_server() {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Modern, "/mcp", "{}").await;
    let filter = r#"{"resourceSubscriptions":["x+file:///a.txt"]}"#;
    follow(&client, "5", filter).await;
    backend.listen("file:///a.txt").await.die().await;
    client.answer("5").await.value();
    gateway.stop().await;
}

/// Clients of different capabilities have connections of their own to a legacy server, which tells
/// each connection that subscribed; each client hears of an update once.
#[tokio::test]
async fn an_update_over_two_connections_is_told_once() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        let subscribes = request.method() == "resources/subscribe";
        subscribes.then(|| Auto::Result("{}".to_owned()))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let mut clients = Vec::new();
    for capabilities in ["{}", r#"{"roots":{}}"#] {
        let client = gateway
            .client(Front::Stdio, "/mcp/servers/x", capabilities)
            .await;
        client
            .ask("1", "resources/subscribe", r#""uri":"file:///a.txt""#)
            .await;
        client.answer("1").await;
        client.ask("2", "tools/call", r#""name":"echo""#).await;
        clients.push((client, backend.asked("tools/call").await));
    }
    assert_ne!(clients[0].1.conn.id, clients[1].1.conn.id);
    for (_, call) in &clients {
        call.tell(UPDATED, r#"{"uri":"file:///a.txt"}"#).await;
    }
    for (client, _) in &clients {
        client.must(UPDATED).await;
    }
    for (client, call) in &clients {
        call.answer("{}").await;
        client.answer("2").await;
    }
    for (client, _) in &clients {
        client.is_quiet().await;
    }
    gateway.stop().await;
}

/// However much a server says at once: that its list has changed is heard.
#[tokio::test]
async fn a_flood_of_updates_hides_no_change() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Stdio, "/mcp/servers/x", "{}").await;
    client.ask("1", "tools/call", r#""name":"echo""#).await;
    let call = backend.asked("tools/call").await;
    backend.set_list("tools/list", THREE);
    let update = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a.txt"}}"#;
    let changed = format!(r#"{{"jsonrpc":"2.0","method":"{CHANGED}"}}"#);
    let said = [vec![update; 3000].join("\n"), changed].join("\n");
    call.raw(said + "\n").await;
    client.must(CHANGED).await;
    assert_eq!(client.list("tools").await.len(), 3);
    call.answer("{}").await;
    client.answer("1").await;
    gateway.stop().await;
}

/// What a server refuses one client it has not taken from another.
#[tokio::test]
async fn a_refused_subscription_ends_no_other() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let subscribe = async |client: &Client| {
        let uri = r#""uri":"file:///a.txt""#;
        client.ask("1", "resources/subscribe", uri).await;
        backend.asked("resources/subscribe").await
    };
    let first = gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    subscribe(&first).await.answer("{}").await;
    first.answer("1").await.value();
    let second = gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    let refused = subscribe(&second).await;
    refused
        .refuse(r#"{"code":-32602,"message":"it is subscribed"}"#)
        .await;
    second.answer("1").await.failure();
    refused.die().await;
    backend
        .asked("resources/subscribe")
        .await
        .answer("{}")
        .await;
    gateway.stop().await;
}
