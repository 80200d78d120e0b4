//! The running side of every configured server.
//!
//! [`Backends`], the set of them, changes with the config. [`Backends::forward`] takes an admitted
//! call to its server, `dispatch` to a connection; [`Backend::fetch_list`] and friends are the gateway's own
//! control traffic. Which connection serves a caller is decided by `selection`; how it lives is
//! `supervisor`'s business, how it talks `link`'s.

mod call_health;
mod catalog_connection;
mod credential;
mod dispatch;
mod error;
mod instance;
mod link;
mod live_config;
mod registry;
mod report;
mod retirement;
mod sharing;
mod state_machine;
mod transport;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) use crate::launcher::Confined;
use crate::{
    config::{Auth, Server},
    lock::lock,
    mcp::{Raw, Revision, method::notice},
    names::{AgentId, ServerName},
    session::Session,
    task::Tasks,
};
use arc_swap::Guard;
pub(crate) use catalog_connection::{CatalogConnection, CatalogWatch, ListOutcome, Listability};
pub(crate) use dispatch::replicas::ReplicaReport;
pub(crate) use dispatch::stats::Stats;
pub(crate) use dispatch::{Answer, CallError};
use dispatch::{
    connection_pool::ConnectionPool, fair_limiter::FairLimiter, replicas::Replicas,
    tool_headers::ToolHeaderCache,
};
pub(crate) use error::{BackendError, STDERR_SEPARATOR};
pub(crate) use instance::breaker::{BreakerReport, CallerBreaker};
pub(crate) use instance::health::HealthChecks;
pub(crate) use instance::shared_state::ReadingLists;
use instance::{
    Instance, InstancePhase, breaker::Breaker, connector::BackendConnector,
    shared_state::SharedState,
};
pub(crate) use link::resource_updates::{Update, UpdateReceiver};
pub(crate) use link::session_filter::{SessionFilter, SessionView};
use link::{backlog::Backlog, gateway_peer::GatewayPeer, session_filter::UpstreamContext};
pub(crate) use live_config::ConfigUpdates;
use live_config::LiveConfig;
pub(crate) use registry::{Backends, Replaced};
pub(crate) use report::{InstanceReport, ServerStatusReport};
use retirement::Service;
use sharing::{Sharing, SharingKey};
use state_machine::ServerEvent;
pub(crate) use state_machine::{HISTORY_MAX, ServerState, Transition};
pub(crate) use transport::pipe::{LineExcess, Lines, OutputLine, push_line};
pub(crate) use transport::stdio::exit_reason::reason_from_stderr;
pub(crate) use transport::stdio::process_group::ProgramUsage;
use transport::stdio::process_launcher::Launcher;

/// The reason of a server of an agent that nobody has used.
const UNUSED_REASON: &str = "not used yet; a session of its agent starts it";
/// Pages of one list that are read; a server with more is reported.
pub(crate) const PAGES_MAX: usize = 1_000;
/// Pages without an item, one after the other, after which a list counts as one that does not end.
const EMPTY_PAGES_MAX: usize = 64;
/// Items of one list that are read; a server with more is reported.
pub(crate) const ITEMS_MAX: usize = 10_000;

/// The running side of one server.
#[derive(Debug)]
pub struct Backend {
    /// Its name.
    pub name: ServerName,
    /// What the config says of it at present.
    live_config: Arc<LiveConfig>,
    service: Service,
    connector: Arc<BackendConnector>,
    relist: ToolHeaderCache,
    catalog: Arc<Instance>,
    listed_at: Mutex<Option<jiff::Timestamp>>,
    breaker: Arc<Breaker>,
    instances: Mutex<HashMap<SharingKey, Arc<Instance>>>,
    /// Where each call has a connection to itself.
    pool: Option<ConnectionPool>,
    /// Where the server runs more than once; then it has no connections of its own.
    replicas: Option<Replicas>,
    limiter: Arc<FairLimiter>,
    /// Notifications of clients that wait for a connection.
    backlog: Backlog,
    /// Whether it was begun to connect.
    is_started: AtomicBool,
    /// Calls that ended, and how.
    pub stats: Stats,
}

