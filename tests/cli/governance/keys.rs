//! Keys: shown once, listed and revoked, and none where the config asks for none.

use std::{io, process::Stdio};

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{GOVERNED, masked, ok};
use crate::support::{Place, TOOLBOX, bounded};

#[tokio::test]
async fn keys_are_shown_once() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    let made = ok(&place, &["keys", "create", "bot", "--expires", "90d"]).await;
    assert_snapshot!(masked(&made), @"
    KEY
    --- stderr
    key KEY_ID for agent `bot`, expires TIME; it is not shown again
    --- code 0
    ");
    let key = made.stdout.trim();
    let object = ok(&place, &["keys", "create", "researcher", "--json"])
        .await
        .json();
    assert_eq!(object["agent"], "researcher");
    assert_eq!(
        (&object["state"], &object["expires"]),
        (&json!("live"), &Value::Null)
    );
    assert!(
        object["key"]
            .as_str()
            .is_some_and(|key| key.starts_with("tbk_"))
    );
    let listed = ok(&place, &["keys", "list"]).await;
    assert_snapshot!(masked(&listed), @"
    ID→AGENT→PREFIX→STATE→CREATED→EXPIRES→LAST USED
    KEY_ID→bot→PREFIX→live→TIME→TIME→
    KEY_ID→researcher→PREFIX→live→TIME→→
    --- stderr
    keys that are written in the config are not listed; these have some: researcher
    --- code 0
    ");
    assert!(!listed.stdout.contains(key));
    let of_bot = ok(&place, &["keys", "list", "bot", "--json"]).await.json();
    assert_eq!(of_bot.as_array().map(Vec::len), Some(1), "{of_bot}");
    let id = of_bot[0]["id"].as_str().expect("an id");
    let revoked = ok(&place, &["keys", "revoke", id, "--json"]).await.json();
    assert_eq!(revoked["state"], "revoked");
    assert!(revoked["revoked"].is_string() && revoked.get("key").is_none());
    let again = ok(&place, &["keys", "revoke", id]).await;
    assert_snapshot!(masked(&again), @"
    key KEY_ID of agent `bot` is revoked already
    --- stderr
    --- code 0
    ");
    let unlike = place.run(&["keys", "revoke", &id[..id.len() - 1]]).await;
    assert!(unlike.stderr.contains("did you mean `key_"), "{unlike:?}");
    ok(&place, &["agents", "remove", "bot"]).await;
    let gone = ok(&place, &["keys", "list", "--json"]).await.json();
    assert_eq!(
        gone.as_array().map(Vec::len),
        Some(1),
        "keys go with their agent"
    );
}

/// A key that could not be written was seen by nobody, and opens nothing.
#[tokio::test]
async fn a_key_that_cannot_be_shown_is_revoked() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    for args in [
        &["keys", "create", "bot"][..],
        &["keys", "create", "bot", "--json"],
    ] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut command = place.command(args);
        command.stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().expect("it starts");
        let made = bounded(child.wait_with_output()).await.expect("it ends");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(
            said.contains("nobody has seen it: it is revoked (key_"),
            "{said}"
        );
        assert_eq!(made.status.code(), Some(1));
    }
    let listed = ok(&place, &["keys", "list", "--json"]).await.json();
    let states = listed.as_array().expect("a list").iter();
    let states: Vec<_> = states.map(|key| &key["state"]).collect();
    assert_eq!(states, ["revoked", "revoked"]);
}

#[tokio::test]
async fn a_config_that_asks_for_no_keys_gets_none() {
    let place = Place::new(TOOLBOX);
    let added = ok(&place, &["agents", "add", "bot"]).await;
    assert!(
        added
            .stderr
            .contains("nobody can call as this agent over HTTP"),
        "{added:?}"
    );
    let none = place.run(&["keys", "create", "bot"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(2), ""), "{none:?}");
    assert!(
        none.stderr.contains("the config asks for no keys"),
        "{none:?}"
    );
    let shown = ok(&place, &["budget", "show"]).await;
    assert!(
        shown.stderr.contains("the config has no `[governance]`"),
        "{shown:?}"
    );
    let all = ok(&place, &["agents", "list", "--json"]).await.json();
    assert_eq!(all[0]["name"], "anonymous");
    assert_eq!(all[0]["origin"], "builtin");
    let listed = ok(&place, &["list", "--agent", "bot"]).await;
    assert!(listed.stdout.contains("mcp_toolbox_hash"), "{listed:?}");
}
