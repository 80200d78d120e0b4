//! What is done with lines while there is little room: records of refused calls are summed, so that
//! there is room for those of calls that are allowed; and once the quota is used up no call is opened.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::{Duration, Instant};

use super::{
    entry::{AuditEntry, EntryKind},
    log_space::LogSpace,
    totals::ChainTotals,
};
use crate::{
    audit::{AuditError, RefusalSummary, record::record_line::time},
    names::AgentId,
};

/// How long refused calls are summed before their sum is recorded.
const SUM_INTERVAL: Duration = Duration::from_secs(60);

/// Sums that are kept at once; further ones are added to that of whoever else there is.
const SUMS_MAX: usize = 1000;

/// Refused calls that are not recorded one by one, by agent and code.
#[derive(Debug, Default)]
pub(in crate::audit) struct RefusalSums {
    sums: BTreeMap<(AgentId, String), RefusalSum>,
    since: Option<Instant>,
}

#[derive(Debug)]
struct RefusalSum {
    agent_name: String,
    since: Timestamp,
    until: Timestamp,
    count: u64,
}

/// What of a record is summed.
#[derive(Deserialize)]
struct RefusedKey {
    agent_id: AgentId,
    agent_name: String,
    #[serde(deserialize_with = "time")]
    ts: Timestamp,
    code: Option<String>,
    decision: String,
}

impl RefusalSums {
    /// Takes out of `lines` those for which `room` has no place; `totals` knows which calls are open.
    pub(in crate::audit) fn sum_refusals(
        &mut self,
        space: &LogSpace,
        totals: &ChainTotals,
        lines: &mut Vec<AuditEntry>,
    ) {
        if !space.is_low() {
            return;
        }
        lines.retain_mut(|line| match &line.kind {
            EntryKind::Call { id, .. } if !totals.is_open(*id) => {
                let summed = self.add(&line.line);
                if summed {
                    line.send_reply(Ok(()));
                }
                !summed
            }
            EntryKind::Opened(_) if space.is_exhausted() => {
                let quota = space.quota;
                line.send_reply(Err(AuditError::Quota { quota }));
                false
            }
            EntryKind::Call { .. } | EntryKind::Event | EntryKind::Opened(_) => true,
        });
    }

    /// Adds a record without its seal; whether it is one.
    fn add(&mut self, line: &[u8]) -> bool {
        let object = [line, b"}"].concat();
        let Ok(refused) = serde_json::from_slice::<RefusedKey>(&object) else {
            return false;
        };
        self.since.get_or_insert_with(Instant::now);
        let code = refused.code.unwrap_or(refused.decision);
        let mut of = (refused.agent_id, code);
        if self.sums.len() >= SUMS_MAX && !self.sums.contains_key(&of) {
            of = self
                .sums
                .last_key_value()
                .map_or(of, |(last, _)| last.clone());
        }
        let sum = self.sums.entry(of).or_insert_with(|| RefusalSum {
            agent_name: refused.agent_name,
            since: refused.ts,
            until: refused.ts,
            count: 0,
        });
        sum.count += 1;
        sum.until = sum.until.max(refused.ts);
        true
    }

    /// How long until there is a sum to be recorded.
    pub(in crate::audit) fn time_until_due(&self) -> Option<Duration> {
        let since = self.since?;
        Some(SUM_INTERVAL.saturating_sub(since.elapsed()))
    }

    /// The sums that are to be recorded; `all` at the end.
    pub(in crate::audit) fn due_entries(&mut self, all: bool) -> Vec<AuditEntry> {
        if !all && self.time_until_due().is_none_or(|left| !left.is_zero()) {
            return Vec::new();
        }
        self.since = None;
        let sums = std::mem::take(&mut self.sums).into_iter();
        let lines = sums.map(|((agent_id, code), sum)| {
            AuditEntry::refusals(&RefusalSummary {
                since: sum.since,
                until: sum.until,
                agent_id,
                agent_name: &sum.agent_name,
                address: None,
                code: &code,
                count: sum.count,
            })
        });
        lines.collect()
    }
}
