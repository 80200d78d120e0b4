//! Writing: lines, segments, durability, and disks that are full or lie.

use std::{
    borrow::Cow,
    fs,
    sync::{Arc, atomic::Ordering},
    thread,
};

use serde_json::{Value, json, value::RawValue};
use tempfile::TempDir;

use crate::{
    audit::{
        ARGUMENTS_BYTES_MAX, ArgumentsDigest, AuditError, AuditEvent, AuditLog, CHANGES_BYTES_MAX,
        ChainReader, ChangedValues, EventKind, LineType, Opened, PENDING_BYTES_MAX, Record,
        RecordedDecision, RefusalSummary, SEGMENT_BYTES_MAX, TEXT_BYTES_MAX, chains,
        testing::{
            self, ACCOUNT, Faults, at, bounded, config, event, faulty_log, invocation, lines,
            open_log, opened, record, recover, refusal, total, verify,
        },
    },
    config::{self, Durability},
    money::Micros,
    names::{AgentId, PeerAddress},
};

#[test]
fn a_call_has_two_lines_and_its_record_every_field() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let id = "inv_01900000-0000-7000-8000-000000000000";
    let id = crate::audit::record::record_line::parse_invocation_id(id).unwrap();
    let ts = at("2026-01-02T03:04:05.5Z");
    assert!(log.record_opened(&Opened { ts, ..opened(id) }).is_written());
    let everything = Record {
        ts,
        client: Some("claude \"code\"\n".into()),
        session_id: Some("s".into()),
        client_revision: Some("2025-11-25".into()),
        server_revision: Some("2026-07-28".into()),
        arguments_digest: Some(ArgumentsDigest::of(b"{}")),
        arguments: Some(Cow::Owned(raw("{\n \"a\": [1,\r\n 2]}"))),
        result: Some(Cow::Owned(raw("{\"b\":\n1}"))),
        code: Some("PII_DETECTED".into()),
        rule: Some("scan/credit_card".into()),
        trace_id: Some("t".into()),
        parent_id: Some("p".into()),
        ..record(id)
    };
    assert!(log.record(&everything).is_written());
    let chain = log.chain().unwrap();
    let lines = lines(place.path(), chain);
    let unsealed: Vec<&str> = lines
        .iter()
        .map(|line| line.split(",\"seq\"").next().unwrap())
        .collect();
    insta::assert_snapshot!(unsealed[1], @r#"{"kind":"opened","id":"inv_01900000-0000-7000-8000-000000000000","ts":"2026-01-02T03:04:05.500000Z","agent_id":"agent_00000000-0000-0000-0000-000000000000","agent_name":"anonymous","team":"science","server":"github","method":"tools/call","tool":"create_issue","exposed":"mcp_github_create_issue","price_micros":15000,"accounts":["agent:total"]"#);
    insta::assert_snapshot!(unsealed[2], @r#"{"kind":"call","id":"inv_01900000-0000-7000-8000-000000000000","ts":"2026-01-02T03:04:05.500000Z","agent_id":"agent_00000000-0000-0000-0000-000000000000","agent_name":"anonymous","team":"science","workspace":"science","client":"claude \"code\"\n","session_id":"s","client_revision":"2025-11-25","server":"github","server_id":"srv_3246e891-92eb-5cbe-81f9-b39ac5a9d41d","server_revision":"2026-07-28","method":"tools/call","tool":"create_issue","exposed":"mcp_github_create_issue","arguments_digest":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","arguments":{  "a": [1,   2]},"result":{"b": 1},"decision":"allowed","code":"PII_DETECTED","rule":"scan/credit_card","price_micros":15000,"accounts":["agent:total"],"execution_time_ms":12.345,"bytes_in":17,"bytes_out":4711,"trace_id":"t","parent_id":"p""#);
    // printf '{}' | sha256sum
    let digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    let read: Value = serde_json::from_str(&lines[2]).unwrap();
    assert_eq!(read["arguments_digest"], digest);
    assert_eq!(read["seq"], 3);
    let reread: Record<'_> = serde_json::from_str(&lines[2]).unwrap();
    assert_eq!(reread.execution_time, everything.execution_time);
    assert_eq!((reread.id, reread.ts), (id, ts));
    assert_eq!(reread.client, everything.client);
    assert_eq!(reread.accounts, everything.accounts);
}

#[test]
fn what_strangers_choose_cannot_swell_a_line() {
    for (length, kept) in [
        (TEXT_BYTES_MAX, "é".repeat(TEXT_BYTES_MAX / 2)),
        (TEXT_BYTES_MAX + 2, "é".repeat(TEXT_BYTES_MAX / 2) + "…"),
    ] {
        let read = read_back(|record| record.client = Some("é".repeat(length / 2).into()));
        assert_eq!(read["client"], kept, "{length}");
    }
    for (length, left_out) in [
        (ARGUMENTS_BYTES_MAX, false),
        (ARGUMENTS_BYTES_MAX + 1, true),
    ] {
        let read = read_back(|record| record.arguments = refusal(length).arguments);
        assert_eq!(read["arguments"].is_null(), left_out, "{length}");
        let bytes = left_out.then_some(length);
        assert_eq!(read["arguments_bytes"], json!(bytes), "{length}");
    }
}

#[test]
fn changes_that_are_too_long_are_left_out() {
    let around = r#"[{"key":"a","new":""}]"#.len();
    for (length, left_out) in [(CHANGES_BYTES_MAX, false), (CHANGES_BYTES_MAX + 1, true)] {
        let place = TempDir::new().unwrap();
        let log = open_log(place.path(), config()).unwrap();
        let changed = AuditEvent {
            changes: ChangedValues::of_key("a", Value::Null, "x".repeat(length - around)),
            ..event("2026-01-01T00:00:00Z")
        };
        assert!(log.record_event(&changed).is_written());
        let lines = lines(place.path(), log.chain().unwrap());
        let read: Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!(read["changes"].is_null(), left_out, "{length}");
        let bytes = left_out.then_some(length);
        assert_eq!(read["changes_bytes"], json!(bytes), "{length}");
    }
}

#[test]
fn arguments_and_results_are_recorded_only_when_asked_for() {
    let place = TempDir::new().unwrap();
    let without = config::Audit {
        arguments: false,
        results: false,
        ..config()
    };
    let log = open_log(place.path(), without).unwrap();
    assert!(!log.records_arguments());
    assert_eq!(log.result_limit(), None);
    let record = Record {
        result: refusal(10).arguments,
        ..refusal(10)
    };
    assert!(log.record(&record).is_written());
    let lines = lines(place.path(), log.chain().unwrap());
    assert!(!lines[1].contains("arguments"), "{}", lines[1]);
    assert!(!lines[1].contains("result"), "{}", lines[1]);
}

#[test]
fn an_audit_that_is_off_leaves_no_trace() {
    let place = TempDir::new().unwrap();
    let directory = place.path().join("audit");
    let off = config::Audit {
        enabled: false,
        ..config()
    };
    let log = open_log(&directory, off).unwrap();
    assert!(log.record_opened(&opened(invocation())).is_written());
    assert!(log.record(&record(invocation())).is_written());
    log.close().unwrap();
    assert_eq!(log.chain(), None);
    assert!(!directory.exists());
}

#[test]
fn a_closed_chain_has_ended_and_takes_nothing_more() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let (done, abandoned) = (invocation(), invocation());
    assert!(log.record_opened(&opened(done)).is_written());
    assert!(log.record_opened(&opened(abandoned)).is_written());
    assert!(log.record(&record(done)).is_written());
    log.close().unwrap();
    log.close().unwrap();
    assert!(matches!(
        bounded(log.record_opened(&opened(invocation())).durable()),
        Err(AuditError::Closed)
    ));
    assert!(!log.record(&record(invocation())).is_written());

    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert!(report.chains[0].ended);
    let chain = log.chain().unwrap();
    let total = total(place.path(), chain).unwrap().unwrap();
    assert!(total.ended);
    assert_eq!(total.calls, 2, "the abandoned one was recorded at the end");
    assert_eq!(total.charged[ACCOUNT], Micros::new(30_000));
    assert!(recover(place.path()).unwrap().is_empty());
    let files = fs::read_dir(place.path()).unwrap().count();
    assert_eq!(files, 1, "the lock is gone");
}

