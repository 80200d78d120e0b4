//! Numbers written in groups of digits: cards, social security numbers, addresses, telephones.
//!
//! A [`DigitGroups`] is one to eight groups with their separators. Every class looks at its shape and
//! check digits first; only what passes asks for the surroundings, which is the dear part.

use std::cell::OnceCell;

use super::{
    bank_account::is_bank_account,
    boundary,
    card::{is_before_security_code, is_card, magnetic_track},
    date,
    digits::{
        BARE_DIGITS_MIN, CARD_DIGITS, DigitGroups, GROUPS_MAX, Separator, has_number_before,
        is_in_hex_row, is_thousands, is_valid_end,
    },
    national, network_addresses,
    passport::is_passport_number,
    phone,
};
use crate::scan::{
    class::{Class, Classes, Country},
    context::Text,
    finding::{FoundValue, WantedClasses},
    lexicon::Hints,
};

/// Digits of a number in groups at most: accounts of Spanish banks have the longest.
const GROUPED_DIGITS_MAX: usize = 20;
/// Digits of a number at most.
const DIGITS_MAX: usize = 24;

/// Groups and separators in memory of the stack.
struct Groups {
    ends: [usize; GROUPS_MAX],
    lens: [u8; GROUPS_MAX],
    separators: [Separator; GROUPS_MAX],
    count: usize,
    digits: [u8; DIGITS_MAX],
    digit_count: usize,
    /// Whether another group follows the last one.
    is_truncated: bool,
}

