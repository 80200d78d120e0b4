//! Views: a profile with changes for one conversation, with a route of its own until it ends.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    governing::VIEWS,
    harness::{ADMIN_KEY, AGENT_KEY, Answer, TestApi, answer},
    roles::AUDITOR_KEY,
};

/// Three servers, a profile of one of them with a name of its own, and who may use nothing else.
const SERVERS: &str = "[servers.docs]\ntransport = \"builtin\"\ntools.allow = [\"echo\", \"current_time\"]\n\
     [servers.mail]\ntransport = \"builtin\"\ntools.allow = [\"echo\", \"uuid\"]\n\
     [profiles.reading]\ntools = [\"docs/*\"]\nresources = []\nprompts = []\n\
     [profiles.reading.rename]\nmcp_docs_echo = \"say\"\n\
     [agents.limited]\nprofiles = [\"reading\"]\nkeys = [\"tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu\"]\n\
     [agents.auditor]\nrole = \"auditor\"\nkeys = [\"tb_Zc4mT8xQw2vKp6RnY9bLs7HdF3gJ5aEu\"]\n";
const LIMITED_KEY: &str = "tb_Hd5tM9pXc2vQ7rKz4WnB8sLy3GfJ6aEu";

async fn send(api: &TestApi, key: &str, method: Method, path: &str, body: &Value) -> Answer {
    answer(api.request(method, path).bearer_auth(key).json(body)).await
}

