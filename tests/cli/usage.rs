//! Wrong usage, completions, and readers that do not read to the end.

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{Place, SCRIPT, TOOLBOX, bounded};

#[tokio::test]
async fn wrong_usage_is_told_apart_from_failure() {
    let place = Place::new(TOOLBOX);
    let check = async |args: &[&str], code: i32, expect: &str| {
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(expect), "{args:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    };
    check(&[], 2, "Usage: tollbridge").await;
    check(&["lst"], 2, "a similar subcommand exists: 'list'").await;
    check(&["list", "toolz"], 2, "a similar value exists: 'tools'").await;
    check(
        &["list", "--url", "http://a/", "--config", "b.toml"],
        2,
        "cannot be used with",
    )
    .await;
    check(
        &["list", "--url", "http://a/", "--server", "b"],
        2,
        "cannot be used with",
    )
    .await;
    let socket = ["list", "--url", "unix:/run/a.sock"];
    check(&socket, 2, "Unix sockets are not supported").await;
    check(&["call"], 2, "<TOOL>").await;
    check(&["completions", "dos"], 2, "bash").await;
    let address = "expected an IP address, `:` and a port, such as";
    for (written, meant) in [
        ("here", "127.0.0.1:8080"),
        ("gateway:1", "127.0.0.1:1"),
        ("*:9000", "0.0.0.0:9000"),
        ("[::]:http", "[::]:8080"),
        ("9000", "127.0.0.1:9000"),
    ] {
        let expect = format!("{address} {meant}");
        check(&["serve", "--listen", written], 2, &expect).await;
    }
    check(&["serve", "--listen", "0.0.0.0:0"], 2, "refusing to listen").await;
    for level in ["loud", "banana=", "loud=very", ""] {
        for args in [&["serve"][..], &["list"], &["check", "--connect"]] {
            let args = [args, &["--log-level", level]].concat();
            check(&args, 2, "not a log level or filter").await;
        }
    }
    let meant = "(did you mean `info`?); levels are error, warn, info";
    check(&["serve", "--log-level", "inof"], 2, meant).await;
    check(
        &["stdio", "--server", "tolbox"],
        2,
        "did you mean `toolbox`?",
    )
    .await;
    check(
        &["stdio", "--profile", "reading"],
        2,
        "unknown profile `reading`; the config has none",
    )
    .await;
    check(
        &["stdio", "--profile", "reading", "--server", "toolbox"],
        2,
        "cannot be used with",
    )
    .await;
}

/// A variable that says nothing is ignored, which is said; what would hold without it does.
#[tokio::test]
async fn a_wrong_filter_in_the_environment_is_ignored() {
    let place = Place::new(TOOLBOX);
    let ended = async |filter: &str| {
        let serving = place.serve_with(&[("RUST_LOG", filter)]).await;
        serving.end(Signal::TERM).await
    };
    let said = "clients connect to";
    for filter in ["loud", "banana="] {
        let ended = ended(filter).await;
        let warning = format!("warning: RUST_LOG is ignored: `{filter}` is not a log level");
        assert!(ended.stderr.starts_with(&warning), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
    let right = ended("warn").await;
    assert!(!right.stderr.contains(said), "{right:?}");
    let empty = ended("").await;
    assert!(empty.stderr.contains(said), "{empty:?}");
    assert!(!empty.stderr.contains("RUST_LOG"), "{empty:?}");
}

/// Who sets a budget is told of every window that `budget show` names.
#[tokio::test]
async fn help_on_budgets_has_every_window() {
    let place = Place::new(TOOLBOX);
    for command in [["budget", "set"], ["agents", "add"], ["agents", "set"]] {
        let [first, second] = command;
        let ran = place.run(&[first, second, "--help"]).await;
        for window in ["AMOUNT/day", "AMOUNT/month", "AMOUNT/total"] {
            assert!(ran.stdout.contains(window), "{command:?}: {ran:?}");
        }
    }
}

#[tokio::test]
async fn shells_complete() {
    let place = Place::new("");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = place.run(&["completions", shell]).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.stdout.contains("tollbridge"), "{shell}: {ran:?}");
        assert!(ran.stdout.contains("key-file"), "{shell}: {ran:?}");
    }
    let bash = place.run(&["completions", "bash"]).await.stdout;
    for (path, is_offered) in [
        ("agents,add)", true),
        ("help,agents)", true),
        ("help__subcmd__agents,add)", true),
        // That `help` knows nothing of.
        ("help__subcmd__agents,help)", false),
    ] {
        let offered = bash.contains(&format!("__subcmd__{path}"));
        assert_eq!(offered, is_offered, "{path}: {bash}");
    }
}

#[tokio::test]
async fn a_reader_may_stop_reading() {
    let place = Place::new(SCRIPT);
    for args in [
        &["schema"][..],
        &["check"],
        &["check", "--json"],
        &["list"],
        &["list", "--json"],
        &["call", "mcp_script_repeat"],
        &["completions", "bash"],
    ] {
        let mut child = place.command(args).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = bounded(child.wait_with_output()).await.expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    }
}

/// Unlike a reader who has seen enough, a full disk is told of.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn output_that_cannot_be_written_is_told_of() {
    let place = Place::new(SCRIPT);
    for args in [&["schema"][..], &["check"], &["list", "--json"]] {
        let mut command = place.command(args);
        let full = std::fs::File::create("/dev/full").expect("it opens");
        let child = command.stdout(full).spawn().expect("it starts");
        let output = bounded(child.wait_with_output()).await.expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        let expect = "cannot write the output: No space left on device";
        assert!(said.contains(expect), "{args:?}: {said}");
    }
}

