//! A server as it is written: `[servers.X]`, with how it is reached, watched and limited.
//!
//! `resolve::server` and `resolve::replicas` turn these into the types of [`crate::config`],
//! `display` goes the other way.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::governing::{BudgetsSection, RateSection, ScanSection};
use crate::config::{
    Balance, EraPin, Isolation, Probe, Secret, Validate,
    units::{Amount, Size, Time},
};

/// One server: a program to run (`command`), a URL (`url`), or the toolbox inside this program
/// (`transport = "builtin"`).
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ServerSection {
    /// Program name or path; no shell is involved. A name alone is looked for in `PATH`; relative
    /// paths such as `./server` start at the directory of the config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<String>,
    /// Variables added to the program's minimal environment; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) env: IndexMap<String, Secret>,
    /// File of more such variables, `NAME=value` a line, as in `.env`; those of `env` win, and nothing
    /// in a value is expanded. A relative path starts at the directory of the config file. When it
    /// changes, the config is read again. Its values are never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) env_file: Option<String>,
    /// Working directory of the program; relative paths start at the directory of the config
    /// file. By default it is the directory Tollbridge was started in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) cwd: Option<String>,
    /// User that the program runs as, by name or number, with the groups and the HOME of that user: for
    /// a gateway that runs as root. By default it is the user of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) user: Option<String>,
    /// Address of a server on the network: `http:`, `https:`, `ws:` or `wss:`. Certificates are
    /// believed by the authorities of this system, or by those in the PEM file that the variable
    /// SSL_CERT_FILE names in their place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) url: Option<String>,
    /// Headers sent with every request; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) auth: Option<AuthSection>,
    /// How the server is reached; by default what `command` or the scheme of `url` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) transport: Option<TransportKind>,
    /// Protocol era the server is spoken to in.
    pub(in crate::config) era: EraPin,
    /// Whether the server runs at all.
    pub(in crate::config) enabled: bool,
    /// Used in exposed names instead of the server's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) namespace: Option<String>,
    /// Which kinds of item the merged routes show.
    pub(in crate::config) expose: Vec<ItemKindSection>,
    /// Precedence under `conflict = "priority"`; higher wins.
    pub(in crate::config) priority: i32,
    /// Free labels, shown in the status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) tags: Vec<String>,
    /// Roots offered to the server; without this key clients are asked for theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) roots: Option<Vec<RootSection>>,
    /// Which tools are shown, as what, for which price and for how long.
    #[serde(skip_serializing_if = "ToolRules::is_empty")]
    pub(in crate::config) tools: ToolRules,
    /// Which resources and templates are shown, and as what; names are URIs.
    #[serde(skip_serializing_if = "ItemRulesSection::is_empty")]
    pub(in crate::config) resources: ItemRulesSection,
    /// Which prompts are shown, and as what.
    #[serde(skip_serializing_if = "ItemRulesSection::is_empty")]
    pub(in crate::config) prompts: ItemRulesSection,
    /// Which callers share a connection.
    pub(in crate::config) isolation: Isolation,
    /// Most connections kept to the server beside the catalog's own.
    pub(in crate::config) max_instances: usize,
    /// Most connections under `isolation = "pool"`, each of which serves one call at a time; further
    /// calls wait for one, first come first served.
    pub(in crate::config) pool_size: usize,
    /// How long an unused connection beside the catalog's own is kept; by default 10m. Where it is
    /// written for a program, the catalog's own one is stopped as well, and started again by the
    /// next call that needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) idle_timeout: Option<Time>,
    /// How long a start may take; package runners download on the first one.
    pub(in crate::config) startup_timeout: Time,
    /// How long a network connection may take to open.
    pub(in crate::config) connect_timeout: Time,
    /// How long one call may take without progress.
    pub(in crate::config) timeout: Time,
    /// How long one call may take even with progress; by default 10m, or `timeout` when that is
    /// longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) max_total_timeout: Option<Time>,
    /// Delays between attempts to reconnect.
    pub(in crate::config) retry: RetrySection,
    /// When calls are answered at once because the server keeps failing. What fails on connections
    /// that not all share (`isolation`) holds back the calls of that agent alone, with `session` of that
    /// session. That no connection can be made holds back all, and so does that those of several callers
    /// fail one after another.
    pub(in crate::config) breaker: BreakerSection,
    /// How it is found out that the server no longer answers.
    pub(in crate::config) health: HealthSection,
    /// How long the items of a server that went away stay listed; 0 lists them no longer.
    pub(in crate::config) grace: Time,
    /// Limits on messages to and from the server.
    pub(in crate::config) limits: ServerLimitsSection,
    /// Instances of the server that do the same, in the order of preference, in place of `command`
    /// or `url`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) replicas: Vec<ReplicaSection>,
    /// How calls are spread over replicas.
    #[serde(skip_serializing_if = "is_failover")]
    pub(in crate::config) balance: Balance,
    /// How long a replica that failed gets no calls, as long as others can have them.
    #[serde(skip_serializing_if = "EjectionSection::is_default")]
    pub(in crate::config) ejection: EjectionSection,
    /// Calls that go to certain replicas only: the first rule that holds decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) route: Vec<RouteSection>,
    /// Whether arguments are checked against the `inputSchema` of their tool before they are sent.
    pub(in crate::config) validate: Validate,
    /// Price of a call in US dollars, where the tool has none; by default `governance.price`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) price: Option<Amount>,
    /// How much all agents together may spend on this server: one budget, a list of budgets that
    /// all hold, or "off"; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
    /// How often each agent may call this server; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) rate: Option<RateSection>,
    /// What is looked for in data to and from this server, and what happens to it, beside what the
    /// agent's terms say; the stricter wins.
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

/// One of several instances of a server: a program to run, or a URL.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ReplicaSection {
    /// Its name in `route` and in the status; by default its number, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) name: Option<String>,
    /// Where it runs, in any words, such as `eu-1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) locality: Option<String>,
    /// Program name or path, as of a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) command: Option<String>,
    /// Arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<String>,
    /// Variables added to the program's minimal environment; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) env: IndexMap<String, Secret>,
    /// File of more such variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) env_file: Option<String>,
    /// Working directory of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) cwd: Option<String>,
    /// User that the program runs as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) user: Option<String>,
    /// Address on the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) url: Option<String>,
    /// Headers sent with every request; values are never shown.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) headers: IndexMap<String, Secret>,
    /// Credential sent with every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) auth: Option<AuthSection>,
    /// How it is reached; by default what `command` or the scheme of `url` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) transport: Option<TransportKind>,
}

