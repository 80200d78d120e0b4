//! What governs calls: who may call what, how often, for how much, with which data.
//!
//! These are resolved types, ready to use. Agents of the store are kept as JSON of the same
//! [`Terms`], so that an agent means the same wherever it is written.

use std::time::Duration;

use globset::{Glob, GlobBuilder};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    config::Secret,
    money::Micros,
    names::{AgentId, ProfileName},
};

/// The section `[governance]`. Its [`Default`] is what holds without the section: everything is
/// allowed and free, nothing is scanned. With the section, keys that are not written have other
/// defaults: a price of $0.015, a budget of $10.00 for each agent, and with
/// [`Authentication::Keys`] nothing is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct GovernanceConfig {
    /// How clients say who they are.
    pub auth: Authentication,
    /// Whether the config says `auth`, so that it is no default.
    pub is_auth_written: bool,
    /// Form of a refusal.
    pub errors: ErrorForm,
    /// Codes of refusals.
    pub error_codes: ErrorCodes,
    /// Price of a call for which neither its server nor its tool has one.
    pub price: Micros,
    /// Whether a call costs its price although the tool's result says `isError`. Errors of the
    /// protocol and calls without an answer cost it anyway, once they reached their server.
    pub charge_errors: bool,
    /// How long keys are good for that the command line makes without saying so; `None`: for ever.
    pub key_lifetime: Option<Duration>,
    /// How often one agent may be refused from one address before its requests are held back.
    pub refusal_rate: Rate,
    /// Budgets of teams.
    pub teams: IndexMap<String, Vec<Budget>>,
    /// What holds for agents that say nothing else; its policy is never `None`.
    pub terms: Terms,
}

/// How long a key is good for where nothing else is said.
pub(in crate::config) const KEY_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Default for GovernanceConfig {
    fn default() -> Self {
        Self {
            auth: Authentication::Anonymous,
            is_auth_written: false,
            errors: ErrorForm::Jsonrpc,
            error_codes: ErrorCodes::Contract,
            price: Micros::ZERO,
            charge_errors: true,
            key_lifetime: Some(KEY_LIFETIME),
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

/// How clients authenticate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Authentication {
    /// No authentication: every client is the anonymous agent.
    Anonymous,
    /// API key in `Authorization: Bearer` or `X-API-Key`.
    Keys,
}

/// Form of refusals.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorForm {
    /// A JSON-RPC error.
    Jsonrpc,
    /// A tool result with `isError`, which the model can read. Other methods get JSON-RPC errors.
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

/// What an agent, a profile or everybody may do. `None` asks the next less specific terms.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terms {
    /// Which tools, prompts, resources and methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// How much each agent may spend; all of them hold, and none of them is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Vec<Budget>>,
    /// How often an agent may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// How often an agent may call one tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_rate: Option<Rate>,
    /// What is looked for in data, and what happens to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan: Option<Scan>,
    /// Rules about arguments; those of all terms that apply hold together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<ArgumentRule>,
    /// Rules that only count what they would have refused; those of all terms add up.
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

/// Which tools, prompts, resources and methods may be used. Globs match exposed names or `server/name`;
/// what they mean is in [`catalog::globs`](crate::catalog::globs).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// What the lists mean.
    pub mode: PolicyMode,
    /// Tools.
    #[serde(with = "globs", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Glob>,
    /// Prompts.
    #[serde(with = "globs", skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Glob>,
    /// Resources, by URI.
    #[serde(with = "globs", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Glob>,
    /// Vendor methods of the per-server route.
    #[serde(with = "globs", skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Glob>,
    /// Names of any kind that are refused whatever the lists say, also by more specific policies.
    #[serde(with = "globs", skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Glob>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: PolicyMode::None,
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            methods: Vec::new(),
            deny: Vec::new(),
        }
    }
}

/// What the lists of a policy mean.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// Everything is allowed.
    All,
    /// Only what the lists match is allowed; a missing list matches nothing.
    Allowlist,
    /// Everything is allowed except what the lists match.
    Denylist,
    /// Nothing is allowed.
    None,
}