#[test]
fn threads_share_one_chain() {
    let place = TempDir::new().unwrap();
    let log = Arc::new(open_log(place.path(), config()).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let log = log.clone();
            thread::spawn(move || {
                for _ in 0..50 {
                    let id = invocation();
                    assert!(log.record_opened(&opened(id)).is_written());
                    assert!(log.record(&record(id)).is_written());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    log.close().unwrap();
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains[0].lines, 2 + 400);
}

#[test]
fn a_new_day_and_a_full_segment_begin_another() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let (early, open) = (invocation(), invocation());
    for id in [early, open] {
        assert!(log.record_opened(&opened(id)).is_written());
    }
    assert!(log.record(&record(early)).is_written());
    for ts in [
        "2099-01-01T23:59:59Z",
        "2099-01-02T00:00:00Z",
        "2099-01-01T23:59:59Z",
    ] {
        assert!(log.record_event(&event(ts)).is_written());
    }
    let chain = log.chain().unwrap();
    let third: Value = serde_json::from_str(&first_line(&place, &log, 3)).unwrap();
    assert_eq!(third["calls"], 1);
    assert_eq!(third["charged"][ACCOUNT], 15_000);
    assert_eq!(third["open"][0]["id"], open.to_string());

    let bulk = ARGUMENTS_BYTES_MAX;
    for _ in 0..SEGMENT_BYTES_MAX / bulk as u64 {
        assert!(log.record(&refusal(bulk)).is_written());
    }
    let third = place.path().join(format!("{chain}.3.jsonl"));
    let length = fs::metadata(third).unwrap().len();
    assert!(length <= SEGMENT_BYTES_MAX && length > SEGMENT_BYTES_MAX - 2 * bulk as u64);
    assert!(log.record(&record(open)).is_written());
    log.close().unwrap();
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains[0].segments, 4);
    let total = total(place.path(), chain).unwrap().unwrap();
    assert_eq!(total.charged[ACCOUNT], Micros::new(30_000));
}

#[test]
fn wherever_the_disk_is_full_the_chain_stays_whole_and_nothing_is_lost() {
    for room in (0..1200).step_by(61) {
        check_full(room, false);
        check_full(room, true);
    }
}

/// `room` bytes fit, then none, then everything again.
fn check_full(room: u64, cut_fails: bool) {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    let (first, second) = (invocation(), invocation());
    for id in [first, second] {
        assert!(log.record_opened(&opened(id)).is_written());
    }
    faults.cut_fails.store(cut_fails, Ordering::SeqCst);
    faults.leave_room(room);
    let kept = [first, second].map(|id| log.record(&record(id)).is_written());
    let refused = bounded(log.record_opened(&opened(invocation())).durable()).err();
    if kept == [true, true] {
        assert!(refused.is_none_or(|it| matches!(it, AuditError::Write { .. })));
    } else {
        let lines = kept.iter().filter(|kept| !**kept).count();
        assert!(matches!(refused, Some(AuditError::Pending { lines: n, .. }) if n == lines));
        assert!(log.ready().is_err());
    }
    faults.cut_fails.store(false, Ordering::SeqCst);
    faults.leave_room(u64::MAX);
    assert!(
        log.record_event(&event("2026-01-01T00:00:00Z"))
            .is_written()
    );
    log.ready().unwrap();
    log.close().unwrap();

    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "room {room}: {report:?}");
    let lines = lines(place.path(), log.chain().unwrap());
    let order: Vec<Option<usize>> = [first, second]
        .iter()
        .map(|id| {
            let of = |line: &String| line.contains(&id.to_string()) && line.contains("\"allowed\"");
            assert_eq!(
                lines.iter().filter(|line| of(line)).count(),
                1,
                "room {room}"
            );
            lines.iter().position(of)
        })
        .collect();
    let event = lines
        .iter()
        .position(|line| line.contains("server_connected"));
    assert!(order[0] < order[1] && order[1] < event, "room {room}");
}

