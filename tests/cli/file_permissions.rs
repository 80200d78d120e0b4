//! What other users of the machine can read or change.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::support::{Place, finish};

const KEYS: &str = "[governance]\nauth = \"keys\"\n[agents.bot]\n";
const KEY: &str = "keys = [\"4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a\"]\n";

fn set(place: &Place, name: &str, mode: u32) {
    fs::set_permissions(place.file(name), fs::Permissions::from_mode(mode)).expect("changed");
}

#[tokio::test]
async fn a_config_with_secrets_is_for_its_owner() {
    let place = Place::new(&format!("{KEYS}{KEY}"));
    let warning = "the file contains secrets and is readable by other users";
    for (mode, is_warned) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
        set(&place, "tollbridge.toml", mode);
        let ran = place.run(&["check"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stderr.contains(warning), is_warned, "{mode:o}: {ran:?}");
        assert!(!ran.stderr.contains("4f6c1d0a"), "{ran:?}");
    }
    // A variable is no secret, nor are settings about secrets, nor what is called like none.
    place.write_private("key", &"k".repeat(32));
    let server = "[servers.a]\nenabled = false\nurl = \"https://example.com/mcp\"\n";
    for (text, is_warned) in [
        (format!("{KEYS}keys = [\"${{KEY}}\"]\n"), false),
        ("workers = 2\n".to_owned(), false),
        ("[secrets]\nkey_file = \"key\"\n".to_owned(), false),
        ("[oauth]\naccess_token_lifetime = \"10m\"\n".to_owned(), false),
        (
            "[oauth]\nlogin = { issuer = \"https://a.example\", client_id = \"c\", client_secret = \"${S}\" }\n"
                .to_owned(),
            false,
        ),
        (
            "[oauth]\nlogin = { issuer = \"https://a.example\", client_id = \"c\", client_secret = \"s3\" }\n"
                .to_owned(),
            true,
        ),
        (
            format!(
                "{server}auth = {{ type = \"oauth2\", grant = \"client_credentials\", client_id = \"a\", \
                 private_key = \"key\" }}\n"
            ),
            false,
        ),
        (format!("{server}auth = {{ type = \"bearer\", token = \"t\" }}\n"), true),
        (format!("{server}headers = {{ Accept-Language = \"de\" }}\n"), false),
        (format!("{server}headers = {{ X-Api-Key = \"k\" }}\n"), true),
        ("[servers.a]\ncommand = \"a\"\nenv = { MODE = \"fast\" }\n".to_owned(), false),
        ("[servers.a]\ncommand = \"a\"\nenv = { A_TOKEN = \"t\" }\n".to_owned(), true),
        (
            "[servers.a]\nenabled = false\ncommand = \"a\"\nargs = [\"--token\", \"${secret:a}\"]\n\
             env = { X = \"${secret:a}\", A_TOKEN = \"t-${KEY}\", U = \"https://u:${KEY}@h/?key=${secret:a}\" }\n"
                .to_owned(),
            false,
        ),
        (
            "[servers.a]\ncommand = \"a\"\nenv = { URL = \"redis://u:pw@h\" }\n".to_owned(),
            true,
        ),
    ] {
        place.write_private("tollbridge.toml", &text);
        set(&place, "tollbridge.toml", 0o644);
        let mut command = place.command(&["check"]);
        command.env("KEY", "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a").env("S", "s");
        let ran = finish(command).await;
        assert_eq!(ran.stderr.contains(warning), is_warned, "{text}: {ran:?}");
    }
    for mode in [0o602, 0o666] {
        set(&place, "tollbridge.toml", mode);
        for command in ["check", "serve"] {
            let ran = place.run(&[command]).await;
            assert_eq!(ran.code, Some(2), "{mode:o}: {ran:?}");
            assert!(
                ran.stderr.contains("the file is writable by other users"),
                "{ran:?}"
            );
        }
    }
}

/// Variables decide what a program does, too.
#[tokio::test]
async fn a_file_of_variables_that_all_may_write_to_is_refused() {
    let place = Place::new("[servers.a]\ncommand = \"true\"\nenv_file = \"a.env\"\n");
    place.write_private("a.env", "A=1\n");
    for (mode, code) in [(0o640, Some(0)), (0o602, Some(2))] {
        set(&place, "a.env", mode);
        let ran = place.run(&["check"]).await;
        assert_eq!(ran.code, code, "{mode:o}: {ran:?}");
        let told = ran.stderr.contains("the file is writable by other users");
        assert_eq!(told, code == Some(2), "{ran:?}");
    }
}

#[tokio::test]
async fn a_data_directory_that_all_may_write_to_is_refused() {
    let place = Place::new("listen = \"127.0.0.1:0\"\n");
    fs::create_dir(place.file("data")).expect("made");
    for mode in [0o777, 0o1777, 0o703] {
        set(&place, "data", mode);
        let told = "is writable by other users";
        let checked = place.run(&["check"]).await;
        assert_eq!(checked.code, Some(0), "{checked:?}");
        assert!(checked.stderr.contains(told), "{mode:o}: {checked:?}");
        for command in [&["serve"][..], &["agents", "add", "bot"]] {
            let ran = place.run(command).await;
            assert_ne!(ran.code, Some(0), "{mode:o}: {ran:?}");
            assert!(ran.stderr.contains(told), "{mode:o}: {ran:?}");
        }
    }
    set(&place, "data", 0o755);
    let ran = place.run(&["agents", "add", "bot"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn a_private_key_is_for_its_owner_and_its_group() {
    let place =
        Place::new("listen = \"127.0.0.1:0\"\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
    let made = made.expect("a certificate");
    fs::write(place.file("cert.pem"), made.cert.pem()).expect("written");
    place.write_private("key.pem", &made.signing_key.serialize_pem());
    for (mode, is_taken) in [
        (0o600, true),
        (0o400, true),
        (0o640, true),
        (0o660, false),
        (0o644, false),
        (0o602, false),
    ] {
        set(&place, "key.pem", mode);
        let ran = place.run(&["check"]).await;
        assert_eq!(ran.code == Some(0), is_taken, "{mode:o}: {ran:?}");
        let told = ran.stderr.contains("is accessible by other users");
        assert_eq!(told, !is_taken, "{mode:o}: {ran:?}");
    }
}

/// What root writes, or SQLite for it, the user of the gateway could not open.
#[tokio::test]
async fn root_is_told_to_be_the_user_of_the_data_directory() {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let place = Place::new("");
    assert_eq!(place.run(&["agents", "add", "bot"]).await.code, Some(0));
    let store = place.file("data/tollbridge.db");
    std::os::unix::fs::chown(&store, Some(54_321), None).expect("changed");
    for args in [
        &["agents", "add", "cat"][..],
        &["keys", "list"],
        &["budget", "show"],
        &["audit"],
        &["serve"],
        &["stdio"],
        &["list"],
    ] {
        let ran = place.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        let line = format!("tollbridge {}", args.join(" "));
        assert!(
            ran.stderr.contains("sudo -u '#54321' "),
            "{args:?}: {ran:?}"
        );
        assert!(ran.stderr.contains(&line), "{args:?}: {ran:?}");
    }
    std::os::unix::fs::chown(&store, Some(0), None).expect("changed");
    assert_eq!(place.run(&["keys", "list"]).await.code, Some(0));
}
