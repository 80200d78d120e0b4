//! Keys: shown once, listed and revoked, and none where the config asks for none.

use std::{fs, io, os::fd::OwnedFd, process::Stdio};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::{
        UnixListener,
        unix::pipe::{self, Receiver},
    },
    process::Child,
};

use super::{GOVERNED, in_store, masked, ok, store};
use crate::support::{Place, TOOLBOX, bounded, send, until};

/// Lets no key be stored.
const REFUSE: &str =
    "CREATE TRIGGER refuse BEFORE INSERT ON keys BEGIN SELECT RAISE(ABORT, 'not today'); END";

/// A pipe that takes nothing more until all of its filling is read: how much that is, and both ends.
async fn full_pipe() -> (usize, Receiver, OwnedFd) {
    let (writer, reader) = pipe::pipe().expect("a pipe");
    writer.writable().await.expect("there is room");
    let mut filling = 0;
    while let Ok(written) = writer.try_write(&[b'.'; 4096]) {
        filling += written;
    }
    let writer = writer.into_blocking_fd().expect("it blocks");
    assert!(filling > 0);
    (filling, reader, writer)
}

/// Reads the filling of a [`full_pipe`], so that there is room in it.
async fn make_room(filling: usize, reader: &mut Receiver) {
    let read = bounded(reader.read_exact(&mut vec![0; filling])).await;
    read.expect("the filling");
}

/// What comes after the filling, once all who write have ended.
async fn rest(mut reader: Receiver) -> String {
    let mut rest = String::new();
    let read = bounded(reader.read_to_string(&mut rest)).await;
    read.expect("it is text");
    rest
}

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
    let never = [
        "keys",
        "create",
        "researcher",
        "--expires",
        "never",
        "--json",
    ];
    let object = ok(&place, &never).await.json();
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
    keys in the config are not listed; agents with configured keys: researcher
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
    already revoked: key KEY_ID of agent `bot`
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

/// How long a key is good for, where nothing is said, and that people are told before.
#[tokio::test]
async fn keys_expire_after_a_year_or_what_the_config_says() {
    let until = async |place: &Place, more: &[&str]| {
        let args = [&["keys", "create", "researcher", "--json"], more].concat();
        let made = ok(place, &args).await.json();
        let expires = made["expires"]
            .as_str()?
            .parse::<jiff::Timestamp>()
            .unwrap();
        Some((expires.duration_since(jiff::Timestamp::now()).as_secs() + 86_399) / 86_400)
    };
    let place = Place::new(GOVERNED);
    assert_eq!(until(&place, &[]).await, Some(365));
    assert_eq!(until(&place, &["--expires", "never"]).await, None);
    assert_eq!(until(&place, &["--expires", "7d"]).await, Some(7));
    let listed = ok(&place, &["keys", "list"]).await;
    assert!(!listed.stderr.contains("expires soon"), "{listed:?}");
    for (setting, days) in [("30d", Some(30)), ("0s", None)] {
        let lifetime = format!("[governance]\nkey_lifetime = \"{setting}\"");
        place.write_private(
            "tollbridge.toml",
            &GOVERNED.replace("[governance]", &lifetime),
        );
        assert_eq!(until(&place, &[]).await, days, "{setting}");
    }
    // Within the last quarter of its time.
    let made = ok(&place, &["keys", "create", "researcher", "--expires", "4s"]).await;
    assert!(made.stdout.starts_with("tbk_"));
    let told = async {
        loop {
            let listed = ok(&place, &["keys", "list"]).await;
            if listed
                .stderr
                .contains("expires soon: create another with `tollbridge keys create researcher`")
            {
                break;
            }
        }
    };
    crate::support::bounded(told).await;
    let bad = place
        .run(&["keys", "create", "researcher", "--expires", "soon"])
        .await;
    assert!(bad.stderr.contains("or `never`"), "{bad:?}");
}

