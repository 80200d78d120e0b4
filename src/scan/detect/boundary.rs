//! Where a value may begin and end: what it is glued to, and what that lets it be.
//!
//! A piece of something longer, such as a fraction, a path or an identifier, is no value. Signs that
//! only part words do not make it one: the point of `No.`, the underscores that markdown puts around a
//! word. A name that is glued to a value lets it be what the name says, and nothing else.

use crate::scan::{
    class::{Class, Classes},
    context::{Text, char_boundary_before, name_hints},
    lexicon::Hints,
};

/// Signs in a row before or after a value at most.
const SIGNS_MAX: usize = 64;
/// Bytes of a name that is glued to a value at most.
const NAME_BYTES_MAX: usize = 40;

const CARD: Classes = Classes::of(&[Class::CreditCard]);
/// What hardly anything else is written like, so that a word before it may end in a point.
const UNMISTAKABLE: Classes = Classes::of(&[Class::CreditCard, Class::Iban, Class::UsSsn]);

/// What a name that is joined to a value lets it be. `contact_1234567` rather numbers contacts, and
/// `server-10.1.2.3` is a package with its version.
const JOINED_NAMES: &[(Hints, Class)] = &[
    (Hints::CARD, Class::CreditCard),
    (Hints::BIRTH, Class::DateOfBirth),
    (Hints::NATIONAL, Class::NationalId),
    (Hints::PASSPORT, Class::Passport),
    (Hints::SSN, Class::UsSsn),
];
/// What it does besides where the name ends in a point, as in `Tel.030 1234567`.
const ABBREVIATED_NAMES: &[(Hints, Class)] =
    &[(Hints::IP, Class::IpAddress), (Hints::PHONE, Class::Phone)];

/// What stands before a row of signs.
enum PrecedingToken {
    /// Nothing that the signs could join to what follows.
    Free,
    /// A name, which ends there.
    Name(usize),
    /// Another value, or a mask in its place.
    Value,
}

/// Letters, digits and what joins them.
struct NameBoundary {
    start: usize,
    hints: Hints,
}

impl PrecedingToken {
    fn before(text: &Text<'_>, at: usize, signs: &[u8]) -> Self {
        let row = text.bytes()[..at].iter().rev().take(SIGNS_MAX);
        let end = at - row.take_while(|b| signs.contains(b)).count();
        match text.text[..end].chars().next_back() {
            Some(c) if c.is_alphabetic() => Self::Name(end),
            Some(c) if c.is_numeric() || c == ']' => Self::Value,
            Some(_) | None => Self::Free,
        }
    }
}

impl NameBoundary {
    /// The name that ends at `end`.
    fn before(text: &Text<'_>, end: usize) -> Self {
        let inside = |b: &&u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | 0x80..);
        let before = text.bytes()[..end].iter().rev().take(NAME_BYTES_MAX);
        let start = char_boundary_before(text.text, end - before.take_while(inside).count());
        Self {
            start,
            hints: name_hints(&text.text[start..end]),
        }
    }

    /// What the name lets a value be, of what `table` knows.
    fn allowed_classes(&self, table: &[(Hints, Class)]) -> Classes {
        let said = table
            .iter()
            .filter(|(hints, _)| self.hints.intersects(*hints));
        said.fold(Classes::NONE, |all, (_, class)| all.with(*class))
    }
}

/// What the letters and digits that begin at `at` may be.
pub(in crate::scan) fn classes_before_word(text: &Text<'_>, at: usize) -> Classes {
    let glued = || text.byte_before(at - 1).is_ascii_alphanumeric();
    match text.byte_before(at) {
        b'.' => classes_after_point(text, at),
        b'_' => classes_after_joiner(text, at),
        b'-' if glued() => classes_after_joiner(text, at),
        b'/' if glued() => Classes::NONE,
        b'@' | b'%' | b'\\' | b'$' => Classes::NONE,
        before if before.is_ascii_alphanumeric() => Classes::NONE,
        _ => Classes::ALL,
    }
}

/// What a number that begins at `at` may be.
pub(in crate::scan) fn classes_before_number(text: &Text<'_>, at: usize) -> Classes {
    let earlier = text.byte_before(at.saturating_sub(1));
    match text.byte_before(at) {
        b'.' => classes_after_point(text, at),
        b'_' | b'-' => classes_after_joiner(text, at),
        b'/' if earlier != b'/' => Classes::NONE,
        b':' if earlier.is_ascii_digit() => Classes::NONE,
        // An amount or a guess: nobody has or means so much as a card has digits.
        b'$' | b'~' => match PrecedingToken::before(text, at, b"$~") {
            PrecedingToken::Free => CARD,
            PrecedingToken::Name(_) | PrecedingToken::Value => Classes::NONE,
        },
        0xA3 if earlier == 0xC2 => CARD,
        0xAC if earlier == 0x82 => CARD,
        b'%' | b'^' | b'\\' | b'@' | b'0'..=b'9' => Classes::NONE,
        b'a'..=b'z' | b'A'..=b'Z' => classes_after_letters(text, at),
        _ => Classes::ALL,
    }
}

