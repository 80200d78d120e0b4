//! Lines `retired`: what they vouch for nobody can look at, so that no forged one may count.

use std::{fs, path::Path, sync::Arc, time::Duration};

use jiff::SignedDuration;

use super::latest::{Place, at_minute, put};
use crate::{
    audit::{
        AuditLog, ChainId, Hash, LineFault, TrustAnchors, VerifyReport,
        hash_chain::{ChainPosition, append_sealed, unseal},
        record_truncations,
        signature::SIGNATURE_BYTES,
        testing::{config, event, open_log, recover, total, trust},
        truncated_chains, verify_by, verify_with,
    },
    clock, config,
};

impl Place {
    /// A chain that has ended, with its last line.
    fn ended(&self) -> (ChainId, ChainPosition) {
        let log = self.log();
        for minute in 0..3 {
            put(&log, &at_minute(minute));
        }
        log.close().unwrap();
        let chain = log.chain().unwrap();
        (chain, last(&self.segment(chain)))
    }

    fn expecting(&self, hash: Hash) -> VerifyReport {
        let expecting = TrustAnchors {
            expected: vec![hash],
            ..trust()
        };
        verify_by(&self.log_dir(), &expecting).unwrap()
    }

    /// A log that keeps nothing for longer than an hour.
    fn forgetful(&self) -> AuditLog {
        let config = config::Audit {
            retention: Some(Duration::from_secs(3600)),
            ..config()
        };
        open_log(&self.log_dir(), config).unwrap()
    }

    /// How many segments the audit says are shortened.
    fn shortened_lines(&self, log: &AuditLog) -> usize {
        let text = fs::read_to_string(self.segment(log.chain().unwrap())).unwrap();
        text.matches(r#""event":"log_shortened""#).count()
    }
}

fn last(path: &Path) -> ChainPosition {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().last().unwrap();
    unseal(line.as_bytes()).unwrap().position
}

fn retired(chain: ChainId, segment: u32, ChainPosition { seq, hash }: ChainPosition) -> String {
    format!(
        r#"{{"kind":"retired","ts":"2026-01-01T00:00:00.000000Z","chain":"{chain}","segment":{segment},"last_seq":{seq},"last_hash":"{hash}""#
    )
}

/// Puts a line, with a right hash and with this signature, in place of the last one.
fn replace_last(path: &Path, body: &str, signature: Option<[u8; SIGNATURE_BYTES]>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.pop();
    let before = unseal(lines.last().unwrap().as_bytes()).unwrap().position;
    let mut made = lines
        .iter()
        .flat_map(|line| [line, "\n"])
        .collect::<String>();
    let mut sealed = Vec::new();
    let sign = |_| signature.unwrap();
    append_sealed(
        &mut sealed,
        body.as_bytes(),
        before,
        signature.is_some().then_some(&sign),
    );
    made.push_str(std::str::from_utf8(&sealed).unwrap());
    fs::write(path, made).unwrap();
}

/// The whole chain `gone` is removed, and a line `retired` vouches for it in another one that had ended,
/// which is as long as it was.
fn hide(place: &Place, gone: (ChainId, ChainPosition), other: ChainId, is_signed: bool) {
    let path = place.segment(other);
    let known = fs::read(&path).unwrap();
    let end = known.trim_ascii_end().rsplit(|b| *b == b'\n').next();
    let signature = unseal(end.unwrap()).unwrap().signature;
    fs::remove_file(place.segment(gone.0)).unwrap();
    let body = retired(gone.0, 1, gone.1);
    replace_last(&path, &body, signature.filter(|_| is_signed));
    let short = known.len().saturating_sub(fs::read(&path).unwrap().len());
    let pad = format!("{body},\"pad\":\"{}\"", "x".repeat(short));
    replace_last(&path, &pad, signature.filter(|_| is_signed));
    assert!(fs::read(&path).unwrap().len() >= known.len());
}

#[tokio::test]
async fn a_forged_retirement_hides_no_chain() {
    for is_signed in [false, true] {
        let place = Place::new().await;
        let (gone, other) = (place.ended(), place.ended());
        place.indexer().catch_up().await.unwrap();
        assert!(place.expecting(gone.1.hash).is_valid());
        hide(&place, gone, other.0, is_signed);

        let report = place.expecting(gone.1.hash);
        assert_eq!(report.missing, [gone.1.hash]);
        let fault = report.chains[0].fault.clone().unwrap().fault;
        let expected = [LineFault::Unsigned, LineFault::Signature];
        assert_eq!(fault, expected[usize::from(is_signed)]);
        let report = verify_with(&place.log_dir(), &*place.store.audit, &trust()).await;
        let shortened = report.unwrap().shortened;
        assert_eq!(shortened.len(), 2, "{shortened:?}");

        // A gateway records it, and signs nothing that was forged.
        let ours = Arc::new(place.log());
        let lost = truncated_chains(&ours, &*place.store.audit).await.unwrap();
        assert!(lost.contains(&gone.0));
        record_truncations(&ours, &*place.store.audit)
            .await
            .unwrap();
        assert_eq!(place.shortened_lines(&ours), 2);
        let recovered = recover(&place.log_dir()).unwrap().remove(0).unwrap();
        assert_eq!(
            recovered.damage.unwrap().fault,
            expected[usize::from(is_signed)]
        );
    }
}

/// A chain that had ended looks as if it had not once its end is cut off; the index knows what was there
/// although as much is there again.
#[tokio::test]
async fn other_lines_in_place_of_the_last_are_found() {
    let place = Place::new().await;
    let (chain, _) = place.ended();
    place.indexer().catch_up().await.unwrap();
    let path = place.segment(chain);
    let known = fs::metadata(&path).unwrap().len();
    let forge = |subject: &str| {
        let body = format!(
            r#"{{"kind":"event","ts":"2026-01-01T00:00:00.000000Z","event":"server_connected","subject":"{subject}""#
        );
        replace_last(&path, &body, None);
        fs::metadata(&path).unwrap().len()
    };
    let short = known - forge("");
    assert_eq!(forge(&"x".repeat(short.try_into().unwrap())), known);
    assert!(verify_by(&place.log_dir(), &trust()).unwrap().is_valid());
    let verify = async || {
        let report = verify_with(&place.log_dir(), &*place.store.audit, &trust()).await;
        report.unwrap()
    };
    let report = verify().await;
    let said: Vec<_> = report.shortened.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [format!("{known} bytes indexed, the content differs")]
    );
    // Who cannot record it lets the index know it.
    place.indexer().catch_up().await.unwrap();
    assert_eq!(verify().await, report);

