//! `serve` and its children: none outlives it, however it ends.

use std::{
    net::Shutdown,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use tokio::{
    io::AsyncWriteExt,
    process::Child,
    time::{Instant, sleep},
};
use tollbridge::launcher::{self, LaunchSpec};

use crate::support::{Place, SCRIPT, TOOLBOX, bounded, gone, pids, pids_in, runs, send, until};

#[tokio::test]
async fn signals_end_it_with_its_children() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new(SCRIPT);
        let serving = place.serve().await;
        let listed = place.run(&["list", "--url", &serving.mcp()]).await;
        assert!(listed.stdout.contains("mcp_script_hang"), "{listed:?}");
        let pids = pids(&place).await;
        assert!(
            pids.len() == 2 && pids.iter().all(|pid| runs(*pid)),
            "{pids:?}"
        );
        let ended = serving.end(signal).await;
        assert_eq!(ended.code, Some(0), "{signal:?}: {ended:?}");
        assert!(!pids.iter().any(|pid| runs(*pid)), "{signal:?}: {pids:?}");
    }
}

/// A call that takes longer than the drain is cut off; with a second signal nothing is waited for but its
/// record, which says that it was cut off and not that the gateway crashed; unless that is the first one once
/// more, as some send it to a process and to its group.
#[tokio::test]
async fn a_stop_that_cuts_a_call_off_says_so_and_leaves_no_children() {
    let check = async |drain_timeout: &str, after: Option<Duration>, at_once: bool| {
        let place = Place::new(&format!("drain_timeout = \"{drain_timeout}\"\n{SCRIPT}"));
        let mut serving = place.serve().await;
        let (url, hanging) = (serving.mcp(), place.file("hanging"));
        let args = ["call", "mcp_script_hang", "--url", &url];
        let call = place.command(&args).spawn().expect("it starts");
        until(|| hanging.exists().then_some(())).await;
        let pids = pids(&place).await;
        if let Some(after) = after {
            // Two of one kind may become one on the way.
            send(&serving.child, Signal::TERM);
            if after > Duration::ZERO {
                serving.says("stopping; waiting up to").await;
            }
            sleep(after).await;
        }
        let ended = serving.end(Signal::INT).await;
        assert_eq!(ended.code, Some(3), "{after:?}: {ended:?}");
        let called = bounded(call.wait_with_output()).await.expect("it ends");
        let words = if at_once {
            "stopping immediately"
        } else {
            "drain timed out (`drain_timeout`); cutting off running calls calls=1"
        };
        assert!(ended.stderr.contains(words), "{after:?}: {ended:?}");
        let last = ended.stderr.trim_end().ends_with("stopped cut_off=1");
        assert!(last, "{after:?}: {ended:?}");
        let recorded = place.run(&["audit", "--json"]).await.stdout;
        let is_crash = recorded.contains("crashed") || recorded.contains("interrupted");
        assert!(!is_crash, "{after:?}: {recorded}");
        if !at_once {
            let said = String::from_utf8_lossy(&called.stderr);
            assert!(said.contains(CUT_OFF), "{called:?}");
        }
        gone(&pids).await;
    };
    check("50ms", None, false).await;
    check("500ms", Some(Duration::ZERO), false).await;
    check("1h", Some(Duration::from_millis(200)), true).await;
}

/// What a client is told whose call was cut off.
const CUT_OFF: &str = "the gateway stopped before the server responded";

