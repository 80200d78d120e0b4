//! Messages that wait until the writer of a pipe or socket takes them. A request that is given up
//! meanwhile is never sent: its server would be at work on it for nobody.
//!
//! Put there by `link`, taken by `pipe`, `sse` and `websocket`.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use bytes::Bytes;

use super::exchange_activity::Activity;

/// Messages that may wait for a server to take them.
pub(in crate::backend) const QUEUE_MAX: usize = 256;

/// A message that waits for the writer.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    bytes: Bytes,
    /// The exchange whose request it is, if it is one.
    activity: Option<Arc<Activity>>,
}

impl QueuedMessage {
    /// The request of the exchange with this `activity`.
    pub(in crate::backend) fn request(bytes: Bytes, activity: &Arc<Activity>) -> Self {
        activity.send_state.set(QUEUED);
        Self {
            bytes,
            activity: Some(Arc::clone(activity)),
        }
    }

    /// What is to be sent now; `None` where nobody wants that any more.
    pub(in crate::backend) fn into_bytes_if_wanted(self) -> Option<Bytes> {
        let is_wanted = self.activity.is_none_or(|of| of.send_state.try_mark_sent());
        is_wanted.then_some(self.bytes)
    }
}

impl From<Bytes> for QueuedMessage {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            activity: None,
        }
    }
}

/// How far the request of an exchange is on its way to the writer.
#[derive(Debug, Default)]
pub(in crate::backend) struct SendState(AtomicU8);

/// It does not wait for a writer, or no longer.
const NOT_QUEUED: u8 = 0;
const QUEUED: u8 = 1;
const WITHDRAWN: u8 = 2;

impl SendState {
    /// Gives the request up where the writer has not taken it; whether that is so.
    pub(in crate::backend) fn withdraw(&self) -> bool {
        self.transition(QUEUED, WITHDRAWN)
    }

    /// Whether it is still wanted; from now on it counts as sent.
    fn try_mark_sent(&self) -> bool {
        self.transition(QUEUED, NOT_QUEUED)
    }

    fn transition(&self, from: u8, to: u8) -> bool {
        let changed = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }

    fn set(&self, to: u8) {
        self.0.store(to, Ordering::Release);
    }
}
