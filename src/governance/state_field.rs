//! The member `requestState`, and what can be wrong with it.

use jiff::Timestamp;
use std::fmt;
use uuid::Uuid;

use crate::{mcp::Raw, names::InvocationId};

/// The member of results and of params.
pub(super) const REQUEST_STATE: &str = "requestState";

/// Why a state is not passed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidState {
    /// Nobody here gave it away.
    #[error("it was not issued by this gateway")]
    Foreign,
    /// It belongs elsewhere, or somebody has changed it.
    #[error("it was issued for another agent or call")]
    Mismatch,
    /// It was brought back more often than answers get lost.
    #[error("it was used {STATE_USES_MAX} times, the maximum; repeat the call")]
    Used,
    /// It was given away too long ago.
    #[error("it has expired; repeat the call")]
    Expired,
}

/// Whether `result` asks its client to come back; no other has a state, whatever it calls so.
pub(super) fn is_input_required(result: &Raw) -> bool {
    let said = result.get("resultType");
    said.is_some_and(|said| said.as_text().as_deref() == Some("input_required"))
}

/// Requests with one state that may reach its server: one, and more for answers that were lost on their way.
/// No setting: no server needs another number.
pub const STATE_USES_MAX: u8 = 8;

/// Which state it is. Those that end first come first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct StateId {
    /// Until when it holds, in seconds since 1970.
    pub(super) expires: i64,
    /// The call that it was given in, which makes it unique: a server may give two that are alike.
    pub(super) given_in: Uuid,
}

impl StateId {
    pub(super) fn new(until: Timestamp, given_in: InvocationId) -> Self {
        Self {
            expires: until.as_second(),
            given_in: given_in.0,
        }
    }

    pub(super) fn parse(until: &str, nonce: &str) -> Option<Self> {
        Some(Self {
            expires: until.parse().ok()?,
            given_in: Uuid::try_parse(nonce).ok()?,
        })
    }
}

/// As it stands in a sealed state.
impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.expires, self.given_in.simple())
    }
}
