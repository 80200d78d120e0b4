//! Reading: queries, following, positions, exports, what verification notices, retention.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use crate::{
    audit::{
        AuditError, AuditEvent, AuditLog, ChainId, ChainReader, ChangedValues, EventKind,
        ExportFormat, FOLLOW_BATCH_MAX, Follow, LineFault, LineType, LogEntry, Query, Record,
        RecordFilter, RecordedDecision, chains, export,
        testing::{at, config, invocation, open_log, opened, record, recover, verify},
    },
    clock, config,
    names::{AgentId, InvocationId},
};

#[test]
fn queries_go_over_all_chains_in_the_order_of_time() {
    let place = TempDir::new().unwrap();
    let logs = [0, 1].map(|_| open_log(place.path(), config()).unwrap());
    let written: Vec<InvocationId> = (0..10)
        .map(|n| put(&logs[n % 2], 0, |it| it.ts = later(n)))
        .collect();
    let query = |filter| -> Vec<InvocationId> {
        let found = Query::new(place.path(), filter).unwrap();
        found.map(|found| found.unwrap().record.id).collect()
    };
    assert_eq!(query(RecordFilter::default()), written);
    let limit = Some(3);
    assert_eq!(
        query(RecordFilter {
            limit,
            ..RecordFilter::default()
        }),
        written[..3]
    );
    let (since, until) = (Some(later(2)), Some(later(5)));
    let between = RecordFilter {
        since,
        until,
        ..RecordFilter::default()
    };
    assert_eq!(query(between), written[2..5]);
}

#[test]
fn filters_hold_together() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    put(&log, 0, |record| record.ts = later(0));
    let other = AgentId::from_name("other");
    let id = put(&log, 1, |record| {
        record.ts = later(1);
        record.agent_id = other;
        record.agent_name = "other".into();
        record.server = Some("docs".into());
        record.tool = Some("search".into());
        record.exposed = Some("mcp_docs_search".into());
        record.decision = RecordedDecision::Refused;
    });
    let check = |narrow: &dyn Fn(&mut RecordFilter), expected: usize| {
        let mut filter = RecordFilter::default();
        narrow(&mut filter);
        let found = Query::new(place.path(), filter.clone()).unwrap().count();
        assert_eq!(found, expected, "{filter:?}");
    };
    let some = |text: &str| Some(text.to_owned());
    check(&|_| (), 2);
    check(&|it| it.agent = some("other"), 1);
    check(&|it| it.agent = Some(other.to_string()), 1);
    check(&|it| it.agent = some("nobody"), 0);
    check(&|it| it.server = some("docs"), 1);
    check(&|it| it.tool = some("search"), 1);
    check(&|it| it.tool = some("mcp_docs_search"), 1);
    check(&|it| it.decision = Some(RecordedDecision::Refused), 1);
    check(&|it| it.id = Some(id), 1);
    check(&|it| it.id = Some(invocation()), 0);
    check(&|it| it.since = Some(later(1)), 1);
    check(&|it| it.until = Some(later(1)), 1);
    let both = |it: &mut RecordFilter| {
        it.agent = some("other");
        it.server = some("github");
    };
    check(&both, 0);
}

#[test]
fn followers_see_what_is_new_across_segments_and_chains() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    put(&log, 0, |_| ());
    let mut follow = Follow::new(place.path(), RecordFilter::default()).unwrap();
    let mut seen = || -> Vec<InvocationId> {
        let found = follow.poll().unwrap();
        found.into_iter().map(|found| found.record.id).collect()
    };
    assert_eq!(seen(), []);
    let mut new = vec![put(&log, 1, |_| ())];
    next_day(&log, 1);
    new.push(put(&log, 2, |_| ()));
    let young = open_log(place.path(), config()).unwrap();
    new.push(put(&young, 3, |_| ()));
    assert_eq!(seen(), new);
    assert_eq!(seen(), []);

    let many: Vec<_> = (0..=FOLLOW_BATCH_MAX)
        .map(|n| put(&log, n, |_| ()))
        .collect();
    assert_eq!(seen(), many[..FOLLOW_BATCH_MAX]);
    assert_eq!(seen(), many[FOLLOW_BATCH_MAX..]);
}

