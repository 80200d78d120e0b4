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
