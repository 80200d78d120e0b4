//! The address that a gateway listens on, as a config or a command line has it.

use std::net::SocketAddr;

/// A text is no address to listen on. Names are none: what they mean differs from machine to machine,
/// and whether others are let in must show.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an IP address, `:` and a port are needed, such as {suggestion}")]
pub struct NotAnAddress {
    /// What was most likely meant.
    pub suggestion: SocketAddr,
}

/// Reads an address to listen on.
pub(crate) fn listen_address(written: &str) -> Result<SocketAddr, NotAnAddress> {
    written.parse().map_err(|_| NotAnAddress {
        suggestion: suggestion(written),
    })
}

fn suggestion(written: &str) -> SocketAddr {
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
