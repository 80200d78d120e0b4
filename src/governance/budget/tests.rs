//! What budgets promise, on the real store: exact limits, nested budgets, windows, several
//! processes (a chain each), hand-back. What a kill leaves behind is in `tests/budgets`.

use futures_util::FutureExt;
use jiff::SignedDuration;
use proptest::{prelude::*, test_runner::TestRunner};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::store::Store;

const PRICE: Micros = Micros::new(15_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_callers_exactly_as_many_succeed_as_there_is_room_for() {
    for window in [Window::Total, Window::Day, Window::Month] {
        check_exact(&[team("a", 37, window)], 37).await;
    }
    let (day, month) = (Window::Day, Window::Month);
    check_exact(&[agent(12, month), team("t", 11, day)], 11).await;
    check_exact(&[server(9, day), agent(10, month), team("t", 30, day)], 9).await;
    check_exact(&[team("t", 30, day), team("t", 8, month)], 8).await;
    check_exact(&[team("t", 30, day), team("t", 7, day)], 7).await;
    check_exact(&[team("t", 0, day)], 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_together_spend_all_and_no_more() {
    let (store, _directory) = open().await;
    let processes = [budgets(&store, "a"), budgets(&store, "b")];
    let budget = [team("t", 150, Window::Total)];
    let mut callers = JoinSet::new();
    for number in 0..200 {
        let process = processes[number % 2].clone();
        let budget = budget.clone();
        callers.spawn(async move {
            let held = process.hold(&budget, PRICE, now()).await;
            held.map(Hold::settle).is_ok()
        });
    }
    let held = callers.join_all().await;
    let mut spent = held.iter().filter(|held| **held).count();
    assert!(spent <= 150, "{spent}");
    let mut hand_backs = 0;
    while spent < 150 {
        for process in &processes {
            process.flush(now()).await.unwrap();
        }
        processes.iter().for_each(forget_refusals);
        for process in &processes {
            match process.hold(&budget, PRICE, now()).await {
                Ok(hold) => {
                    hold.settle();
                    spent += 1;
                }
                Err(BudgetRefusal::Exceeded(exceeded)) => {
                    assert!(exceeded.is_retryable(), "{exceeded}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        hand_backs += 1;
        assert!(hand_backs < 500, "{spent} of 150 after {hand_backs} beats");
    }
    for process in &processes {
        process.flush(now()).await.unwrap();
    }
    processes.iter().for_each(forget_refusals);
    for process in &processes {
        let exceeded = exceeded(process.hold(&budget, PRICE, now()).await);
        assert_eq!((exceeded.spent, exceeded.limit), (times(150), times(150)));
        assert!(!exceeded.is_retryable(), "{exceeded}");
    }
}

#[tokio::test]
async fn what_is_left_of_a_slice_goes_back_after_two_quiet_beats() {
    let (store, _directory) = open().await;
    let (one, two) = (budgets(&store, "one"), budgets(&store, "two"));
    let budget = [team("t", 160, Window::Total)];
    one.hold(&budget, PRICE, now()).await.unwrap().settle();
    let kept = one.hold(&budget, PRICE, now()).await.unwrap();
    let all_but_slice = times(150);
    two.hold(&budget, all_but_slice, now())
        .await
        .unwrap()
        .settle();
    let refusal = exceeded(two.hold(&budget, PRICE, now()).await);
    assert!(refusal.is_retryable(), "{refusal}");
    assert_eq!(refusal.elsewhere, times(10), "{refusal}");

    one.flush(now()).await.unwrap();
    one.flush(now()).await.unwrap();
    assert_eq!(
        standing(&two, &budget[0]).await,
        (151, 0, 9),
        "spent is said"
    );
    one.flush(now()).await.unwrap();
    assert_eq!(standing(&two, &budget[0]).await, (151, 0, 1), "one is held");
    forget_refusals(&two);
    two.hold(&budget, times(8), now()).await.unwrap().settle();
    kept.release();
    two.close().await.unwrap();
    let last = one.hold(&budget, PRICE, now()).await.unwrap();
    let none = exceeded(one.hold(&budget, PRICE, now()).await);
    assert_eq!((none.spent, none.held), (times(159), PRICE));
    assert!(!none.is_retryable());
    last.settle();
}

#[tokio::test]
async fn a_hold_that_fits_its_slice_never_waits_and_a_refusal_is_repeated_from_memory() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [agent(160, Window::Day), team("t", 320, Window::Total)];
    process.hold(&budget, PRICE, now()).await.unwrap().settle();
    for _ in 0..9 {
        let ready = process.hold(&budget, PRICE, now()).now_or_never();
        ready.expect("the slice has room").unwrap().settle();
    }
    let dry = process.hold(&budget, PRICE, now()).now_or_never();
    assert!(dry.is_none(), "the slice is used up");

    let dear = times(1_000);
    exceeded(process.hold(&budget, dear, now()).await);
    let again = process.hold(&budget, dear, now()).now_or_never();
    exceeded(again.expect("known from memory"));
    process.hold(&budget, PRICE, now()).await.unwrap().settle();
}

#[tokio::test]
async fn a_price_of_zero_and_a_call_without_budgets_touch_nothing() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 0, Window::Total)];
    let free = process.hold(&budget, Micros::ZERO, now()).await.unwrap();
    assert_eq!(free.accounts().count(), 0);
    free.settle();
    let unbounded = process.hold(&[], PRICE, now()).await.unwrap();
    assert_eq!(
        (unbounded.accounts().count(), unbounded.price()),
        (0, PRICE)
    );
    drop(unbounded);
    assert_eq!(
        store.leases.chains_with_open_leases().await.unwrap(),
        [""; 0]
    );
}

#[tokio::test]
async fn a_refused_call_costs_nothing_in_any_of_its_budgets() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let (wide, narrow) = (agent(100, Window::Total), team("t", 1, Window::Total));
    let both = [wide.clone(), narrow.clone()];
    process.hold(&both, PRICE, now()).await.unwrap().settle();
    let refusal = exceeded(process.hold(&both, PRICE, now()).await);
    assert_eq!(refusal.account.as_str(), "team:t/total#0");
    assert_eq!(standing(&process, &wide).await, (1, 0, 0));
    assert_eq!(standing(&process, &narrow).await, (1, 0, 0));
    let released = process
        .hold(std::slice::from_ref(&wide), PRICE, now())
        .await
        .unwrap();
    assert_eq!(standing(&process, &wide).await, (1, 1, 0));
    released.release();
    assert_eq!(standing(&process, &wide).await, (1, 0, 0));
    drop(
        process
            .hold(std::slice::from_ref(&wide), PRICE, now())
            .await
            .unwrap(),
    );
    assert_eq!(standing(&process, &wide).await, (2, 0, 0), "the safe side");
}

#[tokio::test]
async fn windows_end_at_midnight_and_calls_are_settled_where_they_began() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 2, Window::Day)];
    let evening = "2026-11-22T23:59:59.999Z".parse().unwrap();
    let midnight = "2026-11-23T00:00:00Z".parse().unwrap();
    let late = process.hold(&budget, times(2), evening).await.unwrap();
    exceeded(process.hold(&budget, PRICE, evening).await);
    assert_eq!(names(&late), ["team:t/2026-11-22#0"]);

    let early = process.hold(&budget, times(2), midnight).await.unwrap();
    assert_eq!(names(&early), ["team:t/2026-11-23#0"]);
    let slow_clock = exceeded(process.hold(&budget, PRICE, evening).await);
    assert_eq!(slow_clock.account.as_str(), "team:t/2026-11-23#0");
    process.flush(midnight).await.unwrap();
    late.settle();
    early.release();
    process.flush(midnight).await.unwrap();
    let at = |now| process.status(&budget[0], now);
    assert_eq!(at(evening).await.unwrap().spent, times(2));
    assert_eq!(at(midnight).await.unwrap().spent, Micros::ZERO);
    assert_eq!(at(midnight).await.unwrap().ends, Some(midnight + DAY));
}

