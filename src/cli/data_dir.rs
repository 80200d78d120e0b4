//! The data directory as commands about agents, keys and budgets use it.
//!
//! What must stay true: agents of the config are never changed here; every change is an event in the
//! audit, in a chain of this process; and once a command has succeeded, every running gateway has
//! read the store again.

mod roll;

use std::{
    ops::Deref,
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
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
    block_on, failed, interrupted, interrupted_again,
    output::{OutputFormat, say},
    suggest::did_you_mean,
    wrong_usage,
};
use crate::{
    app::lost_store,
    audit::{AuditError, AuditEvent, AuditLog, EventKind, IndexLag},
    clock,
    config::{Config, LoadScope},
    control::{self, NotifyOutcome},
    governance::InvalidTerms,
    store::{FILE_NAME, Store, StoreError, StoredRows},
};
pub(super) use roll::{AgentOrigin, KnownAgents};

/// Who makes the changes, as the audit names them.
const ACTOR: &str = "cli";

/// What follows when a gateway is not told of a change.
const NOT_IN_FORCE: &str = "the change, which is written, may not be in force there";

/// How far the change of a command has come.
#[derive(Debug, Default)]
struct Change {
    /// Held while something is changed and recorded.
    under_way: Mutex<()>,
    /// Whether there is a change of which running gateways may not have heard yet.
    is_untold: AtomicBool,
}

/// The store and the agents, open.
#[derive(Debug)]
pub(super) struct DataDir {
    roll: KnownAgents,
    pub(super) store: Store,
    change: Arc<Change>,
    /// What stands in for the data directory while nothing is kept there.
    _empty: Option<TempDir>,
}

impl Deref for DataDir {
    type Target = KnownAgents;

    fn deref(&self) -> &KnownAgents {
        &self.roll
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
    /// A thread that read or wrote files was ended.
    #[error("reading or writing files was broken off")]
    Broken,
    /// There is no place for a store that is empty. The operator mends the system.
    #[error("no directory for temporary files can be made: {0}")]
    Place(std::io::Error),
    /// There is no key to be made. The operator mends the system.
    #[error("the system has no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// A key that was shown could not be stored. The operator mends the store.
    #[error("the key that was shown opens nothing, since it could not be stored: {source}")]
    Stillborn {
        /// What was in the way.
        source: StoreError,
    },
    /// The store. The operator mends it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An agent's terms cannot be used. Who wrote them mends them.
    #[error("the agent's terms cannot be used: {0}")]
    Terms(#[from] InvalidTerms),
    /// A key could not be written to stdout. Whoever reads that mends it.
    #[error("the key could not be written to stdout, so that nobody has seen it: it opens nothing")]
    Unseen,
    /// What was asked for does not exist or cannot be. Who asked mends it.
    #[error("{0}")]
    Usage(String),
}

impl CommandError {
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Says what is wrong.
    pub(super) fn say(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Terms(_) | Self::Store(StoreError::NameTaken { .. }) => {
                wrong_usage(&self.to_string())
            }
            Self::Audit(_)
            | Self::Index(_)
            | Self::Broken
            | Self::Place(_)
            | Self::Random(_)
            | Self::Stillborn { .. }
            | Self::Store(_)
            | Self::Unseen => failed(self),
        }
    }
}

/// What a command does with the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Intent {
    /// It changes it.
    Change,
    /// It reads it: where there is none, none is made, which might be of the wrong user or in the wrong
    /// place.
    Look,
}

/// Reads the config, opens the store and does `work`, to which servers and keys of the config are
/// nothing but names; what goes wrong is said.
pub(super) fn with(
    args: &ConfigArgs,
    form: OutputFormat,
    intent: Intent,
    work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    with_config(
        args.load_quietly_for(LoadScope::Books, form),
        args,
        intent,
        work,
    )
}

/// The same for `work` that needs all that is written of servers.
pub(super) fn with_servers(
    args: &ConfigArgs,
    form: OutputFormat,
    intent: Intent,
    work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    with_config(args.load_quietly(form), args, intent, work)
}

