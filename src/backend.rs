//! The running side of every configured server.
//!
//! [`Backends`], the set of them, changes with the config. [`Backends::forward`] takes an admitted
//! call to its server; [`Backend::list`] and friends are
//! the gateway's own control traffic. Which connection serves a caller is decided by `choice`; how
//! it lives is `supervisor`'s business, how it talks `link`'s.

mod activity;
mod aftermath;
mod choice;
mod client;
mod clients;
mod control;
mod failure;
pub mod guard;
mod handshake;
mod http;
mod instance;
mod link;
mod mux;
mod pipe;
mod report;
mod retire;
mod set;
mod shared;
mod sse;
mod stats;
mod stdio;
mod supervisor;
mod websocket;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::mpsc;

use crate::{
    catalog::HeaderParam,
    config::Server,
    governance::Admitted,
    lock::lock,
    mcp::{Era, Level, Logs, Method, Outcome, Raw, Revision, method::notice},
    names::ServerName,
    session::{Call, Client, Session, bridge},
    task::Tasks,
};
use choice::{Key, Owner, Served};
pub use control::{Control, Following, List, ListChanges, Standing};
pub use failure::Failure;
use guard::Guard;
pub use handshake::Hello;
use instance::{Connection, Instance, Phase};
use link::{Caller, Deadlines, Exchange};
pub(crate) use pipe::{Line, Lines, push_line};
pub use report::{Report, State};
use retire::Life;
pub use set::{Backends, Replaced, Way};
use shared::Shared;
use stats::Running;
pub use stats::Stats;
use stdio::StderrTail;
use supervisor::Maker;

/// Pages of one list that are read; a server with more is reported.
pub const PAGES_MAX: usize = 64;
/// Items of one list that are read; a server with more is reported.
pub const ITEMS_MAX: usize = 10_000;

/// A resource of a server was updated.
#[derive(Clone, Debug)]
pub struct Update {
    /// The server.
    pub server: ServerName,
    /// Its URI, in the server's own spelling.
    pub uri: String,
    /// The params of the notification.
    pub params: Raw,
    /// The connection on which it came.
    pub(crate) instance: u64,
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// Its result or error.
    pub outcome: Outcome,
    /// The revision it speaks.
    pub revision: Revision,
}

/// That a server gave no answer.
#[derive(Debug)]
pub struct Unanswered {
    /// Why.
    pub failure: Failure,
    /// Whether the call may have reached the server.
    pub delivered: bool,
}

impl Unanswered {
    /// A failure before anything was sent.
    fn before(failure: Failure) -> Self {
        Self {
            failure,
            delivered: false,
        }
    }

    /// A failure of the exchange itself.
    fn during(failure: Failure) -> Self {
        Self {
            delivered: failure.may_have_arrived(),
            failure,
        }
    }
}

/// The running side of one server.
#[derive(Debug)]
pub struct Backend {
    /// Its name.
    pub name: ServerName,
    /// What it was started with.
    pub config: Arc<Server>,
    life: Life,
    maker: Arc<Maker>,
    catalog: Arc<Instance>,
    listed: Mutex<Listed>,
    instances: Mutex<HashMap<Key, Arc<Instance>>>,
    /// Calls that ended, and how.
    pub stats: Stats,
}

/// The last listing of a server.
#[derive(Clone, Debug, Default)]
struct Listed {
    at: Option<jiff::Timestamp>,
    failure: Option<Failure>,
    /// The credential was refused when a call was last answered.
    refusal: Option<Failure>,
}

impl Backend {
    fn new(
        name: &ServerName,
        config: &Server,
        guard: &Guard,
        updates: &mpsc::Sender<Update>,
        tasks: &Tasks,
    ) -> Self {
        let config = Arc::new(config.clone());
        let shared = Arc::new(Shared::new(name, updates));
        let maker = Arc::new(Maker {
            server: name.clone(),
            config: Arc::clone(&config),
            tasks: tasks.clone(),
            guard: guard.clone(),
            stderr: StderrTail::default(),
            odd_output: Arc::default(),
            shared,
        });
        let catalog = Instance::new(tasks);
        if !config.enabled {
            catalog.set(Phase::Down {
                failure: Failure::Disabled,
            });
        }
        Self {
            name: name.clone(),
            life: Life::new(&config),
            config,
            maker,
            catalog,
            listed: Mutex::default(),
            instances: Mutex::default(),
            stats: Stats::default(),
        }
    }

