//! Keeps connections to one server alive: connects, greets, waits, backs off, connects again.
//!
//! An [`Instance`] is one connection as its users know it: a phase they can wait on. The catalog's
//! instance is kept up for ever; others start on the first call and end when idle.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Failure, Shared,
    guard::Guard,
    handshake::{self, Hello},
    http,
    link::Link,
    mux::{Mux, Settings, Signal},
    pipe, sse,
    stdio::{self, StderrTail},
    websocket,
};
use crate::{
    config::{EraPin, Remote, Retry, Server, Transport},
    mcp::{Era, Level, Raw},
    names::ServerName,
    session::Session,
    task::Tasks,
};

/// Signals of one connection that may wait for the gateway.
const SIGNALS_MAX: usize = 64;
/// How long a server may take to open the stream for messages that belong to no call; some send
/// no headers before the first message.
const STANDING_PATIENCE: Duration = Duration::from_secs(1);
/// Buffer of the in-process pipe to the builtin server, bytes.
const BUILTIN_PIPE_BYTES: usize = 64 * 1024;

/// A connection that can be used.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Arc<Link>,
    pub(crate) hello: Hello,
    /// Process id of a child.
    pub(crate) pid: Option<u32>,
    /// The least severe log message asked for, when one was.
    level: Mutex<Option<Level>>,
}

impl Connection {
    pub(crate) fn era(&self) -> Era {
        self.hello.revision.era()
    }

    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.link.mux.closed
    }

    /// Notes that log messages from `level` on are wanted; whether the server does not know yet.
    pub(crate) fn raise_level(&self, level: Level) -> bool {
        if self.hello.capabilities.member("logging").is_none() {
            return false;
        }
        let mut known = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let news = known.is_none_or(|known| level < known);
        if news {
            *known = Some(level);
        }
        news
    }

    /// Ends the connection, politely where the transport allows it.
    pub(crate) async fn end(&self, reason: &str) {
        if let Some(http) = self.link.as_http() {
            http.goodbye().await;
        }
        self.link.mux.close(reason);
    }
}

/// Where an instance is in its life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// A connection is being made.
    Connecting,
    /// There is none; why, and whether credentials are the cause.
    Down { failure: Failure },
    /// It can be used.
    Ready(Arc<Connection>),
}

/// One connection, present or to be.
#[derive(Debug)]
pub(crate) struct Instance {
    phase: watch::Sender<Phase>,
    used_ms: AtomicU64,
    born: Instant,
    /// Ends the instance.
    pub(crate) stop: CancellationToken,
}

impl Instance {
    pub(crate) fn new(tasks: &Tasks) -> Arc<Self> {
        let (phase, _) = watch::channel(Phase::Connecting);
        let stop = tasks.stop_token().child_token();
        Arc::new(Self {
            phase,
            used_ms: AtomicU64::new(0),
            born: Instant::now(),
            stop,
        })
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The connection, as soon as there is one; the failure, when there will be none for now.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(now, Ordering::Relaxed);
        if let Phase::Ready(connection) = &*self.phase.borrow()
            && !connection.closed().is_cancelled()
        {
            return Ok(Arc::clone(connection));
        }
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Ready(connection) if !connection.closed().is_cancelled() => {
                    return Ok(Arc::clone(connection));
                }
                Phase::Down { failure } => return Err(failure.clone()),
                Phase::Connecting | Phase::Ready(_) => {}
            }
            if phase.changed().await.is_err() {
                return Err(Failure::Lost {
                    reason: "it is being stopped".to_owned(),
                });
            }
        }
    }

    /// How long ago it was last used.
    pub(crate) fn idle(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(used)
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    fn is_busy(&self) -> bool {
        matches!(&*self.phase.borrow(), Phase::Ready(connection) if connection.link.mux.in_flight() > 0)
    }
}

/// What is needed to make connections to one server.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) server: ServerName,
    pub(crate) config: Arc<Server>,
    pub(crate) tasks: Tasks,
    pub(crate) guard: Guard,
    pub(crate) stderr: StderrTail,
    pub(crate) odd_output: Arc<Mutex<Odd>>,
    pub(crate) shared: Arc<Shared>,
}

/// Lines on stdout that are no messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Odd {
    pub(crate) count: u64,
    pub(crate) last: Option<String>,
}

/// Which connection is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) era: EraPin,
    /// Capabilities declared in `initialize`.
    pub(crate) capabilities: Raw,
    /// The session whose own it will be.
    pub(crate) home: Option<Arc<Session>>,
}

impl Maker {
    /// Connects and greets, within the time a start may take.
    pub(crate) async fn connect(
        &self,
        wanted: &Wanted,
    ) -> Result<(Arc<Connection>, mpsc::Receiver<Signal>), Failure> {
        let limit = self.config.startup_timeout;
        let (signals, receiver) = mpsc::channel(SIGNALS_MAX);
        let attempt = timeout(limit, self.attempt(wanted, &signals));
        let connection = attempt
            .await
            .unwrap_or(Err(Failure::Startup { after: limit }))?;
        if let Some(http) = connection.link.as_http()
            && connection.era() == Era::Legacy
        {
            let (opened, open) = oneshot::channel();
            self.tasks
                .spawn("standing stream", Arc::clone(http).listen(opened));
            // What a server says before the stream is open may be lost.
            drop(timeout(STANDING_PATIENCE, open).await);
        }
        Ok((connection, receiver))
    }

