//! `Config`: resolved, typed, total.
//!
//! Read at the start, and again when a file changes, from the files, the environment and the
//! defaults; every value here is ready to use. `restart_settings` says what a running gateway cannot change.
//! Nothing else in the crate reads configuration files or environment variables.
//!
//! Loading goes: each text into a tree with spans (`toml`, `yaml`, `json`), documents of other
//! programs into our shape (`import`), all trees into one (`node`), overrides from the environment
//! (`environment`), variables (`variables`), keys and types (`validate`), the types as written
//! (`file`), the types here (`resolve`). Every stage reports all it finds and goes on.
//!
//! Where files meet: later ones win key by key, lists are replaced, null brings the default back.
//! Relative paths start at the file they are written in. Variables stand in values, not in keys.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::names::{ProfileName, ServerName, WorkspaceName};
use units::{Size, Time, optional_size};

pub(crate) use diagnostics::redact::MASK;
pub(crate) use diagnostics::redact::{hidden_parts, secret_parts};
pub use diagnostics::report::{ConfigErrors, Notice, Severity};
pub use display::{ShownConfig, mask_document, unmask_document};
pub use export::{ExportError, ExportedAgents};
pub use load::{
    ConfigFormat, ConfigText, LoadScope, LoadedConfig, find_default, is_blank, load, load_with,
    parse, schema,
};
pub use model::authentication::{AuthMethod, Authentication};
pub use model::child_env::child_environment;
pub use model::egress::{Egress, EgressTarget, InvalidEgressTarget};
pub use model::entries::{
    ConfigEntry, EntryKey, EntryOrigins, EntrySection, FaultyEntry, FilePlace,
};
pub use model::environment_proxies::EnvironmentProxies;
pub use model::governance::{
    AgentConfig, Audit, Durability, ErrorCodes, ErrorForm, GovernanceConfig, Profile, RuleKind,
    Terms,
};
pub use model::items::{Expose, ItemRules, Root};
pub use model::limits::{Budget, InvalidBudget, InvalidRate, Rate, Window};
pub(crate) use model::listen::listen_address;
pub use model::listen::{InvalidListenAddress, Listen, SocketConfig};
pub use model::oauth::{
    AgentMatch, ClaimGlob, JwtAlgorithm, JwtIssuer, OAuthConfig, OAuthMode, OidcLogin, QuotaOwner,
};
pub use model::oauth_grant::{GrantKind, IdentityProvider, OAuthGrant};
pub use model::policy::{ArgumentAction, ArgumentRule, Condition, Policy, PolicyMode};
pub(crate) use model::policy::{glob, name_matcher};
pub use model::restart_settings::restart_keys;
pub use model::role::Role;
pub use model::scan::{CheckDigits, Detector, DetectorClass, Mask, Scan, ScanAction};
pub use model::secrets::{SecretKeyPlace, SecretUse, Secrets};
pub use model::server::{
    Balance, BreakerConfig, Ejection, EraPin, Health, Isolation, MemorySize, NameConflict, Probe,
    ReplicaConfig, Retry, RouteConfig, Server, ServerLimits, Validate,
};
pub use model::server_settings::server_keys;
pub use model::transport::{
    Auth, DisplayOnly, ForwardProxy, GatewaySession, Remote, RemoteTls, ServerEgress, StdioCommand,
    Transport,
};
pub use model::views::ViewsConfig;
pub use model::workspace::Workspace;
use model::{CALLS_MAX, DEPTH_MAX};
pub(crate) use node::join_path as key_path;
pub use resolve::log_filter::InvalidLogFilter;
pub(crate) use resolve::log_filter::check_log_filter;
pub(crate) use resolve::with_scheme;
pub use source::environment::Environment;
pub use source::secret_values::{
    ReadSecrets, StoreReader, VALUE_BYTES_MAX as SECRET_BYTES_MAX,
    check_value as check_secret_value,
};
pub use written::{ValuePlace, WrittenConfig};

mod diagnostics;
mod display;
mod export;
mod file;
mod file_access;
mod import;
mod load;
mod model;
mod node;
mod resolve;
mod schema;
mod source;
mod units;
mod validate;
mod written;

