//! Entries of the store beside the files of a config.

use std::{collections::HashMap, fs, path::Path};

use tempfile::TempDir;
use tollbridge::{
    config::{
        ConfigEntry, ConfigErrors, EntryKey, EntrySection, Environment, LoadedConfig, ReadSecrets,
        Secret, SecretKeyPlace, StoreReader, load,
    },
    names::{SecretName, ServerName},
};

/// A store that has these entries, and one secret.
struct EntryReader(Vec<ConfigEntry>);

impl StoreReader for EntryReader {
    fn secrets(&self, _: &Path, _: &SecretKeyPlace) -> Result<ReadSecrets, String> {
        let name = SecretName::parse("token").expect("a name");
        Ok(HashMap::from([(name, Ok(Secret::new("s3cret")))]))
    }

    fn entries(&self, _: &Path) -> Result<Vec<ConfigEntry>, String> {
        Ok(self.0.clone())
    }
}

fn server(name: &str, document: &str) -> ConfigEntry {
    ConfigEntry {
        key: EntryKey::new(EntrySection::Servers, name),
        document: document.to_owned(),
    }
}

/// Loads a file beside a store with `entries`.
fn load_beside(file: &str, entries: Vec<ConfigEntry>) -> Result<LoadedConfig, ConfigErrors> {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tollbridge.toml");
    fs::write(&path, file).expect("written");
    let environment =
        Environment::from_iter([("HOME", "/home/me"), ("TOKEN", "of-the-environment")]);
    load(&[path], &environment.with_store(EntryReader(entries)))
}

fn names(loaded: &LoadedConfig) -> Vec<&str> {
    loaded
        .config
        .servers
        .keys()
        .map(ServerName::as_str)
        .collect()
}

#[test]
fn entries_are_servers_like_those_of_files() {
    let documents = vec![
        server(
            "docs",
            r#"{"url": "https://docs.example.com/mcp", "price": "0.02"}"#,
        ),
        server(
            "tools",
            r#"{"command": "tools", "env": {"T": "${secret:token}"}}"#,
        ),
    ];
    let loaded = load_beside("[servers.own]\ncommand = 'own'", documents).unwrap();
    assert_eq!(names(&loaded), ["own", "docs", "tools"]);
    let keys: Vec<String> = loaded
        .config
        .entries
        .in_store
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(keys, ["server `docs`", "server `tools`"]);
    let shown = format!(
        "{:?}",
        loaded.config.servers[&ServerName::parse("tools").unwrap()].transport
    );
    assert!(shown.contains("tools"), "{shown}");
}

#[test]
fn what_a_file_has_counts() {
    let loaded = load_beside(
        "[servers.docs]\ncommand = 'of-file'",
        vec![server("docs", r#"{"command": "of-store"}"#)],
    )
    .unwrap();
    assert_eq!(names(&loaded), ["docs"]);
    assert!(loaded.config.entries.in_store.is_empty());
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        warnings
            .concat()
            .contains("overrides the server `docs` of the store"),
        "{warnings:?}"
    );
}

/// A gateway starts whatever stands in its store.
#[test]
fn a_wrong_entry_costs_itself_alone() {
    let wrong = [
        (r#"{"commnd": "x"}"#, "unknown key"),
        ("[]", "must be a table"),
        ("{", "not JSON"),
        (
            r#"{"command": "x", "env": {"T": "${secret:missing}"}}"#,
            "no secret `missing`",
        ),
        (
            r#"{"command": "x", "env": {"T": "${TOKEN}"}}"#,
            "variable of the environment",
        ),
        (
            r#"{"command": "x", "env": {"T": "${file:/etc/passwd}"}}"#,
            "variable of the environment",
        ),
        (
            r#"{"command": "x", "args": ["${HOME:x}"]}"#,
            "variable of the environment",
        ),
    ];
    for (document, fault) in wrong {
        let entries = vec![
            server("bad", document),
            server("good", r#"{"command": "good"}"#),
        ];
        let loaded = load_beside("[servers.own]\ncommand = 'own'", entries).unwrap();
        assert_eq!(names(&loaded), ["own", "good"], "{document}");
        let faulty = &loaded.config.entries.faulty;
        assert_eq!(faulty.len(), 1, "{document}");
        assert!(
            faulty[0].fault.contains(fault),
            "{document}: {}",
            faulty[0].fault
        );
    }
}

#[test]
fn a_dollar_is_written_twice() {
    let entries = vec![server("a", r#"{"command": "x", "args": ["$$HOME", "$1"]}"#)];
    let loaded = load_beside("", entries).unwrap();
    let shown = format!("{:?}", loaded.config.servers[0].transport);
    assert!(shown.contains("$HOME") && shown.contains("$1"), "{shown}");
}

/// Mistakes of files stay mistakes of files.
#[test]
fn a_wrong_file_is_refused_beside_entries() {
    let entries = vec![server("good", r#"{"command": "good"}"#)];
    let refused = load_beside("[servers.own]\ncommnd = 'own'", entries).unwrap_err();
    assert!(refused.to_string().contains("unknown key"), "{refused}");
}

/// What cannot be read is no mistake of the config, and not forgotten: who runs it decides.
#[test]
fn entries_that_cannot_be_read_are_noted() {
    struct Unreadable;
    impl StoreReader for Unreadable {
        fn secrets(&self, _: &Path, _: &SecretKeyPlace) -> Result<ReadSecrets, String> {
            Err("the disk is full".to_owned())
        }

        fn entries(&self, _: &Path) -> Result<Vec<ConfigEntry>, String> {
            Err("the disk is full".to_owned())
        }
    }
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("tollbridge.toml");
    fs::write(&path, "[servers.own]\ncommand = 'own'").expect("written");
    let environment = Environment::from_iter([("HOME", "/home/me")]);
    let loaded = load(&[path], &environment.with_store(Unreadable)).unwrap();
    assert_eq!(names(&loaded), ["own"]);
    assert_eq!(
        loaded.config.entries.unread.as_deref(),
        Some("the disk is full")
    );
}
