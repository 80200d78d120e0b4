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

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use dashmap::DashMap;

use crate::{
    audit::{AuditEvent, AuditLog, EventKind},
    auth::{Agent, AgentDirectory},
    catalog::{Catalog, Tool},
    clock,
    config::{Config, RuleKind},
    mcp::{Method, Outcome, Raw, RpcError},
    money::Micros,
    names::{InvocationId, ProfileName, Scope, ServerName},
    router::Routed,
    scan::OutputSchema,
    session::Call,
    store::TaskOwners,
    task::run_blocking_if_large,
};
use auth_failures::AuthFailureLog;
use budget::Budgets;
use call_context::{CallTarget, RecordedOutcome};
use concurrency::Concurrency;
use counters::Counters;
use policy_set::ServerRules;
use questions::QuestionMeter;
use rate::{Limiters, RateTarget as Metered};
use refusal_meter::RefusalMeter;
use rules::{AgentRules, ToolDecisions};
use scanning::ScanReport;
use validate::{Inputs, Validation, ValidationVerdict, is_same};

pub mod arguments;
mod auth_failures;
pub mod budget;
mod call_context;
mod checks;
pub mod concurrency;
mod counters;
mod explain;
mod number;
pub mod policy;
mod policy_set;
mod questions;
pub mod rate;
pub mod refusal;
mod refusal_meter;
mod rules;
pub mod scanning;
mod settle;
mod state;
mod state_field;
mod tasks;
pub mod validate;
mod visibility;

pub use arguments::ArgumentTest;
pub use call_context::CallContext;
pub use counters::RefusalCounts;
pub use explain::{Explanation, ToldRule};
pub use policy_set::PolicySet;
pub use questions::{QuestionEnd, QuestionFacts};
pub use refusal::{REFUSALS, Refusal};
pub use rules::InvalidTerms;
pub use scanning::CallScanners;
pub(crate) use scanning::masked_name;
pub use settle::{CallOutcome, ServerAnswer};
pub use state::Seal;
pub use state_field::InvalidState;
pub use state_field::STATE_USES_MAX;
pub use visibility::{Blind, Visibility, Visible};

/// What governance keeps its books in.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The agents.
    pub directory: Arc<AgentDirectory>,
    /// The audit; it may be switched off.
    pub audit: Arc<AuditLog>,
    /// The budgets; `None` without a store, when no price can be charged.
    pub budgets: Option<Arc<Budgets>>,
    /// What the states of servers are sealed with.
    pub seal: Seal,
    /// Whose tasks of servers are; `None` without a store, when agents have no keys.
    pub tasks: Option<Arc<dyn TaskOwners>>,
}

/// The rules in force.
#[derive(Debug)]
pub struct Governance {
    books: Storage,
    law: ArcSwap<PolicySet>,
    limiters: Limiters,
    concurrency: Concurrency,
    /// Of tools, by their original names, as far as results had to heed them.
    schemas: DashMap<(ServerName, Arc<str>), OutputSchema>,
    tally: Counters,
    strangers: AuthFailureLog,
    refusals: RefusalMeter,
    questions: QuestionMeter,
}

/// A call that may reach its server.
#[derive(Debug)]
pub struct Admitted {
    invocation: InvocationId,
    routed: Box<Routed>,
    screens: Option<CallScanners>,
}

impl Admitted {
    /// Names the call in errors, logs and the audit.
    pub fn invocation(&self) -> InvocationId {
        self.invocation
    }

    /// The call and its target.
    pub fn routed(&self) -> &Routed {
        &self.routed
    }

    /// What notifications on their way to the client are looked at with. None of a listen stream, which
    /// outlives these rules: whoever holds it looks at each by those of the moment
    /// ([`Governance::screens`]).
    pub fn screens(&self) -> Option<&CallScanners> {
        self.screens.as_ref()
    }
}

impl Governance {
    /// Compiles the rules of the config.
    ///
    /// # Errors
    /// Terms of the config that cannot be used.
    pub fn new(config: &Config, books: Storage) -> Result<Self, InvalidTerms> {
        Ok(Self {
            law: ArcSwap::from_pointee(PolicySet::new(config)?),
            limiters: Limiters::default(),
            concurrency: Concurrency::default(),
            schemas: DashMap::new(),
            tally: Counters::default(),
            strangers: AuthFailureLog::default(),
            refusals: RefusalMeter::default(),
            questions: QuestionMeter::default(),
            books,
        })
    }

