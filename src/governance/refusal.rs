//! Why a call was refused, and the one table of what its client is told.
//!
//! A refusal is a decision, not a fault: it is logged at info level, counted and audited, never
//! retried, and no server is blamed for it.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

use super::{
    budget::Exceeded, concurrency::TooManyInFlight, input_validation::SchemaMismatch,
    rate_limits::Limited, state_field::InvalidState,
};
use crate::{
    auth::token::Scopes,
    clock,
    config::{ErrorCodes, ErrorForm, RuleKind, Window},
    mcp::{
        Method, Outcome, Raw, RpcError,
        error::{self, FailureReason},
    },
    money::Micros,
    names::{AgentId, InvocationId},
    store::BudgetSubjectKind,
};

/// Why a call was refused before it reached its server, or why its answer was withheld.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The agent is disabled or no longer known.
    AgentDisabled,
    /// An argument rule refused it.
    Argument {
        /// The name of the rule.
        rule: String,
    },
    /// A record could not be written; the operator looks at the data directory.
    AuditUnavailable,
    /// A budget has no room for the price.
    Budget(Exceeded),
    /// Budgets cannot be read or written; the operator looks at the data directory.
    BudgetUnavailable,
    /// Too many calls at once.
    Concurrency(TooManyInFlight),
    /// The arguments do not match the input schema of their tool.
    Invalid {
        /// Where and why, the first of them.
        faults: Vec<SchemaMismatch>,
    },
    /// The token of its caller does not have all of these scopes.
    InsufficientScope(Arc<Scopes>),
    /// PII or a secret in the arguments.
    PiiInParams {
        /// The classes found.
        classes: Vec<Arc<str>>,
    },
    /// PII or a secret in the answer.
    PiiInResult {
        /// The classes found.
        classes: Vec<Arc<str>>,
    },
    /// The policy does not allow it.
    Policy {
        /// Which policy, mode and pattern, for the operator.
        because: String,
    },
    /// The agent may not use this profile.
    Profile,
    /// Too many calls.
    Rate(Limited),
    /// The `requestState` is not one that this agent was given for this call.
    State(InvalidState),
    /// It cannot be read whose a task is; the operator looks at the data directory.
    TaskUnavailable,
    /// The agent has no such task.
    UnknownTask,
    /// The route has no such tool.
    UnknownTool {
        /// The name that was called.
        name: String,
    },
    /// The call may have had its effect, and its record cannot be kept: to make it again is to make it
    /// twice.
    Unrecorded,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RefusalDetails {
    /// The JSON-RPC code of the contract.
    pub code: i64,
    /// The code under `error_codes = "portable"`.
    pub portable: i64,
    /// `data.code`, which tells refusals apart whatever the codes are.
    pub name: &'static str,
    /// The message.
    pub message: &'static str,
    /// The rule that can be observed instead of enforced.
    pub rule: Option<RuleKind>,
    /// What it means and what to do about it, for the documentation.
    pub meaning: &'static str,
}

/// The table, in the order of the codes. Causes of one name differ in their messages.
pub const REFUSALS: [RefusalDetails; 12] = [
    BUDGET,
    PII_DETECTED,
    UNAUTHORIZED,
    INSUFFICIENT_SCOPE,
    RATE_LIMITED,
    INVALID,
    INVALID_STATE,
    UNKNOWN_TASK,
    UNKNOWN_TOOL,
    AUDIT_UNAVAILABLE,
    BUDGET_UNAVAILABLE,
    TASK_UNAVAILABLE,
];

