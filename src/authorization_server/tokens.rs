//! The token endpoint: codes and refresh tokens are exchanged for tokens, and tokens are revoked.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    AuthorizationRequest, AuthorizationServer, ServerError,
    access_tokens::IssuedAccessToken,
    client::GrantClient,
    grant::Grant,
    secret::{self, ACCESS_PREFIX, CODE_PREFIX, REFRESH_PREFIX},
};
use crate::{
    auth::{
        TokenValidity,
        token::{Scopes, TokenRejection},
    },
    store::{StoredOAuthGrant, StoredToken, TokenExchange, TokenHash, TokenKind},
};

/// How long an authorization code is good for.
pub(super) const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// Characters of a PKCE verifier (RFC 7636, section 4.1).
const VERIFIER_CHARS: std::ops::RangeInclusive<usize> = 43..=128;

/// The sealed part of a token or code.
#[derive(Debug, Deserialize, Serialize)]
struct TokenBody {
    /// The grant that it belongs to; a row that names another was changed.
    grant: String,
    kind: u8,
    scope: String,
    resources: Vec<String>,
    #[serde(with = "super::time_ms")]
    expires: Timestamp,
    /// Of a code: where it was sent, and the challenge of its client.
    redirect_uri: Option<String>,
    code_challenge: Option<String>,
}

/// A token of the store, with what was sealed of it and its grant.
#[derive(Debug)]
struct KnownToken {
    stored: StoredToken,
    body: TokenBody,
    grant: Grant,
}

/// What a client has revoked.
#[derive(Debug)]
pub enum Revoked {
    /// One access token; its grant stands.
    AccessToken,
    /// A whole grant.
    Grant(Box<Grant>),
    /// It named no token that counts.
    Nothing,
}

/// What a client gets at the token endpoint.
#[derive(Debug)]
pub struct IssuedTokens {
    /// For requests.
    pub access_token: String,
    /// How long that is good for.
    pub expires_in: Duration,
    /// For the next tokens.
    pub refresh_token: String,
    /// What they are for.
    pub scope: String,
    /// The grant that they belong to.
    pub grant: Grant,
    /// Whether older access tokens of it are no longer good, since there were too many.
    pub has_displaced: bool,
}

/// Why a client gets no tokens (RFC 6749, section 5.2).
#[derive(Debug, thiserror::Error)]
pub enum TokenRequestError {
    /// The client did not show who it is, or is unknown; it registers anew.
    #[error("the client is unknown, or its secret is wrong")]
    Client,
    /// The code or refresh token is not good; the person logs in anew.
    #[error("the code or token is not valid: {}", .0.message())]
    Grant(GrantRejection),
    /// The code or refresh token was exchanged before: this grant of it was revoked.
    #[error("the code or token is not valid: it was used before")]
    Replayed(Box<Grant>),
    /// A parameter is missing or malformed.
    #[error("{0}")]
    Request(&'static str),
    /// It asks for more than was granted.
    #[error("the scopes are more than were granted")]
    Scope,
    /// It asks for a resource that the grant is not for.
    #[error("the resource is none that was granted")]
    Target,
    /// It asks for tokens in another way than there is.
    #[error("grant_type is `authorization_code` or `refresh_token`")]
    GrantType,
    /// We cannot go on.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// What is wrong with a code or refresh token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrantRejection {
    /// It was given to another client.
    Client,
    /// Its time has passed.
    Expired,
    /// No agent is for whom it was given.
    NoAgent,
    /// It was sent to another redirect URI.
    RedirectUri,
    /// Nobody issued it, or its grant is gone.
    Unknown,
    /// The PKCE verifier is not that of its challenge.
    Verifier,
}

impl GrantRejection {
    /// The reason in a word, as it is counted.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Client => "oauth_foreign_client",
            Self::Expired => "oauth_code_expired",
            Self::NoAgent => "oauth_no_agent",
            Self::RedirectUri => "oauth_foreign_redirect",
            Self::Unknown => "oauth_unknown_code",
            Self::Verifier => "oauth_wrong_verifier",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Client => "it was issued to another client",
            Self::Expired => "it has expired",
            Self::NoAgent => "no agent is for whom it was given",
            Self::RedirectUri => "redirect_uri is not that of the authorization request",
            Self::Unknown => "it is unknown or revoked",
            Self::Verifier => "code_verifier does not fit the code_challenge",
        }
    }
}

