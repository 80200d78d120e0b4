//! Servers that do not give one of their lists: the others are served, and what was known of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon, wire::Envelope,
};

const NO_METHOD: &str = r#"{"code":-32601,"message":"Method not found"}"#;
const REFUSED: &str = r#"{"code":-32603,"message":"the database is down"}"#;
const TOOLS: &str = r#"[{"name":"echo","inputSchema":{"type":"object"}}]"#;
const ECHO: &str = r#""name":"mcp_x_echo""#;
const GREET: &str = r#""name":"mcp_x_greet""#;

/// Refuses `method` with `error`, and answers calls.
fn refusing(
    method: &'static str,
    error: &'static str,
) -> impl Fn(&Envelope) -> Option<Auto> + Send + Sync + 'static {
    move |request| match request.method() {
        "tools/call" => Some(Auto::Result(r#"{"content":[]}"#.to_owned())),
        asked if asked == method => Some(Auto::Error(error.to_owned())),
        _ => None,
    }
}

async fn client(gateway: &Gateway) -> Client {
    gateway.client(Front::Streamable, "/mcp", "{}").await
}

/// The state of the server, and why it is in it.
async fn state(gateway: &Gateway) -> (String, String) {
    let status = gateway.status("x").await;
    let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

/// Waits for what a timer of the gateway brings about.
async fn in_time(gateway: &Gateway, reached: impl Fn(&Value) -> bool) -> Value {
    let wait = async {
        loop {
            let status = gateway.status("x").await;
            if reached(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(90), wait).await;
    waited.expect("it happens by itself")
}

async fn is_called(client: &Client) {
    client.ask("1", "tools/call", ECHO).await;
    let answer = client.answer("1").await;
    assert!(answer.result.is_some(), "{answer:?}");
}

/// A server that declares a list which it does not have has all others, and is named.
#[tokio::test]
async fn a_list_that_a_server_does_not_have() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::Http, Era::Legacy),
        (Transport::Http, Era::Modern),
    ] {
        for (method, kind) in [("prompts/list", "prompts"), ("resources/list", "resources")] {
            let backend = Backend::start(transport, era).await;
            backend.on_request(refusing(method, NO_METHOD));
            let gateway = TestGateway::new().server("x", &backend).start().await;
            assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
            let status = gateway.status("x").await;
            assert_eq!(status["state"], "connected", "{method}: {status}");
            let problem = status["problems"][0].as_str().unwrap();
            let expect = format!("x: {kind}: the server declares this list");
            assert!(problem.starts_with(&expect), "{problem}");
            for path in ["/mcp", "/mcp/servers/x"] {
                let client = gateway.client(Front::Streamable, path, "{}").await;
                assert_eq!(client.list("tools").await.len(), 2, "{path}");
                assert_eq!(client.list(kind).await.len(), 0, "{path}");
            }
            is_called(&client(&gateway).await).await;
            gateway.stop().await;
        }
    }
}

/// The others are served at once; it is asked for again until it gives the list.
#[tokio::test]
async fn a_list_that_is_refused_costs_itself() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(refusing("prompts/list", REFUSED));
    let gateway = TestGateway::new().server("x", &backend).start().await;
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    let (now, reason) = state(&gateway).await;
    assert_eq!(now, "degraded", "{reason}");
    assert!(reason.starts_with("prompts/list failed"), "{reason}");
    assert!(reason.contains("the database is down"), "{reason}");
    let client = client(&gateway).await;
    assert_eq!(client.list("resources").await.len(), 1);
    is_called(&client).await;
    // It is not known what prompts it has: none is said not to be there.
    client.ask("2", "prompts/get", GREET).await;
    let failure = client.answer("2").await.failure();
    assert_eq!(failure["data"]["code"], "UNAVAILABLE", "{failure}");
    // Of tools it is.
    let unknown = r#""name":"mcp_x_nothing""#;
    client.ask("3", "tools/call", unknown).await;
    let failure = client.answer("3").await.failure();
    assert_eq!(failure["data"]["code"], "TOOL_NOT_FOUND", "{failure}");

    backend.on_request(refusing("", REFUSED));
    in_time(&gateway, |status| status["state"] == "connected").await;
    assert_eq!(client.list("prompts").await.len(), 1);
    assert_eq!(gateway.status("x").await["restarts"], 0);
    gateway.stop().await;
}

