//! What an instance and those that take its place have in common: where it stands, what its programs
//! wrote, and how often it was started again.
//!
//! The catalog's instance has the server's own. An instance beside it ends when it is lost or idle;
//! the next one for the same callers goes on with its identity, so that people follow one thing.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{
    connector::SLOW_START_AFTER,
    reconnect::{ReconnectPolicy, StartQuotaKey},
};
use crate::{
    backend::{
        HealthChecks, ServerState,
        error::display_stray,
        link::pending::LinkTaskOwners,
        sharing::Sharing,
        state_machine::{MachineSubject, StateMachine},
        transport::stdio::child_output::ChildOutput,
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
    pub(in crate::backend) shared_by: Option<SharedBy>,
    pub(in crate::backend) state_machine: StateMachine,
    /// That of its server.
    pub(in crate::backend) reconnect: Arc<ReconnectPolicy>,
    pub(in crate::backend) output: Arc<ChildOutput>,
    /// The tasks that were begun on its connections.
    pub(in crate::backend) task_owners: Arc<LinkTaskOwners>,
    /// What is spawned here logs whose it is.
    pub(in crate::backend) tasks: Tasks,
    restarts: AtomicU64,
    failed_starts: AtomicU64,
    pub(in crate::backend) checks: Mutex<HealthChecks>,
    /// Whether the start that is under way takes long.
    is_slow: AtomicBool,
    /// The transport found by probing, on the connection made last.
    transport: Mutex<Option<&'static str>>,
}

/// Whom an instance serves, as people know them.
#[derive(Clone, Debug)]
pub(in crate::backend) struct SharedBy {
    /// As connections are told apart.
    pub(in crate::backend) sharing: Sharing,
    /// Who is behind them, where that is one: an agent, however many sessions it has.
    start_quota_key: Option<StartQuotaKey>,
    /// The one agent.
    pub(in crate::backend) agent: Option<String>,
    pub(in crate::backend) agent_id: Option<AgentId>,
    /// The one session, as the log and the audit call it.
    pub(in crate::backend) session: Option<String>,
    /// Cancelled with that session.
    session_ended: Option<CancellationToken>,
    pub(in crate::backend) era: Era,
}

impl SharedBy {
    /// Those of `client`'s agent, in `era`.
    pub(in crate::backend) fn for_agent(client: &Client, era: Era) -> Self {
        let id = client.agent.id;
        Self {
            sharing: Sharing::Agent(id),
            // Where nobody has to say who they are, that is everybody.
            start_quota_key: (id != AgentId::ANONYMOUS)
                .then_some(StartQuotaKey::Caller(Sharing::Agent(id))),
            agent: Some(client.agent.name.clone()),
            agent_id: Some(id),
            session: None,
            session_ended: None,
            era,
        }
    }

    /// Those of `client`'s session, in `era`.
    pub(in crate::backend) fn for_session(client: &Client, era: Era) -> Self {
        let session = client.session.as_ref();
        let of_agent = Self::for_agent(client, era);
        let owner = session.map(|session| Sharing::Session(session.id.clone()));
        Self {
            start_quota_key: of_agent
                .start_quota_key
                .or_else(|| owner.clone().map(StartQuotaKey::Caller)),
            sharing: owner.unwrap_or(of_agent.sharing),
            agent: of_agent.agent,
            agent_id: of_agent.agent_id,
            session: session.map(|session| session.log_id.clone()),
            session_ended: session.map(|session| session.ended.clone()),
            era,
        }
    }

    /// Whoever comes, in `era`.
    pub(in crate::backend) fn for_anyone(era: Era) -> Self {
        Self {
            sharing: Sharing::Shared,
            start_quota_key: None,
            agent: None,
            agent_id: None,
            session: None,
            session_ended: None,
            era,
        }
    }
}

impl InstanceIdentity {
    /// That of the catalog's instance, which has failed after so many attempts.
    pub(in crate::backend) fn for_catalog(
        server: &ServerName,
        failed_after: u32,
        reconnect: &Arc<ReconnectPolicy>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let state_machine = StateMachine::new(MachineSubject::Server, server, tasks.span());
        state_machine.set_failed_after(failed_after);
        Arc::new(Self::new(
            state_machine,
            reconnect,
            next_number(),
            tasks.clone(),
        ))
    }

    /// That of an instance for `callers` alone.
    pub(in crate::backend) fn for_callers(
        server: &ServerName,
        callers: SharedBy,
        reconnect: &Arc<ReconnectPolicy>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let number = next_number();
        let tasks = tasks.with_span(instance_span(number, &callers, tasks.span()));
        let state_machine = StateMachine::new(MachineSubject::Instance, server, tasks.span());
        Arc::new(Self {
            task_owners: task_owners_for(Some(&callers)),
            shared_by: Some(callers),
            ..Self::new(state_machine, reconnect, number, tasks)
        })
    }

    fn new(
        state_machine: StateMachine,
        reconnect: &Arc<ReconnectPolicy>,
        number: u64,
        tasks: Tasks,
    ) -> Self {
        Self {
            number,
            shared_by: None,
            state_machine,
            reconnect: Arc::clone(reconnect),
            output: Arc::default(),
            task_owners: task_owners_for(None),
            tasks,
            restarts: AtomicU64::new(0),
            failed_starts: AtomicU64::new(0),
            checks: Mutex::default(),
            is_slow: AtomicBool::new(false),
            transport: Mutex::default(),
        }
    }

    /// No tasks, of whoever it serves.
    pub(in crate::backend) fn fresh_task_owners(&self) -> Arc<LinkTaskOwners> {
        task_owners_for(self.shared_by.as_ref())
    }

    /// Who is behind it, where that is one.
    pub(in crate::backend) fn start_quota_key(&self) -> Option<&StartQuotaKey> {
        self.shared_by.as_ref()?.start_quota_key.as_ref()
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
        self.is_slow.store(is_slow, Ordering::Relaxed);
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
        let ended = self
            .shared_by
            .as_ref()
            .and_then(|it| it.session_ended.as_ref());
        ended.is_some_and(CancellationToken::is_cancelled)
    }

    /// What is awaited of a start while it is under way: of the first one, and of one that takes long.
    pub(in crate::backend) fn start_in_progress(&self) -> Option<String> {
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        let is_first = self.state_machine.state() == ServerState::Connecting;
        (is_slow || is_first).then(|| {
            let lines = display_stray(&self.output.stray().lines_since(0));
            if is_slow {
                return format!("still starting after {SLOW_START_AFTER:?}{lines}");
            }
            format!("no response yet{lines}")
        })
    }
}

fn task_owners_for(callers: Option<&SharedBy>) -> Arc<LinkTaskOwners> {
    if callers.is_some_and(|callers| callers.agent.is_some()) {
        Arc::new(LinkTaskOwners::single_agent())
    } else {
        Arc::default()
    }
}

fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// What the log lines of an instance are within. Above every level: what it adds to a line is wanted
/// wherever the line is.
fn instance_span(number: u64, callers: &SharedBy, around: &Span) -> Span {
    let (agent, session) = (callers.agent.as_deref(), callers.session.as_deref());
    // Not within the task of the first caller, which it outlives.
    tracing::error_span!(parent: around, "instance", number, agent, session)
}
