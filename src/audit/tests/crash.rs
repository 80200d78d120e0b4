//! Processes that are killed: no call is lost, none is recorded twice, every chain can be verified.
//!
//! The processes are this test binary again, told by an environment variable what to be.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

use tempfile::TempDir;

use crate::{
    audit::{
        Durable, LineFault, LineType, Opened, Query, Record, RecordFilter, RecordedDecision,
        Recovered, chains,
        testing::{
            ACCOUNT, config, invocation, lines, open_log, opened, record, recover, total, verify,
        },
    },
    config::{self, Durability},
    money::Micros,
};

/// What a process started by these tests is to be, and where: `write:DIR`, `recover:DIR`.
const ROLE: &str = "AUDIT_TEST_ROLE";

/// Processes that are killed while they write.
const KILLS: u32 = 60;

#[test]
fn no_kill_loses_a_call_or_records_it_twice() {
    let place = TempDir::new().unwrap();
    let mut loaded = Told::default();
    for round in 0..KILLS {
        let mut writer = start("write", place.path());
        loaded.read_and_kill(&mut writer, 1 + (round * 37) % 400);
        if round % 5 == 0 {
            let recoverers = [0, 1].map(|_| start("recover", place.path()));
            kill_after(recoverers, round / 5);
        }
    }
    let recovered = [0, 1].map(|_| start("recover", place.path()));
    for mut process in recovered {
        assert!(process.wait().unwrap().success());
    }
    assert!(recover(place.path()).unwrap().is_empty(), "all were dead");

    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert!(report.chains.iter().all(|chain| chain.ended));
    loaded.check(place.path());
}

/// What the writers said before they were killed.
#[derive(Default)]
struct Told {
    opened: HashSet<String>,
    recorded: HashSet<String>,
}

impl Told {
    /// Kills the writer after so many lines, and reads what it said until it died.
    fn read_and_kill(&mut self, writer: &mut Child, lines: u32) {
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while let Some(line) = said.next().transpose().unwrap() {
            match line.split_once(' ') {
                Some(("opened", id)) => drop(self.opened.insert(id.to_owned())),
                Some(("recorded", id)) => drop(self.recorded.insert(id.to_owned())),
                _ => continue,
            }
            seen += 1;
            if seen == lines {
                writer.kill().unwrap();
            }
        }
        writer.wait().unwrap();
    }

    fn check(&self, directory: &Path) {
        let mut found: HashMap<String, RecordedDecision> = HashMap::new();
        let mut charged = Micros::ZERO;
        for record in Query::new(directory, RecordFilter::default()).unwrap() {
            let record = record.unwrap().record;
            charged = charged.saturating_add(record.price);
            let doubled = found.insert(record.id.to_string(), record.decision);
            assert_eq!(doubled, None, "{} has two records", record.id);
        }
        assert!(self.opened.len() > 100, "the writers did not get far");
        for id in &self.opened {
            assert!(found.contains_key(id), "{id} was opened and has no record");
        }
        for id in &self.recorded {
            assert_eq!(found.get(id), Some(&RecordedDecision::Allowed), "{id}");
        }
        let interrupted = found
            .values()
            .filter(|it| **it == RecordedDecision::Interrupted);
        assert!(interrupted.count() > 0, "no kill came during a call");
        let totals = chains(directory).unwrap().into_iter();
        let totals = totals.map(|chain| total(directory, chain).unwrap().unwrap());
        let by_chain = totals.map(|total| total.charged.get(ACCOUNT).copied().unwrap_or_default());
        assert_eq!(by_chain.fold(Micros::ZERO, Micros::saturating_add), charged);
    }
}