impl Refusal {
    /// What the client is told: the one place where causes meet codes.
    pub fn details(&self) -> RefusalDetails {
        match self {
            Self::AgentDisabled | Self::Profile => RefusalDetails {
                rule: None,
                ..UNAUTHORIZED
            },
            Self::Argument { .. } => RefusalDetails {
                rule: Some(RuleKind::Args),
                ..UNAUTHORIZED
            },
            Self::Policy { .. } => UNAUTHORIZED,
            Self::AuditUnavailable => AUDIT_UNAVAILABLE,
            Self::Unrecorded => RefusalDetails {
                message: "The call may have been executed but cannot be recorded",
                ..AUDIT_UNAVAILABLE
            },
            Self::Budget(_) => BUDGET,
            Self::BudgetUnavailable => BUDGET_UNAVAILABLE,
            // Not a rule of governance, which could be observed, but a bound of the gateway.
            Self::Concurrency(_) => RefusalDetails {
                rule: None,
                ..RATE_LIMITED
            },
            Self::InsufficientScope(_) => INSUFFICIENT_SCOPE,
            Self::Invalid { .. } => INVALID,
            Self::PiiInParams { .. } => RefusalDetails {
                message: "PII in tool params",
                ..PII_DETECTED
            },
            Self::PiiInResult { .. } => PII_DETECTED,
            Self::Rate(_) => RATE_LIMITED,
            Self::State(_) => INVALID_STATE,
            Self::TaskUnavailable => TASK_UNAVAILABLE,
            Self::UnknownTask => UNKNOWN_TASK,
            Self::UnknownTool { .. } => UNKNOWN_TOOL,
        }
    }

    /// What `rule` of the audit record of a call of the agent called `agent` says: what exactly
    /// refused. For the operator only.
    pub fn audit_rule(&self, agent: &str) -> String {
        match self {
            Self::AgentDisabled => "agent disabled".to_owned(),
            Self::Argument { rule } => format!("args: {rule}"),
            Self::AuditUnavailable | Self::Unrecorded => "audit".to_owned(),
            Self::Budget(exceeded) => budget_detail(exceeded, Some(agent)),
            Self::BudgetUnavailable => "budget".to_owned(),
            Self::Concurrency(_) => "concurrent calls of the agent".to_owned(),
            Self::InsufficientScope(_) => "scope".to_owned(),
            Self::Invalid { faults } => {
                let keywords: Vec<_> = faults.iter().map(|fault| &*fault.keyword).collect();
                format!("validate: {}", keywords.join(", "))
            }
            Self::PiiInParams { classes } | Self::PiiInResult { classes } => {
                format!("scan: {}", classes.join(", "))
            }
            Self::Policy { because } => format!("policy: {because}"),
            Self::Profile => "profile".to_owned(),
            Self::Rate(limited) => format!("rate of the {}", limited.scope.as_str()),
            Self::State(_) => "requestState".to_owned(),
            Self::TaskUnavailable | Self::UnknownTask => "task".to_owned(),
            Self::UnknownTool { .. } => "catalog".to_owned(),
        }
    }

    /// The answer to a call of `method`.
    pub fn to_outcome(&self, style: RefusalStyle, method: &Method, about: RefusedCall) -> Outcome {
        if style.form == ErrorForm::ToolResult && *method == Method::ToolsCall {
            return Ok(self.tool_result(about));
        }
        let error = self.to_error(style);
        Err(error
            .with_data(Value::Object(self.error_data(about)))
            .to_raw())
    }

    /// The error without what it is about.
    pub(super) fn to_error(&self, style: RefusalStyle) -> RpcError {
        let row = self.details();
        let message = match self.message_detail() {
            Some(detail) => format!("{}: {detail}", row.message),
            None => row.message.to_owned(),
        };
        let error = RpcError::new(select_code(row, style.codes), message);
        error.with_data(serde_json::json!({ "code": row.name }))
    }

    /// What the message says beside that of its row.
    fn message_detail(&self) -> Option<String> {
        match self {
            Self::Invalid { faults } => {
                let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
                Some(faults.join("; "))
            }
            Self::InsufficientScope(needed) => Some(format!("the token needs {needed}")),
            Self::State(invalid) => Some(invalid.to_string()),
            Self::Argument { rule } => Some(format!("rejected by argument rule `{rule}`")),
            Self::UnknownTool { name } => Some(name.clone()),
            Self::AgentDisabled
            | Self::AuditUnavailable
            | Self::Budget(_)
            | Self::BudgetUnavailable
            | Self::Concurrency(_)
            | Self::PiiInParams { .. }
            | Self::PiiInResult { .. }
            | Self::Policy { .. }
            | Self::Profile
            | Self::Rate(_)
            | Self::TaskUnavailable
            | Self::UnknownTask
            | Self::Unrecorded => None,
        }
    }

