//! What ends when an agent is shown out: its key was revoked or has expired, or it is disabled or gone. What came in by a
//! grant ends with that, too.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::clock;

/// Between looks at the clock, which may be set, and goes on while the machine sleeps.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Whether who came in as an agent may stay. Two agents do not differ in it.
#[derive(Clone, Debug, Default)]
pub struct AgentValidity {
    ended: CancellationToken,
    /// Cancelled when the grant by which the agent came in is revoked, where it came in by one.
    grant: Option<CancellationToken>,
}

impl AgentValidity {
    /// Cancelled when the agent is shown out.
    pub fn token(&self) -> &CancellationToken {
        &self.ended
    }

    /// Cancelled when the grant by which the agent came in is revoked.
    pub fn grant(&self) -> Option<&CancellationToken> {
        self.grant.as_ref()
    }

    /// That of the same agent, come in by a grant.
    pub(super) fn by_grant(&self) -> Self {
        Self {
            ended: self.ended.child_token(),
            grant: Some(CancellationToken::new()),
        }
    }

    pub(super) fn revoke(&self) {
        self.ended.cancel();
    }

    pub(super) fn revoke_grant(&self) {
        if let Some(grant) = &self.grant {
            grant.cancel();
        }
        self.ended.cancel();
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.ended.is_cancelled()
    }

    pub(super) fn is_grant_revoked(&self) -> bool {
        self.grant
            .as_ref()
            .is_some_and(CancellationToken::is_cancelled)
    }
}

/// Whether an access token still counts, as who issued it says. Two tokens do not differ in it.
#[derive(Clone, Debug, Default)]
pub struct TokenValidity(CancellationToken);

impl TokenValidity {
    /// Ends what is under way by the token.
    pub fn revoke(&self) {
        self.0.cancel();
    }
}

impl PartialEq for TokenValidity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// How long what was begun with the credential of a request may go on. A key has no end of its own.
#[derive(Clone, Debug, Default)]
pub struct CredentialLifetime {
    /// When the time of the token passes.
    pub(super) expires: Option<Timestamp>,
    /// Cancelled when the grant behind the token is revoked.
    pub(super) grant: Option<CancellationToken>,
    /// Ends when the token itself is revoked.
    pub(super) token: TokenValidity,
}

impl CredentialLifetime {
    /// Completes when it is over; never for what has no end.
    pub async fn ended(&self) {
        let revoked = async {
            match &self.grant {
                Some(grant) => grant.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let expired = async {
            let Some(expires) = self.expires else {
                return std::future::pending().await;
            };
            while let Ok(left) = Duration::try_from(expires.duration_since(clock::now()))
                && !left.is_zero()
            {
                tokio::time::sleep(left.min(CLOCK_CHECK_INTERVAL)).await;
            }
        };
        tokio::select! {
            biased;
            () = expired => {}
            () = revoked => {}
            () = self.token.0.cancelled() => {}
        }
    }
}

impl PartialEq for AgentValidity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
