//! `/metrics`: what it counts, and who sees it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    harness::{ANN, BOB, Server, Stage, keyed},
    support::{Auto, Backend, Era, Front, TestGateway, Transport, http::Http, soon},
};

/// Every series by its name and labels, as they are written.
async fn scrape(http: &Http) -> BTreeMap<String, String> {
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let answer = http.get("/metrics", &[("accept", accept)]).await;
    assert_eq!(answer.status(), 200);
    let form = answer.header("content-type").unwrap();
    assert!(form.starts_with("application/openmetrics-text"), "{form}");
    let text = answer.text().await;
    assert!(text.ends_with("# EOF\n"), "{text}");
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, figure) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), figure.to_owned())
    };
    series.map(pair).collect()
}

/// Checks figures by their names without the prefix.
fn check(series: &BTreeMap<String, String>, expect: &[(&str, &str)]) {
    for (name, figure) in expect {
        let found = series.get(&format!("tollbridge_{name}"));
        assert_eq!(
            found.map(String::as_str),
            Some(*figure),
            "{name} in {series:#?}"
        );
    }
}

/// Each metric has a place in the documentation.
fn are_documented(series: impl Iterator<Item = String>) {
    let page = include_str!("../../docs/src/reference/metrics.md");
    for series in series {
        let (name, _) = series.split_once('{').unwrap_or((&series, ""));
        let part = ["_bucket", "_sum", "_count"];
        let whole = part.iter().find_map(|part| name.strip_suffix(part));
        let name = whole.unwrap_or(name);
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not in the reference"
        );
    }
}

const TERMS: &str = "[governance]\nprice = \"0.25\"\n\
                     args = [{ name = \"never\", at = \"/never\", equals = true }]\n";

