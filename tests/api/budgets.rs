//! Budgets over HTTP.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{AGENT_KEY, TestApi, answer};

/// Calls cost something; who calls is the agent `reader` of the harness, which has the default budget.
const PRICED: &str = "price = \"0.25\"\nbudget = \"7/month\"\n\
     [agents.own]\nkeys = []\nbudget = [\"3/day\", \"2/day\", \"9/total\"]\n\
     [governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }\nbudget = \"1/day\"\n\
     [governance.teams]\nscience = { budget = \"5/total\" }\n";

async fn call(api: &TestApi) {
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "mcp_own_echo", "arguments": { "text": "hello" } },
    });
    let request = api.request_at(Method::POST, "/mcp").bearer_auth(AGENT_KEY);
    let request = request.header("accept", "application/json, text/event-stream");
    let answered = answer(request.json(&call)).await;
    assert!(answered.body["result"].is_object(), "{answered:?}");
}

async fn listed(api: &TestApi, path: &str) -> Vec<Value> {
    let page = api.get(path).await;
    assert_eq!(page.status, StatusCode::OK, "{page:?}");
    page.body["items"].as_array().unwrap().clone()
}

fn ids(items: &[Value]) -> Vec<&str> {
    items.iter().map(|it| it["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn budgets_are_listed_as_they_stand() {
    let api = TestApi::start(PRICED).await;
    api.items("/tools").await;
    call(&api).await;
    let all = listed(&api, "/budgets").await;
    let expect = [
        "agent:admin:day",
        "agent:own:day",
        "agent:own:day",
        "agent:own:total",
        "agent:reader:day",
        "server:own:month",
        "team:science:total",
    ];
    assert_eq!(ids(&all), expect);
    let spent = &all[4];
    let of = |key: &str| spent[key].clone();
    assert_eq!(
        (of("limit"), of("spent"), of("left")),
        (json!("1.00"), json!("0.25"), json!("0.75"))
    );
    assert_eq!(
        (of("from"), of("spent_micros")),
        (json!("default"), json!(250_000))
    );
    assert!(
        spent["ends"].as_str().unwrap().ends_with("T00:00:00.000Z"),
        "{spent}"
    );
    assert_eq!(all[5]["spent"], "0.25", "of the server");
    assert_eq!(all[6]["ends"], Value::Null);
    let mut paged = Vec::new();
    let mut path = "/budgets?limit=2".to_owned();
    loop {
        let page = api.get(&path).await.body;
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/budgets?limit=2&cursor={cursor}");
    }
    assert_eq!(ids(&paged), expect);
    let some = listed(&api, "/budgets?of=agent&name=own").await;
    assert_eq!(ids(&some), &expect[1..4]);
    api.stop().await;
}

#[tokio::test]
async fn a_budget_starts_anew() {
    let api = TestApi::start(PRICED).await;
    api.items("/tools").await;
    for _ in 0..4 {
        call(&api).await;
    }
    let spent = &listed(&api, "/budgets?of=agent&name=reader").await[0];
    assert_eq!(spent["left"], "0.00");
    let reset = async |budget: &str, body: Value| {
        let path = format!("/budgets/{budget}/reset");
        api.send(Method::POST, &path, &body).await
    };
    let why = json!({ "reason": "a new day" });
    let done = reset("agent:reader:day", why.clone()).await;
    assert_eq!(
        (done.status, &done.body["spent"]),
        (StatusCode::OK, &json!("0.00")),
        "{done:?}"
    );
    // There is room again.
    call(&api).await;
    let spent = &listed(&api, "/budgets?of=agent&name=reader").await[0];
    assert_eq!(spent["spent"], "0.25");
    assert_eq!(
        listed(&api, "/budgets?of=server").await[0]["spent"],
        "1.25",
        "is another one"
    );
    for budget in [
        "agent:reader:total",
        "agent:none:day",
        "team:arts:total",
        "team:science",
        "x",
    ] {
        assert_eq!(
            reset(budget, why.clone()).await.status,
            StatusCode::NOT_FOUND,
            "{budget}"
        );
    }
    for wrong in [json!({}), json!({ "reason": " " })] {
        let refused = reset("agent:reader:day", wrong).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    }
    let event = logged(&api.data_dir().join("audit"), "budget_changed").await;
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(event["subject"], "reader");
    assert_eq!(event["detail"], "reset day: a new day");
    assert!(
        event["actor"]
            .as_str()
            .unwrap()
            .starts_with("admin from 127.0.0.1"),
        "{event}"
    );
    api.stop().await;
}

/// The line of the log that has `text`, once it is written.
async fn logged(directory: &Path, text: &str) -> String {
    for _ in 0..100 {
        for file in files_below(directory) {
            let lines = fs::read_to_string(file).unwrap_or_default();
            if let Some(line) = lines.lines().find(|line| line.contains(text)) {
                return line.to_owned();
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no line of the log has {text}")
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