    let ours = Arc::new(place.log());
    let mut recorder = place.indexer().with_log(Arc::clone(&ours));
    recorder.catch_up().await.unwrap();
    recover(&place.log_dir()).unwrap().remove(0).unwrap();
    recorder.catch_up().await.unwrap();
    assert_eq!(place.shortened_lines(&ours), 1);
    assert_eq!(place.records().await, 3);
    assert!(verify().await.is_valid());
}

/// What is made to look old is removed, but how it ended is not said where nobody signed that.
#[tokio::test]
async fn nothing_is_vouched_for_that_was_not_signed() {
    let place = Place::new().await;
    let gone = place.ended();
    place.indexer().catch_up().await.unwrap();
    let name = place.log_dir().join(format!("{}.7.jsonl", gone.0));
    let hash = gone.1.hash;
    let end = format!(
        "{{\"kind\":\"end\",\"ts\":\"2020-01-01T00:00:00.000000Z\",\"seq\":{},\"prev\":\"{hash}\",\
         \"hash\":\"{hash}\"}}\n",
        gone.1.seq
    );
    fs::write(&name, end).unwrap();
    fs::remove_file(place.segment(gone.0)).unwrap();

    let ours = Arc::new(place.forgetful());
    let removed = ours.retire(clock::now()).unwrap();
    assert_eq!((removed.len(), name.exists()), (1, false));
    assert_eq!(place.expecting(hash).missing, [hash]);
    record_truncations(&ours, &*place.store.audit)
        .await
        .unwrap();
    assert_eq!(place.shortened_lines(&ours), 1);
}

/// What a segment vouches for outlives it, unless that was forged.
#[tokio::test]
async fn a_forged_retirement_is_not_taken_over() {
    let place = Place::new().await;
    let log = place.log();
    put(&log, &at_minute(0));
    assert!(
        log.record_event(&event("2099-01-01T00:00:00Z"))
            .is_written()
    );
    let (chain, first) = (
        log.chain().unwrap(),
        last(&place.segment(log.chain().unwrap())),
    );
    let (other, _) = place.ended();
    let path = place.segment(other);
    let text = fs::read_to_string(&path).unwrap();
    let end = text.lines().last().unwrap().to_owned();
    replace_last(&path, &retired(chain, 1, first), None);
    let forged = fs::read_to_string(&path).unwrap() + &end + "\n";
    fs::write(&path, forged).unwrap();
    fs::remove_file(place.segment(chain)).unwrap();

    let ours = place.forgetful();
    let later = clock::now() + SignedDuration::from_hours(2);
    let removed = ours.retire(later).unwrap();
    assert!(removed.iter().any(|it| it.chain == other), "{removed:?}");
    let report = verify_by(&place.log_dir(), &trust()).unwrap();
    let of = report.chains.iter().find(|it| it.chain == chain).unwrap();
    assert_eq!(
        of.fault.clone().unwrap().fault,
        LineFault::UnprovenRemoval { last: 1 }
    );
}

/// That a chain was retired once is no reason for its end to be missing from what is there again.
#[tokio::test]
async fn what_is_there_again_is_there_whole() {
    let place = Place::new().await;
    let (chain, end) = place.ended();
    let path = place.segment(chain);
    let text = fs::read_to_string(&path).unwrap();
    let ours = place.forgetful();
    let later = clock::now() + SignedDuration::from_hours(2);
    assert_eq!(ours.retire(later).unwrap().len(), 1);
    let report = place.expecting(end.hash);
    assert!(report.is_valid(), "{report:?}");
    let cut = &text[..=text.trim_end().rfind('\n').unwrap()];
    fs::write(&path, cut).unwrap();
    assert_eq!(place.expecting(end.hash).missing, [end.hash]);
}

/// What an `end` says was charged gives budgets back, so that none counts that we did not sign.
#[tokio::test]
async fn a_forged_end_is_no_end() {
    for signature in [None, Some([7; SIGNATURE_BYTES])] {
        let place = Place::new().await;
        let dead = place.log();
        let chain = dead.chain().unwrap();
        for minute in 0..2 {
            put(&dead, &at_minute(minute));
        }
        drop(dead);
        let end = r#"{"kind":"end","ts":"2026-01-01T00:00:00.000000Z","calls":0,"charged":{}"#;
        replace_last(&place.segment(chain), end, signature);
        let total = total(&place.log_dir(), chain).unwrap().unwrap();
        assert_eq!((total.ended, total.calls), (false, 1));
    }
}
