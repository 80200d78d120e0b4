//! Removing what is older, or more, than the log keeps.
//!
//! Whole segments go, oldest first, and only after a line `retired` in our own chain says where the
//! rest of their chain begins: the chain stays verifiable at every moment. The segment that a chain
//! is being written to stays, as does one that does not fit what follows it, unless that says itself
//! that lines before it were lost.
//!
//! A line `retired` stands for lines that nobody can look at any more, so that it counts only where it
//! is signed; and it says how a segment ended only where a signature says so, since we would sign it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
};

use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    audit::{
        AuditError, ChainId, EventKind, LineType, OpenLog, files,
        hash_chain::{ChainPosition, Hash, unseal},
        reader::{ReadStep, SegmentReader, line_time},
        record::line_writer::LineWriter,
        signature::PublicKey,
        write::entry::{AuditEntry, WriteFailurePolicy},
    },
    clock,
};

/// A segment that was removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retired {
    /// Its chain.
    pub chain: ChainId,
    /// Its number.
    pub segment: u32,
    /// The number of its last line.
    pub last_seq: u64,
}

/// Says that a segment was removed and how it ended, so that what follows it can be checked. A line
/// `retired` without the hash, of a segment whose end nobody signed, is no proof.
#[derive(Clone, Copy, Debug)]
pub(in crate::audit) struct RetentionProof {
    pub(in crate::audit) chain: ChainId,
    pub(in crate::audit) segment: u32,
    /// The last line of the segment.
    pub(in crate::audit) last_position: ChainPosition,
}

impl RetentionProof {
    /// What a line `retired` says.
    pub(in crate::audit) fn parse(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line<'a> {
            chain: &'a str,
            segment: u32,
            last_seq: u64,
            last_hash: &'a str,
        }
        let line: Line<'_> = serde_json::from_slice(line).ok()?;
        Some(Self {
            chain: line.chain.parse().ok()?,
            segment: line.segment,
            last_position: ChainPosition {
                seq: line.last_seq,
                hash: Hash::parse_text(line.last_hash)?,
            },
        })
    }
}

/// Removes what is older than `oldest`, the oldest segments first, until the log has no more than `size`
/// bytes, as far as they may go.
pub(in crate::audit) fn retire(
    open: &OpenLog,
    oldest: Timestamp,
    size: u64,
) -> Result<Vec<Retired>, AuditError> {
    let directory = &open.directory;
    let chains = files::list_chains(directory)?;
    let (mut all, mut total) = (Vec::new(), 0);
    for (chain, segments) in &chains {
        for (n, number) in segments.iter().enumerate() {
            let length = files::length(directory, *chain, *number)?;
            total += length;
            let segment = SegmentReader::open_existing(directory, *chain, *number)?;
            let begun = segment.map_or(Ok(None), |mut segment| segment.first_line_time())?;
            let next = segments.get(n + 1).copied();
            all.push((begun, *chain, *number, next, length));
        }
    }
    all.sort_unstable();
    let (mut removed, mut stay) = (Vec::new(), BTreeSet::new());
    for (_, id, number, next, length) in all {
        if total <= size {
            break;
        }
        let of = ChainSegments {
            directory,
            id,
            is_own: id == open.chain,
            key: &open.key,
        };
        // Of a chain only the beginning may go.
        if stay.contains(&id) {
            continue;
        }
        let Some(old) = of.retirable_segment(number, next, oldest)? else {
            stay.insert(id);
            continue;
        };
        removed.push(open.retire_segment(&old, &chains)?);
        total -= length;
    }
    Ok(removed)
}

/// Whether what follows the removed segment may still be there.
fn is_proof_needed(proof: &RetentionProof, chains: &BTreeMap<ChainId, Vec<u32>>) -> bool {
    let first = chains.get(&proof.chain).and_then(|them| them.first());
    first.is_some_and(|first| *first <= proof.segment + 1)
}

impl OpenLog {
    /// Removes a segment, once it is vouched for what follows it.
    fn retire_segment(
        &self,
        old: &RetirableSegment,
        chains: &BTreeMap<ChainId, Vec<u32>>,
    ) -> Result<Retired, AuditError> {
        for proof in old.proofs.iter().filter(|it| is_proof_needed(it, chains)) {
            let RetentionProof {
                chain,
                segment,
                last_position: ChainPosition { seq, hash },
            } = *proof;
            let retired = Retired {
                chain,
                segment,
                last_seq: seq,
            };
            self.record_retired(&retired, Some(hash))?;
        }
        self.record_retired(&old.retired, old.hash)?;
        let Retired { chain, segment, .. } = old.retired;
        files::remove_segment(&self.directory, chain, segment)?;
        Ok(old.retired)
    }

    /// Returns when the disk says that the segment is gone, and with which hash it ended.
    fn record_retired(&self, retired: &Retired, hash: Option<Hash>) -> Result<(), AuditError> {
        let (mut made, now) = (Vec::new(), clock::now());
        let mut line = LineWriter::begin(&mut made, LineType::Retired);
        line.time("ts", now);
        line.plain_text("chain", &retired.chain.to_string());
        line.number("segment", retired.segment.into());
        line.number("last_seq", retired.last_seq);
        if let Some(hash) = hash {
            line.plain_text("last_hash", &hash.to_string());
        }
        let line = AuditEntry::new(now, made, WriteFailurePolicy::Discard).require_durable();
        self.queue.enqueue(line).wait_blocking()
    }
}

