//! The data directory as commands about agents, keys and budgets use it.
//!
//! What must stay true: agents of the config are never changed here; every change is an event in the
//! audit, in a chain of this process; and once a command has succeeded, every running gateway has
//! read the store again.

use std::{collections::HashSet, path::PathBuf, process::ExitCode, sync::Arc};

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::{
    EXIT_INTERRUPTED,
    args::ConfigArgs,
    block_on, failed, interrupted,
    nearest::did_you_mean,
    output::{Form, say},
    wrong_usage,
};
use crate::{
    app::lost_store,
    audit::{AuditError, Behind, Event, EventKind, Log},
    auth::{ANONYMOUS, Agent, Directory},
    clock,
    config::{Authentication, Config, Use},
    control::{self, Told},
    governance::{InvalidTerms, policy::TooLarge},
    names::AgentId,
    store::{FILE_NAME, Store, StoreError, StoredAgent},
};

/// Who makes the changes, as the audit names them.
const ACTOR: &str = "cli";

/// What follows when a gateway is not told of a change.
const NOT_IN_FORCE: &str = "the change, which is written, may not be in force there";

/// The store and the agents, open.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) config: Config,
    /// The files that the config was read from.
    files: Vec<PathBuf>,
    pub(super) store: Store,
    /// What stands in for the data directory while nothing is kept there.
    _empty: Option<TempDir>,
    directory: Directory,
    stored: Vec<StoredAgent>,
    shut: HashSet<AgentId>,
}

/// Why a command about the data directory does nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The audit. The operator mends it.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The index of the audit. The operator mends it.
    #[error("the index of the audit: {0}")]
    Index(#[from] Behind),
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
    /// A list is too long. Who wrote it shortens it.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A key could not be written to stdout. Whoever reads that mends it.
    #[error("the key could not be written to stdout, so that nobody has seen it: it opens nothing")]
    Unseen,
    /// What was asked for does not exist or cannot be. Who asked mends it.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Says what is wrong.
    pub(super) fn say(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::TooLarge(_) | Self::Store(StoreError::NameTaken { .. }) => {
                wrong_usage(&self.to_string())
            }
            Self::Audit(_)
            | Self::Index(_)
            | Self::Broken
            | Self::Place(_)
            | Self::Random(_)
            | Self::Stillborn { .. }
            | Self::Store(_)
            | Self::Terms(_)
            | Self::Unseen => failed(self),
        }
    }
}

/// Where an agent is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Origin {
    /// Nowhere: it stands for callers without a key.
    Builtin,
    Config,
    Store,
}

impl Origin {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Config => "config",
            Self::Store => "store",
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
    form: Form,
    intent: Intent,
    work: impl AsyncFnOnce(&Books) -> Result<ExitCode, Failure>,
) -> ExitCode {
    with_config(args.load_quietly_for(Use::Books, form), args, intent, work)
}

/// The same for `work` that needs all that is written of servers.
pub(super) fn with_servers(
    args: &ConfigArgs,
    form: Form,
    intent: Intent,
    work: impl AsyncFnOnce(&Books) -> Result<ExitCode, Failure>,
) -> ExitCode {
    with_config(args.load_quietly(form), args, intent, work)
}

fn with_config(
    config: Result<Config, ExitCode>,
    args: &ConfigArgs,
    intent: Intent,
    work: impl AsyncFnOnce(&Books) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let files = args.files();
    run(async {
        let books = Books::open(config, files, intent).await?;
        let done = work(&books).await;
        books.store.close().await;
        done
    })
}

/// Does `work` until it ends or somebody interrupts it; what goes wrong is said.
pub(super) fn run(work: impl Future<Output = Result<ExitCode, Failure>>) -> ExitCode {
    block_on(1, async {
        tokio::select! {
            done = work => done.unwrap_or_else(|failure| failure.say()),
            () = interrupted() => ExitCode::from(EXIT_INTERRUPTED),
        }
    })
}

