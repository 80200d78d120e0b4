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

use crate::names::{ProfileName, ServerName};

pub(crate) use diagnostics::redact::{hidden_parts, secret_parts};
pub use diagnostics::report::{ConfigErrors, Notice, Severity};
pub use display::ShownConfig;
pub use load::{
    ConfigFormat, ConfigText, LoadScope, LoadedConfig, find_default, is_blank, load, load_with,
    parse, schema,
};
pub use model::child_env::child_environment;
pub(crate) use model::governance::glob;
pub use model::governance::{
    AgentConfig, ArgumentAction, ArgumentRule, Audit, Authentication, Budget, CheckDigits,
    Condition, Detector, DetectorClass, Durability, ErrorCodes, ErrorForm, GovernanceConfig, Mask,
    Policy, PolicyMode, Profile, Rate, RuleKind, Scan, ScanAction, Terms, Window,
};
pub(crate) use model::listen::listen_address;
pub use model::listen::{InvalidListenAddress, Listen, SocketConfig};
pub use model::restart_settings::restart_keys;
pub use model::server::{
    Auth, Balance, BreakerConfig, DisplayOnly, Ejection, EraPin, Expose, Health, Isolation,
    ItemRules, MemorySize, Probe, Remote, ReplicaConfig, Retry, Root, RouteConfig, Server,
    ServerLimits, StdioCommand, Transport, Validate,
};
pub use model::server_settings::server_keys;
pub(crate) use node::join_path as key_path;
pub use resolve::log_filter::InvalidLogFilter;
pub(crate) use resolve::log_filter::check_log_filter;
pub(crate) use resolve::with_scheme;
pub use source::environment::Environment;

mod diagnostics;
mod display;
mod file;
mod import;
mod load;
mod model;
mod node;
mod resolve;
mod source;
mod units;
mod validate;

/// Everything an operator can set.
#[derive(Clone, Debug, PartialEq)]
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
    /// `Host` names accepted beside loopback names and the listen address (DNS rebinding).
    pub allowed_hosts: Vec<String>,
    /// `Origin` values accepted beside `http:` and `https:` ones of loopback hosts; `*` accepts all.
    pub allowed_origins: Vec<String>,
    /// Worker threads of the runtime.
    pub workers: usize,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Certificate and key, when the listener speaks TLS itself.
    pub tls: Option<Tls>,
    /// Where this gateway runs: replicas with the same locality are preferred.
    pub locality: Option<String>,
    /// Limits on what clients send and hold.
    pub limits: Limits,
    /// Silence on an open stream after which a comment is sent.
    pub keep_alive: Duration,
    /// How long the first list waits for servers that are still connecting, and lists of the
    /// first client that servers can ask something for what they list for such clients; zero never
    /// waits.
    pub first_list_wait: Duration,
    /// How long running calls may take to finish once a stop was asked for.
    pub drain_timeout: Duration,
    /// How long a client may take to come back with the `requestState` of a server (2026-07-28).
    pub request_state_ttl: Duration,
    /// How long a session of a client may go unused.
    pub session_idle_timeout: Duration,
    /// Items a page of a list; `None` serves one full page, which some clients need.
    pub list_page_size: Option<usize>,
    /// How names and URIs of servers become exposed ones.
    pub naming: Naming,
    /// Where state is kept; it need not exist yet.
    pub data_dir: PathBuf,
    /// What governs calls.
    pub governance: GovernanceConfig,
    /// The record of calls.
    pub audit: Audit,
    /// The agents of the files by name, in their order.
    pub agents: IndexMap<String, AgentConfig>,
    /// Named views of the catalog, in the order of the files.
    pub profiles: IndexMap<ProfileName, Profile>,
    /// The servers, in the order of the files.
    pub servers: IndexMap<ServerName, Server>,
    /// The files it was read from.
    pub files: Vec<PathBuf>,
    /// The files that it names, readable or not: those of variables of programs, and those of `tls`.
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
        is_open && self.governance.auth == Authentication::Anonymous
    }

    fn listeners(&self) -> impl Iterator<Item = &Listen> {
        std::iter::once(&self.listen).chain(&self.admin_listen)
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// A `tracing` filter such as `info` or `tollbridge=debug`; `RUST_LOG` overrides it.
    pub level: String,
    /// Lines for people or for machines.
    pub format: LogFormat,
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
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// Certificate chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// Limits on what clients send and hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Connections of clients that may be open at once; when `None`, what the system allows beside
    /// what the gateway needs itself.
    pub connections: Option<NonZeroUsize>,
    /// Connections that one address, or one network of IPv6, may have open at once; when `None`, half of all
    /// for addresses on the internet, and any number for others.
    pub connections_per_address: Option<NonZeroUsize>,
    /// Bytes of messages that are held at once; when `None`, a quarter of the memory there is.
    pub bytes_in_flight: Option<usize>,
    /// How long the head of a request may take.
    pub headers_timeout: Duration,
    /// How many bytes a second of a body have to come, and of an answer to be taken.
    pub body_rate_min: usize,
    /// How long a body may come more slowly.
    pub body_grace: Duration,
    /// How much is taken of the body of a request without a valid key.
    pub unauthenticated_body: usize,
    /// Largest request body, bytes.
    pub body: usize,
    /// Largest sum of request headers, bytes.
    pub headers: usize,
    /// Deepest nesting of a request's JSON.
    pub depth: usize,
    /// Legacy sessions one agent may hold; the least recently used idle one ends beyond it.
    pub sessions_per_agent: usize,
    /// Calls that one agent may have under way at once; any number when `None`.
    pub in_flight_per_agent: Option<NonZeroUsize>,
}

/// How names and URIs of servers become exposed ones (`product.md` 4 of the project's design).
#[derive(Clone, Debug, PartialEq)]
pub struct Naming {
    /// Template with `{server}` and `{tool}`.
    pub template: String,
    /// Which characters an exposed name keeps.
    pub charset: Charset,
    /// Longest exposed name, characters.
    pub max_length: usize,
    /// What happens when the template yields equal names.
    pub conflict: Conflict,
    /// Whether resource URIs get the server's prefix.
    pub namespace_resources: bool,
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