impl TokenRequestError {
    /// The code of the error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Client => "invalid_client",
            Self::Grant(_) | Self::Replayed(_) => "invalid_grant",
            Self::Request(_) => "invalid_request",
            Self::Scope => "invalid_scope",
            Self::Target => "invalid_target",
            Self::GrantType => "unsupported_grant_type",
            Self::Server(_) => "server_error",
        }
    }

    /// The reason in a word, as it is counted; `None` for what is no refusal.
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Client => Some("oauth_client"),
            Self::Grant(why) => Some(why.reason()),
            Self::Replayed(_) => Some("oauth_replayed"),
            Self::Request(_) | Self::Scope | Self::Target | Self::GrantType => {
                Some("oauth_request")
            }
            Self::Server(_) => None,
        }
    }
}

impl From<GrantRejection> for TokenRequestError {
    fn from(why: GrantRejection) -> Self {
        Self::Grant(why)
    }
}

/// What a client sends with an authorization code.
#[derive(Clone, Copy, Debug)]
pub struct CodeParams<'p> {
    /// The code.
    pub code: &'p str,
    /// The redirect URI; clients of OAuth 2.1 leave it out.
    pub redirect_uri: Option<&'p str>,
    /// The PKCE verifier.
    pub verifier: &'p str,
}

/// What new tokens are to be for, of what was granted.
#[derive(Clone, Debug, Default)]
pub struct Narrowing {
    /// Scopes; `None`: all.
    pub scopes: Option<Scopes>,
    /// Resources in their usual form; none: all.
    pub resources: Vec<String>,
}

impl AuthorizationServer {
    /// Exchanges an authorization code. One that was exchanged before revokes its grant: somebody else has it.
    ///
    /// # Errors
    /// Why the client gets no tokens.
    pub async fn exchange_code(
        &self,
        client: &GrantClient,
        params: CodeParams<'_>,
        narrowing: &Narrowing,
        now: Timestamp,
    ) -> Result<IssuedTokens, TokenRequestError> {
        let token = self.known_token(params.code, TokenKind::Code).await?;
        if token.stored.spent.is_some() {
            self.revoke_grant(&token.grant.id).await?;
            return Err(TokenRequestError::Replayed(Box::new(token.grant)));
        }
        if token.body.expires <= now {
            return Err(GrantRejection::Expired.into());
        }
        if token.grant.client != client.id {
            return Err(GrantRejection::Client.into());
        }
        let sent_to = token.body.redirect_uri.as_deref();
        if params.redirect_uri.is_some_and(|uri| Some(uri) != sent_to) {
            return Err(GrantRejection::RedirectUri.into());
        }
        let fits = VERIFIER_CHARS.contains(&params.verifier.len())
            && token.body.code_challenge.as_deref() == Some(&*challenge_of(params.verifier));
        if !fits {
            return Err(GrantRejection::Verifier.into());
        }
        self.issue(token, narrowing, Duration::ZERO, now).await
    }

    /// Exchanges a refresh token. For a while it can be exchanged again, since its client may not have got the
    /// answer; after that somebody else has it, and its grant is revoked.
    ///
    /// # Errors
    /// Why the client gets no tokens.
    pub async fn refresh(
        &self,
        client: &GrantClient,
        refresh_token: &str,
        narrowing: &Narrowing,
        now: Timestamp,
    ) -> Result<IssuedTokens, TokenRequestError> {
        let token = self.known_token(refresh_token, TokenKind::Refresh).await?;
        if token.grant.client != client.id {
            return Err(GrantRejection::Client.into());
        }
        let settings = self.settings()?;
        let ends = after(token.grant.signed_in, settings.refresh_token_lifetime);
        if token.body.expires.min(ends) <= now {
            return Err(GrantRejection::Expired.into());
        }
        self.issue(token, narrowing, settings.refresh_grace, now)
            .await
    }

