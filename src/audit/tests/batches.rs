//! Lines that are written together, and disks that take only some of them.

use std::sync::{Arc, atomic::Ordering};

use futures_util::{FutureExt as _, future::join};
use tempfile::TempDir;
use tokio::task::yield_now;

use crate::{
    audit::{
        ARGUMENTS_BYTES_MAX, AuditError, AuditLog, ChainReader, Durable, Opened, QUEUE_BYTES_MAX,
        testing::{
            Faults, bounded, config, event, faulty_log, invocation, lines, open_log, opened,
            record, refusal, until, verify, while_stalled,
        },
        write::writer::WRITE_BYTES_MAX,
    },
    lock::lock,
};

/// Every line that is put while the disk is busy goes with the next write.
#[test]
fn lines_of_one_moment_share_a_write() {
    let (place, faults, log) = faulty();
    let ids = [invocation(), invocation(), invocation()];
    let put = ids.map(opened);
    let before = faults.writes();
    let kept = while_stalled(place.path(), &log, &faults, || {
        assert!(!log.is_synced());
        put.each_ref().map(|opened| log.record_opened(opened))
    });
    for kept in kept {
        bounded(kept.durable()).unwrap();
        assert_eq!(faults.writes(), before + 2);
    }
    let records = ids.map(record);
    let kept = while_stalled(place.path(), &log, &faults, || {
        records.each_ref().map(|record| log.record(record))
    });
    drop(kept);
    until(|| faults.writes() == before + 4);
    log.close().unwrap();
    assert_eq!(
        kinds(&place, &log),
        "begin event opened opened opened event call call call end"
    );
    assert!(verify(place.path()).unwrap().is_valid());
}

#[test]
fn a_line_that_nobody_waits_for_is_written() {
    let (place, _, log) = faulty();
    drop(log.record_event(&event("2026-01-01T00:00:00Z")));
    until(|| kinds(&place, &log) == "begin event");
    // Somebody stops waiting, most likely before the write.
    let mut given_up = Box::pin(log.record(&record(invocation())).durable());
    drop(given_up.as_mut().now_or_never());
    drop(given_up);
    until(|| kinds(&place, &log) == "begin event call");
}

/// Whether the writer lets lines gather or waits to be woken, each line is written.
#[test]
fn lines_are_written_while_many_calls_are_open() {
    let (place, _, log) = faulty();
    let ids: Vec<_> = (0..8).map(|_| invocation()).collect();
    for (count, id) in ids.iter().enumerate() {
        bounded(log.record_opened(&opened(*id)).durable()).unwrap();
        for pause in 0..20 {
            std::thread::sleep(std::time::Duration::from_micros(pause * 25));
            let event = log.record_event(&event("2026-01-01T00:00:00Z"));
            bounded(event.durable()).unwrap();
        }
        assert_eq!(kinds(&place, &log).matches("opened").count(), count + 1);
    }
    for id in ids {
        bounded(log.record(&record(id)).durable()).unwrap();
    }
    log.close().unwrap();
    assert!(verify(place.path()).unwrap().is_valid());
}

/// However long the disk takes, nothing but who waits for it is held up.
#[test]
fn a_slow_disk_holds_up_no_worker() {
    let (place, faults, log) = faulty();
    let held = lock(&faults.writes);
    let call = async { log.record_opened(&opened(invocation())).durable().await };
    let others = async {
        for _ in 0..100 {
            yield_now().await;
            log.ready().unwrap();
            drop(log.record_event(&event("2026-01-01T00:00:00Z")));
        }
        drop(held);
    };
    let (kept, ()) = bounded(join(call, others));
    kept.unwrap();
    log.close().unwrap();
    let events = " event".repeat(100);
    let kinds = kinds(&place, &log);
    assert_eq!(
        kinds.replacen(" opened", "", 1),
        format!("begin{events} call end")
    );
}

/// With the disk at a standstill so much is queued; then calls are refused, and records of those that
/// left are still taken.
#[test]
fn a_queue_that_is_full_refuses_calls_but_takes_records_of_opened_ones() {
    let (place, faults, log) = faulty();
    let (id, late) = (invocation(), invocation());
    assert!(log.record_opened(&opened(id)).is_written());
    let kept = while_stalled(place.path(), &log, &faults, || {
        let mut taken = Vec::new();
        let (large, small) = (refusal(ARGUMENTS_BYTES_MAX), event("2026-01-01T00:00:00Z"));
        while log.lost_count() == 0 {
            assert!(taken.len() * ARGUMENTS_BYTES_MAX <= QUEUE_BYTES_MAX);
            taken.push(log.record(&large));
        }
        assert!((taken.len() + 1) * ARGUMENTS_BYTES_MAX > QUEUE_BYTES_MAX);
        // Where no event has room a call has none either: its line is longer.
        while log.lost_count() < 2 {
            taken.push(log.record_event(&small));
        }
        let refused = bounded(log.record_opened(&opened(late)).durable()).unwrap_err();
        assert!(matches!(refused, AuditError::Pending { .. }), "{refused}");
        (log.record(&record(id)), taken)
    });
    let (kept, taken) = kept;
    assert!(kept.is_written());
    drop(taken);
    assert_eq!(log.lost_count(), 0);
    log.close().unwrap();
    assert!(verify(place.path()).unwrap().is_valid());
    let lines = lines(place.path(), log.chain().unwrap());
    let has = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(has(&id.to_string()), 2);
    assert_eq!(has(&late.to_string()), 0);
    assert_eq!(has("\"detail\":\"2 lines\""), 1);
}

