//! Lines on their way to the writer: those of one moment share a `write`.
//!
//! Whoever has a line puts it into the batch that is gathering, and lets other calls put theirs where
//! that is likely (see [`Company`]); then whoever is first to go on writes all of them. So a busy
//! gateway has a few large writes in place of two small ones for each call, and its threads seldom
//! meet at the file.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;

use super::{
    AuditError,
    line::{Event, Opened, Record},
};
use crate::{money::Micros, names::InvocationId, task::Company};

/// A line that is to be written.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) at: Timestamp,
    /// Without its seal.
    pub(super) line: Vec<u8>,
    pub(super) about: About,
}

/// What a line means for the sums of its chain.
#[derive(Debug)]
pub(super) enum About {
    /// A call is over.
    Call {
        id: InvocationId,
        price: Micros,
        accounts: Vec<String>,
    },
    /// Nothing.
    Event,
    /// A call begins.
    Opened(InvocationId),
}

impl Queued {
    pub(super) fn opens(&self) -> bool {
        matches!(self.about, About::Opened(_))
    }

    pub(super) fn event(event: &Event<'_>) -> Self {
        Self {
            at: event.ts,
            line: event.line(),
            about: About::Event,
        }
    }

    pub(super) fn opened(opened: &Opened<'_>) -> Self {
        Self {
            at: opened.ts,
            line: opened.line(),
            about: About::Opened(opened.id),
        }
    }

    pub(super) fn record(record: &Record<'_>) -> Self {
        let accounts = record.accounts.iter();
        Self {
            at: record.ts,
            line: record.line(),
            about: About::Call {
                id: record.id,
                price: record.price,
                accounts: accounts.map(ToString::to_string).collect(),
            },
        }
    }
}

/// Lines that are written together, as those see it who wait for them.
#[derive(Debug, Default)]
pub(super) struct Batch(OnceLock<Outcome>);

/// What became of the lines of a batch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// How many are with the operating system, from the first on, but for those of calls that may not
    /// be opened. Of the others, lines of opened calls are nowhere; further ones wait in memory or
    /// were given up.
    pub(super) written: usize,
    /// The number of the last line that is.
    pub(super) seq: u64,
    /// What the system said of the first that is not, unless earlier ones were in the way.
    pub(super) refused: Option<Arc<io::Error>>,
    /// How many lines wait, of this batch and earlier ones.
    pub(super) waiting: usize,
    /// Why the disk is not to be trusted.
    pub(super) broken: Option<Arc<io::Error>>,
}

impl Outcome {
    /// The number of the last line written, when the line at this place of the batch is among them.
    fn of(&self, line: usize, opens: bool) -> Result<u64, AuditError> {
        let source = if opens { self.refused.clone() } else { None };
        match (source, self.broken.clone()) {
            (_, Some(source)) if opens => Err(AuditError::Sync { source }),
            _ if line < self.written => Ok(self.seq),
            (Some(source), _) => Err(AuditError::Write { source }),
            (None, _) => {
                let lines = self.waiting;
                Err(AuditError::Pending { lines })
            }
        }
    }
}

/// Where a line is in its batch.
#[derive(Debug)]
pub(super) struct Slot {
    batch: Arc<Batch>,
    line: usize,
    /// Whether the line opens a call.
    opens: bool,
    /// Whether it is likely that further lines join it when other tasks run first.
    pub(super) waits: bool,
}

impl Slot {
    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// As [`Outcome::of`], once the batch was written.
    pub(super) fn written(&self) -> Option<Result<u64, AuditError>> {
        let outcome = self.batch.outcome()?;
        Some(outcome.of(self.line, self.opens))
    }
}

impl Batch {
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.0.get()
    }

    /// Tells who waits.
    pub(super) fn end(&self, outcome: Outcome) {
        let told = self.0.set(outcome);
        debug_assert!(told.is_ok(), "a batch is written once");
    }
}

/// The batch that takes further lines.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    batch: Arc<Batch>,
    lines: Vec<Queued>,
    company: Company,
    /// Whether the chain takes no further line.
    pub(super) closed: bool,
}

impl Gathering {
    /// Takes a line in.
    pub(super) fn put(&mut self, line: Queued) -> Result<Slot, AuditError> {
        if self.closed {
            return Err(AuditError::Closed);
        }
        let opens = line.opens();
        self.lines.push(line);
        Ok(Slot {
            batch: Arc::clone(&self.batch),
            line: self.lines.len() - 1,
            opens,
            waits: self.company.is_likely(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes the batch out, its lines in exchange for `empty`.
    pub(super) fn take(&mut self, empty: &mut Vec<Queued>) -> Arc<Batch> {
        self.company.came(self.lines.len());
        debug_assert!(empty.is_empty(), "lines would be lost");
        std::mem::swap(&mut self.lines, empty);
        std::mem::take(&mut self.batch)
    }
}