/// What three calls and a refused one leave in the metrics.
const AFTER_CALLS: [(&str, &str); 16] = [
    (
        r#"tollbridge_server_calls_total{server="x",outcome="answered"}"#,
        "3",
    ),
    (
        r#"tollbridge_server_calls_total{server="x",outcome="failed"}"#,
        "0",
    ),
    (r#"tollbridge_server_calls_in_flight{server="x"}"#, "0"),
    (
        r#"tollbridge_server_call_duration_seconds_count{server="x"}"#,
        "3",
    ),
    (
        r#"tollbridge_server_call_duration_seconds_bucket{le="+Inf",server="x"}"#,
        "3",
    ),
    (r#"tollbridge_spent_dollars_total{server="x"}"#, "0.75"),
    (
        r#"tollbridge_agent_spent_dollars_total{agent="anonymous"}"#,
        "0.75",
    ),
    (
        r#"tollbridge_agent_calls_total{agent="anonymous",outcome="answered"}"#,
        "3",
    ),
    (
        r#"tollbridge_tool_calls_total{server="x",tool="echo",outcome="answered"}"#,
        "3",
    ),
    (
        r#"tollbridge_tool_calls_total{server="x",tool="echo",outcome="refused"}"#,
        "1",
    ),
    (
        r#"tollbridge_budget_left_dollars{kind="agent",name="anonymous",window="total"}"#,
        "9.25",
    ),
    (
        r#"tollbridge_budget_limit_dollars{kind="agent",name="anonymous",window="total"}"#,
        "10.0",
    ),
    ("tollbridge_config_last_reload_successful", "1"),
    (
        r#"tollbridge_refused_calls_total{code="UNAUTHORIZED"}"#,
        "1",
    ),
    ("tollbridge_audit_lost_records_total", "0"),
    ("tollbridge_streams", "1"),
];

#[tokio::test]
async fn what_calls_leave() {
    let stage = Stage::new(TERMS, "").await;
    let before = scrape(&stage.http()).await;
    let of = |series: &BTreeMap<String, String>, name: &str| {
        series
            .get(name)
            .cloned()
            .unwrap_or_else(|| panic!("no {name} in {series:#?}"))
    };
    assert_eq!(
        of(
            &before,
            r#"tollbridge_server_state{server="x",state="connected"}"#
        ),
        "1"
    );
    assert_eq!(
        of(
            &before,
            r#"tollbridge_server_state{server="x",state="failed"}"#
        ),
        "0"
    );
    assert_eq!(of(&before, "tollbridge_streams"), "0");
    assert_eq!(of(&before, "tollbridge_serving"), "1");
    let reader = stage.client(Front::Sse).await;
    for _ in 0..3 {
        stage.must(r#"{"a":1}"#).await;
    }
    stage.must_not(r#"{"never":true}"#).await;
    let after = scrape(&stage.http()).await;
    for (name, expect) in AFTER_CALLS {
        assert_eq!(of(&after, name), expect, "{name}");
    }
    for bytes in ["sent", "received"] {
        let name = format!("tollbridge_server_{bytes}_bytes_total{{server=\"x\"}}");
        let bytes: u64 = of(&after, &name).parse().unwrap();
        assert!(bytes > 21, "{name}: {bytes}");
    }
    assert_eq!(of(&after, "tollbridge_sessions"), "1");
    drop(reader);
    stage.stop().await;
}

/// A refused config is seen where nobody reads the log.
#[tokio::test]
async fn a_refused_reload_is_seen() {
    let stage = Stage::new("", "").await;
    let core = stage.gateway.running.core();
    let mut config = stage.gateway.config.clone();
    config.governance.terms.args = vec![tollbridge::config::ArgumentRule {
        name: "bad".to_owned(),
        tools: Vec::new(),
        at: String::new(),
        condition: tollbridge::config::Condition {
            matches: Some("(".to_owned()),
            ..tollbridge::config::Condition::default()
        },
        action: tollbridge::config::ArgumentAction::Refuse,
        observe: false,
    }];
    core.apply_config(&config).unwrap_err();
    let refused = [
        ("config_last_reload_successful", "0"),
        ("config_reloads_total", "0"),
    ];
    check(&scrape(&stage.http()).await, &refused);
    core.apply_config(&stage.gateway.config).unwrap();
    let taken = [
        ("config_last_reload_successful", "1"),
        ("config_reloads_total", "1"),
    ];
    check(&scrape(&stage.http()).await, &taken);
    stage.stop().await;
}

/// What every scraper reads, by the rules of `promtool check metrics`: each family has help, a type and the name
/// of its samples, counters and only they end in `_total`, and units are whole words of base units.
#[tokio::test]
async fn names_keep_the_conventions_of_prometheus() {
    let stage = Stage::new(TERMS, "").await;
    stage.must("{}").await;
    let answer = stage.http().get("/metrics", &[]).await;
    let form = answer.header("content-type").unwrap();
    assert_eq!(form, "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text().await;
    assert!(text.ends_with('\n') && !text.contains("# EOF"), "{text}");
    let mut family = (String::new(), String::new());
    let mut families = Vec::new();
    let mut helped = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty(), "{line}");
            helped = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped, "help comes first");
            assert!(
                !families.contains(&name.to_owned()),
                "{name} is there twice"
            );
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            let is_ours = name.starts_with("tollbridge_") || name.starts_with("process_");
            assert!(is_ours, "{name}");
            for odd in [
                "_usd",
                "_ms",
                "_millis",
                "_micros",
                "_minutes",
                "_kilobytes",
                "_gauge",
                "_counter",
            ] {
                assert!(!name.contains(odd), "{name}");
            }
            families.push(name.to_owned());
            family = (name.to_owned(), kind.to_owned());
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let parts = ["_bucket", "_sum", "_count"];
            let whole = match &*family.1 {
                "histogram" => parts.iter().find_map(|part| name.strip_suffix(part)),
                _ => Some(name),
            };
            assert_eq!(whole, Some(&*family.0), "{line}");
        }
    }
    for name in [
        "tollbridge_build_info",
        "tollbridge_audit_head_info",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_max_fds",
    ] {
        assert!(
            families.contains(&name.to_owned()),
            "{name} in {families:?}"
        );
    }
    stage.stop().await;
}

#[tokio::test]
async fn only_admins_see_who_is_busy() {
    let settings = keyed("[agents.ann]\nadmin = true\n[agents.bob]\n[governance]\nprice = \"0\"\n");
    let server = Server::start().await;
    let gateway = TestGateway::new()
        .setting(&settings)
        .server("x", &server.backend)
        .start()
        .await;
    let whole = scrape(&gateway.http().with_key(ANN.key)).await;
    assert!(whole.contains_key("tollbridge_sessions"), "{whole:#?}");
    let (stranger, bob) = (gateway.http(), gateway.http().with_key(BOB.key));
    let of_server = r#"tollbridge_server_state{server="x",state="connected"}"#;
    let of_all = r#"tollbridge_servers{state="connected"}"#;
    for (http, shown, other) in [(stranger, of_all, of_server), (bob, of_server, of_all)] {
        let part = scrape(&http).await;
        assert!(part.contains_key(shown) && !part.contains_key(other));
        for hidden in [
            "agent", "budget", "process", "spent", "tool_", "sessions", "streams", "refused",
            "duration", "_bytes",
        ] {
            assert!(
                !part.keys().any(|name| name.contains(hidden)),
                "{hidden}: {part:#?}"
            );
        }
    }
    gateway.stop().await;
}

/// Who sleeps is well.
#[tokio::test]
async fn a_server_that_sleeps() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server_with("x", &backend, "idle_timeout = \"50ms\"");
    let gateway = gateway.start().await;
    let asleep = |status: &Value| status["asleep"] == true;
    gateway.status_until("x", asleep).await;
    let series = scrape(&gateway.http()).await;
    check(
        &series,
        &[
            (r#"server_state{server="x",state="asleep"}"#, "1"),
            (r#"server_state{server="x",state="disconnected"}"#, "0"),
        ],
    );
    gateway.stop().await;
}

/// What waits, what found no room, the breaker and the health checks.
#[tokio::test]
async fn how_a_server_is_taken_care_of() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let keys = "limits = { in_flight = 1, queue = 1 }\n\
                breaker = { failures = 1, open_for = \"1h\" }\n\
                isolation = \"agent\"\n\
                health = { interval = \"20ms\" }";
    let gateway = TestGateway::new().server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let client = gateway
        .client(Front::Streamable, "/mcp", r#"{"sampling":{}}"#)
        .await;
    let call = async |id: &str| client.ask(id, "tools/call", r#""name":"mcp_x_echo""#).await;
    let _under_way = call("1").await;
    let asked = backend.asked("tools/call").await;
    let _waits = call("2").await;
    let waits = |status: &Value| status["queued"] == 1;
    gateway.status_until("x", waits).await;
    call("3").await;
    client.answer("3").await.failure();
    check(
        &scrape(&gateway.http()).await,
        &[
            (r#"server_calls_in_flight{server="x"}"#, "1"),
            (r#"server_calls_queued{server="x"}"#, "1"),
            (r#"server_calls_rejected_total{server="x"}"#, "1"),
            (r#"server_instances{server="x",state="connected"}"#, "1"),
            (r#"server_instances_busy{server="x"}"#, "1"),
            (r#"server_breaker_state{server="x",state="closed"}"#, "1"),
            (r#"server_breaker_opened_total{server="x"}"#, "0"),
        ],
    );
    backend.on_request(|envelope| (envelope.method() == "tools/call").then_some(Auto::Status(502)));
    asked.answer(r#"{"content":[]}"#).await;
    for id in ["1", "2"] {
        client.answer(id).await;
    }
    check(
        &scrape(&gateway.http()).await,
        &[
            (r#"server_calls_in_flight{server="x"}"#, "0"),
            (r#"server_calls_queued{server="x"}"#, "0"),
            (r#"server_instances_busy{server="x"}"#, "0"),
            (r#"server_breaker_state{server="x",state="closed"}"#, "0"),
            (r#"server_breaker_state{server="x",state="open"}"#, "1"),
            (r#"server_breaker_opened_total{server="x"}"#, "1"),
        ],
    );
    let checks = async |result: &str| {
        let name =
            format!(r#"tollbridge_server_health_checks_total{{server="x",result="{result}"}}"#);
        scrape(&gateway.http()).await[&name].parse::<u64>().unwrap()
    };
    let counted = async |result: &str| while checks(result).await == 0 {};
    soon("checks are answered", counted("answered")).await;
    assert_eq!(
        (checks("missed").await, checks("unauthorized").await),
        (0, 0)
    );
    backend.on_request(|envelope| (envelope.method() == "ping").then_some(Auto::Status(401)));
    soon("checks are refused", counted("unauthorized")).await;
    backend.on_request(|envelope| (envelope.method() == "ping").then_some(Auto::Status(502)));
    soon("checks are missed", counted("missed")).await;
    gateway.stop().await;
}

fn are_two_of_three_up(status: &Value) -> bool {
    let state = |at: usize| status["replicas"][at]["state"].clone();
    (state(0), state(1), state(2)) == ("connected".into(), "connected".into(), "failed".into())
}

fn replica(backend: &Backend, name: &str) -> String {
    let reached = backend.config().trim().replace('\n', ", ");
    format!("{{ {reached}, name = \"{name}\" }}")
}

/// Lets the server fail every call.
fn fails(backend: &Backend) {
    backend.on_request(|envelope| (envelope.method() == "tools/call").then_some(Auto::Status(502)));
}

#[tokio::test]
async fn what_replicas_do() {
    let start = || Backend::start(Transport::Http, Era::Legacy);
    let (a, b, c) = (start().await, start().await, start().await);
    c.on_request(|_| Some(Auto::Die));
    let replicas = [replica(&a, "a"), replica(&b, "b"), replica(&c, "c")].join(", ");
    let keys = format!("replicas = [{replicas}]\nbreaker = {{ failures = 1, open_for = \"1h\" }}");
    let gateway = TestGateway::new().section("x", &keys).start().await;
    gateway.status_until("x", are_two_of_three_up).await;
    check(
        &scrape(&gateway.http()).await,
        &[
            (r#"server_replicas{server="x",state="healthy"}"#, "2"),
            (r#"server_replicas{server="x",state="ejected"}"#, "0"),
            (r#"server_replicas{server="x",state="down"}"#, "1"),
            (r#"replica_state{server="x",replica="c",state="down"}"#, "1"),
            (
                r#"replica_state{server="x",replica="a",state="healthy"}"#,
                "1",
            ),
        ],
    );
    fails(&a);
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let call = r#""name":"mcp_x_echo""#;
    client.ask("1", "tools/call", call).await;
    client.answer("1").await.failure();
    client.ask("2", "tools/call", call).await;
    let asked = b.asked("tools/call").await;
    check(
        &scrape(&gateway.http()).await,
        &[
            (r#"server_replicas{server="x",state="healthy"}"#, "1"),
            (r#"server_replicas{server="x",state="ejected"}"#, "1"),
            (
                r#"replica_state{server="x",replica="a",state="ejected"}"#,
                "1",
            ),
            (
                r#"replica_state{server="x",replica="a",state="healthy"}"#,
                "0",
            ),
            (
                r#"replica_breaker_state{server="x",replica="a",state="open"}"#,
                "1",
            ),
            (
                r#"replica_breaker_state{server="x",replica="b",state="closed"}"#,
                "1",
            ),
            (r#"replica_calls_in_flight{server="x",replica="a"}"#, "0"),
            (r#"replica_calls_in_flight{server="x",replica="b"}"#, "1"),
        ],
    );
    asked.answer(r#"{"content":[]}"#).await;
    client.answer("2").await;
    // What is counted is that of all, whichever is listed: `a` still is.
    fails(&b);
    client.ask("3", "tools/call", call).await;
    client.answer("3").await.failure();
    let counted = scrape(&gateway.http()).await;
    check(
        &counted,
        &[
            (r#"server_breaker_state{server="x",state="open"}"#, "1"),
            (r#"server_breaker_opened_total{server="x"}"#, "2"),
        ],
    );
    let failed = &counted[r#"tollbridge_server_failed_starts_total{server="x"}"#];
    assert_ne!(failed, "0", "`c` never started");
    are_documented(counted.into_keys());
    gateway.stop().await;
}
