//! How many calls each agent has under way.
//!
//! Part of step 2: a call takes a [`ConcurrencyPermit`] before rates count it, and its ticket holds the seat until
//! the call is settled. There is no queue: calls wait in front of servers, where it is known what
//! they wait for; an agent that has as many under way as it may comes back. Without a limit nothing
//! is counted.

use std::{num::NonZeroUsize, sync::Arc};

use dashmap::{DashMap, Entry};

use crate::names::AgentId;

/// The calls that are under way, by agent.
#[derive(Debug, Default)]
pub struct Concurrency {
    /// Agents without a call under way are not in it.
    in_flight: Arc<DashMap<AgentId, usize, foldhash::fast::RandomState>>,
}

/// Leave for one call, given back when dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit {
    agent: AgentId,
    in_flight: Arc<DashMap<AgentId, usize, foldhash::fast::RandomState>>,
}

/// An agent has as many calls under way as it may.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooManyInFlight {
    /// How many those are.
    pub limit: NonZeroUsize,
}

impl Concurrency {
    /// A seat for one more call of `agent`, which may have `limit` under way; `None` where it may have
    /// any number.
    ///
    /// # Errors
    /// When the agent has as many calls under way as it may.
    pub fn acquire(
        &self,
        agent: AgentId,
        limit: Option<NonZeroUsize>,
    ) -> Result<Option<ConcurrencyPermit>, TooManyInFlight> {
        let Some(limit) = limit else {
            return Ok(None);
        };
        let mut running = self.in_flight.entry(agent).or_insert(0);
        if *running >= limit.get() {
            return Err(TooManyInFlight { limit });
        }
        *running += 1;
        let running = Arc::clone(&self.in_flight);
        Ok(Some(ConcurrencyPermit {
            agent,
            in_flight: running,
        }))
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        let Entry::Occupied(mut running) = self.in_flight.entry(self.agent) else {
            return;
        };
        *running.get_mut() -= 1;
        if *running.get() == 0 {
            running.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_at_its_edge_and_on_the_way_back() {
        let limit = NonZeroUsize::new(2).unwrap();
        let concurrency = Concurrency::default();
        let (one, other) = (AgentId::from_name("one"), AgentId::from_name("other"));
        let first = concurrency.acquire(one, Some(limit)).unwrap();
        let second = concurrency.acquire(one, Some(limit)).unwrap();
        assert!(first.is_some() && second.is_some(), "at the limit");
        assert_eq!(
            concurrency.acquire(one, Some(limit)).unwrap_err(),
            TooManyInFlight { limit }
        );
        let others = concurrency.acquire(other, Some(limit));
        assert!(others.is_ok(), "agents do not share");
        drop(first);
        let third = concurrency.acquire(one, Some(limit));
        assert!(third.is_ok(), "back under it");
        assert!(concurrency.acquire(one, Some(limit)).is_err());
        drop((second, third, others));
        assert!(concurrency.in_flight.is_empty(), "nothing is left behind");
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let concurrency = Concurrency::default();
        for _ in 0..100 {
            assert!(
                concurrency
                    .acquire(AgentId::ANONYMOUS, None)
                    .unwrap()
                    .is_none()
            );
        }
        assert!(concurrency.in_flight.is_empty());
    }

    #[test]
    fn many_at_once_get_no_more_seats_than_there_are() {
        let concurrency = Concurrency::default();
        let seats: Vec<_> = std::thread::scope(|scope| {
            let enter = || {
                let seats =
                    (0..10).map(|_| concurrency.acquire(AgentId::ANONYMOUS, NonZeroUsize::new(10)));
                seats.flatten().flatten().collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(enter)).collect();
            let seats = threads.into_iter().map(|thread| thread.join().unwrap());
            seats.flatten().collect()
        });
        assert_eq!(seats.len(), 10);
    }
}
