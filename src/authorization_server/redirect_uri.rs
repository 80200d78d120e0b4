//! Where a client may have its codes sent.

use std::fmt;

use url::{Host, Url};

/// Schemes of programs that are clients of MCP. Others may be anybody's: of those with a dot a domain says whose
/// they are (RFC 8252, section 7.1).
const APP_SCHEMES: [&str; 14] = [
    "claude",
    "cursor",
    "goose",
    "jetbrains",
    "kiro",
    "lmstudio",
    "raycast",
    "trae",
    "vscode",
    "vscode-insiders",
    "vscodium",
    "warp",
    "windsurf",
    "zed",
];

/// Characters of a redirect URI.
const LENGTH_MAX: usize = 2_000;

/// A URI that codes may be sent to: `https:`, `http:` of this machine, or of a program that is known.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RedirectUri {
    text: String,
    url: Url,
}

/// Why a URI is none; its client mends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidRedirectUri {
    /// It has a fragment, which servers never get.
    #[error("a redirect URI has no fragment")]
    Fragment,
    /// It is longer than any that is meant.
    #[error("a redirect URI has at most {LENGTH_MAX} characters")]
    Length,
    /// It is not absolute.
    #[error("a redirect URI is absolute")]
    NotAbsolute,
    /// It is `http:` on another machine.
    #[error("a redirect URI has `https:`, or `http:` with `127.0.0.1`, `[::1]` or `localhost`")]
    Plain,
    /// Nobody knows whose its scheme is.
    #[error("its scheme is none of a program that is known")]
    Scheme,
    /// It has a user or a password in it.
    #[error("a redirect URI has no user in it")]
    User,
}

impl RedirectUri {
    /// Checks `text`.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidRedirectUri> {
        if text.len() > LENGTH_MAX {
            return Err(InvalidRedirectUri::Length);
        }
        let url = Url::parse(text).map_err(|_| InvalidRedirectUri::NotAbsolute)?;
        if url.fragment().is_some() {
            return Err(InvalidRedirectUri::Fragment);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidRedirectUri::User);
        }
        let uri = Self {
            text: text.to_owned(),
            url,
        };
        match uri.url.scheme() {
            "https" => Ok(uri),
            "http" if uri.is_loopback() => Ok(uri),
            "http" => Err(InvalidRedirectUri::Plain),
            scheme if APP_SCHEMES.contains(&scheme) || scheme.contains('.') => Ok(uri),
            _ => Err(InvalidRedirectUri::Scheme),
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a client that has registered this one may use `wanted`: it is the same, but for the port on this
    /// machine, which programs choose as they start (RFC 8252, section 7.3).
    pub fn covers(&self, wanted: &Self) -> bool {
        if self.text == wanted.text {
            return true;
        }
        let without_port = |uri: &Self| {
            let mut url = uri.url.clone();
            url.set_port(None).is_ok().then_some(url)
        };
        let is_local = |uri: &Self| uri.url.scheme() == "http" && uri.is_loopback();
        is_local(self) && is_local(wanted) && without_port(self) == without_port(wanted)
    }

    /// Whether it leads to this machine or into a program on it: whoever waits there did not have to show
    /// anybody who they are.
    pub fn is_local(&self) -> bool {
        self.url.scheme() != "https" || self.is_loopback()
    }

    fn is_loopback(&self) -> bool {
        match self.url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
    }

    /// Where it leads, for people: its host, or the scheme of its program.
    pub fn target(&self) -> String {
        match self.url.host_str() {
            Some(host) if matches!(self.url.scheme(), "http" | "https") => host.to_owned(),
            _ => format!("{}:", self.url.scheme()),
        }
    }

    /// What a content security policy calls it in `form-action`.
    pub fn csp_source(&self) -> String {
        match self.url.scheme() {
            "http" | "https" => self.url.origin().ascii_serialization(),
            scheme => format!("{scheme}:"),
        }
    }

    /// The same with `params` in its query.
    pub fn with_params<'p>(&self, params: impl IntoIterator<Item = (&'p str, &'p str)>) -> String {
        let mut url = self.url.clone();
        url.query_pairs_mut().extend_pairs(params);
        url.into()
    }
}

impl fmt::Display for RedirectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_go_over_tls_to_this_machine_or_into_known_programs() {
        let check = |text: &str, expect: Option<InvalidRedirectUri>| {
            assert_eq!(RedirectUri::parse(text).err(), expect, "{text}");
        };
        check("https://claude.ai/api/mcp/auth_callback", None);
        check("http://127.0.0.1:33418/", None);
        check("http://[::1]:1/callback", None);
        check("http://localhost/callback", None);
        check("cursor://anysphere.cursor-retrieval/oauth/callback", None);
        check("com.example.app:/callback", None);
        for plain in ["http://example.com/cb", "http://127.0.0.1.example.com/"] {
            check(plain, Some(InvalidRedirectUri::Plain));
        }
        for scheme in [
            "javascript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
            "evil:/x",
        ] {
            check(scheme, Some(InvalidRedirectUri::Scheme));
        }
        check("https://a.example/#x", Some(InvalidRedirectUri::Fragment));
        check("https://user@a.example/", Some(InvalidRedirectUri::User));
        check("/callback", Some(InvalidRedirectUri::NotAbsolute));
        let long = format!("https://a.example/{}", "x".repeat(LENGTH_MAX));
        check(&long[..LENGTH_MAX], None);
        check(&long, Some(InvalidRedirectUri::Length));
    }

    #[test]
    fn only_the_port_on_this_machine_may_differ() {
        let check = |known: &str, wanted: &str, expect: bool| {
            let parse = |text| RedirectUri::parse(text).unwrap();
            assert_eq!(
                parse(known).covers(&parse(wanted)),
                expect,
                "{known} {wanted}"
            );
        };
        check("https://a.example/cb", "https://a.example/cb", true);
        check("https://a.example/cb", "https://a.example/cb/", false);
        check("https://a.example/cb", "https://a.example/cb?x=1", false);
        check("https://a.example/cb", "https://a.example:8443/cb", false);
        check("https://a.example/cb", "https://evil.a.example/cb", false);
        check("http://localhost/cb", "http://localhost:5000/cb", true);
        check("http://localhost:1/cb", "http://localhost:5000/cb", true);
        check("http://localhost/cb", "http://127.0.0.1/cb", false);
        check("http://localhost/cb", "http://localhost:5000/other", false);
        check("http://127.0.0.1/cb", "http://127.0.0.1:9/cb?x", false);
        check("cursor://a/cb", "cursor://b/cb", false);
    }
}
