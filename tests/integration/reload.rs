//! A config that changes while the gateway runs: what it has alike goes on undisturbed.

use std::{
    fs,
    num::NonZeroUsize,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use tollbridge::{
    app::{ConfigSource, ReloadError, Reloaded},
    config::{self, Config, Environment, Listen, Policy, PolicyMode, Server},
    names::ServerName,
};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon, value,
    wire::{request, spawn},
};

const EMPTY: &str = r#"{"content":[]}"#;

fn name(server: &str) -> ServerName {
    ServerName::parse(server).unwrap()
}

/// Reloads the gateway's config with a change.
fn reload(gateway: &Gateway, change: impl FnOnce(&mut Config)) -> Reloaded {
    let mut config = gateway.config.clone();
    change(&mut config);
    gateway.running.core().apply_config(&config).unwrap()
}

/// Lets the server answer every call by itself.
fn answers(backend: &Backend) {
    backend.on_request(|envelope| {
        (envelope.method() == "tools/call").then(|| Auto::Result(EMPTY.to_owned()))
    });
}

async fn calls(client: &Client, tool: &str) -> Value {
    let name = format!(r#""name":"{tool}""#);
    client.ask("7", "tools/call", &name).await;
    let answer = client.answer("7").await;
    answer.error.map_or(Value::Null, |error| value(&error))
}

/// What `/status` says of the config.
async fn config_of(gateway: &Gateway) -> Value {
    let answer = gateway.http().get("/status", &[]).await;
    value(&answer.text().await)["config"].clone()
}

/// Waits until `reached` holds of what `/status` says of the config.
async fn config_until(gateway: &Gateway, what: &str, reached: impl Fn(&Value) -> bool) -> Value {
    let mut changes = gateway.running.core().proxy.catalog_store().changes();
    let wait = async {
        loop {
            let config = config_of(gateway).await;
            if reached(&config) {
                return config;
            }
            // A refusal has no event of its own.
            drop(tokio::time::timeout(LOOK, changes.changed()).await);
        }
    };
    soon(what, wait).await
}

const LOOK: Duration = Duration::from_millis(20);

#[tokio::test]
async fn an_untouched_server_keeps_its_process_and_its_sessions() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    answers(&x);
    answers(&y);
    let gateway = TestGateway::new().server("x", &x).server("y", &y);
    let gateway = gateway.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.listen().await;
    assert!(calls(&client, "mcp_x_echo").await.is_null());
    let (old_x, old_y) = (gateway.status("x").await, gateway.status("y").await);
    let reloaded = reload(&gateway, |config| {
        config.servers[&name("y")].connect_timeout = Duration::from_secs(7);
    });
    assert_eq!(reloaded.servers.changed, [name("y")]);
    assert_eq!(
        reloaded.servers.changed_settings[&name("y")],
        ["connect_timeout"]
    );
    assert!(reloaded.servers.added.is_empty() && reloaded.servers.removed.is_empty());
    let is_new = |y: &Value| y["state"] == "connected" && y["pid"] != old_y["pid"];
    gateway.status_until("y", is_new).await;
    for tool in ["mcp_x_echo", "mcp_y_echo"] {
        assert!(calls(&client, tool).await.is_null(), "{tool}");
    }
    // What is listed is the same, and was listed all the time.
    client.is_quiet().await;
    let new_x = gateway.status("x").await;
    assert_eq!((&new_x["pid"], x.greeted()), (&old_x["pid"], 1));
    assert_eq!(new_x["answered"], 2, "it goes on counting");
    assert_eq!(y.greeted(), 2);
    gateway.stop().await;
}

/// Checks that the server `x` goes on with these settings.
fn goes_on(reloaded: &Reloaded, settings: &[&str]) {
    let changes = &reloaded.servers;
    assert!(changes.added.is_empty() && changes.removed.is_empty());
    assert!(changes.changed.is_empty(), "{changes:?}");
    assert_eq!(changes.changed_settings[&name("x")], settings);
}

