//! Several instances of one server: which of them serves a call.
//!
//! Each is a [`Backend`] of its own, with its own connections and its own breaker; the server's
//! backend owns them and asks here. Replicas stand in the order of preference, those of the
//! gateway's own locality first. A session stays on its replica until that is out; a call that
//! never reached one goes to the next at once, and so does one that did where doing it twice does
//! no harm; others fail. What is asked about a task goes to the one that began it, if that was
//! since the start, and to no other: a replica that does not know it would say that there is none.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::select_all;
use globset::GlobMatcher;
use tokio::{sync::Notify, time::Instant};

use super::is_idempotent;
use crate::{
    backend::{
        Answer, Backend, BackendError, CallError, call_health::CallHealth, instance::InstancePhase,
    },
    config::{self, Balance, Condition, Server, ServerLimits, Transport},
    governance::{Admitted, ArgumentTest},
    lock::lock,
    mcp::Raw,
    session::Session,
};
use outlier::Outlier;
pub(crate) use report::ReplicaReport;
use task_owners::{TaskReplicas, referenced_task};

mod outlier;
mod report;
mod task_owners;

/// Sessions whose subscriptions wait to be moved; those of more are not.
const DISPLACED_MAX: usize = 4096;
/// After how many new sessions, as a part of those that are known, the living ones are counted anew: what
/// a session costs does not grow with their number.
const RECOUNT_FRACTION: usize = 64;

/// The replicas of one server.
#[derive(Debug)]
pub(in crate::backend) struct Replicas {
    /// In the order of preference.
    all: Vec<Replica>,
    balance: Balance,
    routes: Vec<ReplicaRoute>,
    affinity: Mutex<Affinity>,
    task_origins: Mutex<TaskReplicas>,
    /// Counts what looks for a replica: of equal ones they have turns.
    round_robin: AtomicUsize,
    /// Tells that a session may have left a replica.
    session_moved: Notify,
}

/// One replica.
#[derive(Debug)]
pub(in crate::backend) struct Replica {
    name: String,
    locality: Option<String>,
    is_local: bool,
    /// How it is reached, without secrets.
    address: String,
    backend: Arc<Backend>,
    outlier: Mutex<Outlier>,
}

/// Calls that certain replicas serve, and no other.
#[derive(Debug)]
struct ReplicaRoute {
    tools: Vec<GlobMatcher>,
    /// `None` holds of every call.
    test: Option<ArgumentTest>,
    replica: String,
}

impl ReplicaRoute {
    /// Only what the config has checked, so that nothing is left out.
    fn new(route: &config::RouteConfig) -> Option<Self> {
        let test = if route.condition == Condition::default() {
            None
        } else {
            Some(ArgumentTest::new(&route.at, &route.condition).ok()?)
        };
        Some(Self {
            tools: route.tools.iter().map(config::name_matcher).collect(),
            test,
            replica: route.to.clone(),
        })
    }

    fn matches(&self, tool: &str, params: Option<&Raw>) -> bool {
        let test = self.test.as_ref();
        self.tools.iter().any(|glob| glob.is_match(tool))
            && test.is_none_or(|test| test.matches(params))
    }
}

/// The replica that each session has been on.
#[derive(Debug)]
struct Affinity {
    sessions: HashMap<String, (Weak<Session>, usize)>,
    /// How many sessions are on each replica; those that have ended since they were last counted too.
    counts: Vec<usize>,
    /// Sessions that may still come to a replica until they are counted anew.
    recount_in: usize,
    /// Those that have left a replica on which they are subscribed to resources, and which.
    displaced: Vec<(Weak<Session>, usize)>,
}

impl Affinity {
    fn new(replicas: usize) -> Self {
        Self {
            sessions: HashMap::new(),
            counts: vec![0; replicas],
            recount_in: 0,
            displaced: Vec::new(),
        }
    }

    /// How many sessions are on each replica.
    fn counts(&mut self) -> Vec<usize> {
        if self.recount_in == 0 {
            self.recount();
        }
        self.counts.clone()
    }

    /// Counts the living sessions, and forgets the others.
    fn recount(&mut self) {
        self.sessions.retain(|_, (session, _)| is_live(session));
        self.counts.fill(0);
        for (_, at) in self.sessions.values() {
            self.counts[*at] += 1;
        }
        self.recount_in = self.sessions.len() / RECOUNT_FRACTION;
    }

