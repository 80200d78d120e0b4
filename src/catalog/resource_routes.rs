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
    uri_map::{UriMap, prefix_in},
    uri_template::ServerTemplates,
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
pub(super) struct ResourceSite {
    pub(super) server: ServerName,
    pub(super) prefix: String,
    pub(super) uris: Arc<UriMap>,
    pub(super) prefixes: Arc<Prefixes>,
    pub(super) filter: ItemFilter,
    pub(super) listed_uris: HashSet<Arc<str>>,
    pub(super) templates: ServerTemplates,
    /// Whether merged routes show its resources.
    pub(super) visible: bool,
    /// Labels of the server, which profiles choose by.
    pub(super) tags: Vec<String>,
}

impl ResourceSite {
    fn may_serve(&self, original: &str) -> bool {
        self.filter.permits(original)
            && (self.listed_uris.contains(original) || self.templates.matches(original))
    }

    /// What rules know the resource or template by that the server calls `original`.
    pub(super) fn names(&self, kind: Kind, original: &str) -> ConfiguredNames {
        let prefixed = UriMap::prefixed(self.prefix.clone());
        self.prefixes.names_for_uri(&prefixed, kind, original)
    }

    fn offers_anything(&self) -> bool {
        !self.listed_uris.is_empty() || !self.templates.is_empty()
    }

    /// The URI itself, on the server's own route.
    pub(super) fn lookup_original(&self, uri: &str) -> Lookup {
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
pub(super) struct ResourceRoutes {
    pub(super) sites: Vec<ResourceSite>,
    /// Exposed URI or template -> position in `sites`, original.
    pub(super) listed: HashMap<Arc<str>, (usize, Arc<str>)>,
    /// URI prefix -> position in `sites`.
    pub(super) owners: HashMap<String, usize>,
    /// Whether exposed URIs carry a prefix.
    pub(super) namespaced: bool,
}

impl ResourceRoutes {
    pub(super) fn new(sites: Vec<ResourceSite>, namespaced: bool) -> Self {
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

    /// Where `uri` leads on a merged route that shows what `is_visible` says.
    pub(super) fn resolve(&self, uri: &str, is_visible: ShowsResource<'_>) -> Lookup {
        let found = match self.listed.get(uri) {
            Some((at, original)) if is_visible(*at, original) => {
                return self.sites[*at].found(original);
            }
            Some(_) | None => self.resolve_unlisted(uri, is_visible),
        };
        match found {
            UriTarget::Found { at, original } if is_visible(at, &original) => {
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

    fn resolve_unlisted<'a>(&self, uri: &'a str, is_visible: ShowsResource<'_>) -> UriTarget<'a> {
        let owner = self.prefix_owner(uri);
        if self.namespaced {
            return match owner {
                Some((at, inner)) => self.resolve_prefixed(at, uri, inner),
                None => self.resolve_by_claims(uri, is_visible),
            };
        }
        match (self.resolve_by_claims(uri, is_visible), owner) {
            (UriTarget::Nowhere, Some((at, inner))) if self.sites[at].may_serve(&inner) => {
                UriTarget::Found {
                    at,
                    original: inner,
                }
            }
            (UriTarget::Nowhere, _) => self
                .sole_server()
                .map_or(UriTarget::Nowhere, |at| self.target_of(at, uri.into())),
            (found, _) => found,
        }
    }

    fn target_of<'a>(&self, at: usize, original: Cow<'a, str>) -> UriTarget<'a> {
        if self.sites[at].filter.permits(&original) {
            UriTarget::Found { at, original }
        } else {
            UriTarget::Nowhere
        }
    }

    /// A server whose name is its own scheme (`postgres`, `postgres://db`) writes URIs that look
    /// prefixed. What the server claims decides; without a claim the prefix counts.
    fn resolve_prefixed<'a>(&self, at: usize, uri: &'a str, inner: Cow<'a, str>) -> UriTarget<'a> {
        let site = &self.sites[at];
        if !site.may_serve(&inner) && site.may_serve(uri) {
            UriTarget::Found {
                at,
                original: uri.into(),
            }
        } else {
            self.target_of(at, inner)
        }
    }

    /// The server whose prefix `uri` carries, and what follows the prefix.
    fn prefix_owner<'a>(&self, uri: &'a str) -> Option<(usize, Cow<'a, str>)> {
        let at = *self.owners.get(prefix_in(uri)?)?;
        Some((at, self.sites[at].uris.without_prefix(uri)?))
    }

    fn resolve_by_claims<'a>(&self, uri: &'a str, is_visible: ShowsResource<'_>) -> UriTarget<'a> {
        let claims = |(at, site): (usize, &ResourceSite)| {
            (site.visible && site.may_serve(uri) && is_visible(at, uri)).then_some(at)
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
    fn sole_server(&self) -> Option<usize> {
        let offering = |(_, site): &(usize, &ResourceSite)| site.visible && site.offers_anything();
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
