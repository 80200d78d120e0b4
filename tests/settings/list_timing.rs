//! When lists are answered, and how much of them at once.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    harness::{ask, http_backend, items, names, with_one},
    support::{Auto, Backend, Gateway, TestGateway, soon},
};

#[tokio::test]
pub(crate) async fn first_list_wait() {
    let (at_once, _backend) = with_slow_server("0s").await;
    let list = names(&at_once, "/mcp", "tools");
    let list = timeout(Duration::from_secs(1), list).await;
    assert_eq!(list.unwrap(), [""; 0], "well before the time by default");

    let (patient, backend) = with_slow_server("1m").await;
    let list = names(&patient, "/mcp", "tools");
    tokio::pin!(list);
    let early = timeout(Duration::from_millis(200), &mut list).await;
    assert!(early.is_err(), "the server has not greeted yet: {early:?}");
    let greeting = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}"#;
    backend.asked("initialize").await.answer(greeting).await;
    let listed = soon("the list", list).await;
    assert_eq!(listed, ["mcp_one_echo", "mcp_one_other"]);
}

/// A gateway whose server greets when the test lets it.
async fn with_slow_server(wait: &str) -> (Gateway, Backend) {
    let backend = http_backend().await;
    backend.on_request(|envelope| (envelope.method() == "initialize").then_some(Auto::Hand));
    let gateway = TestGateway::new()
        .setting(&format!("first_list_wait = \"{wait}\""))
        .server_with("one", &backend, "era = \"legacy\"");
    (gateway.launch().await, backend)
}

#[tokio::test]
pub(crate) async fn list_page_size() {
    let backend = http_backend().await;
    let whole = with_one(&backend, "list_page_size = 0", "").await;
    let answer = ask(&whole, "/mcp", "tools/list", "{}").await.value();
    assert_eq!(answer["tools"].as_array().unwrap().len(), 2);
    assert!(answer.get("nextCursor").is_none());

    let backend = http_backend().await;
    let paged = with_one(&backend, "list_page_size = 1", "").await;
    let first = ask(&paged, "/mcp", "tools/list", "{}").await.value();
    assert_eq!(first["tools"].as_array().unwrap().len(), 1);
    let after = format!(r#"{{"cursor":{}}}"#, first["nextCursor"]);
    let second = ask(&paged, "/mcp", "tools/list", &after).await.value();
    assert_eq!(second["tools"][0]["name"], "mcp_one_other");
    assert!(second.get("nextCursor").is_none());

    let odd = ask(&paged, "/mcp", "tools/list", r#"{"cursor":"x"}"#).await;
    assert_eq!(odd.code(), -32602);
    backend.set_list(
        "tools/list",
        r#"[{"name":"new","inputSchema":{"type":"object"}}]"#,
    );
    backend.list_changed("tools").await;
    paged.tools_until(|names| names == ["mcp_one_new"]).await;
    let stale = ask(&paged, "/mcp", "tools/list", &after).await;
    assert_eq!(stale.code(), -32602);
    assert_eq!(items(&paged, "/mcp", "tools").await.len(), 1);
}
