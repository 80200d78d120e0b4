//! Escape sequences in text that is no document: those of JSON and of programming languages,
//! percent-encoding, HTML entities, colours of terminals.
//!
//! A text may have been escaped several times, so the signs of one escape repeat (`\\\n`, `%2520`,
//! `&amp;nbsp;`): all of that is one unit, which stands for one character.

use std::char::REPLACEMENT_CHARACTER;

/// The first character of what colours text in a terminal.
const ESC: u8 = 0x1b;
/// Parameters of a terminal sequence at most, bytes.
const PARAMETERS_MAX: usize = 32;
/// Longest body of an HTML entity, bytes: `#x10FFFF`, `NewLine`.
const ENTITY_BYTES_MAX: usize = 10;

/// The entities that stand around values or in them.
const ENTITIES: [(&str, char); 25] = [
    ("NewLine", '\n'),
    ("Tab", '\t'),
    ("apos", '\''),
    ("colon", ':'),
    ("commat", '@'),
    ("emsp", '\u{2003}'),
    ("ensp", '\u{2002}'),
    ("equals", '='),
    ("gt", '>'),
    ("hyphen", '-'),
    ("ldquo", '\u{201c}'),
    ("lowbar", '_'),
    ("lpar", '('),
    ("lsquo", '\u{2018}'),
    ("lt", '<'),
    ("mdash", '\u{2014}'),
    ("nbsp", '\u{a0}'),
    ("ndash", '\u{2013}'),
    ("period", '.'),
    ("plus", '+'),
    ("quot", '"'),
    ("rdquo", '\u{201d}'),
    ("rpar", ')'),
    ("rsquo", '\u{2019}'),
    ("sol", '/'),
];

/// What begins with a sign that may begin an escape.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::scan) enum EscapeRead {
    /// An escape of so many bytes stands for a character.
    Escape(char, usize),
    /// So many bytes stand for themselves.
    Plain(usize),
}

/// Where the signs are that may begin an escape.
#[derive(Clone, Copy, Debug)]
pub(in crate::scan) struct EscapeSigns {
    terminal: bool,
}

impl EscapeSigns {
    /// The signs of `text`; `None` where it has none, as is usual.
    pub(in crate::scan) fn of(text: &str) -> Option<Self> {
        let terminal = memchr::memchr(ESC, text.as_bytes()).is_some();
        let signs = Self { terminal };
        (terminal || signs.next_escape(text.as_bytes()).is_some()).then_some(signs)
    }

    /// The next of them in `bytes`, a part of the text.
    pub(in crate::scan) fn next_escape(self, bytes: &[u8]) -> Option<usize> {
        if self.terminal {
            return bytes
                .iter()
                .position(|b| matches!(*b, b'\\' | b'%' | b'&' | ESC));
        }
        memchr::memchr3(b'\\', b'%', b'&', bytes)
    }
}

/// Reads the sign at the start of `rest`.
pub(in crate::scan) fn read_escape(rest: &str) -> EscapeRead {
    match rest.as_bytes().first() {
        Some(b'\\') => read_backslash(rest),
        Some(b'%') => read_percent(rest),
        Some(b'&') => read_entity(rest),
        Some(&ESC) => read_terminal(rest),
        Some(_) | None => EscapeRead::Plain(1),
    }
}

/// The code unit of UTF-16 whose four hexadecimal digits follow the `\u` at the start of `rest`; the
/// character it is with the next one where it is half of one.
pub(in crate::scan) fn read_utf16(rest: &str) -> Option<(char, usize)> {
    let unit = |rest: &str| {
        let slashes = count_backslashes(rest);
        let digits = rest[slashes..].strip_prefix('u').filter(|_| slashes > 0)?;
        Some((hex(digits, 4)?, slashes + 5))
    };
    let (first, len) = unit(rest)?;
    if let 0xD800..0xDC00 = first
        && let Some((low @ 0xDC00..0xE000, more)) = unit(&rest[len..])
    {
        let code = 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00);
        return Some((char_or_replacement(code), len + more));
    }
    Some((char_or_replacement(first), len))
}

