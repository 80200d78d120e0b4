//! What governance says of an agent and an item, in words: `policy explain`, on the command line and over HTTP.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Governance, HiddenReason, InvalidTerms, Visibility,
    agent_rules::{AgentRules, TermLayers},
    policy::{Decision, ItemKind, PolicyItem, PolicyLevel, Reason},
    policy_set::PolicySet,
};
use crate::{
    auth::Agent,
    catalog::{Candidate, Catalog, ConfiguredNames, Kind, ListEntry, Lookup},
    config::{Rate, RuleKind, Terms, key_path},
    mcp::{Method, Raw},
    names::{ProfileName, Scope, ServerName},
};

/// Whether an agent may use an item, and what its calls are held to.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct Explanation {
    /// Whether it may; `null` where it is not known whether there is such an item.
    pub allowed: Option<bool>,
    /// What decided, in words.
    pub because: String,
    /// The name of the agent.
    pub agent: String,
    /// The id of the agent.
    pub agent_id: String,
    /// The profile that it comes through.
    pub profile: Option<String>,
    /// What the item is: tool, prompt, resource or method.
    pub kind: &'static str,
    /// The server that has the item.
    pub server: String,
    /// What the server calls it.
    pub original: String,
    /// What clients of the merged route call it.
    pub exposed: String,
    /// The rule of the policy that decided; `null` where none applies.
    pub rule: Option<ExplainedPolicy>,
    /// The rules that the arguments of a call are held to: those of a tool that the agent may call.
    pub argument_rules: Vec<ExplainedRule>,
    /// The rate limits that count a use.
    pub rates: Vec<ExplainedRate>,
    /// The budgets that a call is paid from.
    pub budgets: Vec<ExplainedBudget>,
}

/// The rule of a policy that decided.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ExplainedPolicy {
    /// The key of the config where it is written, such as `agents.bot.policy.deny`.
    pub key: String,
    /// The entry of the list; `null` where the mode decided, or that no entry matches.
    pub entry: Option<String>,
}

/// An argument rule, as people are told of it.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ExplainedRule {
    /// Its name.
    pub name: String,
    /// Whether it only counts what it would have refused.
    pub observed: bool,
    /// Whether it refuses the arguments that were given; absent where none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuses: Option<bool>,
}

/// A rate limit.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ExplainedRate {
    /// What it counts: all calls of the `agent`, those of each `tool`, or those to the `server`.
    pub of: &'static str,
    /// The limit.
    pub rate: Rate,
    /// The key of the config where it is written.
    pub key: String,
}

/// A budget.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ExplainedBudget {
    /// Whose it is: of the `agent`, its `team`, or the `server`.
    pub of: &'static str,
    /// The limit in USD, exactly.
    pub limit: String,
    /// The period: day, month or total.
    pub window: &'static str,
    /// The key of the config where it is written.
    pub key: String,
}

/// Something that somebody asks about, by any of its names.
#[derive(Clone, Copy, Debug)]
pub struct ItemQuery<'n> {
    /// What it is.
    pub kind: ItemKind,
    /// Its exposed name, `server/name`, or the URI of a resource.
    pub name: &'n str,
}

/// What was asked about.
#[derive(Clone, Debug)]
pub enum PolicySubject {
    /// An entry of a list.
    Listed(Kind, ListEntry),
    /// A resource that no list has, such as one of a template.
    Resource {
        /// The server that would be asked for it.
        server: ServerName,
        /// What the config makes of its URI.
        names: ConfiguredNames,
        /// The server's own URI of it.
        original: String,
    },
    /// What only the route of the server has.
    Method {
        /// The server.
        server: ServerName,
        /// The method.
        method: String,
    },
    /// What a server that is not listed may have.
    Unlisted(Candidate),
}

/// A question about an agent and an item.
#[derive(Clone, Copy, Debug)]
pub struct PolicyQuestion<'q> {
    /// Who would use it.
    pub agent: &'q Arc<Agent>,
    /// The route that it would use.
    pub scope: &'q Scope,
    /// What it would use.
    pub subject: &'q PolicySubject,
    /// The params of a call, where its arguments matter.
    pub params: Option<&'q Raw>,
    /// What is said after the profiles that the agent may use, where the route is of none: how one is given.
    pub profile_hint: &'q str,
}

