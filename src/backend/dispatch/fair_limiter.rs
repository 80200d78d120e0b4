//! The gate in front of one server: how many calls may be under way, and how many may wait for that.
//!
//! Called by [`crate::backend::Backend`] for every call; the gateway's own traffic and listen streams do not
//! pass it. Without `limits.in_flight` a gate is open and costs nothing. With it, a call
//! beyond the limit waits for a seat, and the agents that wait are served in turn, so that the
//! burst of one does not delay another's single call. When the queue is full, a call is refused at
//! once; where its agent waits with fewer calls than another, the last call of that other one is
//! refused in its place.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{backend::BackendError, lock::lock, names::AgentId, telemetry::Latency};

/// What a caller that was refused is told to wait, where nothing is known of how long calls take.
const RETRY_UNKNOWN: Duration = Duration::from_secs(1);
/// The shortest and the longest time that a caller who was refused is told to wait.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The gate in front of one server.
#[derive(Debug)]
pub(in crate::backend) struct FairLimiter {
    /// Whether any number of calls may be under way: known without the lock.
    is_unlimited: AtomicBool,
    state: Mutex<LimiterState>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// How many calls may be under way; any number when `None`.
    permits_max: Option<NonZeroUsize>,
    /// How many more may wait.
    queue: usize,
    in_use: usize,
    /// Calls that wait, of all agents.
    waiting: usize,
    /// The agents that wait; the first is next. None of them is without a call.
    queues: VecDeque<AgentQueue>,
    last_ticket: u64,
}

/// The calls of one agent that wait, the oldest first.
#[derive(Debug)]
struct AgentQueue {
    agent: AgentId,
    calls: VecDeque<WaitingCall>,
}

#[derive(Debug)]
struct WaitingCall {
    waiter_id: u64,
    /// Gets a seat; dropped without one when the call has to make room.
    grant: oneshot::Sender<CallPermit>,
}

/// Leave to call the server, given back when dropped.
#[derive(Debug)]
pub(in crate::backend) struct CallPermit(Option<Arc<FairLimiter>>);

/// A place in the queue, left when dropped.
struct QueuePlace<'a> {
    limiter: &'a FairLimiter,
    waiter_id: u64,
}

impl FairLimiter {
    /// A gate for `in_flight` calls at a time, while `queue` more wait.
    pub(in crate::backend) fn new(in_flight: Option<NonZeroUsize>, queue: usize) -> Arc<Self> {
        let state = LimiterState {
            permits_max: in_flight,
            queue,
            ..LimiterState::default()
        };
        Arc::new(Self {
            is_unlimited: AtomicBool::new(in_flight.is_none()),
            state: Mutex::new(state),
            refused: AtomicU64::new(0),
        })
    }

    /// Lets `in_flight` calls at a time pass from now on, while `queue` more wait. Calls that are
    /// under way stay so; those that came while the gate was open do not count.
    pub(in crate::backend) fn set_limits(
        self: &Arc<Self>,
        in_flight: Option<NonZeroUsize>,
        queue: usize,
    ) {
        let mut state = self.state();
        (state.permits_max, state.queue) = (in_flight, queue);
        self.is_unlimited
            .store(in_flight.is_none(), Ordering::Relaxed);
        let mut next = Vec::new();
        while state.waiting > 0 && state.try_take() {
            next.extend(state.dequeue());
        }
        drop(state);
        for next in next {
            // Whoever has just given up drops the seat, which gives it back.
            drop(next.send(self.new_permit()));
        }
    }

    /// A seat, when there is nothing to wait for.
    pub(in crate::backend) fn try_acquire(self: &Arc<Self>) -> Option<CallPermit> {
        if self.is_unlimited.load(Ordering::Relaxed) {
            return Some(CallPermit(None));
        }
        self.state().try_take().then(|| self.new_permit())
    }

    /// A seat for a call of `agent`, as soon as it is its turn, within `patience`. How long calls
    /// take is known from `latency`.
    ///
    /// # Errors
    /// When the queue is full, `cancel` comes first, or `patience` ends.
    pub(in crate::backend) async fn acquire(
        self: &Arc<Self>,
        agent: AgentId,
        patience: Duration,
        cancel: &CancellationToken,
        latency: &Latency,
    ) -> Result<CallPermit, BackendError> {
        let joined = {
            let mut state = self.state();
            if state.try_take() {
                drop(state);
                return Ok(self.new_permit());
            }
            state.enqueue(agent)
        };
        let (waiter_id, seat) = joined.ok_or_else(|| self.overloaded_error(latency, None))?;
        let _place = QueuePlace {
            limiter: self,
            waiter_id,
        };
        tokio::select! {
            biased;
            seat = seat => seat.map_err(|_| self.overloaded_error(latency, None)),
            () = cancel.cancelled() => Err(BackendError::Cancelled { is_sent: false }),
            () = tokio::time::sleep(patience) => Err(self.overloaded_error(latency, Some(patience))),
        }
    }

