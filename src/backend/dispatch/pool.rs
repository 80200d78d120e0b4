//! Connections that serve one call at a time: `isolation = "pool"` lends a few of them again and
//! again, `isolation = "call"` makes one for each call.
//!
//! `selection` asks for a [`PoolPermit`], which are given first come first served, and then for a
//! [`Loan`]. There are never more connections than turns, and never more than one call on each:
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
const SETTLE: Duration = Duration::from_millis(100);

/// The connections of one server that serve one call at a time.
#[derive(Debug)]
pub(in crate::backend) struct ConnectionPool {
    turns: Arc<Semaphore>,
    /// Calls that wait for a turn.
    waiting: InFlight,
    shelf: Arc<IdleSlots>,
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
    limit: &'static str,
    /// Whether a connection serves another call after its own.
    lends_again: bool,
    books: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// What nobody uses, the latest used at the end.
    free: Vec<(SharingKey, Arc<Instance>)>,
    lent: Vec<(SharingKey, Arc<Instance>)>,
    /// What was lost, could not be made or sleeps, until another takes its place. With all others
    /// never more than there may be connections.
    fallen: Vec<(SharingKey, Arc<Instance>)>,
    /// Starts that failed: another with the key waits its time. At most as many as connections.
    failed: HashMap<SharingKey, Arc<Instance>>,
    /// Whether nothing is lent any more.
    is_over: bool,
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
            turns: Arc::new(Semaphore::new(connections_max)),
            waiting: InFlight::default(),
            shelf: Arc::new(IdleSlots {
                connections_max,
                limit,
                lends_again,
                books: Mutex::default(),
            }),
        })
    }

    /// Waits for a connection to become free; who came first is served first.
    pub(in crate::backend) async fn turn(
        &self,
        until: Instant,
    ) -> Result<PoolPermit, BackendError> {
        // None is to be had while anybody waits.
        if let Ok(permit) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(PoolPermit { _permit: permit });
        }
        let _waiting = self.waiting.enter();
        let turn = Arc::clone(&self.turns).acquire_owned();
        match timeout_at(until, turn).await {
            // It is never closed.
            Ok(Ok(permit)) => Ok(PoolPermit { _permit: permit }),
            Ok(Err(_)) | Err(_) => Err(BackendError::InstancesBusy {
                limit: self.shelf.connections_max,
                key: self.shelf.limit,
            }),
        }
    }

    /// Completes once it is known how the last connection of `key` was lost, a moment after the call on
    /// it is: the next one takes its place.
    pub(in crate::backend) async fn settled(&self, key: &SharingKey) {
        let is_falling =
            |(known, it): &&(SharingKey, Arc<Instance>)| known == key && !it.is_abandoned();
        let falling = self.shelf.lock().fallen.iter().find(is_falling).cloned();
        if let Some((_, instance)) = falling {
            drop(timeout(SETTLE, instance.end()).await);
        }
    }

    /// Lends a connection of `key`, present or to be; `start` begins to make one in the place of
    /// another.
    pub(in crate::backend) fn lend(
        &self,
        turn: PoolPermit,
        key: SharingKey,
        start: impl FnOnce(Predecessor) -> Arc<Instance>,
    ) -> Result<Loan, BackendError> {
        let mut books = self.shelf.lock();
        if books.is_over {
            let reason = "the config has changed".to_owned();
            return Err(BackendError::Lost { reason });
        }
        books.drop_unusable();
        let instance = if let Some(at) = books.free.iter().rposition(|(known, _)| *known == key) {
            books.free.remove(at).1
        } else {
            let failures = books.failures(&key)?;
            // One that serves one call only is nothing that another goes on with.
            let lineage = (self.shelf.lends_again)
                .then(|| books.raise(&key))
                .flatten();
            books.make_room(self.shelf.connections_max);
            start(Predecessor { failures, lineage })
        };
        instance.touch();
        books.lent.push((key, Arc::clone(&instance)));
        Ok(Loan {
            instance,
            shelf: Arc::clone(&self.shelf),
            is_called: false,
            _turn: turn,
        })
    }

    /// Ends every connection, and lends none any more.
    pub(in crate::backend) fn end(&self) {
        let mut books = self.shelf.lock();
        books.is_over = true;
        let free = std::mem::take(&mut books.free);
        books.fallen.clear();
        for (_, instance) in free.iter().chain(&books.lent) {
            instance.stop.cancel();
        }
    }

    /// Calls that wait for a connection to become free.
    pub(in crate::backend) fn waiting(&self) -> usize {
        usize::try_from(self.waiting.now()).unwrap_or(usize::MAX)
    }

    /// Connections that are used, could be, or are being made.
    pub(in crate::backend) fn live(&self) -> usize {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        all.filter(|(_, instance)| is_usable(instance)).count()
    }

    /// Connections that serve a call.
    pub(in crate::backend) fn busy(&self) -> usize {
        self.shelf.lock().lent.len()
    }

    /// All its connections that are used, could be, or are being made, and what was lost and not
    /// replaced yet.
    pub(in crate::backend) fn with_fallen(&self) -> Vec<Arc<Instance>> {
        let mut books = self.shelf.lock();
        books.forget();
        let free = books.free.iter().filter(|(_, it)| !it.stop.is_cancelled());
        let all = free.chain(&books.lent).chain(&books.fallen);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// All its connections.
    pub(in crate::backend) fn all(&self) -> Vec<Arc<Instance>> {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// The connections that belong to the session `id` alone.
    pub(in crate::backend) fn of_session(&self, id: &str) -> Vec<Arc<Instance>> {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        let own = all.filter(|(key, _)| matches!(&key.owner, Sharing::Session(of) if of == id));
        own.map(|(_, instance)| Arc::clone(instance)).collect()
    }
}

impl IdleSlots {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.books)
    }
}

