//! Decoded views of text, and the way back: where in the written text a decoded position lies.

use std::{borrow::Cow, fmt::Write as _};

/// What a written text says, and where each part of it is written.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) text: Cow<'a, str>,
    /// Decoded position -> written position, at every point where the two drift apart.
    jumps: Vec<(usize, usize)>,
}

impl<'a> View<'a> {
    /// Decodes the inside of a JSON string; a lone surrogate reads as U+FFFD.
    pub(super) fn of_json(written: &'a str) -> Self {
        if memchr::memchr(b'\\', written.as_bytes()).is_none() {
            return Self::plain(written);
        }
        Self::decode(written, |rest| Some(escape(rest)))
    }

    /// Reads `\u0040` and the like in text that is not JSON as a whole; other escapes stay.
    pub(super) fn of_unicode_escapes(written: &'a str) -> Self {
        Self::decode(written, |rest| {
            (rest.as_bytes().get(1) == Some(&b'u')).then(|| escape(rest))
        })
    }

    /// The view of a text without escapes.
    pub(super) fn plain(written: &'a str) -> Self {
        Self {
            text: Cow::Borrowed(written),
            jumps: Vec::new(),
        }
    }

    fn decode(written: &'a str, read: impl Fn(&str) -> Option<(char, usize)>) -> Self {
        let mut text = String::with_capacity(written.len());
        let (mut jumps, mut at) = (Vec::new(), 0);
        while let Some(found) = memchr::memchr(b'\\', &written.as_bytes()[at..]) {
            text.push_str(&written[at..at + found]);
            at += found;
            if let Some((decoded, len)) = read(&written[at..]) {
                text.push(decoded);
                at += len;
                jumps.push((text.len(), at));
                // A position before the escape needs no jump: the one before it leads there.
            } else {
                text.push('\\');
                at += 1;
            }
        }
        text.push_str(&written[at..]);
        Self {
            text: Cow::Owned(text),
            jumps,
        }
    }

    /// Where the decoded position `at`, a boundary of characters, is written.
    pub(super) fn written(&self, at: usize) -> usize {
        let after = self.jumps.partition_point(|(decoded, _)| *decoded <= at);
        match after.checked_sub(1).map(|index| self.jumps[index]) {
            Some((decoded, written)) => written + (at - decoded),
            None => at,
        }
    }
}

/// The character that the escape at the start of `rest` stands for, and the length of the escape.
fn escape(rest: &str) -> (char, usize) {
    let simple = match rest.as_bytes().get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return unicode(rest),
        Some(other @ (b'"' | b'\\' | b'/')) => char::from(*other),
        Some(_) | None => return ('\\', 1),
    };
    (simple, 2)
}

fn unicode(rest: &str) -> (char, usize) {
    const ESCAPE_BYTES: usize = 6;
    let unit = |from: usize| {
        let marked = rest.get(from..from + 2) == Some("\\u");
        let digits = rest.get(from + 2..from + ESCAPE_BYTES).filter(|_| marked)?;
        let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then(|| u32::from_str_radix(digits, 16).ok())?
    };
    match (unit(0), unit(ESCAPE_BYTES)) {
        (Some(high @ 0xD800..0xDC00), Some(low @ 0xDC00..0xE000)) => {
            let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or('\u{FFFD}'), 2 * ESCAPE_BYTES)
        }
        (Some(unit), _) => (char::from_u32(unit).unwrap_or('\u{FFFD}'), ESCAPE_BYTES),
        (None, _) => ('\\', 1),
    }
}

/// Appends `text` as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
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
            let view = View::of_json(written);
            let start = view.text.find(part).unwrap();
            let span = view.written(start)..view.written(start + part.len());
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
            let written = escaped(&text);
            let view = View::of_json(&written);
            prop_assert_eq!(&*view.text, text.as_str());
            prop_assert_eq!(view.written(view.text.len()), written.len());
        }
    }
}
