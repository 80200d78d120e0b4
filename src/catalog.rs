//! The catalog: an immutable snapshot of everything the servers offer.
//!
//! Owns merging, exposed names and the rules for URIs. Discovery builds a new one whenever a listing
//! changes; routing and the list methods read the current one. Pure: no I/O, no clock. The text of
//! items and messages is spliced, never parsed into a model and printed again, and the same offers
//! give the same snapshot in whatever order the servers answered.

mod candidate;
pub mod globs;
mod header_annotations;
mod instructions;
mod item;
mod list_view;
mod merge;
mod naming;
mod output_schema;
mod param_headers;
mod prefixes;
mod problem;
mod profile;
mod repair;
mod resource_routes;
pub mod rewrite;
mod uri_map;
mod uri_template;
pub(crate) mod uri_variants;
mod view;

use std::{
    collections::HashSet,
    ops::{Index, IndexMut},
    sync::Arc,
};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

pub use candidate::Candidate;
pub use header_annotations::{HeaderFault, HeaderParam, ParamKind};
use instructions::Instructions;
pub use instructions::{MERGED_CHARACTERS_MAX, SERVER_CHARACTERS_MAX};
pub use item::ToolHints;
pub use list_view::{CatalogView, Freshness, ListEntry, PageRange};
pub use output_schema::OutputSchemaFault;
pub use prefixes::{ConfiguredNames, Prefixes};
pub use problem::{CatalogProblem, ItemExcess, NameOutcome, ProblemCause, ProblemImpact};
pub use profile::Profiles;
pub use resource_routes::Lookup;
pub use uri_map::UriMap;
pub use view::{DisabledToolsError, check_disabled_tools};

pub use crate::names::Scope;

use crate::config::{self, ItemRules, Naming};
use crate::mcp::json::Raw;
use crate::names::{ProfileName, ServerName, ViewId};
use list_view::ListCache;
use profile::ProfileRoute;
use resource_routes::{ResourceRoutes, ResourceSite};
use view::ViewRoute;

/// Everything the servers offer, as each route shows it; a copy is cheap.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    merged: Arc<RouteTables>,
    servers: Arc<HashMap<ServerName, RouteTables>>,
    profiles: Arc<HashMap<ProfileName, ProfileRoute>>,
    routes: Arc<ResourceRoutes>,
    problems: Arc<[CatalogProblem]>,
    /// The one view of which it has the route.
    view: Option<Arc<ViewRoute>>,
    version: u64,
}

/// What one route shows.
#[derive(Debug, Default)]
struct RouteTables {
    lists: ByKind<ListCache>,
    tools: HashMap<Arc<str>, Arc<Tool>>,
    prompts: HashMap<Arc<str>, Arc<Prompt>>,
    instructions: Instructions,
    /// Position of the server in `routes`, on the route of one server.
    site_index: Option<usize>,
}

impl Catalog {
    /// Builds the snapshot of `offers`, which stand in the config's order and have distinct names.
    pub fn build(naming: &Naming, offers: &[ServerOffer]) -> Self {
        let servers = offers.iter().map(|offer| (&offer.server, &*offer.config));
        let prefixes = Arc::new(Prefixes::new(naming, servers));
        Self::build_with(naming, &Profiles::empty(prefixes), offers)
    }

    /// The same with the views of `profiles`, of whose config `offers` are.
    pub fn build_with(naming: &Naming, profiles: &Profiles, offers: &[ServerOffer]) -> Self {
        merge::build(naming, profiles, offers)
    }

    /// The servers among those that have listed nothing, whose empty offers `unlisted` are, that may
    /// have the item called `name` on the route of `scope`; the likeliest first.
    pub fn candidates_among(
        naming: &Naming,
        profiles: &Profiles,
        unlisted: &[ServerOffer],
        wanted: (&Scope, Kind, &str),
    ) -> Vec<Candidate> {
        candidate::find_candidates(naming, profiles, unlisted, wanted)
    }