#[tokio::test]
async fn a_window_that_a_beat_has_ended_is_not_opened_again_while_its_calls_run() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 2, Window::Day)];
    let evening = "2026-11-22T23:59:59.999Z".parse().unwrap();
    let late = process.hold(&budget, times(2), evening).await.unwrap();
    process.flush(evening + DAY).await.unwrap();
    let next = process.hold(&budget, PRICE, evening).await.unwrap();
    assert_eq!(names(&next), ["team:t/2026-11-23#0"]);
    next.settle();
    late.settle();
}

#[tokio::test]
async fn a_reset_counts_at_once_here_and_at_the_next_beat_elsewhere() {
    let (store, _directory) = open().await;
    let (here, there) = (budgets(&store, "here"), budgets(&store, "there"));
    let budget = [team("t", 16, Window::Month), agent(100, Window::Total)];
    let subject = BudgetSubject::team("t");
    let old = here.hold(&budget, PRICE, now()).await.unwrap();
    there
        .hold(&budget, times(15), now())
        .await
        .unwrap()
        .settle();
    exceeded(here.hold(&budget, PRICE, now()).await);
    let account = here.reset(&subject, Window::Month, "paid", now()).await;
    assert_eq!(account.unwrap().as_str(), "team:t/2026-11#1");
    let new = here.hold(&budget, times(2), now()).await.unwrap();
    assert!(
        names(&new).contains(&"team:t/2026-11#1".to_owned()),
        "{new:?}"
    );
    old.settle();
    assert_eq!(standing(&here, &budget[0]).await, (0, 2, 0));

    there.flush(now()).await.unwrap();
    let there_too = there.hold(&budget, PRICE, now()).await.unwrap();
    assert!(names(&there_too).contains(&"team:t/2026-11#1".to_owned()));
    there_too.settle();
    new.settle();
}

