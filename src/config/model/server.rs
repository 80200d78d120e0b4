//! One configured server: how it is reached, what is shown of it, and how it is kept alive.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    config::{Budget, Condition, Rate, Scan, Secret, diagnostics::redact, units},
    money::Micros,
};

/// One configured server.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// How it is reached.
    pub transport: Transport,
    /// The era it is spoken to in, when pinned.
    pub era: EraPin,
    /// Whether it runs at all.
    pub enabled: bool,
    /// Used in exposed names instead of the server's name.
    pub namespace: Option<String>,
    /// Which kinds of item are exposed on merged routes.
    pub expose: Expose,
    /// Precedence under `conflict = "priority"`; higher wins.
    pub priority: i32,
    /// Free labels, shown in `/status`.
    pub tags: Vec<String>,
    /// Roots offered to the server when no client is asked.
    pub roots: Option<Vec<Root>>,
    /// Rules for tools.
    pub tools: ItemRules,
    /// Rules for resources and templates.
    pub resources: ItemRules,
    /// Rules for prompts.
    pub prompts: ItemRules,
    /// Which callers share a connection.
    pub isolation: Isolation,
    /// Most connections kept to it beside the catalog's own.
    pub max_instances: usize,
    /// Most connections that serve one call each, under [`Isolation::Pool`].
    pub pool_size: usize,
    /// How long an unused connection beside the catalog's own is kept.
    pub idle_timeout: Duration,
    /// Whether the catalog's own program ends as well when nobody uses it for `idle_timeout`; the
    /// next call starts it again.
    pub sleeps: bool,
    /// How long a start may take before it is given up.
    pub startup_timeout: Duration,
    /// How long a network connection may take to open.
    pub connect_timeout: Duration,
    /// How long one call may take without progress.
    pub timeout: Duration,
    /// How long one call may take even with progress.
    pub max_total_timeout: Duration,
    /// Delays between attempts to reconnect.
    pub retry: Retry,
    /// When calls are answered at once because it keeps failing.
    pub breaker: BreakerConfig,
    /// How it is found out that it no longer answers.
    pub health: Health,
    /// How long its items stay listed when it went away.
    pub grace: Duration,
    /// Limits on messages to and from it.
    pub limits: ServerLimits,
    /// Where it runs more than once, in the order of preference; empty: only as `transport` says.
    pub replicas: Vec<ReplicaConfig>,
    /// How calls are spread over the replicas.
    pub balance: Balance,
    /// How long a replica that failed gets no calls.
    pub ejection: Ejection,
    /// Which calls go to certain replicas only; the first that holds decides.
    pub route: Vec<RouteConfig>,
    /// Whether arguments are checked against the input schemas of tools.
    pub validate: Validate,
    /// Price of a call for which its tool has none; `None`: that of [`crate::config::GovernanceConfig`].
    pub price: Option<Micros>,
    /// How much may be spent on it, by all agents together; all of them hold.
    pub budget: Vec<Budget>,
    /// How often each agent may call it.
    pub rate: Option<Rate>,
    /// What is looked for in data to and from it, beside what the terms of the agent say; of two
    /// actions for one value the stricter wins.
    pub scan: Option<Scan>,
}

/// One of several instances of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// Its name, unique among them.
    pub name: String,
    /// Where it runs.
    pub locality: Option<String>,
    /// Whether that is where this gateway runs.
    pub is_near: bool,
    /// How it is reached.
    pub transport: Transport,
}

/// How calls are distributed over replicas. Replicas with the gateway's `locality` come first;
/// sessions stay on their replica.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The first available replica, in config order.
    Failover,
    /// The replica with the fewest calls in flight, then the fewest sessions, then round robin.
    LeastLoaded,
}

/// Calls that go to certain replicas only.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteConfig {
    /// Tools it is about; globs on the server's own names.
    pub tools: Vec<globset::Glob>,
    /// JSON pointer (RFC 6901) into the arguments; empty: all of them.
    pub at: String,
    /// What the value is compared with; all that are given must hold.
    pub condition: Condition,
    /// Name or locality of replicas.
    pub to: String,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// A URL whose transport is found by probing: streamable HTTP, then HTTP+SSE.
    Auto(Remote),
    /// The toolbox inside this binary.
    Builtin,
    /// Streamable HTTP.
    Http(Remote),
    /// HTTP+SSE of 2024-11-05.
    Sse(Remote),
    /// A child process on stdin and stdout.
    Stdio(StdioCommand),
    /// WebSocket with the subprotocol `mcp`.
    WebSocket(Remote),
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
#[derive(Clone, Debug, PartialEq)]
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
}

/// A server behind a URL.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    /// `http:`, `https:`, `ws:` or `wss:`.
    pub url: http::Uri,
    /// Whether the environment gave a part of it: its path may be a credential then, and is not shown.
    pub is_from_variable: bool,
    /// Headers sent with every request; values may be secret.
    pub headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    pub auth: Auth,
}

