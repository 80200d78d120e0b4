//! Answers that nobody can read: each ends its call at once, says what is wrong, and is no reason for a
//! breaker to open.

use std::time::Duration;

use async_compression::tokio::write::{
    BrotliEncoder, DeflateEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder,
};
use futures_util::FutureExt;
use serde_json::Value;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use crate::support::{
    Backend, Era, Front, Gateway, TestGateway, Transport,
    scripted::{Received, Scripted, json, response},
};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// Less than the least timeout here.
const AT_ONCE: Duration = Duration::from_secs(20);

/// How many calls open a breaker in a row that fail.
const BREAKER: usize = 5;

/// A gateway before a server that answers calls as `respond` says.
async fn before(
    respond: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static,
    keys: &str,
) -> (Gateway, Scripted) {
    let server =
        Scripted::start(move |request| request.calls("echo").then(|| respond(request))).await;
    let keys = format!("{}{keys}", server.config());
    let gateway = TestGateway::new().section("x", &keys).start().await;
    (gateway, server)
}

/// What a call of the gateway comes to.
async fn called(gateway: &Gateway) -> Result<Value, String> {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.ask("1", "tools/call", ECHO).await;
    let answer = timeout(AT_ONCE, client.answer("1")).await;
    let answer = answer.expect("the call is answered at once");
    if answer.result.is_some() {
        return Ok(answer.value());
    }
    Err(answer.failure()["message"].as_str().unwrap().to_owned())
}

/// Checks what calls come to, and that as many of them as open a breaker open none.
async fn check_refused(respond: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static, said: &str) {
    let (gateway, _server) = before(respond, "").await;
    for _ in 0..=BREAKER {
        let failure = called(&gateway).await.unwrap_err();
        assert!(failure.contains(said), "{failure}\nfor {said}");
    }
    assert_eq!(gateway.status("x").await["state"], "connected", "{said}");
    gateway.stop().await;
}

async fn compressed<W: AsyncWrite + Unpin>(
    mut encoder: W,
    text: &[u8],
    written: impl FnOnce(W) -> Vec<u8>,
) -> Vec<u8> {
    encoder.write_all(text).await.unwrap();
    encoder.shutdown().await.unwrap();
    written(encoder)
}

/// All encodings of `text`, by the names that servers give them.
async fn encodings(text: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let gzip = || compressed(GzipEncoder::new(Vec::new()), text, GzipEncoder::into_inner);
    let zlib = compressed(ZlibEncoder::new(Vec::new()), text, ZlibEncoder::into_inner);
    let raw = DeflateEncoder::new(Vec::new());
    let brotli = BrotliEncoder::new(Vec::new());
    let zstd = compressed(ZstdEncoder::new(Vec::new()), text, ZstdEncoder::into_inner);
    let zstd = zstd.await;
    let twice = GzipEncoder::new(Vec::new());
    vec![
        ("gzip", gzip().await),
        ("X-GZip", gzip().await),
        ("deflate", zlib.await),
        (
            "deflate",
            compressed(raw, text, DeflateEncoder::into_inner).await,
        ),
        (
            "br",
            compressed(brotli, text, BrotliEncoder::into_inner).await,
        ),
        (
            "zstd, gzip",
            compressed(twice, &zstd, GzipEncoder::into_inner).await,
        ),
        ("zstd", zstd),
        ("identity", text.to_vec()),
    ]
}

/// `identity` is asked for, and what comes compressed all the same is decoded: lists, answers as JSON and
/// as events.
#[tokio::test]
async fn compressed_answers_are_decoded() {
    const RESULT: &str = r#"{"content":[],"structuredContent":{"a":1}}"#;
    const TOOLS: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#;
    for (kind, template) in [
        ("application/json", "#\n"),
        ("text/event-stream", "data: #\n\n"),
    ] {
        for (coding, _) in Box::pin(encodings(b"")).await {
            let server = Scripted::start(move |request| {
                let is_compressed = ["tools/list", "tools/call"]
                    .iter()
                    .any(|method| request.body.contains(method));
                let result = if request.calls("echo") { RESULT } else { TOOLS };
                let text = template.replace('#', &request.result(result));
                let all = Box::pin(encodings(text.as_bytes())).now_or_never();
                let mut all = all.expect("nothing waits").into_iter();
                let (_, bytes) = all.find(|(name, _)| *name == coding).unwrap();
                let headers = format!("content-type: {kind}\r\ncontent-encoding: {coding}\r\n");
                is_compressed.then(|| response("200 OK", &headers, bytes))
            })
            .await;
            let gateway = TestGateway::new().section("x", &server.config());
            let gateway = gateway.start().await;
            let result = called(&gateway).await.expect(coding);
            assert_eq!(result["structuredContent"]["a"], 1, "{coding} {kind}");
            let received = server.received();
            assert_eq!(received[0].header("accept-encoding"), Some("identity"));
            gateway.stop().await;
        }
    }
}