#[tokio::test]
async fn a_limit_may_change_between_calls() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let limit = |calls| [team("t", calls, Window::Total)];
    process
        .hold(&limit(160), times(5), now())
        .await
        .unwrap()
        .settle();
    process
        .hold(&limit(160), PRICE, now())
        .await
        .unwrap()
        .settle();
    process
        .hold(&limit(7), PRICE, now())
        .await
        .unwrap()
        .settle();
    let refusal = exceeded(process.hold(&limit(7), PRICE, now()).await);
    assert_eq!((refusal.spent, refusal.limit), (times(7), times(7)));
    exceeded(process.hold(&limit(3), PRICE, now()).await);
    process
        .hold(&limit(8), PRICE, now())
        .await
        .unwrap()
        .settle();
    exceeded(process.hold(&limit(8), PRICE, now()).await);
}

#[tokio::test]
async fn closing_keeps_what_calls_under_way_hold_until_the_audit_tells() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 160, Window::Total)];
    let done = [agent(160, Window::Total)];
    process
        .hold(&budget, times(3), now())
        .await
        .unwrap()
        .settle();
    process.hold(&done, PRICE, now()).await.unwrap().settle();
    let under_way = process.hold(&budget, PRICE, now()).await.unwrap();
    process.close().await.unwrap();
    let closed = process.hold(&budget, PRICE, now()).await;
    assert!(matches!(closed, Err(BudgetRefusal::Closed)));
    under_way.settle();

    let next = budgets(&store, "b");
    assert_eq!(standing(&next, &budget[0]).await, (3, 0, 1));
    assert_eq!(standing(&next, &done[0]).await, (1, 0, 0));
    let sums = BTreeMap::from([
        ("team:t/total#0".to_owned(), times(4)),
        (
            names(&next.hold(&done, PRICE, now()).await.unwrap())[0].clone(),
            PRICE,
        ),
    ]);
    assert_eq!(next.reconcile("a", &sums).await.unwrap(), 2);
    assert_eq!(next.reconcile("b", &sums).await.unwrap(), 0, "it lives");
    assert_eq!(standing(&next, &budget[0]).await, (4, 0, 0));
}

/// What a process wrote down as spent stays so, whatever the audit still knows of it.
#[tokio::test]
async fn a_cut_audit_gives_nothing_back() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 160, Window::Total)];
    let hold = process.hold(&budget, times(3), now()).await;
    hold.unwrap().settle();
    process.close().await.unwrap();
    let next = budgets(&store, "b");
    let sums = BTreeMap::from([("team:t/total#0".to_owned(), PRICE)]);
    next.reconcile("a", &sums).await.unwrap();
    assert_eq!(standing(&next, &budget[0]).await, (3, 0, 0));
}

