//! Requests that are sent again, and those whose sender hangs up.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, TestApi, answer};

fn create(api: &TestApi, key: &str, body: &Value) -> RequestBuilder {
    let request = api
        .request(Method::POST, "/profiles")
        .bearer_auth(ADMIN_KEY);
    request.header("idempotency-key", key).json(body)
}

#[tokio::test]
async fn what_is_asked_for_again_is_made_once() {
    let api = TestApi::start("").await;
    let reading = json!({ "name": "reading", "config": { "tools": ["own/*"] } });
    let both = futures_util::future::join(
        answer(create(&api, "k1", &reading)),
        answer(create(&api, "k1", &reading)),
    );
    let (first, second) = both.await;
    let later = answer(create(&api, "k1", &reading)).await;
    for again in [&first, &second, &later] {
        assert_eq!(again.status, StatusCode::CREATED, "{again:?}");
        assert_eq!((&again.body, &again.etag), (&first.body, &first.etag));
    }
    let writing = json!({ "name": "writing", "config": {} });
    let other = answer(create(&api, "k1", &writing)).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{other:?}");
    let new_key = answer(create(&api, "k2", &reading)).await;
    assert_eq!(new_key.body["type"], "already-exists", "{new_key:?}");
    // What was refused is asked anew.
    let nothing = json!({});
    api.send(Method::DELETE, "/profiles/reading", &nothing)
        .await;
    let made = answer(create(&api, "k2", &reading)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    for wrong in ["", &"k".repeat(256)] {
        let refused = answer(create(&api, wrong, &writing)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    }
    let longest = answer(create(&api, &"k".repeat(255), &writing)).await;
    assert_eq!(longest.status, StatusCode::CREATED, "{longest:?}");
    api.stop().await;
}

#[tokio::test]
async fn a_change_is_made_in_full_when_its_sender_hangs_up() {
    let api = TestApi::start("").await;
    for number in 0..8 {
        let name = format!("p{number}");
        let body = json!({ "name": name, "config": {} });
        let sent = create(&api, &name, &body).timeout(Duration::from_millis(number));
        drop(sent.send().await);
    }
    // Whatever has reached the gateway counts there and is in the store.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let listed = api.get("/profiles").await.body;
    let api = api.restart().await;
    assert_eq!(api.get("/profiles").await.body, listed);
    api.stop().await;
}
