//! How often an agent may be refused from one address (`governance.refusal_rate`).
//!
//! A refused call costs its agent nothing, and the audit a record: without a bound, who may do nothing could
//! fill the disk, and with it stop everybody. Each refusal counts; who is refused more often than the rate
//! allows is held back: its requests are answered HTTP 429, or -32004 where there is no status, before they
//! become invocations, whether they would be refused or not, since to find that out is what costs. It is let
//! through again as soon as the rate allows one refusal more, which by default is a tenth of a second later.
//! Of those held back there is one record a minute, with their number.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::refusal;
use crate::{
    audit::{FloodMeter, FloodSum, RefusalSummary},
    auth::Agent,
    config::Rate,
    lock::lock,
    names::{AgentId, PeerAddress},
};

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
    sums: Mutex<FloodMeter<(), MeteredCaller, HeldBack>>,
}

/// Whose calls are counted together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct MeteredCaller {
    agent: AgentId,
    /// `None` without a network, and for addresses for which there is no room.
    address: Option<PeerAddress>,
}

/// The agent that was held back, and from where it came last.
type HeldBack = (Arc<Agent>, Option<PeerAddress>);

/// What is to be recorded.
pub(super) type HeldBackSum = ((), MeteredCaller, FloodSum<HeldBack>);

impl Default for RefusalMeter {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            callers: DashMap::default(),
            busy_until: AtomicU64::new(0),
            sums: Mutex::new(FloodMeter::new(0, SUMS_MAX)),
        }
    }
}

impl RefusalMeter {
    /// Notes that a call was refused.
    pub(super) fn count_refusal(&self, agent: AgentId, address: Option<PeerAddress>, rate: Rate) {
        let caller = self.caller_key(agent, address);
        let (now, step) = (self.now(), refusal_interval_nanos(rate));
        let burst = burst_nanos(rate);
        let latest = now.saturating_add(burst).saturating_add(nanos(OVERRUN_MAX));
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
        let others = MeteredCaller {
            address: None,
            ..caller
        };
        let keys = (caller, others);
        let last = (Arc::clone(agent), address);
        lock(&self.sums).count((), keys, (last, 1), Instant::now());
        Some(wait)
    }

    /// What has waited for a record long enough.
    pub(super) fn due_sums(&self) -> Vec<HeldBackSum> {
        let now = self.now();
        self.callers.retain(|_, due| *due > now);
        lock(&self.sums).due_sums(Instant::now())
    }

    /// What was not recorded yet, at the end.
    pub(super) fn remaining_sums(&self) -> Vec<HeldBackSum> {
        lock(&self.sums).remaining_sums()
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
        nanos(self.start.elapsed())
    }
}

/// The record of a sum.
pub(super) fn summary(((), caller, sum): &HeldBackSum) -> RefusalSummary<'_> {
    let (agent, address) = &sum.last;
    RefusalSummary {
        since: sum.since,
        until: sum.until,
        agent_id: agent.id,
        agent_name: &agent.name,
        address: address.filter(|_| caller.address.is_some()),
        code: refusal::RATE_LIMITED.name,
        count: sum.count,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The time from one refusal to the next, nanoseconds.
fn refusal_interval_nanos(rate: Rate) -> u64 {
    nanos(rate.per / rate.calls.get()).max(1)
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
    use crate::audit::SUM_INTERVAL;

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
        let refusals = summary(summed);
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
        assert!(lock(&meter.sums).keys() <= SUMS_MAX + 1);
    }
}
