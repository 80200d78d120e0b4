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
const CALLERS_MAX: usize = 4096;

/// What became of a breaker by how a call ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::backend) enum BreakerTransition {
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
pub(in crate::backend) struct BreakerCaller<'c> {
    pub(in crate::backend) sharing: Sharing,
    pub(in crate::backend) client: &'c Client,
    /// Whether others use the same connection.
    pub(in crate::backend) shares_connection: bool,
}

impl<'c> BreakerCaller<'c> {
    /// What the end of one of its calls says: that a connection is gone is the matter of all who use it.
    fn adjusted_health(&self, health: CallHealth) -> CallHealth {
        if self.shares_connection && health == CallHealth::Disconnected {
            CallHealth::Unreachable
        } else {
            health
        }
    }

    /// Who is behind it: an agent, however many sessions it has, each with connections of its own.
    fn agent_scope(&self) -> Sharing {
        match self.client.agent.id {
            AgentId::ANONYMOUS => self.sharing.clone(),
            known => Sharing::Agent(known),
        }
    }

    /// The agent and the session, as people know them.
    fn display_names(&self) -> (&'c str, Option<&'c str>) {
        let session = self.client.session.as_ref();
        let session = session.filter(|_| matches!(self.sharing, Sharing::Session(_)));
        let mark = session.map(|session| &*session.log_id);
        (&self.client.agent.name, mark)
    }
}

/// A breaker that calls of many tasks pass.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<Breakers>);

#[derive(Debug)]
struct Breakers {
    config: config::BreakerConfig,
    server: BreakerCore,
    /// Of callers that failed and were not answered since.
    callers: HashMap<Sharing, CallerState>,
    /// Who they are that failed since any call was answered: of one caller that concerns nobody else,
    /// and each further one counts once.
    failing_callers: HashSet<Sharing>,
}

/// The core of one caller.
#[derive(Debug)]
struct CallerState {
    core: BreakerCore,
    agent: String,
    session: Option<String>,
}

impl CallerState {
    fn to_change(&self, change: BreakerTransition) -> BreakerChange {
        BreakerChange {
            change,
            agent: Some(self.agent.clone()),
            session: self.session.clone(),
        }
    }
}

/// What became of the breaker of a server, or of one of its callers where they are named.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::backend) struct BreakerChange {
    change: BreakerTransition,
    agent: Option<String>,
    session: Option<String>,
}

impl BreakerChange {
    fn of_server(change: BreakerTransition) -> Self {
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
            BreakerTransition::Opened => {
                let last = last.map(BackendError::to_string);
                tracing::warn!(%server, agent, session, last, "circuit breaker opened: calls fail \
                    fast");
            }
            BreakerTransition::Closed => {
                tracing::info!(%server, agent, session, "circuit breaker closed");
            }
        }
    }
}

impl Breakers {
    /// Whether a call of `principal`, or of anybody, may go to the server; else, how long its caller
    /// should wait.
    fn try_acquire(
        &mut self,
        caller: Option<&BreakerCaller<'_>>,
        now: Instant,
    ) -> Result<(BreakerPermit, BreakerPermit), Duration> {
        let own = caller.and_then(|it| self.callers.get_mut(&it.sharing));
        // Whoever failed may fail for reasons of its own: whether the server is well again is for others
        // to find out, and it does not take their turn. Whether it can be reached anybody finds out.
        let is_suspect = own.as_ref().is_some_and(|own| !own.core.is_closed());
        let may_try = !is_suspect || self.server.is_unreachable();
        // Whom the server's holds back is on no trial of its own.
        if let Some(wait) = self.server.retry_in(now)
            && (may_try || self.server.is_open(now))
        {
            return Err(wait);
        }
        let own = own.map_or(Ok(BreakerPermit::INITIAL), |own| own.core.try_acquire(now))?;
        let server = if may_try {
            self.server.try_acquire(now)?
        } else {
            self.server.permit_during_trial(now)
        };
        Ok((server, own))
    }

