//! The file that is being written is removed, replaced or cut.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::Path,
    sync::Arc,
};

use tempfile::TempDir;

use crate::{
    audit::{
        AuditEvent, AuditLog, ChainReader, EventKind, LineFault, Query, RecordFilter,
        files::ChainLock,
        testing::{
            ACCOUNT, Faults, bounded, config, event, faulty_log, invocation, open_log, opened,
            record, recover, total, until, verify,
        },
        write::segment_store::{self, SegmentStore as _},
    },
    money::Micros,
    names::InvocationId,
};

/// A log that has a record, and nothing to do.
fn idle(directory: &Path) -> (AuditLog, InvocationId) {
    let log = open_log(directory, config()).unwrap();
    let id = put(&log);
    until(|| log.is_synced());
    (log, id)
}

fn put(log: &AuditLog) -> InvocationId {
    let id = invocation();
    assert!(log.record_opened(&opened(id)).is_written());
    assert!(log.record(&record(id)).is_written());
    id
}

fn found(directory: &Path) -> Vec<InvocationId> {
    let found = Query::new(directory, RecordFilter::default()).unwrap();
    found.map(|found| found.unwrap().record.id).collect()
}

/// The events that say so.
fn said(directory: &Path, log: &AuditLog) -> Vec<AuditEvent<'static>> {
    let mut reader = ChainReader::new(directory, log.chain().unwrap()).unwrap();
    let mut said = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        let event = entry.event().unwrap();
        said.extend(event.filter(|it| it.event == EventKind::SegmentLost));
    }
    said
}

/// `damage` is done to the file of a log that has nothing to do.
fn check(detail: &str, damage: impl Fn(&Path), fault: &(u32, LineFault)) {
    let place = TempDir::new().unwrap();
    let (log, _) = idle(place.path());
    let chain = log.chain().unwrap();
    let name = |segment| place.path().join(format!("{chain}.{segment}.jsonl"));
    damage(&name(1));
    let after = [put(&log), put(&log)];
    log.ready().unwrap();
    assert_eq!(found(place.path()), after, "{detail}");
    assert!(name(2).exists());
    let said = said(place.path(), &log);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].subject, format!("{chain}/1"));
    assert_eq!(said[0].detail.as_deref(), Some(detail));
    log.close().unwrap();
    let report = verify(place.path()).unwrap().chains.remove(0);
    let at = report.fault.unwrap();
    assert_eq!(&(at.segment, at.fault), fault, "{detail}");
    let total = total(place.path(), chain).unwrap().unwrap();
    assert_eq!(
        (total.calls, total.ended),
        (3, true),
        "nothing is forgotten"
    );
    assert_eq!(total.charged[ACCOUNT], Micros::new(45_000));
}

#[test]
fn lines_go_to_a_file_that_can_be_seen() {
    let removed = |path: &Path| fs::remove_file(path).unwrap();
    let unvouched = (2, LineFault::UnprovenRemoval { last: 1 });
    check("it was removed", removed, &unvouched);
    let replaced = |path: &Path| {
        let text = fs::read(path).unwrap();
        fs::rename(path, path.with_extension("away")).unwrap();
        fs::write(path, &text[..text.len() - 1]).unwrap();
    };
    check(
        "it was replaced by another file",
        replaced,
        &(1, LineFault::Torn),
    );
    let length = || {
        let place = TempDir::new().unwrap();
        let (log, _) = idle(place.path());
        let name = format!("{}.1.jsonl", log.chain().unwrap());
        fs::metadata(place.path().join(name)).unwrap().len()
    };
    let whole = length();
    let cut = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(0).unwrap();
    };
    let detail = format!("it was truncated from {whole} to 0 bytes");
    check(&detail, cut, &unvouched);
}

/// Lines that are written just then are gone, but it is noticed when they are synced.
#[test]
fn a_busy_log_notices_it_too() {
    let place = TempDir::new().unwrap();
    let (log, _) = idle(place.path());
    for segment in 1..4 {
        let path = place
            .path()
            .join(format!("{}.{segment}.jsonl", log.chain().unwrap()));
        put(&log);
        fs::remove_file(path).unwrap();
        put(&log);
        until(|| said(place.path(), &log).len() == 1);
    }
    let last = put(&log);
    assert_eq!(found(place.path()).last(), Some(&last));
}

