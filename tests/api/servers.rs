//! Servers of the store beside those of the file.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{AGENT_KEY, TestApi, answer};

#[tokio::test]
async fn a_server_is_made_changed_and_removed() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "box", "config": { "transport": "builtin", "price": "0.02" } });
    let planned = api.send(Method::POST, "/servers?dry_run=true", &new).await;
    assert_eq!(planned.status, StatusCode::OK);
    assert_eq!(planned.body["plan"]["servers_added"], json!(["box"]));
    assert_eq!(api.get("/servers/box").await.status, StatusCode::NOT_FOUND);
    let made = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let again = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert_eq!(again.body["type"], "already-exists");
    // It counts at once, and after a restart.
    let names = |body: &serde_json::Value| -> Vec<String> {
        let items = body["items"].as_array().unwrap().iter();
        items
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&api.get("/servers").await.body), ["box", "own"]);
    let api = api.restart().await;
    let shown = api.get("/servers/box").await;
    assert_eq!(shown.etag, made.etag);
    assert_eq!(
        shown.body["config"],
        json!({ "transport": "builtin", "price": "0.02" })
    );
    let id = shown.body["id"].as_str().unwrap().to_owned();
    let patch = json!({ "price": null, "tags": ["a"] });
    let path = format!("/servers/{id}");
    let patched = api.send(Method::PATCH, &path, &patch).await;
    assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    let config = &patched.body["server"]["config"];
    assert_eq!(*config, json!({ "transport": "builtin", "tags": ["a"] }));
    let removed = api
        .send(
            Method::DELETE,
            id.strip_prefix("srv_")
                .map(|id| format!("/servers/{id}"))
                .as_deref()
                .unwrap(),
            &json!({}),
        )
        .await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    assert_eq!(names(&api.get("/servers").await.body), ["own"]);
    api.stop().await;
}

#[tokio::test]
async fn servers_of_files_are_shown_and_not_changed() {
    let api = TestApi::start("").await;
    let own = api.get("/servers/own").await;
    assert_eq!(own.body["source"]["type"], "file");
    assert_eq!(own.etag, None);
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let refused = api
            .send(method, "/servers/own", &json!({ "enabled": false }))
            .await;
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert_eq!(refused.body["type"], "in-config-file");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("tollbridge.toml line 8"), "{detail}");
    }
    api.stop().await;
}

/// Of writers that read the same version, one succeeds.
#[tokio::test]
async fn concurrent_writers_lose_nothing() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "box", "config": { "transport": "builtin", "tags": [] } });
    api.send(Method::POST, "/servers", &new).await;
    let add = async |number: usize| loop {
        let shown = api.get("/servers/box").await;
        let mut tags = shown.body["config"]["tags"].as_array().unwrap().clone();
        tags.push(json!(format!("t{number}")));
        let request = api
            .request(Method::PATCH, "/servers/box")
            .bearer_auth(crate::harness::ADMIN_KEY);
        let request = request.header("if-match", shown.etag.unwrap());
        match answer(request.json(&json!({ "tags": tags }))).await.status {
            StatusCode::OK => return,
            StatusCode::PRECONDITION_FAILED => {}
            other => panic!("{other}"),
        }
    };
    futures_util::future::join_all((0..50).map(add)).await;
    let tags = api.get("/servers/box").await.body["config"]["tags"].clone();
    assert_eq!(tags.as_array().unwrap().len(), 50);
    api.stop().await;
}

#[tokio::test]
async fn secrets_are_not_shown_and_stay_when_a_shown_config_is_written_back() {
    let api = TestApi::start("").await;
    let config = json!({
        "url": "http://127.0.0.1:9/mcp",
        "auth": { "type": "bearer", "token": "planted-token" },
        "headers": { "X-Api-Key": "planted-header" },
    });
    let made = api
        .send(
            Method::POST,
            "/servers",
            &json!({ "name": "docs", "config": config }),
        )
        .await;
    let shown = api.get("/servers/docs").await.body;
    for body in [&made.body, &shown] {
        assert!(!body.to_string().contains("planted"), "{body}");
    }
    assert_eq!(
        shown["config"]["auth"],
        json!({ "type": "bearer", "configured": true })
    );
    let mut config = shown["config"].clone();
    config["timeout"] = json!("5s");
    let written = api.send(Method::PUT, "/servers/docs", &config).await;
    assert_eq!(written.status, StatusCode::OK, "{written:?}");
    // What does not change does not restart.
    assert_eq!(
        written.body["plan"]["servers_changed"][0]["settings"],
        json!(["timeout"])
    );
    // So it is where a part of it is sent.
    for (auth, settings) in [
        (json!({ "type": "bearer", "configured": true }), json!([])),
        (json!({ "token": "other" }), json!(["auth"])),
        (
            json!({ "type": "header", "name": "x-key", "value": "k" }),
            json!(["auth"]),
        ),
    ] {
        let patched = api
            .send(Method::PATCH, "/servers/docs", &json!({ "auth": auth }))
            .await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
        let changed = &patched.body["plan"]["servers_changed"];
        let told = changed
            .get(0)
            .map_or_else(|| json!([]), |it| it["settings"].clone());
        assert_eq!(told, settings, "{auth}");
    }
    api.stop().await;
}

