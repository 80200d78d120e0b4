//! One configured server: how it is reached, what is shown of it, and how it is kept alive.

use std::{num::NonZeroUsize, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    CALLS_MAX, DEPTH_MAX,
    items::{CommonItemRules, Expose, ItemKindSection, ItemRules, Root, RootSection},
    limits::{Budget, BudgetList, Rate},
    policy::{Condition, GlobList},
    scan::Scan,
    transport::Transport,
};
use crate::{
    config::units::{Size, Time},
    money::Micros,
};

/// When each start was made is remembered.
const STARTS_PER_MINUTE_MAX: usize = 1000;

/// Less than the smallest program uses; more than a machine has.
const MEMORY_MIN: &str = "1MiB";
const MEMORY_MAX: &str = "1048576GiB";

/// One configured server. What `resolve` finds out is not deserialized.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Server {
    /// How it is reached.
    #[serde(flatten, skip_deserializing)]
    #[schemars(skip)]
    pub transport: Transport,
    /// Protocol era used with the server.
    pub era: EraPin,
    /// `false` keeps the server in the config without running it.
    pub enabled: bool,
    /// Why it does not run although it is enabled.
    #[serde(skip)]
    pub name_conflict: Option<NameConflict>,
    /// Name used in exposed names instead of the server's name.
    pub namespace: Option<String>,
    /// Kinds of items shown on merged routes.
    #[schemars(with = "Vec<ItemKindSection>")]
    pub expose: Expose,
    /// Precedence under `naming.conflict = "priority"`; the higher value wins.
    pub priority: i32,
    /// Labels, used by profiles and shown in `/status`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Roots offered to the server. Default: clients are asked for theirs.
    #[schemars(with = "Option<Vec<RootSection>>")]
    pub roots: Option<Vec<Root>>,
    /// Filters and overrides for tools.
    #[serde(skip_serializing_if = "ItemRules::is_empty")]
    pub tools: ItemRules,
    /// Filters and overrides for resources and templates; names are URIs.
    #[serde(skip_serializing_if = "ItemRules::is_empty")]
    #[schemars(with = "CommonItemRules")]
    pub resources: ItemRules,
    /// Filters and overrides for prompts.
    #[serde(skip_serializing_if = "ItemRules::is_empty")]
    #[schemars(with = "CommonItemRules")]
    pub prompts: ItemRules,
    /// Headers of a caller's HTTP request that are sent to the server with its calls. Callers share a
    /// connection only if the values are the same. Never `Authorization` or `X-API-Key`, which are for the
    /// gateway. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward_headers: Vec<String>,
    /// Which callers share a connection to the server.
    pub isolation: Isolation,
    /// Maximum connections besides the catalog connection. To make room, an idle connection is closed: the
    /// least recently used one of the agent that has most. With `isolation = "call"` further calls wait.
    #[schemars(range(min = 1))]
    pub max_instances: usize,
    /// Number of connections under `isolation = "pool"`. Further calls wait, first come first
    /// served.
    #[schemars(range(min = 1))]
    pub pool_size: usize,
    /// How long an unused connection besides the catalog's own is kept.
    #[serde(skip_deserializing, with = "Time")]
    #[schemars(skip)]
    pub idle_timeout: Duration,
    /// Whether the catalog's own program ends as well when nobody uses it for `idle_timeout`; the
    /// next call starts it again.
    #[serde(skip)]
    pub sleeps: bool,
    /// Time limit for starting and initializing the server. Package runners may download on the
    /// first start.
    #[serde(with = "Time")]
    pub startup_timeout: Duration,
    /// Time limit for opening a network connection.
    #[serde(with = "Time")]
    pub connect_timeout: Duration,
    /// Time limit of a call without progress notifications.
    #[serde(with = "Time")]
    pub timeout: Duration,
    /// How long one call may take even with progress.
    #[serde(skip_deserializing, with = "Time")]
    #[schemars(skip)]
    pub max_total_timeout: Duration,
    /// Reconnect policy.
    pub retry: Retry,
    /// Circuit breaker. Failures on a dedicated connection (`isolation`) open only that caller's
    /// breaker. The server's breaker opens when no connection can be made, or when calls of several
    /// callers fail in a row.
    pub breaker: BreakerConfig,
    /// Health checks.
    pub health: Health,
    /// How long items of a disconnected server stay listed; `0` removes them at once.
    #[serde(with = "Time")]
    #[schemars(extend("x-min" = "0s"))]
    pub grace: Duration,
    /// Limits on messages, calls and memory.
    pub limits: ServerLimits,
    /// Where it runs more than once, in the order of preference; empty: only as `transport` says.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub replicas: Vec<ReplicaConfig>,
    /// How calls are distributed over replicas.
    #[serde(skip_serializing_if = "Balance::is_default")]
    pub balance: Balance,
    /// How long a failed replica gets no calls, while others are available.
    #[serde(skip_serializing_if = "Ejection::is_default")]
    pub ejection: Ejection,
    /// Rules that send calls to certain replicas; the first matching rule applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<RouteConfig>,
    /// Validation of tool arguments against the tool's input schema.
    pub validate: Validate,
    /// Price of a call in USD when the tool has none. Default: `governance.price`.
    pub price: Option<Micros>,
    /// What all agents together may spend on this server: one budget, a list of budgets that all
    /// apply, or `"off"`. Default: unlimited.
    #[serde(with = "BudgetList", skip_serializing_if = "Vec::is_empty")]
    pub budget: Vec<Budget>,
    /// Rate limit of each agent on this server. Default: unlimited.
    pub rate: Option<Rate>,
    /// Scanning of data to and from this server. It applies together with the agent's own rules;
    /// the stricter action wins.
    pub scan: Option<Scan>,
}

