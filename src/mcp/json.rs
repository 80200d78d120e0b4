//! JSON as text: read a member, replace a span, leave every other byte alone.
//!
//! Bodies we relay are never parsed into a model and printed again. [`Raw`] is one valid JSON value
//! as it was written; [`members`] and [`elements`] find the spans of its parts in one pass, [`steps()`] those
//! of all that is within them, and [`Patch`] splices replacements into them.

mod patch;
mod steps;
pub(super) mod validator;

use std::{borrow::Cow, cmp::Ordering, ops::Range};

use bytes::Bytes;
use memchr::{memchr, memchr2};
use serde_json::value::RawValue;

pub use patch::Patch;
#[cfg(test)]
pub(crate) use steps::assert_as_fast_when_deep;
pub use steps::{JsonStep, Steps, steps};
use validator::skip_space;

/// One JSON value, exactly as it was written; always valid JSON and valid UTF-8.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct Raw(Bytes);

impl Raw {
    /// Checks that `text` is one JSON value.
    ///
    /// # Errors
    /// The syntax error that serde_json found.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        let value: &RawValue = serde_json::from_slice(&text)?;
        let span = text.slice_ref(value.get().as_bytes());
        Ok(Self(span))
    }

    /// The part of `whole` at `span`, which must hold one valid value.
    pub(super) fn part(whole: &Bytes, span: Range<usize>) -> Self {
        Self(whole.slice(span))
    }

    /// Takes `part`, which must have been borrowed from `whole`, without copying.
    pub fn borrow(part: &RawValue, whole: &Bytes) -> Self {
        Self(whole.slice_ref(part.get().as_bytes()))
    }

    /// Serializes `value`.
    pub fn from_value(value: &impl serde::Serialize) -> Self {
        let text = serde_json::to_vec(value).expect("string keys and no failing Serialize");
        Self(text.into())
    }

    /// A whole number.
    pub fn number(number: u64) -> Self {
        Self(number.to_string().into())
    }

    /// A JSON value known to be valid because this crate wrote it.
    pub const fn from_static(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }

    /// A JSON string holding `text`.
    pub fn string(text: &str) -> Self {
        Self(
            [b"\"", escape_string(text).as_bytes(), b"\""]
                .concat()
                .into(),
        )
    }

    /// The same value with `text` for what is at `span`, which must be a string.
    #[must_use]
    pub(crate) fn with_text(&self, span: Range<usize>, text: &str) -> Self {
        debug_assert!(
            self.0[span.clone()].starts_with(b"\"") && self.0[span.clone()].ends_with(b"\"")
        );
        let (before, after) = (&self.0[..=span.start], &self.0[span.end - 1..]);
        Self(
            [before, escape_string(text).as_bytes(), after]
                .concat()
                .into(),
        )
    }

    /// The part of this value at `span`, which must hold one whole value.
    #[must_use]
    pub fn slice(&self, span: Range<usize>) -> Self {
        Self(self.0.slice(span))
    }

    /// The same text in memory of its own: a slice keeps the whole message alive that it is of.
    #[must_use]
    pub fn to_owned_memory(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when it was parsed")
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text as shared bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// Reads the value as `T`, which sees only what it asks for.
    ///
    /// # Errors
    /// What serde_json says when the value is not a `T`.
    pub fn read<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// The decoded text, when the value is a string without lone surrogates.
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        decode_string(&self.0)
    }

    /// The span of the member `key`, when this is an object that has it.
    pub fn member(&self, key: &str) -> Option<Range<usize>> {
        find_member(&self.0, 0, key)
    }

    /// The value of the member `key`, when this is an object that has it.
    pub fn get(&self, key: &str) -> Option<Raw> {
        self.member(key).map(|span| self.slice(span))
    }
}

impl std::fmt::Debug for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Raw {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: &RawValue = serde_json::from_slice(&self.0).expect("checked when it was parsed");
        value.serialize(serializer)
    }
}

/// A copy of its own; messages of the wire are borrowed from with [`Raw::borrow`] instead.
impl<'de> serde::Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(String::from(Box::<str>::from(value)).into()))
    }
}

/// One member of an object, as spans into the text it was found in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// The key with its quotes.
    pub key: Range<usize>,
    /// The value.
    pub value: Range<usize>,
}

impl Member {
    /// Whether the decoded key equals `key`; escapes cannot hide it.
    pub fn matches(&self, json: &[u8], key: &str) -> bool {
        key_equals(&json[self.key.clone()], key)
    }

    /// Whether who ignores the case of names, as servers in Go do, takes the decoded key for `key`;
    /// `ſ` is an `s` to them, and the sign of the kelvin a `k`.
    pub fn matches_ignoring_case(&self, json: &[u8], key: &str) -> bool {
        let quoted = &json[self.key.clone()];
        let own = &quoted[1..quoted.len() - 1];
        if own.eq_ignore_ascii_case(key.as_bytes()) {
            return true;
        }
        // Whatever stands for an ASCII letter has as many bytes, or more.
        let is_plain = || own.is_ascii() && memchr(b'\\', own).is_none();
        if key.is_ascii() && (!may_equal_escaped(own, key) || is_plain()) {
            return false;
        }
        decode_string(quoted).is_some_and(|own| fold_case(&own).eq(fold_case(key)))
    }
}

