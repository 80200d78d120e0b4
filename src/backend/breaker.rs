//! A circuit breaker: after enough failures in a row calls are answered at once for a while, and
//! then one of them finds out whether the server is well again.
//!
//! [`Core`] decides and knows no clock; [`Breaker`] has a lock, for whoever takes calls to one server,
//! or to one replica of it. What counts is how the server does, never what it answers. A caller with
//! connections of its own has a core of its own as well: how those fail says little of other connections,
//! and holds back nobody else's calls. That no connection can be made concerns everybody, and so does that
//! those of one caller after another fail.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;

use super::{Failure, choice::Owner};
use crate::{
    clock::turn_time,
    config,
    lock::lock,
    names::{AgentId, ServerName},
    session::Client,
};
use machine::{Core, Pass};

mod machine;

/// Callers whose own failures are remembered. For one more, one that holds back nothing at present is
/// forgotten, which has least to be remembered and called least recently; where there is none, what fails is
/// counted as if the caller had no connections of its own.
const APART_MAX: usize = 4096;

/// What the end of a call says of its server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sign {
    /// There was no connection to be had: the server cannot be reached, or not be started.
    Away,
    /// There was no connection to be had: that of the caller has ended.
    Gone,
    /// It failed a call that it was connected for.
    Ill,
    /// Nothing: the call was given up, refused, or wrong in itself.
    None,
    /// It answered.
    Well,
}

impl Sign {
    /// What `failure` says; `away` tells whether there was no connection for the call.
    pub(crate) fn of(failure: &Failure, away: bool) -> Self {
        let unless_away = |sign| if away { sign } else { Self::Ill };
        match failure {
            // One that is still starting has not failed.
            Failure::Absent { cause } if matches!(**cause, Failure::Timeout { .. }) => Self::None,
            Failure::Absent { cause } => Self::of(cause, true),
            Failure::Connect { .. }
            | Failure::Directory { .. }
            | Failure::Spawn { .. }
            | Failure::Startup { .. }
            | Failure::Tls { .. } => Self::Away,
            Failure::Lost { .. } | Failure::Timeout { .. } | Failure::Unread { .. } => {
                unless_away(Self::Gone)
            }
            Failure::Http { status, .. } if status.is_server_error() => unless_away(Self::Away),
            // Nobody asked the server.
            Failure::BackingOff { .. }
            | Failure::BreakerOpen { .. }
            | Failure::Cancelled { .. }
            | Failure::Crossing(_)
            | Failure::Disabled
            | Failure::Echo
            | Failure::Era { .. }
            | Failure::Garbled { .. }
            | Failure::Header { .. }
            | Failure::Http { .. }
            | Failure::InstancesBusy { .. }
            | Failure::Overloaded { .. }
            | Failure::Refused { .. }
            | Failure::RequestTooLarge { .. }
            | Failure::ResponseTooLarge { .. }
            | Failure::Revision { .. }
            | Failure::SessionGone
            | Failure::StartsLimited { .. }
            | Failure::Unauthorized { .. }
            | Failure::Unknown
            | Failure::Unlisted { .. } => Self::None,
        }
    }
}

/// What became of a breaker by how a call ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Closed,
    Opened,
}

/// What a breaker shows of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct BreakerReport {
    /// `closed`, `open` or `half_open`.
    pub state: &'static str,
    /// Failures in a row; 0 while it is not closed.
    pub failures: u32,
    /// How often it has opened.
    pub opened: u64,
    /// Milliseconds until a call is let through again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
}

/// The breaker of one caller in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct CallerBreaker {
    /// The replica that its calls go to, where the server has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session, where each has its own connections, as the log and the audit call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How it stands.
    #[serde(flatten)]
    pub breaker: BreakerReport,
}

impl CallerBreaker {
    /// The same without whose it is.
    pub(super) fn without_details(mut self) -> Self {
        self.agent = None;
        self.session = None;
        self
    }
}

/// A caller with connections of its own.
#[derive(Debug)]
pub(super) struct Apart<'c> {
    pub(super) owner: Owner,
    pub(super) client: &'c Client,
}

