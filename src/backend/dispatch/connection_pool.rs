//! Connections that serve one call at a time: `isolation = "pool"` lends a few of them again and
//! again, `isolation = "call"` makes one for each call.
//!
//! `selection` asks for a [`PoolPermit`], which are given first come first served, and then for a
//! [`PooledConnection`]. There are never more connections than turns, and never more than one call on each:
//! a connection whose call was not answered is ended, since its server may still be at work on it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use super::selection::Predecessor;
use crate::backend::sharing::{Sharing, SharingKey};
use crate::{
    backend::{
        BackendError,
        instance::{Instance, InstancePhase, identity::InstanceIdentity},
    },
    config::{Isolation, Server},
    lock::lock,
    task::InFlight,
};

/// Longer than it takes to notice that a connection was lost.
const LOSS_DETECTION_DELAY: Duration = Duration::from_millis(100);

/// The connections of one server that serve one call at a time.
#[derive(Debug)]
pub(in crate::backend) struct ConnectionPool {
    permits: Arc<Semaphore>,
    /// Calls that wait for a turn.
    waiting: InFlight,
    slots: Arc<IdleSlots>,
}

/// The right to one of the connections.
#[derive(Debug)]
pub(in crate::backend) struct PoolPermit {
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct IdleSlots {
    connections_max: usize,
    /// The key that sets it.
    limit_key: &'static str,
    /// Whether a connection serves another call after its own.
    reuses_connections: bool,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// What nobody uses, the latest used at the end.
    free: Vec<(SharingKey, Arc<Instance>)>,
    checked_out: Vec<(SharingKey, Arc<Instance>)>,
    /// What was lost, could not be made or sleeps, until another takes its place. With all others
    /// never more than there may be connections.
    lost: Vec<(SharingKey, Arc<Instance>)>,
    /// Starts that failed: another with the key waits its time. At most as many as connections.
    failed: HashMap<SharingKey, Arc<Instance>>,
    /// Whether nothing is checked out any more.
    is_closed: bool,
}

impl ConnectionPool {
    /// The pool of a server that is configured to have one.
    pub(in crate::backend) fn of(config: &Server) -> Option<Self> {
        let (connections_max, limit, lends_again) = match config.isolation {
            Isolation::Agent | Isolation::Auto | Isolation::Session | Isolation::Shared => {
                return None;
            }
            Isolation::Call => (config.max_instances, "max_instances", false),
            Isolation::Pool => (config.pool_size, "pool_size", true),
        };
        let connections_max = connections_max.min(Semaphore::MAX_PERMITS);
        Some(Self {
            permits: Arc::new(Semaphore::new(connections_max)),
            waiting: InFlight::default(),
            slots: Arc::new(IdleSlots {
                connections_max,
                limit_key: limit,
                reuses_connections: lends_again,
                state: Mutex::default(),
            }),
        })
    }

    /// Waits for a connection to become free; who came first is served first.
    pub(in crate::backend) async fn acquire(
        &self,
        until: Instant,
    ) -> Result<PoolPermit, BackendError> {
        // None is to be had while anybody waits.
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(PoolPermit { _permit: permit });
        }
        let _waiting = self.waiting.enter();
        let turn = Arc::clone(&self.permits).acquire_owned();
        match timeout_at(until, turn).await {
            // It is never closed.
            Ok(Ok(permit)) => Ok(PoolPermit { _permit: permit }),
            Ok(Err(_)) | Err(_) => Err(BackendError::InstancesBusy {
                limit: self.slots.connections_max,
                key: self.slots.limit_key,
            }),
        }
    }

    /// Completes once it is known how the last connection of `key` was lost, a moment after the call on
    /// it is: the next one takes its place.
    pub(in crate::backend) async fn wait_loss_known(&self, key: &SharingKey) {
        let is_falling =
            |(known, it): &&(SharingKey, Arc<Instance>)| known == key && !it.is_abandoned();
        let falling = self.slots.lock().lost.iter().find(is_falling).cloned();
        if let Some((_, instance)) = falling {
            drop(timeout(LOSS_DETECTION_DELAY, instance.until_abandoned()).await);
        }
    }