/// Looks at the number whose first digit is at `start`; returns where to go on.
pub(in crate::scan) fn find_number(
    text: &Text<'_>,
    start: usize,
    wanted: WantedClasses,
    out: &mut Vec<FoundValue>,
) -> usize {
    let groups = read_groups(text, start);
    if groups.count == 1 && groups.lens[0] < BARE_DIGITS_MIN {
        return groups.ends[0];
    }
    let skip = end_of_glued_groups(&groups);
    let NumberStart {
        at: begin,
        plus,
        paren,
        classes,
    } = NumberStart::of(text, start, &groups);
    let wanted = WantedClasses {
        classes: wanted.classes.intersection(classes),
        ..wanted
    };
    if wanted.classes.is_empty() || is_row(text, begin, &groups) {
        return skip;
    }
    for count in (1..=groups.count).rev() {
        let followed = count < groups.count || groups.is_truncated;
        let end = groups.ends[count - 1];
        let total: usize = groups.lens[..count]
            .iter()
            .map(|len| usize::from(*len))
            .sum();
        // A prefix length follows an address, and a code follows a card.
        let slash = groups.separators[count - 1] == Separator::Slash;
        let parted = slash && (count == 4 || CARD_DIGITS.contains(&total))
            || matches!(
                groups.separators[count - 1],
                Separator::Space | Separator::Plus
            );
        if count < groups.count && !parted || groups.is_truncated && count == groups.count {
            continue;
        }
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
        let number = DigitGroups {
            text,
            span: begin..end,
            digits: &groups.digits[..total],
            lens: &groups.lens[..count],
            separators: &groups.separators[..count - 1],
            plus,
            paren,
            has_neighbours: followed || has_number_before(text, begin),
            context: OnceCell::new(),
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
    small
        && groups.is_truncated
        && has_number_before(text, begin)
        && text.name_hints(begin).is_empty()
}

fn classify(number: &DigitGroups<'_>, wanted: WantedClasses) -> Option<FoundValue> {
    const DIGITS_MIN: usize = 4;
    let short = if number.is_bare() {
        number.digits.len() < usize::from(BARE_DIGITS_MIN)
    } else {
        number.digits.len() < DIGITS_MIN
    };
    if short {
        return None;
    }
    if number.separators.contains(&Separator::Plus) {
        return query_card(number, wanted);
    }
    if let Some(found) = date::numeric_birth_date(number, wanted) {
        return Some(found);
    }
    if wanted.classes.contains(Class::IpAddress)
        && let Some(found) = network_addresses::find_ipv4(number)
    {
        return Some(found);
    }
    if is_trivial(number.digits) {
        return None;
    }
    let by_value = |class| Some(FoundValue::by_value(class, number.span.clone()));
    let card = wanted.classes.contains(Class::CreditCard);
    if !is_valid_end(number) {
        if card && is_before_security_code(number.text, number.span.end) && is_card(number) {
            return by_value(Class::CreditCard);
        }
        if card && number.is_bare() && is_card(number) {
            let found = magnetic_track(number.text, &number.span);
            if found.is_some() {
                return found;
            }
        }
        return national::numeric_id(number, wanted, false);
    }
    if wanted.classes.contains(Class::UsSsn)
        && wanted.countries.contains(Country::Us)
        && let Some(found) = find_ssn(number)
    {
        return Some(found);
    }
    if card && is_card(number) {
        return (!is_in_hex_row(number))
            .then(|| by_value(Class::CreditCard))
            .flatten();
    }
    if let Some(found) = national::numeric_id(number, wanted, true) {
        return (!is_in_hex_row(number)).then_some(found);
    }
    if wanted.classes.contains(Class::Iban) && is_bank_account(number) {
        let span = number.span.clone();
        return Some(FoundValue::by_context(Class::Iban, span));
    }
    if wanted.classes.contains(Class::Passport) && number.is_bare() && is_passport_number(number) {
        let span = number.span.clone();
        return Some(FoundValue::by_context(Class::Passport, span));
    }
    if wanted.classes.contains(Class::Phone) {
        return phone::find_phone(number, wanted.countries);
    }
    None
}

/// A card whose groups are parted as spaces are in the query of a URL.
fn query_card(number: &DigitGroups<'_>, wanted: WantedClasses) -> Option<FoundValue> {
    let card =
        wanted.classes.contains(Class::CreditCard) && is_valid_end(number) && is_card(number);
    card.then(|| FoundValue::by_value(Class::CreditCard, number.span.clone()))
}

fn find_ssn(number: &DigitGroups<'_>) -> Option<FoundValue> {
    let shape = number.digits.len() == 9 && (number.is_bare() || number.lens == [3, 2, 4]);
    if !shape || number.plus || number.paren {
        return None;
    }
    let value = number
        .digits
        .iter()
        .fold(0u32, |v, d| v * 10 + u32::from(*d));
    let (area, group, serial) = (value / 1_000_000, value / 10_000 % 100, value % 10_000);
    if matches!(area, 0 | 666 | 900..) || group == 0 || serial == 0 {
        return None;
    }
    let around = number.around();
    let named = around.names(Hints::SSN);
    let (class, span) = (Class::UsSsn, number.span.clone());
    match number.separator() {
        _ if named || number.is_known(class) => Some(FoundValue::by_context(class, span)),
        Some(Separator::Dash) if !around.names_other(Hints::SSN.union(Hints::IDENTITY)) => {
            Some(FoundValue::by_value(class, span))
        }
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
fn end_of_glued_groups(groups: &Groups) -> usize {
    let glued = groups.separators[..groups.count.saturating_sub(1)]
        .iter()
        .position(|s| matches!(s, Separator::Space | Separator::Paren))
        .unwrap_or(groups.count.saturating_sub(1));
    groups.ends[glued]
}

fn read_groups(text: &Text<'_>, start: usize) -> Groups {
    let mut groups = Groups {
        ends: [start; GROUPS_MAX],
        lens: [0; GROUPS_MAX],
        separators: [Separator::Space; GROUPS_MAX],
        count: 0,
        digits: [0; DIGITS_MAX],
        digit_count: 0,
        is_truncated: false,
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
            groups.is_truncated = !fits && groups.count > 1;
            return groups;
        }
        groups.push(at, len);
        match separator_at(text, at) {
            Some(_) if groups.count == GROUPS_MAX => {
                groups.is_truncated = true;
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
fn separator_at(text: &Text<'_>, at: usize) -> Option<(Separator, usize)> {
    const SEPARATOR_CHARS_MAX: usize = 3;
    let (mut next, mut kind) = (at, None);
    for _ in 0..SEPARATOR_CHARS_MAX {
        let (one, len) = separator_sign(text, next)?;
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

/// What separates two groups at `at`, and how long it is; Unicode has many spaces and dashes.
fn separator_sign(text: &Text<'_>, at: usize) -> Option<(Separator, usize)> {
    Some(match text.byte(at) {
        b' ' => (Separator::Space, 1),
        b'.' => (Separator::Dot, 1),
        b'/' => (Separator::Slash, 1),
        b'+' => (Separator::Plus, 1),
        b'(' | b')' => (Separator::Paren, 1),
        _ => match text.space_len(at) {
            Some(len) => (Separator::Space, len),
            None => (Separator::Dash, text.dash_len(at)?),
        },
    })
}

/// Where a number begins, with which signs, and what it may be there.
struct NumberStart {
    at: usize,
    plus: bool,
    paren: bool,
    classes: Classes,
}

impl NumberStart {
    /// That of the number that has its first digit at `start`.
    fn of(text: &Text<'_>, start: usize, groups: &Groups) -> Self {
        let mut at = start;
        let paren = text.byte_before(at) == b'(';
        at -= usize::from(paren);
        let plus = text.byte_before(at) == b'+';
        at -= usize::from(plus);
        // `(+49) 30` begins at the parenthesis.
        if plus && text.byte_before(at) == b'(' && text.byte(start + 1).is_ascii_digit() {
            let closes = (start..start + 4).any(|at| text.byte(at) == b')');
            at -= usize::from(closes);
        }
        let earlier = text.byte_before(at.saturating_sub(1));
        let all_if = |free: bool| if free { Classes::ALL } else { Classes::NONE };
        let classes = match text.byte_before(at) {
            // `ssh root@192.0.2.7`
            b'@' => all_if(groups.count >= 4 && groups.separators[..3] == [Separator::Dot; 3]),
            b',' => all_if(!(earlier.is_ascii_digit() && is_thousands(text, at))),
            b'x' if earlier == b'x' && text.byte_before(at - 2) == b'0' => Classes::ALL,
            _ if plus => boundary::classes_before_plus(text, at),
            _ => boundary::classes_before_number(text, at),
        };
        Self {
            at,
            plus,
            paren,
            classes,
        }
    }
}