/// Nobody can tell what of the slice of a process was spent whose audit is not complete.
#[tokio::test]
async fn leases_of_a_cut_audit_count_as_spent() {
    let (store, _directory) = open().await;
    let budget = [team("t", 160, Window::Total)];
    let process = budgets(&store, "a");
    let hold = process.hold(&budget, times(3), now()).await;
    hold.unwrap().settle();
    let next = budgets(&store, "b");
    let (spent, _, unspent) = standing(&next, &budget[0]).await;
    assert!(spent == 0 && unspent > 3, "{unspent}");
    assert_eq!(next.forfeit_chain("a").await.unwrap(), 1);
    assert_eq!(next.forfeit_chain("a").await.unwrap(), 0);
    let sums = BTreeMap::from([("team:t/total#0".to_owned(), PRICE)]);
    next.reconcile("a", &sums).await.unwrap();
    assert_eq!(standing(&next, &budget[0]).await, (unspent, 0, 0));
}

#[tokio::test]
async fn the_next_slice_is_taken_before_it_is_needed() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let budget = [team("t", 1_600, Window::Total)];
    process.hold(&budget, PRICE, now()).await.unwrap().settle();
    for _ in 0..500 {
        process.prefetch_slices(now()).await;
        let ready = process.hold(&budget, PRICE, now()).now_or_never();
        ready.expect("there is always room").unwrap().settle();
    }
}

#[tokio::test]
async fn who_spends_fast_takes_larger_slices_and_gives_them_back_when_that_ends() {
    let (store, _directory) = open().await;
    let (fast, other) = (budgets(&store, "fast"), budgets(&store, "other"));
    let dollar = Micros::new(1_000_000);
    let budget = [team("t", 100_000_000, Window::Total)];
    let kept = || async { other.status(&budget[0], now()).await.unwrap().elsewhere };
    fast.hold(&budget, dollar, now()).await.unwrap().settle();
    assert_eq!(kept().await, LeaseRequest::SLICE_MIN);
    for _ in 0..200 {
        fast.hold(&budget, dollar, now()).await.unwrap().settle();
    }
    fast.flush(now()).await.unwrap();
    let large = kept().await;
    assert!(large > times(2_000), "{}", large.to_decimal());

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    fast.hold(&budget, dollar, now()).await.unwrap().settle();
    fast.flush(now()).await.unwrap();
    assert_eq!(kept().await, Micros::new(2 * LeaseRequest::SLICE_MIN.get()));
}

#[tokio::test]
async fn memory_keeps_only_what_is_in_use() {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let busy = [agent(100, Window::Total)];
    let idle: Vec<_> = (0..50)
        .map(|number| [team(&number.to_string(), 5, Window::Total)])
        .collect();
    for budget in &idle {
        process.hold(budget, PRICE, now()).await.unwrap().settle();
    }
    for _ in 0..100 {
        process
            .hold(&busy, Micros::new(1), now())
            .await
            .unwrap()
            .settle();
        process.flush(now()).await.unwrap();
    }
    assert_eq!((process.accounts.len(), process.leases().len()), (1, 1));
    for budget in &idle {
        process
            .hold(budget, times(4), now())
            .await
            .unwrap()
            .settle();
        let full = exceeded(process.hold(budget, Micros::new(1), now()).await);
        assert_eq!(full.spent, times(5));
    }
}

/// One thing that happens to two processes.
#[derive(Clone, Debug)]
enum Event {
    Hold {
        process: usize,
        calls: u64,
        wide: bool,
    },
    End {
        which: usize,
        spend: bool,
    },
    Beat {
        process: usize,
    },
    NextDay,
    Crash {
        process: usize,
    },
    Close {
        process: usize,
    },
    /// One process spends what there is.
    Fill {
        process: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let process = 0..2_usize;
    let calls = prop_oneof![3 => 1..3_u64, 1 => 10..30_u64];
    prop_oneof![
        8 => (process.clone(), calls, any::<bool>())
            .prop_map(|(process, calls, wide)| Event::Hold { process, calls, wide }),
        6 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, spend)| Event::End { which, spend }),
        3 => process.clone().prop_map(|process| Event::Beat { process }),
        2 => process.clone().prop_map(|process| Event::Fill { process }),
        1 => Just(Event::NextDay),
        1 => process.clone().prop_map(|process| Event::Crash { process }),
        1 => process.prop_map(|process| Event::Close { process }),
    ]
}

