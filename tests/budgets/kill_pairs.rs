//! Pairs of processes are killed at any moment, one of them while the other spends on.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio, time::Duration};

use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::timeout,
};
use tollbridge::{
    clock,
    config::Window,
    governance::budget::{AppliedBudget, Budgets},
    money::Micros,
    store::Store,
};

use crate::spender::{self, ATTEMPT, CHAIN, DIRECTORY};

/// Pairs that are killed.
const ROUNDS: u32 = 30;

/// How long a process may take for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

type Sums = BTreeMap<String, Micros>;

#[tokio::test]
async fn after_every_kill_spent_is_what_the_audits_say_and_no_limit_is_exceeded() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let budgets = Budgets::new(store.leases.clone(), "parent");
    let [narrow, wide] = spender::applied();
    let mut world = World {
        directory: directory.path(),
        budgets: &budgets,
        all: Sums::new(),
    };
    for round in 0..ROUNDS {
        let mut first = spawn(directory.path(), &format!("first-{round}"));
        let mut second = spawn(directory.path(), &format!("second-{round}"));
        attempts(&mut first, 1 + round * 37 % 101).await;
        attempts(&mut second, 1 + round * 53 % 211).await;
        world.kill(first, &format!("first-{round}")).await;
        attempts(&mut second, round * 11 % 17).await;
        world.kill(second, &format!("second-{round}")).await;
        world.check(&narrow, spender::NARROW).await;
        world.check(&wide, spender::WIDE).await;
        budgets
            .reset(&spender::agent(), Window::Total, "next round", clock::now())
            .await
            .unwrap();
    }
    let fullest = world
        .all
        .values()
        .filter(|sum| **sum > Micros::new(1_400_000));
    assert!(
        fullest.count() > 1,
        "some rounds reach the limit: {:?}",
        world.all
    );
    assert!(
        store
            .leases
            .chains_with_open_leases()
            .await
            .unwrap()
            .is_empty()
    );
}

struct World<'a> {
    directory: &'a Path,
    budgets: &'a Budgets,
    all: Sums,
}

impl World<'_> {
    /// Kills a process and reconciles it, twice since that must not matter.
    async fn kill(&mut self, mut process: Child, chain: &str) {
        process.kill().await.unwrap();
        let sums = sums(&fs::read_to_string(spender::audit_path(self.directory, chain)).unwrap());
        for _ in 0..2 {
            self.budgets.reconcile(chain, &sums).await.unwrap();
        }
        for (account, sum) in sums {
            let total = self.all.entry(account).or_default();
            *total = total.saturating_add(sum);
        }
    }

    async fn check(&self, budget: &AppliedBudget, limit: Micros) {
        let standing = self.budgets.status(budget, clock::now()).await.unwrap();
        let account = standing.account.as_str();
        let expect = self.all.get(account).copied().unwrap_or_default();
        assert_eq!(
            (standing.spent, standing.elsewhere),
            (expect, Micros::ZERO),
            "{account}"
        );
        assert!(
            standing.spent <= limit,
            "{account}: {}",
            standing.spent.to_decimal()
        );
    }
}

/// What an audit says was spent: what was opened, unless it says that it cost nothing.
fn sums(audit: &str) -> Sums {
    let mut calls = BTreeMap::new();
    for line in audit.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["opened", number, price, ref accounts @ ..] => {
                calls.insert(number, (price.parse().unwrap(), accounts.to_vec()));
            }
            ["free", number] => assert!(calls.remove(number).is_some(), "{line}"),
            ["done", number] => assert!(calls.contains_key(number), "{line}"),
            _ => panic!("{line}"),
        }
    }
    let mut sums = Sums::new();
    for (price, accounts) in calls.into_values() {
        for account in accounts {
            let sum = sums.entry(account.to_owned()).or_default();
            *sum = sum.saturating_add(Micros::new(price));
        }
    }
    sums
}

fn spawn(directory: &Path, chain: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "spender::spends_until_killed", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(CHAIN, chain)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Waits until the process has tried so many holds more.
async fn attempts(process: &mut Child, count: u32) {
    let stdout = process.stdout.as_mut().unwrap();
    let mut seen = 0;
    let reading = async {
        while seen < count {
            let byte = stdout.read_u8().await.unwrap();
            seen += u32::from(byte == ATTEMPT);
        }
    };
    timeout(PATIENCE, reading).await.unwrap();
}
