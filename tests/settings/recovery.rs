//! What happens when a server fails: how soon it is given up, tried again, and not listed any more.

use crate::{
    harness::{ask, http_backend, with_one},
    support::{Auto, Backend, Gateway, soon},
};

/// The reason why a call of `echo` failed; `None` when it was answered.
async fn reason(gateway: &Gateway) -> Option<String> {
    let params = r#"{"name":"mcp_one_echo"}"#;
    let answer = ask(gateway, "/mcp", "tools/call", params).await;
    let reason =
        |failure: serde_json::Value| failure["data"]["reason"].as_str().unwrap().to_owned();
    answer.error.is_some().then(|| reason(answer.failure()))
}

/// A gateway whose server answers every call with HTTP 503.
async fn with_broken(keys: &str) -> (Gateway, Backend) {
    let backend = http_backend().await;
    let gateway = with_one(&backend, "", keys).await;
    backend.on_request(|request| (request.method() == "tools/call").then_some(Auto::Status(503)));
    (gateway, backend)
}

#[tokio::test]
pub(crate) async fn breaker_failures() {
    for (failures, let_through) in [(1, 1), (3, 3), (0, 8)] {
        let keys = format!("breaker = {{ failures = {failures}, open_for = \"1h\" }}");
        let (gateway, _backend) = with_broken(&keys).await;
        for call in 0..8 {
            let expect = if call < let_through {
                "bad_answer"
            } else {
                "breaker_open"
            };
            let found = reason(&gateway).await;
            assert_eq!(found.as_deref(), Some(expect), "call {call}, {failures}");
        }
    }
}

#[tokio::test]
pub(crate) async fn breaker_open_for() {
    let broken = |open_for: &str| {
        let keys = format!("breaker = {{ failures = 1, open_for = \"{open_for}\" }}");
        async move {
            let (gateway, backend) = with_broken(&keys).await;
            assert_eq!(reason(&gateway).await.as_deref(), Some("bad_answer"));
            backend.on_request(|request| {
                (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
            });
            (gateway, backend)
        }
    };
    let (long, _waits) = broken("1h").await;
    let (short, _tries) = broken("50ms").await;
    let closed = async { while reason(&short).await.is_some() {} };
    soon("a call is let through", closed).await;
    assert_eq!(reason(&long).await.as_deref(), Some("breaker_open"));
}
