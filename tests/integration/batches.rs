//! Batches of clients, which one revision has.

use serde_json::{Value, json};

use crate::support::{
    Backend, Era, Front, TestGateway, Transport,
    http::{PING, code},
    initialize, value,
    wire::{Envelope, request, result},
    with_one_server,
};

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