    fn note(&mut self, session: &Arc<Session>, replica: usize) {
        let stay = (Arc::downgrade(session), replica);
        let before = self
            .sessions
            .insert(session.id.clone(), stay)
            .map(|(_, at)| at);
        if before == Some(replica) {
            return;
        }
        if let Some(left) = self.recount_in.checked_sub(1) {
            self.recount_in = left;
            self.counts[replica] += 1;
            if let Some(before) = before {
                self.counts[before] = self.counts[before].saturating_sub(1);
            }
        } else {
            self.recount();
        }
        let Some(left) = before.filter(|_| !session.subscriptions().is_empty()) else {
            return;
        };
        if self.displaced.len() == DISPLACED_MAX {
            tracing::warn!(
                session = session.log_id,
                "cannot move subscriptions: too many sessions waiting"
            );
            return;
        }
        self.displaced.push((Arc::downgrade(session), left));
    }
}

fn is_live(session: &Weak<Session>) -> bool {
    let session = session.upgrade();
    session.is_some_and(|session| !session.ended.is_cancelled())
}

/// What decides between replicas that could serve as soon and are as near: the least goes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct ReplicaLoad {
    in_flight: u64,
    /// Sessions that stay there, and will call again.
    sessions: usize,
    /// How far it is from the one whose turn it is.
    distance: usize,
}

impl ReplicaLoad {
    /// That of a replica whose place in the order of preference is all that counts.
    fn by_preference(at: usize) -> Self {
        Self {
            in_flight: 0,
            sessions: 0,
            distance: at,
        }
    }
}

/// Who looks for a replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Requester {
    /// A call that binds nobody to where it goes.
    Call,
    /// A session that will stay.
    Session,
    /// A session that stays where it is.
    Pinned,
}

/// How soon a replica could serve a call, the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Readiness {
    Ready,
    Starting,
    Ejected,
}

impl Replica {
    fn rank(&self, now: Instant) -> Readiness {
        // The breaker counts what `breaker` says, the outlier a single failure: while others serve,
        // it costs nothing to be careful.
        if lock(&self.outlier).is_ejected(now) || self.backend.breaker.is_open() {
            return Readiness::Ejected;
        }
        match self.backend.catalog.phase() {
            InstancePhase::Asleep(_) | InstancePhase::Ready(_) => Readiness::Ready,
            InstancePhase::Connecting => Readiness::Starting,
            InstancePhase::Down { .. } => Readiness::Ejected,
        }
    }

    /// Takes a call, and notes how the replica did.
    async fn call(&self, admitted: &Admitted, waited: Duration) -> Result<Answer, CallError> {
        let outcome = Box::pin(self.backend.call_with_waited(waited, admitted)).await;
        match &outcome {
            Ok(_) => *lock(&self.outlier) = Outlier::default(),
            Err(unanswered) if is_replica_failure(&unanswered.failure) => {
                let ejection = self.backend.load_config().ejection;
                lock(&self.outlier).note_failure(ejection, Instant::now());
            }
            Err(_) => {}
        }
        outcome
    }

    fn has_name(&self, name: &str) -> bool {
        self.name == name || self.locality.as_deref() == Some(name)
    }
}

/// Whether `failure` says that the replica itself is not well. A slow tool is no sign of that.
fn is_replica_failure(failure: &BackendError) -> bool {
    let is_refused = matches!(failure, BackendError::Unauthorized { .. });
    let is_slow = matches!(failure, BackendError::Timeout { .. });
    is_refused || !is_slow && CallHealth::of(failure, true) != CallHealth::Neutral
}

/// Whether another replica may do better after `failure`.
fn may_fail_over(failure: &BackendError) -> bool {
    let is_held_back = matches!(
        failure,
        BackendError::BackingOff { .. }
            | BackendError::BreakerOpen { .. }
            | BackendError::StartsLimited { .. }
    );
    is_held_back || is_replica_failure(failure)
}

/// Whether another replica is asked after `unanswered`, or the same one again: where none took the
/// call, or the one that took it failed and doing it twice is like doing it once.
fn should_fail_over(admitted: &Admitted, unanswered: &CallError) -> bool {
    let failure = &unanswered.failure;
    if !unanswered.delivered {
        return may_fail_over(failure);
    }
    let is_lost = matches!(failure, BackendError::Lost { .. });
    let is_broken =
        matches!(failure, BackendError::Http { status, .. } if status.is_server_error());
    (is_lost || is_broken) && is_idempotent(admitted)
}