    /// Lends a connection of `key`, present or to be; `start` begins to make one in the place of
    /// another.
    pub(in crate::backend) fn lend(
        &self,
        turn: PoolPermit,
        key: SharingKey,
        start: impl FnOnce(Predecessor) -> Arc<Instance>,
    ) -> Result<PooledConnection, BackendError> {
        let mut state = self.slots.lock();
        if state.is_closed {
            let reason = "the config has changed".to_owned();
            return Err(BackendError::Lost { reason });
        }
        state.drop_unusable();
        let instance = if let Some(at) = state.free.iter().rposition(|(known, _)| *known == key) {
            state.free.remove(at).1
        } else {
            let failures = state.failures(&key)?;
            // One that serves one call only is nothing that another goes on with.
            let identity = (self.slots.reuses_connections)
                .then(|| state.take_predecessor(&key))
                .flatten();
            state.evict_idle(self.slots.connections_max);
            start(Predecessor { failures, identity })
        };
        instance.touch();
        state.checked_out.push((key, Arc::clone(&instance)));
        Ok(PooledConnection {
            instance,
            slots: Arc::clone(&self.slots),
            in_call: false,
            _permit: turn,
        })
    }

    /// Ends every connection, and lends none any more.
    pub(in crate::backend) fn close(&self) {
        let mut state = self.slots.lock();
        state.is_closed = true;
        let free = std::mem::take(&mut state.free);
        state.lost.clear();
        for (_, instance) in free.iter().chain(&state.checked_out) {
            instance.stop.cancel();
        }
    }

    /// Calls that wait for a connection to become free.
    pub(in crate::backend) fn waiting(&self) -> usize {
        usize::try_from(self.waiting.count()).unwrap_or(usize::MAX)
    }

    /// Connections that are used, could be, or are being made.
    pub(in crate::backend) fn live(&self) -> usize {
        let state = self.slots.lock();
        let all = state.free.iter().chain(&state.checked_out);
        all.filter(|(_, instance)| is_usable(instance)).count()
    }

    /// Connections that serve a call.
    pub(in crate::backend) fn busy(&self) -> usize {
        self.slots.lock().checked_out.len()
    }

    /// All its connections that are used, could be, or are being made, and what was lost and not
    /// replaced yet.
    pub(in crate::backend) fn with_lost(&self) -> Vec<Arc<Instance>> {
        let mut state = self.slots.lock();
        state.prune();
        let free = state.free.iter().filter(|(_, it)| !it.stop.is_cancelled());
        let all = free.chain(&state.checked_out).chain(&state.lost);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// All its connections.
    pub(in crate::backend) fn all(&self) -> Vec<Arc<Instance>> {
        let state = self.slots.lock();
        let all = state.free.iter().chain(&state.checked_out);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// The connections that belong to the session `id` alone.
    pub(in crate::backend) fn of_session(&self, id: &str) -> Vec<Arc<Instance>> {
        let state = self.slots.lock();
        let all = state.free.iter().chain(&state.checked_out);
        let own = all.filter(|(key, _)| matches!(&key.sharing, Sharing::Session(of) if of == id));
        own.map(|(_, instance)| Arc::clone(instance)).collect()
    }
}

impl IdleSlots {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }
}

impl PoolState {
    /// Takes what cannot be checked out any more off the shelf.
    fn drop_unusable(&mut self) {
        self.prune();
        let is_unusable = |(_, instance): &mut (SharingKey, Arc<Instance>)| !is_usable(instance);
        let unusable: Vec<_> = self.free.extract_if(.., is_unusable).collect();
        for (key, instance) in unusable {
            self.remember_lost(key, instance);
        }
    }

    /// Remembers an instance that has ended, unless it was told to.
    fn remember_lost(&mut self, key: SharingKey, instance: Arc<Instance>) {
        if !instance.stop.is_cancelled() {
            self.lost.push((key, instance));
        }
    }

