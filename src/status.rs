//! `/status`: how the gateway and every server do, for people and for monitors.

mod connect_page;
mod metrics;
mod page;

use std::sync::{Arc, Mutex, OnceLock};

use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Backend, Confined, ServerState, ServerStatusReport},
    catalog::{Catalog, Kind},
    clock,
    control_socket::GatewayIdentity,
    governance::{self, budget::Budgets},
    limiter::Limiter,
    lock::lock,
    names::{OwnerSet, Scope},
    proxy::Proxy,
    store::GrantOwner,
};
pub use connect_page::render_connect_page;
pub use metrics::MetricsForm;
pub use page::CONTENT_SECURITY_POLICY;

/// Gathers the status.
#[derive(Debug)]
pub struct Status {
    proxy: Arc<Proxy>,
    started: Instant,
    started_at: jiff::Timestamp,
    draining: CancellationToken,
    gateway_identity: OnceLock<GatewayIdentity>,
    config: Mutex<ConfigReport>,
    store_error: Mutex<Option<String>>,
}

/// The whole status.
#[derive(Clone, Debug, Serialize)]
pub struct StatusReport {
    /// Of this program.
    pub version: &'static str,
    /// `serving`, `draining`, `failed` when every enabled server has failed, or `cannot_record` while
    /// calls are refused since they cannot be recorded.
    pub status: &'static str,
    /// RFC 3339.
    pub started_at: String,
    /// Since the start.
    pub uptime_seconds: u64,
    /// Which config runs; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigReport>,
    /// What governance did; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governance: Option<Governed>,
    /// How programs of servers are confined, once one was started; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// What clients take of the process; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProcessUsage>,
    /// How many legacy sessions of HTTP clients are open; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_open: Option<usize>,
    /// Legacy sessions of HTTP clients, the first hundred; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<SessionReport>>,
    /// How many views agents have; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub views: Option<usize>,
    /// What the merged routes list.
    pub listed: ItemCounts,
    /// What each profile lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileReport>,
    /// Every server.
    pub servers: Vec<ServerReport>,
}

/// How programs of servers are confined.
#[derive(Clone, Debug, Serialize)]
pub struct Confinement {
    /// What was done.
    #[serde(flatten)]
    pub confined: Confined,
    /// What the system cannot do.
    pub lacking: Vec<&'static str>,
}

/// Which config runs.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigReport {
    /// The files it was read from.
    pub files: Vec<String>,
    /// When it was read, RFC 3339.
    pub loaded_at: String,
    /// Changed configs that were taken since the start.
    pub reloads: u64,
    /// Keys whose new values count after a restart only.
    pub needs_restart: Vec<&'static str>,
    /// Servers whose former connections finish what they are doing.
    pub ending: Vec<String>,
    /// Why the files as they stand are not what runs.
    pub error: Option<ConfigError>,
}

/// Why a changed config was refused.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigError {
    /// The usual report.
    pub message: String,
    /// The file of the first mistake, where it is in one.
    pub file: Option<String>,
    /// When it was refused first, RFC 3339.
    pub since: String,
}

/// How much of the status somebody may see.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StatusAccess {
    /// Everything of every server.
    Full,
    /// In which state the gateway's servers are, and neither which nor how many things they have: for strangers.
    StatesOnly,
    /// How the gateway's servers do and those of these owners.
    Summary(OwnerSet),
}

impl StatusAccess {
    const fn detail(&self) -> Option<StatusDetail> {
        match self {
            Self::Full => Some(StatusDetail::Full),
            Self::StatesOnly => None,
            Self::Summary(_) => Some(StatusDetail::Summary),
        }
    }

    /// The servers that are seen.
    fn backends(&self, proxy: &Proxy) -> Vec<Arc<Backend>> {
        let mut backends: Vec<_> = proxy.backends().all().collect();
        let store = proxy.catalog_store();
        match self {
            Self::Full => {}
            Self::StatesOnly => backends.retain(|backend| !backend.name.is_owned()),
            Self::Summary(owners) => backends.retain(|it| store.sees(owners, &it.name)),
        }
        backends
    }

