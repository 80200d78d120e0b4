//! Budgets: a call's price is held before the call leaves, and spent or released after it.
//!
//! Each process takes slices of a budget from the store (`store::Leases`) and gives them out from
//! memory, so that holding costs no I/O as a rule. What must stay true, whatever crashes when:
//!
//! - Spent and held together never exceed a limit, of all processes together. A slice is on disk
//!   before anything is held against it, and memory is lowered before the store is.
//! - A dead process has used up its slices until [`Budgets::reconcile`] says what its audit shows.
//!
//! For the second to be exact, the audit must say *opened* (with [`Hold::accounts`] and
//! [`Hold::price`]) before the call leaves, and must say that a call costs nothing before its hold is
//! released: else a crash between the two finds the room given out twice.
//!
//! A hold takes the mutexes of its leases in the order of [`AppliedBudget`], one await-free section for
//! all of them. A slice is taken under the store lock of its account, so that one caller asks the store and
//! the others queue. The background task hands back what nobody uses and says what was spent.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::{
    audit::ChangedValues,
    config::{Budget, Window},
    lock::lock,
    mcp::error,
    money::Micros,
    store::{
        Account, BudgetSubject, CallerBreakerState, Fund, LeaseReply, LeaseRequest, Leases,
        StoreError,
    },
};

mod account;
mod flush;
mod lease;
mod spend_rate;

pub use lease::Hold;

use account::{AccountLimit, BudgetAccount};
use lease::Lease;

/// The budgets of one process.
pub struct Budgets {
    store: Arc<dyn Leases>,
    chain: Arc<str>,
    accounts: DashMap<LeaseKey, Arc<BudgetAccount>>,
    /// Every lease that the store has not heard the last of.
    leases: Mutex<Vec<Arc<Lease>>>,
    /// The last reset that was noticed.
    resets_seen: Mutex<i64>,
    /// Wakes the background task when a lease runs low.
    running_low: Arc<Notify>,
    /// Why the store did not keep what it was told last.
    last_error: Mutex<Option<String>>,
    closed: AtomicBool,
}

/// A budget that applies to a call. Making one is cheap, keeping it for the next call cheaper.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AppliedBudget {
    key: LeaseKey,
    limit: Micros,
}

impl AppliedBudget {
    /// `budget`, which is for `subject`.
    pub fn new(subject: BudgetSubject, budget: Budget) -> Self {
        let (limit, window) = (budget.limit, budget.window);
        let key = LeaseKey { subject, window };
        Self { key, limit }
    }
}

/// What calls are paid from to which the same budgets apply.
#[derive(Debug)]
pub struct BudgetAccounts(Vec<AccountLimit>);

/// What has one lease at a time.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct LeaseKey {
    subject: BudgetSubject,
    window: Window,
}

impl LeaseKey {
    /// The order in which mutexes are taken.
    fn order(&self) -> (&BudgetSubject, u8) {
        let window = match self.window {
            Window::Day => 0,
            Window::Month => 1,
            Window::Total => 2,
        };
        (&self.subject, window)
    }
}

/// Why nothing is held.
#[derive(Debug, thiserror::Error)]
pub enum BudgetRefusal {
    /// The process is stopping; the client asks another one, or later.
    #[error("budgets are closed: the gateway is stopping")]
    Closed,
    /// A limit has no room for the price; the operator raises or resets it.
    #[error("{0}")]
    Exceeded(Exceeded),
    /// The store could not be asked in time because others were asking it; trying again helps.
    #[error("timed out after {} s reserving budget", .after.as_secs())]
    StoreTimeout {
        /// How long we waited.
        after: Duration,
    },
    /// The store failed; the operator mends it. A budget that cannot be read lets nothing through.
    #[error("cannot access the budget store: {0}")]
    Store(#[from] StoreError),
}

/// A limit without room for a price.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{account}: {price} USD exceed the limit of {limit} USD: {spent} spent, {held} reserved by \
     running calls, {elsewhere} reserved by other processes",
    price = price.to_decimal(), limit = limit.to_decimal(), spent = spent.to_decimal(), held = held.to_decimal(),
    elsewhere = elsewhere.to_decimal()
)]
pub struct Exceeded {
    /// The account.
    pub account: Account,
    /// What does not fit.
    pub price: Micros,
    /// The limit.
    pub limit: Micros,
    /// Spent by all processes, as far as this one knows.
    pub spent: Micros,
    /// Held by calls of this process under way.
    pub held: Micros,
    /// Granted to other processes and not known to be spent. Unused slices come back within seconds.
    pub elsewhere: Micros,
    /// When the window ends; `None`: never.
    pub ends: Option<Timestamp>,
}

