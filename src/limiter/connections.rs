//! How many connections clients may have open at once (`limits.connections`), in all and from one address.
//!
//! Every connection is an open file, of which the system allows a process only so many: without a bound
//! clients could take those that servers, the store and the audit need. For who comes when there is no
//! room a connection is closed that does nothing for its client:
//!
//! 1. one that brought no request, or has none under way, the one that has rested for longest;
//! 2. one whose requests are bodies that do not come to an end, the oldest.
//!
//! An address that has more than half of all connections gives one of its own first. Where there is none to
//! close, they wait in the queue of the system until somebody leaves. One address may have only so many
//! (`limits.connections_per_address`): those beyond are closed at once.

use std::{
    collections::HashMap,
    net::IpAddr,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use rustix::process::{Resource, getrlimit};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{clock::millis_since, lock::lock, names::PeerAddress, telemetry::LogThrottle};

/// Open files that are neither for clients nor for what they ask of servers, where half of those allowed are more.
const RESERVED_FILES: usize = 256;

/// Pause between looks whether there is somebody to send away, or whether the config allows more than it did.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a connection may bring no request although others wait: one that is used brings its first at
/// once, but its messages are under way for some time.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(250);

/// How long a connection may rest between requests although others wait. What a client sends on it in the
/// moment in which it is closed is lost to that, so that it should be one that is not used just now.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// How long a body may be under way although others wait.
const BODY_GRACE: Duration = Duration::from_secs(2);

/// The connections that are open.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    start: Instant,
    slots: Mutex<ConnectionSlots>,
    connection_closed: Notify,
    max: AtomicUsize,
    /// Written in the config; 0 where it is not.
    per_address_max: AtomicUsize,
    rejected: AtomicU64,
    /// That there was no room, in all and for one address.
    rejection_log: [Mutex<LogThrottle>; 2],
}

#[derive(Debug, Default)]
struct ConnectionSlots {
    next: u64,
    taken: HashMap<u64, Arc<ConnectionSlot>>,
    /// How many of each network, unless there is none: it has one.
    networks: HashMap<PeerAddress, usize>,
}

/// What is known of a connection.
#[derive(Debug)]
struct ConnectionSlot {
    network: PeerAddress,
    /// Requests without an answer, and event streams that go on.
    active: AtomicUsize,
    /// Those of `active` whose body has not come yet.
    unfinished: AtomicUsize,
    requests: AtomicU64,
    /// Milliseconds from the start until it came, or until the last answer ended or body began.
    since_ms: AtomicU64,
    closing: CancellationToken,
}

/// A connection is open until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    number: u64,
    slot: Arc<ConnectionSlot>,
    limit: Arc<ConnectionLimit>,
}

/// A request is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    slot: Arc<ConnectionSlot>,
    start: Instant,
}

/// The body of a request is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct UnfinishedBody(Arc<ConnectionSlot>);