/// Nor is it lost on one whose segment is over at that moment.
#[test]
fn a_new_day_hides_nothing() {
    let place = TempDir::new().unwrap();
    let (log, _) = idle(place.path());
    let chain = log.chain().unwrap();
    put(&log);
    fs::remove_file(place.path().join(format!("{chain}.1.jsonl"))).unwrap();
    assert!(
        log.record_event(&event("2099-01-01T00:00:00Z"))
            .is_written()
    );
    assert_eq!(said(place.path(), &log).len(), 1);
    let last = put(&log);
    assert_eq!(found(place.path()), [last]);
}

/// As where nothing may be written: no call may leave until there is a directory again, and then
/// nothing is lost that was not in the file.
#[test]
fn without_a_directory_calls_are_refused_until_there_is_one() {
    for comes_back in [false, true] {
        let place = TempDir::new().unwrap();
        let (directory, away) = (place.path().join("audit"), place.path().join("away"));
        let (log, before) = idle(&directory);
        let under_way = invocation();
        assert!(log.record_opened(&opened(under_way)).is_written());
        until(|| log.is_synced());
        fs::rename(&directory, &away).unwrap();

        let kept = log.record_opened(&opened(invocation()));
        let refused = bounded(kept.durable()).unwrap_err().to_string();
        let expected = "cannot write the audit log: segment 1 was removed, and a new \
                        segment cannot be created: No such file or directory (os error 2)";
        assert_eq!(refused, expected);
        assert_eq!(log.ready().unwrap_err().to_string(), expected);

        if comes_back {
            assert!(!log.record(&record(under_way)).is_written(), "it waits");
            fs::rename(&away, &directory).unwrap();
        } else {
            fs::create_dir(&directory).unwrap();
        }
        until(|| log.ready().is_ok());
        let after = put(&log);
        let all = [before, under_way, after];
        let gone = if comes_back { 0 } else { 2 };
        assert_eq!(found(&directory), all[gone..]);
        assert_eq!(said(&directory, &log).len(), 1);
        assert!(recover(&directory).unwrap().is_empty(), "it is alive");
        assert!(
            log.record_event(&event("2026-01-01T00:00:00Z"))
                .is_written()
        );
        log.close().unwrap();
        assert_eq!(verify(&directory).unwrap().is_valid(), comes_back);
        let left = fs::read_dir(&directory).unwrap().count();
        assert_eq!(left, 1 + usize::from(comes_back), "the lock is gone");
    }
}

/// A chain ends where its end can be seen.
#[test]
fn an_end_is_written_where_it_is_found() {
    let place = TempDir::new().unwrap();
    let (log, _) = idle(place.path());
    put(&log);
    let chain = log.chain().unwrap();
    fs::remove_file(place.path().join(format!("{chain}.1.jsonl"))).unwrap();
    log.close().unwrap();
    let total = total(place.path(), chain).unwrap().unwrap();
    assert!(total.ended);
    assert_eq!(total.calls, 2);
}

/// Who makes room may remove the very file that is being written.
#[test]
fn what_waits_is_written_where_it_is_found() {
    let place = TempDir::new().unwrap();
    let faults = Faults::new();
    let log = faulty_log(place.path(), config(), &faults).unwrap();
    let id = invocation();
    assert!(log.record_opened(&opened(id)).is_written());
    until(|| log.is_synced());
    faults.leave_room(0);
    assert!(!log.record(&record(id)).is_written(), "it waits");
    let chain = log.chain().unwrap();
    fs::remove_file(place.path().join(format!("{chain}.1.jsonl"))).unwrap();
    faults.leave_room(u64::MAX);
    until(|| log.ready().is_ok());
    assert_eq!(found(place.path()), [id]);
    assert_eq!(said(place.path(), &log).len(), 1);
}

