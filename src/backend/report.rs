//! What `/status` says of a server.

mod instances;
pub(super) mod program_usage;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::Serialize;

use super::{
    Backend, BreakerReport, CallerBreaker, ConnectionPool, HISTORY_MAX, HealthChecks, Instance,
    ReplicaReport, Replicas, ServerState, Transition, instance::InstancePhase,
    state_machine::StateSnapshot,
};
use crate::{clock, config::Transport, lock::lock, store::GrantOwner};
pub(crate) use instances::InstanceReport;

/// One server in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatusReport {
    /// Its name.
    pub name: String,
    /// See [`ServerState`].
    pub state: ServerState,
    /// Since when it is in that state, RFC 3339; of one that is asleep, since when its catalog's
    /// connection is.
    pub since: String,
    /// Whether it is disconnected because nobody uses it: the next call wakes it. Where only the
    /// catalog's connection sleeps, the state is that of the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// Why it is in that state, when it is not connected; while it is being started, what is awaited, or
    /// why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was wrong with it last, as far as [`ServerStatusReport::history`] goes back, also where it is well
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Transition>,
    /// The states it was in and is in, the current one last, [`HISTORY_MAX`] at
    /// most.
    pub history: Vec<Transition>,
    /// Whether calls are let through to it, whoever makes them; of replicas, how often any of theirs has
    /// opened.
    pub breaker: BreakerReport,
    /// Breakers of callers with connections of their own that are not closed: they hold back the calls of
    /// these callers alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caller_breakers: Vec<CallerBreaker>,
    /// How it is reached: as the catalog's connection is, or was last; `auto` until that is found.
    pub transport: &'static str,
    /// The revision spoken on the catalog's connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// What the server calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_info: Option<serde_json::Value>,
    /// Process id of the catalog's child.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Bytes that its programs and what they started have resident or swapped out, all instances and replicas
    /// together, a few seconds ago at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Time that they kept a processor busy, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Labels from the config.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Attempts to make a connection again after it was lost or could not be made, whether they
    /// succeeded or not; without those that woke it. Those of all instances and replicas, here and in
    /// `failed_starts`, also of such as are no more.
    pub restarts: u64,
    /// Attempts to make a connection that failed, the first included.
    pub failed_starts: u64,
    /// Until when it is not started again, RFC 3339, since it was started in vain as often within a
    /// minute as `retry.starts_per_minute` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_until: Option<String>,
    /// Its instances beside the catalog's: what serves certain callers alone (`isolation`), or one
    /// call at a time. One that is down or asleep is shown for ten minutes more, and then forgotten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceReport>,
    /// Those of them that are connected or being connected.
    pub instances_live: usize,
    /// Those of them that have calls under way, or subscriptions.
    pub instances_busy: usize,
    /// Health checks of the catalog's connections.
    pub health_checks: HealthChecks,
    /// When it was last listed, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_listed: Option<String>,
    /// Whose grant the lists come from, where each agent signs in.
    #[serde(skip)]
    pub list_owner: Option<GrantOwner>,
    /// Its replicas, in the order of preference; what is said here of a state, a breaker, a
    /// connection, a process and an output is that of the one that is listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaReport>,
    /// Calls under way.
    pub in_flight: u64,
    /// Calls that wait, since as many are under way as `limits.in_flight` allows, or as there are
    /// connections with one call at a time (`pool_size`, `max_instances`).
    pub queued: usize,
    /// Calls that `limits` refused, or that waited for them for too long.
    pub refused: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that got no answer.
    pub failed: u64,
    /// Median time to an answer, milliseconds; estimated from a histogram, 13 % off at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms_p50: Option<f64>,
    /// Time that 99 % of the answers took at most, milliseconds; estimated likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms_p99: Option<f64>,
    /// Lines on stdout that are no messages.
    pub odd_lines: u64,
    /// The last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_odd_line: Option<String>,
    /// Its last lines on stderr.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
}

impl ServerStatusReport {
    /// Whether it is not known yet of a replica whether it can be connected.
    pub fn has_untried_replica(&self) -> bool {
        let mut replicas = self.replicas.iter();
        replicas.any(|replica| replica.state == ServerState::Connecting)
    }

    /// The same without what the server wrote and what its process is.
    #[must_use]
    pub fn without_details(mut self) -> Self {
        self.reason = None;
        self.last_error = None;
        for transition in &mut self.history {
            transition.reason = None;
        }
        self.server_info = None;
        self.pid = None;
        self.memory_bytes = None;
        self.cpu_seconds = None;
        self.list_owner = None;
        self.last_odd_line = None;
        self.stderr = Vec::new();
        let breakers = self.caller_breakers.into_iter();
        self.caller_breakers = breakers.map(CallerBreaker::without_details).collect();
        let instances = self.instances.into_iter();
        self.instances = instances.map(InstanceReport::without_details).collect();
        let replicas = self.replicas.into_iter();
        self.replicas = replicas.map(ReplicaReport::without_details).collect();
        self
    }
}

