//! How often calls may be made (GCRA): per agent, per agent and tool, per agent and server.
//!
//! Every limit is one caller's own: nobody's burst costs another anything. A call is counted by all
//! limits that apply or by none. A rate that changes begins anew, since a limiter belongs to its
//! rate as much as to its agent. Time is tokio's, so tests can pause it.

use std::{
    collections::HashMap,
    fmt,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use dashmap::DashMap;
use governor::{
    NotUntil, Quota, RateLimiter,
    clock::{Clock, Reference},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed, StateStore},
};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    config::Rate,
    lock::lock,
    names::{AgentId, ServerName},
};

/// Agents whose limits are kept. Agents come from the config and the store, so this is beyond any
/// real number; those beyond it share one set of limits.
pub const AGENTS_MAX: usize = 65_536;

/// Limiters kept for one agent: as many tools and servers as it may use at once and then some.
/// Tools and servers beyond it share one limiter for each rate.
pub const BUCKETS_MAX: usize = 1024;

/// The longest time a rate speaks of, which keeps its arithmetic within 64 bits of nanoseconds.
const RATE_PERIOD_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The limits of all agents.
#[derive(Debug)]
pub struct Limiters {
    agents: DashMap<AgentId, Arc<AgentLimits>>,
    /// For agents beyond the limit.
    overflow: Arc<AgentLimits>,
    agents_max: usize,
    clock: TokioClock,
}

impl Default for Limiters {
    fn default() -> Self {
        Self::new(AGENTS_MAX)
    }
}

impl Limiters {
    fn new(agents_max: usize) -> Self {
        let clock = TokioClock {
            start: Instant::now(),
        };
        Self {
            agents: DashMap::new(),
            overflow: Arc::new(AgentLimits::new(clock)),
            agents_max,
            clock,
        }
    }

    /// The limits of one agent, to be kept as long as the agent is known.
    pub fn for_agent(&self, agent: AgentId) -> Arc<AgentLimits> {
        if let Some(known) = self.agents.get(&agent) {
            return Arc::clone(&known);
        }
        if self.agents.len() >= self.agents_max {
            self.agents
                .retain(|_, limits| !AgentLimits::is_idle(limits));
        }
        if self.agents.len() >= self.agents_max {
            return Arc::clone(&self.overflow);
        }
        let new = || Arc::new(AgentLimits::new(self.clock));
        Arc::clone(&self.agents.entry(agent).or_insert_with(new))
    }
}

/// The limiters of one agent on all routes.
#[derive(Debug)]
pub struct AgentLimits {
    buckets: Mutex<HashMap<BucketKey, Arc<Bucket>>>,
    clock: TokioClock,
}

/// What a limiter counts.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum BucketKey {
    Agent(RateKey),
    /// Tools and servers that have no limiter of their own.
    Others(LimitScope, RateKey),
    Server(RateKey, ServerName),
    Tool(RateKey, ServerName, Arc<str>),
}

type RateKey = (NonZeroU32, Duration, NonZeroU32);

impl AgentLimits {
    fn new(clock: TokioClock) -> Self {
        Self {
            buckets: Mutex::default(),
            clock,
        }
    }

    /// Limits with these rates: of the agent's calls and of its calls of each tool. The same rates
    /// count together wherever they are used.
    pub fn rate_limits(self: &Arc<Self>, agent: Option<Rate>, tool: Option<Rate>) -> RateLimits {
        let mut buckets = self.lock();
        let agent =
            agent.map(|rate| self.bucket(&mut buckets, BucketKey::Agent(rate_key(rate)), rate));
        drop(buckets);
        RateLimits {
            agent_limits: Arc::clone(self),
            agent,
            tool,
        }
    }

    /// The limiter for `key`, a new one where none is kept.
    fn bucket(
        &self,
        buckets: &mut HashMap<BucketKey, Arc<Bucket>>,
        key: BucketKey,
        rate: Rate,
    ) -> Arc<Bucket> {
        if let Some(known) = buckets.get(&key) {
            return Arc::clone(known);
        }
        if buckets.len() >= BUCKETS_MAX {
            buckets.retain(|_, bucket| !bucket.is_idle());
        }
        let key = match key {
            BucketKey::Server(rate, _) if buckets.len() >= BUCKETS_MAX => {
                BucketKey::Others(LimitScope::Server, rate)
            }
            BucketKey::Tool(rate, _, _) if buckets.len() >= BUCKETS_MAX => {
                BucketKey::Others(LimitScope::Tool, rate)
            }
            BucketKey::Agent(_)
            | BucketKey::Others(..)
            | BucketKey::Server(..)
            | BucketKey::Tool(..) => key,
        };
        let new = || Arc::new(Bucket::new(rate, self.clock));
        Arc::clone(buckets.entry(key).or_insert_with(new))
    }

    /// Whether nothing is lost when it is forgotten.
    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.lock().values().all(Bucket::is_idle)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BucketKey, Arc<Bucket>>> {
        lock(&self.buckets)
    }
}

