//! The data directory as commands about agents, keys and budgets use it.
//!
//! What must stay true: agents of the config are never changed here; every change is an event in the
//! audit, in a chain of this process; and once a command has succeeded, every running gateway has
//! read the store again.

mod known_agents;
mod right_place;

use std::{
    ops::Deref,
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use tempfile::TempDir;
use tokio::{
    sync::{Mutex, MutexGuard},
    task::{spawn_blocking, yield_now},
};

use super::{
    EXIT_INTERRUPTED,
    args::ConfigArgs,
    block_on, interrupted,
    output::{OutputFormat, eprint},
    report_failure, second_interrupt,
    suggest::did_you_mean,
    usage_error,
};
use crate::{
    agent_change::{AgentFault, KeyFault},
    app::{StartError, lost_store_warning},
    audit::{AuditError, AuditEvent, AuditLog, ChangedValues, EventKind, IndexLag},
    clock,
    config::{Config, LoadScope},
    config_change::ChangeError,
    control_socket::{self, NotifyOutcome},
    governance::InvalidTerms,
    names::PeerAddress,
    store::{FILE_NAME, Store, StoreError, StoredRows},
};
pub(super) use known_agents::{AgentOrigin, KnownAgents};
use right_place::check_data_dir_owner;
pub(super) use right_place::{check_gateway, check_store_owner};

/// Who makes the changes, as the audit names them.
const AUDIT_ACTOR: &str = "cli";

/// What follows when a gateway is not told of a change.
const NOT_APPLIED_NOTE: &str = "the change was saved but may not be in effect there";

/// How far the change of a command has come.
#[derive(Debug, Default)]
struct PendingChange {
    /// Held while something is changed and recorded.
    lock: Mutex<()>,
    /// Whether there is a change of which running gateways may not have heard yet.
    is_unnotified: AtomicBool,
    /// Gateways that run with it.
    gateways: AtomicUsize,
    /// Whether a gateway could not be told.
    has_failed: AtomicBool,
}

/// The store and the agents, open.
#[derive(Debug)]
pub(super) struct DataDir {
    agents: KnownAgents,
    pub(super) store: Store,
    change: Arc<PendingChange>,
    /// What stands in for the data directory while nothing is kept there.
    _empty: Option<TempDir>,
}

impl Deref for DataDir {
    type Target = KnownAgents;

    fn deref(&self) -> &KnownAgents {
        &self.agents
    }
}

/// Why a command about the data directory does nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The audit. The operator mends it.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The index of the audit. The operator mends it.
    #[error("the index of the audit: {0}")]
    Index(#[from] IndexLag),
    /// An entry of the config cannot be changed. Who asked mends it.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// What stands in for a gateway does not start. The operator mends the system.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A thread that read or wrote files was ended.
    #[error("reading or writing files was interrupted")]
    ThreadPanicked,
    /// There is no place for a store that is empty. The operator mends the system.
    #[error("cannot create a temporary directory: {0}")]
    TempDir(std::io::Error),
    /// There is nothing random to be made. The operator mends the system.
    #[error("cannot get random numbers: {0}")]
    Randomness(#[from] getrandom::Error),
    /// A view was not changed, since it is not what it was. Who asked reads it again.
    #[error("the view was not changed")]
    ViewUnchanged,
    /// There is no key for the agent. Who asked mends it.
    #[error(transparent)]
    NoKey(#[from] KeyFault),
    /// An agent cannot be as it was asked for. Who asked mends it.
    #[error(transparent)]
    Agent(#[from] AgentFault),
    /// A key that was shown could not be stored. The operator mends the store.
    #[error("the key shown is not valid because it could not be stored: {source}")]
    KeyNotStored {
        /// What was in the way.
        source: StoreError,
    },
    /// The store. The operator mends it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An agent's terms cannot be used. Who wrote them mends them.
    #[error("invalid terms of the agent: {0}")]
    Terms(#[from] InvalidTerms),
    /// A key could not be written to stdout. Whoever reads that mends it.
    #[error("cannot write the key to stdout; the key was not activated")]
    KeyNotShown,
    /// What was asked for does not exist or cannot be. Who asked mends it.
    #[error("{0}")]
    Usage(String),
}

impl CommandError {
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Says what is wrong.
    pub(super) fn report(&self) -> ExitCode {
        match self {
            Self::NoKey(KeyFault::Randomness(_)) => report_failure(self),
            Self::Change(_)
            | Self::Usage(_)
            | Self::Agent(_)
            | Self::NoKey(_)
            | Self::Terms(_)
            | Self::ViewUnchanged
            | Self::Store(StoreError::NameTaken { .. }) => usage_error(&self.to_string()),
            Self::Audit(_)
            | Self::Index(_)
            | Self::Start(_)
            | Self::ThreadPanicked
            | Self::TempDir(_)
            | Self::Randomness(_)
            | Self::KeyNotStored { .. }
            | Self::Store(_)
            | Self::KeyNotShown => report_failure(self),
        }
    }
}

/// What a command does with the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AccessMode {
    /// It changes it.
    Change,
    /// It reads it: where there is none, none is made, which might be of the wrong user or in the wrong
    /// place.
    Read,
}

/// Reads the config, opens the store and does `work`, to which servers and keys of the config are
/// nothing but names; what goes wrong is said.
pub(super) fn with_data_dir(
    args: &ConfigArgs,
    form: OutputFormat,
    intent: AccessMode,
    work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    with_shared_data_dir(args, form, intent, async |data_dir| work(data_dir).await)
}

/// The same for `work` that keeps what is open.
pub(super) fn with_shared_data_dir(
    args: &ConfigArgs,
    form: OutputFormat,
    intent: AccessMode,
    work: impl AsyncFnOnce(&Arc<DataDir>) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    with_config(
        args.load_scope_with_quiet_log(LoadScope::DataDir, form),
        args,
        intent,
        work,
    )
}

/// The same for `work` that needs all that is written of servers.
pub(super) fn with_data_dir_and_servers(
    args: &ConfigArgs,
    form: OutputFormat,
    intent: AccessMode,
    work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    let config = args.load_with_quiet_log(form);
    with_config(config, args, intent, async |data_dir| work(data_dir).await)
}

fn with_config(
    config: Result<Config, ExitCode>,
    args: &ConfigArgs,
    intent: AccessMode,
    work: impl AsyncFnOnce(&Arc<DataDir>) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let files = args.files();
    let change = Arc::<PendingChange>::default();
    run_change(&change, async {
        let data_dir = Arc::new(DataDir::open(config, files, intent, &change).await?);
        let done = work(&data_dir).await;
        data_dir.store.close().await;
        done
    })
}

/// Reads the config and does `work`, which is about the audit: that can be read without a store, and is
/// where there is none, or one that cannot be used.
pub(super) fn with_audit(
    args: &ConfigArgs,
    form: OutputFormat,
    work: impl AsyncFnOnce(&KnownAgents, Option<&Store>) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    let config = match args.load_scope_with_quiet_log(LoadScope::DataDir, form) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let files = args.files();
    run_interruptible(async {
        check_data_dir_owner(&config.data_dir)?;
        check_gateway(&config, &files).await?;
        warn_if_store_lost(&config);
        let store = open_index(&config, warn_agents_unknown).await;
        let stored = match &store {
            Some(store) => store.agents.agents().await,
            None => Ok(StoredRows::default()),
        };
        let stored = stored.inspect_err(warn_agents_unknown).unwrap_or_default();
        let done = work(&KnownAgents::new(config, files, stored), store.as_ref()).await;
        if let Some(store) = &store {
            store.close().await;
        }
        done
    })
}

/// Says that agents of the store are names like any other.
fn warn_agents_unknown(error: &StoreError) {
    eprint(&format!(
        "continuing without the store (agents and audit index): {error}\n"
    ));
}

/// The store, for its index of the audit, if there is one and it can be used; `otherwise` says why not.
pub(super) async fn open_index(config: &Config, otherwise: fn(&StoreError)) -> Option<Store> {
    if !config.data_dir.join(FILE_NAME).exists() {
        return None;
    }
    let opened = Store::open(&config.data_dir).await;
    opened.inspect_err(otherwise).ok()
}

fn warn_if_store_lost(config: &Config) {
    if let Some(lost) = lost_store_warning(&config.data_dir) {
        eprint(&format!("{lost}\n"));
    }
}

/// Does `work`, which changes nothing, until it ends or somebody interrupts it; what goes wrong is said.
pub(super) fn run_interruptible(
    work: impl Future<Output = Result<ExitCode, CommandError>>,
) -> ExitCode {
    run_change(&PendingChange::default(), work)
}

/// The same for `work` that makes `change`. Who interrupts it once waits until that is recorded: the
/// audit must not lack a change, nor have one that never was.
fn run_change(
    change: &PendingChange,
    work: impl Future<Output = Result<ExitCode, CommandError>>,
) -> ExitCode {
    block_on(1, async {
        let mut work = pin!(work);
        tokio::select! {
            done = &mut work => return done.unwrap_or_else(|failure| failure.report()),
            () = interrupted() => {}
        }
        let is_changing = change.lock.try_lock().is_err();
        if is_changing {
            eprint("interrupted: finishing the record; interrupt again to stop immediately\n");
        }
        let mut again = pin!(second_interrupt());
        let cut_off = ExitCode::from(EXIT_INTERRUPTED);
        let ended = tokio::select! {
            biased;
            _ = change.lock.lock() => None,
            () = &mut again => Some(cut_off),
            done = &mut work => Some(done.unwrap_or_else(|failure| failure.report())),
        };
        if let Some(code) = ended {
            return code;
        }
        if change.is_unnotified.load(Relaxed) {
            eprint(&format!(
                "interrupted before a gateway was notified: {NOT_APPLIED_NOTE}\n"
            ));
        } else if is_changing {
            // It failed, and why is on its way.
            return tokio::select! {
                () = again => cut_off,
                done = work => done.unwrap_or_else(|failure| failure.report()),
            };
        }
        cut_off
    })
}

impl DataDir {
    async fn open(
        config: Config,
        files: Vec<PathBuf>,
        intent: AccessMode,
        change: &Arc<PendingChange>,
    ) -> Result<Self, CommandError> {
        check_data_dir_owner(&config.data_dir)?;
        check_gateway(&config, &files).await?;
        warn_if_store_lost(&config);
        let is_missing = matches!(config.data_dir.join(FILE_NAME).try_exists(), Ok(false));
        let empty = (intent == AccessMode::Read && is_missing).then(TempDir::new);
        let empty = empty.transpose().map_err(CommandError::TempDir)?;
        let place = empty.as_ref().map_or(&*config.data_dir, TempDir::path);
        let store = Store::open(place).await?;
        let stored = store.agents.agents().await?;
        Ok(Self {
            agents: KnownAgents::new(config, files, stored),
            store,
            change: Arc::clone(change),
            _empty: empty,
        })
    }

    /// The store, with the key of secrets that the config names.
    pub(super) fn store_with_secret_key(&self) -> Result<Store, CommandError> {
        let store = self.store.clone();
        let store = store.with_secret_key(&self.config.secrets.key);
        Ok(store.map_err(StoreError::from)?)
    }

    /// Makes a change and records it, then tells every running gateway; whether all of them know.
    ///
    /// The chain of this process is begun first, so that nothing is changed that cannot be recorded.
    pub(super) async fn apply_change(
        &self,
        notes: &[AuditNote],
        work: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<bool, CommandError> {
        let work = async { Ok(work.await?) };
        self.change_and_record(notes, work).await
    }

    /// The same for `work` that fails otherwise.
    pub(super) async fn change_and_record(
        &self,
        notes: &[AuditNote],
        work: impl Future<Output = Result<(), CommandError>>,
    ) -> Result<bool, CommandError> {
        let held = self.change.lock.lock().await;
        let log = self.start_audit_chain().await?;
        let changed = match work.await {
            Ok(()) => record_notes(&log, notes).await.map_err(CommandError::from),
            Err(error) => Err(error),
        };
        self.finish_change(held, log, changed).await
    }

    /// The same for what must not be there without its record: that is kept before the `work`, and where
    /// this fails, what is `otherwise` true is recorded too.
    pub(super) async fn record_then_change(
        &self,
        note: AuditNote,
        work: impl Future<Output = Result<(), CommandError>>,
        otherwise: AuditNote,
    ) -> Result<bool, CommandError> {
        let held = self.change.lock.lock().await;
        let log = self.start_audit_chain().await?;
        let changed = match record_notes(&log, &[note]).await {
            Ok(()) => work.await,
            Err(error) => Err(error.into()),
        };
        if changed.is_err() {
            // What failed first is what people are told.
            drop(record_notes(&log, &[otherwise]).await);
        }
        self.finish_change(held, log, changed).await
    }

    /// Ends the chain of a change that is recorded, or failed; one that is made is told.
    async fn finish_change(
        &self,
        held: MutexGuard<'_, ()>,
        log: Arc<AuditLog>,
        changed: Result<(), CommandError>,
    ) -> Result<bool, CommandError> {
        let closed = blocking(move || log.close()).await?;
        changed?;
        closed?;
        self.change.is_unnotified.store(true, Relaxed);
        drop(held);
        // Whoever has interrupted the command ends it here.
        yield_now().await;
        Ok(self.notify_change().await)
    }

    async fn start_audit_chain(&self) -> Result<Arc<AuditLog>, CommandError> {
        let (log_dir, audit) = (self.log_dir(), self.config.audit);
        let log = blocking(move || AuditLog::open(&log_dir, audit)).await??;
        Ok(Arc::new(log))
    }

    /// Tells every running gateway of a change, as [`Self::notify_gateways`] does, and people where there is
    /// none: the one that they see running may use another directory.
    pub(super) async fn notify_change(&self) -> bool {
        let outcome = self.notify_all(NOT_APPLIED_NOTE).await;
        self.change.is_unnotified.store(false, Relaxed);
        self.change.gateways.store(outcome.gateways, Relaxed);
        let has_failed = !outcome.failures.is_empty();
        self.change.has_failed.store(has_failed, Relaxed);
        if outcome == NotifyOutcome::default() {
            let dir = self.config.data_dir.display();
            eprint(&format!(
                "no gateway is running on {dir}: the change applies at the next start\n"
            ));
        }
        outcome.failures.is_empty()
    }

    /// How many gateways run with the last change, and whether one could not be told of it.
    pub(super) fn last_change(&self) -> (usize, bool) {
        let change = &self.change;
        (
            change.gateways.load(Relaxed),
            change.has_failed.load(Relaxed),
        )
    }

    /// Tells every running gateway to read the store again, and to say there what it has spent;
    /// whether all of them have. Where one has not, people are told what follows.
    pub(super) async fn notify_gateways(&self, otherwise: &str) -> bool {
        self.notify_all(otherwise).await.failures.is_empty()
    }

    async fn notify_all(&self, otherwise: &str) -> NotifyOutcome {
        let outcome = control_socket::notify_all(&self.config.data_dir).await;
        for failure in &outcome.failures {
            eprint(&format!(
                "a running gateway does not respond; {otherwise}: {failure}\n"
            ));
        }
        outcome
    }
}

/// What the audit says of a change.
#[derive(Clone, Debug)]
pub(super) struct AuditNote {
    pub(super) event: EventKind,
    pub(super) subject: String,
    pub(super) detail: String,
    pub(super) changes: ChangedValues,
}

async fn record_notes(log: &AuditLog, notes: &[AuditNote]) -> Result<(), AuditError> {
    let user = PeerAddress::User(rustix::process::getuid().as_raw());
    let actor = format!("{AUDIT_ACTOR} from {user}");
    for note in notes {
        let event = AuditEvent {
            ts: clock::now(),
            event: note.event,
            subject: note.subject.as_str().into(),
            actor: Some(actor.as_str().into()),
            detail: Some(note.detail.as_str().into()),
            changes: note.changes.clone(),
        };
        log.record_event(&event).durable().await?;
    }
    Ok(())
}

/// Does what waits for files.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CommandError> {
    spawn_blocking(work)
        .await
        .map_err(|_| CommandError::ThreadPanicked)
}

/// Complains about a name that nothing has; `otherwise` helps where there are none.
pub(super) fn unknown_name(
    what: &str,
    name: &str,
    known: &[&str],
    otherwise: &str,
) -> CommandError {
    let ending = match did_you_mean(name, known.iter().map(|name| [*name])) {
        near if !near.is_empty() => near,
        _ if known.is_empty() => format!("; none exist: {otherwise}"),
        _ => format!("; these are: {}", known.join(", ")),
    };
    CommandError::usage(format!("unknown {what} `{name}`{ending}"))
}

/// `code`, unless a running gateway does not know of the change.
pub(super) fn exit_code(code: ExitCode, is_notified: bool) -> ExitCode {
    if is_notified { code } else { ExitCode::FAILURE }
}
