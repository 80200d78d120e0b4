//! The one writer of a chain: seals lines, appends them, begins new segments, and keeps what could
//! not be written.
//!
//! Used under the lock of the log, and by whoever takes over a dead chain. What must stay true: the
//! file ends in a whole line whenever nobody is in here, and lines that wait are written before any
//! later one.

use std::{collections::VecDeque, io, sync::Arc};

use jiff::Timestamp;

use super::{
    AuditError, ChainId,
    line::{Event, EventKind, Kind, Members, Opened, Record},
    seal::{Link, SEAL_BYTES_MAX, seal},
    sink::{Place, Sink},
    tally::Tally,
};
use crate::clock;

/// Size at which a segment is full.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of lines about refused calls and events that wait for room; further ones are given up and
/// counted. Records of opened calls always wait: there are no more of them than calls in flight.
pub const PENDING_BYTES_MAX: usize = 16 << 20;

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// The one writer of a chain.
pub(super) struct Writer {
    chain: ChainId,
    place: Box<dyn Place>,
    segment: Segment,
    /// The last line written.
    last: Link,
    tally: Tally,
    pending: Pending,
    /// Why the disk is not to be trusted.
    broken: Option<Arc<io::Error>>,
    closed: bool,
    /// Whether something was written that is not on disk.
    pub(super) dirty: bool,
}

/// The segment that is being written.
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) sink: Arc<dyn Sink>,
    /// Bytes of whole lines.
    pub(super) length: u64,
    /// Whether there is anything but its first line.
    pub(super) used: bool,
    /// Days since the epoch on which it was begun.
    pub(super) day: i64,
    /// Whether there may be part of a line after `length`.
    pub(super) torn: bool,
    /// Whether its successor could not be begun, which is said once.
    pub(super) overdue: bool,
}

/// Lines that could not be written yet, in order and without seals.
#[derive(Debug, Default)]
struct Pending {
    lines: VecDeque<(Timestamp, Vec<u8>)>,
    bytes: usize,
    lost: u64,
}

/// Where a line is now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Placed {
    /// With the operating system.
    Written,
    /// In memory.
    Pending,
    /// Nowhere: too many wait already.
    Lost,
}

impl Writer {
    /// Begins a chain.
    pub(super) fn begin(chain: ChainId, place: Box<dyn Place>) -> io::Result<Self> {
        let tally = Tally::default();
        let (segment, last) = begin_segment(&*place, chain, 1, (Link::default(), &tally))?;
        Ok(Self::resume(chain, place, segment, (last, tally)))
    }

    /// Goes on after the line `last` of a chain.
    pub(super) fn resume(
        chain: ChainId,
        place: Box<dyn Place>,
        segment: Segment,
        (last, tally): (Link, Tally),
    ) -> Self {
        Self {
            chain,
            place,
            segment,
            last,
            tally,
            pending: Pending::default(),
            broken: None,
            closed: false,
            dirty: true,
        }
    }

    /// The number of the last line written.
    pub(super) fn seq(&self) -> u64 {
        self.last.seq
    }

