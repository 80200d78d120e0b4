//! What comes when: progress before its result, nothing after it, and nothing for who has gone.

use std::time::Duration;

use crate::support::{ALL, Auto, Backend, Era, Front, Gateway, TestGateway, Transport, soon};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// A burst of progress arrives whole, in order, and before the result.
#[tokio::test]
async fn a_burst_of_progress_keeps_its_order() {
    for (transport, era) in ALL {
        for front in Front::ALL {
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.call("1", "mcp_x_echo", "42").await;
            let call = backend.asked("tools/call").await;
            for amount in 1..=200 {
                call.progress(amount).await;
            }
            call.answer("{}").await;
            for amount in 1..=200 {
                let told = client.must("notifications/progress").await;
                assert_eq!(told.param(&["progress"]), Some(amount.to_string()));
                assert_eq!(told.param(&["progressToken"]).as_deref(), Some("42"));
            }
            client.answer("1").await;
            gateway.stop().await;
        }
    }
}

/// In 2026-07-28 progress rises; older servers and clients may have it otherwise.
#[tokio::test]
async fn progress_rises_for_modern_clients() {
    const TOLD: [&str; 7] = ["1", "1.0", "2.5", "-1", "2", "3e0", "\"far\""];
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        for front in Front::ALL {
            let client = gateway.client(front, "/mcp", "{}").await;
            client.call("1", "mcp_x_echo", "42").await;
            let call = backend.asked("tools/call").await;
            let token = call.token().unwrap();
            for progress in TOLD {
                let params = format!(r#"{{"progressToken":{token},"progress":{progress}}}"#);
                call.tell("notifications/progress", &params).await;
            }
            call.answer("{}").await;
            let is_modern = front.is_modern();
            let rises = |told: &&&str| !is_modern || ["1", "2.5", "3e0", "\"far\""].contains(told);
            for progress in TOLD.iter().filter(rises) {
                let told = client.must("notifications/progress").await;
                assert_eq!(
                    told.param(&["progress"]).as_deref(),
                    Some(*progress),
                    "{front:?}"
                );
            }
            client.answer("1").await;
        }
        gateway.stop().await;
    }
}

