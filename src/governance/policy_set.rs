//! What one config says of calls: prices, terms, the form of refusals. A config that changes brings
//! another [`PolicySet`], which takes the place of this one as a whole.
//!
//! The rules of an agent on a route are compiled when they are first needed, and again when the
//! agent changes.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use dashmap::DashMap;
use foldhash::{HashMap, HashSet, fast::RandomState};
use indexmap::IndexMap;

use super::{
    InvalidTerms,
    agent_rules::{AgentRules, TermLayers},
    budget::AppliedBudget,
    input_validation::InputValidator,
    rate_limits::Limiters,
    refusal::RefusalStyle,
    scanning::Scanners,
};
use crate::{
    auth::Agent,
    catalog::{Prefixes, Profiles, Tool},
    config::{self, Budget, Config, Rate, Terms, key_path},
    money::Micros,
    names::{AgentId, OwnerIndex, OwnerSet, ProfileName, ServerName, WorkspaceName},
    scan::{InvalidScan, Scanner},
    store::BudgetSubject,
};

/// What a config says of calls.
#[derive(Debug)]
pub struct PolicySet {
    pub(super) refusal_style: RefusalStyle,
    /// Price of a call that has no other.
    price: Micros,
    pub(super) charge_errors: bool,
    /// How long a client may keep the state of a server.
    pub(super) request_state_ttl: Duration,
    pub(super) in_flight_per_agent: Option<NonZeroUsize>,
    /// How often an agent may be refused from one address.
    pub(super) refusal_rate: Rate,
    /// Whether callers are different agents.
    pub(super) has_agent_identities: bool,
    default: Terms,
    teams: IndexMap<String, Vec<Budget>>,
    /// The workspaces among the teams.
    workspaces: HashSet<WorkspaceName>,
    profiles: HashMap<ProfileName, Terms>,
    servers: HashMap<ServerName, ServerRules>,
    /// Of every server.
    prefixes: Prefixes,
    /// Of those that every agent sees.
    shared_prefixes: Prefixes,
    owners: OwnerIndex,
    rules: DashMap<(AgentId, Option<ProfileName>), Arc<AgentRules>, RandomState>,
    scanners: Scanners,
}

/// Rules of agents of the config, on one route each, that stay compiled before anybody needs them.
const COMPILED_MAX: usize = 1024;

/// What one server asks of its callers.
#[derive(Debug)]
pub(super) struct ServerRules {
    price: Option<Micros>,
    /// By the tool's original name.
    tools: HashMap<String, Micros>,
    pub(super) rate: Option<Rate>,
    pub(super) scan: Option<Arc<Scanner>>,
    pub(super) budgets: Vec<AppliedBudget>,
    /// The same as the config has them.
    written_budgets: Vec<Budget>,
    /// What checks arguments.
    pub(super) inputs: InputValidator,
}

impl PolicySet {
    /// Takes what the config says, and compiles all of it once, so that a mistake stops the start
    /// or the change and not a call.
    ///
    /// # Errors
    /// Terms of the config that cannot be used.
    pub fn new(config: &Config) -> Result<Self, InvalidTerms> {
        let written = &config.governance;
        let scanners = Scanners::default();
        let server_rules = |(name, server): (&ServerName, &config::Server)| {
            Ok((name.clone(), ServerRules::new(name, server, &scanners)?))
        };
        let servers: Result<_, InvalidTerms> = config.servers.iter().map(server_rules).collect();
        let profile = |(name, profile): (&ProfileName, &config::Profile)| {
            (name.clone(), profile.terms.clone())
        };
        let prefixes = Prefixes::of(config);
        let policy_set = Self {
            refusal_style: RefusalStyle {
                form: written.errors,
                codes: written.error_codes,
            },
            price: written.price,
            charge_errors: written.charge_errors,
            request_state_ttl: config.request_state_ttl,
            in_flight_per_agent: config.limits.in_flight_per_agent,
            refusal_rate: written.refusal_rate,
            has_agent_identities: written.auth.identifies_callers(),
            default: written.terms.clone(),
            teams: written.teams.clone(),
            workspaces: config.workspaces.keys().cloned().collect(),
            profiles: config.profiles.iter().map(profile).collect(),
            servers: servers?,
            shared_prefixes: prefixes.seen_with(&OwnerSet::default()),
            prefixes,
            owners: OwnerIndex::of(config.servers.keys()),
            rules: DashMap::default(),
            scanners,
        };
        policy_set.validate_config_agents(config)?;
        Ok(policy_set)
    }

    /// Forgets what the rules of agents said of tools that no catalog has any more, and the rules of agents
    /// of whom `is_known` does not hold.
    pub(super) fn forget_unlisted(&self, is_known: impl Fn(&Agent) -> bool) {
        self.rules.retain(|_, rules| {
            rules.forget_unlisted();
            is_known(&rules.agent)
        });
    }

    /// Goes on with what the check of arguments has counted and compiled under `predecessor`.
    pub(super) fn inherit_from(&mut self, predecessor: &Self) {
        for (server, server_rules) in &mut self.servers {
            if let Some(former) = predecessor.server_rules(server) {
                server_rules.inputs.inherit_from(&former.inputs);
            }
        }
    }

    /// Every server, and what it asks of its callers.
    pub(super) fn all_server_rules(&self) -> impl Iterator<Item = (&ServerName, &ServerRules)> {
        self.servers.iter()
    }

    fn validate_config_agents(&self, config: &Config) -> Result<(), InvalidTerms> {
        Profiles::check(&config.profiles, &self.prefixes)?;
        let written = config.agents.values().map(Agent::from_config);
        let limiters = Limiters::default();
        for agent in written.chain([Agent::anonymous()]).map(Arc::new) {
            for profile in self.routes() {
                let rules = self.compile(&agent, profile, &limiters)?;
                // The first call of the agent takes them.
                if self.rules.len() < COMPILED_MAX {
                    let key = (agent.id, profile.cloned());
                    self.rules.insert(key, Arc::new(rules));
                }
            }
        }
        Ok(())
    }

