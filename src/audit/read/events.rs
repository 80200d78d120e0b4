//! Finding events: the changes that people made, and whatever else is no call.

use std::path::Path;

use jiff::Timestamp;

use super::query::segments_since;
use crate::audit::{
    AuditError, AuditEvent, ChainReader, EventKind, LineType, LogEntry, Position, files,
};

/// Which events are wanted; everything that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// What happened.
    pub event: Option<EventKind>,
    /// What it happened to.
    pub subject: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
    /// Before this one in the order of events.
    pub before: Option<EventPlace>,
}

/// Where an event stands among all: by time, then by its line.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EventPlace {
    /// When it happened.
    pub ts: Timestamp,
    /// Where its line lies.
    pub position: Position,
}

/// An event and the line that has it.
#[derive(Clone, Debug)]
pub struct FoundEvent {
    /// The event.
    pub event: AuditEvent<'static>,
    /// Its line.
    pub entry: LogEntry,
}

impl FoundEvent {
    /// Where it stands among events.
    pub fn place(&self) -> EventPlace {
        EventPlace {
            ts: self.event.ts,
            position: self.entry.position,
        }
    }
}

impl EventFilter {
    fn matches(&self, found: &FoundEvent) -> bool {
        let event = &found.event;
        self.event.is_none_or(|wanted| wanted == event.event)
            && self
                .subject
                .as_ref()
                .is_none_or(|wanted| *wanted == event.subject)
            && self.since.is_none_or(|since| event.ts >= since)
            && self.until.is_none_or(|until| event.ts < until)
            && self.before.is_none_or(|before| found.place() < before)
    }
}

/// The latest `count` events that are wanted, oldest of them first. Events are few among the lines and no index
/// knows them, so that every line is read that may be young enough.
///
/// # Errors
/// When files cannot be read, or hold something that is not an event of ours.
pub fn latest_events(
    directory: &Path,
    filter: &EventFilter,
    count: usize,
) -> Result<Vec<FoundEvent>, AuditError> {
    let mut found: Vec<FoundEvent> = Vec::new();
    for (chain, segments) in files::list_chains(directory)? {
        let segments = segments_since(directory, chain, segments, filter.since)?;
        let mut reader = ChainReader::over_segments(directory, chain, segments);
        while let Some(position) = reader.advance()? {
            if LineType::of(reader.line()) != Some(LineType::Event) {
                continue;
            }
            let line = reader.line().to_vec();
            let entry = LogEntry { position, line };
            let event = entry.event()?;
            let event = event.map(|event| FoundEvent { event, entry });
            found.extend(event.filter(|event| filter.matches(event)));
        }
        found.sort_by_key(FoundEvent::place);
        found.drain(..found.len().saturating_sub(count));
    }
    Ok(found)
}
