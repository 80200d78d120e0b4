//! More than one mistake, and more than one file.

use insta::assert_snapshot;

use crate::support::{report, toml};

#[test]
fn all_mistakes_at_once() {
    let report = toml(
        r#"
        listen = "localhost"
        workres = 2

        [servers.a]
        timeout = 5
        args = ["x"]

        [servers.b]
        url = "http://example.com/mcp"
        auth = { type = "bearer", token = "hunter2", tokn = "hunter3" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `localhost` is not an address and port
     --> tollbridge.toml:1:10
      |
    1 | listen = "localhost"
      |          ^^^^^^^^^^^ expected an IP address, `:` and a port
      |
      = help: write "127.0.0.1:8080"

    error: unknown key `workres`
     --> tollbridge.toml:2:1
      |
    2 | workres = ***
      | ^^^^^^^ no such key
      |
      = help: did you mean `workers`?

    error: `servers.a` requires `command` or `url`
     --> tollbridge.toml:4:10
      |
    4 | [servers.a]
      |          ^ missing transport: neither `command` nor `url` is set
      |
      = help: set `command` for a program, `url` for a remote server, or `transport = "builtin"` for the toolbox

    error: `servers.a.timeout` must be a duration with a unit
     --> tollbridge.toml:5:11
      |
    5 | timeout = 5
      |           ^ missing unit
      |
      = help: use "5s" or "5ms"

    warning: the credential of this server is sent in clear text
     --> tollbridge.toml:9:7
      |
    9 | url = "http://example.com/mcp"
      |       ^^^^^^^^^^^^^^^^^^^^^^^^ not encrypted
      |
      = help: use `https:` unless the network path is trusted

    error: unknown key `servers.b.auth.tokn`
      --> tollbridge.toml:10:46
       |
    10 | auth = { type = "bearer", token = "***", tokn = "***" }
       |                                          ^^^^ no such key
       |
       = help: did you mean `token`?

    5 errors, 1 warning
    "#);
}

#[test]
fn mistakes_in_two_files() {
    let report = report(
        &[],
        &[
            (
                "base.toml",
                r#"
            [servers.a]
            command = "a"
        "#,
            ),
            (
                "local.yaml",
                r"
            servers:
              a:
                url: https://example.com/mcp
        ",
            ),
        ],
    );
    assert_snapshot!(report, @r#"
    error: `servers.a` has both `command` and `url`
     --> local.yaml:3:5
      |
    3 |     url: https://example.com/mcp
      |     ^^^ the address of a running server
      |
     ::: base.toml:2:1
      |
    2 | command = "a"
      | ------- a program to run
      |
      = help: keep one of them

    1 error
    "#);
}

#[test]
fn lines_with_other_letters() {
    let report = toml(
        r#"
        # Grüße, 你好
        listen = "127.0.0.1:8080" # ünï
        log = { level = "info", "größe" = "é" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `log."größe"`
     --> tollbridge.toml:3:25
      |
    3 | log = { level = "info", "größe" = "***" }
      |                         ^^^^^^^ no such key
      |
      = help: valid keys are `format` and `level`

    1 error
    "#);
}
