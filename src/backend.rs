//! The running side of every configured server.
//!
//! [`Backends`], the set of them, changes with the config. [`Backends::forward`] takes an admitted
//! call to its server; [`Backend::list`] and friends are
//! the gateway's own control traffic. Which connection serves a caller is decided by `choice`; how
//! it lives is `supervisor`'s business, how it talks `link`'s.

mod activity;
mod aftermath;
mod breaker;
mod choice;
mod client;
mod clients;
mod control;
mod failure;
mod gate;
pub mod guard;
mod handshake;
mod health;
mod http;
mod instance;
mod life;
mod link;
mod memory;
mod mux;
mod pipe;
mod pool;
mod replicas;
mod report;
mod retire;
mod set;
mod shared;
mod sse;
mod stats;
mod stdio;
mod supervisor;
mod websocket;
mod written;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use arc_swap::Guard;
use tokio::{sync::mpsc, time::Instant};

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
pub use breaker::BreakerReport;
use breaker::{Breaker, Sign};
use choice::{Key, Owner, Served, Wish};
pub use control::{Control, Following, List, ListChanges, Standing, Visit};
pub use failure::Failure;
use gate::{Gate, Seat};
use guard::Guard as ChildGuard;
pub use handshake::Hello;
pub use health::Checks;
use instance::{Connection, Instance, Phase};
use life::Event;
pub use life::{HISTORY_MAX, State, Transition};
use link::{Caller, Deadlines, Exchange};
pub(crate) use pipe::{Line, Lines, push_line};
use pool::Pool;
pub use replicas::ReplicaReport;
use replicas::Replicas;
pub use report::Report;
use retire::Life;
pub use set::{Backends, Replaced, Way};
pub use shared::Reading;
use shared::Shared;
use stats::Running;
pub use stats::Stats;
use stdio::StderrTail;
use supervisor::Maker;
pub use written::Rewrites;
use written::Written;

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
    /// Where the server stood then, where there is one.
    pub state: Option<State>,
    /// Whether there was no connection for it.
    away: bool,
}

impl Unanswered {
    /// A failure before anything was sent.
    fn before(failure: Failure) -> Self {
        Self {
            failure: failure.unsent(),
            delivered: false,
            state: None,
            away: true,
        }
    }

    /// A failure of the exchange itself.
    fn during(failure: Failure) -> Self {
        Self {
            delivered: failure.may_have_arrived(),
            failure,
            state: None,
            away: false,
        }
    }

    /// That a call failed as `first`, was sent once more, and failed as `second`: what it may have
    /// done, it may have done at either time.
    fn twice(first: Failure, second: Failure) -> Self {
        if !first.may_have_arrived() {
            return Self::during(second);
        }
        if second == Failure::SessionGone {
            // Nothing came of the second attempt, which tells the caller less.
            return Self::during(first);
        }
        Self {
            delivered: true,
            failure: second,
            away: false,
            state: None,
        }
    }

    /// The same of a server in this state.
    fn in_state(self, state: State) -> Self {
        Self {
            state: Some(state),
            ..self
        }
    }

    /// What it says of the server.
    fn sign(&self) -> Sign {
        Sign::of(&self.failure, self.away)
    }
}

/// The running side of one server.
#[derive(Debug)]
pub struct Backend {
    /// Its name.
    pub name: ServerName,
    /// What the config says of it at present.
    written: Arc<Written>,
    life: Life,
    maker: Arc<Maker>,
    catalog: Arc<Instance>,
    listed_at: Mutex<Option<jiff::Timestamp>>,
    breaker: Arc<Breaker>,
    instances: Mutex<HashMap<Key, Arc<Instance>>>,
    /// Where each call has a connection to itself.
    pool: Option<Pool>,
    /// Where the server runs more than once; then it has no connections of its own.
    replicas: Option<Replicas>,
    gate: Arc<Gate>,
    /// Calls that ended, and how.
    pub stats: Stats,
}

