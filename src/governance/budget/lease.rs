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
    store::{Account, Ask, Elsewhere, Fund, Own, Write},
};

/// Beats without a call after which what is left goes back: two seconds.
const HAND_BACK_BEATS: u32 = 2;

/// Beats without a call after which the lease leaves memory: a minute.
const SLEEP_BEATS: u32 = 60;

/// The right to change what the store knows of a lease.
pub(super) type LeaseWriteGuard = tokio::sync::OwnedMutexGuard<()>;

/// A lease of this process.
pub(super) struct Lease {
    purse: Arc<BudgetAccount>,
    account: Account,
    fund: Fund,
    epoch: u32,
    /// Wakes the background task, which takes the next slice before this one is used up.
    low: Arc<Notify>,
    writing: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<LeaseState>,
}

struct LeaseState {
    own: Own,
    /// The limit at the last grant; a caller with a lower one has the store asked.
    limit: Micros,
    /// Room below which the next slice is wanted; zero once it was said.
    low_water: Micros,
    pace: SpendRate,
    /// The price of the last call that found the lease low.
    wanted: Option<Micros>,
    phase: LeasePhase,
    used: bool,
    quiet_beats: u32,
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
    pub(super) fn new(purse: Arc<BudgetAccount>, ask: &Ask, own: Own, low: Arc<Notify>) -> Self {
        Self {
            purse,
            account: Account::of(ask.fund.as_str(), own.epoch),
            fund: ask.fund.clone(),
            epoch: own.epoch,
            low,
            writing: Arc::default(),
            state: Mutex::new(LeaseState {
                own,
                limit: ask.limit,
                low_water: half(own.room()),
                pace: SpendRate::since(ask.slice, own.used(), Instant::now()),
                wanted: None,
                phase: LeasePhase::Live,
                used: true,
                quiet_beats: 0,
                written: Some((own.granted, own.spent)),
            }),
        }
    }

    pub(super) fn purse(&self) -> &Arc<BudgetAccount> {
        &self.purse
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

    pub(super) fn own(&self) -> Own {
        self.state().own
    }

    pub(super) fn has_room(&self, price: Micros, limit: Micros) -> bool {
        self.state().has_room(price, limit)
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state().phase != LeasePhase::Live
    }

    /// Whether memory has no more use for it.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.state().phase, LeasePhase::Asleep | LeasePhase::Closed)
    }

    /// Waits for the right to write, and assumes nothing of what the store will know then.
    pub(super) async fn begin_writing(&self) -> LeaseWriteGuard {
        let writing = self.writing.clone().lock_owned().await;
        self.state().written = None;
        writing
    }

    pub(super) fn try_writing(&self) -> Option<LeaseWriteGuard> {
        self.writing.clone().try_lock_owned().ok()
    }

    /// What the next slice may come to.
    pub(super) fn next_slice(&self) -> Micros {
        let state = self.state();
        state.pace.slice(state.own.used(), Instant::now())
    }

    /// Takes up what the store granted.
    pub(super) fn grow(&self, granted: Micros, ask: &Ask) {
        let mut state = self.state();
        state.own.granted = granted;
        state.limit = ask.limit;
        state.low_water = half(state.own.room());
        state.pace = SpendRate::since(ask.slice, state.own.used(), Instant::now());
        state.used = true;
    }

    /// Gives up what a lower limit does not allow, as far as it is not used.
    pub(super) fn shrink(&self, limit: Micros, elsewhere: Elsewhere) -> Own {
        let mut state = self.state();
        let others = elsewhere.spent.saturating_add(elsewhere.unspent);
        let allowed = limit.saturating_sub(others).max(state.own.used());
        state.own.granted = state.own.granted.min(allowed);
        state.limit = limit;
        state.low_water = Micros::ZERO;
        state.own
    }

    /// Lets no call hold any more.
    pub(super) fn retire(&self) {
        self.state().phase = LeasePhase::Retired;
    }

    /// The price of the last call, when it found the lease low, and the limit it had.
    pub(super) fn take_wanted(&self) -> Option<(Micros, Micros)> {
        let mut state = self.state();
        let price = state.wanted.take()?;
        (state.phase == LeasePhase::Live).then_some((price, state.limit))
    }

