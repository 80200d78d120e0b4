//! The one writer of a chain: seals lines, appends them, begins new segments, and keeps what could
//! not be written.
//!
//! Used by the thread of the log, and by whoever takes over a dead chain. What must stay true: the
//! file ends in a whole line whenever nobody is in here, and lines that wait are written before any
//! later one.

use std::{io, mem, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    entry::{AuditEntry, DueReply, EntryKind, WriteFailurePolicy},
    health::WriterHealth,
    log_space::LogSpace,
    refusal_sums::RefusalSums,
    segment::{OpenSegment, create_segment, day_number},
    segment_store::{SegmentSink, SegmentStore},
    totals::ChainTotals,
};
use crate::{
    audit::{
        AuditError, ChainId,
        files::FileLoss,
        hash_chain::{ChainPosition, SEAL_BYTES_MAX, append_sealed},
        record::{
            changed_values::ChangedValues,
            line_writer::LineWriter,
            record_line::{AuditEvent, EventKind, LineType, Opened, Record},
        },
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
pub(in crate::audit) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// How often a signed place of the chain is told to the log.
const HEAD_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes of lines that go into one `write`; a longer line has one for itself.
pub(in crate::audit) const WRITE_BYTES_MAX: usize = 256 << 10;

/// How long after a failure waiting lines are tried again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The one writer of a chain.
pub(in crate::audit) struct Writer {
    chain: ChainId,
    store: Box<dyn SegmentStore>,
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
    totals: ChainTotals,
    /// Lines that could not be written yet, in order.
    pending: Vec<AuditEntry>,
    /// Lines that were given up, which the log does not say yet.
    lost: u64,
    /// What room there is, and what was not recorded for want of it.
    pub(in crate::audit) space: LogSpace,
    refusal_sums: RefusalSums,
    /// Why the disk is not to be trusted.
    pub(in crate::audit) broken: Option<Arc<io::Error>>,
    /// What became of the segment, and why there is no other one yet.
    segment_loss: Option<(FileLoss, Arc<io::Error>)>,
    /// What the system said when it last took no line.
    last_write_error: Option<Arc<io::Error>>,
    /// Lines with their seals, for one `write`.
    sealed: Vec<u8>,
    /// Where each of them ends, and its place in the chain.
    ends: Vec<(usize, ChainPosition)>,
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

/// What a chain amounts to that is gone on with.
pub(in crate::audit) struct ResumedChain {
    pub(in crate::audit) segment: OpenSegment,
    /// Its last line.
    pub(in crate::audit) last: ChainPosition,
    pub(in crate::audit) totals: ChainTotals,
    /// Lines after the last one that is signed.
    pub(in crate::audit) unsigned: u64,
}

impl Writer {
    /// Begins a chain.
    pub(in crate::audit) fn begin(
        chain: ChainId,
        place: Box<dyn SegmentStore>,
        key: Arc<SigningKey>,
    ) -> io::Result<Self> {
        let totals = ChainTotals::default();
        let from = (ChainPosition::default(), &totals);
        let (segment, last) = create_segment(&*place, chain, &key, 1, from)?;
        let resumed = ResumedChain {
            segment,
            last,
            totals,
            unsigned: 0,
        };
        Ok(Self::resume(chain, place, key, resumed))
    }

    /// Goes on with a chain.
    pub(in crate::audit) fn resume(
        chain: ChainId,
        store: Box<dyn SegmentStore>,
        key: Arc<SigningKey>,
        from: ResumedChain,
    ) -> Self {
        Self {
            chain,
            store,
            key,
            segment: from.segment,
            segment_bytes_max: SEGMENT_BYTES_MAX,
            last: from.last,
            unsigned: from.unsigned,
            signed_at: Instant::now(),
            head: None,
            totals: from.totals,
            pending: Vec::new(),
            lost: 0,
            space: LogSpace::default(),
            refusal_sums: RefusalSums::default(),
            broken: None,
            segment_loss: None,
            last_write_error: None,
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

    pub(in crate::audit) fn totals(&self) -> &ChainTotals {
        &self.totals
    }

    pub(in crate::audit) fn health(&self) -> WriterHealth {
        WriterHealth {
            waiting: self.pending.len(),
            lost: self.lost,
            segment_error: self
                .segment_loss
                .as_ref()
                .map(|(_, error)| Arc::clone(error)),
            last_write_error: self.last_write_error.clone(),
            head: self.head.map(|(head, _)| head),
            space: self.space,
        }
    }

    /// Whether nothing waits that has to come before the end of the chain.
    fn is_ready_to_end(&self) -> Result<(), AuditError> {
        if let Some(source) = self.broken.clone() {
            return Err(AuditError::Sync { source });
        }
        match self.health().ready() {
            Err(AuditError::Quota { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How long to wait for lines before what waits is tried again, or a signature is due.
    pub(in crate::audit) fn next_wake(&self) -> Option<Duration> {
        if self.has_pending() || self.has_lost_segment() {
            return Some(RETRY_DELAY);
        }
        let left = CHECKPOINT_INTERVAL.saturating_sub(self.signed_at.elapsed());
        let unsigned = (self.unsigned > 0).then_some(left);
        let due = unsigned
            .into_iter()
            .chain(self.refusal_sums.time_until_due())
            .min();
        due.map(|due| due.max(RETRY_DELAY))
    }

    /// Takes lines out for which there is no room, and puts sums of earlier ones in; all at the end.
    pub(in crate::audit) fn sum_refusals(&mut self, lines: &mut Vec<AuditEntry>, is_end: bool) {
        self.refusal_sums
            .sum_refusals(&self.space, &self.totals, lines);
        lines.extend(self.refusal_sums.due_entries(is_end));
    }

    /// Writes what waits and then `lines`, and takes these out. Where there is no room some are
    /// discarded, and the others wait. Returns what their callers are told.
    pub(in crate::audit) fn write(&mut self, lines: &mut Vec<AuditEntry>) -> Vec<DueReply> {
        if self.has_pending() {
            // Who made room may have removed the segment, and nothing was synced since.
            self.check_segment();
        }
        // Else whoever has a line is told why.
        drop(self.retry_new_segment());
        let (waiting, mut written) = (self.pending.len(), 0);
        self.pending.append(lines);
        let mut lines = mem::take(&mut self.pending);
        let mut replies = Vec::with_capacity(lines.len());
        if let Some(source) = &self.broken {
            // Nothing may be opened on a disk that is not to be trusted.
            lines.retain_mut(|line| {
                let is_kept = line.fallback == WriteFailurePolicy::Keep;
                let source = Arc::clone(source);
                let refused = (!is_kept).then(|| line.take_reply(Err(AuditError::Sync { source })));
                replies.extend(refused.flatten());
                is_kept
            });
        }
        while !lines.is_empty() {
            let unsealed = lines.iter().map(|it| UnsealedLine::of(&it.line, it.time));
            let (count, error) = self.append_all(unsealed);
            for mut line in lines.drain(..count) {
                replies.extend(line.take_reply(Ok(())));
                self.totals.apply(line);
            }
            written += count;
            if let Some(error) = error {
                // Else what waited before is in the way.
                let is_first = written >= waiting;
                self.keep_pending(lines, is_first.then_some(&error), &mut replies);
                if waiting == 0 && !self.pending.is_empty() {
                    tracing::error!(
                        %error,
                        "cannot write the audit log; calls are refused until this is fixed"
                    );
                }
                return replies;
            }
        }
        if self.pending.is_empty() {
            self.pending = lines;
        }
        self.report_lost();
        if self.unsigned > 0 && self.signed_at.elapsed() >= CHECKPOINT_INTERVAL {
            // Without room for it there is none for further lines, which say so.
            drop(self.checkpoint());
        }
        replies
    }

    /// Says how many lines were given up.
    fn report_lost(&mut self) {
        if self.lost == 0 {
            return;
        }
        let event = AuditEvent {
            ts: clock::now(),
            event: EventKind::LinesLost,
            subject: "audit".into(),
            actor: None,
            detail: Some(format!("{} lines", self.lost).into()),
            changes: ChangedValues::default(),
        };
        let line = event.to_line();
        if self.append_one(UnsealedLine::of(&line, event.ts)).is_ok() {
            self.lost = 0;
        }
    }

    /// Keeps lines that could not be written, if they are such that must not be lost. `error` is why,
    /// unless lines that waited before are in the way.
    fn keep_pending(
        &mut self,
        lines: Vec<AuditEntry>,
        error: Option<&Arc<io::Error>>,
        replies: &mut Vec<DueReply>,
    ) {
        let first = replies.len();
        let mut bytes: usize = self.pending.iter().map(|line| line.line.len()).sum();
        for mut line in lines {
            if line.fallback == WriteFailurePolicy::Discard {
                let error = error.cloned();
                let refused = error.map_or(Ok(()), |source| Err(AuditError::Write { source }));
                replies.extend(line.take_reply(refused));
                continue;
            }
            replies.extend(line.take_reply(Ok(())));
            // Of those there are no more than calls in flight.
            let must_keep =
                matches!(&line.kind, EntryKind::Call { id, .. } if self.totals.is_open(*id));
            let length = line.line.len();
            if must_keep || bytes + length <= PENDING_BYTES_MAX {
                bytes += length;
                self.pending.push(line);
            } else {
                self.lost += 1;
            }
        }
        for reply in &mut replies[first..] {
            if reply.outcome.is_ok() {
                reply.outcome = Err(self.health().pending_error());
            }
        }
    }

    /// Writes a line that is signed, or nothing.
    fn write_signed(&mut self, kind: LineType) -> Result<(), Arc<io::Error>> {
        let now = clock::now();
        let mut made = Vec::new();
        let mut line = LineWriter::begin(&mut made, kind);
        line.time("ts", now);
        if kind == LineType::End {
            self.totals.write_sums(&mut line);
        } else {
            line.plain_text("chain", &self.chain.to_string());
        }
        self.append_one(UnsealedLine::of(&made, now))
    }

    /// Signs all lines until now.
    fn checkpoint(&mut self) -> Result<(), Arc<io::Error>> {
        self.write_signed(LineType::Checkpoint)
    }

    /// Notes that the last line is signed, and tells the log now and then, so that somebody may know it
    /// who cannot be reached from here.
    fn note_signed(&mut self) {
        (self.unsigned, self.signed_at) = (0, Instant::now());
        let is_recent = |(_, at): &(ChainPosition, Instant)| at.elapsed() < HEAD_INTERVAL;
        if !self.head.as_ref().is_some_and(is_recent) {
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
        self.write(&mut Vec::new());
        self.is_ready_to_end()?;
        let mut last = self.refusal_sums.due_entries(true);
        let open = self.totals.open_calls().unwrap_or_default().into_iter();
        last.extend(open.map(|opened| AuditEntry::record(&record(opened, clock::now()))));
        self.write(&mut last);
        self.is_ready_to_end()?;
        // The last place of a chain is told in any case.
        self.head = None;
        self.write_signed(LineType::End)
            .map_err(|source| AuditError::Write { source })
    }

    /// Returns when the disk has what is written, or is not to be trusted.
    pub(in crate::audit) fn sync(&mut self) {
        if let Err(error) = self.segment.sink.sync() {
            self.mark_disk_failed(Arc::new(error));
        }
    }

    /// Remembers that the disk is not to be trusted.
    pub(in crate::audit) fn mark_disk_failed(&mut self, error: Arc<io::Error>) {
        if self.broken.is_none() {
            tracing::error!(%error, "cannot sync the audit log to disk; calls are refused until the gateway is restarted");
            self.broken = Some(error);
        }
    }

    /// Remembers lines that were given up before they came here.
    pub(in crate::audit) fn count_lost(&mut self, lines: u64) {
        self.lost += lines;
    }

    /// Whether the segment is lost and there is no other one.
    fn has_lost_segment(&self) -> bool {
        self.segment_loss.is_some()
    }

    /// Looks whether the segment is still where its readers find it, and the chain still ours. If
    /// not, what was written to it is gone or not the last, and the chain goes on in another one,
    /// which says so.
    pub(in crate::audit) fn check_segment(&mut self) {
        if self.segment_loss.is_some() {
            return;
        }
        let (number, length) = (self.segment.number, self.segment.length);
        let lost = self.segment.sink.loss(length);
        let lost = lost.or_else(|| self.store.loss());
        if let Some(loss) = lost {
            tracing::error!(segment = number, "the audit log file {loss}");
            self.replace_segment(loss);
        }
    }

    /// Tries again to begin another segment in place of one that is lost.
    fn retry_new_segment(&mut self) -> io::Result<()> {
        if let Some((loss, _)) = self.segment_loss {
            self.replace_segment(loss);
        }
        match &self.segment_loss {
            None => Ok(()),
            Some((_, error)) => Err(io::Error::new(error.kind(), Arc::clone(error))),
        }
    }

    /// Begins another segment in place of one that is lost.
    fn replace_segment(&mut self, loss: FileLoss) {
        let number = self.segment.number;
        let begin = || {
            self.store.ensure_owned()?;
            let from = (self.last, &self.totals);
            create_segment(&*self.store, self.chain, &self.key, number + 1, from)
        };
        match begin() {
            Ok((segment, last)) => {
                let day = segment.day.max(self.segment.day);
                self.segment = OpenSegment { day, ..segment };
                self.last = last;
                self.note_signed();
                self.segment_loss = None;
            }
            Err(error) => {
                let why = format!(
                    "segment {number} {loss}, and a new segment cannot be created: {error}"
                );
                self.segment_loss = Some((loss, Arc::new(io::Error::new(error.kind(), why))));
                return;
            }
        }
        let event = AuditEvent {
            ts: clock::now(),
            event: EventKind::SegmentLost,
            subject: format!("{}/{number}", self.chain).into(),
            actor: None,
            detail: Some(format!("it {loss}").into()),
            changes: ChangedValues::default(),
        };
        if self
            .append_one(UnsealedLine::of(&event.to_line(), event.ts))
            .is_err()
        {
            self.pending.push(AuditEntry::event(&event));
        }
    }

    /// Whether anything waits, be it what is to be said of lines that were given up.
    fn has_pending(&self) -> bool {
        self.lost > 0 || !self.pending.is_empty()
    }

    fn append_one(&mut self, line: UnsealedLine<'_>) -> Result<(), Arc<io::Error>> {
        let (_, error) = self.append_all([line].into_iter());
        error.map_or(Ok(()), Err)
    }

    /// Seals and appends the first of `lines`, those that are in one segment and one `write` and find
    /// room; says how many, and why no more of these.
    fn append_all<'a>(
        &mut self,
        lines: impl Iterator<Item = UnsealedLine<'a>>,
    ) -> (usize, Option<Arc<io::Error>>) {
        let (count, error) = self.append_until_error(lines);
        let error = error.map(Arc::new);
        if error.is_some() {
            self.last_write_error.clone_from(&error);
        }
        (count, error)
    }

    fn append_until_error<'a>(
        &mut self,
        lines: impl Iterator<Item = UnsealedLine<'a>>,
    ) -> (usize, Option<io::Error>) {
        let mut lines = lines.peekable();
        if let Some(line) = lines.peek() {
            self.rotate_if_due(line.text.len(), line.at);
        }
        if let Err(error) = self.retry_new_segment() {
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
                || self.needs_new_segment(length, line.at)
                || self.unsigned + self.ends.len() as u64 >= UNSIGNED_LINES_MAX;
            if is_due && !self.ends.is_empty() {
                break;
            }
            let before = self.ends.last().map_or(self.last, |(_, link)| *link);
            is_signed = line.is_signed;
            let sign: Option<&dyn Fn(ChainPosition) -> _> =
                if is_signed { Some(&sign) } else { None };
            let position = append_sealed(&mut self.sealed, line.text, before, sign);
            self.ends.push((self.sealed.len(), position));
        }
        let ends = self.ends.iter().map(|(end, _)| *end);
        let before = self.segment.length;
        let (count, error) = self.segment.append(&self.sealed, ends);
        self.space.consume(self.segment.length - before);
        if let Some((_, link)) = count.checked_sub(1).and_then(|last| self.ends.get(last)) {
            self.last = *link;
            self.segment.used = true;
            self.unsigned += count as u64;
            if is_signed {
                self.note_signed();
            }
        }
        (count, error)
    }

    /// Whether so many bytes more of this time belong in another segment.
    fn needs_new_segment(&self, body: usize, at: Timestamp) -> bool {
        let length = self.segment.length + (body + SEAL_BYTES_MAX) as u64;
        length > self.segment_bytes_max || day_number(at) > self.segment.day
    }

    /// Begins a new segment when the present one is full or of another day. When that fails, the
    /// present one goes on.
    fn rotate_if_due(&mut self, body: usize, at: Timestamp) {
        if !self.segment.used || !self.needs_new_segment(body, at) {
            return;
        }
        self.check_segment();
        if self.has_lost_segment() || !self.needs_new_segment(body, at) {
            return;
        }
        if let Err(error) = self.rotate(at)
            && !self.segment.overdue
        {
            self.segment.overdue = true;
            tracing::warn!(%error, "cannot create a new audit log segment");
        }
    }

    /// The present segment is on disk before there is a next one, so that a loss of power costs
    /// lines at the end of a chain only; one that is lost has no end to bring there.
    fn rotate(&mut self, at: Timestamp) -> io::Result<()> {
        self.segment.truncate_torn()?;
        if let Err(error) = self.segment.sink.sync() {
            let kind = error.kind();
            self.mark_disk_failed(Arc::new(error));
            return Err(kind.into());
        }
        let number = self.segment.number + 1;
        let from = (self.last, &self.totals);
        let (mut segment, last) =
            create_segment(&*self.store, self.chain, &self.key, number, from)?;
        segment.day = segment.day.max(day_number(at));
        self.segment = segment;
        self.last = last;
        self.note_signed();
        Ok(())
    }
}
