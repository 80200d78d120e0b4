//! The config as it is written: the keys, their types and their defaults, once and for all.
//!
//! The doc comments here are the descriptions of the JSON Schema, which is what editors show and
//! what `shape` checks a file against. `resolve` turns [`File`] into [`super::Config`], and
//! `display` goes the other way. A key that is not here is a mistake in a config.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Balance, Charset, Conflict, EraPin, Isolation, LogFormat, Probe, Secret, Validate,
    units::{Amount, Size, Time},
};
pub(super) use governing::{
    Agent, ArgumentRule, Audit, Budget, Budgets, Governance, Off, Policy, Profile, Rate, Scan,
    Team, Terms,
};

mod governing;

/// Keys at the top that begin with this are the operator's: places for YAML anchors, and ignored.
pub(super) const OPERATORS_PREFIX: &str = "x-";

/// Configuration of Tollbridge.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Tollbridge")]
pub(super) struct File {
    /// Where editors find the schema of this file; ignored otherwise.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<String>,
    /// Address and port of the HTTP listener. Addresses beyond this machine need
    /// `governance.auth = "keys"`, or `danger_listen_without_auth`.
    pub(super) listen: String,
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
    /// `Origin` values accepted beside those of loopback hosts; `*` accepts all.
    pub(super) allowed_origins: Vec<String>,
    /// Worker threads; by default one for each core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workers: Option<usize>,
    /// Silence on an open stream after which a comment is sent, so that proxies keep it open.
    pub(super) keep_alive: Time,
    /// How long the first list waits for servers that are still connecting; `0` never waits.
    pub(super) first_list_wait: Time,
    /// How long running calls may take to finish once a stop was asked for.
    pub(super) drain_timeout: Time,
    /// How long a session of a client may go unused, without a stream that is read and without a
    /// running call; then it ends.
    pub(super) session_idle_timeout: Time,
    /// Items a page of a list; `0` serves one full page, which some clients need.
    pub(super) list_page_size: usize,
    /// What is logged, and how.
    pub(super) log: Log,
    /// Certificate and key, when the listener is to speak TLS itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<Tls>,
    /// Where this gateway runs, in any words, such as `eu-1`: replicas of servers with the same
    /// `locality` are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locality: Option<String>,
    /// Limits on what clients send and hold.
    pub(super) limits: Limits,
    /// How names and URIs of servers become the ones that clients see.
    pub(super) naming: Naming,
    /// Who may call what, how often, for how much money, with which data. Without this section
    /// everybody may call everything, and nothing is charged or scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) governance: Option<Governance>,
    /// The record of all calls.
    pub(super) audit: Audit,
    /// The agents by name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) agents: IndexMap<String, Agent>,
    /// Named views of the catalog; names have letters, digits, `_`, `-` and `.`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) profiles: IndexMap<String, Profile>,
    /// The servers by name; names have letters, digits, `_`, `-` and `.`.
    pub(super) servers: IndexMap<String, Server>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            schema: None,
            listen: "127.0.0.1:8080".to_owned(),
            danger_listen_without_auth: false,
            port_search: 0,
            data_dir: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            workers: None,
            keep_alive: Time::secs(15),
            first_list_wait: Time::secs(2),
            drain_timeout: Time::secs(10),
            session_idle_timeout: Time::secs(24 * 60 * 60),
            list_page_size: 0,
            log: Log::default(),
            tls: None,
            locality: None,
            limits: Limits::default(),
            naming: Naming::default(),
            governance: None,
            audit: Audit::default(),
            agents: IndexMap::new(),
            profiles: IndexMap::new(),
            servers: IndexMap::new(),
        }
    }
}

/// What is logged, and how.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) of our own lines, those of libraries
    /// being shown from warnings on; or a filter such as `info,tollbridge=debug`. The variable
    /// `RUST_LOG` overrides it.
    pub(super) level: String,
    /// Lines for people or for machines.
    pub(super) format: LogFormat,
}

