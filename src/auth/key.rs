//! API keys as their owners know them: making and reading the text. Pure but for randomness; what
//! is kept of a key is `store::StoredKey`.
//!
//! A key is `tbk_`, 43 base62 characters of 256 random bits and 6 of a checksum, so that scanners of
//! source code know a leaked key when they see one, and a typo is found without asking the store.

use std::fmt;

use crate::store::{KeyHash, KeyId};

mod last_used;

pub use last_used::KeyUses;

/// The text of a key. It is shown once, when the key is made.
#[derive(Clone, Eq, PartialEq)]
pub struct ApiKey(String);

impl ApiKey {
    /// How every key begins.
    pub const PREFIX: &str = "tbk_";

    /// Characters of a key.
    pub const LENGTH: usize = Self::PREFIX.len() + SECRET_DIGITS + CHECKSUM_DIGITS;

    /// Makes a key.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self::from_secret(secret))
    }

    /// Reads a key that somebody presents.
    ///
    /// # Errors
    /// Says why it cannot be one of ours.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let digits = text.strip_prefix(Self::PREFIX).ok_or(InvalidKey::Prefix)?;
        if text.len() != Self::LENGTH {
            return Err(InvalidKey::Length { found: text.len() });
        }
        if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
            return Err(InvalidKey::Character);
        }
        let (body, checksum) = text.split_at(Self::LENGTH - CHECKSUM_DIGITS);
        if checksum_of(body) != checksum {
            return Err(InvalidKey::Checksum);
        }
        Ok(Self(text.to_owned()))
    }

    /// The text itself; call it only where it is shown to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What the store keeps and finds it by.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }

    /// What people may see of it: `tbk_` and four characters.
    pub fn display_prefix(&self) -> &str {
        &self.0[..Self::PREFIX.len() + SHOWN_DIGITS]
    }

    fn from_secret(secret: [u8; 32]) -> Self {
        let mut text = format!("{}{}", Self::PREFIX, base62(&secret, SECRET_DIGITS));
        let checksum = checksum_of(&text);
        text.push_str(&checksum);
        Self(text)
    }
}

/// Shows what people may see.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}***)", self.display_prefix())
    }
}

impl KeyId {
    /// A fresh id, `key_` and 12 base62 characters.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let digits = base62(&random, ID_RANDOM_DIGITS);
        let tail = &digits[ID_RANDOM_DIGITS - ID_DIGITS..];
        Ok(Self::new(&format!("key_{tail}")))
    }
}

/// Why a text is no key of ours; whoever presents it has mistyped or mistaken it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidKey {
    /// Something else than letters and digits.
    #[error("an API key consists of letters and digits after `tbk_`")]
    Character,
    /// The checksum does not fit: a typo.
    #[error("the API key has an invalid checksum (mistyped?)")]
    Checksum,
    /// Cut off, or too long.
    #[error("an API key has 53 characters, this one has {found}")]
    Length {
        /// Its length, in bytes.
        found: usize,
    },
    /// It does not begin like a key.
    #[error("an API key starts with `tbk_`")]
    Prefix,
}

/// Enough for 256 bits: 62^43 > 2^256.
const SECRET_DIGITS: usize = 43;

/// Enough for 32 bits: 62^6 > 2^32.
const CHECKSUM_DIGITS: usize = 6;

/// Characters of the secret that people may see.
const SHOWN_DIGITS: usize = 4;

/// Random digits of an id: 71 bits, so that ids never meet.
const ID_DIGITS: usize = 12;

/// Enough for the 128 bits that an id is cut from: 62^22 > 2^128.
const ID_RANDOM_DIGITS: usize = 22;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The big-endian number in `bytes` as `digits` base62 digits, which must be enough.
fn base62(bytes: &[u8], digits: usize) -> String {
    let mut number = bytes.to_vec();
    let mut text = vec![b'0'; digits];
    for digit in text.iter_mut().rev() {
        *digit = ALPHABET[usize::from(div_rem_62(&mut number))];
    }
    debug_assert!(number.iter().all(|byte| *byte == 0), "too few digits");
    text.into_iter().map(char::from).collect()
}

