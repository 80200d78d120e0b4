//! A circuit breaker: after enough failures in a row calls are answered at once for a while, and
//! then one of them finds out whether the server is well again.
//!
//! [`BreakerCore`] decides and knows no clock; [`Breaker`] has a lock, for whoever takes calls to one server,
//! or to one replica of it. What counts is how the server does, never what it answers.
//!
//! No caller decides for others: each agent has a core of its own, also on a connection that several
//! share, and its timeouts and failures hold back its own calls. Everybody is held back when no
//! connection can be made, and when the calls of one agent after another fail.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;

use crate::{
    backend::{BackendError, call_health::CallHealth, sharing::Sharing},
    clock::cached_now,
    config,
    lock::lock,
    names::{AgentId, ServerName},
    session::Client,
};
use machine::{BreakerCore, BreakerPermit};

mod machine;
#[cfg(test)]
mod tests;

/// Callers whose failures are remembered. For one more, those who are not held back at present are
/// forgotten; where all are, the failures of one more hold it back no longer.
const PRINCIPALS_MAX: usize = 4096;

/// What became of a breaker by how a call ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::backend) enum BreakerChange {
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
    pub(in crate::backend) fn without_details(mut self) -> Self {
        self.agent = None;
        self.session = None;
        self
    }
}

/// Whose failures the failures of a call are: an agent, or a session that has a connection to itself.
#[derive(Debug)]
pub(in crate::backend) struct Principal<'c> {
    pub(in crate::backend) owner: Sharing,
    pub(in crate::backend) client: &'c Client,
    /// Whether others use the same connection.
    pub(in crate::backend) shares_connection: bool,
}

impl<'c> Principal<'c> {
    /// What the end of one of its calls says: that a connection is gone is the matter of all who use it.
    fn sign(&self, sign: CallHealth) -> CallHealth {
        if self.shares_connection && sign == CallHealth::Gone {
            CallHealth::Away
        } else {
            sign
        }
    }

    /// Who is behind it: an agent, however many sessions it has, each with connections of its own.
    fn party(&self) -> Sharing {
        match self.client.agent.id {
            AgentId::ANONYMOUS => self.owner.clone(),
            known => Sharing::Agent(known),
        }
    }

    /// The agent and the session, as people know them.
    fn names(&self) -> (&'c str, Option<&'c str>) {
        let session = self.client.session.as_ref();
        let session = session.filter(|_| matches!(self.owner, Sharing::Session(_)));
        let mark = session.map(|session| &*session.mark);
        (&self.client.agent.name, mark)
    }
}

/// A breaker that calls of many tasks pass.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<Cores>);

#[derive(Debug)]
struct Cores {
    settings: config::BreakerConfig,
    server: BreakerCore,
    /// Of callers that failed and were not answered since.
    principals: HashMap<Sharing, CallerState>,
    /// Who they are that failed since any call was answered: of one caller that concerns nobody else,
    /// and each further one counts once.
    ill: HashSet<Sharing>,
}

/// The core of one caller.
#[derive(Debug)]
struct CallerState {
    core: BreakerCore,
    agent: String,
    session: Option<String>,
}

impl CallerState {
    fn changed(&self, change: BreakerChange) -> Changed {
        Changed {
            change,
            agent: Some(self.agent.clone()),
            session: self.session.clone(),
        }
    }
}

/// What became of the breaker of a server, or of one of its callers where they are named.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::backend) struct Changed {
    change: BreakerChange,
    agent: Option<String>,
    session: Option<String>,
}

impl Changed {
    fn of_server(change: BreakerChange) -> Self {
        Self {
            change,
            agent: None,
            session: None,
        }
    }

    /// Says so in the log; `last` is the failure that led to it.
    pub(in crate::backend) fn log(&self, server: &ServerName, last: Option<&BackendError>) {
        let (agent, session) = (self.agent.as_deref(), self.session.as_deref());
        match self.change {
            BreakerChange::Opened => {
                let last = last.map(BackendError::to_string);
                tracing::warn!(%server, agent, session, last, "the breaker opened: calls fail immediately");
            }
            BreakerChange::Closed => {
                tracing::info!(%server, agent, session, "the breaker is closed again");
            }
        }
    }
}

