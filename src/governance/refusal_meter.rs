//! How often an agent may be refused from one address (`governance.refusals`).
//!
//! A refused call costs its agent nothing, and the audit a record: without a bound, who may do nothing could
//! fill the disk, and with it stop everybody. Each refusal counts; who is refused more often than the rate
//! allows is held back: its requests are answered HTTP 429, or -32004 where there is no status, before they
//! become invocations, whether they would be refused or not, since to find that out is what costs. It is let
//! through again as soon as the rate allows one refusal more, which by default is a tenth of a second later.
//! Of those held back there is one record a minute, with their number.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    audit::RefusalSummary,
    auth::Agent,
    clock::{self, cached_now},
    config::Rate,
    lock::lock,
    names::{AgentId, PeerAddress},
};

/// Between two records about one agent and address.
const SUM_INTERVAL: Duration = Duration::from_secs(60);

/// Agents with their addresses that are told apart; addresses beyond are those of one.
const CALLERS_MAX: usize = 16_384;

/// Those that are told apart in records.
const SUMS_MAX: usize = 256;

/// How far beyond its rate an agent gets by calls that are refused at once, which is how long it is held
/// back at most for them.
const OVERRUN_MAX: Duration = Duration::from_secs(1);

/// How often agents were refused lately.
#[derive(Debug)]
pub(super) struct RefusalMeter {
    start: Instant,
    /// When each would have been refused as often as it was if it kept to the rate (GCRA), nanoseconds from
    /// the start.
    callers: DashMap<MeteredCaller, u64, RandomState>,
    /// Until when somebody is held back, alike: most requests need to know no more.
    busy_until: AtomicU64,
    sums: Mutex<HashMap<MeteredCaller, HeldBackSum>>,
}

/// Whose calls are counted together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct MeteredCaller {
    agent: AgentId,
    /// `None` without a network, and for addresses for which there is no room.
    address: Option<PeerAddress>,
}

/// Requests that were held back since the last record.
#[derive(Debug)]
struct HeldBackSum {
    agent: Arc<Agent>,
    address: Option<PeerAddress>,
    since: Timestamp,
    until: Timestamp,
    started: Instant,
    count: u64,
}

/// What is to be recorded.
#[derive(Debug)]
pub(super) struct SummedRefusals(HeldBackSum);

impl Default for RefusalMeter {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            callers: DashMap::default(),
            busy_until: AtomicU64::new(0),
            sums: Mutex::default(),
        }
    }
}

impl RefusalMeter {
    /// Notes that a call was refused.
    pub(super) fn count_refusal(&self, agent: AgentId, address: Option<PeerAddress>, rate: Rate) {
        let caller = self.caller_key(agent, address);
        let (now, step) = (self.now(), refusal_interval_nanos(rate));
        let burst = burst_nanos(rate);
        let latest = now
            .saturating_add(burst)
            .saturating_add(OVERRUN_MAX.nanos());
        let mut due = self.callers.entry(caller).or_insert(now);
        *due = (*due)
            .max(now)
            .saturating_add(step)
            .min(latest.max(now + step));
        let free = (*due + step).saturating_sub(burst);
        self.busy_until.fetch_max(free, Ordering::Relaxed);
    }

    /// How long an agent is held back, if it is; it counts as one more that was.
    pub(super) fn hold_back(
        &self,
        agent: &Arc<Agent>,
        address: Option<PeerAddress>,
        rate: Rate,
    ) -> Option<Duration> {
        let now = self.now();
        if now >= self.busy_until.load(Ordering::Relaxed) {
            return None;
        }
        let caller = self.caller_key(agent.id, address);
        let due = *self.callers.get(&caller)?;
        // At least one more refusal has to fit.
        let free = (due + refusal_interval_nanos(rate)).saturating_sub(burst_nanos(rate));
        let wait = Duration::from_nanos(free.checked_sub(now).filter(|wait| *wait > 0)?);
        self.add_held_back(caller, agent, address);
        Some(wait)
    }

    fn add_held_back(
        &self,
        caller: MeteredCaller,
        agent: &Arc<Agent>,
        address: Option<PeerAddress>,
    ) {
        let mut sums = lock(&self.sums);
        let is_full = sums.len() >= SUMS_MAX && !sums.contains_key(&caller);
        let (caller, address) = if is_full {
            let network = None;
            (
                MeteredCaller {
                    address: network,
                    ..caller
                },
                None,
            )
        } else {
            (caller, address)
        };
        let at = clock::now();
        let sum = sums.entry(caller).or_insert_with(|| HeldBackSum {
            agent: Arc::clone(agent),
            address,
            since: at,
            until: at,
            started: Instant::now(),
            count: 0,
        });
        sum.count += 1;
        (sum.until, sum.address) = (at, address);
    }

    /// What has waited for a record long enough.
    pub(super) fn due_sums(&self) -> Vec<SummedRefusals> {
        let now = self.now();
        self.callers.retain(|_, due| *due > now);
        let mut sums = lock(&self.sums);
        let due = sums.extract_if(|_, sum| sum.started.elapsed() >= SUM_INTERVAL);
        due.map(|(_, sum)| SummedRefusals(sum)).collect()
    }

