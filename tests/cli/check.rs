//! `check`: what would run, what is wrong, and whether the servers can be reached.

use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
use serde_json::json;
use sqlx::Connection;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{ALIKE, Place, TWO_SERVERS, bounded, send};

const MISTAKEN: &str = r#"
[servers.a]
command = "sh"
timeout = "soon"
"#;

#[tokio::test]
async fn what_would_run_is_shown_without_secrets() {
    let place = Place::new(
        r#"
        [servers.docs]
        url = "https://docs.example.com/mcp"
        auth = { type = "bearer", token = "hunter2" }
        "#,
    );
    let told = place.run(&["check"]).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    assert_eq!(told.stdout, summary("valid config: 1 server"));
    assert_eq!(told.stderr, "");
    let ran = place.run(&["check", "--print"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("[servers.docs]"), "{ran:?}");
    assert!(ran.stdout.contains(r#"first_list_wait = "2s""#), "{ran:?}");
    assert_eq!(ran.stderr, summary("valid config: 1 server"));
    let as_json = place.run(&["check", "--json"]).await;
    let shown = as_json.json();
    assert_eq!(shown["ok"], true);
    assert_eq!(shown["notices"], json!([]));
    let server = &shown["config"]["servers"]["docs"];
    assert_eq!(server["url"], "https://docs.example.com/mcp");
    assert_eq!(server["auth"]["token"], "***");
    for text in [&ran.stdout, &as_json.stdout] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn mistakes_are_shown_with_their_place() {
    let place = Place::new(MISTAKEN);
    let ran = place.run(&["check"]).await;
    assert_snapshot!(ran.all(), @r#"
    --- stderr
    error: `servers.a.timeout` must be a duration with a unit
     --> tollbridge.toml:4:11
      |
    4 | timeout = "soon"
      |           ^^^^^^ not valid
      |
      = help: for example "500ms", "30s" or "1m30s"

    1 error
    --- code 2
    "#);
    let as_json = place.run(&["check", "--json"]).await;
    assert_eq!(as_json.code, Some(2));
    assert_eq!(as_json.stderr, "");
    let found = as_json.json();
    assert_eq!(found["ok"], false);
    let notice = &found["notices"][0];
    assert_eq!(notice["severity"], "error");
    assert_eq!(notice["file"], "tollbridge.toml");
    assert_eq!(
        (&notice["line"], &notice["column"]),
        (&json!(4), &json!(11))
    );
    assert!(notice["message"].is_string() && notice["suggestion"].is_string());
}

/// What `serve` refuses to start with, `check` refuses as well.
#[tokio::test]
async fn files_that_the_config_names_are_read() {
    let tls = "listen = \"127.0.0.1:0\"\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    let place = Place::new(&format!("{tls}{TWO_SERVERS}"));
    for name in ["cert.pem", "key.pem"] {
        place.write_private(name, "-----BEGIN NOTHING-----\n");
    }
    let checked = place.run(&["check"]).await;
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(2), ""));
    assert!(checked.stderr.contains("cert.pem"), "{checked:?}");
    let as_json = place.run(&["check", "--json"]).await.json();
    assert_eq!(
        (&as_json["ok"], as_json["notices"][0]["severity"].as_str()),
        (&json!(false), Some("error"))
    );
    let served = place.run(&["serve"]).await;
    assert_eq!(served.code, Some(2), "{served:?}");
}

#[tokio::test]
async fn warnings_go_beside_the_config() {
    let place = Place::new("");
    std::fs::write(
        place.file("foreign.json"),
        r#"{ "mcpServers": { "a": { "command": "sh", "surprise": 1 } } }"#,
    )
    .expect("written");
    let ran = place.run(&["check", "--config", "foreign.json"]).await;
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.starts_with("valid config: 1 server"), "{ran:?}");
    assert!(
        ran.stderr.contains("warning:") && ran.stderr.contains("surprise"),
        "{ran:?}"
    );
    let as_json = place.run(&["check", "--json", "-c", "foreign.json"]).await;
    assert_eq!((as_json.code, as_json.stderr.as_str()), (Some(0), ""));
    assert_eq!(as_json.json()["notices"][0]["severity"], "warning");
}

#[tokio::test]
async fn a_config_is_needed() {
    let place = Place::new("");
    std::fs::remove_file(place.file("tollbridge.toml")).expect("removed");
    assert_snapshot!(place.run(&["check"]).await.all(), @"
    --- stderr
    no config found: use --config FILE, or create tollbridge.toml here
    --- code 2
    ");
    let as_json = place.run(&["check", "--json"]).await;
    assert_eq!(as_json.code, Some(2));
    assert_eq!(as_json.json()["notices"][0]["message"], "no config");
    let named = place.run(&["check", "--config", "gone.toml"]).await;
    assert_snapshot!(named.all(), @"
    --- stderr
    error: cannot read the config: No such file or directory (os error 2)
    --> gone.toml

    1 error
    --- code 2
    ");
}

#[tokio::test]
async fn a_variable_names_the_config() {
    let place = Place::new("listen = 1");
    std::fs::write(place.file("other.toml"), TWO_SERVERS).expect("written");
    let mut command = place.command(&["check"]);
    command.env("TOLLBRIDGE_CONFIG", "other.toml");
    let ran = crate::support::finish(command).await;
    let said = summary("valid config: 2 servers");
    assert_eq!((ran.code, ran.stdout), (Some(0), said));
}

/// What `check` says of a config with servers.
fn summary(servers: &str) -> String {
    format!(
        "{servers}, listening on 127.0.0.1:8080; use --connect to test the connections, --print to see \
         every setting\n"
    )
}

/// Servers whose names would begin alike do not run, and each names the other; the rest does.
#[tokio::test]
async fn servers_whose_names_collide_are_failed() {
    let server = |name: &str| format!("[servers.{name}]\ntransport = \"builtin\"\n");
    let place = Place::new(&["me-2", "me_2", "toolbox"].map(server).concat());
    let checked = place.run(&["check"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let warning = "`me-2` and `me_2` have the same name prefix `me_2`; neither is started";
    assert!(checked.stderr.contains(warning), "{checked:?}");
    let tried = place.run(&["check", "--connect", "--json"]).await;
    assert_eq!(tried.code, Some(1), "{tried:?}");
    let servers = &tried.json()["servers"];
    for (at, state, other) in [
        (0, "failed", "me_2"),
        (1, "failed", "me-2"),
        (2, "connected", ""),
    ] {
        assert_eq!(servers[at]["state"], state, "{servers}");
        let reason = servers[at]["reason"].as_str().unwrap_or_default();
        let named = format!("as those of `{other}`");
        assert_eq!(reason.contains(&named), !other.is_empty(), "{reason}");
    }
    let listed = place.run(&["list"]).await;
    assert!(listed.stdout.contains("mcp_toolbox_"), "{listed:?}");
    assert!(!listed.stdout.contains("mcp_me_2_"), "{listed:?}");
    let alone = place.run(&["check", "--connect", "me-2"]).await;
    assert_eq!(alone.code, Some(0), "{alone:?}");
}

/// Without asking any server: a policy or rule about one that the config does not have protects nobody.
#[tokio::test]
async fn rules_about_servers_that_are_not_there_are_told() {
    let place = Place::new(
        "[servers.toolbox]\ntransport = \"builtin\"\n\
         [governance]\npolicy = { mode = \"all\", deny = [\"tolbox/*\"] }\n\
         [[governance.args]]\nname = \"r\"\ntools = [\"web/get\"]\nat = \"/a\"\nequals = 1\n",
    );
    let checked = place.run(&["check"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for said in [
        "`governance.policy.deny[0]`: `tolbox/*` matches nothing",
        "unknown server `tolbox`; did you mean `toolbox`?",
        "`governance.args[0].tools[0]`: `web/get` matches nothing",
        "unknown server `web`",
    ] {
        assert!(checked.stderr.contains(said), "{said}: {checked:?}");
    }
}

#[tokio::test]
async fn a_config_of_no_use_is_said_to_be() {
    let said = async |config: &str| Place::new(config).run(&["check"]).await.stdout;
    assert_eq!(said("").await, "valid config, but no servers\n");
    let off = "[servers.a]\ncommand = \"a\"\nenabled = false\n";
    assert_eq!(
        said(off).await,
        "valid config, but all servers are disabled\n"
    );
    let both = format!("{off}[servers.b]\ncommand = \"b\"\n");
    assert_eq!(
        said(&both).await,
        summary("valid config: 2 servers, 1 of them disabled")
    );
}

/// What a config cannot say is looked at too: a data directory that cannot be had, and that nobody has a
/// way in.
#[tokio::test]
async fn a_gateway_that_would_not_start_or_serve_anybody_is_pointed_out() {
    let said = async |place: &Place| {
        let ran = place.run(&["check"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let as_json = place.run(&["check", "--json"]).await.json();
        for notice in as_json["notices"].as_array().expect("a list") {
            let message = notice["message"].as_str().expect("a text");
            assert!(ran.stderr.contains(message), "{ran:?}");
        }
        ran.stderr
    };
    let place = Place::new("");
    let entries = || std::fs::read_dir(place.file(".")).map(Iterator::count);
    let before = entries().expect("a directory");
    let fine = said(&place).await;
    assert!(!fine.contains("would not start"), "{fine}");
    let left = entries().expect("a directory");
    assert_eq!(left, before, "nothing is left of the look");
    std::fs::write(place.file("data"), "a file").expect("written");
    let refused = said(&place).await;
    let words = "warning: a gateway run by this user would not start: the data directory ";
    assert!(refused.contains(words), "{refused}");
    assert!(refused.contains("/data cannot be used: "), "{refused}");

    let place = Place::new("[governance]\nauth = \"keys\"\n");
    let nobody = "warning: no caller could authenticate: ";
    let alone = said(&place).await;
    assert!(alone.contains(nobody), "{alone}");
    assert_eq!(place.run(&["agents", "add", "bot"]).await.code, Some(0));
    let stored = said(&place).await;
    assert!(!stored.contains(nobody), "{stored}");
    let place = Place::new("[governance]\nauth = \"keys\"\n[agents.ann]\n");
    let written = said(&place).await;
    assert!(!written.contains(nobody), "{written}");
}

#[tokio::test]
async fn servers_are_tried() {
    let place = Place::new(&format!(
        r#"{TWO_SERVERS}
        [servers.missing]
        command = "/nonexistent/server"
        [servers.dying]
        command = "sh"
        args = ["-c", "echo no licence >&2; exit 3"]
        [servers.off]
        enabled = false
        url = "http://127.0.0.1:1/mcp"
        "#
    ));
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let mut rows: Vec<&str> = ran.stdout.lines().collect();
    assert!(rows.remove(0).starts_with("SERVER\tSTATE\t"));
    // They come as the servers end.
    let order = ["toolbox", "script", "missing", "dying"];
    rows.sort_by_key(|row| order.iter().position(|name| row.starts_with(name)));
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows[0].starts_with("toolbox\tconnected\t2026-07-28\t"));
    assert!(rows[1].starts_with("script\tconnected\t2025-11-25\t"));
    assert!(rows[1].ends_with(" ms\t5\t0\t1\t"), "{rows:?}");
    assert!(rows[2].starts_with("missing\tfailed\t\t\t\t\t\tcannot start `/nonexistent/server`"));
    assert!(
        rows[3].starts_with("dying\tfailed") && rows[3].ends_with("no licence"),
        "{rows:?}"
    );

    let found = place.run(&["check", "--connect", "--json"]).await;
    assert_eq!(found.code, Some(1));
    let found = found.json();
    assert_eq!(found["ok"], false);
    let script = &found["servers"][1];
    assert_eq!(script["server_info"]["name"], "script");
    assert_eq!(
        (&script["tools"], &script["prompts"]),
        (&json!(5), &json!(1))
    );
    assert!(script["latency_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert_eq!(found["servers"][3]["stderr"][0], "no licence");
}

/// Wherever it is started from.
#[tokio::test]
async fn programs_beside_the_config_are_found() {
    let place = Place::new("");
    std::fs::create_dir_all(place.file("there/work")).expect("created");
    let program = place.file("there/server");
    let script = format!("#!/bin/sh\npwd > cwd\n{}", include_str!("server.sh"));
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
    std::fs::write(
        place.file("there/tollbridge.toml"),
        "[servers.script]\ncommand = './server'\ncwd = 'work'\n",
    )
    .expect("written");
    let args = ["check", "--connect", "--config", "there/tollbridge.toml"];
    let ran = place.run(&args).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let cwd = std::fs::read_to_string(place.file("there/work/cwd")).expect("written");
    assert!(cwd.trim_end().ends_with("/there/work"), "{cwd}");
}

#[tokio::test]
async fn one_server_is_tried_alone() {
    let place = Place::new(
        r#"
        [servers.toolbox]
        transport = "builtin"
        enabled = false
        [servers.missing]
        command = "/nonexistent/server"
        "#,
    );
    let ran = place.run(&["check", "--connect", "toolbox"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.contains("\ntoolbox\tconnected"), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 2);
    assert_snapshot!(place.run(&["check", "--connect", "toolbx"]).await.all(), @"
    --- stderr
    unknown server `toolbx`; did you mean `toolbox`?
    --- code 2
    ");
}

/// What `/status` finds odd about the names of servers is in the report; what is missing by it fails.
#[tokio::test]
async fn what_shares_a_name_is_reported() {
    for (conflict, code, expect) in [
        ("error", 1, "not listed"),
        ("first", 0, "one keeps the name"),
        ("namespace", 0, "exposed as `echo_"),
    ] {
        let place = Place::new(&format!("{ALIKE}conflict = \"{conflict}\"\n"));
        let ran = place.run(&["check", "--connect"]).await;
        assert_eq!(ran.code, Some(code), "{conflict}: {ran:?}");
        let mut warnings = ran.stderr.lines();
        let line = warnings.find(|line| line.starts_with("warning: two: tools: `echo`"));
        let line = line.unwrap_or_else(|| panic!("{conflict}: {ran:?}"));
        assert!(line.contains(expect), "{conflict}: {line}");
        let found = place.run(&["check", "--connect", "--json"]).await;
        assert_eq!(found.code, Some(code), "{conflict}: {found:?}");
        let found = found.json();
        assert_eq!(found["ok"], code == 0, "{conflict}");
        let notices = found["notices"].as_array().expect("a list");
        let is_it = |notice: &serde_json::Value| {
            let message = notice["message"].as_str().unwrap_or_default();
            message.starts_with("two: tools: `echo`") && message.contains(expect)
        };
        assert!(notices.iter().any(is_it), "{conflict}: {notices:?}");
    }
}

/// A check before an upgrade must not be the upgrade: the gateway of before could not start again.
async fn an_older_store_is_left_as_it_is(place: &Place) {
    let url = format!("sqlite:{}", place.file("data/tollbridge.db").display());
    let store = sqlx::SqliteConnection::connect(&url).await;
    let mut store = store.expect("it opens");
    let older = sqlx::raw_sql("DROP TABLE tasks; PRAGMA user_version = 4").execute(&mut store);
    older.await.expect("it is done");
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut store)
        .await
        .expect("a number");
    assert_eq!(version, 4);
    let expect = "warning: agents in the store were not checked: ";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    assert!(
        ran.stderr.contains("an older version of Tollbridge"),
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("agents.bot"), "{ran:?}");
}

/// Nobody's database but ours is called an older one of ours, and none is changed.
#[tokio::test]
async fn a_foreign_store_is_left_as_it_is() {
    let place = Place::new("");
    std::fs::create_dir(place.file("data")).expect("it is made");
    let file = place.file("data/tollbridge.db");
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let store = sqlx::SqliteConnection::connect(&url).await;
    let mut store = store.expect("it opens");
    let made = sqlx::raw_sql("CREATE TABLE theirs (x)").execute(&mut store);
    made.await.expect("it is done");
    store.close().await.expect("it closes");
    let before = std::fs::read(&file).expect("it is there");
    let ran = place.run(&["check", "--connect"]).await;
    let expect = "warning: agents in the store were not checked: ";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    assert!(!ran.stderr.contains("older version"), "{ran:?}");
    assert_eq!(std::fs::read(&file).expect("it is there"), before);
}

/// Patterns that match nothing are warnings with their keys; of servers that cannot be asked it is
/// not known.
#[tokio::test]
async fn patterns_without_a_match_are_said() {
    let place = Place::new(&format!(
        r#"
        [governance]
        auth = "keys"
        policy = {{ mode = "all", deny = ["rep*", "script/repeat", "gone/x"] }}
        [agents.ann]
        {TWO_SERVERS}
        tools = {{ deny = ["delete_*", "repeat"] }}
        "#
    ));
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_snapshot!(ran.stderr, @"
    warning: `governance.policy.deny[0]`: `rep*` matches nothing
     |
     = help: use exposed names or `server/name`: write `*/rep*`
    warning: `governance.policy.deny[2]`: `gone/x` matches nothing
     |
     = help: unknown server `gone`
    warning: `servers.script.tools.deny[0]`: `delete_*` matches nothing
    ");
    let found = place.run(&["check", "--connect", "script", "--json"]).await;
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
    let found = found.json();
    assert_eq!(found["ok"], true);
    let notices = found["notices"].as_array().expect("a list");
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(notices[0]["severity"], "warning");
    let message = "`servers.script.tools.deny[0]`: `delete_*` matches nothing";
    assert_eq!(notices[0]["message"], message);

    let args = ["agents", "add", "bot", "--tools", "script/rep*", "scrpt/*"];
    assert_eq!(place.run(&args).await.code, Some(0));
    let ran = place.run(&["check", "--connect"]).await;
    let expect = "`store: agents.bot.policy.tools[1]`: `scrpt/*` matches nothing\n";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    assert!(!ran.stderr.contains("bot.policy.tools[0]"), "{ran:?}");
    an_older_store_is_left_as_it_is(&place).await;

    let place = Place::new(
        r#"
        [servers.missing]
        command = "/nonexistent/server"
        tools = { deny = ["delete_*"] }
        "#,
    );
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_snapshot!(ran.stderr, @"
    warning: cannot tell whether `servers.missing.tools.deny[0]` match anything
     |
     = help: not or only partly listed: `missing`
    ");
}

/// A URL that leads elsewhere says where, without what may open something.
/// What `check --connect` says of a server at `path` that answers everything with `head`.
async fn check_answer(path: &str, head: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it has one");
    let answers = async {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut asked = [0; 4096];
            let read = stream.read(&mut asked).await.expect("a request");
            assert_ne!(read, 0, "it is asked something");
            let answer =
                format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream
                .write_all(answer.as_bytes())
                .await
                .expect("it is read");
        }
    };
    let place = Place::new(&format!("[servers.x]\nurl = \"http://{address}{path}\"\n"));
    let args = ["check", "--connect"];
    let ran = tokio::select! {
        ran = place.run(&args) => ran,
        () = answers => unreachable!("it goes on"),
    };
    ran.stdout.replace(&address.to_string(), "HOST")
}

#[tokio::test]
async fn a_redirect_says_what_to_write_instead() {
    let head = "307 Temporary Redirect\r\n\
                location: http://ann:hunter2@127.0.0.1:1/mcp/?token=hunter2";
    let said = check_answer("/mcp", head).await;
    let expect = "the server redirects (HTTP 307 Temporary Redirect) to another origin, which gets no \
                  credentials; put the final URL into the config: `http://127.0.0.1:1/mcp/`";
    assert!(said.contains(expect), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn a_url_without_the_path_of_the_endpoint_is_completed() {
    let said = check_answer("/api/", "404 Not Found").await;
    let expect = "HTTP 404 Not Found: try `http://HOST/api/mcp`";
    assert!(said.contains(expect), "{said}");
    let said = check_answer("/mcp", "404 Not Found").await;
    assert!(
        said.contains("HTTP 404 Not Found") && !said.contains("try"),
        "{said}"
    );
}

#[tokio::test]
async fn a_server_with_oauth_is_named_as_such() {
    let plain = "401 Unauthorized\r\nwww-authenticate: Bearer";
    let said = check_answer("/mcp", plain).await;
    assert!(
        said.contains("HTTP 401") && !said.contains("OAuth"),
        "{said}"
    );
    let named = format!("{plain} resource_metadata=\"http://127.0.0.1/.well-known/x\"");
    let said = check_answer("/mcp", &named).await;
    assert!(said.contains("the server uses OAuth"), "{said}");
}

/// A tool whose input schema cannot be used is named, although it is served.
#[tokio::test]
async fn schemas_that_are_none_are_reported() {
    let place = Place::new(TWO_SERVERS);
    let server = include_str!("server.sh");
    let broken = server.replace(r#"{"type":"string"}"#, r#"{"type":"strange"}"#);
    assert_ne!(broken, server);
    std::fs::write(place.file("server.sh"), broken).expect("written");
    let said = "script: tools: `repeat`: invalid `inputSchema`: ";
    for connect in [
        &["check", "--connect"][..],
        &["check", "--connect", "script"],
    ] {
        let ran = place.run(connect).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.stderr.starts_with(&format!("warning: {said}")),
            "{ran:?}"
        );
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        let found = place.run(&[connect, &["--json"]].concat()).await.json();
        assert_eq!(found["ok"], true);
        let notices = found["notices"].as_array().expect("a list");
        let messages = notices
            .iter()
            .filter_map(|notice| notice["message"].as_str());
        assert_eq!(
            messages.filter(|it| it.starts_with(said)).count(),
            1,
            "{notices:?}"
        );
    }
}

/// One replica is enough for a server to be connected; those that are out of order are named.
#[tokio::test]
async fn replicas_are_tried() {
    let place = Place::new(
        r#"
        [servers.several]
        replicas = [
            { command = "sh", args = ["server.sh"] },
            { command = "sh", args = ["-c", "read line; sleep 0.5; echo no licence >&2; exit 3"] },
        ]
        "#,
    );
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("\nseveral\tconnected\t"), "{ran:?}");
    let found = place.run(&["check", "--connect", "--json"]).await.json();
    let replicas = found["servers"][0]["replicas"].as_array().expect("a list");
    let states: Vec<_> = replicas.iter().map(|it| it["state"].clone()).collect();
    assert_eq!(states, ["connected", "failed"], "{found}");
    let name = replicas[1]["name"].as_str().expect("a name");
    let said = format!("warning: several: replica `{name}` is failed: ");
    assert!(ran.stderr.starts_with(&said), "{ran:?}");
    assert!(ran.stderr.contains("no licence"), "{ran:?}");
}

/// What takes long is named while it does, also where nobody reads it.
#[tokio::test]
async fn each_server_is_shown_as_soon_as_it_was_tried() {
    let place = Place::new(
        "[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"exec sleep 600\"]\n\
         startup_timeout = \"10m\"\n[servers.toolbox]\ntransport = \"builtin\"\n",
    );
    let mut child = place
        .command(&["check", "--connect"])
        .spawn()
        .expect("it starts");
    let stdout = child.stdout.take().expect("it is piped");
    let mut lines = tokio::io::BufReader::new(stdout).lines();
    for expect in ["SERVER\t", "toolbox\tconnected\t"] {
        let line = bounded(lines.next_line()).await.expect("it is read");
        assert!(
            line.is_some_and(|line| line.starts_with(expect)),
            "{expect}"
        );
    }
    send(&child, rustix::process::Signal::INT);
    let status = bounded(child.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(130));
}

#[tokio::test]
async fn a_server_that_hangs_is_named_meanwhile() {
    let place = Place::new(
        "[servers.slow]\ncommand = \"sh\"\nargs = [\"-c\", \"exec sleep 600\"]\n\
         startup_timeout = \"3s\"\n",
    );
    let ran = place.run(&["check", "--connect"]).await;
    assert_eq!(ran.waits, "waiting for slow ...\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
}
