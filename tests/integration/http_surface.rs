//! The HTTP surface itself: origins, verbs, types, headers and limits.

use serde_json::json;

use crate::support::{
    Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
    http::{Answer, JSON, PING, code},
    initialize, value,
    wire::request,
    with_one_server,
};

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
            ("host", "a@127.0.0.1"),
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
    let root = [("host", "localhost."), ("origin", "http://localhost")];
    assert_eq!(http.post_with("/mcp", &root, PING).await.status(), 200);
    let doubled = [("origin", "http://localhost"); 2];
    let refused = http.post_with("/mcp", &doubled, PING).await;
    assert_eq!(refused.status(), 403);
    assert!(refused.text().await.contains("more than one Origin header"));
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
        (&[json, ("accept", "application/json")], 200),
        (&[json, ("accept", "text/event-stream")], 406),
        (&[json, ("accept", "text/html")], 406),
        (&[both], 415),
        (&[json, json, both], 400),
        (&[json, ("content-type", "text/plain"), both], 400),
        (
            &[("content-type", "text/plain, application/json"), both],
            415,
        ),
        (&[json, both, ("content-encoding", "Identity")], 200),
        (&[json, both, ("content-encoding", "gzip")], 415),
        (&[json, both, ("content-encoding", "identity, br")], 415),
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
    let packed = [("content-encoding", "gzip")];
    let packed = http.post_with("/mcp", &packed, PING).await;
    assert_eq!(packed.header("accept-encoding"), Some("identity"));
    let said = packed.text().await;
    assert!(
        said.contains("unsupported Content-Encoding: only identity is accepted"),
        "{said}"
    );
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
    let error = json!({ "code": -32600, "message": "unknown server" });
    assert_eq!(
        said,
        json!({ "jsonrpc": "2.0", "id": null, "error": error })
    );
    let said = http.get("/mcp/servers/none", &events).await.text().await;
    assert_eq!(said, "unknown server\n");
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
                let expect = format!("allowed methods for this path: {taken}{way}\n");
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
        let expect =
            format!("protocol version {legacy} has no per-request _meta: send `initialize` first");
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
