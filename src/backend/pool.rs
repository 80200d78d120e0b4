//! Connections that serve one call at a time: `isolation = "pool"` lends a few of them again and
//! again, `isolation = "call"` makes one for each call.
//!
//! `choice` asks for a [`Turn`], which are given first come first served, and then for a
//! [`Lease`]. There are never more connections than turns, and never more than one call on each:
//! a connection whose call was not answered is ended, since its server may still be at work on it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

use super::{
    Failure,
    choice::{Before, Key, Owner},
    instance::{Instance, Phase},
    lineage::Lineage,
};
use crate::{
    config::{Isolation, Server},
    lock::lock,
};

/// Longer than it takes to notice that a connection was lost.
const SETTLE: Duration = Duration::from_millis(100);

/// The connections of one server that serve one call at a time.
#[derive(Debug)]
pub(super) struct Pool {
    turns: Arc<Semaphore>,
    /// Calls that wait for a turn.
    waiting: AtomicUsize,
    shelf: Arc<Shelf>,
}

/// The right to one of the connections.
#[derive(Debug)]
pub(super) struct Turn {
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Shelf {
    connections_max: usize,
    /// The key that sets it.
    limit: &'static str,
    /// Whether a connection serves another call after its own.
    lends_again: bool,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// What nobody uses, the latest used at the end.
    free: Vec<(Key, Arc<Instance>)>,
    lent: Vec<(Key, Arc<Instance>)>,
    /// What was lost, could not be made or sleeps, until another takes its place. With all others
    /// never more than there may be connections.
    fallen: Vec<(Key, Arc<Instance>)>,
    /// Starts that failed: another with the key waits its time. At most as many as connections.
    failed: HashMap<Key, Arc<Instance>>,
    /// Whether nothing is lent any more.
    is_over: bool,
}

impl Pool {
    /// The pool of a server that is configured to have one.
    pub(super) fn of(config: &Server) -> Option<Self> {
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
            waiting: AtomicUsize::new(0),
            shelf: Arc::new(Shelf {
                connections_max,
                limit,
                lends_again,
                books: Mutex::default(),
            }),
        })
    }

    /// Waits for a connection to become free; who came first is served first.
    pub(super) async fn turn(&self, until: Instant) -> Result<Turn, Failure> {
        // None is to be had while anybody waits.
        if let Ok(permit) = Arc::clone(&self.turns).try_acquire_owned() {
            return Ok(Turn { _permit: permit });
        }
        let _waiting = Waiting::new(&self.waiting);
        let turn = Arc::clone(&self.turns).acquire_owned();
        match timeout_at(until, turn).await {
            // It is never closed.
            Ok(Ok(permit)) => Ok(Turn { _permit: permit }),
            Ok(Err(_)) | Err(_) => Err(Failure::InstancesBusy {
                limit: self.shelf.connections_max,
                key: self.shelf.limit,
            }),
        }
    }

    /// Completes once it is known how the last connection of `key` was lost, a moment after the call on
    /// it is: the next one takes its place.
    pub(super) async fn settled(&self, key: &Key) {
        let is_falling = |(known, it): &&(Key, Arc<Instance>)| known == key && !it.is_abandoned();
        let falling = self.shelf.lock().fallen.iter().find(is_falling).cloned();
        if let Some((_, instance)) = falling {
            drop(timeout(SETTLE, instance.end()).await);
        }
    }

    /// Lends a connection of `key`, present or to be; `start` begins to make one in the place of
    /// another.
    pub(super) fn lend(
        &self,
        turn: Turn,
        key: Key,
        start: impl FnOnce(Before) -> Arc<Instance>,
    ) -> Result<Lease, Failure> {
        let mut books = self.shelf.lock();
        if books.is_over {
            let reason = "the config has changed".to_owned();
            return Err(Failure::Lost { reason });
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
            start(Before { failures, lineage })
        };
        instance.touch();
        books.lent.push((key, Arc::clone(&instance)));
        Ok(Lease {
            instance,
            shelf: Arc::clone(&self.shelf),
            is_called: false,
            _turn: turn,
        })
    }

    /// Ends every connection, and lends none any more.
    pub(super) fn end(&self) {
        let mut books = self.shelf.lock();
        books.is_over = true;
        let free = std::mem::take(&mut books.free);
        books.fallen.clear();
        for (_, instance) in free.iter().chain(&books.lent) {
            instance.stop.cancel();
        }
    }

    /// Calls that wait for a connection to become free.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Connections that are used, could be, or are being made.
    pub(super) fn live(&self) -> usize {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        all.filter(|(_, instance)| is_usable(instance)).count()
    }

    /// Connections that serve a call.
    pub(super) fn busy(&self) -> usize {
        self.shelf.lock().lent.len()
    }

    /// All its connections that are used, could be, or are being made, and what was lost and not
    /// replaced yet.
    pub(super) fn with_fallen(&self) -> Vec<Arc<Instance>> {
        let mut books = self.shelf.lock();
        books.forget();
        let free = books.free.iter().filter(|(_, it)| !it.stop.is_cancelled());
        let all = free.chain(&books.lent).chain(&books.fallen);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// All its connections.
    pub(super) fn all(&self) -> Vec<Arc<Instance>> {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        all.map(|(_, instance)| Arc::clone(instance)).collect()
    }

    /// The connections that belong to the session `id` alone.
    pub(super) fn of_session(&self, id: &str) -> Vec<Arc<Instance>> {
        let books = self.shelf.lock();
        let all = books.free.iter().chain(&books.lent);
        let own = all.filter(|(key, _)| matches!(&key.owner, Owner::Session(of) if of == id));
        own.map(|(_, instance)| Arc::clone(instance)).collect()
    }
}

