//! The place of one subject and window: its present lease, the turn to ask the store, and what the
//! store said last.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Exceeded, LeaseKey,
    lease::{Lease, LeaseWriteGuard},
};
use crate::{lock::lock, money::Micros};

/// How long a refusal of the store is repeated without asking again, so that a caller who keeps
/// asking costs no I/O. Others hand back what they do not use within seconds anyway.
const DENIAL_TTL: Duration = Duration::from_millis(250);

/// One of the purses that a hold takes from.
#[derive(Debug)]
pub(super) struct AccountLimit {
    pub(super) account: Arc<BudgetAccount>,
    pub(super) limit: Micros,
}

/// See the module.
pub(super) struct BudgetAccount {
    pub(super) key: LeaseKey,
    /// Held while the store is asked; waiters queue in order.
    pub(super) store_lock: tokio::sync::Mutex<()>,
    current: ArcSwapOption<Lease>,
    /// Micro-dollars, as the rules had it that were made last.
    limit: AtomicU64,
    state: Mutex<AccountState>,
}

#[derive(Default)]
struct AccountState {
    denied: Option<Denied>,
    /// The end of the last window whose lease was retired: a caller who read the clock before must
    /// not open that window again, since calls of it may still be under way.
    ended: Option<Timestamp>,
}

/// What the store refused.
struct Denied {
    until: Instant,
    /// What was missing.
    need: Micros,
    spent_elsewhere: Micros,
    exceeded: Exceeded,
}

impl BudgetAccount {
    pub(super) fn new(key: LeaseKey) -> Self {
        Self {
            key,
            store_lock: tokio::sync::Mutex::default(),
            current: ArcSwapOption::empty(),
            limit: AtomicU64::default(),
            state: Mutex::default(),
        }
    }

    /// Notes the limit by which calls are paid from now on.
    pub(super) fn note_limit(&self, limit: Micros) {
        self.limit.store(limit.get(), Ordering::Relaxed);
    }

    /// The limit that was noted last.
    pub(super) fn limit(&self) -> Micros {
        Micros::new(self.limit.load(Ordering::Relaxed))
    }

    /// The lease of the window of `now`.
    pub(super) fn lease(&self, now: Timestamp) -> Option<Arc<Lease>> {
        let lease = self.current.load_full()?;
        let ends = lease.fund().ends();
        ends.is_none_or(|ends| now < ends).then_some(lease)
    }

    /// `now`, or the end of the window that is over already.
    pub(super) fn clamp_to_window(&self, now: Timestamp) -> Timestamp {
        self.state().ended.map_or(now, |ended| now.max(ended))
    }

    /// The lease of the window of `now` and the right to change what the store knows of it.
    pub(super) async fn lease_to_write(
        &self,
        now: Timestamp,
    ) -> Option<(Arc<Lease>, LeaseWriteGuard)> {
        let lease = self.lease(now)?;
        let writing = lease.lock_for_write().await;
        let retired = lease.is_retired();
        (!retired).then_some((lease, writing))
    }

    /// Makes `lease` the present one.
    pub(super) fn install(&self, lease: Arc<Lease>) {
        let fund = lease.fund().as_str().to_owned();
        let old = self.current.swap(Some(lease));
        self.state().denied = None;
        let Some(old) = old else { return };
        old.retire();
        if old.fund().as_str() != fund {
            self.close_window(&old);
        }
    }

    /// Retires the present lease when it is older than `epoch` of `fund`.
    pub(super) fn retire_older(&self, fund: &str, epoch: u32) {
        self.state().denied = None;
        let lease = self.current.load_full();
        let old = lease.filter(|lease| lease.fund().as_str() == fund && lease.epoch() < epoch);
        if let Some(old) = old {
            old.retire();
            self.detach(&old);
        }
    }

    /// Lets go of `lease`, which is retired.
    pub(super) fn detach(&self, lease: &Arc<Lease>) {
        let current = self.current.load_full();
        if current.is_some_and(|current| Arc::ptr_eq(&current, lease)) {
            self.current.store(None);
        }
    }

    /// Sees to it that nobody opens the window of `lease` again.
    pub(super) fn close_window(&self, lease: &Lease) {
        let mut memory = self.state();
        memory.ended = memory.ended.max(lease.fund().ends());
    }

    /// The refusal that still holds for a caller who needs as much.
    pub(super) fn cached_denial(
        &self,
        lease: Option<&Lease>,
        limit: Micros,
        price: Micros,
        now: Timestamp,
    ) -> Option<Exceeded> {
        let memory = self.state();
        let denied = memory.denied.as_ref()?;
        let known = &denied.exceeded;
        let own = lease.map(Lease::granted).unwrap_or_default();
        let repeats = Instant::now() < denied.until
            && limit <= known.limit
            && price.saturating_sub(own.remaining()) >= denied.need
            && known.ends.is_none_or(|ends| now < ends)
            && lease.is_none_or(|lease| *lease.account() == known.account);
        repeats.then(|| Exceeded {
            price,
            limit,
            spent: match lease {
                Some(_) => denied.spent_elsewhere.saturating_add(own.spent),
                None => known.spent,
            },
            held: own.held,
            ..known.clone()
        })
    }

    /// Keeps a refusal for a while. `need` is what was missing.
    pub(super) fn deny(&self, exceeded: Exceeded, need: Micros, spent_elsewhere: Micros) {
        let until = Instant::now() + DENIAL_TTL;
        self.state().denied = Some(Denied {
            until,
            need,
            spent_elsewhere,
            exceeded,
        });
    }

    #[cfg(test)]
    pub(super) fn clear_denial(&self) {
        self.state().denied = None;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, AccountState> {
        lock(&self.state)
    }
}

impl fmt::Debug for BudgetAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Purse({:?})", self.key)
    }
}
