//! A gateway whose own URL is among its servers, and gateways that are servers of others.

use std::{
    fmt::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::support::{Backend, Era, Gateway, TestGateway, Transport, http::PING, value};

const GATEWAY: &str = "tollbridge-gateway";
const HOPS: &str = "tollbridge-hops";

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
    let asked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let heard = Arc::clone(&asked);
    backend.on_http(move |_, headers| {
        let header = |name| headers[name].to_str().unwrap().to_owned();
        heard.lock().unwrap().push((header(GATEWAY), header(HOPS)));
        None
    });
    let behind = TestGateway::new().server("x", &backend).start().await;
    let section = format!("url = 'http://{}/mcp'", behind.addr());
    let before = TestGateway::new().section("b", &section).start().await;
    let expect = ["mcp_b_mcp_x_echo", "mcp_b_mcp_x_other"];
    before.tools_until(|tools| tools == expect).await;
    let (name, hops) = asked.lock().unwrap()[0].clone();
    assert!(name.starts_with("gw_"), "{name}");
    assert!(asked.lock().unwrap().iter().all(|it| it.0 == name));
    assert_eq!(hops, "1", "its lists are asked for by the gateway itself");
    let http = before.http();
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_b_mcp_x_echo"}}"#;
    // A client that counts has it counted on.
    for (own, hops) in [(&[][..], "2"), (&[(HOPS, "5")], "7")] {
        asked.lock().unwrap().clear();
        let own = [&[(GATEWAY, "gw_of_a_client")], own].concat();
        let (answer, ()) = tokio::join!(http.post_with("/mcp", &own, call), async {
            backend.asked("tools/call").await.answer("{}").await;
        });
        assert_eq!(answer.status(), 200);
        let asked = asked.lock().unwrap().clone();
        assert!(
            asked.contains(&(name.clone(), hops.to_owned())),
            "{asked:?}"
        );
    }
    // Whoever claims to be it is taken at its word, and for no other.
    let http = behind.http();
    for (claimed, status) in [(name.as_str(), 508), ("gw_other", 200)] {
        let answer = http.post_with("/mcp", &[(GATEWAY, claimed)], PING).await;
        assert_eq!(answer.status(), status, "{claimed}");
        let health = http.get("/healthz", &[(GATEWAY, claimed)]).await;
        assert_eq!(health.status(), 200, "{claimed}");
    }
    // Another gateway hears how many stand in a row; clients that are none hear of none.
    let http = before.http();
    let answer = http.post_with("/mcp", &[(GATEWAY, "gw_other")], PING).await;
    assert_eq!(answer.header(HOPS), Some("2"));
    let answer = http.post("/mcp", PING).await;
    assert_eq!(answer.status(), 200);
    assert_eq!((answer.header(GATEWAY), answer.header(HOPS)), (None, None));
    before.stop().await;
    behind.stop().await;
}

