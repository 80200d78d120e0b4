//! Numbers of payment cards: what issuers begin them with, how they are grouped, and Luhn's check digit.

use std::ops::Range;

use super::{
    checksum::luhn,
    digits::{CARD_DIGITS, DigitGroups, Separator},
};
use crate::scan::{class::Class, context::Text, finding::FoundValue, lexicon::Hints};

/// Whether `number` is one of a card.
pub(in crate::scan) fn is_card(number: &DigitGroups<'_>) -> bool {
    let total = number.digits.len();
    if !CARD_DIGITS.contains(&total) || number.plus || number.paren {
        return false;
    }
    let grouped = match number.lens {
        [_] => false,
        [4, 4, 4, 4 | 1] | [4, 6, 5 | 4] | [4, 4, 4, 4, 3] | [6, 13] | [4, 5, 6] => {
            if !matches!(
                number.separator(),
                Some(Separator::Space | Separator::Dash | Separator::Dot | Separator::Plus)
            ) {
                return false;
            }
            true
        }
        _ => return false,
    };
    let Some(common) = matches_issuer(number.digits) else {
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
    if around.names_other(Hints::CARD) {
        return false;
    }
    grouped || around.nearby.intersects(Hints::CARD) || number.is_known(Class::CreditCard)
}

/// The track of a magnetic stripe (ISO/IEC 7813) around the number of a card at `card`: `%B...^NAME^...?`,
/// `;...=...?`; after the number stand month, year, service code and what the issuer likes.
pub(in crate::scan) fn magnetic_track(text: &Text<'_>, card: &Range<usize>) -> Option<FoundValue> {
    const NAME_BYTES: std::ops::RangeInclusive<usize> = 2..=26;
    const TRACK_DATA_DIGITS: std::ops::RangeInclusive<usize> = 7..=40;
    let mut at = match text.byte(card.end) {
        b'=' | b'D' => card.end + 1,
        b'^' => {
            let name = text.bytes()[card.end + 1..]
                .iter()
                .take(NAME_BYTES.end() + 1);
            let name = name.take_while(|b| !matches!(b, b'^' | b'\n')).count();
            let end = card.end + 1 + name;
            (NAME_BYTES.contains(&name) && text.byte(end) == b'^').then_some(end + 1)?
        }
        _ => return None,
    };
    let data = text.bytes()[at..].iter().take(TRACK_DATA_DIGITS.end() + 1);
    let data: Vec<u8> = data.take_while(|b| b.is_ascii_digit()).copied().collect();
    if !TRACK_DATA_DIGITS.contains(&data.len())
        || !matches!(&data[2..4], [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2'])
    {
        return None;
    }
    at += data.len();
    at += usize::from(text.byte(at) == b'?');
    let mut start = card.start;
    start -= usize::from(matches!(text.byte_before(start), b';' | b'B'));
    start -= usize::from(text.byte_before(start) == b'%');
    Some(FoundValue::by_value(Class::CreditCard, start..at))
}

/// The track whose number is in the word at `word`: after the `B` of the first track, or before the `D`
/// of the second.
pub(in crate::scan) fn magnetic_track_in_word(
    text: &Text<'_>,
    word: &Range<usize>,
) -> Option<FoundValue> {
    let start = word.start + usize::from(text.byte(word.start) == b'B');
    let digits: Vec<u8> = text.bytes()[start..word.end]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .map(|b| b - b'0')
        .collect();
    if !CARD_DIGITS.contains(&digits.len()) || matches_issuer(&digits).is_none() || !luhn(&digits) {
        return None;
    }
    magnetic_track(text, &(start..start + digits.len()))
}

/// Whether the slashes after a card at `end` part it from its security code, or from the month and the year
/// until which it is valid, and nothing else follows.
pub(in crate::scan) fn is_before_security_code(text: &Text<'_>, end: usize) -> bool {
    const CODE_DIGITS: std::ops::RangeInclusive<usize> = 2..=4;
    const CODES_MAX: usize = 3;
    let mut at = end;
    for _ in 0..CODES_MAX {
        if text.byte(at) != b'/' {
            break;
        }
        let digits = text.bytes()[at + 1..].iter().take(CODE_DIGITS.end() + 1);
        let digits = digits.take_while(|b| b.is_ascii_digit()).count();
        if !CODE_DIGITS.contains(&digits) {
            return false;
        }
        at += 1 + digits;
    }
    let next = text.byte(at);
    at > end && !next.is_ascii_alphanumeric() && !matches!(next, b'/' | b'_' | b'-' | b'=')
}

/// Whether the first digits are those of an issuer of cards with so many digits; `Some(false)`:
/// they are, but other numbers of that length are more common.
fn matches_issuer(digits: &[u8]) -> Option<bool> {
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