impl Exceeded {
    /// How long after `now` there may be room again; `None`: not before somebody makes some.
    pub fn retry_after(&self, now: Timestamp) -> Option<Duration> {
        if self.is_retryable() {
            return Some(error::RETRY_SOON);
        }
        let left = self.ends?.duration_since(now);
        Some(left.try_into().unwrap_or_default())
    }

    /// Whether there may be room again within seconds: what other processes keep would be enough.
    pub fn is_retryable(&self) -> bool {
        let used = self.spent.saturating_add(self.held);
        let fits = used.saturating_add(self.price) <= self.limit;
        fits && self.elsewhere > Micros::ZERO
    }
}

/// How a budget stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BudgetStatus {
    /// The account in use.
    pub account: Account,
    /// The limit that was given.
    pub limit: Micros,
    /// Spent by all processes, as far as this one knows.
    pub spent: Micros,
    /// Held by calls of this process under way.
    pub held: Micros,
    /// Granted to other processes and not known to be spent.
    pub elsewhere: Micros,
    /// When the window ends; `None`: never.
    pub ends: Option<Timestamp>,
}

impl BudgetStatus {
    /// What running and coming calls of this process may still take.
    pub fn left(&self) -> Micros {
        let used = self.spent.saturating_add(self.held);
        self.limit
            .saturating_sub(used.saturating_add(self.elsewhere))
    }

    /// What a reset makes of it, for the audit.
    pub fn reset_values(&self) -> ChangedValues {
        let [old, new] = [self.spent, Micros::ZERO].map(Micros::to_decimal);
        ChangedValues::of_key("spent", old, new)
    }
}

/// Whose budget stands how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BudgetUse {
    /// Whom it is for.
    pub subject: BudgetSubject,
    /// Its window.
    pub window: Window,
    /// How it stands.
    pub status: BudgetStatus,
}

/// Budgets that are shown; each is a question to the store.
const BUDGETS_SHOWN: usize = 1_000;

/// How often a hold starts over because others took the slice it had asked for. Each time somebody
/// has spent one, so that this is far more than ever happens.
const HOLD_ATTEMPTS_MAX: u32 = 1_000;

/// How long a hold waits for the store, which answers within milliseconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

impl Budgets {
    /// Budgets of the process whose audit is `chain`: a name that no earlier process had.
    pub fn new(store: Arc<dyn Leases>, chain: &str) -> Self {
        Self {
            store,
            chain: chain.into(),
            accounts: DashMap::new(),
            leases: Mutex::default(),
            resets_seen: Mutex::default(),
            running_low: Arc::default(),
            last_error: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Holds `price` against every one of `budgets`, or against none; see [`Budgets::hold_from`].
    ///
    /// # Errors
    /// As [`Budgets::hold_from`].
    pub async fn hold(
        &self,
        budgets: &[AppliedBudget],
        price: Micros,
        now: Timestamp,
    ) -> Result<Hold, BudgetRefusal> {
        self.hold_from(&self.accounts_for(budgets), price, now)
            .await
    }

    /// Holds `price` against every budget of `accounts`, which this made, or against none. A price of
    /// zero touches nothing. Without I/O, and ready at once, where the slices in memory suffice.
    ///
    /// # Errors
    /// The first limit that has no room, or why that could not be found out.
    pub async fn hold_from(
        &self,
        accounts: &BudgetAccounts,
        price: Micros,
        now: Timestamp,
    ) -> Result<Hold, BudgetRefusal> {
        let lines = &accounts.0;
        if price == Micros::ZERO || lines.is_empty() {
            return Ok(Hold::empty(price));
        }
        match lease::try_hold(lines, price, now) {
            Ok(hold) => Ok(hold),
            Err(short) => {
                let slowly = Box::pin(self.hold_with_refill(lines, short, price, now));
                let in_time = tokio::time::timeout(STORE_TIMEOUT, slowly);
                in_time.await.unwrap_or(Err(BudgetRefusal::StoreTimeout {
                    after: STORE_TIMEOUT,
                }))
            }
        }
    }

    /// How a budget stands.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn status(
        &self,
        budget: &AppliedBudget,
        now: Timestamp,
    ) -> Result<BudgetStatus, StoreError> {
        let fund = Fund::for_window(now, &budget.key.subject, budget.key.window);
        let usage = self.store.usage(&fund, &self.chain).await?;
        let account = Account::of(fund.as_str(), usage.epoch);
        let cached = self.accounts.get(&budget.key).map(|it| it.clone());
        let lease = cached.and_then(|cached| cached.lease(now));
        let own = lease.filter(|lease| *lease.account() == account);
        let (spent, held) = own.map_or((usage.spent, Micros::ZERO), |lease| {
            let own = lease.granted();
            (own.spent, own.held)
        });
        Ok(BudgetStatus {
            account,
            limit: budget.limit,
            spent: usage.elsewhere.spent.saturating_add(spent),
            held,
            elsewhere: usage.elsewhere.unspent,
            ends: fund.ends(),
        })
    }

    /// How the budgets stand that calls were paid from since the start, the first of them alone.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn statuses(&self, now: Timestamp) -> Result<Vec<BudgetUse>, StoreError> {
        let accounts = self.accounts.iter().take(BUDGETS_SHOWN);
        let used: Vec<_> = accounts.map(|account| account.value().clone()).collect();
        let mut statuses = Vec::with_capacity(used.len());
        for account in used {
            let budget = AppliedBudget {
                key: account.key.clone(),
                limit: account.limit(),
            };
            statuses.push(BudgetUse {
                subject: account.key.subject.clone(),
                window: account.key.window,
                status: self.status(&budget, now).await?,
            });
        }
        statuses.sort_by(|a, b| a.status.account.as_str().cmp(b.status.account.as_str()));
        Ok(statuses)
    }