    /// What is listed to whom all that is seen is shown.
    fn catalog(&self, proxy: &Proxy) -> Arc<Catalog> {
        let owners = match self {
            Self::Full | Self::StatesOnly => &OwnerSet::default(),
            Self::Summary(owners) => owners,
        };
        proxy.catalog_store().catalog((owners, &Scope::All))
    }
}

/// How much somebody may see of servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StatusDetail {
    /// How they do, without what they wrote, their processes and their clients.
    Summary,
    /// Everything.
    Full,
}

/// The status for strangers.
#[derive(Clone, Debug, Serialize)]
pub struct StatusStates {
    /// As in [`StatusReport`].
    pub status: &'static str,
    /// Every server, in an order that does not tell which.
    pub servers: Vec<StateReport>,
}

/// One server for strangers.
#[derive(Clone, Debug, Serialize)]
pub struct StateReport {
    /// Its state.
    pub state: ServerState,
}

/// Why no clients should be sent here, for anybody who asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotReady {
    /// The disk is full or the audit is gone; the operator can mend that.
    #[error("the audit log is unavailable")]
    AuditUnavailable,
    /// It was told to stop.
    #[error("the gateway is shutting down")]
    Draining,
    /// The status says why; the operator can mend that.
    #[error("all servers have failed")]
    Failed,
    /// The start is not over.
    #[error("no server has been listed yet")]
    NotListedYet,
}

/// What governance did since the start.
#[derive(Clone, Debug, Serialize)]
pub struct Governed {
    /// What was refused, and what would have been.
    #[serde(flatten)]
    pub counts: governance::RefusalCounts,
    /// The chain of the audit that is written; `null` when there is none.
    pub audit_chain: Option<String>,
    /// That disk space for the audit log is low; `null` while there is enough.
    pub audit_warning: Option<String>,
    /// Why no call can be recorded; `null` while the audit can be written.
    pub audit_error: Option<String>,
    /// Records lost because the disk was full for long.
    pub audit_lost: u64,
    /// Why the store did not keep what budgets told it last; `null` once it has.
    pub budget_error: Option<String>,
    /// That the database is no longer in the data directory; `null` while it is.
    pub store_error: Option<String>,
    /// Keys that expire within 30 days.
    pub keys_expiring: Vec<ExpiringReport>,
}

/// A key that expires soon.
#[derive(Clone, Debug, Serialize)]
pub struct ExpiringReport {
    /// Its id.
    pub key: String,
    /// Whose it is.
    pub agent: String,
    /// When, RFC 3339.
    pub expires: String,
}

/// What clients take of the process, and how much of it they may.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProcessUsage {
    /// Open connections.
    pub connections: usize,
    /// How many there may be.
    pub connections_max: usize,
    /// Connections closed at once since their address had as many as it may.
    pub connections_rejected: u64,
    /// Bytes of messages that are held.
    pub bytes_in_flight: usize,
    /// How many may be.
    pub bytes_in_flight_max: usize,
    /// Requests turned away, and answers given up, for want of memory.
    pub bytes_rejected: u64,
}

impl ProcessUsage {
    fn of(limiter: &Limiter) -> Self {
        Self {
            connections: limiter.connections.open(),
            connections_max: limiter.connections.max(),
            connections_rejected: limiter.connections.rejected(),
            bytes_in_flight: limiter.bytes.used(),
            bytes_in_flight_max: limiter.bytes.max(),
            bytes_rejected: limiter.bytes.rejected(),
        }
    }
}

/// One server: how it does, and what it offers.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// How it does.
    #[serde(flatten)]
    pub report: ServerStatusReport,
    /// Whose grant the lists come from, where each agent signs in: `gateway`, or the name of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists_from: Option<String>,
    /// What it offers on its own route.
    pub offers: ItemCounts,
    /// Of which kinds it is not known what it has: `offers` counts what it listed before, if anything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<&'static str>,
    /// Set while what it offers is what it listed before the gateway was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredReport>,
    /// What the check of arguments against input schemas did, where `validate` is on; for those who
    /// may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<governance::input_validation::Validation>,
    /// What is odd about its lists and items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A listing of an earlier process, served until the server has been listed anew.
