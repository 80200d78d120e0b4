//! Leases: what each process may spend of a budget without asking, kept so that no crash and no
//! other process can make the budget exceed its limit.
//!
//! A *fund* is what one subject may spend in one window, a text such as `team:science/2026-11`. An
//! *account* is a fund between two resets, `team:science/2026-11#0`. Of an account each process,
//! known by the chain of its audit, holds one lease. While the lease is open, all that was granted
//! counts as used; once it is closed, what was spent does.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures_util::future::BoxFuture;
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};

use super::StoreError;
use crate::{
    config::Window,
    money::Micros,
    names::{AgentId, ServerName},
};

/// Whom a budget is for.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BudgetSubject {
    kind: BudgetSubjectKind,
    id: Arc<str>,
}

/// What kind of subject a budget is for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum BudgetSubjectKind {
    /// One agent.
    Agent,
    /// All calls to one server.
    Server,
    /// The agents of one team together.
    Team,
}

impl BudgetSubjectKind {
    /// The kind in a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Server => "server",
            Self::Team => "team",
        }
    }
}

impl BudgetSubject {
    /// An agent.
    pub fn agent(id: AgentId) -> Self {
        Self {
            kind: BudgetSubjectKind::Agent,
            id: id.to_string().into(),
        }
    }

    /// All calls to a server.
    pub fn server(name: &ServerName) -> Self {
        Self {
            kind: BudgetSubjectKind::Server,
            id: name.as_str().into(),
        }
    }

    /// A team.
    pub fn team(name: &str) -> Self {
        Self {
            kind: BudgetSubjectKind::Team,
            id: name.into(),
        }
    }

    /// What kind it is of.
    pub fn kind(&self) -> BudgetSubjectKind {
        self.kind
    }

    /// The agent's id, or the name of the server or team.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Reads what is shown of one.
    fn parse(text: &str) -> Option<Self> {
        let (kind, id) = text.split_once(':')?;
        let kind = match kind {
            "agent" => BudgetSubjectKind::Agent,
            "server" => BudgetSubjectKind::Server,
            "team" => BudgetSubjectKind::Team,
            _ => return None,
        };
        let id = id.into();
        Some(Self { kind, id })
    }
}

/// `kind:id`, as accounts begin.
impl fmt::Display for BudgetSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            BudgetSubjectKind::Agent => "agent",
            BudgetSubjectKind::Server => "server",
            BudgetSubjectKind::Team => "team",
        };
        write!(f, "{kind}:{}", self.id)
    }
}

/// What a subject may spend in one window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fund {
    name: Arc<str>,
    ends: Option<Timestamp>,
}

impl Fund {
    /// The fund of the window that `now` falls into.
    pub fn for_window(now: Timestamp, subject: &BudgetSubject, window: Window) -> Self {
        let today = now.to_zoned(TimeZone::UTC).date();
        let midnight = |date: Date| date.to_zoned(TimeZone::UTC).map(|begin| begin.timestamp());
        let (start, next) = match window {
            Window::Day => (today.to_string(), today.checked_add(1.day())),
            Window::Month => (
                format!("{:04}-{:02}", today.year(), today.month()),
                today.first_of_month().checked_add(1.month()),
            ),
            Window::Total => {
                return Self {
                    name: format!("{subject}/total").into(),
                    ends: None,
                };
            }
        };
        Self {
            name: format!("{subject}/{start}").into(),
            ends: next.and_then(midnight).ok(),
        }
    }

    /// `kind:id/window-start`.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// When its window ends; `None`: never.
    pub fn ends(&self) -> Option<Timestamp> {
        self.ends
    }
}

/// A fund between two resets: `kind:id/window-start#epoch`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Account(Arc<str>);

impl Account {
    /// The account of a fund after `epoch` resets.
    pub fn of(fund: &str, epoch: u32) -> Self {
        Self(format!("{fund}#{epoch}").into())
    }

    /// Whose account it is, and in which window; nothing for a text that is no account of ours.
    pub fn subject(&self) -> Option<(BudgetSubject, Window)> {
        let (fund, _) = self.0.rsplit_once('#')?;
        let (subject, start) = fund.rsplit_once('/')?;
        let window = match start.matches('-').count() {
            0 => Window::Total,
            1 => Window::Month,
            _ => Window::Day,
        };
        Some((BudgetSubject::parse(subject)?, window))
    }

    /// The account that reads `text`.
    pub(super) fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// The account as text, which is what the audit records.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The lease of the process that asks, as it knows it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CallerBreakerState {
    /// Resets of the fund before this lease.
    pub epoch: u32,
    /// What it may spend in all.
    pub granted: Micros,
    /// What it has spent.
    pub spent: Micros,
    /// What calls under way hold.
    pub held: Micros,
}

impl CallerBreakerState {
    /// What it may still hold.
    pub fn remaining(&self) -> Micros {
        self.granted.saturating_sub(self.used())
    }

    /// Spent and held together.
    pub fn used(&self) -> Micros {
        self.spent.saturating_add(self.held)
    }
}

