//! What is known of one call between its opening and its settlement, and the lines it leaves in the
//! audit.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde_json::value::RawValue;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    budget::Hold,
    concurrency::ConcurrencyPermit,
    refusal::{Refusal, RefusedCall},
    scanning::{CallScanners, client_name, redact_name},
    state_field::StateId,
};
use crate::{
    audit::{ArgumentsDigest, Opened, Record, RecordedDecision},
    auth::Agent,
    catalog::Tool,
    clock,
    mcp::{
        Era, Method, Raw, Trace,
        json::{self, members},
    },
    money::Micros,
    names::{InvocationId, PeerAddress, Scope, ServerId, ServerName},
    router::Routed,
    session::{Call, Client, Correlation},
};

/// Opened for every call, settled exactly once, however it ends.
#[derive(Debug)]
#[must_use = "a ticket is settled with the outcome of its call"]
pub struct CallContext {
    /// Names the call in errors, logs and the audit.
    pub(super) id: InvocationId,
    started: Instant,
    pub(super) client: Arc<Client>,
    /// The agent as it was when the call was admitted.
    pub(super) agent: Option<Arc<Agent>>,
    pub(super) method: Method,
    pub(super) scope: Scope,
    params: Option<Raw>,
    correlation: Option<Box<Correlation>>,
    /// Where the request came from, where that is known.
    pub(super) address: Option<PeerAddress>,
    pub(super) target: Option<CallTarget>,
    pub(super) price: Micros,
    pub(super) hold: Option<Hold>,
    /// Counts the call among those of its agent that are under way.
    pub(super) concurrency_permit: Option<ConcurrencyPermit>,
    pub(super) tool: Option<Arc<Tool>>,
    pub(super) scanners: Option<CallScanners>,
    /// What rules that are only observed would have refused.
    pub(super) observed: Vec<String>,
    /// What scans found.
    pub(super) findings: Vec<String>,
    /// Whether it may bring answers to what its server asked before.
    may_carry_responses: bool,
    /// The states that it brought back.
    pub(super) states_used: Vec<StateId>,
    /// Whether what its server gets of it asks for a task.
    pub(super) asks_for_task: bool,
    request_facts: OnceLock<RequestFacts>,
}

/// What the lines of a call say of its request: found out once, when it is known where the call goes,
/// and only where there is a line. What callers make up is masked in it.
#[derive(Debug, Default)]
struct RequestFacts {
    /// The method, where it is none of the protocol's.
    method: Option<Box<str>>,
    /// The name or URI that the client wrote.
    exposed: Option<Box<str>>,
    /// What the server calls that, where it is no tool, whose name is the server's.
    original: Option<Box<str>>,
    digest: Option<ArgumentsDigest>,
    trace: Option<Trace>,
}

/// Where a call goes.
#[derive(Clone, Debug)]
pub(super) struct CallTarget {
    pub(super) server: ServerName,
    /// The server's own name or URI of what is called.
    pub(super) original: Option<Arc<str>>,
}

/// How a call ended, for its record.
#[derive(Clone, Debug)]
pub(super) struct RecordedOutcome {
    decision: RecordedDecision,
    code: Option<&'static str>,
    rule: Option<String>,
    pub(super) server_revision: Option<&'static str>,
    pub(super) bytes_out: usize,
    /// Whether the call may have reached its server.
    pub(super) is_delivered: bool,
    /// Whether it cost nothing, and its caller could have avoided it.
    pub(super) is_metered: bool,
    /// What the record has of the result.
    pub(super) result: Option<RecordedResult>,
}

/// A result, for the record of its call.
#[derive(Clone, Debug)]
pub(super) enum RecordedResult {
    /// It, redacted.
    Kept(Box<RawValue>),
    /// It is longer than results may be that are recorded: so many bytes.
    TooLong(u64),
}

impl RecordedOutcome {
    /// How it ended.
    pub(super) fn decision(&self) -> RecordedDecision {
        self.decision
    }

