//! What legacy servers list for clients that they can ask something.
//!
//! Called by `discovery`, one task a server. Until such a client comes nothing is done; then each
//! legacy server is asked once, on a connection that declares all that we relay and ends with its
//! lists. For a program this is a second process for a moment, so few are asked at a time, and
//! none again before it was connected anew, or one of its replicas took the place of another, and
//! it lists something else or could not be asked.

use std::sync::Arc;

use super::{CatalogStore, ServerLists};
use crate::{
    backend::{Backend, BackendError, CatalogConnection, Listability},
    catalog::Listing,
};

/// Publishes what `backend` lists for clients that can be asked something, for ever.
pub(super) async fn follow(backend: Arc<Backend>, board: Arc<CatalogStore>) {
    let mut came = board.able_came();
    if came.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut standing = backend.standing();
    let mut changes = board.changes();
    let mut compared: Option<Arc<Listing>> = None;
    let mut asked: Option<CatalogConnection> = None;
    loop {
        changes.mark_unchanged();
        let plain = board.whole_listing(&backend.name);
        let is_awaited = match (standing.now(), plain) {
            (Listability::Up(control), Some(plain)) if control.is_legacy() => {
                let is_asked = asked.as_ref() == Some(&control);
                if !is_asked && compared.as_ref() != Some(&plain) {
                    asked = Some(control);
                    if compare(&backend, Arc::clone(&plain), &board).await {
                        compared = Some(plain);
                    }
                }
                false
            }
            (Listability::Up(control), _) if !control.is_legacy() => {
                // Its predecessor may have been of the legacy era.
                if !board.has_nothing_more(&backend.name) {
                    let nothing = Arc::<Listing>::default();
                    let beyond = Arc::clone(&nothing);
                    board.publish_able(nothing, beyond, &backend).await;
                }
                false
            }
            // It is about to be listed.
            (Listability::Up(_), _) => true,
            (Listability::Asleep, _) => {
                asked = None;
                false
            }
            (standing @ (Listability::Connecting | Listability::Down), _) => {
                asked = None;
                matches!(standing, Listability::Connecting)
            }
        };
        if !is_awaited {
            board.settle_for_able(&backend.name);
        }
        tokio::select! {
            () = standing.changed() => {}
            told = changes.changed() => if told.is_err() { return },
        }
    }
}

/// Whether it could be found out what the server lists beyond `plain`, for all of its lists.
async fn compare(backend: &Arc<Backend>, plain: Arc<Listing>, board: &Arc<CatalogStore>) -> bool {
    let _turn = board.turn().await;
    let before = board.able_listing(&backend.name).unwrap_or_default();
    match lists(backend, &before).await {
        Ok(lists) => {
            let is_whole = lists.missing().is_none();
            let listing = Arc::new(lists.listing);
            board.publish_able(listing, plain, backend).await;
            is_whole
        }
        Err(failure) => {
            tracing::debug!(server = %backend.name, %failure, "no lists for able clients");
            false
        }
    }
}

async fn lists(backend: &Backend, before: &Listing) -> Result<ServerLists, BackendError> {
    let visit = backend.connect_as_able().await?;
    let lists = ServerLists::read(backend, visit.control(), before).await;
    visit.end().await;
    lists
}
