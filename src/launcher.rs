//! The mode of this binary that confines a program and starts it.
//!
//! `tollbridge launcher` stays beside the program as its reaper: whatever the program
//! starts stays below it, however it parts, and ends with it, with the gateway, or when the gateway
//! says so. `tollbridge launcher exec` confines itself and becomes the program. Neither
//! has a runtime, and what they are to do comes over a socket on their standard input: no secret is
//! seen in their arguments or their environment.

#[cfg(target_os = "linux")]
mod confine;
#[cfg(not(target_os = "linux"))]
#[path = "launcher/confine_not.rs"]
mod confine;
mod exec;
mod processes;
mod protocol;
mod reaper;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use serde::{Deserialize, Serialize};

pub use processes::{has_known_ancestry, is_descendant_of_launcher, signal_descendants};
pub use protocol::{receive, send};
pub use reaper::PROCESS_NAME;

/// The argument that makes this binary a launcher.
pub const LAUNCHER_ARG: &str = "launcher";
/// The argument after it that makes it become the program.
const EXEC_ARG: &str = "exec";

/// What the reaper is told: SIGTERM for the program and its group.
pub const TERMINATE: u8 = b't';
/// What the reaper is told: SIGKILL for the program and all that it started.
pub const KILL: u8 = b'k';

/// A program, and what it must not reach.
#[derive(Debug, Deserialize, Serialize)]
pub struct LaunchSpec {
    /// A name that is looked for in its `PATH`, or a path.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that it has because we have them.
    pub inherited: Vec<(OsString, OsString)>,
    /// Variables over those.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory; ours when `None`.
    pub cwd: Option<OsString>,
    /// The user it runs as, by name or number; ours when `None`.
    pub user: Option<String>,
    /// Files and directories that it cannot open.
    pub hidden: Vec<OsString>,
}

/// How files and directories are kept from a program.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hiding {
    /// They are covered in a mount namespace, made by root.
    Mounts,
    /// They are covered in a mount namespace of a user namespace.
    UserNamespace,
    /// Landlock grants all but them.
    Landlock,
    /// They are not.
    Nothing,
}

impl Hiding {
    /// The best first.
    const ALL: [Self; 4] = [
        Self::Mounts,
        Self::UserNamespace,
        Self::Landlock,
        Self::Nothing,
    ];

    /// Its name where people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mounts => "mounts",
            Self::UserNamespace => "user_namespace",
            Self::Landlock => "landlock",
            Self::Nothing => "nothing",
        }
    }
}

/// How a program is confined.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Confined {
    /// How files are kept from it.
    pub hiding: Hiding,
    /// Whether it is kept from the memory and the environment of processes that are not its own.
    #[serde(rename = "isolated")]
    pub is_isolated: bool,
    /// Whether a hidden file lies in a directory that the program uses: another file that takes its place,
    /// as editors make one, is not hidden from a program that runs.
    #[serde(rename = "replaceable")]
    pub is_replaceable: bool,
    /// Whether it is kept from sending them signals and connecting to their abstract sockets.
    pub signals_scoped: bool,
    /// Why no better way of hiding was taken, for each that was tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
}

impl Confined {
    /// What the system cannot do, for its operator.
    pub fn missing_features(&self) -> Vec<&'static str> {
        let hiding = match self.hiding {
            Hiding::Mounts | Hiding::UserNamespace => None,
            Hiding::Landlock => Some(
                "mount namespaces are unavailable; the config and the data directory are hidden \
                 from server programs by Landlock, which also hides files created later in their \
                 parent directories",
            ),
            Hiding::Nothing => Some(
                "the config and the data directory cannot be hidden on this system: server \
                 programs can read them",
            ),
        };
        let isolation = (!self.is_isolated).then_some(
            "server programs cannot be prevented from reading the memory and environment of other \
             processes of the same user",
        );
        let signals = (!self.signals_scoped).then_some(
            "server programs cannot be prevented from signalling other processes of the same user \
             or connecting to their abstract sockets",
        );
        let replacing = self.is_replaceable.then_some(
            "the config or another hidden file is in a directory that servers use: once an editor \
             replaces the file, running programs can read it and, as the same user, change it. \
             Keep the config in its own directory and give each server a `cwd` elsewhere",
        );
        [hiding, isolation, signals, replacing]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// What becomes of a start.
#[derive(Debug, Deserialize, Serialize)]
pub enum StartReport {
    /// It is confined and about to run, or runs.
    Confined(Confined),
    /// It runs under this id.
    Running(u32),
    /// It does not.
    Failed(LaunchError),
}

/// Why a program does not run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum LaunchError {
    /// This way of hiding is none here.
    Hiding(String),
    /// It cannot run as that user.
    User(String),
    /// Its working directory cannot be entered.
    Directory(String),
    /// It cannot be started.
    Program(String),
}

/// Runs this process as a launcher; `step` are the arguments after [`LAUNCHER_ARG`].
pub fn run(step: &[String]) -> ExitCode {
    match step {
        [] => reaper::run(),
        [step, hiding] if step == EXEC_ARG => {
            let hiding = Hiding::ALL.into_iter().find(|one| one.name() == hiding);
            hiding.map_or(ExitCode::FAILURE, exec::run)
        }
        _ => ExitCode::FAILURE,
    }
}

/// This binary, also when another lies in its place by now.
///
/// # Errors
/// When the system does not say where it is.
pub fn current_binary() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe()
}

/// Keeps others of the same user out of the memory and the environment of this process.
pub fn deny_memory_access() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // Every kernel allows this.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).ok();
    }
}
