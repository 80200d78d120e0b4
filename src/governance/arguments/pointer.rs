//! Where a rule looks: JSON pointers (RFC 6901) in which `*` stands for every element.
//!
//! What servers convert, a rule that refuses follows too: text that is JSON is looked into, and a value
//! that stands where a list belongs counts as its one element. A rule that allows follows what is written,
//! so that it fails where a server might read something else.

use icu_normalizer::ComposingNormalizerBorrowed;

use super::{RuleFault, has_duplicate_keys};
use crate::mcp::{
    Raw,
    json::{self, JsonStep, Member},
};

/// How often one rule may go through the bytes of a call, and bytes on top of that; what leads further
/// cannot be judged. Only lists in lists under several `*` lead as far.
const PASSES_MAX: usize = 16;
const BYTES_VISITED_MAX: usize = 1 << 22;
/// Nesting of JSON that stands in a text; what is deeper cannot be judged.
const DEPTH_MAX: usize = 128;

/// A pointer, ready to follow.
#[derive(Debug)]
pub(super) struct Pointer(Vec<PointerToken>);

/// One step of a pointer.
#[derive(Debug)]
pub(super) enum PointerToken {
    /// `*`: every element of an array, also of arrays in it, and every member of an object. At the end of a
    /// pointer everything below.
    Each,
    /// A member of an object, or an element of an array.
    Name(MemberName),
}

/// The name of a member.
#[derive(Debug)]
pub(super) struct MemberName {
    pub(super) text: String,
    /// What it is to those who take names loosely, see [`normalized_name`].
    normalized: String,
    /// The element that it is of an array: digits without leading zeros.
    pub(super) index: Option<usize>,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum PointerTarget<'a> {
    /// Nothing.
    Missing,
    /// What servers read differently, or cannot be judged: more than one member has the name, or a text
    /// begins as JSON and is none.
    Ambiguous,
    /// This value.
    Value(&'a [u8]),
}

impl Pointer {
    /// Reads the text of a pointer.
    pub(super) fn parse(text: &str) -> Result<Self, RuleFault> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let rest = text.strip_prefix('/').ok_or(RuleFault::Pointer)?;
        rest.split('/')
            .map(PointerToken::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Its steps.
    pub(super) fn tokens(&self) -> &[PointerToken] {
        &self.0
    }

    /// Whether `test` holds of anything that it leads to from the value `json`; where `is_lax`, of anything
    /// that it leads a server to which converts values.
    pub(super) fn any_target(
        &self,
        json: &[u8],
        is_lax: bool,
        test: &mut dyn FnMut(PointerTarget<'_>) -> bool,
    ) -> bool {
        let left = PASSES_MAX * json.len() + BYTES_VISITED_MAX;
        ArgumentWalk {
            is_lax,
            bytes_left: left,
            test,
        }
        .any(json, &self.0)
    }
}

impl PointerToken {
    fn parse(token: &str) -> Result<Self, RuleFault> {
        if token == "*" {
            return Ok(Self::Each);
        }
        let mut parts = token.split('~');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.as_bytes().first() {
                Some(b'0') => text.push('~'),
                Some(b'1') => text.push('/'),
                Some(_) | None => return Err(RuleFault::Pointer),
            }
            text.push_str(&part[1..]);
        }
        Ok(Self::Name(MemberName::new(text)))
    }

    /// Whether a value that is no list may be taken for the element that this names.
    fn accepts_single_value(&self) -> bool {
        match self {
            Self::Each => true,
            Self::Name(name) => name.index == Some(0),
        }
    }
}

impl MemberName {
    pub(super) fn new(text: String) -> Self {
        let is_index = !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        Self {
            normalized: normalized_name(&text),
            // One that no machine counts to is of no array.
            index: is_index.then(|| text.parse().unwrap_or(usize::MAX)),
            text,
        }
    }

