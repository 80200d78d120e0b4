//! The params of a request, with the places of those members that nearly every step asks for.

use std::{
    borrow::Cow,
    ops::{Deref, Range},
};

use bytes::Bytes;

use super::{
    json::{Raw, decode_string, members, validator},
    meta::Meta,
};

/// The params of a message: an object, in which some members have been found already.
#[derive(Clone, PartialEq)]
pub struct Params {
    raw: Raw,
    name: Option<Range<usize>>,
    has_duplicate_name: bool,
    is_standard: bool,
    /// A call is moved often: what few steps need lies elsewhere.
    meta: Option<Box<Meta>>,
}

impl Params {
    /// The object at `at` of `text`, which is all of `whole`, and where it ends. The members are
    /// found while it is checked that it is one; `None` where anything about it is unusual. What
    /// this finds is what `Params::from` finds.
    pub(super) fn parse_fast(text: &str, whole: &Bytes, at: usize) -> Option<(Self, usize)> {
        let text = &text[at..];
        let json = text.as_bytes();
        let (mut name, mut name_is_doubled, mut meta) = (None, false, None);
        let mut keys = ParamKeys::default();
        let end = validator::object_end(text, 0, |key, value| {
            keys.add_key(key, json[value..].first());
            if key == "_meta" && json[value..].first() == Some(&b'{') {
                let (found, end) = Meta::parse_fast(text, value)?;
                meta = Some(Box::new(found));
                return Some(end);
            }
            let end = validator::value_end(json, value)?;
            match key {
                "_meta" => meta = None,
                "name" => name_is_doubled |= name.replace(value..end).is_some(),
                other => name_is_doubled |= other.eq_ignore_ascii_case("name"),
            }
            Some(end)
        })?;
        let params = Self {
            raw: Raw::part(whole, at..at + end),
            name,
            has_duplicate_name: name_is_doubled,
            is_standard: keys.are_standard(meta.as_deref()),
            meta,
        };
        Some((params, at + end))
    }

    /// The member `key`, when it is there; of several, the last.
    pub fn member(&self, key: &str) -> Option<Range<usize>> {
        match key {
            "name" => self.name.clone(),
            key => self.raw.member(key),
        }
    }

    /// The text of the member `key`, when it is a string.
    pub fn text_member(&self, key: &str) -> Option<Cow<'_, str>> {
        decode_string(&self.raw.as_bytes()[self.member(key)?])
    }

    /// Whether there is more than one member `name`, or another that servers take for it which ignore
    /// case.
    pub fn has_duplicate_name(&self) -> bool {
        self.has_duplicate_name
    }

    /// Whether all members are among `name`, `arguments` and `_meta`, and all of that among those of
    /// [`Meta`], each there once at most, of its type and spelled so: nobody, however he reads names, takes one of them
    /// for anything else, and nobody needs to look for that.
    pub fn is_standard(&self) -> bool {
        self.is_standard
    }

    pub(super) fn into_meta(self) -> Meta {
        self.meta.map_or(Meta::empty(), |meta| *meta)
    }

    /// The parts of `_meta`.
    pub fn meta(&self) -> &Meta {
        static NONE: Meta = Meta::empty();
        self.meta.as_deref().unwrap_or(&NONE)
    }
}

/// The keys of params, as far as [`Params::is_standard`] asks.
#[derive(Default)]
struct ParamKeys {
    seen: [bool; STANDARD_KEYS.len()],
    /// Whether there was another, or one of these once more or of another type.
    has_other: bool,
}

/// What nearly all calls consist of, and how each begins.
const STANDARD_KEYS: [(&str, u8); 3] = [("name", b'"'), ("arguments", b'{'), ("_meta", b'{')];

impl ParamKeys {
    /// Notes a key, and how its value begins.
    fn add_key(&mut self, key: &str, first: Option<&u8>) {
        let at = STANDARD_KEYS
            .iter()
            .position(|(usual, begins)| *usual == key && first == Some(begins));
        self.has_other |= at.is_none_or(|at| std::mem::replace(&mut self.seen[at], true));
    }

    fn are_standard(&self, meta: Option<&Meta>) -> bool {
        !self.has_other && meta.is_none_or(Meta::is_standard)
    }
}

/// Walks, as messages need it that cannot be skimmed.
impl From<Raw> for Params {
    fn from(raw: Raw) -> Self {
        let json = raw.as_bytes();
        let mut keys = ParamKeys::default();
        members(json, 0).for_each(|member| {
            let key = decode_string(&json[member.key]);
            keys.add_key(key.as_deref().unwrap_or(""), json.get(member.value.start));
        });
        let meta = Some(Meta::parse_slow(&raw)).filter(|meta| meta.span.is_some());
        let mut names = members(json, 0).filter(|member| member.matches(json, "name"));
        let first = names.next();
        let later = names.last();
        let is_other = |member: &super::json::Member| {
            member.matches_ignoring_case(json, "name") && !member.matches(json, "name")
        };
        Self {
            has_duplicate_name: later.is_some() || members(json, 0).any(|member| is_other(&member)),
            name: later.or(first).map(|member| member.value),
            is_standard: keys.are_standard(meta.as_ref()),
            meta: meta.map(Box::new),
            raw,
        }
    }
}