#[test]
fn a_batch_is_no_longer_than_a_write_may_be() {
    let (place, faults, log) = faulty();
    let third = WRITE_BYTES_MAX / 3;
    for (count, writes) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
        let before = faults.writes();
        let refusals: Vec<_> = (0..count).map(|_| refusal(third)).collect();
        let kept: Vec<_> = while_stalled(place.path(), &log, &faults, || {
            refusals.iter().map(|refusal| log.record(refusal)).collect()
        });
        assert!(kept.into_iter().all(Durable::is_written));
        assert_eq!(faults.writes(), before + 1 + writes, "{count} lines");
    }
    assert!(
        lock(&faults.writes)
            .iter()
            .all(|bytes| *bytes <= WRITE_BYTES_MAX + 2048)
    );
    let (long, short) = (refusal(WRITE_BYTES_MAX), refusal(10));
    let before = faults.writes();
    let kept = while_stalled(place.path(), &log, &faults, || {
        [log.record(&long), log.record(&short)]
    });
    assert!(
        kept.into_iter().all(Durable::is_written),
        "a longer line goes alone"
    );
    assert_eq!(faults.writes(), before + 3);
    log.close().unwrap();
    assert!(verify(place.path()).unwrap().is_valid());
}

#[test]
fn a_batch_of_two_days_is_in_two_segments() {
    let (place, _, log) = faulty();
    let days = [
        "2026-01-01",
        "2099-01-01",
        "2099-01-01",
        "2099-01-02",
        "2026-01-01",
    ];
    let events = days.map(|day| event(&format!("{day}T00:00:00Z")));
    let kept: Vec<_> = events.iter().map(|event| log.record_event(event)).collect();
    assert!(kept.into_iter().all(Durable::is_written));
    log.close().unwrap();
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.chains[0].segments, 3);
    assert_eq!(
        kinds(&place, &log),
        "begin event begin event event begin event event end"
    );
}

#[test]
fn what_is_put_before_the_end_is_written_before_it() {
    let (place, _, log) = faulty();
    let id = invocation();
    let (opened, record) = (opened(id), record(id));
    let kept = [log.record_opened(&opened), log.record(&record)];
    log.close().unwrap();
    assert!(kept.into_iter().all(Durable::is_written));
    let late = bounded(log.record(&record).durable()).unwrap_err();
    assert!(matches!(late, AuditError::Closed));
    assert_eq!(kinds(&place, &log), "begin opened call end");
}

#[test]
fn wherever_the_disk_is_full_the_rest_of_a_batch_waits_or_is_refused() {
    let mut seen = [false; 5];
    for room in (0..3000).step_by(83) {
        for cut_fails in [false, true] {
            seen[check_full(room, cut_fails)] = true;
        }
    }
    assert_eq!(seen, [true; 5], "each number of lines found room");
}