    /// The list of `kind` on the route of `scope`; empty for a server that is not in the snapshot.
    pub fn list(&self, scope: &Scope, kind: Kind) -> CatalogView<'_> {
        match self.tables(scope) {
            Some(tables) => CatalogView::new(&tables.lists[kind]),
            None => CatalogView::empty(),
        }
    }

    /// The tool that is called `exposed` on the route of `scope`.
    pub fn tool(&self, scope: &Scope, exposed: &str) -> Option<&Arc<Tool>> {
        self.tables(scope)?.tools.get(exposed)
    }

    /// The tools of every server, each as its own route has it.
    pub fn tools(&self) -> impl Iterator<Item = &Arc<Tool>> {
        let of_servers = self.servers.values();
        of_servers.flat_map(|tables| tables.tools.values())
    }

    /// The prompt that is called `exposed` on the route of `scope`.
    pub fn prompt(&self, scope: &Scope, exposed: &str) -> Option<&Arc<Prompt>> {
        self.tables(scope)?.prompts.get(exposed)
    }

    /// Where `uri`, a URI or a template as a client of `scope` sends it, leads.
    ///
    /// A server may serve more than it lists, so a URI that is found need not exist.
    pub fn resource(&self, scope: &Scope, uri: &str) -> Lookup {
        match scope {
            Scope::All => self.routes.resolve(uri, &|_, _| true),
            Scope::Profile(name) => self.profiles.get(name).map_or(Lookup::NotFound, |view| {
                self.routes.resolve(uri, &|at, original| {
                    view.shows_resource(&self.routes.sites[at], original)
                })
            }),
            Scope::Server(_) => self
                .tables(scope)
                .and_then(|tables| tables.site_index)
                .map_or(Lookup::NotFound, |at| {
                    self.routes.sites[at].lookup_original(uri)
                }),
            Scope::View { id, .. } => self.view_route(*id).map_or(Lookup::NotFound, |view| {
                self.routes.resolve(uri, &|at, original| {
                    view.shows_resource(&self.routes.sites[at], original)
                })
            }),
        }
    }

    /// Whether `server`, which is listed, has no resource that it must not show.
    pub fn shows_every_resource(&self, server: &ServerName) -> bool {
        let site = self.site(server);
        site.is_some_and(|site| !site.filter.is_restrictive())
    }

    /// How URIs of `server` look on the route of `scope`; the identity for an unknown server.
    pub fn uris(&self, scope: &Scope, server: &ServerName) -> &UriMap {
        const IDENTITY: &UriMap = &UriMap::identity();
        match scope {
            Scope::All | Scope::Profile(_) | Scope::View { .. } => self
                .servers
                .get(server)
                .and_then(|tables| tables.site_index)
                .map_or(IDENTITY, |at| &self.routes.sites[at].uris),
            Scope::Server(_) => IDENTITY,
        }
    }

    /// What rules know the resource or template by that `server` calls `original`, listed or not.
    pub fn resource_names(
        &self,
        server: &ServerName,
        kind: Kind,
        original: &str,
    ) -> ConfiguredNames {
        self.site(server).map_or_else(
            || ConfiguredNames {
                plain: original.into(),
                distinct: Arc::default(),
            },
            |site| site.names(kind, original),
        )
    }

    /// Whether clients of `scope` may know of the resource that `server` calls `original`.
    pub fn shows_resource(&self, scope: &Scope, server: &ServerName, original: &str) -> bool {
        match scope {
            Scope::All => true,
            Scope::Profile(name) => self.profiles.get(name).is_some_and(|route| {
                let site = self.site(server);
                site.is_some_and(|site| route.shows_resource(site, original))
            }),
            Scope::Server(own) => own == server,
            Scope::View { id, .. } => self.view_route(*id).is_some_and(|route| {
                let site = self.site(server);
                site.is_some_and(|site| route.shows_resource(site, original))
            }),
        }
    }

    fn site(&self, server: &ServerName) -> Option<&ResourceSite> {
        let at = self.servers.get(server)?.site_index?;
        Some(&self.routes.sites[at])
    }

    fn view_route(&self, id: ViewId) -> Option<&ViewRoute> {
        self.view.as_deref().filter(|view| view.id == id)
    }

    /// Like [`uris`](Self::uris), to be kept; `None` where URIs stay as they are.
    pub fn uri_map(&self, scope: &Scope, server: &ServerName) -> Option<Arc<UriMap>> {
        let site = match scope {
            Scope::All | Scope::Profile(_) | Scope::View { .. } => {
                self.servers.get(server)?.site_index?
            }
            Scope::Server(_) => return None,
        };
        Some(Arc::clone(&self.routes.sites[site].uris)).filter(|uris| !uris.is_identity())
    }

    /// Instructions for models: a server's own on its route, a section for each on merged ones; those
    /// of the servers that `is_visible` says are seen.
    pub fn instructions(
        &self,
        scope: &Scope,
        is_visible: impl Fn(&ServerName) -> bool,
    ) -> Option<String> {
        self.tables(scope)?.instructions.visible_to(is_visible)
    }

    /// What is odd about the offers, in the config's order for each step of the merge.
    pub fn problems(&self) -> &[CatalogProblem] {
        &self.problems
    }

    /// How many items of each kind `server` has on its own route.
    pub fn counts(&self, server: &ServerName) -> ByKind<usize> {
        let tables = self.servers.get(server);
        ByKind::from_fn(|kind| tables.map_or(0, |tables| tables.lists[kind].len()))
    }

    /// A hash of everything that clients can see here; seals cursors. Equal on replicas of the same
    /// build that have the same offers.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn tables(&self, scope: &Scope) -> Option<&RouteTables> {
        match scope {
            Scope::All => Some(&self.merged),
            Scope::Profile(profile) => self.profiles.get(profile).map(|view| &view.tables),
            Scope::Server(server) => self.servers.get(server),
            Scope::View { id, .. } => self.view_route(*id).map(|view| &view.tables),
        }
    }
}

