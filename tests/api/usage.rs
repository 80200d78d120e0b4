//! Usage over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{AGENT_KEY, TestApi, answer};

const PRICED: &str = "price = \"0.25\"\n[agents.member]\nteam = \"science\"\nkeys = []\n";

async fn call(api: &TestApi, tool: &str) {
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": format!("mcp_own_{tool}"), "arguments": { "text": "hello" } },
    });
    let request = api.request_at(Method::POST, "/mcp").bearer_auth(AGENT_KEY);
    let request = request.header("accept", "application/json, text/event-stream");
    let answered = answer(request.json(&call)).await;
    assert_eq!(answered.status, StatusCode::OK, "{answered:?}");
}

/// The items once they have `calls` calls.
async fn usage(api: &TestApi, path: &str, calls: u64) -> Vec<Value> {
    for _ in 0..100 {
        let answered = api.get(path).await;
        assert_eq!(answered.status, StatusCode::OK, "{answered:?}");
        let items = answered.body["items"].as_array().unwrap().clone();
        let all: u64 = items.iter().map(|it| it["calls"].as_u64().unwrap()).sum();
        if all == calls {
            return items;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{path} never has {calls} calls")
}

#[tokio::test]
async fn calls_are_summed_up() {
    let api = TestApi::start(PRICED).await;
    api.items("/tools").await;
    for tool in ["echo", "echo", "hash", "missing"] {
        call(&api, tool).await;
    }
    let agents = usage(&api, "/usage?by=agent", 4).await;
    assert_eq!((agents.len(), &agents[0]["name"]), (1, &json!("reader")));
    assert!(
        agents[0]["id"].as_str().unwrap().starts_with("agent_"),
        "{agents:?}"
    );
    assert_eq!(agents[0]["spent"], "0.75", "{agents:?}");
    assert!(agents[0]["latency_mean_ms"].as_f64().unwrap() > 0.0);
    assert!(agents[0]["latency_p95_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(agents[0]["steps"], Value::Null);
    let tools = usage(&api, "/usage?by=tool&step=hour", 3).await;
    let ids: Vec<_> = tools
        .iter()
        .map(|it| (it["id"].as_str().unwrap(), &it["calls"]))
        .collect();
    assert_eq!(ids, [("own/echo", &json!(2)), ("own/hash", &json!(1))]);
    let steps = tools[0]["steps"].as_array().unwrap();
    let counted: u64 = steps.iter().map(|it| it["calls"].as_u64().unwrap()).sum();
    assert_eq!(counted, 2, "{tools:?}");
    assert!(
        steps[0]["start"].as_str().unwrap().ends_with(":00:00Z"),
        "{steps:?}"
    );
    assert_eq!(usage(&api, "/usage?by=server", 3).await[0]["id"], "own");
    usage(&api, "/usage?by=team", 0).await;
    let first = api.get("/usage?by=tool&limit=1").await.body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = usage(&api, &format!("/usage?by=tool&limit=1&cursor={cursor}"), 1).await;
    assert_eq!(second[0]["id"], "own/hash");
    usage(&api, "/usage?by=tool&until=2020-01-01T00:00:00Z", 0).await;
    for wrong in [
        "",
        "?by=day",
        "?by=tool&since=yesterday",
        "?by=tool&step=hour&limit=500&since=2020-01-01T00:00:00Z",
    ] {
        let refused = api.get(&format!("/usage{wrong}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    api.stop().await;
}
