//! Configs in the documents have no mistakes, commands exist, and entries for clients lead to the gateway.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::error::ErrorKind;
use serde_json::{Value, json};

use crate::{
    markdown::{CodeBlock, documents, read, root, split},
    support::{Place, finish},
};

/// Variables that configs take from the environment.
const VARIABLES: [(&str, &str); 4] = [
    ("DOCS_TOKEN", "t"),
    ("OIDC_SECRET", "t"),
    ("GITHUB_TOKEN", "t"),
    ("RESEARCHER_KEY", "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"),
];
/// Programs of others that people are told to run.
const OTHERS: [&str; 8] = [
    "claude",
    "cp",
    "curl",
    "docker",
    "openssl",
    "sqlite3",
    "systemctl",
    "umask",
];
/// What stands for something in 64 hex digits.
const HASHES: [&str; 2] = ["$HASH", "$PUBLIC_KEY"];
/// Servers that configs speak of and do not have.
const SPOKEN_OF: &str = "[servers.docs]\nurl = \"https://docs.example.com/mcp\"\n\
     [servers.github]\nurl = \"https://github.example.com/mcp\"\n";

/// Every block of code with its document; `examples/governed` is run by a test of its own, and the
/// architecture has pictures.
fn blocks() -> Vec<(PathBuf, CodeBlock)> {
    let documents = documents().into_iter();
    let documents =
        documents.filter(|it| !it.starts_with("examples") && !it.ends_with("ARCHITECTURE.md"));
    let blocks = documents.flat_map(|document| {
        let blocks = split(&read(&document)).0.into_iter();
        blocks.map(move |block| (document.clone(), block))
    });
    blocks.collect()
}

#[test]
fn every_block_says_what_it_is() {
    for (document, block) in blocks() {
        let known = [
            "json client",
            "mermaid",
            "python",
            "sh",
            "text",
            "toml",
            "toml client",
            "yaml",
            "yaml prometheus",
        ];
        let info = &block.info;
        assert!(
            known.contains(&info.as_str()),
            "{}: `{info}`",
            document.display()
        );
    }
}

#[tokio::test]
async fn configs_have_no_mistakes() {
    let mut found = 0;
    for (document, CodeBlock { info, text }) in blocks() {
        if !["toml", "yaml"].contains(&info.as_str()) {
            continue;
        }
        found += 1;
        let place = Place::new("");
        let name = format!("config.{info}");
        place.write_private(&name, &text);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        place.write_private("cert.pem", &made.cert.pem());
        place.write_private("ca.pem", &made.cert.pem());
        place.write_private("key.pem", &made.signing_key.serialize_pem());
        // What `secrets.md` speaks of.
        for file in ["db-license", "db-password"] {
            place.write_private(file, "x");
        }
        let set = ["secret", "set", "docs/token", "--config", "tollbridge.toml"];
        if text.contains("${secret:docs/token}") {
            place.run_with("x", &set).await;
        }
        // Governance is explained with the servers of other pages.
        let spoken_of = if text.contains("[servers") {
            ""
        } else {
            SPOKEN_OF
        };
        place.write_private("servers.toml", spoken_of);
        let files = ["--config", "servers.toml", "--config", &name];
        let mut command = place.command(&[&["check", "--json"][..], &files].concat());
        command.envs(VARIABLES);
        let checked = finish(command).await;
        let document = document.display();
        assert_eq!(checked.code, Some(0), "{document}: {text}\n{checked:?}");
        assert_eq!(checked.json()["notices"], json!([]), "{document}: {text}");
    }
    assert!(found > 10, "{found} configs");
}

/// What clients are to be told leads to the endpoint, or starts the gateway.
#[test]
fn entries_of_clients_lead_to_the_gateway() {
    let mut found = 0;
    for (document, CodeBlock { info, text }) in blocks() {
        let entry: Value = match info.as_str() {
            "json client" => serde_json::from_str(&text).expect("it is JSON"),
            "toml client" => toml::from_str(&text).expect("it is TOML"),
            _ => continue,
        };
        found += 1;
        let servers = entry.as_object().and_then(|all| all.values().next());
        let server = &servers.expect("it has servers")["tollbridge"];
        let url = ["url", "httpUrl"].iter().find_map(|key| server.get(key));
        let document = document.display();
        if let Some(url) = url {
            assert_eq!(url, "http://127.0.0.1:8080/mcp", "{document}");
        } else {
            let args = server["args"].as_array().expect("it has arguments");
            parses(args.iter().map(|it| it.as_str().expect("a text")), true);
        }
    }
    assert!(found > 5, "{found} entries");
}

