//! Keeps connections to one server alive: connects, greets, waits, backs off, connects again.
//!
//! An [`Instance`] is one connection as its users know it: a phase they can wait on. The catalog's
//! instance is kept up for ever, asleep while nobody uses it where that is wanted; others start on
//! the first call and end when idle.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Failure, Shared,
    guard::Guard,
    handshake, health, http,
    instance::{Backoff, Connection, DownAtTheEnd, Instance, Phase},
    life::Event,
    link::Link,
    mux::{Mux, Settings, Signal},
    pipe, sse,
    stdio::{self, StderrTail},
    websocket,
    written::Written,
};
use crate::{
    config::{EraPin, Remote, Server, Transport},
    lock::lock,
    mcp::{Era, Method, Raw},
    names::ServerName,
    session::Session,
    task::Tasks,
};

/// Signals of one connection that may wait for the gateway.
const SIGNALS_MAX: usize = 64;
/// How long a server may take to open the stream for messages that belong to no call; some send
/// no headers before the first message.
const STANDING_PATIENCE: Duration = Duration::from_secs(1);
/// Lines on stdout that are no messages which are kept for the reason of a failure.
const ODD_LINES_MAX: usize = 3;
/// A start that takes longer is reported.
pub(super) const SLOW_START: Duration = Duration::from_secs(10);
/// Failed attempts to reconnect that callers wait through, where their deadline lets them.
pub(super) const ATTEMPTS_AWAITED: u32 = 3;
/// The reason of a server that sleeps.
const ASLEEP: &str = "idle, the next call wakes it";
/// Pause between looks whether an idle connection can end.
const IDLE_LOOK: Duration = Duration::from_millis(100);
/// Buffer of the in-process pipe to the builtin server, bytes.
const BUILTIN_PIPE_BYTES: usize = 64 * 1024;

/// What is needed to make connections to one server.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) server: ServerName,
    pub(super) written: Arc<Written>,
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
    /// The last of them, the latest at the end.
    tail: VecDeque<String>,
}

impl Odd {
    fn note(&mut self, line: &str) {
        self.count += 1;
        if self.tail.len() == ODD_LINES_MAX {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }

    pub(crate) fn last(&self) -> Option<&String> {
        self.tail.back()
    }

    /// Those that are known of the lines after the first `count`.
    pub(crate) fn since(&self, count: u64) -> Vec<String> {
        let fresh = usize::try_from(self.count - count).unwrap_or(ODD_LINES_MAX);
        let old = self.tail.len().saturating_sub(fresh);
        self.tail.iter().skip(old).cloned().collect()
    }
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
    /// What the config says of the server at present, for a look.
    fn config(&self) -> arc_swap::Guard<Arc<Server>> {
        self.written.now()
    }

    /// Connects and greets, within the time a start may take. A connection that nobody gets, since
    /// this is dropped before, is closed.
    pub(crate) async fn connect(
        &self,
        wanted: &Wanted,
    ) -> Result<(Arc<Connection>, mpsc::Receiver<Signal>), Failure> {
        let limit = self.config().startup_timeout;
        let (signals, receiver) = mpsc::channel(SIGNALS_MAX);
        let odd_before = self.odd().count;
        let attempt = Box::pin(timeout(limit, self.attempt(wanted, &signals)));
        let attempt = watched(attempt, || self.report_slow()).await;
        self.shared.set_slow(false);
        let connection = attempt.unwrap_or_else(|_| {
            Err(Failure::Startup {
                after: limit,
                odd: self.odd().since(odd_before),
            })
        })?;
        let closed_early = connection.closed().clone().drop_guard();
        if let Some(http) = connection.link.as_http()
            && connection.era() == Era::Legacy
        {
            let (opened, open) = oneshot::channel();
            self.tasks
                .spawn("standing stream", Arc::clone(http).listen(opened));
            // What a server says before the stream is open may be lost.
            drop(timeout(STANDING_PATIENCE, open).await);
        }
        closed_early.disarm();
        Ok((connection, receiver))
    }

    /// Says, here and in `/status`, that a start takes long.
    fn report_slow(&self) {
        self.shared.set_slow(true);
        let (odd, stderr) = (self.odd().clone(), self.stderr.last());
        tracing::warn!(
            server = %self.server,
            odd_lines = odd.count,
            last_odd_line = odd.last(),
            last_on_stderr = stderr,
            "server has not started within {SLOW_START:?}"
        );
    }

    /// What came on stdout and is no message.
    pub(crate) fn odd(&self) -> MutexGuard<'_, Odd> {
        lock(&self.odd_output)
    }

