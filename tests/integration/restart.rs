//! What goes on after the gateway was restarted: sessions of clients, and the lists of servers that
//! are not there yet.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::support::{
    Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
    http::Http,
    soon,
    wire::{request, value},
};

const UPDATED: &str = "notifications/resources/updated";
const INITIALIZED: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{}},"serverInfo":{"name":"scripted","version":"1"}}"#;

/// The status of a list that is asked for in a session.
async fn list(http: &Http, path: &str, session: &str) -> u16 {
    let session = [("mcp-session-id", session)];
    let list = request("1", "tools/list", "{}");
    let answer = http.post_with(path, &session, list).await;
    answer.status().as_u16()
}

async fn session_of(gateway: &Gateway, capabilities: &str) -> String {
    let client = gateway
        .client(Front::Streamable, "/mcp", capabilities)
        .await;
    client.session.clone().unwrap()
}

/// A client notices a restart by its broken connections, and by nothing else.
#[tokio::test]
async fn a_session_goes_on() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    let gateway = plan.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "resources/subscribe", r#""uri":"x+file:///a.txt""#)
        .await;
    backend
        .asked("resources/subscribe")
        .await
        .answer("{}")
        .await;
    client.answer("1").await;
    let session = client.session.clone().unwrap();
    gateway.stop().await;

    let gateway = plan.start().await;
    let http = gateway.http();
    assert_eq!(
        list(&http, "/mcp/servers/x", &session).await,
        404,
        "another route"
    );
    assert_eq!(list(&http, "/mcp", &session).await, 200);
    let again = backend.asked("resources/subscribe").await;
    assert_eq!(
        again.envelope.param(&["uri"]).as_deref(),
        Some(r#""file:///a.txt""#)
    );
    again.answer("{}").await;
    // What came before is lost; the stream goes on, wherever the client was.
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
        ("last-event-id", "0-57"),
    ];
    let mut events = http.get("/mcp", &headers).await.events();
    let first = events.must().await.id.unwrap();
    assert!(first.ends_with("-0") && first != "0-0", "{first}");
    // Of what was updated meanwhile it hears, although it has said something else before.
    assert!(events.message().await.contains("x+file:///a.txt"));
    backend.speak(UPDATED, r#"{"uri":"file:///a.txt"}"#).await;
    assert!(events.message().await.contains("x+file:///a.txt"));

    let header = [("mcp-session-id", session.as_str())];
    assert_eq!(http.send("DELETE", "/mcp", &header, "").await.status(), 200);
    assert_eq!(list(&http, "/mcp", &session).await, 404, "it was deleted");
    gateway.stop().await;
    let gateway = plan.start().await;
    assert_eq!(
        list(&gateway.http(), "/mcp", &session).await,
        404,
        "for good"
    );
    gateway.stop().await;
}

/// Nobody has to stop in an orderly way: what a client said is written down as it comes. Here a
/// second gateway finds it while the first one still runs.
#[tokio::test]
async fn a_session_outlives_a_crash() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    let first = plan.start().await;
    let session = session_of(&first, "{}").await;
    let second = plan.start().await;
    let http = second.http();
    let found = async { while list(&http, "/mcp", &session).await != 200 {} };
    soon("the session is found", found).await;
    let sse = first.client(Front::Sse, "/mcp", "{}").await;
    drop(sse);
    let messages = format!("/messages/?session_id={session}");
    let answer = http.post(&messages, request("1", "tools/list", "{}")).await;
    assert_eq!(answer.status(), 404, "a stream cannot be taken over");
    second.stop().await;
    first.stop().await;
}

