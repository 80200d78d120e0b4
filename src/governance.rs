//! The seven steps around every call, in order.
//!
//! 1. receive: [`Governance::open`] names the call; the router finds its server
//! 2. authorize: agent, profile, policy, rate, argument rules, a look at the arguments
//! 3. reserve: the price is held against every budget, and the call is opened in the audit
//! 4. invoke: the backend takes an [`Admitted`] and nothing else
//! 5. scan: a look at the answer
//! 6. settle: what was held is spent or released
//! 7. return: the record is kept, then the answer goes
//!
//! [`Governance::admit`] does 2 and 3 and alone can make an [`Admitted`], so an ungoverned call does
//! not compile; [`Governance::settle`] does 5 to 7 for every call, however it ends. Lists ask
//! [`Governance::sight`], which decides by the same rules as `admit`: what is listed may be called.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use dashmap::DashMap;
use indexmap::IndexMap;
use serde_json::value::RawValue;

use crate::{
    audit::{Event, EventKind, Log},
    auth::{Agent, Directory},
    catalog::Tool,
    clock,
    config::{self, Budget, Config, Rate, Rule, Scan, Terms},
    mcp::{Method, Outcome, Raw, RpcError},
    money::Micros,
    names::{AgentId, ProfileName, Scope, ServerName},
    router::Routed,
    scan::OutputSchema,
    session::Call,
    store::Subject,
};
use budget::{Applied, Budgets, Hold};
use policy::{Decision as Ruling, Item};
use rate::{Limiters, Target as Metered};
use refusal::Style;
use rules::{Layers, Rules};
use screen::Seen;
use tally::Tally;
use ticket::{Ended, Target};

pub mod arguments;
pub mod budget;
pub mod policy;
pub mod rate;
pub mod refusal;
mod rules;
pub mod screen;
mod sight;
mod tally;
mod ticket;

pub use refusal::Refusal;
pub use rules::InvalidTerms;
pub use screen::Screens;
pub use sight::{Sight, Visible};
pub use tally::Counts;
pub use ticket::Ticket;

/// What governance keeps its books in.
#[derive(Clone, Debug)]
pub struct Books {
    /// The agents.
    pub directory: Arc<Directory>,
    /// The audit; it may be switched off.
    pub audit: Arc<Log>,
    /// The budgets; `None` without a store, when no price can be charged.
    pub budgets: Option<Arc<Budgets>>,
}

/// The rules in force.
#[derive(Debug)]
pub struct Governance {
    books: Books,
    style: Style,
    /// Price of a call that has no other.
    price: Micros,
    charge_errors: bool,
    default: Terms,
    teams: IndexMap<String, Vec<Budget>>,
    profiles: HashMap<ProfileName, Terms>,
    servers: HashMap<ServerName, Toll>,
    rules: DashMap<(AgentId, Option<ProfileName>), Arc<Rules>>,
    limiters: Limiters,
    schemas: DashMap<(ServerName, Arc<str>), Schema>,
    tally: Tally,
}

/// What one server asks of its callers.
#[derive(Debug)]
struct Toll {
    price: Option<Micros>,
    /// By the tool's original name.
    tools: HashMap<String, Micros>,
    rate: Option<Rate>,
    scan: Option<Scan>,
    budgets: Vec<Applied>,
}

/// The compiled output schema of a tool, as long as the catalog has that tool.
#[derive(Debug)]
struct Schema {
    of: Weak<Tool>,
    compiled: Option<Arc<OutputSchema>>,
}

/// A call that may reach its server.
#[derive(Debug)]
pub struct Admitted {
    routed: Routed,
    screens: Option<Screens>,
}

impl Admitted {
    /// The call and its target.
    pub fn routed(&self) -> &Routed {
        &self.routed
    }

    /// What notifications on their way to the client are looked at with.
    pub fn screens(&self) -> Option<&Screens> {
        self.screens.as_ref()
    }
}