/// The letters of `key` to who ignores their case, see [`Member::matches_ignoring_case`].
fn fold_case(key: &str) -> impl Iterator<Item = char> {
    let letters = key.chars();
    letters.flat_map(|letter| letter.to_lowercase().flat_map(char::to_uppercase))
}

/// The same text for all keys that are [alike](Member::matches_ignoring_case).
pub fn case_folded(key: &str) -> String {
    if key.is_ascii() {
        key.to_ascii_uppercase()
    } else {
        fold_case(key).collect()
    }
}

/// The members of the object that starts at `at` in `json`; none when there is no object.
///
/// `json` must be valid JSON; on other text the result is meaningless but finite.
pub fn members(json: &[u8], at: usize) -> Members<'_> {
    let at = skip_space(json, at);
    let at = if json.get(at) == Some(&b'{') {
        at + 1
    } else {
        json.len()
    };
    Members { json, at }
}

/// Iterator over the members of one object.
#[derive(Debug)]
pub struct Members<'a> {
    json: &'a [u8],
    at: usize,
}

impl Iterator for Members<'_> {
    type Item = Member;

    fn next(&mut self) -> Option<Member> {
        let start = skip_separators(self.json, self.at);
        if self.json.get(start) != Some(&b'"') {
            self.at = self.json.len();
            return None;
        }
        let end = skip_string(self.json, start);
        let colon = skip_space(self.json, end);
        let value = skip_space(self.json, colon + 1);
        self.at = skip_value(self.json, value);
        Some(Member {
            key: start..end,
            value: value..self.at,
        })
    }
}

/// The spans of the elements of the array that starts at `at`; none when there is no array.
pub fn elements(json: &[u8], at: usize) -> Elements<'_> {
    let at = skip_space(json, at);
    let at = if json.get(at) == Some(&b'[') {
        at + 1
    } else {
        json.len()
    };
    Elements { json, at }
}

/// Iterator over the elements of one array.
#[derive(Debug)]
pub struct Elements<'a> {
    json: &'a [u8],
    at: usize,
}

impl Iterator for Elements<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = skip_separators(self.json, self.at);
        if start >= self.json.len() || self.json[start] == b']' {
            self.at = self.json.len();
            return None;
        }
        self.at = skip_value(self.json, start);
        Some(start..self.at)
    }
}

/// The value span of member `key` of the object at `at`; the last one wins, as in serde_json maps.
pub fn find_member(json: &[u8], at: usize, key: &str) -> Option<Range<usize>> {
    members(json, at)
        .filter(|member| member.matches(json, key))
        .last()
        .map(|member| member.value)
}

/// `text` as it is written between the quotes of a JSON string.
pub(super) fn escape_string(text: &str) -> Cow<'_, str> {
    if validator::skip_plain(text.as_bytes(), 0) == text.len() {
        return Cow::Borrowed(text);
    }
    let mut quoted = serde_json::to_string(text).expect("a string can be written");
    quoted.pop();
    quoted.remove(0);
    Cow::Owned(quoted)
}

/// Decodes a JSON string; `None` for other values and for lone surrogates.
pub fn decode_string(json: &[u8]) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(json).ok().map(Cow::Owned)
}

/// Whether arrays and objects in `json` are nested deeper than `limit`.
pub fn is_nested_deeper(json: &[u8], limit: usize) -> bool {
    // Most texts have too few brackets, wherever they stand, to be worth a closer look.
    count_openings(json) > limit && depth(json, limit) > limit
}

/// How many bytes open an array or an object, if they are not part of a string.
fn count_openings(json: &[u8]) -> usize {
    // Sums of one byte each are what a processor makes many of at once.
    let chunks = json.chunks(usize::from(u8::MAX));
    let counted = chunks.map(|chunk| {
        chunk
            .iter()
            .map(|b| u8::from(matches!(b, b'{' | b'[')))
            .sum()
    });
    counted.map(|count: u8| usize::from(count)).sum()
}

