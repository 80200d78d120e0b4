//! Calls of tools that no server lists, while one that may have them has not been listed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use crate::support::{Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon};

/// Calls a tool; the answer or the error.
async fn call(gateway: &Gateway, path: &str, tool: &str) -> Result<Value, Value> {
    let client = gateway.client(Front::Streamable, path, "{}").await;
    ask(&client, tool).await;
    heard(&client).await
}

async fn ask(client: &Client, tool: &str) {
    let params = format!(r#""name":"{tool}""#);
    client.ask("1", "tools/call", &params).await;
}

async fn heard(client: &Client) -> Result<Value, Value> {
    let answer = client.answer("1").await;
    if answer.error.is_some() {
        return Err(answer.failure());
    }
    Ok(answer.value())
}

/// A server that answers every call, and whose tools are listed once it is told to.
async fn slow(transport: Transport, era: Era) -> (Backend, Arc<AtomicBool>) {
    let backend = Backend::start(transport, era).await;
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    backend.on_request(move |request| match request.method() {
        "tools/call" => Some(Auto::Result(r#"{"content":[]}"#.to_owned())),
        "tools/list" if held.load(Ordering::SeqCst) => Some(Auto::Hand),
        "resources/subscribe" | "resources/unsubscribe" | "completion/complete" | "acme/open" => {
            Some(Auto::Result("{}".to_owned()))
        }
        _ => None,
    });
    (backend, is_held)
}

const LISTED: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#;

/// They wait for their server, not for `first_list_wait`; what it then does not have is unknown.
#[tokio::test]
async fn calls_wait_for_a_server_that_is_starting() {
    for front in [Front::Streamable, Front::Modern] {
        let (x, is_held) = slow(Transport::Stdio, Era::Legacy).await;
        let gateway = TestGateway::new()
            .setting("first_list_wait = \"0s\"")
            .server("x", &x)
            .launch()
            .await;
        let wanted = [
            ("/mcp", "mcp_x_echo", ""),
            ("/mcp/servers/x", "echo", ""),
            ("/mcp", "mcp_x_none", "TOOL_NOT_FOUND"),
            ("/mcp/servers/x", "none", "TOOL_NOT_FOUND"),
        ];
        let asked = x.asked("tools/list").await;
        let mut clients = Vec::new();
        for (path, tool, _) in wanted {
            let client = gateway.client(front, path, "{}").await;
            ask(&client, tool).await;
            clients.push(client);
        }
        let all_wait = async {
            while gateway.running.core().proxy.in_flight() < 4 {
                tokio::task::yield_now().await;
            }
        };
        soon("all calls wait", all_wait).await;
        is_held.store(false, Ordering::SeqCst);
        asked.answer(LISTED).await;
        for (client, (path, tool, code)) in clients.iter().zip(wanted) {
            let code_of = |failure: Value| failure["data"]["code"].as_str().unwrap().to_owned();
            let found = heard(client).await.map_or_else(code_of, |_| String::new());
            assert_eq!(found, code, "{front:?} {tool} on {path}");
        }
        gateway.stop().await;
    }
}

/// So do requests that name resources, templates and prompts, also with a method of the server: before
/// it is not known what is hidden of it.
#[tokio::test]
async fn other_requests_wait_too() {
    let (x, is_held) = slow(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting("first_list_wait = \"0s\"")
        .server("x", &x)
        .launch()
        .await;
    let wanted = [
        ("resources/subscribe", r#""uri":"x+file:///a.txt""#),
        ("resources/unsubscribe", r#""uri":"x+file:///b.txt""#),
        (
            "completion/complete",
            r#""ref":{"type":"ref/prompt","name":"mcp_x_greet"},"argument":{"name":"n","value":"v"}"#,
        ),
        (
            "completion/complete",
            r#""ref":{"type":"ref/resource","uri":"x+file:///{n}"},"argument":{"name":"n","value":"v"}"#,
        ),
    ];
    let asked = x.asked("tools/list").await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    for (id, (method, params)) in wanted.into_iter().enumerate() {
        client.ask(&id.to_string(), method, params).await;
    }
    let other = gateway
        .client(Front::Streamable, "/mcp/servers/x", "{}")
        .await;
    other
        .ask("1", "acme/open", r#""uri":"file:///a.txt""#)
        .await;
    let all_wait = async {
        while gateway.running.core().proxy.in_flight() < wanted.len() as u64 + 1 {
            tokio::task::yield_now().await;
        }
    };
    soon("all wait", all_wait).await;
    client.is_quiet().await;
    other.is_quiet().await;
    is_held.store(false, Ordering::SeqCst);
    asked.answer(LISTED).await;
    for _ in wanted {
        let answer = client.next().await;
        assert!(answer.result.is_some(), "{answer:?}");
    }
    assert!(other.answer("1").await.result.is_some());
    gateway.stop().await;
}

/// A name may belong to several servers; the one that is listed with it answers, whatever becomes of
/// the others.
#[tokio::test]
async fn a_name_may_be_of_any_of_several_servers() {
    let (git, is_held) = slow(Transport::Stdio, Era::Legacy).await;
    let (late, _held) = slow(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting("first_list_wait = \"0s\"")
        .server("git", &git)
        .section("git_hub", "command = \"/no/such/program\"")
        .server("git_lab", &late)
        .launch()
        .await;
    let asked = git.asked("tools/list").await;
    let mut clients = Vec::new();
    let wanted = ["mcp_git_hub_fork", "mcp_git_lab_fork", "mcp_git_hub_none"];
    for tool in wanted {
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        ask(&client, tool).await;
        clients.push(client);
    }
    is_held.store(false, Ordering::SeqCst);
    let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
    let tools = [tool("hub_fork"), tool("lab_fork")].join(",");
    asked.answer(&format!(r#"{{"tools":[{tools}]}}"#)).await;
    for (client, tool) in clients.iter().zip(wanted) {
        let found = heard(client)
            .await
            .map_err(|failure| failure["data"]["server"].clone());
        // Nobody has the last, but the server that is down may.
        let expect = if tool.ends_with("none") {
            Err(Value::from("git_hub"))
        } else {
            Ok(())
        };
        assert_eq!(found.map(|_| ()), expect, "{tool}");
    }
    gateway.stop().await;
}

/// Whoever calls a server that is down hears that, whether or not it was ever listed.
#[tokio::test]
async fn a_server_that_is_down_says_so() {
    let (good, _) = slow(Transport::Stdio, Era::Legacy).await;
    good.on_request(|_| None);
    let gateway = TestGateway::new()
        .section("bad", "command = \"/no/such/program\"")
        .section("ends", "command = \"sh\"\nargs = [\"-c\", \"exit 1\"]")
        .section("off", "command = \"/no/such/program\"\nenabled = false")
        .server("good", &good)
        .start()
        .await;
    gateway
        .status_until("ends", |status| status["state"] == "failed")
        .await;
    for (path, tool, server) in [
        ("/mcp", "mcp_bad_any", "bad"),
        ("/mcp/servers/bad", "any", "bad"),
        ("/mcp", "mcp_ends_any", "ends"),
        ("/mcp/servers/ends", "any", "ends"),
    ] {
        let failure = call(&gateway, path, tool).await.unwrap_err();
        let data = &failure["data"];
        assert_eq!(failure["code"], -32603, "{failure}");
        assert_eq!(data["server"], server, "{failure}");
        assert_eq!(data["code"], "UNAVAILABLE", "{failure}");
        assert_eq!(data["reason"], "unavailable", "{failure}");
        assert_eq!(data["retryable"], true, "{failure}");
        let calls = gateway.status(server).await;
        assert_ne!(calls["failed"], 0, "{calls}");
    }
    for (path, tool) in [
        ("/mcp", "mcp_off_any"),
        ("/mcp", "mcp_none_any"),
        ("/mcp", "mcp_good_any"),
        ("/mcp", "any"),
    ] {
        let failure = call(&gateway, path, tool).await.unwrap_err();
        assert_eq!(failure["data"]["code"], "TOOL_NOT_FOUND", "{failure}");
        assert_eq!(failure["data"]["retryable"], false, "{failure}");
    }
    gateway.stop().await;
}

/// The time of a call may end before there is a connection for it: that it was not sent is said, and
/// the server, which is only starting, is not taken for one that fails.
#[tokio::test]
async fn a_call_that_was_not_sent_says_so() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let is_held = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&is_held);
    x.on_request(move |request| match request.method() {
        "initialize" if held.load(Ordering::SeqCst) => Some(Auto::Hand),
        _ => None,
    });
    let keys = "isolation = \"session\"\ntimeout = \"300ms\"\nbreaker = { failures = 1 }";
    let gateway = TestGateway::new().server_with("x", &x, keys).start().await;
    is_held.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let failure = call(&gateway, "/mcp", "mcp_x_echo").await.unwrap_err();
        assert_eq!(failure["data"]["code"], "UNAVAILABLE", "{failure}");
        assert_eq!(failure["data"]["retryable"], true, "{failure}");
    }
    gateway.stop().await;
}

/// No longer than a call may take, and not at all for lists that cannot be read.
#[tokio::test]
async fn the_wait_ends_with_the_time_of_the_call() {
    let (slow, _held) = slow(Transport::Stdio, Era::Legacy).await;
    let odd = Backend::start(Transport::Stdio, Era::Legacy).await;
    odd.on_request(|request| {
        let refusal = r#"{"code":-32603,"message":"no tools today"}"#;
        (request.method() == "tools/list").then(|| Auto::Error(refusal.to_owned()))
    });
    let gateway = TestGateway::new()
        .setting("first_list_wait = \"0s\"")
        .server_with("slow", &slow, "tools = { timeout = { echo = \"300ms\" } }")
        .server("odd", &odd)
        .launch()
        .await;
    let degraded = |status: &Value| status["state"] == "degraded";
    gateway.status_until("odd", degraded).await;
    for (tool, state) in [
        ("mcp_slow_echo", "connecting"),
        ("mcp_odd_echo", "degraded"),
    ] {
        let failure = call(&gateway, "/mcp", tool).await.unwrap_err();
        let data = &failure["data"];
        assert_eq!(data["reason"], "unavailable", "{failure}");
        assert_eq!(data["state"], state, "{failure}");
        assert_eq!(data["retryable"], true, "{failure}");
    }
    gateway.stop().await;
}
