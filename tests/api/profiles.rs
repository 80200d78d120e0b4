//! Profiles of the store beside those of the file.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{ADMIN_KEY, AGENT_KEY, TestApi, answer};

const OF_FILE: &str =
    "[profiles.fixed]\ntools = [\"own/*\"]\nbudget = { limit = \"3\", window = \"day\" }\n";

#[tokio::test]
async fn a_profile_is_made_changed_and_removed() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "reading", "config": { "tools": ["own/*"] } });
    let planned = api.send(Method::POST, "/profiles?dry_run=true", &new).await;
    assert_eq!(planned.status, StatusCode::OK, "{planned:?}");
    let added = json!(["profiles added: reading"]);
    assert_eq!(planned.body["plan"]["others"], added);
    let missing = api.get("/profiles/reading").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    let made = api.send(Method::POST, "/profiles", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let again = api.send(Method::POST, "/profiles", &new).await;
    assert_eq!(again.body["type"], "already-exists", "{again:?}");
    // It counts after a restart as well.
    let api = api.restart().await;
    let shown = api.get("/profiles/reading").await;
    assert_eq!(shown.etag, made.etag);
    assert_eq!(shown.body["source"]["type"], "store");
    let patch = json!({ "tools": null, "tags": ["a"] });
    let patched = api.send(Method::PATCH, "/profiles/reading", &patch).await;
    let config = &patched.body["profile"]["config"];
    assert_eq!(*config, json!({ "tags": ["a"] }), "{patched:?}");
    let stale = api.request(Method::PUT, "/profiles/reading");
    let stale = stale.bearer_auth(ADMIN_KEY);
    let stale = stale.header("if-match", shown.etag.unwrap());
    let stale = answer(stale.json(&json!({}))).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let nothing = json!({});
    let removed = api
        .send(Method::DELETE, "/profiles/reading", &nothing)
        .await;
    assert_eq!(removed.status, StatusCode::OK);
    assert_eq!(api.get("/profiles").await.body["items"], json!([]));
    api.stop().await;
}

#[tokio::test]
async fn profiles_of_files_are_shown_and_not_changed() {
    let api = TestApi::start(OF_FILE).await;
    let fixed = api.get("/profiles/fixed").await;
    assert_eq!(fixed.body["source"]["type"], "file");
    assert_eq!(fixed.body["config"]["tools"], json!(["own/*"]));
    assert_eq!(fixed.etag, None);
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let refused = api.send(method, "/profiles/fixed", &json!({})).await;
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert_eq!(refused.body["type"], "in-config-file");
    }
    api.stop().await;
}

#[tokio::test]
async fn wrong_profiles_and_other_roles_are_refused() {
    let api = TestApi::start("").await;
    for (new, expect) in [
        (json!({ "name": "a b", "config": {} }), 422),
        (json!({ "name": "a", "config": { "tolls": [] } }), 422),
        (json!({ "name": "a", "config": { "tools": "[" } }), 422),
        (json!({ "name": "a" }), 400),
    ] {
        let refused = api.send(Method::POST, "/profiles", &new).await;
        assert_eq!(refused.status.as_u16(), expect, "{new}: {refused:?}");
    }
    let new = json!({ "name": "a", "config": {} });
    let request = api.request(Method::POST, "/profiles").json(&new);
    let forbidden = answer(request.bearer_auth(AGENT_KEY)).await;
    assert_eq!(forbidden.status, StatusCode::FORBIDDEN);
    assert_eq!(api.get("/profiles").await.body["items"], json!([]));
    api.stop().await;
}
