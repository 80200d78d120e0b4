//! What `/status` shows of the instances of a server beside the catalog's.

use std::sync::Arc;

use serde::Serialize;

use crate::{
    backend::{
        Backend, HealthChecks, ServerState, Transition,
        dispatch::connection_pool::ConnectionPool,
        instance::{Instance, InstancePhase},
        state_machine::StateSnapshot,
    },
    lock::lock,
    mcp::Era,
};

/// One instance beside the catalog's in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceReport {
    /// Unique since the start of the gateway, `instance{number}` in the log. One that takes the place
    /// of another, for the same callers, goes on with its number, history and counts.
    pub number: u64,
    /// The replica it is of, where the server has some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The agent it serves alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The session it serves alone, as the log and the audit call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// `legacy` or `modern`: the era it is asked for.
    pub era: &'static str,
    /// `connected` once it is greeted and the server listed, which is done on the catalog's connection.
    pub state: ServerState,
    /// Since when it is in that state, RFC 3339.
    pub since: String,
    /// Whether it was ended since nobody used it: the next call wakes it, or is about to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// Why it is in that state, when it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The states it was in and is in, the current one last,
    /// [`HISTORY_MAX`](crate::backend::HISTORY_MAX) at most.
    pub history: Vec<Transition>,
    /// Process id of its child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Attempts to make its connection again after it was lost or could not be made.
    pub restarts: u64,
    /// Attempts to make it that failed.
    pub failed_starts: u64,
    /// Health checks of it.
    pub health_checks: HealthChecks,
    /// Requests under way.
    pub in_flight: usize,
    /// Lines on stdout that are no messages.
    pub odd_lines: u64,
    /// Its last lines on stderr.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

impl InstanceReport {
    fn of(instance: &Instance) -> Option<Self> {
        let identity = &instance.identity;
        let callers = identity.shared_by.as_ref()?;
        let phase = instance.phase();
        let stand = identity.state_machine.snapshot();
        let since = stand.since();
        let StateSnapshot {
            state,
            asleep,
            reason,
            history,
        } = stand;
        let connection = match &phase {
            InstancePhase::Ready(connection) => Some(connection),
            InstancePhase::Asleep(_) | InstancePhase::Connecting | InstancePhase::Down { .. } => {
                None
            }
        };
        Some(Self {
            number: identity.number,
            replica: None,
            agent: callers.agent.clone(),
            session: callers.session.clone(),
            era: match callers.era {
                Era::Legacy => "legacy",
                Era::Modern => "modern",
            },
            state,
            since,
            asleep,
            reason: reason.or_else(|| identity.start_in_progress()),
            history,
            pid: connection.and_then(|connection| connection.pid),
            restarts: identity.restarts(),
            failed_starts: identity.failed_starts(),
            health_checks: *lock(&identity.checks),
            in_flight: connection.map_or(0, |connection| connection.link.requests.in_flight()),
            odd_lines: identity.output.stray().count,
            stderr: identity.output.stderr(),
        })
    }

    /// The same without what the server wrote, what its process is and whom it serves.
    pub(super) fn without_details(mut self) -> Self {
        self.reason = None;
        for transition in &mut self.history {
            transition.reason = None;
        }
        self.agent = None;
        self.session = None;
        self.pid = None;
        self.stderr = Vec::new();
        self
    }
}

impl Backend {
    /// Its instances beside the catalog's, those of all replicas, by their numbers.
    pub(super) fn instance_reports(&self) -> Vec<InstanceReport> {
        let Some(replicas) = &self.replicas else {
            return self.local_instance_reports();
        };
        let of_each = replicas.named().flat_map(|(name, backend)| {
            let mut reports = backend.local_instance_reports();
            for report in &mut reports {
                report.replica = Some(name.to_owned());
            }
            reports
        });
        let mut reports: Vec<_> = of_each.collect();
        reports.sort_by_key(|report| report.number);
        reports
    }

    fn local_instance_reports(&self) -> Vec<InstanceReport> {
        // Those that are told to stop are nobody's any more.
        let keyed = self.lock();
        let kept = keyed
            .values()
            .filter(|it| !it.stop.is_cancelled() && !it.is_removable());
        let mut all: Vec<_> = kept.map(Arc::clone).collect();
        drop(keyed);
        all.extend(self.pool.iter().flat_map(ConnectionPool::with_lost));
        let reports = all.iter().filter_map(|it| InstanceReport::of(it));
        let mut reports: Vec<_> = reports.collect();
        reports.sort_by_key(|report| report.number);
        reports
    }
}
