//! How much memory a child and everything it started use, and that it is no more than they may.
//!
//! What the processes of its group have resident is looked at every [`LOOK`] and added up. A limit
//! of the system (`setrlimit`) would not do: it counts address space, of which some runtimes reserve
//! many times what they use, holds for each process alone, and ends it without a reason. So a child
//! may go beyond its limit for a moment, pages that processes share count for each of them, and a
//! process that leaves the group is not counted.

use std::{fs, process::Command, time::Duration};

use rustix::process::Pid;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

/// Time between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Looks in a row that may fail before it is logged that a limit is not watched.
const FAILURES_MAX: u32 = 10;

/// Completes with what is in use once the process group of `leader` uses more than `limit` bytes;
/// never without a limit.
pub(super) async fn exceeded(leader: u32, limit: Option<u64>) -> u64 {
    let group = i32::try_from(leader).ok().and_then(Pid::from_raw);
    let (Some(limit), Some(group)) = (limit, group) else {
        return std::future::pending().await;
    };
    let look = move || async move {
        let look = spawn_blocking(move || resident(group));
        look.await.ok().flatten()
    };
    watch(limit, look).await
}

/// Looks until more than `limit` bytes are in use.
async fn watch<F: Future<Output = Option<u64>>>(limit: u64, look: impl Fn() -> F) -> u64 {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0;
    loop {
        ticks.tick().await;
        match look().await {
            Some(used) if used > limit => return used,
            Some(_) => failures = 0,
            None => failures += 1,
        }
        if failures == FAILURES_MAX {
            tracing::warn!("limits.memory is not watched: the system does not tell what is in use");
        }
    }
}

/// Bytes that the processes of `group` have resident or swapped out; `None` when the system does not
/// say.
fn resident(group: Pid) -> Option<u64> {
    from_proc(group).or_else(|| from_ps(group))
}

/// What Linux says.
fn from_proc(group: Pid) -> Option<u64> {
    let mut kib = 0_u64;
    // Without a `/proc` of Linux nothing is found, not even ourselves.
    fs::metadata("/proc/self/status").ok()?;
    for entry in fs::read_dir("/proc").ok()? {
        let Some(pid) = entry.ok().and_then(|entry| {
            let name = entry.file_name();
            name.to_str()?.parse().ok().and_then(Pid::from_raw)
        }) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        if group_in(&stat.unwrap_or_default()) == Some(group) {
            // Whoever has ended meanwhile uses nothing.
            let path = format!("/proc/{}/status", pid.as_raw_nonzero());
            let status = fs::read_to_string(path).unwrap_or_default();
            kib += in_status(&status);
        }
    }
    Some(kib * 1024)
}

/// The group of a process, by its `stat`: the third word after the name, which may have any
/// characters. Some threads of the kernel have no group.
fn group_in(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(')')?;
    let group = rest.split_ascii_whitespace().nth(2)?;
    group.parse().ok().and_then(Pid::from_raw)
}

/// KiB that a process uses, by its `status`.
fn in_status(status: &str) -> u64 {
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
    Some(in_listing(&listing, group) * 1024)
}

/// KiB in the lines of `group`, each of which has a group and what is resident.
fn in_listing(listing: &str, group: Pid) -> u64 {
    let of_group = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_it = words.next()?.parse() == Ok(group.as_raw_nonzero().get());
        words.next()?.parse::<u64>().ok().filter(|_| is_it)
    };
    listing.lines().filter_map(of_group).sum()
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::ready, os::unix::process::CommandExt, process::Stdio};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_reached_only_past_it() {
        let seen = RefCell::new([99, 100, 101].into_iter());
        let start = Instant::now();
        let used = watch(100, || ready(seen.borrow_mut().next())).await;
        assert_eq!(used, 101);
        assert_eq!(start.elapsed(), 2 * LOOK);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_seen_ends_nothing() {
        let ended = tokio::time::timeout(100 * LOOK, watch(0, || ready(None))).await;
        assert!(ended.is_err());
    }

    #[test]
    fn what_the_system_says_is_understood() {
        let status = "Name:\tsh\nVmHWM:\t 9000 kB\nVmRSS:\t    1500 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(in_status(status), 1508);
        assert_eq!(in_status("Name:\tkthreadd\n"), 0);
        let of = |stat| group_in(stat).map(|group| group.as_raw_nonzero().get());
        assert_eq!(of("81 (a) (b) S 1 77 77 0 -1"), Some(77));
        assert_eq!(of("2 (kthreadd) S 0 0 0 0 -1"), None);
        let listing = "    1   400\n   77  1000\n  177     5\n   77    24\nnothing\n";
        let group = Pid::from_raw(77).expect("it is not zero");
        assert_eq!(in_listing(listing, group), 1024);
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
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.expect("it is not zero");
        assert_eq!(from_proc(group).is_some(), cfg!(target_os = "linux"));
        for way in [resident, from_proc, from_ps] {
            // Not every machine has both ways.
            let is_likely = |used| (1..100 << 20).contains(&used);
            assert!(way(group).is_none_or(is_likely), "{:?}", way(group));
        }
        drop(child.stdin.take());
        child.wait().expect("it is ours");
        assert_eq!(resident(group), Some(0), "it has ended");
    }
}