    /// Takes how a call ended; what became of both cores.
    fn record(
        &mut self,
        passage: &BreakerGuard<'_, '_>,
        now: Instant,
    ) -> [Option<BreakerChange>; 2] {
        let mut sign = passage.health;
        if sign == CallHealth::Success {
            self.failing_callers.clear();
        }
        let mut own = None;
        if let Some(principal) = &passage.caller {
            let of_principal = principal.adjusted_health(sign);
            sign = self.shared_health(principal, of_principal, passage);
            own = self.record_for_caller(principal, of_principal, passage, now);
        }
        let server = self.server.record(&passage.permit, sign, now);
        if server.is_some() {
            self.failing_callers.clear();
        }
        [server.map(BreakerChange::of_server), own]
    }

    /// What it says of the server that a call of `principal` ended with `sign`.
    fn shared_health(
        &mut self,
        caller: &BreakerCaller<'_>,
        health: CallHealth,
        guard: &BreakerGuard<'_, '_>,
    ) -> CallHealth {
        if !is_caller_failure(health) || !self.server.is_current(&guard.permit) {
            return health;
        }
        if self.server.is_unreachable() {
            // Where it was to be found out whether the server can be reached, that is known; that the
            // caller's own connection is gone answers nothing.
            return if health == CallHealth::Disconnected {
                CallHealth::Neutral
            } else {
                CallHealth::Success
            };
        }
        if !self.server.is_closed() {
            let is_own = self.callers.contains_key(&caller.sharing);
            return if is_own || health == CallHealth::Disconnected {
                CallHealth::Neutral
            } else {
                health
            };
        }
        let is_first = self.failing_callers.is_empty();
        let is_another = self.failing_callers.len() < CALLERS_MAX
            && self.failing_callers.insert(caller.agent_scope());
        if is_another && !is_first {
            CallHealth::Error
        } else {
            CallHealth::Neutral
        }
    }

    /// Takes how a call of `principal` ended, as far as that concerns no other caller.
    fn record_for_caller(
        &mut self,
        caller: &BreakerCaller<'_>,
        sign: CallHealth,
        guard: &BreakerGuard<'_, '_>,
        now: Instant,
    ) -> Option<BreakerChange> {
        let sign = match sign {
            CallHealth::Unreachable => CallHealth::Neutral,
            sign @ (CallHealth::Disconnected
            | CallHealth::Error
            | CallHealth::Neutral
            | CallHealth::Success) => sign,
        };
        if is_caller_failure(sign) && !self.callers.contains_key(&caller.sharing) {
            if !self.has_room_for_caller(now) {
                return None;
            }
            let (agent, session) = caller.display_names();
            let own = CallerState {
                core: BreakerCore::new(self.config),
                agent: agent.to_owned(),
                session: session.map(str::to_owned),
            };
            self.callers.insert(caller.sharing.clone(), own);
        }
        let own = self.callers.get_mut(&caller.sharing)?;
        let change = own.core.record(&guard.caller_permit, sign, now);
        let changed = change.map(|change| own.to_change(change));
        if own.core.is_pristine() {
            self.callers.remove(&caller.sharing);
        }
        changed
    }

    /// Whether the failures of one more can be remembered.
    fn has_room_for_caller(&mut self, now: Instant) -> bool {
        if self.callers.len() >= CALLERS_MAX {
            self.callers
                .retain(|_, own| own.core.retry_in(now).is_some());
        }
        self.callers.len() < CALLERS_MAX
    }
}

impl Breaker {
    pub(crate) fn new(settings: config::BreakerConfig) -> Self {
        Self(Mutex::new(Breakers {
            config: settings,
            server: BreakerCore::new(settings),
            callers: HashMap::new(),
            failing_callers: HashSet::new(),
        }))
    }

