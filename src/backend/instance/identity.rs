//! What an instance and those that take its place have in common: where it stands, what its programs
//! wrote, and how often it was started again.
//!
//! The catalog's instance has the server's own. An instance beside it ends when it is lost or idle;
//! the next one for the same callers goes on with its lineage, so that people follow one thing.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{connector::SLOW_START, reachability::Reachability, start_limiter::StartParty};
use crate::{
    backend::{
        HealthChecks, ServerState,
        error::display_odd,
        link::pending::LinkTaskOwners,
        sharing::Sharing,
        state_machine::{Of, StateMachine},
        transport::stdio::child_output::Output,
    },
    lock::lock,
    mcp::Era,
    names::{AgentId, ServerName},
    session::Client,
    task::Tasks,
};

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// What an instance and those that take its place have in common.
#[derive(Debug)]
pub(crate) struct InstanceIdentity {
    /// Unique in this process; the catalog's is not shown.
    pub(in crate::backend) number: u64,
    /// Whom it serves; `None` for the catalog's.
    pub(in crate::backend) callers: Option<Callers>,
    pub(in crate::backend) life: StateMachine,
    /// That of its server.
    pub(in crate::backend) reach: Arc<Reachability>,
    pub(in crate::backend) output: Arc<Output>,
    /// The tasks that were begun on its connections.
    pub(in crate::backend) begun: Arc<LinkTaskOwners>,
    /// What is spawned here logs whose it is.
    pub(in crate::backend) tasks: Tasks,
    restarts: AtomicU64,
    failed_starts: AtomicU64,
    pub(in crate::backend) checks: Mutex<HealthChecks>,
    /// Whether the start that is under way takes long.
    slow: AtomicBool,
    /// The transport found by probing, on the connection made last.
    transport: Mutex<Option<&'static str>>,
}

/// Whom an instance serves, as people know them.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Callers {
    /// As connections are told apart.
    pub(in crate::backend) owner: Sharing,
    /// Who is behind them, where that is one: an agent, however many sessions it has.
    party: Option<StartParty>,
    /// The one agent.
    pub(in crate::backend) agent: Option<String>,
    /// The one session, as the log and the audit call it.
    pub(in crate::backend) session: Option<String>,
    /// Cancelled with that session.
    ended: Option<CancellationToken>,
    pub(in crate::backend) era: Era,
}

impl Callers {
    /// Those of `client`'s agent, in `era`.
    pub(in crate::backend) fn of_agent(client: &Client, era: Era) -> Self {
        let id = client.agent.id;
        Self {
            owner: Sharing::Agent(id),
            // Where nobody has to say who they are, that is everybody.
            party: (id != AgentId::ANONYMOUS).then_some(StartParty::Caller(Sharing::Agent(id))),
            agent: Some(client.agent.name.clone()),
            session: None,
            ended: None,
            era,
        }
    }

    /// Those of `client`'s session, in `era`.
    pub(in crate::backend) fn of_session(client: &Client, era: Era) -> Self {
        let session = client.session.as_ref();
        let of_agent = Self::of_agent(client, era);
        let owner = session.map(|session| Sharing::Session(session.id.clone()));
        Self {
            party: of_agent
                .party
                .or_else(|| owner.clone().map(StartParty::Caller)),
            owner: owner.unwrap_or(of_agent.owner),
            agent: of_agent.agent,
            session: session.map(|session| session.mark.clone()),
            ended: session.map(|session| session.ended.clone()),
            era,
        }
    }

    /// Whoever comes, in `era`.
    pub(in crate::backend) fn any(era: Era) -> Self {
        Self {
            owner: Sharing::Shared,
            party: None,
            agent: None,
            session: None,
            ended: None,
            era,
        }
    }
}

impl InstanceIdentity {
    /// That of the catalog's instance, which has failed after so many attempts.
    pub(in crate::backend) fn of_catalog(
        server: &ServerName,
        failed_after: u32,
        reach: &Arc<Reachability>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let life = StateMachine::new(Of::Server, server, tasks.around());
        life.set_failed_after(failed_after);
        Arc::new(Self::new(life, reach, next_number(), tasks.clone()))
    }