/// Which clients a snapshot is for. Some servers list more for clients that declared in
/// `initialize` that they can be asked something, and refuse the rest to others.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Audience {
    /// Those that servers can ask something: elicitation, roots or sampling.
    Interactive,
    /// All others.
    Plain,
}

/// A kind of item that servers list.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// `tools/list`.
    Tools,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
    /// `prompts/list`.
    Prompts,
}

impl Kind {
    /// Every kind, in the order they are shown in.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Resources, Self::Templates, Self::Prompts];

    /// The method that lists it.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// The member of the list's result that holds the items.
    pub const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }

    /// The member of an item that tells it from others of the server.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    const fn has_uris(self) -> bool {
        matches!(self, Self::Resources | Self::Templates)
    }
}

/// One value for each [`Kind`].
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ByKind<T> {
    /// For tools.
    pub tools: T,
    /// For resources.
    pub resources: T,
    /// For resource templates.
    pub templates: T,
    /// For prompts.
    pub prompts: T,
}

impl<T> ByKind<T> {
    /// Asks `value` for each kind.
    pub fn from_fn(mut value: impl FnMut(Kind) -> T) -> Self {
        Self {
            tools: value(Kind::Tools),
            resources: value(Kind::Resources),
            templates: value(Kind::Templates),
            prompts: value(Kind::Prompts),
        }
    }
}

impl<T> Index<Kind> for ByKind<T> {
    type Output = T;

    fn index(&self, kind: Kind) -> &T {
        match kind {
            Kind::Tools => &self.tools,
            Kind::Resources => &self.resources,
            Kind::Templates => &self.templates,
            Kind::Prompts => &self.prompts,
        }
    }
}