impl Server {
    /// The default of `idle_timeout`.
    pub(in crate::config) const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
    /// The default of `max_total_timeout`, unless `timeout` is longer.
    pub(in crate::config) const MAX_TOTAL_TIMEOUT: Duration = Duration::from_secs(10 * 60);

    /// Whether it is to run: it is enabled, and its names are its own.
    pub fn runs(&self) -> bool {
        self.enabled && self.name_conflict.is_none()
    }
}

/// Servers whose exposed names would begin alike: none of them runs. The operator renames one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "its names would begin with `{prefix}`, as those of {others}; rename one, or set a different \
     `namespace`"
)]
pub struct NameConflict {
    /// How they would begin.
    pub prefix: String,
    /// The other servers.
    pub others: String,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            transport: Transport::Builtin,
            era: EraPin::Auto,
            enabled: true,
            name_conflict: None,
            namespace: None,
            expose: Expose {
                tools: true,
                resources: true,
                prompts: true,
            },
            priority: 0,
            tags: Vec::new(),
            roots: None,
            tools: ItemRules::default(),
            resources: ItemRules::default(),
            prompts: ItemRules::default(),
            forward_headers: Vec::new(),
            isolation: Isolation::Auto,
            max_instances: 32,
            pool_size: 4,
            idle_timeout: Self::IDLE_TIMEOUT,
            sleeps: false,
            startup_timeout: Duration::from_secs(120),
            connect_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(60),
            max_total_timeout: Self::MAX_TOTAL_TIMEOUT,
            retry: Retry::default(),
            breaker: BreakerConfig::default(),
            health: Health::default(),
            grace: Duration::from_secs(30),
            limits: ServerLimits::default(),
            replicas: Vec::new(),
            balance: Balance::Failover,
            ejection: Ejection::default(),
            route: Vec::new(),
            validate: Validate::Auto,
            price: None,
            budget: Vec::new(),
            rate: None,
            scan: None,
        }
    }
}

/// One of several instances of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplicaConfig {
    /// Its name, unique among them.
    pub name: String,
    /// Where it runs.
    pub locality: Option<String>,
    /// Whether that is where this gateway runs.
    #[serde(skip)]
    pub is_near: bool,
    /// How it is reached.
    #[serde(flatten)]
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

impl Balance {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    fn is_default(&self) -> bool {
        *self == Self::Failover
    }
}

/// A rule that sends calls to certain replicas. All given conditions must hold; without conditions
/// it applies to all calls of its tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Globs over the server's own tool names; `*` matches `/` too. Default: all tools.
    #[serde(default = "GlobList::all", with = "GlobList")]
    pub tools: Vec<globset::Glob>,
    /// JSON pointer (RFC 6901) to the argument, such as `/region`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
    /// What the value is compared with.
    #[serde(flatten)]
    pub condition: Condition,
    /// Name or locality of the replicas that serve matching calls. No other replica does.
    pub to: String,
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

