//! Check digits and forms of national numbers: whether digits can be one, without a look around.

use super::digits_to_number;
use crate::scan::detect::checksum::{mod11_10, weighted_sum};

pub(super) fn is_tfn(digits: &[u8]) -> bool {
    let weights: &[u32] = if digits.len() == 9 {
        &[1, 4, 3, 7, 5, 8, 6, 9, 10]
    } else {
        &[10, 7, 8, 4, 6, 3, 5, 1]
    };
    weighted_sum(digits, weights).is_multiple_of(11)
}

pub(super) fn is_medicare(digits: &[u8]) -> bool {
    matches!(digits[0], 2..=6)
        && weighted_sum(&digits[..8], &[1, 3, 7, 9, 1, 3, 7, 9]) % 10 == u32::from(digits[8])
}

pub(super) fn is_cpf(digits: &[u8]) -> bool {
    let check = |len: usize| {
        let weights: Vec<u32> = (2..=u32::try_from(len).expect("at most 10") + 1)
            .rev()
            .collect();
        let rest = weighted_sum(&digits[..len], &weights) * 10 % 11 % 10;
        rest == u32::from(digits[len])
    };
    check(9) && check(10)
}

/// The German tax id: of its first ten digits one occurs two or three times, and the check holds.
pub(super) fn is_tax_id(digits: &[u8]) -> bool {
    let mut counts = [0u8; 10];
    for digit in &digits[..10] {
        counts[usize::from(*digit)] += 1;
    }
    let repeated = counts.iter().filter(|count| **count > 1).count();
    let most = counts.iter().max().copied().unwrap_or(0);
    digits[0] != 0 && repeated == 1 && matches!(most, 2 | 3) && mod11_10(digits)
}

pub(super) fn is_social_security_es(digits: &[u8]) -> bool {
    let province = digits[0] * 10 + digits[1];
    let number = digits_to_number(&digits[2..10]);
    let base = if number < 10_000_000 {
        number + u64::from(province) * 10_000_000
    } else {
        digits_to_number(&digits[..10])
    };
    (1..=66).contains(&province) && base % 97 == digits_to_number(&digits[10..])
}

pub(super) fn is_nir(digits: &[u8]) -> bool {
    let month = digits[3] * 10 + digits[4];
    let key = digits_to_number(&digits[13..]);
    matches!(digits[0], 1 | 2 | 3 | 4 | 7 | 8)
        && matches!(month, 1..=12 | 20 | 30..=42 | 50..=99)
        && 97 - digits_to_number(&digits[..13]) % 97 == key
}

pub(super) fn is_corsican_nir(b: &[u8]) -> bool {
    let mut digits = [0; 15];
    for (at, byte) in b.iter().enumerate() {
        digits[at] = if at == 6 { 0 } else { byte - b'0' };
    }
    // Department 2A counts as 19 and 2B as 18; with a zero for the letter it reads as 20.
    let less = match &b[5..7] {
        b"2A" => 1_000_000,
        b"2B" => 2_000_000,
        _ => return false,
    };
    let Some(base) = digits_to_number(&digits[..13]).checked_sub(less) else {
        return false;
    };
    matches!(b[0], b'1' | b'2') && 97 - base % 97 == digits_to_number(&digits[13..])
}

pub(super) fn is_nhs(digits: &[u8]) -> bool {
    let rest = 11 - weighted_sum(&digits[..9], &[10, 9, 8, 7, 6, 5, 4, 3, 2]) % 11;
    rest != 10 && rest % 11 == u32::from(digits[9])
}

pub(super) fn is_bsn(digits: &[u8]) -> bool {
    let sum = weighted_sum(&digits[..8], &[9, 8, 7, 6, 5, 4, 3, 2]);
    let check = u32::from(digits[8]);
    sum > 0 && sum >= check && (sum - check).is_multiple_of(11)
}

