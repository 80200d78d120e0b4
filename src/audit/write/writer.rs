//! The one writer of a chain: seals lines, appends them, begins new segments, and keeps what could
//! not be written.
//!
//! Used by the thread of the log, and by whoever takes over a dead chain. What must stay true: the
//! file ends in a whole line whenever nobody is in here, and lines that wait are written before any
//! later one.

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    entry::{AuditEntry, EntryKind, Fallback},
    ration::RefusalSums,
    room::Room,
    sink::{SegmentSink, SegmentStore},
    totals::ChainTotals,
};
use crate::{
    audit::{
        AuditError, ChainId,
        files::Loss,
        record::line::{AuditEvent, EventKind, LineType, LineWriter, Opened, Record},
        seal::{ChainPosition, SEAL_BYTES_MAX, seal},
        signature::SigningKey,
    },
    clock,
};

/// Size at which a segment is full; less where all of them may not have so much more.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of lines about refused calls and events that wait for room; further ones are given up and
/// counted.
pub const PENDING_BYTES_MAX: usize = 16 << 20;

/// Most lines in a row without a signature. What comes after the last one can be forged by who can write
/// the files.
pub const UNSIGNED_LINES_MAX: u64 = 1000;

/// How long lines go without a signature.
pub(in crate::audit) const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// How often a signed place of the chain is told to the log.
const HEAD_EVERY: Duration = Duration::from_secs(60);

/// Bytes of lines that go into one `write`; a longer line has one for itself.
pub(in crate::audit) const WRITE_BYTES_MAX: usize = 256 << 10;

/// How long after a failure waiting lines are tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// What became of lines that were written together.
#[derive(Debug)]
pub(in crate::audit) struct WriteOutcome {
    /// How many are with the operating system, from the first on, but for those that are discarded on
    /// a disk that is not to be trusted.
    pub(in crate::audit) written: usize,
    /// What the system said of the first that is not, unless earlier ones were in the way.
    pub(in crate::audit) refused: Option<Arc<io::Error>>,
}

impl WriteOutcome {
    /// What who waits for the line at this place is told.
    pub(in crate::audit) fn of(
        &self,
        line: usize,
        fallback: Fallback,
        writer: &Writer,
    ) -> Result<(), AuditError> {
        let is_discarded = fallback == Fallback::Discard;
        let refused = self.refused.clone().filter(|_| is_discarded);
        match (refused, writer.broken.clone()) {
            (_, Some(source)) if is_discarded => Err(AuditError::Sync { source }),
            _ if line < self.written => Ok(()),
            (Some(source), _) => Err(AuditError::Write { source }),
            (None, _) => Err(writer.health().pending()),
        }
    }
}

/// The one writer of a chain.
pub(in crate::audit) struct Writer {
    chain: ChainId,
    place: Box<dyn SegmentStore>,
    key: Arc<SigningKey>,
    segment: OpenSegment,
    /// Size at which a segment is full.
    pub(in crate::audit) segment_bytes_max: u64,
    /// The last line written.
    last: ChainPosition,
    /// Lines after the last one that is signed.
    unsigned: u64,
    /// When a line was last signed.
    signed_at: Instant,
    /// The last signed place of the chain that was told to the log, and when.
    head: Option<(ChainPosition, Instant)>,
    tally: ChainTotals,
    pending: PendingLines,
    /// What room there is, and what was not recorded for want of it.
    pub(in crate::audit) room: Room,
    summed: RefusalSums,
    /// Why the disk is not to be trusted.
    pub(in crate::audit) broken: Option<Arc<io::Error>>,
    /// What became of the segment, and why there is no other one yet.
    stuck: Option<(Loss, Arc<io::Error>)>,
    /// What the system said when it last took no line.
    obstacle: Option<Arc<io::Error>>,
    /// Lines with their seals, for one `write`.
    sealed: Vec<u8>,
    /// Where each of them ends, and its place in the chain.
    ends: Vec<(usize, ChainPosition)>,
}

