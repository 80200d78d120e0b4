//! Keys that are not ours.

use insta::assert_snapshot;

use crate::support::{json, toml};

#[test]
fn a_mistyped_key() {
    let report = toml(
        r#"
        listn = "127.0.0.1:8080"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `listn`
     --> tollbridge.toml:1:1
      |
    1 | listn = "***"
      | ^^^^^ no such key
      |
      = help: did you mean `listen`?

    1 error
    "#);
}

#[test]
fn a_mistyped_key_of_a_section() {
    let report = toml(
        r"
        [naming]
        max_lenght = 40
    ",
    );
    assert_snapshot!(report, @"
    error: unknown key `naming.max_lenght`
     --> tollbridge.toml:2:1
      |
    2 | max_lenght = ***
      | ^^^^^^^^^^ no such key
      |
      = help: did you mean `max_length`?

    1 error
    ");
}

#[test]
fn a_key_like_no_other() {
    let report = toml(
        r"
        [log]
        colour = true
    ",
    );
    assert_snapshot!(report, @"
    error: unknown key `log.colour`
     --> tollbridge.toml:2:1
      |
    2 | colour = ***
      | ^^^^^^ no such key
      |
      = help: valid keys are `format` and `level`

    1 error
    ");
}

#[test]
fn a_key_of_another_table() {
    let report = toml(
        r#"
        auth = "keys"
        max_instances = 3
        [log]
        listen = "127.0.0.1:8080"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `auth`
     --> tollbridge.toml:1:1
      |
    1 | auth = "***"
      | ^^^^ no such key
      |
      = help: `auth` belongs to `governance`, `servers.<name>` and `servers.<name>.replicas[]`

    error: unknown key `max_instances`
     --> tollbridge.toml:2:1
      |
    2 | max_instances = ***
      | ^^^^^^^^^^^^^ no such key
      |
      = help: `max_instances` belongs to `servers.<name>`

    error: unknown key `log.listen`
     --> tollbridge.toml:4:1
      |
    4 | listen = "***"
      | ^^^^^^ no such key
      |
      = help: `listen` belongs to the outermost table

    3 errors
    "#);
}

#[test]
fn a_key_of_a_later_version() {
    let report = toml(
        r#"
        store = "postgres://localhost/tollbridge"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `store`
     --> tollbridge.toml:1:1
      |
    1 | store = "***"
      | ^^^^^ not supported by this version
      |
      = help: remove it

    1 error
    "#);
}

#[test]
fn a_key_of_other_programs() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        type = "stdio"
        disabled = true
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `servers.a.type`
     --> tollbridge.toml:3:1
      |
    3 | type = "***"
      | ^^^^ no such key
      |
      = help: use `transport`

    error: unknown key `servers.a.disabled`
     --> tollbridge.toml:4:1
      |
    4 | disabled = ***
      | ^^^^^^^^ no such key
      |
      = help: use `enabled = false`

    2 errors
    "#);
}

#[test]
fn a_key_twice() {
    let report = json(
        r#"
        {
          "listen": "127.0.0.1:1",
          "listen": "127.0.0.1:2"
        }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: duplicate key `listen`
     --> tollbridge.json:3:3
      |
    2 |   "listen": "***",
      |   -------- and here
    3 |   "listen": "127.0.0.1:2"
      |   ^^^^^^^^ here

    1 error
    "#);
}
