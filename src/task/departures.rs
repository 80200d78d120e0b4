//! What leaves together: after others had their turn, and one right after the other.
//!
//! What reads, what decides and what sends are much code, in the system too, and would go through the
//! caches of the processor in turns for each request; and who waits at the other end is woken once for
//! many. `socket` puts off its writes like this.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::task::{unconstrained, yield_now};

use super::Tasks;
use crate::lock::lock;

/// Requests under way up to which nothing waits for a departure. Few gain nothing by it, and with
/// several workers each may wake one that sleeps.
const HASTY_MAX: usize = 3;

/// How many depart in one turn: others have theirs after that.
const ABOARD_MAX: usize = 32;

/// Who departs with others.
pub(crate) trait Depart: Send + Sync {
    /// Its time has come; called once for each [`Tasks::board`].
    fn depart(&self);
}

/// The departures of a group of tasks.
#[derive(Default)]
pub(super) struct Departures {
    under_way: AtomicUsize,
    aboard: Mutex<Vec<Arc<dyn Depart>>>,
}

impl std::fmt::Debug for Departures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Departures")
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

/// A request is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Departures>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tasks {
    /// Counts a request for as long as it is not answered.
    pub(crate) fn under_way(&self) -> UnderWay {
        let departures = &self.0.departures;
        departures.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(departures))
    }

    /// Whether it pays to [`Tasks::board`]: more than [`HASTY_MAX`] requests are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.departures.under_way.load(Ordering::Relaxed) > HASTY_MAX
    }

    /// Has `passenger` depart with the next, which goes when others had their turn.
    pub(crate) fn board(&self, passenger: Arc<dyn Depart>) {
        let departures = &self.0.departures;
        let mut aboard = lock(&departures.aboard);
        aboard.push(passenger);
        if aboard.len() == 1 {
            drop(aboard);
            let departures = Arc::clone(departures);
            self.spawn("departure", unconstrained(leave(departures)));
        }
    }
}

async fn leave(departures: Arc<Departures>) {
    yield_now().await;
    let leaving = std::mem::take(&mut *lock(&departures.aboard));
    for (index, passenger) in leaving.into_iter().enumerate() {
        if index > 0 && index % ABOARD_MAX == 0 {
            yield_now().await;
        }
        passenger.depart();
    }
}

#[cfg(test)]
impl Tasks {
    /// Just as many requests as it takes to be busy.
    pub(crate) fn busy(&self) -> Vec<UnderWay> {
        (0..=HASTY_MAX).map(|_| self.under_way()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Passenger(AtomicUsize);

    impl Depart for Passenger {
        fn depart(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn they_leave_together_when_others_had_their_turn() {
        let tasks = Tasks::new();
        let passengers: Vec<_> = (0..3 * ABOARD_MAX)
            .map(|_| Arc::new(Passenger::default()))
            .collect();
        let departed = || {
            let departed = passengers
                .iter()
                .map(|passenger| passenger.0.load(Ordering::Relaxed));
            departed.sum::<usize>()
        };
        for passenger in &passengers {
            tasks.board(Arc::clone(passenger) as _);
        }
        assert_eq!(departed(), 0, "nobody has had a turn");
        let mut seen = Vec::new();
        while seen.last() != Some(&passengers.len()) {
            yield_now().await;
            seen.push(departed());
            seen.dedup();
        }
        seen.retain(|seen| *seen > 0);
        assert_eq!(seen, [ABOARD_MAX, 2 * ABOARD_MAX, 3 * ABOARD_MAX]);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn few_do_not_wait() {
        let tasks = Tasks::new();
        let mut few = tasks.busy();
        assert!(tasks.is_busy());
        few.pop();
        assert!(!tasks.is_busy());
        // The same requests, whatever they are logged within.
        few.push(tasks.within(tracing::Span::none()).under_way());
        assert!(tasks.is_busy());
        few.pop();
        assert!(!tasks.is_busy());
    }
}
