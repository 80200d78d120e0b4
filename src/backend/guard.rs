//! The guard: a second process of the same binary that outlives us by a moment.
//!
//! It holds the read end of a pipe whose write end only we hold. When we end, however that comes
//! about, the pipe closes, and the guard ends every process group it was told of, and every
//! process that carries our marker in its environment although it left its group. Should the guard
//! end before us, its own output closes, and another one is told of every group that lives. What left
//! the group of a child that ends while we go on, as daemons do, carries the mark of that child.

use std::{
    collections::{BTreeSet, HashSet},
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::AsyncReadExt,
    process::{ChildStdout, Command},
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use super::memory::Lookout;
use crate::{
    lock::lock,
    task::{Tasks, aside},
};

/// The environment variable that marks our children: the marker of the guard, and the number of the child.
const MARKER: &str = "TOLLBRIDGE_GUARD";
/// Between the two.
const PART: &str = ".";
/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_millis(300);
/// Least time between two replacements of a guard process: one that ends at once is not started
/// in a loop.
const REPLACEMENT_PAUSE: Duration = Duration::from_secs(1);

/// Our end of the guard; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    marker: String,
    /// How many children were marked.
    marked: AtomicU64,
    strays: Strays,
    program: Option<PathBuf>,
    tasks: Tasks,
    lookout: Lookout,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Every group under guard, so that a successor of the process learns of them all.
    groups: BTreeSet<u32>,
    process: Option<Child>,
}

impl Guard {
    /// A guard that runs `program guard MARKER` before the first child does; none without a program.
    pub(crate) fn new(program: Option<PathBuf>, tasks: &Tasks) -> Self {
        let marker = Uuid::new_v4().simple().to_string();
        Self(Arc::new(Inner {
            marker,
            marked: AtomicU64::new(0),
            strays: Strays::default(),
            program,
            tasks: tasks.clone(),
            lookout: Lookout::new(tasks),
            state: Mutex::default(),
        }))
    }

