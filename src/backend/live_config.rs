//! What the config says of a server at present: one cell that all parts of its backend read.
//!
//! A reload writes another value into it where the server need not start anew (see
//! [`crate::config::Server::is_compatible_with`]). Whoever needs a setting reads it when it is needed, and
//! whoever sleeps for as long as one says follows the changes; nobody keeps a copy.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

use crate::config::Server;

/// What the config says of a server at present.
#[derive(Debug)]
pub(super) struct LiveConfig {
    current: ArcSwap<Server>,
    changed: watch::Sender<()>,
}

/// Tells of changes.
#[derive(Debug)]
pub struct ConfigUpdates(watch::Receiver<()>);

impl ConfigUpdates {
    /// Completes at the next change.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl LiveConfig {
    pub(super) fn new(server: &Server) -> Arc<Self> {
        Arc::new(Self {
            current: ArcSwap::from_pointee(server.clone()),
            changed: watch::channel(()).0,
        })
    }

    /// For a look at it; who needs it for longer takes [`LiveConfig::load`].
    pub(super) fn current(&self) -> Guard<Arc<Server>> {
        self.current.load()
    }

    pub(super) fn load(&self) -> Arc<Server> {
        self.current.load_full()
    }

    /// Takes another value where it differs, and lets `follow` set what depends on it before anyone
    /// is told.
    pub(super) fn update(&self, server: &Server, follow: impl FnOnce()) {
        if **self.current.load() != *server {
            self.current.store(Arc::new(server.clone()));
            follow();
            self.changed.send_replace(());
        }
    }

    /// Tells of changes from now on.
    pub(super) fn updates(&self) -> ConfigUpdates {
        ConfigUpdates(self.changed.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn whoever_is_told_finds_everything_set() {
        let mut server = Server::example();
        let written = LiveConfig::new(&server);
        let updates = written.updates().0;
        let followed = Cell::new(0);
        let follow = |written: &LiveConfig, server: &Server| {
            assert!(
                *written.current() == Arc::new(server.clone()),
                "it is stored"
            );
            assert!(!updates.has_changed().unwrap(), "nobody is updates yet");
            followed.set(followed.get() + 1);
        };
        written.update(&server, || follow(&written, &server));
        assert_eq!(followed.get(), 0, "nothing differs");
        server.max_instances += 1;
        written.update(&server, || follow(&written, &server));
        assert_eq!(followed.get(), 1);
        assert!(updates.has_changed().unwrap());
    }
}