/// Everything an operator can set. [`Config::to_display`] shows it as a config file would have it; what is
/// serialized also has what such a file must not say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Where the HTTP listener is.
    pub listen: Listen,
    /// Where state and probes have a listener of their own; `None` where that of clients serves them.
    pub admin_listen: Option<Listen>,
    /// Who may connect to either, where it is a Unix socket.
    pub socket: SocketConfig,
    /// Whether `listen` may be an address beyond this machine although nobody has to authenticate.
    pub danger_listen_without_auth: bool,
    /// How many following ports are tried when the one of `listen` is taken; 0 tries none.
    pub port_search: u16,
    /// Where state is kept; it need not exist yet.
    #[serde(serialize_with = "display::path")]
    pub data_dir: PathBuf,
    /// The URL by which clients reach the gateway; `None`: that of `listen`.
    pub public_url: Option<Url>,
    /// `Host` names accepted beside loopback names and the listen address (DNS rebinding).
    pub allowed_hosts: Vec<String>,
    /// `Origin` values accepted beside `http:` and `https:` ones of loopback hosts; `*` accepts all.
    pub allowed_origins: Vec<String>,
    /// Worker threads of the runtime.
    pub workers: usize,
    /// Silence on an open stream after which a comment is sent.
    #[serde(with = "Time")]
    pub keep_alive: Duration,
    /// How long the first list waits for servers that are still connecting, and lists of the
    /// first client that servers can ask something for what they list for such clients; zero never
    /// waits.
    #[serde(with = "Time")]
    pub first_list_wait: Duration,
    /// How long running calls may take to finish once a stop was asked for.
    #[serde(with = "Time")]
    pub drain_timeout: Duration,
    /// How long a client may take to come back with the `requestState` of a server (2026-07-28).
    #[serde(with = "Time")]
    pub request_state_ttl: Duration,
    /// How long a session of a client may go unused.
    #[serde(with = "Time")]
    pub session_idle_timeout: Duration,
    /// Items a page of a list; `None` serves one full page, which some clients need.
    #[serde(serialize_with = "display::zero_if_none")]
    pub list_page_size: Option<usize>,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Certificate and key, when the listener speaks TLS itself.
    pub tls: Option<Tls>,
    /// Where this gateway runs: replicas with the same locality are preferred.
    pub locality: Option<String>,
    /// Limits on what clients send and hold.
    pub limits: Limits,
    /// What may be reached by URLs that others name.
    pub egress: Egress,
    /// Who issues the access tokens of clients.
    #[serde(skip_serializing_if = "OAuthConfig::is_default")]
    pub oauth: OAuthConfig,
    /// Views for one conversation each.
    pub views: ViewsConfig,
    /// Issuers of tokens of machines, by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub jwt: IndexMap<String, JwtIssuer>,
    /// Which agents the subjects of tokens are: `agents.match`.
    #[serde(skip)]
    pub agent_matches: Vec<AgentMatch>,
    /// How names and URIs of servers become exposed ones.
    pub naming: Naming,
    /// What governs calls.
    #[serde(skip_serializing_if = "GovernanceConfig::is_default")]
    pub governance: GovernanceConfig,
    /// The record of calls.
    pub audit: Audit,
    /// The agents of the files by name, in their order.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub agents: IndexMap<String, AgentConfig>,
    /// Named views of the catalog, in the order of the files.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub profiles: IndexMap<ProfileName, Profile>,
    /// Secrets outside of the config.
    pub secrets: Secrets,
    /// The servers, in the order of the files.
    pub servers: IndexMap<ServerName, Server>,
    /// The workspaces, in the order of the files. Teams that own servers need not be among them.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub workspaces: IndexMap<WorkspaceName, Workspace>,
    /// Which entries of files and store count.
    #[serde(skip)]
    pub entries: EntryOrigins,
    /// The files it was read from.
    #[serde(skip)]
    pub files: Vec<PathBuf>,
    /// The files that it names, readable or not: those of variables of programs, and those of `tls`.
    #[serde(skip)]
    pub named_files: Vec<PathBuf>,
}

