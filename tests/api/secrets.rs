//! Secrets over HTTP: set, used, and never shown.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    harness::{Answer, TestApi, answer},
    roles::{AGENTS, LEAD_KEY, STRANGER_KEY},
};

/// A value of which nothing but the end is ever seen.
const PLANTED: &str = "planted-value-of-a-secret-9Xk2";
/// What is seen of it.
const END: &str = "9Xk2";

async fn send(api: &TestApi, key: &str, method: Method, path: &str, body: &Value) -> Answer {
    answer(api.request(method, path).bearer_auth(key).json(body)).await
}

/// Makes a server of `science` that uses the secret `TOKEN` of its workspace.
async fn add_user(api: &TestApi) -> Answer {
    let auth = json!({ "type": "bearer", "token": "${secret:TOKEN}" });
    let config = json!({ "url": "https://mcp.example.com/", "auth": auth, "enabled": true });
    let new = json!({ "name": "docs@science", "config": config });
    send(api, LEAD_KEY, Method::POST, "/servers", &new).await
}

/// Neither the config that is shown nor the audit has a value.
async fn is_nowhere(api: &TestApi) {
    let shown = api.get("/config").await.body.to_string();
    assert!(!shown.contains("planted"), "{shown}");
    let files = std::fs::read_dir(api.data_dir().join("audit")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.is_file());
    let audit: Vec<u8> = files
        .flat_map(|path| std::fs::read(path).unwrap())
        .collect();
    let audit = String::from_utf8_lossy(&audit);
    assert!(audit.contains("secret_changed") && audit.contains("TOKEN@science"));
    assert!(!audit.contains("planted"));
}

#[tokio::test]
async fn a_secret_is_set_used_and_removed_and_never_shown() {
    let api = TestApi::start(AGENTS).await;
    let path = "/secrets/TOKEN%40science";
    let value = json!({ "value": PLANTED });
    // That of the gateway is another one.
    let set = api.send(Method::PUT, "/secrets/TOKEN", &value).await;
    assert_eq!(set.status, StatusCode::OK, "{set:?}");
    let missing = add_user(&api).await;
    assert_eq!(
        missing.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{missing:?}"
    );
    let detail = missing.body["detail"].as_str().unwrap();
    assert!(detail.contains("no secret `TOKEN@science`"), "{detail}");

    let planned = send(
        &api,
        LEAD_KEY,
        Method::PUT,
        &format!("{path}?dry_run=true"),
        &value,
    )
    .await;
    assert_eq!(planned.status, StatusCode::OK, "{planned:?}");
    assert_eq!(
        add_user(&api).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let set = send(&api, LEAD_KEY, Method::PUT, path, &value).await;
    assert_eq!(set.status, StatusCode::OK, "{set:?}");
    assert_eq!(set.body["secret"]["name"], "TOKEN@science");
    let made = add_user(&api).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");

    let listed = send(&api, LEAD_KEY, Method::GET, "/secrets", &json!({})).await;
    let items = listed.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{listed:?}");
    assert_eq!(items[0]["last_characters"], END);
    let users = json!(["servers.docs@science.auth.token"]);
    assert_eq!(items[0]["used_by"], users);
    let others = send(&api, STRANGER_KEY, Method::GET, "/secrets", &json!({})).await;
    assert_eq!(others.body["items"], json!([]));
    let all = api.get("/secrets").await;
    assert_eq!(all.body["items"].as_array().unwrap().len(), 2, "{all:?}");

    let refused = send(&api, LEAD_KEY, Method::DELETE, path, &json!({})).await;
    assert_eq!(refused.body["type"], "in-use", "{refused:?}");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("servers.docs@science.auth.token"),
        "{detail}"
    );
    let gone = send(
        &api,
        LEAD_KEY,
        Method::DELETE,
        "/servers/docs@science",
        &json!({}),
    )
    .await;
    assert_eq!(gone.status, StatusCode::OK, "{gone:?}");
    let removed = send(&api, LEAD_KEY, Method::DELETE, path, &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    let again = send(&api, LEAD_KEY, Method::DELETE, path, &json!({})).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND, "{again:?}");
    for seen in [planned, set, made, listed, all, refused, removed] {
        assert!(!seen.body.to_string().contains("planted"), "{seen:?}");
    }
    is_nowhere(&api).await;
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_admin_has_the_secrets_of_its_workspace_alone() {
    let api = TestApi::start(AGENTS).await;
    let value = json!({ "value": PLANTED });
    let agent = "/secrets/A%40agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";
    for path in ["/secrets/A", "/secrets/A%40arts", agent] {
        let refused = send(&api, LEAD_KEY, Method::PUT, path, &value).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        let set = api.send(Method::PUT, path, &value).await;
        assert_eq!(set.status, StatusCode::OK, "{set:?}");
        let hidden = send(&api, LEAD_KEY, Method::DELETE, path, &json!({})).await;
        assert_eq!(hidden.status, StatusCode::NOT_FOUND, "{hidden:?}");
    }
    let listed = send(&api, LEAD_KEY, Method::GET, "/secrets", &json!({})).await;
    assert_eq!(listed.body["items"], json!([]));
    let listed = send(&api, STRANGER_KEY, Method::GET, "/secrets", &json!({})).await;
    assert_eq!(listed.body["items"][0]["name"], "A@arts");
    api.stop().await;
}

/// No answer has what was sent, however wrong it is.
#[tokio::test]
async fn a_value_that_cannot_be_is_refused_without_it() {
    let api = TestApi::start(AGENTS).await;
    let long = format!("planted{}", "a".repeat((64 << 10) - 6));
    for (path, body) in [
        ("/secrets/A", json!("planted")),
        ("/secrets/A", json!({ "value": 1, "planted": 2 })),
        (
            "/secrets/A",
            json!({ "value": "planted", "more": "planted" }),
        ),
        ("/secrets/A", json!({ "value": ["planted"] })),
        ("/secrets/A", json!({ "value": "" })),
        ("/secrets/A", json!({ "value": "planted\0" })),
        ("/secrets/A", json!({ "value": long })),
        ("/secrets/A%20B", json!({ "value": "planted" })),
        ("/secrets/A%40b%40c", json!({ "value": "planted" })),
    ] {
        let refused = api.send(Method::PUT, path, &body).await;
        assert!(refused.status.is_client_error(), "{path}: {refused:?}");
        assert!(
            !refused.body.to_string().contains("planted"),
            "{path}: {refused:?}"
        );
    }
    let longest = json!({ "value": &long[1..] });
    let set = api.send(Method::PUT, "/secrets/A", &longest).await;
    assert_eq!(set.status, StatusCode::OK, "{set:?}");
    let short = json!({ "value": "1234567890123456789" });
    api.send(Method::PUT, "/secrets/B", &short).await;
    let listed = api.get("/secrets").await;
    assert_eq!(listed.body["items"][0]["last_characters"], "aaaa");
    assert_eq!(listed.body["items"][1]["last_characters"], Value::Null);
    api.stop().await;
}
