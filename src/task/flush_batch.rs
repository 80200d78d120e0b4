//! What leaves together: after others had their turn, and one right after the other.
//!
//! What reads, what decides and what sends are much code, in the system too, and would go through the
//! caches of the processor in turns for each request; and who waits at the other end is woken once for
//! many. `socket` puts off its writes like this.

use std::{
    mem,
    sync::{Arc, Mutex},
    vec,
};

use tokio::task::yield_now;

use super::{InFlightGuard, Tasks};
use crate::lock::lock;

/// Requests under way up to which nothing waits for a departure. Few gain nothing by it, and with
/// several workers each may wake one that sleeps.
const HASTY_MAX: u64 = 3;

/// How many depart in one turn: others have theirs after that.
const ABOARD_MAX: usize = 32;

/// Who departs with others.
pub(crate) trait Depart: Send + Sync {
    /// Its time has come; called once for each [`Tasks::board`].
    fn depart(&self);
}

type Passengers = Vec<Arc<dyn Depart>>;

thread_local! {
    /// Who departs next of those that came on this thread: nobody waits for what another is busy with.
    static ABOARD: Arc<Mutex<Passengers>> = Arc::default();
}

impl Tasks {
    /// Counts a request for as long as it is not answered.
    pub(crate) fn under_way(&self) -> InFlightGuard {
        self.0.under_way.enter()
    }

    /// Whether it pays to [`Tasks::board`]: more than [`HASTY_MAX`] requests are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.under_way.now() > HASTY_MAX
    }

    /// Has `passenger` depart with the next, which goes when others had their turn.
    pub(crate) fn board(&self, passenger: Arc<dyn Depart>) {
        let aboard = ABOARD.with(Arc::clone);
        let mut passengers = lock(&aboard);
        passengers.push(passenger);
        if passengers.len() == 1 {
            drop(passengers);
            self.spawn("departure", Departure::new(aboard).leave());
        }
    }
}

/// One departure. Where it breaks off, whoever is left departs at once.
struct Departure {
    /// Who may still come; `None` once it is closed, and those that come board the next.
    aboard: Option<Arc<Mutex<Passengers>>>,
    leaving: vec::IntoIter<Arc<dyn Depart>>,
}

impl Departure {
    fn new(aboard: Arc<Mutex<Passengers>>) -> Self {
        Self {
            aboard: Some(aboard),
            leaving: Vec::new().into_iter(),
        }
    }

    async fn leave(mut self) {
        yield_now().await;
        self.close();
        loop {
            for passenger in self.leaving.by_ref().take(ABOARD_MAX) {
                passenger.depart();
            }
            if self.leaving.len() == 0 {
                return;
            }
            yield_now().await;
        }
    }

    fn close(&mut self) {
        if let Some(aboard) = self.aboard.take() {
            self.leaving = mem::take(&mut *lock(&aboard)).into_iter();
        }
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.close();
        for passenger in self.leaving.by_ref() {
            passenger.depart();
        }
    }
}

#[cfg(test)]
impl Tasks {
    /// Just as many requests as it takes to be busy.
    pub(crate) fn busy(&self) -> Vec<InFlightGuard> {
        (0..=HASTY_MAX).map(|_| self.under_way()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

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
    async fn who_comes_before_others_had_their_turn_leaves_with_them() {
        let tasks = Tasks::new();
        let first = Arc::new(Passenger::default());
        tasks.board(Arc::clone(&first) as _);
        let (tell, told) = oneshot::channel();
        let (boards, waits) = (tasks.clone(), Arc::clone(&first));
        tasks.spawn("other", async move {
            boards.board(Arc::new(Passenger::default()));
            tell.send(waits.0.load(Ordering::Relaxed)).expect("awaited");
        });
        assert_eq!(told.await, Ok(0), "the departure waits for the other task");
        assert_eq!(ABOARD.with(|aboard| lock(aboard).len()), 2);
        tasks.finish().await;
        assert_eq!(first.0.load(Ordering::Relaxed), 1);
    }

    /// Whoever is left when the runtime ends is not left behind for those that come later.
    #[test]
    fn a_departure_that_breaks_off_leaves_nobody_behind() {
        let passengers = [(); 2].map(|()| Arc::new(Passenger::default()));
        for passenger in &passengers {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("there is nothing to it");
            runtime.block_on(async { Tasks::new().board(Arc::clone(passenger) as _) });
            drop(runtime);
            assert_eq!(passenger.0.load(Ordering::Relaxed), 1);
        }
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