/// A key that could not be written was seen by nobody, and there is none.
#[tokio::test]
async fn a_key_that_cannot_be_shown_is_none() {
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
        assert!(said.contains("the key was not activated"), "{said}");
        assert_eq!(made.status.code(), Some(1));
    }
    let listed = ok(&place, &["keys", "list", "--json"]).await.stdout;
    assert_eq!(listed, "[]\n");
    let events = events_of_keys(&place).await;
    assert_eq!(events, ["key_created", "key_revoked"].repeat(2));
}

/// What the audit says of keys, in order.
async fn events_of_keys(place: &Place) -> Vec<String> {
    let events = ok(place, &["audit", "events", "--json"]).await.json();
    let events = events.as_array().expect("a list").iter();
    let events = events.filter_map(|event| event["event"].as_str());
    let events = events.filter(|event| event.starts_with("key_"));
    events.map(str::to_owned).collect()
}

/// The beginnings of the keys that open something.
async fn live(place: &Place) -> Vec<String> {
    let listed = ok(place, &["keys", "list", "--json"]).await.json();
    let listed = listed.as_array().expect("a list").iter();
    let live = listed.filter(|key| key["state"] == "live");
    let prefixes = live.map(|key| key["prefix"].as_str().expect("a text").to_owned());
    prefixes.collect()
}

/// Whoever is interrupted while a gateway is told has the key that the store has.
#[tokio::test]
async fn an_interrupted_command_leaves_no_key_that_nobody_has_seen() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    fs::create_dir_all(place.file("data/control")).expect("made");
    let socket = place.file("data/control/odd.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let child = place.command(&["keys", "create", "bot"]).spawn();
    let child = child.expect("it starts");
    let told = bounded(listener.accept()).await.expect("a command");
    send(&child, Signal::INT);
    let made = bounded(child.wait_with_output()).await.expect("it ends");
    assert_eq!(made.status.code(), Some(130));
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("may not be in effect"), "{said}");
    drop((told, listener));
    let (live, shown) = (live(&place).await, String::from_utf8_lossy(&made.stdout));
    assert_eq!(live.len(), 1, "{live:?}");
    assert!(shown.starts_with(&live[0]), "{shown} is not {live:?}");
}

/// Whoever is interrupted between its record and its end has a key that is both, as its record says.
#[tokio::test]
async fn an_interrupted_command_ends_what_it_recorded() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    let (code, said, shown) = interrupted_in_storing(&place).await;
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("may not be in effect"), "{said}");
    let live = live(&place).await;
    assert_eq!(live.len(), 1, "{live:?}");
    assert!(shown.starts_with(&live[0]), "{shown} is not {live:?}");
    assert_eq!(events_of_keys(&place).await, ["key_created"]);
}

/// Whoever interrupts what then fails hears why.
#[tokio::test]
async fn an_interrupted_command_says_why_it_failed() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    in_store(&place, REFUSE).await;
    let (code, said, _) = interrupted_in_storing(&place).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is not valid because"), "{said}");
}

/// How a command ends that is interrupted while it waits to store the key that it has shown, and what it
/// wrote to stderr and stdout.
async fn interrupted_in_storing(place: &Place) -> (Option<i32>, String, String) {
    let (mut child, filling, mut pipe) = stuck_in_showing(place).await;
    let mut store = store(place).await;
    let lock = store.begin_with("BEGIN IMMEDIATE").await.expect("free");
    make_room(filling, &mut pipe).await;
    send(&child, Signal::TERM);
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut said = String::new();
    bounded(stderr.read_line(&mut said)).await.expect("a line");
    assert!(said.contains("finishing the record"), "{said}");
    lock.rollback().await.expect("let go");
    bounded(stderr.read_to_string(&mut said))
        .await
        .expect("all");
    let ended = bounded(child.wait()).await.expect("it ends");
    (ended.code(), said, rest(pipe).await)
}

