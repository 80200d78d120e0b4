//! What servers list on single connections, beyond what they list for everybody.
//!
//! Called by `discovery`, one task a server. Nothing is asked before a server says, on a connection beside
//! the catalog's, that its lists changed: that connection is listed then, and what it has beyond the
//! catalog's is shown to those whom it serves.

use std::{pin::pin, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{Board, DEBOUNCE, Lists};
use crate::{
    backend::{Backend, Control},
    catalog::Listing,
};

/// Reads lists of single connections of `backend` whenever they change, for ever.
pub(super) async fn follow(backend: Arc<Backend>, board: Arc<Board>) {
    let mut changes = backend.list_changes();
    // The connections of which something is shown, until they end.
    let (mut shown, mut ends) = (Vec::new(), FuturesUnordered::new());
    loop {
        let mut changed = pin!(changes.changed_and_quiet(DEBOUNCE));
        loop {
            tokio::select! {
                () = &mut changed => break,
                Some(ended) = ends.next() => {
                    shown.retain(|control| *control != ended);
                    board.note_apart();
                }
            }
        }
        // One that takes long holds up no other.
        let due = backend.to_be_listed_apart().into_iter();
        let mut lists: FuturesUnordered<_> = due.map(|it| list(it, &backend, &board)).collect();
        while let Some((control, is_news)) = lists.next().await {
            if is_news {
                board.note_apart();
            }
            if is_news && !shown.contains(&control) {
                shown.push(control.clone());
                ends.push(async move {
                    control.ended().await;
                    control
                });
            }
        }
    }
}

/// Lists one connection; whether it has something else of its own than before.
async fn list(control: Control, backend: &Backend, board: &Board) -> (Control, bool) {
    let lists = Lists::read(backend, &control, &Listing::default()).await;
    let is_news = match (lists, board.listing(&backend.name)) {
        (Ok(lists), Some(common)) if lists.missing().is_none() => {
            backend.note_listed_apart(lists.listing.beyond(&common), &control)
        }
        (Ok(_), _) => false,
        (Err(failure), _) => {
            let server = &backend.name;
            tracing::debug!(%server, %failure, "the lists of one connection cannot be read");
            false
        }
    };
    (control, is_news)
}