    /// Begins to connect, in the background, unless the server is switched off.
    pub fn start(&self) {
        if !self.config.enabled {
            return;
        }
        let instance = Arc::clone(&self.catalog);
        self.maker.tasks.spawn(
            "catalog connection",
            Arc::clone(&self.maker).keep_up(instance),
        );
    }

    /// Notes that the server was listed.
    pub fn note_listed(&self) {
        *self.listed() = Listed {
            at: Some(crate::clock::now()),
            failure: None,
            refusal: None,
        };
    }

    /// Notes that the server is connected but cannot be listed.
    pub fn note_unlisted(&self, failure: Failure) {
        self.listed().failure = Some(failure);
    }

    /// What the server declared on the catalog's connection, and in which revision.
    pub fn capabilities(&self) -> Option<(Raw, Revision)> {
        match self.catalog.phase() {
            Phase::Ready(connection) => Some((
                connection.hello.capabilities.clone(),
                connection.hello.revision,
            )),
            Phase::Connecting | Phase::Down { .. } => None,
        }
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        lock(&self.listed)
    }

    async fn call(&self, admitted: &Admitted) -> Result<Answer, Unanswered> {
        // A listen stream is no call that a stop should wait for.
        if admitted.routed().call.method == Method::Listen {
            return self.attempt(admitted).await;
        }
        let running = Running::start(&self.stats);
        let outcome = self.attempt(admitted).await;
        match &outcome {
            Ok(_) => self.listed().refusal = None,
            Err(Unanswered {
                failure: refusal @ Failure::Unauthorized { .. },
                ..
            }) => self.listed().refusal = Some(refusal.clone()),
            Err(_) => {}
        }
        running.finish(outcome.is_ok());
        outcome
    }

    async fn attempt(&self, admitted: &Admitted) -> Result<Answer, Unanswered> {
        let call = &admitted.routed().call;
        let limits = if call.method == Method::Listen {
            handshake::UNBOUNDED
        } else {
            self.deadlines(admitted)
        };
        let patience = self.patience(admitted);
        // What is rare is boxed: a future is as large as its largest branch, and is moved with it.
        let mut served = if let Some(served) = self.at_hand(&call.client) {
            served
        } else {
            let connection = self.connection(&call.client);
            let connection = Box::pin(in_time(call, patience, connection)).await;
            connection.map_err(Unanswered::before)?
        };
        if let Some(level) = news_of_level(&served.connection, &call.client) {
            Box::pin(self.raise_level(&served.connection, level)).await;
        }
        let mut outcome = self.exchange(admitted, &served.connection, limits).await;
        if outcome == Err(Failure::SessionGone) {
            // The server had forgotten the session, or the connection was gone before anything
            // was sent: it cannot have begun the request.
            let again = self.reconnected(&served.connection, &call.client);
            let again = Box::pin(in_time(call, patience, again)).await;
            served = again.map_err(Unanswered::before)?;
            outcome = Box::pin(self.exchange(admitted, &served.connection, limits)).await;
        }
        served.instance.touch();
        let outcome = outcome.map_err(Unanswered::during)?;
        note_subscription(admitted, &outcome, &served.instance);
        let revision = served.connection.hello.revision;
        let outcome = bridge::outcome(&call.method, outcome, &call.client, revision);
        Ok(Answer { outcome, revision })
    }

    /// Asks a legacy server for log messages from `level` on. What others did not ask for is
    /// filtered on the way to them.
    async fn raise_level(&self, connection: &Connection, level: Level) {
        let params = Raw::from_value(&serde_json::json!({ "level": level.as_str() }));
        let request = handshake::control(Method::SetLevel, Some(params));
        let answer = connection.link.request(request);
        let answer = tokio::time::timeout(LEVEL_PATIENCE, answer).await;
        tracing::debug!(server = %self.name, ?answer, "log level set");
    }

