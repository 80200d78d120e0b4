//! What a server lists on one connection alone is for those whom that connection serves, and for nobody
//! else.

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, Transport, backend::Asked, wire::notification,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;
const EXTRA: &str = r#""name":"mcp_x_extra""#;
const DONE: &str = r#"{"content":[]}"#;
const CHANGED: &str = "notifications/tools/list_changed";
const COMMON: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}}]}"#;
const MORE: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}},{"name":"extra","inputSchema":{"type":"object"}}]}"#;

/// A client with a connection of its own, whose call of `echo` waits.
async fn client_on_its_own(gateway: &Gateway, backend: &Backend, front: Front) -> (Client, Asked) {
    let client = gateway.client(front, "/mcp", r#"{"sampling":{}}"#).await;
    client.listen().await;
    client.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    (client, call)
}

/// On the connection of `call` the server says that its tools changed, and lists `tools` there.
async fn change(backend: &Backend, call: &Asked, tools: &str) {
    call.conn.send(notification(CHANGED, "{}")).await;
    // The catalog's connection is listed as well: it is not said for whom they changed.
    for _ in 0..2 {
        let list = backend.asked("tools/list").await;
        let is_own = list.conn.id == call.conn.id;
        list.answer(if is_own { tools } else { COMMON }).await;
    }
}

async fn names(client: &Client) -> Vec<String> {
    let tools = client.list("tools").await;
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn tools_of_one_session() {
    for (transport, front) in [
        (Transport::Stdio, Front::Stdio),
        (Transport::WebSocket, Front::Streamable),
        (Transport::Http, Front::Streamable),
    ] {
        let keys = "isolation = 'session'";
        let (backend, gateway) = Gateway::governed(transport, Era::Legacy, keys).await;
        let (one, call) = client_on_its_own(&gateway, &backend, front).await;
        let (other, others) = client_on_its_own(&gateway, &backend, front).await;
        assert_ne!(call.conn.id, others.conn.id);
        others.answer(DONE).await;
        other.answer("1").await;
        let common = ["mcp_x_echo", "mcp_x_other"];
        assert_eq!(names(&one).await, common);
        backend.on_request(|request| (request.method() == "tools/list").then_some(Auto::Hand));
        change(&backend, &call, MORE).await;
        one.must(CHANGED).await;
        let more = ["mcp_x_echo", "mcp_x_extra", "mcp_x_other"];
        assert_eq!(names(&one).await, more);
        assert_eq!(names(&other).await, common);

        one.ask("2", "tools/call", EXTRA).await;
        let extra = backend.asked("tools/call").await;
        assert_eq!(extra.conn.id, call.conn.id);
        extra.answer(DONE).await;
        one.answer("2").await.value();
        other.ask("2", "tools/call", EXTRA).await;
        assert_eq!(other.answer("2").await.code(), -32602);

        // The server takes it back.
        change(&backend, &call, COMMON).await;
        one.must(CHANGED).await;
        assert_eq!(names(&one).await, common);
        one.ask("3", "tools/call", EXTRA).await;
        assert_eq!(one.answer("3").await.code(), -32602);

        if transport == Transport::Http {
            // There a call that breaks off ends no connection.
            gateway.stop().await;
            continue;
        }
        // What a connection listed ends with it.
        change(&backend, &call, MORE).await;
        one.must(CHANGED).await;
        assert_eq!(names(&one).await, more);
        call.die().await;
        let lost = one.next().await;
        let told = if lost.is_response() {
            one.next().await
        } else {
            lost
        };
        assert_eq!(told.method(), CHANGED, "{told:?}");
        assert_eq!(names(&one).await, common);
        other.is_quiet().await;
        gateway.stop().await;
    }
}
