//! What governs calls, as it is written: `[governance]`, `[agents.X]`, `[profiles.X]`, `[audit]`.
//!
//! `resolve::governing` turns these into the types of [`crate::config::model::governance`], `display` goes
//! the other way. Globs and regular expressions are texts here, amounts are decimal strings.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{
    ArgumentAction, Authentication, Detector, Durability, ErrorCodes, ErrorForm, Mask, PolicyMode,
    RuleKind, ScanAction, Secret, Window,
    model::governance::KEY_LIFETIME,
    units::{Amount, Size, Time},
};

/// Authentication, policies, rates, budgets and scanning. Without this section every client may
/// call everything, and nothing is charged or scanned.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct GovernanceSection {
    /// How clients authenticate. A reload that removes `keys` is rejected unless the new config
    /// says `anonymous`.
    pub(in crate::config) auth: Authentication,
    /// Form of refusals.
    pub(in crate::config) errors: ErrorForm,
    /// Error codes of refusals.
    pub(in crate::config) error_codes: ErrorCodes,
    /// Price of a call in USD when neither the tool nor its server has one.
    pub(in crate::config) price: Amount,
    /// Charge calls whose result has `isError`. Protocol errors and unanswered calls that reached
    /// the server are always charged, and so is each `input_required` round of a 2026-07-28 call.
    pub(in crate::config) charge_errors: bool,
    /// Lifetime of keys made by `keys create` without `--expires`; `0` is unlimited.
    pub(in crate::config) key_lifetime: Time,
    /// Rate of avoidable refusals per agent and client address (IPv6: /64). Beyond it all requests
    /// of that agent and address get HTTP 429 (`RATE_LIMITED`) until the rate allows another
    /// refusal. They are summed in one audit record per minute.
    pub(in crate::config) refusal_rate: RateSection,
    /// Team budgets, by team name.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) teams: IndexMap<String, Team>,
    /// The terms of agents and profiles that set none.
    #[serde(flatten)]
    pub(in crate::config) terms: TermsSection,
}

impl Default for GovernanceSection {
    fn default() -> Self {
        Self {
            auth: Authentication::Anonymous,
            errors: ErrorForm::Jsonrpc,
            error_codes: ErrorCodes::Contract,
            price: Amount::micros(15_000),
            charge_errors: true,
            key_lifetime: Time(KEY_LIFETIME),
            refusal_rate: RateSection::of(crate::config::Rate::REFUSALS),
            teams: IndexMap::new(),
            terms: TermsSection::default(),
        }
    }
}

/// A team: all agents with its name in `team`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Team {
    /// What all its agents together may spend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
}

/// An agent: a person or program that calls tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct AgentSection {
    /// `agent_` and a UUID. Default: the UUIDv5 of the name, so a renamed agent is a different one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) id: Option<String>,
    /// Team whose budget it shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) team: Option<String>,
    /// `false` refuses every call.
    pub(in crate::config) enabled: bool,
    /// `true` shows everything in `/status` and `/metrics`.
    pub(in crate::config) admin: bool,
    /// API keys of at least 32 characters, usually variables; make one with `openssl rand -hex 32`.
    /// Never shown. Removing a key ends the sessions of the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) keys: Vec<Secret>,
    /// Profiles it may use, and no other route: `/mcp` and `/mcp/servers/{server}` are refused.
    /// Default: every route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) profiles: Option<Vec<String>>,
    /// The terms of this agent.
    #[serde(flatten)]
    pub(in crate::config) terms: TermsSection,
}

impl Default for AgentSection {
    fn default() -> Self {
        Self {
            id: None,
            team: None,
            enabled: true,
            admin: false,
            keys: Vec::new(),
            profiles: None,
            terms: TermsSection::default(),
        }
    }
}

/// A named view of the catalog at `/mcp/profiles/{name}`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ProfileSection {
    /// Globs over exposed names or `server/tool`. Default: all tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tools: Option<Vec<String>>,
    /// Globs over prompts. Default: all prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) prompts: Option<Vec<String>>,
    /// Globs over resource URIs. Default: all resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) resources: Option<Vec<String>>,
    /// Only servers with one of these tags. Default: all servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tags: Option<Vec<String>>,
    /// Exposed name of a tool or prompt -> name shown instead.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) rename: IndexMap<String, String>,
    /// Exposed name -> description shown instead.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) describe: IndexMap<String, String>,
    /// The terms of calls through this profile.
    #[serde(flatten)]
    pub(in crate::config) terms: TermsSection,
}

/// Terms of an agent, a profile or everybody. A missing key is taken from the next section in the
/// order agent, profile, `[governance]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub(in crate::config) struct TermsSection {
    /// What may be called. Default: everything, or nothing with `auth = "keys"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) policy: Option<PolicySection>,
    /// What each agent may spend: one budget, a list of budgets that all apply, or `"off"`.
    /// Default: 10.00 USD in total when there is a `[governance]` section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
    /// Rate limit of an agent over all tools. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) rate: Option<RateSection>,
    /// Rate limit of an agent on each tool. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tool_rate: Option<RateSection>,
    /// Scanning for personal data and secrets. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) scan: Option<ScanSection>,
    /// Argument rules. Rules of all sections apply together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<ArgumentRuleSection>,
    /// Kinds of rules that only count and audit what they would refuse. Lists of all sections are
    /// combined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) observe: Vec<RuleKind>,
}

