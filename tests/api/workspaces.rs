//! Servers of workspaces, as each role has them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    harness::{ADMIN_KEY, Answer, TestApi, answer},
    roles::{AGENTS, AUDITOR_KEY, LEAD_KEY, STRANGER_KEY},
};

async fn send(api: &TestApi, key: &str, method: Method, path: &str) -> Answer {
    let request = api.request(method, path).bearer_auth(key);
    answer(request.json(&json!({}))).await
}

/// A gateway where both workspaces have a server `github`, and an agent one of its own.
async fn with_githubs() -> TestApi {
    let api = TestApi::start(AGENTS).await;
    for owner in [
        "science",
        "arts",
        "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11",
    ] {
        let name = format!("github@{owner}");
        let new = json!({ "name": name, "config": { "transport": "builtin" } });
        let made = api.send(Method::POST, "/servers", &new).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    }
    api
}

#[tokio::test]
async fn a_workspace_admin_sees_the_servers_of_its_workspace_alone() {
    let api = with_githubs().await;
    let all = [
        "github@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11",
        "github@arts",
        "github@science",
        "own",
    ];
    let rows: [(&str, &[&str]); 4] = [
        (LEAD_KEY, &["github@science"]),
        (STRANGER_KEY, &["github@arts"]),
        (AUDITOR_KEY, &all),
        (ADMIN_KEY, &all),
    ];
    let admins_view = api.get("/servers").await.body;
    let ids = admins_view["items"].as_array().unwrap().iter();
    let ids: Vec<(&str, &str)> = ids
        .map(|it| (it["name"].as_str().unwrap(), it["id"].as_str().unwrap()))
        .collect();
    assert_eq!(ids.len(), all.len());
    for (key, seen) in rows {
        let listed = send(&api, key, Method::GET, "/servers").await.body;
        let items = listed["items"].as_array().unwrap().iter();
        let names: Vec<&str> = items.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, seen);
        for (name, id) in &ids {
            let expect = if seen.contains(name) {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            for path in [
                format!("/servers/{name}"),
                format!("/servers/{id}"),
                format!("/servers/{name}/tools"),
            ] {
                let shown = send(&api, key, Method::GET, &path).await;
                assert_eq!(shown.status, expect, "{path}: {shown:?}");
            }
        }
    }
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_admin_switches_restarts_and_tests_servers_of_its_workspace_alone() {
    let api = with_githubs().await;
    let of = async |key, path: &str| send(&api, key, Method::POST, path).await;
    for action in ["disable", "enable", "restart", "test"] {
        for other in ["github@arts", "own"] {
            let path = format!("/servers/{other}/{action}");
            let refused = of(LEAD_KEY, &path).await;
            assert_eq!(refused.status, StatusCode::NOT_FOUND, "{path}: {refused:?}");
            let as_unknown = format!("/servers/nothing/{action}");
            let as_unknown = of(LEAD_KEY, &as_unknown).await.body["detail"].to_string();
            let detail = refused.body["detail"].to_string();
            assert_eq!(detail, as_unknown.replace("nothing", other));
        }
    }
    let enabled = async |name: &str| -> Value {
        api.get(&format!("/servers/{name}")).await.body["config"]["enabled"].clone()
    };
    let disabled = of(LEAD_KEY, "/servers/github@science/disable").await;
    assert_eq!(disabled.status, StatusCode::OK, "{disabled:?}");
    let changed = &disabled.body["plan"]["servers_changed"];
    assert_eq!(changed[0]["name"], "github@science", "{disabled:?}");
    assert_eq!(enabled("github@science").await, json!(false));
    assert_eq!(enabled("github@arts").await, Value::Null);
    let restarted = of(LEAD_KEY, "/servers/github@science/restart").await;
    assert_eq!(restarted.status, StatusCode::UNPROCESSABLE_ENTITY);
    for action in ["enable", "restart", "test"] {
        let done = of(LEAD_KEY, &format!("/servers/github@science/{action}")).await;
        assert_eq!(done.status, StatusCode::OK, "{action}: {done:?}");
    }
    assert_eq!(enabled("github@science").await, json!(true));
    api.stop().await;
}

/// A gateway whose store has the workspace `lab` with the agent `tester` of the store.
async fn with_lab() -> TestApi {
    let api = TestApi::start(AGENTS).await;
    let new = json!({ "name": "tester", "settings": {} });
    let made = api.send(Method::POST, "/agents", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let budget = json!({ "limit": "5", "window": "day" });
    let config = json!({ "members": ["tester"], "budget": budget, "description": "Benches" });
    let new = json!({ "name": "lab", "config": config });
    let planned = api
        .send(Method::POST, "/workspaces?dry_run=true", &new)
        .await;
    let others = &planned.body["plan"]["others"];
    assert_eq!(others[0], "workspaces added: lab", "{planned:?}");
    let made = api.send(Method::POST, "/workspaces", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    api
}

#[tokio::test]
async fn a_workspace_is_made_changed_and_removed() {
    let api = with_lab().await;
    let team = async |api: &TestApi| api.get("/agents/tester").await.body["team"].clone();
    assert_eq!(team(&api).await, "lab");
    let budget = async |api: &TestApi| {
        let listed = api.get("/budgets?of=team&name=lab").await.body;
        listed["items"][0]["limit"].clone()
    };
    assert_eq!(budget(&api).await, "5.00");
    let api = api.restart().await;
    assert_eq!(team(&api).await, "lab");
    let shown = api.get("/workspaces/lab").await;
    assert_eq!(shown.body["config"]["description"], "Benches");
    assert_eq!(shown.body["source"]["type"], "store");

    let patch = json!({ "members": null, "budget": { "limit": "7" } });
    let patched = api.send(Method::PATCH, "/workspaces/lab", &patch).await;
    assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    assert_eq!(team(&api).await, Value::Null);
    assert_eq!(budget(&api).await, "7.00");
    let stale = api.request(Method::PUT, "/workspaces/lab");
    let stale = stale.bearer_auth(ADMIN_KEY);
    let stale = stale.header("if-match", shown.etag.unwrap());
    let stale = answer(stale.json(&json!({}))).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);

    let new = json!({ "name": "github@lab", "config": { "transport": "builtin" } });
    let made = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let nothing = json!({});
    let refused = api.send(Method::DELETE, "/workspaces/lab", &nothing).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    assert_eq!(refused.body["type"], "in-use");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("`github@lab`"), "{detail}");
    let removed = api
        .send(Method::DELETE, "/servers/github@lab", &nothing)
        .await;
    assert_eq!(removed.status, StatusCode::OK);
    let removed = api.send(Method::DELETE, "/workspaces/lab", &nothing).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    assert_eq!(api.get("/workspaces").await.body["items"], json!([]));
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_that_cannot_be_is_refused() {
    let api = TestApi::start(&format!(
        "{AGENTS}[governance.teams.arts]\nbudget = \"5\"\n\
         [governance]\nauth = \"keys\"\npolicy = {{ mode = \"all\" }}\n"
    ))
    .await;
    let lead = json!({ "members": ["lead"] });
    for (name, config, words) in [
        ("agent_x", json!({}), "agent_"),
        ("a b", json!({}), "is not allowed"),
        ("law", lead, "`agents.lead.team` is not `law`"),
        ("arts", json!({ "budget": "6" }), "are the same budget"),
        ("law", json!({ "admins": ["lead"] }), "unknown key"),
    ] {
        let new = json!({ "name": name, "config": config });
        let refused = api.send(Method::POST, "/workspaces", &new).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{refused:?}"
        );
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{words}: {detail}");
    }
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_of_the_file_is_seen_by_its_admin_and_not_changed() {
    let sections = "[workspaces.science]\ndescription = \"Labs\"\n[workspaces.arts]\n";
    let api = TestApi::start(&format!("{AGENTS}{sections}")).await;
    for (key, seen) in [
        (LEAD_KEY, vec!["science"]),
        (STRANGER_KEY, vec!["arts"]),
        (AUDITOR_KEY, vec!["arts", "science"]),
    ] {
        let listed = send(&api, key, Method::GET, "/workspaces").await.body;
        let items = listed["items"].as_array().unwrap().iter();
        let names: Vec<&str> = items.map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, seen);
    }
    let other = send(&api, LEAD_KEY, Method::GET, "/workspaces/arts").await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    let shown = send(&api, LEAD_KEY, Method::GET, "/workspaces/science").await;
    assert_eq!(shown.body["config"], json!({ "description": "Labs" }));
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let refused = api.send(method, "/workspaces/science", &json!({})).await;
        assert_eq!(refused.body["type"], "in-config-file", "{refused:?}");
    }
    api.stop().await;
}