/// So does one for which our credential is not taken.
#[tokio::test]
async fn a_list_that_is_not_for_us_costs_itself() {
    for status in [401, 403] {
        for (refused, left) in [("tools/list", "prompts"), ("prompts/list", "tools")] {
            let backend = Backend::start(Transport::Http, Era::Legacy).await;
            backend.on_request(move |request| {
                (request.method() == refused).then_some(Auto::Status(status))
            });
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let (now, reason) = state(&gateway).await;
            assert_eq!(now, "degraded", "{reason}");
            let expect = format!("{refused} failed: ");
            assert!(reason.starts_with(&expect), "{reason}");
            assert!(reason.contains("credential"), "{reason}");
            let client = client(&gateway).await;
            assert!(!client.list(left).await.is_empty(), "{refused}");
            assert!(!client.list("resources").await.is_empty(), "{refused}");
            backend.on_request(|_| None);
            in_time(&gateway, |status| status["state"] == "connected").await;
            gateway.stop().await;
        }
    }
}

/// What cannot be read after a change stays as it was; what can be read is new.
#[tokio::test]
async fn a_list_that_is_refused_stays_as_it_was() {
    for (method, kind, other) in [
        ("prompts/list", "prompts", "resources"),
        ("resources/list", "resources", "prompts"),
        ("resources/templates/list", "templates", "prompts"),
    ] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        backend.on_request(refusing(method, REFUSED));
        backend.set_list(
            "tools/list",
            r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
        );
        backend.list_changed(other).await;
        gateway.tools_until(|tools| tools == ["mcp_x_new"]).await;
        let degraded = |status: &Value| status["state"] == "degraded";
        let status = gateway.status_until("x", degraded).await;
        for kind in ["prompts", "resources", "templates"] {
            assert_eq!(status["offers"][kind], 1, "{method}: {status}");
        }
        let problem = format!("x: {}: the list could not be read", list_of(kind));
        assert!(
            status["problems"].to_string().contains(&problem),
            "{status}"
        );
        backend.on_request(|_| None);
        backend.list_changed(other).await;
        let well = |status: &Value| status["state"] == "connected";
        let status = gateway.status_until("x", well).await;
        assert!(status["problems"].is_null(), "{status}");
        gateway.stop().await;
    }
}

fn list_of(kind: &str) -> &str {
    if kind == "templates" {
        "resourceTemplates"
    } else {
        kind
    }
}

/// Many servers with static resources have no templates and refuse to say so properly.
#[tokio::test]
async fn templates_that_never_were_are_no_trouble() {
    for error in [NO_METHOD, REFUSED] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        backend.on_request(refusing("resources/templates/list", error));
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let status = gateway.status("x").await;
        assert_eq!(status["state"], "connected", "{status}");
        assert!(status["problems"].is_null(), "{status}");
        gateway.stop().await;
    }
}

/// The last listing of an earlier process stands in for what cannot be read, and is kept on.
#[tokio::test]
async fn what_an_earlier_process_listed_stands_in() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let plan = TestGateway::new().server("x", &backend);
    plan.start().await.stop().await;
    backend.on_request(refusing("prompts/list", REFUSED));
    backend.set_list(
        "tools/list",
        r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
    );
    for _ in 0..2 {
        let gateway = plan.start().await;
        gateway.tools_until(|tools| tools == ["mcp_x_new"]).await;
        let degraded = |status: &Value| status["state"] == "degraded";
        gateway.status_until("x", degraded).await;
        assert_eq!(client(&gateway).await.list("prompts").await.len(), 1);
        gateway.stop().await;
    }
}

