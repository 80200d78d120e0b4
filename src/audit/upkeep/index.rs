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

use super::truncation::look_at;
use crate::{
    audit::{
        AuditError, AuditLog, ChainId, ChainReader, IndexLag, LineType, Position, acknowledge,
        files,
        reader::SegmentReader,
        record::line::{invocation, time},
        seal::{Hash, claimed_hash},
    },
    names::InvocationId,
    store::{AuditIndex, IndexedRecord, IndexedSegment, SegmentMark},
};

/// Bytes of the log that are read before the index is written, at least.
const TURN_BYTES: u64 = 32 << 20;

/// Brings the index up to the log, and remembers how far it has come.
#[derive(Debug)]
pub struct Indexer {
    index: Arc<dyn AuditIndex>,
    /// Where it is recorded that lines are gone which the index knows.
    log: Option<Arc<AuditLog>>,
    place: IndexPosition,
    /// Whether the marks of the store have been read.
    begun: bool,
}

/// Where in the log we are.
#[derive(Debug, Default)]
struct IndexPosition {
    directory: PathBuf,
    /// All segments, as they were listed last.
    listed: BTreeMap<ChainId, Vec<u32>>,
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
    is_shorter: bool,
    /// Bytes that may be read yet; none when there may be more to read.
    left: u64,
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
            place: IndexPosition::of(directory.to_owned()),
            begun: false,
        }
    }

    /// The same, for whoever writes to `log`, which is in the same directory: it says there what is
    /// gone, and lets the index forget it (see [`acknowledge()`]).
    #[must_use]
    pub fn recording_in(self, log: Arc<AuditLog>) -> Self {
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
        while self.turn().await? {}
        Ok(())
    }

    /// Indexes some of what is there; whether there may be more. Where there is not, it returns also
    /// when others write all the time.
    ///
    /// # Errors
    /// As [`Indexer::catch_up`].
    pub async fn turn(&mut self) -> Result<bool, IndexLag> {
        let mut acknowledged = Ok(());
        if !self.begun {
            if let Some(log) = &self.log {
                acknowledged = acknowledge(log, &*self.index).await;
            }
            self.place.begin_at(self.index.marks().await?);
            self.begun = true;
        }
        let mut place = std::mem::take(&mut self.place);
        let directory = place.directory.clone();
        let read = spawn_blocking(move || {
            let turn = place.read();
            (place, turn)
        });
        let Ok((place, turn)) = read.await else {
            self.begin_again(directory);
            return Err(IndexLag::Broken);
        };
        self.place = place;
        if !turn.segments.is_empty()
            && let Err(error) = self.index.put(&turn.segments).await
        {
            // What was read is not written.
            self.begin_again(directory);
            return Err(error.into());
        }
        if acknowledged.is_err() {
            self.begin_again(directory);
            return acknowledged.map(|()| true);
        }
        if turn.is_shorter && self.log.is_some() {
            self.begin_again(directory);
            return Ok(true);
        }
        turn.outcome?;
        Ok(turn.left == 0)
    }

    /// Goes on from the marks of the store.
    fn begin_again(&mut self, directory: PathBuf) {
        self.place = IndexPosition::of(directory);
        self.begun = false;
    }
}

impl IndexPosition {
    fn of(directory: PathBuf) -> Self {
        Self {
            directory,
            ..Self::default()
        }
    }

    fn begin_at(&mut self, marks: Vec<SegmentMark>) {
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
    fn read(&mut self) -> IndexRound {
        let mut turn = IndexRound {
            segments: Vec::new(),
            is_shorter: false,
            left: TURN_BYTES,
            outcome: Ok(()),
        };
        let chains = match files::list(&self.directory) {
            Ok(chains) => chains,
            Err(error) => {
                turn.outcome = Err(error);
                return turn;
            }
        };
        self.marks.retain(|chain, _| chains.contains_key(chain));
        self.chains.retain(|chain, _| chains.contains_key(chain));
        self.ended.retain(|chain| chains.contains_key(chain));
        turn.is_shorter = self.is_shorter(&chains);
        for (chain, segments) in &chains {
            if turn.left > 0 && !self.ended.contains(chain) {
                let read = self.read_chain(*chain, segments, &mut turn);
                turn.outcome = turn.outcome.and(read);
            }
        }
        self.listed = chains;
        turn
    }

    /// Whether a segment is gone that was there last time, or one that is being read is not what
    /// was read of it.
    fn is_shorter(&self, chains: &BTreeMap<ChainId, Vec<u32>>) -> bool {
        let is_there = |chain, segment| {
            let segments: Option<&Vec<u32>> = chains.get(chain);
            segments.is_some_and(|them| them.binary_search(segment).is_ok())
        };
        let mut listed = self.listed.iter();
        listed.any(|(chain, them)| them.iter().any(|it| !is_there(chain, it)))
            || self.chains.values().any(ChainReader::is_astray)
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
                    Some((mark, _)) if look_at(&self.directory, mark)?.is_some() => return Ok(()),
                    Some((_, mark)) if is_end(&self.directory, mark)? => {
                        self.ended.insert(id);
                        return Ok(());
                    }
                    Some((_, mark)) => ChainReader::over_after(&self.directory, segments, mark)?,
                    None => ChainReader::over(&self.directory, id, segments),
                })
            }
        };
        if read_on(reader, turn)? == Some(LineType::End) {
            self.chains.remove(&id);
            self.ended.insert(id);
        }
        Ok(())
    }
}

/// Whether the chain ends at `mark`.
fn is_end(directory: &Path, mark: &Position) -> Result<bool, AuditError> {
    let Some(mut segment) = SegmentReader::open_existing(directory, mark.chain, mark.segment)?
    else {
        return Ok(false);
    };
    let last = segment.last_line()?;
    let is_at = last.is_some_and(|last| last.end() == mark.offset);
    Ok(is_at && LineType::of(segment.line()) == Some(LineType::End))
}

/// Reads on until there is no line, or the turn is over; the kind of the last line.
fn read_on(
    reader: &mut ChainReader,
    turn: &mut IndexRound,
) -> Result<Option<LineType>, AuditError> {
    let (mut last, mut new) = (None, None::<IndexedSegment>);
    let mut outcome = Ok(());
    let mut hash = None;
    while turn.left > 0 {
        let position = match reader.advance() {
            Ok(Some(position)) => position,
            Ok(None) => break,
            // What was read before is indexed all the same.
            Err(error) => {
                outcome = Err(error);
                break;
            }
        };
        turn.left = turn.left.saturating_sub(position.length);
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
            let record = indexed(reader.line(), position.offset);
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
struct Indexed<'a> {
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
pub(in crate::audit) fn term(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TERM_BYTES_MAX));
    text
}

/// The row of the record in `line`. What only a newer version understands, only a newer version can
/// show.
fn indexed(line: &[u8], offset: u64) -> Option<IndexedRecord> {
    // In whole, or each text of it would be looked at for UTF-8 by itself.
    let text = std::str::from_utf8(line).ok()?;
    let record: Indexed<'_> = serde_json::from_str(text).ok()?;
    Some(IndexedRecord {
        offset,
        ts: record.ts,
        invocation: record.id.0,
        agent_id: record.agent_id.into_owned(),
        agent_name: term(record.agent_name.into_owned()),
        server: record.server.map(term),
        tool: record.tool.map(term),
        exposed: record.exposed.map(term),
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
            assert_eq!(indexer.place.ended.len(), 3);
            assert!(indexer.place.chains.is_empty());
        }
    }
}
