//! How servers are reached, and the rules for their items.

use insta::assert_snapshot;

use crate::support::{toml, toml_in};

#[test]
fn a_server_nobody_can_reach() {
    let report = toml(
        r#"
        [servers.a]
        timeout = "5s"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a` requires `command` or `url`
     --> tollbridge.toml:1:10
      |
    1 | [servers.a]
      |          ^ missing transport: neither `command` nor `url` is set
      |
      = help: set `command` for a program, `url` for a remote server, or `transport = "builtin"` for the toolbox

    1 error
    "#);
}

#[test]
fn a_program_and_a_url() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        url = "https://example.com/mcp"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a` has both `command` and `url`
     --> tollbridge.toml:3:1
      |
    2 | command = "a"
      | ------- a program to run
    3 | url = "https://example.com/mcp"
      | ^^^ the address of a running server
      |
      = help: keep one of them

    1 error
    "#);
}

#[test]
fn a_command_line_for_a_program() {
    let report = toml(
        r#"
        [servers.a]
        command = "npx -y server"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `npx -y server` is not a single program
     --> tollbridge.toml:2:11
      |
    2 | command = "npx -y server"
      |           ^^^^^^^^^^^^^^^ not split into words: no shell is involved
      |
      = help: use command = "npx" and args = ["-y", "server"]

    1 error
    "#);
}

#[test]
fn an_empty_program() {
    let report = toml(
        r#"
        [servers.a]
        command = ""
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.command` is empty or blank
     --> tollbridge.toml:2:11
      |
    2 | command = ""
      |           ^^ not valid

    1 error
    "#);
}

#[test]
fn a_transport_that_does_not_fit() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        transport = "websocket"

        [servers.b]
        command = "b"
        transport = "http"

        [servers.c]
        url = "https://example.com/mcp"
        transport = "stdio"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.transport` does not match
     --> tollbridge.toml:3:13
      |
    3 | transport = "websocket"
      |             ^^^^^^^^^^^ the URL of this server begins with `https:`
      |
      = help: remove it; it is derived from `command` or `url`

    error: `servers.b.transport` does not match
     --> tollbridge.toml:7:13
      |
    7 | transport = "http"
      |             ^^^^^^ programs use stdin and stdout
      |
      = help: remove it; it is derived from `command` or `url`

    error: `servers.c.transport` does not match
      --> tollbridge.toml:11:13
       |
    11 | transport = "stdio"
       |             ^^^^^^^ the URL of this server begins with `https:`
       |
       = help: remove it; it is derived from `command` or `url`

    3 errors
    "#);
}

#[test]
fn urls_that_are_none() {
    let report = toml(
        r#"
        [servers.a]
        url = "example.com/mcp"

        [servers.b]
        url = "ftp://example.com/mcp"

        [servers.c]
        url = "https://exa mple.com"

        [servers.d]
        url = "localhost:3000/mcp"

        [servers.e]
        url = "mcp.example.com?a=b"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.url` is not valid
     --> tollbridge.toml:2:7
      |
    2 | url = "example.com/mcp"
      |       ^^^^^^^^^^^^^^^^^ missing scheme
      |
      = help: use "https://example.com/mcp"

    error: `servers.b.url` is not valid
     --> tollbridge.toml:5:7
      |
    5 | url = "ftp://example.com/mcp"
      |       ^^^^^^^^^^^^^^^^^^^^^^^ only `http:`, `https:`, `ws:` and `wss:` are supported
      |
      = help: for example "https://mcp.example.com/mcp"

    error: `servers.c.url` is not valid
     --> tollbridge.toml:8:7
      |
    8 | url = "https://exa mple.com"
      |       ^^^^^^^^^^^^^^^^^^^^^^ not a URL
      |
      = help: for example "https://mcp.example.com/mcp"

    error: `servers.d.url` is not valid
      --> tollbridge.toml:11:7
       |
    11 | url = "localhost:3000/mcp"
       |       ^^^^^^^^^^^^^^^^^^^^ missing scheme
       |
       = help: use "http://localhost:3000/mcp"

    error: `servers.e.url` is not valid
      --> tollbridge.toml:14:7
       |
    14 | url = "mcp.example.com?***"
       |       ^^^^^^^^^^^^^^^^^^^^^ not a URL
       |
       = help: for example "https://mcp.example.com/mcp"

    5 errors
    "#);
}

#[test]
fn a_url_with_a_password() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://me:hunter2@example.com/mcp"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.url` is not valid
     --> tollbridge.toml:2:7
      |
    2 | url = "https://***@example.com/mcp"
      |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ a URL with a password ends up in logs
      |
      = help: move the password to `auth` or `headers`

    1 error
    "#);
}

#[test]
fn headers_that_cannot_be_set() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        headers = { "a b" = "1", Content-Type = "text/plain", Mcp-Session-Id = "1", X-A = "1", x-a = "2" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: invalid or reserved header
     --> tollbridge.toml:3:13
      |
    3 | headers = { "a b" = "***", Content-Type = "***", Mcp-Session-Id = "***", X-A = "***", x-a = "***" }
      |             ^^^^^ a header name consists of letters, digits and `-`

    error: invalid or reserved header
     --> tollbridge.toml:3:26
      |
    3 | headers = { "a b" = "***", Content-Type = "***", Mcp-Session-Id = "***", X-A = "***", x-a = "***" }
      |                            ^^^^^^^^^^^^ this header is set by the transport

    error: invalid or reserved header
     --> tollbridge.toml:3:55
      |
    3 | headers = { "a b" = "***", Content-Type = "***", Mcp-Session-Id = "***", X-A = "***", x-a = "***" }
      |                                                  ^^^^^^^^^^^^^^ this header is set by the transport

    error: `servers.a.headers` has a duplicate header
     --> tollbridge.toml:3:88
      |
    3 | headers = { "a b" = "***", Content-Type = "***", Mcp-Session-Id = "***", X-A = "***", x-a = "***" }
      |                                                                          ---          ^^^ header names are case-insensitive
      |                                                                          |
      |                                                                          the same header

    4 errors
    "#);
}

#[test]
fn a_header_value_with_a_line_break() {
    let report = toml_in(
        &[("KEY", "abc\n")],
        r#"
            [servers.a]
            url = "https://example.com/mcp"
            headers = { X-Key = "${KEY}" }
        "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.headers.X-Key` contains a line break or another character not allowed in headers
     --> tollbridge.toml:3:21
      |
    3 | headers = { X-Key = "${KEY}" }
      |                     ^^^^^^^^ not valid

    1 error
    "#);
}

#[test]
fn auth_without_a_type() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        auth = { token = "hunter2" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.auth` requires `type`
     --> tollbridge.toml:3:8
      |
    3 | auth = { token = "***" }
      |        ^^^^^^^^^^^^^^^^^ `type` is missing
      |
      = help: write type = "bearer", type = "header" or type = "oauth2"

    1 error
    "#);
}

#[test]
fn a_word_in_place_of_a_credential() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        auth = "keys"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.auth` must be a table
     --> tollbridge.toml:3:8
      |
    3 | auth = "***"
      |        ^^^^^ this is a string
      |
      = help: write { type = "bearer", token = "..." }, { type = "header", name = "...", value = "..." } or { type = "oauth2", grant = "..." }

    1 error
    "#);
}

#[test]
fn auth_of_an_unknown_type() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        auth = { type = "baerer", token = "hunter2" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `baerer` is not a valid value for `servers.a.auth.type`
     --> tollbridge.toml:3:17
      |
    3 | auth = { type = "baerer", token = "***" }
      |                 ^^^^^^^^ did you mean "bearer"?
      |
      = help: valid values are "bearer", "header" and "oauth2"

    1 error
    "#);
}

#[test]
fn auth_with_a_mistyped_key() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        auth = { type = "bearer", tokn = "hunter2" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.auth` requires `token`
     --> tollbridge.toml:3:8
      |
    3 | auth = { type = "bearer", tokn = "***" }
      |        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ `token` is missing
      |
      = help: add token = "..."

    error: unknown key `servers.a.auth.tokn`
     --> tollbridge.toml:3:27
      |
    3 | auth = { type = "bearer", tokn = "***" }
      |                           ^^^^ no such key
      |
      = help: did you mean `token`?

    2 errors
    "#);
}

#[test]
fn auth_twice() {
    let report = toml(
        r#"
        [servers.a]
        url = "https://example.com/mcp"
        auth = { type = "bearer", token = "hunter2" }
        headers = { Authorization = "Bearer hunter2" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a` sets the credential twice
     --> tollbridge.toml:4:13
      |
    3 | auth = { type = "bearer", token = "***" }
      | ---- and here
    4 | headers = { Authorization = "***" }
      |             ^^^^^^^^^^^^^ here
      |
      = help: keep one of them

    1 error
    "#);
}

#[test]
fn a_root_that_is_a_path() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        roots = ["/srv/data", { uri = "https://example.com" }]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `/srv/data` is not a `file:` URI
     --> tollbridge.toml:3:10
      |
    3 | roots = ["/srv/data", { uri = "https://example.com" }]
      |          ^^^^^^^^^^^ roots are local directories
      |
      = help: use "file:///srv/data"

    error: `https://example.com` is not a `file:` URI
     --> tollbridge.toml:3:31
      |
    3 | roots = ["/srv/data", { uri = "https://example.com" }]
      |                               ^^^^^^^^^^^^^^^^^^^^^ roots are local directories
      |
      = help: for example "file:///home/me/project"

    2 errors
    "#);
}

#[test]
fn a_glob_that_is_none() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        tools = { deny = ["delete_[*"] }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `delete_[*` is not a glob
     --> tollbridge.toml:3:19
      |
    3 | tools = { deny = ["delete_[*"] }
      |                   ^^^^^^^^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    1 error
    "#);
}

#[test]
fn two_tools_with_one_name() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        [servers.a.tools.rename]
        read = "get"
        fetch = "get"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: two entries of `servers.a.tools.rename` map to the same name
     --> tollbridge.toml:5:9
      |
    4 | read = "get"
      |        ----- which `read` already has
    5 | fetch = "get"
      |         ^^^^^ `fetch` is renamed to this

    1 error
    "#);
}

#[test]
fn a_tool_name_with_a_space() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        tools = { rename = { read = "read it" } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `read it` is not a valid name
     --> tollbridge.toml:3:29
      |
    3 | tools = { rename = { read = "read it" } }
      |                             ^^^^^^^^^ invalid name
      |
      = help: names consist of 1 to 128 letters, digits, `_`, `-`, `.` and `/`

    1 error
    "#);
}

#[test]
fn delays_that_shrink() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        retry = { base = "1m", max = "1s", jitter = 2.0 }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.retry.base` is longer than `max`
     --> tollbridge.toml:3:18
      |
    3 | retry = { base = "1m", max = "1s", jitter = 2.0 }
      |                  ^^^^ base is 1m, max is 1s
      |
      = help: delays grow from `base` to `max`

    error: `servers.a.retry.jitter` is out of range
     --> tollbridge.toml:3:45
      |
    3 | retry = { base = "1m", max = "1s", jitter = 2.0 }
      |                                             ^^^ must be at most 1

    2 errors
    "#);
}

#[test]
fn ejections_that_shrink() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        ejection = { max = "500ms" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.ejection.base` is longer than `max`
     --> tollbridge.toml:3:20
      |
    3 | ejection = { max = "500ms" }
      |                    ^^^^^^^ base is 1s, max is 500ms
      |
      = help: delays double from `base` to `max`

    1 error
    "#);
}

#[test]
fn impossible_recovery() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        breaker = { failures = -1, open_for = "0s", half_open = 3 }
        health = { failures = 0, probe = "pong", interval = "0s" }
        grace = "2d"
        retry = { starts_per_minute = 0 }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.breaker.failures` is out of range
     --> tollbridge.toml:3:24
      |
    3 | breaker = { failures = -1, open_for = "0s", half_open = *** }
      |                        ^^ must be at least 0

    error: `servers.a.breaker.open_for` is out of range
     --> tollbridge.toml:3:39
      |
    3 | breaker = { failures = -1, open_for = "0s", half_open = *** }
      |                                       ^^^^ must be between 1ms and 1d

    error: unknown key `servers.a.breaker.half_open`
     --> tollbridge.toml:3:45
      |
    3 | breaker = { failures = -1, open_for = "0s", half_open = *** }
      |                                             ^^^^^^^^^ no such key
      |
      = help: valid keys are `failures` and `open_for`

    error: `servers.a.health.failures` is out of range
     --> tollbridge.toml:4:23
      |
    4 | health = { failures = 0, probe = "pong", interval = "0s" }
      |                       ^ must be at least 1

    error: `pong` is not a valid value for `servers.a.health.probe`
     --> tollbridge.toml:4:34
      |
    4 | health = { failures = 0, probe = "pong", interval = "0s" }
      |                                  ^^^^^^ did you mean "ping"?
      |
      = help: valid values are "list", "off" and "ping"

    error: `servers.a.health.interval` is out of range
     --> tollbridge.toml:4:53
      |
    4 | health = { failures = 0, probe = "pong", interval = "0s" }
      |                                                     ^^^^ must be between 1ms and 1d

    error: `servers.a.grace` is out of range
     --> tollbridge.toml:5:9
      |
    5 | grace = "2d"
      |         ^^^^ must be between 0s and 1d

    error: `servers.a.retry.starts_per_minute` is out of range
     --> tollbridge.toml:6:31
      |
    6 | retry = { starts_per_minute = 0 }
      |                               ^ must be at least 1

    8 errors
    "#);
}

#[test]
fn a_total_below_the_timeout() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        timeout = "5m"
        max_total_timeout = "1m"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.max_total_timeout` is less than `timeout`
     --> tollbridge.toml:4:21
      |
    3 | timeout = "5m"
      |           ---- is longer
    4 | max_total_timeout = "1m"
      |                     ^^^^ would end every call first
      |
      = help: `timeout` is 5m; use at least that

    1 error
    "#);
}

#[test]
fn an_empty_tag() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        tags = ["x", " "]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.tags[1]` is empty
     --> tollbridge.toml:3:14
      |
    3 | tags = ["x", " "]
      |              ^^^ use a word, or remove it

    1 error
    "#);
}

#[test]
fn calls_that_cannot_be_counted() {
    let report = toml(
        r#"
        limits.in_flight_per_agent = 0
        [servers.a]
        command = "a"
        limits = { in_flight = 0, queue = 2000000 }
    "#,
    );
    assert_snapshot!(report, @"
    error: `limits.in_flight_per_agent` is out of range
     --> tollbridge.toml:1:30
      |
    1 | limits.in_flight_per_agent = 0
      |                              ^ must be at least 1

    error: `servers.a.limits.in_flight` is out of range
     --> tollbridge.toml:4:24
      |
    4 | limits = { in_flight = 0, queue = 2000000 }
      |                        ^ must be at least 1

    error: `servers.a.limits.queue` is out of range
     --> tollbridge.toml:4:35
      |
    4 | limits = { in_flight = 0, queue = 2000000 }
      |                                   ^^^^^^^ must be at most 1000000

    3 errors
    ");
}