    /// Marks a child that is about to start. The guard process runs from here on: whoever is killed
    /// before [`Self::watch`] leaves a child that the mark alone tells of.
    pub(super) fn mark(&self, child: &mut Command) -> Mark {
        let mut state = self.state();
        if state.process.is_none()
            && let Some(output) = self.start(&mut state)
        {
            self.0
                .tasks
                .spawn("guard process", self.clone().replace_lost(output));
        }
        let number = self.0.marked.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}{PART}{number}", self.0.marker);
        child.env(MARKER, &mark);
        Mark(mark)
    }

    /// Ends all that the child with this mark started and that left its group. For who has seen the
    /// child end.
    pub(super) async fn end_strays(&self, Mark(mark): Mark) {
        let strays = &self.0.strays;
        lock(&strays.marks).insert(mark);
        // Of many that end together, the first that comes here looks for all.
        let _turn = strays.turn.lock().await;
        let marks = std::mem::take(&mut *lock(&strays.marks));
        if marks.is_empty() {
            return;
        }
        aside(move || {
            for process in marked(|mark| marks.iter().any(|it| it.as_bytes() == mark)) {
                kill_process(process, Signal::KILL).ok();
            }
        })
        .await;
    }

    /// Who looks after the memory of our children.
    pub(super) fn lookout(&self) -> &Lookout {
        &self.0.lookout
    }

    /// Puts a process group under guard.
    pub(crate) fn watch(&self, group: u32) {
        let mut state = self.state();
        if state.groups.insert(group) {
            state.tell(&format!("+{group}\n"));
        }
    }

    /// Takes a process group that has ended out of guard.
    pub(crate) fn forget(&self, group: u32) {
        let mut state = self.state();
        if state.groups.remove(&group) {
            state.tell(&format!("-{group}\n"));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Waits for the end of the guard process and starts another one, until we stop or none can be
    /// started.
    async fn replace_lost(self, mut output: ChildStdout) {
        let mut not_before = Instant::now();
        loop {
            let lost = async {
                // It writes nothing; whatever comes is no end yet.
                while let Ok(1..) = output.read(&mut [0; 64]).await {}
                tracing::warn!("the guard process is gone; another one is started");
                sleep_until(not_before).await;
            };
            tokio::select! {
                () = lost => {}
                () = self.0.tasks.stop_token().cancelled() => return,
            }
            not_before = Instant::now() + REPLACEMENT_PAUSE;
            let mut state = self.state();
            state.bury();
            match self.start(&mut state) {
                Some(next) => output = next,
                None => return,
            }
        }
    }

    /// Starts a guard process and tells it of every group; its output closes when it ends.
    fn start(&self, state: &mut State) -> Option<ChildStdout> {
        let started = self.spawn(self.0.program.as_ref()?);
        let (process, output) = started
            .inspect_err(|error| {
                tracing::warn!(%error, "no guard process; a kill -9 would leave children behind");
            })
            .ok()?;
        state.process = Some(process);
        let all: Vec<_> = state
            .groups
            .iter()
            .map(|group| format!("+{group}\n"))
            .collect();
        state.tell(&all.concat());
        Some(output)
    }

    fn spawn(&self, program: &Path) -> std::io::Result<(Child, ChildStdout)> {
        let mut process = std::process::Command::new(program)
            .arg("guard")
            .arg(&self.0.marker)
            // A gateway may be the child of another, which is not to end its guard.
            .env_remove(MARKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let output = process.stdout.take();
        let output = output.ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok((process, ChildStdout::from_std(output)?))
    }
}

/// What a child has in its environment, and whatever it starts.
#[derive(Debug)]
pub(super) struct Mark(String);

/// The marks of children that ended, whose strays are still to be looked for.
#[derive(Debug, Default)]
struct Strays {
    marks: Mutex<HashSet<String>>,
    /// One look at all processes at a time.
    turn: tokio::sync::Mutex<()>,
}

impl State {
    /// Tells the guard process; whoever waits for its end takes care of one that cannot be told.
    fn tell(&mut self, lines: &str) {
        let process = self.process.as_mut();
        let pipe = process.and_then(|process| process.stdin.as_mut());
        if let Some(Err(error)) = pipe.map(|pipe| pipe.write_all(lines.as_bytes())) {
            tracing::debug!(%error, "the guard process is not told");
        }
    }

    fn bury(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.tell(ORDERLY);
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().ok();
        }
    }
}

/// Tells the guard process that the gateway ends by itself.
const ORDERLY: &str = "=\n";

/// The guard process itself: reads `+group` and `-group` lines until the pipe closes, then ends
/// what is left.
pub fn run(marker: &str, input: impl BufRead) {
    let mut groups = HashSet::new();
    let mut is_orderly = false;
    for line in input.lines().map_while(Result::ok) {
        is_orderly |= line == ORDERLY.trim_end();
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
    // Who was killed may have started what it had not told of, and what starts another program at this
    // moment cannot be found: that needs a second look.
    if is_orderly && groups.is_empty() && marked_by(marker).is_empty() {
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
    for process in marked_by(marker) {
        kill_process(process, signal).ok();
    }
}

/// Processes that a gateway with this `marker` started, or that those did.
fn marked_by(marker: &str) -> Vec<Pid> {
    let all = format!("{marker}{PART}");
    marked(|mark| mark.starts_with(all.as_bytes()))
}

/// Processes whose environment carries a mark that is `wanted`; known on Linux only.
fn marked(wanted: impl Fn(&[u8]) -> bool) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let name = format!("{MARKER}=");
    let carries = |pid: &Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let environ = std::fs::read(path).unwrap_or_default();
        let mut variables = environ.split(|byte| *byte == 0);
        let mark = variables.find_map(|variable| variable.strip_prefix(name.as_bytes()));
        mark.is_some_and(&wanted)
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw).filter(carries).collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    use super::*;

    /// A program that writes what it is told to a file of its own pid in `dir`.
    fn scribe(dir: &Path) -> PathBuf {
        let program = dir.join("scribe");
        // Its output stays open beside the file.
        let script = format!("#!/bin/sh\nexec cat 3>&1 > {}/$$\n", dir.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    fn process(guard: &Guard) -> u32 {
        guard.state().process.as_ref().unwrap().id()
    }

    /// A kill in the moment between the start of the first child and what is said of it.
    #[tokio::test]
    async fn it_runs_before_its_first_child_does() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let guard = Guard::new(Some(scribe(dir.path())), &tasks);
        let mut child = Command::new("true");
        guard.mark(&mut child);
        let running = guard.state().process.as_mut().unwrap().try_wait().unwrap();
        assert!(running.is_none(), "{running:?}");
        let marks: Vec<_> = child.as_std().get_envs().map(|(name, _)| name).collect();
        assert_eq!(marks, [MARKER]);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn a_successor_learns_of_every_group_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let guard = Guard::new(Some(scribe(dir.path())), &tasks);
        guard.mark(&mut Command::new("true"));
        for group in [11, 12, 13] {
            guard.watch(group);
        }
        guard.forget(12);
        let first = process(&guard);
        if let Some(process) = &mut guard.state().process {
            process.kill().unwrap();
        }
        let replaced = async {
            while process(&guard) == first {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let replaced = tokio::time::timeout(Duration::from_secs(10), replaced).await;
        replaced.expect("it is replaced although no child starts");
        guard.watch(14);
        let second = process(&guard);
        tasks.finish().await;
        drop(guard);
        let told = std::fs::read_to_string(dir.path().join(second.to_string())).unwrap();
        assert_eq!(told, "+11\n+13\n+14\n=\n");
    }
}
