//! Reads the lists of a server over one connection.
//!
//! They are asked for one after the other; beside one that takes long the rest, so that none is late
//! for another, and no more at once than calls may be under way. What has come by then can be told.
//!
//! A list that cannot be read costs itself: what was known of it stays, and the others are taken. Only
//! where the connection is lost, or nothing can be read, there is nothing to tell.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use crate::{
    backend::{Backend, BackendError, CatalogConnection, ListOutcome},
    catalog::{ByKind, Kind, Listing, ListingGap, ServerOffer},
};

/// How long one list may take before the others are asked for beside it.
const PARALLEL_AFTER: Duration = Duration::from_secs(1);

/// What a server listed.
#[derive(Clone, Debug)]
pub(super) struct ServerLists {
    pub(super) listing: Listing,
    gaps: ByKind<Option<ListingGap>>,
    /// Why the first list that could not be read could not.
    failure: Option<BackendError>,
}

impl ServerLists {
    /// Reads them; `before` is what was known of the server.
    ///
    /// # Errors
    /// When none can be read.
    pub(super) async fn read(
        backend: &Backend,
        control: &CatalogConnection,
        before: &Listing,
    ) -> Result<Self, BackendError> {
        let mut asking = ListRun::new(backend, control, before);
        while asking.next_part().await?.is_some() {}
        asking.finish()
    }

    /// Takes what came of asking for the list of `kind`; why there is nothing to take, if so.
    fn record_outcome(
        &mut self,
        kind: Kind,
        listed: ListOutcome,
        before: &Listing,
    ) -> Option<BackendError> {
        match listed {
            ListOutcome::Complete(list) => self.listing.set_list(kind, list.items, list.first),
            ListOutcome::Circular(list) => {
                self.listing.set_list(kind, list.items, list.first);
                self.gaps[kind] = Some(ListingGap::Circular);
            }
            ListOutcome::Undeclared => {}
            // Servers with static resources often have no method for templates, and have said nothing
            // else. Some refuse it in words of their own.
            ListOutcome::MethodNotFound if kind == Kind::Templates => {}
            ListOutcome::Refused(_) if kind == Kind::Templates && before.items(kind).is_empty() => {
            }
            ListOutcome::MethodNotFound => self.gaps[kind] = Some(ListingGap::NoMethod),
            ListOutcome::Refused(error) => {
                return Some(BackendError::ProtocolViolation {
                    what: format!("{} was rejected", kind.method()),
                    quoted: error.as_str().to_owned(),
                });
            }
        }
        None
    }

    /// Leaves the list of `kind` as it was, for this reason.
    fn keep_previous(&mut self, kind: Kind, why: ListingGap, before: &Listing) {
        self.gaps[kind] = Some(why);
        self.listing.copy_list_from(before, kind);
    }

    /// Whether any list was read.
    fn has_any(&self) -> bool {
        let mut kinds = Kind::ALL.into_iter();
        kinds.any(|kind| {
            let is_read = match self.gaps[kind] {
                None | Some(ListingGap::Circular) => true,
                Some(ListingGap::Awaited | ListingGap::NoMethod | ListingGap::Unread) => false,
            };
            is_read && self.listing.pages[kind].is_some()
        })
    }

    /// Which lists could not be read, and why; `None` where all were.
    pub(super) fn missing(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        let unread = Kind::ALL
            .into_iter()
            .filter(|kind| self.gaps[*kind] == Some(ListingGap::Unread));
        let methods: Vec<_> = unread.map(Kind::method).collect();
        Some(format!("{} failed: {failure}", methods.join(", ")))
    }

    /// What is published of the server, whose connection `control` is.
    pub(super) fn into_offer(self, backend: &Backend, control: &CatalogConnection) -> ServerOffer {
        ServerOffer {
            server: backend.name.clone(),
            config: backend.load_config(),
            listing: Arc::new(self.listing),
            modern_http: control.is_modern_http(),
            listing_gaps: self.gaps,
        }
    }
}

/// The lists of a server on their way.
pub(super) struct ListRun<'a> {
    backend: &'a Backend,
    control: &'a CatalogConnection,
    /// What was known of it.
    before: &'a Listing,
    lists: ServerLists,
    /// Kinds that are still to be asked for, the next one last.
    remaining: Vec<Kind>,
    in_flight: FuturesUnordered<BoxFuture<'a, (Kind, Result<ListOutcome, BackendError>)>>,
    /// When each of those was asked for.
    started: ByKind<Option<Instant>>,
    /// Whether a list has come that no part had.
    has_news: bool,
}

