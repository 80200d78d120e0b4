//! What a server writes besides messages: stderr, and lines on stdout that are none.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::lock::lock;

/// Lines of stderr kept.
const STDERR_LINES_MAX: usize = 50;
/// Lines on stdout that are no messages which are kept for the reason of a failure.
const ODD_LINES_MAX: usize = 3;

/// The last lines a server wrote to stderr.
#[derive(Clone, Debug, Default)]
pub(crate) struct StderrTail(Arc<Mutex<VecDeque<String>>>);

impl StderrTail {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    pub(crate) fn last(&self) -> Option<String> {
        self.lock()
            .iter()
            .rev()
            .find(|line| !line.trim().is_empty())
            .cloned()
    }

    pub(super) fn push(&self, line: String) {
        let mut lines = self.lock();
        if lines.len() == STDERR_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        lock(&self.0)
    }
}

/// Lines on stdout that are no messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Odd {
    pub(crate) count: u64,
    /// The last of them, the latest at the end.
    tail: VecDeque<String>,
}

impl Odd {
    pub(super) fn note(&mut self, line: &str) {
        self.count += 1;
        if self.tail.len() == ODD_LINES_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }

    pub(crate) fn last(&self) -> Option<&String> {
        self.tail.back()
    }

    /// Those that are known of the lines after the first `count`.
    pub(crate) fn since(&self, count: u64) -> Vec<String> {
        let fresh = usize::try_from(self.count - count).unwrap_or(ODD_LINES_MAX);
        let old = self.tail.len().saturating_sub(fresh);
        self.tail.iter().skip(old).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_odd_lines_of_an_attempt_are_its_own() {
        let mut odd = Odd::default();
        let check = |odd: &Odd, count: u64, expect: &[&str]| {
            assert_eq!(odd.since(count), expect, "{odd:?} after {count}");
        };
        check(&odd, 0, &[]);
        odd.note("a");
        check(&odd, 0, &["a"]);
        check(&odd, 1, &[]);
        for line in ["b", "c", "d"] {
            odd.note(line);
        }
        check(&odd, 0, &["b", "c", "d"]);
        check(&odd, 3, &["d"]);
        assert_eq!(odd.last().map(String::as_str), Some("d"));
    }
}
