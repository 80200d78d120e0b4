//! JSON as it is whoever writes it, to tell whether two texts are the same.
//!
//! As RFC 8785 does it, but for what that cannot keep apart or has no form for: numbers are written by
//! their value, none is rounded, a string with a lone surrogate stays as it was written, and so does
//! all of a text that has an object with a doubled member. What is within an array or an object stands
//! there as a hash, so that it is not written again for each that is around it.

use std::{borrow::Cow, ops::Range};

use sha2::{Digest as _, Sha256};

use crate::{
    governance::decimal::Decimal,
    mcp::json::{self, JsonStep},
};

/// The same bytes for what is the same, and for nothing else.
pub(super) fn canonical(json: &[u8]) -> Vec<u8> {
    canonical_hash(json).unwrap_or_else(|| [b"!", json].concat())
}

/// The form of `json`; `None` where a member has no one meaning.
fn canonical_hash(json: &[u8]) -> Option<Vec<u8>> {
    let mut within = Vec::new();
    let mut top = PartialValue::new(b'!');
    for step in json::steps(json) {
        let open = match step {
            JsonStep::Object => b'{',
            JsonStep::Array => b'[',
            JsonStep::Key(span) => {
                top.key(json::decode_string(&json[span])?);
                continue;
            }
            JsonStep::Scalar(span) => {
                write_scalar(&json[span], &mut top.text);
                top.text.push(b',');
                continue;
            }
            JsonStep::End => {
                let recorded = std::mem::replace(&mut top, within.pop()?);
                top.text.push(b'#');
                top.text.extend_from_slice(&recorded.hash()?);
                continue;
            }
        };
        within.push(std::mem::replace(&mut top, PartialValue::new(open)));
    }
    Some(top.text)
}

/// An array or an object, as far as it has been come to.
struct PartialValue<'a> {
    open: u8,
    /// What is in it, one after the other.
    text: Vec<u8>,
    /// The keys of an object, and where in `text` their values begin.
    keys: Vec<(Cow<'a, str>, usize)>,
}

impl<'a> PartialValue<'a> {
    fn new(open: u8) -> Self {
        Self {
            open,
            text: Vec::new(),
            keys: Vec::new(),
        }
    }

    fn key(&mut self, key: Cow<'a, str>) {
        self.keys.push((key, self.text.len()));
    }

    /// All of it, members by their keys in order; `None` where one is there twice.
    fn hash(self) -> Option<[u8; 32]> {
        let mut hash = Sha256::new();
        hash.update([self.open]);
        if self.keys.is_empty() {
            hash.update(&self.text);
            return Some(hash.finalize().into());
        }
        let ends = self.keys.iter().skip(1).map(|(_, start)| *start);
        let ends: Vec<usize> = ends.chain([self.text.len()]).collect();
        let spans = self.keys.into_iter().zip(ends);
        let mut members: Vec<(Cow<'_, str>, Range<usize>)> =
            spans.map(|((key, start), end)| (key, start..end)).collect();
        members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if members.array_windows().any(|[(a, _), (b, _)]| a == b) {
            return None;
        }
        let mut quoted = Vec::new();
        for (key, value) in members {
            quoted.clear();
            write_string(&key, &mut quoted);
            hash.update(&quoted);
            hash.update(&self.text[value]);
        }
        Some(hash.finalize().into())
    }
}

/// Writes a string, number or literal.
fn write_scalar(json: &[u8], to: &mut Vec<u8>) {
    let is_written = match json.first() {
        Some(b'"') => json::decode_string(json).is_some_and(|text| write_string(&text, to)),
        Some(b'-' | b'0'..=b'9') => write_number(json, to),
        Some(_) | None => false,
    };
    if !is_written {
        to.extend_from_slice(json);
    }
}

fn write_string(text: &str, to: &mut Vec<u8>) -> bool {
    serde_json::to_writer(to, text).is_ok()
}

fn write_number(json: &[u8], to: &mut Vec<u8>) -> bool {
    let number = std::str::from_utf8(json).ok().and_then(Decimal::parse);
    if let Some(number) = &number {
        to.extend_from_slice(number.to_string().as_bytes());
    }
    number.is_some()
}

#[cfg(test)]
mod tests {
    use super::canonical;
    use crate::mcp::json;

    #[test]
    fn what_is_the_same_is_written_alike_and_nothing_else() {
        let check = |one: &str, other: &str, is_same: bool| {
            let [a, b] = [one, other].map(|json| canonical(json.as_bytes()));
            assert_eq!(a == b, is_same, "{one} {other}");
        };
        for (one, other) in [
            (
                r#"{"a":1,"b":[true,null]}"#,
                r#"{ "b" : [ true, null ], "a":1.0 }"#,
            ),
            (r#"{"\u0061":"\u00e9\/"}"#, r#"{"a":"é/"}"#),
            ("[100,-0,1e999]", "[1e2,0.0,10E998]"),
            (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#),
            (r#""\ud800""#, r#""\ud800""#),
            ("{}", "{ }"),
            (
                r#"{"b":[{"y":1,"x":[2]}],"a":{"d":"","c":null}}"#,
                r#"{"a":{"c":null,"d":""},"b":[{"x":[2.0],"y":1}]}"#,
            ),
        ] {
            check(one, other, true);
        }
        for (one, other) in [
            (r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#),
            ("0.1", "0.10000000000000000001"),
            ("1e400", "1e401"),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":1,"\u0061":2}"#, r#"{"a":2}"#),
            (r#""\ud800""#, r#""\ud801""#),
            (r#"["a","b"]"#, r#"["b","a"]"#),
            (r#"{"a":{"x":1,"x":2}}"#, r#"{"a":{"x":2,"x":1}}"#),
            (r#"{"a":{},"b":[]}"#, r#"{"a":[],"b":{}}"#),
            ("[[],[]]", "[[[]]]"),
            (r#"[["a"],"b"]"#, r#"[["a","b"]]"#),
            (r#"{"a":"1"}"#, r#"{"a":1}"#),
            ("null", r#""null""#),
            ("{}", "[]"),
        ] {
            check(one, other, false);
        }
    }

    /// What is within much was gone through once for each level.
    #[test]
    fn what_is_deep_takes_no_longer() {
        json::assert_as_fast_when_deep(|json| assert!(!canonical(json).is_empty()));
    }
}
