//! Headers of callers that the config lets through to a server.

use crate::{
    harness::{of_file, parse},
    support::{
        Backend, Era, Front, Gateway, TestGateway, Transport,
        scripted::{Received, Scripted, json},
        wire::{Envelope, request},
    },
};

const KEY: &str = "forward_headers = [\"X-Github-Token\"]\n";
const CALL: &str = r#"{"name":"mcp_one_echo"}"#;

/// A server that tells what headers a call came with.
async fn telling() -> Scripted {
    Scripted::start(|request: &Received| {
        let header = |name| request.header(name).unwrap_or("none").to_owned();
        let token = header("x-github-token");
        let result = format!(r#"{{"content":[],"structuredContent":{{"token":"{token}"}}}}"#);
        request.calls("echo").then(|| json(request.result(&result)))
    })
    .await
}

/// The token that the server sees when a client sends these headers.
async fn seen(gateway: &Gateway, headers: &[(&str, &str)]) -> String {
    let http = gateway.http();
    let answer = http.post_with("/mcp", headers, request("1", "tools/call", CALL));
    let answer = Envelope::of(&answer.await.text().await).value();
    let token = &answer["structuredContent"]["token"];
    token.as_str().unwrap().to_owned()
}

fn greetings(server: &Scripted) -> usize {
    let received = server.received();
    let greets = |it: &&Received| it.body.contains("\"initialize\"");
    received.iter().filter(greets).count()
}

/// The header that is named goes with each call, and callers with different values share nothing, however
/// they share connections otherwise.
#[tokio::test]
pub(crate) async fn forward_headers() {
    for isolation in ["auto", "agent", "session", "shared", "pool", "call"] {
        let server = telling().await;
        let keys = format!("{}{KEY}isolation = \"{isolation}\"\n", server.config());
        let gateway = TestGateway::new().section("one", &keys).start().await;
        let before = server.received().len();
        for token in ["alice", "bob", "alice"] {
            let headers = [("x-github-token", token), ("x-other", "hunter2")];
            assert_eq!(seen(&gateway, &headers).await, token, "{isolation}");
        }
        assert_eq!(seen(&gateway, &[]).await, "none", "{isolation}");
        assert_eq!(seen(&gateway, &[("x-github-token", " ")]).await, "none");
        let received = server.received();
        for request in &received[before..] {
            assert_eq!(request.header("x-other"), None);
            assert_eq!(request.header("authorization"), None);
        }
        for session in received
            .iter()
            .filter(|it| it.body.contains("\"initialize\""))
        {
            // Each connection is greeted with the header that all of its calls have.
            assert_ne!(session.header("x-github-token"), Some(" "), "{isolation}");
        }
        if matches!(isolation, "auto" | "agent" | "shared") {
            assert_eq!(
                greetings(&server),
                3,
                "one for lists, alice and bob each: {isolation}"
            );
        }
        gateway.stop().await;
    }
    let server = telling().await;
    let gateway = TestGateway::new()
        .section("one", &server.config())
        .start()
        .await;
    assert_eq!(seen(&gateway, &[("x-github-token", "alice")]).await, "none");
    gateway.stop().await;
}

/// A server gets the headers that are for it alone, and never a key of ours.
#[tokio::test]
async fn each_server_has_its_own() {
    let (one, other) = (telling().await, telling().await);
    let gateway = TestGateway::new()
        .section("one", &format!("{}{KEY}", one.config()))
        .section(
            "other",
            &format!("{}forward_headers = [\"x-team\"]\n", other.config()),
        )
        .start()
        .await;
    let headers = [
        ("x-github-token", "alice"),
        ("x-team", "science"),
        ("x-api-key", "hunter2"),
    ];
    assert_eq!(seen(&gateway, &headers).await, "alice");
    let http = gateway.http();
    let call = request("1", "tools/call", r#"{"name":"mcp_other_echo"}"#);
    http.post_with("/mcp", &headers, call).await.text().await;
    let of_calls = |server: &Scripted| {
        let received = server.received();
        received
            .into_iter()
            .rev()
            .find(|it| it.calls("echo"))
            .unwrap()
    };
    let (one, other) = (of_calls(&one), of_calls(&other));
    assert_eq!(one.header("x-team"), None);
    assert_eq!(other.header("x-team"), Some("science"));
    assert_eq!(other.header("x-github-token"), None);
    assert_eq!(one.header("x-api-key"), None);
    gateway.stop().await;
}

/// A client may send another value within its session; it is served by another connection then. Servers of
/// all transports get the header.
#[tokio::test]
async fn sessions_may_change_their_value() {
    for transport in [Transport::Http, Transport::Sse] {
        let backend = Backend::start(transport, Era::Legacy).await;
        let gateway = TestGateway::new().server_with("one", &backend, KEY);
        let gateway = gateway.start().await;
        let http = gateway.http();
        for front in [Front::Streamable, Front::Sse] {
            let client = gateway.client(front, "/mcp", "{}").await;
            client
                .ask("1", "tools/call", r#""name":"mcp_one_echo""#)
                .await;
            let call = backend.asked("tools/call").await;
            assert_eq!(call.headers.get("x-github-token"), None);
            call.answer("{}").await;
            client.answer("1").await.value();
        }
        for token in ["alice", "bob"] {
            let headers = [("x-github-token", token)];
            let asked = http.post_with("/mcp", &headers, request("1", "tools/call", CALL));
            let answered = async {
                let call = backend.asked("tools/call").await;
                assert_eq!(call.headers.get("x-github-token").unwrap(), token);
                call.answer("{}").await;
            };
            let (answer, ()) = tokio::join!(asked, answered);
            Envelope::of(&answer.text().await).value();
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn headers_that_cannot_be_forwarded_are_mistakes() {
    for (name, keys, expect) in [
        ("Authorization", "", "is for the gateway"),
        ("x-api-key", "", "is for the gateway"),
        ("Cookie", "", "is for the gateway"),
        ("Mcp-Session-Id", "", "set by the transport"),
        ("content-type", "", "set by the transport"),
        ("tollbridge-hops", "", "set by the transport"),
        ("a b", "", "letters, digits"),
        ("", "", "letters, digits"),
        ("X-Team", "headers = { x-team = \"a\" }", "from the config"),
        (
            "X-Key",
            "auth = { type = \"header\", name = \"x-key\", value = \"a\" }",
            "from the config",
        ),
    ] {
        let config = format!(
            "[servers.one]\nurl = \"https://a.example/\"\nforward_headers = [\"{name}\"]\n{keys}"
        );
        let refused = parse(&config).unwrap_err();
        assert!(refused.contains(expect), "{name}: {refused}");
    }
    let program = "[servers.one]\ntransport = \"builtin\"\nforward_headers = [\"x-a\"]";
    of_file(program).await.stop().await;
}

/// A caller that comes with ever other values gives up connections of its own for them.
#[tokio::test]
async fn other_values_cost_no_other_agent_its_connection() {
    const KEYS: [&str; 2] = [
        "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a",
        "5a6c1d0a9b8e7f3c2d5a6b1e0f9c8d7b",
    ];
    for isolation in ["agent", "shared"] {
        let server = telling().await;
        let keys = format!(
            "{}{KEY}isolation = \"{isolation}\"\nmax_instances = 3\n",
            server.config()
        );
        let agents = format!(
            "governance = {{ auth = \"keys\", policy = {{ mode = \"all\" }} }}\n\
             agents = {{ quiet = {{ keys = [\"{}\"] }}, busy = {{ keys = [\"{}\"] }} }}",
            KEYS[0], KEYS[1]
        );
        let gateway = TestGateway::new().setting(&agents).section("one", &keys);
        let gateway = gateway.start().await;
        let seen = async |key: &str, token: &str| {
            let headers = [("x-api-key", key), ("x-github-token", token)];
            assert_eq!(seen(&gateway, &headers).await, token, "{isolation}");
        };
        seen(KEYS[0], "alice").await;
        for at in 0..5 {
            seen(KEYS[1], &format!("bob-{at}")).await;
        }
        let before = greetings(&server);
        seen(KEYS[0], "alice").await;
        assert_eq!(greetings(&server), before, "{isolation}: it was kept");
        seen(KEYS[1], "bob-0").await;
        assert_eq!(greetings(&server), before + 1, "{isolation}: it gave way");
        gateway.stop().await;
    }
}