    /// Says which of `agents` have terms that cannot be used, so that they may do nothing. It may take long.
    pub fn warn_of_unusable(&self, agents: &[Arc<Agent>]) {
        let law = self.law.load();
        for agent in agents {
            if let Err(error) = law.validate(agent) {
                policy_set::log_invalid(agent, &error);
            }
        }
    }

    /// Lets other rules hold for every call that is admitted from now on. What was counted and spent
    /// stays so.
    pub fn enforce(&self, mut law: PolicySet) {
        law.succeed(&self.law.load());
        self.law.store(Arc::new(law));
    }

    /// The agents and whose key is whose.
    pub fn directory(&self) -> &Arc<AgentDirectory> {
        &self.books.directory
    }

    /// The audit.
    pub fn audit(&self) -> &Arc<AuditLog> {
        &self.books.audit
    }

    /// The budgets; `None` without a store.
    pub fn budgets(&self) -> Option<&Budgets> {
        self.books.budgets.as_deref()
    }

    /// Records something that is not a call; `actor` is who did it, when somebody did.
    pub fn note(&self, event: EventKind, subject: &str, actor: Option<&str>, detail: Option<&str>) {
        // Kept in order with everything else; nobody waits for it.
        drop(self.books.audit.event(&AuditEvent {
            ts: clock::now(),
            event,
            subject: subject.into(),
            actor: actor.map(Into::into),
            detail: detail.map(Into::into),
        }));
    }

    /// What was refused, and what would have been.
    pub fn counts(&self) -> RefusalCounts {
        self.tally.counts()
    }

    /// What the check of arguments of `server` did; `None` where nothing checks them.
    pub fn validation(&self, server: &ServerName) -> Option<Validation> {
        let law = self.law.load();
        law.server_rules(server)?.inputs.validation()
    }

    /// Forgets what was compiled for tools that `catalog` no longer has, or has otherwise, and for agents
    /// that are gone.
    pub fn forget_unlisted(&self, catalog: &Catalog) {
        let law = self.law.load();
        law.forget_unlisted(|agent| self.directory().still_knows(agent));
        if self.schemas.is_empty()
            && !law
                .all_server_rules()
                .any(|(_, toll)| toll.inputs.keeps_schemas())
        {
            return;
        }
        let tools = catalog.tools();
        let listed: HashMap<(&ServerName, &str), &Arc<Tool>> = tools
            .map(|tool| ((&tool.server, &*tool.original), tool))
            .collect();
        self.schemas.retain(|(server, tool), known| {
            let tool = listed.get(&(server, &**tool));
            let source = tool.and_then(|tool| tool.source.get("outputSchema"));
            source.is_some_and(|source| is_same(known.source(), &source))
        });
        for (server, toll) in law.all_server_rules() {
            let tool = |name: &str| listed.get(&(server, name)).copied();
            toll.inputs.forget_unlisted(tool);
        }
    }

    /// What calls to `server` were charged since the start, micro-dollars.
    pub fn spent_on(&self, server: &ServerName) -> u64 {
        self.tally.spent_on(server)
    }

    /// Before step 1: how long a request is held back since its agent was refused too often; it is counted,
    /// and becomes no invocation.
    pub fn held_back(&self, call: &Call) -> Option<Duration> {
        let rate = self.law.load().refusals;
        let held = self
            .refusals
            .hold_back(&call.client.agent, call.address, rate);
        if held.is_some() {
            self.tally.held_back();
        }
        held
    }

    /// What such a request is answered.
    pub fn holding_back(&self, call: &Call, wait: Duration) -> RpcError {
        refusal::held_back(self.law.load().style.codes, call.client.agent.id, wait)
    }

    /// Step 1: names a call.
    /// In a box, since what holds it is moved from step to step.
    pub fn open(&self, call: &Call) -> Box<CallContext> {
        Box::new(CallContext::open(call))
    }

    /// Lets a call wait for `server`, of which it is not known yet whether it has what is called: it
    /// counts among those of its agent meanwhile. Whether it may reach the server is decided by
    /// [`Governance::admit`], once that is known.
    ///
    /// # Errors
    /// The refusal, with the call's ticket still open.
    pub fn let_wait(&self, server: &ServerName, ticket: &mut CallContext) -> Result<(), Refusal> {
        ticket.target = Some(CallTarget {
            server: server.clone(),
            original: None,
        });
        let law = self.law.load_full();
        self.identify(&law, ticket)?;
        self.seat(&law, ticket)
    }

