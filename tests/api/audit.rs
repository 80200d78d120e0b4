//! The audit over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{AGENT_KEY, TestApi, answer};

/// Makes as many calls as the agent `reader`.
async fn call(api: &TestApi, count: usize) {
    for id in 0..count {
        let call = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "mcp_own_echo", "arguments": { "text": "hello" } },
        });
        let request = api.request_at(Method::POST, "/mcp").bearer_auth(AGENT_KEY);
        let request = request.header("accept", "application/json, text/event-stream");
        let answered = answer(request.json(&call)).await;
        assert_eq!(answered.status, StatusCode::OK, "{answered:?}");
    }
}

/// The page once the index has `count` records.
async fn listed(api: &TestApi, path: &str, count: usize) -> Value {
    for _ in 0..100 {
        let page = api.get(path).await.body;
        if page["items"]
            .as_array()
            .is_some_and(|items| items.len() >= count)
        {
            return page;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the index has no {count} records");
}

#[tokio::test]
async fn records_are_found_by_pages_and_filters() {
    let api = TestApi::start("").await;
    call(&api, 5).await;
    let all = listed(&api, "/audit", 5).await;
    let ids = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|it| it["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut seen = Vec::new();
    let mut path = "/audit?limit=2".to_owned();
    loop {
        let page = api.get(&path).await.body;
        seen.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/audit?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ids(&all));
    let one = api.get(&format!("/audit/{}", seen[0])).await;
    assert_eq!(one.body["agent_name"], "reader", "{one:?}");
    assert_eq!(one.body["server"], "own");
    assert_eq!(
        api.get("/audit?agent=nobody").await.body["items"],
        json!([])
    );
    assert_eq!(
        api.get("/audit?decision=refused").await.body["items"],
        json!([])
    );
    assert_eq!(
        api.get("/audit?decision=maybe").await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(api.get("/audit/inv_0").await.status, StatusCode::NOT_FOUND);
    let own = api
        .request(Method::GET, "/me/audit?agent=admin")
        .bearer_auth(AGENT_KEY);
    assert_eq!(
        ids(&answer(own).await.body).len(),
        5,
        "of oneself, whoever is asked for"
    );
    let foreign = api.request(Method::GET, "/audit").bearer_auth(AGENT_KEY);
    assert_eq!(answer(foreign).await.status, StatusCode::FORBIDDEN);
    api.stop().await;
}

#[tokio::test]
async fn the_log_is_exported_and_verified() {
    let api = TestApi::start("").await;
    call(&api, 3).await;
    listed(&api, "/audit", 3).await;
    let export = api.request(Method::GET, "/audit/export?server=own");
    let export = export
        .bearer_auth(crate::harness::ADMIN_KEY)
        .send()
        .await
        .unwrap();
    let lines = export.text().await.unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    for line in lines.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["kind"], "call");
    }
    let verified = api.send(Method::POST, "/audit/verify", &json!({})).await;
    assert_eq!(verified.body["ok"], true, "{verified:?}");
    assert_eq!(verified.body["faults"], json!([]));
    api.stop().await;
}

/// Opens the stream of records, after the event `last` where that is given.
async fn open_stream(api: &TestApi, query: &str, last: Option<&str>) -> reqwest::Response {
    let request = api.request(Method::GET, &format!("/audit/follow{query}"));
    let mut request = request.bearer_auth(crate::harness::ADMIN_KEY);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    request.send().await.unwrap()
}

/// The ids and records of the next `count` events.
async fn read_events(stream: &mut reqwest::Response, count: usize) -> Vec<(String, Value)> {
    let mut text = String::new();
    let read = async {
        while text.matches("\ndata: ").count() < count {
            let chunk = stream.chunk().await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    let came = tokio::time::timeout(std::time::Duration::from_secs(20), read).await;
    assert!(came.is_ok(), "not {count} events in {text}");
    let events = text.split("\n\n").filter_map(|event| {
        let event = event.strip_prefix("event: record\nid: ")?;
        let (id, data) = event.split_once("\ndata: ")?;
        Some((id.to_owned(), serde_json::from_str(data).unwrap()))
    });
    events.collect()
}

#[tokio::test]
async fn records_are_followed_without_a_gap() {
    let api = TestApi::start("").await;
    call(&api, 2).await;
    listed(&api, "/audit", 2).await;
    let mut stream = open_stream(&api, "", None).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    call(&api, 3).await;
    let first = read_events(&mut stream, 3).await;
    assert_eq!(first.len(), 3, "those before are not among them");
    assert_eq!(first[0].1["server"], "own");
    drop(stream);
    call(&api, 2).await;
    let all = listed(&api, "/audit", 7).await;
    let expect: Vec<&Value> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    // After the second of them, then from the beginning.
    let mut again = open_stream(&api, "", Some(&first[1].0)).await;
    let later = read_events(&mut again, 3).await;
    let mut seen: Vec<&Value> = later.iter().map(|it| &it.1["id"]).collect();
    seen.reverse();
    assert_eq!(seen, expect[..3]);
    let mut whole = open_stream(&api, "?agent=reader&tool=echo", Some("0")).await;
    assert_eq!(read_events(&mut whole, 7).await.len(), 7);
    let mut none = open_stream(&api, "?agent=nobody", Some("0")).await;
    let first = none.chunk().await.unwrap().unwrap();
    assert!(first.starts_with(b":"), "{first:?}");
    for wrong in ["-1", "x"] {
        let refused = open_stream(&api, "", Some(wrong)).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    }
    api.stop().await;
}