/// Divides the big-endian `number` by 62 and returns the remainder.
fn div_rem_62(number: &mut [u8]) -> u8 {
    let mut rest = 0_u16;
    for byte in number {
        let part = rest << 8 | u16::from(*byte);
        *byte = low_byte(part / 62);
        rest = part % 62;
    }
    low_byte(rest)
}

/// The low byte of a number that has no other.
fn low_byte(number: u16) -> u8 {
    debug_assert!(number <= 0xff, "a quotient or remainder of a byte");
    number.to_le_bytes()[0]
}

fn checksum_of(text: &str) -> String {
    base62(&crc32(text.as_bytes()).to_be_bytes(), CHECKSUM_DIGITS)
}

/// CRC-32 as in IEEE 802.3 and zlib, bit by bit: keys are short and rarely read.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let low_bit = crc & 1;
            crc = (crc >> 1) ^ (0xEDB8_8320 * low_bit);
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn base62_counts_like_any_number() {
        let check = |bytes: &[u8], digits, text: &str| assert_eq!(base62(bytes, digits), text);
        check(&[0, 0], 3, "000");
        check(&[61], 2, "0z");
        check(&[62], 2, "10");
        check(&[0xff, 0xff, 0xff, 0xff], 6, "4gfFC3");
        check(&[0, 0, 0, 61], 6, "00000z");
    }

    #[test]
    fn keys_are_what_they_seem() {
        for secret in [[0; 32], [0xff; 32], [0x5a; 32]] {
            let key = ApiKey::from_secret(secret);
            assert_eq!(key.expose().len(), ApiKey::LENGTH);
            assert_eq!(ApiKey::parse(key.expose()), Ok(key.clone()));
            assert_eq!(key.hash(), KeyHash::of(key.expose()));
            assert_eq!(
                format!("{key:?}"),
                format!("ApiKey({}***)", key.display_prefix())
            );
        }
        let (one, two) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        assert_ne!(one, two);
        assert_ne!(KeyId::generate().unwrap(), KeyId::generate().unwrap());
        assert_eq!(KeyId::generate().unwrap().as_str().len(), 16);
    }

    #[test]
    fn a_key_keeps_its_text() {
        let zero = format!("tbk_{}", "0".repeat(43));
        let key = ApiKey::from_secret([0; 32]);
        assert_eq!(key.display_prefix(), "tbk_0000");
        insta::assert_snapshot!(key.expose().strip_prefix(&zero).unwrap(), @"2GtKfd");
    }

    #[test]
    fn every_single_typo_is_found() {
        let key = ApiKey::from_secret([0x5a; 32]);
        for at in ApiKey::PREFIX.len()..ApiKey::LENGTH {
            for wrong in ['0', 'A', 'z'] {
                let mut typo: Vec<char> = key.expose().chars().collect();
                if typo[at] != wrong {
                    typo[at] = wrong;
                    let typo: String = typo.into_iter().collect();
                    assert_eq!(ApiKey::parse(&typo), Err(InvalidKey::Checksum), "{typo}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_key_says_why() {
        let check = |text: &str, why| assert_eq!(ApiKey::parse(text), Err(why), "{text}");
        let key = ApiKey::from_secret([7; 32]);
        check("", InvalidKey::Prefix);
        check("sk-123", InvalidKey::Prefix);
        check("tbk_", InvalidKey::Length { found: 4 });
        check(&key.expose()[..52], InvalidKey::Length { found: 52 });
        check(
            &format!("{}0", key.expose()),
            InvalidKey::Length { found: 54 },
        );
        check(
            &format!("tbk_{}", "é".repeat(24) + "0"),
            InvalidKey::Character,
        );
    }
}
