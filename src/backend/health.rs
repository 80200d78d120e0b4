//! Health checks: whether a connection that nobody hears from still has a server at its end.
//!
//! Run by `supervisor` beside each connection. Whatever the server says counts as a sign of life, so
//! that nothing is sent while calls are answered. A check that is missed makes the server
//! `degraded`; after enough of them in a row the connection is ended and made anew. Many servers do
//! one thing at a time: while a call is under way that may still be answered, none is ended.
//!
//! An answer that only a server of another era would give is looked into whatever is asked otherwise,
//! and be it nothing.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Failure, Shared,
    handshake::{self, control},
    instance::Connection,
    life::{Event, State},
    lineage::Lineage,
    mux::Mux,
    written::{Rewrites, Written},
};
use crate::{
    config::{Health, Probe, Server},
    lock::lock,
    mcp::{Era, Method, Outcome, Raw},
};

/// Least time from one check to another that a call which failed leads to.
const HURRIED_PAUSE: Duration = Duration::from_secs(1);

/// Why a connection ends whose server is another one.
const REPLACED: &str = "another server has taken its place";

/// That a call was answered as if another server were there: a doubt still when it is dropped.
struct Doubt<'m>(&'m Mux);

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        self.0.doubt();
    }
}

/// Checks a connection as the config says at present, for as long as the server gives signs of
/// life; then says why it is to be ended. `lineage` is told what is found.
pub(super) async fn until_dead(
    connection: &Connection,
    written: &Written,
    shared: &Shared,
    lineage: &Lineage,
) -> String {
    let mut rewrites = written.rewrites();
    // What was missed is missed, whatever the config says afterwards.
    let mut misses = Misses::default();
    loop {
        let watch = Watch {
            connection,
            written,
            health: written.now().health,
            shared,
            lineage,
        };
        tokio::select! {
            reason = watch.until_dead(&mut misses) => return reason,
            reason = watch.until_another() => return reason,
            () = watch.is_outdated(&mut rewrites) => {}
        }
    }
}

/// The watch over a connection while `health` says the same.
struct Watch<'a> {
    connection: &'a Connection,
    written: &'a Written,
    health: Health,
    shared: &'a Shared,
    lineage: &'a Lineage,
}

