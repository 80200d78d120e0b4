//! `/metrics`: the figures of `/status` for Prometheus, in the text form of OpenMetrics 1.0.
//!
//! Everything is counted where it happens and read here on a scrape, so a call pays nothing for
//! metrics. Labels are names of servers and replicas, states and codes: the config bounds their
//! number. `docs/src/reference/metrics.md` is generated from this output.

use std::{
    fmt::Error,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::{Detail, ProcessUsage, Status, StatusAccess};
use crate::{
    audit::{AuditLog, Room},
    backend::{ReplicaReport, ServerState, ServerStatusReport},
    governance::RefusalCounts,
    telemetry::Buckets,
};

/// What the answer says it is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The state of a server that is disconnected because nobody uses it, which is no cause for alarm.
const SLEEPING: &str = "sleeping";
/// What [`BreakerReport`](crate::backend::BreakerReport) says.
const BREAKER_STATES: [&str; 3] = ["closed", "half_open", "open"];

/// The state of a server or an instance: that of `/status`, where one that sleeps is told apart by
/// `asleep`.
fn named(state: ServerState, is_asleep: bool) -> &'static str {
    if is_asleep && state == ServerState::Disconnected {
        SLEEPING
    } else {
        state.as_str()
    }
}

/// All that [`named`] says.
fn names() -> impl Iterator<Item = &'static str> {
    ServerState::ALL
        .map(ServerState::as_str)
        .into_iter()
        .chain([SLEEPING])
}

/// Whether a replica gets calls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReplicaState {
    Down,
    Ejected,
    Healthy,
}

impl ReplicaState {
    const ALL: [Self; 3] = [Self::Down, Self::Ejected, Self::Healthy];

    fn of(replica: &ReplicaReport) -> Self {
        if replica.is_ejected() {
            Self::Ejected
        } else if replica.is_healthy() {
            Self::Healthy
        } else {
            Self::Down
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Ejected => "ejected",
            Self::Healthy => "healthy",
        }
    }
}

fn of_replica<'l>(
    server: &'l ServerFigures,
    replica: &'l ReplicaReport,
) -> [(&'static str, &'l str); 2] {
    [("server", &server.report.name), ("replica", &replica.name)]
}

fn bounded(figure: usize) -> u64 {
    u64::try_from(figure).unwrap_or(u64::MAX)
}

/// The figures at one moment.
#[derive(Debug)]
struct Figures {
    serving: bool,
    started: Duration,
    servers: Vec<ServerFigures>,
    /// For those who may see everything.
    traffic: Option<Traffic>,
}

#[derive(Debug)]
struct ServerFigures {
    report: ServerStatusReport,
    tools: usize,
}

/// What shows who uses the gateway, and how much.
#[derive(Debug)]
struct Traffic {
    servers: Vec<Used>,
    counts: RefusalCounts,
    audit_lost: u64,
    audit_room: Room,
    audit_head: Option<[(&'static str, String); 3]>,
    sessions: usize,
    streams: u64,
    limits: ProcessUsage,
}

/// How much one server is used.
#[derive(Debug)]
struct Used {
    name: String,
    latency: Buckets,
    bytes_to: u64,
    bytes_from: u64,
    spent_micros: u64,
}

/// The figures of `status` as text; `streams` are the event streams that clients read.
pub(super) fn render(status: &Status, insight: StatusAccess, streams: u64) -> String {
    let mut registry = Registry::with_prefix("tollbridge");
    match insight.detail() {
        Some(detail) => {
            registry.register_collector(Box::new(Figures::of(status, detail, streams)));
        }
        None => registry.register_collector(Box::new(PublicFigures::of(status))),
    }
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a String takes all");
    out
}

/// The figures for those who may see nothing but states.
#[derive(Debug)]
struct PublicFigures {
    serving: bool,
    states: Vec<&'static str>,
}

impl PublicFigures {
    fn of(status: &Status) -> Self {
        let servers = status.proxy.backends().all();
        let states = servers.map(|backend| {
            let report = backend.report();
            named(report.state, report.asleep)
        });
        Self {
            serving: status.blocked().is_ok(),
            states: states.collect(),
        }
    }
}

impl Collector for PublicFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        serving(encoder, self.serving)?;
        let help = "Servers by state";
        let mut family = gauge(encoder, "servers", help)?;
        for state in names() {
            let figure = self.states.iter().filter(|it| **it == state).count();
            set(&mut family, &[("state", state)], bounded(figure))?;
        }
        Ok(())
    }
}

