//! Commands beside a gateway that runs with the same config.

use std::process::Stdio;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::{
    child_processes::INITIALIZE,
    support::{Place, SCRIPT, bounded, finish, pids},
};

/// `list` and `call` ask the gateway: no server is started a second time, and what the gateway knows of its
/// servers is said.
#[tokio::test]
async fn list_and_call_use_the_running_gateway() {
    let config = format!("{SCRIPT}[servers.missing]\ncommand = \"no-such-program\"\n");
    let place = Place::new(&config);
    let mut serving = place.serve().await;
    serving.says("server is connected").await;
    let started = pids(&place).await;
    let servers = place.run(&["list", "servers"]).await;
    assert_eq!(servers.code, Some(0), "{servers:?}");
    let (connected, failed) = ("script\tconnected\tstdio\t", "missing\tfailed\tstdio\t");
    assert!(servers.stdout.contains(connected), "{servers:?}");
    assert!(servers.stdout.contains(failed), "{servers:?}");
    let listed = place.run(&["list"]).await;
    assert_eq!(listed.code, Some(1), "{listed:?}");
    assert!(
        listed.stdout.contains("mcp_script_repeat\t\t"),
        "{listed:?}"
    );
    let reason =
        "server `missing` is not connected: cannot start `no-such-program`: not found in PATH";
    assert!(listed.stderr.contains(reason), "{listed:?}");
    let own = place.run(&["list", "--server", "script"]).await;
    assert_eq!(own.code, Some(0), "{own:?}");
    assert!(own.stdout.contains("\nrepeat\tscript\t"), "{own:?}");
    let called = place.run(&["call", "mcp_script_repeat"]).await;
    assert_eq!(called.code, Some(0), "{called:?}");
    assert_eq!(pids(&place).await, started);
    serving.end(Signal::TERM).await;
    let alone = place.run(&["call", "mcp_script_repeat"]).await;
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert_ne!(pids(&place).await, started);
}

/// A gateway with another config is none of theirs.
#[tokio::test]
async fn a_gateway_with_another_config_is_not_asked() {
    let place = Place::new(SCRIPT);
    let mut serving = place.serve().await;
    serving.says("server is connected").await;
    std::fs::write(
        place.file("other.toml"),
        "[servers.toolbox]\ntransport = \"builtin\"\n",
    )
    .expect("written");
    let listed = place.run(&["list", "--config", "other.toml"]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(
        listed.stdout.contains("mcp_toolbox_echo\ttoolbox\t"),
        "{listed:?}"
    );
    serving.end(Signal::TERM).await;
}

/// What an agent may do there, it may do here.
#[tokio::test]
async fn calls_through_the_running_gateway_are_governed() {
    let place = Place::new(&format!(
        "[governance]\nauth = \"keys\"\n[agents.bot]\npolicy = {{ mode = \"denylist\", tools = [\"script/fail\"] }}\n{SCRIPT}"
    ));
    let mut serving = place.serve().await;
    serving.says("server is connected").await;
    let listed = place.run(&["list", "--agent", "bot"]).await;
    assert!(
        listed.stdout.contains("mcp_script_repeat\t\t"),
        "{listed:?}"
    );
    assert!(!listed.stdout.contains("mcp_script_fail"), "{listed:?}");
    let allowed = place
        .run(&["call", "mcp_script_repeat", "--agent", "bot"])
        .await;
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
    let denied = place
        .run(&["call", "mcp_script_fail", "--agent", "bot"])
        .await;
    assert_ne!(denied.code, Some(0), "{denied:?}");
    assert!(!denied.all().contains("it failed"), "{denied:?}");
    let explain = "`tollbridge policy explain bot mcp_script_fail`";
    assert!(denied.stderr.contains(explain), "{denied:?}");
    serving.end(Signal::TERM).await;
}

/// For clients that start a command: the names and answers of a running gateway, whose servers are started
/// once.
#[tokio::test]
async fn stdio_bridges_a_client_to_a_running_gateway() {
    let place = Place::new(SCRIPT);
    let serving = place.serve().await;
    let elsewhere = Place::new("");
    let mut command = elsewhere.command(&["stdio", "--url", &serving.url]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    let call =
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"mcp_script_repeat"}}"#;
    let sent = format!("{INITIALIZE}{call}\n");
    input.write_all(sent.as_bytes()).await.expect("it is read");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let answer = loop {
        let line = bounded(lines.next_line()).await.expect("it is text");
        let line = line.expect("an answer comes");
        if line.contains(r#""id":7"#) {
            break line;
        }
    };
    assert!(answer.contains(r#""result""#), "{answer}");
    drop(input);
    let output = bounded(child.wait_with_output()).await.expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!elsewhere.file("data").exists(), "nothing is recorded here");
    serving.end(Signal::TERM).await;
}

/// A key that is made for another data directory than that of the gateway would open nothing.
#[tokio::test]
async fn a_command_on_another_data_directory_is_refused() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let listen = port.expect("a port").to_string();
    let place = Place::new(&format!("listen = \"{listen}\"\n{SCRIPT}"));
    let serving = Place::serve_as(place.command(&["serve"])).await;
    let elsewhere = async |args: &[&str]| {
        let mut command = place.command(args);
        command.env("TOLLBRIDGE_DATA_DIR", place.file("other"));
        finish(command).await
    };
    for args in [
        &["agents", "add", "bot"][..],
        &["keys", "list"],
        &["audit"],
        &["list"],
        &["call", "mcp_script_repeat"],
    ] {
        let ran = elsewhere(args).await;
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        let told = format!("the gateway that runs with this config on {listen} has another data");
        assert!(ran.stderr.contains(&told), "{args:?}: {ran:?}");
        assert!(!place.file("other").exists());
        assert_eq!(place.run(args).await.code, Some(0), "{args:?}");
    }
    serving.end(Signal::TERM).await;
    assert_eq!(elsewhere(&["agents", "add", "bot"]).await.code, Some(0));
}

