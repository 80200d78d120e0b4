//! Follows the log with the index of the store, off the path of calls: the log is the truth, and
//! the index can be made again from it.
//!
//! The index knows blocks of the log and what their records have (see `latest` for how they are
//! found again); with some hundred records to a block it costs a call next to nothing.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{
    AuditError, Behind, ChainId, ChainReader, Kind, Log, Position, acknowledge, files, line::time,
};
use crate::store::{AuditIndex, Block, BlockTerms, ChainMark, StoreError};

/// Bytes at which a block is full: some hundred records, a millisecond of reading.
const BLOCK_BYTES: u64 = 256 << 10;

/// Bytes of the log that are read before the index is written, at least.
const TURN_BYTES: u64 = 32 << 20;

/// Brings the index up to the log, and remembers how far it has come.
#[derive(Debug)]
pub struct Indexer {
    index: Arc<dyn AuditIndex>,
    /// Where it is recorded that lines are gone which the index knows.
    log: Option<Arc<Log>>,
    place: Place,
    /// Whether the marks of the store have been read.
    begun: bool,
}

/// Where in the log we are.
#[derive(Debug, Default)]
struct Place {
    directory: PathBuf,
    /// All segments, as they were listed last.
    listed: BTreeMap<ChainId, Vec<u32>>,
    marks: HashMap<ChainId, Mark>,
    chains: HashMap<ChainId, Chain>,
    /// Chains to which nothing will be added.
    ended: HashSet<ChainId>,
}

/// A chain that is being read.
#[derive(Debug)]
struct Chain {
    reader: ChainReader,
    /// The block that the next line may go on with.
    block: Option<(Block, BlockTerms)>,
    /// The segment up to which the index knows the chain, and how much of it.
    known: (u64, u64),
}

/// Where the last block of a chain begins that the index knows: it may grow. Whoever goes on there
/// makes the same blocks as everybody else.
#[derive(Debug)]
struct Mark {
    start: Position,
    /// Bytes of the segment that the index covers.
    end: u64,
}

/// What one reading gives.
#[derive(Debug)]
struct Turn {
    /// Blocks that are new or have grown.
    blocks: Vec<(Block, BlockTerms)>,
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
            place: Place::of(directory.to_owned()),
            begun: false,
        }
    }

    /// The same, for whoever writes to `log`, which is in the same directory: it says there what is
    /// gone, and lets the index forget it (see [`acknowledge()`]).
    #[must_use]
    pub fn recording_in(self, log: Arc<Log>) -> Self {
        Self {
            log: Some(log),
            ..self
        }
    }

    /// Indexes what is there.
    ///
    /// # Errors
    /// What stands in the way; the next attempt goes on where this one ended.
    pub async fn catch_up(&mut self) -> Result<(), Behind> {
        while self.turn().await? {}
        Ok(())
    }

    /// Indexes some of what is there; whether there may be more. Where there is not, it returns also
    /// when others write all the time.
    ///
    /// # Errors
    /// As [`Indexer::catch_up`].
    pub async fn turn(&mut self) -> Result<bool, Behind> {
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
            return Err(Behind::Broken);
        };
        self.place = place;
        if let Err(error) = self.write(&turn.blocks).await {
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
        self.place = Place::of(directory);
        self.begun = false;
    }

    async fn write(&self, blocks: &[(Block, BlockTerms)]) -> Result<(), StoreError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.index.put(blocks).await
    }
}

impl Place {
    fn of(directory: PathBuf) -> Self {
        Self {
            directory,
            ..Self::default()
        }
    }

    fn begin_at(&mut self, marks: Vec<ChainMark>) {
        for mark in marks {
            let (Ok(chain), Ok(segment)) = (mark.chain.parse(), u32::try_from(mark.segment)) else {
                continue;
            };
            let start = Position {
                chain,
                segment,
                offset: mark.start,
                length: 0,
            };
            let end = mark.end;
            self.marks.insert(chain, Mark { start, end });
        }
    }

    /// Reads on. A chain that cannot be read keeps nobody from reading the others.
    fn read(&mut self) -> Turn {
        let mut turn = Turn {
            blocks: Vec::new(),
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
            || self.chains.values().any(|chain| chain.reader.is_astray())
    }

    fn read_chain(
        &mut self,
        id: ChainId,
        segments: &[u32],
        turn: &mut Turn,
    ) -> Result<(), AuditError> {
        let chain = match self.chains.entry(id) {
            Entry::Occupied(chain) => chain.into_mut(),
            Entry::Vacant(place) => {
                let mark = self.marks.get(&id);
                place.insert(Chain::new(&self.directory, id, segments.to_vec(), mark)?)
            }
        };
        if chain.read(turn)? == Some(Kind::End) {
            self.chains.remove(&id);
            self.ended.insert(id);
        }
        Ok(())
    }
}

impl Chain {
    fn new(
        directory: &Path,
        id: ChainId,
        segments: Vec<u32>,
        mark: Option<&Mark>,
    ) -> Result<Self, AuditError> {
        let (reader, known) = match mark {
            Some(Mark { start, end }) => (
                ChainReader::over_after(directory, segments, start)?,
                (u64::from(start.segment), *end),
            ),
            None => (ChainReader::over(directory, id, segments), (0, 0)),
        };
        Ok(Self {
            reader,
            block: None,
            known,
        })
    }

