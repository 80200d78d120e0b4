//! Which tokens were verified: each is verified once, and good until its time passes or something changes.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{Identity, ResourceUrl};

/// Tokens that are remembered. Beyond it all are forgotten, and verified again as they come.
const TOKENS_MAX: usize = 20_000;

/// A token shown for a resource.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct TokenUse([u8; 32]);

impl TokenUse {
    pub(super) fn new(token: &str, resource: ResourceUrl<'_>) -> Self {
        let mut hash = Sha256::new();
        hash.update(token.as_bytes());
        // No token has it.
        hash.update([0]);
        for part in [resource.scheme, resource.base, resource.path] {
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }
}

/// How often everything was forgotten: what was verified before counts no longer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct CacheGeneration(u64);

/// Who the tokens belong to that were verified.
#[derive(Debug, Default)]
pub(super) struct TokenCache {
    known: DashMap<TokenUse, Identity, RandomState>,
    generation: AtomicU64,
}

impl TokenCache {
    pub(super) fn find(&self, used: TokenUse, now: Timestamp) -> Option<Identity> {
        let found = self.known.get(&used)?;
        let is_live = found.expires.is_some_and(|expires| now < expires);
        is_live.then(|| found.clone())
    }

    pub(super) fn generation(&self) -> CacheGeneration {
        CacheGeneration(self.generation.load(Ordering::Acquire))
    }

    /// Remembers whose a token is, which was found out in `generation`.
    pub(super) fn insert(&self, used: TokenUse, found: Identity, generation: CacheGeneration) {
        if self.known.len() >= TOKENS_MAX {
            self.known.clear();
        }
        self.known.insert(used, found);
        if self.generation() != generation {
            self.known.remove(&used);
        }
    }

    pub(super) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::Agent;

    fn resource(path: &str) -> ResourceUrl<'_> {
        ResourceUrl {
            scheme: "http://",
            base: "127.0.0.1:8080",
            path,
        }
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let cache = TokenCache::default();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later = "2026-01-01T01:00:00Z".parse().unwrap();
        let identity = Identity {
            expires: Some(later),
            ..Identity::from(Arc::new(Agent::anonymous()))
        };
        let used = |index: usize| TokenUse::new(&index.to_string(), resource("r"));
        let put = |index| cache.insert(used(index), identity.clone(), cache.generation());
        put(0);
        assert!(cache.find(used(0), now).is_some());
        assert!(cache.find(used(0), later).is_none(), "its time has passed");
        assert!(
            cache.find(TokenUse::new("0", resource("s")), now).is_none(),
            "another resource"
        );
        let before = cache.generation();
        cache.clear();
        cache.insert(used(0), identity.clone(), before);
        assert!(
            cache.find(used(0), now).is_none(),
            "it was found out before"
        );
        (0..TOKENS_MAX).for_each(put);
        assert_eq!(cache.known.len(), TOKENS_MAX);
        put(TOKENS_MAX);
        assert_eq!(cache.known.len(), 1);
    }
}