impl ItemQuery<'_> {
    /// The lists that may have it.
    pub const fn kinds(&self) -> &'static [Kind] {
        match self.kind {
            ItemKind::Prompt => &[Kind::Prompts],
            ItemKind::Resource => &[Kind::Resources, Kind::Templates],
            ItemKind::Method => &[],
            ItemKind::Tool => &[Kind::Tools],
        }
    }

    /// The item of `catalog` on the route of `scope`.
    pub fn find(&self, catalog: &Catalog, scope: &Scope) -> Option<PolicySubject> {
        if let Some((kind, entry)) = self.find_entry(catalog, scope) {
            return Some(PolicySubject::Listed(kind, entry));
        }
        if self.kind != ItemKind::Resource {
            return None;
        }
        match catalog.resource(scope, self.name) {
            Lookup::Found { server, original } => Some(PolicySubject::Resource {
                names: catalog.resource_names(&server, Kind::Resources, &original),
                server,
                original,
            }),
            Lookup::Ambiguous { .. } | Lookup::NotFound => None,
        }
    }

    /// Why `catalog` does not have it on the route of `scope`: the profile does not show it, or the config hides
    /// it, which `whole`, a catalog of everything, shows.
    pub fn hidden_by(&self, catalog: &Catalog, scope: &Scope, whole: &Catalog) -> Option<String> {
        let (noun, name) = (self.kind.noun(), self.name);
        if let Scope::Profile(profile) = scope
            && self.find(catalog, &Scope::All).is_some()
        {
            return Some(format!(
                "the profile `{profile}` does not show the {noun} `{name}`"
            ));
        }
        let (kind, entry) = self.find_entry(whole, &Scope::All)?;
        let table = key_path("servers", entry.server.as_str());
        let list = ItemKind::from_kind(kind).policy_list();
        Some(format!(
            "the {noun} `{name}` is hidden by `allow` or `deny` of `[{table}.{list}]`"
        ))
    }

    fn find_entry(&self, catalog: &Catalog, scope: &Scope) -> Option<(Kind, ListEntry)> {
        let mut kinds = self.kinds().iter();
        kinds.find_map(|kind| {
            let mut entries = catalog.list(scope, *kind).entries().iter();
            let entry = entries.find(|entry| self.matches_name(entry))?;
            Some((*kind, entry.clone()))
        })
    }

    fn matches_name(&self, entry: &ListEntry) -> bool {
        let qualified = self.name.split_once('/');
        [&*entry.exposed, &*entry.merged].contains(&self.name)
            || qualified.is_some_and(|(server, item)| {
                entry.server.is_called(server) && item == &*entry.original
            })
    }
}

/// Whether policies apply to `method` itself, and not to what it uses.
///
/// # Errors
/// Says that they do not, and what to ask about instead.
pub fn check_vendor_method(method: &str) -> Result<(), String> {
    if matches!(Method::parse(method), Method::Other(_)) {
        return Ok(());
    }
    Err(format!(
        "policies do not apply to the protocol method `{method}`; use the tool, prompt or resource instead"
    ))
}

impl PolicySubject {
    /// What policies know of it.
    pub fn item(&self) -> PolicyItem<'_> {
        match self {
            Self::Listed(kind, entry) => PolicyItem::of_entry(*kind, entry),
            Self::Resource {
                server,
                names,
                original,
            } => PolicyItem::of_resource(server, names, original),
            Self::Method { server, method } => PolicyItem::of_method(server, method),
            Self::Unlisted(candidate) => {
                let (original, names) = candidate.originals.first().expect("never none");
                PolicyItem::of_candidate(candidate, (original, names))
            }
        }
    }

    fn is_shown(&self, visibility: &Visibility) -> bool {
        match self {
            Self::Listed(kind, entry) => visibility.shows(*kind, entry),
            Self::Resource {
                server,
                names,
                original,
            } => visibility.shows_resource(server, names, original),
            Self::Method { server, method } => visibility.shows_method(server, method),
            Self::Unlisted(candidate) => visibility.may_show_candidate(candidate),
        }
    }

    /// The input schema of a tool.
    fn schema(&self) -> Option<Raw> {
        match self {
            Self::Listed(Kind::Tools, entry) => entry.item.get("inputSchema"),
            Self::Listed(..) | Self::Resource { .. } | Self::Method { .. } | Self::Unlisted(_) => {
                None
            }
        }
    }
}

