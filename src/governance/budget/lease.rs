//! One lease in memory, and the holds against it.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use tokio::{sync::Notify, time::Instant};

use super::{
    account::{AccountLimit, BudgetAccount},
    spend_rate::SpendRate,
};
use crate::{
    lock::lock,
    money::Micros,
    store::{Account, CallerBreakerState, Fund, LeaseRequest, LeaseUpdate, OtherUsage},
};

/// Beats without a call after which what is left goes back: two seconds.
const IDLE_FLUSHES_BEFORE_RETURN: u32 = 2;

/// Beats without a call after which the lease leaves memory: a minute.
const IDLE_FLUSHES_BEFORE_SLEEP: u32 = 60;

/// The right to change what the store knows of a lease.
pub(super) type LeaseWriteGuard = tokio::sync::OwnedMutexGuard<()>;

/// A lease of this process.
pub(super) struct Lease {
    account_cache: Arc<BudgetAccount>,
    account: Account,
    fund: Fund,
    epoch: u32,
    /// Wakes the background task, which takes the next slice before this one is used up.
    running_low: Arc<Notify>,
    write_lock: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<LeaseState>,
}

struct LeaseState {
    granted: CallerBreakerState,
    /// The limit at the last grant; a caller with a lower one has the store asked.
    limit: Micros,
    /// Room below which the next slice is wanted; zero once it was said.
    low_water: Micros,
    spend_rate: SpendRate,
    /// The price of the last call that found the lease low.
    wanted_price: Option<Micros>,
    phase: LeasePhase,
    used: bool,
    idle_flushes: u32,
    /// What the store knows; `None` while an answer of it is outstanding.
    written: Option<(Micros, Micros)>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum LeasePhase {
    /// Calls may hold.
    Live,
    /// No call may hold, and the store knows all: the lease can be taken up again.
    Asleep,
    /// No call may hold, because window, epoch or process ended; it closes with its last hold.
    Retired,
    /// The store has closed it.
    Closed,
}

impl Lease {
    /// The lease that the store granted for `ask`.
    pub(super) fn new(
        account_cache: Arc<BudgetAccount>,
        ask: &LeaseRequest,
        own: CallerBreakerState,
        running_low: Arc<Notify>,
    ) -> Self {
        Self {
            account_cache,
            account: Account::of(ask.fund.as_str(), own.epoch),
            fund: ask.fund.clone(),
            epoch: own.epoch,
            running_low,
            write_lock: Arc::default(),
            state: Mutex::new(LeaseState {
                granted: own,
                limit: ask.limit,
                low_water: half(own.remaining()),
                spend_rate: SpendRate::since(ask.slice, own.used(), Instant::now()),
                wanted_price: None,
                phase: LeasePhase::Live,
                used: true,
                idle_flushes: 0,
                written: Some((own.granted, own.spent)),
            }),
        }
    }

