//! Whether a command works where the gateway does: as the same user, on the same data directory.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::{Uid, User};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::CommandError;
use crate::{
    config::{Config, Listen},
    control_socket::{GatewayIdentity, canonical_files},
    store::FILE_NAME,
};

/// How long a gateway on this machine may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of a response head that are read.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// Refuses a root user whose files the owner of the store in `data_dir` could not open, which SQLite makes
/// even when it only reads.
pub(in crate::cli) fn check_store_owner(data_dir: &Path) -> Result<(), CommandError> {
    check_owner(&data_dir.join(FILE_NAME))
}

/// The same where there is no store yet: then the directory says whose it is to be. A gateway that is
/// started there is no such case, since containers run as root on directories of the host.
pub(in crate::cli) fn check_data_dir_owner(data_dir: &Path) -> Result<(), CommandError> {
    check_store_owner(data_dir)?;
    if data_dir.join(FILE_NAME).exists() {
        return Ok(());
    }
    check_owner(data_dir)
}

fn check_owner(path: &Path) -> Result<(), CommandError> {
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let owner = path.metadata().map(|found| Uid::from_raw(found.uid())).ok();
    let Some(owner) = owner.filter(|owner| !owner.is_root()) else {
        return Ok(());
    };
    let user = match User::from_uid(owner) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("#{owner}"),
    };
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let line = ["sudo", "-u", &user].into_iter();
    let line = line.chain(words.iter().map(String::as_str));
    let line = shlex::try_join(line).unwrap_or_default();
    Err(CommandError::usage(format!(
        "{} belongs to another user, who could not open the files of root; run\n  {line}",
        path.display()
    )))
}

/// Refuses a data directory that is not that of the gateway which runs with the same config `files`.
pub(in crate::cli) async fn check_gateway(
    config: &Config,
    files: &[PathBuf],
) -> Result<(), CommandError> {
    let (Ok(files), None) = (canonical_files(files), &config.tls) else {
        return Ok(());
    };
    // With a listener for them, probes are answered nowhere else.
    let listen = config.admin_listen.as_ref().unwrap_or(&config.listen);
    let Ok(Ok(Some(id))) = timeout(PROBE_TIMEOUT, probe(listen)).await else {
        return Ok(());
    };
    let data_dir = &config.data_dir;
    if !id.has_config(&files) || id.is_on(data_dir).unwrap_or(true) {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "the gateway that runs with this config on {listen} has another data directory than {}: run the \
         command as its user, or set `data_dir` or TOLLBRIDGE_DATA_DIR as it does",
        data_dir.display()
    )))
}

/// What the gateway that listens there says it is.
async fn probe(listen: &Listen) -> io::Result<Option<GatewayIdentity>> {
    match listen {
        Listen::Address(address) => {
            let mut address = *address;
            if address.ip().is_unspecified() {
                address.set_ip(match address {
                    std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                    std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
                });
            }
            ask(TcpStream::connect(address).await?).await
        }
        Listen::Unix(path) => ask(UnixStream::connect(path).await?).await,
    }
}

async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<Option<GatewayIdentity>> {
    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut lines = BufReader::new(stream).take(HEAD_BYTES_MAX).lines();
    while let Some(line) = lines.next_line().await?.filter(|line| !line.is_empty()) {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case(GatewayIdentity::HEADER)
        {
            return Ok(GatewayIdentity::parse(value));
        }
    }
    Ok(None)
}
