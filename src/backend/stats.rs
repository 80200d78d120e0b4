//! Counts and latencies of the calls of one server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls of one server that ended.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls under way.
    pub in_flight: AtomicU64,
    /// Calls that were answered.
    pub answered: AtomicU64,
    /// Calls that got no answer.
    pub failed: AtomicU64,
    latency: crate::telemetry::Latency,
}

impl Stats {
    /// Time from forwarding a call to its answer.
    pub fn latency(&self) -> &crate::telemetry::Latency {
        &self.latency
    }
}

/// Counts a call as running until dropped.
pub(super) struct Running<'a> {
    stats: &'a Stats,
    start: tokio::time::Instant,
}

impl<'a> Running<'a> {
    pub(super) fn start(stats: &'a Stats) -> Self {
        stats.in_flight.fetch_add(1, Ordering::Relaxed);
        Self {
            stats,
            start: tokio::time::Instant::now(),
        }
    }

    pub(super) fn finish(self, answered: bool) {
        if answered {
            self.stats.answered.fetch_add(1, Ordering::Relaxed);
            self.stats.latency.record(self.start.elapsed());
        } else {
            self.stats.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.stats.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
