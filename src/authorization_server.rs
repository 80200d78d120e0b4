//! The built-in authorization server (`oauth.mode = "builtin"`): it lets people grant clients access to this
//! gateway, and issues the tokens for it.
//!
//! `http` has its endpoints and pages; what they do is decided here, on plain types and at a time that is given.
//! Nothing is kept before a person has agreed: until then a request travels sealed in the page. Bodies of rows in
//! the store are sealed for their row, so that only this code makes clients, grants and tokens.

mod access_tokens;
mod authorize;
mod client;
mod documents;
mod grant;
mod login_code;
mod oidc;
mod page;
mod redirect_uri;
mod registration;
mod secret;
mod time_ms;
mod tokens;
mod tries;

#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    auth::token::{Scopes, TokenRejection, TokenVerifier, VerifiedToken},
    clock,
    egress::EgressClient,
    sealing::SealingKey,
    store::{OAuthStore, Store, StoreError, StoredOAuthGrant, TokenHash},
};
use access_tokens::{AccessTokens, IssuedAccessToken};
pub use authorize::{AuthorizationRequest, AuthorizeError, AuthorizeParams, SCOPES, redirect_url};
pub use client::{ClientAuth, ClientMetadata, GrantClient, InvalidClientMetadata};
use documents::DocumentCache;
pub use documents::DocumentError;
pub use grant::Grant;
pub use login_code::LoginCode;
pub use oidc::{LoginCallback, LoginPurpose, LoginRequest, OidcError, OidcIssuer};
pub use page::LoggedIn;
pub use redirect_uri::{InvalidRedirectUri, RedirectUri};
pub use registration::RegistrationError;
pub use tokens::{CodeParams, GrantRejection, IssuedTokens, Narrowing, Revoked, TokenRequestError};
pub use tries::Tries;

/// What the config says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long access tokens are good for.
    pub access_token_lifetime: Duration,
    /// How long refresh tokens are good for after a sign-in, however often they are exchanged.
    pub refresh_token_lifetime: Duration,
    /// How long a refresh token is good for after it was exchanged.
    pub refresh_grace: Duration,
    /// Whether the `client_id` of a client may be the URL of a document.
    pub metadata_documents: bool,
    /// Whether clients may register themselves, and how many.
    pub registration: Option<RegistrationLimits>,
    /// Where people log in; `None`: with login codes.
    pub login: Option<Arc<OidcIssuer>>,
    /// Fetches documents of clients.
    pub egress: EgressClient,
}

/// How many clients may register themselves.
#[derive(Clone, Copy, Debug)]
pub struct RegistrationLimits {
    /// Clients that are kept.
    pub clients_max: usize,
    /// How long one is kept that is not used.
    pub unused_max: Duration,
}

/// Lets people grant clients access, and issues the tokens for it.
#[derive(Debug)]
pub struct AuthorizationServer {
    store: Arc<dyn OAuthStore>,
    key: SealingKey,
    settings: ArcSwapOption<Settings>,
    documents: DocumentCache,
    access: AccessTokens,
    /// Tells of tokens and grants that ended here.
    changes: watch::Sender<()>,
}