/// A process asks for more of a fund.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The fund.
    pub fund: Fund,
    /// The chain of the process.
    pub chain: Arc<str>,
    /// What all processes may use of the account together.
    pub limit: Micros,
    /// The lease of the process; `None` when it has none in memory.
    pub own: Option<CallerBreakerState>,
    /// The call that there must be room for.
    pub price: Micros,
    /// What the slice may come to, unless the call costs more.
    pub slice: Micros,
}

impl LeaseRequest {
    /// What a process asks for that spends little. A crash hides a slice or two from other processes
    /// until it is reconciled.
    pub const SLICE_MIN: Micros = Micros::new(5_000_000);

    /// Slices are this part of what is left, so that others find room too.
    const SLICE_FRACTION: u64 = 16;

    /// What the lease may come to, where others use `elsewhere`; `None` when the limit has no room
    /// for the call, or is below what is granted already.
    pub fn slice_granted(&self, own: CallerBreakerState, elsewhere: Micros) -> Option<Micros> {
        let need = self.price.saturating_sub(own.remaining()).get();
        let taken = elsewhere.checked_add(own.granted)?;
        let left = self.limit.get().checked_sub(taken.get())?;
        if need > left {
            return None;
        }
        let slice = if need == 0 {
            0
        } else {
            need.max((left / Self::SLICE_FRACTION).min(self.slice.get()))
        };
        own.granted.checked_add(Micros::new(slice))
    }
}

/// What others make of an account.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OtherUsage {
    /// Spent by other processes, living or not, as far as they have said.
    pub spent: Micros,
    /// Granted to other processes and not spent: room that may come back.
    pub unspent: Micros,
}

/// What comes of an [`LeaseRequest`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseReply {
    /// The lease, durable before this answer was given.
    Granted {
        /// Resets of the fund.
        epoch: u32,
        /// What the process may spend in all.
        granted: Micros,
        /// What it had spent before, for a process that had no lease in memory.
        spent: Micros,
    },
    /// There is no room; nothing was written.
    Refused {
        /// Resets of the fund.
        epoch: u32,
        /// What the process has spent.
        spent: Micros,
        /// What others make of the account.
        elsewhere: OtherUsage,
    },
}

/// What a process tells about its lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeaseUpdate {
    /// The account.
    pub account: Account,
    /// What it may still spend in all; never more than before.
    pub granted: Micros,
    /// What it has spent.
    pub spent: Micros,
    /// Whether it may go on spending.
    pub open: bool,
}

/// A reset of a fund.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FundReset {
    /// Its place among all resets.
    pub seq: i64,
    /// The fund, `kind:id/window-start`.
    pub fund: String,
    /// Resets of the fund, this one included.
    pub epoch: u32,
}

/// How an account stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AccountUsage {
    /// Resets of the fund.
    pub epoch: u32,
    /// Spent by the process that asks, as far as it has said.
    pub spent: Micros,
    /// What others make of the account.
    pub elsewhere: OtherUsage,
}

/// Keeps leases.
///
/// A chain belongs to one process from its start to its end. What was granted is never more than
/// the limit of the ask, all chains together.
pub trait Leases: fmt::Debug + Send + Sync {
    /// Grants a slice of a fund, in one transaction that is on disk before the answer.
    fn acquire<'a>(
        &'a self,
        request: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseReply, StoreError>>;

