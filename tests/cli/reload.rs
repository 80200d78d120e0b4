//! `serve` and `stdio` take a changed config while they run, when they are told with SIGHUP.

use std::{fs, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    time::Instant,
};

use crate::support::{Place, TOOLBOX, bounded, finish, send, until};

const MORE: &str = r#"
    [servers.more]
    transport = "builtin"
    tags = ["more"]
"#;

/// A config that lost its governance is taken, and it is said what that means.
#[tokio::test]
async fn a_gateway_that_asks_for_no_keys_any_longer_says_so() {
    let place = Place::new(&format!("{TOOLBOX}\n[governance]\nauth = \"keys\"\n"));
    let mut serving = place.serve().await;
    let write = |text: &str| fs::write(place.file("tollbridge.toml"), text).expect("written");
    // A file that was cut off between two sections.
    write(TOOLBOX);
    serving.says("which would turn authentication off").await;
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert!(listed.all().contains("401"), "{listed:?}");
    write(&format!("{TOOLBOX}\n[governance]\nauth = \"anonymous\"\n"));
    serving.says("clients may come without a credential").await;
    serving.end(Signal::TERM).await;
    fs::remove_file(place.file("data/tollbridge.db")).expect("removed");
    let lost = "the audit log has records but tollbridge.db is missing or empty";
    let mut serving = place.serve().await;
    serving.says(lost).await;
    serving.end(Signal::TERM).await;
    let again = place.serve().await.end(Signal::TERM).await;
    assert!(!again.stderr.contains(lost), "{again:?}");
}

/// Who writes a file may empty it first: what is empty is not taken for a config, unless it was the
/// config all along.
#[tokio::test]
async fn an_emptied_file_is_refused() {
    let place = Place::new("\n");
    let mut serving = place.serve().await;
    let write = |text: &str| fs::write(place.file("tollbridge.toml"), text).expect("written");
    send(&serving.child, Signal::HUP);
    serving.says("config reloaded: no changes").await;
    write(TOOLBOX);
    serving
        .says("config reloaded: servers added: toolbox")
        .await;
    for empty in ["", " \r\n\t\n"] {
        write(empty);
        serving.says("tollbridge.toml is empty").await;
        send(&serving.child, Signal::HUP);
        serving.says("tollbridge.toml is empty").await;
    }
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert!(listed.stdout.contains("mcp_toolbox_"), "{listed:?}");
    write("# Nothing for today.\n");
    serving
        .says("the config has no servers, which would take away `toolbox`")
        .await;
    serving.end(Signal::TERM).await;
}

/// A config that leaves nothing to serve is most likely not meant: one without servers, and that of a client
/// which was connected to the gateway that reads it.
#[tokio::test]
async fn a_reload_that_takes_all_servers_away_is_refused() {
    let place = Place::new(&format!("{TOOLBOX}{MORE}"));
    let mut serving = place.serve().await;
    let write = |text: &str| fs::write(place.file("tollbridge.toml"), text).expect("written");
    let client = format!("[servers.tollbridge]\nurl = \"{}\"\n", serving.mcp());
    for (text, expect) in [
        (
            "# None.\n",
            "the config has no servers, which would take away `toolbox`, `more`",
        ),
        (
            &*client,
            "the config has no servers but this gateway itself, which would take away `toolbox`, `more`",
        ),
    ] {
        write(text);
        send(&serving.child, Signal::HUP);
        serving.says(expect).await;
        let listed = place.run(&["list", "--url", &serving.mcp()]).await;
        assert!(listed.stdout.contains("mcp_toolbox_"), "{listed:?}");
    }
    // Another server in their place is enough, and so is one that is switched off.
    write(&format!("{client}{MORE}enabled = false\n"));
    send(&serving.child, Signal::HUP);
    serving.says("config reloaded: ").await;
    serving.end(Signal::TERM).await;
    write("# None.\n");
    let mut serving = place.serve().await;
    serving.says("no servers are configured").await;
    serving.end(Signal::TERM).await;
}

/// Each line of a report is a line of the log.
#[tokio::test]
async fn warnings_of_a_reload_have_lines_of_their_own() {
    let place = Place::new("");
    let text = |key: &str| {
        format!(
            "{{ \"mcpServers\": {{ \"script\": {{ \"command\": \"sh\", \"args\": [\"server.sh\"]{key} }} }} }}"
        )
    };
    place.write_private("client.json", &text(""));
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--config",
        "client.json",
    ];
    let mut serving = Place::serve_as(place.command(&arguments)).await;
    place.write_private("client.json", &text(", \"surprise\": 1"));
    send(&serving.child, Signal::HUP);
    let first = serving.says("surprise").await;
    let rest = serving.says("config reloaded").await;
    for line in [first, rest, serving.end(Signal::TERM).await.stderr] {
        assert!(!line.contains("\\n"), "{line}");
    }
}