/// What a caller is told of two replicas that did not serve its call, where `later` came `after` the
/// other: that which promises the earliest retry, else the last. What one may have done is not hidden.
fn preferred_error(earlier: CallError, after: Duration, later: CallError) -> CallError {
    if earlier.delivered {
        let state = later.state;
        let twice = CallError::after_retry(earlier.failure, later.failure);
        return CallError { state, ..twice };
    }
    let failure = earlier.failure.with_elapsed(after);
    let other = later.failure.retry_after();
    let is_sooner = |wait| other.is_none_or(|other| wait <= other);
    if failure.retry_after().is_some_and(is_sooner) {
        CallError { failure, ..earlier }
    } else {
        later
    }
}

/// The config of one replica of `server`, as if it were a server of its own.
fn replica_config(server: &Server, transport: &Transport) -> Server {
    Server {
        transport: transport.clone(),
        replicas: Vec::new(),
        route: Vec::new(),
        // The server's own gate counts the calls to all of them.
        limits: ServerLimits {
            in_flight: None,
            ..server.limits
        },
        ..server.clone()
    }
}

impl Replicas {
    /// The replicas of `server`, each made by `make` of its name and a config that is reached as it is;
    /// `None` of one that runs only once.
    pub(in crate::backend) fn of(
        server: &Server,
        mut make: impl FnMut(&str, &Server) -> Backend,
    ) -> Option<Self> {
        if server.replicas.is_empty() {
            return None;
        }
        let mut all: Vec<_> = server.replicas.iter().collect();
        // Stable: within a locality the order is that of the config.
        all.sort_by_key(|replica| !replica.is_near);
        let all: Vec<_> = all
            .into_iter()
            .map(|replica| {
                let alone = replica_config(server, &replica.transport);
                Replica {
                    name: replica.name.clone(),
                    locality: replica.locality.clone(),
                    backend: Arc::new(make(&replica.name, &alone)),
                    is_local: replica.is_near,
                    address: replica.transport.to_address(),
                    outlier: Mutex::default(),
                }
            })
            .collect();
        Some(Self {
            affinity: Mutex::new(Affinity::new(all.len())),
            all,
            balance: server.balance,
            routes: server.route.iter().filter_map(ReplicaRoute::new).collect(),
            task_origins: Mutex::default(),
            round_robin: AtomicUsize::new(0),
            session_moved: Notify::new(),
        })
    }

    /// Takes another config of `server`, with which all of them go on.
    pub(in crate::backend) fn update_config(&self, server: &Server) {
        let now = Instant::now();
        for replica in &self.all {
            let transport = replica.backend.load_config().transport.clone();
            replica
                .backend
                .update_config(&replica_config(server, &transport));
            lock(&replica.outlier).set_config(server.ejection, now);
        }
    }