fn serving(encoder: &mut DescriptorEncoder<'_>, is_serving: bool) -> Result<(), Error> {
    let help = "1 while the gateway serves calls";
    ConstGauge::new(u64::from(is_serving)).encode(gauge(encoder, "serving", help)?)
}

impl Figures {
    fn of(status: &Status, detail: Detail, streams: u64) -> Self {
        let catalog = status.proxy.board().catalog();
        let backends = status.proxy.backends();
        let server = |report: ServerStatusReport, tools| ServerFigures { report, tools };
        let started = SystemTime::from(status.started_at).duration_since(UNIX_EPOCH);
        Self {
            serving: status.blocked().is_ok(),
            started: started.unwrap_or_default(),
            servers: backends
                .all()
                .map(|backend| server(backend.report(), catalog.counts(&backend.name).tools))
                .collect(),
            traffic: match detail {
                Detail::Part => None,
                Detail::Whole => Some(Traffic::of(status, streams)),
            },
        }
    }

    fn servers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut family = gauge(
            encoder,
            "server_state",
            "1 for the current state of the server",
        )?;
        for ServerFigures { report, .. } in &self.servers {
            for state in names() {
                let labels = [("server", &*report.name), ("state", state)];
                let is_it = named(report.state, report.asleep) == state;
                set(&mut family, &labels, u64::from(is_it))?;
            }
        }
        let help = "Tools the server offers";
        self.each(gauge(encoder, "server_tools", help)?, |server| {
            bounded(server.tools)
        })?;
        let help = "Reconnection attempts, over all instances and replicas";
        self.each_counted(counter(encoder, "server_restarts", help)?, |server| {
            server.report.restarts
        })?;
        let help = "Failed connection attempts, over all instances and replicas";
        self.each_counted(counter(encoder, "server_failed_starts", help)?, |server| {
            server.report.failed_starts
        })?;
        let help = "Instances besides the catalog connection (isolation), by state";
        let mut family = gauge(encoder, "server_instances", help)?;
        for ServerFigures { report, .. } in &self.servers {
            for state in names() {
                let all = report.instances.iter();
                let figure = all.filter(|it| named(it.state, it.asleep) == state).count();
                let labels = [("server", &*report.name), ("state", state)];
                set(&mut family, &labels, bounded(figure))?;
            }
        }
        let help = "Instances with running calls or subscriptions";
        self.each(gauge(encoder, "server_instances_busy", help)?, |server| {
            bounded(server.report.instances_busy)
        })
    }

    /// How the gateway takes care that a server is well and not overrun.
    fn care(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 for the current state of the server's circuit breaker; with replicas, of the listed one's";
        let mut family = gauge(encoder, "server_breaker_state", help)?;
        for ServerFigures { report, .. } in &self.servers {
            for state in BREAKER_STATES {
                let labels = [("server", &*report.name), ("state", state)];
                set(
                    &mut family,
                    &labels,
                    u64::from(report.breaker.state == state),
                )?;
            }
        }
        let help = "Times the circuit breaker of the server or of a replica opened";
        self.each_counted(counter(encoder, "server_breaker_opened", help)?, |server| {
            server.report.breaker.opened
        })?;
        let help = "Health checks of the catalog connection, by result";
        let mut family = counter(encoder, "server_health_checks", help)?;
        for ServerFigures { report, .. } in &self.servers {
            let checks = &report.health_checks;
            for (result, figure) in [
                ("answered", checks.answered),
                ("missed", checks.missed),
                ("unauthorized", checks.unauthorized),
            ] {
                let labels = [("server", &*report.name), ("result", result)];
                count(&mut family, &labels, figure)?;
            }
        }
        let help = "Calls in flight";
        self.each(gauge(encoder, "server_calls_in_flight", help)?, |server| {
            server.report.in_flight
        })?;
        let help = "Calls waiting for limits.in_flight or for a pool connection";
        self.each(gauge(encoder, "server_calls_queued", help)?, |server| {
            bounded(server.report.queued)
        })?;
        let help = "Calls rejected because limits.queue was full or the wait too long";
        self.each_counted(counter(encoder, "server_calls_rejected", help)?, |server| {
            server.report.refused
        })
    }

    /// The replicas of servers that have some.
    fn replicas(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Replicas by state: healthy (degraded ones included), ejected after a failure, or \
                    down (not connected, or refusing the credential)";
        let mut family = gauge(encoder, "server_replicas", help)?;
        for server in self
            .servers
            .iter()
            .filter(|it| !it.report.replicas.is_empty())
        {
            for state in ReplicaState::ALL {
                let all = server.report.replicas.iter();
                let figure = all.filter(|it| ReplicaState::of(it) == state).count();
                let labels = [("server", &*server.report.name), ("state", state.as_str())];
                set(&mut family, &labels, bounded(figure))?;
            }
        }
        let help = "1 for the current state of the replica";
        let mut family = gauge(encoder, "replica_state", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                for state in ReplicaState::ALL {
                    let of = of_replica(server, replica);
                    let labels = [of[0], of[1], ("state", state.as_str())];
                    let is_it = ReplicaState::of(replica) == state;
                    set(&mut family, &labels, u64::from(is_it))?;
                }
            }
        }
        let help = "1 for the current state of the replica's circuit breaker";
        let mut family = gauge(encoder, "replica_breaker_state", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                for state in BREAKER_STATES {
                    let of = of_replica(server, replica);
                    let labels = [of[0], of[1], ("state", state)];
                    let is_it = replica.breaker.state == state;
                    set(&mut family, &labels, u64::from(is_it))?;
                }
            }
        }
        let help = "Calls in flight at the replica";
        let mut family = gauge(encoder, "replica_calls_in_flight", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                let labels = of_replica(server, replica);
                set(&mut family, &labels, replica.in_flight)?;
            }
        }
        Ok(())
    }

    fn each(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&ServerFigures) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            let labels = [("server", &*server.report.name)];
            set(&mut family, &labels, figure(server))?;
        }
        Ok(())
    }

    fn each_counted(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&ServerFigures) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            let labels = [("server", &*server.report.name)];
            count(&mut family, &labels, figure(server))?;
        }
        Ok(())
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let calls = "Finished calls, by outcome";
        let mut family = counter(encoder, "server_calls", calls)?;
        for ServerFigures { report, .. } in &self.servers {
            for (outcome, calls) in [("answered", report.answered), ("failed", report.failed)] {
                let labels = [("server", &*report.name), ("outcome", outcome)];
                count(&mut family, &labels, calls)?;
            }
        }
        Ok(())
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        set(
            &mut gauge(
                encoder,
                "build",
                "Always 1; the label is the version of the program",
            )?,
            &version,
            1,
        )?;
        let started = ConstGauge::new(self.started.as_secs_f64());
        let help = "Start time of the gateway in Unix seconds";
        started.encode(gauge(encoder, "start_time_seconds", help)?)?;
        serving(encoder, self.serving)?;
        self.servers(encoder)?;
        self.care(encoder)?;
        self.replicas(encoder)?;
        self.calls(encoder)?;
        match &self.traffic {
            Some(traffic) => traffic.encode(encoder),
            None => Ok(()),
        }
    }
}

