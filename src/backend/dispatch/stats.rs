//! Counts and latencies of the calls of one server.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::mcp::{Outcome, Raw};

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
    bytes_to: AtomicU64,
    bytes_from: AtomicU64,
}

impl Stats {
    /// Time from forwarding a call to its answer.
    pub fn latency(&self) -> &crate::telemetry::Latency {
        &self.latency
    }

    /// Bytes of params sent to it.
    pub fn bytes_to(&self) -> u64 {
        self.bytes_to.load(Ordering::Relaxed)
    }

    /// Bytes of results and errors that it answered with.
    pub fn bytes_from(&self) -> u64 {
        self.bytes_from.load(Ordering::Relaxed)
    }

    pub(in crate::backend) fn note_sent(&self, params: Option<&Raw>) {
        self.bytes_to.fetch_add(len(params), Ordering::Relaxed);
    }

    pub(in crate::backend) fn note_received(&self, outcome: &Outcome) {
        let (Ok(body) | Err(body)) = outcome;
        self.bytes_from
            .fetch_add(len(Some(body)), Ordering::Relaxed);
    }
}

fn len(body: Option<&Raw>) -> u64 {
    let bytes = body.map_or(0, |body| body.as_bytes().len());
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Counts a call as running until dropped.
pub(in crate::backend) struct CountedCall<'a> {
    stats: &'a Stats,
    start: Instant,
}

impl<'a> CountedCall<'a> {
    pub(in crate::backend) fn start(stats: &'a Stats, start: Instant) -> Self {
        stats.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { stats, start }
    }

    pub(in crate::backend) fn finish(self, answered: bool) {
        if answered {
            self.stats.answered.fetch_add(1, Ordering::Relaxed);
            let took = self.start.elapsed();
            self.stats.latency.record(took);
        } else {
            self.stats.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        self.stats.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
