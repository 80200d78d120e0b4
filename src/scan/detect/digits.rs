//! Digits in groups, as numbers are written.

use std::{
    cell::OnceCell,
    ops::{Range, RangeInclusive},
};

use super::boundary;
use crate::scan::{
    class::Class,
    context::{Text, ValueContext},
    lexicon::Hints,
};

/// Groups of digits that belong together at most.
pub(in crate::scan) const GROUPS_MAX: usize = 8;

/// Digits of a number without any separator at least.
pub(in crate::scan) const BARE_DIGITS_MIN: u8 = 7;

/// Digits of a card.
pub(in crate::scan) const CARD_DIGITS: RangeInclusive<usize> = 13..=19;

/// What stands between two groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::scan) enum Separator {
    Dash,
    Dot,
    /// A parenthesis, with or without a space.
    Paren,
    /// A space in the query of a URL; only cards are written so.
    Plus,
    Slash,
    Space,
}

/// Groups of digits, as they stand in a text.
#[derive(Debug)]
pub(in crate::scan) struct DigitGroups<'a> {
    pub(in crate::scan) text: &'a Text<'a>,
    /// Where it begins and ends, a leading `+` or `(` included.
    pub(in crate::scan) span: Range<usize>,
    /// All digits, as values.
    pub(in crate::scan) digits: &'a [u8],
    /// How many digits each group has.
    pub(in crate::scan) lens: &'a [u8],
    pub(in crate::scan) separators: &'a [Separator],
    pub(in crate::scan) plus: bool,
    pub(in crate::scan) paren: bool,
    /// Whether more numbers stand right beside it, parted by spaces only.
    pub(in crate::scan) has_neighbours: bool,
    pub(in crate::scan) context: OnceCell<ValueContext>,
}

impl DigitGroups<'_> {
    /// What names the number itself. Beside another number only a key or a column does.
    pub(in crate::scan) fn strong_hints(&self) -> Hints {
        if has_number_before(self.text, self.span.start) {
            self.text.name_hints(self.span.start)
        } else {
            self.text.preceding_hints(self.span.start).0
        }
    }

    /// Whether [`DigitGroups::strong_hints`] may name a telephone: a quick look that spares most numbers the
    /// slow one.
    pub(in crate::scan) fn may_be_named_phone(&self) -> bool {
        let may = self.text.may_name_phone(self.span.start);
        if !may && !has_number_before(self.text, self.span.start) {
            self.text.skip_value(self.span.start);
        }
        may
    }

    pub(in crate::scan) fn around(&self) -> ValueContext {
        *self.context.get_or_init(|| self.text.context(&self.span))
    }

    /// The one separator between all groups; `None` when they differ or there is one group only.
    pub(in crate::scan) fn separator(&self) -> Option<Separator> {
        let first = *self.separators.first()?;
        self.separators.iter().all(|s| *s == first).then_some(first)
    }

    pub(in crate::scan) fn is_bare(&self) -> bool {
        self.lens.len() == 1
    }

    /// The value of the group at `index`.
    pub(in crate::scan) fn group(&self, index: usize) -> u32 {
        let start: usize = self.lens[..index].iter().map(|len| usize::from(*len)).sum();
        let digits = &self.digits[start..start + usize::from(self.lens[index])];
        let digits = digits.iter().take(9);
        digits.fold(0, |value, digit| value * 10 + u32::from(*digit))
    }

    /// Whether another part of the message says that this very value is of `class`.
    pub(in crate::scan) fn is_known(&self, class: Class) -> bool {
        self.text.is_seen_as(&self.span, class)
    }
}

/// Whether what follows lets the number end here.
pub(in crate::scan) fn is_valid_end(number: &DigitGroups<'_>) -> bool {
    let (text, end) = (number.text, number.span.end);
    let (next, later) = (text.byte(end), text.byte(end + 1));
    match next {
        b'_' => boundary::is_word_end_underscore(text, end),
        b'@' | b'%' | b'=' => false,
        b'-' | b'/' | b'.' | b':' => !later.is_ascii_alphanumeric(),
        b',' => {
            !(later.is_ascii_digit()
                && is_thousands(text, end + 1)
                && number.is_bare()
                && number.digits.len() <= 3)
        }
        b'x' => later.is_ascii_digit() || later == b' ',
        _ => !next.is_ascii_alphabetic(),
    }
}

/// Whether the three digits at `at` go on a number written as `1,234`.
pub(super) fn is_thousands(text: &Text<'_>, at: usize) -> bool {
    (at..at + 3).all(|digit| text.byte(digit).is_ascii_digit())
        && !text.byte(at + 3).is_ascii_digit()
        && { !matches!(text.byte(at + 3), b'-' | b' ') }
}

/// Whether another group of digits stands before `begin`, parted by one space.
pub(super) fn has_number_before(text: &Text<'_>, begin: usize) -> bool {
    text.byte_before(begin) == b' ' && text.byte_before(begin.saturating_sub(1)).is_ascii_digit()
}

/// Whether groups of two or four digits stand in a row of such with hexadecimal letters, or after the
/// offset of a row, as in a dump or a table of characters.
pub(super) fn is_in_hex_row(number: &DigitGroups<'_>) -> bool {
    const WORDS_MAX: usize = 16;
    let Some(&first) = number.lens.first() else {
        return false;
    };
    let spaced = number.separator() == Some(Separator::Space);
    if !spaced || !matches!(first, 2 | 4) || number.lens.iter().any(|len| *len != first) {
        return false;
    }
    let width = usize::from(first);
    let is_word = |word: &[u8]| word.len() == width && word.iter().all(u8::is_ascii_hexdigit);
    // `de` may be a word, and an IBAN begins with `DE89`.
    let is_telling = |word: &[u8]| {
        let (letters, digits) = word.split_at(2);
        let word_or_iban =
            letters.iter().all(u8::is_ascii_alphabetic) && digits.iter().all(u8::is_ascii_digit);
        word.iter().any(u8::is_ascii_alphabetic) && !word_or_iban
    };
    let (before, after) = (
        &number.text.bytes()[..number.span.start],
        &number.text.bytes()[number.span.end..],
    );
    let words_before = || {
        let chunks = before.rchunks(width + 1).take(WORDS_MAX);
        let words = chunks.map(|chunk| chunk.strip_suffix(b" ").unwrap_or_default());
        words.take_while(|word| is_word(word))
    };
    let chunks = after.chunks(width + 1).take(WORDS_MAX).enumerate();
    let mut words_after = chunks
        .map(|(at, chunk)| {
            let next = after.get((at + 1) * (width + 1));
            let ends = next.is_none_or(|b| !b.is_ascii_alphanumeric());
            chunk
                .strip_prefix(b" ")
                .filter(|_| ends)
                .unwrap_or_default()
        })
        .take_while(|word| is_word(word));
    let row = &before[..before.len() - words_before().count() * (width + 1)];
    words_before().any(is_telling) || words_after.any(is_telling) || ends_in_offset(row)
}

/// Whether `row` ends in the offset of a row of a dump: `00000ec0: `, `5176:\t`.
fn ends_in_offset(row: &[u8]) -> bool {
    const OFFSET_DIGITS: usize = 8;
    row.ends_with(b":\t")
        || row.strip_suffix(b": ").is_some_and(|row| {
            let digits = row.iter().rev().take_while(|b| b.is_ascii_hexdigit());
            digits.count() >= OFFSET_DIGITS
        })
}
