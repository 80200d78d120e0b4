//! Steps 5 to 7: what a server answered is looked at, what was held is spent or released, and the one
//! record of the call is kept.

use std::sync::Arc;

use serde_json::{json, value::RawValue};

use super::{
    Governance, PolicySet, Refusal,
    budget::Hold,
    call_context::{CallContext, RecordedOutcome},
    refusal,
    scanning::{self, CallScanners},
    state,
    validate::is_same,
};
use crate::{
    catalog::Tool,
    json_schema::KEPT_BYTES_MAX,
    mcp::{Outcome, RpcError, error},
    money::Micros,
    scan::OutputSchema,
    store::SameId,
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
        reason: &'static str,
    },
    /// A step refused it.
    Refused(Refusal),
    /// There is nothing on the route that it could be for.
    Unroutable(RpcError),
}

impl CallOutcome {
    /// The gateway failed in the middle of it. The call may have reached the server by then.
    pub fn broken() -> Self {
        let message = "the gateway failed to carry the call; its log says where";
        Self::Failed {
            error: RpcError::new(error::INTERNAL, message).with(json!({
                "code": "INTERNAL",
                "reason": error::reason::INTERNAL,
                "retryable": false,
            })),
            delivered: true,
            reason: error::reason::INTERNAL,
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
    pub same_id: SameId,
}

impl Governance {
    /// Steps 5 to 7: settles a call with how it ended; what comes back is for its client.
    pub async fn settle(&self, mut ticket: Box<CallContext>, ending: CallOutcome) -> Outcome {
        let mut charge = false;
        let is_known = self.books.directory.still_knows(&ticket.client.agent);
        let (outcome, ended) = match ending {
            CallOutcome::Answered(answer) if !is_known => {
                if let Some(result) = state::asking(&answer.outcome, answer.revision, &ticket) {
                    self.note_input_requests(result, false, &ticket);
                }
                charge = self.law.load().charge_errors || !is_error_result(&answer.outcome);
                self.withhold(&Refusal::AgentDisabled, answer.revision, &ticket)
            }
            CallOutcome::Failed { delivered, .. } if !is_known => {
                charge = delivered;
                let (outcome, mut ended) = self.refuse(&Refusal::AgentDisabled, &ticket);
                ended.is_delivered = delivered;
                (outcome, ended)
            }
            CallOutcome::Answered(answer) => {
                let law = self.law.load_full();
                charge = law.charge_errors || !is_error_result(&answer.outcome);
                let revision = answer.revision;
                let asking = state::asking(&answer.outcome, revision, &ticket).cloned();
                let (mut outcome, ended) = self.answered(answer, &law, &mut ticket).await;
                if let Some(result) = &asking {
                    let is_given = ended.refused_as().is_none();
                    self.note_input_requests(result, is_given, &ticket);
                }
                if asking.is_some() && state::is_given(&outcome) {
                    let closed = self
                        .books
                        .seal
                        .closed(outcome, &ticket, law.request_state_ttl);
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
                let outcome = Err(refusal::of_failure(error, ticket.about()).to_raw());
                (outcome, RecordedOutcome::failed(reason, delivered))
            }
            CallOutcome::Refused(refusal) => self.refuse(&refusal, &ticket),
            CallOutcome::Unroutable(error) => {
                let outcome = Err(error.to_raw());
                (outcome, RecordedOutcome::not_found())
            }
        };
        self.close(ticket, outcome, ended, charge).await
    }

    /// Step 5: what the server answered, as far as it is for the agent.
    async fn answered(
        &self,
        answer: ServerAnswer,
        law: &PolicySet,
        ticket: &mut CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let ServerAnswer {
            outcome,
            revision,
            same_id,
        } = answer;
        let outcome = if law.tells_agents_apart {
            match self.heed_tasks(outcome, same_id, revision, ticket).await {
                Ok(outcome) => outcome,
                Err(refusal) => return self.withhold(&refusal, revision, ticket),
            }
        } else {
            outcome
        };
        match ticket.screens.clone() {
            None => (outcome, RecordedOutcome::answered(revision)),
            // In a box, as in `admit`.
            Some(screens) => Box::pin(self.scan_answer(outcome, revision, &screens, ticket)).await,
        }
    }

    /// Refuses a call whose server has answered.
    fn withhold(
        &self,
        refusal: &Refusal,
        revision: Option<&'static str>,
        ticket: &CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let mut refused = self.refuse(refusal, ticket);
        refused.1.server_revision = revision;
        refused.1.is_delivered = true;
        refused
    }

    /// Step 5: a look at what the server answered.
    async fn scan_answer(
        &self,
        outcome: Outcome,
        revision: Option<&'static str>,
        screens: &CallScanners,
        ticket: &mut CallContext,
    ) -> (Outcome, RecordedOutcome) {
        let mut outcome = outcome;
        let tool = ticket.tool.clone();
        let schema = || tool.as_ref().and_then(|tool| self.schema_of(tool));
        for direction in scanning::of_answer(&ticket.method, &outcome) {
            let (Ok(body) | Err(body)) = &outcome;
            let state = scanning::state_of(body, revision);
            let looked_at = state.as_ref().map_or(body, |state| &state.without);
            let seen = screens.scan(*direction, looked_at, schema).await;
            self.put_down(&seen, ticket);
            let classes = seen.blocked;
            if !classes.is_empty() {
                let refusal = Refusal::PiiInResult { classes };
                return self.withhold(&refusal, revision, ticket);
            }
            if let Some(masked) = seen.redacted {
                let whole = match &state {
                    Some(state) => state.put_back(&masked),
                    None => masked,
                };
                outcome = scanning::with_body(&outcome, whole);
            }
        }
        (outcome, RecordedOutcome::answered(revision))
    }

    /// Steps 6 and 7. The record says that a call costs nothing before what it held is released,
    /// since a crash between the two must not give out the same money twice.
    async fn close(
        &self,
        mut ticket: Box<CallContext>,
        outcome: Outcome,
        mut ended: RecordedOutcome,
        charge: bool,
    ) -> Outcome {
        if let Some(screens) = ticket.screens.clone() {
            self.put_down(&screens.taken_down(), &mut ticket);
        }
        if !charge {
            ticket.price = Micros::ZERO;
        }
        ticket.log(&ended);
        if ended.is_delivered {
            self.note_input_responses(&ticket, ended.server_revision);
        } else {
            let seal = &self.books.seal;
            seal.give_back(ticket.agent().id, &ticket.states_used);
        }
        if ended.is_metered {
            let rate = self.law.load().refusals;
            self.refusals
                .refused(ticket.agent().id, ticket.address, rate);
        }
        if let Some(target) = ticket.target.as_ref().filter(|_| charge) {
            self.tally.spent(&target.server, ticket.price);
        }
        let refused_as = ended.refused_as();
        if self.books.audit.chain().is_none() {
            drop(PendingCharge::of(&mut ticket, charge));
            self.count(refused_as);
            return outcome;
        }
        let (Ok(body) | Err(body)) = &outcome;
        ended.bytes_out = body.as_bytes().len();
        // One that was refused for want of a record is told so already.
        let is_told = refused_as == Some(Refusal::AuditUnavailable.row().name);
        let is_delivered = ended.is_delivered;
        let kept = {
            let arguments = self.arguments_for_record(&ticket);
            let record = ticket.record(&ended, arguments.as_deref());
            self.books.audit.record(&record)
        };
        let due = PendingCharge::of(&mut ticket, charge);
        let kept = kept.kept().await;
        drop(due);
        let (outcome, refused_as) = match kept {
            Ok(()) => (outcome, refused_as),
            Err(_) if is_told => (outcome, refused_as),
            Err(error) => {
                tracing::error!(invocation = %ticket.id, %error, "a record is not kept yet");
                let refusal = if is_delivered {
                    Refusal::Unrecorded
                } else {
                    Refusal::AuditUnavailable
                };
                let (outcome, ended) = self.refuse(&refusal, &ticket);
                (outcome, ended.refused_as())
            }
        };
        self.count(refused_as);
        outcome
    }

    /// Counts a call as what its caller is told, which is one thing.
    fn count(&self, refused_as: Option<&'static str>) {
        if let Some(name) = refused_as {
            self.tally.refused(name);
        }
    }

    fn arguments_for_record(&self, ticket: &CallContext) -> Option<Box<RawValue>> {
        if !self.books.audit.wants_arguments() {
            return None;
        }
        let masked = scanning::masked(&ticket.arguments()?, ticket.screens.as_ref())?;
        RawValue::from_string(masked.as_str().to_owned()).ok()
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
        let kept: usize = self.schemas.iter().map(|known| known.weight()).sum();
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
    fn of(ticket: &mut CallContext, charge: bool) -> Self {
        let hold = ticket.hold.take();
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
