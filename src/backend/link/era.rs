//! What an answer says of the era of its server.

use crate::{
    backend::BackendError,
    mcp::{Outcome, error},
};

/// Whether this answer is one that a server of another era than the one that was greeted may give.
/// Errors of tools look alike, so whoever doubts asks `server/discover` or `ping`.
pub(in crate::backend) fn suggests_other_era(answer: &Result<Outcome, BackendError>) -> bool {
    match answer {
        Ok(Ok(_)) => false,
        Ok(Err(refusal)) => {
            error::code(refusal).is_some_and(|code| ERA_MISMATCH_CODES.contains(&code))
        }
        Err(failure) => failure.is_legacy_rejection(),
    }
}

/// Whether this answer to a request of the legacy era is what servers of 2026-07-28 say to whoever sends
/// no envelope, or asks what that revision does not have. Servers of the legacy era say so all the time,
/// some of them to each `ping`: only `server/discover` tells.
pub(in crate::backend) fn suggests_modern(answer: &Result<Outcome, BackendError>) -> bool {
    let refusal = answer.as_ref().ok().and_then(|it| it.as_ref().err());
    let code = refusal.and_then(error::code);
    matches!(code, Some(error::INVALID_PARAMS | error::METHOD_NOT_FOUND))
}

/// What an SDK of the legacy era has for all that is wrong with a session.
pub(in crate::backend) const NO_SESSION_CODE: i64 = -32000;

/// Codes of servers that meet a request of another era: those of 2026-07-28, and two that SDKs of
/// the legacy era have for requests without a session.
const ERA_MISMATCH_CODES: [i64; 5] = [
    error::HEADER_MISMATCH,
    error::MISSING_CAPABILITY,
    error::UNSUPPORTED_VERSION,
    error::INVALID_REQUEST,
    NO_SESSION_CODE,
];
