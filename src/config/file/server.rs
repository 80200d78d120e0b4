//! A server as it is written: `[servers.X]`, with how it is reached, watched and limited.
//!
//! `resolve::server` and `resolve::replicas` turn these into the types of [`crate::config`],
//! `display` goes the other way.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::governance::{BudgetsSection, RateSection, ScanSection};
use crate::config::{
    Balance, EraPin, Isolation, Probe, Secret, Validate,
    units::{Amount, Size, Time},
};

/// One server: a program (`command`), a URL (`url`), `replicas`, or the built-in toolbox
/// (`transport = "builtin"`).
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ServerSection {
    /// Program name or path, started without a shell. A bare name is looked up in `PATH`; relative
    /// paths such as `./server` start at the directory of the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) env_file: Option<String>,
    /// Working directory of the program. Relative paths start at the directory of the config file.
    /// Default: the working directory of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) cwd: Option<String>,
    /// User to run the program as (name or id), with that user's groups and `HOME`. Requires a
    /// gateway that runs as root. Default: the user of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) user: Option<String>,
    /// URL of a remote server: `http:`, `https:`, `ws:` or `wss:`. Certificates are verified with
    /// the system's CAs, or with the PEM file in `SSL_CERT_FILE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) url: Option<String>,
    /// Headers sent with every request. Values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) auth: Option<AuthSection>,
    /// Transport. Default: derived from `command` or from the scheme of `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) transport: Option<TransportKind>,
    /// Protocol era used with the server.
    pub(in crate::config) era: EraPin,
    /// `false` keeps the server in the config without running it.
    pub(in crate::config) enabled: bool,
    /// Name used in exposed names instead of the server's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) namespace: Option<String>,
    /// Kinds of items shown on merged routes.
    pub(in crate::config) expose: Vec<ItemKindSection>,
    /// Precedence under `naming.conflict = "priority"`; the higher value wins.
    pub(in crate::config) priority: i32,
    /// Labels, used by profiles and shown in `/status`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) tags: Vec<String>,
    /// Roots offered to the server. Default: clients are asked for theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) roots: Option<Vec<RootSection>>,
    /// Filters and overrides for tools.
    #[serde(skip_serializing_if = "ToolRules::is_empty")]
    pub(in crate::config) tools: ToolRules,
    /// Filters and overrides for resources and templates; names are URIs.
    #[serde(skip_serializing_if = "ItemRulesSection::is_empty")]
    pub(in crate::config) resources: ItemRulesSection,
    /// Filters and overrides for prompts.
    #[serde(skip_serializing_if = "ItemRulesSection::is_empty")]
    pub(in crate::config) prompts: ItemRulesSection,
    /// Which callers share a connection to the server.
    pub(in crate::config) isolation: Isolation,
    /// Maximum connections besides the catalog connection. The least recently used idle connection
    /// is closed to make room; with `isolation = "call"` further calls wait.
    pub(in crate::config) max_instances: usize,
    /// Number of connections under `isolation = "pool"`. Further calls wait, first come first
    /// served.
    pub(in crate::config) pool_size: usize,
    /// How long an unused connection besides the catalog connection is kept. Default: 10m. When it
    /// is set for a program, the catalog connection is stopped too: its items stay listed, and the
    /// next call starts the program again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) idle_timeout: Option<Time>,
    /// Time limit for starting and initializing the server. Package runners may download on the
    /// first start.
    pub(in crate::config) startup_timeout: Time,
    /// Time limit for opening a network connection.
    pub(in crate::config) connect_timeout: Time,
    /// Time limit of a call without progress notifications.
    pub(in crate::config) timeout: Time,
    /// Time limit of a call even with progress notifications. Default: 10m, or `timeout` if that is
    /// longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) max_total_timeout: Option<Time>,
    /// Reconnect policy.
    pub(in crate::config) retry: RetrySection,
    /// Circuit breaker. Failures on a dedicated connection (`isolation`) open only that caller's
    /// breaker. The server's breaker opens when no connection can be made, or when calls of several
    /// callers fail in a row.
    pub(in crate::config) breaker: BreakerSection,
    /// Health checks.
    pub(in crate::config) health: HealthSection,
    /// How long items of a disconnected server stay listed; `0` removes them at once.
    pub(in crate::config) grace: Time,
    /// Limits on messages, calls and memory.
    pub(in crate::config) limits: ServerLimitsSection,
    /// Instances of the same server in order of preference, instead of `command` or `url`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) replicas: Vec<ReplicaSection>,
    /// How calls are distributed over replicas.
    #[serde(skip_serializing_if = "is_failover")]
    pub(in crate::config) balance: Balance,
    /// How long a failed replica gets no calls, while others are available.
    #[serde(skip_serializing_if = "EjectionSection::is_default")]
    pub(in crate::config) ejection: EjectionSection,
    /// Rules that send calls to certain replicas; the first matching rule applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) route: Vec<RouteSection>,
    /// Validation of tool arguments against the tool's input schema.
    pub(in crate::config) validate: Validate,
    /// Price of a call in USD when the tool has none. Default: `governance.price`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) price: Option<Amount>,
    /// What all agents together may spend on this server: one budget, a list of budgets that all
    /// apply, or `"off"`. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
    /// Rate limit of each agent on this server. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) rate: Option<RateSection>,
    /// Scanning of data to and from this server. It applies together with the agent's own rules;
    /// the stricter action wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) scan: Option<ScanSection>,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: IndexMap::new(),
            cwd: None,
            user: None,
            env_file: None,
            url: None,
            headers: IndexMap::new(),
            auth: None,
            transport: None,
            era: EraPin::Auto,
            enabled: true,
            namespace: None,
            expose: vec![
                ItemKindSection::Tools,
                ItemKindSection::Resources,
                ItemKindSection::Prompts,
            ],
            priority: 0,
            tags: Vec::new(),
            roots: None,
            tools: ToolRules::default(),
            resources: ItemRulesSection::default(),
            prompts: ItemRulesSection::default(),
            isolation: Isolation::Auto,
            max_instances: 32,
            pool_size: 4,
            idle_timeout: None,
            startup_timeout: Time::secs(120),
            connect_timeout: Time::secs(30),
            timeout: Time::secs(60),
            max_total_timeout: None,
            retry: RetrySection::default(),
            breaker: BreakerSection::default(),
            health: HealthSection::default(),
            grace: Time::secs(30),
            limits: ServerLimitsSection::default(),
            replicas: Vec::new(),
            balance: Balance::Failover,
            ejection: EjectionSection::default(),
            route: Vec::new(),
            validate: Validate::Auto,
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

/// One replica: a program or a URL.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ReplicaSection {
    /// Name in `route`, `/status` and metrics. Default: its number, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) name: Option<String>,
    /// Location, any string such as `eu-1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) locality: Option<String>,
    /// Program name or path, as for a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<String>,
    /// Environment variables of the program. Values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) env: IndexMap<String, Secret>,
    /// File with more variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) env_file: Option<String>,
    /// Working directory of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) cwd: Option<String>,
    /// User to run the program as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) user: Option<String>,
    /// URL of a remote server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) url: Option<String>,
    /// Headers sent with every request. Values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) auth: Option<AuthSection>,
    /// Transport. Default: derived from `command` or from the scheme of `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) transport: Option<TransportKind>,
}