fn kill_after(processes: [Child; 2], lines: u32) {
    for mut process in processes {
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        drop(said.take(lines as usize).collect::<Vec<_>>());
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

fn start(role: &str, directory: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "audit::tests::crash::process", "--nocapture"])
        .env(ROLE, format!("{role}:{}", directory.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test, but what the tests start; without its variable it has nothing to do.
#[test]
fn process() {
    let Some(role) = env::var_os(ROLE) else {
        return;
    };
    let role = role.into_string().unwrap();
    match role.split_once(':').unwrap() {
        ("recover", directory) => {
            for recovered in recover(Path::new(directory)).unwrap() {
                println!("\nrecovered {}", recovered.unwrap().chain);
            }
        }
        ("write", directory) => write_until_killed(Path::new(directory)),
        (role, _) => panic!("{role}"),
    }
}

/// Two threads for ever, one of which changes the day now and then.
fn write_until_killed(directory: &Path) {
    let log = Arc::new(open_log(directory, config()).unwrap());
    let threads = [0_i64, 1].map(|thread| {
        let log = log.clone();
        thread::spawn(move || {
            for n in 0.. {
                let id = invocation();
                let mut call = opened(id);
                call.ts += jiff::SignedDuration::from_hours(24 * thread * (n / 40));
                assert!(log.record_opened(&call).is_written());
                say(&format!("opened {id}"));
                assert!(log.record(&record(id)).is_written());
                say(&format!("recorded {id}"));
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A line of its own in one write, whatever the test harness printed before.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

#[test]
fn the_chain_of_the_dead_gets_its_missing_records_and_an_end() {
    let place = TempDir::new().unwrap();
    let dead = open_log(place.path(), config()).unwrap();
    let (done, first, second) = (invocation(), invocation(), invocation());
    for id in [done, first, second] {
        now(dead.record_opened(&opened(id)));
    }
    now(dead.record(&record(done)));
    let chain = dead.chain().unwrap();
    assert!(recover(place.path()).unwrap().is_empty(), "it is alive");
    drop(dead);

    let segment = place.path().join(format!("{chain}.1.jsonl"));
    append(&segment, b"{\"kind\":\"call\",\"id\":\"inv_0");
    append(
        &place.path().join(format!("{chain}.2.jsonl")),
        b"{\"kind\":\"beg",
    );
    let recovered = recover(place.path()).unwrap();
    let recovered: Vec<Recovered> = recovered.into_iter().map(Result::unwrap).collect();
    let expected = Recovered {
        chain,
        calls: 3,
        interrupted: 2,
        torn_bytes: 26,
        charged: BTreeMap::from([(ACCOUNT.to_owned(), Micros::new(45_000))]),
        damage: None,
    };
    assert_eq!(recovered, [expected]);
    let lines = lines(place.path(), chain);
    let interrupted = |id| format!("{{\"kind\":\"call\",\"id\":\"{id}\"");
    assert!(lines[5].starts_with(&interrupted(first)), "{}", lines[5]);
    assert!(lines[6].starts_with(&interrupted(second)), "{}", lines[6]);
    assert!(lines[6].contains("\"decision\":\"interrupted\""));
    let record: Record<'_> = serde_json::from_str(&lines[6]).unwrap();
    let opened = lines.iter().find_map(|line| {
        let opened: Opened<'_> = serde_json::from_str(line).ok()?;
        (LineType::of(line.as_bytes()) == Some(LineType::Opened) && opened.id == second)
            .then_some(opened)
    });
    assert_eq!(
        Some(record.ts),
        opened.map(|opened| opened.ts),
        "nobody saw it end"
    );
    assert!(record.reconciled.is_some_and(|at| at >= record.ts));
    assert!(record.rule.unwrap().contains("crashed before the end"));
    assert!(lines[7].starts_with("{\"kind\":\"end\""));
    assert!(verify(place.path()).unwrap().is_valid());
    assert!(recover(place.path()).unwrap().is_empty(), "once is enough");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_chain_is_counted_but_not_touched() {
    let place = TempDir::new().unwrap();
    let dead = open_log(place.path(), config()).unwrap();
    let (done, open) = (invocation(), invocation());
    for id in [done, open] {
        now(dead.record_opened(&opened(id)));
    }
    now(dead.record(&record(done)));
    let segment = place
        .path()
        .join(format!("{}.1.jsonl", dead.chain().unwrap()));
    drop(dead);
    let changed = fs::read_to_string(&segment)
        .unwrap()
        .replacen("science", "fiction", 1);
    fs::write(&segment, &changed).unwrap();

    for _ in 0..2 {
        let recovered = recover(place.path()).unwrap().remove(0).unwrap();
        assert_eq!(recovered.damage.unwrap().fault, LineFault::Hash);
        assert_eq!(recovered.interrupted, 0);
        assert_eq!(recovered.charged[ACCOUNT], Micros::new(30_000));
        assert_eq!(fs::read_to_string(&segment).unwrap(), changed);
    }
}

#[test]
fn what_died_before_its_first_line_leaves_nothing() {
    let place = TempDir::new().unwrap();
    for name in [
        "01900000-0000-7000-8000-000000000000.lock",
        "01900000-0000-7000-8000-000000000001.lock",
        "01900000-0000-7000-8000-000000000001.1.jsonl",
    ] {
        fs::write(place.path().join(name), "").unwrap();
    }
    fs::write(place.path().join("notes.txt"), "").unwrap();
    assert!(recover(place.path()).unwrap().is_empty());
    assert!(verify(place.path()).unwrap().is_valid());
    let left = fs::read_dir(place.path()).unwrap();
    let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(
        left,
        ["01900000-0000-7000-8000-000000000001.1.jsonl", "notes.txt"]
    );
}

#[test]
fn a_chain_is_dead_also_without_its_lock_file() {
    let place = TempDir::new().unwrap();
    let disk = config::Audit {
        durability: Durability::Disk,
        ..config()
    };
    let dead = open_log(place.path(), disk).unwrap();
    let lock = place.path().join(format!("{}.lock", dead.chain().unwrap()));
    drop(dead);
    fs::remove_file(lock).unwrap();
    assert_eq!(recover(place.path()).unwrap().len(), 1);
    assert!(verify(place.path()).unwrap().chains[0].ended);
}

fn now(kept: Durable) {
    assert!(kept.is_written());
}

fn append(path: &Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().append(true).create(true).open(path);
    file.unwrap().write_all(bytes).unwrap();
}
