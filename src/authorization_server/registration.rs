//! Clients that register themselves (RFC 7591).

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    AuthorizationServer, ServerError,
    client::{
        ClientAuth, ClientBody, ClientMetadata, InvalidClientMetadata, registration_response,
    },
    client_place,
    secret::{self, CLIENT_PREFIX},
};
use crate::store::StoredOAuthClient;

/// How a client shows who it is that does not say so: it has no secret, as nearly all clients of MCP.
const AUTH_METHOD_DEFAULT: &str = "none";

/// Why a client is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// There are too many, all with a grant.
    #[error(
        "too many clients are registered, and all have grants; the operator raises oauth.registrations_max"
    )]
    Full,
    /// What it says of itself.
    #[error(transparent)]
    Metadata(#[from] InvalidClientMetadata),
    /// The config does not let clients register.
    #[error("clients do not register here: use the URL of a client metadata document")]
    Off,
    /// We cannot go on.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl RegistrationError {
    /// The code of the error (RFC 7591, section 3.2.2).
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Full => "temporarily_unavailable",
            Self::Metadata(
                InvalidClientMetadata::RedirectUri { .. } | InvalidClientMetadata::RedirectUris,
            ) => "invalid_redirect_uri",
            Self::Metadata(
                InvalidClientMetadata::AuthMethod(_)
                | InvalidClientMetadata::ClientId(_)
                | InvalidClientMetadata::GrantTypes,
            ) => "invalid_client_metadata",
            Self::Off => "access_denied",
            Self::Server(_) => "server_error",
        }
    }
}

impl AuthorizationServer {
    /// Registers a client; gives what it is told.
    ///
    /// # Errors
    /// Why it is not registered.
    pub async fn register(
        &self,
        metadata: &ClientMetadata,
        now: Timestamp,
    ) -> Result<Value, RegistrationError> {
        let settings = self.settings()?;
        let limits = settings.registration.ok_or(RegistrationError::Off)?;
        let method = metadata.token_endpoint_auth_method.as_deref();
        let method = method.unwrap_or(AUTH_METHOD_DEFAULT);
        let (secret, auth) = match method {
            "none" => (None, ClientAuth::Public),
            "client_secret_basic" | "client_secret_post" => {
                let (text, hash) = secret::generate(CLIENT_PREFIX).map_err(ServerError::from)?;
                (Some(text), ClientAuth::Secret(hash))
            }
            _ => return Err(InvalidClientMetadata::AuthMethod(method.to_owned()).into()),
        };
        let random = secret::random_text::<18>().map_err(ServerError::from)?;
        let client = metadata.to_client(&format!("client_{random}"), auth)?;
        let stored = StoredOAuthClient {
            id: client.id.clone(),
            body: self.seal(&client_place(&client.id), &ClientBody::from(&client))?,
            used: now,
        };
        let unused_since = before(now, limits.unused_max);
        let added = self
            .store
            .add_client(&stored, unused_since, limits.clients_max)
            .await;
        if !added.map_err(ServerError::from)? {
            return Err(RegistrationError::Full);
        }
        Ok(registration_response(
            &client,
            method,
            secret.as_deref(),
            now.as_second(),
        ))
    }
}

fn before(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_sub(time).unwrap_or(Timestamp::MIN)
}
