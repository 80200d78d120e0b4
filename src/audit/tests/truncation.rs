//! A log that has less than its index knows.

use std::{
    fs::{self, File},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use super::latest::{Place, at_minute, put};
use crate::{
    audit::{
        AuditEvent, AuditLog, ChainId, ChainReader, EventKind, Indexer, RecordFilter,
        TruncatedSegment, VerifyReport, chains, record_truncations,
        testing::{config, event, invocation, open_log, opened, recover, trust},
        verify_with,
    },
    clock, config,
    names::InvocationId,
};

impl Place {
    /// What a gateway has: it records what is gone.
    fn recorder(&self, log: &Arc<AuditLog>) -> Indexer {
        self.indexer().with_log(Arc::clone(log))
    }

    async fn verify(&self) -> VerifyReport {
        let report = verify_with(&self.log_dir(), &*self.store.audit, &trust()).await;
        report.unwrap()
    }

    async fn all(&self) -> Vec<InvocationId> {
        self.latest(&RecordFilter::default(), 999).await
    }

    fn length(&self, chain: ChainId) -> u64 {
        fs::metadata(self.segment(chain)).unwrap().len()
    }

    fn cut(&self, chain: ChainId, length: u64) {
        let file = File::options().write(true).open(self.segment(chain));
        file.unwrap().set_len(length).unwrap();
    }

    /// What the audit says is gone.
    fn recorded(&self) -> Vec<AuditEvent<'static>> {
        let mut found = Vec::new();
        for chain in chains(&self.log_dir()).unwrap() {
            let mut reader = ChainReader::new(&self.log_dir(), chain).unwrap();
            // What cannot be read has none.
            while let Ok(Some(entry)) = reader.read() {
                let event = entry.event().unwrap();
                found.extend(event.filter(|it| it.event == EventKind::LogShortened));
            }
        }
        found
    }
}

fn shortened(log: &AuditLog, bytes_known: u64, bytes_found: Option<u64>) -> TruncatedSegment {
    TruncatedSegment {
        chain: log.chain().unwrap(),
        segment: 1,
        bytes_known,
        bytes_found,
        is_changed: false,
    }
}

/// What a loss of power leaves of a chain is found, and so is what recovery appends to it.
#[tokio::test]
async fn records_after_a_loss_are_found_and_the_loss_is_recorded_once() {
    for torn in [0, 7, 500] {
        let place = Place::new().await;
        let dead = place.log();
        let chain = dead.chain().unwrap();
        let mut written: Vec<_> = (0..3).map(|n| put(&dead, &at_minute(n))).collect();
        let kept = place.length(chain);
        let open = invocation();
        assert!(dead.record_opened(&opened(open)).is_written());
        let cut_at = place.length(chain);
        let lost = (3..9).map(|n| put(&dead, &at_minute(n)));
        assert_eq!(lost.count(), 6);
        place.indexer().catch_up().await.unwrap();
        let known = place.length(chain);
        drop(dead);
        place.cut(chain, cut_at + torn);
        let expected = TruncatedSegment {
            chain,
            segment: 1,
            bytes_known: known,
            bytes_found: Some(cut_at),
            is_changed: false,
        };
        assert_eq!(place.verify().await.shortened, [expected]);

        let ours = [place.log(), place.log()].map(Arc::new);
        let acknowledged = ours
            .each_ref()
            .map(|log| record_truncations(log, &*place.store.audit));
        let [first, second] = acknowledged;
        let (first, second) = tokio::join!(first, second);
        first.unwrap();
        second.unwrap();
        assert!(place.verify().await.is_valid());
        recover(&place.log_dir()).unwrap().remove(0).unwrap();
        assert!(kept < place.length(chain) && place.length(chain) < known);
        place.recorder(&ours[0]).catch_up().await.unwrap();
        written.push(open);
        assert_eq!(place.all().await, written, "{torn}");

        let [event] = &place.recorded()[..] else {
            panic!("{:?}", place.recorded());
        };
        assert_eq!(event.subject, format!("{chain}/1"));
        let detail = format!("{known} bytes indexed, {cut_at} found");
        assert_eq!(event.detail.as_deref(), Some(&*detail));
        assert!(place.verify().await.is_valid());
    }
}

/// What cannot be read of one chain hides nothing of others, and keeps none from being indexed.
#[tokio::test]
async fn an_unreadable_segment_hides_no_other_loss() {
    let place = Place::new().await;
    let [unreadable, cut] = [place.log(), place.log()];
    for log in [&unreadable, &cut] {
        put(log, &at_minute(0));
        put(log, &at_minute(1));
        log.close().unwrap();
    }
    place.indexer().catch_up().await.unwrap();
    let path = place.segment(unreadable.chain().unwrap());
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    place.cut(cut.chain().unwrap(), 0);
    let ours = Arc::new(place.log());
    let missed = record_truncations(&ours, &*place.store.audit).await;
    assert!(missed.unwrap_err().to_string().contains("jsonl"));
    let [event] = &place.recorded()[..] else {
        panic!("{:?}", place.recorded());
    };
    assert_eq!(event.subject, format!("{}/1", cut.chain().unwrap()));
    let later = put(&ours, &at_minute(2));
    let mut recorder = place.recorder(&ours);
    recorder.catch_up().await.unwrap_err();
    let found = place.store.audit.marks().await.unwrap();
    let ours = ours.chain().unwrap().to_string();
    assert!(
        found.iter().any(|mark| mark.chain == ours),
        "{later} is indexed"
    );
}

