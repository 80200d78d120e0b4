//! What holds for one agent on one route: its terms, those of the profile it came through, and the
//! default ones, compiled together.

use std::sync::Arc;

use super::{
    arguments::{ArgumentRules, InvalidRule},
    budget::Applied,
    policy::{self, TooLarge},
    rate::{Limiters, Limits},
    screen::{Scanners, Screens},
};
use crate::{
    auth::Agent,
    config::{Budget, Rule, Terms},
    scan::{InvalidScan, Scanner},
    store::Subject,
};

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
        (limiters, scanners): (&Limiters, &Scanners),
    ) -> Result<Self, InvalidTerms> {
        let policy = |terms: &'_ Terms| terms.policy.clone();
        let (own, profile) = (policy(layers.agent), layers.profile.and_then(policy));
        let policy = policy::Rules::new(
            own.as_ref(),
            profile.as_ref(),
            layers.default.policy.as_ref(),
        )?;
        let arguments = ArgumentRules::new(layers.all().flat_map(|terms| &terms.args))?;
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
        })
    }

    /// Whether `rule` only counts what it would have refused.
    pub(super) fn observes(&self, rule: Rule) -> bool {
        self.observe.contains(&rule)
    }

    /// What data to and from a server, which asks for `of_server`, is looked at with; `None` when
    /// nothing is looked for.
    pub(super) fn screens(&self, of_server: Option<&Arc<Scanner>>) -> Option<Screens> {
        let terms = self.scan.as_ref();
        Screens::new(terms, of_server, self.observes(Rule::Scan))
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
