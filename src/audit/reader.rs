//! Reading lines: of one segment, or of one chain, also while it is written.
//!
//! A line is there once its newline is. What comes after the last newline is a line that is being
//! written, or will be cut off; it is looked at again from its beginning next time.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::Deserialize;

use super::{AuditError, AuditEvent, ChainId, LineType, Opened, Record, error::LineFault, files};

/// Bytes of the longest line that is read. Only the first line of a segment comes near it, with
/// hundreds of thousands of accounts.
pub const LINE_BYTES_MAX: usize = 128 << 20;

/// Where a line lies. Positions of a chain sort in its order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Position {
    /// The chain.
    pub chain: ChainId,
    /// The segment, from 1.
    pub segment: u32,
    /// Where the line begins in the segment, in bytes.
    pub offset: u64,
    /// Bytes of the line, its newline included.
    pub length: u64,
}

impl Position {
    /// The offset of the line that follows in the segment.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// A line as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogEntry {
    /// Where it lies.
    pub position: Position,
    /// The line without its newline.
    pub line: Vec<u8>,
}

impl LogEntry {
    /// The kind of the line, unless only a newer version knows it.
    pub fn kind(&self) -> Option<LineType> {
        LineType::of(&self.line)
    }

    /// The record that the line holds, if it is one.
    ///
    /// # Errors
    /// When it is a record, but not of a form that this version knows.
    pub fn record(&self) -> Result<Option<Record<'static>>, AuditError> {
        self.parse(LineType::Call)
    }

    /// The call that the line opens, if it does.
    ///
    /// # Errors
    /// When it opens a call, but not in a form that this version knows.
    pub fn opened(&self) -> Result<Option<Opened<'static>>, AuditError> {
        self.parse(LineType::Opened)
    }

    /// The event that the line holds, if it is one.
    ///
    /// # Errors
    /// When it is an event, but not of a form that this version knows.
    pub fn event(&self) -> Result<Option<AuditEvent<'static>>, AuditError> {
        self.parse(LineType::Event)
    }

    fn parse<'a, T: Deserialize<'a>>(&'a self, kind: LineType) -> Result<Option<T>, AuditError> {
        if self.kind() != Some(kind) {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&self.line);
        let place = self.position;
        let wrong = |_| AuditError::Line {
            chain: place.chain,
            segment: place.segment,
            offset: place.offset,
            fault: LineFault::NotALine,
        };
        parsed.map(Some).map_err(wrong)
    }
}

/// Reads the lines of one chain in their order, of the segments that it had at first. After the last
/// line it goes on with what was added to the last segment meanwhile.
#[derive(Debug)]
pub struct ChainReader {
    directory: PathBuf,
    chain: ChainId,
    current: Option<SegmentReader>,
    /// The segments that follow, last first.
    following: Vec<u32>,
}

impl ChainReader {
    /// Reads `chain` from its first line on.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn new(directory: &Path, chain: ChainId) -> Result<Self, AuditError> {
        let segments = files::chain_segments(directory, chain)?;
        Ok(Self::over_segments(directory, chain, segments))
    }

    /// Reads these segments of a chain, which are given in order.
    pub(super) fn over_segments(directory: &Path, chain: ChainId, mut segments: Vec<u32>) -> Self {
        segments.reverse();
        Self {
            directory: directory.to_owned(),
            chain,
            current: None,
            following: segments,
        }
    }

    /// The next line, or nothing when there is none yet.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn read(&mut self) -> Result<Option<LogEntry>, AuditError> {
        let position = self.advance()?;
        let current = self.current.as_ref();
        Ok(position.and_then(|position| Some(current?.entry(position))))
    }

    /// Goes to the next line; [`ChainReader::line`] has it then.
    pub(super) fn advance(&mut self) -> Result<Option<Position>, AuditError> {
        loop {
            if let Some(segment) = &mut self.current
                && let ReadStep::Line(position) = segment.read()?
            {
                return Ok(Some(position));
            }
            let Some(number) = self.following.pop() else {
                return Ok(None);
            };
            let next = SegmentReader::open_existing(&self.directory, self.chain, number)?;
            // One that was removed is passed over.
            self.current = next.or(self.current.take());
        }
    }

    /// The line that was read last, without its newline.
    pub(super) fn line(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], SegmentReader::line)
    }
}

/// One segment, open for reading.
#[derive(Debug)]
pub(super) struct SegmentReader {
    path: PathBuf,
    pub(super) chain: ChainId,
    pub(super) number: u32,
    file: BufReader<File>,
    /// Where the next line begins.
    offset: u64,
    line: Vec<u8>,
}

/// What was found where a line should begin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadStep {
    /// Nothing.
    End,
    /// A whole line.
    Line(Position),
    /// The beginning of a line.
    Torn {
        /// How much of it.
        bytes: u64,
    },
}

