//! Whether a child and everything it started use more memory than they may.
//!
//! A limit of the system (`setrlimit`) would not do: it counts address space, of which some runtimes reserve
//! much more than they use, holds for each process alone, and ends it without a reason. So the resident and
//! swapped memory of the process group is added up every [`POLL_INTERVAL`]. A child may go beyond its limit for a
//! moment.

use std::time::Duration;

use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use super::process_group;

/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Looks in a row that may fail before it is logged that the limit is not watched.
const FAILURES_MAX: u32 = 10;

/// Completes with the bytes in use once the process group of `leader` uses more than `limit`; never
/// without a limit.
pub(super) async fn exceeded(leader: u32, limit: Option<u64>) -> u64 {
    let group = super::to_pid(leader);
    let (Some(limit), Some(group)) = (limit, group) else {
        return std::future::pending().await;
    };
    let look = move || process_group::usage_of(group).map(|usage| usage.memory_bytes);
    above(limit, look).await
}

async fn above(limit: u64, look: impl Fn() -> Option<u64> + Clone + Send + 'static) -> u64 {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0_u32;
    loop {
        ticks.tick().await;
        match spawn_blocking(look.clone()).await.ok().flatten() {
            Some(used) if used > limit => return used,
            Some(_) => failures = 0,
            None => failures = failures.saturating_add(1),
        }
        if failures == FAILURES_MAX {
            tracing::warn!("limits.memory is not watched: the system does not tell what is in use");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_reached_only_past_it() {
        static USED: AtomicU64 = AtomicU64::new(99);
        let start = Instant::now();
        let used = above(100, || Some(USED.fetch_add(1, Ordering::Relaxed))).await;
        assert_eq!(used, 101);
        let looks = start.elapsed().as_millis() / POLL_INTERVAL.as_millis();
        assert_eq!(looks, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_seen_ends_nothing() {
        let ended = timeout(100 * POLL_INTERVAL, above(0, || None)).await;
        assert!(ended.is_err());
        let unlimited = timeout(100 * POLL_INTERVAL, exceeded(1, None)).await;
        assert!(unlimited.is_err());
    }
}
