//! `README.md`: its configs are configs, its commands exist.

use std::{fs, path::PathBuf};

use serde_json::json;

use crate::support::Place;

/// Variables that its configs take from the environment.
const VARIABLES: [(&str, &str); 3] = [
    ("DOCS_TOKEN", "t"),
    ("GITHUB_TOKEN", "t"),
    ("RESEARCHER_KEY", "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"),
];
/// Programs of others that it tells people to run.
const OTHERS: [&str; 2] = ["claude", "curl"];

#[tokio::test]
async fn its_configs_have_no_mistakes() {
    let mut found = 0;
    for (kind, text) in blocks() {
        if kind == "sh" {
            continue;
        }
        found += 1;
        let place = Place::new("");
        let name = format!("config.{kind}");
        fs::write(place.file(&name), &text).expect("written");
        let mut command = place.command(&["check", "--json", "--config", &name]);
        command.envs(VARIABLES);
        let checked = crate::support::finish(command).await;
        assert_eq!(checked.code, Some(0), "{text}\n{checked:?}");
        assert_eq!(checked.json()["notices"], json!([]), "{text}");
        let servers = &checked.json()["config"]["servers"];
        let is_empty = servers.as_object().is_none_or(serde_json::Map::is_empty);
        assert_eq!(is_empty, !names_servers(&text), "{text}\n{checked:?}");
    }
    assert!(found > 4, "{found}");
}

/// Whether a config says anything of a server, in TOML or JSON.
fn names_servers(config: &str) -> bool {
    config.contains("[servers.") || config.contains("ervers\":")
}

#[tokio::test]
async fn its_commands_exist() {
    let place = Place::new("");
    let mut found = 0;
    for line in commands() {
        let words = words(&line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let args = match words.as_slice() {
            ["tollbridge", args @ ..] | ["cargo", "run", "--release", "--", args @ ..] => args,
            ["cargo", args @ ..] => {
                is_of_this_crate(args);
                continue;
            }
            [other, ..] if OTHERS.contains(other) => continue,
            _ => panic!("{line}: what is it a command of?"),
        };
        found += 1;
        // What comes before it is read first, and is to be right.
        let args = [args, &["--help"]].concat();
        let ran = place.run(&args).await;
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    }
    assert!(found > 10, "{found}");
}

/// `cargo` finds what the command names.
fn is_of_this_crate(args: &[&str]) {
    match args {
        ["build", "--locked", "--profile", profile] => {
            let manifest = read("Cargo.toml");
            let is_there = manifest.contains(&format!("[profile.{profile}]"));
            assert!(is_there, "there is no profile {profile}");
        }
        ["test"] | ["install", "--path", "."] => {}
        ["bench", "--bench", name] => {
            let manifest = read("Cargo.toml");
            let is_there = manifest.contains(&format!("name = \"{name}\""));
            assert!(is_there, "there is no benchmark {name}");
        }
        _ => panic!("cargo {args:?}: is it right?"),
    }
}

/// The lines of its blocks of commands, and what else in the text is one of ours.
fn commands() -> Vec<String> {
    let mut all = Vec::new();
    for (kind, text) in blocks() {
        if kind == "sh" {
            let joined = text.replace("\\\n", " ");
            all.extend(joined.lines().map(str::to_owned));
        }
    }
    let readme = read("README.md");
    let prose: String = readme.split("```").step_by(2).collect();
    let spans = prose.split('`').skip(1).step_by(2);
    let ours = ["tollbridge ", "cargo "];
    all.extend(
        spans
            .filter(|span| ours.iter().any(|it| span.starts_with(it)))
            .map(str::to_owned),
    );
    all
}

/// The words of a command, without its comment and where its output goes.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let line = line.split(" > ").next().unwrap_or_default();
    let words = line.split_whitespace();
    words.map(|word| word.replace('\'', "")).collect()
}

/// Its blocks of code, each with what it is written in.
fn blocks() -> Vec<(String, String)> {
    let readme = read("README.md");
    let blocks = readme.split("```").skip(1).step_by(2);
    let blocks = blocks.map(|block| {
        let (kind, text) = block.split_once('\n').expect("a block has a first line");
        assert!(
            ["json", "sh", "toml"].contains(&kind),
            "a block is `json`, `sh` or `toml`, not `{kind}`"
        );
        (kind.to_owned(), text.to_owned())
    });
    blocks.collect()
}

fn read(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).expect("it is there")
}
