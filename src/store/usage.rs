//! What calls came to over time, by whom and by what they were of: sums of hours, kept with the index of the audit.

use std::time::Duration;

use super::IndexedRecord;
use crate::money::Micros;

/// Seconds of an hour.
const HOUR_SECONDS: i64 = 3600;

/// How long calls of each bucket took at most; those of the last one took longer. Milliseconds.
const LATENCY_BOUNDS_MS: [u64; LATENCY_BUCKETS - 1] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000,
];

/// How many buckets there are.
const LATENCY_BUCKETS: usize = 16;

/// The bucket of calls that did not reach their server, or of which it is not known how long they took.
pub(super) const UNTIMED: i64 = -1;

/// By what usage is summed up.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum UsageDimension {
    /// By the agent's id.
    Agent,
    /// By the server's name.
    Server,
    /// By the team of the agent.
    Team,
    /// By `server/tool`, as the server calls it.
    Tool,
    /// By the workspace of the agent.
    Workspace,
}

impl UsageDimension {
    const ALL: [Self; 5] = [
        Self::Agent,
        Self::Server,
        Self::Team,
        Self::Tool,
        Self::Workspace,
    ];

    /// As the store has it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
            Self::Team => "team",
            Self::Tool => "tool",
            Self::Workspace => "workspace",
        }
    }

    /// What `record` counts to; `None` where it has no such thing.
    fn name_of(self, record: &IndexedRecord) -> Option<String> {
        match self {
            Self::Agent => Some(record.agent_id.clone()),
            Self::Server => record.server.clone(),
            Self::Team => record.team.clone(),
            Self::Tool => {
                let (server, tool) = record.server.as_ref().zip(record.tool.as_ref())?;
                Some(format!("{server}/{tool}"))
            }
            Self::Workspace => record.workspace.clone(),
        }
    }
}

/// A question about usage.
#[derive(Clone, Debug)]
pub struct UsageQuery {
    /// By what it is summed up.
    pub dimension: UsageDimension,
    /// The first hour, since 1970.
    pub first_hour: i64,
    /// The hour that follows the last one.
    pub end_hour: i64,
    /// How many hours each sum is of; the sums begin at multiples of it.
    pub step_hours: i64,
    /// Only names after this one.
    pub after: Option<String>,
    /// How many names, at most.
    pub count: usize,
}

/// An answer about usage.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UsageAnswer {
    /// The sums, by name and time; none where nothing happened.
    pub sums: Vec<UsageSum>,
    /// The last name that was looked at, where there are more.
    pub next: Option<String>,
}

/// What the calls of some hours came to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UsageSum {
    /// Whose calls they are.
    pub name: String,
    /// The first of the hours, since 1970.
    pub hour: i64,
    /// What they came to.
    pub totals: UsageTotals,
}

/// What calls came to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UsageTotals {
    /// All of them, refused ones too.
    pub calls: u64,
    /// Those that got no answer of their server.
    pub errors: u64,
    /// Those that were refused.
    pub refused: u64,
    /// What they cost.
    pub spent: Micros,
    /// How long those took together of which that is known.
    took: Duration,
    /// How many took how long.
    buckets: [u64; LATENCY_BUCKETS],
}

impl UsageTotals {
    /// Adds the calls of one bucket.
    pub(super) fn add_bucket(&mut self, bucket: i64, added: &Self) {
        self.calls += added.calls;
        self.errors += added.errors;
        self.refused += added.refused;
        self.spent = self.spent.saturating_add(added.spent);
        self.took += added.took;
        let bucket = usize::try_from(bucket).ok();
        if let Some(count) = bucket.and_then(|at| self.buckets.get_mut(at)) {
            *count += added.calls;
        }
    }

    /// Adds what others came to.
    pub fn add(&mut self, others: &Self) {
        self.add_bucket(UNTIMED, others);
        for (count, other) in self.buckets.iter_mut().zip(others.buckets) {
            *count += other;
        }
    }

