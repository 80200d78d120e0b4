//! What ties lines together: every line ends in its number, the hash of the line before, and a hash.
//!
//! A sealed line is `{...,"seq":N,"prev":"<64 hex>","hash":"<64 hex>"}`. `hash` is SHA-256 over the
//! bytes from the first `{` up to, not including, `,"hash"`; since `prev` is among them, each hash
//! covers all lines before it, and `sha256sum` is all that is needed to check one by hand. The
//! `prev` of a chain's first line is zeros. Some lines have a signature after that:
//! `,"sig":"<128 hex>"` (see `signature`).

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

use super::signature::SIGNATURE_BYTES;

/// A SHA-256, such as that of a line: 64 hex digits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Hash([u8; 32]);

impl Hash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn parse(hex: &[u8]) -> Option<Self> {
        parse_hex(hex).map(Self)
    }

    pub(super) fn parse_text(hex: &str) -> Option<Self> {
        Self::parse(hex.as_bytes())
    }

    pub(super) fn hex(self) -> [u8; HEX] {
        hex(&self.0)
    }
}

impl FromStr for Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        Self::parse_text(text).ok_or(InvalidHash)
    }
}

/// A text that is no hash.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a hash is 64 hex digits, as `audit verify --json` prints it")]
pub struct InvalidHash;

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// A place in a chain: a line's number and its hash.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct ChainPosition {
    /// Number of the line, from 1 in each chain; 0 is before the first.
    pub(super) seq: u64,
    /// Its hash.
    pub(super) hash: Hash,
}

/// Appends `line`, which lacks its `}`, to others with seal and newline, signed by `sign` where it is to
/// be, and says which link it is.
pub(super) fn append_sealed(
    to: &mut Vec<u8>,
    line: &[u8],
    before: ChainPosition,
    sign: Option<&dyn Fn(ChainPosition) -> [u8; SIGNATURE_BYTES]>,
) -> ChainPosition {
    let (start, seq) = (to.len(), before.seq + 1);
    to.reserve(line.len() + SEAL_BYTES_MAX);
    to.extend_from_slice(line);
    to.extend_from_slice(SEQ_KEY);
    append_number(to, seq);
    to.extend_from_slice(PREV_KEY);
    to.extend_from_slice(&before.hash.hex());
    to.push(b'"');
    let hash = Hash::of(&to[start..]);
    to.extend_from_slice(HASH_KEY);
    to.extend_from_slice(&hash.hex());
    let position = ChainPosition { seq, hash };
    if let Some(sign) = sign {
        to.extend_from_slice(SIGNATURE_KEY);
        to.extend_from_slice(&hex::<{ 2 * SIGNATURE_BYTES }>(&sign(position)));
    }
    to.extend_from_slice(b"\"}\n");
    position
}

/// Appends `number` in decimal.
pub(super) fn append_number(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A line taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealedLine<'a> {
    /// From `{` to the last member before the seal.
    pub(super) body: &'a [u8],
    /// The hash of the line before, as the line says.
    pub(super) prev: Hash,
    /// The line's own number and hash, as the line says.
    pub(super) position: ChainPosition,
    /// Whether the hash is that of the line.
    pub(super) is_hash_valid: bool,
    /// The signature, if there is one.
    pub(super) signature: Option<[u8; SIGNATURE_BYTES]>,
}

/// Takes a line without its newline apart, unless it has no seal.
pub(super) fn unseal(line: &[u8]) -> Option<SealedLine<'_>> {
    let (hashed, hash, signature) = split_hash(line)?;
    let open = hashed.strip_suffix(b"\"")?;
    let (open, prev) = open.split_at_checked(open.len().checked_sub(HEX)?)?;
    let open = open.strip_suffix(PREV_KEY)?;
    let digits = open.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let (open, seq) = open.split_at(open.len() - digits);
    let body = open.strip_suffix(SEQ_KEY)?;
    Some(SealedLine {
        body,
        prev: Hash::parse(prev)?,
        position: ChainPosition {
            seq: std::str::from_utf8(seq).ok()?.parse().ok()?,
            hash,
        },
        is_hash_valid: Hash::of(hashed) == hash,
        signature,
    })
}

/// The hash of a line, as the line says.
pub(super) fn claimed_hash(line: &[u8]) -> Option<Hash> {
    split_hash(line).map(|(_, hash, _)| hash)
}

