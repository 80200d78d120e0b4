//! Where the values of a JSON text end, while it is checked that they are values: one pass, nothing
//! decoded.
//!
//! What is found here to be JSON is JSON to serde_json too;
//! what is not, or is nested too deep for this, is left to serde_json, which can say why.

/// Nesting that is followed here; a bit of [`Nesting`] each.
const NESTING_MAX: u32 = u64::BITS;

/// The offset after the value that starts at `at`; `None` where it is no JSON, or nested too deep.
pub(in crate::mcp) fn value_end(json: &[u8], mut at: usize) -> Option<usize> {
    let mut nesting = Nesting::default();
    loop {
        at = match json.get(at)? {
            b'"' => string_end(json, at)?,
            b'{' => match skip_space(json, at + 1) {
                end if json.get(end) == Some(&b'}') => end + 1,
                key => {
                    nesting.open(ContainerKind::Object)?;
                    at = value_start(json, string_end(json, key)?)?;
                    continue;
                }
            },
            b'[' => match skip_space(json, at + 1) {
                end if json.get(end) == Some(&b']') => end + 1,
                element => {
                    nesting.open(ContainerKind::Array)?;
                    at = element;
                    continue;
                }
            },
            _ => scalar_end(json, at)?,
        };
        // A value has ended, and with it maybe some that it is the last part of.
        loop {
            let Some(inside) = nesting.innermost() else {
                return Some(at);
            };
            at = skip_space(json, at);
            match (json.get(at)?, inside) {
                (b'}', ContainerKind::Object) | (b']', ContainerKind::Array) => {
                    nesting.close();
                    at += 1;
                }
                (b',', ContainerKind::Object) => {
                    let key = skip_space(json, at + 1);
                    at = value_start(json, string_end(json, key)?)?;
                    break;
                }
                (b',', ContainerKind::Array) => {
                    at = skip_space(json, at + 1);
                    break;
                }
                _ => return None,
            }
        }
    }
}

/// The offset after the object that starts at `at` in `text`. For each of its members `value_end` is
/// given the key and the offset of the value, and says where that ends; `None` where something is no
/// JSON, where a key has an escape, or where `value_end` says so.
pub(in crate::mcp) fn object_end<'a>(
    text: &'a str,
    at: usize,
    mut value_end: impl FnMut(&'a str, usize) -> Option<usize>,
) -> Option<usize> {
    let json = text.as_bytes();
    if json.get(at) != Some(&b'{') {
        return None;
    }
    let mut at = skip_space(json, at + 1);
    if json.get(at) == Some(&b'}') {
        return Some(at + 1);
    }
    loop {
        let key = unescaped_string(text, at)?;
        let value = value_start(json, at + key.len() + 2)?;
        at = skip_space(json, value_end(key, value)?);
        match json.get(at)? {
            b'}' => return Some(at + 1),
            b',' => at = skip_space(json, at + 1),
            _ => return None,
        }
    }
}

/// The string that starts at `at` in `text`; `None` where there is none, or one with an escape.
pub(in crate::mcp) fn unescaped_string(text: &str, at: usize) -> Option<&str> {
    let json = text.as_bytes();
    if json.get(at) != Some(&b'"') {
        return None;
    }
    let end = skip_plain(json, at + 1);
    (json.get(end) == Some(&b'"')).then(|| &text[at + 1..end])
}

/// The offset after the string that starts at `at`; `None` where there is none.
fn string_end(json: &[u8], at: usize) -> Option<usize> {
    if json.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at = skip_plain(json, at);
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at = escape_end(json, at + 1)?,
            _ => return None,
        }
    }
}

/// The offset of the value whose key ends at `at`.
fn value_start(json: &[u8], at: usize) -> Option<usize> {
    let colon = skip_space(json, at);
    (json.get(colon) == Some(&b':')).then(|| skip_space(json, colon + 1))
}

