//! How often calls and callers were refused, and how often they would have been.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use serde::Serialize;

use crate::{config::RuleKind, lock::lock, money::Micros, names::ServerName};

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    refusals: Mutex<RefusalCounts>,
    /// Micro-dollars by server.
    spent: DashMap<ServerName, AtomicU64, RandomState>,
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

    /// Notes that a call to `server` was charged.
    pub(super) fn add_spent(&self, server: &ServerName, price: Micros) {
        if price == Micros::ZERO {
            return;
        }
        if let Some(spent) = self.spent.get(server) {
            spent.fetch_add(price.get(), Ordering::Relaxed);
            return;
        }
        self.spent
            .entry(server.clone())
            .or_default()
            .fetch_add(price.get(), Ordering::Relaxed);
    }

    /// What calls to `server` were charged.
    pub(super) fn spent_on(&self, server: &ServerName) -> u64 {
        let spent = self.spent.get(server);
        spent.map_or(0, |spent| spent.load(Ordering::Relaxed))
    }

    pub(super) fn counts(&self) -> RefusalCounts {
        lock(&self.refusals).clone()
    }
}
