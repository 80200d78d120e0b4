//! Finding the latest records, or that of one invocation, with the help of the index: only lines that
//! are wanted are read.

use std::{collections::HashMap, path::Path};

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
    let places = index.find(&to_index_filter(filter), count).await?;
    let (directory, filter) = (directory.to_owned(), filter.clone());
    let found = spawn_blocking(move || read_places(&directory, places, &filter));
    Ok(found.await.map_err(|_| IndexLag::ReaderPanicked)??)
}

/// Records in the order in which they came into the index.
#[derive(Clone, Debug)]
pub struct NewRecords {
    /// Each with its number.
    pub records: Vec<(i64, FoundRecord)>,
    /// The number up to which was looked: what is new comes after it.
    pub end: i64,
}

/// The first records that the filter wants and that came into the index after the one with the number `after`; at
/// most `count`. Without a number there are none, and the end is where those begin that are written from now on.
///
/// # Errors
/// As [`latest_records`].
pub async fn new_records(
    directory: &Path,
    index: &dyn AuditIndex,
    filter: &RecordFilter,
    after: Option<i64>,
    count: usize,
) -> Result<NewRecords, IndexLag> {
    let new = index
        .find_after(&to_index_filter(filter), after, count)
        .await?;
    let mut numbers = HashMap::new();
    let places = new.places.into_iter().map(|(number, place)| {
        let key = (place.chain.clone(), place.segment, place.offset);
        numbers.insert(key, number);
        place
    });
    let places: Vec<_> = places.collect();
    let (directory, filter) = (directory.to_owned(), filter.clone());
    let found = spawn_blocking(move || read_places(&directory, places, &filter));
    let found = found.await.map_err(|_| IndexLag::ReaderPanicked)??;
    let numbered = found.into_iter().filter_map(|found| {
        let at = found.entry.position;
        let key = (at.chain.to_string(), u64::from(at.segment), at.offset);
        Some((*numbers.get(&key)?, found))
    });
    let mut records: Vec<_> = numbered.collect();
    records.sort_by_key(|(number, _)| *number);
    let end = new.end;
    Ok(NewRecords { records, end })
}

fn to_index_filter(filter: &RecordFilter) -> IndexFilter {
    IndexFilter {
        agent: filter.agent.clone().map(truncate_term),
        server: filter.server.clone().map(truncate_term),
        tool: filter.tool.clone().map(truncate_term),
        decision: filter.decision.map(|decision| decision.to_string()),
        since: filter.since,
        until: filter.until,
        invocation: filter.id.map(|id| id.0),
    }
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
