//! Who calls what, what that costs, and what budgets have left.

use std::{collections::HashMap, fmt::Error};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::{counter, gauge, set_counter};
use crate::{
    governance::{CallTotals, CallUsage, Governance, budget::BudgetUse},
    names::ServerName,
};

/// The figures at one moment.
#[derive(Debug)]
pub(super) struct UsageFigures {
    calls: CallUsage,
    budgets: Vec<BudgetUse>,
    /// The names of agents by their ids.
    names: HashMap<String, String>,
}

impl UsageFigures {
    /// Those of `governance`, whose budgets stand so, and of these servers also where nobody called them.
    pub(super) fn of(
        governance: &Governance,
        budgets: Vec<BudgetUse>,
        servers: impl Iterator<Item = ServerName>,
    ) -> Self {
        let agents = governance.directory().agents().into_iter();
        let mut calls = governance.call_usage();
        for server in servers {
            calls.servers.entry(server).or_default();
        }
        Self {
            calls,
            budgets,
            names: agents
                .map(|agent| (agent.id.to_string(), agent.name.clone()))
                .collect(),
        }
    }

    /// What an agent is called; its id once it is gone.
    fn name_of<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut spent = counter(encoder, "spent_dollars", "Charged prices in USD")?;
        for (server, totals) in &self.calls.servers {
            let labels = [("server", server.as_str())];
            ConstCounter::new(usd(totals.spent_micros)).encode(spent.encode_family(&labels)?)?;
        }
        let help = "Charged prices in USD, by agent";
        let mut spent = counter(encoder, "agent_spent_dollars", help)?;
        for (agent, totals) in &self.calls.agents {
            let id = agent.to_string();
            let labels = [("agent", self.name_of(&id))];
            ConstCounter::new(usd(totals.spent_micros)).encode(spent.encode_family(&labels)?)?;
        }
        let help = "Calls of the agent, by outcome; refused calls included";
        let mut family = counter(encoder, "agent_calls", help)?;
        for (agent, totals) in &self.calls.agents {
            let id = agent.to_string();
            for (outcome, calls) in outcomes(totals) {
                let labels = [("agent", self.name_of(&id)), ("outcome", outcome)];
                set_counter(&mut family, &labels, calls)?;
            }
        }
        let help = "Calls of the tool by its own name, by outcome; refused calls included";
        let mut family = counter(encoder, "tool_calls", help)?;
        for ((server, tool), totals) in &self.calls.tools {
            for (outcome, calls) in outcomes(totals) {
                let labels = [
                    ("server", server.as_str()),
                    ("tool", tool),
                    ("outcome", outcome),
                ];
                set_counter(&mut family, &labels, calls)?;
            }
        }
        self.budget_metrics(encoder)
    }

    fn budget_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let left = "What the budget has left in USD, of budgets that calls were paid from; by `kind`: \
                    agent, server or team";
        let limit = "Limit of the budget in USD";
        for (name, help) in [
            ("budget_left_dollars", left),
            ("budget_limit_dollars", limit),
        ] {
            let mut family = gauge(encoder, name, help)?;
            for BudgetUse {
                subject,
                window,
                status,
            } in &self.budgets
            {
                let labels = [
                    ("kind", subject.kind().as_str()),
                    ("name", self.name_of(subject.id())),
                    ("window", window.as_str()),
                ];
                let figure = if name == "budget_left_dollars" {
                    status.left()
                } else {
                    status.limit
                };
                ConstGauge::new(usd(figure.get())).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn outcomes(totals: &CallTotals) -> [(&'static str, u64); 3] {
    [
        ("answered", totals.answered),
        ("failed", totals.failed),
        ("refused", totals.refused),
    ]
}

/// An amount in USD.
#[expect(clippy::cast_precision_loss, reason = "exact below nine billion USD")]
fn usd(micros: u64) -> f64 {
    micros as f64 / 1e6
}