impl Watch<'_> {
    /// Completes when `health` says something else.
    async fn is_outdated(&self, rewrites: &mut Rewrites) {
        while self.written.now().health == self.health {
            rewrites.changed().await;
        }
    }

    async fn until_dead(&self, misses: &mut Misses) -> String {
        let (health, mux) = (&self.health, &self.connection.link.mux);
        if health.probe == Probe::Off {
            if misses.count > 0 {
                // No check will find that it answers.
                self.is_well_again(misses);
            }
            return std::future::pending().await;
        }
        let mut checked = None;
        loop {
            // A refusal is no sign of life, and no reason to ask again at once.
            let silence =
                checked.map_or(mux.silence(), |at: Instant| mux.silence().min(at.elapsed()));
            let pause = if misses.count == 0 {
                health.interval.saturating_sub(silence)
            } else {
                health.interval
            };
            let in_a_hurry = tokio::select! {
                () = sleep(pause) => false,
                () = self.suspicion(checked) => true,
            };
            if in_a_hurry {
                self.shared.suspect_from(self.lineage);
            }
            if misses.latest.is_some_and(|at| mux.silence() < at.elapsed()) {
                self.is_well_again(misses);
            }
            if !in_a_hurry && mux.silence() < health.interval {
                continue;
            }
            let finding = check(self.connection, health.probe, health.timeout).await;
            checked = Some(Instant::now());
            let is_over = self.connection.closed().is_cancelled();
            if !is_over {
                lock(&self.lineage.checks).note(&finding);
            }
            match finding {
                Finding::Well => {
                    if in_a_hurry {
                        self.shared.is_there(self.lineage);
                    }
                    let is_refused = self.lineage.life.state() == State::NeedsReauth;
                    if misses.count > 0 || is_refused {
                        self.is_well_again(misses);
                    }
                }
                // Whoever keeps the connection knows why it ended.
                Finding::Another | Finding::Missed(_) | Finding::Refused(_) if is_over => {
                    return std::future::pending().await;
                }
                Finding::Another => return REPLACED.to_owned(),
                Finding::Refused(refusal) => self.tell(Event::Refused, refusal.to_string()),
                Finding::Missed(failure) => {
                    misses.note();
                    self.shared.suspect_from(self.lineage);
                    let count = misses.count;
                    let text = format!("it missed {count} health checks in a row: {failure}");
                    self.tell(Event::Missed, text);
                    if count >= health.failures && !self.may_answer() {
                        let cause = failure.for_client();
                        return format!("it missed {count} health checks in a row: {cause}");
                    }
                }
            }
        }
    }

    /// Completes when a call was answered as if another server had taken the place of the one that was
    /// greeted, and that is so.
    async fn until_another(&self) -> String {
        if self.health.probe == Probe::Ping {
            // Its checks find out.
            return std::future::pending().await;
        }
        loop {
            let mux = &self.connection.link.mux;
            mux.doubted().await;
            // Given up half way, it remains a doubt.
            let doubt = Doubt(mux);
            let finding = check(self.connection, Probe::Ping, self.health.timeout).await;
            std::mem::forget(doubt);
            if self.connection.closed().is_cancelled() {
                return std::future::pending().await;
            }
            lock(&self.lineage.checks).note(&finding);
            if matches!(finding, Finding::Another) {
                return REPLACED.to_owned();
            }
            sleep(HURRIED_PAUSE).await;
        }
    }

    /// Completes when a call failed as if the server were gone, but not at once after a check, which
    /// was at `checked`: some servers answer every other call with such errors.
    async fn suspicion(&self, checked: Option<Instant>) {
        self.connection.link.mux.suspected().await;
        if let Some(at) = checked {
            sleep_until(at + HURRIED_PAUSE).await;
        }
    }

    /// Whether a call is under way that may still be answered.
    fn may_answer(&self) -> bool {
        let mux = &self.connection.link.mux;
        let is_patient = || mux.silence() < patience(&self.written.now());
        mux.waits_for_person() || mux.in_flight() > 0 && is_patient()
    }

    fn tell(&self, event: Event, reason: String) {
        self.lineage.life.take(event, Some(reason));
    }

    /// The way back to `connected` is a listing.
    fn is_well_again(&self, misses: &mut Misses) {
        *misses = Misses::default();
        self.shared.is_well_again_on(self.lineage);
    }
}

/// How long the most patient of its calls waits for a sign of life.
fn patience(config: &Server) -> Duration {
    let of_tools = config.tools.timeout.values().copied();
    of_tools.fold(config.timeout, Duration::max)
}

/// Health checks since the start, by what came of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Checks {
    /// Answered, in whatever way.
    pub answered: u64,
    /// Not answered in time, or not as a server does.
    pub missed: u64,
    /// Refused, since the server does not take our credential.
    pub unauthorized: u64,
}

impl Checks {
    fn note(&mut self, finding: &Finding) {
        let count = match finding {
            Finding::Missed(_) => &mut self.missed,
            Finding::Refused(_) => &mut self.unauthorized,
            Finding::Another | Finding::Well => &mut self.answered,
        };
        *count += 1;
    }

    /// Those of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            missed: self.missed + other.missed,
            unauthorized: self.unauthorized + other.unauthorized,
        }
    }
}

/// Checks missed since the last sign of life.
#[derive(Debug, Default)]
struct Misses {
    count: u32,
    latest: Option<Instant>,
}

impl Misses {
    fn note(&mut self) {
        self.count = self.count.saturating_add(1);
        self.latest = Some(Instant::now());
    }
}

/// What a check found.
#[derive(Debug)]
enum Finding {
    /// The server speaks another era than the one that was greeted.
    Another,
    Missed(Failure),
    /// The server is there and does not take our credential.
    Refused(Failure),
    Well,
}

