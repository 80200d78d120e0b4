//! The HTTP surface itself: sessions, streams, limits, verbs and headers.

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::{
    Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
    http::{Answer, JSON},
    value,
    wire::{Envelope, Event, request, result},
};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

async fn with_one_server() -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    (gateway, backend)
}

async fn code(answer: Answer) -> i64 {
    value(&answer.text().await)["error"]["code"]
        .as_i64()
        .unwrap()
}

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

#[tokio::test]
async fn batches_exist_in_one_revision() {
    let (gateway, backend) = with_one_server().await;
    let http = gateway.http();
    let batch = r#" [ {"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},
        {"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"mcp_x_echo"}},{"nonsense":1}]"#;
    for (revision, status) in [
        ("2025-03-26", 200),
        ("2025-06-18", 400),
        ("2025-11-25", 400),
        ("2024-11-05", 400),
    ] {
        let session = initialize(&gateway, revision).await;
        let header = [("mcp-session-id", session.as_str())];
        let post = http.post_with("/mcp", &header, batch);
        if status != 200 {
            assert_eq!(post.await.status(), status, "{revision}");
            continue;
        }
        let serve = async {
            backend
                .asked("tools/call")
                .await
                .answer(r#"{"n": 1}"#)
                .await;
        };
        let (answer, ()) = tokio::join!(post, serve);
        assert_eq!(answer.status(), 200);
        let answers = value(&answer.text().await);
        let answers = answers.as_array().unwrap();
        assert_eq!(answers.len(), 3, "{answers:?}");
        assert!(
            answers
                .iter()
                .any(|a| a["id"] == "two" && a["result"]["n"] == 1),
            "{answers:?}"
        );
        assert!(
            answers.iter().any(|a| a["error"]["code"] == -32600),
            "{answers:?}"
        );
        let told = http
            .post_with(
                "/mcp",
                &header,
                r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#,
            )
            .await;
        assert_eq!(told.status(), 202);
        let initialize = r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]"#;
        let modern = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}]"#;
        for unbatched in [initialize, modern] {
            let refused = http.post_with("/mcp", &header, unbatched).await;
            let refused = refused.text().await;
            assert!(refused.contains("-32600"), "{refused}");
        }
    }
    assert_eq!(
        http.post("/mcp", batch).await.status(),
        400,
        "without a session"
    );
    gateway.stop().await;
}

async fn initialize(gateway: &Gateway, revision: &str) -> String {
    let params = format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{{}},"clientInfo":{{"name":"t","version":"1"}}}}"#
    );
    let answer = gateway
        .http()
        .post("/mcp", request("1", "initialize", &params))
        .await;
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let result = value(&answer.text().await);
    assert_eq!(result["result"]["protocolVersion"], revision);
    session
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

/// A version that is not known is refused whatever is sent with it, and whatever is asked for.
#[tokio::test]
async fn an_unknown_version_is_refused_on_everything() {
    let (gateway, _backend) = with_one_server().await;
    let http = gateway.http();
    let session = initialize(&gateway, "2025-03-26").await;
    let session = ("mcp-session-id", session.as_str());
    for (version, known) in [
        ("1999-01-01", false),
        ("2025-11-25", true),
        ("2026-07-28", true),
        ("nonsense", false),
    ] {
        let version = ("mcp-protocol-version", version);
        for (body, status) in [
            (r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, 202),
            (r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#, 202),
            // Nothing waits for it.
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, 400),
        ] {
            let answer = http.post_with("/mcp", &[version, session], body).await;
            let status = if known { status } else { 400 };
            assert_eq!(answer.status(), status, "{version:?} {body}");
            let text = answer.text().await;
            assert_eq!(text.contains("-32022"), !known, "{version:?} {body} {text}");
        }
        let headers = [("accept", "text/event-stream"), version, session];
        let answer = http.get("/mcp", &headers).await;
        assert_eq!(
            answer.status(),
            if known { 200 } else { 400 },
            "{version:?}"
        );
        if !known {
            assert_eq!(code(answer).await, -32022);
            let answer = http.send("DELETE", "/mcp", &headers, "").await;
            assert_eq!(code(answer).await, -32022);
        }
    }
    let answer = http.send("DELETE", "/mcp", &[session], "").await;
    assert_eq!(answer.status(), 200, "it is still there");
    gateway.stop().await;
}

