//! The process that is killed: it spends from one data directory under load, and keeps a file in
//! place of the audit.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use tollbridge::{
    clock,
    config::{Budget, Window},
    governance::budget::{AppliedBudget, BudgetRefusal, Budgets, Hold},
    money::Micros,
    names::AgentId,
    store::{BudgetSubject, Store},
    task::Tasks,
};

/// The data directory; only the parent test sets it.
pub(crate) const DIRECTORY: &str = "BUDGET_TEST_DIRECTORY";

/// The chain of the process.
pub(crate) const CHAIN: &str = "BUDGET_TEST_CHAIN";

/// Written to standard output after each attempt to hold.
pub(crate) const ATTEMPT: u8 = 1;

/// A budget that a round uses up, and is reset before the next.
pub(crate) const NARROW: Micros = Micros::new(1_500_000);

/// A budget that lasts for all rounds.
pub(crate) const WIDE: Micros = Micros::new(9_000_000_000);

/// Calls at once.
const CALLERS: u64 = 16;

/// The two budgets of every call.
pub(crate) fn applied() -> [AppliedBudget; 2] {
    let window = Window::Total;
    let applied = |subject, limit| AppliedBudget::new(subject, Budget { limit, window });
    [
        applied(agent(), NARROW),
        applied(BudgetSubject::team("t"), WIDE),
    ]
}

pub(crate) fn agent() -> BudgetSubject {
    BudgetSubject::agent(AgentId::ANONYMOUS)
}

/// The file in place of the audit of `chain`.
pub(crate) fn audit_path(directory: &Path, chain: &str) -> PathBuf {
    directory.join(format!("{chain}.audit"))
}

/// Nothing to see unless the parent test starts it: see `killed`. It ends by being killed.
#[test]
fn spends_until_killed() {
    let Some((directory, chain)) = asked_for() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::open(&directory).await.unwrap();
        let budgets = Arc::new(Budgets::new(store.leases.clone(), &chain));
        let audit = OpenOptions::new()
            .create(true)
            .append(true)
            .open(audit_path(&directory, &chain))
            .unwrap();
        let audit = Arc::new(audit);
        let tasks = Tasks::new();
        budgets.start(&tasks);
        for caller in 0..CALLERS {
            tasks.spawn(
                "caller",
                call_for_ever(caller, budgets.clone(), audit.clone()),
            );
        }
        std::future::pending::<()>().await;
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "the parent test speaks through the environment"
)]
fn asked_for() -> Option<(PathBuf, String)> {
    let directory = std::env::var(DIRECTORY).ok()?;
    Some((directory.into(), std::env::var(CHAIN).unwrap()))
}

async fn call_for_ever(caller: u64, budgets: Arc<Budgets>, audit: Arc<File>) {
    let applied = applied();
    for number in (caller..).step_by(usize::try_from(CALLERS).unwrap()) {
        let price = Micros::new(1_000 * (1 + number % 7));
        match budgets.hold(&applied, price, clock::now()).await {
            Ok(hold) => call(number, hold, &audit).await,
            Err(BudgetRefusal::Exceeded(_)) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
        std::io::stdout().write_all(&[ATTEMPT]).unwrap();
    }
}

/// One call, as the gateway makes it: the audit says opened before the call leaves, and says that it
/// cost nothing before its hold is released.
async fn call(number: u64, hold: Hold, audit: &File) {
    let accounts: Vec<_> = hold.accounts().map(ToString::to_string).collect();
    let price = hold.price().get();
    record(
        audit,
        &format!("opened {number} {price} {}\n", accounts.join(" ")),
    );
    tokio::task::yield_now().await;
    if number.is_multiple_of(3) {
        record(audit, &format!("free {number}\n"));
        hold.release();
    } else {
        record(audit, &format!("done {number}\n"));
        hold.settle();
    }
}

/// One write to a file opened for appending: whole or not at all.
fn record(mut audit: &File, line: &str) {
    audit.write_all(line.as_bytes()).unwrap();
}