impl SegmentReader {
    pub(super) fn open(directory: &Path, chain: ChainId, number: u32) -> Result<Self, AuditError> {
        let path = files::segment_path(directory, chain, number);
        let file = File::open(&path).map_err(|source| AuditError::File {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            chain,
            number,
            file: BufReader::with_capacity(64 << 10, file),
            offset: 0,
            line: Vec::new(),
        })
    }

    /// A segment, unless it is not there.
    pub(super) fn open_existing(
        directory: &Path,
        chain: ChainId,
        number: u32,
    ) -> Result<Option<Self>, AuditError> {
        match Self::open(directory, chain, number) {
            Ok(segment) => Ok(Some(segment)),
            Err(AuditError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The next line; [`SegmentReader::line`] has it then.
    pub(super) fn read(&mut self) -> Result<ReadStep, AuditError> {
        self.line.clear();
        let mut limited = (&mut self.file).take(LINE_BYTES_MAX as u64);
        let read = limited.read_until(b'\n', &mut self.line);
        let length = match read {
            Ok(length) => length as u64,
            // Whoever tries again reads the same line.
            Err(source) => {
                self.seek(self.offset)?;
                return Err(self.file_error(source));
            }
        };
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            let position = Position {
                chain: self.chain,
                segment: self.number,
                offset: self.offset,
                length,
            };
            self.offset += length;
            return Ok(ReadStep::Line(position));
        }
        self.seek(self.offset)?;
        if length == LINE_BYTES_MAX as u64 {
            return Err(self.line_error(self.offset, LineFault::TooLong));
        }
        Ok(match length {
            0 => ReadStep::End,
            bytes => ReadStep::Torn { bytes },
        })
    }

    /// The line that was read last, without its newline.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Where the next line begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn seek(&mut self, offset: u64) -> Result<(), AuditError> {
        let gone = self.file.seek(SeekFrom::Start(offset));
        gone.map_err(|source| self.file_error(source))?;
        self.offset = offset;
        Ok(())
    }

    /// When the first line was written; nothing without a readable first line.
    pub(super) fn first_line_time(&mut self) -> Result<Option<Timestamp>, AuditError> {
        self.seek(0)?;
        let step = self.read()?;
        self.seek(0)?;
        let is_line = matches!(step, ReadStep::Line(_));
        Ok(is_line.then(|| line_time(&self.line)).flatten())
    }

    /// The last whole line, found from the end.
    pub(super) fn last_line(&mut self) -> Result<Option<Position>, AuditError> {
        self.last_line_within(u64::MAX)
    }

    /// The last whole line of the first `limit` bytes.
    pub(super) fn last_line_within(&mut self, limit: u64) -> Result<Option<Position>, AuditError> {
        let end = self.file.seek(SeekFrom::End(0));
        let end = end.map_err(|source| self.file_error(source))?.min(limit);
        let mut window = TAIL_SEARCH_BYTES;
        loop {
            let from = end.saturating_sub(window);
            self.seek(from)?;
            let mut tail = Vec::new();
            let mut limited = (&mut self.file).take(end - from);
            let read = limited.read_to_end(&mut tail);
            read.map_err(|source| self.file_error(source))?;
            let newlines = tail.iter().enumerate().filter(|(_, b)| **b == b'\n');
            let mut newlines = newlines.map(|(at, _)| at as u64).rev();
            let begin = match (newlines.next(), newlines.next()) {
                (Some(_), Some(before)) => from + before + 1,
                (Some(_), None) if from == 0 => 0,
                _ if from == 0 => return Ok(None),
                _ => {
                    window *= 8;
                    continue;
                }
            };
            self.seek(begin)?;
            return match self.read()? {
                ReadStep::Line(position) => Ok(Some(position)),
                ReadStep::End | ReadStep::Torn { .. } => Ok(None),
            };
        }
    }

    pub(super) fn entry(&self, position: Position) -> LogEntry {
        LogEntry {
            position,
            line: self.line.clone(),
        }
    }

    pub(super) fn line_error(&self, offset: u64, fault: LineFault) -> AuditError {
        AuditError::Line {
            chain: self.chain,
            segment: self.number,
            offset,
            fault,
        }
    }

    pub(super) fn file_error(&self, source: io::Error) -> AuditError {
        AuditError::File {
            path: self.path.clone(),
            source,
        }
    }
}

/// When a line was written. Every line says so near its beginning, before any text that others
/// choose.
pub(super) fn line_time(line: &[u8]) -> Option<Timestamp> {
    let head = &line[..line.len().min(TIME_SEARCH_BYTES)];
    let from = memchr::memmem::find(head, TIME_PREFIX)? + TIME_PREFIX.len();
    let length = memchr::memchr(b'"', &head[from..])?;
    let text = std::str::from_utf8(&head[from..from + length]).ok()?;
    text.parse().ok()
}

const TIME_PREFIX: &[u8] = b",\"ts\":\"";

/// Bytes at the beginning of a line in which its time stands.
pub(super) const TIME_SEARCH_BYTES: usize = 160;

/// Bytes at the end of a segment in which its last line is looked for first.
const TAIL_SEARCH_BYTES: u64 = 16 << 10;