#[tokio::test(start_paused = true)]
async fn followers_wait() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let mut follow = Follow::new(place.path(), RecordFilter::default()).unwrap();
    let writes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        put(&log, 0, |_| ())
    };
    let (found, id) = tokio::join!(follow.next(), writes);
    assert_eq!(found.unwrap().record.id, id);
}

#[test]
fn a_line_that_is_being_written_is_read_once_it_is_whole() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let id = put(&log, 0, |_| ());
    let chain = log.chain().unwrap();
    drop(log);
    let segment = segment(place.path(), chain, 1);
    let whole = fs::read(&segment).unwrap();
    let mut reader = ChainReader::new(place.path(), chain).unwrap();
    for cut in [1, 20, 300] {
        fs::write(&segment, &whole[..whole.len() - cut]).unwrap();
        while let Some(entry) = reader.read().unwrap() {
            assert_eq!(entry.kind(), Some(LineType::Begin));
        }
        assert!(verify(place.path()).unwrap().is_valid());
        assert!(verify(place.path()).unwrap().chains[0].torn_bytes > 0);
    }
    fs::write(&segment, &whole).unwrap();
    let entry = reader.read().unwrap().unwrap();
    assert_eq!(entry.record().unwrap().unwrap().id, id);
    assert!(reader.read().unwrap().is_none());
}

#[test]
fn a_reader_reads_all_segments_in_order_and_what_is_added() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    for n in 0..3 {
        put(&log, n, |_| ());
        next_day(&log, n);
    }
    let chain = log.chain().unwrap();
    let all = entries(place.path(), chain);
    assert!(all.is_sorted_by_key(|entry| entry.position));
    assert_eq!(all.last().unwrap().position.segment, 4);
    let mut reader = ChainReader::new(place.path(), chain).unwrap();
    for expected in &all {
        assert_eq!(reader.read().unwrap().as_ref(), Some(expected));
    }
    assert_eq!(reader.read().unwrap(), None);
    let id = put(&log, 3, |_| ());
    let added = reader.read().unwrap().unwrap();
    assert_eq!(added.record().unwrap().unwrap().id, id);
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn exports_are_safe_for_spreadsheets() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let id = put(&log, 0, |record| {
        record.agent_name = "=HYPERLINK(\"http://x\")".into();
        record.team = Some("a,b".into());
        record.client = Some("two\r\nlines".into());
        record.tool = Some("\u{1b}[2J\u{202e}gnp.\u{9b}1m".into());
        record.exposed = Some("\t+1".into());
        record.rule = Some("@rule".into());
        record.accounts = vec!["a".into(), "b".into()];
    });
    let write = |format| {
        let mut text = Vec::new();
        let found = Query::new(place.path(), RecordFilter::default()).unwrap();
        assert_eq!(export(found, format, &mut text).unwrap(), 1);
        String::from_utf8(text).unwrap()
    };
    let chain = log.chain().unwrap();
    let entry = &entries(place.path(), chain)[1];
    let csv = write(ExportFormat::Csv);
    let (header, row) = csv.split_once("\r\n").unwrap();
    assert_eq!(header.split(',').count(), 33);
    let row = row
        .replace(&chain.to_string(), "CHAIN")
        .replace(&id.to_string(), "ID");
    let row = row.replace(&entry.position.offset.to_string(), "OFFSET");
    assert_eq!(
        row,
        "CHAIN,ID,2026-01-01T00:00:00.000000Z,agent_00000000-0000-0000-0000-000000000000,\
         \"'=HYPERLINK(\"\"http://x\"\")\",\"a,b\",science,,,,two\\r\\nlines,,,github,\
         srv_3246e891-92eb-5cbe-81f9-b39ac5a9d41d,,tools/call,\
         \\u001b[2J\\u202egnp.\\u009b1m,'\\t+1,,,,allowed,,'@rule,15000,a b,12.345,17,4711,,,\
         1:OFFSET\r\n"
    );
    let line = String::from_utf8(entry.line.clone()).unwrap() + "\n";
    assert_eq!(write(ExportFormat::JsonLines), line);
}

