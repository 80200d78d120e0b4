//! Decoded views of text, and the way back: where in the written text a decoded position lies.

use std::{borrow::Cow, fmt::Write as _, ops::Range};

use super::escapes::{self, EscapeRead, EscapeSigns, read_utf16};

/// What a written text says, and where each part of it is written.
#[derive(Debug)]
pub(in crate::scan) struct DecodedText<'a> {
    pub(in crate::scan) text: Cow<'a, str>,
    /// Decoded position -> written position, at the end of every escape: there the two drift apart.
    offsets: Vec<(usize, usize)>,
}

impl<'a> DecodedText<'a> {
    /// Decodes the inside of a JSON string; a lone surrogate reads as U+FFFD.
    pub(in crate::scan) fn of_json(written: &'a str) -> Self {
        if memchr::memchr(b'\\', written.as_bytes()).is_none() {
            return Self::unescaped(written);
        }
        Self::decode(written, |bytes| memchr::memchr(b'\\', bytes), read_escape)
    }

    /// Reads the escapes in a text that is no document; `None` where it has none.
    pub(in crate::scan) fn unescape(written: &'a str) -> Option<Self> {
        let signs = EscapeSigns::of(written)?;
        let view = Self::decode(
            written,
            |bytes| signs.next_escape(bytes),
            escapes::read_escape,
        );
        (!view.offsets.is_empty()).then_some(view)
    }

    /// The view of a text without escapes.
    pub(in crate::scan) fn unescaped(written: &'a str) -> Self {
        Self {
            text: Cow::Borrowed(written),
            offsets: Vec::new(),
        }
    }

    fn decode(
        written: &'a str,
        next: impl Fn(&[u8]) -> Option<usize>,
        read: impl Fn(&str) -> EscapeRead,
    ) -> Self {
        let (mut text, mut jumps) = (String::new(), Vec::new());
        let (mut copied, mut at) = (0, 0);
        while let Some(found) = next(&written.as_bytes()[at..]) {
            at += found;
            match read(&written[at..]) {
                EscapeRead::Escape(decoded, len) => {
                    text.push_str(&written[copied..at]);
                    text.push(decoded);
                    at += len;
                    copied = at;
                    jumps.push((text.len(), at));
                    // A position before the escape needs no jump: the one before it leads there.
                }
                EscapeRead::Plain(len) => at += len,
            }
        }
        if jumps.is_empty() {
            return Self::unescaped(written);
        }
        text.push_str(&written[copied..]);
        Self {
            text: Cow::Owned(text),
            offsets: jumps,
        }
    }

    /// The decoded span that `written`, a span of what is written, says; an escape that it begins or
    /// ends in is left out, unless there is nothing else.
    pub(in crate::scan) fn decoded_span(&self, written: &Range<usize>) -> Range<usize> {
        let (outer_start, inner_start) = self.decoded_neighbours(written.start);
        let (inner_end, outer_end) = self.decoded_neighbours(written.end);
        if inner_start < inner_end {
            inner_start..inner_end
        } else {
            outer_start..outer_end
        }
    }

    /// The decoded positions next to `written`, a position of what is written: two, before and after
    /// an escape, where it lies in one.
    fn decoded_neighbours(&self, written: usize) -> (usize, usize) {
        let after = self.offsets.partition_point(|(_, end)| *end <= written);
        let (decoded, end) = after.checked_sub(1).map_or((0, 0), |at| self.offsets[at]);
        let at = decoded + (written - end);
        let Some((after, _)) = self.offsets.get(after) else {
            return (at, at);
        };
        let escape = self.text[..*after].chars().next_back();
        let before = after - escape.map_or(0, char::len_utf8);
        if at <= before {
            (at, at)
        } else {
            (before, *after)
        }
    }

    /// Where the decoded position `at`, a boundary of characters, is written.
    pub(in crate::scan) fn written_position(&self, at: usize) -> usize {
        let after = self.offsets.partition_point(|(decoded, _)| *decoded <= at);
        match after.checked_sub(1).map(|index| self.offsets[index]) {
            Some((decoded, written)) => written + (at - decoded),
            None => at,
        }
    }
}

/// Reads the escape of JSON at the start of `rest`.
fn read_escape(rest: &str) -> EscapeRead {
    let simple = match rest.as_bytes().get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => {
            return read_utf16(rest)
                .map_or(EscapeRead::Plain(1), |(c, len)| EscapeRead::Escape(c, len));
        }
        Some(other @ (b'"' | b'\\' | b'/')) => char::from(*other),
        Some(_) | None => return EscapeRead::Plain(1),
    };
    EscapeRead::Escape(simple, 2)
}

/// Appends `text` as the inside of a JSON string.
pub(in crate::scan) fn escape_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => write!(out, "\\u{:04x}", u32::from(c)).expect("a String takes all"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_lead_back_to_what_was_written() {
        let check = |written: &str, part: &str, expect: &str| {
            let view = DecodedText::of_json(written);
            let start = view.text.find(part).unwrap();
            let span = view.written_position(start)..view.written_position(start + part.len());
            assert_eq!(&written[span], expect, "{written}");
        };
        check(r"a\u0040b", "@", r"\u0040");
        check(r"x\n\ta@b\\", "a@b", "a@b");
        check(r"\ud83d\ude00a@b\ud83d", "a@b", "a@b");
        check(r"\ud83da@b", "a@b", "a@b");
        check(r"\u0061\u0040\u0062!", "a@b", r"\u0061\u0040\u0062");
        check(r#"\"\/"#, "/", r"\/");
    }

    proptest! {
        #[test]
        fn decoding_undoes_escaping(text in any::<String>()) {
            let written = escape_json(&text);
            let view = DecodedText::of_json(&written);
            prop_assert_eq!(&*view.text, text.as_str());
            prop_assert_eq!(view.written_position(view.text.len()), written.len());
        }
    }
}
