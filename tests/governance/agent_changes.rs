//! Agents that change while they are connected: what was taken from them is gone at once.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::SignedDuration;
use tempfile::TempDir;
use tokio::time::timeout;
use tollbridge::{
    clock,
    config::{Policy, PolicyMode, Role, Terms},
    control_socket,
    names::AgentId,
    store::{KeyHash, KeyId, Store, StoredAgent, StoredKey},
};

use crate::{
    harness::Server,
    support::{
        Auto, Client, Front, Gateway, TestGateway,
        client::{Who, modern_headers},
        soon, value,
        wire::{self, Envelope, spawn},
    },
};

const EVE: Who<'static> = Who {
    name: "eve",
    key: "tbk_eve_0123456789abcdef0123456789abcdef",
};

fn id() -> AgentId {
    AgentId::from_name(EVE.name)
}

fn eve(terms: Terms, enabled: bool) -> StoredAgent {
    StoredAgent {
        id: id(),
        name: EVE.name.to_owned(),
        team: None,
        enabled,
        role: Role::Agent,
        profiles: None,
        terms,
        created: clock::now(),
        changed: clock::now(),
    }
}

fn key() -> StoredKey {
    StoredKey {
        id: KeyId::new("k"),
        agent: id(),
        hash: KeyHash::of(EVE.key),
        prefix: "tbk_eve_".to_owned(),
        created: clock::now(),
        expires: None,
        revoked: None,
        last_used: None,
    }
}

/// A gateway with an agent that the command line has made.
struct House {
    gateway: Gateway,
    server: Server,
    store: Store,
    data: Arc<TempDir>,
}

impl House {
    async fn new() -> Self {
        Self::of_team("x", None).await
    }

    /// In front of `server`, with an agent of `team`.
    async fn of_team(server: &str, team: Option<&str>) -> Self {
        let name = server;
        let data = Arc::new(tempfile::tempdir().unwrap());
        let store = Store::open(data.path()).await.unwrap();
        store
            .agents
            .add(&StoredAgent {
                team: team.map(str::to_owned),
                ..eve(Terms::default(), true)
            })
            .await
            .unwrap();
        store.keys.add(&key()).await.unwrap();
        let server = Server::start().await;
        let settings = format!(
            "data_dir = '{}'\n[governance]\nauth = \"keys\"\nprice = \"0\"\npolicy = {{ mode = \"all\" }}\n",
            data.path().display()
        );
        let gateway = TestGateway::new().setting(&settings);
        let gateway = gateway.server(name, &server.backend).start().await;
        Self {
            gateway,
            server,
            store,
            data,
        }
    }

    /// Tells the gateway that the store has changed, as the command line does.
    async fn refresh(&self) {
        refresh(self.data.path()).await;
    }

    async fn update(&self, terms: Terms, enabled: bool) {
        assert!(
            self.store
                .agents
                .update(&eve(terms, enabled), None)
                .await
                .unwrap()
                .is_done()
        );
        self.refresh().await;
    }

    async fn stop(self) {
        self.store.close().await;
        self.gateway.stop().await;
    }
}

async fn refresh(data: &Path) {
    let told = soon(
        "the gateway reads the store again",
        control_socket::notify_all(data),
    )
    .await;
    assert!(told.failures.is_empty() && told.gateways == 1, "{told:?}");
}