impl<'c> Apart<'c> {
    /// Who is behind it: an agent, however many sessions it has, each with connections of its own.
    fn party(&self) -> Owner {
        match self.client.agent.id {
            AgentId::ANONYMOUS => self.owner.clone(),
            known => Owner::Agent(known),
        }
    }

    /// The agent and the session, as people know them.
    fn names(&self) -> (&'c str, Option<&'c str>) {
        let session = self.client.session.as_ref();
        let session = session.filter(|_| matches!(self.owner, Owner::Session(_)));
        let mark = session.map(|session| &*session.mark);
        (&self.client.agent.name, mark)
    }
}

/// A breaker that calls of many tasks pass.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<Cores>);

#[derive(Debug)]
struct Cores {
    settings: config::Breaker,
    server: Core,
    /// Of callers whose own connections failed.
    apart: HashMap<Owner, Own>,
    /// Who they are that failed since any call was answered: of one caller that concerns nobody else,
    /// and each further one counts once.
    ill: HashSet<Owner>,
}

/// The core of one caller.
#[derive(Debug)]
struct Own {
    core: Core,
    agent: String,
    session: Option<String>,
    /// When a call of the caller ended last.
    used: Instant,
}

impl Own {
    fn changed(&self, change: Change) -> Changed {
        Changed {
            change,
            agent: Some(self.agent.clone()),
            session: self.session.clone(),
        }
    }
}

/// What became of the breaker of a server, or of one of its callers where they are named.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Changed {
    change: Change,
    agent: Option<String>,
    session: Option<String>,
}

impl Changed {
    fn of_server(change: Change) -> Self {
        Self {
            change,
            agent: None,
            session: None,
        }
    }

    /// Says so in the log; `last` is the failure that led to it.
    pub(super) fn log(&self, server: &ServerName, last: Option<&Failure>) {
        let (agent, session) = (self.agent.as_deref(), self.session.as_deref());
        match self.change {
            Change::Opened => {
                let last = last.map(Failure::to_string);
                tracing::warn!(%server, agent, session, last, "the breaker has opened: calls are answered at once");
            }
            Change::Closed => {
                tracing::info!(%server, agent, session, "the breaker is closed again");
            }
        }
    }
}

impl Cores {
    /// Whether a call of `apart`, or of anybody, may go to the server; else, how long its caller should
    /// wait.
    fn ask(&mut self, apart: Option<&Apart<'_>>, now: Instant) -> Result<(Pass, Pass), Duration> {
        // Whom the server's holds back is on no trial of its own.
        if let Some(wait) = self.server.wait(now) {
            return Err(wait);
        }
        let own = apart.and_then(|apart| self.apart.get_mut(&apart.owner));
        let own = own.map_or(Ok(Pass::FIRST), |own| own.core.ask(now))?;
        Ok((self.server.ask(now)?, own))
    }

    /// Takes how a call ended; what became of both cores.
    fn tell(&mut self, passage: &Passage<'_, '_>, now: Instant) -> [Option<Changed>; 2] {
        let sign = passage.sign;
        if sign == Sign::Well {
            self.ill.clear();
        }
        let mut common = sign;
        let mut own = None;
        if let Some(apart) = &passage.apart
            && (!is_bad(sign) || self.has_room_for(&apart.owner, now))
        {
            common = self.common(apart, passage);
            own = self.tell_own(apart, passage, now);
        }
        let server = self.server.tell(&passage.pass, common, now);
        if server.is_some() {
            self.ill.clear();
        }
        [server.map(Changed::of_server), own]
    }

    /// What the end of a call of `apart` says of the server.
    fn common(&mut self, apart: &Apart<'_>, passage: &Passage<'_, '_>) -> Sign {
        let sign = passage.sign;
        if !is_bad(sign) || !self.server.hears(&passage.pass) {
            return sign;
        }
        if !self.server.is_closed() {
            // The caller's own connection answers nothing that concerns others: let another try.
            if sign == Sign::Gone {
                return Sign::None;
            }
            // Where it was to be found out whether the server can be reached, that is known.
            let is_answer = self.server.is_away();
            return if is_answer { Sign::Well } else { sign };
        }
        let is_first = self.ill.is_empty();
        let is_another = self.ill.len() >= APART_MAX || self.ill.insert(apart.party());
        if is_another && !is_first {
            Sign::Ill
        } else {
            Sign::None
        }
    }

