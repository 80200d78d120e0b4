//! The way through a JSON document: every string and number with the names above it.
//!
//! Nothing is parsed into a model. The walk is iterative, so nesting costs no stack; strings that
//! hold JSON are walked in turn, down to [`NESTED_MAX`] levels.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::Range,
};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::de::IgnoredAny;

use super::{
    decode::{DecodedText, escape_json},
    scan_sink::ScanSink,
};
use crate::{
    mcp::json,
    scan::context::{Names, char_boundary_before, is_generic_name},
};

/// Levels of JSON inside of strings that are read as JSON; deeper ones are read as text.
const NESTED_MAX: usize = 4;
/// Longest text of letters and digits that is no data for sure, bytes: numbers of cards, keys, tokens.
const WORD_BYTES_MAX: usize = 256;
/// Longest value of a sibling that may say what another value is, bytes.
const SIBLING_BYTES_MAX: usize = 42;

/// A replacement in a text: what is put in place of a span.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::scan) struct Edit {
    pub(in crate::scan) span: Range<usize>,
    pub(in crate::scan) text: String,
    /// The index of the class of what must not stay there; of several, that of the first.
    pub(in crate::scan) class: usize,
}

/// A value that an edit lies in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::scan) struct EditedValue {
    /// JSON pointer (RFC 6901) from the root of the document.
    pub(in crate::scan) pointer: String,
    pub(in crate::scan) span: Range<usize>,
    /// Whether it is a key instead of a value.
    pub(in crate::scan) key: bool,
    /// The index of the class of its first edit.
    pub(in crate::scan) class: usize,
}

/// What a walk changes.
#[derive(Debug, Default)]
pub(in crate::scan) struct Redactions {
    pub(in crate::scan) edits: Vec<Edit>,
    /// The edited values, in the order of the document.
    pub(in crate::scan) leaves: Vec<EditedValue>,
}

/// Walks through `json`, which is valid, below `names`.
pub(in crate::scan) fn walk_document(
    json: &str,
    names: Names<'_>,
    sink: &mut ScanSink<'_>,
    nested: usize,
) -> Redactions {
    let mut walk = DocumentWalk {
        json,
        escapes: memchr::memchr(b'\\', json.as_bytes()).is_some(),
        root: names,
        sink,
        nested,
        frames: Vec::new(),
        changes: Redactions::default(),
    };
    walk.run();
    walk.changes
}

/// Looks through one text, which may be JSON itself; the edits are in positions of `text`.
pub(in crate::scan) fn scan_text(
    text: &str,
    names: Names<'_>,
    sink: &mut ScanSink<'_>,
    nested: usize,
) -> Vec<Edit> {
    if let Some(edit) = sink.replacement_for(text) {
        return vec![edit];
    }
    if nested < NESTED_MAX && is_json(text) {
        // A document in the `text` of a content block stands below no name, as structured content does.
        let own = if is_generic_name(names.own) {
            ""
        } else {
            names.own
        };
        let below = Names {
            own,
            ..Names::default()
        };
        return walk_document(text, below, sink, nested + 1).edits;
    }
    sink.search(text, names)
}

fn is_json(text: &str) -> bool {
    let trimmed = text.trim_start_matches([' ', '\n', '\r', '\t']);
    matches!(trimmed.as_bytes().first(), Some(b'{' | b'['))
        && serde_json::from_str::<IgnoredAny>(trimmed).is_ok()
}

/// The edit in the text that `view` was decoded from.
fn map_to_written(view: &DecodedText<'_>, edit: Edit) -> Edit {
    Edit {
        span: view.written_position(edit.span.start)..view.written_position(edit.span.end),
        ..edit
    }
}

/// An open object or array.
#[derive(Debug, Default)]
struct Frame {
    object: bool,
    /// Where it opens.
    start: usize,
    /// The key it stands under, without quotes.
    name: Range<usize>,
    /// The key whose value comes next, without quotes; of an array, that of the array.
    key: Range<usize>,
    expects_key: bool,
    index: usize,
    /// The value of a sibling that may name others.
    sibling: Range<usize>,
    mime: Range<usize>,
    /// A string that holds base64 when there is a MIME type beside it, with quotes.
    blob: Option<(Range<usize>, Range<usize>)>,
    edited_keys: Vec<(Range<usize>, Vec<Edit>)>,
}

struct DocumentWalk<'a, 's, 'k> {
    json: &'a str,
    /// Whether any of its strings has an escape: where none has, nobody looks for them.
    escapes: bool,
    root: Names<'a>,
    sink: &'s mut ScanSink<'k>,
    nested: usize,
    frames: Vec<Frame>,
    changes: Redactions,
}

