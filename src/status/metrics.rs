//! `/metrics`: the figures of `/status` for Prometheus, in the text form of OpenMetrics 1.0.
//!
//! Everything is counted where it happens and read here when somebody asks, so that a call pays
//! for no metrics. Labels are the names of servers, states and codes: their number is bounded by
//! the config.

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

use super::{Insight, Status};
use crate::{
    backend::{Report, State},
    governance::Counts,
    telemetry::Buckets,
};

/// What the answer says it is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every state a server can be in.
const STATES: [State; 7] = [
    State::Connected,
    State::Connecting,
    State::Degraded,
    State::Disabled,
    State::Disconnected,
    State::Failed,
    State::NeedsReauth,
];

/// The figures at one moment.
#[derive(Debug)]
struct Figures {
    serving: bool,
    started: Duration,
    servers: Vec<Server>,
    /// For those who may see everything.
    traffic: Option<Traffic>,
}

#[derive(Debug)]
struct Server {
    report: Report,
    tools: usize,
}

/// What shows who uses the gateway, and how much.
#[derive(Debug)]
struct Traffic {
    servers: Vec<Used>,
    counts: Counts,
    audit_lost: u64,
    sessions: usize,
    streams: u64,
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
pub(super) fn render(status: &Status, insight: Insight, streams: u64) -> String {
    let mut registry = Registry::with_prefix("tollbridge");
    registry.register_collector(Box::new(Figures::of(status, insight, streams)));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("a String takes all");
    out
}

impl Figures {
    fn of(status: &Status, insight: Insight, streams: u64) -> Self {
        let catalog = status.proxy.board().catalog();
        let backends = status.proxy.backends();
        let server = |report: Report, tools| Server { report, tools };
        let started = SystemTime::from(status.started_at).duration_since(UNIX_EPOCH);
        Self {
            serving: status.is_serving(),
            started: started.unwrap_or_default(),
            servers: backends
                .all()
                .map(|backend| server(backend.report(), catalog.counts(&backend.name).tools))
                .collect(),
            traffic: match insight {
                Insight::States => None,
                Insight::Whole => Some(Traffic::of(status, streams)),
            },
        }
    }

    fn servers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut family = gauge(encoder, "server_state", "1 for the state a server is in")?;
        for server in &self.servers {
            for state in STATES {
                let labels = [("server", &*server.report.name), ("state", state.as_str())];
                set(
                    &mut family,
                    &labels,
                    u64::from(server.report.state == state),
                )?;
            }
        }
        self.each(
            gauge(encoder, "server_tools", "Tools that a server offers")?,
            |server| u64::try_from(server.tools).unwrap_or(u64::MAX),
        )?;
        let restarts = "Attempts to connect to a server again";
        self.each_counted(counter(encoder, "server_restarts", restarts)?, |server| {
            server.report.restarts
        })?;
        let failed = "Attempts to connect to a server that failed";
        self.each_counted(
            counter(encoder, "server_failed_starts", failed)?,
            |server| server.report.failed_starts,
        )?;
        self.each(
            gauge(
                encoder,
                "server_calls_in_flight",
                "Calls that a server works on",
            )?,
            |server| server.report.in_flight,
        )
    }

    fn each(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&Server) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            set(
                &mut family,
                &[("server", &*server.report.name)],
                figure(server),
            )?;
        }
        Ok(())
    }

    fn each_counted(
        &self,
        mut family: MetricEncoder<'_>,
        figure: impl Fn(&Server) -> u64,
    ) -> Result<(), Error> {
        for server in &self.servers {
            count(
                &mut family,
                &[("server", &*server.report.name)],
                figure(server),
            )?;
        }
        Ok(())
    }

    fn calls(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let calls = "Calls that a server answered, or did not answer";
        let mut family = counter(encoder, "server_calls", calls)?;
        for Server { report, .. } in &self.servers {
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
        let serving = ConstGauge::new(u64::from(self.serving));
        serving.encode(gauge(
            encoder,
            "serving",
            "1 while calls are taken and served",
        )?)?;
        self.servers(encoder)?;
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
            sessions: status.proxy.sessions().len(),
            streams,
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
        let lost = "Records of the audit that could not be written";
        ConstCounter::new(self.audit_lost).encode(counter(encoder, "audit_lost_records", lost)?)?;
        let sessions = u64::try_from(self.sessions).unwrap_or(u64::MAX);
        let help = "Sessions of legacy clients that are open";
        ConstGauge::new(sessions).encode(gauge(encoder, "sessions", help)?)?;
        let help = "Event streams that clients read";
        ConstGauge::new(self.streams).encode(gauge(encoder, "streams", help)?)
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
