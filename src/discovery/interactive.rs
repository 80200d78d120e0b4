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
pub(super) async fn follow(backend: Arc<Backend>, store: Arc<CatalogStore>) {
    let mut came = store.interactive_client_seen();
    if came.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let mut standing = backend.watch_catalog();
    let mut changes = store.changes();
    let mut compared: Option<Arc<Listing>> = None;
    let mut asked: Option<CatalogConnection> = None;
    loop {
        changes.mark_unchanged();
        let plain = store.complete_listing(&backend.name);
        let is_awaited = match (standing.current(), plain) {
            (Listability::Up(control), Some(plain)) if control.is_legacy() => {
                let is_asked = asked.as_ref() == Some(&control);
                if !is_asked && compared.as_ref() != Some(&plain) {
                    asked = Some(control);
                    if list_interactive_extras(&backend, Arc::clone(&plain), &store).await {
                        compared = Some(plain);
                    }
                }
                false
            }
            (Listability::Up(control), _) if !control.is_legacy() => {
                // Its predecessor may have been of the legacy era.
                if !store.has_no_interactive_extras(&backend.name) {
                    let nothing = Arc::<Listing>::default();
                    let beyond = Arc::clone(&nothing);
                    store.publish_interactive(nothing, beyond, &backend).await;
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
            store.mark_interactive_ready(&backend.name);
        }
        tokio::select! {
            () = standing.changed() => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether it could be found out what the server lists beyond `plain`, for all of its lists.
async fn list_interactive_extras(
    backend: &Arc<Backend>,
    plain: Arc<Listing>,
    store: &Arc<CatalogStore>,
) -> bool {
    let _turn = store.listing_permit().await;
    let before = store.interactive_listing(&backend.name).unwrap_or_default();
    match interactive_lists(backend, &before).await {
        Ok(lists) => {
            let is_whole = lists.missing().is_none();
            let listing = Arc::new(lists.listing);
            store.publish_interactive(listing, plain, backend).await;
            is_whole
        }
        Err(failure) => {
            tracing::debug!(server = %backend.name, %failure, "cannot list the server for \
                interactive clients");
            false
        }
    }
}

async fn interactive_lists(
    backend: &Backend,
    before: &Listing,
) -> Result<ServerLists, BackendError> {
    let visit = backend.connect_interactive().await?;
    let lists = ServerLists::read(backend, visit.control(), before).await;
    visit.end().await;
    lists
}
