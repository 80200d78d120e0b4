//! Servers of agents in the form of the other system's clients.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, AGENT_KEY, TestApi};

/// The agent `reader`, whose id its name makes.
fn reader_id() -> String {
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, b"reader").to_string()
}

async fn send(api: &TestApi, method: Method, path: &str, body: &str) -> (StatusCode, String) {
    let request = api.request_at(method, path).bearer_auth(ADMIN_KEY);
    let request = request.header("content-type", "application/json");
    let response = request.body(body.to_owned()).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn the_example_of_the_other_system_is_answered_in_its_form() {
    let api = TestApi::start("").await;
    let agent = reader_id();
    let servers = format!("/api/agents/{agent}/mcp-servers");
    // It starts a program; there is none of that name.
    let example = r#"{
        "name": "aws-s3",
        "transport_type": "stdio",
        "endpoint_config": {
            "command": "npx",
            "args": ["-y", "@aws/mcp-server-s3"],
            "env": { "AWS_REGION": "us-east-1" }
        },
        "auth_config": { "type": "none" },
        "enabled": true
    }"#;
    let (status, made) = send(&api, Method::POST, &servers, example).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let read: Value = serde_json::from_str(&made).unwrap();
    let id = read["id"].as_str().unwrap();
    let created = read["created_at"].as_str().unwrap();
    assert_eq!(created.len(), "2026-02-26T09:00:00Z".len());
    let expect = format!(
        r#"{{"id":"{id}","agent_id":"{agent}","name":"aws-s3","transport_type":"stdio","endpoint_config":{{"command":"npx","args":["-y","@aws/mcp-server-s3"],"env":{{"AWS_REGION":"***"}}}},"auth_config":{{"type":"none","configured":false}},"enabled":true,"discovered_tools":[],"last_connected_at":null,"created_at":"{created}","updated_at":"{created}"}}"#
    );
    assert_eq!(made, expect);
    // Ids count with and without their prefixes.
    for path in [
        format!("{servers}/{id}"),
        format!("/api/agents/agent_{agent}/mcp-servers/srv_{id}"),
    ] {
        let (status, shown) = send(&api, Method::GET, &path, "").await;
        assert_eq!((status, shown), (StatusCode::OK, expect.clone()), "{path}");
    }
    let (_, listed) = send(&api, Method::GET, &servers, "").await;
    assert_eq!(listed, format!("[{expect}]"));
    // It is an entry of the store as others are.
    let same = api.get(&format!("/servers/srv_{id}")).await;
    assert_eq!(same.body["name"], format!("aws-s3@agent_{agent}"));
    let path = format!("{servers}/{id}");
    let (status, changed) = send(&api, Method::PUT, &path, r#"{"enabled":false}"#).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    let changed: Value = serde_json::from_str(&changed).unwrap();
    assert_eq!(changed["enabled"], false);
    assert_eq!(changed["endpoint_config"], read["endpoint_config"]);
    let (status, _) = send(&api, Method::DELETE, &path, "").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = send(&api, Method::GET, &path, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    api.stop().await;
}

#[tokio::test]
async fn credentials_are_taken_and_not_shown() {
    let api = TestApi::start("").await;
    let servers = format!("/api/agents/{}/mcp-servers", reader_id());
    let rows = [
        (json!({ "type": "bearer_token", "token": "planted" }), 201),
        (
            json!({ "type": "api_key", "header": "X-Key", "api_key": "planted" }),
            201,
        ),
        (json!({ "type": "bearer_token" }), 422),
        (json!({ "type": "password" }), 400),
    ];
    for (number, (auth, expect)) in rows.into_iter().enumerate() {
        let body = json!({
            "name": format!("docs{number}"),
            "transport_type": "http",
            "endpoint_config": { "url": "http://127.0.0.1:9/mcp" },
            "auth_config": auth,
        });
        let (status, made) = send(&api, Method::POST, &servers, &body.to_string()).await;
        assert_eq!(status.as_u16(), expect, "{made}");
        if expect != 201 {
            continue;
        }
        assert!(!made.contains("planted"), "{made}");
        let made: Value = serde_json::from_str(&made).unwrap();
        let shown = json!({ "type": auth["type"], "configured": true });
        assert_eq!(made["auth_config"], shown);
        // What was shown may be sent back.
        let path = format!("{servers}/{}", made["id"].as_str().unwrap());
        let back = json!({ "auth_config": shown, "enabled": false });
        let (status, kept) = send(&api, Method::PUT, &path, &back.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{kept}");
        let kept: Value = serde_json::from_str(&kept).unwrap();
        assert_eq!(kept["auth_config"], shown);
    }
    api.stop().await;
}

#[tokio::test]
async fn an_agent_sees_its_own_servers_alone_and_starts_no_programs() {
    let api = TestApi::start("").await;
    let own = format!("/api/agents/{}/mcp-servers", reader_id());
    let status = async |method, path: &str| {
        let request = api.request_at(method, path).bearer_auth(AGENT_KEY);
        let request = request.json(&json!({
            "name": "x",
            "transport_type": "stdio",
            "endpoint_config": { "command": "/bin/true" },
        }));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(Method::GET, &own).await, 200);
    assert_eq!(
        status(Method::GET, "/api/agents/admin/mcp-servers").await,
        404
    );
    assert_eq!(status(Method::POST, &own).await, 403);
    let nobody = api.request_at(Method::GET, &own).send().await.unwrap();
    assert_eq!(nobody.status(), StatusCode::UNAUTHORIZED);
    api.stop().await;
}