/// So is a call over stdio that a signal cuts off, and answered one whose client has closed its input,
/// in both eras.
#[tokio::test]
async fn a_call_over_stdio_that_is_cut_off_is_answered() {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    for (is_modern, by_signal) in [(false, false), (false, true), (true, false), (true, true)] {
        let place = Place::new(&format!("drain_timeout = \"50ms\"\n{SCRIPT}"));
        let mut command = place.command(&["stdio"]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut input = child.stdin.take().expect("it is piped");
        let (hello, meta) = if is_modern {
            ("", format!(",{meta}"))
        } else {
            (INITIALIZE, String::new())
        };
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"mcp_script_hang"{meta}}}}}"#
        );
        let sent = format!("{hello}{call}\n");
        input.write_all(sent.as_bytes()).await.expect("it is read");
        let hanging = place.file("hanging");
        until(|| hanging.exists().then_some(())).await;
        if by_signal {
            send(&child, Signal::TERM);
        } else {
            drop(input);
        }
        let output = bounded(child.wait_with_output()).await.expect("it ends");
        let answers = String::from_utf8_lossy(&output.stdout);
        let answer = answers.lines().find(|line| line.contains(r#""id":7"#));
        let told = if by_signal {
            CUT_OFF
        } else {
            "the session ended"
        };
        let is_told = answer.is_some_and(|answer| answer.contains(told));
        assert!(is_told, "{is_modern} {by_signal}: {output:?}");
        assert_eq!(output.status.code(), Some(3), "{is_modern} {by_signal}");
    }
}

