//! Redirects: within the origin they are followed as far as the method allows, and our credentials go
//! nowhere else.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::Value;

use crate::support::{
    Backend, Era, Front, Gateway, TestGateway, Transport,
    http::Http,
    scripted::{Received, Scripted, response},
    wire::spawn,
};

const ECHO: &str = r#""name":"mcp_x_echo""#;

/// What a call of `echo` comes to.
async fn called(gateway: &Gateway) -> Result<Value, String> {
    let client = gateway.client(Front::Streamable, "/mcp", "{}").await;
    client.ask("1", "tools/call", ECHO).await;
    let answer = client.answer("1").await;
    if answer.result.is_some() {
        return Ok(answer.value());
    }
    Err(answer.failure()["message"].as_str().unwrap().to_owned())
}

fn redirect(status: u16, location: &str) -> Vec<u8> {
    response(
        &format!("{status} Elsewhere"),
        &format!("location: {location}\r\n"),
        "",
    )
}

/// A whole server may be at another path, or a single call: the message and its headers arrive there.
#[tokio::test]
async fn posts_follow_within_the_origin() {
    for status in [307, 308] {
        let server = Scripted::start(move |request: &Received| {
            let is_moved = request.target == "/mcp" && request.verb == "POST";
            is_moved.then(|| redirect(status, "/mcp/"))
        })
        .await;
        let keys = format!(
            "{}auth = {{ type = \"bearer\", token = \"hunter2\" }}",
            server.config()
        );
        let gateway = TestGateway::new().section("x", &keys).start().await;
        called(&gateway).await.unwrap();
        let received = server.received();
        let call = received.iter().rev().find(|it| it.calls("echo")).unwrap();
        assert_eq!(call.target, "/mcp/");
        assert_eq!(call.header("authorization"), Some("Bearer hunter2"));
        assert_eq!(gateway.status("x").await["state"], "connected");
        gateway.stop().await;
    }
}

/// So many redirects in a row are followed, and no more.
#[tokio::test]
async fn redirects_at_past_and_back_under_the_limit() {
    for (redirects, is_served) in [(3, true), (4, false), (2, true)] {
        let server = Scripted::start(move |request: &Received| {
            let passed: usize = request
                .target
                .trim_start_matches("/mcp")
                .parse()
                .unwrap_or(0);
            let is_redirected = request.calls("echo") && passed < redirects;
            is_redirected.then(|| redirect(307, &format!("/mcp{}", passed + 1)))
        })
        .await;
        let gateway = TestGateway::new().section("x", &server.config());
        let gateway = gateway.start().await;
        let called = called(&gateway).await;
        assert_eq!(called.is_ok(), is_served, "{redirects} {called:?}");
        if let Err(failure) = called {
            assert!(failure.contains("again and again"), "{failure}");
        }
        gateway.stop().await;
    }
}

/// Where a redirect is not followed, the error names the URL; nothing is sent there, and nothing is held
/// against the server.
#[tokio::test]
async fn another_origin_gets_nothing() {
    let other = Scripted::start(|_| None).await;
    let elsewhere = format!("http://{}/there", other.address);
    for (status, location, said) in [
        (307, elsewhere.clone(), "another origin"),
        (308, elsewhere.clone(), "another origin"),
        (302, elsewhere.clone(), "another origin"),
        (302, "/there".to_owned(), "loses the request"),
        (307, String::new(), "without a `Location`"),
    ] {
        let to = location.clone();
        let server = Scripted::start(move |request: &Received| {
            request.calls("echo").then(|| redirect(status, &to))
        })
        .await;
        let gateway = TestGateway::new().section("x", &server.config());
        let gateway = gateway.start().await;
        for _ in 0..6 {
            let failure = called(&gateway).await.unwrap_err();
            assert!(failure.contains(said), "{failure}");
            let names_it = location.is_empty() || failure.contains("/there`");
            assert!(names_it, "{failure}");
        }
        gateway.stop().await;
    }
    assert!(other.received().is_empty(), "{:?}", other.received());
    // The same where nothing of the server is reached: it says so in the status.
    for transport in ["http", "sse", "websocket", "auto"] {
        let to = elsewhere.clone();
        let server = Scripted::start(move |_| Some(redirect(307, &to))).await;
        let scheme = if transport == "websocket" {
            "ws"
        } else {
            "http"
        };
        let keys = format!(
            "url = \"{scheme}://{}/mcp\"\ntransport = \"{transport}\"\n",
            server.address
        )
        .replace("transport = \"auto\"\n", "");
        let gateway = TestGateway::new().section("x", &keys).start().await;
        let reason = gateway.status("x").await["reason"].to_string();
        assert!(reason.contains(&elsewhere), "{transport}: {reason}");
        gateway.stop().await;
    }
    assert!(other.received().is_empty(), "{:?}", other.received());
}

