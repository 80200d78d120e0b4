//! A server or a gateway behind a URL that a command line names.
//!
//! A URL becomes a config with one server, which is asked through the same gateway in this process as any
//! other. So every transport and revision works, and items and results arrive as they were sent.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::json;

use super::{args::NoConfig, output::OutputFormat, usage_error};
use crate::{
    config::{
        self, Auth, Config, ConfigFormat, ConfigText, Environment, MASK, Secret, Server, Transport,
        with_scheme,
    },
    names::{InvalidName, ProfileName, ServerName},
};

/// How the URLs of a gateway end that serve all that it has.
const ENDPOINTS: [&str; 2] = ["/mcp", "/sse"];
/// How a command line names stdin.
const STDIN_ARG: &str = "-";
/// Longest file that can hold a key, bytes.
const KEY_BYTES_MAX: u64 = 64 * 1024;
/// Which URL to ask, and with which key.
#[derive(Args, Debug)]
pub(super) struct UrlArgs {
    /// URL of an MCP server or a running gateway to use instead of the configured servers. Default
    /// path: `/mcp`
    #[arg(long, conflicts_with_all = ["config", "agent", "server"])]
    url: Option<String>,
    /// File with the bearer token for --url; `-` reads it from stdin
    #[arg(long, value_name = "FILE", requires = "url")]
    key_file: Option<PathBuf>,
}

impl UrlArgs {
    /// Whether the key is read from stdin.
    pub(super) fn reads_key_from_stdin(&self) -> bool {
        self.key_file.as_deref() == Some(Path::new(STDIN_ARG))
    }

    /// A config with what is at the URL as its one server, and the name of that; `None` where no URL is
    /// given. Nothing is recorded: what the server does is its own affair. What is wrong is said in
    /// `form`.
    pub(super) fn config(
        &self,
        profile: Option<&str>,
        form: OutputFormat,
    ) -> Result<Option<(Config, String)>, ExitCode> {
        let Some(url) = self.url.as_deref() else {
            return Ok(None);
        };
        if url.starts_with("unix:") {
            return Err(usage_error(&format!(
                "--url {url}: Unix sockets are not supported; use `curl --unix-socket PATH \
                 http://localhost/mcp`, a reverse proxy, or --config to start the servers here"
            )));
        }
        if let Some(complete) = with_scheme(url) {
            return Err(usage_error(&format!(
                "--url {url}: missing scheme; did you mean `{complete}`?"
            )));
        }
        let (name, mut url) = (host_name(url), with_endpoint_path(url));
        if let Some(profile) = profile {
            url =
                profile_url(profile, &url).map_err(|invalid| usage_error(&invalid.to_string()))?;
        }
        let source = ConfigText {
            name: "--url".to_owned(),
            format: ConfigFormat::Json,
            text: json!({ "servers": { &name: { "url": url } } }).to_string(),
            directory: PathBuf::new(),
        };
        let mut config = config::parse([source], &Environment::proxies_of_process())
            .map_err(|mistakes| NoConfig::from(mistakes).report(form))?
            .config;
        if let Some(file) = &self.key_file {
            let token = read_key(file).map_err(|invalid| usage_error(&invalid.to_string()))?;
            for server in config.servers.values_mut() {
                authenticate(server, &token);
            }
        }
        config.audit.enabled = false;
        Ok(Some((config, name)))
    }
}

/// `url` with the path of a gateway's endpoint, where it has none.
pub(super) fn with_endpoint_path(url: &str) -> String {
    let url = url.trim();
    let is_bare = url
        .split_once("://")
        .is_some_and(|(_, rest)| !rest.is_empty() && !rest.contains(['/', '?', '#']));
    let path = if is_bare { "/mcp" } else { "" };
    format!("{url}{path}")
}

