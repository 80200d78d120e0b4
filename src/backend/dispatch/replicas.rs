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
use globset::{GlobSet, GlobSetBuilder};
use tokio::{sync::Notify, time::Instant};

use super::is_repeatable;
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
pub use report::ReplicaReport;
use task_owners::{TaskReplicas, asked_about};

mod outlier;
mod report;
mod task_owners;

/// Sessions whose subscriptions wait to be moved; those of more are not.
const STRAYS_MAX: usize = 4096;
/// After how many new sessions, as a part of those that are known, the living ones are counted anew: what
/// a session costs does not grow with their number.
const COUNTED_PART: usize = 64;

/// The replicas of one server.
#[derive(Debug)]
pub(in crate::backend) struct Replicas {
    /// In the order of preference.
    all: Vec<Replica>,
    balance: Balance,
    routes: Vec<ReplicaRoute>,
    stays: Mutex<Affinity>,
    begun: Mutex<TaskReplicas>,
    /// Counts what looks for a replica: of equal ones they have turns.
    turn: AtomicUsize,
    /// Tells that a session may have left a replica.
    moved: Notify,
}

/// One replica.
#[derive(Debug)]
pub(in crate::backend) struct Replica {
    name: String,
    locality: Option<String>,
    is_near: bool,
    /// How it is reached, without secrets.
    address: String,
    backend: Arc<Backend>,
    outlier: Mutex<Outlier>,
}

/// Calls that certain replicas serve, and no other.
#[derive(Debug)]
struct ReplicaRoute {
    tools: GlobSet,
    /// `None` holds of every call.
    test: Option<ArgumentTest>,
    to: String,
}

impl ReplicaRoute {
    /// Only what the config has checked, so that nothing is left out.
    fn new(route: &config::RouteConfig) -> Option<Self> {
        let mut tools = GlobSetBuilder::new();
        for glob in &route.tools {
            tools.add(glob.clone());
        }
        let test = if route.condition == Condition::default() {
            None
        } else {
            Some(ArgumentTest::new(&route.at, &route.condition).ok()?)
        };
        Some(Self {
            tools: tools.build().ok()?,
            test,
            to: route.to.clone(),
        })
    }

    fn holds(&self, tool: &str, params: Option<&Raw>) -> bool {
        let test = self.test.as_ref();
        self.tools.is_match(tool) && test.is_none_or(|test| test.holds(params))
    }
}

/// The replica that each session has been on.
#[derive(Debug)]
struct Affinity {
    of: HashMap<String, (Weak<Session>, usize)>,
    /// How many sessions are on each replica; those that have ended since they were last counted too.
    counts: Vec<usize>,
    /// Sessions that may still come to a replica until they are counted anew.
    uncounted_max: usize,
    /// Those that have left a replica on which they are subscribed to resources, and which.
    strays: Vec<(Weak<Session>, usize)>,
}

impl Affinity {
    fn new(replicas: usize) -> Self {
        Self {
            of: HashMap::new(),
            counts: vec![0; replicas],
            uncounted_max: 0,
            strays: Vec::new(),
        }
    }

    /// How many sessions are on each replica.
    fn counts(&mut self) -> Vec<usize> {
        if self.uncounted_max == 0 {
            self.count();
        }
        self.counts.clone()
    }

    /// Counts the living sessions, and forgets the others.
    fn count(&mut self) {
        self.of.retain(|_, (session, _)| is_living(session));
        self.counts.fill(0);
        for (_, at) in self.of.values() {
            self.counts[*at] += 1;
        }
        self.uncounted_max = self.of.len() / COUNTED_PART;
    }

    fn note(&mut self, session: &Arc<Session>, replica: usize) {
        let stay = (Arc::downgrade(session), replica);
        let before = self.of.insert(session.id.clone(), stay).map(|(_, at)| at);
        if before == Some(replica) {
            return;
        }
        if let Some(left) = self.uncounted_max.checked_sub(1) {
            self.uncounted_max = left;
            self.counts[replica] += 1;
            if let Some(before) = before {
                self.counts[before] = self.counts[before].saturating_sub(1);
            }
        } else {
            self.count();
        }
        let Some(left) = before.filter(|_| !session.subscriptions().is_empty()) else {
            return;
        };
        if self.strays.len() == STRAYS_MAX {
            tracing::warn!(
                session = session.mark,
                "its subscriptions stay where they were"
            );
            return;
        }
        self.strays.push((Arc::downgrade(session), left));
    }
}

