//! The processes a run consists of, and what the kernel says about them.
//!
//! `plan`, `soak` and `gateway` start them. Each is told to stop and waited for; one that is
//! dropped on an error is killed.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use http::uri::Authority;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::{Instant, timeout},
};

use crate::{Fault, call::Era};

/// Longest time until a process listens, or has stopped.
const PATIENCE: Duration = Duration::from_secs(20);

/// A child that listens.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: u32,
    address: SocketAddr,
    /// From just before it was started until it said that it listens.
    pub(crate) start: Duration,
    /// Kept open, so that what it says later does not end it.
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts this program as an echo server on HTTP.
    pub(crate) async fn echo(era: Era) -> Result<Self, Fault> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["echo-http", "--era", era.name()]);
        Self::start(command).await
    }

    /// Starts `program`, or else this one, as the bare proxy in front of `target`.
    pub(crate) async fn bare_proxy(
        program: Option<&Path>,
        target: SocketAddr,
    ) -> Result<Self, Fault> {
        let target = Authority::try_from(target.to_string())?;
        let program = program.map_or_else(std::env::current_exe, |it| Ok(it.to_owned()))?;
        let mut command = Command::new(program);
        command.args(["bare-proxy", "--target", target.as_str()]);
        Self::start(command).await
    }

    /// Starts `gateway` with `config`, its home in `home`.
    pub(crate) async fn gateway(program: &Path, config: &str, home: &Path) -> Result<Self, Fault> {
        fs::create_dir_all(home)?;
        let file = home.join("tollbridge.toml");
        fs::write(&file, config)?;
        let log = home.join("log");
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(home)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .env("TOLLBRIDGE_DATA_DIR", home.join("data"))
            .stderr(fs::File::create(&log)?);
        Self::start(command).await.map_err(|fault| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("{} serve: {fault}\n{said}", program.display()).into()
        })
    }

    async fn start(mut command: Command) -> Result<Self, Fault> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let started = Instant::now();
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("a child without stdout")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        timeout(PATIENCE, stdout.read_line(&mut line)).await??;
        let start = started.elapsed();
        let address = line
            .trim_end()
            .strip_prefix("listening on http://")
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| format!("said `{}` where it should listen", line.trim_end()))?;
        let pid = child.id().ok_or("ended as soon as it listened")?;
        Ok(Self {
            child,
            pid,
            address,
            start,
            _stdout: stdout,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Resident memory, bytes.
    pub(crate) fn resident(&self) -> Result<u64, Fault> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .ok_or("no VmRSS")?;
        Ok(kib.trim().parse::<u64>()? << 10)
    }

    /// Tells it to stop and waits until it has.
    pub(crate) async fn stop(mut self) -> Result<(), Fault> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or("no process id")?;
        rustix::process::kill_process(pid, Signal::TERM)?;
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.map(drop).map_err(Fault::from),
            Err(_) => Err(format!("process {} does not stop when told to", self.pid).into()),
        }
    }
}

/// Time that the threads of the process `pid` were on a CPU, without its children.
///
/// Threads that have ended are not counted, which is of no weight: the workers of a runtime stay.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, Fault> {
    let mut total = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between being listed and being read.
        let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        total += stat.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// The most open files that this process may allow itself, if there is a most.
pub(crate) fn files_max() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).maximum
}

/// Allows this process and its children `wanted` open files, if the system does.
pub(crate) fn allow_files(wanted: u64) -> Result<(), Fault> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        return Err(format!("this run needs {wanted} open files; see `ulimit -Hn`").into());
    }
    let limit = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}
