//! The set of backends, which changes with the config while calls run.
//!
//! A set is immutable and swapped as a whole. A server whose connections know nothing of what a new
//! config says otherwise keeps its backend, with processes, connections and counts, and goes on
//! with the new settings (see `live_config`); others are built anew, and those they replace are retired
//! (see `retire`).

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use arc_swap::ArcSwap;
use indexmap::IndexMap;

use super::{
    Answer, Backend, BackendError, CallError, UpdateReceiver,
    link::{
        resource_updates::update_channel,
        session_filter::{SessionFilter, SessionFilters, UpstreamContext},
    },
    report::program_usage::LastMeasured,
    retirement::BackendLease,
    transport::stdio::process_launcher::Launcher,
};
use crate::{
    config::Config,
    governance::Admitted,
    limiter::Limiter,
    lock::lock,
    mcp::{GatewayId, gateway_headers::HOPS_MAX},
    names::{Scope, ServerName},
    oauth_client::Grants,
    session::Session,
    task::Tasks,
};

/// How often a call looks for the successor of a backend that was retired in that moment.
const SUCCESSORS_MAX: usize = 16;

type BackendMap = IndexMap<ServerName, Arc<Backend>>;

/// All backends.
#[derive(Debug)]
pub struct Backends {
    set: ArcSwap<BackendMap>,
    /// Those that finish their calls, or say goodbye.
    retiring: Arc<Mutex<Vec<Arc<Backend>>>>,
    launcher: Launcher,
    context: UpstreamContext,
    limiter: Arc<Limiter>,
    tasks: Tasks,
    pub(super) measured: LastMeasured,
}

/// What became of the backends when the config changed.
#[derive(Debug, Default)]
pub struct Replaced {
    /// Those that are new, in the order of the config; they run once [`Backend::start`] is called.
    pub added: Vec<Arc<Backend>>,
    /// The settings in which servers differ that were there before, by the names of their keys.
    pub changed_settings: IndexMap<ServerName, Vec<&'static str>>,
    /// Those that [`Backends::retire`] ends: their server is gone, or has a fresh one.
    pub retired: Vec<Arc<Backend>>,
}

impl Backends {
    /// Prepares a backend for each server; nothing runs before [`Backends::start`]. `launcher` is this
    /// binary, which starts programs; `grants` has the access tokens of servers that take such.
    pub fn new(
        config: &Config,
        launcher: Option<PathBuf>,
        grants: Option<Grants>,
        tasks: &Tasks,
    ) -> (Self, UpdateReceiver) {
        let (update_sender, updates) = update_channel();
        let limiter = Limiter::new(&config.limits);
        let backends = Self {
            set: ArcSwap::default(),
            retiring: Arc::default(),
            launcher: Launcher::new(launcher),
            context: UpstreamContext {
                gateway: GatewayId::random(),
                updates: update_sender,
                session_filters: SessionFilters::default(),
                byte_budget: limiter.bytes.clone(),
                http_calls: limiter.http_calls.clone(),
                grants,
            },
            limiter,
            tasks: tasks.clone(),
            measured: LastMeasured::default(),
        };
        backends.replace(config);
        (backends, updates)
    }

    /// How programs are confined, once one was started.
    pub fn confined(&self) -> Option<Arc<super::Confined>> {
        self.launcher.confined()
    }

