//! The config as it is written: the keys, their types and their defaults, once and for all.
//!
//! The doc comments here are the descriptions of the JSON Schema, which is what editors show and
//! what `validate` checks a file against. `resolve` turns [`ConfigFile`] into [`super::Config`]. What is
//! the same in both has one type, in `model`. A key that is in neither is a mistake in a config.

use std::time::Duration;

use globset::Glob;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AgentMatch, Audit, Egress, GovernanceConfig, JwtIssuer, Limits, LogConfig, Naming, OAuthConfig,
    Profile, Role, Secret, Secrets, Terms, ViewsConfig, Workspace, model::policy::GlobList,
    units::Time,
};
pub(super) use server::ServerSection;

mod server;

/// Keys at the top that begin with this are the operator's: places for YAML anchors, and ignored.
pub(super) const EXTENSION_PREFIX: &str = "x-";

/// Configuration of Tollbridge.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Tollbridge")]
pub(super) struct ConfigFile {
    /// URL or path of the JSON Schema, for editors. Otherwise ignored.
    #[serde(rename = "$schema")]
    pub(super) schema: Option<String>,
    /// Address and port of the HTTP listener, or `unix:` and the path of a Unix socket. An address
    /// other than loopback requires `governance.auth` without `anonymous`, or `danger_listen_without_auth`.
    /// Relative socket paths start at the directory of the config file.
    pub(super) listen: String,
    /// Address and port, or `unix:` and a path, of a listener of its own for `/healthz`, `/readyz`, `/metrics` and
    /// `/status`, which are then not served on `listen`. It has its own connection limit, and answers while that
    /// is full. The rules for `listen` apply, and so does `tls`, except to a socket.
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
    pub(super) data_dir: Option<String>,
    /// URL by which clients reach the gateway, without the path of a route, such as
    /// `https://mcp.example.com`. OAuth metadata, the resources that tokens are issued for and callbacks are made
    /// of it, and its host is one of `allowed_hosts`. Required for `auth = "oauth"` where `listen` is not
    /// loopback. Default: the URL of `listen`.
    pub(super) public_url: Option<String>,
    /// `Host` values accepted besides loopback names and the listen address; requests with another
    /// `Host` get 403 (protection against DNS rebinding). Set it when `listen` is not loopback.
    /// `/healthz` and `/readyz` accept any `Host`.
    pub(super) allowed_hosts: Vec<String>,
    /// `Origin` values accepted besides `http:` and `https:` origins on loopback, such as
    /// `tauri://localhost`. `*` accepts every origin.
    pub(super) allowed_origins: Vec<String>,
    /// Worker threads of the gateway. Default: half the cores, because server processes use the
    /// rest. A dedicated machine with remote servers only can use one per core.
    // More threads than any machine this runs on has cores.
    #[schemars(range(min = 1, max = 1024))]
    pub(super) workers: Option<usize>,
    /// Interval of keep-alive comments on idle event streams. Also how long a request is awaited
    /// before its response becomes an event stream.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1s"))]
    pub(super) keep_alive: Duration,
    /// How long the first list request waits for servers that are still connecting, and for tools
    /// that servers list only to interactive clients. `/readyz` waits as long. `0` never waits.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "0s"))]
    pub(super) first_list_wait: Duration,
    /// How long running calls may finish after a stop is requested; then they are cut off.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "0s"))]
    pub(super) drain_timeout: Duration,
    /// How long a client may take to return the `requestState` of a 2026-07-28 server. Each state
    /// is valid for eight requests.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1s"))]
    pub(super) request_state_ttl: Duration,
    /// How long a client session may be idle (no open stream, no running call) before it ends.
    /// Survives restarts.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "1s"))]
    pub(super) session_idle_timeout: Duration,
    /// Items per page of a list; `0` returns everything in one page, because some clients read only
    /// the first page.
    pub(super) list_page_size: usize,
    /// Logging.
    pub(super) log: LogConfig,
    /// Certificate and key; when set, the listener speaks TLS.
    pub(super) tls: Option<TlsSection>,
    /// Location of this gateway, any string such as `eu-1`. Replicas with the same `locality` are
    /// preferred.
    pub(super) locality: Option<String>,
    /// Limits on client connections and requests.
    pub(super) limits: Limits,
    /// Limits on requests to URLs that the gateway learns from documents, issuers, clients and API calls.
    pub(super) egress: Egress,
    /// How names and URIs of servers are mapped to the names that clients see.
    pub(super) naming: Naming,
    /// Authentication, policies, rates, budgets and scanning. Without this section every client may
    /// call everything, and nothing is charged or scanned.
    pub(super) governance: Option<GovernanceConfig>,
    /// The audit log.
    pub(super) audit: Audit,
    /// OAuth of clients: who issues the access tokens of `auth = "oauth"`.
    pub(super) oauth: OAuthConfig,
    /// Issuers of JWTs for machines, by name, for `auth = "jwt"`.
    pub(super) jwt: IndexMap<String, JwtIssuer>,
    /// Agents by name, and in `match` the rules that map subjects of tokens to them.
    pub(super) agents: AgentsSection,
    /// Named views of the catalog, by name (letters, digits, `_`, `-`, `.`).
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-entry" = "profile"))]
    pub(super) profiles: IndexMap<String, Profile>,
    /// Views of the catalog for one conversation each, which agents make over the API.
    pub(super) views: ViewsConfig,
    /// Secrets outside of the config: `${secret:NAME}`, `${file:PATH}` and `${exec:COMMAND ARGS}` in its values.
    pub(super) secrets: Secrets,
    /// Servers by name (letters, digits, `_`, `-`, `.`). `NAME@TEAM` is seen by the agents of that team alone,
    /// `NAME@agent_UUID` by that agent; the name is then in quotes: `[servers."github@science"]`.
    #[schemars(extend("x-entry" = "server"))]
    pub(super) servers: IndexMap<String, ServerSection>,
    /// Workspaces by name (letters, digits, `_`, `-`, `.`): teams with servers of their own. Default: each `team` that
    /// agents have is one.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(extend("x-entry" = "workspace"))]
    pub(super) workspaces: IndexMap<String, Workspace>,
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
            public_url: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            workers: None,
            keep_alive: Duration::from_secs(15),
            first_list_wait: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(10),
            request_state_ttl: Duration::from_secs(24 * 60 * 60),
            session_idle_timeout: Duration::from_secs(24 * 60 * 60),
            list_page_size: 0,
            log: LogConfig::default(),
            tls: None,
            locality: None,
            limits: Limits::default(),
            egress: Egress::default(),
            naming: Naming::default(),
            governance: None,
            audit: Audit::default(),
            oauth: OAuthConfig::default(),
            views: ViewsConfig::default(),
            jwt: IndexMap::new(),
            agents: AgentsSection::default(),
            profiles: IndexMap::new(),
            secrets: Secrets::default(),
            servers: IndexMap::new(),
            workspaces: IndexMap::new(),
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

/// Certificate and key of the TLS listener. Relative paths start at the directory of the config
/// file. Changed files are reloaded.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsSection {
    /// PEM file with the certificate chain.
    pub(super) cert: String,
    /// PEM file with the private key.
    pub(super) key: String,
    /// PEM file with the CAs of client certificates. Where `auth` is `mtls` alone, clients must have a certificate;
    /// in a list with other ways they may.
    pub(super) client_ca: Option<String>,
}