    /// Whether a server may take `member` for it.
    pub(super) fn may_match(&self, json: &[u8], member: &Member) -> bool {
        if member.matches_ignoring_case(json, &self.text) {
            return true;
        }
        let quoted = &json[member.key.clone()];
        // Spelling takes bytes away, and adds none to letters.
        let is_longer = quoted.len() > self.normalized.len() + 2 || !quoted.is_ascii();
        (is_longer || self.normalized.len() < self.text.len())
            && json::decode_string(quoted)
                .is_some_and(|key| normalized_name(&key) == self.normalized)
    }
}

/// `key` as those read it who know members by several names: in compatibility form (NFKC), without case,
/// and with `snake_case`, `kebab-case` and `camelCase` as one.
fn normalized_name(key: &str) -> String {
    let composed = ComposingNormalizerBorrowed::new_nfkc().normalize(key);
    let mut letters = json::case_folded(&composed);
    letters.retain(|c| !matches!(c, '_' | '-' | ' '));
    letters
}

/// A way through the arguments of a call.
struct ArgumentWalk<'w> {
    is_lax: bool,
    bytes_left: usize,
    test: &'w mut dyn FnMut(PointerTarget<'_>) -> bool,
}

impl ArgumentWalk<'_> {
    fn any(&mut self, json: &[u8], path: &[PointerToken]) -> bool {
        let Some((token, rest)) = path.split_first() else {
            return (self.test)(PointerTarget::Value(json));
        };
        let Some(left) = self.bytes_left.checked_sub(json.len()) else {
            return (self.test)(PointerTarget::Ambiguous);
        };
        self.bytes_left = left;
        let found = match (json.first(), token) {
            (Some(b'{' | b'['), PointerToken::Each) => self.each_child(json, path),
            (Some(b'{'), PointerToken::Name(name)) => self.member(json, name, rest),
            (Some(b'['), PointerToken::Name(name)) => return self.element(json, name, path),
            (Some(b'"'), _) => self.in_json_text(json, path) || (self.test)(PointerTarget::Missing),
            _ => (self.test)(PointerTarget::Missing),
        };
        let is_single = self.is_lax && token.accepts_single_value() && json.first() != Some(&b'[');
        found || is_single && self.any(json, rest)
    }

    /// All that is in an array or object.
    fn each_child(&mut self, json: &[u8], path: &[PointerToken]) -> bool {
        let rest = &path[1..];
        if rest.is_empty() && self.is_lax {
            return self.all_descendants(json);
        }
        if json.first() == Some(&b'{') {
            let mut members = json::members(json, 0);
            return members.any(|member| self.any(&json[member.value], rest));
        }
        json::elements(json, 0).any(|span| {
            let element = &json[span];
            self.any(element, rest) || self.is_lax && self.nested_elements(element, path)
        })
    }

    /// The elements of a list in a list.
    fn nested_elements(&mut self, json: &[u8], path: &[PointerToken]) -> bool {
        if json.first() == Some(&b'[') {
            return self.any(json, path);
        }
        match Decoded::of(json) {
            Decoded::Json(inner) => self.nested_elements(inner.as_bytes(), path),
            Decoded::TooDeep => (self.test)(PointerTarget::Ambiguous),
            Decoded::Malformed | Decoded::Plain => false,
        }
    }

    /// Everything in an array or object, however deep.
    fn all_descendants(&mut self, json: &[u8]) -> bool {
        if has_duplicate_keys(json) {
            return (self.test)(PointerTarget::Ambiguous);
        }
        let mut open = Vec::new();
        let mut steps = json::steps(json);
        while let Some(step) = steps.next() {
            let span = match step {
                JsonStep::Object | JsonStep::Array => {
                    open.push(steps.position() - 1);
                    continue;
                }
                JsonStep::Key(_) => continue,
                JsonStep::Scalar(span) => span,
                // The outermost is not in itself.
                JsonStep::End => match open.pop().filter(|_| !open.is_empty()) {
                    Some(start) => start..steps.position(),
                    None => continue,
                },
            };
            let value = &json[span];
            // Each test reads all of the value, which is part of those around it.
            let Some(left) = self.bytes_left.checked_sub(value.len()) else {
                return (self.test)(PointerTarget::Ambiguous);
            };
            self.bytes_left = left;
            let is_found = (self.test)(PointerTarget::Value(value));
            if is_found || value.first() == Some(&b'"') && self.descendants_of_text(value) {
                return true;
            }
        }
        false
    }

    fn descendants_of_text(&mut self, json: &[u8]) -> bool {
        match Decoded::of(json) {
            Decoded::Json(inner) if inner.as_bytes().first() == Some(&b'"') => {
                self.descendants_of_text(inner.as_bytes())
            }
            Decoded::Json(inner) => self.all_descendants(inner.as_bytes()),
            Decoded::TooDeep => (self.test)(PointerTarget::Ambiguous),
            Decoded::Malformed | Decoded::Plain => false,
        }
    }

    fn member(&mut self, json: &[u8], name: &MemberName, rest: &[PointerToken]) -> bool {
        let (mut alike, mut is_exact) = (0, false);
        for member in json::members(json, 0).filter(|member| name.may_match(json, member)) {
            alike += usize::from(member.matches_ignoring_case(json, &name.text));
            is_exact |= member.matches(json, &name.text);
            if self.any(&json[member.value], rest) {
                return true;
            }
        }
        alike > 1 && (self.test)(PointerTarget::Ambiguous)
            || !is_exact && (self.test)(PointerTarget::Missing)
    }

    fn element(&mut self, json: &[u8], name: &MemberName, path: &[PointerToken]) -> bool {
        let rest = &path[1..];
        if let Some(index) = name.index {
            return match json::elements(json, 0).nth(index) {
                Some(span) => self.any(&json[span], rest),
                None => (self.test)(PointerTarget::Missing),
            };
        }
        // Some take the elements of an array for the members of an object, in the order of these, or the
        // only element for the array.
        let mut elements = json::elements(json, 0);
        self.is_lax
            && (elements.any(|span| self.any(&json[span], rest))
                || sole_element(json).is_some_and(|element| self.any(element, path)))
            || (self.test)(PointerTarget::Missing)
    }

    fn in_json_text(&mut self, json: &[u8], path: &[PointerToken]) -> bool {
        if !self.is_lax {
            return false;
        }
        match Decoded::of(json) {
            Decoded::Json(inner) => self.any(inner.as_bytes(), path),
            Decoded::Malformed | Decoded::TooDeep => (self.test)(PointerTarget::Ambiguous),
            Decoded::Plain => false,
        }
    }
}

