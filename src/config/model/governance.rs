//! What governs calls: who may call what, how often, for how much, with which data.
//!
//! These types are read from a config, and `resolve` fills in what depends on other keys. Agents of the
//! store are kept as JSON of the same [`Terms`], so that an agent means the same wherever it is written.

use std::time::Duration;

use globset::Glob;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    authentication::Authentication,
    limits::{Budget, BudgetList, Rate},
    policy::{ArgumentRule, GlobList, Policy, PolicyMode},
    role::Role,
    scan::Scan,
};
use crate::{
    config::{
        Secret,
        units::{Size, Time, UNBOUNDED, optional_size, unlimited_time},
    },
    money::Micros,
    names::{AgentId, ProfileName},
};

/// The longest time that records are kept and keys are good for, unless it is for ever.
const LIFETIME_MAX: &str = "36500d";

/// A quota of the audit has room for what is kept for allowed calls, and for segments that may go.
const AUDIT_BYTES_MIN: &str = "16MiB";

/// Authentication, policies, rates, budgets and scanning. Without this section every client may
/// call everything, and nothing is charged or scanned.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default = "GovernanceConfig::written")]
#[schemars(extend("additionalProperties" = false))]
pub struct GovernanceConfig {
    /// How clients authenticate: one way, or a list of ways. A reload that lets clients in without a
    /// credential is rejected unless the new config says `anonymous`.
    pub auth: Authentication,
    /// Whether the config says `auth`, so that it is no default.
    #[serde(skip)]
    pub is_auth_written: bool,
    /// Form of refusals, and of failures of servers.
    pub errors: ErrorForm,
    /// Error codes of refusals.
    pub error_codes: ErrorCodes,
    /// Price of a call in USD when neither the tool nor its server has one.
    pub price: Micros,
    /// Charge calls whose result has `isError`. Protocol errors and unanswered calls that reached
    /// the server are always charged, and so is each `input_required` round of a 2026-07-28 call.
    pub charge_errors: bool,
    /// Lifetime of keys made by `keys create` without `--expires`; `0` is unlimited.
    #[serde(with = "unlimited_time")]
    #[schemars(with = "Time", extend("x-zero" = true, "x-min" = "1s", "x-max" = LIFETIME_MAX))]
    pub key_lifetime: Option<Duration>,
    /// Rate of avoidable refusals per agent and client address (IPv6: /64). Beyond it all requests
    /// of that agent and address get HTTP 429 (`RATE_LIMITED`) until the rate allows another
    /// refusal. They are summed in one audit record per minute.
    pub refusal_rate: Rate,
    /// Team budgets, by team name.
    #[serde(with = "Team", skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(with = "IndexMap<String, Team>")]
    pub teams: IndexMap<String, Vec<Budget>>,
    /// The terms of agents and profiles that set none. Once resolved, its policy is never `None`.
    #[serde(flatten)]
    pub terms: Terms,
}

/// What holds without the section: everything is allowed and free, nothing is scanned.
impl Default for GovernanceConfig {
    fn default() -> Self {
        Self {
            auth: Authentication::ANONYMOUS,
            is_auth_written: false,
            errors: ErrorForm::Jsonrpc,
            error_codes: ErrorCodes::Contract,
            price: Micros::ZERO,
            charge_errors: true,
            key_lifetime: Some(Duration::from_secs(365 * 24 * 60 * 60)),
            refusal_rate: Rate::REFUSALS,
            teams: IndexMap::new(),
            terms: Terms {
                policy: Some(Policy {
                    mode: PolicyMode::All,
                    ..Policy::default()
                }),
                ..Terms::default()
            },
        }
    }
}

impl GovernanceConfig {
    /// What holds in a section that says nothing. `resolve` adds a policy and a budget, where it has
    /// none: $10.00 for each agent, and nothing is allowed where callers authenticate.
    fn written() -> Self {
        Self {
            price: Micros::new(15_000),
            terms: Terms::default(),
            ..Self::default()
        }
    }

    pub(in crate::config) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A team: all agents with its name in `team`.
#[derive(Default, Deserialize, JsonSchema, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Team {
    /// What all its agents together may spend.
    #[serde(with = "BudgetList", skip_serializing_if = "Vec::is_empty")]
    budget: Vec<Budget>,
}

/// For `serde(with)`.
impl Team {
    fn serialize<S: Serializer>(
        teams: &IndexMap<String, Vec<Budget>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let of = |budget: &Vec<Budget>| Self {
            budget: budget.clone(),
        };
        to.collect_map(teams.iter().map(|(name, budget)| (name, of(budget))))
    }

    fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<IndexMap<String, Vec<Budget>>, D::Error> {
        let teams = IndexMap::<String, Self>::deserialize(from)?.into_iter();
        Ok(teams.map(|(name, team)| (name, team.budget)).collect())
    }
}

/// Form of refusals, and of failures of servers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorForm {
    /// A JSON-RPC error.
    Jsonrpc,
    /// A tool result with `isError`, which the model can read, also where a server fails to answer a call. Other
    /// methods get JSON-RPC errors.
    ToolResult,
}

/// Error codes of refusals.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorCodes {
    /// -32001 to -32004.
    Contract,
    /// -31001 to -31004, outside the range that MCP reserves.
    Portable,
}

