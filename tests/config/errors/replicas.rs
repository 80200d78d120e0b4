//! Several instances of one server, and which calls go to which.

use insta::assert_snapshot;

use crate::support::{load, toml};

#[test]
fn a_replica_nobody_can_reach() {
    let report = toml(
        r#"
        [servers.a]
        replicas = [{ url = "https://a.example.com/mcp" }, { locality = "eu" }]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.replicas[1]` requires `command` or `url`
     --> tollbridge.toml:2:1
      |
    2 | replicas = [{ url = "https://a.example.com/mcp" }, { locality = "eu" }]
      | ^^^^^^^^ missing transport: neither `command` nor `url` is set
      |
      = help: set `command` for a program, `url` for a remote server, or `transport = "builtin"` for the toolbox

    1 error
    "#);
}

#[test]
fn an_address_beside_replicas() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://a.example.com/mcp"
        replicas = [{ url = "https://b.example.com/mcp" }]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.url` cannot be combined with `replicas`
     --> tollbridge.toml:2:1
      |
    2 | url = "https://a.example.com/mcp"
      | ^^^ describes a single server
    3 | replicas = [{ url = "https://b.example.com/mcp" }]
      | -------- describes several servers
      |
      = help: set it in each replica that needs it

    1 error
    "#);
}

#[test]
fn two_replicas_of_one_name() {
    let report = toml(
        r#"
        [servers.a]
        replicas = [
            { name = "x", url = "https://a.example.com/mcp" },
            { name = "x", url = "https://b.example.com/mcp" },
        ]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: duplicate replica name `x`
     --> tollbridge.toml:4:14
      |
    4 |     { name = "x", url = "https://b.example.com/mcp" },
      |              ^^^ this one
      |
      = help: use unique names

    1 error
    "#);
}

#[test]
fn rules_that_lead_nowhere_or_ask_nothing() {
    let report = toml(
        r#"
        [servers.a]
        replicas = [{ url = "https://a.example.com/mcp" }]
        route = [{ to = "eu" }, { at = "/region", to = "1" }]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.route[0].to` does not match any replica
     --> tollbridge.toml:3:17
      |
    3 | route = [{ to = "eu" }, { at = "/region", to = "1" }]
      |                 ^^^^ not the name or locality of any replica
      |
      = help: matching calls would have no replica

    error: `servers.a.route[1]` has no condition
     --> tollbridge.toml:3:27
      |
    3 | route = [{ to = "eu" }, { at = "/region", to = "1" }]
      |                           ^^ the rule has no condition
      |
      = help: add `equals`, `one_of`, `matches`, `min` or `max`

    2 errors
    "#);
}

#[test]
fn keys_of_replicas_without_any() {
    let loaded = load(
        &[],
        &[(
            "tollbridge.toml",
            "[servers.a]\ncommand = \"a\"\nbalance = \"least_loaded\"\n",
        )],
    );
    let warnings = loaded.expect("it can run").warnings;
    let messages: Vec<_> = warnings.iter().map(|warning| &*warning.message).collect();
    assert_eq!(messages, ["`servers.a.balance` has no effect"]);
}
