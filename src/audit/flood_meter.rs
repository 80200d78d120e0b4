//! Bounds how many records many events of one kind make: the first of a minute are recorded one by one,
//! the others are counted and recorded as one sum.

use std::{collections::HashMap, hash::Hash, mem, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::clock;

/// How long events are counted before their sum is recorded.
pub const SUM_INTERVAL: Duration = Duration::from_secs(60);

/// Counts events by key. Groups of keys have a limit each, so that many keys of one group hide none of
/// another.
#[derive(Debug)]
pub struct FloodMeter<G, K, T> {
    /// Events of a key in one window that are recorded one by one.
    burst: u64,
    /// Keys of a group that are counted apart; further events count for the key of the others.
    keys_max: usize,
    groups: HashMap<G, HashMap<K, EventWindow<T>>>,
}

#[derive(Debug)]
struct EventWindow<T> {
    started: Instant,
    recorded: u64,
    sum: Option<FloodSum<T>>,
}

/// Events that have no record of their own.
#[derive(Clone, Debug)]
pub struct FloodSum<T> {
    /// When the first of them came.
    pub since: Timestamp,
    /// When the last of them came.
    pub until: Timestamp,
    /// How many there were.
    pub count: u64,
    /// What is known of the last of them.
    pub last: T,
}

impl<G: Clone + Eq + Hash, K: Clone + Eq + Hash, T> FloodMeter<G, K, T> {
    /// A meter that has counted nothing.
    pub fn new(burst: u64, keys_max: usize) -> Self {
        Self {
            burst,
            keys_max,
            groups: HashMap::new(),
        }
    }

    /// Counts so many events of `key`, or of the key of `others` where the group has too many. Returns
    /// that key when they are to be recorded one by one.
    pub fn count(
        &mut self,
        group: G,
        (key, others): (K, K),
        (last, times): (T, u64),
        now: Instant,
    ) -> Option<K> {
        let windows = self.groups.entry(group).or_default();
        let is_full = windows.len() >= self.keys_max && !windows.contains_key(&key);
        let key = if is_full { others } else { key };
        let window = windows.entry(key.clone()).or_insert_with(|| EventWindow {
            started: now,
            recorded: 0,
            sum: None,
        });
        if window.recorded + times <= self.burst {
            window.recorded += times;
            return Some(key);
        }
        let at = clock::now();
        let before = window.sum.take();
        window.sum = Some(FloodSum {
            since: before.as_ref().map_or(at, |sum| sum.since),
            until: at,
            count: before.map_or(0, |sum| sum.count) + times,
            last,
        });
        None
    }

    /// The sums of the windows that are over at `now`. A key without a sum is forgotten.
    pub fn due_sums(&mut self, now: Instant) -> Vec<(G, K, FloodSum<T>)> {
        let mut due = Vec::new();
        self.groups.retain(|group, windows| {
            windows.retain(|key, window| {
                if now.duration_since(window.started) < SUM_INTERVAL {
                    return true;
                }
                let sum = window.sum.take();
                let is_kept = sum.is_some();
                // The sum is the first record of the next window.
                (window.started, window.recorded) = (now, 1);
                due.extend(sum.map(|sum| (group.clone(), key.clone(), sum)));
                is_kept
            });
            !windows.is_empty()
        });
        due
    }

    /// All sums, at the end.
    pub fn remaining_sums(&mut self) -> Vec<(G, K, FloodSum<T>)> {
        let groups = mem::take(&mut self.groups).into_iter();
        let rest = groups.flat_map(|(group, windows)| {
            let sums = windows.into_iter();
            sums.filter_map(move |(key, window)| Some((group.clone(), key, window.sum?)))
        });
        rest.collect()
    }

    /// How long until a sum is due.
    pub fn time_until_due(&self, now: Instant) -> Option<Duration> {
        let windows = self.groups.values().flat_map(HashMap::values);
        let summed = windows.filter(|window| window.sum.is_some());
        summed
            .map(|window| SUM_INTERVAL.saturating_sub(now.duration_since(window.started)))
            .min()
    }

    /// How many keys are counted apart now.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> usize {
        self.groups.values().map(HashMap::len).sum()
    }
}