    /// Takes how a call of `apart` ended, as far as that concerns no other caller.
    fn tell_own(
        &mut self,
        apart: &Apart<'_>,
        passage: &Passage<'_, '_>,
        now: Instant,
    ) -> Option<Changed> {
        let sign = match passage.sign {
            Sign::Away => Sign::None,
            sign @ (Sign::Gone | Sign::Ill | Sign::None | Sign::Well) => sign,
        };
        if is_bad(sign) && !self.apart.contains_key(&apart.owner) {
            let (agent, session) = apart.names();
            let own = Own {
                core: Core::new(self.settings),
                agent: agent.to_owned(),
                session: session.map(str::to_owned),
                used: now,
            };
            self.apart.insert(apart.owner.clone(), own);
        }
        let own = self.apart.get_mut(&apart.owner)?;
        own.used = now;
        let change = own.core.tell(&passage.own, sign, now)?;
        Some(own.changed(change))
    }

    /// Whether the failures of `owner` are or can be remembered; another is forgotten for it where none
    /// fits in.
    fn has_room_for(&mut self, owner: &Owner, now: Instant) -> bool {
        if self.apart.len() < APART_MAX || self.apart.contains_key(owner) {
            return true;
        }
        let may_go = self
            .apart
            .iter()
            .filter(|(_, own)| own.core.wait(now).is_none());
        let least = may_go.min_by_key(|(_, own)| (own.core.weight(), own.used));
        let Some(least) = least.map(|(owner, _)| owner.clone()) else {
            return false;
        };
        self.apart.remove(&least).is_some()
    }
}

impl Breaker {
    pub(crate) fn new(settings: config::Breaker) -> Self {
        Self(Mutex::new(Cores {
            settings,
            server: Core::new(settings),
            apart: HashMap::new(),
            ill: HashSet::new(),
        }))
    }

    /// Lets a call that begins `now` to the server, or says for how long not; `apart` is its caller,
    /// where that has connections of its own.
    ///
    /// # Errors
    /// [`Failure::BreakerOpen`].
    pub(super) fn enter<'c>(
        &self,
        apart: Option<Apart<'c>>,
        now: Instant,
    ) -> Result<Passage<'_, 'c>, Failure> {
        let asked = self.lock().ask(apart.as_ref(), now);
        let (pass, own) = asked.map_err(|retry_after| Failure::BreakerOpen { retry_after })?;
        Ok(Passage {
            breaker: self,
            pass,
            own,
            apart,
            sign: Sign::None,
        })
    }

    /// Keeps to other settings from now on; what became of it by that.
    pub(super) fn set(&self, settings: config::Breaker) -> Vec<Changed> {
        let now = Instant::now();
        let mut cores = self.lock();
        cores.settings = settings;
        let server = cores.server.set(settings, now).map(Changed::of_server);
        let own = cores.apart.values_mut();
        let own = own.filter_map(|own| Some((own.core.set(settings, now)?, own)));
        let own = own.map(|(change, own)| own.changed(change));
        own.chain(server).collect()
    }

    /// The server was connected anew, for `owner` where that is not for all.
    pub(super) fn is_back(&self, owner: &Owner) {
        let mut cores = self.lock();
        cores.server.is_back();
        if let Some(own) = cores.apart.get_mut(owner) {
            own.core.is_back();
        }
    }

    /// Whether calls are held back since there was no connection to be had.
    pub(crate) fn is_away(&self) -> bool {
        self.lock().server.is_away()
    }

    /// The server asked these clients something; what became of it by that.
    pub(super) fn asks(&self, askers: &HashSet<Owner>) -> Vec<Changed> {
        let mut cores = self.lock();
        let mut changed: Vec<_> = cores
            .server
            .asks()
            .map(Changed::of_server)
            .into_iter()
            .collect();
        for owner in askers {
            if let Some(own) = cores.apart.get_mut(owner) {
                let change = own.core.asks();
                changed.extend(change.map(|change| own.changed(change)));
            }
        }
        changed
    }

    /// Whether a call would be refused now, whoever makes it.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().server.wait(Instant::now()).is_some()
    }

    pub(crate) fn report(&self) -> BreakerReport {
        self.lock().server.report(Instant::now())
    }

    /// Those of single callers that are not closed.
    pub(super) fn of_callers(&self) -> Vec<CallerBreaker> {
        let now = Instant::now();
        let cores = self.lock();
        let open = cores.apart.values().filter(|own| !own.core.is_closed());
        let reports = open.map(|own| CallerBreaker {
            replica: None,
            agent: Some(own.agent.clone()),
            session: own.session.clone(),
            breaker: own.core.report(now),
        });
        let mut reports: Vec<_> = reports.collect();
        reports
            .sort_by(|one, other| (&one.agent, &one.session).cmp(&(&other.agent, &other.session)));
        reports
    }

    fn lock(&self) -> MutexGuard<'_, Cores> {
        lock(&self.0)
    }
}

