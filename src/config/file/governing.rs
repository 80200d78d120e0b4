//! What governs calls, as it is written: `[governance]`, `[agents.X]`, `[profiles.X]`, `[audit]`.
//!
//! `resolve::governing` turns these into the types of [`crate::config::model::governing`], `display` goes
//! the other way. Globs and regular expressions are texts here, amounts are decimal strings.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{
    ArgumentAction, Authentication, Detector, Durability, ErrorCodes, ErrorForm, Mask, PolicyMode,
    RuleKind, ScanAction, Secret, Window,
    model::governing::KEY_LIFETIME,
    units::{Amount, Size, Time},
};

/// Who may call what, how often, for how much money, with which data. Without this section
/// everybody may call everything, and nothing is charged or scanned.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct GovernanceSection {
    /// How clients say who they are. Where it was `keys`, a changed config has to say `anonymous` before
    /// everybody is let in.
    pub(in crate::config) auth: Authentication,
    /// Form of a refusal.
    pub(in crate::config) errors: ErrorForm,
    /// Codes of refusals.
    pub(in crate::config) error_codes: ErrorCodes,
    /// Price of a call in US dollars, where neither the tool nor its server has one.
    pub(in crate::config) price: Amount,
    /// Whether a call costs its price although the tool's result says `isError`. Errors of the
    /// protocol and calls without an answer cost it anyway, once they reached their server, and so
    /// does each round of a call of 2026-07-28 that is answered with `input_required`.
    pub(in crate::config) charge_errors: bool,
    /// How long the keys are good for that `keys create` makes without `--expires`; 0: for ever.
    pub(in crate::config) key_lifetime: Time,
    /// How many calls of one agent from one address (of IPv6, one network of 64 bits) may be refused: by
    /// policy, rate, budget, for their arguments, or since there is no such tool or method. Beyond it all
    /// its calls get HTTP 429 (RATE_LIMITED), with no record of their own, until the rate allows one
    /// refusal more.
    pub(in crate::config) refusals: RateSection,
    /// What holds for teams as a whole, by the name of the team.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) teams: IndexMap<String, Team>,
    /// What holds for agents that say nothing else.
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
            refusals: RateSection::of(crate::config::Rate::REFUSALS),
            teams: IndexMap::new(),
            terms: TermsSection::default(),
        }
    }
}

/// A team: the agents that have its name in `team`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Team {
    /// How much all its agents together may spend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
}

/// An agent: somebody, or some program, that calls tools.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct AgentSection {
    /// `agent_` and a UUID; by default the UUIDv5 of the name, so that renaming the agent makes
    /// another of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) id: Option<String>,
    /// The team whose budget it shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) team: Option<String>,
    /// Whether it may do anything at all.
    pub(in crate::config) enabled: bool,
    /// Whether it sees everything in the status.
    pub(in crate::config) admin: bool,
    /// Its API keys, of at least 32 characters; usually variables, and never shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) keys: Vec<Secret>,
    /// Profiles it may use, and nothing beside them: `/mcp` and `/mcp/servers/{server}` refuse it. By
    /// default every route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) profiles: Option<Vec<String>>,
    /// What it may do.
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

/// A named view of the catalog, with its own URL.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
pub(in crate::config) struct ProfileSection {
    /// Which tools it shows: globs over exposed names or `server/tool`; by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tools: Option<Vec<String>>,
    /// Which prompts it shows; by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) prompts: Option<Vec<String>>,
    /// Which resources it shows, by URI; by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) resources: Option<Vec<String>>,
    /// Only servers with one of these tags; by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tags: Option<Vec<String>>,
    /// Exposed name of a tool or prompt -> the name used in its place.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) rename: IndexMap<String, String>,
    /// Exposed name -> the description shown in place of the server's.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) describe: IndexMap<String, String>,
    /// What may be done through it.
    #[serde(flatten)]
    pub(in crate::config) terms: TermsSection,
}

/// What an agent, a profile or everybody may do. Where a key is missing, the next less specific
/// section is asked: the agent's, the profile's, `[governance]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub(in crate::config) struct TermsSection {
    /// What may be called. Where no section has a policy, everything may be called, or nothing when
    /// `auth` is "keys".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) policy: Option<PolicySection>,
    /// How much each agent may spend: one budget, a list of budgets that all hold, or "off". Where
    /// `[governance]` is written and no section has a budget, it is $10.00 in total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) budget: Option<BudgetsSection>,
    /// How often an agent may call, all tools together; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) rate: Option<RateSection>,
    /// How often an agent may call one and the same tool; by default without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) tool_rate: Option<RateSection>,
    /// What is looked for in data, and what happens to it; by default nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) scan: Option<ScanSection>,
    /// Rules about arguments of tools; those of all sections hold together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) args: Vec<ArgumentRuleSection>,
    /// Kinds of rule that refuse nothing, and only count and audit what they would have refused;
    /// those of all sections add up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) observe: Vec<RuleKind>,
}

