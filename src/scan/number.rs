//! Numbers written in groups of digits: cards, social security numbers, addresses, telephones.
//!
//! A [`Number`] is one to eight groups with their separators. Every class looks at its shape and
//! check digits first; only what passes asks for the surroundings, which is the dear part.

use std::{cell::OnceCell, ops::Range};

use super::{
    checksum::luhn,
    class::{Class, Country},
    context::{Around, Text},
    date, internet,
    lexicon::Hints,
    national, phone,
    search::{Found, Wanted},
};

/// Groups of digits that belong together at most.
pub(super) const GROUPS_MAX: usize = 8;
/// Digits of a number in groups at most: cards have the longest.
const GROUPED_DIGITS_MAX: usize = 19;
/// Digits of a number without any separator at least.
pub(super) const BARE_DIGITS_MIN: u8 = 7;
/// Digits of a number at most.
const DIGITS_MAX: usize = 24;

/// What stands between two groups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Separator {
    Dash,
    Dot,
    /// A parenthesis, with or without a space.
    Paren,
    Slash,
    Space,
}

/// Groups of digits, as they stand in a text.
#[derive(Debug)]
pub(super) struct Number<'a> {
    pub(super) text: &'a Text<'a>,
    /// Where it begins and ends, a leading `+` or `(` included.
    pub(super) span: Range<usize>,
    /// All digits, as values.
    pub(super) digits: &'a [u8],
    /// How many digits each group has.
    pub(super) lens: &'a [u8],
    pub(super) separators: &'a [Separator],
    pub(super) plus: bool,
    pub(super) paren: bool,
    /// Whether more numbers stand right beside it, parted by spaces only.
    pub(super) crowded: bool,
    around: OnceCell<Around>,
}

#[cfg(test)]
impl<'a> Number<'a> {
    /// A number of `digits` without separators.
    pub(super) fn bare(text: &'a Text<'a>, digits: &'a [u8]) -> Self {
        Self {
            text,
            span: 0..0,
            digits,
            lens: &[0],
            separators: &[],
            plus: false,
            paren: false,
            crowded: false,
            around: OnceCell::new(),
        }
    }
}

impl Number<'_> {
    /// What names the number itself. Beside another number only a key or a column does.
    pub(super) fn strong(&self) -> Hints {
        if follows_number(self.text, self.span.start) {
            self.text.named(self.span.start)
        } else {
            self.text.ahead(self.span.start).0
        }
    }

    /// Whether [`Number::strong`] may name a telephone: a quick look that spares most numbers the
    /// slow one.
    pub(super) fn may_be_named_phone(&self) -> bool {
        let may = self.text.may_name_phone(self.span.start);
        if !may && !follows_number(self.text, self.span.start) {
            self.text.pass(self.span.start);
        }
        may
    }

    pub(super) fn around(&self) -> Around {
        *self.around.get_or_init(|| self.text.around(&self.span))
    }

    /// The one separator between all groups; `None` when they differ or there is one group only.
    pub(super) fn separator(&self) -> Option<Separator> {
        let first = *self.separators.first()?;
        self.separators.iter().all(|s| *s == first).then_some(first)
    }

    pub(super) fn is_bare(&self) -> bool {
        self.lens.len() == 1
    }

    /// The value of the group at `index`.
    pub(super) fn group(&self, index: usize) -> u32 {
        let start: usize = self.lens[..index].iter().map(|len| usize::from(*len)).sum();
        let digits = &self.digits[start..start + usize::from(self.lens[index])];
        let digits = digits.iter().take(9);
        digits.fold(0, |value, digit| value * 10 + u32::from(*digit))
    }

    /// Whether another part of the message says that this very value is of `class`.
    pub(super) fn is_known(&self, class: Class) -> bool {
        self.text.is_known(&self.span, class)
    }
}

/// Groups and separators in memory of the stack.
struct Groups {
    ends: [usize; GROUPS_MAX],
    lens: [u8; GROUPS_MAX],
    separators: [Separator; GROUPS_MAX],
    count: usize,
    digits: [u8; DIGITS_MAX],
    digit_count: usize,
    /// Whether another group follows the last one.
    cut: bool,
}

