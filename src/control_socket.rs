//! The control socket: how the command line talks to running gateways.
//!
//! Every gateway listens on a Unix socket of its own in `DATA_DIR/control`, which only its user may
//! open. A command sends one line and gets one line back:
//!
//! - `refresh`: the store has changed. A command writes to the store first and then tells all gateways;
//!   each answers once it has read the store again, so that a revoked key or a reset budget counts when
//!   the command ends.
//! - `status`: what `/status` says.
//! - `dashboard`: the path of a one-time link that opens the dashboard as the operator, behind `link `.
//! - `restart` and a [`RestartCommand`]: make the connections of a server anew.
//! - `sign-in` and a [`SignInCommand`]: what `tollbridge login` and `logout` ask for, a [`SignInReport`].
//! - `session` and a [`SessionRequest`]: after the answer, the stream is that of an MCP client on stdin
//!   and stdout.

use std::{
    fmt, fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Mutex, Semaphore},
    time::timeout,
};

use crate::{launcher, task::Tasks};

/// How long either side waits for the other.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// What can be asked.
const REFRESH_COMMAND: &str = "refresh";
const STATUS_COMMAND: &str = "status";
const DASHBOARD_COMMAND: &str = "dashboard";
/// What a link stands behind in the reply.
const LINK_REPLY: &str = "link ";
const SESSION_COMMAND: &str = "session ";
const SIGN_IN_COMMAND: &str = "sign-in ";
const RESTART_COMMAND: &str = "restart ";
/// The reply of a gateway that has another config than the command.
pub const OTHER_CONFIG_REPLY: &str = "this gateway runs with another config";
/// The answer once it is done; anything else is what went wrong.
const DONE_REPLY: &str = "done";
/// Commands that are answered at once; further connections are closed.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a command; longer ones come from nobody of ours.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a reply, of which the longest is the status of many servers.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// By what a command recognizes the gateway that answers `GET /healthz`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayIdentity {
    /// The name of its control socket, which is in its data directory alone.
    socket: String,
    /// The first half of the SHA-256 of the paths of its config files.
    config: String,
}

impl GatewayIdentity {
    /// The header of the response that it stands in.
    pub const HEADER: &str = "tollbridge-gateway";

    /// That of a gateway with the control socket of this name and these config files, absolute.
    pub fn new(socket: String, files: &[PathBuf]) -> Self {
        let config = config_id(files);
        Self { socket, config }
    }

    /// Reads the value of the header.
    pub fn parse(text: &str) -> Option<Self> {
        let (socket, config) = text.trim().split_once(' ')?;
        let is_name = !socket.is_empty() && !socket.contains('/');
        is_name.then(|| Self {
            socket: socket.to_owned(),
            config: config.to_owned(),
        })
    }

    /// Whether it runs with the config `files`.
    pub fn has_config(&self, files: &[PathBuf]) -> bool {
        self.config == config_id(files)
    }

    /// Whether it runs on `data_dir`.
    ///
    /// # Errors
    /// When that cannot be looked at.
    pub fn is_on(&self, data_dir: &Path) -> io::Result<bool> {
        socket_dir(data_dir).join(&self.socket).try_exists()
    }
}

impl fmt::Display for GatewayIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.socket, self.config)
    }
}

fn config_id(files: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(file.as_os_str().as_bytes());
        hash.update([0]);
    }
    hex::encode(&hash.finalize()[..16])
}

/// The paths of config `files`, by which commands and gateways know whether they have the same.
///
/// # Errors
/// When one is not there.
pub fn canonical_files(files: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    files.iter().map(|file| file.canonicalize()).collect()
}

/// Which session a command asks for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SessionRequest {
    /// The config files, absolute: a gateway with others refuses.
    pub files: Vec<PathBuf>,
    /// Name or id of the agent; without it the anonymous one, where no keys are needed.
    pub agent: Option<String>,
    /// The server whose route is asked, enabled.
    pub server: Option<String>,
    /// The profile whose route is asked.
    pub profile: Option<String>,
}