/// A command that makes a key for `bot`, has begun its chain, and cannot end before the pipe is read.
async fn stuck_in_showing(place: &Place) -> (Child, usize, Receiver) {
    let chains = || fs::read_dir(place.file("data/audit")).map_or(0, Iterator::count);
    let before = chains();
    let (filling, reader, writer) = full_pipe().await;
    let mut command = place.command(&["keys", "create", "bot"]);
    let child = command.stdout(writer).spawn().expect("it starts");
    until(|| (chains() > before).then_some(())).await;
    (child, filling, reader)
}

/// A key that cannot be stored opens nothing, as its command says.
#[tokio::test]
async fn a_key_that_cannot_be_stored_says_so() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    in_store(&place, REFUSE).await;
    let made = place.run(&["keys", "create", "bot"]).await;
    assert_eq!(made.code, Some(1), "{made:?}");
    let expect = "the key shown is not valid because it could not be stored: ";
    assert!(made.stderr.contains(expect), "{made:?}");
    assert!(made.stderr.contains("not today"), "{made:?}");
    assert_eq!(events_of_keys(&place).await, ["key_created", "key_revoked"]);
}

/// A key whose record cannot be kept is none: one that is there was recorded, and seen, before.
#[tokio::test]
async fn a_key_is_recorded_before_it_opens_anything() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    let (child, filling, mut pipe) = stuck_in_showing(&place).await;
    // Its own chain is begun, and there it finds nothing more to write to.
    fs::rename(place.file("data/audit"), place.file("data/away")).expect("moved");
    make_room(filling, &mut pipe).await;
    let made = bounded(child.wait_with_output()).await.expect("it ends");
    let shown = rest(pipe).await;
    assert_eq!(made.status.code(), Some(1));
    fs::rename(place.file("data/away"), place.file("data/audit")).expect("moved");
    let events = events_of_keys(&place).await;
    match live(&place).await.as_slice() {
        // It could not be recorded.
        [] => assert_eq!((&*shown, events.as_slice()), ("", &[][..])),
        all => {
            assert_eq!(all.len(), 1, "{all:?}");
            assert!(shown.starts_with(&all[0]), "nobody has seen {all:?}");
            assert_eq!(events, ["key_created"]);
        }
    }
}

/// Where no record can be kept, the key is not even shown.
#[tokio::test]
async fn a_key_that_cannot_be_recorded_is_none() {
    let place = Place::new(GOVERNED);
    ok(&place, &["agents", "add", "bot"]).await;
    // The store is open already: no file of it grows when it is opened again.
    let serving = place.serve().await;
    // In the first block of its file there is room for the beginning of a chain, and for nothing more.
    let program = env!("CARGO_BIN_EXE_tollbridge");
    let script = format!("trap '' XFSZ; ulimit -f 1; exec '{program}' keys create bot");
    let made = bounded(place.shell(&script).output()).await;
    let made = made.expect("it ends");
    let said = String::from_utf8_lossy(&made.stderr);
    assert_eq!((made.status.code(), &*made.stdout), (Some(1), &b""[..]));
    assert!(said.contains("cannot write the audit log"), "{said}");
    assert!(live(&place).await.is_empty());
    assert!(events_of_keys(&place).await.is_empty());
    serving.end(Signal::TERM).await;
}

#[tokio::test]
async fn a_config_that_asks_for_no_keys_gets_none() {
    let place = Place::new(TOOLBOX);
    let added = ok(&place, &["agents", "add", "bot"]).await;
    assert!(
        added.stderr.contains("this agent cannot be used over HTTP"),
        "{added:?}"
    );
    let none = place.run(&["keys", "create", "bot"]).await;
    assert_eq!((none.code, none.stdout.as_str()), (Some(2), ""), "{none:?}");
    assert!(
        none.stderr.contains("the config does not require keys"),
        "{none:?}"
    );
    // Who manages the gateway signs in there too.
    let added = ok(&place, &["agents", "add", "root", "--role", "admin"]).await;
    assert!(!added.stderr.contains("cannot be used"), "{added:?}");
    let key = ok(&place, &["keys", "create", "root"]).await;
    assert!(key.stdout.starts_with("tbk_"), "{key:?}");
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
