//! Where a gateway listens, as a config or a command line has it.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

/// What the path of a Unix socket comes after.
const UNIX_PREFIX: &str = "unix:";

/// Where a gateway listens over HTTP.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Listen {
    /// On an address, over TCP.
    Address(SocketAddr),
    /// On the Unix socket of this path.
    Unix(PathBuf),
}

/// Who may connect to a Unix socket.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct SocketConfig {
    /// The mode of its file.
    #[serde(serialize_with = "octal")]
    pub mode: u32,
    /// Users who may connect, beside root and the user of the gateway.
    pub uids: Vec<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn octal<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{mode:04o}"))
}

/// A text is nothing to listen on. Names but `localhost` are none: what they mean differs from machine
/// to machine, and whether others are let in must show.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}, such as {suggestion}", self.expected())]
pub struct InvalidListenAddress {
    /// What was most likely meant.
    pub suggestion: Listen,
}

impl InvalidListenAddress {
    /// What would have done.
    pub(in crate::config) fn expected(&self) -> &'static str {
        match self.suggestion {
            Listen::Address(_) => "expected an IP address, `:` and a port",
            Listen::Unix(_) => "expected `unix:` and a file path",
        }
    }
}

/// Reads where to listen; a relative path stays one.
pub(crate) fn listen_address(written: &str) -> Result<Listen, InvalidListenAddress> {
    let unusable = |suggestion| InvalidListenAddress { suggestion };
    if let Some(path) = written.strip_prefix(UNIX_PREFIX) {
        // As in `unix:///run/a.sock`.
        let path = path.strip_prefix("//").unwrap_or(path);
        // Abstract names begin with `@`. They have no mode.
        let is_path = !path.is_empty() && !path.starts_with('@') && !path.ends_with('/');
        let suggestion = Listen::Unix("/run/tollbridge/mcp.sock".into());
        let listen = is_path.then(|| Listen::Unix(path.into()));
        return listen.ok_or_else(|| unusable(suggestion));
    }
    let local_port = written.strip_prefix("localhost:").map(str::parse::<u16>);
    if let Some(Ok(port)) = local_port {
        return Ok(Listen::Address(SocketAddr::from(([127, 0, 0, 1], port))));
    }
    let address = written.parse().map(Listen::Address);
    address.map_err(|_| unusable(Listen::Address(suggest_address(written))))
}

fn suggest_address(written: &str) -> SocketAddr {
    let (host, port) = written.rsplit_once(':').unwrap_or((written, ""));
    let port = port
        .parse()
        .or_else(|_| written.parse())
        .unwrap_or(8080_u16);
    match host {
        "0.0.0.0" | "*" => SocketAddr::from(([0; 4], port)),
        "::" | "[::]" => SocketAddr::from(([0_u16; 8], port)),
        _ => SocketAddr::from(([127, 0, 0, 1], port)),
    }
}

impl Listen {
    /// The address, of which a Unix socket has none.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Address(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