impl PolicyMode {
    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Allowlist => "allowlist",
            Self::Denylist => "denylist",
            Self::None => "none",
        }
    }
}

/// Money that may be spent in a window.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// How much.
    pub limit: Micros,
    /// In which time.
    pub window: Window,
}

/// Period of a budget. Days and months begin at midnight UTC.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// A calendar day.
    Day,
    /// A calendar month.
    Month,
    /// No reset.
    Total,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Day, Self::Month, Self::Total];

    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

/// How often something may be done (GCRA): on average `calls` each `per`, `burst` of them at once.
///
/// In a config `calls` and `burst` are at most a million and `per` is 1 s to 24 h, so that one call
/// is worth at least a microsecond.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Calls each `per`.
    pub calls: std::num::NonZeroU32,
    /// The period; in JSON a text such as `1m`.
    #[serde(with = "period")]
    pub per: Duration,
    /// How many at once; as many as `calls` where a config does not say.
    pub burst: std::num::NonZeroU32,
}

impl Rate {
    /// How often an agent may be refused where a config does not say.
    pub const REFUSALS: Self = Self {
        calls: std::num::NonZeroU32::new(600).expect("it is not zero"),
        per: Duration::from_secs(60),
        burst: std::num::NonZeroU32::new(3000).expect("it is not zero"),
    };

    /// The most calls that a rate may have, each period and at once: more is no limit.
    pub const CALLS_MAX: u32 = 1_000_000;

    /// The shortest period; together with [`Rate::CALLS_MAX`] it leaves a microsecond for a call.
    pub const PER_MIN: Duration = Duration::from_secs(1);

    /// The longest period.
    pub const PER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
}

/// The glob `text` as those over URIs are: `*` and `?` do not match `/`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn glob(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).build()
}

/// Globs as texts; what `globset` reads by itself would match `/`.
mod globs {
    use globset::Glob;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(globs: &[Glob], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(globs.iter().map(Glob::glob))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Glob>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let globs = texts.iter().map(|text| super::glob(text));
        globs.collect::<Result<_, _>>().map_err(de::Error::custom)
    }
}

mod period {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(per: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&humantime::format_duration(*per))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map_err(de::Error::custom)
    }
}

/// What is looked for in data, and what happens to it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scan {
    /// Class name, custom name or `*` -> action, in arguments of tools and in what clients answer to
    /// servers.
    pub arguments: IndexMap<String, ScanAction>,
    /// The same in results of tools and in what servers ask clients.
    pub results: IndexMap<String, ScanAction>,
    /// The same in text of resources.
    pub resources: IndexMap<String, ScanAction>,
    /// The same in prompts, their arguments and texts.
    pub prompts: IndexMap<String, ScanAction>,
    /// The same in progress and log messages.
    pub notifications: IndexMap<String, ScanAction>,
    /// What stands in place of a match.
    pub mask: Mask,
    /// Country packs of national numbers, as ISO 3166 codes in lower case; empty: all of them.
    pub countries: Vec<String>,
    /// Further classes: name -> regular expression; in a config it compiles, and does not match
    /// the empty text.
    pub custom: IndexMap<String, String>,
    /// Further classes: name -> words and phrases.
    pub dictionaries: IndexMap<String, Vec<String>>,
    /// Further kinds of tokens, beside those in `scan/detect/detectors.toml`.
    pub detectors: Vec<Detector>,
    /// Values that are never a match, such as the address of the help desk.
    pub allow: Vec<String>,
    /// MIME types (globs such as `text/*`) whose base64 content is decoded and scanned too.
    pub base64: Vec<String>,
}

/// A detector for tokens with a recognizable format.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Detector {
    /// Name in error messages, `vendor/kind`.
    pub id: String,
    /// Regular expression of the whole token: bounded, ASCII, beginning with a letter or digit. If
    /// it has a group, the group is the secret.
    pub pattern: String,
    /// Lower-case words, one of which must occur nearby. For formats that are not specific enough
    /// alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
    /// Minimum Shannon entropy in bits per character. Default: 2.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// Require both letters and digits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// Checksum. A token with a valid checksum is reported regardless of `entropy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckDigits>,
    /// Class of the matches.
    #[serde(default)]
    pub class: DetectorClass,
}

