//! Whether the log is what we wrote: every line's hash, every link, every segment.
//!
//! A chain may begin later than its first line when a line `retired`, which is signed, in a chain that
//! is whole, vouches for what was removed. Whoever can write the files can make hashes that fit, but no
//! signatures: what comes before a signed line is as it was when that was written.

use std::{collections::BTreeMap, fmt, path::Path};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{retention::RetentionProof, truncation};
use crate::{
    audit::{
        AuditError, ChainId, IndexLag, LineType, TruncatedSegment,
        error::LineFault,
        files,
        hash_chain::{ChainPosition, Hash, SealedLine, unseal},
        reader::{ReadStep, SegmentReader, TIME_SEARCH_BYTES, line_time},
        signature::PublicKey,
        write::writer::UNSIGNED_LINES_MAX,
    },
    store::{AuditIndex, SegmentMark},
};

impl LineFault {
    /// Whether `sealed` follows `before`.
    pub(super) fn check_succession(
        before: ChainPosition,
        sealed: &SealedLine<'_>,
    ) -> Result<(), Self> {
        let expected = before.seq + 1;
        if sealed.position.seq != expected {
            return Err(Self::Seq { expected });
        }
        if sealed.prev != before.hash {
            return Err(Self::Prev);
        }
        Ok(())
    }

    /// Whether `line` is signed with one of `keys`, where it has to be: of a certain kind, or after so
    /// many others that are not.
    pub(super) fn check_signature(
        line: &[u8],
        chain: ChainId,
        sealed: &SealedLine<'_>,
        keys: &[PublicKey],
        unsigned: &mut u64,
    ) -> Result<(), Self> {
        if let Some(signature) = &sealed.signature {
            let is_of = |key: &PublicKey| key.verify(chain, sealed.position, signature);
            *unsigned = 0;
            return keys.iter().any(is_of).then_some(()).ok_or(Self::Signature);
        }
        *unsigned += 1;
        if *unsigned > UNSIGNED_LINES_MAX || LineType::of(line).is_some_and(LineType::is_signed) {
            return Err(Self::Unsigned);
        }
        Ok(())
    }
}

/// What is known of the log from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct TrustAnchors {
    /// Keys with which lines may be signed.
    pub keys: Vec<PublicKey>,
    /// Hashes of lines that must be there.
    pub expected: Vec<Hash>,
}

impl TrustAnchors {
    /// Trusts the key of the log in `directory`, where it has one.
    ///
    /// # Errors
    /// When the file of the key cannot be used.
    pub fn local(directory: &Path) -> Result<Self, AuditError> {
        let mut trust = Self::default();
        if !files::list_chains(directory)?.is_empty() {
            trust.keys.extend(PublicKey::load(directory)?);
        }
        Ok(trust)
    }
}

/// What all chains are like.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyReport {
    /// Every chain, by when it began.
    pub chains: Vec<ChainReport>,
    /// Segments of which the index knows more than there is, if it was asked.
    pub shortened: Vec<TruncatedSegment>,
    /// Hashes that were expected, and that no line has.
    pub missing: Vec<Hash>,
}

impl VerifyReport {
    /// Whether nothing is wrong anywhere.
    pub fn is_valid(&self) -> bool {
        self.missing.is_empty()
            && self.shortened.is_empty()
            && self.chains.iter().all(|chain| chain.fault.is_none())
    }
}

/// What one chain is like.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainReport {
    /// The chain.
    pub chain: ChainId,
    /// Its segments.
    pub segments: usize,
    /// Its lines, up to the first that is wrong.
    pub lines: u64,
    /// When its first line was written.
    pub first: Option<Timestamp>,
    /// When the last of `lines` was written.
    pub last: Option<Timestamp>,
    /// Whether it has ended.
    pub ended: bool,
    /// The number of the first line that is there; more than 1 when older ones were retired.
    pub begins_at: u64,
    /// The number of the last of `lines`.
    pub ends_at: u64,
    /// The hash of the last of `lines`, 64 hex digits. Kept elsewhere, it shows later whether lines
    /// were removed from the end.
    pub hash: String,
    /// How many of the last lines come after the last signature.
    pub unsigned: u64,
    /// Bytes of a line that is being written, or was when the process died; no fault.
    pub torn_bytes: u64,
    /// The first thing that is wrong.
    pub fault: Option<FaultAt>,
}

/// Something wrong and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FaultAt {
    /// The segment.
    pub segment: u32,
    /// The line in the segment, from 1.
    pub line: u64,
    /// The number that the line gives itself.
    pub seq: Option<u64>,
    /// What is wrong.
    pub fault: LineFault,
}

