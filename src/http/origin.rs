//! `Origin` and `Host` checks against DNS rebinding (Spec 2025-11-25, transports, security warning).

use std::net::IpAddr;

use http::{
    HeaderValue, Request, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};

use url::Url;

use super::request_log::RequestFault;
use crate::config::{Config, Listen};

/// The header for which a request is refused, and what its client is told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum HeaderRefusal {
    Host(String),
    Origin(String),
}

impl HeaderRefusal {
    /// The header, for counters.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Origin(_) => "origin",
        }
    }

    /// The same for the log.
    pub(super) const fn fault(&self) -> RequestFault {
        match self {
            Self::Host(_) => RequestFault::Host,
            Self::Origin(_) => RequestFault::Origin,
        }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Host(message) | Self::Origin(message) => message,
        }
    }
}

/// Which origins and hosts are welcome.
#[derive(Clone, Debug)]
pub(super) struct OriginGuard {
    hosts: Vec<String>,
    origins: Vec<String>,
    /// `None` for a Unix socket: who connects to that names this machine, if they name any.
    listen: Option<IpAddr>,
    /// Hosts as nearly all clients write them, so that most requests need one comparison.
    typical_hosts: [String; 2],
}

impl OriginGuard {
    /// For requests to `listen`, by the rules of `config`.
    pub(super) fn new(config: &Config, listen: &Listen) -> Self {
        let own_origin = config
            .public_url
            .as_ref()
            .map(|url| url.origin().ascii_serialization());
        Self {
            hosts: config
                .allowed_hosts
                .iter()
                .map(String::as_str)
                .chain(config.public_url.as_ref().and_then(Url::host_str))
                .map(normalized_config_host)
                .collect(),
            origins: config
                .allowed_origins
                .iter()
                .map(|o| o.to_ascii_lowercase())
                .chain(own_origin)
                .collect(),
            listen: listen.address().map(|address| address.ip()),
            typical_hosts: match listen {
                Listen::Address(address) => {
                    [address.to_string(), format!("localhost:{}", address.port())]
                }
                Listen::Unix(_) => ["localhost", "127.0.0.1"].map(str::to_owned),
            },
        }
    }

