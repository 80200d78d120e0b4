//! Servers of workspaces, as each role has them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    harness::{ADMIN_KEY, Answer, TestApi, answer},
    roles::{AGENTS, AUDITOR_KEY, LEAD_KEY, STRANGER_KEY},
};

async fn send(api: &TestApi, key: &str, method: Method, path: &str) -> Answer {
    let request = api.request(method, path).bearer_auth(key);
    answer(request.json(&json!({}))).await
}

/// A gateway where both workspaces have a server `github`, and an agent one of its own.
async fn with_githubs() -> TestApi {
    let api = TestApi::start(AGENTS).await;
    for owner in [
        "science",
        "arts",
        "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11",
    ] {
        let name = format!("github@{owner}");
        let new = json!({ "name": name, "config": { "transport": "builtin" } });
        let made = api.send(Method::POST, "/servers", &new).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    }
    api
}

#[tokio::test]
async fn a_workspace_admin_sees_the_servers_of_its_workspace_alone() {
    let api = with_githubs().await;
    let all = [
        "github@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11",
        "github@arts",
        "github@science",
        "own",
    ];
    let rows: [(&str, &[&str]); 4] = [
        (LEAD_KEY, &["github@science"]),
        (STRANGER_KEY, &["github@arts"]),
        (AUDITOR_KEY, &all),
        (ADMIN_KEY, &all),
    ];
    let admins_view = api.get("/servers").await.body;
    let ids = admins_view["items"].as_array().unwrap().iter();
    let ids: Vec<(&str, &str)> = ids
        .map(|it| (it["name"].as_str().unwrap(), it["id"].as_str().unwrap()))
        .collect();
    assert_eq!(ids.len(), all.len());
    for (key, seen) in rows {
        let listed = send(&api, key, Method::GET, "/servers").await.body;
        let items = listed["items"].as_array().unwrap().iter();
        let names: Vec<&str> = items.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, seen);
        for (name, id) in &ids {
            let expect = if seen.contains(name) {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            for path in [
                format!("/servers/{name}"),
                format!("/servers/{id}"),
                format!("/servers/{name}/tools"),
            ] {
                let shown = send(&api, key, Method::GET, &path).await;
                assert_eq!(shown.status, expect, "{path}: {shown:?}");
            }
        }
    }
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_admin_switches_restarts_and_tests_servers_of_its_workspace_alone() {
    let api = with_githubs().await;
    let of = async |key, path: &str| send(&api, key, Method::POST, path).await;
    for action in ["disable", "enable", "restart", "test"] {
        for other in ["github@arts", "own"] {
            let path = format!("/servers/{other}/{action}");
            let refused = of(LEAD_KEY, &path).await;
            assert_eq!(refused.status, StatusCode::NOT_FOUND, "{path}: {refused:?}");
            let as_unknown = format!("/servers/nothing/{action}");
            let as_unknown = of(LEAD_KEY, &as_unknown).await.body["detail"].to_string();
            let detail = refused.body["detail"].to_string();
            assert_eq!(detail, as_unknown.replace("nothing", other));
        }
    }
    let enabled = async |name: &str| -> Value {
        api.get(&format!("/servers/{name}")).await.body["config"]["enabled"].clone()
    };
    let disabled = of(LEAD_KEY, "/servers/github@science/disable").await;
    assert_eq!(disabled.status, StatusCode::OK, "{disabled:?}");
    let changed = &disabled.body["plan"]["servers_changed"];
    assert_eq!(changed[0]["name"], "github@science", "{disabled:?}");
    assert_eq!(enabled("github@science").await, json!(false));
    assert_eq!(enabled("github@arts").await, Value::Null);
    let restarted = of(LEAD_KEY, "/servers/github@science/restart").await;
    assert_eq!(restarted.status, StatusCode::UNPROCESSABLE_ENTITY);
    for action in ["enable", "restart", "test"] {
        let done = of(LEAD_KEY, &format!("/servers/github@science/{action}")).await;
        assert_eq!(done.status, StatusCode::OK, "{action}: {done:?}");
    }
    assert_eq!(enabled("github@science").await, json!(true));
    api.stop().await;
}
