//! Variables in strings.

use tollbridge::config::Transport;

use crate::support::{accepted, config_in, server, warnings};

const ENVIRONMENT: [(&str, &str); 6] = [
    ("A", "a"),
    ("EMPTY", ""),
    ("HOME", "/home/me"),
    ("TRICKY", "${A} $$ {}"),
    ("PORT", "8"),
    ("TOKEN_X", "x"),
];

#[test]
fn forms_of_our_own() {
    let rows = [
        ("${A}", "a"),
        ("x${A}y${A}z", "xayaz"),
        ("${A:default}", "a"),
        ("${NONE:default}", "default"),
        ("${NONE:}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:default}", ""),
        ("${NONE:http://x:1/{y}", "http://x:1/{y"),
        ("${NONE:${A}}", "a"),
        ("${NONE:x${OTHER:y${A}}z}", "xyaz"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$${A}", "$a"),
        ("$A $ $5", "$A $ $5"),
        ("${TRICKY}", "${A} $$ {}"),
        ("${NONE:$${A}}", "${A}"),
    ];
    for (written, expected) in rows {
        assert_eq!(argument("a.toml", written), expected, "{written}");
    }
}

#[test]
fn forms_of_others_in_their_documents() {
    let rows = [
        ("${A}", "a"),
        ("${env:A}", "a"),
        ("x${env:NONE:-d}y", "xdy"),
        ("${NONE:-d}", "d"),
        ("${NONE:d}", "d"),
        ("${A:-d}", "a"),
        ("${EMPTY:-d}", "d"),
        ("${userHome}/x", "/home/me/x"),
        ("${workspaceFolder}/x", "/etc/tollbridge/x"),
        ("${workspaceFolder:main}/x", "/etc/tollbridge/x"),
        ("${workspaceFolderBasename}", "tollbridge"),
        ("a${/}b${pathSeparator}c", "a/b/c"),
        ("${input:token-x}", "x"),
        ("${input:with-default}", "d"),
        ("pa$$word", "pa$$word"),
    ];
    for (written, expected) in rows {
        assert_eq!(argument("mcp.json", written), expected, "{written}");
    }
}

#[test]
fn numbers_and_booleans_may_come_from_variables() {
    let text = r#"
        port_search = "${PORT}"
        keep_alive = "${PORT}s"
        [servers.a]
        command = "a"
        enabled = "${NONE:false}"
        retry = { jitter = "${NONE:0.5}" }
    "#;
    let config = config_in(&ENVIRONMENT, text);
    assert_eq!((config.port_search, config.keep_alive.as_secs()), (8, 8));
    assert!(!server(&config, "a").enabled);
    assert!((server(&config, "a").retry.jitter - 0.5).abs() < 1e-9);
}

#[test]
fn what_is_not_used_needs_no_value() {
    let disabled = r#"
        [servers.a]
        enabled = false
        url = "https://${NONE}/mcp"
        auth = { type = "bearer", token = "${NONE}" }
    "#;
    let config = config_in(&[], disabled);
    assert!(!server(&config, "a").enabled);
    let typed = r#"
        [servers.a]
        command = "a"
        enabled = false
        era = "${NONE}"
        price = "${NONE}"
        priority = "${NONE}"
        timeout = "${NONE}s"
        retry = { base = "${NONE}" }
        tools = { allow = "${NONE}", deny = ["${NONE}"] }
    "#;
    let config = config_in(&[], typed);
    let defaults = config_in(&[], "[servers.a]\ncommand = 'a'\nenabled = false");
    assert_eq!(server(&config, "a").timeout, server(&defaults, "a").timeout);
    let unknown = "[servers.a]\nenabled = false\nurl = '${NONE}'";
    insta::assert_snapshot!(warnings(&[], &[("a.toml", unknown)]), @"
    warning: `servers.a` is skipped
     --> a.toml:3:1
      |
    3 | url = '${NONE}'
      | ^^^ disabled, with an unset variable in its URL
    ");
    let replaced = "[servers.a]\ncommand = '${NONE}'";
    let by = "[servers.a]\ncommand = 'a'";
    accepted(&[], &[("a.toml", replaced), ("b.toml", by)]);
}

#[test]
fn forms_of_others_in_our_documents_are_doubted() {
    let text = r#"
        [servers.a]
        command = "${NONE:-npx}"
        args = ["${env:A}"]
    "#;
    insta::assert_snapshot!(warnings(&ENVIRONMENT, &[("tollbridge.toml", text)]), @r#"
    warning: the default of `NONE` begins with a hyphen
     --> tollbridge.toml:2:12
      |
    2 | command = "${NONE:-npx}"
      |            ^^^^^^^^^^^^ taken literally
      |
      = help: use `${NONE:npx}` if the hyphen is not intended

    warning: this reads variable `env` with default `A`
     --> tollbridge.toml:3:10
      |
    3 | args = ["${env:A}"]
      |          ^^^^^^^^ taken literally
      |
      = help: use `${A}` for the variable `A`
    "#);
}

/// The value that `written` has as an argument of a program.
fn argument(file: &str, written: &str) -> String {
    let text = match file {
        "mcp.json" => format!(
            r#"{{
                "inputs": [{{ "id": "token-x" }}, {{ "id": "with-default", "default": "d" }}],
                "servers": {{ "a": {{ "type": "stdio", "command": "a", "args": ["{written}"] }} }}
            }}"#
        ),
        _ => format!("[servers.a]\ncommand = 'a'\nargs = ['{written}']"),
    };
    let config = accepted(&ENVIRONMENT, &[(file, &text)]).config;
    let Transport::Stdio(command) = &server(&config, "a").transport else {
        panic!()
    };
    command.args[0].clone()
}
