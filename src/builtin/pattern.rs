//! `regex_test`: a regular expression over a text, with positions and groups.
//!
//! Called through the tool table. The regex crate searches in time linear in the text for one
//! match, but all matches together can cost the square of it. So text and program are bounded,
//! which bounds one search, and the searches together by a deadline.

use std::ops::Range;
use std::time::Duration;

use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::tools::{Mistake, check_length};

/// Time after which no further match is searched for. Ordinary patterns need a thousandth of it.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(500);

/// Longest pattern, in bytes: longer ones are generated, and then wanted in a program.
const PATTERN_BYTES_MAX: usize = 4 << 10;
/// Longest text, in bytes: several pages of log.
const TEXT_BYTES_MAX: usize = 32 << 10;
/// Largest compiled pattern, in bytes, which bounds the work for each byte of text. Room for a
/// handful of Unicode classes such as \w, none for repetitions of thousands.
const PROGRAM_BYTES_MAX: usize = 512 << 10;
/// Most matches one call shows, and the default: what a reader can use.
const MATCHES_MAX: usize = 1000;
const MATCHES_DEFAULT: usize = 100;
/// Most groups that all matches shown may come to. A pattern of a thousand groups is legal, and
/// each match repeats it.
const GROUPS_MAX: usize = 20_000;
/// Most bytes of matched text one call shows. Groups nest, so each may hold the whole match once
/// more.
const MATCHED_BYTES_MAX: usize = 128 << 10;

/// Arguments of `regex_test`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    /// The regular expression, without delimiters. Flags can stand inside: (?i)abc.
    pattern: String,
    /// The text to search.
    text: String,
    /// Letters match in either case. Default: false.
    #[serde(default)]
    ignore_case: bool,
    /// ^ and $ match at every line. Default: false.
    #[serde(default)]
    multi_line: bool,
    /// The dot matches line feeds too. Default: false.
    #[serde(default)]
    dot_all: bool,
    /// Most matches to show. Default: 100.
    #[schemars(range(min = 1, max = MATCHES_MAX))]
    limit: Option<usize>,
}

/// Answer of `regex_test`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Tested {
    /// Whether the pattern matches anywhere in the text.
    is_match: bool,
    /// The matches from the left, none overlapping another.
    matches: Vec<Match>,
    /// Whether there are more matches, left out because of limit, their length or the time.
    truncated: bool,
}

/// One match.
#[derive(Debug, Serialize, JsonSchema)]
struct Match {
    #[serde(flatten)]
    span: Span,
    /// The groups that took part, by number.
    groups: Vec<Group>,
}

/// One group of a match.
#[derive(Debug, Serialize, JsonSchema)]
struct Group {
    /// Number of the group, from 1 in the order of opening parentheses.
    index: usize,
    /// Name of the group, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    span: Span,
}

/// A piece of the text.
#[derive(Debug, Serialize, JsonSchema)]
struct Span {
    /// First character, counted from 0.
    start: usize,
    /// One past the last character.
    end: usize,
    /// The matched text.
    text: String,
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "every tool takes its arguments by value"
)]
pub(super) fn test(arguments: Test) -> Result<Tested, Mistake> {
    let limit = arguments.limit.unwrap_or(MATCHES_DEFAULT);
    if !(1..=MATCHES_MAX).contains(&limit) {
        return Err(Mistake::new(
            "limit",
            format_args!("{limit} is not between 1 and {MATCHES_MAX}"),
            "Send a limit within these bounds",
        ));
    }
    check_length("text", arguments.text.len(), TEXT_BYTES_MAX)?;
    let regex = compile(&arguments)?;
    let deadline = Instant::now() + SEARCH_TIME_MAX;
    Ok(search(&regex, &arguments.text, limit, || {
        Instant::now() > deadline
    }))
}

/// The first `limit` matches, or fewer when there is no room for more or `is_late` says so.
fn search(regex: &Regex, text: &str, limit: usize, mut is_late: impl FnMut() -> bool) -> Tested {
    let text = Text::new(text);
    let mut found = regex.captures_iter(text.whole);
    let mut room = Room::new();
    let mut matches = Vec::new();
    let rest = loop {
        match found.next() {
            Some(captures) if matches.len() < limit && room.take(&captures) => {
                matches.push(text.describe(&captures, regex));
            }
            rest => break rest,
        }
        if is_late() {
            return Tested {
                is_match: true,
                matches,
                truncated: true,
            };
        }
    };
    Tested {
        is_match: rest.is_some() || !matches.is_empty(),
        matches,
        truncated: rest.is_some(),
    }
}

