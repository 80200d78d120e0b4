//! The catalog of tools, and calls of them as an agent.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::TestApi;

async fn catalog(api: &TestApi, query: &str) -> Vec<Value> {
    for _ in 0..200 {
        let listed = api.get(&format!("/tools{query}")).await;
        assert_eq!(listed.status, StatusCode::OK, "{listed:?}");
        let items = listed.body["items"].as_array().unwrap().clone();
        if !items.is_empty() {
            return items;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nothing is listed")
}

#[tokio::test]
async fn tools_are_found_and_called_as_an_agent() {
    let api = TestApi::start("").await;
    let all = catalog(&api, "").await;
    let name = all[0]["name"].as_str().unwrap();
    let own = all[0]["server_tool"].as_str().unwrap();
    assert_eq!(name, format!("mcp_own_{own}"));
    let found = catalog(&api, &format!("?q={}", own.to_uppercase())).await;
    assert!(found.iter().any(|tool| tool["name"] == name));
    assert_eq!(catalog(&api, "?agent=reader&limit=1").await.len(), 1);
    let nobody = api.get("/tools?agent=nobody").await;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    let path = format!("/tools/{name}/test");
    let called = api
        .send(Method::POST, &path, &json!({ "agent": "reader" }))
        .await;
    assert_eq!(called.status, StatusCode::OK, "{called:?}");
    let answered = called.body["result"].is_object() || called.body["error"].is_object();
    assert!(answered, "{called:?}");
    let unknown = api
        .send(
            Method::POST,
            "/tools/no/test",
            &json!({ "agent": "reader" }),
        )
        .await;
    assert!(unknown.body["error"]["code"].is_number(), "{unknown:?}");
    api.stop().await;
}
