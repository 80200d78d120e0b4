//! The end of a backend whose server the config has changed or removed.
//!
//! Calls hold a [`BackendLease`]. A retired backend gives out none; once those it gave have ended, or
//! patience has, its connections end, and none opens any more. Whoever follows a server rather than
//! calls it, such as discovery, lets go as soon as it is retired.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use super::{Backend, dispatch::replicas::Replicas};

/// How long a backend is in service.
#[derive(Debug)]
pub(super) struct Service {
    /// Counts the leases; closed as soon as it is retired.
    leases: TaskTracker,
    /// Cancelled as soon as it is retired.
    retired: CancellationToken,
    /// Cancelled when its connections end.
    closed: CancellationToken,
}

impl Service {
    pub(super) fn new() -> Self {
        Self {
            leases: TaskTracker::new(),
            retired: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Whether no connection may open any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }
}

/// The use of a backend by one call.
#[derive(Debug)]
pub(super) struct BackendLease {
    backend: Arc<Backend>,
    _counted: TaskTrackerToken,
}

impl BackendLease {
    /// None of a backend that is retired.
    pub(super) fn of(backend: Arc<Backend>) -> Option<Self> {
        let leases = &backend.service.leases;
        // Counted before the look: whoever retires closes first and waits then, and sees either this
        // lease or that there is none.
        let counted = leases.token();
        if leases.is_closed() {
            return None;
        }
        Some(Self {
            backend,
            _counted: counted,
        })
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }
}

impl Backend {
    /// Cancelled when the config no longer has the server, or has it differently.
    pub fn retired(&self) -> &CancellationToken {
        &self.service.retired
    }

    /// Cancelled when its connections end for good, some time after it was retired.
    pub fn closed(&self) -> &CancellationToken {
        &self.service.closed
    }

    /// Takes no more calls.
    pub(super) fn stop_accepting(&self) {
        self.service.leases.close();
        self.service.retired.cancel();
    }

    /// Lets the running calls finish within `patience`, then ends all connections.
    pub(super) async fn drain(&self, patience: Duration) {
        tokio::select! {
            drained = timeout(patience, self.service.leases.wait()) => if drained.is_err() {
                let server = &self.name;
                tracing::warn!(%server, "calls did not finish within {patience:?}; cutting them off");
            },
            () = self.connector.tasks.stop_token().cancelled() => {}
        }
        self.shut_down();
        for replica in self.replicas.iter().flat_map(Replicas::backends) {
            replica.shut_down();
        }
    }

    /// Ends all connections, and opens none any more.
    fn shut_down(&self) {
        let mut instances = self.lock();
        // Under the lock, so that none is added once all were told.
        self.service.closed.cancel();
        for instance in instances.drain().map(|(_, instance)| instance) {
            instance.stop.cancel();
        }
        drop(instances);
        if let Some(pool) = &self.pool {
            pool.close();
        }
        self.catalog.stop.cancel();
    }
}
