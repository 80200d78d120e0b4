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
    Connection,
    handshake::{self, control},
    identity::InstanceIdentity,
};
use crate::{
    backend::{
        BackendError, SharedState,
        link::{era::may_be_modern, pending::PendingRequests},
        live_config::{ConfigUpdates, LiveConfig},
        state_machine::{ServerEvent, ServerState},
    },
    config::{Health, Probe, Server},
    lock::lock,
    mcp::{Era, Method, Outcome},
};

/// Least time from one check to another that a call which failed leads to.
const HURRIED_PAUSE: Duration = Duration::from_secs(1);

/// Why a connection ends whose server is another one.
const REPLACED: &str = "another server has taken its place";

/// That a call was answered as if another server were there: a doubt still when it is dropped.
struct IdentityDoubt<'m>(&'m PendingRequests);

impl Drop for IdentityDoubt<'_> {
    fn drop(&mut self) {
        self.0.doubt();
    }
}

/// Checks a connection as the config says at present, for as long as the server gives signs of
/// life; then says why it is to be ended. `lineage` is told what is found.
pub(in crate::backend) async fn until_dead(
    connection: &Connection,
    written: &LiveConfig,
    shared: &SharedState,
    lineage: &InstanceIdentity,
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
            () = watch.until_outdated(&mut rewrites) => {}
        }
    }
}

/// The watch over a connection while `health` says the same.
struct Watch<'a> {
    connection: &'a Connection,
    written: &'a LiveConfig,
    health: Health,
    shared: &'a SharedState,
    lineage: &'a InstanceIdentity,
}

