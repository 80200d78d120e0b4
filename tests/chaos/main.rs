//! Servers die, hang, lie and come back under the traffic of many clients, while the config changes:
//! every call gets exactly one answer, to nobody but its caller, and nothing is left over.
//!
//! `CHAOS_SECONDS` says how long (default 12), `CHAOS_SEED` which course it takes; the seed of a run
//! that fails is in its output. The gateway is a process of its own, so that its memory and
//! descriptors are its own; the servers live here, those on stdio behind child processes that die for
//! real.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../integration"]
mod integration {
    #[allow(
        dead_code,
        unused_imports,
        reason = "these tests need a part of what those need"
    )]
    pub(crate) mod support;
}
#[path = "../cli/support.rs"]
#[allow(
    dead_code,
    reason = "these tests need a part of what those of the command line need"
)]
mod binary;

mod clients;
mod killed_writes;
mod process;
mod seeded_random;
mod servers;

use std::{
    collections::{HashMap, HashSet},
    fs,
    sync::Arc,
    time::Duration,
};

use integration::support;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};
use tollbridge::audit::{Query, Record, RecordFilter, RecordedDecision};

use binary::{Place, send};
use clients::{Answered, Caller, How, Ledger, Made, Modes};
use process::Gateway;
use seeded_random::Dice;
use servers::Servers;

/// Clients at a time.
const CLIENTS: usize = 200;
/// Calm moments in which memory is looked at.
const CYCLES: u32 = 6;
/// What a shorter run does to memory is all warming up.
const MEMORY_SECONDS: u64 = 60;
/// How long everything may take to come back once nobody breaks it.
const RECOVERY: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_left_over() {
    let seconds = number("CHAOS_SECONDS").unwrap_or(12);
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let mut dice = Dice::new(seed);
    let servers = Arc::new(Servers::start().await);
    let place = Place::new(&config(&servers, 0));
    let mut gateway = Gateway::start(&place).await;
    gateway.until_connected(&servers.names(), RECOVERY).await;
    let quiet = gateway.descriptors();

    let ledger = Arc::new(Ledger::default());
    let callers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let caller = Caller::new(number, &gateway, &servers, &ledger, dice.fork());
            support::wire::spawn(caller.run())
        })
        .collect();
    let mut memory = Vec::new();
    let cycle = Duration::from_secs(seconds) / CYCLES;
    for number in 0..CYCLES {
        disturb(
            &mut gateway,
            &servers,
            &place,
            &mut dice,
            cycle.mul_f64(0.75),
        )
        .await;
        // Then calls go on, and nobody breaks anything.
        ledger.set_modes(Modes::Calm);
        sleep(cycle.mul_f64(0.25)).await;
        memory.push(gateway.resident_kib());
        println!(
            "cycle {number}: {} KiB, {}",
            memory[memory.len() - 1],
            ledger.summary()
        );
        ledger.set_modes(Modes::Wild);
    }
    ledger.set_modes(Modes::Calm);
    gateway.until_connected(&servers.names(), RECOVERY).await;
    gateway.all_serve(&servers.names(), RECOVERY).await;
    ledger.stop();
    for caller in callers {
        caller.await.unwrap();
    }
    println!("at the end: {}", ledger.summary());

    if seconds >= MEMORY_SECONDS {
        check_memory(&memory);
    }
    gateway.descriptors_come_back_to(quiet, RECOVERY).await;
    let children = gateway.children_seen();
    send(&gateway.child, Signal::TERM);
    let status = binary::bounded(gateway.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", gateway.log_tail());
    binary::gone(&children).await;
    check_calls(&ledger, &servers);
    check_audit(&ledger, &records(&place));
}

#[expect(
    clippy::disallowed_methods,
    reason = "a run of a test is not configured by files"
)]
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
    )
}

