//! Finding records: over all chains in the order of time, or as they come.
//!
//! This reads files from one end to the other, which needs no index and no store; `latest` reads no
//! more than it must. Within a chain the order is that of writing; chains are merged by the time of
//! their records. A process has written nothing before its chain began, so that a chain is opened
//! only when its time has come: however many there are, few are open at once.

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    audit::{
        AuditError, ChainId, ChainReader, LineType, LogEntry, Position, Record, RecordedDecision,
        files,
        reader::{ReadStep, SegmentReader, line_time},
    },
    names::InvocationId,
};

/// How often [`Follow`] looks for new lines.
pub const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);

/// Records that [`Follow`] hands out at once.
pub const FOLLOW_BATCH_MAX: usize = 1000;

/// How much later than its own time a record may have been written, as far as searches for old
/// records are concerned.
const WRITE_DELAY_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Which records are wanted; everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordFilter {
    /// Id or name of the agent.
    pub agent: Option<String>,
    /// Name of the tool, original or exposed.
    pub tool: Option<String>,
    /// Name of the server.
    pub server: Option<String>,
    /// What became of the call.
    pub decision: Option<RecordedDecision>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
    /// At most so many.
    pub limit: Option<usize>,
    /// The invocation.
    pub id: Option<InvocationId>,
}

impl RecordFilter {
    /// Whether a record is wanted; the limit is not looked at.
    pub fn matches(&self, record: &Record<'_>) -> bool {
        let is = |wanted: &Option<String>, found: &[Option<&str>]| {
            let wanted = wanted.as_deref();
            wanted.is_none_or(|wanted| found.contains(&Some(wanted)))
        };
        self.id.is_none_or(|id| id == record.id)
            && self.decision.is_none_or(|it| it == record.decision)
            && self.since.is_none_or(|since| record.ts >= since)
            && self.until.is_none_or(|until| record.ts < until)
            && is(&self.server, &[record.server.as_deref()])
            && is(
                &self.tool,
                &[record.tool.as_deref(), record.exposed.as_deref()],
            )
            && (is(&self.agent, &[Some(&record.agent_name)])
                || is(&self.agent, &[Some(&record.agent_id.to_string())]))
    }

    /// What every record of the invocation has in it, when one is wanted.
    pub(in crate::audit) fn id_text(&self) -> Option<String> {
        self.id.map(|id| id.to_string())
    }

    /// Whether everything written from `at` on is younger than what is wanted.
    fn ends_before(&self, at: Timestamp) -> bool {
        let last = self.until.map(|until| until.checked_add(WRITE_DELAY_MAX));
        last.and_then(Result::ok).is_some_and(|last| at > last)
    }
}

/// A record that was wanted.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// The record.
    pub record: Record<'static>,
    /// Its line.
    pub entry: LogEntry,
}

/// Records in the order of time, oldest first; nothing that is written after the end was reached.
#[derive(Debug)]
pub struct Query {
    directory: PathBuf,
    filter: RecordFilter,
    /// Chains that have not been opened, youngest first.
    unopened: Vec<(ChainId, Vec<u32>)>,
    /// Open chains, each with its next record.
    open: Vec<(ChainReader, FoundRecord)>,
    remaining: usize,
}

impl Query {
    /// Begins to look through `directory`.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn new(directory: &Path, filter: RecordFilter) -> Result<Self, AuditError> {
        let chains = files::list_chains(directory)?.into_iter().rev();
        Ok(Self {
            directory: directory.to_owned(),
            unopened: chains.collect(),
            open: Vec::new(),
            remaining: filter.limit.unwrap_or(usize::MAX),
            filter,
        })
    }

    /// Opens the chains that may have a record before the first of those that are open.
    fn open_next_chains(&mut self) -> Result<(), AuditError> {
        while let Some((chain, _)) = self.unopened.last() {
            let first = self.open.iter().map(|(_, found)| found.record.ts).min();
            let began = chain.started_at();
            if first.is_some_and(|first| first < began) {
                break;
            }
            let Some((chain, segments)) = self.unopened.pop() else {
                break;
            };
            if self.filter.ends_before(began) {
                continue;
            }
            let segments = segments_since(&self.directory, chain, segments, self.filter.since)?;
            let mut reader = ChainReader::over_segments(&self.directory, chain, segments);
            if let Some(found) = next_match(&mut reader, &self.filter)? {
                self.open.push((reader, found));
            }
        }
        Ok(())
    }

    fn pop_earliest(&mut self) -> Result<Option<FoundRecord>, AuditError> {
        self.open_next_chains()?;
        let open = self.open.iter_mut().enumerate();
        let Some((at, (reader, found))) = open.min_by_key(|(_, (_, found))| found.record.ts) else {
            return Ok(None);
        };
        let next = next_match(reader, &self.filter)?;
        Ok(Some(match next {
            Some(next) => std::mem::replace(found, next),
            None => self.open.swap_remove(at).1,
        }))
    }
}

impl Iterator for Query {
    type Item = Result<FoundRecord, AuditError>;

    /// After an error nothing more comes.
    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        let next = self.pop_earliest();
        match &next {
            Ok(_) => self.remaining -= 1,
            Err(_) => self.remaining = 0,
        }
        next.transpose()
    }
}

