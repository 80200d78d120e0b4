//! How much memory a child and everything it started use, and that it is no more than they may.
//!
//! What the processes of its group have resident is looked at every [`POLL_INTERVAL`] and added up, in one
//! look for all children, by one task that rests while none has a limit. A limit
//! of the system (`setrlimit`) would not do: it counts address space, of which some runtimes reserve
//! many times what they use, holds for each process alone, and ends it without a reason. So a child
//! may go beyond its limit for a moment, pages that processes share count for each of them, and a
//! process that leaves the group is not counted.

use std::{
    collections::{HashMap, HashSet},
    fs,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::Pid;
use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::{lock::lock, task::Tasks};

/// Time between two looks. No key sets it: more often costs more than it finds, and what a child may
/// use meanwhile is a matter of its limit.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Looks in a row that may fail before it is logged that limits are not watched.
const FAILURES_MAX: u32 = 10;

/// Bytes in use by the groups that were looked at; `None` when the system does not say.
type GroupUsage = Option<HashMap<i32, u64>>;

/// Looks after the memory of all children; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::backend) struct MemoryWatcher(Arc<MemoryWatcherInner>);

#[derive(Debug)]
struct MemoryWatcherInner {
    tasks: Tasks,
    /// Process groups with a limit.
    groups: Mutex<HashSet<i32>>,
    /// Tells that there is one more.
    group_added: Notify,
    is_running: AtomicBool,
    usage: watch::Sender<Arc<GroupUsage>>,
}

impl MemoryWatcher {
    pub(in crate::backend) fn new(tasks: &Tasks) -> Self {
        Self(Arc::new(MemoryWatcherInner {
            tasks: tasks.clone(),
            groups: Mutex::default(),
            group_added: Notify::new(),
            is_running: AtomicBool::new(false),
            usage: watch::channel(Arc::default()).0,
        }))
    }

    /// Completes with what is in use once the process group of `leader` uses more than `limit`
    /// bytes; never without a limit.
    pub(in crate::backend) async fn exceeded(&self, leader: u32, limit: Option<u64>) -> u64 {
        let (Some(limit), Ok(group)) = (limit, i32::try_from(leader)) else {
            return std::future::pending().await;
        };
        if !self.0.is_running.swap(true, Ordering::Relaxed) {
            let looks = self.clone().run(group_usage);
            let stop = self.0.tasks.stop_token().clone();
            self.0.tasks.spawn("memory of children", async move {
                tokio::select! { () = looks => {}, () = stop.cancelled() => {} }
            });
        }
        let watched = self.watch(group);
        watched.exceeds(limit).await
    }

    fn watch(&self, group: i32) -> WatchedGroup<'_> {
        let looks = self.0.usage.subscribe();
        lock(&self.0.groups).insert(group);
        self.0.group_added.notify_one();
        WatchedGroup {
            watcher: self,
            group,
            usage: looks,
        }
    }

    /// Looks at all groups at once, as long as there are any.
    async fn run(self, look: fn(&HashSet<i32>) -> GroupUsage) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0;
        loop {
            ticks.tick().await;
            let groups = lock(&self.0.groups).clone();
            if groups.is_empty() {
                self.0.group_added.notified().await;
                continue;
            }
            let usage = spawn_blocking(move || look(&groups)).await.ok().flatten();
            failures = if usage.is_some() { 0 } else { failures + 1 };
            if failures == FAILURES_MAX {
                tracing::warn!("cannot enforce limits.memory: memory usage is unavailable");
            }
            self.0.usage.send_replace(Arc::new(usage));
        }
    }
}

/// A group that is looked at until this is dropped.
struct WatchedGroup<'l> {
    watcher: &'l MemoryWatcher,
    group: i32,
    usage: watch::Receiver<Arc<GroupUsage>>,
}

impl WatchedGroup<'_> {
    /// Completes with what is in use once that is more than `limit` bytes.
    async fn exceeds(mut self, limit: u64) -> u64 {
        while self.usage.changed().await.is_ok() {
            let usage = Arc::clone(&self.usage.borrow_and_update());
            // One that came during a look is in the next.
            let used = usage
                .as_ref()
                .as_ref()
                .and_then(|used| used.get(&self.group));
            if let Some(used) = used.filter(|used| **used > limit) {
                return *used;
            }
        }
        std::future::pending().await
    }
}

impl Drop for WatchedGroup<'_> {
    fn drop(&mut self) {
        lock(&self.watcher.0.groups).remove(&self.group);
    }
}

/// Bytes that the processes of each of `groups` have resident or swapped out; `None` when the system
/// does not say.
fn group_usage(groups: &HashSet<i32>) -> GroupUsage {
    from_proc(groups).or_else(|| from_ps(groups))
}

