//! Wall-clock time, and one time for a whole turn of a task. Durations are measured with `tokio::time`,
//! which tests can pause.

mod poll_clock;

use std::time::SystemTime;

use jiff::Timestamp;

pub(crate) use poll_clock::{PollScope, cached_now, millis_since};

/// The current time.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
}
