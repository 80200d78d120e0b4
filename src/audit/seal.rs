//! What ties lines together: every line ends in its number, the hash of the line before, and a hash.
//!
//! A sealed line is `{...,"seq":N,"prev":"<64 hex>","hash":"<64 hex>"}`. `hash` is SHA-256 over the
//! bytes from the first `{` up to, not including, `,"hash"`; since `prev` is among them, each hash
//! covers all lines before it, and `sha256sum` is all that is needed to check one by hand. The
//! `prev` of a chain's first line is zeros.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A SHA-256.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Hash([u8; 32]);

impl Hash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    fn parse(hex: &[u8]) -> Option<Self> {
        let mut hash = [0; 32];
        if hex.len() != HEX {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(hash))
    }

    pub(super) fn parse_text(hex: &str) -> Option<Self> {
        Self::parse(hex.as_bytes())
    }

    pub(super) fn hex(self) -> [u8; HEX] {
        let mut hex = [0; HEX];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            let [high, low] = PAIRS[usize::from(byte)];
            (pair[0], pair[1]) = (high, low);
        }
        hex
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hex()
            .iter()
            .try_for_each(|digit| fmt::Write::write_char(f, char::from(*digit)))
    }
}

/// A place in a chain: a line's number and its hash.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Link {
    /// Number of the line, from 1 in each chain; 0 is before the first.
    pub(super) seq: u64,
    /// Its hash.
    pub(super) hash: Hash,
}

/// Appends `line`, which lacks its `}`, to others with seal and newline, and says which link it is.
pub(super) fn seal(to: &mut Vec<u8>, line: &[u8], before: Link) -> Link {
    let (start, seq) = (to.len(), before.seq + 1);
    to.reserve(line.len() + SEAL_BYTES_MAX);
    to.extend_from_slice(line);
    to.extend_from_slice(SEQ);
    number(to, seq);
    to.extend_from_slice(PREV);
    to.extend_from_slice(&before.hash.hex());
    to.push(b'"');
    let hash = Hash::of(&to[start..]);
    to.extend_from_slice(HASH);
    to.extend_from_slice(&hash.hex());
    to.extend_from_slice(b"\"}\n");
    Link { seq, hash }
}

/// Appends `number` in decimal.
pub(super) fn number(to: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = DIGITS[(number % 10) as usize];
        number /= 10;
        if number == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

/// A line taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed<'a> {
    /// From `{` to the last member before the seal.
    pub(super) body: &'a [u8],
    /// The hash of the line before, as the line says.
    pub(super) prev: Hash,
    /// The line's own number and hash, as the line says.
    pub(super) link: Link,
    /// Whether the hash is that of the line.
    pub(super) genuine: bool,
}

/// Takes a line without its newline apart, unless it has no seal.
pub(super) fn unseal(line: &[u8]) -> Option<Sealed<'_>> {
    let open = line.strip_suffix(b"\"}")?;
    let (open, hash) = open.split_at_checked(open.len().checked_sub(HEX)?)?;
    let hashed = open.strip_suffix(HASH)?;
    let open = hashed.strip_suffix(b"\"")?;
    let (open, prev) = open.split_at_checked(open.len().checked_sub(HEX)?)?;
    let open = open.strip_suffix(PREV)?;
    let digits = open.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (open, seq) = open.split_at(open.len() - digits);
    let body = open.strip_suffix(SEQ)?;
    let hash = Hash::parse(hash)?;
    Some(Sealed {
        body,
        prev: Hash::parse(prev)?,
        link: Link {
            seq: std::str::from_utf8(seq).ok()?.parse().ok()?,
            hash,
        },
        genuine: Hash::of(hashed) == hash,
    })
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        _ => None,
    }
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Every byte as two digits.
static PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 15]];
        byte += 1;
    }
    pairs
};

const HEX: usize = 64;
const SEQ: &[u8] = b",\"seq\":";
const PREV: &[u8] = b",\"prev\":\"";
const HASH: &[u8] = b",\"hash\":\"";

/// Bytes that a seal adds at most, newline included.
pub(super) const SEAL_BYTES_MAX: usize =
    SEQ.len() + 20 + PREV.len() + HEX + 1 + HASH.len() + HEX + 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_line_can_be_checked_by_hand() {
        let mut line = Vec::new();
        let link = seal(&mut line, b"{\"kind\":\"end\"", Link::default());
        // printf '{"kind":"end","seq":1,"prev":"%064d"' 0 | sha256sum
        let hash = "cc3548ed4c176d1c515b578a9edf9725e6d2a534af92552ee9758d9fe6926c72";
        let zeros = "0".repeat(64);
        assert_eq!(
            String::from_utf8(line.clone()).unwrap(),
            format!("{{\"kind\":\"end\",\"seq\":1,\"prev\":\"{zeros}\",\"hash\":\"{hash}\"}}\n")
        );
        let sealed = unseal(line.trim_ascii_end()).unwrap();
        assert_eq!(sealed.link, link);
        assert_eq!(sealed.body, b"{\"kind\":\"end\"");
        assert_eq!(sealed.prev, Hash::default());
        assert!(sealed.genuine);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let mut line = Vec::new();
        let body = b"{\"kind\":\"event\",\"subject\":\"x\"";
        let link = seal(&mut line, body, Link::default());
        let line = line.trim_ascii_end();
        for at in 0..line.len() {
            let mut changed = line.to_vec();
            changed[at] ^= 1;
            let passes = unseal(&changed).is_some_and(|sealed| {
                sealed.genuine && sealed.link == link && sealed.prev == Hash::default()
            });
            assert!(!passes, "byte {at}");
        }
    }

    #[test]
    fn what_has_no_seal_is_no_line() {
        for line in [
            "",
            "}",
            "\"}",
            "{\"kind\":\"end\"}",
            "{\"seq\":1,\"prev\":\"\",\"hash\":\"\"}",
        ] {
            assert!(unseal(line.as_bytes()).is_none(), "{line}");
        }
    }

    #[test]
    fn numbers_are_decimal() {
        for n in [0, 7, 10, 1_000_000, u64::MAX] {
            let mut text = Vec::new();
            number(&mut text, n);
            assert_eq!(text, n.to_string().into_bytes());
        }
    }
}
