//! A gateway whose own URL is among its servers, and gateways that are servers of others.

use std::sync::{Arc, Mutex};

use crate::support::{Backend, Era, Gateway, TestGateway, Transport, http::PING};

const GATEWAY: &str = "tollbridge-gateway";

/// What can be written of a server that is the gateway itself.
const WAYS: [(&str, &str); 8] = [
    ("http://ADDR/mcp", ""),
    ("http://ADDR/mcp", "transport = 'http'\nera = 'legacy'"),
    ("http://ADDR/mcp", "transport = 'http'\nera = 'modern'"),
    ("http://localhost:PORT/mcp/", ""),
    ("http://ADDR/mcp/servers/x", ""),
    ("http://ADDR/sse", "transport = 'sse'"),
    // It would be refused for that.
    ("http://ADDR/mcp", "headers = { Host = 'other.example' }"),
    ("ws://ADDR/mcp", ""),
];

fn name(at: usize) -> String {
    format!("me{at}")
}

/// The same config with the gateway itself as further servers.
fn with_itself(gateway: &Gateway, mut config: TestGateway) -> TestGateway {
    let (addr, port) = (gateway.addr().to_string(), gateway.addr().port());
    for (at, (url, keys)) in WAYS.into_iter().enumerate() {
        let url = url.replace("ADDR", &addr);
        let url = url.replace("PORT", &port.to_string());
        config = config.section(&name(at), &format!("url = '{url}'\n{keys}"));
    }
    config
}

/// It would list its own tools as those of a server, and those again, on and on.
#[tokio::test]
async fn a_gateway_that_is_its_own_server_finds_out() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let config = TestGateway::new().server("x", &backend);
    let gateway = config.start().await;
    let tools = gateway.tools().await;
    let config = with_itself(&gateway, config);
    let wanted = config.config(&config.text());
    gateway.running.core().reload(&wanted).unwrap();
    gateway.settled().await;
    for (at, way) in WAYS.iter().enumerate() {
        let status = gateway
            .status_until(&name(at), |s| s["state"] == "failed")
            .await;
        let reason = "its URL leads to this gateway itself, which cannot be a server of its own";
        assert_eq!(status["reason"], reason, "{way:?}");
        assert_eq!(status["offers"]["tools"], 0, "{way:?}: {status}");
    }
    assert_eq!(gateway.tools().await, tools);
    gateway.stop().await;
}

/// Gateways may stand behind one another: each knows itself alone, and hands on nobody's name.
#[tokio::test]
async fn a_gateway_behind_another_is_a_server_like_any() {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    let names: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&names);
    backend.on_http(move |_, headers| {
        let mut heard = heard.lock().unwrap();
        heard.extend(
            headers
                .get_all(GATEWAY)
                .iter()
                .map(|it| it.to_str().unwrap().to_owned()),
        );
        None
    });
    let behind = TestGateway::new().server("x", &backend).start().await;
    let section = format!("url = 'http://{}/mcp'", behind.addr());
    let before = TestGateway::new().section("b", &section).start().await;
    let expect = ["mcp_b_mcp_x_echo", "mcp_b_mcp_x_other"];
    before.tools_until(|tools| tools == expect).await;
    let http = before.http();
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_b_mcp_x_echo"}}"#;
    let own = [(GATEWAY, "gw_of_a_client")];
    let (answer, asked) = tokio::join!(http.post_with("/mcp", &own, call), async {
        backend.asked("tools/call").await.answer("{}").await;
    });
    let () = asked;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header(GATEWAY), None);
    let mut names = names.lock().unwrap().clone();
    names.dedup();
    let [name] = &names[..] else {
        panic!("{names:?}");
    };
    assert!(name.starts_with("gw_") && name != "gw_of_a_client");
    // Whoever claims to be it is taken at its word, and for no other.
    let http = behind.http();
    for (claimed, status) in [(name.as_str(), 508), ("gw_other", 200)] {
        let answer = http.post_with("/mcp", &[(GATEWAY, claimed)], PING).await;
        assert_eq!(answer.status(), status, "{claimed}");
        assert_eq!(answer.header(GATEWAY).is_some(), status == 508);
        let health = http.get("/healthz", &[(GATEWAY, claimed)]).await;
        assert_eq!(health.status(), 200, "{claimed}");
    }
    before.stop().await;
    behind.stop().await;
}