/// How a call ended.
#[derive(Debug)]
pub enum Ending {
    /// The server answered.
    Answered {
        /// With what, in the names that the client knows.
        outcome: Outcome,
        /// The revision the server speaks.
        revision: Option<&'static str>,
    },
    /// The server gave no answer.
    Failed {
        /// What the client is told.
        error: RpcError,
        /// Whether the call may have reached the server.
        delivered: bool,
        /// For the record.
        reason: &'static str,
    },
    /// A step refused it.
    Refused(Refusal),
    /// There is nothing on the route that it could be for.
    Unroutable(RpcError),
}

impl Governance {
    /// Compiles the rules of the config.
    ///
    /// # Errors
    /// Terms of the config that cannot be used.
    pub fn new(config: &Config, books: Books) -> Result<Self, InvalidTerms> {
        let written = &config.governance;
        let toll = |(name, server): (&ServerName, &config::Server)| {
            (name.clone(), Toll::new(name, server))
        };
        let profile = |(name, profile): (&ProfileName, &config::Profile)| {
            (name.clone(), profile.terms.clone())
        };
        let governance = Self {
            style: Style {
                form: written.errors,
                codes: written.error_codes,
            },
            price: written.price,
            charge_errors: written.charge_errors,
            default: written.terms.clone(),
            teams: written.teams.clone(),
            profiles: config.profiles.iter().map(profile).collect(),
            servers: config.servers.iter().map(toll).collect(),
            rules: DashMap::new(),
            limiters: Limiters::default(),
            schemas: DashMap::new(),
            tally: Tally::default(),
            books,
        };
        governance.check(config)?;
        Ok(governance)
    }

    /// Compiles all that the config says once, so that a mistake stops the start and not a call.
    fn check(&self, config: &Config) -> Result<(), InvalidTerms> {
        let profiles = || std::iter::once(None).chain(self.profiles.keys().map(Some));
        for agent in config.agents.values() {
            if let Some(agent) = self.books.directory.named(&agent.name) {
                for profile in profiles() {
                    self.compile(&agent, profile)?;
                }
            }
        }
        if let Some(anonymous) = self.books.directory.current(AgentId::ANONYMOUS) {
            for profile in profiles() {
                self.compile(&anonymous, profile)?;
            }
        }
        for toll in self.servers.values() {
            Screens::new(None, toll.scan.as_ref(), false)?;
        }
        Ok(())
    }

