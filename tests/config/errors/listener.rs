//! The listener and the other keys at the top.

use insta::assert_snapshot;

use crate::support::{config, toml};

/// The one name that means the same everywhere.
#[test]
fn localhost_is_this_machine() {
    let config = config("listen = 'localhost:9000'");
    assert_eq!(config.listen.to_string(), "127.0.0.1:9000");
}

#[test]
fn a_name_for_an_address() {
    let report = toml(
        r#"
        listen = "gateway:9000"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `gateway:9000` is not an address and port
     --> tollbridge.toml:1:10
      |
    1 | listen = "gateway:9000"
      |          ^^^^^^^^^^^^^^ expected an IP address, `:` and a port
      |
      = help: write "127.0.0.1:9000"

    1 error
    "#);
}

#[test]
fn a_port_alone() {
    let report = toml(
        r#"
        listen = "8080"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `8080` is not an address and port
     --> tollbridge.toml:1:10
      |
    1 | listen = "8080"
      |          ^^^^^^ expected an IP address, `:` and a port
      |
      = help: write "127.0.0.1:8080"

    1 error
    "#);
}

#[test]
fn an_address_that_others_reach() {
    let report = toml(
        r#"
        listen = "0.0.0.0:8080"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: 0.0.0.0:8080 is reachable from other machines
     --> tollbridge.toml:1:10
      |
    1 | listen = "0.0.0.0:8080"
      |          ^^^^^^^^^^^^^^ without authentication
      |
      = help: listen on 127.0.0.1, set `auth = "keys"` in `[governance]`, or set `danger_listen_without_auth = true`

    1 error
    "#);
}

#[test]
fn a_port_search_past_the_last_port() {
    let report = toml(
        r#"
        listen = "127.0.0.1:65000"
        port_search = 1000
    "#,
    );
    assert_snapshot!(report, @"
    error: `port_search` is out of range
     --> tollbridge.toml:2:15
      |
    2 | port_search = 1000
      |               ^^^^ exceeds port 65535

    1 error
    ");
}

#[test]
fn a_host_with_a_scheme() {
    let report = toml(
        r#"
        allowed_hosts = ["gateway.example.com", "https://example.com/"]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `allowed_hosts[1]` must be a host name
     --> tollbridge.toml:1:41
      |
    1 | allowed_hosts = ["gateway.example.com", "https://example.com/"]
      |                                         ^^^^^^^^^^^^^^^^^^^^^^ not a host name
      |
      = help: use a form such as `gateway.example.com`: no scheme, path or `*`

    1 error
    "#);
}

#[test]
fn an_origin_with_a_path() {
    let report = toml(
        r#"
        allowed_origins = ["https://example.com/app"]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `allowed_origins[0]` must be an origin
     --> tollbridge.toml:1:20
      |
    1 | allowed_origins = ["https://example.com/app"]
      |                    ^^^^^^^^^^^^^^^^^^^^^^^^^ not an origin
      |
      = help: use a scheme and host without a path, such as `https://app.example.com`, or `*`

    1 error
    "#);
}

#[test]
fn no_workers() {
    let report = toml(
        r"
        workers = 0
    ",
    );
    assert_snapshot!(report, @"
    error: `workers` is out of range
     --> tollbridge.toml:1:11
      |
    1 | workers = 0
      |           ^ must be at least 1

    1 error
    ");
}

#[test]
fn a_mistyped_log_level() {
    let report = toml(
        r#"
        [log]
        level = "inof"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `inof` is not a log level or filter
     --> tollbridge.toml:2:9
      |
    2 | level = "inof"
      |         ^^^^^^ did you mean "info"?
      |
      = help: levels are error, warn, info, debug and trace; a filter looks like `info,tollbridge=debug`

    1 error
    "#);
}

#[test]
fn half_of_tls() {
    let report = toml(
        r#"
        tls = { cert = "cert.pem" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `tls` requires `key`
     --> tollbridge.toml:1:7
      |
    1 | tls = { cert = "cert.pem" }
      |       ^^^^^^^^^^^^^^^^^^^^^ `key` is missing
      |
      = help: add key = "..."

    1 error
    "#);
}

#[test]
fn a_path_for_a_shell() {
    let report = toml(
        r#"
        tls = { cert = "~/cert.pem", key = "/etc/key.pem" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `tls.cert` begins with `~`
     --> tollbridge.toml:1:16
      |
    1 | tls = { cert = "~/cert.pem", key = "/etc/key.pem" }
      |                ^^^^^^^^^^^^ not expanded: no shell is involved
      |
      = help: use "${HOME}/cert.pem"

    1 error
    "#);
}

#[test]
fn depths_that_are_absurd() {
    let report = toml(
        r"
        [limits]
        depth = 1000
        sessions_per_agent = 0
    ",
    );
    assert_snapshot!(report, @"
    error: `limits.depth` is out of range
     --> tollbridge.toml:2:9
      |
    2 | depth = 1000
      |         ^^^^ must be at most 128

    error: `limits.sessions_per_agent` is out of range
     --> tollbridge.toml:3:22
      |
    3 | sessions_per_agent = 0
      |                      ^ must be at least 1

    2 errors
    ");
}

/// An abstract name has no mode, and a directory is no socket.
#[test]
fn no_path_for_a_socket() {
    for written in ["unix:", "unix:@tollbridge", "unix:/run/"] {
        let report = toml(&format!("listen = \"{written}\""));
        let expect = format!("`{written}` is not an address and port");
        assert!(report.contains(&expect), "{report}");
        let help = "write \"unix:/run/tollbridge/mcp.sock\"";
        assert!(report.contains(help), "{report}");
    }
}

#[test]
fn tls_over_a_socket() {
    let report = toml(
        r#"
        listen = "unix:/run/mcp.sock"
        tls = { cert = "/dev/null", key = "/dev/null" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `tls` cannot be combined with a Unix socket
     --> tollbridge.toml:1:10
      |
    1 | listen = "unix:/run/mcp.sock"
      |          ^^^^^^^^^^^^^^^^^^^^ traffic on a Unix socket does not leave the machine
      |
      = help: remove `tls`, or listen on an address

    1 error
    "#);
}

#[test]
fn a_mode_that_is_none() {
    let report = toml(
        r#"
        listen = "unix:/run/mcp.sock"
        socket = { mode = "0400" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `socket.mode` is out of range
     --> tollbridge.toml:2:19
      |
    2 | socket = { mode = "0400" }
      |                   ^^^^^^ expected an octal mode with owner write permission, such as "0600"

    1 error
    "#);
}