    pub(super) fn sink(&self) -> Arc<dyn Sink> {
        self.segment.sink.clone()
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Lines that wait.
    pub(super) fn waiting(&self) -> usize {
        self.pending.lines.len()
    }

    /// Lines that were given up, of which the log does not know yet.
    pub(super) fn lost(&self) -> u64 {
        self.pending.lost
    }

    /// Whether anything may be opened.
    pub(super) fn ready(&self) -> Result<(), AuditError> {
        if self.closed {
            return Err(AuditError::Closed);
        }
        if let Some(source) = self.broken() {
            return Err(AuditError::Sync { source });
        }
        match self.waiting() {
            0 => Ok(()),
            lines => Err(AuditError::Pending { lines }),
        }
    }

    /// Writes `line`, which is what `opened` writes.
    pub(super) fn opened(
        &mut self,
        opened: &Opened<'_>,
        mut line: Vec<u8>,
    ) -> Result<(), AuditError> {
        self.ready()?;
        let body = line.len();
        let put = self.put(&mut line, opened.ts);
        put.map_err(|source| AuditError::Write { source })?;
        line.truncate(body);
        self.tally.open(opened.id, line);
        Ok(())
    }

    /// Writes `line`, which is what `record` writes.
    pub(super) fn record(
        &mut self,
        record: &Record<'_>,
        mut line: Vec<u8>,
    ) -> Result<Placed, AuditError> {
        let may_write = self.before_line()?;
        if may_write && self.put(&mut line, record.ts).is_ok() {
            self.tally.close(record.id, record.price, &record.accounts);
            return Ok(Placed::Written);
        }
        let must_keep = self.tally.is_open(record.id);
        Ok(self.postpone(record.ts, line, must_keep))
    }

    /// Writes `line`, which is what an event of the time `at` writes.
    pub(super) fn event(&mut self, at: Timestamp, mut line: Vec<u8>) -> Result<Placed, AuditError> {
        let may_write = self.before_line()?;
        if may_write && self.put(&mut line, at).is_ok() {
            return Ok(Placed::Written);
        }
        Ok(self.postpone(at, line, false))
    }

    /// Writes a line of its own making, or nothing.
    pub(super) fn line(
        &mut self,
        kind: Kind,
        members: impl FnOnce(&mut Members<'_>, &Tally),
    ) -> Result<(), AuditError> {
        self.ready()?;
        let now = clock::now();
        let mut made = Vec::new();
        let mut line = Members::begin(&mut made, kind);
        line.time("ts", now);
        members(&mut line, &self.tally);
        let put = self.put(&mut made, now);
        put.map_err(|source| AuditError::Write { source })
    }

    /// Closes every call that is still open with the record that `record` makes of it at this time, and
    /// the chain.
    pub(super) fn end(
        &mut self,
        record: fn(Opened<'static>, Timestamp) -> Record<'static>,
    ) -> Result<(), AuditError> {
        self.flush_pending();
        self.ready()?;
        for opened in self.tally.still_open().unwrap_or_default() {
            let record = record(opened, clock::now());
            let line = record.line();
            self.record(&record, line)?;
        }
        self.line(Kind::End, |line, tally| tally.write_sums(line))?;
        self.closed = true;
        Ok(())
    }

    /// Remembers that the disk is not to be trusted.
    pub(super) fn distrust(&mut self, error: io::Error) {
        if self.broken.is_none() {
            tracing::error!(%error, "the audit log cannot be synced to disk; no call may leave");
            self.broken = Some(Arc::new(error));
        }
    }

    /// Why the disk is not to be trusted, if it is not.
    pub(super) fn broken(&self) -> Option<Arc<io::Error>> {
        self.broken.clone()
    }

    /// Tries again to write what waits; says whether nothing waits.
    pub(super) fn flush_pending(&mut self) -> bool {
        while let Some((at, mut line)) = self.pending.lines.pop_front() {
            let length = line.len();
            if self.put(&mut line, at).is_err() {
                self.pending.lines.push_front((at, line));
                return false;
            }
            let known = self.tally.take_in(line.trim_ascii_end(), length);
            debug_assert!(known.is_some(), "a line that waited is not what we write");
            self.pending.bytes -= length;
        }
        if self.pending.lost > 0 {
            let detail = format!("{} lines", self.pending.lost);
            let event = Event {
                ts: clock::now(),
                event: EventKind::LinesLost,
                subject: "audit".into(),
                actor: None,
                detail: Some(detail.into()),
            };
            if self.put(&mut event.line(), event.ts).is_err() {
                return false;
            }
            self.pending.lost = 0;
        }
        true
    }

    /// Whether a line may follow the last one written.
    fn before_line(&mut self) -> Result<bool, AuditError> {
        if self.closed {
            return Err(AuditError::Closed);
        }
        let waits = self.pending.lost > 0 || !self.pending.lines.is_empty();
        Ok(!waits || self.flush_pending())
    }

    fn postpone(&mut self, at: Timestamp, line: Vec<u8>, must_keep: bool) -> Placed {
        if !must_keep && self.pending.bytes + line.len() > PENDING_BYTES_MAX {
            self.pending.lost += 1;
            return Placed::Lost;
        }
        if self.pending.lines.is_empty() {
            tracing::error!("the audit log cannot be written; no call may leave until it can");
        }
        self.pending.bytes += line.len();
        self.pending.lines.push_back((at, line));
        Placed::Pending
    }

    /// Seals and appends `line`. After an error the log and the line are as before.
    fn put(&mut self, line: &mut Vec<u8>, at: Timestamp) -> io::Result<()> {
        let body = line.len();
        self.roll_when_due(line.len(), at);
        let link = seal(line, self.last);
        let appended = self.segment.append(line);
        if appended.is_err() {
            line.truncate(body);
        }
        appended?;
        self.last = link;
        self.segment.used = true;
        self.dirty = true;
        Ok(())
    }

    /// Begins a new segment when the present one is full or of another day. When that fails, the
    /// present one goes on.
    fn roll_when_due(&mut self, body: usize, at: Timestamp) {
        let length = self.segment.length + (body + SEAL_BYTES_MAX) as u64;
        let due = length > SEGMENT_BYTES_MAX || day(at) > self.segment.day;
        if !due || !self.segment.used {
            return;
        }
        if let Err(error) = self.roll(at)
            && !self.segment.overdue
        {
            self.segment.overdue = true;
            tracing::warn!(%error, "no new segment of the audit log can be begun");
        }
    }

    /// The present segment is on disk before there is a next one, so that a loss of power costs
    /// lines at the end of a chain only.
    fn roll(&mut self, at: Timestamp) -> io::Result<()> {
        self.segment.mend()?;
        if let Err(error) = self.segment.sink.sync() {
            let kind = error.kind();
            self.distrust(error);
            return Err(kind.into());
        }
        let number = self.segment.number + 1;
        let from = (self.last, &self.tally);
        let (mut segment, last) = begin_segment(&*self.place, self.chain, number, from)?;
        segment.day = segment.day.max(day(at));
        self.segment = segment;
        self.last = last;
        Ok(())
    }
}

impl Segment {
    /// The segment as it is after its first line.
    pub(super) fn new(number: u32, sink: Arc<dyn Sink>, length: u64) -> Self {
        Self {
            number,
            sink,
            length,
            used: false,
            day: day(clock::now()),
            torn: false,
            overdue: false,
        }
    }

    /// Appends a whole line or nothing.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.mend()?;
        let mut rest = line;
        while !rest.is_empty() {
            match self.sink.append(rest) {
                Ok(0) => {
                    return self.tear(io::ErrorKind::WriteZero.into(), line.len() - rest.len());
                }
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.tear(error, line.len() - rest.len()),
            }
        }
        self.length += line.len() as u64;
        Ok(())
    }

    fn tear(&mut self, error: io::Error, written: usize) -> io::Result<()> {
        self.torn = written > 0;
        self.mend()?;
        Err(error)
    }

    /// Cuts off part of a line that was left when cutting failed before.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.sink.cut(self.length)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// Makes a segment with its first line, or nothing.
fn begin_segment(
    place: &dyn Place,
    chain: ChainId,
    number: u32,
    (last, tally): (Link, &Tally),
) -> io::Result<(Segment, Link)> {
    let mut line = Vec::new();
    let mut members = Members::begin(&mut line, Kind::Begin);
    members.time("ts", clock::now());
    members.shown("chain", &chain.to_string());
    members.number("segment", number.into());
    members.shown("version", env!("CARGO_PKG_VERSION"));
    tally.write(&mut members);
    let link = seal(&mut line, last);
    let mut segment = Segment::new(number, place.create(number)?, 0);
    let begun = segment.append(&line).and_then(|()| place.sync());
    if let Err(error) = begun {
        place.remove(number)?;
        return Err(error);
    }
    Ok((segment, link))
}

fn day(at: Timestamp) -> i64 {
    at.as_second().div_euclid(DAY_SECONDS)
}