/// The deepest nesting of arrays and objects in `json`, counted no further than `limit + 1`.
fn depth(json: &[u8], limit: usize) -> usize {
    let (mut at, mut depth, mut deepest) = (0, 0usize, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at = skip_string(json, at);
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
                if deepest > limit {
                    return deepest;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

fn key_equals(quoted: &[u8], key: &str) -> bool {
    match quoted.len().cmp(&(key.len() + 2)) {
        Ordering::Less => false,
        Ordering::Equal => &quoted[1..quoted.len() - 1] == key.as_bytes(),
        // Every escape is longer than what it stands for.
        Ordering::Greater => {
            may_equal_escaped(quoted, key)
                && memchr(b'\\', quoted).is_some()
                && decode_string(quoted).is_some_and(|decoded| decoded == key)
        }
    }
}

/// Whether `own`, with or without its quotes, is neither shorter than `key` nor longer than all of it
/// written as escapes.
fn may_equal_escaped(own: &[u8], key: &str) -> bool {
    const ESCAPE: usize = r"\u0000".len();
    const QUOTES: usize = 2;
    (key.len()..=key.len() * ESCAPE + QUOTES).contains(&own.len())
}

fn skip_separators(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\t' | b'\n' | b'\r' | b',')) {
        at += 1;
    }
    at
}

/// The offset after the string that starts at `at`, its quote included.
pub(crate) fn skip_string(json: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        at = skip_unescaped(json, at);
        match json.get(at) {
            None => return json.len(),
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            // A control character, which no string of JSON has.
            Some(_) => at += 1,
        }
    }
}

/// Bytes of a string that are looked at before what is made for long ones takes over: to begin with
/// that takes longer than most strings do.
const SHORT_STRING_BYTES: usize = 32;

/// The offset of the next quote or backslash in the string that `at` is in.
fn skip_unescaped(json: &[u8], at: usize) -> usize {
    let near = json.len().min(at + SHORT_STRING_BYTES);
    let found = validator::skip_plain(&json[..near], at);
    if found < near {
        return found;
    }
    let rest = json.get(near..).unwrap_or_default();
    near + memchr2(b'"', b'\\', rest).unwrap_or(rest.len())
}

/// The offset after the value that starts at `at`; iterative, so that depth costs no stack.
fn skip_value(json: &[u8], at: usize) -> usize {
    match json.get(at) {
        Some(b'"') => skip_string(json, at),
        Some(b'{' | b'[') => skip_nested(json, at),
        _ => {
            let end = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
            json.get(at..)
                .and_then(|rest| rest.iter().position(end))
                .map_or(json.len(), |n| at + n)
        }
    }
}

fn skip_nested(json: &[u8], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at = skip_string(json, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_alike_whatever_their_case_or_spelling() {
        let alike = |own: &str, key: &str| {
            let json = format!("{{{own}:1}}");
            let member = members(json.as_bytes(), 0).next().unwrap();
            member.matches_ignoring_case(json.as_bytes(), key)
        };
        for own in [
            "_meta",
            "_META",
            "_mEtA",
            "_m\\u0065ta",
            "\\u005Fmet\\u0041",
        ] {
            assert!(alike(&format!("\"{own}\""), "_meta"), "{own}");
        }
        for own in ["taſk", "TA\\u017fK", "tas\u{212a}", "Ta\u{17f}\\u212A"] {
            assert!(alike(&format!("\"{own}\""), "task"), "{own}");
        }
        let longest = "\\u005f\\u006d\\u0065\\u0074\\u0061";
        assert!(alike(&format!("\"{longest}\""), "_meta"));
        assert!(!alike(&format!("\"{longest}\\u0061\""), "_meta"));
        for own in ["", "_met", "_meto", "_metas", "_m\\\\eta", "é", "_metä"] {
            assert!(!alike(&format!("\"{own}\""), "_meta"), "{own}");
        }
    }

    #[test]
    fn depth_counts_nesting_outside_strings() {
        let check = |json: &str, expect: usize| {
            assert_eq!(depth(json.as_bytes(), 3), expect, "{json}");
            assert_eq!(is_nested_deeper(json.as_bytes(), 3), expect > 3, "{json}");
        };
        check("1", 0);
        check("[]", 1);
        check(r#"{"a":["]"],"b":"[[[["}"#, 2);
        check("[[[]]]", 3);
        check("[[[[]]]]", 4);
        check("[[[[[[]]]]]]", 4);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((".{0,6}", inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_string_ends_at_its_quote(inner in "([a-z]{1,40}|[\"\\\\\\x00-\\x1fé]){0,8}", after in "[\"\\\\a]{0,3}") {
            let text = serde_json::to_string(&inner).unwrap();
            prop_assert_eq!(skip_string(format!("{text}{after}").as_bytes(), 0), text.len());
            let open = &text.as_bytes()[..text.len() - 1];
            prop_assert_eq!(skip_string(open, 0), open.len());
        }

        #[test]
        fn spans_agree_with_serde(value in json()) {
            let text = serde_json::to_string_pretty(&value).unwrap();
            if let Some(object) = value.as_object() {
                let found: Vec<_> = members(text.as_bytes(), 0).collect();
                prop_assert_eq!(found.len(), object.len());
                for member in found {
                    let key: String = serde_json::from_str(&text[member.key]).unwrap();
                    let inner: serde_json::Value = serde_json::from_str(&text[member.value]).unwrap();
                    prop_assert_eq!(&inner, &object[&key]);
                }
            }
            if let Some(array) = value.as_array() {
                let found: Vec<serde_json::Value> = elements(text.as_bytes(), 0)
                    .map(|span| serde_json::from_str(&text[span]).unwrap())
                    .collect();
                prop_assert_eq!(&found, array);
            }
        }
    }
}