/// What a number whose `+` is at `at` may be: a telephone's, where a word is glued to it.
pub(in crate::scan) fn classes_before_plus(text: &Text<'_>, at: usize) -> Classes {
    let glued = text.byte_before(at);
    if !glued.is_ascii_alphabetic() && !matches!(glued, b'.' | b'_' | b'-') {
        return classes_before_number(text, at);
    }
    match PrecedingToken::before(text, at, b"._-") {
        PrecedingToken::Free
            if glued == b'_' || glued == b'-' && text.byte_before(at - 1) == b' ' =>
        {
            Classes::ALL
        }
        // In the query of a URL a `+` is a space, and in code it adds.
        PrecedingToken::Name(end)
            if NameBoundary::before(text, end)
                .hints
                .intersects(Hints::PHONE.union(Hints::CONTACT)) =>
        {
            Classes::of(&[Class::Phone])
        }
        PrecedingToken::Free | PrecedingToken::Name(_) | PrecedingToken::Value => Classes::NONE,
    }
}

/// Whether the underscores at `at` end a word instead of going on with a name.
pub(in crate::scan) fn is_word_end_underscore(text: &Text<'_>, at: usize) -> bool {
    let row = text.bytes()[at..].iter().take(SIGNS_MAX);
    let count = row.take_while(|b| **b == b'_').count();
    count > 0 && !text.byte(at + count).is_ascii_alphanumeric()
}

/// A point after a digit is one of a fraction or a version, and one after nothing may begin a
/// fraction; after letters it ends a word.
fn classes_after_point(text: &Text<'_>, at: usize) -> Classes {
    match PrecedingToken::before(text, at, b".") {
        PrecedingToken::Free if text.byte_before(at - 1) == b'.' => CARD,
        PrecedingToken::Name(_) if is_abbreviation(text, at - 1) => Classes::ALL,
        PrecedingToken::Name(end) => {
            let name = NameBoundary::before(text, end);
            // `libssl.so.1.10.0.3` looks like an address, `10.1016/j.cell.2011.04.009` like a telephone.
            if matches!(text.byte_before(name.start), b'.' | b'/') {
                return UNMISTAKABLE;
            }
            UNMISTAKABLE
                .union(name.allowed_classes(JOINED_NAMES))
                .union(name.allowed_classes(ABBREVIATED_NAMES))
        }
        PrecedingToken::Free | PrecedingToken::Value => Classes::NONE,
    }
}

/// Whether the word that ends at `at` stands for `number`.
fn is_abbreviation(text: &Text<'_>, at: usize) -> bool {
    const NUMBER: [&[u8]; 5] = [b"n", b"no", b"nr", b"nro", b"num"];
    const LONGEST: usize = 3;
    let before = &text.bytes()[at.saturating_sub(LONGEST + 1)..at];
    let other = before.iter().rposition(|b| !b.is_ascii_alphabetic());
    let word = &before[other.map_or(0, |other| other + 1)..];
    NUMBER.iter().any(|known| known.eq_ignore_ascii_case(word))
}

/// An underscore or a dash joins a value to the name of it, `PAN_4111...`; with nothing before it, an
/// underscore is one of markdown, and a dash a sign or the mark of a list.
fn classes_after_joiner(text: &Text<'_>, at: usize) -> Classes {
    match PrecedingToken::before(text, at, b"_-") {
        PrecedingToken::Free if text.byte_before(at) == b'_' => Classes::ALL,
        PrecedingToken::Free => CARD,
        // Country, length and check digits say enough of an IBAN.
        PrecedingToken::Name(end) => NameBoundary::before(text, end)
            .allowed_classes(JOINED_NAMES)
            .with(Class::Iban),
        PrecedingToken::Value => Classes::NONE,
    }
}

/// `Visa4111...`: few names are written in one with their value.
fn classes_after_letters(text: &Text<'_>, at: usize) -> Classes {
    let named = NameBoundary::before(text, at).allowed_classes(JOINED_NAMES);
    named.intersection(Classes::of(&[Class::CreditCard, Class::UsSsn]))
}