/// Why the server cannot do what was asked, whoever asks; the operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It is off.
    #[error("the built-in authorization server is off")]
    Off,
    /// The system has no random numbers.
    #[error("cannot get random numbers: {0}")]
    Randomness(#[from] getrandom::Error),
    /// What is to be kept cannot be written down.
    #[error("cannot encode: {0}")]
    Encoding(#[from] serde_json::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What other processes have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedAccess {
    /// The ids of the grants that are gone.
    pub grants: Vec<String>,
    /// Whether tokens are gone.
    pub has_tokens: bool,
}

impl AuthorizationServer {
    /// One that keeps everything in `store`, and is off until it has settings.
    pub fn new(store: &Store) -> Self {
        Self {
            store: Arc::clone(&store.oauth),
            key: sealing_key(store),
            settings: ArcSwapOption::empty(),
            documents: DocumentCache::default(),
            access: AccessTokens::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// Takes the settings of a config; `None` turns it off.
    pub fn update_settings(&self, settings: Option<Settings>) {
        self.settings.store(settings.map(Arc::new));
    }

    /// The settings.
    ///
    /// # Errors
    /// [`ServerError::Off`].
    pub fn settings(&self) -> Result<Arc<Settings>, ServerError> {
        self.settings.load_full().ok_or(ServerError::Off)
    }

    /// Whether it has settings.
    pub fn is_on(&self) -> bool {
        self.settings.load().is_some()
    }

    /// Its metadata (RFC 8414); `issuer` is the URL of the gateway, without a slash at its end.
    pub fn metadata(&self, issuer: &str) -> Option<Value> {
        let settings = self.settings.load_full()?;
        let at = |path: &str| format!("{issuer}{path}");
        let methods = ["none", "client_secret_basic", "client_secret_post"];
        let mut metadata = json!({
            "issuer": issuer,
            "authorization_endpoint": at("/oauth/authorize"),
            "token_endpoint": at("/oauth/token"),
            "revocation_endpoint": at("/oauth/revoke"),
            "scopes_supported": SCOPES,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_methods_supported": methods,
            "revocation_endpoint_auth_methods_supported": methods,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
            "client_id_metadata_document_supported": settings.metadata_documents,
        });
        if settings.registration.is_some() {
            metadata["registration_endpoint"] = at("/oauth/register").into();
        }
        Some(metadata)
    }

    /// The client that is called `id`: of a document, or one that registered.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn client(&self, id: &str) -> Result<GrantClient, ClientError> {
        let settings = self.settings()?;
        if documents::is_document(id) {
            if !settings.metadata_documents {
                return Err(DocumentError::Off.into());
            }
            return Ok(self.documents.client(id, &settings.egress).await?);
        }
        self.registered_client(id)
            .await?
            .ok_or(ClientError::Unknown)
    }

    /// The client that shows itself at the token endpoint with this id and secret. That of a document keeps no
    /// secret: its codes are bound to it, so that the document is not needed.
    ///
    /// # Errors
    /// [`TokenRequestError::Client`], or why it cannot be told.
    pub async fn authenticate_client(
        &self,
        id: &str,
        secret: Option<&str>,
    ) -> Result<GrantClient, TokenRequestError> {
        if documents::is_document(id) {
            return Ok(GrantClient {
                id: id.to_owned(),
                name: None,
                redirect_uris: Vec::new(),
                auth: ClientAuth::Public,
            });
        }
        let client = self.registered_client(id).await?;
        let client = client.filter(|client| client.is_authenticated_by(secret));
        client.ok_or(TokenRequestError::Client)
    }

    /// `who` has agreed to `request`: the grant, and the URL that sends its code to the client.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn approve(
        &self,
        request: &AuthorizationRequest,
        who: &LoggedIn,
        now: Timestamp,
    ) -> Result<(Grant, String), ServerError> {
        let redirect = RedirectUri::parse(&request.redirect_uri);
        let grant = Grant {
            id: format!("grant_{}", secret::random_text::<9>()?),
            client: request.client_id.clone(),
            client_name: request.client_name.clone(),
            subject: who.subject(),
            subject_name: who.name.clone(),
            redirect_target: redirect.map(|uri| uri.target()).unwrap_or_default(),
            scopes: Scopes::parse(&request.scope),
            resources: request.resources.clone(),
            signed_in: now,
            created: now,
            used: now,
        };
        let (code, stored_code) = self.new_code(&grant.id, request, now)?;
        let stored = self.to_stored_grant(&grant, now)?;
        self.store.add_grant(&stored, &stored_code).await?;
        Ok((grant, request.code_redirect(&code)))
    }

    /// The URL that sends a code to the client where `who` has agreed to the same before; `None` where they are
    /// to be asked. Their grant goes on with what is claimed of them now. A client that is reached over TLS need not ask again; programs on the machine of a person may
    /// be any, and always ask (RFC 8252, section 8.6).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn approve_as_before(
        &self,
        request: &AuthorizationRequest,
        who: &LoggedIn,
        now: Timestamp,
    ) -> Result<Option<String>, ServerError> {
        let redirect = RedirectUri::parse(&request.redirect_uri).ok();
        let redirect = redirect.filter(|uri| !uri.is_local() && !request.asks_consent);
        let Some(redirect) = redirect else {
            return Ok(None);
        };
        let (wanted, subject) = (Scopes::parse(&request.scope), who.subject());
        let grants = self.grants().await?;
        let same = grants.iter().find(|grant| {
            grant.client == request.client_id
                && grant::is_same_subject(&grant.subject, &subject)
                && grant.redirect_target == redirect.target()
                && wanted.iter().all(|scope| grant.scopes.contains(scope))
                && (request.resources.iter()).all(|resource| grant.resources.contains(resource))
        });
        let Some(grant) = same else {
            return Ok(None);
        };
        let grant = Grant {
            subject,
            subject_name: who.name.clone(),
            signed_in: now,
            ..grant.clone()
        };
        let (code, stored_code) = self.new_code(&grant.id, request, now)?;
        let stored = self.to_stored_grant(&grant, now)?;
        let is_renewed = self.store.renew_grant(&stored, &stored_code).await?;
        Ok(is_renewed.then(|| request.code_redirect(&code)))
    }

    fn to_stored_grant(
        &self,
        grant: &Grant,
        now: Timestamp,
    ) -> Result<StoredOAuthGrant, ServerError> {
        Ok(StoredOAuthGrant {
            id: grant.id.clone(),
            client: grant.client.clone(),
            agent: grant.agent(),
            body: self.seal(&tokens::grant_place(&grant.id), &grant.to_body())?,
            created: grant.created,
            used: now,
            expires: tokens::after(now, tokens::CODE_LIFETIME),
        })
    }

    /// All grants that are as we wrote them, oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn grants(&self) -> Result<Vec<Grant>, ServerError> {
        let stored = self.store.grants().await?;
        Ok(stored.iter().filter_map(|it| self.open_grant(it)).collect())
    }

    /// Ends a grant and all its tokens; whether there was one.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn revoke_grant(&self, id: &str) -> Result<bool, ServerError> {
        let is_revoked = self.store.revoke_grant(id).await?;
        self.forget(|_, token| token.grant == id);
        self.note_change();
        Ok(is_revoked)
    }

    /// Compares what is in memory with the store, where grants and tokens may have ended; `known` are the grants by
    /// which something is under way. Those whose access tokens have expired have not ended: their clients refresh them.
    ///
    /// # Errors
    /// When the store fails; nothing is forgotten then.
    pub async fn reread(&self, mut known: Vec<String>) -> Result<EndedAccess, StoreError> {
        // What is issued meanwhile is not among those of the store that are read here.
        let tokens = self.access.hashes();
        if tokens.is_empty() && known.is_empty() {
            return Ok(EndedAccess::default());
        }
        let live: HashSet<TokenHash> = self.store.access_tokens().await?.into_iter().collect();
        let live_grants: HashSet<String> = self.store.grant_ids().await?.into_iter().collect();
        known.retain(|grant| !live_grants.contains(grant));
        let now = clock::now();
        let gone = self.access.retain(|hash, token| {
            !tokens.contains(hash) || (live.contains(hash) && now < token.expires)
        });
        Ok(EndedAccess {
            grants: known,
            has_tokens: gone.iter().any(|token| now < token.expires),
        })
    }

    /// Removes what expired some time ago.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn remove_expired(&self, now: Timestamp) -> Result<(), StoreError> {
        let before = now.checked_sub(EXPIRED_KEPT).unwrap_or(now);
        self.store.remove_expired_oauth(before).await
    }

    /// Tells of tokens that ended here: other processes have to hear of it.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn note_change(&self) {
        self.changes.send_replace(());
    }

    fn forget(&self, is_gone: impl Fn(&TokenHash, &IssuedAccessToken) -> bool) {
        self.access.retain(|hash, token| !is_gone(hash, token));
    }

    async fn registered_client(&self, id: &str) -> Result<Option<GrantClient>, ServerError> {
        let Some(stored) = self.store.client(id).await? else {
            return Ok(None);
        };
        let body: Option<client::ClientBody> = self.open(&client_place(id), &stored.body);
        Ok(body.and_then(|body| body.into_client(id)))
    }

    fn seal(&self, place: &str, value: &impl Serialize) -> Result<Vec<u8>, ServerError> {
        Ok(self.key.seal(place, &serde_json::to_vec(value)?)?)
    }

    fn open<T: DeserializeOwned>(&self, place: &str, sealed: &[u8]) -> Option<T> {
        let opened = self.key.open(place, sealed).ok()?;
        serde_json::from_slice(&opened).ok()
    }

    /// The same as texts, for pages, URLs and cookies.
    fn seal_text(&self, place: &str, value: &impl Serialize) -> Result<String, ServerError> {
        Ok(URL_SAFE_NO_PAD.encode(self.seal(place, value)?))
    }

    fn open_text<T: DeserializeOwned>(&self, place: &str, sealed: &str) -> Option<T> {
        self.open(place, &URL_SAFE_NO_PAD.decode(sealed).ok()?)
    }
}