/// New records as they are written, by all processes.
#[derive(Debug)]
pub struct Follow {
    directory: PathBuf,
    filter: RecordFilter,
    /// How far each segment was read.
    ends: HashMap<(ChainId, u32), u64>,
    ready: VecDeque<FoundRecord>,
}

impl Follow {
    /// Begins with what is written after this; `filter.limit` is not looked at.
    ///
    /// # Errors
    /// When the directory or a segment cannot be read.
    pub fn new(directory: &Path, filter: RecordFilter) -> Result<Self, AuditError> {
        let mut ends = HashMap::new();
        for (chain, segments) in files::list_chains(directory)? {
            for number in &segments {
                ends.insert((chain, *number), files::length(directory, chain, *number)?);
            }
            // A line that is being written is new once it is whole.
            if let Some(last) = segments.last()
                && let Some(mut segment) = SegmentReader::open_existing(directory, chain, *last)?
            {
                let end = segment.last_line()?.map_or(0, |line| line.end());
                ends.insert((chain, *last), end);
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
            filter,
            ends,
            ready: VecDeque::new(),
        })
    }

    /// What is new, in the order of time as far as it was written already: at most
    /// [`FOLLOW_BATCH_MAX`] records. What does not fit comes next time.
    ///
    /// # Errors
    /// When files cannot be read, or hold something that is not a record of ours.
    pub fn poll(&mut self) -> Result<Vec<FoundRecord>, AuditError> {
        let chains = files::list_chains(&self.directory)?;
        self.ends.retain(|(chain, _), _| chains.contains_key(chain));
        let (id, mut found) = (self.filter.id_text(), Vec::new());
        let segments = chains.iter().flat_map(|(chain, segments)| {
            let numbers = segments.iter();
            numbers.map(|number| (*chain, *number))
        });
        for (chain, number) in segments {
            let end = self.ends.entry((chain, number)).or_default();
            if files::length(&self.directory, chain, number)? <= *end {
                continue;
            }
            let segment = SegmentReader::open_existing(&self.directory, chain, number)?;
            let Some(mut segment) = segment else { continue };
            segment.seek(*end)?;
            while found.len() < FOLLOW_BATCH_MAX
                && let ReadStep::Line(position) = segment.read()?
            {
                *end = position.end();
                found.extend(match_line(
                    position,
                    segment.line(),
                    &self.filter,
                    id.as_deref(),
                )?);
            }
        }
        found.sort_by_key(|found| found.record.ts);
        Ok(found)
    }

    /// The next record; waits for it, looking every [`FOLLOW_INTERVAL`]. Files are read in the
    /// caller's task. Giving up waiting loses nothing.
    ///
    /// # Errors
    /// As [`Follow::poll`].
    pub async fn next(&mut self) -> Result<FoundRecord, AuditError> {
        loop {
            if let Some(found) = self.ready.pop_front() {
                return Ok(found);
            }
            self.ready = self.poll()?.into();
            if self.ready.is_empty() {
                tokio::time::sleep(FOLLOW_INTERVAL).await;
            }
        }
    }
}

/// The segments that may hold a record from `since` on: a segment's are written before the next one
/// begins.
pub(super) fn segments_since(
    directory: &Path,
    chain: ChainId,
    mut segments: Vec<u32>,
    since: Option<Timestamp>,
) -> Result<Vec<u32>, AuditError> {
    let Some(since) = since else {
        return Ok(segments);
    };
    let mut from = segments.len().saturating_sub(1);
    while from > 0 {
        let segment = SegmentReader::open_existing(directory, chain, segments[from])?;
        let begun = segment.map_or(Ok(None), |mut segment| segment.first_line_time())?;
        if begun.is_some_and(|begun| begun <= since) {
            break;
        }
        from -= 1;
    }
    Ok(segments.split_off(from))
}

fn next_match(
    reader: &mut ChainReader,
    filter: &RecordFilter,
) -> Result<Option<FoundRecord>, AuditError> {
    let id = filter.id_text();
    while let Some(position) = reader.advance()? {
        let line = reader.line();
        if LineType::of(line) == Some(LineType::Begin) && starts_after_range(line, filter) {
            return Ok(None);
        }
        let found = match_line(position, line, filter, id.as_deref())?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The record in `line`, if `filter` wants it; `id` is the text of the id that it wants.
pub(in crate::audit) fn match_line(
    position: Position,
    line: &[u8],
    filter: &RecordFilter,
    id: Option<&str>,
) -> Result<Option<FoundRecord>, AuditError> {
    let may_be = |id: &str| memchr::memmem::find(line, id.as_bytes()).is_some();
    if LineType::of(line) != Some(LineType::Call) || !id.is_none_or(may_be) {
        return Ok(None);
    }
    let entry = LogEntry {
        position,
        line: line.to_vec(),
    };
    let record = entry.record()?.filter(|record| filter.matches(record));
    Ok(record.map(|record| FoundRecord { record, entry }))
}

fn starts_after_range(line: &[u8], filter: &RecordFilter) -> bool {
    line_time(line).is_some_and(|at| filter.ends_before(at))
}
