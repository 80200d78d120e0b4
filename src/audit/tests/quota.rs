//! The quota of the log, and retention by size.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    audit::{
        AuditError, AuditLog, LogSpace, Query, RecordFilter,
        testing::{config, event, invocation, lines, open_log, opened, record, refusal, verify},
    },
    clock, config,
};

const QUOTA: u64 = 64 << 10;

fn limited(directory: &Path, quota: u64) -> AuditLog {
    let config = config::Audit {
        quota: Some(quota),
        ..config()
    };
    open_log(directory, config).unwrap()
}

fn size(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

/// A call from its opening to its end; whether it could be opened.
fn call(log: &AuditLog) -> bool {
    let id = invocation();
    let is_opened = log.record_opened(&opened(id)).is_written();
    if is_opened {
        assert!(log.record(&record(id)).is_written());
    }
    is_opened
}

/// However many calls are refused, those that are allowed have the last eighth for themselves.
#[test]
fn refused_calls_leave_room_for_those_that_are_allowed() {
    let place = TempDir::new().unwrap();
    let log = limited(place.path(), QUOTA);
    let under_way = invocation();
    assert!(log.record_opened(&opened(under_way)).is_written());
    assert!(!log.space().is_low());
    for _ in 0..1000 {
        assert!(
            log.record(&refusal(100)).is_written(),
            "its caller is answered"
        );
    }
    let kept = size(place.path());
    assert!(kept > QUOTA * 3 / 4 && kept < QUOTA, "{kept}");
    let room = log.space();
    assert!(room.is_low() && room.warning().is_some(), "{room:?}");
    log.ready().unwrap();
    let calls = (0..1000).take_while(|_| call(&log)).count();
    assert!((3..20).contains(&calls), "{calls}");
    let refused = log
        .record_opened(&opened(invocation()))
        .wait_blocking()
        .unwrap_err();
    assert!(
        matches!(refused, AuditError::Quota { quota: QUOTA }),
        "{refused}"
    );
    assert_eq!(log.ready().unwrap_err().to_string(), refused.to_string());
    // A record that has to be there is there; one more of those who have used up all is not.
    assert!(log.record(&record(under_way)).is_written());
    let before = size(place.path());
    for _ in 0..100 {
        let id = invocation();
        assert!(!log.record_opened(&opened(id)).is_written());
        assert!(log.record(&record(id)).is_written());
    }
    assert_eq!(size(place.path()), before);
    log.close().unwrap();

    assert!(verify(place.path()).unwrap().is_valid());
    let lines = lines(place.path(), log.chain().unwrap());
    let records = lines
        .iter()
        .filter(|line| line.starts_with("{\"kind\":\"call\""));
    let summed = lines.iter().filter(|line| line.contains("refusals_summed"));
    let count = |line: &String| serde_json::from_str::<Value>(line).unwrap()["count"].as_u64();
    let summed: u64 = summed.map(|line| count(line).unwrap()).sum();
    assert_eq!(
        records.count() as u64 + summed,
        1000 + calls as u64 + 1 + 100
    );
}

/// What others write to the directory counts as well, and more may be allowed while the log is written.
#[test]
fn a_quota_holds_for_all_chains_and_may_be_raised() {
    let place = TempDir::new().unwrap();
    let log = limited(place.path(), QUOTA);
    assert!(call(&log));
    fs::write(place.path().join("other"), vec![0; 64 << 10]).unwrap();
    assert!(call(&log), "nobody has looked");
    log.check_space().unwrap();
    assert!(!call(&log));
    assert!(log.ready().is_err());
    log.update_config(config::Audit {
        quota: Some(4 * QUOTA),
        ..config()
    });
    log.check_space().unwrap();
    assert!(call(&log));
    log.ready().unwrap();
    log.close().unwrap();
}

#[test]
fn little_room_is_told_before_there_is_none() {
    let room = LogSpace {
        used: 0,
        quota: 80,
        free: 100,
    };
    for (used, free, is_low) in [
        (69, 100, false),
        (70, 100, true),
        (80, 100, true),
        (0, 11, false),
        (0, 10, true),
        (0, 0, true),
    ] {
        let room = LogSpace { used, free, ..room };
        assert_eq!(
            (room.is_low(), room.warning().is_some()),
            (is_low, is_low),
            "{room:?}"
        );
    }
    assert!(!LogSpace::default().is_low());
}

/// Segments are so small that of what is kept most may go, also once the config has changed.
#[test]
fn a_changed_retention_size_changes_the_segments() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    let fill = || (0..12).for_each(|_| assert!(log.record(&refusal(200_000)).is_written()));
    let segments = || {
        let report = verify(place.path()).unwrap();
        report.chains[0].segments
    };
    fill();
    assert_eq!(segments(), 1);
    log.update_config(config::Audit {
        retention_size: Some(8 << 20),
        ..config()
    });
    fill();
    assert_eq!(segments(), 4);
    log.update_config(config());
    fill();
    assert_eq!(segments(), 4);
}

/// The oldest go first, of whatever chain they are; the segment that is written stays.
#[test]
fn the_log_keeps_no_more_than_so_much() {
    let place = TempDir::new().unwrap();
    let old = open_log(place.path(), config()).unwrap();
    let day = |log: &AuditLog, day: u32| {
        let ts = format!("2099-01-{day:02}T00:00:00Z");
        assert!(log.record_event(&event(&ts)).is_written());
        assert!(log.record(&refusal(20_000)).is_written());
    };
    day(&old, 1);
    day(&old, 2);
    old.close().unwrap();
    let config = config::Audit {
        retention_size: Some(80_000),
        ..config()
    };
    let log = open_log(place.path(), config).unwrap();
    for n in 1..=3 {
        day(&log, n);
    }
    log.check_space().unwrap();
    assert!(log.exceeds_retention_size());
    let retired = log.retire(clock::now()).unwrap();
    let gone: Vec<_> = retired.iter().map(|it| (it.chain, it.segment)).collect();
    let chain = old.chain().unwrap();
    assert_eq!(gone, [(chain, 1), (chain, 2)]);
    assert!(size(place.path()) <= 80_000);
    log.check_space().unwrap();
    assert!(!log.exceeds_retention_size());
    assert!(verify(place.path()).unwrap().is_valid());
    let left = Query::new(place.path(), RecordFilter::default()).unwrap();
    assert_eq!(left.count(), 3);
    log.update_config(config::Audit {
        retention_size: Some(0),
        ..config
    });
    assert_eq!(log.retire(clock::now()).unwrap().len(), 2);
    assert_eq!(
        fs::read_dir(place.path()).unwrap().count(),
        2,
        "a segment and its lock"
    );
    assert!(verify(place.path()).unwrap().is_valid());
}
