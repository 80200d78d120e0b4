//! The circuit breaker of a server, or of one of its replicas: after enough consecutive failures calls fail
//! at once for a while; then one call tests whether the server is well again.
//!
//! Only failures of the server count, never what a tool answers. One caller must not stop the others: the
//! failures of a caller open a breaker of its own, and the server's breaker only if no connection can be
//! made, or if the calls of several callers fail in a row.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;

use crate::{
    backend::{BackendError, call_health::CallHealth, sharing::Sharing},
    config,
    lock::lock,
    names::{AgentId, ServerName},
    session::Client,
};
use machine::{BreakerCore, BreakerPermit};

mod machine;
#[cfg(test)]
mod tests;

/// Callers with failures that are remembered. Beyond that those are forgotten whose calls pass at present;
/// if there are none, another caller gets no breaker.
const CALLERS_MAX: usize = 4096;

/// A change of a breaker that the log tells.
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
    /// Consecutive failures; 0 unless it is closed.
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
    /// The replica that its calls go to, if the server has replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session, as the log and the audit call it, if each session has its own connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Its breaker.
    #[serde(flatten)]
    pub breaker: BreakerReport,
}

impl CallerBreaker {
    /// The same without the caller.
    pub(in crate::backend) fn without_details(mut self) -> Self {
        self.agent = None;
        self.session = None;
        self
    }
}

/// A caller that has a breaker of its own: an agent, or a session with its own connection.
#[derive(Debug)]
pub(in crate::backend) struct BreakerCaller<'c> {
    pub(in crate::backend) sharing: Sharing,
    pub(in crate::backend) client: &'c Client,
}

impl BreakerCaller<'_> {
    /// The agent, however many sessions it has; an anonymous session is a caller of its own.
    fn agent_scope(&self) -> Sharing {
        match self.client.agent.id {
            AgentId::ANONYMOUS => self.sharing.clone(),
            known => Sharing::Agent(known),
        }
    }
}

/// The breaker of a server and those of its callers.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<Breakers>);

#[derive(Debug)]
struct Breakers {
    config: config::BreakerConfig,
    server: BreakerCore,
    /// Callers that failed and were not answered since.
    callers: HashMap<Sharing, CallerState>,
    /// Agents whose calls failed since the last answer. The first one may fail for its own reasons; each
    /// further one counts once as a failure of the server.
    failing_callers: HashSet<Sharing>,
}

#[derive(Debug)]
struct CallerState {
    core: BreakerCore,
    agent: String,
    session: Option<String>,
}

impl CallerState {
    fn new(caller: &BreakerCaller<'_>, config: config::BreakerConfig) -> Self {
        let session = caller.client.session.as_ref();
        let session = session.filter(|_| matches!(caller.sharing, Sharing::Session(_)));
        Self {
            core: BreakerCore::new(config),
            agent: caller.client.agent.name.clone(),
            session: session.map(|session| session.log_id.clone()),
        }
    }

    fn to_change(&self, change: BreakerTransition) -> BreakerChange {
        BreakerChange {
            change,
            agent: Some(self.agent.clone()),
            session: self.session.clone(),
        }
    }
}