/// Checksum of a token.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckDigits {
    /// The last six characters are the base-62 CRC-32 of the characters between them and the
    /// constant prefix.
    Crc32,
}

/// Class of a detector's matches.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectorClass {
    /// A key or token.
    #[default]
    ApiKey,
    /// Another secret.
    Credential,
    /// A private key.
    PrivateKey,
}

/// What to do with a match.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ScanAction {
    /// Do not look for this class.
    Off,
    /// Count and audit it.
    Report,
    /// Replace it with a mask.
    Redact,
    /// Refuse the call, or withhold its result.
    Block,
}

impl ScanAction {
    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Report => "report",
            Self::Redact => "redact",
            Self::Block => "block",
        }
    }
}

/// Replacement of a redacted match.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// `*` for each character.
    Length,
    /// The class in brackets, such as `[EMAIL]`.
    #[default]
    Type,
}

/// A rule about one argument of some tools.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentRule {
    /// Named in the audit, and to who called, when the rule refuses.
    pub name: String,
    /// Tools it is about; globs like those of a policy.
    #[serde(with = "globs")]
    pub tools: Vec<Glob>,
    /// JSON pointer (RFC 6901) into the arguments; empty: all of them.
    pub at: String,
    /// What the value is compared with; all that are given must hold.
    #[serde(flatten)]
    pub condition: Condition,
    /// What follows when the condition holds.
    pub action: ArgumentAction,
    /// Whether it only counts what it would have refused.
    #[serde(default)]
    pub observe: bool,
}

/// What a value is compared with; all that are given must hold.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Condition {
    /// It equals this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<serde_json::Value>,
    /// It is one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<serde_json::Value>>,
    /// It is a string and matches this regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// It is a number, at least this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// It is a number, at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// Effect of an argument rule.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArgumentAction {
    /// Refuse the call unless the conditions hold.
    Allow,
    /// Refuse the call when the conditions hold.
    Refuse,
}

/// An agent of the config.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// Its id; the UUIDv5 of the name when none is written.
    pub id: AgentId,
    /// Its name, unique among agents.
    pub name: String,
    /// The team whose budget it shares.
    pub team: Option<String>,
    /// Whether it may do anything at all.
    pub enabled: bool,
    /// Whether it sees everything in `/status`.
    pub admin: bool,
    /// Its API keys, 32 visible ASCII characters or more each, unique among all agents.
    pub keys: Vec<Secret>,
    /// Profiles it may use, and nothing beside them; `None`: every route.
    pub profiles: Option<Vec<ProfileName>>,
    /// What it may do.
    pub terms: Terms,
}

/// A named view of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Which tools it shows: globs over exposed names or `server/tool`; `None`: all.
    pub tools: Option<Vec<Glob>>,
    /// Which prompts; `None`: all.
    pub prompts: Option<Vec<Glob>>,
    /// Which resources; `None`: all.
    pub resources: Option<Vec<Glob>>,
    /// Only servers with one of these tags; `None`: all.
    pub tags: Option<Vec<String>>,
    /// Exposed name -> the name used in its place, tools and prompts.
    pub rename: IndexMap<String, String>,
    /// Exposed name -> the description shown in its place.
    pub describe: IndexMap<String, String>,
    /// What may be done through it; more specific than `[governance]`, less than an agent's.
    pub terms: Terms,
}

/// The section `[audit]`. Its [`Default`] is what holds without the section.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Audit {
    /// Whether calls are recorded at all; default true.
    pub enabled: bool,
    /// When a record counts as kept; default [`Durability::Process`].
    pub durability: Durability,
    /// Whether arguments are recorded, with PII and secrets redacted; default false.
    pub arguments: bool,
    /// How long records are kept, default 90 days; `None`: for ever.
    pub retention: Option<Duration>,
    /// How many bytes of records are kept, oldest first to go; default `None`: all.
    pub retention_size: Option<u64>,
    /// How many bytes the audit may take; default `None`: half of its disk.
    pub quota: Option<u64>,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            enabled: true,
            durability: Durability::Process,
            arguments: false,
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
