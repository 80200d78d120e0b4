//! What is shown next: what a server lists goes up on the board, one change after the other.
//!
//! Called by `discovery`; every change is made beside the workers of the runtime.

use std::sync::{Arc, MutexGuard};

use super::{CatalogState, CatalogStore, Snapshots};
use crate::{
    backend::{Backend, CatalogConnection},
    catalog::{Kind, Listing, ListingGap, Offer},
    lock::lock,
    names::ServerName,
    task::run_blocking,
};

/// The next state on its way; there is one at a time. What was not shown is as if it had not been.
pub(super) struct DraftState<'b> {
    pub(super) state: CatalogState,
    differs: bool,
    board: &'b CatalogStore,
    _alone: MutexGuard<'b, ()>,
}

impl DraftState<'_> {
    /// Takes what a server listed to this process.
    pub(super) fn put(&mut self, offer: Offer) {
        let offers = &mut self.state.offers;
        offers.stored.remove(&offer.server);
        let same = offers.plain.get(&offer.server).is_some_and(|known| {
            known.listing == offer.listing
                && known.modern_http == offer.modern_http
                && known.gaps == offer.gaps
        });
        if !same {
            offers.plain.insert(offer.server.clone(), offer);
            self.merge();
        }
    }

    /// Merges anew what the servers offer, which may take long.
    pub(super) fn merge(&mut self) {
        self.state.shown = Snapshots::build(&self.state.plan, &self.state.offers);
        self.differs = true;
    }

    pub(super) fn show(self) {
        self.board.current.store(Arc::new(self.state));
        if self.differs {
            self.board.changed.send_modify(|count| *count += 1);
        }
    }
}

impl CatalogStore {
    /// Publishes what a server listed over the connection of `control`; `missing` is why something
    /// of that could not be read.
    pub(in crate::discovery) async fn publish(
        self: &Arc<Self>,
        (offer, missing): (Offer, Option<String>),
        backend: &Arc<Backend>,
        control: &CatalogConnection,
    ) {
        let (backend, control) = (Arc::clone(backend), control.clone());
        self.make(move |board| board.publish_now(offer, missing, &backend, &control))
            .await;
    }

    fn publish_now(
        &self,
        mut offer: Offer,
        missing: Option<String>,
        backend: &Backend,
        control: &CatalogConnection,
    ) {
        let server = &backend.name;
        // One at a time: a new plan comes after the retirement of those that it replaces.
        let Some(mut next) = self.next_for(backend) else {
            return;
        };
        offer.config = backend.written();
        next.put(offer);
        // Whoever sees that it is listed sees that it is connected.
        backend.note_listed(control, missing);
        next.show();
        self.note_new(server);
        self.settle(server);
    }

    /// Publishes what has come of the lists of a server, and whether the rest of it was known; for what
    /// was not, whoever waits for it goes on waiting.
    pub(in crate::discovery) async fn publish_part(
        self: &Arc<Self>,
        (offer, is_known): (Offer, bool),
        backend: &Arc<Backend>,
    ) {
        let backend = Arc::clone(backend);
        self.make(move |board| board.publish_part_now(offer, is_known, &backend))
            .await;
    }

    fn publish_part_now(&self, mut offer: Offer, is_known: bool, backend: &Backend) {
        let Some(mut next) = self.next_for(backend) else {
            return;
        };
        offer.config = backend.written();
        // What stands there of a predecessor of another program or URL says nothing of this one.
        let known = next.state.offers.of(&backend.name);
        if let Some(known) = known.filter(|_| is_known) {
            // Until it comes, what was read before is what is known of it.
            for kind in Kind::ALL {
                if offer.gaps[kind] == Some(ListingGap::Awaited) {
                    offer.gaps[kind] = known.gaps[kind];
                }
            }
        }
        next.put(offer);
        next.show();
    }

    pub(in crate::discovery) async fn withdraw(self: &Arc<Self>, backend: &Arc<Backend>) {
        let backend = Arc::clone(backend);
        self.make(move |board| board.withdraw_now(&backend)).await;
    }

    fn withdraw_now(&self, backend: &Backend) {
        let Some(mut next) = self.next_for(backend) else {
            return;
        };
        if next.state.offers.plain.remove(&backend.name).is_some() {
            next.state.offers.stored.remove(&backend.name);
            next.merge();
            next.show();
        }
    }

    /// Publishes what a server lists for clients that can be asked something, of which what it has
    /// beyond `plain` is new.
    pub(in crate::discovery) async fn publish_able(
        self: &Arc<Self>,
        listing: Arc<Listing>,
        plain: Arc<Listing>,
        backend: &Arc<Backend>,
    ) {
        let backend = Arc::clone(backend);
        self.make(move |board| board.publish_able_now(listing.beyond(&plain), &backend))
            .await;
    }

    fn publish_able_now(&self, more: Listing, backend: &Backend) {
        let server = &backend.name;
        let Some(mut next) = self.next_for(backend) else {
            return;
        };
        let able = &mut next.state.offers.able;
        let old = able.get(server);
        let differs = old.map_or(!more.is_empty(), |old| **old != more);
        if !differs && old.is_some() {
            return;
        }
        able.insert(server.clone(), Arc::new(more));
        if differs {
            next.merge();
        }
        next.show();
        self.note_new(server);
    }

    /// The listing of `server` is to be kept.
    pub(super) fn note_new(&self, server: &ServerName) {
        lock(&self.unkept).insert(server.clone());
        self.listed.notify_one();
    }

    /// Lets `work` make the next state, on a thread of its own.
    async fn make(self: &Arc<Self>, work: impl FnOnce(&Self) + Send + 'static) {
        // It is never closed.
        let turn = Arc::clone(&self.makers).acquire_owned().await;
        let board = Arc::clone(self);
        run_blocking(move || {
            let _turn = turn;
            work(&board);
        })
        .await;
    }

    /// The next state, which is the current one so far; none after a stop.
    pub(super) fn next(&self) -> Option<DraftState<'_>> {
        let alone = lock(&self.making);
        (!self.stop.is_cancelled()).then(|| DraftState {
            state: CatalogState::clone(&self.current.load()),
            differs: false,
            board: self,
            _alone: alone,
        })
    }

    /// The same for what is said of `backend`; none once that is retired.
    fn next_for(&self, backend: &Backend) -> Option<DraftState<'_>> {
        let next = self.next();
        next.filter(|_| !backend.retired().is_cancelled())
    }
}
