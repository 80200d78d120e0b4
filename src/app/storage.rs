//! Opens what is kept in the data directory, sets it in order after a crash, and looks after it in
//! the background.
//!
//! Order at start: the store, our own chain of the audit, what the log lost that its index knows,
//! the chains of processes that died, what these had leased of budgets, the agents. Order at stop,
//! once no call is left: budgets, audit, its index, store.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
};

use super::authorization;
use crate::{
    audit::{self, AuditError, AuditEvent, AuditLog, ChainId, ChangedValues, EventKind, Indexer},
    auth::{Agent, AgentDirectory, ExpiringKey, token::TokenVerifier},
    authorization_server::{self, AuthorizationServer},
    clock,
    config::{Budget, Config},
    escape,
    governance::{self, Seal, budget::Budgets},
    key_file::FileKey,
    lock::lock,
    oauth_client::{GrantStorage, Grants, GrantsParts},
    status::Status,
    store::{FILE_NAME, KeyId, RefusedRow, Store, StoreError, StoredEntry, StoredSecret},
    task::Tasks,
    views::Views,
};

/// How often the index follows the audit.
const INDEX_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked which uses of keys are to be written down.
const KEY_USE_INTERVAL: Duration = Duration::from_secs(5);
/// How often the store is read again although nobody said that it changed.
pub(super) const REREAD_INTERVAL: Duration = Duration::from_secs(10);
/// How long at most nobody looks whether the time of a key has passed: the clock may be set, and a
/// machine may sleep.
const EXPIRY_CHECK_MAX: Duration = Duration::from_secs(60);
/// Before expired views are removed again that could not be.
const VIEW_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Rows of the store that are told of one by one when they are found refused.
const REFUSED_ROWS_LOGGED_MAX: usize = 20;
/// How often it is looked whether the file of the store is still there.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How often it is looked how much room there is for the audit.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How often old segments of the audit are looked for.
const RETIRE_INTERVAL: Duration = Duration::from_secs(3600);

/// What governance keeps, open.
#[derive(Debug)]
pub(super) struct StorageKeeper {
    pub(super) storage: governance::Storage,
    store: Option<Store>,
    /// The built-in authorization server, which keeps everything in the store.
    oauth: Option<Arc<AuthorizationServer>>,
    data_dir: PathBuf,
    /// Rows of the store that count for nothing, of which log and audit have been told.
    refused: Mutex<HashSet<RefusedRow>>,
    /// What the store has for configs, as it was last seen.
    config_input: watch::Sender<ConfigInput>,
    /// Views, as they were last read.
    views: Arc<Views>,
    /// Keys that expire soon, of which the log has been told.
    expiring: Mutex<HashSet<KeyId>>,
    /// What followed the audit until the tasks ended: the last lines come after that.
    indexer: Mutex<Option<Indexer>>,
}

/// What the store has that configs are made of.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ConfigInput {
    secrets: Vec<StoredSecret>,
    pub(super) entries: Vec<StoredEntry>,
}

/// Which changes of what configs are made of are announced to who follows them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NotifiedChanges {
    /// Each.
    All,
    /// None: whoever made it applies it.
    None,
    /// Those of secrets alone.
    Secrets,
}

