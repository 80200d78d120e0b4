//! Follows the log with the index of the store, off the path of calls: the log is the truth, and
//! the index can be made again from it.
//!
//! The index knows blocks of the log and what their records have (see `latest` for how they are
//! found again); with some hundred records to a block it costs a call next to nothing.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet, hash_map::Entry},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{AuditError, ChainId, ChainReader, Kind, Position, files, line::time};
use crate::store::{AuditIndex, Block, BlockTerms, SegmentMark, StoreError};

/// Bytes at which a block is full: some hundred records, a millisecond of reading.
const BLOCK_BYTES: u64 = 256 << 10;

/// Bytes of the log that are read before the index is written, at least.
const TURN_BYTES: u64 = 32 << 20;

/// Brings the index up to the log, and remembers how far it has come.
#[derive(Debug)]
pub struct Indexer {
    index: Arc<dyn AuditIndex>,
    place: Place,
    /// Whether the marks of the store have been read.
    begun: bool,
}

/// Where in the log we are.
#[derive(Debug, Default)]
struct Place {
    directory: PathBuf,
    marks: HashMap<ChainId, Position>,
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
    /// Whether that block has lines that the index does not know.
    has_grown: bool,
}

/// What one reading gives.
#[derive(Debug)]
struct Turn {
    /// Blocks that are new or have grown.
    blocks: Vec<(Block, BlockTerms)>,
    /// Bytes that may be read yet; none when there may be more to read.
    left: u64,
    /// Whether every chain could be read.
    outcome: Result<(), AuditError>,
}

/// Why the index stays behind.
#[derive(Debug, thiserror::Error)]
pub enum Behind {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] AuditError),
    /// The store cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread that read was ended.
    #[error("reading the log was broken off")]
    Broken,
}

impl Indexer {
    /// An indexer of the log in `directory`.
    pub fn new(directory: &Path, index: Arc<dyn AuditIndex>) -> Self {
        Self {
            index,
            place: Place {
                directory: directory.to_owned(),
                ..Place::default()
            },
            begun: false,
        }
    }

    /// Indexes every line that was there when it began: on a busy day there are always more.
    ///
    /// # Errors
    /// What stands in the way; the next attempt goes on where this one ended.
    pub async fn catch_up(&mut self) -> Result<(), Behind> {
        if !self.begun {
            self.place.begin_at(self.index.marks().await?);
            self.begun = true;
        }
        loop {
            let mut place = std::mem::take(&mut self.place);
            let directory = place.directory.clone();
            let read = spawn_blocking(move || {
                let turn = place.read();
                (place, turn)
            });
            let Ok((place, turn)) = read.await else {
                *self = Self::new(&directory, Arc::clone(&self.index));
                return Err(Behind::Broken);
            };
            self.place = place;
            if let Err(error) = self.write(&turn.blocks).await {
                // What was read is not written: begin again from the marks.
                *self = Self::new(&directory, Arc::clone(&self.index));
                return Err(error.into());
            }
            if turn.left > 0 {
                return Ok(turn.outcome?);
            }
        }
    }

    async fn write(&self, blocks: &[(Block, BlockTerms)]) -> Result<(), StoreError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.index.put(blocks).await
    }
}

impl Place {
    fn begin_at(&mut self, marks: Vec<SegmentMark>) {
        for mark in marks {
            let (Ok(chain), Ok(segment)) = (mark.chain.parse(), u32::try_from(mark.segment)) else {
                continue;
            };
            let position = Position {
                chain,
                segment,
                offset: mark.indexed,
                length: 0,
            };
            let latest = self.marks.entry(chain).or_insert(position);
            *latest = (*latest).max(position);
        }
    }

    /// Reads on. A chain that cannot be read keeps nobody from reading the others.
    fn read(&mut self) -> Turn {
        let mut turn = Turn {
            blocks: Vec::new(),
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
        for chain in chains.into_keys() {
            if turn.left > 0 && !self.ended.contains(&chain) {
                let read = self.read_chain(chain, &mut turn);
                turn.outcome = turn.outcome.and(read);
            }
        }
        turn
    }

    fn read_chain(&mut self, id: ChainId, turn: &mut Turn) -> Result<(), AuditError> {
        let chain = match self.chains.entry(id) {
            Entry::Occupied(chain) => chain.into_mut(),
            Entry::Vacant(place) => {
                let reader = match self.marks.get(&id) {
                    Some(position) => ChainReader::after(&self.directory, position)?,
                    None => ChainReader::new(&self.directory, id)?,
                };
                place.insert(Chain {
                    reader,
                    block: None,
                    has_grown: false,
                })
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
    /// Reads on until there is no line, or the turn is over; the kind of the last line.
    fn read(&mut self, turn: &mut Turn) -> Result<Option<Kind>, AuditError> {
        let mut last = None;
        while turn.left > 0
            && let Some(position) = self.reader.advance()?
        {
            let line = self.reader.line();
            last = Kind::of(line);
            let is_full = |(block, _): &(Block, BlockTerms)| is_full(block, position);
            if self.block.as_ref().is_some_and(is_full) {
                turn.blocks.extend(self.block.take());
            }
            let (block, terms) = self.block.get_or_insert_with(|| begin(position));
            block.end = position.end();
            if last == Some(Kind::Call) {
                take_in(line, block, terms);
            }
            turn.left = turn.left.saturating_sub(position.length);
            self.has_grown = true;
        }
        if std::mem::take(&mut self.has_grown) {
            turn.blocks.extend(self.block.clone());
        }
        Ok(last)
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
    agent_id: Cow<'a, str>,
    #[serde(borrow)]
    agent_name: Cow<'a, str>,
    #[serde(borrow)]
    server: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool: Option<Cow<'a, str>>,
    #[serde(borrow)]
    exposed: Option<Cow<'a, str>>,
    #[serde(borrow)]
    decision: Cow<'a, str>,
}

/// Adds what a record has to what its block has.
fn take_in(line: &[u8], block: &mut Block, terms: &mut BlockTerms) {
    // A record that only a newer version understands is found by reading the whole log.
    let Ok(record) = serde_json::from_slice::<Indexed<'_>>(line) else {
        return;
    };
    let times = (record.ts, record.ts);
    let (first, last) = block.times.unwrap_or(times);
    block.times = Some((first.min(record.ts), last.max(record.ts)));
    note(
        &mut terms.agents,
        [Some(record.agent_id), Some(record.agent_name)],
    );
    note(&mut terms.servers, [record.server]);
    note(&mut terms.tools, [record.tool, record.exposed]);
    note(&mut terms.decisions, [Some(record.decision)]);
}

/// Adds what is not there yet: most is.
fn note<'a>(terms: &mut BTreeSet<String>, found: impl IntoIterator<Item = Option<Cow<'a, str>>>) {
    for term in found.into_iter().flatten() {
        if !terms.contains(&*term) {
            terms.insert(term.into_owned());
        }
    }
}
