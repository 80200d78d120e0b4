//! A walk through all of a JSON value that looks at each byte once, however deep it is: whoever asks for the
//! parts of each part reads what is innermost as often as it is deep.

use std::ops::Range;

use super::{skip_separators, skip_string, skip_value, validator::skip_space};

/// What comes next in a JSON value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JsonStep {
    /// An object begins.
    Object,
    /// An array begins.
    Array,
    /// The key of the member whose value is next, with its quotes.
    Key(Range<usize>),
    /// A string, number or literal.
    Scalar(Range<usize>),
    /// What began last, and has not ended, ends.
    End,
}

/// The steps through `json`.
///
/// `json` must be valid JSON; on other text the result is meaningless but finite.
pub fn steps(json: &[u8]) -> Steps<'_> {
    Steps {
        json,
        at: 0,
        is_value: false,
    }
}

/// Iterator over the steps through a value.
#[derive(Debug)]
pub struct Steps<'a> {
    json: &'a [u8],
    at: usize,
    /// Whether a string at `at` is the value of a member, and no key.
    is_value: bool,
}

impl Steps<'_> {
    /// Where the last step ended; of an object or an array that began, after its bracket.
    pub fn position(&self) -> usize {
        self.at
    }
}

impl Iterator for Steps<'_> {
    type Item = JsonStep;

    fn next(&mut self) -> Option<JsonStep> {
        let start = skip_separators(self.json, self.at);
        let is_value = std::mem::take(&mut self.is_value);
        let (step, end) = match self.json.get(start)? {
            b'{' => (JsonStep::Object, start + 1),
            b'[' => (JsonStep::Array, start + 1),
            b'}' | b']' => (JsonStep::End, start + 1),
            b'"' => {
                let end = skip_string(self.json, start);
                let colon = skip_space(self.json, end);
                if !is_value && self.json.get(colon) == Some(&b':') {
                    self.is_value = true;
                    (JsonStep::Key(start..end), skip_space(self.json, colon + 1))
                } else {
                    (JsonStep::Scalar(start..end), end)
                }
            }
            _ => {
                // Of text that is no JSON, something is left out.
                let end = skip_value(self.json, start).max(start + 1);
                (JsonStep::Scalar(start..end), end)
            }
        };
        self.at = end;
        Some(step)
    }
}

/// Asserts that `work` takes about as long for a text whose parts are deep as for one where they are not.
#[cfg(test)]
pub(crate) fn assert_as_fast_when_deep(work: impl Fn(&[u8])) {
    use tokio::time::Instant;
    const DEPTH: usize = 100;
    const MUCH_LONGER: u32 = 20;
    let flat = format!("[{}1]", "1,".repeat(50_000));
    let (open, close) = (r#"[{"a":"#.repeat(DEPTH), "}]".repeat(DEPTH));
    let deep = [open, flat.clone(), close].concat();
    let best = |json: &str| {
        let runs = (0..3).map(|_| {
            let start = Instant::now();
            work(json.as_bytes());
            start.elapsed()
        });
        runs.min().unwrap_or_default()
    };
    let (flat, deep) = (best(&flat), best(&deep));
    assert!(deep <= MUCH_LONGER * flat, "{deep:?} after {flat:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> String {
        let text = steps(json.as_bytes()).map(|step| match step {
            JsonStep::Object => "{".to_owned(),
            JsonStep::Array => "[".to_owned(),
            JsonStep::Key(span) => format!("{}:", &json[span]),
            JsonStep::Scalar(span) => json[span].to_owned(),
            JsonStep::End => "^".to_owned(),
        });
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_part_is_come_to_once() {
        for (json, expect) in [
            ("1", "1"),
            (r#" "a:b" "#, r#""a:b""#),
            (r#"{"a" : "b", "c":"d\":"}"#, r#"{ "a": "b" "c": "d\":" ^"#),
            (
                r#"{"a":{"b":[1, [ ], "x", {"y":null}]},"c":-1e3}"#,
                r#"{ "a": { "b": [ 1 [ ^ "x" { "y": null ^ ^ ^ "c": -1e3 ^"#,
            ),
            (r#"["a","b":1]"#, r#"[ "a" "b": 1 ^"#),
        ] {
            assert_eq!(text(json), expect, "{json}");
        }
    }

    #[test]
    fn what_is_no_json_comes_to_an_end() {
        for odd in [
            "",
            ":",
            "{:",
            "\"",
            "{\"a\":",
            "]]",
            "{\"a\"::\"b\"",
            "nul\u{0}",
        ] {
            assert!(steps(odd.as_bytes()).count() <= odd.len(), "{odd}");
        }
    }
}
