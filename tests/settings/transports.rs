//! How a server is reached and spoken to.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::{
    harness::{answer_with, ask, call, http_backend, of_file, parse, with_one},
    support::{Backend, Era, Gateway, TestGateway, Transport, backend::Asked},
};

/// A server in the shell that shows how it was started.
pub(crate) const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/settings/server.sh");

/// How the program of `keys` says it was started.
async fn shown(keys: &str) -> Value {
    let gateway = TestGateway::new().section("one", keys).start().await;
    call(&gateway, "mcp_one_show").await
}

#[tokio::test]
pub(crate) async fn command() {
    let place = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let program = place.path().join(name);
        std::os::unix::fs::symlink(PROGRAM, &program).unwrap();
        let program = program.display().to_string();
        let shown = shown(&format!("command = \"{program}\"")).await;
        assert_eq!(shown["program"], program);
    }
}

#[tokio::test]
pub(crate) async fn args() {
    for (keys, expect) in [("", ""), ("args = [\"-a\", \"b\"]", "-a b")] {
        let shown = shown(&format!("command = \"{PROGRAM}\"\n{keys}")).await;
        assert_eq!(shown["args"], expect);
    }
}

#[tokio::test]
pub(crate) async fn env() {
    for (keys, expect) in [("", ""), ("env = { SHOWN = \"yes\" }", "yes")] {
        let shown = shown(&format!("command = \"{PROGRAM}\"\n{keys}")).await;
        assert_eq!(shown["env"], expect);
    }
}

#[tokio::test]
pub(crate) async fn env_file() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join(".env");
    std::fs::write(&file, "# shown\nexport SHOWN='from $HOME'\n").unwrap();
    let key = format!("env_file = \"{}\"", file.display());
    let both = format!("{key}\nenv = {{ SHOWN = \"yes\" }}");
    for (keys, expect) in [("", ""), (key.as_str(), "from $HOME"), (&both, "yes")] {
        let gateway = of_file(&format!("[servers.one]\ncommand = \"{PROGRAM}\"\n{keys}")).await;
        assert_eq!(call(&gateway, "mcp_one_show").await["env"], expect);
    }
}

#[tokio::test]
pub(crate) async fn cwd() {
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    let place = tempfile::tempdir().unwrap();
    let there = place.path().canonicalize().unwrap();
    let key = format!("cwd = \"{}\"", there.display());
    for (keys, expect) in [("", here), (key.as_str(), there.clone())] {
        let shown = shown(&format!("command = \"{PROGRAM}\"\n{keys}")).await;
        assert_eq!(shown["cwd"], expect.display().to_string());
    }
}

/// Root can let programs run as another user; everybody else can say so of themselves alone.
#[tokio::test]
pub(crate) async fn user() {
    let place = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let program = place.path().join("server.sh");
    std::fs::copy(PROGRAM, &program).unwrap();
    let ours = std::process::Command::new("id")
        .arg("-un")
        .output()
        .unwrap();
    let ours = String::from_utf8(ours.stdout).unwrap();
    let is_root = ours.trim() == "root";
    let other = if is_root { "nobody" } else { ours.trim() };
    let user = format!("user = \"{other}\"");
    let command = format!("command = \"{}\"", program.display());
    let replica = format!("replicas = [{{ {command}, {user} }}]");
    for (keys, expect) in [
        (command.clone(), ours.trim()),
        (format!("{command}\n{user}"), other),
        (replica, other),
    ] {
        assert_eq!(shown(&keys).await["user"], expect, "{keys}");
    }
    let unknown = format!("{command}\nuser = \"no-such-user\"");
    let gateway = TestGateway::new().section("one", &unknown).launch().await;
    let says = |status: &Value| {
        let reason = status["reason"].as_str().unwrap_or_default();
        reason.contains("cannot run as user `no-such-user`: no such user")
    };
    gateway.status_until("one", says).await;
}

#[tokio::test]
pub(crate) async fn url() {
    let (a, b) = (http_backend().await, http_backend().await);
    answer_with(&a, "a");
    answer_with(&b, "b");
    for (backend, expect) in [(&a, "a"), (&b, "b")] {
        let gateway = with_one(backend, "", "").await;
        assert_eq!(
            call(&gateway, "mcp_one_echo").await,
            json!({"name": expect})
        );
    }
}

