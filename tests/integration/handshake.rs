//! Which era a server behind a URL turns out to speak, and when it turns out to be another server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::support::{Auto, Backend, Era, Front, TestGateway, Transport, soon};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// A URL is tried as streamable HTTP first, then as HTTP+SSE.
#[tokio::test]
async fn an_old_server_is_found_behind_its_url() {
    for transport in ["", r#"transport = "auto""#] {
        let backend = Backend::start(Transport::Sse, Era::Legacy).await;
        let section = format!("url = \"http://{}/sse\"\n{transport}", backend.address());
        let gateway = TestGateway::new().section("x", &section).start().await;
        gateway
            .status_until("x", |s| s["state"] == "connected")
            .await;
        let client = gateway.client(Front::Modern, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        backend.asked("tools/call").await.answer("{}").await;
        client.answer("1").await;
        gateway.stop().await;
    }
}

/// The old transport is for servers that do not have the new one, not for those that are busy.
#[tokio::test]
async fn a_server_that_is_asked_too_often_is_taken_for_no_old_one() {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    let posts = AtomicUsize::new(0);
    let gets = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&gets);
    backend.on_http(move |verb, _| {
        if verb == "POST" {
            return (posts.fetch_add(1, Ordering::SeqCst) == 0).then_some(429);
        }
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    let section = format!(
        "url = \"http://{}/mcp\"\ntransport = \"auto\"",
        backend.address()
    );
    let gateway = TestGateway::new().section("x", &section).launch().await;
    let status = gateway
        .status_until("x", |s| s["state"] == "connected")
        .await;
    assert_eq!(status["revision"], "2026-07-28", "{status}");
    assert_eq!(gets.load(Ordering::SeqCst), 0, "it is asked for no stream");
    gateway.stop().await;
}

/// A server of 2026-07-28 that is slow to say so is spoken to like any other, whatever it makes of the
/// `initialize` that is tried meanwhile.
#[tokio::test]
async fn a_server_that_is_slow_to_say_its_era_gets_all_headers() {
    let status = |status| Auto::Status(status);
    let error = r#"{"code":-32601,"message":"no such method"}"#;
    tokio::join!(
        is_slow_to_say_its_era(Auto::Error(error.to_owned())),
        is_slow_to_say_its_era(status(400)),
        is_slow_to_say_its_era(status(405)),
        is_slow_to_say_its_era(Auto::Nothing),
    );
}

async fn is_slow_to_say_its_era(to_initialize: Auto) {
    let backend = Backend::start(Transport::Http, Era::Modern).await;
    let tried = Arc::new(Notify::new());
    let (tells, auto) = (Arc::clone(&tried), to_initialize.clone());
    backend.on_request(move |request| match request.method() {
        "server/discover" => Some(Auto::Hand),
        "initialize" => {
            tells.notify_one();
            Some(auto.clone())
        }
        _ => None,
    });
    let gateway = TestGateway::new().server("x", &backend).launch().await;
    let probe = backend.asked("server/discover").await;
    soon("`initialize` is tried beside", tried.notified()).await;
    backend.on_request(|_| None);
    probe
        .answer(r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#)
        .await;
    gateway
        .status_until("x", |s| s["state"] == "connected")
        .await;
    let client = gateway.client(Front::Modern, "/mcp", "{}").await;
    client.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    for (name, expect) in [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "echo"),
    ] {
        let sent = call.headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(sent, Some(expect), "{to_initialize:?}");
    }
    call.answer(r#"{"content":[],"resultType":"complete"}"#)
        .await;
    client.answer("1").await;
    gateway.stop().await;
}

/// Some errors show that a server is of 2026-07-28 although it refuses the greeting: nobody tries the
/// other era with it.
#[tokio::test]
async fn an_error_of_the_modern_era_is_no_sign_of_the_other() {
    for transport in [Transport::Stdio, Transport::Http] {
        for code in [-32020, -32021] {
            let backend = Backend::start(transport, Era::Modern).await;
            let others = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&others);
            backend.on_request(move |request| {
                if request.method() != "server/discover" {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                let error = format!(r#"{{"code":{code},"message":"not like that"}}"#);
                Some(Auto::Error(error))
            });
            let gateway = TestGateway::new().server("x", &backend).start().await;
            let refused = |s: &serde_json::Value| {
                let reason = s["reason"].as_str().unwrap_or_default();
                reason.contains("handshake refused") && reason.contains("not like that")
            };
            gateway.status_until("x", refused).await;
            gateway.stop().await;
            let others = others.load(Ordering::SeqCst);
            assert_eq!(others, 0, "{transport:?} {code}");
        }
    }
}

/// A server of another era may take the place of the one that was greeted. Whoever finds out fails;
/// then the server is greeted anew, whatever it is asked otherwise.
#[tokio::test]
async fn a_server_of_another_era_is_noticed() {
    for probe in ["list", "off", "ping"] {
        notices_another_era(&format!("health = {{ probe = \"{probe}\" }}")).await;
    }
}

async fn notices_another_era(keys: &str) {
    // What servers of 2026-07-28 say to whoever sends no envelope.
    let unsupported = r#"{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}"#;
    let invalid = r#"{"code":-32602,"message":"no"}"#;
    let unknown = r#"{"code":-32601,"message":"no"}"#;
    for (before, after, revision, refusal) in [
        (Era::Modern, Era::Legacy, "2025-11-25", None),
        (Era::Legacy, Era::Modern, "2026-07-28", Some(unsupported)),
        (Era::Legacy, Era::Modern, "2026-07-28", Some(invalid)),
        (Era::Legacy, Era::Modern, "2026-07-28", Some(unknown)),
    ] {
        for front in [Front::Streamable, Front::Modern] {
            for capabilities in ["{}", r#"{"sampling":{}}"#] {
                let backend = Backend::start(Transport::Http, before).await;
                backend.on_request(|request| {
                    let result = r#"{"content":[],"resultType":"complete"}"#;
                    (request.method() == "tools/call").then(|| Auto::Result(result.to_owned()))
                });
                let gateway = TestGateway::new().server_with("x", &backend, keys);
                let gateway = gateway.start().await;
                let client = gateway.client(front, "/mcp", capabilities).await;
                client.ask("1", "tools/call", ECHO).await;
                client.answer("1").await.value();
                backend.becomes(after);
                backend.on_request(move |request| {
                    let speaks = request.param(&VERSION).is_some() == (after == Era::Modern);
                    let refused = refusal.map(|refusal| Auto::Error(refusal.to_owned()));
                    let served = || Auto::Result(r#"{"resultType":"complete"}"#.to_owned());
                    match request.method() {
                        _ if !speaks && refused.is_some() => refused,
                        "tools/call" if speaks => Some(served()),
                        _ => None,
                    }
                });
                let what =
                    format!("{keys} {before:?} {refusal:?} {front:?} {capabilities}: served");
                soon(&what, async {
                    loop {
                        client.ask("2", "tools/call", ECHO).await;
                        if client.answer("2").await.result.is_some() {
                            return;
                        }
                        // Others need the machine as well.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                })
                .await;
                gateway
                    .status_until("x", |s| {
                        s["state"] == "connected" && s["revision"] == revision
                    })
                    .await;
                gateway.stop().await;
            }
        }
    }
}

/// A server of the legacy era may refuse each `ping`, and tell of wrong arguments, in the words that others
/// have for requests of that era: it stays who it is.
#[tokio::test]
async fn a_server_that_refuses_each_ping_stays() {
    // One that speaks both eras, which is asked in that of the config.
    let both = r#"{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{}}"#;
    for (transport, discovered) in [
        (Transport::Http, None),
        (Transport::Stdio, None),
        (Transport::Http, Some(both)),
    ] {
        for code in [-32601, -32602] {
            let refusal = format!(r#"{{"code":{code},"message":"no"}}"#);
            let backend = Backend::start(transport, Era::Legacy).await;
            backend.on_request(move |request| match request.method() {
                "ping" | "tools/call" => Some(Auto::Error(refusal.clone())),
                "server/discover" => discovered.map(|it| Auto::Result(it.to_owned())),
                _ => None,
            });
            let keys = "era = \"legacy\"\nhealth = { probe = \"ping\", interval = \"50ms\" }";
            let gateway = TestGateway::new().server_with("x", &backend, keys);
            let gateway = gateway.start().await;
            let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
            client.ask("1", "tools/call", ECHO).await;
            assert_eq!(client.answer("1").await.code(), code, "{transport:?}");
            let checked = |s: &serde_json::Value| s["health_checks"]["answered"].as_u64() > Some(5);
            let status = gateway.status_until("x", checked).await;
            assert_eq!(status["state"], "connected", "{transport:?} {status}");
            assert_eq!(backend.greeted(), 1, "{transport:?} {code}");
            gateway.stop().await;
        }
    }
}

const VERSION: [&str; 2] = ["_meta", "io.modelcontextprotocol/protocolVersion"];
