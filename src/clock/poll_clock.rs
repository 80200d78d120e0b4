//! One look at the clock for a whole turn of a task.
//!
//! A call has a dozen reasons to know the time, nearly all of them in the same few microseconds: when
//! a session was used last, until when it may wait, when its server was heard. The clock of the system
//! costs each of them more than what it is asked for.

use std::{cell::Cell, marker::PhantomData};

use tokio::time::Instant;

/// What is known of the time in the turn of this thread.
#[derive(Clone, Copy)]
enum PollClock {
    /// There is none: every look is at the clock.
    Inactive,
    /// Nobody has looked.
    Unread,
    At(Instant),
}

thread_local! {
    static POLL_CLOCK: Cell<PollClock> = const { Cell::new(PollClock::Inactive) };
}

/// The time when somebody first asked for it in this turn of a connection; elsewhere the time. Older
/// than the time by what the turn has lasted: for idle times, signs of life and latencies of servers, not
/// for what may take no longer than a turn.
pub(crate) fn cached_now() -> Instant {
    POLL_CLOCK.with(|turn| match turn.get() {
        PollClock::Inactive => Instant::now(),
        PollClock::At(now) => now,
        PollClock::Unread => {
            let now = Instant::now();
            turn.set(PollClock::At(now));
            now
        }
    })
}

/// Milliseconds from `start` to [`cached_now`].
pub(crate) fn millis_since(start: Instant) -> u64 {
    u64::try_from(cached_now().duration_since(start).as_millis()).unwrap_or(u64::MAX)
}

/// The turn of a task that lasts until this is dropped, or the one around it. It stays on its thread.
pub(crate) struct PollScope {
    is_outermost: bool,
    _of_thread: PhantomData<*const ()>,
}

impl PollScope {
    /// Begins with nobody having looked.
    pub(crate) fn enter() -> Self {
        let is_outermost = matches!(POLL_CLOCK.get(), PollClock::Inactive);
        if is_outermost {
            POLL_CLOCK.set(PollClock::Unread);
        }
        Self {
            is_outermost,
            _of_thread: PhantomData,
        }
    }
}

impl Drop for PollScope {
    fn drop(&mut self) {
        if self.is_outermost {
            POLL_CLOCK.set(PollClock::Inactive);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WHILE: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_turn_has_one_time() {
        let start = cached_now();
        let turn = PollScope::enter();
        assert_eq!(cached_now(), start);
        tokio::time::advance(WHILE).await;
        let inner = PollScope::enter();
        assert_eq!(cached_now(), start);
        drop(inner);
        assert_eq!(cached_now(), start, "the turn around it goes on");
        drop(turn);
        assert_eq!(cached_now(), start + WHILE);
        let late = PollScope::enter();
        tokio::time::advance(WHILE).await;
        assert_eq!(cached_now(), start + 2 * WHILE, "nobody had looked before");
        drop(late);
    }
}