impl Cores {
    /// Whether a call of `principal`, or of anybody, may go to the server; else, how long its caller
    /// should wait.
    fn ask(
        &mut self,
        principal: Option<&Principal<'_>>,
        now: Instant,
    ) -> Result<(BreakerPermit, BreakerPermit), Duration> {
        let own = principal.and_then(|it| self.principals.get_mut(&it.owner));
        // Whoever failed may fail for reasons of its own: whether the server is well again is for others
        // to find out, and it does not take their turn. Whether it can be reached anybody finds out.
        let is_suspect = own.as_ref().is_some_and(|own| !own.core.is_closed());
        let may_try = !is_suspect || self.server.is_away();
        // Whom the server's holds back is on no trial of its own.
        if let Some(wait) = self.server.wait(now)
            && (may_try || self.server.is_open(now))
        {
            return Err(wait);
        }
        let own = own.map_or(Ok(BreakerPermit::FIRST), |own| own.core.ask(now))?;
        let server = if may_try {
            self.server.ask(now)?
        } else {
            self.server.pass_beside_trial(now)
        };
        Ok((server, own))
    }

    /// Takes how a call ended; what became of both cores.
    fn tell(&mut self, passage: &Passage<'_, '_>, now: Instant) -> [Option<Changed>; 2] {
        let mut sign = passage.sign;
        if sign == CallHealth::Well {
            self.ill.clear();
        }
        let mut own = None;
        if let Some(principal) = &passage.principal {
            let of_principal = principal.sign(sign);
            sign = self.common(principal, of_principal, passage);
            own = self.tell_own(principal, of_principal, passage, now);
        }
        let server = self.server.tell(&passage.pass, sign, now);
        if server.is_some() {
            self.ill.clear();
        }
        [server.map(Changed::of_server), own]
    }

    /// What it says of the server that a call of `principal` ended with `sign`.
    fn common(
        &mut self,
        principal: &Principal<'_>,
        sign: CallHealth,
        passage: &Passage<'_, '_>,
    ) -> CallHealth {
        if !is_bad(sign) || !self.server.hears(&passage.pass) {
            return sign;
        }
        if self.server.is_away() {
            // Where it was to be found out whether the server can be reached, that is known; that the
            // caller's own connection is gone answers nothing.
            return if sign == CallHealth::Gone {
                CallHealth::None
            } else {
                CallHealth::Well
            };
        }
        if !self.server.is_closed() {
            let is_own = self.principals.contains_key(&principal.owner);
            return if is_own || sign == CallHealth::Gone {
                CallHealth::None
            } else {
                sign
            };
        }
        let is_first = self.ill.is_empty();
        let is_another = self.ill.len() < PRINCIPALS_MAX && self.ill.insert(principal.party());
        if is_another && !is_first {
            CallHealth::Ill
        } else {
            CallHealth::None
        }
    }

    /// Takes how a call of `principal` ended, as far as that concerns no other caller.
    fn tell_own(
        &mut self,
        principal: &Principal<'_>,
        sign: CallHealth,
        passage: &Passage<'_, '_>,
        now: Instant,
    ) -> Option<Changed> {
        let sign = match sign {
            CallHealth::Away => CallHealth::None,
            sign @ (CallHealth::Gone | CallHealth::Ill | CallHealth::None | CallHealth::Well) => {
                sign
            }
        };
        if is_bad(sign) && !self.principals.contains_key(&principal.owner) {
            if !self.has_room(now) {
                return None;
            }
            let (agent, session) = principal.names();
            let own = CallerState {
                core: BreakerCore::new(self.settings),
                agent: agent.to_owned(),
                session: session.map(str::to_owned),
            };
            self.principals.insert(principal.owner.clone(), own);
        }
        let own = self.principals.get_mut(&principal.owner)?;
        let change = own.core.tell(&passage.own, sign, now);
        let changed = change.map(|change| own.changed(change));
        if own.core.is_clean() {
            self.principals.remove(&principal.owner);
        }
        changed
    }