/// A batch of a call that ends, one that begins, one that ends and one that is refused meets a disk
/// with so much room, which has room again later. Returns how many of the lines found room.
fn check_full(room: u64, cut_fails: bool) -> usize {
    let (place, faults, log) = faulty();
    let [first, second, new, refused] = std::array::from_fn(|_| invocation());
    for id in [first, second] {
        assert!(log.record_opened(&opened(id)).is_written());
    }
    let records = [first, second, refused].map(record);
    let kept = while_stalled(place.path(), &log, &faults, || {
        faults.cut_fails.store(cut_fails, Ordering::SeqCst);
        faults.leave_room(room);
        [
            log.record(&records[0]),
            log.record_opened(&opened(new)),
            log.record(&records[1]),
            log.record(&records[2]),
        ]
    });
    let kept = kept.map(|kept| bounded(kept.durable()));
    let fit = kept.iter().take_while(|kept| kept.is_ok()).count();
    let waiting = [3, 2, 2, 1, 0][fit];
    for (line, kept) in kept.iter().enumerate().skip(fit) {
        match kept {
            Err(AuditError::Write { .. }) => assert_eq!(line, 1, "room {room}: {kept:?}"),
            Err(AuditError::Pending { lines, .. }) => assert_eq!(*lines, waiting, "room {room}"),
            _ => panic!("room {room}, line {line}: {kept:?}"),
        }
    }
    if waiting > 0 {
        let later = bounded(log.record_opened(&opened(invocation())).durable()).unwrap_err();
        assert!(
            matches!(later, AuditError::Pending { lines, .. } if lines == waiting),
            "{later}"
        );
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
    let expected = if fit < 2 {
        "begin opened opened event call call call event end"
    } else {
        // The call that began has no record of its own; the end of the chain brings one.
        "begin opened opened event call opened call call event call end"
    };
    assert_eq!(kinds(&place, &log), expected, "room {room}");
    fit
}

#[test]
fn a_batch_of_two_days_finds_room_for_so_many_of_its_lines() {
    let mut seen = [false; 4];
    for room in (0..4000).step_by(131) {
        let (place, faults, log) = faulty();
        let today = opened(invocation());
        let tomorrow = [invocation(), invocation()].map(|id| Opened {
            ts: event("2099-01-01T00:00:00Z").ts,
            ..opened(id)
        });
        let kept = while_stalled(place.path(), &log, &faults, || {
            faults.leave_room(room);
            [&today, &tomorrow[0], &tomorrow[1]].map(|opened| log.record_opened(opened))
        });
        let kept = kept.map(|kept| bounded(kept.durable()));
        let fit = kept.iter().take_while(|kept| kept.is_ok()).count();
        for kept in &kept[fit..] {
            assert!(matches!(kept, Err(AuditError::Write { .. })), "{kept:?}");
        }
        faults.leave_room(u64::MAX);
        log.close().unwrap();
        assert!(verify(place.path()).unwrap().is_valid(), "room {room}");
        let kinds = kinds(&place, &log);
        assert_eq!(kinds.matches("opened").count(), fit, "room {room}: {kinds}");
        assert_eq!(kinds.matches("call").count(), fit, "room {room}: {kinds}");
        seen[fit] = true;
    }
    assert_eq!(seen, [true; 4], "each number of lines found room");
}

#[test]
fn what_was_seen_of_a_batch_is_not_taken_back() {
    let (place, faults, log) = faulty();
    faults.cut_fails.store(true, Ordering::SeqCst);
    faults.leave_room(1700);
    let records: Vec<_> = (0..4).map(|_| record(invocation())).collect();
    drop(records.iter().map(|it| log.record(it)).collect::<Vec<_>>());
    until(|| log.ready().is_err());
    let mut reader = ChainReader::new(place.path(), log.chain().unwrap()).unwrap();
    let mut seen = Vec::new();
    seen.extend(std::iter::from_fn(|| reader.read().ok().flatten()));
    assert!(seen.len() > 2 && seen.len() < 5, "{}", seen.len());
    faults.cut_fails.store(false, Ordering::SeqCst);
    faults.leave_room(u64::MAX);
    log.close().unwrap();
    seen.extend(std::iter::from_fn(|| reader.read().unwrap()));
    let seen: Vec<_> = seen.iter().map(|entry| entry.line.clone()).collect();
    let all = lines(place.path(), log.chain().unwrap());
    assert_eq!(seen, all.iter().map(String::as_bytes).collect::<Vec<_>>());
    assert_eq!(kinds(&place, &log), "begin call call call call end");
}

#[test]
fn a_disk_that_is_not_to_be_trusted_gets_no_opened_lines() {
    let (place, faults, log) = faulty();
    faults.sync_fails.store(true, Ordering::SeqCst);
    assert!(log.record(&record(invocation())).is_written());
    let mut found = log.ready();
    while found.is_ok() {
        std::thread::yield_now();
        found = log.ready();
    }
    let (opened, record) = (opened(invocation()), record(invocation()));
    let kept = [
        log.record_opened(&opened),
        log.record(&record),
        log.record_opened(&opened),
        log.record(&record),
    ];
    let kept = kept.map(|kept| bounded(kept.durable()));
    assert!(kept[1].is_ok() && kept[3].is_ok(), "{kept:?}");
    for kept in [&kept[0], &kept[2]] {
        assert!(matches!(kept, Err(AuditError::Sync { .. })), "{kept:?}");
    }
    assert_eq!(kinds(&place, &log), "begin call call call");
}

#[test]
fn tasks_on_many_threads_lose_no_line() {
    let place = TempDir::new().unwrap();
    let log = Arc::new(open_log(place.path(), config()).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..40 {
            let log = Arc::clone(&log);
            callers.spawn(async move {
                for call in 0..25 {
                    let id = invocation();
                    log.record_opened(&opened(id)).durable().await.unwrap();
                    let record = log.record(&record(id)).durable();
                    // Some callers are gone before their record is written.
                    if (caller + call) % 5 == 0 {
                        drop(record.now_or_never());
                    } else {
                        record.await.unwrap();
                    }
                }
            });
        }
        callers.join_all().await;
    });
    log.close().unwrap();
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    let lines = lines(place.path(), log.chain().unwrap());
    let of_calls = |line: &&String| {
        line.starts_with("{\"kind\":\"opened\"") || line.starts_with("{\"kind\":\"call\"")
    };
    assert_eq!(lines.iter().filter(of_calls).count(), 2 * 40 * 25);
}

fn faulty() -> (TempDir, Faults, AuditLog) {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    (place, faults, log)
}

/// The kinds of all lines.
fn kinds(place: &TempDir, log: &AuditLog) -> String {
    let lines = lines(place.path(), log.chain().unwrap());
    let kinds = lines.iter().map(|line| line.split('"').nth(3).unwrap());
    kinds.collect::<Vec<_>>().join(" ")
}
