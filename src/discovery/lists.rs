//! Reads the lists of a server over one connection.
//!
//! A list that cannot be read costs itself: what was known of it stays, and the others are taken. Only
//! where the connection is lost, or nothing can be read, there is nothing to tell.

use std::sync::Arc;

use crate::{
    backend::{Backend, Control, Failure, Listed},
    catalog::{ByKind, Gap, Kind, Listing, Offer},
};

/// What a server listed.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) listing: Listing,
    gaps: ByKind<Option<Gap>>,
    /// Why the first list that could not be read could not.
    failure: Option<Failure>,
}

impl Lists {
    /// Reads them; `before` is what was known of the server.
    ///
    /// # Errors
    /// When none can be read.
    pub(super) async fn read(
        backend: &Backend,
        control: &Control,
        before: &Listing,
    ) -> Result<Self, Failure> {
        let mut lists = Self {
            listing: Listing {
                instructions: control.instructions(),
                ..Listing::default()
            },
            gaps: ByKind::default(),
            failure: None,
        };
        // Who leaves one request unanswered is not asked for more.
        let mut is_silent = false;
        for kind in Kind::ALL {
            if is_silent {
                if control.declares(kind) {
                    lists.keep(kind, before);
                }
                continue;
            }
            let failure = match backend.list(kind, control).await {
                Ok(listed) => match lists.take(kind, listed, before) {
                    None => continue,
                    Some(failure) => failure,
                },
                Err(failure) if failure.is_of_one_request() && !control.is_over() => failure,
                Err(failure) => return Err(failure),
            };
            is_silent = matches!(failure, Failure::Timeout { .. });
            lists.keep(kind, before);
            lists.failure.get_or_insert(failure);
        }
        match lists.failure.take() {
            Some(failure) if !lists.has_any() => Err(failure),
            failure => Ok(Self { failure, ..lists }),
        }
    }

    /// Takes what came of asking for the list of `kind`; why there is nothing to take, if so.
    fn take(&mut self, kind: Kind, listed: Listed, before: &Listing) -> Option<Failure> {
        match listed {
            Listed::Whole(list) => self.listing.put(kind, list.items, list.first),
            Listed::Circular(list) => {
                self.listing.put(kind, list.items, list.first);
                self.gaps[kind] = Some(Gap::Circular);
            }
            Listed::Undeclared => {}
            // Servers with static resources often have no method for templates, and have said nothing
            // else. Some refuse it in words of their own.
            Listed::NoMethod if kind == Kind::Templates => {}
            Listed::Refused(_) if kind == Kind::Templates && before.items(kind).is_empty() => {}
            Listed::NoMethod => self.gaps[kind] = Some(Gap::NoMethod),
            Listed::Refused(error) => {
                let what = format!("{} was refused: {}", kind.method(), error.as_str());
                return Some(Failure::Garbled { what });
            }
        }
        None
    }

    /// Leaves the list of `kind` as it was.
    fn keep(&mut self, kind: Kind, before: &Listing) {
        self.gaps[kind] = Some(Gap::Unread);
        self.listing.take_from(before, kind);
    }

    /// Whether any list was read.
    fn has_any(&self) -> bool {
        let mut kinds = Kind::ALL.into_iter();
        kinds.any(|kind| {
            let is_read = match self.gaps[kind] {
                None | Some(Gap::Circular) => true,
                Some(Gap::NoMethod | Gap::Unread) => false,
            };
            is_read && self.listing.pages[kind].is_some()
        })
    }

    /// Which lists could not be read, and why; `None` where all were.
    pub(super) fn missing(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        let unread = Kind::ALL
            .into_iter()
            .filter(|kind| self.gaps[*kind] == Some(Gap::Unread));
        let methods: Vec<_> = unread.map(Kind::method).collect();
        Some(format!("{} failed: {failure}", methods.join(", ")))
    }

    /// What is published of the server, whose connection `control` is.
    pub(super) fn into_offer(self, backend: &Backend, control: &Control) -> Offer {
        Offer {
            server: backend.name.clone(),
            config: backend.written(),
            listing: Arc::new(self.listing),
            modern_http: control.is_modern_http(),
            gaps: self.gaps,
        }
    }
}
