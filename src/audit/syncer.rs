//! The thread that brings written lines to disk, and what its waiters hold.
//!
//! One `fdatasync` serves all lines written before it (group commit). It blocks for as long as the
//! disk likes, so it has a thread of its own, which outlives no log. The thread is asked by
//! condition variable, and only when it sleeps: the way of a call has no system call but `write`,
//! and after a pause a look at the file. Whenever it has synced it looks whether the file is still
//! there.

use std::{
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::watch, task::yield_now};

use super::{
    AuditError,
    batch::{Batch, Gathering, Queued, Slot},
    line::{Kind, Members, Opened, Record},
    tally::Tally,
    writer::Writer,
};
use crate::{
    config::Durability,
    lock::{lock, try_lock},
};

/// How long a line may wait for its sync to begin with the durability `process`: half of the
/// promised 100 ms, the other half is for the disk.
pub const SYNC_DELAY: Duration = Duration::from_millis(50);

/// How long after a failure waiting lines are tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How often other tasks go first while somebody writes, which takes about as long as a few of them;
/// then the thread waits, since whatever takes so much longer is a disk.
const WRITING_TURNS_MAX: usize = 64;

/// What a log and its thread share.
///
/// The lock of what is gathering is taken after that of the state, and held for no longer than a line
/// takes to be moved, but for the end of the chain; that of the state is held during a `write`.
pub(super) struct Shared {
    gathering: Mutex<Gathering>,
    state: Mutex<State>,
    wake: Condvar,
    durability: Durability,
    synced: watch::Sender<Synced>,
}

struct State {
    writer: Writer,
    /// The lines that are being written.
    lines: Vec<Queued>,
    asleep: bool,
    stopping: bool,
}

/// How far the disk has come.
#[derive(Clone, Debug, Default)]
struct Synced {
    seq: u64,
    failed: Option<Arc<io::Error>>,
}

/// Says when a line is kept as `audit.durability` asks.
#[must_use = "nothing may leave before the line is kept"]
pub struct Kept<'a>(Wait<'a>);

impl Shared {
    pub(super) fn new(writer: Writer, durability: Durability) -> Self {
        let state = State {
            writer,
            lines: Vec::new(),
            asleep: false,
            stopping: false,
        };
        Self {
            gathering: Mutex::default(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            durability,
            synced: watch::Sender::default(),
        }
    }

    /// Takes a line, which is written when its [`Kept`] is asked or dropped.
    pub(super) fn put(&self, line: Queued) -> Kept<'_> {
        let put = lock(&self.gathering).put(line);
        Kept(match put {
            Ok(slot) => Wait::For(Line { shared: self, slot }),
            Err(error) => Wait::Never(error),
        })
    }

    /// Ends the chain with the records that `record` makes of calls that are still open.
    pub(super) fn end(
        &self,
        record: fn(Opened<'static>, Timestamp) -> Record<'static>,
    ) -> Result<(), AuditError> {
        let mut state = self.state();
        state.writer.look();
        // Kept until the end is written, so that a line that comes meanwhile is not lost when it
        // cannot be.
        let mut gathering = lock(&self.gathering);
        let batch = gathering.take(&mut state.lines);
        self.write_batch(&mut state, &batch);
        state.writer.end(record)?;
        gathering.closed = true;
        Ok(())
    }

    /// Writes a line of the log's own, or nothing.
    pub(super) fn line(
        &self,
        kind: Kind,
        members: impl FnOnce(&mut Members<'_>, &Tally),
    ) -> Result<(), AuditError> {
        let mut state = self.state();
        self.not_ended()?;
        state.writer.look();
        let written = state.writer.line(kind, members);
        self.ask(&mut state);
        written
    }

    /// Whether anything may be opened.
    pub(super) fn ready(&self) -> Result<(), AuditError> {
        let state = self.state();
        self.not_ended()?;
        state.writer.ready()
    }

    /// Lines that were given up, of which the log does not know yet.
    pub(super) fn lost(&self) -> u64 {
        self.state().writer.lost()
    }

    /// Refuses once the chain has ended.
    fn not_ended(&self) -> Result<(), AuditError> {
        if lock(&self.gathering).closed {
            return Err(AuditError::Closed);
        }
        Ok(())
    }

    /// Writes the lines of `batch`, unless somebody did.
    fn write(&self, batch: &Batch) {
        if batch.outcome().is_none() {
            self.write_with(self.state(), batch);
        }
    }

    /// The same, unless somebody writes others at this moment; says whether it was done.
    fn try_write(&self, batch: &Batch) -> bool {
        if batch.outcome().is_none()
            && let Some(state) = try_lock(&self.state)
        {
            self.write_with(state, batch);
        }
        batch.outcome().is_some()
    }

    fn write_with(&self, mut state: MutexGuard<'_, State>, batch: &Batch) {
        // Until its outcome is there a batch is the one that gathers, or somebody has the lock.
        if batch.outcome().is_none() {
            let batch = lock(&self.gathering).take(&mut state.lines);
            self.write_batch(&mut state, &batch);
        }
    }

    fn write_batch(&self, state: &mut State, batch: &Batch) {
        // The first line in a while; before others the thread has just looked.
        if state.asleep {
            state.writer.look();
        }
        batch.end(state.writer.write(&mut state.lines));
        self.ask(state);
    }

    /// Syncs in the caller's thread, whatever the other one does.
    pub(super) fn sync_now(&self) -> Result<(), AuditError> {
        let state = self.sync(self.state());
        let broken = state.writer.broken();
        broken.map_or(Ok(()), |source| Err(AuditError::Sync { source }))
    }

    /// Whether the disk has every line that was written.
    pub(super) fn is_synced(&self) -> bool {
        let state = self.state();
        lock(&self.gathering).is_empty() && self.synced.borrow().seq >= state.writer.seq()
    }

    /// Returns when the disk has the line of this number.
    async fn synced(&self, seq: u64) -> Result<(), AuditError> {
        let mut synced = self.synced.subscribe();
        let enough = |synced: &Synced| synced.seq >= seq || synced.failed.is_some();
        let reached = synced.wait_for(enough).await;
        let failed = reached.map_err(|_| AuditError::Closed)?.failed.clone();
        failed.map_or(Ok(()), |source| Err(AuditError::Sync { source }))
    }

    pub(super) fn start(self: Arc<Self>) -> io::Result<thread::JoinHandle<()>> {
        let thread = thread::Builder::new().name("audit".to_owned());
        thread.spawn(move || self.run())
    }

    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.wake.notify_all();
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.stopping {
            let writer = &state.writer;
            let waiting = writer.waiting() > 0 || writer.lost() > 0 || writer.is_stuck();
            let delay = match self.durability {
                _ if waiting => Some(RETRY_DELAY),
                Durability::Disk => None,
                Durability::Process => Some(SYNC_DELAY),
            };
            if !waiting && !state.writer.dirty {
                state = self.sleep(state);
                continue;
            }
            if let Some(delay) = delay {
                state = self.pause(state, delay);
            }
            state.writer.flush_pending();
            if state.writer.dirty {
                state = self.sync(state);
            }
        }
        state.writer.flush_pending();
        drop(self.sync(state));
    }

    /// Syncs what is written, without the lock, and tells who waits.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.writer.dirty = false;
        let (sink, seq) = (state.writer.sink(), state.writer.seq());
        drop(state);
        let done = sink.sync();
        let mut state = self.state();
        if let Err(error) = done {
            state.writer.distrust(error);
        }
        // Nothing follows an end.
        if self.not_ended().is_ok() {
            state.writer.look();
        }
        let failed = state.writer.broken();
        self.synced.send_modify(|synced| {
            synced.seq = synced.seq.max(seq);
            synced.failed = failed;
        });
        state
    }