    /// Whether it is for its caller to avoid, so that it counts among those of `governance.refusal_rate`.
    pub fn is_caller_fault(&self) -> bool {
        match self {
            Self::AgentDisabled
            | Self::Argument { .. }
            | Self::Budget(_)
            | Self::Concurrency(_)
            | Self::InsufficientScope(_)
            | Self::Invalid { .. }
            | Self::PiiInParams { .. }
            | Self::Policy { .. }
            | Self::Profile
            | Self::Rate(_)
            | Self::State(_)
            | Self::UnknownTask
            | Self::UnknownTool { .. } => true,
            // The first two were answered and charged.
            Self::PiiInResult { .. }
            | Self::Unrecorded
            | Self::AuditUnavailable
            | Self::BudgetUnavailable
            | Self::TaskUnavailable => false,
        }
    }

    /// How long to wait until the same call may succeed; `None` when it will not unless somebody
    /// changes something.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            // An agent's own calls decide when there is room for one more.
            Self::AuditUnavailable
            | Self::BudgetUnavailable
            | Self::Concurrency(_)
            | Self::TaskUnavailable => Some(error::RETRY_SOON),
            Self::Budget(exceeded) => exceeded.retry_after(clock::now()),
            Self::Invalid { faults } if faults.iter().any(|fault| fault.is_for_now) => {
                Some(error::RETRY_SOON)
            }
            Self::Rate(limited) => Some(limited.retry_after),
            Self::AgentDisabled
            | Self::Argument { .. }
            | Self::InsufficientScope(_)
            | Self::Invalid { .. }
            | Self::PiiInParams { .. }
            | Self::PiiInResult { .. }
            | Self::Policy { .. }
            | Self::Profile
            | Self::State(_)
            | Self::UnknownTask
            | Self::UnknownTool { .. }
            | Self::Unrecorded => None,
        }
    }

    fn tool_result(&self, about: RefusedCall) -> Raw {
        let row = self.details();
        let again = |wait| format!("; try again in {} ms", error::millis(wait));
        let detail = match (self, self.retry_after(), self.message_detail()) {
            (Self::Budget(exceeded), wait, _) => {
                // When its window ends is said already.
                let wait = wait.filter(|_| exceeded.is_retryable());
                let again = wait.map(again).unwrap_or_default();
                format!(": {}{again}", budget_explanation(exceeded))
            }
            (_, Some(wait), _) => again(wait),
            (_, None, Some(detail)) => format!(": {detail}"),
            (_, None, None) => String::new(),
        };
        let text = format!("{}{detail} ({})", row.message, row.name);
        let data = Value::Object(self.error_data(about));
        error_result(&text, (REFUSAL_KEY, data), about)
    }

    fn error_data(&self, about: RefusedCall) -> Map<String, Value> {
        let wait = self.retry_after();
        let mut data = Map::new();
        let mut put = |key: &str, value: Value| drop(data.insert(key.to_owned(), value));
        put("code", json!(self.details().name));
        put("invocation_id", json!(about.invocation.to_string()));
        put("agent_id", json!(about.agent.to_string()));
        put("retryable", json!(wait.is_some()));
        match self {
            Self::Budget(exceeded) => {
                let used = exceeded.spent.saturating_add(exceeded.held);
                put("budget", json!(exceeded.account.as_str()));
                put("detail", json!(budget_explanation(exceeded)));
                put("limit", json!(exceeded.limit.to_decimal()));
                put("limit_micros", json!(exceeded.limit.get()));
                put("used", json!(not_rounded_down(used)));
                put("used_micros", json!(used.get()));
                put("price_micros", json!(exceeded.price.get()));
                if let Some(ends) = exceeded.ends {
                    put("resets_at", json!(ends.to_string()));
                }
            }
            Self::PiiInParams { classes } | Self::PiiInResult { classes } => {
                put(
                    "classes",
                    json!(classes.iter().map(|class| &**class).collect::<Vec<_>>()),
                );
            }
            Self::Invalid { faults } => put("faults", json!(faults)),
            Self::Concurrency(crowded) => {
                put("limited", json!("in_flight"));
                put("limit", json!(crowded.limit));
            }
            Self::InsufficientScope(needed) => put("scope", json!(needed.to_string())),
            Self::Rate(limited) => put("limited", json!(limited.scope.as_str())),
            Self::AgentDisabled
            | Self::Argument { .. }
            | Self::AuditUnavailable
            | Self::BudgetUnavailable
            | Self::Policy { .. }
            | Self::Profile
            | Self::State(_)
            | Self::TaskUnavailable
            | Self::UnknownTask
            | Self::UnknownTool { .. }
            | Self::Unrecorded => {}
        }
        if let Some(wait) = wait {
            data.insert("retryAfterMs".to_owned(), json!(error::millis(wait)));
        }
        data
    }
}

