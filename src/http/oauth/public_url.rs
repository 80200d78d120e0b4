//! The URL by which clients reach the gateway. Resources of tokens, metadata and callbacks are made of it.

use std::net::IpAddr;

use http::{HeaderMap, Request, Uri, header::HOST, uri::Authority};

use crate::{
    auth::ResourceUrl,
    config::{Config, Listen},
};

/// The URL by which clients reach the gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::http) struct PublicUrl {
    /// As the config has it, or that of the listener; without a slash at its end.
    url: String,
    /// The scheme of a URL made of the host that a request names, which is one that
    /// [`OriginGuard`](crate::http::origin::OriginGuard) lets in: on a loopback listener, where the config has no
    /// URL. The gateway cannot know then whether its clients say `localhost` or `127.0.0.1`, and they hold us to
    /// what they say.
    scheme: Option<&'static str>,
}

impl PublicUrl {
    /// By `config`, whose listener is at `listen`.
    pub(in crate::http) fn new(config: &Config, listen: &Listen) -> Self {
        if let Some(url) = &config.public_url {
            return Self {
                url: url.as_str().trim_end_matches('/').to_owned(),
                scheme: None,
            };
        }
        let scheme = if config.tls.is_some() {
            "https://"
        } else {
            "http://"
        };
        let (host, is_local) = match listen {
            Listen::Address(address) => (address.to_string(), is_loopback(address.ip())),
            Listen::Unix(_) => ("localhost".to_owned(), true),
        };
        Self {
            url: format!("{scheme}{host}"),
            scheme: Some(scheme).filter(|_| is_local),
        }
    }

    /// What links begin with that are given to people.
    pub(in crate::http) fn base(&self) -> &str {
        &self.url
    }

    /// The resource that `path` is, as the sender of `request` knows it.
    pub(in crate::http) fn resource<'r>(
        &'r self,
        path: &'r str,
        request: RequestTarget<'r>,
    ) -> ResourceUrl<'r> {
        let named = self.scheme.zip(request.host());
        match named {
            Some((scheme, base)) => ResourceUrl { scheme, base, path },
            None => ResourceUrl {
                scheme: "",
                base: &self.url,
                path,
            },
        }
    }
}

impl PublicUrl {
    /// The URL itself, as the sender of `request` knows it.
    pub(in crate::http) fn of(&self, request: RequestTarget<'_>) -> String {
        self.resource("", request).to_string()
    }

    /// Its path, without a slash at the end.
    pub(in crate::http) fn path(&self) -> &str {
        let after_host = self
            .url
            .split_once("://")
            .and_then(|(_, rest)| rest.find('/'));
        after_host.map_or("", |at| {
            &self.url[self.url.find("://").map_or(0, |it| it + 3) + at..]
        })
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// What a request says of where it was sent to.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct RequestTarget<'r> {
    pub(in crate::http) uri: &'r Uri,
    pub(in crate::http) headers: &'r HeaderMap,
}

impl<'r> RequestTarget<'r> {
    pub(in crate::http) fn of<B>(request: &'r Request<B>) -> Self {
        Self {
            uri: request.uri(),
            headers: request.headers(),
        }
    }

    /// The host that it names.
    fn host(self) -> Option<&'r str> {
        let of_header = || self.headers.get(HOST)?.to_str().ok();
        let of_uri = self.uri.authority().map(Authority::as_str);
        of_uri.map_or_else(of_header, Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_made_of_the_config_and_only_of_the_host_on_loopback() {
        let check = |text: &str, host: &str, expect: &str| {
            let config = Config::example(text);
            let request = Request::get("/mcp").header(HOST, host).body(()).unwrap();
            let url = PublicUrl::new(&config, &config.listen);
            assert_eq!(
                url.resource("/mcp", RequestTarget::of(&request))
                    .to_string(),
                expect,
                "{text}"
            );
        };
        let public = "public_url = 'https://mcp.example.com/'";
        check(public, "evil.example", "https://mcp.example.com/mcp");
        let below = "public_url = 'https://example.com/gateway'";
        check(below, "x", "https://example.com/gateway/mcp");
        check("", "localhost:8080", "http://localhost:8080/mcp");
        check("", "127.0.0.1:8080", "http://127.0.0.1:8080/mcp");
        let open = "listen = '192.0.2.1:80'\n[governance]\nauth = 'keys'";
        check(open, "other.example", "http://192.0.2.1:80/mcp");
    }
}