    /// That of an instance for `callers` alone.
    pub(in crate::backend) fn beside(
        server: &ServerName,
        callers: Callers,
        reach: &Arc<Reachability>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let number = next_number();
        let tasks = tasks.within(about(number, &callers, tasks.around()));
        let life = StateMachine::new(Of::Instance, server, tasks.around());
        Arc::new(Self {
            begun: begun_for(Some(&callers)),
            callers: Some(callers),
            ..Self::new(life, reach, number, tasks)
        })
    }

    fn new(life: StateMachine, reach: &Arc<Reachability>, number: u64, tasks: Tasks) -> Self {
        Self {
            number,
            callers: None,
            life,
            reach: Arc::clone(reach),
            output: Arc::default(),
            begun: begun_for(None),
            tasks,
            restarts: AtomicU64::new(0),
            failed_starts: AtomicU64::new(0),
            checks: Mutex::default(),
            slow: AtomicBool::new(false),
            transport: Mutex::default(),
        }
    }

    /// No tasks, of whoever it serves.
    pub(in crate::backend) fn begun_anew(&self) -> Arc<LinkTaskOwners> {
        begun_for(self.callers.as_ref())
    }

    /// Whose connections it is of.
    pub(in crate::backend) fn owner(&self) -> &Sharing {
        let callers = self.callers.as_ref();
        callers.map_or(&Sharing::Shared, |callers| &callers.owner)
    }

    /// Who is behind it, where that is one.
    pub(in crate::backend) fn party(&self) -> Option<&StartParty> {
        self.callers.as_ref()?.party.as_ref()
    }

    /// Attempts to make a connection again after it was lost or could not be made.
    pub(in crate::backend) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Attempts to make a connection that failed.
    pub(in crate::backend) fn failed_starts(&self) -> u64 {
        self.failed_starts.load(Ordering::Relaxed)
    }

    /// For [`SharedState`](crate::backend::SharedState), which counts those of all.
    pub(in crate::backend) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// For [`SharedState`](crate::backend::SharedState), which counts those of all.
    pub(in crate::backend) fn count_failed_start(&self) {
        self.failed_starts.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::backend) fn set_slow(&self, is_slow: bool) {
        self.slow.store(is_slow, Ordering::Relaxed);
    }

    pub(in crate::backend) fn set_transport(&self, found: &'static str) {
        *lock(&self.transport) = Some(found);
    }

    /// The transport found by probing, where the config leaves it open and there was a connection.
    pub(in crate::backend) fn transport(&self) -> Option<&'static str> {
        *lock(&self.transport)
    }

    /// Whether the session is over that it serves alone.
    pub(in crate::backend) fn is_orphaned(&self) -> bool {
        let ended = self.callers.as_ref().and_then(|it| it.ended.as_ref());
        ended.is_some_and(CancellationToken::is_cancelled)
    }

    /// What is awaited of a start while it is under way: of the first one, and of one that takes long.
    pub(in crate::backend) fn being_started(&self) -> Option<String> {
        let is_slow = self.slow.load(Ordering::Relaxed);
        let is_first = self.life.state() == ServerState::Connecting;
        (is_slow || is_first).then(|| {
            let lines = display_odd(&self.output.odd().since(0));
            if is_slow {
                return format!("it has not started within {SLOW_START:?}{lines}");
            }
            format!("it has not answered yet{lines}")
        })
    }
}

fn begun_for(callers: Option<&Callers>) -> Arc<LinkTaskOwners> {
    if callers.is_some_and(|callers| callers.agent.is_some()) {
        Arc::new(LinkTaskOwners::by_one())
    } else {
        Arc::default()
    }
}

fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// What the log lines of an instance are within. Above every level: what it adds to a line is wanted
/// wherever the line is.
fn about(number: u64, callers: &Callers, around: &Span) -> Span {
    let (agent, session) = (callers.agent.as_deref(), callers.session.as_deref());
    // Not within the task of the first caller, which it outlives.
    tracing::error_span!(parent: around, "instance", number, agent, session)
}
