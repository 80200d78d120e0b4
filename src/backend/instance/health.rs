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
    handshake::{self, control_exchange},
    identity::InstanceIdentity,
};
use crate::{
    backend::{
        BackendError, SharedState,
        link::{era::suggests_modern, pending::PendingRequests},
        live_config::{ConfigUpdates, LiveConfig},
        state_machine::ServerEvent,
    },
    config::{Health, Probe, Server},
    lock::lock,
    mcp::{Era, Method, Outcome},
};

/// Least time from one check to another that a call which failed leads to.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Why a connection ends whose server is another one.
const REPLACED_REASON: &str = "the server was replaced by another one";

/// That a call was answered as if another server were there: a doubt still when it is dropped.
struct IdentityDoubt<'m>(&'m PendingRequests);

impl Drop for IdentityDoubt<'_> {
    fn drop(&mut self) {
        self.0.note_identity_doubt();
    }
}

/// Checks a connection as the config says at present, for as long as the server gives signs of
/// life; then says why it is to be ended. `identity` is told what is found.
pub(in crate::backend) async fn watch_until_dead(
    connection: &Connection,
    written: &LiveConfig,
    shared: &SharedState,
    identity: &InstanceIdentity,
) -> String {
    let mut rewrites = written.updates();
    // What was missed is missed, whatever the config says afterwards.
    let mut misses = Misses::default();
    loop {
        let watch = HealthWatch {
            connection,
            live_config: written,
            health: written.current().health,
            shared,
            identity,
        };
        tokio::select! {
            reason = watch.until_dead(&mut misses) => return reason,
            reason = watch.server_replaced() => return reason,
            () = watch.config_changed(&mut rewrites) => {}
        }
    }
}

/// The watch over a connection while `health` says the same.
struct HealthWatch<'a> {
    connection: &'a Connection,
    live_config: &'a LiveConfig,
    health: Health,
    shared: &'a SharedState,
    identity: &'a InstanceIdentity,
}

impl HealthWatch<'_> {
    /// Completes when `health` says something else.
    async fn config_changed(&self, rewrites: &mut ConfigUpdates) {
        while self.live_config.current().health == self.health {
            rewrites.changed().await;
        }
    }

    async fn until_dead(&self, misses: &mut Misses) -> String {
        let (health, requests) = (&self.health, &self.connection.link.requests);
        if health.probe == Probe::Off {
            if misses.count > 0 {
                // No check will find that it answers.
                self.note_recovered(misses);
            }
            return std::future::pending().await;
        }
        let mut checked = None;
        loop {
            // A refusal is no sign of life, and no reason to ask again at once.
            let silence = checked.map_or(requests.silent_for(), |at: Instant| {
                requests.silent_for().min(at.elapsed())
            });
            let pause = if misses.count == 0 {
                health.interval.saturating_sub(silence)
            } else {
                health.interval
            };
            let in_a_hurry = tokio::select! {
                () = sleep(pause) => false,
                () = self.suspected_death(checked) => true,
            };
            if in_a_hurry {
                self.shared.reconnect.note_suspicion(self.identity);
            }
            let latest = misses.latest;
            if latest.is_some_and(|at| requests.silent_for() < at.elapsed()) {
                self.note_recovered(misses);
            }
            if !in_a_hurry && requests.silent_for() < health.interval {
                continue;
            }
            let finding = run_check(self.connection, health.probe, health.timeout).await;
            checked = Some(Instant::now());
            let is_over = self.connection.closed().is_cancelled();
            if !is_over {
                lock(&self.identity.checks).note(&finding);
            }
            match finding {
                HealthFinding::Healthy => {
                    if in_a_hurry {
                        self.shared.note_reachable();
                    }
                    let state = self.identity.state_machine.state();
                    if misses.count > 0 || state.lacks_credential() {
                        self.note_recovered(misses);
                    }
                }
                // Whoever keeps the connection knows why it ended.
                HealthFinding::Replaced | HealthFinding::Missed(_) | HealthFinding::Refused(_)
                    if is_over =>
                {
                    return std::future::pending().await;
                }
                HealthFinding::Replaced => return REPLACED_REASON.to_owned(),
                HealthFinding::Refused(refusal) => {
                    self.report(ServerEvent::Refused, refusal.to_string());
                }
                HealthFinding::Missed(failure) => {
                    misses.note();
                    self.shared.reconnect.note_suspicion(self.identity);
                    let count = misses.count;
                    self.report(ServerEvent::CheckMissed, missed_reason(count, &failure));
                    if count >= health.failures && !self.has_live_call() {
                        return missed_reason(count, &failure.client_message());
                    }
                }
            }
        }
    }

    /// Completes when a call was answered as if another server had taken the place of the one that was
    /// greeted, and that is so.
    async fn server_replaced(&self) -> String {
        loop {
            let requests = &self.connection.link.requests;
            requests.identity_doubted().await;
            // Given up half way, it remains a doubt.
            let doubt = IdentityDoubt(requests);
            let finding = run_check(self.connection, Probe::Ping, self.health.timeout).await;
            std::mem::forget(doubt);
            if self.connection.closed().is_cancelled() {
                return std::future::pending().await;
            }
            lock(&self.identity.checks).note(&finding);
            if matches!(finding, HealthFinding::Replaced) {
                return REPLACED_REASON.to_owned();
            }
            sleep(CHECK_INTERVAL_MIN).await;
        }
    }

    /// Completes when a call failed as if the server were gone, but not at once after a check, which
    /// was at `checked`: some servers answer every other call with such errors.
    async fn suspected_death(&self, checked: Option<Instant>) {
        self.connection.link.requests.failure_suspected().await;
        if let Some(at) = checked {
            sleep_until(at + CHECK_INTERVAL_MIN).await;
        }
    }

    /// Whether a call is under way that may still be answered.
    fn has_live_call(&self) -> bool {
        let requests = &self.connection.link.requests;
        let may_answer = || requests.silent_for() < idle_timeout_max(&self.live_config.current());
        requests.waits_for_person() || requests.in_flight() > 0 && may_answer()
    }

    fn report(&self, event: ServerEvent, reason: String) {
        self.identity.state_machine.apply(event, Some(reason));
    }

    /// The way back to `connected` is a listing.
    fn note_recovered(&self, misses: &mut Misses) {
        *misses = Misses::default();
        self.shared.note_instance_recovered(self.identity);
    }
}