/// A file that somebody cut is not filled up where part of a line is cut off.
#[test]
fn what_is_cut_off_makes_no_file_longer() {
    let place = TempDir::new().unwrap();
    let (chain, owned) = ChainLock::acquire_new(place.path()).unwrap();
    let directory = segment_store::SegmentDirectory {
        path: place.path().to_owned(),
        chain,
        chain_lock: Arc::new(owned),
    };
    let sink = directory.create(1).unwrap();
    sink.append(b"1234567890").unwrap();
    let path = place.path().join(format!("{chain}.1.jsonl"));
    for (length, left) in [(12, 10), (10, 10), (8, 8), (9, 8)] {
        sink.truncate(length).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), left, "{length}");
    }
}

/// Without its lock file others take a chain for a dead one, and may have ended it.
#[test]
fn a_chain_that_was_unlocked_goes_on_in_another_file() {
    for is_ended in [false, true] {
        let place = TempDir::new().unwrap();
        let (log, before) = idle(place.path());
        let chain = log.chain().unwrap();
        let first = place.path().join(format!("{chain}.1.jsonl"));
        fs::remove_file(place.path().join(format!("{chain}.lock"))).unwrap();
        let ended = if is_ended {
            recover(place.path()).unwrap()
        } else {
            Vec::new()
        };
        assert_eq!(ended.len(), usize::from(is_ended));
        let length = fs::metadata(&first).unwrap().len();
        let after = put(&log);
        log.ready().unwrap();
        assert_eq!(fs::metadata(&first).unwrap().len(), length);
        assert_eq!(found(place.path()), [before, after]);
        let said = said(place.path(), &log);
        assert_eq!(
            said[0].detail.as_deref(),
            Some("it lost its lock: the lock file was removed")
        );
        assert!(recover(place.path()).unwrap().is_empty(), "it is alive");
        log.close().unwrap();
        assert_eq!(verify(place.path()).unwrap().is_valid(), !is_ended);
    }
}

/// Nobody writes to a chain that another has taken.
#[test]
fn a_chain_that_another_has_taken_refuses_until_it_is_ours() {
    let place = TempDir::new().unwrap();
    let (log, _) = idle(place.path());
    let chain = log.chain().unwrap();
    fs::remove_file(place.path().join(format!("{chain}.lock"))).unwrap();
    let other = ChainLock::try_acquire(place.path(), chain)
        .unwrap()
        .unwrap();
    let kept = log.record_opened(&opened(invocation()));
    let refused = bounded(kept.durable()).unwrap_err().to_string();
    let expected = "cannot write the audit log: segment 1 lost its lock: the lock file was \
                    removed, and a new segment cannot be created: ";
    assert!(refused.starts_with(expected), "{refused}");
    drop(other);
    until(|| log.ready().is_ok());
    put(&log);
}

/// Of what cannot be looked at nobody says that its lock file was removed.
#[test]
fn what_cannot_be_looked_at_is_called_that() {
    let place = TempDir::new().unwrap();
    let (directory, away) = (place.path().join("audit"), place.path().join("away"));
    let (log, before) = idle(&directory);
    fs::rename(&directory, &away).unwrap();
    // Nobody gets past it, whatever they may do.
    symlink(&directory, &directory).unwrap();
    let kept = log.record_opened(&opened(invocation()));
    let refused = bounded(kept.durable()).unwrap_err().to_string();
    let expected = "cannot write the audit log: segment 1 could not be read (";
    assert!(refused.starts_with(expected), "{refused}");
    assert!(
        refused.contains("), and a new segment cannot be created: "),
        "{refused}"
    );
    fs::remove_file(&directory).unwrap();
    fs::rename(&away, &directory).unwrap();
    until(|| log.ready().is_ok());
    let after = put(&log);
    assert_eq!(found(&directory), [before, after]);
    let said = said(&directory, &log).remove(0).detail.unwrap();
    assert!(said.starts_with("it could not be read ("), "{said}");
    log.close().unwrap();
    assert!(verify(&directory).unwrap().is_valid());
}
