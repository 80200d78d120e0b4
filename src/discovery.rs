//! Asks backends for their lists and publishes the merged catalog.
//!
//! One task a backend follows its connection until the backend is retired: lists when it comes up,
//! again when it says that a list changed, and withdraws the server's items when it stays down. A
//! dead or slow server never delays the others.
//!
//! The catalog's connections declare no capabilities of clients, since clients without any are
//! served by them. What legacy servers list for others is asked for by `able`.

mod able;
mod board;

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    backend::{Backend, Control, Failure, Standing},
    catalog::{Kind, Listing, Offer},
    task::Tasks,
};

pub use board::Board;

/// How long changes of one server's lists are gathered before it is asked again.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Pause before a failed listing is tried again on the same connection.
const RELIST_AFTER: Duration = Duration::from_secs(5);

/// Starts to follow a server until it is retired, if it is enabled.
pub fn start(backend: &Arc<Backend>, board: &Arc<Board>, tasks: &Tasks) {
    if !backend.is_enabled() {
        return;
    }
    let follow = follow(Arc::clone(backend), Arc::clone(board), tasks.clone());
    tasks.spawn("discovery", follow);
    let retired = backend.retired().clone();
    let follow = able::follow(Arc::clone(backend), Arc::clone(board));
    let stop = tasks.stop_token().clone();
    tasks.spawn("discovery for able clients", async move {
        tokio::select! {
            () = follow => {}
            () = retired.cancelled() => {}
            () = stop.cancelled() => {}
        }
    });
}

async fn follow(backend: Arc<Backend>, board: Arc<Board>, tasks: Tasks) {
    let mut standing = backend.standing();
    let mut lists = backend.list_changes();
    let mut rewrites = backend.rewrites();
    let mut gone: Option<Instant> = None;
    // What a predecessor listed stays for a while, as after any interruption.
    let mut listed = board.listing(&backend.name).is_some();
    loop {
        let now = standing.now();
        let mut relist = None;
        match &now {
            Standing::Up(control) => {
                gone = None;
                listed = true;
                lists.mark_unchanged();
                relist = tokio::select! {
                    biased;
                    () = backend.retired().cancelled() => return,
                    relist = refresh(&backend, control, &board) => relist,
                };
            }
            Standing::Asleep => gone = None,
            Standing::Down => {
                board.settle(&backend.name);
                gone.get_or_insert_with(Instant::now);
            }
            // What an earlier process listed is served for as long as the first start takes.
            Standing::Connecting if gone.is_none() && board.stored(&backend.name).is_some() => {}
            Standing::Connecting => {
                gone.get_or_insert_with(Instant::now);
            }
        }
        let grace = backend.written().grace;
        let withdraw = gone.map(|since| since + grace).filter(|_| listed);
        tokio::select! {
            () = standing.changed() => {}
            () = lists.changed_and_quiet(DEBOUNCE), if matches!(now, Standing::Up(_)) => {}
            () = sleep(relist.unwrap_or_default()), if relist.is_some() => {}
            () = rewrites.changed(), if withdraw.is_some() => {}
            () = sleep_until(withdraw.unwrap_or_else(Instant::now)), if withdraw.is_some() => {
                board.withdraw(&backend).await;
                backend.note_withdrawn();
                listed = false;
            }
            () = backend.retired().cancelled() => return,
            () = tasks.stop_token().cancelled() => return,
        }
    }
}

/// Lists a server and publishes what it offers; says how soon to do so again, since that failed or
/// since the lists are fresh no longer.
async fn refresh(
    backend: &Arc<Backend>,
    control: &Control,
    board: &Arc<Board>,
) -> Option<Duration> {
    let _reading = backend.reading();
    match list(backend, control).await {
        Ok(offer) => {
            let fresh = control.fresh_for(&offer.listing.pages);
            board.publish(offer, backend, control).await;
            backend.follow_lists(control);
            fresh
        }
        Err(failure) => {
            tracing::debug!(server = %backend.name, %failure, "its lists cannot be read");
            backend.note_unlisted(control, &failure);
            board.settle(&backend.name);
            Some(RELIST_AFTER)
        }
    }
}

async fn list(backend: &Backend, control: &Control) -> Result<Offer, Failure> {
    let mut listing = Listing {
        instructions: control.instructions(),
        ..Listing::default()
    };
    for kind in Kind::ALL {
        let Some(list) = backend.list(kind, control).await? else {
            continue;
        };
        listing.pages[kind] = Some(list.first);
        match kind {
            Kind::Tools => listing.tools = list.items,
            Kind::Resources => listing.resources = list.items,
            Kind::Templates => listing.templates = list.items,
            Kind::Prompts => listing.prompts = list.items,
        }
    }
    Ok(Offer {
        server: backend.name.clone(),
        config: backend.written(),
        listing: Arc::new(listing),
        modern_http: control.is_modern_http(),
    })
}