/// What is hashed of a line, the hash, and the signature, if there is one.
#[expect(clippy::type_complexity, reason = "it is taken apart at once")]
fn split_hash(line: &[u8]) -> Option<(&[u8], Hash, Option<[u8; SIGNATURE_BYTES]>)> {
    let mut open = line.strip_suffix(b"\"}")?;
    let mut signature = None;
    if let Some((rest, hex)) = open.split_at_checked(open.len().saturating_sub(2 * SIGNATURE_BYTES))
        && let Some(rest) = rest.strip_suffix(SIGNATURE_KEY)
    {
        signature = Some(parse_hex(hex)?);
        open = rest;
    }
    let (open, hash) = open.split_at_checked(open.len().checked_sub(HEX)?)?;
    Some((open.strip_suffix(HASH_KEY)?, Hash::parse(hash)?, signature))
}

/// The hex digits of bytes, half as many as digits.
pub(super) fn hex<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut digits = [0; N];
    hex::encode_to_slice(bytes, &mut digits).expect("every length here is known");
    digits
}

/// The bytes that hex digits stand for; each has one form only.
pub(super) fn parse_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_lower = !digits.iter().any(u8::is_ascii_uppercase);
    let read = hex::decode_to_slice(digits, &mut bytes);
    read.is_ok().then_some(bytes).filter(|_| is_lower)
}

const HEX: usize = 64;
const SEQ_KEY: &[u8] = b",\"seq\":";
const PREV_KEY: &[u8] = b",\"prev\":\"";
const HASH_KEY: &[u8] = b",\"hash\":\"";
const SIGNATURE_KEY: &[u8] = b"\",\"sig\":\"";

/// Bytes that a seal adds at most, newline included.
pub(super) const SEAL_BYTES_MAX: usize = SEQ_KEY.len()
    + 20
    + PREV_KEY.len()
    + HEX
    + 1
    + HASH_KEY.len()
    + HEX
    + SIGNATURE_KEY.len()
    + 2 * SIGNATURE_BYTES
    + 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_line_can_be_checked_by_hand() {
        let mut line = Vec::new();
        let link = append_sealed(
            &mut line,
            b"{\"kind\":\"end\"",
            ChainPosition::default(),
            None,
        );
        // printf '{"kind":"end","seq":1,"prev":"%064d"' 0 | sha256sum
        let hash = "cc3548ed4c176d1c515b578a9edf9725e6d2a534af92552ee9758d9fe6926c72";
        let zeros = "0".repeat(64);
        assert_eq!(
            String::from_utf8(line.clone()).unwrap(),
            format!("{{\"kind\":\"end\",\"seq\":1,\"prev\":\"{zeros}\",\"hash\":\"{hash}\"}}\n")
        );
        let sealed = unseal(line.trim_ascii_end()).unwrap();
        assert_eq!(sealed.position, link);
        assert_eq!(sealed.body, b"{\"kind\":\"end\"");
        assert_eq!(sealed.prev, Hash::default());
        assert!(sealed.is_hash_valid);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let mut line = Vec::new();
        let body = b"{\"kind\":\"event\",\"subject\":\"x\"";
        let link = append_sealed(&mut line, body, ChainPosition::default(), None);
        let line = line.trim_ascii_end();
        for at in 0..line.len() {
            let mut changed = line.to_vec();
            changed[at] ^= 1;
            let passes = unseal(&changed).is_some_and(|sealed| {
                sealed.is_hash_valid && sealed.position == link && sealed.prev == Hash::default()
            });
            assert!(!passes, "byte {at}");
        }
    }

    #[test]
    fn a_signature_stands_after_the_hash() {
        let mut line = Vec::new();
        let sign = |_| [0xab; SIGNATURE_BYTES];
        let link = append_sealed(
            &mut line,
            b"{\"kind\":\"end\"",
            ChainPosition::default(),
            Some(&sign),
        );
        let line = line.trim_ascii_end();
        let sealed = unseal(line).unwrap();
        assert_eq!((sealed.position, sealed.is_hash_valid), (link, true));
        assert_eq!(sealed.signature, Some([0xab; SIGNATURE_BYTES]));
        let mut broken = line.to_vec();
        broken[line.len() - 3] = b'x';
        assert!(unseal(&broken).is_none());
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
}