/// Counts a call that waits until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }
}

impl Books {
    /// Takes what cannot be lent any more off the shelf.
    fn drop_unusable(&mut self) {
        self.forget();
        let is_unusable = |(_, instance): &mut (Key, Arc<Instance>)| !is_usable(instance);
        let unusable: Vec<_> = self.free.extract_if(.., is_unusable).collect();
        for (key, instance) in unusable {
            self.bury(key, instance);
        }
    }

    /// Remembers an instance that has ended, unless it was told to.
    fn bury(&mut self, key: Key, instance: Arc<Instance>) {
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
    fn raise(&mut self, key: &Key) -> Option<Arc<Lineage>> {
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
    fn failures(&self, key: &Key) -> Result<u32, Failure> {
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
pub(super) struct Lease {
    pub(super) instance: Arc<Instance>,
    shelf: Arc<Shelf>,
    /// Whether its server may be at work on a call.
    is_called: bool,
    /// Dropped last: whoever is next finds the connection on the shelf.
    _turn: Turn,
}

impl Lease {
    /// Notes whether the connection could be made.
    pub(super) fn note_start(&self, is_made: bool) {
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
    pub(super) fn note_call(&mut self) {
        self.is_called = true;
    }

    /// Notes that the call was answered.
    pub(super) fn note_answer(&mut self) {
        self.is_called = false;
    }
}

impl Books {
    fn position(&self, instance: &Arc<Instance>) -> Option<usize> {
        let mut lent = self.lent.iter();
        lent.position(|(_, known)| Arc::ptr_eq(known, instance))
    }
}

impl Drop for Lease {
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
        Phase::Connecting => !instance.stop.is_cancelled(),
        Phase::Asleep(_) | Phase::Down { .. } => false,
        Phase::Ready(connection) => !connection.closed().is_cancelled(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::{
        backend::{instance::REMEMBERED, life::Event, lineage::Callers},
        mcp::Era,
        names::ServerName,
        task::Tasks,
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn pool(connections_max: usize, lends_again: bool) -> Pool {
        Pool {
            turns: Arc::new(Semaphore::new(connections_max)),
            waiting: AtomicUsize::new(0),
            shelf: Arc::new(Shelf {
                connections_max,
                limit: "pool_size",
                lends_again,
                books: Mutex::default(),
            }),
        }
    }

    fn instance(tasks: &Tasks) -> Arc<Instance> {
        let server = ServerName::parse("x").unwrap();
        let callers = Callers::any(Era::Legacy);
        Instance::new(Lineage::beside(&server, callers, tasks))
    }

    /// What whoever keeps it does when its connection could not be made or was lost.
    fn lose(instance: &Instance, failure: Failure) {
        instance.lineage.life.take(Event::Unreachable, None);
        instance.abandon(failure);
    }

    fn key(profile: &str) -> Key {
        Key::new(Owner::Shared, Era::Legacy, profile.into())
    }

    async fn lease(pool: &Pool, profile: &str, tasks: &Tasks) -> Lease {
        let turn = pool.turn(soon()).await.unwrap();
        pool.lend(turn, key(profile), |_| instance(tasks)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn who_came_first_is_served_first_and_none_beyond_the_limit() {
        let (tasks, pool) = (Tasks::new(), pool(2, true));
        let (one, two) = (
            lease(&pool, "", &tasks).await,
            lease(&pool, "", &tasks).await,
        );
        assert_ne!(one.instance.id, two.instance.id);
        let mut third = Box::pin(pool.turn(soon()));
        let mut fourth = Box::pin(pool.turn(soon()));
        assert!((&mut third).now_or_never().is_none(), "both are lent");
        assert!((&mut fourth).now_or_never().is_none());
        let first = one.instance.id;
        drop(one);
        assert!((&mut fourth).now_or_never().is_none(), "it came later");
        let turn = third.now_or_never().unwrap().unwrap();
        let third = pool.lend(turn, key(""), |_| instance(&tasks)).unwrap();
        assert_eq!(third.instance.id, first, "it is lent again");
        let busy = Failure::InstancesBusy {
            limit: 2,
            key: "pool_size",
        };
        assert_eq!(fourth.await.err(), Some(busy), "nothing in time");
        // Who gives up leaves the line.
        drop(pool.turn(soon()).now_or_never());
        drop(two);
        assert!(pool.turn(soon()).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn another_key_takes_the_place_of_what_is_free_the_longest_unused_first() {
        let (tasks, pool) = (Tasks::new(), pool(2, true));
        let (one, two) = (
            lease(&pool, "a", &tasks).await,
            lease(&pool, "b", &tasks).await,
        );
        let (a, b) = (Arc::clone(&one.instance), Arc::clone(&two.instance));
        drop(one);
        drop(two);
        assert_eq!(pool.live(), 2);
        let three = lease(&pool, "c", &tasks).await;
        assert!(a.stop.is_cancelled() && !b.stop.is_cancelled());
        assert_eq!(pool.live(), 2);
        assert_eq!(lease(&pool, "b", &tasks).await.instance.id, b.id);
        drop(three);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_an_unanswered_call_is_ended_and_so_is_what_is_for_one_call() {
        for (lends_again, called, answered, ends) in [
            (true, false, false, false),
            (true, true, true, false),
            (true, true, false, true),
            (false, true, true, true),
            (false, false, false, true),
        ] {
            let (tasks, pool) = (Tasks::new(), pool(1, lends_again));
            let mut lease = lease(&pool, "", &tasks).await;
            let instance = Arc::clone(&lease.instance);
            if called {
                lease.note_call();
            }
            if answered {
                lease.note_answer();
            }
            drop(lease);
            let is_ended = instance.stop.is_cancelled();
            assert_eq!(is_ended, ends, "{lends_again} {called} {answered}");
            assert_eq!(pool.live(), usize::from(!ends));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_lent_after_the_end() {
        let (tasks, pool) = (Tasks::new(), pool(3, true));
        let (free, lent) = (
            lease(&pool, "", &tasks).await,
            lease(&pool, "", &tasks).await,
        );
        let instances = [Arc::clone(&free.instance), Arc::clone(&lent.instance)];
        drop(free);
        pool.end();
        assert!(
            instances
                .iter()
                .all(|instance| instance.stop.is_cancelled())
        );
        let turn = pool.turn(soon()).await.unwrap();
        let more = pool.lend(turn, key(""), |_| instance(&tasks));
        assert!(matches!(more, Err(Failure::Lost { .. })), "{more:?}");
        drop(lent);
        assert_eq!(pool.live(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_failed_is_not_made_again_at_once() {
        let retry = crate::config::Retry {
            base: Duration::from_secs(1),
            max: Duration::from_secs(1),
            jitter: 0.0,
            stable_after: Duration::from_secs(30),
            starts_per_minute: 30,
            failed_after: 1,
        };
        let (tasks, pool) = (Tasks::new(), pool(2, true));
        let lost = Failure::SessionGone;
        let first = lease(&pool, "", &tasks).await;
        first.instance.note_failure(retry, Duration::ZERO);
        lose(&first.instance, lost.clone());
        first.note_start(false);
        let number = first.instance.lineage.number;
        drop(first);
        let turn = async || pool.turn(soon()).await.unwrap();
        let again = pool.lend(turn().await, key(""), |_| instance(&tasks));
        assert_eq!(again.err(), Some(lost));
        lease(&pool, "of another kind", &tasks).await;
        tokio::time::advance(Duration::from_millis(1001)).await;
        let mut taken = Before::default();
        let started = pool.lend(turn().await, key(""), |before| {
            taken = before;
            instance(&tasks)
        });
        assert!(started.is_ok());
        assert_eq!(taken.failures, 1, "the next delay is longer");
        assert_eq!(taken.lineage.map(|it| it.number), Some(number));
    }

    /// The number of the lineage that the next connection of `profile` goes on with.
    async fn goes_on_with(pool: &Pool, profile: &str, tasks: &Tasks) -> Option<u64> {
        let turn = pool.turn(soon()).await.unwrap();
        let mut taken = None;
        let lease = pool.lend(turn, key(profile), |before| {
            taken = before.lineage.as_ref().map(|lineage| lineage.number);
            before
                .lineage
                .map_or_else(|| instance(tasks), Instance::new)
        });
        drop(lease.unwrap());
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_is_remembered_until_another_takes_its_place() {
        let (tasks, pool) = (Tasks::new(), pool(2, true));
        let lost = lease(&pool, "", &tasks).await;
        let number = Some(lost.instance.lineage.number);
        let instance = Arc::clone(&lost.instance);
        instance.set(Phase::Down {
            failure: Failure::SessionGone,
        });
        drop(lost);
        assert_eq!((pool.live(), pool.with_fallen().len()), (0, 1));
        let taken = goes_on_with(&pool, "", &tasks).await;
        assert_eq!(taken, None, "it is still kept");
        pool.shelf.lock().free.clear();
        lose(&instance, Failure::SessionGone);
        assert_eq!(goes_on_with(&pool, "of another kind", &tasks).await, None);
        pool.shelf.lock().free.clear();
        assert_eq!(goes_on_with(&pool, "", &tasks).await, number);
        assert_eq!(pool.with_fallen().len(), 1, "what took its place");
        pool.shelf.lock().free.clear();
        // One that was ended with its call unanswered is not missed.
        let mut unanswered = lease(&pool, "", &tasks).await;
        unanswered.note_call();
        let instance = Arc::clone(&unanswered.instance);
        drop(unanswered);
        instance.abandon(Failure::SessionGone);
        assert_eq!(pool.with_fallen().len(), 0);
        // Nor is what was meant to end.
        let ended = lease(&pool, "", &tasks).await;
        ended.instance.stop.cancel();
        ended.instance.abandon(Failure::SessionGone);
        drop(ended);
        assert_eq!(pool.with_fallen().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_the_place_of_is_forgotten() {
        let (tasks, pool) = (Tasks::new(), pool(1, true));
        let lost = lease(&pool, "", &tasks).await;
        lose(&lost.instance, Failure::SessionGone);
        drop(lost);
        let moment = Duration::from_millis(1);
        tokio::time::advance(REMEMBERED.saturating_sub(moment)).await;
        assert_eq!(pool.with_fallen().len(), 1);
        tokio::time::advance(moment).await;
        assert_eq!(pool.with_fallen().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_remembered_than_there_may_be() {
        let (tasks, pool) = (Tasks::new(), pool(2, true));
        for profile in ["a", "b", "c"] {
            let lost = lease(&pool, profile, &tasks).await;
            lose(&lost.instance, Failure::SessionGone);
            drop(lost);
        }
        assert_eq!(pool.with_fallen().len(), 2);
        let one = lease(&pool, "d", &tasks).await;
        assert_eq!(pool.with_fallen().len(), 2, "one of them gave way");
        let another = lease(&pool, "e", &tasks).await;
        assert_eq!(pool.with_fallen().len(), 2, "both are lent");
        drop((one, another));
    }
}
