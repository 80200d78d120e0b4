//! Logging and the latencies shown in `/status`.

mod log_throttle;

use std::{
    io::{self, IsTerminal},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tracing_subscriber::{EnvFilter, field::MakeExt as _, filter::LevelFilter, fmt::format};

pub(crate) use log_throttle::LogThrottle;

use crate::{
    config::{LogConfig, LogFormat},
    escape::escape_controls,
};

/// Starts logging to stderr, with colours on a terminal. A level alone is that of our own lines;
/// those of libraries are shown from warnings on, but for that of the toolbox.
///
/// # Errors
/// When `log.level` cannot be read, or logging was started before.
pub(crate) fn start(log: &LogConfig) -> Result<(), InvalidLogLevel> {
    let invalid = |reason: String| InvalidLogLevel {
        level: log.level.clone(),
        reason,
    };
    let filter = full_filter(&log.level);
    let filter = EnvFilter::try_new(filter).map_err(|error| invalid(error.to_string()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        // It would be said on stderr, which is what cannot be written, and is fatal there.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let started = match log.format {
        LogFormat::Human => builder
            .with_target(false)
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            .try_init(),
        LogFormat::Json => builder
            .json()
            .with_writer(|| EscapedJsonWriter(io::stderr()))
            .try_init(),
    };
    started.map_err(|error| invalid(error.to_string()))
}

/// Writes a field for people. Its value may be of a client or a server, and has neither lines of its own
/// nor anything else that would steer a terminal.
fn write_field(
    writer: &mut format::Writer<'_>,
    field: &tracing::field::Field,
    value: &dyn std::fmt::Debug,
) -> std::fmt::Result {
    let value = escape_controls(&format!("{value:?}"), &[]);
    let name = field.name();
    match (name, writer.has_ansi_escapes()) {
        ("message", _) => writer.write_str(&value),
        (_, true) => write!(writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m{value}"),
        (_, false) => write!(writer, "{name}={value}"),
    }
}

/// Takes lines of JSON, whose strings may have what steers a terminal, and escapes that in them.
#[derive(Debug)]
struct EscapedJsonWriter<W>(W);

impl<W: io::Write> io::Write for EscapedJsonWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let line_end: &[char] = &['\n'];
        match std::str::from_utf8(line) {
            Ok(text) => self
                .0
                .write_all(escape_controls(text, line_end).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The filter that `level`, a filter or a level alone, stands for.
fn full_filter(level: &str) -> String {
    match level.trim().parse::<LevelFilter>() {
        Ok(own) => {
            let others = own.min(LevelFilter::WARN);
            // The peer of `rmcp` is this process, and it takes a connection that is closed for a fault.
            format!("{others},rmcp=off,{}={own}", env!("CARGO_CRATE_NAME"))
        }
        Err(_) => level.to_owned(),
    }
}

/// The log settings cannot be used; the operator mends `log.level`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("log level `{level}`: {reason}")]
pub(crate) struct InvalidLogLevel {
    /// The setting.
    pub level: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Buckets for each doubling; four keep the error of a percentile under 13 %, and far below that
/// where a bucket has many.
const BUCKETS_PER_DOUBLING: u64 = 4;
/// Buckets in all: up to 2^40 microseconds.
const BUCKETS: usize = 160;

/// A histogram of durations: lock-free, fixed size, logarithmic.
#[derive(Debug)]
pub struct Latency {
    counts: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// What a [`Latency`] holds, in coarse buckets whose edges are its own.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyBuckets {
    /// Of all durations, seconds.
    pub sum: f64,
    /// How many there are.
    pub count: u64,
    /// The longest duration of each bucket, seconds, and how many lie in it.
    pub buckets: Vec<(f64, u64)>,
}

/// The coarse buckets end at 2^7 microseconds and each doubling up to 2^27, which is 134 s.
const COARSE_BUCKETS: std::ops::RangeInclusive<usize> = 7..=27;

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_micros: AtomicU64::new(0),
        }
    }
}

impl Latency {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        self.counts[bucket_index(micros)].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// All of it, for a histogram of somebody else.
    pub fn coarse_buckets(&self) -> LatencyBuckets {
        let steps = usize::try_from(BUCKETS_PER_DOUBLING).unwrap_or(1);
        let mut from = 0;
        let mut coarse = Vec::new();
        let ends = COARSE_BUCKETS.map(|log| log * steps);
        for to in ends.chain(std::iter::once(BUCKETS)) {
            let counts = self.counts[from..to].iter();
            let end = if to == BUCKETS {
                f64::INFINITY
            } else {
                bucket_start_micros(to) / 1e6
            };
            coarse.push((end, counts.map(|count| count.load(Ordering::Relaxed)).sum()));
            from = to;
        }
        LatencyBuckets {
            sum: float(self.sum_micros.load(Ordering::Relaxed)) / 1e6,
            count: coarse.iter().map(|(_, count)| count).sum(),
            buckets: coarse,
        }
    }

    /// The duration that `part` (0.0 to 1.0) of the recorded ones do not exceed, as if those in one
    /// bucket lay at even distances; `None` when nothing was recorded.
    pub fn percentile(&self, part: f64) -> Option<Duration> {
        let counts: Vec<u64> = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let rank = (float(total) * part).max(1.0);
        let mut before = 0;
        for (index, count) in counts.into_iter().enumerate() {
            if count > 0 && float(before + count) >= rank {
                let within = (rank - float(before) - 0.5) / float(count);
                let (start, end) = (bucket_start_micros(index), bucket_start_micros(index + 1));
                let micros = start + within.clamp(0.0, 1.0) * (end - start);
                return Some(Duration::from_secs_f64(micros / 1e6));
            }
            before += count;
        }
        None
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a rank that is off by one in 2^52 changes nothing that is shown"
)]
fn float(count: u64) -> f64 {
    count as f64
}

/// The bucket of a duration: its highest bit, and the two bits after it.
fn bucket_index(micros: u64) -> usize {
    let log = u64::from(micros.ilog2());
    let step = if log >= 2 {
        (micros >> (log - 2)) & (BUCKETS_PER_DOUBLING - 1)
    } else {
        (micros << (2 - log)) & (BUCKETS_PER_DOUBLING - 1)
    };
    usize::try_from(log * BUCKETS_PER_DOUBLING + step)
        .map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// Where a bucket begins, microseconds.
fn bucket_start_micros(index: usize) -> f64 {
    let index = index as u64;
    let (log, step) = (index / BUCKETS_PER_DOUBLING, index % BUCKETS_PER_DOUBLING);
    float((BUCKETS_PER_DOUBLING + step) << log) / float(BUCKETS_PER_DOUBLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_alone_is_that_of_our_own_lines() {
        let check = |level: &str, expect: &str| assert_eq!(full_filter(level), expect, "{level}");
        check("info", "warn,rmcp=off,tollbridge=info");
        check("TRACE", "warn,rmcp=off,tollbridge=trace");
        check("error", "error,rmcp=off,tollbridge=error");
        check("off", "off,rmcp=off,tollbridge=off");
        check("info,hyper=debug", "info,hyper=debug");
        check("hyper=debug", "hyper=debug");
        check("", "error,rmcp=off,tollbridge=error");
    }

    #[test]
    fn percentiles_are_near_the_truth() {
        let latency = Latency::default();
        assert_eq!(latency.percentile(0.5), None);
        for micros in 1..=10_000 {
            latency.record(Duration::from_micros(micros));
        }
        for (part, truth) in [(0.5, 5000.0), (0.99, 9900.0)] {
            let found = latency.percentile(part).unwrap().as_secs_f64() * 1e6;
            assert!(
                (truth * 0.97..truth * 1.03).contains(&found),
                "{part}: {found} for {truth}"
            );
        }
    }

    #[test]
    fn coarse_buckets_keep_every_duration() {
        let latency = Latency::default();
        for micros in [1, 127, 128, 1_000_000, u64::MAX / 4] {
            latency.record(Duration::from_micros(micros));
        }
        let LatencyBuckets { count, buckets, .. } = latency.coarse_buckets();
        let filled: Vec<_> = buckets
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(count, 5);
        let expect = [(128e-6, 2), (256e-6, 1), (1.048_576, 1), (f64::INFINITY, 1)];
        assert_eq!(filled, expect, "an edge belongs to the bucket above it");
    }

    #[test]
    fn one_duration_is_every_percentile() {
        for micros in [1, 3, 250, 100_000] {
            let latency = Latency::default();
            latency.record(Duration::from_micros(micros));
            let found = latency.percentile(0.5).unwrap().as_secs_f64() * 1e6;
            let truth = Duration::from_micros(micros).as_secs_f64() * 1e6;
            assert!(
                (truth * 0.87..truth * 1.13).contains(&found),
                "{found} for {truth}"
            );
        }
    }
}