fn read_backslash(rest: &str) -> EscapeRead {
    let slashes = count_backslashes(rest);
    let body = &rest[slashes..];
    let simple = match body.as_bytes().first() {
        Some(b'a') => '\u{7}',
        Some(b'b') => '\u{8}',
        Some(b'e') => '\u{1b}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'v') => '\u{b}',
        Some(b'0') if !body[1..].starts_with(|c: char| c.is_ascii_digit()) => '\0',
        Some(sign) if sign.is_ascii_punctuation() => char::from(*sign),
        Some(_) | None => {
            let longer = read_utf16(rest)
                .or_else(|| code_point(body).map(|(c, len)| (c, slashes + len)))
                .or_else(|| escaped_char(rest, backslash_byte));
            return longer.map_or(EscapeRead::Plain(slashes), |(c, len)| {
                EscapeRead::Escape(c, len)
            });
        }
    };
    EscapeRead::Escape(simple, slashes + 1)
}

fn count_backslashes(rest: &str) -> usize {
    rest.bytes().take_while(|b| *b == b'\\').count()
}

/// `u{1F600}` and `U0001F600`.
fn code_point(body: &str) -> Option<(char, usize)> {
    const LONG: usize = 8;
    if let Some(digits) = body.strip_prefix('U') {
        return Some((char_or_replacement(hex(digits, LONG)?), 1 + LONG));
    }
    let digits = body.strip_prefix("u{")?;
    let len = digits.bytes().take(LONG).position(|b| b == b'}')?;
    Some((char_or_replacement(hex(digits, len)?), len + 3))
}

/// The byte that `\x41` or `\101` is.
fn backslash_byte(rest: &str) -> Option<(u8, usize)> {
    let slashes = Some(count_backslashes(rest)).filter(|slashes| *slashes > 0)?;
    let body = &rest[slashes..];
    if let Some(digits) = body.strip_prefix('x') {
        return Some((u8::try_from(hex(digits, 2)?).ok()?, slashes + 3));
    }
    let digits = body.get(..3)?;
    let octal = digits.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let byte = octal.then(|| u8::from_str_radix(digits, 8).ok())??;
    Some((byte, slashes + 3))
}

fn read_percent(rest: &str) -> EscapeRead {
    if let Some((c, len)) = escaped_char(rest, percent_byte) {
        return EscapeRead::Escape(c, len);
    }
    match 1 + count_percents(&rest[1..]) {
        1 => EscapeRead::Plain(1),
        len => EscapeRead::Escape('%', len),
    }
}

/// How far `rest` is the rest of percent signs that were escaped themselves.
fn count_percents(rest: &str) -> usize {
    let pairs = rest.as_bytes().chunks_exact(2);
    2 * pairs.take_while(|pair| *pair == b"25").count()
}

fn percent_byte(rest: &str) -> Option<(u8, usize)> {
    let inside = rest.strip_prefix('%')?;
    let percents = count_percents(inside);
    let byte = u8::try_from(hex(&inside[percents..], 2)?).ok()?;
    Some((byte, 1 + percents + 2))
}

/// The character whose bytes are escaped one by one: one of UTF-8, else of Latin-1.
fn escaped_char(rest: &str, read: impl Fn(&str) -> Option<(u8, usize)>) -> Option<(char, usize)> {
    let (first, len) = read(rest)?;
    let more = match first {
        0xC2..=0xDF => 1,
        0xE0..=0xEF => 2,
        0xF0..=0xF4 => 3,
        _ => 0,
    };
    let (mut all, mut end) = ([first, 0, 0, 0], len);
    for place in all.iter_mut().take(more + 1).skip(1) {
        let Some((byte, width)) = read(&rest[end..]) else {
            return Some((char::from(first), len));
        };
        *place = byte;
        end += width;
    }
    let utf8 = std::str::from_utf8(&all[..=more]).ok();
    match utf8.and_then(|utf8| utf8.chars().next()) {
        Some(c) => Some((c, end)),
        None => Some((char::from(first), len)),
    }
}

