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
pub(super) use governing::{
    AgentSection, ArgumentRuleSection, AuditSection, BudgetSection, BudgetsSection,
    GovernanceSection, Off, PolicySection, ProfileSection, RateSection, ScanSection, Team,
    TermsSection,
};
pub(super) use server::{
    AuthSection, BreakerSection, EjectionSection, HealthSection, ItemKindSection, ItemRulesSection,
    NamedRoot, ReplicaSection, RetrySection, RootSection, RouteSection, ServerLimitsSection,
    ServerSection, ToolRules, TransportKind,
};

mod governing;
mod server;

/// Keys at the top that begin with this are the operator's: places for YAML anchors, and ignored.
pub(super) const OPERATORS_PREFIX: &str = "x-";

/// Configuration of Tollbridge.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Tollbridge")]
pub(super) struct ConfigFile {
    /// Where editors find the schema of this file; ignored otherwise.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<String>,
    /// Address and port of the HTTP listener; or `unix:` and the path of a Unix socket, for machines that
    /// other users share. Addresses beyond this machine need `governance.auth = "keys"`, or
    /// `danger_listen_without_auth`.
    pub(super) listen: String,
    /// Who may connect, where `listen` is a Unix socket.
    pub(super) socket: SocketSection,
    /// Listen beyond this machine although nobody has to authenticate: everyone who reaches the
    /// port may call every tool.
    pub(super) danger_listen_without_auth: bool,
    /// How many following ports are tried when the one of `listen` is taken.
    pub(super) port_search: u16,
    /// Where state is kept: agents, budgets, listings, the audit. Relative paths start at the
    /// directory of the config file; by default it is `tollbridge` in the user's data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data_dir: Option<String>,
    /// `Host` names accepted beside loopback names and the listen address.
    pub(super) allowed_hosts: Vec<String>,
    /// `Origin` values accepted beside `http:` and `https:` ones of loopback hosts; `*` accepts all.
    pub(super) allowed_origins: Vec<String>,
    /// Worker threads; by default one for every two cores. Programs that it starts have the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<usize>,
    /// Silence on an open stream after which a comment is sent, so that proxies keep it open; and how
    /// long a request or a batch is waited for before its answer becomes a stream.
    pub(super) keep_alive: Time,
    /// How long the first list waits for servers that are still connecting, and lists of the
    /// first client that servers can ask something for what they list for such clients; `0` never
    /// waits.
    pub(super) first_list_wait: Time,
    /// How long running calls may take to finish once a stop was asked for.
    pub(super) drain_timeout: Time,
    /// How long a client may take to come back with the `requestState` of a server (2026-07-28).
    pub(super) request_state_ttl: Time,
    /// How long a session of a client may go unused, without a stream that is read and without a
    /// running call; then it ends.
    pub(super) session_idle_timeout: Time,
    /// Items a page of a list; `0` serves one full page, which some clients need.
    pub(super) list_page_size: usize,
    /// What is logged, and how.
    pub(super) log: LogSection,
    /// Certificate and key, when the listener is to speak TLS itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<TlsSection>,
    /// Where this gateway runs, in any words, such as `eu-1`: replicas of servers with the same
    /// `locality` are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locality: Option<String>,
    /// Limits on what clients send and hold.
    pub(super) limits: LimitsSection,
    /// How names and URIs of servers become the ones that clients see.
    pub(super) naming: NamingSection,
    /// Who may call what, how often, for how much money, with which data. Without this section
    /// everybody may call everything, and nothing is charged or scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) governance: Option<GovernanceSection>,
    /// The record of all calls.
    pub(super) audit: AuditSection,
    /// The agents by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) agents: IndexMap<String, AgentSection>,
    /// Named views of the catalog; names have letters, digits, `_`, `-` and `.`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) profiles: IndexMap<String, ProfileSection>,
    /// The servers by name; names have letters, digits, `_`, `-` and `.`.
    pub(super) servers: IndexMap<String, ServerSection>,
}

impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            schema: None,
            listen: "127.0.0.1:8080".to_owned(),
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

/// Who may connect to a Unix socket: the mode of its file says who may reach it, and whoever does must be
/// root, the user of the gateway, or one of `uids`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SocketSection {
    /// The mode of the file, in octal. Who is to connect must be allowed to write to it.
    pub(super) mode: String,
    /// The ids of further users who may connect.
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

