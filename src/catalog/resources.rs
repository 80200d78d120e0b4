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
    item::Filter,
    pattern::Pattern,
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
    pub(super) filter: Filter,
    pub(super) known: HashSet<Arc<str>>,
    pub(super) templates: Vec<Pattern>,
    /// Whether merged routes show its resources.
    pub(super) visible: bool,
}

impl Site {
    fn claims(&self, original: &str) -> bool {
        self.filter.permits(original)
            && (self.known.contains(original)
                || self
                    .templates
                    .iter()
                    .any(|template| template.matches(original)))
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

    /// Where `uri` leads on the merged route.
    pub(super) fn find(&self, uri: &str) -> Lookup {
        if let Some((at, original)) = self.listed.get(uri) {
            return self.sites[*at].found(original);
        }
        let owner = self.owner(uri);
        if self.namespaced {
            return owner.map_or_else(
                || self.claimed(uri),
                |(site, inner)| within(site, uri, &inner),
            );
        }
        match (self.claimed(uri), owner) {
            (Lookup::NotFound, Some((site, inner))) if site.claims(&inner) => site.found(&inner),
            (Lookup::NotFound, _) => self
                .only_one()
                .map_or(Lookup::NotFound, |site| site.own(uri)),
            (found, _) => found,
        }
    }

    /// The server whose prefix `uri` carries, and what follows the prefix.
    fn owner<'a>(&self, uri: &'a str) -> Option<(&Site, Cow<'a, str>)> {
        let site = &self.sites[*self.owners.get(prefix_of(uri)?)?];
        Some((site, site.uris.unprefixed(uri)?))
    }

    fn claimed(&self, uri: &str) -> Lookup {
        let claimants: Vec<&Site> = self
            .sites
            .iter()
            .filter(|site| site.visible && site.claims(uri))
            .collect();
        match claimants.as_slice() {
            [] => Lookup::NotFound,
            [site] => site.found(uri),
            _ => Lookup::Ambiguous {
                servers: claimants.iter().map(|site| site.server.clone()).collect(),
            },
        }
    }

    /// The server that has resources, when no other has: without prefixes, what it links to in
    /// results can only be its own.
    fn only_one(&self) -> Option<&Site> {
        let offering = |site: &&Site| site.visible && site.offers_anything();
        let mut sites = self.sites.iter().filter(offering);
        sites.next().filter(|_| sites.next().is_none())
    }
}

/// A server whose name is its own scheme (`postgres`, `postgres://db`) writes URIs that look
/// prefixed. What the server claims decides; without a claim the prefix counts.
fn within(site: &Site, uri: &str, inner: &str) -> Lookup {
    if !site.claims(inner) && site.claims(uri) {
        site.found(uri)
    } else {
        site.own(inner)
    }
}
