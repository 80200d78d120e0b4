//! Profiles: each shows its own part of the catalog under its own names, on every transport and in
//! both eras, and tells of changes to that part alone.

use globset::Glob;
use serde_json::json;
use tollbridge::config::{Profile, Terms};

use crate::support::{ALL, Backend, Client, Era, Front, Gateway, TestGateway, Transport, wire};

const PATH: &str = "/mcp/profiles/reading";
const CHANGED: &str = "notifications/tools/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const THREE: &str = r#"[{"name":"echo","inputSchema":{"type":"object"}},{"name":"other","inputSchema":{"type":"object"}},{"name":"third","inputSchema":{"type":"object"}}]"#;

/// A profile that shows everything.
pub(crate) fn everything() -> Profile {
    Profile {
        tools: None,
        prompts: None,
        resources: None,
        tags: None,
        rename: [].into(),
        describe: [].into(),
        terms: Terms::default(),
    }
}

/// A profile that shows `echo` of `x` as `say`, and nothing else of tools.
fn reading() -> Profile {
    Profile {
        tools: Some(globs(&["x/echo"])),
        prompts: Some(globs(&["mcp_x_*"])),
        resources: Some(globs(&["x/file:///*"])),
        rename: texts([("mcp_x_echo", "say"), ("mcp_x_greet", "hello")]),
        describe: texts([("mcp_x_echo", "Says it back")]),
        ..everything()
    }
}

fn globs(texts: &[&str]) -> Vec<Glob> {
    texts.iter().map(|text| Glob::new(text).unwrap()).collect()
}

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> indexmap::IndexMap<String, String> {
    pairs
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .into()
}

