//! What the built-in authorization server keeps: clients that registered themselves, grants, their tokens, and
//! login codes.
//!
//! Bodies are sealed by `authorization_server`, which alone reads them; what stands beside them finds rows. Of
//! tokens and codes the hash is kept: they have 256 random bits, as keys have.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::StoreError;
use crate::names::AgentId;

/// What is kept of a token or a code: its SHA-256.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The hash of a token's text.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(***)")
    }
}

/// Access tokens, and refresh tokens that were not exchanged, that one grant has at a time. A client needs one of each;
/// it may have several installations, and tokens for parts of its grant.
pub const TOKENS_PER_GRANT_MAX: usize = 50;

/// What a token of the store is good for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TokenKind {
    /// An authorization code: for the first tokens of a grant.
    Code,
    /// An access token: for requests.
    Access,
    /// A refresh token: for the next tokens of its grant.
    Refresh,
}

/// A client that registered itself.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredOAuthClient {
    /// Its `client_id`.
    pub id: String,
    /// What it is, sealed.
    pub body: Vec<u8>,
    /// When it registered, or last got a grant or a token.
    pub used: Timestamp,
}

/// A grant: that a client may act for a subject.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredOAuthGrant {
    /// Its public id.
    pub id: String,
    /// The `client_id` that it was given to.
    pub client: String,
    /// The agent that it was given by, unless a user of an issuer gave it.
    pub agent: Option<AgentId>,
    /// What it is, sealed.
    pub body: Vec<u8>,
    /// When it was given.
    pub created: Timestamp,
    /// When it last gave tokens.
    pub used: Timestamp,
    /// When none of its tokens is good any longer.
    pub expires: Timestamp,
}

/// A token or an authorization code.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredToken {
    /// The hash of its text.
    pub hash: TokenHash,
    /// The grant that it belongs to.
    pub grant: String,
    /// What it is for.
    pub kind: TokenKind,
    /// What it is, sealed.
    pub body: Vec<u8>,
    /// When its time passes.
    pub expires: Timestamp,
    /// When it was exchanged for others.
    pub spent: Option<Timestamp>,
}

/// A code by which a person logs in once.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredLoginCode {
    /// The hash of its text.
    pub hash: TokenHash,
    /// The agent that the person logs in as.
    pub agent: AgentId,
    /// The same, sealed.
    pub body: Vec<u8>,
    /// When its time passes.
    pub expires: Timestamp,
}

/// What became of a code or refresh token that was to be exchanged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenExchange {
    /// The new tokens are kept. These access tokens had to go for them.
    Done(Vec<TokenHash>),
    /// There is no such token, or its grant was revoked.
    Gone,
    /// It was exchanged before, and longer ago than it may be again; nothing was kept.
    Replayed,
}

/// Keeps what the built-in authorization server gives out.
pub trait OAuthStore: fmt::Debug + Send + Sync {
    /// Keeps a client. Those without a grant that are unused since `unused_since` are removed first, and where there
    /// would be more than `clients_max`, those of the rest that were used longest ago. `false` where all others have
    /// grants.
    fn add_client<'a>(
        &'a self,
        client: &'a StoredOAuthClient,
        unused_since: Timestamp,
        clients_max: usize,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// The client with this id.
    fn client<'a>(
        &'a self,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<StoredOAuthClient>, StoreError>>;

    /// Keeps a grant and its code. The client, where it registered itself, counts as used.
    fn add_grant<'a>(
        &'a self,
        grant: &'a StoredOAuthGrant,
        code: &'a StoredToken,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Keeps another body of a grant, and another code; `false` where the grant is gone.
    fn renew_grant<'a>(
        &'a self,
        grant: &'a StoredOAuthGrant,
        code: &'a StoredToken,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// All grants, oldest first.
    fn grants(&self) -> BoxFuture<'_, Result<Vec<StoredOAuthGrant>, StoreError>>;

    /// The ids of all grants.
    fn grant_ids(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// Removes a grant and all its tokens; `false` where there is none.
    fn revoke_grant<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// A token and its grant.
    fn token(
        &self,
        hash: TokenHash,
    ) -> BoxFuture<'_, Result<Option<(StoredToken, StoredOAuthGrant)>, StoreError>>;

    /// Notes that the token `spent` was exchanged `at` a time, and keeps those that it was exchanged for. One that
    /// was exchanged before may be again within the `grace` after that. Beyond [`TOKENS_PER_GRANT_MAX`] of a kind the
    /// oldest tokens of the grant are removed.
    fn exchange<'a>(
        &'a self,
        spent: TokenHash,
        at: Timestamp,
        grace: Duration,
        tokens: &'a [StoredToken],
    ) -> BoxFuture<'a, Result<TokenExchange, StoreError>>;

    /// Removes one token.
    fn remove_token(&self, hash: TokenHash) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The hashes of all access tokens.
    fn access_tokens(&self) -> BoxFuture<'_, Result<Vec<TokenHash>, StoreError>>;

    /// Keeps a login code.
    fn add_login_code<'a>(
        &'a self,
        code: &'a StoredLoginCode,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes a login code and gives it; of two who ask at once, one gets it.
    fn take_login_code(
        &self,
        hash: TokenHash,
    ) -> BoxFuture<'_, Result<Option<StoredLoginCode>, StoreError>>;

    /// Removes whatever had expired at `before`: tokens, grants and login codes.
    fn remove_expired_oauth(&self, before: Timestamp) -> BoxFuture<'_, Result<(), StoreError>>;
}
