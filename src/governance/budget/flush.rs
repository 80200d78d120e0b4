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
    store::{StoreError, Write},
    task::Tasks,
};

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);

/// Between two compactions of the store.
const COMPACT: Duration = Duration::from_secs(3600);

impl Budgets {
    /// Starts the background task. It ends with `tasks`, after a last beat; [`Budgets::close`] is
    /// for after the last call.
    pub fn start(self: &Arc<Self>, tasks: &Tasks) {
        let budgets = self.clone();
        let stop = tasks.stop_token().clone();
        tasks.spawn("budgets", async move {
            let mut beats = tokio::time::interval(BEAT);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut compacted = None;
            loop {
                tokio::select! {
                    _ = beats.tick() => budgets.beat_or_warn().await,
                    () = budgets.low.notified() => budgets.top_up(clock::now()).await,
                    () = stop.cancelled() => return budgets.beat_or_warn().await,
                }
                if compacted.is_none_or(|at: Instant| at.elapsed() >= COMPACT) {
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
        let purses: Vec<_> = self.purses.iter().map(|purse| purse.clone()).collect();
        for purse in purses {
            drop(purse.turn.lock().await);
        }
        let leases = self.all().clone();
        let (mut writes, mut writings) = (Vec::new(), Vec::new());
        for lease in leases {
            writings.push(lease.begin_writing().await);
            writes.push(lease.finish());
            lease.purse().let_go(&lease);
        }
        self.store.end(&self.chain, &writes).await
    }

    /// Says what was spent and notices resets at once, without waiting for the next beat.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        self.beat(clock::now()).await
    }

    /// Why the store did not keep what it was told last; `None` while it does.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Notes how the store took what it was told.
    pub(super) fn note<T>(&self, told: &Result<T, StoreError>) {
        *lock(&self.failure) = told.as_ref().err().map(ToString::to_string);
    }

    /// One beat: says what was spent, hands back, notices resets.
    pub(super) async fn beat(&self, now: Timestamp) -> Result<(), StoreError> {
        self.notice_resets().await?;
        let said = self.due(now);
        if !said.is_empty() {
            let writes: Vec<Write> = said.iter().map(|(_, write, _)| write.clone()).collect();
            let written = self.store.write(&self.chain, &writes).await;
            self.note(&written);
            written?;
        }
        for (lease, write, writing) in said {
            lease.wrote(&write);
            drop(writing);
        }
        self.sweep();
        Ok(())
    }

    /// Takes the next slice for leases that run low. What the store refuses, the next call finds out.
    pub(super) async fn top_up(&self, now: Timestamp) {
        let leases = self.all().clone();
        for lease in leases {
            if let Some((price, limit)) = lease.take_wanted() {
                let purse = lease.purse().clone();
                let room = lease.own().room();
                let line = AccountLimit { purse, limit };
                if let Err(refusal) = self.refill(&line, room.saturating_add(price), now).await {
                    tracing::debug!(account = %lease.account(), %refusal, "no slice ahead of need");
                }
            }
        }
    }

    /// Leases of which the store does not know all. A lease that is being asked for has its turn at
    /// the next beat: asking tells the store as well.
    fn due(&self, now: Timestamp) -> Vec<(Arc<Lease>, Write, LeaseWriteGuard)> {
        let leases = self.all().clone();
        let due = leases.into_iter().filter_map(|lease| {
            let writing = lease.try_writing()?;
            let write = lease.beat(now)?;
            Some((lease, write, writing))
        });
        due.collect()
    }

    /// Forgets leases that ended or sleep, and purses that nobody has a hand in.
    fn sweep(&self) {
        self.all().retain(|lease| {
            if lease.is_retired() {
                lease.purse().let_go(lease);
            }
            !lease.is_gone()
        });
        self.purses.retain(|_, purse| Arc::strong_count(purse) > 1);
    }

    /// Retires leases of budgets that another process has reset.
    async fn notice_resets(&self) -> Result<(), StoreError> {
        let seen = *self.seen();
        for reset in self.store.resets_after(seen).await? {
            let subject = reset
                .fund
                .rsplit_once('/')
                .map_or("", |(subject, _)| subject);
            let purses = self.purses.iter();
            let concerned: Vec<_> = purses
                .filter(|purse| purse.key.subject.to_string() == subject)
                .map(|purse| purse.clone())
                .collect();
            for purse in concerned {
                let _turn = purse.turn.lock().await;
                purse.forget(&reset.fund, reset.epoch);
            }
            *self.seen() = reset.seq;
        }
        Ok(())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, i64> {
        lock(&self.resets_seen)
    }

    async fn beat_or_warn(&self) {
        if let Err(error) = self.beat(clock::now()).await {
            tracing::warn!(%error, "what was spent could not be written; it will be tried again");
        }
    }

    async fn compact_or_warn(&self) {
        if let Err(error) = self.store.compact(clock::now()).await {
            tracing::warn!(%error, "closed leases could not be added up; it will be tried again");
        }
    }
}
