//! The access tokens that were used lately, so that a request with one needs no look into the store.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    auth::{
        TokenValidity, audience_covers,
        token::{Scopes, TokenRejection, TokenSubject, VerifiedToken},
    },
    lock::lock,
    store::TokenHash,
};

/// Tokens that are kept in memory; of more, those that expired go, or else all: they are read again, and streams
/// that were opened with them end, since nobody could end them later.
const KEPT_MAX: usize = 100_000;
/// Texts that are known to be no tokens.
const UNKNOWN_MAX: usize = 10_000;
/// How long a text that is no token is not looked up again: another process may have issued it since, though
/// nobody gets a token before it is in the store.
const UNKNOWN_KEPT: Duration = Duration::from_secs(5);

/// An access token that was found good once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IssuedAccessToken {
    pub(super) grant: String,
    pub(super) client: String,
    pub(super) subject: TokenSubject,
    pub(super) scopes: Scopes,
    pub(super) resources: Vec<String>,
    pub(super) expires: Timestamp,
    pub(super) validity: TokenValidity,
}

impl IssuedAccessToken {
    /// What it says to a request for `resource` at `now`.
    pub(super) fn check(
        &self,
        resource: &str,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenRejection> {
        if self.expires <= now {
            return Err(TokenRejection::Expired);
        }
        if !self
            .resources
            .iter()
            .any(|known| audience_covers(known, resource))
        {
            return Err(TokenRejection::Audience);
        }
        Ok(VerifiedToken {
            subject: self.subject.clone(),
            scopes: self.scopes.clone(),
            client: Some(self.client.clone()),
            grant: Some(self.grant.clone()),
            expires: self.expires,
            validity: self.validity.clone(),
        })
    }
}

/// What is known of texts that were presented as access tokens.
#[derive(Debug, Default)]
pub(super) struct AccessTokens {
    known: DashMap<TokenHash, IssuedAccessToken, RandomState>,
    unknown: Mutex<HashMap<TokenHash, Instant>>,
    /// How often tokens were forgotten.
    generation: AtomicU64,
}

impl AccessTokens {
    /// What a token says, where it is known; `None` where the store has to be asked.
    pub(super) fn check(
        &self,
        hash: TokenHash,
        resource: &str,
        now: Timestamp,
    ) -> Option<Result<VerifiedToken, TokenRejection>> {
        if let Some(token) = self.known.get(&hash) {
            return Some(token.check(resource, now));
        }
        let unknown = lock(&self.unknown);
        let since = unknown.get(&hash)?;
        (since.elapsed() < UNKNOWN_KEPT).then_some(Err(TokenRejection::Unknown))
    }

    /// How often tokens were forgotten: what was read from the store before may be gone from it.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Keeps a token that was found in the store in `generation`, at `now`.
    pub(super) fn insert(
        &self,
        hash: TokenHash,
        token: IssuedAccessToken,
        (now, generation): (Timestamp, u64),
    ) {
        if self.known.len() >= KEPT_MAX {
            self.known.retain(|_, token| now < token.expires);
            if self.known.len() >= KEPT_MAX {
                self.known.retain(|_, token| {
                    token.validity.revoke();
                    false
                });
            }
        }
        self.known.insert(hash, token);
        if self.generation() != generation {
            self.known.remove(&hash);
        }
        lock(&self.unknown).remove(&hash);
    }

    pub(super) fn note_unknown(&self, hash: TokenHash) {
        let now = Instant::now();
        let mut unknown = lock(&self.unknown);
        if unknown.len() >= UNKNOWN_MAX {
            unknown.retain(|_, since| now.duration_since(*since) < UNKNOWN_KEPT);
            if unknown.len() >= UNKNOWN_MAX {
                unknown.clear();
            }
        }
        unknown.insert(hash, now);
    }

    /// The hashes of the tokens that are known.
    pub(super) fn hashes(&self) -> HashSet<TokenHash> {
        self.known.iter().map(|it| *it.key()).collect()
    }

    /// Forgets the tokens that `keep` does not want, ends what is under way by them, and gives them.
    pub(super) fn retain(
        &self,
        keep: impl Fn(&TokenHash, &IssuedAccessToken) -> bool,
    ) -> Vec<IssuedAccessToken> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let mut gone = Vec::new();
        self.known.retain(|hash, token| {
            let is_kept = keep(hash, token);
            if !is_kept {
                token.validity.revoke();
                gone.push(token.clone());
            }
            is_kept
        });
        gone
    }
}
