//! The proxies that the environment names, and which of them is on the way to a URL.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Uri, uri::Scheme};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use crate::config::Secret;

/// The proxies of the environment: the variables which all programs read.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentProxies {
    pub(in crate::config) all: Secret,
    pub(in crate::config) http: Secret,
    pub(in crate::config) https: Secret,
    /// The hosts that are reached without one.
    pub(in crate::config) none: Secret,
}

impl Default for EnvironmentProxies {
    fn default() -> Self {
        let unset = || Secret::new("");
        Self {
            all: unset(),
            http: unset(),
            https: unset(),
            none: unset(),
        }
    }
}

impl EnvironmentProxies {
    /// A proxy on another machine is no way to a server on this one.
    pub(in crate::config) fn intercept(&self, url: &Uri) -> Option<Intercept> {
        let exempt = exempt_hosts(self.none.expose(), url)?;
        let matcher = Matcher::builder()
            .all(self.all.expose())
            .http(self.http.expose())
            .https(self.https.expose())
            .no(exempt)
            .build();
        let found = matcher.intercept(&as_http(url))?;
        let is_there = |host: Option<&str>| host.is_some_and(is_local);
        (!is_there(url.host()) || is_there(found.uri().host())).then_some(found)
    }

    /// The URL of the HTTP proxy on the way to `url`, with user and password if it wants them.
    pub fn proxy_url(&self, url: &Uri) -> Option<Secret> {
        let found = self.intercept(url)?;
        let mut proxy = url::Url::parse(&found.uri().to_string()).ok()?;
        let credentials = found.basic_auth().and_then(|it| it.to_str().ok());
        if let Some(encoded) = credentials.and_then(|it| it.strip_prefix("Basic ")) {
            let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
            let (user, password) = decoded.split_once(':')?;
            proxy.set_username(user).ok()?;
            proxy.set_password(Some(password)).ok()?;
        }
        (proxy.scheme() == "http").then(|| Secret::new(proxy))
    }

    /// The hosts of all proxies.
    pub fn hosts(&self) -> Vec<String> {
        let urls = [&self.all, &self.http, &self.https].map(|url| {
            let matcher = Matcher::builder().all(url.expose()).build();
            matcher.intercept(&Uri::from_static("http://host.invalid/"))
        });
        let hosts = urls.iter().flatten().filter_map(|it| it.uri().host());
        hosts.map(str::to_owned).collect()
    }
}

/// Whether `host` is this machine.
pub(in crate::config) fn is_local(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The hosts of `no_proxy` in the form that all of them are understood in; `None` where it is all hosts. Those
/// with a port are for URLs with that port.
fn exempt_hosts(no_proxy: &str, url: &Uri) -> Option<String> {
    let port = match url.scheme_str() {
        Some("https" | "wss") => url.port_u16().unwrap_or(443),
        _ => url.port_u16().unwrap_or(80),
    };
    let mut hosts = Vec::new();
    for entry in no_proxy
        .split([',', ' ', '\t'])
        .filter(|entry| !entry.is_empty())
    {
        let host = match entry.rsplit_once(':') {
            Some((host, written)) if !host.contains(':') || host.ends_with(']') => {
                if written.parse() != Ok(port) {
                    continue;
                }
                host
            }
            Some(_) | None => entry,
        };
        if host == "*" {
            return None;
        }
        hosts.push(
            host.strip_prefix('*')
                .unwrap_or(host)
                .trim_matches(['[', ']']),
        );
    }
    Some(hosts.join(","))
}

/// `url` with the scheme that proxies are looked up by.
pub(in crate::config) fn as_http(url: &Uri) -> Uri {
    let scheme = match url.scheme_str() {
        Some("https" | "wss") => Scheme::HTTPS,
        _ => Scheme::HTTP,
    };
    let mut parts = url.clone().into_parts();
    parts.scheme = Some(scheme);
    Uri::from_parts(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_read_as_other_programs_read_it() {
        let check = |no_proxy: &str, url: &str, is_exempt: bool| {
            let url: Uri = url.parse().unwrap();
            let found = exempt_hosts(no_proxy, &url).is_none_or(|exempt| {
                let matcher = Matcher::builder().all("http://p:1").no(exempt).build();
                matcher.intercept(&as_http(&url)).is_none()
            });
            assert_eq!(found, is_exempt, "{no_proxy} {url}");
        };
        let url = "https://mcp.example.com/x";
        for (no_proxy, is_exempt) in [
            ("*", true),
            ("a, *", true),
            ("example.com", true),
            (".example.com", true),
            ("*.example.com", true),
            ("EXAMPLE.com", true),
            ("ample.com", false),
            ("a b mcp.example.com", true),
            ("mcp.example.com:443", true),
            ("mcp.example.com:80", false),
            ("", false),
        ] {
            check(no_proxy, url, is_exempt);
        }
        check("10.0.0.0/8", "http://10.1.2.3/", true);
        check("10.0.0.0/8", "http://11.1.2.3/", false);
        check("10.1.2.3:81", "http://10.1.2.3:81/", true);
        check("10.1.2.3:81", "http://10.1.2.3/", false);
        check("fd00::/8", "ws://[fd00::1]:80/", true);
        check("fd00::1", "ws://[fd00::1]/", true);
        check("[fd00::1]:80", "ws://[fd00::1]/", true);
        check("[fd00::1]:81", "ws://[fd00::1]/", false);
    }
}
