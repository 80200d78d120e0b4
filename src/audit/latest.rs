//! Finding the latest records, or that of one invocation, with the help of the index: only blocks that
//! may hold what is wanted are read, and no more of them than needed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use tokio::task::spawn_blocking;

use super::{
    AuditError, Behind, Filter, Found, Position,
    query::{LATE_MAX, wanted},
    reader::{Segment, Step},
};
use crate::store::{AuditIndex, Block, IndexFilter, IndexOrder};

/// Blocks that are asked of the index at once.
const PAGE_BLOCKS: u32 = 256;

/// How much earlier than its id says a call may have been recorded: clocks are set.
const JITTER: SignedDuration = SignedDuration::from_mins(1);

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
    let (worthwhile, order) = worthwhile(filter);
    let mut search = Search {
        directory: directory.to_owned(),
        filter: filter.clone(),
        count,
        kept: BTreeMap::new(),
        is_over: count == 0,
    };
    let mut after = None;
    while !search.is_over {
        let found = index.find(&worthwhile, order, after.as_ref(), PAGE_BLOCKS);
        let blocks = found.await?;
        let Some(last) = blocks.last() else { break };
        after = Some(last.clone());
        let read = spawn_blocking(move || {
            let read = blocks.iter().try_for_each(|block| search.read(block));
            read.map(|()| search)
        });
        search = read.await.map_err(|_| Behind::Broken)??;
    }
    Ok(search.kept.into_values().collect())
}

/// Which blocks are worth reading, and in what order. The id of an invocation says when it began,
/// and it was over soon after.
fn worthwhile(filter: &Filter) -> (IndexFilter, IndexOrder) {
    let mut index = IndexFilter {
        agent: filter.agent.clone(),
        server: filter.server.clone(),
        tool: filter.tool.clone(),
        decision: filter.decision.map(|decision| decision.to_string()),
        since: filter.since,
        until: filter.until,
    };
    let Some(id) = filter.id else {
        return (index, IndexOrder::NewestFirst);
    };
    if let Some(began) = id.began() {
        index.since = index.since.max(began.checked_sub(JITTER).ok());
        let over = began.checked_add(LATE_MAX).ok();
        index.until = index.until.into_iter().chain(over).min();
    }
    (index, IndexOrder::OldestFirst)
}

/// What was found so far.
#[derive(Debug)]
struct Search {
    directory: PathBuf,
    filter: Filter,
    count: usize,
    kept: BTreeMap<(Timestamp, Position), Found>,
    /// Whether nothing that is wanted can follow.
    is_over: bool,
}

impl Search {
    /// Reads the next block. A segment may be gone that the index still knows.
    fn read(&mut self, block: &Block) -> Result<(), AuditError> {
        self.is_over |= self.has_all_before(block);
        let (Ok(chain), Ok(number)) = (block.chain.parse(), u32::try_from(block.segment)) else {
            return Ok(());
        };
        if self.is_over {
            return Ok(());
        }
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
        // There is one record of an invocation.
        self.is_over = id.is_some() && !self.kept.is_empty();
        Ok(())
    }

    /// Whether every record of `block`, and of those that follow it, is older than all that were
    /// found, which are enough.
    fn has_all_before(&self, block: &Block) -> bool {
        let oldest = self.kept.first_key_value().map(|((ts, _), _)| *ts);
        let last = block
            .times
            .and_then(|(_, last)| last.checked_add(INDEX_TIME).ok());
        self.kept.len() == self.count
            && last.zip(oldest).is_some_and(|(last, oldest)| last < oldest)
    }
}
