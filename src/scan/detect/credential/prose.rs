//! Secrets that only a sentence gives away: `the password is x`, `the password for the lab stays x`.
//!
//! What is said right after a password's name may look like any word with a digit. The further the
//! way between the two, the more a value must look like one that was chosen to be guessed by nobody.

use std::ops::Range;

use super::{
    NAME_BYTES_MAX, SecretKind,
    char_kinds::{CharKinds, is_code, is_placeholder},
    secret_kind,
    value::{SecretStyle, accept_secret, value_after},
};
use crate::scan::{
    class::Class,
    context::{Text, char_boundary_before},
    finding::FoundValue,
    lexicon,
};

/// Bytes after the name of a password that belong to its sentence at most.
const SENTENCE_BYTES_MAX: usize = 96;
/// Words between the name of a password and its value at most.
const WORDS_MAX: usize = 8;

/// What is said to be a secret by a verb: `password is hunter2`; `verb` is the span of the verb.
pub(in crate::scan) fn secret_after_verb(
    text: &Text<'_>,
    verb: &Range<usize>,
) -> Option<FoundValue> {
    if is_plain_word(&text.bytes()[verb.end..]) {
        return None;
    }
    let value = value_after(text, verb.end)?;
    // Few words look like a secret: most need no look at what is before them.
    let style = SecretStyle {
        prose: true,
        ..SecretStyle::PLAIN
    };
    accept_secret(text, &value, SecretKind::Password, style)?;
    if &text.bytes()[verb.clone()] == b"to" && follows_verb_pass(text, verb.start) {
        return None;
    }
    let secret = secret_kind(text.preceding_hints(verb.start).0)?;
    accept_secret(text, &value, secret, style)
}

/// Whether `rest` goes on with a word of small letters only, which nobody takes for a secret that
/// only a sentence gives away.
fn is_plain_word(rest: &[u8]) -> bool {
    let word = rest.get(1..).unwrap_or_default();
    let end = word.iter().position(|byte| !byte.is_ascii_lowercase());
    end.is_some_and(|end| end > 0 && rest[0] == b' ' && word[end] == b' ')
}

/// What follows the word `password` itself, without a sign: `WITH PASSWORD 'x'`, `login me
/// password x`.
pub(in crate::scan) fn secret_after_password(
    text: &Text<'_>,
    word: &Range<usize>,
) -> Option<FoundValue> {
    const BYTES_MIN: usize = 6;
    // `[Password] x`, `| Password | x |`, `define('PASSWORD', 'x')`
    let parts = |b: &&u8| b" ]|\"',()*-".contains(b);
    let end = skip_owner(text, word.end);
    let parted = text.bytes()[end..].iter().take(5);
    let start = end + parted.take_while(parts).count();
    let skipped = &text.bytes()[end..start];
    let argument = skipped.iter().any(|b| matches!(b, b',' | b'('));
    let quote = text.byte_before(start);
    let start = start - usize::from(matches!(quote, b'"' | b'\''));
    if skipped.is_empty() || argument && !matches!(quote, b'"' | b'\'') {
        return None;
    }
    let value = value_after(text, start)?;
    let bytes = &text.bytes()[value.span.clone()];
    let kinds = CharKinds::of(bytes);
    if is_passed(text, word, &value.span) {
        return None;
    }
    // The next word of a sentence is seldom quoted, and has no such mixture.
    let mixed = kinds.digit && kinds.lower && (kinds.upper || kinds.symbol)
        || kinds.strong && (kinds.digit || kinds.upper && kinds.lower);
    let style = SecretStyle::CELL;
    (mixed && bytes.len() >= BYTES_MIN)
        .then(|| accept_secret(text, &value, SecretKind::Password, style))?
}

/// Whether something is passed to what begins at `at`, so that no password is told: `pass these to
/// train2`.
fn follows_verb_pass(text: &Text<'_>, at: usize) -> bool {
    let before = &text.bytes()[at.saturating_sub(NAME_BYTES_MAX)..at];
    let found = memchr::memmem::rfind(before, b"pass ");
    found.is_some_and(|pass| {
        let start = at - before.len() + pass;
        !text.byte_before(start).is_ascii_alphanumeric() && !is_noun(text, start)
    })
}