/// What keeps lines from being written.
#[derive(Clone, Debug, Default)]
pub(in crate::audit) struct WriterHealth {
    /// Lines that wait.
    pub(in crate::audit) waiting: usize,
    /// Lines that were given up, of which the log does not know yet.
    pub(in crate::audit) lost: u64,
    /// Why there is no segment to write to.
    stuck: Option<Arc<io::Error>>,
    /// What the system said when it last took no line.
    obstacle: Option<Arc<io::Error>>,
    /// The last signed place of the chain that was told to the log.
    pub(in crate::audit) head: Option<ChainPosition>,
    /// What room there is.
    pub(in crate::audit) room: Room,
}

impl WriterHealth {
    /// Whether anything may be opened on a disk that is to be trusted.
    pub(in crate::audit) fn ready(&self) -> Result<(), AuditError> {
        match &self.stuck {
            Some(source) => {
                let source = Arc::clone(source);
                Err(AuditError::Write { source })
            }
            None if self.waiting > 0 => Err(self.pending()),
            None if self.room.is_over() => {
                let quota = self.room.quota;
                Err(AuditError::Quota { quota })
            }
            None => Ok(()),
        }
    }

    /// What who waits for a line is told that waits in memory.
    pub(in crate::audit) fn pending(&self) -> AuditError {
        AuditError::Pending {
            lines: self.waiting,
            source: self.obstacle.clone(),
        }
    }
}

/// A line without its seal.
#[derive(Clone, Copy)]
struct UnsealedLine<'a> {
    text: &'a [u8],
    at: Timestamp,
    is_signed: bool,
}

impl<'a> UnsealedLine<'a> {
    fn of(text: &'a [u8], at: Timestamp) -> Self {
        Self {
            text,
            at,
            is_signed: LineType::of(text).is_some_and(LineType::is_signed),
        }
    }
}

/// The segment that is being written.
pub(in crate::audit) struct OpenSegment {
    pub(in crate::audit) number: u32,
    pub(in crate::audit) sink: Arc<dyn SegmentSink>,
    /// Bytes of whole lines.
    pub(in crate::audit) length: u64,
    /// Whether there is anything but its first line.
    pub(in crate::audit) used: bool,
    /// Days since the epoch on which it was begun.
    pub(in crate::audit) day: i64,
    /// Whether there may be part of a line after `length`.
    pub(in crate::audit) torn: bool,
    /// Whether its successor could not be begun, which is said once.
    pub(in crate::audit) overdue: bool,
}

/// What a chain amounts to that is gone on with.
pub(in crate::audit) struct Resumed {
    pub(in crate::audit) segment: OpenSegment,
    /// Its last line.
    pub(in crate::audit) last: ChainPosition,
    pub(in crate::audit) tally: ChainTotals,
    /// Lines after the last one that is signed.
    pub(in crate::audit) unsigned: u64,
}

/// Lines that could not be written yet, in order.
#[derive(Debug, Default)]
struct PendingLines {
    lines: VecDeque<AuditEntry>,
    bytes: usize,
    lost: u64,
}

impl Writer {
    /// Begins a chain.
    pub(in crate::audit) fn begin(
        chain: ChainId,
        place: Box<dyn SegmentStore>,
        key: Arc<SigningKey>,
    ) -> io::Result<Self> {
        let tally = ChainTotals::default();
        let from = (ChainPosition::default(), &tally);
        let (segment, last) = begin_segment(&*place, chain, &key, 1, from)?;
        let resumed = Resumed {
            segment,
            last,
            tally,
            unsigned: 0,
        };
        Ok(Self::resume(chain, place, key, resumed))
    }

