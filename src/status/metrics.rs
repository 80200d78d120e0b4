//! `/metrics`: the figures of `/status` for Prometheus, in its text form or that of OpenMetrics 1.0.
//!
//! Everything is counted where it happens and read here on a scrape, so a call pays nothing for
//! metrics. Labels are names of servers, replicas, agents and tools, states and codes: the config and
//! limits bound their number. `docs/src/reference/metrics.md` is generated from this output.

mod plain_text;
mod process_figures;
mod usage;

use std::{
    fmt::Error,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use self::{process_figures::ProcessFigures, usage::UsageFigures};
use super::{ConfigReport, ProcessUsage, Status, StatusAccess, StatusDetail};
use crate::{
    audit::{AuditLog, LogSpace},
    backend::{Backend, ReplicaReport, ServerState, ServerStatusReport},
    clock,
    governance::{RefusalCounts, budget::BudgetUse},
    telemetry::LatencyBuckets,
};

/// In which form the figures are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MetricsForm {
    /// OpenMetrics 1.0, for who asks for it.
    OpenMetrics,
    /// The text form of Prometheus, which every scraper reads.
    PlainText,
}

impl MetricsForm {
    /// What an answer in this form says it is.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PlainText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The state of a server that is disconnected because nobody uses it, which is no cause for alarm.
const ASLEEP_STATE: &str = "asleep";
/// What [`BreakerReport`](crate::backend::BreakerReport) says.
const BREAKER_STATES: [&str; 3] = ["closed", "half_open", "open"];

/// The state of a server or an instance: that of `/status`, where one that sleeps is told apart by
/// `asleep`.
fn state_label(state: ServerState, is_asleep: bool) -> &'static str {
    if is_asleep && state == ServerState::Disconnected {
        ASLEEP_STATE
    } else {
        state.as_str()
    }
}

/// All that [`state_label`] says.
fn state_labels() -> impl Iterator<Item = &'static str> {
    ServerState::ALL
        .map(ServerState::as_str)
        .into_iter()
        .chain([ASLEEP_STATE])
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

fn replica_labels<'l>(
    server: &'l ServerFigures,
    replica: &'l ReplicaReport,
) -> [(&'static str, &'l str); 2] {
    [("server", &server.report.name), ("replica", &replica.name)]
}

fn to_u64(figure: usize) -> u64 {
    u64::try_from(figure).unwrap_or(u64::MAX)
}

/// The figures at one moment.
#[derive(Debug)]
struct Figures {
    serving: bool,
    config: ConfigReport,
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
    servers: Vec<ServerUsage>,
    usage: UsageFigures,
    counts: RefusalCounts,
    audit_lost: u64,
    audit_space: LogSpace,
    audit_head: Option<[(&'static str, String); 3]>,
    sessions: usize,
    streams: u64,
    limits: ProcessUsage,
}

/// How much one server is used.
#[derive(Debug)]
struct ServerUsage {
    name: String,
    latency: LatencyBuckets,
    bytes_to: u64,
    bytes_from: u64,
}

/// The figures of `status` as text; `streams` are the event streams that clients read.
pub(super) async fn render(
    status: &Status,
    access: &StatusAccess,
    streams: u64,
    form: MetricsForm,
) -> String {
    let mut registry = Registry::default();
    let own = registry.sub_registry_with_prefix("tollbridge");
    match access.detail() {
        Some(detail) => {
            let budgets = match detail {
                StatusDetail::Full => budget_uses(status).await,
                StatusDetail::Summary => Vec::new(),
            };
            let figures = Figures::of(status, access, (streams, budgets));
            own.register_collector(Box::new(figures));
        }
        None => own.register_collector(Box::new(PublicFigures::of(status))),
    }
    if access.detail() == Some(StatusDetail::Full) {
        let started = SystemTime::from(status.started_at).duration_since(UNIX_EPOCH);
        let process = ProcessFigures::of(started.unwrap_or_default());
        registry.register_collector(Box::new(process));
    }
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a String takes all");
    match form {
        MetricsForm::OpenMetrics => out,
        MetricsForm::PlainText => plain_text::to_plain_text(&out),
    }
}

/// How budgets stand; none where there is no store, or it fails.
async fn budget_uses(status: &Status) -> Vec<BudgetUse> {
    let Some(budgets) = status.proxy.governance().budgets() else {
        return Vec::new();
    };
    let uses = budgets.statuses(clock::now()).await;
    uses.inspect_err(|error| tracing::debug!(%error, "budgets cannot be read for metrics"))
        .unwrap_or_default()
}

/// The figures for those who may see nothing but states.
#[derive(Debug)]
struct PublicFigures {
    serving: bool,
    states: Vec<&'static str>,
}

impl PublicFigures {
    fn of(status: &Status) -> Self {
        let servers = StatusAccess::StatesOnly.backends(&status.proxy);
        let states = servers.into_iter().map(|backend| {
            let report = backend.report();
            state_label(report.state, report.asleep)
        });
        Self {
            serving: status.check_serving().is_ok(),
            states: states.collect(),
        }
    }
}

impl Collector for PublicFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        serving_metric(encoder, self.serving)?;
        let help = "Servers by state";
        let mut family = gauge(encoder, "servers", help)?;
        for state in state_labels() {
            let figure = self.states.iter().filter(|it| **it == state).count();
            set_gauge(&mut family, &[("state", state)], to_u64(figure))?;
        }
        Ok(())
    }
}