impl Backend {
    fn new(
        name: &ServerName,
        config: &Server,
        launcher: &Launcher,
        context: &UpstreamContext,
        tasks: &Tasks,
    ) -> Self {
        let live_config = LiveConfig::new(config);
        let shared = Arc::new(SharedState::new(name, config, &context.updates, tasks));
        let peer = GatewayPeer::new(context.gateway.clone(), shared.changes.clone());
        let remote = config.transport.remote();
        let takes_tokens = remote.is_some_and(|it| matches!(it.auth, Auth::OAuth2(_)));
        let grants = context.grants.as_ref().filter(|_| takes_tokens);
        let connector = Arc::new(BackendConnector {
            server: name.clone(),
            live_config: Arc::clone(&live_config),
            tasks: tasks.clone(),
            launcher: launcher.clone(),
            peer: Arc::new(peer),
            session_filters: context.session_filters.clone(),
            byte_budget: context.byte_budget.clone(),
            http_calls: context.http_calls.clone(),
            grants: grants.and_then(|grants| grants.towards(name)),
            shared,
        });
        let pool = ConnectionPool::of(config);
        let replicas = Replicas::of(config, |called, replica| {
            // Above every level: what it adds to a line is wanted wherever the line is.
            let span = tracing::error_span!("replica", replica = called);
            let replica = Self::new(name, replica, launcher, context, &tasks.with_span(span));
            replica.connector.shared.join_server(&connector.shared);
            replica
        });
        let catalog = Instance::new(Arc::clone(&connector.shared.identity), None);
        if !config.runs() {
            let (event, reason, failure) = match &config.name_conflict {
                Some(conflict) if config.enabled => (
                    ServerEvent::Unreachable,
                    Some(conflict.to_string()),
                    BackendError::NameConflict(conflict.clone()),
                ),
                Some(_) | None => (ServerEvent::SwitchedOff, None, BackendError::Disabled),
            };
            catalog.set_phase(InstancePhase::Down { failure });
            connector.shared.state_machine().apply(event, reason);
        } else if name.is_of_agent() {
            let reason = Some(UNUSED_REASON.to_owned());
            let machine = connector.shared.state_machine();
            machine.apply(ServerEvent::FellAsleep, reason);
        }
        Self {
            name: name.clone(),
            breaker: Arc::clone(&connector.shared.breaker),
            limiter: FairLimiter::new(config.limits.in_flight, config.limits.queue),
            backlog: Backlog::default(),
            is_started: AtomicBool::new(false),
            service: Service::new(),
            live_config,
            connector,
            relist: ToolHeaderCache::default(),
            catalog,
            listed_at: Mutex::default(),
            instances: Mutex::default(),
            pool,
            replicas,
            stats: Stats::default(),
        }
    }

    /// What the config says of it at present, for a look.
    fn config(&self) -> Guard<Arc<Server>> {
        self.live_config.current()
    }

    /// What the config says of it at present.
    pub fn load_config(&self) -> Arc<Server> {
        self.live_config.load()
    }

    /// Tells when the config says something else of it from now on, while it goes on.
    pub fn config_updates(&self) -> ConfigUpdates {
        self.live_config.updates()
    }

    /// Whether it is to run at all.
    pub fn is_enabled(&self) -> bool {
        self.config().runs()
    }

    /// Takes another config with which it goes on (see [`Server::is_compatible_with`]): what it is asked from
    /// now on keeps to that, and what waits for its turn as well.
    fn update_config(&self, server: &Server) {
        // Whoever wakes looks at what is set here as well.
        self.live_config.update(server, || {
            self.limiter
                .set_limits(server.limits.in_flight, server.limits.queue);
            for changed in self.breaker.set_config(server.breaker) {
                changed.log(&self.name, None);
            }
            self.connector.shared.set_retry(server.retry);
            if let Some(replicas) = &self.replicas {
                replicas.update_config(server);
            }
        });
    }

    /// Begins to connect, in the background, unless the server is switched off or that was begun before;
    /// whether it does.
    pub fn start(&self) -> bool {
        if !self.is_enabled() || self.is_started.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.connect();
        true
    }

