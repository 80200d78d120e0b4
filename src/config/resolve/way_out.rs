//! What stands between us and a server behind a URL: a proxy, and certificates.

use std::path::PathBuf;

use http::{Uri, uri::Scheme};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use super::Resolver;
use crate::config::{EnvironmentProxies, model::environment_proxies::as_http};
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

    /// That of the variables which all programs read.
    fn environment_proxy(&mut self, url: &Uri, at: &ValuePath<'_>) -> Option<ForwardProxy> {
        let found = self.environment_proxies().intercept(url)?;
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

    /// What the variables of proxies say.
    pub(super) fn environment_proxies(&self) -> EnvironmentProxies {
        let environment = self.context.environment;
        let value = |name: &str| {
            let lower = environment.get(name);
            let value = lower.or_else(|| environment.get(&name.to_uppercase()));
            Secret::new(value.unwrap_or_default())
        };
        EnvironmentProxies {
            all: value("all_proxy"),
            http: value("http_proxy"),
            https: value("https_proxy"),
            none: value("no_proxy"),
        }
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

fn to_proxy(found: &Intercept) -> ForwardProxy {
    let authorization = found.basic_auth().and_then(|it| it.to_str().ok());
    ForwardProxy {
        uri: found.uri().clone(),
        authorization: authorization.map(Secret::new),
    }
}
