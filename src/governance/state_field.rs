//! The member `requestState`, and what can be wrong with it.

use jiff::Timestamp;
use std::fmt;
use uuid::Uuid;

use crate::{mcp::Raw, names::InvocationId};

/// The member of results and of params.
pub(super) const STATE: &str = "requestState";

/// Why a state is not passed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidState {
    /// Nobody here gave it away.
    #[error("it is none that was given out here")]
    Foreign,
    /// It belongs elsewhere, or somebody has changed it.
    #[error("it was given to another agent or for another call")]
    Other,
    /// It was brought back more often than answers get lost.
    #[error(
        "it was used {STATE_USES_MAX} times, which is as often as it is good for; make the call anew"
    )]
    Used,
    /// It was given away too long ago.
    #[error("it has expired; make the call anew")]
    Expired,
}

/// Whether `result` asks its client to come back; no other has a state, whatever it calls so.
pub(super) fn asks_for_more(result: &Raw) -> bool {
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
    pub(super) until: i64,
    /// The call that it was given in, which makes it unique: a server may give two that are alike.
    pub(super) nonce: Uuid,
}

impl StateId {
    pub(super) fn new(until: Timestamp, given_in: InvocationId) -> Self {
        Self {
            until: until.as_second(),
            nonce: given_in.0,
        }
    }

    pub(super) fn parse(until: &str, nonce: &str) -> Option<Self> {
        Some(Self {
            until: until.parse().ok()?,
            nonce: Uuid::try_parse(nonce).ok()?,
        })
    }
}

/// As it stands in a sealed state.
impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.until, self.nonce.simple())
    }
}
