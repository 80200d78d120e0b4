//! What a server writes besides messages: stderr, and lines on stdout that are none.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard},
};

use super::{
    exit_reason::{error_from_stderr, reason_from_stderr},
    process_group::ProgramUsage,
};
use crate::lock::lock;

/// Lines of stderr kept.
const STDERR_LINES_MAX: usize = 50;
/// Lines on stdout that are no messages which are kept for the reason of a failure.
const STRAY_LINES_MAX: usize = 3;

/// What the programs of one instance wrote besides messages, one after the other.
#[derive(Debug, Default)]
pub(crate) struct ChildOutput {
    /// The last lines on stderr.
    stderr: Mutex<VecDeque<StderrLine>>,
    stray: Mutex<StrayOutput>,
    /// What those that run took of the machine when it was last looked at, by the pid of each.
    running: Mutex<BTreeMap<u32, ProgramUsage>>,
}

/// A line on stderr.
#[derive(Debug)]
struct StderrLine {
    /// Which line it is, from 1.
    number: u64,
    /// The process it is of.
    pid: u32,
    text: String,
    /// Whether its process came to serve after it, so that it is not what that ended of.
    precedes_service: bool,
}

impl ChildOutput {
    /// Notes that the program `pid` runs.
    pub(in crate::backend) fn note_started(&self, pid: u32) {
        lock(&self.running).insert(pid, ProgramUsage::default());
    }

    /// Notes that nothing is left of the program `pid`.
    pub(in crate::backend) fn note_ended(&self, pid: u32) {
        lock(&self.running).remove(&pid);
    }

    /// The pids of the programs that run.
    pub(in crate::backend) fn running(&self) -> Vec<u32> {
        lock(&self.running).keys().copied().collect()
    }

    /// Notes what the programs that run take, as far as `of` knows.
    pub(in crate::backend) fn note_usage(&self, of: impl Fn(u32) -> Option<ProgramUsage>) {
        for (pid, usage) in lock(&self.running).iter_mut() {
            *usage = of(*pid).unwrap_or_default();
        }
    }

    /// What the programs that run took when it was last looked at; `None` where none runs.
    pub(in crate::backend) fn usage(&self) -> Option<ProgramUsage> {
        let running = lock(&self.running);
        running.values().copied().reduce(ProgramUsage::sum)
    }

    /// The last lines on stderr.
    pub(in crate::backend) fn stderr(&self) -> Vec<String> {
        let lines = lock(&self.stderr);
        lines.iter().map(|line| line.text.clone()).collect()
    }

    /// The last lines on stderr that come after the one with the number `after`, and the number of the last; all,
    /// where so many were not written: they are of another instance.
    pub(in crate::backend) fn stderr_after(&self, after: u64) -> (Vec<String>, u64) {
        let lines = lock(&self.stderr);
        let last = lines.back().map_or(0, |line| line.number);
        let after = if after > last { 0 } else { after };
        let new = lines.iter().filter(|line| line.number > after);
        (new.map(|line| line.text.clone()).collect(), last)
    }

    /// The last line on stderr that says something.
    pub(in crate::backend) fn last_stderr_line(&self) -> Option<String> {
        let lines = lock(&self.stderr);
        let mut lines = lines.iter().rev().map(|line| &line.text);
        lines.find(|line| !line.trim().is_empty()).cloned()
    }

    /// What the process `pid` wrote to stderr of why it ended: what it wrote while it served, if anything, and
    /// an error before.
    pub(in crate::backend) fn exit_reason(&self, pid: u32) -> Option<String> {
        let lines = lock(&self.stderr);
        let own = || lines.iter().filter(|line| line.pid == pid);
        let late: Vec<_> = own()
            .filter(|line| !line.precedes_service)
            .map(|line| line.text.as_str())
            .collect();
        let all = || own().map(|line| line.text.as_str()).collect::<Vec<_>>();
        reason_from_stderr(&late).or_else(|| error_from_stderr(&all()))
    }

    /// Notes that the processes that wrote to stderr came to serve.
    pub(in crate::backend) fn mark_serving(&self) {
        for line in lock(&self.stderr).iter_mut() {
            line.precedes_service = true;
        }
    }