/// Servers that are switched off and on are stopped and started, not started anew.
#[tokio::test]
async fn what_became_of_servers_is_said() {
    let config = |keys: &str| format!("{TOOLBOX}{keys}{MORE}");
    let place = Place::new(&config(""));
    let mut serving = place.serve().await;
    for (keys, fate) in [
        ("enabled = false\n", "stopped: toolbox (enabled)"),
        (
            "enabled = false\nroots = []\ntimeout = \"7s\"\n",
            "changed while disabled: toolbox (roots, timeout)",
        ),
        (
            "roots = []\ntimeout = \"8s\"\n",
            "started: toolbox (enabled, timeout)",
        ),
        ("timeout = \"8s\"\n", "restarted: toolbox (roots)"),
        ("", "reconfigured without restart: toolbox (timeout)"),
    ] {
        fs::write(place.file("tollbridge.toml"), config(keys)).expect("written");
        send(&serving.child, Signal::HUP);
        serving
            .says(&format!("config reloaded: servers {fate}"))
            .await;
    }
    serving.end(Signal::TERM).await;
}

/// Also one that a refused config names, which may be all that is wrong with it.
#[tokio::test]
async fn files_of_variables_are_followed() {
    let place = Place::new(TOOLBOX);
    let mut serving = place.serve().await;
    let write = |file: &str, text: &str| fs::write(place.file(file), text).expect("written");
    let program = "[servers.x]\ncommand = \"cat\"\nenv_file = \".env\"\n";
    write("tollbridge.toml", &format!("{TOOLBOX}{program}"));
    serving
        .says("cannot read the file of `servers.x.env_file`")
        .await;
    write(".env", "A=1\n");
    serving.says("config reloaded: servers added: x").await;
    write(".env", "A=2\n");
    serving
        .says("config reloaded: servers restarted: x (env)")
        .await;
    write(".env", "A='\n");
    serving
        .says("cannot read the file of `servers.x.env_file`")
        .await;
    write(".env", "");
    serving
        .says(".env is empty, possibly because it is being written")
        .await;
    write(".env", "A=3\n");
    serving
        .says("config reloaded: servers restarted: x (env)")
        .await;
    write("tollbridge.toml", TOOLBOX);
    serving.says("config reloaded: servers removed: x").await;
    serving.end(Signal::TERM).await;
}

/// A file that is half written mostly is shorter than before: it is taken once it has stayed so for a while,
/// or who wrote it says that it is whole.
#[tokio::test]
async fn a_file_that_became_shorter_may_not_be_whole() {
    const HALF: &str = "[governance]\nauth = \"keys\"\n[agents.ann]\n";
    const WHOLE: &str = "policy = { mode = \"allowlist\" }\n";
    let place = Place::new(&format!("{TOOLBOX}{HALF}{WHOLE}"));
    let mut serving = place.serve().await;
    let write = |text: &str| fs::write(place.file("tollbridge.toml"), text).expect("written");
    write(&format!("{TOOLBOX}{HALF}"));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    write(&format!("{TOOLBOX}{HALF}{WHOLE}admin = true\n"));
    // Nothing was taken before.
    let told = serving.says("config reloaded").await;
    assert!(told.contains("agents changed: ann (role)"), "{told}");
    let start = Instant::now();
    write(&format!("{TOOLBOX}{HALF}"));
    let told = serving.says("config reloaded").await;
    assert!(told.contains("ann (policy, role)"), "{told}");
    let (by_itself, start) = (start.elapsed(), Instant::now());
    write(&format!("{TOOLBOX}[governance]\nauth = \"keys\"\n"));
    send(&serving.child, Signal::HUP);
    let told = serving.says("config reloaded").await;
    assert!(told.contains("agents removed: ann"), "{told}");
    assert!(start.elapsed() < by_itself, "{by_itself:?}");
    serving.end(Signal::TERM).await;
}

/// What is decrypted into a pipe is there once: nobody reads it before the config is read, nor again.
#[tokio::test]
async fn a_config_comes_out_of_a_pipe_once() {
    let place = Place::new(TOOLBOX);
    let made = finish(place.shell("mkfifo pipe.toml")).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut writer = place.shell("cat tollbridge.toml > pipe.toml");
    let mut writer = writer.spawn().expect("it starts");
    let config = ["serve", "--listen", "127.0.0.1:0", "--config", "pipe.toml"];
    let mut serving = Place::serve_as(place.command(&config)).await;
    bounded(writer.wait()).await.expect("it is read");
    for _ in 0..2 {
        send(&serving.child, Signal::HUP);
        serving.says("was read from a pipe; restart").await;
        serving.says("config reloaded: no changes").await;
    }
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert!(listed.stdout.contains("mcp_toolbox_"), "{listed:?}");
    serving.end(Signal::TERM).await;
}