impl<T> IndexMut<Kind> for ByKind<T> {
    fn index_mut(&mut self, kind: Kind) -> &mut T {
        match kind {
            Kind::Tools => &mut self.tools,
            Kind::Resources => &mut self.resources,
            Kind::Templates => &mut self.templates,
            Kind::Prompts => &mut self.prompts,
        }
    }
}

/// What one server offered when it was last listed; items in its own order, all pages joined.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Listing {
    /// Items of `tools/list`.
    pub tools: Vec<Raw>,
    /// Items of `resources/list`.
    pub resources: Vec<Raw>,
    /// Items of `resources/templates/list`.
    pub templates: Vec<Raw>,
    /// Items of `prompts/list`.
    pub prompts: Vec<Raw>,
    /// What it wants models to know, from `initialize` or `server/discover`.
    pub instructions: Option<String>,
    /// What came with the first page of each list; `None` for a list the server does not have.
    pub pages: ByKind<Option<FirstPage>>,
}

impl Listing {
    /// The lists of `self` without what `base` has under the same name or URI.
    #[must_use]
    pub fn difference(&self, base: &Self) -> Self {
        let mut beyond = self.clone();
        for kind in Kind::ALL {
            let known: HashSet<_> = base
                .items(kind)
                .iter()
                .map(|item| item.get(kind.key()))
                .collect();
            beyond
                .items_mut(kind)
                .retain(|item| !known.contains(&item.get(kind.key())));
        }
        beyond
    }

    /// Adds the items of `more` that are not there yet, with the lists they are on.
    pub fn extend(&mut self, more: &Self) {
        let more = more.difference(self);
        for kind in Kind::ALL {
            if more.items(kind).is_empty() {
                continue;
            }
            self.items_mut(kind).extend_from_slice(more.items(kind));
            if self.pages[kind].is_none() {
                self.pages[kind].clone_from(&more.pages[kind]);
            }
        }
    }

    /// Makes `items` the list of `kind`, with what came with its first page.
    pub(crate) fn set_list(&mut self, kind: Kind, items: Vec<Raw>, first: FirstPage) {
        *self.items_mut(kind) = items;
        self.pages[kind] = Some(first);
    }

    /// Takes the list of `kind` from `other`.
    pub(crate) fn copy_list_from(&mut self, other: &Self, kind: Kind) {
        *self.items_mut(kind) = other.items(kind).to_vec();
        self.pages[kind].clone_from(&other.pages[kind]);
    }

    /// Whether no list has anything.
    pub fn is_empty(&self) -> bool {
        Kind::ALL.iter().all(|kind| self.items(*kind).is_empty())
    }

    fn items_mut(&mut self, kind: Kind) -> &mut Vec<Raw> {
        match kind {
            Kind::Tools => &mut self.tools,
            Kind::Resources => &mut self.resources,
            Kind::Templates => &mut self.templates,
            Kind::Prompts => &mut self.prompts,
        }
    }

    /// The items of `kind`.
    pub fn items(&self, kind: Kind) -> &[Raw] {
        match kind {
            Kind::Tools => &self.tools,
            Kind::Resources => &self.resources,
            Kind::Templates => &self.templates,
            Kind::Prompts => &self.prompts,
        }
    }
}

/// What came with the first page of a list, beside its items and its cursor.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct FirstPage {
    /// `ttlMs`; `None` when missing, negative or not a number, which counts as 0.
    pub ttl_ms: Option<u64>,
    /// Whether `cacheScope` is `public`; anything else and a missing one count as private.
    pub public: bool,
    /// The other members, an object: unknown fields survive on the server's own route.
    pub rest: Option<Raw>,
}

/// One server's part in a snapshot.
#[derive(Clone, Debug)]
pub struct ServerOffer {
    /// Its name.
    pub server: ServerName,
    /// Its part of the config.
    pub config: Arc<config::Server>,
    /// What it offered.
    pub listing: Arc<Listing>,
    /// Whether it is reached over HTTP in the modern era, where a tool whose `x-mcp-header` breaks
    /// the rules must not be served. Elsewhere only the annotation is left out.
    pub modern_http: bool,
    /// The lists that are not what the server has, and why.
    pub listing_gaps: ByKind<Option<ListingGap>>,
}

