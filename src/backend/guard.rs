//! The guard: a second process of the same binary that outlives us by a moment.
//!
//! It holds the read end of a pipe whose write end only we hold. When we end, however that comes
//! about, the pipe closes, and the guard ends every process group it was told of, and every
//! process that carries our marker in its environment although it left its group.

use std::{
    collections::{BTreeSet, HashSet},
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use uuid::Uuid;

/// The environment variable that marks our children.
pub(crate) const MARKER: &str = "TOLLBRIDGE_GUARD";
/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_millis(300);

/// Our end of the guard; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    marker: String,
    program: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Every group under guard, so that a successor of the process learns of them all.
    groups: BTreeSet<u32>,
    process: Option<Child>,
}

impl Guard {
    /// A guard that runs `program guard MARKER` from the first child on; none without a program.
    pub(crate) fn new(program: Option<PathBuf>) -> Self {
        let marker = Uuid::new_v4().simple().to_string();
        Self(Arc::new(Inner {
            marker,
            program,
            state: Mutex::default(),
        }))
    }

    /// The value of [`MARKER`] for our children.
    pub(crate) fn marker(&self) -> &str {
        &self.0.marker
    }

    /// Puts a process group under guard.
    pub(crate) fn watch(&self, group: u32) {
        let mut state = self.state();
        let is_new = state.groups.insert(group);
        if is_new && self.0.program.is_some() && !state.tell(&format!("+{group}\n")) {
            state.process = self.start();
            let all: Vec<_> = state
                .groups
                .iter()
                .map(|group| format!("+{group}\n"))
                .collect();
            if !state.tell(&all.concat()) {
                tracing::warn!("no guard process; a kill -9 would leave children behind");
            }
        }
    }

    /// Takes a process group that has ended out of guard. A guard process that is gone is replaced
    /// with the next child.
    pub(crate) fn forget(&self, group: u32) {
        let mut state = self.state();
        if state.groups.remove(&group) {
            state.tell(&format!("-{group}\n"));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> Option<Child> {
        let program = self.0.program.as_ref()?;
        let started = std::process::Command::new(program)
            .arg("guard")
            .arg(&self.0.marker)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        started
            .inspect_err(|error| tracing::warn!(%error, "the guard process cannot be started"))
            .ok()
    }
}

impl State {
    /// Whether the guard process was told; one that is gone is buried.
    fn tell(&mut self, lines: &str) -> bool {
        let pipe = self
            .process
            .as_mut()
            .and_then(|process| process.stdin.as_mut());
        let told = pipe.map(|pipe| pipe.write_all(lines.as_bytes()));
        if let Some(Err(error)) = &told
            && let Some(mut process) = self.process.take()
        {
            tracing::warn!(%error, "the guard process is gone");
            process.kill().ok();
            process.wait().ok();
        }
        matches!(told, Some(Ok(())))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().ok();
        }
    }
}

/// The guard process itself: reads `+group` and `-group` lines until the pipe closes, then ends
/// what is left.
pub fn run(marker: &str, input: impl BufRead) {
    let mut groups = HashSet::new();
    for line in input.lines().map_while(Result::ok) {
        let (sign, group) = line.split_at(line.len().min(1));
        let Some(group) = group.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        match sign {
            "+" => drop(groups.insert(group)),
            "-" => drop(groups.remove(&group)),
            _ => {}
        }
    }
    if groups.is_empty() && marked(marker).is_empty() {
        return;
    }
    end_all(&groups, marker, Signal::TERM);
    pause();
    end_all(&groups, marker, Signal::KILL);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the guard has one thread and no runtime"
)]
fn pause() {
    std::thread::sleep(GRACE);
}

fn end_all(groups: &HashSet<Pid>, marker: &str, signal: Signal) {
    for group in groups {
        // An error means that the group is gone already.
        kill_process_group(*group, signal).ok();
    }
    for process in marked(marker) {
        kill_process(process, signal).ok();
    }
}

/// Processes whose environment carries `marker`; known on Linux only.
fn marked(marker: &str) -> Vec<Pid> {
    let wanted = format!("{MARKER}={marker}");
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let carries = |pid: &Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let environ = std::fs::read(path).unwrap_or_default();
        environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes())
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).filter(carries).collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::Path};

    use super::*;

    /// A program that writes what it is told to a file of its own pid in `dir`.
    fn scribe(dir: &Path) -> PathBuf {
        let program = dir.join("scribe");
        let script = format!("#!/bin/sh\nexec cat > {}/$$\n", dir.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn a_successor_learns_of_every_group() {
        let dir = tempfile::tempdir().unwrap();
        let guard = Guard::new(Some(scribe(dir.path())));
        for group in [11, 12, 13] {
            guard.watch(group);
        }
        guard.forget(12);
        if let Some(process) = &mut guard.state().process {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        guard.watch(14);
        let second = guard.state().process.as_ref().unwrap().id();
        drop(guard);
        let told = std::fs::read_to_string(dir.path().join(second.to_string())).unwrap();
        assert_eq!(told, "+11\n+13\n+14\n");
    }
}
