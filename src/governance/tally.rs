//! How often calls were refused, and how often they would have been.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;

use super::refusal::Refusal;
use crate::config::Rule;

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counts>);

/// How often calls were refused since the start.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counts {
    /// By the discriminator of the error, such as `BUDGET_EXCEEDED`.
    pub refused: BTreeMap<&'static str, u64>,
    /// What rules that are only observed would have refused, by rule.
    pub observed: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(super) fn refused(&self, refusal: &Refusal) {
        *self.lock().refused.entry(refusal.row().name).or_default() += 1;
    }

    pub(super) fn observed(&self, rule: Rule) {
        *self.lock().observed.entry(name(rule)).or_default() += 1;
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rule as `observe` names it.
fn name(rule: Rule) -> &'static str {
    match rule {
        Rule::Args => "args",
        Rule::Budget => "budget",
        Rule::Policy => "policy",
        Rule::Rate => "rate",
        Rule::Scan => "scan",
    }
}