/// How long things take, how many there may be at once, and what happens when it fails, is no
/// business of its connections either.
#[tokio::test]
async fn a_server_goes_on_with_other_times_and_limits() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let keys = "limits = { in_flight = 1 }\nhealth = { interval = \"1h\" }";
    let gateway = TestGateway::new().server_with("x", &x, keys);
    let gateway = gateway.start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let old = gateway.status("x").await;
    let call = r#""name":"mcp_x_echo""#;
    client.ask("1", "tools/call", call).await;
    let first = x.asked("tools/call").await;
    client.ask("2", "tools/call", call).await;
    let waits = |status: &Value| status["queued"] == 1;
    gateway.status_until("x", waits).await;
    let mut config = gateway.config.clone();
    let mut change = |change: fn(&mut Server)| {
        change(&mut config.servers[&name("x")]);
        gateway.running.core().apply_config(&config).unwrap()
    };
    // Whoever waits for its turn has it at once.
    let reloaded = change(|x| x.limits.in_flight = NonZeroUsize::new(2));
    goes_on(&reloaded, &["limits"]);
    let second = x.asked("tools/call").await;
    first.answer(EMPTY).await;
    client.answer("1").await;
    second.answer(EMPTY).await;
    client.answer("2").await;

    let reloaded = change(|x| x.timeout = Duration::from_millis(200));
    goes_on(&reloaded, &["timeout"]);
    client.ask("3", "tools/call", call).await;
    let asked = x.asked("tools/call").await;
    assert_eq!(
        client.answer("3").await.failure()["data"]["reason"],
        "timeout"
    );
    drop(asked);

    let reloaded = change(|x| {
        x.tools.timeout.insert("echo".to_owned(), LONG);
        x.breaker.failures = 1;
        x.retry.max = LONG;
        x.startup_timeout = LONG;
        x.idle_timeout = LONG;
        x.grace = LONG;
    });
    let settings = [
        "breaker",
        "grace",
        "idle_timeout",
        "retry",
        "startup_timeout",
        "tools.timeout",
    ];
    goes_on(&reloaded, &settings);
    // Between two checks that are an hour apart.
    x.on_request(|request| (request.method() == "ping").then_some(Auto::Hand));
    let reloaded = change(|x| x.health.interval = Duration::from_millis(50));
    goes_on(&reloaded, &["health"]);
    x.asked("ping").await.answer("{}").await;
    let new = gateway.status("x").await;
    assert_eq!((&new["pid"], x.greeted()), (&old["pid"], 1));
    assert_eq!(new["answered"], 2, "it goes on counting");
    gateway.stop().await;
}

const LONG: Duration = Duration::from_secs(3600);

/// A server that cannot be had shows as failed when the config says that it was tried often enough.
#[tokio::test]
async fn a_server_that_is_being_connected_follows_the_config() {
    let keys = "command = \"/no/such/program\"\n\
                retry = { base = \"20ms\", max = \"20ms\", starts_per_minute = 600, failed_after = 1000 }";
    let gateway = TestGateway::new().section("x", keys).launch().await;
    let tried = |status: &Value| status["failed_starts"].as_u64() > Some(2);
    let status = gateway.status_until("x", tried).await;
    assert_eq!(status["state"], "connecting");
    let reloaded = reload(&gateway, |config| {
        config.servers[&name("x")].retry.failed_after = 1;
    });
    goes_on(&reloaded, &["retry"]);
    let failed = |status: &Value| status["state"] == "failed";
    gateway.status_until("x", failed).await;
    gateway.stop().await;
}

