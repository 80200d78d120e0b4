//! Follows the log with the index of the store, off the path of calls: the log is the truth, and
//! the index can be made again from it. It has a row for each record, written many at a time.
//!
//! A turn compares the length of each segment with how far the index knows it, and reads what is new.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::truncation::{check_segment, record_truncations};
use crate::{
    audit::{
        AuditError, AuditLog, ChainId, IndexLag, LineType, files,
        hash_chain::claimed_hash,
        reader::{ReadStep, SegmentReader},
        record::record_line::{invocation, micros, millis, time},
    },
    money::Micros,
    names::InvocationId,
    store::{AuditIndex, IndexedRecord, IndexedSegment, SegmentMark},
};

/// Bytes of the log that are read before the index is written, at least.
const ROUND_BYTES: u64 = 32 << 20;

/// Brings the index up to the log.
#[derive(Debug)]
pub struct Indexer {
    index: Arc<dyn AuditIndex>,
    /// Where it is recorded that lines are gone which the index knows.
    log: Option<Arc<AuditLog>>,
    directory: PathBuf,
    /// How far the index knows each segment; read from the store where nothing is here.
    marks: Option<HashMap<(ChainId, u32), SegmentMark>>,
}

/// What one turn read.
#[derive(Debug)]
struct IndexRound {
    segments: Vec<IndexedSegment>,
    /// Whether the index knows more of a segment than there is.
    is_truncated: bool,
    /// Bytes that may be read yet; none when there may be more to read.
    bytes_left: u64,
    /// Whether every segment could be read.
    outcome: Result<(), AuditError>,
}

impl Indexer {
    /// An indexer of the log in `directory`. What it knows and is no longer there stays in the
    /// index, for somebody who can record it.
    pub fn new(directory: &Path, index: Arc<dyn AuditIndex>) -> Self {
        Self {
            index,
            log: None,
            directory: directory.to_owned(),
            marks: None,
        }
    }

    /// The same, for whoever writes to `log`, which is in the same directory: it says there what is
    /// gone, and lets the index forget it (see [`record_truncations()`]).
    #[must_use]
    pub fn with_log(self, log: Arc<AuditLog>) -> Self {
        Self {
            log: Some(log),
            ..self
        }
    }

    /// Indexes what is there.
    ///
    /// # Errors
    /// What stands in the way; the next attempt goes on where this one ended.
    pub async fn catch_up(&mut self) -> Result<(), IndexLag> {
        while self.index_round().await? {}
        Ok(())
    }

    /// Indexes some of what is there; whether there may be more. Where there is not, it returns also
    /// when others write all the time.
    ///
    /// # Errors
    /// As [`Indexer::catch_up`].
    pub async fn index_round(&mut self) -> Result<bool, IndexLag> {
        let (mut compared, is_fresh) = (Ok(()), self.marks.is_none());
        let marks = match (self.marks.take(), &self.log) {
            (Some(marks), _) => marks,
            (None, log) => {
                if let Some(log) = log {
                    compared = record_truncations(log, &*self.index).await;
                }
                let marks = self.index.marks().await?.into_iter();
                marks
                    .filter_map(|mark| Some((segment_key(&mark)?, mark)))
                    .collect()
            }
        };
        let directory = self.directory.clone();
        let read = spawn_blocking(move || (IndexRound::read_round(&directory, &marks), marks));
        let (round, mut marks) = read.await.map_err(|_| IndexLag::ReaderPanicked)?;
        if !round.segments.is_empty() {
            self.index.put(&round.segments).await?;
        }
        compared?;
        if round.is_truncated && self.log.is_some() && !is_fresh {
            return Ok(true);
        }
        let new = round.segments.into_iter().map(IndexedSegment::into_mark);
        marks.extend(new.filter_map(|mark| Some((segment_key(&mark)?, mark))));
        self.marks = Some(marks);
        round.outcome?;
        Ok(round.bytes_left == 0)
    }
}

/// The segment of a mark; nothing for one that is not ours.
fn segment_key(mark: &SegmentMark) -> Option<(ChainId, u32)> {
    Some((mark.chain.parse().ok()?, mark.segment.try_into().ok()?))
}

