//! Every budget there is and how it stands, on the command line and over HTTP.

use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::budget::{AppliedBudget, BudgetStatus, Budgets};
use crate::{
    auth::Agent,
    config::{Budget, Config, Window},
    money::Micros,
    names::ServerName,
    store::{Account, BudgetSubject, StoreError},
};

/// A budget and where it is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedBudget {
    /// The name of the agent, team or server.
    pub name: String,
    /// Whose it is.
    pub subject: BudgetSubject,
    /// In which period it counts.
    pub window: Window,
    /// How much may be spent; `None` where a limit is gone and only what was spent is left of it.
    pub limit: Option<Micros>,
    /// Whose terms have it: `agent`, `profile NAME`, `default`, `team` or `server`; empty without a limit.
    pub source: String,
}

/// How a budget stands.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ShownBudget {
    /// What has it: agent, team or server.
    pub of: &'static str,
    /// The name of the agent, team or server.
    pub name: String,
    /// Whose terms have it: `agent`, `profile NAME`, `default`, `team` or `server`; empty without a limit.
    pub from: String,
    /// The period: day, month or total.
    pub window: &'static str,
    /// The account in use.
    pub account: String,
    /// The limit, USD with two decimals; `null` where it is gone and only what was spent is left.
    pub limit: Option<String>,
    /// The limit, millionths of a USD.
    pub limit_micros: Option<u64>,
    /// Spent in this period, USD with two decimals.
    pub spent: String,
    /// Spent in this period, millionths of a USD.
    pub spent_micros: u64,
    /// Held by calls of this process under way, millionths of a USD.
    pub held_micros: u64,
    /// Reserved by other processes and not known to be spent, millionths of a USD.
    pub elsewhere_micros: u64,
    /// The limit without what is spent, USD with two decimals.
    pub left: Option<String>,
    /// The limit without what is spent, millionths of a USD.
    pub left_micros: Option<u64>,
    /// When it starts anew; `null`: never.
    pub ends: Option<String>,
}

impl ListedBudget {
    /// Those of all agents, teams and servers.
    pub fn all(agents: &[Arc<Agent>], config: &Config) -> Vec<Self> {
        let agents = agents.iter();
        let agents = agents.flat_map(|agent| Self::of_agent(agent, config));
        let teams = config.governance.teams.iter();
        let teams = teams.flat_map(|(name, budgets)| Self::of_team(name, budgets));
        let servers = config.servers.iter();
        let servers = servers.flat_map(|(name, server)| Self::of_server(name, &server.budget));
        agents.chain(teams).chain(servers).collect()
    }

    /// Those of an agent: its own, or else those of profiles and of everybody.
    pub fn of_agent(agent: &Agent, config: &Config) -> Vec<Self> {
        let line = |source: String| {
            move |budget: &Budget| {
                let subject = BudgetSubject::agent(agent.id);
                Self::new((&agent.name, subject), *budget, source.clone())
            }
        };
        if let Some(own) = &agent.terms.budget {
            return own.iter().map(line("agent".to_owned())).collect();
        }
        let default = config.governance.terms.budget.iter().flatten();
        let mut lines: Vec<Self> = default.map(line("default".to_owned())).collect();
        for (name, profile) in &config.profiles {
            let may_use = agent.profiles.as_ref().is_none_or(|may| may.contains(name));
            let budgets = profile.terms.budget.iter().flatten();
            let budgets = budgets.filter(|_| may_use);
            lines.extend(budgets.map(line(format!("profile {name}"))));
        }
        lines
    }

    /// Those of a team.
    pub fn of_team(name: &str, budgets: &[Budget]) -> Vec<Self> {
        let line = |budget: &Budget| {
            let subject = BudgetSubject::team(name);
            Self::new((name, subject), *budget, "team".to_owned())
        };
        budgets.iter().map(line).collect()
    }

    /// Those of a server: what all agents together spend on it.
    pub fn of_server(name: &ServerName, budgets: &[Budget]) -> Vec<Self> {
        let line = |budget: &Budget| {
            let subject = BudgetSubject::server(name);
            Self::new((name.as_str(), subject), *budget, "server".to_owned())
        };
        budgets.iter().map(line).collect()
    }

    /// What was spent of `accounts` where no budget of `limited` holds any more: its limit was taken away, or counts
    /// in another window now.
    pub fn without_limit(
        accounts: &[Account],
        limited: &[Self],
        agents: &[Arc<Agent>],
    ) -> Vec<Self> {
        let mut spent: Vec<_> = accounts.iter().filter_map(Account::subject).collect();
        spent.sort_by_key(|(subject, window)| (subject.clone(), window.as_str()));
        spent.dedup();
        spent.retain(|(subject, window)| {
            let mut limited = limited.iter();
            !limited.any(|it| it.subject == *subject && it.window == *window)
        });
        let lines = spent.into_iter().map(|(subject, window)| {
            let mut named = agents.iter();
            let agent = named.find(|agent| BudgetSubject::agent(agent.id) == subject);
            Self {
                name: agent.map_or_else(|| subject.id().to_owned(), |agent| agent.name.clone()),
                subject,
                window,
                limit: None,
                source: String::new(),
            }
        });
        lines.collect()
    }

    fn new((name, subject): (&str, BudgetSubject), budget: Budget, source: String) -> Self {
        Self {
            name: name.to_owned(),
            subject,
            window: budget.window,
            limit: Some(budget.limit),
            source,
        }
    }

    /// How it stands.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn status(
        &self,
        budgets: &Budgets,
        now: Timestamp,
    ) -> Result<BudgetStatus, StoreError> {
        let limit = self.limit.unwrap_or_default();
        let window = self.window;
        let applied = AppliedBudget::new(self.subject.clone(), Budget { limit, window });
        budgets.status(&applied, now).await
    }

    /// How it stands by `status`, for people and programs.
    pub fn show(&self, status: &BudgetStatus) -> ShownBudget {
        let left = self.limit.map(|it| it.saturating_sub(status.spent));
        ShownBudget {
            of: self.subject.kind().as_str(),
            name: self.name.clone(),
            from: self.source.clone(),
            window: self.window.as_str(),
            account: status.account.as_str().to_owned(),
            limit: self.limit.map(|it| it.to_string()),
            limit_micros: self.limit.map(Micros::get),
            spent: status.spent.to_string(),
            spent_micros: status.spent.get(),
            held_micros: status.held.get(),
            elsewhere_micros: status.elsewhere.get(),
            left: left.map(|it| it.to_string()),
            left_micros: left.map(Micros::get),
            ends: status.ends.map(|at| format!("{at:.3}")),
        }
    }
}
