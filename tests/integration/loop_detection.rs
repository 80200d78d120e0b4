//! A gateway whose own URL is among its servers, and gateways that are servers of others.

use std::{
    fmt::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};

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
    gateway.running.core().apply_config(&wanted).unwrap();
    gateway.settled().await;
    for (at, way) in WAYS.iter().enumerate() {
        let status = gateway
            .status_until(&name(at), |s| s["state"] == "failed")
            .await;
        let reason = "request loop: this gateway is configured as its own upstream";
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
    assert_ne!(answer.header(GATEWAY), Some("gw_of_a_client"));
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
        assert_eq!(answer.header(GATEWAY), Some(name.as_str()));
        let health = http.get("/healthz", &[(GATEWAY, claimed)]).await;
        assert_eq!(health.status(), 200, "{claimed}");
    }
    // Clients that are no gateways hear of none.
    let answer = http.post("/mcp", PING).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.header(GATEWAY), None);
    before.stop().await;
    behind.stop().await;
}

/// How long lists stay as they are once they are settled: changes are gathered for half a second.
const SETTLED: Duration = Duration::from_millis(1200);

/// Gateways, each with a server `x` of its own.
struct Circle {
    plans: Vec<TestGateway>,
    gateways: Vec<Gateway>,
    _backends: Vec<Backend>,
}

impl Circle {
    async fn of(size: usize) -> Self {
        let (mut plans, mut gateways, mut backends) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..size {
            let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
            let plan = TestGateway::new().server("x", &backend);
            gateways.push(plan.start().await);
            plans.push(plan);
            backends.push(backend);
        }
        Self {
            plans,
            gateways,
            _backends: backends,
        }
    }

    /// Lets each have those as servers that `servers` says, `g1` the second of all, written with `keys`.
    fn join(&self, servers: &[&[usize]], (path, keys): (&str, &str)) {
        for (at, servers) in servers.iter().enumerate() {
            let mut text = self.plans[at].text();
            for server in *servers {
                let addr = self.gateways[*server].addr();
                let url = format!("url = 'http://{addr}{path}'");
                writeln!(text, "[servers.g{server}]\n{url}\n{keys}").unwrap();
            }
            let config = self.plans[at].config(&text);
            self.gateways[at]
                .running
                .core()
                .apply_config(&config)
                .unwrap();
        }
    }

    /// Waits until each lists the servers that `expect` says, and no more, and goes on to do so.
    async fn list(&self, expect: &[&[&str]]) {
        let mut since = Instant::now();
        let end = since + Duration::from_secs(60);
        while since.elapsed() < SETTLED {
            sleep(Duration::from_millis(50)).await;
            for (gateway, servers) in self.gateways.iter().zip(expect) {
                let names = servers.iter().flat_map(|server| {
                    ["echo", "other"].map(|tool| format!("mcp_{server}_{tool}"))
                });
                let mut names: Vec<String> = names.collect();
                names.sort();
                let found = gateway.tools().await;
                if found != names {
                    since = Instant::now();
                    assert!(since < end, "{found:?} and not {names:?}");
                }
            }
        }
    }

    async fn stop(self) {
        for gateway in self.gateways {
            gateway.stop().await;
        }
    }
}

const PLAIN: (&str, &str) = ("/mcp", "");

/// Each would list what the other has of it, under longer and longer names.
#[tokio::test]
async fn gateways_that_list_each_other_hear_of_their_own() {
    for way in [
        PLAIN,
        ("/mcp", "era = 'legacy'"),
        ("/sse", "transport = 'sse'"),
        ("/mcp/servers/x", ""),
    ] {
        let pair = Circle::of(2).await;
        pair.join(&[&[1], &[0]], way);
        if way.0 == "/mcp/servers/x" {
            // They do not list each other.
            pair.list(&[&["x", "g1"], &["x", "g0"]]).await;
        } else {
            pair.list(&[&["x", "g1_mcp_x"], &["x", "g0_mcp_x"]]).await;
        }
        pair.stop().await;
    }
}

#[tokio::test]
async fn gateways_that_all_list_each_other_hear_of_their_own() {
    let three = Circle::of(3).await;
    three.join(&[&[1, 2], &[0, 2], &[0, 1]], PLAIN);
    let lists: [&[&str]; 3] = [
        &["x", "g1_mcp_x", "g2_mcp_x"],
        &["x", "g0_mcp_x", "g2_mcp_x"],
        &["x", "g0_mcp_x", "g1_mcp_x"],
    ];
    three.list(&lists).await;
    three.stop().await;
}

/// In a ring each hears of the next alone; once the ring is open, of all that follow.
#[tokio::test]
async fn a_ring_of_gateways_comes_to_an_end() {
    let ring: [&[&str]; 3] = [&["x", "g1_mcp_x"], &["x", "g2_mcp_x"], &["x", "g0_mcp_x"]];
    let row: [&[&str]; 3] = [
        &["x", "g1_mcp_x", "g1_mcp_g2_mcp_x"],
        &["x", "g2_mcp_x"],
        &["x"],
    ];
    for way in [PLAIN, ("/sse", "transport = 'sse'")] {
        let three = Circle::of(3).await;
        three.join(&[&[1], &[2], &[0]], way);
        three.list(&ring).await;
        three.join(&[&[1], &[2], &[]], way);
        three.list(&row).await;
        three.join(&[&[1], &[2], &[0]], way);
        three.list(&ring).await;
        three.stop().await;
    }
}