/// Why the data directory cannot be used; the operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The audit.
    #[error("cannot open the audit log: {0}; set `data_dir`, or `audit.enabled = false`")]
    Audit(#[from] AuditError),
    /// The thread that reads the chains of dead processes ended before it had read them.
    #[error("cannot recover the audit log of crashed processes: {0}")]
    RecoveryPanicked(JoinError),
    /// The system has no random numbers to make a key of.
    #[error("cannot generate a key: {0}")]
    Randomness(#[from] getrandom::Error),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StorageKeeper {
    /// Opens the data directory, where the config needs one. For sessions and listings alone, which a
    /// gateway that `remembers` keeps there, it is used if it can be.
    pub(super) async fn open(config: &Config, remembers: bool) -> Result<Self, DataDirError> {
        let agents = config.agents.values().cloned();
        let directory = Arc::new(AgentDirectory::new(config.governance.auth, agents));
        let governs = needs_store(config);
        let log_dir = config.data_dir.join("audit");
        if let Some(lost) = lost_store_warning(&config.data_dir) {
            tracing::warn!("{lost}");
        }
        let store = if governs {
            Some(open_store(config).await?)
        } else if remembers {
            let opened = open_store(config).await;
            let forgets = |error: &StoreError| {
                tracing::warn!(%error, "sessions and server lists are not persisted");
            };
            opened.inspect_err(forgets).ok()
        } else {
            None
        };
        let audit = Arc::new(AuditLog::open(&log_dir, config.audit)?);
        let budgets = match store.as_ref().filter(|_| governs) {
            Some(store) => {
                // Without an audit nobody can tell what a process that died had spent of its
                // leases: they count as spent.
                let chain = audit.chain().unwrap_or_else(ChainId::generate);
                let budgets = Budgets::new(Arc::clone(&store.leases), &chain.to_string());
                forfeit(&budgets, &audit, store).await?;
                let compared = audit::record_truncations(&audit, &*store.audit).await;
                log_failure("the audit log was not compared with its index", compared);
                reconcile(&budgets, store, log_dir, chain).await?;
                Some(Arc::new(budgets))
            }
            None => None,
        };
        let oauth = store.as_ref().map(AuthorizationServer::new).map(Arc::new);
        let seal = create_seal(store.as_ref())?;
        let storage = Self {
            storage: governance::Storage {
                directory,
                audit,
                budgets,
                seal,
                tasks: store.as_ref().map(|store| Arc::clone(&store.tasks)),
            },
            store,
            oauth,
            data_dir: config.data_dir.clone(),
            refused: Mutex::default(),
            config_input: watch::Sender::default(),
            views: Arc::default(),
            expiring: Mutex::default(),
            indexer: Mutex::default(),
        };
        storage.reread().await?;
        storage.warn_shadowed_agents();
        Ok(storage)
    }

    /// Says which agents of the store count for nothing, which nobody may have meant.
    pub(super) fn warn_shadowed_agents(&self) {
        for agent in self.storage.directory.shadowed_agents() {
            tracing::warn!(
                agent,
                "the config overrides an agent of the store; stored keys of that agent \
                 authenticate the configured one"
            );
        }
    }

    /// The grants towards servers, as the store has them; the tasks that renew them are of `tasks`.
    pub(super) fn open_grants(&self, tasks: &Tasks) -> Grants {
        let store = self.store.clone();
        let storage = store.map(|store| GrantStorage::new(store, &self.data_dir));
        Grants::new(GrantsParts::new(storage, tasks.clone()))
    }

    /// The built-in authorization server; `None` without a store.
    pub(super) fn oauth(&self) -> Option<&Arc<AuthorizationServer>> {
        self.oauth.as_ref()
    }

    /// What knows its tokens.
    pub(super) fn token_verifier(&self) -> Option<Arc<dyn TokenVerifier>> {
        self.oauth.clone().map(|oauth| oauth as _)
    }

    /// Turns the built-in authorization server on or off.
    pub(super) fn set_oauth(&self, settings: Option<authorization_server::Settings>) {
        if let Some(oauth) = &self.oauth {
            oauth.update_settings(settings);
        }
    }

    /// What outlives the process.
    pub(super) fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// The views of the store.
    pub(super) fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// Tells when something of the store changes that configs are made of.
    pub(super) fn config_input(&self) -> watch::Receiver<ConfigInput> {
        self.config_input.subscribe()
    }

    /// Whether what is open suffices for another config.
    pub(super) fn is_sufficient_for(&self, config: &Config) -> bool {
        self.storage.budgets.is_some() || !needs_store(config)
    }

    /// Reads agents, keys and what configs are made of from the store.
    async fn reread(&self) -> Result<(), StoreError> {
        self.reread_and_tell(NotifiedChanges::All).await.map(drop)
    }

    /// The same for who has changed what configs are made of and applies that: nobody else is told of it.
    pub(super) async fn reread_quietly(&self) -> Result<(), StoreError> {
        self.reread_and_tell(NotifiedChanges::None).await.map(drop)
    }

    /// Whether entries of the config changed.
    async fn reread_and_tell(&self, notified: NotifiedChanges) -> Result<bool, StoreError> {
        let Some(store) = &self.store else {
            return Ok(false);
        };
        self.views.reread(&*store.views).await?;
        let entries = store.entries.entries().await?;
        let input = ConfigInput {
            secrets: store.secrets.secrets().await?,
            entries: entries.rows,
        };
        let mut has_entries = false;
        self.config_input.send_if_modified(|known| {
            has_entries = known.entries != input.entries;
            let is_new = *known != input;
            *known = input;
            is_new
                && match notified {
                    NotifiedChanges::All => true,
                    NotifiedChanges::None => false,
                    NotifiedChanges::Secrets => !has_entries,
                }
        });
        let agents = store.agents.agents().await?;
        let keys = store.keys.keys().await?;
        let refused = agents.refused.into_iter().chain(keys.refused);
        let refused = refused.chain(entries.refused);
        self.report_refused_rows(refused.collect());
        let agents = agents.rows.into_iter().map(Agent::from).collect();
        self.storage.directory.update_store(agents, keys.rows);
        self.log_expiring_keys();
        if let Some(oauth) = &self.oauth {
            let directory = &self.storage.directory;
            let ended = oauth.reread(directory.grants()).await?;
            for grant in &ended.grants {
                directory.end_grant(grant);
            }
            if ended.has_tokens {
                directory.forget_tokens();
            }
        }
        Ok(has_entries)
    }

    /// Tells the log of keys that expire soon, once of each.
    fn log_expiring_keys(&self) {
        let mut reported = lock(&self.expiring);
        for expiring in self.storage.directory.expiring() {
            let ExpiringKey {
                key,
                agent,
                expires,
            } = expiring;
            if reported.insert(key.clone()) {
                tracing::warn!(
                    %key,
                    agent,
                    "API key expires at {expires:.0}; create another with `tollbridge keys create`"
                );
            }
        }
    }

    /// Tells log and audit of rows that are refused, once of each while it is there.
    fn report_refused_rows(&self, refused: HashSet<RefusedRow>) {
        let mut reported = lock(&self.refused);
        let mut new: Vec<&RefusedRow> = refused.difference(&reported).collect();
        new.sort_by_key(|row| row.subject());
        let more = new.len().saturating_sub(REFUSED_ROWS_LOGGED_MAX);
        for row in new.into_iter().take(REFUSED_ROWS_LOGGED_MAX) {
            tracing::error!("{}", escape::escape_controls(&row.to_string(), &[]));
            self.record_store_event(row.subject(), &row.to_string());
        }
        if more > 0 {
            let detail = format!("{more} more rows of agents, keys and config entries are ignored");
            tracing::error!("{detail}: see `agents list` and `keys list`");
            self.record_store_event(FILE_NAME, &detail);
        }
        *reported = refused;
    }

    fn record_store_event(&self, subject: &str, detail: &str) {
        // Kept in order with everything else; nobody waits for it.
        drop(self.storage.audit.record_event(&AuditEvent {
            ts: clock::now(),
            event: EventKind::RowRefused,
            subject: subject.into(),
            actor: None,
            detail: Some(detail.into()),
            changes: ChangedValues::default(),
        }));
    }

    /// Starts what goes on in the background.
    pub(super) fn start(self: &Arc<Self>, status: &Arc<Status>, tasks: &Tasks) {
        let (directory, stop) = (
            Arc::clone(&self.storage.directory),
            tasks.stop_token().clone(),
        );
        tasks.spawn("calls during shutdown", async move {
            stop.cancelled().await;
            directory.revoke_all();
        });
        if let Some(budgets) = &self.storage.budgets {
            budgets.start(tasks);
        }
        if let Some(store) = &self.store {
            let follow = follow_file(store.clone(), Arc::clone(status), tasks.clone());
            tasks.spawn("file of the store", follow);
            tasks.spawn(
                "storage maintenance",
                Arc::clone(self).run_maintenance(tasks.clone()),
            );
            if let Some(oauth) = &self.oauth {
                authorization::spawn_notices(oauth.changes(), self.data_dir.clone(), tasks);
            }
            let expire = Arc::clone(self).run_key_expiry(tasks.clone());
            tasks.spawn("keys that expire", expire);
            let expire = Arc::clone(self).run_view_expiry(store.clone(), tasks.clone());
            tasks.spawn("views that expire", expire);
        }
    }

    /// Whether there is a store, of which commands say that it changed.
    pub(super) fn has_store(&self) -> bool {
        self.store.is_some()
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Reads the store again, and says there what was spent. A revoked key counts as revoked also
    /// where nothing can be written. Whether entries of the config changed, which the caller applies.
    pub(super) async fn refresh(&self) -> Result<bool, String> {
        let reread = self.reread_and_tell(NotifiedChanges::Secrets).await;
        if let Some(budgets) = &self.storage.budgets {
            budgets.refresh().await.map_err(|error| error.to_string())?;
        }
        reread.map_err(|error| error.to_string())
    }

    async fn run_maintenance(self: Arc<Self>, tasks: Tasks) {
        let mut indexer = self.indexer();
        let mut follow = tokio::time::interval(INDEX_INTERVAL);
        let mut touch = tokio::time::interval(KEY_USE_INTERVAL);
        let mut reread = tokio::time::interval(REREAD_INTERVAL);
        let mut look = tokio::time::interval(SPACE_CHECK_INTERVAL);
        let mut retire = tokio::time::interval(RETIRE_INTERVAL);
        loop {
            tokio::select! {
                _ = follow.tick() => if index_some(&mut indexer).await {
                    follow.reset_immediately();
                },
                _ = touch.tick() => self.record_key_uses().await,
                _ = reread.tick() => log_failure("cannot read agents from the \
                    store", self.reread().await),
                _ = look.tick() => if self.check_audit_space().await {
                    retire.reset_immediately();
                },
                _ = retire.tick() => {
                    self.retire_segments().await;
                    self.remove_expired_tokens().await;
                }
                () = tasks.stop_token().cancelled() => break,
            }
        }
        self.record_key_uses().await;
        index_some(&mut indexer).await;
        *lock(&self.indexer) = indexer;
    }

    /// Shows out whoever came in with a key, at the moment its time passes.
    async fn run_key_expiry(self: Arc<Self>, tasks: Tasks) {
        let directory = &self.storage.directory;
        let mut changes = directory.changes();
        loop {
            let left = directory
                .next_expiry()
                .map(|at| time_until(at).min(EXPIRY_CHECK_MAX));
            let passed = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => directory.remove_expired(),
                changed = changes.changed() => if changed.is_err() { return },
                () = tasks.stop_token().cancelled() => return,
            }
        }
    }

    /// Ends views at the moment their time passes.
    async fn run_view_expiry(self: Arc<Self>, store: Store, tasks: Tasks) {
        let mut changes = self.views.changes();
        loop {
            let left = self.views.next_expiry();
            let left = left.map(|at| time_until(at).min(EXPIRY_CHECK_MAX));
            let passed = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => {}
                changed = changes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = tasks.stop_token().cancelled() => return,
            }
            if let Err(error) = self.remove_expired_views(&store).await {
                tracing::warn!(%error, "cannot remove expired views");
                // They are over all the same, for whoever is connected to them too.
                self.views.note_change();
                let pause = tokio::time::sleep(VIEW_RETRY_DELAY);
                tasks.stop_token().run_until_cancelled(pause).await;
            }
        }
    }

    /// Removes views whose time has passed. Of the gateways on the store one does, and records it.
    async fn remove_expired_views(&self, store: &Store) -> Result<(), StoreError> {
        let now = clock::now();
        for view in store.views.remove_expired(now).await? {
            // Kept in order with everything else; nobody waits for it.
            drop(self.storage.audit.record_event(&AuditEvent {
                ts: now,
                event: EventKind::ViewEnded,
                subject: view.id.to_string().into(),
                actor: None,
                detail: Some("expired".into()),
                changes: ChangedValues::default(),
            }));
        }
        self.views.reread(&*store.views).await
    }

    /// What keeps the index of the audit; nothing where there is no audit.
    fn indexer(&self) -> Option<Indexer> {
        let store = self.store.as_ref()?;
        self.storage.audit.chain()?;
        let directory = self.data_dir.join("audit");
        let indexer = Indexer::new(&directory, Arc::clone(&store.audit));
        Some(indexer.with_log(Arc::clone(&self.storage.audit)))
    }

    /// Notes which keys were used.
    async fn record_key_uses(&self) {
        if let Some(store) = &self.store {
            let written = self
                .storage
                .directory
                .uses()
                .write_due(&*store.keys, clock::now());
            log_failure("cannot record key usage", written.await);
        }
    }

    /// Looks how much room there is for the audit; whether it takes more than it is to keep.
    async fn check_audit_space(&self) -> bool {
        let audit = Arc::clone(&self.storage.audit);
        let looked = spawn_blocking(move || audit.check_space()).await;
        if let Ok(looked) = looked {
            log_failure("cannot determine free space for the audit log", looked);
        }
        self.storage.audit.exceeds_retention_size()
    }

    /// Removes what the audit no longer has to keep.
    async fn retire_segments(&self) {
        let audit = Arc::clone(&self.storage.audit);
        let retired = spawn_blocking(move || audit.retire(clock::now())).await;
        let retired = match retired {
            Ok(Ok(retired)) => retired,
            Ok(Err(error)) => return tracing::warn!(%error, "cannot remove old audit records"),
            Err(error) => return tracing::warn!(%error, "cannot remove old audit records"),
        };
        let Some(store) = &self.store else { return };
        for segment in retired {
            let removed = store
                .audit
                .remove_segment(&segment.chain.to_string(), u64::from(segment.segment))
                .await;
            log_failure(
                "cannot remove deleted records from the audit index",
                removed,
            );
        }
    }

    /// Removes tokens and grants of OAuth clients whose time has passed.
    async fn remove_expired_tokens(&self) {
        if let Some(oauth) = &self.oauth {
            let removed = oauth.remove_expired(clock::now()).await;
            log_failure("cannot remove expired tokens", removed);
        }
    }

    /// Closes everything, once no call is left. Whether all that was to be recorded is.
    pub(super) async fn close(&self) -> bool {
        if let Some(budgets) = &self.storage.budgets {
            log_failure(
                "cannot settle budgets; will be done at the next start",
                budgets.close().await,
            );
        }
        let audit = Arc::clone(&self.storage.audit);
        let closed = spawn_blocking(move || audit.close()).await;
        let is_recorded = match closed {
            Ok(Ok(())) => true,
            Ok(Err(error)) if error.is_line_loss() => {
                tracing::error!(
                    %error,
                    "audit lines may have been lost; affected calls are charged and recorded as \
                     `interrupted` at the next start"
                );
                false
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the audit log was not closed; will be done at the next \
                    start");
                true
            }
            Err(error) => {
                tracing::error!(%error, "the audit log was not closed");
                false
            }
        };
        // Verification misses what the index knows: it is to know the end of the chain, too.
        let mut indexer = lock(&self.indexer).take();
        index_some(&mut indexer).await;
        if let Some(store) = &self.store {
            store.close().await;
        }
        is_recorded
    }
}

