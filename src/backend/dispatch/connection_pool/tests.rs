//! Who is served when, on which connection, and what is remembered of those that are gone.

use futures_util::FutureExt;

use super::*;
use crate::{
    backend::{
        instance::{ABANDONED_TTL, identity::SharedBy, reconnect::ReconnectPolicy},
        state_machine::ServerEvent,
    },
    config::Transport,
    mcp::Era,
    names::ServerName,
    task::Tasks,
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn pool(connections_max: usize, lends_again: bool) -> ConnectionPool {
    ConnectionPool {
        permits: Arc::new(Semaphore::new(connections_max)),
        waiting: InFlight::default(),
        slots: Arc::new(IdleSlots {
            connections_max,
            limit_key: "pool_size",
            reuses_connections: lends_again,
            state: Mutex::default(),
        }),
    }
}

fn instance(tasks: &Tasks) -> Arc<Instance> {
    let server = ServerName::parse("x").unwrap();
    let callers = SharedBy::for_anyone(Era::Legacy);
    let reach = ReconnectPolicy::new(&Transport::Builtin, 30);
    let identity = InstanceIdentity::for_callers(&server, callers, &reach, tasks);
    Instance::new(identity, None)
}

/// What whoever keeps it does when its connection could not be made or was lost.
fn lose(instance: &Instance, failure: BackendError) {
    instance
        .identity
        .state_machine
        .apply(ServerEvent::Unreachable, None);
    instance.abandon(failure);
}

fn key(profile: &str) -> SharingKey {
    SharingKey::new(Sharing::Shared, Era::Legacy, profile.into())
}

async fn loan(pool: &ConnectionPool, profile: &str, tasks: &Tasks) -> PooledConnection {
    let turn = pool.acquire(soon()).await.unwrap();
    pool.lend(turn, key(profile), |_| instance(tasks)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_came_first_is_served_first_and_none_beyond_the_limit() {
    let (tasks, pool) = (Tasks::new(), pool(2, true));
    let (one, two) = (loan(&pool, "", &tasks).await, loan(&pool, "", &tasks).await);
    assert_ne!(one.instance.id, two.instance.id);
    let mut third = Box::pin(pool.acquire(soon()));
    let mut fourth = Box::pin(pool.acquire(soon()));
    assert!(
        (&mut third).now_or_never().is_none(),
        "both are checked out"
    );
    assert!((&mut fourth).now_or_never().is_none());
    let first = one.instance.id;
    drop(one);
    assert!((&mut fourth).now_or_never().is_none(), "it came later");
    let turn = third.now_or_never().unwrap().unwrap();
    let third = pool.lend(turn, key(""), |_| instance(&tasks)).unwrap();
    assert_eq!(third.instance.id, first, "it is checked out again");
    let busy = BackendError::InstancesBusy {
        limit: 2,
        key: "pool_size",
    };
    assert_eq!(fourth.await.err(), Some(busy), "nothing in time");
    // Who gives up leaves the line.
    drop(pool.acquire(soon()).now_or_never());
    drop(two);
    assert!(pool.acquire(soon()).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn another_key_takes_the_place_of_what_is_free_the_longest_unused_first() {
    let (tasks, pool) = (Tasks::new(), pool(2, true));
    let (one, two) = (
        loan(&pool, "a", &tasks).await,
        loan(&pool, "b", &tasks).await,
    );
    let (a, b) = (Arc::clone(&one.instance), Arc::clone(&two.instance));
    drop(one);
    drop(two);
    assert_eq!(pool.live(), 2);
    let three = loan(&pool, "c", &tasks).await;
    assert!(a.stop.is_cancelled() && !b.stop.is_cancelled());
    assert_eq!(pool.live(), 2);
    assert_eq!(loan(&pool, "b", &tasks).await.instance.id, b.id);
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
        let mut loan = loan(&pool, "", &tasks).await;
        let instance = Arc::clone(&loan.instance);
        if called {
            loan.note_call();
        }
        if answered {
            loan.note_answer();
        }
        drop(loan);
        let is_ended = instance.stop.is_cancelled();
        assert_eq!(is_ended, ends, "{lends_again} {called} {answered}");
        assert_eq!(pool.live(), usize::from(!ends));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lent_after_the_end() {
    let (tasks, pool) = (Tasks::new(), pool(3, true));
    let (free, checked_out) = (loan(&pool, "", &tasks).await, loan(&pool, "", &tasks).await);
    let instances = [
        Arc::clone(&free.instance),
        Arc::clone(&checked_out.instance),
    ];
    drop(free);
    pool.close();
    assert!(
        instances
            .iter()
            .all(|instance| instance.stop.is_cancelled())
    );
    let turn = pool.acquire(soon()).await.unwrap();
    let more = pool.lend(turn, key(""), |_| instance(&tasks));
    assert!(matches!(more, Err(BackendError::Lost { .. })), "{more:?}");
    drop(checked_out);
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
    let lost = BackendError::SessionGone;
    let first = loan(&pool, "", &tasks).await;
    let now = Instant::now();
    first
        .instance
        .retry
        .note_failure(retry, now, Duration::ZERO);
    lose(&first.instance, lost.clone());
    first.note_start(false);
    let number = first.instance.identity.number;
    drop(first);
    let turn = async || pool.acquire(soon()).await.unwrap();
    let again = pool.lend(turn().await, key(""), |_| instance(&tasks));
    assert_eq!(again.err(), Some(lost));
    loan(&pool, "of another kind", &tasks).await;
    tokio::time::advance(Duration::from_millis(1001)).await;
    let mut taken = Predecessor::default();
    let started = pool.lend(turn().await, key(""), |before| {
        taken = before;
        instance(&tasks)
    });
    assert!(started.is_ok());
    assert_eq!(taken.failures, 1, "the next delay is longer");
    assert_eq!(taken.identity.map(|it| it.number), Some(number));
}

/// The number of the identity that the next connection of `profile` goes on with.
async fn goes_on_with(pool: &ConnectionPool, profile: &str, tasks: &Tasks) -> Option<u64> {
    let turn = pool.acquire(soon()).await.unwrap();
    let mut taken = None;
    let loan = pool.lend(turn, key(profile), |before| {
        taken = before.identity.as_ref().map(|identity| identity.number);
        before
            .identity
            .map_or_else(|| instance(tasks), |identity| Instance::new(identity, None))
    });
    drop(loan.unwrap());
    taken
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_is_remembered_until_another_takes_its_place() {
    let (tasks, pool) = (Tasks::new(), pool(2, true));
    let lost = loan(&pool, "", &tasks).await;
    let number = Some(lost.instance.identity.number);
    let instance = Arc::clone(&lost.instance);
    instance.set_phase(InstancePhase::Down {
        failure: BackendError::SessionGone,
    });
    drop(lost);
    assert_eq!((pool.live(), pool.with_lost().len()), (0, 1));
    let taken = goes_on_with(&pool, "", &tasks).await;
    assert_eq!(taken, None, "it is still kept");
    pool.slots.lock().free.clear();
    lose(&instance, BackendError::SessionGone);
    assert_eq!(goes_on_with(&pool, "of another kind", &tasks).await, None);
    pool.slots.lock().free.clear();
    assert_eq!(goes_on_with(&pool, "", &tasks).await, number);
    assert_eq!(pool.with_lost().len(), 1, "what took its place");
    pool.slots.lock().free.clear();
    // One that was ended with its call unanswered is not missed.
    let mut unanswered = loan(&pool, "", &tasks).await;
    unanswered.note_call();
    let instance = Arc::clone(&unanswered.instance);
    drop(unanswered);
    instance.abandon(BackendError::SessionGone);
    assert_eq!(pool.with_lost().len(), 0);
    // Nor is what was meant to end.
    let ended = loan(&pool, "", &tasks).await;
    ended.instance.stop.cancel();
    ended.instance.abandon(BackendError::SessionGone);
    drop(ended);
    assert_eq!(pool.with_lost().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_takes_the_place_of_is_forgotten() {
    let (tasks, pool) = (Tasks::new(), pool(1, true));
    let lost = loan(&pool, "", &tasks).await;
    lose(&lost.instance, BackendError::SessionGone);
    drop(lost);
    let moment = Duration::from_millis(1);
    tokio::time::advance(ABANDONED_TTL.saturating_sub(moment)).await;
    assert_eq!(pool.with_lost().len(), 1);
    tokio::time::advance(moment).await;
    assert_eq!(pool.with_lost().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_remembered_than_there_may_be() {
    let (tasks, pool) = (Tasks::new(), pool(2, true));
    for profile in ["a", "b", "c"] {
        let lost = loan(&pool, profile, &tasks).await;
        lose(&lost.instance, BackendError::SessionGone);
        drop(lost);
    }
    assert_eq!(pool.with_lost().len(), 2);
    let one = loan(&pool, "d", &tasks).await;
    assert_eq!(pool.with_lost().len(), 2, "one of them gave way");
    let another = loan(&pool, "e", &tasks).await;
    assert_eq!(pool.with_lost().len(), 2, "both are checked out");
    drop((one, another));
}