/// How long what has expired is kept: whoever comes with a code that was exchanged has stolen it.
const EXPIRED_KEPT: Duration = Duration::from_secs(60 * 60);

/// What the server seals with.
fn sealing_key(store: &Store) -> SealingKey {
    SealingKey::new(&store.derive_key("authorization server"))
}

fn client_place(id: &str) -> String {
    format!("oauth_clients/{id}")
}

/// Why a client is not known.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Its document.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// We cannot tell.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Nobody registered it, or it was not used for too long.
    #[error("the client is not registered here: remove and add this server in the client")]
    Unknown,
}

impl TokenVerifier for AuthorizationServer {
    fn verify<'t>(
        &'t self,
        token: &'t str,
        resource: &'t str,
    ) -> BoxFuture<'t, Option<Result<VerifiedToken, TokenRejection>>> {
        Box::pin(async move {
            if !token.starts_with(secret::ACCESS_PREFIX) || !self.is_on() {
                return None;
            }
            let (hash, now) = (TokenHash::of(token), clock::now());
            if let Some(known) = self.access.check(hash, resource, now) {
                return Some(known);
            }
            let generation = self.access.generation();
            let loaded = match self.load_access_token(token).await {
                Ok(loaded) => loaded,
                Err(why) => return Some(Err(why)),
            };
            let checked = loaded.check(resource, now);
            if loaded.expires > now {
                self.access.insert(hash, loaded, (now, generation));
            }
            Some(checked)
        })
    }
}