    async fn attempt(
        &self,
        wanted: &Wanted,
        signals: &mpsc::Sender<Signal>,
    ) -> Result<Arc<Connection>, Failure> {
        match &self.config.transport {
            Transport::Auto(remote) => match self.over_http(remote, wanted, signals).await {
                Err(Failure::Http { status, .. }) if status.is_client_error() => {
                    self.over_sse(remote, wanted, signals).await
                }
                other => other,
            },
            Transport::Http(remote) => self.over_http(remote, wanted, signals).await,
            Transport::Sse(remote) => self.over_sse(remote, wanted, signals).await,
            Transport::WebSocket(remote) => {
                let mux = self.mux(wanted, signals);
                let link = websocket::open(remote, mux, self.config.connect_timeout).await?;
                self.greet(link, wanted, None).await
            }
            Transport::Builtin => {
                let (ours, theirs) = tokio::io::duplex(BUILTIN_PIPE_BYTES);
                let mux = self.mux(wanted, signals);
                let stop = mux.closed.clone();
                self.tasks.spawn("builtin server", async move {
                    if let Err(error) = crate::builtin::serve(theirs, stop).await {
                        tracing::debug!(%error, "the builtin server ended");
                    }
                });
                let (reader, writer) = tokio::io::split(ours);
                let link = pipe::over_lines(reader, writer, &mux, |_| {});
                self.greet(link, wanted, None).await
            }
            Transport::Stdio(command) => match self.over_stdio(command, wanted, signals).await {
                // Some old servers exit on a request before `initialize`.
                Err(Failure::Lost { .. }) if wanted.era == EraPin::Auto => {
                    let legacy = Wanted {
                        era: EraPin::Legacy,
                        ..wanted.clone()
                    };
                    self.over_stdio(command, &legacy, signals).await
                }
                other => other,
            },
        }
    }

    async fn over_stdio(
        &self,
        command: &crate::config::Command,
        wanted: &Wanted,
        signals: &mpsc::Sender<Signal>,
    ) -> Result<Arc<Connection>, Failure> {
        let odd = Arc::clone(&self.odd_output);
        let note = move |line: &str| {
            let mut odd = odd.lock().unwrap_or_else(PoisonError::into_inner);
            odd.count += 1;
            odd.last = Some(line.to_owned());
        };
        let mux = self.mux(wanted, signals);
        let (link, pid) = stdio::open(command, &mux, self.stderr.clone(), &self.guard, note)?;
        self.greet(link, wanted, Some(pid)).await
    }

    async fn over_http(
        &self,
        remote: &Remote,
        wanted: &Wanted,
        signals: &mpsc::Sender<Signal>,
    ) -> Result<Arc<Connection>, Failure> {
        let link = http::open(
            remote,
            self.mux(wanted, signals),
            self.config.connect_timeout,
        )?;
        self.greet(link, wanted, None).await
    }

    async fn over_sse(
        &self,
        remote: &Remote,
        wanted: &Wanted,
        signals: &mpsc::Sender<Signal>,
    ) -> Result<Arc<Connection>, Failure> {
        let mux = self.mux(wanted, signals);
        let link = sse::open(remote, mux, self.config.connect_timeout).await?;
        // HTTP+SSE exists in the legacy era only.
        let legacy = Wanted {
            era: EraPin::Legacy,
            ..wanted.clone()
        };
        self.greet(link, &legacy, None).await
    }

    async fn greet(
        &self,
        link: Arc<Link>,
        wanted: &Wanted,
        pid: Option<u32>,
    ) -> Result<Arc<Connection>, Failure> {
        let closed_early = link.mux.closed.clone().drop_guard();
        let hello = handshake::greet(&link, wanted.era, &wanted.capabilities).await?;
        closed_early.disarm();
        // A link is greeted once.
        drop(link.mux.spoken.set(hello.revision));
        Ok(Arc::new(Connection {
            link,
            hello,
            pid,
            level: Mutex::default(),
        }))
    }

    fn mux(&self, wanted: &Wanted, signals: &mpsc::Sender<Signal>) -> Arc<Mux> {
        let settings = Settings {
            server: self.server.clone(),
            request_bytes_max: self.config.limits.request,
            response_bytes_max: self.config.limits.response,
            ask_timeout: self.config.max_total_timeout,
            roots: self.config.roots.clone(),
        };
        Mux::new(
            settings,
            wanted.home.clone(),
            signals.clone(),
            self.tasks.clone(),
        )
    }

