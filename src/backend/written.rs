//! What the config says of a server at present: one cell that all parts of its backend read.
//!
//! A reload writes another value into it where the server need not start anew (see
//! [`crate::config::Server::runs_like`]). Whoever needs a setting reads it when it is needed, and
//! whoever sleeps for as long as one says follows the changes; nobody keeps a copy.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

use crate::config::Server;

/// What the config says of a server at present.
#[derive(Debug)]
pub(super) struct Written {
    now: ArcSwap<Server>,
    changed: watch::Sender<()>,
}

/// Tells of changes.
#[derive(Debug)]
pub struct Rewrites(watch::Receiver<()>);

impl Rewrites {
    /// Completes at the next change.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Written {
    pub(super) fn new(server: &Server) -> Arc<Self> {
        Arc::new(Self {
            now: ArcSwap::from_pointee(server.clone()),
            changed: watch::channel(()).0,
        })
    }

    /// For a look at it; who needs it for longer takes [`Written::load`].
    pub(super) fn now(&self) -> Guard<Arc<Server>> {
        self.now.load()
    }

    pub(super) fn load(&self) -> Arc<Server> {
        self.now.load_full()
    }

    /// Takes another value; whether it differs.
    pub(super) fn rewrite(&self, server: &Server) -> bool {
        let differs = **self.now.load() != *server;
        if differs {
            self.now.store(Arc::new(server.clone()));
            self.changed.send_replace(());
        }
        differs
    }

    /// Tells of changes from now on.
    pub(super) fn rewrites(&self) -> Rewrites {
        Rewrites(self.changed.subscribe())
    }
}
