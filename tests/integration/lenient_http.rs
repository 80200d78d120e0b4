//! Clients and browsers that do not do as the specification says are served where that is possible, and told
//! what to do where it is not.

use serde_json::json;

use crate::support::{
    Backend, Era, Front, Gateway, TestGateway, Transport,
    http::{Answer, JSON, code},
    initialize, soon, value,
    wire::request,
    with_one_server,
};

const JSON_ONLY: [(&str, &str); 2] = [
    ("content-type", "application/json"),
    ("accept", "application/json"),
];
const BROWSER: (&str, &str) = (
    "accept",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
);
const CALL: &str = r#"{"name":"mcp_x_echo","_meta":{"progressToken":"p"}}"#;

/// What precedes the answer has no place in it; the answer comes nevertheless, and the server is told that
/// nobody answers its questions.
#[tokio::test]
async fn a_client_that_takes_json_alone_gets_json() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::Http, Era::Legacy),
    ] {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        let session = initialize(&gateway, "2025-11-25").await;
        let session = ("mcp-session-id", session.as_str());
        for headers in [&JSON_ONLY[..], &[JSON_ONLY[0], JSON_ONLY[1], session]] {
            let http = gateway.http();
            let post = http.send("POST", "/mcp", headers, request("7", "tools/call", CALL));
            let serve = async {
                let call = backend.asked("tools/call").await;
                call.progress(1).await;
                call.ask("9", "roots/list", "{}").await;
                assert!(backend.answered().await.error.is_some(), "nobody is asked");
                call.answer(r#"{"n":1}"#).await;
            };
            let (answer, ()) = tokio::join!(post, serve);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            let answer = value(&answer.text().await);
            assert_eq!(
                (&answer["id"], &answer["result"]["n"]),
                (&json!(7), &json!(1))
            );
        }
        gateway.stop().await;
    }
}

