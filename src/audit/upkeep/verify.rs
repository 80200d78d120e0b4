//! Whether the log is what we wrote: every line's hash, every link, every segment.
//!
//! A chain may begin later than its first line when a line `retired`, which is signed, in a chain that
//! is whole, vouches for what was removed. Whoever can write the files can make hashes that fit, but no
//! signatures: what comes before a signed line is as it was when that was written.

use std::{collections::BTreeMap, fmt, path::Path};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{
    retire::Voucher,
    truncation::{self, Vouched},
};
use crate::{
    audit::{
        AuditError, ChainId, IndexLag, LineType, Shortened,
        error::LineFault,
        files,
        reader::{HEAD_BYTES, ReadStep, SegmentReader, written_at},
        seal::{ChainPosition, Hash, SealedLine, unseal},
        signature::PublicKey,
        write::writer::UNSIGNED_LINES_MAX,
    },
    store::{AuditIndex, SegmentMark},
};

impl LineFault {
    /// Whether `sealed` follows `before`.
    pub(super) fn between(before: ChainPosition, sealed: &SealedLine<'_>) -> Result<(), Self> {
        let expected = before.seq + 1;
        if sealed.link.seq != expected {
            return Err(Self::Seq { expected });
        }
        if sealed.prev != before.hash {
            return Err(Self::Prev);
        }
        Ok(())
    }

