//! The key that secrets are sealed with: read from where the config says, and derived for each purpose.

use std::{
    fmt, fs,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{config::SecretKeyPlace, key_file};

/// A key has at least as many bytes; shorter ones could be guessed.
const KEY_BYTES_MIN: usize = 32;
/// A key has at most as many bytes.
const KEY_BYTES_MAX: u64 = 4096;

/// The key for all purposes, which stood outside of the store.
#[derive(Clone)]
pub(super) struct SecretKey(Vec<u8>);

impl SecretKey {
    /// The key in `place`; `None` where that is the key of the store.
    pub(super) fn read(place: &SecretKeyPlace) -> Result<Option<Self>, SecretKeyError> {
        let bytes = match place {
            SecretKeyPlace::DataDir => return Ok(None),
            SecretKeyPlace::Credential(path) | SecretKeyPlace::File(path) => read_file(path)
                .map_err(|source| SecretKeyError::Io {
                    place: place.to_string(),
                    source,
                })?,
            SecretKeyPlace::Variable(value) => value.expose().as_bytes().to_vec(),
        };
        // Files that people wrote end in a line break; keys of random bytes are that long exactly.
        let key = match bytes.len() {
            KEY_BYTES_MIN => &bytes,
            _ => bytes.trim_ascii(),
        };
        if key.len() < KEY_BYTES_MIN {
            return Err(SecretKeyError::TooShort {
                place: place.to_string(),
                found: key.len(),
            });
        }
        Ok(Some(Self(key.to_vec())))
    }

    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        key_file::derive_key(&self.0, purpose)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(***)")
    }
}

/// What `path` holds, unless every user of this machine may read it.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    let about = file.metadata()?;
    let mode = about.permissions().mode() & 0o777;
    if !about.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if mode & 0o007 != 0 {
        let why = format!("its mode {mode:04o} is open to other users; run `chmod 600`");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut bytes = Vec::new();
    file.take(KEY_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > KEY_BYTES_MAX {
        return Err(io::Error::other("more than 4096 bytes are no key"));
    }
    Ok(bytes)
}

/// Why secrets cannot be sealed or opened; the operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum SecretKeyError {
    /// The key cannot be read.
    #[error("the key of secrets in {place} cannot be read: {source}")]
    Io {
        /// Where it should stand.
        place: String,
        /// What is in the way.
        source: io::Error,
    },
    /// The key could be guessed.
    #[error(
        "the key of secrets in {place} has {found} bytes, at least 32 are needed; make one with \
         `openssl rand -base64 32`"
    )]
    TooShort {
        /// Where it stands.
        place: String,
        /// Its bytes.
        found: usize,
    },
    /// What is in the store was sealed with another key.
    #[error(
        "the key in {looked} is not the one that the {purpose} in {database} are sealed with, which \
         stood in {place}; nothing was changed. Restore that key{}", help_if_lost(.purpose)
    )]
    Wrong {
        /// What is sealed.
        purpose: String,
        /// The store.
        database: PathBuf,
        /// Where a key was found.
        looked: String,
        /// Where the right one stood.
        place: String,
    },
}

/// What helps where the right key is lost.
fn help_if_lost(purpose: &str) -> &'static str {
    match purpose {
        super::SECRETS_PURPOSE => {
            ", or remove all secrets (`tollbridge secret remove`) and set them again"
        }
        super::GRANTS_PURPOSE => {
            ", or give up all grants (`tollbridge logout --all`) and sign in again"
        }
        _ => "",
    }
}