/// A session is its agent's, before and after.
#[tokio::test]
async fn a_session_stays_its_agents() {
    const ONE: &str = "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a";
    const TWO: &str = "d81b3c5e7f90a2461c3d5e7f8a9b0c2d";
    let plan = TestGateway::new()
        .setting("[governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }")
        .setting(&format!("[agents.one]\nkeys = [\"{ONE}\"]"))
        .setting(&format!("[agents.two]\nkeys = [\"{TWO}\"]"));
    let gateway = plan.start().await;
    let http = gateway.http().with_key(ONE);
    let initialize = request("0", "initialize", r#"{"protocolVersion":"2025-06-18"}"#);
    let opened = http.post("/mcp", initialize).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    gateway.stop().await;
    let gateway = plan.start().await;
    let other = gateway.http().with_key(TWO);
    assert_eq!(list(&other, "/mcp", &session).await, 404);
    let own = gateway.http().with_key(ONE);
    assert_eq!(list(&own, "/mcp", &session).await, 200);
    assert_eq!(list(&other, "/mcp", &session).await, 404);
    gateway.stop().await;
}

/// A session for which there is no room goes on once there is.
#[tokio::test]
async fn a_session_waits_for_room_after_a_restart() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().setting("limits = { sessions_per_agent = 1 }");
    let plan = plan.server("x", &backend);
    let gateway = plan.start().await;
    let session = session_of(&gateway, "{}").await;
    gateway.stop().await;
    let gateway = plan.start().await;
    let http = gateway.http();
    let other = gateway.client(Front::Streamable, "/mcp", "{}").await;
    other.call("1", "mcp_x_echo", "7").await;
    let call = backend.asked("tools/call").await;
    let header = [("mcp-session-id", session.as_str())];
    let busy = http.post_with("/mcp", &header, request("1", "tools/list", "{}"));
    let busy = busy.await;
    assert_eq!(busy.status(), 429);
    assert_eq!(busy.header("retry-after"), Some("1"));
    call.answer("{}").await;
    other.answer("1").await;
    // The other session is free once its answer is out.
    let found = async { while list(&http, "/mcp", &session).await != 200 {} };
    soon("the session is found", found).await;
    gateway.stop().await;
}