    async fn issue(
        &self,
        token: KnownToken,
        narrowing: &Narrowing,
        grace: Duration,
        now: Timestamp,
    ) -> Result<IssuedTokens, TokenRequestError> {
        let KnownToken {
            stored,
            body,
            grant,
        } = token;
        let settings = self.settings()?;
        let (scope, resources) = narrow(&body, narrowing)?;
        let (access_token, access) = secret::generate(ACCESS_PREFIX).map_err(ServerError::from)?;
        let (refresh_token, refresh) =
            secret::generate(REFRESH_PREFIX).map_err(ServerError::from)?;
        // Refreshes do not defer when the person signs in again.
        let ends = after(grant.signed_in, settings.refresh_token_lifetime);
        let access_expires = after(now, settings.access_token_lifetime).min(ends);
        let of_access = TokenBody {
            grant: grant.id.clone(),
            kind: kind_mark(TokenKind::Access),
            scope: scope.to_string(),
            resources: resources.clone(),
            expires: access_expires,
            redirect_uri: None,
            code_challenge: None,
        };
        // What a refresh token is for does not shrink with one access token (RFC 6749, section 6).
        let of_refresh = TokenBody {
            kind: kind_mark(TokenKind::Refresh),
            scope: body.scope,
            resources: body.resources,
            expires: ends,
            grant: grant.id.clone(),
            redirect_uri: None,
            code_challenge: None,
        };
        let tokens = [
            self.to_stored(access, TokenKind::Access, &of_access)?,
            self.to_stored(refresh, TokenKind::Refresh, &of_refresh)?,
        ];
        let generation = self.access.generation();
        let exchanged = self.store.exchange(stored.hash, now, grace, &tokens).await;
        let mut has_displaced = false;
        match exchanged.map_err(ServerError::from)? {
            TokenExchange::Done(gone) if gone.is_empty() => {}
            TokenExchange::Done(gone) => {
                self.forget(|hash, _| gone.contains(hash));
                self.note_change();
                has_displaced = true;
            }
            TokenExchange::Gone => return Err(GrantRejection::Unknown.into()),
            TokenExchange::Replayed => {
                self.revoke_grant(&grant.id).await?;
                return Err(TokenRequestError::Replayed(Box::new(grant)));
            }
        }
        let known = IssuedAccessToken {
            grant: grant.id.clone(),
            client: grant.client.clone(),
            subject: grant.subject.clone(),
            scopes: scope.clone(),
            resources,
            expires: access_expires,
            validity: TokenValidity::default(),
        };
        self.access.insert(access, known, (now, generation));
        Ok(IssuedTokens {
            access_token,
            expires_in: access_expires.duration_since(now).unsigned_abs(),
            refresh_token,
            scope: scope.to_string(),
            grant,
            has_displaced,
        })
    }

    /// A code of the grant `grant` for what `request` asks for, and its text.
    pub(super) fn new_code(
        &self,
        grant: &str,
        request: &AuthorizationRequest,
        now: Timestamp,
    ) -> Result<(String, StoredToken), ServerError> {
        let (text, hash) = secret::generate(CODE_PREFIX)?;
        let body = TokenBody {
            grant: grant.to_owned(),
            kind: kind_mark(TokenKind::Code),
            scope: request.scope.clone(),
            resources: request.resources.clone(),
            expires: after(now, CODE_LIFETIME),
            redirect_uri: Some(request.redirect_uri.clone()),
            code_challenge: Some(request.code_challenge.clone()),
        };
        Ok((text, self.to_stored(hash, TokenKind::Code, &body)?))
    }

    /// Revokes what a client names (RFC 7009): with a refresh token its whole grant.
    ///
    /// # Errors
    /// When it is the token of another client, or the store fails.
    pub async fn revoke_token(
        &self,
        client: &GrantClient,
        token: &str,
    ) -> Result<Revoked, TokenRequestError> {
        let kind = if token.starts_with(ACCESS_PREFIX) {
            TokenKind::Access
        } else {
            TokenKind::Refresh
        };
        let known = match self.known_token(token, kind).await {
            Ok(known) => known,
            Err(TokenRequestError::Grant(GrantRejection::Unknown)) => return Ok(Revoked::Nothing),
            Err(error) => return Err(error),
        };
        if known.grant.client != client.id {
            return Err(GrantRejection::Client.into());
        }
        match kind {
            TokenKind::Access => {
                let hash = known.stored.hash;
                let removed = self.store.remove_token(hash).await;
                removed.map_err(ServerError::from)?;
                self.forget(|known, _| *known == hash);
                self.note_change();
                Ok(Revoked::AccessToken)
            }
            TokenKind::Code | TokenKind::Refresh => {
                self.revoke_grant(&known.grant.id).await?;
                Ok(Revoked::Grant(Box::new(known.grant)))
            }
        }
    }