#[test]
fn verification_names_the_first_broken_line() {
    let lines =
        |change: fn(&mut Vec<String>)| move |path: &Path, chain| rewrite(path, chain, change);
    check("nothing", |_, _| (), None);
    check(
        "a changed byte",
        lines(|lines| lines[2] = lines[2].replace("github", "gitlab")),
        Some(&(2, 3, LineFault::Hash)),
    );
    check(
        "a line gone",
        lines(|lines| drop(lines.remove(1))),
        Some(&(2, 2, LineFault::Seq { expected: 6 })),
    );
    check(
        "a line twice",
        lines(|lines| lines.insert(1, lines[1].clone())),
        Some(&(2, 3, LineFault::Seq { expected: 7 })),
    );
    check(
        "lines exchanged",
        lines(|lines| lines.swap(1, 2)),
        Some(&(2, 2, LineFault::Seq { expected: 6 })),
    );
    check(
        "no line",
        lines(|lines| lines[1] = "{}".to_owned()),
        Some(&(2, 2, LineFault::NotALine)),
    );
    check(
        "a forged line",
        lines(|lines| lines[1] = forged(6)),
        Some(&(2, 2, LineFault::Prev)),
    );
    check(
        "the end of a segment gone",
        lines(|lines| drop(lines.pop())),
        Some(&(3, 1, LineFault::Seq { expected: 8 })),
    );
}

#[test]
fn verification_names_broken_segments() {
    let gone =
        |number| move |path: &Path, chain| fs::remove_file(segment(path, chain, number)).unwrap();
    check(
        "half a line in a segment that is over",
        |path, chain| {
            let segment = segment(path, chain, 2);
            let text = fs::read(&segment).unwrap();
            fs::write(&segment, &text[..text.len() - 1]).unwrap();
        },
        Some(&(2, 4, LineFault::Torn)),
    );
    check(
        "a segment gone",
        gone(2),
        Some(&(3, 1, LineFault::MissingSegment { expected: 2 })),
    );
    check(
        "the first segment gone",
        gone(1),
        Some(&(2, 1, LineFault::UnprovenRemoval { last: 1 })),
    );
    check(
        "a segment under another's name",
        |path, chain| {
            fs::rename(segment(path, chain, 3), segment(path, chain, 4)).unwrap();
            fs::rename(segment(path, chain, 2), segment(path, chain, 3)).unwrap();
            fs::remove_file(segment(path, chain, 1)).unwrap();
        },
        Some(&(3, 1, LineFault::WrongSegmentName)),
    );
    check(
        "half a line after the end",
        |path, chain| append(&segment(path, chain, 3), "{"),
        Some(&(3, 5, LineFault::Torn)),
    );
    check(
        "a line after the end",
        |path, chain| append(&segment(path, chain, 3), &(forged(12) + "\n")),
        Some(&(3, 5, LineFault::AfterEnd)),
    );
}

/// Does something to an ended chain of three segments with four lines each, the first and the last
/// included.
fn check(name: &str, harm: impl Fn(&Path, ChainId), expected: Option<&(u32, u64, LineFault)>) {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let chain = log.chain().unwrap();
    for n in 0..3 {
        if n > 0 {
            next_day(&log, n);
        }
        for _ in n.min(1)..3 - n / 2 {
            put(&log, 0, |_| ());
        }
    }
    log.close().unwrap();
    harm(place.path(), chain);
    let report = verify(place.path()).unwrap();
    let fault = report.chains[0].fault.clone();
    assert_eq!(report.is_valid(), expected.is_none(), "{name}");
    let found = fault.map(|at| (at.segment, at.line, at.fault));
    assert_eq!(found.as_ref(), expected, "{name}");
}