/// What a command asks about a sign-in to a server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SignInCommand {
    /// The config files, absolute: a gateway with others refuses.
    pub files: Vec<PathBuf>,
    /// The server.
    pub server: String,
    /// Name or id of the agent; without it the gateway's own.
    pub agent: Option<String>,
    /// What is to be done.
    pub action: SignInAction,
}

/// Which server a command wants to be restarted.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartCommand {
    /// The config files, absolute: a gateway with others refuses.
    pub files: Vec<PathBuf>,
    /// The server.
    pub server: String,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignInAction {
    /// Give a link to sign in at.
    Link,
    /// Give up the grant.
    Revoke,
    /// Say how it stands.
    State,
}

/// How a grant stands.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct SignInReport {
    /// `connected`, `expired` or `needs_sign_in`.
    pub status: String,
    /// When somebody signed in, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<String>,
    /// What it is good for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Where to sign in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What the page asks for, or shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Serves the stream of a session until it ends.
pub type SessionServer =
    Box<dyn FnOnce(UnixStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What a gateway does for commands.
pub trait ControlCommands: Send + Sync {
    /// Reads the store again; or says why it cannot.
    fn refresh(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// What `/status` says, JSON on one line.
    fn status(&self) -> Result<String, String>;
    /// A one-time link that opens the dashboard as the operator; or why there is none.
    fn dashboard_link(&self) -> Result<String, String>;
    /// Makes the connections of a server anew; or says why not.
    fn restart(&self, command: &RestartCommand) -> Result<(), String>;
    /// Does what is asked about a sign-in; or says why not.
    fn sign_in(
        &self,
        command: &SignInCommand,
    ) -> impl Future<Output = Result<SignInReport, String>> + Send;
    /// What serves the session; or why there is none.
    fn session(&self, request: &SessionRequest) -> Result<SessionServer, String>;
}

/// A bound control socket, removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds the socket of this process in `data_dir`.
    ///
    /// # Errors
    /// When the directory cannot be written, or its path is longer than a socket's may be.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(data_dir: &Path) -> io::Result<Self> {
        let directory = socket_dir(data_dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let name = format!("{}.sock", uuid::Uuid::now_v7().simple());
        let path = directory.join(name);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path })
    }

    /// The name of the socket, which no other gateway has.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Answers commands until the tasks stop.
    pub async fn serve(self, tasks: Tasks, commands: impl ControlCommands + 'static) {
        let commands = Arc::new(commands);
        let (places, refreshing) = (
            Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            Arc::<Mutex<()>>::default(),
        );
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = tasks.stop_token().cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                        tracing::warn!("too many connections to the control socket");
                        continue;
                    };
                    let (commands, own) = (Arc::clone(&commands), tasks.clone());
                    let refreshing = Arc::clone(&refreshing);
                    tasks.spawn("control command", async move {
                        let handled = handle_command(stream, &*commands, &refreshing, &own);
                        if let Ok(Err(error)) = timeout(IO_TIMEOUT, handled).await {
                            tracing::debug!(%error, "command connection failed");
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the control socket cannot accept connections");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

async fn handle_command(
    mut stream: UnixStream,
    commands: &impl ControlCommands,
    refreshing: &Mutex<()>,
    tasks: &Tasks,
) -> io::Result<()> {
    let peer = stream.peer_cred()?.pid();
    let line = tokio::select! {
        line = read_line(&mut stream, LINE_BYTES_MAX) => line?,
        // Who says nothing does not hold up the end.
        () = tasks.stop_token().cancelled() => return Ok(()),
    };
    let reply = if peer.is_some_and(launcher::is_descendant_of_launcher) {
        tracing::warn!(
            peer,
            "rejected a connection to the control socket from a server process"
        );
        "server processes may not use the control socket".to_owned()
    } else if line == REFRESH_COMMAND {
        let _one = refreshing.lock().await;
        let refreshed = commands.refresh().await.map(|()| DONE_REPLY.to_owned());
        refreshed.unwrap_or_else(|error| error)
    } else if line == STATUS_COMMAND {
        commands.status().unwrap_or_else(|error| error)
    } else if !peer.is_some_and(launcher::has_known_ancestry) {
        "it is not known who asks, so that there is no session".to_owned()
    } else if line == DASHBOARD_COMMAND {
        let link = commands.dashboard_link();
        link.map_or_else(|reason| reason, |link| format!("{LINK_REPLY}{link}"))
    } else if let Some(command) = line.strip_prefix(RESTART_COMMAND) {
        let command = serde_json::from_str(command).map_err(|error| error.to_string());
        let restarted = command.and_then(|command| commands.restart(&command));
        restarted.map_or_else(|reason| reason, |()| DONE_REPLY.to_owned())
    } else if let Some(command) = line.strip_prefix(SIGN_IN_COMMAND) {
        run_sign_in(command, commands).await
    } else if let Some(request) = line.strip_prefix(SESSION_COMMAND) {
        let request = serde_json::from_str(request).map_err(|error| error.to_string());
        match request.and_then(|request| commands.session(&request)) {
            Ok(serve) => {
                send_line(&mut stream, DONE_REPLY).await?;
                tasks.spawn("control session", serve(stream));
                return Ok(());
            }
            Err(reason) => reason,
        }
    } else {
        format!("unknown command `{line}`")
    };
    send_line(&mut stream, &reply.replace('\n', " ")).await
}

/// The reply to a command about a sign-in: a report as JSON, or in words why there is none.
async fn run_sign_in(command: &str, commands: &impl ControlCommands) -> String {
    let parsed = serde_json::from_str(command).map_err(|error| error.to_string());
    let report = match parsed {
        Ok(command) => commands.sign_in(&command).await,
        Err(error) => Err(error),
    };
    let written = report.and_then(|it| serde_json::to_string(&it).map_err(|it| it.to_string()));
    written.unwrap_or_else(|reason| reason)
}

/// What came of telling the running gateways.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NotifyOutcome {
    /// Gateways that have done it.
    pub gateways: usize,
    /// What went wrong with others, for people.
    pub failures: Vec<String>,
}

/// Tells every gateway that runs on `data_dir` to read the store again, and waits until they have, and run what
/// the config is then.
pub async fn notify_all(data_dir: &Path) -> NotifyOutcome {
    tell_all(data_dir, REFRESH_COMMAND).await
}

/// Lets every gateway that runs on `data_dir` make the connections of a server anew.
pub async fn restart_server(data_dir: &Path, command: &RestartCommand) -> NotifyOutcome {
    match serde_json::to_string(command) {
        Ok(command) => tell_all(data_dir, &format!("{RESTART_COMMAND}{command}")).await,
        Err(error) => NotifyOutcome {
            failures: vec![error.to_string()],
            ..NotifyOutcome::default()
        },
    }
}

async fn tell_all(data_dir: &Path, command: &str) -> NotifyOutcome {
    let mut outcome = NotifyOutcome::default();
    let Ok(entries) = fs::read_dir(socket_dir(data_dir)) else {
        return outcome;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        match timeout(IO_TIMEOUT, ask(&path, command)).await {
            Ok(Ok(reply)) if reply == DONE_REPLY => outcome.gateways += 1,
            Ok(Ok(reply)) => outcome.failures.push(reply),
            // Left behind by a gateway that was killed.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                drop(fs::remove_file(&path));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(Err(error)) => outcome
                .failures
                .push(format!("{}: {error}", path.display())),
            Err(_) => {
                let message = format!("{} did not answer within {IO_TIMEOUT:?}", path.display());
                outcome.failures.push(message);
            }
        }
    }
    outcome
}

/// The control socket of a gateway that runs on `data_dir` and serves what is requested, if there is one.
pub async fn find_gateway(data_dir: &Path, request: &SessionRequest) -> Option<PathBuf> {
    let request = serde_json::to_string(request).ok()?;
    for entry in fs::read_dir(socket_dir(data_dir)).ok()?.flatten() {
        let path = entry.path();
        if open_session(&path, &request).await.is_ok() {
            return Some(path);
        }
    }
    None
}

/// What a gateway says that runs on `data_dir` with the config of `command`; `None` where there is none.
pub async fn ask_sign_in(
    data_dir: &Path,
    command: &SignInCommand,
) -> Option<Result<SignInReport, String>> {
    let line = serde_json::to_string(command).ok()?;
    let line = format!("{SIGN_IN_COMMAND}{line}");
    for entry in fs::read_dir(socket_dir(data_dir)).ok()?.flatten() {
        let reply = timeout(IO_TIMEOUT, ask(&entry.path(), &line)).await;
        if let Ok(Ok(reply)) = reply
            && reply != OTHER_CONFIG_REPLY
        {
            return Some(serde_json::from_str(&reply).map_err(|_| reply));
        }
    }
    None
}

/// A one-time link to the dashboard of each gateway that runs on `data_dir`; or why one has none.
pub async fn dashboard_links(data_dir: &Path) -> Vec<Result<String, String>> {
    let mut links = Vec::new();
    let Ok(entries) = fs::read_dir(socket_dir(data_dir)) else {
        return links;
    };
    for entry in entries.flatten() {
        if let Ok(Ok(reply)) = timeout(IO_TIMEOUT, ask(&entry.path(), DASHBOARD_COMMAND)).await {
            let link = reply.strip_prefix(LINK_REPLY).map(str::to_owned);
            links.push(link.ok_or(reply));
        }
    }
    links
}

/// Opens a session at the socket at `path`; `request` is the JSON of a [`SessionRequest`].
///
/// # Errors
/// When nobody answers, or there is no such session.
pub async fn open_session(path: &Path, request: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    send_line(&mut stream, &format!("{SESSION_COMMAND}{request}")).await?;
    // What comes behind the reply is of the session: it must not be read ahead.
    let mut reader = BufReader::with_capacity(1, &mut stream);
    let mut reply = String::new();
    let read = timeout(IO_TIMEOUT, reader.read_line(&mut reply)).await;
    read.map_err(|_| io::ErrorKind::TimedOut)??;
    match reply.trim_end() {
        DONE_REPLY => Ok(stream),
        refusal => Err(io::Error::other(refusal)),
    }
}

/// What the gateway at the socket at `path` says in `/status`.
///
/// # Errors
/// When nobody answers.
pub async fn read_status(path: &Path) -> io::Result<serde_json::Value> {
    let reply = timeout(IO_TIMEOUT, ask(path, STATUS_COMMAND)).await;
    let reply = reply.map_err(|_| io::ErrorKind::TimedOut)??;
    Ok(serde_json::from_str(&reply)?)
}

async fn ask(path: &Path, command: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path).await?;
    send_line(&mut stream, command).await?;
    read_line(&mut stream, REPLY_BYTES_MAX).await
}

async fn send_line(stream: &mut UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes()).await
}

