//! What may happen often and is to be told seldom.

use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of the log about one thing.
const THROTTLE_INTERVAL: Duration = Duration::from_secs(60);

/// What was logged lately: the first time is logged at once, and after that one in [`THROTTLE_INTERVAL`], with
/// how many came since.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Option<ThrottleState>);

#[derive(Debug)]
struct ThrottleState {
    since: Instant,
    /// How many came since, and were not told.
    suppressed: u64,
}

impl LogThrottle {
    /// How many were held back before the one that comes `now`, if that is to be told.
    pub(crate) fn record(&mut self, now: Instant) -> Option<u64> {
        let Some(state) = &mut self.0 else {
            self.0 = Some(ThrottleState {
                since: now,
                suppressed: 0,
            });
            return Some(0);
        };
        if now.duration_since(state.since) < THROTTLE_INTERVAL {
            state.suppressed += 1;
            return None;
        }
        state.since = now;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_in_a_while_is_told() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut come = |after| throttle.record(start + after);
        assert_eq!(come(Duration::ZERO), Some(0));
        assert_eq!(come(Duration::ZERO), None);
        assert_eq!(come(THROTTLE_INTERVAL / 2), None);
        assert_eq!(come(THROTTLE_INTERVAL), Some(2));
        assert_eq!(come(THROTTLE_INTERVAL), None);
        assert_eq!(come(THROTTLE_INTERVAL * 2), Some(1));
    }
}