/// The limits of one agent on one route, to be kept with what else is known of it.
#[derive(Clone, Debug)]
pub struct RateLimits {
    agent_limits: Arc<AgentLimits>,
    agent: Option<Arc<Bucket>>,
    tool: Option<Rate>,
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub struct RateTarget<'a> {
    /// The server.
    pub server: &'a ServerName,
    /// How often each agent may call the server.
    pub server_rate: Option<Rate>,
    /// The tool by its original name; `None` for other requests.
    pub tool: Option<&'a Arc<str>>,
}

impl RateLimits {
    /// Counts a call, unless a limit is reached; then no limit counts it.
    ///
    /// A call that is refused by one limit is counted by the others for the blink of the check, so a
    /// concurrent one may be refused as well: never is one too many let through.
    ///
    /// # Errors
    /// The limit that takes longest to allow the call.
    pub fn check(&self, target: &RateTarget<'_>) -> Result<(), Limited> {
        let [tool, server] = self.tool_and_server_buckets(target);
        let all = [
            (LimitScope::Agent, self.agent.as_ref()),
            (LimitScope::Tool, tool.as_ref()),
            (LimitScope::Server, server.as_ref()),
        ];
        let mut taken = [None; 3];
        let mut longest: Option<Limited> = None;
        for (at, (scope, bucket)) in all.into_iter().enumerate() {
            let Some(bucket) = bucket else { continue };
            match bucket.try_acquire() {
                Ok(()) => taken[at] = Some(bucket),
                Err(retry_after) => {
                    if longest.is_none_or(|known| known.retry_after < retry_after) {
                        longest = Some(Limited {
                            scope,
                            rate: bucket.rate,
                            retry_after,
                        });
                    }
                }
            }
        }
        let Some(limited) = longest else {
            return Ok(());
        };
        for bucket in taken.into_iter().flatten() {
            bucket.refund();
        }
        Err(limited)
    }

    /// The limits as they stand: that of all calls, and those of tools and servers of which something is used;
    /// `server_rate` is how often each agent may call a server at present.
    pub fn statuses(&self, server_rate: impl Fn(&ServerName) -> Option<Rate>) -> Vec<RateStatus> {
        let own = self.agent.as_ref();
        let mut statuses: Vec<_> = own
            .map(|bucket| bucket.status(LimitScope::Agent, None))
            .into_iter()
            .collect();
        let buckets = self.agent_limits.lock();
        let mut used: Vec<_> = buckets
            .iter()
            .filter_map(|(key, bucket)| match key {
                BucketKey::Server(rate, server) => {
                    let is_current = server_rate(server).map(rate_key) == Some(*rate);
                    is_current.then(|| bucket.status(LimitScope::Server, Some((server, None))))
                }
                BucketKey::Tool(rate, server, tool) => {
                    let is_current = self.tool.map(rate_key) == Some(*rate);
                    is_current.then(|| bucket.status(LimitScope::Tool, Some((server, Some(tool)))))
                }
                BucketKey::Agent(_) | BucketKey::Others(..) => None,
            })
            .filter(|status| status.left < status.rate.burst.get())
            .collect();
        drop(buckets);
        used.sort_by(|a, b| (a.of, &a.server, &a.tool).cmp(&(b.of, &b.server, &b.tool)));
        statuses.extend(used);
        statuses
    }

    /// The limiters for the tool and the server.
    fn tool_and_server_buckets(&self, target: &RateTarget<'_>) -> [Option<Arc<Bucket>>; 2] {
        let tool = self.tool.zip(target.tool);
        if tool.is_none() && target.server_rate.is_none() {
            return [None, None];
        }
        let server = || target.server.clone();
        let mut buckets = self.agent_limits.lock();
        [
            tool.map(|(rate, tool)| {
                let key = BucketKey::Tool(rate_key(rate), server(), Arc::clone(tool));
                self.agent_limits.bucket(&mut buckets, key, rate)
            }),
            target.server_rate.map(|rate| {
                let key = BucketKey::Server(rate_key(rate), server());
                self.agent_limits.bucket(&mut buckets, key, rate)
            }),
        ]
    }
}

/// How a rate limit stands.
#[derive(Clone, Debug, Eq, JsonSchema, PartialEq, Serialize)]
pub struct RateStatus {
    /// What it counts: all calls of the `agent`, those of a `tool`, or those to a `server`.
    pub of: &'static str,
    /// The server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The tool, by the server's name of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The limit.
    pub rate: Rate,
    /// How many calls may be made at once.
    pub left: u32,
}

/// A limit is reached. The caller comes back later.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "rate limit of {scope}: {} calls per {}; try again in {} s",
    .rate.calls,
    humantime::format_duration(.rate.per),
    self.retry_after_seconds()
)]
pub struct Limited {
    /// Which limit.
    pub scope: LimitScope,
    /// Its rate.
    pub rate: Rate,
    /// When every limit that is reached lets a call through again.
    pub retry_after: Duration,
}