/// Its link opens the dashboard once, with what the command line may do. Who runs a server's program gets none.
#[tokio::test]
async fn ui_opens_the_dashboard_of_the_running_gateway() {
    let place = Place::new(SCRIPT);
    let alone = place.run(&["ui"]).await;
    assert_eq!((alone.code, alone.stdout.as_str()), (Some(1), ""));
    assert!(alone.stderr.contains("no gateway runs on"), "{alone:?}");
    let serving = place.serve().await;
    let shown = place.run(&["ui"]).await;
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let link = shown.stdout.trim();
    assert!(
        link.starts_with(&format!("{}/ui/login?code=", serving.url)),
        "{shown:?}"
    );
    let other = place.run(&["ui", "--json"]).await.json();
    assert_ne!(other["url"], link);
    let page = get(link, "").await;
    assert!(page.contains("Open the dashboard"), "{page}");
    let cookie = page
        .split("set-cookie: ")
        .nth(1)
        .and_then(|it| it.split(';').next())
        .expect("one");
    let token = page
        .split("name=\"token\" value=\"")
        .nth(1)
        .and_then(|it| it.split('"').next())
        .expect("one");
    let code = link.split("code=").nth(1).expect("one");
    let opened = post(&serving.url, cookie, &format!("token={token}&code={code}")).await;
    assert!(
        opened.contains(" 303 ") && opened.contains("location: /ui\r"),
        "{opened}"
    );
    let again = post(&serving.url, cookie, &format!("token={token}&code={code}")).await;
    assert!(again.contains(" 403 "), "{again}");
    let cookie = opened
        .split("set-cookie: ")
        .nth(1)
        .and_then(|it| it.split(';').next())
        .expect("one");
    let shown = get(&format!("{}/ui", serving.url), cookie).await;
    assert!(
        shown.contains("operator") && shown.contains("Add server"),
        "{shown}"
    );
    serving.end(Signal::TERM).await;
    let events = place.run(&["audit", "events"]).await;
    assert!(events.stdout.contains("dashboard_link_made"), "{events:?}");
}

async fn get(url: &str, cookie: &str) -> String {
    let (host, path) = url
        .strip_prefix("http://")
        .and_then(|it| it.split_once('/'))
        .expect("a URL");
    exchange(
        host,
        &format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n"),
        "",
    )
    .await
}

async fn post(url: &str, cookie: &str, form: &str) -> String {
    let host = url.strip_prefix("http://").expect("a URL");
    let head = format!("POST /ui/login HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n");
    exchange(host, &head, form).await
}

async fn exchange(host: &str, head: &str, body: &str) -> String {
    use tokio::io::AsyncReadExt as _;

    let mut stream = tokio::net::TcpStream::connect(host)
        .await
        .expect("it listens");
    let length = body.len();
    let request = format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    bounded(stream.read_to_string(&mut answer))
        .await
        .expect("text");
    answer
}