/// What waits for long because of a setting no longer does when that changes.
#[tokio::test]
async fn a_server_that_is_away_follows_the_config() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let keys = "grace = \"1h\"\nbreaker = { failures = 0 }\n\
                retry = { base = \"1h\", max = \"1h\", jitter = 0.0 }";
    let gateway = TestGateway::new().server_with("x", &x, keys);
    let gateway = gateway.start().await;
    x.die();
    let away = |status: &Value| status["state"] == "disconnected";
    gateway.status_until("x", away).await;
    assert_eq!(gateway.tools().await.len(), 2, "they stay listed");
    let reloaded = reload(&gateway, |config| {
        config.servers[&name("x")].grace = Duration::ZERO;
    });
    goes_on(&reloaded, &["grace"]);
    gateway.tools_until(<[String]>::is_empty).await;
    let reloaded = reload(&gateway, |config| {
        let server = &mut config.servers[&name("x")];
        server.grace = Duration::ZERO;
        server.retry.max = Duration::from_millis(20);
    });
    goes_on(&reloaded, &["retry"]);
    gateway.tools_until(|tools| tools.len() == 2).await;
    assert_eq!(x.greeted(), 2);
    gateway.stop().await;
}

/// Each replica goes on with what the config says of its server.
#[tokio::test]
async fn replicas_go_on_with_other_times() {
    let (one, two) = (
        Backend::start(Transport::Http, Era::Legacy).await,
        Backend::start(Transport::Http, Era::Legacy).await,
    );
    let keys = format!(
        "balance = \"failover\"\nretry = {{ base = \"20ms\" }}\nejection = {{ base = \"1h\", max = \"1h\" }}\n\
         [[servers.x.replicas]]\nname = \"one\"\n{}\
         [[servers.x.replicas]]\nname = \"two\"\n{}",
        one.config(),
        two.config()
    );
    let gateway = TestGateway::new().section("x", &keys).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let reloaded = reload(&gateway, |config| {
        config.servers[&name("x")].timeout = Duration::from_millis(200);
    });
    goes_on(&reloaded, &["timeout"]);
    let call = r#""name":"mcp_x_echo""#;
    client.ask("1", "tools/call", call).await;
    assert_eq!(
        client.answer("1").await.failure()["data"]["reason"],
        "timeout"
    );
    // One that is out for an hour is back as soon as the config says.
    one.on_request(|request| (request.method() == "tools/call").then_some(Auto::Status(502)));
    client.ask("2", "tools/call", call).await;
    client.answer("2").await.failure();
    let status = gateway.status("x").await;
    let left = status["replicas"][0]["out_for_ms"].as_u64();
    assert!(left > Some(3_000_000), "{status}");
    reload(&gateway, |config| {
        config.servers[&name("x")].ejection.base = Duration::from_millis(50);
    });
    let is_back = |status: &Value| status["replicas"][0]["out_for_ms"].is_null();
    gateway.status_until("x", is_back).await;
    assert_eq!((one.greeted(), two.greeted()), (1, 1));
    gateway.stop().await;
}

/// How a server is listed and governed is no business of its connections.
#[tokio::test]
async fn a_server_that_is_only_listed_differently_goes_on() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.listen().await;
    let old = gateway.status("x").await;
    let reloaded = reload(&gateway, |config| {
        let server = &mut config.servers[&name("x")];
        server.namespace = Some("other".to_owned());
        server.expose.prompts = false;
        server.expose.resources = false;
        server.tags = vec!["tag".to_owned()];
        server.tools.deny = vec![globset::Glob::new("echo").unwrap()];
    });
    let settings = ["expose", "namespace", "tags", "tools"];
    goes_on(&reloaded, &settings);
    assert_eq!(gateway.tools().await, ["mcp_other_other"]);
    for list in ["tools", "resources", "prompts"] {
        let method = format!("notifications/{list}/list_changed");
        client.must(&method).await;
    }
    client.is_quiet().await;
    let new = gateway.status("x").await;
    assert_eq!((&new["pid"], x.greeted()), (&old["pid"], 1));
    assert_eq!(new["tags"][0], "tag");
    gateway.stop().await;
}

