//! Files with a secret key each, which gateways make themselves: 32 random bytes, for the owner alone.
//!
//! They stand where the programs of servers cannot read them. Several processes may start at once on
//! one directory: the first one's key holds for all.

use std::{
    fmt,
    fs::{File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use hmac::{Hmac, Mac};
use rustix::fs::OFlags;
use sha2::Sha256;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// A secret key.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct FileKey([u8; KEY_BYTES]);

impl FileKey {
    /// The key in `path`; where there is no such file, a new one, which is kept there with mode 0600.
    ///
    /// # Errors
    /// Says what is in the way.
    pub(crate) fn read_or_create(path: &Path) -> Result<Self, KeyFileError> {
        if let Some(key) = Self::read(path)? {
            return Ok(key);
        }
        create(path)?;
        let gone = || KeyFileError::Io(path.to_owned(), io::ErrorKind::NotFound.into());
        Self::read(path)?.ok_or_else(gone)
    }

    /// The key in `path`; `None` where there is no such file.
    ///
    /// # Errors
    /// Says what is wrong with the file. One that its group may use, as file systems of containers make
    /// it, is put right.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, KeyFileError> {
        let failed = |error| KeyFileError::Io(path.to_owned(), error);
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(nonblocking)
            .open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let known = file.metadata().map_err(failed)?;
        let mode = known.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(KeyFileError::UnsafePermissions(path.to_owned(), mode));
        }
        if mode & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(mode & 0o700))
                .map_err(failed)?;
        }
        let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
        if known.is_file() {
            let mut limited = file.take(KEY_BYTES as u64 + 1);
            limited.read_to_end(&mut bytes).map_err(failed)?;
        }
        let key = <[u8; KEY_BYTES]>::try_from(bytes);
        key.map(|key| Some(Self(key)))
            .map_err(|_| KeyFileError::NotAKey(path.to_owned()))
    }

    /// A key that is kept nowhere.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub(crate) fn generate() -> Result<Self, getrandom::Error> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// The bytes themselves, for a signature scheme that takes such.
    pub(crate) fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// A key of its own for one purpose, from which neither this one nor those of others can be told.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        derive_key(&self.0, purpose)
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(***)")
    }
}

/// The key for one purpose that is derived from the secret `key`.
pub(crate) fn derive_key(key: &[u8], purpose: &str) -> [u8; KEY_BYTES] {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
    mac.update(purpose.as_bytes());
    mac.finalize().into_bytes().into()
}

/// Why a file gives no key; the operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read, or made.
    #[error("the key file {}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
    /// What is in it is not what was put there.
    #[error(
        "the key file {} is not 32 bytes long; restore it from a backup", .0.display()
    )]
    NotAKey(PathBuf),
    /// Everybody on this machine may use it.
    #[error(
        "the key file {} has mode {:04o}, which is open to other users: run `chmod 600`, and take the key \
         for compromised if others can reach its directory", .0.display(), .1
    )]
    UnsafePermissions(PathBuf, u32),
}

/// Puts a new key into `path`, unless another process was faster. The name appears once all is written.
fn create(path: &Path) -> Result<(), KeyFileError> {
    let failed = |error| KeyFileError::Io(path.to_owned(), error);
    let directory = path.parent().unwrap_or(Path::new("."));
    let key = FileKey::generate().map_err(|error| failed(error.into()))?;
    // Such files have mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    file.write_all(&key.0).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error.error)),
    }
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fs, thread};

    use super::*;

    #[test]
    fn processes_that_start_together_have_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret.key");
        let keys: HashSet<[u8; KEY_BYTES]> = thread::scope(|scope| {
            let started: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| FileKey::read_or_create(&path).unwrap().0))
                .collect();
            started.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(keys.len(), 1);
        assert_ne!(keys.into_iter().next().unwrap(), [0; KEY_BYTES]);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Nothing is left of those that were slower.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_key_of_the_owner_alone_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret.key");
        let check = |content: &[u8], mode: u32, expect: &str| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = FileKey::read_or_create(&path).map_err(|error| error.to_string());
            match read {
                Ok(key) => assert_eq!((key.0.as_slice(), ""), (content, expect)),
                Err(error) => assert!(!expect.is_empty() && error.contains(expect), "{error}"),
            }
        };
        check(&[7; 32], 0o600, "");
        check(&[7; 32], 0o400, "");
        // Containers give files of volumes to a group.
        check(&[7; 32], 0o660, "");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        check(&[7; 32], 0o604, "has mode 0604");
        check(&[7; 32], 0o602, "has mode 0602");
        check(&[7; 31], 0o600, "32 bytes");
        check(&[7; 33], 0o600, "32 bytes");
        check(&[], 0o600, "32 bytes");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let error = FileKey::read(&path).unwrap_err().to_string();
        assert!(error.contains("32 bytes"), "{error}");
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let (one, two) = (FileKey([1; 32]), FileKey([2; 32]));
        let derived = [one.derive("a"), one.derive("b"), two.derive("a"), one.0];
        assert_eq!(derived.iter().collect::<HashSet<_>>().len(), 4);
        assert_eq!(one.derive("a"), derived[0]);
        assert_eq!(format!("{one:?}"), "FileKey(***)");
    }
}