#[test]
fn no_order_of_events_exceeds_a_limit_or_loses_a_price() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let events = proptest::collection::vec(event(), 1..120);
    TestRunner::new(config)
        .run(&events, |events| {
            runtime.block_on(async {
                let mut world = World::new().await;
                for event in events {
                    world.happen(event).await;
                    world.check();
                }
                world.finish().await;
            });
            Ok(())
        })
        .unwrap();
}

/// Two processes on one store, and the audit that they would write.
struct World {
    store: Store,
    _directory: TempDir,
    processes: [Arc<Budgets>; 2],
    chains: usize,
    now: Timestamp,
    /// Calls under way: which process, and its hold.
    open: Vec<(usize, Hold)>,
    /// What the audit of each chain says: account -> spent or opened.
    audit: BTreeMap<String, BTreeMap<String, Micros>>,
}

impl World {
    /// What a call costs, in usual ones: so much that slices grow.
    const DEAR: u64 = 1_000;
    const LIMIT: u64 = 64 * Self::DEAR;

    async fn new() -> Self {
        let (store, directory) = open().await;
        Self {
            processes: [budgets(&store, "0"), budgets(&store, "1")],
            store,
            _directory: directory,
            chains: 2,
            now: now(),
            open: Vec::new(),
            audit: BTreeMap::new(),
        }
    }

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Hold {
                process,
                calls,
                wide,
            } => {
                let mut budget = vec![team("t", Self::LIMIT, Window::Day)];
                if wide {
                    budget.push(agent(Self::LIMIT, Window::Total));
                }
                self.hold(process, &budget, times(calls * Self::DEAR)).await;
            }
            Event::Fill { process } => {
                let budget = [
                    team("t", Self::LIMIT, Window::Day),
                    agent(Self::LIMIT, Window::Total),
                ];
                while self.hold(process, &budget, times(Self::DEAR)).await {}
            }
            Event::End { which, spend } if !self.open.is_empty() => {
                let (process, hold) = self.open.swap_remove(which % self.open.len());
                if spend {
                    hold.settle();
                } else {
                    self.record(process, &hold, false);
                    hold.release();
                }
            }
            Event::End { .. } => {}
            Event::Beat { process } => self.processes[process].flush(self.now).await.unwrap(),
            Event::NextDay => self.now += DAY,
            Event::Crash { process } => self.replace(process).await,
            Event::Close { process } => {
                self.processes[process].close().await.unwrap();
                self.replace(process).await;
            }
        }
    }

    async fn hold(&mut self, process: usize, budget: &[AppliedBudget], price: Micros) -> bool {
        let held = self.processes[process].hold(budget, price, self.now).await;
        let Ok(hold) = held else { return false };
        self.record(process, &hold, true);
        self.open.push((process, hold));
        true
    }

    /// The process is gone with all it knew, and the other one reconciles it.
    async fn replace(&mut self, process: usize) {
        let chain = self.processes[process].chain.to_string();
        self.open.retain(|(owner, _)| *owner != process);
        self.processes[process] = budgets(&self.store, &self.chains.to_string());
        self.chains += 1;
        let sums = self.audit.get(&chain).cloned().unwrap_or_default();
        for _ in 0..2 {
            let reconciled = self.processes[1 - process].reconcile(&chain, &sums);
            reconciled.await.unwrap();
        }
    }

    fn record(&mut self, process: usize, hold: &Hold, opened: bool) {
        let chain = self.processes[process].chain.to_string();
        let sums = self.audit.entry(chain).or_default();
        for account in names(hold) {
            let sum = sums.entry(account).or_default();
            *sum = if opened {
                sum.saturating_add(hold.price())
            } else {
                sum.saturating_sub(hold.price())
            };
        }
    }

    fn check(&self) {
        for (account, sum) in self.sums() {
            assert!(sum <= times(Self::LIMIT), "{account}: {}", sum.to_decimal());
        }
    }

    /// After every process has gone, the store says what the audit says.
    async fn finish(mut self) {
        self.replace(0).await;
        self.replace(1).await;
        let last = self.processes[0].clone();
        let sums = self.sums();
        for (account, sum) in &sums {
            let (budget, at) = if let Some(day) = account.strip_prefix("team:t/") {
                let day = day.trim_end_matches("#0");
                let noon = format!("{day}T12:00:00Z").parse().unwrap();
                (team("t", Self::LIMIT, Window::Day), noon)
            } else {
                (agent(Self::LIMIT, Window::Total), self.now)
            };
            let standing = last.status(&budget, at).await.unwrap();
            assert_eq!(standing.account.as_str(), account);
            assert_eq!((standing.spent, standing.elsewhere), (*sum, Micros::ZERO));
        }
        assert_eq!(
            self.store.leases.chains_with_open_leases().await.unwrap(),
            [""; 0]
        );
    }

    fn sums(&self) -> BTreeMap<String, Micros> {
        let mut all: BTreeMap<String, Micros> = BTreeMap::new();
        for (account, sum) in self.audit.values().flatten() {
            let total = all.entry(account.clone()).or_default();
            *total = total.saturating_add(*sum);
        }
        all
    }
}