/// What the admin of the workspace `science` sends.
async fn as_lead(api: &TestApi, method: Method, path: &str, body: &Value) -> Answer {
    answer(api.request(method, path).bearer_auth(LEAD_KEY).json(body)).await
}

#[tokio::test]
async fn a_workspace_admin_makes_changes_and_removes_servers_of_its_workspace() {
    let api = TestApi::start(AGENTS).await;
    let config = json!({ "url": "https://mcp.example.com/", "enabled": false, "timeout": "5s" });
    let new = json!({ "name": "docs@science", "config": config });
    let made = as_lead(&api, Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let shown = &made.body["server"]["config"];
    assert_eq!(shown["egress"], "public", "{shown}");
    for name in [
        "docs",
        "docs@arts",
        "docs@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11",
    ] {
        let new = json!({ "name": name, "config": {} });
        let refused = as_lead(&api, Method::POST, "/servers", &new).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("`docs@science`"), "{detail}");
    }
    let path = "/servers/docs@science";
    let patch = json!({ "url": "https://other.example.com/", "tools": { "deny": ["rm"] } });
    let patched = as_lead(&api, Method::PATCH, path, &patch).await;
    assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    let plan = &patched.body["plan"];
    assert_eq!(plan["servers_changed"][0]["name"], "docs@science", "{plan}");
    // Nobody but an admin lifts it, and then it stays lifted.
    let lifted = json!({ "egress": "any" });
    let refused = as_lead(&api, Method::PATCH, path, &lifted).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let allowed = api.send(Method::PATCH, path, &lifted).await;
    assert_eq!(allowed.status, StatusCode::OK, "{allowed:?}");
    let patched = as_lead(
        &api,
        Method::PATCH,
        path,
        &json!({ "url": "http://10.0.0.1/" }),
    )
    .await;
    assert_eq!(
        patched.body["server"]["config"]["egress"], "any",
        "{patched:?}"
    );
    // Of what an admin made, only a new URL is restricted.
    let new = json!({ "name": "made@science", "config": { "url": "http://10.0.0.1/", "enabled": false } });
    api.send(Method::POST, "/servers", &new).await;
    for (patch, expect) in [
        (json!({ "enabled": false, "timeout": "7s" }), Value::Null),
        (json!({ "url": "http://10.0.0.2/" }), json!("public")),
    ] {
        let patched = as_lead(&api, Method::PATCH, "/servers/made@science", &patch).await;
        assert_eq!(
            patched.body["server"]["config"]["egress"], expect,
            "{patched:?}"
        );
    }
    let replaced = as_lead(
        &api,
        Method::PUT,
        path,
        &json!({ "url": "https://a.example/" }),
    )
    .await;
    let config = json!({ "url": "https://a.example/", "egress": "any" });
    assert_eq!(replaced.body["server"]["config"], config, "{replaced:?}");
    let removed = as_lead(&api, Method::DELETE, path, &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    api.stop().await;
}

/// What an admin said of a server does not go away with it.
#[tokio::test]
async fn a_workspace_admin_removes_no_server_that_was_narrowed() {
    let api = TestApi::start(AGENTS).await;
    let (path, config) = (
        "/servers/held@science",
        json!({ "url": "https://a.example/" }),
    );
    let made = json!({ "name": "held@science", "config": config });
    let made = as_lead(&api, Method::POST, "/servers", &made).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    for (narrowed, widened) in [
        (json!({ "rate": "1/1m" }), json!({ "rate": null })),
        (
            json!({ "tools": { "price": { "a": "1" } } }),
            json!({ "tools": null }),
        ),
    ] {
        let patched = api.send(Method::PATCH, path, &narrowed).await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
        let refused = as_lead(&api, Method::DELETE, path, &json!({})).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        let patched = api.send(Method::PATCH, path, &widened).await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    }
    let removed = as_lead(&api, Method::DELETE, path, &json!({})).await;
    assert_eq!(removed.status, StatusCode::OK, "{removed:?}");
    api.stop().await;
}

#[tokio::test]
async fn a_workspace_admin_sets_nothing_else() {
    let api = TestApi::start(AGENTS).await;
    let exchange =
        json!({ "type": "oauth2", "grant": "token_exchange", "issuer": "https://i.example" });
    let signed =
        json!({ "type": "oauth2", "grant": "client_credentials", "private_key": "/etc/key" });
    let env = json!({ "A": "b" });
    let with = |key: &str, value: Value| {
        let mut config = json!({ "url": "https://mcp.example.com/", "enabled": false });
        config[key] = value;
        config
    };
    for (key, value) in [
        ("command", json!("sh")),
        ("args", json!(["-c", "id"])),
        ("env", env),
        ("env_file", json!("/etc/shadow")),
        ("cwd", json!("/")),
        ("user", json!("root")),
        ("inherit_env", json!(["HOME"])),
        ("transport", json!("builtin")),
        ("tls", json!({ "ca": "/etc/passwd" })),
        ("proxy", json!("http://10.0.0.1:1")),
        ("replicas", json!([{ "command": "sh" }])),
        ("forward_headers", json!(["authorization"])),
        ("egress", json!("any")),
        ("price", json!("0")),
        ("budget", json!("off")),
        ("tools.price", json!({ "price": { "a": "0" } })),
        ("auth.grant", exchange),
        ("auth.private_key", signed),
    ] {
        let config = with(key.split('.').next().unwrap(), value);
        let new = json!({ "name": "a@science", "config": config });
        let refused = as_lead(&api, Method::POST, "/servers", &new).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{key}: {refused:?}");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("`{key}`")), "{key}: {detail}");
    }
    // Nor does it send elsewhere what an admin lets the server have.
    for (name, key, value) in [
        ("b@science", "forward_headers", json!(["x-team"])),
        (
            "c@science",
            "auth",
            json!({
                "type": "oauth2", "grant": "token_exchange", "issuer": "https://i.example",
                "client_id": "c", "client_secret": "s"
            }),
        ),
    ] {
        let new = json!({ "name": name, "config": with(key, value) });
        let made = api.send(Method::POST, "/servers", &new).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        let path = format!("/servers/{name}");
        for patch in [
            json!({ "url": "https://evil.example/" }),
            json!({ "auth": { "issuer": "https://evil.example/" } }),
        ] {
            let refused = as_lead(&api, Method::PATCH, &path, &patch).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        }
        let patched = as_lead(&api, Method::PATCH, &path, &json!({ "timeout": "9s" })).await;
        assert_eq!(patched.status, StatusCode::OK, "{patched:?}");
    }
    api.stop().await;
}

#[tokio::test]
async fn names_that_somebody_would_see_twice_are_refused() {
    let api = with_githubs().await;
    for (name, is_taken) in [
        ("own@science", true),
        ("github", true),
        ("github@law", false),
    ] {
        let new = json!({ "name": name, "config": { "transport": "builtin" } });
        let made = api.send(Method::POST, "/servers", &new).await;
        let expect = if is_taken {
            StatusCode::CONFLICT
        } else {
            StatusCode::CREATED
        };
        assert_eq!(made.status, expect, "{made:?}");
    }
    api.stop().await;
}

#[tokio::test]
async fn errors_of_the_files_are_not_told_to_a_workspace_admin() {
    let api = TestApi::start(AGENTS).await;
    api.write_file(&format!("{}\nplanted = 1\n", api.file()));
    let new = json!({ "name": "a@science", "config": { "url": "https://mcp.example.com/" } });
    let of_admin = api.send(Method::POST, "/servers?dry_run=true", &new).await;
    assert!(
        of_admin.body.to_string().contains("planted"),
        "{of_admin:?}"
    );
    let of_lead = as_lead(&api, Method::POST, "/servers?dry_run=true", &new).await;
    assert_eq!(of_lead.body["type"], "config-errors", "{of_lead:?}");
    let text = of_lead.body.to_string();
    assert!(
        !text.contains("planted") && !text.contains("tollbridge.toml"),
        "{text}"
    );
    api.stop().await;
}

/// Calls the toolbox as whoever has `key`.
async fn call(api: &TestApi, key: &str) {
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "mcp_own_echo", "arguments": { "text": "hello" } },
    });
    let request = api.request_at(Method::POST, "/mcp").bearer_auth(key);
    let request = request.header("accept", "application/json, text/event-stream");
    let answered = answer(request.json(&call)).await;
    assert!(answered.body["result"].is_object(), "{answered:?}");
}