fn serving_metric(encoder: &mut DescriptorEncoder<'_>, is_serving: bool) -> Result<(), Error> {
    let help = "1 while the gateway serves calls";
    ConstGauge::new(u64::from(is_serving)).encode(gauge(encoder, "serving", help)?)
}

impl Figures {
    fn of(
        status: &Status,
        access: &StatusAccess,
        (streams, budgets): (u64, Vec<BudgetUse>),
    ) -> Self {
        let catalog_store = status.proxy.catalog_store();
        let server = |backend: Arc<Backend>| ServerFigures {
            tools: catalog_store
                .catalog_of(&backend.name)
                .counts(&backend.name)
                .tools,
            report: backend.report(),
        };
        Self {
            serving: status.check_serving().is_ok(),
            config: status.config_report(),
            servers: access
                .backends(&status.proxy)
                .into_iter()
                .map(server)
                .collect(),
            traffic: match access {
                StatusAccess::StatesOnly | StatusAccess::Summary(_) => None,
                StatusAccess::Full => Some(Traffic::of(status, streams, budgets)),
            },
        }
    }

    fn server_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut family = gauge(
            encoder,
            "server_state",
            "1 for the current state of the server",
        )?;
        for ServerFigures { report, .. } in &self.servers {
            for state in state_labels() {
                let labels = [("server", &*report.name), ("state", state)];
                let is_it = state_label(report.state, report.asleep) == state;
                set_gauge(&mut family, &labels, u64::from(is_it))?;
            }
        }
        let help = "Tools the server offers";
        self.gauge_per_server(gauge(encoder, "server_tools", help)?, |server| {
            to_u64(server.tools)
        })?;
        let help = "Reconnection attempts, over all instances and replicas";
        self.counter_per_server(counter(encoder, "server_restarts", help)?, |server| {
            server.report.restarts
        })?;
        let help = "Failed connection attempts, over all instances and replicas";
        self.counter_per_server(counter(encoder, "server_failed_starts", help)?, |server| {
            server.report.failed_starts
        })?;
        let help = "Instances besides the catalog connection (isolation), by state";
        let mut family = gauge(encoder, "server_instances", help)?;
        for ServerFigures { report, .. } in &self.servers {
            for state in state_labels() {
                let all = report.instances.iter();
                let figure = all
                    .filter(|it| state_label(it.state, it.asleep) == state)
                    .count();
                let labels = [("server", &*report.name), ("state", state)];
                set_gauge(&mut family, &labels, to_u64(figure))?;
            }
        }
        let help = "Instances with running calls or subscriptions";
        self.gauge_per_server(gauge(encoder, "server_instances_busy", help)?, |server| {
            to_u64(server.report.instances_busy)
        })
    }

    /// How the gateway takes care that a server is well and not overrun.
    fn health_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 for the current state of the server's circuit breaker; with replicas, of the listed one's";
        let mut family = gauge(encoder, "server_breaker_state", help)?;
        for ServerFigures { report, .. } in &self.servers {
            for state in BREAKER_STATES {
                let labels = [("server", &*report.name), ("state", state)];
                set_gauge(
                    &mut family,
                    &labels,
                    u64::from(report.breaker.state == state),
                )?;
            }
        }
        let help = "Times the circuit breaker of the server or of a replica opened";
        self.counter_per_server(counter(encoder, "server_breaker_opened", help)?, |server| {
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
                set_counter(&mut family, &labels, figure)?;
            }
        }
        let help = "Calls in flight";
        self.gauge_per_server(gauge(encoder, "server_calls_in_flight", help)?, |server| {
            server.report.in_flight
        })?;
        let help = "Calls waiting for limits.in_flight or for a pool connection";
        self.gauge_per_server(gauge(encoder, "server_calls_queued", help)?, |server| {
            to_u64(server.report.queued)
        })?;
        let help = "Calls rejected because limits.queue was full or the wait too long";
        self.counter_per_server(counter(encoder, "server_calls_rejected", help)?, |server| {
            server.report.refused
        })
    }

    /// The replicas of servers that have some.
    fn replica_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
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
                set_gauge(&mut family, &labels, to_u64(figure))?;
            }
        }
        let help = "1 for the current state of the replica";
        let mut family = gauge(encoder, "replica_state", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                for state in ReplicaState::ALL {
                    let of = replica_labels(server, replica);
                    let labels = [of[0], of[1], ("state", state.as_str())];
                    let is_it = ReplicaState::of(replica) == state;
                    set_gauge(&mut family, &labels, u64::from(is_it))?;
                }
            }
        }
        let help = "1 for the current state of the replica's circuit breaker";
        let mut family = gauge(encoder, "replica_breaker_state", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                for state in BREAKER_STATES {
                    let of = replica_labels(server, replica);
                    let labels = [of[0], of[1], ("state", state)];
                    let is_it = replica.breaker.state == state;
                    set_gauge(&mut family, &labels, u64::from(is_it))?;
                }
            }
        }
        let help = "Calls in flight at the replica";
        let mut family = gauge(encoder, "replica_calls_in_flight", help)?;
        for server in &self.servers {
            for replica in &server.report.replicas {
                let labels = replica_labels(server, replica);
                set_gauge(&mut family, &labels, replica.in_flight)?;
            }
        }
        Ok(())
    }

    /// What programs take of the machine.
    fn program_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Memory of the programs of the server and what they started; 0 where none runs";
        self.gauge_per_server(gauge(encoder, "server_memory_bytes", help)?, |server| {
            server.report.memory_bytes.unwrap_or_default()
        })?;
        let help = "Processor time of the programs of the server that run, in seconds";
        let mut family = gauge(encoder, "server_cpu_seconds", help)?;
        for ServerFigures { report, .. } in &self.servers {
            let labels = [("server", &*report.name)];
            let seconds = report.cpu_seconds.unwrap_or_default();
            ConstGauge::new(seconds).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauge_per_server(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&ServerFigures) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            let labels = [("server", &*server.report.name)];
            set_gauge(&mut family, &labels, figure(server))?;
        }
        Ok(())
    }

    fn counter_per_server(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&ServerFigures) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            let labels = [("server", &*server.report.name)];
            set_counter(&mut family, &labels, figure(server))?;
        }
        Ok(())
    }

    /// Whether the files of the config are what runs.
    fn config_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 when the config was taken that was read last, 0 when it was refused";
        let last = gauge(encoder, "config_last_reload_successful", help)?;
        ConstGauge::new(u64::from(self.config.error.is_none())).encode(last)?;
        let help = "When the config that runs was read, in Unix seconds";
        let name = "config_last_reload_success_timestamp_seconds";
        let read: Option<jiff::Timestamp> = self.config.loaded_at.parse().ok();
        let read = read.map(|at| at.as_duration().as_secs_f64());
        ConstGauge::new(read.unwrap_or_default()).encode(gauge(encoder, name, help)?)?;
        let help = "Changed configs that were taken";
        let reloads = counter(encoder, "config_reloads", help)?;
        ConstCounter::new(self.config.reloads).encode(reloads)
    }

    fn call_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let calls = "Finished calls, by outcome";
        let mut family = counter(encoder, "server_calls", calls)?;
        for ServerFigures { report, .. } in &self.servers {
            for (outcome, calls) in [("answered", report.answered), ("failed", report.failed)] {
                let labels = [("server", &*report.name), ("outcome", outcome)];
                set_counter(&mut family, &labels, calls)?;
            }
        }
        Ok(())
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let encoder = &mut encoder;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "Version of the program";
        encoder
            .encode_descriptor("build", help, None, MetricType::Info)?
            .encode_info(&version)?;
        self.config_metrics(encoder)?;
        serving_metric(encoder, self.serving)?;
        self.server_metrics(encoder)?;
        self.health_metrics(encoder)?;
        self.replica_metrics(encoder)?;
        self.call_metrics(encoder)?;
        let Some(traffic) = &self.traffic else {
            return Ok(());
        };
        traffic.encode(encoder)?;
        self.program_metrics(encoder)
    }
}

