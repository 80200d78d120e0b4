//! `tollbridge stdio` as a client launches it: a process of its own, spoken to over its pipes.

use std::{path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

use crate::support::{
    Backend, Era, TestGateway, Transport, soon,
    wire::{Envelope, notification, request},
};

/// A termination ends it although its client keeps the input open.
#[tokio::test]
async fn a_launched_gateway_ends_on_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("tollbridge.toml");
    std::fs::write(&config, TestGateway::new().text()).unwrap();
    let mut child = launch(&config);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ping = request("1", "ping", "{}");
    input
        .write_all(format!("{ping}\n").as_bytes())
        .await
        .unwrap();
    soon("it answers", lines.next_line()).await.unwrap();
    terminate(&child);
    assert!(soon("it ends", child.wait()).await.unwrap().success());
}

fn terminate(child: &Child) {
    let id = i32::try_from(child.id().unwrap()).unwrap();
    let process = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
}

/// A call that a termination cuts off is answered before the output ends.
#[tokio::test]
async fn a_launched_gateway_answers_what_a_sigterm_cuts_off() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("tollbridge.toml");
    std::fs::write(&config, TestGateway::new().server("x", &backend).text()).unwrap();
    let mut child = launch(&config);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let params = r#"{"name":"mcp_x_echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;
    let call = request("1", "tools/call", params);
    input
        .write_all(format!("{call}\n").as_bytes())
        .await
        .unwrap();
    let _asked = backend.asked("tools/call").await;
    terminate(&child);
    let answer = soon("the call is answered", lines.next_line()).await;
    let answer = Envelope::of(&answer.unwrap().unwrap());
    assert_eq!(answer.id.as_deref(), Some("1"));
    assert!(answer.error.is_some(), "{answer:?}");
    assert!(!soon("it ends", child.wait()).await.unwrap().success());
}

/// An open listen stream does not keep it alive once its input has ended.
#[tokio::test]
async fn a_launched_gateway_ends_with_its_input_while_it_is_listened_to() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("tollbridge.toml");
    let text = TestGateway::new().text();
    std::fs::write(&config, text.replace("\"0s\"", "\"60s\"")).unwrap();
    let mut child = launch(&config);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let params = r#"{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}"#;
    let listen = request("1", "subscriptions/listen", params);
    input
        .write_all(format!("{listen}\n").as_bytes())
        .await
        .unwrap();
    let told = soon("it listens", lines.next_line())
        .await
        .unwrap()
        .unwrap();
    assert!(told.contains("notifications/subscriptions"), "{told}");
    drop(input);
    assert!(soon("it ends", child.wait()).await.unwrap().success());
}

/// A whole conversation, with nothing but messages on stdout, and an end when the input ends.
#[tokio::test]
async fn a_launched_gateway_serves_its_client_and_ends_with_it() {
    let backend = Backend::start(Transport::Stdio, Era::Legacy).await;
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("tollbridge.toml");
    let text = TestGateway::new().server("x", &backend).text();
    std::fs::write(&config, text.replace("\"0s\"", "\"10s\"")).unwrap();
    let mut child = launch(&config);
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let params = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    for message in [
        request("1", "initialize", params),
        notification("notifications/initialized", "{}"),
        request(
            "2",
            "tools/call",
            r#"{"name":"mcp_x_echo","arguments":{"n":1e3}}"#,
        ),
    ] {
        input
            .write_all(format!("{message}\n").as_bytes())
            .await
            .unwrap();
    }
    let greeting = soon("it greets", lines.next_line()).await.unwrap().unwrap();
    assert_eq!(
        Envelope::of(&greeting).value()["protocolVersion"],
        "2025-06-18"
    );
    let asked = backend.asked("tools/call").await;
    let arguments = asked.envelope.param(&["arguments"]);
    assert_eq!(arguments.as_deref(), Some(r#"{"n":1e3}"#));
    drop(input);
    asked.answer(r#"{"n": 1e3}"#).await;
    let mut answers = Vec::new();
    while let Some(line) = soon("its output ends", lines.next_line()).await.unwrap() {
        // The server was listed after the greeting, which is told too, at any moment.
        if !Envelope::of(&line).method().ends_with("/list_changed") {
            answers.push(line);
        }
    }
    assert_eq!(answers, [r#"{"jsonrpc":"2.0","id":2,"result":{"n": 1e3}}"#]);
    assert!(soon("it ends", child.wait()).await.unwrap().success());
    soon("its server ends with it", asked.conn.closed.cancelled()).await;
}

fn launch(config: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tollbridge"))
        .arg("stdio")
        .arg("--config")
        .arg(config)
        .env("TOLLBRIDGE_DATA_DIR", config.with_file_name("data"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