impl Traffic {
    fn of(status: &Status, streams: u64) -> Self {
        let governance = status.proxy.governance();
        let counts = governance.counts();
        let used = status.proxy.backends().all().map(|backend| Used {
            name: backend.name.to_string(),
            latency: backend.stats.latency().buckets(),
            bytes_to: backend.stats.bytes_to(),
            bytes_from: backend.stats.bytes_from(),
            spent_micros: governance.spent_on(&backend.name),
        });
        Self {
            servers: used.collect(),
            audit_lost: governance.audit().lost(),
            audit_room: governance.audit().room(),
            audit_head: head_of(governance.audit()),
            sessions: status.proxy.sessions().len(),
            streams,
            limits: ProcessUsage::of(status.proxy.limiter()),
            counts,
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let duration = "Time from forwarding a call to its response, in seconds";
        let mut family = encoder.encode_descriptor(
            "server_call_duration_seconds",
            duration,
            None,
            MetricType::Histogram,
        )?;
        for Used { name, latency, .. } in &self.servers {
            let Buckets {
                sum,
                count,
                buckets,
            } = latency;
            family
                .encode_family(&[("server", &**name)])?
                .encode_histogram::<[(&str, &str); 0]>(*sum, *count, buckets, None)?;
        }
        self.each(
            counter(
                encoder,
                "server_sent_bytes",
                "Bytes of params sent to the server",
            )?,
            |used| used.bytes_to,
        )?;
        let received = "Bytes of results and errors received from the server";
        self.each(
            counter(encoder, "server_received_bytes", received)?,
            |used| used.bytes_from,
        )?;
        let spent = "Charged prices in millionths of a USD";
        self.each(counter(encoder, "spent_micro_dollars", spent)?, |used| {
            used.spent_micros
        })?;
        let mut refused = counter(
            encoder,
            "refused_calls",
            "Calls refused by governance, by `code` (data.code)",
        )?;
        for (code, calls) in &self.counts.refused {
            count(&mut refused, &[("code", *code)], *calls)?;
        }
        let help = "Calls that an observed rule would have refused, by kind of `rule`";
        let mut observed = counter(encoder, "observed_calls", help)?;
        for (rule, calls) in &self.counts.observed {
            count(&mut observed, &[("rule", *rule)], *calls)?;
        }
        let help = "Requests answered with 429 after too many refusals (governance.refusals)";
        let held_back = counter(encoder, "held_back_requests", help)?;
        ConstCounter::new(self.counts.held_back).encode(held_back)?;
        let help = "Requests without a valid API key, by `reason`: missing, unknown, expired, revoked or several";
        let mut strangers = counter(encoder, "unauthenticated_requests", help)?;
        for (reason, requests) in &self.counts.unauthenticated {
            count(&mut strangers, &[("reason", *reason)], *requests)?;
        }
        let help = "Requests refused for a header, by `reason`: host or origin";
        let mut forbidden = counter(encoder, "forbidden_requests", help)?;
        for (reason, requests) in &self.counts.forbidden {
            count(&mut forbidden, &[("reason", *reason)], *requests)?;
        }
        let lost = "Audit records that could not be written";
        ConstCounter::new(self.audit_lost).encode(counter(encoder, "audit_lost_records", lost)?)?;
        self.audit(encoder)?;
        let help = "Open sessions of legacy clients";
        ConstGauge::new(bounded(self.sessions)).encode(gauge(encoder, "sessions", help)?)?;
        let help = "Open event streams of clients";
        ConstGauge::new(self.streams).encode(gauge(encoder, "streams", help)?)?;
        self.limits.encode(encoder)
    }

    /// What room the audit has, and the place of its chain that was last told to the log.
    fn audit(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Room { used, quota, free } = self.audit_room;
        for (name, help, bytes) in [
            ("audit_used_bytes", "Disk usage of the audit log", used),
            (
                "audit_quota_bytes",
                "Maximum disk usage of the audit log (audit.quota)",
                quota,
            ),
            (
                "audit_free_bytes",
                "Free space on the disk of the audit log",
                free,
            ),
        ] {
            ConstGauge::new(bytes).encode(gauge(encoder, name, help)?)?;
        }
        let help = "Always 1, with `chain`, `seq` and `hash` of the last audit checkpoint";
        let mut head = gauge(encoder, "audit_head", help)?;
        if let Some(labels) = &self.audit_head {
            ConstGauge::new(1_u64).encode(head.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn each(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&Used) -> u64,
    ) -> Result<(), Error> {
        for used in &self.servers {
            count(&mut family, &[("server", &*used.name)], figure(used))?;
        }
        Ok(())
    }
}

/// Where the chain is that is written, so that scrapes take it elsewhere.
fn head_of(audit: &AuditLog) -> Option<[(&'static str, String); 3]> {
    let (chain, (seq, hash)) = audit.chain().zip(audit.head())?;
    Some([
        ("chain", chain.to_string()),
        ("seq", seq.to_string()),
        ("hash", hash.to_string()),
    ])
}

impl ProcessUsage {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, figure) in [
            ("connections", "Open client connections", self.connections),
            (
                "connections_max",
                "Maximum open client connections (limits.connections)",
                self.connections_max,
            ),
            (
                "in_flight_bytes",
                "Bytes of messages held at present",
                self.bytes_in_flight,
            ),
            (
                "in_flight_max_bytes",
                "Maximum bytes of messages held (limits.bytes_in_flight)",
                self.bytes_in_flight_max,
            ),
        ] {
            ConstGauge::new(bounded(figure)).encode(gauge(encoder, name, help)?)?;
        }
        for (name, help, figure) in [
            (
                "connections_rejected",
                "Connections closed for limits.connections_per_address",
                self.connections_rejected,
            ),
            (
                "in_flight_rejected",
                "Requests rejected and responses dropped for limits.bytes_in_flight",
                self.bytes_rejected,
            ),
        ] {
            ConstCounter::new(figure).encode(counter(encoder, name, help)?)?;
        }
        Ok(())
    }
}

fn gauge<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
) -> Result<MetricEncoder<'e>, Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn counter<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &'e str,
) -> Result<MetricEncoder<'e>, Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

fn set<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    figure: u64,
) -> Result<(), Error> {
    ConstGauge::new(figure).encode(family.encode_family(labels)?)
}

fn count<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    figure: u64,
) -> Result<(), Error> {
    ConstCounter::new(figure).encode(family.encode_family(labels)?)
}
