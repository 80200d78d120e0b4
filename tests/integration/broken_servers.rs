//! A broken server costs its own tools, nothing else: the others are served at once.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::Instant,
};

use crate::support::{
    Auto, Backend, Era, Front, Gateway, TestGateway, Transport,
    way::inside_tls,
    wire::{Envelope, spawn},
};

/// `first_list_wait` is 2 s; whatever answers from memory takes far less.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// A gateway with a sound server `good` and the section of a broken one, `bad`.
async fn beside_good(bad: &str) -> (Gateway, Backend) {
    let good = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .section("bad", bad)
        .server("good", &good)
        .start()
        .await;
    (gateway, good)
}

/// Every kind of client gets its greeting, its list and its answer at once.
async fn is_served(gateway: &Gateway, good: &Backend) {
    for front in Front::ALL {
        let start = Instant::now();
        let client = gateway.client(front, "/mcp", "{}").await;
        let tools = client.list("tools").await;
        assert!(
            tools.iter().any(|tool| tool["name"] == "mcp_good_echo"),
            "{tools:?}"
        );
        client
            .ask("1", "tools/call", r#""name":"mcp_good_echo""#)
            .await;
        good.asked("tools/call").await.answer("{}").await;
        client.answer("1").await;
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{front:?} took {took:?}");
    }
}

#[tokio::test]
async fn a_command_that_does_not_exist() {
    let (gateway, good) = beside_good(r#"command = "/no/such/program""#).await;
    is_served(&gateway, &good).await;
    let status = gateway
        .status_until("bad", |s| s["state"] == "failed")
        .await;
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("/no/such/program"), "{reason}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_command_that_exits_at_once() {
    let (gateway, good) =
        beside_good("command = \"sh\"\nargs = [\"-c\", \"echo no licence >&2; exit 3\"]").await;
    is_served(&gateway, &good).await;
    let told = |s: &serde_json::Value| {
        let reason = s["reason"].as_str().unwrap_or_default();
        s["state"] == "failed" && reason.contains("no licence")
    };
    let status = gateway.status_until("bad", told).await;
    assert!(status["stderr"].to_string().contains("no licence"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_program_that_says_what_it_was_told_in_confidence() {
    let (gateway, good) = beside_good(
        "command = \"sh\"\nargs = [\"-c\", \"echo bad $KEY >&2; echo try $KEY; exit 3\"]\n\
         env = { KEY = \"sesame-open\" }",
    )
    .await;
    let status = gateway
        .status_until("bad", |s| s["stderr"].to_string().contains("bad"))
        .await;
    let status = status.to_string();
    assert!(status.contains("bad ***"), "{status}");
    assert!(!status.contains("sesame"), "{status}");
    drop(good);
    gateway.stop().await;
}

/// Checks what `/status` says of a server with the section `bad`.
async fn check_reason(bad: &str, reason: &str) {
    let (gateway, _good) = beside_good(bad).await;
    let failed = |s: &Value| s["state"] == "failed";
    let status = gateway.status_until("bad", failed).await;
    assert_eq!(status["reason"], reason, "{status}");
    gateway.stop().await;
}

/// A URL that says nothing of the TLS that its server speaks, or says so of one that does not.
#[tokio::test]
async fn a_url_with_the_scheme_of_another() {
    let plain = Backend::start(Transport::Http, Era::Legacy).await;
    let plain_at = plain.address();
    let secure_at = inside_tls(plain_at, self_signed()).await;
    let https = "the response is not HTTP; if the server uses TLS, use `https:` or `wss:`";
    let http = "the server does not seem to use TLS; try a URL with `http:` or `ws:`";
    for (url, hint) in [
        (format!("http://{secure_at}/mcp"), https),
        (format!("ws://{secure_at}/mcp"), https),
        (format!("https://{plain_at}/mcp"), http),
        (format!("wss://{plain_at}/mcp"), http),
    ] {
        let (gateway, _good) = beside_good(&format!("url = \"{url}\"")).await;
        let failed = |s: &Value| s["state"] == "failed";
        let status = gateway.status_until("bad", failed).await;
        let reason = status["reason"].as_str().unwrap();
        assert!(reason.ends_with(hint), "{url}: {reason}");
        gateway.stop().await;
    }
}

fn self_signed() -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap()
}

/// A program that closed its input before it ended is known by its end.
#[tokio::test]
async fn an_exit_status_is_the_better_reason() {
    let greeting = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}}"#;
    let script = format!(
        "read -r line; exec <&-; echo {}; sleep 0.1; echo no licence >&2; exit 3",
        greeting.replace('"', r#"\""#)
    );
    check_reason(
        &format!("command = 'sh'\nargs = ['-c', '{script}']\nera = 'legacy'"),
        "connection lost: exited (exit status: 3); on stderr: no licence",
    )
    .await;
}

/// The system says of both that no such file exists.
#[tokio::test]
async fn a_working_directory_that_does_not_exist() {
    for (cwd, problem) in [
        ("/no/such/place", "does not exist"),
        ("/dev/null", "is no directory"),
    ] {
        check_reason(
            &format!("command = \"sh\"\ncwd = \"{cwd}\""),
            &format!("working directory `{cwd}` {problem}"),
        )
        .await;
    }
}

#[tokio::test]
async fn a_program_that_echoes() {
    for era in ["auto", "legacy", "modern"] {
        check_reason(
            &format!("command = \"cat\"\nera = \"{era}\""),
            "the program echoes its input; it is not an MCP server",
        )
        .await;
    }
}

/// What a program writes in place of messages is the best hint at what it is.
#[tokio::test]
async fn words_in_place_of_messages() {
    let script = |end: &str| {
        format!(
            "command = \"sh\"\nargs = [\"-c\", \"echo one; echo two; {end}\"]\n\
             startup_timeout = \"1s\""
        )
    };
    let odd = "; on stdout, not a message: `one`, `two`";
    check_reason(
        &script("exec sleep 100"),
        &format!("start timed out after 1s (`startup_timeout`){odd}"),
    )
    .await;
    check_reason(
        &script("exit 3"),
        &format!("connection lost: exited (exit status: 3){odd}"),
    )
    .await;
}

/// What is awaited is said from the start on, and what is not known is not counted as nothing.
#[tokio::test]
async fn a_server_that_is_silent_so_far() {
    let silent = "command = \"sleep\"\nargs = [\"100\"]";
    let gateway = TestGateway::new()
        .section("silent", silent)
        .section("off", "command = \"true\"\nenabled = false")
        .launch()
        .await;
    let status = gateway.status_until("silent", |_| true).await;
    assert_eq!(status["state"], "connecting", "{status}");
    assert_eq!(status["reason"], "no response yet", "{status}");
    assert!(status["since"].is_string(), "{status}");
    let all = json!(["tools", "resources", "templates", "prompts"]);
    assert_eq!(status["unlisted"], all, "{status}");
    let off = gateway.status_until("off", |_| true).await;
    assert_eq!(off["unlisted"], Value::Null, "{off}");
    let http = gateway.http();
    let page = http.get("/status", &[("accept", "text/html")]).await;
    let page = page.text().await;
    for (server, count) in [("silent", "?"), ("off", "0")] {
        let row = page
            .split("<tr>")
            .find(|row| row.contains(&format!("<b>{server}</b>")));
        let cells: Vec<&str> = row.unwrap().split("<td>").collect();
        assert_eq!(cells[4..7], [count; 3], "{row:?}");
    }
    gateway.stop().await;
}

/// They are there before the start is given up.
#[tokio::test]
async fn words_in_place_of_messages_so_far() {
    let bad = "command = \"sh\"\nargs = [\"-c\", \"echo ready; exec sleep 100\"]";
    let gateway = TestGateway::new().section("bad", bad).launch().await;
    let told = |s: &Value| s["odd_lines"] == 1;
    let status = gateway.status_until("bad", told).await;
    assert_eq!(status["state"], "connecting", "{status}");
    assert_eq!(
        status["reason"], "no response yet; on stdout, not a message: `ready`",
        "{status}"
    );
    gateway.stop().await;
}

/// Every start after the first is counted, and so are those that failed.
#[tokio::test]
async fn failed_starts_are_counted() {
    let (gateway, good) = beside_good(
        "command = \"/no/such/program\"\nretry = { base = \"10ms\", max = \"10ms\", jitter = 0.0 }",
    )
    .await;
    let status = gateway
        .status_until("bad", |s| s["restarts"].as_u64() >= Some(3))
        .await;
    assert!(status["failed_starts"].as_u64() >= Some(3), "{status}");
    good.die();
    let back = |s: &Value| s["state"] == "connected" && s["restarts"] == 1;
    let status = gateway.status_until("good", back).await;
    assert_eq!(status["failed_starts"], 0, "{status}");
    gateway.stop().await;
}

/// A server that never answers its greeting holds up the first list for `first_list_wait` at most,
/// and nothing at all after that.
#[tokio::test]
async fn a_server_that_never_answers() {
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    bad.on_request(|_| Some(Auto::Nothing));
    let good = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .setting("first_list_wait = \"300ms\"")
        .server("bad", &bad)
        .server("good", &good)
        .launch()
        .await;
    let start = Instant::now();
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "initialize waits for nobody"
    );
    client.list("tools").await;
    assert!(start.elapsed() < AT_ONCE);
    let again = Instant::now();
    client.list("tools").await;
    assert!(
        again.elapsed() < Duration::from_millis(250),
        "only the first list waits"
    );
    is_served(&gateway, &good).await;
    assert_eq!(gateway.status("bad").await["state"], "connecting");
    let ready = gateway.http().get("/readyz", &[]).await;
    assert_eq!(ready.status(), 200, "it costs its own tools, nothing else");
    gateway.stop().await;
}

/// Until then the gateway is not ready, since lists are not whole, nor while there is nothing to
/// list at all.
#[tokio::test]
async fn a_gateway_is_ready_once_no_first_list_waits() {
    let unlisted = (503, "not ready: no server has been listed yet\n");
    let rows = [
        ("1m", &["bad", "good"][..], unlisted),
        ("0s", &["bad", "good"], (200, "ready\n")),
        ("0s", &["bad"], unlisted),
    ];
    for (wait, servers, (status, body)) in rows {
        let mut gateway = TestGateway::new().setting(&format!("first_list_wait = \"{wait}\""));
        let mut backends = Vec::new();
        for name in servers {
            let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
            if *name == "bad" {
                backend.on_request(|_| Some(Auto::Nothing));
            }
            gateway = gateway.server(name, &backend);
            backends.push(backend);
        }
        let gateway = gateway.launch().await;
        for name in servers.iter().filter(|name| **name == "good") {
            gateway
                .status_until(name, |s| s["state"] == "connected")
                .await;
        }
        let answer = gateway.http().get("/readyz", &[]).await;
        assert_eq!(answer.status(), status, "{wait} {servers:?}");
        assert_eq!(answer.text().await, body, "{wait} {servers:?}");
        gateway.stop().await;
    }
}

/// A start that takes too long is given up and named.
#[tokio::test]
async fn a_start_that_takes_too_long() {
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    bad.on_request(|_| Some(Auto::Nothing));
    let gateway = TestGateway::new()
        .server_with("bad", &bad, "startup_timeout = \"1s\"")
        .launch()
        .await;
    let status = gateway
        .status_until("bad", |s| s["state"] == "failed")
        .await;
    assert!(
        status["reason"]
            .as_str()
            .unwrap()
            .contains("start timed out after"),
        "{status}"
    );
    gateway.stop().await;
}

/// A process that left the group of its server and keeps all three pipes open holds up no stop.
#[tokio::test]
async fn pipes_held_open_hold_up_no_stop() {
    let (gateway, good) = beside_good(
        "command = \"sh\"\nargs = [\"-c\", \"setsid sleep 20 <&0 & echo gone >&2; exit 3\"]",
    )
    .await;
    is_served(&gateway, &good).await;
    gateway
        .status_until("bad", |s| s["stderr"].to_string().contains("gone"))
        .await;
    let stopped = tokio::time::timeout(Duration::from_secs(10), gateway.stop()).await;
    assert!(stopped.is_ok(), "the stop waits for a stranger");
}

/// Who calls when the server dies is told at once; the next call finds it up again.
#[tokio::test]
async fn a_crash_fails_its_calls_at_once() {
    for (transport, era) in crate::support::ALL {
        let backend = Backend::start(transport, era).await;
        let gateway = TestGateway::new().server("x", &backend).start().await;
        for front in [Front::Streamable, Front::Modern] {
            let client = gateway.client(front, "/mcp", "{}").await;
            let start = Instant::now();
            client.call("1", "mcp_x_echo", "1").await;
            let call = backend.asked("tools/call").await;
            call.progress(1).await;
            client.must("notifications/progress").await;
            call.die().await;
            let failed = client.answer("1").await.failure();
            let message = failed["message"].as_str().unwrap();
            assert!(message.starts_with("server `x`: "), "{message}");
            assert_eq!(failed["data"]["server"], "x");
            assert_eq!(
                failed["data"]["reason"], "lost",
                "{transport:?} {era:?} {failed}"
            );
            assert!(start.elapsed() < AT_ONCE, "{transport:?} {era:?} {front:?}");
            gateway
                .status_until("x", |s| s["state"] == "connected")
                .await;
            client
                .ask("2", "tools/call", r#""name":"mcp_x_echo""#)
                .await;
            backend.asked("tools/call").await.answer("{}").await;
            client.answer("2").await;
        }
        gateway.stop().await;
    }
}

/// Words on stdout that are no messages are counted, not obeyed.
#[tokio::test]
async fn junk_on_stdout() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let call = backend.asked("tools/call").await;
    call.raw("listening on port 3000\n\n{\"not\": \"a message\"}\n[1,2]\n{\"jsonrpc\":\"2.0\",\n")
        .await;
    call.raw("\u{1b}[32mready\u{1b}[0m\r\n").await;
    call.answer("{}").await;
    client.answer("1").await;
    let status = gateway.status("x").await;
    assert_eq!(status["state"], "connected");
    assert!(status["odd_lines"].as_u64().unwrap() >= 5, "{status}");
    assert!(status["last_odd_line"].as_str().unwrap().contains("ready"));
    gateway.stop().await;
}

/// Arrays within arrays are odd output however deep they go, not work for the stack.
#[tokio::test]
async fn arrays_without_end() {
    const DEPTH: usize = 100_000;
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let call = backend.asked("tools/call").await;
    let line = format!("{}{}\n", "[".repeat(DEPTH), "]".repeat(DEPTH));
    call.raw(&line).await;
    call.answer("{}").await;
    client.answer("1").await;
    let status = gateway.status("x").await;
    assert_eq!(status["state"], "connected");
    assert_eq!(status["odd_lines"], 1, "{status}");
    gateway.stop().await;
}

/// Ten thousand tools over many pages are listed whole.
#[tokio::test]
async fn ten_thousand_tools() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        if request.method() != "tools/list" {
            return None;
        }
        let page: u32 = match request.param(&["cursor"]) {
            Some(cursor) => cursor.trim_matches('"').parse().unwrap(),
            None => 0,
        };
        let mut result = r#"{"tools":["#.to_owned();
        for at in page * 500..(page + 1) * 500 {
            let comma = if at % 500 == 0 { "" } else { "," };
            write!(
                result,
                r#"{comma}{{"name":"t{at}","inputSchema":{{"type":"object"}}}}"#
            )
            .unwrap();
        }
        result.push(']');
        if page < 19 {
            write!(result, r#","nextCursor":"{}""#, page + 1).unwrap();
        }
        Some(Auto::Result(result + "}"))
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    let start = Instant::now();
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert_eq!(client.list("tools").await.len(), 10_000);
    assert!(start.elapsed() < AT_ONCE);
    assert_eq!(gateway.status("x").await["state"], "connected");
    gateway.stop().await;
}

/// One page may have as many items as all of them together.
#[tokio::test]
async fn one_page_of_too_many() {
    for (count, state) in [(10_000, "connected"), (10_001, "degraded")] {
        let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
        let tool = |at| format!(r#"{{"name":"t{at}","inputSchema":{{"type":"object"}}}}"#);
        let tools: Vec<String> = (0..count).map(tool).collect();
        backend.set_list("tools/list", format!("[{}]", tools.join(",")));
        let gateway = TestGateway::new().server("x", &backend).start().await;
        let status = gateway.status("x").await;
        assert_eq!(status["state"], state, "{count}: {}", status["reason"]);
        if state == "degraded" {
            let reason = status["reason"].as_str().unwrap();
            assert!(reason.contains("more than 10000 items"), "{reason}");
        }
        gateway.stop().await;
    }
}

/// However small its pages are, a list is read to its end.
#[tokio::test]
async fn many_small_pages_are_one_list() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    backend.on_request(|request| {
        let cursor = request.param(&["cursor"]).unwrap_or_default();
        let page: usize = cursor.trim_matches('"').parse().unwrap_or_default();
        let tool = |at: usize| format!(r#"{{"name":"t{at}","inputSchema":{{"type":"object"}}}}"#);
        let tools: Vec<String> = (page * 3..page * 3 + 3).map(tool).collect();
        let next = match page {
            199 => String::new(),
            page => format!(r#","nextCursor":"{}""#, page + 1),
        };
        let listed = || Auto::Result(format!(r#"{{"tools":[{}]{next}}}"#, tools.join(",")));
        (request.method() == "tools/list").then(listed)
    });
    let gateway = TestGateway::new().server("x", &backend).start().await;
    gateway.tools_until(|tools| tools.len() == 600).await;
    assert_eq!(gateway.status("x").await["state"], "connected");
    gateway.stop().await;
}

/// A gateway of both.
async fn beside(bad: &Backend, good: &Backend) -> Gateway {
    let servers = TestGateway::new().server("bad", bad).server("good", good);
    servers.start().await
}

/// Lists without end are given up and named; the other server and the other lists are there.
#[tokio::test]
async fn pages_without_end() {
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    bad.on_request(endless);
    let good = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = beside(&bad, &good).await;
    is_served(&gateway, &good).await;
    let status = gateway.status("bad").await;
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(
        status["reason"].as_str().unwrap().contains("does not end"),
        "{status}"
    );
    gateway.stop().await;
}

/// Lists without tools, each page of which leads to one that was not read before.
pub(crate) fn endless(request: &Envelope) -> Option<Auto> {
    let cursor = request.param(&["cursor"]).unwrap_or_default().len();
    let next = "x".repeat(cursor);
    (request.method() == "tools/list")
        .then(|| Auto::Result(format!(r#"{{"tools":[],"nextCursor":"{next}"}}"#)))
}

/// A list whose cursors come back ends at once with what it has, whichever page they lead back to and
/// although all other lists of the server are refused; and the server is named for it.
#[tokio::test]
async fn pages_that_go_round() {
    for (first_again, pages) in [(0, 1), (0, 3), (1, 2), (1, 4), (2, 4), (4, 5)] {
        let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        bad.on_request(move |request| {
            let refused = || Auto::Error(r#"{"code":-32603,"message":"no"}"#.to_owned());
            if request.method() != "tools/list" {
                return request.method().ends_with("/list").then(refused);
            }
            count.fetch_add(1, Ordering::Relaxed);
            let cursor = request.param(&["cursor"]).unwrap_or_default();
            let page: usize = cursor.trim_matches('"').parse().unwrap_or_default();
            let next = if page + 1 < pages {
                page + 1
            } else {
                first_again
            };
            let tool = format!(r#"{{"name":"t{page}","inputSchema":{{"type":"object"}}}}"#);
            let list = format!(r#"{{"tools":[{tool}],"nextCursor":"{next}"}}"#);
            Some(Auto::Result(list))
        });
        let gateway = TestGateway::new().server("bad", &bad).start().await;
        let tools: Vec<String> = (0..pages).map(|page| format!("mcp_bad_t{page}")).collect();
        assert_eq!(gateway.tools().await, tools);
        // The first page has no cursor by which it could be known again.
        let first_twice = usize::from(first_again == 0);
        let expect = pages + first_twice;
        assert_eq!(asked.load(Ordering::Relaxed), expect, "each page once");
        let status = gateway.status("bad").await;
        let problems = status["problems"].to_string();
        assert!(
            problems.contains("bad: tools: circular pagination"),
            "{status}"
        );
        let of_tools = problems.matches("bad: tools:").count();
        assert_eq!(of_tools, 1, "nothing is listed twice: {status}");
        gateway.stop().await;
    }
}

/// Items that cannot be used are left out and named; what can be used is listed and callable.
#[tokio::test]
async fn items_that_make_no_sense() {
    const TOOLS: &str = r##"[
        {"name":"fine","inputSchema":{"type":"object"}},
        {"description":"without a name","inputSchema":{"type":"object"}},
        {"name":"","inputSchema":{"type":"object"}},
        {"name":7,"inputSchema":{}},
        {"name":"odd","inputSchema":"a string"},
        {"name":"none"},
        "no object", null, 3,
        {"name":"fine","inputSchema":{"type":"object","title":"doubled"}},
        {"name":"last","inputSchema":{"type":"object","properties":{"a":{"type":"nonsense","$ref":"#/nowhere"}}}}
    ]"##;
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    bad.set_list("tools/list", TOOLS.replace('\n', " "));
    bad.set_list(
        "resources/list",
        r#"[{"name":"no uri"},{"uri":"file:///ok","name":"ok"},{"uri":4}]"#,
    );
    bad.set_list("prompts/list", r#"[{},{"name":"ok"}]"#);
    let good = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = beside(&bad, &good).await;
    is_served(&gateway, &good).await;
    let tools = gateway.tools().await;
    for name in ["mcp_bad_fine", "mcp_bad_last", "mcp_good_echo"] {
        assert_eq!(
            tools.iter().filter(|tool| *tool == name).count(),
            1,
            "{name} in {tools:?}"
        );
    }
    let status = gateway.status("bad").await;
    assert_eq!(status["state"], "connected", "{status}");
    assert!(
        !status["problems"].as_array().unwrap().is_empty(),
        "{status}"
    );
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert_eq!(client.list("resources").await.len(), 2);
    assert_eq!(client.list("prompts").await.len(), 2);
    // Clients refuse a whole list for one tool without an input schema.
    for tool in client.list("tools").await {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
    }
    let client = gateway.client(Front::Streamable, "/mcp/servers/bad", "{}");
    let own = client.await.list("tools").await;
    assert_eq!(own[1]["inputSchema"], "a string");
    gateway.stop().await;
}

/// An output schema that clients cannot compile would empty the lists of all: it is left out where tools of
/// several servers are listed, and named.
#[tokio::test]
async fn an_output_schema_that_clients_cannot_compile() {
    const ODD: &str = r##"{"type":"object","properties":{"x":{"$ref":"#/$defs/ScreenInstance"}}}"##;
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    let tool = format!(r#"{{"name":"t","inputSchema":{{"type":"object"}},"outputSchema":{ODD}}}"#);
    bad.set_list("tools/list", format!("[{tool}]"));
    let good = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = beside(&bad, &good).await;
    is_served(&gateway, &good).await;
    let odd: Value = serde_json::from_str(ODD).unwrap();
    for (path, name, schema) in [
        ("/mcp", "mcp_bad_t", &Value::Null),
        ("/mcp/servers/bad", "t", &odd),
    ] {
        let client = gateway.client(Front::Streamable, path, "{}").await;
        let tools = client.list("tools").await;
        let found = tools.iter().find(|tool| tool["name"] == name).unwrap();
        assert_eq!(found["outputSchema"], *schema, "{path}");
    }
    let status = gateway.status("bad").await;
    assert_eq!(status["state"], "connected", "{status}");
    let problem = status["problems"][0].to_string();
    for said in ["`t`", "`outputSchema`", "#/$defs/ScreenInstance"] {
        assert!(problem.contains(said), "{problem}");
    }
    gateway.stop().await;
}

/// Tools whose input schema is none are named one by one, although nothing is checked, until the server
/// mends them; they are served as they are.
#[tokio::test]
async fn a_schema_that_is_none_is_named() {
    let bad = Backend::start(Transport::Stdio, Era::Legacy).await;
    let typo = r#"{"type":"object","properties":{"a":{"type":"objekt"}}}"#;
    let nowhere = r##"{"type":"object","$ref":"#/nowhere"}"##;
    let tool = |name: &str, schema: &str| format!(r#"{{"name":"{name}","inputSchema":{schema}}}"#);
    let fine = tool("fine", r#"{"type":"object"}"#);
    let listed = [
        tool("a", typo),
        fine.clone(),
        tool("b", nowhere),
        tool("c", typo),
    ];
    bad.set_list("tools/list", format!("[{}]", listed.join(",")));
    let gateway = TestGateway::new().server("bad", &bad).start().await;
    let named = |count: usize| {
        move |status: &Value| {
            let problems = status["problems"].as_array();
            problems.map_or(0, Vec::len) == count
        }
    };
    let status = gateway.status_until("bad", named(3)).await;
    assert_eq!(status["state"], "connected", "{status}");
    for (at, name) in ["a", "b", "c"].iter().enumerate() {
        let problem = status["problems"][at].as_str().unwrap();
        let start = format!("bad: tools: `{name}`: invalid `inputSchema`: ");
        assert!(problem.starts_with(&start), "{problem}");
    }
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let tools = client.list("tools").await;
    assert_eq!(tools[0]["inputSchema"]["properties"]["a"]["type"], "objekt");

    let listed = [fine, tool("b", nowhere)];
    bad.set_list("tools/list", format!("[{}]", listed.join(",")));
    bad.list_changed("tools").await;
    gateway.status_until("bad", named(1)).await;
    bad.set_list("tools/list", "[]");
    bad.list_changed("tools").await;
    gateway.status_until("bad", named(0)).await;
    gateway.stop().await;
}

/// A server that is not there any more keeps its tools for a while; calls fail clearly.
#[tokio::test]
async fn a_server_that_went_away_keeps_its_tools() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().server("x", &backend).start().await;
    backend.on_request(|_| Some(Auto::Die));
    backend.die();
    gateway
        .status_until("x", |s| s["state"] == "disconnected")
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert_eq!(client.list("tools").await.len(), 2);
    let start = Instant::now();
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let failed = client.answer("1").await.failure();
    assert!(
        failed["message"]
            .as_str()
            .unwrap()
            .starts_with("server `x`: "),
        "{failed}"
    );
    assert!(start.elapsed() < AT_ONCE);
    gateway.stop().await;
}

/// `/status` is 503 when every enabled server has failed, and says so.
#[tokio::test]
async fn when_every_server_failed_the_status_says_so() {
    let gateway = TestGateway::new()
        .section("bad", r#"command = "/no/such/program""#)
        .start()
        .await;
    gateway
        .status_until("bad", |s| s["state"] == "failed")
        .await;
    assert_eq!(gateway.http().get("/status", &[]).await.status(), 503);
    let ready = gateway.http().get("/readyz", &[]).await;
    assert_eq!(ready.status(), 503);
    assert!(
        ready
            .text()
            .await
            .contains("not ready: all servers have failed")
    );
    assert_eq!(gateway.http().get("/healthz", &[]).await.status(), 200);
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    assert_eq!(client.list("tools").await.len(), 0);
    gateway.stop().await;
}

/// A network server that nobody runs.
#[tokio::test]
async fn a_url_where_nobody_listens() {
    for (scheme, transport) in [
        ("http", "http"),
        ("http", "sse"),
        ("ws", "websocket"),
        ("http", "auto"),
    ] {
        let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = nobody.local_addr().unwrap();
        drop(nobody);
        let section = format!("url = \"{scheme}://{addr}/\"\ntransport = \"{transport}\"");
        let (gateway, good) = beside_good(&section).await;
        is_served(&gateway, &good).await;
        let status = gateway
            .status_until("bad", |s| s["state"] == "failed")
            .await;
        assert!(
            status["reason"].as_str().unwrap().contains("refused"),
            "{transport}: {status}"
        );
        gateway.stop().await;
    }
}

/// A page for people, as at the URL of a product.
#[tokio::test]
async fn a_url_of_a_page() {
    let page = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("url = \"http://{}/\"", page.local_addr().unwrap());
    let serving = spawn(async move {
        while let Ok((mut connection, _)) = page.accept().await {
            let mut request = [0; 4096];
            let length = connection.read(&mut request).await.unwrap_or_default();
            let answer: &[u8] = if request[..length].starts_with(b"GET") {
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\n\
                  content-length: 2\r\nconnection: close\r\n\r\nhi"
            } else {
                b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            };
            drop(connection.write_all(answer).await);
        }
    });
    let reason = "protocol violation: expected an event stream but got `text/html`; is this the URL of an MCP server?";
    check_reason(&url, reason).await;
    check_reason(&format!("{url}\ntransport = \"sse\""), reason).await;
    serving.abort();
}

/// A server that writes on and on without an end of line is given up by its reason: one that writes a
/// message after sixteen times as much as it may have, any other at once.
#[tokio::test]
async fn a_line_without_an_end() {
    let endless = "printf '{'; while :; do printf '%01000d' 0; done";
    let silent = "printf '%020000d' 0; exec sleep 60";
    for script in [endless, silent] {
        let section = format!(
            "command = 'sh'\nargs = ['-c', \"{script}\"]\nlimits = {{ response = \"16KiB\" }}"
        );
        let gateway = TestGateway::new().section("x", &section).start().await;
        let says = |status: &Value| {
            let reason = status["reason"].to_string();
            reason.contains("exceeds limits.response (16384 bytes)")
        };
        gateway.status_until("x", says).await;
        gateway.stop().await;
    }
}

/// An answer that is too large costs its call alone, also where its id stands behind the result, as the
/// TypeScript SDK writes it.
#[tokio::test]
async fn an_answer_that_is_too_large() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new()
        .server_with("x", &backend, "limits = { response = \"16KiB\" }")
        .start()
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    let ask = async |id| {
        client.ask(id, "tools/call", r#""name":"mcp_x_echo""#).await;
        backend.asked("tools/call").await
    };
    let (large, other) = (ask("1").await, ask("2").await);
    let (text, id) = ("x".repeat(1 << 15), large.id());
    let answer = format!(r#"{{"result":{{"id":"{text}"}},"jsonrpc":"2.0","id":{id}}}"#);
    large.conn.send(answer).await;
    let refused = client.answer("1").await.failure();
    assert_eq!(refused["data"]["reason"], "too_large", "{refused}");
    other.answer(r#"{"content":[]}"#).await;
    client.answer("2").await.value();
    gateway.stop().await;
}

/// Why a list could not be read is what callers are told too.
#[tokio::test]
async fn a_list_that_is_too_large() {
    let backend = Backend::start(Transport::Http, Era::Legacy).await;
    let description = "x".repeat(2000);
    backend.set_list(
        "tools/list",
        format!(r#"[{{"name":"echo","description":"{description}","inputSchema":{{}}}}]"#),
    );
    let gateway = TestGateway::new()
        .server_with("x", &backend, "limits = { response = \"1KiB\" }")
        .start()
        .await;
    gateway
        .status_until("x", |s| s["state"] == "degraded")
        .await;
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    let refused = client.answer("1").await.failure();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("exceeds limits.response"), "{refused}");
    gateway.stop().await;
}