#[test]
fn what_waits_is_written_without_being_asked() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    faults.leave_room(0);
    assert!(!log.record(&record(invocation())).is_written());
    assert!(log.ready().is_err());
    let mut syncs = faults.syncs.subscribe();
    faults.leave_room(u64::MAX);
    let written = syncs.wait_for(|_| log.ready().is_ok());
    drop(bounded(written).unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_that_is_full_refuses_calls() {
    let place = TempDir::new().unwrap();
    let log = testing::full_log(place.path());
    let refused = bounded(log.record_opened(&opened(invocation())).durable()).unwrap_err();
    insta::assert_snapshot!(refused, @"cannot write the audit log: No space left on device (os error 28)");
    let kept = log.record(&record(invocation()));
    let waits = bounded(kept.durable()).unwrap_err();
    insta::assert_snapshot!(waits, @"cannot write the audit log: No space left on device (os error 28); pending lines: 1");
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error() {
    let place = TempDir::new().unwrap();
    let file = place.path().join("audit");
    fs::write(&file, "").unwrap();
    for directory in [file.clone(), file.join("below")] {
        let refused = open_log(&directory, config()).unwrap_err();
        assert!(matches!(refused, AuditError::Directory { .. }), "{refused}");
        assert!(verify(&directory).is_err());
    }
    assert_eq!(chains(&place.path().join("nowhere")).unwrap(), []);
}

#[test]
fn a_log_without_room_for_its_first_line_is_not_opened() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    faults.leave_room(100);
    let refused = faulty_log(place.path(), config(), &faults).unwrap_err();
    assert!(matches!(refused, AuditError::Write { .. }), "{refused}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn when_too_much_waits_refusals_are_counted_but_opened_calls_are_kept() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    let id = invocation();
    assert!(log.record_opened(&opened(id)).is_written());
    faults.leave_room(0);
    let mut waiting = 0;
    while log.lost_count() == 0 {
        assert!(waiting * ARGUMENTS_BYTES_MAX <= PENDING_BYTES_MAX);
        assert!(!log.record(&refusal(ARGUMENTS_BYTES_MAX)).is_written());
        waiting += 1;
    }
    assert!((waiting + 1) * ARGUMENTS_BYTES_MAX > PENDING_BYTES_MAX);
    assert!(!log.record(&record(id)).is_written());
    assert_eq!(log.lost_count(), 1);
    faults.leave_room(u64::MAX);
    assert!(log.record(&refusal(10)).is_written());
    assert_eq!(log.lost_count(), 0);
    log.close().unwrap();

    assert!(verify(place.path()).unwrap().is_valid());
    let lines = lines(place.path(), log.chain().unwrap());
    let has = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        has("\"refused\""),
        waiting,
        "one of them came when there was room"
    );
    assert_eq!(has(&id.to_string()), 2);
    assert_eq!(
        has("\"event\":\"lines_lost\",\"subject\":\"audit\",\"detail\":\"1 lines\""),
        1
    );
}

/// Whoever calls while nothing can be written fills no memory: such a call was not opened.
#[test]
fn records_of_calls_that_were_not_opened_wait_while_there_is_room() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    faults.leave_room(0);
    let mut waiting = 0;
    while log.lost_count() == 0 {
        assert!(waiting * ARGUMENTS_BYTES_MAX <= PENDING_BYTES_MAX);
        let refused = refusal(ARGUMENTS_BYTES_MAX);
        assert!(!log.record_opened(&opened(refused.id)).is_written());
        assert!(!log.record(&refused).is_written());
        waiting += 1;
    }
    faults.leave_room(u64::MAX);
    log.close().unwrap();
    assert!(verify(place.path()).unwrap().is_valid());
}

