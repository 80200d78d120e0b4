//! All kinds of broken servers at once: the good one is served as if it were alone.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    broken_servers::endless,
    support::{
        Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
        wire::{request, value},
    },
};

/// Longest time of what is answered from memory, with a build that is not optimised: the tools are some
/// 10,000.
const AT_ONCE: Duration = Duration::from_millis(250);
/// Tries of which the fastest counts: others use the processor as well.
const TRIES: usize = 20;

const INITIALIZE: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}"#;

#[tokio::test]
async fn seven_broken_servers_hold_up_nobody() {
    let (good, crashing) = (stdio().await, stdio().await);
    crashing.on_request(|asked| (asked.method() == "tools/call").then_some(Auto::Die));
    let (many, schema, cursor) = (stdio().await, stdio().await, stdio().await);
    let tool = |at| format!(r#"{{"name":"t{at}","inputSchema":{{"type":"object"}}}}"#);
    let tools: Vec<String> = (0..10_000).map(tool).collect();
    many.set_list("tools/list", format!("[{}]", tools.join(",")));
    schema.set_list("tools/list", BROKEN);
    cursor.on_request(endless);
    let gateway = TestGateway::new()
        .section("dead", r#"command = "/no/such/program""#)
        .section("slow", &shell("sleep 20"))
        .section("junk", &shell("while echo junk; do sleep 0.05; done"))
        .server("crashing", &crashing)
        .server("many", &many)
        .server("schema", &schema)
        .server("cursor", &cursor)
        .server("good", &good)
        .launch()
        .await;
    gateway.tools_until(|tools| tools.len() == TOOLS).await;

    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let crash = r#""name":"mcp_crashing_echo""#;
    client.ask("1", "tools/call", crash).await;
    assert!(client.answer("1").await.error.is_some(), "it crashed");
    client
        .ask("2", "tools/call", r#""name":"mcp_good_echo""#)
        .await;
    good.asked("tools/call").await.answer("{}").await;
    assert!(client.answer("2").await.result.is_some());
    for (method, params) in [("initialize", INITIALIZE), ("tools/list", "{}")] {
        let fastest = fastest(method, params, &gateway).await;
        assert!(fastest < AT_ONCE, "{method} took {fastest:?}");
    }
    all_are_named(&gateway).await;
    gateway.stop().await;
}

/// Tools of all servers that are listed: two of the crashing one, and as many of the good one.
const TOOLS: usize = 10_000 + 2 + 2 + 2;

const BROKEN: &str = r##"[{"name":"broken","inputSchema":{"type":"object","$ref":"#/nowhere"}},{"name":"fine","inputSchema":{"type":"object"}}]"##;

async fn stdio() -> Backend {
    Backend::start(Transport::Stdio, Era::Legacy).await
}

fn shell(script: &str) -> String {
    format!("command = \"sh\"\nargs = [\"-c\", \"{script}\"]")
}

/// How long the fastest of some answers takes.
async fn fastest(method: &str, params: &str, gateway: &Gateway) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        let answer = gateway
            .http()
            .post("/mcp", request("1", method, params))
            .await;
        let text = answer.text().await;
        fastest = fastest.min(start.elapsed());
        let answer = value(&text);
        assert!(
            answer["result"].is_object(),
            "{method}: {}",
            answer["error"]
        );
    }
    fastest
}

/// What is wrong with each is in the status, and nothing is with the good one.
async fn all_are_named(gateway: &Gateway) {
    type Seen = fn(&Value) -> bool;
    let has = |status: &Value, key: &str, words: &str| status[key].to_string().contains(words);
    let of: [(&str, Seen); 8] = [
        ("dead", |it| {
            it["state"] == "failed" && it["reason"].to_string().contains("/no/such/program")
        }),
        ("slow", |it| it["state"] == "connecting"),
        ("junk", |it| {
            it["state"] == "connecting" && it["last_odd_line"] == "junk"
        }),
        ("crashing", |it| {
            it["restarts"].as_u64().is_some_and(|count| count > 0)
        }),
        ("many", |it| {
            it["state"] == "connected" && it["offers"]["tools"] == 10_000
        }),
        ("schema", |it| {
            it["problems"]
                .to_string()
                .contains("`broken`: invalid `inputSchema`")
        }),
        ("cursor", |it| {
            it["state"] == "degraded" && it["reason"].to_string().contains("does not end")
        }),
        ("good", |it| {
            it["state"] == "connected" && it["problems"].as_array().is_none_or(Vec::is_empty)
        }),
    ];
    for (server, is_seen) in of {
        gateway.status_until(server, is_seen).await;
    }
    let schema = gateway.status("schema").await;
    assert!(!has(&schema, "problems", "`fine`"), "{schema}");
}
