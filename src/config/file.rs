//! The config as it is written: the keys, their types and their defaults, once and for all.
//!
//! The doc comments here are the descriptions of the JSON Schema, which is what editors show and
//! what `validate` checks a file against. `resolve` turns [`ConfigFile`] into [`super::Config`], and
//! `display` goes the other way. A key that is not here is a mistake in a config.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Charset, Conflict, LogFormat,
    units::{Size, Time},
};
pub(super) use governance::{
    AgentSection, ArgumentRuleSection, AuditSection, BudgetSection, BudgetsSection,
    GovernanceSection, Off, PolicySection, ProfileSection, RateSection, ScanSection, Team,
    TermsSection,
};
pub(super) use server::{
    AuthSection, BreakerSection, EjectionSection, HealthSection, ItemKindSection, ItemRulesSection,
    NamedRoot, ReplicaSection, RetrySection, RootSection, RouteSection, ServerLimitsSection,
    ServerSection, ToolRules, TransportKind,
};

mod governance;
mod server;

/// Keys at the top that begin with this are the operator's: places for YAML anchors, and ignored.
pub(super) const EXTENSION_PREFIX: &str = "x-";

/// Configuration of Tollbridge.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Tollbridge")]
pub(super) struct ConfigFile {
    /// URL or path of the JSON Schema, for editors. Otherwise ignored.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<String>,
    /// Address and port of the HTTP listener, or `unix:` and the path of a Unix socket. An address
    /// other than loopback requires `governance.auth = "keys"` or `danger_listen_without_auth`.
    /// Relative socket paths start at the directory of the config file.
    pub(super) listen: String,
    /// Address and port, or `unix:` and a path, of a listener of its own for `/healthz`, `/readyz`, `/metrics` and
    /// `/status`, which are then not served on `listen`. It has its own connection limit, and answers while that
    /// is full. The rules for `listen` apply, and so does `tls`, except to a socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) admin_listen: Option<String>,
    /// Access to the Unix socket, when `listen` or `admin_listen` is one.
    pub(super) socket: SocketSection,
    /// Allow a non-loopback `listen` without authentication: everyone who reaches the port can call
    /// every tool.
    pub(super) danger_listen_without_auth: bool,
    /// How many following ports to try when the port of `listen` is in use; `0` tries none.
    pub(super) port_search: u16,
    /// Directory of persistent state: agents, keys, budgets, listings, sessions, audit log.
    /// Relative paths start at the directory of the config file. Default: `tollbridge` in the
    /// user's data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data_dir: Option<String>,
    /// `Host` values accepted besides loopback names and the listen address; requests with another
    /// `Host` get 403 (protection against DNS rebinding). Set it when `listen` is not loopback.
    /// `/healthz` and `/readyz` accept any `Host`.
    pub(super) allowed_hosts: Vec<String>,
    /// `Origin` values accepted besides `http:` and `https:` origins on loopback, such as
    /// `tauri://localhost`. `*` accepts every origin.
    pub(super) allowed_origins: Vec<String>,
    /// Worker threads of the gateway. Default: half the cores, because server processes use the
    /// rest. A dedicated machine with remote servers only can use one per core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<usize>,
    /// Interval of keep-alive comments on idle event streams. Also how long a request is awaited
    /// before its response becomes an event stream.
    pub(super) keep_alive: Time,
    /// How long the first list request waits for servers that are still connecting, and for tools
    /// that servers list only to interactive clients. `/readyz` waits as long. `0` never waits.
    pub(super) first_list_wait: Time,
    /// How long running calls may finish after a stop is requested; then they are aborted.
    pub(super) drain_timeout: Time,
    /// How long a client may take to return the `requestState` of a 2026-07-28 server. Each state
    /// is valid for eight requests.
    pub(super) request_state_ttl: Time,
    /// How long a client session may be idle (no open stream, no running call) before it ends.
    /// Survives restarts.
    pub(super) session_idle_timeout: Time,
    /// Items per page of a list; `0` returns everything in one page, because some clients read only
    /// the first page.
    pub(super) list_page_size: usize,
    /// Logging.
    pub(super) log: LogSection,
    /// Certificate and key; when set, the listener speaks TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<TlsSection>,
    /// Location of this gateway, any string such as `eu-1`. Replicas with the same `locality` are
    /// preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locality: Option<String>,
    /// Limits on client connections and requests.
    pub(super) limits: LimitsSection,
    /// How names and URIs of servers are mapped to the names that clients see.
    pub(super) naming: NamingSection,
    /// Authentication, policies, rates, budgets and scanning. Without this section every client may
    /// call everything, and nothing is charged or scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) governance: Option<GovernanceSection>,
    /// The audit log.
    pub(super) audit: AuditSection,
    /// Agents by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) agents: IndexMap<String, AgentSection>,
    /// Named views of the catalog, by name (letters, digits, `_`, `-`, `.`).
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) profiles: IndexMap<String, ProfileSection>,
    /// Servers by name (letters, digits, `_`, `-`, `.`).
    pub(super) servers: IndexMap<String, ServerSection>,
}

impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            schema: None,
            listen: "127.0.0.1:8080".to_owned(),
            admin_listen: None,
            socket: SocketSection::default(),
            danger_listen_without_auth: false,
            port_search: 0,
            data_dir: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            workers: None,
            keep_alive: Time::secs(15),
            first_list_wait: Time::secs(2),
            drain_timeout: Time::secs(10),
            request_state_ttl: Time::secs(24 * 60 * 60),
            session_idle_timeout: Time::secs(24 * 60 * 60),
            list_page_size: 0,
            log: LogSection::default(),
            tls: None,
            locality: None,
            limits: LimitsSection::default(),
            naming: NamingSection::default(),
            governance: None,
            audit: AuditSection::default(),
            agents: IndexMap::new(),
            profiles: IndexMap::new(),
            servers: IndexMap::new(),
        }
    }
}

/// Access to the Unix socket. The file mode decides who can reach it; the peer must also be root,
/// the user of the gateway, or one of `uids`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SocketSection {
    /// File mode of the socket, octal. Clients need write permission.
    pub(super) mode: String,
    /// User ids that may connect besides root and the user of the gateway.
    pub(super) uids: Vec<u32>,
}

impl Default for SocketSection {
    fn default() -> Self {
        Self {
            mode: "0600".to_owned(),
            uids: Vec::new(),
        }
    }
}

/// Logging.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogSection {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) for the gateway's own lines (libraries
    /// log from `warn` on), or a filter such as `info,tollbridge=debug`. `RUST_LOG` overrides it.
    pub(super) level: String,
    /// Format of log lines.
    pub(super) format: LogFormat,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::Human,
        }
    }
}

/// Certificate and key of the TLS listener. Relative paths start at the directory of the config
/// file. Changed files are reloaded.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsSection {
    /// PEM file with the certificate chain.
    pub(super) cert: String,
    /// PEM file with the private key.
    pub(super) key: String,
}