/// Tells log and status when the file of `store` is no longer that of the data directory.
async fn follow_file(store: Store, status: Arc<Status>, tasks: Tasks) {
    let mut look = tokio::time::interval(FILE_CHECK_INTERVAL);
    let mut reported = None;
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = tasks.stop_token().cancelled() => return,
        }
        let looked = store.clone();
        let Ok(looked) = spawn_blocking(move || looked.check_file()).await else {
            continue;
        };
        let error = looked.err().map(|error| error.to_string());
        if error == reported {
            continue;
        }
        if let Some(error) = &error {
            tracing::error!("{error}");
        } else {
            tracing::info!("{FILE_NAME} is in the data directory again");
        }
        status.note_store_error(error.clone());
        reported = error;
    }
}

/// What people are told of `data_dir` where its store was removed, or emptied, and nothing else was.
pub(crate) fn lost_store_warning(data_dir: &Path) -> Option<String> {
    let store = fs::metadata(data_dir.join(FILE_NAME));
    let is_gone = store.map_or_else(
        |error| error.kind() == io::ErrorKind::NotFound,
        |store| store.len() == 0,
    );
    let chains = audit::chains(&data_dir.join("audit"));
    let is_lost = is_gone && chains.is_ok_and(|chains| !chains.is_empty());
    is_lost.then(|| {
        format!(
            "the audit log has records but {FILE_NAME} is missing or empty: stored agents, keys \
             and spending are lost"
        )
    })
}

