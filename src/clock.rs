//! Wall-clock time. Durations are measured with `tokio::time`, which tests can pause.

use std::time::SystemTime;

use jiff::Timestamp;

/// The current time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}