    /// Sleeps until asked.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asleep = true;
        let mut state = self
            .wake
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
        state.asleep = false;
        state
    }

    /// Sleeps for a while, or until the log is dropped.
    fn pause<'a>(&'a self, state: MutexGuard<'a, State>, delay: Duration) -> MutexGuard<'a, State> {
        let going = |state: &mut State| !state.stopping;
        let waited = self.wake.wait_timeout_while(state, delay, going);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Asks the thread to sync, unless it will do so anyway.
    fn ask(&self, state: &mut State) {
        if std::mem::take(&mut state.asleep) {
            self.wake.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

enum Wait<'a> {
    For(Line<'a>),
    Never(AuditError),
    Now,
}

/// A line on its way. It is written at the latest when nobody waits for it any more.
struct Line<'a> {
    shared: &'a Shared,
    slot: Slot,
}

impl Line<'_> {
    /// Writes the line without keeping a thread that others can use; says the number of the last one
    /// that was written with it.
    async fn written(&self) -> Result<u64, AuditError> {
        for _ in 0..WRITING_TURNS_MAX {
            if self.shared.try_write(self.slot.batch()) {
                break;
            }
            yield_now().await;
        }
        self.write()
    }

    /// Writes the line now; says the number of the last one that was written with it.
    fn write(&self) -> Result<u64, AuditError> {
        self.shared.write(self.slot.batch());
        self.slot.written().unwrap_or(Err(AuditError::Closed))
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.shared.write(self.slot.batch());
    }
}

impl fmt::Debug for Kept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Wait::For(line) => f.debug_tuple("Kept").field(&line.slot).finish(),
            Wait::Never(error) => f.debug_tuple("Kept").field(error).finish(),
            Wait::Now => f.write_str("Kept"),
        }
    }
}

impl Kept<'_> {
    pub(super) fn now() -> Self {
        Self(Wait::Now)
    }

    /// Writes the line now, and says whether the operating system has it.
    #[cfg(test)]
    pub(super) fn is_written(&self) -> bool {
        match &self.0 {
            Wait::For(line) => line.write().is_ok(),
            Wait::Never(_) => false,
            Wait::Now => true,
        }
    }

    /// Returns when the line is kept: with the durability `process` once it is written, which other
    /// calls that are ready may share, after it was synced to disk with `disk`. Giving up waiting
    /// changes nothing.
    ///
    /// # Errors
    /// When the line waits in memory, or the disk did not take it.
    pub async fn kept(self) -> Result<(), AuditError> {
        let line = match self.0 {
            Wait::Never(error) => return Err(error),
            Wait::Now => return Ok(()),
            Wait::For(line) => line,
        };
        if line.slot.waits {
            yield_now().await;
        }
        let seq = line.written().await?;
        match line.shared.durability {
            // In a box: with `process` nobody waits, but every call has room for it.
            Durability::Disk => Box::pin(line.shared.synced(seq)).await,
            Durability::Process => Ok(()),
        }
    }
}
