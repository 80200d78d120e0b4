//! Asks backends for their lists and publishes the merged catalog.
//!
//! One task a backend follows its connection until the backend is retired: lists when it comes up,
//! again when it says that a list changed, and withdraws the server's items when it stays down. The
//! [`Board`] holds the current snapshot; a dead or slow server never delays the others.
//!
//! The catalog's connections declare no capabilities of clients, since clients without any are
//! served by them. What legacy servers list for others is asked for by `able`.

mod able;
mod stored;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    backend::{Backend, Backends, Control, Failure, Standing},
    catalog::{Audience, Catalog, Kind, Listing, Offer, Profiles, Prospect},
    config::{self, Config, Naming},
    lock::lock,
    names::{ProfileName, Scope, ServerName},
    task::Tasks,
};

/// How long changes of one server's lists are gathered before it is asked again.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Pause before a failed listing is tried again on the same connection.
const RELIST_AFTER: Duration = Duration::from_secs(5);

/// The current catalog, and who is told when it changes.
#[derive(Debug)]
pub struct Board {
    plan: ArcSwap<Plan>,
    offers: Mutex<Offers>,
    current: ArcSwap<Snapshots>,
    changed: watch::Sender<u64>,
    /// Servers of which it is not known yet what they offer.
    awaited: watch::Sender<HashSet<ServerName>>,
    /// When the first client came that servers can ask something.
    able_came: watch::Sender<Option<Instant>>,
    /// Servers of which it is not known yet what they offer to such clients.
    able_awaited: watch::Sender<HashSet<ServerName>>,
    /// Tells of every new listing.
    listed: Notify,
    /// Who may ask a server what it lists for such clients.
    turns: Semaphore,
    start: Instant,
}

/// What the config says of the catalog.
#[derive(Debug)]
struct Plan {
    naming: Naming,
    profiles: Profiles,
    /// The servers in the config's order.
    servers: Vec<(ServerName, Arc<config::Server>)>,
}

impl Plan {
    fn new(config: &Config, backends: &Backends) -> Self {
        let servers = backends.all();
        let servers = servers.map(|backend| (backend.name.clone(), backend.written()));
        Self {
            naming: config.naming.clone(),
            profiles: Profiles::new(&config.profiles),
            servers: servers.collect(),
        }
    }
}

#[derive(Debug, Default)]
struct Offers {
    plain: HashMap<ServerName, Offer>,
    /// What a server lists beyond that for clients that can be asked something, once it is known.
    able: HashMap<ServerName, Listing>,
    /// Servers that an earlier process listed, and when.
    stored: HashMap<ServerName, jiff::Timestamp>,
    /// Servers whose listing is not kept yet.
    unkept: HashSet<ServerName>,
}

impl Offers {
    /// Whether `server` was listed by this process.
    fn are_of(&self, server: &ServerName) -> bool {
        self.plain.contains_key(server) && !self.stored.contains_key(server)
    }
}

/// The current snapshot for each audience; one and the same where nothing differs.
#[derive(Debug)]
struct Snapshots {
    plain: Arc<Catalog>,
    able: Arc<Catalog>,
}

impl Board {
    /// An empty catalog that waits for every enabled server.
    pub fn new(config: &Config, backends: &Backends) -> Self {
        let enabled = backends.all().filter(|backend| backend.is_enabled());
        let awaited: HashSet<_> = enabled.map(|backend| backend.name.clone()).collect();
        let plan = Plan::new(config, backends);
        let empty = Snapshots::build(&plan, &[], &HashMap::new());
        Self {
            plan: ArcSwap::from_pointee(plan),
            offers: Mutex::default(),
            current: ArcSwap::from_pointee(empty),
            changed: watch::channel(0).0,
            able_came: watch::channel(None).0,
            able_awaited: watch::channel(awaited.clone()).0,
            awaited: watch::channel(awaited).0,
            listed: Notify::new(),
            turns: Semaphore::new(able::AT_ONCE_MAX),
            start: Instant::now(),
        }
    }

