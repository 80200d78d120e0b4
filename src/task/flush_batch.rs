//! Sends requests to servers in batches: those that came in one round of the scheduler are written one
//! right after the other, by a task of their own, when the others of the round had their turn.
//!
//! Reading, deciding and writing are much code, in the kernel too, and evict each other from the caches
//! of the processor when they alternate for each request; and a server is woken once for many of them.
//! The HTTP/1 client (`backend::transport::http::connection`) defers the first poll of its connection
//! like this. What it saves: `docs/src/performance.md`.

use std::{
    mem,
    sync::{Arc, Mutex},
    vec,
};

use tokio::task::yield_now;

use super::{InFlightGuard, Tasks};
use crate::lock::lock;

/// Requests in flight up to which nothing waits for a batch. Few gain nothing by it, and with several
/// workers each may wake one that sleeps.
const IN_FLIGHT_BATCHING_MIN: u64 = 3;

/// How many are flushed in one turn: others have theirs after that.
const FLUSHES_PER_TURN: usize = 32;

/// What is flushed in a batch.
pub(crate) trait FlushLater: Send + Sync {
    /// Called once for each [`Tasks::defer_flush`].
    fn flush_now(&self);
}

type Deferred = Vec<Arc<dyn FlushLater>>;

thread_local! {
    /// The next batch of this thread: none waits for what another thread is busy with.
    static PENDING: Arc<Mutex<Deferred>> = Arc::default();
}

impl Tasks {
    /// Counts a request for as long as it is not answered.
    pub(crate) fn track_request(&self) -> InFlightGuard {
        self.0.in_flight.enter()
    }

    /// Whether it pays to [`Tasks::defer_flush`]: more than [`IN_FLIGHT_BATCHING_MIN`] requests are under way.
    pub(crate) fn should_batch(&self) -> bool {
        self.0.in_flight.count() > IN_FLIGHT_BATCHING_MIN
    }

    /// Adds `flush` to the next batch of this thread, which goes when others had their turn.
    pub(crate) fn defer_flush(&self, flush: Arc<dyn FlushLater>) {
        let pending = PENDING.with(Arc::clone);
        let mut deferred = lock(&pending);
        deferred.push(flush);
        if deferred.len() == 1 {
            drop(deferred);
            self.spawn("flush batch", FlushBatch::new(pending).flush_all());
        }
    }
}

/// One batch. When it is dropped early, the rest is flushed at once.
struct FlushBatch {
    /// `None` once it is closed: what comes then belongs to the next.
    pending: Option<Arc<Mutex<Deferred>>>,
    flushing: vec::IntoIter<Arc<dyn FlushLater>>,
}

impl FlushBatch {
    fn new(pending: Arc<Mutex<Deferred>>) -> Self {
        Self {
            pending: Some(pending),
            flushing: Vec::new().into_iter(),
        }
    }

    async fn flush_all(mut self) {
        yield_now().await;
        self.close();
        loop {
            for deferred in self.flushing.by_ref().take(FLUSHES_PER_TURN) {
                deferred.flush_now();
            }
            if self.flushing.len() == 0 {
                return;
            }
            yield_now().await;
        }
    }

    fn close(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.flushing = mem::take(&mut *lock(&pending)).into_iter();
        }
    }
}

impl Drop for FlushBatch {
    fn drop(&mut self) {
        self.close();
        for deferred in self.flushing.by_ref() {
            deferred.flush_now();
        }
    }
}

#[cfg(test)]
impl Tasks {
    /// Just as many requests as it takes to be busy.
    pub(crate) fn in_flight_for_batching(&self) -> Vec<InFlightGuard> {
        (0..=IN_FLIGHT_BATCHING_MIN)
            .map(|_| self.track_request())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct CountedFlush(AtomicUsize);

    impl FlushLater for CountedFlush {
        fn flush_now(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_batch_is_flushed_when_others_had_their_turn() {
        let tasks = Tasks::new();
        let flushes: Vec<_> = (0..3 * FLUSHES_PER_TURN)
            .map(|_| Arc::new(CountedFlush::default()))
            .collect();
        let flushed = || {
            let flushed = flushes.iter().map(|flush| flush.0.load(Ordering::Relaxed));
            flushed.sum::<usize>()
        };
        for flush in &flushes {
            tasks.defer_flush(Arc::clone(flush) as _);
        }
        assert_eq!(flushed(), 0, "nobody has had a turn");
        let mut seen = Vec::new();
        while seen.last() != Some(&flushes.len()) {
            yield_now().await;
            seen.push(flushed());
            seen.dedup();
        }
        seen.retain(|seen| *seen > 0);
        assert_eq!(
            seen,
            [FLUSHES_PER_TURN, 2 * FLUSHES_PER_TURN, 3 * FLUSHES_PER_TURN]
        );
        tasks.finish().await;
    }

    #[tokio::test]
    async fn what_comes_in_the_same_round_joins_the_batch() {
        let tasks = Tasks::new();
        let first = Arc::new(CountedFlush::default());
        tasks.defer_flush(Arc::clone(&first) as _);
        let (sender, receiver) = oneshot::channel();
        let (joining, waits) = (tasks.clone(), Arc::clone(&first));
        tasks.spawn("other", async move {
            joining.defer_flush(Arc::new(CountedFlush::default()));
            sender
                .send(waits.0.load(Ordering::Relaxed))
                .expect("awaited");
        });
        assert_eq!(receiver.await, Ok(0), "the batch waits for the other task");
        assert_eq!(PENDING.with(|pending| lock(pending).len()), 2);
        tasks.finish().await;
        assert_eq!(first.0.load(Ordering::Relaxed), 1);
    }

    /// What is left when the runtime ends is flushed at once, and not with later batches.
    #[test]
    fn a_batch_that_is_dropped_is_flushed() {
        let flushes = [(); 2].map(|()| Arc::new(CountedFlush::default()));
        for flush in &flushes {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("there is nothing to it");
            runtime.block_on(async { Tasks::new().defer_flush(Arc::clone(flush) as _) });
            drop(runtime);
            assert_eq!(flush.0.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test]
    async fn few_do_not_wait() {
        let tasks = Tasks::new();
        let mut few = tasks.in_flight_for_batching();
        assert!(tasks.should_batch());
        few.pop();
        assert!(!tasks.should_batch());
        // The same requests, whatever they are logged within.
        few.push(tasks.with_span(tracing::Span::none()).track_request());
        assert!(tasks.should_batch());
        few.pop();
        assert!(!tasks.should_batch());
    }
}