impl From<Params> for Raw {
    fn from(params: Params) -> Self {
        params.raw
    }
}

impl Deref for Params {
    type Target = Raw;

    fn deref(&self) -> &Raw {
        &self.raw
    }
}

impl std::fmt::Debug for Params {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.raw.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_one_pass_as_by_a_walk() {
        let check = |text: &str, name: Option<&str>, is_doubled: bool, token: Option<&str>| {
            let raw = Raw::parse(text.to_owned()).unwrap();
            let walked = Params::from(raw.clone());
            let padded = format!("[{text} ]");
            let bytes = Bytes::from(padded.clone());
            if let Some((skimmed, end)) = Params::parse_fast(&padded, &bytes, 1) {
                assert_eq!((&skimmed, end), (&walked, 1 + text.len()), "{text}");
            } else {
                assert!(text.contains('\\'), "{text}");
            }
            let part = |span: Option<Range<usize>>| span.map(|span| &raw.as_str()[span]);
            assert_eq!(part(walked.member("name")), name, "{text}");
            assert_eq!(walked.has_duplicate_name(), is_doubled, "{text}");
            assert_eq!(part(walked.meta().progress_token.clone()), token, "{text}");
        };
        check("{}", None, false, None);
        check(r#"{ "name" : "a" }"#, Some(r#""a""#), false, None);
        check(r#"{"name":1,"name":[2]}"#, Some("[2]"), true, None);
        check(r#"{"name":1,"n\u0061me":2}"#, Some("2"), true, None);
        check(r#"{"name":1,"NAME":2}"#, Some("1"), true, None);
        check(r#"{"n\u0061Me":1,"name":2}"#, Some("2"), true, None);
        check(r#"{"a":{"name":1}}"#, None, false, None);
        check(
            r#"{"_meta":{"progressToken":"t"}}"#,
            None,
            false,
            Some(r#""t""#),
        );
        let doubled = r#"{"_meta":{"progressToken":1,"x":{"progressToken":2},"progressToken":3}}"#;
        check(doubled, None, false, Some("3"));
        let escaped = r#"{"_meta":{"progressToken":1,"progress\u0054oken":2}}"#;
        check(escaped, None, false, Some("2"));
        check(
            r#"{"_meta":{"progressToken":1},"_meta":{}}"#,
            None,
            false,
            None,
        );
        check(
            r#"{"_meta":{"progressToken":1},"_meta":null}"#,
            None,
            false,
            None,
        );
        check(
            r#"{"_meta":[1],"_meta":{"progressToken":1}}"#,
            None,
            false,
            Some("1"),
        );
        check(
            r#"{"_meta":[{"progressToken":1}],"name":""}"#,
            Some(r#""""#),
            false,
            None,
        );
    }

    #[test]
    fn what_may_be_taken_for_something_else_is_not_usual() {
        let check = |text: &str, expect: bool| {
            let raw = Raw::parse(text.to_owned()).unwrap();
            assert_eq!(Params::from(raw.clone()).is_standard(), expect, "{text}");
            if let Some((skimmed, _)) = Params::parse_fast(raw.as_str(), raw.bytes(), 0) {
                assert_eq!(skimmed.is_standard(), expect, "{text}");
            }
        };
        check("{}", true);
        check(
            r#"{"name":"a","arguments":{"task":{}},"_meta":{"progressToken":1}}"#,
            true,
        );
        check(
            r#"{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}"#,
            true,
        );
        check(r#"{"n\u0061me":"a"}"#, true);
        for odd in [
            r#"{"name":1}"#,
            r#"{"arguments":[]}"#,
            r#"{"_meta":null}"#,
            r#"{"_meta":{"progressToken":{}}}"#,
            r#"{"_meta":{"io.modelcontextprotocol/clientInfo":1}}"#,
        ] {
            check(odd, false);
        }
        for other in [
            "task",
            "TASK",
            "requestState",
            "Name",
            r"ar\u0067uments",
            "_meta",
            "",
        ] {
            check(
                &format!(r#"{{"name":"a","arguments":{{}},"_meta":{{}},"{other}":1}}"#),
                false,
            );
        }
        for other in ["progressToken", "PROGRESSTOKEN", "traceparent", ""] {
            check(
                &format!(r#"{{"_meta":{{"progressToken":1,"{other}":2}}}}"#),
                false,
            );
        }
    }
}
