//! The access token that each request to a server with `auth.type = "oauth2"` carries.
//!
//! Held by the links of `transport`. Tokens come and go while a connection stands, so that none is kept here: each
//! request asks [`ServerGrants`] for the one of the moment, which costs a look as long as it is good. A token that the
//! server refuses is reported, and the request is sent once more with the next one.
//!
//! A server may know a connection by the account that opened it. So all tokens of a connection are of one grant: when
//! that is gone, or another is in its place, the connection ends.

use std::{
    future::pending,
    sync::{Arc, OnceLock},
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header::WWW_AUTHENTICATE};
use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::{BackendError, SharedState, instance::Connection};
use crate::{
    names::AgentId,
    oauth_client::{AccessToken, GrantChange, GrantError, Rejection, ServerGrants},
    store::GrantOwner,
};

/// Whose access token a request carries.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum TokenOwner {
    /// The agent that calls.
    Agent(AgentId),
    /// The gateway, for all agents.
    Gateway,
    /// Whoever the lists of a server come from that each agent signs in to: the operator, or the agent who did so
    /// first.
    Lists,
}

/// What `error` means for a call to a server that each agent has tokens of its own for, or not.
fn to_backend_error(error: GrantError, per_user: bool) -> BackendError {
    match error {
        GrantError::NeedsSignIn => BackendError::NeedsSignIn { per_user },
        GrantError::Unreachable { .. } => BackendError::Connect {
            reason: error.to_string(),
        },
        GrantError::Refused { reason } | GrantError::Store { reason } => {
            BackendError::TokenRefused { reason }
        }
    }
}

/// Gives each request of a link its token.
#[derive(Clone, Debug)]
pub(super) struct CredentialSource {
    grants: ServerGrants,
    owner: TokenOwner,
    shared: Arc<SharedState>,
    pinned: Arc<PinnedGrant>,
}

/// The grant whose tokens a connection carries, from the first on.
#[derive(Debug, Default)]
struct PinnedGrant {
    /// Whose it is, and when somebody signed in for it.
    grant: OnceLock<(GrantOwner, Option<Timestamp>)>,
    /// Whether a request was to have a token of another one.
    is_over: CancellationToken,
}

impl CredentialSource {
    /// The tokens of `owner` for the server of `shared`.
    pub(super) fn new(grants: &ServerGrants, owner: TokenOwner, shared: &Arc<SharedState>) -> Self {
        Self {
            grants: grants.clone(),
            owner,
            shared: Arc::clone(shared),
            pinned: Arc::default(),
        }
    }

    /// Fails where there is no token.
    pub(super) async fn check(&self) -> Result<(), BackendError> {
        self.token().await.map(drop)
    }

    /// What `send` sends with the token of the moment; it is called once more where the server refuses that and there
    /// is another.
    pub(super) async fn send<B, F>(
        &self,
        send: impl Fn(Option<HeaderValue>) -> F,
    ) -> Result<Response<B>, BackendError>
    where
        F: Future<Output = Result<Response<B>, BackendError>>,
    {
        let first = self.token_or_none().await?;
        let response = send(header(first.as_ref())).await?;
        let Some(refusal) = TokenRefusal::of(response.status(), response.headers()) else {
            return Ok(response);
        };
        if !self.note_refused(first.as_ref(), refusal)? {
            return Ok(response);
        }
        let second = self.token().await?;
        let response = send(header(Some(&second))).await?;
        if let Some(refusal) = TokenRefusal::of(response.status(), response.headers()) {
            self.note_refused(Some(&second), refusal)?;
        }
        Ok(response)
    }

    /// What `open` opens with the token of the moment; it is called once more where the server refuses that and there
    /// is another.
    pub(super) async fn open<T, F>(
        &self,
        open: impl Fn(Option<HeaderValue>) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let first = self.token_or_none().await?;
        let opened = open(header(first.as_ref())).await;
        let Err(BackendError::Unauthorized { status, .. }) = &opened else {
            return opened;
        };
        let refusal = TokenRefusal {
            is_forbidden: *status == StatusCode::FORBIDDEN,
            challenge: None,
        };
        if !self.note_refused(first.as_ref(), refusal)? {
            return opened;
        }
        open(header(Some(&self.token().await?))).await
    }

