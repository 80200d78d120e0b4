//! Which server a URI belongs to.
//!
//! A URI with a server's prefix is that server's, whatever others claim. One without a prefix is
//! served when exactly one visible server claims it: by listing it, by a template that can expand
//! to it, or by a tool that links to it.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    ConfiguredNames, Kind, Prefixes,
    item::ItemFilter,
    pattern::ServerTemplates,
    uri::{UriMap, prefix_of},
};
use crate::names::ServerName;

/// Where a URI leads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// Several servers claim it.
    Ambiguous {
        /// Their names, in the config's order.
        servers: Vec<ServerName>,
    },
    /// To one server.
    Found {
        /// The server.
        server: ServerName,
        /// What the server itself calls it.
        original: String,
    },
    /// Nowhere.
    NotFound,
}

/// What one server claims.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) server: ServerName,
    pub(super) prefix: String,
    pub(super) uris: Arc<UriMap>,
    pub(super) prefixes: Arc<Prefixes>,
    pub(super) filter: ItemFilter,
    pub(super) known: HashSet<Arc<str>>,
    pub(super) templates: ServerTemplates,
    /// Whether merged routes show its resources.
    pub(super) visible: bool,
    /// Labels of the server, which profiles choose by.
    pub(super) tags: Vec<String>,
}

impl Site {
    fn claims(&self, original: &str) -> bool {
        self.filter.permits(original)
            && (self.known.contains(original) || self.templates.matches(original))
    }

    /// What rules know the resource or template by that the server calls `original`.
    pub(super) fn names(&self, kind: Kind, original: &str) -> ConfiguredNames {
        let prefixed = UriMap::prefixed(self.prefix.clone());
        self.prefixes.uris(&prefixed, kind, original)
    }

    fn offers_anything(&self) -> bool {
        !self.known.is_empty() || !self.templates.is_empty()
    }

    /// The URI itself, on the server's own route.
    pub(super) fn own(&self, uri: &str) -> Lookup {
        if self.filter.permits(uri) {
            self.found(uri)
        } else {
            Lookup::NotFound
        }
    }

    fn found(&self, original: &str) -> Lookup {
        Lookup::Found {
            server: self.server.clone(),
            original: original.to_owned(),
        }
    }
}

/// The servers' claims, and what is listed on the merged route.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) sites: Vec<Site>,
    /// Exposed URI or template -> position in `sites`, original.
    pub(super) listed: HashMap<Arc<str>, (usize, Arc<str>)>,
    /// URI prefix -> position in `sites`.
    pub(super) owners: HashMap<String, usize>,
    /// Whether exposed URIs carry a prefix.
    pub(super) namespaced: bool,
}

impl Routes {
    pub(super) fn new(sites: Vec<Site>, namespaced: bool) -> Self {
        let visible = sites.iter().enumerate().filter(|(_, site)| site.visible);
        let owners = visible
            .map(|(at, site)| (site.prefix.clone(), at))
            .collect();
        Self {
            sites,
            listed: HashMap::new(),
            owners,
            namespaced,
        }
    }

    /// Where `uri` leads on a merged route that shows what `sees` says.
    pub(super) fn find(&self, uri: &str, sees: ShowsResource<'_>) -> Lookup {
        let found = match self.listed.get(uri) {
            Some((at, original)) if sees(*at, original) => {
                return self.sites[*at].found(original);
            }
            Some(_) | None => self.unlisted(uri, sees),
        };
        match found {
            UriTarget::Found { at, original } if sees(at, &original) => {
                self.sites[at].found(&original)
            }
            UriTarget::Ambiguous(sites) => Lookup::Ambiguous {
                servers: sites
                    .into_iter()
                    .map(|at| self.sites[at].server.clone())
                    .collect(),
            },
            UriTarget::Found { .. } | UriTarget::Nowhere => Lookup::NotFound,
        }
    }

    fn unlisted<'a>(&self, uri: &'a str, sees: ShowsResource<'_>) -> UriTarget<'a> {
        let owner = self.owner(uri);
        if self.namespaced {
            return match owner {
                Some((at, inner)) => self.within(at, uri, inner),
                None => self.claimed(uri, sees),
            };
        }
        match (self.claimed(uri, sees), owner) {
            (UriTarget::Nowhere, Some((at, inner))) if self.sites[at].claims(&inner) => {
                UriTarget::Found {
                    at,
                    original: inner,
                }
            }
            (UriTarget::Nowhere, _) => self
                .only_one()
                .map_or(UriTarget::Nowhere, |at| self.own(at, uri.into())),
            (found, _) => found,
        }
    }

    fn own<'a>(&self, at: usize, original: Cow<'a, str>) -> UriTarget<'a> {
        if self.sites[at].filter.permits(&original) {
            UriTarget::Found { at, original }
        } else {
            UriTarget::Nowhere
        }
    }

    /// A server whose name is its own scheme (`postgres`, `postgres://db`) writes URIs that look
    /// prefixed. What the server claims decides; without a claim the prefix counts.
    fn within<'a>(&self, at: usize, uri: &'a str, inner: Cow<'a, str>) -> UriTarget<'a> {
        let site = &self.sites[at];
        if !site.claims(&inner) && site.claims(uri) {
            UriTarget::Found {
                at,
                original: uri.into(),
            }
        } else {
            self.own(at, inner)
        }
    }

    /// The server whose prefix `uri` carries, and what follows the prefix.
    fn owner<'a>(&self, uri: &'a str) -> Option<(usize, Cow<'a, str>)> {
        let at = *self.owners.get(prefix_of(uri)?)?;
        Some((at, self.sites[at].uris.unprefixed(uri)?))
    }

    fn claimed<'a>(&self, uri: &'a str, sees: ShowsResource<'_>) -> UriTarget<'a> {
        let claims = |(at, site): (usize, &Site)| {
            (site.visible && site.claims(uri) && sees(at, uri)).then_some(at)
        };
        let claimants: Vec<usize> = self.sites.iter().enumerate().filter_map(claims).collect();
        match claimants.as_slice() {
            [] => UriTarget::Nowhere,
            [at] => UriTarget::Found {
                at: *at,
                original: uri.into(),
            },
            _ => UriTarget::Ambiguous(claimants),
        }
    }

    /// The server that has resources, when no other has: without prefixes, what it links to in
    /// results can only be its own.
    fn only_one(&self) -> Option<usize> {
        let offering = |(_, site): &(usize, &Site)| site.visible && site.offers_anything();
        let mut sites = self.sites.iter().enumerate().filter(offering);
        let (at, _) = sites.next()?;
        sites.next().is_none().then_some(at)
    }
}

/// Whether a route shows a resource: the position of its site, and its original URI.
pub(super) type ShowsResource<'a> = &'a dyn Fn(usize, &str) -> bool;

/// Where a URI leads, before it is known whether the route shows it.
enum UriTarget<'a> {
    Ambiguous(Vec<usize>),
    Found { at: usize, original: Cow<'a, str> },
    Nowhere,
}