/// The time until `at`; none when it has passed.
fn time_until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(clock::now())).unwrap_or_default()
}

/// The store, with the key of secrets that `config` names.
async fn open_store(config: &Config) -> Result<Store, StoreError> {
    let store = Store::open(&config.data_dir).await?;
    Ok(store.with_secret_key(&config.secrets.key)?)
}

/// What the states of servers are sealed with: a key that is derived from the one of secrets, where there is a
/// store.
fn create_seal(store: Option<&Store>) -> Result<Seal, getrandom::Error> {
    let key = match store {
        Some(store) => store.derive_secret_key("states of servers"),
        None => FileKey::generate()?.derive("states of servers"),
    };
    Ok(Seal::new(&key))
}

/// Why a gateway of this user could not use the data directory of `config`, where it needs one. Whether it
/// may be written to is tried: permissions alone do not tell. Nothing is left of that.
pub(crate) fn data_dir_error(config: &Config) -> Option<StoreError> {
    if !needs_store(config) {
        return None;
    }
    let path = &config.data_dir;
    if let Err(error) = Store::check_data_dir(path) {
        return Some(error);
    }
    // What is missing is made by the gateway in what is there.
    let there = path.ancestors().find(|path| path.exists())?;
    let trial = there.join(format!(".tollbridge-{}", std::process::id()));
    let tried = fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial));
    tried.err().map(|source| StoreError::Directory {
        path: path.clone(),
        source,
    })
}

