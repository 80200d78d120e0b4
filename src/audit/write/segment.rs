//! The segment that a chain is being written to: it ends in a whole line whenever nobody is in here.

use std::{io, sync::Arc};

use jiff::Timestamp;

use super::{
    segment_store::{SegmentSink, SegmentStore},
    totals::ChainTotals,
};
use crate::{
    audit::{
        ChainId,
        hash_chain::{ChainPosition, append_sealed},
        record::{line_writer::LineWriter, record_line::LineType},
        signature::SigningKey,
    },
    clock,
};

const DAY_SECONDS: i64 = 24 * 60 * 60;

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

impl OpenSegment {
    /// The segment as it is after its first line.
    pub(in crate::audit) fn new(number: u32, sink: Arc<dyn SegmentSink>, length: u64) -> Self {
        Self {
            number,
            sink,
            length,
            used: false,
            day: day_number(clock::now()),
            torn: false,
            overdue: false,
        }
    }

    /// Appends as many whole lines as there is room for; `ends` says where each ends. Says how many
    /// there are, and why no more.
    pub(in crate::audit) fn append(
        &mut self,
        lines: &[u8],
        ends: impl Iterator<Item = usize>,
    ) -> (usize, Option<io::Error>) {
        if let Err(error) = self.truncate_torn() {
            return (0, Some(error));
        }
        let (written, error) = self.write(lines);
        let whole = ends.take_while(|end| *end <= written);
        let (count, length) = whole.fold((0, 0), |(count, _), end| (count + 1, end));
        self.length += length as u64;
        self.torn = written > length;
        // When this fails, it is tried again before the next line.
        let mended = self.truncate_torn();
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
    pub(in crate::audit) fn truncate_torn(&mut self) -> io::Result<()> {
        if self.torn {
            self.sink.truncate(self.length)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// Makes a segment with its first line, or nothing.
pub(in crate::audit) fn create_segment(
    place: &dyn SegmentStore,
    chain: ChainId,
    key: &SigningKey,
    number: u32,
    (last, tally): (ChainPosition, &ChainTotals),
) -> io::Result<(OpenSegment, ChainPosition)> {
    let mut line = Vec::new();
    let mut members = LineWriter::begin(&mut line, LineType::Begin);
    members.time("ts", clock::now());
    members.plain_text("chain", &chain.to_string());
    members.number("segment", number.into());
    members.plain_text("version", env!("CARGO_PKG_VERSION"));
    members.plain_text("key", &key.public().to_string());
    tally.write_all(&mut members);
    let mut sealed = Vec::new();
    let position = append_sealed(
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
    Ok((segment, position))
}

pub(in crate::audit) fn day_number(at: Timestamp) -> i64 {
    at.as_second().div_euclid(DAY_SECONDS)
}