    async fn exchange(
        &self,
        admitted: &Admitted,
        connection: &Connection,
        limits: Deadlines,
    ) -> Result<Outcome, Failure> {
        let routed = admitted.routed();
        let call = &routed.call;
        let params = bridge::request(
            routed.params.as_ref(),
            &call.client,
            call.logs,
            connection.era(),
        );
        let header_params = match &params {
            Some(params) if connection.era() == Era::Modern => {
                let value = |param: &HeaderParam| Some((param.header.clone(), param.text(params)?));
                routed.header_params().iter().filter_map(value).collect()
            }
            Some(_) | None => Vec::new(),
        };
        self.stats.note_sent(params.as_ref());
        let caller = Caller {
            client: Arc::clone(&call.client),
            events: call.events.clone(),
            logs: call.logs,
            progress_token: call.progress_token.clone(),
            uris: routed.uris.clone(),
            screens: admitted.screens().cloned(),
        };
        let exchange = Exchange {
            method: call.method.clone(),
            params,
            tool: routed.tool.clone(),
            caller: Some(caller),
            header_params,
            limits,
            cancel: call.cancel.clone(),
        };
        let outcome = connection.link.request(exchange).await;
        if let Ok(outcome) = &outcome {
            self.stats.note_received(outcome);
        }
        outcome
    }

    fn roots_changed(&self, session: &Session) {
        let own = |key: &Key| matches!(&key.owner, Owner::Session(id) if *id == session.id);
        for (_, instance) in self.lock().iter().filter(|(key, _)| own(key)) {
            if let Phase::Ready(connection) = instance.phase() {
                connection.link.try_notify(notice::ROOTS_CHANGED, None);
            }
        }
    }

    /// How long a call may take without progress: what its tool says, else what the server says.
    fn patience(&self, admitted: &Admitted) -> Duration {
        let tool = admitted.routed().tool.as_ref();
        let of_tool = tool.and_then(|tool| self.config.tools.timeout.get(&*tool.original));
        of_tool.copied().unwrap_or(self.config.timeout)
    }

    fn deadlines(&self, admitted: &Admitted) -> Deadlines {
        let idle = self.patience(admitted);
        Deadlines {
            idle,
            total: self.config.max_total_timeout.max(idle),
        }
    }
}

/// How long the first call waits for a server to take its client's log level.
const LEVEL_PATIENCE: Duration = Duration::from_secs(2);

/// Waits `after` for a connection while the client does.
async fn in_time(
    call: &Call,
    after: Duration,
    connection: impl Future<Output = Result<Served, Failure>>,
) -> Result<Served, Failure> {
    tokio::select! {
        biased;
        connection = connection => connection,
        () = call.cancel.cancelled() => Err(Failure::Cancelled),
        () = tokio::time::sleep(after) => Err(Failure::Timeout { after }),
    }
}

/// The level of log messages that the client wants of a legacy server which does not send them yet.
fn news_of_level(connection: &Connection, client: &Client) -> Option<Level> {
    let Logs::From(level) = client.session.as_ref()?.logs() else {
        return None;
    };
    (connection.era() == Era::Legacy && connection.raise_level(level)).then_some(level)
}

/// Notes what the server of a legacy connection has been subscribed to, or not any longer.
fn note_subscription(admitted: &Admitted, outcome: &Outcome, instance: &Instance) {
    let routed = admitted.routed();
    let subscribes = routed.call.method == Method::ResourcesSubscribe;
    if !subscribes && routed.call.method != Method::ResourcesUnsubscribe {
        return;
    }
    let uri = routed.params.as_ref().and_then(|params| params.get("uri"));
    let Some(uri) = uri.as_ref().and_then(Raw::as_text) else {
        return;
    };
    if subscribes && outcome.is_ok() {
        instance.subscribed(uri.into_owned());
    } else {
        instance.unsubscribed(&uri);
    }
}