impl<'a> DocumentWalk<'a, '_, '_> {
    fn run(&mut self) {
        let bytes = self.json.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'{' | b'[' => {
                    self.open(at, *byte == b'{');
                    at += 1;
                }
                b'}' | b']' => {
                    self.close();
                    at += 1;
                }
                b'"' => {
                    let end = json::skip_string(bytes, at);
                    self.string(at..end);
                    at = end;
                }
                b',' => {
                    if let Some(frame) = self.frames.last_mut() {
                        frame.expects_key = frame.object;
                        frame.index += 1;
                    }
                    at += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let end = number_end(bytes, at);
                    self.number(at..end);
                    at = end;
                }
                _ => at += 1,
            }
        }
    }

    fn open(&mut self, start: usize, object: bool) {
        let name = self.frames.last().map_or(0..0, |frame| frame.key.clone());
        self.frames.push(Frame {
            object,
            start,
            key: if object { 0..0 } else { name.clone() },
            name,
            expects_key: object,
            ..Frame::default()
        });
    }

    fn close(&mut self) {
        let Some(mut frame) = self.frames.pop() else {
            return;
        };
        if let Some((key, value)) = frame.blob.take() {
            frame.key = key;
            let mime = self.decoded_or_empty(&frame.mime).into_owned();
            self.frames.push(frame);
            self.blob(&mime, &value);
            frame = self.frames.pop().expect("pushed above");
        }
        if !frame.edited_keys.is_empty() {
            self.redact_keys(&frame);
        }
    }

    fn string(&mut self, span: Range<usize>) {
        let inner = span.start + 1..span.end - 1;
        match self.frames.last_mut() {
            Some(frame) if frame.expects_key => {
                frame.expects_key = false;
                frame.key = inner.clone();
                self.key(&inner);
            }
            Some(frame) if frame.object => {
                let key = self.json[frame.key.clone()].as_bytes();
                if inner.len() <= SIBLING_BYTES_MAX && is_naming_key(key) {
                    frame.sibling = inner.clone();
                }
                match key {
                    b"mimeType" => frame.mime = inner,
                    b"blob" | b"data" if frame.blob.is_none() => {
                        frame.blob = Some((frame.key.clone(), span));
                        return;
                    }
                    _ => {}
                }
                self.value(&span);
            }
            Some(_) | None => self.value(&span),
        }
    }

    fn key(&mut self, inner: &Range<usize>) {
        let written = &self.json[inner.clone()];
        if !self.sink.may_be_in_key(written) {
            return;
        }
        let view = DecodedText::of_json(written);
        let edits = self.sink.search(&view.text, Names::default());
        if edits.is_empty() {
            return;
        }
        let edits = edits
            .into_iter()
            .map(|edit| map_to_written(&view, edit))
            .collect();
        let frame = self.frames.last_mut().expect("a key is in an object");
        frame.edited_keys.push((inner.clone(), edits));
    }

    /// Redacts the keys of `frame`, each to one that the object does not have yet.
    fn redact_keys(&mut self, frame: &Frame) {
        let mut taken: HashSet<String> = HashSet::new();
        let renamed: HashSet<usize> = frame
            .edited_keys
            .iter()
            .map(|(span, _)| span.start)
            .collect();
        let keys = json::members(self.json.as_bytes(), frame.start).map(|member| member.key);
        for key in keys.map(|key| key.start + 1..key.end - 1) {
            if !renamed.contains(&key.start) {
                taken.insert(self.decoded_or_empty(&key).into_owned());
            }
        }
        let mut next: HashMap<String, usize> = HashMap::new();
        for (span, edits) in &frame.edited_keys {
            let written = &self.json[span.clone()];
            let masked = DecodedText::of_json(&apply_edits(written, edits))
                .text
                .into_owned();
            let mut unique = masked.clone();
            let count = next.entry(masked.clone()).or_insert(1);
            while !taken.insert(unique.clone()) {
                *count += 1;
                unique = format!("{masked}_{count}");
            }
            let class = edits[0].class;
            self.changes.edits.push(Edit {
                span: span.clone(),
                text: escape_json(&unique),
                class,
            });
            self.changes.leaves.push(EditedValue {
                pointer: String::new(),
                span: span.start - 1..span.end + 1,
                key: true,
                class,
            });
        }
    }

    /// Looks through the string at `span`, quotes included.
    fn value(&mut self, span: &Range<usize>) {
        let inner = span.start + 1..span.end - 1;
        if inner.is_empty() || !self.escapes && self.is_clean(&inner) {
            return;
        }
        let view = self.decode_string(&inner);
        let current = self.current_names();
        let [own, parent, sibling] = current.each_ref().map(|name| &**name);
        let names = Names {
            own,
            parent,
            sibling,
        };
        let edits = scan_text(&view.text, names, self.sink, self.nested);
        let Some(class) = edits.first().map(|edit| edit.class) else {
            return;
        };
        for edit in edits {
            let edit = map_to_written(&view, edit);
            self.changes.edits.push(Edit {
                span: inner.start + edit.span.start..inner.start + edit.span.end,
                text: escape_json(&edit.text),
                class: edit.class,
            });
        }
        self.note_edited(span, class);
    }

    /// Whether nothing can be found in the value at `inner`, which is written as it is meant.
    fn is_clean(&self, inner: &Range<usize>) -> bool {
        self.frames.last().is_some_and(|frame| {
            let key = &self.json[frame.key.clone()];
            // A document in a string stands under the key of the string.
            let own = if key.is_empty() { self.root.own } else { key };
            self.sink.is_clean(&self.json[inner.clone()], own)
        })
    }

    fn number(&mut self, span: Range<usize>) {
        const DIGITS_MIN: usize = 7;
        // Only an operator's own pattern is about numbers that are shorter.
        if span.len() < DIGITS_MIN && !self.sink.has_custom() {
            return;
        }
        let Some(whole) = integer_digits(&self.json[span.clone()]) else {
            return;
        };
        let current = self.current_names();
        let [own, parent, sibling] = current.each_ref().map(|name| &**name);
        let names = Names {
            own,
            parent,
            sibling,
        };
        if let Some((with, class)) = self.sink.mask_number(&whole, names) {
            self.changes.edits.push(Edit {
                span: span.clone(),
                text: with,
                class,
            });
            self.note_edited(&span, class);
        }
    }

    /// Looks into the string at `span` when it is base64 of a type that is to be decoded; through
    /// it as text when it is not base64, or so short that it may as well be a word or a key.
    fn blob(&mut self, mime: &str, span: &Range<usize>) {
        let inner = span.start + 1..span.end - 1;
        let view = self.decode_string(&inner);
        let base64 =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_');
        if mime.is_empty() || !view.text.bytes().all(base64) {
            self.value(span);
            return;
        }
        let decodes = self.sink.decodes_mime(mime);
        let engine = base64_engine(&view.text);
        let decoded = decodes.then(|| engine.decode(view.text.as_bytes()).ok());
        let content = decoded.flatten();
        let masked = content
            .as_deref()
            .and_then(|content| self.redact_blob(content));
        if let Some((with, class)) = masked {
            self.changes.edits.push(Edit {
                span: inner,
                text: engine.encode(with),
                class,
            });
            self.note_edited(span, class);
            return;
        }
        let is_data = content.is_some() || !decodes;
        // What a caller says of its arguments binds no tool.
        if !is_data || view.text.len() <= WORD_BYTES_MAX || self.sink.is_caller_controlled() {
            self.value(span);
        }
    }

    /// What is left of the decoded content of a blob, when something must not stay, and the class of the
    /// first of that.
    fn redact_blob(&mut self, content: &[u8]) -> Option<(Vec<u8>, usize)> {
        if let Ok(readable) = std::str::from_utf8(content) {
            let edits = scan_text(readable, Names::default(), self.sink, self.nested);
            let class = edits.first()?.class;
            return Some((apply_edits(readable, &edits).into_bytes(), class));
        }
        // Every byte is a character here, so that the way back is exact.
        let latin: String = content.iter().copied().map(char::from).collect();
        let edits = scan_text(&latin, Names::default(), self.sink, NESTED_MAX);
        let back = |c: char| u8::try_from(u32::from(c)).unwrap_or(b'?');
        let class = edits.first()?.class;
        Some((
            apply_edits(&latin, &edits).chars().map(back).collect(),
            class,
        ))
    }

    /// Notes that the value at `span` is edited, first for what is of `class`.
    fn note_edited(&mut self, span: &Range<usize>, class: usize) {
        if self.nested > 0 {
            return;
        }
        let mut pointer = String::new();
        for frame in &self.frames {
            pointer.push('/');
            if frame.object {
                let key = self.decoded_or_empty(&frame.key);
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            } else {
                pointer.push_str(&frame.index.to_string());
            }
        }
        self.changes.leaves.push(EditedValue {
            pointer,
            span: span.clone(),
            key: false,
            class,
        });
    }

    /// The key of the next value, that of what is around it, and what a sibling calls it.
    fn current_names(&self) -> [Cow<'a, str>; 3] {
        let Some(frame) = self.frames.last() else {
            return [self.root.own.into(), "".into(), "".into()];
        };
        let around = if frame.object {
            Some(frame)
        } else {
            self.frames.iter().rev().nth(1)
        };
        let parent = around.map_or(0..0, |around| around.name.clone());
        let [own, parent] = [&frame.key, &parent].map(|span| match self.key_at(span) {
            name if name.is_empty() => self.root.own.into(),
            name => name,
        });
        [own, parent, self.key_at(&frame.sibling)]
    }

    /// The key at `span`; of a long one its beginning, since it is looked at for every value below it.
    fn key_at(&self, span: &Range<usize>) -> Cow<'a, str> {
        const BYTES_MAX: usize = 128;
        let end = span.start + BYTES_MAX;
        if end >= span.end {
            return self.decoded_or_empty(span);
        }
        let written = &self.json[span.start..char_boundary_before(self.json, end)];
        // No part of an escape is left over.
        let escape = written.rfind('\\').filter(|at| written.len() - at < 6);
        let whole = written[..escape.unwrap_or(written.len())].trim_end_matches('\\');
        if !whole.contains('\\') {
            return Cow::Borrowed(whole);
        }
        let quoted = format!("\"{whole}\"");
        let name = json::decode_string(quoted.as_bytes()).map(Cow::into_owned);
        name.unwrap_or_default().into()
    }

    /// The inside of a string, with the way back to where it is written.
    fn decode_string(&self, inner: &Range<usize>) -> DecodedText<'a> {
        let written = &self.json[inner.clone()];
        if self.escapes {
            DecodedText::of_json(written)
        } else {
            DecodedText::unescaped(written)
        }
    }

    /// The inside of a string; nothing when it has lone surrogates.
    fn decoded_or_empty(&self, inner: &Range<usize>) -> Cow<'a, str> {
        let written = &self.json[inner.clone()];
        if !self.escapes || memchr::memchr(b'\\', written.as_bytes()).is_none() {
            return Cow::Borrowed(written);
        }
        let quoted = inner.start - 1..inner.end + 1;
        json::decode_string(&self.json.as_bytes()[quoted]).unwrap_or_default()
    }
}