/// A rule that sends calls to certain replicas. All given conditions must hold; without conditions
/// it applies to all calls of its tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RouteSection {
    /// Globs over the server's own tool names. Default: all tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tools: Option<Vec<String>>,
    /// JSON pointer (RFC 6901) to the argument, such as `/region`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) at: Option<String>,
    /// The value equals this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) equals: Option<serde_json::Value>,
    /// The value is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) one_of: Option<Vec<serde_json::Value>>,
    /// The value is a string that matches this regular expression (not anchored).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) matches: Option<String>,
    /// The value is a number greater than or equal to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) min: Option<f64>,
    /// The value is a number less than or equal to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) max: Option<f64>,
    /// Name or locality of the replicas that serve matching calls. No other replica does.
    pub(in crate::config) to: String,
}

/// Credential for a server.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(in crate::config) enum AuthSection {
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

/// Kind of item.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum ItemKindSection {
    /// Tools.
    Tools,
    /// Resources and templates.
    Resources,
    /// Prompts.
    Prompts,
}

/// A root: a `file:` URI, or a table with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub(in crate::config) enum RootSection {
    /// The URI.
    Uri(String),
    /// The URI and a name.
    Named(NamedRoot),
}

/// A root with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct NamedRoot {
    /// A `file:` URI.
    pub(in crate::config) uri: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) name: Option<String>,
}

/// Filters and overrides for the items of a server. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ItemRulesSection {
    /// Globs; when set, only matching items are listed. `*` does not match `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) allow: Option<Vec<String>>,
    /// Globs; matching items are hidden. `*` matches `/` in names, but not in URIs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) deny: Vec<String>,
    /// Name -> name shown to clients. A resource keeps its URI.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) rename: IndexMap<String, String>,
    /// Name -> description shown instead of the server's.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) describe: IndexMap<String, String>,
}