    async fn attempt(
        &self,
        wanted: &Wanted,
        signals: &mpsc::Sender<Signal>,
    ) -> Result<Arc<Connection>, Failure> {
        let config = self.written.load();
        match &config.transport {
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
                let link = websocket::open(remote, mux, config.connect_timeout).await?;
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
                    let second = self.over_stdio(command, &legacy, signals).await;
                    if second.is_err() {
                        // Two processes came to nothing; whoever asked notes one of them.
                        self.shared.note_futile_start();
                    }
                    second
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
        let odd_before = self.odd().count;
        let odd = Arc::clone(&self.odd_output);
        let note = move |line: &str| {
            lock(&odd).note(line);
        };
        let mux = self.mux(wanted, signals);
        let (link, pid) = stdio::open(command, &mux, self.stderr.clone(), &self.guard, note)?;
        let greeted = self.greet(link, wanted, Some(pid)).await;
        greeted.map_err(|failure| failure.with_odd(&self.odd().since(odd_before)))
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
            self.config().connect_timeout,
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
        let link = sse::open(remote, mux, self.config().connect_timeout).await?;
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
        let config = self.config();
        let settings = Settings {
            server: self.server.clone(),
            request_bytes_max: config.limits.request,
            response_bytes_max: config.limits.response,
            memory_max: config.limits.memory,
            ask_timeout: config.max_total_timeout,
            roots: config.roots.clone(),
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
        let mut backoff = Backoff::default();
        // Failed attempts that callers still wait through.
        let mut hope = 0;
        while !instance.stop.is_cancelled() {
            instance.set(Phase::Connecting);
            let wanted = Wanted {
                era: self.config().era,
                capabilities: Raw::from_static("{}"),
                home: None,
            };
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let (failure, event) = match attempt {
                Ok((connection, signals)) => {
                    let up = Instant::now();
                    let Some(failure) = self.serve_catalog(&instance, connection, signals).await
                    else {
                        continue;
                    };
                    self.note_uptime(up.elapsed());
                    backoff.after_uptime(self.config().retry, up.elapsed());
                    hope = self.hope(backoff.failures());
                    (failure, Event::Lost)
                }
                Err(failure) => {
                    self.shared.count_failed_start();
                    self.shared.note_futile_start();
                    hope = hope.saturating_sub(1);
                    let event = Event::Unreachable.or_refused(&failure);
                    (failure, event)
                }
            };
            if instance.stop.is_cancelled() {
                return;
            }
            let held_back = self.shared.held_back();
            let is_hopeful = hope > 0 && failure.may_pass() && held_back.is_none();
            // A server that has only forgotten us is there: callers wait for the greeting.
            instance.set(if is_hopeful || failure == Failure::SessionGone {
                Phase::Connecting
            } else {
                let failure = held_back.unwrap_or_else(|| failure.clone());
                Phase::Down { failure }
            });
            self.shared.life.take(event, Some(failure.to_string()));
            let delay = backoff.next_delay(self.config().retry);
            let retry_in = for_people(delay.max(self.shared.start_wait()));
            tracing::debug!(server = %self.server, %failure, ?retry_in, "server is down");
            tokio::select! {
                () = self.pause(delay) => {}
                () = instance.stop.cancelled() => return,
            }
            self.shared.note_restart();
        }
    }

    /// Serves the catalog's connection until it ends; says why it did, unless it slept since then
    /// and was woken, or is being stopped.
    async fn serve_catalog(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
        signals: mpsc::Receiver<Signal>,
    ) -> Option<Failure> {
        self.shared.note_start();
        self.shared.unlearn();
        self.shared.learn(connection.era());
        let reason = "its lists are being read".to_owned();
        self.shared.life.take(Event::Greeted, Some(reason));
        let mux = Arc::clone(&connection.link.mux);
        self.renew_subscriptions(instance, &connection);
        let slept = self.serve_or_sleep(instance, connection, signals).await;
        (!slept).then(|| mux.lost())
    }

    /// Waits for `delay` before the next attempt, and for as long as too many came to nothing; no
    /// longer than the config says meanwhile.
    async fn pause(&self, delay: Duration) {
        let (start, mut rewrites) = (Instant::now(), self.written.rewrites());
        loop {
            let delay = delay.min(self.config().retry.max);
            let left = delay.saturating_sub(start.elapsed());
            let left = left.max(self.shared.start_wait());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(left) => {}
                () = rewrites.changed() => {}
            }
        }
    }

    /// How many failed attempts to reconnect callers wait through, after so many `delays` in a row:
    /// whoever calls while a server is started again does not notice.
    fn hope(&self, delays: u32) -> u32 {
        if self.config().grace.is_zero() {
            return 0;
        }
        ATTEMPTS_AWAITED.saturating_sub(delays)
    }

    /// Notes how long a connection held.
    fn note_uptime(&self, up: Duration) {
        if up < self.config().retry.stable_after {
            self.shared.note_futile_start();
        }
    }

    /// Serves until the connection ends. Where its program may sleep it does so once nobody uses
    /// it, until a call wakes it or the config does; whether that happened.
    async fn serve_or_sleep(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
        signals: mpsc::Receiver<Signal>,
    ) -> bool {
        let mux = Arc::clone(&connection.link.mux);
        let hello = Arc::new(connection.hello.clone());
        tokio::select! {
            () = self.serve(instance, connection, signals, Some(&*self.shared)) => return false,
            () = self.unused(instance, &mux) => {}
        }
        let reason = ASLEEP.to_owned();
        self.shared.life.take(Event::FellAsleep, Some(reason));
        tokio::select! {
            () = instance.sleep(hello) => {}
            () = self.sleeps_no_more() => {}
            () = instance.stop.cancelled() => {}
        }
        true
    }

    /// Completes when the config says that it does not sleep.
    async fn sleeps_no_more(&self) {
        let mut rewrites = self.written.rewrites();
        while self.config().sleeps {
            rewrites.changed().await;
        }
    }

    /// Ends the link once no client has used it for as long as it is kept; completes then. What we
    /// ask ourselves is no use of it, but is waited for.
    async fn unused(&self, instance: &Instance, mux: &Mux) {
        instance.touch();
        let mut rewrites = self.written.rewrites();
        loop {
            if !self.config().sleeps {
                rewrites.changed().await;
                continue;
            }
            idle_watch(instance, &self.written, None).await;
            let sleeps = self.config().sleeps;
            if sleeps && self.shared.is_read() && mux.close_if_unused("it was idle") {
                return;
            }
            sleep(IDLE_LOOK).await;
        }
    }

    /// Keeps an instance beside the catalog's until it fails, ends, or is idle for long enough.
    pub(crate) async fn keep_while_used(self: Arc<Self>, instance: Arc<Instance>, wanted: Wanted) {
        let _down = DownAtTheEnd(&instance);
        let home_ended = wanted.home.as_ref().map(|session| session.ended.clone());
        if let Some(failure) = self.shared.held_back() {
            return instance.set(Phase::Down { failure });
        }
        loop {
            let attempt = tokio::select! {
                attempt = self.connect(&wanted) => attempt,
                () = instance.stop.cancelled() => return,
            };
            let (connection, signals) = match attempt {
                Ok(connected) => connected,
                Err(failure) => {
                    self.shared.note_futile_start();
                    instance.note_failure(self.config().retry, Duration::ZERO);
                    return instance.set(Phase::Down { failure });
                }
            };
            self.shared.learn(connection.era());
            self.renew_subscriptions(&instance, &connection);
            let up = Instant::now();
            let idle = idle_watch(&instance, &self.written, home_ended.clone());
            tokio::select! {
                () = self.serve(&instance, Arc::clone(&connection), signals, None) => {}
                () = idle => {
                    // New callers find another connection while this one says goodbye.
                    instance.set(Phase::Down { failure: Failure::SessionGone });
                    return connection.end("it was idle").await;
                }
            }
            let failure = connection.link.mux.lost();
            let forgotten = connection.link.mux.is_forgotten();
            if !forgotten && !instance.stop.is_cancelled() {
                self.note_uptime(up.elapsed());
                instance.note_failure(self.config().retry, up.elapsed());
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
            tokio::select! {
                () = sleep(self.shared.start_wait()) => {}
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
        let (connection, limit) = (Arc::clone(connection), self.config().timeout);
        self.tasks.spawn("renewed subscriptions", async move {
            for uri in uris {
                let params = Raw::from_value(&serde_json::json!({ "uri": uri }));
                let request = handshake::control(Method::ResourcesSubscribe, Some(params));
                let answer = timeout(limit, connection.link.request(&request)).await;
                tracing::debug!(uri, ?answer, "subscribed again");
            }
        });
    }

    async fn serve(
        &self,
        instance: &Instance,
        connection: Arc<Connection>,
        mut signals: mpsc::Receiver<Signal>,
        shown: Option<&Shared>,
    ) {
        instance.set(Phase::Ready(Arc::clone(&connection)));
        let id = instance.id;
        let mut death = pin!(health::until_dead(&connection, &self.written, shown));
        loop {
            tokio::select! {
                biased;
                () = instance.stop.cancelled() => {
                    connection.end("it is being stopped").await;
                    break;
                }
                () = connection.closed().cancelled() => break,
                reason = &mut death => {
                    connection.end(&reason).await;
                    break;
                }
                Some(signal) = signals.recv() => self.shared.signal(signal, id),
            }
        }
    }
}

/// Calls `slow` once when `start` takes longer than [`SLOW_START`].
async fn watched<T>(mut start: impl Future<Output = T> + Unpin, slow: impl FnOnce()) -> T {
    tokio::select! {
        biased;
        started = &mut start => return started,
        () = sleep(SLOW_START) => slow(),
    }
    start.await
}

/// `delay` without more digits than anyone reads.
fn for_people(delay: Duration) -> Duration {
    let step = if delay < Duration::from_secs(1) {
        10
    } else {
        100
    };
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis.saturating_add(step / 2) / step * step)
}

async fn idle_watch(instance: &Instance, written: &Written, home_ended: Option<CancellationToken>) {
    let ended = async {
        match home_ended {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    };
    let idle = async {
        let mut rewrites = written.rewrites();
        loop {
            let left = written.now().idle_timeout.saturating_sub(instance.idle());
            if left.is_zero() && !instance.is_busy() {
                return;
            }
            tokio::select! {
                () = sleep(left.max(Duration::from_secs(1))) => {}
                () = rewrites.changed() => {}
            }
        }
    };
    tokio::select! { () = ended => {}, () = idle => {} }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_rounded_for_people() {
        let check = |micros: u64, expect: &str| {
            let shown = format!("{:?}", for_people(Duration::from_micros(micros)));
            assert_eq!(shown, expect, "{micros}");
        };
        check(499_607, "500ms");
        check(84_999, "80ms");
        check(3_000, "0ns");
        check(995_000, "1s");
        check(12_345_678, "12.3s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_is_slow_after_ten_seconds() {
        let check = async |millis: u64, expect: u32| {
            let mut reports = 0;
            let start = Box::pin(sleep(Duration::from_millis(millis)));
            watched(start, || reports += 1).await;
            assert_eq!(reports, expect, "{millis} ms");
        };
        check(9_999, 0).await;
        check(10_001, 1).await;
        check(60_000, 1).await;
        check(0, 0).await;
    }

    #[test]
    fn the_last_odd_lines_of_an_attempt_are_its_own() {
        let mut odd = Odd::default();
        let check = |odd: &Odd, count: u64, expect: &[&str]| {
            assert_eq!(odd.since(count), expect, "{odd:?} after {count}");
        };
        check(&odd, 0, &[]);
        odd.note("a");
        check(&odd, 0, &["a"]);
        check(&odd, 1, &[]);
        for line in ["b", "c", "d"] {
            odd.note(line);
        }
        check(&odd, 0, &["b", "c", "d"]);
        check(&odd, 3, &["d"]);
        assert_eq!(odd.last().map(String::as_str), Some("d"));
    }
}