    /// Steps 2 and 3: decides whether a call may reach its server.
    ///
    /// # Errors
    /// The refusal, with the call's ticket still open.
    pub async fn admit(
        &self,
        mut routed: Box<Routed>,
        ticket: &mut CallContext,
    ) -> Result<Admitted, Refusal> {
        ticket.goes_to(&routed);
        let law = self.law.load_full();
        let rules = self.identify(&law, ticket)?;
        let Some(toll) = law.server_rules(&routed.server) else {
            // The config has just lost it: nothing says any more what holds for its calls.
            let because = "the config no longer has the server".to_owned();
            return Err(Refusal::Policy { because });
        };
        let of_tool = routed.tool.as_ref().map(|tool| rules.of_tool(tool));
        self.authorize(&routed, &rules, of_tool.as_deref(), ticket)?;
        self.seat(&law, ticket)?;
        self.limit(&routed, toll, &rules, ticket)?;
        self.check_task(&routed, &law, ticket).await?;
        if let Some(params) = state::brought(&routed, ticket) {
            let opened = Box::pin(self.books.seal.opened(params, ticket)).await;
            routed.params = opened.map_err(Refusal::State)?.or(routed.params);
        }
        if let Some(of_tool) = of_tool.as_ref().filter(|it| !it.arguments.is_empty()) {
            // In a box: few tools have such rules.
            let checked = self.check_arguments(&routed, &rules, of_tool, ticket);
            Box::pin(checked).await?;
        }
        let has_rules = of_tool.as_ref().is_some_and(|it| it.holds_arguments);
        if toll.inputs.are_checked(has_rules) {
            Box::pin(validated(&toll.inputs, &routed, has_rules, ticket)).await?;
        }
        let screens = rules.screens(toll, law.style.codes);
        ticket.screens = screens.map(CallScanners::of_call);
        let is_stream = routed.call.method == Method::Listen;
        if is_stream && ticket.screens.is_none() {
            // There may be something to note by the rules of later.
            ticket.screens = Some(CallScanners::idle(law.style.codes).of_call());
        }
        if let Some(screens) = ticket.screens.clone() {
            // In a box: most calls are not looked at, and hold no room for it.
            Box::pin(self.scan_request(&mut routed, &screens, ticket)).await?;
        }
        if routed.call.method == Method::ToolsCall {
            ticket.price = law.price_of(routed.tool.as_deref(), toll);
            if let Some(of_tool) = &of_tool {
                self.reserve(toll, &rules, of_tool, ticket).await?;
            }
            self.open_record(ticket).await?;
        }
        let screens = ticket.screens.clone().filter(|_| !is_stream);
        Ok(Admitted {
            invocation: ticket.id,
            routed,
            screens,
        })
    }

    /// Step 2: the agent as it is at present, on a route that it may use.
    fn identify(
        &self,
        law: &PolicySet,
        ticket: &mut CallContext,
    ) -> Result<Arc<AgentRules>, Refusal> {
        let known = self.books.directory.current(ticket.client.agent.id);
        let agent = known
            .filter(|agent| agent.enabled)
            .ok_or(Refusal::AgentDisabled)?;
        ticket.agent = Some(Arc::clone(&agent));
        let profile = profile_of(&ticket.scope);
        if !may_use(&agent, profile) {
            return Err(Refusal::Profile);
        }
        law.rules_of(&agent, profile, &self.limiters)
            .map_err(|because| Refusal::Policy { because })
    }

    /// Step 2: the policy.
    fn authorize(
        &self,
        routed: &Routed,
        rules: &AgentRules,
        of_tool: Option<&ToolDecisions>,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        if of_tool.is_some_and(|tool| tool.allowed) {
            return Ok(());
        }
        match rules.policy.objection(routed) {
            Some(reason) => {
                let because = reason.to_string();
                self.unless_observed(Refusal::Policy { because }, rules, ticket)
            }
            None => Ok(()),
        }
    }

    /// Step 2: how much at once.
    fn seat(&self, law: &PolicySet, ticket: &mut CallContext) -> Result<(), Refusal> {
        // Who had to wait has one.
        if ticket.method != Method::Listen && ticket.seat.is_none() {
            let limit = law.in_flight_per_agent;
            let seat = self.concurrency.enter(ticket.agent().id, limit);
            ticket.seat = seat.map_err(Refusal::Concurrency)?;
        }
        Ok(())
    }