    /// Forgets what nobody takes the place of, and what turns out to have ended as it should.
    fn prune(&mut self) {
        self.lost.retain(|(_, instance)| {
            let life = &instance.identity.state_machine;
            let was_meant = instance.is_abandoned() && !life.is_down() && !life.is_asleep();
            !was_meant && !instance.is_removable()
        });
    }

    /// What another instance of `key` takes over.
    fn take_predecessor(&mut self, key: &SharingKey) -> Option<Arc<InstanceIdentity>> {
        let mut fallen = self.lost.iter();
        let at = fallen.position(|(known, instance)| known == key && instance.is_abandoned())?;
        Some(Arc::clone(&self.lost.swap_remove(at).1.identity))
    }

    /// Makes room for one more of `max`. All that are checked out have a turn, as this one will have: if that
    /// makes too many, one of the others can go.
    fn evict_idle(&mut self, max: usize) {
        while self.free.len() + self.checked_out.len() + self.lost.len() >= max {
            if !self.lost.is_empty() {
                self.lost.remove(0);
            } else if !self.free.is_empty() {
                self.free.remove(0).1.stop.cancel();
            } else {
                return;
            }
        }
    }

    /// Failures in a row before another start with `key`; the last of them, while it is too early
    /// for one.
    fn failures(&self, key: &SharingKey) -> Result<u32, BackendError> {
        let Some(failed) = self.failed.get(key) else {
            return Ok(0);
        };
        match failed.backoff_error() {
            Some(failure) => Err(failure),
            None => Ok(failed.retry.failures()),
        }
    }
}

/// A connection that serves nobody else until this is dropped.
#[derive(Debug)]
pub(in crate::backend) struct PooledConnection {
    pub(in crate::backend) instance: Arc<Instance>,
    slots: Arc<IdleSlots>,
    /// Whether its server may be at work on a call.
    in_call: bool,
    /// Dropped last: whoever is next finds the connection on the shelf.
    _permit: PoolPermit,
}

impl PooledConnection {
    /// Notes whether the connection could be made.
    pub(in crate::backend) fn note_start(&self, is_made: bool) {
        let mut state = self.slots.lock();
        let Some(at) = state.position(&self.instance) else {
            return;
        };
        let key = state.checked_out[at].0.clone();
        if is_made {
            state.failed.remove(&key);
        } else if self.instance.is_backing_off() {
            state.failed.retain(|_, failed| failed.is_backing_off());
            let is_known = state.failed.contains_key(&key);
            if is_known || state.failed.len() < self.slots.connections_max {
                state.failed.insert(key, Arc::clone(&self.instance));
            }
        }
    }

    /// Notes that a call is made on it.
    pub(in crate::backend) fn note_call(&mut self) {
        self.in_call = true;
    }

    /// Notes that the call was answered.
    pub(in crate::backend) fn note_answer(&mut self) {
        self.in_call = false;
    }
}

impl PoolState {
    fn position(&self, instance: &Arc<Instance>) -> Option<usize> {
        let mut checked_out = self.checked_out.iter();
        checked_out.position(|(_, known)| Arc::ptr_eq(known, instance))
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        self.instance.touch();
        let mut state = self.slots.lock();
        let Some(at) = state.position(&self.instance) else {
            return;
        };
        let entry = state.checked_out.swap_remove(at);
        let lends_again = self.slots.reuses_connections && !state.is_closed;
        if lends_again && !self.in_call && is_usable(&self.instance) {
            state.free.push(entry);
            return;
        }
        // Whether one with an unanswered call was lost or is only ended is known in a moment.
        if !state.is_closed && (self.in_call || !is_usable(&self.instance)) {
            let (key, instance) = entry;
            state.remember_lost(key, instance);
        }
        self.instance.stop.cancel();
    }
}

fn is_usable(instance: &Instance) -> bool {
    match instance.phase() {
        InstancePhase::Connecting => !instance.stop.is_cancelled(),
        InstancePhase::Asleep(_) | InstancePhase::Down { .. } => false,
        InstancePhase::Ready(connection) => !connection.closed().is_cancelled(),
    }
}

#[cfg(test)]
mod tests;
