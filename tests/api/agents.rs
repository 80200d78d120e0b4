//! Agents and their keys over HTTP.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    harness::{ADMIN_KEY, AGENT_KEY, Answer, TestApi, answer},
    roles::{AGENTS, AUDITOR_KEY, LEAD_KEY, STRANGER_KEY},
};

async fn send(api: &TestApi, key: &str, (method, path): (Method, &str), body: Value) -> Answer {
    let request = api.request(method, path).bearer_auth(key);
    answer(request.json(&body)).await
}

async fn add(api: &TestApi, name: &str, settings: Value) {
    let body = json!({ "name": name, "settings": settings });
    let made = api.send(Method::POST, "/agents", &body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
}

async fn key_of(api: &TestApi, agent: &str) -> (String, String) {
    let path = format!("/agents/{agent}/keys");
    let made = api.send(Method::POST, &path, &json!({})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let text = |key: &str| made.body[key].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

/// What the key meets at an operation of everybody.
async fn status_with(api: &TestApi, key: &str) -> StatusCode {
    status_at(api, key, "/me/audit").await
}

async fn status_at(api: &TestApi, key: &str, path: &str) -> StatusCode {
    answer(api.request(Method::GET, path).bearer_auth(key))
        .await
        .status
}

fn audit_text(api: &TestApi) -> String {
    let files = fs::read_dir(api.data_dir().join("audit")).unwrap();
    let texts = files.map(|file| fs::read(file.unwrap().path()).unwrap_or_default());
    texts
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect()
}

#[tokio::test]
async fn an_agent_is_made_changed_and_removed() {
    let api = TestApi::start("").await;
    let settings =
        json!({ "team": "science", "role": "auditor", "terms": { "budget": "2.50/day" } });
    let body = json!({ "name": "bot", "settings": settings });
    let planned = api.send(Method::POST, "/agents?dry_run=true", &body).await;
    assert_eq!(planned.status, StatusCode::OK, "{planned:?}");
    let missing = api.get("/agents/bot").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    add(&api, "bot", settings).await;
    let shown = api.get("/agents/bot").await;
    assert_eq!(shown.body, planned.body["agent"]);
    assert_eq!(shown.body["source"], json!({ "type": "store" }));
    assert_eq!(shown.body["team"], "science");
    assert_eq!(shown.body["role"], "auditor");
    let id = shown.body["id"].as_str().unwrap();
    let bare = id.strip_prefix("agent_").unwrap();
    assert_eq!(api.get(&format!("/agents/{bare}")).await.body, shown.body);

    let (_, key) = key_of(&api, "bot").await;
    assert_eq!(status_at(&api, &key, "/agents").await, StatusCode::OK);
    let patch = json!({ "enabled": false, "team": null });
    let changed = api.send(Method::PATCH, "/agents/bot", &patch).await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    let now = api.get("/agents/bot").await.body;
    assert_eq!(
        (&now["enabled"], &now["team"]),
        (&json!(false), &json!(null))
    );
    assert_eq!(now["terms"], shown.body["terms"], "what is not named stays");
    assert_eq!(
        status_at(&api, &key, "/agents").await,
        StatusCode::FORBIDDEN,
        "its role counts no more, at once"
    );
    api.send(Method::PATCH, "/agents/bot", &json!({ "enabled": true }))
        .await;
    assert_eq!(status_at(&api, &key, "/agents").await, StatusCode::OK);

    let planned = api
        .send(Method::DELETE, "/agents/bot?dry_run=true", &json!({}))
        .await;
    assert_eq!(planned.status, StatusCode::OK);
    assert_eq!(api.get("/agents/bot").await.status, StatusCode::OK);
    let removed = api.send(Method::DELETE, "/agents/bot", &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    assert_eq!(api.get("/agents/bot").await.status, StatusCode::NOT_FOUND);
    assert_eq!(
        status_at(&api, &key, "/agents").await,
        StatusCode::UNAUTHORIZED
    );

    let audit = audit_text(&api);
    for part in [
        "agent_changed",
        "admin from 127.0.0.1",
        "removed",
        "changed: enabled, team",
    ] {
        assert!(audit.contains(part), "{part}: {audit}");
    }
    api.stop().await;
}

#[tokio::test]
async fn agents_are_listed_in_pages_with_where_they_are_written() {
    let api = TestApi::start("").await;
    add(&api, "bot", json!({})).await;
    let first = api.get("/agents?limit=2").await.body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = api
        .get(&format!("/agents?limit=2&cursor={cursor}"))
        .await
        .body;
    let pages = [first["items"].as_array(), rest["items"].as_array()];
    let items: Vec<&Value> = pages.into_iter().flatten().flatten().collect();
    let names: Vec<&str> = items
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["admin", "bot", "reader"]);
    let source = &items[0]["source"];
    assert_eq!(
        (&source["type"], &source["line"]),
        (&json!("file"), &json!(4))
    );
    assert!(
        source["file"]
            .as_str()
            .unwrap()
            .ends_with("tollbridge.toml")
    );
    api.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_the_words_of_the_command_line() {
    let api = TestApi::start("").await;
    add(&api, "bot", json!({})).await;
    let of = |name: &str, settings: Value| json!({ "name": name, "settings": settings });
    for (body, status, detail) in [
        (
            of("bot", json!({})),
            409,
            "an agent named `bot` already exists",
        ),
        (
            of("admin", json!({})),
            409,
            "agent `admin` is already configured in",
        ),
        (
            of(" bot", json!({})),
            422,
            "invalid agent name ` bot`: it must not be empty",
        ),
        (
            of("anonymous", json!({})),
            422,
            "reserved for callers without a key",
        ),
        (
            of("other", json!({ "team": " " })),
            422,
            "the name of a team must not be empty",
        ),
        (
            of("other", json!({ "profiles": ["none"] })),
            422,
            "unknown profile `none`",
        ),
        (of("other", json!({ "nonsense": 1 })), 400, "nonsense"),
        (
            of("other", json!({ "terms": { "budget": "lots" } })),
            400,
            "budget",
        ),
    ] {
        let refused = api.send(Method::POST, "/agents", &body).await;
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        let found = refused.body["detail"].as_str().unwrap();
        assert!(found.contains(detail), "{found}");
    }
    for patch in [
        json!({ "nonsense": 1 }),
        json!(null),
        json!({ "role": "king" }),
    ] {
        let refused = api.send(Method::PATCH, "/agents/bot", &patch).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{refused:?}"
        );
    }
    for method in [Method::PATCH, Method::DELETE] {
        let refused = api.send(method, "/agents/reader", &json!({})).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
        assert_eq!(refused.body["type"], "in-config-file");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(
            detail.contains("tollbridge.toml line 7; change it there"),
            "{detail}"
        );
    }
    api.stop().await;
}

#[tokio::test]
async fn a_key_is_shown_once_and_opens_nothing_once_it_is_revoked() {
    let api = TestApi::start("").await;
    add(&api, "bot", json!({})).await;
    for (expires, detail) in [
        ("0s", "greater than 0"),
        ("soon", "use a duration such as 90d"),
    ] {
        let body = json!({ "expires": expires });
        let refused = api.send(Method::POST, "/agents/bot/keys", &body).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{refused:?}"
        );
        assert!(
            refused.body["detail"].as_str().unwrap().contains(detail),
            "{refused:?}"
        );
    }
    let planned = api
        .send(Method::POST, "/agents/bot/keys?dry_run=true", &json!({}))
        .await;
    assert_eq!(
        (planned.status, &planned.body["key"]),
        (StatusCode::OK, &Value::Null)
    );
    let (id, key) = key_of(&api, "bot").await;
    assert_eq!(status_with(&api, &key).await, StatusCode::OK);
    // Keys of agents of the file may stand in the store, too.
    let (_, second) = key_of(&api, "reader").await;
    assert_eq!(status_with(&api, &second).await, StatusCode::OK);

    let listed = api.get("/agents/bot/keys").await.body;
    let items = listed["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["id"]), (1, &json!(id)));
    assert_eq!(items[0]["state"], "live");
    assert!(key.starts_with(items[0]["prefix"].as_str().unwrap()));
    assert!(!listed.to_string().contains(&key));

    let path = format!("/agents/bot/keys/{id}");
    let elsewhere = format!("/agents/reader/keys/{id}");
    let missing = api.send(Method::DELETE, &elsewhere, &json!({})).await;
    assert_eq!(
        missing.status,
        StatusCode::NOT_FOUND,
        "the key of another agent"
    );
    let planned = api
        .send(Method::DELETE, &format!("{path}?dry_run=true"), &json!({}))
        .await;
    assert_eq!(planned.status, StatusCode::OK);
    assert_eq!(status_with(&api, &key).await, StatusCode::OK);
    for _ in 0..2 {
        let revoked = api.send(Method::DELETE, &path, &json!({})).await;
        assert_eq!(
            (revoked.status, &revoked.body["state"]),
            (StatusCode::OK, &json!("revoked"))
        );
    }
    assert_eq!(status_with(&api, &key).await, StatusCode::UNAUTHORIZED);
    let audit = audit_text(&api);
    assert!(
        audit.contains("key_created") && audit.contains("key_revoked"),
        "{audit}"
    );
    for secret in [&key, &second] {
        assert!(!audit.contains(secret.as_str()));
    }
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_admin_has_the_agents_of_its_workspace_alone() {
    let api = TestApi::start(AGENTS).await;
    add(&api, "other", json!({ "team": "arts" })).await;
    add(&api, "chief", json!({ "team": "science", "role": "admin" })).await;
    let lead = async |method, path: &str, body| send(&api, LEAD_KEY, (method, path), body).await;
    let made = lead(Method::POST, "/agents", json!({ "name": "bot" })).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    assert_eq!(made.body["agent"]["team"], "science");
    let listed = lead(Method::GET, "/agents", json!({})).await.body;
    let items = listed["items"].as_array().unwrap();
    let names: Vec<&str> = items
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["bot", "chief", "lead"]);
    for (method, path) in [
        (Method::GET, "/agents/other"),
        (Method::PATCH, "/agents/other"),
        (Method::DELETE, "/agents/other"),
        (Method::GET, "/agents/other/keys"),
        (Method::POST, "/agents/other/keys"),
        (Method::DELETE, "/agents/other/keys/key_0"),
        (Method::GET, "/agents/admin"),
        (Method::POST, "/agents/admin/keys"),
    ] {
        let hidden = lead(method, path, json!({})).await;
        assert_eq!(hidden.status, StatusCode::NOT_FOUND, "{path}: {hidden:?}");
    }
    // One with a role is out of its hands: a key of it would be that role.
    for (method, path) in [
        (Method::PATCH, "/agents/chief"),
        (Method::DELETE, "/agents/chief"),
        (Method::POST, "/agents/chief/keys"),
    ] {
        let refused = lead(method, path, json!({})).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}: {refused:?}");
    }
    for settings in [
        json!({ "role": "admin" }),
        json!({ "role": "workspace_admin" }),
        json!({ "team": "arts" }),
        json!({ "terms": { "policy": { "mode": "all" } } }),
        json!({ "terms": { "budget": "off" } }),
    ] {
        let body = json!({ "name": "more", "settings": settings });
        for (method, path, body) in [
            (Method::PATCH, "/agents/bot", settings),
            (Method::POST, "/agents", body),
        ] {
            let refused = lead(method, path, body.clone()).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{body}: {refused:?}");
        }
    }
    let kept = lead(Method::PATCH, "/agents/bot", json!({ "team": null })).await;
    assert_eq!(
        kept.status,
        StatusCode::FORBIDDEN,
        "none leaves its workspace"
    );
    let key = lead(Method::POST, "/agents/bot/keys", json!({ "expires": "1h" })).await;
    assert_eq!(key.status, StatusCode::CREATED, "{key:?}");
    let stranger = send(&api, STRANGER_KEY, (Method::GET, "/agents/bot"), json!({})).await;
    assert_eq!(stranger.status, StatusCode::NOT_FOUND);
    let gone = lead(Method::DELETE, "/agents/bot", json!({})).await;
    assert_eq!(gone.status, StatusCode::OK, "{gone:?}");
    let seen = send(&api, AUDITOR_KEY, (Method::GET, "/agents"), json!({})).await;
    assert_eq!(seen.body["items"].as_array().unwrap().len(), 7);
    for key in [ADMIN_KEY, AGENT_KEY, LEAD_KEY] {
        assert!(!seen.body.to_string().contains(key));
    }
    api.stop().await;
}

/// Two who change one agent do not undo each other's changes.
#[tokio::test]
async fn a_change_names_the_version_that_it_is_of() {
    let api = TestApi::start("").await;
    add(&api, "bot", json!({})).await;
    let first = api.get("/agents/bot").await.etag.unwrap();
    let change = async |method, etag: &str, body: Value| {
        let request = api.request(method, "/agents/bot").bearer_auth(ADMIN_KEY);
        answer(request.header("if-match", etag).json(&body)).await
    };
    let made = change(Method::PATCH, &first, json!({ "team": "science" })).await;
    assert_eq!(made.status, StatusCode::OK, "{made:?}");
    let second = made.etag.unwrap();
    assert_ne!(first, second);
    assert_eq!(api.get("/agents/bot").await.etag, Some(second.clone()));
    for method in [Method::PATCH, Method::DELETE] {
        let late = change(method, &first, json!({ "team": "arts" })).await;
        assert_eq!(late.status, StatusCode::PRECONDITION_FAILED, "{late:?}");
        assert_eq!(late.etag.as_deref(), Some(&*second));
    }
    assert_eq!(api.get("/agents/bot").await.body["team"], "science");
    let removed = change(Method::DELETE, &second, json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    assert_eq!(
        api.get("/agents/reader").await.etag,
        None,
        "it is of the file"
    );
    api.stop().await;
}

/// What an admin said of an agent does not go away with it.
#[tokio::test]
async fn a_workspace_admin_removes_no_agent_that_was_narrowed() {
    let api = TestApi::start(AGENTS).await;
    let lead = async |method, path: &str, body| send(&api, LEAD_KEY, (method, path), body).await;
    for (name, narrowed) in [
        ("slow", json!({ "terms": { "rate": "1/1m" } })),
        ("reading", json!({ "profiles": [] })),
    ] {
        let made = lead(Method::POST, "/agents", json!({ "name": name })).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        let path = format!("/agents/{name}");
        let patched = api.send(Method::PATCH, &path, &narrowed).await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
        let refused = lead(Method::DELETE, &path, json!({})).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        let widened = json!({ "terms": { "rate": null }, "profiles": null });
        let patched = api.send(Method::PATCH, &path, &widened).await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
        let removed = lead(Method::DELETE, &path, json!({})).await;
        assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    }
    api.stop().await;
}

/// Clients of a gateway that asks for no keys have none; who manages it needs one.
#[tokio::test]
async fn where_clients_need_no_keys_those_with_a_role_have_some() {
    let api = TestApi::start("[governance]\nauth = \"anonymous\"\n").await;
    add(&api, "reader-of-all", json!({ "role": "auditor" })).await;
    add(&api, "bot", json!({})).await;
    let (_, key) = key_of(&api, "reader-of-all").await;
    assert_eq!(status_at(&api, &key, "/agents").await, StatusCode::OK);
    let refused = api.send(Method::POST, "/agents/bot/keys", &json!({})).await;
    assert_eq!(
        refused.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{refused:?}"
    );
    api.stop().await;
}
