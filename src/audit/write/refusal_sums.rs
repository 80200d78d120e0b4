//! What is done with lines while there is little room: records of refused calls are summed, so that
//! there is room for those of calls that are allowed; and once the quota is used up no call is opened.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::{
    entry::{AuditEntry, EntryKind},
    log_space::LogSpace,
    totals::ChainTotals,
};
use crate::{
    audit::{AuditError, FloodMeter, RefusalSummary},
    names::AgentId,
};

/// Agents and codes that are summed apart; further codes of an agent are summed together.
const SUMS_MAX: usize = 1000;

/// The code of an agent's refusals that are not told apart.
const OTHER_CODES: &str = "OTHER";

/// Refused calls that are not recorded one by one, by agent and code.
#[derive(Debug)]
pub(in crate::audit) struct RefusalSums(FloodMeter<(), (AgentId, String), String>);

impl Default for RefusalSums {
    fn default() -> Self {
        Self(FloodMeter::new(0, SUMS_MAX))
    }
}

/// What of a record is summed.
#[derive(Deserialize)]
struct RefusedKey {
    agent_id: AgentId,
    agent_name: String,
    code: Option<String>,
    decision: String,
}

impl RefusalSums {
    /// Takes out of `lines` those for which `space` has no room; `totals` knows which calls are open.
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
        let code = refused.code.unwrap_or(refused.decision);
        let of_agent = |code| (refused.agent_id, code);
        let keys = (of_agent(code), of_agent(OTHER_CODES.to_owned()));
        let now = Instant::now();
        self.0.count((), keys, (refused.agent_name, 1), now);
        true
    }

    /// How long until there is a sum to be recorded.
    pub(in crate::audit) fn time_until_due(&self) -> Option<Duration> {
        self.0.time_until_due(Instant::now())
    }

    /// The sums that are to be recorded; `all` at the end.
    pub(in crate::audit) fn due_entries(&mut self, all: bool) -> Vec<AuditEntry> {
        let sums = if all {
            self.0.remaining_sums()
        } else {
            self.0.due_sums(Instant::now())
        };
        let lines = sums.into_iter().map(|((), (agent_id, code), sum)| {
            AuditEntry::refusals(&RefusalSummary {
                since: sum.since,
                until: sum.until,
                agent_id,
                agent_name: &sum.last,
                address: None,
                code: &code,
                count: sum.count,
            })
        });
        lines.collect()
    }
}