async fn calls(client: &Client) -> bool {
    client
        .ask("7", "tools/call", r#""name":"mcp_x_echo""#)
        .await;
    client.answer("7").await.error.is_none()
}

fn only(tools: &str) -> Terms {
    let glob = globset::Glob::new(tools).unwrap();
    Terms {
        policy: Some(Policy {
            mode: PolicyMode::Allowlist,
            tools: vec![glob],
            ..Policy::default()
        }),
        ..Terms::default()
    }
}

/// A new policy counts for the next call, and sessions hear that their lists changed.
#[tokio::test]
async fn a_policy_changes_under_an_open_session() {
    for front in [Front::Streamable, Front::Sse, Front::Stdio] {
        let house = House::new().await;
        let client = house.gateway.client_of(EVE, front, "/mcp").await;
        client.listen().await;
        assert!(calls(&client).await);
        house.update(only("x/other"), true).await;
        // The policy leaves neither prompts nor resources either.
        let mut told = Vec::new();
        for _ in 0..3 {
            told.push(client.next().await.method().to_owned());
        }
        told.sort();
        let of = |kind| format!("notifications/{kind}/list_changed");
        assert_eq!(told, ["prompts", "resources", "tools"].map(of), "{front:?}");
        assert!(!calls(&client).await, "{front:?}");
        let listed = client.list("tools").await;
        assert_eq!(listed.len(), 1);
        house.stop().await;
    }
}

/// Who changes the team leaves the servers of the workspace behind: their lists, routes, streams and updates.
#[tokio::test]
async fn a_workspace_is_left_under_an_open_session() {
    let house = House::of_team("\"x@science\"", Some("science")).await;
    let merged = house.gateway.client_of(EVE, Front::Streamable, "/mcp");
    let merged = merged.await;
    merged.listen().await;
    assert!(calls(&merged).await);
    let (modern, route) = (
        house
            .gateway
            .client_of(EVE, Front::Modern, "/mcp/servers/x")
            .await,
        house
            .gateway
            .client_of(EVE, Front::Streamable, "/mcp/servers/x")
            .await,
    );
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    modern.ask("9", "subscriptions/listen", wish).await;
    modern
        .must("notifications/subscriptions/acknowledged")
        .await;
    for client in [&merged, &route] {
        let uri = if client.path == "/mcp" {
            "x+file:///a.txt"
        } else {
            "file:///a.txt"
        };
        let params = format!(r#""uri":"{uri}""#);
        client.ask("1", "resources/subscribe", &params).await;
        client.answer("1").await.value();
    }
    let reached = |method: &str| {
        let seen = house.server.seen();
        seen.iter().filter(|it| it.method() == method).count()
    };
    let called = reached("tools/call");
    let moved = StoredAgent {
        team: Some("ops".to_owned()),
        ..eve(Terms::default(), true)
    };
    let written = house.store.agents.update(&moved, None).await.unwrap();
    assert!(written.is_done());
    house.refresh().await;
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(merged.next().await.method().to_owned());
    }
    assert!(
        told.iter().all(|it| it.ends_with("list_changed")),
        "{told:?}"
    );
    // The stream on the route of the server ends.
    modern.answer("9").await;
    assert!(!calls(&merged).await);
    for list in ["tools", "resources", "prompts"] {
        assert!(merged.list(list).await.is_empty(), "{list}");
    }
    let update = r#"{"uri":"file:///a.txt"}"#;
    let updated = "notifications/resources/updated";
    house.server.backend.speak(updated, update).await;
    merged.is_quiet().await;
    let session = route.session.clone().unwrap();
    let headers = [("mcp-session-id", session.as_str())];
    for path in ["/mcp/servers/x", "/mcp/servers/x@science"] {
        let body = wire::request("1", "tools/call", r#"{"name":"echo"}"#);
        let answer = route.http.post_with(path, &headers, body).await;
        assert_eq!(answer.status(), 404, "{path}");
    }
    assert_eq!(reached("tools/call"), called);
    house.stop().await;
}

/// Who is disabled, or whose key is revoked, is shown out: sessions and streams end.
#[tokio::test]
async fn who_is_revoked_is_shown_out() {
    for revoke in [false, true] {
        let house = House::new().await;
        let client = house
            .gateway
            .client_of(EVE, Front::Streamable, "/mcp")
            .await;
        assert!(calls(&client).await);
        let session = client.session.clone().unwrap();
        let headers = [
            ("accept", "text/event-stream"),
            ("mcp-session-id", &session),
        ];
        let mut stream = client.http.get("/mcp", &headers).await.events();
        let accept = [("accept", "text/event-stream")];
        let mut sse = client.http.get("/sse", &accept).await.events();
        sse.must().await;
        if revoke {
            house
                .store
                .keys
                .revoke(&KeyId::new("k"), clock::now())
                .await
                .unwrap();
            house.refresh().await;
        } else {
            house.update(Terms::default(), false).await;
        }
        let ends = async { while stream.next().await.is_some() {} };
        soon("the stream of the session ends", ends).await;
        let ends = async { while sse.next().await.is_some() {} };
        soon("the old stream ends", ends).await;
        let reached = house.server.seen().len();
        let body = crate::support::wire::request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#);
        let status = client
            .http
            .post_with("/mcp", &headers[1..], body)
            .await
            .status();
        let expect = if revoke { 401 } else { 404 };
        assert_eq!(status, expect, "revoked: {revoke}");
        assert_eq!(house.server.seen().len(), reached);
        house.stop().await;
    }
}

/// At the moment when the time of a key passes, whoever came in with it is shown out, though nobody
/// asks anything; others stay.
#[tokio::test]
async fn who_came_with_a_key_that_expires_is_shown_out() {
    let house = House::new().await;
    let passes = clock::now() + SignedDuration::from_secs(4);
    let guest = StoredAgent {
        id: AgentId::from_name("guest"),
        name: "guest".to_owned(),
        ..eve(Terms::default(), true)
    };
    let secret = "tbk_guest_0123456789abcdef0123456789abc";
    house.store.agents.add(&guest).await.unwrap();
    let ticket = StoredKey {
        id: KeyId::new("g"),
        agent: guest.id,
        hash: KeyHash::of(secret),
        expires: Some(passes),
        ..key()
    };
    house.store.keys.add(&ticket).await.unwrap();
    house.refresh().await;
    let accept = ("accept", "text/event-stream");
    let who = Who {
        name: "guest",
        key: secret,
    };
    let streams = async |who| {
        let gateway = &house.gateway;
        let client = gateway.client_of(who, Front::Streamable, "/mcp").await;
        assert!(calls(&client).await);
        let session = client.session.clone().unwrap();
        let headers = [accept, ("mcp-session-id", &session)];
        let standing = client.http.get("/mcp", &headers).await.events();
        let mut sse = client.http.get("/sse", &[accept]).await.events();
        sse.must().await;
        (client, standing, sse)
    };
    let (stays, mut standing, _old) = streams(EVE).await;
    let (guest, mut leaves, mut old) = streams(who).await;
    let modern = house.gateway.client_of(who, Front::Modern, "/mcp").await;
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    modern.ask("9", "subscriptions/listen", wish).await;
    modern
        .must("notifications/subscriptions/acknowledged")
        .await;
    let ends = async {
        while leaves.next().await.is_some() {}
        while old.next().await.is_some() {}
    };
    soon("the streams end", ends).await;
    modern.answer("9").await;
    assert!(clock::now() >= passes, "they ended too early");
    let session = guest.session.clone().unwrap();
    let reached = house.server.seen().len();
    let body = crate::support::wire::request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#);
    let headers = [("mcp-session-id", session.as_str())];
    let answer = guest.http.post_with("/mcp", &headers, body).await;
    assert_eq!(answer.status(), 401);
    assert_eq!(house.server.seen().len(), reached);
    assert!(calls(&stays).await);
    while let Ok(event) = timeout(Duration::ZERO, standing.next()).await {
        assert!(event.is_some(), "the stream of another agent has ended");
    }
    house.stop().await;
}

/// How an agent is shown out.
#[derive(Clone, Copy, Debug)]
enum Out {
    Disabled,
    Removed,
    Revoked,
}

impl House {
    async fn show_out(&self, how: Out) {
        match how {
            Out::Disabled => {
                let disabled = eve(Terms::default(), false);
                assert!(
                    self.store
                        .agents
                        .update(&disabled, None)
                        .await
                        .unwrap()
                        .is_done()
                );
            }
            Out::Removed => assert!(self.store.agents.remove(id()).await.unwrap()),
            Out::Revoked => {
                let key = KeyId::new("k");
                let revoked = self.store.keys.revoke(&key, clock::now()).await;
                assert!(revoked.unwrap());
            }
        }
        self.refresh().await;
    }
}

/// A call outside of sessions that is under way ends at once, and nothing of its answer is delivered,
/// whether its server answers then or not; what it may have done is charged and recorded as refused.
#[tokio::test]
async fn calls_under_way_end_with_who_is_revoked() {
    for (out, is_stateless) in [
        (Out::Revoked, false),
        (Out::Disabled, false),
        (Out::Removed, false),
        (Out::Revoked, true),
    ] {
        let house = House::new().await;
        house.server.does("tools/call", Auto::Hand);
        let client = house.gateway.client_of(EVE, Front::Modern, "/mcp").await;
        let ask = |token: &str| {
            let meta = format!(r#""progressToken":{token}"#);
            let params = if is_stateless {
                format!(r#"{{"name":"mcp_x_echo","_meta":{{{meta}}}}}"#)
            } else {
                client.params(r#""name":"mcp_x_echo""#, &meta)
            };
            let text = wire::request(token, "tools/call", &params);
            let headers = if is_stateless {
                vec![("mcp-protocol-version".to_owned(), "2025-06-18".to_owned())]
            } else {
                modern_headers(&Envelope::of(&text))
            };
            let http = client.http.clone();
            spawn(async move {
                let headers: Vec<_> = headers
                    .iter()
                    .map(|(a, b)| (a.as_str(), b.as_str()))
                    .collect();
                http.post_with("/mcp", &headers, text).await
            })
        };
        let quiet = ask("7");
        let first = house.server.backend.asked("tools/call").await;
        let talked = ask("8");
        let second = house.server.backend.asked("tools/call").await;
        second.progress(1).await;
        let talked = soon("the stream begins", talked).await.unwrap();
        let mut talked = talked.events();
        assert!(talked.message().await.contains("notifications/progress"));
        house.show_out(out).await;
        let quiet = soon("the call ends at once", quiet).await.unwrap();
        assert_eq!(quiet.status(), 401, "{out:?}");
        let told = quiet.text().await;
        // Too late: whatever is said now is for nobody.
        second.progress(2).await;
        let late = r#"{"content":[{"type":"text","text":"late"}],"resultType":"complete"}"#;
        first.answer(late).await;
        second.answer(late).await;
        let last = talked.message().await;
        let error = value(&Envelope::of(&last).error.unwrap());
        assert_eq!(error["code"], -32003, "{last}");
        let mut rest = String::new();
        while let Some(event) = soon("the stream ends", talked.next()).await {
            rest += &event.data.unwrap_or_default();
        }
        for text in [told, last, rest] {
            assert!(!text.contains("late"), "{out:?}: {text}");
        }
        let records = recorded(house.data.path(), r#""kind":"call""#);
        let refused = records
            .iter()
            .filter(|it| it.contains(r#""decision":"refused""#));
        assert_eq!(refused.count(), 2, "{records:?}");
        house.stop().await;
    }
}

/// Lists that wait, and streams that listen, tell nobody anything who is no longer known.
#[tokio::test]
async fn listeners_hear_nothing_after_they_are_revoked() {
    let house = House::new().await;
    let modern = house.gateway.client_of(EVE, Front::Modern, "/mcp").await;
    let wish = r#""notifications":{"toolsListChanged":true}"#;
    modern.ask("9", "subscriptions/listen", wish).await;
    modern
        .must("notifications/subscriptions/acknowledged")
        .await;
    house.show_out(Out::Revoked).await;
    let end = modern.answer("9").await;
    let error = value(&end.error.unwrap());
    assert_eq!(error["code"], -32003, "{error}");
    house.stop().await;
}

/// Lines of the audit that have `word`.
fn recorded(data: &Path, word: &str) -> Vec<String> {
    let segments = std::fs::read_dir(data.join("audit")).unwrap();
    let texts = segments.map(|it| std::fs::read_to_string(it.unwrap().path()).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.contains(word)).collect()
}

/// An agent and a key that somebody writes into the database let nobody in, however often it is read
/// again; the audit has each once.
#[tokio::test]
async fn rows_that_somebody_else_wrote_let_nobody_in() {
    let house = House::new().await;
    let data = house.data.path();
    let secret = "evil-9d1f0b7c2a4e6835d0c9b8a7f6e5d4c3b2a1";
    let hash = KeyHash::of(secret).0;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(data.join("tollbridge.db"));
    let database = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let agent = "INSERT INTO agents (id, name, enabled, admin, terms, created_ms) VALUES \
                 (x'00112233445566778899aabbccddeeff', 'evil', 1, 1, '{\"policy\":{\"mode\":\"all\"}}', 1)";
    sqlx::query(agent).execute(&database).await.unwrap();
    // The other key has the MAC of one that is right.
    for (id, agent, mac) in [
        ("e1", "x'00112233445566778899aabbccddeeff'", "NULL"),
        (
            "e2",
            "(SELECT agent FROM keys WHERE id = 'k')",
            "(SELECT mac FROM keys WHERE id = 'k')",
        ),
    ] {
        let key = format!(
            "INSERT INTO keys (id, agent, hash, prefix, created_ms, mac) VALUES ('{id}', {agent}, ?, '', 1, {mac})"
        );
        let hash = if id == "e1" {
            hash
        } else {
            KeyHash::of("other").0
        };
        let key = sqlx::query(sqlx::AssertSqlSafe(key)).bind(hash.to_vec());
        key.execute(&database).await.unwrap();
    }
    for _ in 0..2 {
        house.refresh().await;
    }
    let stays = house.gateway.client_of(EVE, Front::Modern, "/mcp").await;
    assert!(calls(&stays).await);
    for key in [secret, "other"] {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let body = crate::support::wire::request("1", "tools/call", r#"{"name":"mcp_x_echo"}"#);
        let answer = stays.http.post_with("/mcp", &headers, body).await;
        assert_ne!(answer.status(), 200, "{key}");
    }
    let mut found = recorded(data, "\"row_refused\"");
    found.sort();
    let of = |subject: &str| {
        let subject = format!("\"subject\":\"{subject}\"");
        found.iter().filter(|line| line.contains(&subject)).count()
    };
    assert_eq!(
        (of("evil"), of("e1"), of("e2"), found.len()),
        (1, 1, 1, 3),
        "{found:?}"
    );
    database.close().await;
    house.stop().await;
}

/// A notification that only a server knows needs the same permission as its methods.
#[tokio::test]
async fn notifications_of_vendors_are_governed() {
    let house = House::new().await;
    for front in [Front::Streamable, Front::Sse, Front::Stdio] {
        let client = house.gateway.client_of(EVE, front, "/mcp/servers/x").await;
        client.ask("1", "tools/call", r#""name":"echo""#).await;
        client.answer("1").await.value();
        client.notify("notifications/acme/did", r#"{"n":1}"#).await;
        house.server.backend.told("notifications/acme/did").await;
        house.update(only("x/*"), true).await;
        while client.pending().await.is_some() {}
        client.notify("notifications/acme/did", r#"{"n":2}"#).await;
        // What is behind it has come: the notification has not.
        client.ask("2", "tools/call", r#""name":"echo""#).await;
        loop {
            let next = client.next().await;
            if next.is_response() {
                assert!(next.error.is_none(), "{next:?}");
                break;
            }
        }
        assert!(house.server.backend.was_told().await.is_none(), "{front:?}");
        house.update(Terms::default(), true).await;
    }
    house.stop().await;
}