fn read_entity(rest: &str) -> EscapeRead {
    const AMP: &str = "amp;";
    let bytes = rest.as_bytes()[1..].chunks_exact(AMP.len());
    let amps = 1 + AMP.len() * bytes.take_while(|it| *it == AMP.as_bytes()).count();
    let after = &rest[amps..];
    let end = after.bytes().take(ENTITY_BYTES_MAX).position(|b| b == b';');
    match end.and_then(|end| Some((entity_char(&after[..end])?, end))) {
        Some((c, end)) => EscapeRead::Escape(c, amps + end + 1),
        None if amps > 1 => EscapeRead::Escape('&', amps),
        None => EscapeRead::Plain(1),
    }
}

fn entity_char(body: &str) -> Option<char> {
    let Some(number) = body.strip_prefix('#') else {
        let at = ENTITIES.binary_search_by_key(&body, |(name, _)| name);
        return at.ok().map(|at| ENTITIES[at].1);
    };
    if let Some(digits) = number.strip_prefix(['x', 'X']) {
        return hex(digits, digits.len()).map(char_or_replacement);
    }
    let decimal = number.bytes().all(|b| b.is_ascii_digit());
    decimal.then(|| number.parse().ok().map(char_or_replacement))?
}

/// `ESC [ 31 m` colours what follows: as much of a boundary as a space.
fn read_terminal(rest: &str) -> EscapeRead {
    let Some(inside) = rest[1..].strip_prefix('[') else {
        return EscapeRead::Plain(1);
    };
    let parameter = |b: &u8| matches!(b, b' '..=b'?');
    let len = inside.bytes().take(PARAMETERS_MAX).take_while(parameter);
    let len = len.count();
    match inside.as_bytes().get(len) {
        Some(b'@'..=b'~') => EscapeRead::Escape(' ', 2 + len + 1),
        Some(_) | None => EscapeRead::Plain(1),
    }
}

/// The number that the first `len` bytes of `text` are, of hexadecimal digits only.
fn hex(text: &str, len: usize) -> Option<u32> {
    let digits = text.get(..len)?;
    let all = digits.bytes().all(|b| b.is_ascii_hexdigit());
    all.then(|| u32::from_str_radix(digits, 16).ok())?
}

fn char_or_replacement(code: u32) -> char {
    char::from_u32(code).unwrap_or(REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_escaped_is_one_character() {
        for (written, c) in [
            (r"\n", '\n'),
            (r"\\\\n", '\n'),
            (r#"\""#, '"'),
            (r"\/", '/'),
            (r"\_", '_'),
            (r"\u00a0", '\u{a0}'),
            (r"\\u00A0", '\u{a0}'),
            (r"\ud83d\ude00", '\u{1f600}'),
            (r"\\ud83d\\ude00", '\u{1f600}'),
            (r"\u{1F600}", '\u{1f600}'),
            (r"\U0001f600", '\u{1f600}'),
            (r"\xa0", '\u{a0}'),
            (r"\xc2\xa0", '\u{a0}'),
            (r"\342\200\234", '\u{201c}'),
            (r"\0", '\0'),
            ("%0A", '\n'),
            ("%250a", '\n'),
            ("%C2%A0", '\u{a0}'),
            ("%25", '%'),
            ("&quot;", '"'),
            ("&amp;nbsp;", '\u{a0}'),
            ("&amp;", '&'),
            ("&#64;", '@'),
            ("&#x2019;", '\u{2019}'),
            ("\u{1b}[1;31m", ' '),
        ] {
            assert_eq!(
                read_escape(written),
                EscapeRead::Escape(c, written.len()),
                "{written}"
            );
        }
        for written in [
            "\\", r"\\s", r"\users", r"\xampp", "%", "% d", "%zz", "&", "&name", "&& x;", "&zz;",
            "\u{1b}", "\u{1b}[",
        ] {
            assert!(
                matches!(read_escape(written), EscapeRead::Plain(_)),
                "{written}"
            );
        }
    }

    #[test]
    fn entities_are_in_order() {
        assert!(ENTITIES.is_sorted());
    }
}
