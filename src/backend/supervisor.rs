//! Keeps connections to one server alive: connects, greets, waits, backs off, connects again.
//!
//! An [`Instance`] is one connection as its users know it: a phase they can wait on. The catalog's
//! instance is kept up for ever; others start on the first call and end when idle.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
    mcp::{Era, Level, Method, Raw},
    names::ServerName,
    session::Session,
    task::Tasks,
};

/// Signals of one connection that may wait for the gateway.
const SIGNALS_MAX: usize = 64;
static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

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
    /// Whether its stream of list changes was opened.
    followed: AtomicBool,
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

    /// Whether the stream of list changes was opened before; from now on it counts as open.
    pub(crate) fn is_followed(&self) -> bool {
        self.followed.swap(true, Ordering::Relaxed)
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
    /// Unique in this process.
    pub(crate) id: u64,
    /// Failures in a row before and with this one, and when the next attempt may be made.
    backoff: Mutex<(u32, Option<Instant>)>,
    /// Resources that clients subscribed to through it, in the server's spelling.
    subscriptions: Mutex<BTreeSet<String>>,
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
            id: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
            backoff: Mutex::default(),
            subscriptions: Mutex::default(),
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
        self.touch();
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

    /// Counts as used just now.
    pub(crate) fn touch(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used_ms.store(now, Ordering::Relaxed);
    }

    /// Whether another connection in its place has to wait, since this one failed just now.
    pub(crate) fn must_wait(&self) -> bool {
        let retry_at = locked(&self.backoff).1;
        retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// Failures in a row that a successor goes on counting from.
    pub(crate) fn failures(&self) -> u32 {
        locked(&self.backoff).0
    }

    pub(crate) fn set_failures(&self, failures: u32) {
        locked(&self.backoff).0 = failures;
    }

    /// Completes when the next attempt may be made.
    async fn retry_time(&self) {
        let retry_at = locked(&self.backoff).1;
        if let Some(at) = retry_at {
            tokio::time::sleep_until(at).await;
        }
    }

    fn note_failure(&self, retry: Retry, up: Duration) {
        let mut backoff = locked(&self.backoff);
        let mut delays = Backoff {
            retry,
            failures: backoff.0,
        };
        delays.after_uptime(up);
        let delay = delays.next_delay();
        *backoff = (delays.failures, Some(Instant::now() + delay));
    }

    /// Notes a subscription to a resource: it keeps the connection, and outlives it.
    pub(crate) fn subscribed(&self, uri: String) {
        locked(&self.subscriptions).insert(uri);
    }

    /// Notes the end of a subscription.
    pub(crate) fn unsubscribed(&self, uri: &str) {
        locked(&self.subscriptions).remove(uri);
    }

    fn subscriptions(&self) -> Vec<String> {
        locked(&self.subscriptions).iter().cloned().collect()
    }

    /// How long ago it was last used.
    pub(crate) fn idle(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(used)
    }

    pub(crate) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Whether calls are under way, or clients are subscribed to its resources.
    pub(crate) fn is_busy(&self) -> bool {
        if !locked(&self.subscriptions).is_empty() {
            return true;
        }

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
        link.mux.spoken.set(hello.revision).ok();
        Ok(Arc::new(Connection {
            link,
            hello,
            pid,
            level: Mutex::default(),
            followed: AtomicBool::new(false),
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
        let _down = DownAtTheEnd(&instance);
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
                    let mux = Arc::clone(&connection.link.mux);
                    self.renew_subscriptions(&instance, &connection);
                    self.serve(&instance, connection, signals).await;
                    if instance.stop.is_cancelled() {
                        return;
                    }
                    backoff.after_uptime(up.elapsed());
                    self.shared.count_restart();
                    let failure = mux.lost();
                    // A server that has only forgotten us is there: callers wait for the greeting.
                    instance.set(if mux.is_forgotten() {
                        Phase::Connecting
                    } else {
                        Phase::Down {
                            failure: failure.clone(),
                        }
                    });
                    failure
                }
                Err(_) if instance.stop.is_cancelled() => return,
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
        let _down = DownAtTheEnd(&instance);
        let home_ended = wanted.home.as_ref().map(|session| session.ended.clone());
        loop {
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let (connection, signals) = match attempt {
                Ok(connected) => connected,
                Err(failure) => {
                    instance.note_failure(self.config.retry, Duration::ZERO);
                    return instance.set(Phase::Down { failure });
                }
            };
            self.shared.learn(connection.era());
            self.renew_subscriptions(&instance, &connection);
            let up = Instant::now();
            let idle = idle_watch(&instance, self.config.idle_timeout, home_ended.clone());
            tokio::select! {
                () = self.serve(&instance, Arc::clone(&connection), signals) => {}
                () = idle => {
                    // New callers find another connection while this one says goodbye.
                    instance.set(Phase::Down { failure: Failure::SessionGone });
                    return connection.end("it was idle").await;
                }
            }
            let failure = connection.link.mux.lost();
            let forgotten = connection.link.mux.is_forgotten();
            if !forgotten {
                instance.note_failure(self.config.retry, up.elapsed());
            }
            if instance.stop.is_cancelled() || !(forgotten || instance.is_busy()) {
                return instance.set(Phase::Down { failure });
            }
            // A server that has only forgotten us is there; a lost one is waited for, since
            // clients are subscribed to what it has.
            instance.set(if forgotten {
                Phase::Connecting
            } else {
                Phase::Down { failure }
            });
            tokio::select! {
                () = instance.retry_time() => {}
                () = instance.stop.cancelled() => return,
            }
        }
    }

    /// Subscribes again to what clients subscribed to on an earlier connection.
    fn renew_subscriptions(&self, instance: &Instance, connection: &Arc<Connection>) {
        let uris = instance.subscriptions();
        if uris.is_empty() || connection.era() == Era::Modern {
            return;
        }
        let (connection, limit) = (Arc::clone(connection), self.config.timeout);
        self.tasks.spawn("renewed subscriptions", async move {
            for uri in uris {
                let params = Raw::from_value(&serde_json::json!({ "uri": uri }));
                let request = handshake::control(Method::ResourcesSubscribe, Some(params));
                let answer = timeout(limit, connection.link.request(request)).await;
                tracing::debug!(uri, ?answer, "subscribed again");
            }
        });
    }

    async fn serve(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
        mut signals: mpsc::Receiver<Signal>,
    ) {
        instance.set(Phase::Ready(Arc::clone(&connection)));
        let id = instance.id;
        loop {
            tokio::select! {
                biased;
                () = instance.stop.cancelled() => {
                    connection.end("it is being stopped").await;
                    break;
                }
                () = connection.closed().cancelled() => break,
                Some(signal) = signals.recv() => self.shared.signal(signal, id),
            }
        }
    }
}

/// Whoever waits for an instance that is no longer kept is told so.
struct DownAtTheEnd<'a>(&'a Instance);

impl Drop for DownAtTheEnd<'_> {
    fn drop(&mut self) {
        if !matches!(self.0.phase(), Phase::Down { .. }) {
            let reason = "it is being stopped".to_owned();
            self.0.set(Phase::Down {
                failure: Failure::Lost { reason },
            });
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
