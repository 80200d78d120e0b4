//! `/metrics`: the figures of `/status` for Prometheus, in the text form of OpenMetrics 1.0.
//!
//! Everything is counted where it happens and read here when somebody asks, so that a call pays
//! for no metrics. Labels are the names of servers and replicas, states and codes: their number is
//! bounded by the config. The README has them in a table.

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
        let help = "Servers by the state they are in";
        let mut family = gauge(encoder, "servers", help)?;
        for state in names() {
            let figure = self.states.iter().filter(|it| **it == state).count();
            set(&mut family, &[("state", state)], bounded(figure))?;
        }
        Ok(())
    }
}

fn serving(encoder: &mut DescriptorEncoder<'_>, is_serving: bool) -> Result<(), Error> {
    let help = "1 while calls are taken and served";
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
        let mut family = gauge(encoder, "server_state", "1 for the state a server is in")?;
        for ServerFigures { report, .. } in &self.servers {
            for state in names() {
                let labels = [("server", &*report.name), ("state", state)];
                let is_it = named(report.state, report.asleep) == state;
                set(&mut family, &labels, u64::from(is_it))?;
            }
        }
        let help = "Tools that a server offers";
        self.each(gauge(encoder, "server_tools", help)?, |server| {
            bounded(server.tools)
        })?;
        let help = "Attempts to connect to a server again";
        self.each_counted(counter(encoder, "server_restarts", help)?, |server| {
            server.report.restarts
        })?;
        let help = "Attempts to connect to a server that failed";
        self.each_counted(counter(encoder, "server_failed_starts", help)?, |server| {
            server.report.failed_starts
        })?;
        let help = "Instances of a server beside the catalog's by the state they are in";
        let mut family = gauge(encoder, "server_instances", help)?;
        for ServerFigures { report, .. } in &self.servers {
            for state in names() {
                let all = report.instances.iter();
                let figure = all.filter(|it| named(it.state, it.asleep) == state).count();
                let labels = [("server", &*report.name), ("state", state)];
                set(&mut family, &labels, bounded(figure))?;
            }
        }
        let help = "Those of server_instances with calls under way or subscriptions";
        self.each(gauge(encoder, "server_instances_busy", help)?, |server| {
            bounded(server.report.instances_busy)
        })
    }

    /// How the gateway takes care that a server is well and not overrun.
    fn care(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 for the state that the breaker of a server is in";
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
        let help = "Times that the breaker of a server opened";
        self.each_counted(counter(encoder, "server_breaker_opened", help)?, |server| {
            server.report.breaker.opened
        })?;
        let help = "Health checks of a server by what came of them";
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
        let help = "Calls that a server works on";
        self.each(gauge(encoder, "server_calls_in_flight", help)?, |server| {
            server.report.in_flight
        })?;
        let help =
            "Calls that wait for limits.in_flight of a server, or for a connection of its pool";
        self.each(gauge(encoder, "server_calls_queued", help)?, |server| {
            bounded(server.report.queued)
        })?;
        let help = "Calls that found no room in the queue of a server, or waited too long";
        self.each_counted(counter(encoder, "server_calls_rejected", help)?, |server| {
            server.report.refused
        })
    }

    /// The replicas of servers that have some.
    fn replicas(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Replicas of a server that get calls, that get none for a while since they \
                    failed, and that are down: not connected, or refusing our credential";
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
        let help = "1 for the state that a replica is in, as server_replicas counts them";
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
        let help = "1 for the state that the breaker of a replica is in";
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
        let help = "Calls that a replica works on";
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
        let calls = "Calls that a server answered, or did not answer";
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
            &mut gauge(encoder, "build", "1, with the version of this program")?,
            &version,
            1,
        )?;
        let started = ConstGauge::new(self.started.as_secs_f64());
        let help = "When the gateway started, seconds since 1970";
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
        let duration = "Time from forwarding a call to its answer, seconds";
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
            counter(encoder, "server_sent_bytes", "Params sent to a server")?,
            |used| used.bytes_to,
        )?;
        let received = "Results and errors that a server answered with";
        self.each(
            counter(encoder, "server_received_bytes", received)?,
            |used| used.bytes_from,
        )?;
        let spent = "Prices of calls that were charged, millionths of a US dollar";
        self.each(counter(encoder, "spent_micro_dollars", spent)?, |used| {
            used.spent_micros
        })?;
        let mut refused = counter(encoder, "refused_calls", "Calls that governance refused")?;
        for (code, calls) in &self.counts.refused {
            count(&mut refused, &[("code", *code)], *calls)?;
        }
        let help = "Calls that a rule which is only observed would have refused";
        let mut observed = counter(encoder, "observed_calls", help)?;
        for (rule, calls) in &self.counts.observed {
            count(&mut observed, &[("rule", *rule)], *calls)?;
        }
        let help = "Requests answered 429 since their agent was refused too often";
        let held_back = counter(encoder, "held_back_requests", help)?;
        ConstCounter::new(self.counts.held_back).encode(held_back)?;
        let help = "Requests that showed no API key, or none that opens anything";
        let mut strangers = counter(encoder, "unauthenticated_requests", help)?;
        for (reason, requests) in &self.counts.unauthenticated {
            count(&mut strangers, &[("reason", *reason)], *requests)?;
        }
        let help = "Requests that were refused for their header Host or Origin";
        let mut forbidden = counter(encoder, "forbidden_requests", help)?;
        for (reason, requests) in &self.counts.forbidden {
            count(&mut forbidden, &[("reason", *reason)], *requests)?;
        }
        let lost = "Records of the audit that could not be written";
        ConstCounter::new(self.audit_lost).encode(counter(encoder, "audit_lost_records", lost)?)?;
        self.audit(encoder)?;
        let help = "Sessions of legacy clients that are open";
        ConstGauge::new(bounded(self.sessions)).encode(gauge(encoder, "sessions", help)?)?;
        let help = "Event streams that clients read";
        ConstGauge::new(self.streams).encode(gauge(encoder, "streams", help)?)?;
        self.limits.encode(encoder)
    }

    /// What room the audit has, and the place of its chain that was last told to the log.
    fn audit(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Room { used, quota, free } = self.audit_room;
        for (name, help, bytes) in [
            ("audit_used_bytes", "What the audit takes", used),
            ("audit_quota_bytes", "What the audit may take", quota),
            (
                "audit_free_bytes",
                "What is free on the disk of the audit",
                free,
            ),
        ] {
            ConstGauge::new(bytes).encode(gauge(encoder, name, help)?)?;
        }
        if let Some(labels) = &self.audit_head {
            let help = "The last signed line of the audit that the log was told of";
            let mut head = gauge(encoder, "audit_head", help)?;
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
            (
                "connections",
                "Connections of clients that are open",
                self.connections,
            ),
            (
                "connections_max",
                "Connections that may be open (limits.connections)",
                self.connections_max,
            ),
            (
                "in_flight_bytes",
                "Bytes of messages that are held",
                self.bytes_in_flight,
            ),
            (
                "in_flight_max_bytes",
                "Bytes of messages that may be held (limits.bytes_in_flight)",
                self.bytes_in_flight_max,
            ),
        ] {
            ConstGauge::new(bounded(figure)).encode(gauge(encoder, name, help)?)?;
        }
        for (name, help, figure) in [
            (
                "connections_rejected",
                "Connections closed since their address had as many as it may",
                self.connections_rejected,
            ),
            (
                "in_flight_rejected",
                "Requests turned away, and answers given up, for want of memory",
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
