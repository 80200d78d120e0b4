//! What is shown next: what a server lists goes up on the board, one change after the other.
//!
//! Called by `discovery`; every change is made beside the workers of the runtime.

use std::sync::{Arc, MutexGuard};

use super::{CatalogState, CatalogStore, Snapshots};
use crate::{
    backend::{Backend, CatalogConnection},
    catalog::{Kind, Listing, ListingGap, ServerOffer},
    lock::lock,
    names::ServerName,
    task::run_blocking,
};

/// The next state on its way; there is one at a time. What was not shown is as if it had not been.
pub(super) struct DraftState<'b> {
    pub(super) state: CatalogState,
    is_changed: bool,
    store: &'b CatalogStore,
    _publish_guard: MutexGuard<'b, ()>,
}

impl DraftState<'_> {
    /// Takes what a server listed to this process.
    pub(super) fn set_offer(&mut self, offer: ServerOffer) {
        let catalogs = &mut self.state.offers;
        catalogs.stored.remove(&offer.server);
        let same = catalogs.plain.get(&offer.server).is_some_and(|known| {
            known.listing == offer.listing
                && known.modern_http == offer.modern_http
                && known.listing_gaps == offer.listing_gaps
        });
        if !same {
            let server = offer.server.clone();
            catalogs.plain.insert(server.clone(), offer);
            self.merge_server(&server);
        }
    }

    /// Merges anew what the servers of a new plan offer, which may take long.
    pub(super) fn merge(&mut self) {
        self.merge_shared();
        self.state.rebuild_owner_catalogs(None);
        self.is_changed = true;
    }

    /// The same where only `server` offers something else: who does not see it sees what was there before.
    pub(super) fn merge_server(&mut self, server: &ServerName) {
        if !server.is_owned() {
            self.merge_shared();
        }
        self.state.rebuild_owner_catalogs(Some(server));
        self.is_changed = true;
    }

    fn merge_shared(&mut self) {
        let CatalogState { plan, offers, .. } = &self.state;
        self.state.snapshots = Snapshots::build(&plan.naming, &plan.shared, offers);
    }

    pub(super) fn publish(mut self) {
        if self.is_changed {
            self.state.view_catalogs = Arc::default();
        }
        self.store.current.store(Arc::new(self.state));
        if self.is_changed {
            self.store.changed.send_modify(|count| *count += 1);
        }
    }
}

impl CatalogStore {
    /// Publishes what a server listed over the connection of `control`; `missing` is why something
    /// of that could not be read.
    pub(in crate::discovery) async fn publish(
        self: &Arc<Self>,
        (offer, missing): (ServerOffer, Option<String>),
        backend: &Arc<Backend>,
        control: &CatalogConnection,
    ) {
        let (backend, control) = (Arc::clone(backend), control.clone());
        self.run_publisher(move |board| board.publish_now(offer, missing, &backend, &control))
            .await;
    }

    fn publish_now(
        &self,
        mut offer: ServerOffer,
        missing: Option<String>,
        backend: &Backend,
        control: &CatalogConnection,
    ) {
        let server = &backend.name;
        // One at a time: a new plan comes after the retirement of those that it replaces.
        let Some(mut next) = self.begin_draft_for(backend) else {
            return;
        };
        offer.config = backend.load_config();
        next.set_offer(offer);
        // Whoever sees that it is listed sees that it is connected.
        backend.note_listed(control, missing);
        next.publish();
        self.mark_unsaved(server);
        self.mark_ready(server);
    }

    /// Publishes what has come of the lists of a server, and whether the rest of it was known; for what
    /// was not, whoever waits for it goes on waiting.
    pub(in crate::discovery) async fn publish_part(
        self: &Arc<Self>,
        (offer, is_known): (ServerOffer, bool),
        backend: &Arc<Backend>,
    ) {
        let backend = Arc::clone(backend);
        self.run_publisher(move |board| board.publish_part_now(offer, is_known, &backend))
            .await;
    }

    fn publish_part_now(&self, mut offer: ServerOffer, is_known: bool, backend: &Backend) {
        let Some(mut next) = self.begin_draft_for(backend) else {
            return;
        };
        offer.config = backend.load_config();
        // What stands there of a predecessor of another program or URL says nothing of this one.
        let known = next.state.offers.get(&backend.name);
        if let Some(known) = known.filter(|_| is_known) {
            // Until it comes, what was read before is what is known of it.
            for kind in Kind::ALL {
                if offer.listing_gaps[kind] == Some(ListingGap::Awaited) {
                    offer.listing_gaps[kind] = known.listing_gaps[kind];
                }
            }
        }
        next.set_offer(offer);
        next.publish();
    }

    pub(in crate::discovery) async fn withdraw(self: &Arc<Self>, backend: &Arc<Backend>) {
        let backend = Arc::clone(backend);
        self.run_publisher(move |board| board.withdraw_now(&backend))
            .await;
    }

    fn withdraw_now(&self, backend: &Backend) {
        let Some(mut next) = self.begin_draft_for(backend) else {
            return;
        };
        if next.state.offers.plain.remove(&backend.name).is_some() {
            next.state.offers.stored.remove(&backend.name);
            next.merge_server(&backend.name);
            next.publish();
        }
    }

    /// Publishes what a server lists for clients that can be asked something, of which what it has
    /// beyond `plain` is new.
    pub(in crate::discovery) async fn publish_interactive(
        self: &Arc<Self>,
        listing: Arc<Listing>,
        plain: Arc<Listing>,
        backend: &Arc<Backend>,
    ) {
        let backend = Arc::clone(backend);
        self.run_publisher(move |board| {
            board.publish_interactive_now(listing.difference(&plain), &backend);
        })
        .await;
    }

    fn publish_interactive_now(&self, more: Listing, backend: &Backend) {
        let server = &backend.name;
        let Some(mut next) = self.begin_draft_for(backend) else {
            return;
        };
        let interactive = &mut next.state.offers.interactive;
        let old = interactive.get(server);
        let differs = old.map_or(!more.is_empty(), |old| **old != more);
        if !differs && old.is_some() {
            return;
        }
        interactive.insert(server.clone(), Arc::new(more));
        if differs {
            next.merge_server(server);
        }
        next.publish();
        self.mark_unsaved(server);
    }

    /// The listing of `server` is to be kept.
    pub(super) fn mark_unsaved(&self, server: &ServerName) {
        lock(&self.unsaved).insert(server.clone());
        self.listed.notify_one();
    }

    /// Lets `work` make the next state, on a thread of its own.
    async fn run_publisher(self: &Arc<Self>, work: impl FnOnce(&Self) + Send + 'static) {
        // It is never closed.
        let turn = Arc::clone(&self.publisher_permits).acquire_owned().await;
        let store = Arc::clone(self);
        run_blocking(move || {
            let _turn = turn;
            work(&store);
        })
        .await;
    }

    /// The next state, which is the current one so far; none after a stop.
    pub(super) fn begin_draft(&self) -> Option<DraftState<'_>> {
        let alone = lock(&self.publish_lock);
        (!self.stop.is_cancelled()).then(|| DraftState {
            state: CatalogState::clone(&self.current.load()),
            is_changed: false,
            store: self,
            _publish_guard: alone,
        })
    }

    /// The same for what is said of `backend`; none once that is retired.
    fn begin_draft_for(&self, backend: &Backend) -> Option<DraftState<'_>> {
        let next = self.begin_draft();
        next.filter(|_| !backend.retired().is_cancelled())
    }
}
