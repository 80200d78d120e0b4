//! How a server is reached: a program, a URL, or the toolbox; and how that is written.

use std::{fmt, path::PathBuf, sync::Arc};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::config::{EgressTarget, OAuthGrant, Secret, diagnostics::redact};

/// How a server is reached. It is serialized with the keys of a config, without secrets.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// A URL whose transport is found by probing: streamable HTTP, then HTTP+SSE.
    Auto(Remote),
    /// The toolbox inside this binary.
    Builtin,
    /// A gateway that runs on this machine, through its control socket. Only commands have it.
    ControlSocket(GatewaySession),
    /// Streamable HTTP.
    Http(Remote),
    /// HTTP+SSE of 2024-11-05.
    Sse(Remote),
    /// A child process on stdin and stdout.
    Stdio(StdioCommand),
    /// WebSocket with the subprotocol `mcp`.
    WebSocket(Remote),
}

/// A session with a gateway that runs on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewaySession {
    /// Its control socket.
    pub socket: PathBuf,
    /// What is asked of it there, JSON.
    pub request: String,
}

/// What is shown and has no effect: no two configs differ in it.
#[derive(Clone, Debug, Default)]
pub struct DisplayOnly<T>(pub T);

impl<T> PartialEq for DisplayOnly<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A program to run.
#[derive(Clone, PartialEq)]
pub struct StdioCommand {
    /// A name that is looked for in `PATH`, or an absolute path; no shell is involved.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The arguments as anybody may see them: variables by their names, and nothing that looks like a secret.
    pub shown_args: DisplayOnly<Vec<String>>,
    /// Variables added to the minimal environment; values may be secret.
    pub env: IndexMap<String, Secret>,
    /// Working directory; ours when `None`.
    pub cwd: Option<PathBuf>,
    /// The user it runs as, by name or number; ours when `None`.
    pub user: Option<String>,
    /// Variables of ours that it gets besides those that every program gets.
    pub inherit_env: Vec<String>,
}

/// A server behind a URL.
#[derive(Clone, PartialEq)]
pub struct Remote {
    /// `http:`, `https:`, `ws:` or `wss:`.
    pub url: http::Uri,
    /// Whether the environment gave a part of it: its path may be a credential then, and is not shown.
    pub is_from_variable: bool,
    /// Headers sent with every request; values may be secret.
    pub headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    pub auth: Auth,
    /// What connections go through; straight to the server when `None`.
    pub proxy: Option<ForwardProxy>,
    /// Which certificates are accepted, and which one is shown.
    pub tls: RemoteTls,
    /// Where its URL may lead.
    pub egress: ServerEgress,
    /// `egress.allow`: what may be reached although it is link-local or a metadata service, or not public.
    pub egress_allow: Arc<[EgressTarget]>,
}

/// Where the URL of a server may lead.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerEgress {
    /// Anywhere but to link-local addresses and metadata services.
    #[default]
    Any,
    /// To public addresses, and to those of `egress.allow`.
    Public,
}

/// A proxy on the way to a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardProxy {
    /// Scheme, host and port.
    pub uri: http::Uri,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<Secret>,
}

/// TLS to a server. Its certificate is verified with the system's CAs (or `SSL_CERT_FILE`) and `ca`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// PEM file with CAs accepted besides those of the system. The server's own certificate in it is accepted as
    /// it is, also self-signed, under another name or expired. Read when a connection is opened. Relative paths
    /// start at the directory of the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// PEM file with the certificate chain presented to the server. Requires `client_key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cert: Option<PathBuf>,
    /// PEM file with the private key of `client_cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<PathBuf>,
    /// SHA-256 fingerprint of the server's certificate, in hexadecimal, as `openssl x509 -fingerprint -sha256`
    /// prints it. No other certificate is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Accept every certificate: anyone on the network path can read and change everything, credentials included.
    pub danger_accept_invalid: bool,
}

/// As anybody may see it.
impl fmt::Debug for StdioCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StdioCommand");
        shown.field("program", &self.program);
        shown.field("args", &self.shown_args.0);
        shown.field("env", &self.env);
        shown.field("cwd", &self.cwd);
        shown.field("user", &self.user);
        shown.field("inherit_env", &self.inherit_env);
        shown.finish()
    }
}

/// As anybody may see it.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Remote");
        shown.field("url", &self.displayed_url());
        shown.field("headers", &self.headers);
        shown.field("auth", &self.auth);
        shown.field("proxy", &self.proxy);
        shown.field("tls", &self.tls);
        shown.finish_non_exhaustive()
    }
}

impl Remote {
    /// What is reached at `url`, and nothing else is said of it.
    #[cfg(test)]
    pub(crate) fn example(url: &http::Uri) -> Self {
        Self {
            url: url.clone(),
            is_from_variable: false,
            headers: IndexMap::new(),
            auth: Auth::None,
            proxy: None,
            tls: RemoteTls::default(),
            egress: ServerEgress::Any,
            egress_allow: Arc::default(),
        }
    }

    /// The URL as anybody may see it.
    fn displayed_url(&self) -> String {
        let url = &self.url;
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let scheme = url.scheme_str().unwrap_or_default();
        let place = redact::redact_urls(&format!("{scheme}://{authority}"));
        let query = url.query().map_or("", |_| "?***");
        format!("{place}{}{query}", self.displayed_path())
    }

    /// The path as anybody may see it.
    pub fn displayed_path(&self) -> String {
        match self.url.path() {
            "/" => "/".to_owned(),
            _ if self.is_from_variable => "/***".to_owned(),
            path => redact::redact_path(path),
        }
    }
}

