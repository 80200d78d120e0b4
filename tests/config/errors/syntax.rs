//! Files that are not what their name says.

use insta::assert_snapshot;

use crate::support::{json, mcp_json, toml, yaml};

#[test]
fn toml_syntax() {
    let report = toml(
        r#"
        listen = "127.0.0.1:8080
        [naming
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid TOML: invalid basic string, expected `"`
     --> tollbridge.toml:1:25
      |
    1 | listen = "***:***
      |                  ^ here

    error: invalid TOML: unclosed table, expected `]`
     --> tollbridge.toml:2:8
      |
    2 | [naming
      |        ^ here

    2 errors
    "#);
}

/// What follows a mistake is read all the same.
#[test]
fn toml_with_several_mistakes() {
    let report = toml(
        r#"
        listen = "127.0.0.1:8080
        workers = 1
        [naming
        [servers.a]
        command = a
        args = ["x" "y"]
        timeout = "5s"
        timeout = "6s"
        [servers.b]
        command "b"
        [servers.a]
        url = 'http://127.0.0.1/
        [servers.c]
        env = { A = "a", B "b" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid TOML: invalid basic string, expected `"`
     --> tollbridge.toml:1:25
      |
    1 | listen = "***:***
      |                  ^ here

    error: invalid TOML: unclosed table, expected `]`
     --> tollbridge.toml:3:8
      |
    3 | [naming
      |        ^ here

    error: invalid TOML: string values must be quoted, expected literal string
     --> tollbridge.toml:5:11
      |
    5 | command = ***
      |           ^^^ here

    error: invalid TOML: missing comma between array elements, expected `,`
     --> tollbridge.toml:6:13
      |
    6 | args = ["***" "***"]
      |               ^ here

    error: invalid TOML: duplicate key
     --> tollbridge.toml:8:1
      |
    8 | timeout = "***"
      | ^^^^^^^ here

    error: invalid TOML: key with no value, expected `=`
      --> tollbridge.toml:10:9
       |
    10 | *** "***"
       |     ^ here

    error: invalid TOML: missing assignment between key-value pairs, expected `=`
      --> tollbridge.toml:14:20
       |
    14 | env = { A = "***", *** "***" }
       |                        ^ here

    7 errors
    "#);
}

/// The rest of the file is read.
#[test]
fn toml_numbers_that_are_too_large() {
    let report = toml(
        r#"
        workers = 9223372036854775808
        list_page_size = 0x10000000000000000
        [servers.a]
        command = "a"
        timeout = 5
        retry = { jitter = 1e400 }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: number out of range
     --> tollbridge.toml:1:11
      |
    1 | workers = 9223372036854775808
      |           ^^^^^^^^^^^^^^^^^^^ does not fit into 64 bits

    error: number out of range
     --> tollbridge.toml:2:18
      |
    2 | list_page_size = 0x10000000000000000
      |                  ^^^^^^^^^^^^^^^^^^^ does not fit into 64 bits

    error: `servers.a.timeout` must be a duration with a unit
     --> tollbridge.toml:5:11
      |
    5 | timeout = 5
      |           ^ missing unit
      |
      = help: use "5s" or "5ms"

    error: number out of range
     --> tollbridge.toml:6:20
      |
    6 | retry = { jitter = 1e400 }
      |                    ^^^^^ does not fit into 64 bits

    4 errors
    "#);
}

#[test]
fn toml_key_twice() {
    let report = toml(
        r"
        workers = 1
        workers = 2
    ",
    );
    assert_snapshot!(report, @"
    error: invalid TOML: duplicate key
     --> tollbridge.toml:2:1
      |
    2 | workers = ***
      | ^^^^^^^ here

    1 error
    ");
}

#[test]
fn yaml_syntax() {
    let report = yaml(
        r"
        servers:
          a:
            command: npx
           env: {}
    ",
    );
    assert_snapshot!(report, @"
    error: invalid YAML: while parsing a block mapping, did not find expected key
     --> tollbridge.yaml:4:4
      |
    4 |    env: {}
      |    ^ here

    1 error
    ");
}

#[test]
fn yaml_key_twice() {
    let report = yaml(
        r"
        servers:
          a: {command: a}
          b: {command: b}
          a: {command: c}
    ",
    );
    assert_snapshot!(report, @"
    error: duplicate key `a`
     --> tollbridge.yaml:4:3
      |
    2 |   a: {command: ***}
      |   - and here
    3 |   b: {command: b}
    4 |   a: {command: c}
      |   ^ here

    1 error
    ");
}

#[test]
fn yaml_with_two_documents() {
    let report = yaml(
        r"
        workers: 1
        ---
        workers: 2
    ",
    );
    assert_snapshot!(report, @"
    error: a config must be a single YAML document
     --> tollbridge.yaml:3:1
      |
    3 | workers: ***
      | ^ a second document starts here

    1 error
    ");
}

#[test]
fn yaml_with_a_tag() {
    let report = yaml(
        r"
        listen: !env LISTEN
    ",
    );
    assert_snapshot!(report, @"
    error: unknown tag `!env`
     --> tollbridge.yaml:1:9
      |
    1 | listen: !*** ***
      |         ^^^^^^^^ after this tag
      |
      = help: remove the tag; use `${VAR}` for variables

    1 error
    ");
}

#[test]
fn yaml_of_the_older_kind() {
    let report = yaml(
        r"
        servers:
          a:
            command: a
            enabled: yes
    ",
    );
    assert_snapshot!(report, @"
    error: `servers.a.enabled` must be `true` or `false`
     --> tollbridge.yaml:4:14
      |
    4 |     enabled: yes
      |              ^^^ this is a string
      |
      = help: use `true`

    1 error
    ");
}

#[test]
fn yaml_that_never_ends() {
    let report = yaml(
        r"
        servers: &a
          x: *a
    ",
    );
    assert_snapshot!(report, @"
    error: recursive alias
     --> tollbridge.yaml:2:6
      |
    2 |   x: ****
      |      ^^^^ endless expansion

    1 error
    ");
}

#[test]
fn json_syntax() {
    let report = json(
        r#"
        {
          "listen" "127.0.0.1:8080"
        }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid JSON: expected colon after the string or word in object property
     --> tollbridge.json:2:12
      |
    2 |   "***" "***:***"
      |         ^^^^^^^^^ here

    1 error
    "#);
}

#[test]
fn json_with_nothing_in_it() {
    let report = json(
        r"
        // later
    ",
    );
    assert_snapshot!(report, @"
    error: invalid JSON: no value
     --> tollbridge.json:1:1
      |
    1 | *** ***
      | ^ expected `{`

    1 error
    ");
}

#[test]
fn json_that_is_cut_off() {
    let report = json(
        r#"
        {
          "listen": "127.0.0.1:8080",
          "servers": {
            "a": { "command": "a" }
          }
    "#,
    );
    assert_snapshot!(report, @"
    error: invalid JSON: unterminated object
     --> tollbridge.json:5:4
      |
    1 | {
      | - not closed
    ...
    5 |   }
      |    ^ the file ends here

    1 error
    ");
    let report = json(
        r#"
        {
          "servers": {
            "a": { "args": ["x", "y"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid JSON: unterminated array
     --> tollbridge.json:3:29
      |
    3 |     "a": { "args": ["***", "***"
      |                    - not closed ^ the file ends here

    1 error
    "#);
    assert_snapshot!(json("{"), @"
    error: invalid JSON: unterminated object
     --> tollbridge.json:1:2
      |
    1 | {
      | -^ the file ends here
      | |
      | not closed

    1 error
    ");
    let report = mcp_json(r#"{ "mcpServers": { "a": { "command": "a" } }"#);
    assert_snapshot!(report, @r#"
    error: invalid JSON: unterminated object
     --> mcp.json:1:44
      |
    1 | { "mcpServers": { "a": { "command": "***" } }
      | - not closed                                 ^ the file ends here

    1 error
    "#);
}

#[test]
fn toml_that_is_cut_off() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        args = ["x",
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid TOML: unclosed array, expected `]`
     --> tollbridge.toml:3:13
      |
    3 | args = ["***",
      |               ^ here

    1 error
    "#);
    let report = toml(
        r#"
        [servers.a]
        env = { A = "a"
        command = "a"
        args = ["x"]
        [servers.b]
        auth = { type = "bearer", token = "t" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid TOML: missing comma between key-value pairs, expected `,`
     --> tollbridge.toml:3:1
      |
    3 | command = "***"
      | ^ here

    error: invalid TOML: unclosed inline table, expected `}`
     --> tollbridge.toml:6:40
      |
    6 | auth = { type = "***", token = "***" }
      |                                       ^ here

    2 errors
    "#);
    let report = toml(
        r#"
        [servers.a]
        command = "a
        args = []
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid TOML: invalid basic string, expected `"`
     --> tollbridge.toml:2:13
      |
    2 | command = "***
      |               ^ here

    1 error
    "#);
}

#[test]
fn yaml_that_is_cut_off() {
    let report = yaml(
        r"
        workers: 1
        servers: {a: {command: a}
    ",
    );
    assert_snapshot!(report, @"
    error: invalid YAML: while parsing a flow mapping, did not find expected ',' or '}'
     --> tollbridge.yaml:2:26
      |
    2 | servers: {a: {command: ***}
      |                            ^ here

    1 error
    ");
    let report = yaml(
        r"
        servers:
          a: {command: a, args: [b]
          b: {command: b}
    ",
    );
    assert_snapshot!(report, @"
    error: invalid YAML: invalid indentation in flow construct
     --> tollbridge.yaml:3:3
      |
    3 |   b: {command: ***}
      |   ^ here

    1 error
    ");
    let report = yaml(
        r#"
        servers:
          a:
            command: "a
            args: []
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid YAML: invalid indentation in quoted scalar
     --> tollbridge.yaml:3:14
      |
    3 |     command: "***
      |              ^ here

    1 error
    "#);
}