/// Whether the `word` is the verb `pass`, and what is handed on follows: `pass force_zip64 to`, `pass
/// -march=x86-64`.
fn is_passed(text: &Text<'_>, word: &Range<usize>, value: &Range<usize>) -> bool {
    if &text.bytes()[word.clone()] != b"pass" {
        return false;
    }
    let bytes = &text.bytes()[value.clone()];
    let name = bytes
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    let goes_on = text.byte(value.end) == b' ' && text.byte(value.end + 1).is_ascii_alphabetic();
    name && (goes_on || bytes.contains(&b'_'))
        || bytes.iter().any(|b| matches!(b, b'(' | b'=' | b'/'))
}

/// Where the word ends that says whose a password is, or of what kind, when one follows `at`.
fn skip_owner(text: &Text<'_>, at: usize) -> usize {
    let rest = text.bytes()[at..].strip_prefix(b" ").unwrap_or_default();
    let len = rest
        .iter()
        .take(NAME_BYTES_MAX)
        .take_while(|b| b.is_ascii_alphabetic())
        .count();
    let owner = text.text[at..].get(1..1 + len).unwrap_or_default();
    if lexicon::is_owner_word(owner.as_bytes()) {
        at + 1 + len
    } else {
        at
    }
}

/// What stands further on in the sentence of the word `password`: `the password for the lab stays x`.
pub(in crate::scan) fn secret_near_password(
    text: &Text<'_>,
    word: &Range<usize>,
) -> Option<FoundValue> {
    let end = char_boundary_before(
        text.text,
        text.text.len().min(word.end + SENTENCE_BYTES_MAX),
    );
    let rest = text.text.get(word.end..end)?;
    // The verb leads too far: `pass those samples to trainFromBuffer()`.
    if &text.bytes()[word.clone()] == b"pass" && !is_noun(text, word.start) {
        return None;
    }
    for part in word_ranges(rest).take(WORDS_MAX) {
        let span = word.end + part.start..word.end + part.end;
        if let Some(found) = likely_password(text, &span) {
            return Some(found);
        }
        if ends_sentence(&rest[part]) {
            return None;
        }
    }
    None
}

/// Whether the word at `start` is a noun by what stands before it: `the pass`, `my pass`, `lab-pass`.
fn is_noun(text: &Text<'_>, start: usize) -> bool {
    const ARTICLES: [&[u8]; 9] = [
        b"the ",
        b"my ",
        b"your ",
        b"new ",
        b"his ",
        b"her ",
        b"set ",
        b"change ",
        b"changed ",
    ];
    let before = &text.bytes()[..start];
    let article = |article: &&[u8]| {
        before
            .len()
            .checked_sub(article.len())
            .is_some_and(|at| before[at..].eq_ignore_ascii_case(article))
    };
    ARTICLES.iter().any(article)
}

/// Where the words of `text` stand, quotes and brackets excluded.
fn word_ranges(text: &str) -> impl Iterator<Item = Range<usize>> {
    let lines = text.find('\n').unwrap_or(text.len());
    let (first, last) = (0, lines);
    let line = &text[first..last];
    line.split([' ', '\t'])
        .scan(0, move |at, part| {
            let start = *at;
            *at += part.len() + 1;
            let marks = ['"', '\'', '`', '(', '[', ')', ']', ','];
            let head = part.len() - part.trim_start_matches(marks).len();
            let len = part.trim_matches(marks).len();
            Some(start + head..start + head + len)
        })
        .filter(|span| !span.is_empty())
}

fn ends_sentence(word: &str) -> bool {
    word.ends_with(['.', ';', '?', '!', ':'])
}

