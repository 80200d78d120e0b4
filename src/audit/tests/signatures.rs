//! Signed places of chains: what who can write the files, but has not the key, is found out by.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::audit::{
    AuditLog, ChainId, LineFault, PublicKey, TrustAnchors, UNSIGNED_LINES_MAX, VerifyReport,
    hash_chain::{ChainPosition, append_sealed, unseal},
    signature::SigningKey,
    testing::{
        config, event, invocation, key, open_log, opened, record, recover, refusal, trust, verify,
    },
    verify_by,
};

fn segment(directory: &Path, log: &AuditLog) -> std::path::PathBuf {
    directory.join(format!("{}.1.jsonl", log.chain().unwrap()))
}

/// A chain that has ended, with as many lines as `calls` calls make.
fn ended(directory: &Path, calls: usize) -> AuditLog {
    let log = open_log(directory, config()).unwrap();
    for _ in 0..calls {
        let id = invocation();
        assert!(log.record_opened(&opened(id)).is_written());
        assert!(log.record(&record(id)).is_written());
    }
    log.close().unwrap();
    log
}

/// Makes all hashes anew, as anybody can; signatures stay as they are, or go.
fn forge(path: &Path, keep_signatures: bool, change: impl Fn(usize, &str) -> Option<String>) {
    let text = fs::read_to_string(path).unwrap();
    let (mut made, mut last) = (Vec::new(), ChainPosition::default());
    for (n, line) in text.lines().enumerate() {
        let sealed = unseal(line.as_bytes()).unwrap();
        let body = std::str::from_utf8(sealed.body).unwrap();
        let Some(body) = change(n, body) else {
            continue;
        };
        let kept = sealed.signature.filter(|_| keep_signatures);
        last = match kept {
            Some(signature) => {
                append_sealed(&mut made, body.as_bytes(), last, Some(&|_| signature))
            }
            None => append_sealed(&mut made, body.as_bytes(), last, None),
        };
    }
    fs::write(path, made).unwrap();
}

fn fault(directory: &Path) -> Option<LineFault> {
    let report = verify(directory).unwrap();
    report
        .chains
        .into_iter()
        .find_map(|chain| chain.fault)
        .map(|at| at.fault)
}

#[test]
fn a_chain_that_is_made_anew_is_found_out() {
    type Change = fn(usize, &str) -> Option<String>;
    let edited: Change = |n, body| {
        Some(if n == 3 {
            body.replace("anonymous", "innocents")
        } else {
            body.to_owned()
        })
    };
    let dropped: Change = |n, body| (!(3..5).contains(&n)).then(|| body.to_owned());
    let first: Change = |n, body| {
        Some(if n == 0 {
            body.replace("\"version\"", "\"varsion\"")
        } else {
            body.to_owned()
        })
    };
    for (change, keep_signatures, expect) in [
        (edited, true, LineFault::Signature),
        (dropped, true, LineFault::Signature),
        (first, true, LineFault::Signature),
        (edited, false, LineFault::Unsigned),
        (dropped, false, LineFault::Unsigned),
    ] {
        let place = TempDir::new().unwrap();
        let log = ended(place.path(), 5);
        assert_eq!(fault(place.path()), None);
        forge(&segment(place.path(), &log), keep_signatures, change);
        assert_eq!(fault(place.path()), Some(expect));
    }
}

/// Whoever signs with a key of their own is found out by the key that was kept elsewhere.
#[test]
fn the_key_of_somebody_else_is_not_trusted() {
    let place = TempDir::new().unwrap();
    let log = ended(place.path(), 3);
    let (path, chain) = (segment(place.path(), &log), log.chain().unwrap());
    let own = SigningKey::new(&[9; 32]);
    let text = fs::read_to_string(&path).unwrap();
    let (mut made, mut last) = (Vec::new(), ChainPosition::default());
    for line in text.lines() {
        let sealed = unseal(line.as_bytes()).unwrap();
        let sign = |link| own.sign(chain, link);
        last = match sealed.signature {
            Some(_) => append_sealed(&mut made, sealed.body, last, Some(&sign)),
            None => append_sealed(&mut made, sealed.body, last, None),
        };
    }
    fs::write(&path, made).unwrap();
    assert_eq!(fault(place.path()), Some(LineFault::Signature));
    let theirs = TrustAnchors {
        keys: vec![own.public()],
        ..TrustAnchors::default()
    };
    assert!(verify_by(place.path(), &theirs).unwrap().is_valid());
    let nobody = TrustAnchors::default();
    assert!(!verify_by(place.path(), &nobody).unwrap().is_valid());
    assert_eq!(
        own.public().to_string().parse::<PublicKey>(),
        Ok(own.public())
    );
}

