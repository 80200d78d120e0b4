//! Entries of a config that lead back to the gateway: those that clients have for it. A client's own config may
//! be that of the gateway too, and has nothing else once the client was connected.

use std::{net::IpAddr, path::Path};

use http::Uri;

use crate::config::{Config, Listen, Server, Transport};

/// The name of this program, as clients start it.
const PROGRAM: &str = env!("CARGO_PKG_NAME");

/// Whether `config` has a server beside the gateway itself, which listens there.
pub(super) fn has_servers(config: &Config, listen: Option<&Listen>) -> bool {
    let mut servers = config.servers.values();
    servers.any(|server| !is_gateway(server, listen))
}

/// Whether `server` is the gateway that listens there, or one that a client would start.
fn is_gateway(server: &Server, listen: Option<&Listen>) -> bool {
    match &server.transport {
        Transport::Auto(remote)
        | Transport::Http(remote)
        | Transport::Sse(remote)
        | Transport::WebSocket(remote) => leads_to(&remote.url, listen),
        Transport::Builtin => false,
        Transport::ControlSocket(_) => true,
        Transport::Stdio(command) => {
            let mut urls = command.args.iter().filter_map(|arg| arg.parse().ok());
            let is_program = Path::new(&command.program).file_name() == Some(PROGRAM.as_ref());
            is_program || urls.any(|url| leads_to(&url, listen))
        }
    }
}

/// Whether a request to `url` comes to who listens there.
fn leads_to(url: &Uri, listen: Option<&Listen>) -> bool {
    let Some(own) = listen.and_then(Listen::address) else {
        return false;
    };
    let port = url.port_u16().or_else(|| match url.scheme_str() {
        Some("http" | "ws") => Some(80),
        Some("https" | "wss") => Some(443),
        Some(_) | None => None,
    });
    let host = url.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = host.parse().ok();
    let is_loopback = host == "localhost" || address.is_some_and(|ip| ip.is_loopback());
    let serves_loopback = own.ip().is_loopback() || own.ip().is_unspecified();
    port == Some(own.port()) && (address == Some(own.ip()) || (is_loopback && serves_loopback))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_clients_lead_back() {
        let check = |listen: &str, server: &str, expect: bool| {
            let config = Config::example(&format!("[servers.x]\n{server}"));
            let listen = Listen::Address(listen.parse().unwrap());
            let found = !has_servers(&config, Some(&listen));
            assert_eq!(found, expect, "{server}");
        };
        let loopback = "127.0.0.1:8080";
        check(loopback, "url = 'http://127.0.0.1:8080/mcp'", true);
        check(
            loopback,
            "url = 'http://localhost:8080/mcp/servers/a'",
            true,
        );
        check(loopback, "url = 'http://[::1]:8080/sse'", true);
        check(loopback, "url = 'http://127.0.0.1:8081/mcp'", false);
        check(loopback, "url = 'https://example.com:8080/mcp'", false);
        check(
            loopback,
            "command = '/usr/bin/tollbridge'\nargs = ['stdio']",
            true,
        );
        check(
            loopback,
            "command = 'npx'\nargs = ['mcp-remote', 'http://localhost:8080/mcp']",
            true,
        );
        check(loopback, "command = 'npx'\nargs = ['some-server']", false);
        check(loopback, "transport = 'builtin'", false);
        check("0.0.0.0:80", "url = 'http://localhost/mcp'", true);
        check("10.0.0.5:80", "url = 'http://10.0.0.5/mcp'", true);
        check("10.0.0.5:80", "url = 'http://localhost/mcp'", false);
    }
}
