//! The URL by which clients reach the gateway. Resources of tokens, metadata and callbacks are made of it.

use std::net::IpAddr;

use http::{Request, header::HOST};

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

    /// The resource that `path` is, as the sender of `request` knows it.
    pub(in crate::http) fn resource<'r, B>(
        &'r self,
        path: &'r str,
        request: &'r Request<B>,
    ) -> ResourceUrl<'r> {
        let named = self.scheme.zip(host_of(request));
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

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// The host that a request names.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let of_target = request.uri().authority();
    let of_header = || request.headers().get(HOST)?.to_str().ok();
    of_target.map_or_else(of_header, |authority| Some(authority.as_str()))
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
            assert_eq!(url.resource("/mcp", &request).to_string(), expect, "{text}");
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
