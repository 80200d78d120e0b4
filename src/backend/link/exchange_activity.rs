//! Signs of life of one exchange with a server: what its deadlines count from, and whether the
//! server speaks of it on another stream than its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{Deadlines, outbound::SendState};
use crate::{backend::BackendError, clock::millis_since};

/// Silence beside an exchange after which its answer has overtaken nothing.
const OUT_OF_BAND_QUIET: Duration = Duration::from_millis(25);
/// How long an answer waits for that silence.
const OUT_OF_BAND_WAIT_MAX: Duration = Duration::from_millis(250);

/// Signs of life of one exchange.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    last_ms: AtomicU64,
    /// Milliseconds until something was last told of it on a stream of no call; 0 for never.
    out_of_band_ms: AtomicU64,
    /// Requests to the client that wait for its answer: people take their time.
    suspended: AtomicU32,
    /// Requests to the client that came in it.
    client_requests: AtomicU32,
    /// How far its request is on its way to the server.
    pub(in crate::backend) send_state: SendState,
}

impl Activity {
    pub(in crate::backend) fn new() -> Self {
        Self {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
            out_of_band_ms: AtomicU64::new(0),
            suspended: AtomicU32::new(0),
            client_requests: AtomicU32::new(0),
            send_state: SendState::default(),
        }
    }

    pub(crate) fn touch(&self) {
        self.last_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Notes that the server told something of it on a stream of no call.
    pub(in crate::backend) fn note_out_of_band(&self) {
        self.out_of_band_ms
            .store(self.elapsed_ms().max(1), Ordering::Relaxed);
    }

    /// Where the server spoke beside it, waits until that has fallen silent: the answer may have
    /// overtaken the last of it.
    pub(in crate::backend) async fn wait_out_of_band_quiet(&self) {
        let answered = Instant::now();
        while let Some(latest) = self.latest_out_of_band() {
            let end =
                (latest.max(answered) + OUT_OF_BAND_QUIET).min(answered + OUT_OF_BAND_WAIT_MAX);
            if Instant::now() >= end {
                return;
            }
            sleep_until(end).await;
        }
    }

    fn latest_out_of_band(&self) -> Option<Instant> {
        let beside = self.out_of_band_ms.load(Ordering::Relaxed);
        (beside > 0).then(|| self.start + Duration::from_millis(beside))
    }

    fn elapsed_ms(&self) -> u64 {
        millis_since(self.start)
    }

    /// Whether it waits for the answer of a client: people take their time.
    pub(in crate::backend) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed) > 0
    }

    /// Notes a request to the client; how many there were before.
    pub(in crate::backend) fn count_client_request(&self) -> u32 {
        self.client_requests.fetch_add(1, Ordering::Relaxed)
    }

    /// Completes when the exchange was silent, or lasted, for too long.
    pub(crate) async fn deadline_exceeded(&self, limits: Deadlines) -> BackendError {
        loop {
            let silent_since = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let suspended = self.is_suspended();
            let elapsed = self.start.elapsed();
            if elapsed >= limits.total {
                return BackendError::Timeout {
                    after: limits.total,
                    key: Some("max_total_timeout"),
                };
            }
            let idle_end = if suspended {
                elapsed + limits.idle
            } else {
                silent_since + limits.idle
            };
            if elapsed >= idle_end {
                return BackendError::Timeout {
                    after: limits.idle,
                    key: Some(limits.idle_key),
                };
            }
            sleep_until(self.start + idle_end.min(limits.total)).await;
        }
    }
}

/// Stops the idle deadline of an exchange until dropped: people take their time.
#[derive(Debug)]
pub(in crate::backend) struct Suspended(Arc<Activity>);

impl Suspended {
    pub(in crate::backend) fn new(activity: &Arc<Activity>) -> Self {
        activity.suspended.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.0.touch();
        self.0.suspended.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the wait; timers are a millisecond late at most.
    async fn check(activity: &Activity, expect: Duration, why: &str) {
        let start = Instant::now();
        activity.wait_out_of_band_quiet().await;
        let late = start.elapsed().checked_sub(expect);
        assert!(late.is_some_and(|late| late <= TICK), "{late:?}: {why}");
    }

    const TICK: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_what_is_said_beside_it() {
        let activity = Arc::new(Activity::new());
        check(&activity, Duration::ZERO, "nothing was said").await;
        activity.note_out_of_band();
        check(&activity, OUT_OF_BAND_QUIET, "it fell silent").await;
        let speaker = Arc::clone(&activity);
        crate::task::Tasks::new().spawn("speaker", async move {
            loop {
                speaker.note_out_of_band();
                tokio::time::sleep(OUT_OF_BAND_QUIET / 2).await;
            }
        });
        check(&activity, OUT_OF_BAND_WAIT_MAX, "it never falls silent").await;
    }
}
