//! What is known of a server beyond one connection: its eras, restarts, and what it announces.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use tokio::sync::{mpsc, watch};

use super::{Failure, Update, mux::Signal};
use crate::{
    mcp::{Era, Raw},
    names::ServerName,
};

/// What is known of a server beyond one connection.
#[derive(Debug)]
pub(crate) struct Shared {
    server: ServerName,
    eras: [AtomicU8; 2],
    /// Starts after the first.
    pub(super) restarts: AtomicU64,
    pub(super) failed_starts: AtomicU64,
    /// Whether the start that is under way takes long.
    slow: AtomicBool,
    /// Why the last connection ended or the last start failed, until one succeeds.
    trouble: Mutex<Option<Failure>>,
    /// Whether it was seen to ask for the roots of a client.
    pub(super) asks_roots: AtomicBool,
    pub(super) changes: watch::Sender<u64>,
    updates: mpsc::Sender<Update>,
}

const UNKNOWN: u8 = 0;
pub(super) const SPOKEN: u8 = 1;
pub(super) const REFUSED: u8 = 2;

impl Shared {
    pub(super) fn new(server: &ServerName, updates: &mpsc::Sender<Update>) -> Self {
        Self {
            server: server.clone(),
            eras: [AtomicU8::new(UNKNOWN), AtomicU8::new(UNKNOWN)],
            restarts: AtomicU64::new(0),
            failed_starts: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            trouble: Mutex::default(),
            asks_roots: AtomicBool::new(false),
            changes: watch::channel(0).0,
            updates: updates.clone(),
        }
    }

    fn era(&self, era: Era) -> &AtomicU8 {
        match era {
            Era::Legacy => &self.eras[0],
            Era::Modern => &self.eras[1],
        }
    }

    pub(crate) fn learn(&self, era: Era) {
        self.era(era).store(SPOKEN, Ordering::Relaxed);
    }

    /// Holds no verdict any longer: the server may have been replaced by a newer one.
    pub(crate) fn unlearn(&self) {
        for verdict in &self.eras {
            verdict.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    pub(super) fn refuse(&self, era: Era) {
        self.era(era).store(REFUSED, Ordering::Relaxed);
    }

    pub(super) fn knows(&self, era: Era) -> u8 {
        self.era(era).load(Ordering::Relaxed)
    }

    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.slow.store(is_slow, Ordering::Relaxed);
    }

    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    pub(crate) fn count_failed_start(&self) {
        self.failed_starts.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that it is being started again because of `failure`.
    pub(crate) fn note_restart(&self, failure: Failure) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        *self.trouble() = Some(failure);
    }

    /// Notes that it was started.
    pub(crate) fn note_start(&self) {
        *self.trouble() = None;
    }

    /// Why it is being started again.
    pub(super) fn trouble(&self) -> MutexGuard<'_, Option<Failure>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on what a server said on the connection of `instance`.
    pub(crate) fn signal(&self, signal: Signal, instance: u64) {
        match signal {
            Signal::AsksRoots => self.asks_roots.store(true, Ordering::Relaxed),
            Signal::ListChanged => self.changes.send_modify(|count| *count += 1),
            Signal::ResourceUpdated(params) => {
                let Some(params) = params else { return };
                let uri = params.get("uri");
                let Some(uri) = uri.as_ref().and_then(Raw::as_text) else {
                    return;
                };
                let uri = uri.into_owned();
                let server = self.server.clone();
                let update = Update {
                    server,
                    uri,
                    params,
                    instance,
                };
                if self.updates.try_send(update).is_err() {
                    tracing::warn!(server = %self.server, "an update of a resource was lost: too many at once");
                }
            }
        }
    }
}
