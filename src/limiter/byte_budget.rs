//! How many bytes of messages the process holds at once (`limits.bytes_in_flight`).
//!
//! Counted are bodies of requests while they come and until nobody needs them any more, answers of servers
//! likewise, and answers that clients have not read. What is small is not: it is bounded by the number of
//! connections and calls, and most calls would pay for a few. Each part is bounded so that those who fill
//! one shut nobody out of another:
//!
//! * new calls are turned away from three quarters on, so that what is under way can end;
//! * bodies of requests get half at most, so that half-sent ones hold up no calls that need none;
//! * one agent with a key gets a quarter at most, so that it shuts out itself alone;
//! * what servers answer may fill it; beyond it the call fails whose answer has no room.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{lock::lock, names::AgentId, telemetry::LogThrottle};

/// What is not counted, bytes.
pub(crate) const UNCOUNTED_BYTES_MAX: usize = 8 << 10;

/// The bytes that are held, and how many may be.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudget(Arc<ByteCounts>);

#[derive(Debug)]
struct ByteCounts {
    max: AtomicUsize,
    used: AtomicUsize,
    /// Those of `used` that are bodies of requests.
    requests: AtomicUsize,
    /// Those of `used` that are held for each agent that has a key.
    agents: Mutex<HashMap<AgentId, usize>>,
    rejected: AtomicU64,
    rejection_log: Mutex<LogThrottle>,
}

/// There is no room for more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the gateway is out of message memory (limits.bytes_in_flight)")]
pub(crate) struct ByteBudgetExceeded;

/// What bytes are held for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BytePurpose {
    /// What a server answers.
    Answer,
    /// A body of a client, whose agent has a key if it is named.
    Request(Option<AgentId>),
    /// What a client has not read yet, alike.
    Unread(Option<AgentId>),
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: ByteBudget,
    purpose: BytePurpose,
    bytes: usize,
}

/// Bytes that are counted while any part of them is in use.
struct CountedBytes {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ByteBudget {
    /// Nothing is held of so many bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(ByteCounts {
            max: AtomicUsize::new(max),
            used: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            agents: Mutex::default(),
            rejected: AtomicU64::new(0),
            rejection_log: Mutex::default(),
        }))
    }

    pub(super) fn set_max(&self, max: usize) {
        self.0.max.store(max, Ordering::Relaxed);
    }

    /// How many bytes may be held.
    pub(crate) fn max(&self) -> usize {
        self.0.max.load(Ordering::Relaxed)
    }

    /// How many are.
    pub(crate) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// How often there was no room.
    pub(crate) fn rejected(&self) -> u64 {
        self.0.rejected.load(Ordering::Relaxed)
    }

    /// Whether a new call of `agent` may begin.
    ///
    /// # Errors
    /// When too much is held already, in all or for that agent.
    pub(crate) fn admit(&self, agent: AgentId) -> Result<(), ByteBudgetExceeded> {
        let (used, max) = (self.used(), self.max());
        // While little is held nobody can have too much of it.
        if used < max / 4 {
            return Ok(());
        }
        let held = agent_with_key(agent).map_or(0, |agent| self.bytes_of_agent(agent));
        if used < max / 4 * 3 && held < max / 4 {
            Ok(())
        } else {
            Err(self.reject())
        }
    }

    /// Room for a body of a client of `agent`, which grows while it comes.
    pub(crate) fn reserve_request(&self, agent: AgentId) -> Reservation {
        self.reserve(BytePurpose::Request(agent_with_key(agent)))
    }

    /// Room for what a server answers, which grows while it comes.
    pub(crate) fn reserve_answer(&self) -> Reservation {
        self.reserve(BytePurpose::Answer)
    }

    /// Counts what a client of `agent` is to read. It is there already, so that it cannot be refused.
    pub(crate) fn count_unread(&self, agent: AgentId, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES_MAX {
            return bytes;
        }
        let mut reservation = self.reserve(BytePurpose::Unread(agent_with_key(agent)));
        reservation.add(bytes.len());
        reservation.attach(bytes)
    }

    /// Counts what a server has answered. It is there already, so that it cannot be refused.
    pub(crate) fn count_received(&self, bytes: Bytes) -> Bytes {
        if bytes.len() <= UNCOUNTED_BYTES_MAX {
            return bytes;
        }
        let mut reservation = self.reserve_answer();
        reservation.add(bytes.len());
        reservation.attach(bytes)
    }

    fn reserve(&self, purpose: BytePurpose) -> Reservation {
        Reservation {
            budget: self.clone(),
            purpose,
            bytes: 0,
        }
    }

    fn bytes_of_agent(&self, agent: AgentId) -> usize {
        lock(&self.0.agents).get(&agent).copied().unwrap_or(0)
    }

    fn reject(&self) -> ByteBudgetExceeded {
        self.0.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = lock(&self.0.rejection_log).record(Instant::now()) {
            let (used, max) = (self.used(), self.max());
            tracing::warn!(
                used,
                max,
                more,
                "out of message memory (limits.bytes_in_flight): rejecting new requests"
            );
        }
        ByteBudgetExceeded
    }
}

