//! Room for what clients say unasked (notifications) while their server does not take it: its pipe is
//! full, its answer to the post is still to come, or its connection is still being made. Called by
//! `link` and `clients`.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may wait; a message that is larger may wait alone.
pub(in crate::backend) const BYTES_MAX: usize = 4 << 20;
/// Messages that may.
pub(in crate::backend) const MESSAGES_MAX: usize = 1024;

/// See the module. Places are counted in bytes, of which a small message takes more than it has.
#[derive(Debug)]
pub(in crate::backend) struct Backlog(Arc<Semaphore>);

impl Backlog {
    /// A place for a message of so many `bytes`, which is free again once it is dropped; `None` where
    /// there is none.
    pub(in crate::backend) fn try_reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let room = bytes.clamp(BYTES_MAX / MESSAGES_MAX, BYTES_MAX);
        let room = u32::try_from(room).expect("it is no more than 4 MiB");
        Arc::clone(&self.0).try_acquire_many_owned(room).ok()
    }

    /// Whether nothing waits.
    #[cfg(test)]
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.0.available_permits() == BYTES_MAX
    }
}

impl Default for Backlog {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BYTES_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_messages_of_such_length_may_wait() {
        let backlog = Backlog::default();
        let mut small: Vec<_> = (0..MESSAGES_MAX).map(|_| backlog.try_reserve(1)).collect();
        assert!(small.iter().all(Option::is_some));
        assert!(backlog.try_reserve(1).is_none());
        small.pop();
        assert!(backlog.try_reserve(2 * BYTES_MAX / MESSAGES_MAX).is_none());
        assert!(backlog.try_reserve(1).is_some());
        drop(small);

        let large = backlog.try_reserve(BYTES_MAX);
        assert!(large.is_some() && backlog.try_reserve(1).is_none());
        drop(large);
        assert!(backlog.try_reserve(usize::MAX).is_some(), "alone");
        assert!(backlog.is_empty());
    }
}