/// The value at `span`, when nothing but a password is spelled like that.
fn likely_password(text: &Text<'_>, span: &Range<usize>) -> Option<FoundValue> {
    const BYTES: std::ops::RangeInclusive<usize> = 8..=64;
    let mut span = span.clone();
    while span.end > span.start
        && matches!(text.byte_before(span.end), b'.' | b',' | b';' | b':' | b'?')
    {
        span.end -= 1;
    }
    let value = text.bytes().get(span.clone())?;
    if !BYTES.contains(&value.len()) || !value.is_ascii() {
        return None;
    }
    let kinds = CharKinds::of(value);
    let inner = &value[1..value.len() - 1];
    let strong = inner.iter().any(|b| b"!@#$%^&*+?~".contains(b)) || value.ends_with(b"!");
    let letters = kinds.lower && value.iter().filter(|b| b.is_ascii_alphabetic()).count() >= 2;
    let looks = if strong {
        letters && kinds.digit
    } else {
        letters && kinds.upper && kinds.digit && is_mixed(value)
    };
    let is_other = is_code(value, false)
        || is_placeholder(value)
        || is_address(value)
        || value
            .iter()
            .any(|b| matches!(b, b'/' | b'\\' | b'<' | b'>' | b'{' | b'}' | b'|'));
    (looks && !is_other).then_some(FoundValue::by_value(Class::Credential, span))
}

/// Whether letters and digits change so often, or the digits at the end are so many, that it is no
/// name of a thing.
fn is_mixed(value: &[u8]) -> bool {
    const CHANGES_MIN: usize = 4;
    const DIGITS_MIN: usize = 4;
    let kind = |b: &u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    let changes = value
        .windows(2)
        .filter(|pair| kind(&pair[0]) != kind(&pair[1]));
    let digits = value
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_digit())
        .count();
    let word = value[0].is_ascii_uppercase()
        && value[1..value.len() - digits]
            .iter()
            .all(u8::is_ascii_lowercase);
    let plain = value.iter().all(u8::is_ascii_alphanumeric);
    plain && changes.count() >= CHANGES_MIN || word && digits >= DIGITS_MIN
}

/// Whether it is an e-mail address or the name of a host or file.
fn is_address(value: &[u8]) -> bool {
    let at = value.iter().position(|b| *b == b'@');
    at.is_some_and(|at| value[at..].contains(&b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Scan, ScanAction},
        scan::{Direction, Scanner, context::Names},
    };

    #[test]
    fn passwords_are_found_in_sentences_and_other_words_are_left_alone() {
        let scan = Scan {
            results: std::iter::once(("credential".to_owned(), ScanAction::Report)).collect(),
            ..Scan::default()
        };
        let scanner = Scanner::new(&scan).unwrap();
        let check = |text: &str, expect: Option<&str>| {
            let found = scanner.locate_in_text(Direction::Results, "", text);
            let found: Vec<&str> = found.iter().map(|(_, span)| &text[span.clone()]).collect();
            assert_eq!(found, Vec::from_iter(expect), "{text}");
        };
        for (text, value) in [
            ("The password for the lab stays gR8!panda", "gR8!panda"),
            ("Le mot de passe du labo, c'est Tr0ub4dor&3", "Tr0ub4dor&3"),
            (
                "la contrase\u{f1}a del wiki sigue en Gat0!rojo",
                "Gat0!rojo",
            ),
            ("has\u{142}o do sieci zostaje kW!at77x", "kW!at77x"),
        ] {
            check(text, Some(value));
        }
        for text in [
            "The password policy of release v2.13.1 holds.",
            "Reset the password of ann.lee4@example.org today!",
            "The password page is https://example.org/Reset12345",
            "Passwords are hashed with Argon2id or PBKDF2-SHA256.",
            "No password for ticket ORD-54108 yet.",
            "The password is wrong. See Kestrel4821 for more.",
            "Forgot your password? Call extension 54108.",
            "password = getPassword(user)",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_plain_word_is_never_told_to_be_a_secret() {
        let style = SecretStyle {
            prose: true,
            ..SecretStyle::PLAIN
        };
        for word in ["a", "all", "hunter", "correcthorsebatterystaple"] {
            let sentence = format!(" {word} it");
            assert!(is_plain_word(sentence.as_bytes()), "{word}");
            let text = Text::new(word, Names::default(), None);
            let value = value_after(&text, 0).unwrap();
            assert_eq!(
                accept_secret(&text, &value, SecretKind::Password, style),
                None,
                "{word}"
            );
        }
        for rest in [
            "",
            " ",
            "  all it",
            " hunter2 it",
            " all",
            " all.",
            ".all it",
        ] {
            assert!(!is_plain_word(rest.as_bytes()), "{rest}");
        }
    }
}