/// A server that knew things of one session alone knows them no more: its client is told once, with
/// the first call, if it wants to know.
#[tokio::test]
async fn a_client_is_told_what_its_server_forgot() {
    for (level, is_told) in [
        (None, true),
        (Some("warning"), true),
        (Some("error"), false),
    ] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let plan = TestGateway::new().server_with("x", &backend, "isolation = \"session\"");
        let gateway = plan.start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        if let Some(level) = level {
            let params = format!(r#""level":"{level}""#);
            client.ask("1", "logging/setLevel", &params).await;
            client.answer("1").await;
        }
        client
            .ask("2", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("2").await;
        let session = client.session.clone().unwrap();
        gateway.stop().await;

        let gateway = plan.start().await;
        let http = gateway.http();
        for is_first in [true, false] {
            let header = [("mcp-session-id", session.as_str())];
            let call = request("3", "tools/call", r#"{"name":"mcp_x_echo"}"#);
            let serve = async { backend.asked("tools/call").await.answer("{}").await };
            let (answer, ()) = tokio::join!(http.post_with("/mcp", &header, call), serve);
            let text = answer.text().await;
            let told = text.contains("the gateway and server x were restarted: the server's state for this session is lost");
            assert_eq!(told, is_first && is_told, "{level:?} {text}");
        }
        gateway.stop().await;
    }
}

/// Lists do not wait for servers that were listed before; calls do.
#[tokio::test]
async fn lists_are_there_before_their_servers() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    let gateway = plan.start().await;
    let session = session_of(&gateway, "{}").await;
    assert!(gateway.status("x").await["stored"].is_null());
    gateway.stop().await;

    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    backend.on_request(move |envelope| {
        let holds = envelope.method() == "initialize" && held.load(Ordering::SeqCst);
        holds.then_some(Auto::Hand)
    });
    let gateway = plan.launch().await;
    let http = gateway.http();
    assert_eq!(http.get("/readyz", &[]).await.status(), 200);
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    let status = gateway.status("x").await;
    assert_eq!(status["state"], "connecting");
    assert!(
        status["stored"]["age_seconds"].as_u64().unwrap() < 60,
        "{status}"
    );
    assert!(status["stored"]["listed"].is_string(), "{status}");
    let page = http.get("/status", &[("accept", "text/html")]).await;
    assert!(page.text().await.contains("stored: listed "));
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
    ];
    let mut events = http.get("/mcp", &headers).await.events();
    events.must().await;

    let call = http.post(
        "/mcp",
        request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#),
    );
    let serve = async {
        let greeting = backend.asked("initialize").await;
        is_held.store(false, Ordering::SeqCst);
        greeting.answer(INITIALIZED).await;
        backend.asked("tools/call").await.answer(r#"{"n":1}"#).await;
    };
    let (answer, ()) = tokio::join!(call, serve);
    assert_eq!(value(&answer.text().await)["result"]["n"], 1);
    let fresh = |status: &serde_json::Value| status["stored"].is_null();
    gateway.status_until("x", fresh).await;
    // The first list that differs is the first that is told of.
    backend.set_list(
        "tools/list",
        r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
    );
    backend.list_changed("tools").await;
    assert!(
        events
            .message()
            .await
            .contains("notifications/tools/list_changed")
    );
    assert_eq!(gateway.tools().await, ["mcp_x_new"]);
    gateway.stop().await;
}

/// What changed while the gateway was down is told to clients that go on; another server of the same
/// name gets nothing of the lists before.
#[tokio::test]
async fn lists_that_differ_after_a_restart_are_told() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    let gateway = plan.start().await;
    let session = session_of(&gateway, "{}").await;
    gateway.stop().await;
    backend.set_list(
        "tools/list",
        r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
    );
    let gateway = plan.start().await;
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
    ];
    let mut events = gateway.http().get("/mcp", &headers).await.events();
    assert!(
        events
            .message()
            .await
            .contains("notifications/tools/list_changed")
    );
    gateway.tools_until(|tools| tools == ["mcp_x_new"]).await;
    gateway.stop().await;

    let other = Backend::start(Transport::Stdio, Era::Legacy).await;
    other.on_request(|envelope| (envelope.method() == "initialize").then_some(Auto::Nothing));
    let text = plan.text().replace(&backend.config(), &other.config());
    let gateway = plan.launch_as(&text).await;
    assert_eq!(gateway.tools().await, [""; 0]);
    gateway.stop().await;
}

/// What an earlier process listed says nothing of what the server has now.
#[tokio::test]
async fn a_tool_that_came_meanwhile_is_waited_for() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    plan.start().await.stop().await;
    let tools = r#"[{"name":"new","inputSchema":{"type":"object"}}]"#;
    backend.set_list("tools/list", tools);
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    backend.on_request(move |envelope| match envelope.method() {
        "initialize" if held.load(Ordering::SeqCst) => Some(Auto::Hand),
        "tools/call" => Some(Auto::Result(r#"{"n":1}"#.to_owned())),
        _ => None,
    });
    let gateway = plan.launch().await;
    assert!(!gateway.status("x").await["stored"].is_null());
    let http = gateway.http();
    let ask = |tool: &str| {
        let params = format!(r#"{{"name":"{tool}"}}"#);
        http.post("/mcp", request("1", "tools/call", &params))
    };
    let serve = async {
        let greeting = backend.asked("initialize").await;
        is_held.store(false, Ordering::SeqCst);
        greeting.answer(INITIALIZED).await;
    };
    let (new, none, ()) = tokio::join!(ask("mcp_x_new"), ask("mcp_x_none"), serve);
    assert_eq!(value(&new.text().await)["result"]["n"], 1);
    let none = value(&none.text().await);
    assert_eq!(none["error"]["data"]["code"], "TOOL_NOT_FOUND", "{none}");
    gateway.stop().await;
}