    /// Goes on with a chain.
    pub(in crate::audit) fn resume(
        chain: ChainId,
        place: Box<dyn SegmentStore>,
        key: Arc<SigningKey>,
        from: Resumed,
    ) -> Self {
        Self {
            chain,
            place,
            key,
            segment: from.segment,
            segment_bytes_max: SEGMENT_BYTES_MAX,
            last: from.last,
            unsigned: from.unsigned,
            signed_at: Instant::now(),
            head: None,
            tally: from.tally,
            pending: PendingLines::default(),
            room: Room::default(),
            summed: RefusalSums::default(),
            broken: None,
            stuck: None,
            obstacle: None,
            sealed: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The number of the last line written.
    pub(in crate::audit) fn seq(&self) -> u64 {
        self.last.seq
    }

    pub(in crate::audit) fn sink(&self) -> Arc<dyn SegmentSink> {
        self.segment.sink.clone()
    }

    pub(in crate::audit) fn tally(&self) -> &ChainTotals {
        &self.tally
    }

    pub(in crate::audit) fn health(&self) -> WriterHealth {
        WriterHealth {
            waiting: self.pending.lines.len(),
            lost: self.pending.lost,
            stuck: self.stuck.as_ref().map(|(_, error)| Arc::clone(error)),
            obstacle: self.obstacle.clone(),
            head: self.head.map(|(head, _)| head),
            room: self.room,
        }
    }

    /// Whether nothing waits that has to come before the end of the chain.
    fn ready_for_end(&self) -> Result<(), AuditError> {
        if let Some(source) = self.broken.clone() {
            return Err(AuditError::Sync { source });
        }
        match self.health().ready() {
            Err(AuditError::Quota { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How long to wait for lines before what waits is tried again, or a signature is due.
    pub(in crate::audit) fn next_try(&self) -> Option<Duration> {
        if self.waits() || self.is_stuck() {
            return Some(RETRY_DELAY);
        }
        let left = CHECKPOINT_EVERY.saturating_sub(self.signed_at.elapsed());
        let unsigned = (self.unsigned > 0).then_some(left);
        let due = unsigned.into_iter().chain(self.summed.left()).min();
        due.map(|due| due.max(RETRY_DELAY))
    }

    /// Takes lines out for which there is no room, and puts sums of earlier ones in; all at the end.
    pub(in crate::audit) fn ration(&mut self, lines: &mut Vec<AuditEntry>, is_end: bool) {
        self.summed.ration(&self.room, &self.tally, lines);
        lines.extend(self.summed.due(is_end));
    }

    /// Writes what waits, then lines, and takes them out: all, or so many of the first as there was
    /// room for. Of the others some are discarded, and further ones wait.
    pub(in crate::audit) fn write(&mut self, lines: &mut Vec<AuditEntry>) -> WriteOutcome {
        let may_go_on = !self.waits() || self.flush_pending();
        // Else whoever has a line is told why.
        drop(self.unstick());
        if may_go_on && self.unsigned > 0 && self.signed_at.elapsed() >= CHECKPOINT_EVERY {
            // Without room for it there is none for further lines, which say so.
            drop(self.checkpoint());
        }
        let (mut written, mut refused) = (0, None);
        let mut lines = lines.drain(..);
        while may_go_on && refused.is_none() && !lines.as_slice().is_empty() {
            // Nothing may be opened on a disk that is not to be trusted.
            let is_broken = self.broken.is_some();
            let is_passed = |line: &&AuditEntry| is_broken && line.fallback == Fallback::Discard;
            let passed = lines.as_slice().iter().take_while(is_passed).count();
            lines.by_ref().take(passed).for_each(drop);
            let run = lines.as_slice().iter().take_while(|line| !is_passed(line));
            let (count, error) = self.put(run.map(|line| UnsealedLine::of(&line.line, line.at)));
            let put = lines.by_ref().take(count);
            put.for_each(|line| self.tally.take(line));
            written += passed + count;
            refused = error;
        }
        for line in lines {
            self.postpone(line);
        }
        WriteOutcome { written, refused }
    }

    /// Writes a line that is signed, or nothing.
    fn signed(&mut self, kind: LineType) -> Result<(), Arc<io::Error>> {
        let now = clock::now();
        let mut made = Vec::new();
        let mut line = LineWriter::begin(&mut made, kind);
        line.time("ts", now);
        if kind == LineType::End {
            self.tally.write_sums(&mut line);
        } else {
            line.shown("chain", &self.chain.to_string());
        }
        self.put_one(UnsealedLine::of(&made, now))
    }

    /// Signs all lines until now.
    fn checkpoint(&mut self) -> Result<(), Arc<io::Error>> {
        self.signed(LineType::Checkpoint)
    }

    /// Notes that the last line is signed, and tells the log now and then, so that somebody may know it
    /// who cannot be reached from here.
    fn is_signed(&mut self) {
        (self.unsigned, self.signed_at) = (0, Instant::now());
        let is_told = |(_, at): &(ChainPosition, Instant)| at.elapsed() < HEAD_EVERY;
        if !self.head.as_ref().is_some_and(is_told) {
            let ChainPosition { seq, hash } = self.last;
            tracing::info!(chain = %self.chain, seq, %hash, "audit checkpoint");
            self.head = Some((self.last, Instant::now()));
        }
    }

    /// Closes every call that is still open with the record that `record` makes of it at this time, and
    /// the chain.
    pub(in crate::audit) fn end(
        &mut self,
        record: fn(Opened<'static>, Timestamp) -> Record<'static>,
    ) -> Result<(), AuditError> {
        self.flush_pending();
        self.ready_for_end()?;
        let mut sums = self.summed.due(true);
        self.write(&mut sums);
        let open = self.tally.still_open().unwrap_or_default().into_iter();
        let mut records = open
            .map(|opened| AuditEntry::record(&record(opened, clock::now())))
            .collect();
        self.write(&mut records);
        self.ready_for_end()?;
        // The last place of a chain is told in any case.
        self.head = None;
        self.signed(LineType::End)
            .map_err(|source| AuditError::Write { source })
    }

    /// Remembers that the disk is not to be trusted.
    pub(in crate::audit) fn distrust(&mut self, error: Arc<io::Error>) {
        if self.broken.is_none() {
            tracing::error!(%error, "cannot sync the audit log to disk; calls are refused until the gateway is restarted");
            self.broken = Some(error);
        }
    }

    /// Remembers lines that were given up before they came here.
    pub(in crate::audit) fn give_up(&mut self, lines: u64) {
        self.pending.lost += lines;
    }

    /// Whether the segment is lost and there is no other one.
    fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Looks whether the segment is still where its readers find it, and the chain still ours. If
    /// not, what was written to it is gone or not the last, and the chain goes on in another one,
    /// which says so.
    pub(in crate::audit) fn look(&mut self) {
        if self.stuck.is_some() {
            return;
        }
        let (number, length) = (self.segment.number, self.segment.length);
        let lost = self.segment.sink.lost(length);
        let lost = lost.or_else(|| self.place.lost());
        if let Some(loss) = lost {
            tracing::error!(segment = number, "the audit log file {loss}");
            self.replace(loss);
        }
    }

    /// Tries again to begin another segment in place of one that is lost.
    fn unstick(&mut self) -> io::Result<()> {
        if let Some((loss, _)) = self.stuck {
            self.replace(loss);
        }
        match &self.stuck {
            None => Ok(()),
            Some((_, error)) => Err(io::Error::new(error.kind(), Arc::clone(error))),
        }
    }

    /// Begins another segment in place of one that is lost.
    fn replace(&mut self, loss: Loss) {
        let number = self.segment.number;
        let begin = || {
            self.place.hold()?;
            let from = (self.last, &self.tally);
            begin_segment(&*self.place, self.chain, &self.key, number + 1, from)
        };
        match begin() {
            Ok((segment, last)) => {
                let day = segment.day.max(self.segment.day);
                self.segment = OpenSegment { day, ..segment };
                self.last = last;
                self.is_signed();
                self.stuck = None;
            }
            Err(error) => {
                let why = format!(
                    "segment {number} {loss}, and a new segment cannot be created: {error}"
                );
                self.stuck = Some((loss, Arc::new(io::Error::new(error.kind(), why))));
                return;
            }
        }
        let event = AuditEvent {
            ts: clock::now(),
            event: EventKind::SegmentLost,
            subject: format!("{}/{number}", self.chain).into(),
            actor: None,
            detail: Some(format!("it {loss}").into()),
        };
        if self
            .put_one(UnsealedLine::of(&event.line(), event.ts))
            .is_err()
        {
            self.postpone(AuditEntry::event(&event));
        }
    }

    /// Whether anything waits, be it what is to be said of lines that were given up.
    fn waits(&self) -> bool {
        self.pending.lost > 0 || !self.pending.lines.is_empty()
    }

    /// Tries again to write what waits; says whether nothing waits.
    fn flush_pending(&mut self) -> bool {
        // Who made room may have removed the segment, and nothing was synced since.
        if self.waits() {
            self.look();
        }
        if let Err(error) = self.unstick() {
            self.obstacle = Some(Arc::new(error));
            return false;
        }
        while let Some(line) = self.pending.lines.pop_front() {
            if self.put_one(UnsealedLine::of(&line.line, line.at)).is_err() {
                self.pending.lines.push_front(line);
                return false;
            }
            self.pending.bytes -= line.line.len();
            self.tally.take(line);
        }
        if self.pending.lost > 0 {
            let detail = format!("{} lines", self.pending.lost);
            let event = AuditEvent {
                ts: clock::now(),
                event: EventKind::LinesLost,
                subject: "audit".into(),
                actor: None,
                detail: Some(detail.into()),
            };
            if self
                .put_one(UnsealedLine::of(&event.line(), event.ts))
                .is_err()
            {
                return false;
            }
            self.pending.lost = 0;
        }
        true
    }

    /// Keeps a line that could not be written, if it is one that must not be lost.
    fn postpone(&mut self, line: AuditEntry) {
        if line.fallback == Fallback::Discard {
            return;
        }
        // Of those there are no more than calls in flight.
        let must_keep =
            matches!(&line.about, EntryKind::Call { id, .. } if self.tally.is_open(*id));
        let length = line.line.len();
        if !must_keep && self.pending.bytes + length > PENDING_BYTES_MAX {
            self.pending.lost += 1;
            return;
        }
        if self.pending.lines.is_empty() {
            let error = self.obstacle.as_deref().map(tracing::field::display);
            tracing::error!(
                error,
                "cannot write the audit log; calls are refused until this is fixed"
            );
        }
        self.pending.bytes += length;
        self.pending.lines.push_back(line);
    }

    fn put_one(&mut self, line: UnsealedLine<'_>) -> Result<(), Arc<io::Error>> {
        let (_, error) = self.put([line].into_iter());
        error.map_or(Ok(()), Err)
    }

    /// Seals and appends the first of `lines`, those that are in one segment and one `write` and find
    /// room; says how many, and why no more of these.
    fn put<'a>(
        &mut self,
        lines: impl Iterator<Item = UnsealedLine<'a>>,
    ) -> (usize, Option<Arc<io::Error>>) {
        let (count, error) = self.put_some(lines);
        let error = error.map(Arc::new);
        if error.is_some() {
            self.obstacle.clone_from(&error);
        }
        (count, error)
    }

    fn put_some<'a>(
        &mut self,
        lines: impl Iterator<Item = UnsealedLine<'a>>,
    ) -> (usize, Option<io::Error>) {
        let mut lines = lines.peekable();
        if let Some(line) = lines.peek() {
            self.roll_when_due(line.text.len(), line.at);
        }
        if let Err(error) = self.unstick() {
            return (0, Some(error));
        }
        if self.unsigned >= UNSIGNED_LINES_MAX
            && lines.peek().is_some_and(|line| !line.is_signed)
            && let Err(error) = self.checkpoint()
        {
            return (0, Some(io::Error::new(error.kind(), error)));
        }
        let (key, chain) = (Arc::clone(&self.key), self.chain);
        let sign = |link| key.sign(chain, link);
        self.sealed.clear();
        self.sealed.shrink_to(WRITE_BYTES_MAX);
        self.ends.clear();
        let mut is_signed = false;
        for line in lines {
            let length = self.sealed.len() + line.text.len();
            // What is signed is put alone.
            let is_due = is_signed
                || line.is_signed
                || length > WRITE_BYTES_MAX
                || self.is_due(length, line.at)
                || self.unsigned + self.ends.len() as u64 >= UNSIGNED_LINES_MAX;
            if is_due && !self.ends.is_empty() {
                break;
            }
            let before = self.ends.last().map_or(self.last, |(_, link)| *link);
            is_signed = line.is_signed;
            let sign: Option<&dyn Fn(ChainPosition) -> _> =
                if is_signed { Some(&sign) } else { None };
            let link = seal(&mut self.sealed, line.text, before, sign);
            self.ends.push((self.sealed.len(), link));
        }
        let ends = self.ends.iter().map(|(end, _)| *end);
        let before = self.segment.length;
        let (count, error) = self.segment.append(&self.sealed, ends);
        self.room.take(self.segment.length - before);
        if let Some((_, link)) = count.checked_sub(1).and_then(|last| self.ends.get(last)) {
            self.last = *link;
            self.segment.used = true;
            self.unsigned += count as u64;
            if is_signed {
                self.is_signed();
            }
        }
        (count, error)
    }

    /// Whether so many bytes more of this time belong in another segment.
    fn is_due(&self, body: usize, at: Timestamp) -> bool {
        let length = self.segment.length + (body + SEAL_BYTES_MAX) as u64;
        length > self.segment_bytes_max || day(at) > self.segment.day
    }

    /// Begins a new segment when the present one is full or of another day. When that fails, the
    /// present one goes on.
    fn roll_when_due(&mut self, body: usize, at: Timestamp) {
        if !self.segment.used || !self.is_due(body, at) {
            return;
        }
        self.look();
        if self.is_stuck() || !self.is_due(body, at) {
            return;
        }
        if let Err(error) = self.roll(at)
            && !self.segment.overdue
        {
            self.segment.overdue = true;
            tracing::warn!(%error, "a new segment of the audit log cannot be created");
        }
    }

    /// The present segment is on disk before there is a next one, so that a loss of power costs
    /// lines at the end of a chain only; one that is lost has no end to bring there.
    fn roll(&mut self, at: Timestamp) -> io::Result<()> {
        self.segment.mend()?;
        if let Err(error) = self.segment.sink.sync() {
            let kind = error.kind();
            self.distrust(Arc::new(error));
            return Err(kind.into());
        }
        let number = self.segment.number + 1;
        let from = (self.last, &self.tally);
        let (mut segment, last) = begin_segment(&*self.place, self.chain, &self.key, number, from)?;
        segment.day = segment.day.max(day(at));
        self.segment = segment;
        self.last = last;
        self.is_signed();
        Ok(())
    }
}

impl OpenSegment {
    /// The segment as it is after its first line.
    pub(in crate::audit) fn new(number: u32, sink: Arc<dyn SegmentSink>, length: u64) -> Self {
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

    /// Appends as many whole lines as there is room for; `ends` says where each ends. Says how many
    /// there are, and why no more.
    fn append(
        &mut self,
        lines: &[u8],
        ends: impl Iterator<Item = usize>,
    ) -> (usize, Option<io::Error>) {
        if let Err(error) = self.mend() {
            return (0, Some(error));
        }
        let (written, error) = self.write(lines);
        let whole = ends.take_while(|end| *end <= written);
        let (count, length) = whole.fold((0, 0), |(count, _), end| (count + 1, end));
        self.length += length as u64;
        self.torn = written > length;
        // When this fails, it is tried again before the next line.
        let mended = self.mend();
        (count, error.or(mended.err()))
    }

    /// Writes as much as there is room for; says how much, and why no more.
    fn write(&self, bytes: &[u8]) -> (usize, Option<io::Error>) {
        let mut written = 0;
        while written < bytes.len() {
            match self.sink.append(&bytes[written..]) {
                Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Some(error)),
            }
        }
        (written, None)
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
    place: &dyn SegmentStore,
    chain: ChainId,
    key: &SigningKey,
    number: u32,
    (last, tally): (ChainPosition, &ChainTotals),
) -> io::Result<(OpenSegment, ChainPosition)> {
    let mut line = Vec::new();
    let mut members = LineWriter::begin(&mut line, LineType::Begin);
    members.time("ts", clock::now());
    members.shown("chain", &chain.to_string());
    members.number("segment", number.into());
    members.shown("version", env!("CARGO_PKG_VERSION"));
    members.shown("key", &key.public().to_string());
    tally.write(&mut members);
    let mut sealed = Vec::new();
    let link = seal(
        &mut sealed,
        &line,
        last,
        Some(&|link| key.sign(chain, link)),
    );
    let mut segment = OpenSegment::new(number, place.create(number)?, 0);
    let (_, error) = segment.append(&sealed, [sealed.len()].into_iter());
    let begun = error.map_or(Ok(()), Err).and_then(|()| place.sync());
    if let Err(error) = begun {
        place.remove(number)?;
        return Err(error);
    }
    Ok((segment, link))
}

fn day(at: Timestamp) -> i64 {
    at.as_second().div_euclid(DAY_SECONDS)
}