/// Agents without a key are all who have none: none of them may be shut out by another.
fn agent_with_key(agent: AgentId) -> Option<AgentId> {
    (agent != AgentId::ANONYMOUS).then_some(agent)
}

impl Reservation {
    /// Holds `bytes` in all from now on, if that is more than it holds.
    ///
    /// # Errors
    /// When there is no room for them; it holds what it held.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), ByteBudgetExceeded> {
        if bytes <= UNCOUNTED_BYTES_MAX || bytes <= self.bytes {
            return Ok(());
        }
        let more = bytes - self.bytes;
        self.add(more);
        if self.is_within_budget() {
            return Ok(());
        }
        self.remove(more);
        Err(self.budget.reject())
    }

    /// The same where they cannot be refused.
    pub(crate) fn force_to(&mut self, bytes: usize) {
        if bytes > UNCOUNTED_BYTES_MAX && bytes > self.bytes {
            self.add(bytes - self.bytes);
        }
    }

    /// `bytes`, which are counted until nobody has any part of them.
    pub(crate) fn attach(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            return bytes;
        }
        Bytes::from_owner(CountedBytes {
            bytes,
            _reservation: self,
        })
    }

    /// What it holds, apart; it holds nothing any more.
    pub(crate) fn split_off(&mut self) -> Self {
        Self {
            budget: self.budget.clone(),
            purpose: self.purpose,
            bytes: mem::take(&mut self.bytes),
        }
    }

    /// Whether what is held is as it may be.
    fn is_within_budget(&self) -> bool {
        let max = self.budget.max();
        let counts = &self.budget.0;
        let fits = self.budget.used() <= max;
        match self.purpose {
            BytePurpose::Answer | BytePurpose::Unread(_) => fits,
            BytePurpose::Request(agent) => {
                fits && counts.requests.load(Ordering::Relaxed) <= max / 2
                    && agent.is_none_or(|agent| self.budget.bytes_of_agent(agent) <= max / 4)
            }
        }
    }

    fn add(&mut self, bytes: usize) {
        let counts = &self.budget.0;
        self.bytes += bytes;
        counts.used.fetch_add(bytes, Ordering::Relaxed);
        if let BytePurpose::Request(_) = self.purpose {
            counts.requests.fetch_add(bytes, Ordering::Relaxed);
        }
        if let BytePurpose::Request(Some(agent)) | BytePurpose::Unread(Some(agent)) = self.purpose {
            *lock(&counts.agents).entry(agent).or_default() += bytes;
        }
    }

    fn remove(&mut self, bytes: usize) {
        let counts = &self.budget.0;
        self.bytes -= bytes;
        counts.used.fetch_sub(bytes, Ordering::Relaxed);
        if let BytePurpose::Request(_) = self.purpose {
            counts.requests.fetch_sub(bytes, Ordering::Relaxed);
        }
        if let BytePurpose::Request(Some(agent)) | BytePurpose::Unread(Some(agent)) = self.purpose {
            let mut agents = lock(&counts.agents);
            if let Some(held) = agents.get_mut(&agent) {
                *held -= bytes;
                if *held == 0 {
                    agents.remove(&agent);
                }
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.remove(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 64 * UNCOUNTED_BYTES_MAX;

    fn agent(number: u128) -> AgentId {
        format!("agent_{}", uuid::Uuid::from_u128(number))
            .parse()
            .unwrap()
    }

    #[test]
    fn what_is_held_at_past_and_back_under_the_limit() {
        let budget = ByteBudget::new(MAX);
        let mut first = budget.reserve_answer();
        first.grow_to(MAX).unwrap();
        assert_eq!(budget.used(), MAX);
        let mut second = budget.reserve_answer();
        second
            .grow_to(UNCOUNTED_BYTES_MAX)
            .expect("it is not counted");
        assert_eq!(
            second.grow_to(UNCOUNTED_BYTES_MAX + 1),
            Err(ByteBudgetExceeded)
        );
        assert_eq!((budget.used(), budget.rejected()), (MAX, 1));
        drop(first);
        second.grow_to(MAX).expect("there is room again");
        drop(second);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn new_calls_are_turned_away_before_it_is_full() {
        let (budget, anybody) = (ByteBudget::new(MAX), AgentId::ANONYMOUS);
        let mut held = budget.reserve_answer();
        for (bytes, expect) in [
            (MAX / 4 * 3 - 1, Ok(())),
            (MAX / 4 * 3, Err(ByteBudgetExceeded)),
            (MAX, Err(ByteBudgetExceeded)),
        ] {
            held.grow_to(bytes).unwrap();
            assert_eq!(budget.admit(anybody), expect, "{bytes}");
        }
        drop(held);
        assert_eq!(budget.admit(anybody), Ok(()));
    }

    #[test]
    fn bodies_of_requests_have_half_and_one_agent_a_quarter() {
        let budget = ByteBudget::new(MAX);
        let (one, other) = (agent(1), agent(2));
        let mut body = budget.reserve_request(one);
        body.grow_to(MAX / 4).unwrap();
        assert_eq!(body.grow_to(MAX / 4 + 1), Err(ByteBudgetExceeded));
        assert_eq!(
            budget.admit(one),
            Err(ByteBudgetExceeded),
            "it has its part"
        );
        assert_eq!(budget.admit(other), Ok(()));
        let mut others = budget.reserve_request(AgentId::ANONYMOUS);
        others.grow_to(MAX / 4).unwrap();
        assert_eq!(
            budget
                .reserve_request(other)
                .grow_to(UNCOUNTED_BYTES_MAX + 1),
            Err(ByteBudgetExceeded),
            "half is held"
        );
        budget
            .reserve_answer()
            .grow_to(MAX / 2)
            .expect("the rest is for answers");
        drop(body);
        assert_eq!(budget.admit(one), Ok(()));
        others
            .grow_to(MAX / 2)
            .expect("there is no part of those without a key");
        drop(others);
        assert!(lock(&budget.0.agents).is_empty() && budget.used() == 0);
    }

    #[test]
    fn bytes_are_counted_while_any_part_of_them_is_in_use() {
        let budget = ByteBudget::new(MAX);
        let whole = budget.count_unread(agent(1), Bytes::from(vec![0; UNCOUNTED_BYTES_MAX + 1]));
        let part = whole.slice(5..6);
        drop(whole);
        assert_eq!(budget.used(), UNCOUNTED_BYTES_MAX + 1);
        assert_eq!(budget.bytes_of_agent(agent(1)), UNCOUNTED_BYTES_MAX + 1);
        drop(part);
        assert_eq!((budget.used(), budget.bytes_of_agent(agent(1))), (0, 0));
        let small = Bytes::from(vec![0; UNCOUNTED_BYTES_MAX]);
        assert_eq!(
            budget.count_unread(agent(1), small.clone()).as_ptr(),
            small.as_ptr()
        );
        assert_eq!(budget.used(), 0);
    }
}