#[tokio::test]
async fn a_removed_server_finishes_its_calls() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::Http, Era::Legacy),
        (Transport::Http, Era::Modern),
    ] {
        let x = Backend::start(transport, era).await;
        let gateway = TestGateway::new().server("x", &x).start().await;
        let client = gateway.client(Front::Modern, "/mcp", "{}").await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        let asked = x.asked("tools/call").await;
        let reloaded = reload(&gateway, |config| {
            config.servers.clear();
            config.drain_timeout = Duration::from_secs(60);
        });
        assert_eq!(reloaded.servers.removed, [name("x")]);
        assert_eq!(config_of(&gateway).await["ending"][0], "x");
        let refused = calls(&client, "mcp_x_echo").await;
        assert_eq!(refused["code"], -32602, "{refused}");
        assert_eq!(gateway.tools().await, [""; 0]);
        asked.answer(EMPTY).await;
        client.answer("1").await.value();
        let ended = |config: &Value| config["ending"] == Value::Array(Vec::new());
        config_until(&gateway, "the server ends", ended).await;
        if transport == Transport::Stdio {
            soon("its connection ends", asked.conn.closed.cancelled()).await;
        }
        gateway.stop().await;
    }
}

/// The patience with calls is `drain_timeout`.
#[tokio::test]
async fn a_call_that_does_not_finish_is_cut_off() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Modern, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let asked = x.asked("tools/call").await;
    reload(&gateway, |config| {
        config.servers.clear();
        config.drain_timeout = Duration::from_millis(1);
    });
    assert_eq!(client.answer("1").await.code(), -32603);
    soon("its connection ends", asked.conn.closed.cancelled()).await;
    gateway.stop().await;
}

/// A connection for the lists of able clients ends with the server, also while it is being asked.
#[tokio::test]
async fn a_listing_that_is_cut_leaves_no_connection() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).start().await;
    x.on_request(|envelope| (envelope.method() == "tools/list").then_some(Auto::Hand));
    let sampling = r#"{"sampling":{}}"#;
    let _able = gateway.client(Front::Streamable, "/mcp", sampling).await;
    let asked = x.asked("tools/list").await;
    assert!(!asked.conn.closed.is_cancelled());
    reload(&gateway, |config| config.servers.clear());
    soon("its connection ends", asked.conn.closed.cancelled()).await;
    gateway.stop().await;
}

/// A successor has its predecessor's subscriptions.
#[tokio::test]
async fn a_changed_server_keeps_its_subscriptions() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    x.on_request(|envelope| {
        (envelope.method() == "resources/subscribe").then(|| Auto::Result("{}".to_owned()))
    });
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.listen().await;
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask("1", "resources/subscribe", uri).await;
    client.answer("1").await.value();
    x.on_request(|envelope| (envelope.method() == "resources/subscribe").then_some(Auto::Hand));
    reload(&gateway, |config| {
        config.servers[&name("x")].connect_timeout = Duration::from_secs(7);
    });
    let again = x.asked("resources/subscribe").await;
    assert_eq!(
        again.envelope.param(&["uri"]).unwrap(),
        r#""file:///a.txt""#
    );
    again.answer("{}").await;
    // What was updated between the two nobody told.
    client.must("notifications/resources/updated").await;
    again
        .conn
        .send(crate::support::wire::notification(
            "notifications/resources/updated",
            r#"{"uri":"file:///a.txt"}"#,
        ))
        .await;
    client.must("notifications/resources/updated").await;
    client.is_quiet().await;
    gateway.stop().await;
}

/// A server that is slow to take one back holds up no other.
#[tokio::test]
async fn subscriptions_are_renewed_at_once() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    x.on_request(|envelope| {
        (envelope.method() == "resources/subscribe").then(|| Auto::Result("{}".to_owned()))
    });
    let gateway = TestGateway::new().server("x", &x).start().await;
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        let uri = format!(r#""uri":"x+file:///{name}.txt""#);
        client.ask("1", "resources/subscribe", &uri).await;
        client.answer("1").await.value();
        clients.push(client);
    }
    x.on_request(|envelope| (envelope.method() == "resources/subscribe").then_some(Auto::Hand));
    reload(&gateway, |config| {
        config.servers[&name("x")].connect_timeout = Duration::from_secs(7);
    });
    let mut again = Vec::new();
    for _ in &clients {
        again.push(x.asked("resources/subscribe").await);
    }
    for asked in again {
        asked.answer("{}").await;
    }
    gateway.stop().await;
}