/// Limits on client connections and requests.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    /// Maximum open client connections. At the limit, the connection that has been idle longest is
    /// closed if it has been idle for a second between requests (or for a quarter of a second
    /// without any request); otherwise the new one waits. Default: half of the open-file limit
    /// minus 256 (or a quarter of it if that is more). The rest is for requests to servers over HTTP; calls
    /// beyond that fail as `BUSY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connections: Option<usize>,
    /// Maximum open connections per client address (IPv6: per /64 network); further ones are
    /// closed. Default: half of `connections` for public addresses, unlimited for loopback and
    /// private networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connections_per_address: Option<usize>,
    /// Maximum bytes of messages held at once: request bodies, server responses, unread answers.
    /// From three quarters on, new requests get HTTP 503. Request bodies may use half of it, one
    /// authenticated agent a quarter. Default: a quarter of the memory of the machine or cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_in_flight: Option<Size>,
    /// Time limit for receiving the headers of a request, and over HTTP/1.1 for the first request
    /// on a new connection.
    pub(super) headers_timeout: Time,
    /// Minimum average rate per second of a request body (else HTTP 408), and of a client that
    /// reads a response (else the connection is closed), after `body_grace`. `0` disables both. A
    /// body must be complete within a minute in any case.
    pub(super) body_rate_min: Size,
    /// Time during which a body may be slower than `body_rate_min`.
    pub(super) body_grace: Time,
    /// How much body is read and discarded when a request is rejected for its key, so that the
    /// client can read the response. Longer bodies close the connection.
    pub(super) unauthenticated_body: Size,
    /// Maximum size of a request body; larger ones get 413.
    pub(super) body: Size,
    /// Maximum total size of request headers; larger ones get 431. HTTP/1.1 allows 100 headers at
    /// most.
    pub(super) headers: Size,
    /// Maximum nesting depth of request JSON, 8 to 128.
    pub(super) depth: usize,
    /// Maximum legacy sessions per agent. Beyond it the least recently used idle session ends.
    pub(super) sessions_per_agent: usize,
    /// Maximum concurrent calls per agent, including calls that wait for a server; further ones are
    /// refused (`RATE_LIMITED`). Without authentication all clients are one agent. Default:
    /// unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_flight_per_agent: Option<usize>,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            connections: None,
            connections_per_address: None,
            bytes_in_flight: None,
            headers_timeout: Time::secs(15),
            body_rate_min: Size(Size::KIB),
            body_grace: Time::secs(5),
            unauthenticated_body: Size(64 * Size::KIB),
            body: Size(4 * Size::MIB),
            headers: Size(64 * Size::KIB),
            depth: 128,
            sessions_per_agent: 10_000,
            in_flight_per_agent: None,
        }
    }
}

/// How names and URIs of servers are mapped to the names that clients see.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NamingSection {
    /// Template of tool and prompt names. Contains `{tool}`, and `{server}` unless names are unique
    /// without it.
    pub(super) template: String,
    /// Which characters of server and tool names are kept.
    pub(super) charset: Charset,
    /// Maximum length of exposed names in characters, 16 to 128; longer names end in a hash.
    pub(super) max_length: usize,
    /// What to do when two items get the same name.
    pub(super) conflict: Conflict,
    /// Add the server's prefix to resource URIs. With `false` only colliding URIs are changed, as
    /// `conflict` says.
    pub(super) namespace_resources: bool,
}

impl Default for NamingSection {
    fn default() -> Self {
        Self {
            template: "mcp_{server}_{tool}".to_owned(),
            charset: Charset::Strict,
            max_length: 48,
            conflict: Conflict::Namespace,
            namespace_resources: true,
        }
    }
}

/// The JSON Schema of [`ConfigFile`] as it is handed to editors: what a file is checked against.
///
/// It is [`type_schema`] written down, which a test holds it to: making it of the types at each start
/// takes as long as all other work on the config, and more memory.
pub(super) fn editor_schema() -> serde_json::Result<serde_json::Value> {
    serde_json::from_str(include_str!("../../schemas/config.schema.json"))
}

/// The JSON Schema of [`ConfigFile`], of the types.
///
/// An absent key and a null mean the same in a config, so that the schema does not mention null.
pub(super) fn type_schema() -> serde_json::Value {
    let mut schema: serde_json::Value = schemars::schema_for!(ConfigFile).into();
    remove_null_types(&mut schema);
    schema["patternProperties"] = serde_json::json!({ format!("^{EXTENSION_PREFIX}"): {} });
    schema
}

fn remove_null_types(schema: &mut serde_json::Value) {
    if let Some(items) = schema.as_array_mut() {
        items.iter_mut().for_each(remove_null_types);
    }
    let Some(keywords) = schema.as_object_mut() else {
        return;
    };
    keywords.values_mut().for_each(remove_null_types);
    keywords.retain(|keyword, value| !(keyword == "default" && value.is_null()));
    if let Some(types) = keywords.get_mut("type")
        && let Some(names) = types.as_array_mut()
    {
        names.retain(|name| name != "null");
        if let [only] = names.as_slice() {
            *types = only.clone();
        }
    }
    if let Some(options) = keywords
        .get_mut("anyOf")
        .and_then(serde_json::Value::as_array_mut)
    {
        options.retain(|option| option.get("type").is_none_or(|name| name != "null"));
        if let [serde_json::Value::Object(only)] = options.as_slice() {
            let only = only.clone();
            keywords.remove("anyOf");
            keywords.extend(only);
        }
    }
}
