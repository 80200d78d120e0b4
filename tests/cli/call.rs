//! `call`: arguments, results, and what comes before them.

use std::time::Duration;

use insta::assert_snapshot;
use tokio::time::{Instant, sleep};

use crate::support::{ALIKE, Place, SCRIPT, TOOLBOX, TWO_SERVERS, gone, pids, send, until};

#[tokio::test]
async fn the_schema_decides_what_an_argument_is() {
    let place = Place::new(SCRIPT);
    let args = [
        "call",
        "mcp_script_repeat",
        "--json",
        "--arg",
        "text=5",
        "--arg",
        "n=1e3",
    ];
    assert_snapshot!(place.run(&args).await.all(), @r#"
    {"resultType":"complete","content":[],"structuredContent":{"text":"5","n":1e3},"x-vendor":1.0e2}
    --- stderr
    progress 1/2: half
    warning script: careful
    --- code 0
    "#);
}

#[tokio::test]
async fn arguments_may_be_an_object() {
    let place = Place::new(SCRIPT);
    let own = ["call", "repeat", "--server", "script"];
    let with = |more: &'static str| [own.as_slice(), &[more]].concat();
    assert_snapshot!(place.run(&with(r#"{"a" : [1e3]}"#)).await.all(), @r#"
    {"a" : [1e3]}
    --- stderr
    progress 1/2: half
    warning script: careful
    --- code 0
    "#);
    let piped = place.run_with(r#"{"b":1}"#, &with("-")).await;
    assert_eq!(piped.stdout, "{\"b\":1}\n", "{piped:?}");
    let none = place.run(&own).await;
    assert_eq!(none.stdout, "{}\n", "{none:?}");
}

#[tokio::test]
async fn wrong_arguments_are_wrong_usage() {
    let place = Place::new(SCRIPT);
    let check = async |args: &[&str], expect: &str| {
        let ran = place.run(&[&["call", "repeat"], args].concat()).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(expect), "{ran:?}");
        assert_eq!(ran.stdout, "");
    };
    check(&["[1]"], "the arguments are not a JSON object").await;
    check(&["{"], "the arguments are not JSON: EOF").await;
    check(&["--arg", "x"], "--arg x: expected NAME=VALUE").await;
    check(&["--arg", "x=1", "--arg", "x=2"], "--arg x is given twice").await;
    check(&["{}", "--arg", "x=1"], "cannot be used with").await;
    check(
        &["-", "--url", "http://127.0.0.1:1", "--key-file", "-"],
        "cannot both come from stdin",
    )
    .await;
    check(&["--key-file", "x"], "--url").await;
    check(
        &["--server", "nobody"],
        "unknown server `nobody`; these are: script",
    )
    .await;
}

#[tokio::test]
async fn failures_fail() {
    let place = Place::new(SCRIPT);
    assert_snapshot!(place.run(&["call", "mcp_script_fail"]).await.all(), @"
    it went wrong
    --- stderr
    --- code 1
    ");
    // An older server's result has no `resultType`.
    let help = place.run(&["call", "--help"]).await.stdout;
    assert!(
        help.contains("as a 2026-07-28 client receives it"),
        "{help}"
    );
    assert_snapshot!(place.run(&["call", "mcp_script_fail", "--json"]).await.all(), @r#"
    {"resultType":"complete","content":[{"type":"text","text":"it went wrong"}],"isError":true}
    --- stderr
    --- code 1
    "#);
    assert_snapshot!(place.run(&["call", "mcp_script_refuse"]).await.all(), @"
    --- stderr
    not today (-32050)
    --- code 1
    ");
    assert_snapshot!(place.run(&["call", "mcp_script_refuse", "--json"]).await.all(), @r#"
    {"error":{"code":-32050,"message":"not today","data":{"x":1.0}}}
    --- stderr
    --- code 1
    "#);
}

#[tokio::test]
async fn unknown_tools_have_neighbours() {
    let place = Place::new(TWO_SERVERS);
    assert_snapshot!(place.run(&["call", "reapet"]).await.all(), @"
    --- stderr
    unknown tool `reapet`; did you mean `mcp_script_repeat`?
    --- code 2
    ");
    assert_snapshot!(place.run(&["call", "teleport"]).await.all(), @"
    --- stderr
    unknown tool `teleport`
    --- code 2
    ");
}

#[tokio::test]
async fn a_tool_may_be_that_of_a_server_that_is_down() {
    let place = Place::new("[servers.missing]\ncommand = \"/nonexistent/server\"\n");
    assert_snapshot!(place.run(&["call", "mcp_missing_read"]).await.all(), @"
    --- stderr
    server `missing` is not connected: cannot start `/nonexistent/server`: No such file or directory (os error 2)
    --- code 1
    ");
}

/// What matters to the answer is waited for, and nothing else, and no longer than `--wait` says.
#[tokio::test]
async fn a_call_waits_for_the_servers_of_its_tool_only() {
    let others = "[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"exec sleep 600\"]\n\
                  startup_timeout = \"10m\"\n[servers.missing]\ncommand = \"/nonexistent/server\"\n";
    let place = Place::new(&format!("{TOOLBOX}{others}"));
    assert_snapshot!(place.run(&["call", "mcp_missing_read"]).await.all(), @"
    --- stderr
    server `missing` is not connected: cannot start `/nonexistent/server`: No such file or directory (os error 2)
    --- code 1
    ");
    assert_snapshot!(place.run(&["call", "mcp_toolbox_curvert_time"]).await.all(), @"
    --- stderr
    unknown tool `mcp_toolbox_curvert_time`; did you mean `mcp_toolbox_convert_time` or `mcp_toolbox_current_time`?
    --- code 2
    ");
    let ran = place
        .run(&["call", "mcp_slow_read", "--wait", "2500ms"])
        .await;
    assert_eq!(ran.waits, "waiting for slow ...\n");
    assert_snapshot!(ran.all(), @"
    --- stderr
    not all servers were listed within 2s 500ms (--wait)
    server `slow` is not connected: no response yet
    --- code 1
    ");
    assert_snapshot!(place.run(&["call", "hsah", "--wait", "2s"]).await.all(), @"
    --- stderr
    not all servers were listed within 2s (--wait)
    server `slow` is not connected: no response yet
    server `missing` is not connected: cannot start `/nonexistent/server`: No such file or directory (os error 2)
    no connected server has a tool `hsah`; did you mean `mcp_toolbox_hash`?
    --- code 1
    ");
}

/// Whose a name is that several servers may have is known once all of them are listed: it is not that of
/// whoever was first.
#[tokio::test]
async fn a_name_that_is_shared_is_nobodys() {
    let place = Place::new(&format!("{ALIKE}conflict = \"error\"\n"));
    for _ in 0..5 {
        let called = place.run(&["call", "echo"]).await;
        assert_eq!(called.code, Some(2), "{called:?}");
        assert!(called.stderr.contains("unknown tool `echo`"), "{called:?}");
    }
}

#[tokio::test]
async fn content_is_printed_plainly() {
    let place = Place::new(TWO_SERVERS);
    let ran = place.run(&["call", "mcp_script_steer"]).await;
    assert_eq!(ran.stdout, "\u{1b}[2Jgone\n[image image/png]\n", "{ran:?}");
    let args = [
        "call",
        "mcp_toolbox_hash",
        "--arg",
        "text=1",
        "--server",
        "toolbox",
    ];
    let unknown = place.run(&args).await;
    assert_eq!(unknown.code, Some(2), "--server has own names: {unknown:?}");
    let args = ["call", "hash", "--arg", "text=1", "--server", "toolbox"];
    let hashed = place.run(&args).await;
    assert_eq!(hashed.code, Some(0), "{hashed:?}");
    assert!(hashed.stdout.contains("6b86b273ff34"), "{hashed:?}");
}

#[tokio::test]
async fn a_url_is_called() {
    let place = Place::new(TWO_SERVERS);
    let serving = place.serve().await;
    let elsewhere = Place::new(TOOLBOX);
    let url = serving.mcp();
    let args = [
        "call",
        "mcp_script_repeat",
        "--url",
        &url,
        "--json",
        "--arg",
        "text=5",
    ];
    assert_snapshot!(elsewhere.run(&args).await.all(), @r#"
    {"resultType":"complete","content":[],"structuredContent":{"text":"5"},"x-vendor":1.0e2}
    --- stderr
    progress 1/2: half
    warning script: careful
    --- code 0
    "#);
}

#[tokio::test]
async fn unknown_tools_of_a_url_have_neighbours() {
    let place = Place::new(TWO_SERVERS);
    let serving = place.serve().await;
    let url = serving.mcp();
    for written in ["reapet", "mcp_script_reapet"] {
        let ran = place.run(&["call", written, "--url", &url]).await;
        let expect = format!("unknown tool `{written}`; did you mean `mcp_script_repeat`");
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.starts_with(&expect), "{ran:?}");
    }
}

#[tokio::test]
async fn an_interrupted_call_leaves_nothing_behind() {
    let place = Place::new(SCRIPT);
    let mut child = place
        .command(&["call", "mcp_script_hang"])
        .spawn()
        .expect("it starts");
    let hanging = place.file("hanging");
    until(|| hanging.exists().then_some(())).await;
    let pids = pids(&place).await;
    send(&child, rustix::process::Signal::INT);
    let status = crate::support::bounded(child.wait())
        .await
        .expect("it ends");
    assert_eq!(status.code(), Some(130));
    gone(&pids).await;
}

/// Whoever has no time to wait for servers that take theirs interrupts once more.
#[tokio::test]
async fn a_second_interruption_waits_for_nobody() {
    let place = Place::new(SCRIPT);
    let script = format!("trap '' TERM\n{}sleep 60\n", include_str!("server.sh"));
    std::fs::write(place.file("server.sh"), script).expect("written");
    let mut child = place
        .command(&["call", "mcp_script_hang"])
        .spawn()
        .expect("it starts");
    let hanging = place.file("hanging");
    until(|| hanging.exists().then_some(())).await;
    let pids = pids(&place).await;
    send(&child, rustix::process::Signal::INT);
    sleep(Duration::from_millis(300)).await;
    let again = Instant::now();
    send(&child, rustix::process::Signal::INT);
    let status = crate::support::bounded(child.wait())
        .await
        .expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert!(again.elapsed() < Duration::from_secs(1), "{again:?}");
    gone(&pids).await;
}

/// Also where the gateway lasts only as long as the command, a server may say something at its end.
#[tokio::test]
async fn a_server_may_write_while_it_stops() {
    for args in [
        ["call", "mcp_script_repeat"].as_slice(),
        &["list"],
        &["check", "--connect"],
    ] {
        let place = Place::new(SCRIPT);
        let script = format!(
            "{}sleep 0.1\ntell message '{{\"data\":\"bye\"}}'\n: > said\n",
            include_str!("server.sh")
        );
        std::fs::write(place.file("server.sh"), script).expect("written");
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        assert!(place.file("said").exists(), "{args:?}: {ran:?}");
    }
}
