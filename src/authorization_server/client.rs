//! The programs that ask for grants: who they say they are, and where their codes may go.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redirect_uri::{InvalidRedirectUri, RedirectUri};
use crate::store::TokenHash;

/// Redirect URIs of one client.
const REDIRECT_URIS_MAX: usize = 20;
/// Characters of the name of a client.
const NAME_CHARS_MAX: usize = 100;

/// A client, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantClient {
    /// Its `client_id`.
    pub id: String,
    /// What it calls itself; anybody may say anything there.
    pub name: Option<String>,
    /// Where its codes may go.
    pub redirect_uris: Vec<RedirectUri>,
    /// How it shows at the token endpoint who it is.
    pub auth: ClientAuth,
}

/// How a client shows who it is.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientAuth {
    /// It does not: it keeps no secrets, and PKCE alone binds its codes.
    Public,
    /// With a secret, which has this hash.
    Secret(TokenHash),
}

/// What a client may say about itself, in a document or as it registers (RFC 7591, section 2).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ClientMetadata {
    /// In a document, its own URL.
    pub client_id: Option<String>,
    /// What it calls itself.
    pub client_name: Option<String>,
    /// Where its codes may go.
    #[serde(default)]
    pub redirect_uris: Vec<String>,
    /// How it shows who it is.
    pub token_endpoint_auth_method: Option<String>,
    /// How it gets tokens.
    pub grant_types: Option<Vec<String>>,
    /// What it asks the authorization endpoint for.
    pub response_types: Option<Vec<String>>,
}

/// Why what a client says of itself is not taken; whoever wrote it mends that.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidClientMetadata {
    /// The document names another client.
    #[error("the document at {0} has another `client_id`")]
    ClientId(String),
    /// It wants another way to show who it is than there is.
    #[error("token_endpoint_auth_method `{0}` is not supported")]
    AuthMethod(String),
    /// It wants tokens in another way than there is.
    #[error("grant_types has no `authorization_code`, or response_types no `code`")]
    GrantTypes,
    /// One of its redirect URIs.
    #[error("redirect_uris: `{uri}`: {why}")]
    RedirectUri {
        /// The URI.
        uri: String,
        /// What is wrong with it.
        why: InvalidRedirectUri,
    },
    /// It has none, or too many.
    #[error("redirect_uris has 1 to {REDIRECT_URIS_MAX} entries")]
    RedirectUris,
}

impl ClientMetadata {
    /// Checks what a client says; `id` is what it is called here.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn to_client(
        &self,
        id: &str,
        auth: ClientAuth,
    ) -> Result<GrantClient, InvalidClientMetadata> {
        let names = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref()
                .is_none_or(|list| list.iter().any(|it| it == name))
        };
        if !names(&self.grant_types, "authorization_code") || !names(&self.response_types, "code") {
            return Err(InvalidClientMetadata::GrantTypes);
        }
        if !(1..=REDIRECT_URIS_MAX).contains(&self.redirect_uris.len()) {
            return Err(InvalidClientMetadata::RedirectUris);
        }
        let redirect_uris = self.redirect_uris.iter().map(|uri| {
            RedirectUri::parse(uri).map_err(|why| InvalidClientMetadata::RedirectUri {
                uri: uri.chars().take(NAME_CHARS_MAX).collect(),
                why,
            })
        });
        let name = self.client_name.as_deref().map(str::trim);
        let name = name.filter(|name| !name.is_empty());
        Ok(GrantClient {
            id: id.to_owned(),
            name: name.map(|name| name.chars().take(NAME_CHARS_MAX).collect()),
            redirect_uris: redirect_uris.collect::<Result<_, _>>()?,
            auth,
        })
    }
}

impl GrantClient {
    /// `wanted`, if it is one of those that the client has. One that has one alone need not name it.
    pub fn redirect_uri(&self, wanted: Option<&str>) -> Option<RedirectUri> {
        let Some(wanted) = wanted else {
            let [only] = self.redirect_uris.as_slice() else {
                return None;
            };
            return Some(only.clone());
        };
        let wanted = RedirectUri::parse(wanted).ok()?;
        let mut known = self.redirect_uris.iter();
        known.any(|known| known.covers(&wanted)).then_some(wanted)
    }

    /// Whether whoever shows `secret` is this client.
    pub fn is_authenticated_by(&self, secret: Option<&str>) -> bool {
        match (&self.auth, secret) {
            (ClientAuth::Public, _) => true,
            (ClientAuth::Secret(_), None) => false,
            (ClientAuth::Secret(hash), Some(secret)) => *hash == TokenHash::of(secret),
        }
    }
}

/// A client as the store has it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ClientBody {
    name: Option<String>,
    redirect_uris: Vec<String>,
    /// The hash of its secret, hexadecimal.
    secret: Option<String>,
}

impl From<&GrantClient> for ClientBody {
    fn from(client: &GrantClient) -> Self {
        Self {
            name: client.name.clone(),
            redirect_uris: client
                .redirect_uris
                .iter()
                .map(ToString::to_string)
                .collect(),
            secret: match &client.auth {
                ClientAuth::Public => None,
                ClientAuth::Secret(hash) => Some(hex::encode(hash.0)),
            },
        }
    }
}

impl ClientBody {
    pub(super) fn into_client(self, id: &str) -> Option<GrantClient> {
        let auth = match self.secret {
            None => ClientAuth::Public,
            Some(secret) => {
                let hash = hex::decode(secret).ok()?;
                ClientAuth::Secret(TokenHash(hash.try_into().ok()?))
            }
        };
        let uris = self.redirect_uris.iter();
        Some(GrantClient {
            id: id.to_owned(),
            name: self.name,
            redirect_uris: uris
                .map(|uri| RedirectUri::parse(uri).ok())
                .collect::<Option<_>>()?,
            auth,
        })
    }
}

/// What a client that registered is told (RFC 7591, section 3.2.1).
pub(super) fn registration_response(
    client: &GrantClient,
    method: &str,
    secret: Option<&str>,
    issued: i64,
) -> Value {
    let mut response = serde_json::json!({
        "client_id": client.id,
        "client_id_issued_at": issued,
        "redirect_uris": client.redirect_uris.iter().map(RedirectUri::as_str).collect::<Vec<_>>(),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    });
    if let Some(name) = &client.name {
        response["client_name"] = name.as_str().into();
    }
    if let Some(secret) = secret {
        response["client_secret"] = secret.into();
        response["client_secret_expires_at"] = 0.into();
    }
    response
}