async fn check(connection: &Connection, probe: Probe, after: Duration) -> Finding {
    let method = question(probe, connection);
    let is_list = !matches!(method, Method::Discover | Method::Ping);
    let params = (connection.era() == Era::Modern).then(|| {
        let params = format!(r#"{{"_meta":{{{}}}}}"#, handshake::own_envelope());
        Raw::parse(params).expect("our own JSON")
    });
    let request = control(&method, params);
    let answer = connection.link.request(&request);
    let answer = timeout(after, Box::pin(answer)).await;
    let answer = answer.unwrap_or(Err(Failure::Timeout {
        after,
        key: Some("health.timeout"),
    }));
    if !is_list && handshake::is_contradiction(connection.era(), &answer) {
        return Finding::Another;
    }
    finding(answer, is_list)
}

/// What is asked. 2026-07-28 has no `ping`; a server without lists has nothing to list.
fn question(probe: Probe, connection: &Connection) -> Method {
    let lists = [
        ("tools", Method::ToolsList),
        ("prompts", Method::PromptsList),
        ("resources", Method::ResourcesList),
    ];
    let capabilities = &connection.hello.capabilities;
    let list = lists
        .into_iter()
        .find(|(capability, _)| probe == Probe::List && capabilities.member(capability).is_some());
    match (list, connection.era()) {
        (Some((_, list)), _) => list,
        (None, Era::Legacy) => Method::Ping,
        (None, Era::Modern) => Method::Discover,
    }
}

/// Whoever answers is there; a list that is refused is none all the same.
fn finding(answer: Result<Outcome, Failure>, is_list: bool) -> Finding {
    match answer {
        Ok(Err(refusal)) if is_list => Finding::Missed(Failure::Garbled {
            what: format!("its list was refused: {}", refusal.as_str()),
        }),
        Ok(_) | Err(Failure::ResponseTooLarge { .. }) => Finding::Well,
        Err(Failure::Http { status, .. }) if status.is_client_error() && !is_list => Finding::Well,
        Err(refusal @ Failure::Unauthorized { .. }) => Finding::Refused(refusal),
        Err(failure) => Finding::Missed(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::Duration,
    };

    use indexmap::IndexMap;
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        backend::{
            Backend,
            breaker::Sign,
            guard::Guard,
            handshake::Hello,
            instance::Phase,
            link::Link,
            mux::{Mux, Settings},
            queued::Queued,
            updates::updates,
            views::{Outlet, Views},
        },
        config::{Auth, Remote, Transport},
        mcp::{Id, Message, Revision},
        names::ServerName,
        task::Tasks,
    };

    const SECOND: Duration = Duration::from_secs(1);

    /// Asked after 30 s, given 10 s, dead after 3 checks.
    fn server() -> Server {
        Server::example()
    }

    fn written() -> Arc<Written> {
        Written::new(&server())
    }

    /// A connection, and what is sent on it.
    fn connection() -> (Arc<Connection>, mpsc::Receiver<Queued>) {
        let (writer, sent) = mpsc::channel(16);
        let mux = Mux::new(Settings::example(), None, Tasks::new());
        let connection = Connection {
            link: Arc::new(Link::pipe(mux, writer)),
            hello: Hello {
                revision: Revision::LEGACY,
                capabilities: Raw::from_static("{}"),
                info: None,
                instructions: None,
            },
            pid: None,
            followed: AtomicBool::new(false),
        };
        (Arc::new(connection), sent)
    }

    fn read(message: Queued) -> Message {
        Message::parse(&message.take().expect("somebody waits for it")).unwrap()
    }

    /// Lets the server answer the request `id`.
    fn answer(connection: &Connection, id: &Id) {
        let answer = crate::mcp::envelope::response(Some(id), &Ok(Raw::from_static("{}")));
        let answer = Message::parse(&answer).unwrap();
        connection.link.incoming(answer, None);
    }

    fn shared() -> Shared {
        shared_by(&server())
    }

    fn shared_by(config: &Server) -> Shared {
        let name = ServerName::parse("x").unwrap();
        Shared::new(&name, config, &updates().0, &Tasks::new())
    }

    /// Calls hear of the end of their connection before whoever keeps it.
    #[tokio::test]
    async fn a_server_whose_connection_has_ended_is_disconnected() {
        let tasks = Tasks::new();
        let outlet = Outlet {
            updates: updates().0,
            views: Views::clear(),
        };
        let guard = Guard::new(None, &tasks);
        let name = ServerName::parse("x").unwrap();
        let backend = Backend::new(&name, &server(), &guard, &outlet, &tasks);
        let (connection, _sent) = connection();
        backend.catalog.set(Phase::Ready(Arc::clone(&connection)));
        backend.maker.shared.life().take(Event::Listed, None);
        assert_eq!(backend.state(), State::Connected);
        connection.link.mux.close("it exited");
        assert_eq!(backend.state(), State::Disconnected);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_noticed_in_time() {
        let (connection, _sent) = connection();
        let shared = shared();
        shared.life().take(Event::Listed, None);
        let start = Instant::now();
        let reason = until_dead(&connection, &written(), &shared, &shared.lineage).await;
        assert_eq!(
            reason,
            "it missed 3 health checks in a row: no answer within 10s (its `health.timeout`)"
        );
        // Three times 30 s of silence and 10 s of waiting.
        assert_eq!(start.elapsed(), SECOND * 120);
        assert_eq!(shared.life().state(), State::Degraded);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_while_the_server_speaks() {
        let (connection, mut sent) = connection();
        let (speaker, speaks) = (Arc::clone(&connection), Arc::new(AtomicBool::new(true)));
        let flag = Arc::clone(&speaks);
        Tasks::new().spawn("speaker", async move {
            while flag.load(Ordering::Relaxed) {
                sleep(SECOND * 20).await;
                speaker.link.mux.hear();
            }
        });
        let (written, shared) = (written(), shared());
        let mut watch = std::pin::pin!(until_dead(&connection, &written, &shared, &shared.lineage));
        assert!(timeout(SECOND * 600, &mut watch).await.is_err());
        assert!(sent.try_recv().is_err(), "nothing was asked");
        speaks.store(false, Ordering::Relaxed);
        let ping = tokio::select! {
            ping = timeout(SECOND * 60, sent.recv()) => ping.unwrap().unwrap().take().unwrap(),
            dead = watch => panic!("{dead}"),
        };
        let ping = String::from_utf8(ping.to_vec()).unwrap();
        assert!(ping.contains(r#""method":"ping""#), "{ping}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_between_begins_the_count_anew() {
        let (connection, mut sent) = connection();
        let answering = Arc::clone(&connection);
        // Every third check is answered.
        Tasks::new().spawn("server", async move {
            let mut count = 0;
            while let Some(request) = sent.recv().await {
                count += 1;
                let Message::Request(request) = read(request) else {
                    continue;
                };
                if count % 3 == 0 {
                    answer(&answering, &request.id);
                }
            }
        });
        let (written, shared) = (written(), shared());
        shared.life().take(Event::Listed, None);
        let watch = until_dead(&connection, &written, &shared, &shared.lineage);
        assert!(timeout(SECOND * 3600, watch).await.is_err());
        assert_eq!(
            shared.life().state(),
            State::Degraded,
            "a listing would end it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn suspicion_hurries() {
        let (connection, _sent) = connection();
        connection.link.mux.suspect();
        let (written, shared, start) = (written(), shared(), Instant::now());
        until_dead(&connection, &written, &shared, &shared.lineage).await;
        // The first check is at once.
        assert_eq!(start.elapsed(), SECOND * 90);
    }

    /// Behind a URL, what one connection reaches is there for all; each process of a program is another.
    #[tokio::test(start_paused = true)]
    async fn a_check_finds_the_server_there_for_all() {
        for (is_remote, expect) in [(true, "half_open"), (false, "open")] {
            let mut config = server();
            if is_remote {
                config.transport = Transport::Http(Remote {
                    url: "http://127.0.0.1/mcp".parse().unwrap(),
                    is_of_variable: false,
                    headers: IndexMap::new(),
                    auth: Auth::None,
                });
            }
            let shared = shared_by(&config);
            for _ in 0..config.breaker.failures {
                let passage = shared.breaker.enter(None, Instant::now()).unwrap();
                passage.end(Sign::Away).for_each(drop);
            }
            assert_eq!(shared.breaker.report().state, "open");
            let (connection, mut sent) = connection();
            connection.link.mux.suspect();
            let answering = async {
                while let Some(request) = sent.recv().await {
                    if let Message::Request(request) = read(request) {
                        return answer(&connection, &request.id);
                    }
                }
            };
            let written = Written::new(&config);
            let watch = until_dead(&connection, &written, &shared, &shared.lineage);
            let both = async { tokio::join!(watch, answering) };
            assert!(timeout(SECOND * 5, both).await.is_err());
            assert_eq!(shared.breaker.report().state, expect, "{is_remote}");
        }
    }

    /// A server that answers checks, but each call as if it were gone.
    #[tokio::test(start_paused = true)]
    async fn suspicions_hurry_one_check_a_second() {
        let (connection, mut sent) = connection();
        let (written, shared) = (written(), shared());
        let watch = until_dead(&connection, &written, &shared, &shared.lineage);
        let checks = async {
            let mut checks = 0;
            for _ in 0..1000 {
                connection.link.mux.suspect();
                sleep(Duration::from_millis(10)).await;
                while let Ok(request) = sent.try_recv() {
                    let Message::Request(request) = read(request) else {
                        panic!("it is asked");
                    };
                    answer(&connection, &request.id);
                    checks += 1;
                }
            }
            checks
        };
        let checks = tokio::select! {
            checks = checks => checks,
            dead = watch => panic!("{dead}"),
        };
        assert!((9..=11).contains(&checks), "{checks} in ten seconds");
    }

    /// A server that has missed a check, and what `change` then makes of the config; how often it is to
    /// be listed again an hour later, and for how long it was watched until it was dead.
    async fn rewritten(
        answers: bool,
        change: impl FnOnce(&mut Server),
    ) -> (u64, Option<Duration>, State) {
        let (connection, mut sent) = connection();
        let (written, shared, start) = (written(), shared(), Instant::now());
        shared.life().take(Event::Listed, None);
        let listings = *shared.changes.borrow();
        let mut watch = std::pin::pin!(until_dead(&connection, &written, &shared, &shared.lineage));
        assert!(timeout(SECOND * 50, &mut watch).await.is_err());
        assert_eq!(shared.life().state(), State::Degraded, "one is missed");
        while sent.try_recv().is_ok() {}
        if answers {
            let answering = Arc::clone(&connection);
            Tasks::new().spawn("server", async move {
                while let Some(request) = sent.recv().await {
                    if let Message::Request(request) = read(request) {
                        answer(&answering, &request.id);
                    }
                }
            });
        }
        let mut other = server();
        change(&mut other);
        written.rewrite(&other, || {});
        let dead = timeout(SECOND * 3600, watch).await.is_ok();
        let listings = *shared.changes.borrow() - listings;
        (
            listings,
            dead.then(|| start.elapsed()),
            shared.life().state(),
        )
    }

    /// What was missed before a reload is not forgotten by it.
    #[tokio::test(start_paused = true)]
    async fn other_settings_forget_no_miss() {
        let elsewhere = |config: &mut Server| config.grace = SECOND * 7;
        let rarely = |config: &mut Server| config.health.interval = SECOND * 60;
        let never = |config: &mut Server| config.health.probe = Probe::Off;
        let state = State::Degraded;
        // Whoever answers is listed again, which ends it.
        assert_eq!(rewritten(true, elsewhere).await, (1, None, state));
        assert_eq!(rewritten(true, rarely).await, (1, None, state));
        assert_eq!(rewritten(true, never).await, (1, None, state));
        assert_eq!(rewritten(false, never).await, (1, None, state));
        // Whoever does not is dead as soon as before: checks go on where they were.
        let dead = Some(SECOND * 120);
        assert_eq!(rewritten(false, elsewhere).await, (0, dead, state));
        // Two more, from second 50 on, with 60 s before each and 10 s of waiting.
        let dead = Some(SECOND * 190);
        assert_eq!(rewritten(false, rarely).await, (0, dead, state));
    }
}