#[test]
fn a_segment_that_cannot_be_begun_lets_the_old_one_go_on() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    assert!(log.record(&record(invocation())).is_written());
    let chain = log.chain().unwrap();
    let in_the_way = place.path().join(format!("{chain}.2.jsonl"));
    fs::create_dir(&in_the_way).unwrap();
    assert!(
        log.record_event(&event("2099-01-01T00:00:00Z"))
            .is_written()
    );
    fs::remove_dir(&in_the_way).unwrap();
    assert!(
        log.record_event(&event("2099-01-01T00:00:00Z"))
            .is_written()
    );
    log.close().unwrap();
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains[0].segments, 2);
}

#[test]
fn written_lines_are_synced_although_nobody_waits() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    let mut syncs = faults.syncs.subscribe();
    for _ in 0..3 {
        let before = *syncs.borrow_and_update();
        assert!(log.record(&record(invocation())).is_written());
        bounded(async {
            syncs
                .wait_for(|syncs| *syncs > before)
                .await
                .unwrap()
                .to_owned()
        });
    }
}

#[test]
fn durability_disk_waits_for_the_disk() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let disk = config::Audit {
        durability: Durability::Disk,
        ..config()
    };
    let log = faulty_log(place.path(), disk, &faults).unwrap();
    let ids: Vec<_> = (0..20).map(|_| invocation()).collect();
    let before = *faults.syncs.borrow();
    let kept: Vec<_> = ids
        .iter()
        .map(|id| log.record_opened(&opened(*id)))
        .collect();
    for kept in kept {
        bounded(kept.durable()).unwrap();
    }
    assert!(log.is_synced());
    let syncs = *faults.syncs.borrow() - before;
    assert!(syncs <= 3, "{syncs} for lines that were written together");

    faults.sync_fails.store(true, Ordering::SeqCst);
    let kept = log.record(&record(ids[0]));
    let failed = bounded(kept.durable()).unwrap_err();
    assert!(matches!(failed, AuditError::Sync { .. }), "{failed}");
    faults.sync_fails.store(false, Ordering::SeqCst);
    let refused = bounded(log.record_opened(&opened(invocation())).durable()).unwrap_err();
    assert!(
        matches!(refused, AuditError::Sync { .. }),
        "what such a disk holds is uncertain for ever"
    );
    assert!(log.close().is_err());
}

