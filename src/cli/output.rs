//! What the command line writes: stdout, stderr, and text of servers made safe for a terminal.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::{
    escape::escape_controls,
    mcp::{
        Raw,
        error::{self, FailureReason},
    },
};

/// How a command says on stdout what it was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OutputFormat {
    /// As one JSON value, also of what is wrong with the config.
    Json,
    /// For people, who are told on stderr what is wrong.
    Text,
}

impl OutputFormat {
    /// What the flag `--json` asks for.
    pub(super) const fn from_flag(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Writes to stdout; a closed pipe is a quiet failure, since its reader has seen enough.
pub(super) fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => eprint(&format!("cannot write the output: {error}\n")),
    }
    ExitCode::FAILURE
}

/// Writes `value` to stdout as indented JSON.
pub(super) fn print_json(value: &impl Serialize) -> ExitCode {
    let text = serde_json::to_string_pretty(value).expect("string keys and no failing Serialize");
    print_raw_json(&format!("{text}\n"))
}

/// Writes JSON to stdout byte for byte, unless a person reads it: see [`escape_terminal_json`].
pub(super) fn print_raw_json(json: &str) -> ExitCode {
    if is_stdout_terminal() {
        print(&escape_terminal_json(json))
    } else {
        print(json)
    }
}

/// A time for JSON: ISO 8601, UTC, to the millisecond.
pub(super) fn format_time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// Writes to stderr.
pub(super) fn eprint(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Whether a person reads stdout.
pub(super) fn is_stdout_terminal() -> bool {
    io::stdout().is_terminal()
}

/// What becomes of calls whose errors say themselves when to come back (`data.reason`).
const REASONS_WITH_RETRY: [FailureReason; 4] = [
    FailureReason::BreakerOpen,
    FailureReason::Draining,
    FailureReason::StartsLimited,
    FailureReason::Unavailable,
];

/// What an error object says, for people, what it is about where a refusal names that, and when to come back
/// where it does not say that itself.
pub(super) fn error_text(refusal: &Raw) -> String {
    let message = refusal.get("message");
    let message = message.as_ref().and_then(Raw::as_text).unwrap_or_default();
    let code = error::code(refusal).map_or_else(String::new, |code| format!(" ({code})"));
    let data: Option<Value> = refusal.get("data").and_then(|data| data.read().ok());
    if let Some(detail) = data.as_ref().and_then(refusal_detail) {
        return escape_terminal(&format!("{message}{code}: {detail}"));
    }
    let data = data.filter(|data| {
        let has_hint = data["reason"]
            .as_str()
            .is_some_and(|reason| REASONS_WITH_RETRY.iter().any(|it| it.as_str() == reason));
        data["retryable"] == true && !has_hint
    });
    let wait = data.and_then(|data| data["retryAfterMs"].as_u64());
    let wait = wait.map(|millis| Duration::from_secs(millis.div_ceil(1000)));
    let wait = wait.map_or_else(String::new, |wait| {
        format!("; try again in {}", humantime::format_duration(wait))
    });
    escape_terminal(&format!("{message}{code}{wait}"))
}

/// What the `data` of a refusal says in words: which budget does not suffice, or which data was found.
fn refusal_detail(data: &Value) -> Option<String> {
    if let Some(detail) = data["detail"].as_str() {
        return Some(detail.to_owned());
    }
    let classes = data["classes"].as_array()?;
    let classes: Vec<_> = classes.iter().filter_map(Value::as_str).collect();
    Some(classes.join(", "))
}

/// `text` without what would steer a terminal: a server must not move the cursor or hide text.
/// Line ends and tabs stay.
pub(super) fn escape_terminal(text: &str) -> String {
    escape_controls(text, &['\n', '\t'])
}

/// The same JSON without what would steer a terminal, most of which JSON allows in strings. What it
/// does not is between its tokens: a return, which is a space there.
pub(super) fn escape_terminal_json(json: &str) -> String {
    escape_terminal(&json.replace('\r', " "))
}

/// The first line of `text` that says anything, as one cell of a table: without tabs and controls.
pub(super) fn to_single_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty());
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    escape_terminal(&words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_and_when_to_come_back() {
        let check = |refusal: &'static str, expect: &str| {
            assert_eq!(error_text(&Raw::from_static(refusal)), expect, "{refusal}");
        };
        check(r#"{"code":-32004,"message":"no"}"#, "no (-32004)");
        check(
            r#"{"code":-32004,"message":"no","data":{"retryable":true,"retryAfterMs":1001}}"#,
            "no (-32004); try again in 2s",
        );
        check(
            r#"{"code":1,"message":"no","data":{"retryable":true,"retryAfterMs":"x"}}"#,
            "no (1)",
        );
        // Some say so in words of their own, and to call again is not always right.
        check(
            r#"{"code":-32603,"message":"no","data":{"reason":"draining","retryable":true,"retryAfterMs":1}}"#,
            "no (-32603)",
        );
        check(
            r#"{"code":-32603,"message":"no","data":{"retryable":false,"retryAfterMs":1000}}"#,
            "no (-32603)",
        );
        check(r#"{"message":"no","data":[]}"#, "no");
        check(
            r#"{"code":-32001,"message":"no","data":{"detail":"0.02 USD","retryable":true,"retryAfterMs":1}}"#,
            "no (-32001): 0.02 USD",
        );
        check(
            r#"{"code":-32002,"message":"no","data":{"classes":["email","iban"]}}"#,
            "no (-32002): email, iban",
        );
    }

    #[test]
    fn harmless_json_is_the_same_json() {
        let json = "{\r\n\t\"\u{9b}\\\\\u{7f}\\n\":\r[\"\u{200e}\u{202e}\u{2066}é\", 1e2]}\n";
        let harmless = escape_terminal_json(json);
        assert_eq!(
            harmless,
            "{ \n\t\"\\u009b\\\\\\u007f\\n\": [\"\\u200e\\u202e\\u2066é\", 1e2]}\n"
        );
        let read = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        assert_eq!(read(&harmless), read(json));
    }

    #[test]
    fn servers_cannot_steer_a_terminal() {
        let check = |given: &str, whole: &str, line: &str| {
            assert_eq!(escape_terminal(given), whole, "{given:?}");
            assert_eq!(to_single_line(given), line, "{given:?}");
        };
        check("plain", "plain", "plain");
        check("\n \n a\tb \nc", "\n \n a\tb \nc", "a b");
        check("\u{1b}[2Jx", r"\u001b[2Jx", r"\u001b[2Jx");
        check("a\rb\u{7}", r"a\rb\u0007", r"a b\u0007");
        check("\u{9b}31m", r"\u009b31m", r"\u009b31m");
        check("a\u{202e}b", r"a\u202eb", r"a\u202eb");
    }
}