impl ItemRulesSection {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Filters and overrides for the tools of a server. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ToolRules {
    /// The keys of every kind of item.
    #[serde(flatten)]
    pub(in crate::config) items: ItemRulesSection,
    /// Name -> price of a call in USD.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) price: IndexMap<String, Amount>,
    /// Name -> `timeout` of this tool.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) timeout: IndexMap<String, Time>,
}

impl ToolRules {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reconnect policy: exponential backoff from `base` to `max`, without end. A call that arrives
/// meanwhile triggers an attempt at once, at most every two seconds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct RetrySection {
    /// First delay.
    pub(in crate::config) base: Time,
    /// Maximum delay.
    pub(in crate::config) max: Time,
    /// Random fraction of each delay, 0.0 to 1.0.
    pub(in crate::config) jitter: f64,
    /// A connection that lasted this long resets the delay to `base`.
    pub(in crate::config) stable_after: Time,
    /// Maximum failed starts per minute (failed, or ended before `stable_after`), counted over all
    /// connections to the server; further starts wait. One dedicated caller (`isolation`), all
    /// starts triggered by calls, and all starts for subscriptions may each use half.
    pub(in crate::config) starts_per_minute: usize,
    /// Consecutive failed attempts after which the server shows as `failed`. Attempts continue.
    pub(in crate::config) failed_after: u32,
}

impl Default for RetrySection {
    fn default() -> Self {
        Self {
            base: Time::millis(500),
            max: Time::secs(30),
            jitter: 0.2,
            stable_after: Time::secs(30),
            starts_per_minute: 30,
            failed_after: 1,
        }
    }
}

/// How long a failed replica gets no calls: doubles from `base` to `max` with each consecutive
/// failure.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct EjectionSection {
    /// After the first failure.
    pub(in crate::config) base: Time,
    /// Maximum.
    pub(in crate::config) max: Time,
}

impl Default for EjectionSection {
    fn default() -> Self {
        Self {
            base: Time::secs(1),
            max: Time::secs(60),
        }
    }
}

impl EjectionSection {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Circuit breaker.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct BreakerSection {
    /// Consecutive failures (no connection, lost connection, timeout, HTTP 5xx; not tool errors)
    /// after which calls fail fast. `0` disables the breaker.
    pub(in crate::config) failures: u32,
    /// How long calls fail fast; then one call is let through as a test.
    pub(in crate::config) open_for: Time,
}

impl Default for BreakerSection {
    fn default() -> Self {
        Self {
            failures: 5,
            open_for: Time::secs(10),
        }
    }
}

/// Health checks.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct HealthSection {
    /// Idle time after which the server is checked, and interval of further checks.
    pub(in crate::config) interval: Time,
    /// Time limit of a check. A missed check shows the server as `degraded`.
    pub(in crate::config) timeout: Time,
    /// Consecutive missed checks after which the server is reconnected.
    pub(in crate::config) failures: u32,
    /// Request used for the check.
    pub(in crate::config) probe: Probe,
}

impl Default for HealthSection {
    fn default() -> Self {
        Self {
            interval: Time::secs(30),
            timeout: Time::secs(10),
            failures: 3,
            probe: Probe::Ping,
        }
    }
}

/// Limits on messages, calls and memory of a server.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ServerLimitsSection {
    /// Maximum size of a message to the server; a larger one fails its call.
    pub(in crate::config) request: Size,
    /// Maximum size of a message from the server; a larger one fails its call.
    pub(in crate::config) response: Size,
    /// Maximum concurrent calls. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) in_flight: Option<usize>,
    /// Calls beyond `in_flight` that may wait, at most for their `timeout`. Waiting agents are
    /// served in turn. Further calls are refused at once.
    pub(in crate::config) queue: usize,
    /// Maximum memory (resident and swapped) of the program and its process group, checked twice a
    /// second. Beyond it the program is killed and restarted. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) memory: Option<Size>,
    /// Maximum size of a listed item as JSON. Larger items are hidden and named in `/status`.
    pub(in crate::config) item: Size,
    /// Maximum nesting depth of a listed item. Deeper items are hidden and named in `/status`,
    /// because clients cannot read a list that contains one.
    pub(in crate::config) item_depth: usize,
}

impl Default for ServerLimitsSection {
    fn default() -> Self {
        Self {
            request: Size(4 * Size::MIB),
            response: Size(16 * Size::MIB),
            in_flight: None,
            queue: 128,
            memory: None,
            item: Size(Size::MIB),
            item_depth: 32,
        }
    }
}