    /// A second has passed, and the right to write is held: what the store should know, if it does
    /// not.
    pub(super) fn beat(&self, now: Timestamp) -> Option<Write> {
        let mut state = self.state();
        let used = mem::take(&mut state.used);
        state.quiet_beats = if used { 0 } else { state.quiet_beats + 1 };
        if self.fund.ends().is_some_and(|ends| ends <= now) && state.phase == LeasePhase::Live {
            state.phase = LeasePhase::Retired;
            self.purse.close_window(self);
        }
        let idle = state.quiet_beats >= HAND_BACK_BEATS || state.phase != LeasePhase::Live;
        if idle {
            state.give_back(Micros::ZERO);
        } else {
            state.slow_down(Instant::now());
        }
        let known = state.written == Some((state.own.granted, state.own.spent));
        let sleepy = state.quiet_beats >= SLEEP_BEATS && state.own.held == Micros::ZERO;
        if known && sleepy && state.phase == LeasePhase::Live {
            state.phase = LeasePhase::Asleep;
        }
        let write = self.write(&state);
        (!known || !write.open).then_some(write)
    }

    /// The process ends: what the store should know last. It stays open for calls under way, until
    /// the audit tells what became of them.
    pub(super) fn finish(&self) -> Write {
        let mut state = self.state();
        state.phase = LeasePhase::Retired;
        state.give_back(Micros::ZERO);
        self.write(&state)
    }

    /// The store knows `write`.
    pub(super) fn wrote(&self, write: &Write) {
        let mut state = self.state();
        state.written = Some((write.granted, write.spent));
        if !write.open {
            state.phase = LeasePhase::Closed;
        }
    }

    fn write(&self, state: &LeaseState) -> Write {
        let ended = state.phase == LeasePhase::Retired && state.own.held == Micros::ZERO;
        Write {
            account: self.account.clone(),
            granted: state.own.granted,
            spent: state.own.spent,
            open: !ended,
        }
    }

    fn end_hold(&self, price: Micros, spend: bool) {
        let mut state = self.state();
        state.own.held = state.own.held.saturating_sub(price);
        if spend {
            state.own.spent = state.own.spent.saturating_add(price);
        }
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        lock(&self.state)
    }
}

impl LeaseState {
    fn has_room(&self, price: Micros, limit: Micros) -> bool {
        self.phase == LeasePhase::Live && limit >= self.limit && price <= self.own.room()
    }

    /// Holds `price`, for which there is room, and tells whether the next slice is wanted.
    fn hold(&mut self, price: Micros) -> bool {
        self.own.held = self.own.held.saturating_add(price);
        self.used = true;
        let low = self.own.room() < self.low_water;
        if low {
            self.low_water = Micros::ZERO;
            self.wanted = Some(price);
        }
        low
    }

    /// Gives up all that is beyond `room`; whether that was anything.
    fn give_back(&mut self, room: Micros) -> bool {
        let kept = self.own.used().saturating_add(room);
        if kept >= self.own.granted {
            return false;
        }
        self.own.granted = kept;
        self.low_water = self.low_water.min(half(room));
        true
    }

    /// Gives up what is more than its pace asks for, which is counted anew from then on.
    fn slow_down(&mut self, now: Instant) {
        let used = self.own.used();
        if let Some(room) = self.pace.room_max(used, now)
            && self.give_back(room)
        {
            self.pace = SpendRate::since(self.pace.slice(used, now), used, now);
        }
    }
}

/// Holds `price` against all lines or none; the index of the first without room otherwise.
pub(super) fn take(lines: &[AccountLimit], price: Micros, now: Timestamp) -> Result<Hold, usize> {
    let mut leases = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        leases.push(line.purse.lease(now).ok_or(index)?);
    }
    let low = hold_all(&leases, lines, price)?;
    if low && let Some(lease) = leases.first() {
        lease.low.notify_one();
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
    pub(super) fn of_nothing(price: Micros) -> Self {
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
        self.end(true);
    }

    /// Gives back what is held: the call cost nothing. The audit must say so already.
    pub fn release(mut self) {
        self.end(false);
    }

    fn end(&mut self, spend: bool) {
        for lease in mem::take(&mut self.leases) {
            lease.end_hold(self.price, spend);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(lease) = self.leases.first() {
            tracing::warn!(
                account = %lease.account,
                price = %self.price.exact(),
                "a call was cut off: its price counts as spent"
            );
            self.end(true);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accounts = self.accounts().map(Account::as_str);
        let accounts: Vec<_> = accounts.collect();
        write!(f, "Hold({} of {accounts:?})", self.price.exact())
    }
}
