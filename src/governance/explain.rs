//! What governance says of an agent and an item, in words: `policy explain`.

use std::sync::Arc;

use super::{
    Governance, InvalidTerms,
    agent_rules::AgentRules,
    policy::{Decision, ItemKind, PolicyItem},
};
use crate::{auth::Agent, config::RuleKind, names::ProfileName};

/// Whether an agent may use an item, in words.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    /// What the policy says, and why.
    pub reason: String,
    /// The rules that the arguments of a call are held to: those of a tool that the agent may call.
    pub argument_rules: Vec<ExplainedRule>,
}

/// An argument rule, as people are told of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExplainedRule {
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
        let policies = self.policy_set.load();
        let rules = policies.compile(agent, profile, &self.limiters)?;
        let ruling: Decision<'_> = rules.policy.decide(item);
        Ok(Explanation {
            reason: ruling.explain(&agent.name, item),
            argument_rules: rules.explain_argument_rules(item),
        })
    }
}

impl AgentRules {
    /// The rules that the arguments of calls of `item` are held to: only tools have some.
    fn explain_argument_rules(&self, item: &PolicyItem<'_>) -> Vec<ExplainedRule> {
        if item.kind != ItemKind::Tool {
            return Vec::new();
        }
        let about = self.arguments.applicable_to(item, None);
        let rules = self.arguments.rule_names(&about);
        rules
            .map(|(name, observed)| ExplainedRule {
                name: name.to_owned(),
                observed: observed || self.observes(RuleKind::Args),
            })
            .collect()
    }
}