    fn connect(&self) {
        if let Some(replicas) = &self.replicas {
            return replicas.backends().for_each(|replica| replica.connect());
        }
        let instance = Arc::clone(&self.catalog);
        self.connector.tasks.spawn(
            "catalog connection",
            Arc::clone(&self.connector).supervise_catalog(instance),
        );
    }

    /// Notes that the server was listed on the connection of `control`; `missing` is why some of its
    /// lists could not be read.
    pub fn note_listed(&self, control: &CatalogConnection, missing: Option<String>) {
        *lock(&self.listed_at) = Some(crate::clock::now());
        let Some(owner) = self.backend_of_connection(control) else {
            return;
        };
        owner.record_listed(control, missing);
        owner.connector.shared.note_listed();
        if owner.is_current(control) {
            owner.breaker.note_reconnected();
        }
    }

    /// Notes that the replica could be listed whose connection `control` is, and whether but for some
    /// lists; it is not what is served.
    pub fn note_listable(&self, control: &CatalogConnection, missing: Option<String>) {
        if let Some(owner) = self.backend_of_connection(control) {
            owner.record_listed(control, missing);
        }
    }

    fn record_listed(&self, control: &CatalogConnection, missing: Option<String>) {
        let event = match missing {
            None => ServerEvent::Listed,
            Some(_) => ServerEvent::ListedPartly,
        };
        let life = self.connector.shared.state_machine();
        life.apply_if(event, missing, || self.is_current(control));
    }

    /// Notes that the server cannot be listed on the connection of `control`.
    pub fn note_unlisted(&self, control: &CatalogConnection, failure: &BackendError) {
        let event = ServerEvent::Unlistable.or_refused(failure);
        let Some(owner) = self.backend_of_connection(control) else {
            return;
        };
        let is_current = || owner.is_current(control);
        let reason = Some(failure.to_string());
        owner
            .connector
            .shared
            .state_machine()
            .apply_if(event, reason, is_current);
    }

    /// Ends the connections of one agent: their server knew them by a token that is none any more, or another's.
    pub fn end_connections_of(&self, agent: AgentId) {
        if let Some(replicas) = &self.replicas {
            return replicas
                .backends()
                .for_each(|replica| replica.end_connections_of(agent));
        }
        let pooled = self.pool.iter().flat_map(ConnectionPool::all);
        let own: Vec<_> = self.lock().values().map(Arc::clone).chain(pooled).collect();
        for instance in own {
            let callers = instance.identity.shared_by.as_ref();
            if callers.is_some_and(|callers| callers.agent_id == Some(agent)) {
                instance.stop.cancel();
            }
        }
    }

    /// Notes that the server stayed away for so long that its items are not listed any more.
    pub fn note_withdrawn(&self) {
        if let Some(replicas) = &self.replicas {
            return replicas
                .backends()
                .for_each(|replica| replica.note_withdrawn());
        }
        let is_away = || match self.catalog.phase() {
            InstancePhase::Connecting | InstancePhase::Down { .. } => true,
            InstancePhase::Asleep(_) | InstancePhase::Ready(_) => false,
        };
        let life = self.connector.shared.state_machine();
        life.apply_if(ServerEvent::Withdrawn, None, is_away);
    }

    /// How many gateways stand in a row from the server on, or from that of its replicas with the most.
    fn depth(&self) -> u8 {
        let replicas = self.replicas.iter().flat_map(Replicas::backends);
        let depths = replicas.map(|replica| replica.connector.peer.depth());
        depths.fold(self.connector.peer.depth(), u8::max)
    }

    /// Where the server stands.
    pub fn state(&self) -> ServerState {
        let lead = self.listing_source();
        if let Some(work) = lead.instance_transition() {
            return work.state;
        }
        lead.catalog.state()
    }