impl Remote {
    /// The path as anybody may see it.
    pub fn displayed_path(&self) -> String {
        match self.url.path() {
            "/" => "/".to_owned(),
            _ if self.is_from_variable => "/***".to_owned(),
            path => redact::redact_path(path),
        }
    }
}

/// Credential towards a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    /// `Authorization: Bearer`.
    Bearer {
        /// The token.
        token: Secret,
    },
    /// A header of one's own, such as `X-API-Key`.
    Header {
        /// Header name.
        name: String,
        /// Header value.
        value: Secret,
    },
    /// None.
    None,
}

/// Protocol era used with a server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EraPin {
    /// Detected when connecting.
    Auto,
    /// `initialize` only (2024-11-05 to 2025-11-25).
    Legacy,
    /// 2026-07-28 and later only.
    Modern,
}

/// Which kinds of item are exposed on merged routes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Expose {
    /// Tools.
    pub tools: bool,
    /// Resources and templates.
    pub resources: bool,
    /// Prompts.
    pub prompts: bool,
}

/// A root offered to a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    /// A `file:` URI.
    pub uri: String,
    /// A name for people.
    pub name: Option<String>,
}

/// Which items of a server are exposed, and as what. Names are the server's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ItemRules {
    /// Globs; when given, only these.
    pub allow: Option<Vec<globset::Glob>>,
    /// Globs that are left out.
    pub deny: Vec<globset::Glob>,
    /// Original name -> the name used in its place.
    pub rename: IndexMap<String, String>,
    /// Original name -> the description shown in its place.
    pub describe: IndexMap<String, String>,
    /// Original name -> the price of a call; tools only.
    pub price: IndexMap<String, Micros>,
    /// Original name -> how long a call may take without progress; tools only.
    pub timeout: IndexMap<String, Duration>,
}

/// Which callers share a connection to the server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// One connection per agent.
    Agent,
    /// `shared` for modern servers, `agent` for legacy servers.
    Auto,
    /// A new connection per call, closed afterwards; at most `max_instances` at a time.
    Call,
    /// `pool_size` connections with one call at a time on each.
    Pool,
    /// One connection per client session.
    Session,
    /// One connection for all callers.
    Shared,
}

/// Validation of tool arguments against the tool's input schema.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Validate {
    /// `refuse` for tools that have argument rules, `off` for others.
    Auto,
    /// No validation by the gateway.
    Off,
    /// Refuse calls whose arguments do not match.
    Refuse,
    /// Log and count mismatches, but forward the call.
    Report,
}

/// Delays between attempts to reconnect: exponential from `base` to `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// First delay.
    pub base: Duration,
    /// Longest delay.
    pub max: Duration,
    /// Random part of each delay, 0.0 to 1.0.
    pub jitter: f64,
    /// A connection that held for longer lets delays begin at `base` again.
    pub stable_after: Duration,
    /// Starts within a minute that may fail or end before `stable_after`; further ones wait.
    pub starts_per_minute: usize,
    /// Attempts in a row that come to nothing before a server that is being connected is `failed`.
    pub failed_after: u32,
}

/// How long a replica that failed gets no calls: it doubles from `base` to `max` with each failure
/// in a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ejection {
    /// After the first failure.
    pub base: Duration,
    /// The longest.
    pub max: Duration,
}

/// When calls are answered at once because the server keeps failing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BreakerConfig {
    /// Failures in a row that open it; 0 never does.
    pub failures: u32,
    /// How long it stays open.
    pub open_for: Duration,
}

/// How it is found out that a server no longer answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Health {
    /// Silence after which it is asked, and pause between further checks.
    pub interval: Duration,
    /// How long it may take to answer.
    pub timeout: Duration,
    /// Checks missed in a row after which the connection is made anew.
    pub failures: u32,
    /// What it is asked.
    pub probe: Probe,
}

/// Request used for health checks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Probe {
    /// One of the server's lists; `ping` if it has none.
    List,
    /// No health checks.
    Off,
    /// `ping`, or `server/discover` in the modern era.
    Ping,
}

/// An amount of memory in bytes, shown as it is written: `512MiB`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemorySize(pub u64);

impl std::fmt::Display for MemorySize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        units::Size(self.0).fmt(f)
    }
}

/// Limits on a server: on messages to and from it, on calls, and on what a child uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    /// Largest message sent, bytes.
    pub request: usize,
    /// Largest message accepted, bytes.
    pub response: usize,
    /// Calls that may be under way at once; any number when `None`.
    pub in_flight: Option<NonZeroUsize>,
    /// Calls beyond them that may wait.
    pub queue: usize,
    /// Memory that a child and all that it starts may use together; any amount when `None`.
    pub memory: Option<MemorySize>,
    /// Largest item that is listed, bytes.
    pub item: usize,
    /// Levels of arrays and objects that an item may have, itself included.
    pub item_depth: usize,
}

#[cfg(test)]
impl Server {
    /// A toolbox with every setting at its default, for tests that need any server.
    pub(crate) fn example() -> Self {
        let config = crate::config::Config::example("[servers.x]\ntransport = 'builtin'");
        let (_, server) = config.servers.into_iter().next().unwrap();
        server
    }
}