/// The offset of the first byte from `at` on that is no white space.
pub(in crate::mcp) fn skip_space(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The offset of the first byte from `at` on that means something inside of a string, or may not be
/// there: a quote, a backslash, a control character.
pub(in crate::mcp) fn skip_plain(json: &[u8], mut at: usize) -> usize {
    while let Some(word) = json.get(at..).and_then(<[u8]>::first_chunk) {
        let marks = special_byte_mask(u64::from_le_bytes(*word));
        if marks != 0 {
            return at + marks.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let is_plain = |byte: &u8| *byte >= b' ' && !matches!(byte, b'"' | b'\\');
    while json.get(at).is_some_and(is_plain) {
        at += 1;
    }
    at
}

/// Marks the top bit of each byte of `word` that [`skip_plain`] stops at. Above the first it may
/// mark others too.
fn special_byte_mask(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // A byte that is less than another borrows from the next when that is subtracted.
    let less = |word: u64, than: u8| word.wrapping_sub(ONES * u64::from(than)) & !word;
    // This puts the quote right after the control characters, and swaps those among themselves.
    let swapped = word ^ (ONES * u64::from(b'"' ^ b' '));
    let backslash = word ^ (ONES * u64::from(b'\\'));
    (less(swapped, b' ' + 1) | less(backslash, 1)) & (ONES << 7)
}

fn escape_end(json: &[u8], at: usize) -> Option<usize> {
    match json.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => {
            let digits = json.get(at + 1..at + 5)?;
            digits.iter().all(u8::is_ascii_hexdigit).then_some(at + 5)
        }
        _ => None,
    }
}

/// The offset after the number or the word that starts at `at`.
fn scalar_end(json: &[u8], at: usize) -> Option<usize> {
    for word in ["true", "false", "null"] {
        if json[at..].starts_with(word.as_bytes()) {
            return Some(at + word.len());
        }
    }
    let mut at = at + usize::from(json[at] == b'-');
    at = match json.get(at)? {
        b'0' => at + 1,
        _ => digits_end(json, at)?,
    };
    if json.get(at) == Some(&b'.') {
        at = digits_end(json, at + 1)?;
    }
    if matches!(json.get(at), Some(b'e' | b'E')) {
        let sign = matches!(json.get(at + 1), Some(b'+' | b'-'));
        at = digits_end(json, at + 1 + usize::from(sign))?;
    }
    Some(at)
}

/// The offset after the digits that start at `at`, at least one.
fn digits_end(json: &[u8], at: usize) -> Option<usize> {
    let digits = json
        .get(at..)?
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    match digits.count() {
        0 => None,
        count => Some(at + count),
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum ContainerKind {
    Array,
    Object,
}

/// What the place that has been reached is inside of.
#[derive(Default)]
struct Nesting {
    /// The innermost is the lowest bit, set for an object.
    kinds: u64,
    depth: u32,
}

impl Nesting {
    fn open(&mut self, inside: ContainerKind) -> Option<()> {
        if self.depth == NESTING_MAX {
            return None;
        }
        self.depth += 1;
        self.kinds = (self.kinds << 1) | u64::from(inside == ContainerKind::Object);
        Some(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.kinds >>= 1;
    }

    fn innermost(&self) -> Option<ContainerKind> {
        match (self.depth, self.kinds & 1) {
            (0, _) => None,
            (_, 0) => Some(ContainerKind::Array),
            (_, _) => Some(ContainerKind::Object),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    /// Pieces of JSON, whole and broken, in any order.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            " ",
            "\n",
            "\"",
            "\\",
            "\\\"",
            "\\u00e9",
            "\\ud800",
            "\\x",
            "\"a\"",
            "\"é\\n\"",
            "\"k\":",
            "\"a string that is longer than a word\"",
            "0",
            "-",
            "1.5",
            "-0",
            "01",
            "1e9",
            "1E+",
            "2.",
            "1e400",
            "true",
            "nul",
            "null",
            "false",
            "\u{1}",
            "\u{7f}",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    fn agree(text: &str) {
        let found = value_end(text.as_bytes(), skip_space(text.as_bytes(), 0));
        let whole = found.filter(|end| skip_space(text.as_bytes(), *end) == text.len());
        let expect = serde_json::from_str::<&RawValue>(text).ok();
        let expect = expect.map(|value| text.trim_end().len().min(start(text) + value.get().len()));
        assert_eq!(whole, expect, "{text}");
    }

    fn start(text: &str) -> usize {
        text.len() - text.trim_start().len()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn broken_text_is_told_from_whole_as_serde_tells_it(text in pieces()) {
            agree(&text);
        }
    }

    #[test]
    fn fuzz_json() {
        bolero::check!().for_each(|bytes: &[u8]| agree(&String::from_utf8_lossy(bytes)));
    }

    #[test]
    fn values_end_where_serde_has_them_end() {
        for text in [
            "",
            "{",
            "{}",
            "[]",
            "[1,]",
            "[1 2]",
            "{\"a\":1,}",
            "{\"a\" : [ {} , [ ] ] } ",
            "{a:1}",
            "\"\u{1f}\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"é\"",
            "-",
            "-01",
            "1.",
            "1.e3",
            "1e",
            "1e-9",
            "123456789012345678901234567890",
            "1e99999",
            "tru",
            "truex",
            "[true,false,null]",
            "[}",
            "{]",
            "\"12345678\\\"12345678\"",
            "{\"a\":1 \"b\":2}",
            "{\"a\",1}",
            "[,1]",
            "\"open",
        ] {
            agree(text);
        }
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let limit = NESTING_MAX as usize;
        assert_eq!(
            value_end(deep(limit + 1).as_bytes(), 0),
            Some(2 * limit + 2)
        );
        assert_eq!(
            value_end(deep(limit + 2).as_bytes(), 0),
            None,
            "left to serde_json"
        );
    }

    #[test]
    fn every_byte_is_found_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            for at in 0..20 {
                let mut json = [b'a'; 21];
                json[at] = byte;
                let plain = byte >= b' ' && !matches!(byte, b'"' | b'\\');
                assert_eq!(
                    skip_plain(&json, 0),
                    if plain { 21 } else { at },
                    "{byte} {at}"
                );
            }
        }
    }
}