    /// What clients may take of the process, of which answers of servers are a part.
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }

    /// Access tokens for servers, where anybody has such.
    pub fn grants(&self) -> Option<&Grants> {
        self.context.grants.as_ref()
    }

    /// As whom the servers are asked.
    pub fn gateway(&self) -> &GatewayId {
        &self.context.gateway
    }

    /// How many gateways stand in a row on the route of `scope`, from this one on.
    pub fn depth(&self, scope: &Scope) -> u8 {
        let set = self.set.load();
        let deepest = match scope {
            Scope::Server(name) => {
                let called = set.values().filter(|it| it.name.is_called(name.as_str()));
                called.map(|backend| backend.depth()).max()
            }
            // What others own is no matter of who asks; a loop through it shows itself to its callers.
            Scope::All | Scope::Profile(_) | Scope::View { .. } => {
                let shared = set.values().filter(|it| !it.name.is_owned());
                shared.map(|backend| backend.depth()).max()
            }
        };
        // What is in a loop counts as such, and no more.
        deepest.unwrap_or(0).min(HOPS_MAX) + 1
    }

    /// Lets sessions see what servers say outside of calls as `filter` says; until then they see nothing
    /// of it.
    pub fn set_session_filter(&self, filter: Arc<dyn SessionFilter>) {
        self.context.session_filters.set_filter(filter);
    }

    /// Begins to connect to every enabled server, in the background.
    pub fn start(&self) {
        for backend in self.all() {
            backend.start();
        }
    }

    /// Takes the servers of another config. From now on calls go to the new set only.
    pub fn replace(&self, config: &Config) -> Replaced {
        self.launcher.hide_paths(config.hidden_paths());
        if let Some(grants) = &self.context.grants {
            grants.configure(config);
        }
        let old = self.set.load_full();
        let mut replaced = Replaced::default();
        let mut set = BackendMap::with_capacity(config.servers.len());
        for (name, server) in &config.servers {
            let known = old.get(name);
            let settings = known.map(|known| known.load_config().changed_settings(server));
            if let Some(settings) = settings.filter(|settings| !settings.is_empty()) {
                replaced.changed_settings.insert(name.clone(), settings);
            }
            let backend = if let Some(known) =
                known.filter(|known| known.load_config().is_compatible_with(server))
            {
                known.update_config(server);
                Arc::clone(known)
            } else {
                let new = Backend::new(name, server, &self.launcher, &self.context, &self.tasks);
                let new = Arc::new(new);
                replaced.added.push(Arc::clone(&new));
                new
            };
            set.insert(name.clone(), backend);
        }
        let is_kept = |old: &Arc<Backend>| {
            let new = set.get(&old.name);
            new.is_some_and(|new| Arc::ptr_eq(new, old))
        };
        replaced.retired = old.values().filter(|old| !is_kept(old)).cloned().collect();
        self.set.store(Arc::new(set));
        replaced
    }

    /// Puts a fresh backend in the place of the one of `server`: that one, and the fresh one. `None` where it is
    /// not enabled. Not to be called while [`Backends::replace`] is.
    pub fn renew(&self, server: &ServerName) -> Option<(Arc<Backend>, Arc<Backend>)> {
        let mut set = BackendMap::clone(&self.set.load());
        let old = Arc::clone(set.get(server).filter(|backend| backend.is_enabled())?);
        let config = old.load_config();
        let new = Backend::new(server, &config, &self.launcher, &self.context, &self.tasks);
        let new = Arc::new(new);
        set.insert(server.clone(), Arc::clone(&new));
        self.set.store(Arc::new(set));
        Some((old, new))
    }

    /// Lets backends that are not in the set any longer finish their calls within `patience`, then
    /// ends their connections. They count as retired at once.
    pub fn retire(&self, old: Vec<Arc<Backend>>, patience: Duration) {
        for backend in old {
            backend.stop_accepting();
            self.retiring().push(Arc::clone(&backend));
            let retiring = Arc::clone(&self.retiring);
            self.tasks.spawn("retirement of a server", async move {
                backend.drain(patience).await;
                lock(&retiring).retain(|other| !Arc::ptr_eq(other, &backend));
            });
        }
    }

    /// The backend named `server`.
    pub fn get(&self, server: &ServerName) -> Option<Arc<Backend>> {
        self.set.load().get(server).cloned()
    }

    /// All backends, in the order of the config.
    pub fn all(&self) -> impl Iterator<Item = Arc<Backend>> + use<> {
        let set = self.set.load_full();
        (0..set.len()).filter_map(move |at| set.get_index(at).map(|(_, one)| Arc::clone(one)))
    }

    /// The servers whose retired backends have not ended yet.
    pub fn retiring_servers(&self) -> Vec<ServerName> {
        self.retiring().iter().map(|one| one.name.clone()).collect()
    }

    /// Takes an admitted call to its server. The answer is in the client's era.
    ///
    /// # Errors
    /// When the server gave no answer.
    pub async fn forward(&self, admitted: Admitted) -> Result<Answer, CallError> {
        let lease = self
            .lease(&admitted.routed().server)
            .ok_or_else(|| CallError::before_send(BackendError::UnknownServer))?;
        let backend = lease.backend();
        let answer = backend.call(&admitted).await;
        answer.map_err(|unanswered| CallError {
            state: unanswered.state.or_else(|| Some(backend.state())),
            ..unanswered
        })
    }

    /// The backend named `server`, which will not retire while it is held.
    fn lease(&self, server: &ServerName) -> Option<BackendLease> {
        for _ in 0..SUCCESSORS_MAX {
            let backend = self.get(server)?;
            // One that was retired since has a successor by now, or none for good.
            if let Some(lease) = BackendLease::of(backend) {
                return Some(lease);
            }
        }
        None
    }

    /// Tells the servers whose connection belongs to `session` alone that its roots changed.
    pub fn notify_roots_changed(&self, session: &Session) {
        for backend in self.all() {
            backend.notify_roots_changed(session);
        }
    }

    /// Tells the servers that are at work for `session` which log messages it wants from now on.
    pub fn update_log_level(&self, session: &Arc<Session>) {
        for backend in self.all() {
            backend.update_log_level(session);
        }
    }

    /// A way to one server that outlives the caller's borrow, for a stream.
    pub fn backend_ref(&self, server: &ServerName) -> BackendRef {
        BackendRef(self.get(server))
    }

    fn retiring(&self) -> MutexGuard<'_, Vec<Arc<Backend>>> {
        lock(&self.retiring)
    }
}

/// The way to one server, for a stream: a retiring server does not wait for its end.
#[derive(Debug)]
pub struct BackendRef(Option<Arc<Backend>>);

impl BackendRef {
    /// Takes an admitted call to the server.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn forward(self, admitted: Admitted) -> Result<Answer, CallError> {
        let backend = self
            .0
            .ok_or_else(|| CallError::before_send(BackendError::UnknownServer))?;
        backend.call(&admitted).await
    }
}
