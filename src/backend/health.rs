//! Health checks: whether a connection that nobody hears from still has a server at its end.
//!
//! Run by `supervisor` beside each connection. Whatever the server says counts as a sign of life, so
//! that nothing is sent while calls are answered. A check that is missed makes the server
//! `degraded`; after enough of them in a row the connection is ended and made anew. Many servers do
//! one thing at a time: while a call is under way that may still be answered, none is ended.

use tokio::time::{Instant, sleep, timeout};

use super::{
    Failure, Shared,
    handshake::{self, control},
    instance::Connection,
    life::{Event, State},
};
use crate::{
    config::{Health, Probe, Server},
    mcp::{Era, Method, Outcome, Raw},
};

/// Checks a connection for as long as the server gives signs of life; then says why it is to be
/// ended. `shown` is told what is found on the catalog's connection.
pub(super) async fn until_dead(
    connection: &Connection,
    config: &Server,
    shown: Option<&Shared>,
) -> String {
    let health = &config.health;
    let mux = &connection.link.mux;
    let mut misses = Misses::default();
    loop {
        let pause = if misses.count == 0 {
            health.interval.saturating_sub(mux.silence())
        } else {
            health.interval
        };
        let in_a_hurry = tokio::select! {
            () = sleep(pause) => false,
            () = mux.suspected() => true,
        };
        if misses.latest.is_some_and(|at| mux.silence() < at.elapsed()) {
            misses = Misses::default();
            list_again(shown);
        }
        if !in_a_hurry && mux.silence() < health.interval {
            continue;
        }
        match check(connection, health).await {
            Finding::Well => {
                let was_refused = shown.is_some_and(|s| s.life.state() == State::NeedsReauth);
                if misses.count > 0 || was_refused {
                    misses = Misses::default();
                    list_again(shown);
                }
            }
            // Whoever keeps the connection knows why it ended.
            Finding::Missed(_) | Finding::Refused(_) if connection.closed().is_cancelled() => {
                return std::future::pending().await;
            }
            Finding::Refused(refusal) => tell(shown, Event::Refused, refusal.to_string()),
            Finding::Missed(failure) => {
                misses.note();
                let count = misses.count;
                let text = format!("it missed {count} health checks in a row: {failure}");
                tell(shown, Event::Missed, text);
                let may_answer = mux.in_flight() > 0 && mux.silence() < config.timeout;
                if count >= health.failures && !may_answer {
                    let cause = failure.for_client();
                    return format!("it missed {count} health checks in a row ({cause})");
                }
            }
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

fn tell(shown: Option<&Shared>, event: Event, reason: String) {
    if let Some(shared) = shown {
        shared.life.take(event, Some(reason));
    }
}

/// The way back to `connected` is a listing.
fn list_again(shown: Option<&Shared>) {
    if let Some(shared) = shown {
        shared.ask_for_lists();
    }
}

/// What a check found.
#[derive(Debug)]
enum Finding {
    Missed(Failure),
    /// The server is there and does not take our credential.
    Refused(Failure),
    Well,
}

async fn check(connection: &Connection, health: &Health) -> Finding {
    let method = question(health.probe, connection);
    let is_list = !matches!(method, Method::Discover | Method::Ping);
    let params = (connection.era() == Era::Modern).then(|| {
        let params = format!(r#"{{"_meta":{{{}}}}}"#, handshake::own_envelope());
        Raw::parse(params).expect("our own JSON")
    });
    let after = health.timeout;
    let answer = connection.link.request(control(method, params));
    let answer = timeout(after, Box::pin(answer)).await;
    finding(answer.unwrap_or(Err(Failure::Timeout { after })), is_list)
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
        Err(Failure::Http { status, .. }) if status.is_client_error() => Finding::Well,
        Err(refusal @ Failure::Unauthorized { .. }) => Finding::Refused(refusal),
        Err(failure) => Finding::Missed(failure),
    }
}