    pub(super) fn account_cache(&self) -> &Arc<BudgetAccount> {
        &self.account_cache
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    pub(super) fn fund(&self) -> &Fund {
        &self.fund
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn granted(&self) -> CallerBreakerState {
        self.state().granted
    }

    pub(super) fn has_room(&self, price: Micros, limit: Micros) -> bool {
        self.state().has_room(price, limit)
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state().phase != LeasePhase::Live
    }

    /// Whether memory has no more use for it.
    pub(super) fn is_removable(&self) -> bool {
        matches!(self.state().phase, LeasePhase::Asleep | LeasePhase::Closed)
    }

    /// Waits for the right to write, and assumes nothing of what the store will know then.
    pub(super) async fn lock_for_write(&self) -> LeaseWriteGuard {
        let writing = self.write_lock.clone().lock_owned().await;
        self.state().written = None;
        writing
    }

    pub(super) fn try_lock_for_write(&self) -> Option<LeaseWriteGuard> {
        self.write_lock.clone().try_lock_owned().ok()
    }

    /// What the next slice may come to.
    pub(super) fn next_slice(&self) -> Micros {
        let state = self.state();
        state
            .spend_rate
            .next_slice(state.granted.used(), Instant::now())
    }

    /// Takes up what the store granted.
    pub(super) fn add_slice(&self, granted: Micros, ask: &LeaseRequest) {
        let mut state = self.state();
        state.granted.granted = granted;
        state.limit = ask.limit;
        state.low_water = half(state.granted.remaining());
        state.spend_rate = SpendRate::since(ask.slice, state.granted.used(), Instant::now());
        state.used = true;
    }

    /// Gives up what a lower limit does not allow, as far as it is not used.
    pub(super) fn shrink(&self, limit: Micros, elsewhere: OtherUsage) -> CallerBreakerState {
        let mut state = self.state();
        let others = elsewhere.spent.saturating_add(elsewhere.unspent);
        let allowed = limit.saturating_sub(others).max(state.granted.used());
        state.granted.granted = state.granted.granted.min(allowed);
        state.limit = limit;
        state.low_water = Micros::ZERO;
        state.granted
    }

    /// Lets no call hold any more.
    pub(super) fn retire(&self) {
        self.state().phase = LeasePhase::Retired;
    }

    /// The price of the last call, when it found the lease low, and the limit it had.
    pub(super) fn take_refill_request(&self) -> Option<(Micros, Micros)> {
        let mut state = self.state();
        let price = state.wanted_price.take()?;
        (state.phase == LeasePhase::Live).then_some((price, state.limit))
    }

    /// A second has passed, and the right to write is held: what the store should know, if it does
    /// not.
    pub(super) fn pending_write(&self, now: Timestamp) -> Option<LeaseUpdate> {
        let mut state = self.state();
        let used = mem::take(&mut state.used);
        state.idle_flushes = if used { 0 } else { state.idle_flushes + 1 };
        if self.fund.ends().is_some_and(|ends| ends <= now) && state.phase == LeasePhase::Live {
            state.phase = LeasePhase::Retired;
            self.account_cache.close_window(self);
        }
        let idle =
            state.idle_flushes >= IDLE_FLUSHES_BEFORE_RETURN || state.phase != LeasePhase::Live;
        if idle {
            state.shrink_room(Micros::ZERO);
        } else {
            state.shrink_to_rate(Instant::now());
        }
        let known = state.written == Some((state.granted.granted, state.granted.spent));
        let sleepy =
            state.idle_flushes >= IDLE_FLUSHES_BEFORE_SLEEP && state.granted.held == Micros::ZERO;
        if known && sleepy && state.phase == LeasePhase::Live {
            state.phase = LeasePhase::Asleep;
        }
        let write = self.write_of(&state);
        (!known || !write.open).then_some(write)
    }

    /// The process ends: what the store should know last. It stays open for calls under way, until
    /// the audit tells what became of them.
    pub(super) fn final_write(&self) -> LeaseUpdate {
        let mut state = self.state();
        state.phase = LeasePhase::Retired;
        state.shrink_room(Micros::ZERO);
        self.write_of(&state)
    }

    /// The store knows `write`.
    pub(super) fn note_written(&self, write: &LeaseUpdate) {
        let mut state = self.state();
        state.written = Some((write.granted, write.spent));
        if !write.open {
            state.phase = LeasePhase::Closed;
        }
    }

    fn write_of(&self, state: &LeaseState) -> LeaseUpdate {
        let recorded = state.phase == LeasePhase::Retired && state.granted.held == Micros::ZERO;
        LeaseUpdate {
            account: self.account.clone(),
            granted: state.granted.granted,
            spent: state.granted.spent,
            open: !recorded,
        }
    }

    fn finish_hold(&self, price: Micros, spend: bool) {
        let mut state = self.state();
        state.granted.held = state.granted.held.saturating_sub(price);
        if spend {
            state.granted.spent = state.granted.spent.saturating_add(price);
        }
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        lock(&self.state)
    }
}

impl LeaseState {
    fn has_room(&self, price: Micros, limit: Micros) -> bool {
        self.phase == LeasePhase::Live && limit >= self.limit && price <= self.granted.remaining()
    }

    /// Holds `price`, for which there is room, and tells whether the next slice is wanted.
    fn hold(&mut self, price: Micros) -> bool {
        self.granted.held = self.granted.held.saturating_add(price);
        self.used = true;
        let low = self.granted.remaining() < self.low_water;
        if low {
            self.low_water = Micros::ZERO;
            self.wanted_price = Some(price);
        }
        low
    }

    /// Gives up all that is beyond `room`; whether that was anything.
    fn shrink_room(&mut self, room: Micros) -> bool {
        let kept = self.granted.used().saturating_add(room);
        if kept >= self.granted.granted {
            return false;
        }
        self.granted.granted = kept;
        self.low_water = self.low_water.min(half(room));
        true
    }

    /// Gives up what is more than its pace asks for, which is counted anew from then on.
    fn shrink_to_rate(&mut self, now: Instant) {
        let used = self.granted.used();
        if let Some(room) = self.spend_rate.room_max(used, now)
            && self.shrink_room(room)
        {
            self.spend_rate = SpendRate::since(self.spend_rate.next_slice(used, now), used, now);
        }
    }
}

/// Holds `price` against all lines or none; the index of the first without room otherwise.
pub(super) fn try_hold(
    lines: &[AccountLimit],
    price: Micros,
    now: Timestamp,
) -> Result<Hold, usize> {
    let mut leases = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        leases.push(line.account.lease(now).ok_or(index)?);
    }
    let low = hold_all(&leases, lines, price)?;
    if low && let Some(lease) = leases.first() {
        lease.running_low.notify_one();
    }
    Ok(Hold { leases, price })
}

/// Holds `price` against all `leases`, each below the limit of its line, or against none, and tells
/// whether a slice is wanted. The mutexes of the first ones are kept until the last has room.
fn hold_all(leases: &[Arc<Lease>], lines: &[AccountLimit], price: Micros) -> Result<bool, usize> {
    let ([lease, leases @ ..], [line, lines @ ..]) = (leases, lines) else {
        return Ok(false);
    };
    let mut state = lease.state();
    if !state.has_room(price, line.limit) {
        return Err(0);
    }
    let low = hold_all(leases, lines, price).map_err(|after| after + 1)?;
    Ok(state.hold(price) | low)
}

fn half(amount: Micros) -> Micros {
    Micros::new(amount.get() / 2)
}

/// A price that is held against every budget that applies, until the call has ended.
///
/// Dropped before it is settled or released it counts as spent, which is the safe side, and logs a
/// warning: the audit, which is the truth, may say otherwise until the process ends.
#[must_use = "a hold is settled or released when its call has ended"]
pub struct Hold {
    leases: Vec<Arc<Lease>>,
    price: Micros,
}

impl Hold {
    /// A hold that touches nothing.
    pub(super) fn empty(price: Micros) -> Self {
        Self {
            leases: Vec::new(),
            price,
        }
    }

    /// What is held, in each account.
    pub fn price(&self) -> Micros {
        self.price
    }

    /// Where it is held. The audit records them when the call is opened.
    pub fn accounts(&self) -> impl ExactSizeIterator<Item = &Account> {
        self.leases.iter().map(|lease| lease.account())
    }

    /// Turns what is held into spend: the call reached its server.
    pub fn settle(mut self) {
        self.finish(true);
    }

    /// Gives back what is held: the call cost nothing. The audit must say so already.
    pub fn release(mut self) {
        self.finish(false);
    }

    fn finish(&mut self, spend: bool) {
        for lease in mem::take(&mut self.leases) {
            lease.finish_hold(self.price, spend);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(lease) = self.leases.first() {
            tracing::warn!(
                account = %lease.account,
                price = %self.price.to_decimal(),
                "a call was cut off; its price is charged"
            );
            self.finish(true);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accounts = self.accounts().map(Account::as_str);
        let accounts: Vec<_> = accounts.collect();
        write!(f, "Hold({} of {accounts:?})", self.price.to_decimal())
    }
}