/// The element of an array that has no other.
pub(super) fn sole_element(json: &[u8]) -> Option<&[u8]> {
    let mut elements = json::elements(json, 0);
    let first = elements.next().filter(|_| json.first() == Some(&b'['));
    first
        .filter(|_| elements.next().is_none())
        .map(|span| &json[span])
}

/// What a string of JSON holds.
pub(super) enum Decoded {
    /// JSON, which a server may read.
    Json(Raw),
    /// JSON, nested deeper than can be judged.
    TooDeep,
    /// What begins as an array or object and cannot be read, or what is no text.
    Malformed,
    /// Something else.
    Plain,
}

impl Decoded {
    pub(super) fn of(json: &[u8]) -> Self {
        if json.first() != Some(&b'"') {
            return Self::Plain;
        }
        let Some(text) = json::decode_string(json) else {
            return Self::Malformed;
        };
        let text = super::decimal::trim_lenient(&text);
        // Numbers are read where they are compared.
        let is_list = text.starts_with(['{', '[']);
        let is_word = matches!(text, "null" | "true" | "false");
        if !is_list && !is_word && !text.starts_with('"') {
            return Self::Plain;
        }
        let parsed = Raw::parse(text.to_owned()).or_else(|_| Raw::parse(quote_non_finite(text)));
        match parsed {
            Ok(inner) if !json::is_nested_deeper(inner.as_bytes(), DEPTH_MAX) => Self::Json(inner),
            Ok(_) => Self::TooDeep,
            Err(_) if is_list => Self::Malformed,
            Err(_) => Self::Plain,
        }
    }
}

/// `text` with strings for the numbers that Python reads and writes, and JSON does not have.
fn quote_non_finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', 'N', 'I', '-']) {
        let (before, found) = rest.split_at(at);
        out.push_str(before);
        let word = ["NaN", "Infinity", "-Infinity"];
        let word = word.into_iter().find(|word| found.starts_with(word));
        let length = match word {
            Some(word) => {
                out.extend(["\"", word, "\""]);
                rest = &found[word.len()..];
                continue;
            }
            None if found.starts_with('"') => json::skip_string(found.as_bytes(), 0),
            None => 1,
        };
        out.push_str(&found[..length]);
        rest = &found[length..];
    }
    out.push_str(rest);
    out
}
