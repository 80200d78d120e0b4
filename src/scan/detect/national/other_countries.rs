//! Check digits and forms of the countries whose packs are identity numbers alone.

use super::digits_to_number;
use crate::scan::detect::checksum::{luhn, weighted_sum};

fn two_digits(digits: &[u8], at: usize) -> u8 {
    digits[at] * 10 + digits[at + 1]
}

fn is_date(month: u8, day: u8) -> bool {
    (1..=12).contains(&month) && (1..=31).contains(&day)
}

/// Whether the first six digits are day, month and year.
pub(super) fn is_day_first(digits: &[u8]) -> bool {
    is_date(two_digits(digits, 2), two_digits(digits, 0))
}

/// Swedish, ten or twelve digits: a day of 61 and more is of a number that stands in for another.
pub(super) fn is_personnummer(digits: &[u8]) -> bool {
    let short = &digits[digits.len() - 10..];
    let century = digits.len() == 10 || matches!(two_digits(digits, 0), 18..=20);
    century && is_date(two_digits(short, 2), two_digits(short, 4) % 60) && luhn(short)
}

/// Norwegian: the day of a D number is 40 more, the month of a synthetic one 40 or 80.
pub(super) fn is_fodselsnummer(digits: &[u8]) -> bool {
    let check = |weights: &[u32], at: usize| {
        (weighted_sum(&digits[..at], weights) + u32::from(digits[at])).is_multiple_of(11)
    };
    is_date(two_digits(digits, 2) % 40, two_digits(digits, 0) % 40)
        && check(&[3, 7, 6, 1, 8, 9, 4, 5, 2], 9)
        && check(&[5, 4, 3, 2, 7, 6, 5, 4, 3, 2], 10)
}

/// Danish: numbers given since 2007 need not have the check digit.
pub(super) fn is_cpr_checked(digits: &[u8]) -> bool {
    weighted_sum(digits, &[4, 3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

/// Finnish: six digits of the date, three of the person, and a character that checks them.
pub(super) fn is_hetu(digits: &[u8], check: u8) -> bool {
    const CHECKS: &[u8; 31] = b"0123456789ABCDEFHJKLMNPRSTUVWXY";
    let rest = usize::try_from(digits_to_number(digits) % 31).unwrap_or_default();
    digits.len() == 9 && is_day_first(digits) && CHECKS[rest] == check.to_ascii_uppercase()
}

/// Icelandic, of people and companies (whose day is 40 more): the last digit is the century.
pub(super) fn is_kennitala(digits: &[u8]) -> bool {
    is_date(two_digits(digits, 2), two_digits(digits, 0) % 40)
        && matches!(digits[9], 0 | 8 | 9)
        && weighted_sum(&digits[..9], &[3, 2, 7, 6, 5, 4, 3, 2, 1]).is_multiple_of(11)
}

/// Czech and Slovak: the month of women is 50 more, 20 more where a day had too many; nine digits, without
/// a check, before 1954.
pub(super) fn is_rodne_cislo(digits: &[u8]) -> bool {
    let month = two_digits(digits, 2) % 50;
    let month = if month > 20 { month - 20 } else { month };
    let checked = digits_to_number(digits).is_multiple_of(11)
        || digits_to_number(&digits[..9]) % 11 == 10 && digits.last() == Some(&0);
    is_date(month, two_digits(digits, 4))
        && (digits.len() == 9 && two_digits(digits, 0) < 54 || digits.len() == 10 && checked)
}

/// Chinese, ISO 7064 mod 11-2; `check` is 10 for `X`.
pub(super) fn is_resident_id(digits: &[u8], check: u8) -> bool {
    const WEIGHTS: [u32; 17] = [7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2];
    let rest = weighted_sum(&digits[..17], &WEIGHTS) + u32::from(check);
    digits[0] != 0
        && matches!(two_digits(digits, 6), 18..=20)
        && is_date(two_digits(digits, 10), two_digits(digits, 12))
        && rest % 11 == 1
}

/// Korean; the digit after the date says century and sex.
pub(super) fn is_rrn(digits: &[u8]) -> bool {
    is_date(two_digits(digits, 2), two_digits(digits, 4))
}

/// Whether the check digit holds, which numbers given since October 2020 need not have.
pub(super) fn is_rrn_checked(digits: &[u8]) -> bool {
    let sum = weighted_sum(&digits[..12], &[2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5]);
    (11 - sum % 11) % 10 == u32::from(digits[12])
}

/// Japanese.
pub(super) fn is_my_number(digits: &[u8]) -> bool {
    let sum = weighted_sum(&digits[..11], &[6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2]);
    let rest = sum % 11;
    let check = if rest <= 1 { 0 } else { 11 - rest };
    check == u32::from(digits[11])
}

/// Chilean; `check` is 10 for `K`, and the last digit where there is none.
pub(super) fn is_rut(digits: &[u8], check: Option<u8>) -> bool {
    let (rest, check) = match check {
        Some(check) => (digits, check),
        None => (&digits[..digits.len() - 1], digits[digits.len() - 1]),
    };
    let weights = (2..=7).cycle();
    let sum: u32 = rest
        .iter()
        .rev()
        .zip(weights)
        .map(|(digit, weight)| u32::from(*digit) * weight)
        .sum();
    (7..=8).contains(&rest.len()) && rest[0] != 0 && (11 - sum % 11) % 11 == u32::from(check)
}

/// An employer's number in the United States begins with that of a campus of the IRS.
pub(super) fn is_ein(digits: &[u8]) -> bool {
    !matches!(two_digits(digits, 0), 0 | 7..=9 | 17..=19 | 28 | 29 | 49 | 69 | 70 | 78 | 79 | 89 | 96 | 97)
}

/// The Mexican CURP.
pub(super) fn is_curp(b: &[u8]) -> bool {
    let digit = |at: usize| b[at] - b'0';
    let date = is_date(digit(6) * 10 + digit(7), digit(8) * 10 + digit(9));
    // The letter after N is one of Spanish, so that all after it count one more.
    let value = |byte: u8| match byte {
        b'0'..=b'9' => u32::from(byte - b'0'),
        b'A'..=b'N' => u32::from(byte - b'A') + 10,
        _ => u32::from(byte - b'A') + 11,
    };
    let sum: u32 = b[..17]
        .iter()
        .zip((2..=18).rev())
        .map(|(b, weight)| value(*b) * weight)
        .sum();
    date && matches!(b[10], b'H' | b'M' | b'X') && (10 - sum % 10) % 10 == u32::from(digit(17))
}

/// The Mexican RFC of a person (13 characters) or a company (12).
pub(super) fn is_rfc(b: &[u8]) -> bool {
    const VALUES: &[u8; 37] = b"0123456789ABCDEFGHIJKLMN&OPQRSTUVWXYZ";
    let date = b.len() - 9;
    let digit = |at: usize| b[date + at].wrapping_sub(b'0');
    if !is_date(digit(2) * 10 + digit(3), digit(4) * 10 + digit(5)) {
        return false;
    }
    let value = |byte: &u8| VALUES.iter().position(|known| known == byte).unwrap_or(0);
    // One of a company begins with a space, which counts 37.
    let company = if b.len() == 12 { 37 * 13 } else { 0 };
    let weights = (2..=b.len()).rev();
    let sum: usize = b[..b.len() - 1]
        .iter()
        .zip(weights)
        .map(|(b, weight)| value(b) * weight)
        .sum();
    let check = match (11 - (sum + company) % 11) % 11 {
        10 => b'A',
        digit => b"0123456789"[digit],
    };
    b.last() == Some(&check)
}