/// What is answered to a request of an agent that was refused too often.
pub(super) fn held_back_error(codes: ErrorCodes, agent: AgentId, wait: Duration) -> RpcError {
    let message = "Too many refused calls (governance.refusal_rate); slow down";
    RpcError::new(select_code(RATE_LIMITED, codes), message).with_data(json!({
        "code": RATE_LIMITED.name,
        "agent_id": agent.to_string(),
        "limited": "refusals",
        "retryable": true,
        "retryAfterMs": error::millis(wait),
    }))
}

/// The error of a call that its server did not answer, with whose call that was: `data` names them
/// as that of a refusal does.
fn with_call_data(mut error: RpcError, about: RefusedCall) -> RpcError {
    if let Some(Value::Object(data)) = &mut error.data {
        data.insert(
            "invocation_id".to_owned(),
            json!(about.invocation.to_string()),
        );
        data.insert("agent_id".to_owned(), json!(about.agent.to_string()));
    }
    error
}

/// The answer to a call of `method` that its server did not answer: `error`, with whose call that was. It
/// takes the form of a refusal where the failure is one that a model can work around.
pub(super) fn failure_outcome(
    error: RpcError,
    reason: FailureReason,
    (form, method): (ErrorForm, &Method),
    about: RefusedCall,
) -> Outcome {
    let error = with_call_data(error, about);
    // A person has to read the link, and most clients show errors to nobody.
    let is_result = form == ErrorForm::ToolResult || reason == FailureReason::NeedsSignIn;
    if !is_result || *method != Method::ToolsCall || !reason.is_of_server() {
        return Err(error.to_raw());
    }
    let data = error.data.unwrap_or_default();
    let wait = data.get("retryAfterMs").and_then(Value::as_u64);
    let wait = wait.map(|wait| format!("; try again in {wait} ms"));
    let text = format!(
        "{}{} ({})",
        error.message,
        wait.unwrap_or_default(),
        reason.code()
    );
    Ok(error_result(&text, (FAILURE_KEY, data), about))
}

/// A result that says that its tool failed, with what programs may want to know of it below a key of
/// `_meta`.
fn error_result(text: &str, (key, data): (&str, Value), about: RefusedCall) -> Raw {
    let mut result = json!({
        "content": [{ "type": "text", "text": text }],
        "isError": true,
        "_meta": { key: data },
    });
    if about.modern {
        result["resultType"] = json!("complete");
    }
    Raw::from_value(&result)
}

/// What a server is told when PII or a secret must not pass between it and its client. It does not
/// learn which.
pub(super) fn server_error(codes: ErrorCodes, message: &'static str) -> RpcError {
    let data = json!({ "code": PII_DETECTED.name, "retryable": false });
    RpcError::new(select_code(PII_DETECTED, codes), message).with_data(data)
}

fn select_code(row: RefusalDetails, codes: ErrorCodes) -> i64 {
    match codes {
        ErrorCodes::Contract => row.code,
        ErrorCodes::Portable => row.portable,
    }
}

/// How refusals are worded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RefusalStyle {
    /// As an error or as a tool's result.
    pub form: ErrorForm,
    /// Which codes.
    pub codes: ErrorCodes,
}

