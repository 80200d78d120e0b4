//! An audit that was changed, cut or lost in part: `verify` names the place, and nothing is gained.

use std::fs;

use serde_json::json;
use sqlx::Connection;

use super::{GOVERNED, ok};
use crate::support::Place;

/// One byte of one line is changed.
pub(super) async fn tampering_is_found(place: &Place) {
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let files = entries.map(|entry| entry.expect("a file").path());
    let found = files.filter_map(|file| {
        let text = fs::read_to_string(&file).ok()?;
        text.contains(r#""decision":"refused""#)
            .then_some((file, text))
    });
    let (file, text) = found.last().expect("there is a refusal");
    let line = text
        .lines()
        .position(|line| line.contains(r#""decision":"refused""#));
    let line = line.expect("it is there") + 1;
    let changed = text.replacen(r#""code":"BUDGET"#, r#""code":"BUDGES"#, 1);
    assert_ne!(changed, text);
    fs::write(&file, changed).expect("written");
    let ran = place.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expect = format!("segment 1, line {line}, seq {line}: `hash` is not the hash of the line");
    assert!(ran.stdout.contains(&expect), "{expect}: {ran:?}");
    let object = place.run(&["audit", "verify", "--json"]).await.json();
    assert_eq!(object["ok"], false);
    let chains = object["chains"].as_array().expect("an array");
    let faults: Vec<_> = chains
        .iter()
        .filter(|chain| !chain["fault"].is_null())
        .collect();
    assert_eq!(faults.len(), 1, "{object}");
    assert_eq!(faults[0]["fault"]["line"], line);
}

/// What is gone of the log is named as long as the index knows it, and is an event from the next
/// start of a gateway on.
#[tokio::test]
async fn missing_records_are_named() {
    let place = Place::new(GOVERNED);
    for _ in 0..2 {
        let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
        let called = place
            .run(&[&call[..], &["--agent", "researcher"]].concat())
            .await;
        assert_eq!(called.code, Some(0), "{called:?}");
    }
    ok(&place, &["audit"]).await;
    let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let [gone, cut] = &files[..] else {
        panic!("{files:?}");
    };
    let text = fs::read_to_string(cut).expect("it can be read");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    // Recovery writes an end as long as this one.
    let rest = lines[..lines.len() - 1].concat();
    fs::write(cut, &rest).expect("written");
    let bytes_gone = fs::metadata(gone).expect("it is there").len();
    fs::remove_file(gone).expect("removed");

    let chain = |path: &std::path::Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_suffix(".1.jsonl"))
            .expect("a segment")
            .to_owned()
    };
    let ran = place.run(&["audit", "verify"]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let whole = format!(
        "chain {}, segment 1: {bytes_gone} bytes indexed, the file is missing\n\
         chain {}, segment 1: {} bytes indexed, {} found\n",
        chain(gone),
        chain(cut),
        text.len(),
        rest.len()
    );
    assert_eq!(ran.stdout, whole);
    let object = place.run(&["audit", "verify", "--json"]).await.json();
    assert_eq!(
        (&object["ok"], &object["indexed"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        object["shortened"],
        json!([
            {"chain": chain(gone), "segment": 1, "bytes_known": bytes_gone, "bytes_found": null, "changed": false},
            {"chain": chain(cut), "segment": 1, "bytes_known": text.len(), "bytes_found": rest.len(), "changed": false},
        ])
    );

    for _ in 0..2 {
        let serving = place.serve().await;
        serving.end(rustix::process::Signal::TERM).await;
        let events = ok(&place, &["audit", "events", "--json"]).await.json();
        let events = events.as_array().expect("an array").iter();
        let lost = events.filter(|event| event["event"] == "log_shortened");
        let lost: Vec<_> = lost.map(|event| event["subject"].clone()).collect();
        assert_eq!(
            lost,
            [gone, cut].map(|path| json!(format!("{}/1", chain(path))))
        );
    }
    ok(&place, &["audit", "verify"]).await;
}

/// The index knows a chain to its end once its gateway has stopped: no later start is needed to
/// miss the last line, or a part of it.
#[tokio::test]
async fn a_missing_end_is_named() {
    for left in [0, 20] {
        let place = Place::new(GOVERNED);
        let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
        ok(&place, &[&call[..], &["--agent", "researcher"]].concat()).await;
        ok(&place, &["audit", "verify"]).await;
        let entries = fs::read_dir(place.file("data/audit")).expect("it is there");
        let files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
        let [file] = &files[..] else {
            panic!("{files:?}");
        };
        let text = fs::read_to_string(file).expect("it can be read");
        let end = text.trim_end().rfind('\n').expect("several lines") + 1;
        assert!(text[end..].starts_with(r#"{"kind":"end""#), "{text}");
        fs::write(file, &text[..end + left]).expect("written");
        let ran = place.run(&["audit", "verify"]).await;
        assert_eq!(ran.code, Some(1), "{left}: {ran:?}");
        let known = format!("{} bytes indexed, {end} found\n", text.len());
        assert!(ran.stdout.ends_with(&known), "{left}: {ran:?}");
    }
}

/// Whoever keeps the public key and the hashes elsewhere needs nothing of the data directory but the log.
#[tokio::test]
async fn a_log_is_held_against_what_was_kept_elsewhere() {
    let place = Place::new(GOVERNED);
    let none = place.run(&["audit", "public-key"]).await;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.contains("no audit.key in"), "{none:?}");
    let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
    for _ in 0..2 {
        ok(&place, &[&call[..], &["--agent", "researcher"]].concat()).await;
    }
    let key = ok(&place, &["audit", "public-key"]).await.stdout;
    let key = key.trim_end();
    assert!(key.len() == 64 && key.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let report = ok(&place, &["audit", "verify", "--json"]).await.json();
    let of = |n: usize, member: &str| report["chains"][n][member].as_str().map(str::to_owned);
    let [first, second] = [0, 1].map(|n| of(n, "hash").expect("a hash"));

    // The key of the directory is not asked for.
    fs::rename(place.file("data/audit.key"), place.file("kept.key")).expect("renamed");
    let keyless = place.run(&["audit", "verify"]).await;
    assert_eq!(keyless.code, Some(1), "{keyless:?}");
    let said = "no audit.key to verify signatures; use --key\n";
    assert!(keyless.stderr.ends_with(said), "{keyless:?}");
    let expecting = [
        "audit", "verify", "--key", key, "--expect", &first, "--expect", &second,
    ];
    ok(&place, &expecting).await;
    let other = "0".repeat(64);
    let forged = place.run(&["audit", "verify", "--key", &other]).await;
    assert_eq!(forged.code, Some(1), "{forged:?}");
    assert!(
        forged
            .stdout
            .contains("its signature does not match a trusted key"),
        "{forged:?}"
    );
    let emptied = Place::new(GOVERNED);
    let emptied = emptied.run(&["audit", "verify", "--key", key]).await;
    assert_eq!(emptied.code, Some(1), "an audit that it signed is missing");
    let mistaken = place.run(&["audit", "verify", "--key", "abc"]).await;
    assert_eq!(mistaken.code, Some(2), "{mistaken:?}");
    assert!(
        mistaken.stderr.contains("a public key is 64 hex digits"),
        "{mistaken:?}"
    );

    let gone = format!("data/audit/{}.1.jsonl", of(0, "chain").expect("a chain"));
    fs::remove_file(place.file(&gone)).expect("removed");
    let missing = place.run(&expecting).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(
        missing
            .stdout
            .ends_with(&format!("no line has the hash {first}\n")),
        "{missing:?}"
    );
    let object = place
        .run(&[&expecting[..], &["--json"]].concat())
        .await
        .json();
    assert_eq!(object["missing"], json!([first]));
}

/// Who cuts the audit gets no money back, be it of a process that ended or of one that was killed.
#[tokio::test]
async fn a_cut_audit_gives_no_budget_back() {
    let place = Place::new(GOVERNED);
    let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
    let args = [&call[..], &["--agent", "researcher"]].concat();
    for _ in 0..3 {
        ok(&place, &args).await;
    }
    let show = ["budget", "show", "researcher", "--json"];
    let before = ok(&place, &show).await.json();
    assert_eq!(before[0]["spent"], "0.75", "{before}");
    for entry in fs::read_dir(place.file("data/audit")).expect("it is there") {
        let path = entry.expect("a file").path();
        let text = fs::read_to_string(&path).expect("it can be read");
        let first = text.split_inclusive('\n').next().expect("a line");
        fs::write(&path, first).expect("written");
    }
    let serving = place.serve().await;
    serving.end(rustix::process::Signal::TERM).await;
    assert_eq!(ok(&place, &show).await.json()[0]["spent"], "0.75");
}

/// The log is verified also where its index is of no use.
#[tokio::test]
async fn records_are_verified_without_the_index() {
    let place = Place::new(GOVERNED);
    let call = ["call", "mcp_toolbox_hash", "--arg", "text=1"];
    let args = [&call[..], &["--agent", "researcher"]].concat();
    assert_eq!(place.run(&args).await.code, Some(0));
    let url = format!("sqlite:{}", place.file("data/tollbridge.db").display());
    let mut store = sqlx::SqliteConnection::connect(&url)
        .await
        .expect("a store");
    let drop = sqlx::raw_sql("DROP TABLE audit_segments")
        .execute(&mut store)
        .await;
    drop.expect("dropped");
    store.close().await.expect("closed");
    uncompared(&place).await;
    fs::write(place.file("data/tollbridge.db"), "not a database").expect("written");
    uncompared(&place).await;
}

async fn uncompared(place: &Place) {
    let ran = ok(place, &["audit", "verify", "--json"]).await;
    let said = "the audit log was not compared with its index: ";
    assert!(ran.stderr.starts_with(said), "{ran:?}");
    assert_eq!(ran.json()["indexed"], false);
}