async fn names(client: &Client, kind: &str, key: &str) -> Vec<String> {
    let items = client.list(kind).await;
    let name = |item: &serde_json::Value| item[key].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

async fn two_servers(x: &Backend, y: &Backend, profile: Profile) -> Gateway {
    let gateway = TestGateway::new().server("x", x).server("y", y);
    gateway.profile("reading", profile).start().await
}

/// What a profile shows can be used under the names it gives, and nothing else can, whatever the
/// client and the server speak.
#[tokio::test]
async fn what_a_profile_lists_is_what_it_serves() {
    for (transport, era) in ALL {
        let x = Backend::start(transport, era).await;
        let y = Backend::start(transport, era).await;
        let gateway = two_servers(&x, &y, reading()).await;
        for front in Front::ALL {
            let client = gateway.client(front, PATH, "{}").await;
            let tools = client.list("tools").await;
            let expect = json!([{"description": "Says it back", "name": "say", "inputSchema": {"type": "object"}}]);
            assert_eq!(json!(tools), expect, "{transport:?} {era:?} {front:?}");
            assert_eq!(names(&client, "prompts", "name").await, ["hello"]);
            assert_eq!(
                names(&client, "resources", "uri").await,
                ["x+file:///a.txt"]
            );
            client.call("1", "say", "1").await;
            let asked = x.asked("tools/call").await;
            assert_eq!(
                asked.envelope.param(&["name"]).as_deref(),
                Some(r#""echo""#)
            );
            asked.answer(r#"{"content":[]}"#).await;
            client.answer("1").await.value();
            client.ask("2", "prompts/get", r#""name":"hello""#).await;
            let asked = x.asked("prompts/get").await;
            assert_eq!(
                asked.envelope.param(&["name"]).as_deref(),
                Some(r#""greet""#)
            );
            asked.answer(r#"{"messages":[]}"#).await;
            client.answer("2").await.value();
            let uri = r#""uri":"x+file:///a.txt""#;
            client.ask("3", "resources/read", uri).await;
            let asked = x.asked("resources/read").await;
            asked
                .answer(r#"{"contents":[{"uri":"file:///a.txt","text":"t"}]}"#)
                .await;
            let read = client.answer("3").await.value();
            assert_eq!(read["contents"][0]["uri"], "x+file:///a.txt");
            for (method, members) in [
                ("tools/call", r#""name":"mcp_x_echo""#),
                ("tools/call", r#""name":"mcp_x_other""#),
                ("tools/call", r#""name":"mcp_y_echo""#),
                ("prompts/get", r#""name":"mcp_y_greet""#),
                ("resources/read", r#""uri":"x+file:///a/b""#),
                ("resources/read", r#""uri":"y+file:///a.txt""#),
            ] {
                client.ask("4", method, members).await;
                let code = client.answer("4").await.code();
                assert!(
                    [-32602, -32002].contains(&code),
                    "{method} {members} {code}"
                );
            }
            assert!(x.was_asked().await.is_none() && y.was_asked().await.is_none());
        }
        gateway.stop().await;
    }
}

/// Changes beside the profile are not told, those within it are, once.
#[tokio::test]
async fn a_profile_tells_of_its_own_changes_only() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let profile = Profile {
        tools: Some(globs(&["x/*"])),
        ..everything()
    };
    let gateway = two_servers(&x, &y, profile).await;
    let merged = gateway.client(Front::Streamable, "/mcp", "{}").await;
    merged.listen().await;
    let mut clients = Vec::new();
    for front in Front::ALL {
        let client = gateway.client(front, PATH, "{}").await;
        if front.is_modern() {
            let filter = r#""notifications":{"toolsListChanged":true}"#;
            client.ask("9", "subscriptions/listen", filter).await;
            client
                .must("notifications/subscriptions/acknowledged")
                .await;
        } else {
            client.listen().await;
        }
        clients.push(client);
    }
    y.set_list("tools/list", THREE);
    y.list_changed("tools").await;
    merged.must(CHANGED).await;
    for client in &clients {
        client.is_quiet().await;
    }
    x.set_list("tools/list", THREE);
    x.list_changed("tools").await;
    merged.must(CHANGED).await;
    for client in &clients {
        client.must(CHANGED).await;
        assert_eq!(client.list("tools").await.len(), 3, "{:?}", client.front);
        client.is_quiet().await;
    }
    gateway.stop().await;
}

/// A subscription to what the profile shows is served; updates of what it hides are not told.
#[tokio::test]
async fn updates_are_told_of_resources_that_the_profile_shows() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let profile = Profile {
        resources: Some(globs(&["x/file:///*"])),
        ..everything()
    };
    let gateway = two_servers(&x, &y, profile).await;
    for front in Front::LEGACY {
        let client = gateway.client(front, PATH, "{}").await;
        client.listen().await;
        let uri = r#""uri":"x+file:///docs""#;
        client.ask("1", "resources/subscribe", uri).await;
        x.asked("resources/subscribe").await.answer("{}").await;
        client.answer("1").await.value();
        let hidden = r#""uri":"y+file:///docs""#;
        client.ask("2", "resources/subscribe", hidden).await;
        client.answer("2").await.failure();
        // It lies within what was subscribed to, but the profile does not show it.
        x.speak(UPDATED, r#"{"uri":"file:///docs/a"}"#).await;
        x.speak(UPDATED, r#"{"uri":"file:///docs"}"#).await;
        let told = client.must(UPDATED).await;
        assert_eq!(
            told.params.as_deref(),
            Some(r#"{"uri":"x+file:///docs"}"#),
            "{front:?}"
        );
        client.is_quiet().await;
    }
    gateway.stop().await;
}

/// The same on the listen stream of a modern client.
#[tokio::test]
async fn updates_on_a_listen_stream_are_of_resources_that_the_profile_shows() {
    let x = Backend::start(Transport::Http, Era::Modern).await;
    let y = Backend::start(Transport::Http, Era::Modern).await;
    let profile = Profile {
        resources: Some(globs(&["x/file:///*"])),
        ..everything()
    };
    let gateway = two_servers(&x, &y, profile).await;
    let client = gateway.client(Front::Modern, PATH, "{}").await;
    let wish = r#""notifications":{"resourceSubscriptions":["x+file:///docs","y+file:///docs"]}"#;
    client.ask("5", "subscriptions/listen", wish).await;
    let ack = client
        .must("notifications/subscriptions/acknowledged")
        .await;
    assert_eq!(
        ack.param(&["notifications"]).as_deref(),
        Some(r#"{"resourceSubscriptions":["x+file:///docs"]}"#)
    );
    let listen = x.listen("file:///docs").await;
    for uri in ["file:///docs/a", "file:///docs"] {
        let params = listen.tagged(&format!(r#""uri":"{uri}","#));
        listen.tell(UPDATED, &params).await;
    }
    let told = client.must(UPDATED).await;
    assert_eq!(told.param(&["uri"]).as_deref(), Some(r#""x+file:///docs""#));
    client.is_quiet().await;
    gateway.stop().await;
}

/// A profile introduces itself as the merged route does, and a session belongs to its route.
#[tokio::test]
async fn a_profile_introduces_itself() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let gateway = two_servers(&x, &y, reading()).await;
    let (http, params) = (
        gateway.http(),
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#,
    );
    let initialize = || wire::request("1", "initialize", params);
    let mut answers = Vec::new();
    for path in ["/mcp", PATH] {
        let answer = http.post(path, initialize()).await.text().await;
        answers.push(wire::value(&answer)["result"].clone());
    }
    assert_eq!(answers[0], answers[1]);
    let client = gateway.client(Front::Streamable, PATH, "{}").await;
    let session = client.session.clone().unwrap();
    let ping = wire::request("2", "ping", "{}");
    for (path, status) in [
        (PATH, 200),
        ("/mcp", 404),
        ("/mcp/profiles/other", 404),
        ("/mcp/servers/x", 404),
    ] {
        let headers = [("mcp-session-id", session.as_str())];
        let answer = http.post_with(path, &headers, ping.clone()).await;
        assert_eq!(answer.status(), status, "{path}");
    }
    gateway.stop().await;
}

/// A profile that is not configured is not there, on any transport.
#[tokio::test]
async fn an_unknown_profile_is_not_found() {
    let gateway = TestGateway::new()
        .profile("reading", everything())
        .start()
        .await;
    let http = gateway.http();
    let ping = wire::request("1", "ping", "{}");
    for path in ["/mcp/profiles/other", "/mcp/profiles/"] {
        assert_eq!(http.post(path, ping.clone()).await.status(), 404, "{path}");
    }
    let accept = [("accept", "text/event-stream")];
    let sse = http.get("/sse/profiles/other", &accept).await;
    assert_eq!(sse.status(), 404);
    assert_eq!(sse.text().await, "unknown profile\n");
    assert_eq!(http.post(PATH, ping).await.status(), 200);
    gateway.stop().await;
}

/// Names that collide, and what each profile lists, stand in `/status`.
#[tokio::test]
async fn the_status_tells_of_profiles_and_their_names() {
    let x = Backend::start(Transport::Stdio, Era::Legacy).await;
    let y = Backend::start(Transport::Stdio, Era::Legacy).await;
    let profile = Profile {
        rename: texts([("mcp_y_echo", "mcp_x_echo"), ("mcp_y_other", "mcp_x_echo")]),
        ..everything()
    };
    let gateway = two_servers(&x, &y, profile).await;
    let http = gateway.http();
    let status = wire::value(&http.get("/status", &[]).await.text().await);
    assert_eq!(
        status["profiles"],
        json!([{
            "name": "reading",
            "listed": {"tools": 2, "resources": 2, "templates": 2, "prompts": 2}
        }])
    );
    let says = "tools: `NAME` is not served in profile `reading`, which renames `mcp_y_echo` to \
                `mcp_x_echo`";
    for (server, name) in [("x", "mcp_x_echo"), ("y", "mcp_y_other")] {
        let expect = format!("{server}: {}", says.replace("NAME", name));
        assert_eq!(
            gateway.status(server).await["problems"],
            json!([expect]),
            "{server}"
        );
    }
    gateway.stop().await;
}
