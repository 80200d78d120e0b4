//! Asks backends for their lists and publishes the merged catalog.
//!
//! One task a backend follows its connection until the backend is retired: lists when it comes up,
//! again when it says that a list changed, and withdraws the server's items when it stays down. A
//! dead or slow server never delays the others.
//!
//! A list that cannot be read costs itself alone: the others are published, at once where it takes long,
//! and what was known of it stays. Replicas are tried one after the other, and those that could not be listed again beside
//! the one that is (`replica_probe`).
//!
//! The catalog's connections declare no capabilities of clients, since clients without any are
//! served by them. What legacy servers list for others is asked for by `interactive`. Tools whose schema cannot
//! be used are found by `schemas`, once they are listed.

mod catalog_store;
mod interactive;
mod replica_probe;
mod schema_check;
mod server_lists;

use std::{future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    backend::{Backend, BackendError, CatalogConnection, CatalogWatch, Listability},
    catalog::Listing,
    task::Tasks,
};

pub(crate) use catalog_store::CatalogStore;
use server_lists::{ListRun, ServerLists};

/// How long changes of one server's lists are gathered before it is asked again.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Pause before a failed listing is tried again on the same connection; it doubles while that fails.
const RELIST_DELAY: Duration = Duration::from_secs(5);
/// The longest such pause.
const RELIST_DELAY_MAX: Duration = Duration::from_secs(60);
/// How long a replica may take for its lists while another could be listed in its place.
const LIST_FAILOVER_DELAY: Duration = Duration::from_secs(3);

/// Starts to follow a server until it is retired, if it is enabled.
pub(crate) fn start(backend: &Arc<Backend>, store: &Arc<CatalogStore>, tasks: &Tasks) {
    if !backend.is_enabled() {
        return;
    }
    let follow = follow(Arc::clone(backend), Arc::clone(store), tasks.clone());
    tasks.spawn("discovery", follow);
    let able = interactive::follow(Arc::clone(backend), Arc::clone(store));
    spawn(backend, "discovery for interactive clients", able, tasks);
    let schemas = schema_check::follow(Arc::clone(backend), Arc::clone(store));
    spawn(backend, "schema check", schemas, tasks);
    if backend.watch_catalog().has_replicas() {
        let behind = replica_probe::follow(Arc::clone(backend));
        spawn(backend, "discovery on other replicas", behind, tasks);
    }
}

/// Lets `follow` run until `backend` is retired.
fn spawn(
    backend: &Backend,
    name: &'static str,
    follow: impl Future<Output = ()> + Send + 'static,
    tasks: &Tasks,
) {
    let retired = backend.retired().clone();
    let stop = tasks.stop_token().clone();
    tasks.spawn(name, async move {
        tokio::select! {
            () = follow => {}
            () = retired.cancelled() => {}
            () = stop.cancelled() => {}
        }
    });
}

async fn follow(backend: Arc<Backend>, store: Arc<CatalogStore>, tasks: Tasks) {
    let mut standing = backend.watch_catalog();
    let mut lists = backend.list_changes();
    let mut rewrites = backend.config_updates();
    let mut gone: Option<Instant> = None;
    let mut lister = Lister::new(&backend, &store);
    // What a predecessor listed stays for a while, as after any interruption.
    let mut listed = store.listing(&backend.name).is_some();
    loop {
        let now = standing.current();
        let mut relist = None;
        match &now {
            Listability::Up(control) => {
                gone = None;
                listed = true;
                lists.mark_unchanged();
                relist = tokio::select! {
                    biased;
                    () = backend.retired().cancelled() => return,
                    relist = lister.relist(control, &mut standing) => relist,
                };
            }
            Listability::Asleep => gone = None,
            Listability::Down => {
                store.mark_ready(&backend.name);
                gone.get_or_insert_with(Instant::now);
            }
            // What an earlier process listed is served for as long as the first start takes.
            Listability::Connecting
                if gone.is_none() && store.stored_at(&backend.name).is_some() => {}
            Listability::Connecting => {
                gone.get_or_insert_with(Instant::now);
            }
        }
        let grace = backend.load_config().grace;
        let withdraw = gone.map(|since| since + grace).filter(|_| listed);
        tokio::select! {
            () = standing.changed() => {}
            () = lists.changed_then_quiet(DEBOUNCE), if matches!(now, Listability::Up(_)) => {}
            () = sleep(relist.unwrap_or_default()), if relist.is_some() => {}
            () = rewrites.changed(), if withdraw.is_some() => {}
            () = sleep_until(withdraw.unwrap_or_else(Instant::now)), if withdraw.is_some() => {
                store.withdraw(&backend).await;
                backend.note_withdrawn();
                listed = false;
            }
            () = backend.retired().cancelled() => return,
            () = tasks.stop_token().cancelled() => return,
        }
    }
}

