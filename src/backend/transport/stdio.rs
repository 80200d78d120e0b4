//! Servers that run as child processes on stdin and stdout.
//!
//! Each has a launcher beside it, so that everything it started ends with it.

pub(in crate::backend) mod child_output;
mod env_redaction;
pub(in crate::backend) mod exit_reason;
mod memory_watcher;
pub(in crate::backend) mod process_group;
pub(in crate::backend) mod process_launcher;

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
        error::STDERR_SEPARATOR,
        link::{Link, pending::PendingRequests},
    },
    config::{self, StdioCommand},
    launcher,
    mcp::envelope::Malformed,
};
use child_output::ChildOutput;
use env_redaction::EnvRedaction;
use process_launcher::{Launched, Launcher, LauncherControl};

/// How long a child may take to end by itself once its input is closed, and again after SIGTERM.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// How long after the end of a child its output is read; what it started may hold it open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes kept of a line of stderr.
const STDERR_LINE_BYTES_MAX: usize = 1024;
/// How much of an odd line is kept for `/status`.
const STRAY_LINE_BYTES_MAX: usize = 200;
/// Calls that a logged line of stderr may be about which are named with it.
const CALLS_LOGGED_MAX: usize = 8;

/// Starts `command` and opens a link to it; the child ends with the link.
pub(crate) async fn open(
    command: &StdioCommand,
    requests: &Arc<PendingRequests>,
    output: &Arc<ChildOutput>,
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
    let tasks = requests.tasks.clone();
    let (all_read, stderr_read) = oneshot::channel::<()>();
    let (all_heard, stdout_read) = oneshot::channel::<()>();
    let (noted, of_link) = (Arc::clone(output), Arc::clone(requests));
    let redaction = Arc::new(EnvRedaction::of(command));
    let of_errors = Arc::clone(&redaction);
    output.note_started(pid);
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
    tasks.spawn("child", supervise_child(kept, Arc::clone(requests)));
    let stray = Arc::clone(output);
    let (server, is_reported) = (requests.settings.server.clone(), AtomicBool::new(false));
    let note_odd = move |line: &[u8], malformed: &Malformed| {
        // Dropped with this, at the end.
        let _ = &all_heard;
        stray.note_stray_line(&redaction.redact_prefix(line, STRAY_LINE_BYTES_MAX));
        // A part of an answer may be among them, which is for no log.
        if !is_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %server,
                pid,
                "ignored a line on stdout that is not a message ({malformed}); further ones are \
                 counted in `/status`"
            );
        }
    };
    let link = pipe::open_lines(stdout, stdin, requests, note_odd, over_too);
    Ok((link, pid))
}

/// Keeps the last lines; the log has all, each with the calls that were under way.
async fn read_stderr(
    stderr: ChildStderr,
    output: Arc<ChildOutput>,
    requests: Arc<PendingRequests>,
    pid: u32,
    redaction: &EnvRedaction,
) {
    let mut lines = Lines::new(
        stderr,
        STDERR_LINE_BYTES_MAX,
        requests.settings.byte_budget.reserve_answer(),
    );
    while let Some(line) = next_line(&mut lines).await {
        let (OutputLine::Complete(bytes) | OutputLine::TooLong { start: bytes }) = line else {
            continue;
        };
        let line = redaction.redact_prefix(&bytes, STDERR_LINE_BYTES_MAX);
        if tracing::enabled!(tracing::Level::DEBUG) {
            let calls = requests.invocations().into_iter().take(CALLS_LOGGED_MAX);
            let calls: Vec<_> = calls.map(|call| call.to_string()).collect();
            let server = &requests.settings.server;
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
    output: Arc<ChildOutput>,
    /// Fails once stderr was read to its end.
    stderr_read: oneshot::Receiver<()>,
    /// Fails once stdout was: its last answer, or what it wrote in place of one.
    stdout_read: oneshot::Receiver<()>,
    /// Ends the reading of stderr and stdout.
    over: DropGuard,
}

/// Waits until the child ends or its link does, then sees to it that nothing of it is left.
async fn supervise_child(kept: RunningChild, requests: Arc<PendingRequests>) {
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
            drop(timeout(OUTPUT_DRAIN_TIMEOUT, all_read).await);
            requests.wait_large_reads().await;
            requests.close(exit_reason(status.ok(), output.exit_reason(pid)));
        }
        () = requests.closed.cancelled() => {}
        used = memory_watcher::exceeded(pid, requests.settings.memory_max.map(|limit| limit.0)) => {
            requests.close(memory_reason(used, requests.settings.memory_max));
            // Time to end by itself is time to use more.
            kill_child(&mut child, &control, pid).await;
        }
    }
    // Who was never greeted has nothing to finish, and may not look at its input yet.
    let grace = requests
        .revision
        .get()
        .map_or(Duration::ZERO, |_| EXIT_GRACE);
    if timeout(grace, child.wait()).await.is_err() {
        control.terminate();
        if timeout(EXIT_GRACE, child.wait()).await.is_err() {
            kill_child(&mut child, &control, pid).await;
        }
    }
    let status = child.try_wait().ok().flatten();
    if status.is_some_and(|status| status.signal() == Some(Signal::KILL.as_raw())) {
        // It may have been its launcher that was killed, which ended nothing then.
        signal_group(pid, Signal::KILL);
    }
    output.note_ended(pid);
    drop(over);
}

/// Ends a child and all that it started, also past a launcher that does not obey: on systems that cannot
/// keep programs from it, one may have stopped its own.
async fn kill_child(child: &mut Child, control: &LauncherControl, pid: u32) {
    control.kill();
    if timeout(EXIT_GRACE, child.wait()).await.is_ok() {
        return;
    }
    if let Some(launcher) = child.id().and_then(to_pid) {
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
        Some(words) => format!("exited ({status}){STDERR_SEPARATOR}{words}"),
        None => format!("exited ({status})"),
    }
}

fn memory_reason(used: u64, limit: Option<config::MemorySize>) -> String {
    let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
    let used = used >> 20;
    format!("exceeded limits.memory = {limit}: {used} MiB including child processes")
}

pub(in crate::backend) fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn signal_group(pid: u32, signal: Signal) {
    if let Some(group) = to_pid(pid) {
        // An error means that the group is gone already.
        kill_process_group(group, signal).ok();
    }
}