fn needs_store(config: &Config) -> bool {
    config.audit.enabled
        || config.governance.auth.identifies_callers()
        || has_budgets(config)
        || !config.secrets.uses.0.is_empty()
}

/// Whether anybody's spending is limited.
fn has_budgets(config: &Config) -> bool {
    let agents = config.agents.values().map(|agent| &agent.terms);
    let profiles = config.profiles.values().map(|profile| &profile.terms);
    let mut terms = agents
        .chain(profiles)
        .chain(std::iter::once(&config.governance.terms));
    let is_limited =
        |budget: &Option<Vec<Budget>>| budget.as_ref().is_some_and(|it| !it.is_empty());
    terms.any(|terms| is_limited(&terms.budget))
        || config.governance.teams.values().any(|it| !it.is_empty())
        || config.servers.values().any(|it| !it.budget.is_empty())
}

/// Lets what processes leased count as spent where their audit lost what they spent of it. This comes
/// before the index forgets what was lost.
async fn forfeit(budgets: &Budgets, audit: &AuditLog, store: &Store) -> Result<(), DataDirError> {
    let lost = audit::truncated_chains(audit, &*store.audit).await;
    // Where it cannot be compared it is said by who does that next.
    for chain in lost.unwrap_or_default() {
        let leases = budgets.forfeit_chain(&chain.to_string()).await?;
        if leases > 0 {
            tracing::warn!(%chain, leases, "audit lines of a process were lost: its budget leases \
                are counted as spent");
        }
    }
    Ok(())
}