    /// Notes a line that the process `pid` wrote to stderr.
    pub(in crate::backend) fn note_stderr(&self, pid: u32, text: String) {
        let mut lines = lock(&self.stderr);
        let number = lines.back().map_or(1, |last| last.number + 1);
        if lines.len() == STDERR_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(StderrLine {
            number,
            pid,
            text,
            precedes_service: false,
        });
    }

    /// Notes a line on stdout that is no message.
    pub(in crate::backend) fn note_stray_line(&self, line: &str) {
        self.stray().note(line);
    }

    /// What came on stdout and is no message.
    pub(in crate::backend) fn stray(&self) -> MutexGuard<'_, StrayOutput> {
        lock(&self.stray)
    }
}

/// Lines on stdout that are no messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct StrayOutput {
    pub(crate) count: u64,
    /// The last of them, the latest at the end.
    tail: VecDeque<String>,
}

impl StrayOutput {
    fn note(&mut self, line: &str) {
        self.count += 1;
        if self.tail.len() == STRAY_LINES_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }

    pub(crate) fn last(&self) -> Option<&String> {
        self.tail.back()
    }

    /// Those that are known of the lines after the first `count`.
    pub(crate) fn lines_since(&self, count: u64) -> Vec<String> {
        let fresh = usize::try_from(self.count - count).unwrap_or(STRAY_LINES_MAX);
        let old = self.tail.len().saturating_sub(fresh);
        self.tail.iter().skip(old).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_process_that_said_them() {
        let output = ChildOutput::default();
        let check = |pid: u32, own: Option<&str>, of_all: Option<&str>| {
            assert_eq!(output.exit_reason(pid).as_deref(), own, "{pid}");
            assert_eq!(output.last_stderr_line().as_deref(), of_all, "{pid}");
        };
        check(1, None, None);
        for (pid, line) in [(1, "one"), (2, "two"), (1, " ")] {
            output.note_stderr(pid, line.to_owned());
        }
        check(1, Some("one"), Some("two"));
        check(2, Some("two"), Some("two"));
        check(3, None, Some("two"));
        for _ in 0..STDERR_LINES_MAX {
            output.note_stderr(3, String::new());
        }
        check(2, None, None);
        assert_eq!(output.stderr().len(), STDERR_LINES_MAX);
    }

    /// What a process wrote before it served is not why it ended, unless it is an error.
    #[test]
    fn what_precedes_service_is_no_reason() {
        let output = ChildOutput::default();
        let check = |expect: Option<&str>| assert_eq!(output.exit_reason(1).as_deref(), expect);
        output.note_stderr(1, "listening".to_owned());
        check(Some("listening"));
        output.mark_serving();
        check(None);
        output.note_stderr(1, "Error: no disk".to_owned());
        output.mark_serving();
        check(Some("Error: no disk"));
        output.note_stderr(1, " ".to_owned());
        check(Some("Error: no disk"));
        output.note_stderr(1, "out of memory".to_owned());
        check(Some("out of memory"));
        let all = ["listening", "Error: no disk", " ", "out of memory"];
        assert_eq!(output.stderr(), all);
    }

    #[test]
    fn the_last_odd_lines_of_an_attempt_are_its_own() {
        let mut odd = StrayOutput::default();
        let check = |odd: &StrayOutput, count: u64, expect: &[&str]| {
            assert_eq!(odd.lines_since(count), expect, "{odd:?} after {count}");
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

    #[test]
    fn lines_are_read_once() {
        let output = ChildOutput::default();
        assert_eq!(output.stderr_after(0), (Vec::new(), 0));
        for _ in 0..STDERR_LINES_MAX + 2 {
            output.note_stderr(1, "same".to_owned());
        }
        let (lines, last) = output.stderr_after(0);
        assert_eq!(lines.len(), STDERR_LINES_MAX);
        assert!(output.stderr_after(last).0.is_empty());
        output.note_stderr(1, "same".to_owned());
        assert_eq!(output.stderr_after(last).0.len(), 1);
        // Of an instance that wrote less.
        assert_eq!(output.stderr_after(last + 9).0.len(), STDERR_LINES_MAX);
    }
}
