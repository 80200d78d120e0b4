//! Passwords, tokens and keys that only their names give away: `password = ...`, `"api_key": ...`.

use std::ops::Range;

use super::{
    class::Class,
    context::{Text, ending, floor},
    lexicon::Hints,
    search::Found,
};

/// Bytes of a name before `=` or `:` at most.
const NAME_BYTES_MAX: usize = 40;
/// Bytes of a value at most.
const VALUE_BYTES_MAX: usize = 512;

/// Signs of assignment in a value at most; padding of base64 has two.
const ASSIGNMENTS_MAX: usize = 5;

/// What is assigned by the `=` or `:` at `sign`, when what it is assigned to is a secret.
pub(super) fn assigned(text: &Text<'_>, sign: usize) -> Option<Found> {
    let (named, name_start) = name_before(text, sign)?;
    let secret = secret(named)?;
    let mut at = sign + 1;
    // `:=`, `=>`, `==`: a comparison assigns nothing.
    match (text.byte(sign), text.byte(at)) {
        (b':', b'=') | (b'=', b'>') => at += 1,
        (b'=', b'=') | (b':', b':') => return None,
        _ => {}
    }
    if matches!(text.before(sign), b'!' | b'<' | b'>' | b'=' | b':') {
        return None;
    }
    let tight = at == sign + 1 && !text.byte(at).is_ascii_whitespace();
    let value = value_after(text, at)?;
    // A row of assignments is no value; looking at each would cost as much as all of them.
    let assignments = text.bytes()[value.span.clone()]
        .split(|b| *b == b'=')
        .count();
    if !value.quoted && assignments > ASSIGNMENTS_MAX {
        return None;
    }
    let prose = text.byte(sign) == b':' && !tight && !value.quoted;
    let named_like_code = text.before(name_start) == b'.';
    accept(
        text,
        &value,
        secret,
        Style {
            prose,
            named_like_code,
        },
    )
}

/// What is said to be a secret by a verb: `password is hunter2`; `verb` is the span of the verb.
pub(super) fn told(text: &Text<'_>, verb: &Range<usize>) -> Option<Found> {
    let (named, start) = name_before(text, verb.start)?;
    let secret = secret(named)?;
    if text.before(start) == b'.' {
        return None;
    }
    let value = value_after(text, verb.end)?;
    accept(
        text,
        &value,
        secret,
        Style {
            prose: true,
            named_like_code: false,
        },
    )
}

/// The secret after `Bearer` or `Basic` of an authorization header; `word` is the scheme.
pub(super) fn authorization(text: &Text<'_>, word: &Range<usize>) -> Option<Found> {
    const TOKEN_BYTES_MIN: usize = 16;
    let value = value_after(text, word.end)?;
    let bytes = &text.bytes()[value.span.clone()];
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(b);
    let mixed = bytes.iter().any(u8::is_ascii_digit) && bytes.iter().any(u8::is_ascii_alphabetic);
    let accepted =
        bytes.len() >= TOKEN_BYTES_MIN && bytes.iter().all(token) && mixed && !is_stand_in(bytes);
    accepted.then_some(Found {
        class: Class::Credential,
        span: value.span,
        by_context: false,
    })
}

