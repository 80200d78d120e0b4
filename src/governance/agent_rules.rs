//! What holds for one agent on one route: its terms, those of the profile it came through, and the
//! default ones, compiled together.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use foldhash::HashMap;

use super::{
    arguments::{ApplicableRules, ArgumentRules, InvalidRule},
    budget::{AppliedBudget, BudgetAccounts},
    policy::{self, GlobsTooLarge, PolicyItem},
    policy_set::ServerRules,
    rate_limits::{Limiters, RateLimits},
    scanning::{CallScanners, Scanners},
};
use crate::{
    auth::Agent,
    catalog::{Prefixes, Tool},
    config::{Budget, ErrorCodes, RuleKind, Terms},
    lock::lock,
    scan::{InvalidScan, Scanner},
    store::BudgetSubject,
};

/// Tools of which an agent's rules remember what they say. Where there are more, some are asked
/// about again.
const CACHED_TOOLS_MAX: usize = 4096;

/// The compiled terms of one agent on one route.
#[derive(Debug)]
pub(super) struct AgentRules {
    /// Whose they are; when the agent changes, they are compiled again.
    pub(super) agent: Arc<Agent>,
    /// Whether calls are held to them: those of the check of a config count in limits of their own.
    pub(super) are_in_use: bool,
    pub(super) policy: Arc<policy::PolicyRules>,
    pub(super) arguments: Arc<ArgumentRules>,
    pub(super) limits: RateLimits,
    pub(super) budgets: Vec<AppliedBudget>,
    observe: Vec<RuleKind>,
    scan: Option<Arc<Scanner>>,
    /// By address. Nothing else comes to lie there as long as the entry is kept.
    tools: Mutex<HashMap<usize, KnownTool>>,
}

/// A tool that was asked about, and what was said.
type KnownTool = (Weak<Tool>, Arc<ToolDecisions>);

/// What the rules say of one tool whatever it is called with.
#[derive(Debug)]
pub(super) struct ToolDecisions {
    /// Whether the policy allows it.
    pub(super) allowed: bool,
    /// The argument rules about it.
    pub(super) arguments: ApplicableRules,
    /// Whether one of them may refuse a call.
    pub(super) enforces_argument_rules: bool,
    /// What its calls are paid from, once there was one.
    pub(super) accounts: OnceLock<BudgetAccounts>,
}