impl PoolState {
    /// Takes what cannot be lent any more off the shelf.
    fn drop_unusable(&mut self) {
        self.forget();
        let is_unusable = |(_, instance): &mut (SharingKey, Arc<Instance>)| !is_usable(instance);
        let unusable: Vec<_> = self.free.extract_if(.., is_unusable).collect();
        for (key, instance) in unusable {
            self.bury(key, instance);
        }
    }

    /// Remembers an instance that has ended, unless it was told to.
    fn bury(&mut self, key: SharingKey, instance: Arc<Instance>) {
        if !instance.stop.is_cancelled() {
            self.fallen.push((key, instance));
        }
    }

    /// Forgets what nobody takes the place of, and what turns out to have ended as it should.
    fn forget(&mut self) {
        self.fallen.retain(|(_, instance)| {
            let life = &instance.lineage.life;
            let was_meant = instance.is_abandoned() && !life.is_down() && !life.is_asleep();
            !was_meant && !instance.is_forgotten()
        });
    }

    /// What another instance of `key` takes over.
    fn raise(&mut self, key: &SharingKey) -> Option<Arc<InstanceIdentity>> {
        let mut fallen = self.fallen.iter();
        let at = fallen.position(|(known, instance)| known == key && instance.is_abandoned())?;
        Some(Arc::clone(&self.fallen.swap_remove(at).1.lineage))
    }

    /// Makes room for one more of `max`. All that are lent have a turn, as this one will have: if that
    /// makes too many, one of the others can go.
    fn make_room(&mut self, max: usize) {
        while self.free.len() + self.lent.len() + self.fallen.len() >= max {
            if !self.fallen.is_empty() {
                self.fallen.remove(0);
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
        match failed.backing_off() {
            Some(failure) => Err(failure),
            None => Ok(failed.failures()),
        }
    }
}

/// A connection that serves nobody else until this is dropped.
#[derive(Debug)]
pub(in crate::backend) struct Loan {
    pub(in crate::backend) instance: Arc<Instance>,
    shelf: Arc<IdleSlots>,
    /// Whether its server may be at work on a call.
    is_called: bool,
    /// Dropped last: whoever is next finds the connection on the shelf.
    _turn: PoolPermit,
}

impl Loan {
    /// Notes whether the connection could be made.
    pub(in crate::backend) fn note_start(&self, is_made: bool) {
        let mut books = self.shelf.lock();
        let Some(at) = books.position(&self.instance) else {
            return;
        };
        let key = books.lent[at].0.clone();
        if is_made {
            books.failed.remove(&key);
        } else if self.instance.must_wait() {
            books.failed.retain(|_, failed| failed.must_wait());
            let is_known = books.failed.contains_key(&key);
            if is_known || books.failed.len() < self.shelf.connections_max {
                books.failed.insert(key, Arc::clone(&self.instance));
            }
        }
    }

    /// Notes that a call is made on it.
    pub(in crate::backend) fn note_call(&mut self) {
        self.is_called = true;
    }

    /// Notes that the call was answered.
    pub(in crate::backend) fn note_answer(&mut self) {
        self.is_called = false;
    }
}

impl PoolState {
    fn position(&self, instance: &Arc<Instance>) -> Option<usize> {
        let mut lent = self.lent.iter();
        lent.position(|(_, known)| Arc::ptr_eq(known, instance))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.instance.touch();
        let mut books = self.shelf.lock();
        let Some(at) = books.position(&self.instance) else {
            return;
        };
        let entry = books.lent.swap_remove(at);
        let lends_again = self.shelf.lends_again && !books.is_over;
        if lends_again && !self.is_called && is_usable(&self.instance) {
            books.free.push(entry);
            return;
        }
        // Whether one with an unanswered call was lost or is only ended is known in a moment.
        if !books.is_over && (self.is_called || !is_usable(&self.instance)) {
            let (key, instance) = entry;
            books.bury(key, instance);
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
