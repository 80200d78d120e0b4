//! The thread that brings written lines to disk, and what its waiters hold.
//!
//! One `fdatasync` serves all lines written before it (group commit). It blocks for as long as the
//! disk likes, so it has a thread of its own, which outlives no log. The thread is asked by
//! condition variable, and only when it sleeps: the way of a call has no system call but `write`.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::watch;

use super::{
    AuditError,
    writer::{Placed, Writer},
};
use crate::{config::Durability, lock::lock};

/// How long a line may wait for its sync to begin with the durability `process`: half of the
/// promised 100 ms, the other half is for the disk.
pub const SYNC_DELAY: Duration = Duration::from_millis(50);

/// How long after a failure waiting lines are tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What a log and its thread share.
pub(super) struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    durability: Durability,
    synced: watch::Sender<Synced>,
}

struct State {
    writer: Writer,
    asleep: bool,
    stopping: bool,
}

/// How far the disk has come.
#[derive(Clone, Debug, Default)]
struct Synced {
    seq: u64,
    failed: Option<Arc<io::Error>>,
}

/// The writer, for a short time.
pub(super) struct Writing<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for Writing<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.0.writer
    }
}

impl std::ops::DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Writer {
        &mut self.0.writer
    }
}

/// Says when a line is kept as `audit.durability` asks.
#[derive(Debug)]
#[must_use = "nothing may leave before the line is kept"]
pub struct Kept(Wait);

impl Shared {
    pub(super) fn new(writer: Writer, durability: Durability) -> Self {
        let state = State {
            writer,
            asleep: false,
            stopping: false,
        };
        Self {
            state: Mutex::new(state),
            wake: Condvar::new(),
            durability,
            synced: watch::Sender::default(),
        }
    }

    pub(super) fn lock(&self) -> Writing<'_> {
        Writing(self.state())
    }

    /// A line was written.
    pub(super) fn written(&self, writing: Writing<'_>) -> Kept {
        let mut state = writing.0;
        let kept = match self.durability {
            Durability::Disk => Kept(Wait::Until {
                seq: state.writer.seq(),
                synced: self.synced.subscribe(),
            }),
            Durability::Process => Kept::now(),
        };
        self.ask(&mut state);
        kept
    }

    /// A line was written, or not.
    pub(super) fn placed(
        &self,
        mut writing: Writing<'_>,
        placed: Result<Placed, AuditError>,
    ) -> Kept {
        match placed {
            Ok(Placed::Written) => self.written(writing),
            Ok(Placed::Pending | Placed::Lost) => {
                let lines = writing.waiting();
                self.ask(&mut writing.0);
                Kept(Wait::Never(AuditError::Pending { lines }))
            }
            Err(error) => Kept(Wait::Never(error)),
        }
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
        self.synced.borrow().seq >= state.writer.seq()
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
            let waiting = state.writer.waiting() > 0 || state.writer.lost() > 0;
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

#[derive(Debug)]
enum Wait {
    Never(AuditError),
    Now,
    Until {
        seq: u64,
        synced: watch::Receiver<Synced>,
    },
}

impl Kept {
    pub(super) fn now() -> Self {
        Self(Wait::Now)
    }

    /// Whether there is nothing to wait for.
    pub fn is_now(&self) -> bool {
        matches!(self.0, Wait::Now)
    }

    /// Returns when the line is kept: at once with the durability `process`, after it was synced to
    /// disk with `disk`. Giving up waiting changes nothing.
    ///
    /// # Errors
    /// When the line waits in memory, or the disk did not take it.
    pub async fn kept(self) -> Result<(), AuditError> {
        let (seq, mut synced) = match self.0 {
            Wait::Never(error) => return Err(error),
            Wait::Now => return Ok(()),
            Wait::Until { seq, synced } => (seq, synced),
        };
        let enough = |synced: &Synced| synced.seq >= seq || synced.failed.is_some();
        // In a box: with `process` nobody waits, but every call has room for it.
        let reached = Box::pin(synced.wait_for(enough)).await;
        let failed = reached.map_err(|_| AuditError::Closed)?.failed.clone();
        failed.map_or(Ok(()), |source| Err(AuditError::Sync { source }))
    }
}
