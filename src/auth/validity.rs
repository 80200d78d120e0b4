//! What ends when an agent is shown out: its key was revoked or has expired, or it is disabled or gone.

use tokio_util::sync::CancellationToken;

/// Whether who came in as an agent may stay. Two agents do not differ in it.
#[derive(Clone, Debug, Default)]
pub struct AgentValidity(CancellationToken);

impl AgentValidity {
    /// Cancelled when the agent is shown out.
    pub fn token(&self) -> &CancellationToken {
        &self.0
    }

    pub(super) fn revoke(&self) {
        self.0.cancel();
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl PartialEq for AgentValidity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