/// The text after `edits`, which do not overlap.
pub(in crate::scan) fn apply_edits(text: &str, edits: &[Edit]) -> String {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.span.start);
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for edit in edits {
        out.push_str(&text[at..edit.span.start]);
        out.push_str(&edit.text);
        at = edit.span.end;
    }
    out.push_str(&text[at..]);
    out
}

/// Whether the value under `key` may say what the values beside it are.
fn is_naming_key(key: &[u8]) -> bool {
    matches!(
        key,
        b"type"
            | b"kind"
            | b"label"
            | b"name"
            | b"system"
            | b"field"
            | b"key"
            | b"property"
            | b"attribute"
            | b"use"
            | b"title"
            | b"category"
            | b"code"
            | b"fieldName"
            | b"field_name"
            | b"idType"
            | b"id_type"
            | b"documentType"
            | b"document_type"
    )
}

/// The digits of the integer that a JSON number is, however it is written: `4e6`, `-4000000.0`. One
/// with a fraction, or with more digits than any number that is looked for, is none.
fn integer_digits(written: &str) -> Option<Cow<'_, str>> {
    const DIGITS_MAX: usize = 24;
    if written.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Cow::Borrowed(written));
    }
    let unsigned = written.strip_prefix('-').unwrap_or(written);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: isize = exponent.parse().ok()?;
    let point = usize::try_from(before.len().cast_signed().checked_add(exponent)?).ok()?;
    let mut digits = [before, after].concat();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if let Some(fraction) = digits.get(point..) {
        if fraction.bytes().any(|b| b != b'0') {
            return None;
        }
        digits.truncate(point);
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return None;
    }
    let zeros = point.saturating_sub(before.len() + after.len());
    (digits.len().checked_add(zeros)? <= DIGITS_MAX)
        .then(|| Cow::Owned(format!("{digits}{}", "0".repeat(zeros))))
}

fn number_end(json: &[u8], at: usize) -> usize {
    let part = |b: &u8| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E');
    json[at..]
        .iter()
        .position(|b| !part(b))
        .map_or(json.len(), |len| at + len)
}

/// What reads `text`, and writes it as it was written: with or without padding, in either alphabet.
fn base64_engine(text: &str) -> GeneralPurpose {
    let alphabet = if text.contains(['-', '_']) {
        &alphabet::URL_SAFE
    } else {
        &alphabet::STANDARD
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_encode_padding(text.len().is_multiple_of(4));
    GeneralPurpose::new(alphabet, config)
}