impl Default for Log {
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
pub(super) struct Tls {
    /// PEM file with the certificate chain.
    pub(super) cert: String,
    /// PEM file with the private key.
    pub(super) key: String,
}

/// Limits on what clients send and hold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limits {
    /// Largest request body.
    pub(super) body: Size,
    /// Largest sum of request headers.
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

impl Default for Limits {
    fn default() -> Self {
        Self {
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
pub(super) struct Naming {
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

impl Default for Naming {
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

/// One server: a program to run (`command`), a URL (`url`), or the toolbox inside this program
/// (`transport = "builtin"`).
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Server {
    /// Program name or path; no shell is involved. A name alone is looked for in `PATH`; relative
    /// paths such as `./server` start at the directory of the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    /// Variables added to the program's minimal environment; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) env: IndexMap<String, Secret>,
    /// Working directory of the program; relative paths start at the directory of the config
    /// file. By default it is the directory Tollbridge was started in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
    /// Address of a server on the network: `http:`, `https:`, `ws:` or `wss:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    /// Headers sent with every request; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) auth: Option<Auth>,
    /// How the server is reached; by default what `command` or the scheme of `url` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<TransportKind>,
    /// Protocol era the server is spoken to in.
    pub(super) era: EraPin,
    /// Whether the server runs at all.
    pub(super) enabled: bool,
    /// Used in exposed names instead of the server's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// Which kinds of item the merged routes show.
    pub(super) expose: Vec<ItemKind>,
    /// Precedence under `conflict = "priority"`; higher wins.
    pub(super) priority: i32,
    /// Free labels, shown in the status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tags: Vec<String>,
    /// Roots offered to the server; without this key clients are asked for theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) roots: Option<Vec<Root>>,
    /// Which tools are shown, as what, for which price and for how long.
    #[serde(skip_serializing_if = "ToolRules::is_empty")]
    pub(super) tools: ToolRules,
    /// Which resources and templates are shown, and as what; names are URIs.
    #[serde(skip_serializing_if = "ItemRules::is_empty")]
    pub(super) resources: ItemRules,
    /// Which prompts are shown, and as what.
    #[serde(skip_serializing_if = "ItemRules::is_empty")]
    pub(super) prompts: ItemRules,
    /// Which callers share a connection.
    pub(super) isolation: Isolation,
    /// Most connections kept to the server beside the catalog's own.
    pub(super) max_instances: usize,
    /// Most connections under `isolation = "pool"`, each of which serves one call at a time; further
    /// calls wait for one, first come first served.
    pub(super) pool_size: usize,
    /// How long an unused connection beside the catalog's own is kept; by default 10m. Where it is
    /// written for a program, the catalog's own one is stopped as well, and started again by the
    /// next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_timeout: Option<Time>,
    /// How long a start may take; package runners download on the first one.
    pub(super) startup_timeout: Time,
    /// How long a network connection may take to open.
    pub(super) connect_timeout: Time,
    /// How long one call may take without progress.
    pub(super) timeout: Time,
    /// How long one call may take even with progress; by default 10m, or `timeout` when that is
    /// longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_total_timeout: Option<Time>,
    /// Delays between attempts to reconnect.
    pub(super) retry: Retry,
    /// When calls are answered at once because the server keeps failing.
    pub(super) breaker: Breaker,
    /// How it is found out that the server no longer answers.
    pub(super) health: Health,
    /// How long the items of a server that went away stay listed; 0 lists them no longer.
    pub(super) grace: Time,
    /// Limits on messages to and from the server.
    pub(super) limits: ServerLimits,
    /// Instances of the server that do the same, in the order of preference, in place of `command`
    /// or `url`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) replicas: Vec<Replica>,
    /// How calls are spread over replicas.
    #[serde(skip_serializing_if = "is_failover")]
    pub(super) balance: Balance,
    /// How long a replica that failed gets no calls, as long as others can have them.
    #[serde(skip_serializing_if = "Ejection::is_default")]
    pub(super) ejection: Ejection,
    /// Calls that go to certain replicas only: the first rule that holds decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) route: Vec<Route>,
    /// Whether arguments are checked against the `inputSchema` of their tool before they are sent.
    pub(super) validate: Validate,
    /// Price of a call in US dollars, where the tool has none; by default `governance.price`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) price: Option<Amount>,
    /// How much all agents together may spend on this server: one budget, a list of budgets that
    /// all hold, or "off"; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget: Option<Budgets>,
    /// How often each agent may call this server; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<Rate>,
    /// What is looked for in data to and from this server, and what happens to it, beside what the
    /// agent's terms say; the stricter wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scan: Option<Scan>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: IndexMap::new(),
            cwd: None,
            url: None,
            headers: IndexMap::new(),
            auth: None,
            transport: None,
            era: EraPin::Auto,
            enabled: true,
            namespace: None,
            expose: vec![ItemKind::Tools, ItemKind::Resources, ItemKind::Prompts],
            priority: 0,
            tags: Vec::new(),
            roots: None,
            tools: ToolRules::default(),
            resources: ItemRules::default(),
            prompts: ItemRules::default(),
            isolation: Isolation::Auto,
            max_instances: 32,
            pool_size: 4,
            idle_timeout: None,
            startup_timeout: Time::secs(120),
            connect_timeout: Time::secs(30),
            timeout: Time::secs(60),
            max_total_timeout: None,
            retry: Retry::default(),
            breaker: Breaker::default(),
            health: Health::default(),
            grace: Time::secs(30),
            limits: ServerLimits::default(),
            replicas: Vec::new(),
            balance: Balance::Failover,
            ejection: Ejection::default(),
            route: Vec::new(),
            validate: Validate::Off,
            price: None,
            budget: None,
            rate: None,
            scan: None,
        }
    }
}

/// Nobody needs to be told of a key that is about replicas alone.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_failover(balance: &Balance) -> bool {
    *balance == Balance::Failover
}

/// One of several instances of a server: a program to run, or a URL.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Replica {
    /// Its name in `route` and in the status; by default its number, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Where it runs, in any words, such as `eu-1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) locality: Option<String>,
    /// Program name or path, as of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    /// Variables added to the program's minimal environment; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) env: IndexMap<String, Secret>,
    /// Working directory of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
    /// Address on the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    /// Headers sent with every request; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) auth: Option<Auth>,
    /// How it is reached; by default what `command` or the scheme of `url` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<TransportKind>,
}

/// Calls that go to certain replicas only; all conditions that are given must hold, and without any
/// the rule is about all calls of its tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    /// Globs of the tools it is about, by the server's own names; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<Vec<String>>,
    /// Which argument: a JSON pointer such as `/region` or `/options/0/mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    /// It equals this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) equals: Option<serde_json::Value>,
    /// It is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) one_of: Option<Vec<serde_json::Value>>,
    /// It is a string and matches this regular expression, anywhere unless `^` and `$` say
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) matches: Option<String>,
    /// It is a number, at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<f64>,
    /// It is a number, at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<f64>,
    /// Name or locality of the replicas that serve the call; no other does.
    pub(super) to: String,
}