    /// Step 2: how often.
    fn limit(
        &self,
        routed: &Routed,
        toll: &ServerRules,
        rules: &AgentRules,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        if routed.call.method == Method::Listen {
            return Ok(());
        }
        let checked = rules.limits.check(&Metered {
            server: &routed.server,
            server_rate: toll.rate,
            tool: routed.tool.as_ref().map(|tool| &tool.original),
        });
        match checked {
            Ok(()) => Ok(()),
            Err(limited) => self.unless_observed(Refusal::Rate(limited), rules, ticket),
        }
    }

    /// Step 2: the rules about arguments.
    async fn check_arguments(
        &self,
        routed: &Routed,
        rules: &Arc<AgentRules>,
        of_tool: &Arc<ToolDecisions>,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        if routed.call.method != Method::ToolsCall {
            return Ok(());
        }
        let params = routed.params.clone();
        let bytes = params.as_ref().map_or(0, |params| params.as_bytes().len());
        let (by, about) = (Arc::clone(rules), Arc::clone(of_tool));
        let check = move || by.arguments.check(&about.arguments, params.as_ref());
        let findings = run_blocking_if_large(bytes, check).await;
        for rule in findings.observed {
            self.tally.observed(RuleKind::Args);
            ticket.observed.push(format!("args: {rule}"));
        }
        for rule in findings.refused {
            self.unless_observed(Refusal::Argument { rule }, rules, ticket)?;
        }
        Ok(())
    }

    /// Step 2: a look at what the client sends.
    async fn scan_request(
        &self,
        routed: &mut Routed,
        screens: &CallScanners,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        let Some(params) = &routed.params else {
            return Ok(());
        };
        let mut masked = Vec::new();
        for (direction, span) in scanning::of_request(&routed.call.method, params) {
            let data = params.slice(span.clone());
            let seen = screens.scan(direction, &data, || None).await;
            self.put_down(&seen, ticket);
            let classes = seen.blocked;
            if !classes.is_empty() {
                return Err(Refusal::PiiInParams { classes });
            }
            masked.extend(seen.redacted.map(|part| (span, part)));
        }
        if !masked.is_empty() {
            routed.params = Some(scanning::with_parts(params, masked));
        }
        Ok(())
    }

    /// Step 3: holds the price against every budget that applies.
    async fn reserve(
        &self,
        toll: &ServerRules,
        rules: &AgentRules,
        of_tool: &ToolDecisions,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        let Some(budgets) = self
            .books
            .budgets
            .as_ref()
            .filter(|_| ticket.price > Micros::ZERO)
        else {
            return Ok(());
        };
        let purses = of_tool
            .purses
            .get_or_init(|| budgets.purses(&[&*rules.budgets, &toll.budgets].concat()));
        let held = budgets.hold_from(purses, ticket.price, clock::now());
        match held.await {
            Ok(hold) => {
                ticket.hold = Some(hold);
                Ok(())
            }
            Err(budget::BudgetRefusal::Exceeded(exceeded)) => {
                self.unless_observed(Refusal::Budget(exceeded), rules, ticket)
            }
            Err(
                error @ (budget::BudgetRefusal::Closed
                | budget::BudgetRefusal::Slow { .. }
                | budget::BudgetRefusal::Store(_)),
            ) => {
                tracing::error!(invocation = %ticket.id, %error, "a budget cannot be checked");
                Err(Refusal::BudgetUnavailable)
            }
        }
    }

    /// Step 3: opens the call in the audit; it may leave once that is kept.
    async fn open_record(&self, ticket: &CallContext) -> Result<(), Refusal> {
        if self.books.audit.chain().is_none() {
            return Ok(());
        }
        let kept = self.books.audit.opened(&ticket.opening());
        kept.kept().await.map_err(|error| {
            // That the log cannot be written is said once; the line of each call says that it was refused
            // for that.
            tracing::debug!(invocation = %ticket.id, %error, "a call cannot be recorded");
            Refusal::AuditUnavailable
        })
    }

    /// Puts down what a look has found.
    fn put_down(&self, seen: &ScanReport, ticket: &mut CallContext) {
        ticket.found.extend(seen.summary());
        if seen.would_block {
            self.tally.observed(RuleKind::Scan);
            ticket.observed.push("scan".to_owned());
        }
    }

