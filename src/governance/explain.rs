//! What governance says of an agent and an item, in words: `policy explain`.

use std::sync::Arc;

use super::{
    Governance, InvalidTerms,
    policy::{Decision, ItemKind, PolicyItem},
    rules::AgentRules,
};
use crate::{auth::Agent, config::RuleKind, names::ProfileName};

/// Whether an agent may use an item, in words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    /// What the policy says, and why.
    pub because: String,
    /// The rules that the arguments of a call are held to: those of a tool that the agent may call.
    pub argument_rules: Vec<ToldRule>,
}

/// An argument rule, as people are told of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ToldRule {
    /// Its name.
    pub name: String,
    /// Whether it only counts what it would have refused.
    pub observed: bool,
}

impl Governance {
    /// Says whether `agent` may use `item` on the route of `profile`, and why.
    ///
    /// # Errors
    /// Terms of the agent that cannot be used.
    pub fn explain(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
        item: &PolicyItem<'_>,
    ) -> Result<Explanation, InvalidTerms> {
        let law = self.law.load();
        let rules = law.compile(agent, profile, &self.limiters)?;
        let ruling: Decision<'_> = rules.policy.decide(item);
        Ok(Explanation {
            because: ruling.explain(&agent.name, item),
            argument_rules: rules.about_arguments(item),
        })
    }
}

impl AgentRules {
    /// The rules that the arguments of calls of `item` are held to: only tools have some.
    fn about_arguments(&self, item: &PolicyItem<'_>) -> Vec<ToldRule> {
        if item.kind != ItemKind::Tool {
            return Vec::new();
        }
        let about = self.arguments.about(item, None);
        let rules = self.arguments.named(&about);
        rules
            .map(|(name, observed)| ToldRule {
                name: name.to_owned(),
                observed: observed || self.observes(RuleKind::Args),
            })
            .collect()
    }
}
