//! How often each `requestState` was brought back.
//!
//! Counted by agent, and only of states that were sealed here and hold: nobody else's requests make an entry
//! or push one out. An agent whose states in use are more than are counted loses those that end first, used
//! or not, as if they had expired: what is no longer counted cannot be used without end. Counts are kept in
//! memory: after a restart, and in each of several gateways of one data directory, a state is good for
//! [`STATE_USES_MAX`] requests again, until it expires.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use jiff::Timestamp;

use crate::{
    governance::state_field::{InvalidState, STATE_USES_MAX, StateId},
    lock::lock,
    names::AgentId,
};

/// States of one agent that are counted at once.
const COUNTED_STATES_MAX: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StateUses(Mutex<HashMap<AgentId, AgentStates>>);

/// The states of one agent.
#[derive(Debug, Default)]
struct AgentStates {
    counts: BTreeMap<StateId, u8>,
    /// The last that is no longer counted, nor any before it.
    uncounted: Option<StateId>,
}

impl StateUses {
    /// Counts a use of the state `id`, which `agent` was given.
    pub(super) fn count(
        &self,
        agent: AgentId,
        id: StateId,
        now: Timestamp,
    ) -> Result<(), InvalidState> {
        let now = now.as_second();
        if id.expires < now {
            return Err(InvalidState::Expired);
        }
        let mut agents = lock(&self.0);
        if !agents.contains_key(&agent) {
            agents.retain(|_, of_agent| of_agent.has_live(now));
        }
        agents.entry(agent).or_default().count(id, now)
    }

    /// Lets a use not have been.
    pub(super) fn refund(&self, agent: AgentId, id: StateId) {
        let mut agents = lock(&self.0);
        let counts = agents.get_mut(&agent).map(|of_agent| &mut of_agent.counts);
        if let Some(count) = counts.and_then(|counts| counts.get_mut(&id)) {
            *count = count.saturating_sub(1);
        }
    }
}

impl AgentStates {
    /// Whether a state in it still holds.
    fn has_live(&self, now: i64) -> bool {
        let last = self.counts.last_key_value();
        last.is_some_and(|(id, _)| id.expires >= now)
    }

    fn count(&mut self, id: StateId, now: i64) -> Result<(), InvalidState> {
        while let Some(first) = self.counts.first_entry()
            && first.key().expires < now
        {
            first.remove();
        }
        if let Some(count) = self.counts.get_mut(&id) {
            if *count >= STATE_USES_MAX {
                return Err(InvalidState::Used);
            }
            *count += 1;
            return Ok(());
        }
        if self.uncounted.is_some_and(|uncounted| id <= uncounted) {
            return Err(InvalidState::Expired);
        }
        self.counts.insert(id, 1);
        if self.counts.len() > COUNTED_STATES_MAX {
            self.uncounted = self.counts.pop_first().map(|(id, _)| id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(until: i64, nonce: u128) -> StateId {
        let nonce = Uuid::from_u128(nonce);
        StateId {
            expires: until,
            given_in: nonce,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn agent(number: u128) -> AgentId {
        AgentId(Uuid::from_u128(number))
    }

    #[test]
    fn at_past_and_under_the_bound() {
        let uses = StateUses::default();
        let count = || uses.count(agent(1), id(9, 1), at(5));
        for _ in 0..STATE_USES_MAX {
            assert_eq!(count(), Ok(()));
        }
        assert_eq!(count(), Err(InvalidState::Used));
        assert_eq!(count(), Err(InvalidState::Used), "and it stays so");
        for other in [id(9, 2), id(8, 1)] {
            assert_eq!(uses.count(agent(1), other, at(5)), Ok(()), "{other}");
        }
        uses.refund(agent(1), id(9, 1));
        assert_eq!(count(), Ok(()), "what reached nobody is no use");
        assert_eq!(count(), Err(InvalidState::Used));
        let late = uses.count(agent(1), id(9, 1), at(10));
        assert_eq!(late, Err(InvalidState::Expired));
    }

    /// Whatever one agent does, it makes nobody else's states good again, and none of its own.
    #[test]
    fn many_states_push_out_no_count() {
        let uses = StateUses::default();
        let (ann, bob, now) = (agent(1), agent(2), at(5));
        for of in [ann, bob] {
            for _ in 0..STATE_USES_MAX {
                uses.count(of, id(9, 0), now).unwrap();
            }
        }
        let most = u128::try_from(COUNTED_STATES_MAX).unwrap();
        for nonce in 1..2 * most {
            uses.count(bob, id(9, nonce), now).unwrap();
        }
        assert_eq!(lock(&uses.0)[&bob].counts.len(), COUNTED_STATES_MAX);
        assert_eq!(uses.count(bob, id(9, 0), now), Err(InvalidState::Expired));
        assert_eq!(uses.count(ann, id(9, 0), now), Err(InvalidState::Used));
        uses.count(bob, id(9, 2 * most - 1), now).unwrap();
        uses.count(bob, id(10, 0), now).unwrap();
    }

    #[test]
    fn what_has_expired_takes_no_room() {
        let uses = StateUses::default();
        for nonce in 0..100 {
            uses.count(agent(nonce), id(9, nonce), at(5)).unwrap();
            uses.count(agent(1000), id(9, nonce), at(5)).unwrap();
        }
        uses.count(agent(1000), id(20, 0), at(10)).unwrap();
        assert_eq!(lock(&uses.0)[&agent(1000)].counts.len(), 1);
        uses.count(agent(1001), id(20, 0), at(10)).unwrap();
        assert_eq!(lock(&uses.0).len(), 2, "of those, only who has others");
    }
}
