//! What budgets do in the background: once a second they say what was spent, hand back what nobody
//! uses, notice resets of other processes; and they take the next slice before one is used up.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    Budgets,
    account::AccountLimit,
    lease::{Lease, LeaseWriteGuard},
};
use crate::{
    clock,
    lock::lock,
    store::{LeaseUpdate, StoreError},
    task::Tasks,
};

/// Between two beats.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Between two compactions of the store.
const COMPACT_INTERVAL: Duration = Duration::from_secs(3600);

impl Budgets {
    /// Starts the background task. It ends with `tasks`, after a last beat; [`Budgets::close`] is
    /// for after the last call.
    pub fn start(self: &Arc<Self>, tasks: &Tasks) {
        let budgets = self.clone();
        let stop = tasks.stop_token().clone();
        tasks.spawn("budgets", async move {
            let mut beats = tokio::time::interval(FLUSH_INTERVAL);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut compacted = None;
            loop {
                tokio::select! {
                    _ = beats.tick() => budgets.flush_or_warn().await,
                    () = budgets.running_low.notified() => budgets.prefetch_slices(clock::now()).await,
                    () = stop.cancelled() => return budgets.flush_or_warn().await,
                }
                if compacted.is_none_or(|at: Instant| at.elapsed() >= COMPACT_INTERVAL) {
                    compacted = Some(Instant::now());
                    budgets.compact_or_warn().await;
                }
            }
        });
    }

    /// Hands back what is left of every slice and closes what is settled; calls that are still under
    /// way keep theirs until this process is reconciled. Nothing is held afterwards.
    ///
    /// # Errors
    /// Those of the store; the slices then count as spent until this process is reconciled.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::Release);
        let accounts: Vec<_> = self
            .accounts
            .iter()
            .map(|account| account.clone())
            .collect();
        for account in accounts {
            drop(account.store_lock.lock().await);
        }
        let leases = self.leases().clone();
        let (mut writes, mut writings) = (Vec::new(), Vec::new());
        for lease in leases {
            writings.push(lease.lock_for_write().await);
            writes.push(lease.final_write());
            lease.account_cache().detach(&lease);
        }
        self.store.close_chain(&self.chain, &writes).await
    }

    /// Says what was spent and notices resets at once, without waiting for the next beat.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        self.flush(clock::now()).await
    }

    /// Why the store did not keep what it was told last; `None` while it does.
    pub fn last_error(&self) -> Option<String> {
        lock(&self.last_error).clone()
    }

    /// Notes how the store took what it was told.
    pub(super) fn note_store_result<T>(&self, result: &Result<T, StoreError>) {
        *lock(&self.last_error) = result.as_ref().err().map(ToString::to_string);
    }

    /// One beat: says what was spent, hands back, notices resets.
    pub(super) async fn flush(&self, now: Timestamp) -> Result<(), StoreError> {
        self.detect_resets().await?;
        let said = self.due_writes(now);
        if !said.is_empty() {
            let writes: Vec<LeaseUpdate> = said.iter().map(|(_, write, _)| write.clone()).collect();
            let written = self.store.write(&self.chain, &writes).await;
            self.note_store_result(&written);
            written?;
        }
        for (lease, write, writing) in said {
            lease.note_written(&write);
            drop(writing);
        }
        self.sweep();
        Ok(())
    }

    /// Takes the next slice for leases that run low. What the store refuses, the next call finds out.
    pub(super) async fn prefetch_slices(&self, now: Timestamp) {
        let leases = self.leases().clone();
        for lease in leases {
            if let Some((price, limit)) = lease.take_refill_request() {
                let account = lease.account_cache().clone();
                let room = lease.granted().remaining();
                let line = AccountLimit { account, limit };
                if let Err(refusal) = self.refill(&line, room.saturating_add(price), now).await {
                    tracing::debug!(account = %lease.account(), %refusal, "cannot prefetch budget");
                }
            }
        }
    }

    /// Leases of which the store does not know all. A lease that is being asked for has its turn at
    /// the next beat: asking tells the store as well.
    fn due_writes(&self, now: Timestamp) -> Vec<(Arc<Lease>, LeaseUpdate, LeaseWriteGuard)> {
        let leases = self.leases().clone();
        let due = leases.into_iter().filter_map(|lease| {
            let writing = lease.try_lock_for_write()?;
            let write = lease.pending_write(now)?;
            Some((lease, write, writing))
        });
        due.collect()
    }

    /// Forgets leases that ended or sleep, and purses that nobody has a hand in.
    fn sweep(&self) {
        self.leases().retain(|lease| {
            if lease.is_retired() {
                lease.account_cache().detach(lease);
            }
            !lease.is_removable()
        });
        self.accounts
            .retain(|_, account| Arc::strong_count(account) > 1);
    }

    /// Retires leases of budgets that another process has reset.
    async fn detect_resets(&self) -> Result<(), StoreError> {
        let seen = *self.resets_seen();
        for reset in self.store.resets_after(seen).await? {
            let subject = reset
                .fund
                .rsplit_once('/')
                .map_or("", |(subject, _)| subject);
            let accounts = self.accounts.iter();
            let concerned: Vec<_> = accounts
                .filter(|account| account.key.subject.to_string() == subject)
                .map(|account| account.clone())
                .collect();
            for account in concerned {
                let _turn = account.store_lock.lock().await;
                account.retire_older(&reset.fund, reset.epoch);
            }
            *self.resets_seen() = reset.seq;
        }
        Ok(())
    }

    fn resets_seen(&self) -> std::sync::MutexGuard<'_, i64> {
        lock(&self.resets_seen)
    }

    async fn flush_or_warn(&self) {
        if let Err(error) = self.flush(clock::now()).await {
            tracing::warn!(%error, "cannot persist spending; will retry");
        }
    }

    async fn compact_or_warn(&self) {
        if let Err(error) = self.store.compact(clock::now()).await {
            tracing::warn!(%error, "cannot compact closed leases; will retry");
        }
    }
}
