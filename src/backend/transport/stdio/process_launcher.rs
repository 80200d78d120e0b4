//! Starts programs through the launcher: another process of this binary, which confines them and ends
//! what they leave behind, also when we are killed (see [`crate::launcher`]).

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use crate::{
    backend::BackendError,
    config::{self, StdioCommand},
    launcher::{self, Confined, LaunchError, LaunchSpec, StartReport},
    task::run_blocking,
};

/// How long a launcher may take until it says what became of a start.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);

/// What starts programs; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Launcher(Arc<LauncherInner>);

#[derive(Debug)]
struct LauncherInner {
    program: Option<PathBuf>,
    /// What no program can open.
    hidden: ArcSwap<Vec<PathBuf>>,
    /// How the last program was confined.
    confined: ArcSwapOption<Confined>,
}

/// A program that runs.
#[derive(Debug)]
pub(in crate::backend) struct Launched {
    /// Its launcher, which ends as it ends.
    pub(in crate::backend) launcher: Child,
    /// Its process id, and that of its group.
    pub(in crate::backend) pid: u32,
    pub(in crate::backend) stdin: ChildStdin,
    pub(in crate::backend) stdout: ChildStdout,
    pub(in crate::backend) stderr: ChildStderr,
    /// The program ends when it is dropped.
    pub(in crate::backend) control: LauncherControl,
}

/// What the launcher of a program listens to.
#[derive(Debug)]
pub(in crate::backend) struct LauncherControl(UnixStream);

impl LauncherControl {
    /// Asks the program to end.
    pub(in crate::backend) fn terminate(&self) {
        self.send_command(launcher::TERMINATE);
    }

    /// Ends it and all that it started.
    pub(in crate::backend) fn kill(&self) {
        self.send_command(launcher::KILL);
    }

    fn send_command(&self, word: u8) {
        // One that is gone has ended all before.
        (&self.0).write_all(&[word]).ok();
    }
}

impl Launcher {
    /// `program` is this binary, which is run as `launcher`.
    pub(crate) fn new(program: Option<PathBuf>) -> Self {
        Self(Arc::new(LauncherInner {
            program,
            hidden: ArcSwap::default(),
            confined: ArcSwapOption::default(),
        }))
    }

    /// Programs that start from now on cannot open `paths`.
    pub(crate) fn hide_paths(&self, paths: Vec<PathBuf>) {
        self.0.hidden.store(Arc::new(paths));
    }

    /// How programs are confined, once one was started.
    pub(crate) fn confined(&self) -> Option<Arc<Confined>> {
        self.0.confined.load_full()
    }

    pub(in crate::backend) async fn launch(
        &self,
        command: &StdioCommand,
    ) -> Result<Launched, BackendError> {
        let launcher = self.0.program.clone().unwrap_or_default();
        let spec = launch_spec(command, &self.0.hidden.load());
        let launched = run_blocking(move || launch(&launcher, &spec)).await;
        let (launched, confined) = launched.map_err(|failed| self.launch_error(command, failed))?;
        self.log_limitations(&confined);
        Ok(launched)
    }

    /// Says what the system cannot do, once.
    fn log_limitations(&self, confined: &Confined) {
        let mut confined = confined.clone();
        let last = self.0.confined.load_full();
        // One server that uses the directory is enough, and may run for long: it holds until the gateway ends.
        confined.is_replaceable |= last.as_ref().is_some_and(|last| last.is_replaceable);
        self.0.confined.store(Some(Arc::new(confined.clone())));
        if last.is_some_and(|last| *last == confined) {
            return;
        }
        tracing::debug!(?confined, "programs are confined");
        for lacking in confined.missing_features() {
            let tried = (!confined.tried.is_empty()).then(|| confined.tried.join("; "));
            tracing::warn!(tried, "{lacking}");
        }
    }

    fn launch_error(&self, command: &StdioCommand, failed: LaunchError) -> BackendError {
        let spawn = |error: String| BackendError::Spawn {
            program: command.program.clone(),
            error,
        };
        let hidden = self.0.hidden.load();
        let is_hidden = |path: &Path| hidden.iter().any(|hidden| path.starts_with(hidden));
        match (failed, command.cwd.as_deref()) {
            (LaunchError::Directory(_) | LaunchError::Program(_), Some(cwd)) if !cwd.is_dir() => {
                BackendError::WorkingDirectory {
                    path: cwd.to_owned(),
                    problem: if cwd.exists() {
                        "is no directory"
                    } else {
                        "does not exist"
                    },
                }
            }
            (LaunchError::Directory(_), Some(cwd)) => BackendError::WorkingDirectory {
                path: cwd.to_owned(),
                problem: if is_hidden(cwd) {
                    "is hidden from programs"
                } else {
                    "cannot be entered"
                },
            },
            (LaunchError::User(error), _) => {
                let user = command.user.as_deref().unwrap_or_default();
                spawn(format!("cannot run as user `{user}`: {error}"))
            }
            (
                LaunchError::Program(error)
                | LaunchError::Directory(error)
                | LaunchError::Hiding(error),
                _,
            ) => spawn(error),
        }
    }
}

fn launch_spec(command: &StdioCommand, hidden: &[PathBuf]) -> LaunchSpec {
    let inherited = config::child_environment(&command.inherit_env);
    let env = command.env.iter();
    LaunchSpec {
        program: (&command.program).into(),
        args: command.args.iter().map(OsString::from).collect(),
        inherited: inherited
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .collect(),
        env: env
            .map(|(name, value)| (name.into(), value.expose().into()))
            .collect(),
        cwd: command.cwd.as_ref().map(OsString::from),
        user: command.user.clone(),
        hidden: hidden.iter().map(OsString::from).collect(),
    }
}

/// Starts a launcher, and waits until it has started the program.
fn launch(launcher: &Path, spec: &LaunchSpec) -> Result<(Launched, Confined), LaunchError> {
    let cannot = |error: io::Error| LaunchError::Program(error.to_string());
    let (control, theirs) = UnixStream::pair().map_err(cannot)?;
    let (input, stdin) = io::pipe().map_err(cannot)?;
    let mut launcher = tokio::process::Command::new(launcher)
        .arg0(launcher::PROCESS_NAME)
        .arg(launcher::LAUNCHER_ARG)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| LaunchError::Program(format!("cannot start the launcher: {error}")))?;
    let (Some(stdout), Some(stderr)) = (launcher.stdout.take(), launcher.stderr.take()) else {
        unreachable!("both were asked for as pipes");
    };
    control
        .set_read_timeout(Some(LAUNCH_TIMEOUT))
        .map_err(cannot)?;
    launcher::send(&control, spec, Some(input.as_fd())).map_err(cannot)?;
    drop(input);
    let mut confined = None;
    let (confined, pid) = loop {
        let (report, _) = launcher::receive(&control).map_err(|error| {
            LaunchError::Program(format!(
                "the launcher did not respond: \
                {error}"
            ))
        })?;
        match (report, confined.take()) {
            (StartReport::Confined(how), _) => confined = Some(how),
            (StartReport::Running(pid), Some(how)) => break (how, pid),
            (StartReport::Running(_), None) => {}
            (StartReport::Failed(failed), _) => return Err(failed),
        }
    };
    let stdin = std::process::ChildStdin::from(OwnedFd::from(stdin));
    let launched = Launched {
        launcher,
        pid,
        stdin: ChildStdin::from_std(stdin).map_err(cannot)?,
        stdout,
        stderr,
        control: LauncherControl(control),
    };
    Ok((launched, confined))
}
