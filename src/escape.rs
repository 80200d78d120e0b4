//! Text of others, as it may be shown to people.
//!
//! Names, descriptions and arguments come from clients and servers, which must neither move the
//! cursor of a terminal nor have people read something else than is there.

use std::fmt::Write as _;

/// Directional marks, embeddings, overrides and isolates (Unicode's `Bidi_Control`), and the
/// separators of lines and paragraphs.
const BIDI_CONTROLS: [std::ops::RangeInclusive<char>; 4] = [
    '\u{61c}'..='\u{61c}',
    '\u{200e}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
];

/// `text` with what would steer a terminal escaped as in JSON, but for those of `kept`.
pub(crate) fn escape_controls(text: &str, kept: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let is_deceiving = BIDI_CONTROLS.iter().any(|range| range.contains(&c));
        match c {
            _ if kept.contains(&c) || !(c.is_control() || is_deceiving) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => write!(out, "\\u{:04x}", u32::from(c)).expect("a String takes all"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_is_escaped_as_in_json() {
        for (given, expect) in [
            ("plain \\ é 🦀 שלום", "plain \\ é 🦀 שלום"),
            (
                "\u{1b}[2J\u{7f}\u{9b}31m\0",
                r"\u001b[2J\u007f\u009b31m\u0000",
            ),
            ("a\u{202e}b\u{2066}c\u{2069}", r"a\u202eb\u2066c\u2069"),
            ("\u{61c}\u{200e}\u{200f}", r"\u061c\u200e\u200f"),
            ("\u{2028}\u{2029}\u{200d}", "\\u2028\\u2029\u{200d}"),
            ("a\r\n\tb", r"a\r\n\tb"),
        ] {
            let escaped = escape_controls(given, &[]);
            assert_eq!(escaped, expect, "{given:?}");
        }
        assert_eq!(escape_controls("a\n\tb\r", &['\n', '\t']), "a\n\tb\\r");
    }
}
