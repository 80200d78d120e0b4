//! `server`, `profile` and `view`: the operations of the admin API on the store, with and without a gateway that runs.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Place, Ran};

const CONFIG: &str =
    "[servers.own]\ntransport = \"builtin\"\n[profiles.fixed]\ntools = [\"own/*\"]\n";

/// Runs what must succeed.
async fn done(place: &Place, args: &[&str]) -> Ran {
    let ran = place.run(args).await;
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran
}

/// Runs what must be refused with `words`.
async fn refused(place: &Place, args: &[&str], words: &str) {
    let ran = place.run(args).await;
    assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
    assert!(ran.stderr.contains(words), "{args:?}: {ran:?}");
    assert_eq!(ran.stdout, "", "{args:?}");
}

/// The names that `list` prints.
async fn names(place: &Place, args: &[&str]) -> Vec<String> {
    let ran = done(place, args).await;
    let rows = ran.stdout.lines().skip(1);
    let first = rows.filter_map(|row| row.split('\t').next());
    first.map(str::to_owned).collect()
}

#[tokio::test]
async fn what_is_added_without_a_gateway_runs_at_the_next_start() {
    let place = Place::new(CONFIG);
    let add = [
        "server",
        "add",
        "docs",
        "transport=builtin",
        "tools.deny=[\"hash\"]",
    ];
    let planned = done(&place, &[&add[..], &["--dry-run"]].concat()).await;
    assert_eq!(planned.stdout, "adds the server `docs`\n");
    assert_eq!(names(&place, &["server", "list"]).await, ["own"]);
    let added = done(&place, &add).await;
    assert_eq!(added.stdout, "server `docs` added\n");
    assert!(added.unheard.contains("no gateway is running"), "{added:?}");
    let set = ["profile", "add", "reading", "tools=[\"docs/*\"]", "--json"];
    let made = done(&place, &set).await.json();
    assert_eq!(made["profile"]["config"], json!({ "tools": ["docs/*"] }));
    assert_eq!(made["profile"]["source"]["type"], "store");
    assert_eq!(names(&place, &["server", "list"]).await, ["docs", "own"]);
    assert_eq!(
        names(&place, &["profile", "list"]).await,
        ["fixed", "reading"]
    );
    let tools = names(&place, &["list", "--server", "docs"]).await;
    assert!(tools.contains(&"echo".to_owned()), "{tools:?}");
    assert!(!tools.contains(&"hash".to_owned()), "{tools:?}");

    let mut serving = place.serve().await;
    serving.says("docs").await;
    let listed = names(&place, &["list", "servers"]).await;
    assert_eq!(listed, ["own", "docs"]);
    serving.end(Signal::TERM).await;

    done(&place, &["server", "disable", "docs"]).await;
    let shown = done(&place, &["server", "show", "docs"]).await.stdout;
    assert!(
        shown.starts_with("# store\nenabled = false\ntransport = \"builtin\"\n"),
        "{shown}"
    );
    done(
        &place,
        &[
            "server",
            "set",
            "docs",
            "priority=3",
            "--unset",
            "tools.deny",
            "--unset",
            "enabled",
        ],
    )
    .await;
    let shown = done(&place, &["server", "show", "docs", "--json"])
        .await
        .json();
    assert_eq!(
        shown["config"],
        json!({ "transport": "builtin", "tools": {}, "priority": 3 })
    );
    done(&place, &["server", "remove", "docs"]).await;
    assert_eq!(names(&place, &["server", "list"]).await, ["own"]);
    let events = done(&place, &["audit", "events", "--json"]).await.stdout;
    assert!(events.contains("server `docs`"), "{events}");
    for detail in [
        "added",
        "changed: enabled",
        "changed: enabled, tools, priority",
        "removed",
    ] {
        let detail = format!("\"detail\":\"{detail}\"");
        assert!(events.contains(&detail), "{detail}: {events}");
    }
}

