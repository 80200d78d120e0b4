//! What stands between us and a server behind a URL: a proxy, and certificates.

use std::path::PathBuf;

use http::{Uri, uri::Scheme};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use super::{Resolver, transport::is_local};
use crate::config::{
    ForwardProxy, RemoteTls, Secret, diagnostics::report::Diagnostic, node::ValuePath,
};

/// What `proxy` says where there is to be none.
const OFF: &str = "off";
/// Digits of a SHA-256 fingerprint.
const FINGERPRINT_DIGITS: usize = 64;

impl Resolver<'_> {
    /// The proxy on the way to `url`: the one that is `written`, else that of the environment.
    pub(super) fn forward_proxy(
        &mut self,
        url: &Uri,
        written: Option<&Secret>,
        server: &ValuePath<'_>,
    ) -> Option<ForwardProxy> {
        let Some(written) = written.map(|it| it.expose().trim()) else {
            return self.environment_proxy(url, &server.child("url"));
        };
        let at = server.child("proxy");
        if written.eq_ignore_ascii_case(OFF) {
            return None;
        }
        let found = Matcher::builder()
            .all(written)
            .build()
            .intercept(&as_http(url));
        let found = found.filter(|it| it.uri().scheme() == Some(&Scheme::HTTP));
        if found.is_none() {
            self.findings.add(
                Diagnostic::error(format!("`{}` is not valid", at.path()))
                    .at(at.span(), "not the URL of an HTTP proxy")
                    .help("for example \"http://proxy.example.com:3128\", or \"off\""),
            );
        }
        found.as_ref().map(to_proxy)
    }

    /// That of the variables which all programs read. A proxy on another machine is no way to a server
    /// on this one.
    fn environment_proxy(&mut self, url: &Uri, at: &ValuePath<'_>) -> Option<ForwardProxy> {
        let environment = self.context.environment;
        let value = |name: &str| {
            let lower = environment.get(name);
            lower
                .or_else(|| environment.get(&name.to_uppercase()))
                .unwrap_or_default()
                .to_owned()
        };
        let exempt = exempt_hosts(&value("no_proxy"), url)?;
        let matcher = Matcher::builder()
            .all(value("all_proxy"))
            .http(value("http_proxy"))
            .https(value("https_proxy"))
            .no(exempt)
            .build();
        let found = matcher.intercept(&as_http(url))?;
        let is_there = |host: Option<&str>| host.is_some_and(is_local);
        if is_there(url.host()) && !is_there(found.uri().host()) {
            return None;
        }
        if found.uri().scheme() != Some(&Scheme::HTTP) {
            let scheme = found.uri().scheme_str().unwrap_or_default();
            self.findings.add(
                Diagnostic::warning("the proxy of the environment is not used")
                    .at(at.span(), format!("`{scheme}:` proxies are not supported"))
                    .help("set `proxy` to an HTTP proxy, or to \"off\""),
            );
            return None;
        }
        Some(to_proxy(&found))
    }

    /// What is `written`, with absolute paths.
    pub(super) fn remote_tls(
        &mut self,
        written: Option<&RemoteTls>,
        at: &ValuePath<'_>,
    ) -> RemoteTls {
        let Some(written) = written else {
            return RemoteTls::default();
        };
        let (cert, key) = (at.child("client_cert"), at.child("client_key"));
        if written.client_cert.is_some() != written.client_key.is_some() {
            let (there, missing) = if cert.is_written() {
                (&cert, &key)
            } else {
                (&key, &cert)
            };
            self.findings.add(
                Diagnostic::error(format!("`{}` requires `{}`", there.path(), missing.path()))
                    .at(there.key_span(), "one of two files"),
            );
        }
        if written.danger_accept_invalid {
            let danger = at.child("danger_accept_invalid");
            self.findings.add(
                Diagnostic::warning(format!("`{}` is on", danger.path()))
                    .at(
                        danger.span(),
                        "anyone on the network path can pose as the server",
                    )
                    .help("give the certificate of the server as `tls.ca` instead"),
            );
        }
        let client_key = self.pem_file(written.client_key.as_ref(), &key);
        // No program has to read it.
        self.named_files.extend(client_key.clone());
        RemoteTls {
            ca: self.pem_file(written.ca.as_ref(), &at.child("ca")),
            client_cert: self.pem_file(written.client_cert.as_ref(), &cert),
            client_key,
            fingerprint: self.fingerprint(written.fingerprint.as_deref(), &at.child("fingerprint")),
            danger_accept_invalid: written.danger_accept_invalid,
        }
    }

    fn pem_file(&mut self, written: Option<&PathBuf>, at: &ValuePath<'_>) -> Option<PathBuf> {
        let written = written?.to_string_lossy();
        Some(self.path(&written, at))
    }

    /// The digits of a fingerprint, as tools write them: with colons, and with the name of the hash.
    fn fingerprint(&mut self, written: Option<&str>, at: &ValuePath<'_>) -> Option<String> {
        let written = written?.trim().to_ascii_lowercase();
        let digits = written
            .rsplit_once('=')
            .map_or(&*written, |(_, digits)| digits);
        let digits = digits
            .strip_prefix("sha256:")
            .unwrap_or(digits)
            .replace(':', "");
        let is_whole = digits.len() == FINGERPRINT_DIGITS;
        if !is_whole || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            self.report_unusable(at, "is not a SHA-256 fingerprint of 64 hexadecimal digits");
        }
        Some(digits)
    }
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
fn as_http(url: &Uri) -> Uri {
    let scheme = match url.scheme_str() {
        Some("https" | "wss") => Scheme::HTTPS,
        _ => Scheme::HTTP,
    };
    let mut parts = url.clone().into_parts();
    parts.scheme = Some(scheme);
    Uri::from_parts(parts).unwrap_or_default()
}

fn to_proxy(found: &Intercept) -> ForwardProxy {
    let authorization = found.basic_auth().and_then(|it| it.to_str().ok());
    ForwardProxy {
        uri: found.uri().clone(),
        authorization: authorization.map(Secret::new),
    }
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