/// Whose call was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RefusedCall {
    /// The call.
    pub invocation: InvocationId,
    /// Its agent.
    pub agent: AgentId,
    /// Whether its client speaks 2026-07-28.
    pub modern: bool,
}

/// Where a tool result that refuses carries the data of the error it stands for.
pub const REFUSAL_KEY: &str = "tollbridge/refusal";

/// The key of `_meta` under which a result has the data of a failure of its server.
pub const FAILURE_KEY: &str = "tollbridge/failure";

const AUDIT_UNAVAILABLE: RefusalDetails = RefusalDetails {
    code: error::INTERNAL,
    portable: error::INTERNAL,
    name: "AUDIT_UNAVAILABLE",
    message: "The call cannot be recorded",
    rule: None,
    meaning: "The audit log cannot be written; `/status` says why. When the message says that \
              the call may have been carried out, it is not retryable.",
};

const BUDGET: RefusalDetails = RefusalDetails {
    code: -32001,
    portable: -31001,
    name: "BUDGET_EXCEEDED",
    message: "Budget limit exceeded",
    rule: Some(RuleKind::Budget),
    meaning: "A budget of the agent, its team or the server does not cover the price. `data` \
              has the budget, its limit, what is used, and `resets_at`; `data.detail` says \
              it in words, to the last digit.",
};

const BUDGET_UNAVAILABLE: RefusalDetails = RefusalDetails {
    code: error::INTERNAL,
    portable: error::INTERNAL,
    name: "BUDGET_UNAVAILABLE",
    message: "The budget cannot be checked",
    rule: None,
    meaning: "The database cannot be read or written; `/status` says why.",
};

const INVALID: RefusalDetails = RefusalDetails {
    code: error::INVALID_PARAMS,
    portable: error::INVALID_PARAMS,
    name: "INVALID_ARGUMENTS",
    message: "Arguments do not match the input schema",
    rule: None,
    meaning: "The arguments do not match the input schema of the tool (`validate`). \
              `data.faults` lists pointer and reason of each mismatch.",
};

const INVALID_STATE: RefusalDetails = RefusalDetails {
    code: error::INVALID_PARAMS,
    portable: error::INVALID_PARAMS,
    name: "INVALID_STATE",
    message: "Invalid requestState",
    rule: None,
    meaning: "The `requestState` is unknown, expired, used up, or belongs to another agent or \
              call. Make the call anew.",
};

const PII_DETECTED: RefusalDetails = RefusalDetails {
    code: -32002,
    portable: -31002,
    name: "PII_DETECTED",
    message: "PII in tool result",
    rule: Some(RuleKind::Scan),
    meaning: "The scan found a class with the action `block` in the params or in the result. \
              `data.classes` names it.",
};

pub(super) const RATE_LIMITED: RefusalDetails = RefusalDetails {
    code: -32004,
    portable: -31004,
    name: "RATE_LIMITED",
    message: "Rate limit exceeded",
    rule: Some(RuleKind::Rate),
    meaning: "A rate limit, `limits.in_flight_per_agent` or `governance.refusal_rate` is exceeded. \
              `data.limited` names it; retry after `data.retryAfterMs`.",
};

const TASK_UNAVAILABLE: RefusalDetails = RefusalDetails {
    code: error::INTERNAL,
    portable: error::INTERNAL,
    name: "TASK_UNAVAILABLE",
    message: "Cannot look up the task",
    rule: None,
    meaning: "The database cannot be read.",
};

const UNAUTHORIZED: RefusalDetails = RefusalDetails {
    code: -32003,
    portable: -31003,
    name: "UNAUTHORIZED",
    message: "Tool not authorized",
    rule: Some(RuleKind::Policy),
    meaning: "The policy, an argument rule or the route does not allow the call, or the agent \
              is disabled. `tollbridge policy explain` says which.",
};

const INSUFFICIENT_SCOPE: RefusalDetails = RefusalDetails {
    name: error::INSUFFICIENT_SCOPE,
    message: "Insufficient scope",
    rule: None,
    meaning: "The access token of the caller has not the scopes that `data.scope` names. Over HTTP the \
              status is 403, and clients ask their user for them.",
    ..UNAUTHORIZED
};

