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
    catalog::{ByKind, Kind, Listing, ListingGap, Offer},
};

/// How long one list may take before the others are asked for beside it.
const ALONE: Duration = Duration::from_secs(1);

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
        let mut asking = Asking::new(backend, control, before);
        while asking.part().await?.is_some() {}
        asking.finish()
    }

    /// Takes what came of asking for the list of `kind`; why there is nothing to take, if so.
    fn take(&mut self, kind: Kind, listed: ListOutcome, before: &Listing) -> Option<BackendError> {
        match listed {
            ListOutcome::Whole(list) => self.listing.put(kind, list.items, list.first),
            ListOutcome::Circular(list) => {
                self.listing.put(kind, list.items, list.first);
                self.gaps[kind] = Some(ListingGap::Circular);
            }
            ListOutcome::Undeclared => {}
            // Servers with static resources often have no method for templates, and have said nothing
            // else. Some refuse it in words of their own.
            ListOutcome::NoMethod if kind == Kind::Templates => {}
            ListOutcome::Refused(_) if kind == Kind::Templates && before.items(kind).is_empty() => {
            }
            ListOutcome::NoMethod => self.gaps[kind] = Some(ListingGap::NoMethod),
            ListOutcome::Refused(error) => {
                return Some(BackendError::Garbled {
                    what: format!("{} was refused", kind.method()),
                    quoted: error.as_str().to_owned(),
                });
            }
        }
        None
    }

    /// Leaves the list of `kind` as it was, for this reason.
    fn keep(&mut self, kind: Kind, why: ListingGap, before: &Listing) {
        self.gaps[kind] = Some(why);
        self.listing.take_from(before, kind);
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
    pub(super) fn into_offer(self, backend: &Backend, control: &CatalogConnection) -> Offer {
        Offer {
            server: backend.name.clone(),
            config: backend.written(),
            listing: Arc::new(self.listing),
            modern_http: control.is_modern_http(),
            gaps: self.gaps,
        }
    }
}

/// The lists of a server on their way.
pub(super) struct Asking<'a> {
    backend: &'a Backend,
    control: &'a CatalogConnection,
    /// What was known of it.
    before: &'a Listing,
    lists: ServerLists,
    /// Kinds that are still to be asked for, the next one last.
    left: Vec<Kind>,
    under_way: FuturesUnordered<BoxFuture<'a, (Kind, Result<ListOutcome, BackendError>)>>,
    /// When each of those was asked for.
    since: ByKind<Option<Instant>>,
    /// Whether a list has come that no part had.
    has_news: bool,
}

impl<'a> Asking<'a> {
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
            left: Kind::ALL.into_iter().rev().collect(),
            under_way: FuturesUnordered::new(),
            since: ByKind::default(),
            has_news: false,
        }
    }

    /// What has come, once the rest takes long; `None` once there is no more to come. Nothing is lost
    /// where this is given up.
    ///
    /// # Errors
    /// When the connection is lost, or refuses us.
    pub(super) async fn part(&mut self) -> Result<Option<ServerLists>, BackendError> {
        loop {
            if self.under_way.is_empty() && !self.ask_next() {
                return Ok(None);
            }
            let late = self.late();
            let answer = timeout_at(late, self.under_way.next()).await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(_) if self.ask_rest() => continue,
                Err(_) if self.has_news && self.lists.has_any() => {
                    self.has_news = false;
                    return Ok(Some(self.so_far()));
                }
                Err(_) => self.under_way.next().await,
            };
            if let Some((kind, answer)) = answer {
                self.take(kind, answer)?;
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
    fn late(&self) -> Instant {
        let asked = Kind::ALL.into_iter().filter_map(|kind| self.since[kind]);
        asked.max().unwrap_or_else(Instant::now) + ALONE
    }

    /// Asks for the next list; whether there is one.
    fn ask_next(&mut self) -> bool {
        let Some(kind) = self.left.pop() else {
            return false;
        };
        let (backend, control) = (self.backend, self.control);
        let list = async move { (kind, backend.list(kind, control).await) };
        self.under_way.push(list.boxed());
        self.since[kind] = Some(Instant::now());
        true
    }

    /// Asks for the rest at once, as far as so much may be under way; whether it did for any.
    fn ask_rest(&mut self) -> bool {
        let max = self.backend.written().limits.in_flight;
        let before = self.under_way.len();
        while max.is_none_or(|max| self.under_way.len() < max.get()) && self.ask_next() {}
        self.under_way.len() > before
    }

    fn take(
        &mut self,
        kind: Kind,
        answer: Result<ListOutcome, BackendError>,
    ) -> Result<(), BackendError> {
        self.since[kind] = None;
        let failure = match answer {
            Ok(listed) => match self.lists.take(kind, listed, self.before) {
                None => {
                    self.has_news = true;
                    return Ok(());
                }
                Some(failure) => failure,
            },
            Err(failure) if failure.is_of_one_request() && !self.control.is_over() => failure,
            Err(failure) => return Err(failure),
        };
        self.lists.keep(kind, ListingGap::Unread, self.before);
        if matches!(failure, BackendError::Timeout { .. }) {
            // Who leaves one request unanswered is not asked for more.
            for kind in std::mem::take(&mut self.left) {
                if self.control.declares(kind) {
                    self.lists.keep(kind, ListingGap::Unread, self.before);
                }
            }
        }
        self.lists.failure.get_or_insert(failure);
        Ok(())
    }

    fn so_far(&self) -> ServerLists {
        let mut lists = self.lists.clone();
        for kind in Kind::ALL {
            let is_late = self.since[kind].is_some() || self.left.contains(&kind);
            if is_late && self.control.declares(kind) {
                lists.keep(kind, ListingGap::Awaited, self.before);
            }
        }
        lists
    }
}
