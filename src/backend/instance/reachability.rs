//! Whether the server behind a URL can be reached, as its connections find out for one another.
//!
//! A program runs once for each of its connections, and none says anything of the others. Behind a URL
//! there is one server for all of them: where one finds it away, the catalog's, by which the server's
//! state is known, is checked as well; where one reaches it again, the others need not wait as long as
//! each would by itself. Fed by `supervisor`, `health` and calls that the breaker answers.

use std::sync::{Arc, Mutex, Weak};

use tokio::{sync::watch, time::Instant};

use crate::{backend::link::pending::PendingRequests, config::Transport, lock::lock};

/// See the module.
#[derive(Debug)]
pub(in crate::backend) struct Reachability {
    /// Whether all connections lead to one server.
    is_shared: bool,
    /// The catalog's connection.
    catalog: Mutex<Weak<PendingRequests>>,
    /// When the server was last greeted on the catalog's connection, or found well there after checks
    /// that were missed.
    catalog_back: LatestEvent,
    /// When it was last greeted on another.
    other_back: LatestEvent,
}

/// The latest time at which something happened, to be waited for.
#[derive(Debug)]
struct LatestEvent(watch::Sender<Option<Instant>>);

impl LatestEvent {
    fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    fn note(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    fn is_after(&self, since: Instant) -> bool {
        self.0.borrow().is_some_and(|at| at >= since)
    }

    async fn until_after(&self, since: Instant) {
        let mut times = self.0.subscribe();
        // The sender is at hand: this cannot fail.
        drop(times.wait_for(|at| at.is_some_and(|at| at >= since)).await);
    }
}

impl Reachability {
    pub(in crate::backend) fn new(transport: &Transport) -> Self {
        let is_shared = match transport {
            Transport::Auto(_)
            | Transport::Http(_)
            | Transport::Sse(_)
            | Transport::WebSocket(_) => true,
            Transport::Builtin | Transport::Stdio(_) => false,
        };
        Self {
            is_shared,
            catalog: Mutex::default(),
            catalog_back: LatestEvent::new(),
            other_back: LatestEvent::new(),
        }
    }

    /// Whether what one connection finds out holds of all.
    pub(in crate::backend) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Lets the catalog's connection be checked, since the server looks away from elsewhere.
    pub(in crate::backend) fn check_catalog(&self) {
        if !self.is_shared {
            return;
        }
        let catalog = lock(&self.catalog).upgrade();
        if let Some(mux) = catalog {
            mux.note_suspicion();
        }
    }

    /// Notes that the catalog's connection was made.
    pub(in crate::backend) fn set_catalog(&self, requests: &Arc<PendingRequests>) {
        *lock(&self.catalog) = Arc::downgrade(requests);
        self.note_catalog_back();
    }

    /// Notes that the server is there for the catalog's connection, and may not have been.
    pub(in crate::backend) fn note_catalog_back(&self) {
        self.catalog_back.note();
    }

    /// Notes that it was greeted on a connection beside the catalog's.
    pub(in crate::backend) fn note_other_back(&self) {
        self.other_back.note();
    }

    /// Whether the catalog's connection has found it to be there after `since`.
    pub(in crate::backend) fn is_catalog_back(&self, since: Instant) -> bool {
        self.is_shared && self.catalog_back.is_after(since)
    }

    /// Completes when the catalog's connection has found it to be there after `since`.
    pub(in crate::backend) async fn until_catalog_back(&self, since: Instant) {
        if !self.is_shared {
            return std::future::pending().await;
        }
        self.catalog_back.until_after(since).await;
    }

    /// Completes when another connection has found it to be there after `since`.
    pub(in crate::backend) async fn until_other_back(&self, since: Instant) {
        if !self.is_shared {
            return std::future::pending().await;
        }
        self.other_back.until_after(since).await;
    }
}