/// Looks at the number whose first digit is at `start`; returns where to go on.
pub(super) fn find(text: &Text<'_>, start: usize, wanted: Wanted, out: &mut Vec<Found>) -> usize {
    let groups = read(text, start);
    if groups.count == 1 && groups.lens[0] < BARE_DIGITS_MIN {
        return groups.ends[0];
    }
    let skip = after_glued(&groups);
    let Some((begin, plus, paren)) = beginning(text, start, &groups) else {
        return skip;
    };
    if is_row(text, begin, &groups) {
        return skip;
    }
    for count in (1..=groups.count).rev() {
        let followed = count < groups.count || groups.cut;
        // A prefix length follows an address.
        let prefix = count == 4 && groups.separators[3] == Separator::Slash;
        if count < groups.count && groups.separators[count - 1] != Separator::Space && !prefix {
            continue;
        }
        if groups.cut && count == groups.count {
            continue;
        }
        let end = groups.ends[count - 1];
        let total: usize = groups.lens[..count]
            .iter()
            .map(|len| usize::from(*len))
            .sum();
        if total > DIGITS_MAX || total > GROUPED_DIGITS_MAX && count > 1 {
            continue;
        }
        // A parenthesis around the whole is none of it.
        let closed = plus || groups.separators[..count - 1].contains(&Separator::Paren);
        let (begin, paren) = if paren && !closed {
            (start, false)
        } else {
            (begin, paren)
        };
        let number = Number {
            text,
            span: begin..end,
            digits: &groups.digits[..total],
            lens: &groups.lens[..count],
            separators: &groups.separators[..count - 1],
            plus,
            paren,
            crowded: followed || follows_number(text, begin),
            around: OnceCell::new(),
        };
        if let Some(found) = classify(&number, wanted) {
            let end = found.span.end;
            out.push(found);
            return end;
        }
    }
    skip
}

/// Whether the groups are some of a row of small numbers that nothing names.
fn is_row(text: &Text<'_>, begin: usize, groups: &Groups) -> bool {
    let small = groups.lens[..groups.count].iter().all(|len| *len <= 2);
    small && groups.cut && follows_number(text, begin) && text.named(begin).is_none()
}

fn classify(number: &Number<'_>, wanted: Wanted) -> Option<Found> {
    const DIGITS_MIN: usize = 4;
    let short = if number.is_bare() {
        number.digits.len() < usize::from(BARE_DIGITS_MIN)
    } else {
        number.digits.len() < DIGITS_MIN
    };
    if short {
        return None;
    }
    if let Some(found) = date::numeric(number, wanted) {
        return Some(found);
    }
    if wanted.classes.has(Class::IpAddress)
        && let Some(found) = internet::ipv4(number)
    {
        return Some(found);
    }
    if is_trivial(number.digits) {
        return None;
    }
    if !ends_well(number) {
        return national::parted_letter(number, wanted);
    }
    let found = |class, by_context| {
        Some(Found {
            class,
            span: number.span.clone(),
            by_context,
        })
    };
    if wanted.classes.has(Class::UsSsn) && wanted.countries.has(Country::Us) {
        match is_ssn(number) {
            Certainty::Alone => return found(Class::UsSsn, false),
            Certainty::Named => return found(Class::UsSsn, true),
            Certainty::None => {}
        }
    }
    if wanted.classes.has(Class::CreditCard) && is_card(number) {
        return found(Class::CreditCard, false);
    }
    if let Some(found) = national::numeric(number, wanted) {
        return Some(found);
    }
    if wanted.classes.has(Class::Passport) && number.is_bare() && is_passport(number) {
        return found(Class::Passport, true);
    }
    if wanted.classes.has(Class::Phone) {
        match phone::is_phone(number, wanted.countries) {
            Certainty::Alone => return found(Class::Phone, false),
            Certainty::Named => return found(Class::Phone, true),
            Certainty::None => {}
        }
    }
    None
}

/// How sure a detector is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Certainty {
    /// The value says it by itself.
    Alone,
    /// Only its surroundings say it.
    Named,
    None,
}

fn is_ssn(number: &Number<'_>) -> Certainty {
    let shape = number.digits.len() == 9 && (number.is_bare() || number.lens == [3, 2, 4]);
    if !shape || number.plus || number.paren {
        return Certainty::None;
    }
    let value = number
        .digits
        .iter()
        .fold(0u32, |v, d| v * 10 + u32::from(*d));
    let (area, group, serial) = (value / 1_000_000, value / 10_000 % 100, value % 10_000);
    if matches!(area, 0 | 666 | 900..) || group == 0 || serial == 0 {
        return Certainty::None;
    }
    let around = number.around();
    let named = around.strong.any(Hints::SSN)
        || around.near.any(Hints::SSN) && !around.says_other(Hints::SSN);
    match number.separator() {
        _ if named || number.is_known(Class::UsSsn) => Certainty::Named,
        Some(Separator::Dash) if !around.says_other(Hints::SSN.and(Hints::IDENTITY)) => {
            Certainty::Alone
        }
        _ => Certainty::None,
    }
}