/// Who may no longer see a resource is no reason for a server to tell of it, whether it stays or has
/// a successor; who may see it again hears of it.
#[tokio::test]
async fn subscriptions_follow_the_rules() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    x.on_request(|envelope| {
        let is_one = envelope.method().ends_with("subscribe");
        is_one.then_some(Auto::Hand)
    });
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask("1", "resources/subscribe", uri).await;
    x.asked("resources/subscribe").await.answer("{}").await;
    client.answer("1").await.value();
    let hide = |config: &mut Config| {
        config.governance.terms.policy = Some(Policy {
            mode: PolicyMode::Allowlist,
            tools: vec![globset::Glob::new("*").unwrap()],
            ..Policy::default()
        });
    };
    reload(&gateway, hide);
    x.asked("resources/unsubscribe").await.answer("{}").await;
    reload(&gateway, |_| {});
    x.asked("resources/subscribe").await.answer("{}").await;

    reload(&gateway, |config| {
        hide(config);
        config.servers[&name("x")].connect_timeout = Duration::from_secs(7);
    });
    let is_new = |status: &Value| status["state"] == "connected" && x.greeted() == 2;
    gateway.status_until("x", is_new).await;
    // Time enough for what should not come.
    reload(&gateway, |config| {
        hide(config);
        config.servers[&name("x")].connect_timeout = Duration::from_secs(8);
    });
    let is_newer = |status: &Value| status["state"] == "connected" && x.greeted() == 3;
    gateway.status_until("x", is_newer).await;
    assert!(x.was_asked().await.is_none());
    gateway.stop().await;
}

/// A resource that its server's rules hide from now on is left at the server, and so is one whose
/// session ends while the server is away.
#[tokio::test]
async fn subscriptions_are_left_that_lead_nowhere_any_more() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    x.on_request(|envelope| {
        let is_one = envelope.method().ends_with("subscribe");
        is_one.then_some(Auto::Hand)
    });
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for (id, file) in [("1", "a"), ("2", "b")] {
        let uri = format!(r#""uri":"x+file:///{file}.txt""#);
        client.ask(id, "resources/subscribe", &uri).await;
        x.asked("resources/subscribe").await.answer("{}").await;
        client.answer(id).await.value();
    }
    reload(&gateway, |config| {
        let server = &mut config.servers[&name("x")];
        server.resources.deny = vec![globset::Glob::new("file:///a.txt").unwrap()];
    });
    let left = x.asked("resources/unsubscribe").await;
    let uri = left.envelope.param(&["uri"]);
    assert_eq!(uri.as_deref(), Some(r#""file:///a.txt""#));
    left.answer("{}").await;
    gateway.stop().await;
}

const CHANGED: [&str; 3] = [
    "notifications/tools/list_changed",
    "notifications/resources/list_changed",
    "notifications/prompts/list_changed",
];

/// Exactly those are told whose view has changed.
#[tokio::test]
async fn lists_change_for_those_whose_view_did() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).server("y", &y);
    let gateway = gateway.start().await;
    let all = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let piped = gateway.client(Front::Stdio, "/mcp", "{}").await;
    let modern = gateway.client(Front::Modern, "/mcp", "{}").await;
    let on_y = gateway
        .client(Front::Streamable, "/mcp/servers/y", "{}")
        .await;
    let on_x = gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    all.listen().await;
    on_y.listen().await;
    let filter = r#""notifications":{"toolsListChanged":true}"#;
    modern.ask("1", "subscriptions/listen", filter).await;
    modern
        .must("notifications/subscriptions/acknowledged")
        .await;
    reload(&gateway, |config| {
        config.servers.shift_remove(&name("x"));
    });
    for client in [&all, &piped] {
        for method in CHANGED {
            client.must(method).await;
        }
        client.is_quiet().await;
    }
    modern.must(CHANGED[0]).await;
    on_y.is_quiet().await;
    // The route is gone, and what was open on it.
    let session = on_x.session.clone().unwrap();
    let headers = [("mcp-session-id", session.as_str())];
    let answer = on_x
        .http
        .post_with("/mcp/servers/x", &headers, request("1", "ping", "{}"));
    assert_eq!(answer.await.status(), 404);
    // It comes back: who follows is told once it is listed.
    let reloaded = reload(&gateway, |_| {});
    assert_eq!(reloaded.servers.added, [name("x")]);
    for client in [&all, &piped] {
        for method in CHANGED {
            client.must(method).await;
        }
        assert_eq!(client.list("tools").await.len(), 4);
        client.is_quiet().await;
    }
    modern.must(CHANGED[0]).await;
    on_y.is_quiet().await;
    gateway.stop().await;
}

