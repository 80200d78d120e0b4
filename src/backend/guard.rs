//! The guard: a second process of the same binary that outlives us by a moment.
//!
//! It holds the read end of a pipe whose write end only we hold. When we end, however that comes
//! about, the pipe closes, and the guard ends every process group it was told of, and every
//! process that carries our marker in its environment although it left its group.

use std::{
    collections::HashSet,
    io::BufRead,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
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
    process: Mutex<Option<std::process::Child>>,
}

impl Guard {
    /// A guard that runs `program guard MARKER` from the first child on; none without a program.
    pub(crate) fn new(program: Option<PathBuf>) -> Self {
        let marker = Uuid::new_v4().simple().to_string();
        Self(Arc::new(Inner {
            marker,
            program,
            process: Mutex::default(),
        }))
    }

    /// The value of [`MARKER`] for our children.
    pub(crate) fn marker(&self) -> &str {
        &self.0.marker
    }

    /// Puts a process group under guard.
    pub(crate) fn watch(&self, group: u32) {
        self.tell(&format!("+{group}\n"));
    }

    /// Takes a process group that has ended out of guard.
    pub(crate) fn forget(&self, group: u32) {
        self.tell(&format!("-{group}\n"));
    }

    fn tell(&self, line: &str) {
        use std::io::Write;

        let mut process = self
            .0
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if process.is_none() {
            *process = self.start();
        }
        let pipe = process.as_mut().and_then(|process| process.stdin.as_mut());
        if let Some(pipe) = pipe
            && let Err(error) = pipe.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the guard process is gone; starting another with the next child");
            *process = None;
        }
    }

    fn start(&self) -> Option<std::process::Child> {
        use std::os::unix::process::CommandExt;

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
            .inspect_err(|error| tracing::warn!(%error, "no guard process; a kill -9 would leave children behind"))
            .ok()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let process = self
            .process
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(mut process) = process.take() {
            drop(process.stdin.take());
            drop(process.wait());
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