fn is_passport(number: &Number<'_>) -> bool {
    (7..=9).contains(&number.digits.len())
        && !number.plus
        && !number.paren
        && (number.is_known(Class::Passport)
            || number.text.may_name_passport(&number.span) && {
                let around = number.around();
                around.strong.any(Hints::PASSPORT)
                    || around.near.any(Hints::PASSPORT)
                        && !around.says_other(Hints::PASSPORT)
                        && number.text.is_attached(&number.span, Hints::PASSPORT)
            })
}

fn is_card(number: &Number<'_>) -> bool {
    let total = number.digits.len();
    if !(13..=19).contains(&total) || number.plus || number.paren {
        return false;
    }
    let grouped = match number.lens {
        [_] => false,
        [4, 4, 4, 4 | 1] | [4, 6, 5 | 4] | [4, 4, 4, 4, 3] | [6, 13] | [4, 5, 6] => {
            if !matches!(
                number.separator(),
                Some(Separator::Space | Separator::Dash | Separator::Dot)
            ) {
                return false;
            }
            true
        }
        _ => return false,
    };
    let Some(common) = issuer(number.digits) else {
        return false;
    };
    if !luhn(number.digits) {
        return false;
    }
    // Hardly any other number begins as most cards do and has their check digit: a word such as `order` or
    // `id` before it rather says what is paid, or by whom.
    if common {
        return true;
    }
    let around = number.around();
    if around.says_other(Hints::CARD) {
        return false;
    }
    grouped || around.near.any(Hints::CARD) || number.is_known(Class::CreditCard)
}

/// Whether the first digits are those of an issuer of cards with so many digits; `Some(false)`:
/// they are, but other numbers of that length are more common.
fn issuer(digits: &[u8]) -> Option<bool> {
    let first = |n: usize| digits[..n].iter().fold(0u32, |v, d| v * 10 + u32::from(*d));
    let (two, three, four) = (first(2), first(3), first(4));
    match digits.len() {
        15 if matches!(two, 34 | 37) => Some(true),
        15 if matches!(four, 1800 | 2131) => Some(false),
        14 if matches!(three, 300..=305 | 309) || matches!(two, 36 | 38 | 39) => Some(true),
        16 => {
            let known = digits[0] == 4
                || matches!(two, 51..=55 | 62 | 65 | 36)
                || matches!(four, 2221..=2720 | 6011 | 3528..=3589 | 2200..=2204)
                || matches!(three, 644..=649);
            let rare = matches!(two, 50 | 56..=61 | 63..=69 | 81);
            if known {
                Some(true)
            } else {
                rare.then_some(false)
            }
        }
        13 | 19 if digits[0] == 4 => Some(false),
        12..=19 if matches!(two, 50 | 56..=69 | 81) => Some(false),
        _ => None,
    }
}

/// All digits alike, a one with zeros, or a plain count: nobody's number.
fn is_trivial(digits: &[u8]) -> bool {
    let Some((first, rest)) = digits.split_first() else {
        return true;
    };
    rest.iter().all(|digit| digit == first) || *first <= 1 && rest.iter().all(|digit| *digit == 0)
}

/// Where the text goes on after the groups that no space parts from the first one.
fn after_glued(groups: &Groups) -> usize {
    let glued = groups.separators[..groups.count.saturating_sub(1)]
        .iter()
        .position(|s| matches!(s, Separator::Space | Separator::Paren))
        .unwrap_or(groups.count.saturating_sub(1));
    groups.ends[glued]
}

fn read(text: &Text<'_>, start: usize) -> Groups {
    let mut groups = Groups {
        ends: [start; GROUPS_MAX],
        lens: [0; GROUPS_MAX],
        separators: [Separator::Space; GROUPS_MAX],
        count: 0,
        digits: [0; DIGITS_MAX],
        digit_count: 0,
        cut: false,
    };
    let mut at = start;
    loop {
        let from = at;
        while text.byte(at).is_ascii_digit() {
            if groups.digit_count < DIGITS_MAX {
                groups.digits[groups.digit_count] = text.byte(at) - b'0';
                groups.digit_count += 1;
            }
            at += 1;
        }
        let len = at - from;
        let fits = groups.digits_so_far() + len <= DIGITS_MAX;
        if !fits
            || text.byte(at).is_ascii_alphabetic() && groups.count > 0 && groups.last_is_space()
        {
            // A group that is not digits only, such as `5th`, ends the number before it.
            if groups.count == 0 {
                groups.push(at, DIGITS_MAX + 1);
            }
            groups.cut = !fits && groups.count > 1;
            return groups;
        }
        groups.push(at, len);
        match separator(text, at) {
            Some(_) if groups.count == GROUPS_MAX => {
                groups.cut = true;
                return groups;
            }
            Some((kind, next)) => {
                groups.separators[groups.count - 1] = kind;
                at = next;
            }
            None => return groups,
        }
    }
}

