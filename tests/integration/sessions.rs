//! Sessions of clients over HTTP: how they begin and end, and their streams.

use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::{
    Front, TestGateway,
    http::PING,
    initialize, value,
    wire::{Event, request},
    with_one_server,
};

#[tokio::test]
async fn a_session_lives_until_it_is_deleted() {
    let (gateway, _backend) = with_one_server().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let session = client.session.clone().unwrap();
    assert!(
        session.len() >= 32 && session.bytes().all(|b| b.is_ascii_graphic()),
        "{session}"
    );
    let (http, header) = (gateway.http(), [("mcp-session-id", session.as_str())]);
    let answer = http.post_with("/mcp", &header, PING).await;
    assert_eq!(answer.status(), 200);
    let stranger = [("mcp-session-id", "0123456789abcdef")];
    let answer = http.post_with("/mcp", &stranger, PING).await;
    assert_eq!(answer.status(), 404, "an unknown session");
    assert_eq!(value(&answer.text().await)["id"], 1);
    let accept = [("accept", "text/event-stream"), stranger[0]];
    assert_eq!(http.get("/mcp", &accept).await.status(), 404);
    assert_eq!(
        http.send("DELETE", "/mcp", &stranger, "").await.status(),
        404
    );
    assert_eq!(http.send("DELETE", "/mcp", &[], "").await.status(), 400);
    let mut standing = http.get("/mcp", &[accept[0], header[0]]).await.events();
    client.end().await;
    while crate::support::soon("the stream ends with its session", standing.next())
        .await
        .is_some()
    {}
    assert_eq!(http.post_with("/mcp", &header, PING).await.status(), 404);
    assert_eq!(http.send("DELETE", "/mcp", &header, "").await.status(), 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_second_standing_stream_replaces_the_first() {
    let (gateway, backend) = with_one_server().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let session = client.session.clone().unwrap();
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session.as_str()),
    ];
    let mut first = gateway.http().get("/mcp", &headers).await.events();
    let mut second = gateway.http().get("/mcp", &headers).await.events();
    let priming = first.must().await;
    assert!(
        priming.id.is_some() && priming.data.as_deref() == Some(""),
        "{priming:?}"
    );
    first.ends().await;
    second.must().await;
    backend.set_list("tools/list", "[]");
    backend.list_changed("tools").await;
    let told = second.message().await;
    assert!(told.contains("notifications/tools/list_changed"), "{told}");
    gateway.stop().await;
}

