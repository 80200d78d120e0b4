//! What the audit says of changes: who made them, from where, and what they changed.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::TestApi;

/// The events in the log, oldest first.
fn events(api: &TestApi) -> Vec<Value> {
    let files = fs::read_dir(api.data_dir().join("audit")).unwrap();
    let texts = files.map(|file| fs::read(file.unwrap().path()).unwrap_or_default());
    let text: String = texts
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect();
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines = lines.filter_map(Result::ok);
    lines.filter(|line| line["kind"] == "event").collect()
}

/// The last event of `subject`: its name, who made it, and its changes.
fn last_change(api: &TestApi, subject: &str) -> (Value, Value) {
    let events = events(api);
    let mut of_subject = events.into_iter().rev();
    let found = of_subject.find(|event| event["subject"] == subject);
    let found = found.unwrap_or_else(|| panic!("no event of {subject}"));
    assert_eq!(found["actor"], "admin from 127.0.0.1", "{found}");
    (found["event"].clone(), found["changes"].clone())
}

async fn send(api: &TestApi, method: Method, path: &str, body: Value) -> Value {
    let answer = api.send(method, path, &body).await;
    assert!(answer.status.is_success(), "{answer:?}");
    answer.body
}

#[tokio::test]
async fn changes_of_entries_are_recorded_without_secrets() {
    let api = TestApi::start("").await;
    let config = json!({
        "url": "http://127.0.0.1:9/mcp", "enabled": false, "headers": { "X-Token": "first-token-1234567" },
    });
    let new = json!({ "name": "box", "config": config });
    send(&api, Method::POST, "/servers", new).await;
    let subject = "server `box`";
    let (event, changes) = last_change(&api, subject);
    assert_eq!(event, "config_changed");
    let added = changes.as_array().unwrap();
    assert!(added.iter().all(|change| change.get("old").is_none()));
    assert!(added.contains(&json!({ "key": "headers", "new": { "X-Token": "***" } })));

    let patch =
        json!({ "headers": { "X-Token": "second-token-1234567" }, "tags": ["a"], "price": "0.5" });
    send(&api, Method::PATCH, "/servers/box", patch).await;
    let expect = json!([
        { "key": "headers.X-Token", "old": "***", "new": "***" },
        { "key": "price", "new": "0.5" },
        { "key": "tags", "new": ["a"] },
    ]);
    assert_eq!(last_change(&api, subject).1, expect);
    let patch = json!({ "price": "0.7", "tags": null });
    send(&api, Method::PATCH, "/servers/box", patch).await;
    let expect = json!([
        { "key": "price", "old": "0.5", "new": "0.7" },
        { "key": "tags", "old": ["a"] },
    ]);
    assert_eq!(last_change(&api, subject).1, expect);
    send(&api, Method::DELETE, "/servers/box", json!({})).await;
    let (_, changes) = last_change(&api, subject);
    assert!(
        changes
            .as_array()
            .unwrap()
            .contains(&json!({ "key": "price", "old": "0.7" }))
    );

    let new = json!({ "name": "reading", "config": { "tools": ["own/*"] } });
    send(&api, Method::POST, "/profiles", new).await;
    send(
        &api,
        Method::PATCH,
        "/profiles/reading",
        json!({ "tools": ["own/echo"] }),
    )
    .await;
    let expect = json!([{ "key": "tools", "old": ["own/*"], "new": ["own/echo"] }]);
    assert_eq!(last_change(&api, "profile `reading`").1, expect);

    let text = serde_json::to_string(&events(&api)).unwrap();
    for secret in ["first-token", "second-token"] {
        assert!(!text.contains(secret), "{secret}");
    }
    api.stop().await;
}