/// A log of another directory, or of the same under another name, is no log of this one.
#[test]
fn a_chain_under_another_name_is_found_out() {
    let place = TempDir::new().unwrap();
    let log = ended(place.path(), 2);
    let other = ChainId::generate();
    let (from, to) = (log.chain().unwrap().to_string(), other.to_string());
    let path = place.path().join(format!("{other}.1.jsonl"));
    fs::copy(segment(place.path(), &log), &path).unwrap();
    let of_copy = |report: VerifyReport| report.chains.into_iter().find(|it| it.chain == other);
    let found = of_copy(verify(place.path()).unwrap()).unwrap();
    assert_eq!(found.fault.unwrap().fault, LineFault::WrongSegmentName);
    // With its name in the first line it has a signature for another chain.
    forge(&path, true, |_, body| Some(body.replace(&from, &to)));
    let found = of_copy(verify(place.path()).unwrap()).unwrap();
    assert_eq!(found.fault.unwrap().fault, LineFault::Signature);
}

/// However many lines come at once, no more of them in a row are without a signature.
#[test]
fn lines_are_signed_so_often() {
    let place = TempDir::new().unwrap();
    let log = open_log(place.path(), config()).unwrap();
    for _ in 0..UNSIGNED_LINES_MAX * 2 + 500 {
        drop(log.record_event(&event("2026-01-01T00:00:00Z")));
    }
    assert!(
        log.record_event(&event("2026-01-01T00:00:00Z"))
            .is_written()
    );
    let report = verify(place.path()).unwrap();
    assert!(report.is_valid(), "{report:?}");
    assert!(report.chains[0].unsigned <= UNSIGNED_LINES_MAX);
    let path = segment(place.path(), &log);
    log.close().unwrap();
    let whole = verify(place.path()).unwrap().chains.remove(0);
    assert_eq!(whole.unsigned, 0);
    let signed = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines().filter(|line| line.contains("\",\"sig\":\""));
        lines.count()
    };
    assert_eq!(signed(&path), 1 + 2 + 1);
    // Who takes the checkpoints out is found out by what is missing between the others.
    forge(&path, true, |_, body| {
        (!body.starts_with("{\"kind\":\"checkpoint\"") && !body.starts_with("{\"kind\":\"end\""))
            .then(|| body.to_owned())
    });
    assert_eq!(fault(place.path()), Some(LineFault::Unsigned));
}

/// The next start signs nothing that was made anew meanwhile.
#[test]
fn the_chain_of_the_dead_is_not_ended_for_a_forger() {
    for keep_signatures in [true, false] {
        let place = TempDir::new().unwrap();
        let dead = open_log(place.path(), config()).unwrap();
        for _ in 0..UNSIGNED_LINES_MAX + 10 {
            drop(dead.record(&refusal(10)));
        }
        assert!(dead.record(&refusal(10)).is_written());
        let path = segment(place.path(), &dead);
        drop(dead);
        forge(&path, keep_signatures, |n, body| {
            let is_kept = n != 7 && (keep_signatures || !body.contains("checkpoint"));
            is_kept.then(|| body.to_owned())
        });
        let forged = fs::read(&path).unwrap();
        let recovered = recover(place.path()).unwrap().remove(0).unwrap();
        let fault = recovered.damage.unwrap().fault;
        assert!(
            matches!(fault, LineFault::Signature | LineFault::Unsigned),
            "{fault}"
        );
        assert_eq!(fs::read(&path).unwrap(), forged);
    }
}

#[test]
fn a_line_that_is_expected_has_to_be_there() {
    let place = TempDir::new().unwrap();
    let first = ended(place.path(), 1);
    let hash = |report: &VerifyReport, n: usize| report.chains[n].hash.parse().unwrap();
    let head = hash(&verify(place.path()).unwrap(), 0);
    let second = ended(place.path(), 1);
    let report = verify(place.path()).unwrap();
    let expecting = TrustAnchors {
        expected: vec![head, hash(&report, 1)],
        ..trust()
    };
    assert!(verify_by(place.path(), &expecting).unwrap().is_valid());
    fs::remove_file(segment(place.path(), &first)).unwrap();
    let report = verify_by(place.path(), &expecting).unwrap();
    assert_eq!(
        (report.missing.as_slice(), report.is_valid()),
        (&[head][..], false)
    );
    fs::remove_file(segment(place.path(), &second)).unwrap();
    let report = verify_by(place.path(), &expecting).unwrap();
    assert_eq!(report.missing, expecting.expected);
}

#[test]
fn the_last_line_of_a_chain_is_told() {
    let place = TempDir::new().unwrap();
    let log = ended(place.path(), 1);
    let report = verify(place.path()).unwrap().chains.remove(0);
    let (seq, hash) = log.head().unwrap();
    assert_eq!((seq, hash.to_string()), (report.ends_at, report.hash));
    assert_eq!(
        format!("{:?}", key()),
        format!("SigningKey({})", key().public())
    );
}
