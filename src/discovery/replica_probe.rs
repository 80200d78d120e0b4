//! Replicas that could not be listed: whether they can be again.
//!
//! One task a server with replicas, beside the one that lists it: a replica that answers nothing holds
//! up nobody. What such a replica lists is published once it leads.

use std::sync::Arc;

use tokio::time::sleep;

use super::{RELIST_AFTER, RELIST_AFTER_MAX, ServerLists};
use crate::{backend::Backend, catalog::Listing};

/// Tries to list the replicas that could not be, while another is listed, for ever.
pub(super) async fn follow(backend: Arc<Backend>) {
    let mut standing = backend.standing();
    let mut pause = RELIST_AFTER;
    loop {
        if standing.behind().is_empty() {
            pause = RELIST_AFTER;
            standing.stirred().await;
            continue;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RELIST_AFTER_MAX);
        for control in standing.behind() {
            let _reading = backend.reading(&control);
            match ServerLists::read(&backend, &control, &Listing::default()).await {
                Ok(lists) => backend.note_listable(&control, lists.missing()),
                Err(failure) => backend.note_unlisted(&control, &failure),
            }
        }
    }
}