/// A change of the server's breaker, or of that of the caller it names.
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

    /// Writes it to the log; `last` is the failure that led to it.
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
    /// Lets a call pass the server's breaker and its caller's, or says how long to wait. A caller whose own
    /// breaker is not closed gets no permit of the server's half-open breaker: others test the server.
    fn try_acquire(
        &mut self,
        caller: Option<&BreakerCaller<'_>>,
        now: Instant,
    ) -> Result<(Option<BreakerPermit>, BreakerPermit), Duration> {
        if let Some(wait) = self.server.retry_in(now) {
            return Err(wait);
        }
        let own = caller.and_then(|it| self.callers.get_mut(&it.sharing));
        let is_failing = own.as_ref().is_some_and(|own| !own.core.is_closed());
        let own = own.map_or(Ok(BreakerPermit::INITIAL), |own| own.core.try_acquire(now))?;
        let may_test = self.server.is_closed() || !is_failing;
        let server = may_test.then(|| self.server.try_acquire(now)).transpose()?;
        Ok((server, own))
    }

    /// Takes how a call ended; the changes of the server's breaker and of the caller's.
    fn record(&mut self, guard: &BreakerGuard<'_, '_>, now: Instant) -> [Option<BreakerChange>; 2] {
        let own = guard.caller.as_ref();
        let own = own.and_then(|caller| self.record_for_caller(caller, guard, now));
        let health = self.server_health(guard);
        let server = guard.permit.as_ref();
        let server = server.and_then(|permit| self.server.record(permit, health, now));
        if health == CallHealth::Success || server.is_some() {
            self.failing_callers.clear();
        }
        [server.map(BreakerChange::of_server), own]
    }

    /// What the end of a call says about the server to all callers.
    fn server_health(&mut self, guard: &BreakerGuard<'_, '_>) -> CallHealth {
        let Some(caller) = &guard.caller else {
            return guard.health;
        };
        if guard.health != CallHealth::Error {
            return guard.health;
        }
        if self.server.is_unreachable() {
            // It was reached: nothing else was in question.
            return CallHealth::Success;
        }
        if !self.server.is_closed() {
            return CallHealth::Error;
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

    fn record_for_caller(
        &mut self,
        caller: &BreakerCaller<'_>,
        guard: &BreakerGuard<'_, '_>,
        now: Instant,
    ) -> Option<BreakerChange> {
        let health = match guard.health {
            CallHealth::Unreachable => CallHealth::Neutral,
            health @ (CallHealth::Error | CallHealth::Neutral | CallHealth::Success) => health,
        };
        let is_known = self.callers.contains_key(&caller.sharing);
        if health == CallHealth::Error && !is_known && self.has_room_for_caller(now) {
            let own = CallerState::new(caller, self.config);
            self.callers.insert(caller.sharing.clone(), own);
        }
        let own = self.callers.get_mut(&caller.sharing)?;
        let change = own.core.record(&guard.caller_permit, health, now);
        let changed = change.map(|change| own.to_change(change));
        if own.core.is_pristine() {
            self.callers.remove(&caller.sharing);
        }
        changed
    }

    /// Whether one more caller can be remembered.
    fn has_room_for_caller(&mut self, now: Instant) -> bool {
        if self.callers.len() >= CALLERS_MAX {
            self.callers
                .retain(|_, own| own.core.retry_in(now).is_some());
        }
        self.callers.len() < CALLERS_MAX
    }
}

impl Breaker {
    pub(crate) fn new(config: config::BreakerConfig) -> Self {
        Self(Mutex::new(Breakers {
            config,
            server: BreakerCore::new(config),
            callers: HashMap::new(),
            failing_callers: HashSet::new(),
        }))
    }

    /// Lets a call of `caller` pass that begins `now`; `None` is everybody who needs no name.
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

    /// Takes other config.
    pub(in crate::backend) fn set_config(
        &self,
        config: config::BreakerConfig,
    ) -> Vec<BreakerChange> {
        let now = Instant::now();
        let mut breakers = self.lock();
        breakers.config = config;
        let server = breakers
            .server
            .set_config(config, now)
            .map(BreakerChange::of_server);
        let own = breakers.callers.values_mut();
        let own = own.filter_map(|own| Some((own.core.set_config(config, now)?, own)));
        let own = own.map(|(change, own)| own.to_change(change));
        own.chain(server).collect()
    }

    /// The server was reached.
    pub(in crate::backend) fn note_reconnected(&self) {
        self.lock().server.note_reconnected();
    }

    /// Whether calls fail because no connection could be made.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.lock().server.is_unreachable()
    }

    /// The server asked these clients something.
    pub(in crate::backend) fn note_client_request(
        &self,
        askers: &HashSet<Sharing>,
    ) -> Vec<BreakerChange> {
        let mut breakers = self.lock();
        let server = breakers
            .server
            .note_client_request()
            .map(BreakerChange::of_server);
        let own = askers.iter().filter_map(|owner| {
            let own = breakers.callers.get_mut(owner)?;
            let change = own.core.note_client_request()?;
            Some(own.to_change(change))
        });
        server.into_iter().chain(own).collect()
    }

    /// Whether a call would fail now, whoever makes it.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().server.retry_in(Instant::now()).is_some()
    }

    pub(crate) fn report(&self) -> BreakerReport {
        self.lock().server.report(Instant::now())
    }

    /// Those of single callers that are not closed.
    pub(in crate::backend) fn caller_reports(&self) -> Vec<CallerBreaker> {
        let now = Instant::now();
        let breakers = self.lock();
        let open = breakers
            .callers
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

    fn lock(&self) -> MutexGuard<'_, Breakers> {
        lock(&self.0)
    }
}

/// A call under way. Dropped without [`BreakerGuard::finish`], it says nothing about the server.
#[derive(Debug)]
pub(in crate::backend) struct BreakerGuard<'b, 'c> {
    breaker: &'b Breaker,
    permit: Option<BreakerPermit>,
    /// That of its caller's breaker.
    caller_permit: BreakerPermit,
    caller: Option<BreakerCaller<'c>>,
    health: CallHealth,
}

impl BreakerGuard<'_, '_> {
    /// The call ended; what changed by that.
    pub(in crate::backend) fn finish(
        mut self,
        health: CallHealth,
    ) -> impl Iterator<Item = BreakerChange> + use<> {
        self.health = health;
        // A neutral end is told when this is dropped.
        let changed = (health != CallHealth::Neutral).then(|| self.record());
        changed.into_iter().flatten().flatten()
    }

    fn record(&self) -> [Option<BreakerChange>; 2] {
        self.breaker.lock().record(self, Instant::now())
    }
}

impl Drop for BreakerGuard<'_, '_> {
    fn drop(&mut self) {
        if self.health == CallHealth::Neutral {
            self.record();
        }
    }
}
