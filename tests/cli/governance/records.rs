//! The audit: found, exported and followed, and what is an event of it.

use std::fs;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{GOVERNED, masked, ok};
use crate::support::{Place, TOOLBOX, bounded, finish};

#[tokio::test]
async fn records_are_found_by_what_is_known_of_them() {
    let place = Place::new(GOVERNED);
    let none = place.run(&["audit", "verify"]).await;
    assert_eq!((none.code, &*none.stdout), (Some(1), ""), "{none:?}");
    assert!(none.stderr.contains("no audit log in "), "{none:?}");
    let none = place.run(&["audit", "verify", "--json"]).await;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert_eq!(
        (&none.json()["ok"], &none.json()["chains"]),
        (&json!(false), &json!([]))
    );
    assert_eq!(ok(&place, &["audit", "--json"]).await.stdout, "[]\n");
    let call = async |tool: &str, agent: &str| {
        place
            .run(&["call", tool, "--arg", "text=1", "--agent", agent])
            .await
    };
    ok(&place, &["agents", "add", "bot", "--policy", "all"]).await;
    assert_eq!(call("mcp_toolbox_hash", "researcher").await.code, Some(0));
    assert_eq!(call("mcp_other_hash", "researcher").await.code, Some(1));
    assert_eq!(call("mcp_other_hash", "bot").await.code, Some(0));
    let all = ok(&place, &["audit", "query", "--json"]).await.json();
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
    let (id, ts) = (all[1]["id"].as_str().expect("an id"), &all[1]["ts"]);
    let find = async |line: &str| {
        let args: Vec<&str> = ["audit", "--json"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        let found = ok(&place, &args).await.json();
        let found = found.as_array().expect("an array").iter();
        let at = |record: &Value| all.as_array()?.iter().position(|it| it == record);
        found
            .map(|record| at(record).expect("as before"))
            .collect::<Vec<_>>()
    };
    assert_eq!(find("--agent researcher").await, [0, 1]);
    assert_eq!(find("--server other").await, [1, 2]);
    assert_eq!(find("--tool hash").await, [0, 1, 2]);
    assert_eq!(find("--tool other/hash").await, [1, 2]);
    assert_eq!(find("--tool mcp_toolbox_hash").await, [0]);
    assert_eq!(find("--decision refused").await, [1]);
    assert_eq!(find(&format!("--id {id}")).await, [1]);
    assert_eq!(find("--since 1h").await, [0, 1, 2]);
    assert_eq!(find("--until 1h").await, [] as [usize; 0]);
    assert_eq!(
        find(&format!("--since {}", ts.as_str().expect("a time"))).await,
        [1, 2]
    );
    let largest = usize::MAX.to_string();
    for limit in ["65536", &largest] {
        let listed = ok(&place, &["audit", "--limit", limit]).await;
        assert_eq!(listed.stdout.lines().count(), 4, "{listed:?}");
        let events = ok(&place, &["audit", "events", "--limit", limit]).await;
        assert!(events.stdout.contains("agent_changed"), "{events:?}");
    }
    let two = ok(&place, &["audit", "--limit", "2"]).await;
    assert!(
        two.stderr.contains("only the latest 2 are shown"),
        "{two:?}"
    );
    assert_eq!(two.stdout.lines().count(), 3, "{two:?}");
    assert!(
        two.stdout
            .lines()
            .nth(1)
            .is_some_and(|row| row.contains(id)),
        "oldest first"
    );
}

/// An answer without records says so, and what may have been meant.
/// Who only looks makes no store, which might be of another user than the gateway's; one that was lost is
/// told of by whoever looks for it first, and by the gateway after that.
#[tokio::test]
async fn who_only_looks_makes_no_store() {
    let place = Place::new(GOVERNED);
    let store = place.file("data/tollbridge.db");
    let looks = [
        "agents list",
        "agents show researcher",
        "audit",
        "audit events",
        "audit export",
        "audit verify",
        "budget show",
        "keys list",
    ];
    let lost = "the audit log has records but tollbridge.db is missing or empty";
    for look in looks {
        let args: Vec<_> = look.split(' ').collect();
        let looked = place.run(&args).await;
        let expect = i32::from(look == "audit verify");
        assert_eq!(looked.code, Some(expect), "{look}: {looked:?}");
        assert!(!looked.stderr.contains(lost), "{look}: {looked:?}");
        assert!(!place.file("data").exists(), "{look}");
    }
    ok(&place, &["agents", "add", "bot"]).await;
    fs::remove_file(&store).expect("removed");
    let shown = ok(&place, &["budget", "show"]).await;
    assert!(shown.stderr.contains(lost), "{shown:?}");
    assert!(!store.exists());
    let mut serving = place.serve().await;
    serving.says(lost).await;
    serving.end(Signal::TERM).await;
}

/// A gateway goes on without the file of its store, and says that what it keeps there will be lost.
#[tokio::test]
async fn a_store_that_is_taken_away_is_missed() {
    let place = Place::new(TOOLBOX);
    let mut serving = place.serve().await;
    let address = serving.mcp().replace("http://", "").replace("/mcp", "");
    let told = async || store_error(&address).await;
    assert_eq!(told().await, Value::Null);
    let (store, away) = (place.file("data/tollbridge.db"), place.file("away.db"));
    fs::rename(&store, &away).expect("moved");
    serving.says("tollbridge.db was removed").await;
    let error = told().await.to_string();
    assert!(error.contains("put back the file from a backup"), "{error}");
    fs::copy(&away, &store).expect("copied");
    serving.says("tollbridge.db was replaced").await;
    fs::rename(&away, &store).expect("moved back");
    serving
        .says("tollbridge.db is in the data directory again")
        .await;
    assert_eq!(told().await, Value::Null);
    serving.end(Signal::TERM).await;
}

/// What the status of the gateway at `address` says of its store.
async fn store_error(address: &str) -> Value {
    let request = format!("GET /status HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut answer = String::new();
    bounded(async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it is read");
        stream
            .read_to_string(&mut answer)
            .await
            .expect("it answers");
    })
    .await;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    let status: Value = serde_json::from_str(body.expect("a body")).expect("JSON");
    status["governance"]["store_error"].clone()
}

/// Nothing has to be written to look for records, and no store is needed that can be used.
#[tokio::test]
async fn a_full_disk_keeps_nobody_from_reading() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot", "--policy", "all"]).await;
    for agent in ["bot", "researcher", "bot"] {
        let args = [
            "call",
            "mcp_toolbox_hash",
            "--arg",
            "text=1",
            "--agent",
            agent,
        ];
        ok(&place, &args).await;
    }
    let looks = [
        "audit --json",
        "audit --agent bot --limit 1 --json",
        "audit export --agent bot",
        "audit events --json",
        "audit verify",
    ];
    let mut expected = Vec::new();
    for look in looks {
        let args: Vec<_> = look.split(' ').collect();
        expected.push(ok(&place, &args).await.stdout);
        assert!(!expected[0].is_empty());
    }
    let path = place.file("data/tollbridge.db");
    let url = format!("sqlite:{}", path.display());
    let mut store = sqlx::SqliteConnection::connect(&url)
        .await
        .expect("it opens");
    for (look, expect) in looks.iter().zip(&expected) {
        // There is something to be written.
        let forget = sqlx::raw_sql("DELETE FROM audit_records; DELETE FROM audit_segments")
            .execute(&mut store);
        forget.await.expect("it is done");
        let binary = env!("CARGO_BIN_EXE_tollbridge");
        let full = format!("trap '' XFSZ; ulimit -f 0; exec {binary} {look}");
        let looked = finish(place.shell(&full)).await;
        assert_eq!(
            (looked.code, &looked.stdout),
            (Some(0), expect),
            "{look}: {looked:?}"
        );
        let said = "the audit index is unavailable; reading the whole log: ";
        let says = looked.stderr.contains(said);
        assert_eq!(says, look.starts_with("audit --"), "{look}: {looked:?}");
    }
    store.close().await.expect("it closes");
    fs::rename(&path, place.file("away")).expect("moved");
    fs::create_dir(&path).expect("made");
    for (look, expect) in looks.iter().zip(&expected) {
        let looked = ok(&place, &look.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(looked.stdout, *expect, "{look}: {looked:?}");
        let says = looked.stderr.contains("index");
        assert_eq!(says, *look != "audit events --json", "{look}: {looked:?}");
    }
}

/// A time that ends before it begins has nothing in it, which is no answer.
#[tokio::test]
async fn a_time_that_is_none_is_a_mistake() {
    let place = Place::new(GOVERNED);
    for command in ["audit", "audit query", "audit events", "audit export"] {
        for (since, until) in [
            ("1h", "2h"),
            ("2026-11-22", "2026-11-22"),
            ("2026-11-23", "2026-11-22"),
        ] {
            let line = format!("{command} --since {since} --until {until}");
            let ran = place.run(&line.split(' ').collect::<Vec<_>>()).await;
            assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{line}: {ran:?}");
            let expect = "is not before --until";
            assert!(ran.stderr.contains(expect), "{line}: {ran:?}");
        }
        let line = format!("{command} --since 2h --until 1h");
        ok(&place, &line.split(' ').collect::<Vec<_>>()).await;
    }
}

#[tokio::test]
async fn an_audit_without_matches_says_so() {
    let place = Place::new(GOVERNED);
    for (args, expect) in [
        ("audit", "no record matches"),
        ("audit --server other", "no record matches"),
        (
            "audit --server othr",
            "no record matches; unknown server `othr`; did you mean `other`?",
        ),
        (
            "audit --tool toolbx/hash",
            "no record matches; unknown server `toolbx`; did you mean `toolbox`?",
        ),
        ("audit --tool hahs", "no record matches"),
        (
            "audit export --server othr",
            "no record matches; unknown server `othr`; did you mean `other`?",
        ),
    ] {
        let ran = ok(&place, &args.split(' ').collect::<Vec<_>>()).await;
        assert_eq!(ran.stderr.trim_end(), expect, "{args}");
    }
}

#[tokio::test]
async fn records_are_exported_and_outlive_their_agent() {
    let place = Place::new(GOVERNED);
    let call = async |agent: &str| {
        let args = [
            "call",
            "mcp_other_hash",
            "--arg",
            "text=1",
            "--agent",
            agent,
        ];
        place.run(&args).await
    };
    ok(&place, &["agents", "add", "bot", "--policy", "all"]).await;
    assert_eq!(call("researcher").await.code, Some(1));
    assert_eq!(call("bot").await.code, Some(0));
    ok(&place, &["agents", "remove", "bot"]).await;
    let all = ok(&place, &["audit", "--json"]).await.json();
    let of_bot = ok(&place, &["audit", "--agent", "bot", "--json"]).await;
    assert_eq!(of_bot.json(), json!([all[1]]));
    let lines = ok(&place, &["audit", "export", "--agent", "bot"])
        .await
        .stdout;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert_eq!(
        serde_json::from_str::<Value>(&lines).ok().as_ref(),
        all.get(1)
    );
    let args = [
        "audit",
        "export",
        "--format",
        "csv",
        "--decision",
        "refused",
    ];
    let csv = ok(&place, &args).await.stdout;
    assert_eq!(csv.lines().count(), 2, "{csv}");
    let id = all[0]["id"].as_str().expect("an id");
    assert!(csv.starts_with("chain,id,ts,") && csv.contains(id), "{csv}");
}

/// New records are shown as they come, those before first.
#[tokio::test]
async fn records_are_followed() {
    let place = Place::new(GOVERNED);
    let call = [
        "call",
        "mcp_toolbox_hash",
        "--arg",
        "text=1",
        "--agent",
        "researcher",
    ];
    ok(&place, &call).await;
    let mut follow = place.command(&["audit", "--follow", "--json"]);
    let mut child = follow.spawn().expect("it starts");
    let stdout = child.stdout.take().expect("it is piped");
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(stdout));
    let mut next = async || {
        let line = bounded(lines.next_line()).await.expect("it can be read");
        serde_json::from_str::<Value>(&line.expect("a line")).expect("JSON")
    };
    let before = next().await;
    ok(&place, &call).await;
    let after = next().await;
    assert_eq!(
        (&before["decision"], &after["decision"]),
        (&json!("allowed"), &json!("allowed"))
    );
    assert_ne!(before["id"], after["id"]);
    crate::support::send(&child, rustix::process::Signal::INT);
    let status = bounded(child.wait()).await.expect("it ends");
    assert_eq!(status.code(), Some(130));
}

