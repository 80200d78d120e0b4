//! Changes while a gateway runs: they count at once, and who makes them learns when they may not.

use std::fs;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
};

use super::{GOVERNED, RESEARCHER, call, call_with, ok, tampering::tampering_is_found};
use crate::support::{Place, bounded};

#[tokio::test]
async fn what_is_changed_counts_at_once_in_a_gateway_that_runs() {
    let place = Place::new(GOVERNED);
    let serving = place.serve().await;
    ok(
        &place,
        &[
            "agents", "add", "bot", "--policy", "all", "--budget", "0.25/day",
        ],
    )
    .await;
    let key = ok(&place, &["keys", "create", "bot"]).await.stdout;
    let key = key.trim();

    let first = call(&serving, key).await;
    assert!(first.1["result"]["content"].is_array(), "{first:?}");
    let second = call(&serving, key).await;
    assert_eq!(
        (second.0, &second.1["error"]["code"]),
        (200, &json!(-32001)),
        "{second:?}"
    );
    let spent = ok(&place, &["budget", "show", "bot", "--json"])
        .await
        .json();
    assert_eq!(
        spent[0]["spent_micros"], 250_000,
        "a gateway that is asked says it: {spent}"
    );
    ok(&place, &["budget", "reset", "bot", "--reason", "one more"]).await;
    let third = call(&serving, key).await;
    assert!(
        third.1["result"].is_object(),
        "a reset counts at once: {third:?}"
    );
    ok(&place, &["budget", "set", "bot", "0.60/day"]).await;
    let fourth = call(&serving, key).await;
    assert!(
        fourth.1["result"].is_object(),
        "a new limit counts at once: {fourth:?}"
    );

    ok(&place, &["agents", "disable", "bot"]).await;
    let disabled = call(&serving, key).await;
    assert_eq!(
        (disabled.0, &disabled.1["error"]["code"]),
        (200, &json!(-32003)),
        "{disabled:?}"
    );
    ok(&place, &["agents", "enable", "bot"]).await;
    ok(&place, &["agents", "set", "bot", "--policy", "none"]).await;
    let unlisted = call(&serving, key).await;
    assert_eq!(unlisted.1["error"]["code"], -32003, "{unlisted:?}");

    let id = ok(&place, &["keys", "list", "bot", "--json"]).await.json();
    let id = id[0]["id"].as_str().expect("an id");
    ok(&place, &["keys", "revoke", id]).await;
    let (status, _) = call(&serving, key).await;
    assert_eq!(status, 401, "a revoked key opens nothing, at once");
    let (status, _) = call(&serving, RESEARCHER).await;
    assert_eq!(status, 200);

    let ended = serving.end(rustix::process::Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    what_was_called_is_recorded(&place).await;
    tampering_is_found(&place).await;
}

async fn what_was_called_is_recorded(place: &Place) {
    let args = ["audit", "--agent", "bot", "--json"];
    let records = ok(place, &args).await.json();
    let records = records.as_array().expect("an array").iter();
    let decisions: Vec<_> = records.map(|record| record["decision"].as_str()).collect();
    let [allowed, refused] = ["allowed", "refused"].map(Some);
    assert_eq!(
        decisions,
        [allowed, refused, allowed, allowed, refused, refused]
    );
    let verified = ok(place, &["audit", "verify"]).await;
    assert!(verified.stdout.starts_with("verified: "), "{verified:?}");
}

/// What the command line writes, a gateway that runs goes by.
#[tokio::test]
async fn terms_of_the_store_govern() {
    let place = Place::new(GOVERNED);
    let scan = "{ arguments = { email = \"block\" } }";
    let args = "{ name = \"short\", at = \"/text\", matches = \"^.{20}\" }";
    let add = [
        "agents", "add", "bot", "--policy", "all", "--scan", scan, "--args", args,
    ];
    ok(&place, &add).await;
    let created = ok(&place, &["keys", "create", "bot", "--json"])
        .await
        .json();
    let key = created["key"].as_str().expect("a key").to_owned();
    let serving = place.serve().await;
    let hash = async |data: &str| {
        let (_, answer) = call_with(&serving, &key, data).await;
        answer["error"]["data"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(hash("a").await, "");
    assert_eq!(hash("a@example.org").await, "PII_DETECTED");
    assert_eq!(hash("twenty letters or more").await, "UNAUTHORIZED");
    ok(
        &place,
        &["agents", "set", "bot", "--observe", "scan", "args"],
    )
    .await;
    assert_eq!(hash("a@example.org").await, "");
    assert_eq!(hash("twenty letters or more").await, "");
    ok(&place, &["agents", "set", "bot", "--tool-rate", "1/24h"]).await;
    assert_eq!(hash("a").await, "");
    assert_eq!(hash("a").await, "RATE_LIMITED");
    serving.end(rustix::process::Signal::INT).await;
}

/// A change that no running gateway hears of says so: the one that runs may use another directory.
#[tokio::test]
async fn a_change_that_no_gateway_hears_of_says_so() {
    let place = Place::new(GOVERNED);
    let added = ok(&place, &["agents", "add", "bot"]).await;
    let dir = place.file("data");
    let expect = format!(
        "no gateway is running on {}: the change applies at the next start\n",
        dir.display()
    );
    assert_eq!(added.unheard, expect);
    let key = ok(&place, &["keys", "create", "bot", "--json"]).await;
    assert_eq!(key.unheard, expect);
    let id = key.json()["id"].as_str().expect("an id").to_owned();
    let changes = [
        &["keys", "revoke", &id][..],
        &["keys", "revoke", &id],
        &["budget", "set", "bot", "2/day"],
        &["budget", "reset", "bot", "--reason", "a slip"],
        &["agents", "disable", "bot"],
    ];
    for change in changes {
        assert_eq!(ok(&place, change).await.unheard, expect, "{change:?}");
    }
    assert_eq!(ok(&place, &["budget", "show"]).await.unheard, "");
    let serving = place.serve().await;
    for change in changes {
        assert_eq!(ok(&place, change).await.unheard, "", "{change:?}");
    }
    serving.end(rustix::process::Signal::TERM).await;
}

/// A change is written all the same, and the exit code says that it may not be in force.
#[tokio::test]
async fn a_gateway_that_cannot_be_told_is_a_failure() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    fs::create_dir_all(place.file("data/control")).expect("made");
    let socket = place.file("data/control/odd.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let refuse = async || {
        let (mut stream, _) = listener.accept().await.expect("a command");
        let mut asked = [0; b"refresh\n".len()];
        stream.read_exact(&mut asked).await.expect("a line");
        let answer = b"its store is gone\n";
        stream.write_all(answer).await.expect("it is read");
    };
    let disable = ["agents", "disable", "bot"];
    let (ran, ()) = tokio::join!(place.run(&disable), bounded(refuse()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expect = "the change was saved but may not be in effect there: its store is gone";
    assert!(ran.stderr.contains(expect), "{ran:?}");
    let (ran, ()) = tokio::join!(place.run(&["budget", "show", "bot"]), bounded(refuse()));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("spending without a limit is not shown"),
        "{ran:?}"
    );
    drop(listener);
    let shown = ok(&place, &["agents", "show", "bot", "--json"])
        .await
        .json();
    assert_eq!(shown["enabled"], false);
    ok(&place, &["agents", "enable", "bot"]).await;
    assert!(!socket.exists(), "what a dead gateway left is removed");
}