/// That `count` checks were missed, the last of them for `cause`.
fn missed_reason(count: u32, cause: &impl std::fmt::Display) -> String {
    let checks = match count {
        1 => "a health check".to_owned(),
        count => format!("{count} health checks in a row"),
    };
    format!("missed {checks}: {cause}")
}

/// How long the most patient of its calls waits for a sign of life.
fn idle_timeout_max(config: &Server) -> Duration {
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
            HealthFinding::Replaced | HealthFinding::Healthy => &mut self.answered,
        };
        *count += 1;
    }

    /// Those of both.
    pub(in crate::backend) fn merged(self, other: Self) -> Self {
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
    Replaced,
    Missed(BackendError),
    /// The server is there and does not take our credential.
    Refused(BackendError),
    Healthy,
}

async fn run_check(connection: &Connection, probe: Probe, after: Duration) -> HealthFinding {
    let method = probe_method(probe, connection);
    let is_list = !matches!(method, Method::Discover | Method::Ping);
    let answer = send_probe(connection, &method, after).await;
    if !is_list && is_other_server(connection, &answer, after).await {
        return HealthFinding::Replaced;
    }
    classify(answer, is_list)
}

/// What the server says to `method`.
async fn send_probe(
    connection: &Connection,
    method: &Method,
    after: Duration,
) -> Result<Outcome, BackendError> {
    // `server/discover` is of that era, whatever else is spoken.
    let is_modern = connection.era() == Era::Modern || *method == Method::Discover;
    let params = is_modern.then(handshake::gateway_params);
    let request = control_exchange(method, params);
    let answer = connection.link.request(&request);
    let answer = timeout(after, Box::pin(answer)).await;
    answer.unwrap_or(Err(BackendError::Timeout {
        after,
        key: Some("health.timeout"),
    }))
}

/// Whether this `answer` to `server/discover` or `ping` is that of a server that speaks another era than
/// the one that was greeted.
async fn is_other_server(
    connection: &Connection,
    answer: &Result<Outcome, BackendError>,
    after: Duration,
) -> bool {
    let era = connection.era();
    let is_remote = connection.link.as_http().is_some();
    if is_remote && era == Era::Legacy && suggests_modern(answer) {
        let discovered = send_probe(connection, &Method::Discover, after).await;
        return handshake::has_upgraded(connection.hello.revision, &discovered);
    }
    handshake::contradicts_era(era, answer)
}

/// What is asked. 2026-07-28 has no `ping`; a server without lists has nothing to list.
fn probe_method(probe: Probe, connection: &Connection) -> Method {
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
fn classify(answer: Result<Outcome, BackendError>, is_list: bool) -> HealthFinding {
    match answer {
        Ok(Err(refusal)) if is_list => HealthFinding::Missed(BackendError::ProtocolViolation {
            what: "the list request was refused".to_owned(),
            quoted: refusal.as_str().to_owned(),
        }),
        Ok(_) | Err(BackendError::NoMemory | BackendError::ResponseTooLarge { .. }) => {
            HealthFinding::Healthy
        }
        Err(BackendError::Http { status, .. }) if status.is_client_error() && !is_list => {
            HealthFinding::Healthy
        }
        Err(refusal @ BackendError::Unauthorized { .. }) => HealthFinding::Refused(refusal),
        Err(failure) => HealthFinding::Missed(failure),
    }
}

#[cfg(test)]
mod tests;