/// What the config says of requests holds for the next one, names of the catalog included.
#[tokio::test]
async fn settings_count_at_once() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    answers(&x);
    let gateway = TestGateway::new().server("x", &x).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    reload(&gateway, |config| {
        config.naming.template = "{server}.{tool}".to_owned();
        config.naming.charset = config::Charset::Original;
        config.list_page_size = Some(1);
        config.limits.body = 2000;
        config.limits.depth = 8;
        config.allowed_origins = vec!["https://app.example".to_owned()];
    });
    assert!(calls(&client, "x.echo").await.is_null());
    assert_eq!(calls(&client, "mcp_x_echo").await["code"], -32602);
    assert_eq!(client.list("tools").await.len(), 1, "a page");
    let http = gateway.http();
    let large = request("1", "ping", &format!(r#"{{"x":"{}"}}"#, "x".repeat(2000)));
    assert_eq!(http.post("/mcp", large).await.status(), 413);
    let origin = [("origin", "https://app.example")];
    assert_eq!(http.get("/metrics", &origin).await.status(), 200);
    reload(&gateway, |_| {});
    assert_eq!(http.get("/metrics", &origin).await.status(), 403);
    let large = request("1", "ping", &format!(r#"{{"x":"{}"}}"#, "x".repeat(2000)));
    assert_eq!(http.post("/mcp", large).await.status(), 200);
    assert!(calls(&client, "mcp_x_echo").await.is_null());
    gateway.stop().await;
}

/// What needs a restart keeps its value and is named; the rest of the same config counts.
#[tokio::test]
async fn what_needs_a_restart_is_named_and_the_rest_counts() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).server("y", &y);
    let gateway = gateway.start().await;
    let change = |config: &mut Config| {
        config.workers += 1;
        config.listen = Listen::Unix("/run/a.sock".into());
        config.servers.shift_remove(&name("y"));
    };
    let reloaded = reload(&gateway, change);
    assert_eq!(reloaded.needs_restart, ["listen", "workers"]);
    assert_eq!(reloaded.servers.removed, [name("y")]);
    let again = reload(&gateway, change);
    assert_eq!(again.needs_restart, reloaded.needs_restart, "still");
    let config = config_of(&gateway).await;
    let expect = serde_json::json!(["listen", "workers"]);
    assert_eq!(
        (&config["needs_restart"], &config["reloads"]),
        (&expect, &2.into())
    );
    reload(&gateway, |_| {});
    let config = config_of(&gateway).await;
    assert_eq!(config["needs_restart"], serde_json::json!([]));
    gateway.stop().await;
}

/// What is refused changes nothing, and is shown until something is taken.
#[tokio::test]
async fn what_cannot_be_taken_changes_nothing() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &x).start().await;
    let mut config = gateway.config.clone();
    config.servers.clear();
    config.governance.terms.args = vec![config::ArgumentRule {
        name: "bad".to_owned(),
        tools: Vec::new(),
        at: String::new(),
        condition: config::Condition {
            matches: Some("(".to_owned()),
            ..config::Condition::default()
        },
        action: config::ArgumentAction::Refuse,
        observe: false,
    }];
    let refused = gateway.running.core().apply_config(&config);
    assert!(matches!(refused, Err(ReloadError::Terms(_))), "{refused:?}");
    let shown = config_of(&gateway).await;
    let message = shown["error"]["message"].as_str().unwrap();
    assert!(message.contains("invalid terms in the config"), "{shown}");
    assert!(shown["error"]["since"].is_string() && shown["reloads"] == 0);
    assert_eq!(gateway.tools().await.len(), 2);
    assert_eq!(gateway.http().get("/status", &[]).await.status(), 200);
    let page = gateway
        .http()
        .get("/status", &[("accept", "text/html")])
        .await;
    assert!(
        page.text()
            .await
            .contains("The changed config is refused since")
    );
    reload(&gateway, |_| {});
    assert!(config_of(&gateway).await["error"].is_null());
    gateway.stop().await;
}

