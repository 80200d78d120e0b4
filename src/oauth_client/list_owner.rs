//! Whose grant the lists of a server come from that each agent signs in to.

use super::{GrantError, Grants};
use crate::{
    names::ServerName,
    store::{GrantOwner, GrantState},
};

impl Grants {
    /// Whose grant the lists of `server` come from: the gateway's own, else the one that was granted first; where tokens
    /// of callers are exchanged, that of an agent who showed one.
    ///
    /// # Errors
    /// [`GrantError::NeedsSignIn`] while nobody has signed in.
    pub async fn list_owner(&self, server: &ServerName) -> Result<GrantOwner, GrantError> {
        let server = self.server(server)?;
        if server.takes_subjects() {
            let agents = self.0.subjects.iter().map(|it| *it.key());
            let agent = agents.min_by_key(|agent| agent.0);
            return agent.map(GrantOwner::Agent).ok_or(GrantError::NeedsSignIn);
        }
        let stored = self.storage()?.store.grants.all_grants(None).await?;
        let usable = stored
            .into_iter()
            .filter(|grant| server.has_made(grant) && grant.state == GrantState::Active);
        let first = usable.min_by_key(|it| (it.key.owner != GrantOwner::Gateway, it.granted));
        first
            .map(|grant| grant.key.owner)
            .ok_or(GrantError::NeedsSignIn)
    }
}
