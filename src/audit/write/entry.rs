//! What waits in the queue to be written, and what is told of it.

use jiff::Timestamp;

use tokio::sync::oneshot;

use crate::{
    audit::{
        QuestionRecord, RefusalSummary,
        error::AuditError,
        record::line::{AuditEvent, Opened, Record},
    },
    money::Micros,
    names::InvocationId,
};

/// Who waits for a line.
pub(super) type Reply = oneshot::Sender<Result<(), AuditError>>;

/// A line that is to be written.
#[derive(Debug)]
pub(in crate::audit) struct AuditEntry {
    pub(in crate::audit) at: Timestamp,
    /// Without its seal.
    pub(in crate::audit) line: Vec<u8>,
    pub(in crate::audit) about: EntryKind,
    pub(in crate::audit) fallback: Fallback,
    /// Whether whoever waits does so until the disk has it.
    pub(super) is_durable: bool,
    pub(super) reply: Option<Reply>,
}

/// What a line means for the sums of its chain.
#[derive(Debug)]
pub(in crate::audit) enum EntryKind {
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

/// What becomes of a line that cannot be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::audit) enum Fallback {
    /// It is nowhere, and who waits is told so.
    Discard,
    /// It waits in memory until it can be written; while there is no room for that either it is counted,
    /// unless it is the record of a call that is open.
    Keep,
}

impl AuditEntry {
    pub(in crate::audit) fn new(at: Timestamp, line: Vec<u8>, fallback: Fallback) -> Self {
        Self {
            at,
            line,
            about: EntryKind::Event,
            fallback,
            is_durable: false,
            reply: None,
        }
    }

    pub(in crate::audit) fn event(event: &AuditEvent<'_>) -> Self {
        Self::new(event.ts, event.line(), Fallback::Keep)
    }

    pub(in crate::audit) fn refusals(refusals: &RefusalSummary<'_>) -> Self {
        Self::new(refusals.until, refusals.line(), Fallback::Keep)
    }

    pub(in crate::audit) fn question(question: &QuestionRecord<'_>) -> Self {
        Self::new(question.ts, question.line(), Fallback::Keep)
    }

    pub(in crate::audit) fn opened(opened: &Opened<'_>) -> Self {
        Self {
            about: EntryKind::Opened(opened.id),
            ..Self::new(opened.ts, opened.line(), Fallback::Discard)
        }
    }

    pub(in crate::audit) fn record(record: &Record<'_>) -> Self {
        let accounts = record.accounts.iter();
        Self {
            about: EntryKind::Call {
                id: record.id,
                price: record.price,
                accounts: accounts.map(ToString::to_string).collect(),
            },
            ..Self::new(record.ts, record.line(), Fallback::Keep)
        }
    }

    /// Tells who waits for the line.
    pub(in crate::audit) fn reply(&mut self, kept: Result<(), AuditError>) {
        if let Some(reply) = self.reply.take() {
            // Whoever gave up does not mind.
            drop(reply.send(kept));
        }
    }

    /// The same for somebody who waits until the disk has it.
    pub(in crate::audit) fn durable(self) -> Self {
        Self {
            is_durable: true,
            ..self
        }
    }
}