    /// Keeps the catalog's instance up for as long as the gateway runs.
    pub(crate) async fn keep_up(self: Arc<Self>, instance: Arc<Instance>) {
        let mut backoff = Backoff::new(self.config.retry);
        while !instance.stop.is_cancelled() {
            instance.set(Phase::Connecting);
            let wanted = Wanted {
                era: self.config.era,
                capabilities: Raw::from_static("{}"),
                home: None,
            };
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let failure = match attempt {
                Ok((connection, signals)) => {
                    self.shared.unlearn();
                    self.shared.learn(connection.era());
                    let up = Instant::now();
                    self.serve(&instance, connection, signals).await;
                    if instance.stop.is_cancelled() {
                        return;
                    }
                    backoff.after_uptime(up.elapsed());
                    self.shared.count_restart();
                    match instance.phase() {
                        Phase::Down { failure } => failure,
                        Phase::Connecting | Phase::Ready(_) => return,
                    }
                }
                Err(failure) => {
                    instance.set(Phase::Down {
                        failure: failure.clone(),
                    });
                    failure
                }
            };
            let delay = backoff.next_delay();
            tracing::warn!(server = %self.server, %failure, retry_in = ?delay, "server is down");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = instance.stop.cancelled() => return,
            }
        }
    }

    /// Keeps an instance beside the catalog's until it fails, ends, or is idle for long enough.
    pub(crate) async fn keep_while_used(self: Arc<Self>, instance: Arc<Instance>, wanted: Wanted) {
        let home_ended = wanted.home.as_ref().map(|session| session.ended.clone());
        let attempt = tokio::select! {
            attempt = self.connect(&wanted) => attempt,
            () = instance.stop.cancelled() => return,
        };
        match attempt {
            Ok((connection, signals)) => {
                self.shared.learn(connection.era());
                let watch = idle_watch(&instance, self.config.idle_timeout, home_ended);
                tokio::select! {
                    () = self.serve(&instance, Arc::clone(&connection), signals) => {}
                    () = watch => connection.end("it was idle").await,
                }
                let reason = "the connection ended".to_owned();
                instance.set(Phase::Down {
                    failure: Failure::Lost { reason },
                });
            }
            Err(failure) => instance.set(Phase::Down { failure }),
        }
    }

    async fn serve(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
        mut signals: mpsc::Receiver<Signal>,
    ) {
        instance.set(Phase::Ready(Arc::clone(&connection)));
        loop {
            tokio::select! {
                biased;
                () = instance.stop.cancelled() => {
                    connection.end("it is being stopped").await;
                    break;
                }
                () = connection.closed().cancelled() => break,
                Some(signal) = signals.recv() => self.shared.signal(signal),
            }
        }
        instance.set(Phase::Down {
            failure: connection.link.mux.lost(),
        });
    }
}

async fn idle_watch(instance: &Instance, limit: Duration, home_ended: Option<CancellationToken>) {
    let ended = async {
        match home_ended {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let idle = async {
        loop {
            let left = limit.saturating_sub(instance.idle());
            if left.is_zero() && !instance.is_busy() {
                return;
            }
            tokio::time::sleep(left.max(Duration::from_secs(1))).await;
        }
    };
    tokio::select! { () = ended => {}, () = idle => {} }
}

/// Exponential delays with jitter, from the start again after a stable time.
#[derive(Debug)]
struct Backoff {
    retry: Retry,
    failures: u32,
}

impl Backoff {
    fn new(retry: Retry) -> Self {
        Self { retry, failures: 0 }
    }

    /// A connection that held longer than the longest delay clears the count.
    fn after_uptime(&mut self, up: Duration) {
        if up > self.retry.max {
            self.failures = 0;
        }
    }

    fn next_delay(&mut self) -> Duration {
        let factor = 1u32 << self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let full = self.retry.base.saturating_mul(factor).min(self.retry.max);
        full.mul_f64(1.0 - self.retry.jitter * fraction())
    }
}

/// A random number from 0 to 1; the quality of UUIDs is more than enough for jitter.
fn fraction() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_bytes()[15]) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let retry = Retry {
            base: Duration::from_millis(100),
            max: Duration::from_millis(500),
            jitter: 0.0,
        };
        let mut backoff = Backoff::new(retry);
        let delays: Vec<_> = (0..4).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 500]);
        backoff.after_uptime(Duration::from_millis(400));
        assert_eq!(
            backoff.next_delay().as_millis(),
            500,
            "it did not hold long enough"
        );
        backoff.after_uptime(Duration::from_secs(1));
        assert_eq!(backoff.next_delay().as_millis(), 100);
    }

    #[test]
    fn jitter_only_shortens() {
        let retry = Retry {
            base: Duration::from_secs(1),
            max: Duration::from_secs(1),
            jitter: 0.5,
        };
        let mut backoff = Backoff::new(retry);
        for _ in 0..100 {
            let delay = backoff.next_delay();
            assert!((Duration::from_millis(500)..=Duration::from_secs(1)).contains(&delay));
        }
    }
}