#[tokio::test]
async fn help_says_what_there_is() {
    let place = Place::new("");
    assert_snapshot!(place.run(&["--help"]).await.stdout, @"
    One URL in front of every MCP server

    Usage: tollbridge <COMMAND>

    Commands:
      agents       Manage agents
      audit        Query, export and verify the audit log
      budget       Show, set and reset budgets
      call         Call a tool
      check        Validate the config, and with --connect the servers
      completions  Print a shell completion script
      config       Print the config in one file
      doctor       Find out why something does not work
      keys         Create, list and revoke API keys
      list         List servers, tools, resources or prompts
      login        Sign in to a server in a browser
      logout       Give up what a server granted
      login-code   Print a one-time code with which a person signs in as an agent
      policy       Explain effective policies
      profile      Show profiles, and change those of the store
      schema       Print the JSON Schema of the config
      secret       Set, list and remove secrets that the config refers to as `${secret:NAME}`
      serve        Run the gateway over HTTP
      server       Show servers, and change those of the store
      sign-ins     List and revoke what people granted to OAuth clients
      stdio        Run the gateway for one client on stdin and stdout
      ui           Print a link that opens the dashboard
      view         Show views of the catalog, and make, change and end them for agents
      workspace    Show workspaces, and change those of the store
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version
    ");
}

/// What is written as it is for other programs is answered with what does the same here.
#[tokio::test]
async fn command_lines_of_other_programs_get_a_tip() {
    let place = Place::new("");
    for (args, tip) in [
        (&["serve", "tollbridge.toml"][..], "use `--config FILE`"),
        (&["serve", "--port", "80"], "use `--listen ADDRESS:PORT`"),
        (&["serve", "--port=80"], "use `--listen ADDRESS:PORT`"),
        (&["init"], "tollbridge serve --config FILE"),
        (&["add", "docs"], "tollbridge server add"),
        (&["logs"], "tollbridge audit"),
        (&["status"], "tollbridge list servers"),
        (&["-c", "a.toml", "serve"], "after the last subcommand"),
        (
            &["audit", "-c", "a.toml", "verify"],
            "after the last subcommand",
        ),
        (&["lst"], "a similar subcommand exists: 'list'"),
    ] {
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(
            ran.stderr.contains("tip: ") && ran.stderr.contains(tip),
            "{ran:?}"
        );
    }
}