/// The reason, with what keeps the server from being started again.
fn with_start_limit(reason: Option<String>, until: Option<&str>) -> Option<String> {
    match (reason, until) {
        (Some(reason), Some(until)) => Some(format!(
            "{reason}; too many failed starts (retry.starts_per_minute), next start at {until}"
        )),
        (reason, _) => reason,
    }
}

impl Backend {
    /// How the server does.
    pub fn report(&self) -> ServerStatusReport {
        let lead = self.listing_source();
        let phase = lead.catalog.phase();
        let stand = lead.snapshot();
        let since = stand.since();
        let StateSnapshot {
            state,
            asleep,
            reason,
            history,
        } = stand;
        let connection = if let InstancePhase::Ready(connection) = &phase {
            Some(connection)
        } else {
            None
        };
        let identity = &lead.connector.shared.identity;
        let stray = identity.output.stray().clone();
        let held_back_until = lead.held_back_until(&phase);
        let reason = reason.or_else(|| identity.start_in_progress());
        let programs = self.program_usage();
        ServerStatusReport {
            name: self.name.to_string(),
            state,
            asleep,
            since,
            reason: with_start_limit(reason, held_back_until.as_deref()),
            last_error: history.iter().rev().find(|past| past.is_error()).cloned(),
            history,
            breaker: BreakerReport {
                // What is counted never falls, whichever replica is listed.
                opened: self.sum_over_replicas(|it| it.breaker.report().opened),
                ..lead.breaker.report()
            },
            caller_breakers: self.caller_breakers(),
            transport: self.transport_name(),
            revision: connection.map(|connection| connection.hello.revision.as_str()),
            server_info: connection.and_then(|it| it.hello.info.as_ref()?.read().ok()),
            pid: connection.and_then(|connection| connection.pid),
            memory_bytes: programs.map(|programs| programs.memory_bytes),
            cpu_seconds: programs.map(|programs| programs.cpu_seconds),
            tags: self.load_config().tags.clone(),
            restarts: self
                .sum_over_replicas(|it| it.connector.shared.restarts.load(Ordering::Relaxed)),
            failed_starts: self
                .sum_over_replicas(|it| it.connector.shared.failed_starts.load(Ordering::Relaxed)),
            held_back_until,
            instances: self.instance_reports(),
            instances_live: self.sum_over_replicas(Self::live_instances),
            instances_busy: self.sum_over_replicas(Self::busy_instances),
            health_checks: self.checks(),
            replicas: self
                .replicas
                .as_ref()
                .map(Replicas::reports)
                .unwrap_or_default(),
            list_owner: lead.connector.shared.list_owner(),
            last_listed: lock(&self.listed_at).map(|at| at.to_string()),
            in_flight: self.in_flight(),
            queued: self.queued(),
            refused: self.limiter.refused(),
            answered: self.stats.answered.load(Ordering::Relaxed),
            failed: self.stats.failed.load(Ordering::Relaxed),
            latency_ms_p50: self.latency_ms(0.5),
            latency_ms_p99: self.latency_ms(0.99),
            odd_lines: stray.count,
            last_odd_line: stray.last().cloned(),
            stderr: identity.output.stderr(),
        }
    }

    /// The time that this part of the answers took at most, milliseconds.
    fn latency_ms(&self, part: f64) -> Option<f64> {
        let latency = self.stats.latency().percentile(part)?;
        Some((latency.as_secs_f64() * 1e6).round() / 1e3)
    }

    /// What it wrote to stderr after the line `after`, and which the last line is; the first is 1.
    pub fn stderr_after(&self, after: u64) -> (Vec<String>, u64) {
        let lead = self.listing_source();
        lead.connector.shared.identity.output.stderr_after(after)
    }

    /// Where it stands, by its own connections.
    pub(super) fn snapshot(&self) -> StateSnapshot {
        let work = self.instance_transition();
        let stand = self.connector.shared.state_machine().snapshot();
        let Some(work) = work else {
            return StateSnapshot {
                asleep: matches!(self.catalog.phase(), InstancePhase::Asleep(_)),
                ..stand
            };
        };
        let mut history = stand.history;
        if history.len() == HISTORY_MAX {
            history.remove(0);
        }
        history.push(work.clone());
        StateSnapshot {
            state: work.state,
            asleep: false,
            reason: None,
            history,
        }
    }

