//! For how long a replica that failed gets no calls.

use std::time::Duration;

use tokio::time::Instant;

use crate::config;

/// Failures in a row after which the time that a replica is out doubles no more, so that no product
/// overflows.
const DOUBLINGS_MAX: u32 = 16;

/// Whether a replica is left alone for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outlier {
    /// Failures in a row.
    failures: u32,
    pub(super) ejected_until: Option<Instant>,
}

impl Outlier {
    /// Notes a failure: from `now` on it is out, for twice as long as after the one before.
    pub(super) fn note_failure(&mut self, ejection: config::Ejection, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.ejected_until = Some(now + self.ejection_time(ejection));
    }

    /// Keeps to another `ejection`: it is out no longer than that says of one that failed just now.
    pub(super) fn set_config(&mut self, ejection: config::Ejection, now: Instant) {
        let longest = now + self.ejection_time(ejection);
        self.ejected_until = self.ejected_until.map(|until| until.min(longest));
    }

    /// For how long it is out after its latest failure.
    fn ejection_time(self, ejection: config::Ejection) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS_MAX);
        let time = ejection.base.saturating_mul(1_u32 << doublings);
        time.min(ejection.max)
    }

    pub(super) fn is_ejected(self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_ejection_only_shortens() {
        let ejection = |base, max| config::Ejection {
            base: Duration::from_secs(base),
            max: Duration::from_secs(max),
        };
        let start = Instant::now();
        let check = |failures: u32, other: config::Ejection, after: u64, expect: u64| {
            let mut outlier = Outlier::default();
            for _ in 0..failures {
                outlier.note_failure(ejection(10, 60), start);
            }
            let now = start + Duration::from_secs(after);
            outlier.set_config(other, now);
            let until = outlier.ejected_until.unwrap_or(start);
            let left = until.saturating_duration_since(start);
            assert_eq!(left, Duration::from_secs(expect), "{failures}, {other:?}");
            let is_out = expect > after;
            assert_eq!(outlier.is_ejected(now), is_out, "{failures}, {other:?}");
        };
        check(0, ejection(1, 1), 0, 0);
        check(1, ejection(10, 60), 0, 10);
        check(2, ejection(10, 60), 0, 20);
        check(9, ejection(10, 60), 0, 60);
        check(1, ejection(2, 60), 1, 3);
        check(3, ejection(2, 60), 1, 9);
        check(9, ejection(10, 15), 1, 16);
        // As it was said.
        check(1, ejection(2, 60), 9, 10);
        check(1, ejection(30, 60), 1, 10);
        check(1, ejection(1, 60), 11, 10);
    }
}