/// What another program listed under the same name does not.
#[tokio::test]
async fn what_a_predecessor_listed_does_not_stand_in() {
    let old = Backend::start(Transport::Stdio, Era::Legacy).await;
    let new = Backend::start(Transport::Stdio, Era::Legacy).await;
    new.on_request(refusing("prompts/list", REFUSED));
    let plan = TestGateway::new().server("x", &old);
    plan.start().await.stop().await;
    let gateway = plan
        .launch_as(&plan.text().replace(&old.config(), &new.config()))
        .await;
    gateway.settled().await;
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    assert_eq!(state(&gateway).await.0, "degraded");
    assert_eq!(client(&gateway).await.list("prompts").await.len(), 0);
    gateway.stop().await;
}

/// A list that is never answered costs itself.
#[tokio::test]
async fn a_list_that_is_not_answered() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        (request.method() == "resources/templates/list").then_some(Auto::Nothing)
    });
    let gateway = TestGateway::new().server_with("x", &backend, "timeout = \"5s\"");
    let gateway = gateway.start().await;
    let status = gateway.status("x").await;
    assert_eq!(status["state"], "degraded", "{status}");
    let reason = status["reason"].as_str().unwrap();
    let expect = "resources/templates/list failed: no response within 5s (its `timeout`)";
    assert_eq!(reason, expect);
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    assert_eq!(client(&gateway).await.list("prompts").await.len(), 1);
    assert_eq!(status["offers"]["resources"], 1, "{status}");
    gateway.stop().await;
}