/// The config; each version has one server that the others do not have.
fn config(servers: &Servers, version: u64) -> String {
    format!(
        "drain_timeout = \"3s\"\n\
         [governance]\nprice = \"0.000001\"\nbudget = {{ limit = \"1000000.00\" }}\n\
         scan = {{ results = {{ \"*\" = \"report\" }} }}\n\
         [servers.extra_{}]\ntransport = \"builtin\"\n{}",
        version % 3,
        servers.config()
    )
}

/// Breaks something every few hundred milliseconds.
async fn disturb(
    gateway: &mut Gateway,
    servers: &Servers,
    place: &Place,
    dice: &mut Dice,
    how_long: Duration,
) {
    let end = Instant::now() + how_long;
    let mut version = dice.below(1000);
    while Instant::now() < end {
        match dice.below(8) {
            0..=2 => gateway.kill_one_of_its_children(dice).await,
            3 | 4 => servers.break_one(dice),
            5 => servers.forget_one(dice),
            _ => {
                version += 1;
                fs::write(place.file("tollbridge.toml"), config(servers, version)).unwrap();
                send(&gateway.child, Signal::HUP);
            }
        }
        sleep(Duration::from_millis(100 + dice.below(300))).await;
    }
}

/// Allocators and caches are warm after two cycles; from then on nothing grows.
fn check_memory(memory: &[u64]) {
    let (early, late) = (memory[1], memory[memory.len() - 1]);
    assert!(late * 10 <= early * 11, "memory grows, KiB: {memory:?}");
}

/// Each call was answered once, with what its own caller had asked, and no server was asked twice.
/// Who closes its half of a connection counts as gone, since that is how a client takes a call back:
/// it hears nothing, or its one answer.
fn check_calls(ledger: &Ledger, servers: &Servers) {
    let calls = ledger.calls();
    let is_odd = |call: &&Made| {
        let may_miss = call.how == How::HalfClosed && call.answers == 0;
        call.answers != 1 && !may_miss
    };
    let odd: Vec<_> = calls.iter().filter(is_odd).collect();
    assert!(
        odd.is_empty(),
        "{} calls have not one answer: {:?}",
        odd.len(),
        odd[0]
    );
    let strangers = calls
        .iter()
        .filter(|call| call.answered == Answered::Stranger);
    assert_eq!(strangers.count(), 0, "an answer reached a stranger");
    let good = calls
        .iter()
        .filter(|call| call.answered == Answered::Result)
        .count();
    assert!(
        good * 2 > calls.len(),
        "only {good} of {} calls succeeded",
        calls.len()
    );
    let seen = servers.seen();
    let distinct: HashSet<_> = seen.iter().collect();
    assert_eq!(
        distinct.len(),
        seen.len(),
        "a server was asked twice for one call"
    );
}

/// The audit has one record of each call, which says the same as the client heard.
fn check_audit(ledger: &Ledger, records: &[Record<'static>]) {
    let mut by_trace: HashMap<&str, Vec<&Record<'static>>> = HashMap::new();
    for record in records {
        let trace = record.trace_id.as_deref().unwrap_or_default();
        by_trace.entry(trace).or_default().push(record);
    }
    for call in ledger.calls() {
        let found = by_trace.get(&*call.trace).map_or(&[][..], Vec::as_slice);
        if call.answered == Answered::Never {
            assert!(found.len() <= 1, "{call:?}: {found:?}");
            continue;
        }
        let [record] = found else {
            panic!("{} records of {call:?}: {found:?}", found.len());
        };
        let told = match record.decision {
            RecordedDecision::Allowed | RecordedDecision::Observed => {
                &[Answered::Result, Answered::Error][..]
            }
            RecordedDecision::Failed | RecordedDecision::Refused => &[Answered::Error],
            RecordedDecision::Interrupted => &[],
        };
        assert!(told.contains(&call.answered), "{call:?}: {record:?}");
    }
}

fn records(place: &Place) -> Vec<Record<'static>> {
    let query = Query::new(&place.file("data").join("audit"), RecordFilter::default()).unwrap();
    query.map(|found| found.unwrap().record).collect()
}