#[tokio::test]
async fn strangers_from_other_sites_are_refused() {
    let (gateway, _backend) = with_one_server().await;
    let http = gateway.http();
    for path in ["/mcp", "/sse", "/messages/", "/status", "/mcp/servers/x"] {
        for bad in [
            ("origin", "http://evil.example.com"),
            ("host", "evil.example.com"),
            ("origin", "null"),
        ] {
            let posted = http.post_with(path, &[bad], PING).await;
            assert_eq!(posted.status(), 403, "{path} {bad:?}");
            // SDKs show the message of an error, and no other text.
            let is_error = posted.text().await.starts_with('{');
            let is_posted_to = !["/sse", "/status"].contains(&path);
            assert_eq!(is_error, is_posted_to, "{path} {bad:?}");
            assert_eq!(http.get(path, &[bad]).await.status(), 403, "{path} {bad:?}");
        }
    }
    let local = [
        ("origin", "http://localhost:1234"),
        ("host", "localhost:9999"),
    ];
    assert_eq!(http.post_with("/mcp", &local, PING).await.status(), 200);
    gateway.stop().await;
}

/// A browser lets the pages of welcome origins speak MCP, read our headers, and nothing else.
#[tokio::test]
async fn pages_of_welcome_origins_may_speak() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting(r#"allowed_origins = ["https://app.example.com"]"#)
        .server("x", &backend)
        .start()
        .await;
    for (origin, is_welcome) in [
        ("https://app.example.com", true),
        ("http://localhost:3000", true),
        ("http://127.0.0.1:6274", true),
        ("https://other.example.com", false),
        ("https://app.example.com.evil.com", false),
        ("null", false),
    ] {
        for (path, verbs) in [
            ("/mcp", "GET, POST, DELETE"),
            ("/mcp/servers/x", "GET, POST, DELETE"),
            ("/sse", "GET"),
            ("/sse/servers/x", "GET"),
            ("/messages/", "POST"),
        ] {
            let asked = preflight(&gateway, path, origin).await;
            let posted = gateway
                .http()
                .post_with(path, &[("origin", origin)], PING)
                .await;
            if is_welcome {
                assert_eq!(asked.status(), 204, "{origin} {path}");
                assert_eq!(asked.header("access-control-allow-methods"), Some(verbs));
                // Whatever the answer is, the page may read it.
                expect_readable(&[&asked, &posted], origin);
                continue;
            }
            for answer in [asked, posted] {
                assert_eq!(answer.status(), 403, "{origin} {path}");
                assert_eq!(answer.header("access-control-allow-origin"), None);
            }
        }
    }
    let loopback = ("origin", "http://localhost:3000");
    let status = gateway.http().get("/status", &[loopback]).await;
    assert_eq!(status.header("access-control-allow-origin"), None);
    let plain = gateway.http().post("/mcp", PING).await;
    assert_eq!(plain.header("access-control-allow-origin"), None);
    assert_eq!(plain.header("vary"), None, "no browser, no word of it");
    gateway.stop().await;
}

/// Asks as a browser does before its page may post.
async fn preflight(gateway: &Gateway, path: &str, origin: &str) -> Answer {
    let wanted = "content-type,mcp-session-id,Mcp-Param-Region,x-evil";
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", wanted),
    ];
    let answer = gateway.http().send("OPTIONS", path, &headers, "").await;
    if answer.status() == 204 {
        assert_eq!(
            answer.header("access-control-allow-headers"),
            Some(
                "content-type, accept, authorization, x-api-key, last-event-id, \
                 mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, mcp-param-region"
            )
        );
    }
    answer
}