/// Reconnect policy: exponential backoff from `base` to `max`, without end. A call that arrives
/// meanwhile triggers an attempt at once, at most every two seconds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// First delay.
    #[serde(with = "Time")]
    pub base: Duration,
    /// Maximum delay.
    #[serde(with = "Time")]
    pub max: Duration,
    /// Random fraction of each delay.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub jitter: f64,
    /// A connection that lasted this long resets the delay to `base`.
    #[serde(with = "Time")]
    pub stable_after: Duration,
    /// Maximum failed starts per minute (failed, or ended before `stable_after`), counted over all
    /// connections to the server; further starts wait. One dedicated caller (`isolation`), all
    /// starts triggered by calls, and all starts for subscriptions may each use half.
    #[schemars(range(min = 1, max = STARTS_PER_MINUTE_MAX))]
    pub starts_per_minute: usize,
    /// Consecutive failed attempts after which the server shows as `failed`. Attempts continue.
    #[schemars(range(min = 1))]
    pub failed_after: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            max: Duration::from_secs(30),
            jitter: 0.2,
            stable_after: Duration::from_secs(30),
            starts_per_minute: 30,
            failed_after: 1,
        }
    }
}

/// How long a failed replica gets no calls: doubles from `base` to `max` with each consecutive
/// failure.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ejection {
    /// After the first failure.
    #[serde(with = "Time")]
    pub base: Duration,
    /// Maximum.
    #[serde(with = "Time")]
    pub max: Duration,
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
        }
    }
}

impl Ejection {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Circuit breaker.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerConfig {
    /// Consecutive failures (no connection, lost connection, timeout, HTTP 5xx; not tool errors)
    /// after which calls fail fast. `0` disables the breaker.
    pub failures: u32,
    /// How long calls fail fast; then one call is let through as a test.
    #[serde(with = "Time")]
    pub open_for: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            open_for: Duration::from_secs(10),
        }
    }
}

/// Health checks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Idle time after which the server is checked, and interval of further checks.
    #[serde(with = "Time")]
    pub interval: Duration,
    /// Time limit of a check. A missed check shows the server as `degraded`.
    #[serde(with = "Time")]
    pub timeout: Duration,
    /// Consecutive missed checks after which the server is reconnected.
    #[schemars(range(min = 1))]
    pub failures: u32,
    /// Request used for the check.
    pub probe: Probe,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            failures: 3,
            probe: Probe::Ping,
        }
    }
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
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemorySize(#[serde(with = "Size")] pub u64);

impl std::fmt::Display for MemorySize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Size(self.0).fmt(f)
    }
}

/// Limits on messages, calls and memory of a server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerLimits {
    /// Maximum size of a message to the server; a larger one fails its call.
    #[serde(with = "Size")]
    pub request: usize,
    /// Maximum size of a message from the server; a larger one fails its call.
    #[serde(with = "Size")]
    pub response: usize,
    /// Maximum concurrent calls. Default: unlimited.
    #[schemars(range(max = CALLS_MAX))]
    pub in_flight: Option<NonZeroUsize>,
    /// Calls beyond `in_flight` that may wait, at most for their `timeout`. Waiting agents are
    /// served in turn. Further calls are refused at once.
    #[schemars(range(max = CALLS_MAX))]
    pub queue: usize,
    /// Maximum memory (resident and swapped) of the program and its process group, checked twice a
    /// second. Beyond it the program is killed and restarted. Default: unlimited.
    #[schemars(with = "Option<Size>", extend("x-min" = MEMORY_MIN, "x-max" = MEMORY_MAX))]
    pub memory: Option<MemorySize>,
    /// Maximum size of a listed item as JSON. Larger items are hidden and named in `/status`.
    #[serde(with = "Size")]
    pub item: usize,
    /// Maximum nesting depth of a listed item. Deeper items are hidden and named in `/status`,
    /// because clients cannot read a list that contains one.
    #[schemars(range(min = 1, max = DEPTH_MAX))]
    pub item_depth: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            request: 4 << 20,
            response: 16 << 20,
            in_flight: None,
            queue: 128,
            memory: None,
            item: 1 << 20,
            item_depth: 32,
        }
    }
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
