//! The name that stands before a sign, and which secret it names.

use std::ops::Range;

use super::{NAME_BYTES_MAX, SecretKind, char_kinds::is_number_type, secret_kind};
use crate::scan::{
    context::{Text, char_boundary_before, last_word_hints},
    lexicon::{self, Hints},
};

/// The name before a sign.
pub(super) struct LabelName<'a> {
    /// The words before the sign.
    words: &'a str,
    /// Where the last of them begins.
    pub(super) start: usize,
    /// Where the first of them begins.
    first: usize,
}

impl<'a> LabelName<'a> {
    pub(super) fn before(text: &Text<'a>, at: usize) -> Option<Self> {
        let span = words_before(text, at)?;
        let words = text.text.get(span.clone())?;
        let last = words
            .rfind(' ')
            .map_or(words.len(), |space| words.len() - space - 1);
        Some(Self {
            words,
            start: span.end - last,
            first: span.start,
        })
    }

    /// What kind of secret is named, if any.
    pub(super) fn secret_kind(&self, text: &Text<'a>) -> Option<SecretKind> {
        let last = &self.words[self.start - self.first..];
        if lexicon::prefilter::may_end_secret(last)
            && let Some(found) = secret_kind(last_word_hints(self.words))
        {
            return Some(found);
        }
        match last {
            // `password is: x`
            "is" | "was" | "lautet" | "ist" | "est" | "es" | "jest" | "\u{e8}" | "\u{e9}" => {
                secret_kind(text.preceding_hints(self.start).0)
            }
            // `name="password" value="x"`, `field=password value=x`
            "value" | "Value" | "default" | "valor" | "wert" => {
                let near = text.preceding_hints(self.start).1;
                let kinds = [
                    (Hints::PASSWORD, SecretKind::Password),
                    (Hints::TOKEN, SecretKind::Token),
                ];
                kinds
                    .into_iter()
                    .find(|(hints, _)| near.intersects(*hints))
                    .map(|(_, kind)| kind)
            }
            // `val password: String = "x"`
            _ if text.byte(self.start + last.len()) == b' ' && self.is_type(text) => {
                // `const BUFLEN_PASSWD: usize = 1024`
                if is_number_type(last.as_bytes()) {
                    return None;
                }
                let before = text.text[..self.first].trim_end_matches([' ', '&']);
                secret_kind(last_word_hints(Self::before(text, before.len() - 1)?.words))
            }
            _ if is_password_option(text, self.start) => Some(SecretKind::Password),
            // `password for the wiki: x`
            _ => self
                .subject_of_password()
                .and_then(|named| secret_kind(last_word_hints(named)))
                .filter(|found| *found == SecretKind::Password),
        }
    }

    /// What stands before `for` and the like, which say where a password is one.
    fn subject_of_password(&self) -> Option<&'a str> {
        let mut at = 0;
        for word in self.words.split(' ') {
            let of = matches!(
                word,
                "for"
                    | "f\u{fc}r"
                    | "pour"
                    | "para"
                    | "per"
                    | "voor"
                    | "do"
                    | "dla"
                    | "of"
                    | "von"
                    | "de"
                    | "del"
            );
            if of && at > 0 {
                return self.words.get(..at - 1);
            }
            at += word.len() + 1;
        }
        None
    }

    /// Whether the name is that of a type, after a colon.
    fn is_type(&self, text: &Text<'_>) -> bool {
        let before = &text.bytes()[..self.first];
        let trimmed = before.trim_ascii_end();
        before.len() - trimmed.len() <= 2
            && (trimmed.ends_with(b":") || trimmed.ends_with(b": &"))
            && self
                .words
                .trim()
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_')
    }
}

/// The password of `curl -u me:x` and the like, whose colon is at `sign`, and of `mysql -p'x'`.
fn is_password_option(text: &Text<'_>, name_start: usize) -> bool {
    const OPTIONS: [&[u8]; 4] = [b" -u ", b" -u '", b" --user ", b" -u \""];
    let before = &text.bytes()[..name_start];
    OPTIONS.iter().any(|option| before.ends_with(option))
}

/// Where the words right before `at` stand.
fn words_before(text: &Text<'_>, at: usize) -> Option<Range<usize>> {
    let bytes = text.bytes();
    let mut end = at;
    while at - end < 4
        && matches!(
            text.byte_before(end),
            b' ' | b'"' | b'\'' | b']' | b'\\' | b'`' | b'*' | b':' | b'>'
        )
    {
        end -= 1;
    }
    // `Password (temporary): x`
    if text.byte_before(end) == b')' {
        let window = &bytes[end.saturating_sub(NAME_BYTES_MAX)..end];
        if let Some(open) = memchr::memrchr(b'(', window) {
            end -= window.len() - open;
            end -= usize::from(text.byte_before(end) == b' ');
        }
    }
    // Leaders: `Password . . . . : x`
    let leaders = bytes[..end]
        .iter()
        .rev()
        .take(NAME_BYTES_MAX)
        .take_while(|b| matches!(b, b' ' | b'.'))
        .count();
    if leaders >= 4 {
        end -= leaders;
    }
    let mut start = end;
    let (mut spaces, floor_at) = (0, end.saturating_sub(NAME_BYTES_MAX));
    while start > floor_at {
        match bytes[start - 1] {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | 0x80.. => {}
            b' ' if spaces < 3 => spaces += 1,
            _ => break,
        }
        start -= 1;
    }
    if start == end || !bytes[end - 1].is_ascii_alphanumeric() && bytes[end - 1] < 0x80 {
        return None;
    }
    let words = text.text.get(char_boundary_before(text.text, start)..end)?;
    let masked = text.byte_before(start) == b'[' && text.byte(end) == b']';
    if masked && !words.bytes().any(|b| b.is_ascii_lowercase()) {
        return None;
    }
    Some(end - words.len()..end)
}
