//! Servers behind HTTP: sessions that end, streams that break, credentials that are refused.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::support::{
    Auto, Backend, Client, Era, Front, Gateway, TestGateway, Transport, soon,
    wire::{event, notification},
};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// A server that has forgotten the session is greeted again and asked again; the caller notices
/// nothing.
#[tokio::test]
async fn a_forgotten_session_is_renewed() {
    for front in [Front::Streamable, Front::Modern] {
        for (capabilities, status) in [("{}", 404), ("{}", 410), (r#"{"sampling":{}}"#, 404)] {
            let backend = Backend::start(Transport::Http, Era::Legacy).await;
            backend.deny_sessions_with(status, "");
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(front, "/mcp", capabilities).await;
            for round in 0..2 {
                client.ask("1", "tools/call", ECHO).await;
                backend.asked("tools/call").await.answer("{}").await;
                client.answer("1").await;
                backend.forget_sessions();
                client.ask("2", "tools/call", ECHO).await;
                backend
                    .asked("tools/call")
                    .await
                    .answer(&format!(r#"{{"n":{round}}}"#))
                    .await;
                assert_eq!(
                    client.answer("2").await.value()["n"],
                    round,
                    "{front:?} {capabilities}"
                );
            }
            gateway.stop().await;
        }
    }
}

/// Some servers answer 400 in a session that they do not know, and say so in words; what else is wrong
/// with a request is no reason to begin anew.
#[tokio::test]
async fn a_session_may_be_denied_in_words() {
    const NULL: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID provided"}}"#;
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let mut greeted = backend.greeted();
    for denial in ["Invalid session ID", NULL] {
        backend.deny_sessions_with(400, denial);
        backend.forget_sessions();
        client.ask("1", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("1").await.value();
        assert_eq!(backend.greeted(), greeted + 1, "{denial}");
        greeted += 1;
    }
    backend.deny_sessions_with(400, "Bad Request: the weather is bad");
    backend.forget_sessions();
    client.ask("2", "tools/call", ECHO).await;
    let failure = client.answer("2").await.failure();
    assert_eq!(failure["data"]["reason"], "bad_answer", "{failure}");
    assert_eq!(backend.greeted(), greeted);
    gateway.stop().await;
}

/// A session that is denied is noticed without a call: on the standing stream, and by what a client
/// says beside its calls where there is none.
#[tokio::test]
async fn a_denied_session_is_renewed_without_a_call() {
    for (status, denial) in [(404, ""), (400, "Invalid session ID")] {
        for has_stream in [true, false] {
            let backend = Backend::start(Transport::Http, Era::Legacy).await;
            backend.on_http(move |verb, _| (verb == "GET" && !has_stream).then_some(405));
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway
                .client(Front::Streamable, "/mcp/servers/x", "{}")
                .await;
            let greeted = backend.greeted();
            backend.deny_sessions_with(status, denial);
            backend.forget_sessions();
            if !has_stream {
                client.notify("notifications/vendor/word", "{}").await;
            }
            let renewed = async {
                while backend.greeted() == greeted {
                    tokio::task::yield_now().await;
                }
            };
            soon(&format!("{status}, {has_stream}: a session"), renewed).await;
            gateway.stop().await;
        }
    }
}

/// Several calls that meet a forgotten session at once are all served.
#[tokio::test]
async fn many_calls_survive_a_forgotten_session() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    backend.on_request(|request| {
        (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
    backend.forget_sessions();
    for id in 0..20 {
        client.ask(&id.to_string(), "tools/call", ECHO).await;
    }
    for _ in 0..20 {
        let answer = client.next().await;
        assert!(answer.result.is_some(), "{answer:?}");
    }
    gateway.stop().await;
}

/// A refused credential is shown as such, and nothing else is held up by it.
#[tokio::test]
async fn a_refused_credential_needs_a_person() {
    for (transport, status, refused) in [
        (Transport::Http, 401, &["GET", "POST"][..]),
        (Transport::Http, 403, &["GET", "POST"]),
        (Transport::Sse, 401, &["GET", "POST"]),
        (Transport::Sse, 403, &["POST"]),
        (Transport::WebSocket, 401, &["GET"]),
        (Transport::WebSocket, 403, &["GET"]),
    ] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let open = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&open);
        backend.on_http(move |verb, _| {
            (refused.contains(&verb) && !gate.load(Ordering::SeqCst)).then_some(status)
        });
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let found = gateway
            .status_until("x", |s| s["state"] == "needs_reauth")
            .await;
        assert!(
            found["reason"].as_str().unwrap().contains("credential"),
            "{found}"
        );
        // Once it is accepted, the server comes up by itself.
        open.store(true, Ordering::SeqCst);
        gateway
            .status_until("x", |s| s["state"] == "connected")
            .await;
        gateway.stop().await;
    }
}

/// A call that is refused later says what is wrong.
#[tokio::test]
async fn a_credential_may_be_refused_later() {
    for (transport, era, status) in [
        (Transport::Http, Era::Legacy, 401),
        (Transport::Http, Era::Modern, 401),
        (Transport::Sse, Era::Legacy, 401),
        (Transport::Sse, Era::Legacy, 403),
    ] {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        backend.on_http(move |_, _| Some(status));
        client.ask("1", "tools/call", ECHO).await;
        let failed = client.answer("1").await.failure();
        assert_eq!(failed["data"]["reason"], "needs_reauth", "{failed}");
        gateway
            .status_until("x", |s| s["state"] == "needs_reauth")
            .await;
        // Once a call is accepted again, the server is listed again.
        backend.on_http(|_, _| None);
        backend.on_request(|request| {
            (request.method() == "tools/call").then(|| Auto::Result("{}".to_owned()))
        });
        let accepted = async {
            loop {
                client.ask("2", "tools/call", ECHO).await;
                if client.answer("2").await.result.is_some() {
                    return;
                }
            }
        };
        soon("a call is accepted", accepted).await;
        gateway
            .status_until("x", |s| s["state"] == "connected")
            .await;
        gateway.stop().await;
    }
}

/// Bearer tokens, keys and further headers go with every request.
#[tokio::test]
async fn credentials_are_sent() {
    for transport in [Transport::Http, Transport::Sse] {
        for (keys, header, expect) in [
            (
                r#"auth = { type = "bearer", token = "secret" }"#,
                "authorization",
                "Bearer secret",
            ),
            (
                r#"auth = { type = "header", name = "X-API-Key", value = "k" }"#,
                "x-api-key",
                "k",
            ),
            (r#"headers = { X-Team = "blue" }"#, "x-team", "blue"),
        ] {
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.on_http(move |_, headers| {
                let sent = headers.get(header).map(|value| value.to_str().unwrap());
                (sent != Some(expect)).then_some(401)
            });
            let gateway = TestGateway::new()
                .server_with("x", &backend, keys)
                .start()
                .await;
            gateway
                .status_until("x", |s| s["state"] == "connected")
                .await;
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            client.ask("1", "tools/call", ECHO).await;
            backend.asked("tools/call").await.answer("{}").await;
            client.answer("1").await;
            let page = gateway.http().get("/status", &[]).await.text().await;
            assert!(!page.contains("secret"), "{page}");
            gateway.stop().await;
        }
    }
}

/// A stream that breaks in the middle of a call is followed from its last event.
#[tokio::test]
async fn a_broken_stream_is_followed_again() {
    for front in [Front::Streamable, Front::Stdio, Front::Modern] {
        let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(front, "/mcp", "{}").await;
        client.call("1", "mcp_x_echo", r#""t""#).await;
        let call = backend.asked("tools/call").await;
        let token = call.token().unwrap();
        let progress = |n: u32| {
            let params = format!(r#"{{"progressToken":{token},"progress":{n}}}"#);
            crate::support::wire::notification("notifications/progress", &params)
        };
        call.raw("id: e0\nretry: 10\ndata: \n\n").await;
        call.raw(crate::support::wire::event(Some("e1"), &progress(1)))
            .await;
        client.must("notifications/progress").await;
        call.die().await;
        let resumed = backend.asked("GET").await;
        assert_eq!(resumed.headers.get("last-event-id").unwrap(), "e1");
        resumed
            .raw(crate::support::wire::event(Some("é2"), &progress(2)))
            .await;
        assert_eq!(
            client
                .must("notifications/progress")
                .await
                .param(&["progress"])
                .as_deref(),
            Some("2")
        );
        resumed.die().await;
        let resumed = backend.asked("GET").await;
        assert_eq!(resumed.headers.get("last-event-id").unwrap(), "é2");
        let answer = crate::support::wire::result(call.id(), r#"{"n":1}"#);
        resumed
            .raw(crate::support::wire::event(Some("e3"), &answer))
            .await;
        assert_eq!(client.answer("1").await.value()["n"], 1, "{front:?}");
        client.is_quiet().await;
        gateway.stop().await;
    }
}

/// What no header can carry nobody can ask for: the call is lost, and what is said on the stream for
/// messages of no call is not taken for the rest of it.
#[tokio::test]
async fn a_stream_whose_place_cannot_be_named_is_not_resumed() {
    let backend = Backend::start(Transport::HttpEvents, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.call("1", "mcp_x_echo", r#""t""#).await;
    let call = backend.asked("tools/call").await;
    call.raw("id: e\u{1}\nretry: 10\ndata: \n\n").await;
    call.die().await;
    let failure = client.answer("1").await.failure();
    assert_eq!(failure["data"]["reason"], "lost", "{failure}");
    gateway.stop().await;
}

/// The stream for messages that belong to no call is tried again when it cannot be opened at first.
#[tokio::test]
async fn a_standing_stream_is_tried_again() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let refused = AtomicBool::new(false);
    backend.on_http(move |verb, _| {
        (verb == "GET" && !refused.swap(true, Ordering::SeqCst)).then_some(503)
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    backend.set_list("tools/list", r#"[{"name":"new","inputSchema":{}}]"#);
    backend.list_changed("tools").await;
    gateway
        .status_until("x", |s| s["state"] == "connected")
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    soon("the new tool is listed", async {
        while client.list("tools").await.len() != 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gateway.stop().await;
}

/// A client that is subscribed to a resource and hears of changes.
async fn subscriber(gateway: &crate::support::Gateway, backend: &Backend) -> Client {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.listen().await;
    let uri = r#""uri":"x+file:///a.txt""#;
    client.ask("1", "resources/subscribe", uri).await;
    let asked = backend.asked("resources/subscribe").await;
    asked.answer("{}").await;
    client.answer("1").await.value();
    client
}

const UPDATED: &str = "notifications/resources/updated";
const TOOL: &str = r#"[{"name":"new","inputSchema":{}}]"#;

/// What a server said while its standing stream was gone is said by nobody else: its lists are read
/// again, and subscribers are told that their resources may have been updated.
#[tokio::test]
async fn a_gap_in_the_standing_stream_is_made_up_for() {
    for breaks in [true, false] {
        let backend = Backend::start(Transport::Http, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = subscriber(&gateway, &backend).await;
        backend.set_list("tools/list", TOOL);
        backend.cut_stream(breaks).await;
        let (first, second) = (client.next().await, client.next().await);
        let mut told = [first.method(), second.method()];
        told.sort_unstable();
        let changed = "notifications/tools/list_changed";
        assert_eq!(told, [UPDATED, changed], "{breaks}");
        assert_eq!(client.list("tools").await.len(), 1);
        client.is_quiet().await;
        gateway.stop().await;
    }
}

/// A stream that is resumed from its last event, whatever that is called, has no gap.
#[tokio::test]
async fn a_standing_stream_that_is_resumed_has_no_gap() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = subscriber(&gateway, &backend).await;
    let updated = |title: &str| {
        let params = format!(r#"{{"uri":"file:///a.txt","title":"{title}"}}"#);
        notification(UPDATED, &params)
    };
    let told = async |title: &str| {
        let told = client.must(UPDATED).await;
        assert_eq!(told.param(&["title"]), Some(format!("\"{title}\"")));
    };
    backend.utter_raw(&event(Some("ü1"), &updated("one"))).await;
    told("one").await;
    backend.cut_stream(false).await;
    let resumed = backend.asked("GET").await;
    assert_eq!(resumed.headers.get("last-event-id").unwrap(), "ü1");
    resumed.raw(event(Some("ü2"), &updated("two"))).await;
    told("two").await;
    client.is_quiet().await;
    resumed.raw(event(Some("ü3"), &updated("three"))).await;
    told("three").await;
    client.is_quiet().await;
    gateway.stop().await;
}

/// What changed between the listing and the first standing stream is found out.
#[tokio::test]
async fn a_standing_stream_that_opens_late_hides_no_change() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let is_open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&is_open);
    backend.on_http(move |verb, _| (verb == "GET" && !gate.load(Ordering::SeqCst)).then_some(503));
    let gateway = TestGateway::new().server("x", &backend).start().await;
    assert_eq!(gateway.tools().await.len(), 2);
    backend.set_list("tools/list", TOOL);
    is_open.store(true, Ordering::SeqCst);
    gateway.tools_until(|tools| tools == ["mcp_x_new"]).await;
    gateway.stop().await;
}

/// A server of the old transport that acknowledges a call only with its answer holds up no other.
#[tokio::test]
async fn late_acknowledgements_hold_up_nobody() {
    let backend = Backend::start(Transport::Sse, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    backend.acknowledge_late();
    client.ask("1", "tools/call", ECHO).await;
    let first = backend.asked("tools/call").await;
    client.ask("2", "tools/call", ECHO).await;
    backend.asked("tools/call").await.answer("{}").await;
    client.answer("2").await;
    first.answer("{}").await;
    client.answer("1").await;
    gateway.stop().await;
}

/// A health check finds out what refusals of a server of the old transport mean: that the credential
/// is not taken, or that the session is gone.
#[tokio::test]
async fn health_checks_of_the_old_transport_tell_refusals_apart() {
    const HASTY: &str = "health = { interval = \"50ms\", timeout = \"500ms\", failures = 100 }";
    let start = async || {
        let backend = Backend::start(Transport::Sse, Era::Legacy).await;
        let gateway = TestGateway::new().server_with("x", &backend, HASTY);
        let gateway = gateway.start().await;
        let up = |s: &serde_json::Value| s["state"] == "connected";
        gateway.status_until("x", up).await;
        (backend, gateway)
    };
    for status in [401, 403] {
        let (backend, gateway) = start().await;
        backend.on_http(move |verb, _| (verb == "POST").then_some(status));
        gateway
            .status_until("x", |s| s["state"] == "needs_reauth")
            .await;
        backend.on_http(|_, _| None);
        gateway
            .status_until("x", |s| s["state"] == "connected")
            .await;
        assert_eq!(backend.greeted(), 1, "{status}: its stream stays open");
        gateway.stop().await;
    }
    for status in [404, 410] {
        let (backend, gateway) = start().await;
        backend.deny_sessions_with(status, "");
        backend.forget_sessions();
        let renewed = async {
            while backend.greeted() == 1 {
                tokio::task::yield_now().await;
            }
        };
        soon(&format!("{status}: a session"), renewed).await;
        gateway.stop().await;
    }
}

/// A server of the old transport may refuse a message: that concerns who sent it, and nobody else on
/// the connection.
#[tokio::test]
async fn a_refused_message_concerns_its_sender_only() {
    const ECHO: &str = r#""name":"echo""#;
    for status in [400, 408, 413, 429] {
        let backend = Backend::start(Transport::Sse, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let path = "/mcp/servers/x";
        let client = gateway.client(Front::Streamable, path, "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        let first = backend.asked("tools/call").await;
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&refused);
        backend.on_http(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            Some(status)
        });
        client.ask("2", "tools/call", ECHO).await;
        let failed = client.answer("2").await.failure();
        assert_eq!(failed["data"]["reason"], "bad_answer", "{failed}");
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(&format!("HTTP {status}")), "{message}");
        client.notify("notifications/vendor/word", "{}").await;
        let both = async {
            while refused.load(Ordering::SeqCst) < 2 {
                tokio::task::yield_now().await;
            }
        };
        soon("the notification is refused", both).await;
        backend.on_http(|_, _| None);
        client.ask("3", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("3").await.value();
        first.answer("{}").await;
        client.answer("1").await.value();
        assert_eq!(backend.greeted(), 1, "{status}");
        gateway.stop().await;
    }
}

/// A server of the old transport that does not know its session any more is greeted anew, although the
/// stream is still open; many say so with 400 and in words.
#[tokio::test]
async fn a_denied_session_of_the_old_transport_is_renewed() {
    for (status, denial) in [
        (404, ""),
        (410, ""),
        (400, "No transport found for sessionId"),
    ] {
        let backend = Backend::start(Transport::Sse, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        // It keeps the stream open.
        let _first = backend.asked("tools/call").await;
        let greeted = backend.greeted();
        backend.deny_sessions_with(status, denial);
        backend.forget_sessions();
        client.ask("2", "tools/call", ECHO).await;
        for _ in 0..2 {
            let failed = client.next().await.failure();
            assert_eq!(failed["data"]["reason"], "lost", "{failed}");
        }
        client.ask("3", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("3").await.value();
        assert_eq!(backend.greeted(), greeted + 1, "{status}");
        gateway.stop().await;
    }
}

/// Servers of 2025-03-26 may put several messages into an array, on every transport and every stream.
#[tokio::test]
async fn batches_of_servers_are_taken_apart() {
    const LOG: &str = "notifications/message";
    let log = |data: &str| notification(LOG, &format!(r#"{{"level":"error","data":"{data}"}}"#));
    for (transport, era) in crate::support::ALL {
        if era == Era::Modern {
            continue;
        }
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        let expect = async |data: &str| {
            let told = client.must(LOG).await;
            assert_eq!(told.params.map(|p| p.contains(data)), Some(true), "{data}");
        };
        // Where answers have streams of their own, this is another.
        let both = [log("one"), log("two")];
        backend.utter(format!("[{}]", both.join(","))).await;
        expect("one").await;
        expect("two").await;
        let (before, after) = (log("before"), format!("7,[],{}", log("after")));
        call.answer_between(&before, r#"{"n":1}"#, &after).await;
        expect("before").await;
        let mut last = client.next().await;
        // What shares the array with the answer may come before it; on pipes the call is over.
        if last.method() == LOG {
            last = client.next().await;
        }
        assert_eq!(last.value()["n"], 1, "{transport:?}");
        assert_eq!(backend.greeted(), 1, "{transport:?}");
        gateway.stop().await;
    }
}

/// Answers that are none: the caller is told what came instead.
#[tokio::test]
async fn statuses_without_an_answer_are_named() {
    for era in [Era::Legacy, Era::Modern] {
        for status in [400, 405, 429, 500, 502, 503] {
            let backend = Backend::start(Transport::Http, era).await;
            backend.on_request(move |request| {
                (request.method() == "tools/call").then_some(Auto::Status(status))
            });
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            client.ask("1", "tools/call", ECHO).await;
            let failed = client.answer("1").await.failure();
            let message = failed["message"].as_str().unwrap();
            assert!(message.contains(&format!("HTTP {status}")), "{message}");
            // Only then it has surely done nothing.
            assert_eq!(failed["data"]["retryable"], status == 429, "{failed}");
            assert_eq!(gateway.status("x").await["state"], "connected");
            gateway.stop().await;
        }
    }
}

/// An error beneath such a status is the answer where it has the id of the call, and says nothing of
/// the server; else the status is what came.
#[tokio::test]
async fn errors_beneath_statuses_are_answers() {
    let error = r#"{"code":-32603,"message":"the database is down","data":{"a":1e3}}"#;
    for era in [Era::Legacy, Era::Modern] {
        let keys = "breaker = { failures = 2 }";
        let (backend, gateway) = Gateway::governed(Transport::Http, era, keys).await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        for status in [500, 503, 429, 500, 422] {
            client.ask("1", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            call.refuse_under(status, call.id(), error).await;
            let answer = client.answer("1").await;
            assert_eq!(answer.error.as_deref(), Some(error), "{era:?} {status}");
        }
        for id in ["null", "\"other\"", "4294967296"] {
            client.ask("1", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            call.refuse_under(429, id, error).await;
            let failed = client.answer("1").await.failure();
            let message = failed["message"].as_str().unwrap();
            assert!(message.contains("HTTP 429"), "{era:?} {id}: {message}");
        }
        gateway.stop().await;
    }
}

/// What only looks like an answer is none: clients would wait for another.
#[tokio::test]
async fn answers_that_are_no_json_rpc_fail_their_call() {
    for (transport, era) in crate::support::ALL {
        let (backend, gateway) = Gateway::governed(transport, era, "").await;
        for front in [Front::Streamable, Front::Modern] {
            let client = gateway.client(front, "/mcp", "{}").await;
            let fails = async |what: &str| {
                let failed = client.answer("1").await.failure();
                let what = format!("{transport:?} {era:?} {front:?} {what}: {failed}");
                assert_eq!(failed["data"]["code"], "BAD_ANSWER", "{what}");
                assert_eq!(failed["code"], -32603, "{what}");
                let message = failed["message"].as_str().unwrap();
                assert!(
                    message.contains("protocol violation: invalid response: "),
                    "{what}"
                );
            };
            for result in ["null", "[]", "\"done\"", "7"] {
                client.ask("1", "tools/call", ECHO).await;
                backend.asked("tools/call").await.answer(result).await;
                fails(result).await;
            }
            for error in [
                "\"boom\"",
                "{}",
                r#"{"message":"x"}"#,
                r#"{"code":-32001}"#,
                r#"{"code":-32001,"message":null}"#,
                r#"{"code":"E1","message":"x"}"#,
                r#"{"code":1.5,"message":"x"}"#,
            ] {
                client.ask("1", "tools/call", ECHO).await;
                backend.asked("tools/call").await.refuse(error).await;
                fails(error).await;
            }
            client.ask("1", "tools/call", ECHO).await;
            backend.asked("tools/call").await.answer_nothing().await;
            fails("nothing").await;
            client.ask("1", "tools/call", ECHO).await;
            let call = backend.asked("tools/call").await;
            call.answer(r#"{"n":1e3,"resultType":"complete"}"#).await;
            let result = client.answer("1").await.value();
            assert_eq!(result["n"], 1000.0, "{transport:?}");
        }
        gateway.stop().await;
    }
}

/// Answers larger than `limits.response` fail their call, and the server is used again.
#[tokio::test]
async fn oversized_answers_fail_their_call() {
    for (transport, era) in crate::support::ALL {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new()
            .server_with("x", &backend, r#"limits = { response = "4KiB" }"#)
            .start()
            .await;
        let client = gateway.client(Front::Stdio, "/mcp", "{}").await;
        for (length, fits) in [(4000, true), (200_000, false), (4000, true)] {
            client.ask("1", "tools/call", ECHO).await;
            let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(length));
            backend.asked("tools/call").await.answer(&text).await;
            let answer = client.answer("1").await;
            if fits {
                let what = format!("{transport:?} {era:?} {:?}", answer.error);
                assert_eq!(answer.result, Some(text), "{what}");
                continue;
            }
            let failed = answer.failure();
            assert_eq!(
                failed["data"]["server"], "x",
                "{transport:?} {era:?} {failed}"
            );
            let message = failed["message"].as_str().unwrap();
            assert!(
                message.contains("limits.response"),
                "{transport:?} {era:?} {failed}"
            );
            let up = |s: &serde_json::Value| s["state"] == "connected";
            gateway.status_until("x", up).await;
        }
        gateway.stop().await;
    }
}