    /// A refusal as the client gets it and as the record has it.
    fn refuse(&self, refusal: &Refusal, ticket: &CallContext) -> (Outcome, RecordedOutcome) {
        let outcome = refusal.answer(self.law.load().style, &ticket.method, ticket.about());
        (
            outcome,
            RecordedOutcome::refused(refusal, &ticket.agent().name),
        )
    }

    /// What is said to who was shown out while a request was under way.
    pub fn shown_out(&self) -> Raw {
        Refusal::AgentDisabled.error(self.law.load().style).to_raw()
    }

    /// Nothing, where the rule that refuses is only observed.
    fn unless_observed(
        &self,
        refusal: Refusal,
        rules: &AgentRules,
        ticket: &mut CallContext,
    ) -> Result<(), Refusal> {
        match refusal.row().rule.filter(|rule| rules.observes(*rule)) {
            Some(rule) => {
                self.tally.observed(rule);
                let rule = refusal.rule(&ticket.agent().name);
                ticket.observed.push(rule);
                Ok(())
            }
            None => Err(refusal),
        }
    }

    /// What `agent` may see on the route of `scope`.
    pub fn sight(&self, agent: &Agent, scope: &Scope) -> Visibility {
        let known = self.books.directory.current(agent.id);
        let Some(agent) = known.filter(|agent| agent.enabled) else {
            return Visibility::Nothing(Blind::Disabled);
        };
        let profile = profile_of(scope);
        let law = self.law.load();
        if !may_use(&agent, profile) {
            let mut profiles = agent.profiles.clone().unwrap_or_default();
            profiles.retain(|name| law.has_profile(name));
            return Visibility::Nothing(Blind::Elsewhere(profiles));
        }
        match law.rules_of(&agent, profile, &self.limiters) {
            Ok(rules) if rules.policy.allows_everything() || rules.observes(RuleKind::Policy) => {
                Visibility::Everything
            }
            Ok(rules) => Visibility::Some(Visible {
                rules: Some(rules),
                apart: Arc::default(),
            }),
            Err(_) => Visibility::Nothing(Blind::Terms),
        }
    }

    /// What passes outside of any call between `server` and the client of `agent` is looked at with, by
    /// the rules of this moment; `None` where nothing is looked for. Where there are none for the two,
    /// nothing passes.
    pub fn screens(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
    ) -> Option<CallScanners> {
        let law = self.law.load();
        let known = self.books.directory.current(agent.id);
        let profile = profile_of(scope);
        let known = known.filter(|agent| agent.enabled && may_use(agent, profile));
        let rules = known.and_then(|agent| law.rules_of(&agent, profile, &self.limiters).ok());
        match (rules, law.server_rules(server)) {
            (Some(rules), Some(toll)) => rules.screens(toll, law.style.codes),
            (None, _) | (_, None) => Some(CallScanners::shut(law.style.codes)),
        }
    }

    /// The params of what the client of `agent` tells `server` outside of any call, as the server may
    /// see them; `None` when they must not pass.
    pub fn told(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
        params: Raw,
    ) -> Option<Raw> {
        match self.screens(agent, scope, server) {
            Some(screens) => screens.told(params),
            None => Some(params),
        }
    }
}

fn profile_of(scope: &Scope) -> Option<&ProfileName> {
    match scope {
        Scope::Profile(profile) => Some(profile),
        Scope::All | Scope::Server(_) => None,
    }
}

/// An agent with profiles of its own may use their routes and no other: what they do not show must
/// not be had beside them.
fn may_use(agent: &Agent, profile: Option<&ProfileName>) -> bool {
    let Some(allowed) = &agent.profiles else {
        return true;
    };
    profile.is_some_and(|profile| allowed.contains(profile))
}

/// Step 2: the arguments against the input schema of their tool.
async fn validated(
    inputs: &Inputs,
    routed: &Routed,
    has_rules: bool,
    ticket: &mut CallContext,
) -> Result<(), Refusal> {
    match inputs.check(routed, has_rules).await {
        ValidationVerdict::Fits => Ok(()),
        ValidationVerdict::Refused(faults) => Err(Refusal::Invalid { faults }),
        ValidationVerdict::Reported(faults) => {
            let rule = Refusal::Invalid { faults }.rule(&ticket.agent().name);
            ticket.observed.push(rule);
            Ok(())
        }
    }
}
