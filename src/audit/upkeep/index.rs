//! Follows the log with the index of the store, off the path of calls: the log is the truth, and
//! the index can be made again from it. It has a row for each record, written many at a time.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::truncation::check_segment;
use crate::{
    audit::{
        AuditError, AuditLog, ChainId, ChainReader, IndexLag, LineType, Position, files,
        hash_chain::{Hash, claimed_hash},
        reader::SegmentReader,
        record::record_line::{invocation, time},
        record_truncations,
    },
    names::InvocationId,
    store::{AuditIndex, IndexedRecord, IndexedSegment, SegmentMark},
};

/// Bytes of the log that are read before the index is written, at least.
const ROUND_BYTES: u64 = 32 << 20;

/// Brings the index up to the log, and remembers how far it has come.
#[derive(Debug)]
pub struct Indexer {
    index: Arc<dyn AuditIndex>,
    /// Where it is recorded that lines are gone which the index knows.
    log: Option<Arc<AuditLog>>,
    position: IndexPosition,
    /// Whether the marks of the store have been read.
    is_started: bool,
}

/// Where in the log we are.
#[derive(Debug, Default)]
struct IndexPosition {
    directory: PathBuf,
    /// All segments, as they were listed last.
    segments: BTreeMap<ChainId, Vec<u32>>,
    /// Up to where the index knows each chain.
    marks: HashMap<ChainId, (SegmentMark, Position)>,
    chains: HashMap<ChainId, ChainReader>,
    /// Chains to which nothing will be added.
    ended: HashSet<ChainId>,
}

/// What one reading gives.
#[derive(Debug)]
struct IndexRound {
    segments: Vec<IndexedSegment>,
    /// Whether something that was there is gone.
    is_truncated: bool,
    /// Bytes that may be read yet; none when there may be more to read.
    bytes_left: u64,
    /// Whether every chain could be read.
    outcome: Result<(), AuditError>,
}

impl Indexer {
    /// An indexer of the log in `directory`. What it knows and is no longer there stays in the
    /// index, for somebody who can record it.
    pub fn new(directory: &Path, index: Arc<dyn AuditIndex>) -> Self {
        Self {
            index,
            log: None,
            position: IndexPosition::of(directory.to_owned()),
            is_started: false,
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
        let mut acknowledged = Ok(());
        if !self.is_started {
            if let Some(log) = &self.log {
                acknowledged = record_truncations(log, &*self.index).await;
            }
            self.position.start_at(self.index.marks().await?);
            self.is_started = true;
        }
        let mut place = std::mem::take(&mut self.position);
        let directory = place.directory.clone();
        let read = spawn_blocking(move || {
            let turn = place.read_round();
            (place, turn)
        });
        let Ok((place, turn)) = read.await else {
            self.restart(directory);
            return Err(IndexLag::ReaderPanicked);
        };
        self.position = place;
        if !turn.segments.is_empty()
            && let Err(error) = self.index.put(&turn.segments).await
        {
            // What was read is not written.
            self.restart(directory);
            return Err(error.into());
        }
        if acknowledged.is_err() {
            self.restart(directory);
            return acknowledged.map(|()| true);
        }
        if turn.is_truncated && self.log.is_some() {
            self.restart(directory);
            return Ok(true);
        }
        turn.outcome?;
        Ok(turn.bytes_left == 0)
    }

    /// Goes on from the marks of the store.
    fn restart(&mut self, directory: PathBuf) {
        self.position = IndexPosition::of(directory);
        self.is_started = false;
    }
}

impl IndexPosition {
    fn of(directory: PathBuf) -> Self {
        Self {
            directory,
            ..Self::default()
        }
    }

    fn start_at(&mut self, marks: Vec<SegmentMark>) {
        for mark in marks {
            let (Ok(chain), Ok(segment)) = (mark.chain.parse(), u32::try_from(mark.segment)) else {
                continue;
            };
            let at = Position {
                chain,
                segment,
                offset: mark.end,
                length: 0,
            };
            // Later segments come later.
            self.marks.insert(chain, (mark, at));
        }
    }

    /// Reads on. A chain that cannot be read keeps nobody from reading the others.
    fn read_round(&mut self) -> IndexRound {
        let mut turn = IndexRound {
            segments: Vec::new(),
            is_truncated: false,
            bytes_left: ROUND_BYTES,
            outcome: Ok(()),
        };
        let chains = match files::list_chains(&self.directory) {
            Ok(chains) => chains,
            Err(error) => {
                turn.outcome = Err(error);
                return turn;
            }
        };
        self.marks.retain(|chain, _| chains.contains_key(chain));
        self.chains.retain(|chain, _| chains.contains_key(chain));
        self.ended.retain(|chain| chains.contains_key(chain));
        turn.is_truncated = self.is_truncated(&chains);
        for (chain, segments) in &chains {
            if turn.bytes_left > 0 && !self.ended.contains(chain) {
                let read = self.read_chain(*chain, segments, &mut turn);
                turn.outcome = turn.outcome.and(read);
            }
        }
        self.segments = chains;
        turn
    }