/// Why terms cannot be used; the operator mends them.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTerms {
    /// An argument rule.
    #[error(transparent)]
    Arguments(#[from] InvalidRule),
    /// A list of a policy.
    #[error(transparent)]
    Policy(#[from] GlobsTooLarge),
    /// A scan.
    #[error(transparent)]
    Scan(#[from] InvalidScan),
}

/// Terms in the order of their weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermLayers<'t> {
    pub(super) agent: &'t Terms,
    pub(super) profile: Option<&'t Terms>,
    pub(super) default: &'t Terms,
}

impl<'t> TermLayers<'t> {
    fn all(self) -> impl Iterator<Item = &'t Terms> {
        [Some(self.agent), self.profile, Some(self.default)]
            .into_iter()
            .flatten()
    }

    /// What the most specific terms say.
    fn first<T>(self, what: impl Fn(&'t Terms) -> Option<T>) -> Option<T> {
        self.all().find_map(what)
    }
}

impl AgentRules {
    pub(super) fn new(
        agent: Arc<Agent>,
        layers: TermLayers<'_>,
        team: Option<&[Budget]>,
        (limiters, scanners, prefixes): (&Limiters, &Scanners, &Prefixes),
    ) -> Result<Self, InvalidTerms> {
        let policy = |terms: &'_ Terms| terms.policy.clone();
        let (own, profile) = (policy(layers.agent), layers.profile.and_then(policy));
        let default = layers.default.policy.as_ref();
        let policy = policy::PolicyRules::new([own.as_ref(), profile.as_ref(), default], prefixes)?;
        let arguments = layers.all().flat_map(|terms| &terms.args);
        let arguments = ArgumentRules::new(arguments, prefixes)?;
        let scan = layers.first(|terms| terms.scan.as_ref());
        Ok(Self {
            limits: limits(&agent, layers, limiters),
            budgets: applied_budgets(&agent, layers, team),
            agent,
            are_in_use: false,
            policy: Arc::new(policy),
            arguments: Arc::new(arguments),
            observe: layers
                .all()
                .flat_map(|terms| terms.observe.clone())
                .collect(),
            scan: scan.map(|scan| scanners.get_or_compile(scan)).transpose()?,
            tools: Mutex::default(),
        })
    }

    /// Whether calls of `agent` are held to them. An agent that came in by several grants is each time the same.
    pub(super) fn are_for(&self, agent: &Arc<Agent>) -> bool {
        Arc::ptr_eq(&self.agent, agent) || self.are_in_use && self.agent == *agent
    }

    /// The same for `agent`, whose terms are equal to those that were compiled.
    pub(super) fn of_agent(
        &self,
        agent: Arc<Agent>,
        layers: TermLayers<'_>,
        team: Option<&[Budget]>,
        limiters: &Limiters,
    ) -> Self {
        Self {
            limits: limits(&agent, layers, limiters),
            budgets: applied_budgets(&agent, layers, team),
            agent,
            are_in_use: false,
            policy: Arc::clone(&self.policy),
            arguments: Arc::clone(&self.arguments),
            observe: self.observe.clone(),
            scan: self.scan.clone(),
            tools: Mutex::default(),
        }
    }

    /// What is said of `tool`: matched once for each entry of the catalog.
    pub(super) fn tool_decisions(&self, tool: &Arc<Tool>) -> Arc<ToolDecisions> {
        let mut tools = lock(&self.tools);
        let address = Arc::as_ptr(tool).addr();
        if let Some((_, known)) = tools.get(&address) {
            return Arc::clone(known);
        }
        if tools.len() >= CACHED_TOOLS_MAX {
            tools.clear();
        }
        let item = PolicyItem::of_tool(tool);
        let schema = tool.source.get("inputSchema");
        let arguments = self.arguments.applicable_to(&item, schema.as_ref());
        let is_held = self.arguments.is_enforced(&arguments) && !self.observes(RuleKind::Args);
        let said = Arc::new(ToolDecisions {
            allowed: self.policy.allows(&item),
            enforces_argument_rules: is_held,
            arguments,
            accounts: OnceLock::new(),
        });
        tools.insert(address, (Arc::downgrade(tool), Arc::clone(&said)));
        said
    }

    /// Forgets what was said of tools that no catalog has any more.
    pub(super) fn forget_unlisted(&self) {
        lock(&self.tools).retain(|_, (tool, _)| tool.strong_count() > 0);
    }

    /// Whether `rule` only counts what it would have refused.
    pub(super) fn observes(&self, rule: RuleKind) -> bool {
        self.observe.contains(&rule)
    }

    /// What data to and from a server, which asks for `server_rules`, is looked at with; `None` when
    /// nothing is looked for. `codes` are those of refusals.
    pub(super) fn scanners_for(
        &self,
        server_rules: &ServerRules,
        codes: ErrorCodes,
    ) -> Option<CallScanners> {
        CallScanners::new(
            (self.scan.as_ref(), server_rules.scan.as_ref()),
            self.observes(RuleKind::Scan),
            codes,
            server_rules.inputs.checks().clone(),
        )
    }
}

/// How often an agent may call.
fn limits(agent: &Agent, layers: TermLayers<'_>, limiters: &Limiters) -> RateLimits {
    limiters.for_agent(agent.quota_owner).rate_limits(
        layers.first(|terms| terms.rate),
        layers.first(|terms| terms.tool_rate),
    )
}

fn applied_budgets(
    agent: &Agent,
    layers: TermLayers<'_>,
    team: Option<&[Budget]>,
) -> Vec<AppliedBudget> {
    let own = layers
        .first(|terms| terms.budget.as_deref())
        .unwrap_or_default();
    let own = own
        .iter()
        .map(|budget| (BudgetSubject::agent(agent.quota_owner), *budget));
    let team = agent.team.as_deref().zip(team).into_iter();
    let team = team.flat_map(|(name, budgets)| {
        budgets
            .iter()
            .map(move |budget| (BudgetSubject::team(name), *budget))
    });
    own.chain(team)
        .map(|(subject, budget)| AppliedBudget::new(subject, budget))
        .collect()
}