/// Progress reaches only who asked for it, and not after the result.
#[tokio::test]
async fn progress_nobody_asked_for_is_dropped() {
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        assert_eq!(call.token(), None, "no token is invented");
        let id = call.id();
        let invented = format!(r#"{{"progressToken":{id},"progress":1}}"#);
        call.tell("notifications/progress", &invented).await;
        call.answer("{}").await;
        client.answer("1").await;
        client.call("2", "mcp_x_echo", r#""mine""#).await;
        let call = backend.asked("tools/call").await;
        call.progress(1).await;
        let stranger = r#"{"progressToken":"mine","progress":9}"#;
        call.tell("notifications/progress", stranger).await;
        call.answer("{}").await;
        if matches!(
            transport,
            Transport::Stdio | Transport::WebSocket | Transport::Sse
        ) {
            call.progress(3).await;
        }
        assert_eq!(
            client
                .must("notifications/progress")
                .await
                .param(&["progress"])
                .as_deref(),
            Some("1")
        );
        client.answer("2").await;
        // The server's words travel in order, so what came late has been dropped by then.
        client.ask("3", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("3").await;
        gateway.stop().await;
    }
}

/// A cancellation reaches the server under the id that the server knows; a late answer is dropped.
#[tokio::test]
async fn a_cancellation_reaches_the_server() {
    for (transport, era) in ALL {
        for front in [
            Front::Streamable,
            Front::Sse,
            Front::Stdio,
            Front::StdioModern,
        ] {
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.ask(r#""mine""#, "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            client.cancel(r#""mine""#).await;
            let by_stream = matches!(transport, Transport::Http | Transport::HttpEvents);
            if by_stream && era == Era::Modern {
                call.closed().await;
            } else {
                let told = backend.told("notifications/cancelled").await;
                assert_eq!(
                    told.envelope.param(&["requestId"]).as_deref(),
                    Some(call.id()),
                    "{transport:?} {era:?} {front:?}"
                );
                let session = |headers: &http::HeaderMap| headers.get("mcp-session-id").cloned();
                assert_eq!(session(&told.headers), session(&call.headers));
                if !by_stream {
                    call.answer(r#"{"late":true}"#).await;
                }
            }
            if front == Front::Streamable {
                // The POST ends with it.
                let failure = client.answer(r#""mine""#).await.failure();
                assert_eq!(failure["data"]["code"], "CANCELLED", "{failure}");
            }
            gateway
                .status_until("x", |status| status["in_flight"] == 0)
                .await;
            // The next call is served, and nothing else is said.
            client.is_quiet().await;
            gateway.stop().await;
            let more = client.pending().await;
            assert!(more.is_none(), "{transport:?} {era:?} {front:?}: {more:?}");
        }
    }
}

/// What a client says when it cancels reaches the server as it was said, but for the id; at length it
/// is not said.
#[tokio::test]
async fn the_words_of_a_cancellation_reach_the_server() {
    let said = |id: &str| {
        format!(
            r#"{{"reason":"stop\u0021","REQUESTID":{id},"_meta":{{"k":1E400}},"requestId":{id}}}"#
        )
    };
    for (transport, era) in ALL {
        let by_stream = matches!(transport, Transport::Http | Transport::HttpEvents);
        if by_stream && era == Era::Modern {
            continue;
        }
        for front in [
            Front::Streamable,
            Front::Sse,
            Front::Stdio,
            Front::StdioModern,
        ] {
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            let client = gateway.client(front, "/mcp", "{}").await;
            client.ask("7777", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            client
                .notify("notifications/cancelled", &said("7777"))
                .await;
            let heard = backend.told("notifications/cancelled").await.envelope;
            let what = format!("{transport:?} {era:?} {front:?}");
            assert_eq!(heard.params, Some(said(call.id())), "{what}");
            gateway
                .status_until("x", |status| status["in_flight"] == 0)
                .await;
            client.ask("8888", "tools/call", ECHO).await;
            let _call = backend.asked("tools/call").await;
            let long = format!(r#"{{"requestId":8888,"reason":"{}"}}"#, "x".repeat(5000));
            client.notify("notifications/cancelled", &long).await;
            let heard = backend.told("notifications/cancelled").await.envelope;
            let reason = heard.param(&["reason"]);
            let ours = r#""the client cancelled the request""#;
            assert_eq!(reason.as_deref(), Some(ours), "{what}");
            gateway.stop().await;
        }
    }
}

/// Closing the stream cancels in 2026-07-28 and does not before.
#[tokio::test]
async fn a_disconnect_cancels_in_the_modern_era_only() {
    for transport in [Transport::Stdio, Transport::Http, Transport::WebSocket] {
        for era in [Era::Legacy, Era::Modern] {
            let (backend, gateway) = Gateway::governed(transport, era, "").await;
            let modern = gateway.client(Front::Modern, "/mcp", "{}").await;
            let sent = modern.call("1", "mcp_x_echo", "1").await;
            let call = backend.asked("tools/call").await;
            call.progress(1).await;
            modern.must("notifications/progress").await;
            sent.disconnect();
            if transport == Transport::Http && era == Era::Modern {
                call.closed().await;
            } else {
                let told = backend.told("notifications/cancelled").await;
                assert_eq!(
                    told.envelope.param(&["requestId"]).as_deref(),
                    Some(call.id())
                );
            }
            let legacy = gateway.client(Front::Streamable, "/mcp", "{}").await;
            let sent = legacy.call("1", "mcp_x_echo", "1").await;
            let call = backend.asked("tools/call").await;
            call.progress(1).await;
            legacy.must("notifications/progress").await;
            sent.disconnect();
            legacy.is_quiet().await;
            legacy.ask("2", "tools/call", ECHO).await;
            let second = backend.asked("tools/call").await;
            assert!(backend.was_told().await.is_none(), "{transport:?} {era:?}");
            call.answer("{}").await;
            second.answer("{}").await;
            legacy.answer("2").await;
            gateway.stop().await;
        }
    }
}

/// A disconnect before anything was answered counts too.
#[tokio::test]
async fn a_disconnect_before_the_first_byte_cancels() {
    let (backend, gateway) = Gateway::governed(Transport::Stdio, Era::Legacy, "").await;
    let modern = gateway.client(Front::Modern, "/mcp", "{}").await;
    let sent = modern.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    sent.disconnect();
    let told = backend.told("notifications/cancelled").await;
    assert_eq!(
        told.envelope.param(&["requestId"]).as_deref(),
        Some(call.id())
    );
    gateway.stop().await;
}

/// A call that times out fails clearly, is cancelled at the server, and its late answer is lost.
#[tokio::test]
async fn a_call_times_out_without_progress_only() {
    for (transport, era) in ALL {
        let keys = "timeout = \"300ms\"\nmax_total_timeout = \"5s\"";
        let (backend, gateway) = Gateway::governed(transport, era, keys).await;
        let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
        client.call("1", "mcp_x_echo", "1").await;
        let call = backend.asked("tools/call").await;
        let failed = client.answer("1").await;
        let message = failed.failure()["message"].as_str().unwrap().to_owned();
        assert!(
            message.ends_with("no response within 300ms (its `timeout`)"),
            "{message}"
        );
        let by_stream = matches!(transport, Transport::Http | Transport::HttpEvents);
        if by_stream && era == Era::Modern {
            call.closed().await;
        } else {
            backend.told("notifications/cancelled").await;
        }
        if !by_stream {
            call.answer(r#"{"late":true}"#).await;
        }
        client.ask("2", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("2").await;
        gateway.stop().await;
    }
}

/// Signs of life keep a call going beyond its timeout.
#[tokio::test]
async fn progress_keeps_a_call_alive() {
    let keys = "timeout = \"400ms\"\nmax_total_timeout = \"10s\"";
    let (backend, gateway) = Gateway::governed(Transport::Stdio, Era::Legacy, keys).await;
    let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
    client.call("1", "mcp_x_echo", "1").await;
    let call = backend.asked("tools/call").await;
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(100));
    for amount in 1..=8 {
        ticks.tick().await;
        call.progress(amount).await;
        client.must("notifications/progress").await;
    }
    call.answer("{}").await;
    client.answer("1").await;
    gateway.stop().await;
}

/// One slow call never blocks another on the same connection.
#[tokio::test]
async fn answers_come_in_any_order() {
    for (transport, era) in ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
        let mut calls = Vec::new();
        for id in 0..20 {
            client.ask(&id.to_string(), "tools/call", ECHO).await;
            calls.push(backend.asked("tools/call").await);
        }
        for (id, call) in calls.iter().enumerate().rev() {
            call.answer(&format!(r#"{{"n":{id}}}"#)).await;
            let answer = client.answer(&id.to_string()).await;
            assert_eq!(answer.value()["n"], id, "{transport:?} {era:?}");
        }
        gateway.stop().await;
    }
}

/// A request id that is still in use is refused where answers come on one stream, so that they cannot be mixed.
#[tokio::test]
async fn an_id_in_use_is_refused() {
    let (backend, gateway) = Gateway::governed(Transport::Stdio, Era::Legacy, "").await;
    backend.on_request(|request| {
        (request.param(&["name"]).as_deref() == Some(r#""other""#)).then_some(Auto::Nothing)
    });
    for front in [Front::Sse, Front::Stdio, Front::StdioModern] {
        let client = gateway.client(front, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        client
            .ask("1", "tools/call", r#""name":"mcp_x_other""#)
            .await;
        assert_eq!(client.answer("1").await.code(), -32600, "{front:?}");
        call.answer(r#"{"n":1}"#).await;
        assert_eq!(client.answer("1").await.value()["n"], 1);
    }
    soon("it stops", gateway.stop()).await;
}

/// What several clients want to be logged is asked for in one message after the other: of two under way the
/// server could take that for less last.
#[tokio::test]
async fn log_levels_are_asked_for_one_after_the_other() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.on_request(|request| match request.method() {
        "logging/setLevel" => Some(Auto::Hand),
        "tools/call" => Some(Auto::Result("{}".to_owned())),
        _ => None,
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let (one, other) = (
        gateway.client(Front::Streamable, "/mcp", "{}").await,
        gateway.client(Front::Streamable, "/mcp", "{}").await,
    );
    for (client, level) in [(&one, "error"), (&other, "debug")] {
        let params = format!(r#""level":"{level}""#);
        client.ask("1", "logging/setLevel", &params).await;
        client.answer("1").await.value();
    }
    one.ask("2", "tools/call", ECHO).await;
    let first = backend.asked("logging/setLevel").await;
    other.ask("2", "tools/call", ECHO).await;
    let second = backend.asked("logging/setLevel");
    let early = tokio::time::timeout(Duration::from_millis(300), second).await;
    assert!(early.is_err(), "the first is not answered yet: {early:?}");
    first.answer("{}").await;
    let second = backend.asked("logging/setLevel").await;
    let level = second.envelope.param(&["level"]);
    assert_eq!(level.as_deref(), Some("\"debug\""));
    second.answer("{}").await;
    for client in [one, other] {
        client.answer("2").await.value();
    }
    gateway.stop().await;
}
