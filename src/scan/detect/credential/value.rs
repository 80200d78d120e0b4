//! The value that stands after a sign, and whether it is taken for a secret.

use std::ops::Range;

use super::{
    SecretKind, VALUE_BYTES_MAX,
    char_kinds::{CharKinds, is_code, is_placeholder},
};
use crate::scan::{
    class::Class,
    context::{Text, char_boundary_before},
    finding::FoundValue,
};

/// Signs of assignment in a value at most; padding of base64 has two.
pub(super) const EQUALS_SIGNS_MAX: usize = 5;

#[derive(Debug)]
pub(super) struct SecretValue {
    pub(super) span: Range<usize>,
    pub(super) quoted: bool,
}

/// How a secret is written down.
#[derive(Clone, Copy)]
pub(super) struct SecretStyle {
    /// In a sentence, where most words after a colon are no secrets.
    pub(super) prose: bool,
    /// As a member of something: `form.password = field.value`.
    pub(super) named_like_code: bool,
    /// Where nothing but a value can stand, such as in the cell of a table.
    pub(super) cell: bool,
}

impl SecretStyle {
    pub(super) const PLAIN: Self = Self {
        prose: false,
        named_like_code: false,
        cell: false,
    };
    pub(super) const CELL: Self = Self {
        prose: false,
        named_like_code: true,
        cell: true,
    };
}

/// The value that begins after spaces and an opening quote at `at`.
pub(super) fn value_after(text: &Text<'_>, mut at: usize) -> Option<SecretValue> {
    let spaces = at;
    while matches!(text.byte(at), b' ' | b'\t') && at - spaces < 8 {
        at += 1;
    }
    // Markdown: `**Password:** x`.
    if text.bytes()[at..].starts_with(b"** ") || text.bytes()[at..].starts_with(b"* ") {
        at += 1 + usize::from(text.byte(at + 1) == b'*') + 1;
    }
    let escaped = text.byte(at) == b'\\' && matches!(text.byte(at + 1), b'"' | b'\'');
    at += usize::from(escaped);
    let quote = text.byte(at);
    let quoted = matches!(quote, b'"' | b'\'' | b'`');
    at += usize::from(quoted);
    let rest = text.bytes().get(at..)?;
    let rest = &rest[..rest.len().min(VALUE_BYTES_MAX)];
    // What is cut here has too many signs of assignment for a value.
    let cut = memchr::memchr_iter(b'=', rest).nth(EQUALS_SIGNS_MAX + 1);
    let rest = &rest[..cut.filter(|_| !quoted).unwrap_or(rest.len())];
    let end = if quoted {
        rest.iter()
            .position(|b| *b == quote || *b == b'\n' || escaped && *b == b'\\')?
    } else {
        let stop = |b: &u8| {
            *b <= b' '
                || matches!(
                    b,
                    b'"' | b'\'' | b'`' | b',' | b';' | b'<' | b'>' | b'|' | b'\\'
                )
        };
        let in_query = |b: &u8| *b == b'&';
        rest.iter()
            .position(|b| stop(b) || in_query(b))
            .unwrap_or(rest.len())
    };
    let mut end = at + end;
    while !quoted && end > at {
        match text.byte_before(end) {
            // `auth[2]` ends with its bracket.
            b']' if memchr::memchr(b'[', &text.bytes()[at..end]).is_some() => break,
            b'.' | b')' | b']' | b'}' | b':' | b'?' => end -= 1,
            _ => break,
        }
    }
    (end > at && text.text.is_char_boundary(end)).then_some(SecretValue {
        span: at..end,
        quoted,
    })
}

/// The `value` of a `secret` as found, when it looks like one.
pub(super) fn accept_secret(
    text: &Text<'_>,
    value: &SecretValue,
    secret: SecretKind,
    style: SecretStyle,
) -> Option<FoundValue> {
    let bytes = &text.bytes()[value.span.clone()];
    let bytes_min = match secret {
        SecretKind::Password => 4,
        SecretKind::Token => 8,
    };
    if bytes.len() < bytes_min {
        return None;
    }
    let kinds = CharKinds::of(bytes);
    if kinds.space {
        return None;
    }
    let plausible = match secret {
        SecretKind::Password if style.cell && kinds.lower && kinds.inner_uppers > 0 => true,
        // A word alone is as often a value of a form, a type or a function.
        SecretKind::Password if value.quoted && !style.named_like_code => {
            kinds.digit || kinds.symbol || kinds.lower && kinds.upper || bytes.len() >= 6
        }
        SecretKind::Password if style.prose => {
            kinds.digit && (kinds.lower || kinds.upper)
                || kinds.symbol && kinds.lower && bytes.len() >= 8 && kinds.strong
                || kinds.lower && kinds.inner_uppers >= 3 && bytes.len() >= 8
        }
        SecretKind::Password => kinds.digit || kinds.strong,
        SecretKind::Token => kinds.digit && (kinds.lower || kinds.upper) && bytes.len() >= 10,
    };
    let accepted = plausible && !is_placeholder(bytes) && !is_code(bytes, value.quoted);
    accepted.then(|| FoundValue {
        class: if is_vendor_key(text, &value.span) {
            Class::ApiKey
        } else {
            Class::Credential
        },
        span: value.span.clone(),
        by_context: true,
    })
}

/// Whether form and name together are those of a vendor's key: those of AWS, Azure and Twilio have
/// no prefix to know them by.
fn is_vendor_key(text: &Text<'_>, span: &Range<usize>) -> bool {
    const NEAR_BYTES_MAX: usize = 96;
    let value = &text.bytes()[span.clone()];
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let names: &[&str] = match value.len() {
        32 if value.iter().all(u8::is_ascii_hexdigit) => &["twilio"],
        40 if value.iter().all(base64) && !value.iter().all(u8::is_ascii_hexdigit) => {
            &["secretaccesskey", "awssecret", "secretkey", "aws"]
        }
        88 if value.ends_with(b"==") && value[..86].iter().all(base64) => {
            &["accountkey", "accesskey", "azure", "storage"]
        }
        _ => return false,
    };
    let start = char_boundary_before(text.text, span.start.saturating_sub(NEAR_BYTES_MAX));
    let header = text.text[..span.start]
        .split('\n')
        .next()
        .unwrap_or_default();
    let header = &header[..char_boundary_before(header, header.len().min(NEAR_BYTES_MAX))];
    let near = [
        &text.text[start..span.start],
        header,
        text.names.own,
        text.names.parent,
    ];
    near.into_iter().any(|part| {
        let plain: String = part
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        names.iter().any(|name| plain.contains(name))
    })
}