impl Backend {
    fn new(
        name: &ServerName,
        config: &Server,
        guard: &ChildGuard,
        updates: &mpsc::Sender<Update>,
        tasks: &Tasks,
    ) -> Self {
        let written = Written::new(config);
        let shared = Arc::new(Shared::new(name, config, updates, tasks.around()));
        let maker = Arc::new(Maker {
            server: name.clone(),
            written: Arc::clone(&written),
            tasks: tasks.clone(),
            guard: guard.clone(),
            stderr: StderrTail::default(),
            odd_output: Arc::default(),
            shared,
        });
        let pool = Pool::of(config);
        let replicas = Replicas::of(config, |called, replica| {
            // Above every level: what it adds to a line is wanted wherever the line is.
            let span = tracing::error_span!("replica", replica = called);
            let replica = Self::new(name, replica, guard, updates, &tasks.within(span));
            replica.maker.shared.join(&maker.shared);
            replica
        });
        let catalog = Instance::new(tasks);
        if !config.enabled {
            catalog.set(Phase::Down {
                failure: Failure::Disabled,
            });
            maker.shared.life.take(Event::SwitchedOff, None);
        }
        Self {
            name: name.clone(),
            breaker: Arc::clone(&maker.shared.breaker),
            gate: Gate::new(config.limits.in_flight, config.limits.queue),
            life: Life::new(),
            written,
            maker,
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
        self.written.now()
    }

    /// What the config says of it at present.
    pub fn written(&self) -> Arc<Server> {
        self.written.load()
    }

    /// Tells when the config says something else of it from now on, while it goes on.
    pub fn rewrites(&self) -> Rewrites {
        self.written.rewrites()
    }

    /// Whether it is to run at all.
    pub fn is_enabled(&self) -> bool {
        self.config().enabled
    }

    /// Takes another config with which it goes on (see [`Server::runs_like`]): what it is asked from
    /// now on keeps to that, and what waits for its turn as well.
    fn rewrite(&self, server: &Server) {
        // Whoever wakes looks at what is set here as well.
        self.written.rewrite(server, || {
            self.gate.set(server.limits.in_flight, server.limits.queue);
            self.breaker.set(server.breaker);
            self.maker.shared.set_starts(server.retry.starts_per_minute);
            if let Some(replicas) = &self.replicas {
                replicas.rewrite(server);
            }
        });
    }

    /// Begins to connect, in the background, unless the server is switched off.
    pub fn start(&self) {
        if !self.is_enabled() {
            return;
        }
        if let Some(replicas) = &self.replicas {
            return replicas.backends().for_each(|replica| replica.start());
        }
        let instance = Arc::clone(&self.catalog);
        self.maker.tasks.spawn(
            "catalog connection",
            Arc::clone(&self.maker).keep_up(instance),
        );
    }

    /// Notes that the server was listed on the connection of `control`.
    pub fn note_listed(&self, control: &Control) {
        *lock(&self.listed_at) = Some(crate::clock::now());
        let Some(owner) = self.owner(control) else {
            return;
        };
        let is_current = || owner.is_current(control);
        let life = &owner.maker.shared.life;
        life.take_if(Event::Listed, None, is_current);
        owner.breaker.is_back();
    }

    /// Notes that the server cannot be listed on the connection of `control`.
    pub fn note_unlisted(&self, control: &Control, failure: &Failure) {
        let event = Event::Unlisted.or_refused(failure);
        let Some(owner) = self.owner(control) else {
            return;
        };
        let is_current = || owner.is_current(control);
        let reason = Some(failure.to_string());
        owner.maker.shared.life.take_if(event, reason, is_current);
    }

    /// Notes that the server stayed away for so long that its items are not listed any more.
    pub fn note_withdrawn(&self) {
        if let Some(replicas) = &self.replicas {
            return replicas
                .backends()
                .for_each(|replica| replica.note_withdrawn());
        }
        let is_away = || match self.catalog.phase() {
            Phase::Connecting | Phase::Down { .. } => true,
            Phase::Asleep(_) | Phase::Ready(_) => false,
        };
        let life = &self.maker.shared.life;
        life.take_if(Event::Withdrawn, None, is_away);
    }

    /// Where the server stands.
    pub fn state(&self) -> State {
        let lead = self.lead();
        lead.work_beside()
            .map_or_else(|| lead.maker.shared.life.state(), |work| work.state)
    }

    /// Counts a call that found no connection to be sent on.
    pub fn note_absence(&self) {
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Why the server will not be listed soon; `None` while it may be. It is woken where it sleeps.
    pub fn obstacle(&self) -> Option<Failure> {
        match self.standing().now() {
            Standing::Asleep => {
                self.lead().catalog.rouse();
                None
            }
            Standing::Connecting => None,
            Standing::Down => match self.lead().catalog.phase() {
                Phase::Down { failure } => Some(failure),
                // It has just come up.
                Phase::Asleep(_) | Phase::Connecting | Phase::Ready(_) => None,
            },
            Standing::Up(_) => (self.state() == State::Degraded).then_some(Failure::Unlisted),
        }
    }

    /// What the server declared on the catalog's connection, and in which revision.
    pub fn capabilities(&self) -> Option<(Raw, Revision)> {
        match self.lead().catalog.phase() {
            Phase::Ready(connection) => Some((
                connection.hello.capabilities.clone(),
                connection.hello.revision,
            )),
            Phase::Asleep(hello) => Some((hello.capabilities.clone(), hello.revision)),
            Phase::Connecting | Phase::Down { .. } => None,
        }
    }

    /// Says that its lists are being read until this is dropped: it does not fall asleep meanwhile.
    pub fn reading(&self) -> Reading {
        self.lead().maker.shared.reading()
    }

    /// What a call that ended with `outcome` says of our credential; of replicas, each has its own.
    fn note_credential(&self, outcome: &Result<Answer, Unanswered>) {
        if self.replicas.is_some() {
            return;
        }
        let shared = &self.maker.shared;
        match outcome {
            Ok(_) if shared.life.state() == State::NeedsReauth => shared.is_well_again(),
            Err(Unanswered {
                failure: refusal @ Failure::Unauthorized { .. },
                ..
            }) => shared.life.take(Event::Refused, Some(refusal.to_string())),
            Ok(_) | Err(_) => {}
        }
    }

    async fn call(&self, admitted: &Admitted) -> Result<Answer, Unanswered> {
        self.call_after(Duration::ZERO, admitted).await
    }

    /// Takes a call of whose time `waited` is gone.
    async fn call_after(
        &self,
        waited: Duration,
        admitted: &Admitted,
    ) -> Result<Answer, Unanswered> {
        // A listen stream is no call that a stop should wait for.
        if admitted.routed().call.method == Method::Listen {
            return self.unguarded(admitted, waited).await;
        }
        let (_seat, waited) = match self.gate.at_hand() {
            Some(seat) => (seat, waited),
            None => Box::pin(self.seat(admitted)).await?,
        };
        let running = Running::start(&self.stats);
        let outcome = self.guarded(admitted, waited).await;
        self.note_credential(&outcome);
        running.finish(outcome.is_ok());
        outcome
    }

    /// Attempts a call where the breaker lets it.
    async fn guarded(&self, admitted: &Admitted, waited: Duration) -> Result<Answer, Unanswered> {
        if let Some(replicas) = &self.replicas {
            // Each of them has a breaker of its own.
            return Box::pin(replicas.call(admitted, waited)).await;
        }
        let passage = self.breaker.enter().map_err(Unanswered::before)?;
        let outcome = self.attempt(admitted, waited).await;
        passage.end(
            outcome
                .as_ref()
                .map_or_else(Unanswered::sign, |_| Sign::Well),
        );
        outcome
    }

    /// Attempts what no breaker stops.
    async fn unguarded(&self, admitted: &Admitted, waited: Duration) -> Result<Answer, Unanswered> {
        match &self.replicas {
            None => self.attempt(admitted, waited).await,
            Some(replicas) => Box::pin(replicas.call(admitted, waited)).await,
        }
    }

    /// A seat at the gate, and how long the call waited for it.
    async fn seat(&self, admitted: &Admitted) -> Result<(Seat, Duration), Unanswered> {
        // Whom the breaker would not let through does not wait for that.
        drop(self.breaker.enter().map_err(Unanswered::before)?);
        let call = &admitted.routed().call;
        let start = Instant::now();
        let patience = self.patience(admitted);
        let latency = self.stats.latency();
        let entry = self
            .gate
            .enter(call.client.agent.id, patience, &call.cancel, latency);
        let seat = entry.await.map_err(Unanswered::before)?;
        Ok((seat, start.elapsed()))
    }

    /// Calls that wait for their turn: at the gate, or for a connection of their own.
    pub fn queued(&self) -> usize {
        self.gate.queued() + self.waiting_for_connections()
    }

    /// Calls under way that do not wait for their turn.
    pub fn in_flight(&self) -> u64 {
        let all = self.stats.in_flight.load(Ordering::Relaxed);
        all.saturating_sub(u64::try_from(self.waiting_for_connections()).unwrap_or(u64::MAX))
    }

    fn waiting_for_connections(&self) -> usize {
        let own = self.pool.as_ref().map_or(0, Pool::waiting);
        let replicas = self.replicas.iter().flat_map(Replicas::backends);
        let theirs = replicas.map(|replica| replica.waiting_for_connections());
        own + theirs.sum::<usize>()
    }

    async fn attempt(&self, admitted: &Admitted, waited: Duration) -> Result<Answer, Unanswered> {
        let call = &admitted.routed().call;
        let patience = self.patience(admitted);
        let limits = if call.method == Method::Listen {
            handshake::UNBOUNDED
        } else {
            self.deadlines(patience, waited)
        };
        let start = Instant::now();
        let wish = Wish {
            client: &call.client,
            method: &call.method,
            until: start + patience,
        };
        // What is rare is boxed: a future is as large as its largest branch, and is moved with it.
        let mut served = if let Some(served) = self.at_hand(&call.client) {
            served
        } else {
            let connection = self.connection(wish);
            let connection = Box::pin(in_time(call, patience, connection)).await;
            connection.map_err(Unanswered::before)?
        };
        if let Some(level) = news_of_level(&served.connection, &call.client) {
            Box::pin(self.raise_level(&served.connection, level)).await;
        }
        served.note_call();
        let outcome = self.exchange(admitted, &served.connection, limits).await;
        let outcome = match outcome {
            Err(failure) if may_repeat(admitted, &failure) => {
                let left = limits.after(start.elapsed());
                let again = match Box::pin(self.once_more(admitted, served, left)).await {
                    Ok(again) => again,
                    Err(why) if failure == Failure::SessionGone => {
                        return Err(Unanswered::before(why));
                    }
                    // What was sent may have had its effect: the caller is told of that.
                    Err(_) => return Err(Unanswered::during(failure)),
                };
                served = again.0;
                again.1.map_err(|second| Unanswered::twice(failure, second))
            }
            outcome => outcome.map_err(Unanswered::during),
        };
        served.instance.touch();
        let outcome = outcome?;
        served.note_answer();
        note_subscription(admitted, &outcome, &served.instance);
        let revision = served.connection.hello.revision;
        let outcome = bridge::outcome(&call.method, outcome, &call.client, revision);
        Ok(Answer { outcome, revision })
    }

    /// Sends a call once more within what is `left` of its time, on a connection that stands.
    async fn once_more(
        &self,
        admitted: &Admitted,
        old: Served,
        left: Deadlines,
    ) -> Result<(Served, Result<Outcome, Failure>), Failure> {
        let call = &admitted.routed().call;
        let start = Instant::now();
        let patience = left.idle.min(self.patience(admitted));
        let mut served = if old.connection.closed().is_cancelled() {
            let wish = Wish {
                client: &call.client,
                method: &call.method,
                until: start + patience,
            };
            in_time(call, patience, self.reconnected(old, wish)).await?
        } else {
            old
        };
        served.note_call();
        let left = left.after(start.elapsed());
        let outcome = self.exchange(admitted, &served.connection, left).await;
        Ok((served, outcome))
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
            invocation: admitted.invocation(),
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

    /// What is listed: the server itself, or one of its replicas.
    fn lead(&self) -> &Self {
        self.replicas.as_ref().map_or(self, Replicas::lead)
    }

    /// The server itself, or the one of its replicas whose connection `control` is now.
    fn owner(&self, control: &Control) -> Option<&Self> {
        let Some(replicas) = &self.replicas else {
            return Some(self);
        };
        let mut replicas = replicas.backends();
        let owner = replicas.find(|replica| replica.is_current(control));
        owner.map(|replica| &**replica)
    }

    fn roots_changed(&self, session: &Session) {
        if let Some(replicas) = &self.replicas {
            return replicas
                .backends()
                .for_each(|replica| replica.roots_changed(session));
        }
        let own = |key: &Key| matches!(&key.owner, Owner::Session(id) if *id == session.id);
        let instances = self.lock();
        let owned = instances.iter().filter(|(key, _)| own(key));
        let mut owned: Vec<_> = owned.map(|(_, instance)| Arc::clone(instance)).collect();
        drop(instances);
        let pooled = self.pool.as_ref().map(|pool| pool.of_session(&session.id));
        owned.extend(pooled.into_iter().flatten());
        for instance in owned {
            if let Phase::Ready(connection) = instance.phase() {
                connection.link.try_notify(notice::ROOTS_CHANGED, None);
            }
        }
    }

    /// How long a call may take without progress: what its tool says, else what the server says.
    fn patience(&self, admitted: &Admitted) -> Duration {
        let tool = admitted.routed().tool.as_ref();
        let config = self.config();
        let of_tool = tool.and_then(|tool| config.tools.timeout.get(&*tool.original));
        of_tool.copied().unwrap_or(config.timeout)
    }

    /// How long a call of a tool that may have one of these names may take without progress.
    pub fn patience_with(&self, tools: &[String]) -> Duration {
        let config = self.config();
        let timeouts = &config.tools.timeout;
        let known = tools.iter().find_map(|tool| timeouts.get(&**tool));
        known.copied().unwrap_or(config.timeout)
    }

    /// The deadlines of a call that may take `idle` without progress and has `waited` already.
    fn deadlines(&self, idle: Duration, waited: Duration) -> Deadlines {
        Deadlines {
            idle,
            total: self
                .config()
                .max_total_timeout
                .max(idle)
                .saturating_sub(waited),
        }
    }
}

/// Whether a call that failed is sent once more: where the server cannot have begun it, since it
/// no longer knew the session or nothing was sent; or where doing it twice is like doing it once.
fn may_repeat(admitted: &Admitted, failure: &Failure) -> bool {
    let is_lost = matches!(failure, Failure::Lost { .. });
    *failure == Failure::SessionGone || is_lost && is_repeatable(admitted)
}

/// Whether a call may be made twice, as its method or its tool says.
fn is_repeatable(admitted: &Admitted) -> bool {
    let routed = admitted.routed();
    match &routed.call.method {
        Method::ToolsCall => routed
            .tool
            .as_ref()
            .is_some_and(|tool| tool.hints.read_only || tool.hints.idempotent),
        Method::Complete
        | Method::Discover
        | Method::Ping
        | Method::PromptsGet
        | Method::PromptsList
        | Method::ResourcesList
        | Method::ResourcesRead
        | Method::ResourcesSubscribe
        | Method::ResourcesUnsubscribe
        | Method::SetLevel
        | Method::TemplatesList
        | Method::ToolsList => true,
        Method::Initialize | Method::Listen | Method::Other(_) => false,
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
        instance.subscribed(&uri);
    } else {
        instance.unsubscribed(&uri);
    }
}
