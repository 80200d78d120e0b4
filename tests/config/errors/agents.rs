//! Agents and profiles.

use insta::assert_snapshot;

use crate::support::{toml, warnings};

#[test]
fn names_ids_and_teams() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [agents.anonymous]
        [agents." a"]
        id = "5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
        [agents.b]
        id = "agent_00000000-0000-0000-0000-000000000000"
        team = ""
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid agent name
     --> tollbridge.toml:3:9
      |
    3 | [agents.anonymous]
      |         ^^^^^^^^^ reserved for callers without a key
      |
      = help: configure them in `[governance]`

    error: invalid agent name
     --> tollbridge.toml:4:9
      |
    4 | [agents." a"]
      |         ^^^^ empty, or with leading or trailing whitespace

    error: `5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11` is not a valid agent id
     --> tollbridge.toml:5:6
      |
    5 | id = "5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
      |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ an agent id is `agent_` and a UUID
      |
      = help: remove it, or use "agent_20864d67-5f97-5c28-85de-383649b0124a"

    error: `agent_00000000-0000-0000-0000-000000000000` is not a valid agent id
     --> tollbridge.toml:7:6
      |
    7 | id = "agent_00000000-0000-0000-0000-000000000000"
      |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ reserved for callers without a key
      |
      = help: remove it, or use "agent_8b58a5a7-5d36-58ee-8fa4-1bd2be8f0998"

    error: `agents.b.team` is empty
     --> tollbridge.toml:8:8
      |
    8 | team = ""
      |        ^^ use a word, or remove it

    5 errors
    "#);
}

#[test]
fn keys_that_are_none() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [agents.a]
        keys = ["hunter2", "0123456789abcdef 0123456789abcdef"]
        key = "hunter2"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `agents.a.keys[0]` is too short
     --> tollbridge.toml:4:9
      |
    4 | keys = ["***", "***"]
      |         ^^^^^ fewer than 32 characters
      |
      = help: generate a key with `openssl rand -hex 32`

    error: `agents.a.keys[1]` cannot be sent in a header
     --> tollbridge.toml:4:20
      |
    4 | keys = ["***", "***"]
      |                ^^^^^ contains a space or a character that is not printable ASCII
      |
      = help: generate a key with `openssl rand -hex 32`

    error: unknown key `agents.a.key`
     --> tollbridge.toml:5:1
      |
    5 | key = "***"
      | ^^^ no such key
      |
      = help: use `keys = ["${...}"]`

    3 errors
    "#);
}

#[test]
fn agents_that_are_one() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [agents.a]
        id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
        keys = ["4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a", "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"]
        [agents.b]
        id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
        keys = ["4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a"]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `a` has a duplicate key
     --> tollbridge.toml:5:45
      |
    5 | keys = ["***", "***"]
      |         -----  ^^^^^ this key
      |         |
      |         same as this one
      |
      = help: a key identifies its agent: use a different key for each

    error: `a` and `b` have the same id
     --> tollbridge.toml:7:6
      |
    4 | id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
      |      -------------------------------------------- and this one
    ...
    7 | id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
      |      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this agent
      |
      = help: ids must be unique: remove one of them

    error: `a` and `b` have the same key
     --> tollbridge.toml:8:9
      |
    5 | keys = ["***", "***"]
      |                ----- same as this one
    ...
    8 | keys = ["***"]
      |         ^^^^^ this key
      |
      = help: a key identifies its agent: use a different key for each

    3 errors
    "#);
}

#[test]
fn profiles_that_nobody_has() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [agents.a]
        profiles = ["reading", "writing"]
        [profiles.reeding]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `reading` is not a profile
     --> tollbridge.toml:4:13
      |
    4 | profiles = ["reading", "writing"]
      |             ^^^^^^^^^ no such profile
      |
      = help: did you mean "reeding"?

    error: `writing` is not a profile
     --> tollbridge.toml:4:24
      |
    4 | profiles = ["reading", "writing"]
      |                        ^^^^^^^^^ no such profile
      |
      = help: the profiles are `reeding`

    2 errors
    "#);
}

#[test]
fn profiles_with_slips() {
    let report = toml(
        r#"
        [profiles."read only"]
        [profiles.reading]
        tools = ["[a"]
        rename = { a = "x", b = "x", c = "no space" }
        budget = { limit = 5.00 }
        price = "1.00"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid profile name
     --> tollbridge.toml:1:11
      |
    1 | [profiles."read only"]
      |           ^^^^^^^^^^^ ` ` is not allowed
      |
      = help: names are part of URLs: for example `read-only`

    error: `[a` is not a glob
     --> tollbridge.toml:3:10
      |
    3 | tools = ["[a"]
      |          ^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: two entries of `profiles.reading.rename` map to the same name
     --> tollbridge.toml:4:25
      |
    4 | rename = { a = "x", b = "x", c = "no space" }
      |                ---      ^^^ `b` is renamed to this
      |                |
      |                which `a` already has

    error: `no space` is not a valid name
     --> tollbridge.toml:4:34
      |
    4 | rename = { a = "x", b = "x", c = "no space" }
      |                                  ^^^^^^^^^^ invalid name
      |
      = help: names consist of 1 to 128 letters, digits, `_`, `-`, `.` and `/`

    error: unknown key `profiles.reading.price`
     --> tollbridge.toml:6:1
      |
    6 | price = "***"
      | ^^^^^ no such key
      |
      = help: `price` belongs to `governance`, `servers.<name>` and `servers.<name>.tools`

    5 errors
    "#);
}

#[test]
fn workspaces() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [governance.teams.science]
        budget = "5"
        [agents.ann]
        team = "arts"
        [agents.bob]
        [workspaces.science]
        members = ["ann", "bob", "bop"]
        budget = "5"
        [workspaces.law]
        members = ["bob"]
        [workspaces."a b"]
        mambers = []
    "#,
    );
    for words in [
        "error: `agents.ann.team` is not `science`",
        "error: `bob` is named by the workspaces `science` and `law`",
        "warning: no config file has an agent `bop`",
        "did you mean \"bob\"?",
        "error: `workspaces.science.budget` and `governance.teams.science.budget` are the same budget",
        "error: unknown key `workspaces.\"a b\".mambers`",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let named = toml("[workspaces.\"a b\"]\n[workspaces.agent_x]\n");
    assert!(named.contains("` ` is not allowed in a name"), "{named}");
    assert!(named.contains("do not begin with `agent_`"), "{named}");
}

#[test]
fn certificates_that_never_match() {
    let text = r#"
        [tls]
        cert = "a"
        key = "b"
        client_ca = "c"
        [governance]
        auth = ["keys", "mtls"]
        [agents.a]
        certificates = ["CN=ci,O=Example", "O = Example, CN = ci", "*.ci.example.com"]
    "#;
    let warned = warnings(&[], &[("tollbridge.toml", text)]);
    assert_snapshot!(warned, @r#"
    warning: `agents.a.certificates[1]` matches no certificate
     --> tollbridge.toml:8:36
      |
    8 | certificates = ["CN=ci,O=Example", "O = Example, CN = ci", "*.ci.example.com"]
      |                                    ^^^^^^^^^^^^^^^^^^^^^^ not the form of RFC 4514
      |
      = help: write "CN=ci,O=Example": the most specific part first, without spaces
    "#);
    let unused = text.replace(", \"mtls\"", "");
    let warned = warnings(&[], &[("tollbridge.toml", &unused)]);
    let first = warned.lines().next();
    assert_eq!(
        first,
        Some("warning: `agents.a.certificates` has no effect")
    );
}