fn expect_readable(answers: &[&Answer], origin: &str) {
    for answer in answers {
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert_eq!(answer.header("vary"), Some("origin"));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(
            answer.header("access-control-expose-headers"),
            Some("mcp-session-id, mcp-protocol-version, www-authenticate")
        );
    }
}

/// A body may be as large and as deep as the limits say, and no more.
#[tokio::test]
async fn bodies_have_limits() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting("limits = { body = \"1KiB\", depth = 16 }")
        .server("x", &backend)
        .start()
        .await;
    let http = gateway.http();
    let sse = gateway.client(Front::Sse, "/mcp", "{}").await;
    sse.is_quiet().await;
    for (bytes, status) in [(1024, 200), (1025, 413), (1024, 200)] {
        let padding = " ".repeat(bytes - PING.len());
        assert_eq!(
            http.post("/mcp", format!("{PING}{padding}")).await.status(),
            status,
            "{bytes}"
        );
    }
    for (depth, status) in [(16, 200), (17, 400), (15, 200)] {
        let nested = "[".repeat(depth - 2) + &"]".repeat(depth - 2);
        let body = request("1", "ping", &format!(r#"{{"a":{nested}}}"#));
        let answer = http.post("/mcp", body).await;
        assert_eq!(answer.status(), status, "{depth}");
        if status == 400 {
            assert_eq!(code(answer).await, -32600);
        }
    }
    gateway.stop().await;
}

/// What precedes an answer in a batch comes before it, be it progress or a question; a client that
/// waits hears that it is not forgotten.
#[tokio::test]
async fn a_batch_is_answered_in_events_where_something_precedes_an_answer() {
    const CALLS: &str = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_x_echo","_meta":{"progressToken":"t"}}},
        {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mcp_x_other"}},{"nonsense":1}]"#;
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway = TestGateway::new().setting("keep_alive = \"1s\"");
    let gateway = gateway.server("x", &backend).start().await;
    let http = gateway.http();
    let able = r#"{"protocolVersion":"2025-03-26","capabilities":{"sampling":{}}}"#;
    let opened = http.post("/mcp", request("0", "initialize", able)).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let header = [("mcp-session-id", session.as_str())];
    let calls = async || {
        let (first, second) = (
            backend.asked("tools/call").await,
            backend.asked("tools/call").await,
        );
        let is_first = first.token().is_some();
        if is_first {
            (first, second)
        } else {
            (second, first)
        }
    };
    let post = || http.post_with("/mcp", &header, CALLS);
    let (answer, (first, second)) = tokio::join!(post(), async {
        let (first, second) = calls().await;
        first.progress(1).await;
        (first, second)
    });
    let mut events = answer.events();
    let mut next = async || Envelope::of(&events.message().await);
    let both = [next().await, next().await];
    let told = |message: &Envelope| message.param(&["progressToken"]);
    assert!(
        both.iter()
            .any(|message| told(message).as_deref() == Some(r#""t""#))
    );
    let refused = |message: &Envelope| message.error.is_some() && message.code() == -32600;
    assert!(both.iter().any(refused), "what was no message: {both:?}");
    second.ask("5", "sampling/createMessage", "{}").await;
    let question = next().await;
    assert_eq!(question.method(), "sampling/createMessage");
    let id = question.id.as_deref().unwrap();
    let taken = http.post_with("/mcp", &header, result(id, "{}")).await;
    assert_eq!(taken.status(), 202);
    assert_eq!(backend.answered().await.id.as_deref(), Some("5"));
    second.answer(r#"{"content":[]}"#).await;
    assert_eq!(next().await.id.as_deref(), Some("2"));
    first.answer(r#"{"content":[]}"#).await;
    assert_eq!(next().await.id.as_deref(), Some("1"));
    events.ends().await;

    // Nothing precedes the answers, but they take their time.
    let (answer, (first, second)) = tokio::join!(post(), calls());
    let mut events = answer.events();
    first.answer(r#"{"content":[]}"#).await;
    second.answer(r#"{"content":[]}"#).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(Envelope::of(&events.message().await).id);
    }
    assert_eq!(ids.iter().flatten().count(), 2, "{ids:?}");
    events.ends().await;
    gateway.stop().await;
}

/// A batch may hold so many messages and no more, on every transport that has batches.
#[tokio::test]
async fn batches_have_a_limit() {
    let gateway = TestGateway::new().start().await;
    let batch = |count: usize| {
        let ping = r#"{"jsonrpc":"2.0","id":ID,"method":"ping"}"#;
        let pings: Vec<_> = (0..count)
            .map(|id| ping.replace("ID", &id.to_string()))
            .collect();
        format!("[{}]", pings.join(","))
    };
    let session = initialize(&gateway, "2025-03-26").await;
    let header = [("mcp-session-id", session.as_str())];
    for (count, status) in [(64, 200), (65, 400), (63, 200)] {
        let answer = gateway
            .http()
            .post_with("/mcp", &header, batch(count))
            .await;
        assert_eq!(answer.status(), status, "{count}");
    }
    let params = r#"{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    for front in [Front::Sse, Front::Stdio] {
        let client = gateway.client(front, "/mcp", "{}").await;
        client
            .ask_raw(request(r#""again""#, "initialize", params))
            .await;
        client.answer(r#""again""#).await;
        for (count, is_taken) in [(64, true), (65, false), (63, true)] {
            let refused = client.ask_raw(batch(count)).await;
            if is_taken {
                for id in 0..count {
                    client.answer(&id.to_string()).await;
                }
            } else if front == Front::Sse {
                assert_eq!(refused.unwrap().status(), 400);
            } else {
                let refused = client.next().await;
                assert_eq!((&refused.id, refused.code()), (&None, -32600));
            }
            client.is_quiet().await;
        }
    }
    gateway.stop().await;
}

/// What is wrong within a batch is answered for itself, on every transport that has batches, and
/// `initialize` is never in one.
#[tokio::test]
async fn each_message_of_a_batch_is_checked() {
    const OPENING: &str = r#"{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    let gateway = TestGateway::new().start().await;
    let other = OPENING.replace("2025-03-26", "2025-11-25");
    let batch = [
        PING.to_owned(),
        request("2", "initialize", &other),
        r#"{"jsonrpc":"2.0","id":3}"#.to_owned(),
        r#"{"id":"4","method":"ping"}"#.to_owned(),
        format!("[{PING}]"),
        request("5", "no/such", "{}"),
    ];
    let batch = format!("[{}]", batch.join(","));
    let expect = json!([
        [null, -32600],
        ["\"4\"", -32600],
        ["1", null],
        ["2", -32600],
        ["3", -32600],
        ["5", -32601]
    ]);
    let told = |id: Option<&str>, error: Option<i64>| json!([id, error]);
    let sorted = |mut answers: Vec<Value>| {
        answers.sort_by_key(|answer| answer[0].as_str().map(str::to_owned));
        Value::Array(answers)
    };
    let session = initialize(&gateway, "2025-03-26").await;
    let header = [("mcp-session-id", session.as_str())];
    let http = gateway.http();
    let answer = http.post_with("/mcp", &header, batch.clone()).await;
    let answers = value(&answer.text().await);
    let answers = answers.as_array().unwrap().iter().map(|answer| {
        let id = (!answer["id"].is_null()).then(|| answer["id"].to_string());
        told(id.as_deref(), answer["error"]["code"].as_i64())
    });
    assert_eq!(sorted(answers.collect()), expect);
    for front in [Front::Sse, Front::Stdio] {
        let client = gateway.client(front, "/mcp", "{}").await;
        client
            .ask_raw(request(r#""again""#, "initialize", OPENING))
            .await;
        client.answer(r#""again""#).await;
        client.ask_raw(batch.clone()).await;
        let mut answers = Vec::new();
        for _ in 0..6 {
            let answer = client.next().await;
            let code = answer.error.is_some().then(|| answer.code());
            answers.push(told(answer.id.as_deref(), code));
        }
        assert_eq!(sorted(answers), expect, "{front:?}");
        client.is_quiet().await;
        client.ask_raw(format!("[{PING}]")).await;
        client.answer("1").await.value();
        let broken = client.ask_raw("[{\"jsonrpc\":".to_owned()).await;
        match broken {
            Some(answer) => assert_eq!(code(answer).await, -32700),
            None => assert_eq!(client.next().await.code(), -32700),
        }
    }
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

#[tokio::test]
async fn wrong_types_and_verbs_are_refused() {
    let (gateway, _backend) = with_one_server().await;
    let http = gateway.http();
    let [json, both] = JSON;
    for (headers, status) in [
        (&[json, both][..], 200),
        (&[json], 200),
        (&[json, ("accept", "*/*")], 200),
        (&[json, ("accept", "application/*, text/*;q=0.5")], 200),
        (&[json, ("accept", "application/json")], 406),
        (&[json, ("accept", "text/event-stream")], 406),
        (&[json, ("accept", "text/html")], 406),
        (&[both], 415),
        (&[("content-type", "text/plain"), both], 415),
        (
            &[("content-type", "Application/JSON; charset=utf-8"), both],
            200,
        ),
    ] {
        let answer = http.send("POST", "/mcp", headers, PING).await;
        assert_eq!(answer.status(), status, "{headers:?}");
        if status != 200 {
            assert_eq!(code(answer).await, -32600, "{headers:?}");
        }
    }
    let events = [("accept", "text/event-stream")];
    let no_session = http.get("/mcp", &events).await;
    assert_eq!(no_session.status(), 405, "no session to stream for");
    assert_eq!(no_session.header("allow"), Some("GET, POST, DELETE"));
    assert!(no_session.text().await.contains("Mcp-Session-Id"));
    assert_eq!(
        http.get("/mcp", &[("accept", "application/json")])
            .await
            .status(),
        406
    );
    assert_eq!(
        http.post("/messages/?session_id=none", PING).await.status(),
        404
    );
    for path in [
        "/nowhere",
        "/mcp/servers/none",
        "/sse/servers/none",
        "/mcp/servers/",
    ] {
        assert_eq!(http.post(path, PING).await.status(), 404, "{path}");
    }
    let said = http.post("/nowhere", PING).await.text().await;
    assert_eq!(said, "not found; MCP clients connect to /mcp\n");
    let said = value(&http.post("/mcp/servers/none", PING).await.text().await);
    let error = json!({ "code": -32600, "message": "there is no such server" });
    assert_eq!(
        said,
        json!({ "jsonrpc": "2.0", "id": null, "error": error })
    );
    let said = http.get("/mcp/servers/none", &events).await.text().await;
    assert_eq!(said, "there is no such server\n");
    gateway.stop().await;
}

/// Each path names the verbs it takes, and the header and the text agree.
#[tokio::test]
async fn verbs_that_a_path_does_not_take_are_refused() {
    let (gateway, _backend) = with_one_server().await;
    let http = gateway.http();
    for (path, taken) in [
        ("/mcp", "GET, POST, DELETE"),
        ("/mcp/servers/x", "GET, POST, DELETE"),
        ("/sse", "GET"),
        ("/messages/", "POST"),
        ("/", "GET, HEAD"),
        ("/status", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
    ] {
        for verb in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let answer = http.send(verb, path, &JSON, "").await;
            if taken.split(", ").any(|taken| taken == verb) {
                // Without a session there is nothing to GET from /mcp.
                let is_refused = verb == "GET" && path.starts_with("/mcp");
                assert_eq!(answer.status() == 405, is_refused, "{verb} {path}");
                continue;
            }
            assert_eq!(answer.status(), 405, "{verb} {path}");
            assert_eq!(answer.header("allow"), Some(taken), "{verb} {path}");
            if verb != "HEAD" {
                let is_mcp = ["/mcp", "/sse", "/mess"]
                    .iter()
                    .any(|at| path.starts_with(at));
                let way = if is_mcp {
                    ""
                } else {
                    "; MCP clients connect to /mcp"
                };
                let expect = format!("this path takes {taken}{way}\n");
                assert_eq!(answer.text().await, expect, "{verb} {path}");
            }
        }
    }
    for path in ["/status", "/healthz", "/readyz"] {
        let answer = http.send("HEAD", path, &[], "").await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.text().await, "", "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    let (gateway, _backend) = with_one_server().await;
    for (body, status, expect) in [
        ("", 400, -32700),
        ("{", 400, -32700),
        ("nonsense", 400, -32700),
        ("1", 400, -32600),
        ("{}", 400, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
            400,
            -32600,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#,
            200,
            -32601,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none"}}"#,
            200,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}"#,
            200,
            -32602,
        ),
    ] {
        let answer = gateway.http().post("/mcp", body).await;
        assert_eq!(answer.status(), status, "{body}");
        assert_eq!(code(answer).await, expect, "{body}");
    }
    let unknown = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none"}}"#;
    let answer = value(&gateway.http().post("/mcp", unknown).await.text().await);
    assert_eq!(answer["error"]["data"]["code"], "TOOL_NOT_FOUND");
    gateway.stop().await;
}

/// The headers of 2026-07-28 must be there, once, and say what the body says.
#[tokio::test]
async fn modern_headers_agree_with_the_body() {
    let (gateway, backend) = with_one_server().await;
    backend.on_request(|request| {
        (request.method() == "tools/call").then(|| crate::support::Auto::Result("{}".to_owned()))
    });
    let http = gateway.http();
    let version = ("mcp-protocol-version", "2026-07-28");
    let (list, call) = (("mcp-method", "tools/list"), ("mcp-method", "tools/call"));
    let name = ("mcp-name", "mcp_x_echo");
    let list_body = request("1", "tools/list", &format!("{{{META}}}"));
    let call_body = request(
        "1",
        "tools/call",
        &format!(r#"{{"name":"mcp_x_echo",{META}}}"#),
    );
    for (headers, body, status) in [
        (&[version, list][..], &list_body, 200),
        (&[version, call, name], &call_body, 200),
        (
            &[version, call, ("mcp-name", "=?base64?bWNwX3hfZWNobw==?=")],
            &call_body,
            200,
        ),
        (
            &[
                ("MCP-Protocol-Version", "2026-07-28"),
                ("MCP-METHOD", "tools/list"),
            ],
            &list_body,
            200,
        ),
        (&[list], &list_body, -32020),
        (&[version], &list_body, -32020),
        (&[version, ("mcp-method", "Tools/List")], &list_body, -32020),
        (&[version, list, list], &list_body, -32020),
        (
            &[("mcp-protocol-version", "2025-11-25"), list],
            &list_body,
            -32020,
        ),
        (&[version, call], &call_body, -32020),
        (
            &[version, call, ("mcp-name", "mcp_x_other")],
            &call_body,
            -32020,
        ),
        (
            &[version, call, ("mcp-name", "=?base64?!?=")],
            &call_body,
            -32020,
        ),
    ] {
        let answer = http.post_with("/mcp", headers, body.clone()).await;
        if status == 200 {
            assert_eq!(answer.status(), 200, "{headers:?}");
            assert!(answer.header("mcp-session-id").is_none());
        } else {
            assert_eq!(answer.status(), 400, "{headers:?}");
            assert_eq!(code(answer).await, status, "{headers:?}");
        }
    }
    // A session header or a place to resume at means nothing here.
    let odd = [
        version,
        list,
        ("mcp-session-id", "nowhere"),
        ("last-event-id", "1-1"),
    ];
    assert_eq!(http.post_with("/mcp", &odd, list_body).await.status(), 200);
    gateway.stop().await;
}

/// What is no request of 2026-07-28 has the status and the code that it prescribes.
#[tokio::test]
async fn modern_requests_are_refused_as_prescribed() {
    let (gateway, _backend) = with_one_server().await;
    let http = gateway.http();
    let version = ("mcp-protocol-version", "2026-07-28");
    let list = ("mcp-method", "tools/list");
    for (method, meta, status, expect) in [
        ("ping", META, 404, -32601),
        ("initialize", META, 404, -32601),
        ("no/such", META, 404, -32601),
        (
            "tools/list",
            r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#,
            400,
            -32602,
        ),
    ] {
        let headers = [version, ("mcp-method", method)];
        let answer = http
            .post_with(
                "/mcp",
                &headers,
                request("1", method, &format!("{{{meta}}}")),
            )
            .await;
        assert_eq!(answer.status(), status, "{method}");
        assert_eq!(code(answer).await, expect, "{method}");
    }
    // One of a client that has no `_meta` is known, and begins in another way.
    for legacy in ["2025-11-25", "2024-11-05"] {
        let meta = META.replace("2026-07-28", legacy);
        let headers = [("mcp-protocol-version", legacy), list];
        let body = request("1", "tools/list", &format!("{{{meta}}}"));
        let answer = http.post_with("/mcp", &headers, body).await;
        assert_eq!(answer.status(), 400);
        let error = value(&answer.text().await)["error"].clone();
        assert_eq!(error["code"], -32022);
        let expect = format!(
            "protocol version {legacy} has no per-request _meta: it begins with `initialize`"
        );
        assert_eq!(error["message"], expect);
        let data = json!({ "requested": legacy, "supported": ["2026-07-28"] });
        assert_eq!(error["data"], data);
    }
    let future = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01","io.modelcontextprotocol/clientCapabilities":{}}}"#;
    let headers = [("mcp-protocol-version", "2031-01-01"), list];
    let answer = http
        .post_with("/mcp", &headers, request("1", "tools/list", future))
        .await;
    assert_eq!(answer.status(), 400);
    let error = value(&answer.text().await)["error"].clone();
    assert_eq!(error["code"], -32022);
    assert_eq!(error["data"]["requested"], "2031-01-01");
    assert!(
        error["data"]["supported"]
            .to_string()
            .contains("2026-07-28")
    );
    gateway.stop().await;
}

/// Who names events first has its answers in them; an error keeps its status.
#[tokio::test]
async fn errors_have_their_status_however_events_are_preferred() {
    const LACKS: &str = r#"{"code":-32021,"message":"no","data":{"requiredCapabilities":{}}}"#;
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    backend.on_request(|request| {
        let is_call = request.method() == "tools/call";
        let wish = is_call.then(|| request.param(&["arguments", "fail"]))?;
        Some(match wish {
            Some(_) => Auto::Error(LACKS.to_owned()),
            None => Auto::Result(r#"{"resultType":"complete","content":[]}"#.to_owned()),
        })
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let call =
        |arguments: &str| format!(r#"{{"name":"mcp_x_echo","arguments":{arguments},{META}}}"#);
    for (method, params, status, expect) in [
        ("no/such", format!("{{{META}}}"), 404, Some(-32601)),
        ("tools/call", call(r#"{"fail":1}"#), 400, Some(-32021)),
        ("tools/call", call("{}"), 200, None),
        ("tools/list", format!("{{{META}}}"), 200, None),
    ] {
        let mut headers = vec![
            ("content-type", "application/json"),
            ("accept", "text/event-stream, application/json"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
        ];
        if method == "tools/call" {
            headers.push(("mcp-name", "mcp_x_echo"));
        }
        let body = request("1", method, &params);
        let answer = gateway.http().send("POST", "/mcp", &headers, body).await;
        assert_eq!(answer.status(), status, "{method} {params}");
        if let Some(expect) = expect {
            assert_eq!(code(answer).await, expect, "{method}");
        } else {
            let answer = value(&answer.events().message().await);
            assert!(answer["result"].is_object(), "{answer}");
        }
    }
    gateway.stop().await;
}

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

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