    /// Calls that wait for a seat.
    pub(in crate::backend) fn queued(&self) -> usize {
        self.state().waiting
    }

    /// Calls that got no seat, but for those that were cancelled.
    pub(in crate::backend) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn new_permit(self: &Arc<Self>) -> CallPermit {
        CallPermit(Some(Arc::clone(self)))
    }

    /// Gives a seat back: to the next call that waits, else to whoever comes.
    fn release(self: &Arc<Self>) {
        let mut state = self.state();
        state.in_use -= 1;
        if state.waiting == 0 || !state.try_take() {
            return;
        }
        match state.dequeue() {
            Some(next) => {
                drop(state);
                // Whoever has just given up drops the seat, which leads here again.
                drop(next.send(self.new_permit()));
            }
            None => state.in_use -= 1,
        }
    }

    /// Refuses a call, which has `waited` for as long as it could.
    fn overloaded_error(&self, latency: &Latency, waited: Option<Duration>) -> BackendError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let typical = latency.percentile(0.5);
        let state = self.state();
        let permits_max = state.permits_max.unwrap_or(NonZeroUsize::MIN);
        BackendError::Overloaded {
            in_flight: permits_max.get(),
            queue: state.queue,
            waited,
            retry_after: retry_after(typical, state.waiting, permits_max),
        }
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        lock(&self.state)
    }
}

impl LimiterState {
    /// Takes a seat when one is free. None is while anybody waits: a seat that is given back goes to
    /// them.
    fn try_take(&mut self) -> bool {
        let is_free = self
            .permits_max
            .is_none_or(|permits_max| self.in_use < permits_max.get());
        self.in_use += usize::from(is_free);
        is_free
    }

    /// Joins the queue, which may make another agent's last call leave it; `None` when it is full.
    fn enqueue(&mut self, agent: AgentId) -> Option<(u64, oneshot::Receiver<CallPermit>)> {
        let own = self.queues.iter().find(|turn| turn.agent == agent);
        let own = own.map_or(0, |turn| turn.calls.len());
        if self.waiting >= self.queue {
            self.evict_for(own)?;
        }
        self.last_ticket += 1;
        let (seat, receiver) = oneshot::channel();
        let call = WaitingCall {
            waiter_id: self.last_ticket,
            grant: seat,
        };
        match self.queues.iter_mut().find(|turn| turn.agent == agent) {
            Some(turn) => turn.calls.push_back(call),
            None => self.queues.push_back(AgentQueue {
                agent,
                calls: VecDeque::from([call]),
            }),
        }
        self.waiting += 1;
        Some((self.last_ticket, receiver))
    }

    /// Lets the agent with the most calls in the queue lose its last one to an agent with `own`,
    /// where that leaves it with no fewer than the other then has.
    fn evict_for(&mut self, own: usize) -> Option<()> {
        let longest = self.queues.iter_mut().max_by_key(|turn| turn.calls.len())?;
        if longest.calls.len() <= own + 1 {
            return None;
        }
        longest.calls.pop_back()?;
        self.waiting -= 1;
        Some(())
    }

    /// The call whose turn it is.
    fn dequeue(&mut self) -> Option<oneshot::Sender<CallPermit>> {
        let mut turn = self.queues.pop_front()?;
        let call = turn.calls.pop_front()?;
        self.waiting -= 1;
        if !turn.calls.is_empty() {
            self.queues.push_back(turn);
        }
        Some(call.grant)
    }