    /// The agents and whose key is whose.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.books.directory
    }

    /// The audit.
    pub fn audit(&self) -> &Arc<Log> {
        &self.books.audit
    }

    /// Records something that is not a call; `actor` is who did it, when somebody did.
    pub fn note(&self, event: EventKind, subject: &str, actor: Option<&str>, detail: Option<&str>) {
        // Kept in order with everything else; nobody waits for it.
        drop(self.books.audit.event(&Event {
            ts: clock::now(),
            event,
            subject: subject.into(),
            actor: actor.map(Into::into),
            detail: detail.map(Into::into),
        }));
    }

    /// What was refused, and what would have been.
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// What calls to `server` were charged since the start, micro-dollars.
    pub fn spent_on(&self, server: &ServerName) -> u64 {
        self.tally.spent_on(server)
    }

    /// Step 1: names a call.
    pub fn open(&self, call: &Call) -> Ticket {
        Ticket::open(call)
    }

    /// Steps 2 and 3: decides whether a call may reach its server.
    ///
    /// # Errors
    /// The refusal, with the call's ticket still open.
    pub async fn admit(&self, routed: Routed, ticket: &mut Ticket) -> Result<Admitted, Refusal> {
        ticket.tool.clone_from(&routed.tool);
        ticket.target = Some(Target {
            server: routed.server.clone(),
            original: routed
                .subject
                .as_ref()
                .map(|subject| Arc::clone(&subject.original)),
        });
        let rules = self.identify(ticket)?;
        let toll = self.servers.get(&routed.server);
        self.authorize(&routed, &rules, ticket)?;
        self.limit(&routed, toll, &rules, ticket)?;
        self.check_arguments(&routed, &rules, ticket)?;
        ticket.screens = rules.screens(&routed.server, toll.and_then(|toll| toll.scan.as_ref()));
        let routed = self.scan_request(routed, ticket).await?;
        if routed.call.method == Method::ToolsCall {
            self.reserve(&routed, toll, &rules, ticket).await?;
            self.open_record(ticket).await?;
        }
        let screens = ticket.screens.clone();
        Ok(Admitted { routed, screens })
    }

    /// Step 2: the agent as it is at present, on a route that it may use.
    fn identify(&self, ticket: &mut Ticket) -> Result<Arc<Rules>, Refusal> {
        let known = self.books.directory.current(ticket.client.agent.id);
        let agent = known
            .filter(|agent| agent.enabled)
            .ok_or(Refusal::AgentDisabled)?;
        ticket.agent = Some(Arc::clone(&agent));
        let profile = profile_of(&ticket.scope);
        if !may_use(&agent, profile) {
            return Err(Refusal::Profile);
        }
        self.rules_of(&agent, profile)
            .map_err(|because| Refusal::Policy { because })
    }

    /// Step 2: the policy.
    fn authorize(
        &self,
        routed: &Routed,
        rules: &Rules,
        ticket: &mut Ticket,
    ) -> Result<(), Refusal> {
        let Some(item) = Item::of_routed(routed).filter(|_| !rules.policy.allows_everything())
        else {
            return Ok(());
        };
        let ruling = rules.policy.decide(&item);
        if ruling.allowed {
            return Ok(());
        }
        let because = ruling.because.to_string();
        self.unless_observed(Refusal::Policy { because }, rules, ticket)
    }

    /// Step 2: the rates.
    fn limit(
        &self,
        routed: &Routed,
        toll: Option<&Toll>,
        rules: &Rules,
        ticket: &mut Ticket,
    ) -> Result<(), Refusal> {
        if routed.call.method == Method::Listen {
            return Ok(());
        }
        let checked = rules.limits.check(&Metered {
            server: &routed.server,
            server_rate: toll.and_then(|toll| toll.rate),
            tool: routed.tool.as_ref().map(|tool| &tool.original),
        });
        match checked {
            Ok(()) => Ok(()),
            Err(limited) => self.unless_observed(Refusal::Rate(limited), rules, ticket),
        }
    }

    /// Step 2: the rules about arguments.
    fn check_arguments(
        &self,
        routed: &Routed,
        rules: &Rules,
        ticket: &mut Ticket,
    ) -> Result<(), Refusal> {
        if rules.arguments.is_empty() || routed.call.method != Method::ToolsCall {
            return Ok(());
        }
        let Some(item) = Item::of_routed(routed) else {
            return Ok(());
        };
        let findings = rules.arguments.check(&item, routed.params.as_ref());
        for rule in findings.observed {
            self.tally.observed(Rule::Args);
            ticket.observed.push(format!("args: {rule}"));
        }
        for rule in findings.refused {
            let rule = rule.to_owned();
            self.unless_observed(Refusal::Argument { rule }, rules, ticket)?;
        }
        Ok(())
    }

    /// Step 2: a look at what the client sends.
    async fn scan_request(
        &self,
        mut routed: Routed,
        ticket: &mut Ticket,
    ) -> Result<Routed, Refusal> {
        let Some(screens) = ticket.screens.clone() else {
            return Ok(routed);
        };
        for part in screen::of_request(&routed.call.method) {
            let Some(params) = &routed.params else { break };
            let Some(span) = part.span(params) else {
                continue;
            };
            let data = params.slice(span.clone());
            let seen = screens.look(part.direction(), &data, None).await;
            self.put_down(&seen, ticket);
            if !seen.blocked.is_empty() {
                return Err(screen::refuse(seen.blocked, true));
            }
            if let Some(masked) = seen.redacted {
                routed.params = Some(screen::with_part(params, span, &masked));
            }
        }
        Ok(routed)
    }

    /// Step 3: holds the price against every budget that applies.
    async fn reserve(
        &self,
        routed: &Routed,
        toll: Option<&Toll>,
        rules: &Rules,
        ticket: &mut Ticket,
    ) -> Result<(), Refusal> {
        ticket.price = self.price_of(routed.tool.as_deref(), toll);
        let Some(budgets) = self
            .books
            .budgets
            .as_ref()
            .filter(|_| ticket.price > Micros::ZERO)
        else {
            return Ok(());
        };
        let of_server = toll.map_or(&[][..], |toll| &toll.budgets);
        let held = if of_server.is_empty() {
            budgets
                .hold(&rules.budgets, ticket.price, clock::now())
                .await
        } else {
            let all = [&rules.budgets, of_server].concat();
            budgets.hold(&all, ticket.price, clock::now()).await
        };
        match held {
            Ok(hold) => {
                ticket.hold(hold);
                Ok(())
            }
            Err(budget::Refusal::Exceeded(exceeded)) => {
                self.unless_observed(Refusal::Budget(exceeded), rules, ticket)
            }
            Err(
                error @ (budget::Refusal::Closed
                | budget::Refusal::Slow { .. }
                | budget::Refusal::Store(_)),
            ) => {
                tracing::error!(invocation = %ticket.id, %error, "a budget cannot be checked");
                Err(Refusal::BudgetUnavailable)
            }
        }
    }

    fn price_of(&self, tool: Option<&Tool>, toll: Option<&Toll>) -> Micros {
        let of_tool = toll
            .zip(tool)
            .and_then(|(toll, tool)| toll.tools.get(&*tool.original));
        let of_server = || toll.and_then(|toll| toll.price);
        of_tool.copied().or_else(of_server).unwrap_or(self.price)
    }

    /// Step 3: opens the call in the audit; it may leave once that is kept.
    async fn open_record(&self, ticket: &mut Ticket) -> Result<(), Refusal> {
        let opened = self.books.audit.opened(&ticket.opening());
        let kept = match opened {
            Ok(kept) => kept.kept().await,
            Err(error) => Err(error),
        };
        kept.map_err(|error| {
            tracing::error!(invocation = %ticket.id, %error, "a call cannot be recorded");
            Refusal::AuditUnavailable
        })
    }

    /// Steps 5 to 7: settles a call with how it ended; what comes back is for its client.
    pub async fn settle(&self, mut ticket: Ticket, ending: Ending) -> Outcome {
        let mut charge = false;
        let (outcome, ended) = match ending {
            Ending::Answered { outcome, revision } => {
                charge = self.charge_errors || !is_error(&outcome);
                self.scan_answer(outcome, revision, &mut ticket).await
            }
            Ending::Failed {
                error,
                delivered,
                reason,
            } => {
                charge = delivered && self.charge_errors;
                let outcome = Err(error.to_raw());
                (outcome, Ended::failed(reason))
            }
            Ending::Refused(refusal) => self.refuse(&refusal, &ticket),
            Ending::Unroutable(error) => {
                let outcome = Err(error.to_raw());
                (outcome, Ended::failed("not_found"))
            }
        };
        self.close(ticket, outcome, ended, charge).await
    }

    /// Step 5: a look at what the server answered.
    async fn scan_answer(
        &self,
        outcome: Outcome,
        revision: Option<&'static str>,
        ticket: &mut Ticket,
    ) -> (Outcome, Ended<'static>) {
        let mut outcome = outcome;
        if let Some(screens) = ticket.screens.clone() {
            let (Ok(body) | Err(body)) = &outcome;
            let schema = ticket.tool.as_ref().and_then(|tool| self.schema_of(tool));
            let direction = screen::of_answer(&ticket.method);
            let seen = screens.look(direction, body, schema).await;
            self.put_down(&seen, ticket);
            if !seen.blocked.is_empty() {
                let mut refused = self.refuse(&screen::refuse(seen.blocked, false), ticket);
                refused.1.server_revision = revision;
                return refused;
            }
            if let Some(masked) = seen.redacted {
                outcome = screen::with_body(&outcome, masked);
            }
        }
        (outcome, Ended::answered(revision))
    }

    /// Puts down what a look has found.
    fn put_down(&self, seen: &Seen, ticket: &mut Ticket) {
        ticket.found.extend(seen.summary());
        if seen.would_block {
            self.tally.observed(Rule::Scan);
            ticket.observed.push("scan".to_owned());
        }
    }

    /// Steps 6 and 7. The record says that a call costs nothing before what it held is released,
    /// since a crash between the two must not give out the same money twice.
    async fn close(
        &self,
        mut ticket: Ticket,
        outcome: Outcome,
        mut ended: Ended<'_>,
        charge: bool,
    ) -> Outcome {
        let hold = ticket.hold.take();
        if !charge {
            ticket.price = Micros::ZERO;
        }
        let (Ok(body) | Err(body)) = &outcome;
        ended.bytes_out = body.as_bytes().len();
        let arguments = self.arguments_for_record(&ticket);
        let record = ticket.record(ended, arguments.as_deref());
        let kept = self.books.audit.record(&record);
        settle_hold(hold, charge);
        if let Some(target) = ticket.target.as_ref().filter(|_| charge) {
            self.tally.spent(&target.server, ticket.price);
        }
        match kept.kept().await {
            Ok(()) => outcome,
            Err(error) => {
                tracing::error!(invocation = %ticket.id, %error, "a record is not kept yet");
                self.refuse(&Refusal::AuditUnavailable, &ticket).0
            }
        }
    }

    fn arguments_for_record(&self, ticket: &Ticket) -> Option<Box<RawValue>> {
        if !self.books.audit.wants_arguments() {
            return None;
        }
        let masked = screen::masked(&ticket.arguments()?)?;
        RawValue::from_string(masked.as_str().to_owned()).ok()
    }

    /// A refusal as the client gets it and as the record has it.
    fn refuse(&self, refusal: &Refusal, ticket: &Ticket) -> (Outcome, Ended<'static>) {
        self.tally.refused(refusal);
        tracing::debug!(invocation = %ticket.id, rule = refusal.rule(), "a call is refused");
        let outcome = refusal.answer(self.style, &ticket.method, ticket.about());
        (outcome, Ended::refused(refusal))
    }

    /// Nothing, where the rule that refuses is only observed.
    fn unless_observed(
        &self,
        refusal: Refusal,
        rules: &Rules,
        ticket: &mut Ticket,
    ) -> Result<(), Refusal> {
        match refusal.row().rule.filter(|rule| rules.observes(*rule)) {
            Some(rule) => {
                self.tally.observed(rule);
                ticket.observed.push(refusal.rule());
                Ok(())
            }
            None => Err(refusal),
        }
    }

    /// What `agent` may see on the route of `scope`.
    pub fn sight(&self, agent: &Agent, scope: &Scope) -> Sight {
        let known = self.books.directory.current(agent.id);
        let Some(agent) = known.filter(|agent| agent.enabled) else {
            return Sight::Nothing;
        };
        let profile = profile_of(scope);
        if !may_use(&agent, profile) {
            return Sight::Nothing;
        }
        match self.rules_of(&agent, profile) {
            Ok(rules) if rules.policy.allows_everything() || rules.observes(Rule::Policy) => {
                Sight::Everything
            }
            Ok(rules) => Sight::Some(Visible(rules)),
            Err(_) => Sight::Nothing,
        }
    }

    /// Says whether `agent` may use `item` on the route of `profile`, and why.
    ///
    /// # Errors
    /// Terms of the agent that cannot be used.
    pub fn explain(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
        item: &Item<'_>,
    ) -> Result<String, InvalidTerms> {
        let rules = self.compile(agent, profile)?;
        let ruling: Ruling<'_> = rules.policy.decide(item);
        Ok(ruling.explain(&agent.name, item))
    }

    /// The compiled rules of an agent on a route; compiled when it is new or has changed.
    fn rules_of(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
    ) -> Result<Arc<Rules>, String> {
        let key = (agent.id, profile.cloned());
        if let Some(known) = self
            .rules
            .get(&key)
            .filter(|known| Arc::ptr_eq(&known.agent, agent))
        {
            return Ok(Arc::clone(&known));
        }
        let rules = self.compile(agent, profile).map_err(|error| {
            tracing::error!(agent = agent.name, %error, "an agent's terms cannot be used");
            format!("the agent's terms cannot be used: {error}")
        })?;
        let rules = Arc::new(rules);
        self.rules.insert(key, Arc::clone(&rules));
        Ok(rules)
    }

    fn compile(
        &self,
        agent: &Arc<Agent>,
        profile: Option<&ProfileName>,
    ) -> Result<Rules, InvalidTerms> {
        let layers = Layers {
            agent: &agent.terms,
            profile: profile.and_then(|name| self.profiles.get(name)),
            default: &self.default,
        };
        let team = agent.team.as_ref().and_then(|team| self.teams.get(team));
        Rules::new(
            Arc::clone(agent),
            layers,
            team.map(Vec::as_slice),
            &self.limiters,
        )
    }

    fn schema_of(&self, tool: &Arc<Tool>) -> Option<Arc<OutputSchema>> {
        let key = (tool.server.clone(), Arc::clone(&tool.original));
        let this = Arc::downgrade(tool);
        if let Some(known) = self
            .schemas
            .get(&key)
            .filter(|known| known.of.ptr_eq(&this))
        {
            return known.compiled.clone();
        }
        let schema = tool.source.get("outputSchema");
        let compiled = schema
            .and_then(|schema| OutputSchema::compile(schema.as_bytes()).ok())
            .map(Arc::new);
        let known = Schema {
            of: this,
            compiled: compiled.clone(),
        };
        self.schemas.insert(key, known);
        compiled
    }
}