    /// Starts a fresh account of the window that `now` falls into, for all processes: in this one at
    /// once, in others within a second. Calls under way are settled in the old one.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reset(
        &self,
        subject: &BudgetSubject,
        window: Window,
        reason: &str,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        let key = LeaseKey {
            subject: subject.clone(),
            window,
        };
        let fund = Fund::for_window(now, subject, window);
        let account = self.account(&key);
        let turn = account.store_lock.lock().await;
        let epoch = self.store.reset(&fund, reason, now).await?;
        account.retire_older(fund.as_str(), epoch);
        drop(turn);
        Ok(Account::of(fund.as_str(), epoch))
    }

    /// Closes the leases of a process whose audit has lost something: nobody can tell what it had
    /// spent of them, so they count as spent. Says how many there were.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn forfeit_chain(&self, chain: &str) -> Result<u64, StoreError> {
        self.store.forfeit(chain).await
    }

    /// Closes the leases of a dead process with what its audit says was spent of each account, which
    /// is never less than it wrote down itself, and tells how many there were. Doing it again changes
    /// nothing; this process is left alone.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reconcile(
        &self,
        chain: &str,
        sums: &BTreeMap<String, Micros>,
    ) -> Result<u64, StoreError> {
        if chain == &*self.chain {
            tracing::warn!(chain, "a living process is not reconciled");
            return Ok(0);
        }
        self.store.reconcile(chain, sums).await
    }

    async fn hold_with_refill(
        &self,
        lines: &[AccountLimit],
        mut short: usize,
        price: Micros,
        now: Timestamp,
    ) -> Result<Hold, BudgetRefusal> {
        let start = tokio::time::Instant::now();
        for _ in 0..HOLD_ATTEMPTS_MAX {
            self.refill(&lines[short], price, now).await?;
            match lease::try_hold(lines, price, now) {
                Ok(hold) => return Ok(hold),
                Err(index) => short = index,
            }
        }
        let after = start.elapsed();
        Err(BudgetRefusal::StoreTimeout { after })
    }

    /// Makes room for a price in one lease, unless somebody has done so meanwhile.
    async fn refill(
        &self,
        line: &AccountLimit,
        price: Micros,
        now: Timestamp,
    ) -> Result<(), BudgetRefusal> {
        let account = &line.account;
        let _turn = account.store_lock.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(BudgetRefusal::Closed);
        }
        let lease = account.lease(now);
        if lease.is_some_and(|lease| lease.has_room(price, line.limit)) {
            return Ok(());
        }
        let own = account.lease_to_write(now).await;
        let lease = own.as_ref().map(|(lease, _)| &**lease);
        if let Some(exceeded) = account.cached_denial(lease, line.limit, price, now) {
            return Err(BudgetRefusal::Exceeded(exceeded));
        }
        let ask = self.slice_request(line, lease, price, now);
        let answer = self.store.acquire(&ask).await;
        self.note_store_result(&answer);
        match answer? {
            LeaseReply::Granted {
                epoch,
                granted,
                spent,
            } => {
                self.install_slice(account, &ask, lease, (epoch, granted, spent));
                Ok(())
            }
            LeaseReply::Refused {
                epoch,
                spent,
                elsewhere,
            } => {
                let own = lease
                    .filter(|lease| lease.epoch() == epoch)
                    .map(|lease| lease.shrink(ask.limit, elsewhere));
                if own.is_some_and(|own| own.remaining() >= price) {
                    return Ok(());
                }
                let own = own.unwrap_or(CallerBreakerState {
                    spent,
                    ..CallerBreakerState::default()
                });
                let exceeded = Exceeded {
                    account: Account::of(ask.fund.as_str(), epoch),
                    price,
                    limit: ask.limit,
                    spent: elsewhere.spent.saturating_add(own.spent),
                    held: own.held,
                    elsewhere: elsewhere.unspent,
                    ends: ask.fund.ends(),
                };
                let need = price.saturating_sub(own.remaining());
                account.deny(exceeded.clone(), need, elsewhere.spent);
                Err(BudgetRefusal::Exceeded(exceeded))
            }
        }
    }

    fn slice_request(
        &self,
        line: &AccountLimit,
        lease: Option<&Lease>,
        price: Micros,
        now: Timestamp,
    ) -> LeaseRequest {
        let key = &line.account.key;
        LeaseRequest {
            fund: match lease {
                Some(lease) => lease.fund().clone(),
                None => {
                    Fund::for_window(line.account.clamp_to_window(now), &key.subject, key.window)
                }
            },
            chain: self.chain.clone(),
            limit: line.limit,
            own: lease.map(Lease::granted),
            price,
            slice: lease.map_or(LeaseRequest::SLICE_MIN, Lease::next_slice),
        }
    }

    /// Puts a slice where calls can take from it: into the lease it was asked for, or into a new one
    /// when there was none or the budget was reset.
    fn install_slice(
        &self,
        account: &Arc<BudgetAccount>,
        ask: &LeaseRequest,
        lease: Option<&Lease>,
        (epoch, granted, spent): (u32, Micros, Micros),
    ) {
        if let Some(lease) = lease.filter(|lease| lease.epoch() == epoch) {
            lease.add_slice(granted, ask);
            return;
        }
        let own = CallerBreakerState {
            epoch,
            granted,
            spent,
            held: Micros::ZERO,
        };
        let lease = Lease::new(account.clone(), ask, own, self.running_low.clone());
        let lease = Arc::new(lease);
        self.leases().push(lease.clone());
        account.install(lease);
    }

    /// What calls to which `budgets` apply are paid from, to be kept for all of them: each account once
    /// with its lowest limit, in the order of their mutexes.
    pub fn accounts_for(&self, budgets: &[AppliedBudget]) -> BudgetAccounts {
        let mut lines: Vec<AccountLimit> = budgets
            .iter()
            .map(|budget| AccountLimit {
                account: self.account(&budget.key),
                limit: budget.limit,
            })
            .collect();
        lines.sort_by(|a, b| {
            let (a_key, b_key) = (a.account.key.order(), b.account.key.order());
            a_key.cmp(&b_key).then(a.limit.cmp(&b.limit))
        });
        lines.dedup_by(|next, kept| next.account.key == kept.account.key);
        for line in &lines {
            line.account.note_limit(line.limit);
        }
        BudgetAccounts(lines)
    }

    fn account(&self, key: &LeaseKey) -> Arc<BudgetAccount> {
        if let Some(account) = self.accounts.get(key) {
            return account.clone();
        }
        let entry = self.accounts.entry(key.clone());
        entry
            .or_insert_with(|| Arc::new(BudgetAccount::new(key.clone())))
            .clone()
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Lease>>> {
        lock(&self.leases)
    }
}

impl std::fmt::Debug for Budgets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Budgets({}, {} accounts)",
            self.chain,
            self.accounts.len()
        )
    }
}

#[cfg(test)]
mod tests;
