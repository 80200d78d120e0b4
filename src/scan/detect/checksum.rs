//! The check digits of the numbers we look for; digits are values from 0 to 9.

/// Luhn, ISO/IEC 7812-1 annex B: cards, Canadian SIN.
pub(in crate::scan) fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .zip([1, 2].into_iter().cycle())
        .map(|(digit, weight)| {
            let value = u32::from(*digit) * weight;
            value / 10 + value % 10
        })
        .sum();
    sum.is_multiple_of(10)
}

/// The remainder by 97 of digits and letters (A = 10), as ISO 7064 mod 97-10 reads them.
pub(in crate::scan) fn mod97(text: impl Iterator<Item = u8>) -> u32 {
    text.fold(0, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        b'A'..=b'Z' => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
        _ => rest,
    })
}

/// Verhoeff's scheme: Indian Aadhaar.
pub(in crate::scan) fn verhoeff(digits: &[u8]) -> bool {
    const PERMUTATION: [u8; 10] = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4];
    let check = digits
        .iter()
        .rev()
        .enumerate()
        .fold(0, |check, (place, digit)| {
            let permuted = (0..place % 8).fold(*digit, |d, _| PERMUTATION[usize::from(d)]);
            dihedral_multiply(check, permuted)
        });
    check == 0
}

/// Multiplication in the dihedral group of order ten.
fn dihedral_multiply(a: u8, b: u8) -> u8 {
    match (a < 5, b < 5) {
        (true, true) => (a + b) % 5,
        (true, false) => (a + b - 5) % 5 + 5,
        (false, true) => (a - b) % 5 + 5,
        (false, false) => (a + 5 - b) % 5,
    }
}

/// ISO 7064 mod 11,10, the check digit last: German tax ids.
pub(in crate::scan) fn mod11_10(digits: &[u8]) -> bool {
    let Some((check, rest)) = digits.split_last() else {
        return false;
    };
    let product = rest.iter().fold(10, |product, digit| {
        let sum = (u32::from(*digit) + product) % 10;
        (if sum == 0 { 10 } else { sum }) * 2 % 11
    });
    (11 - product) % 10 == u32::from(*check)
}

/// CRC-32 as in IEEE 802.3: GitHub's and npm's tokens.
pub(in crate::scan) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
    let add = |crc, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_pass_and_their_neighbours_fail() {
        let check = |name: &str, valid: fn(&[u8]) -> bool, number: &str| {
            let digits: Vec<u8> = number.bytes().map(|b| b - b'0').collect();
            assert!(valid(&digits), "{name} {number}");
            for at in 0..digits.len() {
                let mut wrong = digits.clone();
                wrong[at] = (wrong[at] + 1) % 10;
                assert!(!valid(&wrong), "{name} {wrong:?}");
            }
        };
        check("luhn", luhn, "4111111111111111");
        check("luhn", luhn, "378282246310005");
        check("verhoeff", verhoeff, "2363");
        check("verhoeff", verhoeff, "123451");
        check("mod 11,10", mod11_10, "86095742719");
    }

    #[test]
    fn an_iban_leaves_one() {
        assert_eq!(mod97(b"WEST12345698765432GB82".iter().copied()), 1);
        assert_ne!(mod97(b"WEST12345698765433GB82".iter().copied()), 1);
    }
}
