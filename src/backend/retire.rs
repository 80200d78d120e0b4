//! The end of a backend whose server the config has changed or removed.
//!
//! Calls hold a [`Lease`]. A retired backend gives out none; once those it gave have ended, or
//! patience has, its connections end, and none opens any more. Whoever follows a server rather than
//! calls it, such as discovery, lets go as soon as it is retired.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Backend, replicas::Replicas};

/// How long a backend is in service.
#[derive(Debug)]
pub(super) struct Service {
    leases: AtomicUsize,
    returned: Notify,
    is_retired: AtomicBool,
    /// Cancelled as soon as it is retired.
    retired: CancellationToken,
    /// Cancelled when its connections end.
    over: CancellationToken,
}

impl Service {
    pub(super) fn new() -> Self {
        Self {
            leases: AtomicUsize::new(0),
            returned: Notify::new(),
            is_retired: AtomicBool::new(false),
            retired: CancellationToken::new(),
            over: CancellationToken::new(),
        }
    }

    /// Whether no connection may open any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Completes when nobody holds a lease.
    async fn unused(&self) {
        loop {
            let mut returned = std::pin::pin!(self.returned.notified());
            returned.as_mut().enable();
            if self.leases.load(Ordering::SeqCst) == 0 {
                return;
            }
            returned.await;
        }
    }
}

/// The use of a backend by one call.
#[derive(Debug)]
pub(super) struct Lease(Arc<Backend>);

impl Lease {
    /// None of a backend that is retired.
    pub(super) fn of(backend: Arc<Backend>) -> Option<Self> {
        backend.service.leases.fetch_add(1, Ordering::SeqCst);
        let lease = Self(backend);
        // Whoever retires says so before looking for leases: one of both sees the other.
        (!lease.0.service.is_retired.load(Ordering::SeqCst)).then_some(lease)
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let service = &self.0.service;
        if service.leases.fetch_sub(1, Ordering::SeqCst) == 1
            && service.is_retired.load(Ordering::SeqCst)
        {
            service.returned.notify_waiters();
        }
    }
}

impl Backend {
    /// Cancelled when the config no longer has the server, or has it differently.
    pub fn retired(&self) -> &CancellationToken {
        &self.service.retired
    }

    /// Cancelled when its connections end for good, some time after it was retired.
    pub fn over(&self) -> &CancellationToken {
        &self.service.over
    }

    /// Takes no more calls.
    pub(super) fn close(&self) {
        self.service.is_retired.store(true, Ordering::SeqCst);
        self.service.retired.cancel();
    }

    /// Lets the running calls finish within `patience`, then ends all connections.
    pub(super) async fn end(&self, patience: Duration) {
        tokio::select! {
            drained = timeout(patience, self.service.unused()) => if drained.is_err() {
                let server = &self.name;
                tracing::warn!(%server, "calls did not finish within {patience:?}; they are cut off");
            },
            () = self.maker.tasks.stop_token().cancelled() => {}
        }
        self.cut();
        for replica in self.replicas.iter().flat_map(Replicas::backends) {
            replica.cut();
        }
    }

    /// Ends all connections, and opens none any more.
    fn cut(&self) {
        let mut instances = self.lock();
        // Under the lock, so that none is added once all were told.
        self.service.over.cancel();
        for instance in instances.drain().map(|(_, instance)| instance) {
            instance.stop.cancel();
        }
        drop(instances);
        if let Some(pool) = &self.pool {
            pool.end();
        }
        self.catalog.stop.cancel();
    }
}
