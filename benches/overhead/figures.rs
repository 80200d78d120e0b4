//! What a run found, before it is laid out: samples by row, plain values by fact.
//!
//! `plan`, `soak` and `flood` fill them in, `report` shows them. The targets are here, next to what they are about.

use serde::Serialize;

use crate::{Fault, call::Era, cell::Sample};

/// CPU time of a call through the gateway over that of the bare proxy, with servers on HTTP.
pub(crate) const HTTP_RATIO_MAX: f64 = 1.3;

/// The same with servers on stdio, where the way out is a pipe and not a second HTTP connection.
pub(crate) const STDIO_RATIO_MAX: f64 = 1.0;

/// CPU microseconds that policy, rate, argument rules and scans add to a call.
pub(crate) const GOVERNED_US_MAX: f64 = 4.0;

/// The same with budgets and the audit.
pub(crate) const AUDITED_US_MAX: f64 = 12.0;

/// KiB of an idle legacy session without an open stream.
pub(crate) const SESSION_KIB_MAX: f64 = 12.0;

/// MB of an idle gateway with ten servers.
pub(crate) const IDLE_MB_MAX: f64 = 20.0;

/// Percent that memory may grow over the last four fifths of the sessions of a soak.
pub(crate) const GROWTH_PERCENT_MAX: f64 = 10.0;

/// Percent of its calls in a second that a paying agent may lose to a flood.
pub(crate) const LOST_PERCENT_MAX: f64 = 5.0;

/// Milliseconds from the start of the process until it listens.
pub(crate) const START_MS_MAX: f64 = 50.0;

/// All of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) machine: String,
    pub(crate) settings: String,
    pub(crate) groups: Vec<Group>,
    pub(crate) facts: Vec<Fact>,
    /// Calls that were not answered as they should, and what else must not be; any of them makes
    /// the run fail.
    pub(crate) faults: Vec<Fault>,
}

impl Figures {
    /// Judges nothing: so few calls prove that they are answered, not what they cost.
    pub(crate) fn forget_targets(&mut self) {
        for row in self.groups.iter_mut().flat_map(|group| &mut group.rows) {
            row.target = None;
        }
        for fact in &mut self.facts {
            fact.target = None;
        }
    }
}

/// Rows that are compared with one another: same era, same number of connections.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) era: Era,
    pub(crate) connections: usize,
    pub(crate) rows: Vec<Row>,
}

/// One path in one group.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) path: String,
    /// The largest CPU ratio against the bare proxy that is good enough.
    pub(crate) target: Option<f64>,
    /// One a round.
    pub(crate) samples: Vec<Sample>,
}

/// Something measured once or a few times.
#[derive(Debug)]
pub(crate) struct Fact {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) values: Vec<f64>,
    pub(crate) target: Option<f64>,
}

/// Median and range.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of `values`, which are not empty.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Self {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }
}

impl Row {
    /// One figure of every round.
    pub(crate) fn spread(&self, figure: fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(figure))
    }

    /// One figure over that of `base` in the same round.
    pub(crate) fn ratio(&self, base: &Self, figure: fn(&Sample) -> f64) -> Spread {
        let rounds = self.samples.iter().zip(&base.samples);
        Spread::of(rounds.map(|(own, base)| figure(own) / figure(base)))
    }
}
