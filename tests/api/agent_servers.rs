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

/// What section 3.2 and 3.3 of the other system's document show, and what its clients send besides.
#[tokio::test]
async fn each_endpoint_and_credential_of_the_document_is_taken() {
    let api = TestApi::start("").await;
    let servers = format!("/api/agents/{}/mcp-servers", reader_id());
    let stdio = json!({
        "command": "npx", "args": ["-y", "@aws/mcp-server-s3"], "env": { "AWS_REGION": "us-east-1" },
        "cwd": "/opt/mcp-servers",
    });
    let http = json!({
        "url": "https://mcp.example.com/sse", "headers": { "X-Custom-Header": "value" },
    });
    let token = json!({ "type": "bearer_token", "token": "encrypted:xxxxx" });
    let header = json!({ "type": "api_key", "api_key": "planted" });
    let oauth2 = json!({
        "type": "oauth2", "client_id": "gateway", "client_secret": "planted",
        "issuer": "https://issuer.example.com",
    });
    let rows = [
        ("stdio", &stdio, json!({ "type": "none" }), "none"),
        ("http", &http, token, "bearer_token"),
        ("http", &http, header, "api_key"),
        ("http", &http, oauth2, "oauth2"),
    ];
    for (number, (transport, endpoint, auth, kind)) in rows.into_iter().enumerate() {
        let body = json!({
            "name": format!("example-{number}"), "transport_type": transport,
            "endpoint_config": endpoint, "auth_config": auth, "enabled": false,
        });
        let (status, made) = send(&api, Method::POST, &servers, &body.to_string()).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        assert!(
            !made.contains("planted") && !made.contains("xxxxx"),
            "{made}"
        );
        let made: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(made["transport_type"], transport);
        assert_eq!(made["enabled"], false);
        let auth = &made["auth_config"];
        assert_eq!(auth["type"], kind);
        assert_eq!(auth["configured"], kind != "none");
        let shown = made["endpoint_config"].as_object().unwrap();
        let sent = endpoint.as_object().unwrap();
        assert_eq!(
            shown.keys().collect::<Vec<_>>(),
            sent.keys().collect::<Vec<_>>()
        );
        for key in ["command", "args", "cwd", "url"] {
            assert_eq!(shown.get(key), sent.get(key), "{made}");
        }
    }
    api.stop().await;
}

/// A trial answers with status, tools and time, and the server then shows what it listed.
#[tokio::test]
async fn a_tried_server_shows_its_tools() {
    let directory = tempfile::tempdir().unwrap();
    let api = TestApi::start("").await;
    let servers = format!("/api/agents/{}/mcp-servers", reader_id());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/server.sh");
    let body = json!({
        "name": "script", "transport_type": "stdio", "auth_config": { "type": "none" },
        "endpoint_config": { "command": "sh", "args": [script], "cwd": directory.path() },
    });
    let (status, made) = send(&api, Method::POST, &servers, &body.to_string()).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let made: Value = serde_json::from_str(&made).unwrap();
    let path = format!("{servers}/{}", made["id"].as_str().unwrap());
    let (status, tried) = send(&api, Method::POST, &format!("{path}/test"), "").await;
    assert_eq!(status, StatusCode::OK, "{tried}");
    let read: Value = serde_json::from_str(&tried).unwrap();
    let latency = read["latency_ms"].as_u64().unwrap();
    let tools = r#"[{"name":"fail"},{"name":"hang","description":"Never answers."},{"name":"refuse"},{"name":"repeat","description":"\nRepeats its arguments.\nSecond line."},{"name":"steer","description":"Moves the \u001b[2Jcursor."}]"#;
    let expect = format!(
        r#"{{"status":"connected","tools_discovered":5,"tools":{tools},"latency_ms":{latency}}}"#
    );
    assert_eq!(tried, expect);
    let (_, shown) = send(&api, Method::GET, &path, "").await;
    let found = r#""discovered_tools":[{"name":"fail","description":null,"input_schema":{"type":"object"}},"#;
    assert!(shown.contains(found), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["discovered_tools"].as_array().unwrap().len(), 5);
    let connected = shown["last_connected_at"].as_str().unwrap();
    assert_eq!(connected.len(), "2026-02-26T10:00:00Z".len());
    // What cannot be reached is told of, and is no error of the request.
    let away = json!({
        "name": "away", "transport_type": "http", "endpoint_config": { "url": "http://127.0.0.1:9/mcp" },
    });
    let (_, away) = send(&api, Method::POST, &servers, &away.to_string()).await;
    let away: Value = serde_json::from_str(&away).unwrap();
    let path = format!("{servers}/{}/test", away["id"].as_str().unwrap());
    let (status, tried) = send(&api, Method::POST, &path, "").await;
    let tried: Value = serde_json::from_str(&tried).unwrap();
    assert_eq!(status, StatusCode::OK, "{tried}");
    assert_ne!(tried["status"], "connected");
    assert_eq!(
        (&tried["tools_discovered"], &tried["tools"]),
        (&json!(0), &json!([]))
    );
    assert!(tried["error"].is_string(), "{tried}");
    let (status, _) = send(&api, Method::POST, &format!("{servers}/none/test"), "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    api.stop().await;
}
