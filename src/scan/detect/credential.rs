//! Passwords, tokens and keys that only their names give away: `password = ...`, `"api_key": ...`.

use std::ops::Range;

use crate::scan::{
    class::Class,
    context::{Text, char_boundary_before, last_word_hints},
    finding::FoundValue,
    lexicon::{self, Hints},
};
use label::LabelName;
use value::{EQUALS_SIGNS_MAX, SecretStyle, SecretValue, accept_secret, value_after};

mod char_kinds;
mod label;
pub(in crate::scan) mod prose;
mod value;

/// Bytes of a name before `=` or `:` at most.
const NAME_BYTES_MAX: usize = 40;

/// Bytes of a value at most.
const VALUE_BYTES_MAX: usize = 512;

/// What is assigned by the `=` or `:` at `sign`, when what it is assigned to is a secret.
pub(in crate::scan) fn assigned_secret(text: &Text<'_>, sign: usize) -> Option<FoundValue> {
    let named = LabelName::before(text, sign)?;
    let secret = named.secret_kind(text)?;
    let mut at = sign + 1;
    // `:=`, `=>`, `==`: a comparison assigns nothing.
    match (text.byte(sign), text.byte(at)) {
        (b':', b'=') | (b'=', b'>') => at += 1,
        (b'=', b'=') | (b':', b':') => return None,
        _ => {}
    }
    if matches!(text.byte_before(sign), b'!' | b'<' | b'>' | b'=' | b':') {
        return None;
    }
    let tight = at == sign + 1 && !text.byte(at).is_ascii_whitespace();
    let value = value_after(text, at)?;
    // A row of assignments is no value; looking at each would cost as much as all of them.
    let assignments = text.bytes()[value.span.clone()]
        .split(|b| *b == b'=')
        .count();
    if !value.quoted && assignments > EQUALS_SIGNS_MAX {
        return None;
    }
    // `key: KeyFlags = 4`: what is assigned stands after the type.
    let rest = &text.bytes()[value.span.end..];
    if text.byte(sign) == b':' && !value.quoted && rest.starts_with(b" = ") {
        return None;
    }
    let prose = text.byte(sign) == b':' && !tight && !value.quoted;
    let named_like_code = text.byte_before(named.start) == b'.';
    accept_secret(
        text,
        &value,
        secret,
        SecretStyle {
            prose,
            named_like_code,
            cell: false,
        },
    )
}

/// The password that is glued to the option `-p` at `word`.
pub(in crate::scan) fn glued_password(text: &Text<'_>, word: &Range<usize>) -> Option<FoundValue> {
    const COMMAND_BYTES_MAX: usize = 160;
    let value = value_after(text, word.end)?;
    let found = accept_secret(text, &value, SecretKind::Password, SecretStyle::CELL)?;
    let start = word.start.saturating_sub(COMMAND_BYTES_MAX);
    let before = &text.bytes()[start..word.start];
    let line = memchr::memrchr(b'\n', before).map_or(before, |newline| &before[newline..]);
    let client = [&b"mysql"[..], b"mariadb", b"sshpass", b"mongo"];
    let named = client
        .iter()
        .any(|name| memchr::memmem::find(line, name).is_some());
    named.then_some(found)
}

/// The text of the element that the `>` at `sign` opens, when its name is one of a secret.
pub(in crate::scan) fn element_secret(text: &Text<'_>, sign: usize) -> Option<FoundValue> {
    let window = &text.bytes()[sign.saturating_sub(NAME_BYTES_MAX)..sign];
    let open = memchr::memrchr(b'<', window)?;
    let name = std::str::from_utf8(&window[open + 1..]).ok()?;
    let secret = secret_kind(last_word_hints(name))?;
    let rest = text.bytes().get(sign + 1..)?;
    let rest = &rest[..rest.len().min(VALUE_BYTES_MAX)];
    let value = SecretValue {
        span: sign + 1..sign + 1 + memchr::memchr(b'<', rest)?,
        quoted: true,
    };
    accept_secret(text, &value, secret, SecretStyle::PLAIN)
}

/// The cells of the table that the text is, below headers that name secrets.
pub(in crate::scan) fn column_secrets(text: &Text<'_>, out: &mut Vec<FoundValue>) {
    let Some(columns) = text.columns() else {
        return;
    };
    let secrets: Vec<Option<SecretKind>> = columns
        .hints
        .iter()
        .map(|hints| secret_kind(*hints))
        .collect();
    if secrets.iter().all(Option::is_none) {
        return;
    }
    let style = SecretStyle::CELL;
    for row in columns.rows(text.text) {
        for (span, secret) in row.into_iter().zip(&secrets) {
            let quoted = true;
            let found =
                secret.and_then(|s| accept_secret(text, &SecretValue { span, quoted }, s, style));
            out.extend(found);
        }
    }
}