#[test]
fn commands_exist() {
    let mut found = 0;
    for document in documents() {
        for (line, is_whole) in commands(&read(&document)) {
            let words = words(&line);
            // A shell reads the rest.
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let words = words.split(|word| *word == "<").next().unwrap_or_default();
            let words = match words {
                // A variable for one command.
                [variable, rest @ ..] if variable.contains('=') => rest,
                words => words,
            };
            match words {
                ["tollbridge", args @ ..] | ["cargo", "run", "--release", "--", args @ ..] => {
                    found += 1;
                    parses(args.iter().copied(), is_whole);
                }
                ["cargo", args @ ..] => is_of_this_crate(args),
                [other, ..] if OTHERS.contains(other) => {}
                _ => panic!("{}: {line}: what is it a command of?", document.display()),
            }
        }
    }
    assert!(found > 40, "{found} commands");
}

/// The oldest Rust that the documents promise is that of the manifest.
#[test]
fn the_oldest_rust_is_named() {
    let manifest: toml::Table = toml::from_str(&read(Path::new("Cargo.toml"))).expect("it is TOML");
    let oldest = manifest["package"]["rust-version"].as_str();
    let expect = format!("Rust {} or later", oldest.expect("it is there"));
    for document in ["README.md", "docs/src/quick-start.md"] {
        assert!(read(Path::new(document)).contains(&expect), "{document}");
    }
}

/// `tollbridge` takes these arguments; of a command that is only mentioned some may be missing.
fn parses<'a>(args: impl Iterator<Item = &'a str>, is_whole: bool) {
    let args: Vec<&str> = ["tollbridge"].into_iter().chain(args).collect();
    let parsed = tollbridge::cli::command().try_get_matches_from(&args);
    if let Err(wrong) = parsed {
        let is_part = [
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            ErrorKind::MissingRequiredArgument,
        ];
        let is_mentioned = !is_whole && is_part.contains(&wrong.kind());
        assert!(is_mentioned, "{args:?}: {wrong}");
    }
}

/// `cargo` finds what the command names.
fn is_of_this_crate(args: &[&str]) {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("it is there");
    match args {
        ["build", "--locked", "--profile", profile] => {
            let is_there = manifest.contains(&format!("[profile.{profile}]"));
            assert!(is_there, "there is no profile {profile}");
        }
        ["bench", "--bench", name, ..] => {
            let is_there = manifest.contains(&format!("name = \"{name}\""));
            assert!(is_there, "there is no benchmark {name}");
        }
        ["test" | "machete"]
        | ["install", "--path", "."]
        | ["clippy", "--all-targets"]
        | ["deny", ..] => {}
        ["test", "--test", name] => {
            let at = ["", "/main"].map(|end| root().join(format!("tests/{name}{end}.rs")));
            assert!(at.iter().any(|it| it.exists()), "there is no test {name}");
        }
        _ => panic!("cargo {args:?}: is it right?"),
    }
}

/// The lines of blocks of commands, and commands that the text mentions; whether each is whole.
fn commands(document: &str) -> Vec<(String, bool)> {
    let (blocks, prose) = split(document);
    let mut all = Vec::new();
    for block in blocks.iter().filter(|block| block.info == "sh") {
        let joined = block.text.replace("\\\n", " ");
        let lines = joined.lines().filter(|line| !line.is_empty());
        all.extend(lines.map(|line| (line.to_owned(), true)));
    }
    let ours = ["tollbridge ", "cargo "];
    let spans = prose.split('`').skip(1).step_by(2);
    let spans = spans.filter(|span| ours.iter().any(|it| span.starts_with(it)));
    all.extend(spans.map(|span| (span.replace('\n', " "), false)));
    all
}

/// The words of a command, without its comment and where its output goes; what is quoted is one word.
fn words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or_default();
    let line = line.split(" > ").next().unwrap_or_default();
    let mut words = vec![String::new()];
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().expect("there is one").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    for word in &mut words {
        if HASHES.contains(&word.as_str()) {
            *word = "0".repeat(64);
        }
    }
    words
}
