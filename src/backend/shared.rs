//! What is known of a server beyond one connection: its eras, restarts, and what it announces.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::Span;

use super::{
    Failure, Update,
    breaker::Breaker,
    health::Checks,
    instance::Starts,
    life::{Event, Life},
    mux::Signal,
};
use crate::{
    config::Server,
    lock::lock,
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
    /// Times that the catalog's connection was made.
    greetings: AtomicU64,
    /// Whether the start that is under way takes long.
    slow: AtomicBool,
    /// Where it stands.
    pub(super) life: Life,
    starts: Mutex<Starts>,
    pub(super) breaker: Arc<Breaker>,
    /// Health checks of the catalog's connections.
    pub(super) checks: Mutex<Checks>,
    /// Whether it was seen to ask for the roots of a client.
    pub(super) asks_roots: AtomicBool,
    pub(super) changes: watch::Sender<u64>,
    /// What belongs to the server it is a replica of.
    joined: OnceLock<Joined>,
    reads: Arc<Reads>,
    updates: mpsc::Sender<Update>,
}

/// What replicas share.
#[derive(Debug)]
struct Joined {
    changes: watch::Sender<u64>,
    reads: Arc<Reads>,
}

/// Readings of its lists.
#[derive(Debug, Default)]
struct Reads {
    under_way: AtomicUsize,
    /// Those that ended since it was connected.
    done: AtomicUsize,
}

/// Its lists are being read until this is dropped.
#[derive(Debug)]
pub struct Reading {
    own: Arc<Reads>,
    /// Those of all replicas.
    all: Option<Arc<Reads>>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        for reads in std::iter::once(&self.own).chain(&self.all) {
            reads.done.fetch_add(1, Ordering::SeqCst);
        }
        self.own.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

const UNKNOWN: u8 = 0;
pub(super) const SPOKEN: u8 = 1;
pub(super) const REFUSED: u8 = 2;

impl Shared {
    pub(super) fn new(
        server: &ServerName,
        config: &Server,
        updates: &mpsc::Sender<Update>,
        about: &Span,
    ) -> Self {
        Self {
            server: server.clone(),
            eras: [AtomicU8::new(UNKNOWN), AtomicU8::new(UNKNOWN)],
            restarts: AtomicU64::new(0),
            failed_starts: AtomicU64::new(0),
            greetings: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            life: Life::new(server, about),
            starts: Mutex::new(Starts::new(config.retry.starts_per_minute)),
            breaker: Arc::new(Breaker::new(config.breaker)),
            checks: Mutex::default(),
            asks_roots: AtomicBool::new(false),
            changes: watch::channel(0).0,
            joined: OnceLock::new(),
            reads: Arc::default(),
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

    /// Notes that it is being started again.
    pub(crate) fn note_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a start that failed, or a connection that did not hold.
    pub(super) fn note_futile_start(&self) {
        lock(&self.starts).note(Instant::now());
    }

    /// Allows so many starts that come to nothing a minute from now on.
    pub(super) fn set_starts(&self, max: usize) {
        lock(&self.starts).set(max);
    }

    /// Says to `server` from now on that its lists changed, or were read.
    pub(super) fn join(&self, server: &Self) {
        let joined = Joined {
            changes: server.changes.clone(),
            reads: Arc::clone(&server.reads),
        };
        // A replica is of one server only.
        self.joined.set(joined).ok();
    }

    pub(super) fn reading(&self) -> Reading {
        self.reads.under_way.fetch_add(1, Ordering::SeqCst);
        Reading {
            own: Arc::clone(&self.reads),
            all: self.joined.get().map(|joined| Arc::clone(&joined.reads)),
        }
    }

    /// Whether its lists were read since it was connected, and are not being read now. Of replicas
    /// one is listed: those of another will do.
    pub(super) fn is_read(&self) -> bool {
        let is_done = |reads: &Reads| reads.done.load(Ordering::SeqCst) > 0;
        let by_another = self
            .joined
            .get()
            .is_some_and(|joined| is_done(&joined.reads));
        self.reads.under_way.load(Ordering::SeqCst) == 0 && (is_done(&self.reads) || by_another)
    }

    /// Notes that the catalog's connection was made.
    pub(super) fn note_start(&self) {
        self.reads.done.store(0, Ordering::SeqCst);
        self.greetings.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the catalog's connection was made.
    pub(super) fn greetings(&self) -> u64 {
        self.greetings.load(Ordering::Relaxed)
    }

    /// How long the next start has to wait, since too many came to nothing.
    pub(super) fn start_wait(&self) -> Duration {
        lock(&self.starts).wait(Instant::now())
    }

    /// Why nothing can be started now, where too many starts came to nothing.
    pub(super) fn held_back(&self) -> Option<Failure> {
        lock(&self.starts).failure(Instant::now())
    }

    /// Lets the server be listed again.
    pub(super) fn ask_for_lists(&self) {
        let joined = self.joined.get().map(|joined| &joined.changes);
        let changes = joined.unwrap_or(&self.changes);
        changes.send_modify(|count| *count += 1);
    }

    /// It answers as it did not for a while: it is to be listed again.
    pub(super) fn is_well_again(&self) {
        if self.joined.get().is_some() {
            // Of replicas one is listed, and it may be another.
            self.life.take(Event::Greeted, None);
        }
        self.ask_for_lists();
    }

    /// Passes on what a server said on the connection of `instance`.
    pub(crate) fn signal(&self, signal: Signal, instance: u64) {
        match signal {
            Signal::Asks => self.breaker.asks(),
            Signal::AsksRoots => self.asks_roots.store(true, Ordering::Relaxed),
            Signal::ListChanged => self.ask_for_lists(),
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
