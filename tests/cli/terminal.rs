//! What people see: tables under headings, colours, reminders, and nothing that steers the terminal.

use insta::assert_snapshot;

use crate::support::{Place, SCRIPT, TWO_SERVERS, Terminal, bounded};

/// What is shown when stdout is a terminal.
async fn shown(place: &Place, args: &[&str]) -> String {
    let terminal = Terminal::new();
    let mut child = {
        let mut command = place.command(args);
        command.stdout(terminal.end());
        command.spawn().expect("it starts")
    };
    let (text, _) = tokio::join!(terminal.text(), bounded(child.wait()));
    text
}

/// What is shown when stderr is a terminal.
async fn said(place: &Place, args: &[&str]) -> String {
    let terminal = Terminal::new();
    let mut child = {
        let mut command = place.command(args);
        command.stderr(terminal.end());
        command.spawn().expect("it starts")
    };
    let (text, _) = tokio::join!(terminal.text(), bounded(child.wait()));
    text
}

#[tokio::test]
async fn tables_have_headings_and_fit() {
    let place = Place::new(TWO_SERVERS);
    assert_snapshot!(shown(&place, &["list", "--server", "script"]).await, @r#"
    NAME    SERVER  DESCRIPTION
    hang    script  Never answers.
    repeat  script  Repeats its arguments.
    fail    script
    refuse  script
    steer   script  Moves the \u001b[2Jcursor.
    "#);
    assert_snapshot!(shown(&place, &["list", "--server", "toolbox"]).await, @"
    NAME          SERVER   DESCRIPTION
    current_time  toolbox  The current date and time in a time zone (UTC unless one is given), with its…
    convert_time  toolbox  Shows one point in time in another time zone. Takes an RFC 3339 timestamp, a…
    uuid          toolbox  New UUIDs: version 4 (random), 7 (ordered by time, good for database keys) o…
    hash          toolbox  The SHA-256, SHA-384 or SHA-512 digest of a text (its UTF-8 bytes) or of byt…
    echo          toolbox  Gives a text back as it came, to try the connection.
    ");
    assert_snapshot!(shown(&place, &["list", "servers"]).await, @"
    SERVER   STATE      TRANSPORT  REVISION    TOOLS  RESOURCES  PROMPTS
    toolbox  connected  builtin    2026-07-28  5      0          0
    script   connected  stdio      2025-11-25  5      0          1
    ");
}

#[tokio::test]
async fn failures_have_reasons() {
    let place = Place::new("[servers.missing]\ncommand = \"/nonexistent/server\"\n");
    assert_snapshot!(shown(&place, &["check", "--connect"]).await, @"
    SERVER   STATE         REVISION    LATENCY     TOOLS  RESOURCES  PROMPTS  REASON
    missing  failed                                                           cannot start `/nonexistent/server`: No such file or directory (os error 2)
    ");
}

#[tokio::test]
async fn text_of_servers_is_harmless() {
    let place = Place::new(SCRIPT);
    assert_snapshot!(shown(&place, &["call", "mcp_script_steer"]).await, @r#"
    \u001b[2Jgone
    [image image/png]
    "#);
}

/// In pipes the bytes are those of the server; on a terminal it is the same JSON.
#[tokio::test]
async fn json_of_servers_is_harmless() {
    let place = Place::new(SCRIPT);
    let given = "{\"text\":\"\u{9b}31m\u{7f}\u{202e}\u{2066}\u{200f}é\"}";
    let call = ["call", "mcp_script_repeat", given, "--json"];
    let piped = place.run(&call).await;
    assert!(piped.stdout.contains(given), "{piped:?}");
    let shown = shown(&place, &call).await;
    let harmless = r#"{"text":"\u009b31m\u007f\u202e\u2066\u200fé"}"#;
    assert!(shown.contains(harmless), "{shown:?}");
    assert_eq!(shown.matches(char::is_control).count(), 1, "{shown:?}");

    let described =
        format!("{SCRIPT}\n[servers.script.tools.describe]\nhang = \"\\u009b2J\\u202e\"\n");
    let place = Place::new(&described);
    let piped = place.run(&["list", "--json"]).await;
    assert!(piped.stdout.contains("\u{9b}2J\u{202e}"), "{piped:?}");
    let shown = self::shown(&place, &["list", "--json"]).await;
    assert!(shown.contains(r"\u009b2J\u202e"), "{shown:?}");
}

#[tokio::test]
async fn mistakes_are_coloured() {
    let place = Place::new("lisen = 1");
    let text = said(&place, &["check"]).await;
    assert!(text.contains("\u{1b}["), "{text:?}");
}

#[tokio::test]
async fn people_are_told_what_is_waited_for() {
    let place = Place::new("[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"sleep 1.2\"]\n");
    let text = said(&place, &["check", "--connect"]).await;
    assert_eq!(text, "waiting for slow ...\n");
}

/// Jobs are told once.
#[tokio::test]
async fn jobs_are_told_what_is_waited_for() {
    let slow = "[servers.slow]\ncommand = \"sh\"\nera = \"legacy\"\n\
                args = [\"-c\", \"sleep 2.5\"]\n";
    let place = Place::new(slow);
    for args in [
        &["check", "--connect"][..],
        &["list"],
        &["call", "mcp_slow_any"],
    ] {
        let ran = place.run(args).await;
        assert_eq!(ran.waits, "waiting for slow ...\n", "{args:?}: {ran:?}");
    }
}