/// Agents by name, and the rules that map subjects of tokens to them.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-entry" = "agent"))]
pub(super) struct AgentsSection {
    /// Which agent the subject of a token is. The first rule that fits holds; where none does, the token is refused.
    #[serde(rename = "match", skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<AgentMatch>,
    /// The agents.
    #[serde(flatten)]
    pub(super) by_name: IndexMap<String, AgentSection>,
}

/// An agent: a person or program that calls tools.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(super) struct AgentSection {
    /// `agent_` and a UUID. Default: the UUIDv5 of the name, so a renamed agent is a different one.
    pub(super) id: Option<String>,
    /// Team whose budget it shares.
    pub(super) team: Option<String>,
    /// `false` refuses every call.
    pub(super) enabled: bool,
    /// `true` is the same as `role = "admin"`.
    pub(super) admin: bool,
    /// What of the admin API is open to it. `admin` and `auditor` also see everything in `/status` and `/metrics`; a
    /// `workspace_admin` manages the workspace that is its `team`. Default: `agent`.
    pub(super) role: Option<Role>,
    /// API keys of at least 32 characters, usually variables; make one with `openssl rand -hex 32`.
    /// Never shown. Removing a key ends the sessions of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) keys: Vec<Secret>,
    /// Globs over the subject (`CN=ci,O=Example`) or a name (DNS name, URI, e-mail address) of its client certificates,
    /// for `auth = "mtls"`.
    #[serde(with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub(super) certificates: Vec<Glob>,
    /// Profiles it may use, and no other route: `/mcp` and `/mcp/servers/{server}` are refused.
    /// Default: every route.
    pub(super) profiles: Option<Vec<String>>,
    /// The terms of this agent.
    #[serde(flatten)]
    pub(super) terms: Terms,
}

impl Default for AgentSection {
    fn default() -> Self {
        Self {
            id: None,
            team: None,
            enabled: true,
            admin: false,
            role: None,
            keys: Vec::new(),
            certificates: Vec::new(),
            profiles: None,
            terms: Terms::default(),
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
    keywords.retain(|_, value| !value.is_null());
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
