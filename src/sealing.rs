//! Secrets at rest: what is written down of them can be read with the key alone, and only in the place that it was
//! written for (XChaCha20-Poly1305).

use std::fmt;

use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};

/// Begins what is sealed; another form would begin otherwise.
const FORM: u8 = 1;
/// Bytes of a nonce, which are random: so many never meet again.
const NONCE_BYTES: usize = 24;

/// Seals texts and opens them.
#[derive(Clone)]
pub struct SealingKey(XChaCha20Poly1305);

/// What was sealed cannot be read: with another key, for another place, or not as it was written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("it was sealed with another key, or changed since")]
pub struct UnsealError;

impl SealingKey {
    /// Seals with `key`, which is a secret.
    pub fn new(key: &[u8; 32]) -> Self {
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// `secret`, which only [`SealingKey::open`] for the same `place` reads: the table and key of a row.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn seal(&self, place: &str, secret: &[u8]) -> Result<Vec<u8>, getrandom::Error> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        let payload = Payload {
            msg: secret,
            aad: place.as_bytes(),
        };
        #[expect(clippy::expect_used, reason = "only texts beyond 256 GiB fail")]
        let sealed = (self.0.encrypt(&XNonce::from(nonce), payload)).expect("it is not that long");
        Ok([&[FORM], &nonce[..], &sealed].concat())
    }

    /// What was sealed for `place`.
    ///
    /// # Errors
    /// [`UnsealError`].
    pub fn open(&self, place: &str, sealed: &[u8]) -> Result<Vec<u8>, UnsealError> {
        let rest = sealed.strip_prefix(&[FORM]).ok_or(UnsealError)?;
        let (nonce, text) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(UnsealError)?;
        let payload = Payload {
            msg: text,
            aad: place.as_bytes(),
        };
        let opened = self.0.decrypt(&XNonce::from(*nonce), payload);
        opened.map_err(|_| UnsealError)
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_key_in_its_place_unchanged_alone() {
        let key = SealingKey::new(&[1; 32]);
        let sealed = key.seal("secrets/a", b"hunter2").unwrap();
        assert_eq!(key.open("secrets/a", &sealed).unwrap(), b"hunter2");
        assert_ne!(sealed, key.seal("secrets/a", b"hunter2").unwrap());
        assert_eq!(key.open("secrets/b", &sealed), Err(UnsealError));
        let other = SealingKey::new(&[2; 32]);
        assert_eq!(other.open("secrets/a", &sealed), Err(UnsealError));
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(key.open("secrets/a", &changed), Err(UnsealError), "{index}");
            assert_eq!(key.open("secrets/a", &sealed[..index]), Err(UnsealError));
        }
    }
}
