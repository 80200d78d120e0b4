//! Streams of events.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use serde_json::json;
use tokio::time::timeout;

use crate::harness::{ADMIN_KEY, TestApi};

async fn open(api: &TestApi, path: &str) -> Response {
    let request = api.request(Method::GET, path).bearer_auth(ADMIN_KEY);
    request.send().await.unwrap()
}

/// Reads until `wanted` has come.
async fn read_until(stream: &mut Response, wanted: &str) -> String {
    let mut text = String::new();
    let read = async {
        while !text.contains(wanted) {
            let chunk = stream.chunk().await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
    };
    let came = timeout(Duration::from_secs(20), read).await;
    assert!(came.is_ok(), "no {wanted} in {text}");
    text
}

#[tokio::test]
async fn changes_are_told() {
    let api = TestApi::start("").await;
    let mut stream = open(&api, "/events").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    read_until(&mut stream, r#"data: {"server":"own","state":"#).await;
    let new = json!({ "name": "box", "config": { "transport": "builtin" } });
    api.send(Method::POST, "/servers", &new).await;
    let told = read_until(&mut stream, r#"{"server":"box","state":"connected"}"#).await;
    assert!(told.contains("event: config_changed\n"), "{told}");
    api.send(Method::DELETE, "/servers/box", &json!({})).await;
    read_until(&mut stream, r#"{"server":"box","state":"removed"}"#).await;
    api.stop().await;
}

#[tokio::test]
async fn streams_are_bounded() {
    let api = TestApi::start("").await;
    let mut all = Vec::new();
    for _ in 0..32 {
        let stream = open(&api, "/events").await;
        assert_eq!(stream.status(), StatusCode::OK);
        all.push(stream);
    }
    let refused = open(&api, "/events").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    all.pop();
    for _ in 0..200 {
        if open(&api, "/servers/own/stderr").await.status() == StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the place of the stream that ended is not free")
}
