//! Gateways that are killed under load, again and again: no budget is overspent, no record is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

use rustix::process::Signal;
use tokio::sync::mpsc;
use tollbridge::{
    audit::{self, LineType, RecordedDecision},
    clock,
    config::{Budget, Window},
    governance::budget::{AppliedBudget, Budgets},
    money::Micros,
    names::{AgentId, ServerName},
    store::{BudgetSubject, Store},
};

use crate::{
    binary::Place,
    harness::{Server, records},
    support::{
        http::Http,
        soon,
        wire::{request, spawn},
    },
};

/// How often a gateway is killed.
const ROUNDS: usize = 60;
/// Calls at once.
const CALLERS: usize = 8;
/// Answers that wait to be counted.
const ANSWERS: usize = 1024;
const PRICE: u64 = 10_000;
/// What the server `narrow` may cost: less than all rounds would spend.
const NARROW: u64 = 400_000;
/// What the agent may spend: more than all rounds do.
const WIDE: u64 = 9_000_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_neither_overspend_nor_lose_a_record() {
    let (wide, narrow) = (Server::start().await, Server::start().await);
    let config = format!(
        "listen = \"127.0.0.1:0\"\n[governance]\nprice = \"0.01\"\nbudget = {{ limit = \"9000.00\" }}\n\
         [servers.wide]\n{}\n[servers.narrow]\nbudget = {{ limit = \"0.40\" }}\n{}\n",
        wide.backend.config(),
        narrow.backend.config()
    );
    let place = Place::new(&config);
    let mut answered = 0;
    for number in 0..ROUNDS {
        answered += round(&place, number).await;
    }
    // The last start sets everything in order.
    let serving = place.serve().await;
    let ended = serving.end(Signal::INT).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let data_dir = place.file("data");
    assert!(answered > 0, "no call was answered");
    check_audit(&data_dir, &wide, &narrow, answered);
    check_store(&data_dir).await;
}

/// One life of a gateway: started, called by many at once, killed after some answers. How many calls
/// were answered with a result.
async fn round(place: &Place, number: usize) -> usize {
    let mut serving = place.serve().await;
    let address = serving.url.trim_start_matches("http://").parse().unwrap();
    let (tell, mut answers) = mpsc::channel(ANSWERS);
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| spawn(call_for_ever(Http::new(address), caller, tell.clone())))
        .collect();
    drop(tell);
    let (mut wanted, mut answered) = (number * 7 % 41, 0);
    while wanted > 0 {
        let Some(is_result) = soon("a call is answered", answers.recv()).await else {
            break;
        };
        answered += usize::from(is_result);
        wanted -= 1;
    }
    serving.child.start_kill().unwrap();
    soon("it is killed", serving.child.wait()).await.unwrap();
    for caller in callers {
        soon("a caller sees the end", caller).await.unwrap();
    }
    while let Ok(is_result) = answers.try_recv() {
        answered += usize::from(is_result);
    }
    answered
}

/// Calls one of the servers after the other until the gateway is gone; tells of each answer whether
/// it is a result.
async fn call_for_ever(http: Http, caller: usize, tell: mpsc::Sender<bool>) {
    for number in caller.. {
        let server = if number % 2 == 0 { "wide" } else { "narrow" };
        let params = format!(r#"{{"name":"mcp_{server}_echo","arguments":{{"n":{number}}}}}"#);
        let Some(answer) = http
            .try_post("/mcp", request("1", "tools/call", &params))
            .await
        else {
            return;
        };
        if tell.send(answer.contains("\"fine\"")).await.is_err() {
            return;
        }
    }
}

/// Every chain is whole and ended; every call that was opened has one record; every call that
/// reached a server was paid for.
fn check_audit(data_dir: &Path, wide: &Server, narrow: &Server, answered: usize) {
    let directory = data_dir.join("audit");
    let report = audit::verify(&directory).unwrap();
    for chain in &report.chains {
        assert_eq!(chain.fault, None, "{chain:?}");
        assert!(chain.ended, "{chain:?}");
        assert_eq!(chain.torn_bytes, 0, "{chain:?}");
    }
    let records = records(data_dir);
    let mut ids = BTreeSet::new();
    for record in &records {
        assert!(ids.insert(record.id.to_string()), "two records: {record:?}");
    }
    let opened = opened(&directory);
    for id in &opened {
        assert!(ids.contains(id), "no record of {id}");
    }
    for (name, server) in [("wide", wide), ("narrow", narrow)] {
        let paid = records
            .iter()
            .filter(|it| it.server.as_deref() == Some(name) && it.price.get() == PRICE);
        let (paid, seen) = (paid.count(), server.seen().len());
        assert!(seen <= paid, "{name}: {seen} calls, {paid} paid");
    }
    let of = |decision| records.iter().filter(|it| it.decision == decision).count();
    assert!(of(RecordedDecision::Allowed) >= answered);
    assert!(
        of(RecordedDecision::Interrupted) > 0,
        "no call was cut short"
    );
    assert!(
        of(RecordedDecision::Refused) > 0,
        "the narrow budget was not reached"
    );
}

/// The ids of all calls that were about to leave.
fn opened(directory: &Path) -> Vec<String> {
    let mut opened = Vec::new();
    for file in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for line in text.lines() {
            if LineType::of(line.as_bytes()) == Some(LineType::Opened) {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                opened.push(line["id"].as_str().unwrap().to_owned());
            }
        }
    }
    opened
}

/// What the store says was spent is what the records say, and no budget is overspent.
async fn check_store(data_dir: &Path) {
    let mut paid: BTreeMap<String, u64> = BTreeMap::new();
    for record in records(data_dir) {
        for account in record.accounts {
            *paid.entry(account.into_owned()).or_default() += record.price.get();
        }
    }
    let store = Store::open(data_dir).await.unwrap();
    let budgets = Budgets::new(Arc::clone(&store.leases), "test");
    let narrow = BudgetSubject::server(&ServerName::parse("narrow").unwrap());
    for (subject, limit) in [
        (BudgetSubject::agent(AgentId::ANONYMOUS), WIDE),
        (narrow, NARROW),
    ] {
        let limit = Micros::new(limit);
        let window = Window::Total;
        let applied = AppliedBudget::new(subject, Budget { limit, window });
        let standing = budgets.status(&applied, clock::now()).await.unwrap();
        let of_records = paid.get(standing.account.as_str()).copied();
        assert_eq!(Some(standing.spent.get()), of_records, "{standing:?}");
        assert_eq!(standing.elsewhere, Micros::ZERO, "{standing:?}");
        assert!(standing.spent <= limit, "{standing:?}");
    }
    store.close().await;
}