#[test]
fn verification_says_how_far_a_chain_goes() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    put(&log, 0, |_| ());
    let report = verify(place.path()).unwrap().chains.remove(0);
    assert_eq!((report.lines, report.begins_at, report.ends_at), (2, 1, 2));
    assert_eq!(report.last, Some(second(0)));
    assert!(report.first.unwrap() > at("2026-01-01T00:00:00Z"));
    assert!(!report.ended);
    let last = entries(place.path(), log.chain().unwrap()).pop().unwrap();
    let last = String::from_utf8(last.line).unwrap();
    assert!(last.ends_with(&format!("\"hash\":\"{}\"}}", report.hash)));
}

#[test]
fn what_is_retired_is_vouched_for() {
    let place = TempDir::new().unwrap();
    let past = open_log(place.path(), config()).unwrap();
    let living = open_log(place.path(), config()).unwrap();
    for log in [&past, &living] {
        put(log, 0, |_| ());
        next_day(log, 0);
        put(log, 0, |_| ());
        next_day(log, 1);
    }
    past.close().unwrap();
    let keep = config::Audit {
        retention: Some(Duration::from_secs(3600)),
        ..config()
    };
    let ours = open_log(place.path(), keep).unwrap();
    assert_eq!(
        ours.retire(clock::now()).unwrap(),
        [],
        "everything is young"
    );
    let later = clock::now() + SignedDuration::from_hours(2);
    let retired = ours.retire(later).unwrap();
    let of = |log: &AuditLog| -> Vec<u32> {
        let of = retired.iter().filter(|it| Some(it.chain) == log.chain());
        of.map(|it| it.segment).collect()
    };
    assert_eq!(of(&past), [1, 2, 3], "it has ended");
    assert_eq!(of(&living), [1, 2], "its last is being written");
    assert!(of(&ours).is_empty());
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains.len(), 2);
    assert_eq!(report.chains[0].begins_at, retired[4].last_seq + 1);
    put(&living, 0, |_| ());
    assert!(verify(place.path()).unwrap().is_valid());
    assert_eq!(
        Query::new(place.path(), RecordFilter::default())
            .unwrap()
            .count(),
        1
    );

    let young = open_log(place.path(), keep).unwrap();
    ours.close().unwrap();
    let retired = young.retire(later).unwrap();
    assert_eq!(retired.len(), 1, "the chain that vouched");
    let report = verify(place.path()).unwrap();
    assert!(
        report.is_valid(),
        "what is needed was taken over: {report:?}"
    );
    drop(young);
    recover(place.path()).unwrap().remove(0).unwrap();
    let young = *chains(place.path()).unwrap().last().unwrap();
    fs::remove_file(segment(place.path(), young, 1)).unwrap();
    let fault = verify(place.path()).unwrap().chains[0].fault.clone();
    assert!(matches!(
        fault.unwrap().fault,
        LineFault::UnprovenRemoval { .. }
    ));
}

/// What is lost keeps nothing after it for ever, and stays a fault for as long as what says so is
/// kept.
#[test]
fn what_follows_a_lost_segment_is_retired() {
    for is_removed in [false, true] {
        let place = TempDir::new().unwrap();
        let keep = config::Audit {
            retention: Some(Duration::from_secs(3600)),
            ..config()
        };
        let ours = open_log(place.path(), keep).unwrap();
        let chain = ours.chain().unwrap();
        put(&ours, 0, |_| ());
        next_day(&ours, 0);
        put(&ours, 0, |_| ());
        let path = place.path().join(format!("{chain}.2.jsonl"));
        if is_removed {
            fs::remove_file(path).unwrap();
        } else {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(700)
                .unwrap();
        }
        for day in 1..4 {
            next_day(&ours, day);
        }
        assert!(!verify(place.path()).unwrap().is_valid());
        let later = clock::now() + SignedDuration::from_hours(2);
        let retired: Vec<u32> = ours
            .retire(later)
            .unwrap()
            .iter()
            .map(|it| it.segment)
            .collect();
        let left = usize::from(is_removed);
        assert_eq!(
            retired,
            [&[1, 2][..2 - left], &[3, 4, 5]].concat(),
            "{is_removed}"
        );
        assert!(verify(place.path()).unwrap().is_valid());
    }
}