impl fmt::Display for FaultAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}, line {}", self.segment, self.line)?;
        if let Some(seq) = self.seq {
            write!(f, ", seq {seq}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

/// Times everything is looked at before something is called wrong: segments may be retired
/// meanwhile.
const VERIFY_ATTEMPTS: usize = 2;

/// Looks at every line of every chain in `directory`, also while processes write. Trusted is the key of
/// this data directory.
///
/// # Errors
/// When files cannot be read; what is wrong in them is in the report.
pub fn verify(directory: &Path) -> Result<VerifyReport, AuditError> {
    verify_by(directory, &TrustAnchors::local(directory)?)
}

/// The same, by what is known from elsewhere.
///
/// # Errors
/// As [`verify`].
pub fn verify_by(directory: &Path, trust: &TrustAnchors) -> Result<VerifyReport, AuditError> {
    let mut report = look(directory, &[], trust)?;
    for _ in 1..VERIFY_ATTEMPTS {
        if report.is_valid() {
            break;
        }
        report = look(directory, &[], trust)?;
    }
    Ok(report)
}

/// The same, and whether all is there that `index` knows.
///
/// # Errors
/// When files or the index cannot be read.
pub async fn verify_with(
    directory: &Path,
    index: &dyn AuditIndex,
    trust: &TrustAnchors,
) -> Result<VerifyReport, IndexLag> {
    let mut looks = 0;
    loop {
        // Before the files are looked at, which may grow meanwhile.
        let marks = index.marks().await?;
        let (directory, trust) = (directory.to_owned(), trust.clone());
        let report = spawn_blocking(move || look(&directory, &marks, &trust)).await;
        let report = report.map_err(|_| IndexLag::ReaderPanicked)??;
        looks += 1;
        if report.is_valid() || looks == VERIFY_ATTEMPTS {
            return Ok(report);
        }
    }
}

fn look(
    directory: &Path,
    marks: &[SegmentMark],
    trust: &TrustAnchors,
) -> Result<VerifyReport, AuditError> {
    // What is gone by now was proven before, so that the proofs are found below.
    let (mut shortened, read) = truncation::find_truncated(directory, marks);
    read?;
    let mut walks = Vec::new();
    for (chain, segments) in files::list_chains(directory)? {
        walks.push(ChainWalk::walk(directory, chain, &segments, trust)?);
    }
    let whole = walks.iter().filter(|walk| walk.report.fault.is_none());
    let proofs = whole.flat_map(|walk| &walk.proofs);
    shortened.retain(|it| !it.is_retired(proofs.clone()));
    // What comes after the beginning of its chain is there or missing, whatever anybody says.
    let is_gone = |proof: &&RetentionProof| {
        let mut of = walks.iter().filter(|it| it.report.chain == proof.chain);
        of.all(|walk| proof.last_position.seq <= walk.previous.seq)
    };
    let gone: Vec<Hash> = proofs
        .clone()
        .filter(is_gone)
        .map(|it| it.last_position.hash)
        .collect();
    let mut missing = trust.expected.clone();
    missing.retain(|hash| !gone.contains(hash));
    let proofs: BTreeMap<(ChainId, u64), Hash> = proofs
        .map(|proof| {
            (
                (proof.chain, proof.last_position.seq),
                proof.last_position.hash,
            )
        })
        .collect();
    let mut chains = Vec::new();
    for walk in walks {
        missing.retain(|hash| !walk.found_expected.contains(hash));
        let mut report = walk.report;
        let vouched = proofs.get(&(report.chain, walk.previous.seq)) == Some(&walk.previous.hash);
        if report.fault.is_none() && walk.previous != ChainPosition::default() && !vouched {
            report.fault = Some(FaultAt {
                segment: walk.first_segment,
                line: 1,
                seq: Some(report.begins_at),
                fault: LineFault::UnprovenRemoval {
                    last: walk.first_segment.saturating_sub(1),
                },
            });
        }
        chains.push(report);
    }
    Ok(VerifyReport {
        chains,
        shortened,
        missing,
    })
}

/// One chain being walked.
struct ChainWalk<'a> {
    trust: &'a TrustAnchors,
    /// What was expected and is there.
    found_expected: Vec<Hash>,
    report: ChainReport,
    /// What comes before its first line.
    previous: ChainPosition,
    /// Its last line so far.
    current: ChainPosition,
    /// The segment being walked.
    segment: u32,
    /// The segment that has its first line.
    first_segment: u32,
    proofs: Vec<RetentionProof>,
    /// How its last line so far begins.
    line_prefix: Vec<u8>,
}

impl<'a> ChainWalk<'a> {
    fn walk(
        directory: &Path,
        chain: ChainId,
        segments: &[u32],
        trust: &'a TrustAnchors,
    ) -> Result<Self, AuditError> {
        let mut walk = Self {
            trust,
            found_expected: Vec::new(),
            report: ChainReport {
                chain,
                segments: segments.len(),
                lines: 0,
                first: None,
                last: None,
                ended: false,
                begins_at: 0,
                ends_at: 0,
                hash: String::new(),
                unsigned: 0,
                torn_bytes: 0,
                fault: None,
            },
            previous: ChainPosition::default(),
            current: ChainPosition::default(),
            segment: 0,
            first_segment: 0,
            proofs: Vec::new(),
            line_prefix: Vec::new(),
        };
        for (n, number) in segments.iter().enumerate() {
            let is_last = n + 1 == segments.len();
            walk.walk_segment(directory, *number, is_last)?;
            if walk.report.fault.is_some() {
                break;
            }
        }
        walk.report.last = line_time(&walk.line_prefix);
        walk.report.ends_at = walk.current.seq;
        walk.report.hash = walk.current.hash.to_string();
        Ok(walk)
    }

    fn walk_segment(
        &mut self,
        directory: &Path,
        number: u32,
        is_last: bool,
    ) -> Result<(), AuditError> {
        let expected = self.segment + 1;
        let begins = self.segment == 0;
        self.segment = number;
        let fault = |line, seq, fault| FaultAt {
            segment: number,
            line,
            seq,
            fault,
        };
        if !begins && number != expected {
            self.report.fault = Some(fault(1, None, LineFault::MissingSegment { expected }));
            return Ok(());
        }
        let chain = self.report.chain;
        let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
            let missing = LineFault::MissingSegment { expected: number };
            self.report.fault = Some(fault(1, None, missing));
            return Ok(());
        };
        let mut lines = 0;
        loop {
            let step = segment.read()?;
            match step {
                ReadStep::End => break,
                ReadStep::Torn { bytes } if is_last && (lines == 0 || !self.report.ended) => {
                    self.report.torn_bytes = bytes;
                    break;
                }
                ReadStep::Torn { .. } => {
                    self.report.fault = Some(fault(lines + 1, None, LineFault::Torn));
                    return Ok(());
                }
                ReadStep::Line(_) => lines += 1,
            }
            if let Err(wrong) = self.walk_line(segment.line(), lines == 1) {
                let seq = unseal(segment.line()).map(|sealed| sealed.position.seq);
                self.report.fault = Some(fault(lines, seq, wrong));
                return Ok(());
            }
        }
        Ok(())
    }

    fn walk_line(&mut self, line: &[u8], begins: bool) -> Result<(), LineFault> {
        let sealed = unseal(line).ok_or(LineFault::NotALine)?;
        if !sealed.is_hash_valid {
            return Err(LineFault::Hash);
        }
        if self.report.lines == 0 {
            self.check_first_line(line, &sealed)?;
        }
        if self.report.ended {
            return Err(LineFault::AfterEnd);
        }
        LineFault::check_succession(self.current, &sealed)?;
        if begins {
            self.check_segment_name(line)?;
        }
        let (keys, unsigned) = (&self.trust.keys, &mut self.report.unsigned);
        LineFault::check_signature(line, self.report.chain, &sealed, keys, unsigned)?;
        if self.trust.expected.contains(&sealed.position.hash) {
            self.found_expected.push(sealed.position.hash);
        }
        match LineType::of(line) {
            Some(LineType::End) => self.report.ended = true,
            Some(LineType::Retired) => self.proofs.extend(RetentionProof::parse(line)),
            Some(
                LineType::Begin
                | LineType::Call
                | LineType::Checkpoint
                | LineType::Event
                | LineType::Opened,
            )
            | None => {}
        }
        self.current = sealed.position;
        self.report.lines += 1;
        self.line_prefix.clear();
        self.line_prefix
            .extend_from_slice(&line[..line.len().min(TIME_SEARCH_BYTES)]);
        Ok(())
    }

    /// A chain begins with line 1 of segment 1, unless what was before is gone.
    fn check_first_line(&mut self, line: &[u8], sealed: &SealedLine<'_>) -> Result<(), LineFault> {
        if self.segment == 1 {
            LineFault::check_succession(ChainPosition::default(), sealed)?;
        } else {
            self.previous = ChainPosition {
                seq: sealed.position.seq.saturating_sub(1),
                hash: sealed.prev,
            };
        }
        self.current = self.previous;
        self.first_segment = self.segment;
        self.report.begins_at = sealed.position.seq;
        self.report.first = line_time(line);
        Ok(())
    }

    /// The first line of a segment says which it is.
    fn check_segment_name(&self, line: &[u8]) -> Result<(), LineFault> {
        #[derive(Deserialize)]
        struct Begin<'a> {
            chain: &'a str,
            segment: u32,
        }
        let begin: Begin<'_> = serde_json::from_slice(line).map_err(|_| LineFault::NotALine)?;
        let is_begin = LineType::of(line) == Some(LineType::Begin);
        let same = begin.chain == self.report.chain.to_string() && begin.segment == self.segment;
        (is_begin && same)
            .then_some(())
            .ok_or(LineFault::WrongSegmentName)
    }
}