/// Terms of an agent, a profile or everybody. A missing key is taken from the next section in the
/// order agent, profile, `[governance]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// What may be called. Default: everything, or nothing where `auth` is not `anonymous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// What each agent may spend: one budget, a list of budgets that all apply, or `"off"`.
    /// Default: 10.00 USD in total when there is a `[governance]` section.
    #[serde(with = "BudgetList", skip_serializing_if = "Option::is_none")]
    pub budget: Option<Vec<Budget>>,
    /// Rate limit of an agent over all tools. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Rate limit of an agent on each tool. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_rate: Option<Rate>,
    /// Scanning for personal data and secrets. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan: Option<Scan>,
    /// Argument rules. Rules of all sections apply together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<ArgumentRule>,
    /// Kinds of rules that only count and audit what they would refuse. Lists of all sections are
    /// combined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observe: Vec<RuleKind>,
}

/// A kind of rule that can be observed instead of enforced.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleKind {
    /// Argument rules.
    Args,
    /// Budgets.
    Budget,
    /// Policies.
    Policy,
    /// Rate limits.
    Rate,
    /// Scanning: what would be blocked or redacted is only reported.
    Scan,
}

impl RuleKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Args,
        Self::Budget,
        Self::Policy,
        Self::Rate,
        Self::Scan,
    ];

    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Args => "args",
            Self::Budget => "budget",
            Self::Policy => "policy",
            Self::Rate => "rate",
            Self::Scan => "scan",
        }
    }
}

/// An agent of the config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentConfig {
    /// Its id; the UUIDv5 of the name when none is written.
    pub id: AgentId,
    /// Its name, unique among agents.
    #[serde(skip)]
    pub name: String,
    /// The team whose budget it shares.
    pub team: Option<String>,
    /// Whether it may do anything at all.
    pub enabled: bool,
    /// What of the admin API is open to it.
    pub role: Role,
    /// Its API keys, 32 visible ASCII characters or more each, unique among all agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Secret>,
    /// Globs over the names of its client certificates.
    #[serde(with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Glob>,
    /// Profiles it may use, and nothing beside them; `None`: every route.
    pub profiles: Option<Vec<ProfileName>>,
    /// What it may do.
    #[serde(flatten)]
    pub terms: Terms,
}

/// A named view of the catalog at `/mcp/profiles/{name}`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub struct Profile {
    /// Globs over exposed names or `server/tool`. Default: all tools.
    #[serde(with = "GlobList")]
    pub tools: Option<Vec<Glob>>,
    /// Globs over prompts. Default: all prompts.
    #[serde(with = "GlobList")]
    pub prompts: Option<Vec<Glob>>,
    /// Globs over resource URIs. Default: all resources.
    #[serde(with = "GlobList")]
    pub resources: Option<Vec<Glob>>,
    /// Only servers with one of these tags. Default: all servers.
    pub tags: Option<Vec<String>>,
    /// Exposed name of a tool or prompt -> name shown instead.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub rename: IndexMap<String, String>,
    /// Exposed name -> description shown instead.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub describe: IndexMap<String, String>,
    /// The terms of calls through this profile.
    #[serde(flatten)]
    pub terms: Terms,
}

/// The audit log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Audit {
    /// `false` disables the audit log.
    pub enabled: bool,
    /// When a record counts as written.
    pub durability: Durability,
    /// Record arguments, with personal data and secrets redacted.
    pub arguments: bool,
    /// Record results, with personal data and secrets redacted.
    pub results: bool,
    /// Maximum size of a recorded result. Of a larger one its size is recorded.
    #[serde(with = "Size")]
    #[schemars(with = "Size", extend("x-min" = "1KiB", "x-max" = "1MiB"))]
    pub result_limit: usize,
    /// How long records are kept; `0` keeps them forever.
    #[serde(with = "unlimited_time")]
    #[schemars(with = "Time", extend("x-zero" = true, "x-min" = "1s", "x-max" = LIFETIME_MAX))]
    pub retention: Option<Duration>,
    /// Maximum size of all records; the oldest are deleted first. Default: unlimited.
    #[serde(with = "optional_size")]
    #[schemars(with = "Option<Size>", extend("x-min" = AUDIT_BYTES_MIN, "x-max" = UNBOUNDED))]
    pub retention_size: Option<u64>,
    /// Maximum disk usage of the audit log. The last eighth (at most 256 MiB) is reserved for
    /// allowed calls; refused calls are then only counted. When it is full, calls are refused.
    /// Default: half of the disk.
    #[serde(with = "optional_size")]
    #[schemars(with = "Option<Size>", extend("x-min" = AUDIT_BYTES_MIN, "x-max" = UNBOUNDED))]
    pub quota: Option<u64>,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            enabled: true,
            durability: Durability::Process,
            arguments: false,
            results: false,
            result_limit: 64 << 10,
            retention: Some(Duration::from_secs(90 * 24 * 60 * 60)),
            retention_size: None,
            quota: None,
        }
    }
}

/// When a record counts as written.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Synced to disk before the call is forwarded and before its response is sent. Survives a
    /// power cut.
    Disk,
    /// Written to the operating system, which survives `kill -9` of the gateway; synced within 100
    /// ms.
    Process,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ScanAction, Window};

    #[test]
    fn words_are_those_that_are_read() {
        fn check<T: Copy + Serialize>(all: &[T], word: fn(T) -> &'static str) {
            for one in all {
                let written = serde_json::to_value(one).expect("a word");
                assert_eq!(written, word(*one));
            }
        }
        let modes = [
            PolicyMode::All,
            PolicyMode::Allowlist,
            PolicyMode::Denylist,
            PolicyMode::None,
        ];
        check(&modes, PolicyMode::as_str);
        check(&RuleKind::ALL, RuleKind::as_str);
        let actions = [
            ScanAction::Off,
            ScanAction::Report,
            ScanAction::Redact,
            ScanAction::Block,
        ];
        check(&actions, ScanAction::as_str);
        check(&Window::ALL, Window::as_str);
    }
}
