//! `list`: what the configured servers, one of them or a URL offer.

use insta::assert_snapshot;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{ALIKE, LIBRARY, Place, SCRIPT, TOOLBOX, TWO_SERVERS};

#[tokio::test]
async fn tools_are_listed_under_exposed_names() {
    let place = Place::new(TWO_SERVERS);
    let ran = place.run(&["list"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let names: Vec<&str> = ran
        .stdout
        .lines()
        .filter_map(|row| row.split('\t').next())
        .collect();
    assert!(names.contains(&"mcp_script_repeat"), "{names:?}");
    assert!(names.contains(&"mcp_toolbox_current_time"), "{names:?}");
}

#[tokio::test]
async fn one_server_has_its_own_names() {
    let place = Place::new(TWO_SERVERS);
    let ran = place.run(&["list", "tools", "--server", "script"]).await;
    assert_snapshot!(ran.all(), @r#"
    NAME→SERVER→DESCRIPTION
    hang→script→Never answers.
    repeat→script→Repeats its arguments.
    fail→script→
    refuse→script→
    steer→script→Moves the \u001b[2Jcursor.
    --- stderr
    --- code 0
    "#);
    assert_snapshot!(place.run(&["list", "prompts", "--server", "script"]).await.all(), @"
    NAME→SERVER→DESCRIPTION
    greet→script→Greeting
    --- stderr
    --- code 0
    ");
    assert_snapshot!(place.run(&["list", "--server", "scrypt"]).await.all(), @"
    --- stderr
    unknown server `scrypt`; did you mean `script`?
    --- code 2
    ");
}

#[tokio::test]
async fn items_are_printed_as_they_came() {
    let place = Place::new(SCRIPT);
    let ran = place.run(&["list", "--json", "--server", "script"]).await;
    assert_eq!(ran.json()[1]["name"], "repeat");
    assert!(ran.stdout.contains(r#""x-vendor":1.0e2}"#), "{ran:?}");
    let none = place.run(&["list", "resources", "--json"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(0), "[]\n"));
}

#[tokio::test]
async fn templates_are_resources() {
    let place = Place::new(LIBRARY);
    let ran = place.run(&["list", "resources", "--json"]).await;
    let items = ran.json();
    let items = items.as_array().expect("an array");
    assert_eq!(items.len(), 2, "{ran:?}");
    assert!(items.iter().any(|item| item["uri"].is_string()), "{ran:?}");
    let rows = place.run(&["list", "resources"]).await.stdout;
    assert_eq!(rows.lines().skip(1).count(), items.len());
    assert!(
        rows.lines()
            .skip(1)
            .all(|row| row.split('\t').nth(1) == Some("library")),
        "{rows}"
    );
}

#[tokio::test]
async fn what_a_broken_server_has_is_missing() {
    let place = Place::new(
        r#"
        [servers.toolbox]
        transport = "builtin"
        tools = { allow = ["echo"] }
        [servers.missing]
        command = "/nonexistent/server"
        [servers.off]
        url = "http://127.0.0.1:1/mcp"
        enabled = false
        "#,
    );
    let ran = place.run(&["list"]).await;
    assert_snapshot!(ran.all(), @"
    NAME→SERVER→DESCRIPTION
    mcp_toolbox_echo→toolbox→Gives a text back as it came, to try the connection.
    --- stderr
    server `missing` is not connected: cannot start `/nonexistent/server`: No such file or directory (os error 2)
    --- code 1
    ");
    assert_snapshot!(place.run(&["list", "servers"]).await.all(), @"
    SERVER→STATE→TRANSPORT→REVISION→TOOLS→RESOURCES→PROMPTS→REASON
    toolbox→connected→builtin→2026-07-28→1→0→0→
    missing→failed→stdio→→→→→cannot start `/nonexistent/server`: No such file or directory (os error 2)
    off→disabled→auto→→→→→
    --- stderr
    --- code 0
    ");
    let servers = place.run(&["list", "servers", "--json"]).await.json();
    assert_eq!(servers[1]["state"], "failed");
    assert_eq!(servers[2]["state"], "disabled");
}

/// Variables that no gateway needs are needed by who asks a disabled server all the same.
#[tokio::test]
async fn a_disabled_server_that_is_asked_needs_its_variables() {
    let place = Place::new(&format!(
        "{TOOLBOX}[servers.off]\nenabled = false\ncommand = \"sh\"\nenv = {{ KEY = \"${{NO_SUCH_KEY}}\" }}\n"
    ));
    assert_eq!(place.run(&["list"]).await.code, Some(0));
    let lines = [
        ["list", "--server", "off"].as_slice(),
        &["call", "--server", "off", "tool"],
        &["check", "--connect", "off"],
    ];
    for line in lines {
        let ran = place.run(line).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("NO_SUCH_KEY"), "{ran:?}");
    }
}

/// The rest is listed when the time is over.
#[tokio::test]
async fn a_server_that_takes_long_is_missing() {
    let slow = "[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"exec sleep 60\"]\n";
    let place = Place::new(&format!(
        "{TOOLBOX}tools = {{ allow = [\"echo\"] }}\n{slow}"
    ));
    let ran = place.run(&["list", "--wait", "500ms"]).await;
    assert_snapshot!(ran.all(), @"
    NAME→SERVER→DESCRIPTION
    mcp_toolbox_echo→toolbox→Gives a text back as it came, to try the connection.
    --- stderr
    not all servers were listed within 500ms (--wait)
    server `slow` is not connected: no response yet
    --- code 1
    ");
    let wrong = place.run(&["list", "--wait", "soon"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

/// What is missing since names collide is named, and fails unless the config asks for it.
#[tokio::test]
async fn what_shares_a_name_is_missing() {
    let listed = async |conflict: &str, args: &[&str]| {
        let place = Place::new(&format!("{ALIKE}conflict = \"{conflict}\"\n"));
        place.run(&[&["list"], args].concat()).await
    };
    assert_snapshot!(listed("error", &["tools"]).await.all(), @"
    --- stderr
    one: tools: `echo` has the same exposed name `echo` as two; not listed
    two: tools: `echo` has the same exposed name `echo` as one; not listed
    --- code 1
    ");
    assert_snapshot!(listed("priority", &["tools"]).await.all(), @"
    NAME→SERVER→DESCRIPTION
    echo→one→Gives a text back as it came, to try the connection.
    --- stderr
    two: tools: `echo` has the same exposed name `echo` as one; not listed; one keeps the name
    --- code 0
    ");
    // With a hash behind it each has a name.
    for (conflict, args) in [
        ("namespace", &["tools"][..]),
        ("error", &["tools", "--server", "one"]),
        ("error", &["resources"]),
    ] {
        let ran = listed(conflict, args).await;
        let said = (ran.code, ran.stderr.as_str());
        assert_eq!(said, (Some(0), ""), "{conflict} {args:?}: {ran:?}");
    }
}

/// Of items that are missing so many are named; the rest is counted.
#[tokio::test]
async fn more_that_is_missing_is_counted() {
    for (servers, named, more) in [
        (100, 100, None),
        (101, 100, Some("... and 1 more")),
        (99, 99, None),
    ] {
        let section = |at| {
            format!("[servers.s{at}]\ntransport = \"builtin\"\ntools = {{ allow = [\"echo\"] }}\n")
        };
        let sections: String = (0..servers).map(section).collect();
        let alike = "[naming]\ntemplate = \"{tool}\"\nconflict = \"error\"\n";
        let place = Place::new(&format!("{sections}{alike}"));
        let ran = place.run(&["list", "--wait", "60s"]).await;
        let (lines, others): (Vec<_>, Vec<_>) = ran
            .stderr
            .lines()
            .partition(|line| line.contains("`echo` has the same exposed name"));
        assert_eq!((lines.len(), others.first().copied()), (named, more));
        assert_eq!(ran.code, Some(1), "{servers}");
    }
}

/// One server that can be listed is enough; those that are switched off do not count.
#[tokio::test]
async fn servers_that_all_failed_are_a_failure() {
    let missing = "[servers.missing]\ncommand = \"/nonexistent/server\"\n";
    let off = "[servers.off]\nenabled = false\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let check = async |config: &str, code: i32| {
        let place = Place::new(config);
        for args in [&["list", "servers"][..], &["list", "servers", "--json"]] {
            let ran = place.run(args).await;
            assert_eq!(ran.code, Some(code), "{config}: {ran:?}");
            assert_eq!(ran.stdout.contains("failed"), config.contains("missing"));
        }
    };
    check(&format!("{missing}{off}"), 1).await;
    check(off, 0).await;
    check(&format!("{TOOLBOX}{missing}"), 0).await;
    let help = Place::new("").run(&["list", "--help"]).await.stdout;
    assert!(help.contains("when every enabled server failed"), "{help}");
}

#[tokio::test]
async fn a_url_needs_a_scheme() {
    let place = Place::new("");
    assert_snapshot!(place.run(&["list", "--url", "localhost:8080/mcp"]).await.all(), @"
    --- stderr
    --url localhost:8080/mcp: missing scheme; did you mean `http://localhost:8080/mcp`?
    --- code 2
    ");
}

#[tokio::test]
async fn a_url_is_asked() {
    let place = Place::new(TWO_SERVERS);
    let serving = place.serve().await;
    let url = serving.mcp();
    let elsewhere = Place::new("this is no config");
    let ran = elsewhere.run(&["list", "--url", &url]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(
        ran.stdout
            .contains("mcp_script_repeat\t127.0.0.1\tRepeats its arguments.\n"),
        "{ran:?}"
    );
    let items = elsewhere.run(&["list", "--url", &url, "--json"]).await;
    assert!(items.stdout.contains(r#""x-vendor":1.0e2}"#), "{items:?}");
    let bare = url.trim_end_matches("/mcp");
    let servers = elsewhere.run(&["list", "servers", "--url", bare]).await;
    assert!(
        servers
            .stdout
            .contains("\n127.0.0.1\tconnected\thttp\t2026-07-28\t10\t"),
        "{servers:?}"
    );
}

/// A server that no profile needs, and that takes for ever.
const READING: &str = r#"
    [servers.script]
    command = "sh"
    args = ["server.sh"]
    tags = ["mine"]
    [servers.slow]
    command = "sh"
    args = ["-c", "exec sleep 600"]
    startup_timeout = "10m"
    [profiles.reading]
    tools = ["script/repeat", "script/fail"]
    tags = ["mine"]
    rename = { mcp_script_repeat = "again" }
"#;

/// A profile is asked here and in a gateway, under its own names; what it does not show is nobody's
/// concern.
#[tokio::test]
async fn a_profile_is_asked() {
    let place = Place::new(READING);
    let serving = place.serve().await;
    let (bare, url) = (serving.url.clone(), serving.mcp());
    let elsewhere = Place::new("");
    for (place, target) in [
        (&place, &[][..]),
        (&elsewhere, &["--url", &bare]),
        (&elsewhere, &["--url", &url]),
    ] {
        let run = async |args: &[&str]| {
            let profile = ["--profile", "reading"].as_slice();
            place.run(&[args, profile, target].concat()).await
        };
        let ran = run(&["list"]).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let names = ran.stdout.lines().skip(1).map(|row| row.split('\t').next());
        let names: Vec<_> = names.map(Option::unwrap_or_default).collect();
        assert_eq!(names, ["again", "mcp_script_fail"], "{target:?}");
        let ran = run(&["call", "again", "--json", "--arg", "a=1"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.json()["structuredContent"]["a"], 1, "{ran:?}");
        let ran = run(&["call", "mcp_script_hang"]).await;
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("unknown tool"), "{ran:?}");
    }
    let servers = place
        .run(&["list", "servers", "--profile", "reading"])
        .await;
    assert_snapshot!(servers.all(), @"
    SERVER→STATE→TRANSPORT→REVISION→TOOLS→RESOURCES→PROMPTS→REASON
    script→connected→stdio→2025-11-25→2→0→1→
    --- stderr
    --- code 0
    ");
}

#[tokio::test]
async fn a_profile_must_be_one() {
    let place = Place::new(READING);
    let check = async |args: &[&str], expect: &str| {
        let ran = place.run(&[&["list"], args].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains(expect), "{ran:?}");
    };
    check(&["--profile", "readin"], "did you mean `reading`?").await;
    let both = ["--profile", "reading", "--server", "script"];
    check(&both, "cannot be used with").await;
    let other = [
        "--profile",
        "a",
        "--url",
        "http://127.0.0.1:1/mcp/servers/x",
    ];
    check(&other, "does not end in `/mcp` or `/sse`").await;
    let odd = ["--profile", "a/b", "--url", "http://127.0.0.1:1"];
    check(&odd, "unknown profile").await;
}

/// A server that gives all but one of its lists is there: what it has is shown, and said is what it lacks.
#[tokio::test]
async fn a_server_that_is_degraded_is_not_missing() {
    let place = Place::new(SCRIPT);
    let server = include_str!("server.sh");
    let list = r#"say '"result":{"prompts":[{"name":"greet","title":"Greeting"}]}' ;;"#;
    let refusal = r#"say '"error":{"code":-32603,"message":"the disk is full"}' ;;"#;
    assert!(server.contains(list));
    std::fs::write(place.file("server.sh"), server.replace(list, refusal)).expect("written");
    let said = "server `script` is degraded: prompts/list failed: ";
    let tools = place.run(&["list"]).await;
    assert_eq!(tools.code, Some(0), "{tools:?}");
    assert!(tools.stdout.contains("mcp_script_repeat"), "{tools:?}");
    assert!(tools.stderr.starts_with(said), "{tools:?}");
    let prompts = place.run(&["list", "prompts"]).await;
    assert_eq!(prompts.code, Some(1), "{prompts:?}");
    assert!(prompts.stderr.starts_with(said), "{prompts:?}");
    let unknown = place.run(&["call", "mcp_script_none"]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    let servers = place.run(&["list", "servers"]).await;
    assert_eq!(servers.code, Some(0), "{servers:?}");
    let row = "script\tdegraded\tstdio\t2025-11-25\t5\t0\t\tprompts/list failed: ";
    assert!(servers.stdout.contains(row), "{servers:?}");
    let checked = place.run(&["check", "--connect"]).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let row = "script\tdegraded\t2025-11-25\t\t5\t0\t\tprompts/list failed: ";
    assert!(checked.stdout.contains(row), "{checked:?}");
    assert!(!checked.all().contains("not connected"), "{checked:?}");
    let found = place.run(&["check", "--connect", "--json"]).await.json();
    let server = &found["servers"][0];
    assert_eq!(
        (&server["state"], &server["tools"]),
        (&"degraded".into(), &5.into())
    );
}

#[tokio::test]
async fn a_key_is_sent_and_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let seen = async {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut head).await.expect("a request"), 0);
        }
        let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).await.expect("it is read");
        String::from_utf8_lossy(&head).to_lowercase()
    };
    let place = Place::new("");
    let args = ["list", "--url", &url, "--key-file", "-"];
    let (ran, head) = tokio::join!(place.run_with(" s3cret\n", &args), seen);
    assert!(
        head.contains("\r\nauthorization: bearer s3cret\r\n"),
        "{head}"
    );
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("HTTP 401 Unauthorized"), "{ran:?}");
    assert!(ran.stderr.contains("use --key-file FILE"), "{ran:?}");
    assert!(!ran.all().contains("s3cret"));
}

#[tokio::test]
async fn a_key_must_be_one() {
    let place = Place::new("");
    let url = ["list", "--url", "http://127.0.0.1:1/mcp", "--key-file"];
    let with = |file: &'static str| [url.as_slice(), &[file]].concat();
    assert_snapshot!(place.run_with("a b", &with("-")).await.all(), @"
    --- stderr
    stdin has no token: expected one line of printable characters
    --- code 2
    ");
    assert_snapshot!(place.run(&with("gone")).await.all(), @"
    --- stderr
    the key in gone: No such file or directory (os error 2)
    --- code 2
    ");
    let unreachable = place.run_with("key", &with("-")).await;
    assert_snapshot!(unreachable.all(), @"
    --- stderr
    server `127.0.0.1` is not connected: no connection: Connection refused (os error 111)
    --- code 1
    ");
    assert_snapshot!(place.run(&["list", "--url", "ftp://x/"]).await.all(), @r#"
    --- stderr
    error: `servers.x.url` is not valid
     --> --url:1:24
      |
    1 | {"servers":{"x":{"url":"ftp://x/"}}}
      |                        ^^^^^^^^^^ only `http:`, `https:`, `ws:` and `wss:` are supported
      |
      = help: for example "https://mcp.example.com/mcp"

    1 error
    --- code 2
    "#);
}
