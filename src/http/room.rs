//! How many connections clients may have open at once (`limits.connections`).
//!
//! Every connection is an open file, of which the system allows a process only so many: without a bound
//! clients could take those that servers, the store and the audit need. For who comes when there is no
//! room a connection is closed on which nothing is under way: one that brought no request, else one between
//! requests, that which has rested for longest. Where there is none, they wait in the queue of the system
//! until somebody leaves.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use rustix::process::{Resource, getrlimit};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::seldom::Seldom;
use crate::{clock::millis_since, lock::lock};

/// Open files that are not for clients, where half of those allowed are more.
const OTHERS: usize = 256;

/// Pause between looks whether there is somebody to send away, or whether the config allows more than it did.
const LOOK: Duration = Duration::from_millis(50);

/// How long a connection may bring no request although others wait: one that is used brings its first at
/// once, but its messages are under way for some time.
const SILENT_MAX: Duration = Duration::from_millis(250);

/// How long a connection may rest between requests although others wait. What a client sends on it in the
/// moment in which it is closed is lost to that, so that it should be one that is not used just now.
const REST_MAX: Duration = Duration::from_secs(1);

/// The connections that are open.
#[derive(Debug)]
pub(super) struct Room {
    opened: Instant,
    places: Mutex<Places>,
    left: Notify,
    /// That it was full.
    told: Mutex<Seldom>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: HashMap<u64, Arc<Place>>,
}

/// What is known of a connection.
#[derive(Debug, Default)]
struct Place {
    /// Requests without an answer, and event streams that go on.
    at_work: AtomicUsize,
    has_asked: AtomicBool,
    /// Milliseconds from the opening of the room until it came, or until the last answer ended.
    rests_since_ms: AtomicU64,
    leaves: CancellationToken,
}

/// A connection is open until this is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    number: u64,
    place: Arc<Place>,
    room: Arc<Room>,
}

/// A request is under way until this is dropped.
#[derive(Debug)]
pub(super) struct AtWork {
    place: Arc<Place>,
    opened: Instant,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            places: Mutex::default(),
            left: Notify::new(),
            told: Mutex::default(),
        }
    }

    /// Completes when there is room for one more of at most `max()`; nobody else lets any in.
    pub(super) async fn awaited(&self, max: impl Fn() -> Option<NonZeroUsize>) {
        let is_full = || {
            let max = max().map_or_else(|| most(files()), NonZeroUsize::get);
            (lock(&self.places).taken.len() >= max).then_some(max)
        };
        let Some(max) = is_full() else { return };
        if let Some(more) = lock(&self.told).come(Instant::now()) {
            tracing::warn!(
                max,
                more,
                "as many connections are open as may be; for further ones those at rest are closed, else \
                 they wait"
            );
        }
        // Who left before made room that is taken by now.
        let _ = self.left.notified().now_or_never();
        while is_full().is_some() {
            if let Some(place) = self.longest_at_rest() {
                place.leaves.cancel();
            }
            // Somebody has left, or it is time to look again.
            drop(timeout(LOOK, self.left.notified()).await);
        }
    }

    /// Who is to leave: those who brought no request first.
    fn longest_at_rest(&self) -> Option<Arc<Place>> {
        let now = self.opened.elapsed();
        let places = lock(&self.places);
        let resting = places.taken.values().filter_map(|place| {
            let (has_asked, since) = place.at_rest(now)?;
            Some((has_asked, since, place))
        });
        let longest = resting.min_by_key(|(has_asked, since, _)| (*has_asked, *since));
        longest.map(|(_, _, place)| Arc::clone(place))
    }

    pub(super) fn enter(self: &Arc<Self>) -> Guest {
        let place = Arc::new(Place::default());
        place.rests(self.opened);
        let mut places = lock(&self.places);
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, Arc::clone(&place));
        Guest {
            number,
            place,
            room: Arc::clone(self),
        }
    }
}

impl Place {
    fn rests(&self, opened: Instant) {
        let since = millis_since(opened);
        self.rests_since_ms.store(since, Ordering::Relaxed);
    }

    /// Whether it ever asked anything, and since when it rests, if that is long enough to be sent away, and
    /// it was not yet.
    fn at_rest(&self, now: Duration) -> Option<(bool, Duration)> {
        if self.at_work.load(Ordering::SeqCst) > 0 || self.leaves.is_cancelled() {
            return None;
        }
        let has_asked = self.has_asked.load(Ordering::Relaxed);
        let max = if has_asked { REST_MAX } else { SILENT_MAX };
        let since = Duration::from_millis(self.rests_since_ms.load(Ordering::Relaxed));
        (now.saturating_sub(since) >= max).then_some((has_asked, since))
    }
}

impl Guest {
    /// Completes when others wait for the place of this one, which was at rest.
    pub(super) async fn asked_to_leave(&self) {
        self.place.leaves.cancelled().await;
    }

    /// Whether a request is under way.
    pub(super) fn is_at_work(&self) -> bool {
        self.place.at_work.load(Ordering::SeqCst) > 0
    }

    /// Notes that a request is under way.
    pub(super) fn at_work(&self) -> AtWork {
        self.place.at_work.fetch_add(1, Ordering::SeqCst);
        self.place.has_asked.store(true, Ordering::Relaxed);
        AtWork {
            place: Arc::clone(&self.place),
            opened: self.room.opened,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.place.rests(self.opened);
        self.place.at_work.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        lock(&self.room.places).taken.remove(&self.number);
        self.room.left.notify_one();
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
    use tokio::time::sleep;

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
        let (room, max) = (Arc::new(Room::new()), AtomicUsize::new(2));
        let awaited = || room.awaited(|| NonZeroUsize::new(max.load(Ordering::SeqCst)));
        let is_full = async || timeout(100 * LOOK, awaited()).await.is_err();
        let busy = || {
            let guest = room.enter();
            (guest.at_work(), guest)
        };
        let first = busy();
        assert!(!is_full().await);
        let _second = busy();
        assert!(is_full().await);
        drop(first);
        assert!(!is_full().await);
        let _third = busy();
        let (more, ()) = tokio::join!(is_full(), async { max.store(3, Ordering::SeqCst) });
        assert!(!more);
    }

    /// Those who never asked go first, then those who asked least recently; who is at work stays.
    #[tokio::test(start_paused = true)]
    async fn those_at_rest_make_room_the_longest_first() {
        let room = Arc::new(Room::new());
        let leaver = || room.longest_at_rest().map(|place| place.leaves.cancel());
        let is_told = |guest: &Guest| guest.place.leaves.is_cancelled();
        let [busy, asked, early, late] = [(); 4].map(|()| room.enter());
        let work = busy.at_work();
        assert!(leaver().is_none(), "they have just come");
        sleep(REST_MAX).await;
        drop(asked.at_work());
        drop(early.at_work());
        sleep(REST_MAX / 2).await;
        drop(asked.at_work());
        for (guest, after) in [
            (&late, Duration::ZERO),
            (&early, REST_MAX / 2),
            (&asked, REST_MAX / 2),
        ] {
            sleep(after).await;
            assert!(!is_told(guest));
            assert!(leaver().is_some());
            assert!(is_told(guest), "after {after:?}");
            assert!(leaver().is_none(), "nobody else rests for that long");
        }
        sleep(10 * REST_MAX).await;
        assert!(leaver().is_none(), "it is at work");
        drop(work);
        sleep(REST_MAX).await;
        assert!(leaver().is_some() && is_told(&busy));
    }
}
