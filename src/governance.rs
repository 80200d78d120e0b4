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
//! [`Governance::visibility`], which decides by the same rules as `admit`: what is listed may be called.

use std::{collections::HashMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use dashmap::DashMap;

use crate::{
    audit::{AuditEvent, AuditLog, ChangedValues, Durable, EventKind},
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
use agent_rules::{AgentRules, ToolDecisions};
use auth_failures::AuthFailureLog;
use budget::Budgets;
use call_context::{CallTarget, RecordedOutcome};
use concurrency::Concurrency;
use counters::Counters;
use input_validation::{InputValidator, Validation, ValidationVerdict, is_same};
use policy_set::ServerRules;
use question_audit::QuestionMeter;
pub use rate_limits::RateStatus;
use rate_limits::{Limiters, RateTarget as Metered};
use refusal_meter::RefusalMeter;
use scanning::ScanReport;

mod agent_rules;
pub mod arguments;
mod auth_failures;
pub mod budget;
mod budget_list;
mod call_context;
pub mod concurrency;
mod counters;
mod decimal;
mod explain;
pub mod input_validation;
pub mod policy;
mod policy_set;
mod question_audit;
pub mod rate_limits;
pub mod refusal;
mod refusal_meter;
mod request_state;
pub mod scanning;
mod server_checks;
mod settle;
mod state_field;
mod tasks;
mod visibility;

pub use agent_rules::InvalidTerms;
pub use arguments::ArgumentTest;
pub use budget_list::{ListedBudget, ShownBudget};
pub use call_context::CallContext;
pub use counters::{CallTotals, CallUsage, RefusalCounts};
pub use explain::{Explanation, ItemQuery, PolicyQuestion, PolicySubject, check_vendor_method};
pub use policy_set::PolicySet;
pub use question_audit::{QuestionEnd, QuestionFacts};
pub use refusal::{REFUSALS, Refusal};
pub use request_state::Seal;
pub use scanning::CallScanners;
pub(crate) use scanning::redact_name;
pub use settle::{CallOutcome, ServerAnswer};
pub use state_field::InvalidState;
pub use state_field::STATE_USES_MAX;
pub use visibility::{HiddenReason, Visibility, VisibleItems};

/// Where governance stores what it knows.
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
    storage: Storage,
    policy_set: ArcSwap<PolicySet>,
    limiters: Limiters,
    concurrency: Concurrency,
    /// Of tools, by their original names, as far as results had to heed them.
    schemas: DashMap<(ServerName, Arc<str>), OutputSchema>,
    counters: Counters,
    auth_failures: AuthFailureLog,
    refusals: RefusalMeter,
    questions: QuestionMeter,
}

/// A call that may reach its server.
#[derive(Debug)]
pub struct Admitted {
    invocation: InvocationId,
    routed: Box<Routed>,
    scanners: Option<CallScanners>,
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
    /// ([`Governance::scanners_for`]).
    pub fn scanners(&self) -> Option<&CallScanners> {
        self.scanners.as_ref()
    }
}

impl Governance {
    /// Compiles the rules of the config.
    ///
    /// # Errors
    /// Terms of the config that cannot be used.
    pub fn new(config: &Config, storage: Storage) -> Result<Self, InvalidTerms> {
        Ok(Self {
            policy_set: ArcSwap::from_pointee(PolicySet::new(config)?),
            limiters: Limiters::default(),
            concurrency: Concurrency::default(),
            schemas: DashMap::new(),
            counters: Counters::default(),
            auth_failures: AuthFailureLog::default(),
            refusals: RefusalMeter::default(),
            questions: QuestionMeter::default(),
            storage,
        })
    }

    /// Says which of `agents` have terms that cannot be used, so that they may do nothing. It may take long.
    pub fn warn_invalid_agents(&self, agents: &[Arc<Agent>]) {
        let policies = self.policy_set.load();
        for agent in agents {
            if let Err(error) = policies.validate(agent) {
                policy_set::log_invalid(agent, &error);
            }
        }
    }

    /// Lets other rules hold for every call that is admitted from now on. What was counted and spent
    /// stays so.
    pub fn set_policies(&self, mut policies: PolicySet) {
        policies.inherit_from(&self.policy_set.load());
        self.policy_set.store(Arc::new(policies));
    }

    /// The agents and whose key is whose.
    pub fn directory(&self) -> &Arc<AgentDirectory> {
        &self.storage.directory
    }

    /// The audit.
    pub fn audit(&self) -> &Arc<AuditLog> {
        &self.storage.audit
    }

    /// The budgets; `None` without a store.
    pub fn budgets(&self) -> Option<&Budgets> {
        self.storage.budgets.as_deref()
    }

    /// Whether the profile `name` has rules of its own: what it shows besides would be under them, and not under those
    /// that hold elsewhere.
    pub fn has_profile_terms(&self, name: &ProfileName) -> bool {
        self.policy_set.load().has_terms(name)
    }

    /// Records something that is not a call; `actor` is who did it, when somebody did.
    pub fn record_event(
        &self,
        event: EventKind,
        subject: &str,
        actor: Option<&str>,
        detail: Option<&str>,
    ) {
        // Kept in order with everything else; nobody waits for it.
        drop(self.storage.audit.record_event(&AuditEvent {
            ts: clock::now(),
            event,
            subject: subject.into(),
            actor: actor.map(Into::into),
            detail: detail.map(Into::into),
            changes: ChangedValues::default(),
        }));
    }

    /// Records what somebody, `actor`, changed; who may not go on before it is kept waits for that.
    pub fn record_change(
        &self,
        event: EventKind,
        subject: &str,
        (actor, detail): (&str, &str),
        changes: ChangedValues,
    ) -> Durable {
        self.storage.audit.record_event(&AuditEvent {
            ts: clock::now(),
            event,
            subject: subject.into(),
            actor: Some(actor.into()),
            detail: Some(detail.into()),
            changes,
        })
    }

    /// What was refused, and what would have been.
    pub fn counts(&self) -> RefusalCounts {
        self.counters.counts()
    }

    /// What the check of arguments of `server` did; `None` where nothing checks them.
    pub fn validation(&self, server: &ServerName) -> Option<Validation> {
        let policies = self.policy_set.load();
        policies.server_rules(server)?.inputs.validation()
    }

    /// Forgets what was compiled for tools that `catalog` no longer has, or has otherwise, and for agents
    /// that are gone.
    pub fn forget_unlisted(&self, catalogs: &[Arc<Catalog>]) {
        let policies = self.policy_set.load();
        policies.forget_unlisted(|agent| self.directory().is_still_authorized(agent));
        if self.schemas.is_empty()
            && !policies
                .all_server_rules()
                .any(|(_, server_rules)| server_rules.inputs.keeps_schemas())
        {
            return;
        }
        let tools = catalogs.iter().flat_map(|catalog| catalog.tools());
        let listed: HashMap<(&ServerName, &str), &Arc<Tool>> = tools
            .map(|tool| ((&tool.server, &*tool.original), tool))
            .collect();
        self.schemas.retain(|(server, tool), known| {
            let tool = listed.get(&(server, &**tool));
            let source = tool.and_then(|tool| tool.source.get("outputSchema"));
            source.is_some_and(|source| is_same(known.source(), &source))
        });
        for (server, server_rules) in policies.all_server_rules() {
            let tool = |name: &str| listed.get(&(server, name)).copied();
            server_rules.inputs.forget_unlisted(tool);
        }
    }

    /// How calls ended since the start, and what they cost.
    pub fn call_usage(&self) -> CallUsage {
        self.counters.usage()
    }

    /// The rate limits that count the calls of `agent` on the merged route, and what is left of them.
    ///
    /// # Errors
    /// Its terms cannot be used, so that nothing is let through.
    pub fn rate_statuses(&self, agent: &Arc<Agent>) -> Result<Vec<RateStatus>, InvalidTerms> {
        let policies = self.policy_set.load();
        let rules = policies.compile(agent, None, &self.limiters)?;
        let rate_of = |server: &ServerName| policies.server_rules(server)?.rate;
        Ok(rules.limits.statuses(rate_of))
    }

    /// Before step 1: how long a request is held back since its agent was refused too often; it is counted,
    /// and becomes no invocation.
    pub fn refusal_backoff(&self, call: &Call) -> Option<Duration> {
        let rate = self.policy_set.load().refusal_rate;
        let held = self
            .refusals
            .hold_back(&call.client.agent, call.address, rate);
        if held.is_some() {
            self.counters.count_held_back();
        }
        held
    }

    /// What such a request is answered.
    pub fn held_back_error(&self, call: &Call, wait: Duration) -> RpcError {
        refusal::held_back_error(
            self.policy_set.load().refusal_style.codes,
            call.client.agent.id,
            wait,
        )
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
    pub fn admit_wait(
        &self,
        server: &ServerName,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        context.target = Some(CallTarget {
            server: server.clone(),
            original: None,
        });
        let policies = self.policy_set.load_full();
        self.identify(&policies, context)?;
        self.acquire_concurrency(&policies, context)
    }

    /// Steps 2 and 3: decides whether a call may reach its server.
    ///
    /// # Errors
    /// The refusal, with the call's ticket still open.
    pub async fn admit(
        &self,
        mut routed: Box<Routed>,
        context: &mut CallContext,
    ) -> Result<Admitted, Refusal> {
        context.set_target(&routed);
        let policies = self.policy_set.load_full();
        let rules = self.identify(&policies, context)?;
        let Some(server_rules) = policies.server_rules(&routed.server) else {
            // The config has just lost it: nothing says any more what holds for its calls.
            let because = "the server was removed from the config".to_owned();
            return Err(Refusal::Policy { because });
        };
        // No catalog of the agent has it: routing does not lead here.
        if routed.server.is_owned() && !rules.agent.sees_servers_of(&routed.server.owner()) {
            let because = "the server belongs to another workspace or agent".to_owned();
            return Err(Refusal::Policy { because });
        }
        let of_tool = routed.tool.as_ref().map(|tool| rules.tool_decisions(tool));
        self.authorize(&routed, &rules, of_tool.as_deref(), context)?;
        // After the policy: what that does not allow, no scope allows.
        if let Some(needed) = &context.client.missing_scopes {
            return Err(Refusal::InsufficientScope(Arc::clone(needed)));
        }
        self.acquire_concurrency(&policies, context)?;
        self.check_rate(&routed, server_rules, &rules, context)?;
        self.check_task(&routed, &policies, context).await?;
        if let Some(params) = request_state::returned_state_params(&routed, context) {
            let opened = Box::pin(self.storage.seal.unseal_params(params, context)).await;
            routed.params = opened.map_err(Refusal::State)?.or(routed.params);
        }
        if let Some(of_tool) = of_tool.as_ref().filter(|it| !it.arguments.is_empty()) {
            // In a box: few tools have such rules.
            let checked = self.check_arguments(&routed, &rules, of_tool, context);
            Box::pin(checked).await?;
        }
        let has_rules = of_tool
            .as_ref()
            .is_some_and(|it| it.enforces_argument_rules);
        if server_rules.inputs.is_enabled_for(has_rules) {
            Box::pin(validate_arguments(
                &server_rules.inputs,
                &routed,
                has_rules,
                context,
            ))
            .await?;
        }
        let screens = rules.scanners_for(server_rules, policies.refusal_style.codes);
        context.scanners = screens.map(CallScanners::for_call);
        let is_stream = routed.call.method == Method::Listen;
        if is_stream && context.scanners.is_none() {
            // There may be something to note by the rules of later.
            context.scanners =
                Some(CallScanners::pass_all(policies.refusal_style.codes).for_call());
        }
        if let Some(screens) = context.scanners.clone() {
            // In a box: most calls are not looked at, and hold no room for it.
            Box::pin(self.scan_request(&mut routed, &screens, context)).await?;
        }
        if routed.call.method == Method::ToolsCall {
            context.price = policies.price_of(routed.tool.as_deref(), server_rules);
            if let Some(of_tool) = &of_tool {
                self.reserve(server_rules, &rules, of_tool, context).await?;
            }
            self.open_record(context).await?;
        }
        let screens = context.scanners.clone().filter(|_| !is_stream);
        Ok(Admitted {
            invocation: context.id,
            routed,
            scanners: screens,
        })
    }

    /// Step 2: the agent as it is at present, on a route that it may use.
    fn identify(
        &self,
        policies: &PolicySet,
        context: &mut CallContext,
    ) -> Result<Arc<AgentRules>, Refusal> {
        let known = self.storage.directory.current(context.client.agent.id);
        let agent = known
            .filter(|agent| agent.enabled)
            .ok_or(Refusal::AgentDisabled)?;
        context.agent = Some(Arc::clone(&agent));
        let profile = context.scope.profile();
        if !may_use_route(&agent, profile) {
            return Err(Refusal::Profile);
        }
        policies
            .rules_of(&agent, profile, &self.limiters)
            .map_err(|because| Refusal::Policy { because })
    }

    /// Step 2: the policy.
    fn authorize(
        &self,
        routed: &Routed,
        rules: &AgentRules,
        of_tool: Option<&ToolDecisions>,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        if of_tool.is_some_and(|tool| tool.allowed) {
            return Ok(());
        }
        match rules.policy.denial(routed) {
            Some(reason) => {
                let because = reason.to_string();
                self.enforce_or_observe(Refusal::Policy { because }, rules, context)
            }
            None => Ok(()),
        }
    }

    /// Step 2: how much at once.
    fn acquire_concurrency(
        &self,
        policies: &PolicySet,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        // Who had to wait has one.
        if context.method != Method::Listen && context.concurrency_permit.is_none() {
            let limit = policies.in_flight_per_agent;
            let permit = self.concurrency.acquire(context.agent().id, limit);
            context.concurrency_permit = permit.map_err(Refusal::Concurrency)?;
        }
        Ok(())
    }

    /// Step 2: how often.
    fn check_rate(
        &self,
        routed: &Routed,
        server_rules: &ServerRules,
        rules: &AgentRules,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        if routed.call.method == Method::Listen {
            return Ok(());
        }
        let checked = rules.limits.check(&Metered {
            server: &routed.server,
            server_rate: server_rules.rate,
            tool: routed.tool.as_ref().map(|tool| &tool.original),
        });
        match checked {
            Ok(()) => Ok(()),
            Err(limited) => self.enforce_or_observe(Refusal::Rate(limited), rules, context),
        }
    }

    /// Step 2: the rules about arguments.
    async fn check_arguments(
        &self,
        routed: &Routed,
        rules: &Arc<AgentRules>,
        of_tool: &Arc<ToolDecisions>,
        context: &mut CallContext,
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
            self.counters.count_observed(RuleKind::Args);
            context.observed.push(format!("args: {rule}"));
        }
        for rule in findings.refused {
            self.enforce_or_observe(Refusal::Argument { rule }, rules, context)?;
        }
        Ok(())
    }

    /// Step 2: a look at what the client sends.
    async fn scan_request(
        &self,
        routed: &mut Routed,
        scanners: &CallScanners,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        let Some(params) = &routed.params else {
            return Ok(());
        };
        let mut masked = Vec::new();
        for (direction, span) in scanning::request_parts(&routed.call.method, params) {
            let data = params.slice(span.clone());
            let seen = scanners.scan(direction, &data, || None).await;
            self.record_findings(&seen, context);
            let classes = seen.blocked;
            if !classes.is_empty() {
                return Err(Refusal::PiiInParams { classes });
            }
            masked.extend(seen.redacted.map(|part| (span, part)));
        }
        if !masked.is_empty() {
            routed.params = Some(scanning::replace_parts(params, masked));
        }
        Ok(())
    }

    /// Step 3: holds the price against every budget that applies.
    async fn reserve(
        &self,
        server_rules: &ServerRules,
        rules: &AgentRules,
        of_tool: &ToolDecisions,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        let Some(budgets) = self
            .storage
            .budgets
            .as_ref()
            .filter(|_| context.price > Micros::ZERO)
        else {
            return Ok(());
        };
        let accounts = of_tool.accounts.get_or_init(|| {
            budgets.accounts_for(&[&*rules.budgets, &server_rules.budgets].concat())
        });
        let held = budgets.hold_from(accounts, context.price, clock::now());
        match held.await {
            Ok(hold) => {
                context.hold = Some(hold);
                Ok(())
            }
            Err(budget::BudgetRefusal::Exceeded(exceeded)) => {
                self.enforce_or_observe(Refusal::Budget(exceeded), rules, context)
            }
            Err(
                error @ (budget::BudgetRefusal::Closed
                | budget::BudgetRefusal::StoreTimeout { .. }
                | budget::BudgetRefusal::Store(_)),
            ) => {
                tracing::error!(invocation = %context.id, %error, "cannot check the budget");
                Err(Refusal::BudgetUnavailable)
            }
        }
    }

    /// Step 3: opens the call in the audit; it may leave once that is kept.
    async fn open_record(&self, context: &CallContext) -> Result<(), Refusal> {
        if self.storage.audit.chain().is_none() {
            return Ok(());
        }
        let kept = self.storage.audit.record_opened(&context.opening_record());
        kept.durable().await.map_err(|error| {
            // That the log cannot be written is said once; the line of each call says that it was refused
            // for that.
            tracing::debug!(invocation = %context.id, %error, "cannot record the call");
            Refusal::AuditUnavailable
        })
    }

    /// Puts down what a look has found.
    fn record_findings(&self, seen: &ScanReport, context: &mut CallContext) {
        context.findings.extend(seen.summary());
        if seen.would_block {
            self.counters.count_observed(RuleKind::Scan);
            context.observed.push("scan".to_owned());
        }
    }

    /// A refusal as the client gets it and as the record has it.
    fn refuse(&self, refusal: &Refusal, context: &CallContext) -> (Outcome, RecordedOutcome) {
        let outcome = refusal.to_outcome(
            self.policy_set.load().refusal_style,
            &context.method,
            context.refused_call(),
        );
        (
            outcome,
            RecordedOutcome::refused(refusal, &context.agent().name),
        )
    }

    /// What is said to who was shown out while a request was under way.
    pub fn session_ended_error(&self) -> Raw {
        Refusal::AgentDisabled
            .to_error(self.policy_set.load().refusal_style)
            .to_raw()
    }

    /// Nothing, where the rule that refuses is only observed.
    fn enforce_or_observe(
        &self,
        refusal: Refusal,
        rules: &AgentRules,
        context: &mut CallContext,
    ) -> Result<(), Refusal> {
        match refusal.details().rule.filter(|rule| rules.observes(*rule)) {
            Some(rule) => {
                self.counters.count_observed(rule);
                let rule = refusal.audit_rule(&context.agent().name);
                context.observed.push(rule);
                Ok(())
            }
            None => Err(refusal),
        }
    }

    /// What `agent` may see on the route of `scope`.
    pub fn visibility(&self, agent: &Agent, scope: &Scope) -> Visibility {
        let known = self.storage.directory.current(agent.id);
        let Some(agent) = known.filter(|agent| agent.enabled) else {
            return Visibility::Hidden(HiddenReason::Disabled);
        };
        let profile = scope.profile();
        let policies = self.policy_set.load();
        if !may_use_route(&agent, profile) {
            let mut profiles = agent.profiles.clone().unwrap_or_default();
            profiles.retain(|name| policies.has_profile(name));
            return Visibility::Hidden(HiddenReason::OtherProfiles(profiles));
        }
        match policies.rules_of(&agent, profile, &self.limiters) {
            Ok(rules) if rules.policy.allows_everything() || rules.observes(RuleKind::Policy) => {
                Visibility::All
            }
            Ok(rules) => Visibility::Filtered(VisibleItems(rules)),
            Err(_) => Visibility::Hidden(HiddenReason::InvalidTerms),
        }
    }

    /// What passes outside of any call between `server` and the client of `agent` is looked at with, by
    /// the rules of this moment; `None` where nothing is looked for. Where there are none for the two,
    /// nothing passes.
    pub fn scanners_for(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
    ) -> Option<CallScanners> {
        let policy_set = self.policy_set.load();
        let known = self.storage.directory.current(agent.id);
        let profile = scope.profile();
        let known = known.filter(|agent| agent.enabled && may_use_route(agent, profile));
        let sees = |agent: &Agent| !server.is_owned() || agent.sees_servers_of(&server.owner());
        let known = known.filter(|agent| sees(agent));
        let rules =
            known.and_then(|agent| policy_set.rules_of(&agent, profile, &self.limiters).ok());
        match (rules, policy_set.server_rules(server)) {
            (Some(rules), Some(server_rules)) => {
                rules.scanners_for(server_rules, policy_set.refusal_style.codes)
            }
            (None, _) | (_, None) => Some(CallScanners::block_all(policy_set.refusal_style.codes)),
        }
    }

    /// The params of what the client of `agent` tells `server` outside of any call, as the server may
    /// see them; `None` when they must not pass.
    pub fn scan_client_notification(
        &self,
        agent: &Agent,
        scope: &Scope,
        server: &ServerName,
        params: Raw,
    ) -> Option<Raw> {
        match self.scanners_for(agent, scope, server) {
            Some(screens) => screens.scan_client_notification(params),
            None => Some(params),
        }
    }
}

/// An agent with profiles of its own may use their routes and no other: what they do not show must
/// not be had beside them.
fn may_use_route(agent: &Agent, profile: Option<&ProfileName>) -> bool {
    let Some(allowed) = &agent.profiles else {
        return true;
    };
    profile.is_some_and(|profile| allowed.contains(profile))
}

/// Step 2: the arguments against the input schema of their tool.
async fn validate_arguments(
    inputs: &InputValidator,
    routed: &Routed,
    has_rules: bool,
    context: &mut CallContext,
) -> Result<(), Refusal> {
    match inputs.check(routed, has_rules).await {
        ValidationVerdict::Valid => Ok(()),
        ValidationVerdict::Refused(faults) => Err(Refusal::Invalid { faults }),
        ValidationVerdict::Reported(faults) => {
            let rule = Refusal::Invalid { faults }.audit_rule(&context.agent().name);
            context.observed.push(rule);
            Ok(())
        }
    }
}
