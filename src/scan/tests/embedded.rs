//! Values behind escapes, in JSON that is only a part of a text: they are found, and nothing but they
//! changes, so that what was JSON stays it.

use std::fmt::Write as _;

use super::*;

/// Classes with a value of each, and what stands before it, which stays.
const VALUES: [(&str, &str, &str); 13] = [
    ("CREDIT_CARD", "", "4111111111111111"),
    ("CREDIT_CARD", "", "4111 1111 1111 1111"),
    ("PHONE", "", "+14155552671"),
    ("IBAN", "", "DE89370400440532013000"),
    ("US_SSN", "", "536-22-8145"),
    ("IP_ADDRESS", "", "84.12.9.3"),
    ("EMAIL", "", "foo@example.com"),
    ("API_KEY", "", "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD3eF6"),
    ("API_KEY", "", "AKIAQWERTYUIOPASDFGH"),
    (
        "JWT",
        "",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ),
    ("CREDENTIAL", "password: ", "hunter2hunter2"),
    ("CREDENTIAL", "api_key=", "hunter2hunter2"),
    ("NATIONAL_ID", "PESEL ", "44051401359"),
];

/// What is written as an escape in one notation or another.
const SIGNS: [&str; 12] = [
    "\n",
    "\t",
    "\r\n",
    "\u{a0}",
    "\u{201c}",
    "\"",
    "\u{8}",
    "\u{1b}[1;31m",
    "\u{2028}",
    "\0",
    " <b> ",
    "\u{1f600}",
];

/// How a text is written in another.
#[derive(Clone, Copy, Debug)]
enum Notation {
    Html,
    Json,
    JsonAscii,
    JavaScript,
    Object,
    Percent,
    Python,
}

const NOTATIONS: [Notation; 7] = [
    Notation::Html,
    Notation::Json,
    Notation::JsonAscii,
    Notation::JavaScript,
    Notation::Object,
    Notation::Percent,
    Notation::Python,
];

/// What stands around a text that makes it no document.
const AROUND: [(&str, &str); 10] = [
    ("Result: ", ""),
    ("```json\n", "\n```"),
    ("{\"a\":1}\n", ""),
    ("2026-11-26T10:00:00Z INFO sent ", " took 3 ms"),
    ("const x = ", ";"),
    ("note: ", ""),
    ("NOTE=", ""),
    ("curl -d '", "' https://h"),
    ("", "\n(1 row)"),
    ("https://h.example/q?note=", "&page=2"),
];

/// What stands in place of a value while a text is written.
const HOLE: &str = "HOLEHOLE";

impl Notation {
    fn write(self, text: &str) -> String {
        let each = |write: &dyn Fn(char) -> String| text.chars().map(write).collect::<String>();
        let quoted = |inside: String| format!("\"{inside}\"");
        match self {
            Self::Html => each(&|c| match c {
                '"' => "&quot;".to_owned(),
                '&' => "&amp;".to_owned(),
                '<' => "&lt;".to_owned(),
                '>' => "&gt;".to_owned(),
                '\u{a0}' => "&nbsp;".to_owned(),
                '\0'..' ' | '\u{7f}'.. => format!("&#{};", u32::from(c)),
                c => c.to_string(),
            }),
            Self::Json => json!(text).to_string(),
            Self::JsonAscii => {
                let json = json!(text).to_string();
                let mut units = [0; 2];
                let mut out = String::new();
                for c in json.chars() {
                    if c.is_ascii() {
                        out.push(c);
                        continue;
                    }
                    for unit in c.encode_utf16(&mut units) {
                        write!(out, "\\u{unit:04x}").unwrap();
                    }
                }
                out
            }
            Self::JavaScript => quoted(each(&|c| match c {
                '"' | '\\' => format!("\\{c}"),
                '\0'..' ' | '\u{80}'..='\u{ff}' => format!("\\x{:02x}", u32::from(c)),
                '\u{100}'.. => format!("\\u{{{:x}}}", u32::from(c)),
                c => c.to_string(),
            })),
            Self::Object => json!({"id": 7, "note": text, "tags": ["a"]}).to_string(),
            Self::Percent => text
                .bytes()
                .map(|b| match b {
                    b if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) => char::from(b).into(),
                    b => format!("%{b:02X}"),
                })
                .collect(),
            Self::Python => {
                let inside = each(&|c| match c {
                    '\'' | '\\' => format!("\\{c}"),
                    '\n' => "\\n".to_owned(),
                    '\r' => "\\r".to_owned(),
                    '\t' => "\\t".to_owned(),
                    '\0'..' ' | '\u{7f}'..='\u{a0}' => format!("\\x{:02x}", u32::from(c)),
                    '\u{2028}' => "\\u2028".to_owned(),
                    c => c.to_string(),
                });
                format!("{{'note': '{inside}'}}")
            }
        }
    }
}

