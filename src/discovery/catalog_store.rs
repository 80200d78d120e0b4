//! The board: what all servers are known to list, and the catalog that is shown of it.
//!
//! `discovery` puts up what it hears of servers, and everybody reads. A server that lists much is
//! merged on a thread of its own. `owner_catalogs` and `view_catalogs` are for some agents alone, `publish` makes one state after the other of what was heard, `stored` keeps
//! listings over restarts.

mod owner_catalogs;
mod publish;
mod stored;
mod view_catalogs;

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use indexmap::IndexMap;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit, watch},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::Backends,
    catalog::{
        Audience, ByKind, Candidate, Catalog, CatalogProblem, Kind, Listing, Prefixes, Profiles,
        ServerOffer,
    },
    config::{self, Config, Naming},
    lock::lock,
    names::{OwnerIndex, OwnerSet, ProfileName, Scope, ServerName},
    views::{View, Views},
};
use owner_catalogs::{OwnerCatalogs, OwnerPlan};
use stored::StoredServer;
use view_catalogs::ViewCatalogs;

/// Servers that are asked at a time what they list for clients that they can ask something: of a
/// program that takes a second process for a moment.
const CONCURRENT_INTERACTIVE_LISTINGS: usize = 2;

/// The current catalog, and who is told when it changes.
///
/// Readers take the current `CatalogState` and wait for nobody. Whoever changes it makes the `DraftState` one of
/// the current one, one at a time, so that nothing older is ever shown after something newer.
#[derive(Debug)]
pub struct CatalogStore {
    current: ArcSwap<CatalogState>,
    /// Held while the next state is made, which may take long: never on a worker of the runtime but
    /// at the start.
    publish_lock: Mutex<()>,
    /// Who may have a thread that makes it: the others wait without one.
    publisher_permits: Arc<Semaphore>,
    changed: watch::Sender<u64>,
    /// Servers of which it is not known yet what they offer.
    pending: watch::Sender<HashSet<ServerName>>,
    /// When the agents first used servers of their own, which nobody started before.
    first_uses: Mutex<HashMap<ServerName, Instant>>,
    /// When the first client came that servers can ask something.
    interactive_client_seen: watch::Sender<Option<Instant>>,
    /// Servers of which it is not known yet what they offer to such clients.
    pending_interactive: watch::Sender<HashSet<ServerName>>,
    /// Servers whose listing is not kept yet.
    unsaved: Mutex<HashSet<ServerName>>,
    /// What the store has of each server, as far as this process read or wrote it.
    saved: Mutex<HashMap<ServerName, StoredServer>>,
    /// Tells of every new listing.
    listed: Notify,
    /// Who may ask a server what it lists for such clients.
    listing_permits: Semaphore,
    /// What is known of the schemas that servers list, as far as they were looked at.
    schema_reports: watch::Sender<HashMap<ServerName, SchemaReport>>,
    /// Who may look at schemas.
    schema_permits: Semaphore,
    /// What agents made for one conversation each.
    views: Arc<Views>,
    start: Instant,
    /// Nothing is shown any more once this is cancelled.
    stop: CancellationToken,
}

/// What is known of the schemas of a server.
#[derive(Debug)]
struct SchemaReport {
    /// What was looked at.
    listing: Option<Arc<Listing>>,
    problems: Arc<[CatalogProblem]>,
}

/// All that is known at a moment, and what is shown of it.
#[derive(Clone, Debug)]
struct CatalogState {
    plan: Arc<CatalogPlan>,
    offers: ServerCatalogs,
    /// Of the gateway's servers, which all agents see.
    snapshots: Snapshots,
    /// The same with those of workspaces and agents.
    owner_catalogs: Arc<OwnerCatalogs>,
    /// What views show of either.
    view_catalogs: Arc<ViewCatalogs>,
}

/// What the config says of the catalog.
#[derive(Debug)]
struct CatalogPlan {
    naming: Naming,
    profiles: IndexMap<ProfileName, config::Profile>,
    /// Of every server.
    prefixes: Prefixes,
    owners: OwnerIndex,
    /// Every server in the config's order.
    servers: Vec<(ServerName, Arc<config::Server>)>,
    /// The gateway's servers.
    shared: Arc<OwnerPlan>,
}