    /// What was not recorded yet, at the end.
    pub(super) fn remaining_sums(&self) -> Vec<SummedRefusals> {
        let sums = std::mem::take(&mut *lock(&self.sums));
        sums.into_values().map(SummedRefusals).collect()
    }

    fn caller_key(&self, agent: AgentId, address: Option<PeerAddress>) -> MeteredCaller {
        let network = address.map(PeerAddress::to_network);
        let caller = MeteredCaller {
            agent,
            address: network,
        };
        if self.callers.len() >= CALLERS_MAX && !self.callers.contains_key(&caller) {
            return MeteredCaller {
                address: None,
                ..caller
            };
        }
        caller
    }

    fn now(&self) -> u64 {
        cached_now().saturating_duration_since(self.start).nanos()
    }
}

impl SummedRefusals {
    pub(super) fn summary<'a>(&'a self, code: &'a str) -> RefusalSummary<'a> {
        let Self(sum) = self;
        RefusalSummary {
            since: sum.since,
            until: sum.until,
            agent_id: sum.agent.id,
            agent_name: &sum.agent.name,
            address: sum.address,
            code,
            count: sum.count,
        }
    }
}

trait Nanos {
    fn nanos(&self) -> u64;
}

impl Nanos for Duration {
    fn nanos(&self) -> u64 {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The time from one refusal to the next, nanoseconds.
fn refusal_interval_nanos(rate: Rate) -> u64 {
    (rate.per / rate.calls.get()).nanos().max(1)
}

/// How far refusals may run ahead of the rate, nanoseconds.
fn burst_nanos(rate: Rate) -> u64 {
    refusal_interval_nanos(rate).saturating_mul(u64::from(rate.burst.get()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tokio::time::advance;

    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    fn rate(burst: u32) -> Rate {
        Rate {
            calls: NonZeroU32::new(10).unwrap(),
            per: 10 * STEP,
            burst: NonZeroU32::new(burst).unwrap(),
        }
    }

    fn ip(text: &str) -> PeerAddress {
        PeerAddress::Ip(text.parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_at_past_and_back_under_the_rate() {
        let (meter, agent) = (RefusalMeter::default(), Arc::new(Agent::anonymous()));
        let (here, rate) = (Some(ip("192.0.2.1")), rate(3));
        let hold_back = || meter.hold_back(&agent, here, rate);
        let refuse = || meter.count_refusal(agent.id, here, rate);
        for at in 0..3 {
            assert_eq!(hold_back(), None, "{at}");
            refuse();
        }
        assert_eq!(hold_back(), Some(STEP));
        assert_eq!(
            meter.hold_back(&agent, Some(ip("192.0.2.2")), rate),
            None,
            "another address"
        );
        assert_eq!(meter.hold_back(&agent, None, rate), None, "no address");
        advance(STEP / 2).await;
        assert_eq!(
            hold_back(),
            Some(STEP / 2),
            "who is held back is held back no longer"
        );
        advance(STEP / 2).await;
        assert_eq!(hold_back(), None);
        refuse();
        assert_eq!(hold_back(), Some(STEP));
        advance(10 * STEP).await;
        for _ in 0..3 {
            assert_eq!(hold_back(), None, "all of the burst is there again");
            refuse();
        }
        assert!(hold_back().is_some());
    }

    /// Many that were under way when it was held back are no debt for long.
    #[tokio::test(start_paused = true)]
    async fn it_recovers_soon() {
        let (meter, agent) = (RefusalMeter::default(), Arc::new(Agent::anonymous()));
        for _ in 0..10_000 {
            meter.count_refusal(agent.id, None, rate(3));
        }
        let wait = meter.hold_back(&agent, None, rate(3)).unwrap();
        assert!(wait <= OVERRUN_MAX + STEP, "{wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_is_summed_once_a_minute() {
        let (meter, agent) = (RefusalMeter::default(), Arc::new(Agent::anonymous()));
        let here = Some(ip("2001:db8::1"));
        meter.count_refusal(agent.id, here, rate(1));
        for _ in 0..5 {
            assert!(meter.hold_back(&agent, here, rate(1)).is_some());
        }
        assert!(
            meter
                .hold_back(&agent, Some(ip("2001:db8::2")), rate(1))
                .is_some(),
            "one network"
        );
        assert!(meter.due_sums().is_empty(), "too early");
        advance(SUM_INTERVAL).await;
        let due = meter.due_sums();
        let [summed] = &due[..] else {
            panic!("{due:?}")
        };
        let refusals = summed.summary("RATE_LIMITED");
        assert_eq!(
            (refusals.count, refusals.address),
            (6, Some(ip("2001:db8::2")))
        );
        assert!(meter.due_sums().is_empty() && meter.remaining_sums().is_empty());
        assert!(meter.callers.is_empty(), "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_without_number_take_no_memory_without_end() {
        let (meter, agent) = (RefusalMeter::default(), Arc::new(Agent::anonymous()));
        for number in 0..2 * u32::try_from(CALLERS_MAX).unwrap() {
            let address = PeerAddress::User(number);
            meter.count_refusal(agent.id, Some(address), rate(1));
            meter.hold_back(&agent, Some(address), rate(1));
        }
        assert!(meter.callers.len() <= CALLERS_MAX + 1);
        assert!(lock(&meter.sums).len() <= SUMS_MAX + 1);
    }
}