async fn read_line(stream: &mut UnixStream, bytes_max: u64) -> io::Result<String> {
    use tokio::io::AsyncReadExt;

    let mut line = String::new();
    let mut reader = BufReader::new(stream).take(bytes_max);
    reader.read_line(&mut line).await?;
    Ok(line.trim_end().to_owned())
}

fn socket_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("control")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Refreshes as often as it is told, or says why it cannot.
    struct CountedCommands(Arc<AtomicUsize>, Result<(), String>);

    impl ControlCommands for CountedCommands {
        async fn refresh(&self) -> Result<(), String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.clone()
        }

        fn status(&self) -> Result<String, String> {
            Ok("{}".to_owned())
        }

        fn dashboard_link(&self) -> Result<String, String> {
            Ok("http://here/ui/login".to_owned())
        }

        fn restart(&self, command: &RestartCommand) -> Result<(), String> {
            Err(format!("no server {}", command.server))
        }

        async fn sign_in(&self, command: &SignInCommand) -> Result<SignInReport, String> {
            Err(format!("no server {}", command.server))
        }

        fn session(&self, request: &SessionRequest) -> Result<SessionServer, String> {
            if request.agent.is_some() {
                return Err("no such\nagent".to_owned());
            }
            Ok(Box::new(|mut stream| {
                Box::pin(async move { drop(send_line(&mut stream, "hello").await) })
            }))
        }
    }

    #[tokio::test]
    async fn every_gateway_refreshes_before_the_command_ends() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let socket = ControlSocket::bind(dir.path()).unwrap();
            let (served, count) = (tasks.clone(), Arc::clone(&count));
            let commands = CountedCommands(count, Ok(()));
            tasks.spawn("control", socket.serve(served, commands));
        }
        // What a killed gateway leaves behind.
        let dead = dir.path().join("control/dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());

        let outcome = notify_all(dir.path()).await;
        assert_eq!((outcome.gateways, outcome.failures), (2, Vec::new()));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(!dead.exists());
        tasks.finish().await;
        assert_eq!(notify_all(dir.path()).await, NotifyOutcome::default());
        assert_eq!(fs::read_dir(dir.path().join("control")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_gateway_that_cannot_refresh_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let commands = CountedCommands(Arc::default(), Err("the store\nis gone".to_owned()));
        tasks.spawn("control", socket.serve(tasks.clone(), commands));
        let outcome = notify_all(dir.path()).await;
        assert_eq!(outcome.failures, ["the store is gone"]);
        tasks.finish().await;
    }

    #[tokio::test]
    async fn a_session_is_opened_after_its_reply() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let path = socket.path.clone();
        let commands = CountedCommands(Arc::default(), Ok(()));
        tasks.spawn("control", socket.serve(tasks.clone(), commands));
        let mut request = SessionRequest::default();
        let found = find_gateway(dir.path(), &request).await;
        assert_eq!(found.as_ref(), Some(&path));
        let line = serde_json::to_string(&request).unwrap();
        let mut stream = open_session(&path, &line).await.unwrap();
        assert_eq!(read_line(&mut stream, 100).await.unwrap(), "hello");
        assert_eq!(read_status(&path).await.unwrap(), serde_json::json!({}));
        request.agent = Some("nobody".to_owned());
        assert_eq!(find_gateway(dir.path(), &request).await, None);
        let line = serde_json::to_string(&request).unwrap();
        let refused = open_session(&path, &line).await.unwrap_err();
        assert_eq!(refused.to_string(), "no such agent");
        tasks.finish().await;
    }

    /// Who connects and says nothing holds up nobody, until there are too many of them.
    #[tokio::test]
    async fn silent_connections_leave_room_for_commands() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let path = socket.path.clone();
        let commands = CountedCommands(Arc::default(), Ok(()));
        tasks.spawn("control", socket.serve(tasks.clone(), commands));
        let mut silent = Vec::new();
        for _ in 1..CONNECTIONS_MAX {
            silent.push(UnixStream::connect(&path).await.unwrap());
        }
        assert_eq!(ask(&path, REFRESH_COMMAND).await.unwrap(), DONE_REPLY);
        // The place of that command is free again once its task has ended.
        let last = loop {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            if timeout(Duration::from_millis(50), read_line(&mut stream, 1))
                .await
                .is_err()
            {
                break stream;
            }
        };
        let refused = ask(&path, REFRESH_COMMAND).await;
        assert!(refused.map_or(true, |reply| reply.is_empty()));
        drop(last);
        while ask(&path, REFRESH_COMMAND).await.unwrap_or_default() != DONE_REPLY {}
        tasks.finish().await;
    }

    #[tokio::test]
    async fn others_cannot_open_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ControlSocket::bind(dir.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&socket.path), 0o600);
        assert_eq!(mode(&socket_dir(dir.path())), 0o700);
    }
}
