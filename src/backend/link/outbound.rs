//! Messages that wait until the writer of a pipe or socket takes them. A request that is given up
//! meanwhile is never sent: its server would be at work on it for nobody.
//!
//! Put there by `link`, taken by `pipe`, `sse` and `websocket`.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use bytes::Bytes;

use super::activity::Activity;

/// Messages that may wait for a server to take them.
pub(in crate::backend) const QUEUE_MAX: usize = 256;

/// A message that waits for the writer.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    bytes: Bytes,
    /// The exchange whose request it is, if it is one.
    of: Option<Arc<Activity>>,
}

impl QueuedMessage {
    /// The request of the exchange with this `activity`.
    pub(in crate::backend) fn request(bytes: Bytes, activity: &Arc<Activity>) -> Self {
        activity.leaving.set(WAITS);
        Self {
            bytes,
            of: Some(Arc::clone(activity)),
        }
    }

    /// What is to be sent now; `None` where nobody wants that any more.
    pub(in crate::backend) fn take(self) -> Option<Bytes> {
        let is_wanted = self.of.is_none_or(|of| of.leaving.leave());
        is_wanted.then_some(self.bytes)
    }
}

impl From<Bytes> for QueuedMessage {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, of: None }
    }
}

/// How far the request of an exchange is on its way to the writer.
#[derive(Debug, Default)]
pub(in crate::backend) struct Leaving(AtomicU8);

/// It does not wait for a writer, or no longer.
const LEFT: u8 = 0;
const WAITS: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Leaving {
    /// Gives the request up where the writer has not taken it; whether that is so.
    pub(in crate::backend) fn withdraw(&self) -> bool {
        self.change(WAITS, WITHDRAWN)
    }

    /// Whether it is still wanted; from now on it counts as sent.
    fn leave(&self) -> bool {
        self.change(WAITS, LEFT)
    }

    fn change(&self, from: u8, to: u8) -> bool {
        let changed = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }

    fn set(&self, to: u8) {
        self.0.store(to, Ordering::Release);
    }
}
