//! Finding the latest records, or that of one invocation, with the help of the index: only lines that
//! are wanted are read.

use std::path::Path;

use tokio::task::spawn_blocking;

use super::query::match_line;
use crate::{
    audit::{
        AuditError, FoundRecord, IndexLag, RecordFilter,
        reader::{ReadStep, SegmentReader},
        upkeep::index::truncate_term,
    },
    store::{AuditIndex, IndexFilter, IndexedPlace},
};

/// The latest records in `directory` that the filter wants, oldest of them first: at most `count`,
/// and `filter.limit` is not looked at. What the index does not have yet is not found.
///
/// # Errors
/// When the index or the log cannot be read, or hold something that is not a record of ours.
pub async fn latest_records(
    directory: &Path,
    index: &dyn AuditIndex,
    filter: &RecordFilter,
    count: usize,
) -> Result<Vec<FoundRecord>, IndexLag> {
    let all = IndexFilter {
        agent: filter.agent.clone().map(truncate_term),
        server: filter.server.clone().map(truncate_term),
        tool: filter.tool.clone().map(truncate_term),
        decision: filter.decision.map(|decision| decision.to_string()),
        since: filter.since,
        until: filter.until,
        invocation: filter.id.map(|id| id.0),
    };
    let places = index.find(&all, count).await?;
    let (directory, filter) = (directory.to_owned(), filter.clone());
    let found = spawn_blocking(move || read_places(&directory, places, &filter));
    Ok(found.await.map_err(|_| IndexLag::ReaderPanicked)??)
}

/// The records at `places` that the filter wants, by time. A segment may be gone that the index
/// still knows.
fn read_places(
    directory: &Path,
    mut places: Vec<IndexedPlace>,
    filter: &RecordFilter,
) -> Result<Vec<FoundRecord>, AuditError> {
    places.sort_unstable();
    let (id, mut found) = (filter.id_text(), Vec::new());
    for places in places.chunk_by(|a, b| (&a.chain, a.segment) == (&b.chain, b.segment)) {
        let first = &places[0];
        let (Ok(chain), Ok(number)) = (first.chain.parse(), u32::try_from(first.segment)) else {
            continue;
        };
        let Some(mut segment) = SegmentReader::open_existing(directory, chain, number)? else {
            continue;
        };
        for place in places {
            segment.seek(place.offset)?;
            if let ReadStep::Line(position) = segment.read()? {
                found.extend(match_line(position, segment.line(), filter, id.as_deref())?);
            }
        }
    }
    found.sort_by_key(|found| (found.record.ts, found.entry.position));
    Ok(found)
}
