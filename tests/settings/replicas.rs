//! Which instance of a server serves a call, and how each is reached.

use serde_json::{Value, json};

use crate::{
    harness::{answer_with, ask, call, http_backend, of_file, parse},
    support::{Auto, Backend, Gateway, TestGateway},
};

/// A server in the shell that shows how it was started.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/settings/server.sh");

async fn launch(top: &str, keys: &str) -> Gateway {
    let gateway = TestGateway::new().setting(top).section("one", keys);
    let gateway = gateway.start().await;
    let all_up = |status: &Value| {
        let replicas = status["replicas"].as_array().unwrap();
        replicas.iter().all(|one| one["state"] == "connected")
    };
    gateway.status_until("one", all_up).await;
    gateway
}

#[tokio::test]
pub(crate) async fn program() {
    let place = tempfile::tempdir().unwrap();
    let there = place.path().canonicalize().unwrap();
    let keys = format!(
        "replicas = [{{ command = \"{PROGRAM}\", args = [\"-a\", \"b\"], env = {{ SHOWN = \"yes\" }}, \
         cwd = \"{}\" }}]",
        there.display()
    );
    let gateway = launch("", &keys).await;
    let mut shown = call(&gateway, "mcp_one_show").await;
    // It is the user of the test.
    shown.as_object_mut().and_then(|it| it.remove("user"));
    let there = there.display().to_string();
    let expect = json!({ "program": PROGRAM, "args": "-a b", "env": "yes", "cwd": there });
    assert_eq!(shown, expect);
}

#[tokio::test]
pub(crate) async fn env_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "SHOWN=yes").unwrap();
    let file = file.path().display().to_string();
    for (key, expect) in [
        (String::new(), ""),
        (format!(", env_file = \"{file}\""), "yes"),
    ] {
        let keys = format!("replicas = [{{ command = \"{PROGRAM}\"{key} }}]");
        let gateway = of_file(&format!("[servers.one]\n{keys}")).await;
        assert_eq!(call(&gateway, "mcp_one_show").await["env"], expect);
    }
}