/// The first request for the tools is left to the test.
fn hand_tools(backend: &Backend) {
    let is_handed = AtomicBool::new(false);
    backend.on_request(move |request| match request.method() {
        "tools/list" if !is_handed.swap(true, Ordering::SeqCst) => Some(Auto::Hand),
        "tools/call" => Some(Auto::Result(r#"{"content":[]}"#.to_owned())),
        _ => None,
    });
}

/// The lists after one that takes long are there before it. What is listed for clients that can be asked
/// something is compared with all of them: nothing of a part is taken for more than others get.
#[tokio::test]
async fn a_list_that_takes_long_holds_up_no_other() {
    for (transport, era) in [
        (Transport::Stdio, Era::Legacy),
        (Transport::Http, Era::Modern),
    ] {
        let backend = Backend::start(transport, era).await;
        backend.set_list("tools/list", TOOLS);
        hand_tools(&backend);
        let gateway = TestGateway::new().server_with("x", &backend, "timeout = \"10m\"");
        let gateway = gateway.launch().await;
        let tools = backend.asked("tools/list").await;
        let is_there = |status: &Value| status["offers"]["prompts"] == 1;
        let status = gateway.status_until("x", is_there).await;
        assert_eq!(
            status["state"], "connecting",
            "the rest is waited for: {status}"
        );
        assert_eq!(status["offers"]["resources"], 1, "{status}");
        assert_eq!(status["unlisted"], json!(["tools"]), "{status}");
        assert!(status["problems"].is_null(), "{status}");
        let able = gateway
            .client(Front::Streamable, "/mcp", r#"{"sampling":{}}"#)
            .await;
        assert_eq!(able.list("prompts").await.len(), 1);
        // A call of what may be among the rest waits for that.
        able.ask("1", "tools/call", ECHO).await;
        tools.answer(&format!(r#"{{"tools":{TOOLS}}}"#)).await;
        let answer = able.answer("1").await;
        assert!(answer.result.is_some(), "{answer:?}");
        let well = |status: &Value| status["state"] == "connected";
        let status = gateway.status_until("x", well).await;
        assert_eq!(status["offers"]["tools"], 1, "{status}");
        assert!(status["unlisted"].is_null(), "{status}");
        assert!(status["problems"].is_null(), "{status}");
        assert_eq!(able.list("tools").await.len(), 1);
        backend.set_list("tools/list", "[]");
        backend.list_changed("tools").await;
        let is_gone = async { while !able.list("tools").await.is_empty() {} };
        soon("its tools are gone", is_gone).await;
        gateway.stop().await;
    }
}

/// While a list that changed takes long, it is what it was, and what is not in it is unknown.
#[tokio::test]
async fn a_list_that_takes_long_again_is_what_it_was() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server_with("x", &backend, "timeout = \"10m\"");
    let gateway = gateway.start().await;
    hand_tools(&backend);
    backend.set_list("prompts/list", "[]");
    backend.list_changed("tools").await;
    let tools = backend.asked("tools/list").await;
    let is_new = |status: &Value| status["offers"]["prompts"] == 0;
    let status = gateway.status_until("x", is_new).await;
    assert_eq!(status["state"], "connected", "{status}");
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    let client = client(&gateway).await;
    is_called(&client).await;
    client
        .ask("2", "tools/call", r#""name":"mcp_x_nothing""#)
        .await;
    let failure = client.answer("2").await.failure();
    assert_eq!(failure["data"]["code"], "TOOL_NOT_FOUND", "{failure}");
    tools.answer(r#"{"tools":[]}"#).await;
    gateway.tools_until(<[String]>::is_empty).await;
    gateway.stop().await;
}

/// What had come when a connection was lost is known on the next one while that takes long.
#[tokio::test]
async fn what_has_come_outlives_its_connection() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let is_lost = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&is_lost);
    backend.on_request(move |request| {
        let late = if late.load(Ordering::Relaxed) {
            "tools/list"
        } else {
            "prompts/list"
        };
        (request.method() == late).then_some(Auto::Hand)
    });
    let gateway = TestGateway::new().server_with("x", &backend, "timeout = \"10m\"");
    let gateway = gateway.launch().await;
    let counts = |tools: u64, prompts: u64| {
        move |status: &Value| {
            status["offers"]["tools"] == tools && status["offers"]["prompts"] == prompts
        }
    };
    gateway.status_until("x", counts(2, 0)).await;
    is_lost.store(true, Ordering::Relaxed);
    backend.die();
    let status = gateway.status_until("x", |it| it["offers"]["prompts"] == 1);
    let status = status.await;
    assert!(counts(2, 1)(&status), "{status}");
    let client = client(&gateway).await;
    assert_eq!(client.list("tools").await.len(), 2);
    gateway.stop().await;
}

/// A server that takes one call at a time is asked for one list at a time.
#[tokio::test]
async fn no_more_lists_are_asked_for_than_calls_may_be_under_way() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    backend.on_request(move |request| match request.method() {
        "tools/list" => Some(Auto::Nothing),
        "prompts/list" => {
            count.fetch_add(1, Ordering::SeqCst);
            None
        }
        _ => None,
    });
    let keys = "timeout = \"4s\"\nlimits = { in_flight = 1 }";
    let gateway = TestGateway::new().server_with("x", &backend, keys);
    let gateway = gateway.start().await;
    let status = gateway.status("x").await;
    assert_eq!(status["state"], "degraded", "{status}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    gateway.stop().await;
}

/// Where the connection ends on the way nothing is taken of what came before.
#[tokio::test]
async fn a_listing_that_breaks_off_is_none() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    backend.set_list(
        "tools/list",
        r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
    );
    backend.on_request(|request| (request.method() == "prompts/list").then_some(Auto::Die));
    backend.list_changed("tools").await;
    let tried = |status: &Value| status["restarts"].as_u64() >= Some(2);
    gateway.status_until("x", tried).await;
    assert_eq!(gateway.tools().await, ["mcp_x_echo", "mcp_x_other"]);
    backend.on_request(|_| None);
    gateway.tools_until(|tools| tools == ["mcp_x_new"]).await;
    let well = async {
        while state(&gateway).await.0 != "connected" {
            tokio::task::yield_now().await;
        }
    };
    soon("it is well", well).await;
    gateway.stop().await;
}
