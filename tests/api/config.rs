//! The config as a whole.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, TestApi};

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
