//! The `requestState` of a server (2026-07-28): its client gets it sealed, and only who was given it
//! can use it, for the call it was given for.

use std::sync::Arc;

use serde_json::json;
use tollbridge::{audit::RecordedDecision, governance::STATE_USES_MAX};

use crate::{
    harness::{ANN, BOB, Server, Stage, code_of, keyed},
    support::{
        Auto, Client, Era, Front, Gateway, TestGateway, Transport,
        client::Who,
        value,
        wire::{Envelope, member},
    },
};

/// The methods whose results may have a state, each with a call of it.
const CALLS: [(&str, &str); 3] = [
    (
        "tools/call",
        r#""name":"mcp_x_echo","arguments":{"a":1,"b":{"c":[1.5],"d":"é"}}"#,
    ),
    (
        "prompts/get",
        r#""name":"mcp_x_greet","arguments":{"who":"x"}"#,
    ),
    ("resources/read", r#""uri":"x+file:///a.txt""#),
];

const FRONTS: [Front; 2] = [Front::Modern, Front::StdioModern];

const AGENTS: &str = "[agents.ann]\n\n[agents.bob]\n\n[governance]\nprice = \"0\"\n";

/// A server whose results have this state, which is JSON.
async fn server(state: &str) -> Server {
    let server = Server::over(Transport::Http, Era::Modern).await;
    for (method, _) in CALLS {
        server.answers(method, &asks(state));
    }
    server
}

fn asks(state: &str) -> String {
    format!(r#"{{"resultType":"input_required","requestState":{state} , "x":1.0}}"#)
}

async fn stage(state: &str) -> Stage {
    Stage::with(server(state).await, AGENTS, "").await
}

async fn answered(client: &Client, method: &str, members: &str) -> Envelope {
    client.ask("1", method, members).await;
    client.answer("1").await
}

/// The state as the client gets it, as JSON.
async fn given(client: &Client, method: &str, members: &str) -> String {
    let answer = answered(client, method, members).await;
    member(answer.result.as_deref().unwrap(), &["requestState"]).unwrap()
}

fn with(members: &str, state: &str) -> String {
    format!(r#"{members},"inputResponses":{{}},"requestState":{state}"#)
}

async fn refused(stage: &Stage, client: &Client, method: &str, members: &str) -> String {
    let before = stage.server.seen().len();
    let answer = answered(client, method, members).await;
    assert_eq!(answer.code(), -32602, "{answer:?}");
    assert_eq!(code_of(&answer), "INVALID_STATE");
    assert_eq!(stage.server.seen().len(), before, "{members}");
    assert_eq!(stage.last().decision, RecordedDecision::Refused);
    answer.failure()["message"].as_str().unwrap().to_owned()
}

async fn client_of(gateway: &Gateway, who: Who<'static>) -> Client {
    gateway.client_of(who, Front::Modern, "/mcp").await
}

/// A state comes back to its server byte for byte, whatever JSON it is and however the client writes
/// the string and the arguments; all else of the result and of the params is as it was.
#[tokio::test]
async fn a_state_comes_back_as_it_was() {
    for state in [
        r#""""#,
        r#""a.b.c""#,
        r#""\u0061\/ \"é\" \ud83d\ude00 😀""#,
        r#"{ "n" : 1.0e0, "n": null }"#,
        "null",
    ] {
        let stage = stage(state).await;
        for front in FRONTS {
            let client = stage.client(front).await;
            for (method, members) in CALLS {
                let answer = answered(&client, method, members).await;
                let result = answer.result.unwrap();
                let sealed = member(&result, &["requestState"]).unwrap();
                assert!(sealed.starts_with(r#""v3."#), "{sealed}");
                assert_eq!(result.replace(&sealed, state), asks(state));

                let text: String = serde_json::from_str(&sealed).unwrap();
                let escaped = text
                    .encode_utf16()
                    .fold(String::new(), |all, unit| format!("{all}\\u{unit:04x}"));
                let reordered = members.replace(
                    r#"{"a":1,"b":{"c":[1.5],"d":"é"}}"#,
                    r#"{ "b":{"d":"\u00e9","c":[15e-1]}, "a":1.0 }"#,
                );
                for (members, sealed) in [
                    (members, &sealed),
                    (&*reordered, &format!(r#""{escaped}""#)),
                ] {
                    let again = with(members, sealed);
                    answered(&client, method, &again).await.value();
                    let heard = stage.server.seen().pop().unwrap();
                    assert_eq!(heard.param(&["requestState"]).as_deref(), Some(state));
                    let (original, params) = (with(members, state), heard.params.unwrap());
                    let arguments = member(&params, &["arguments"]);
                    assert_eq!(
                        arguments,
                        member(&format!("{{{original}}}"), &["arguments"])
                    );
                }
            }
        }
        stage.stop().await;
    }
}

/// A result without a state has none, and neither has a request.
#[tokio::test]
async fn what_is_absent_stays_absent() {
    let stage = stage("0").await;
    let result = r#"{"resultType":"input_required","inputRequests":{}}"#;
    stage.server.answers("tools/call", result);
    let client = stage.client(Front::Modern).await;
    let (method, members) = CALLS[0];
    let answer = answered(&client, method, members).await;
    assert_eq!(answer.result.as_deref(), Some(result));
    let again = format!(r#"{members},"inputResponses":{{}}"#);
    answered(&client, method, &again).await.value();
    let heard = stage.server.seen().pop().unwrap();
    assert_eq!(heard.param(&["requestState"]), None);
    stage.stop().await;
}

/// Nobody else's, for nothing else, changed by nobody: the server does not hear of it, and the record
/// says so.
#[tokio::test]
async fn a_state_is_good_for_its_agent_and_call_alone() {
    let server = server(r#""s""#).await;
    let tools = r#"[{"name":"echo","inputSchema":{}},{"name":"other","inputSchema":{}}]"#;
    server.backend.set_list("tools/list", tools);
    let stage = Stage::with(server, AGENTS, "").await;
    let ann = client_of(&stage.gateway, ANN).await;
    let bob = client_of(&stage.gateway, BOB).await;
    let (call, members) = CALLS[0];
    let sealed = given(&ann, call, members).await;
    answered(&ann, call, &with(members, &sealed)).await.value();
    answered(&ann, call, &with(members, &sealed)).await.value();

    let elsewhere = "issued for another agent or call";
    let foreign = "not issued by this gateway";
    let state = |sealed: &str| with(members, sealed);
    let changed = sealed.replace(r#"\"s\""#, r#"\"t\""#);
    let later = {
        let mut parts: Vec<_> = sealed.split('.').map(str::to_owned).collect();
        parts[1] = (parts[1].parse::<u64>().unwrap() + 1).to_string();
        parts.join(".")
    };
    let (prompt, greet) = CALLS[1];
    let twice = format!(r#"{},"request\u0053tate":"s""#, state(&sealed));
    for (who, method, members, why) in [
        (&bob, call, state(&sealed), elsewhere),
        (
            &ann,
            call,
            with(&members.replace("1.5", "1.6"), &sealed),
            elsewhere,
        ),
        (
            &ann,
            call,
            with(r#""name":"mcp_x_echo""#, &sealed),
            elsewhere,
        ),
        (
            &ann,
            call,
            with(&members.replace("echo", "other"), &sealed),
            elsewhere,
        ),
        (&ann, prompt, with(greet, &sealed), elsewhere),
        (&ann, call, state(&changed), elsewhere),
        (&ann, call, state(&later), elsewhere),
        (&ann, call, state(r#""s""#), foreign),
        (&ann, call, state(r#""v3.1.2""#), foreign),
        (&ann, call, state(&sealed.replace("v3.", "v2.")), foreign),
        (&ann, call, state("null"), foreign),
        (&ann, call, state(r#""\ud800""#), foreign),
        (&ann, call, twice, foreign),
    ] {
        let message = refused(&stage, who, method, &members).await;
        assert!(message.contains(why), "{members} {message}");
    }
    answered(&ann, call, &with(members, &sealed)).await.value();
    stage.stop().await;
}

/// A request whose answer was lost can be made again, but not without end, and each state is counted for itself,
/// also where its server gives two that are alike. Each use is a call that is paid for.
#[tokio::test]
async fn a_state_is_good_for_a_few_requests() {
    for front in FRONTS {
        let stage = stage(r#""s""#).await;
        let client = stage.client(front).await;
        for (method, members) in CALLS {
            let one = given(&client, method, members).await;
            let other = given(&client, method, members).await;
            assert_ne!(one, other);
            for _ in 0..STATE_USES_MAX {
                answered(&client, method, &with(members, &one))
                    .await
                    .value();
                assert_eq!(stage.last().decision, RecordedDecision::Allowed);
            }
            // However it is spelled.
            let plus = one.replacen("v3.", "v3.+", 1);
            for state in [&one, &plus] {
                let why = refused(&stage, &client, method, &with(members, state)).await;
                assert!(why.contains("used 8 times"), "{why}");
            }
            answered(&client, method, &with(members, &other))
                .await
                .value();
        }
        stage.stop().await;
    }
}

/// Requests at once are no way around the bound.
#[tokio::test]
async fn requests_at_once_are_counted() {
    let stage = stage(r#""s""#).await;
    let client = stage.client(Front::Modern).await;
    let (method, members) = CALLS[0];
    let sealed = given(&client, method, members).await;
    let before = stage.server.seen().len();
    let ids: Vec<String> = (0..4 * STATE_USES_MAX).map(|id| id.to_string()).collect();
    for id in &ids {
        client.ask(id, method, &with(members, &sealed)).await;
    }
    let mut refused = 0;
    for _ in &ids {
        let answer = client.next().await;
        refused += usize::from(answer.error.is_some());
    }
    assert_eq!(refused, ids.len() - usize::from(STATE_USES_MAX));
    let reached = stage.server.seen().len() - before;
    assert_eq!(reached, usize::from(STATE_USES_MAX));
    stage.stop().await;
}

/// What did not reach the server was no use of the state.
#[tokio::test]
async fn a_refused_request_is_no_use() {
    let scan = "scan = { arguments = { email = \"block\" } }\n";
    let settings = format!("{AGENTS}{scan}");
    let stage = Stage::with(server(r#""s""#).await, &settings, "").await;
    let client = stage.client(Front::Modern).await;
    let (method, members) = CALLS[0];
    let sealed = given(&client, method, members).await;
    let good = with(members, &sealed);
    let blocked = good.replace("{},", r#"{"k":{"to":"ann.lee@example.org"}},"#);
    let before = stage.server.seen().len();
    for _ in 0..=STATE_USES_MAX {
        let answer = answered(&client, method, &blocked).await;
        assert_eq!(code_of(&answer), "PII_DETECTED");
    }
    assert_eq!(stage.server.seen().len(), before);
    for _ in 0..STATE_USES_MAX {
        answered(&client, method, &good).await.value();
    }
    refused(&stage, &client, method, &good).await;
    stage.stop().await;
}

/// Arguments are the same by what they say, to the last digit: identifiers are larger than doubles
/// tell apart.
#[tokio::test]
async fn arguments_are_the_same_to_the_last_digit() {
    let stage = stage(r#""s""#).await;
    let client = stage.client(Front::Modern).await;
    let call = |arguments: &str| format!(r#""name":"mcp_x_echo"{arguments}"#);
    for (first, same, other) in [
        (
            r#","arguments":{"id":1234567890123456789}"#,
            r#","arguments":{"id":1234567890123456789.0}"#,
            r#","arguments":{"id":1234567890123456788}"#,
        ),
        (
            r#","arguments":{"n":1e999,"s":"\ud800"}"#,
            r#","arguments":{"s":"\ud800", "n":10e998}"#,
            r#","arguments":{"n":1e998,"s":"\ud800"}"#,
        ),
        (
            r#","arguments":{"a":1,"a":2}"#,
            r#","arguments":{"a":1,"a":2}"#,
            r#","arguments":{"a":2}"#,
        ),
        ("", r#","arguments":{ }"#, r#","arguments":null"#),
    ] {
        let sealed = given(&client, "tools/call", &call(first)).await;
        let again = with(&call(same), &sealed);
        answered(&client, "tools/call", &again).await.value();
        refused(&stage, &client, "tools/call", &with(&call(other), &sealed)).await;
    }
    stage.stop().await;
}

/// A result that asks for nothing more is its client's as it is.
#[tokio::test]
async fn a_complete_result_has_no_state() {
    let stage = stage("0").await;
    for result in [
        r#"{"resultType":"complete","content":[],"requestState":"own"}"#,
        r#"{"content":[],"requestState":{"n":1.0}}"#,
    ] {
        stage.server.answers("tools/call", result);
        let client = stage.client(Front::Modern).await;
        let answer = answered(&client, CALLS[0].0, CALLS[0].1).await;
        assert_eq!(answer.result.as_deref(), Some(result));
    }
    stage.stop().await;
}

/// Servers that ignore the case of names would take a name that is alike for a state, and one of two
/// arguments for those it was given for.
#[tokio::test]
async fn nothing_passes_for_a_state() {
    let stage = stage(r#""s""#).await;
    let client = stage.client(Front::Modern).await;
    let (call, members) = CALLS[0];
    let sealed = given(&client, call, members).await;
    let good = with(members, &sealed);
    for members in [
        format!(r#"{members},"RequestState":"s""#),
        format!(r#"{members},"reque\u017ftState":"s""#),
        format!(r#"{good},"requeststate":"s""#),
        format!(r#""arguments":{{}},{good}"#),
        format!(r#"{good},"Arguments":{{}}"#),
    ] {
        refused(&stage, &client, call, &members).await;
    }
    answered(&client, call, &good).await.value();
    stage.stop().await;
}

/// Two servers with tools of one name are two.
#[tokio::test]
async fn a_state_is_of_one_server() {
    let (one, two) = (server(r#""s""#).await, server(r#""s""#).await);
    let gateway = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("x", &one.backend)
        .server("y", &two.backend)
        .start()
        .await;
    let client = client_of(&gateway, ANN).await;
    let (method, members) = CALLS[0];
    let sealed = given(&client, method, members).await;
    let other = members.replace("mcp_x_", "mcp_y_");
    let answer = answered(&client, method, &with(&other, &sealed)).await;
    assert_eq!(code_of(&answer), "INVALID_STATE");
    assert_eq!(two.seen().len(), 0);
    gateway.stop().await;
}

/// What was given out before a restart, or by another gateway of the same data directory, is good.
#[tokio::test]
async fn a_state_outlives_the_process() {
    let server = Arc::new(server(r#""s""#).await);
    let gateways = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("x", &server.backend);
    let (first, second) = (gateways.start().await, gateways.start().await);
    let (method, members) = CALLS[0];
    let sealed = given(&client_of(&first, ANN).await, method, members).await;
    first.stop().await;
    let again = with(members, &sealed);
    answered(&client_of(&second, ANN).await, method, &again)
        .await
        .value();
    second.stop().await;
    let third = gateways.start().await;
    answered(&client_of(&third, ANN).await, method, &again)
        .await
        .value();
    third.stop().await;

    let stranger = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("x", &server.backend)
        .start()
        .await;
    let answer = answered(&client_of(&stranger, ANN).await, method, &again).await;
    assert_eq!(code_of(&answer), "INVALID_STATE", "a secret of its own");
    stranger.stop().await;
}

/// Scans look past it on both ways, and what they mask is put back around it.
#[tokio::test]
async fn masks_leave_a_state_alone() {
    let server = server("0").await;
    let state = r#""bob.roe@example.org eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlc2ln""#;
    let asks = json!({
        "resultType": "input_required",
        "requestState": value(state),
        "inputRequests": { "k": { "params": { "message": "ann.lee@example.org" } } },
    });
    server.does("tools/call", Auto::Result(asks.to_string()));
    let settings = "[governance]\nprice = \"0\"\nscan = { results = { \"*\" = \"redact\" }, arguments = { \"*\" = \"redact\" } }\n";
    let stage = Stage::with(server, settings, "").await;
    let client = stage.client(Front::Modern).await;
    let call = r#""name":"mcp_x_echo","arguments":{"to":"ann.lee@example.org"}"#;
    let answer = answered(&client, "tools/call", call).await;
    let result = answer.value();
    assert_eq!(result["inputRequests"]["k"]["params"]["message"], "[EMAIL]");
    let sealed = result["requestState"].to_string();
    answered(&client, "tools/call", &with(call, &sealed))
        .await
        .value();
    let heard = stage.server.seen().pop().unwrap();
    assert_eq!(heard.param(&["requestState"]).as_deref(), Some(state));
    assert_eq!(
        heard.param(&["arguments", "to"]).as_deref(),
        Some(r#""[EMAIL]""#)
    );
    stage.stop().await;
}

/// What legacy clients call so is nothing to a server of 2026-07-28, which would take it for its own.
#[tokio::test]
async fn legacy_clients_have_no_states() {
    let stage = stage(r#""s""#).await;
    stage.server.answers(
        "tools/call",
        r#"{"resultType":"complete","content":[],"requestState":"s"}"#,
    );
    let client = stage.client(Front::Streamable).await;
    let members = with(CALLS[0].1, r#""own""#);
    let members = format!(r#"{members},"RequestState":"x""#);
    answered(&client, "tools/call", &format!(r#"{members},"kept":1"#))
        .await
        .value();
    let heard = stage.server.seen().pop().unwrap();
    for name in ["requestState", "RequestState", "inputResponses"] {
        assert_eq!(heard.param(&[name]), None);
    }
    assert_eq!(heard.param(&["kept"]).as_deref(), Some("1"));
    stage.stop().await;
}