    /// Whether the failures of one more can be remembered.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.principals.len() >= PRINCIPALS_MAX {
            self.principals
                .retain(|_, own| own.core.wait(now).is_some());
        }
        self.principals.len() < PRINCIPALS_MAX
    }
}

impl Breaker {
    pub(crate) fn new(settings: config::BreakerConfig) -> Self {
        Self(Mutex::new(Cores {
            settings,
            server: BreakerCore::new(settings),
            principals: HashMap::new(),
            ill: HashSet::new(),
        }))
    }

    /// Lets a call that begins `now` to the server, or says for how long not; `principal` is whose it
    /// is, `None` where nobody has to say who they are.
    ///
    /// # Errors
    /// [`BackendError::BreakerOpen`].
    pub(in crate::backend) fn enter<'c>(
        &self,
        principal: Option<Principal<'c>>,
        now: Instant,
    ) -> Result<Passage<'_, 'c>, BackendError> {
        let asked = self.lock().ask(principal.as_ref(), now);
        let (pass, own) = asked.map_err(|retry_after| BackendError::BreakerOpen { retry_after })?;
        Ok(Passage {
            breaker: self,
            pass,
            own,
            principal,
            sign: CallHealth::None,
        })
    }

    /// Keeps to other settings from now on; what became of it by that.
    pub(in crate::backend) fn set(&self, settings: config::BreakerConfig) -> Vec<Changed> {
        let now = Instant::now();
        let mut cores = self.lock();
        cores.settings = settings;
        let server = cores.server.set(settings, now).map(Changed::of_server);
        let own = cores.principals.values_mut();
        let own = own.filter_map(|own| Some((own.core.set(settings, now)?, own)));
        let own = own.map(|(change, own)| own.changed(change));
        own.chain(server).collect()
    }

    /// The server was connected anew, for `owner` where that is not for all.
    pub(in crate::backend) fn note_back(&self, owner: &Sharing) {
        let mut cores = self.lock();
        cores.server.note_back();
        if let Some(own) = cores.principals.get_mut(owner) {
            own.core.note_back();
        }
    }

    /// Whether calls are held back since there was no connection to be had.
    pub(crate) fn is_away(&self) -> bool {
        self.lock().server.is_away()
    }

    /// The server asked these clients something; what became of it by that.
    pub(in crate::backend) fn asks(&self, askers: &HashSet<Sharing>) -> Vec<Changed> {
        let mut cores = self.lock();
        let mut changed: Vec<_> = cores
            .server
            .asks()
            .map(Changed::of_server)
            .into_iter()
            .collect();
        for owner in askers {
            if let Some(own) = cores.principals.get_mut(owner) {
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
    pub(in crate::backend) fn of_callers(&self) -> Vec<CallerBreaker> {
        let now = Instant::now();
        let cores = self.lock();
        let open = cores
            .principals
            .values()
            .filter(|own| !own.core.is_closed());
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
pub(in crate::backend) struct Passage<'b, 'c> {
    breaker: &'b Breaker,
    pass: BreakerPermit,
    /// That of its caller's own core.
    own: BreakerPermit,
    principal: Option<Principal<'c>>,
    sign: CallHealth,
}

impl Passage<'_, '_> {
    /// The call ended with this sign; what became of the breaker by that.
    pub(in crate::backend) fn end(
        mut self,
        sign: CallHealth,
    ) -> impl Iterator<Item = Changed> + use<> {
        self.sign = sign;
        // One that says nothing is told of when it is dropped.
        let changed = (sign != CallHealth::None).then(|| self.tell());
        changed.into_iter().flatten().flatten()
    }

    fn tell(&self) -> [Option<Changed>; 2] {
        self.breaker.lock().tell(self, cached_now())
    }
}

impl Drop for Passage<'_, '_> {
    fn drop(&mut self) {
        if self.sign == CallHealth::None {
            self.tell();
        }
    }
}

/// Whether `sign` is of a failure that is the caller's own where its connections are.
fn is_bad(sign: CallHealth) -> bool {
    matches!(sign, CallHealth::Gone | CallHealth::Ill)
}
