//! Signatures over places of chains: whoever can write the files can make hashes that fit, but no
//! signature without the key.
//!
//! A signature (Ed25519) is over the chain, the number of the line and its hash, and so over every line
//! before it; it stands after the hash of the line. The first line of each segment has one, the last
//! line of a chain, every line `retired`, and lines `checkpoint` between them.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use super::{
    AuditError, ChainId,
    hash_chain::{ChainPosition, SealedLine, parse_hex, unseal},
};
use crate::key_file::FileKey;

/// Bytes of a signature.
pub(super) const SIGNATURE_BYTES: usize = 64;

/// Sets our signatures apart from others that are made with the same key.
const SIGNATURE_CONTEXT: &[u8] = b"tollbridge audit v1\0";

/// What the lines of this data directory are signed with.
pub(super) struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// The key of the log in `log_dir`, which is made where there is none.
    pub(super) fn load_or_create(log_dir: &Path) -> Result<Self, AuditError> {
        let key = FileKey::read_or_create(&key_file(log_dir))?;
        Ok(Self::new(key.expose()))
    }

    #[expect(clippy::expect_used, reason = "a seed has 32 bytes")]
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes will do"))
    }

    /// Its public half.
    pub(super) fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(key)
    }

    pub(super) fn sign(&self, chain: ChainId, position: ChainPosition) -> [u8; SIGNATURE_BYTES] {
        let mut signature = [0; SIGNATURE_BYTES];
        let made = self.0.sign(&signed_message(chain, position));
        signature.copy_from_slice(made.as_ref());
        signature
    }
}

/// The key that signatures are checked with: 64 hex digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key of the log in `log_dir`, where it has one.
    ///
    /// # Errors
    /// When the file of the key cannot be used.
    pub fn load(log_dir: &Path) -> Result<Option<Self>, AuditError> {
        let key = FileKey::read(&key_file(log_dir))?;
        Ok(key.map(|key| SigningKey::new(key.expose()).public()))
    }

    /// A line of `chain` taken apart, if it is as it was when it was signed with this key.
    pub(super) fn verify_line<'a>(&self, chain: ChainId, line: &'a [u8]) -> Option<SealedLine<'a>> {
        let sealed = unseal(line)?;
        let signature = sealed.signature?;
        let is_signed = sealed.is_hash_valid && self.verify(chain, sealed.position, &signature);
        is_signed.then_some(sealed)
    }

    pub(super) fn verify(&self, chain: ChainId, position: ChainPosition, signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        key.verify(&signed_message(chain, position), signature)
            .is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = InvalidPublicKey;

    fn from_str(text: &str) -> Result<Self, InvalidPublicKey> {
        parse_hex(text.as_bytes()).map(Self).ok_or(InvalidPublicKey)
    }
}

/// A text that is no public key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a public key is 64 hex digits, as `audit public-key` prints it")]
pub struct InvalidPublicKey;

/// Beside the log and not in it: files of the log may go elsewhere.
fn key_file(log_dir: &Path) -> PathBuf {
    log_dir.with_extension("key")
}

fn signed_message(chain: ChainId, position: ChainPosition) -> Vec<u8> {
    let seq = position.seq.to_be_bytes();
    [
        SIGNATURE_CONTEXT,
        chain.as_bytes(),
        &seq,
        position.hash.as_bytes(),
    ]
    .concat()
}