impl<'a> ListRun<'a> {
    pub(super) fn new(
        backend: &'a Backend,
        control: &'a CatalogConnection,
        before: &'a Listing,
    ) -> Self {
        let listing = Listing {
            instructions: control.instructions(),
            ..Listing::default()
        };
        Self {
            backend,
            control,
            before,
            lists: ServerLists {
                listing,
                gaps: ByKind::default(),
                failure: None,
            },
            remaining: Kind::ALL.into_iter().rev().collect(),
            in_flight: FuturesUnordered::new(),
            started: ByKind::default(),
            has_news: false,
        }
    }

    /// What has come, once the rest takes long; `None` once there is no more to come. Nothing is lost
    /// where this is given up.
    ///
    /// # Errors
    /// When the connection is lost, or refuses us.
    pub(super) async fn next_part(&mut self) -> Result<Option<ServerLists>, BackendError> {
        loop {
            if self.in_flight.is_empty() && !self.start_next() {
                return Ok(None);
            }
            let late = self.slow_at();
            let answer = timeout_at(late, self.in_flight.next()).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(_) if self.start_remaining() => continue,
                Err(_) if self.has_news && self.lists.has_any() => {
                    self.has_news = false;
                    return Ok(Some(self.partial()));
                }
                Err(_) => self.in_flight.next().await,
            };
            if let Some((kind, answer)) = answer {
                self.record_answer(kind, answer)?;
            }
        }
    }

    /// What was listed.
    ///
    /// # Errors
    /// When nothing could be read.
    pub(super) fn finish(self) -> Result<ServerLists, BackendError> {
        let mut lists = self.lists;
        match lists.failure.take() {
            Some(failure) if !lists.has_any() => Err(failure),
            failure => Ok(ServerLists { failure, ..lists }),
        }
    }

    /// When all that is under way takes long.
    fn slow_at(&self) -> Instant {
        let asked = Kind::ALL.into_iter().filter_map(|kind| self.started[kind]);
        asked.max().unwrap_or_else(Instant::now) + PARALLEL_AFTER
    }

    /// Asks for the next list; whether there is one.
    fn start_next(&mut self) -> bool {
        let Some(kind) = self.remaining.pop() else {
            return false;
        };
        let (backend, control) = (self.backend, self.control);
        let list = async move { (kind, backend.fetch_list(kind, control).await) };
        self.in_flight.push(list.boxed());
        self.started[kind] = Some(Instant::now());
        true
    }

    /// Asks for the rest at once, as far as so much may be under way; whether it did for any.
    fn start_remaining(&mut self) -> bool {
        let max = self.backend.load_config().limits.in_flight;
        let before = self.in_flight.len();
        while max.is_none_or(|max| self.in_flight.len() < max.get()) && self.start_next() {}
        self.in_flight.len() > before
    }

    fn record_answer(
        &mut self,
        kind: Kind,
        answer: Result<ListOutcome, BackendError>,
    ) -> Result<(), BackendError> {
        self.started[kind] = None;
        let failure = match answer {
            Ok(listed) => match self.lists.record_outcome(kind, listed, self.before) {
                None => {
                    self.has_news = true;
                    return Ok(());
                }
                Some(failure) => failure,
            },
            Err(failure) if failure.is_request_specific() && !self.control.is_closed() => failure,
            Err(failure) => return Err(failure),
        };
        self.lists
            .keep_previous(kind, ListingGap::Unread, self.before);
        if matches!(failure, BackendError::Timeout { .. }) {
            // Who leaves one request unanswered is not asked for more.
            for kind in std::mem::take(&mut self.remaining) {
                if self.control.declares(kind) {
                    self.lists
                        .keep_previous(kind, ListingGap::Unread, self.before);
                }
            }
        }
        self.lists.failure.get_or_insert(failure);
        Ok(())
    }

    fn partial(&self) -> ServerLists {
        let mut lists = self.lists.clone();
        for kind in Kind::ALL {
            let is_late = self.started[kind].is_some() || self.remaining.contains(&kind);
            if is_late && self.control.declares(kind) {
                lists.keep_previous(kind, ListingGap::Awaited, self.before);
            }
        }
        lists
    }
}
