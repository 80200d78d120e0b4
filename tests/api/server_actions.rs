//! What is done with servers beside changing what they say.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{ADMIN_KEY, TestApi, answer};

#[tokio::test]
async fn a_server_is_switched_off_and_on() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "box", "config": { "transport": "builtin" } });
    api.send(Method::POST, "/servers", &new).await;
    let off = api
        .send(
            Method::POST,
            "/servers/box/disable?dry_run=true",
            &json!({}),
        )
        .await;
    assert_eq!(off.body["dry_run"], true);
    assert_eq!(
        api.get("/servers/box").await.body["config"]["enabled"],
        json!(null)
    );
    let off = api
        .send(Method::POST, "/servers/box/disable", &json!({}))
        .await;
    assert_eq!(off.status, StatusCode::OK, "{off:?}");
    assert_eq!(off.body["server"]["state"], "disabled");
    let stopped = api
        .send(Method::POST, "/servers/box/restart", &json!({}))
        .await;
    assert_eq!(stopped.status, StatusCode::UNPROCESSABLE_ENTITY);
    let on = api
        .send(Method::POST, "/servers/box/enable", &json!({}))
        .await;
    assert_eq!(on.status, StatusCode::OK, "{on:?}");
    assert_eq!(on.body["server"]["config"]["enabled"], true);
    // What stands in a file is switched there.
    let own = api
        .send(Method::POST, "/servers/own/disable", &json!({}))
        .await;
    assert_eq!(own.body["type"], "in-config-file");
    let detail = own.body["detail"].as_str().unwrap();
    assert!(detail.contains("tollbridge.toml line 8"), "{detail}");
    api.stop().await;
}

#[tokio::test]
async fn a_restarted_server_is_listed_anew() {
    let api = TestApi::start("").await;
    let listed = async || {
        for _ in 0..200 {
            let own = api.get("/servers/own").await.body;
            if own["state"] == "connected" {
                return own["tools"].as_u64().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it is not listed")
    };
    let before = listed().await;
    let restarted = api
        .send(Method::POST, "/servers/own/restart", &json!({}))
        .await;
    assert_eq!(restarted.status, StatusCode::OK, "{restarted:?}");
    assert_eq!(listed().await, before);
    api.stop().await;
}

#[tokio::test]
async fn servers_are_tried_before_and_after_they_are_made() {
    let api = TestApi::start("").await;
    let tried = api
        .send(Method::POST, "/servers/own/test", &json!({}))
        .await;
    assert_eq!(tried.status, StatusCode::OK, "{tried:?}");
    assert_eq!(tried.body["status"], "connected", "{tried:?}");
    assert!(tried.body["latency_ms"].is_u64());
    let tools = tried.body["tools"].as_array().unwrap();
    assert_eq!(tried.body["tools_discovered"], tools.len());
    assert!(tools[0]["name"].is_string() && tools[0]["description"].is_string());
    let new = json!({ "config": { "transport": "builtin" } });
    let unsaved = api.send(Method::POST, "/servers/test", &new).await;
    assert_eq!(unsaved.body["tools"], tried.body["tools"], "{unsaved:?}");
    // Nothing was made.
    assert_eq!(
        api.get("/servers").await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let away = json!({ "config": { "url": "http://127.0.0.1:9/mcp" } });
    let failed = api.send(Method::POST, "/servers/test", &away).await;
    assert_eq!(failed.status, StatusCode::OK, "{failed:?}");
    assert_ne!(failed.body["status"], "connected");
    assert!(failed.body["error"].is_string(), "{failed:?}");
    let wrong = json!({ "config": { "transprt": "builtin" } });
    let wrong = api.send(Method::POST, "/servers/test", &wrong).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong:?}");
    api.stop().await;
}

#[tokio::test]
async fn requests_that_fit_no_operation_are_problems() {
    let api = TestApi::start("").await;
    let rows = [
        (
            api.request(Method::PUT, "/servers"),
            405,
            "method-not-allowed",
        ),
        (api.request(Method::GET, "/nothing"), 404, "not-found"),
        (
            api.request(Method::POST, "/servers").body("{}"),
            415,
            "unsupported-media-type",
        ),
        (
            api.request(Method::POST, "/servers")
                .header("content-type", "application/json"),
            400,
            "invalid-request",
        ),
    ];
    for (request, status, kind) in rows {
        let answered = answer(request.bearer_auth(ADMIN_KEY)).await;
        assert_eq!(answered.status.as_u16(), status, "{answered:?}");
        assert_eq!(answered.body["type"], kind);
    }
    api.stop().await;
}