    /// The server answered, and the answer went back.
    pub(super) fn answered(server_revision: Option<&'static str>) -> Self {
        Self {
            decision: RecordedDecision::Allowed,
            code: None,
            rule: None,
            server_revision,
            bytes_out: 0,
            is_delivered: true,
            is_metered: false,
            result: None,
        }
    }

    /// There is no such thing here.
    pub(super) fn not_found() -> Self {
        Self {
            is_metered: true,
            ..Self::failed("NOT_FOUND", false)
        }
    }

    /// There is no answer of the server, which the call may have reached.
    pub(super) fn failed(code: &'static str, is_delivered: bool) -> Self {
        Self {
            decision: RecordedDecision::Failed,
            code: Some(code),
            is_delivered,
            ..Self::answered(None)
        }
    }

    /// A step refused the call, or withheld its answer.
    pub(super) fn refused(refusal: &Refusal, agent: &str) -> Self {
        Self {
            decision: RecordedDecision::Refused,
            code: Some(refusal.details().name),
            rule: Some(refusal.audit_rule(agent)),
            is_delivered: false,
            is_metered: refusal.is_caller_fault(),
            ..Self::answered(None)
        }
    }

    /// What refused it, by the discriminator of the error.
    pub(super) fn refusal_code(&self) -> Option<&'static str> {
        self.code
            .filter(|_| self.decision == RecordedDecision::Refused)
    }
}

impl CallContext {
    /// What its record is told of where something is found beside the call; `None` before it is admitted.
    pub fn scanners(&self) -> Option<&CallScanners> {
        self.scanners.as_ref()
    }

    /// Notes where the call goes.
    pub fn set_target(&mut self, routed: &Routed) {
        let original = routed.subject.as_ref().map(|it| Arc::clone(&it.original));
        self.tool.clone_from(&routed.tool);
        self.target = Some(CallTarget {
            server: routed.server.clone(),
            original,
        });
    }

    pub(super) fn open(call: &Call) -> Self {
        Self {
            id: InvocationId(Uuid::now_v7()),
            started: Instant::now(),
            client: Arc::clone(&call.client),
            agent: None,
            method: call.method.clone(),
            scope: call.scope.clone(),
            params: call.params.as_deref().cloned(),
            correlation: call.correlation.clone(),
            address: call.address,
            target: None,
            price: Micros::ZERO,
            hold: None,
            concurrency_permit: None,
            tool: None,
            scanners: None,
            observed: Vec::new(),
            findings: Vec::new(),
            may_carry_responses: call.client.era() == Era::Modern
                && call
                    .params
                    .as_ref()
                    .is_some_and(|params| !params.is_standard()),
            states_used: Vec::new(),
            asks_for_task: false,
            request_facts: OnceLock::new(),
        }
    }

