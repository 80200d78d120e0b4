//! Splices into JSON: some parts are replaced, and every byte between them stays as it is.

use std::{borrow::Cow, ops::Range};

use super::{Member, Raw, elements, members, validator::skip_space};

/// Replacements in one JSON text, applied at once; everything between them is copied as it is.
#[derive(Debug)]
pub struct Patch<'a> {
    json: &'a [u8],
    edits: Vec<(Range<usize>, Cow<'a, [u8]>)>,
}

impl<'a> Patch<'a> {
    /// Starts without any edit.
    pub fn new(json: &'a [u8]) -> Self {
        Self {
            json,
            edits: Vec::new(),
        }
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Puts `with` in place of `span`.
    pub fn replace(&mut self, span: Range<usize>, with: impl Into<Cow<'a, [u8]>>) {
        self.edits.push((span, with.into()));
    }

    /// Adds members, given as `"key":value,"key":value`, to the front of the object at `at`.
    pub fn insert_members(&mut self, at: usize, members: &str) {
        let brace = skip_space(self.json, at);
        debug_assert_eq!(
            self.json.get(brace),
            Some(&b'{'),
            "members are inserted into an object"
        );
        let first = skip_space(self.json, brace + 1);
        let comma = if self.json.get(first) == Some(&b'}') {
            ""
        } else {
            ","
        };
        self.edits.push((
            brace + 1..brace + 1,
            format!("{members}{comma}").into_bytes().into(),
        ));
    }

    /// Removes every member of the object at `at` for which `drop` says so.
    pub fn remove_members(&mut self, at: usize, drop: impl Fn(&Member) -> bool) {
        let all: Vec<Member> = members(self.json, at).collect();
        self.remove_from(&all, drop);
    }

    /// The same for an object whose members are `all`, so that large ones are walked through once.
    pub fn remove_from(&mut self, all: &[Member], drop: impl Fn(&Member) -> bool) {
        let mut kept_before = false;
        for (index, member) in all.iter().enumerate() {
            if !drop(member) {
                kept_before = true;
                continue;
            }
            // A run of dropped members at the front takes the comma that follows it; any other
            // takes the comma before it.
            let span = if kept_before {
                all[index - 1].value.end..member.value.end
            } else {
                let end = all
                    .get(index + 1)
                    .map_or(member.value.end, |next| next.key.start);
                member.key.start..end
            };
            self.edits.push((span, Cow::Borrowed(b"")));
        }
    }

    /// Leaves those elements in the array at `list` for which `keep` says so, told by where each begins.
    /// What is no array becomes an empty one: nobody can say what of it to leave.
    pub fn retain_elements(&mut self, list: Range<usize>, keep: impl Fn(usize) -> bool) {
        let json = self.json;
        let all: Vec<_> = elements(json, list.start).collect();
        let kept = all.iter().filter(|element| keep(element.start));
        let kept: Vec<_> = kept.map(|element| &json[element.clone()]).collect();
        if json[list.start] != b'[' || kept.len() < all.len() {
            self.replace(list, [b"[", &*kept.join(&b','), b"]"].concat());
        }
    }

    /// Applies the edits.
    pub fn finish(mut self) -> Raw {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let grown: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(self.json.len() + grown);
        let mut at = 0;
        for (span, with) in &self.edits {
            debug_assert!(span.start >= at, "edits do not overlap");
            out.extend_from_slice(&self.json[at..span.start]);
            out.extend_from_slice(with);
            at = span.end;
        }
        out.extend_from_slice(&self.json[at..]);
        Raw(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::json::find_member;

    #[test]
    fn removal_leaves_valid_json_whatever_goes() {
        let check = |drop: &[&str], expect: &str| {
            let json = br#"{ "a" : 1 , "\u0062":[2,{"a":"}"}], "c":"x\"y" }"#;
            let mut patch = Patch::new(json);
            patch.remove_members(0, |m| drop.iter().any(|key| m.matches(json, key)));
            assert_eq!(patch.finish().as_str(), expect, "without {drop:?}");
        };
        check(&[], r#"{ "a" : 1 , "\u0062":[2,{"a":"}"}], "c":"x\"y" }"#);
        check(&["a"], r#"{ "\u0062":[2,{"a":"}"}], "c":"x\"y" }"#);
        check(&["b"], r#"{ "a" : 1, "c":"x\"y" }"#);
        check(&["c"], r#"{ "a" : 1 , "\u0062":[2,{"a":"}"}] }"#);
        check(&["a", "b"], r#"{ "c":"x\"y" }"#);
        check(&["a", "c"], r#"{ "\u0062":[2,{"a":"}"}] }"#);
        check(&["b", "c"], r#"{ "a" : 1 }"#);
        check(&["a", "b", "c"], "{  }");
    }

    #[test]
    fn what_is_left_of_a_list_is_a_list() {
        let check = |keep: &[u8], json: &str, expect: &str| {
            let mut patch = Patch::new(json.as_bytes());
            let list = find_member(json.as_bytes(), 0, "a").expect("all have one");
            patch.retain_elements(list, |at| keep.contains(&json.as_bytes()[at]));
            assert_eq!(patch.is_empty(), json == expect, "{json}");
            assert_eq!(patch.finish().as_str(), expect, "{json}");
        };
        let list = r#"{ "a": [ 1 , [2,1], {"1":2} ], "b": [3] }"#;
        check(b"1[{", list, list);
        check(b"1{", list, r#"{ "a": [1,{"1":2}], "b": [3] }"#);
        check(b"", list, r#"{ "a": [], "b": [3] }"#);
        check(b"", r#"{"a":[ ]}"#, r#"{"a":[ ]}"#);
        check(b"1\"{", r#"{"a":{"b":1}}"#, r#"{"a":[]}"#);
        check(b"1\"{", r#"{"a":"[1]"}"#, r#"{"a":[]}"#);
    }

    #[test]
    fn members_are_inserted_at_the_front() {
        let check = |json: &str, expect: &str| {
            let mut patch = Patch::new(json.as_bytes());
            patch.insert_members(0, r#""k":1"#);
            assert_eq!(patch.finish().as_str(), expect);
        };
        check("{}", r#"{"k":1}"#);
        check("{ }", r#"{"k":1 }"#);
        check(r#"{"a":2}"#, r#"{"k":1,"a":2}"#);
    }
}
