//! A Unix socket to listen on, for machines that other users share: the system says whose process connects,
//! and who is not root, the user of the gateway or one of `socket.uids` is turned away.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
};

use rustix::process::geteuid;
use tokio::{
    net::{UnixListener, UnixStream},
    time::Instant,
};

use crate::{config::SocketConfig, lock::lock, names::PeerAddress, telemetry::LogThrottle};

/// The user who may do everything.
const ROOT_UID: u32 = 0;

/// A bound socket; its file is removed when it is dropped.
#[derive(Debug)]
pub(super) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it is, by device and number.
    file_id: (u64, u64),
    uids: Vec<u32>,
    refusal_log: Mutex<LogThrottle>,
}

impl UnixSocket {
    /// Binds `path`, in place of a socket on which nobody listens any more.
    ///
    /// # Errors
    /// Why not, in words for the operator.
    pub(super) async fn bind(path: &Path, socket: &SocketConfig) -> Result<Self, String> {
        check_directory(path)?;
        remove_stale(path).await?;
        let bound = || {
            let listener = UnixListener::bind(path)?;
            // Whoever connects before is asked for their user all the same.
            fs::set_permissions(path, fs::Permissions::from_mode(socket.mode))?;
            Ok((listener, file_id(path)?))
        };
        let (listener, file) = bound().map_err(|error: io::Error| error.to_string())?;
        let mut uids = socket.uids.clone();
        uids.extend([ROOT_UID, geteuid().as_raw()]);
        Ok(Self {
            listener,
            path: path.to_owned(),
            file_id: file,
            uids,
            refusal_log: Mutex::default(),
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection of a user who may connect.
    pub(super) async fn accept(&self) -> io::Result<(UnixStream, PeerAddress)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            if self.uids.contains(&uid) {
                return Ok((stream, PeerAddress::User(uid)));
            }
            if let Some(more) = lock(&self.refusal_log).record(Instant::now()) {
                tracing::warn!(
                    uid,
                    more,
                    "rejected a connection to the Unix socket: user not in socket.uids"
                );
            }
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another may have taken its place.
        if file_id(&self.path).is_ok_and(|file| file == self.file_id) {
            drop(fs::remove_file(&self.path));
        }
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// In a directory where everybody may replace files, clients could find somebody else's socket in place of
/// ours, and show their keys to that. The sticky bit keeps others from it.
fn check_directory(path: &Path) -> Result<(), String> {
    let directory = path.parent().unwrap_or(path);
    let found = fs::metadata(directory)
        .map_err(|error| format!("its directory {}: {error}", directory.display()))?;
    if found.mode() & 0o1002 == 0o002 {
        let directory = directory.display();
        return Err(format!(
            "{directory} is writable by everyone: run `chmod o-w`"
        ));
    }
    Ok(())
}

/// Removes a socket that was left behind by a process that was killed.
async fn remove_stale(path: &Path) -> Result<(), String> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err(
            "the path exists and is not a socket; remove it, or choose another path".to_owned(),
        );
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| format!("cannot remove the stale socket: {error}")),
        // One whose queue is full has somebody who listens.
        Ok(_) | Err(_) => {
            Err("another program is listening on it: stop it, or choose another path".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    const SOCKET: SocketConfig = SocketConfig {
        mode: 0o620,
        uids: Vec::new(),
    };

    #[tokio::test]
    async fn a_socket_takes_the_place_of_one_that_is_left_and_of_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sock");
        let fails = async |path: &Path, why: &str| {
            let failed = UnixSocket::bind(path, &SOCKET).await.unwrap_err();
            assert!(failed.contains(why), "{failed}");
        };
        let first = UnixSocket::bind(&path, &SOCKET).await.unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o620);
        fails(&path, "another program is listening on it").await;
        drop(first);
        assert!(!path.exists(), "it is removed");
        // A process that is killed removes nothing.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let second = UnixSocket::bind(&path, &SOCKET).await.unwrap();
        fs::remove_file(&path).unwrap();
        let third = UnixSocket::bind(&path, &SOCKET).await.unwrap();
        drop(second);
        assert!(path.exists(), "that of another is not removed");
        let link = directory.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        fails(&link, "not a socket").await;
        drop(third);
        fs::write(&path, "something").unwrap();
        fails(&path, "not a socket").await;
        assert_eq!(fs::read_to_string(&path).unwrap(), "something");
        fails(directory.path(), "not a socket").await;
        fails(&path.join("beneath.sock"), "Not a directory").await;
        fails(&directory.path().join("a/b.sock"), "its directory").await;
    }

    #[tokio::test]
    async fn a_directory_in_which_everybody_may_replace_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sock");
        for (mode, is_taken) in [(0o777, false), (0o1777, true), (0o770, true)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(directory.path(), mode).unwrap();
            assert_eq!(UnixSocket::bind(&path, &SOCKET).await.is_ok(), is_taken);
        }
    }

    #[tokio::test]
    async fn a_user_who_may_not_connect_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.sock");
        let mut socket = UnixSocket::bind(&path, &SOCKET).await.unwrap();
        socket.uids = vec![u32::MAX];
        let mut refused = UnixStream::connect(&path).await.unwrap();
        tokio::select! {
            _ = socket.accept() => panic!("it was let in"),
            closed = refused.read_u8() => assert!(closed.is_err()),
        }
        let own = geteuid().as_raw();
        socket.uids = vec![own];
        let (accepted, connected) = tokio::join!(socket.accept(), UnixStream::connect(&path));
        assert_eq!(accepted.unwrap().1, PeerAddress::User(own));
        connected.unwrap();
    }
}