/// A call on its way; the breaker hears of its end when this is dropped, by which it says nothing
/// of the server unless [`Passage::end`] was told.
#[derive(Debug)]
pub(super) struct Passage<'b, 'c> {
    breaker: &'b Breaker,
    pass: Pass,
    /// That of its caller's own core, where there is one.
    own: Pass,
    apart: Option<Apart<'c>>,
    sign: Sign,
}

impl Passage<'_, '_> {
    /// The call ended with this sign; what became of the breaker by that.
    pub(super) fn end(mut self, sign: Sign) -> impl Iterator<Item = Changed> + use<> {
        self.sign = sign;
        // One that says nothing is told of when it is dropped.
        let changed = (sign != Sign::None).then(|| self.tell());
        changed.into_iter().flatten().flatten()
    }

    fn tell(&self) -> [Option<Changed>; 2] {
        self.breaker.lock().tell(self, turn_time())
    }
}

impl Drop for Passage<'_, '_> {
    fn drop(&mut self) {
        if self.sign == Sign::None {
            self.tell();
        }
    }
}

/// Whether `sign` is of a failure that is the caller's own where its connections are.
fn is_bad(sign: Sign) -> bool {
    matches!(sign, Sign::Gone | Sign::Ill)
}

/// Whole milliseconds, rounded up: who waits that long is not too early.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        auth::Agent,
        mcp::{Raw, Revision},
        session::Opening,
    };

    const OPEN_FOR: Duration = Duration::from_secs(10);

    fn breaker(failures: u32) -> Breaker {
        Breaker::new(config::Breaker {
            failures,
            open_for: OPEN_FOR,
        })
    }

    fn client(agent: &str) -> Client {
        let agent = Agent {
            id: AgentId::of_name(agent),
            name: agent.to_owned(),
            ..Agent::anonymous()
        };
        Client {
            agent: Arc::new(agent),
            opening: Arc::new(Opening {
                revision: Revision::LEGACY,
                info: None,
                name: None,
                capabilities: Raw::from_static("{}"),
                profile: Arc::default(),
            }),
            session: None,
        }
    }

    /// Calls of agents with connections of their own, one after another, each with the sign of its end as
    /// in `machine`; `b` is that the server is back. What is refused is in the answer as `!`.
    fn run(breaker: &Breaker, events: &str) -> String {
        let mut seen = Vec::new();
        for event in events.split(' ') {
            if event == "b" {
                breaker.is_back(&Owner::Shared);
                seen.push(event.to_owned());
                continue;
            }
            let (agent, sign) = event.split_at(1);
            let client = client(agent);
            let sign = match sign {
                "a" => Sign::Away,
                "g" => Sign::Gone,
                "i" => Sign::Ill,
                "w" => Sign::Well,
                _ => Sign::None,
            };
            let owner = Owner::Agent(client.agent.id);
            let client = &client;
            let passage = breaker.enter(Some(Apart { owner, client }), Instant::now());
            let passes = passage.map(|it| it.end(sign).for_each(drop)).is_ok();
            seen.push(if passes {
                event.to_owned()
            } else {
                format!("{agent}!")
            });
        }
        seen.join(" ")
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_caller_are_its_own() {
        let check = |events: &str, expect: &str, state: &str, of_callers: &[&str]| {
            let breaker = breaker(2);
            assert_eq!(run(&breaker, events), expect);
            assert_eq!(breaker.report().state, state, "{events}");
            let open = breaker.of_callers();
            let open: Vec<_> = open.iter().filter_map(|it| it.agent.as_deref()).collect();
            assert_eq!(open, of_callers, "{events}");
        };
        check("1i 1i 1w 2w", "1i 1i 1! 2w", "closed", &["1"]);
        check("1i 1g 1w 2w", "1i 1g 1! 2w", "closed", &["1"]);
        check("1i 1w 1i 1w", "1i 1w 1i 1w", "closed", &[]);
        check(
            "1i 1i 2i 2i 2w 3w",
            "1i 1i 2i 2i 2! 3w",
            "closed",
            &["1", "2"],
        );
        // Of several in a row the first counts for nobody else.
        check("1i 2i 3i 4w", "1i 2i 3i 4!", "open", &[]);
        check("1i 2i 4w 3i 4w", "1i 2i 4w 3i 4w", "closed", &[]);
        // What nobody can be connected to concerns everybody.
        check("1a 2a 3w", "1a 2a 3!", "open", &[]);
        check("1a 2a b 3w 4w", "1a 2a b 3w 4w", "closed", &[]);
        // That it is reached was in question, and nothing else.
        check("1a 2a b 3i 4w", "1a 2a b 3i 4w", "closed", &[]);
        check("1a 2a b 3g 4w", "1a 2a b 3g 4w", "closed", &[]);
        check("1a 2a b 3a 4w", "1a 2a b 3a 4!", "open", &[]);
    }

    /// That the connection of the caller on trial is gone says nothing to others.
    #[tokio::test(start_paused = true)]
    async fn a_trial_on_a_connection_that_is_gone_decides_nothing() {
        let breaker = breaker(2);
        assert_eq!(run(&breaker, "1i 2i 3i 4w"), "1i 2i 3i 4!");
        tokio::time::advance(OPEN_FOR).await;
        assert_eq!(run(&breaker, "4g"), "4g");
        assert_eq!(breaker.report().state, "half_open");
        assert_eq!(run(&breaker, "4g 5w 6w"), "4g 5w 6w");
        assert_eq!(breaker.report().state, "closed");
        let own = breaker.of_callers();
        let own: Vec<_> = own.iter().filter_map(|it| it.agent.as_deref()).collect();
        assert_eq!(own, ["4"], "it counts for that caller");
        // What it is connected for and fails says that the server is not well.
        assert_eq!(run(&breaker, "1i 2i 3i"), "1i 2i 3i");
        tokio::time::advance(OPEN_FOR).await;
        assert_eq!(run(&breaker, "5i 6w"), "5i 6!");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_closes_it_says_so_once() {
        let breaker = breaker(1);
        let closed = || vec![Changed::of_server(Change::Closed)];
        let open = || breaker.enter(None, Instant::now()).unwrap().end(Sign::Ill);
        let nobody = HashSet::new();
        assert_eq!(open().count(), 1);
        assert_eq!(breaker.asks(&nobody), [], "nothing is on trial");
        tokio::time::advance(OPEN_FOR).await;
        let trial = breaker.enter(None, Instant::now()).unwrap();
        assert_eq!(breaker.asks(&nobody), closed());
        assert_eq!(breaker.asks(&nobody), []);
        assert_eq!(trial.end(Sign::Well).count(), 0);
        assert_eq!(open().count(), 1);
        let never = config::Breaker {
            failures: 0,
            open_for: OPEN_FOR,
        };
        assert_eq!(breaker.set(never), closed());
        assert_eq!(breaker.set(never), []);
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_tries_for_itself() {
        let breaker = breaker(1);
        assert_eq!(run(&breaker, "1i 1w 2w"), "1i 1! 2w");
        tokio::time::advance(OPEN_FOR).await;
        let client = client("1");
        let owner = || Owner::Agent(client.agent.id);
        let apart = || {
            Some(Apart {
                owner: owner(),
                client: &client,
            })
        };
        let trial = breaker.enter(apart(), Instant::now()).unwrap();
        assert_eq!(run(&breaker, "1w 2w"), "1! 2w", "one tries");
        // It asks a person, and may take long.
        let changed = breaker.asks(&HashSet::from([owner()]));
        let names: Vec<_> = changed.iter().map(|it| it.agent.as_deref()).collect();
        assert_eq!(names, [Some("1")]);
        assert_eq!(run(&breaker, "1w 2w"), "1w 2w");
        drop(trial);
        // Whom the server's own holds back has not tried.
        assert_eq!(run(&breaker, "1i"), "1i");
        tokio::time::advance(OPEN_FOR).await;
        assert_eq!(run(&breaker, "2a 1w b 1w"), "2a 1! b 1w");
    }

    /// As many callers as are remembered, called by numbers, fail one after another.
    async fn fill(breaker: &Breaker) {
        for agent in 0..APART_MAX {
            end(breaker, &agent.to_string(), Sign::Ill);
            // Nobody else is in the row.
            let passage = breaker.enter(None, Instant::now()).unwrap();
            passage.end(Sign::Well).for_each(drop);
            tokio::time::advance(Duration::from_micros(1)).await;
        }
    }

    /// A call of `agent` that ends with `sign`; whether it was let through.
    fn end(breaker: &Breaker, agent: &str, sign: Sign) -> bool {
        let client = client(agent);
        let owner = Owner::Agent(client.agent.id);
        let client = &client;
        let passage = breaker.enter(Some(Apart { owner, client }), Instant::now());
        passage
            .map(|passage| passage.end(sign).for_each(drop))
            .is_ok()
    }

    /// Of more than are remembered one holds back all: never none.
    #[tokio::test(start_paused = true)]
    async fn there_are_as_many_callers_as_are_remembered() {
        let breaker = breaker(1);
        fill(&breaker).await;
        assert_eq!(run(&breaker, "x"), "x");
        assert_eq!(breaker.of_callers().len(), APART_MAX);
        assert_eq!(run(&breaker, "xi y"), "xi y!");
        tokio::time::advance(OPEN_FOR).await;
        // One whose time is over is forgotten for another, and no more than that.
        assert_eq!(run(&breaker, "yw xi y xi"), "yw xi y x!");
        assert_eq!(breaker.of_callers().len(), APART_MAX);
    }

    /// Whoever has least to be remembered is forgotten first, then who called least recently; who is held
    /// back stays.
    #[tokio::test(start_paused = true)]
    async fn who_failed_lately_is_remembered() {
        let breaker = breaker(2);
        fill(&breaker).await;
        end(&breaker, "9", Sign::Well);
        end(&breaker, "0", Sign::Ill);
        let fails = |agent: &str| {
            end(&breaker, agent, Sign::Ill);
            breaker
                .enter(None, Instant::now())
                .unwrap()
                .end(Sign::Well)
                .for_each(drop);
            !end(&breaker, agent, Sign::None)
        };
        // The second failure holds back whose first one is known. Of these, `9` and `1` are forgotten.
        for newcomer in ["new", "newer"] {
            assert!(!fails(newcomer), "{newcomer} has failed once");
        }
        assert_eq!(breaker.lock().apart.len(), APART_MAX);
        assert!(!end(&breaker, "0", Sign::None), "it is held back all along");
        for known in ["2", "3", "4095", "new", "newer"] {
            assert!(fails(known), "{known}");
        }
        assert!(!fails("1"), "it begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_lets_the_next_one_try() {
        let breaker = breaker(1);
        assert!(!breaker.is_open());
        breaker
            .enter(None, Instant::now())
            .unwrap()
            .end(Sign::Ill)
            .for_each(drop);
        assert!(breaker.is_open());
        let retry_after = OPEN_FOR;
        let refused = breaker.enter(None, Instant::now()).map(drop);
        assert_eq!(refused, Err(Failure::BreakerOpen { retry_after }));
        tokio::time::advance(OPEN_FOR).await;
        assert!(!breaker.is_open());
        let given_up = breaker.enter(None, Instant::now()).unwrap();
        assert!(breaker.enter(None, Instant::now()).is_err(), "one tries");
        drop(given_up);
        breaker
            .enter(None, Instant::now())
            .unwrap()
            .end(Sign::Well)
            .for_each(drop);
        assert_eq!(breaker.report().state, "closed");
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(5)), 5);
    }
}