pub(super) fn is_pesel(digits: &[u8]) -> bool {
    let month = (digits[2] * 10 + digits[3]) % 20;
    let day = digits[4] * 10 + digits[5];
    (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && weighted_sum(digits, &[1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1]).is_multiple_of(10)
}

pub(super) fn is_nip(digits: &[u8]) -> bool {
    weighted_sum(&digits[..9], &[6, 5, 7, 2, 3, 4, 5, 6, 7]) % 11 == u32::from(digits[9])
}

pub(super) fn is_dowod(b: &[u8]) -> bool {
    let value = |byte: u8| {
        u32::from(if byte.is_ascii_digit() {
            byte - b'0'
        } else {
            byte - b'A' + 10
        })
    };
    let weights = [7, 3, 1, 9, 7, 3, 1, 7, 3];
    b.iter()
        .zip(weights)
        .map(|(byte, weight)| value(*byte) * weight)
        .sum::<u32>()
        .is_multiple_of(10)
}

pub(super) fn is_nino(b: &[u8]) -> bool {
    let first = !matches!(b[0], b'D' | b'F' | b'I' | b'Q' | b'U' | b'V');
    let second = !matches!(b[1], b'D' | b'F' | b'I' | b'O' | b'Q' | b'U' | b'V');
    let given = !matches!(
        &b[..2],
        b"BG" | b"GB" | b"KN" | b"NK" | b"NT" | b"TN" | b"ZZ"
    );
    first && second && given && matches!(b[8], b'A'..=b'D')
}

/// The German pension insurance number: area, birthday, initial, serial, check digit.
pub(super) fn is_rvnr(b: &[u8]) -> bool {
    let digit = |at: usize| u32::from(b[at] - b'0');
    let (day, month) = (digit(2) * 10 + digit(3), digit(4) * 10 + digit(5));
    let letter = u32::from(b[8] - b'A') + 1;
    let values = [0, 1, 2, 3, 4, 5, 6, 7].map(digit);
    let tail = [letter / 10, letter % 10, digit(9), digit(10)];
    let sum: u32 = values
        .into_iter()
        .chain(tail)
        .zip([2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1])
        .map(|(value, weight)| value * weight / 10 + value * weight % 10)
        .sum();
    (1..=31).contains(&day) && (1..=12).contains(&month) && sum % 10 == digit(11)
}

/// Numbers of German identity cards use few letters, so that they spell no words.
pub(super) fn is_german_document(b: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_digit() || b"CFGHJKLMNPRTVWXYZ".contains(byte);
    let digits = b.iter().filter(|b| b.is_ascii_digit()).count();
    b[0].is_ascii_uppercase() && b.iter().all(allowed) && digits >= 3
}

pub(super) fn is_codice_fiscale(b: &[u8]) -> bool {
    const ODD: [u32; 26] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24,
        23,
    ];
    // Digits may stand as letters, so that no two people have the same code.
    let digit = |byte: u8| byte.is_ascii_digit() || b"LMNPQRSTUV".contains(&byte);
    let letters = b[..6]
        .iter()
        .chain([&b[8], &b[11], &b[15]])
        .all(u8::is_ascii_uppercase);
    let digits = [6, 7, 9, 10, 12, 13, 14].into_iter().all(|at| digit(b[at]));
    if !letters || !digits || !b"ABCDEHLMPRST".contains(&b[8]) {
        return false;
    }
    let order = |byte: u8| {
        usize::from(if byte.is_ascii_digit() {
            byte - b'0'
        } else {
            byte - b'A'
        })
    };
    let sum: u32 = b[..15]
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            let value = order(*byte);
            if at % 2 == 0 {
                ODD[value]
            } else {
                u32::try_from(value).expect("below 26")
            }
        })
        .sum();
    u32::from(b[15] - b'A') == sum % 26
}

/// The Medicare Beneficiary Identifier of the CMS: eleven characters, none of S, L, O, I, B, Z.
pub(super) fn is_medicare_beneficiary(b: &[u8]) -> bool {
    let letter = |at: usize| b[at].is_ascii_uppercase() && !b"SLOIBZ".contains(&b[at]);
    let digit = |at: usize| b[at].is_ascii_digit();
    matches!(b[0], b'1'..=b'9')
        && letter(1)
        && (letter(2) || digit(2))
        && digit(3)
        && letter(4)
        && (letter(5) || digit(5))
        && digit(6)
        && letter(7)
        && letter(8)
        && digit(9)
        && digit(10)
}