    /// The token of a request. A server may give its lists to everybody, and is asked for them without one as long as
    /// there is none.
    async fn token_or_none(&self) -> Result<Option<OwnedToken>, BackendError> {
        match self.token().await {
            Ok(token) => Ok(Some(token)),
            Err(BackendError::NeedsSignIn { .. }) if self.owner == TokenOwner::Lists => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn token(&self) -> Result<OwnedToken, BackendError> {
        let found = self.find_token().await;
        let is_pinned = self.pinned.grant.get().is_some();
        if let Err(BackendError::NeedsSignIn { .. }) = &found
            && is_pinned
            && self.owner == TokenOwner::Lists
        {
            return Err(self.end());
        }
        let found = found?;
        let grant = (found.owner, found.token.granted());
        if *self.pinned.grant.get_or_init(|| grant) == grant {
            Ok(found)
        } else {
            Err(self.end())
        }
    }

    /// Ends the connection; what its request is told.
    fn end(&self) -> BackendError {
        self.pinned.is_over.cancel();
        BackendError::SessionGone
    }

    async fn find_token(&self) -> Result<OwnedToken, BackendError> {
        let owner = self.grant_owner().await?;
        let found = self.grants.access_token(owner).await;
        let token = found.map_err(|error| to_backend_error(error, self.is_per_agent()))?;
        Ok(OwnedToken { token, owner })
    }

    async fn grant_owner(&self) -> Result<GrantOwner, BackendError> {
        match self.owner {
            TokenOwner::Agent(agent) => Ok(GrantOwner::Agent(agent)),
            TokenOwner::Gateway => Ok(GrantOwner::Gateway),
            TokenOwner::Lists => {
                let before = self.pinned.grant.get().map(|(owner, _)| *owner);
                let found = self.grants.list_owner(before).await;
                self.shared.note_list_owner(found.as_ref().ok().copied());
                found.map_err(|error| to_backend_error(error, true))
            }
        }
    }

    /// Ends `connection`, also its open streams, once the grant is gone whose tokens it carries.
    pub(super) fn watch_grant(self, connection: &Connection) {
        let requests = Arc::clone(&connection.link.requests);
        let is_http = connection.link.as_http().is_some();
        let tasks = requests.tasks.clone();
        tasks.spawn("grant of a connection", async move {
            tokio::select! {
                () = self.grant_gone() => {}
                () = self.pinned.is_over.cancelled() => {}
                () = requests.closed.cancelled() => return,
            }
            if is_http {
                requests.close_session_lost();
            } else {
                requests.close("the grant that it was opened with is gone");
            }
        });
    }

    /// Completes when the grant is gone whose tokens the connection carries, or another is in its place.
    async fn grant_gone(&self) {
        let mut changes = self.grants.subscribe_changes();
        while self.is_grant_there().await {
            loop {
                match changes.recv().await {
                    Ok(change) if !self.is_affected_by(&change) => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => pending().await,
                }
            }
        }
    }

    async fn is_grant_there(&self) -> bool {
        let is_pinned = self.pinned.grant.get().is_some();
        match self.token().await {
            Err(BackendError::SessionGone) => false,
            Err(BackendError::NeedsSignIn { .. }) => !is_pinned,
            Ok(_) | Err(_) => true,
        }
    }

    fn is_affected_by(&self, change: &GrantChange) -> bool {
        let GrantChange::Here { server, owner } = change else {
            return true;
        };
        let is_own = match self.owner {
            TokenOwner::Agent(agent) => *owner == GrantOwner::Agent(agent),
            TokenOwner::Gateway | TokenOwner::Lists => true,
        };
        is_own && *server == self.shared.server
    }

    fn is_per_agent(&self) -> bool {
        self.owner != TokenOwner::Gateway
    }

    /// Reports that the server refused a request with `token`: whether another try is worth it.
    fn note_refused(
        &self,
        token: Option<&OwnedToken>,
        refusal: TokenRefusal<'_>,
    ) -> Result<bool, BackendError> {
        let missing = BackendError::NeedsSignIn {
            per_user: self.is_per_agent(),
        };
        let Some(OwnedToken { token, owner }) = token else {
            return Err(missing);
        };
        let TokenRefusal {
            is_forbidden,
            challenge,
        } = refusal;
        let said = (is_forbidden, challenge);
        match self.grants.rejected(*owner, token, said) {
            Rejection::Retry => Ok(true),
            Rejection::SignIn => Err(missing),
            Rejection::Final => Ok(false),
        }
    }
}

/// A token, and whose it is.
struct OwnedToken {
    token: AccessToken,
    owner: GrantOwner,
}

fn header(token: Option<&OwnedToken>) -> Option<HeaderValue> {
    token.map(|owned| owned.token.header().clone())
}

/// How a server refused a token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct TokenRefusal<'r> {
    /// Whether it was a 403, and no 401.
    is_forbidden: bool,
    /// What it says in `WWW-Authenticate` of tokens.
    challenge: Option<&'r str>,
}

impl<'r> TokenRefusal<'r> {
    /// The refusal that the head of a response is. A 403 is one of the token only where it says so.
    fn of(status: StatusCode, headers: &'r HeaderMap) -> Option<Self> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|value| value.to_str().ok());
        let challenge = challenges.find(|it| has_bearer(it));
        let is_forbidden = status == StatusCode::FORBIDDEN;
        let is_refusal = status == StatusCode::UNAUTHORIZED || is_forbidden && challenge.is_some();
        is_refusal.then_some(Self {
            is_forbidden,
            challenge,
        })
    }
}

/// Whether one of the challenges is of the scheme `Bearer`.
fn has_bearer(challenges: &str) -> bool {
    let words = challenges.split([' ', ',']);
    words
        .into_iter()
        .any(|word| word.eq_ignore_ascii_case("bearer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No token helps against a plain 403.
    #[test]
    fn only_refusals_of_a_token_are_taken_for_that() {
        let check = |status: u16, challenge: Option<&'static str>, expect: Option<Option<&str>>| {
            let mut headers = HeaderMap::new();
            if let Some(challenge) = challenge {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            let status = StatusCode::from_u16(status).unwrap();
            let found = TokenRefusal::of(status, &headers);
            assert_eq!(
                found.map(|it| it.challenge),
                expect,
                "{status} {challenge:?}"
            );
        };
        let scope = r#"bearer error="insufficient_scope""#;
        let second = r#"Basic realm="a", Bearer error="invalid_token""#;
        check(401, None, Some(None));
        check(401, Some(scope), Some(Some(scope)));
        check(401, Some(second), Some(Some(second)));
        check(401, Some("Basic realm=x"), Some(None));
        check(403, None, None);
        check(403, Some("Basic realm=x"), None);
        check(403, Some(scope), Some(Some(scope)));
        check(400, Some("Bearer"), None);
        check(200, None, None);
    }
}