fn compile(arguments: &Test) -> Result<Regex, Mistake> {
    check_length("pattern", arguments.pattern.len(), PATTERN_BYTES_MAX)?;
    RegexBuilder::new(&arguments.pattern)
        .case_insensitive(arguments.ignore_case)
        .multi_line(arguments.multi_line)
        .dot_matches_new_line(arguments.dot_all)
        .size_limit(PROGRAM_BYTES_MAX)
        .build()
        .map_err(|error| {
            if let regex::Error::CompiledTooBig(_) = error {
                return Mistake::new(
                    "pattern",
                    format_args!("compiles to more than {PROGRAM_BYTES_MAX} bytes"),
                    "Use smaller repetition counts, or [a-z0-9] instead of Unicode classes such as \
                     \\w",
                );
            }
            Mistake::new(
                "pattern",
                error,
                "Correct it; look-around and back-references do not exist in this syntax",
            )
        })
}

/// What may still be shown.
struct Room {
    groups: usize,
    bytes: usize,
}

impl Room {
    fn new() -> Self {
        Self {
            groups: GROUPS_MAX,
            bytes: MATCHED_BYTES_MAX,
        }
    }

    /// Takes what one match needs; false when there is not enough.
    fn take(&mut self, captures: &regex::Captures<'_>) -> bool {
        let bytes: usize = captures.iter().flatten().map(|piece| piece.len()).sum();
        let enough = captures.len() <= self.groups && bytes <= self.bytes;
        if enough {
            self.groups -= captures.len();
            self.bytes -= bytes;
        }
        enough
    }
}

/// The text with an index of its characters, since matches count bytes and readers count
/// characters.
struct Text<'t> {
    whole: &'t str,
    starts: Vec<usize>,
}

impl<'t> Text<'t> {
    fn new(whole: &'t str) -> Self {
        let starts = whole.char_indices().map(|(at, _)| at).collect();
        Self { whole, starts }
    }

    fn describe(&self, captures: &regex::Captures<'_>, regex: &Regex) -> Match {
        let groups = captures
            .iter()
            .zip(regex.capture_names())
            .enumerate()
            .skip(1);
        Match {
            span: self.span(captures.get_match().range()),
            groups: groups
                .filter_map(|(index, (piece, name))| {
                    Some(Group {
                        index,
                        name: name.map(str::to_owned),
                        span: self.span(piece?.range()),
                    })
                })
                .collect(),
        }
    }