    /// The current snapshot of what every client can use.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog_for(Audience::Plain)
    }

    /// The current snapshot for `audience`.
    pub fn catalog_for(&self, audience: Audience) -> Arc<Catalog> {
        let current = self.current.load();
        Arc::clone(match audience {
            Audience::Able => &current.able,
            Audience::Plain => &current.plain,
        })
    }

    /// Notes that a client is here that servers can ask something: from now on it is found out
    /// what they list for such clients.
    pub fn expect_able(&self) {
        self.able_came.send_if_modified(|came| {
            let is_first = came.is_none();
            came.get_or_insert_with(Instant::now);
            is_first
        });
    }

    /// Whether there is a route for the profile `name`.
    pub fn has_profile(&self, name: &ProfileName) -> bool {
        self.plan.load().profiles.has(name)
    }

    /// The profiles that have a route, in the config's order.
    pub fn profiles(&self) -> Vec<ProfileName> {
        self.plan.load().profiles.names().cloned().collect()
    }

    /// Takes another config, whose servers `backends` has already. What is known of servers that
    /// are still there stays listed until they are listed anew.
    pub fn replace(&self, config: &Config, backends: &Backends) {
        let plan = Plan::new(config, backends);
        let enabled = |(_, server): &&(ServerName, Arc<config::Server>)| server.enabled;
        let present = plan.servers.iter().filter(enabled);
        let present: HashMap<_, _> = present.cloned().collect();
        let mut offers = self.lock();
        offers.able.retain(|name, _| present.contains_key(name));
        offers.stored.retain(|name, _| present.contains_key(name));
        offers.plain.retain(|name, offer| {
            let server = present.get(name);
            if let Some(server) = server {
                offer.config = Arc::clone(server);
            }
            server.is_some()
        });
        self.plan.store(Arc::new(plan));
        self.rebuild(&offers);
        drop(offers);
        // Nobody waits for servers that come with a change: lists are told of them.
        for awaited in [&self.awaited, &self.able_awaited] {
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

    /// Waits until all servers of `scope` have listed or failed, but no longer than `patience`
    /// after the start.
    pub async fn settled(&self, scope: &Scope, patience: Duration) {
        self.heard_of(&self.awaited, scope, self.start + patience)
            .await;
    }

    /// Waits until it is known what the servers of `scope` list for clients that can be asked
    /// something, but no longer than `patience` after the first of those came.
    pub async fn settled_for_able(&self, scope: &Scope, patience: Duration) {
        let came = *self.able_came.borrow();
        if let Some(came) = came {
            self.heard_of(&self.able_awaited, scope, came + patience)
                .await;
        }
    }

    /// Waits until no server of `scope` is `awaited` any more, but not beyond `end`.
    async fn heard_of(
        &self,
        awaited: &watch::Sender<HashSet<ServerName>>,
        scope: &Scope,
        end: Instant,
    ) {
        let settled = |awaited: &HashSet<ServerName>| match scope {
            Scope::All => awaited.is_empty(),
            Scope::Profile(profile) => awaited.is_empty() || !self.awaits(awaited, profile),
            Scope::Server(server) => !awaited.contains(server),
        };
        if settled(&awaited.borrow()) {
            return;
        }
        let mut awaited = awaited.subscribe();
        let wait = awaited.wait_for(|awaited| settled(awaited));
        drop(timeout_at(end, wait).await);
    }

    fn awaits(&self, awaited: &HashSet<ServerName>, profile: &ProfileName) -> bool {
        let plan = self.plan.load();
        plan.servers.iter().any(|(name, config)| {
            awaited.contains(name) && plan.profiles.takes(profile, &config.tags)
        })
    }

    /// Whether every enabled server has listed or failed.
    pub fn is_settled(&self) -> bool {
        self.awaited.borrow().is_empty()
    }

    /// Whether it is known of every enabled server what it offers to `audience` beyond the rest.
    pub fn is_settled_for(&self, audience: Audience) -> bool {
        match audience {
            Audience::Able => self.able_awaited.borrow().is_empty(),
            Audience::Plain => true,
        }
    }

    /// The enabled servers that may have the item called `name` on the route of `scope`, among those
    /// that are not listed: not yet, or not any longer. The likeliest comes first.
    pub fn prospects(&self, scope: &Scope, kind: Kind, name: &str) -> Vec<Prospect> {
        let plan = self.plan.load();
        let offers = self.lock();
        let unlisted = plan
            .servers
            .iter()
            .filter(|(server, config)| config.enabled && !offers.are_of(server));
        let unlisted: Vec<Offer> = unlisted
            .map(|(server, config)| self::unlisted(server, config))
            .collect();
        drop(offers);
        Catalog::prospects(&plan.naming, &plan.profiles, &unlisted, (scope, kind, name))
    }

    /// The enabled servers that may have the item called `name` on the merged route, whatever they
    /// have listed.
    pub fn candidates(&self, kind: Kind, name: &str) -> Vec<ServerName> {
        let plan = self.plan.load();
        let enabled = plan.servers.iter().filter(|(_, config)| config.enabled);
        let may_have = enabled.filter(|(server, config)| {
            let offer = unlisted(server, config);
            let wanted = (&Scope::All, kind, name);
            !Catalog::prospects(&plan.naming, &plan.profiles, &[offer], wanted).is_empty()
        });
        may_have.map(|(server, _)| server.clone()).collect()
    }

    /// Whether it is known what `server` lists, not only what it listed to an earlier process.
    pub fn lists(&self, server: &ServerName) -> bool {
        self.lock().are_of(server)
    }

    /// What servers listed to this process for every client, in the config's order.
    pub fn offers(&self) -> Vec<Offer> {
        let plan = self.plan.load();
        let offers = self.lock();
        let listed = plan
            .servers
            .iter()
            .filter(|(server, _)| offers.are_of(server));
        listed
            .filter_map(|(server, _)| offers.plain.get(server).cloned())
            .collect()
    }

    fn publish(&self, backend: &Backend, mut offer: Offer) {
        let server = offer.server.clone();
        let mut offers = self.lock();
        // Under the lock: a new plan comes after the retirement of those that it replaces.
        if backend.retired().is_cancelled() {
            return;
        }
        offer.config = backend.written();
        let same = offers.plain.get(&server).is_some_and(|known| {
            known.listing == offer.listing && known.modern_http == offer.modern_http
        });
        if !same {
            offers.plain.insert(server.clone(), offer);
            self.rebuild(&offers);
        }
        offers.stored.remove(&server);
        offers.unkept.insert(server.clone());
        drop(offers);
        self.listed.notify_one();
        self.settle(&server);
    }

    fn withdraw(&self, backend: &Backend) {
        let mut offers = self.lock();
        if !backend.retired().is_cancelled() && offers.plain.remove(&backend.name).is_some() {
            offers.stored.remove(&backend.name);
            self.rebuild(&offers);
        }
    }

    /// What `server` lists for every client.
    fn listing(&self, server: &ServerName) -> Option<Arc<Listing>> {
        let offers = self.lock();
        let offer = offers.plain.get(server);
        offer.map(|offer| Arc::clone(&offer.listing))
    }

    /// Publishes what a server lists beyond that for clients that can be asked something.
    fn publish_able(&self, backend: &Backend, more: Listing) {
        let server = &backend.name;
        let mut offers = self.lock();
        if backend.retired().is_cancelled() {
            return;
        }
        let old = offers.able.get(server);
        let differs = old.map_or(!more.is_empty(), |old| *old != more);
        let is_new = old.is_none();
        offers.able.insert(server.clone(), more);
        if differs {
            self.rebuild(&offers);
        }
        if differs || is_new {
            offers.unkept.insert(server.clone());
            self.listed.notify_one();
        }
    }

    fn settle(&self, server: &ServerName) {
        self.awaited
            .send_if_modified(|awaited| awaited.remove(server));
    }

    /// Nobody waits any longer for what `server` lists for clients that can be asked something.
    fn settle_for_able(&self, server: &ServerName) {
        self.able_awaited
            .send_if_modified(|awaited| awaited.remove(server));
    }

    fn rebuild(&self, offers: &Offers) {
        let plan = self.plan.load();
        let ordered: Vec<Offer> = plan
            .servers
            .iter()
            .filter_map(|(server, _)| offers.plain.get(server).cloned())
            .collect();
        let snapshots = Snapshots::build(&plan, &ordered, &offers.able);
        self.current.store(Arc::new(snapshots));
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Offers> {
        lock(&self.offers)
    }
}

/// The offer of a server that has listed nothing.
fn unlisted(server: &ServerName, config: &Arc<config::Server>) -> Offer {
    Offer {
        server: server.clone(),
        config: Arc::clone(config),
        listing: Arc::default(),
        modern_http: false,
    }
}

impl Snapshots {
    fn build(plan: &Plan, offers: &[Offer], able: &HashMap<ServerName, Listing>) -> Self {
        let build = |offers: &[Offer]| {
            let catalog = Catalog::build_with(&plan.naming, &plan.profiles, offers);
            Arc::new(catalog)
        };
        let plain = build(offers);
        let has_more = |offer: &Offer| able.get(&offer.server).is_some_and(|more| !more.is_empty());
        if !offers.iter().any(has_more) {
            let able = Arc::clone(&plain);
            return Self { plain, able };
        }
        let extended = offers.iter().cloned().map(|mut offer| {
            if let Some(more) = able.get(&offer.server) {
                Arc::make_mut(&mut offer.listing).extend(more);
            }
            offer
        });
        let able = build(&extended.collect::<Vec<_>>());
        Self { plain, able }
    }
}

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
                board.withdraw(&backend);
                backend.note_withdrawn();
                listed = false;
            }
            () = backend.retired().cancelled() => return,
            () = tasks.stop_token().cancelled() => return,
        }
    }
}

/// Lists a server and publishes what it offers; when that fails, says how soon to try again.
async fn refresh(backend: &Arc<Backend>, control: &Control, board: &Board) -> Option<Duration> {
    let _reading = backend.reading();
    match list(backend, control).await {
        Ok(offer) => {
            backend.note_listed(control);
            board.publish(backend, offer);
            backend.follow_lists(control);
            None
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