impl Groups {
    fn push(&mut self, end: usize, len: usize) {
        self.ends[self.count] = end;
        self.lens[self.count] = u8::try_from(len).unwrap_or(u8::MAX);
        self.count += 1;
    }

    fn digits_so_far(&self) -> usize {
        self.lens[..self.count]
            .iter()
            .map(|len| usize::from(*len))
            .sum()
    }

    fn last_is_space(&self) -> bool {
        self.separators[self.count - 1] == Separator::Space
    }
}

/// The separator at `at` and where the next group begins, when one follows.
fn separator(text: &Text<'_>, at: usize) -> Option<(Separator, usize)> {
    const SEPARATOR_CHARS_MAX: usize = 3;
    let (mut next, mut kind) = (at, None);
    for _ in 0..SEPARATOR_CHARS_MAX {
        let (one, len) = match text.byte(next) {
            b' ' => (Separator::Space, 1),
            b'-' => (Separator::Dash, 1),
            b'.' => (Separator::Dot, 1),
            b'/' => (Separator::Slash, 1),
            b'(' | b')' => (Separator::Paren, 1),
            0xC2 if text.byte(next + 1) == 0xA0 => (Separator::Space, 2),
            0xE2 if text.byte(next + 1) == 0x80 => match text.byte(next + 2) {
                0x89 | 0xAF => (Separator::Space, 3),
                0x90..=0x93 => (Separator::Dash, 3),
                _ => return None,
            },
            _ => return None,
        };
        kind = Some(match (kind, one) {
            (None | Some(Separator::Space), one) => one,
            (Some(kind), Separator::Space) => kind,
            (_, Separator::Paren) | (Some(Separator::Paren), _) => Separator::Paren,
            _ => return None,
        });
        next += len;
        if text.byte(next).is_ascii_digit() {
            // Two spaces, or a point and a space, part numbers instead of grouping them.
            let loose = next - at > 1 && kind == Some(Separator::Dot)
                || text.bytes()[at..next].starts_with(b"  ");
            return kind.filter(|_| !loose).map(|kind| (kind, next));
        }
    }
    None
}

/// Where the number that has its first digit at `start` begins, and whether with `+` or `(`.
fn beginning(text: &Text<'_>, start: usize, groups: &Groups) -> Option<(usize, bool, bool)> {
    let mut begin = start;
    let paren = text.before(begin) == b'(';
    begin -= usize::from(paren);
    let plus = text.before(begin) == b'+';
    begin -= usize::from(plus);
    // `(+49) 30` begins at the parenthesis.
    if plus && text.before(begin) == b'(' && text.byte(start + 1).is_ascii_digit() {
        let closes = (start..start + 4).any(|at| text.byte(at) == b')');
        begin -= usize::from(closes);
    }
    let (before, earlier) = (text.before(begin), text.before(begin.saturating_sub(1)));
    let stands_alone = match before {
        b'/' if earlier == b'/' => true,
        b'-' | b'.' | b'/' => {
            !earlier.is_ascii_alphanumeric() && before == b'-' && earlier == b' ' && plus
        }
        // `ssh root@192.0.2.7`
        b'@' => groups.count >= 4 && groups.separators[..3] == [Separator::Dot; 3],
        b'_' | b'$' | b'%' | b'~' | b'^' | b'\\' => false,
        b':' => !earlier.is_ascii_digit(),
        b',' => !(earlier.is_ascii_digit() && is_thousands(text, begin)),
        b'x' if earlier == b'x' && text.before(begin - 2) == b'0' => true,
        0xA3 if earlier == 0xC2 => false,
        0xAC if earlier == 0x82 => false,
        _ => !before.is_ascii_alphanumeric(),
    };
    stands_alone.then_some((begin, plus, paren))
}

/// Whether the three digits at `at` go on a number written as `1,234`.
fn is_thousands(text: &Text<'_>, at: usize) -> bool {
    (at..at + 3).all(|digit| text.byte(digit).is_ascii_digit())
        && !text.byte(at + 3).is_ascii_digit()
        && { !matches!(text.byte(at + 3), b'-' | b' ') }
}

/// Whether what follows lets the number end here.
pub(super) fn ends_well(number: &Number<'_>) -> bool {
    let (text, end) = (number.text, number.span.end);
    let (next, later) = (text.byte(end), text.byte(end + 1));
    match next {
        b'_' | b'@' | b'%' | b'=' => false,
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

/// Whether another group of digits stands before `begin`, parted by one space.
fn follows_number(text: &Text<'_>, begin: usize) -> bool {
    text.before(begin) == b' ' && text.before(begin.saturating_sub(1)).is_ascii_digit()
}