fn is_living(session: &Weak<Session>) -> bool {
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
    turns: usize,
}

impl ReplicaLoad {
    /// That of a replica whose place in the order of preference is all that counts.
    fn in_order(at: usize) -> Self {
        Self {
            in_flight: 0,
            sessions: 0,
            turns: at,
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
    Settled,
}

/// How soon a replica could serve a call, the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Readiness {
    Ready,
    Starting,
    Out,
}

impl Replica {
    fn rank(&self, now: Instant) -> Readiness {
        // The breaker counts what `breaker` says, the outlier a single failure: while others serve,
        // it costs nothing to be careful.
        if lock(&self.outlier).is_out(now) || self.backend.breaker.is_open() {
            return Readiness::Out;
        }
        match self.backend.catalog.phase() {
            InstancePhase::Asleep(_) | InstancePhase::Ready(_) => Readiness::Ready,
            InstancePhase::Connecting => Readiness::Starting,
            InstancePhase::Down { .. } => Readiness::Out,
        }
    }

    /// Takes a call, and notes how the replica did.
    async fn call(&self, admitted: &Admitted, waited: Duration) -> Result<Answer, CallError> {
        let outcome = Box::pin(self.backend.call_after(waited, admitted)).await;
        match &outcome {
            Ok(_) => *lock(&self.outlier) = Outlier::default(),
            Err(unanswered) if is_ill(&unanswered.failure) => {
                let ejection = self.backend.written().ejection;
                lock(&self.outlier).note_failure(ejection, Instant::now());
            }
            Err(_) => {}
        }
        outcome
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.locality.as_deref() == Some(name)
    }
}

/// Whether `failure` says that the replica itself is not well. A slow tool is no sign of that.
fn is_ill(failure: &BackendError) -> bool {
    let is_refused = matches!(failure, BackendError::Unauthorized { .. });
    let is_slow = matches!(failure, BackendError::Timeout { .. });
    is_refused || !is_slow && CallHealth::of(failure, true) != CallHealth::None
}

/// Whether another replica may do better after `failure`.
fn is_passed_on(failure: &BackendError) -> bool {
    let is_held_back = matches!(
        failure,
        BackendError::BackingOff { .. }
            | BackendError::BreakerOpen { .. }
            | BackendError::StartsLimited { .. }
    );
    is_held_back || is_ill(failure)
}

/// Whether another replica is asked after `unanswered`, or the same one again: where none took the
/// call, or the one that took it failed and doing it twice is like doing it once.
fn goes_on(admitted: &Admitted, unanswered: &CallError) -> bool {
    let failure = &unanswered.failure;
    if !unanswered.delivered {
        return is_passed_on(failure);
    }
    let is_lost = matches!(failure, BackendError::Lost { .. });
    let is_broken =
        matches!(failure, BackendError::Http { status, .. } if status.is_server_error());
    (is_lost || is_broken) && is_repeatable(admitted)
}

/// What a caller is told of two replicas that did not serve its call, where `later` came `after` the
/// other: that which promises the earliest retry, else the last. What one may have done is not hidden.
fn more_hopeful(earlier: CallError, after: Duration, later: CallError) -> CallError {
    if earlier.delivered {
        let state = later.state;
        let twice = CallError::twice(earlier.failure, later.failure);
        return CallError { state, ..twice };
    }
    let failure = earlier.failure.after(after);
    let other = later.failure.retry_after();
    let is_sooner = |wait| other.is_none_or(|other| wait <= other);
    if failure.retry_after().is_some_and(is_sooner) {
        CallError { failure, ..earlier }
    } else {
        later
    }
}

/// The config of one replica of `server`, as if it were a server of its own.
fn alone(server: &Server, transport: &Transport) -> Server {
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
                let alone = alone(server, &replica.transport);
                Replica {
                    name: replica.name.clone(),
                    locality: replica.locality.clone(),
                    backend: Arc::new(make(&replica.name, &alone)),
                    is_near: replica.is_near,
                    address: replica.transport.to_address(),
                    outlier: Mutex::default(),
                }
            })
            .collect();
        Some(Self {
            stays: Mutex::new(Affinity::new(all.len())),
            all,
            balance: server.balance,
            routes: server.route.iter().filter_map(ReplicaRoute::new).collect(),
            begun: Mutex::default(),
            turn: AtomicUsize::new(0),
            moved: Notify::new(),
        })
    }

    /// Takes another config of `server`, with which all of them go on.
    pub(in crate::backend) fn rewrite(&self, server: &Server) {
        let now = Instant::now();
        for replica in &self.all {
            let transport = replica.backend.written().transport.clone();
            replica.backend.rewrite(&alone(server, &transport));
            lock(&replica.outlier).set(server.ejection, now);
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
    pub(in crate::backend) fn lead(&self) -> &Backend {
        let best = self.backends().min_by_key(|backend| backend.listing_rank());
        best.unwrap_or(&self.all[0].backend)
    }

    /// The one that `session` is on.
    pub(in crate::backend) fn home(&self, session: &Session) -> Option<&Arc<Backend>> {
        let at = lock(&self.stays).of.get(&session.id).map(|(_, at)| *at);
        at.map(|at| &self.all[at].backend)
    }

    /// The one numbered `at`, in the order of preference.
    pub(in crate::backend) fn at(&self, at: usize) -> Option<&Arc<Backend>> {
        self.all.get(at).map(|replica| &replica.backend)
    }

    /// The one that `session` is on, and from now on stays on: the best where it is on none.
    pub(in crate::backend) fn home_or_best(&self, session: &Arc<Session>) -> &Arc<Backend> {
        if let Some(home) = self.home(session) {
            return home;
        }
        let at = self.best().unwrap_or(0);
        self.note_stay(session, at);
        &self.all[at].backend
    }

    /// The one that serves a session best, if any is ready to.
    fn best(&self) -> Option<usize> {
        let now = Instant::now();
        let burdens = self.burdens(Requester::Session);
        let is_ready = |at: &usize| self.all[*at].rank(now) == Readiness::Ready;
        let ready = (0..self.all.len()).filter(is_ready);
        ready.min_by_key(|at| (!self.all[*at].is_near, burdens[*at]))
    }

    /// What each has to do, as far as that decides between them.
    fn burdens(&self, seeker: Requester) -> Vec<ReplicaLoad> {
        let count = self.all.len();
        if self.balance == Balance::Failover {
            return (0..count).map(ReplicaLoad::in_order).collect();
        }
        // Once for each session, not for each call.
        let sessions = match seeker {
            Requester::Call | Requester::Settled => vec![0; count],
            Requester::Session => lock(&self.stays).counts(),
        };
        let turn = match seeker {
            Requester::Call | Requester::Session => self.turn.fetch_add(1, Ordering::Relaxed),
            Requester::Settled => 0,
        };
        let burden = |(at, sessions)| ReplicaLoad {
            in_flight: self.in_flight(at),
            sessions,
            turns: (at + count - turn % count) % count,
        };
        sessions.into_iter().enumerate().map(burden).collect()
    }

    fn in_flight(&self, at: usize) -> u64 {
        let stats = &self.all[at].backend.stats;
        stats.in_flight.load(Ordering::Relaxed)
    }

    fn note_stay(&self, session: &Arc<Session>, at: usize) {
        let mut stays = lock(&self.stays);
        stays.note(session, at);
        if !stays.strays.is_empty() {
            self.moved.notify_one();
        }
    }

    /// The sessions that have left a replica on which they are subscribed to resources, since it was
    /// lost or since a call of theirs went elsewhere, each with the number of that replica; as soon
    /// as there are any. For one caller at a time.
    pub(in crate::backend) async fn strays(&self) -> Vec<(Arc<Session>, usize)> {
        loop {
            // Before looking, so that no change is missed.
            let mut phases: Vec<_> = self.backends().map(|it| it.catalog.subscribe()).collect();
            self.leave_lost();
            let strays = std::mem::take(&mut lock(&self.stays).strays);
            let living = strays.into_iter().filter_map(|(session, left)| {
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
                () = self.moved.notified() => {}
            }
        }
    }

    /// Lets sessions that only listen leave a replica that is lost: no call of theirs would.
    fn leave_lost(&self) {
        let is_lost = |at: usize| {
            matches!(
                self.all[at].backend.catalog.phase(),
                InstancePhase::Down { .. }
            )
        };
        let Some(best) = self.best() else { return };
        let stays = lock(&self.stays).of.values().cloned().collect::<Vec<_>>();
        for (session, _) in stays.into_iter().filter(|(_, at)| is_lost(*at)) {
            if let Some(session) = session.upgrade()
                && !session.ended.is_cancelled()
                && !session.subscriptions().is_empty()
            {
                self.note_stay(&session, best);
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
        let mut last = CallError::before(BackendError::Unknown);
        let mut heard = start;
        let route = self.route(admitted);
        let origin = asked_about(admitted).and_then(|task| lock(&self.begun).at(&task));
        let candidates = origin.map_or_else(|| self.candidates(admitted, route), |at| vec![at]);
        let mut candidates = VecDeque::from(candidates);
        while let Some(at) = candidates.pop_front() {
            let replica = &self.all[at];
            match replica.call(admitted, waited + start.elapsed()).await {
                Err(unanswered) if goes_on(admitted, &unanswered) => {
                    let is_lost = matches!(unanswered.failure, BackendError::Lost { .. });
                    if is_lost && !last.delivered {
                        candidates.push_back(at);
                    }
                    last = more_hopeful(last, heard.elapsed(), unanswered);
                    heard = Instant::now();
                }
                // What another replica may have done before is not hidden.
                Err(unanswered) if last.delivered => {
                    return Err(more_hopeful(last, heard.elapsed(), unanswered));
                }
                outcome => {
                    if let (Some(session), None, None) = (session, route, origin) {
                        self.note_stay(session, at);
                    }
                    let answer = outcome.as_ref().ok();
                    if let Some(task) =
                        answer.and_then(|answer| task_owners::begun(admitted, answer))
                    {
                        lock(&self.begun).note(task, at);
                    }
                    return outcome;
                }
            }
            if start.elapsed() >= replica.backend.patience(admitted) {
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
        routes.find(|route| route.holds(&tool.original, routed.params.as_ref()))
    }

    /// The replicas that may serve a call, the best first.
    fn candidates(&self, admitted: &Admitted, route: Option<&ReplicaRoute>) -> Vec<usize> {
        let routed = admitted.routed();
        let session = routed.call.client.session.as_ref();
        let home = session.and_then(|session| {
            let stays = lock(&self.stays);
            stays.of.get(&session.id).map(|(_, at)| *at)
        });
        let may = |at: &usize| route.is_none_or(|route| self.all[*at].is_called(&route.to));
        let now = Instant::now();
        let mut ranked: Vec<(Readiness, usize)> = (0..self.all.len())
            .filter(may)
            .map(|at| (self.all[at].rank(now), at))
            .collect();
        // Without any that can be expected to answer, they are tried all the same. One whose breaker
        // is open says at once for how long, which may be all that a caller can be told.
        if ranked.iter().any(|(rank, _)| *rank != Readiness::Out) {
            let is_open = |at: usize| self.all[at].backend.breaker.is_open();
            ranked.retain(|(rank, at)| *rank != Readiness::Out || is_open(*at));
        }
        let is_home =
            |(rank, at): &(Readiness, usize)| Some(*at) == home && *rank == Readiness::Ready;
        let seeker = match session {
            Some(_) if ranked.iter().any(is_home) => Requester::Settled,
            Some(_) if route.is_none() => Requester::Session,
            Some(_) | None => Requester::Call,
        };
        let burdens = self.burdens(seeker);
        ranked.sort_by_key(|it| {
            let (rank, at) = *it;
            (!is_home(it), rank, !self.all[at].is_near, burdens[at])
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
            let [earlier, later] = [earlier, later].map(|it| CallError::before(it.clone()));
            let told = more_hopeful(earlier, Duration::from_secs(1), later);
            assert_eq!(told.failure, *expect);
        };
        let unlisted = BackendError::Unlisted { why: None };
        check(&BackendError::Unknown, &unlisted, &unlisted);
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
        let mut stays = Affinity::new(2);
        let mut all = Vec::new();
        for _ in 0..10 * COUNTED_PART {
            let session = session();
            stays.note(&session, 0);
            all.push(session);
        }
        stays.note(&all[0], 1);
        stays.note(&all[0], 1);
        assert_eq!(stays.counts(), [10 * COUNTED_PART - 1, 1]);
        all.truncate(COUNTED_PART / 2);
        for _ in 0..10 {
            let session = session();
            stays.note(&session, 1);
            all.push(session);
        }
        assert_eq!(
            stays.counts(),
            [COUNTED_PART / 2 - 1, 11],
            "few are counted each time"
        );
        assert_eq!(stays.of.len(), all.len());
    }
}