/// A last message that only the end of the input ends is answered too.
#[tokio::test]
async fn a_last_line_without_its_end_is_a_message() {
    let place = Place::new(SCRIPT);
    let mut command = place.command(&["stdio"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    let ping = format!(r#"{INITIALIZE}{{"jsonrpc":"2.0","id":7,"method":"ping"}}"#);
    input.write_all(ping.as_bytes()).await.expect("it is read");
    drop(input);
    let output = bounded(child.wait_with_output()).await.expect("it ends");
    let answers = String::from_utf8_lossy(&output.stdout);
    let is_answered = answers.lines().any(|line| line.contains(r#""id":7"#));
    assert!(is_answered && output.status.success(), "{output:?}");
}

pub(crate) const INITIALIZE: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"test\",\"version\":\"1\"}}}\n";

#[tokio::test]
async fn a_kill_leaves_no_children() {
    let place = Place::new(SCRIPT);
    let mut serving = place.serve().await;
    let pids = pids(&place).await;
    assert!(pids.iter().all(|pid| runs(*pid)), "{pids:?}");
    bounded(serving.child.kill()).await.expect("it is killed");
    gone(&pids).await;
}

/// Nor does one of a command that looks, calls or serves one client, whatever it waits for.
#[tokio::test]
async fn a_kill_of_any_command_leaves_no_children() {
    // Its child does not read, and so does not see that its input has ended.
    let mute = "[servers.script]\ncommand = \"sh\"\nargs = [\"-c\", \"sleep 1000 & echo $$$$ $$! > pids; wait\"]\n\
                era = \"legacy\"\n";
    for (config, args) in [
        (mute, &["list", "--wait", "1h"][..]),
        (mute, &["check", "--connect"]),
        (mute, &["call", "mcp_script_hang", "--wait", "1h"]),
        (SCRIPT, &["call", "mcp_script_hang"]),
        (mute, &["stdio"]),
        (SCRIPT, &["stdio"]),
    ] {
        let place = Place::new(config);
        let mut command = place.command(args);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let _input = child.stdin.take();
        let pids = pids(&place).await;
        if config == SCRIPT && args[0] == "call" {
            let hanging = place.file("hanging");
            until(|| hanging.exists().then_some(())).await;
        }
        assert!(pids.iter().all(|pid| runs(*pid)), "{args:?}: {pids:?}");
        bounded(child.kill()).await.expect("it is killed");
        gone(&pids).await;
    }
}

/// However many there are: a second later none is left, and the next start finds nothing in its way.
#[tokio::test]
async fn a_kill_leaves_none_of_many_children() {
    let servers = (0..20).map(|n| {
        // Each in a directory of its own, for its pids.
        format!(
            "[servers.s{n}]\ncommand = \"sh\"\nargs = [\"-c\", \"mkdir -p {n} && cd {n} && exec sh \
             ../server.sh\"]\nera = \"legacy\"\n"
        )
    });
    let place = Place::new(&servers.collect::<String>());
    let mut serving = place.serve().await;
    let mut all = Vec::new();
    for n in 0..20 {
        let file = place.file(&format!("{n}/pids"));
        all.extend(pids_in(&file).await);
    }
    assert_eq!(all.len(), 40);
    assert!(all.iter().all(|pid| runs(*pid)), "{all:?}");
    let start = Instant::now();
    bounded(serving.child.kill()).await.expect("it is killed");
    gone(&all).await;
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");

    let serving = place.serve().await;
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert!(listed.stdout.contains("mcp_s19_repeat"), "{listed:?}");
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
}

/// Its launcher may be the first that is killed: its program does not go on without it, and is started
/// again.
#[tokio::test]
async fn a_program_does_not_outlive_its_launcher() {
    let place = Place::new(SCRIPT);
    let serving = place.serve().await;
    let first = pids(&place).await;
    let gateway = serving.child.id().expect("it runs");
    let launchers = children_of(gateway);
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    signal(launchers[0], Signal::KILL);
    gone(&first).await;
    let again = until(|| {
        let text = std::fs::read_to_string(place.file("pids")).ok()?;
        let pids = text.strip_suffix('\n')?.split(' ');
        let pids: Vec<u32> = pids.filter_map(|pid| pid.parse().ok()).collect();
        (pids != first).then_some(pids)
    })
    .await;
    assert!(again.iter().all(|pid| runs(*pid)), "{again:?}");
    serving.end(Signal::INT).await;
}

/// A launcher that was stopped, where the system lets programs do that, does not keep them.
#[tokio::test]
async fn a_program_ends_although_its_launcher_is_stopped() {
    let place = Place::new(
        r#"
        [servers.script]
        command = "sh"
        args = ["-c", "setsid sleep 1000 & echo $! > stray; exec sh server.sh"]
        idle_timeout = "1s"
        "#,
    );
    let serving = place.serve().await;
    let strays = pids_in(&place.file("stray")).await;
    let gateway = serving.child.id().expect("it runs");
    let launchers = children_of(gateway);
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    signal(launchers[0], Signal::STOP);
    gone(&pids(&place).await).await;
    gone(&strays).await;
    until(|| children_of(gateway).is_empty().then_some(())).await;
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.cast_signed()).expect("a pid");
    kill_process(process, signal).expect("it can be sent");
}

/// A launcher that is told of `spec` over the socket.
fn launch(place: &Place, ours: &UnixStream, theirs: UnixStream, spec: &LaunchSpec) -> Child {
    let mut command = place.command(&[launcher::LAUNCHER_ARG]);
    command
        .arg0(launcher::PROCESS_NAME)
        .stdin(OwnedFd::from(theirs));
    let launcher = command.spawn().expect("it starts");
    let (input, _) = std::io::pipe().expect("a pipe");
    launcher::send(ours, spec, Some(input.as_fd())).expect("it listens");
    launcher
}

fn shell(place: &Place, script: &str) -> LaunchSpec {
    LaunchSpec {
        program: "sh".into(),
        args: vec!["-c".into(), script.into()],
        inherited: std::env::vars_os().collect(),
        env: Vec::new(),
        cwd: Some(place.file("").into()),
        user: None,
        hidden: Vec::new(),
    }
}

/// A gateway that is gone before it hears what became of a start leaves nothing of it.
#[tokio::test]
async fn a_gateway_that_ends_during_a_start_leaves_nothing() {
    let place = Place::new("");
    let spec = shell(
        &place,
        "setsid sleep 1000 & echo $! > stray; exec sleep 1000",
    );
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    // Whatever the launcher reports is refused.
    ours.shutdown(Shutdown::Read).expect("it is open");
    let mut launcher = launch(&place, &ours, theirs, &spec);
    let strays = pids_in(&place.file("stray")).await;
    assert!(runs(strays[0]), "{strays:?}");
    drop(ours);
    gone(&strays).await;
    bounded(launcher.wait()).await.expect("it ends");
}

/// Nor does one that gives up a start that hangs, as on a dead mount.
#[tokio::test]
async fn a_start_that_hangs_is_given_up() {
    let place = Place::new("");
    std::fs::create_dir(place.file("d")).expect("made");
    let mut spec = shell(&place, "exec sleep 1000");
    // So much to look up that there is time to stop it.
    let long = place.file(&"d/../".repeat(790)).into_os_string();
    spec.hidden = vec![long; 500];
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let mut launcher = launch(&place, &ours, theirs, &spec);
    let reaper = launcher.id().expect("it runs");
    let begins = |process: &u32| {
        let command = std::fs::read_to_string(format!("/proc/{process}/cmdline"));
        command.is_ok_and(|command| command.contains("exec\0"))
    };
    let hanging = until(|| children_of(reaper).into_iter().find(begins)).await;
    signal(hanging, Signal::STOP);
    assert!(begins(&hanging), "it runs the program already");
    drop(ours);
    gone(&[hanging]).await;
    bounded(launcher.wait()).await.expect("it ends");
}

/// A program has no signal blocked and SIGPIPE not ignored, so that it can end as it likes to.
#[tokio::test]
async fn programs_get_their_signals() {
    // No program of these resets its mask by itself, as some shells do.
    let place = Place::new(
        r#"
        [servers.status]
        command = "cp"
        args = ["/proc/self/status", "status"]
        [servers.graceful]
        command = "bash"
        args = ["-c", "trap 'echo > ended; exit' TERM; echo > begun; sleep 1000 & wait"]
        "#,
    );
    let serving = place.serve().await;
    let status = until(|| {
        let status = std::fs::read_to_string(place.file("status")).ok();
        status.filter(|status| status.contains("SigCgt"))
    })
    .await;
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.expect("it is there").trim(), 16).expect("a number")
    };
    assert_eq!(mask("SigBlk:"), 0, "{status}");
    let pipe = 1 << (Signal::PIPE.as_raw() - 1);
    assert_eq!(mask("SigIgn:") & pipe, 0, "{status}");
    until(|| place.file("begun").exists().then_some(())).await;
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
    assert!(place.file("ended").exists(), "it was not asked to end");
}

/// The child processes of a gateway, those included that nobody waited for.
fn children_of(gateway: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{gateway}/task"));
    let lists = tasks.into_iter().flatten().filter_map(|task| {
        let children = task.ok()?.path().join("children");
        std::fs::read_to_string(children).ok()
    });
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|pids| pids.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// A program that sleeps and wakes many times leaves nothing behind: no child, no descriptor.
#[tokio::test]
async fn sleeping_and_waking_leaks_nothing() {
    const CYCLES: usize = 12;
    let place = Place::new(&format!("{SCRIPT}    idle_timeout = \"50ms\"\n"));
    let serving = place.serve().await;
    let gateway = serving.child.id().expect("it runs");
    let mcp = serving.mcp();
    let call = ["call", "mcp_script_fail", "--url", &mcp];
    let mut starts = std::collections::BTreeSet::new();
    let mut before = None;
    for cycle in 0..CYCLES {
        let called = place.run(&call).await;
        assert!(called.all().contains("it went wrong"), "{called:?}");
        let pids = pids(&place).await;
        gone(&pids).await;
        starts.extend(pids);
        // Nothing is left, and no zombie.
        until(|| children_of(gateway).is_empty().then_some(())).await;
        if cycle == 1 {
            before = Some(descriptors_of(gateway));
        }
    }
    let before = before.expect("there were more cycles");
    assert_eq!(starts.len(), 2 * CYCLES, "each start is another process");
    // Connections of clients may take a moment to close.
    until(|| (descriptors_of(gateway) <= before).then_some(())).await;
    serving.end(Signal::INT).await;
}

/// Nor does a server that ends while others are served leave what it parted with, as daemons do.
#[tokio::test]
async fn what_left_the_group_of_a_server_ends_with_it() {
    let place = Place::new(
        r#"
        [servers.script]
        command = "sh"
        args = ["-c", "setsid sleep 1000 & echo $! > stray; exec sh server.sh"]
        idle_timeout = "50ms"
        [servers.other]
        command = "sh"
        args = ["-c", "mkdir other; cp server.sh other; cd other; setsid sleep 1000 & echo $! > stray; exec sh server.sh"]
        "#,
    );
    let serving = place.serve().await;
    let strays = pids_in(&place.file("stray")).await;
    gone(&pids(&place).await).await;
    gone(&strays).await;
    let others = pids_in(&place.file("other/stray")).await;
    assert!(others.iter().all(|pid| runs(*pid)), "{others:?}");
    serving.end(Signal::INT).await;
    gone(&others).await;
}

/// Nor what has left its session, its parents and its environment behind, whoever ends it.
#[tokio::test]
async fn daemons_end_with_their_server() {
    const DAEMONS: usize = 30;
    let config = r#"
        [servers.script]
        command = "sh"
        args = ["-c", "for n in $(seq 30); do (env -i setsid sh -c 'echo $$$$ >> daemons; exec sleep 1000' &); done; exec sh server.sh"]
    "#;
    for by_kill in [false, true] {
        let place = Place::new(config);
        let mut serving = place.serve().await;
        let daemons = until(|| {
            let text = std::fs::read_to_string(place.file("daemons")).ok()?;
            let pids: Vec<u32> = text.lines().filter_map(|pid| pid.parse().ok()).collect();
            (pids.len() == DAEMONS).then_some(pids)
        })
        .await;
        assert!(daemons.iter().all(|pid| runs(*pid)), "{daemons:?}");
        if by_kill {
            bounded(serving.child.kill()).await.expect("it is killed");
        } else {
            let ended = serving.end(Signal::TERM).await;
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(!daemons.iter().any(|pid| runs(*pid)), "{daemons:?}");
        }
        gone(&daemons).await;
    }
}

fn descriptors_of(process: u32) -> usize {
    // Without root nobody sees those of a gateway.
    let open = std::fs::read_dir(format!("/proc/{process}/fd"));
    open.map_or(0, Iterator::count)
}

/// The log shows what a program wrote in place of messages, and no more digits than people read.
#[tokio::test]
async fn a_failed_start_is_logged_for_people() {
    let place = Place::new(
        "log.level = \"debug\"\n[servers.odd]\ncommand = \"sh\"\nargs = [\"-c\", \"echo usage: odd; echo >> starts; exit 3\"]\n\
         era = \"legacy\"\nretry = { base = \"123456us\", max = \"1s\" }\n",
    );
    let serving = place.serve().await;
    let starts = || std::fs::read_to_string(place.file("starts")).ok();
    until(|| starts().filter(|starts| starts.lines().count() > 1)).await;
    let said = serving.end(Signal::INT).await.stderr;
    assert!(
        said.contains("on stdout, not a message: `usage: odd`"),
        "{said}"
    );
    let delay = regex::Regex::new(r"retry_in=[0-9]+0ms\b").expect("a regex");
    assert!(delay.is_match(&said), "{said}");
}

#[tokio::test]
async fn only_our_own_lines_are_logged() {
    let place = Place::new(TOOLBOX);
    let serving = place.serve().await;
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let said = serving.end(Signal::INT).await.stderr;
    assert!(
        said.contains("INFO clients connect to http://127.0.0.1:"),
        "{said}"
    );
    for other in ["serve_inner", "WARN", "\u{1b}"] {
        assert!(!said.contains(other), "{said}");
    }
}

/// Shells and service managers begin with few open files and allow more; what they do not allow, or
/// gave already, stays.
#[tokio::test]
async fn as_many_files_are_open_as_may_be() {
    let place = Place::new(TOOLBOX);
    let most = getrlimit(Resource::Nofile).maximum;
    let raised = most.map_or(32_768, |most| most.min(32_768));
    for (limits, expect) in [
        ("ulimit -Sn 300", Some(raised)),
        ("ulimit -n 400", Some(400)),
        ("ulimit -Sn 300; ulimit -Hn 500", Some(500)),
        ("ulimit -Sn $(ulimit -Hn)", most),
    ] {
        let serve = "serve --listen 127.0.0.1:0";
        let binary = env!("CARGO_BIN_EXE_tollbridge");
        let command = place.shell(&format!("{limits} && exec '{binary}' {serve}"));
        let serving = Place::serve_as(command).await;
        let pid = Pid::from_raw(serving.child.id().unwrap().cast_signed());
        let lower = Rlimit {
            current: Some(300),
            maximum: Some(400),
        };
        let found = prlimit(pid, Resource::Nofile, lower).unwrap().current;
        assert_eq!(found, expect, "{limits}");
        let ended = serving.end(Signal::TERM).await;
        assert_eq!(ended.code, Some(0), "{limits}: {ended:?}");
    }
}