/// Calls that go to certain replicas only; all conditions that are given must hold, and without any
/// the rule is about all calls of its tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RouteSection {
    /// Globs of the tools it is about, by the server's own names; by default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tools: Option<Vec<String>>,
    /// Which argument: a JSON pointer such as `/region` or `/options/0/mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) at: Option<String>,
    /// It equals this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) equals: Option<serde_json::Value>,
    /// It is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) one_of: Option<Vec<serde_json::Value>>,
    /// It is a string and matches this regular expression, anywhere unless `^` and `$` say
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) matches: Option<String>,
    /// It is a number, at least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) min: Option<f64>,
    /// It is a number, at most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) max: Option<f64>,
    /// Name or locality of the replicas that serve the call; no other does.
    pub(in crate::config) to: String,
}

/// Credential towards a server.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(in crate::config) enum AuthSection {
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
pub(in crate::config) enum TransportKind {
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
pub(in crate::config) enum ItemKindSection {
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
pub(in crate::config) enum RootSection {
    /// The URI alone.
    Uri(String),
    /// The URI with a name.
    Named(NamedRoot),
}

/// A root with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct NamedRoot {
    /// A `file:` URI.
    pub(in crate::config) uri: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) name: Option<String>,
}

/// Which items of a server are shown, and as what. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ItemRulesSection {
    /// Globs; when given, only items that match one are shown (`*` does not match `/`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) allow: Option<Vec<String>>,
    /// Globs; items that match one are left out (`*` matches `/` in names, and not in URIs).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) deny: Vec<String>,
    /// Name -> the name used in its place; a resource keeps its URI and is shown under the name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) rename: IndexMap<String, String>,
    /// Name -> the description shown in place of the server's.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) describe: IndexMap<String, String>,
}

