//! What is kept of a grant, sealed.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    GrantError,
    token_endpoint::{OAuthClient, TokenEndpoint, TokenResponse},
};
use crate::{
    sealing::SealingKey,
    store::{GrantKey, GrantState, StoreError, StoredGrant},
};

/// The secrets of a grant, and what it takes to renew it.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct GrantRecord {
    pub(super) tokens: TokenResponse,
    #[serde(with = "millis")]
    pub(super) received: Timestamp,
    pub(super) client: OAuthClient,
    pub(super) token_endpoint: TokenEndpoint,
    pub(super) revocation_endpoint: Option<String>,
    /// The parameter `resource`.
    pub(super) resource: String,
    /// What is granted.
    pub(super) scopes: Vec<String>,
}

/// A grant as it is kept, opened.
#[derive(Clone)]
pub(super) struct OpenGrant {
    pub(super) key: GrantKey,
    pub(super) state: GrantState,
    pub(super) granted: Timestamp,
    pub(super) record: GrantRecord,
}

impl GrantRecord {
    /// When the time of the access token passes.
    pub(super) fn expires(&self) -> Option<Timestamp> {
        let lifetime = i64::try_from(self.tokens.expires_in?).unwrap_or(i64::MAX);
        (self.received)
            .checked_add(SignedDuration::from_secs(lifetime))
            .ok()
    }

    /// The same with `tokens` in place of those of before. A refresh token is good until there is another.
    pub(super) fn renewed(&self, tokens: TokenResponse, received: Timestamp) -> Self {
        let scopes = tokens.scopes.clone();
        let mut renewed = self.clone();
        let before = std::mem::replace(&mut renewed.tokens, tokens);
        if renewed.tokens.refresh_token.is_none() {
            renewed.tokens.refresh_token = before.refresh_token;
        }
        renewed.received = received;
        renewed.scopes = scopes.unwrap_or(renewed.scopes);
        renewed
    }
}

impl OpenGrant {
    pub(super) fn seal(&self, key: &SealingKey) -> Result<StoredGrant, GrantError> {
        Ok(StoredGrant {
            key: self.key.clone(),
            state: self.state,
            scopes: self.record.scopes.join(" "),
            granted: self.granted,
            refreshed: self.record.received,
            expires: self.record.expires(),
            sealed: seal(key, &self.key.place(), &self.record)?,
        })
    }

    /// Whether this is the grant of `stored` with a newer token.
    pub(super) fn renews(&self, stored: &StoredGrant) -> bool {
        // The store has milliseconds.
        let millis = |granted: Timestamp, refreshed: Timestamp| {
            (granted.as_millisecond(), refreshed.as_millisecond())
        };
        let own = millis(self.granted, self.record.received);
        let there = millis(stored.granted, stored.refreshed);
        own.0 == there.0 && own.1 > there.1
    }

    pub(super) fn open(stored: StoredGrant, key: &SealingKey) -> Result<Self, GrantError> {
        Ok(Self {
            record: open(key, &stored.key.place(), &stored.sealed)?,
            key: stored.key,
            state: stored.state,
            granted: stored.granted,
        })
    }
}

/// A time in milliseconds, as the store has it.
mod millis {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        time.as_millisecond().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        Timestamp::from_millisecond(i64::deserialize(from)?).map_err(Error::custom)
    }
}

/// `value`, sealed for `place`.
pub(super) fn seal(
    key: &SealingKey,
    place: &str,
    value: &impl Serialize,
) -> Result<Vec<u8>, GrantError> {
    let failed = |error: &dyn std::fmt::Display| GrantError::Store {
        reason: format!("cannot seal {place}: {error}"),
    };
    let text = serde_json::to_vec(value).map_err(|error| failed(&error))?;
    key.seal(place, &text).map_err(|error| failed(&error))
}

/// What was sealed for `place`.
pub(super) fn open<T: DeserializeOwned>(
    key: &SealingKey,
    place: &str,
    sealed: &[u8],
) -> Result<T, GrantError> {
    let failed = |error: &dyn std::fmt::Display| GrantError::Store {
        reason: format!("cannot read {place}: {error}"),
    };
    let text = key.open(place, sealed).map_err(|error| failed(&error))?;
    // What it could not read it would show.
    serde_json::from_slice(&text).map_err(|_| failed(&"it was written by another version"))
}

impl From<StoreError> for GrantError {
    fn from(error: StoreError) -> Self {
        Self::Store {
            reason: error.to_string(),
        }
    }
}
