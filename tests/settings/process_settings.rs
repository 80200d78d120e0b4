//! Keys about the whole process, seen at the binary.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use rustix::process::Signal;

use crate::{
    binary::{Place, Serving, finish, until},
    harness::{http_backend, parse},
    support::{http::Http, value, wire::request},
};

async fn serve(config: &str) -> (Place, Serving) {
    let place = Place::new(config);
    let serving = place.serve().await;
    (place, serving)
}

/// What a run from start to stop says on stderr.
async fn log(config: &str) -> String {
    let (_place, serving) = serve(config).await;
    serving.end(Signal::TERM).await.stderr
}

#[tokio::test]
pub(crate) async fn workers() {
    // The audit has threads of its own, which come and go.
    let no_audit = "audit = { enabled = false }";
    let few = threads(&format!("workers = 2\n{no_audit}"), 2).await;
    // Threads for what blocks have the same name, and come and go: there are fewer than twenty.
    threads(&format!("workers = 24\n{no_audit}"), 24).await;
    assert!(few < 22, "{few}");
}

/// Threads of a gateway's runtime, as soon as there are `least`; the store has others.
async fn threads(config: &str, least: usize) -> usize {
    let (_place, serving) = serve(config).await;
    let tasks = format!("/proc/{}/task", serving.child.id().unwrap());
    let count = until(|| {
        let names = fs::read_dir(Path::new(&tasks)).unwrap().filter_map(|task| {
            let name = fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
            name.starts_with("tokio").then_some(())
        });
        let count = names.count();
        (count >= least).then_some(count)
    });
    let count = count.await;
    serving.end(Signal::TERM).await;
    count
}

/// Each call to a server over HTTP takes a file, as its client does: at the limit, past it, and back under.
#[tokio::test]
async fn calls_take_files() {
    // 50 are for others, 38 for clients.
    let backend = http_backend().await;
    let server = format!("[servers.one]\n{}", backend.config());
    let place = Place::new(&format!("limits.connections = 38\n{server}"));
    let binary = env!("CARGO_BIN_EXE_tollbridge");
    let script = format!("ulimit -n 100 && exec {binary} serve --listen 127.0.0.1:0");
    let serving = Place::serve_as(place.shell(&script)).await;
    let addr: SocketAddr = serving
        .url
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let http = Http::new(addr);
    let call = async || {
        let params = r#"{"name":"mcp_one_echo","arguments":{}}"#;
        let answer = http.post("/mcp", request("1", "tools/call", params)).await;
        value(&answer.text().await)
    };
    let mut running = FuturesUnordered::new();
    let mut asked = Vec::new();
    for _ in 0..12 {
        running.push(call());
        tokio::select! {
            _ = running.next() => panic!("nothing was answered"),
            call = backend.asked("tools/call") => asked.push(call),
        }
    }
    let refused = call().await;
    assert_eq!(refused["error"]["data"]["code"], "BUSY", "{refused}");
    assert_eq!(refused["error"]["data"]["retryable"], true, "{refused}");
    let first = asked.pop().expect("there are twelve");
    first.answer(r#"{"content":[]}"#).await;
    let answered = running.next().await.expect("there are twelve");
    assert!(answered["result"].is_object(), "{answered}");
    running.push(call());
    tokio::select! {
        answered = running.next() => panic!("there is room: {answered:?}"),
        call = backend.asked("tools/call") => asked.push(call),
    }
    for call in asked {
        call.answer(r#"{"content":[]}"#).await;
        let answered = running.next().await.expect("it is under way");
        assert!(answered["result"].is_object(), "{answered}");
    }
    serving.end(Signal::TERM).await;
}

/// The variable wins over the key, and the key over the user's directory.
#[tokio::test]
pub(crate) async fn data_dir() {
    let place = Place::new("data_dir = \"state\"");
    fs::write(place.file("silent.toml"), "").unwrap();
    let shown = async |config: &str, variable: Option<&str>| {
        let mut command = place.command(&["check", "--json", "--config", config]);
        command.env_remove("TOLLBRIDGE_DATA_DIR");
        command.envs(variable.map(|directory| ("TOLLBRIDGE_DATA_DIR", directory)));
        let checked = finish(command).await.json();
        let directory = checked["config"]["data_dir"].as_str().unwrap();
        PathBuf::from(directory)
    };
    let named = shown("tollbridge.toml", None).await;
    assert!(named.is_absolute() && named.ends_with("state"), "{named:?}");
    let variable = shown("tollbridge.toml", Some("/elsewhere")).await;
    assert_eq!(variable, Path::new("/elsewhere"));
    let default = shown("silent.toml", None).await;
    assert!(default.starts_with(place.file("")), "{default:?}");
    assert!(default.ends_with("tollbridge"), "{default:?}");
}

#[tokio::test]
pub(crate) async fn log_level() {
    let info = log("log.level = \"info\"").await;
    assert!(info.contains("clients connect to"), "{info}");
    let warn = log("log.level = \"warn\"").await;
    assert!(warn.contains("no servers are configured"), "{warn}");
    assert!(!warn.contains("clients connect to"), "{warn}");
    assert_eq!(log("log.level = \"error\"").await, "");
}

#[tokio::test]
pub(crate) async fn log_format() {
    let are_json = |text: &str| {
        let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert_ne!(text, "");
        text.lines().all(is_json)
    };
    assert!(!are_json(&log("log.format = \"human\"").await));
    assert!(are_json(&log("log.format = \"json\"").await));
}

/// The flag is stronger than the key.
#[tokio::test]
async fn listen_flag() {
    let (_place, serving) = serve("listen = \"127.0.0.2:0\"").await;
    assert!(
        serving.url.starts_with("http://127.0.0.1:"),
        "{}",
        serving.url
    );
    serving.end(Signal::TERM).await;
}

/// The address is nobody's (RFC 5737), so that nothing is opened where the key allows it.
#[tokio::test]
pub(crate) async fn danger_listen_without_auth() {
    let args = ["serve", "--listen", "192.0.2.1:0"];
    let check = async |danger: bool, code: i32, expect: &str| {
        let key = format!("danger_listen_without_auth = {danger}");
        let ran = Place::new(&key).run(&args).await;
        assert!(ran.stderr.contains(expect), "{ran:?}");
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let config = format!("listen = \"192.0.2.1:0\"\n{key}");
        assert_eq!(parse(&config).is_ok(), danger);
    };
    check(false, 2, "refusing to listen").await;
    check(true, 1, "cannot listen on 192.0.2.1").await;
}