impl ConnectionLimit {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            slots: Mutex::default(),
            connection_closed: Notify::new(),
            max: AtomicUsize::new(usize::MAX),
            per_address_max: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
            rejection_log: Default::default(),
        }
    }

    pub(super) fn set_max(&self, max: Option<NonZeroUsize>, per_address: Option<NonZeroUsize>) {
        let max = max.map_or_else(
            || connections_for_files(open_file_limit()),
            NonZeroUsize::get,
        );
        self.max.store(max, Ordering::Relaxed);
        let per_address = per_address.map_or(0, NonZeroUsize::get);
        self.per_address_max.store(per_address, Ordering::Relaxed);
    }

    /// How many connections may be open.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// How many requests to servers over HTTP there are files for.
    pub(super) fn left_for_calls(&self) -> usize {
        left(open_file_limit(), self.max())
    }

    /// How many are.
    pub(crate) fn open(&self) -> usize {
        lock(&self.slots).taken.len()
    }

    /// How many were closed at once since their address had as many as it may.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Completes when there is room for one more.
    async fn has_capacity(&self) {
        let is_full = || self.open() >= self.max();
        if !is_full() {
            return;
        }
        if let Some(more) = lock(&self.rejection_log[0]).record(Instant::now()) {
            tracing::warn!(
                max = self.max(),
                more,
                "connection limit reached: closing idle connections; new connections have to wait"
            );
        }
        // Who left before made room that is taken by now.
        let _ = self.connection_closed.notified().now_or_never();
        while is_full() {
            if let Some(slot) = self.eviction_candidate(|_| true) {
                slot.closing.cancel();
            }
            // Somebody has left, or it is time to look again.
            drop(timeout(POLL_INTERVAL, self.connection_closed.notified()).await);
        }
    }

    /// The connection that is closed for another, of those that are `eligible`.
    fn eviction_candidate(
        &self,
        eligible: impl Fn(&ConnectionSlot) -> bool,
    ) -> Option<Arc<ConnectionSlot>> {
        let now = self.start.elapsed();
        let slots = lock(&self.slots);
        let crowd = slots.taken.len() / 2;
        let idle = slots.taken.values().filter(|slot| eligible(slot));
        let idle = idle.filter_map(|slot| {
            let is_one_of_many = slots.count_for(slot.network) > crowd;
            let (rank, since) = slot.eviction_rank(now)?;
            Some(((!is_one_of_many, rank, since), slot))
        });
        let found = idle.min_by_key(|(order, _)| *order);
        found.map(|(_, slot)| Arc::clone(slot))
    }

    /// Lets a connection from `address` in once there is room for it; nobody else lets any in. One from an
    /// address that has as many as it may does not get in, and closes nobody else's.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        address: PeerAddress,
    ) -> Option<ConnectionPermit> {
        if !self.is_below_address_limit(address) {
            return None;
        }
        self.has_capacity().await;
        Some(self.acquire_unchecked(address))
    }

    /// Whether `address` may have one more connection.
    fn is_below_address_limit(&self, address: PeerAddress) -> bool {
        let network = address.to_network();
        let max = self.max_for_address(address);
        if lock(&self.slots).count_for(network) < max {
            return true;
        }
        self.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = lock(&self.rejection_log[1]).record(Instant::now()) {
            tracing::warn!(
                %network,
                max,
                more,
                "connection limit of an address reached (limits.connections_per_address)"
            );
        }
        // Who wants another has one less that it does not use.
        if let Some(slot) = self.eviction_candidate(|slot| slot.network == network) {
            slot.closing.cancel();
        }
        false
    }

    /// Lets one in, whoever is there already.
    pub(crate) fn acquire_unchecked(self: &Arc<Self>, address: PeerAddress) -> ConnectionPermit {
        let network = address.to_network();
        let slot = Arc::new(ConnectionSlot {
            network,
            active: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            since_ms: AtomicU64::new(millis_since(self.start)),
            closing: CancellationToken::new(),
        });
        let mut slots = lock(&self.slots);
        let number = slots.next;
        slots.next += 1;
        *slots.networks.entry(network).or_default() += 1;
        slots.taken.insert(number, Arc::clone(&slot));
        ConnectionPermit {
            number,
            slot,
            limit: Arc::clone(self),
        }
    }

    /// How many connections one address may have. Where the config does not say, one on the internet may
    /// have half of all: a reverse proxy, from which all clients come, is on this machine or in its network.
    fn max_for_address(&self, address: PeerAddress) -> usize {
        match self.per_address_max.load(Ordering::Relaxed) {
            0 if is_private_network(address) => usize::MAX,
            0 => (self.max() / 2).max(1),
            max => max,
        }
    }
}

