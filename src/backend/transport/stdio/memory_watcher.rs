//! Whether a child and everything it started use more memory than they may.
//!
//! A limit of the system (`setrlimit`) would not do: it counts address space, of which some runtimes reserve
//! much more than they use, holds for each process alone, and ends it without a reason. So the resident and
//! swapped memory of the process group is added up every [`POLL_INTERVAL`]. A child may go beyond its limit for a
//! moment, shared pages count for each process, and a process that leaves the group is not counted.

use std::{fs, process::Command, time::Duration};

use rustix::process::Pid;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

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
    above(limit, move || group_usage(group)).await
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

/// Bytes that the processes of `group` have resident or swapped out; `None` when the system does not say.
fn group_usage(group: Pid) -> Option<u64> {
    from_proc(group).or_else(|| from_ps(group))
}

/// What Linux says.
fn from_proc(group: Pid) -> Option<u64> {
    // Without a `/proc` of Linux nothing is found, not even ourselves.
    fs::metadata("/proc/self/status").ok()?;
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse().ok().and_then(Pid::from_raw)
    });
    let own = pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        parse_group(&stat.unwrap_or_default()) == Some(group)
    });
    let used = own.map(|pid| {
        // A process that has ended meanwhile uses nothing.
        let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
        parse_status_kib(&status.unwrap_or_default()) * 1024
    });
    Some(used.sum())
}

/// The group of a process, by its `stat`: the third word after the name, which may have any
/// characters. Some threads of the kernel have no group.
fn parse_group(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(')')?;
    let group = rest.split_ascii_whitespace().nth(2)?;
    group.parse().ok().and_then(Pid::from_raw)
}

/// KiB that a process uses, by its `status`.
fn parse_status_kib(status: &str) -> u64 {
    let value = |line: &str| {
        let rest = line
            .strip_prefix("VmRSS:")
            .or_else(|| line.strip_prefix("VmSwap:"))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    status.lines().filter_map(value).sum()
}

/// What every Unix says, at the price of a process.
fn from_ps(group: Pid) -> Option<u64> {
    let output = Command::new("/bin/ps")
        .args(["-A", "-o", "pgid=", "-o", "rss="])
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let listing = String::from_utf8(output.stdout).ok()?;
    Some(parse_ps(&listing, group))
}

/// What the lines of `group` say, each of which has a group and the KiB that are resident.
fn parse_ps(listing: &str, group: Pid) -> u64 {
    let group = group.as_raw_nonzero().to_string();
    let kib = listing.lines().filter_map(|line| {
        let (of, kib) = line.trim().split_once(char::is_whitespace)?;
        let kib = kib.trim().parse::<u64>().ok()?;
        (of == group).then_some(kib)
    });
    kib.sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::Stdio,
        sync::atomic::{AtomicU64, Ordering},
    };

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

    #[test]
    fn what_the_system_says_is_understood() {
        let status = "Name:\tsh\nVmHWM:\t 9000 kB\nVmRSS:\t    1500 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(parse_status_kib(status), 1508);
        assert_eq!(parse_status_kib("Name:\tkthreadd\n"), 0);
        let listing = "    1   400\n   77  1000\n  177     5\n   77    24\nnothing\n";
        let group = |raw| Pid::from_raw(raw).unwrap();
        assert_eq!(parse_group("81 (a) (b) S 1 77 77 0 -1"), Some(group(77)));
        assert_eq!(parse_group("2 (kthreadd) S 0 0 0 0 -1"), None);
        assert_eq!(parse_ps(listing, group(77)), 1024 * 1024);
        assert_eq!(parse_ps(listing, group(78)), 0);
    }

    /// Both ways see the whole group, and nothing of ours.
    #[test]
    fn a_group_is_seen_with_all_that_it_started() {
        let mut child = Command::new("sh")
            .args(["-c", "cat & cat; wait"])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        let group = super::super::to_pid(child.id()).expect("it is small");
        assert_eq!(from_proc(group).is_some(), cfg!(target_os = "linux"));
        for way in [group_usage, from_proc, from_ps] {
            // Not every machine has both ways.
            let is_likely = |used: u64| (1..100 << 20).contains(&used);
            assert!(way(group).is_none_or(is_likely), "{:?}", way(group));
        }
        drop(child.stdin.take());
        child.wait().expect("it is ours");
        assert_eq!(group_usage(group), Some(0), "it has ended");
    }
}
