//! Servers that run as child processes on stdin and stdout.
//!
//! Each has a launcher beside it, so that everything it started ends with it.

pub(in crate::backend) mod child_output;
mod env_redaction;
pub(in crate::backend) mod exit_reason;
pub(in crate::backend) mod launch;
mod memory_watcher;

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncRead,
    process::{Child, ChildStderr},
    sync::oneshot,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pipe::{self, Lines, OutputLine};
use crate::{
    backend::{
        BackendError,
        error::OWN_WORDS,
        link::{Link, pending::PendingRequests},
    },
    config::{self, StdioCommand},
    launcher,
    mcp::envelope::Malformed,
};
use child_output::Output;
use env_redaction::EnvRedaction;
use launch::{Launched, Launcher, LauncherControl};

/// How long a child may take to end by itself once its input is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long after the end of a child its output is read; what it started may hold it open.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(100);
/// Bytes kept of a line of stderr.
const STDERR_LINE_BYTES_MAX: usize = 1024;
/// How much of an odd line is kept for `/status`.
const ODD_LINE_BYTES_MAX: usize = 200;
/// Calls that a logged line of stderr may be about which are named with it.
const CALLS_LOGGED_MAX: usize = 8;

/// Starts `command` and opens a link to it; the child ends with the link.
pub(crate) async fn open(
    command: &StdioCommand,
    mux: &Arc<PendingRequests>,
    output: &Arc<Output>,
    launcher: &Launcher,
) -> Result<(Arc<Link>, u32), BackendError> {
    let Launched {
        launcher: child,
        pid,
        stdin,
        stdout,
        stderr: errors,
        control,
    } = launcher.launch(command).await?;
    let tasks = mux.tasks.clone();
    let (all_read, stderr_read) = oneshot::channel::<()>();
    let (all_heard, stdout_read) = oneshot::channel::<()>();
    let (noted, of_link) = (Arc::clone(output), Arc::clone(mux));
    let hushed = Arc::new(EnvRedaction::of(command));
    let of_errors = Arc::clone(&hushed);
    let over = CancellationToken::new();
    let over_too = over.clone();
    let kept = RunningChild {
        child,
        control,
        pid,
        output: Arc::clone(output),
        stderr_read,
        stdout_read,
        over: over.clone().drop_guard(),
    };
    tasks.spawn("stderr", async move {
        tokio::select! {
            () = read_stderr(errors, noted, of_link, pid, &of_errors) => {}
            () = over.cancelled() => {}
        }
        drop(all_read);
    });
    tasks.spawn("child", keep(kept, Arc::clone(mux), launcher.clone()));
    let odd = Arc::clone(output);
    let (server, is_told) = (mux.settings.server.clone(), AtomicBool::new(false));
    let note_odd = move |line: &[u8], malformed: &Malformed| {
        // Dropped with this, at the end.
        let _ = &all_heard;
        odd.note_odd(&hushed.start(line, ODD_LINE_BYTES_MAX));
        // A part of an answer may be among them, which is for no log.
        if !is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %server,
                pid,
                "a line on its stdout is no message ({malformed}): it is ignored, as others will be; \
                 `/status` shows the last one"
            );
        }
    };
    let link = pipe::over_lines(stdout, stdin, mux, note_odd, over_too);
    Ok((link, pid))
}

/// Keeps the last lines; the log has all, each with the calls that were under way.
async fn read_stderr(
    stderr: ChildStderr,
    output: Arc<Output>,
    mux: Arc<PendingRequests>,
    pid: u32,
    hushed: &EnvRedaction,
) {
    let mut lines = Lines::new(stderr, STDERR_LINE_BYTES_MAX, mux.settings.bytes.answer());
    while let Some(line) = next_line(&mut lines).await {
        let (OutputLine::Whole(bytes) | OutputLine::TooLong { start: bytes }) = line else {
            continue;
        };
        let line = hushed.start(&bytes, STDERR_LINE_BYTES_MAX);
        if tracing::enabled!(tracing::Level::DEBUG) {
            let calls = mux.under_way().into_iter().take(CALLS_LOGGED_MAX);
            let calls: Vec<_> = calls.map(|call| call.to_string()).collect();
            let server = &mux.settings.server;
            tracing::debug!(%server, pid, invocations = calls.join(" "), line, "stderr");
        }
        output.note_stderr(pid, line);
    }
}

