//! How the gateway gets tokens for a server.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Secret;

/// How the gateway gets tokens for a server by OAuth.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OAuthGrant {
    /// How a token is granted.
    pub grant: GrantKind,
    /// With `authorization_code`: each agent and user signs in for themselves, and nobody else uses their
    /// grant (the default). With `false` one sign-in (`tollbridge login SERVER`) serves every caller.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub per_user: bool,
    /// Client id at the authorization server. Default: a client metadata document, or dynamic registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Secret of the client, usually a variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Secret>,
    /// PEM file with the private key of the client (RSA or P-256), in place of a secret: `private_key_jwt` with
    /// RS256 or ES256. Read for each token. Relative paths start at the directory of the config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key: Option<PathBuf>,
    /// Scopes to ask for. Default: those that the server asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Authorization server. Default: the one that the metadata of the server names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Parameter `audience`, for authorization servers that want it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
    /// With `token_exchange` and `id_jag`: the token to exchange, usually a variable. Default: that of the
    /// caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_token: Option<Secret>,
    /// With `token_exchange`: a token of the gateway, which acts for the caller (`act` of the issued token).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_token: Option<Secret>,
    /// With `id_jag`: the identity provider that vouches for the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idp: Option<IdentityProvider>,
}

impl OAuthGrant {
    /// Whether tokens are those of callers, exchanged.
    pub fn takes_subjects(&self) -> bool {
        let is_exchange = match self.grant {
            GrantKind::AuthorizationCode | GrantKind::ClientCredentials => false,
            GrantKind::IdJag | GrantKind::TokenExchange => true,
        };
        is_exchange && self.subject_token.is_none()
    }

    /// Whether each agent has tokens of its own.
    pub fn is_per_agent(&self) -> bool {
        match self.grant {
            GrantKind::AuthorizationCode => self.per_user,
            GrantKind::ClientCredentials => false,
            GrantKind::IdJag | GrantKind::TokenExchange => self.takes_subjects(),
        }
    }
}

/// How a token is granted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantKind {
    /// A person signs in.
    AuthorizationCode,
    /// To the gateway itself, by its `client_secret` or `private_key`.
    ClientCredentials,
    /// For an assertion of the identity provider about the caller (enterprise-managed authorization).
    IdJag,
    /// For the token of the caller (RFC 8693).
    TokenExchange,
}

/// The identity provider of `id_jag`, with the gateway as its client.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityProvider {
    /// Issuer.
    pub issuer: String,
    /// Client id of the gateway there.
    pub client_id: String,
    /// Secret of that client, usually a variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<Secret>,
}

const fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_true(value: &bool) -> bool {
    *value
}
