//! The users behind tokens that are known: each is an agent, derived from the one whose terms they have.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Agent,
    match_rules::{MatchRule, derive_agent},
    token::TokenRejection,
};
use crate::names::AgentId;

/// Users that are known at a time. Beyond it a tenth is forgotten, those first whose tokens were verified longest ago:
/// they come in anew.
const USERS_MAX: usize = 20_000;

/// The users that are known.
#[derive(Debug, Default)]
pub(super) struct Users {
    known: DashMap<AgentId, KnownUser, RandomState>,
    /// How many came in: each has a number of their own, so that who comes in anew is told from who was shown out.
    arrivals: AtomicU64,
}

#[derive(Debug)]
struct KnownUser {
    agent: Arc<Agent>,
    claims: Map<String, Value>,
    /// When a token of theirs was verified last.
    seen: Timestamp,
}

impl Users {
    pub(super) fn get(&self, id: AgentId) -> Option<Arc<Agent>> {
        self.known.get(&id).map(|known| Arc::clone(&known.agent))
    }

    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// The agent of who has these claims, by `rules`; whether others had to be forgotten for it.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn register(
        &self,
        claims: Map<String, Value>,
        rules: &[MatchRule],
        now: Timestamp,
    ) -> Result<(Arc<Agent>, bool), TokenRejection> {
        let derived = derive_agent(&claims, rules)?;
        let has_forgotten = !self.known.contains_key(&derived.id) && self.make_room();
        let mut known = self.known.entry(derived.id).or_insert_with(|| {
            let revocations = self.arrivals.fetch_add(1, Ordering::Relaxed);
            KnownUser {
                agent: Arc::new(Agent {
                    revocations,
                    ..derived.clone()
                }),
                claims: Map::new(),
                seen: now,
            }
        });
        known.take(derived);
        known.claims = claims;
        known.seen = now;
        Ok((Arc::clone(&known.agent), has_forgotten))
    }

    /// Derives everybody anew, by `rules` that have changed, or whose agents have. Who is nobody any longer is shown
    /// out.
    pub(super) fn update(&self, rules: &[MatchRule]) {
        self.known
            .retain(|_, known| match derive_agent(&known.claims, rules) {
                Ok(derived) if derived.id == known.agent.id => {
                    known.take(derived);
                    true
                }
                Ok(_) | Err(_) => {
                    known.agent.session_validity.revoke();
                    false
                }
            });
    }

    /// Shows a user out; whether there was one.
    pub(super) fn revoke(&self, id: AgentId) -> bool {
        let removed = self.known.remove(&id);
        if let Some((_, known)) = &removed {
            known.agent.session_validity.revoke();
        }
        removed.is_some()
    }

    /// Ends what is under way for anybody.
    pub(super) fn revoke_all(&self) {
        for known in &self.known {
            known.agent.session_validity.revoke();
        }
    }

    fn make_room(&self) -> bool {
        if self.known.len() < USERS_MAX {
            return false;
        }
        let mut seen: Vec<Timestamp> = self.known.iter().map(|known| known.seen).collect();
        seen.sort_unstable();
        let Some(oldest) = seen.get(USERS_MAX / 10).copied() else {
            return false;
        };
        let mut left = USERS_MAX / 10 + 1;
        self.known.retain(|_, known| {
            let goes = left > 0 && known.seen <= oldest;
            if goes {
                left -= 1;
                known.agent.session_validity.revoke();
            }
            !goes
        });
        true
    }
}

impl KnownUser {
    /// Goes on as `derived`, who is the same user.
    fn take(&mut self, derived: Agent) {
        let old = &self.agent;
        let derived = Agent {
            revocations: old.revocations,
            ..derived
        };
        if derived == **old {
            return;
        }
        let keeps_sessions = derived.enabled >= old.enabled;
        let session_validity = if keeps_sessions {
            old.session_validity.clone()
        } else {
            old.session_validity.revoke();
            derived.session_validity.clone()
        };
        self.agent = Arc::new(Agent {
            session_validity,
            ..derived
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn more_users_than_are_kept_make_room() {
        let users = Users::default();
        let written = serde_json::from_value(json!({"claims": {}, "agent": "a"})).unwrap();
        let rules = [MatchRule {
            written,
            base: Some(Arc::new(Agent::anonymous())),
        }];
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let come = |number: usize| {
            let claims = json!({"iss": "https://a", "sub": number.to_string()});
            let seconds = i64::try_from(number).unwrap();
            let now = start + jiff::SignedDuration::from_secs(seconds);
            users
                .register(claims.as_object().unwrap().clone(), &rules, now)
                .unwrap()
        };
        let (first, _) = come(0);
        for number in 1..USERS_MAX {
            assert!(!come(number).1);
        }
        assert_eq!(users.count(), USERS_MAX);
        assert!(!come(USERS_MAX - 1).1, "they are known");
        let (last, has_forgotten) = come(USERS_MAX);
        assert!(has_forgotten && users.count() < USERS_MAX);
        assert!(users.get(last.id).is_some() && users.get(first.id).is_none());
        assert!(first.session_validity.token().is_cancelled());
        assert_ne!(
            come(0).0.revocations,
            first.revocations,
            "they come in anew"
        );
    }
}