impl Config {
    /// What no program of a server has to read: the config, where secrets may stand, the files of
    /// variables of all programs, the key of the listener, its socket, and all state.
    pub fn hidden_paths(&self) -> Vec<PathBuf> {
        let certificate = self.tls.as_ref().map(|tls| &tls.cert);
        let named = self.named_files.iter();
        let named = named.filter(|file| Some(*file) != certificate);
        let sockets = self.listeners().filter_map(Listen::socket);
        let files = self.files.iter().chain(named).map(PathBuf::as_path);
        let own = std::iter::once(self.data_dir.as_path()).chain(sockets);
        own.chain(files).map(Path::to_owned).collect()
    }

    /// Whether a listener can be reached from other machines and nobody has to authenticate.
    pub fn is_open_without_auth(&self) -> bool {
        let mut addresses = self.listeners().filter_map(Listen::address);
        let is_open = addresses.any(|address| !address.ip().to_canonical().is_loopback());
        is_open && self.governance.auth.allows_anonymous()
    }

    fn listeners(&self) -> impl Iterator<Item = &Listen> {
        std::iter::once(&self.listen).chain(&self.admin_listen)
    }
}

/// Logging.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) for the gateway's own lines (libraries
    /// log from `warn` on), or a filter such as `info,tollbridge=debug`. `RUST_LOG` overrides it.
    pub level: String,
    /// Format of log lines.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Human,
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// The PEM files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tls {
    /// Certificate chain.
    #[serde(serialize_with = "display::path")]
    pub cert: PathBuf,
    /// Private key.
    #[serde(serialize_with = "display::path")]
    pub key: PathBuf,
    /// The CAs of client certificates.
    #[serde(
        serialize_with = "display::optional_path",
        skip_serializing_if = "Option::is_none"
    )]
    pub client_ca: Option<PathBuf>,
}

/// More memory than machines have.
const MEMORY_MAX: &str = "16384GiB";

/// Limits on client connections and requests.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum open client connections. At the limit, the connection that has been idle longest is
    /// closed if it has been idle for a second between requests (or for a quarter of a second
    /// without any request); otherwise the new one waits. Default: half of the open-file limit
    /// minus 256 (or a quarter of it if that is more). The rest is for requests to servers over HTTP; calls
    /// beyond that fail as `BUSY`.
    #[schemars(range(max = CALLS_MAX))]
    pub connections: Option<NonZeroUsize>,
    /// Maximum open connections per client address (IPv6: per /64 network); further ones are
    /// closed. Default: half of `connections` for public addresses, unlimited for loopback and
    /// private networks.
    #[schemars(range(max = CALLS_MAX))]
    pub connections_per_address: Option<NonZeroUsize>,
    /// Maximum bytes of messages held at once: request bodies, server responses, unread answers.
    /// From three quarters on, new requests get HTTP 503. Request bodies may use half of it, one
    /// authenticated agent a quarter. Default: a quarter of the memory of the machine or cgroup.
    #[serde(with = "optional_size")]
    #[schemars(with = "Option<Size>", extend("x-max" = MEMORY_MAX))]
    pub bytes_in_flight: Option<usize>,
    /// Time limit for receiving the headers of a request, and over HTTP/1.1 for the first request
    /// on a new connection.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "100ms"))]
    pub headers_timeout: Duration,
    /// Minimum average rate per second of a request body (else HTTP 408), and of a client that
    /// reads a response (else the connection is closed), after `body_grace`. `0` disables both. A
    /// body must be complete within a minute in any case.
    #[serde(with = "Size")]
    #[schemars(extend("x-min" = "0B"))]
    pub body_rate_min: usize,
    /// Time during which a body may be slower than `body_rate_min`.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "0s"))]
    pub body_grace: Duration,
    /// How much body is read and discarded when a request is rejected for its key, so that the
    /// client can read the response. Longer bodies close the connection.
    #[serde(with = "Size")]
    #[schemars(extend("x-min" = "0B"))]
    pub unauthenticated_body: usize,
    /// Maximum size of a request body; larger ones get 413.
    #[serde(with = "Size")]
    pub body: usize,
    /// Maximum total size of request headers; larger ones get 431. HTTP/1.1 allows 100 headers at
    /// most.
    #[serde(with = "Size")]
    pub headers: usize,
    /// Maximum nesting depth of request JSON.
    #[schemars(range(min = 8, max = DEPTH_MAX))]
    pub depth: usize,
    /// Maximum legacy sessions per agent. Beyond it the least recently used idle session ends.
    #[schemars(range(min = 1))]
    pub sessions_per_agent: usize,
    /// Maximum concurrent calls per agent, including calls that wait for a server; further ones are
    /// refused (`RATE_LIMITED`). Without authentication all clients are one agent. Default:
    /// unlimited.
    #[schemars(range(max = CALLS_MAX))]
    pub in_flight_per_agent: Option<NonZeroUsize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: None,
            connections_per_address: None,
            bytes_in_flight: None,
            headers_timeout: Duration::from_secs(15),
            body_rate_min: 1 << 10,
            body_grace: Duration::from_secs(5),
            unauthenticated_body: 64 << 10,
            body: 4 << 20,
            headers: 64 << 10,
            depth: 128,
            sessions_per_agent: 10_000,
            in_flight_per_agent: None,
        }
    }
}

