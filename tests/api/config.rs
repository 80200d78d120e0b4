//! The config as a whole.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, AGENT_KEY, TestApi};

/// The export of a gateway, with `{data_dir}` for where that keeps its state.
async fn export(api: &TestApi) -> String {
    let request = api.request(Method::GET, "/config/export");
    let answer = request.bearer_auth(ADMIN_KEY).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/toml");
    let text = answer.text().await.unwrap();
    text.replace(api.data_dir().to_str().unwrap(), "{data_dir}")
}

/// What clients and operators see of a gateway.
async fn seen(api: &TestApi) -> Value {
    let mut seen = json!({ "config": api.get("/config").await.body["config"] });
    seen["config"]["data_dir"] = Value::Null;
    // Agents of the store are no part of the config that runs; they are compared below.
    seen["config"]["agents"] = Value::Null;
    for list in ["servers", "profiles"] {
        let items = api.items(&format!("/{list}")).await;
        seen[list] = items.iter().map(|item| item["name"].clone()).collect();
    }
    for tool in ["mcp_own_echo", "mcp_made_echo"] {
        api.items(&format!("/tools?q={tool}")).await;
        let call = json!({ "agent": "reader", "arguments": { "text": "a" } });
        let answer = api
            .send(Method::POST, &format!("/tools/{tool}/test"), &call)
            .await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        seen[tool] = answer.body["result"].clone();
    }
    for agent in api.items("/agents").await {
        let name = agent["name"].as_str().unwrap();
        let asked = json!({ "agent": name, "name": "made/echo" });
        let explained = api.send(Method::POST, "/policy/explain", &asked).await;
        assert_eq!(explained.status, StatusCode::OK, "{explained:?}");
        let mut explained = explained.body;
        explained["places"] = Value::Null;
        let mut agent = agent.clone();
        agent["source"] = Value::Null;
        seen[name] = json!([agent, explained]);
    }
    seen["budgets"] = api.items("/budgets?limit=500").await.into();
    let tools = api.items("/tools?limit=500").await;
    seen["tools"] = tools.iter().map(|tool| tool["name"].clone()).collect();
    seen
}

#[tokio::test]
async fn a_gateway_is_made_again_of_its_export() {
    let api = TestApi::start(
        "[profiles.fixed]\ntools = [\"own/*\"]\n[governance]\nauth = \"keys\"\npolicy = { mode = \"all\" }\n\
         [governance.teams.science]\nbudget = \"7.50/month\"\n",
    )
    .await;
    let off = json!({
        "url": "https://docs.example.com/mcp", "enabled": false, "headers": { "X-Key": "hunter2-hunter2" },
        "auth": { "type": "bearer", "token": "${secret:docs}" }, "tools": { "deny": ["a", "b"], "price": { "x": "0.5" } },
    });
    for (path, name, config) in [
        (
            "/servers",
            "made",
            json!({ "transport": "builtin", "price": "0.25", "timeout": null }),
        ),
        ("/servers", "docs@science", off),
        (
            "/profiles",
            "reading",
            json!({ "tools": ["made/*"], "budget": { "limit": "3", "window": "day" } }),
        ),
    ] {
        let new = json!({ "name": name, "config": config });
        let made = api.send(Method::POST, path, &new).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    }
    let terms = json!({
        "policy": { "mode": "allowlist", "tools": ["made/*"] }, "budget": "2.50/day", "rate": "120/1m",
    });
    let settings =
        json!({ "team": "science", "role": "auditor", "profiles": ["reading"], "terms": terms });
    let bot = json!({ "name": "bot", "settings": settings });
    let made = api.send(Method::POST, "/agents", &bot).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let first = export(&api).await;
    for secret in [ADMIN_KEY, AGENT_KEY, "hunter2"] {
        assert!(!first.contains(secret), "{first}");
    }
    for named in [
        "${secret:agents.admin.keys.0}",
        "${secret:docs}",
        "#   secret:docs@science\n",
        "#   secret:servers.docs_science.headers.X-Key@science\n",
    ] {
        assert!(first.contains(named), "{named}: {first}");
    }
    let keys = [(ADMIN_KEY, "admin"), (AGENT_KEY, "reader")];
    let with_keys = keys.iter().fold(first.clone(), |text, (key, agent)| {
        text.replace(&format!("${{secret:agents.{agent}.keys.0}}"), key)
    });
    let again = TestApi::start_file(&with_keys).await;
    assert_eq!(seen(&again).await, seen(&api).await);
    assert_eq!(export(&again).await, first);
    // A key that the store has cannot be told, and the export says so.
    let key = api.send(Method::POST, "/agents/bot/keys", &json!({})).await;
    let with_key = export(&api).await;
    assert!(with_key.contains("as hashes:\n#   bot: 1\n"), "{with_key}");
    assert!(!with_key.contains(key.body["key"].as_str().unwrap()));
    api.stop().await;
    again.stop().await;
}