/// The text as a whole, when the key above it names a secret.
pub(super) fn of_key(text: &Text<'_>) -> Option<Found> {
    let trimmed = text.text.trim();
    if trimmed.len() > VALUE_BYTES_MAX {
        return None;
    }
    let secret = secret(ending(text.names.own))?;
    let start = text.text.len() - text.text.trim_start().len();
    let value = Value {
        span: start..start + trimmed.len(),
        quoted: true,
    };
    accept(
        text,
        &value,
        secret,
        Style {
            prose: false,
            named_like_code: false,
        },
    )
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Secret {
    Password,
    Token,
}

#[derive(Debug)]
struct Value {
    span: Range<usize>,
    quoted: bool,
}

/// How a secret is written down.
#[derive(Clone, Copy)]
struct Style {
    /// In a sentence, where most words after a colon are no secrets.
    prose: bool,
    /// As a member of something: `form.password = field.value`.
    named_like_code: bool,
}

fn secret(named: Hints) -> Option<Secret> {
    if named.any(Hints::OTHER) {
        None
    } else if named.any(Hints::PASSWORD) {
        Some(Secret::Password)
    } else if named.any(Hints::TOKEN) {
        Some(Secret::Token)
    } else {
        None
    }
}

/// What the name right before `at` says, and where it begins.
fn name_before(text: &Text<'_>, at: usize) -> Option<(Hints, usize)> {
    let bytes = text.bytes();
    let mut end = at;
    while at - end < 4
        && matches!(
            text.before(end),
            b' ' | b'"' | b'\'' | b']' | b'\\' | b'`' | b'*' | b':' | b'>'
        )
    {
        end -= 1;
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
    let words = text.text.get(floor(text.text, start)..end)?;
    let masked = text.before(start) == b'[' && text.byte(end) == b']';
    if masked && !words.bytes().any(|b| b.is_ascii_lowercase()) {
        return None;
    }
    let last = words
        .rfind(' ')
        .map_or(words.len(), |space| words.len() - space - 1);
    Some((ending(words), end - last))
}

/// The value that begins after spaces and an opening quote at `at`.
fn value_after(text: &Text<'_>, mut at: usize) -> Option<Value> {
    let spaces = at;
    while matches!(text.byte(at), b' ' | b'\t') && at - spaces < 8 {
        at += 1;
    }
    let escaped = text.byte(at) == b'\\' && matches!(text.byte(at + 1), b'"' | b'\'');
    at += usize::from(escaped);
    let quote = text.byte(at);
    let quoted = matches!(quote, b'"' | b'\'' | b'`');
    at += usize::from(quoted);
    let rest = text.bytes().get(at..)?;
    let rest = &rest[..rest.len().min(VALUE_BYTES_MAX)];
    let end = if quoted {
        rest.iter()
            .position(|b| *b == quote || *b == b'\n' || escaped && *b == b'\\')?
    } else {
        let stop = |b: &u8| {
            b.is_ascii_whitespace()
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
    while !quoted && end > at && matches!(text.before(end), b'.' | b')' | b']' | b'}' | b':' | b'?')
    {
        end -= 1;
    }
    (end > at && text.text.is_char_boundary(end)).then_some(Value {
        span: at..end,
        quoted,
    })
}

fn accept(text: &Text<'_>, value: &Value, secret: Secret, style: Style) -> Option<Found> {
    let bytes = &text.bytes()[value.span.clone()];
    let kinds = Kinds::of(bytes);
    let long_enough = match secret {
        Secret::Password => bytes.len() >= 4,
        Secret::Token => bytes.len() >= 8,
    };
    if !long_enough || kinds.space || is_stand_in(bytes) || is_code(bytes, value.quoted) {
        return None;
    }
    let plausible = match secret {
        // A word alone is as often a value of a form, a type or a function.
        Secret::Password if value.quoted && !style.named_like_code => {
            kinds.digit || kinds.symbol || kinds.lower && kinds.upper || bytes.len() >= 6
        }
        Secret::Password if style.prose => {
            kinds.digit && (kinds.lower || kinds.upper)
                || kinds.symbol && kinds.lower && bytes.len() >= 8 && kinds.strong
        }
        Secret::Password => kinds.digit || kinds.strong,
        Secret::Token => kinds.digit && (kinds.lower || kinds.upper) && bytes.len() >= 10,
    };
    plausible.then_some(Found {
        class: Class::Credential,
        span: value.span.clone(),
        by_context: false,
    })
}

/// Which kinds of characters a value has.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says one thing of a text"
)]
struct Kinds {
    digit: bool,
    lower: bool,
    upper: bool,
    symbol: bool,
    /// Symbols that names and paths do not have.
    strong: bool,
    space: bool,
}

impl Kinds {
    fn of(bytes: &[u8]) -> Self {
        let any = |test: fn(&u8) -> bool| bytes.iter().any(test);
        Self {
            digit: any(u8::is_ascii_digit),
            lower: any(u8::is_ascii_lowercase),
            upper: any(u8::is_ascii_uppercase),
            symbol: any(|b| !b.is_ascii_alphanumeric()),
            strong: any(|b| b"!@#$%^&*+?~".contains(b)),
            space: any(u8::is_ascii_whitespace),
        }
    }
}

/// Whether a value stands for one that is to be filled in, or has been taken out.
fn is_stand_in(bytes: &[u8]) -> bool {
    const WORDS: [&[u8]; 17] = [
        b"your",
        b"xxx",
        b"redacted",
        b"placeholder",
        b"change_me",
        b"changeme",
        b"replace",
        b"insert",
        b"todo",
        b"<",
        b"${",
        b"{{",
        b"%(",
        b"process.env",
        b"os.environ",
        b"getenv",
        b"secretref",
    ];
    const WHOLE: [&[u8]; 22] = [
        b"null",
        b"none",
        b"true",
        b"false",
        b"undefined",
        b"string",
        b"required",
        b"optional",
        b"hidden",
        b"password",
        b"passwort",
        b"secret",
        b"token",
        b"unset",
        b"empty",
        b"masked",
        b"encrypted",
        b"missing",
        b"invalid",
        b"expired",
        b"number",
        b"bearer",
    ];
    let same = bytes.iter().all(|b| b == &bytes[0]);
    let masked = bytes.first() == Some(&b'[') && bytes.last() == Some(&b']');
    let stars = bytes
        .iter()
        .filter(|b| matches!(b, b'*' | b'.' | 0x80..))
        .count()
        * 2
        > bytes.len();
    same || masked
        || stars && !bytes.iter().any(u8::is_ascii_digit)
        || bytes.ends_with(b"***")
        || WHOLE.iter().any(|word| bytes.eq_ignore_ascii_case(word))
        || WORDS.iter().any(|word| {
            bytes
                .windows(word.len())
                .any(|window| window.eq_ignore_ascii_case(word))
        })
}

/// Whether a value is an expression instead of a literal.
fn is_code(bytes: &[u8], quoted: bool) -> bool {
    let begins = bytes.first().copied().unwrap_or(0);
    let variable = matches!(begins, b'$' | b'%' | b'{' | b'<' | b'(' | b'&') && !quoted
        || begins == b'$'
            && bytes
                .get(1)
                .is_some_and(|b| b.is_ascii_uppercase() || matches!(b, b'{' | b'('));
    if quoted {
        let address = bytes.starts_with(b"http")
            || bytes.starts_with(b"arn:")
            || bytes.starts_with(b"vault:");
        let path = matches!(begins, b'/' | b'.')
            && bytes.split(|b| *b == b'/').count() > 2
            && !bytes.contains(&b'=');
        return variable
            || address
            || path
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_lowercase() || matches!(b, b'/' | b'.' | b'_' | b'-'));
    }
    let call = bytes.contains(&b'(') || bytes.contains(&b'[') && bytes.contains(&b']');
    let member = bytes.split(|b| *b == b'.').count() > 1
        && bytes.split(|b| *b == b'.').all(|part| {
            part.first()
                .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
                && part.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_')
        });
    let identifier = bytes.iter().all(|b| b.is_ascii_alphabetic() || *b == b'_');
    variable || call || member || identifier || begins == b'/' || bytes.starts_with(b"http")
}