const UNKNOWN_TASK: RefusalDetails = RefusalDetails {
    code: error::INVALID_PARAMS,
    portable: error::INVALID_PARAMS,
    name: "TASK_NOT_FOUND",
    message: "Unknown task",
    rule: None,
    meaning: "The agent has no task with this id.",
};

const UNKNOWN_TOOL: RefusalDetails = RefusalDetails {
    code: error::INVALID_PARAMS,
    portable: error::INVALID_PARAMS,
    name: "TOOL_NOT_FOUND",
    message: "Unknown tool",
    rule: None,
    meaning: "The route has no tool with this name.",
};

/// The same for whom it refuses: with what the call costs, and when there is room again.
fn budget_explanation(exceeded: &Exceeded) -> String {
    let price = exceeded.price.to_decimal();
    let reset = match exceeded.ends {
        Some(ends) => format!("it resets at {ends}"),
        None => "it does not reset by itself".to_owned(),
    };
    let detail = budget_detail(exceeded, None);
    format!("{detail}; this call costs {price} USD; {reset}")
}

/// Two decimals, half up, as amounts are shown; exact where less than was used would be shown, as if there
/// were room.
fn not_rounded_down(used: Micros) -> String {
    let shown = used.to_string();
    let is_less = shown.parse().is_ok_and(|shown: Micros| shown < used);
    if is_less { used.to_decimal() } else { shown }
}

