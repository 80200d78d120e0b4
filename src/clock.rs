//! Wall-clock time. Durations are measured with `tokio::time`, which tests can pause.

use std::time::SystemTime;

use jiff::Timestamp;
use tokio::time::Instant;

/// The current time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Milliseconds since `start`.
pub(crate) fn millis_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}
