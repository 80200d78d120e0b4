//! What `/status` shows of one replica.

use std::sync::atomic::Ordering;

use serde::Serialize;
use tokio::time::Instant;

use super::Replica;
use crate::{
    backend::{BreakerReport, ServerState, instance::InstancePhase, state_machine::StateSnapshot},
    lock::lock,
};

/// One replica in `/status`.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaReport {
    /// Its name.
    pub name: String,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<String>,
    /// How it is reached, without secrets.
    pub address: String,
    /// `connected` once greeted, since only one of them is listed.
    pub state: ServerState,
    /// Whether it is disconnected because nobody uses it: the next call wakes it. Where only the
    /// catalog's connection sleeps, the state is that of the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// Whether the catalog's connection sleeps, whatever others do.
    #[serde(skip)]
    rests: bool,
    /// Why it is in that state, when it is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether calls are let through to it.
    pub breaker: BreakerReport,
    /// Calls under way.
    pub in_flight: u64,
    /// Milliseconds for which it gets no calls, since it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_for_ms: Option<u64>,
}

impl Replica {
    pub(super) fn report(&self, now: Instant) -> ReplicaReport {
        let StateSnapshot {
            state,
            asleep,
            reason,
            history: _,
        } = self.backend.snapshot();
        let phase = self.backend.catalog.phase();
        let is_greeted = matches!(phase, InstancePhase::Ready(_));
        let (state, reason) = if state == ServerState::Connecting && is_greeted {
            (ServerState::Connected, None)
        } else {
            (state, reason)
        };
        let until = lock(&self.outlier).ejected_until;
        let left = until.map(|until| until.saturating_duration_since(now));
        let left = left.filter(|left| !left.is_zero());
        ReplicaReport {
            name: self.name.clone(),
            locality: self.locality.clone(),
            address: self.address.clone(),
            state,
            asleep,
            rests: matches!(phase, InstancePhase::Asleep(_)),
            reason,
            breaker: self.backend.breaker.report(),
            in_flight: self.backend.stats.in_flight.load(Ordering::Relaxed),
            out_for_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl ReplicaReport {
    /// Whether it gets no calls for a while since it failed, as long as others can have them.
    pub fn is_ejected(&self) -> bool {
        self.out_for_ms.is_some() || self.breaker.state == "open"
    }

    /// Whether it gets calls, also when the next one has to wake it.
    pub fn is_healthy(&self) -> bool {
        let may_answer = match self.state {
            // One that misses checks is called until it is given up.
            ServerState::Connected | ServerState::Degraded => true,
            ServerState::Connecting
            | ServerState::Disabled
            | ServerState::Disconnected
            | ServerState::Failed
            | ServerState::NeedsReauth
            | ServerState::NeedsSignIn => self.rests,
        };
        may_answer && !self.is_ejected()
    }

    /// The same without what the server wrote and where it is.
    pub(in crate::backend) fn without_details(mut self) -> Self {
        self.reason = None;
        self.address = String::new();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_gets_calls_is_healthy() {
        let check = |state: ServerState, asleep: bool, breaker: &'static str, expect: bool| {
            let report = ReplicaReport {
                name: "a".to_owned(),
                locality: None,
                address: "a".to_owned(),
                state,
                asleep,
                rests: asleep,
                reason: None,
                breaker: BreakerReport {
                    state: breaker,
                    failures: 0,
                    opened: 0,
                    retry_in_ms: None,
                },
                in_flight: 0,
                out_for_ms: None,
            };
            let found = report.is_healthy();
            assert_eq!(found, expect, "{state:?}, {asleep}, {breaker}");
            let out_for_ms = Some(1);
            let ejected = ReplicaReport {
                out_for_ms,
                ..report
            };
            assert!(ejected.is_ejected() && !ejected.is_healthy(), "{state:?}");
        };
        check(ServerState::Connected, false, "closed", true);
        check(ServerState::Connected, false, "half_open", true);
        check(ServerState::Connected, false, "open", false);
        check(ServerState::Degraded, false, "closed", true);
        check(ServerState::Degraded, false, "open", false);
        check(ServerState::Disconnected, true, "closed", true);
        check(ServerState::Disconnected, false, "closed", false);
        check(ServerState::Connecting, false, "closed", false);
        check(ServerState::Failed, false, "closed", false);
        check(ServerState::NeedsReauth, false, "closed", false);
    }
}