    /// The agent, or who it was when the session began.
    pub(super) fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap_or(&self.client.agent)
    }

    /// The answer to a refused call.
    pub(super) fn refused_call(&self) -> RefusedCall {
        RefusedCall {
            invocation: self.id,
            agent: self.agent().id,
            modern: self.client.era() == Era::Modern,
        }
    }

    /// The line that is written before the call leaves.
    pub(super) fn opening_record(&self) -> Opened<'_> {
        let user = self.agent().user.as_deref();
        Opened {
            id: self.id,
            ts: clock::now(),
            agent_id: self.agent().id,
            agent_name: self.agent().name.as_str().into(),
            team: self.agent().team.as_deref().map(Cow::from),
            subject: user.map(|user| user.subject.as_str().into()),
            act: user.and_then(|user| user.actor.as_deref()).map(Cow::from),
            server: self.server().unwrap_or_default().into(),
            method: self.method().into(),
            tool: self.tool().map(Cow::from),
            exposed: self.request_facts().exposed.as_deref().map(Cow::from),
            arguments_digest: self.request_facts().digest,
            price: self.price,
            accounts: self.accounts(),
        }
    }

    /// The one record of the call.
    pub(super) fn record<'a>(
        &'a self,
        recorded: &'a RecordedOutcome,
        arguments: Option<&'a RawValue>,
    ) -> Record<'a> {
        let session = self.client.session.as_ref();
        let user = self.agent().user.as_deref();
        let (trace_id, parent_id) = self.trace().map(|trace| (trace.id, trace.parent)).unzip();
        Record {
            id: self.id,
            ts: clock::now(),
            reconciled: None,
            agent_id: self.agent().id,
            agent_name: self.agent().name.as_str().into(),
            team: self.agent().team.as_deref().map(Cow::from),
            workspace: self.agent().team.as_deref().map(Cow::from),
            view: self.scope.view().map(|id| id.to_string().into()),
            subject: user.map(|user| user.subject.as_str().into()),
            act: user.and_then(|user| user.actor.as_deref()).map(Cow::from),
            client: self.client.display_name(client_name).map(Cow::from),
            session_id: session.map(|session| session.log_id.as_str().into()),
            client_revision: Some(self.client.revision.as_str().into()),
            server: self.server().map(Cow::from),
            server_id: self.server().map(ServerId::from_name),
            server_revision: recorded.server_revision.map(Cow::from),
            method: self.method().into(),
            tool: self.tool().map(Cow::from),
            exposed: self.request_facts().exposed.as_deref().map(Cow::from),
            arguments_digest: self.request_facts().digest,
            arguments: arguments.map(Cow::Borrowed),
            result: match &recorded.result {
                Some(RecordedResult::Kept(result)) => Some(Cow::Borrowed(result)),
                Some(RecordedResult::TooLong(_)) | None => None,
            },
            result_bytes: match &recorded.result {
                Some(RecordedResult::TooLong(bytes)) => Some(*bytes),
                Some(RecordedResult::Kept(_)) | None => None,
            },
            decision: if recorded.decision == RecordedDecision::Allowed && !self.observed.is_empty()
            {
                RecordedDecision::Observed
            } else {
                recorded.decision
            },
            code: recorded.code.map(Cow::from),
            rule: self.record_rules(recorded.rule.as_deref()).map(Cow::from),
            price: self.price,
            accounts: self.accounts(),
            execution_time: self.started.elapsed(),
            bytes_in: self
                .params
                .as_ref()
                .map_or(0, |params| byte_len(params.as_bytes())),
            bytes_out: u64::try_from(recorded.bytes_out).unwrap_or(u64::MAX),
            trace_id: trace_id.map(Cow::from),
            parent_id: parent_id.map(Cow::from),
        }
    }

    /// The one line of the call in the log: what did not end well is of interest to everybody.
    pub(super) fn log(&self, recorded: &RecordedOutcome) {
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    invocation = %self.id,
                    request_id = self.request_id(),
                    trace = self.trace().map(|trace| trace.id),
                    agent = self.agent().name,
                    server = self.server(),
                    method = self.method(),
                    tool = self.tool(),
                    asked_for = self.unresolved_name(),
                    code = recorded.code,
                    rule = recorded.rule.as_deref(),
                    decision = recorded.decision.as_str(),
                    took_ms = millis(self.started.elapsed()),
                    "call",
                )
            };
        }
        match recorded.decision {
            RecordedDecision::Allowed | RecordedDecision::Observed => line!(debug),
            RecordedDecision::Failed
            | RecordedDecision::Refused
            | RecordedDecision::Interrupted => line!(info),
        }
    }

    /// What was asked for where no server has it: the line of the call would not say otherwise.
    fn unresolved_name(&self) -> Option<&str> {
        let exposed = self.request_facts().exposed.as_deref();
        exposed.filter(|_| self.tool().is_none())
    }

    /// The method as others may see it.
    fn method(&self) -> &str {
        let own = self.request_facts().method.as_deref();
        own.unwrap_or(self.method.as_str())
    }

    fn request_id(&self) -> Option<&str> {
        self.correlation.as_ref()?.request_id.as_deref()
    }

    /// The arguments as the client sent them.
    pub(super) fn arguments(&self) -> Option<Raw> {
        self.params
            .as_ref()
            .and_then(|params| params.get("arguments"))
    }

    /// What the client answers to what its server asked before (2026-07-28).
    pub(super) fn input_responses(&self) -> Option<Raw> {
        let params = self.params.as_ref().filter(|_| self.may_carry_responses)?;
        params.get("inputResponses")
    }

    fn trace(&self) -> Option<Trace> {
        let own = self.request_facts().trace.clone();
        own.or_else(|| Trace::parse(self.correlation.as_ref()?.traceparent.as_deref()?))
    }

    /// The rule that refused, what observed ones would have refused, and what scans found.
    fn record_rules(&self, refused_by: Option<&str>) -> Option<String> {
        let noted = self.observed.iter().chain(&self.findings);
        let all: Vec<&str> = refused_by
            .into_iter()
            .chain(noted.map(String::as_str))
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn request_facts(&self) -> &RequestFacts {
        self.request_facts.get_or_init(|| {
            let params = self.params.as_ref().map(Raw::as_bytes);
            let mut said = params.map_or_else(RequestFacts::default, |params| {
                RequestFacts::from_params(params, self.name_key())
            });
            if self.tool.is_none() {
                said.mask_names(self.original());
            }
            if let Method::Other(method) = &self.method {
                said.method = Some(redact_name(method).into());
            }
            said
        })
    }

    /// Where the price is held.
    fn accounts(&self) -> Vec<Cow<'_, str>> {
        let accounts = self.hold.iter().flat_map(Hold::accounts);
        accounts.map(|account| account.as_str().into()).collect()
    }

    fn server(&self) -> Option<&str> {
        self.target.as_ref().map(|target| target.server.as_str())
    }

    /// What the server calls what is called, as others may see it.
    fn tool(&self) -> Option<&str> {
        match &self.tool {
            Some(_) => self.original(),
            None => self.request_facts().original.as_deref(),
        }
    }

    fn original(&self) -> Option<&str> {
        self.target
            .as_ref()
            .and_then(|target| target.original.as_deref())
    }

    /// The member of the params that names what is called.
    fn name_key(&self) -> Option<&'static str> {
        match &self.method {
            Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
                Some("uri")
            }
            Method::PromptsGet | Method::ToolsCall => Some("name"),
            Method::Complete
            | Method::Discover
            | Method::Initialize
            | Method::Listen
            | Method::Other(_)
            | Method::Ping
            | Method::PromptsList
            | Method::ResourcesList
            | Method::SetLevel
            | Method::TemplatesList
            | Method::ToolsList => None,
        }
    }
}

impl RequestFacts {
    /// Of several members of one name the last one counts, as everywhere.
    fn from_params(params: &[u8], naming: Option<&str>) -> Self {
        let mut said = Self::default();
        for member in members(params, 0) {
            let value = &params[member.value.clone()];
            if member.matches(params, "arguments") {
                said.digest = Some(ArgumentsDigest::of(value));
            } else if member.matches(params, "_meta") {
                said.trace = Trace::from_meta(value);
            } else if naming.is_some_and(|naming| member.matches(params, naming)) {
                said.exposed = json::decode_string(value).map(Into::into);
            }
        }
        said
    }

    /// Masks what the caller wrote, which its server may call `original`. On the route of the server both
    /// are one name, which is looked at once.
    fn mask_names(&mut self, original: Option<&str>) {
        let exposed = self.exposed.take();
        self.original = original.map(|name| redact_name(name).into());
        self.exposed = match exposed {
            Some(exposed) if original == Some(&*exposed) => self.original.clone(),
            exposed => exposed.map(|name| redact_name(&name).into()),
        };
    }
}

pub(super) fn byte_len(text: &[u8]) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// Milliseconds with three decimals, as a number for whoever reads the log by machine.
fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}