/// A config in a file, as the command line follows it.
fn source(file: &Path, profiles: &Config) -> ConfigSource {
    let (file, base) = (file.to_owned(), profiles.clone());
    ConfigSource::new(vec![file.clone()], move |_| {
        let mut loaded = config::load(std::slice::from_ref(&file), &Environment::default())?;
        loaded.config.data_dir.clone_from(&base.data_dir);
        Ok(loaded)
    })
}

/// Files that are written in place, replaced by another, or swapped behind a link: all are seen.
#[tokio::test]
async fn files_are_followed() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &x);
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf { place.path().join(name) };
    let text =
        |prefix: &str| plan.text() + &format!("[naming]\ntemplate = \"{prefix}_{{tool}}\"\n");
    // As Kubernetes mounts a config: a link to a file below a link to a directory.
    for (version, prefix) in [("v1", "a"), ("v2", "b")] {
        fs::create_dir(file(version)).unwrap();
        fs::write(file(version).join("tollbridge.toml"), text(prefix)).unwrap();
    }
    symlink("v1", file("..data")).unwrap();
    symlink("..data/tollbridge.toml", file("tollbridge.toml")).unwrap();
    let gateway = plan.start().await;
    let pid = gateway.status("x").await["pid"].clone();
    let source = source(&file("tollbridge.toml"), &gateway.config);
    gateway.running.core().follow_config(source);
    let reloads = |count: u64| move |config: &Value| config["reloads"] == count;
    // Swapped.
    symlink("v2", file("..new")).unwrap();
    fs::rename(file("..new"), file("..data")).unwrap();
    config_until(&gateway, "the swapped file is read", reloads(1)).await;
    assert_eq!(gateway.tools().await, ["b_echo", "b_other"]);
    // In place.
    fs::write(file("tollbridge.toml"), text("c")).unwrap();
    config_until(&gateway, "the written file is read", reloads(2)).await;
    assert_eq!(gateway.tools().await, ["c_echo", "c_other"]);
    // Replaced.
    fs::write(file("new"), text("d")).unwrap();
    fs::rename(file("new"), file("tollbridge.toml")).unwrap();
    config_until(&gateway, "the other file is read", reloads(3)).await;
    assert_eq!(gateway.tools().await, ["d_echo", "d_other"]);
    // Broken, then gone, then mended.
    fs::write(
        file("tollbridge.toml"),
        text("e") + "[servers.y]\ncomand = \"x\"\n",
    )
    .unwrap();
    let is_bad = |config: &Value| !config["error"].is_null();
    let bad = config_until(&gateway, "the broken file is refused", is_bad).await;
    let error = &bad["error"];
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("comand") && message.contains("command"),
        "{bad}"
    );
    assert!(
        error["file"].as_str().unwrap().ends_with("tollbridge.toml"),
        "{bad}"
    );
    assert_eq!(
        gateway.tools().await,
        ["d_echo", "d_other"],
        "the old one holds"
    );
    fs::remove_file(file("tollbridge.toml")).unwrap();
    let is_gone = |config: &Value| {
        let message = config["error"]["message"].as_str();
        message.is_some_and(|message| message.contains("cannot read"))
    };
    let gone = config_until(&gateway, "the file is missed", is_gone).await;
    assert_eq!(gone["error"]["since"], error["since"], "since the first");
    fs::write(file("tollbridge.toml"), text("f")).unwrap();
    let good = config_until(&gateway, "the mended file is read", reloads(4)).await;
    assert!(good["error"].is_null(), "{good}");
    assert_eq!(gateway.tools().await, ["f_echo", "f_other"]);
    // The same again is nothing new.
    fs::write(file("tollbridge.toml"), text("f")).unwrap();
    fs::write(file("tollbridge.toml"), text("g")).unwrap();
    config_until(&gateway, "the last file is read", reloads(5)).await;
    assert_eq!(
        gateway.status("x").await["pid"],
        pid,
        "the server is the same"
    );
    gateway.stop().await;
}