/// A call as it reaches a server with `keys`.
async fn asked_with(keys: &str) -> Asked {
    let backend = http_backend().await;
    let gateway = with_one(&backend, "", keys).await;
    let answer = async {
        let asked = backend.asked("tools/call").await;
        asked.answer(r#"{"content":[]}"#).await;
        asked
    };
    let params = r#"{"name":"mcp_one_echo"}"#;
    let (_, asked) = tokio::join!(ask(&gateway, "/mcp", "tools/call", params), answer);
    asked
}

/// Checks a header that `keys` add to every request.
async fn check_header(keys: &str, name: &str, expect: &str) {
    assert!(!asked_with("").await.headers.contains_key(name));
    assert_eq!(asked_with(keys).await.headers[name], expect, "{keys}");
}

#[tokio::test]
pub(crate) async fn headers() {
    check_header("headers = { X-Team = \"platform\" }", "x-team", "platform").await;
}

#[tokio::test]
pub(crate) async fn auth_bearer() {
    let auth = |token: &str| format!("auth = {{ type = \"bearer\", token = \"{token}\" }}");
    check_header(&auth("one"), "authorization", "Bearer one").await;
    check_header(&auth("two"), "authorization", "Bearer two").await;
}

#[tokio::test]
pub(crate) async fn auth_header() {
    let auth = |name: &str, value: &str| {
        format!("auth = {{ type = \"header\", name = \"{name}\", value = \"{value}\" }}")
    };
    check_header(&auth("X-API-Key", "one"), "x-api-key", "one").await;
    check_header(&auth("X-API-Key", "two"), "x-api-key", "two").await;
    check_header(&auth("X-Other", "one"), "x-other", "one").await;
}

/// The state of a server with `keys` in `/status`, and the transport named there.
async fn state(keys: &str) -> (String, String) {
    let gateway = TestGateway::new().section("one", keys).start().await;
    state_of(&gateway).await
}

async fn state_of(gateway: &Gateway) -> (String, String) {
    let status = gateway.status("one").await;
    let text = |key: &str| status[key].as_str().unwrap().to_owned();
    (text("state"), text("transport"))
}

#[tokio::test]
pub(crate) async fn transport() {
    let http = http_backend().await;
    let sse = Backend::start(Transport::Sse, Era::Legacy).await;
    let socket = Backend::start(Transport::WebSocket, Era::Legacy).await;
    for (backend, path, transport, connects, shown) in [
        (&http, "mcp", "auto", true, "http"),
        (&http, "mcp", "http", true, "http"),
        (&http, "mcp", "sse", false, "sse"),
        (&sse, "sse", "auto", true, "sse"),
        (&sse, "sse", "http", false, "http"),
        (&sse, "sse", "sse", true, "sse"),
    ] {
        let address = backend.address();
        let keys = format!("url = \"http://{address}/{path}\"\ntransport = \"{transport}\"");
        let (state, named) = state(&keys).await;
        assert_eq!(state == "connected", connects, "{keys}: {state}");
        assert_eq!(named, shown, "{keys}");
    }
    let nobody = "url = \"http://127.0.0.1:1/mcp\"";
    let (found, named) = state(nobody).await;
    assert_eq!(named, "auto", "{found}");
    let url = format!("url = \"ws://{}/mcp\"", socket.address());
    let program = format!("command = \"{PROGRAM}\"");
    for (keys, transport, wrong) in [
        (url.as_str(), "websocket", "http"),
        (&program, "stdio", "websocket"),
        ("", "builtin", "stdio"),
    ] {
        let with = |transport: &str| format!("{keys}\ntransport = \"{transport}\"");
        let expect = ("connected".to_owned(), transport.to_owned());
        assert_eq!(state(&with(transport)).await, expect);
        let refused = parse(&format!("[servers.one]\n{}", with(wrong)));
        assert!(refused.is_err(), "{keys} {wrong}");
    }
}

#[tokio::test]
pub(crate) async fn era() {
    for (server, pin, revision) in [
        (Era::Legacy, "auto", Some("2025-11-25")),
        (Era::Legacy, "legacy", Some("2025-11-25")),
        (Era::Legacy, "modern", None),
        (Era::Modern, "auto", Some("2026-07-28")),
        (Era::Modern, "legacy", None),
        (Era::Modern, "modern", Some("2026-07-28")),
    ] {
        let backend = Backend::start(Transport::Http, server).await;
        let gateway = with_one(&backend, "", &format!("era = \"{pin}\"")).await;
        let status = gateway.status("one").await;
        assert_eq!(status["revision"].as_str(), revision, "{server:?}, {pin}");
    }
}

#[tokio::test]
pub(crate) async fn enabled() {
    for (value, expect, greetings) in [(true, "connected", 1), (false, "disabled", 0)] {
        let backend = http_backend().await;
        let gateway = with_one(&backend, "", &format!("enabled = {value}")).await;
        assert_eq!(state_of(&gateway).await.0, expect);
        assert_eq!(backend.greeted(), greetings);
        assert_eq!(gateway.tools().await.is_empty(), !value);
    }
}
