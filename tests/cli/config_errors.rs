//! What is wrong with a config, as every command says it to scripts.

use std::fs;

use crate::support::Place;

/// Every command that has `--json` and reads a config.
const COMMANDS: &[&str] = &[
    "agents add a",
    "agents disable a",
    "agents enable a",
    "agents list",
    "agents remove a",
    "agents set a",
    "agents show a",
    "audit",
    "audit events",
    "audit query",
    "audit verify",
    "budget reset a --reason r",
    "budget set a 1",
    "budget show",
    "call t",
    "check",
    "check --connect",
    "keys create a",
    "keys list",
    "keys revoke k",
    "list",
    "list servers",
    "login x",
    "login-code a",
    "policy explain a t",
    "profile add p",
    "profile list",
    "profile remove p",
    "profile set p tools=[]",
    "profile show p",
    "secret list",
    "server add x command=sh",
    "server disable x",
    "server enable x",
    "server list",
    "server remove x",
    "server restart x",
    "server set x enabled=true",
    "server show x",
    "server test x",
    "sign-ins list",
    "sign-ins revoke g",
    "ui",
    "view create",
    "view end v",
    "view list",
    "view set v ttl=1h",
    "view show v",
    "workspace add w",
    "workspace list",
    "workspace remove w",
    "workspace set w description=d",
    "workspace show w",
];

/// Configs that cannot be used, and what they are called.
const MISTAKEN: [(&str, Option<&str>); 2] = [
    (
        "mistakes",
        Some("shift = 1\n[servers.a]\ncommand = \"sh\"\ntimeout = \"soon\"\n"),
    ),
    ("no config", None),
];

#[tokio::test]
async fn every_command_says_them_as_check_does() {
    for (what, config) in MISTAKEN {
        let place = Place::new(config.unwrap_or_default());
        if config.is_none() {
            fs::remove_file(place.file("tollbridge.toml")).expect("removed");
        }
        let checked = place.run(&["check", "--json"]).await;
        let found = checked.json();
        assert_eq!(found["ok"], false, "{what}");
        assert_eq!(found["notices"][0]["severity"], "error", "{what}");
        for command in COMMANDS {
            let mut args: Vec<&str> = command.split(' ').collect();
            args.push("--json");
            let ran = place.run(&args).await;
            let said = (ran.code, ran.stdout.as_str(), ran.stderr.as_str());
            let expect = (Some(2), checked.stdout.as_str(), "");
            assert_eq!(said, expect, "{what}: {command}");
            // People are told on stderr, in as many words.
            args.pop();
            let ran = place.run(&args).await;
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{command}");
            assert!(!ran.stderr.is_empty(), "{what}: {command}");
        }
    }
}

/// None is missing above: what has `--json` and `--config` in its help is among them.
#[tokio::test]
async fn every_command_with_json_is_among_them() {
    let place = Place::new("");
    for path in commands(&place).await {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = place.run(&args).await.stdout;
        let has = |flag: &str| help.split_whitespace().any(|word| word == flag);
        if !has("--json") || !has("--config") {
            continue;
        }
        let path = path.join(" ");
        let is_of_path = |command: &&str| {
            let rest = command.strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        // Groups of commands that do something by themselves are there by their own name.
        assert!(COMMANDS.iter().any(is_of_path), "{path}");
    }
}

/// Every command and subcommand, by the words that lead to it.
async fn commands(place: &Place) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = vec![Vec::new()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        at += 1;
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let help = place.run(&args).await.stdout;
        let section = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        let section = section.split("\n\n").next().unwrap_or_default();
        // Descriptions that go on in a next line are further to the right.
        let lines = section.lines().filter_map(|line| line.strip_prefix("  "));
        let names = lines.filter(|line| !line.starts_with(' '));
        let names = names.filter_map(|line| line.split_whitespace().next());
        for name in names.filter(|name| *name != "help") {
            found.push([path.clone(), vec![name.to_owned()]].concat());
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

/// So are those that are found when a gateway would start.
#[tokio::test]
async fn what_keeps_a_gateway_from_starting_is_said_in_the_same_way() {
    // Each glob is right, all together are more than a matcher takes.
    let globs: Vec<String> = (0..2000)
        .map(|n| format!("\"{n}{}*\"", "x".repeat(500)))
        .collect();
    let policy = format!(
        "[governance.policy]\nmode = \"allowlist\"\ntools = [{}]\n",
        globs.join(",")
    );
    let place = Place::new(&policy);
    let checked = place.run(&["check", "--json"]).await;
    assert_eq!(checked.code, Some(2), "{checked:?}");
    let notice = &checked.json()["notices"][0]["message"];
    let message = notice.as_str().unwrap_or_default();
    assert!(
        message.contains("invalid terms in the config"),
        "{checked:?}"
    );
    for command in ["list", "call t", "policy explain anonymous t"] {
        let mut args: Vec<&str> = command.split(' ').collect();
        args.push("--json");
        let ran = place.run(&args).await;
        let said = (ran.code, ran.stdout.as_str(), ran.stderr.as_str());
        assert_eq!(said, (Some(2), checked.stdout.as_str(), ""), "{command}");
    }
}
