//! What is under way when a session or the gateway ends is answered all the same.

use crate::support::{
    Backend, Era, Front, TestGateway, Transport,
    wire::{request, value},
};

/// A call that the drain deadline cuts off is answered: as events, and as a JSON body.
#[tokio::test]
async fn a_call_cut_off_by_a_stop_is_answered() {
    for front in Front::ALL {
        for has_begun in [true, false] {
            let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.call("1", "mcp_x_echo", "7").await;
            let call = backend.asked("tools/call").await;
            if has_begun {
                call.progress(1).await;
                client.must("notifications/progress").await;
            }
            gateway.stop().await;
            let failure = client.answer("1").await.failure();
            let reason = failure["data"]["reason"].as_str().unwrap();
            assert!(
                ["cancelled", "lost"].contains(&reason),
                "{front:?} {failure}"
            );
        }
    }
}

/// A call whose session is deleted is answered on its stream, which ends then; so does the standing
/// stream.
#[tokio::test]
async fn a_call_of_a_deleted_session_is_answered() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let session = client.session.clone().unwrap();
    let header = ("mcp-session-id", session.as_str());
    let accept = ("accept", "text/event-stream");
    let http = gateway.http();
    let mut standing = http.get("/mcp", &[accept, header]).await.events();
    standing.must().await;
    let params = r#"{"name":"mcp_x_echo","_meta":{"progressToken":1}}"#;
    let body = request("1", "tools/call", params);
    let head = [header];
    let post = http.post_with("/mcp", &head, body);
    let serve = async {
        let call = backend.asked("tools/call").await;
        call.progress(1).await;
    };
    let (answer, ()) = tokio::join!(post, serve);
    let mut events = answer.events();
    assert!(events.message().await.contains("notifications/progress"));
    assert_eq!(http.send("DELETE", "/mcp", &head, "").await.status(), 200);
    let cancelled = value(&events.message().await);
    assert_eq!(cancelled["id"], 1);
    assert_eq!(cancelled["error"]["data"]["reason"], "cancelled");
    events.ends().await;
    standing.ends().await;
    gateway.stop().await;
}

/// A gateway that has ended its sessions opens no more.
#[tokio::test]
async fn no_session_opens_while_the_gateway_stops() {
    let gateway = TestGateway::new().start().await;
    gateway.running.core().proxy.sessions().close_all();
    let http = gateway.http();
    let initialize = request("1", "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
    assert_eq!(http.post("/mcp", initialize).await.status(), 503);
    let accept = [("accept", "text/event-stream")];
    assert_eq!(http.get("/sse", &accept).await.status(), 503);
    gateway.stop().await;
}
