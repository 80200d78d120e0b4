//! Values that stand outside of the config, and where they must not appear.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rustix::process::Signal;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{Place, Ran, Terminal, bounded, finish, until};

const KEY: &str = "the-key-of-all-secrets-0123456789abcdef";

/// Two programs, of which one has a secret and the other has none; each notes its starts.
const PROGRAMS: &str = r#"
    [servers.uses]
    command = "sh"
    args = ["-c", "echo \"$TOKEN\" >> starts.uses; exec sh server.sh"]
    env = { TOKEN = "${secret:team/token}" }
    [servers.other]
    command = "sh"
    args = ["-c", "echo started >> starts.other; exec sh server.sh"]
"#;

async fn set(place: &Place, name: &str, value: &str) -> Ran {
    let ran = place.run_with(value, &["secret", "set", name]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

fn starts(place: &Place, server: &str) -> Vec<String> {
    let text = fs::read_to_string(place.file(&format!("starts.{server}"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn secrets_are_set_listed_and_removed() {
    let place = Place::new(PROGRAMS);
    let missing = place.run(&["check"]).await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    for words in [
        "no secret `team/token`",
        "tollbridge.toml:5",
        "tollbridge secret set team/token",
    ] {
        assert!(missing.stderr.contains(words), "{words}: {missing:?}");
    }
    let listed = place.run(&["secret", "list", "--json"]).await;
    let used_by = ["servers.uses.env.TOKEN"];
    let expect =
        json!([{"name": "team/token", "created": null, "changed": null, "used_by": used_by}]);
    assert_eq!(listed.json(), expect);

    set(&place, "team/token", "first\n").await;
    let again = set(&place, "team/token", "hunter2\n").await;
    assert_eq!(again.stdout, "secret `team/token` changed\n");
    set(&place, "unused", "x").await;
    assert_eq!(place.run(&["check"]).await.code, Some(0));
    let listed = place.run(&["secret", "list"]).await;
    assert!(listed.stdout.contains("team/token"), "{listed:?}");
    assert!(
        listed.stdout.contains("servers.uses.env.TOKEN"),
        "{listed:?}"
    );
    assert!(!listed.all().contains("hunter2"), "{listed:?}");

    let unknown = place.run(&["secret", "remove", "team/tokn"]).await;
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.stderr.contains("team/token"), "{unknown:?}");
    let removed = place.run(&["secret", "remove", "team/token"]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert!(
        removed
            .stderr
            .contains("`servers.uses.env.TOKEN` of the config still uses it")
    );
    assert_eq!(place.run(&["check"]).await.code, Some(2));
    let audit = place.run(&["audit", "events", "--json"]).await;
    let audit = audit.all();
    for detail in ["set", "changed", "removed"] {
        let expect = format!("\"detail\":\"{detail}\"");
        assert!(
            audit.replace(' ', "").contains(&expect),
            "{detail}: {audit}"
        );
    }
    assert!(
        !audit.contains("hunter2") && audit.contains("secret_changed"),
        "{audit}"
    );
}

#[tokio::test]
async fn values_that_cannot_be_are_refused() {
    let place = Place::new(PROGRAMS);
    for (name, value, why) in [
        ("a b", "x", "names of secrets"),
        ("a", "", "the value is empty"),
        ("a", "\n", "the value is empty"),
        ("a", "x\0y", "NUL"),
        ("a", &"x".repeat((64 << 10) + 1), "at most 65536 bytes"),
    ] {
        let ran = place.run_with(value, &["secret", "set", name]).await;
        assert_eq!(ran.code, Some(2), "{why}: {ran:?}");
        assert!(ran.stderr.contains(why), "{why}: {ran:?}");
    }
    set(&place, "a", &"x".repeat(64 << 10)).await;
}

/// What is typed is not shown, and the terminal shows what is typed afterwards.
#[tokio::test]
async fn a_value_that_is_typed_is_not_shown() {
    let place = Place::new("");
    let terminal = Terminal::new();
    let mut command = place.command(&["secret", "set", "typed"]);
    command.stdin(terminal.end()).stderr(terminal.end());
    let mut child = command.spawn().expect("it starts");
    drop(command);
    terminal.types_hidden("hunter3\x7f2\r").await;
    let (text, code) = tokio::join!(terminal.text(), bounded(child.wait()));
    assert_eq!(code.expect("it ends").code(), Some(0), "{text}");
    assert!(text.contains("value of `typed` (not shown): "), "{text}");
    assert!(!text.contains("hunter"), "{text}");
}

#[tokio::test]
async fn a_changed_secret_restarts_the_servers_that_use_it() {
    let place = Place::new(PROGRAMS);
    set(&place, "team/token", "first\n").await;
    let mut serving = place.serve().await;
    until(|| (starts(&place, "uses").len() == 1).then_some(())).await;
    until(|| (starts(&place, "other").len() == 1).then_some(())).await;
    set(&place, "team/token", "second\n").await;
    serving.says("servers restarted: uses (env)").await;
    until(|| (starts(&place, "uses") == ["first", "second"]).then_some(())).await;
    // One that goes is no reason to stop what runs.
    let removed = place.run(&["secret", "remove", "team/token"]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    serving.says("no secret `team/token`").await;
    set(&place, "team/token", "third\n").await;
    until(|| (starts(&place, "uses").len() == 3).then_some(())).await;
    assert_eq!(starts(&place, "other").len(), 1);
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
}

/// What an entry of a workspace calls `TOKEN` is never the gateway's, nor another workspace's.
#[tokio::test]
async fn a_server_has_the_secrets_of_its_owner_alone() {
    let config = PROGRAMS
        .replace("servers.uses", "servers.\"uses@science\"")
        .replace("team/token", "TOKEN");
    let place = Place::new(&config);
    set(&place, "TOKEN", "of-the-gateway").await;
    set(&place, "TOKEN@arts", "of-arts").await;
    let missing = place.run(&["check"]).await;
    assert_eq!(missing.code, Some(2), "{missing:?}");
    let words = "set it: `tollbridge secret set TOKEN@science`";
    assert!(missing.stderr.contains(words), "{missing:?}");

    set(&place, "TOKEN@science", "of-science").await;
    let listed = place.run(&["secret", "list", "--json"]).await.json();
    let users = listed.as_array().unwrap().iter();
    let users: Vec<(&str, usize)> = users
        .map(|it| {
            (
                it["name"].as_str().unwrap(),
                it["used_by"].as_array().unwrap().len(),
            )
        })
        .collect();
    assert_eq!(
        users,
        [("TOKEN", 0), ("TOKEN@arts", 0), ("TOKEN@science", 1)]
    );
    let add = |name: &'static str, secret: &'static str| {
        [
            "server",
            "add",
            name,
            "url=https://example.com/",
            "auth.type=bearer",
            secret,
        ]
    };
    for (args, words) in [
        (
            add("a@law", "auth.token=${secret:TOKEN}"),
            "no secret `TOKEN@law`",
        ),
        (
            add("a@law", "auth.token=${secret:TOKEN@science}"),
            "a secret with an invalid name",
        ),
        (
            add("a", "auth.token=${secret:TOKEN@science}"),
            "a secret with an invalid name",
        ),
    ] {
        let refused = place.run(&args).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    let exported = place.run(&["config", "export"]).await;
    let words = "#   secret:TOKEN@science\n";
    assert!(exported.stdout.contains(words), "{exported:?}");

    let serving = place.serve().await;
    until(|| (starts(&place, "uses") == ["of-science"]).then_some(())).await;
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
}

#[tokio::test]
async fn a_changed_file_restarts_the_servers_that_use_it() {
    let place = Place::new(&PROGRAMS.replace("secret:team/token", "file:token"));
    place.write_private("token", "first\n");
    let serving = place.serve().await;
    until(|| (starts(&place, "uses").len() == 1).then_some(())).await;
    until(|| (starts(&place, "other").len() == 1).then_some(())).await;
    place.write_private("token", "second");
    until(|| (starts(&place, "uses") == ["first", "second"]).then_some(())).await;
    assert_eq!(starts(&place, "other").len(), 1);
    assert_eq!(serving.end(Signal::TERM).await.code, Some(0));
}

/// With another key nothing is opened, changed or lost.
#[tokio::test]
async fn another_key_changes_nothing() {
    let place = Place::new(PROGRAMS);
    let with_key = async |key: &str, input: &str, args: &[&str]| {
        place.write_private("input", input);
        let script = format!("exec \"$0\" {} < input", args.join(" "));
        let mut command = place.shell(&script);
        command.arg(env!("CARGO_BIN_EXE_tollbridge"));
        command.env("TOLLBRIDGE_SECRET_KEY", key);
        finish(command).await
    };
    let done = with_key(KEY, "hunter2", &["secret", "set", "team/token"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let other = KEY.to_uppercase();
    let why = "is not the one that the secrets in";
    for (key, args) in [
        (&*other, &["secret", "set", "team/token"][..]),
        (&other, &["secret", "set", "new"]),
        (&other, &["check"]),
        (&other, &["secret", "list"]),
        ("", &["check"]),
    ] {
        let ran = with_key(key, "lost", args).await;
        assert_ne!(ran.code, Some(0), "{args:?}: {ran:?}");
        let place = "which stood in the variable TOLLBRIDGE_SECRET_KEY";
        assert!(
            ran.stderr.contains(why) && ran.stderr.contains(place),
            "{args:?}: {ran:?}"
        );
        assert!(!ran.all().contains(&other), "{ran:?}");
    }
    assert_eq!(with_key(KEY, "", &["check"]).await.code, Some(0));
    let elsewhere = "listen = 1\n[secrets]\nkey_file = 'gone.key'\n";
    place.write_private("shown.toml", elsewhere);
    let shown = place.run(&["check", "--config", "shown.toml"]).await;
    assert!(
        shown.stderr.contains("key_file = 'gone.key'"),
        "a path is no secret: {shown:?}"
    );
    let short = with_key("short", "x", &["secret", "set", "a"]).await;
    assert!(short.stderr.contains("has 5 bytes"), "{short:?}");
    // Who has lost the key begins anew.
    let removed = place.run(&["secret", "remove", "team/token"]).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    set(&place, "team/token", "new").await;
    assert_eq!(place.run(&["check"]).await.code, Some(0));
}

/// Whoever lost the key of the store is told so, and finds no other in its place.
#[tokio::test]
async fn a_lost_key_of_the_store_is_not_replaced() {
    let place = Place::new(PROGRAMS);
    set(&place, "team/token", "hunter2").await;
    let key = place.file("data/secret.key");
    let kept = fs::read(&key).expect("it was made");
    fs::remove_file(&key).expect("removed");
    for args in [
        &["secret", "list"][..],
        &["secret", "set", "a"],
        &["check"],
        &["agents", "list"],
        &["serve", "--listen", "127.0.0.1:0"],
    ] {
        let ran = place.run_with("x", args).await;
        assert_ne!(ran.code, Some(0), "{args:?}: {ran:?}");
        assert!(
            ran.stderr.contains("/data/secret.key is missing")
                && ran.stderr.contains("Restore it from the backup"),
            "{args:?}: {ran:?}"
        );
        assert!(!key.exists(), "{args:?}");
    }
    place.write_private("data/secret.key", "");
    fs::write(&key, kept).expect("written");
    assert_eq!(place.run(&["check"]).await.code, Some(0));
}

/// What can be read without the key is listed without it.
#[tokio::test]
async fn secrets_are_listed_without_their_key() {
    let place = Place::new("secrets.key_file = 'key'");
    place.write_private("key", KEY);
    set(&place, "team/token", "hunter2").await;
    let file = place.file("key");
    for (prepare, why) in [
        ("rm key", "cannot be read: No such file"),
        ("cp /dev/null key", "has 0 bytes"),
        ("printf %040d 0 > key", "is not the one that the secrets in"),
        ("chmod 644 key", "mode 0644"),
    ] {
        place.write_private("key", KEY);
        finish(place.shell(prepare)).await;
        let ran = place.run(&["secret", "list"]).await;
        assert_eq!(ran.code, Some(1), "{prepare}: {ran:?}");
        assert!(ran.stdout.contains("team/token"), "{prepare}: {ran:?}");
        assert!(ran.stderr.contains(why), "{prepare}: {ran:?}");
        drop(fs::remove_file(&file));
    }
}

/// A credential comes before a file, a file before a variable.
#[tokio::test]
async fn the_key_is_the_first_that_somebody_set_up() {
    let place = Place::new("");
    place.write_private("file.key", &"f".repeat(40));
    fs::create_dir(place.file("credentials")).expect("made");
    let kept_in = async |config: &str, has_credential: bool, has_variable: bool| {
        place.write_private("tollbridge.toml", config);
        let credential = place.file("credentials/tollbridge-key");
        if has_credential {
            place.write_private("credentials/tollbridge-key", &"c".repeat(40));
        } else {
            drop(fs::remove_file(credential));
        }
        let mut command = place.shell("echo x | \"$0\" secret set a && \"$0\" secret list");
        command.arg(env!("CARGO_BIN_EXE_tollbridge"));
        command.env("CREDENTIALS_DIRECTORY", place.file("credentials"));
        if has_variable {
            command.env("TOLLBRIDGE_SECRET_KEY", KEY);
        }
        let ran = finish(command).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // Without any of them the error says where the right one stood.
        let listed = place
            .run(&["secret", "list", "--config", "plain.toml"])
            .await
            .stderr;
        fs::remove_dir_all(place.file("data")).expect("removed");
        listed
    };
    place.write_private("plain.toml", "");
    let file = "[secrets]\nkey_file = \"file.key\"";
    let found = kept_in(file, true, true).await;
    assert!(found.contains("stood in the systemd credential"), "{found}");
    let found = kept_in(file, false, true).await;
    assert!(found.contains("file.key (`secrets.key_file`)"), "{found}");
    let found = kept_in("", false, true).await;
    assert!(
        found.contains("stood in the variable TOLLBRIDGE_SECRET_KEY"),
        "{found}"
    );
    let found = kept_in("", false, false).await;
    assert_eq!(found, "");
}

/// What is planted: in the store, a file, the output of a command, a variable, and as the key.
const PLANTED: [&str; 5] = [
    "stored-5f3a91",
    "in-file-77c2d0",
    "printed-0b8e44",
    "variable-c91d27",
    KEY,
];
const VARIABLES: [(&str, &str); 2] = [("TOLLBRIDGE_SECRET_KEY", KEY), ("PLANTED", PLANTED[3])];
/// Servers that have all of these, and one that has none.
const WITH_PLANTED: &str = r#"
    [secrets]
    exec = true
    [log]
    level = "trace"
    [servers.uses]
    command = "sh"
    args = ["server.sh"]
    env = { A = "${secret:a}", B = "${file:b}", C = "${exec:cat printed}", D = "${PLANTED}" }
    [servers.far]
    url = "http://127.0.0.1:1/x/${secret:a}"
    auth = { type = "bearer", token = "${file:b}" }
    headers = { X-Secret = "${exec:cat printed}" }
    [servers.other]
    command = "sh"
    args = ["-c", "cat /proc/self/environ > environ.other; exec sh server.sh"]
    inherit_env = ["TOLLBRIDGE_SECRET_KEY"]
"#;

/// The binary, with what is planted in its environment.
async fn run_with_planted(place: &Place, args: &[&str], input: &str) -> Ran {
    place.write_private("input", input);
    let mut command = place.shell(&format!("exec \"$0\" {} < input", args.join(" ")));
    command
        .arg(env!("CARGO_BIN_EXE_tollbridge"))
        .envs(VARIABLES);
    finish(command).await
}

/// A gateway with secrets from everywhere, of which nothing is seen but by the program that each is for.
#[tokio::test]
async fn planted_secrets_are_nowhere() {
    let place = Place::new(WITH_PLANTED);
    place.write_private("b", "in-file-77c2d0\n");
    place.write_private("printed", "printed-0b8e44\n");
    let done = run_with_planted(&place, &["secret", "set", "a"], PLANTED[0]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let serving = place.serve_with(&VARIABLES).await;
    let mcp = serving.mcp();
    let mut seen = Vec::new();
    for args in [
        &["check", "--print"][..],
        &["check", "--print", "--json"],
        &["check", "--connect"],
        &["secret", "list", "--json"],
        &["list", "servers", "--json"],
        &["list", "servers", "--url", &mcp],
        &["call", "--url", &mcp, "mcp_uses_fail"],
        &["call", "--url", &mcp, "mcp_far_nothing"],
    ] {
        let ran = run_with_planted(&place, args, "").await;
        seen.push((args.join(" "), ran.all()));
    }
    let shown = &seen[0].1;
    assert!(shown.contains("uses") && shown.contains("far"), "{shown}");
    for path in ["status", "metrics", "healthz"] {
        seen.push((path.to_owned(), get(&serving.url, path).await));
    }
    let inherited = until(|| text(&place.file("environ.other")).filter(|it| !it.is_empty())).await;
    seen.push(("environment of another program".to_owned(), inherited));
    seen.extend(command_lines());
    let used = children(&place).await;
    for value in &PLANTED[..4] {
        assert!(used.contains(value), "{value} reached no program");
    }
    let ended = serving.end(Signal::TERM).await;
    seen.push(("log".to_owned(), ended.all()));
    seen.extend(files_below(&place.file("data")));
    for (what, text) in &seen {
        for value in PLANTED {
            assert!(!text.contains(value), "{value} in {what}: {text}");
        }
    }
}

/// The environment of the programs whose pids are known: that of `uses` or of `other`.
async fn children(place: &Place) -> String {
    let script = "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done 2> /dev/null";
    finish(place.shell(script)).await.stdout
}

/// What the gateway at `url` says of itself.
async fn get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").expect("no TLS");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it is read");
    let mut answer = String::new();
    bounded(stream.read_to_string(&mut answer))
        .await
        .expect("it is text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

fn command_lines() -> Vec<(String, String)> {
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = processes.map(|process| process.path().join("cmdline"));
    let read = |path: PathBuf| Some((path.display().to_string(), text(&path)?));
    lines.filter_map(read).collect()
}

fn files_below(directory: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("it is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if let Some(text) = text(&path) {
            files.push((path.display().to_string(), text));
        }
    }
    files
}

fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn values_stand_where_they_are_not_shown() {
    let place = Place::new("");
    place.write_private("token", "hunter2\n");
    place.write_private("empty", "\n");
    place.write_private("open", "x");
    let mode = fs::Permissions::from_mode(0o666);
    fs::set_permissions(place.file("open"), mode).expect("changed");
    for (config, why) in [
        ("locality = '${file:token}'", "`locality` is displayed"),
        (
            "secrets.key_file = '${secret:a}'",
            "is read before secrets are",
        ),
    ] {
        check_refused(&place, config, why).await;
    }
    for (value, why) in [
        ("${file:gone}", "/gone cannot be read"),
        ("${file:empty}", "it is empty"),
        ("${file:open}", "writable by other users"),
        ("${exec:echo x}", "`${exec:...}` is off"),
        ("${TOLLBRIDGE_SECRET_KEY}", "the key of secrets"),
        ("${secret:a b}", "names of secrets have"),
    ] {
        check_refused(&place, &with_variable(value), why).await;
    }
    for (value, why) in [
        ("${exec:false}", "exit status: 1"),
        ("${exec:echo ${file:token}}", "inside of"),
        ("${exec:}", "names no command"),
    ] {
        let config = format!("secrets.exec = true\n{}", with_variable(value));
        check_refused(&place, &config, why).await;
    }
    let args = "[servers.a]\ncommand = 'echo'\nargs = ['--token', '${file:token}']";
    place.write_private("tollbridge.toml", args);
    let ran = place.run(&["check", "--print"]).await;
    let expect = "`servers.a.args` puts a secret on a command line";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    assert!(!ran.all().contains("hunter2"), "{ran:?}");
}

fn with_variable(value: &str) -> String {
    format!("[servers.a]\ncommand = 'sh'\nenv = {{ A = '{value}' }}")
}

async fn check_refused(place: &Place, config: &str, why: &str) {
    place.write_private("tollbridge.toml", config);
    let ran = place.run(&["check"]).await;
    assert_eq!(ran.code, Some(2), "{config}: {ran:?}");
    assert!(ran.stderr.contains(why), "{why}: {ran:?}");
    assert!(!ran.all().contains("hunter2"), "{ran:?}");
}

/// What nobody uses is not looked for, and a config of another program starts nothing.
#[tokio::test]
async fn values_are_looked_for_where_they_are_used() {
    let unused = "[servers.a]\nenabled = false\ncommand = 'sh'\nenv = { A = '${file:gone}', B = '${secret:b}' }";
    let place = Place::new(unused);
    assert_eq!(place.run(&["check"]).await.code, Some(0));
    let foreign = r#"{"mcpServers": {"a": {"command": "sh", "env": {"A": "${exec:touch made}"}}}}"#;
    place.write_private("mcp.json", foreign);
    place.write_private("tollbridge.toml", "[secrets]\nexec = true");
    let args = ["check", "-c", "tollbridge.toml", "-c", "mcp.json"];
    let ran = place.run(&args).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(!place.file("made").exists());
}
