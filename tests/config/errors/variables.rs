//! Variables in strings, and overrides from the environment.

use insta::assert_snapshot;

use crate::support::{toml, toml_in};

#[test]
fn a_variable_that_is_not_set() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        env = { TOKEN = "${GITHUB_TOKEN}" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: the variable GITHUB_TOKEN is not set
     --> tollbridge.toml:3:20
      |
    3 | env = { TOKEN = "${GITHUB_TOKEN}" }
      |                    ^^^^^^^^^^^^ needed here
      |
      = help: set it, or add a default: `${GITHUB_TOKEN:...}`

    1 error
    "#);
}

#[test]
fn a_mistyped_variable() {
    let report = toml_in(
        &[("HOST", "example.com")],
        r#"
            [servers.a]
            url = "https://${HOSTT}/mcp"
        "#,
    );
    assert_snapshot!(report, @r#"
    error: the variable HOSTT is not set
     --> tollbridge.toml:2:18
      |
    2 | url = "https://${HOSTT}/mcp"
      |                  ^^^^^ needed here
      |
      = help: did you mean HOST?

    1 error
    "#);
}

#[test]
fn a_variable_without_an_end() {
    let report = toml(
        r#"
        [servers.a]
        command = "${A"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.command` has a `${` without `}`
     --> tollbridge.toml:2:12
      |
    2 | command = "${A"
      |            ^^^ needed here
      |
      = help: close it, or use `$${` for a literal `${`

    1 error
    "#);
}

#[test]
fn a_variable_without_a_name() {
    let report = toml(
        r#"
        [servers.a]
        command = "${}"
        args = ["${A-B}"]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.command` has a variable with an invalid name
     --> tollbridge.toml:2:12
      |
    2 | command = "${}"
      |            ^^^ needed here
      |
      = help: names consist of letters, digits and `_`; use `$${` for a literal `${`

    error: `servers.a.args` has a variable with an invalid name
     --> tollbridge.toml:3:10
      |
    3 | args = ["${A-B}"]
      |          ^^^^^^ needed here
      |
      = help: names consist of letters, digits and `_`; use `$${` for a literal `${`

    2 errors
    "#);
}

#[test]
fn a_wrong_value_from_a_variable() {
    let report = toml_in(
        &[("ADDRESS", "hunter2"), ("CHARSET", "hunter2")],
        r#"
            listen = "${ADDRESS}"
            [naming]
            charset = "${CHARSET}"
        "#,
    );
    assert_snapshot!(report, @r#"
    error: the value of `listen` is not an address and port
     --> tollbridge.toml:1:10
      |
    1 | listen = "${ADDRESS}"
      |          ^^^^^^^^^^^^ expected an IP address, `:` and a port
      |
      = help: write "127.0.0.1:8080"

    error: invalid value for `naming.charset`
     --> tollbridge.toml:3:11
      |
    3 | charset = "${CHARSET}"
      |           ^^^^^^^^^^^^ not allowed
      |
      = help: valid values are "original" and "strict"

    2 errors
    "#);
}

#[test]
fn an_override_of_no_key() {
    let report = toml_in(
        &[
            ("TOLLBRIDGE_NAMNG__CHARSET", "strict"),
            ("TOLLBRIDGE_", "1"),
            ("TOLLBRIDGE_NAMING____CHARSET", "strict"),
        ],
        r"
            workers = 1
        ",
    );
    assert_snapshot!(report, @"
    error: the variable TOLLBRIDGE_ does not match any config key
     --> environment:1:1
      |
    1 | TOLLBRIDGE_=***
      | ^^^^^^^^^^^ the name has an empty segment
      |
      = help: use names such as TOLLBRIDGE_LISTEN or TOLLBRIDGE_NAMING__CHARSET

    error: the variable TOLLBRIDGE_NAMING____CHARSET does not match any config key
     --> environment:1:1
      |
    1 | TOLLBRIDGE_NAMING____CHARSET=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ the name has an empty segment
      |
      = help: use names such as TOLLBRIDGE_LISTEN or TOLLBRIDGE_NAMING__CHARSET

    error: unknown key `namng`
     --> environment:1:1
      |
    1 | TOLLBRIDGE_NAMNG__CHARSET=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^ no such key
      |
      = help: did you mean `naming`?

    3 errors
    ");
}

#[test]
fn an_override_of_no_server() {
    let report = toml_in(
        &[("TOLLBRIDGE_SERVERS__GITHB__TIMEOUT", "5s")],
        r#"
            [servers.github]
            command = "a"
        "#,
    );
    assert_snapshot!(report, @"
    error: the variable TOLLBRIDGE_SERVERS__GITHB__TIMEOUT does not match any config key
     --> environment:1:1
      |
    1 | TOLLBRIDGE_SERVERS__GITHB__TIMEOUT=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ the config has no server of this name
      |
      = help: the servers are `github`

    1 error
    ");
}

#[test]
fn an_override_of_two_servers() {
    let report = toml_in(
        &[("TOLLBRIDGE_SERVERS__A_B__TIMEOUT", "5s")],
        r#"
            naming = { charset = "original" }
            [servers.a-b]
            command = "a"
            [servers.a_b]
            command = "a"
        "#,
    );
    assert_snapshot!(report, @r#"
    error: `a-b` and `a_b` have the same URI prefix `a-b`
     --> tollbridge.toml:4:10
      |
    2 | [servers.a-b]
      |          --- and this one
    3 | command = "a"
    4 | [servers.a_b]
      |          ^^^ this server
      |
      = help: rename one, or set a different `namespace`

    error: the variable TOLLBRIDGE_SERVERS__A_B__TIMEOUT does not match any config key
     --> environment:1:1
      |
    1 | TOLLBRIDGE_SERVERS__A_B__TIMEOUT=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ ambiguous: may mean any of `a-b` and `a_b`
      |
      = help: rename one of them

    2 errors
    "#);
}

#[test]
fn an_override_with_a_wrong_value() {
    let report = toml_in(
        &[
            ("TOLLBRIDGE_SERVERS__A__TIMEOUT", "5"),
            ("TOLLBRIDGE_SERVERS__A__AUTH__TOKN", "hunter2"),
            ("TOLLBRIDGE_LISTEN", "here"),
        ],
        r#"
            [servers.a]
            url = "https://example.com"
            auth = { type = "bearer", token = "x" }
        "#,
    );
    assert_snapshot!(report, @r#"
    error: `here` is not an address and port
     --> environment:1:19
      |
    1 | TOLLBRIDGE_LISTEN=here
      |                   ^^^^ expected an IP address, `:` and a port
      |
      = help: write "127.0.0.1:8080"

    error: unknown key `servers.a.auth.tokn`
     --> environment:1:1
      |
    1 | TOLLBRIDGE_SERVERS__A__AUTH__TOKN=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ no such key
      |
      = help: did you mean `token`?

    error: `servers.a.timeout` must be a duration with a unit
     --> environment:1:32
      |
    1 | TOLLBRIDGE_SERVERS__A__TIMEOUT=5
      |                                ^ missing unit
      |
      = help: use "5s" or "5ms"

    3 errors
    "#);
}
