//! What the index knows of the log and the log has no longer.
//!
//! Lines that were indexed can be missing after a loss of power, or because somebody cut a segment,
//! removed it, or wrote others in their place: the hash of the last one tells all before it. What must stay true: the index forgets them only once our own chain says how much
//! it was, so that the evidence outlives it. Segments that were retired are vouched for in the log,
//! also where a crash kept them in the index.

use std::{collections::BTreeSet, fmt, path::Path};

use tokio::task::spawn_blocking;

use super::retention::{RetentionProof, all_proofs};
use crate::{
    audit::{
        AuditError, AuditEvent, AuditLog, ChainId, ChangedValues, EventKind, IndexLag, OpenLog,
        hash_chain::unseal, reader::SegmentReader,
    },
    clock,
    store::{AuditIndex, SegmentMark},
};

/// A segment that has less than the index knows of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TruncatedSegment {
    /// The chain.
    pub chain: ChainId,
    /// The segment.
    pub segment: u32,
    /// Bytes that the index knows.
    pub bytes_known: u64,
    /// Bytes of whole lines that are there, up to those; nothing when the file is gone.
    pub bytes_found: Option<u64>,
    /// Whether as many are there, but the last line is another one.
    pub is_changed: bool,
}

impl fmt::Display for TruncatedSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes_known, .. } = self;
        match self.bytes_found {
            None => write!(f, "{bytes_known} bytes indexed, the file is missing"),
            Some(_) if self.is_changed => {
                write!(f, "{bytes_known} bytes indexed, the content differs")
            }
            Some(found) => write!(f, "{bytes_known} bytes indexed, {found} found"),
        }
    }
}

impl TruncatedSegment {
    /// Whether it was us who removed the segment: the segments before one that was retired were
    /// retired before it.
    pub(in crate::audit) fn is_retired<'a>(
        &self,
        proofs: impl IntoIterator<Item = &'a RetentionProof>,
    ) -> bool {
        let mut of = proofs.into_iter().filter(|it| it.chain == self.chain);
        self.bytes_found.is_none() && of.any(|it| it.segment >= self.segment)
    }
}

/// The segments in `directory` that have less than `marks`, which must have been read before, say;
/// and whether all could be read. Those that were retired are among them: their proofs are there
/// by the time they are gone.
pub(in crate::audit) fn find_truncated(
    directory: &Path,
    marks: &[SegmentMark],
) -> (Vec<TruncatedSegment>, Result<(), AuditError>) {
    let (mut found, mut read) = (Vec::new(), Ok(()));
    for mark in marks {
        match check_segment(directory, mark) {
            Ok(shortened) => found.extend(shortened),
            // It keeps nobody from knowing of the others.
            Err(error) => read = read.and(Err(error)),
        }
    }
    (found, read)
}

/// The segment of `mark`, if it has less than that says, or something else. What comes after the last
/// whole line is cut off by whoever takes over the chain.
pub(in crate::audit) fn check_segment(
    directory: &Path,
    mark: &SegmentMark,
) -> Result<Option<TruncatedSegment>, AuditError> {
    let (Ok(chain), Ok(segment)) = (mark.chain.parse(), u32::try_from(mark.segment)) else {
        return Ok(None);
    };
    let mut truncated = TruncatedSegment {
        chain,
        segment,
        bytes_known: mark.end,
        bytes_found: None,
        is_changed: false,
    };
    let Some(mut segment) = SegmentReader::open_existing(directory, chain, segment)? else {
        return Ok(Some(truncated));
    };
    let last = segment.last_line_within(mark.end)?;
    let found = last.map_or(0, |last| last.end());
    truncated.bytes_found = Some(found);
    truncated.is_changed = found == mark.end
        && mark.hash.as_ref().is_some_and(|known| {
            let sealed = unseal(segment.line()).filter(|sealed| sealed.is_hash_valid);
            sealed.is_none_or(|sealed| sealed.position.hash.to_string() != *known)
        });
    Ok((found < mark.end || truncated.is_changed).then_some(truncated))
}

