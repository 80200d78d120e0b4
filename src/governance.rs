//! What every call passes before it may reach a server, and after.
//!
//! [`Governance::admit`] alone can make an [`Admitted`], and `backend::Backends::forward` accepts
//! nothing else: an ungoverned call does not compile. The present policy admits everything.

pub mod arguments;
pub mod policy;
pub mod rate;
pub mod budget;

use crate::{
    mcp::{Outcome, RpcError},
    router::Routed,
    session::Call,
};

/// The policy in force.
#[derive(Debug, Default)]
pub struct Governance {}

/// Opened for every call, settled exactly once, however it ends.
#[derive(Debug)]
#[must_use = "a ticket is settled with the outcome of its call"]
pub struct Ticket {}

/// A call that may reach its server.
#[derive(Debug)]
pub struct Admitted {
    routed: Routed,
}

impl Admitted {
    /// The call and its target.
    pub fn routed(&self) -> &Routed {
        &self.routed
    }
}

impl Governance {
    /// Opens the ticket of a call.
    pub fn open(&self, _call: &Call) -> Ticket {
        Ticket {}
    }

    /// Decides whether a call may reach its server.
    ///
    /// # Errors
    /// The refusal, with the call's ticket still open.
    pub fn admit(&self, routed: Routed, _ticket: &mut Ticket) -> Result<Admitted, RpcError> {
        Ok(Admitted { routed })
    }

    /// Settles a call with its outcome, which is what the client gets.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub fn settle(&self, ticket: Ticket, outcome: Outcome) -> Outcome {
        let Ticket {} = ticket;
        outcome
    }
}