/// 200 callers at once, of which exactly `expect` get a hold.
async fn check_exact(budget: &[AppliedBudget], expect: u64) {
    let (store, _directory) = open().await;
    let process = budgets(&store, "a");
    let mut callers = JoinSet::new();
    for _ in 0..200 {
        let (process, budget) = (process.clone(), budget.to_vec());
        callers.spawn(async move { process.hold(&budget, PRICE, now()).await });
    }
    let mut holds = Vec::new();
    for held in callers.join_all().await {
        match held {
            Ok(hold) => holds.push(hold),
            Err(BudgetRefusal::Exceeded(exceeded)) => {
                assert!(!exceeded.is_retryable(), "{exceeded}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(holds.len() as u64, expect, "{budget:?}");
    if let Some(hold) = holds.pop() {
        hold.release();
        let again = process.hold(budget, PRICE, now()).await.unwrap();
        again.settle();
        exceeded(process.hold(budget, PRICE, now()).await);
    }
    for hold in holds {
        hold.settle();
    }
    exceeded(process.hold(budget, PRICE, now()).await);
}

/// `(spent, held, elsewhere)` in calls.
async fn standing(process: &Budgets, budget: &AppliedBudget) -> (u64, u64, u64) {
    let standing = process.status(budget, now()).await.unwrap();
    let calls = |amount: Micros| amount.get() / PRICE.get();
    (
        calls(standing.spent),
        calls(standing.held),
        calls(standing.elsewhere),
    )
}

/// As if the time had passed for which a refusal is repeated from memory.
fn forget_refusals(process: &Arc<Budgets>) {
    for account in &process.accounts {
        account.clear_denial();
    }
}

fn exceeded(held: Result<Hold, BudgetRefusal>) -> Exceeded {
    match held {
        Err(BudgetRefusal::Exceeded(exceeded)) => exceeded,
        other => panic!("{other:?}"),
    }
}

fn names(hold: &Hold) -> Vec<String> {
    hold.accounts().map(ToString::to_string).collect()
}

async fn open() -> (Store, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    (store, directory)
}

fn budgets(store: &Store, chain: &str) -> Arc<Budgets> {
    Arc::new(Budgets::new(store.leases.clone(), chain))
}

fn team(name: &str, calls: u64, window: Window) -> AppliedBudget {
    let limit = times(calls);
    AppliedBudget::new(BudgetSubject::team(name), Budget { limit, window })
}

fn agent(calls: u64, window: Window) -> AppliedBudget {
    let limit = times(calls);
    let subject = BudgetSubject::agent(crate::names::AgentId::ANONYMOUS);
    AppliedBudget::new(subject, Budget { limit, window })
}

fn server(calls: u64, window: Window) -> AppliedBudget {
    let limit = times(calls);
    let name = crate::names::ServerName::parse("github").unwrap();
    AppliedBudget::new(BudgetSubject::server(&name), Budget { limit, window })
}

fn times(calls: u64) -> Micros {
    Micros::new(PRICE.get() * calls)
}

fn now() -> Timestamp {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

const DAY: SignedDuration = SignedDuration::from_hours(24);