#[tokio::test]
async fn each_value_says_where_it_comes_from() {
    let api = TestApi::start(
        "[servers.docs]\nurl = \"https://docs.example.com/mcp\"\ntools = { deny = [\"a\"] }\n\
         auth = { type = \"bearer\", token = \"${PLANTED}\" }\n",
    )
    .await;
    let new =
        json!({ "name": "made", "config": { "url": "https://example.com/mcp", "price": null } });
    let made = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let shown = api.get("/config").await;
    assert_eq!(shown.status, StatusCode::OK);
    let config = &shown.body["config"];
    assert_eq!(config["servers"]["docs"]["auth"]["token"], "***");
    assert_eq!(config["agents"]["admin"]["keys"], json!(["***"]));
    let line = |needle: &str| {
        let file = api.file();
        let found = file.lines().position(|line| line.starts_with(needle));
        found.unwrap() + 1
    };
    let origin = |key: &str| shown.body["origins"][key].clone();
    let of_file = |key: &str, needle: &str, variables: &[&str]| {
        let origin = origin(key);
        assert_eq!(origin["type"], "file", "{key}: {origin}");
        assert_eq!(origin["line"], line(needle), "{key}: {origin}");
        let file = origin["file"].as_str().unwrap();
        assert!(file.ends_with("tollbridge.toml"), "{origin}");
        let named = origin["variables"].as_array().cloned().unwrap_or_default();
        assert_eq!(named, variables, "{key}: {origin}");
    };
    of_file("data_dir", "data_dir", &[]);
    of_file("agents.admin.keys", "keys", &[]);
    of_file("agents.admin.role", "admin", &[]);
    of_file("servers.docs.url", "url", &[]);
    of_file("servers.docs.auth.token", "auth", &["PLANTED"]);
    of_file("servers.docs.tools.deny", "tools", &[]);
    assert_eq!(origin("servers.made.url"), json!({ "type": "store" }));
    for key in ["servers.made.enabled", "servers.docs.timeout", "workers"] {
        assert_eq!(origin(key), json!({ "type": "default" }), "{key}");
    }
    // The harness has no such variable; a value that is not shown has no origin either.
    assert_eq!(origin("servers.docs.nothing"), Value::Null);
    assert!(!shown.body.to_string().contains(ADMIN_KEY));
    assert!(!shown.body.to_string().contains("of-environment"));
    api.stop().await;
}

#[tokio::test]
async fn a_document_is_validated_and_not_applied() {
    let api = TestApi::start("").await;
    let validate = async |body: Value| {
        let answer = api.send(Method::POST, "/config/validate", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.body
    };
    let right = "[servers.a]\ncommand = \"npx\"\nenv = { T = \"${PLANTED}\", U = \"${secret:u}\" }\n\
                 timeout = \"${UNSET}\"\nenv_file = \"/etc/shadow\"\n";
    let valid = json!({ "valid": true, "errors": [], "warnings": [] });
    assert_eq!(validate(json!({ "document": right })).await, valid);
    assert_eq!(
        validate(json!({ "document": { "servers": {} } })).await,
        valid
    );
    let wrong =
        validate(json!({ "document": "listen = 1\n[servers.a]\ncomand = \"npx\"\n" })).await;
    assert_eq!(wrong["valid"], false);
    let errors = wrong["errors"].as_array().unwrap();
    let at = |line: u64| errors.iter().find(|error| error["line"] == line).unwrap();
    assert!(
        at(1)["message"].as_str().unwrap().contains("listen"),
        "{wrong}"
    );
    assert!(at(3).to_string().contains("command"), "{wrong}");
    let yaml = json!({ "document": "servers:\n  a:\n    url: [", "format": "yaml" });
    assert_eq!(validate(yaml).await["valid"], false);
    let pattern =
        json!({ "document": { "governance": { "scan": { "results": { "*": "nothing" } } } } });
    assert_eq!(validate(pattern).await["valid"], false);
    // What was copied from where secrets are hidden is no secret.
    let masked = json!({ "document": { "servers": { "a": {
        "url": "https://example.com/", "auth": { "type": "bearer", "token": "***" }
    } } } });
    assert_eq!(validate(masked).await["valid"], false);
    for body in [
        json!({}),
        json!({ "document": 1 }),
        json!({ "document": "", "format": "x" }),
    ] {
        let refused = api.send(Method::POST, "/config/validate", &body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    }
    let servers = api.get("/servers").await;
    assert_eq!(servers.body["items"].as_array().unwrap().len(), 1);
    api.stop().await;
}
