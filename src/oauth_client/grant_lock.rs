//! Of all processes of a data directory one at a time renews a grant.
//!
//! A refresh token that is sent twice makes many issuers revoke the grant. The lock is one of the operating
//! system on a file, which a process that dies gives up.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use crate::{store::GrantKey, task::run_blocking};

/// How often it is tried while another process has the lock.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The lock of a grant; dropping it gives it up.
#[derive(Debug)]
pub(super) struct GrantLock {
    _file: File,
    path: PathBuf,
}

impl GrantLock {
    /// Waits for the lock of `key`, until `deadline`.
    pub(super) async fn acquire(
        directory: &Path,
        key: &GrantKey,
        deadline: Instant,
    ) -> io::Result<Self> {
        let name = hex::encode(&Sha256::digest(key.place())[..16]);
        let path = directory.join(format!("grant-{name}.lock"));
        loop {
            let here = path.clone();
            if let Some(file) = run_blocking(move || try_lock(&here)).await? {
                return Ok(Self { _file: file, path });
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Gives the lock up together with its file: there is no such grant any more.
    pub(super) async fn remove(self) {
        run_blocking(move || {
            if let Err(error) = fs::remove_file(&self.path) {
                tracing::debug!(%error, "the lock of a grant is left over");
            }
        })
        .await;
    }
}

fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().unwrap_or(Path::new("."));
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)?;
            options.open(path)?
        }
        opened => opened?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Whoever had it may have removed the file: then the lock is one on nothing.
    let is_there = fs::metadata(path).is_ok_and(|there| {
        let is_same = |mine: &fs::Metadata| (mine.dev(), mine.ino()) == (there.dev(), there.ino());
        file.metadata().is_ok_and(|mine| is_same(&mine))
    });
    Ok(is_there.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::GrantOwner;

    #[tokio::test]
    async fn one_at_a_time_has_the_lock_of_a_grant() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("locks");
        let key = |resource: &str| GrantKey {
            resource: resource.to_owned(),
            issuer: "https://as".to_owned(),
            owner: GrantOwner::Gateway,
        };
        let soon = || Instant::now() + Duration::from_millis(50);
        let (a, b) = (key("https://a"), key("https://b"));
        let first = GrantLock::acquire(&directory, &a, soon()).await.unwrap();
        GrantLock::acquire(&directory, &b, soon()).await.unwrap();
        let second = GrantLock::acquire(&directory, &a, soon()).await;
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(first);
        let second = GrantLock::acquire(&directory, &a, soon()).await.unwrap();
        second.remove().await;
        let third = GrantLock::acquire(&directory, &a, soon()).await.unwrap();
        let fourth = GrantLock::acquire(&directory, &a, soon()).await;
        assert!(fourth.is_err());
        drop(third);
    }
}