/// Credential towards a server.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Auth {
    /// `Authorization: Bearer`.
    Bearer {
        /// The token; usually a variable such as `${DOCS_TOKEN}`.
        token: Secret,
    },
    /// A header of one's own, such as `X-API-Key`.
    Header {
        /// Name of the header.
        name: String,
        /// Value of the header; usually a variable.
        value: Secret,
    },
}

/// How a server is reached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TransportKind {
    /// A URL that is probed: streamable HTTP first, then HTTP+SSE.
    Auto,
    /// The toolbox inside this program.
    Builtin,
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// A child process on stdin and stdout.
    Stdio,
    /// WebSocket with the subprotocol `mcp`.
    WebSocket,
}

/// A kind of item.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ItemKind {
    /// Tools.
    Tools,
    /// Resources and templates.
    Resources,
    /// Prompts.
    Prompts,
}

/// A root offered to a server: a `file:` URI, alone or with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Root {
    /// The URI alone.
    Uri(String),
    /// The URI with a name.
    Named(NamedRoot),
}

/// A root with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedRoot {
    /// A `file:` URI.
    pub(super) uri: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
}

/// Which items of a server are shown, and as what. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ItemRules {
    /// Globs; when given, only items that match one are shown (`*` does not match `/`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allow: Option<Vec<String>>,
    /// Globs; items that match one are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) deny: Vec<String>,
    /// Name -> the name used in its place; a resource keeps its URI and is shown under the name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) rename: IndexMap<String, String>,
    /// Name -> the description shown in place of the server's.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) describe: IndexMap<String, String>,
}

