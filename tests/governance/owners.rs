//! Servers of workspaces and agents: nobody else sees them or reaches them, on any route, by any method.

use serde_json::Value;
use tollbridge::{
    config::{Config, ConfigFormat, ConfigText, Environment, parse},
    names::{ServerId, ServerName},
};

use crate::{
    harness::{ANN, BOB, Server, keyed, records},
    support::{
        Auto, Client, Era, Front, Gateway, TestGateway, Transport, client::Who, soon, value,
    },
};

/// Ann and Bob are in two workspaces, and Ann has a server of her own.
const AGENTS: &str = "[agents.ann]\nid = \"agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11\"\nteam = \"science\"\n\
                      [agents.bob]\nteam = \"ops\"\n[profiles.p]\n[governance]\nprice = \"0\"\n";
const NOTES: &str = "notes@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";
/// What no server but that of Ann's workspace says.
const WORD: &str = "of the laboratory";

struct Workspaces {
    gateway: Gateway,
    /// The gateway's.
    shared: Server,
    science: Server,
    ops: Server,
    notes: Server,
}

impl Workspaces {
    async fn new() -> Self {
        let [shared, science, ops, notes] = [
            Server::start().await,
            Server::start().await,
            Server::start().await,
            Server::start().await,
        ];
        let listed = format!(
            r#"{{"tools":[{{"name":"echo","description":"{WORD}","inputSchema":{{"type":"object"}}}}]}}"#
        );
        science.does("tools/list", Auto::Result(listed));
        let gateway = TestGateway::new()
            .setting(&keyed(AGENTS))
            .server("shared", &shared.backend)
            .server("\"lab@science\"", &science.backend)
            .server("\"lab@ops\"", &ops.backend)
            .server(&format!("\"{NOTES}\""), &notes.backend)
            .start()
            .await;
        Self {
            gateway,
            shared,
            science,
            ops,
            notes,
        }
    }

    async fn client(&self, who: Who<'_>, front: Front, path: &str) -> Client {
        self.gateway.client_of(who, front, path).await
    }

    /// The names of the tools on a route.
    async fn tools(&self, who: Who<'_>, front: Front, path: &str) -> Vec<String> {
        let tools = self.client(who, front, path).await.list("tools").await;
        let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    }

    async fn stop(self) {
        self.gateway.stop().await;
    }
}

/// How much reached a server, but for subscriptions of sessions that have ended.
fn seen(server: &Server) -> usize {
    let seen = server.seen();
    let asked = seen
        .iter()
        .filter(|it| it.method() != "resources/unsubscribe");
    asked.count()
}

