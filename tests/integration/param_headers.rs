//! `Mcp-Param-*`: arguments that travel in headers too, on either side (2026-07-28).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::support::{
    Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
    client::modern_headers,
    value,
    wire::{Envelope, request},
};

const TOOLS: &str = r#"[{"name":"find","inputSchema":{"type":"object","properties":{
    "region":{"type":"string","x-mcp-header":"Region"},
    "page":{"type":"integer","x-mcp-header":"Page"},
    "deep":{"type":"boolean","x-mcp-header":"Deep"},
    "rest":{"type":"string"}}}}]"#;
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

async fn with_server(era: Era) -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Http, era).await;
    backend.set_list("tools/list", TOOLS);
    let gateway = TestGateway::new().server("x", &backend).start().await;
    (gateway, backend)
}

/// The `Mcp-Param-*` headers that came, in order.
fn params_of(headers: &http::HeaderMap) -> Vec<String> {
    let mut found: Vec<_> = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("mcp-param-"))
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    found.sort();
    found
}

/// A modern server is sent the headers that its schema asks for, whichever client calls; a legacy
/// one never is.
#[tokio::test]
async fn arguments_are_repeated_to_modern_servers() {
    for (era, front) in [
        (Era::Modern, Front::Streamable),
        (Era::Modern, Front::Stdio),
        (Era::Modern, Front::StdioModern),
        (Era::Legacy, Front::Streamable),
        (Era::Legacy, Front::StdioModern),
    ] {
        let (gateway, backend) = with_server(era).await;
        for (path, tool) in [("/mcp", "mcp_x_find"), ("/mcp/servers/x", "find")] {
            let client = gateway.client(front, path, "{}").await;
            for (arguments, expect) in [
                (
                    r#"{"region":"eu west","page":3,"deep":false,"rest":"r"}"#,
                    &[
                        "mcp-param-deep: false",
                        "mcp-param-page: 3",
                        "mcp-param-region: eu west",
                    ][..],
                ),
                (
                    r#"{"region":"Z\u00fcrich"}"#,
                    &["mcp-param-region: =?base64?WsO8cmljaA==?="],
                ),
                (r#"{"page":null}"#, &[]),
            ] {
                let members = format!(r#""name":"{tool}","arguments":{arguments}"#);
                client.ask("1", "tools/call", &members).await;
                let asked = backend.asked("tools/call").await;
                let expect = if era == Era::Modern { expect } else { &[] };
                assert_eq!(params_of(&asked.headers), expect, "{front:?} {arguments}");
                assert_eq!(
                    asked.envelope.param(&["arguments"]).as_deref(),
                    Some(arguments)
                );
                asked.answer("{}").await;
                client.answer("1").await;
            }
        }
        gateway.stop().await;
    }
}

/// A server may want other headers than those it was listed with: a call that it refuses for that is sent
/// once more as it wants now, and no more than once.
#[tokio::test]
async fn a_call_goes_once_more_with_the_headers_that_are_wanted_now() {
    const OTHER: &str = r#"[{"name":"find","inputSchema":{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Zone"}}}}]"#;
    const REFUSAL: &str = r#"{"code":-32020,"message":"other headers"}"#;
    for (list, is_sent_again) in [(OTHER, true), (TOOLS, false)] {
        for is_answered in [true, false] {
            let (gateway, backend) = with_server(Era::Modern).await;
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            let members = r#""name":"mcp_x_find","arguments":{"region":"eu"}"#;
            client.ask("1", "tools/call", members).await;
            let first = backend.asked("tools/call").await;
            assert_eq!(params_of(&first.headers), ["mcp-param-region: eu"]);
            backend.set_list("tools/list", list);
            first.refuse(REFUSAL).await;
            if is_sent_again {
                let second = backend.asked("tools/call").await;
                assert_eq!(params_of(&second.headers), ["mcp-param-zone: eu"]);
                if is_answered {
                    second.answer("{}").await;
                } else {
                    second.refuse(REFUSAL).await;
                }
            }
            let answer = client.answer("1").await;
            if is_sent_again && is_answered {
                answer.value();
            } else {
                assert_eq!(answer.failure()["code"], -32603);
            }
            assert!(backend.was_asked().await.is_none());
            gateway.stop().await;
        }
    }
}

/// However many calls are refused for their headers, a list that cannot be read for that is asked for once.
#[tokio::test]
async fn a_list_that_cannot_be_read_is_not_asked_for_by_each_call() {
    let (gateway, backend) = with_server(Era::Modern).await;
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lists);
    backend.on_request(move |request| match request.method() {
        "tools/call" => {
            let refusal = r#"{"code":-32020,"message":"other headers"}"#;
            Some(Auto::Error(refusal.to_owned()))
        }
        "tools/list" => {
            counted.fetch_add(1, Ordering::SeqCst);
            let refusal = r#"{"code":-32603,"message":"not now"}"#;
            Some(Auto::Error(refusal.to_owned()))
        }
        _ => None,
    });
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for id in 1..=5 {
        let (id, members) = (
            id.to_string(),
            r#""name":"mcp_x_find","arguments":{"region":"eu"}"#,
        );
        client.ask(&id, "tools/call", members).await;
        assert_eq!(client.answer(&id).await.failure()["code"], -32603);
    }
    // The catalog is listed again beside that.
    let asked = lists.load(Ordering::SeqCst);
    assert!((1..=2).contains(&asked), "{asked}");
    gateway.stop().await;
}

/// A client's headers must say what its arguments say; the server gets them anew.
#[tokio::test]
async fn headers_of_clients_agree_with_the_arguments() {
    let (gateway, backend) = with_server(Era::Modern).await;
    backend.on_request(|request| {
        (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
    });
    let arguments = r#"{"region":"Z\u00fcrich","page":42}"#;
    let call = request(
        "1",
        "tools/call",
        &format!(r#"{{"name":"mcp_x_find","arguments":{arguments},{META}}}"#),
    );
    let own = modern_headers(&Envelope::of(&call));
    let own: Vec<_> = own.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let region = ("mcp-param-region", "=?base64?WsO8cmljaA==?=");
    let page = ("mcp-param-page", "42");
    for (sent, is_taken) in [
        (&[region, page][..], true),
        (&[region, ("Mcp-Param-Page", "42.0")], true),
        (&[region], false),
        (&[page], false),
        (&[region, ("mcp-param-page", "43")], false),
        (&[region, page, page], false),
        (&[("mcp-param-region", "Zurich"), page], false),
        (&[("mcp-param-region", "=?base64?!?="), page], false),
        (&[region, page, ("mcp-param-deep", "true")], false),
        (&[region, page, ("mcp-param-unknown", "x")], true),
    ] {
        let headers = [&own[..], sent].concat();
        let answer = gateway
            .http()
            .post_with("/mcp", &headers, call.clone())
            .await;
        assert_eq!(answer.status() == 200, is_taken, "{sent:?}");
        if !is_taken {
            assert_eq!(answer.status(), 400, "{sent:?}");
            let refused = value(&answer.text().await);
            assert_eq!(refused["error"]["code"], -32020, "{sent:?}");
        }
    }
    gateway.stop().await;
}

/// Who may not use a tool was told which headers it wants.
#[tokio::test]
async fn what_may_not_be_used_tells_nothing_of_its_headers() {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    backend.set_list("tools/list", TOOLS);
    let denied = "[governance]\npolicy = { mode = \"denylist\", tools = [\"x/find\"] }";
    for (setting, expect) in [("", -32020), (denied, -32003)] {
        let plan = TestGateway::new().server("x", &backend).setting(setting);
        let gateway = plan.start().await;
        let params = format!(r#"{{"name":"mcp_x_find","arguments":{{"page":3}},{META}}}"#);
        let call = request("1", "tools/call", &params);
        let headers = modern_headers(&Envelope::of(&call));
        let headers: Vec<_> = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        let answer = gateway.http().post_with("/mcp", &headers, call).await;
        let answer = value(&answer.text().await);
        assert_eq!(answer["error"]["code"], expect, "{answer}");
        gateway.stop().await;
    }
}
