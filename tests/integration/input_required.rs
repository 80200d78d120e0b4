//! Calls of 2026-07-28 in several rounds: a server that needs something answers with its questions, and
//! the client calls again with the answers.

use serde_json::json;

use crate::support::{
    Backend, Client, Era, Front, Gateway, Transport,
    backend::Asked,
    client::Sent,
    wire::{member, request},
};

/// Two clients with equal ids and tokens on one server: each hears its own progress, is asked its own
/// questions and comes back with its own state. One cancels meanwhile, and the other notices nothing.
#[tokio::test]
async fn rounds_of_equal_calls_never_cross() {
    for transport in [
        Transport::Stdio,
        Transport::Http,
        Transport::HttpEvents,
        Transport::WebSocket,
    ] {
        for fronts in [
            [Front::Modern, Front::Modern],
            [Front::StdioModern, Front::StdioModern],
            [Front::Modern, Front::StdioModern],
        ] {
            never_cross(transport, fronts).await;
        }
    }
}

async fn never_cross(transport: Transport, fronts: [Front; 2]) {
    let what = format!("{transport:?} {fronts:?}");
    let (backend, gateway) = Gateway::governed(transport, Era::Modern, "").await;
    let one = gateway.client(fronts[0], "/mcp", ELICITS).await;
    let two = gateway.client(fronts[1], "/mcp", ELICITS).await;

    let (_, first) = call(&one, &backend, "").await;
    let (_, second) = call(&two, &backend, "").await;
    assert_eq!(first.conn.id, second.conn.id, "{what}: one connection");
    assert_ne!(first.token(), second.token(), "{what}");
    second.progress(2).await;
    first.progress(1).await;
    second.answer(&questions("two")).await;
    first.answer(&questions("one")).await;
    hears(&one, 1).await;
    hears(&two, 2).await;
    let (of_one, of_two) = (is_asked(&one, "one").await, is_asked(&two, "two").await);

    let (sent, second) = call(&two, &backend, &of_two).await;
    let (_, first) = call(&one, &backend, &of_one).await;
    expect_return(&second, "two");
    expect_return(&first, "one");
    first.progress(3).await;
    second.progress(4).await;
    hears(&two, 4).await;
    hears(&one, 3).await;
    cancel(&two, sent).await;
    expect_cancelled(&backend, transport, &second).await;
    second.progress(5).await;
    first.progress(6).await;
    first.answer(&questions("one")).await;
    hears(&one, 6).await;
    let of_one = is_asked(&one, "one").await;

    let (_, first) = call(&one, &backend, &of_one).await;
    expect_return(&first, "one");
    first
        .answer(r#"{"resultType":"complete","content":[],"mine":1}"#)
        .await;
    assert_eq!(one.answer("7").await.value()["mine"], 1, "{what}");
    one.is_quiet().await;
    two.is_quiet().await;
    assert!(backend.was_told().await.is_none(), "{what}");
    gateway.stop().await;
}

const ELICITS: &str = r#"{"elicitation":{}}"#;

/// A round of the call, with the id and the token that both clients have; `members` are what the round
/// before gave.
async fn call(client: &Client, backend: &Backend, members: &str) -> (Sent, Asked) {
    let members = format!(r#""name":"mcp_x_echo"{members}"#);
    let params = client.params(&members, r#""progressToken":"t""#);
    let sent = client.send(request("7", "tools/call", &params)).await;
    (sent, backend.asked("tools/call").await)
}

/// What the server needs of the client it calls `whose`.
fn questions(whose: &str) -> String {
    let question = json!({
        "method": "elicitation/create",
        "params": {"message": whose, "requestedSchema": {"type": "object", "properties": {}}},
    });
    let questions = json!({
        "resultType": "input_required",
        "requestState": whose,
        "inputRequests": {"q": question},
    });
    questions.to_string()
}

/// The next message is what the server needs of `whose`; gives what the client calls again with.
async fn is_asked(client: &Client, whose: &str) -> String {
    let answer = client.answer("7").await;
    let question = &answer.value()["inputRequests"]["q"]["params"]["message"];
    assert_eq!(question, whose, "{answer:?}");
    let state = member(answer.result.as_deref().unwrap(), &["requestState"]).unwrap();
    format!(
        r#","inputResponses":{{"q":{{"action":"accept","content":{{"by":"{whose}"}}}}}},"requestState":{state}"#
    )
}

/// The server gets the answers of `whose`, and the state that it gave to it.
fn expect_return(call: &Asked, whose: &str) {
    let quoted = Some(format!("\"{whose}\""));
    assert_eq!(call.envelope.param(&["requestState"]), quoted);
    let answer = ["inputResponses", "q", "content", "by"];
    assert_eq!(call.envelope.param(&answer), quoted);
}

/// The next message is this progress.
async fn hears(client: &Client, amount: u32) {
    let told = client.must("notifications/progress").await;
    assert_eq!(told.param(&["progressToken"]).as_deref(), Some(r#""t""#));
    assert_eq!(told.param(&["progress"]), Some(amount.to_string()));
}

/// Gives the call up, in the way of the client.
async fn cancel(client: &Client, sent: Sent) {
    if client.front == Front::Modern {
        sent.disconnect();
    } else {
        client.cancel("7").await;
    }
}

/// The server learns that this call was given up.
async fn expect_cancelled(backend: &Backend, transport: Transport, call: &Asked) {
    if matches!(transport, Transport::Http | Transport::HttpEvents) {
        return call.closed().await;
    }
    let told = backend.told("notifications/cancelled").await.envelope;
    assert_eq!(told.param(&["requestId"]).as_deref(), Some(call.id()));
}