impl Books {
    async fn open(config: Config, files: Vec<PathBuf>, intent: Intent) -> Result<Self, Failure> {
        if let Some(lost) = lost_store(&config.data_dir) {
            say(&format!("{lost}\n"));
        }
        let is_missing = matches!(config.data_dir.join(FILE_NAME).try_exists(), Ok(false));
        let empty = (intent == Intent::Look && is_missing).then(TempDir::new);
        let empty = empty.transpose().map_err(Failure::Place)?;
        let place = empty.as_ref().map_or(&*config.data_dir, TempDir::path);
        let store = Store::open(place).await?;
        let agents = config.agents.values().cloned();
        let directory = Directory::new(config.governance.auth, agents);
        let stored = store.agents.agents().await?;
        let loaded = stored.iter().cloned().map(Agent::from).collect();
        directory.load(loaded, Vec::new());
        Ok(Self {
            config,
            files,
            store,
            _empty: empty,
            shut: directory.shut(),
            directory,
            stored,
        })
    }

    /// Where the audit lies.
    pub(super) fn log_dir(&self) -> PathBuf {
        self.config.data_dir.join("audit")
    }

    /// Whether callers have to show a key.
    pub(super) fn asks_for_keys(&self) -> bool {
        self.config.governance.auth == Authentication::Keys
    }

    /// The agents that callers can be, by name.
    pub(super) fn agents(&self) -> Vec<Arc<Agent>> {
        let mut agents = self.directory.agents();
        agents.retain(|agent| agent.id != AgentId::ANONYMOUS || !self.asks_for_keys());
        agents
    }