#[test]
fn a_sum_of_refusals_is_an_event_with_figures() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let refusals = RefusalSummary {
        since: at("2026-01-02T03:04:05Z"),
        until: at("2026-01-02T03:05:04.5Z"),
        agent_id: AgentId::ANONYMOUS,
        agent_name: "nobody",
        address: Some(PeerAddress::User(1000)),
        code: "RATE_LIMITED",
        count: 4711,
    };
    assert!(log.record_refusals(&refusals).is_written());
    let mut reader = ChainReader::new(place.path(), log.chain().unwrap()).unwrap();
    reader.read().unwrap();
    let entry = reader.read().unwrap().unwrap();
    let event = entry.event().unwrap().unwrap();
    assert_eq!(event.event, EventKind::RefusalsSummed);
    assert_eq!(event.subject, "nobody");
    insta::assert_snapshot!(event.detail.unwrap(), @"4711 calls from unix:uid=1000, RATE_LIMITED, since 2026-01-02T03:04:05Z");
    let line: Value = serde_json::from_slice(&entry.line).unwrap();
    assert_eq!(line["count"], 4711);
    assert_eq!(line["code"], "RATE_LIMITED");
    assert_eq!(line["address"], "unix:uid=1000");
    assert_eq!(line["agent_id"], AgentId::ANONYMOUS.to_string());
}

#[test]
fn every_kind_of_event_and_decision_is_read_as_it_is_written() {
    for decision in RecordedDecision::ALL {
        assert_eq!(decision.as_str().parse(), Ok(decision));
        let text = format!("\"{decision}\"");
        assert_eq!(
            serde_json::from_str::<RecordedDecision>(&text).unwrap(),
            decision
        );
    }
    assert!("Allowed".parse::<RecordedDecision>().is_err());
    for kind in [
        EventKind::AgentChanged,
        EventKind::AuthenticationRefused,
        EventKind::BudgetChanged,
        EventKind::ClientAsked,
        EventKind::ClientConnected,
        EventKind::ClientDisconnected,
        EventKind::ConfigChanged,
        EventKind::ConfigRefused,
        EventKind::GrantCreated,
        EventKind::GrantRevoked,
        EventKind::KeyCreated,
        EventKind::KeyRevoked,
        EventKind::LinesLost,
        EventKind::LogShortened,
        EventKind::DashboardLinkMade,
        EventKind::LoginCodeCreated,
        EventKind::RefusalsSummed,
        EventKind::RowRefused,
        EventKind::SegmentLost,
        EventKind::ServerConnected,
        EventKind::ServerDisconnected,
        EventKind::ServerSignInRefused,
        EventKind::ServerSignedIn,
        EventKind::ServerSignedOut,
        EventKind::SignedIn,
        EventKind::TokensIssued,
        EventKind::ViewChanged,
        EventKind::ViewCreated,
        EventKind::ViewEnded,
    ] {
        let text = format!("\"{}\"", kind.as_str());
        assert_eq!(serde_json::from_str::<EventKind>(&text).unwrap(), kind);
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

/// A record as it stands in the log.
fn read_back(change: impl FnOnce(&mut Record<'static>)) -> Value {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let mut record = record(invocation());
    change(&mut record);
    assert!(log.record(&record).is_written());
    let lines = lines(place.path(), log.chain().unwrap());
    assert_eq!(LineType::of(lines[1].as_bytes()), Some(LineType::Call));
    serde_json::from_str(&lines[1]).unwrap()
}

fn first_line(place: &TempDir, log: &AuditLog, segment: u32) -> String {
    let chain = log.chain().unwrap();
    let path = place.path().join(format!("{chain}.{segment}.jsonl"));
    let text = fs::read_to_string(path).unwrap();
    text.lines().next().unwrap().to_owned()
}