impl Governance {
    /// Says whether an agent may use an item, and why.
    ///
    /// # Errors
    /// Terms of the agent that cannot be used.
    pub fn explain(&self, question: &PolicyQuestion<'_>) -> Result<Explanation, InvalidTerms> {
        let (agent, scope, item) = (question.agent, question.scope, question.subject.item());
        let profile = scope.profile();
        let policies = self.policy_set.load();
        let rules = policies.compile(agent, profile, &self.limiters)?;
        let decision: Decision<'_> = rules.policy.decide(&item);
        let visibility = self.visibility(agent, scope);
        let mut allowed = question.subject.is_shown(&visibility);
        let mut because = decision.explain(&agent.name, &item);
        let mut argument_rules = rules.explain_argument_rules(question);
        if !agent.enabled {
            because = format!("{} is disabled.", agent.name);
        } else if let Visibility::Hidden(why) = visibility {
            let hint = question.hint_after(&why);
            because = format!("{} {why}{hint}.", agent.name);
        } else if rules.observes(RuleKind::Policy) {
            because.push_str(" The policy is only observed: refusals are counted, not enforced.");
        }
        if !allowed {
            argument_rules.clear();
        }
        because.push_str(&argument_rules_text(&argument_rules));
        let refuses = |rule: &ExplainedRule| rule.refuses == Some(true) && !rule.observed;
        allowed &= !argument_rules.iter().any(refuses);
        let is_known = !matches!(question.subject, PolicySubject::Unlisted(_));
        if !is_known {
            let (server, noun) = (item.server, item.kind.noun());
            because = format!("`{server}` may not have this {noun}. If it has: {because}");
        }
        let holder = TermsHolder { agent, profile };
        Ok(Explanation {
            allowed: is_known.then_some(allowed),
            because,
            agent: agent.name.clone(),
            agent_id: agent.id.to_string(),
            profile: profile.map(ToString::to_string),
            kind: item.kind.noun(),
            server: item.server.to_string(),
            original: item.original.to_owned(),
            exposed: item.exposed.to_owned(),
            rule: holder.explain_rule(decision.reason),
            argument_rules,
            rates: holder.rates(&policies, &item),
            budgets: holder.budgets(&policies, &item),
        })
    }
}

impl PolicyQuestion<'_> {
    /// How a profile is given, where that helps.
    fn hint_after(&self, why: &HiddenReason) -> &str {
        match (why, self.scope) {
            (HiddenReason::OtherProfiles(profiles), Scope::All) if !profiles.is_empty() => {
                self.profile_hint
            }
            _ => "",
        }
    }
}

impl AgentRules {
    /// The rules that the arguments of calls are held to: only tools have some.
    fn explain_argument_rules(&self, question: &PolicyQuestion<'_>) -> Vec<ExplainedRule> {
        let item = question.subject.item();
        if item.kind != ItemKind::Tool {
            return Vec::new();
        }
        let schema = question.subject.schema();
        let about = self.arguments.applicable_to(&item, schema.as_ref());
        let found = question.params;
        let found = found.map(|params| self.arguments.check(&about, Some(params)));
        let rules = self.arguments.rule_names(&about);
        rules
            .map(|(name, observed)| ExplainedRule {
                name: name.to_owned(),
                observed: observed || self.observes(RuleKind::Args),
                refuses: found.as_ref().map(|found| {
                    let mut all = found.refused.iter().chain(&found.observed);
                    all.any(|refused| refused == name)
                }),
            })
            .collect()
    }
}

/// Who has terms on a route, and by which key of the config.
struct TermsHolder<'h> {
    agent: &'h Agent,
    profile: Option<&'h ProfileName>,
}

