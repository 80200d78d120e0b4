//! Secrets that say by themselves what they are: JWTs and private keys.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::scan::{class::Class, context::Text, finding::FoundValue};

/// Shorter tokens than this have digits or signs.
pub(in crate::scan) const TOKEN_BYTES_MIN: usize = 20;

/// A JSON web token or its encrypted kin: parts of base64url, the first a JSON object with `alg`.
pub(in crate::scan) fn find_jwt(text: &Text<'_>, start: usize) -> Option<FoundValue> {
    const PART_BYTES_MAX: usize = 16 * 1024;
    const HEADER_BYTES_MIN: usize = 12;
    let bytes = text.bytes();
    if !bytes[start..].starts_with(b"eyJ") && !bytes[start..].starts_with(b"ewo") {
        return None;
    }
    let part = |from: usize| {
        let rest = &bytes[from.min(bytes.len())..bytes.len().min(from + PART_BYTES_MAX)];
        from + rest
            .iter()
            .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')))
            .unwrap_or(rest.len())
    };
    let header = part(start);
    if header - start < HEADER_BYTES_MIN || text.byte(header) != b'.' {
        return None;
    }
    let mut end = part(header + 1);
    let mut parts = 2;
    while parts < 5 && text.byte(end) == b'.' {
        let next = part(end + 1);
        if next == end + 1 && !(parts == 2 && end > header + 4) && text.byte(next) != b'.' {
            break;
        }
        (end, parts) = (next, parts + 1);
    }
    let decoded = URL_SAFE_NO_PAD.decode(&bytes[start..header]).ok()?;
    let object =
        decoded.first() == Some(&b'{') && decoded.windows(5).any(|window| window == b"\"alg\"");
    (object && parts >= 3).then_some(FoundValue::by_value(Class::Jwt, start..end))
}

/// Whether the body of a key is one of an example: something was left out, or stands for it.
fn is_placeholder_body(body: &[u8]) -> bool {
    const DISTINCT_MIN: u32 = 8;
    let seen = body
        .iter()
        .fold(0u128, |seen, byte| seen | 1 << (byte & 127));
    let has = |word: &[u8]| memchr::memmem::find(body, word).is_some();
    // A path is as long as a line of a key; it has no such mixture.
    let random = |line: &[u8]| {
        let count = |test: fn(&u8) -> bool| line.iter().filter(|b| test(b)).count();
        line.len() >= 24 && count(u8::is_ascii_uppercase) >= 3 && count(u8::is_ascii_lowercase) >= 3
    };
    let key = |b: &u8| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='));
    if !body.split(key).any(random) {
        return true;
    }
    seen.count_ones() < DISTINCT_MIN
        || [
            &b"..."[..],
            b"XXXX",
            b"xxxx",
            b"REDACTED",
            b"redacted",
            b"_KEY_",
            b"<",
        ]
        .into_iter()
        .any(has)
}

/// A private key in armour whose first dashes are at `start`.
pub(in crate::scan) fn find_private_key(text: &Text<'_>, start: usize) -> Option<FoundValue> {
    const LABEL_BYTES_MAX: usize = 64;
    const BODY_BYTES_MAX: usize = 64 * 1024;
    // That of Ed25519, the shortest, has 64.
    const KEY_CHARS_MIN: usize = 56;
    const RUN_CHARS_MIN: usize = 24;
    let bytes = text.bytes();
    let rest = bytes[start..].strip_prefix(b"-----BEGIN ")?;
    let label = &rest[..rest.len().min(LABEL_BYTES_MAX)];
    let close = memchr::memmem::find(label, b"-----")?;
    if !label[..close].ends_with(b"PRIVATE KEY") && &label[..close] != b"PGP PRIVATE KEY BLOCK" {
        return None;
    }
    let body = start + 11 + close + 5;
    let (mut at, mut chars, mut run, mut longest) = (body, 0, 0, 0);
    let stop = bytes.len().min(body + BODY_BYTES_MAX);
    while at < stop && !bytes[at..].starts_with(b"-----") {
        match bytes[at] {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' | b'=' => {
                (chars, run) = (chars + 1, run + 1);
                longest = longest.max(run);
            }
            // Lines may be folded, quoted, escaped or indented; armour may have headers.
            b' ' | b'\n' | b'\r' | b'\t' | b'\\' | b'-' | b',' | b':' | b'.' | b'>' | b'"'
            | b'\'' | b'#' | b'*' | b'|' | b'_' | b'<' | b'(' | b')' | b'@' => run = 0,
            _ => break,
        }
        at += 1;
    }
    // What is written about keys has words, none as long as a line of a key.
    let body = &bytes[body..at];
    if chars < KEY_CHARS_MIN || longest < RUN_CHARS_MIN || is_placeholder_body(body) {
        return None;
    }
    let tail = &bytes[at..bytes.len().min(at + LABEL_BYTES_MAX)];
    let end = if tail.starts_with(b"-----END ") {
        memchr::memmem::find(&tail[9..], b"-----").map_or(at, |close| at + 9 + close + 5)
    } else {
        at
    };
    Some(FoundValue::by_value(Class::PrivateKey, start..end))
}
