//! Builds everything from a `Config`, starts it in order, changes it with the config, and stops it
//! in order.
//!
//! Start: bind, serve, connect. Change: see `reload`, and `config_watch` for what sets it off. Stop: not
//! ready any more and no new calls, running calls finish until the drain timeout, no new
//! connections, sessions end, servers are stopped, every task has ended.

mod authorization;
mod config_diff;
mod config_watch;
mod control;
mod entry_writer;
mod identity;
mod own_server;
mod reload;
mod server_trial;
mod sign_in_command;
mod storage;

pub(crate) use entry_writer::{check as check_change, plan as plan_change};
pub(crate) use identity::apply as apply_identity;
pub(crate) use server_trial::run as try_server;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, ApiState, EventStreams, FoundPlaces, ServerTrials},
    backend::Backends,
    config::{Config, Listen},
    egress::EgressError,
    governance::{Governance, InvalidTerms, PolicySet},
    http::{self, BoundListener, Certificate, HttpEdge, InvalidListener},
    names::AgentId,
    proxy::{Proxy, ProxyStorage},
    status::Status,
    task::{Tasks, run_blocking},
};
pub use config_watch::{ConfigSource, ReloadPhase};
use control::Control;
use entry_writer::EntryWriter;
use reload::{ListenerHandle, Reloader};
pub use reload::{ReloadError, Reloaded};
pub use sign_in_command::run_sign_in_command;
pub use storage::DataDirError;
use storage::StorageKeeper;
pub(crate) use storage::{data_dir_error, lost_store_warning};

/// What the process around a gateway provides.
#[derive(Clone, Debug, Default)]
pub struct ProcessContext {
    /// This binary, which is run as `launcher` to start programs; without it none can be started.
    pub launcher: Option<PathBuf>,
}

/// The parts of a gateway that every edge needs.
#[derive(Debug)]
pub struct GatewayCore {
    /// The spine.
    pub proxy: Arc<Proxy>,
    /// What `/status` says.
    pub status: Arc<Status>,
    storage: Arc<StorageKeeper>,
    tasks: Tasks,
    /// Cancelled when no call is left to wait for.
    closing: CancellationToken,
    control: Control,
    /// Cancelled when a stop is to wait for nothing but the records.
    aborting: CancellationToken,
    reloader: Arc<Reloader>,
    entry_writer: Arc<EntryWriter>,
}