#[test]
fn a_closed_log_vouches_for_nothing_and_removes_nothing() {
    let place = TempDir::new().unwrap();
    let past = open_log(place.path(), config()).unwrap();
    put(&past, 0, |_| ());
    past.close().unwrap();
    let keep = config::Audit {
        retention: Some(Duration::from_secs(3600)),
        ..config()
    };
    let ours = open_log(place.path(), keep).unwrap();
    ours.close().unwrap();
    let later = clock::now() + SignedDuration::from_hours(2);
    let refused = ours.retire(later).unwrap_err();
    assert!(matches!(refused, AuditError::Closed), "{refused}");
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains.len(), 2);
}

#[test]
fn without_retention_everything_is_kept() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    put(&log, 0, |_| ());
    next_day(&log, 0);
    let later = clock::now() + SignedDuration::from_hours(100_000);
    assert_eq!(log.retire(later).unwrap(), []);
}

#[test]
fn events_and_opened_calls_are_read_back() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let event = AuditEvent {
        ts: second(0),
        event: EventKind::KeyRevoked,
        subject: "key 1".into(),
        actor: Some("cli".into()),
        detail: Some("lost".into()),
        changes: ChangedValues::of_key("state", "live", "revoked"),
    };
    let call = opened(invocation());
    assert!(log.record_event(&event).is_written());
    assert!(log.record_opened(&call).is_written());
    let entries = entries(place.path(), log.chain().unwrap());
    assert_eq!(entries[1].event().unwrap(), Some(event));
    assert_eq!(entries[1].record().unwrap().map(|it| it.id), None);
    let read = entries[2].opened().unwrap().unwrap();
    assert_eq!((read.id, read.accounts), (call.id, call.accounts));
}

/// So many seconds into 2026.
fn second(n: usize) -> Timestamp {
    at("2026-01-01T00:00:00Z") + SignedDuration::from_secs(n.try_into().unwrap())
}

/// So many seconds into 2098, when every chain of a test has begun: nothing is written before.
fn later(n: usize) -> Timestamp {
    second(n) + SignedDuration::from_hours(24 * 365 * 72)
}

/// Writes a record of that second.
fn put(log: &AuditLog, n: usize, change: impl FnOnce(&mut Record<'static>)) -> InvocationId {
    let id = invocation();
    let mut record = Record {
        ts: second(n),
        ..record(id)
    };
    change(&mut record);
    assert!(log.record(&record).is_written());
    id
}

/// Begins a new segment: that of the `n`th day of a far year.
fn next_day(log: &AuditLog, n: usize) {
    let days = SignedDuration::from_hours(24 * i64::try_from(n).unwrap());
    let event = AuditEvent {
        ts: at("2099-01-01T00:00:00Z") + days,
        event: EventKind::ServerConnected,
        subject: "github".into(),
        actor: None,
        detail: None,
        changes: ChangedValues::default(),
    };
    assert!(log.record_event(&event).is_written());
}

fn entries(directory: &Path, chain: ChainId) -> Vec<LogEntry> {
    let mut reader = ChainReader::new(directory, chain).unwrap();
    std::iter::from_fn(|| reader.read().unwrap()).collect()
}

fn segment(directory: &Path, chain: ChainId, number: u32) -> PathBuf {
    directory.join(format!("{chain}.{number}.jsonl"))
}

/// Changes the lines of the second segment.
fn rewrite(directory: &Path, chain: ChainId, change: fn(&mut Vec<String>)) {
    let segment = segment(directory, chain, 2);
    let text = fs::read_to_string(&segment).unwrap();
    let mut lines = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(&segment, lines.join("\n") + "\n").unwrap();
}

fn append(path: &Path, text: &str) {
    let mut all = fs::read_to_string(path).unwrap();
    all.push_str(text);
    fs::write(path, all).unwrap();
}

/// A line with a number and a true hash, which follows nothing.
fn forged(seq: u64) -> String {
    let mut line = Vec::new();
    let before = crate::audit::hash_chain::ChainPosition {
        seq: seq - 1,
        ..Default::default()
    };
    crate::audit::hash_chain::append_sealed(&mut line, b"{\"kind\":\"event\"", before, None);
    String::from_utf8(line).unwrap().trim_end().to_owned()
}
