//! Where values come from that do not stand in a config.

use tollbridge::config::SecretKeyPlace;

use crate::{binary::Place, harness::parse};

const SERVER: &str = "[servers.a]\ncommand = 'sh'\nenv = { A = '${exec:echo x}' }";

#[tokio::test]
pub(crate) async fn exec() {
    let place = Place::new(SERVER);
    let off = place.run(&["check"]).await;
    assert!(off.stderr.contains("set `exec = true`"), "{off:?}");
    place.write_private("tollbridge.toml", &format!("secrets.exec = true\n{SERVER}"));
    let on = place.run(&["check"]).await;
    assert_eq!(on.code, Some(0), "{on:?}");
}

#[tokio::test]
pub(crate) async fn key_file() {
    let key = |text: &str| parse(text).unwrap().secrets.key;
    assert_eq!(key(""), SecretKeyPlace::DataDir);
    let named = SecretKeyPlace::File("/run/key".into());
    assert_eq!(key("secrets.key_file = '/run/key'"), named);
    let place = Place::new("secrets.key_file = 'key'");
    let missing = place.run_with("x", &["secret", "set", "a"]).await;
    let expect = "(`secrets.key_file`) cannot be read: No such file";
    assert!(missing.stderr.contains(expect), "{missing:?}");
    place.write_private("key", &"k".repeat(32));
    let set = place.run_with("x", &["secret", "set", "a"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    place.write_private("tollbridge.toml", "");
    let other = place.run(&["secret", "list"]).await;
    assert!(
        other.stderr.contains("key (`secrets.key_file`)"),
        "{other:?}"
    );
}