impl Limited {
    /// Whole seconds after which to try again, at least one, as `Retry-After` has them.
    pub fn retry_after_seconds(&self) -> u64 {
        let partial = u64::from(self.retry_after.subsec_nanos() > 0);
        (self.retry_after.as_secs() + partial).max(1)
    }
}

/// What a limit counts, each for one agent.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum LimitScope {
    /// Everything.
    Agent,
    /// Calls to one server.
    Server,
    /// Calls of one tool.
    Tool,
}

impl LimitScope {
    /// For audit and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for LimitScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "the gateway",
            Self::Server => "this server",
            Self::Tool => "this tool",
        })
    }
}

/// One limiter.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    limiter: RateLimiter<NotKeyed, SharedLimiter, TokioClock, NoOpMiddleware<Nanos>>,
    state: SharedLimiter,
    /// What one call costs.
    call_cost: Nanos,
    clock: TokioClock,
    start: Nanos,
}

impl Bucket {
    fn new(rate: Rate, clock: TokioClock) -> Self {
        let state = SharedLimiter::default();
        let quota = quota(rate);
        Self {
            rate,
            limiter: RateLimiter::new(quota, state.clone(), clock),
            state,
            call_cost: quota.replenish_interval().into(),
            clock,
            start: clock.now(),
        }
    }

    /// Counts a call; the time until it may be made where it may not.
    fn try_acquire(&self) -> Result<(), Duration> {
        let wait = |until: NotUntil<Nanos>| until.wait_time_from(self.clock.now());
        self.limiter.check().map_err(wait)
    }

    /// Takes back what was counted last.
    fn refund(&self) {
        let earlier = |tat: Option<Nanos>| {
            let tat = tat.unwrap_or(Nanos::new(0));
            Ok::<_, ()>(((), tat.saturating_sub(self.call_cost)))
        };
        let given = self.state.measure_and_replace(&NotKeyed::NonKey, earlier);
        debug_assert_eq!(given, Ok(()), "nothing above fails");
    }

    /// How it stands, with what it counts.
    fn status(
        &self,
        scope: LimitScope,
        target: Option<(&ServerName, Option<&Arc<str>>)>,
    ) -> RateStatus {
        RateStatus {
            of: scope.as_str(),
            server: target.map(|(server, _)| server.to_string()),
            tool: target.and_then(|(_, tool)| Some(tool?.to_string())),
            rate: self.rate,
            left: self.left(),
        }
    }

    /// How many calls may be made at once.
    fn left(&self) -> u32 {
        let burst = quota(self.rate).burst_size().get();
        let look = |tat: Option<Nanos>| Err::<((), Nanos), _>(tat.unwrap_or(Nanos::new(0)));
        let tat = self.state.measure_and_replace(&NotKeyed::NonKey, look);
        let now = self.clock.now().duration_since(self.start);
        let ahead = tat.err().unwrap_or(now).saturating_sub(now).as_u64();
        let used = ahead.div_ceil(self.call_cost.as_u64().max(1));
        burst.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Whether it is as good as new, and nobody holds it.
    fn is_idle(self: &Arc<Self>) -> bool {
        let look = |tat: Option<Nanos>| Err::<((), Nanos), _>(tat.unwrap_or(Nanos::new(0)));
        let tat = self.state.measure_and_replace(&NotKeyed::NonKey, look);
        let now = self.clock.now().duration_since(self.start);
        Arc::strong_count(self) == 1 && tat.is_err_and(|tat| tat <= now)
    }
}

fn rate_key(rate: Rate) -> RateKey {
    (rate.calls, rate.per, rate.burst)
}

/// One call each `per / calls`, at least a nanosecond; a burst that takes longer than
/// [`RATE_PERIOD_MAX`] to come back is cut to what comes back in that time.
fn quota(rate: Rate) -> Quota {
    let step = (rate.per / rate.calls.get()).clamp(Duration::from_nanos(1), RATE_PERIOD_MAX);
    let calls_max = RATE_PERIOD_MAX.as_nanos() / step.as_nanos();
    let calls_max = u32::try_from(calls_max).unwrap_or(u32::MAX);
    let burst = NonZeroU32::new(rate.burst.get().min(calls_max)).unwrap_or(NonZeroU32::MIN);
    Quota::with_period(step)
        .expect("at least a nanosecond")
        .allow_burst(burst)
}

/// The state of a limiter, to be seen from outside of it.
#[derive(Clone, Debug, Default)]
struct SharedLimiter(Arc<InMemoryState>);

impl StateStore for SharedLimiter {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, decide)
    }
}

/// Nanoseconds since the limiters were made.
#[derive(Clone, Copy, Debug)]
struct TokioClock {
    start: Instant,
}

impl Clock for TokioClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}

#[cfg(test)]
mod tests;