#[tokio::test]
async fn a_running_gateway_has_a_change_when_the_command_ends() {
    let place = Place::new(CONFIG);
    let mut serving = place.serve().await;
    serving.says("server is connected").await;
    let added = done(&place, &["server", "add", "docs", "transport=builtin"]).await;
    assert_eq!(added.stderr, "in effect in 1 running gateway\n");
    let called = ["call", "mcp_docs_echo", "--arg", "text=a"];
    done(&place, &called).await;
    let restarted = done(&place, &["server", "restart", "docs"]).await;
    assert_eq!(restarted.stdout, "server `docs` restarted\n");
    let unknown = place.run(&["server", "restart", "nothing"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(
        unknown.stderr.contains("`nothing` does not run"),
        "{unknown:?}"
    );
    let removed = done(&place, &["server", "remove", "docs"]).await;
    assert_eq!(removed.stderr, "in effect in 1 running gateway\n");
    let gone = place.run(&called).await;
    assert_ne!(gone.code, Some(0), "{gone:?}");
    serving.end(Signal::TERM).await;
    let alone = place.run(&["server", "restart", "own"]).await;
    assert_eq!(alone.code, Some(1), "{alone:?}");
    assert!(alone.unheard.contains("nothing to restart"), "{alone:?}");
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_the_messages_of_the_api() {
    let place = Place::new(CONFIG);
    for (args, words) in [
        (
            &["server", "add", "docs"][..],
            "`servers.docs` requires `command` or `url`",
        ),
        (
            &["server", "add", "docs", "comand=npx"],
            "unknown key `servers.docs.comand`",
        ),
        (
            &["server", "add", "docs", "url=${PATH}"],
            "uses a variable of the environment or a file",
        ),
        (
            &[
                "server",
                "add",
                "docs",
                "command=npx",
                "env.T=${secret:absent}",
            ],
            "there is no secret `absent`",
        ),
        (
            &["server", "add", "a b", "url=https://example.com/"],
            "not allowed in a server name",
        ),
        (
            &["server", "add", "own", "transport=builtin"],
            "the server `own` already exists",
        ),
        (&["server", "show", "docs"], "there is no server `docs`"),
        (&["server", "remove", "docs"], "there is no server `docs`"),
        (&["profile", "add", "x", "tolls=[]"], "tolls"),
        (
            &["server", "set", "own", "priority=1"],
            "stands in tollbridge.toml line 1; change it there",
        ),
        (
            &["server", "disable", "own"],
            "stands in tollbridge.toml line 1; change it there",
        ),
        (
            &["profile", "remove", "fixed"],
            "stands in tollbridge.toml line 3; change it there",
        ),
        (&["server", "set", "own"], "nothing to change"),
        (
            &["server", "set", "own", "--from", "absent.json"],
            "cannot read absent.json",
        ),
    ] {
        refused(&place, args, words).await;
    }
    let problem = place.run(&["server", "disable", "own", "--json"]).await;
    assert_eq!(problem.code, Some(2), "{problem:?}");
    assert_eq!(problem.json()["type"], "in-config-file");
    assert_eq!(names(&place, &["server", "list"]).await, ["own"]);
}

/// Only the server that is added needs its secrets; the variables of others nobody has here.
#[tokio::test]
async fn variables_of_other_servers_are_not_needed() {
    let other = "[servers.other]\ncommand = \"npx\"\nenv = { T = \"${NOT_SET_HERE}\" }\n";
    let place = Place::new(other);
    let set = place
        .run_with("s3cret", &["secret", "set", "docs@science"])
        .await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let document = r#"{ "url": "https://example.com/mcp", "enabled": false,
        "auth": { "type": "bearer", "token": "${secret:docs}" } }"#;
    let add = ["server", "add", "docs@science", "--from", "-"];
    let added = place.run_with(document, &add).await;
    assert_eq!(added.code, Some(0), "{added:?}");
    let shown = done(&place, &["server", "show", "docs@science", "--json"])
        .await
        .json();
    assert_eq!(
        shown["config"]["auth"],
        json!({ "type": "bearer", "configured": true })
    );
    assert_eq!(
        names(&place, &["server", "list"]).await,
        ["docs@science", "other"]
    );
}

#[tokio::test]
async fn servers_are_tried_as_they_are_and_unsaved() {
    let place = Place::new(CONFIG);
    let tried = done(&place, &["server", "test", "own"]).await.stdout;
    assert!(tried.starts_with("connected after "), "{tried}");
    assert!(tried.contains("\necho\t"), "{tried}");
    let unsaved = [
        "server",
        "test",
        "new",
        "command=sh",
        "args=[\"-c\", \"exec sh server.sh\"]",
    ];
    let tried = done(&place, &[&unsaved[..], &["--json"]].concat())
        .await
        .json();
    assert_eq!(tried["status"], "connected", "{tried}");
    let failed = place
        .run(&["server", "test", "new", "command=/nothing"])
        .await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    refused(
        &place,
        &["server", "test", "new"],
        "there is no server `new`",
    )
    .await;
}

#[tokio::test]
async fn views_are_made_for_agents() {
    let text = format!("{CONFIG}[agents.bot]\n[governance]\nauth = \"keys\"\n");
    let place = Place::new(&text);
    refused(&place, &["view", "create"], "say which `agent`").await;
    refused(
        &place,
        &["view", "create", "--agent", "nobody"],
        "agent `nobody`",
    )
    .await;
    let create = [
        "view",
        "create",
        "--agent",
        "bot",
        "profile=fixed",
        "tool_choice=none",
    ];
    let planned = done(&place, &[&create[..], &["--dry-run"]].concat())
        .await
        .json();
    assert_eq!(planned["profile"], "fixed");
    assert!(names(&place, &["view", "list"]).await.is_empty());
    let made = done(&place, &[&create[..], &["--json"]].concat())
        .await
        .json();
    let id = made["view"]["id"].as_str().unwrap();
    assert_eq!(names(&place, &["view", "list"]).await, [id]);
    done(
        &place,
        &[
            "view",
            "set",
            id,
            "servers=[\"own\"]",
            "--unset",
            "tool_choice",
        ],
    )
    .await;
    let shown = done(&place, &["view", "show", id]).await.json();
    assert_eq!(
        (&shown["servers"], &shown["tool_choice"]),
        (&json!(["own"]), &json!("auto"))
    );
    refused(
        &place,
        &["view", "set", id, "servers=[\"none\"]"],
        "no server `none`",
    )
    .await;
    let ended = done(&place, &["view", "end", id]).await;
    assert_eq!(ended.stdout, format!("view `{id}` ended\n"));
    refused(&place, &["view", "show", id], "there is no view").await;
    let events = done(&place, &["audit", "events"]).await.stdout;
    for event in ["view_created", "view_changed", "view_ended"] {
        assert!(events.contains(event), "{events}");
    }
}