#[tokio::test]
async fn wrong_input_is_refused_and_changes_nothing() {
    let api = TestApi::start("").await;
    let rows = [
        (
            json!({ "name": "a/b", "config": {} }),
            422,
            "not allowed in a server name",
        ),
        (
            json!({ "name": "box", "config": { "transprt": "builtin" } }),
            422,
            "unknown key",
        ),
        (
            json!({ "name": "box", "config": { "command": "x", "env": { "A": "${PLANTED}" } } }),
            422,
            "variable of the environment",
        ),
        (
            json!({ "name": "box", "config": { "command": "x", "env": { "A": "${file:/etc/passwd}" } } }),
            422,
            "variable of the environment",
        ),
        (
            json!({ "name": "box", "config": null }),
            422,
            "must be an object",
        ),
        (json!(["box", {}]), 400, "not an array"),
        (json!({ "name": "box" }), 400, "missing field"),
        (
            json!({ "name": "box", "config": {}, "more": 1 }),
            400,
            "unknown field",
        ),
        (
            json!({ "name": "own", "config": { "transport": "builtin" } }),
            409,
            "already exists",
        ),
    ];
    for (body, status, detail) in rows {
        let refused = api.send(Method::POST, "/servers", &body).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {refused:?}");
        let said = refused.body["detail"].as_str().unwrap();
        assert!(said.contains(detail), "{said}");
        assert!(!said.contains("of-environment"), "{said}");
    }
    assert_eq!(
        api.get("/servers").await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    api.stop().await;
}

/// Nobody changes anything without a sign-in, wherever they come from and whatever clients may.
#[tokio::test]
async fn who_has_not_signed_in_may_do_nothing() {
    let api = TestApi::start("[governance]\nauth = \"anonymous\"\n").await;
    let new = json!({ "name": "box", "config": { "command": "/bin/true" } });
    let create = || api.request(Method::POST, "/servers").json(&new);
    assert_eq!(answer(create()).await.status, StatusCode::UNAUTHORIZED);
    let wrong = create().bearer_auth("no-such-key");
    assert_eq!(answer(wrong).await.status, StatusCode::UNAUTHORIZED);
    let agent = create().bearer_auth(AGENT_KEY);
    assert_eq!(answer(agent).await.status, StatusCode::FORBIDDEN);
    let page = create()
        .bearer_auth(crate::harness::ADMIN_KEY)
        .header("origin", "https://evil.example");
    assert_eq!(answer(page).await.status, StatusCode::FORBIDDEN);
    assert_eq!(
        api.get("/servers").await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    api.stop().await;
}

/// Bodies end at `limits.body`, and strangers' are not read.
#[tokio::test]
async fn bodies_are_bounded() {
    let api = TestApi::start("[limits]\nbody = \"3MiB\"\n").await;
    let body = |bytes: usize| {
        let config = json!({ "transport": "builtin", "tags": ["x".repeat(bytes)] });
        json!({ "name": "box", "config": config })
    };
    // More than the frame of the API takes by itself.
    let below = api
        .send(Method::POST, "/servers?dry_run=true", &body(5 << 19))
        .await;
    assert_ne!(below.status, StatusCode::PAYLOAD_TOO_LARGE, "{below:?}");
    let past = api
        .send(Method::POST, "/servers?dry_run=true", &body(3 << 20))
        .await;
    assert_eq!(past.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(past.body["type"], "too-large");
    let stranger = api.request(Method::POST, "/servers").json(&body(3 << 20));
    assert_eq!(answer(stranger).await.status, StatusCode::UNAUTHORIZED);
    api.stop().await;
}

/// What somebody writes to a file beside a change through the API is not lost, nor taken half.
#[tokio::test]
async fn files_and_entries_change_side_by_side() {
    let api = TestApi::start("").await;
    let whole = api.file();
    let new = |name: &str| json!({ "name": name, "config": { "transport": "builtin" } });
    // An editor that empties the file first.
    api.write_file("");
    let refused = api.send(Method::POST, "/servers", &new("first")).await;
    assert_ne!(refused.status, StatusCode::CREATED, "{refused:?}");
    assert_eq!(api.get("/servers/own").await.status, StatusCode::OK);
    api.write_file(&format!(
        "{whole}\n[servers.more]\ntransport = \"builtin\"\n"
    ));
    let made = api.send(Method::POST, "/servers", &new("second")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    for server in ["own", "more", "second"] {
        assert_eq!(
            api.get(&format!("/servers/{server}")).await.status,
            StatusCode::OK,
            "{server}"
        );
    }
    api.stop().await;
}

/// Of a gateway whose servers are all of the store, the last one may go.
#[tokio::test]
async fn the_last_server_of_the_store_may_be_removed() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "box", "config": { "transport": "builtin" } });
    api.send(Method::POST, "/servers", &new).await;
    let without = api
        .file()
        .replace("[servers.own]\ntransport = \"builtin\"\n", "");
    api.write_file(&without);
    let api = api.restart().await;
    let removed = api.send(Method::DELETE, "/servers/box", &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    assert_eq!(api.get("/servers").await.body["items"], json!([]));
    api.stop().await;
}

/// A server may be called as the operation on all of them is.
#[tokio::test]
async fn a_server_called_test_is_managed_as_others_are() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "test", "config": { "transport": "builtin" } });
    let made = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let shown = api.get("/servers/test").await;
    assert_eq!(shown.body["name"], "test", "{shown:?}");
    let patch = json!({ "priority": 7 });
    let patched = api
        .send(Method::PATCH, "/servers/test?dry_run=true", &patch)
        .await;
    assert_eq!(patched.body["dry_run"], true, "{patched:?}");
    let unsaved = json!({ "config": { "transport": "builtin" } });
    let tried = api.send(Method::POST, "/servers/test", &unsaved).await;
    assert_eq!(tried.body["status"], "connected", "{tried:?}");
    let removed = api.send(Method::DELETE, "/servers/test", &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    api.stop().await;
}