/// Ends the chains of dead processes and frees what these had leased but not spent.
async fn reconcile(
    budgets: &Budgets,
    store: &Store,
    log_dir: PathBuf,
    own: ChainId,
) -> Result<(), DataDirError> {
    let directory = log_dir.clone();
    for chain in run_on_thread(move || audit::recover(&directory)).await?? {
        match chain {
            Ok(chain) => {
                tracing::info!(
                    chain = %chain.chain,
                    calls = chain.calls,
                    interrupted = chain.interrupted,
                    torn_bytes = chain.torn_bytes,
                    "recovered audit chain of a crashed process"
                );
                if let Some(damage) = &chain.damage {
                    tracing::error!(chain = %chain.chain, %damage, "damaged audit chain");
                    // Whoever did it may have taken out what was spent.
                    budgets.forfeit_chain(&chain.chain.to_string()).await?;
                    continue;
                }
                budgets
                    .reconcile(&chain.chain.to_string(), &chain.charged)
                    .await?;
            }
            Err(error) => tracing::error!(%error, "cannot close an audit chain"),
        }
    }
    // Chains that were closed by a process which died before it came to the leases.
    for chain in store.leases.chains_with_open_leases().await? {
        let Ok(id) = chain.parse::<ChainId>() else {
            continue;
        };
        if id == own {
            continue;
        }
        let directory = log_dir.clone();
        match run_on_thread(move || audit::chain_total(&directory, id)).await? {
            Ok(Some(total)) if total.ended => {
                budgets.reconcile(&chain, &total.charged).await?;
            }
            // Somebody still writes it, or it was removed: what it leased counts as spent.
            Ok(_) => {}
            Err(error) => tracing::error!(%chain, %error, "cannot read an audit chain"),
        }
    }
    Ok(())
}

/// What `work`, which blocks, makes of it on a thread of its own.
async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DataDirError> {
    spawn_blocking(work)
        .await
        .map_err(DataDirError::RecoveryPanicked)
}

/// Indexes some of the log; whether there is more.
async fn index_some(indexer: &mut Option<Indexer>) -> bool {
    let Some(indexer) = indexer else { return false };
    let turn = indexer.index_round().await;
    let is_more = *turn.as_ref().unwrap_or(&false);
    log_failure("the audit index is not up to date", turn.map(drop));
    is_more
}

/// Logs what failed in the background.
fn log_failure<E: std::fmt::Display>(what: &str, result: Result<(), E>) {
    if let Err(error) = result {
        tracing::warn!(%error, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread that panicked would have found is not taken for nothing.
    #[tokio::test]
    async fn a_recovery_that_breaks_off_stops_the_start() {
        assert_eq!(run_on_thread(|| 1).await.unwrap(), 1);
        let broken = run_on_thread(|| -> u32 { panic!("a fault of the test") }).await;
        assert!(
            matches!(broken, Err(DataDirError::RecoveryPanicked(_))),
            "{broken:?}"
        );
    }
}