#[tokio::test]
pub(crate) async fn remote() {
    for (auth, header, value) in [
        (
            "{ type = \"bearer\", token = \"t\" }",
            "authorization",
            "Bearer t",
        ),
        (
            "{ type = \"header\", name = \"X-Key\", value = \"k\" }",
            "x-key",
            "k",
        ),
    ] {
        let backend = http_backend().await;
        let url = format!("http://{}/mcp", backend.address());
        let keys = format!(
            "replicas = [{{ url = \"{url}\", transport = \"http\", headers = {{ X-Team = \"a\" }}, \
             auth = {auth} }}]"
        );
        let gateway = launch("", &keys).await;
        assert_eq!(gateway.status("one").await["transport"], "http");
        let answer = async {
            let asked = backend.asked("tools/call").await;
            asked.answer(r#"{"content":[]}"#).await;
            asked
        };
        let params = r#"{"name":"mcp_one_echo"}"#;
        let (_, asked) = tokio::join!(ask(&gateway, "/mcp", "tools/call", params), answer);
        assert_eq!(asked.headers["x-team"], "a");
        assert_eq!(asked.headers[header], value);
    }
}

/// Two replicas that answer with the name they have.
async fn two() -> (Backend, Backend, String) {
    let (a, b) = (http_backend().await, http_backend().await);
    answer_with(&a, "a");
    answer_with(&b, "b");
    let replica = |backend: &Backend, name: &str, locality: &str| {
        let url = format!("http://{}/mcp", backend.address());
        format!("{{ name = \"{name}\", locality = \"{locality}\", url = \"{url}\" }}")
    };
    let both = [replica(&a, "a", "us"), replica(&b, "b", "eu")].join(", ");
    (a, b, format!("replicas = [{both}]\n"))
}

#[tokio::test]
pub(crate) async fn locality() {
    let (_a, _b, keys) = two().await;
    for (top, expect) in [
        ("", "a"),
        ("locality = \"eu\"", "b"),
        ("locality = \"us\"", "a"),
    ] {
        let gateway = launch(top, &keys).await;
        assert_eq!(
            call(&gateway, "mcp_one_echo").await["name"],
            expect,
            "{top}"
        );
        let status = gateway.status("one").await;
        assert_eq!(status["replicas"][0]["name"], expect);
    }
}

/// While one call runs, the next goes to the other only if load counts.
#[tokio::test]
pub(crate) async fn balance() {
    for (balance, other) in [("failover", false), ("least_loaded", true)] {
        let (a, b) = (http_backend().await, http_backend().await);
        let url = |backend: &Backend| format!("{{ url = \"http://{}/mcp\" }}", backend.address());
        let keys = format!(
            "replicas = [{}, {}]\nbalance = \"{balance}\"",
            url(&a),
            url(&b)
        );
        let gateway = launch("", &keys).await;
        let call = || ask(&gateway, "/mcp", "tools/call", r#"{"name":"mcp_one_echo"}"#);
        let script = async {
            let first = a.asked("tools/call").await;
            let busy = |status: &Value| status["replicas"][0]["in_flight"] == 1;
            gateway.status_until("one", busy).await;
            let next = async {
                let to = if other { &b } else { &a };
                to.asked("tools/call")
                    .await
                    .answer("{\"content\":[]}")
                    .await;
            };
            let (_, ()) = tokio::join!(call(), next);
            first.answer("{\"content\":[]}").await;
        };
        let (_, ()) = tokio::join!(call(), script);
    }
}

/// Who failed is out for `base`, and for longer with each failure in a row, up to `max`.
#[tokio::test]
pub(crate) async fn ejection() {
    const HOUR_MS: u64 = 3_600_000;
    for (keys, calls, expect) in [
        ("", 1, 0..=1000),
        (
            "ejection = { base = \"1h\", max = \"10h\" }\n",
            1,
            HOUR_MS / 2..=HOUR_MS,
        ),
        (
            "ejection = { base = \"1h\", max = \"10h\" }\n",
            3,
            HOUR_MS + 1..=2 * HOUR_MS,
        ),
        (
            "ejection = { base = \"1h\", max = \"1h\" }\n",
            3,
            HOUR_MS / 2..=HOUR_MS,
        ),
    ] {
        let (a, b, both) = two().await;
        let gateway = launch("", &format!("{both}{keys}")).await;
        for backend in [&a, &b] {
            let fails = Auto::Status(502);
            backend.on_request(move |envelope| {
                (envelope.method() == "tools/call").then(|| fails.clone())
            });
        }
        // The second goes to the other; where all are out, the first is tried all the same.
        for _ in 0..calls {
            let params = r#"{"name":"mcp_one_echo"}"#;
            ask(&gateway, "/mcp", "tools/call", params).await.failure();
        }
        let status = gateway.status("one").await;
        let out = status["replicas"][0]["out_for_ms"].as_u64().unwrap_or(0);
        assert!(expect.contains(&out), "{keys} {calls}: {status}");
    }
}

/// The first rule that holds of a call decides where it goes.
#[tokio::test]
pub(crate) async fn route() {
    let (_a, _b, keys) = two().await;
    for (rule, arguments, expect) in [
        ("to = \"b\"", "{}", "b"),
        ("to = \"eu\"", "{}", "b"),
        ("to = \"us\"", "{}", "a"),
        ("tools = [\"echo\"], to = \"b\"", "{}", "b"),
        ("tools = [\"other\"], to = \"b\"", "{}", "a"),
        ("at = \"/r\", equals = 1, to = \"b\"", r#"{"r":1.0}"#, "b"),
        ("at = \"/r\", equals = 1, to = \"b\"", r#"{"r":2}"#, "a"),
        ("at = \"/s\", equals = 1, to = \"b\"", r#"{"r":1}"#, "a"),
        (
            "at = \"/r\", one_of = [1, 2], to = \"b\"",
            r#"{"r":2}"#,
            "b",
        ),
        (
            "at = \"/r\", one_of = [1, 2], to = \"b\"",
            r#"{"r":3}"#,
            "a",
        ),
        (
            "at = \"/r\", matches = \"^eu\", to = \"b\"",
            r#"{"r":"eu-1"}"#,
            "b",
        ),
        (
            "at = \"/r\", matches = \"^eu\", to = \"b\"",
            r#"{"r":"us"}"#,
            "a",
        ),
        (
            "at = \"/r\", min = 3, max = 5, to = \"b\"",
            r#"{"r":3}"#,
            "b",
        ),
        (
            "at = \"/r\", min = 3, max = 5, to = \"b\"",
            r#"{"r":2}"#,
            "a",
        ),
        (
            "at = \"/r\", min = 3, max = 5, to = \"b\"",
            r#"{"r":6}"#,
            "a",
        ),
    ] {
        let gateway = launch("", &format!("{keys}route = [{{ {rule} }}]")).await;
        let params = format!(r#"{{"name":"mcp_one_echo","arguments":{arguments}}}"#);
        let answer = ask(&gateway, "/mcp", "tools/call", &params).await;
        let name = &answer.value()["structuredContent"]["name"];
        assert_eq!(name, expect, "{rule} of {arguments}");
    }
    let nowhere = format!("[servers.one]\n{keys}route = [{{ to = \"asia\" }}]");
    assert!(parse(&nowhere).is_err());
}