/// What Linux says.
fn from_proc(groups: &HashSet<i32>) -> GroupUsage {
    // Without a `/proc` of Linux nothing is found, not even ourselves.
    fs::metadata("/proc/self/status").ok()?;
    let mut used = HashMap::new();
    for entry in fs::read_dir("/proc").ok()? {
        let Some(pid) = entry.ok().and_then(|entry| {
            let name = entry.file_name();
            name.to_str()?.parse().ok().and_then(Pid::from_raw)
        }) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let group =
            parse_group(&stat.unwrap_or_default()).map(|group| group.as_raw_nonzero().get());
        if let Some(group) = group.filter(|group| groups.contains(group)) {
            // Whoever has ended meanwhile uses nothing.
            let path = format!("/proc/{}/status", pid.as_raw_nonzero());
            let status = fs::read_to_string(path).unwrap_or_default();
            *used.entry(group).or_default() += parse_status_kib(&status) * 1024;
        }
    }
    Some(used)
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
fn from_ps(groups: &HashSet<i32>) -> GroupUsage {
    let output = Command::new("/bin/ps")
        .args(["-A", "-o", "pgid=", "-o", "rss="])
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let listing = String::from_utf8(output.stdout).ok()?;
    Some(parse_ps(&listing, groups))
}

/// What the lines of `groups` say, each of which has a group and the KiB that are resident.
fn parse_ps(listing: &str, groups: &HashSet<i32>) -> HashMap<i32, u64> {
    let mut used = HashMap::new();
    for line in listing.lines() {
        let mut words = line.split_ascii_whitespace().map(str::parse::<i64>);
        let (Some(Ok(group)), Some(Ok(kib))) = (words.next(), words.next()) else {
            continue;
        };
        if let Some(group) = i32::try_from(group).ok().filter(|it| groups.contains(it)) {
            *used.entry(group).or_default() += u64::try_from(kib).unwrap_or(0) * 1024;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt,
        process::Stdio,
        sync::atomic::{AtomicU64, AtomicUsize},
    };

    use tokio::time::{Instant, timeout};

    use super::*;

    /// A lookout that is told by `look` what is in use.
    fn lookout(look: fn(&HashSet<i32>) -> GroupUsage) -> MemoryWatcher {
        let tasks = Tasks::new();
        let lookout = MemoryWatcher::new(&tasks);
        lookout.0.is_running.store(true, Ordering::Relaxed);
        tasks.spawn("looks", lookout.clone().run(look));
        lookout
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_reached_only_past_it() {
        static USED: AtomicU64 = AtomicU64::new(99);
        let next = |groups: &HashSet<i32>| {
            let used = USED.fetch_add(1, Ordering::Relaxed);
            Some(groups.iter().map(|group| (*group, used)).collect())
        };
        let start = Instant::now();
        let used = lookout(next).exceeded(7, Some(100)).await;
        assert_eq!(used, 101);
        let looks = start.elapsed().as_millis() / POLL_INTERVAL.as_millis();
        assert_eq!(looks, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_sees_all_children() {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let look = |groups: &HashSet<i32>| {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            Some(groups.iter().map(|group| (*group, 10)).collect())
        };
        let lookout = lookout(look);
        let rested = timeout(POLL_INTERVAL * 100, std::future::pending::<()>()).await;
        assert!(rested.is_err());
        assert_eq!(LOOKS.load(Ordering::Relaxed), 0, "there is no child");
        let within =
            futures_util::future::join_all((1..=20).map(|group| lookout.exceeded(group, Some(10))));
        assert!(timeout(POLL_INTERVAL * 10, within).await.is_err());
        let looks = LOOKS.load(Ordering::Relaxed);
        assert!((9..=11).contains(&looks), "{looks}");
        assert!(lock(&lookout.0.groups).is_empty(), "they are gone");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_seen_ends_nothing() {
        let blind = lookout(|_| None);
        let ended = timeout(100 * POLL_INTERVAL, blind.exceeded(7, Some(0))).await;
        assert!(ended.is_err());
    }

    #[test]
    fn what_the_system_says_is_understood() {
        let status = "Name:\tsh\nVmHWM:\t 9000 kB\nVmRSS:\t    1500 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(parse_status_kib(status), 1508);
        assert_eq!(parse_status_kib("Name:\tkthreadd\n"), 0);
        let of = |stat| parse_group(stat).map(|group| group.as_raw_nonzero().get());
        assert_eq!(of("81 (a) (b) S 1 77 77 0 -1"), Some(77));
        assert_eq!(of("2 (kthreadd) S 0 0 0 0 -1"), None);
        let listing = "    1   400\n   77  1000\n  177     5\n   77    24\nnothing\n";
        let used = parse_ps(listing, &[77, 78].into());
        assert_eq!(used, [(77, 1024 * 1024)].into());
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
        let group = i32::try_from(child.id()).expect("it is small");
        let groups = HashSet::from([group]);
        assert_eq!(from_proc(&groups).is_some(), cfg!(target_os = "linux"));
        for way in [group_usage, from_proc, from_ps] {
            // Not every machine has both ways.
            let is_likely = |used: HashMap<i32, u64>| (1..100 << 20).contains(&used[&group]);
            assert!(way(&groups).is_none_or(is_likely), "{:?}", way(&groups));
        }
        drop(child.stdin.take());
        child.wait().expect("it is ours");
        assert_eq!(group_usage(&groups), Some(HashMap::new()), "it has ended");
    }
}
