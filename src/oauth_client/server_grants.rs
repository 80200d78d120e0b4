//! The grants towards one server, as its backend holds them.

use std::sync::Arc;

use rmcp::transport::auth::WWWAuthenticateParams;
use tokio::sync::broadcast;

use super::{AccessToken, GrantChange, GrantError, Grants, OAuthServer, Rejection, slot::Usable};
use crate::store::GrantOwner;

/// The grants towards one server, as the config had it when its backend was made: one that takes its name later, with
/// another URL, has others.
#[derive(Clone, Debug)]
pub struct ServerGrants {
    pub(super) grants: Grants,
    pub(super) server: Arc<OAuthServer>,
}

impl ServerGrants {
    /// Whether each agent has a grant of its own.
    pub fn is_per_agent(&self) -> bool {
        self.server.grant.is_per_agent()
    }

    /// What becomes of grants, also of those towards other servers.
    pub fn subscribe_changes(&self) -> broadcast::Receiver<GrantChange> {
        self.grants.subscribe_changes()
    }

    /// The token of `owner`. A grant by exchange exchanges the token that the agent showed last.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn access_token(&self, owner: GrantOwner) -> Result<AccessToken, GrantError> {
        let Self { grants, server } = self;
        let owner = server.owner(owner);
        let slot = server.slot(owner);
        match slot.usable(grants.now()) {
            Usable::Yes(token) => return Ok(token),
            Usable::Due(token) => {
                if let Ok(turn) = Arc::clone(&slot.renewing).try_lock_owned()
                    && slot.failure().is_none()
                {
                    // Who is not waited for says nothing.
                    let subject = grants.subject(owner);
                    drop(grants.spawn_renewal(turn, Arc::clone(server), owner, subject));
                }
                return Ok(token);
            }
            Usable::No => {}
        }
        let turn = Arc::clone(&slot.renewing).lock_owned().await;
        if let Some(token) = slot.last_resort(grants.now()) {
            return Ok(token);
        }
        if let Some(error) = slot.failure() {
            return Err(error);
        }
        let subject = grants.subject(owner);
        let renewed = grants.spawn_renewal(turn, Arc::clone(server), owner, subject);
        renewed.await.unwrap_or_else(|_| {
            Err(GrantError::Unreachable {
                reason: "the gateway is stopping".to_owned(),
            })
        })
    }

    /// Says that the server did not take `token` of `owner`: `is_forbidden` for a 403, else it was a 401. With the
    /// header `WWW-Authenticate` of its answer.
    pub fn rejected(
        &self,
        owner: GrantOwner,
        token: &AccessToken,
        (is_forbidden, challenge): (bool, Option<&str>),
    ) -> Rejection {
        let Self { grants, server } = self;
        let slot = server.slot(server.owner(owner));
        let params = WWWAuthenticateParams::parse(challenge.unwrap_or_default(), &server.url);
        if params.is_insufficient_scope() {
            let scopes = params.scope.unwrap_or_default();
            let scopes: Vec<_> = scopes.split_ascii_whitespace().map(str::to_owned).collect();
            return slot.step_up(token, &scopes, server.is_interactive());
        }
        if is_forbidden {
            return Rejection::Final;
        }
        slot.reject(token, challenge, grants.now())
    }

    /// Whose grant the lists of the server come from: the gateway's own, else the one that was granted first; where
    /// tokens of callers are exchanged, that of an agent who showed one: the one of `before`, as long as it can be.
    ///
    /// # Errors
    /// [`GrantError::NeedsSignIn`] while nobody has signed in.
    pub async fn list_owner(&self, before: Option<GrantOwner>) -> Result<GrantOwner, GrantError> {
        let Self { grants, server } = self;
        if server.grant.takes_subjects() {
            if let Some(before) = before
                && grants.subject(before).is_some()
            {
                return Ok(before);
            }
            let agents = grants.0.subjects.iter().map(|it| *it.key());
            let agent = agents.min_by_key(|agent| agent.0);
            return agent.map(GrantOwner::Agent).ok_or(GrantError::NeedsSignIn);
        }
        let store = &grants.storage()?.store.grants;
        let issuer = server.grant.issuer.as_deref();
        let found = store.first_owner(&server.grant_resource(), issuer).await?;
        found.ok_or(GrantError::NeedsSignIn)
    }
}