/// What is small and unpacks to much is held to `limits.response`, and what is not encoded as it says is
/// named.
#[tokio::test]
async fn encoded_answers_have_limits() {
    let limit = "limits = { response = \"64KiB\" }";
    for (bytes, fits) in [(60 << 10, true), (64 << 10, false), (64 << 20, false)] {
        let text = format!(r#"{{"content":[],"pad":"{}"}}"#, "x".repeat(bytes));
        let respond = move |request: &Received| {
            let text = request.result(&text);
            let encoder = GzipEncoder::new(Vec::new());
            let packed = compressed(encoder, text.as_bytes(), GzipEncoder::into_inner);
            let packed = packed.now_or_never();
            let headers = "content-type: application/json\r\ncontent-encoding: gzip\r\n";
            response("200 OK", headers, packed.expect("nothing waits"))
        };
        let (gateway, _server) = before(respond, limit).await;
        let called = called(&gateway).await;
        assert_eq!(called.is_ok(), fits, "{bytes}");
        if let Err(failure) = called {
            assert!(failure.contains("limits.response"), "{failure}");
        }
        gateway.stop().await;
    }
    let encoded = |coding: &'static str| {
        move |request: &Received| {
            let headers =
                format!("content-type: application/json\r\ncontent-encoding: {coding}\r\n");
            response("200 OK", &headers, request.result("{}"))
        }
    };
    check_refused(encoded("gzip"), "`gzip` although `identity` was asked for").await;
    check_refused(encoded("compress"), "`compress` although `identity`").await;
    check_refused(encoded("gzip, gzip, gzip"), "it is not known").await;
}

/// What a body or a stream of events is, where that is not what it says.
#[tokio::test]
async fn answers_of_another_kind_are_named() {
    let events = |body: fn(&Received) -> String| {
        move |request: &Received| {
            let headers = "content-type: text/event-stream\r\n";
            response("200 OK", headers, body(request))
        }
    };
    check_refused(events(|it| it.result("{}")), "no `data:` before it").await;
    check_refused(
        events(|it| format!(": hello\n\n{}\n\n", it.result("{}"))),
        "no `data:` before it",
    )
    .await;
    let nan = |it: &Received| format!("data: {}\n\n", it.result(r#"{"x":NaN}"#));
    check_refused(events(nan), "invalid response: not JSON").await;
    let cut = |_: &Received| "data: {\"jsonrpc\": \"2.0\",\n\n".to_owned();
    check_refused(events(cut), "invalid response: not JSON").await;
    check_refused(
        |it| json(it.result(r#"{"x":Infinity}"#)),
        "invalid response: not JSON",
    )
    .await;
    check_refused(
        |it| json(format!("data: {}\n\n", it.result("{}"))),
        "it looks like `text/event-stream`",
    )
    .await;
    check_refused(|_| json(b"\x1f\x8b\x08\0\0"), "it looks compressed").await;
    check_refused(|_| json("<html></html>"), "it looks like HTML").await;
    // A stream that stays open after its bare JSON.
    check_refused(
        |it| {
            let body = it.result("{}");
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            format!("{head}{body}").into_bytes()
        },
        "no `data:` before it",
    )
    .await;
}

/// What programs, sockets and old servers write in place of an answer fails the call that it is for, and no
/// other.
#[tokio::test]
async fn unreadable_messages_fail_their_call() {
    for transport in [Transport::Stdio, Transport::Sse, Transport::WebSocket] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        for round in 0..=BREAKER {
            client.ask("1", "tools/call", ECHO).await;
            let first = backend.asked("tools/call").await;
            client.ask("2", "tools/call", ECHO).await;
            let second = backend.asked("tools/call").await;
            let id = first.id();
            let line = match round {
                0 => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"mean":NaN}}}}"#),
                1 => format!(r#"{{"id":{id},"result":{{}}}}"#),
                2 => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":undefined}}"#),
                3 => format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"a{}b"}}}}"#,
                    '\t'
                ),
                4 => format!(r#"ready {{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#),
                _ => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"cut"#),
            };
            let line = match transport {
                Transport::Stdio => format!("{line}\n"),
                Transport::Sse => format!("data: {line}\n\n"),
                Transport::Http | Transport::HttpEvents | Transport::WebSocket => line,
            };
            first.raw(line.clone()).await;
            let answer = timeout(AT_ONCE, client.answer("1")).await;
            let failure = answer.expect(&line).failure();
            assert_eq!(failure["data"]["reason"], "bad_answer", "{line} {failure}");
            second.answer("{}").await;
            client.answer("2").await.value();
        }
        gateway.stop().await;
    }
}

/// A line of a log is no answer, whatever it has in it.
#[tokio::test]
async fn logs_on_stdout_fail_no_call() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.ask("1", "tools/call", ECHO).await;
    let call = backend.asked("tools/call").await;
    let id = call.id();
    let lines = format!(
        "{{\"id\":{id},\"level\":\"error\",\"error\":\"no\"}}\n{{\"id\":{id},\"msg\":\"served\"}}\n\
         {{\"result\":{{\"id\":{id}}}}}\n"
    );
    call.raw(lines).await;
    call.answer("{}").await;
    client.answer("1").await.value();
    gateway.stop().await;
}

/// Some programs write a byte order mark before the first thing that they say, and some servers before
/// each body.
#[tokio::test]
async fn a_byte_order_mark_is_skipped() {
    for transport in [Transport::Stdio, Transport::WebSocket] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
        client.ask("1", "tools/call", ECHO).await;
        let call = backend.asked("tools/call").await;
        let id = call.id();
        call.raw(format!(
            "\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"a\":1}}}}\n"
        ))
        .await;
        assert_eq!(client.answer("1").await.value()["a"], 1, "{transport:?}");
        gateway.stop().await;
    }
    let marked = |it: &Received| json(format!("\u{feff}{}", it.result(r#"{"a":1}"#)));
    let (gateway, _server) = before(marked, "").await;
    assert_eq!(called(&gateway).await.unwrap()["a"], 1);
    gateway.stop().await;
}