    /// Checks the headers of a request.
    ///
    /// # Errors
    /// What to tell the client.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), HeaderRefusal> {
        self.check_origin(request).map_err(HeaderRefusal::Origin)?;
        self.check_host(request).map_err(HeaderRefusal::Host)
    }

    fn check_origin<B>(&self, request: &Request<B>) -> Result<(), String> {
        let mut named = request.headers().get_all(ORIGIN).iter();
        let Some(origin) = named.next() else {
            return Ok(());
        };
        if named.next().is_some() {
            return Err("there is more than one Origin header".to_owned());
        }
        let origin = origin.to_str();
        let origin = origin.map_err(|_| "the Origin header is not valid text".to_owned())?;
        if self.is_allowed_origin(origin) {
            Ok(())
        } else {
            Err(format!("origin {origin} is not in allowed_origins"))
        }
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<(), String> {
        let mut named = request.headers().get_all(HOST).iter();
        let host = named.next().map(HeaderValue::to_str).transpose();
        let host = host.map_err(|_| "the Host header is not valid text".to_owned())?;
        if named.next().is_some() {
            return Err("there is more than one Host header".to_owned());
        }
        // HTTP/2 has it in the URI, and HTTP/1.1 may (RFC 9112, section 3.2.2).
        let target = request.uri().authority().map(Authority::as_str);
        let is_strange = |host: &&str| !self.is_allowed_host(host);
        if host.is_none() && target.is_none() {
            return Err("there is no Host header".to_owned());
        }
        match host.into_iter().chain(target).find(is_strange) {
            Some(host) => Err(format!("host {host} is not in allowed_hosts")),
            None => Ok(()),
        }
    }

    fn is_allowed_origin(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        if self
            .origins
            .iter()
            .any(|known| known == "*" || *known == origin)
        {
            return true;
        }
        // Pages of this machine; of other schemes nobody knows whose page it is.
        let uri: Option<Uri> = origin.parse().ok();
        uri.as_ref()
            .filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")))
            .and_then(Uri::authority)
            .and_then(normalized_host)
            .is_some_and(is_loopback)
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let loopback = self.listen.is_none_or(|ip| ip.is_loopback());
        if loopback && self.typical_hosts.iter().any(|usual| usual == host) {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let Some(name) = normalized_host(&authority) else {
            return false;
        };
        let name = name.to_ascii_lowercase();
        let port = authority.port().map(|port| format!("{name}:{port}"));
        let is_named = |known: &String| *known == name || Some(known) == port.as_ref();
        is_loopback(&name)
            || self
                .hosts
                .iter()
                .any(|known| known == "*" || is_named(known))
            || strip_brackets(&name)
                .parse()
                .is_ok_and(|ip: IpAddr| Some(ip) == self.listen && !ip.is_unspecified())
    }
}

/// The host that an authority names, in its usual form: from the root of names each is the same with a dot
/// at its end. None where a user is named too, which no `Host` and no `Origin` does (RFC 9110, section 7.2;
/// RFC 6454, section 6.2).
fn normalized_host(authority: &Authority) -> Option<&str> {
    let host = authority.host();
    let names_user = authority.as_str().contains('@');
    (!names_user).then(|| host.strip_suffix('.').unwrap_or(host))
}

/// A name of the config as [`normalized_host`] gives that of a request, with its port if it has one.
fn normalized_config_host(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match host.rsplit_once(':').filter(|(_, port)| is_port(port)) {
        Some((name, port)) => format!("{}:{port}", name.strip_suffix('.').unwrap_or(name)),
        None => host.strip_suffix('.').unwrap_or(&host).to_owned(),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || strip_brackets(host)
            .parse()
            .is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// An IPv6 address without its brackets.
fn strip_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_that_is_named_is_looked_at() {
        let guard = OriginGuard {
            hosts: Vec::new(),
            origins: Vec::new(),
            listen: Some([127, 0, 0, 1].into()),
            typical_hosts: ["127.0.0.1:8080".to_owned(), "localhost:8080".to_owned()],
        };
        let check = |target: &str, hosts: &[&str], expect: Result<(), &str>| {
            let mut request = Request::get(target);
            for host in hosts {
                request = request.header("host", *host);
            }
            let found = guard.check(&request.body(()).unwrap());
            let found = found.as_ref().copied().map_err(HeaderRefusal::message);
            assert_eq!(found, expect);
        };
        let strange = Err("host evil.example is not in allowed_hosts");
        check("/mcp", &["localhost:8080"], Ok(()));
        check("/mcp", &[], Err("there is no Host header"));
        check("/mcp", &["evil.example"], strange);
        check("http://localhost:8080/mcp", &[], Ok(()));
        check("http://localhost:8080/mcp", &["localhost:8080"], Ok(()));
        check("http://evil.example/mcp", &["localhost:8080"], strange);
        check("http://evil.example/mcp", &[], strange);
        let doubled = Err("there is more than one Host header");
        check("/mcp", &["localhost:8080", "evil.example"], doubled);
        let user = Err("host a@localhost:8080 is not in allowed_hosts");
        check("http://a@localhost:8080/mcp", &["localhost:8080"], user);
    }

    #[test]
    fn only_known_hosts_and_origins_are_welcome() {
        let guard = OriginGuard {
            hosts: vec!["mcp.example.com".to_owned()],
            origins: vec![
                "https://app.example.com".to_owned(),
                "tauri://localhost".to_owned(),
            ],
            listen: Some([10, 0, 0, 5].into()),
            typical_hosts: ["10.0.0.5:8080".to_owned(), "localhost:8080".to_owned()],
        };
        let check = |host: &str, origin: Option<&str>, expect: bool| {
            let mut request = Request::get("/mcp").header("host", host);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let found = guard.check(&request.body(()).unwrap());
            assert_eq!(found.is_ok(), expect, "{host} {origin:?} {found:?}");
        };
        check("127.0.0.1:8080", None, true);
        check("localhost", Some("http://localhost:3000"), true);
        check("[::1]:8080", Some("http://[::1]:1"), true);
        check("10.0.0.5:8080", None, true);
        check("MCP.example.com:443", Some("https://app.example.com"), true);
        check("evil.example.com", None, false);
        check("", None, false);
        check("localhost:8080", Some("http://evil.example.com"), false);
        check("localhost:8080", Some("null"), false);
        for origin in [
            "localhost",
            "localhost:3000",
            "127.0.0.1",
            "//localhost",
            "javascript://localhost",
            "file://localhost",
            "file://",
            "data:",
            "ftp://localhost",
            "ws://localhost",
            "chrome-extension://localhost",
            "capacitor://localhost",
            "http:localhost",
            "",
        ] {
            check("localhost:8080", Some(origin), false);
        }
        check("localhost:8080", Some("tauri://localhost"), true);
        check("localhost:8080", Some("HTTPS://LOCALHOST"), true);
        check("localhost.evil.com", None, false);
        check("localhost.", Some("http://localhost.:3000"), true);
        check("localhost.:8080", None, true);
        check("mcp.example.com.:443", None, true);
        check("localhost..", None, false);
        check("a@127.0.0.1:8080", None, false);
        check("127.0.0.1:8080@evil.com", None, false);
        check("a:b@mcp.example.com", None, false);
        check("localhost:8080", Some("http://a@localhost:3000"), false);
    }
}
