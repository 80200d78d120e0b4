//! How calls ended and what they cost, how often calls and callers were refused, and how often they would
//! have been.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use serde::Serialize;

use super::call_context::CallContext;
use crate::{
    audit::RecordedDecision,
    config::RuleKind,
    lock::lock,
    money::Micros,
    names::{AgentId, ServerName},
};

/// Series of calls that are counted apart. Beyond that, calls of one agent to one server are counted
/// together, since servers choose how many tools they have.
const SERIES_MAX: usize = 10_000;

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    refusals: Mutex<RefusalCounts>,
    calls: DashMap<CallSeries, CallCounters, RandomState>,
}

/// Calls that are counted together.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct CallSeries {
    agent: AgentId,
    /// `None` where nothing is what was called.
    server: Option<ServerName>,
    /// The server's own name of it; `None` for what is no tool.
    tool: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct CallCounters {
    answered: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    spent_micros: AtomicU64,
}

/// How calls ended since the start, and what they cost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CallTotals {
    /// Those that their servers answered.
    pub answered: u64,
    /// Those that got no answer.
    pub failed: u64,
    /// Those that governance refused.
    pub refused: u64,
    /// Micro-dollars.
    pub spent_micros: u64,
}

impl CallTotals {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.refused += other.refused;
        self.spent_micros += other.spent_micros;
    }
}

/// Calls by whom they are of, and by what was called.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CallUsage {
    /// By agent.
    pub agents: BTreeMap<AgentId, CallTotals>,
    /// By server.
    pub servers: BTreeMap<ServerName, CallTotals>,
    /// By tool: its server, and that server's name of it.
    pub tools: BTreeMap<(ServerName, Arc<str>), CallTotals>,
}

/// How often calls and callers were refused since the start.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct RefusalCounts {
    /// By the discriminator of the error, such as `BUDGET_EXCEEDED`.
    pub refused: BTreeMap<&'static str, u64>,
    /// What rules that are only observed would have refused, by rule.
    pub observed: BTreeMap<&'static str, u64>,
    /// Requests that were held back since their agent was refused too often; they became no calls.
    pub held_back: u64,
    /// Requests that showed no key, or none that opens anything, by reason.
    pub unauthenticated: BTreeMap<&'static str, u64>,
    /// Requests that were refused for their header `Host` or `Origin`, by `host` and `origin`.
    pub forbidden: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// Notes that a caller was told so.
    pub(super) fn count_refused(&self, name: &'static str) {
        *lock(&self.refusals).refused.entry(name).or_default() += 1;
    }

    /// Notes that a request was held back.
    pub(super) fn count_held_back(&self) {
        lock(&self.refusals).held_back += 1;
    }

    pub(super) fn count_observed(&self, rule: RuleKind) {
        *lock(&self.refusals)
            .observed
            .entry(rule.as_str())
            .or_default() += 1;
    }

    /// Notes that a request had no agent.
    pub(super) fn count_unauthenticated(&self, reason: &'static str) {
        let mut counts = lock(&self.refusals);
        *counts.unauthenticated.entry(reason).or_default() += 1;
    }

    /// Notes that a request named a host that is not ours, or came from a page that is not welcome.
    pub(super) fn count_forbidden(&self, reason: &'static str) {
        *lock(&self.refusals).forbidden.entry(reason).or_default() += 1;
    }

    /// Notes how a call ended, and what it cost.
    pub(super) fn count_call(&self, call: &CallContext, ended: RecordedDecision) {
        let series = CallSeries {
            // Users count to their agent: there may be any number of them.
            agent: call.agent().base,
            server: call.target.as_ref().map(|target| target.server.clone()),
            tool: call.tool.as_ref().map(|tool| Arc::clone(&tool.original)),
        };
        self.count(series, ended, call.price);
    }

    fn count(&self, mut series: CallSeries, ended: RecordedDecision, price: Micros) {
        if let Some(counters) = self.calls.get(&series) {
            return counters.count(ended, price);
        }
        if self.calls.len() >= SERIES_MAX {
            series.tool = None;
        }
        let counters = self.calls.entry(series).or_default();
        counters.count(ended, price);
    }

    /// All calls that were counted.
    pub(super) fn usage(&self) -> CallUsage {
        let mut usage = CallUsage::default();
        for found in &self.calls {
            let (series, counts) = (found.key(), found.counts());
            usage.agents.entry(series.agent).or_default().add(counts);
            let Some(server) = &series.server else {
                continue;
            };
            let of_server = usage.servers.entry(server.clone()).or_default();
            of_server.add(counts);
            if let Some(tool) = &series.tool {
                let tool = (server.clone(), Arc::clone(tool));
                usage.tools.entry(tool).or_default().add(counts);
            }
        }
        usage
    }

    pub(super) fn counts(&self) -> RefusalCounts {
        lock(&self.refusals).clone()
    }
}

impl CallCounters {
    fn count(&self, ended: RecordedDecision, price: Micros) {
        let calls = match ended {
            RecordedDecision::Allowed | RecordedDecision::Observed => &self.answered,
            RecordedDecision::Failed | RecordedDecision::Interrupted => &self.failed,
            RecordedDecision::Refused => &self.refused,
        };
        calls.fetch_add(1, Ordering::Relaxed);
        if price > Micros::ZERO {
            self.spent_micros.fetch_add(price.get(), Ordering::Relaxed);
        }
    }

    fn counts(&self) -> CallTotals {
        let figure = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallTotals {
            answered: figure(&self.answered),
            failed: figure(&self.failed),
            refused: figure(&self.refused),
            spent_micros: figure(&self.spent_micros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_agent_server_and_tool() {
        let counters = Counters::default();
        let server = || ServerName::parse("x").unwrap();
        let count = |tool: usize, ended| {
            let series = CallSeries {
                agent: AgentId::ANONYMOUS,
                server: Some(server()),
                tool: Some(tool.to_string().into()),
            };
            counters.count(series, ended, Micros::new(2));
        };
        for tool in 0..=SERIES_MAX {
            count(tool, RecordedDecision::Allowed);
        }
        let usage = counters.usage();
        assert_eq!(
            usage.tools.len(),
            SERIES_MAX,
            "one has no series of its own"
        );
        let all = usage.servers[&server()];
        let calls = u64::try_from(SERIES_MAX + 1).unwrap();
        assert_eq!((all.answered, all.spent_micros), (calls, 2 * calls));
        assert_eq!(usage.agents[&AgentId::ANONYMOUS], all);
        for ended in [RecordedDecision::Failed, RecordedDecision::Refused] {
            count(0, ended);
        }
        let first = counters.usage().tools[&(server(), "0".into())];
        let expect = CallTotals {
            answered: 1,
            failed: 1,
            refused: 1,
            spent_micros: 6,
        };
        assert_eq!(first, expect, "it has its own still");
    }
}