    /// Calls of one bucket, as the store has them.
    pub(super) fn from_row([calls, errors, refused, spent, took_us]: [i64; 5]) -> Self {
        let number = |value: i64| u64::try_from(value).unwrap_or_default();
        Self {
            calls: number(calls),
            errors: number(errors),
            refused: number(refused),
            spent: Micros::new(number(spent)),
            took: Duration::from_micros(number(took_us)),
            buckets: [0; LATENCY_BUCKETS],
        }
    }

    /// The same for the store.
    pub(super) fn to_row(&self) -> [u64; 5] {
        let took = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX);
        [
            self.calls,
            self.errors,
            self.refused,
            self.spent.get(),
            took,
        ]
    }

    /// How many calls there are of which it is known how long they took.
    fn timed_calls(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long a call took on average, milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn mean_ms(&self) -> Option<f64> {
        let calls = self.timed_calls();
        (calls > 0).then(|| self.took.as_secs_f64() * 1000.0 / calls as f64)
    }

    /// How long 95 of 100 calls took at most, milliseconds, as exactly as the buckets tell.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn p95_ms(&self) -> Option<f64> {
        let wanted = self.timed_calls() as f64 * 0.95;
        let (mut below, mut lower) = (0.0, 0.0);
        for (at, count) in self.buckets.iter().enumerate() {
            let Some(upper) = LATENCY_BOUNDS_MS.get(at) else {
                return (*count > 0).then_some(lower);
            };
            let (count, upper) = (*count as f64, *upper as f64);
            if count > 0.0 && below + count >= wanted {
                return Some(lower + (upper - lower) * (wanted - below) / count);
            }
            (below, lower) = (below + count, upper);
        }
        None
    }
}

/// What `record` adds: to which hour and bucket, and how much.
pub(super) fn contribution(record: &IndexedRecord) -> (i64, i64, UsageTotals) {
    let is_refused = record.decision == "refused";
    let is_error = ["failed", "interrupted"].contains(&record.decision.as_str());
    let is_timed = !is_refused && record.decision != "interrupted";
    let took = if is_timed {
        record.took
    } else {
        Duration::ZERO
    };
    let bounds = LATENCY_BOUNDS_MS.iter();
    let at = bounds.take_while(|bound| took > Duration::from_millis(**bound));
    let bucket = if is_timed {
        i64::try_from(at.count()).unwrap_or(UNTIMED)
    } else {
        UNTIMED
    };
    let totals = UsageTotals {
        calls: 1,
        errors: is_error.into(),
        refused: is_refused.into(),
        spent: record.price,
        took,
        buckets: [0; LATENCY_BUCKETS],
    };
    (
        record.ts.as_second().div_euclid(HOUR_SECONDS),
        bucket,
        totals,
    )
}

/// The dimensions in which `record` counts, each with the name.
pub(super) fn names_of(
    record: &IndexedRecord,
) -> impl Iterator<Item = (UsageDimension, String)> + '_ {
    let all = UsageDimension::ALL.into_iter();
    all.filter_map(|dimension| Some((dimension, dimension.name_of(record)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(buckets: &[(usize, u64)]) -> UsageTotals {
        let mut totals = UsageTotals::default();
        for (at, count) in buckets {
            totals.buckets[*at] = *count;
        }
        totals
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        assert_eq!(totals(&[]).p95_ms(), None);
        assert_eq!(totals(&[(0, 100)]).p95_ms(), Some(0.95));
        assert_eq!(totals(&[(0, 95), (6, 5)]).p95_ms(), Some(1.0));
        assert_eq!(totals(&[(0, 90), (6, 10)]).p95_ms(), Some(75.0));
        assert_eq!(
            totals(&[(0, 1), (15, 99)]).p95_ms(),
            Some(60_000.0),
            "or more"
        );
    }
}