    /// Counts a call that found no connection to be sent on.
    pub fn count_unconnected_call(&self) {
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Why the server will not be listed soon; `None` while it may be. It is woken where it sleeps, and
    /// tried at once where it is away.
    pub fn listing_obstacle(&self) -> Option<BackendError> {
        match self.watch_catalog().current() {
            Listability::Asleep => {
                self.listing_source().catalog.wake();
                None
            }
            Listability::Connecting => {
                self.retry_now();
                None
            }
            Listability::Down => {
                let failure = self.last_failure()?;
                let is_tried = failure.is_transient() && self.retry_now();
                (!is_tried).then_some(failure)
            }
            Listability::Up(_) => {
                (self.state() == ServerState::Degraded).then(|| BackendError::NotListedYet {
                    why: self.listing_source().snapshot().reason,
                })
            }
        }
    }

    /// Why it is down, where it is.
    pub fn last_failure(&self) -> Option<BackendError> {
        match self.listing_source().catalog.phase() {
            InstancePhase::Down { failure } => Some(failure),
            InstancePhase::Asleep(_) | InstancePhase::Connecting | InstancePhase::Ready(_) => None,
        }
    }

    /// What the server declared on the catalog's connection, and in which revision.
    pub fn capabilities(&self) -> Option<(Raw, Revision)> {
        match self.listing_source().catalog.phase() {
            InstancePhase::Ready(connection) => Some((
                connection.hello.capabilities.clone(),
                connection.hello.revision,
            )),
            InstancePhase::Asleep(hello) => Some((hello.capabilities.clone(), hello.revision)),
            InstancePhase::Connecting | InstancePhase::Down { .. } => None,
        }
    }

    /// Says that its lists are being read on the connection of `control` until this is dropped: it
    /// does not fall asleep meanwhile.
    pub fn begin_reading_lists(&self, control: &CatalogConnection) -> ReadingLists {
        let owner = self
            .backend_of_connection(control)
            .unwrap_or_else(|| self.listing_source());
        owner.connector.shared.begin_reading_lists()
    }

    /// Calls that wait for their turn: at the gate, or for a connection of their own.
    pub fn queued(&self) -> usize {
        self.limiter.queued() + self.waiting_for_connections()
    }

    /// Calls under way that do not wait for their turn.
    pub fn in_flight(&self) -> u64 {
        let all = self.stats.in_flight.load(Ordering::Relaxed);
        all.saturating_sub(u64::try_from(self.waiting_for_connections()).unwrap_or(u64::MAX))
    }

    fn waiting_for_connections(&self) -> usize {
        let own = self.pool.as_ref().map_or(0, ConnectionPool::waiting);
        let replicas = self.replicas.iter().flat_map(Replicas::backends);
        let theirs = replicas.map(|replica| replica.waiting_for_connections());
        own + theirs.sum::<usize>()
    }

    /// What is listed: the server itself, or one of its replicas.
    fn listing_source(&self) -> &Self {
        self.replicas.as_ref().map_or(self, Replicas::listed)
    }

    /// The server itself, or the one of its replicas whose connection `control` is now.
    fn backend_of_connection(&self, control: &CatalogConnection) -> Option<&Self> {
        let Some(replicas) = &self.replicas else {
            return Some(self);
        };
        let mut replicas = replicas.backends();
        let owner = replicas.find(|replica| replica.is_current(control));
        owner.map(|replica| &**replica)
    }

    fn notify_roots_changed(&self, session: &Session) {
        if let Some(replicas) = &self.replicas {
            return replicas
                .backends()
                .for_each(|replica| replica.notify_roots_changed(session));
        }
        let own =
            |key: &SharingKey| matches!(&key.sharing, Sharing::Session(id) if *id == session.id);
        let instances = self.lock();
        let owned = instances.iter().filter(|(key, _)| own(key));
        let mut owned: Vec<_> = owned.map(|(_, instance)| Arc::clone(instance)).collect();
        drop(instances);
        let pooled = self.pool.as_ref().map(|pool| pool.of_session(&session.id));
        owned.extend(pooled.into_iter().flatten());
        for instance in owned {
            if let InstancePhase::Ready(connection) = instance.phase() {
                connection
                    .link
                    .forward_notification(notice::ROOTS_CHANGED, None);
            }
        }
    }
}
