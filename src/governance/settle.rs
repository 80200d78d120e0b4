//! Steps 5 to 7: what a server answered is looked at, what was held is spent or released, and the one
//! record of the call is kept.

use std::sync::Arc;

use serde_json::{json, value::RawValue};

use super::{
    Governance, PolicySet, Refusal,
    budget::Hold,
    call_context::{CallContext, RecordedOutcome, RecordedResult, byte_len},
    input_validation::is_same,
    refusal, request_state,
    scanning::{self, CallScanners},
};
use crate::{
    audit::RecordedDecision,
    catalog::Tool,
    json_schema::KEPT_BYTES_MAX,
    mcp::{
        Outcome, Raw, RpcError,
        error::{self, FailureReason},
    },
    money::Micros,
    scan::OutputSchema,
    store::TaskIdScope,
    task::run_blocking_if_large,
};

/// How a call ended.
#[derive(Debug)]
pub enum CallOutcome {
    /// The server answered.
    Answered(ServerAnswer),
    /// The server gave no answer.
    Failed {
        /// What the client is told.
        error: RpcError,
        /// Whether the call may have reached the server.
        delivered: bool,
        /// For the record.
        reason: FailureReason,
    },
    /// A step refused it.
    Refused(Refusal),
    /// Its agent has to sign in to the server first, as this tells the client in the form that it can use.
    SignInRequired(Outcome),
    /// There is nothing on the route that it could be for.
    Unroutable(RpcError),
}

impl CallOutcome {
    /// The gateway failed in the middle of it. The call may have reached the server by then.
    pub fn panicked() -> Self {
        let message = "internal error while processing the call; see the gateway log";
        Self::Failed {
            error: RpcError::new(error::INTERNAL, message).with_data(json!({
                "code": "INTERNAL",
                "reason": FailureReason::Internal.as_str(),
                "retryable": false,
            })),
            delivered: true,
            reason: FailureReason::Internal,
        }
    }
}

/// What a server answered, and what of it concerns whose tasks are.
#[derive(Debug)]
pub struct ServerAnswer {
    /// In the names that the client knows.
    pub outcome: Outcome,
    /// The revision the server speaks.
    pub revision: Option<&'static str>,
    /// What a task in it says of an older one of its id.
    pub same_task_id: TaskIdScope,
}

impl Governance {
    /// Steps 5 to 7: settles a call with how it ended; what comes back is for its client.
    pub async fn settle(&self, mut context: Box<CallContext>, ending: CallOutcome) -> Outcome {
        let mut charge = false;
        let is_known = self
            .storage
            .directory
            .is_still_authorized(&context.client.agent);
        let (outcome, ended) = match ending {
            CallOutcome::Answered(answer) if !is_known => {
                if let Some(result) =
                    request_state::input_required_result(&answer.outcome, answer.revision, &context)
                {
                    self.note_input_requests(result, false, &context);
                }
                charge = self.policy_set.load().charge_errors || !is_error_result(&answer.outcome);
                self.refuse_answer(&Refusal::AgentDisabled, answer.revision, &context)
            }
            CallOutcome::Failed { delivered, .. } if !is_known => {
                charge = delivered;
                let (outcome, mut ended) = self.refuse(&Refusal::AgentDisabled, &context);
                ended.is_delivered = delivered;
                (outcome, ended)
            }
            CallOutcome::Answered(answer) => {
                let policies = self.policy_set.load_full();
                charge = policies.charge_errors || !is_error_result(&answer.outcome);
                let revision = answer.revision;
                let asking =
                    request_state::input_required_result(&answer.outcome, revision, &context)
                        .cloned();
                let (mut outcome, ended) =
                    self.settle_answer(answer, &policies, &mut context).await;
                if let Some(result) = &asking {
                    let is_given = ended.refusal_code().is_none();
                    self.note_input_requests(result, is_given, &context);
                }
                if asking.is_some() && request_state::has_state(&outcome) {
                    let closed = self.storage.seal.seal_outcome(
                        outcome,
                        &context,
                        policies.request_state_ttl,
                    );
                    outcome = Box::pin(closed).await;
                }
                (outcome, ended)
            }
            CallOutcome::Failed {
                error,
                delivered,
                reason,
            } => {
                charge = delivered;
                let form = self.policy_set.load().refusal_style.form;
                let about = context.refused_call();
                let outcome =
                    refusal::failure_outcome(error, reason, (form, &context.method), about);
                (outcome, RecordedOutcome::failed(reason.code(), delivered))
            }
            CallOutcome::Refused(refusal) => self.refuse(&refusal, &context),
            CallOutcome::SignInRequired(outcome) => {
                let code = FailureReason::NeedsSignIn.code();
                (outcome, RecordedOutcome::failed(code, false))
            }
            CallOutcome::Unroutable(error) => {
                let outcome = Err(error.to_raw());
                (outcome, RecordedOutcome::not_found())
            }
        };
        self.record_and_charge(context, outcome, ended, charge)
            .await
    }