/// What is logged, and how.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogSection {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) of our own lines, those of libraries
    /// being shown from warnings on, but for `rmcp`, on which the toolbox is built; or a filter such
    /// as `info,tollbridge=debug`. The variable `RUST_LOG` overrides it.
    pub(super) level: String,
    /// Lines for people or for machines.
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

/// Certificate and key of a listener that speaks TLS; relative paths start at the directory of
/// the config file.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsSection {
    /// PEM file with the certificate chain.
    pub(super) cert: String,
    /// PEM file with the private key.
    pub(super) key: String,
}

/// Limits on what clients send and hold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    /// Connections of clients that may be open at once; for a further one that which has rested for
    /// longest is closed, after a second between requests or a quarter of one without any, else it
    /// waits until one ends. Without this key as many as the system's limit of open files leaves
    /// beside 256, or half of it where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connections: Option<usize>,
    /// Connections that one address (of IPv6, one network of 64 bits) may have open at once; further ones
    /// are closed at once. Without this key half of `connections` for addresses on the internet, and any
    /// number for this machine and private networks, where reverse proxies are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connections_per_address: Option<usize>,
    /// Bytes of messages that the gateway holds at once, over all connections: bodies of requests, answers
    /// of servers, and answers that clients have not read. New requests get HTTP 503 from three quarters
    /// on; bodies of requests get half at most, and one agent with a key a quarter. Without this key a
    /// quarter of the memory of the machine, or of its control group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_in_flight: Option<Size>,
    /// How long the head of a request may take from its first byte on; over HTTP/1.1 also how long a
    /// new connection may bring no request.
    pub(super) headers_timeout: Time,
    /// How many bytes a second of a request's body have to come, on average, once `body_grace` is over,
    /// and how many a client has to take of an answer; `0` asks for none. A body has to be there within
    /// a minute in any case.
    pub(super) body_rate_min: Size,
    /// How long a body may come more slowly than `body_rate_min`.
    pub(super) body_grace: Time,
    /// How much of the body of a request is taken that was refused since its key is missing or wrong, so
    /// that its client reads the refusal; nothing of it is kept. With more the connection is closed.
    pub(super) unauthenticated_body: Size,
    /// Largest request body.
    pub(super) body: Size,
    /// Largest sum of request headers. Over HTTP/1.1 there may be 100 of them at most.
    pub(super) headers: Size,
    /// Deepest nesting of a request's JSON.
    pub(super) depth: usize,
    /// Legacy sessions one agent may hold; beyond it the least recently used idle one ends.
    pub(super) sessions_per_agent: usize,
    /// Calls that one agent may have under way at once, those that wait for a server included; more
    /// are refused at once. Without this key any number.
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

/// How names and URIs of servers become the ones that clients see.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NamingSection {
    /// Template of tool and prompt names, with `{tool}` and usually `{server}`.
    pub(super) template: String,
    /// Which characters of servers' and tools' names are kept.
    pub(super) charset: Charset,
    /// Longest name, characters; longer ones end in a hash.
    pub(super) max_length: usize,
    /// What happens when the template yields equal names.
    pub(super) conflict: Conflict,
    /// Whether resource URIs get the server's prefix.
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
/// It is [`schema`] written down, which a test holds it to: making it of the types at each start
/// takes as long as all other work on the config, and more memory.
pub(super) fn written_schema() -> serde_json::Result<serde_json::Value> {
    serde_json::from_str(include_str!("../../schemas/config.schema.json"))
}

/// The JSON Schema of [`ConfigFile`], of the types.
///
/// An absent key and a null mean the same in a config, so that the schema does not mention null.
pub(super) fn schema() -> serde_json::Value {
    let mut schema: serde_json::Value = schemars::schema_for!(ConfigFile).into();
    drop_null(&mut schema);
    schema["patternProperties"] = serde_json::json!({ format!("^{OPERATORS_PREFIX}"): {} });
    schema
}

fn drop_null(schema: &mut serde_json::Value) {
    if let Some(items) = schema.as_array_mut() {
        items.iter_mut().for_each(drop_null);
    }
    let Some(keywords) = schema.as_object_mut() else {
        return;
    };
    keywords.values_mut().for_each(drop_null);
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