/// Requests for items of the server that `merged` calls `name`.
fn requests(name: Option<&str>) -> Vec<(&'static str, String)> {
    let item =
        |original: &str| name.map_or(original.to_owned(), |it| format!("mcp_{it}_{original}"));
    let uri = |original: &str| name.map_or(original.to_owned(), |it| format!("{it}+{original}"));
    let argument = r#""argument":{"name":"path","value":"a"}"#;
    let mut requests = vec![
        ("tools/call", format!(r#""name":"{}""#, item("echo"))),
        ("prompts/get", format!(r#""name":"{}""#, item("greet"))),
        (
            "resources/read",
            format!(r#""uri":"{}""#, uri("file:///a.txt")),
        ),
        (
            "completion/complete",
            format!(
                r#""ref":{{"type":"ref/prompt","name":"{}"}},{argument}"#,
                item("greet")
            ),
        ),
        (
            "completion/complete",
            format!(
                r#""ref":{{"type":"ref/resource","uri":"{}"}},{argument}"#,
                uri("file:///{path}")
            ),
        ),
        (
            "resources/subscribe",
            format!(r#""uri":"{}""#, uri("file:///a.txt")),
        ),
    ];
    if name.is_none() {
        requests.push(("acme/do", r#""a":1"#.to_owned()));
        requests.push(("tasks/get", r#""taskId":"1""#.to_owned()));
    }
    requests
}

async fn ask(client: &Client, all: Vec<(&'static str, String)>) -> Vec<(String, bool)> {
    let mut answers = Vec::new();
    for (at, (method, params)) in all.into_iter().enumerate() {
        let id = (at + 1).to_string();
        client.ask(&id, method, &params).await;
        let is_answered = client.answer(&id).await.error.is_none();
        answers.push((format!("{method} {params}"), is_answered));
    }
    answers
}

#[tokio::test]
async fn lists_have_what_the_agent_sees() {
    let stage = Workspaces::new().await;
    for front in Front::ALL {
        for path in ["/mcp", "/mcp/profiles/p"] {
            let echoes = |tools: Vec<String>| -> Vec<String> {
                tools
                    .into_iter()
                    .filter(|it| it.ends_with("_echo"))
                    .collect()
            };
            let anns = echoes(stage.tools(ANN, front, path).await);
            assert_eq!(anns, ["mcp_lab_echo", "mcp_notes_echo", "mcp_shared_echo"]);
            let bobs = echoes(stage.tools(BOB, front, path).await);
            assert_eq!(
                bobs,
                ["mcp_lab_echo", "mcp_shared_echo"],
                "{front:?} {path}"
            );
        }
        for (who, expect) in [(ANN, true), (BOB, false)] {
            let client = stage.client(who, front, "/mcp").await;
            let tools = client.list("tools").await;
            let has = tools.iter().any(|tool| tool["description"] == WORD);
            assert_eq!(has, expect, "{} {front:?}", who.name);
        }
    }
    stage.stop().await;
}

/// Each reaches the server of its own workspace by the same name.
#[tokio::test]
async fn a_name_leads_to_the_server_of_the_workspace() {
    let stage = Workspaces::new().await;
    for front in Front::ALL {
        for (who, own, foreign) in [
            (ANN, &stage.science, &stage.ops),
            (BOB, &stage.ops, &stage.science),
        ] {
            for (path, name) in [
                ("/mcp", Some("lab")),
                ("/mcp/profiles/p", Some("lab")),
                ("/mcp/servers/lab", None),
            ] {
                let before = (seen(own), seen(foreign));
                let client = stage.client(who, front, path).await;
                let answers = ask(&client, requests(name)).await;
                let reached = seen(own) - before.0;
                assert!(reached >= 4, "{} {front:?} {path}: {answers:?}", who.name);
                assert_eq!(seen(foreign), before.1, "{} {front:?} {path}", who.name);
            }
        }
    }
    assert_eq!(seen(&stage.shared), 0);
    stage.stop().await;
}

/// An agent's own server hides one of its workspace that has the same name, and others go on with that.
#[tokio::test]
async fn a_server_of_its_own_hides_that_of_the_workspace() {
    let (science, own) = (Server::start().await, Server::start().await);
    let agents = AGENTS.replace("team = \"ops\"", "team = \"science\"");
    let gateway = TestGateway::new()
        .setting(&keyed(&agents))
        .server("\"lab@science\"", &science.backend)
        .server(
            &format!("\"{}\"", NOTES.replace("notes", "lab")),
            &own.backend,
        )
        .start()
        .await;
    for front in Front::ALL {
        for (who, reached, other) in [(ANN, &own, &science), (BOB, &science, &own)] {
            for (path, tool) in [("/mcp", "mcp_lab_echo"), ("/mcp/servers/lab", "echo")] {
                let before = (seen(reached), seen(other));
                let client = gateway.client_of(who, front, path).await;
                let params = format!(r#""name":"{tool}""#);
                client.ask("1", "tools/call", &params).await;
                client.answer("1").await.value();
                let after = (seen(reached), seen(other));
                assert_eq!(
                    after,
                    (before.0 + 1, before.1),
                    "{} {front:?} {path}",
                    who.name
                );
            }
        }
    }
    let http = gateway.http().with_key(ANN.key);
    let ping = crate::support::http::PING;
    assert_eq!(
        http.post("/mcp/servers/lab@science", ping).await.status(),
        404
    );
    gateway.stop().await;
}

/// The routes of the servers of others are not there; what talks to us on stdin and names one gets nothing.
#[tokio::test]
async fn a_server_of_others_is_out_of_reach() {
    let stage = Workspaces::new().await;
    for name in ["lab@science", NOTES, "notes", "nothing", "nothing@science"] {
        for path in [
            format!("/mcp/servers/{name}"),
            format!("/sse/servers/{name}"),
        ] {
            let answer = stage.gateway.http().with_key(BOB.key).get(&path, &[]).await;
            assert_eq!(answer.status(), 404, "{path}");
            // Who shows no key hears the same of every name.
            let answer = stage.gateway.http().get(&path, &[]).await;
            assert_eq!(answer.status(), 401, "{path}");
        }
        for front in [Front::Stdio, Front::StdioModern] {
            let client = stage
                .client(BOB, front, &format!("/mcp/servers/{name}"))
                .await;
            for (asked, is_answered) in ask(&client, requests(None)).await {
                assert!(!is_answered, "{front:?} {name} {asked}");
            }
            for list in ["tools", "resources", "prompts"] {
                assert!(
                    client.list(list).await.is_empty(),
                    "{front:?} {name} {list}"
                );
            }
        }
    }
    for front in Front::ALL {
        let client = stage.client(BOB, front, "/mcp").await;
        for (asked, is_answered) in ask(&client, requests(Some("notes"))).await {
            assert!(!is_answered, "{front:?} {asked}");
        }
    }
    for server in [&stage.shared, &stage.science, &stage.notes] {
        assert_eq!(seen(server), 0);
    }
    let answer = stage.gateway.http().with_key(ANN.key);
    for name in ["lab@science", "lab", NOTES, "notes"] {
        let path = format!("/mcp/servers/{name}");
        let answer = answer.post(&path, crate::support::http::PING).await;
        assert_eq!(answer.status(), 200, "{path}");
    }
    stage.stop().await;
}

/// `/status` and `/metrics` of who is no admin have the servers that it sees, those of strangers the gateway's.
#[tokio::test]
async fn a_status_has_the_servers_that_are_seen() {
    let stage = Workspaces::new().await;
    let names = |status: &str| -> Vec<String> {
        let status = value(status);
        let servers = status["servers"].as_array().unwrap().iter();
        servers
            .filter_map(|it| it["name"].as_str().map(str::to_owned))
            .collect()
    };
    for (who, expect) in [
        (ANN, vec!["shared", "lab@science", NOTES]),
        (BOB, vec!["shared", "lab@ops"]),
    ] {
        let http = stage.gateway.http().with_key(who.key);
        let status = http.get("/status", &[]).await.text().await;
        assert_eq!(names(&status), expect, "{}", who.name);
        let lab = value(&status)["servers"][1].clone();
        assert_ne!(lab["offers"]["tools"], Value::from(0), "{lab}");
        let metrics = http.get("/metrics", &[]).await.text().await;
        for name in ["lab@science", NOTES, "lab@ops"] {
            assert_eq!(metrics.contains(name), expect.contains(&name), "{metrics}");
        }
    }
    let strangers = stage.gateway.http().get("/status", &[]).await.text().await;
    assert_eq!(value(&strangers)["servers"].as_array().unwrap().len(), 1);
    stage.stop().await;
}

/// Changes of a server are told to those who see it.
#[tokio::test]
async fn list_changes_are_told_to_those_who_see_them() {
    let stage = Workspaces::new().await;
    // Her own server is listed then, which is news too.
    stage.tools(ANN, Front::Modern, "/mcp").await;
    let [ann, bob] = [
        stage.client(ANN, Front::Streamable, "/mcp").await,
        stage.client(BOB, Front::Streamable, "/mcp").await,
    ];
    for client in [&ann, &bob] {
        client.listen().await;
        client.list("tools").await;
    }
    stage.science.answers(
        "tools/list",
        r#"{"tools":[{"name":"new","inputSchema":{"type":"object"}}]}"#,
    );
    stage.science.backend.list_changed("tools").await;
    ann.must("notifications/tools/list_changed").await;
    soon("the tool is listed", async {
        let tools = ann.list("tools").await;
        assert!(
            tools.iter().any(|tool| tool["name"] == "mcp_lab_new"),
            "{tools:?}"
        );
    })
    .await;
    bob.is_quiet().await;
    stage.stop().await;
}

#[tokio::test]
async fn records_have_the_whole_name() {
    let stage = Workspaces::new().await;
    let client = stage.client(ANN, Front::Modern, "/mcp").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_lab_echo""#)
        .await;
    client.answer("1").await.value();
    let all = records(&stage.gateway.config.data_dir);
    let last = all.last().unwrap();
    assert_eq!(last.server.as_deref(), Some("lab@science"));
    assert_eq!(last.workspace.as_deref(), Some("science"));
    let server = last.server.as_deref().unwrap();
    assert_eq!(last.server_id, Some(ServerId::from_name(server)));
    stage.stop().await;
}

/// It is not started before a session of its agent needs it, and each of those has a process of its own.
#[tokio::test]
async fn a_server_of_an_agent_runs_for_its_sessions() {
    let (shared, notes) = (
        Server::start().await,
        Server::over(Transport::Stdio, Era::Legacy).await,
    );
    let config = TestGateway::new()
        .setting(&keyed(AGENTS))
        .server("shared", &shared.backend)
        .server(&format!("\"{NOTES}\""), &notes.backend);
    let gateway = config.start().await;
    let tools = async |who: Who<'_>| {
        let client = gateway.client_of(who, Front::Streamable, "/mcp").await;
        let tools = client.list("tools").await;
        let has = tools.iter().any(|tool| tool["name"] == "mcp_notes_echo");
        (client, has)
    };
    let (bob, has) = tools(BOB).await;
    assert!(!has);
    assert_eq!(notes.backend.greeted(), 0);
    // The first list waits for it.
    let (first, has) = tools(ANN).await;
    assert!(has);
    let (second, has) = tools(ANN).await;
    assert!(has);
    notes.backend.open_until(0).await;
    let listed = notes.backend.greeted();
    for (at, client) in [&first, &second].into_iter().enumerate() {
        for id in ["7", "8"] {
            client
                .ask(id, "tools/call", r#""name":"mcp_notes_echo""#)
                .await;
            client.answer(id).await.value();
        }
        notes.backend.open_until(at + 1).await;
    }
    assert_eq!(notes.backend.greeted(), listed + 2);
    first.end().await;
    notes.backend.open_until(1).await;
    second.end().await;
    notes.backend.open_until(0).await;
    bob.end().await;
    gateway.stop().await;
    // What it listed before is served at once, and it is not started for that alone.
    let gateway = config.start().await;
    let greeted = notes.backend.greeted();
    let seen = gateway.running.core().proxy.catalog_store();
    let name = ServerName::parse(NOTES).unwrap();
    assert!(seen.stored_at(&name).is_some());
    assert_eq!(notes.backend.greeted(), greeted);
    let client = gateway.client_of(ANN, Front::Streamable, "/mcp").await;
    client
        .ask("1", "tools/call", r#""name":"mcp_notes_echo""#)
        .await;
    client.answer("1").await.value();
    client.end().await;
    notes.backend.open_until(0).await;
    gateway.stop().await;
}

/// A call finds a tool of a server that nobody has listed yet.
#[tokio::test]
async fn a_call_starts_the_server_of_its_agent() {
    let notes = Server::over(Transport::Stdio, Era::Legacy).await;
    let gateway = TestGateway::new().setting(&keyed(AGENTS));
    let gateway = gateway.server(&format!("\"{NOTES}\""), &notes.backend);
    let gateway = gateway.start().await;
    for front in [Front::Modern, Front::Streamable, Front::Stdio] {
        let client = gateway.client_of(ANN, front, "/mcp").await;
        client
            .ask("1", "tools/call", r#""name":"mcp_notes_echo""#)
            .await;
        client.answer("1").await.value();
    }
    gateway.stop().await;
}

/// Rules mean a server by its name without the owner, and by all of it where they say so.
#[tokio::test]
async fn policies_name_servers_with_and_without_the_owner() {
    for (policy, expect) in [
        ("mode = \"allowlist\", tools = [\"lab/echo\"]", [true, true]),
        (
            "mode = \"allowlist\", tools = [\"mcp_lab_*\"]",
            [true, true],
        ),
        ("mode = \"allowlist\", tools = [\"*/echo\"]", [true, true]),
        (
            "mode = \"allowlist\", tools = [\"lab@science/echo\"]",
            [true, false],
        ),
        ("mode = \"allowlist\", tools = [\"*@ops/*\"]", [false, true]),
        (
            "mode = \"allowlist\", tools = [\"lab@art/*\"]",
            [false, false],
        ),
        ("mode = \"all\", deny = [\"lab/*\"]", [false, false]),
        ("mode = \"all\", deny = [\"lab@science/*\"]", [false, true]),
        (
            "mode = \"denylist\", tools = [\"lab@ops/echo\"]",
            [true, false],
        ),
        (
            "mode = \"allowlist\", resources = [\"lab/**\"]",
            [true, true],
        ),
        (
            "mode = \"allowlist\", resources = [\"lab@ops/**\"]",
            [false, true],
        ),
    ] {
        let (science, ops) = (Server::start().await, Server::start().await);
        let settings = AGENTS.replace(
            "[governance]",
            &format!("[governance]\npolicy = {{ {policy} }}"),
        );
        let gateway = TestGateway::new()
            .setting(&keyed(&settings))
            .server("\"lab@science\"", &science.backend)
            .server("\"lab@ops\"", &ops.backend)
            .start()
            .await;
        let reads = policy.contains("resources");
        let mut requests = Vec::new();
        if !reads {
            requests.push(("tools/call", r#""name":"mcp_lab_echo""#));
        }
        // What refuses all of a server refuses its resources too.
        if reads || policy.contains("deny = ") {
            requests.push(("resources/read", r#""uri":"lab+file:///a.txt""#));
        }
        for (who, expect) in [ANN, BOB].into_iter().zip(expect) {
            let client = gateway.client_of(who, Front::Modern, "/mcp").await;
            for (method, params) in &requests {
                client.ask("1", method, params).await;
                let is_answered = client.answer("1").await.error.is_none();
                assert_eq!(is_answered, expect, "{} {policy} {method}", who.name);
            }
        }
        gateway.stop().await;
    }
}

/// A server that somebody else has changes nothing of what a rule means.
#[tokio::test]
async fn servers_of_others_change_no_rule() {
    let (git, hub) = (Server::start().await, Server::start().await);
    let tool = |name: &str| {
        Auto::Result(format!(
            r#"{{"tools":[{{"name":"{name}","inputSchema":{{"type":"object"}}}}]}}"#
        ))
    };
    git.does("tools/list", tool("hub_echo"));
    hub.does("tools/list", tool("echo"));
    let policy = "[governance]\npolicy = { mode = \"allowlist\", tools = [\"mcp_git_hub_echo\"] }";
    let settings = AGENTS.replace("[governance]", policy);
    let gateway = TestGateway::new()
        .setting(&keyed(&settings))
        .server("git", &git.backend)
        .server("\"git_hub@ops\"", &hub.backend)
        .start()
        .await;
    for (who, reached, other) in [(ANN, &git, &hub), (BOB, &hub, &git)] {
        let before = (seen(reached), seen(other));
        let client = gateway.client_of(who, Front::Modern, "/mcp").await;
        let listed = client.list("tools").await;
        assert_eq!(listed.len(), 1, "{}: {listed:?}", who.name);
        let params = format!(r#""name":{}"#, listed[0]["name"]);
        client.ask("1", "tools/call", &params).await;
        client.answer("1").await.value();
        let after = (seen(reached), seen(other));
        assert_eq!(after, (before.0 + 1, before.1), "{}", who.name);
    }
    gateway.stop().await;
}

/// What a config says of them is shown, the budget where it was written, and means the same again.
#[test]
pub(crate) fn workspaces_are_shown() {
    let parsed = |text: String| -> Config {
        let source = ConfigText {
            name: "tollbridge.toml".to_owned(),
            format: ConfigFormat::Toml,
            text,
            directory: "/".into(),
        };
        parse([source], &Environment::default()).unwrap().config
    };
    let config = parsed(
        "[governance]\nauth = 'keys'\n[agents.ann]\n[workspaces.lab]\ndescription = 'All benches'\n\
         members = ['ann']\nbudget = '5'\n"
            .to_owned(),
    );
    let shown = config.to_display();
    let lab = &shown.to_json()["workspaces"]["lab"];
    assert_eq!(lab["description"], "All benches");
    assert_eq!(lab["members"], serde_json::json!(["ann"]));
    assert_eq!(lab["budget"]["limit"], "5.00");
    assert_eq!(shown.to_json()["governance"]["teams"], Value::Null);
    assert_eq!(parsed(shown.to_string()), config);
    assert_eq!(config.agents["ann"].team.as_deref(), Some("lab"));
    assert!(config.governance.teams.contains_key("lab"));
}