    /// What the store knows of an access token that is not in memory.
    pub(super) async fn load_access_token(
        &self,
        text: &str,
    ) -> Result<IssuedAccessToken, TokenRejection> {
        let known = match self.known_token(text, TokenKind::Access).await {
            Ok(known) => known,
            Err(TokenRequestError::Server(error)) => {
                tracing::error!(%error, "cannot look up an access token");
                return Err(TokenRejection::Unknown);
            }
            Err(_) => {
                self.access.note_unknown(TokenHash::of(text));
                return Err(TokenRejection::Unknown);
            }
        };
        Ok(IssuedAccessToken {
            grant: known.grant.id,
            client: known.grant.client,
            subject: known.grant.subject,
            scopes: Scopes::parse(&known.body.scope),
            resources: known.body.resources,
            expires: known.body.expires,
            validity: TokenValidity::default(),
        })
    }

    async fn known_token(
        &self,
        text: &str,
        kind: TokenKind,
    ) -> Result<KnownToken, TokenRequestError> {
        let found = self.store.token(TokenHash::of(text)).await;
        let unknown = || TokenRequestError::Grant(GrantRejection::Unknown);
        let (stored, grant) = found.map_err(ServerError::from)?.ok_or_else(unknown)?;
        let body: Option<TokenBody> = self.open(&token_place(&stored.hash), &stored.body);
        let body = body.filter(|body| {
            body.kind == kind_mark(kind) && stored.kind == kind && body.grant == stored.grant
        });
        let (body, grant) = body.zip(self.open_grant(&grant)).ok_or_else(unknown)?;
        Ok(KnownToken {
            stored,
            body,
            grant,
        })
    }

    fn to_stored(
        &self,
        hash: TokenHash,
        kind: TokenKind,
        body: &TokenBody,
    ) -> Result<StoredToken, ServerError> {
        Ok(StoredToken {
            hash,
            grant: body.grant.clone(),
            kind,
            body: self.seal(&token_place(&hash), body)?,
            expires: body.expires,
            spent: None,
        })
    }

    /// What a row says of a grant; `None` where it is not as we wrote it.
    pub(super) fn open_grant(&self, stored: &StoredOAuthGrant) -> Option<Grant> {
        let body = self.open(&grant_place(&stored.id), &stored.body)?;
        Some(Grant::from_stored(stored, body))
    }
}

pub(super) fn grant_place(id: &str) -> String {
    format!("oauth_grants/{id}")
}

fn token_place(hash: &TokenHash) -> String {
    format!("oauth_tokens/{}", hex::encode(hash.0))
}

/// What of `body` new tokens are for.
fn narrow(
    body: &TokenBody,
    wanted: &Narrowing,
) -> Result<(Scopes, Vec<String>), TokenRequestError> {
    let granted = Scopes::parse(&body.scope);
    let scopes = match &wanted.scopes {
        None => granted,
        Some(scopes) if scopes.iter().all(|scope| granted.contains(scope)) => scopes.clone(),
        Some(_) => return Err(TokenRequestError::Scope),
    };
    let is_granted = |resource: &String| body.resources.contains(resource);
    if !wanted.resources.iter().all(is_granted) {
        return Err(TokenRequestError::Target);
    }
    let resources = if wanted.resources.is_empty() {
        body.resources.clone()
    } else {
        wanted.resources.clone()
    };
    Ok((scopes, resources))
}

const fn kind_mark(kind: TokenKind) -> u8 {
    match kind {
        TokenKind::Code => 0,
        TokenKind::Access => 1,
        TokenKind::Refresh => 2,
    }
}

/// A time so long after `now`; the end of times where that is beyond it.
pub(super) fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).unwrap_or(Timestamp::MAX)
}

/// The S256 challenge of a verifier.
pub(super) fn challenge_of(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()))
}
