//! How many requests to servers over HTTP may be under way at once.
//!
//! Each takes a socket, which is an open file like the connection of a client; of those the system allows a
//! process only so many. What `ConnectionLimit` leaves is for these.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The requests under way, and how many may be.
#[derive(Clone, Debug)]
pub(crate) struct CallLimit(Arc<CallCounts>);

#[derive(Debug)]
struct CallCounts {
    max: AtomicUsize,
    taken: AtomicUsize,
}

/// A request is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct HttpCallPermit(CallLimit);

impl CallLimit {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(CallCounts {
            max: AtomicUsize::new(max),
            taken: AtomicUsize::new(0),
        }))
    }

    pub(super) fn set_max(&self, max: usize) {
        self.0.max.store(max, Ordering::Relaxed);
    }

    /// Lets one more request go out.
    ///
    /// # Errors
    /// How many may be under way, where as many are.
    pub(crate) fn enter(&self) -> Result<HttpCallPermit, usize> {
        let max = self.0.max.load(Ordering::Relaxed);
        let permit = HttpCallPermit(self.clone());
        if self.0.taken.fetch_add(1, Ordering::Relaxed) < max {
            Ok(permit)
        } else {
            Err(max)
        }
    }
}

impl Drop for HttpCallPermit {
    fn drop(&mut self) {
        self.0.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many() {
        let limit = CallLimit::new(2);
        let first = limit.enter().unwrap();
        let _second = limit.enter().unwrap();
        assert_eq!(limit.enter().unwrap_err(), 2, "past the limit");
        drop(first);
        let _third = limit.enter().unwrap();
        limit.set_max(1);
        assert_eq!(limit.enter().unwrap_err(), 1);
    }
}
