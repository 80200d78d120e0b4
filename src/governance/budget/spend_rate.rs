//! How large a slice a lease asks for: what the process spends in about a second, and $5 at least, so
//! that a busy one seldom asks the store, and a crash hides little from others until it is reconciled.

use std::time::Duration;

use tokio::time::Instant;

use crate::{money::Micros, store::LeaseRequest};

/// How long a slice should last, and how long it must have lasted before less is kept.
const SLICE_DURATION: Duration = Duration::from_secs(1);

/// How fast a lease is used up.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpendRate {
    /// What the last slice could come to.
    slice: Micros,
    /// When it was taken.
    taken_at: Instant,
    /// What was used of the lease by then.
    used: Micros,
}

impl SpendRate {
    /// That of a lease of which `used` is used, and which has just got `slice`.
    pub(super) fn since(slice: Micros, used: Micros, now: Instant) -> Self {
        Self {
            slice,
            taken_at: now,
            used,
        }
    }

    /// What the next slice may come to: what was used since the last one, for a second; at most twice
    /// the last one, so that a few calls at once do not make it large.
    pub(super) fn next_slice(&self, used: Micros, now: Instant) -> Micros {
        let used = used.saturating_sub(self.used).get();
        let millis = now.duration_since(self.taken_at).as_millis().max(1);
        let a_second = u128::from(used) * SLICE_DURATION.as_millis() / millis;
        let a_second = Micros::new(u64::try_from(a_second).unwrap_or(u64::MAX));
        let twice = self.slice.saturating_add(self.slice);
        a_second.min(twice).max(LeaseRequest::SLICE_MIN)
    }

    /// How much room a lease keeps that has slowed down, which is room for two slices as when one is
    /// taken ahead of need; `None` where that is not known yet.
    pub(super) fn room_max(&self, used: Micros, now: Instant) -> Option<Micros> {
        if now.duration_since(self.taken_at) < SLICE_DURATION {
            return None;
        }
        let slice = self.next_slice(used, now);
        Some(slice.saturating_add(slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_what_is_used_in_a_second() {
        check("nothing used", (5, 0, 1_000), 5);
        check("used slowly", (5, 5, 10_000), 5);
        check("just a second", (5, 5, 1_000), 5);
        check("faster", (5, 5, 625), 8);
        check("at most twice", (5, 5, 1), 10);
        check("and so on", (640, 640, 100), 1_280);
        check("at once", (5, 5, 0), 10);
        check("slower", (640, 640, 2_000), 320);
        check("slow", (640, 10, 10_000), 5);
    }

    #[test]
    fn room_is_kept_for_two_seconds_of_a_lease_that_slowed_down() {
        let room = |(slice, used, millis)| {
            let now = Instant::now();
            let pace = SpendRate::since(dollars(slice), Micros::ZERO, now);
            pace.room_max(dollars(used), now + Duration::from_millis(millis))
        };
        assert_eq!(room((5, 0, 60_000)), Some(dollars(10)), "the least");
        assert_eq!(room((640, 0, 999)), None, "nothing is known yet");
        assert_eq!(room((640, 320, 1_000)), Some(dollars(640)));
        assert_eq!(room((640, 320, 4_000)), Some(dollars(160)));
        assert_eq!(room((640, 1, 1_000)), Some(dollars(10)));
    }

    /// Dollars of the last slice, dollars used of it, and in how many milliseconds.
    fn check(row: &str, (slice, used, millis): (u64, u64, u64), expect: u64) {
        let (now, before) = (Instant::now(), dollars(7));
        let pace = SpendRate::since(dollars(slice), before, now);
        let used = before.saturating_add(dollars(used));
        let found = pace.next_slice(used, now + Duration::from_millis(millis));
        assert_eq!(found, dollars(expect), "{row}");
    }

    fn dollars(amount: u64) -> Micros {
        Micros::new(amount * 1_000_000)
    }
}
