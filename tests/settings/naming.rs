//! Under which names and URIs items are shown.

use serde_json::json;

use crate::{
    harness::{answer_with, call, http_backend, names, with_one},
    support::{Backend, Gateway, TestGateway},
};

/// A server with one tool of this name.
async fn with_tool(name: &str) -> Backend {
    let backend = http_backend().await;
    let tool = format!(r#"[{{"name":"{name}","inputSchema":{{"type":"object"}}}}]"#);
    backend.set_list("tools/list", tool);
    backend
}

/// Checks the exposed name of a tool.
async fn check(tool: &str, setting: &str, keys: &str, expect: &str) {
    let backend = with_tool(tool).await;
    let gateway = with_one(&backend, setting, keys).await;
    let found = names(&gateway, "/mcp", "tools").await;
    assert_eq!(found, [expect], "{setting} {keys}");
}

#[tokio::test]
pub(crate) async fn template() {
    check("echo", "", "", "mcp_one_echo").await;
    let setting = "naming.template = \"{server}.{tool}\"";
    check("echo", setting, "", "one.echo").await;
    check("echo", "naming.template = \"{tool}\"", "", "echo").await;
}

#[tokio::test]
pub(crate) async fn charset() {
    let strict = "naming.charset = \"strict\"";
    check("get.it-now", strict, "", "mcp_one_get_it_now").await;
    let original = "naming.charset = \"original\"";
    check("get.it-now", original, "", "mcp_one_get.it-now").await;
}

#[tokio::test]
pub(crate) async fn max_length() {
    let tool = "a_name_of_thirty_characters_ok";
    let whole = format!("mcp_one_{tool}");
    check(tool, "naming.max_length = 38", "", &whole).await;
    let backend = with_tool(tool).await;
    let gateway = with_one(&backend, "naming.max_length = 37", "").await;
    let found = names(&gateway, "/mcp", "tools").await;
    assert_eq!(found[0].len(), 37);
    assert_eq!(found[0][..28], whole[..28], "a hash takes the rest");
    assert_ne!(found[0], whole[..37]);
}

#[tokio::test]
pub(crate) async fn namespace() {
    check("echo", "", "namespace = \"tools\"", "mcp_tools_echo").await;
    check("echo", "", "", "mcp_one_echo").await;
}

/// Servers `a` and `b` that both have a tool `echo`.
async fn with_twins(conflict: &str, priority: i32) -> Gateway {
    let (a, b) = (with_tool("echo").await, with_tool("echo").await);
    answer_with(&a, "a");
    answer_with(&b, "b");
    let gateway = TestGateway::new()
        .setting("naming.template = \"{tool}\"")
        .setting(&format!("naming.conflict = \"{conflict}\""))
        .server("a", &a)
        .server_with("b", &b, &format!("priority = {priority}"));
    gateway.start().await
}

#[tokio::test]
pub(crate) async fn conflict() {
    let all = with_twins("namespace", 1).await;
    let found = names(&all, "/mcp", "tools").await;
    let hashed = |name: &String| name.starts_with("echo_");
    assert!(found.len() == 2 && found.iter().all(hashed), "{found:?}");

    let first = with_twins("first", 1).await;
    assert_eq!(names(&first, "/mcp", "tools").await, ["echo"]);
    assert_eq!(call(&first, "echo").await, json!({"name": "a"}));

    let highest = with_twins("priority", 1).await;
    assert_eq!(names(&highest, "/mcp", "tools").await, ["echo"]);
    assert_eq!(call(&highest, "echo").await, json!({"name": "b"}));

    let none = with_twins("error", 1).await;
    assert!(names(&none, "/mcp", "tools").await.is_empty());
    let problems = none.status("a").await["problems"].to_string();
    assert!(problems.contains("echo"), "{problems}");
}

#[tokio::test]
pub(crate) async fn priority() {
    for (priority, expect) in [(1, "b"), (0, "a"), (-1, "a")] {
        let gateway = with_twins("priority", priority).await;
        let found = call(&gateway, "echo").await;
        assert_eq!(found, json!({"name": expect}), "priority = {priority}");
    }
}

#[tokio::test]
pub(crate) async fn namespace_resources() {
    for (value, expect) in [(true, "one+file:///a.txt"), (false, "file:///a.txt")] {
        let backend = http_backend().await;
        let setting = format!("naming.namespace_resources = {value}");
        let gateway = with_one(&backend, &setting, "").await;
        assert_eq!(names(&gateway, "/mcp", "resources").await, [expect]);
    }
}