/// The URL of the profile `name` of the gateway whose endpoint is at `url`.
fn profile_url(name: &str, url: &str) -> Result<String, ProfileUrlError> {
    let profile = ProfileName::parse(name)?;
    let (endpoint, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let endpoint = endpoint.trim_end_matches('/');
    if !ENDPOINTS.iter().any(|path| endpoint.ends_with(path)) {
        let url = url.to_owned();
        return Err(ProfileUrlError::Endpoint { url });
    }
    Ok(format!("{endpoint}/profiles/{profile}{query}"))
}

/// Why a URL has no profile; whoever asks mends the command line.
#[derive(Debug, thiserror::Error)]
enum ProfileUrlError {
    /// It is not that of a gateway, as far as can be told.
    #[error(
        "--profile: {url} does not end in `/mcp` or `/sse`; use the URL of the profile without \
         --profile"
    )]
    Endpoint {
        /// The URL.
        url: String,
    },
    /// No profile can have that name.
    #[error("--profile: unknown profile: {0}")]
    Name(#[from] InvalidName),
}

/// The host in `url` as the name of a server.
fn host_name(url: &str) -> String {
    let uri: Option<http::Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
    let name: String = host
        .trim_matches(['[', ']'])
        .chars()
        .map(|c| if c == ':' { '-' } else { c })
        .take(ServerName::LENGTH_MAX)
        .collect();
    match ServerName::parse_local(&name) {
        Ok(_) => name,
        Err(_) => "remote".to_owned(),
    }
}

fn authenticate(server: &mut Server, token: &Secret) {
    match &mut server.transport {
        Transport::Auto(remote)
        | Transport::Http(remote)
        | Transport::Sse(remote)
        | Transport::WebSocket(remote) => {
            remote.auth = Auth::Bearer {
                token: token.clone(),
            };
        }
        Transport::Builtin | Transport::ControlSocket(_) | Transport::Stdio(_) => {}
    }
}

/// Why there is no key; the caller mends the file.
#[derive(Debug, thiserror::Error)]
enum InvalidKeyFile {
    /// Not a token.
    #[error(
        "{} has no token: expected one line of printable characters",
        display_path(path)
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("the key in {}: {error}", display_path(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

fn display_path(path: &Path) -> std::borrow::Cow<'_, str> {
    if path == Path::new(STDIN_ARG) {
        "stdin".into()
    } else {
        path.to_string_lossy()
    }
}

fn read_key(path: &Path) -> Result<Secret, InvalidKeyFile> {
    let mut text = String::new();
    let read = if path == Path::new(STDIN_ARG) {
        io::stdin()
            .lock()
            .take(KEY_BYTES_MAX)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(KEY_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| InvalidKeyFile::Read {
        path: path.to_owned(),
        error,
    })?;
    let token = text.trim();
    if token.is_empty() || token == MASK || !token.chars().all(|c| c.is_ascii_graphic()) {
        let path = path.to_owned();
        return Err(InvalidKeyFile::Content { path });
    }
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_server() {
        let check = |url: &str, expect: &str| assert_eq!(host_name(url), expect, "{url}");
        check("https://docs.example.com/mcp", "docs.example.com");
        check("http://127.0.0.1:8080/mcp", "127.0.0.1");
        check("http://[::1]:8080/mcp", "--1");
        check("/mcp", "remote");
        check("", "remote");
    }

    #[test]
    fn a_url_without_a_path_is_that_of_a_gateway() {
        let check = |url: &str, expect: &str| assert_eq!(with_endpoint_path(url), expect, "{url}");
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080/mcp");
        check("http://127.0.0.1:8080/", "http://127.0.0.1:8080/");
        check("https://x/sse", "https://x/sse");
        check("https://x?a=b", "https://x?a=b");
        check("http://", "http://");
        check("", "");
    }

    #[test]
    fn a_profile_is_asked_at_its_own_url() {
        let check = |url: &str, expect: Option<&str>| {
            assert_eq!(profile_url("p", url).ok().as_deref(), expect, "{url}");
        };
        check("http://x/mcp", Some("http://x/mcp/profiles/p"));
        check("http://x/sse/", Some("http://x/sse/profiles/p"));
        check("http://x/a/mcp?b=c", Some("http://x/a/mcp/profiles/p?b=c"));
        check("http://x/?a=/mcp", None);
        check("http://x/mcp/servers/a", None);
        check("http://x/", None);
        assert!(profile_url("../a", "http://x/mcp").is_err());
    }
}