impl IndexRound {
    /// Reads what is new. A segment that cannot be read keeps nobody from reading the others.
    fn read_round(directory: &Path, marks: &HashMap<(ChainId, u32), SegmentMark>) -> Self {
        let mut round = Self {
            segments: Vec::new(),
            is_truncated: false,
            bytes_left: ROUND_BYTES,
            outcome: Ok(()),
        };
        let chains = match files::list_chains(directory) {
            Ok(chains) => chains,
            Err(error) => {
                round.outcome = Err(error);
                return round;
            }
        };
        let is_there = |(chain, segment): &(ChainId, u32)| {
            let listed = chains.get(chain);
            listed.is_some_and(|segments| segments.binary_search(segment).is_ok())
        };
        round.is_truncated = !marks.keys().all(is_there);
        for (chain, segments) in &chains {
            for number in segments {
                let mark = marks.get(&(*chain, *number));
                let read = round.read_segment(directory, (*chain, *number), mark);
                round.outcome = round.outcome.and(read);
            }
        }
        round
    }

    fn read_segment(
        &mut self,
        directory: &Path,
        (chain, number): (ChainId, u32),
        mark: Option<&SegmentMark>,
    ) -> Result<(), AuditError> {
        let length = files::length(directory, chain, number)?;
        let known = mark.map_or(0, |mark| mark.end);
        self.is_truncated |= length < known;
        if length <= known || self.bytes_left == 0 {
            return Ok(());
        }
        if let Some(mark) = mark
            && check_segment(directory, mark)?.is_some()
        {
            // What follows something else is no reason to forget what was there.
            self.is_truncated = true;
            return Ok(());
        }
        let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
            return Ok(());
        };
        segment.seek(known)?;
        let mut new = IndexedSegment {
            chain: chain.to_string(),
            segment: number.into(),
            ..IndexedSegment::default()
        };
        let read = read_until_limit(&mut segment, &mut new, &mut self.bytes_left);
        // What was read before an error is indexed all the same.
        self.segments.extend(Some(new).filter(|new| new.end > 0));
        read
    }
}

/// Reads lines of `segment` into `new` until there is none, or no bytes are left to read.
fn read_until_limit(
    segment: &mut SegmentReader,
    new: &mut IndexedSegment,
    bytes_left: &mut u64,
) -> Result<(), AuditError> {
    while *bytes_left > 0
        && let ReadStep::Line(position) = segment.read()?
    {
        *bytes_left = bytes_left.saturating_sub(position.length);
        let line = segment.line();
        new.end = position.end();
        new.hash = claimed_hash(line).map(|hash| hash.to_string());
        if LineType::of(line) == Some(LineType::Call) {
            new.records.extend(to_indexed_record(line, position.offset));
        }
    }
    Ok(())
}

/// What of a [`crate::audit::Record`] is in the index.
#[derive(Deserialize)]
struct IndexedColumns<'a> {
    #[serde(deserialize_with = "invocation")]
    id: InvocationId,
    #[serde(deserialize_with = "time")]
    ts: Timestamp,
    #[serde(borrow)]
    agent_id: Cow<'a, str>,
    #[serde(borrow)]
    agent_name: Cow<'a, str>,
    server: Option<String>,
    tool: Option<String>,
    exposed: Option<String>,
    #[serde(borrow)]
    decision: Cow<'a, str>,
    team: Option<String>,
    workspace: Option<String>,
    #[serde(rename = "price_micros", deserialize_with = "micros")]
    price: Micros,
    #[serde(rename = "execution_time_ms", deserialize_with = "millis")]
    took: Duration,
}

/// Bytes of a text that the index has of it: clients choose some of them, and whoever finds a record by
/// the beginning looks at all of it.
const TERM_BYTES_MAX: usize = 128;

/// A text as the index has it.
pub(in crate::audit) fn truncate_term(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TERM_BYTES_MAX));
    text
}

/// The row of the record in `line`. What only a newer version understands, only a newer version can
/// show.
fn to_indexed_record(line: &[u8], offset: u64) -> Option<IndexedRecord> {
    // In whole, or each text of it would be looked at for UTF-8 by itself.
    let text = std::str::from_utf8(line).ok()?;
    let record: IndexedColumns<'_> = serde_json::from_str(text).ok()?;
    Some(IndexedRecord {
        offset,
        ts: record.ts,
        invocation: record.id.0,
        agent_id: record.agent_id.into_owned(),
        agent_name: truncate_term(record.agent_name.into_owned()),
        server: record.server.map(truncate_term),
        tool: record.tool.map(truncate_term),
        exposed: record.exposed.map(truncate_term),
        decision: record.decision.into_owned(),
        team: record.team.map(truncate_term),
        workspace: record.workspace.map(truncate_term),
        price: record.price,
        took: record.took,
    })
}
