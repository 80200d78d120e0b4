//! Follows the log with the index of the store, off the path of calls: the log is the truth, and
//! the index can be made again from it.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{
    AuditError, ChainId, ChainReader, Decision, Kind, Position, files,
    line::{invocation, time},
};
use crate::{
    names::{AgentId, InvocationId},
    store::{AuditIndex, IndexEntry, SegmentMark, StoreError},
};

/// Lines that are read and written to the index at once.
const BATCH_MAX: usize = 2_000;

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
    readers: HashMap<ChainId, ChainReader>,
    /// Chains to which nothing will be added.
    ended: HashSet<ChainId>,
}

/// What one reading gave.
#[derive(Debug, Default)]
struct Batch {
    entries: Vec<IndexEntry>,
    marks: HashMap<(ChainId, u32), u64>,
    lines: usize,
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

    /// Indexes every line that is there.
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
                let batch = place.read();
                (place, batch)
            });
            let Ok((place, batch)) = read.await else {
                *self = Self::new(&directory, Arc::clone(&self.index));
                return Err(Behind::Broken);
            };
            self.place = place;
            let batch = batch?;
            if batch.lines == 0 {
                return Ok(());
            }
            let marks: Vec<_> = batch.marks.into_iter().map(mark).collect();
            if let Err(error) = self.index.insert(&batch.entries, &marks).await {
                // What was read is not written: begin again from the marks.
                *self = Self::new(&directory, Arc::clone(&self.index));
                return Err(error.into());
            }
        }
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

    fn read(&mut self) -> Result<Batch, AuditError> {
        let mut batch = Batch::default();
        for chain in files::list(&self.directory)?.into_keys() {
            if !self.ended.contains(&chain) {
                self.read_chain(chain, &mut batch)?;
            }
            if batch.lines >= BATCH_MAX {
                break;
            }
        }
        Ok(batch)
    }

    fn read_chain(&mut self, chain: ChainId, batch: &mut Batch) -> Result<(), AuditError> {
        if !self.readers.contains_key(&chain) {
            let reader = match self.marks.remove(&chain) {
                Some(position) => ChainReader::after(&self.directory, &position)?,
                None => ChainReader::new(&self.directory, chain)?,
            };
            self.readers.insert(chain, reader);
        }
        let Some(reader) = self.readers.get_mut(&chain) else {
            return Ok(());
        };
        while batch.lines < BATCH_MAX {
            let Some(position) = reader.advance()? else {
                return Ok(());
            };
            let kind = Kind::of(reader.line());
            batch.add(position, kind, reader.line());
            if kind == Some(Kind::End) {
                self.readers.remove(&chain);
                self.ended.insert(chain);
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Batch {
    fn add(&mut self, place: Position, kind: Option<Kind>, line: &[u8]) {
        self.lines += 1;
        self.marks.insert((place.chain, place.segment), place.end());
        if kind != Some(Kind::Call) {
            return;
        }
        // A record that only a newer version understands is found by reading the log.
        let Ok(record) = serde_json::from_slice::<Indexed>(line) else {
            return;
        };
        self.entries.push(IndexEntry {
            invocation: record.id,
            ts: record.ts,
            agent: record.agent_id,
            server: record.server,
            tool: record.tool,
            decision: record.decision.to_string(),
            chain: place.chain.to_string(),
            segment: u64::from(place.segment),
            offset: place.offset,
            length: u32::try_from(place.length).unwrap_or(u32::MAX),
        });
    }
}

/// What of a [`super::Record`] is in the index.
#[derive(Deserialize)]
struct Indexed {
    #[serde(deserialize_with = "invocation")]
    id: InvocationId,
    #[serde(deserialize_with = "time")]
    ts: Timestamp,
    agent_id: AgentId,
    server: Option<String>,
    tool: Option<String>,
    decision: Decision,
}

fn mark(((chain, segment), indexed): ((ChainId, u32), u64)) -> SegmentMark {
    SegmentMark {
        chain: chain.to_string(),
        segment: u64::from(segment),
        indexed,
    }
}