/// The stream of a call can be followed again from any event, also when the answer is out already.
#[tokio::test]
async fn a_broken_stream_is_resumed() {
    let (gateway, backend) = with_one_server().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let session = client.session.clone().unwrap();
    let http = gateway.http();
    let header = [("mcp-session-id", session.as_str())];
    let params = r#"{"name":"mcp_x_echo","_meta":{"progressToken":1}}"#;
    let post = async {
        http.post_with("/mcp", &header, request("1", "tools/call", params))
            .await
    };
    let serve = async {
        let call = backend.asked("tools/call").await;
        call.progress(1).await;
        call
    };
    let (answer, call) = tokio::join!(post, serve);
    let mut events = answer.events();
    let priming = events.must().await;
    assert_eq!(
        priming.data.as_deref(),
        Some(""),
        "an event to resume from comes first"
    );
    let first = events.must().await;
    assert!(
        first
            .data
            .as_deref()
            .unwrap()
            .contains("notifications/progress")
    );
    drop(events);
    call.progress(2).await;
    call.answer(r#"{"n":1}"#).await;
    client.is_quiet().await;
    for _ in 0..2 {
        // Twice: what was read once is kept.
        let (from_start, rest) = (
            resume(&http, &session, &priming).await,
            resume(&http, &session, &first).await,
        );
        assert_eq!(from_start.len(), 3, "{from_start:?}");
        assert_eq!(rest.len(), 2, "{rest:?}");
        assert_eq!(from_start[1..], rest);
        assert!(rest[1].contains(r#""result":{"n":1}"#), "{rest:?}");
    }
    gateway.stop().await;
}

/// Everything after `last`, up to the end of the stream.
async fn resume(http: &crate::support::http::Http, session: &str, last: &Event) -> Vec<String> {
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", session),
        ("last-event-id", last.id.as_deref().unwrap()),
    ];
    let mut events = http.get("/mcp", &headers).await.events();
    let mut messages = Vec::new();
    while let Some(event) = crate::support::soon("the rest of the stream", events.next()).await {
        messages.extend(event.data.filter(|data| !data.is_empty()));
    }
    messages
}

/// A stranger's session cannot be used to resume a stream.
#[tokio::test]
async fn a_stream_is_resumed_in_its_own_session_only() {
    let (gateway, backend) = with_one_server().await;
    let one = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let two = gateway.client(Front::Streamable, "/mcp", "{}").await;
    one.call("1", "mcp_x_echo", "1").await;
    let call = backend.asked("tools/call").await;
    call.progress(1).await;
    one.must("notifications/progress").await;
    call.answer(r#"{"secret":1}"#).await;
    one.answer("1").await;
    for id in ["1-0", "1-1", "2-0"] {
        let session = two.session.as_deref().unwrap();
        let headers = [
            ("accept", "text/event-stream"),
            ("mcp-session-id", session),
            ("last-event-id", id),
        ];
        let mut events = gateway.http().get("/mcp", &headers).await.events();
        // Its own session never had this stream: there is nothing to resume.
        while let Some(event) = crate::support::soon("the stream ends", events.next()).await {
            assert!(event.data.as_deref().is_none_or(str::is_empty), "{event:?}");
        }
    }
    gateway.stop().await;
}

/// A legacy request without a session is served all the same.
#[tokio::test]
async fn a_request_without_a_session_is_served() {
    let (gateway, backend) = with_one_server().await;
    let http = gateway.http();
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    for version in [&[][..], &[("mcp-protocol-version", "2025-06-18")]] {
        let answer = http.post_with("/mcp", version, list).await;
        assert_eq!(answer.status(), 200);
        assert!(answer.header("mcp-session-id").is_none());
        assert_eq!(
            value(&answer.text().await)["result"]["tools"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }
    let call = request("7", "tools/call", r#"{"name":"mcp_x_echo"}"#);
    let serve = async { backend.asked("tools/call").await.answer(r#"{"n":1}"#).await };
    let (answer, ()) = tokio::join!(http.post("/mcp", call), serve);
    assert_eq!(
        answer.text().await,
        r#"{"jsonrpc":"2.0","id":7,"result":{"n":1}}"#
    );
    let unknown = [("mcp-protocol-version", "1999-01-01")];
    let answer = http.post_with("/mcp", &unknown, list).await;
    assert_eq!(answer.status(), 400);
    let error = value(&answer.text().await)["error"].clone();
    assert_eq!(error["code"], -32022, "{error}");
    assert_eq!(error["data"]["requested"], "1999-01-01");
    let supported = error["data"]["supported"].as_array().unwrap();
    assert_eq!(supported.len(), 5, "{error}");
    assert!(supported.contains(&json!("2026-07-28")), "{error}");
    gateway.stop().await;
}

/// A session that ends while it is asked is as unknown as any that has ended: its client begins anew.
#[tokio::test]
async fn a_request_in_a_session_that_just_ended_is_not_found() {
    let gateway = TestGateway::new().start().await;
    let session = initialize(&gateway, "2025-11-25").await;
    let header = [("mcp-session-id", session.as_str())];
    let sessions = gateway.running.core().proxy.sessions();
    sessions.get(&session).unwrap().end();
    let answer = gateway.http().post_with("/mcp", &header, PING).await;
    assert_eq!(answer.status(), 404);
    let answer = value(&answer.text().await);
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(1), &json!(-32600))
    );
    gateway.stop().await;
}

/// Half a body and a client that sends nothing at all hold no stop up.
#[tokio::test]
async fn a_stop_does_not_wait_for_clients_that_say_no_more() {
    let gateway = TestGateway::new().start().await;
    let silent = TcpStream::connect(gateway.addr()).await.unwrap();
    let mut half = TcpStream::connect(gateway.addr()).await.unwrap();
    half.write_all(HALF_A_POST.as_bytes()).await.unwrap();
    // A request of a later connection is served after those were accepted.
    assert_eq!(gateway.http().get("/healthz", &[]).await.status(), 200);
    gateway.stop().await;
    drop((silent, half));
}

const HALF_A_POST: &str = "POST /mcp HTTP/1.1\r\nhost: localhost\r\n\
    content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