impl Watch<'_> {
    /// Completes when `health` says something else.
    async fn until_outdated(&self, rewrites: &mut ConfigUpdates) {
        while self.written.now().health == self.health {
            rewrites.changed().await;
        }
    }

    async fn until_dead(&self, misses: &mut Misses) -> String {
        let (health, mux) = (&self.health, &self.connection.link.mux);
        if health.probe == Probe::Off {
            if misses.count > 0 {
                // No check will find that it answers.
                self.note_well_again(misses);
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
                self.note_well_again(misses);
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
                HealthFinding::Well => {
                    if in_a_hurry {
                        self.shared.note_there(self.lineage);
                    }
                    let is_refused = self.lineage.life.state() == ServerState::NeedsReauth;
                    if misses.count > 0 || is_refused {
                        self.note_well_again(misses);
                    }
                }
                // Whoever keeps the connection knows why it ended.
                HealthFinding::Another | HealthFinding::Missed(_) | HealthFinding::Refused(_)
                    if is_over =>
                {
                    return std::future::pending().await;
                }
                HealthFinding::Another => return REPLACED.to_owned(),
                HealthFinding::Refused(refusal) => {
                    self.tell(ServerEvent::Refused, refusal.to_string());
                }
                HealthFinding::Missed(failure) => {
                    misses.note();
                    self.shared.suspect_from(self.lineage);
                    let count = misses.count;
                    self.tell(ServerEvent::Missed, missed(count, &failure));
                    if count >= health.failures && !self.may_answer() {
                        return missed(count, &failure.for_client());
                    }
                }
            }
        }
    }

    /// Completes when a call was answered as if another server had taken the place of the one that was
    /// greeted, and that is so.
    async fn until_another(&self) -> String {
        loop {
            let mux = &self.connection.link.mux;
            mux.doubted().await;
            // Given up half way, it remains a doubt.
            let doubt = IdentityDoubt(mux);
            let finding = check(self.connection, Probe::Ping, self.health.timeout).await;
            std::mem::forget(doubt);
            if self.connection.closed().is_cancelled() {
                return std::future::pending().await;
            }
            lock(&self.lineage.checks).note(&finding);
            if matches!(finding, HealthFinding::Another) {
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

    fn tell(&self, event: ServerEvent, reason: String) {
        self.lineage.life.take(event, Some(reason));
    }

    /// The way back to `connected` is a listing.
    fn note_well_again(&self, misses: &mut Misses) {
        *misses = Misses::default();
        self.shared.note_well_again_on(self.lineage);
    }
}

/// That `count` checks were missed, the last of them for `cause`.
fn missed(count: u32, cause: &impl std::fmt::Display) -> String {
    let checks = match count {
        1 => "a health check".to_owned(),
        count => format!("{count} health checks in a row"),
    };
    format!("it missed {checks}: {cause}")
}

/// How long the most patient of its calls waits for a sign of life.
fn patience(config: &Server) -> Duration {
    let of_tools = config.tools.timeout.values().copied();
    of_tools.fold(config.timeout, Duration::max)
}

/// Health checks since the start, by what came of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct HealthChecks {
    /// Answered, in whatever way.
    pub answered: u64,
    /// Not answered in time, or not as a server does.
    pub missed: u64,
    /// Refused, since the server does not take our credential.
    pub unauthorized: u64,
}

impl HealthChecks {
    fn note(&mut self, finding: &HealthFinding) {
        let count = match finding {
            HealthFinding::Missed(_) => &mut self.missed,
            HealthFinding::Refused(_) => &mut self.unauthorized,
            HealthFinding::Another | HealthFinding::Well => &mut self.answered,
        };
        *count += 1;
    }

    /// Those of both.
    pub(in crate::backend) fn plus(self, other: Self) -> Self {
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
enum HealthFinding {
    /// The server speaks another era than the one that was greeted.
    Another,
    Missed(BackendError),
    /// The server is there and does not take our credential.
    Refused(BackendError),
    Well,
}

async fn check(connection: &Connection, probe: Probe, after: Duration) -> HealthFinding {
    let method = question(probe, connection);
    let is_list = !matches!(method, Method::Discover | Method::Ping);
    let answer = ask(connection, &method, after).await;
    if !is_list && is_another(connection, &answer, after).await {
        return HealthFinding::Another;
    }
    finding(answer, is_list)
}

/// What the server says to `method`.
async fn ask(
    connection: &Connection,
    method: &Method,
    after: Duration,
) -> Result<Outcome, BackendError> {
    // `server/discover` is of that era, whatever else is spoken.
    let is_modern = connection.era() == Era::Modern || *method == Method::Discover;
    let params = is_modern.then(handshake::own_params);
    let request = control(method, params);
    let answer = connection.link.request(&request);
    let answer = timeout(after, Box::pin(answer)).await;
    answer.unwrap_or(Err(BackendError::Timeout {
        after,
        key: Some("health.timeout"),
    }))
}

/// Whether this `answer` to `server/discover` or `ping` is that of a server that speaks another era than
/// the one that was greeted.
async fn is_another(
    connection: &Connection,
    answer: &Result<Outcome, BackendError>,
    after: Duration,
) -> bool {
    let era = connection.era();
    let is_remote = connection.link.as_http().is_some();
    if is_remote && era == Era::Legacy && may_be_modern(answer) {
        let discovered = ask(connection, &Method::Discover, after).await;
        return handshake::has_moved_on(connection.hello.revision, &discovered);
    }
    handshake::is_contradiction(era, answer)
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
fn finding(answer: Result<Outcome, BackendError>, is_list: bool) -> HealthFinding {
    match answer {
        Ok(Err(refusal)) if is_list => HealthFinding::Missed(BackendError::Garbled {
            what: "its list was refused".to_owned(),
            quoted: refusal.as_str().to_owned(),
        }),
        Ok(_) | Err(BackendError::NoMemory | BackendError::ResponseTooLarge { .. }) => {
            HealthFinding::Well
        }
        Err(BackendError::Http { status, .. }) if status.is_client_error() && !is_list => {
            HealthFinding::Well
        }
        Err(refusal @ BackendError::Unauthorized { .. }) => HealthFinding::Refused(refusal),
        Err(failure) => HealthFinding::Missed(failure),
    }
}

#[cfg(test)]
mod tests;
