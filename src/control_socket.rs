//! The control socket: how the command line tells running gateways that the store has changed.
//!
//! Every gateway listens on a Unix socket of its own in `DATA_DIR/control`, which only its user may
//! open. A command writes to the store first and then tells all of them; each answers once it has
//! read the store again, so that a revoked key or a reset budget counts when the command ends.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    time::timeout,
};

use crate::{launcher, task::Tasks};

/// How long either side waits for the other.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// The one thing that can be asked.
const REFRESH_COMMAND: &str = "refresh";
/// The answer once it is done; anything else is what went wrong.
const DONE_REPLY: &str = "done";
/// Bytes of a line; longer ones come from nobody of ours.
const LINE_BYTES_MAX: u64 = 4096;

/// A bound control socket, removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds the socket of this process in `data_dir`.
    ///
    /// # Errors
    /// When the directory cannot be written, or its path is longer than a socket's may be.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let directory = socket_dir(data_dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let name = format!("{}.sock", uuid::Uuid::now_v7().simple());
        let path = directory.join(name);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path })
    }

    /// Answers commands until the tasks stop; `refresh` reads the store again.
    pub async fn serve<F>(self, tasks: Tasks, refresh: impl Fn() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = tasks.stop_token().cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let answered = timeout(IO_TIMEOUT, handle_command(stream, &refresh)).await;
                    if let Ok(Err(error)) = answered {
                        tracing::debug!(%error, "command connection failed");
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket cannot accept connections");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

async fn handle_command<F>(mut stream: UnixStream, refresh: &impl Fn() -> F) -> io::Result<()>
where
    F: Future<Output = Result<(), String>>,
{
    let line = read_line(&mut stream).await?;
    let peer = stream.peer_cred()?.pid();
    let reply = if peer.is_some_and(launcher::is_descendant_of_launcher) {
        tracing::warn!(
            peer,
            "rejected a connection to the control socket from a server process"
        );
        "server processes may not use the control socket".to_owned()
    } else if line == REFRESH_COMMAND {
        match refresh().await {
            Ok(()) => DONE_REPLY.to_owned(),
            Err(error) => error.replace('\n', " "),
        }
    } else {
        format!("unknown command `{line}`")
    };
    stream.write_all(format!("{reply}\n").as_bytes()).await
}

/// What came of telling the running gateways.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NotifyOutcome {
    /// Gateways that have read the store again.
    pub gateways: usize,
    /// What went wrong with others, for people.
    pub failures: Vec<String>,
}

/// Tells every gateway that runs on `data_dir` to read the store again, and waits until they have.
pub async fn notify_all(data_dir: &Path) -> NotifyOutcome {
    let mut outcome = NotifyOutcome::default();
    let Ok(entries) = fs::read_dir(socket_dir(data_dir)) else {
        return outcome;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        match timeout(IO_TIMEOUT, notify(&path)).await {
            Ok(Ok(reply)) if reply == DONE_REPLY => outcome.gateways += 1,
            Ok(Ok(reply)) => outcome.failures.push(reply),
            // Left behind by a gateway that was killed.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                drop(fs::remove_file(&path));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(Err(error)) => outcome
                .failures
                .push(format!("{}: {error}", path.display())),
            Err(_) => {
                let message = format!("{} did not answer within {IO_TIMEOUT:?}", path.display());
                outcome.failures.push(message);
            }
        }
    }
    outcome
}

async fn notify(path: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(path).await?;
    stream
        .write_all(format!("{REFRESH_COMMAND}\n").as_bytes())
        .await?;
    read_line(&mut stream).await
}

async fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    use tokio::io::AsyncReadExt;

    let mut line = String::new();
    let mut reader = BufReader::new(stream).take(LINE_BYTES_MAX);
    reader.read_line(&mut line).await?;
    Ok(line.trim_end().to_owned())
}

fn socket_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("control")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn every_gateway_refreshes_before_the_command_ends() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let socket = ControlSocket::bind(dir.path()).unwrap();
            let (served, count) = (tasks.clone(), Arc::clone(&count));
            tasks.spawn("control", async move {
                let refresh = || async {
                    count.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                socket.serve(served, refresh).await;
            });
        }
        // What a killed gateway leaves behind.
        let dead = dir.path().join("control/dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());

        let outcome = notify_all(dir.path()).await;
        assert_eq!((outcome.gateways, outcome.failures), (2, Vec::new()));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(!dead.exists());
        tasks.finish().await;
        assert_eq!(notify_all(dir.path()).await, NotifyOutcome::default());
        assert_eq!(fs::read_dir(dir.path().join("control")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_gateway_that_cannot_refresh_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let served = tasks.clone();
        tasks.spawn("control", async move {
            let refresh = || async { Err("the store\nis gone".to_owned()) };
            socket.serve(served, refresh).await;
        });
        let outcome = notify_all(dir.path()).await;
        assert_eq!(outcome.failures, ["the store is gone"]);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn others_cannot_open_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&socket.path), 0o600);
        assert_eq!(mode(&socket_dir(dir.path())), 0o700);
    }
}
