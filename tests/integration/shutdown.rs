//! What is under way when a session or the gateway ends is answered all the same.

use std::{sync::Arc, time::Duration};

use tokio::net::TcpStream;

use crate::support::{
    Auto, Backend, Era, Front, TestGateway, Transport,
    http::{Answer, Http},
    soon,
    wire::{Envelope, request, result, spawn, value},
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
            check_cut_off(&failure);
        }
    }
}

/// So is one that would be sent once more if its server alone had gone.
#[tokio::test]
async fn a_call_that_may_be_repeated_is_answered_at_a_stop() {
    let reading = r#"[{"name":"echo","inputSchema":{},"annotations":{"readOnlyHint":true}}]"#;
    for transport in [Transport::Stdio, Transport::Http, Transport::WebSocket] {
        for front in Front::ALL {
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.set_list("tools/list", reading);
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.call("1", "mcp_x_echo", "7").await;
            let call = backend.asked("tools/call").await;
            gateway.stop().await;
            check_cut_off(&client.answer("1").await.failure());
            drop(call);
        }
    }
}

/// So is one that waits for its server, and a list that waits for the first listing.
#[tokio::test]
async fn a_call_that_waits_for_its_server_is_answered_at_a_stop() {
    for front in Front::ALL {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        backend.on_request(|_| Some(Auto::Nothing));
        let gateway = TestGateway::new().server("x", &backend).launch().await;
        let client = gateway.client(front, "/mcp", "{}").await;
        client.call("1", "mcp_x_echo", "7").await;
        client.ask("2", "tools/list", "").await;
        client.call("3", "of_no_server", "8").await;
        let proxy = Arc::clone(&gateway.running.core().proxy);
        soon("all wait", async {
            while proxy.in_flight() < 3 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        drop(proxy);
        gateway.stop().await;
        for _ in 0..3 {
            let answer = client.next().await;
            let failure = answer.failure();
            assert_eq!(failure["code"], -32603, "{front:?} {failure}");
            // A list that lacks what is not there yet would be taken for the whole.
            if answer.id.as_deref() != Some("2") {
                assert_eq!(failure["message"], STOPPED, "{front:?} {failure}");
            }
        }
    }
}

const STOPPED: &str = "the gateway stopped before the server responded";
const ENDED: &str = "the session ended before the server responded";

/// Checks that an error says that the gateway stopped.
fn check_cut_off(failure: &serde_json::Value) {
    assert_eq!(failure["code"], -32603, "{failure}");
    let data = &failure["data"];
    assert_eq!(data["reason"], "lost", "{failure}");
    assert_eq!(data["code"], "LOST", "{failure}");
    assert_eq!(data["retryable"], false, "{failure}");
    assert_eq!(failure["message"], STOPPED);
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
    client.end().await;
    let cancelled = value(&events.message().await);
    assert_eq!(cancelled["id"], 1);
    assert_eq!(cancelled["error"]["data"]["reason"], "cancelled");
    assert_eq!(cancelled["error"]["message"], ENDED);
    events.ends().await;
    standing.ends().await;
    gateway.stop().await;
}

/// On stdio the session ends with the input of its client, in both eras.
#[tokio::test]
async fn a_call_that_outlives_the_input_is_answered() {
    for front in [Front::Stdio, Front::StdioModern] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(front, "/mcp", "{}").await;
        client.call("1", "mcp_x_echo", "7").await;
        backend.asked("tools/call").await;
        client.close_input().await;
        let failure = client.answer("1").await.failure();
        assert_eq!(failure["data"]["reason"], "cancelled", "{front:?}");
        assert_eq!(failure["message"], ENDED, "{front:?}");
        gateway.stop().await;
    }
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

/// While running calls finish, nothing new is taken, and everybody is told so in a way that lets them
/// come back: the listener answers until the last call is done.
#[tokio::test]
async fn a_drain_takes_nothing_new_and_finishes_what_runs() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().setting("drain_timeout = \"1m\"");
    let gateway = gateway.server("x", &backend).start().await;
    let client = gateway
        .client(Front::Streamable, "/mcp", r#"{"elicitation":{}}"#)
        .await;
    let sse = gateway.client(Front::Sse, "/mcp", "{}").await;
    let modern = gateway.client(Front::Modern, "/mcp", "{}").await;
    client.call("1", "mcp_x_echo", "7").await;
    let call = backend.asked("tools/call").await;
    let (addr, http) = (gateway.addr(), gateway.http());
    let stop = spawn(gateway.running.stop());
    not_ready(&http).await;

    assert_eq!(http.get("/healthz", &[]).await.status(), 200);
    let status = http.get("/status", &[]).await;
    assert_eq!(status.status(), 503);
    assert_eq!(value(&status.text().await)["status"], "draining");
    let session = [("mcp-session-id", client.session.as_deref().unwrap())];
    let list = || request("2", "tools/list", "{}");
    refused(http.post_with("/mcp", &session, list()).await).await;
    refused(http.post("/mcp", list()).await).await;
    let initialize = request("2", "initialize", r#"{"protocolVersion":"2025-11-25"}"#);
    refused(http.post("/mcp", initialize).await).await;
    modern.ask("2", "tools/list", "").await;
    let refusal = modern.answer("2").await.failure();
    assert_eq!(refusal["data"]["reason"], "draining");
    assert_eq!(refusal["data"]["code"], "DRAINING");
    assert_eq!(refusal["data"]["retryAfterMs"], 1000);
    let accept = [("accept", "text/event-stream")];
    refused(http.get("/sse", &accept).await).await;
    sse.ask("2", "tools/list", "").await;
    assert_eq!(
        sse.answer("2").await.failure()["data"]["reason"],
        "draining"
    );

    // What belongs to a running call still passes in both directions.
    call.ask(
        "77",
        "elicitation/create",
        r#"{"message":"which","requestedSchema":{}}"#,
    )
    .await;
    let question = client.must("elicitation/create").await;
    client
        .respond(question.id.as_deref().unwrap(), r#"{"action":"decline"}"#)
        .await;
    assert_eq!(backend.answered().await.value()["action"], "decline");
    call.answer(r#"{"content":[]}"#).await;
    assert!(client.answer("1").await.result.is_some());
    assert!(soon("the stop", stop).await.unwrap(), "nothing was cut off");
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens");
}

/// A batch may hold the answer that a running call waits for: while nothing new is taken, it is.
#[tokio::test]
async fn a_drain_takes_batches_without_requests() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().setting("drain_timeout = \"1m\"");
    let gateway = gateway.server("x", &backend).start().await;
    let http = gateway.http();
    let able = r#"{"protocolVersion":"2025-03-26","capabilities":{"sampling":{}}}"#;
    let opened = http.post("/mcp", request("0", "initialize", able)).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let session = [("mcp-session-id", session.as_str())];
    let call = request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#);
    let (answer, call) = tokio::join!(http.post_with("/mcp", &session, call), async {
        let call = backend.asked("tools/call").await;
        call.ask("77", "sampling/createMessage", r#"{"messages":[]}"#)
            .await;
        call
    });
    let mut events = answer.events();
    let question = Envelope::of(&events.message().await);
    let stop = spawn(gateway.running.stop());
    not_ready(&http).await;
    let told = r#"{"jsonrpc":"2.0","method":"notifications/acme"}"#;
    let answer = result(question.id.as_deref().unwrap(), r#"{"role":"user"}"#);
    let with_request = format!("[{answer},{}]", request("2", "ping", "{}"));
    let refused_batch = http.post_with("/mcp", &session, with_request).await;
    refused(refused_batch).await;
    let batch = format!("[{told},{answer}]");
    let taken = http.post_with("/mcp", &session, batch).await;
    assert_eq!(taken.status(), 202);
    assert_eq!(backend.answered().await.value()["role"], "user");
    call.answer(r#"{"content":[]}"#).await;
    assert!(Envelope::of(&events.message().await).result.is_some());
    assert!(soon("the stop", stop).await.unwrap(), "nothing was cut off");
}

/// Streams that only tell of changes hold up no stop. That of 2026-07-28 ends with its result, at
/// once; those of sessions end once no call can need them.
#[tokio::test]
async fn streams_end_as_their_revision_says() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().setting("drain_timeout = \"1m\"");
    let gateway = gateway.server("x", &backend).start().await;
    let listening = gateway.client(Front::Modern, "/mcp", "{}").await;
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    listening.ask("9", "subscriptions/listen", wish).await;
    listening
        .must("notifications/subscriptions/acknowledged")
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let http = gateway.http();
    let accept = ("accept", "text/event-stream");
    let session = ("mcp-session-id", client.session.as_deref().unwrap());
    let mut standing = http.get("/mcp", &[accept, session]).await.events();
    standing.must().await;
    let mut sse = http.get("/sse", &[accept]).await.events();
    sse.must().await;
    client.call("1", "mcp_x_echo", "7").await;
    let call = backend.asked("tools/call").await;

    let stop = spawn(gateway.running.stop());
    let ended = listening.answer("9").await;
    assert_eq!(ended.value()["resultType"], "complete");
    let early = tokio::time::timeout(Duration::from_millis(50), standing.next()).await;
    assert!(early.is_err(), "the running call may need it: {early:?}");
    call.answer(r#"{"content":[]}"#).await;
    client.answer("1").await;
    standing.ends().await;
    sse.ends().await;
    assert!(soon("the stop", stop).await.unwrap());
}

/// On stdio nothing closes with a stream of 2026-07-28: where the gateway ends it, it says so behind
/// the result. Of one that the client cancelled nothing more is said.
#[tokio::test]
async fn a_listen_stream_on_stdio_ends_as_its_revision_says() {
    for is_cancelled in [false, true] {
        let gateway = TestGateway::new().start().await;
        let client = gateway.client(Front::StdioModern, "/mcp", "{}").await;
        let wish = r#""notifications":{"toolsListChanged":true}"#;
        client.ask(r#""l""#, "subscriptions/listen", wish).await;
        client
            .must("notifications/subscriptions/acknowledged")
            .await;
        if is_cancelled {
            client.cancel(r#""l""#).await;
            client.is_quiet().await;
        }
        gateway.stop().await;
        if !is_cancelled {
            let ended = client.answer(r#""l""#).await;
            assert_eq!(ended.value()["resultType"], "complete");
            let over = client.must("notifications/cancelled").await;
            assert_eq!(over.param(&["requestId"]).as_deref(), Some(r#""l""#));
        }
        let more = client.pending().await;
        assert!(more.is_none(), "{more:?}");
    }
}

/// Waits until the gateway says that it is not ready.
async fn not_ready(http: &Http) {
    let wait = async { while http.get("/readyz", &[]).await.status() == 200 {} };
    soon("it is not ready any more", wait).await;
}

/// Checks that an answer says that, and when, to come back.
async fn refused(answer: Answer) {
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let error = value(&answer.text().await)["error"].clone();
    assert_eq!(error["data"]["reason"], "draining", "{error}");
}
