//! How many connections clients may have open at once (`limits.connections`).
//!
//! Every connection is an open file, of which the system allows a process only so many: without a bound
//! clients could take those that servers, the store and the audit need. Who comes when there is no
//! room waits in the queue of the system until somebody leaves.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::{sync::Notify, time::timeout};

/// Open files that are not for clients, where half of those allowed are more.
const OTHERS: usize = 256;

/// How often it is looked whether the config allows more than it did.
const REREAD: Duration = Duration::from_secs(1);

/// The connections that are open.
#[derive(Debug, Default)]
pub(super) struct Room {
    open: AtomicUsize,
    left: Notify,
}

/// A connection is open until this is dropped.
#[derive(Debug)]
pub(super) struct Guest(Arc<Room>);

impl Room {
    /// Completes when there is room for one more of at most `max()`; nobody else lets any in.
    pub(super) async fn awaited(&self, max: impl Fn() -> Option<NonZeroUsize>) {
        let is_full = || {
            let max = max().map_or_else(|| most(files()), NonZeroUsize::get);
            (self.open.load(Ordering::SeqCst) >= max).then_some(max)
        };
        let Some(max) = is_full() else { return };
        tracing::warn!(
            max,
            "as many connections are open as may be; further ones wait"
        );
        while is_full().is_some() {
            // Somebody has left, or it is time to look again.
            drop(timeout(REREAD, self.left.notified()).await);
        }
    }

    pub(super) fn enter(self: &Arc<Self>) -> Guest {
        self.open.fetch_add(1, Ordering::SeqCst);
        Guest(Arc::clone(self))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.left.notify_one();
    }
}

/// How many files the system lets us open.
fn files() -> usize {
    let allowed = getrlimit(Resource::Nofile).current;
    allowed.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// How many of so many `files` are for clients.
fn most(files: usize) -> usize {
    files - OTHERS.min(files / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_others() {
        for (files, expect) in [
            (1, 1),
            (100, 50),
            (512, 256),
            (1024, 768),
            (usize::MAX, usize::MAX - 256),
        ] {
            assert_eq!(most(files), expect, "{files}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_waits_until_somebody_leaves_or_more_may_come() {
        let (room, max) = (Arc::new(Room::default()), AtomicUsize::new(2));
        let awaited = || room.awaited(|| NonZeroUsize::new(max.load(Ordering::SeqCst)));
        let is_full = async || timeout(10 * REREAD, awaited()).await.is_err();
        let first = room.enter();
        assert!(!is_full().await);
        let _second = room.enter();
        assert!(is_full().await);
        drop(first);
        assert!(!is_full().await);
        let _third = room.enter();
        let (more, ()) = tokio::join!(is_full(), async { max.store(3, Ordering::SeqCst) });
        assert!(!more);
    }
}