/// The stream of an old server may be elsewhere within the origin, and names its endpoint relative to
/// where it is in the end.
#[tokio::test]
async fn an_old_server_may_redirect_its_stream() {
    for status in [301, 302, 303, 307, 308] {
        let backend = Backend::start(Transport::Sse, Era::Legacy).await;
        let redirects = Arc::new(AtomicUsize::new(0));
        let at = relay(&backend, status, Arc::clone(&redirects)).await;
        let keys = format!("url = \"http://{at}/pre/sse\"\ntransport = \"sse\"\n");
        let gateway = TestGateway::new().section("x", &keys).start().await;
        assert_eq!(gateway.status("x").await["state"], "connected", "{status}");
        assert!(redirects.load(Ordering::SeqCst) > 0);
        gateway.stop().await;
    }
}

/// A proxy before an old server, which redirects `/pre/sse` to `/pre/sse/`, and takes `/pre` off the paths
/// of all else. Its address.
async fn relay(
    backend: &Backend,
    status: u16,
    redirects: Arc<AtomicUsize>,
) -> std::net::SocketAddr {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
        net::{TcpListener, TcpStream},
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let to = backend.address();
    spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let redirects = Arc::clone(&redirects);
            spawn(async move {
                let mut head = Vec::new();
                while !head.contains(&b'\n') {
                    if from.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let head = String::from_utf8(head).unwrap();
                if head.starts_with("GET /pre/sse ") {
                    redirects.fetch_add(1, Ordering::SeqCst);
                    let away = redirect(status, "/pre/sse/");
                    from.write_all(&away).await.unwrap();
                    return;
                }
                let head = head.replacen(" /pre/sse/ ", " /sse ", 1);
                let head = head.replacen(" /pre/", " /", 1);
                let mut to = TcpStream::connect(to).await.unwrap();
                to.write_all(head.as_bytes()).await.unwrap();
                drop(copy_bidirectional(&mut from, &mut to).await);
            });
        }
    });
    address
}

/// The endpoint that our own stream names is found from every route of it, behind a proxy that takes a
/// prefix off as well.
#[tokio::test]
async fn our_endpoint_is_relative_or_has_the_prefix() {
    let gateway = TestGateway::new()
        .section("t", "transport = \"builtin\"")
        .start()
        .await;
    let http = gateway.http();
    for (path, prefix, expect) in [
        ("/sse", "", "messages/?"),
        ("/sse/", "", "../messages/?"),
        ("/sse/servers/t", "", "../../messages/?"),
        ("/sse", "/gw", "/gw/messages/?"),
        ("/sse/servers/t", "/a/b/", "/a/b/messages/?"),
        ("/sse", "/", "/messages/?"),
        ("/sse", "//evil.example", "messages/?"),
        ("/sse", "http://evil.example", "messages/?"),
        ("/sse", "/a\\b", "messages/?"),
    ] {
        let endpoint = endpoint(&http, path, prefix).await;
        assert!(endpoint.starts_with(expect), "{path} {prefix}: {endpoint}");
    }
    let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    for (bytes, is_taken) in [(256, true), (257, false), (255, true)] {
        let endpoint = endpoint(&http, "/sse", &long(bytes)).await;
        assert_eq!(endpoint.starts_with("/x"), is_taken, "{bytes}");
    }
    gateway.stop().await;
}

/// What the first event of a stream says.
async fn endpoint(http: &Http, path: &str, prefix: &str) -> String {
    let headers = [
        ("accept", "text/event-stream"),
        ("x-forwarded-prefix", prefix),
    ];
    let headers = &headers[..if prefix.is_empty() { 1 } else { 2 }];
    let mut events = http.get(path, headers).await.events();
    events.must().await.data.unwrap()
}
