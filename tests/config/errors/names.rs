//! Names of servers, and how exposed names are made.

use insta::assert_snapshot;

use crate::support::{accepted, toml, warnings};

#[test]
fn a_template_without_the_tool() {
    let report = toml(
        r#"
        [naming]
        template = "mcp_{server}"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `mcp_{server}` is not a valid name template
     --> tollbridge.toml:2:12
      |
    2 | template = "mcp_{server}"
      |            ^^^^^^^^^^^^^^ `{tool}` must occur exactly once
      |
      = help: for example "mcp_{server}_{tool}", "{server}.{tool}" or "{tool}"

    1 error
    "#);
}

#[test]
fn a_template_with_other_parts() {
    let report = toml(
        r#"
        [naming]
        template = "{server}_{tool}_{team}"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `{server}_{tool}_{team}` is not a valid name template
     --> tollbridge.toml:2:12
      |
    2 | template = "{server}_{tool}_{team}"
      |            ^^^^^^^^^^^^^^^^^^^^^^^^ only the placeholders `{server}` and `{tool}` are supported
      |
      = help: for example "mcp_{server}_{tool}", "{server}.{tool}" or "{tool}"

    1 error
    "#);
}

#[test]
fn a_template_with_a_space() {
    let report = toml(
        r#"
        [naming]
        template = "{server} {tool}"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `{server} {tool}` is not a valid name template
     --> tollbridge.toml:2:12
      |
    2 | template = "{server} {tool}"
      |            ^^^^^^^^^^^^^^^^^ names cannot have ` `
      |
      = help: for example "mcp_{server}_{tool}", "{server}.{tool}" or "{tool}"

    1 error
    "#);
}

#[test]
fn a_length_that_is_too_short() {
    let report = toml(
        r"
        [naming]
        max_length = 8
    ",
    );
    assert_snapshot!(report, @"
    error: `naming.max_length` is out of range
     --> tollbridge.toml:2:14
      |
    2 | max_length = 8
      |              ^ must be at least 16

    1 error
    ");
}

#[test]
fn two_servers_with_one_name_prefix() {
    let file = r#"
        [servers.aws-s3]
        command = "a"

        [servers.aws_s3]
        command = "b"

        [servers.docs]
        command = "c"
    "#;
    let loaded = accepted(&[], &[("tollbridge.toml", file)]);
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_snapshot!(warnings.join("\n"), @"
    warning: `aws-s3` and `aws_s3` have the same name prefix `aws_s3`; neither is started
     --> tollbridge.toml:4:10
      |
    1 | [servers.aws-s3]
      |          ------ and this one
    ...
    4 | [servers.aws_s3]
      |          ^^^^^^ this server
      |
      = help: rename one, or set a different `namespace`
    ");
    let runs = loaded.config.servers.iter();
    let runs: Vec<_> = runs
        .map(|(name, server)| (name.as_str(), server.runs()))
        .collect();
    assert_eq!(runs, [("aws-s3", false), ("aws_s3", false), ("docs", true)]);
}

/// Names that are made alike because they cannot be used as they are, in documents of others.
#[test]
fn servers_whose_names_become_one() {
    let file = r#"{"mcpServers": {"a b": {"command": "a"}, "a-b": {"command": "b"},
        "me-2": {"command": "c"}, "me_2": {"command": "d"}, "me.2": {"command": "d"}, "ok": {"command": "e"}}}"#;
    let servers = accepted(&[], &[("mcp.json", file)]).config.servers;
    let conflicts = servers.iter().map(|(name, server)| {
        let conflict = server.name_conflict.as_ref();
        (name.as_str(), conflict.map(|it| it.others.as_str()))
    });
    let expect = [
        ("a-b-2", Some("`a-b`")),
        ("a-b", Some("`a-b-2`")),
        ("me-2", Some("`me_2`, `me.2`")),
        ("me_2", Some("`me-2`, `me.2`")),
        ("me.2", Some("`me-2`, `me_2`")),
        ("ok", None),
    ];
    assert_eq!(conflicts.collect::<Vec<_>>(), expect);
}

#[test]
fn two_servers_with_one_uri_prefix() {
    let report = toml(
        r#"
        naming = { charset = "original" }

        [servers.Docs]
        command = "a"

        [servers.docs]
        command = "b"
    "#,
    );
    assert_snapshot!(report, @"
    error: `Docs` and `docs` have the same URI prefix `docs`
     --> tollbridge.toml:6:10
      |
    3 | [servers.Docs]
      |          ---- and this one
    ...
    6 | [servers.docs]
      |          ^^^^ this server
      |
      = help: rename one, or set a different `namespace`

    1 error
    ");
}

#[test]
fn two_servers_with_one_namespace() {
    let file = r#"
        [servers.a]
        command = "a"
        namespace = "x"

        [servers.x]
        command = "b"
    "#;
    let warnings = warnings(&[], &[("tollbridge.toml", file)]);
    let what = "`a` and `x` have the same name prefix `x`; neither is started";
    assert!(warnings.contains(what), "{warnings}");
}

#[test]
fn a_server_name_with_a_space() {
    let report = toml(
        r#"
        [servers."my server"]
        command = "a"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid server name
     --> tollbridge.toml:1:10
      |
    1 | [servers."my server"]
      |          ^^^^^^^^^^^ ` ` is not allowed in a server name (letters, digits, `_`, `-` and `.` are)
      |
      = help: names are part of URLs: for example `aws-s3`

    1 error
    "#);
}

#[test]
fn a_namespace_with_a_slash() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        namespace = "a/b"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.namespace` must follow the rules of server names
     --> tollbridge.toml:3:13
      |
    3 | namespace = "a/b"
      |             ^^^^^ `/` is not allowed in a server name (letters, digits, `_`, `-` and `.` are)
      |
      = help: for example "aws-s3"

    1 error
    "#);
}

/// Everybody sees the gateway's servers with those of one workspace or agent, and nobody those of two.
#[test]
fn servers_of_workspaces_and_agents() {
    let file = r#"
        [servers.docs]
        command = "a"

        [servers."github@science"]
        command = "b"

        [servers."github@ops"]
        command = "c"

        [servers."github@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"]
        command = "d"
    "#;
    let loaded = accepted(&[], &[("tollbridge.toml", file)]);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert!(
        loaded
            .config
            .servers
            .values()
            .all(tollbridge::config::Server::runs)
    );
}

#[test]
fn a_server_of_a_workspace_with_the_name_of_one_that_all_see() {
    let report = toml(
        r#"
        [servers."github@science"]
        command = "a"

        [servers.github]
        command = "b"
        enabled = false
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `github@science` has the name of `github`, which every agent sees
     --> tollbridge.toml:1:10
      |
    1 | [servers."github@science"]
      |          ^^^^^^^^^^^^^^^^ this server
    ...
    4 | [servers.github]
      |          ------ and this one
      |
      = help: rename one

    1 error
    "#);
}

#[test]
fn servers_of_one_workspace_with_one_prefix() {
    let file = r#"
        [servers.git_hub]
        command = "a"

        [servers."git-hub@science"]
        command = "b"

        [servers."git.hub@science"]
        command = "c"

        [servers."git.hub@ops"]
        command = "d"
        namespace = "hub"
    "#;
    let loaded = accepted(&[], &[("tollbridge.toml", file)]);
    let conflicts = loaded.config.servers.iter().map(|(name, server)| {
        let conflict = server.name_conflict.as_ref();
        (name.as_str(), conflict.map(|it| it.others.as_str()))
    });
    let expect = [
        ("git_hub", None),
        ("git-hub@science", Some("`git_hub`, `git.hub@science`")),
        ("git.hub@science", Some("`git_hub`, `git-hub@science`")),
        ("git.hub@ops", None),
    ];
    assert_eq!(conflicts.collect::<Vec<_>>(), expect);
    let first = loaded.warnings[0].to_string();
    let expect = "warning: `git_hub` and `git-hub@science` have the same name prefix `git_hub`; \
                  `git-hub@science` is not started";
    assert_eq!(first.lines().next(), Some(expect));
}

#[test]
fn owners_that_are_none() {
    for (name, why) in [
        (
            "a@",
            "what follows `@` is no workspace: a name has 1 to 64 characters, this one has 0",
        ),
        (
            "a@b c",
            "what follows `@` is no workspace: ` ` is not allowed in a name",
        ),
        (
            "a@agent_1",
            "the agent that follows `@` is written `agent_` and a UUID in lower case",
        ),
    ] {
        let report = toml(&format!("[servers.\"{name}\"]\ncommand = \"a\"\n"));
        assert!(report.contains(why), "{report}");
    }
}