    /// Whether `line` is signed with one of `keys`, where it has to be: of a certain kind, or after so
    /// many others that are not.
    pub(super) fn of_signature(
        line: &[u8],
        chain: ChainId,
        sealed: &SealedLine<'_>,
        keys: &[PublicKey],
        unsigned: &mut u64,
    ) -> Result<(), Self> {
        if let Some(signature) = &sealed.signature {
            let is_of = |key: &PublicKey| key.has_signed(chain, sealed.link, signature);
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
pub struct Trust {
    /// Keys with which lines may be signed.
    pub keys: Vec<PublicKey>,
    /// Hashes of lines that must be there.
    pub expected: Vec<Hash>,
}

impl Trust {
    /// Trusts the key of the log in `directory`, where it has one.
    ///
    /// # Errors
    /// When the file of the key cannot be used.
    pub fn local(directory: &Path) -> Result<Self, AuditError> {
        let mut trust = Self::default();
        if !files::list(directory)?.is_empty() {
            trust.keys.extend(PublicKey::of(directory)?);
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
    pub shortened: Vec<Shortened>,
    /// Hashes that were expected, and that no line has.
    pub missing: Vec<Hash>,
}

impl VerifyReport {
    /// Whether nothing is wrong anywhere.
    pub fn is_whole(&self) -> bool {
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
const LOOKS: usize = 2;

/// Looks at every line of every chain in `directory`, also while processes write. Trusted is the key of
/// this data directory.
///
/// # Errors
/// When files cannot be read; what is wrong in them is in the report.
pub fn verify(directory: &Path) -> Result<VerifyReport, AuditError> {
    verify_by(directory, &Trust::local(directory)?)
}

/// The same, by what is known from elsewhere.
///
/// # Errors
/// As [`verify`].
pub fn verify_by(directory: &Path, trust: &Trust) -> Result<VerifyReport, AuditError> {
    let mut report = look(directory, &[], trust)?;
    for _ in 1..LOOKS {
        if report.is_whole() {
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
    trust: &Trust,
) -> Result<VerifyReport, IndexLag> {
    let mut looks = 0;
    loop {
        // Before the files are looked at, which may grow meanwhile.
        let marks = index.marks().await?;
        let (directory, trust) = (directory.to_owned(), trust.clone());
        let report = spawn_blocking(move || look(&directory, &marks, &trust)).await;
        let report = report.map_err(|_| IndexLag::Broken)??;
        looks += 1;
        if report.is_whole() || looks == LOOKS {
            return Ok(report);
        }
    }
}

fn look(
    directory: &Path,
    marks: &[SegmentMark],
    trust: &Trust,
) -> Result<VerifyReport, AuditError> {
    // What is gone by now was vouched for before, so that the vouchers are found below.
    let (mut shortened, read) = truncation::find(directory, marks);
    read?;
    let mut walks = Vec::new();
    for (chain, segments) in files::list(directory)? {
        walks.push(ChainWalk::over(directory, chain, &segments, trust)?);
    }
    let whole = walks.iter().filter(|walk| walk.report.fault.is_none());
    let vouchers = whole.flat_map(|walk| &walk.vouchers);
    let vouched: Vouched = vouchers.clone().collect();
    shortened.retain(|it| !vouched.has(it));
    // What comes after the beginning of its chain is there or missing, whatever anybody says.
    let is_gone = |voucher: &&Voucher| {
        let mut of = walks.iter().filter(|it| it.report.chain == voucher.chain);
        of.all(|walk| voucher.link.seq <= walk.before.seq)
    };
    let gone: Vec<Hash> = vouchers
        .clone()
        .filter(is_gone)
        .map(|it| it.link.hash)
        .collect();
    let mut missing = trust.expected.clone();
    missing.retain(|hash| !gone.contains(hash));
    let vouchers: BTreeMap<(ChainId, u64), Hash> = vouchers
        .map(|voucher| ((voucher.chain, voucher.link.seq), voucher.link.hash))
        .collect();
    let mut chains = Vec::new();
    for walk in walks {
        missing.retain(|hash| !walk.met.contains(hash));
        let mut report = walk.report;
        let vouched = vouchers.get(&(report.chain, walk.before.seq)) == Some(&walk.before.hash);
        if report.fault.is_none() && walk.before != ChainPosition::default() && !vouched {
            report.fault = Some(FaultAt {
                segment: walk.begins_in,
                line: 1,
                seq: Some(report.begins_at),
                fault: LineFault::Unvouched {
                    last: walk.begins_in.saturating_sub(1),
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
    trust: &'a Trust,
    /// What was expected and is there.
    met: Vec<Hash>,
    report: ChainReport,
    /// What comes before its first line.
    before: ChainPosition,
    /// Its last line so far.
    at: ChainPosition,
    /// The segment being walked.
    segment: u32,
    /// The segment that has its first line.
    begins_in: u32,
    vouchers: Vec<Voucher>,
    /// How its last line so far begins.
    head: Vec<u8>,
}

impl<'a> ChainWalk<'a> {
    fn over(
        directory: &Path,
        chain: ChainId,
        segments: &[u32],
        trust: &'a Trust,
    ) -> Result<Self, AuditError> {
        let mut walk = Self {
            trust,
            met: Vec::new(),
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
            before: ChainPosition::default(),
            at: ChainPosition::default(),
            segment: 0,
            begins_in: 0,
            vouchers: Vec::new(),
            head: Vec::new(),
        };
        for (n, number) in segments.iter().enumerate() {
            let is_last = n + 1 == segments.len();
            walk.segment(directory, *number, is_last)?;
            if walk.report.fault.is_some() {
                break;
            }
        }
        walk.report.last = written_at(&walk.head);
        walk.report.ends_at = walk.at.seq;
        walk.report.hash = walk.at.hash.to_string();
        Ok(walk)
    }

    fn segment(&mut self, directory: &Path, number: u32, is_last: bool) -> Result<(), AuditError> {
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
            if let Err(wrong) = self.line(segment.line(), lines == 1) {
                let seq = unseal(segment.line()).map(|sealed| sealed.link.seq);
                self.report.fault = Some(fault(lines, seq, wrong));
                return Ok(());
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], begins: bool) -> Result<(), LineFault> {
        let sealed = unseal(line).ok_or(LineFault::NoLine)?;
        if !sealed.genuine {
            return Err(LineFault::Hash);
        }
        if self.report.lines == 0 {
            self.first(line, &sealed)?;
        }
        if self.report.ended {
            return Err(LineFault::AfterEnd);
        }
        LineFault::between(self.at, &sealed)?;
        if begins {
            self.check_name(line)?;
        }
        let (keys, unsigned) = (&self.trust.keys, &mut self.report.unsigned);
        LineFault::of_signature(line, self.report.chain, &sealed, keys, unsigned)?;
        if self.trust.expected.contains(&sealed.link.hash) {
            self.met.push(sealed.link.hash);
        }
        match LineType::of(line) {
            Some(LineType::End) => self.report.ended = true,
            Some(LineType::Retired) => self.vouchers.extend(Voucher::of(line)),
            Some(
                LineType::Begin
                | LineType::Call
                | LineType::Checkpoint
                | LineType::Event
                | LineType::Opened,
            )
            | None => {}
        }
        self.at = sealed.link;
        self.report.lines += 1;
        self.head.clear();
        self.head
            .extend_from_slice(&line[..line.len().min(HEAD_BYTES)]);
        Ok(())
    }

    /// A chain begins with line 1 of segment 1, unless what was before is gone.
    fn first(&mut self, line: &[u8], sealed: &SealedLine<'_>) -> Result<(), LineFault> {
        if self.segment == 1 {
            LineFault::between(ChainPosition::default(), sealed)?;
        } else {
            self.before = ChainPosition {
                seq: sealed.link.seq.saturating_sub(1),
                hash: sealed.prev,
            };
        }
        self.at = self.before;
        self.begins_in = self.segment;
        self.report.begins_at = sealed.link.seq;
        self.report.first = written_at(line);
        Ok(())
    }

    /// The first line of a segment says which it is.
    fn check_name(&self, line: &[u8]) -> Result<(), LineFault> {
        #[derive(Deserialize)]
        struct Begin<'a> {
            chain: &'a str,
            segment: u32,
        }
        let begin: Begin<'_> = serde_json::from_slice(line).map_err(|_| LineFault::NoLine)?;
        let is_begin = LineType::of(line) == Some(LineType::Begin);
        let same = begin.chain == self.report.chain.to_string() && begin.segment == self.segment;
        (is_begin && same).then_some(()).ok_or(LineFault::Misnamed)
    }
}