    /// How far its connections beside the catalog's are while that one sleeps: the one that is
    /// connected for longest counts, else the one that is being connected for longest.
    pub(super) fn instance_transition(&self) -> Option<Transition> {
        if !matches!(self.catalog.phase(), InstancePhase::Asleep(_)) {
            return None;
        }
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.extend(self.pool.iter().flat_map(ConnectionPool::all));
        let works = all.iter().filter_map(|instance| instance.activity_state());
        let (state, at) =
            works.min_by_key(|(state, at)| (*state != ServerState::Connected, *at))?;
        Some(Transition {
            at: at.to_string(),
            state,
            reason: None,
        })
    }

    /// Until when the next start has to wait, where one is wanted.
    fn held_back_until(&self, phase: &InstancePhase) -> Option<String> {
        let wait = match phase {
            InstancePhase::Connecting | InstancePhase::Down { .. } => {
                self.connector.shared.reconnect.start_wait(None)
            }
            InstancePhase::Asleep(_) | InstancePhase::Ready(_) => Duration::ZERO,
        };
        let wait = jiff::SignedDuration::try_from(wait).ok()?;
        let until = clock::now().checked_add(wait).ok()?;
        (!wait.is_zero()).then(|| until.to_string())
    }

    /// How it is reached, in a word; `auto` until it was connected where that is found by probing.
    pub fn transport_name(&self) -> &'static str {
        let lead = self.listing_source();
        let found = lead.connector.shared.identity.transport();
        found.unwrap_or_else(|| lead.config().transport.name())
    }

    /// The sum of a figure over all replicas, or the server's own.
    fn sum_over_replicas<T: std::iter::Sum>(&self, figure: impl Fn(&Self) -> T) -> T {
        match &self.replicas {
            None => figure(self),
            Some(replicas) => replicas.backends().map(|replica| figure(replica)).sum(),
        }
    }

    /// Those of callers that are not closed, with all replicas.
    fn caller_breakers(&self) -> Vec<CallerBreaker> {
        let Some(replicas) = &self.replicas else {
            return self.breaker.caller_reports();
        };
        let of_each = replicas.named().flat_map(|(name, replica)| {
            let of_callers = replica.breaker.caller_reports().into_iter();
            of_callers.map(|breaker| CallerBreaker {
                replica: Some(name.to_owned()),
                ..breaker
            })
        });
        of_each.collect()
    }

    fn live_instances(&self) -> usize {
        let live = |instance: &&Arc<Instance>| {
            matches!(
                instance.phase(),
                InstancePhase::Ready(_) | InstancePhase::Connecting
            )
        };
        let pooled = self.pool.as_ref().map_or(0, ConnectionPool::live);
        self.lock().values().filter(live).count() + pooled
    }

    fn busy_instances(&self) -> usize {
        let pooled = self.pool.as_ref().map_or(0, ConnectionPool::busy);
        let instances = self.lock();
        instances.values().filter(|it| it.is_busy()).count() + pooled
    }

    fn checks(&self) -> HealthChecks {
        let own = |backend: &Self| *lock(&backend.connector.shared.identity.checks);
        match &self.replicas {
            None => own(self),
            Some(replicas) => replicas
                .backends()
                .map(|replica| own(replica))
                .fold(HealthChecks::default(), HealthChecks::merged),
        }
    }
}

impl Transport {
    /// How it is reached, without secrets: the program, or the URL without its query, and without a path
    /// that came of the environment.
    pub(super) fn to_address(&self) -> String {
        match self {
            Self::Builtin => "builtin".to_owned(),
            Self::ControlSocket(session) => session.socket.display().to_string(),
            Self::Stdio(command) => command.program.clone(),
            Self::Auto(remote)
            | Self::Http(remote)
            | Self::Sse(remote)
            | Self::WebSocket(remote) => {
                let (url, path) = (&remote.url, remote.displayed_path());
                let scheme = url.scheme_str().unwrap_or_default();
                let host = url.authority().map_or("", |authority| authority.as_str());
                format!("{scheme}://{host}{path}")
            }
        }
    }
    /// How it is reached, in a word.
    fn name(&self) -> &'static str {
        match self {
            Self::Auto(_) => "auto",
            Self::Builtin => "builtin",
            Self::ControlSocket(_) => "control_socket",
            Self::Http(_) => "http",
            Self::Sse(_) => "sse",
            Self::Stdio(_) => "stdio",
            Self::WebSocket(_) => "websocket",
        }
    }
}
