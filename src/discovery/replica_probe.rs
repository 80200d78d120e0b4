//! Replicas that could not be listed: whether they can be again.
//!
//! One task a server with replicas, beside the one that lists it: a replica that answers nothing holds
//! up nobody. What such a replica lists is published once it leads.

use std::sync::Arc;

use tokio::time::sleep;

use super::{RELIST_DELAY, RELIST_DELAY_MAX, ServerLists};
use crate::{backend::Backend, catalog::Listing};

/// Tries to list the replicas that could not be, while another is listed, for ever.
pub(super) async fn follow(backend: Arc<Backend>) {
    let mut standing = backend.watch_catalog();
    let mut pause = RELIST_DELAY;
    loop {
        if standing.unlisted_replicas().is_empty() {
            pause = RELIST_DELAY;
            standing.any_changed().await;
            continue;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RELIST_DELAY_MAX);
        for control in standing.unlisted_replicas() {
            let _reading = backend.begin_reading_lists(&control);
            match ServerLists::read(&backend, &control, &Listing::default()).await {
                Ok(lists) => backend.note_listable(&control, lists.missing()),
                Err(failure) => backend.note_unlisted(&control, &failure),
            }
        }
    }
}