/// Whether `address` is one of this machine or of a private network (RFC 1918, 3927, 4193, 4291, 6598).
fn is_private_network(address: PeerAddress) -> bool {
    let PeerAddress::Ip(address) = address else {
        return true;
    };
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let is_shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_loopback() || address.is_private() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

impl ConnectionSlots {
    fn count_for(&self, network: PeerAddress) -> usize {
        self.networks.get(&network).copied().unwrap_or(0)
    }
}

impl ConnectionSlot {
    /// In which order it is closed for another, and since when it does nothing for its client, if that is
    /// long enough, and it is not closed yet.
    fn eviction_rank(&self, now: Duration) -> Option<(u8, Duration)> {
        if self.closing.is_cancelled() {
            return None;
        }
        let active = self.active.load(Ordering::SeqCst);
        let (rank, max) = if active == 0 {
            match self.requests.load(Ordering::Relaxed) {
                0 => (0, FIRST_REQUEST_GRACE),
                _ => (1, IDLE_GRACE),
            }
        } else if active == self.unfinished.load(Ordering::SeqCst) {
            (2, BODY_GRACE)
        } else {
            return None;
        };
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (now.saturating_sub(since) >= max).then_some((rank, since))
    }
}

impl ConnectionPermit {
    /// Completes when it is to be closed for another.
    pub(crate) async fn closing(&self) {
        self.slot.closing.cancelled().await;
    }

    /// Whether a request is under way of which more than a part has come.
    pub(crate) fn is_active(&self) -> bool {
        let active = self.slot.active.load(Ordering::SeqCst);
        active > self.slot.unfinished.load(Ordering::SeqCst)
    }

    /// Whether all requests under way have bodies that have not come yet.
    pub(crate) fn is_awaiting_bodies(&self) -> bool {
        self.slot.unfinished.load(Ordering::SeqCst) > 0 && !self.is_active()
    }

    /// Requests under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.slot.active.load(Ordering::SeqCst)
    }

    /// Requests that came on it.
    pub(crate) fn requests(&self) -> u64 {
        self.slot.requests.load(Ordering::Relaxed)
    }

    /// Notes that a request is under way.
    pub(crate) fn begin_request(&self) -> ActiveRequest {
        self.slot.active.fetch_add(1, Ordering::SeqCst);
        self.slot.requests.fetch_add(1, Ordering::Relaxed);
        ActiveRequest {
            slot: Arc::clone(&self.slot),
            start: self.limit.start,
        }
    }

    /// Notes that the body of a request is waited for.
    pub(crate) fn begin_body(&self) -> UnfinishedBody {
        if self.slot.unfinished.fetch_add(1, Ordering::SeqCst) == 0 {
            let now = millis_since(self.limit.start);
            self.slot.since_ms.store(now, Ordering::Relaxed);
        }
        UnfinishedBody(Arc::clone(&self.slot))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let now = millis_since(self.start);
        self.slot.since_ms.store(now, Ordering::Relaxed);
        self.slot.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for UnfinishedBody {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut slots = lock(&self.limit.slots);
        slots.taken.remove(&self.number);
        if let Some(count) = slots.networks.get_mut(&self.slot.network) {
            *count -= 1;
            if *count == 0 {
                slots.networks.remove(&self.slot.network);
            }
        }
        drop(slots);
        self.limit.connection_closed.notify_one();
    }
}

/// How many files the system lets us open.
fn open_file_limit() -> usize {
    let allowed = getrlimit(Resource::Nofile).current;
    allowed.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// How many of so many `files` are for clients, and as many for what they ask of servers over HTTP.
fn connections_for_files(files: usize) -> usize {
    (shared(files) / 2).max(1)
}

/// How many of so many `files` are for clients and for requests to servers.
fn shared(files: usize) -> usize {
    files - RESERVED_FILES.min(files / 2)
}

/// How many of so many `files` are left for requests to servers beside `connections` of clients; a quarter where
/// the config gives clients more than there are.
fn left(files: usize, connections: usize) -> usize {
    let shared = shared(files);
    let left = shared.saturating_sub(connections);
    left.max(shared / 4).max(1)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const HERE: PeerAddress = PeerAddress::Ip(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn limit(max: usize, per_address: usize) -> Arc<ConnectionLimit> {
        let limit = ConnectionLimit::new();
        limit.set_max(NonZeroUsize::new(max), NonZeroUsize::new(per_address));
        Arc::new(limit)
    }

    fn ip(text: &str) -> PeerAddress {
        PeerAddress::Ip(text.parse().unwrap())
    }

    fn enter(limit: &Arc<ConnectionLimit>, address: PeerAddress) -> Option<ConnectionPermit> {
        limit.acquire(address).now_or_never().flatten()
    }

    #[test]
    fn files_are_left_for_others() {
        for (files, expect) in [
            (1, 1),
            (100, 25),
            (512, 128),
            (1024, 384),
            (usize::MAX, usize::MAX / 2 - 128),
        ] {
            assert_eq!(connections_for_files(files), expect, "{files}");
        }
        for (files, connections, expect) in [
            (1, 1, 1),
            (100, 25, 25),
            (100, 38, 12),
            (100, 30, 20),
            (1024, 384, 384),
            (1024, 100, 668),
            (1024, 5000, 192),
        ] {
            assert_eq!(left(files, connections), expect, "{files}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_waits_until_somebody_leaves_or_more_may_come() {
        let limit = limit(2, 0);
        let is_full = async || {
            timeout(100 * POLL_INTERVAL, limit.has_capacity())
                .await
                .is_err()
        };
        let busy = || {
            let permit = limit.acquire_unchecked(HERE);
            (permit.begin_request(), permit)
        };
        let first = busy();
        assert!(!is_full().await);
        let _second = busy();
        assert!(is_full().await);
        drop(first);
        assert!(!is_full().await);
        let _third = busy();
        let (more, ()) = tokio::join!(is_full(), async {
            limit.set_max(NonZeroUsize::new(3), None);
        });
        assert!(!more);
    }

    /// Those who never asked go first, then those who asked least recently, then those whose body does not
    /// end; who is at work stays.
    #[tokio::test(start_paused = true)]
    async fn those_at_rest_make_room_the_longest_first() {
        let limit = limit(9, 0);
        let leaver = || {
            limit
                .eviction_candidate(|_| true)
                .map(|slot| slot.closing.cancel())
        };
        let is_closing = |permit: &ConnectionPermit| permit.slot.closing.is_cancelled();
        let [busy, asked, early, late, sending] = [(); 5].map(|()| limit.acquire_unchecked(HERE));
        let (work, upload) = (busy.begin_request(), sending.begin_request());
        assert!(leaver().is_none(), "they have just come");
        sleep(IDLE_GRACE).await;
        let body = sending.begin_body();
        drop(asked.begin_request());
        drop(early.begin_request());
        sleep(IDLE_GRACE / 2).await;
        drop(asked.begin_request());
        for (permit, after) in [
            (&late, Duration::ZERO),
            (&early, IDLE_GRACE / 2),
            (&asked, IDLE_GRACE / 2),
            (&sending, IDLE_GRACE / 2),
        ] {
            sleep(after).await;
            assert!(!is_closing(permit));
            assert!(leaver().is_some());
            assert!(is_closing(permit), "after {after:?}");
            assert!(leaver().is_none(), "nobody else rests for that long");
        }
        sleep(10 * IDLE_GRACE).await;
        assert!(leaver().is_none(), "it is at work");
        drop(work);
        sleep(IDLE_GRACE).await;
        assert!(leaver().is_some() && is_closing(&busy));
        drop((body, upload));
    }

    /// Beside one that waits for its answer a body holds nothing up.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_came_is_work() {
        let limit = limit(9, 0);
        let permit = limit.acquire_unchecked(HERE);
        let (_first, second) = (permit.begin_request(), permit.begin_request());
        let body = permit.begin_body();
        sleep(2 * BODY_GRACE).await;
        assert!(permit.is_active() && limit.eviction_candidate(|_| true).is_none());
        drop((body, second));
        let _body = permit.begin_body();
        assert!(permit.is_awaiting_bodies() && !permit.is_active());
        sleep(BODY_GRACE).await;
        assert!(limit.eviction_candidate(|_| true).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_more_than_half_gives_its_own_first() {
        let limit = limit(9, 0);
        let early = enter(&limit, ip("192.0.2.1")).unwrap();
        drop(early.begin_request());
        sleep(IDLE_GRACE).await;
        let crowd = [(); 3].map(|()| enter(&limit, ip("192.0.2.2")).unwrap());
        let _bodies = crowd
            .each_ref()
            .map(|it| (it.begin_request(), it.begin_body()));
        sleep(BODY_GRACE).await;
        let victim = limit.eviction_candidate(|_| true).unwrap();
        assert_eq!(victim.network, ip("192.0.2.2"));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_address() {
        // How many of 9 the addresses get in, one after the other.
        let check = |per_address: usize, addresses: [&str; 2], expect: usize| {
            let limit = limit(9, per_address);
            let all = addresses.iter().cycle().take(18);
            let entered: Vec<_> = all
                .filter_map(|address| enter(&limit, ip(address)))
                .collect();
            assert_eq!(entered.len(), expect, "{per_address} {addresses:?}");
            let rejected = if expect == 9 { 0 } else { 18 - expect };
            assert_eq!(limit.rejected(), u64::try_from(rejected).unwrap());
            drop(entered);
            assert_eq!(limit.open(), 0);
            assert!(enter(&limit, ip(addresses[0])).is_some(), "back under it");
        };
        check(0, ["203.0.113.1", "203.0.113.1"], 4);
        check(0, ["203.0.113.1", "203.0.113.2"], 8);
        check(0, ["2001:db8:1::1", "2001:db8:1::2"], 4);
        check(0, ["2001:db8:1::1", "2001:db8:1:1::2"], 8);
        check(3, ["203.0.113.1", "::ffff:203.0.113.1"], 3);
        check(3, ["127.0.0.1", "127.0.0.1"], 3);
        for near in [
            "127.0.0.1",
            "::1",
            "10.1.2.3",
            "100.64.0.1",
            "fd00::1",
            "fe80::1",
            "172.16.0.1",
        ] {
            check(0, [near, near], 9);
        }
        check(0, ["100.128.0.1", "100.128.0.1"], 4);
    }

    /// An address at its own limit closes no connection of others when all are taken.
    #[tokio::test(start_paused = true)]
    async fn who_has_enough_takes_nothing_from_others() {
        let limit = limit(3, 2);
        let others = limit.acquire_unchecked(ip("192.0.2.1"));
        let own = [(); 2].map(|()| limit.acquire_unchecked(ip("192.0.2.2")));
        let _work = own.each_ref().map(ConnectionPermit::begin_request);
        sleep(IDLE_GRACE * 2).await;
        assert!(limit.acquire(ip("192.0.2.2")).await.is_none());
        assert!(!others.slot.closing.is_cancelled());
        let next = timeout(IDLE_GRACE, limit.acquire(ip("192.0.2.3"))).await;
        assert!(next.is_err() && others.slot.closing.is_cancelled());
    }
}