/// Makes a view as the agent of `key`, and says its path and its id.
async fn create(api: &TestApi, key: &str, body: &Value) -> (String, String) {
    let made = send(api, key, Method::POST, "/views", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let view = &made.body["view"];
    let text = |key: &str| view[key].as_str().unwrap().to_owned();
    (text("path"), text("id"))
}

/// What a client hears that sends a request to the route at `path`, and its status.
async fn rpc(api: &TestApi, key: &str, path: &str, (method, params): (&str, Value)) -> Answer {
    let request = api.request_at(Method::POST, path).bearer_auth(key);
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = request.header("accept", "application/json, text/event-stream");
    answer(request.json(&message)).await
}

/// The names of the tools on the route at `path`.
async fn tools(api: &TestApi, key: &str, path: &str) -> Vec<String> {
    let listed = rpc(api, key, path, ("tools/list", json!({}))).await;
    let tools = listed.body["result"]["tools"].as_array();
    let tools = tools.unwrap_or_else(|| panic!("{listed:?}")).iter();
    tools
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

async fn call(api: &TestApi, key: &str, path: &str, name: &str) -> Value {
    let params = json!({ "name": name, "arguments": { "text": "hello" } });
    rpc(api, key, path, ("tools/call", params)).await.body
}

#[tokio::test]
async fn a_view_is_a_profile_with_changes_until_it_ends() {
    let api = TestApi::start(SERVERS).await;
    api.items("/tools?q=mcp_mail").await;
    let body = json!({ "profile": "reading", "servers": ["mail"], "disabled_tools": ["docs/current_time", "mcp_mail_uuid"] });
    let (path, id) = create(&api, AGENT_KEY, &body).await;
    assert_eq!(
        tools(&api, AGENT_KEY, &path).await,
        ["mcp_mail_echo", "say"]
    );
    for name in ["say", "mcp_mail_echo"] {
        let called = call(&api, AGENT_KEY, &path, name).await;
        assert_eq!(
            called["result"]["structuredContent"]["text"], "hello",
            "{called}"
        );
    }
    for name in ["mcp_docs_current_time", "mcp_mail_uuid", "mcp_own_echo"] {
        let called = call(&api, AGENT_KEY, &path, name).await;
        assert_eq!(
            called["error"]["data"]["code"], "TOOL_NOT_FOUND",
            "{called}"
        );
    }
    // Nobody else has it, and nobody hears whether it is there.
    let unknown = "/mcp/views/view_0190c42f-7e1c-7abc-8def-0123456789ab";
    for (key, path) in [
        (ADMIN_KEY, &*path),
        (LIMITED_KEY, &path),
        (AGENT_KEY, unknown),
    ] {
        let heard = rpc(&api, key, path, ("tools/list", json!({}))).await;
        assert_eq!(heard.status, StatusCode::NOT_FOUND, "{heard:?}");
    }
    let ended = send(
        &api,
        AGENT_KEY,
        Method::DELETE,
        &format!("/views/{id}"),
        &json!({}),
    )
    .await;
    assert_eq!(ended.status, StatusCode::OK, "{ended:?}");
    let heard = rpc(&api, AGENT_KEY, &path, ("tools/list", json!({}))).await;
    assert_eq!(heard.status, StatusCode::NOT_FOUND, "{heard:?}");
    let again = send(
        &api,
        AGENT_KEY,
        Method::DELETE,
        &format!("/views/{id}"),
        &json!({}),
    )
    .await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    api.stop().await;
}

#[tokio::test]
async fn views_are_seen_by_their_agent_and_by_who_sees_all() {
    let api = TestApi::start(SERVERS).await;
    let (_, own) = create(&api, AGENT_KEY, &json!({ "profile": "reading" })).await;
    let (_, other) = create(&api, ADMIN_KEY, &json!({})).await;
    let for_agent = json!({ "agent": "limited", "profile": "reading" });
    let (path, made) = create(&api, ADMIN_KEY, &for_agent).await;
    for (key, expect) in [
        (AGENT_KEY, vec![&own]),
        (LIMITED_KEY, vec![&made]),
        (AUDITOR_KEY, vec![&own, &other, &made]),
        (ADMIN_KEY, vec![&own, &other, &made]),
    ] {
        let listed = send(&api, key, Method::GET, "/views", &json!({})).await;
        let ids = listed.body["items"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|view| view["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expect, "{key}");
    }
    assert_eq!(
        tools(&api, LIMITED_KEY, &path).await,
        ["mcp_docs_current_time", "say"]
    );
    let at = format!("/views/{own}");
    for (key, expect) in [
        (LIMITED_KEY, StatusCode::NOT_FOUND),
        (AUDITOR_KEY, StatusCode::FORBIDDEN),
        (ADMIN_KEY, StatusCode::OK),
    ] {
        let ended = send(&api, key, Method::DELETE, &at, &json!({})).await;
        assert_eq!(ended.status, expect, "{ended:?}");
    }
    let foreign = send(&api, AGENT_KEY, Method::POST, "/views", &for_agent).await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{foreign:?}");
    api.stop().await;
}

#[tokio::test]
async fn views_that_cannot_be_are_refused() {
    let api = TestApi::start(SERVERS).await;
    let (unusable, forbidden) = (StatusCode::UNPROCESSABLE_ENTITY, StatusCode::FORBIDDEN);
    for (key, body, status, why) in [
        (
            AGENT_KEY,
            json!({ "profile": "none" }),
            unusable,
            "no profile `none`",
        ),
        (
            AGENT_KEY,
            json!({ "servers": ["none"] }),
            unusable,
            "no server `none`",
        ),
        (
            AGENT_KEY,
            json!({ "servers": [""] }),
            unusable,
            "no server ``",
        ),
        (
            AGENT_KEY,
            json!({ "disabled_tools": ["a[" ] }),
            unusable,
            "`a[` is no glob",
        ),
        (
            AGENT_KEY,
            json!({ "tool_choice": 1 }),
            unusable,
            "`tool_choice`",
        ),
        (AGENT_KEY, json!({ "ttl": "soon" }), unusable, "`ttl`"),
        (AGENT_KEY, json!({ "ttl": "0s" }), unusable, "views.ttl_max"),
        (
            AGENT_KEY,
            json!({ "ttl": "25h" }),
            unusable,
            "views.ttl_max",
        ),
        (
            AGENT_KEY,
            json!({ "color": "red" }),
            StatusCode::BAD_REQUEST,
            "color",
        ),
        (LIMITED_KEY, json!({}), forbidden, "`profile` must be"),
        (
            LIMITED_KEY,
            json!({ "profile": "reading", "servers": ["mail"] }),
            forbidden,
            "`servers`",
        ),
    ] {
        let refused = send(&api, key, Method::POST, "/views", &body).await;
        assert_eq!(refused.status, status, "{body} {refused:?}");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{detail}");
    }
    let listed = send(&api, ADMIN_KEY, Method::GET, "/views", &json!({})).await;
    assert_eq!(listed.body["items"], json!([]));
    api.stop().await;
}

#[tokio::test]
async fn a_view_of_another_version_is_not_changed() {
    let api = TestApi::start(SERVERS).await;
    api.items("/tools?q=mcp_docs").await;
    let (path, id) = create(&api, AGENT_KEY, &json!({ "profile": "reading" })).await;
    let at = format!("/views/{id}");
    let first = send(&api, AGENT_KEY, Method::GET, &at, &json!({}))
        .await
        .etag
        .unwrap();
    let patch = async |etag: &str, body: Value| {
        let request = api.request(Method::PATCH, &at).bearer_auth(AGENT_KEY);
        answer(request.header("if-match", etag).json(&body)).await
    };
    let changed = patch(&first, json!({ "tool_choice": { "name": "say" } })).await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    assert_eq!(tools(&api, AGENT_KEY, &path).await, ["say"]);
    let late = patch(&first, json!({ "tool_choice": "auto" })).await;
    assert_eq!(late.status, StatusCode::PRECONDITION_FAILED, "{late:?}");
    let second = changed.etag.unwrap();
    assert_eq!(late.etag.as_ref(), Some(&second));
    let reset = patch(&second, json!({ "tool_choice": null })).await;
    assert_eq!(reset.body["view"]["tool_choice"], "auto", "{reset:?}");
    assert_eq!(tools(&api, AGENT_KEY, &path).await.len(), 2);
    let moved = patch("*", json!({ "profile": null })).await;
    assert_eq!(moved.status, StatusCode::UNPROCESSABLE_ENTITY, "{moved:?}");
    api.stop().await;
}

#[test]
fn the_number_of_views_is_limited() {
    run(async {
        let api = TestApi::start("[views]\nper_agent_max = 2\n").await;
        let make = async |key: &str| send(&api, key, Method::POST, "/views", &json!({})).await;
        let first = make(AGENT_KEY).await;
        assert_eq!(first.status, StatusCode::CREATED);
        assert_eq!(make(AGENT_KEY).await.status, StatusCode::CREATED);
        let refused = make(AGENT_KEY).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
        assert_eq!(refused.body["type"], "too-many-views");
        // Another agent has as many, and who ended one has room.
        assert_eq!(make(ADMIN_KEY).await.status, StatusCode::CREATED);
        let at = format!("/views/{}", first.body["view"]["id"].as_str().unwrap());
        send(&api, AGENT_KEY, Method::DELETE, &at, &json!({})).await;
        assert_eq!(make(AGENT_KEY).await.status, StatusCode::CREATED);
        api.stop().await;
    });
}

#[test]
fn the_size_of_views_is_limited() {
    run(async {
        let api = TestApi::start("[views]\nsize_max = \"256B\"\n").await;
        let empty = json!({ "servers": [], "disabled_tools": [""], "tool_choice": "auto" });
        let room = 256 - empty.to_string().len();
        for (length, expect) in [
            (room - 1, StatusCode::CREATED),
            (room, StatusCode::CREATED),
            (room + 1, StatusCode::UNPROCESSABLE_ENTITY),
        ] {
            let body = json!({ "disabled_tools": ["x".repeat(length)] });
            let made = send(&api, AGENT_KEY, Method::POST, "/views", &body).await;
            assert_eq!(made.status, expect, "{length} {made:?}");
        }
        api.stop().await;
    });
}

#[test]
fn views_live_as_long_as_they_may() {
    run(async {
        let api = TestApi::start("[views]\nttl = \"2m\"\nttl_max = \"10m\"\n").await;
        for (ttl, expect) in [
            (Value::Null, Some(120_000)),
            (json!("9m 59s"), Some(599_000)),
            (json!("10m"), Some(600_000)),
            (json!("10m 1ms"), None),
        ] {
            let made = send(
                &api,
                AGENT_KEY,
                Method::POST,
                "/views",
                &json!({ "ttl": ttl }),
            )
            .await;
            let time = |key: &str| -> Option<jiff::Timestamp> {
                made.body["view"][key].as_str()?.parse().ok()
            };
            let lives = time("expires").zip(time("created"));
            let lives = lives.map(|(end, start)| end.duration_since(start).as_millis());
            assert_eq!(lives, expect, "{ttl} {made:?}");
        }
        api.stop().await;
    });
}

/// A view that expires is over at once, has its event, and its session is gone.
#[tokio::test]
async fn a_view_expires() {
    let api = TestApi::start(SERVERS).await;
    let body = json!({ "profile": "reading", "ttl": "700ms" });
    let (path, id) = create(&api, AGENT_KEY, &body).await;
    assert_eq!(
        rpc(&api, AGENT_KEY, &path, ("tools/list", json!({})))
            .await
            .status,
        StatusCode::OK
    );
    tokio::time::sleep(std::time::Duration::from_millis(800)).await;
    let heard = rpc(&api, AGENT_KEY, &path, ("tools/list", json!({}))).await;
    assert_eq!(heard.status, StatusCode::NOT_FOUND, "{heard:?}");
    let shown = send(
        &api,
        AGENT_KEY,
        Method::GET,
        &format!("/views/{id}"),
        &json!({}),
    )
    .await;
    assert_eq!(shown.status, StatusCode::NOT_FOUND, "{shown:?}");
    api.stop().await;
}

/// The base of a bud and what a conversation overrides: servers join, disabled tools go, the choice of the conversation
/// counts.
#[tokio::test]
async fn a_conversation_overrides_its_base() {
    let api = TestApi::start(SERVERS).await;
    api.items("/tools?q=mcp_mail").await;
    let (time, say, echo, uuid) = (
        "mcp_docs_current_time",
        "say",
        "mcp_mail_echo",
        "mcp_mail_uuid",
    );
    let function = json!({ "type": "function", "function": { "name": "mcp_mail_echo" } });
    for (body, expect) in [
        (json!({}), vec![]),
        (json!({ "profile": "reading" }), vec![time, say]),
        (json!({ "servers": ["mail"] }), vec![echo, uuid]),
        (json!({ "servers": ["mail", "mail"] }), vec![echo, uuid]),
        (
            json!({ "profile": "reading", "servers": ["mail"] }),
            vec![time, echo, uuid, say],
        ),
        (
            json!({ "servers": ["mail"], "disabled_tools": ["mail/echo"] }),
            vec![uuid],
        ),
        (
            json!({ "servers": ["mail"], "disabled_tools": ["docs/echo", "none"] }),
            vec![echo, uuid],
        ),
        (
            json!({ "profile": "reading", "disabled_tools": ["say"] }),
            vec![time],
        ),
        (
            json!({ "profile": "reading", "disabled_tools": ["mcp_docs_echo"] }),
            vec![time],
        ),
        (
            json!({ "servers": ["mail"], "disabled_tools": ["mail/*"] }),
            vec![],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": "auto" }),
            vec![echo, uuid],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": "required" }),
            vec![echo, uuid],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": "none" }),
            vec![],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": { "name": "mail/uuid" } }),
            vec![uuid],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": function }),
            vec![echo],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": function, "disabled_tools": ["mail/echo"] }),
            vec![],
        ),
        (
            json!({ "servers": ["mail"], "tool_choice": { "name": "gone" } }),
            vec![],
        ),
    ] {
        let (path, id) = create(&api, AGENT_KEY, &body).await;
        assert_eq!(tools(&api, AGENT_KEY, &path).await, expect, "{body}");
        let shown = send(
            &api,
            AGENT_KEY,
            Method::GET,
            &format!("/views/{id}"),
            &json!({}),
        )
        .await;
        let choice = body.get("tool_choice").cloned().unwrap_or(json!("auto"));
        assert_eq!(shown.body["tool_choice"], choice, "{body}");
        if body["tool_choice"] == "none" {
            let called = call(&api, AGENT_KEY, &path, echo).await;
            assert_eq!(
                called["error"]["data"]["code"], "TOOL_NOT_FOUND",
                "{called}"
            );
        }
    }
    api.stop().await;
}

/// What the profile of a view does not allow, no added server brings in, and the record says the view.
#[tokio::test]
async fn the_policy_of_the_profile_holds() {
    let policy = "[profiles.reading.policy]\nmode = \"allowlist\"\ntools = [\"docs/echo\"]\n";
    let api = TestApi::start(&format!("{SERVERS}{policy}")).await;
    api.items("/tools?q=mcp_mail").await;
    let body = json!({ "profile": "reading", "servers": ["mail"] });
    let widened = send(&api, AGENT_KEY, Method::POST, "/views", &body).await;
    assert_eq!(widened.status, StatusCode::FORBIDDEN, "{widened:?}");
    let (path, id) = create(&api, AGENT_KEY, &json!({ "profile": "reading" })).await;
    assert_eq!(tools(&api, AGENT_KEY, &path).await, ["say"]);
    let called = call(&api, AGENT_KEY, &path, "mcp_docs_current_time").await;
    assert_eq!(called["error"]["data"]["code"], "UNAUTHORIZED", "{called}");
    call(&api, AGENT_KEY, &path, "say").await;
    let records = api.items("/audit?agent=reader").await;
    assert!(
        records.iter().all(|record| record["view"] == *id),
        "{records:?}"
    );
    api.stop().await;
}

/// A client that is connected hears that its tools changed, and is shown out when the view ends.
#[tokio::test]
async fn connected_clients_follow_the_view() {
    let api = TestApi::start(SERVERS).await;
    api.items("/tools?q=mcp_docs").await;
    let (path, id) = create(&api, AGENT_KEY, &json!({ "profile": "reading" })).await;
    let request = |method| {
        let request = api.request_at(method, &path).bearer_auth(AGENT_KEY);
        request.header("accept", "application/json, text/event-stream")
    };
    let opening = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let opened = request(Method::POST).json(&opening).send().await.unwrap();
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let told = request(Method::POST)
        .header("mcp-session-id", &session)
        .json(&initialized);
    assert_eq!(told.send().await.unwrap().status(), StatusCode::ACCEPTED);
    let stream = request(Method::GET).header("mcp-session-id", &session);
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let at = format!("/views/{id}");
    send(
        &api,
        AGENT_KEY,
        Method::PATCH,
        &at,
        &json!({ "tool_choice": "none" }),
    )
    .await;
    let patience = std::time::Duration::from_secs(10);
    let mut heard = String::new();
    while !heard.contains("notifications/tools/list_changed") {
        let chunk = tokio::time::timeout(patience, stream.chunk())
            .await
            .unwrap();
        heard.push_str(&String::from_utf8_lossy(&chunk.unwrap().unwrap()));
    }
    send(&api, AGENT_KEY, Method::DELETE, &at, &json!({})).await;
    let rest = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(patience, rest).await.unwrap();
    api.stop().await;
}

/// Views are there after a restart, and not while their profile is gone.
#[tokio::test]
async fn views_survive_a_restart() {
    let api = TestApi::start(SERVERS).await;
    let (path, _) = create(&api, AGENT_KEY, &json!({ "profile": "reading" })).await;
    let api = api.restart().await;
    api.items("/tools?q=mcp_docs").await;
    assert_eq!(tools(&api, AGENT_KEY, &path).await.len(), 2);
    let without = api.file().replace("[profiles.reading", "[profiles.writing");
    api.write_file(&without.replace("[\"reading\"]", "[\"writing\"]"));
    let api = api.restart().await;
    let heard = rpc(&api, AGENT_KEY, &path, ("tools/list", json!({}))).await;
    assert_eq!(heard.status, StatusCode::NOT_FOUND, "{heard:?}");
    api.stop().await;
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Runtime::new().unwrap().block_on(test);
}

/// The keys of views, each with its test.
const KEYS: &[(&str, fn())] = &[
    ("views.per_agent_max", the_number_of_views_is_limited),
    ("views.size_max", the_size_of_views_is_limited),
    ("views.ttl", views_live_as_long_as_they_may),
    ("views.ttl_max", views_live_as_long_as_they_may),
];

#[test]
fn every_key_of_views_has_a_test() {
    let keys: Vec<_> = KEYS.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, VIEWS);
}