#[tokio::test]
async fn changes_of_agents_and_keys_are_recorded() {
    let api = TestApi::start("").await;
    let new = json!({ "name": "bot", "settings": { "team": "science" } });
    send(&api, Method::POST, "/agents", new).await;
    let (event, changes) = last_change(&api, "bot");
    assert_eq!(event, "agent_changed");
    let added = changes.as_array().unwrap();
    assert!(
        added.contains(&json!({ "key": "team", "new": "science" })),
        "{changes}"
    );

    let patch = json!({ "enabled": false, "team": null, "terms": { "rate": "5/1m" } });
    send(&api, Method::PATCH, "/agents/bot", patch).await;
    let (_, changes) = last_change(&api, "bot");
    let of = |key: &str| {
        let mut found = changes.as_array().unwrap().iter();
        found.find(|change| change["key"] == key).cloned().unwrap()
    };
    assert_eq!(
        of("enabled"),
        json!({ "key": "enabled", "old": true, "new": false })
    );
    assert_eq!(of("team"), json!({ "key": "team", "old": "science" }));
    assert_eq!(of("terms.rate")["new"]["calls"], 5, "{changes}");

    let made = send(
        &api,
        Method::POST,
        "/agents/bot/keys",
        json!({ "expires": "90d" }),
    )
    .await;
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let expect = json!([
        { "key": "agent_id", "new": made["agent_id"] },
        { "key": "expires", "new": made["expires"] },
        { "key": "state", "new": "live" },
    ]);
    assert_eq!(last_change(&api, id), (json!("key_created"), expect));
    send(
        &api,
        Method::DELETE,
        &format!("/agents/bot/keys/{id}"),
        json!({}),
    )
    .await;
    let expect = json!([{ "key": "state", "old": "live", "new": "revoked" }]);
    assert_eq!(last_change(&api, id), (json!("key_revoked"), expect));

    send(&api, Method::DELETE, "/agents/bot", json!({})).await;
    let (_, changes) = last_change(&api, "bot");
    let removed = changes.as_array().unwrap();
    assert!(
        removed.iter().all(|change| change.get("new").is_none()),
        "{changes}"
    );
    let text = serde_json::to_string(&events(&api)).unwrap();
    assert!(!text.contains(key));
    api.stop().await;
}

#[tokio::test]
async fn a_budget_that_starts_anew_is_recorded_with_what_was_spent() {
    let more = "price = \"0.25\"\n[governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }\nbudget = \"1/day\"\n";
    let api = TestApi::start(more).await;
    api.items("/tools").await;
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "mcp_own_echo", "arguments": { "text": "hello" } },
    });
    let request = api.request_at(Method::POST, "/mcp");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.bearer_auth(crate::harness::AGENT_KEY).json(&call);
    let answered = crate::harness::answer(request).await;
    assert_eq!(answered.status, StatusCode::OK);
    let reason = json!({ "reason": "a test" });
    send(
        &api,
        Method::POST,
        "/budgets/agent:reader:day/reset",
        reason,
    )
    .await;
    let expect = json!([{ "key": "spent", "old": "0.25", "new": "0.00" }]);
    assert_eq!(
        last_change(&api, "reader"),
        (json!("budget_changed"), expect)
    );
    api.stop().await;
}

/// Auditors read over HTTP who changed what.
#[tokio::test]
async fn events_are_found_by_pages_and_filters() {
    let api = TestApi::start("").await;
    for name in ["one", "two", "three"] {
        send(&api, Method::POST, "/agents", json!({ "name": name })).await;
    }
    send(&api, Method::DELETE, "/agents/two", json!({})).await;
    let subjects = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        let subjects = items.map(|it| it["subject"].as_str().unwrap().to_owned());
        subjects.collect()
    };
    let all = api.get("/audit/events?event=agent_changed").await.body;
    assert_eq!(subjects(&all), ["two", "three", "two", "one"]);
    assert_eq!(all["items"][0]["detail"], "removed");
    assert!(all["items"][3]["changes"].is_array(), "{all}");
    let mut seen = Vec::new();
    let mut path = "/audit/events?event=agent_changed&limit=3".to_owned();
    loop {
        let page = api.get(&path).await.body;
        seen.extend(subjects(&page));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/audit/events?event=agent_changed&limit=3&cursor={cursor}");
    }
    assert_eq!(seen, subjects(&all));
    let two = api.get("/audit/events?subject=two").await.body;
    assert_eq!(subjects(&two), ["two", "two"]);
    let late = api
        .get("/audit/events?since=2100-01-01T00:00:00Z")
        .await
        .body;
    assert_eq!(subjects(&late), [""; 0]);
    for wrong in ["event=none", "since=x", "cursor=x"] {
        let refused = api.get(&format!("/audit/events?{wrong}")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    }
    api.stop().await;
}