    /// Step 5: what the server answered, as far as it is for the agent.
    async fn settle_answer(
        &self,
        answer: ServerAnswer,
        policies: &PolicySet,
        context: &mut CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let ServerAnswer {
            outcome,
            revision,
            same_task_id: same_id,
        } = answer;
        let outcome = if policies.has_agent_identities {
            match self
                .filter_task_answer(outcome, same_id, revision, context)
                .await
            {
                Ok(outcome) => outcome,
                Err(refusal) => return self.refuse_answer(&refusal, revision, context),
            }
        } else {
            outcome
        };
        match context.scanners.clone() {
            None => (outcome, RecordedOutcome::answered(revision)),
            // In a box, as in `admit`.
            Some(screens) => Box::pin(self.scan_answer(outcome, revision, &screens, context)).await,
        }
    }

    /// Refuses a call whose server has answered.
    fn refuse_answer(
        &self,
        refusal: &Refusal,
        revision: Option<&'static str>,
        context: &CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let mut refused = self.refuse(refusal, context);
        refused.1.server_revision = revision;
        refused.1.is_delivered = true;
        refused
    }

    /// Step 5: a look at what the server answered.
    async fn scan_answer(
        &self,
        outcome: Outcome,
        revision: Option<&'static str>,
        scanners: &CallScanners,
        context: &mut CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let mut outcome = outcome;
        let tool = context.tool.clone();
        let schema = || tool.as_ref().and_then(|tool| self.schema_of(tool));
        for direction in scanning::answer_directions(&context.method, &outcome) {
            let (Ok(body) | Err(body)) = &outcome;
            let state = scanning::unscanned_state(body, revision);
            let looked_at = state.as_ref().map_or(body, |state| &state.without);
            let seen = scanners.scan(*direction, looked_at, schema).await;
            self.record_findings(&seen, context);
            let classes = seen.blocked;
            if !classes.is_empty() {
                let refusal = Refusal::PiiInResult { classes };
                return self.refuse_answer(&refusal, revision, context);
            }
            if let Some(masked) = seen.redacted {
                let whole = match &state {
                    Some(state) => state.restore(&masked),
                    None => masked,
                };
                outcome = scanning::replace_body(&outcome, whole);
            }
        }
        (outcome, RecordedOutcome::answered(revision))
    }

    /// Steps 6 and 7. The record says that a call costs nothing before what it held is released,
    /// since a crash between the two must not give out the same money twice.
    async fn record_and_charge(
        &self,
        mut context: Box<CallContext>,
        outcome: Outcome,
        mut recorded: RecordedOutcome,
        charge: bool,
    ) -> Outcome {
        if let Some(screens) = context.scanners.clone() {
            self.record_findings(&screens.take_findings(), &mut context);
        }
        if !charge {
            context.price = Micros::ZERO;
        }
        context.log(&recorded);
        if recorded.is_delivered {
            self.note_input_responses(&context, recorded.server_revision);
        } else {
            let seal = &self.storage.seal;
            seal.refund_uses(context.agent().id, &context.states_used);
        }
        if recorded.is_metered {
            let rate = self.policy_set.load().refusal_rate;
            self.refusals
                .count_refusal(context.agent().id, context.address, rate);
        }
        self.counters.count_call(&context, recorded.decision());
        let refused_as = recorded.refusal_code();
        if self.storage.audit.chain().is_none() {
            drop(PendingCharge::take_from(&mut context, charge));
            self.count_refusal(refused_as);
            return outcome;
        }
        let (Ok(body) | Err(body)) = &outcome;
        recorded.bytes_out = body.as_bytes().len();
        // One that was refused for want of a record is told so already.
        let is_reported = refused_as == Some(Refusal::AuditUnavailable.details().name);
        let is_delivered = recorded.is_delivered;
        // In a box, as in `admit`.
        recorded.result = Box::pin(self.result_for_record(&context, &recorded, &outcome)).await;
        let kept = {
            let arguments = self.arguments_for_record(&context);
            let record = context.record(&recorded, arguments.as_deref());
            self.storage.audit.record(&record)
        };
        let due = PendingCharge::take_from(&mut context, charge);
        let kept = kept.durable().await;
        drop(due);
        let (outcome, refused_as) = match kept {
            Ok(()) => (outcome, refused_as),
            Err(_) if is_reported => (outcome, refused_as),
            Err(error) => {
                tracing::error!(invocation = %context.id, %error, "a record is not durable yet");
                let refusal = if is_delivered {
                    Refusal::Unrecorded
                } else {
                    Refusal::AuditUnavailable
                };
                let (outcome, ended) = self.refuse(&refusal, &context);
                (outcome, ended.refusal_code())
            }
        };
        self.count_refusal(refused_as);
        outcome
    }

