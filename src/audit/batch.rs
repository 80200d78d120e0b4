//! Lines on their way to the writer: those of one moment share a `write`.
//!
//! Whoever has a line puts it into the batch that is gathering, and lets other calls put theirs;
//! then whoever is first to go on writes all of them. So a busy gateway has a few large writes in
//! place of two small ones for each call, and its threads seldom meet at the file. Letting others
//! go first costs more than a `write` where there are none, so that lines wait only while
//! enough of them are joined, and now and then to see whether that has changed.

use std::{
    io,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;

use super::{
    AuditError, Refusals,
    line::{Event, Opened, Record},
};
use crate::{money::Micros, names::InvocationId};

/// Of so many batches one waits for further lines although hardly any came to earlier ones.
const TRY_EVERY: usize = 16;

/// So many batches wait after one to which further lines came: it pays when one in four is such.
const WAITS_EARNED: usize = 4;

/// Most batches that wait in vain until none does.
const WAITS_MAX: usize = 16;

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

    pub(super) fn refusals(refusals: &Refusals<'_>) -> Self {
        Self {
            at: refusals.until,
            line: refusals.line(),
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
    /// What the system said when it last took no line.
    pub(super) obstacle: Option<Arc<io::Error>>,
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
                let (lines, source) = (self.waiting, self.obstacle.clone());
                Err(AuditError::Pending { lines, source })
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
    /// How many batches were taken out.
    taken: usize,
    /// How many further ones wait.
    waits: usize,
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
            waits: self.waits > 0 || self.taken.is_multiple_of(TRY_EVERY),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes the batch out, its lines in exchange for `empty`.
    pub(super) fn take(&mut self, empty: &mut Vec<Queued>) -> Arc<Batch> {
        self.taken += 1;
        self.waits = match self.lines.len() {
            0 | 1 => self.waits.saturating_sub(1),
            _ => (self.waits + WAITS_EARNED).min(WAITS_MAX),
        };
        debug_assert!(empty.is_empty(), "lines would be lost");
        std::mem::swap(&mut self.lines, empty);
        std::mem::take(&mut self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::testing::event;

    #[test]
    fn lines_wait_while_others_join_them() {
        let mut gathering = Gathering::default();
        assert_eq!(waits(&mut gathering, &[1; 3 * TRY]), [0, TRY, 2 * TRY]);
        let others_once = waits(&mut gathering, &[1, 2, 1, 1, 1, 1, 1]);
        assert_eq!(others_once, [0, 2, 3, 4, 5], "0 is a try, 1 was joined");
        let mut gathering = Gathering::default();
        let often = [vec![2; TRY], vec![1; TRY]].concat();
        assert_eq!(waits(&mut gathering, &often).len(), 2 * TRY);
        assert_eq!(waits(&mut gathering, &[1; TRY]), [0], "a try");

        let of_four = [2, 1, 1, 1].repeat(TRY);
        assert_eq!(waits(&mut gathering, &of_four).len(), of_four.len());
        let of_six = [2, 1, 1, 1, 1, 1].repeat(TRY);
        assert!(waits(&mut gathering, &of_six).len() < of_six.len());
    }

    const TRY: usize = TRY_EVERY;

    /// Which of the batches of so many lines wait.
    fn waits(gathering: &mut Gathering, batches: &[usize]) -> Vec<usize> {
        let mut empty = Vec::new();
        let mut waits = |lines: &usize| {
            let put = |_| gathering.put(Queued::event(&event("2026-01-01T00:00:00Z")));
            let waits = (0..*lines).map(put).last().unwrap().unwrap().waits;
            gathering.take(&mut empty);
            empty.clear();
            waits
        };
        let count = 0..batches.len();
        count.filter(|number| waits(&batches[*number])).collect()
    }
}