    /// Takes a call that no longer waits out of the queue.
    fn remove(&mut self, waiter_id: u64) {
        let is_it = |call: &WaitingCall| call.waiter_id == waiter_id;
        let at = self
            .queues
            .iter()
            .position(|turn| turn.calls.iter().any(is_it));
        let Some(at) = at else { return };
        let calls = &mut self.queues[at].calls;
        calls.retain(|call| !is_it(call));
        self.waiting -= 1;
        if calls.is_empty() {
            self.queues.remove(at);
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if let Some(gate) = &self.0 {
            gate.release();
        }
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.limiter.state().remove(self.waiter_id);
    }
}

/// When a seat may be free for one more call: as many rounds as the queue is long, each as long as
/// calls `typical`ly take.
fn retry_after(typical: Option<Duration>, waiting: usize, permits_max: NonZeroUsize) -> Duration {
    let Some(typical) = typical else {
        return RETRY_UNKNOWN;
    };
    let rounds = u32::try_from(waiting / permits_max + 1).unwrap_or(u32::MAX);
    typical.saturating_mul(rounds).clamp(RETRY_MIN, RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::poll;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A call that has come to a gate, and who made it.
    struct Coming(Pin<Box<dyn Future<Output = Result<CallPermit, BackendError>>>>);

    impl std::fmt::Debug for Coming {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a call that waits")
        }
    }

    /// Lets a call of agent `of` come to the gate, up to where it has to wait.
    async fn come(gate: &Arc<FairLimiter>, of: u128) -> Result<CallPermit, Coming> {
        come_with(gate, of, &CancellationToken::new()).await
    }

    async fn come_with(
        gate: &Arc<FairLimiter>,
        of: u128,
        cancel: &CancellationToken,
    ) -> Result<CallPermit, Coming> {
        let (gate, cancel) = (Arc::clone(gate), cancel.clone());
        let mut coming = Coming(Box::pin(async move {
            let agent = AgentId(uuid::Uuid::from_u128(of));
            let latency = Latency::default();
            gate.acquire(agent, MINUTE, &cancel, &latency).await
        }));
        match decided(&mut coming).await {
            Some(Ok(seat)) => Ok(seat),
            Some(Err(failure)) => Err(Coming(Box::pin(async { Err(failure) }))),
            None => Err(coming),
        }
    }

    fn gate(permits_max: usize, queue: usize) -> Arc<FairLimiter> {
        FairLimiter::new(NonZeroUsize::new(permits_max), queue)
    }

    /// Whether a call that has come has been decided on by now, and how.
    async fn decided(coming: &mut Coming) -> Option<Result<CallPermit, BackendError>> {
        match poll!(&mut coming.0) {
            std::task::Poll::Ready(verdict) => Some(verdict),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn both_limits_hold_at_their_edge_and_on_the_way_back() {
        let gate = gate(2, 1);
        let first = come(&gate, 1).await.expect("under the limit");
        let _second = come(&gate, 1).await.expect("at the limit");
        assert!(gate.try_acquire().is_none());
        let mut third = come(&gate, 1).await.expect_err("it waits");
        assert_eq!((gate.queued(), gate.refused()), (1, 0));
        let mut fourth = come(&gate, 1).await.expect_err("no room");
        let failure = decided(&mut fourth).await.expect("at once").unwrap_err();
        assert_eq!(
            failure,
            BackendError::Overloaded {
                in_flight: 2,
                queue: 1,
                waited: None,
                retry_after: RETRY_UNKNOWN
            }
        );
        assert_eq!(gate.refused(), 1);
        assert!(decided(&mut third).await.is_none());
        drop(first);
        let third = decided(&mut third).await.expect("it is its turn");
        assert_eq!(gate.queued(), 0);
        let mut fifth = come(&gate, 1).await.expect_err("the seat was taken");
        drop(third);
        assert!(matches!(decided(&mut fifth).await, Some(Ok(_))));
        assert!(gate.try_acquire().is_some(), "the verdict was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_everybody_enters() {
        let gate = FairLimiter::new(None, 0);
        let permits_max: Vec<_> = (0..1000).map(|_| gate.try_acquire()).collect();
        assert!(permits_max.iter().all(Option::is_some));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_queue_a_call_is_refused_at_once() {
        let gate = gate(1, 0);
        let seat = come(&gate, 1).await.expect("under the limit");
        let mut next = come(&gate, 2).await.expect_err("no room");
        assert!(matches!(decided(&mut next).await, Some(Err(_))));
        drop(seat);
        assert!(come(&gate, 2).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn agents_take_turns() {
        let gate = gate(1, 10);
        let mut seat = come(&gate, 1).await.ok();
        let mut queue = Vec::new();
        for agent in [1, 1, 1, 2, 3, 2] {
            queue.push((agent, come(&gate, agent).await.expect_err("it waits")));
        }
        let mut served = Vec::new();
        while !queue.is_empty() {
            drop(seat.take());
            for at in 0..queue.len() {
                if let Some(next) = decided(&mut queue[at].1).await {
                    seat = Some(next.expect("nobody is refused"));
                    served.push(queue.remove(at).0);
                    break;
                }
            }
            assert!(seat.is_some(), "somebody is served: {served:?}");
        }
        assert_eq!(served, [1, 2, 3, 1, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_does_not_shut_others_out() {
        let gate = gate(1, 4);
        let _seat = come(&gate, 1).await.ok();
        let mut burst = Vec::new();
        for _ in 0..4 {
            burst.push(come(&gate, 1).await.expect_err("it waits"));
        }
        let mut refused = come(&gate, 1).await.expect_err("no room");
        assert!(matches!(decided(&mut refused).await, Some(Err(_))));
        let mut others = Vec::new();
        for _ in 0..2 {
            others.push(come(&gate, 2).await.expect_err("it waits in their place"));
        }
        for (at, call) in burst.iter_mut().enumerate() {
            let verdict = decided(call).await;
            assert_eq!(
                verdict.is_some_and(|verdict| verdict.is_err()),
                at >= 2,
                "{at}"
            );
        }
        let mut third = come(&gate, 2).await.expect_err("it has half of the queue");
        assert!(matches!(decided(&mut third).await, Some(Err(_))));
        assert_eq!((gate.queued(), gate.refused()), (4, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_leaves_the_queue() {
        let gate = gate(1, 2);
        let seat = come(&gate, 1).await.ok();
        let cancel = CancellationToken::new();
        let mut cancelled = come_with(&gate, 1, &cancel).await.expect_err("it waits");
        let mut waiting = come(&gate, 2).await.expect_err("it waits");
        cancel.cancel();
        let verdict = decided(&mut cancelled).await.expect("it was cancelled");
        assert_eq!(
            verdict.unwrap_err(),
            BackendError::Cancelled { is_sent: false }
        );
        assert_eq!((gate.queued(), gate.refused()), (1, 0));
        tokio::time::advance(MINUTE).await;
        let verdict = decided(&mut waiting).await.expect("its time is over");
        assert_eq!(
            verdict.unwrap_err().to_string(),
            "server busy: 1 calls in flight (limits.in_flight), timed out in the queue after 60000 ms"
        );
        assert_eq!((gate.queued(), gate.refused()), (0, 1));
        drop(seat);
        assert!(gate.try_acquire().is_some());
    }

    /// A seat that is on its way to a call which has gone is not lost.
    #[tokio::test(start_paused = true)]
    async fn no_seat_is_lost_on_the_way() {
        let gate = gate(1, 2);
        let seat = come(&gate, 1).await.ok();
        let gone = come(&gate, 1).await.expect_err("it waits");
        let mut next = come(&gate, 2).await.expect_err("it waits");
        drop(seat);
        drop(gone);
        let seat = decided(&mut next).await.expect("it is its turn");
        assert!(gate.try_acquire().is_none());
        drop(seat);
        assert!(gate.try_acquire().is_some());
    }

    #[test]
    fn who_is_refused_is_told_when_to_come_back() {
        let permits_max = |permits_max| NonZeroUsize::new(permits_max).unwrap();
        let check = |typical, waiting, of, expect| {
            let typical = Some(Duration::from_millis(typical));
            let wait = retry_after(typical, waiting, permits_max(of)).as_millis();
            assert_eq!(wait, expect, "{typical:?} {waiting} {of}");
        };
        check(200, 0, 1, 200);
        check(200, 3, 2, 400);
        check(1, 0, 1, 100);
        check(10_000, 9, 1, 30_000);
        assert_eq!(retry_after(None, 9, permits_max(1)), RETRY_UNKNOWN);
    }

    #[tokio::test(start_paused = true)]
    async fn other_limits_hold_at_once() {
        let gate = gate(1, 9);
        let first = come(&gate, 1).await.expect("under the limit");
        let mut second = come(&gate, 1).await.expect_err("it waits");
        let mut third = come(&gate, 1).await.expect_err("it waits");
        gate.set_limits(NonZeroUsize::new(2), 9);
        let second = decided(&mut second).await.expect("it is its turn").unwrap();
        assert!(decided(&mut third).await.is_none(), "two of two");
        gate.set_limits(NonZeroUsize::new(1), 9);
        drop(first);
        assert!(decided(&mut third).await.is_none(), "one of one");
        gate.set_limits(None, 9);
        let third = decided(&mut third).await.expect("none waits").unwrap();
        let open = come(&gate, 1).await.expect("without a limit");
        gate.set_limits(NonZeroUsize::new(2), 0);
        assert!(gate.try_acquire().is_none(), "two are under way that count");
        drop((second, open));
        assert!(gate.try_acquire().is_some());
        drop(third);
        assert_eq!((gate.queued(), gate.refused()), (0, 0));
    }
}
