//! Tasks are served on the route of one server. Calls on all others are answered themselves.

use crate::{
    profiles::everything,
    support::{Auto, Backend, Era, Front, Gateway, TestGateway, Transport},
};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const DECLARED: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}, "a/b":{ }}}"#;
const WISH: &str = r#"{"ttl" : 6e4}"#;
const MERGED: [&str; 2] = ["/mcp", "/mcp/profiles/all"];

async fn with_server(era: Era, tools: &str) -> (Gateway, Backend) {
    let backend = Backend::start(Transport::Http, era).await;
    backend.set_list("tools/list", tools);
    let gateway = TestGateway::new().server("x", &backend);
    let gateway = gateway.profile("all", everything());
    (gateway.start().await, backend)
}

const ECHO: &str = r#"[{"name":"echo","inputSchema":{"type":"object"}}]"#;

/// No server is asked for a task that nobody could ask for later; where it can be, everything reaches
/// the server as it was written.
#[tokio::test]
async fn only_the_route_of_one_server_asks_for_tasks() {
    for front in Front::ALL {
        let era = if front.is_modern() {
            Era::Modern
        } else {
            Era::Legacy
        };
        let (gateway, backend) = with_server(era, ECHO).await;
        for path in MERGED {
            let client = gateway.client(front, path, DECLARED).await;
            let members =
                format!(r#""name":"mcp_x_echo","task":{WISH},"arguments":{{"task":{WISH}}}"#);
            client.ask("1", "tools/call", &members).await;
            let asked = backend.asked("tools/call").await;
            let param = |path: &[&str]| asked.envelope.param(path);
            assert_eq!(param(&["task"]), None, "{front:?} {path}");
            assert_eq!(param(&["arguments", "task"]).as_deref(), Some(WISH));
            if era == Era::Modern {
                let left = param(&["_meta", CAPABILITIES, "extensions"]);
                assert_eq!(left.as_deref(), Some(r#"{"a/b":{ }}"#), "{front:?} {path}");
            }
            asked.answer("{}").await;
            assert!(client.answer("1").await.result.is_some());
        }
        let client = gateway.client(front, "/mcp/servers/x", DECLARED).await;
        let members = format!(r#" "task":{WISH}, "name":"echo""#);
        client.ask("1", "tools/call", &members).await;
        let asked = backend.asked("tools/call").await;
        let sent = client.params(&members, "");
        assert_eq!(asked.envelope.params, Some(sent), "{front:?}");
        let task = r#"{"task":{"taskId":"t","status":"working"},"resultType":"task"}"#;
        asked.answer(task).await;
        assert_eq!(client.answer("1").await.result.as_deref(), Some(task));
        gateway.stop().await;
    }
}

/// A tool that is only carried out as a task is listed, and its server's refusal says where it can be
/// called.
#[tokio::test]
async fn a_tool_that_needs_a_task_says_where_it_is_served() {
    let needing = r#"{"name":"slow","inputSchema":{},"execution":{"taskSupport":"required"}}"#;
    let other = r#"{"name":"echo","inputSchema":{},"execution":{"taskSupport":"optional"}}"#;
    let tools = format!("[{needing},{other}]");
    let undeclared = |extension: &str| {
        format!(
            r#"{{"code":-32021,"message":"no","data":{{"requiredCapabilities":{{"extensions":{{"{extension}":{{}}}}}}}}}}"#
        )
    };
    let plain = |code: i32| format!(r#"{{"code":{code},"message":"no"}}"#);
    for (era, front, tool, error, is_told) in [
        (Era::Legacy, Front::Streamable, "slow", plain(-32601), true),
        (Era::Legacy, Front::Modern, "slow", plain(-32600), true),
        (Era::Legacy, Front::Streamable, "slow", plain(-32602), false),
        (Era::Legacy, Front::Streamable, "echo", plain(-32601), false),
        (
            Era::Modern,
            Front::Modern,
            "echo",
            undeclared(EXTENSION),
            true,
        ),
        (Era::Modern, Front::Modern, "echo", undeclared("a/b"), false),
    ] {
        let (gateway, backend) = with_server(era, &tools).await;
        let refusal = error.clone();
        backend.on_request(move |request| {
            (request.method() == "tools/call").then(|| Auto::Error(refusal.clone()))
        });
        for path in MERGED {
            let client = gateway.client(front, path, DECLARED).await;
            assert_eq!(client.list("tools").await.len(), 2);
            let name = format!(r#""name":"mcp_x_{tool}""#);
            client.ask("1", "tools/call", &name).await;
            let hint = if is_told {
                "no (tasks are only served on /mcp/servers/x and /sse/servers/x)"
            } else {
                "no"
            };
            let told = error.replace(r#""no""#, &format!("\"{hint}\""));
            assert_eq!(client.answer("1").await.error, Some(told), "{path} {error}");
        }
        let client = gateway.client(front, "/mcp/servers/x", DECLARED).await;
        let name = format!(r#""name":"{tool}""#);
        client.ask("1", "tools/call", &name).await;
        assert_eq!(client.answer("1").await.error, Some(error.clone()));
        gateway.stop().await;
    }
}