/// How names and URIs of servers are mapped to the names that clients see.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Naming {
    /// Template of tool and prompt names. Contains `{tool}`, and `{server}` unless names are unique
    /// without it.
    pub template: String,
    /// Which characters of server and tool names are kept.
    pub charset: Charset,
    /// Maximum length of exposed names in characters; longer names end in a hash. The default is the
    /// limit of Claude Code: 64 characters, of which its prefix `mcp__tollbridge__` takes 17.
    // Shorter names leave no room beside the hash of nine characters; longer ones no client takes.
    #[schemars(range(min = 16, max = 128))]
    pub max_length: usize,
    /// What to do when two items get the same name.
    pub conflict: Conflict,
    /// Add the server's prefix to resource URIs. With `false` only colliding URIs are changed, as
    /// `conflict` says.
    pub namespace_resources: bool,
}

impl Naming {
    /// The default of `max_length`: Claude Code allows 64 characters with `mcp__NAME__` before them, where
    /// NAME is what its user calls the gateway.
    pub const LENGTH_DEFAULT: usize = 46;
}

impl Default for Naming {
    fn default() -> Self {
        Self {
            template: "mcp_{server}_{tool}".to_owned(),
            charset: Charset::Strict,
            max_length: Self::LENGTH_DEFAULT,
            conflict: Conflict::Namespace,
            namespace_resources: true,
        }
    }
}

/// Which characters an exposed name keeps.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Charset {
    /// All characters.
    Original,
    /// Letters, digits and `_`, which every client accepts; others become `_`.
    Strict,
}

/// What to do when two items get the same name.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Conflict {
    /// List none of them and report the collision in `/status`.
    Error,
    /// The server that comes first in the config keeps the name; the others are hidden.
    First,
    /// List all of them, each with `_` and a hash appended.
    Namespace,
    /// The server with the highest `priority` keeps the name; ties are resolved by config order.
    Priority,
}

/// A value that never shows itself: `Debug`, `Display` and `Serialize` give `***`.
#[derive(Clone, Deserialize, Eq, JsonSchema, PartialEq)]
#[schemars(inline)]
pub struct Secret(String);

impl Secret {
    /// Wraps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself; call it only where it is put on the wire.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
impl Config {
    /// What `text`, which is TOML, says, for tests.
    pub(crate) fn example(text: &str) -> Self {
        let source = ConfigText {
            name: "test.toml".to_owned(),
            format: ConfigFormat::Toml,
            text: text.to_owned(),
            directory: "/".into(),
        };
        let loaded = parse([source], &Environment::default());
        loaded
            .unwrap_or_else(|mistakes| panic!("{mistakes}"))
            .config
    }
}