struct ChainSegments<'a> {
    directory: &'a Path,
    id: ChainId,
    is_own: bool,
    key: &'a PublicKey,
}

/// A segment that may go.
struct RetirableSegment {
    retired: Retired,
    /// The hash of its last line, where a signature says that it was the last.
    hash: Option<Hash>,
    /// What the segment itself vouched for.
    proofs: Vec<RetentionProof>,
}

impl ChainSegments<'_> {
    /// Segment `number`, if it is over, fits what follows it, and all of it is older than `oldest`.
    fn retirable_segment(
        &self,
        number: u32,
        next: Option<u32>,
        oldest: Timestamp,
    ) -> Result<Option<RetirableSegment>, AuditError> {
        let Some(mut segment) = SegmentReader::open_existing(self.directory, self.id, number)?
        else {
            return Ok(None);
        };
        if segment.last_line()?.is_none() {
            return Ok(None);
        }
        let Some(link) = unseal(segment.line()).map(|sealed| sealed.position) else {
            return Ok(None);
        };
        let line = segment.line();
        let over = match next {
            Some(next) => self.successor_start(number, link, next)?,
            None if self.is_own || LineType::of(line) != Some(LineType::End) => None,
            None => line_time(line).map(|at| (at, self.key.verify_line(self.id, line).is_some())),
        };
        let Some((_, is_signed)) = over.filter(|(at, _)| *at < oldest) else {
            return Ok(None);
        };
        let retired = Retired {
            chain: self.id,
            segment: number,
            last_seq: link.seq,
        };
        Ok(Some(RetirableSegment {
            retired,
            hash: is_signed.then_some(link.hash),
            proofs: segment_proofs(&mut segment, self.key)?,
        }))
    }

    /// When segment `next` was begun, if it follows `link`, which is the last line of segment
    /// `number`, or says itself what became of that: nothing before it is younger. And whether it is
    /// signed that it follows.
    fn successor_start(
        &self,
        number: u32,
        position: ChainPosition,
        next: u32,
    ) -> Result<Option<(Timestamp, bool)>, AuditError> {
        let Some(mut segment) = SegmentReader::open_existing(self.directory, self.id, next)? else {
            return Ok(None);
        };
        if !matches!(segment.read()?, ReadStep::Line(_)) {
            return Ok(None);
        }
        let line = segment.line();
        let follows = unseal(line).is_some_and(|sealed| {
            (sealed.prev, sealed.position.seq) == (position.hash, position.seq + 1)
        });
        let is_signed = follows && self.key.verify_line(self.id, line).is_some();
        let begun = line_time(line).map(|at| (at, is_signed));
        let fits = follows || self.records_loss(number..next, &mut segment)?;
        Ok(begun.filter(|_| fits))
    }

    /// Whether the next line of `segment` says that one of `numbers` was lost.
    fn records_loss(
        &self,
        numbers: Range<u32>,
        segment: &mut SegmentReader,
    ) -> Result<bool, AuditError> {
        #[derive(Deserialize)]
        struct Line<'a> {
            event: &'a str,
            subject: &'a str,
        }
        if !matches!(segment.read()?, ReadStep::Line(_)) {
            return Ok(false);
        }
        let line = serde_json::from_slice::<Line<'_>>(segment.line()).ok();
        let line = line.filter(|line| line.event == EventKind::SegmentLost.as_str());
        let lost = line.and_then(|line| line.subject.strip_prefix(&format!("{}/", self.id)));
        Ok(lost
            .and_then(|number| number.parse().ok())
            .is_some_and(|number: u32| numbers.contains(&number)))
    }
}

/// What all segments in `directory` vouch for, signed with `key`; those that cannot be read, for nothing.
pub(in crate::audit) fn all_proofs(
    directory: &Path,
    key: &PublicKey,
) -> Result<Vec<RetentionProof>, AuditError> {
    let mut found = Vec::new();
    for (chain, segments) in files::list_chains(directory)? {
        for number in segments {
            let segment = SegmentReader::open_existing(directory, chain, number);
            if let Ok(Some(mut segment)) = segment
                && let Ok(proofs) = segment_proofs(&mut segment, key)
            {
                found.extend(proofs);
            }
        }
    }
    Ok(found)
}

/// What a segment vouches for, signed with `key`.
fn segment_proofs(
    segment: &mut SegmentReader,
    key: &PublicKey,
) -> Result<Vec<RetentionProof>, AuditError> {
    segment.seek(0)?;
    let mut found = Vec::new();
    while let ReadStep::Line(_) = segment.read()? {
        let line = segment.line();
        if LineType::of(line) == Some(LineType::Retired)
            && key.verify_line(segment.chain, line).is_some()
        {
            found.extend(RetentionProof::parse(line));
        }
    }
    Ok(found)
}