/// Whoever has no chain forgets nothing, so that a gateway can record it later.
#[tokio::test]
async fn who_cannot_record_a_loss_leaves_it_to_others() {
    let place = Place::new().await;
    let gone = place.log();
    put(&gone, &at_minute(0));
    gone.close().unwrap();
    place.indexer().catch_up().await.unwrap();
    let known = place.length(gone.chain().unwrap());
    fs::remove_file(place.segment(gone.chain().unwrap())).unwrap();
    let off = Arc::new(
        open_log(
            &place.log_dir(),
            config::Audit {
                enabled: false,
                ..config()
            },
        )
        .unwrap(),
    );
    let closed = Arc::new(place.log());
    closed.close().unwrap();
    place.indexer().catch_up().await.unwrap();
    place.recorder(&off).catch_up().await.unwrap();
    assert!(place.recorder(&closed).catch_up().await.is_err());
    let expected = [shortened(&gone, known, None)];
    assert_eq!(place.verify().await.shortened, expected);
    let ours = Arc::new(place.log());
    place.recorder(&ours).catch_up().await.unwrap();
    assert_eq!(place.recorded().len(), 1);
    assert!(place.verify().await.is_valid());
}

/// A gateway that runs finds by itself what somebody takes away.
#[tokio::test]
async fn a_loss_is_met_while_the_log_is_followed() {
    let place = Place::new().await;
    let ours = Arc::new(place.log());
    let [other, cut] = [place.log(), place.log()];
    let mut recorder = place.recorder(&ours);
    for log in [&other, &cut] {
        put(log, &at_minute(0));
    }
    let half = place.length(cut.chain().unwrap());
    let kept = put(&ours, &at_minute(0));
    put(&cut, &at_minute(1));
    recorder.catch_up().await.unwrap();
    assert_eq!(place.all().await.len(), 4);

    let known = [&other, &cut].map(|log| place.length(log.chain().unwrap()));
    place.cut(cut.chain().unwrap(), half);
    let is_cut = shortened(&cut, known[1], Some(half));
    assert_eq!(place.verify().await.shortened, [is_cut]);
    recorder.catch_up().await.unwrap();
    assert_eq!(place.recorded().len(), 1);
    fs::remove_file(place.segment(other.chain().unwrap())).unwrap();
    let is_gone = shortened(&other, known[0], None);
    assert_eq!(place.verify().await.shortened, [is_gone]);
    recorder.catch_up().await.unwrap();
    assert_eq!(place.recorded().len(), 2);
    assert_eq!(place.verify().await.shortened, []);
    assert_eq!(place.records().await, 2);
    assert!(place.all().await.contains(&kept));
    for _ in 0..3 {
        recorder.catch_up().await.unwrap();
        place.recorder(&ours).catch_up().await.unwrap();
    }
    assert_eq!(place.recorded().len(), 2, "once is enough");
}

/// A chain that cannot be read hides no loss in another one.
#[tokio::test]
async fn a_loss_is_met_beside_what_cannot_be_read() {
    let place = Place::new().await;
    let (other, ours) = (place.log(), Arc::new(place.log()));
    put(&other, &at_minute(0));
    // A directory can be opened, but not read.
    fs::create_dir(place.segment(ChainId::generate())).unwrap();
    let mut recorder = place.recorder(&ours);
    assert!(recorder.catch_up().await.is_err());
    fs::remove_file(place.segment(other.chain().unwrap())).unwrap();
    assert!(recorder.catch_up().await.is_err());
    assert_eq!(place.recorded().len(), 1);
}

/// What was retired is no loss, also when a crash came before the index forgot it.
#[tokio::test]
async fn what_was_retired_is_no_loss() {
    let place = Place::new().await;
    let past = place.log();
    put(&past, &at_minute(0));
    assert!(
        past.record_event(&event("2099-01-01T00:00:00Z"))
            .is_written()
    );
    put(&past, &at_minute(1));
    past.close().unwrap();
    let keep = config::Audit {
        retention: Some(Duration::from_secs(3600)),
        ..config()
    };
    let ours = Arc::new(open_log(&place.log_dir(), keep).unwrap());
    let mut recorder = place.recorder(&ours);
    recorder.catch_up().await.unwrap();
    assert_eq!(place.records().await, 2);
    let later = clock::now() + jiff::SignedDuration::from_hours(2);
    assert_eq!(ours.retire(later).unwrap().len(), 2);
    assert!(
        place.verify().await.is_valid(),
        "{:?}",
        place.verify().await
    );
    recorder.catch_up().await.unwrap();
    assert_eq!(place.recorded(), []);
    assert_eq!(place.records().await, 0);
}

/// However fast the log grows and however far it is indexed, nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_grows_is_whole() {
    let place = Place::new().await;
    let ours = Arc::new(place.log());
    let is_over = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (log, is_over) = (Arc::clone(&ours), Arc::clone(&is_over));
        move || {
            for _ in 0..3_000 {
                put(&log, &at_minute(0));
            }
            is_over.store(true, Ordering::Relaxed);
        }
    });
    let mut recorder = place.recorder(&ours);
    let follow = async {
        while !is_over.load(Ordering::Relaxed) {
            recorder.index_round().await.unwrap();
        }
    };
    let verify = async {
        while !is_over.load(Ordering::Relaxed) {
            let report = place.verify().await;
            assert!(report.is_valid(), "{report:?}");
        }
    };
    tokio::join!(follow, verify);
    writer.join().unwrap();
    assert_eq!(place.recorded(), []);
}