    /// The agents of the store that those of the config hide.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &StoredAgent> {
        let stored = self.stored.iter();
        stored.filter(|agent| self.directory.is_written(agent.id))
    }

    /// Whether the keys of `id` open nothing, since its agent of the store is disabled and hidden.
    pub(super) fn is_shut(&self, id: AgentId) -> bool {
        self.shut.contains(&id)
    }

    pub(super) fn origin(&self, id: AgentId) -> Origin {
        if id == AgentId::ANONYMOUS {
            Origin::Builtin
        } else if self.directory.is_written(id) {
            Origin::Config
        } else {
            Origin::Store
        }
    }

    /// When an agent of the store was made.
    pub(super) fn created(&self, id: AgentId) -> Option<Timestamp> {
        let stored = self.stored.iter().find(|agent| agent.id == id);
        let stored = stored.filter(|_| self.origin(id) == Origin::Store);
        stored.map(|agent| agent.created)
    }

    /// What people call the agent `id`; the id itself when there is no such agent.
    pub(super) fn name_of(&self, id: AgentId) -> String {
        let agent = self.directory.current(id);
        agent.map_or_else(|| id.to_string(), |agent| agent.name.clone())
    }

    /// The agent that `name` names, or whose id it is.
    pub(super) fn agent(&self, name: &str) -> Result<Arc<Agent>, Failure> {
        let agents = self.directory.agents();
        if let Ok(id) = name.parse::<AgentId>()
            && let Some(agent) = self.directory.current(id)
        {
            return Ok(agent);
        }
        let named = || agents.iter().filter(|agent| agent.name == name);
        let written = named().find(|agent| self.directory.is_written(agent.id));
        if let Some(agent) = written.or_else(|| named().next()) {
            return Ok(Arc::clone(agent));
        }
        let known: Vec<&str> = agents
            .iter()
            .filter(|agent| agent.id != AgentId::ANONYMOUS || !self.asks_for_keys())
            .map(|agent| agent.name.as_str())
            .collect();
        Err(unknown(
            "agent",
            name,
            &known,
            "`tollbridge agents add` makes one",
        ))
    }

    /// The agent `name` of the store; those of the config are refused.
    pub(super) fn stored(&self, name: &str) -> Result<StoredAgent, Failure> {
        let agent = self.agent(name)?;
        match self.origin(agent.id) {
            Origin::Builtin => Err(Failure::usage(format!(
                "what holds for `{ANONYMOUS}`, callers without a key, is written in \
                 `[governance]`; change it there"
            ))),
            Origin::Config => Err(Failure::usage(format!(
                "the agent `{}` is written in {}; change it there{}",
                agent.name,
                self.written_in(),
                self.beside(&agent)
            ))),
            Origin::Store => {
                let stored = self.stored.iter().find(|stored| stored.id == agent.id);
                stored.cloned().ok_or_else(|| {
                    Failure::usage(format!("the agent `{}` is not in the store", agent.name))
                })
            }
        }
    }

    /// How to get at the agent of the store that is called like `written` or has its id.
    fn beside(&self, written: &Agent) -> String {
        let mut stored = self.stored.iter();
        if let Some(hidden) = stored.find(|stored| stored.id == written.id) {
            return format!(
                ". It hides the agent `{}` of the store, which can be changed or removed, with its \
                 keys, once the one of the config has another name or `id`",
                hidden.name
            );
        }
        let mut stored = self.stored.iter();
        let namesake = stored.find(|stored| stored.name == written.name);
        namesake.map_or_else(String::new, |namesake| {
            format!("; the one of the store is {}", namesake.id)
        })
    }

    /// Refuses a name or id that an agent of the config has.
    pub(super) fn refuse_taken(&self, name: &str) -> Result<(), Failure> {
        let id = AgentId::of_name(name);
        let config = self.config.agents.values();
        if config
            .clone()
            .any(|agent| agent.name == name || agent.id == id)
        {
            return Err(Failure::usage(format!(
                "there is already an agent `{name}`, which is written in {}",
                self.written_in()
            )));
        }
        Ok(())
    }

    fn written_in(&self) -> String {
        match self.files.as_slice() {
            [file] => file.display().to_string(),
            _ => "the config".to_owned(),
        }
    }

    /// Makes a change and records it, then tells every running gateway; whether all of them know.
    ///
    /// The chain of this process is begun first, so that nothing is changed that cannot be recorded.
    pub(super) async fn change(
        &self,
        notes: &[Note],
        work: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<bool, Failure> {
        let log = self.begin_chain().await?;
        let changed = match work.await {
            Ok(()) => record(&log, notes).await.map_err(Failure::from),
            Err(error) => Err(error.into()),
        };
        self.end_chain(log, changed).await
    }

    /// The same for what must not be there without its record: that is kept before the `work`, and where
    /// this fails, what is `otherwise` true is recorded too.
    pub(super) async fn change_once_recorded(
        &self,
        note: Note,
        work: impl Future<Output = Result<(), Failure>>,
        otherwise: Note,
    ) -> Result<bool, Failure> {
        let log = self.begin_chain().await?;
        let changed = match record(&log, &[note]).await {
            Ok(()) => work.await,
            Err(error) => Err(error.into()),
        };
        if changed.is_err() {
            // What failed first is what people are told.
            drop(record(&log, &[otherwise]).await);
        }
        self.end_chain(log, changed).await
    }

    async fn begin_chain(&self) -> Result<Arc<Log>, Failure> {
        let (log_dir, audit) = (self.log_dir(), self.config.audit);
        let log = blocking(move || Log::open(&log_dir, audit)).await??;
        Ok(Arc::new(log))
    }

    async fn end_chain(
        &self,
        log: Arc<Log>,
        changed: Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let closed = blocking(move || log.close()).await?;
        changed?;
        closed?;
        Ok(self.tell_of_change().await)
    }

    /// Tells every running gateway of a change, as [`Self::tell`] does, and people where there is
    /// none: the one that they see running may use another directory.
    pub(super) async fn tell_of_change(&self) -> bool {
        let told = self.tell_all(NOT_IN_FORCE).await;
        if told == Told::default() {
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

    async fn tell_all(&self, otherwise: &str) -> Told {
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

async fn record(log: &Log, notes: &[Note]) -> Result<(), AuditError> {
    for note in notes {
        let event = Event {
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
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(|_| Failure::Broken)
}

/// Complains about a name that nothing has; `otherwise` helps where there are none.
pub(super) fn unknown(what: &str, name: &str, known: &[&str], otherwise: &str) -> Failure {
    let ending = match did_you_mean(name, known.iter().map(|name| [*name])) {
        near if !near.is_empty() => near,
        _ if known.is_empty() => format!("; there are none: {otherwise}"),
        _ => format!("; these are: {}", known.join(", ")),
    };
    Failure::usage(format!("there is no {what} `{name}`{ending}"))
}

/// `code`, unless a running gateway does not know of the change.
pub(super) fn ended(code: ExitCode, told: bool) -> ExitCode {
    if told { code } else { ExitCode::FAILURE }
}