impl GatewayCore {
    /// Opens the data directory, builds the parts and begins to connect to servers. Clients go on with
    /// the sessions of the process before, and see what servers listed last until they list again.
    ///
    /// # Errors
    /// When the data directory cannot be used, or the config has terms that cannot.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(config: &Config, surroundings: ProcessContext) -> Result<Self, StartError> {
        // Who starts a gateway has a small future of it.
        Box::pin(Self::build(config, surroundings, true)).await
    }

    /// The same for somebody who asks what is the case now: nothing is remembered.
    ///
    /// # Errors
    /// As those of [`GatewayCore::start`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start_stateless(
        config: &Config,
        context: ProcessContext,
    ) -> Result<Self, StartError> {
        Box::pin(Self::build(config, context, false)).await
    }

    async fn build(
        config: &Config,
        context: ProcessContext,
        remembers: bool,
    ) -> Result<Self, StartError> {
        warn_if_empty(config);
        let tasks = Tasks::new();
        let storage = Arc::new(StorageKeeper::open(config, remembers).await?);
        storage.set_oauth(authorization::settings(config)?);
        identity::apply_with(config, &storage.storage.directory, storage.token_verifier());
        let governance = Governance::new(config, storage.storage.clone())?;
        let grants = storage.open_grants(&tasks);
        if storage.has_store() {
            authorization::spawn_grant_notices(&grants, storage.data_dir().to_owned(), &tasks);
        }
        let launcher = context.launcher;
        let (backends, updates) = Backends::new(config, launcher.clone(), Some(grants), &tasks);
        let kept = ProxyStorage {
            store: storage.store().filter(|_| remembers).cloned(),
            views: Arc::clone(storage.views()),
        };
        let proxy = Proxy::new(config, governance, backends, kept, &tasks);
        let proxy = Arc::new(proxy);
        proxy.restore_lists().await;
        let draining = tasks.drain_token().clone();
        let status = Arc::new(Status::new(Arc::clone(&proxy), draining));
        storage.start(&status, &tasks);
        proxy.start(updates);
        if remembers {
            warn_invalid_agents(&proxy, &tasks);
        }
        spawn_session_sweep(&proxy, &tasks);
        let reloader = Reloader::new(config, &proxy, &status, &storage, &tasks);
        let reloader = Arc::new(reloader);
        let entry_writer = Arc::new(EntryWriter::new(&reloader, &storage, launcher));
        let control = Control::new((&storage, &entry_writer), &proxy, &status, &tasks);
        if storage.has_store() {
            control.listen();
        }
        Ok(Self {
            proxy,
            status,
            storage,
            tasks,
            closing: CancellationToken::new(),
            control,
            aborting: CancellationToken::new(),
            reloader,
            entry_writer,
        })
    }

    /// Takes another config while everything runs: what it has alike stays as it is. It waits for
    /// no server.
    ///
    /// # Errors
    /// Why the config cannot be taken; nothing has changed then.
    pub fn apply_config(&self, config: &Config) -> Result<Reloaded, ReloadError> {
        self.reloader.reload(config)
    }

    /// Follows `source`: its config is taken whenever one of its files changes, and on SIGHUP.
    pub fn follow_config(&self, source: ConfigSource) {
        let source = Arc::new(source);
        let requests = config_watch::start(Arc::clone(&source), &self.reloader, &self.tasks);
        self.entry_writer.set_source(source, requests);
    }

    /// The tasks of this gateway.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// What makes [`GatewayCore::stop`] wait for nothing but the records of the calls that it aborts.
    pub fn abort_token(&self) -> CancellationToken {
        self.aborting.clone()
    }

    /// Stops everything; running calls may finish until the drain timeout. Whether they and every
    /// task did, and all of it is recorded.
    pub async fn stop(self) -> bool {
        self.tasks.drain();
        let drained = timeout(self.proxy.settings().drain_timeout, self.wait_idle());
        let drained = tokio::select! {
            drained = drained => drained.is_ok(),
            () = self.aborting.cancelled() => false,
        };
        let cut_off = self.proxy.in_flight();
        if !drained && !self.aborting.is_cancelled() {
            tracing::warn!(
                calls = cut_off,
                "drain timed out (`drain_timeout`); cutting off running calls"
            );
        }
        self.closing.cancel();
        self.proxy.flush().await;
        self.proxy.sessions().close_all();
        let finished = tokio::select! {
            finished = timeout(STOP_TIMEOUT, self.tasks.finish()) => finished.is_ok(),
            () = self.abort_grace_elapsed() => false,
        };
        if !finished && !self.aborting.is_cancelled() {
            tracing::warn!(
                "shutdown timed out after {STOP_TIMEOUT:?}; cutting off the remaining \
                tasks"
            );
        }
        let is_recorded = self.storage.close().await;
        tracing::info!(cut_off, "stopped");
        drained && finished && is_recorded
    }

    /// Completes a little after the stop was to wait for nothing.
    async fn abort_grace_elapsed(&self) {
        self.aborting.cancelled().await;
        tokio::time::sleep(ABORT_GRACE).await;
    }

    /// What the API works with.
    fn api_state(&self) -> ApiState {
        let writer = Arc::clone(&self.entry_writer);
        ApiState {
            proxy: Arc::clone(&self.proxy),
            status: Arc::clone(&self.status),
            writer,
            store: self.storage.store().cloned(),
            data_dir: self.storage.data_dir().to_owned(),
            agent_changes: tokio::sync::Mutex::default(),
            tasks: self.tasks.clone(),
            trials: ServerTrials::default(),
            event_streams: EventStreams::default(),
            found_places: FoundPlaces::default(),
        }
    }

    async fn wait_idle(&self) {
        while self.proxy.in_flight() > 0 {
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
    }
}

/// Says what is wanting where clients will find nothing.
fn warn_if_empty(config: &Config) {
    if config.servers.is_empty() {
        tracing::warn!(
            "no servers are configured; add a section `[servers.NAME]` with `command` or `url`"
        );
    } else if !config.servers.values().any(|server| server.enabled) {
        tracing::warn!("all configured servers have `enabled = false`");
    }
}

/// Looks at the terms of the agents of the store beside what is served; those of the config would have
/// stopped the start, or the reload.
fn warn_invalid_agents(proxy: &Arc<Proxy>, tasks: &Tasks) {
    let governance = Arc::clone(proxy.governance());
    let mut agents = governance.directory().agents();
    agents.retain(|agent| {
        agent.id != AgentId::ANONYMOUS && !governance.directory().is_in_config(agent.id)
    });
    if agents.is_empty() {
        return;
    }
    let look = run_blocking(move || governance.warn_invalid_agents(&agents));
    tasks.spawn("validate stored agents", look);
}