impl ItemRules {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which tools of a server are shown, and as what. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(super) struct ToolRules {
    /// What holds of all kinds of item.
    #[serde(flatten)]
    pub(super) items: ItemRules,
    /// Name -> the price of a call in US dollars.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) price: IndexMap<String, Amount>,
    /// Name -> how long a call may take without progress, in place of the server's `timeout`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) timeout: IndexMap<String, Time>,
}

impl ToolRules {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Delays between attempts to reconnect: they double from `base` to `max`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retry {
    /// First delay.
    pub(super) base: Time,
    /// Longest delay.
    pub(super) max: Time,
    /// Random part of each delay, 0.0 to 1.0.
    pub(super) jitter: f64,
    /// A connection that held for longer lets delays begin at `base` again.
    pub(super) stable_after: Time,
    /// Starts within a minute that may come to nothing: fail, or end before `stable_after`. Further
    /// ones wait, those of connections beside the catalog's included.
    pub(super) starts_per_minute: usize,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            base: Time::millis(500),
            max: Time::secs(30),
            jitter: 0.2,
            stable_after: Time::secs(30),
            starts_per_minute: 30,
        }
    }
}

/// How long a replica that failed gets no calls: it doubles from `base` to `max` with each failure
/// in a row.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Ejection {
    /// After the first failure.
    pub(super) base: Time,
    /// The longest.
    pub(super) max: Time,
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            base: Time::secs(1),
            max: Time::secs(60),
        }
    }
}

impl Ejection {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// When calls are answered at once because the server keeps failing.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Breaker {
    /// Failures in a row (no connection, a lost one, no answer in time, HTTP 5xx) after which calls
    /// are answered at once; 0 never does.
    pub(super) failures: u32,
    /// For how long; then one call tries.
    pub(super) open_for: Time,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 5,
            open_for: Time::secs(10),
        }
    }
}

/// How it is found out that a server no longer answers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Health {
    /// Silence after which a server is asked, and pause between further checks.
    pub(super) interval: Time,
    /// How long it may take to answer.
    pub(super) timeout: Time,
    /// Checks missed in a row after which the connection is made anew; one shows `degraded`.
    pub(super) failures: u32,
    /// What it is asked.
    pub(super) probe: Probe,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            interval: Time::secs(30),
            timeout: Time::secs(10),
            failures: 3,
            probe: Probe::Ping,
        }
    }
}

/// Limits on a server: on messages to and from it, and on calls.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerLimits {
    /// Largest message sent to it.
    pub(super) request: Size,
    /// Largest message accepted from it.
    pub(super) response: Size,
    /// Calls that may be under way at once; without this key any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_flight: Option<usize>,
    /// Calls beyond `in_flight` that may wait, for their `timeout` at most; the agents that wait
    /// are served in turn. What comes on top of that is refused at once.
    pub(super) queue: usize,
    /// Memory that the program and all that it starts may use together; beyond it they are ended,
    /// and the program is started again. Without this key any amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Size>,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            request: Size(4 * Size::MIB),
            response: Size(16 * Size::MIB),
            in_flight: None,
            queue: 128,
            memory: None,
        }
    }
}

/// The JSON Schema of [`File`].
///
/// An absent key and a null mean the same in a config, so that the schema does not mention null.
pub(super) fn schema() -> serde_json::Value {
    let mut schema: serde_json::Value = schemars::schema_for!(File).into();
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
