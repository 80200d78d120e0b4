//! Values of the wrong type, or that make no sense.

use insta::assert_snapshot;

use crate::support::{json, toml};

#[test]
fn text_for_a_number() {
    let report = toml(
        r#"
        workers = "four"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `workers` must be a whole number
     --> tollbridge.toml:1:11
      |
    1 | workers = "four"
      |           ^^^^^^ this is a string
      |
      = help: use a number without quotes

    1 error
    "#);
}

#[test]
fn text_for_a_boolean() {
    let report = toml(
        r#"
        [naming]
        namespace_resources = "no"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `naming.namespace_resources` must be `true` or `false`
     --> tollbridge.toml:2:23
      |
    2 | namespace_resources = "no"
      |                       ^^^^ this is a string
      |
      = help: use `false`

    1 error
    "#);
}

#[test]
fn text_for_a_list() {
    let report = toml(
        r#"
        [servers.a]
        command = "npx"
        args = "-y server"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.args` must be a list
     --> tollbridge.toml:3:8
      |
    3 | args = "-y server"
      |        ^^^^^^^^^^^ this is a string
      |
      = help: write ["-y", "server"]

    1 error
    "#);
}

#[test]
fn a_list_for_a_command() {
    let report = toml(
        r#"
        [servers.a]
        command = ["npx", "-y", "server", "--token", "hunter2"]
        enabled = "true"
        [servers.b]
        command = ["npx", 1]
        enabled = "maybe"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.command` must be a string
     --> tollbridge.toml:2:11
      |
    2 | command = ["npx", "-y", "server", "--token", "***"]
      |           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this is a list
      |
      = help: use command = "npx" and args = ["-y", "server", "--token", "***"]

    error: `servers.a.enabled` must be `true` or `false`
     --> tollbridge.toml:3:11
      |
    3 | enabled = "true"
      |           ^^^^^^ this is a string
      |
      = help: use `true`

    error: `servers.b.command` must be a string
     --> tollbridge.toml:5:11
      |
    5 | command = ["npx", 1]
      |           ^^^^^^^^^^ this is a list

    error: `servers.b.enabled` must be `true` or `false`
     --> tollbridge.toml:6:11
      |
    6 | enabled = "maybe"
      |           ^^^^^^^ this is a string

    4 errors
    "#);
}

#[test]
fn text_with_commas_for_a_list() {
    let report = toml(
        r#"
        allowed_hosts = "a.example, b.example"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `allowed_hosts` must be a list
     --> tollbridge.toml:1:17
      |
    1 | allowed_hosts = "a.example, b.example"
      |                 ^^^^^^^^^^^^^^^^^^^^^^ this is a string
      |
      = help: write ["a.example", "b.example"]

    1 error
    "#);
}

#[test]
fn a_number_for_a_table() {
    let report = toml(
        r"
        naming = 3
    ",
    );
    assert_snapshot!(report, @"
    error: `naming` must be a table
     --> tollbridge.toml:1:10
      |
    1 | naming = 3
      |          ^ this is a whole number
      |
      = help: its keys are `charset`, `conflict`, `max_length`, `namespace_resources` and `template`

    1 error
    ");
}

#[test]
fn a_number_for_text() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        namespace = 5
    "#,
    );
    assert_snapshot!(report, @"
    error: `servers.a.namespace` must be a string
     --> tollbridge.toml:3:13
      |
    3 | namespace = 5
      |             ^ this is a whole number
      |
      = help: add quotes

    1 error
    ");
}

#[test]
fn a_list_for_a_config() {
    let report = json(
        r"
        [1, 2]
    ",
    );
    assert_snapshot!(report, @"
    error: a config is a table
     --> tollbridge.json:1:1
      |
    1 | [1, 2]
      | ^^^^^^ this is a list
      |
      = help: its keys are `$schema`, `admin_listen`, `agents`, `allowed_hosts`, `allowed_origins`, `audit`, `danger_listen_without_auth`, `data_dir`, `drain_timeout`, `egress`, `first_list_wait`, `governance`, `jwt`, `keep_alive`, `limits`, `list_page_size`, `listen`, `locality`, `log`, `naming`, `oauth`, `port_search`, `profiles`, `public_url`, `request_state_ttl`, `secrets`, `servers`, `session_idle_timeout`, `socket`, `tls`, `views`, `workers` and `workspaces`

    1 error
    ");
}

#[test]
fn a_number_beyond_its_type() {
    let report = toml(
        r"
        port_search = 70000
    ",
    );
    assert_snapshot!(report, @"
    error: `port_search` is out of range
     --> tollbridge.toml:1:15
      |
    1 | port_search = 70000
      |               ^^^^^ must be at most 65535

    1 error
    ");
}

#[test]
fn a_negative_number() {
    let report = toml(
        r"
        list_page_size = -1
    ",
    );
    assert_snapshot!(report, @"
    error: `list_page_size` is out of range
     --> tollbridge.toml:1:18
      |
    1 | list_page_size = -1
      |                  ^^ must be at least 0

    1 error
    ");
}

#[test]
fn a_duration_without_a_unit() {
    let report = toml(
        r#"
        keep_alive = 15
        drain_timeout = "10"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `keep_alive` must be a duration with a unit
     --> tollbridge.toml:1:14
      |
    1 | keep_alive = 15
      |              ^^ missing unit
      |
      = help: use "15s" or "15ms"

    error: `drain_timeout` must be a duration with a unit
     --> tollbridge.toml:2:17
      |
    2 | drain_timeout = "10"
      |                 ^^^^ missing unit
      |
      = help: use "10s" or "10ms"

    2 errors
    "#);
}

#[test]
fn a_duration_that_is_none() {
    let report = toml(
        r#"
        keep_alive = "soon"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `keep_alive` must be a duration with a unit
     --> tollbridge.toml:1:14
      |
    1 | keep_alive = "soon"
      |              ^^^^^^ not valid
      |
      = help: for example "500ms", "30s" or "1m30s"

    1 error
    "#);
}

#[test]
fn a_duration_that_is_absurd() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        timeout = "0s"
        idle_timeout = "400d"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.timeout` is out of range
     --> tollbridge.toml:3:11
      |
    3 | timeout = "0s"
      |           ^^^^ must be between 1ms and 1d

    error: `servers.a.idle_timeout` is out of range
     --> tollbridge.toml:4:16
      |
    4 | idle_timeout = "400d"
      |                ^^^^^^ must be between 1ms and 1d

    2 errors
    "#);
}

#[test]
fn a_pool_of_nothing() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        isolation = "pool"
        pool_size = 0
    "#,
    );
    assert_snapshot!(report, @"
    error: `servers.a.pool_size` is out of range
     --> tollbridge.toml:4:13
      |
    4 | pool_size = 0
      |             ^ must be at least 1

    1 error
    ");
}

#[test]
fn a_size_without_a_unit() {
    let report = toml(
        r"
        [limits]
        body = 4
    ",
    );
    assert_snapshot!(report, @r#"
    error: `limits.body` must be a size with a unit
     --> tollbridge.toml:2:8
      |
    2 | body = 4
      |        ^ missing unit
      |
      = help: use "4KiB" or "4MiB"

    1 error
    "#);
}

#[test]
fn a_size_that_is_absurd() {
    let report = toml(
        r#"
        [limits]
        body = "1B"
        headers = "2GiB"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `limits.body` is out of range
     --> tollbridge.toml:2:8
      |
    2 | body = "1B"
      |        ^^^^ must be at least 1KiB

    error: `limits.headers` is out of range
     --> tollbridge.toml:3:11
      |
    3 | headers = "2GiB"
      |           ^^^^^^ must be at most 1GiB

    2 errors
    "#);
}

#[test]
fn a_mistyped_word() {
    let report = toml(
        r#"
        [naming]
        charset = "strickt"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `strickt` is not a valid value for `naming.charset`
     --> tollbridge.toml:2:11
      |
    2 | charset = "strickt"
      |           ^^^^^^^^^ did you mean "strict"?
      |
      = help: valid values are "original" and "strict"

    1 error
    "#);
}

#[test]
fn a_word_of_a_later_version() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        transport = "openapi"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `openapi` is not a valid value for `servers.a.transport`
     --> tollbridge.toml:3:13
      |
    3 | transport = "openapi"
      |             ^^^^^^^^^ not supported by this version
      |
      = help: valid values are "auto", "builtin", "http", "sse", "stdio" and "websocket"

    1 error
    "#);
}

#[test]
fn a_word_that_is_a_number() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        era = 2026
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.era` must be a string
     --> tollbridge.toml:3:7
      |
    3 | era = 2026
      |       ^^^^ this is a whole number
      |
      = help: valid values are "auto", "legacy" and "modern"

    1 error
    "#);
}

/// `M` is a unit of sizes and of times, and not a number is between no bounds.
#[test]
fn bounds_that_are_easily_missed() {
    let report = toml(
        r#"
        limits.body = "5000M"
        [audit]
        quota = "5m"
        [servers.a]
        command = "a"
        retry.jitter = nan
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `limits.body` is out of range
     --> tollbridge.toml:1:15
      |
    1 | limits.body = "5000M"
      |               ^^^^^^^ must be at most 1GiB

    error: `audit.quota` is out of range
     --> tollbridge.toml:3:9
      |
    3 | quota = "5m"
      |         ^^^^ must be at least 16MiB

    error: `servers.a.retry.jitter` is out of range
     --> tollbridge.toml:6:16
      |
    6 | retry.jitter = nan
      |                ^^^ must be at least 0

    3 errors
    "#);
}

/// What is a number of bytes elsewhere is not made a thousand times as many.
#[test]
fn a_size_in_bytes_without_a_unit() {
    let report = toml("limits = { body = 16777216, headers = 5000 }\n");
    assert_snapshot!(report, @r#"
    error: `limits.body` must be a size with a unit
     --> tollbridge.toml:1:19
      |
    1 | limits = { body = 16777216, headers = 5000 }
      |                   ^^^^^^^^ missing unit
      |
      = help: use "16MiB" for so many bytes

    error: `limits.headers` must be a size with a unit
     --> tollbridge.toml:1:39
      |
    1 | limits = { body = 16777216, headers = 5000 }
      |                                       ^^^^ missing unit
      |
      = help: use "5000B" for so many bytes

    2 errors
    "#);
}

/// A value out of its bounds is not compared with others by its default.
#[test]
fn one_slip_is_one_error() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        timeout = "0s"
        max_total_timeout = "30s"
        ejection = { base = "5m", max = "2d" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.timeout` is out of range
     --> tollbridge.toml:3:11
      |
    3 | timeout = "0s"
      |           ^^^^ must be between 1ms and 1d

    error: `servers.a.ejection.max` is out of range
     --> tollbridge.toml:5:33
      |
    5 | ejection = { base = "5m", max = "2d" }
      |                                 ^^^^ must be between 1ms and 1d

    2 errors
    "#);
}
