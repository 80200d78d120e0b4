//! One file that says what others say: what is in it, and what is not.

use tollbridge::config::{Config, ExportedAgents, ValuePlace};

use crate::support::accepted;

const TOML: &str = r#"
    "$schema" = "https://example.com/schema.json"
    x-note = "not a setting"
    data_dir = "state"
    [servers.a]
    command = "./bin/x"
    cwd = "work"
    args = ["--token", "abc123secretvalue", "--ok", "--key=${K}"]
    [servers.a.env]
    PLAIN = "production"
    REF = "${X}"
    BOTH = "postgres://app:${PW}@db:5432/x"
    PARTLY = "postgres://app:hunter2@${X}/x"
    DEFAULT = "${X:info}"
    SECRET_DEFAULT = "${API_TOKEN:abc}"
    [servers.b]
    url = "https://h.example.com/mcp?key=${K}"
    auth = { type = "bearer", token = "${secret:b}" }
    headers = { X-One = "Token ${file:token.txt}", X-Two = "Token abcdef" }
    [servers.c]
    url = "https://h.example.com/mcp?key=abc"
    tools = { deny = ["a"] }
"#;
const FOREIGN: &str = r#"{ "mcpServers": { "d": {
    "command": "npx",
    "args": ["-y", "${HOME}/x", "a$b"],
    "env": { "T": "${env:TOKEN}", "D": "${X:-info}" }
} } }"#;
const EXPORT: &str = r#"# What the config files and the store of a gateway say, in one file.
#
# It refers to these variables, secrets and files:
#   API_TOKEN
#   HOME
#   K
#   PW
#   TOKEN
#   X
#   file:/etc/tollbridge/token.txt
#   secret:b
#   secret:servers.a.args.1
#   secret:servers.a.env.PARTLY
#   secret:servers.a.env.PLAIN
#   secret:servers.b.headers.X-Two
#   secret:servers.c.url

data_dir = "/etc/tollbridge/state"

[servers.a]
command = "/etc/tollbridge/bin/x"
cwd = "/etc/tollbridge/work"
args = [
    "--token",
    "${secret:servers.a.args.1}",
    "--ok",
    "--key=${K}",
]

[servers.a.env]
PLAIN = "${secret:servers.a.env.PLAIN}"
REF = "${X}"
BOTH = "postgres://app:${PW}@db:5432/x"
PARTLY = "${secret:servers.a.env.PARTLY}"
DEFAULT = "${X:info}"
SECRET_DEFAULT = "${API_TOKEN}"

[servers.b]
url = "https://h.example.com/mcp?key=${K}"

[servers.b.auth]
type = "bearer"
token = "${secret:b}"

[servers.b.headers]
X-One = "Token ${file:/etc/tollbridge/token.txt}"
X-Two = "${secret:servers.b.headers.X-Two}"

[servers.c]
url = "${secret:servers.c.url}"

[servers.c.tools]
deny = ["a"]

[servers.d]
command = "npx"
args = [
    "-y",
    "${HOME}/x",
    "a$$b",
]

[servers.d.env]
T = "${TOKEN}"
D = "${X:info}"
"#;

/// The export of `files`, where these variables are set.
fn exported(environment: &[(&str, &str)], files: &[(&str, &str)]) -> String {
    let exported = config(environment, files).export(&ExportedAgents::default());
    exported.expect("a config that was read")
}

fn config(environment: &[(&str, &str)], files: &[(&str, &str)]) -> Config {
    let mut all = vec![
        ("API_TOKEN", "x1"),
        ("HOME", "/home/me"),
        ("K", "x2"),
        ("PW", "x3"),
        ("TOKEN", "x4"),
        ("X", "https://x.example.com/"),
    ];
    all.extend(environment);
    accepted(&all, files).config
}

#[test]
fn secrets_are_references_and_paths_absolute() {
    let first = exported(&[], &[("tollbridge.toml", TOML), ("mcp.json", FOREIGN)]);
    assert_eq!(first, EXPORT);
    assert_eq!(exported(&[], &[("export.toml", &first)]), first);
}

#[test]
fn variables_that_override_keys_are_named_and_not_in_it() {
    let overrides = [
        ("TOLLBRIDGE_WORKERS", "3"),
        ("TOLLBRIDGE_SERVERS__A__ENV__REF", "planted"),
    ];
    let text = exported(&overrides, &[("tollbridge.toml", TOML)]);
    let named = "#\n# Not in it: variables that override keys:\n#   TOLLBRIDGE_SERVERS__A__ENV__REF\n\
                 #   TOLLBRIDGE_WORKERS\n\n";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("REF = \"${X}\""), "{text}");
    assert!(!text.contains("planted"), "{text}");
    assert!(!text.contains("workers"), "{text}");
    let places = config(&overrides, &[("tollbridge.toml", TOML)]).value_places();
    for (key, variable) in [
        ("workers", "TOLLBRIDGE_WORKERS"),
        ("servers.a.env.REF", "TOLLBRIDGE_SERVERS__A__ENV__REF"),
    ] {
        let variable = variable.to_owned();
        assert_eq!(places[key], ValuePlace::Environment { variable }, "{key}");
    }
    let of_file = ValuePlace::File {
        file: "tollbridge.toml".to_owned(),
        line: 11,
        variables: vec!["PW".to_owned()],
    };
    assert_eq!(places["servers.a.env.BOTH"], of_file);
}