impl ItemRulesSection {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which tools of a server are shown, and as what. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ToolRules {
    /// What holds of all kinds of item.
    #[serde(flatten)]
    pub(in crate::config) items: ItemRulesSection,
    /// Name -> the price of a call in US dollars.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) price: IndexMap<String, Amount>,
    /// Name -> how long a call may take without progress, in place of the server's `timeout`.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) timeout: IndexMap<String, Time>,
}

impl ToolRules {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Delays between attempts to reconnect: they double from `base` to `max`. A call that comes meanwhile
/// has the server tried again, two seconds after the last attempt at the earliest.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct RetrySection {
    /// First delay.
    pub(in crate::config) base: Time,
    /// Longest delay.
    pub(in crate::config) max: Time,
    /// Random part of each delay, 0.0 to 1.0.
    pub(in crate::config) jitter: f64,
    /// A connection that held for longer lets delays begin at `base` again.
    pub(in crate::config) stable_after: Time,
    /// Starts within a minute that may come to nothing: fail, or end before `stable_after`. Further
    /// ones wait, those of connections beside the catalog's included. A caller with connections of its
    /// own (`isolation`) uses up half of them at most, and so do all whose calls have the server tried,
    /// and all who are only subscribed.
    pub(in crate::config) starts_per_minute: usize,
    /// Attempts in a row that come to nothing before a server that is being connected shows as
    /// `failed`; it is tried for as long as it takes, before and after.
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

/// How long a replica that failed gets no calls: it doubles from `base` to `max` with each failure
/// in a row.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct EjectionSection {
    /// After the first failure.
    pub(in crate::config) base: Time,
    /// The longest.
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

/// When calls are answered at once because the server keeps failing.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct BreakerSection {
    /// Failures in a row (no connection, a lost one, no answer in time, HTTP 5xx) after which calls
    /// are answered at once; 0 never does.
    pub(in crate::config) failures: u32,
    /// For how long; then one call tries.
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

/// How it is found out that a server no longer answers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct HealthSection {
    /// Silence after which a server is asked, and pause between further checks.
    pub(in crate::config) interval: Time,
    /// How long it may take to answer.
    pub(in crate::config) timeout: Time,
    /// Checks missed in a row after which the connection is made anew; one shows `degraded`.
    pub(in crate::config) failures: u32,
    /// What it is asked.
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

/// Limits on a server: on messages to and from it, and on calls.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ServerLimitsSection {
    /// Largest message sent to it.
    pub(in crate::config) request: Size,
    /// Largest message accepted from it.
    pub(in crate::config) response: Size,
    /// Calls that may be under way at once; without this key any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) in_flight: Option<usize>,
    /// Calls beyond `in_flight` that may wait, for their `timeout` at most; the agents that wait
    /// are served in turn. What comes on top of that is refused at once.
    pub(in crate::config) queue: usize,
    /// Memory that the program and all that it starts may use together; beyond it they are ended,
    /// and the program is started again. Without this key any amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) memory: Option<Size>,
    /// Largest item of its lists, as JSON; larger ones are left out.
    pub(in crate::config) item: Size,
    /// How many levels of arrays and objects an item of its lists may have, itself included; deeper
    /// ones are left out, since clients cannot read a list that has one.
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