async fn next_line<R: AsyncRead + Unpin>(lines: &mut Lines<R>) -> Option<OutputLine> {
    lines.next().await.ok().flatten()
}

/// A running child.
struct RunningChild {
    /// Its launcher.
    child: Child,
    control: LauncherControl,
    pid: u32,
    output: Arc<Output>,
    /// Fails once stderr was read to its end.
    stderr_read: oneshot::Receiver<()>,
    /// Fails once stdout was: its last answer, or what it wrote in place of one.
    stdout_read: oneshot::Receiver<()>,
    /// Ends the reading of stderr and stdout.
    over: DropGuard,
}

/// Waits until the child ends or its link does, then sees to it that nothing of it is left.
async fn keep(kept: RunningChild, mux: Arc<PendingRequests>, launcher: Launcher) {
    let RunningChild {
        mut child,
        control,
        pid,
        output,
        stderr_read,
        stdout_read,
        over,
    } = kept;
    tokio::select! {
        status = child.wait() => {
            // Its last words may still be on their way.
            let all_read = async { tokio::join!(stderr_read, stdout_read) };
            drop(timeout(OUTPUT_PATIENCE, all_read).await);
            mux.read_out().await;
            mux.close(exit_reason(status.ok(), output.reason_of(pid)));
        }
        () = mux.closed.cancelled() => {}
        used = launcher.lookout().exceeded(pid, mux.settings.memory_max.map(|limit| limit.0)) => {
            mux.close(memory_reason(used, mux.settings.memory_max));
            // Time to end by itself is time to use more.
            end_now(&mut child, &control, pid).await;
        }
    }
    // Who was never greeted has nothing to finish, and may not look at its input yet.
    let grace = mux.spoken.get().map_or(Duration::ZERO, |_| GRACE);
    if timeout(grace, child.wait()).await.is_err() {
        control.terminate();
        if timeout(GRACE, child.wait()).await.is_err() {
            end_now(&mut child, &control, pid).await;
        }
    }
    let status = child.try_wait().ok().flatten();
    if status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw())) {
        // It may have been its launcher that was killed, which ended nothing then.
        signal_group(pid, Signal::KILL);
    }
    drop(over);
}

/// Ends a child and all that it started, also past a launcher that does not obey: on systems that cannot
/// keep programs from it, one may have stopped its own.
async fn end_now(child: &mut Child, control: &LauncherControl, pid: u32) {
    control.kill();
    if timeout(GRACE, child.wait()).await.is_ok() {
        return;
    }
    if let Some(launcher) = child.id().and_then(process) {
        launcher::signal_descendants(launcher, Signal::KILL);
    }
    signal_group(pid, Signal::KILL);
    // An error means that it has ended.
    child.start_kill().ok();
    drop(child.wait().await);
}

fn exit_reason(status: Option<ExitStatus>, own_words: Option<String>) -> String {
    let status = status.map_or_else(
        || "an unknown status".to_owned(),
        |status| status.to_string(),
    );
    match own_words {
        Some(words) => format!("it exited ({status}){OWN_WORDS}{words}"),
        None => format!("it exited ({status})"),
    }
}

fn memory_reason(used: u64, limit: Option<config::MemorySize>) -> String {
    let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
    let used = used >> 20;
    format!("it used more than limits.memory = {limit}: {used} MiB with all that it started")
}

fn process(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn signal_group(pid: u32, signal: Signal) {
    if let Some(group) = process(pid) {
        // An error means that the group is gone already.
        kill_process_group(group, signal).ok();
    }
}