    /// Lets a call that begins `now` to the server, or says for how long not; `principal` is whose it
    /// is, `None` where nobody has to say who they are.
    ///
    /// # Errors
    /// [`BackendError::BreakerOpen`].
    pub(in crate::backend) fn acquire<'c>(
        &self,
        caller: Option<BreakerCaller<'c>>,
        now: Instant,
    ) -> Result<BreakerGuard<'_, 'c>, BackendError> {
        let asked = self.lock().try_acquire(caller.as_ref(), now);
        let (pass, own) = asked.map_err(|retry_after| BackendError::BreakerOpen { retry_after })?;
        Ok(BreakerGuard {
            breaker: self,
            permit: pass,
            caller_permit: own,
            caller,
            health: CallHealth::Neutral,
        })
    }

    /// Keeps to other settings from now on; what became of it by that.
    pub(in crate::backend) fn set_config(
        &self,
        settings: config::BreakerConfig,
    ) -> Vec<BreakerChange> {
        let now = Instant::now();
        let mut cores = self.lock();
        cores.config = settings;
        let server = cores
            .server
            .set_config(settings, now)
            .map(BreakerChange::of_server);
        let own = cores.callers.values_mut();
        let own = own.filter_map(|own| Some((own.core.set_config(settings, now)?, own)));
        let own = own.map(|(change, own)| own.to_change(change));
        own.chain(server).collect()
    }

    /// The server was connected anew, for `owner` where that is not for all.
    pub(in crate::backend) fn note_reconnected(&self, owner: &Sharing) {
        let mut cores = self.lock();
        cores.server.note_reconnected();
        if let Some(own) = cores.callers.get_mut(owner) {
            own.core.note_reconnected();
        }
    }

    /// Whether calls are held back since there was no connection to be had.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.lock().server.is_unreachable()
    }

    /// The server asked these clients something; what became of it by that.
    pub(in crate::backend) fn note_client_request(
        &self,
        askers: &HashSet<Sharing>,
    ) -> Vec<BreakerChange> {
        let mut cores = self.lock();
        let mut changed: Vec<_> = cores
            .server
            .note_client_request()
            .map(BreakerChange::of_server)
            .into_iter()
            .collect();
        for owner in askers {
            if let Some(own) = cores.callers.get_mut(owner) {
                let change = own.core.note_client_request();
                changed.extend(change.map(|change| own.to_change(change)));
            }
        }
        changed
    }

    /// Whether a call would be refused now, whoever makes it.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().server.retry_in(Instant::now()).is_some()
    }

    pub(crate) fn report(&self) -> BreakerReport {
        self.lock().server.report(Instant::now())
    }

    /// Those of single callers that are not closed.
    pub(in crate::backend) fn caller_reports(&self) -> Vec<CallerBreaker> {
        let now = Instant::now();
        let cores = self.lock();
        let open = cores.callers.values().filter(|own| !own.core.is_closed());
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

    fn lock(&self) -> MutexGuard<'_, Breakers> {
        lock(&self.0)
    }
}

/// A call on its way; the breaker hears of its end when this is dropped, by which it says nothing
/// of the server unless [`BreakerGuard::end`] was told.
#[derive(Debug)]
pub(in crate::backend) struct BreakerGuard<'b, 'c> {
    breaker: &'b Breaker,
    permit: BreakerPermit,
    /// That of its caller's own core.
    caller_permit: BreakerPermit,
    caller: Option<BreakerCaller<'c>>,
    health: CallHealth,
}

impl BreakerGuard<'_, '_> {
    /// The call ended with this sign; what became of the breaker by that.
    pub(in crate::backend) fn finish(
        mut self,
        health: CallHealth,
    ) -> impl Iterator<Item = BreakerChange> + use<> {
        self.health = health;
        // One that says nothing is told of when it is dropped.
        let changed = (health != CallHealth::Neutral).then(|| self.record());
        changed.into_iter().flatten().flatten()
    }

    fn record(&self) -> [Option<BreakerChange>; 2] {
        self.breaker.lock().record(self, cached_now())
    }
}

impl Drop for BreakerGuard<'_, '_> {
    fn drop(&mut self) {
        if self.health == CallHealth::Neutral {
            self.record();
        }
    }
}

/// Whether `sign` is of a failure that is the caller's own where its connections are.
fn is_caller_failure(health: CallHealth) -> bool {
    matches!(health, CallHealth::Disconnected | CallHealth::Error)
}