    fn span(&self, bytes: Range<usize>) -> Span {
        let character = |at| self.starts.partition_point(|&start| start < at);
        Span {
            start: character(bytes.start),
            end: character(bytes.end),
            text: self.whole[bytes].to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin::testing::check;

    #[tokio::test]
    async fn tests_patterns() {
        check(
            "regex_test",
            &[
                (
                    "positions in characters, named groups, groups that took no part",
                    json!({"pattern": r"(?<word>[a-zü]+)|(\d+)", "text": "zürich 8001"}),
                    Ok(json!({"is_match": true, "truncated": false, "matches": [
                        {"start": 0, "end": 6, "text": "zürich", "groups": [
                            {"index": 1, "name": "word", "start": 0, "end": 6, "text": "zürich"},
                        ]},
                        {"start": 7, "end": 11, "text": "8001", "groups": [
                            {"index": 2, "start": 7, "end": 11, "text": "8001"},
                        ]},
                    ]})),
                ),
                (
                    "no match",
                    json!({"pattern": "x", "text": "abc"}),
                    Ok(json!({"is_match": false, "matches": []})),
                ),
                (
                    "flags",
                    json!({
                        "pattern": "^a.b$", "text": "c\nA\nb",
                        "ignore_case": true, "multi_line": true,
                        "dot_all": true,
                    }),
                    Ok(json!({"matches": [{"start": 2, "end": 5}]})),
                ),
                (
                    "empty matches up to the end",
                    json!({"pattern": "", "text": "ü"}),
                    Ok(json!({"matches": [{"start": 0, "end": 0}, {"start": 1, "end": 1}]})),
                ),
                (
                    "more than limit",
                    json!({"pattern": "a", "text": "aaa", "limit": 2}),
                    Ok(json!({"matches": [{"start": 0}, {"start": 1}], "truncated": true})),
                ),
                (
                    "exactly limit",
                    json!({"pattern": "a", "text": "aa", "limit": 2}),
                    Ok(json!({"truncated": false})),
                ),
                (
                    "look-ahead",
                    json!({"pattern": "a(?=b)", "text": ""}),
                    Err(
                        "pattern: regex parse error:\n    a(?=b)\n     ^^^\nerror: look-around, \
                         including look-ahead and look-behind, is not supported. Correct it; \
                         look-around and back-references do not exist in this syntax.",
                    ),
                ),
                (
                    "no text",
                    json!({"pattern": "a"}),
                    Err(
                        "text: missing field `text`. Send the arguments that the tool's input \
                         schema describes.",
                    ),
                ),
            ],
        )
        .await;
    }

    #[test]
    fn pattern_and_text_have_limits() {
        let ok = |pattern: &str, text: &str| run(pattern, text, None).map(|tested| tested.is_match);
        let a = |bytes| "a".repeat(bytes);
        assert_eq!(ok(&a(PATTERN_BYTES_MAX), ""), Ok(false));
        assert_eq!(
            ok(&a(PATTERN_BYTES_MAX + 1), "").unwrap_err().to_string(),
            "pattern: 4097 bytes, more than the 4096 this tool takes. Send a shorter one or split \
             it."
        );
        assert_eq!(ok(&a(PATTERN_BYTES_MAX - 1), ""), Ok(false));

        assert_eq!(ok("b", &a(TEXT_BYTES_MAX)), Ok(false));
        assert_eq!(
            ok("b", &a(TEXT_BYTES_MAX + 1)).unwrap_err().to_string(),
            "text: 32769 bytes, more than the 32768 this tool takes. Send a shorter one or split \
             it."
        );
        assert_eq!(ok("b", &a(TEXT_BYTES_MAX - 1)), Ok(false));
    }

    #[test]
    fn the_program_has_a_limit() {
        let repeated =
            |count: usize| run(&format!("[ab]{{{count}}}"), "", None).map(|t| t.is_match);
        let largest = (1..=20_000)
            .collect::<Vec<_>>()
            .partition_point(|&n| repeated(n).is_ok());
        assert!((1_000..20_000).contains(&largest), "{largest}");
        assert_eq!(repeated(largest), Ok(false));
        assert_eq!(
            repeated(largest + 1).unwrap_err().to_string(),
            "pattern: compiles to more than 524288 bytes. Use smaller repetition counts, or \
             [a-z0-9] instead of Unicode classes such as \\w."
        );
        assert_eq!(repeated(largest - 1), Ok(false));
        let ordinary = r"\b[\w.+-]+@\w+(\.\w+)+\b|(\w+)\s+(\w+)\s+(\w+)";
        assert_eq!(run(ordinary, "a@b.c", None).map(|t| t.is_match), Ok(true));
    }

    #[test]
    fn matches_have_a_limit() {
        let text = "a".repeat(2 * MATCHES_MAX);
        let shown = |limit| run("a", &text, limit).map(|t| (t.matches.len(), t.truncated));
        assert_eq!(shown(None), Ok((MATCHES_DEFAULT, true)));
        assert_eq!(shown(Some(MATCHES_MAX)), Ok((MATCHES_MAX, true)));
        assert_eq!(
            shown(Some(MATCHES_MAX + 1)).unwrap_err().to_string(),
            "limit: 1001 is not between 1 and 1000. Send a limit within these bounds."
        );
        assert!(shown(Some(0)).is_err());
        assert_eq!(shown(Some(1)), Ok((1, true)));
    }

    #[test]
    fn groups_and_matched_text_have_limits() {
        let shown = |pattern: &str, text: &str| {
            let regex = Regex::new(pattern).unwrap();
            let tested = search(&regex, text, MATCHES_MAX, || false);
            (tested.matches.len(), tested.truncated)
        };
        // 99 groups and the whole match count 100 each time.
        let hundred = format!("a{}", "()".repeat(99));
        let fit = GROUPS_MAX / 100;
        assert_eq!(shown(&hundred, &"a".repeat(fit)), (fit, false));
        assert_eq!(shown(&hundred, &"a".repeat(fit + 1)), (fit, true));
        assert_eq!(shown(&hundred, &"a".repeat(fit - 1)), (fit - 1, false));

        // Three groups around a match show it four times.
        let four = "(((?s).+))";
        let four = format!("({four})");
        let fit = MATCHED_BYTES_MAX / 4;
        assert_eq!(fit, TEXT_BYTES_MAX, "the longest text fits four times");
        assert_eq!(shown(&four, &"a".repeat(fit)), (1, false));
        assert_eq!(shown(&format!("({four})"), &"a".repeat(fit)), (0, true));
        assert_eq!(
            shown(&format!("({four})"), &"a".repeat(fit / 5 * 4)),
            (1, false)
        );
    }

    #[test]
    fn searching_has_a_deadline() {
        let regex = Regex::new("a").unwrap();
        let shown = |late_after: usize| {
            let mut searches = 0;
            let is_late = || {
                searches += 1;
                searches >= late_after
            };
            let tested = search(&regex, "aaaa", MATCHES_MAX, is_late);
            assert!(tested.is_match);
            (tested.matches.len(), tested.truncated)
        };
        assert_eq!(shown(5), (4, false));
        assert_eq!(shown(3), (3, true));
        assert_eq!(shown(1), (1, true));
    }

    fn run(pattern: &str, text: &str, limit: Option<usize>) -> Result<Tested, Mistake> {
        super::test(Test {
            pattern: pattern.to_owned(),
            text: text.to_owned(),
            ignore_case: false,
            multi_line: false,
            dot_all: false,
            limit,
        })
    }
}