#[derive(Clone, Debug, Serialize)]
pub struct StoredReport {
    /// When the server was listed, RFC 3339.
    pub listed: String,
    /// How long ago that is.
    pub age_seconds: u64,
}

impl StoredReport {
    fn new(listed: jiff::Timestamp) -> Self {
        let age = clock::now().duration_since(listed).as_secs();
        Self {
            listed: listed.to_string(),
            age_seconds: u64::try_from(age).unwrap_or(0),
        }
    }
}

/// One profile.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileReport {
    /// Its name.
    pub name: String,
    /// What it lists.
    pub listed: ItemCounts,
}

/// Items of each kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ItemCounts {
    /// Tools.
    pub tools: usize,
    /// Resources.
    pub resources: usize,
    /// Resource templates.
    pub templates: usize,
    /// Prompts.
    pub prompts: usize,
}

impl ItemCounts {
    /// The key under which items of `kind` are counted.
    const fn key(kind: Kind) -> &'static str {
        match kind {
            Kind::Tools => "tools",
            Kind::Resources => "resources",
            Kind::Templates => "templates",
            Kind::Prompts => "prompts",
        }
    }
}

/// One session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    /// What the log, the audit and instances of its own call it.
    pub session: String,
    /// Whose it is.
    pub agent: String,
    /// What the client calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<serde_json::Value>,
    /// The revision agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// Calls under way.
    pub in_flight: usize,
}

/// Sessions shown; all are counted.
const SESSIONS_SHOWN: usize = 100;

impl Status {
    /// Begins to count the uptime. `draining` is cancelled when the gateway begins to stop.
    pub fn new(proxy: Arc<Proxy>, draining: CancellationToken) -> Self {
        let started_at = clock::now();
        Self {
            proxy,
            started: Instant::now(),
            started_at,
            draining,
            gateway_identity: OnceLock::new(),
            config: Mutex::new(ConfigReport {
                files: Vec::new(),
                loaded_at: started_at.to_string(),
                reloads: 0,
                needs_restart: Vec::new(),
                ending: Vec::new(),
                error: None,
            }),
            store_error: Mutex::default(),
        }
    }

    /// Notes what is wrong with the file of the store.
    pub fn note_store_error(&self, error: Option<String>) {
        *lock(&self.store_error) = error;
    }

    /// Notes by what commands recognize the gateway.
    pub fn note_gateway_identity(&self, id: GatewayIdentity) {
        // It stays what it is.
        drop(self.gateway_identity.set(id));
    }

    /// By what commands recognize the gateway that answers them.
    pub fn gateway_identity(&self) -> Option<&GatewayIdentity> {
        self.gateway_identity.get()
    }

    /// Notes which files the config was read from.
    pub fn note_files(&self, files: Vec<String>) {
        lock(&self.config).files = files;
    }

    /// Notes that a changed config runs, but for these keys.
    pub fn note_reload(&self, needs_restart: Vec<&'static str>) {
        let mut config = lock(&self.config);
        config.loaded_at = clock::now().to_string();
        config.reloads += 1;
        config.needs_restart = needs_restart;
        config.error = None;
    }

    /// How often a changed config was taken.
    pub fn reloads(&self) -> u64 {
        lock(&self.config).reloads
    }

    /// Notes that a changed config was refused.
    pub fn note_refused(&self, message: String, file: Option<String>) {
        let mut config = lock(&self.config);
        let first = config.error.take().map(|error| error.since);
        config.error = Some(ConfigError {
            message,
            file,
            since: first.unwrap_or_else(|| clock::now().to_string()),
        });
    }

    fn confinement_report(&self) -> Option<Confinement> {
        let confined = self.proxy.backends().confined()?;
        Some(Confinement {
            lacking: confined.missing_features(),
            confined: (*confined).clone(),
        })
    }

    fn config_report(&self) -> ConfigReport {
        let ending = self.proxy.backends().retiring_servers();
        ConfigReport {
            ending: ending.iter().map(ToString::to_string).collect(),
            ..lock(&self.config).clone()
        }
    }