/// Clients of an untouched server notice nothing of many changes, and nothing is left of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_under_load_fail_no_call_and_leave_nothing() {
    let x = Backend::start(Transport::Http, Era::Modern).await;
    let y = Backend::start(Transport::Http, Era::Legacy).await;
    answers(&x);
    let gateway = TestGateway::new().server("x", &x).server("y", &y);
    let gateway = Arc::new(gateway.start().await);
    let (done, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let is_still = |gateway: &Gateway| {
        let retiring = gateway.running.core().proxy.backends().retiring_servers();
        retiring.is_empty()
    };
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let mut clients = Vec::new();
    for front in [Front::Modern, Front::Streamable, Front::Stdio] {
        let client = gateway.client(front, "/mcp", "{}").await;
        assert!(calls(&client, "mcp_x_echo").await.is_null());
        let (done, answered) = (Arc::clone(&done), Arc::clone(&answered));
        clients.push(spawn(async move {
            while !done.load(Ordering::SeqCst) {
                must_succeed(&client).await;
                answered.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let before = tasks();
    for round in 1..=500_u64 {
        reload(&gateway, |config| {
            config.servers[&name("x")].priority = i32::try_from(round).unwrap();
            config.governance.price = tollbridge::money::Micros::ZERO;
            match round % 10 {
                0 => config.servers[&name("y")].connect_timeout = Duration::from_secs(round),
                5 => drop(config.servers.shift_remove(&name("y"))),
                _ => {}
            }
        });
        let so_far = answered.load(Ordering::SeqCst);
        let goes_on = async {
            while answered.load(Ordering::SeqCst) == so_far {
                tokio::task::yield_now().await;
            }
        };
        soon("calls go on", goes_on).await;
    }
    done.store(true, Ordering::SeqCst);
    for client in clients {
        soon("the client ends", client).await.unwrap();
    }
    reload(&gateway, |_| {});
    let still = async {
        while !is_still(&gateway) || tasks() > before + SLACK {
            tokio::time::sleep(LOOK).await;
        }
    };
    soon("nothing is left behind", still).await;
    assert_eq!(x.greeted(), 1, "x was never connected again");
    assert_eq!(config_of(&gateway).await["reloads"], 501);
    Arc::into_inner(gateway).unwrap().stop().await;
}

/// One call, whose answer is no error.
async fn must_succeed(client: &Client) {
    let call = r#""name":"mcp_x_echo""#;
    client.ask("7", "tools/call", call).await;
    loop {
        let next = client.next().await;
        if next.is_response() {
            return assert!(next.error.is_none(), "{next:?}");
        }
    }
}

/// Tasks that come and go by themselves, such as those of HTTP connections.
const SLACK: usize = 20;
