//! No route, method, name or transport leads around what an agent may not use, and no list shows it.

use serde_json::json;

use crate::{
    harness::{ANN, BOB, Server, Stage},
    support::{Client, Era, Front, Transport, wire::request},
};

const ROUTES: [&str; 3] = ["/mcp", "/mcp/servers/x", "/mcp/profiles/p"];

/// Requests that would reach the server of this route, each with params in the names of the route.
fn requests(path: &str, front: Front) -> Vec<(&'static str, String)> {
    let merged = path != "/mcp/servers/x";
    let name = |original: &str| {
        if merged {
            format!("mcp_x_{original}")
        } else {
            original.to_owned()
        }
    };
    let uri = |original: &str| {
        if merged {
            format!("x+{original}")
        } else {
            original.to_owned()
        }
    };
    let mut requests = vec![
        ("tools/call", format!(r#""name":"{}""#, name("echo"))),
        (
            "tools/call",
            format!(r#""name":"{}","arguments":{{}}"#, name("other")),
        ),
        ("prompts/get", format!(r#""name":"{}""#, name("greet"))),
        (
            "resources/read",
            format!(r#""uri":"{}""#, uri("file:///a.txt")),
        ),
        (
            "resources/read",
            format!(r#""uri":"{}""#, uri("file:///b.txt")),
        ),
        ("resources/read", r#""uri":"file:///a.txt""#.to_owned()),
        (
            "completion/complete",
            format!(
                r#""ref":{{"type":"ref/prompt","name":"{}"}},"argument":{{"name":"who","value":"a"}}"#,
                name("greet")
            ),
        ),
        (
            "completion/complete",
            format!(
                r#""ref":{{"type":"ref/resource","uri":"{}"}},"argument":{{"name":"path","value":"a"}}"#,
                uri("file:///{path}")
            ),
        ),
    ];
    if !front.is_modern() {
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            requests.push((method, format!(r#""uri":"{}""#, uri("file:///a.txt"))));
        }
    }
    if !merged {
        requests.push(("acme/do", r#""a":1"#.to_owned()));
        for method in ["tasks/list", "tasks/get", "tasks/result", "tasks/cancel"] {
            requests.push((method, r#""taskId":"1""#.to_owned()));
        }
    }
    requests
}

/// Asks everything; the codes of the answers, 0 for results.
async fn ask_everything(client: &Client) -> Vec<(String, i64)> {
    let mut codes = Vec::new();
    for (at, (method, params)) in requests(&client.path, client.front).into_iter().enumerate() {
        let id = (at + 1).to_string();
        client.ask(&id, method, &params).await;
        let answer = client.answer(&id).await;
        let code = answer.error.as_ref().map_or(0, |_| answer.code());
        codes.push((format!("{method} {params}"), code));
    }
    codes
}

async fn lists(client: &Client) -> Vec<(&'static str, usize)> {
    let mut lists = Vec::new();
    for kind in ["tools", "resources", "prompts"] {
        lists.push((kind, client.list(kind).await.len()));
    }
    client.ask("99", "resources/templates/list", "").await;
    let templates = client.answer("99").await.value();
    lists.push((
        "templates",
        templates["resourceTemplates"].as_array().unwrap().len(),
    ));
    lists
}

/// A server goes by the `type` of a reference, and so does the policy.
#[tokio::test]
async fn a_reference_to_two_things_is_none() {
    let settings = "[agents.bob]\npolicy = { mode = \"all\", deny = [\"x/greet\"] }\n\
                    [governance]\nprice = \"0\"\n";
    let server = Server::over(Transport::Http, Era::Legacy).await;
    let stage = Stage::with(server, settings, "").await;
    for (path, name, uri) in [
        ("/mcp", "mcp_x_greet", "x+file:///{path}"),
        ("/mcp/servers/x", "greet", "file:///{path}"),
    ] {
        let client = stage.gateway.client_of(BOB, Front::Streamable, path).await;
        let check = async |id: &str, reference: String, code: i64| {
            let argument = r#""argument":{"name":"path","value":"a"}"#;
            let members = format!(r#""ref":{{{reference}}},{argument}"#);
            let before = stage.server.seen().len();
            client.ask(id, "completion/complete", &members).await;
            let answer = client.answer(id).await;
            let found = answer.error.as_ref().map_or(0, |_| answer.code());
            assert_eq!(found, code, "{path} {reference}");
            let reached = stage.server.seen().len() - before;
            assert_eq!(reached, usize::from(code == 0), "{path} {reference}");
        };
        let (prompt, template) = (r#""type":"ref/prompt""#, r#""type":"ref/resource""#);
        let (name, uri) = (format!(r#""name":"{name}""#), format!(r#""uri":"{uri}""#));
        check("1", format!("{prompt},{name}"), -32003).await;
        check("2", format!("{template},{uri}"), 0).await;
        for (id, reference) in [
            format!("{prompt},{name},{uri}"),
            format!("{template},{uri},{name}"),
            format!("{template},{prompt},{uri}"),
            format!("{template},{uri},{uri}"),
            format!("{prompt},{name},{uri},{uri}"),
            format!(r#""type":"ref/x",{uri}"#),
            uri.clone(),
        ]
        .into_iter()
        .enumerate()
        {
            check(&(id + 3).to_string(), reference, -32602).await;
        }
    }
    stage.gateway.stop().await;
}

/// Both agents on one gateway: what one may do, the other may not.
#[tokio::test]
async fn every_route_refuses_what_is_not_allowed() {
    let settings = "[agents.ann]\npolicy = { mode = \"none\" }\n[agents.bob]\n[profiles.p]\n\
                    [governance]\nprice = \"0\"\n";
    for (transport, era) in [
        (Transport::Http, Era::Legacy),
        (Transport::Http, Era::Modern),
        (Transport::Sse, Era::Legacy),
        (Transport::Stdio, Era::Legacy),
        (Transport::WebSocket, Era::Legacy),
    ] {
        let stage = Stage::with(Server::over(transport, era).await, settings, "").await;
        for front in Front::ALL {
            for path in ROUTES {
                let client = stage.gateway.client_of(ANN, front, path).await;
                for (asked, code) in ask_everything(&client).await {
                    // On merged routes a URI without its prefix may be nobody's.
                    assert_eq!(code, -32003, "{transport:?} {front:?} {path} {asked}");
                }
                let empty = lists(&client).await;
                assert!(empty.iter().all(|(_, length)| *length == 0), "{empty:?}");
                let seen = stage.server.seen();
                assert!(seen.is_empty(), "{front:?} {path}: {seen:?}");
            }
        }
        let mut reached = 0;
        for front in Front::ALL {
            for path in ROUTES {
                let client = stage.gateway.client_of(BOB, front, path).await;
                let codes = ask_everything(&client).await;
                reached += codes.iter().filter(|(_, code)| *code == 0).count();
                let full = lists(&client).await;
                let expect = [
                    ("tools", 2),
                    ("resources", 1),
                    ("prompts", 1),
                    ("templates", 1),
                ];
                assert_eq!(full, expect, "{front:?} {path}");
            }
        }
        assert!(reached > 100, "{reached}: others may");
        stage.stop().await;
    }
}

/// A request that asks for no answer is no notification: no step has seen it, so it reaches nobody,
/// whatever its agent may do.
#[tokio::test]
async fn a_request_without_an_id_reaches_nobody() {
    const NOTICE: &str = "notifications/acme/changed";
    for (transport, era) in [
        (Transport::Http, Era::Legacy),
        (Transport::Http, Era::Modern),
        (Transport::Stdio, Era::Legacy),
    ] {
        let server = Server::over(transport, era).await;
        let stage = Stage::with(server, "[profiles.p]\n", "").await;
        for front in Front::LEGACY {
            for path in ROUTES {
                let client = stage.gateway.client(front, path, "{}").await;
                for (method, params) in requests(path, front) {
                    client.notify(method, &format!("{{{params}}}")).await;
                }
                if path == "/mcp/servers/x" {
                    client.notify(NOTICE, "{}").await;
                    stage.server.backend.told(NOTICE).await;
                }
                client.is_quiet().await;
                let told = stage.server.backend.was_told().await;
                assert!(told.is_none(), "{transport:?} {front:?} {path}: {told:?}");
            }
        }
        assert!(stage.server.seen().is_empty());
        stage.stop().await;
    }
}

/// What a server says for models is for those who may use something of it.
#[tokio::test]
async fn no_instructions_of_servers_that_are_not_seen() {
    let settings = "[servers.toolbox]\ntransport = \"builtin\"\n[profiles.p]\n\
                    [agents.ann]\npolicy = { mode = \"allowlist\", tools = [\"x/*\"] }\n[agents.bob]\n\
                    [governance]\n";
    let stage = Stage::new(settings, "").await;
    for (who, expect) in [(ANN, false), (BOB, true)] {
        let settled = stage.gateway.client_of(BOB, Front::Modern, "/mcp").await;
        settled.list("tools").await;
        for path in ["/mcp", "/mcp/servers/toolbox", "/mcp/profiles/p"] {
            for (front, said) in stage.introductions(who, path).await {
                let found = said.get("instructions").is_some();
                assert_eq!(found, expect, "{} {path} {front:?}: {said}", who.name);
            }
        }
    }
    stage.stop().await;
}

/// What a server lets caches keep for everybody is for everybody only where all callers may see and do
/// the same.
#[tokio::test]
async fn caches_keep_nothing_of_one_agent_for_another() {
    const REST: &str = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public"}"#;
    for (agents, expect) in [("", "public"), ("[agents.bob]\n", "private")] {
        let server = Server::over(Transport::Http, Era::Modern).await;
        let tools = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}}],"#;
        server.answers("tools/list", &format!("{tools}{REST}"));
        let read = format!(r#"{{"contents":[],{REST}"#);
        server.answers("resources/read", &read);
        let stage = Stage::with(server, &format!("[profiles.p]\n{agents}[governance]\n"), "").await;
        for path in ROUTES {
            let client = match expect {
                "public" => stage.gateway.client(Front::Modern, path, "{}").await,
                _ => stage.gateway.client_of(BOB, Front::Modern, path).await,
            };
            for (method, params) in [
                ("tools/list", ""),
                ("resources/read", r#""uri":"file:///a.txt""#),
            ] {
                client.ask("1", method, params).await;
                let result = client.answer("1").await.value();
                assert_eq!(result["cacheScope"], expect, "{path} {method} {result}");
                assert_eq!(result["ttlMs"], 60000);
            }
        }
        stage.stop().await;
    }
}

/// An entry of a policy means the item under each of its names, on each route.
#[tokio::test]
async fn a_name_is_denied_on_every_route() {
    for entry in ["mcp_x_echo", "x/echo", "mcp_*_echo", "*/echo", "{x,y}/ech?"] {
        let settings = format!(
            "[profiles.p]\n[profiles.r]\nrename = {{ mcp_x_echo = \"renamed\" }}\n\
             [governance]\npolicy = {{ mode = \"all\", deny = [\"{entry}\"] }}\n"
        );
        let mut stage = Stage::new(&settings, "").await;
        for (path, name, other) in [
            ("/mcp", "mcp_x_echo", "mcp_x_other"),
            ("/mcp/servers/x", "echo", "other"),
            ("/mcp/profiles/p", "mcp_x_echo", "mcp_x_other"),
            ("/mcp/profiles/r", "renamed", "mcp_x_other"),
        ] {
            stage.path = path;
            let refused = stage.call_tool(name, "{}").await;
            assert_eq!(refused.code(), -32003, "{entry} {path}");
            stage.call_tool(other, "{}").await.value();
            let client = stage.client(Front::Streamable).await;
            let listed = client.list("tools").await;
            assert_eq!(listed.len(), 1, "{entry} {path}");
            assert_eq!(listed[0]["name"], other);
        }
        assert_eq!(stage.server.seen().len(), 4);
        stage.stop().await;
    }
}

/// Servers that ignore the case of names would act on another name than the one that was authorized.
#[tokio::test]
async fn names_in_another_case_name_nothing() {
    let settings = "[governance]\nprice = \"0\"\n\
                    args = [{ name = \"r\", at = \"/owner\", equals = \"evil\" }]\n\
                    policy = { mode = \"allowlist\", tools = [\"x/echo\"], prompts = [\"*\"], resources = [\"x/**\"] }\n";
    let stage = Stage::new(settings, "").await;
    for (method, params, code) in [
        (
            "tools/call",
            r#"{"name":"mcp_x_echo","Name":"other"}"#,
            -32602,
        ),
        (
            "tools/call",
            r#"{"n\u0041me":"other","name":"mcp_x_echo"}"#,
            -32602,
        ),
        ("tools/call", r#"{"NAME":"mcp_x_echo"}"#, -32602),
        (
            "prompts/get",
            r#"{"name":"mcp_x_greet","nAme":"x"}"#,
            -32602,
        ),
        (
            "resources/read",
            r#"{"uri":"x+file:///a.txt","Uri":"file:///b.txt"}"#,
            -32602,
        ),
        (
            "tools/call",
            r#"{"name":"mcp_x_echo","arguments":{},"ARGUMENTS":{"owner":"evil"}}"#,
            -32003,
        ),
        (
            "tools/call",
            r#"{"name":"mcp_x_echo","arguments":{"owner":"acme","Owner":"evil"}}"#,
            -32003,
        ),
    ] {
        assert_eq!(stage.ask(method, params).await.code(), code, "{params}");
    }
    assert!(stage.server.seen().is_empty());
    stage.must(r#"{"owner":"acme","Another":1}"#).await;
    stage.stop().await;
}

/// Where several servers have one URI, those count that the agent may see, and no others are named.
#[tokio::test]
async fn a_uri_of_several_servers_is_that_of_the_one_that_is_seen() {
    let other = Server::start().await;
    let settings = format!(
        "[servers.y]\n{}\n[agents.ann]\npolicy = {{ mode = \"allowlist\", resources = [\"x/**\"] }}\n\
         [agents.bob]\n[governance]\nprice = \"0\"\npolicy = {{ mode = \"all\" }}\n",
        other.backend.config()
    );
    let stage = Stage::new(&settings, "").await;
    let uri = r#""uri":"file:///a.txt""#;
    let client = stage
        .gateway
        .client_of(ANN, Front::Streamable, "/mcp")
        .await;
    client.ask("1", "resources/read", uri).await;
    assert!(client.answer("1").await.result.is_some());
    let client = stage
        .gateway
        .client_of(BOB, Front::Streamable, "/mcp")
        .await;
    client.ask("1", "resources/read", uri).await;
    let refused = client.answer("1").await.failure();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("it may belong to x, y"), "{refused}");
    stage.stop().await;
}

/// A resource is denied however its URI is written.
#[tokio::test]
async fn a_resource_is_denied_by_every_spelling() {
    for entry in ["x+file:///a.txt", "x/file:///a.txt", "x+file:///*.txt"] {
        let settings = format!(
            "[profiles.p]\n[governance]\npolicy = {{ mode = \"all\", deny = [\"{entry}\"] }}\n"
        );
        let mut stage = Stage::new(&settings, "").await;
        for (path, uri) in [
            ("/mcp", "x+file:///a.txt"),
            ("/mcp", "file:///a.txt"),
            ("/mcp/servers/x", "file:///a.txt"),
            ("/mcp/servers/x", "file:///%2Fa.txt"),
            ("/mcp/servers/x", "file:///a.txt/"),
            ("/mcp/profiles/p", "x+file:///a.txt"),
            ("/mcp/profiles/p", "file:///a.txt"),
        ] {
            stage.path = path;
            let read = stage
                .ask("resources/read", &format!(r#"{{"uri":"{uri}"}}"#))
                .await;
            assert_eq!(read.code(), -32003, "{entry} {path} {uri}");
        }
        assert!(stage.server.seen().is_empty());
        stage.stop().await;
    }
}

/// A modern client hears of no resource, and of no task, that it may not use.
#[tokio::test]
async fn a_listen_stream_tells_nothing_that_is_denied() {
    let settings = "[agents.ann]\npolicy = { mode = \"allowlist\", tools = [\"*\"] }\n[agents.bob]\n\
                    [profiles.p]\n[governance]\nprice = \"0\"\n";
    let server = Server::over(Transport::Http, Era::Modern).await;
    let stage = Stage::with(server, settings, "").await;
    for (front, path) in [
        (Front::Modern, "/mcp"),
        (Front::Modern, "/mcp/servers/x"),
        (Front::Modern, "/mcp/profiles/p"),
        (Front::StdioModern, "/mcp/servers/x"),
    ] {
        let uri = if path == "/mcp/servers/x" {
            "file:///a.txt"
        } else {
            "x+file:///a.txt"
        };
        let wish = format!(
            r#""notifications":{{"toolsListChanged":true,"resourceSubscriptions":["{uri}"],"taskIds":["t"]}}"#
        );
        let ann = stage.gateway.client_of(ANN, front, path).await;
        ann.ask("1", "subscriptions/listen", &wish).await;
        let ack = ann.must("notifications/subscriptions/acknowledged").await;
        let honoured = crate::support::value(&ack.param(&["notifications"]).unwrap());
        assert_eq!(
            honoured,
            json!({ "toolsListChanged": true }),
            "{front:?} {path}"
        );
        assert!(stage.server.listened().is_empty(), "{front:?} {path}");
    }
    let bob = stage.gateway.client_of(BOB, Front::Modern, "/mcp").await;
    let wish = r#""notifications":{"resourceSubscriptions":["x+file:///a.txt"]}"#;
    bob.ask("1", "subscriptions/listen", wish).await;
    bob.must("notifications/subscriptions/acknowledged").await;
    let stream = stage.server.backend.listen("file:///a.txt").await;
    let update = stream.tagged(r#""uri":"file:///a.txt","#);
    stream
        .tell("notifications/resources/updated", &update)
        .await;
    let told = bob.must("notifications/resources/updated").await;
    assert_eq!(
        told.param(&["uri"]).as_deref(),
        Some(r#""x+file:///a.txt""#)
    );
    stage.stop().await;
}

/// Only who sees a change is told of one.
#[tokio::test]
async fn a_change_is_told_to_those_who_see_it() {
    let settings = "[agents.ann]\npolicy = { mode = \"allowlist\", tools = [\"x/echo\"] }\n[agents.bob]\n\
                    [governance]\nprice = \"0\"\n";
    let stage = Stage::new(settings, "").await;
    let backend = &stage.server.backend;
    for front in Front::LEGACY {
        let ann = stage.gateway.client_of(ANN, front, "/mcp").await;
        let bob = stage.gateway.client_of(BOB, front, "/mcp").await;
        ann.listen().await;
        bob.listen().await;
        ann.is_quiet().await;
        bob.is_quiet().await;
        let tools = |echo: &str, other: &str| {
            format!(
                r#"[{{"name":"echo","description":"{echo}","inputSchema":{{"type":"object"}}}},{{"name":"other","description":"{other}","inputSchema":{{"type":"object"}}}}]"#
            )
        };
        let changed = "notifications/tools/list_changed";
        backend.set_list("tools/list", tools("1", &format!("{front:?}")));
        // The first list of this round changes both.
        backend.list_changed("tools").await;
        bob.must(changed).await;
        ann.must(changed).await;
        backend.set_list("tools/list", tools("1", "hidden"));
        backend.list_changed("tools").await;
        bob.must(changed).await;
        ann.is_quiet().await;
        backend.set_list("tools/list", tools(&format!("{front:?}"), "hidden"));
        backend.list_changed("tools").await;
        ann.must(changed).await;
        bob.must(changed).await;
    }
    stage.stop().await;
}

/// What may be listed may be used, and the other way round, whatever the policy, on each route.
#[tokio::test]
async fn what_is_listed_may_be_used() {
    for policy in [
        r#"{ mode = "all" }"#,
        r#"{ mode = "none" }"#,
        r#"{ mode = "allowlist", tools = ["x/echo"] }"#,
        r#"{ mode = "allowlist", prompts = ["*_greet"] }"#,
        r#"{ mode = "allowlist", resources = ["x/file:///a.txt"] }"#,
        r#"{ mode = "denylist", tools = ["mcp_x_echo"], prompts = ["x/*"] }"#,
        r#"{ mode = "all", deny = ["*/other", "x+file:///*"] }"#,
    ] {
        let settings = format!("[profiles.p]\n[governance]\nprice = \"0\"\npolicy = {policy}\n");
        let mut stage = Stage::new(&settings, "").await;
        for front in Front::ALL {
            for path in ROUTES {
                stage.path = path;
                let client = stage.client(front).await;
                let what = format!("{policy} {front:?} {path}");
                check_lists(&client, &what).await;
            }
        }
        stage.stop().await;
    }
}

/// Asks for everything that the server has; what is answered must be what is listed.
async fn check_lists(client: &Client, what: &str) {
    let (name, uri) = if client.path == "/mcp/servers/x" {
        ("", "")
    } else {
        ("mcp_x_", "x+")
    };
    for (at, (kind, method, member, item)) in [
        ("tools", "tools/call", "name", format!("{name}echo")),
        ("tools", "tools/call", "name", format!("{name}other")),
        ("prompts", "prompts/get", "name", format!("{name}greet")),
        (
            "resources",
            "resources/read",
            "uri",
            format!("{uri}file:///a.txt"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let listed = client.list(kind).await;
        let is_listed = listed.iter().any(|it| it[member] == item);
        let id = (at + 1).to_string();
        client
            .ask(&id, method, &format!(r#""{member}":"{item}""#))
            .await;
        let is_answered = client.answer(&id).await.error.is_none();
        assert_eq!(is_answered, is_listed, "{what} {item}");
    }
}

/// A batch of old clients is no way around either.
#[tokio::test]
async fn each_call_of_a_batch_is_governed() {
    let settings =
        "[governance]\nprice = \"0\"\npolicy = { mode = \"allowlist\", tools = [\"x/other\"] }\n";
    let stage = Stage::new(settings, "").await;
    let http = stage.http();
    let initialize = request(
        "0",
        "initialize",
        r#"{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"old","version":"1"}}"#,
    );
    let answer = http.post("/mcp", initialize).await;
    let session = answer.header("mcp-session-id").unwrap().to_owned();
    let call = |id: &str, tool: &str| request(id, "tools/call", &format!(r#"{{"name":"{tool}"}}"#));
    let batch = format!("[{},{}]", call("1", "mcp_x_echo"), call("2", "mcp_x_other"));
    let headers = [("mcp-session-id", session.as_str())];
    let answer = http.post_with("/mcp", &headers, batch).await.text().await;
    assert!(answer.contains("UNAUTHORIZED"), "{answer}");
    assert!(answer.contains("fine"), "{answer}");
    assert_eq!(stage.server.seen().len(), 1);
    assert_eq!(stage.records().len(), 2);
    stage.stop().await;
}

/// Whoever may not see a server does not learn that it is down, or that it is there.
#[tokio::test]
async fn a_server_that_was_never_listed_is_hidden_too() {
    let settings = "[agents.ann]\npolicy = { mode = \"allowlist\", tools = [\"x/*\"] }\n\
                    [agents.bob]\n[governance]\n\
                    [profiles.p]\ntools = [\"x/*\"]\n\
                    [servers.down]\ncommand = \"/no/such/program\"\n";
    let mut stage = Stage::new(settings, "").await;
    let routes = [
        ("/mcp", "mcp_down_any"),
        ("/mcp/servers/down", "any"),
        ("/mcp/profiles/p", "mcp_down_any"),
    ];
    let mut told = async |who, path, tool: &str| {
        (stage.who, stage.path) = (Some(who), path);
        let mut failure = stage.call_tool(tool, "{}").await.failure();
        let id = failure["data"]
            .as_object_mut()
            .unwrap()
            .remove("invocation_id");
        assert!(id.is_some(), "{failure}");
        failure.to_string().replace(tool, "NAME")
    };
    let unknown = told(ANN, "/mcp", "mcp_none_any").await;
    assert!(unknown.contains("TOOL_NOT_FOUND"), "{unknown}");
    for (path, tool) in routes {
        assert_eq!(told(ANN, path, tool).await, unknown, "{tool} on {path}");
        let open = told(BOB, path, tool).await;
        let expect = if path == "/mcp/profiles/p" {
            "TOOL_NOT_FOUND"
        } else {
            "UNAVAILABLE"
        };
        assert!(open.contains(expect), "{open}");
    }
}