impl Toll {
    fn new(name: &ServerName, server: &config::Server) -> Self {
        let budget = |budget: &Budget| Applied::new(Subject::server(name), *budget);
        Self {
            price: server.price,
            tools: server
                .tools
                .price
                .iter()
                .map(|(tool, price)| (tool.clone(), *price))
                .collect(),
            rate: server.rate,
            scan: server.scan.clone(),
            budgets: server.budget.iter().map(budget).collect(),
        }
    }
}

fn profile_of(scope: &Scope) -> Option<&ProfileName> {
    match scope {
        Scope::Profile(profile) => Some(profile),
        Scope::All | Scope::Server(_) => None,
    }
}

fn may_use(agent: &Agent, profile: Option<&ProfileName>) -> bool {
    let limited = agent.profiles.as_ref().zip(profile);
    limited.is_none_or(|(allowed, profile)| allowed.contains(profile))
}

/// Step 6.
fn settle_hold(hold: Option<Hold>, charge: bool) {
    match hold {
        Some(hold) if charge => hold.settle(),
        Some(hold) => hold.release(),
        None => {}
    }
}

/// Whether an answer says that the tool failed.
fn is_error(outcome: &Outcome) -> bool {
    let says_so = |result: &Raw| {
        result
            .get("isError")
            .is_some_and(|flag| flag.as_str() == "true")
    };
    match outcome {
        Ok(result) => says_so(result),
        Err(_) => true,
    }
}
