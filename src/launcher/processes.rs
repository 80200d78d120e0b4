//! Who descends from whom, as Linux tells in `/proc`; elsewhere nothing is known.

use std::{fs, path::Path};

use rustix::process::{Pid, Signal, kill_process};

use super::LAUNCHER_ARG;

/// Ancestors that are looked at: more are a circle that no system has.
const ANCESTORS_MAX: usize = 4096;

/// Whether process `pid` was started by a launcher, of this gateway or another, or by a program of one,
/// as its ancestry shows. A program cannot leave that as long as it cannot kill its launcher (see
/// [`Confined::signals_scoped`](super::Confined)). Of one that is gone already, it is believed.
pub fn is_descendant_of_launcher(pid: i32) -> bool {
    // Who is outside of our PID namespace is shown as 0, and was not started in it. Without a `/proc`
    // nothing is known of anybody.
    if !has_known_ancestry(pid) {
        return false;
    }
    let mut pid = pid;
    for _ in 0..ANCESTORS_MAX {
        if is_launcher(pid) {
            return true;
        }
        match parent(pid) {
            // The first process, and those that the system or another container started.
            Some(0) => return false,
            Some(parent) => pid = parent,
            None => return true,
        }
    }
    true
}

/// Whether it can be told who the ancestors of process `pid` are.
pub fn has_known_ancestry(pid: i32) -> bool {
    pid != 0 && Path::new("/proc/self/stat").exists()
}

fn is_launcher(pid: i32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    words.next() == Some(super::reaper::PROCESS_NAME.as_bytes())
        && words.next() == Some(LAUNCHER_ARG.as_bytes())
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may have any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Sends `signal` to all that `ancestor` started and that was started by them, zombies included.
pub fn signal_descendants(ancestor: Pid, signal: Signal) {
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            // Whoever has ended meanwhile needs none.
            kill_process(child, signal).ok();
            parents.push(child);
        }
    }
}

/// The living and the unreaped children of `parent`.
fn children(parent: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().filter_map(|task| {
        let path = task.ok()?.path().join("children");
        fs::read_to_string(path).ok()
    });
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|pids| pids.split_whitespace());
    let pids = pids.filter_map(|pid| pid.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        os::unix::process::CommandExt,
        process::{Command, Stdio, id},
    };

    use super::*;

    /// Who leaves its session and the process that started it is still below the launcher.
    #[test]
    fn what_a_launcher_started_is_known_by_its_ancestry() {
        let place = tempfile::tempdir().unwrap();
        let script = "(setsid sleep 60 & echo $!) & wait; sleep 60 & echo $!; wait\n";
        std::fs::write(place.path().join(LAUNCHER_ARG), script).unwrap();
        let mut launcher = Command::new("sh")
            .arg0(super::super::PROCESS_NAME)
            .arg(LAUNCHER_ARG)
            .current_dir(place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
        let mut pid = || lines.next().unwrap().unwrap().parse::<i32>().unwrap();
        let (orphan, child) = (pid(), pid());
        assert!(is_descendant_of_launcher(child));
        assert!(!is_descendant_of_launcher(id().cast_signed()));
        assert!(
            !is_descendant_of_launcher(0),
            "it is in no namespace of ours"
        );
        for pid in [orphan, child] {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        assert!(
            is_descendant_of_launcher(launcher.id().cast_signed()),
            "it is gone"
        );
    }
}
