//! Rules that change with the config: they count for the next call of sessions that are open.

use std::{fs, num::NonZeroU32, path::Path, time::Duration};

use tollbridge::{
    config::{
        Authentication, Budget, Config, Policy, PolicyMode, Rate, Scan, ScanAction, Secret, Window,
    },
    money::Micros,
};

use crate::{
    harness::Server,
    support::{
        Auto, Client, Era, Front, Gateway, TestGateway, Transport, client::Who, soon, value,
    },
};

const EVE: Who<'static> = Who {
    name: "eve",
    key: "tbk_eve_0123456789abcdef0123456789abcdef",
};

const MAIL: &str = "ann.lee@example.org";

const RULES: &str = r#"[governance]
auth = "keys"
price = "1.00"
policy = { mode = "all" }
budget = { limit = "100.00", window = "total" }
[agents.eve]
keys = ["tbk_eve_0123456789abcdef0123456789abcdef"]
"#;

fn reload(gateway: &Gateway, change: impl FnOnce(&mut Config)) {
    let mut config = gateway.config.clone();
    change(&mut config);
    gateway.running.core().apply_config(&config).unwrap();
}

/// Calls a tool; the code of the refusal, or 0.
async fn calls(client: &Client) -> i64 {
    client
        .ask("7", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    loop {
        let next = client.next().await;
        if next.is_response() {
            return if next.error.is_some() { next.code() } else { 0 };
        }
    }
}

async fn house() -> (Gateway, Server) {
    let server = Server::start().await;
    let gateway = TestGateway::new()
        .setting(RULES)
        .server("x", &server.backend);
    (gateway.start().await, server)
}

#[tokio::test]
async fn a_policy_counts_at_once() {
    let (gateway, _server) = house().await;
    for front in [Front::Streamable, Front::Sse, Front::Stdio] {
        let client = gateway.client_of(EVE, front, "/mcp").await;
        client.listen().await;
        assert_eq!(calls(&client).await, 0, "{front:?}");
        reload(&gateway, |config| {
            config.governance.terms.policy = Some(Policy {
                mode: PolicyMode::Allowlist,
                tools: vec![globset::Glob::new("x/other").unwrap()],
                ..Policy::default()
            });
        });
        client.must("notifications/tools/list_changed").await;
        assert_eq!(calls(&client).await, -32003, "{front:?}");
        reload(&gateway, |_| {});
        assert_eq!(calls(&client).await, 0, "{front:?}");
    }
    gateway.stop().await;
}

fn masks(config: &mut Config) {
    let email = || [("email".to_owned(), ScanAction::Redact)];
    config.governance.terms.scan = Some(Scan {
        results: email().into_iter().collect(),
        notifications: email().into_iter().collect(),
        ..Scan::default()
    });
}

fn denies_tasks(config: &mut Config) {
    config.governance.terms.policy = Some(Policy {
        mode: PolicyMode::All,
        deny: vec![globset::Glob::new("x/tasks/get").unwrap()],
        ..Policy::default()
    });
}

/// A listen stream that is open goes on, by the rules of the moment; its record says what was found on it.
#[tokio::test]
async fn rules_count_at_once_on_open_listen_streams() {
    let server = Server::over(Transport::Http, Era::Modern).await;
    let plan = TestGateway::new()
        .setting(RULES)
        .server("x", &server.backend);
    let gateway = plan.start().await;
    let path = "/mcp/servers/x";
    let client = gateway.client_of(EVE, Front::Modern, path).await;
    server.answers("tools/call", r#"{"resultType":"task","taskId":"t"}"#);
    let begins = r#""name":"echo","task":{"ttl":60000}"#;
    client.ask("0", "tools/call", begins).await;
    client.answer("0").await;
    let wish = r#""notifications":{"taskIds":["t"],"resourceSubscriptions":["file:///a.txt"]}"#;
    client.ask("1", "subscriptions/listen", wish).await;
    client
        .must("notifications/subscriptions/acknowledged")
        .await;
    let stream = server.backend.listen("taskIds").await;
    let task = stream.tagged(&format!(
        r#""taskId":"t","status":"working","statusMessage":"{MAIL}","#
    ));
    let tell_task = async || stream.tell("notifications/tasks", &task).await;
    let heard = async || {
        let told = client.must("notifications/tasks").await;
        value(&told.param(&["statusMessage"]).unwrap())
    };
    tell_task().await;
    assert_eq!(heard().await, MAIL);
    reload(&gateway, masks);
    tell_task().await;
    assert_eq!(heard().await, "[EMAIL]");
    reload(&gateway, denies_tasks);
    tell_task().await;
    let update = stream.tagged(r#""uri":"file:///a.txt","#);
    stream
        .tell("notifications/resources/updated", &update)
        .await;
    client.must("notifications/resources/updated").await;
    reload(&gateway, |_| {});
    tell_task().await;
    assert_eq!(heard().await, MAIL);
    let data_dir = gateway.config.data_dir.clone();
    gateway.stop().await;
    let records = crate::harness::records(&data_dir);
    let listened = records
        .iter()
        .find(|record| record.method == "subscriptions/listen");
    let rule = listened.unwrap().rule.as_deref();
    assert_eq!(rule, Some("scan: email x1 redacted"));
}

/// What comes between calls on the stream of a session is looked at by the rules of the moment.
#[tokio::test]
async fn a_scan_counts_at_once_on_open_streams_of_sessions() {
    let server = Server::over(Transport::Stdio, Era::Legacy).await;
    server.does("tools/call", Auto::Hand);
    let gateway = TestGateway::new()
        .setting(RULES)
        .server_with("x", &server.backend, "isolation = \"session\"")
        .start()
        .await;
    for front in Front::LEGACY {
        let client = gateway.client_of(EVE, front, "/mcp").await;
        client.listen().await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        let call = server.backend.asked("tools/call").await;
        call.answer("{}").await;
        client.answer("1").await;
        let heard = async || {
            let log = format!(r#"{{"level":"error","data":"{MAIL}"}}"#);
            call.tell("notifications/message", &log).await;
            let told = client.must("notifications/message").await;
            value(&told.param(&["data"]).unwrap())
        };
        assert_eq!(heard().await, MAIL, "{front:?}");
        reload(&gateway, masks);
        assert_eq!(heard().await, "[EMAIL]", "{front:?}");
        reload(&gateway, |_| {});
        assert_eq!(heard().await, MAIL, "{front:?}");
    }
    gateway.stop().await;
}

/// Another key of the agent opens new sessions; those of before ended with the key that is gone, as
/// nobody can tell which of them it had opened.
#[tokio::test]
async fn a_key_that_is_replaced_ends_the_sessions_of_its_agent() {
    const NEXT: Who<'static> = Who {
        name: "eve",
        key: "tbk_eve_fedcba9876543210fedcba9876543210",
    };
    let (gateway, _server) = house().await;
    let old = gateway.client_of(EVE, Front::Streamable, "/mcp").await;
    assert_eq!(calls(&old).await, 0);
    let session = old.session.clone().unwrap();
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", &*session),
    ];
    let mut stream = old.http.get("/mcp", &headers).await.events();
    reload(&gateway, |config| {
        config.agents["eve"].keys = vec![Secret::new(NEXT.key.to_owned())];
    });
    let ends = async { while stream.next().await.is_some() {} };
    soon("its stream ends", ends).await;
    let list = || crate::support::wire::request("1", "tools/list", "{}");
    let http = gateway.http().with_key(NEXT.key);
    let answer = http.post_with("/mcp", &headers[1..], list()).await;
    assert_eq!(answer.status(), 404);
    let new = gateway.client_of(NEXT, Front::Streamable, "/mcp").await;
    assert_eq!(calls(&new).await, 0);
    gateway.stop().await;
}

/// A changed price is the next call's; what was spent stays spent, and a changed limit is compared
/// with it.
#[tokio::test]
async fn prices_and_budgets_count_at_once() {
    let (gateway, _server) = house().await;
    let client = gateway.client_of(EVE, Front::Streamable, "/mcp").await;
    let limit = |dollars: u64| {
        move |config: &mut Config| {
            config.governance.terms.budget = Some(vec![Budget {
                limit: Micros::new(dollars * 1_000_000),
                window: Window::Total,
            }]);
        }
    };
    assert_eq!(calls(&client).await, 0, "$1");
    reload(&gateway, limit(2));
    assert_eq!(calls(&client).await, 0, "$2: at the limit");
    assert_eq!(calls(&client).await, -32001, "past it");
    reload(&gateway, limit(3));
    assert_eq!(calls(&client).await, 0, "$3");
    assert_eq!(calls(&client).await, -32001);
    reload(&gateway, |config| {
        limit(3)(config);
        config.governance.price = Micros::ZERO;
    });
    assert_eq!(calls(&client).await, 0, "free");
    gateway.stop().await;
}

/// A rate goes on counting where others change.
#[tokio::test]
async fn a_rate_that_stays_goes_on_counting() {
    let (gateway, _server) = house().await;
    let client = gateway.client_of(EVE, Front::Streamable, "/mcp").await;
    let rate = |calls: u32| Rate {
        calls: NonZeroU32::new(calls).unwrap(),
        per: Duration::from_secs(3600),
        burst: NonZeroU32::new(calls).unwrap(),
    };
    reload(&gateway, |config| {
        config.governance.terms.rate = Some(rate(1));
    });
    assert_eq!(calls(&client).await, 0);
    assert_eq!(calls(&client).await, -32004);
    reload(&gateway, |config| {
        config.governance.terms.rate = Some(rate(1));
        config.governance.price = Micros::ZERO;
    });
    assert_eq!(calls(&client).await, -32004, "nothing is forgotten");
    reload(&gateway, |config| {
        config.governance.terms.rate = Some(rate(2));
    });
    assert_eq!(calls(&client).await, 0, "another rate begins anew");
    gateway.stop().await;
}

/// What happens to an agent, the change that does it, and the status its client sees.
type Change = (&'static str, fn(&mut Config), u16);

/// Who is no longer in the config, is disabled there, or lost a key, is shown out as after a
/// revocation; who is not anonymous any more as well.
#[tokio::test]
async fn who_is_taken_from_the_config_is_shown_out() {
    let removed = |config: &mut Config| config.agents.clear();
    let disabled = |config: &mut Config| config.agents["eve"].enabled = false;
    let rekeyed =
        |config: &mut Config| config.agents["eve"].keys = vec![Secret::new("k".repeat(40))];
    let changes: [Change; 3] = [
        ("removed", removed, 401),
        ("disabled", disabled, 404),
        ("rekeyed", rekeyed, 401),
    ];
    for (what, change, expect) in changes {
        let (gateway, _server) = house().await;
        let client = gateway.client_of(EVE, Front::Streamable, "/mcp").await;
        assert_eq!(calls(&client).await, 0);
        ends(&gateway, &client, what, change, expect).await;
        gateway.stop().await;
    }
    let server = Server::start().await;
    let gateway = TestGateway::new()
        .server("x", &server.backend)
        .start()
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let keys = |config: &mut Config| config.governance.auth = Authentication::KEYS;
    ends(&gateway, &client, "anonymous", keys, 401).await;
    gateway.stop().await;
}

async fn ends(
    gateway: &Gateway,
    client: &Client,
    what: &str,
    change: fn(&mut Config),
    expect: u16,
) {
    let session = client.session.clone().unwrap();
    let headers = [
        ("accept", "text/event-stream"),
        ("mcp-session-id", &*session),
    ];
    let mut stream = client.http.get("/mcp", &headers).await.events();
    reload(gateway, change);
    let ends = async { while stream.next().await.is_some() {} };
    soon(&format!("the stream of who is {what} ends"), ends).await;
    let ping = crate::support::wire::request("1", "ping", "{}");
    let answer = client.http.post_with("/mcp", &headers[1..], ping).await;
    assert_eq!(answer.status(), expect, "{what}");
}

/// The events of the audit that are about the config: which, and their details.
fn config_events(directory: &Path) -> Vec<(String, Option<String>)> {
    let mut events = Vec::new();
    for file in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines().map(value) {
            let text = |key: &str| line[key].as_str().map(str::to_owned);
            match text("event") {
                Some(event) if event.starts_with("config_") => {
                    assert_eq!(line["actor"], "config");
                    events.push((event, text("detail")));
                }
                Some(_) | None => {}
            }
        }
    }
    events
}

/// The audit has every config that was taken, and every one that was not.
#[tokio::test]
async fn the_audit_has_changes_of_the_config() {
    let (gateway, _server) = house().await;
    let directory = gateway.config.data_dir.join("audit");
    // Nobody waits for the lines of events.
    let audit = gateway.running.core().proxy.governance().audit();
    let events = || {
        while !audit.is_synced() {
            std::thread::yield_now();
        }
        config_events(&directory)
    };
    reload(&gateway, |config| {
        config.workers += 1;
        config.servers.clear();
    });
    let expect = "servers removed: x; changed keys that require a restart: workers";
    let changed = ("config_changed".to_owned(), Some(expect.to_owned()));
    assert_eq!(events(), std::slice::from_ref(&changed));
    let mut open = gateway.config.clone();
    open.governance.terms.args = vec![tollbridge::config::ArgumentRule {
        name: "bad".to_owned(),
        tools: Vec::new(),
        at: "no pointer".to_owned(),
        condition: tollbridge::config::Condition {
            matches: Some("(".to_owned()),
            ..Default::default()
        },
        action: tollbridge::config::ArgumentAction::Refuse,
        observe: false,
    }];
    gateway.running.core().apply_config(&open).unwrap_err();
    assert_eq!(events(), [changed, ("config_refused".to_owned(), None)]);
    gateway.stop().await;
}
