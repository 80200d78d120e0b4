//! What `/status` says of a server.

use std::sync::atomic::Ordering;

use serde::Serialize;

use super::{Backend, Failure, control::transport_name, failure::display_odd, instance::Phase};

/// The state of a server, as people see it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Initialised and listed.
    Connected,
    /// A connection is being made.
    Connecting,
    /// Connected, but its lists cannot be read.
    Degraded,
    /// Switched off in the config.
    Disabled,
    /// Was connected; being connected again.
    Disconnected,
    /// Could not be connected; being tried again.
    Failed,
    /// Refuses our credential.
    NeedsReauth,
}

impl State {
    /// The state as `/status` writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Connecting => "connecting",
            Self::Degraded => "degraded",
            Self::Disabled => "disabled",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
            Self::NeedsReauth => "needs_reauth",
        }
    }
}

/// One server in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// See [`State`].
    pub state: State,
    /// Why it is in that state, when it is not connected; while it is being started again, why the
    /// last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How it is reached.
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
    /// Labels from the config.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Attempts to make the catalog's connection after the first, whether they succeeded or not.
    pub restarts: u64,
    /// Attempts to make it that failed, the first included.
    pub failed_starts: u64,
    /// Connections beside the catalog's.
    pub instances: usize,
    /// When it was last listed, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_listed: Option<String>,
    /// Calls under way.
    pub in_flight: u64,
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

impl Report {
    /// The same without what the server wrote and what its process is.
    #[must_use]
    pub fn without_details(mut self) -> Self {
        self.reason = None;
        self.server_info = None;
        self.pid = None;
        self.last_odd_line = None;
        self.stderr = Vec::new();
        self
    }
}

impl Backend {
    /// How the server does.
    pub fn report(&self) -> Report {
        let phase = self.catalog.phase();
        let (state, reason) = self.state(&phase);
        let connection = match &phase {
            Phase::Ready(connection) => Some(connection),
            Phase::Connecting | Phase::Down { .. } => None,
        };
        let odd = self.maker.odd().clone();
        let millis = |part| {
            self.stats
                .latency()
                .percentile(part)
                .map(|latency| latency.as_secs_f64() * 1e3)
        };
        let info = connection.and_then(|connection| connection.hello.info.clone());
        Report {
            name: self.name.to_string(),
            state,
            reason,
            transport: transport_name(&self.config.transport),
            revision: connection.map(|connection| connection.hello.revision.as_str()),
            server_info: info.and_then(|info| info.read().ok()),
            pid: connection.and_then(|connection| connection.pid),
            tags: self.written().tags.clone(),
            restarts: self.maker.shared.restarts.load(Ordering::Relaxed),
            failed_starts: self.maker.shared.failed_starts.load(Ordering::Relaxed),
            instances: self.live_instances(),
            last_listed: self.listed().at.map(|at| at.to_string()),
            in_flight: self.stats.in_flight.load(Ordering::Relaxed),
            answered: self.stats.answered.load(Ordering::Relaxed),
            failed: self.stats.failed.load(Ordering::Relaxed),
            latency_ms_p50: millis(0.5),
            latency_ms_p99: millis(0.99),
            odd_lines: odd.count,
            last_odd_line: odd.last().cloned(),
            stderr: self.maker.stderr.lines(),
        }
    }

    fn state(&self, phase: &Phase) -> (State, Option<String>) {
        let listed = self.listed().clone();
        match phase {
            Phase::Connecting => (State::Connecting, self.being_started()),
            Phase::Down {
                failure: Failure::Disabled,
            } => (State::Disabled, None),
            Phase::Down {
                failure: failure @ Failure::Unauthorized { .. },
            } => (State::NeedsReauth, Some(failure.to_string())),
            Phase::Down { failure } if listed.at.is_some() => {
                (State::Disconnected, Some(failure.to_string()))
            }
            Phase::Down { failure } => (State::Failed, Some(failure.to_string())),
            Phase::Ready(_) => match (listed.refusal.or(listed.failure), listed.at) {
                (Some(refusal @ Failure::Unauthorized { .. }), _) => {
                    (State::NeedsReauth, Some(refusal.to_string()))
                }
                (Some(failure), _) => (State::Degraded, Some(failure.to_string())),
                (None, Some(_)) => (State::Connected, None),
                (None, None) => (
                    State::Connecting,
                    Some("its lists are being read".to_owned()),
                ),
            },
        }
    }

    /// What is known of a start that is under way: why it is not the first, else what came so far.
    fn being_started(&self) -> Option<String> {
        if let Some(failure) = &*self.maker.shared.trouble() {
            return Some(format!("it is being started again: {failure}"));
        }
        let odd = self.maker.odd();
        (odd.count > 0).then(|| {
            let lines = odd.since(0);
            format!("it has not answered yet{}", display_odd(&lines))
        })
    }

    fn live_instances(&self) -> usize {
        let live = |instance: &&std::sync::Arc<super::Instance>| {
            matches!(instance.phase(), Phase::Ready(_) | Phase::Connecting)
        };
        self.lock().values().filter(live).count()
    }
}
