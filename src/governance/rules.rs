//! What holds for one agent on one route: its terms, those of the profile it came through, and the
//! default ones, compiled together.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use foldhash::HashMap;

use super::{
    arguments::{About, ArgumentRules, InvalidRule},
    budget::{Applied, Purses},
    law::Toll,
    policy::{self, Item, TooLarge},
    rate::{Limiters, Limits},
    screen::{Scanners, Screens},
};
use crate::{
    auth::Agent,
    catalog::{Prefixes, Tool},
    config::{Budget, ErrorCodes, Rule, Terms},
    lock::lock,
    scan::{InvalidScan, Scanner},
    store::Subject,
};

/// Tools of which an agent's rules remember what they say. Where there are more, some are asked
/// about again.
const TOOLS_MAX: usize = 4096;

/// The compiled terms of one agent on one route.
#[derive(Debug)]
pub(super) struct Rules {
    /// Whose they are; when the agent changes, they are compiled again.
    pub(super) agent: Arc<Agent>,
    pub(super) policy: policy::Rules,
    pub(super) arguments: ArgumentRules,
    pub(super) limits: Limits,
    pub(super) budgets: Vec<Applied>,
    observe: Vec<Rule>,
    scan: Option<Arc<Scanner>>,
    /// By address. Nothing else comes to lie there as long as the entry is kept.
    tools: Mutex<HashMap<usize, Known>>,
}

/// A tool that was asked about, and what was said.
type Known = (Weak<Tool>, Arc<OfTool>);

/// What the rules say of one tool whatever it is called with.
#[derive(Debug)]
pub(super) struct OfTool {
    /// Whether the policy allows it.
    pub(super) allowed: bool,
    /// The argument rules about it.
    pub(super) arguments: About,
    /// Whether one of them may refuse a call.
    pub(super) holds_arguments: bool,
    /// What its calls are paid from, once there was one.
    pub(super) purses: OnceLock<Purses>,
}

/// Why terms cannot be used; the operator mends them.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTerms {
    /// An argument rule.
    #[error(transparent)]
    Arguments(#[from] InvalidRule),
    /// A list of a policy.
    #[error(transparent)]
    Policy(#[from] TooLarge),
    /// A scan.
    #[error(transparent)]
    Scan(#[from] InvalidScan),
}

/// Terms in the order of their weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers<'t> {
    pub(super) agent: &'t Terms,
    pub(super) profile: Option<&'t Terms>,
    pub(super) default: &'t Terms,
}

impl<'t> Layers<'t> {
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

impl Rules {
    pub(super) fn new(
        agent: Arc<Agent>,
        layers: Layers<'_>,
        team: Option<&[Budget]>,
        (limiters, scanners, prefixes): (&Limiters, &Scanners, &Prefixes),
    ) -> Result<Self, InvalidTerms> {
        let policy = |terms: &'_ Terms| terms.policy.clone();
        let (own, profile) = (policy(layers.agent), layers.profile.and_then(policy));
        let default = layers.default.policy.as_ref();
        let policy = policy::Rules::new([own.as_ref(), profile.as_ref(), default], prefixes)?;
        let arguments = layers.all().flat_map(|terms| &terms.args);
        let arguments = ArgumentRules::new(arguments, prefixes)?;
        let limits = limiters.of(agent.id).with(
            layers.first(|terms| terms.rate),
            layers.first(|terms| terms.tool_rate),
        );
        let scan = layers.first(|terms| terms.scan.as_ref());
        Ok(Self {
            budgets: budgets(&agent, layers, team),
            agent,
            policy,
            arguments,
            limits,
            observe: layers
                .all()
                .flat_map(|terms| terms.observe.clone())
                .collect(),
            scan: scan.map(|scan| scanners.of(scan)).transpose()?,
            tools: Mutex::default(),
        })
    }

    /// What is said of `tool`: matched once for each entry of the catalog.
    pub(super) fn of_tool(&self, tool: &Arc<Tool>) -> Arc<OfTool> {
        let mut tools = lock(&self.tools);
        let address = Arc::as_ptr(tool).addr();
        if let Some((_, known)) = tools.get(&address) {
            return Arc::clone(known);
        }
        if tools.len() >= TOOLS_MAX {
            tools.clear();
        }
        let item = Item::of_tool(tool);
        let schema = tool.source.get("inputSchema");
        let arguments = self.arguments.about(&item, schema.as_ref());
        let is_held = self.arguments.is_enforced(&arguments) && !self.observes(Rule::Args);
        let said = Arc::new(OfTool {
            allowed: self.policy.allows(&item),
            holds_arguments: is_held,
            arguments,
            purses: OnceLock::new(),
        });
        tools.insert(address, (Arc::downgrade(tool), Arc::clone(&said)));
        said
    }

    /// Forgets what was said of tools that no catalog has any more.
    pub(super) fn forget_unlisted(&self) {
        lock(&self.tools).retain(|_, (tool, _)| tool.strong_count() > 0);
    }

    /// Whether `rule` only counts what it would have refused.
    pub(super) fn observes(&self, rule: Rule) -> bool {
        self.observe.contains(&rule)
    }

    /// What data to and from a server, which asks for `toll`, is looked at with; `None` when
    /// nothing is looked for. `codes` are those of refusals.
    pub(super) fn screens(&self, toll: &Toll, codes: ErrorCodes) -> Option<Screens> {
        Screens::new(
            (self.scan.as_ref(), toll.scan.as_ref()),
            self.observes(Rule::Scan),
            codes,
            toll.inputs.checks().clone(),
        )
    }
}

fn budgets(agent: &Agent, layers: Layers<'_>, team: Option<&[Budget]>) -> Vec<Applied> {
    let own = layers
        .first(|terms| terms.budget.as_deref())
        .unwrap_or_default();
    let own = own.iter().map(|budget| (Subject::agent(agent.id), *budget));
    let team = agent.team.as_deref().zip(team).into_iter();
    let team = team.flat_map(|(name, budgets)| {
        budgets
            .iter()
            .map(move |budget| (Subject::team(name), *budget))
    });
    own.chain(team)
        .map(|(subject, budget)| Applied::new(subject, budget))
        .collect()
}
