//! Runs the binary in a directory of its own, always bounded in time.

use std::{
    fs::{self, File},
    future::Future,
    io::Read,
    os::fd::OwnedFd,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
    time::{sleep, timeout},
};

/// Longer than any of these commands takes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at something that announces itself to nobody.
const LOOK: Duration = Duration::from_millis(20);

/// The toolbox, and a server that only this machine's shell is needed for.
pub(crate) const TWO_SERVERS: &str = r#"
    [servers.toolbox]
    transport = "builtin"
    [servers.script]
    command = "sh"
    args = ["server.sh"]
"#;
/// The shell's server alone.
pub(crate) const SCRIPT: &str = r#"
    [servers.script]
    command = "sh"
    args = ["server.sh"]
"#;
/// The shell's server with a resource and a template of resources.
pub(crate) const LIBRARY: &str = r#"
    [servers.library]
    command = "sh"
    args = ["server.sh", "library"]
"#;
/// The toolbox alone.
pub(crate) const TOOLBOX: &str = r#"
    listen = "127.0.0.1:0"
    [servers.toolbox]
    transport = "builtin"
"#;

/// Two servers whose tools, of which each has one, share a name on merged routes; what becomes of
/// them is to be added.
pub(crate) const ALIKE: &str = r#"
    [servers.one]
    transport = "builtin"
    priority = 1
    tools = { allow = ["echo"] }
    [servers.two]
    transport = "builtin"
    tools = { allow = ["echo"] }
    [naming]
    template = "{tool}"
"#;

/// A working directory with a config in it.
pub(crate) struct Place(TempDir);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Lines on stderr that say what it waited for.
    pub(crate) waits: String,
    /// The line on stderr that says that no gateway hears of a change.
    pub(crate) unheard: String,
}

impl Place {
    pub(crate) fn new(config: &str) -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        place.write_private("tollbridge.toml", config);
        fs::write(place.file("server.sh"), include_str!("server.sh")).expect("written");
        place
    }

    /// Writes a file that nobody else may read.
    pub(crate) fn write_private(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("changed");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The binary with `args`, in this directory and with nothing else of ours.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollbridge"));
        command.args(args);
        self.settle(command)
    }

    /// A shell that runs `script`, in the same way.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        self.settle(command)
    }

    fn settle(&self, mut command: Command) -> Command {
        command
            .current_dir(self.0.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.0.path())
            .env("TOLLBRIDGE_DATA_DIR", self.file("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args)).await
    }

    /// Runs with `input` on stdin.
    pub(crate) async fn run_with(&self, input: &str, args: &[&str]) -> Ran {
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        // A program that wants nothing of it may have ended.
        drop(stdin.write_all(input.as_bytes()).await);
        drop(stdin);
        let output = bounded(child.wait_with_output()).await.expect("it ends");
        Ran::new(output.status, &output.stdout, &output.stderr)
    }

    /// Starts `serve` and gives its base URL.
    pub(crate) async fn serve(&self) -> Serving {
        self.serve_with(&[]).await
    }

    /// The same, with `variables` in its environment.
    pub(crate) async fn serve_with(&self, variables: &[(&str, &str)]) -> Serving {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.envs(variables.iter().copied());
        Self::serve_as(command).await
    }

    /// The same by `command`.
    pub(crate) async fn serve_as(mut command: Command) -> Serving {
        let mut child = command.spawn().expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        bounded(stdout.read_line(&mut line)).await.expect("a line");
        let url = line.trim().strip_prefix("listening on ");
        let stderr = child.stderr.take().expect("it is piped");
        Serving {
            url: url.expect("it says where it listens").to_owned(),
            child,
            _stdout: stdout,
            stderr: BufReader::new(stderr),
        }
    }
}

impl Ran {
    /// What it waited for is kept apart: on a busy machine anything may take long enough for that.
    /// So is which directory no gateway uses: it is another one each time.
    fn new(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Self {
        let stderr = String::from_utf8_lossy(stderr);
        let lines = stderr.split_inclusive('\n');
        let (waits, lines): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.starts_with("waiting for "));
        let (unheard, stderr): (Vec<_>, Vec<_>) = lines
            .into_iter()
            .partition(|line| line.starts_with("no gateway is running on "));
        Self {
            code: status.code(),
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            stderr: stderr.concat(),
            waits: waits.concat(),
            unheard: unheard.concat(),
        }
    }

    /// stdout as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Everything, for a snapshot: tabs can be seen, how long something took is left out.
    pub(crate) fn all(&self) -> String {
        let Self {
            code,
            stdout,
            stderr,
            waits: _,
            unheard: _,
        } = self;
        let code = code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        let text = format!("{stdout}--- stderr\n{stderr}--- code {code}\n");
        let times = regex::Regex::new(r"[0-9.]+ ms").expect("a regex");
        times.replace_all(&text, "N ms").replace('\t', "→")
    }
}

/// A gateway that runs.
pub(crate) struct Serving {
    pub(crate) url: String,
    pub(crate) child: Child,
    _stdout: BufReader<ChildStdout>,
    /// What it logs, from the line on that was not read yet.
    stderr: BufReader<ChildStderr>,
}

impl Serving {
    /// Where clients connect.
    pub(crate) fn mcp(&self) -> String {
        format!("{}/mcp", self.url)
    }

    /// Reads what is logged up to the line with `words`; that line.
    pub(crate) async fn says(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let read = bounded(self.stderr.read_line(&mut line)).await;
            assert_ne!(read.expect("it is text"), 0, "it ends before {words:?}");
        }
        line
    }

    /// Sends `signal` and waits for the end.
    pub(crate) async fn end(mut self, signal: Signal) -> Ran {
        send(&self.child, signal);
        let mut said = Vec::new();
        bounded(self.stderr.read_to_end(&mut said))
            .await
            .expect("it is text");
        let status = bounded(self.child.wait()).await.expect("it ends");
        Ran::new(status, &[], &said)
    }
}

pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    kill_process(pid.expect("it runs"), signal).expect("it can be sent");
}

pub(crate) async fn finish(mut command: Command) -> Ran {
    let output = bounded(command.output()).await.expect("it runs");
    Ran::new(output.status, &output.stdout, &output.stderr)
}

pub(crate) async fn bounded<F: Future>(work: F) -> F::Output {
    timeout(LIMIT, work).await.expect("it ends in time")
}

/// Waits until `look` finds something.
pub(crate) async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    bounded(async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            sleep(LOOK).await;
        }
    })
    .await
}

/// The pids that the shell's server wrote.
pub(crate) async fn pids(place: &Place) -> Vec<u32> {
    pids_in(&place.file("pids")).await
}

/// The same, from another file.
pub(crate) async fn pids_in(file: &Path) -> Vec<u32> {
    until(|| {
        let text = fs::read_to_string(file).ok()?;
        let pids = text.strip_suffix('\n')?.split(' ');
        Some(pids.map(|pid| pid.parse().expect("a pid")).collect())
    })
    .await
}

/// Waits until none of `pids` runs any more.
pub(crate) async fn gone(pids: &[u32]) {
    until(|| (!pids.iter().any(|pid| runs(*pid))).then_some(())).await;
}

/// Whether the process runs; one that only waits to be reaped does not.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let state = |stat: &str| {
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
    };
    stat.is_ok_and(|stat| !matches!(state(&stat), Some('Z' | 'X')))
}

/// A terminal that is 100 columns wide: our end, and the one for a child.
pub(crate) struct Terminal {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let theirs = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("it is ASCII"))
            .expect("it opens");
        let size = Winsize {
            ws_row: 40,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).expect("it has a size");
        let theirs = theirs.into();
        Self { ours, theirs }
    }

    pub(crate) fn end(&self) -> Stdio {
        Stdio::from(self.theirs.try_clone().expect("a copy"))
    }

    /// Types `text` once nobody sees it any more.
    pub(crate) async fn types_hidden(&self, text: &str) {
        until(|| {
            let mode = tcgetattr(&self.theirs).expect("it is a terminal");
            (!mode.local_modes.contains(LocalModes::ECHO)).then_some(())
        })
        .await;
        rustix::io::write(&self.ours, text.as_bytes()).expect("it is read");
    }

    /// Everything that was written to it, once nobody can write any more.
    pub(crate) async fn text(self) -> String {
        drop(self.theirs);
        let mut ours = File::from(self.ours);
        let read = tokio::task::spawn_blocking(move || {
            let (mut text, mut part) = (Vec::new(), [0; 4096]);
            // Linux ends a terminal without writers with an error.
            while let Ok(bytes @ 1..) = ours.read(&mut part) {
                text.extend_from_slice(&part[..bytes]);
            }
            String::from_utf8_lossy(&text).replace("\r\n", "\n")
        });
        bounded(read).await.expect("it can be read")
    }
}
