//! Finding the latest records, or that of one invocation, with the help of the index: only blocks
//! that may hold what is wanted are read, and no more of them than needed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use tokio::task::spawn_blocking;

use super::{
    AuditError, Behind, Filter, Found, Position,
    query::wanted,
    reader::{Segment, Step},
};
use crate::{
    names::InvocationId,
    store::{
        AuditIndex, Block, IndexFilter,
        IndexOrder::{NewestFirst, OldestFirst},
    },
};

/// How much earlier than its id says a call may have been recorded, and how much later, as far as a
/// first search for it goes.
const RECORDED: (SignedDuration, SignedDuration) =
    (SignedDuration::from_mins(1), SignedDuration::from_hours(24));

/// Times in the index are to the millisecond.
const INDEX_TIME: SignedDuration = SignedDuration::from_millis(1);

/// The latest records in `directory` that the filter wants, oldest of them first: at most `count`,
/// and `filter.limit` is not looked at. What the index does not have yet is not found.
///
/// # Errors
/// When the index or the log cannot be read, or hold something that is not a record of ours.
pub async fn latest(
    directory: &Path,
    index: &dyn AuditIndex,
    filter: &Filter,
    count: usize,
) -> Result<Vec<Found>, Behind> {
    let all = IndexFilter {
        agent: filter.agent.clone(),
        server: filter.server.clone(),
        tool: filter.tool.clone(),
        decision: filter.decision.map(|decision| decision.to_string()),
        since: filter.since,
        until: filter.until,
    };
    let search = Search {
        directory: directory.to_owned(),
        filter: filter.clone(),
        count,
        kept: BTreeMap::new(),
    };
    let Some(began) = filter.id.and_then(InvocationId::began) else {
        return search.over(index.find(&all, NewestFirst).await?).await;
    };
    let likely = IndexFilter {
        since: all.since.max(began.checked_sub(RECORDED.0).ok()),
        until: all
            .until
            .into_iter()
            .chain(began.checked_add(RECORDED.1).ok())
            .min(),
        ..all.clone()
    };
    let blocks = index.find(&likely, OldestFirst).await?;
    let found = search.clone().over(blocks).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    // Ids never go back, but clocks do.
    search.over(index.find(&all, NewestFirst).await?).await
}

/// What was found so far.
#[derive(Clone, Debug)]
struct Search {
    directory: PathBuf,
    filter: Filter,
    count: usize,
    kept: BTreeMap<(Timestamp, Position), Found>,
}

impl Search {
    /// What is found in `blocks`, which come in the order in which they are worth reading.
    async fn over(mut self, blocks: Vec<Block>) -> Result<Vec<Found>, Behind> {
        let read = spawn_blocking(move || {
            for block in &blocks {
                if self.is_over(block) {
                    break;
                }
                self.read(block)?;
            }
            Ok(self.kept.into_values().collect())
        });
        read.await.map_err(|_| Behind::Broken)?
    }

    /// Whether neither `block` nor those that follow it can hold anything more that is wanted: every
    /// record in them is older than all that were found, which are enough. There is one record of an
    /// invocation.
    fn is_over(&self, block: &Block) -> bool {
        let oldest = self.kept.first_key_value().map(|((ts, _), _)| *ts);
        let last = block
            .times
            .and_then(|(_, last)| last.checked_add(INDEX_TIME).ok());
        let older = last.zip(oldest).is_some_and(|(last, oldest)| last < oldest);
        let found = self.kept.len();
        found == self.count && older || self.count == 0 || self.filter.id.is_some() && found > 0
    }

    /// Reads the next block. A segment may be gone that the index still knows.
    fn read(&mut self, block: &Block) -> Result<(), AuditError> {
        let (Ok(chain), Ok(number)) = (block.chain.parse(), u32::try_from(block.segment)) else {
            return Ok(());
        };
        let Some(mut segment) = Segment::open_existing(&self.directory, chain, number)? else {
            return Ok(());
        };
        segment.go_to(block.start)?;
        let id = self.filter.id_text();
        while segment.offset() < block.end
            && let Step::Line(position) = segment.read()?
        {
            if let Some(found) = wanted(position, segment.line(), &self.filter, id.as_deref())? {
                self.kept.insert((found.record.ts, position), found);
                if self.kept.len() > self.count {
                    self.kept.pop_first();
                }
            }
        }
        Ok(())
    }
}