/// Looks after the sessions of clients that are gone.
fn spawn_session_sweep(proxy: &Arc<Proxy>, tasks: &Tasks) {
    let (proxy, stop) = (Arc::clone(proxy), tasks.stop_token().clone());
    tasks.spawn("sweep of sessions", async move {
        loop {
            let pause = SWEEP_INTERVAL.min(proxy.sessions().idle_max() / 2);
            tokio::select! {
                () = tokio::time::sleep(pause) => proxy.sessions().sweep(),
                () = stop.cancelled() => return,
            }
        }
    });
}

/// How often idle sessions, and answers that nobody reads, are looked for; more often where sessions may be
/// idle for less.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// How long tasks may take to end once they were told to; longer than a server may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the records of calls that are aborted may take; whatever is left then is ended by its launcher.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// Pause between looks at the calls that are still running.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a gateway does not start; the operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Requests to URLs that others name cannot be made.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The listener.
    #[error(transparent)]
    Listener(#[from] InvalidListener),
    /// The terms of an agent, a profile or a server.
    #[error("invalid terms in the config: {0}")]
    Terms(#[from] InvalidTerms),
}

impl StartError {
    /// Whether another config would do, and nothing else.
    pub fn is_config_error(&self) -> bool {
        match self {
            Self::Terms(_) | Self::Listener(InvalidListener::Tls(_)) => true,
            Self::DataDir(_)
            | Self::Egress(_)
            | Self::Listener(InvalidListener::Bind { .. } | InvalidListener::Socket { .. }) => {
                false
            }
        }
    }
}

/// Tries of a start what takes no port and no data directory: the certificate, and the terms.
///
/// # Errors
/// What is wrong with them; all such errors are mistakes.
pub fn check_config(config: &Config) -> Result<(), StartError> {
    if let Some(tls) = &config.tls {
        Certificate::read(tls, config.governance.auth).map_err(InvalidListener::Tls)?;
    }
    PolicySet::new(config)?;
    Ok(())
}

/// A gateway that listens over HTTP.
#[derive(Debug)]
pub struct RunningGateway {
    /// Where it listens.
    pub listen: Listen,
    /// The base URL for people; for a Unix socket its path, as `listen` is written.
    pub url: String,
    /// The same of the listener of `admin_listen`.
    pub admin_url: Option<String>,
    core: GatewayCore,
}

/// Starts a gateway over HTTP: the listener answers at once, servers connect in the background.
///
/// # Errors
/// When there is no listener to be had, or the parts behind it cannot start.
pub async fn start(
    config: &Config,
    surroundings: ProcessContext,
) -> Result<RunningGateway, StartError> {
    let bound = http::bind(config).await?;
    let (listen, url) = (bound.listen(), bound.url());
    let certificates = bound.certificates().cloned();
    let admin = http::bind_admin(config, certificates.as_ref()).await?;
    let core = GatewayCore::start(config, surroundings).await?;
    let config = Config {
        listen: listen.clone(),
        admin_listen: admin.as_ref().map(BoundListener::listen),
        ..config.clone()
    };
    let edge = HttpEdge::new(
        &config,
        Arc::clone(&core.proxy),
        Arc::clone(&core.status),
        core.storage.oauth().cloned(),
        &core.tasks,
    );
    edge.set_api(Api::new(core.api_state()));
    core.reloader.set_listener(ListenerHandle {
        edge: Arc::clone(&edge),
        certificates,
        listen: listen.clone(),
        admin_listen: config.admin_listen,
    });
    core.control.allow_sessions(&config.files);
    let admin_url = admin.as_ref().map(BoundListener::url);
    core.control.allow_dashboard(&edge, admin_url.clone());
    if let Some(admin) = admin {
        let serving = admin.serve(Arc::clone(&edge), core.closing.clone());
        core.tasks.spawn("admin listener", serving);
    }
    core.tasks
        .spawn("listener", bound.serve(edge, core.closing.clone()));
    Ok(RunningGateway {
        listen,
        url,
        admin_url,
        core,
    })
}

impl RunningGateway {
    /// The parts behind the listener.
    pub fn core(&self) -> &GatewayCore {
        &self.core
    }

    /// Stops the gateway; whether every running call finished in time.
    pub async fn stop(self) -> bool {
        self.core.stop().await
    }
}
