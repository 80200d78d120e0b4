//! Whatever a file holds: an answer, and no panic.

use proptest::prelude::*;
use tollbridge::config::{ConfigFormat, ConfigText, Environment, parse};

use crate::support::report;

proptest! {
    #[test]
    fn any_text_is_answered(text in any::<String>(), format in format()) {
        check(&text, format);
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300), format in format()) {
        check(&String::from_utf8_lossy(&bytes), format);
    }

    #[test]
    fn text_made_of_syntax_is_answered(text in syntax(), format in format()) {
        check(&text, format);
    }

    #[test]
    fn any_document_is_answered(document in document()) {
        for format in [ConfigFormat::Json, ConfigFormat::Yaml] {
            check(&document.to_string(), format);
            check(&serde_json::to_string_pretty(&document).expect("serializes"), format);
        }
        if let Ok(toml) = toml::to_string_pretty(&document) {
            check(&toml, ConfigFormat::Toml);
        }
    }

    #[test]
    fn any_variable_is_answered(
        name in "(SERVERS__A|NAMING|LISTEN|X|_{1,4}|servers__a__env__x)?(__[A-Z_é]{0,8}){0,3}",
        value in prop_oneof![any::<String>(), r#"[\[{]?(["\\,=a1é\]}\[{ u0-9.-]|true|\\u00e9){0,12}[\]}]?"#],
    ) {
        let environment = [(format!("TOLLBRIDGE_{name}"), value)].into_iter().collect();
        load("[servers.a]\ncommand = 'a'", ConfigFormat::Toml, &environment);
    }

    #[test]
    fn any_string_with_variables_is_answered(text in r"([$]|[{}]|:|-|A|é|env|input| ){0,20}") {
        let document = serde_json::json!({ "mcpServers": { "a": { "command": "a", "args": [text] } } });
        check(&document.to_string(), ConfigFormat::Json);
        let document = serde_json::json!({ "servers": { "a": { "command": "a", "args": [text] } } });
        check(&document.to_string(), ConfigFormat::Json);
    }
}

#[test]
fn fuzz_config() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for format in [ConfigFormat::Json, ConfigFormat::Toml, ConfigFormat::Yaml] {
            check(&text, format);
        }
    });
}

#[test]
fn deep_nesting_is_answered() {
    let rows = [
        ("[", "]"),
        ("{\"a\":", "}"),
        ("- ", ""),
        ("a: [", ""),
        ("a = [", ""),
        ("${A:", "}"),
    ];
    for (open, close) in rows {
        for depth in [10, 100, 10_000] {
            let text = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for format in [ConfigFormat::Json, ConfigFormat::Toml, ConfigFormat::Yaml] {
                check(&text, format);
            }
            check(
                &format!("[servers.a]\ncommand = '{text}'"),
                ConfigFormat::Toml,
            );
            let environment = [("TOLLBRIDGE_ALLOWED_HOSTS".to_owned(), text)]
                .into_iter()
                .collect();
            load("", ConfigFormat::Toml, &environment);
        }
    }
}

#[test]
fn aliases_that_explode_are_refused() {
    let row = |n: usize| {
        let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
        format!("x-a{n}: &a{n} [{aliases}]")
    };
    let rows: Vec<String> = (1..12).map(row).collect();
    let yaml = format!(
        "x-a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n{}",
        rows.join("\n")
    );
    let report = report(&[], &[("a.yaml", &yaml)]);
    assert!(
        report.contains("aliases expand to more than 100000 values"),
        "{report}"
    );
}

fn format() -> impl Strategy<Value = ConfigFormat> {
    prop_oneof![
        Just(ConfigFormat::Json),
        Just(ConfigFormat::Toml),
        Just(ConfigFormat::Yaml)
    ]
}

/// Pieces that mean something in one of the formats.
fn syntax() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "servers",
        "a",
        "env",
        "command",
        "mcpServers",
        "url",
        "auth",
        "\n",
        "\n  ",
        "\t",
        " ",
        ":",
        "=",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "\"\"\"",
        ",",
        "#",
        "//",
        "/*",
        "*/",
        "- ",
        "&x",
        "*x",
        "<<",
        "|",
        ">",
        "!",
        "?",
        "%",
        "---",
        "...",
        "1",
        "-",
        ".",
        "true",
        "null",
        "~",
        "\\",
        "\\u00e9",
        "é",
        "\u{feff}",
        "\u{0}",
        "\r\n",
        "\r",
        "${A}",
        "${",
        "$$",
        "1979-05-27T07:32:00Z",
        "0x",
        "inf",
        "\u{202e}",
        "😀",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Keys that mean something to one of the stages.
const KEYS: [&str; 64] = [
    "listen",
    "workers",
    "tls",
    "cert",
    "limits",
    "body",
    "naming",
    "template",
    "charset",
    "servers",
    "mcpServers",
    "bridge",
    "inputs",
    "id",
    "a",
    "b-c",
    "b_c",
    "command",
    "args",
    "env",
    "url",
    "headers",
    "auth",
    "type",
    "token",
    "transport",
    "enabled",
    "disabled",
    "timeout",
    "retryDelay",
    "toolNamespace",
    "aggregation",
    "tools",
    "allow",
    "deny",
    "rename",
    "describe",
    "roots",
    "uri",
    "retry",
    "base",
    "jitter",
    "governance",
    "expose",
    "priority",
    "x-y",
    "é",
    "",
    "mcp_servers",
    "context_servers",
    "extensions",
    "mcp",
    "projects",
    "serverDefaults",
    "name",
    "cmd",
    "env_vars",
    "env_http_headers",
    "bearer_token",
    "disabledTools",
    "options",
    "requestOptions",
    "quarantined",
    "settings",
];

/// Text that means something as a value.
const TEXTS: [&str; 20] = [
    "a",
    "30s",
    "1MiB",
    "${A}",
    "${A:b}",
    "https://x/y?z",
    "ws://x",
    "bearer",
    "header",
    "http",
    "builtin",
    "file:///x",
    "[",
    "{tool}",
    "127.0.0.1:0",
    "0.0.0.0:0",
    "$A ~/x",
    "~/x",
    "{env:A}",
    "static",
];

/// Documents of keys that mean something, with values of any kind.
fn document() -> impl Strategy<Value = serde_json::Value> {
    let keys = prop::sample::select(&KEYS[..]);
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
        prop::sample::select(&TEXTS[..]).prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::hash_map(keys.clone(), inner, 0..8).prop_map(|entries| {
                serde_json::Value::Object(
                    entries
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

fn check(text: &str, format: ConfigFormat) {
    load(text, format, &Environment::default());
}

/// Loads `text`, and renders all that is said about it.
fn load(text: &str, format: ConfigFormat, environment: &Environment) {
    let source = ConfigText {
        name: "odd".to_owned(),
        format,
        text: text.to_owned(),
        directory: "/".into(),
    };
    let notices = match parse([source], environment) {
        Ok(loaded) => {
            let shown = loaded.config.to_display();
            assert!(shown.to_json().is_object() && !shown.to_string().is_empty());
            loaded.warnings
        }
        Err(mistakes) => {
            assert!(!mistakes.notices.is_empty() && !mistakes.styled().is_empty());
            mistakes.notices
        }
    };
    for notice in notices {
        assert!(notice.file.is_some(), "{notice} stands nowhere");
        assert!(notice.line >= Some(1) && notice.column >= Some(1));
        assert!(!notice.to_string().is_empty() && !notice.message.contains(char::is_control));
    }
}