    /// Counts a call as what its caller is told, which is one thing.
    fn count_refusal(&self, refused_as: Option<&'static str>) {
        if let Some(name) = refused_as {
            self.counters.count_refused(name);
        }
    }

    fn arguments_for_record(&self, context: &CallContext) -> Option<Box<RawValue>> {
        if !self.storage.audit.records_arguments() {
            return None;
        }
        let masked = scanning::redact_arguments(&context.arguments()?, context.scanners.as_ref())?;
        RawValue::from_string(masked.as_str().to_owned()).ok()
    }

    /// What the record of an answered call has of its result, which is what the client gets, where results are
    /// recorded.
    async fn result_for_record(
        &self,
        context: &CallContext,
        recorded: &RecordedOutcome,
        outcome: &Outcome,
    ) -> Option<RecordedResult> {
        let limit = self.storage.audit.result_limit()?;
        let result = outcome.as_ref().ok()?;
        if recorded.decision() != RecordedDecision::Allowed {
            return None;
        }
        let too_long = |result: &Raw| RecordedResult::TooLong(byte_len(result.as_bytes()));
        let bytes = result.as_bytes().len();
        if bytes > limit {
            return Some(too_long(result));
        }
        let (result, scanners) = (result.clone(), context.scanners.clone());
        let redact = move || scanning::redact_arguments(&result, scanners.as_ref());
        let masked = run_blocking_if_large(bytes, redact).await?;
        if masked.as_bytes().len() > limit {
            return Some(too_long(&masked));
        }
        let kept = RawValue::from_string(masked.as_str().to_owned()).ok()?;
        Some(RecordedResult::Kept(kept))
    }

    /// The output schema of a tool, as the catalog has it at present.
    fn schema_of(&self, tool: &Arc<Tool>) -> Option<OutputSchema> {
        let source = tool.source.get("outputSchema")?;
        let key = (tool.server.clone(), Arc::clone(&tool.original));
        let known = self.schemas.get(&key);
        if let Some(known) = known.filter(|known| is_same(known.source(), &source)) {
            return Some(known.clone());
        }
        let schema = OutputSchema::new(source);
        let kept: usize = self.schemas.iter().map(|known| known.memory_bytes()).sum();
        if kept > KEPT_BYTES_MAX {
            self.schemas.clear();
        }
        self.schemas.insert(key, schema.clone());
        Some(schema)
    }
}

/// Step 6: what was held is spent or given back when this is dropped, which is after the record was
/// written, also when nobody waits for the answer any more.
struct PendingCharge {
    hold: Option<Hold>,
    charge: bool,
}

impl PendingCharge {
    fn take_from(context: &mut CallContext, charge: bool) -> Self {
        let hold = context.hold.take();
        Self { hold, charge }
    }
}

impl Drop for PendingCharge {
    fn drop(&mut self) {
        match self.hold.take() {
            Some(hold) if self.charge => hold.settle(),
            Some(hold) => hold.release(),
            None => {}
        }
    }
}

/// Whether an answer is a result that says that its tool failed.
fn is_error_result(outcome: &Outcome) -> bool {
    let Ok(result) = outcome else { return false };
    result
        .get("isError")
        .is_some_and(|flag| flag.as_str() == "true")
}

#[cfg(test)]
pub(super) mod tests;