/// A budget and how it stands, for people; `None` of the agent itself.
fn budget_detail(exceeded: &Exceeded, agent: Option<&str>) -> String {
    let whose = exceeded.account.subject();
    let subject = match whose.as_ref().map(|(subject, _)| (subject.kind(), subject)) {
        Some((BudgetSubjectKind::Team, team)) => format!("team \"{}\"", team.id()),
        Some((BudgetSubjectKind::Server, server)) => format!("server \"{}\"", server.id()),
        Some((BudgetSubjectKind::Agent, _)) | None => match agent {
            Some(agent) => format!("agent \"{agent}\""),
            None => "this agent".to_owned(),
        },
    };
    let window = whose.as_ref().map_or(Window::Total, |(_, it)| *it).as_str();
    let (spent, limit) = (exceeded.spent.to_decimal(), exceeded.limit.to_decimal());
    let mut text = format!("budget of {subject} ({window}): {spent} of {limit} USD spent");
    for (amount, what) in [
        (exceeded.held, "reserved by running calls"),
        (exceeded.elsewhere, "reserved by other processes"),
    ] {
        if amount > Micros::ZERO {
            text.extend([", ", &amount.to_decimal(), " ", what]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Account;

    #[test]
    fn whatever_may_succeed_later_says_when() {
        let check = |refusal: Refusal, expect: Option<u64>| {
            let about = RefusedCall {
                invocation: InvocationId(uuid::Uuid::nil()),
                agent: AgentId::ANONYMOUS,
                modern: false,
            };
            let data = refusal.error_data(about);
            let wait = data.get("retryAfterMs").and_then(Value::as_u64);
            assert_eq!(wait, expect, "{refusal:?}");
            assert_eq!(data["retryable"], wait.is_some(), "{refusal:?}");
        };
        check(Refusal::AuditUnavailable, Some(1000));
        check(Refusal::BudgetUnavailable, Some(1000));
        check(Refusal::TaskUnavailable, Some(1000));
        check(Refusal::UnknownTask, None);
        let limit = std::num::NonZeroUsize::MIN;
        check(Refusal::Concurrency(TooManyInFlight { limit }), Some(1000));
        let fault = |is_for_now| SchemaMismatch {
            pointer: String::new(),
            reason: String::new(),
            keyword: String::new(),
            is_for_now,
        };
        let faults = vec![fault(false), fault(true)];
        check(Refusal::Invalid { faults }, Some(1000));
        let faults = vec![fault(false)];
        check(Refusal::Invalid { faults }, None);
        let exceeded = |kept_elsewhere: u64| Exceeded {
            account: Account::of("agent:x/total", 0),
            price: Micros::new(1),
            limit: Micros::new(2),
            spent: Micros::new(if kept_elsewhere > 0 { 1 } else { 2 }),
            held: Micros::ZERO,
            elsewhere: Micros::new(kept_elsewhere),
            ends: None,
        };
        check(Refusal::Budget(exceeded(1)), Some(1000));
        check(Refusal::Budget(exceeded(0)), None);
        let about = RefusedCall {
            invocation: InvocationId(uuid::Uuid::nil()),
            agent: AgentId::ANONYMOUS,
            modern: false,
        };
        // What other processes keep comes back, and a model reads that.
        let text = |kept| Refusal::Budget(exceeded(kept)).tool_result(about);
        let again = "it does not reset by itself; try again in 1000 ms (BUDGET_EXCEEDED)";
        assert!(text(1).as_str().contains(again), "{:?}", text(1));
        assert!(!text(0).as_str().contains("try again"), "{:?}", text(0));
        check(Refusal::Profile, None);
    }

    /// Whoever is refused reads whose budget it is, how it stands to the last digit, and when it resets.
    #[test]
    fn a_refusal_by_a_budget_says_all_of_it() {
        let check = |spent: u64, limit: u64, used: &str, detail: &str| {
            let refusal = Refusal::Budget(Exceeded {
                account: Account::of("team:r/2026-11-22", 0),
                price: Micros::new(15_000),
                limit: Micros::new(limit),
                spent: Micros::new(spent),
                held: Micros::ZERO,
                elsewhere: Micros::ZERO,
                ends: Some("2026-11-23T00:00:00Z".parse().unwrap()),
            });
            let about = RefusedCall {
                invocation: InvocationId(uuid::Uuid::nil()),
                agent: AgentId::ANONYMOUS,
                modern: false,
            };
            let data = refusal.error_data(about);
            assert_eq!(
                (&data["used"], &data["detail"]),
                (&json!(used), &json!(detail))
            );
            assert_eq!(data["resets_at"], "2026-11-23T00:00:00Z");
            let style = RefusalStyle {
                form: ErrorForm::ToolResult,
                codes: ErrorCodes::Contract,
            };
            let outcome = refusal
                .to_outcome(style, &Method::ToolsCall, about)
                .unwrap();
            let text = outcome.as_str();
            assert!(text.contains(&detail.replace('"', "\\\"")), "{text}");
        };
        let ending = "this call costs 0.015 USD; it resets at 2026-11-23T00:00:00Z";
        for (spent, limit, used, stands) in [
            (15_000, 20_000, "0.02", "0.015 of 0.02"),
            (994_000, 1_000_000, "0.994", "0.994 of 1.00"),
            (12_500, 12_500, "0.0125", "0.0125 of 0.0125"),
            (1_000_000, 1_000_000, "1.00", "1.00 of 1.00"),
        ] {
            let stands = format!("budget of team \"r\" (day): {stands} USD spent; {ending}");
            check(spent, limit, used, &stands);
        }
    }

    #[test]
    fn a_budget_is_named_as_people_know_it() {
        let check = |fund: &str, held: u64, expect: &str| {
            let refusal = Refusal::Budget(Exceeded {
                account: Account::of(fund, 3),
                price: Micros::new(15_000),
                limit: Micros::new(1_000_000),
                spent: Micros::new(995_000),
                held: Micros::new(held),
                elsewhere: Micros::ZERO,
                ends: None,
            });
            assert_eq!(refusal.audit_rule("alice"), expect);
        };
        let agent = format!("agent:{}", AgentId::ANONYMOUS);
        check(
            &format!("{agent}/2026-11-22"),
            0,
            r#"budget of agent "alice" (day): 0.995 of 1.00 USD spent"#,
        );
        check(
            "team:r/d/2026-11",
            5_000,
            r#"budget of team "r/d" (month): 0.995 of 1.00 USD spent, 0.005 reserved by running calls"#,
        );
        check(
            "server:my-docs/total",
            0,
            r#"budget of server "my-docs" (total): 0.995 of 1.00 USD spent"#,
        );
    }
}