/// Which tools, prompts, resources and methods may be used. Globs match `server/name`, whose first `/`
/// parts the two, or exposed names, which are those of the server whose prefix they begin with; `*`
/// matches any characters within its part, but in URIs none that is a `/` (`**` does).
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct PolicySection {
    /// What the lists mean.
    pub(in crate::config) mode: PolicyMode,
    /// Globs of tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) tools: Vec<String>,
    /// Globs of prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) prompts: Vec<String>,
    /// Globs of resources, by URI; also of those that vendor methods name by `uri` in their params.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) resources: Vec<String>,
    /// Globs of vendor methods of the per-server routes, as `server/method`: `*/tasks/*` for the methods
    /// `tasks/...` of all servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) methods: Vec<String>,
    /// Globs of what is refused whatever the lists say, also by more specific policies. They refuse all
    /// that their text matches, of whatever server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) deny: Vec<String>,
}

/// One budget, or several that all hold, or none.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(untagged)]
pub(in crate::config) enum BudgetsSection {
    /// One budget.
    One(BudgetSection),
    /// Several; an empty list is no limit.
    Many(Vec<BudgetSection>),
    /// No limit.
    Off(Off),
}

/// The word for nothing.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum Off {
    /// No limit.
    Off,
}

/// Money that may be spent in a window.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct BudgetSection {
    /// How much, in US dollars.
    pub(in crate::config) limit: Amount,
    /// In which time.
    #[serde(default = "BudgetSection::window")]
    pub(in crate::config) window: Window,
}

impl BudgetSection {
    fn window() -> Window {
        Window::Total
    }
}

/// How often something may be done: on average `calls` each `per`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RateSection {
    /// Calls each `per`.
    pub(in crate::config) calls: u32,
    /// The period.
    #[serde(default = "RateSection::per")]
    pub(in crate::config) per: Time,
    /// How many calls may come at once; by default as many as `calls`.
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

/// What is looked for in data, and what happens to it. The tables map a class (`email`,
/// `credit_card`, ...), a name under `custom` or `dictionaries`, or `*` for all others, to an
/// action.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ScanSection {
    /// In arguments of tools, and in what clients answer to servers.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) arguments: IndexMap<String, ScanAction>,
    /// In results of tools, and in what servers ask clients.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) results: IndexMap<String, ScanAction>,
    /// In texts of resources.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) resources: IndexMap<String, ScanAction>,
    /// In prompts, their arguments and texts.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) prompts: IndexMap<String, ScanAction>,
    /// In progress and log messages.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) notifications: IndexMap<String, ScanAction>,
    /// What stands in place of a match that is redacted. What is found in a number is a number
    /// again: 0 with "type", as many digits (1000...) with "length".
    pub(in crate::config) mask: Mask,
    /// Countries whose national numbers are looked for, as ISO 3166 codes in lower case; by
    /// default all that are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) countries: Vec<String>,
    /// Classes of one's own: name -> regular expression.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) custom: IndexMap<String, String>,
    /// Classes of one's own: name -> words and phrases.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(in crate::config) dictionaries: IndexMap<String, Vec<String>>,
    /// Further kinds of tokens that show by their form, in the shape of the table `detectors.toml` of the
    /// program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) detectors: Vec<Detector>,
    /// Values that are never a match, such as the address of the help desk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) allow: Vec<String>,
    /// MIME types (globs such as `text/*`) whose base64 content is decoded and scanned too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::config) base64: Vec<String>,
}

/// A rule about one argument of some tools; all conditions that are given must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ArgumentRuleSection {
    /// Named in the audit, and to who called, when the rule refuses.
    pub(in crate::config) name: String,
    /// Globs of the tools it is about; by default all.
    #[serde(default = "ArgumentRuleSection::tools")]
    pub(in crate::config) tools: Vec<String>,
    /// Which argument: a JSON pointer such as `/path` or `/options/0/mode`.
    pub(in crate::config) at: String,
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
    /// What follows when the conditions hold.
    #[serde(default = "ArgumentRuleSection::action")]
    pub(in crate::config) action: ArgumentAction,
    /// Whether it only counts what it would have refused.
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

/// The record of all calls.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct AuditSection {
    /// Whether calls are recorded at all.
    pub(in crate::config) enabled: bool,
    /// When a record counts as kept.
    pub(in crate::config) durability: Durability,
    /// Whether arguments are recorded, with PII and secrets redacted.
    pub(in crate::config) arguments: bool,
    /// How long records are kept; `0` keeps them for ever.
    pub(in crate::config) retention: Time,
    /// How much of the records is kept: when there is more, the oldest go. Without it, all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::config) retention_size: Option<Size>,
    /// How much of the disk the audit may take; half of it by default. The last eighth, 256 MiB at most, is
    /// for calls that are allowed: refused ones are only counted then. Once it is used up, calls are
    /// refused.
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
