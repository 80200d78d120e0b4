//! Callers with connections of their own: what fails on those is nobody else's failure.

use serde_json::Value;

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, client::Who, soon, value,
};

const WELL: &str = r#""name":"mcp_x_echo""#;
const ILL: &str = r#""name":"mcp_x_other""#;

const A: Who<'static> = Who {
    name: "a",
    key: "tollbridge-test-key-of-the-agent-a",
};
const B: Who<'static> = Who {
    name: "b",
    key: "tollbridge-test-key-of-the-agent-b",
};

/// A gateway for the agents `a`, `b`, in front of a server that answers `echo`, and fails `other`.
async fn governed(transport: Transport, keys: &str) -> (Backend, Gateway) {
    let backend = Backend::start(transport, Era::Legacy).await;
    backend.on_request(|request| match request.param(&["name"]).as_deref() {
        Some(r#""echo""#) => Some(Auto::Result(r#"{"content":[]}"#.to_owned())),
        Some(r#""other""#) => Some(Auto::Die),
        Some(_) | None => None,
    });
    let agents = [A, B].map(|who| {
        let Who { name, key } = who;
        format!("[agents.{name}]\nkeys = [\"{key}\"]\nadmin = true\n")
    });
    let governance =
        "[governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }\nbudget = \"off\"\n";
    let retry = "retry = { base = \"10ms\", max = \"10ms\", starts_per_minute = 1000 }";
    let gateway = TestGateway::new()
        .setting(&format!("{governance}{}", agents.concat()))
        .server_with("x", &backend, &format!("{retry}\n{keys}"))
        .start()
        .await;
    (backend, gateway)
}

/// The code of the error with which a call ends, if it does.
async fn call(client: &Client, id: &str, tool: &str) -> Option<String> {
    client.ask(id, "tools/call", tool).await;
    let answer = client.answer(id).await;
    let failure = answer.error.is_some().then(|| answer.failure())?;
    Some(failure["data"]["code"].as_str().unwrap().to_owned())
}

/// Makes calls that fail until the breaker answers them; how many were lost.
async fn fail(client: &Client, first_id: usize) -> usize {
    let calls = async {
        let mut lost = 0;
        for id in first_id.. {
            match call(client, &id.to_string(), ILL).await.as_deref() {
                Some("BREAKER_OPEN") => return lost,
                Some("LOST") => lost += 1,
                // Its connection is being made again.
                Some(_) | None => {}
            }
        }
        lost
    };
    soon("the breaker has opened", calls).await
}

/// What `/status` says of the server.
async fn status(gateway: &Gateway) -> Value {
    let answer = gateway.http();
    let answer = answer.get("/status", &[("x-api-key", A.key)]).await;
    value(&answer.text().await)["servers"][0].clone()
}

async fn client(gateway: &Gateway, who: Who<'_>) -> Client {
    gateway.client_of(who, Front::Streamable, "/mcp").await
}

/// Whatever becomes of the connections of one caller, the calls of others are let through.
#[tokio::test]
async fn the_failures_of_one_caller_hold_back_nobody_else() {
    for (transport, isolation) in [
        (Transport::Stdio, "agent"),
        (Transport::Stdio, "auto"),
        (Transport::Stdio, "session"),
        (Transport::Stdio, "pool"),
        (Transport::Stdio, "call"),
        (Transport::Stdio, "shared"),
        (Transport::WebSocket, "agent"),
        (Transport::Http, "shared"),
    ] {
        let what = format!("{transport:?} {isolation}");
        let keys =
            format!("isolation = \"{isolation}\"\nbreaker = {{ failures = 2, open_for = \"1h\" }}");
        let (_backend, gateway) = governed(transport, &keys).await;
        let (a, b) = (client(&gateway, A).await, client(&gateway, B).await);
        assert!(fail(&a, 1).await > 0, "{what}");
        assert_eq!(call(&b, "1", WELL).await, None, "{what}");
        let held_back = call(&a, "\"well\"", WELL).await;
        assert_eq!(held_back.as_deref(), Some("BREAKER_OPEN"), "{what}");
        let status = status(&gateway).await;
        assert_eq!(status["breaker"]["state"], "closed", "{what}: {status}");
        let [own] = &status["caller_breakers"].as_array().unwrap()[..] else {
            panic!("{what}: {status}");
        };
        assert_eq!(
            (&own["agent"], &own["state"]),
            (&"a".into(), &"open".into())
        );
        assert_eq!(own["session"].is_string(), isolation == "session", "{own}");
        gateway.stop().await;
    }
}

/// However many sessions an agent has, each with a connection of its own, it is one caller for the others.
#[tokio::test]
async fn the_sessions_of_one_agent_are_of_one_caller() {
    let keys = "isolation = \"session\"\nbreaker = { failures = 2, open_for = \"1h\" }";
    let (_backend, gateway) = governed(Transport::Stdio, keys).await;
    for _ in 0..6 {
        let session = client(&gateway, A).await;
        assert_eq!(call(&session, "1", ILL).await.as_deref(), Some("LOST"));
    }
    let b = client(&gateway, B).await;
    assert_eq!(call(&b, "1", WELL).await, None);
    gateway.stop().await;
}

/// Where the connections of one caller after another fail, and nobody is answered, it is the server.
#[tokio::test]
async fn failures_of_several_callers_in_a_row_hold_back_all() {
    let keys = "isolation = \"session\"\nbreaker = { failures = 1, open_for = \"1h\" }";
    for (is_answered, code) in [(true, None), (false, Some("BREAKER_OPEN"))] {
        let (_backend, gateway) = governed(Transport::Stdio, keys).await;
        let (a, b) = (client(&gateway, A).await, client(&gateway, B).await);
        let other = client(&gateway, A).await;
        assert_eq!(call(&a, "1", ILL).await.as_deref(), Some("LOST"));
        if is_answered {
            assert_eq!(call(&other, "1", WELL).await, None);
        }
        assert_eq!(call(&b, "1", ILL).await.as_deref(), Some("LOST"));
        assert_eq!(call(&other, "2", WELL).await.as_deref(), code);
        let status = status(&gateway).await;
        let state = if is_answered { "closed" } else { "open" };
        assert_eq!(status["breaker"]["state"], state, "{status}");
        gateway.stop().await;
    }
}