impl Traffic {
    fn of(status: &Status, streams: u64, budgets: Vec<BudgetUse>) -> Self {
        let governance = status.proxy.governance();
        let counts = governance.counts();
        let used = status.proxy.backends().all().map(|backend| ServerUsage {
            name: backend.name.to_string(),
            latency: backend.stats.latency().coarse_buckets(),
            bytes_to: backend.stats.bytes_to(),
            bytes_from: backend.stats.bytes_from(),
        });
        let names = status.proxy.backends().all();
        let names = names.map(|backend| backend.name.clone());
        Self {
            servers: used.collect(),
            usage: UsageFigures::of(governance, budgets, names),
            audit_lost: governance.audit().lost_count(),
            audit_space: governance.audit().space(),
            audit_head: audit_head_labels(governance.audit()),
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
        for ServerUsage { name, latency, .. } in &self.servers {
            let LatencyBuckets {
                sum,
                count,
                buckets,
            } = latency;
            family
                .encode_family(&[("server", &**name)])?
                .encode_histogram::<[(&str, &str); 0]>(*sum, *count, buckets, None)?;
        }
        self.counter_per_server(
            counter(
                encoder,
                "server_sent_bytes",
                "Bytes of params sent to the server",
            )?,
            |used| used.bytes_to,
        )?;
        let received = "Bytes of results and errors received from the server";
        self.counter_per_server(
            counter(encoder, "server_received_bytes", received)?,
            |used| used.bytes_from,
        )?;
        self.usage.encode(encoder)?;
        let mut refused = counter(
            encoder,
            "refused_calls",
            "Calls refused by governance, by `code` (data.code)",
        )?;
        for (code, calls) in &self.counts.refused {
            set_counter(&mut refused, &[("code", *code)], *calls)?;
        }
        let help = "Calls that an observed rule would have refused, by kind of `rule`";
        let mut observed = counter(encoder, "observed_calls", help)?;
        for (rule, calls) in &self.counts.observed {
            set_counter(&mut observed, &[("rule", *rule)], *calls)?;
        }
        let help = "Requests answered with 429 after too many refusals (governance.refusal_rate)";
        let held_back = counter(encoder, "throttled_requests", help)?;
        ConstCounter::new(self.counts.held_back).encode(held_back)?;
        let help = "Requests without a valid credential, by `reason`: missing, unknown, expired, revoked or several keys; \
                    certificate; two_agents; insufficient_scope; token_ and why a token was refused";
        let mut unauthenticated = counter(encoder, "unauthenticated_requests", help)?;
        for (reason, requests) in &self.counts.unauthenticated {
            set_counter(&mut unauthenticated, &[("reason", *reason)], *requests)?;
        }
        let help = "Requests refused, by `reason`: host or origin (a header), sign_in (what an issuer of a server sent back)";
        let mut forbidden = counter(encoder, "forbidden_requests", help)?;
        for (reason, requests) in &self.counts.forbidden {
            set_counter(&mut forbidden, &[("reason", *reason)], *requests)?;
        }
        let lost = "Audit records that could not be written";
        ConstCounter::new(self.audit_lost).encode(counter(encoder, "audit_lost_records", lost)?)?;
        self.audit_metrics(encoder)?;
        let help = "Open sessions of legacy clients";
        ConstGauge::new(to_u64(self.sessions)).encode(gauge(encoder, "sessions", help)?)?;
        let help = "Open event streams of clients";
        ConstGauge::new(self.streams).encode(gauge(encoder, "streams", help)?)?;
        self.limits.encode(encoder)
    }

    /// What room the audit has, and the place of its chain that was last told to the log.
    fn audit_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let LogSpace { used, quota, free } = self.audit_space;
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
        let help = "`chain`, `seq` and `hash` of the last audit checkpoint";
        let mut head = encoder.encode_descriptor("audit_head", help, None, MetricType::Info)?;
        if let Some(labels) = &self.audit_head {
            head.encode_info(labels)?;
        }
        Ok(())
    }

    fn counter_per_server(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&ServerUsage) -> u64,
    ) -> Result<(), Error> {
        for used in &self.servers {
            set_counter(&mut family, &[("server", &*used.name)], figure(used))?;
        }
        Ok(())
    }
}

/// Where the chain is that is written, so that scrapes take it elsewhere.
fn audit_head_labels(audit: &AuditLog) -> Option<[(&'static str, String); 3]> {
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
            ConstGauge::new(to_u64(figure)).encode(gauge(encoder, name, help)?)?;
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

fn set_gauge<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    figure: u64,
) -> Result<(), Error> {
    ConstGauge::new(figure).encode(family.encode_family(labels)?)
}

fn set_counter<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    figure: u64,
) -> Result<(), Error> {
    ConstCounter::new(figure).encode(family.encode_family(labels)?)
}
