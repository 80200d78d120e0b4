//! The process beside a program: parent of all that the program starts and that loses its own, and
//! its end.
//!
//! It listens to the gateway on its standard input. When that closes, the gateway is gone, however
//! that came about, and everything below the reaper ends.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode, Stdio},
    sync::OnceLock,
    time::Duration,
};

use nix::sys::signal::SigSet;
use rustix::{
    io::Errno,
    process::{
        Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, kill_process,
        kill_process_group, setrlimit, wait,
    },
};
use serde_json::value::RawValue;

use super::{
    Confined, EXEC_ARG, Hiding, KILL, LAUNCHER_ARG, LaunchError, StartReport, TERMINATE, confine,
    current_binary, deny_memory_access,
    processes::signal_descendants,
    protocol::{receive, send},
};

/// What launchers are called, wherever the binary lies.
pub const PROCESS_NAME: &str = "tollbridge";
/// How long processes may take to end after SIGTERM when the gateway is gone.
const TERM_GRACE: Duration = Duration::from_millis(300);
/// Pause between looks at what does not end at once.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The program, once it runs.
static SERVER_PID: OnceLock<Pid> = OnceLock::new();

/// Starts the program that the gateway names, and ends as it ends.
pub(super) fn run() -> ExitCode {
    deny_memory_access();
    close_inherited();
    // They are for the program, whose group is another.
    SigSet::all().thread_block().ok();
    confine::adopt_orphans();
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, no_core).ok();
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let control = UnixStream::from(control);
    let server = match start(&control) {
        Ok(server) => server,
        Err(failed) => {
            // A gateway that is gone needs no answer.
            send(&control, &StartReport::Failed(failed), None).ok();
            kill_orphans();
            return ExitCode::FAILURE;
        }
    };
    // Its streams are the program's alone: whoever reads them sees when the program closes them.
    if let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") {
        rustix::stdio::dup2_stdout(&nothing).ok();
        rustix::stdio::dup2_stderr(&nothing).ok();
    }
    let status = reap(Some(server));
    kill_orphans();
    status.map_or(ExitCode::FAILURE, mirror_exit)
}

/// Closes what this process was given beside its three streams.
fn close_inherited() {
    let open = std::fs::read_dir("/dev/fd").into_iter().flatten();
    let open: Vec<i32> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The one that the directory was read with is closed already.
        nix::unistd::close(descriptor).ok();
    }
}

/// Starts the program in the best way of hiding that there is, and tells the gateway.
fn start(control: &UnixStream) -> Result<Pid, LaunchError> {
    let cannot = |error: io::Error| LaunchError::Program(error.to_string());
    let (spec, input) = receive::<Box<RawValue>>(control).map_err(cannot)?;
    let input = input
        .ok_or_else(|| LaunchError::Program("the launcher received no stdin for it".to_owned()))?;
    // The gateway may be gone, or give up, before the program runs.
    let listening = control.try_clone().map_err(cannot)?;
    std::thread::spawn(move || run_commands(&listening));
    let mut tried = Vec::new();
    for hiding in Hiding::ALL
        .into_iter()
        .filter(|one| confine::is_worth_trying(*one))
    {
        match start_with_hiding(hiding, &spec, input.as_fd()) {
            Ok((pid, mut confined)) => {
                SERVER_PID.set(pid).ok();
                confined.tried = tried;
                let raw = pid.as_raw_nonzero().get().unsigned_abs();
                for report in [StartReport::Confined(confined), StartReport::Running(raw)] {
                    // When the gateway is gone, the other thread ends the program.
                    send(control, &report, None).ok();
                }
                return Ok(pid);
            }
            Err(LaunchError::Hiding(why)) => tried.push(format!("{}: {why}", hiding.name())),
            Err(failed) => return Err(failed),
        }
    }
    Err(LaunchError::Program(tried.join("; ")))
}

/// Starts the process that becomes the program.
fn start_with_hiding(
    hiding: Hiding,
    spec: &RawValue,
    input: BorrowedFd<'_>,
) -> Result<(Pid, Confined), LaunchError> {
    let cannot = |error: io::Error| LaunchError::Program(error.to_string());
    let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
    let child = Command::new(current_binary().map_err(cannot)?)
        .arg0(PROCESS_NAME)
        .args([LAUNCHER_ARG, EXEC_ARG, hiding.name()])
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .process_group(0)
        .spawn()
        .map_err(cannot)?;
    let mut outcome = send(&ours, spec, Some(input)).map_err(cannot);
    let mut confined = None;
    // Its end closes when it becomes the program.
    while let Ok((report, _)) = receive::<StartReport>(&ours) {
        match report {
            StartReport::Confined(how) => confined = Some(how),
            StartReport::Failed(failed) => outcome = Err(failed),
            StartReport::Running(_) => {}
        }
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    match (outcome, confined, pid) {
        (Ok(()), Some(confined), Some(pid)) => Ok((pid, confined)),
        (outcome, _, pid) => {
            if let Some(pid) = pid {
                kill_process(pid, Signal::KILL).ok();
                reap(Some(pid));
            }
            let ended = || LaunchError::Program("its launcher ended".to_owned());
            Err(outcome.err().unwrap_or_else(ended))
        }
    }
}

/// Does what the gateway says, until it is gone.
fn run_commands(mut control: &UnixStream) {
    let mut word = [0];
    while matches!(control.read(&mut word), Ok(1)) {
        match word {
            [TERMINATE] => signal_group(Signal::TERM),
            [KILL] => exit_immediately(),
            _ => {}
        }
    }
    signal_group(Signal::TERM);
    signal_descendants(getpid(), Signal::TERM);
    // Until there is nothing left to wait for, which ends this process: a start may go on meanwhile.
    loop {
        pause(TERM_GRACE);
        exit_immediately();
    }
}

fn exit_immediately() {
    signal_group(Signal::KILL);
    signal_descendants(getpid(), Signal::KILL);
}

fn signal_group(signal: Signal) {
    if let Some(server) = SERVER_PID.get() {
        kill_process_group(*server, signal).ok();
    }
}

/// Waits until `awaited` has ended, and takes in every other that has meanwhile.
fn reap(awaited: Option<Pid>) -> Option<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == awaited => return Some(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Ends what the program leaves: orphans come to us, so that nothing is below us once we have no child.
fn kill_orphans() {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                signal_descendants(getpid(), Signal::KILL);
                pause(POLL_INTERVAL);
            }
            Err(_) => return,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has no runtime to wait on"
)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Ends this process as the program ended.
fn mirror_exit(status: WaitStatus) -> ExitCode {
    let Some(number) = status.terminating_signal() else {
        let code = status.exit_status().unwrap_or(1);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    };
    let signal = nix::sys::signal::Signal::try_from(number);
    let blocked: SigSet = signal.into_iter().collect();
    blocked.thread_unblock().ok();
    if let Some(signal) = Signal::from_named_raw(number) {
        // The first may end in a handler of the language.
        kill_process(getpid(), signal).ok();
        kill_process(getpid(), signal).ok();
    }
    ExitCode::from(u8::try_from(128 + number).unwrap_or(1))
}