/// A certificate that was renewed is taken while the gateway runs, and the log says so.
#[tokio::test]
async fn a_renewed_certificate_is_said_to_be_taken() {
    let place = Place::new(&format!(
        "{TOOLBOX}\n[tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n"
    ));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let made = made.expect("a certificate");
        fs::write(place.file("cert.pem"), made.cert.pem()).expect("written");
        let key = made.signing_key.serialize_pem();
        place.write_private("key.pem", &key);
    };
    renew();
    let mut serving = place.serve().await;
    renew();
    send(&serving.child, Signal::HUP);
    serving
        .says("config reloaded: certificate reloaded: tls")
        .await;
    send(&serving.child, Signal::HUP);
    serving.says("config reloaded: no changes").await;
    fs::write(place.file("cert.pem"), "").expect("written");
    serving
        .says("the file of `tls.cert` contains no PEM certificate")
        .await;
    renew();
    serving
        .says("config reloaded: certificate reloaded: tls")
        .await;
    // Those of a refused config are followed as well: they may be all that is wrong with it.
    let moved = "[tls]\ncert = \"cert.pem\"\nkey = \"moved.pem\"\n";
    fs::write(place.file("tollbridge.toml"), format!("{TOOLBOX}\n{moved}")).expect("written");
    serving.says("the file of `tls.key` does not exist").await;
    fs::copy(place.file("key.pem"), place.file("moved.pem")).expect("copied");
    serving
        .says("changed keys that require a restart: tls.key")
        .await;
    // The key in use is that of before, and followed on.
    renew();
    serving
        .says("config reloaded: certificate reloaded: tls")
        .await;
    serving.end(Signal::TERM).await;
    for (key, line) in [("cert", 2), ("client_ca", 4)] {
        place.write_private(
            "tollbridge.toml",
            "[tls]\ncert = 'cert.pem'\nkey = 'key.pem'\nclient_ca = 'ca.pem'\n",
        );
        for file in ["cert.pem", "ca.pem"] {
            fs::write(place.file(file), "-----BEGIN CERTIFICATE-----\n").expect("written");
        }
        fs::write(
            place.file(if key == "cert" { "cert.pem" } else { "ca.pem" }),
            "garbage\n",
        )
        .expect("written");
        let refused = place.run(&["check"]).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let why = format!("the file of `tls.{key}` contains no PEM certificate");
        let at = format!("--> tollbridge.toml:{line}:");
        assert!(
            refused.stderr.contains(&why) && refused.stderr.contains(&at),
            "{refused:?}"
        );
    }
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_hangup_reads_the_config_again() {
    let place = Place::new(TOOLBOX);
    let serving = place.serve().await;
    let pid = serving.child.id().expect("it runs");
    let tools = async || {
        let listed = place
            .run(&["list", "--url", &serving.mcp(), "--json"])
            .await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed.stdout
    };
    assert!(!tools().await.contains("mcp_more_"));
    let mut before = 0;
    for round in 0..5 {
        let more = format!("{TOOLBOX}{MORE}    priority = {round}\n");
        fs::write(place.file("tollbridge.toml"), more).expect("written");
        send(&serving.child, Signal::HUP);
        bounded(async { while !tools().await.contains("mcp_more_") {} }).await;
        fs::write(place.file("tollbridge.toml"), TOOLBOX).expect("written");
        send(&serving.child, Signal::HUP);
        bounded(async { while tools().await.contains("mcp_more_") {} }).await;
        if round == 0 {
            before = descriptors(pid);
        }
    }
    // Connections of clients come and go.
    until(|| (descriptors(pid) <= before + 2).then_some(())).await;
    let ended = serving.end(Signal::INT).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = "config reloaded: servers added: more";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[tokio::test]
async fn a_mistake_is_reported_and_changes_nothing() {
    let place = Place::new(TOOLBOX);
    let mut serving = place.serve().await;
    let mistake = "[servers.more]\ncomand = \"x\"\n";
    fs::write(place.file("tollbridge.toml"), mistake).expect("written");
    send(&serving.child, Signal::HUP);
    serving
        .says("config reload rejected, keeping the current config")
        .await;
    serving.says("comand").await;
    let listed = place.run(&["list", "--url", &serving.mcp()]).await;
    assert!(listed.stdout.contains("mcp_toolbox_"), "{listed:?}");
    let mended = format!("{TOOLBOX}{MORE}");
    fs::write(place.file("tollbridge.toml"), mended).expect("written");
    send(&serving.child, Signal::HUP);
    serving.says("config reloaded: servers added: more").await;
    let ended = serving.end(Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[tokio::test]
async fn stdio_reads_the_config_again() {
    let place = Place::new(TOOLBOX);
    let mut command = place.command(&["stdio"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    let stdout = child.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(stdout).lines();
    let mut heard = async |what: &str| {
        while let Some(line) = lines.next_line().await.expect("it is text") {
            if line.contains(what) {
                return line;
            }
        }
        panic!("it ended without {what}");
    };
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
"#;
    input.write_all(hello.as_bytes()).await.expect("it reads");
    bounded(heard("mcp_toolbox_")).await;
    let more = format!("{TOOLBOX}{MORE}");
    fs::write(place.file("tollbridge.toml"), more).expect("written");
    send(&child, Signal::HUP);
    let list = "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\"}\n";
    // The first listing may be told of as well, before what the changed config brings.
    bounded(async {
        loop {
            heard("notifications/tools/list_changed").await;
            input.write_all(list.as_bytes()).await.expect("it reads");
            if heard("\"id\":3").await.contains("mcp_more_") {
                return;
            }
        }
    })
    .await;
    drop(input);
    let status = bounded(child.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(0));
}
