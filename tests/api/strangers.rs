//! Nobody who has not signed in lets the gateway start a program: not from the machine itself, and not by the browser
//! of somebody who has signed in.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, TestApi};

/// Every request that would start `sh` with a script: a server is made, changed, switched on, or only tried.
fn attempts(script: &str) -> Vec<(Method, &'static str, Value)> {
    let program = json!({ "command": "sh", "args": ["-c", script] });
    let new = json!({ "name": "box", "config": program });
    let of_agent = json!({ "name": "box", "transport_type": "stdio", "endpoint_config": program });
    vec![
        (Method::POST, "/api/v1/servers", new.clone()),
        (Method::POST, "/api/v1/servers/test", new),
        (Method::PUT, "/api/v1/servers/idle", program.clone()),
        (Method::PATCH, "/api/v1/servers/idle", program),
        (Method::POST, "/api/v1/servers/idle/enable", Value::Null),
        (Method::POST, "/api/v1/servers/idle/test", Value::Null),
        (Method::POST, "/api/agents/reader/mcp-servers", of_agent),
    ]
}

/// How somebody asks who has no key.
type Disguise = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

/// What the request is called, its `Content-Type`, and its other headers.
const DISGUISES: &[Disguise] = &[
    ("a program of this machine", "application/json", &[]),
    (
        "a program with a wrong key",
        "application/json",
        &[("authorization", "Bearer x")],
    ),
    (
        "a page of another origin",
        "application/json",
        &[
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "cross-site"),
            ("cookie", "__Host-tollbridge_login=x; tollbridge_login=x"),
        ],
    ),
    (
        "a page that needs no preflight",
        "text/plain",
        &[
            ("origin", "https://evil.example"),
            ("sec-fetch-mode", "no-cors"),
        ],
    ),
    (
        "a form",
        "application/x-www-form-urlencoded",
        &[("origin", "https://evil.example")],
    ),
    (
        "a form of a sandboxed frame",
        "multipart/form-data; boundary=x",
        &[("origin", "null")],
    ),
    (
        "a form of a browser that hides its origin",
        "text/plain",
        &[
            ("sec-fetch-site", "cross-site"),
            ("cookie", "tollbridge_login=x"),
        ],
    ),
    (
        "a page whose name leads to this machine",
        "application/json",
        &[("host", "evil.example"), ("sec-fetch-site", "same-origin")],
    ),
];

/// A gateway that asks clients for nothing, with a server that would start a program once it is enabled.
async fn open_gateway(script: &str) -> TestApi {
    let api = TestApi::start("[governance]\nauth = \"anonymous\"\n").await;
    let idle = json!({ "command": "sh", "args": ["-c", script], "enabled": false, "retry": { "max": "1s" } });
    let new = json!({ "name": "idle", "config": idle });
    let made = api.send(Method::POST, "/servers", &new).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    api
}

fn disguised(request: RequestBuilder, (_, content_type, headers): &Disguise) -> RequestBuilder {
    let request = request.header("content-type", *content_type);
    headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    })
}

async fn status_of(request: RequestBuilder, body: &Value) -> StatusCode {
    request
        .body(body.to_string())
        .send()
        .await
        .unwrap()
        .status()
}

fn script_in(directory: &Path) -> (String, PathBuf) {
    let mark = directory.join("started");
    (format!("echo > '{}'", mark.display()), mark)
}

#[tokio::test]
async fn nobody_without_a_key_starts_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let (script, mark) = script_in(directory.path());
    let api = open_gateway(&script).await;
    let before = api.get("/servers").await.body;
    for disguise in DISGUISES {
        for (method, path, body) in attempts(&script) {
            let request = disguised(api.request_at(method.clone(), path), disguise);
            let status = status_of(request, &body).await;
            let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
            assert!(
                refused.contains(&status),
                "{}, {method} {path}: {status}",
                disguise.0
            );
        }
        let preflight = disguised(api.request_at(Method::OPTIONS, "/api/v1/servers"), disguise);
        let preflight = preflight.header("access-control-request-method", "POST");
        let answer = preflight.send().await.unwrap();
        let allowed = answer.headers().get("access-control-allow-origin");
        assert_eq!(allowed, None, "{}", disguise.0);
    }
    assert_eq!(api.get("/servers").await.body, before);
    assert!(!fs::exists(&mark).unwrap());
    // With the key alone it starts.
    let enabled = api
        .send(Method::POST, "/servers/idle/enable", &json!({}))
        .await;
    assert_eq!(enabled.status, StatusCode::OK, "{enabled:?}");
    for _ in 0..400 {
        if fs::exists(&mark).unwrap() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(fs::exists(mark).unwrap());
    api.stop().await;
}

/// Who has a key has it in a browser as well, where pages of others may ask in its name: they are refused, and so is
/// what a form can send.
#[tokio::test]
async fn a_page_of_another_origin_is_refused_with_a_key_too() {
    let directory = tempfile::tempdir().unwrap();
    let (script, mark) = script_in(directory.path());
    let api = open_gateway(&script).await;
    let before = api.get("/servers").await.body;
    for disguise in DISGUISES {
        let (name, content_type, headers) = disguise;
        let is_page = headers
            .iter()
            .any(|(name, _)| *name == "origin" || *name == "host");
        for (method, path, body) in attempts(&script) {
            let expect = match (is_page, *content_type) {
                (true, _) => StatusCode::FORBIDDEN,
                (false, "application/json") => continue,
                (false, _) if body.is_null() => continue,
                (false, _) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            };
            let request = api.request_at(method.clone(), path).bearer_auth(ADMIN_KEY);
            let status = status_of(disguised(request, disguise), &body).await;
            assert_eq!(status, expect, "{name}, {method} {path}");
        }
    }
    assert_eq!(api.get("/servers").await.body, before);
    api.stop().await;
    assert!(!fs::exists(mark).unwrap());
}
