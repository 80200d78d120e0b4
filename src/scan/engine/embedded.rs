//! JSON that is only a part of a text: a number in it has to stay one.
//!
//! The document around a value need not be parsed for that: what stands before and after a number
//! says whether it is a member, in as few steps as there are values beside it.

use std::{cell::OnceCell, ops::Range};

use super::decode::DecodedText;

/// Values before a number in its array that are looked at.
const ITEMS_MAX: usize = 64;

/// A text with found values in it.
#[derive(Debug)]
pub(in crate::scan) struct EmbeddedText<'a> {
    text: &'a str,
    /// What the escapes of the text say: JSON in a string may begin with `{\"`.
    view: OnceCell<Option<DecodedText<'a>>>,
}

impl<'a> EmbeddedText<'a> {
    pub(in crate::scan) const fn of(text: &'a str) -> Self {
        Self {
            text,
            view: OnceCell::new(),
        }
    }

    /// Whether the value at `span` is a number of JSON: digits that are a member or an item.
    pub(in crate::scan) fn is_json_number(&self, span: &Range<usize>) -> bool {
        let value = &self.text[span.clone()];
        if !value.bytes().all(|b| b.is_ascii_digit()) {
            return false;
        }
        let (text, span) = match self.view.get_or_init(|| DecodedText::unescape(self.text)) {
            Some(view) => (&*view.text, view.decoded_span(span)),
            None => (self.text, span.clone()),
        };
        let after = text[span.end..].trim_start();
        after.starts_with([',', ']', '}']) && follows_json_key(&text[..span.start])
    }
}

/// Whether a value of JSON follows `before`: its key does, or its array, with or without other items.
fn follows_json_key(before: &str) -> bool {
    let mut before = before.trim_end();
    for _ in 0..ITEMS_MAX {
        if let Some(rest) = before.strip_suffix(':') {
            return rest.trim_end().ends_with(['"', '\'']);
        }
        if let Some(rest) = before.strip_suffix('[') {
            let rest = rest.trim_end_matches([' ', '\t']);
            // At the start of a line, or within another document.
            return rest.is_empty() || rest.ends_with(['\n', ':', '[', ',']);
        }
        let Some(rest) = before.strip_suffix(',') else {
            return false;
        };
        before = rest.trim_end();
        if before.ends_with(['"', '\'', ']', '}']) {
            return true;
        }
        let is_literal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        before = before.trim_end_matches(is_literal).trim_end();
    }
    false
}