impl CatalogPlan {
    fn new(config: &Config, backends: &Backends) -> Self {
        let servers = backends.all();
        let servers = servers.map(|backend| (backend.name.clone(), backend.load_config()));
        let servers: Vec<_> = servers.collect();
        let prefixes = Prefixes::of(config);
        let shared = OwnerPlan::new(
            &config.profiles,
            (&servers, &prefixes),
            &OwnerSet::default(),
        );
        Self {
            naming: config.naming.clone(),
            profiles: config.profiles.clone(),
            owners: OwnerIndex::of(servers.iter().map(|(name, _)| name)),
            prefixes,
            servers,
            shared: Arc::new(shared),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct ServerCatalogs {
    plain: HashMap<ServerName, ServerOffer>,
    /// What a server lists beyond that for clients that can be asked something, once it is known.
    interactive: HashMap<ServerName, Arc<Listing>>,
    /// Servers that an earlier process listed, and when.
    stored: HashMap<ServerName, jiff::Timestamp>,
}

impl ServerCatalogs {
    /// What `server` listed to this process, where it did.
    fn get(&self, server: &ServerName) -> Option<&ServerOffer> {
        let offer = self.plain.get(server);
        offer.filter(|_| !self.stored.contains_key(server))
    }

    /// What the server of `offer` lists beyond that for clients that can be asked something.
    fn interactive_extras(&self, offer: &ServerOffer) -> Option<&Listing> {
        let more = self.interactive.get(&offer.server);
        more.map(|more| &**more).filter(|more| !more.is_empty())
    }

    /// Whether this process knows what `server` has of `kind`.
    fn has_listed(&self, server: &ServerName, kind: Kind) -> bool {
        self.get(server)
            .is_some_and(|offer| offer.is_list_known(kind))
    }
}

/// The current snapshot for each audience; one and the same where nothing differs.
#[derive(Clone, Debug)]
struct Snapshots {
    plain: Arc<Catalog>,
    interactive: Arc<Catalog>,
}

impl CatalogStore {
    /// An empty catalog that waits for every enabled server; `views` are those that have routes.
    pub fn new(
        config: &Config,
        backends: &Backends,
        views: Arc<Views>,
        stop: CancellationToken,
    ) -> Self {
        let enabled = backends.all().filter(|backend| backend.is_enabled());
        let started = enabled.filter(|backend| !backend.name.is_of_agent());
        let awaited: HashSet<_> = started.map(|backend| backend.name.clone()).collect();
        let plan = CatalogPlan::new(config, backends);
        let offers = ServerCatalogs::default();
        let state = CatalogState {
            snapshots: Snapshots::build(&plan.naming, &plan.shared, &offers),
            plan: Arc::new(plan),
            offers,
            owner_catalogs: Arc::default(),
            view_catalogs: Arc::default(),
        };
        Self {
            current: ArcSwap::from_pointee(state),
            publish_lock: Mutex::default(),
            publisher_permits: Arc::new(Semaphore::new(1)),
            changed: watch::channel(0).0,
            interactive_client_seen: watch::channel(None).0,
            pending_interactive: watch::channel(awaited.clone()).0,
            pending: watch::channel(awaited).0,
            first_uses: Mutex::default(),
            unsaved: Mutex::default(),
            saved: Mutex::default(),
            listed: Notify::new(),
            listing_permits: Semaphore::new(CONCURRENT_INTERACTIVE_LISTINGS),
            schema_reports: watch::Sender::default(),
            schema_permits: Semaphore::new(1),
            views,
            start: Instant::now(),
            stop,
        }
    }

    /// The owners of whom somebody sees servers beside the gateway's; who that is, `seen_by` says where any server
    /// has another owner.
    pub fn owners_seen(&self, seen_by: impl FnOnce(&OwnerIndex) -> OwnerSet) -> OwnerSet {
        let owners = &self.current.load().plan.owners;
        if owners.is_empty() {
            return OwnerSet::default();
        }
        seen_by(owners)
    }

    /// Whether what is shown to who sees the servers of `owners` is at hand, and need not be built first.
    pub fn has_catalog(&self, owners: &OwnerSet) -> bool {
        owners.is_empty() || self.current.load().owner_catalogs.has(owners)
    }

    /// Whether what is shown to `audience` on the route of `scope`, where that is a view, is at hand and need not be
    /// cut first.
    pub fn has_view_catalog(
        &self,
        (owners, scope): (&OwnerSet, &Scope),
        audience: Audience,
    ) -> bool {
        self.view_of(scope).is_none_or(|view| {
            let current = self.current.load();
            current.known_of_view(&view, owners, audience).is_some()
        })
    }

    /// Whether workspaces or agents own servers.
    pub fn has_owned_servers(&self) -> bool {
        !self.current.load().plan.owners.is_empty()
    }

    /// Whether whoever sees the servers of `owners` sees `server`.
    pub fn sees(&self, owners: &OwnerSet, server: &ServerName) -> bool {
        owners.sees(server) && !self.current.load().plan.is_hidden(server, owners)
    }

    /// The current snapshot of what every client on the route of `scope` can use that sees the servers of `owners`.
    pub fn catalog(&self, route: (&OwnerSet, &Scope)) -> Arc<Catalog> {
        self.catalog_for(route, Audience::Plain)
    }

    /// The current snapshot for `audience`, of clients on the route of `scope` that see the servers of `owners`. That of
    /// a view has its route too.
    pub fn catalog_for(
        &self,
        (owners, scope): (&OwnerSet, &Scope),
        audience: Audience,
    ) -> Arc<Catalog> {
        let current = self.current.load();
        match self.view_of(scope) {
            Some(view) => current.of_view(&view, owners, audience),
            None => current.catalog_of(owners, audience),
        }
    }

    /// What agents made for one conversation each.
    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// The view whose route that of `scope` is, while it is there.
    fn view_of(&self, scope: &Scope) -> Option<Arc<View>> {
        self.views.get(scope.view()?)
    }

    /// Every current snapshot of interactive clients, which has all that others have.
    pub fn snapshots(&self) -> Vec<Arc<Catalog>> {
        let current = self.current.load();
        let of_owners = current.owner_catalogs.all();
        let of_owners = of_owners
            .iter()
            .map(|known| known.snapshots.of(Audience::Interactive));
        let shared = current.snapshots.of(Audience::Interactive);
        std::iter::once(shared).chain(of_owners).collect()
    }

    /// What the route of `server` alone shows, whoever owns it.
    pub fn catalog_of(&self, server: &ServerName) -> Arc<Catalog> {
        let current = self.current.load();
        if !server.is_owned() {
            return current.snapshots.of(Audience::Plain);
        }
        let offer = current.offers.plain.get(server).cloned();
        let offers: Vec<ServerOffer> = offer.into_iter().collect();
        Arc::new(Catalog::build(&current.plan.naming, &offers))
    }

    /// Notes that a client is here that servers can ask something: from now on it is found out
    /// what they list for such clients.
    pub fn note_interactive_client(&self) {
        self.interactive_client_seen.send_if_modified(|came| {
            let is_first = came.is_none();
            came.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Whether such a client has come, and when.
    pub(super) fn interactive_client_seen(&self) -> watch::Receiver<Option<Instant>> {
        self.interactive_client_seen.subscribe()
    }

    /// Waits until a server may be asked what it lists for such clients.
    pub(super) async fn listing_permit(&self) -> SemaphorePermit<'_> {
        self.listing_permits
            .acquire()
            .await
            .expect("it is never closed")
    }

    /// Waits until the schemas of a server may be looked at.
    pub(super) async fn schema_permit(&self) -> SemaphorePermit<'_> {
        let turn = self.schema_permits.acquire().await;
        turn.expect("it is never closed")
    }

    /// Notes what is wrong with the schemas of `listing`, which `server` gave.
    pub(super) fn note_schemas(
        &self,
        server: &ServerName,
        listing: Option<Arc<Listing>>,
        problems: Vec<CatalogProblem>,
    ) {
        let known = SchemaReport {
            listing,
            problems: problems.into(),
        };
        self.schema_reports
            .send_modify(|schemas| drop(schemas.insert(server.clone(), known)));
    }

    /// What is wrong with the schemas that `server` lists, as far as they were looked at.
    pub fn schema_problems(&self, server: &ServerName) -> Arc<[CatalogProblem]> {
        let schemas = self.schema_reports.borrow();
        let known = schemas.get(server);
        known.map_or_else(Arc::default, |known| Arc::clone(&known.problems))
    }

    /// Waits until the schemas were looked at that `server` lists, but no longer than `patience`; whether
    /// they were.
    pub async fn has_schemas(&self, server: &ServerName, patience: Duration) -> bool {
        let is_looked_at = |schemas: &HashMap<ServerName, SchemaReport>| match self.listing(server)
        {
            None => true,
            Some(listing) => {
                let known = schemas.get(server).and_then(|known| known.listing.as_ref());
                known.is_some_and(|known| Arc::ptr_eq(known, &listing))
            }
        };
        let mut schemas = self.schema_reports.subscribe();
        let looked_at = timeout(patience, schemas.wait_for(is_looked_at)).await;
        looked_at.is_ok_and(|it| it.is_ok())
    }

    /// Whether there is a route for the profile `name`.
    pub fn has_profile(&self, name: &ProfileName) -> bool {
        self.current.load().plan.profiles.contains_key(name)
    }

    /// The profiles that have a route, in the config's order.
    pub fn profiles(&self) -> Vec<ProfileName> {
        self.current.load().plan.profiles.keys().cloned().collect()
    }

    /// Takes another config, whose servers `backends` has already. What is known of servers that
    /// are still there stays listed until they are listed anew.
    pub fn replace(&self, config: &Config, backends: &Backends) {
        let plan = CatalogPlan::new(config, backends);
        let enabled = |(_, server): &&(ServerName, Arc<config::Server>)| server.runs();
        let present = plan.servers.iter().filter(enabled);
        let present: HashMap<_, _> = present.cloned().collect();
        let Some(mut next) = self.begin_draft() else {
            return;
        };
        let catalogs = &mut next.state.offers;
        catalogs
            .interactive
            .retain(|name, _| present.contains_key(name));
        catalogs.stored.retain(|name, _| present.contains_key(name));
        catalogs.plain.retain(|name, offer| {
            let server = present.get(name);
            if let Some(server) = server {
                offer.config = Arc::clone(server);
            }
            server.is_some()
        });
        next.state.plan = Arc::new(plan);
        next.merge();
        next.publish();
        lock(&self.saved).retain(|name, _| present.contains_key(name));
        self.schema_reports
            .send_modify(|schemas| schemas.retain(|name, _| present.contains_key(name)));
        lock(&self.first_uses).retain(|name, _| present.contains_key(name));
        // Nobody waits for servers that come with a change: lists are told of them.
        for awaited in [&self.pending, &self.pending_interactive] {
            awaited.send_if_modified(|awaited| {
                let before = awaited.len();
                awaited.retain(|name| present.contains_key(name));
                awaited.len() != before
            });
        }
    }

    /// Tells of every new snapshot.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Notes that the agent who owns `server` uses it from now on: its first lists wait for it, unless an
    /// earlier listing is served.
    pub fn expect_listing(&self, server: &ServerName) {
        if self.listing(server).is_none() {
            lock(&self.first_uses).insert(server.clone(), Instant::now());
            self.pending
                .send_if_modified(|awaited| awaited.insert(server.clone()));
        }
    }

    /// Waits until all servers of `scope` have listed or failed, but no longer than `patience`
    /// after the start, or after the first use of servers that wait for one.
    pub async fn wait_ready(&self, (owners, scope): (&OwnerSet, &Scope), patience: Duration) {
        let first_use = owners.agent().and_then(|_| {
            let uses = lock(&self.first_uses);
            let uses = uses.iter().filter(|(server, _)| owners.sees(server));
            uses.map(|(_, at)| *at).max()
        });
        let end = first_use.unwrap_or(self.start) + patience;
        self.wait_until_listed(&self.pending, (owners, scope), end)
            .await;
    }

    /// Waits until it is known what the servers of `scope` list for clients that can be asked
    /// something, but no longer than `patience` after the first of those came.
    pub async fn wait_ready_interactive(
        &self,
        (owners, scope): (&OwnerSet, &Scope),
        patience: Duration,
    ) {
        let came = *self.interactive_client_seen.borrow();
        if let Some(came) = came {
            let end = came + patience;
            self.wait_until_listed(&self.pending_interactive, (owners, scope), end)
                .await;
        }
    }

    /// Waits until no server of `owners` or the gateway on the route of `scope` is `awaited` any more, but not
    /// beyond `end`.
    async fn wait_until_listed(
        &self,
        awaited: &watch::Sender<HashSet<ServerName>>,
        (owners, scope): (&OwnerSet, &Scope),
        end: Instant,
    ) {
        let settled = |awaited: &HashSet<ServerName>| match scope {
            Scope::All => !awaited.iter().any(|server| owners.sees(server)),
            Scope::Profile(_) | Scope::View { .. } => {
                awaited.is_empty() || !self.is_waiting_for(awaited, (owners, scope))
            }
            Scope::Server(server) => !awaited.contains(server),
        };
        if settled(&awaited.borrow()) {
            return;
        }
        let mut awaited = awaited.subscribe();
        let wait = awaited.wait_for(|awaited| settled(awaited));
        drop(timeout_at(end, wait).await);
    }

    fn is_waiting_for(
        &self,
        awaited: &HashSet<ServerName>,
        (owners, scope): (&OwnerSet, &Scope),
    ) -> bool {
        let plan = &self.current.load().plan;
        let profiles = self.profiles_on(&plan.shared, scope);
        plan.servers.iter().any(|(name, config)| {
            awaited.contains(name)
                && owners.sees(name)
                && profiles.may_show_server(scope, (name, &config.tags))
        })
    }

    /// The profiles of `plan`, with the view whose route that of `scope` is.
    fn profiles_on<'p>(&self, plan: &'p OwnerPlan, scope: &Scope) -> Cow<'p, Profiles> {
        match self.view_of(scope) {
            Some(view) => Cow::Owned(plan.profiles.with_view(&view)),
            None => Cow::Borrowed(&plan.profiles),
        }
    }

    /// Whether the route of `scope` may show anything of `server` to who sees the servers of `owners`.
    pub fn may_show(&self, (owners, scope): (&OwnerSet, &Scope), server: &ServerName) -> bool {
        let plan = self.current.load().owner_plan(owners);
        let mut servers = plan.servers.iter();
        let Some((_, config)) = servers.find(|(name, _)| name == server) else {
            return false;
        };
        let profiles = self.profiles_on(&plan, scope);
        profiles.may_show_server(scope, (server, &config.tags))
    }

    /// Whether every enabled server has listed or failed.
    pub fn is_ready(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Whether there are lists for clients: every enabled server has listed or failed, or `patience`
    /// after the start, when no first list waits any longer, some server has something to list.
    pub fn has_lists(&self, patience: Duration) -> bool {
        let is_over = Instant::now() >= self.start + patience;
        let is_ready = self.pending.borrow().iter().all(ServerName::is_of_agent);
        is_ready || is_over && !self.current.load().offers.plain.is_empty()
    }

    /// Whether it is known of every enabled server what it offers to `audience` beyond the rest.
    pub fn is_ready_for(&self, audience: Audience) -> bool {
        match audience {
            Audience::Interactive => self.pending_interactive.borrow().is_empty(),
            Audience::Plain => true,
        }
    }

    /// The enabled servers that may have the item called `name` on the route of `scope`, among those
    /// that are not listed: not yet, or not any longer. The likeliest comes first. Of those that see the servers
    /// of `owners`.
    pub fn unlisted_candidates(
        &self,
        (owners, scope): (&OwnerSet, &Scope),
        kind: Kind,
        name: &str,
    ) -> Vec<Candidate> {
        let current = self.current.load();
        let (plan, offers) = (current.owner_plan(owners), &current.offers);
        let unlisted = plan
            .servers
            .iter()
            .filter(|(server, config)| config.enabled && !offers.has_listed(server, kind));
        let unlisted: Vec<ServerOffer> = unlisted
            .map(|(server, config)| self::empty_offer(server, config))
            .collect();
        let naming = &current.plan.naming;
        let profiles = self.profiles_on(&plan, scope);
        Catalog::candidates_among(naming, &profiles, &unlisted, (scope, kind, name))
    }

    /// The enabled servers that may have the item called `name` on the merged route of who sees the servers of
    /// `owners`, whatever they have listed.
    pub fn possible_servers(&self, owners: &OwnerSet, kind: Kind, name: &str) -> Vec<ServerName> {
        let current = self.current.load();
        let (plan, naming) = (current.owner_plan(owners), &current.plan.naming);
        let enabled = plan.servers.iter().filter(|(_, config)| config.enabled);
        let may_have = enabled.filter(|(server, config)| {
            let offer = empty_offer(server, config);
            let wanted = (&Scope::All, kind, name);
            !Catalog::candidates_among(naming, &plan.profiles, &[offer], wanted).is_empty()
        });
        may_have.map(|(server, _)| server.clone()).collect()
    }

    /// Whether it is known what `server` has of `kind`, not only what it listed to an earlier process.
    pub fn has_current_list(&self, server: &ServerName, kind: Kind) -> bool {
        self.current.load().offers.has_listed(server, kind)
    }

    /// What servers listed to this process for every client, in the config's order; without those of
    /// which a list could not be read.
    pub fn offers(&self) -> Vec<ServerOffer> {
        let CatalogState { plan, offers, .. } = &**self.current.load();
        let servers = plan.servers.iter();
        let listed = servers.filter_map(|(server, _)| offers.get(server));
        let whole = listed.filter(|offer| Kind::ALL.iter().all(|kind| offer.is_list_known(*kind)));
        whole.cloned().collect()
    }

    /// What `server` lists for every client.
    pub(super) fn listing(&self, server: &ServerName) -> Option<Arc<Listing>> {
        let current = self.current.load();
        let offer = current.offers.plain.get(server);
        offer.map(|offer| Arc::clone(&offer.listing))
    }

    /// The same, once all of it has come.
    pub(super) fn complete_listing(&self, server: &ServerName) -> Option<Arc<Listing>> {
        let current = self.current.load();
        let offer = current.offers.plain.get(server);
        let whole = offer.filter(|offer| offer.is_complete());
        whole.map(|offer| Arc::clone(&offer.listing))
    }

    /// What `server` lists beyond that for clients that can be asked something, if that is known.
    pub(super) fn interactive_listing(&self, server: &ServerName) -> Option<Arc<Listing>> {
        self.current.load().offers.interactive.get(server).cloned()
    }

    /// Whether it is known that `server` lists nothing more for clients that can be asked something.
    pub(super) fn has_no_interactive_extras(&self, server: &ServerName) -> bool {
        let current = self.current.load();
        let more = current.offers.interactive.get(server);
        more.is_some_and(|more| more.is_empty())
    }

    pub(super) fn mark_ready(&self, server: &ServerName) {
        self.pending
            .send_if_modified(|awaited| awaited.remove(server));
    }

    /// Nobody waits any longer for what `server` lists for clients that can be asked something.
    pub(super) fn mark_interactive_ready(&self, server: &ServerName) {
        self.pending_interactive
            .send_if_modified(|awaited| awaited.remove(server));
    }
}

/// The offer of a server that has listed nothing.
fn empty_offer(server: &ServerName, config: &Arc<config::Server>) -> ServerOffer {
    ServerOffer {
        server: server.clone(),
        config: Arc::clone(config),
        listing: Arc::default(),
        modern_http: false,
        listing_gaps: ByKind::default(),
    }
}

impl Snapshots {
    /// The one for `audience`.
    fn of(&self, audience: Audience) -> Arc<Catalog> {
        Arc::clone(match audience {
            Audience::Interactive => &self.interactive,
            Audience::Plain => &self.plain,
        })
    }

    /// What the servers of `plan` offer.
    fn build(naming: &Naming, plan: &OwnerPlan, catalogs: &ServerCatalogs) -> Self {
        let build = |offers: &[ServerOffer]| {
            let catalog = Catalog::build_with(naming, &plan.profiles, offers);
            Arc::new(catalog)
        };
        let offers = catalogs.ordered(plan, Audience::Plain);
        let plain = build(&offers);
        let mut offers = offers.iter();
        let interactive = if offers.any(|it| catalogs.interactive_extras(it).is_some()) {
            build(&catalogs.ordered(plan, Audience::Interactive))
        } else {
            Arc::clone(&plain)
        };
        Self { plain, interactive }
    }
}

#[cfg(test)]
mod tests;