fn with_config(
    config: Result<Config, ExitCode>,
    args: &ConfigArgs,
    intent: Intent,
    work: impl AsyncFnOnce(&DataDir) -> Result<ExitCode, CommandError>,
) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let files = args.files();
    let change = Arc::<Change>::default();
    run_unless_interrupted(&change, async {
        let books = DataDir::open(config, files, intent, &change).await?;
        let done = work(&books).await;
        books.store.close().await;
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
    let config = match args.load_quietly_for(LoadScope::Books, form) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let files = args.files();
    run(async {
        say_if_lost(&config);
        let store = open_index(&config, say_unknown).await;
        let stored = match &store {
            Some(store) => store.agents.agents().await,
            None => Ok(StoredRows::default()),
        };
        let stored = stored.inspect_err(say_unknown).unwrap_or_default();
        let done = work(&KnownAgents::new(config, files, stored), store.as_ref()).await;
        if let Some(store) = &store {
            store.close().await;
        }
        done
    })
}

/// Says that agents of the store are names like any other.
fn say_unknown(error: &StoreError) {
    say(&format!(
        "the store, with its agents and the index of the audit, is left aside: {error}\n"
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

fn say_if_lost(config: &Config) {
    if let Some(lost) = lost_store(&config.data_dir) {
        say(&format!("{lost}\n"));
    }
}

/// Does `work`, which changes nothing, until it ends or somebody interrupts it; what goes wrong is said.
pub(super) fn run(work: impl Future<Output = Result<ExitCode, CommandError>>) -> ExitCode {
    run_unless_interrupted(&Change::default(), work)
}

/// The same for `work` that makes `change`. Who interrupts it once waits until that is recorded: the
/// audit must not lack a change, nor have one that never was.
fn run_unless_interrupted(
    change: &Change,
    work: impl Future<Output = Result<ExitCode, CommandError>>,
) -> ExitCode {
    block_on(1, async {
        let mut work = pin!(work);
        tokio::select! {
            done = &mut work => return done.unwrap_or_else(|failure| failure.say()),
            () = interrupted() => {}
        }
        let is_changing = change.under_way.try_lock().is_err();
        if is_changing {
            say("interrupted: what has begun is recorded first; a second time ends it at once\n");
        }
        let mut again = pin!(interrupted_again());
        let cut_off = ExitCode::from(EXIT_INTERRUPTED);
        let ended = tokio::select! {
            biased;
            _ = change.under_way.lock() => None,
            () = &mut again => Some(cut_off),
            done = &mut work => Some(done.unwrap_or_else(|failure| failure.say())),
        };
        if let Some(code) = ended {
            return code;
        }
        if change.is_untold.load(Relaxed) {
            say(&format!(
                "interrupted before a gateway was told: {NOT_IN_FORCE}\n"
            ));
        } else if is_changing {
            // It failed, and why is on its way.
            return tokio::select! {
                () = again => cut_off,
                done = work => done.unwrap_or_else(|failure| failure.say()),
            };
        }
        cut_off
    })
}

impl DataDir {
    async fn open(
        config: Config,
        files: Vec<PathBuf>,
        intent: Intent,
        change: &Arc<Change>,
    ) -> Result<Self, CommandError> {
        say_if_lost(&config);
        let is_missing = matches!(config.data_dir.join(FILE_NAME).try_exists(), Ok(false));
        let empty = (intent == Intent::Look && is_missing).then(TempDir::new);
        let empty = empty.transpose().map_err(CommandError::Place)?;
        let place = empty.as_ref().map_or(&*config.data_dir, TempDir::path);
        let store = Store::open(place).await?;
        let stored = store.agents.agents().await?;
        Ok(Self {
            roll: KnownAgents::new(config, files, stored),
            store,
            change: Arc::clone(change),
            _empty: empty,
        })
    }

    /// Makes a change and records it, then tells every running gateway; whether all of them know.
    ///
    /// The chain of this process is begun first, so that nothing is changed that cannot be recorded.
    pub(super) async fn change(
        &self,
        notes: &[Note],
        work: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<bool, CommandError> {
        let held = self.change.under_way.lock().await;
        let log = self.begin_chain().await?;
        let changed = match work.await {
            Ok(()) => record(&log, notes).await.map_err(CommandError::from),
            Err(error) => Err(error.into()),
        };
        self.end_change(held, log, changed).await
    }

    /// The same for what must not be there without its record: that is kept before the `work`, and where
    /// this fails, what is `otherwise` true is recorded too.
    pub(super) async fn change_once_recorded(
        &self,
        note: Note,
        work: impl Future<Output = Result<(), CommandError>>,
        otherwise: Note,
    ) -> Result<bool, CommandError> {
        let held = self.change.under_way.lock().await;
        let log = self.begin_chain().await?;
        let changed = match record(&log, &[note]).await {
            Ok(()) => work.await,
            Err(error) => Err(error.into()),
        };
        if changed.is_err() {
            // What failed first is what people are told.
            drop(record(&log, &[otherwise]).await);
        }
        self.end_change(held, log, changed).await
    }

    /// Ends the chain of a change that is recorded, or failed; one that is made is told.
    async fn end_change(
        &self,
        held: MutexGuard<'_, ()>,
        log: Arc<AuditLog>,
        changed: Result<(), CommandError>,
    ) -> Result<bool, CommandError> {
        let closed = blocking(move || log.close()).await?;
        changed?;
        closed?;
        self.change.is_untold.store(true, Relaxed);
        drop(held);
        // Whoever has interrupted the command ends it here.
        yield_now().await;
        Ok(self.tell_of_change().await)
    }

    async fn begin_chain(&self) -> Result<Arc<AuditLog>, CommandError> {
        let (log_dir, audit) = (self.log_dir(), self.config.audit);
        let log = blocking(move || AuditLog::open(&log_dir, audit)).await??;
        Ok(Arc::new(log))
    }

    /// Tells every running gateway of a change, as [`Self::tell`] does, and people where there is
    /// none: the one that they see running may use another directory.
    pub(super) async fn tell_of_change(&self) -> bool {
        let told = self.tell_all(NOT_IN_FORCE).await;
        self.change.is_untold.store(false, Relaxed);
        if told == NotifyOutcome::default() {
            let dir = self.config.data_dir.display();
            say(&format!(
                "no running gateway uses {dir}: the change counts once one starts with it\n"
            ));
        }
        told.failures.is_empty()
    }

    /// Tells every running gateway to read the store again, and to say there what it has spent;
    /// whether all of them have. Where one has not, people are told what follows.
    pub(super) async fn tell(&self, otherwise: &str) -> bool {
        self.tell_all(otherwise).await.failures.is_empty()
    }

    async fn tell_all(&self, otherwise: &str) -> NotifyOutcome {
        let told = control::tell_all(&self.config.data_dir).await;
        for failure in &told.failures {
            say(&format!(
                "a running gateway does not answer, so that {otherwise}: {failure}\n"
            ));
        }
        told
    }
}

/// What the audit says of a change.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) event: EventKind,
    pub(super) subject: String,
    pub(super) detail: String,
}

async fn record(log: &AuditLog, notes: &[Note]) -> Result<(), AuditError> {
    for note in notes {
        let event = AuditEvent {
            ts: clock::now(),
            event: note.event,
            subject: note.subject.as_str().into(),
            actor: Some(ACTOR.into()),
            detail: Some(note.detail.as_str().into()),
        };
        log.event(&event).kept().await?;
    }
    Ok(())
}

/// Does what waits for files.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CommandError> {
    spawn_blocking(work).await.map_err(|_| CommandError::Broken)
}

/// Complains about a name that nothing has; `otherwise` helps where there are none.
pub(super) fn unknown(what: &str, name: &str, known: &[&str], otherwise: &str) -> CommandError {
    let ending = match did_you_mean(name, known.iter().map(|name| [*name])) {
        near if !near.is_empty() => near,
        _ if known.is_empty() => format!("; there are none: {otherwise}"),
        _ => format!("; these are: {}", known.join(", ")),
    };
    CommandError::usage(format!("there is no {what} `{name}`{ending}"))
}

/// `code`, unless a running gateway does not know of the change.
pub(super) fn ended(code: ExitCode, told: bool) -> ExitCode {
    if told { code } else { ExitCode::FAILURE }
}