    /// Whether a segment is gone that was there last time, or one that is being read is not what
    /// was read of it.
    fn is_truncated(&self, chains: &BTreeMap<ChainId, Vec<u32>>) -> bool {
        let is_there = |chain, segment| {
            let segments: Option<&Vec<u32>> = chains.get(chain);
            segments.is_some_and(|them| them.binary_search(segment).is_ok())
        };
        let mut listed = self.segments.iter();
        listed.any(|(chain, them)| them.iter().any(|it| !is_there(chain, it)))
            || self.chains.values().any(ChainReader::is_replaced)
    }

    fn read_chain(
        &mut self,
        id: ChainId,
        segments: &[u32],
        turn: &mut IndexRound,
    ) -> Result<(), AuditError> {
        let reader = match self.chains.entry(id) {
            Entry::Occupied(reader) => reader.into_mut(),
            Entry::Vacant(place) => {
                let segments = segments.to_vec();
                place.insert(match self.marks.get(&id) {
                    // What follows something else is no reason to forget what was there.
                    Some((mark, _)) if check_segment(&self.directory, mark)?.is_some() => {
                        return Ok(());
                    }
                    Some((_, mark)) if is_chain_end(&self.directory, mark)? => {
                        self.ended.insert(id);
                        return Ok(());
                    }
                    Some((_, mark)) => ChainReader::resume_over(&self.directory, segments, mark)?,
                    None => ChainReader::over_segments(&self.directory, id, segments),
                })
            }
        };
        if read_until_limit(reader, turn)? == Some(LineType::End) {
            self.chains.remove(&id);
            self.ended.insert(id);
        }
        Ok(())
    }
}

/// Whether the chain ends at `mark`.
fn is_chain_end(directory: &Path, mark: &Position) -> Result<bool, AuditError> {
    let Some(mut segment) = SegmentReader::open_existing(directory, mark.chain, mark.segment)?
    else {
        return Ok(false);
    };
    let last = segment.last_line()?;
    let is_at = last.is_some_and(|last| last.end() == mark.offset);
    Ok(is_at && LineType::of(segment.line()) == Some(LineType::End))
}

/// Reads on until there is no line, or the turn is over; the kind of the last line.
fn read_until_limit(
    reader: &mut ChainReader,
    turn: &mut IndexRound,
) -> Result<Option<LineType>, AuditError> {
    let (mut last, mut new) = (None, None::<IndexedSegment>);
    let mut outcome = Ok(());
    let mut hash = None;
    while turn.bytes_left > 0 {
        let position = match reader.advance() {
            Ok(Some(position)) => position,
            Ok(None) => break,
            // What was read before is indexed all the same.
            Err(error) => {
                outcome = Err(error);
                break;
            }
        };
        turn.bytes_left = turn.bytes_left.saturating_sub(position.length);
        let number = u64::from(position.segment);
        let done = new.take_if(|segment| segment.segment != number);
        turn.segments.extend(done.map(|it| with_hash(it, hash)));
        let segment = new.get_or_insert_with(|| IndexedSegment {
            chain: position.chain.to_string(),
            segment: number,
            ..IndexedSegment::default()
        });
        segment.end = position.end();
        hash = claimed_hash(reader.line());
        last = LineType::of(reader.line());
        if last == Some(LineType::Call) {
            let record = to_indexed_record(reader.line(), position.offset);
            segment.records.extend(record);
        }
    }
    turn.segments.extend(new.map(|it| with_hash(it, hash)));
    outcome.map(|()| last)
}

/// What was read of a segment, of which the last line says that this is its hash.
fn with_hash(read: IndexedSegment, hash: Option<Hash>) -> IndexedSegment {
    IndexedSegment {
        hash: hash.map(|hash| hash.to_string()),
        ..read
    }
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
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{audit::testing, store::Store};

    /// Of the many chains that commands leave behind nothing is kept, also where it was an earlier
    /// process that indexed them.
    #[tokio::test]
    async fn chains_that_have_ended_are_let_go() {
        let place = TempDir::new().unwrap();
        let store = Store::open(place.path()).await.unwrap();
        for _ in 0..3 {
            let log = testing::open_log(place.path(), testing::config()).unwrap();
            assert!(
                log.record(&testing::record(testing::invocation()))
                    .is_written()
            );
            log.close().unwrap();
        }
        for _ in 0..2 {
            let mut indexer = Indexer::new(place.path(), Arc::clone(&store.audit));
            indexer.catch_up().await.unwrap();
            assert_eq!(indexer.position.ended.len(), 3);
            assert!(indexer.position.chains.is_empty());
        }
    }
}
