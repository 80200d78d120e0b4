//! The process that confines itself and becomes the program.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, net::UnixStream, process::CommandExt},
    },
    process::{Command, ExitCode},
};

use nix::sys::signal::SigSet;

use super::{
    Hiding, LaunchError, LaunchSpec, StartReport, confine,
    protocol::{receive, send},
};

/// Becomes the program that the reaper names on standard input.
pub(super) fn run(hiding: Hiding) -> ExitCode {
    confine::set_parent_death_signal();
    // The copy closes when this process becomes the program.
    let Ok(control) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let control = UnixStream::from(control);
    let Err(failed) = become_program(&control, hiding);
    // Without a reaper there is nobody to tell.
    send(&control, &StartReport::Failed(failed), None).ok();
    ExitCode::FAILURE
}

fn become_program(
    control: &UnixStream,
    hiding: Hiding,
) -> Result<std::convert::Infallible, LaunchError> {
    let cannot = |error: io::Error| LaunchError::Program(error.to_string());
    let (spec, input) = receive::<LaunchSpec>(control).map_err(cannot)?;
    let input = input
        .ok_or_else(|| LaunchError::Program("the launcher received no stdin for it".to_owned()))?;
    rustix::stdio::dup2_stdin(&input).map_err(|error| cannot(error.into()))?;
    drop(input);
    let here = std::env::current_dir().map(OsString::from).ok();
    let (confined, home) = confine::confine(&spec, hiding, here.as_deref())?;
    change_directory(spec.cwd.as_ref(), here.as_ref())?;
    send(control, &StartReport::Confined(confined), None).map_err(cannot)?;
    // The reaper blocks all signals, and the program would inherit that.
    SigSet::empty()
        .thread_set_mask()
        .map_err(|error| cannot(error.into()))?;
    let error = Command::new(&spec.program)
        .args(&spec.args)
        .env_clear()
        .envs(spec.inherited)
        .envs(home)
        .envs(spec.env)
        .exec();
    Err(LaunchError::Program(exec_failure(&spec.program, &error)))
}

/// Why `program` was not executed: the system says the same of a name that is nowhere in `PATH` and of a
/// file that is not there.
fn exec_failure(program: &OsStr, error: &io::Error) -> String {
    let is_name = !program.as_bytes().contains(&b'/');
    if is_name && error.kind() == io::ErrorKind::NotFound {
        "not found in PATH".to_owned()
    } else {
        error.to_string()
    }
}

/// Goes to the working directory by its name: the one that this process is in may be hidden by now,
/// and would still be open.
fn change_directory(cwd: Option<&OsString>, here: Option<&OsString>) -> Result<(), LaunchError> {
    match (cwd, here) {
        (Some(cwd), _) => std::env::set_current_dir(cwd)
            .map_err(|error| LaunchError::Directory(error.to_string())),
        (None, here) => here
            .map_or(
                Err(io::ErrorKind::NotFound.into()),
                std::env::set_current_dir,
            )
            .or_else(|_| std::env::set_current_dir("/"))
            .map_err(|error| LaunchError::Directory(error.to_string())),
    }
}