impl TermsHolder<'_> {
    fn key(&self, level: PolicyLevel) -> String {
        match (level, self.profile) {
            (PolicyLevel::Agent, _) => key_path("agents", &self.agent.name),
            (PolicyLevel::Profile, Some(profile)) => key_path("profiles", profile.as_str()),
            (PolicyLevel::Profile, None) | (PolicyLevel::Default, _) => "governance".to_owned(),
        }
    }

    fn explain_rule(&self, reason: Reason<'_>) -> Option<ExplainedPolicy> {
        let (level, list, entry) = match reason {
            Reason::Denied { whose, glob } => (whose, "deny", Some(glob)),
            Reason::Listed {
                whose, list, glob, ..
            } => (whose, list, Some(glob)),
            Reason::Mode { whose, .. } => (whose, "mode", None),
            Reason::Unlisted { whose, list, .. } => (whose, list, None),
            Reason::AmbiguousResource | Reason::AmbiguousUri | Reason::NoPolicy => return None,
        };
        Some(ExplainedPolicy {
            key: format!("{}.policy.{list}", self.key(level)),
            entry: entry.map(str::to_owned),
        })
    }

    /// What the most specific terms say, and by which key.
    fn first<'t, T>(
        &self,
        layers: TermLayers<'t>,
        (name, what): (&str, impl Fn(&'t Terms) -> Option<T>),
    ) -> Option<(T, String)> {
        let all = [
            (PolicyLevel::Agent, Some(layers.agent)),
            (PolicyLevel::Profile, layers.profile),
            (PolicyLevel::Default, Some(layers.default)),
        ];
        all.into_iter()
            .find_map(|(level, terms)| Some((what(terms?)?, format!("{}.{name}", self.key(level)))))
    }

    fn rates(&self, policies: &PolicySet, item: &PolicyItem<'_>) -> Vec<ExplainedRate> {
        let (layers, _) = policies.terms_of(self.agent, self.profile);
        let agent = self.first(layers, ("rate", |terms| terms.rate));
        let tool = self.first(layers, ("tool_rate", |terms| terms.tool_rate));
        let server = policies.server_rules(item.server).and_then(|it| it.rate);
        let key = || format!("{}.rate", key_path("servers", item.server.as_str()));
        let all = [
            ("agent", agent),
            ("tool", tool.filter(|_| item.kind == ItemKind::Tool)),
            ("server", server.map(|rate| (rate, key()))),
        ];
        let given = all.into_iter().filter_map(|(of, given)| {
            let (rate, key) = given?;
            Some(ExplainedRate { of, rate, key })
        });
        given.collect()
    }

    /// Only calls of tools cost something.
    fn budgets(&self, policies: &PolicySet, item: &PolicyItem<'_>) -> Vec<ExplainedBudget> {
        if item.kind != ItemKind::Tool {
            return Vec::new();
        }
        let (layers, team) = policies.terms_of(self.agent, self.profile);
        let own = self.first(layers, ("budget", |terms| terms.budget.as_deref()));
        let team = self.agent.team.as_deref().zip(team);
        let team = team.map(|(name, budgets)| (budgets, policies.team_budget_key(name)));
        let server = policies.server_budgets(item.server);
        let key = format!("{}.budget", key_path("servers", item.server.as_str()));
        let all = [
            ("agent", own),
            ("team", team),
            ("server", Some((server, key))),
        ];
        let all = all.into_iter().filter_map(|(of, given)| Some((of, given?)));
        all.flat_map(|(of, (budgets, key))| {
            budgets.iter().map(move |budget| ExplainedBudget {
                of,
                limit: budget.limit.to_decimal(),
                window: budget.window.as_str(),
                key: key.clone(),
            })
        })
        .collect()
    }
}

/// What the arguments of a call are held to beside the policy; nothing where that is nothing.
fn argument_rules_text(rules: &[ExplainedRule]) -> String {
    let named = |rule: &ExplainedRule| {
        let only = match (rule.refuses, rule.observed) {
            (Some(true), true) => " (would refuse these arguments; only observed)",
            (Some(true), false) => " (refuses these arguments)",
            (Some(false) | None, true) => " (only observed)",
            (Some(false) | None, false) => "",
        };
        format!("`{}`{only}", rule.name)
    };
    match rules {
        [] => String::new(),
        [rule] => format!(" Argument rule: {}.", named(rule)),
        rules => {
            let rules: Vec<String> = rules.iter().map(named).collect();
            format!(" Argument rules: {}.", rules.join(", "))
        }
    }
}