/// Why a list is not what its server has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListingGap {
    /// It has not come yet: it is what it was before, if it was ever read.
    Awaited,
    /// A page of it leads back to one before: it is what the pages until then have.
    Circular,
    /// The server declares such a list and has no method for it: it is empty.
    NoMethod,
    /// It could not be read: it is what it was before, if it was ever read.
    Unread,
}

impl ServerOffer {
    /// Whether it is known what the server has of `kind`.
    pub(crate) fn is_list_known(&self, kind: Kind) -> bool {
        match self.listing_gaps[kind] {
            None | Some(ListingGap::Circular | ListingGap::NoMethod) => true,
            Some(ListingGap::Awaited | ListingGap::Unread) => false,
        }
    }

    /// Whether nothing of it has yet to come.
    pub(crate) fn is_complete(&self) -> bool {
        let mut kinds = Kind::ALL.into_iter();
        kinds.all(|kind| self.listing_gaps[kind] != Some(ListingGap::Awaited))
    }

    /// The same with all that the server listed, whatever the config hides of it.
    pub(crate) fn unfiltered(&self) -> Self {
        let mut config = config::Server::clone(&self.config);
        for rules in [
            &mut config.tools,
            &mut config.resources,
            &mut config.prompts,
        ] {
            rules.allow = None;
            rules.deny.clear();
        }
        Self {
            config: config.into(),
            ..self.clone()
        }
    }

    fn rules(&self, kind: Kind) -> &ItemRules {
        match kind {
            Kind::Tools => &self.config.tools,
            Kind::Resources | Kind::Templates => &self.config.resources,
            Kind::Prompts => &self.config.prompts,
        }
    }

    fn shows_kind(&self, kind: Kind) -> bool {
        match kind {
            Kind::Tools => self.config.expose.tools,
            Kind::Resources | Kind::Templates => self.config.expose.resources,
            Kind::Prompts => self.config.expose.prompts,
        }
    }

    /// What the template and URIs call the server.
    fn namespace(&self) -> &str {
        prefixes::namespace(&self.server, &self.config)
    }
}

/// A tool as one route shows it.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The server that has it.
    pub server: ServerName,
    /// What the server calls it.
    pub original: Arc<str>,
    /// What clients of the route call it.
    pub exposed: Arc<str>,
    /// What clients of merged routes call it; empty where these do not list it.
    pub merged: Arc<str>,
    /// What rules know it by.
    pub names: ConfiguredNames,
    /// What the profile of the route calls it, where it renames it; else empty.
    pub alias: Arc<str>,
    /// Its entry in the route's list.
    pub item: Raw,
    /// Its entry in the server's own list.
    pub source: Raw,
    /// Its input schema, as the route shows it.
    pub input_schema: Option<Raw>,
    /// Whether that is another than the server's.
    pub has_repaired_input: bool,
    /// Arguments that are repeated in `Mcp-Param-*` headers.
    pub headers: Arc<[HeaderParam]>,
    /// What it says about calling it.
    pub hints: ToolHints,
}

/// A prompt as one route shows it.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The server that has it.
    pub server: ServerName,
    /// What the server calls it.
    pub original: Arc<str>,
    /// What clients of the route call it.
    pub exposed: Arc<str>,
    /// What clients of merged routes call it; empty where these do not list it.
    pub merged: Arc<str>,
    /// What rules know it by.
    pub names: ConfiguredNames,
    /// What the profile of the route calls it, where it renames it; else empty.
    pub alias: Arc<str>,
    /// Its entry in the route's list.
    pub item: Raw,
    /// Its entry in the server's own list.
    pub source: Raw,
}

#[cfg(test)]
mod tests;
