//! Servers that ask for roots judge calls by them, so the first call of a client waits for its own.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    Backend, Client, Era, Front, Gateway, TestGateway, Transport, wire::Envelope,
};

const WHERE: &str = r#""name":"mcp_x_where""#;

/// A server that asks for roots as soon as it may, and says in each result what it was told.
const SERVER: &str = r#"
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
roots=none
offered=no
while read -r line; do
    case $line in
    *'"id":"roots"'*'"uri":"'* | *'"uri":"'*'"id":"roots"'*)
        roots=${line#*'"uri":"'}
        roots=${roots%%'"'*}
        continue ;;
    esac
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*)
        case $line in *'"roots"'*) offered=yes ;; esac
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}' ;;
    *'"method":"notifications/initialized"'*)
        if [ $offered = yes ]; then
            printf '{"jsonrpc":"2.0","id":"roots","method":"roots/list"}\n'
        fi ;;
    *'"method":"tools/list"'*)
        say '"result":{"tools":[{"name":"where","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*)
        say '"result":{"content":[],"structuredContent":{"roots":"'"$roots"'"}}' ;;
    *'"method":"ping"'*)
        say '"result":{}' ;;
    *'"id":'*)
        say '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
"#;

async fn gateway(settings: &str) -> (Gateway, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("server.sh");
    fs::write(&path, SERVER).unwrap();
    let section = format!("command = 'sh'\nargs = ['{}']\n{settings}", path.display());
    let gateway = TestGateway::new().section("x", &section).start().await;
    (gateway, place)
}

/// What the server knows of the client's roots in its next call. The client has `root`, and is asked for
/// it no more than once.
async fn told(client: &Client, id: &str, root: Option<&str>) -> String {
    client
        .ask(id, "tools/call", r#""name":"mcp_x_where""#)
        .await;
    if let Some(root) = root {
        let question = client.must("roots/list").await;
        let roots = json!({ "roots": [{ "uri": root }] }).to_string();
        let id = question.id.as_deref().unwrap();
        client.respond(id, &roots).await;
    }
    roots_in(&client.answer(id).await)
}

fn roots_in(answer: &Envelope) -> String {
    let result = answer.value();
    let roots = result["structuredContent"]["roots"].as_str();
    roots.unwrap().to_owned()
}

/// A client with these capabilities that takes questions also when it has made no call.
async fn client_of(gateway: &Gateway, front: Front, capabilities: &str) -> Client {
    let client = gateway.client(front, "/mcp", capabilities).await;
    client.listen().await;
    client
}

/// Also the very first call of all, before it is known that the server asks.
#[tokio::test]
async fn the_first_call_of_each_client_is_judged_by_its_roots() {
    for settings in ["", "isolation = \"session\"", "isolation = \"pool\""] {
        for front in [Front::Streamable, Front::Sse] {
            let (gateway, _place) = gateway(settings).await;
            for root in ["file:///a", "file:///b"] {
                let client = client_of(&gateway, front, r#"{"roots":{}}"#).await;
                let first = told(&client, "1", Some(root)).await;
                assert_eq!(first, root, "{front:?} {settings}");
                assert_eq!(told(&client, "2", None).await, root);
            }
            let without = client_of(&gateway, front, "{}").await;
            assert_eq!(told(&without, "1", None).await, "none");
            gateway.stop().await;
        }
    }
}

/// Who does not answer waits for a second, not for ever.
#[tokio::test]
async fn a_client_that_does_not_say_its_roots_is_served_all_the_same() {
    let (gateway, _place) = gateway("").await;
    let client = client_of(&gateway, Front::Streamable, r#"{"roots":{}}"#).await;
    client.ask("1", "tools/call", WHERE).await;
    client.must("roots/list").await;
    assert_eq!(roots_in(&client.answer("1").await), "none");
    gateway.stop().await;
}

/// A client that takes questions with its calls alone is asked during the first.
#[tokio::test]
async fn a_client_without_a_stream_is_asked_during_its_call() {
    let (gateway, _place) = gateway("").await;
    let client = gateway
        .client(Front::Streamable, "/mcp", r#"{"roots":{}}"#)
        .await;
    told(&client, "1", Some("file:///a")).await;
    gateway.stop().await;
}

/// A server that asks for roots only during a call keeps the session where it knows it: another
/// process would know nothing of what that was told. Who comes later has one of its own.
#[tokio::test]
async fn a_session_stays_where_it_is_known() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = client_of(&gateway, Front::Streamable, r#"{"roots":{}}"#).await;
    let call = async |client: &Client| {
        client
            .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
            .await;
        backend.asked("tools/call").await
    };
    let first = call(&client).await;
    first.ask("7", "roots/list", "{}").await;
    let question = client.must("roots/list").await;
    client
        .respond(question.id.as_deref().unwrap(), r#"{"roots":[]}"#)
        .await;
    backend.answered().await;
    first.answer("{}").await;
    client.answer("1").await;
    let second = call(&client).await;
    assert_eq!(second.conn.id, first.conn.id);
    let other = client_of(&gateway, Front::Streamable, r#"{"roots":{}}"#).await;
    let theirs = call(&other).await;
    assert_ne!(theirs.conn.id, first.conn.id);
    for (call, client) in [(second, client), (theirs, other)] {
        call.answer("{}").await;
        client.answer("1").await;
    }
    gateway.stop().await;
}