    /// All of them, in the order of preference.
    pub(in crate::backend) fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.all.iter().map(|replica| &replica.backend)
    }

    /// Each, with its name.
    pub(in crate::backend) fn named(&self) -> impl Iterator<Item = (&str, &Backend)> {
        self.all.iter().map(|it| (&*it.name, &*it.backend))
    }

    /// The one that is listed: the first of those that stand best.
    pub(in crate::backend) fn listed(&self) -> &Backend {
        let best = self.backends().min_by_key(|backend| backend.listing_rank());
        best.unwrap_or(&self.all[0].backend)
    }

    /// The one that `session` is on.
    pub(in crate::backend) fn assigned(&self, session: &Session) -> Option<&Arc<Backend>> {
        let at = lock(&self.affinity)
            .sessions
            .get(&session.id)
            .map(|(_, at)| *at);
        at.map(|at| &self.all[at].backend)
    }

    /// The one numbered `at`, in the order of preference.
    pub(in crate::backend) fn at(&self, at: usize) -> Option<&Arc<Backend>> {
        self.all.get(at).map(|replica| &replica.backend)
    }

    /// The one that `session` is on, and from now on stays on: the best where it is on none.
    pub(in crate::backend) fn assigned_or_best(&self, session: &Arc<Session>) -> &Arc<Backend> {
        if let Some(home) = self.assigned(session) {
            return home;
        }
        let at = self.best().unwrap_or(0);
        self.assign(session, at);
        &self.all[at].backend
    }

    /// The one that serves a session best, if any is ready to.
    fn best(&self) -> Option<usize> {
        let now = Instant::now();
        let loads = self.loads(Requester::Session);
        let is_ready = |at: &usize| self.all[*at].rank(now) == Readiness::Ready;
        let ready = (0..self.all.len()).filter(is_ready);
        ready.min_by_key(|at| (!self.all[*at].is_local, loads[*at]))
    }

    /// What each has to do, as far as that decides between them.
    fn loads(&self, requester: Requester) -> Vec<ReplicaLoad> {
        let count = self.all.len();
        if self.balance == Balance::Failover {
            return (0..count).map(ReplicaLoad::by_preference).collect();
        }
        // Once for each session, not for each call.
        let sessions = match requester {
            Requester::Call | Requester::Pinned => vec![0; count],
            Requester::Session => lock(&self.affinity).counts(),
        };
        let turn = match requester {
            Requester::Call | Requester::Session => {
                self.round_robin.fetch_add(1, Ordering::Relaxed)
            }
            Requester::Pinned => 0,
        };
        let load = |(at, sessions)| ReplicaLoad {
            in_flight: self.in_flight(at),
            sessions,
            distance: (at + count - turn % count) % count,
        };
        sessions.into_iter().enumerate().map(load).collect()
    }

    fn in_flight(&self, at: usize) -> u64 {
        let stats = &self.all[at].backend.stats;
        stats.in_flight.load(Ordering::Relaxed)
    }

    fn assign(&self, session: &Arc<Session>, at: usize) {
        let mut affinity = lock(&self.affinity);
        affinity.note(session, at);
        if !affinity.displaced.is_empty() {
            self.session_moved.notify_one();
        }
    }

    /// The sessions that have left a replica on which they are subscribed to resources, since it was
    /// lost or since a call of theirs went elsewhere, each with the number of that replica; as soon
    /// as there are any. For one caller at a time.
    pub(in crate::backend) async fn displaced_sessions(&self) -> Vec<(Arc<Session>, usize)> {
        loop {
            // Before looking, so that no change is missed.
            let mut phases: Vec<_> = self.backends().map(|it| it.catalog.subscribe()).collect();
            self.release_lost();
            let displaced = std::mem::take(&mut lock(&self.affinity).displaced);
            let living = displaced.into_iter().filter_map(|(session, left)| {
                let session = session.upgrade()?;
                (!session.ended.is_cancelled()).then_some((session, left))
            });
            let living: Vec<_> = living.collect();
            if !living.is_empty() {
                return living;
            }
            let changes = phases.iter_mut().map(|phase| Box::pin(phase.changed()));
            tokio::select! {
                _ = select_all(changes) => {}
                () = self.session_moved.notified() => {}
            }
        }
    }

    /// Lets sessions that only listen leave a replica that is lost: no call of theirs would.
    fn release_lost(&self) {
        let is_lost = |at: usize| {
            matches!(
                self.all[at].backend.catalog.phase(),
                InstancePhase::Down { .. }
            )
        };
        let Some(best) = self.best() else { return };
        let affinity = lock(&self.affinity)
            .sessions
            .values()
            .cloned()
            .collect::<Vec<_>>();
        for (session, _) in affinity.into_iter().filter(|(_, at)| is_lost(*at)) {
            if let Some(session) = session.upgrade()
                && !session.ended.is_cancelled()
                && !session.subscriptions().is_empty()
            {
                self.assign(&session, best);
            }
        }
    }

    /// Takes a call to a replica; to the next where it did not reach one, or the one is lost and the
    /// call may be made twice. Where no other takes it, the one that was lost may be back.
    pub(in crate::backend) async fn call(
        &self,
        admitted: &Admitted,
        waited: Duration,
    ) -> Result<Answer, CallError> {
        let call = &admitted.routed().call;
        let session = call.client.session.as_ref();
        let start = Instant::now();
        // What the caller is told where none takes it, as it was heard then.
        let mut last = CallError::before_send(BackendError::UnknownServer);
        let mut heard = start;
        let route = self.route(admitted);
        let origin = referenced_task(admitted).and_then(|task| lock(&self.task_origins).at(&task));
        let candidates = origin.map_or_else(|| self.candidates(admitted, route), |at| vec![at]);
        let mut candidates = VecDeque::from(candidates);
        while let Some(at) = candidates.pop_front() {
            let replica = &self.all[at];
            match replica.call(admitted, waited + start.elapsed()).await {
                Err(unanswered) if should_fail_over(admitted, &unanswered) => {
                    let is_lost = matches!(unanswered.failure, BackendError::Lost { .. });
                    if is_lost && !last.delivered {
                        candidates.push_back(at);
                    }
                    last = preferred_error(last, heard.elapsed(), unanswered);
                    heard = Instant::now();
                }
                // What another replica may have done before is not hidden.
                Err(unanswered) if last.delivered => {
                    return Err(preferred_error(last, heard.elapsed(), unanswered));
                }
                outcome => {
                    if let (Some(session), None, None) = (session, route, origin) {
                        self.assign(session, at);
                    }
                    let answer = outcome.as_ref().ok();
                    if let Some(task) =
                        answer.and_then(|answer| task_owners::created_task(admitted, answer))
                    {
                        lock(&self.task_origins).note(task, at);
                    }
                    return outcome;
                }
            }
            if start.elapsed() >= replica.backend.call_idle_timeout(admitted) {
                break;
            }
        }
        Err(last)
    }

    /// The rule that holds of a call.
    fn route(&self, admitted: &Admitted) -> Option<&ReplicaRoute> {
        let routed = admitted.routed();
        let tool = routed.tool.as_ref()?;
        let mut routes = self.routes.iter();
        routes.find(|route| route.matches(&tool.original, routed.params.as_ref()))
    }

    /// The replicas that may serve a call, the best first.
    fn candidates(&self, admitted: &Admitted, route: Option<&ReplicaRoute>) -> Vec<usize> {
        let routed = admitted.routed();
        let session = routed.call.client.session.as_ref();
        let home = session.and_then(|session| {
            let affinity = lock(&self.affinity);
            affinity.sessions.get(&session.id).map(|(_, at)| *at)
        });
        let may = |at: &usize| route.is_none_or(|route| self.all[*at].has_name(&route.replica));
        let now = Instant::now();
        let mut ranked: Vec<(Readiness, usize)> = (0..self.all.len())
            .filter(may)
            .map(|at| (self.all[at].rank(now), at))
            .collect();
        // Without any that can be expected to answer, they are tried all the same. One whose breaker
        // is open says at once for how long, which may be all that a caller can be told.
        if ranked.iter().any(|(rank, _)| *rank != Readiness::Ejected) {
            let is_open = |at: usize| self.all[at].backend.breaker.is_open();
            ranked.retain(|(rank, at)| *rank != Readiness::Ejected || is_open(*at));
        }
        let is_home =
            |(rank, at): &(Readiness, usize)| Some(*at) == home && *rank == Readiness::Ready;
        let requester = match session {
            Some(_) if ranked.iter().any(is_home) => Requester::Pinned,
            Some(_) if route.is_none() => Requester::Session,
            Some(_) | None => Requester::Call,
        };
        let loads = self.loads(requester);
        ranked.sort_by_key(|it| {
            let (rank, at) = *it;
            (!is_home(it), rank, !self.all[at].is_local, loads[at])
        });
        ranked.into_iter().map(|(_, at)| at).collect()
    }

    /// How each does.
    pub(in crate::backend) fn reports(&self) -> Vec<ReplicaReport> {
        let now = Instant::now();
        self.all.iter().map(|replica| replica.report(now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Agent, names::Scope, session::state::SessionKind};

    #[test]
    fn a_caller_hears_of_the_earliest_retry() {
        let open = |secs| BackendError::BreakerOpen {
            retry_after: Duration::from_secs(secs),
        };
        let check = |earlier: &BackendError, later: &BackendError, expect: &BackendError| {
            let [earlier, later] = [earlier, later].map(|it| CallError::before_send(it.clone()));
            let error = preferred_error(earlier, Duration::from_secs(1), later);
            assert_eq!(error.failure, *expect);
        };
        let unlisted = BackendError::NotListedYet { why: None };
        check(&BackendError::UnknownServer, &unlisted, &unlisted);
        check(&unlisted, &open(5), &open(5));
        check(&open(5), &unlisted, &open(4));
        check(&open(5), &open(9), &open(4));
        check(&open(9), &open(5), &open(5));
    }

    /// The living are counted, however many come; those that ended are forgotten sooner or later.
    #[test]
    fn sessions_are_counted_where_they_are() {
        let session = || {
            Arc::new(Session::new(
                SessionKind::Streamable,
                Arc::new(Agent::anonymous()),
                Scope::All,
            ))
        };
        let mut affinity = Affinity::new(2);
        let mut all = Vec::new();
        for _ in 0..10 * RECOUNT_FRACTION {
            let session = session();
            affinity.note(&session, 0);
            all.push(session);
        }
        affinity.note(&all[0], 1);
        affinity.note(&all[0], 1);
        assert_eq!(affinity.counts(), [10 * RECOUNT_FRACTION - 1, 1]);
        all.truncate(RECOUNT_FRACTION / 2);
        for _ in 0..10 {
            let session = session();
            affinity.note(&session, 1);
            all.push(session);
        }
        assert_eq!(
            affinity.counts(),
            [RECOUNT_FRACTION / 2 - 1, 11],
            "few are counted each time"
        );
        assert_eq!(affinity.sessions.len(), all.len());
    }
}
