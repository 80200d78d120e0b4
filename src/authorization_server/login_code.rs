//! Codes that an administrator gives a person, who logs in with one once.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    AuthorizationServer, ServerError, sealing_key,
    secret::{self, LOGIN_PREFIX},
    tokens,
};
use crate::{
    names::AgentId,
    store::{Store, StoredLoginCode, TokenHash},
};

/// The text of a code. It is shown once, when it is made.
#[derive(Clone)]
pub struct LoginCode(String);

impl LoginCode {
    /// Makes a code for logging in as `agent`, which is good for so long, and what `store` is to keep of it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn generate(
        agent: AgentId,
        lifetime: Duration,
        now: Timestamp,
        store: &Store,
    ) -> Result<(Self, StoredLoginCode), ServerError> {
        let (text, hash) = secret::generate(LOGIN_PREFIX)?;
        let expires = tokens::after(now, lifetime);
        let body = LoginCodeBody { agent, expires };
        let sealed = sealing_key(store).seal(&place(&hash), &serde_json::to_vec(&body)?)?;
        let stored = StoredLoginCode {
            hash,
            agent,
            body: sealed,
            expires,
        };
        Ok((Self(text), stored))
    }

    /// The text itself; call it only where it is shown to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LoginCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginCode(***)")
    }
}

/// The sealed part of a login code.
#[derive(Debug, Deserialize, Serialize)]
struct LoginCodeBody {
    agent: AgentId,
    #[serde(with = "super::time_ms")]
    expires: Timestamp,
}

impl AuthorizationServer {
    /// The agent that `code` is for, which is used up; `None` where it is none, or its time has passed.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn use_login_code(
        &self,
        code: &str,
        now: Timestamp,
    ) -> Result<Option<AgentId>, ServerError> {
        let code = code.trim();
        if !code.starts_with(LOGIN_PREFIX) {
            return Ok(None);
        }
        let Some(stored) = self.store.take_login_code(TokenHash::of(code)).await? else {
            return Ok(None);
        };
        let body: Option<LoginCodeBody> = self.open(&place(&stored.hash), &stored.body);
        let body = body.filter(|body| now < body.expires);
        Ok(body.map(|body| body.agent))
    }
}

fn place(hash: &TokenHash) -> String {
    format!("oauth_login_codes/{}", hex::encode(hash.0))
}
