//! What waits in the queue to be written, and what is told of it.

use jiff::Timestamp;

use tokio::sync::oneshot;

use crate::{
    audit::{
        QuestionRecord, RefusalSummary,
        error::AuditError,
        record::record_line::{AuditEvent, Opened, Record},
    },
    money::Micros,
    names::InvocationId,
};

/// What whoever waits for a line is to be told.
#[derive(Debug)]
pub(in crate::audit) struct DueReply {
    reply: Reply,
    /// Whether they wait until the disk has it.
    pub(super) is_durable: bool,
    pub(super) outcome: Result<(), AuditError>,
}

impl DueReply {
    pub(super) fn send(self) {
        // Whoever gave up does not mind.
        drop(self.reply.send(self.outcome));
    }
}

/// Who waits for a line.
pub(super) type Reply = oneshot::Sender<Result<(), AuditError>>;

/// A line that is to be written.
#[derive(Debug)]
pub(in crate::audit) struct AuditEntry {
    pub(in crate::audit) time: Timestamp,
    /// Without its seal.
    pub(in crate::audit) line: Vec<u8>,
    pub(in crate::audit) kind: EntryKind,
    pub(in crate::audit) fallback: WriteFailurePolicy,
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
pub(in crate::audit) enum WriteFailurePolicy {
    /// It is nowhere, and who waits is told so.
    Discard,
    /// It waits in memory until it can be written; while there is no room for that either it is counted,
    /// unless it is the record of a call that is open.
    Keep,
}

impl AuditEntry {
    pub(in crate::audit) fn new(
        time: Timestamp,
        line: Vec<u8>,
        fallback: WriteFailurePolicy,
    ) -> Self {
        Self {
            time,
            line,
            kind: EntryKind::Event,
            fallback,
            is_durable: false,
            reply: None,
        }
    }

    pub(in crate::audit) fn event(event: &AuditEvent<'_>) -> Self {
        Self::new(event.ts, event.to_line(), WriteFailurePolicy::Keep)
    }

    pub(in crate::audit) fn refusals(refusals: &RefusalSummary<'_>) -> Self {
        Self::new(refusals.until, refusals.to_line(), WriteFailurePolicy::Keep)
    }

    pub(in crate::audit) fn question(question: &QuestionRecord<'_>) -> Self {
        Self::new(question.ts, question.to_line(), WriteFailurePolicy::Keep)
    }

    pub(in crate::audit) fn opened(opened: &Opened<'_>) -> Self {
        Self {
            kind: EntryKind::Opened(opened.id),
            ..Self::new(opened.ts, opened.to_line(), WriteFailurePolicy::Discard)
        }
    }

    pub(in crate::audit) fn record(record: &Record<'_>) -> Self {
        let accounts = record.accounts.iter();
        Self {
            kind: EntryKind::Call {
                id: record.id,
                price: record.price,
                accounts: accounts.map(ToString::to_string).collect(),
            },
            ..Self::new(record.ts, record.to_line(), WriteFailurePolicy::Keep)
        }
    }

    /// What whoever waits for the line is to be told.
    pub(super) fn take_reply(&mut self, outcome: Result<(), AuditError>) -> Option<DueReply> {
        Some(DueReply {
            reply: self.reply.take()?,
            is_durable: self.is_durable,
            outcome,
        })
    }

    /// Tells whoever waits for the line.
    pub(super) fn send_reply(&mut self, outcome: Result<(), AuditError>) {
        if let Some(reply) = self.take_reply(outcome) {
            reply.send();
        }
    }

    /// The line of somebody who waits until the disk has it.
    pub(in crate::audit) fn require_durable(self) -> Self {
        Self {
            is_durable: true,
            ..self
        }
    }
}