    /// Reads on until there is no line, or the turn is over; the kind of the last line.
    fn read(&mut self, turn: &mut Turn) -> Result<Option<Kind>, AuditError> {
        let mut last = Ok(None);
        while turn.left > 0 {
            let position = match self.reader.advance() {
                Ok(Some(position)) => position,
                Ok(None) => break,
                // What was read before is indexed all the same.
                Err(error) => {
                    last = Err(error);
                    break;
                }
            };
            turn.left = turn.left.saturating_sub(position.length);
            last = Ok(self.add(position, turn));
        }
        self.hand_in(turn);
        last
    }

    /// Takes in the line that was read, which is at `position`; says its kind.
    fn add(&mut self, position: Position, turn: &mut Turn) -> Option<Kind> {
        let is_full = |(block, _): &(Block, BlockTerms)| is_full(block, position);
        if self.block.as_ref().is_some_and(is_full) {
            self.hand_in(turn);
            self.block = None;
        }
        let line = self.reader.line();
        let (block, terms) = self.block.get_or_insert_with(|| begin(position));
        block.end = position.end();
        let kind = Kind::of(line);
        if kind == Some(Kind::Call) {
            take_in(line, block, terms);
        }
        kind
    }

    /// Hands in the block as it is, if the index does not know it so.
    fn hand_in(&mut self, turn: &mut Turn) {
        if let Some((block, terms)) = &self.block
            && (block.segment, block.end) > self.known
        {
            self.known = (block.segment, block.end);
            turn.blocks.push((block.clone(), terms.clone()));
        }
    }
}

/// Whether the line at `position` does not belong to `block`, which comes before it.
fn is_full(block: &Block, position: Position) -> bool {
    block.segment != u64::from(position.segment) || block.end - block.start >= BLOCK_BYTES
}

fn begin(position: Position) -> (Block, BlockTerms) {
    let block = Block {
        chain: position.chain.to_string(),
        segment: u64::from(position.segment),
        start: position.offset,
        end: position.offset,
        times: None,
    };
    (block, BlockTerms::default())
}

/// What of a [`super::Record`] is in the index.
#[derive(Deserialize)]
struct Indexed<'a> {
    #[serde(deserialize_with = "time")]
    ts: Timestamp,
    #[serde(borrow)]
    agent_id: Term<'a>,
    #[serde(borrow)]
    agent_name: Term<'a>,
    #[serde(borrow)]
    server: Option<Term<'a>>,
    #[serde(borrow)]
    tool: Option<Term<'a>>,
    #[serde(borrow)]
    exposed: Option<Term<'a>>,
    #[serde(borrow)]
    decision: Term<'a>,
}

/// A text, borrowed from the line where it has no escape: that is what a bare `Cow` borrows for.
#[derive(Deserialize)]
struct Term<'a>(#[serde(borrow)] Cow<'a, str>);

/// Adds what a record has to what its block has.
fn take_in(line: &[u8], block: &mut Block, terms: &mut BlockTerms) {
    // In whole, or each text of it would be looked at for UTF-8 by itself.
    let text = std::str::from_utf8(line).ok();
    // What only a newer version understands, only a newer version can show.
    let Some(record) = text.and_then(|text| serde_json::from_str::<Indexed<'_>>(text).ok()) else {
        return;
    };
    let times = (record.ts, record.ts);
    let (first, last) = block.times.unwrap_or(times);
    block.times = Some((first.min(record.ts), last.max(record.ts)));
    let agent = [Some(record.agent_id), Some(record.agent_name)];
    note(&mut terms.agents, agent);
    note(&mut terms.servers, [record.server]);
    note(&mut terms.tools, [record.tool, record.exposed]);
    note(&mut terms.decisions, [Some(record.decision)]);
}

/// Adds what is not there yet: most is.
fn note<'a>(terms: &mut BTreeSet<String>, found: impl IntoIterator<Item = Option<Term<'a>>>) {
    for Term(term) in found.into_iter().flatten() {
        if !terms.contains(&*term) {
            terms.insert(term.into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{
        audit::{Log, testing},
        store::Store,
    };

    /// Of the many chains that commands leave behind nothing is kept, also where it was an earlier
    /// process that indexed them.
    #[tokio::test]
    async fn chains_that_have_ended_are_let_go() {
        let place = TempDir::new().unwrap();
        let store = Store::open(place.path()).await.unwrap();
        for _ in 0..3 {
            let log = Log::open(place.path(), testing::config()).unwrap();
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