/// What a scan makes of `text` in a result.
fn redacted_text(text: &str) -> String {
    let message = json!({"content": [{"type": "text", "text": text}]}).to_string();
    let redacted: Value = serde_json::from_str(&redacted(&all(), &message)).unwrap();
    redacted["content"][0]["text"].as_str().unwrap().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn values_behind_escapes_are_found_and_nothing_else_changes(
        value in prop::sample::select(&VALUES[..]),
        before in prop::sample::select(&SIGNS[..]),
        after in prop::sample::select(&SIGNS[..]),
        notations in prop::collection::vec(prop::sample::select(&NOTATIONS[..]), 1..4),
        around in prop::sample::select(&AROUND[..]),
    ) {
        let (label, name, value) = value;
        // Elsewhere a password without quotes goes on.
        prop_assume!(name.is_empty() || after.starts_with(|c: char| c.is_ascii() && c != '<'));
        let text = |value: &str| {
            let note = format!("Hello{before}{name}{value}{after}bye");
            notations.iter().fold(note, |inner, notation| notation.write(&inner))
        };
        let (start, end) = around;
        let given = format!("{start}{}{end}", text(value));
        let expect = format!("{start}{}{end}", text(HOLE)).replace(HOLE, &format!("[{label}]"));
        prop_assert_eq!(redacted_text(&given), expect, "{}", given);
    }
}

#[test]
fn escapes_are_taken_whole_or_left_whole() {
    for (text, expect) in [
        (r#"x: "Hello\nfoo@example.com""#, r#"x: "Hello\n[EMAIL]""#),
        (r"\\\\nfoo@example.com\\\\t", r"\\\\n[EMAIL]\\\\t"),
        (r"DOMAIN\test@example.com", r"DOMAIN\t[EMAIL]"),
        (r"x: \u0066oo@example.com\u0021", r"x: [EMAIL]\u0021"),
        (r"first\_last@example.com", "[EMAIL]"),
        (
            r"postgres:\/\/app:s3cr3tpw@h\/x",
            r"postgres:\/\/app:[CREDENTIAL]@h\/x",
        ),
        ("?q=%224111111111111111%22", "?q=%22[CREDIT_CARD]%22"),
        ("card=4111%201111%201111%201111&x", "card=[CREDIT_CARD]&x"),
        ("to=foo%2540example.com", "to=[EMAIL]"),
        ("4111&nbsp;1111&nbsp;1111&nbsp;1111", "[CREDIT_CARD]"),
        ("foo&#64;example.com", "[EMAIL]"),
        (
            "a\u{1b}[31m4111111111111111\u{1b}[0m",
            "a\u{1b}[31m[CREDIT_CARD]\u{1b}[0m",
        ),
        (
            r"\u005cu005cn4111111111111111",
            r"\u005cu005cn[CREDIT_CARD]",
        ),
        (
            r#"log {\"password\": \"hunter2hunter2\"}"#,
            r#"log {\"password\": \"[CREDENTIAL]\"}"#,
        ),
    ] {
        assert_eq!(redacted_text(text), expect, "{text}");
    }
    let message = r#"{"x\\n4111111111111111":1}"#;
    assert_eq!(redacted(&all(), message), r#"{"x\\n[CREDIT_CARD]":1}"#);
}

/// A number of embedded JSON stays one; one of a sentence need not.
#[test]
fn numbers_of_embedded_json_stay_numbers() {
    for (text, expect) in [
        (r#"Row: {"card": 4111111111111111}"#, r#"Row: {"card": 0}"#),
        (
            "```json\n{\n  \"card\": 4111111111111111,\n  \"n\": 1\n}\n```",
            "```json\n{\n  \"card\": 0,\n  \"n\": 1\n}\n```",
        ),
        (
            r#"x {"t":"{\"cards\":[1, 4111111111111111, 5500000000000004]}"}"#,
            r#"x {"t":"{\"cards\":[1, 0, 0]}"}"#,
        ),
        (
            "rows\n[[\"a\", true, 4111111111111111]]",
            "rows\n[[\"a\", true, 0]]",
        ),
        ("{'card': 4111111111111111} was it", "{'card': 0} was it"),
        (
            "cards 4111111111111111, 5500000000000004, all",
            "cards [CREDIT_CARD], [CREDIT_CARD], all",
        ),
        ("a [4111111111111111] b", "a [[CREDIT_CARD]] b"),
        ("card: 4111111111111111, paid", "card: [CREDIT_CARD], paid"),
    ] {
        assert_eq!(redacted_text(text), expect, "{text}");
    }
    let length = Scan {
        mask: Mask::Length,
        ..all()
    };
    assert_eq!(
        redacted(&length, r#"["x {\"card\": 4111111111111111}"]"#),
        r#"["x {\"card\": 1000000000000000}"]"#
    );
}