/// The values of an `INSERT` whose word `VALUES` is at `word`, below columns that name secrets.
pub(in crate::scan) fn inserted_secrets(
    text: &Text<'_>,
    word: &Range<usize>,
    out: &mut Vec<FoundValue>,
) {
    const COLUMNS_BYTES_MAX: usize = 256;
    let start = char_boundary_before(text.text, word.start.saturating_sub(COLUMNS_BYTES_MAX));
    let before = text.text[start..word.start].trim_end();
    let names = before
        .strip_suffix(')')
        .and_then(|inner| inner.rsplit_once('('));
    let Some((_, names)) = names else {
        return;
    };
    let secrets: Vec<Option<SecretKind>> = names
        .split(',')
        .map(|name| secret_kind(last_word_hints(name)))
        .collect();
    if secrets.iter().all(Option::is_none) {
        return;
    }
    let rest = &text.text[word.end
        ..char_boundary_before(text.text, text.text.len().min(word.end + VALUE_BYTES_MAX))];
    let Some(open) = rest.find('(') else {
        return;
    };
    let (mut column, mut quoted) = (0, None);
    for (index, byte) in rest.bytes().enumerate().skip(open + 1) {
        let here = word.end + index;
        match (byte, quoted) {
            (b'\'', None) => quoted = Some(here + 1),
            (b'\'', Some(start)) => {
                let value = SecretValue {
                    span: start..here,
                    quoted: true,
                };
                let secret = secrets.get(column).copied().flatten();
                out.extend(secret.and_then(|s| accept_secret(text, &value, s, SecretStyle::PLAIN)));
                quoted = None;
            }
            (b',', None) => column += 1,
            (b')', None) => return,
            _ => {}
        }
    }
}

/// The secret after `Bearer` or `Basic` of an authorization header; `word` is the scheme.
pub(in crate::scan) fn authorization_secret(
    text: &Text<'_>,
    word: &Range<usize>,
) -> Option<FoundValue> {
    const TOKEN_BYTES_MIN: usize = 16;
    let value = value_after(text, word.end)?;
    let bytes = &text.bytes()[value.span.clone()];
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
    let mixed = bytes.iter().any(u8::is_ascii_digit) && bytes.iter().any(u8::is_ascii_alphabetic);
    let accepted = bytes.len() >= TOKEN_BYTES_MIN
        && bytes.iter().all(token)
        && mixed
        && !char_kinds::is_placeholder(bytes);
    accepted.then_some(FoundValue::by_value(Class::Credential, value.span))
}

/// Whether the text below the key `own` may be a secret as a whole.
pub(in crate::scan) fn may_be_keyed_secret(own: &str) -> bool {
    is_named_by_sibling(own) || lexicon::prefilter::may_name_secret(own)
}

/// Whether a sibling names what stands below the key `own`: `{"name": "password", "value": "x"}`.
fn is_named_by_sibling(own: &str) -> bool {
    matches!(own, "value" | "default" | "content")
}

/// The text as a whole, when the key above it names a secret.
pub(in crate::scan) fn keyed_secret(text: &Text<'_>) -> Option<FoundValue> {
    let name = if is_named_by_sibling(text.names.own) {
        text.names.sibling
    } else {
        text.names.own
    };
    if !lexicon::prefilter::may_name_secret(name) {
        return None;
    }
    let trimmed = text.text.trim();
    if trimmed.len() > VALUE_BYTES_MAX {
        return None;
    }
    let secret = secret_kind(last_word_hints(name))?;
    let start = text.text.len() - text.text.trim_start().len();
    let value = SecretValue {
        span: start..start + trimmed.len(),
        quoted: true,
    };
    accept_secret(text, &value, secret, SecretStyle::PLAIN)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SecretKind {
    Password,
    Token,
}

fn secret_kind(named: Hints) -> Option<SecretKind> {
    if named.intersects(Hints::OTHER) {
        None
    } else if named.intersects(Hints::PASSWORD) {
        Some(SecretKind::Password)
    } else if named.intersects(Hints::TOKEN) {
        Some(SecretKind::Token)
    } else {
        None
    }
}