    /// Whether requests can be served: not while draining, nor when every enabled server failed. Lists
    /// are also while calls cannot be recorded.
    pub fn is_serving(&self) -> bool {
        !self.draining.is_cancelled() && !self.all_failed()
    }

    /// Whether the gateway takes new work, can record it, and has lists for clients.
    ///
    /// # Errors
    /// What is in the way.
    pub fn check_ready(&self) -> Result<(), NotReady> {
        self.check_serving()?;
        let patience = self.proxy.settings().first_list_wait;
        if self.proxy.catalog_store().has_lists(patience) {
            Ok(())
        } else {
            Err(NotReady::NotListedYet)
        }
    }

    /// Whether disk space for the audit log is low: calls are still served.
    pub fn is_audit_space_low(&self) -> bool {
        self.proxy.governance().audit().space().is_low()
    }

    /// What keeps calls from being served, if anything does.
    fn check_serving(&self) -> Result<(), NotReady> {
        if self.draining.is_cancelled() {
            Err(NotReady::Draining)
        } else if self.all_failed() {
            Err(NotReady::Failed)
        } else if self.proxy.governance().audit().ready().is_err() {
            Err(NotReady::AuditUnavailable)
        } else {
            Ok(())
        }
    }

    fn all_failed(&self) -> bool {
        let mut enabled = self
            .proxy
            .backends()
            .all()
            .filter(|backend| backend.state() != ServerState::Disabled)
            .peekable();
        enabled.peek().is_some()
            && enabled.all(|backend| match backend.state() {
                ServerState::Failed | ServerState::NeedsReauth => true,
                ServerState::Connected
                | ServerState::Connecting
                | ServerState::Degraded
                | ServerState::Disabled
                | ServerState::Disconnected
                // It waits for a person.
                | ServerState::NeedsSignIn => false,
            })
    }

    /// Whose grant lists come from, by name.
    fn list_source(&self, report: &ServerStatusReport) -> Option<String> {
        let GrantOwner::Agent(id) = report.list_owner? else {
            return Some("gateway".to_owned());
        };
        let agent = self.proxy.governance().directory().current(id);
        Some(agent.map_or_else(|| id.to_string(), |agent| agent.name.clone()))
    }

    /// The status as JSON.
    ///
    /// # Errors
    /// Never, unless we made a mistake.
    pub fn to_json(&self, access: &StatusAccess) -> serde_json::Result<Vec<u8>> {
        match access.detail() {
            Some(detail) => serde_json::to_vec_pretty(&self.overview(access, detail)),
            None => serde_json::to_vec_pretty(&self.states()),
        }
    }

    /// What strangers may see.
    fn states(&self) -> StatusStates {
        let servers = StatusAccess::StatesOnly.backends(&self.proxy).into_iter();
        let mut states: Vec<ServerState> = servers.map(|backend| backend.state()).collect();
        states.sort_by_key(|state| state.as_str());
        let report = |state| StateReport { state };
        StatusStates {
            status: self.status_word(),
            servers: states.into_iter().map(report).collect(),
        }
    }