    /// The merged route, and those of profiles.
    fn routes(&self) -> impl Iterator<Item = Option<&ProfileName>> {
        std::iter::once(None).chain(self.profiles.keys().map(Some))
    }

    /// Compiles the terms of `agent` for every route, as its calls will.
    ///
    /// # Errors
    /// Terms that cannot be used.
    pub fn validate(&self, agent: &Arc<Agent>) -> Result<(), InvalidTerms> {
        let limiters = Limiters::default();
        for profile in self.routes() {
            self.compile(agent, profile, &limiters)?;
        }
        Ok(())
    }

    /// Whether the profile `name` has rules of its own.
    pub(super) fn has_terms(&self, name: &ProfileName) -> bool {
        let terms = self.profiles.get(name);
        terms.is_some_and(|terms| *terms != Terms::default())
    }

    /// Whether the config has a profile of this name; an agent of the store may name one that it had.
    pub(super) fn has_profile(&self, name: &ProfileName) -> bool {
        self.profiles.contains_key(name)
    }

    pub(super) fn server_rules(&self, server: &ServerName) -> Option<&ServerRules> {
        self.servers.get(server)
    }

    /// What all agents together may spend on `server`.
    pub(super) fn server_budgets(&self, server: &ServerName) -> &[Budget] {
        let rules = self.servers.get(server);
        rules.map_or(&[], |rules| &rules.written_budgets)
    }

    pub(super) fn price_of(&self, tool: Option<&Tool>, server_rules: &ServerRules) -> Micros {
        let of_tool = tool.and_then(|tool| server_rules.tools.get(&*tool.original));
        of_tool
            .copied()
            .or(server_rules.price)
            .unwrap_or(self.price)
    }

    /// The compiled rules of an agent on a route; compiled when it is new or has changed.
    pub(super) fn rules_of(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
        limiters: &Limiters,
    ) -> Result<Arc<AgentRules>, String> {
        let key = (agent.id, profile.cloned());
        let known = self.rules.get(&key).map(|known| Arc::clone(&known));
        if let Some(known) = &known
            && known.are_for(agent)
        {
            return Ok(Arc::clone(known));
        }
        // Agents of another workspace see other servers.
        let sees_same = |known: &Agent| self.owners.is_empty() || known.team == agent.team;
        let compiled = known
            .filter(|known| known.agent.terms == agent.terms)
            .filter(|known| sees_same(&known.agent));
        let mut rules = match compiled {
            Some(compiled) => {
                let (layers, team) = self.terms_of(agent, profile);
                compiled.of_agent(Arc::clone(agent), layers, team, limiters)
            }
            None => self.compile(agent, profile, limiters).map_err(|error| {
                log_invalid(agent, &error);
                format!("invalid terms of the agent: {error}")
            })?,
        };
        rules.are_in_use = true;
        let rules = Arc::new(rules);
        self.rules.insert(key, Arc::clone(&rules));
        Ok(rules)
    }

    pub(super) fn compile(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
        limiters: &Limiters,
    ) -> Result<AgentRules, InvalidTerms> {
        let (layers, team) = self.terms_of(agent, profile);
        let owners = self.owners.seen_by(agent.id, agent.team.as_deref());
        let own = (!owners.is_empty()).then(|| self.prefixes.seen_with(&owners));
        let prefixes = own.as_ref().unwrap_or(&self.shared_prefixes);
        let parts = (limiters, &self.scanners, prefixes);
        AgentRules::new(Arc::clone(agent), layers, team, parts)
    }

    /// What is said of `agent` on a route, and the budgets of its team.
    pub(super) fn terms_of<'t>(
        &'t self,
        agent: &'t Agent,
        profile: Option<&ProfileName>,
    ) -> (TermLayers<'t>, Option<&'t [Budget]>) {
        let layers = TermLayers {
            agent: &agent.terms,
            profile: profile.and_then(|name| self.profiles.get(name)),
            default: &self.default,
        };
        let team = agent.team.as_ref().and_then(|team| self.teams.get(team));
        (layers, team.map(Vec::as_slice))
    }
}

impl PolicySet {
    /// The key of the config that has the budgets of `team`.
    pub(super) fn team_budget_key(&self, team: &str) -> String {
        let is_workspace = self.workspaces.iter().any(|name| name.as_str() == team);
        let section = if is_workspace {
            "workspaces"
        } else {
            "governance.teams"
        };
        format!("{}.budget", key_path(section, team))
    }
}

/// Says that `agent` may do nothing, and why.
pub(super) fn log_invalid(agent: &Agent, error: &InvalidTerms) {
    tracing::error!(agent = agent.name, %error, "invalid terms of an agent");
}

impl ServerRules {
    fn new(
        name: &ServerName,
        server: &config::Server,
        scanners: &Scanners,
    ) -> Result<Self, InvalidScan> {
        let budget = |budget: &Budget| AppliedBudget::new(BudgetSubject::server(name), *budget);
        let scan = server.scan.as_ref();
        Ok(Self {
            price: server.price,
            tools: server
                .tools
                .price
                .iter()
                .map(|(tool, price)| (tool.clone(), *price))
                .collect(),
            rate: server.rate,
            scan: scan.map(|scan| scanners.get_or_compile(scan)).transpose()?,
            budgets: server.budget.iter().map(budget).collect(),
            written_budgets: server.budget.clone(),
            inputs: InputValidator::new(server.validate),
        })
    }
}

#[cfg(test)]
mod tests;