/// A client that takes JSON from its calls may hear the rest on the other stream of its session.
#[tokio::test]
async fn what_precedes_an_answer_in_json_goes_to_the_other_stream() {
    let (gateway, backend) = with_one_server().await;
    let http = gateway.http();
    let session = initialize(&gateway, "2025-03-26").await;
    let session = ("mcp-session-id", session.as_str());
    let accept = ("accept", "text/event-stream");
    let mut events = http.get("/mcp", &[accept, session]).await.events();
    let headers = [JSON_ONLY[0], JSON_ONLY[1], session];
    for body in [
        request("1", "tools/call", CALL),
        format!("[{}]", request("1", "tools/call", CALL)),
    ] {
        let post = http.send("POST", "/mcp", &headers, body);
        let serve = async {
            let call = backend.asked("tools/call").await;
            call.progress(1).await;
            let heard = events.message().await;
            assert!(heard.contains("notifications/progress"), "{heard}");
            call.answer(r#"{"n":1}"#).await;
        };
        let (answer, ()) = tokio::join!(post, serve);
        let answer = answer.text().await;
        assert!(answer.contains(r#""result":{"n":1}"#), "{answer}");
    }
    gateway.stop().await;
}

/// A stream of changes is none without events.
#[tokio::test]
async fn what_is_a_stream_needs_a_client_that_takes_one() {
    let (gateway, _backend) = with_one_server().await;
    let modern = gateway.client(Front::Modern, "/mcp", "{}").await;
    let params = modern.params(r#""notifications":{}"#, "");
    let headers = [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "subscriptions/listen"),
    ];
    let listen = request("1", "subscriptions/listen", &params);
    let http = gateway.http();
    let headers = [&JSON_ONLY[..], &headers].concat();
    let refused = http.send("POST", "/mcp", &headers, listen).await;
    assert_eq!(refused.status(), 406);
    let said = value(&refused.text().await);
    assert_eq!(said["id"], 1);
    let message = said["error"]["message"].as_str().unwrap();
    assert!(message.contains("text/event-stream"), "{message}");
    gateway.stop().await;
}

/// Clients that pool a session give one id to several requests: each answer comes in its own response.
#[tokio::test]
async fn requests_of_one_id_are_answered_each_for_itself() {
    let (backend, gateway) = Gateway::governed(Transport::Stdio, Era::Legacy, "").await;
    let session = initialize(&gateway, "2025-06-18").await;
    let http = gateway.http().clone();
    let session = [("mcp-session-id", session.as_str())];
    let call = || http.post_with("/mcp", &session, request("1", "tools/call", CALL));
    let answered = async |answer: Answer| {
        let said = if answer.is_events() {
            answer.events().message().await
        } else {
            answer.text().await
        };
        value(&said)["result"]["n"].clone()
    };
    let serve = async {
        let first = backend.asked("tools/call").await;
        let second = backend.asked("tools/call").await;
        let cancel =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        let cancelled = http.post_with("/mcp", &session, cancel).await;
        assert_eq!(cancelled.status(), 202, "nobody knows which is meant");
        second.answer(r#"{"n":2}"#).await;
        first.answer(r#"{"n":1}"#).await;
    };
    let (one, other, ()) = soon("both are answered", async {
        tokio::join!(call(), call(), serve)
    })
    .await;
    let mut answers = [answered(one).await, answered(other).await];
    answers.sort_by_key(serde_json::Value::as_u64);
    assert_eq!(answers, [json!(1), json!(2)]);
    gateway.stop().await;
}

#[tokio::test]
async fn arguments_in_a_string_are_refused_with_the_remedy() {
    let (gateway, backend) = with_one_server().await;
    let params = r#"{"name":"mcp_x_echo","arguments":"{\"a\":1}"}"#;
    let answer = gateway
        .http()
        .post("/mcp", request("1", "tools/call", params))
        .await;
    let error = &value(&answer.text().await)["error"];
    assert_eq!(error["code"], -32602);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("send the JSON object itself"), "{message}");
    assert!(backend.was_asked().await.is_none());
    gateway.stop().await;
}

const KEYED: &str = "[governance]\nauth = \"keys\"\n[agents.ann]\nkeys = [\"tbk_ann_5d0c1e7f9a3b48d2a6c4e8f0b1d3a5c7\"]";

/// Clients that look for an authorization server read in JSON what is wanted instead, and so does who has no
/// key, whatever it asks.
#[tokio::test]
async fn who_looks_for_oauth_is_told_of_keys() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    for (settings, expect) in [
        ("", "without authentication"),
        (KEYED, "`Authorization: Bearer KEY`"),
    ] {
        let gateway = TestGateway::new().setting(settings).server("x", &backend);
        let gateway = gateway.launch().await;
        let http = gateway.http();
        for (verb, path) in [
            ("GET", "/.well-known/oauth-protected-resource"),
            ("GET", "/.well-known/oauth-protected-resource/mcp/servers/x"),
            ("GET", "/.well-known/oauth-authorization-server/mcp"),
            ("GET", "/mcp/.well-known/openid-configuration"),
            ("POST", "/register"),
            ("GET", "/authorize?client_id=1"),
            ("POST", "/token"),
        ] {
            let page = ("origin", "http://localhost:6274");
            let answer = http.send(verb, path, &[JSON[0], page], "{}").await;
            assert_eq!(answer.status(), 404, "{verb} {path}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            let readable = answer.header("access-control-allow-origin");
            assert_eq!(readable, Some(page.1), "{path}");
            let said = value(&answer.text().await);
            assert!(said["error"].is_string(), "{said}");
            let description = said["error_description"].as_str().unwrap();
            assert!(description.contains(expect), "{description}");
        }
        gateway.stop().await;
    }
    let gateway = TestGateway::new().setting(KEYED).server("x", &backend);
    let gateway = gateway.launch().await;
    for (verb, path) in [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("GET", "/sse"),
        ("DELETE", "/mcp"),
    ] {
        let refused = gateway.http().send(verb, path, &JSON, "{}").await;
        assert_eq!(refused.status(), 401, "{verb} {path}");
        assert_eq!(refused.header("content-type"), Some("application/json"));
        assert_eq!(
            refused.header("www-authenticate"),
            Some(r#"Bearer realm="tollbridge""#)
        );
        let said = refused.text().await;
        assert!(
            said.contains("an API key is required") && said.contains("no OAuth"),
            "{said}"
        );
    }
    gateway.stop().await;
}

/// A browser has no key, and shows what to do with the URL; clients that take events get no page.
#[tokio::test]
async fn a_browser_gets_a_page() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    for (settings, needs_key) in [("", false), (KEYED, true)] {
        let gateway = TestGateway::new().setting(settings).server("x", &backend);
        let gateway = gateway.launch().await;
        let http = gateway.http();
        for path in ["/mcp", "/mcp/", "/mcp/servers/x", "/sse"] {
            let page = http.get(path, &[BROWSER]).await;
            assert_eq!(page.status(), 200, "{path}");
            assert_eq!(
                page.header("content-type"),
                Some("text/html; charset=utf-8")
            );
            assert_eq!(page.header("cache-control"), Some("no-store"));
            let page = page.text().await;
            assert!(page.contains("This URL is for MCP clients"), "{page}");
            assert_eq!(page.contains("Bearer KEY"), needs_key, "{page}");
        }
        let unknown = http.get("/mcp/servers/none", &[BROWSER]).await;
        assert_eq!(unknown.status(), 404);
        let client = http.get("/mcp", &[("accept", "text/event-stream")]).await;
        assert_eq!(client.status(), if needs_key { 401 } else { 405 });
        let posted = http.send("POST", "/mcp", &[JSON[0], BROWSER], "{}").await;
        assert_eq!(posted.header("content-type"), Some("application/json"));
        if !needs_key {
            assert_eq!(code(posted).await, -32600);
        }
        gateway.stop().await;
    }
}