    /// All servers that may be seen, in this detail.
    fn overview(&self, access: &StatusAccess, detail: StatusDetail) -> StatusReport {
        let catalog = access.catalog(&self.proxy);
        let is_full = detail == StatusDetail::Full;
        let servers = access.backends(&self.proxy).into_iter().map(|backend| {
            let own = self.proxy.catalog_store().catalog_of(&backend.name);
            let offers = own.counts(&backend.name);
            let schemas = self.proxy.catalog_store().schema_problems(&backend.name);
            let problems = own.problems().iter();
            let problems = problems.filter(|problem| problem.server == backend.name);
            let problems = problems.chain(schemas.iter());
            let problems = problems.filter(|_| is_full);
            let report = match detail {
                StatusDetail::Summary => backend.report().without_details(),
                StatusDetail::Full => backend.report(),
            };
            ServerReport {
                lists_from: self.list_source(&report),
                report,
                validation: is_full
                    .then(|| self.proxy.governance().validation(&backend.name))
                    .flatten(),
                offers: ItemCounts {
                    tools: offers.tools,
                    resources: offers.resources,
                    templates: offers.templates,
                    prompts: offers.prompts,
                },
                unlisted: self.unlisted_kinds(&backend),
                stored: self
                    .proxy
                    .catalog_store()
                    .stored_at(&backend.name)
                    .map(StoredReport::new),
                problems: problems.map(ToString::to_string).collect(),
            }
        });
        let profiles = self.proxy.catalog_store().profiles();
        let profiles = profiles.iter().map(|name| ProfileReport {
            name: name.to_string(),
            listed: item_counts(&catalog, &Scope::Profile(name.clone())),
        });
        StatusReport {
            version: env!("CARGO_PKG_VERSION"),
            status: self.status_word(),
            started_at: self.started_at.to_string(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: is_full.then(|| self.config_report()),
            confinement: is_full.then(|| self.confinement_report()).flatten(),
            sessions_open: is_full.then(|| self.proxy.sessions().len()),
            sessions: is_full.then(|| self.session_reports()),
            views: is_full.then(|| self.proxy.catalog_store().views().all().len()),
            governance: is_full.then(|| self.governance_report()),
            limits: is_full.then(|| ProcessUsage::of(self.proxy.limiter())),
            listed: item_counts(&catalog, &Scope::All),
            profiles: profiles.collect(),
            servers: servers.collect(),
        }
    }

    /// The kinds of which it is not known what `backend` has, unless it is to have nothing.
    fn unlisted_kinds(&self, backend: &Backend) -> Vec<&'static str> {
        let catalog_store = self.proxy.catalog_store();
        let is_unlisted = |kind: &Kind| {
            backend.is_enabled() && !catalog_store.has_current_list(&backend.name, *kind)
        };
        let kinds = Kind::ALL.into_iter().filter(is_unlisted);
        kinds.map(ItemCounts::key).collect()
    }

    /// What it does, in a word.
    fn status_word(&self) -> &'static str {
        match self.check_serving() {
            Err(NotReady::AuditUnavailable) => "cannot_record",
            Err(NotReady::Draining) => "draining",
            Err(NotReady::Failed) => "failed",
            Err(NotReady::NotListedYet) | Ok(()) => "serving",
        }
    }

    fn governance_report(&self) -> Governed {
        let governance = self.proxy.governance();
        let audit = governance.audit();
        let expiring = governance.directory().expiring().into_iter();
        let expiring = expiring.map(|it| ExpiringReport {
            key: it.key.to_string(),
            agent: it.agent,
            expires: it.expires.to_string(),
        });
        Governed {
            counts: governance.counts(),
            audit_chain: audit.chain().map(|chain| chain.to_string()),
            audit_warning: audit.space().warning(),
            audit_error: audit.ready().err().map(|error| error.to_string()),
            audit_lost: audit.lost_count(),
            budget_error: governance.budgets().and_then(Budgets::last_error),
            store_error: lock(&self.store_error).clone(),
            keys_expiring: expiring.collect(),
        }
    }

    fn session_reports(&self) -> Vec<SessionReport> {
        let mut reports = Vec::new();
        self.proxy.sessions().for_each(|session| {
            if reports.len() == SESSIONS_SHOWN {
                return;
            }
            let opening = session.client_info();
            reports.push(SessionReport {
                session: session.log_id.clone(),
                agent: session.agent.name.clone(),
                client: opening.as_ref().and_then(|o| o.info.as_ref()?.read().ok()),
                revision: opening.as_ref().map(|opening| opening.revision.as_str()),
                in_flight: session.in_flight(),
            });
        });
        reports
    }

    /// The figures for Prometheus; `streams` are the event streams that clients read.
    pub async fn render_metrics(
        &self,
        access: &StatusAccess,
        streams: u64,
        form: MetricsForm,
    ) -> String {
        metrics::render(self, access, streams, form).await
    }
}

fn item_counts(catalog: &Catalog, scope: &Scope) -> ItemCounts {
    let listed = |kind| catalog.list(scope, kind).len();
    ItemCounts {
        tools: listed(Kind::Tools),
        resources: listed(Kind::Resources),
        templates: listed(Kind::Templates),
        prompts: listed(Kind::Prompts),
    }
}
