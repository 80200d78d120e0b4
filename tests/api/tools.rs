//! The catalog of tools, and calls of them as an agent.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::TestApi;

#[tokio::test]
async fn tools_are_found_and_called_as_an_agent() {
    let api = TestApi::start("").await;
    let all = api.items("/tools").await;
    let name = all[0]["name"].as_str().unwrap();
    let own = all[0]["server_tool"].as_str().unwrap();
    assert_eq!(name, format!("mcp_own_{own}"));
    let found = api.items(&format!("/tools?q={}", own.to_uppercase())).await;
    assert!(found.iter().any(|tool| tool["name"] == name));
    assert_eq!(api.items("/tools?agent=reader&limit=1").await.len(), 1);
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

/// Pages join to the whole list, whatever order servers list in.
#[tokio::test]
async fn tools_of_several_servers_have_pages() {
    let api = TestApi::start("").await;
    for name in ["zebra", "apple"] {
        let new = json!({ "name": name, "config": { "transport": "builtin" } });
        api.send(Method::POST, "/servers", &new).await;
        api.items(&format!("/tools?q=mcp_{name}")).await;
    }
    let names = |items: &[Value]| -> Vec<String> {
        let names = items.iter().map(|it| it["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    let all = names(&api.items("/tools").await);
    assert!(
        all.is_sorted() && all[0].starts_with("mcp_apple_"),
        "{all:?}"
    );
    let mut seen = Vec::new();
    let mut path = "/tools?limit=3".to_owned();
    loop {
        let page = api.get(&path).await.body;
        seen.extend(names(page["items"].as_array().unwrap()));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/tools?limit=3&cursor={cursor}");
    }
    assert_eq!(seen, all);
    api.stop().await;
}