/// Records in `log` what `index` knows of its directory and is no longer there, and makes the index
/// forget it, so that whatever is appended there is indexed. Nothing where there is no audit.
///
/// Of several processes that come at once one records it. Chains of the dead must not be ended
/// before: what is appended to them hides that something is missing.
///
/// # Errors
/// When the index or the log cannot be read or written; the next attempt goes on there. Segments that
/// cannot be read keep none of the others from being recorded.
pub async fn record_truncations(log: &AuditLog, index: &dyn AuditIndex) -> Result<(), IndexLag> {
    let Some(open) = &log.open else {
        return Ok(());
    };
    let compared = compare_with_index(open, index).await?;
    for it in compared.retired {
        let chain = it.chain.to_string();
        index.remove_segment(&chain, it.segment.into()).await?;
    }
    for it in compared.lost {
        // An event that waits in memory would be recorded again by the next attempt.
        log.ready()?;
        let mark = SegmentMark {
            chain: it.chain.to_string(),
            segment: it.segment.into(),
            end: it.bytes_known,
            hash: None,
        };
        // Of other lines nothing is known.
        let found = it.bytes_found.filter(|_| !it.is_changed);
        let length = found.unwrap_or_default();
        let recorded = Box::pin(record_truncation(log, it));
        index.truncate_segment(&mark, length, recorded).await?;
        log.ready()?;
    }
    Ok(compared.read?)
}

/// The chains in the directory of `log` that have less than `index` knows: what they say was spent
/// is not all that was. None where there is no audit.
///
/// # Errors
/// When the index or the log cannot be read.
pub async fn truncated_chains(
    log: &AuditLog,
    index: &dyn AuditIndex,
) -> Result<BTreeSet<ChainId>, IndexLag> {
    let Some(open) = &log.open else {
        return Ok(BTreeSet::new());
    };
    let lost = compare_with_index(open, index).await?.lost.into_iter();
    Ok(lost.map(|it| it.chain).collect())
}

/// What the index knows and is no longer there.
struct Comparison {
    /// What we removed.
    retired: Vec<TruncatedSegment>,
    /// All else.
    lost: Vec<TruncatedSegment>,
    /// Whether every segment could be read.
    read: Result<(), AuditError>,
}

async fn compare_with_index(
    open: &OpenLog,
    index: &dyn AuditIndex,
) -> Result<Comparison, IndexLag> {
    let marks = index.marks().await?;
    let (directory, key) = (open.directory.clone(), open.key);
    let compared = spawn_blocking(move || {
        let (truncated, read) = find_truncated(&directory, &marks);
        let is_gone = truncated.iter().any(|it| it.bytes_found.is_none());
        let proofs = if is_gone {
            all_proofs(&directory, &key)?
        } else {
            Vec::new()
        };
        let parts = truncated.into_iter().partition(|it| it.is_retired(&proofs));
        let (retired, lost) = parts;
        Ok::<_, AuditError>(Comparison {
            retired,
            lost,
            read,
        })
    });
    Ok(compared.await.map_err(|_| IndexLag::ReaderPanicked)??)
}

/// Says in our own chain that something is missing; whether it is kept.
async fn record_truncation(log: &AuditLog, it: TruncatedSegment) -> bool {
    let event = AuditEvent {
        ts: clock::now(),
        event: EventKind::LogShortened,
        subject: format!("{}/{}", it.chain, it.segment).into(),
        actor: None,
        detail: Some(it.to_string().into()),
        changes: ChangedValues::default(),
    };
    let kept = log.record_event(&event).durable().await.is_ok();
    if kept {
        tracing::warn!(
            chain = %it.chain,
            segment = it.segment,
            bytes_known = it.bytes_known,
            bytes_found = it.bytes_found.unwrap_or_default(),
            is_changed = it.is_changed,
            "the audit log is shorter than its index"
        );
    }
    kept
}