/// Changes of an agent, a key and a budget are events of the audit.
#[tokio::test]
async fn changes_are_recorded() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot", "--budget", "1"]).await;
    let key = ok(
        &place,
        &["keys", "create", "bot", "--expires", "never", "--json"],
    )
    .await
    .json();
    let id = key["id"].as_str().expect("an id");
    ok(&place, &["keys", "revoke", id]).await;
    ok(&place, &["budget", "set", "bot", "2/day"]).await;
    ok(&place, &["budget", "reset", "bot", "--reason", "a mistake"]).await;
    ok(&place, &["agents", "disable", "bot"]).await;
    ok(&place, &["agents", "remove", "bot"]).await;
    let events = ok(&place, &["audit", "events"]).await;
    let text = masked(&events);
    assert_snapshot!(text, @"
    TIME→EVENT→SUBJECT→BY→DETAIL
    TIME→agent_changed→bot→cli from USER→added; budget 1.00/total
    TIME→key_created→KEY_ID→cli from USER→for bot; expires never
    TIME→key_revoked→KEY_ID→cli from USER→of bot
    TIME→budget_changed→bot→cli from USER→set to 2.00/day
    TIME→budget_changed→bot→cli from USER→reset day: a mistake
    TIME→agent_changed→bot→cli from USER→disabled
    TIME→agent_changed→bot→cli from USER→removed
    --- stderr
    --- code 0
    ");
    let latest = ok(&place, &["audit", "events", "--limit", "1", "--json"]).await;
    let removed = &latest.json()[0];
    assert_eq!(removed["detail"], "removed");
    let enabled = serde_json::json!({ "key": "enabled", "old": false });
    let changes = removed["changes"].as_array().expect("a list");
    assert!(changes.contains(&enabled), "{removed}");
    assert!(
        latest.stderr.contains("only the latest 1 is shown"),
        "{latest:?}"
    );
    let old = ok(&place, &["audit", "events", "--until", "1h", "--json"]).await;
    assert_eq!(old.stdout, "[]\n");
    let secret = key["key"].as_str().expect("a key");
    assert!(
        !lines_of_the_log(&place)
            .iter()
            .any(|line| line.contains(secret))
    );
    let verified = ok(&place, &["audit", "verify", "--json"]).await.json();
    assert_eq!(verified["ok"], true);
    assert_eq!(
        verified["chains"].as_array().map(Vec::len),
        Some(7),
        "{verified}"
    );
    assert_eq!(verified["chains"][0]["ended"], true);
}

/// All lines, in the order of chains.
fn lines_of_the_log(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let read = |file| fs::read_to_string(file).expect("it can be read");
    let texts: Vec<String> = files.iter().map(read).collect();
    texts
        .iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let place = Place::new(GOVERNED);
    fs::create_dir(place.file("data")).expect("made");
    fs::write(place.file("data/audit"), "a file").expect("written");
    let ran = place.run(&["agents", "add", "bot"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("the audit directory"), "{ran:?}");
    fs::remove_file(place.file("data/audit")).expect("removed");
    let agents = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(agents.as_array().map(Vec::len), Some(1), "{agents}");
}