/// Credential for a server.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Auth {
    /// Sent as `Authorization: Bearer`.
    Bearer {
        /// The token, usually a variable such as `${DOCS_TOKEN}`.
        token: Secret,
    },
    /// Sent in a custom header such as `X-API-Key`.
    Header {
        /// Header name.
        name: String,
        /// Header value, usually a variable.
        value: Secret,
    },
    /// None.
    #[serde(skip)]
    None,
    /// A token that the gateway gets by OAuth.
    OAuth2(Box<OAuthGrant>),
}

/// How a server is reached, as it is written.
#[derive(Clone, Default, Deserialize, JsonSchema, Serialize)]
#[serde(default)]
pub(in crate::config) struct TransportSection {
    /// Program name or path, started without a shell. A bare name is looked up in `PATH`; relative
    /// paths such as `./server` start at the directory of the config file.
    pub(in crate::config) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<String>,
    /// Environment variables added to the minimal environment of the program. Values are never
    /// shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) env: IndexMap<String, Secret>,
    /// File with more variables, `NAME=value` per line, without expansion; `env` wins. Relative
    /// paths start at the directory of the config file. A change reloads the config. Values are
    /// never shown.
    pub(in crate::config) env_file: Option<String>,
    /// Working directory of the program. Relative paths start at the directory of the config file.
    /// Default: the working directory of the gateway.
    pub(in crate::config) cwd: Option<String>,
    /// User to run the program as (name or id), with that user's groups and `HOME`. Requires a
    /// gateway that runs as root. Default: the user of the gateway.
    pub(in crate::config) user: Option<String>,
    /// Names of further variables that the program gets from the environment of the gateway.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) inherit_env: Vec<String>,
    /// URL of a remote server: `http:`, `https:`, `ws:` or `wss:`. Certificates are verified with
    /// the system's CAs, or with the PEM file in `SSL_CERT_FILE`; see `tls`.
    pub(in crate::config) url: Option<String>,
    /// Headers sent with every request. Values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    pub(in crate::config) auth: Option<Auth>,
    /// Proxy for connections to the server: `http://host:port`, with user and password if it wants them, or
    /// `off`. Default: that of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. Never shown.
    pub(in crate::config) proxy: Option<Secret>,
    /// Certificates of and for the server.
    pub(in crate::config) tls: Option<RemoteTls>,
    /// Where `url`, and the issuers of `auth`, may lead. What a workspace admin writes is `public` unless an admin says
    /// otherwise. A proxy resolves names itself. Default: `any`; `public` where the URL of a server of a workspace or an
    /// agent has a secret in it.
    pub(in crate::config) egress: Option<ServerEgress>,
    /// Transport. Default: derived from `command` or from the scheme of `url`.
    pub(in crate::config) transport: Option<TransportKind>,
}

/// Transport of a server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum TransportKind {
    /// URL: streamable HTTP is tried first, then HTTP+SSE.
    Auto,
    /// The built-in toolbox.
    Builtin,
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE (2024-11-05).
    Sse,
    /// Child process on stdin and stdout.
    Stdio,
    /// WebSocket with the subprotocol `mcp`.
    WebSocket,
}

impl Serialize for Transport {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let shown = match self {
            Self::Auto(remote) => remote.to_section(TransportKind::Auto),
            Self::Builtin => TransportSection {
                transport: Some(TransportKind::Builtin),
                ..TransportSection::default()
            },
            Self::ControlSocket(_) => TransportSection::default(),
            Self::Http(remote) => remote.to_section(TransportKind::Http),
            Self::Sse(remote) => remote.to_section(TransportKind::Sse),
            Self::Stdio(command) => command.to_section(),
            Self::WebSocket(remote) => remote.to_section(TransportKind::WebSocket),
        };
        shown.serialize(to)
    }
}

impl Transport {
    /// The server, where it is one behind a URL.
    pub fn remote(&self) -> Option<&Remote> {
        match self {
            Self::Auto(remote)
            | Self::Http(remote)
            | Self::Sse(remote)
            | Self::WebSocket(remote) => Some(remote),
            Self::Builtin | Self::ControlSocket(_) | Self::Stdio(_) => None,
        }
    }
}

impl StdioCommand {
    fn to_section(&self) -> TransportSection {
        let cwd = self.cwd.as_deref();
        TransportSection {
            command: Some(self.program.clone()),
            args: self.shown_args.0.clone(),
            env: self.env.clone(),
            cwd: cwd.map(|cwd| cwd.display().to_string()),
            user: self.user.clone(),
            inherit_env: self.inherit_env.clone(),
            transport: Some(TransportKind::Stdio),
            ..TransportSection::default()
        }
    }
}

impl Remote {
    fn to_section(&self, kind: TransportKind) -> TransportSection {
        TransportSection {
            url: Some(self.displayed_url()),
            headers: self.headers.clone(),
            auth: Some(self.auth.clone()).filter(|auth| *auth != Auth::None),
            proxy: self
                .proxy
                .as_ref()
                .map(|it| Secret::new(it.uri.to_string())),
            tls: Some(self.tls.clone()).filter(|tls| *tls != RemoteTls::default()),
            egress: Some(self.egress).filter(|egress| *egress != ServerEgress::Any),
            transport: Some(kind),
            ..TransportSection::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn debug_output_has_no_secrets() {
        let config = Config::example(
            "[servers.a]\ncommand = 'run'\nargs = ['--token', 'hunter2']\nenv = { KEY = 'hunter2' }\n\
             [servers.b]\nurl = 'https://b.example/mcp?key=hunter2'\n\
             headers = { X-Key = 'hunter2' }",
        );
        let servers = config.servers.values();
        for transport in servers.map(|server| &server.transport) {
            let shown = format!("{transport:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(
                shown.contains("run") || shown.contains("b.example/mcp"),
                "{shown}"
            );
        }
    }
}