/// Lists one server, again and again.
struct Lister {
    backend: Arc<Backend>,
    catalog_store: Arc<CatalogStore>,
    /// What it listed last.
    last: Option<Arc<Listing>>,
    retries: RelistBackoff<CatalogConnection>,
}

impl Lister {
    fn new(backend: &Arc<Backend>, store: &Arc<CatalogStore>) -> Self {
        Self {
            backend: Arc::clone(backend),
            catalog_store: Arc::clone(store),
            last: None,
            retries: RelistBackoff {
                connection: None,
                delay: RELIST_DELAY,
            },
        }
    }

    /// Lists the server and publishes what it offers; says how soon to do so again, since that failed
    /// or since the lists are fresh no longer.
    async fn relist(
        &mut self,
        control: &CatalogConnection,
        standing: &mut CatalogWatch,
    ) -> Option<Duration> {
        let backend = &Arc::clone(&self.backend);
        let _reading = backend.begin_reading_lists(control);
        // What a predecessor of another program or URL listed is none of it.
        let before = self
            .last
            .clone()
            .or_else(|| self.catalog_store.saved_listing(backend));
        // Another may be listed in its place.
        let is_shown = !standing.has_alternative(control);
        let failover_due = async {
            // Of one, the next change is for whoever waits for it.
            if !standing.has_replicas() {
                std::future::pending::<()>().await;
            }
            sleep(LIST_FAILOVER_DELAY).await;
            standing.alternative_available(control).await;
        };
        let read = tokio::select! {
            read = self.read_lists(control, before, is_shown) => read,
            () = failover_due => Err(BackendError::Timeout { after: LIST_FAILOVER_DELAY, key: None }),
        };
        let missing = read.as_ref().ok().and_then(ServerLists::missing);
        let has_failed = read.is_err() || missing.is_some();
        let retry = has_failed.then(|| self.retries.next_delay(control));
        match read {
            // The other is to be listed first.
            Ok(_) if has_failed && standing.has_alternative(control) => {
                backend.note_listable(control, missing);
                retry
            }
            Ok(lists) => {
                if !has_failed {
                    self.retries.connection = None;
                }
                let fresh = control.freshness(&lists.listing.pages);
                let offer = lists.into_offer(backend, control);
                self.last = Some(Arc::clone(&offer.listing));
                let listed = (offer, missing);
                self.catalog_store.publish(listed, backend, control).await;
                backend.follow_list_changes(control);
                retry.or(fresh)
            }
            Err(failure) => {
                tracing::debug!(server = %backend.name, %failure, "cannot list the server");
                let has_other = standing.has_alternative(control);
                backend.note_unlisted(control, &failure);
                if !has_other {
                    self.catalog_store.mark_ready(&backend.name);
                }
                retry
            }
        }
    }

    /// Reads the lists, of which `before` is known; what has come `is_shown` while the rest takes long.
    async fn read_lists(
        &mut self,
        control: &CatalogConnection,
        before: Option<Arc<Listing>>,
        is_shown: bool,
    ) -> Result<ServerLists, BackendError> {
        let is_known = before.is_some();
        let before = before.unwrap_or_default();
        let mut asking = ListRun::new(&self.backend, control, &before);
        while let Some(part) = asking.next_part().await? {
            if is_shown {
                let offer = part.into_offer(&self.backend, control);
                self.last = Some(Arc::clone(&offer.listing));
                let part = (offer, is_known);
                self.catalog_store.publish_part(part, &self.backend).await;
            }
        }
        asking.finish()
    }
}

/// The pauses before a listing that failed is tried again on the same connection.
struct RelistBackoff<C> {
    connection: Option<C>,
    delay: Duration,
}

impl<C: Clone + PartialEq> RelistBackoff<C> {
    fn next_delay(&mut self, control: &C) -> Duration {
        self.delay = if self.connection.as_ref() == Some(control) {
            (self.delay * 2).min(RELIST_DELAY_MAX)
        } else {
            RELIST_DELAY
        };
        self.connection = Some(control.clone());
        self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_that_fails_is_tried_again_less_and_less_often() {
        let mut retries = RelistBackoff {
            connection: None,
            delay: RELIST_DELAY,
        };
        for (connection, seconds) in [
            (1, 5),
            (1, 10),
            (1, 20),
            (1, 40),
            (1, 60),
            (1, 60),
            (2, 5),
            (2, 10),
        ] {
            assert_eq!(
                retries.next_delay(&connection),
                Duration::from_secs(seconds)
            );
        }
    }
}