/// The ids that `key` sees at `path`.
async fn ids(api: &TestApi, key: &str, path: &str) -> Vec<String> {
    let listed = send(api, key, Method::GET, path).await;
    assert_eq!(listed.status, StatusCode::OK, "{listed:?}");
    let items = listed.body["items"].as_array().unwrap().iter();
    assert!(
        key == ADMIN_KEY || listed.body["next_cursor"].is_null(),
        "{listed:?}"
    );
    items
        .map(|it| it["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_workspace_admin_sees_usage_and_budgets_of_its_workspace_alone() {
    let api = TestApi::start(&format!(
        "{AGENTS}[workspaces.science]\nbudget = \"5/day\"\n[workspaces.arts]\nbudget = \"7/day\"\n"
    ))
    .await;
    api.items("/tools").await;
    for key in [LEAD_KEY, STRANGER_KEY, ADMIN_KEY] {
        call(&api, key).await;
    }
    for _ in 0..100 {
        if ids(&api, ADMIN_KEY, "/usage?by=agent").await.len() == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let me = send(&api, LEAD_KEY, Method::GET, "/me").await.body;
    let lead = me["id"].as_str().unwrap().to_owned();
    for (path, of_lead, of_admin) in [
        ("/usage?by=agent&limit=1", vec![lead.as_str()], 1),
        ("/usage?by=agent", vec![lead.as_str()], 3),
        ("/usage?by=workspace", vec!["science"], 2),
        ("/usage?by=team", vec!["science"], 2),
        ("/usage?by=server", vec![], 1),
        ("/usage?by=tool", vec![], 1),
        ("/budgets", vec!["agent:lead:total", "team:science:day"], 7),
        ("/budgets?of=team", vec!["team:science:day"], 2),
    ] {
        assert_eq!(ids(&api, LEAD_KEY, path).await, of_lead, "{path}");
        assert_eq!(ids(&api, ADMIN_KEY, path).await.len(), of_admin, "{path}");
    }
    api.stop().await;
}
