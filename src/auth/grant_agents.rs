//! Agents as they come in by grants of the built-in authorization server: what is under way by one grant ends with that,
//! and leaves what other clients of the same agent do.

use std::sync::Arc;

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::Agent;

/// Grants that are known at a time. Beyond it those are forgotten by which nothing is under way.
const GRANTS_MAX: usize = 20_000;

/// The agents that came in by grants.
#[derive(Debug, Default)]
pub(super) struct GrantAgents {
    known: DashMap<String, Arc<Agent>, RandomState>,
}

impl GrantAgents {
    /// `agent`, as it comes in by the grant `id`.
    pub(super) fn agent(&self, id: &str, agent: &Arc<Agent>) -> Arc<Agent> {
        if self.known.len() >= GRANTS_MAX {
            self.known.retain(|_, known| Arc::strong_count(known) > 1);
        }
        let mut known = self
            .known
            .entry(id.to_owned())
            .or_insert_with(|| by_grant(agent));
        if known.session_validity.is_revoked() {
            *known = by_grant(agent);
        } else if **known != **agent {
            *known = Arc::new(Agent {
                session_validity: known.session_validity.clone(),
                ..(**agent).clone()
            });
        }
        Arc::clone(&known)
    }

    /// The ids of the grants that are known.
    pub(super) fn ids(&self) -> Vec<String> {
        self.known.iter().map(|known| known.key().clone()).collect()
    }

    /// Ends what is under way by the grant `id`; whether anything may be.
    pub(super) fn end(&self, id: &str) -> bool {
        let removed = self.known.remove(id);
        if let Some((_, agent)) = &removed {
            agent.session_validity.revoke_grant();
        }
        removed.is_some()
    }
}

fn by_grant(agent: &Arc<Agent>) -> Arc<Agent> {
    Arc::new(Agent {
        session_validity: agent.session_validity.by_grant(),
        ..(**agent).clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    #[test]
    fn a_grant_ends_on_its_own_and_with_its_agent() {
        let grants = GrantAgents::default();
        let agent = Arc::new(Agent::anonymous());
        let (one, other) = (grants.agent("one", &agent), grants.agent("other", &agent));
        assert!(Arc::ptr_eq(&one, &grants.agent("one", &agent)));
        assert!(grants.end("one") && !grants.end("one"));
        let is_ended = |agent: &Agent| agent.session_validity.token().is_cancelled();
        assert!(is_ended(&one) && !is_ended(&other) && !is_ended(&agent));
        assert!(one.session_validity.is_grant_revoked());
        // The same agent with other terms: what is under way goes on, and still ends with the grant.
        let changed = Arc::new(Agent {
            role: Role::Admin,
            ..(*agent).clone()
        });
        let next = grants.agent("other", &changed);
        assert!(next.role == Role::Admin && !is_ended(&next));
        agent.session_validity.revoke();
        assert!(is_ended(&other) && is_ended(&next));
        assert!(!next.session_validity.is_grant_revoked());
        let anew = Arc::new(Agent::anonymous());
        assert!(!is_ended(&grants.agent("other", &anew)));
    }

    #[test]
    fn grants_that_nobody_uses_make_room() {
        let grants = GrantAgents::default();
        let agent = Arc::new(Agent::anonymous());
        let held = grants.agent("0", &agent);
        for number in 1..GRANTS_MAX {
            grants.agent(&number.to_string(), &agent);
        }
        assert_eq!(grants.known.len(), GRANTS_MAX, "at the limit");
        grants.agent("one more", &agent);
        assert_eq!(grants.known.len(), 2, "past it");
        grants.agent("another", &agent);
        assert_eq!(grants.known.len(), 3, "back under it");
        assert!(Arc::ptr_eq(&held, &grants.agent("0", &agent)));
    }
}