/// At the limit a request is served, past it refused with what to do, and so is a call that passes it on the
/// way. Neither costs others anything.
#[tokio::test]
async fn a_request_that_passed_too_many_gateways_is_refused() {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    let behind = TestGateway::new().server("x", &backend).start().await;
    let section = format!("url = 'http://{}/mcp'", behind.addr());
    let before = TestGateway::new().section("b", &section).start().await;
    before.tools_until(|tools| tools.len() == 2).await;
    let http = behind.http();
    for (hops, status) in [("8", 200), ("9", 508), ("300", 508), ("8", 200)] {
        let answer = http.post_with("/mcp", &[(HOPS, hops)], PING).await;
        assert_eq!(answer.status(), status, "{hops}");
        if status == 508 {
            let error = value(&answer.text().await)["error"]["message"].to_string();
            let says = ["has passed more than 8 gateways", "remove this gateway"];
            assert!(says.iter().all(|it| error.contains(it)), "{error}");
        }
    }
    let http = before.http();
    let call =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_b_mcp_x_echo"}}"#;
    let answer = http.post_with("/mcp", &[(HOPS, "8")], call).await;
    let error = value(&answer.text().await)["error"].clone();
    let message = error["message"].to_string();
    assert!(message.contains("more than 8 gateways"), "{error}");
    let (answer, ()) = tokio::join!(http.post_with("/mcp", &[(HOPS, "7")], call), async {
        backend.asked("tools/call").await.answer("{}").await;
    });
    assert_eq!(answer.status(), 200);
    assert_eq!(before.status("b").await["state"], "connected");
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

const PLAIN: (&str, &str) = ("/mcp", "grace = '0s'");

/// Waits until the gateways of `circle` have given up the servers that are named as parts of a loop.
async fn is_given_up(circle: &Circle, servers: &[(usize, &str)]) {
    let end = Instant::now() + Duration::from_secs(60);
    for (at, server) in servers {
        let gateway = &circle.gateways[*at];
        let mut status = gateway.status(server).await;
        while status["state"] != "failed" {
            assert!(Instant::now() < end, "{status}");
            sleep(Duration::from_millis(50)).await;
            status = gateway.status(server).await;
        }
        let reason = status["reason"].as_str().unwrap();
        let says = ["more than 8 gateways stand in a row", "has to be removed"];
        assert!(says.iter().all(|it| reason.contains(it)), "{reason}");
    }
}

/// Each would list what the other has of it, under longer and longer names.
#[tokio::test]
async fn gateways_that_list_each_other_come_to_an_end() {
    for way in [
        PLAIN,
        ("/mcp", "era = 'legacy'\ngrace = '0s'"),
        ("/sse", "transport = 'sse'\ngrace = '0s'"),
    ] {
        let pair = Circle::of(2).await;
        pair.join(&[&[1], &[0]], way);
        is_given_up(&pair, &[(0, "g1"), (1, "g0")]).await;
        pair.list(&[&["x"], &["x"]]).await;
        // Who takes the loop apart has both back.
        pair.join(&[&[1], &[]], way);
        pair.list(&[&["x", "g1_mcp_x"], &["x"]]).await;
        pair.stop().await;
    }
}

/// The route of one server has nothing of the others: this is how gateways can be servers of each other.
#[tokio::test]
async fn gateways_may_be_servers_of_each_other_for_single_servers() {
    let pair = Circle::of(2).await;
    pair.join(&[&[1], &[0]], ("/mcp/servers/x", ""));
    pair.list(&[&["x", "g1"], &["x", "g0"]]).await;
    pair.stop().await;
}

/// Names stay as they are on the route of one server, so that requests go round and round.
#[tokio::test]
async fn the_route_of_one_server_that_is_itself_comes_to_an_end() {
    let pair = Circle::of(2).await;
    for (at, other) in [(0, 1), (1, 0)] {
        let addr = pair.gateways[other].addr();
        let text = pair.plans[at].text();
        let config = format!("{text}[servers.g]\nurl = 'http://{addr}/mcp/servers/g'\n");
        let config = pair.plans[at].config(&config);
        pair.gateways[at]
            .running
            .core()
            .apply_config(&config)
            .unwrap();
    }
    is_given_up(&pair, &[(0, "g"), (1, "g")]).await;
    pair.stop().await;
}

/// In a ring of three as well, and once it is open each hears of all that follow.
#[tokio::test]
async fn a_ring_of_gateways_comes_to_an_end() {
    let row: [&[&str]; 3] = [
        &["x", "g1_mcp_x", "g1_mcp_g2_mcp_x"],
        &["x", "g2_mcp_x"],
        &["x"],
    ];
    for way in [PLAIN, ("/sse", "transport = 'sse'\ngrace = '0s'")] {
        let three = Circle::of(3).await;
        three.join(&[&[1], &[2], &[]], way);
        three.list(&row).await;
        three.join(&[&[1], &[2], &[0]], way);
        is_given_up(&three, &[(0, "g1"), (1, "g2"), (2, "g0")]).await;
        three.join(&[&[1], &[2], &[]], way);
        three.list(&row).await;
        three.stop().await;
    }
}
