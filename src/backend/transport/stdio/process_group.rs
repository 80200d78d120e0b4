//! What a child and everything it started take of the machine: its process group, added up.
//!
//! Shared pages count for each process, and a process that leaves the group is not counted.

use std::{collections::HashMap, fs, process::Command};

use rustix::{param::clock_ticks_per_second, process::Pid};

/// What the programs of a server take of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProgramUsage {
    /// Bytes that are resident or swapped out.
    pub(crate) memory_bytes: u64,
    /// Time that they kept a processor busy, seconds, with what they started and has ended.
    pub(crate) cpu_seconds: f64,
}

impl ProgramUsage {
    /// Both together.
    pub(crate) fn sum(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes + other.memory_bytes,
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
        }
    }
}

/// What the processes of `group` take; `None` when the system does not say.
pub(in crate::backend) fn usage_of(group: Pid) -> Option<ProgramUsage> {
    let all = usage_of_all(&[group])?;
    Some(all.get(&group).copied().unwrap_or_default())
}

/// What the processes of each of `groups` take, which nothing is known of where it has none; `None` when the
/// system does not say. It reads files, or starts a process.
pub(in crate::backend) fn usage_of_all(groups: &[Pid]) -> Option<HashMap<Pid, ProgramUsage>> {
    from_proc(groups).or_else(|| from_ps(groups))
}

/// What Linux says.
fn from_proc(groups: &[Pid]) -> Option<HashMap<Pid, ProgramUsage>> {
    // Without a `/proc` of Linux nothing is found, not even ourselves.
    fs::metadata("/proc/self/status").ok()?;
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    let mut found = HashMap::new();
    for pid in pids {
        // A process that has ended meanwhile takes nothing.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((group, cpu_seconds)) = parse_stat(&stat) else {
            continue;
        };
        if !groups.contains(&group) {
            continue;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        let memory_bytes = parse_status_kib(&status.unwrap_or_default()) * 1024;
        let usage = ProgramUsage {
            memory_bytes,
            cpu_seconds,
        };
        let sum: &mut ProgramUsage = found.entry(group).or_default();
        *sum = sum.sum(usage);
    }
    Some(found)
}

/// The group of a process and the time that it and its children that have ended took, by its `stat`: words
/// after the name, which may have any characters. Some threads of the kernel have no group.
fn parse_stat(stat: &str) -> Option<(Pid, f64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let group = words.get(GROUP)?.parse().ok().and_then(Pid::from_raw)?;
    let times = words.get(TIMES).unwrap_or_default();
    let ticks: u64 = times
        .iter()
        .filter_map(|word| word.parse::<u64>().ok())
        .sum();
    #[expect(
        clippy::cast_precision_loss,
        reason = "2^53 ticks are millions of years"
    )]
    let seconds = ticks as f64 / clock_ticks_per_second() as f64;
    Some((group, seconds))
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
fn from_ps(groups: &[Pid]) -> Option<HashMap<Pid, ProgramUsage>> {
    let output = Command::new("/bin/ps")
        .args(["-A", "-o", "pgid=", "-o", "rss=", "-o", "time="])
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let listing = String::from_utf8(output.stdout).ok()?;
    Some(parse_ps(&listing, groups))
}

/// What the lines of `groups` say, each of which has a group, the KiB that are resident, and the time.
fn parse_ps(listing: &str, groups: &[Pid]) -> HashMap<Pid, ProgramUsage> {
    let mut found = HashMap::new();
    for line in listing.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[group, kib, time] = &*words else {
            continue;
        };
        let group = group.parse().ok().and_then(Pid::from_raw);
        let (Some(group), Ok(kib)) = (group, kib.parse::<u64>()) else {
            continue;
        };
        if groups.contains(&group) {
            let usage = ProgramUsage {
                memory_bytes: kib * 1024,
                cpu_seconds: parse_ps_time(time).unwrap_or_default(),
            };
            let sum: &mut ProgramUsage = found.entry(group).or_default();
            *sum = sum.sum(usage);
        }
    }
    found
}

/// Seconds of a time of `ps`: `[[days-]hours:]minutes:seconds`.
fn parse_ps_time(time: &str) -> Option<f64> {
    let (days, time) = time.split_once('-').unwrap_or(("0", time));
    let mut parts = time.rsplit(':').map(|part| part.parse::<f64>().ok());
    let (seconds, minutes) = (parts.next()??, parts.next().unwrap_or(Some(0.0))?);
    let hours = parts.next().unwrap_or(Some(0.0))?;
    let hours = days.parse::<f64>().ok()?.mul_add(24.0, hours);
    Some(hours.mul_add(60.0, minutes).mul_add(60.0, seconds))
}

/// Where the group stands among the words after the name of a process.
const GROUP: usize = 2;
/// Where its times stand, and those of its children: in user mode and in the system.
const TIMES: std::ops::Range<usize> = 11..15;

#[cfg(test)]
mod tests {
    use std::{os::unix::process::CommandExt, process::Stdio};

    use super::*;

    fn group(raw: i32) -> Pid {
        Pid::from_raw(raw).unwrap()
    }

    #[test]
    fn what_the_system_says_is_understood() {
        let status = "Name:\tsh\nVmHWM:\t 9000 kB\nVmRSS:\t    1500 kB\nVmSwap:\t       8 kB\n";
        assert_eq!(parse_status_kib(status), 1508);
        assert_eq!(parse_status_kib("Name:\tkthreadd\n"), 0);
        let ticks = clock_ticks_per_second();
        let stat = format!("81 (a) (b) S 1 77 77 0 -1 0 0 0 0 0 {ticks} {ticks} 0 {ticks} 20 0");
        assert_eq!(parse_stat(&stat), Some((group(77), 3.0)));
        assert_eq!(parse_stat("2 (kthreadd) S 0 0 0 0 -1"), None);
        let listing = "    1   400 0:01\n   77  1000 1:02.50\n  177     5 0:01\n   77    24 00:00:01\nnothing\n";
        let found = parse_ps(listing, &[group(77), group(78)]);
        let expect = ProgramUsage {
            memory_bytes: 1024 * 1024,
            cpu_seconds: 63.5,
        };
        assert_eq!(found, HashMap::from([(group(77), expect)]));
        for (time, expect) in [
            ("2-03:04:05", Some(183_845.0)),
            ("03:04:05", Some(11_045.0)),
            ("4:05", Some(245.0)),
            ("x", None),
        ] {
            assert_eq!(parse_ps_time(time), expect, "{time}");
        }
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
        let ways = [from_proc, from_ps];
        assert_eq!(from_proc(&[group]).is_some(), cfg!(target_os = "linux"));
        for way in ways {
            // Not every machine has both ways.
            if let Some(found) = way(&[group]) {
                let used = found[&group];
                assert!((1..100 << 20).contains(&used.memory_bytes), "{used:?}");
                assert!(used.cpu_seconds < 10.0, "{used:?}");
            }
        }
        drop(child.stdin.take());
        child.wait().expect("it is ours");
        assert_eq!(
            usage_of(group),
            Some(ProgramUsage::default()),
            "it has ended"
        );
    }
}