/// Which tools, prompts, resources and methods may be used. A glob matches `server/name` (the part
/// before the first `/` is the server) or an exposed name, which belongs to the server with the
/// longest matching prefix. In URIs `*` does not match `/`; `**` does.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct PolicySection {
    /// What the lists mean.
    pub(in crate::config) mode: PolicyMode,
    /// Globs over tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) tools: Vec<String>,
    /// Globs over prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) prompts: Vec<String>,
    /// Globs over resource URIs, including URIs in the params of vendor methods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) resources: Vec<String>,
    /// Globs over vendor methods on per-server routes, `server/method`; `*/tasks/*` matches the
    /// `tasks/...` methods of every server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) methods: Vec<String>,
    /// Globs over names of any kind, refused whatever the lists and more specific policies say.
    /// They apply to everything their text matches, on any server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) deny: Vec<String>,
}

/// One budget, several budgets that all apply, or none.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub(in crate::config) enum BudgetsSection {
    /// One budget.
    One(BudgetSection),
    /// Several budgets; an empty list is unlimited.
    Many(Vec<BudgetSection>),
    /// Unlimited.
    Off(Off),
}

/// The word `off`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum Off {
    /// Unlimited.
    Off,
}

/// An amount that may be spent per period.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct BudgetSection {
    /// Amount in USD.
    pub(in crate::config) limit: Amount,
    /// Period.
    #[serde(default = "BudgetSection::window")]
    pub(in crate::config) window: Window,
}

impl BudgetSection {
    fn window() -> Window {
        Window::Total
    }
}

/// A rate limit: on average `calls` per `per`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RateSection {
    /// Calls per period.
    pub(in crate::config) calls: u32,
    /// Period.
    #[serde(default = "RateSection::per")]
    pub(in crate::config) per: Time,
    /// Calls that may come at once. Default: `calls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::config) burst: Option<u32>,
}

impl RateSection {
    pub(in crate::config) fn of(rate: crate::config::Rate) -> Self {
        Self {
            calls: rate.calls.get(),
            per: Time(rate.per),
            burst: Some(rate.burst.get()),
        }
    }

    fn per() -> Time {
        Time::secs(60)
    }
}

/// Scanning for personal data and secrets. The tables map a class (`email`, `credit_card`, ...), a
/// name from `custom` or `dictionaries`, or `*` for all others to an action.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ScanSection {
    /// Tool arguments, params of vendor methods, and client answers to server requests.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) arguments: IndexMap<String, ScanAction>,
    /// Tool results, and server requests to clients.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) results: IndexMap<String, ScanAction>,
    /// Contents of resources.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) resources: IndexMap<String, ScanAction>,
    /// Prompts: arguments and contents, and completions.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) prompts: IndexMap<String, ScanAction>,
    /// Progress, log messages and other notifications.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) notifications: IndexMap<String, ScanAction>,
    /// Replacement of a redacted match. A redacted number stays a number: 0 with `type`, a 1
    /// followed by zeros with `length`.
    pub(in crate::config) mask: Mask,
    /// Countries whose national ids are detected, as lower-case ISO 3166 codes. Default: all
    /// supported countries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) countries: Vec<String>,
    /// Additional classes: name -> regular expression.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) custom: IndexMap<String, String>,
    /// Additional classes: name -> words and phrases.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) dictionaries: IndexMap<String, Vec<String>>,
    /// Additional token detectors, in the format of `src/scan/detect/detectors.toml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) detectors: Vec<Detector>,
    /// Values that are never a match, such as a public help-desk address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) allow: Vec<String>,
    /// MIME types (globs such as `text/*`) whose base64 content is decoded and scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) base64: Vec<String>,
}

/// A rule about one argument of some tools. All given conditions must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ArgumentRuleSection {
    /// Name of the rule, shown to the caller and in the audit.
    pub(in crate::config) name: String,
    /// Globs over tools. Default: all tools.
    #[serde(default = "ArgumentRuleSection::tools")]
    pub(in crate::config) tools: Vec<String>,
    /// JSON pointer (RFC 6901) to the argument, such as `/path`. `*` stands for every element or
    /// member; at the end for everything below.
    pub(in crate::config) at: String,
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
    /// Effect of the rule.
    #[serde(default = "ArgumentRuleSection::action")]
    pub(in crate::config) action: ArgumentAction,
    /// Only count what the rule would refuse.
    #[serde(default)]
    pub(in crate::config) observe: bool,
}

impl ArgumentRuleSection {
    /// Every tool has an exposed name.
    fn tools() -> Vec<String> {
        vec!["*".to_owned()]
    }

    fn action() -> ArgumentAction {
        ArgumentAction::Refuse
    }
}

/// The audit log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct AuditSection {
    /// `false` disables the audit log.
    pub(in crate::config) enabled: bool,
    /// When a record counts as written.
    pub(in crate::config) durability: Durability,
    /// Record arguments, with personal data and secrets redacted.
    pub(in crate::config) arguments: bool,
    /// How long records are kept; `0` keeps them forever.
    pub(in crate::config) retention: Time,
    /// Maximum size of all records; the oldest are deleted first. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) retention_size: Option<Size>,
    /// Maximum disk usage of the audit log. The last eighth (at most 256 MiB) is reserved for
    /// allowed calls; refused calls are then only counted. When it is full, calls are refused.
    /// Default: half of the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) quota: Option<Size>,
}

impl Default for AuditSection {
    fn default() -> Self {
        Self {
            enabled: true,
            durability: Durability::Process,
            arguments: false,
            retention: Time::days(90),
            retention_size: None,
            quota: None,
        }
    }
}
