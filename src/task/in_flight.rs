//! How many there are of something at the moment: requests under way, readers of streams.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts who is present.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<AtomicU64>);

/// Somebody is present until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicU64>);

impl InFlight {
    /// Counts one more. Whoever enters and looks at a flag then, while another sets the flag and looks
    /// at the count then, can be sure that one of both sees the other.
    pub(crate) fn enter(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::SeqCst);
        InFlightGuard(Arc::clone(&self.0))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_counted_no_longer() {
        let presence = InFlight::default();
        let (one, other) = (presence.enter(), presence.enter());
        assert_eq!(presence.count(), 2);
        drop(one);
        assert_eq!(presence.count(), 1);
        drop(other);
        assert_eq!(presence.count(), 0);
    }
}