    /// Writes what a process says about its leases, all or nothing.
    fn write<'a>(
        &'a self,
        chain: &'a str,
        writes: &'a [LeaseUpdate],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Writes what a process says about its leases and closes its others with what it has said they
    /// spent: the process ends.
    fn close_chain<'a>(
        &'a self,
        chain: &'a str,
        writes: &'a [LeaseUpdate],
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// How the present account of a fund stands, seen from `chain`.
    fn usage<'a>(
        &'a self,
        fund: &'a Fund,
        chain: &'a str,
    ) -> BoxFuture<'a, Result<AccountUsage, StoreError>>;

    /// Of which windows that are not over at `now` anybody has spent something, in no order.
    fn spent_accounts(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<Account>, StoreError>>;

    /// Starts a fresh account of a fund and says which epoch it has.
    fn reset<'a>(
        &'a self,
        fund: &'a Fund,
        reason: &'a str,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Resets after the one with the number `seq`, in order.
    fn resets_after(&self, seq: i64) -> BoxFuture<'_, Result<Vec<FundReset>, StoreError>>;

    /// Chains with open leases: processes that live, and those that did not end in order.
    fn chains_with_open_leases(&self) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// Closes every lease of a dead chain with what the audit says was spent, or with what the
    /// process wrote itself where that is more, in one transaction, and tells how many leases there
    /// were. Doing it again changes nothing.
    fn reconcile<'a>(
        &'a self,
        chain: &'a str,
        sums: &'a BTreeMap<String, Micros>,
    ) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Closes the open leases of a chain whose audit is not complete, as if all of them had been
    /// spent; tells how many there were.
    fn forfeit<'a>(&'a self, chain: &'a str) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Adds up the closed leases of accounts that have many, and forgets those of windows that
    /// ended long before `now`.
    fn compact(&self, now: Timestamp) -> BoxFuture<'_, Result<(), StoreError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_say_whose_they_are() {
        let now = "2026-11-22T10:00:00Z".parse().unwrap();
        let server = ServerName::parse("my-docs").unwrap();
        for subject in [
            BudgetSubject::agent(AgentId::ANONYMOUS),
            BudgetSubject::team("a/b#c"),
            BudgetSubject::server(&server),
        ] {
            for window in [Window::Day, Window::Month, Window::Total] {
                let account = Account::of(Fund::for_window(now, &subject, window).as_str(), 7);
                assert_eq!(
                    account.subject(),
                    Some((subject.clone(), window)),
                    "{account}"
                );
            }
        }
        assert_eq!(Account::from_text("else").subject(), None);
    }

    #[test]
    fn funds_are_named_by_their_window() {
        let agent = BudgetSubject::agent(AgentId::ANONYMOUS);
        let name = "agent:agent_00000000-0000-0000-0000-000000000000";
        let team = BudgetSubject::team("a/b#c");
        let check = |now: &str, subject: &BudgetSubject, window, fund: &str, ends: Option<&str>| {
            let found = Fund::for_window(now.parse().unwrap(), subject, window);
            assert_eq!(found.as_str(), fund);
            assert_eq!(
                found.ends(),
                ends.map(|ends| ends.parse().unwrap()),
                "{fund}"
            );
        };
        let now = "2026-11-22T10:00:00Z";
        check(now, &agent, Window::Total, &format!("{name}/total"), None);
        let ends = Some("2026-12-01T00:00:00Z");
        check(now, &team, Window::Month, "team:a/b#c/2026-11", ends);
        let ends = Some("2026-11-23T00:00:00Z");
        check(now, &team, Window::Day, "team:a/b#c/2026-11-22", ends);
        let (last, ends) = ("2026-12-31T23:59:59.999Z", Some("2027-01-01T00:00:00Z"));
        check(last, &team, Window::Day, "team:a/b#c/2026-12-31", ends);
        check(last, &team, Window::Month, "team:a/b#c/2026-12", ends);
        let leap = "2028-02-29T00:00:00Z";
        let ends = Some("2028-03-01T00:00:00Z");
        check(leap, &team, Window::Month, "team:a/b#c/2028-02", ends);
    }

    #[test]
    fn grants_leave_room_for_others_and_never_pass_the_limit() {
        check("a part of what is left", (1_600, 0, 0, 0, 10), Some(100));
        check("at least the price", (1_600, 0, 0, 0, 500), Some(500));
        check("all of it", (1_600, 0, 0, 0, 1_600), Some(1_600));
        check("one too much", (1_600, 0, 0, 0, 1_601), None);
        check("room is used first", (1_600, 100, 0, 95, 10), Some(193));
        check("room enough", (1_600, 100, 0, 90, 10), Some(100));
        check("others count", (1_600, 100, 1_495, 95, 10), Some(105));
        check("others took it", (1_600, 100, 1_496, 95, 10), None);
        check("a limit that was lowered", (50, 100, 0, 10, 10), None);
        check("as asked", (1_000_000_000, 0, 0, 0, 1), Some(5_000_000));
        let dear = (1_000_000_000, 0, 0, 0, 5_000_001);
        check("more than asked", dear, Some(5_000_001));
        check("no room at all", (0, 0, 0, 0, 1), None);
    }

    #[test]
    fn nobody_gets_more_than_a_part_of_what_is_left_however_much_is_asked_for() {
        let left = 1_000_000_000;
        let own = CallerBreakerState {
            granted: Micros::new(600_000_000),
            spent: Micros::new(600_000_000),
            ..CallerBreakerState::default()
        };
        let limit = left + 600_000_000 + 400_000_000;
        for (slice, expect) in [
            (5_000_000, 605_000_000),
            (62_500_000, 662_500_000),
            (62_500_001, 662_500_000),
            (Micros::MAX.get(), 662_500_000),
        ] {
            let ask = LeaseRequest {
                slice: Micros::new(slice),
                ..ask(limit, 1)
            };
            let granted = ask.slice_granted(own, Micros::new(400_000_000));
            assert_eq!(granted, Some(Micros::new(expect)), "{slice}");
        }
    }

    /// `(limit, granted, elsewhere, spent, price)`.
    fn check(row: &str, (limit, granted, elsewhere, spent, price): Row, expect: Option<u64>) {
        let own = CallerBreakerState {
            epoch: 0,
            granted: Micros::new(granted),
            spent: Micros::new(spent),
            held: Micros::ZERO,
        };
        let found = ask(limit, price).slice_granted(own, Micros::new(elsewhere));
        assert_eq!(found.map(Micros::get), expect, "{row}");
    }

    fn ask(limit: u64, price: u64) -> LeaseRequest {
        LeaseRequest {
            fund: Fund::for_window(
                Timestamp::UNIX_EPOCH,
                &BudgetSubject::team("t"),
                Window::Total,
            ),
            chain: "c".into(),
            limit: Micros::new(limit),
            own: None,
            price: Micros::new(price),
            slice: LeaseRequest::SLICE_MIN,
        }
    }

    type Row = (u64, u64, u64, u64, u64);
}
