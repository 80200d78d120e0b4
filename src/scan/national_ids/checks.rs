//! Checks of national numbers that weights alone do not say; numbers are without signs, letters upper case.

use serde::Deserialize;

use crate::scan::detect::checksum::{luhn, mod11_10, verhoeff};

/// A check by its name in the table.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Check {
    CodiceFiscale,
    GermanPension,
    GermanTaxId,
    KoreanRrn,
    Luhn,
    LuhnOfTen,
    Mexican,
    Nino,
    Nir,
    SpanishSocialSecurity,
    ThreeDigits,
    Verhoeff,
}

impl Check {
    pub(super) fn is_valid(self, b: &[u8]) -> bool {
        match self {
            Self::CodiceFiscale => is_codice_fiscale(b),
            Self::GermanPension => is_german_pension(b),
            Self::GermanTaxId => with_digits(b, is_german_tax_id),
            Self::KoreanRrn => is_korean_rrn(b),
            Self::Luhn => with_digits(b, luhn),
            Self::LuhnOfTen => with_digits(&b[b.len() - 10..], luhn),
            Self::Mexican => is_mexican(b),
            Self::Nino => !matches!(
                &b[..2],
                b"BG" | b"GB" | b"KN" | b"NK" | b"NT" | b"TN" | b"ZZ"
            ),
            Self::Nir => is_nir(b),
            Self::SpanishSocialSecurity => is_spanish_social_security(b),
            Self::ThreeDigits => b.iter().filter(|byte| byte.is_ascii_digit()).count() >= 3,
            Self::Verhoeff => with_digits(b, verhoeff),
        }
    }
}

/// A digit as it is, a letter from A = 10 on.
pub(super) fn value(byte: u8) -> u32 {
    char::from(byte).to_digit(36).unwrap_or_default()
}

/// What `check` says of the digits `b`; they are few, so that they need no memory of the heap.
fn with_digits(b: &[u8], check: fn(&[u8]) -> bool) -> bool {
    let mut digits = [0; 32];
    for (digit, byte) in digits.iter_mut().zip(b) {
        *digit = byte.wrapping_sub(b'0');
    }
    check(&digits[..b.len()])
}

fn number(b: &[u8]) -> u64 {
    let digits = b.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, byte| number * 10 + u64::from(byte - b'0'))
}

/// Whether the last character is that of `letters` for the number before it; `X`, `Y` and `Z` before
/// that are 0, 1 and 2.
pub(super) fn ends_in_letter(b: &[u8], letters: &[u8]) -> bool {
    let Some((last, rest)) = b.split_last() else {
        return false;
    };
    let first = match rest.first() {
        Some(b'Y') => 10_000_000,
        Some(b'Z') => 20_000_000,
        _ => 0,
    };
    let rest = (number(rest) + first) % letters.len() as u64;
    usize::try_from(rest).is_ok_and(|at| letters[at] == *last)
}

/// Of the first ten digits one occurs two or three times, and the check holds.
fn is_german_tax_id(digits: &[u8]) -> bool {
    let mut counts = [0u8; 10];
    for digit in &digits[..10] {
        counts[usize::from(*digit)] += 1;
    }
    let repeated = counts.iter().filter(|count| **count > 1).count();
    let most = counts.iter().max().copied().unwrap_or(0);
    repeated == 1 && matches!(most, 2 | 3) && mod11_10(digits)
}

/// The digits of area, birthday, initial and serial, weighted and summed up.
fn is_german_pension(b: &[u8]) -> bool {
    let letter = u32::from(b[8] - b'A') + 1;
    let tail = [letter / 10, letter % 10, value(b[9]), value(b[10])];
    let values = b[..8].iter().map(|byte| value(*byte)).chain(tail);
    let weights = [2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1];
    let products = values.zip(weights).map(|(value, weight)| value * weight);
    let sum: u32 = products.map(|product| product / 10 + product % 10).sum();
    sum % 10 == value(b[11])
}

fn is_korean_rrn(b: &[u8]) -> bool {
    let weights = [2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5];
    let sum: u32 = b.iter().zip(weights).map(|(b, w)| value(*b) * w).sum();
    (11 - sum % 11) % 10 == value(b[12])
}

/// The French number and its key; department 2A counts as 19, 2B as 18.
fn is_nir(b: &[u8]) -> bool {
    let department = match b[6] {
        b'A' => 19,
        b'B' => 18,
        _ => number(&b[5..7]),
    };
    let whole = (number(&b[..5]) * 100 + department) * 1_000_000 + number(&b[7..13]);
    (whole + number(&b[13..])).is_multiple_of(97)
}

fn is_spanish_social_security(b: &[u8]) -> bool {
    let (province, rest) = (number(&b[..2]), number(&b[2..10]));
    let base = if rest < 10_000_000 {
        rest + province * 10_000_000
    } else {
        number(&b[..10])
    };
    (1..=66).contains(&province) && base % 97 == number(&b[10..])
}

fn is_codice_fiscale(b: &[u8]) -> bool {
    const ODD: [u32; 26] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
        23,
    ];
    let order = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        _ => byte - b'A',
    };
    let values = b[..15].iter().map(|byte| order(*byte)).enumerate();
    let sum: u32 = values
        .map(|(at, order)| match at % 2 {
            0 => ODD[usize::from(order)],
            _ => u32::from(order),
        })
        .sum();
    u32::from(b[15] - b'A') == sum % 26
}

/// The Mexican CURP (18 characters), and the RFC of a person (13) or a company (12), which begins with a space.
fn is_mexican(b: &[u8]) -> bool {
    // `&` or `Ñ` stands after N, so that all letters after that count one more.
    let value = |byte: u8| value(byte) + u32::from(byte > b'N');
    let weights = (1..=18).rev().skip(18 - b.len());
    let sum: u32 = b.iter().zip(weights).map(|(b, w)| value(*b) * w).sum();
    match b.len() {
        18 => sum.is_multiple_of(10),
        12 => (sum + 37 * 13).is_multiple_of(11),
        _ => sum.is_multiple_of(11),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_pass_and_their_neighbours_fail() {
        for (check, number) in [
            (Check::GermanTaxId, "86095742719"),
            (Check::Nir, "255081416802538"),
            (Check::Mexican, "BOXW310820HNERXN09"),
            (Check::Mexican, "GODE561231GR8"),
            (Check::CodiceFiscale, "RSSMRA85T10A562S"),
        ] {
            assert!(check.is_valid(number.as_bytes()), "{check:?} {number}");
            let (start, last) = number.split_at(number.len() - 1);
            let next = match last {
                "9" => '0',
                _ => char::from(last.as_bytes()[0] + 1),
            };
            let wrong = format!("{start}{next}");
            assert!(!check.is_valid(wrong.as_bytes()), "{check:?} {wrong}");
        }
    }
}
