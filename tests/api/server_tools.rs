//! Tools of a server: shown, hidden, described and priced.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::TestApi;

#[tokio::test]
async fn a_tool_is_hidden_described_and_priced() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "box", "config": { "transport": "builtin" } });
    api.send(Method::POST, "/servers", &new).await;
    let before = api.items("/servers/box/tools").await;
    let name = before[0]["name"].as_str().unwrap().to_owned();
    assert_eq!(before[0]["enabled"], true);
    assert_eq!(before[0]["exposed_name"], format!("mcp_box_{name}"));
    assert!(before[0]["input_schema"].is_object());
    let path = format!("/servers/box/tools/{name}");
    let change = json!({ "description": "Ours", "price": "0.02" });
    let changed = api.send(Method::PATCH, &path, &change).await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    let now = api.items("/servers/box/tools").await;
    assert_eq!(now[0]["description"], "Ours");
    assert_eq!(now[0]["price"], "0.02");
    let off = json!({ "enabled": false, "description": null });
    let changed = api.send(Method::PATCH, &path, &off).await;
    let rules = json!({ "deny": [name], "describe": {}, "price": { name.as_str(): "0.02" } });
    assert_eq!(
        changed.body["server"]["config"]["tools"], rules,
        "{changed:?}"
    );
    let now = api.items("/servers/box/tools").await;
    assert_eq!(now.len(), before.len());
    assert_eq!(now[0]["enabled"], false);
    assert_eq!(now[0]["description"], before[0]["description"]);
    let on = json!({ "enabled": true });
    api.send(Method::PATCH, &path, &on).await;
    assert_eq!(api.items("/servers/box/tools").await[0]["enabled"], true);
    let unknown = api
        .send(Method::PATCH, "/servers/box/tools/nothing", &on)
        .await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let own = api.items("/servers/own/tools").await;
    let path = format!("/servers/own/tools/{}", own[0]["name"].as_str().unwrap());
    let refused = api.send(Method::PATCH, &path, &on).await;
    assert_eq!(refused.body["type"], "in-config-file", "{refused:?}");
    api.stop().await;
}
