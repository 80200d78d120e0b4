//! The streams of one legacy session: one for each answer, and one for what belongs to no call.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use super::replay::Stream;
use crate::lock::lock;

/// Streams of a session that are kept for resumption, the finished ones included.
pub const STREAMS_MAX: usize = 16;
/// Bytes in the streams of a session at which finished ones are given up, the oldest first.
pub const STREAM_BYTES_MAX: usize = 16 << 20;
/// Between the numbers of two streams for answers: those are odd. The stream for messages that
/// belong to no call has an even one. A restored session counts on from a larger number, so that an
/// event id of before names none of its streams.
const STEP: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Streams {
    answers: Mutex<Vec<Arc<Stream>>>,
    standing: Mutex<Option<Arc<Stream>>>,
    standing_id: u64,
    next: AtomicU64,
}

impl Streams {
    /// Those of a session that had at most `before` of them in earlier processes.
    pub(super) fn after(before: u64) -> Self {
        Self {
            answers: Mutex::default(),
            standing: Mutex::default(),
            standing_id: before * STEP,
            next: AtomicU64::new(before * STEP + 1),
        }
    }

    /// The stream for messages that belong to no call, once its client has opened it.
    pub(super) fn standing(&self) -> Option<Arc<Stream>> {
        lock(&self.standing).clone()
    }

    /// The same stream, opened when there is none; `overrun` is cancelled when its reader does not
    /// keep up at all. It is finished where the session `has_ended`.
    pub(super) fn open_standing(
        &self,
        overrun: impl FnOnce() -> CancellationToken,
        has_ended: impl FnOnce() -> bool,
    ) -> Arc<Stream> {
        let mut standing = lock(&self.standing);
        if let Some(stream) = standing.as_ref().filter(|stream| !stream.is_finished()) {
            return Arc::clone(stream);
        }
        let stream = Arc::new(Stream::watched(self.standing_id, overrun()));
        if has_ended() {
            stream.finish();
        }
        *standing = Some(Arc::clone(&stream));
        stream
    }

    /// Whether `id` is that of the stream for messages that belong to no call.
    pub(super) fn is_standing(&self, id: u64) -> bool {
        id == self.standing_id
    }

    /// Whether `id` was that of the same stream before a restart.
    pub(super) fn was_standing(&self, id: u64) -> bool {
        id < self.standing_id && id.is_multiple_of(STEP)
    }

    /// A new stream for the answer to one call.
    pub(super) fn open(&self) -> Arc<Stream> {
        let id = self.next.fetch_add(STEP, Ordering::Relaxed);
        let stream = Arc::new(Stream::new(id));
        self.trim();
        let mut answers = lock(&self.answers);
        if answers.len() >= STREAMS_MAX
            && let Some(oldest) = answers.iter().position(|stream| stream.is_finished())
        {
            answers.remove(oldest);
        }
        answers.push(Arc::clone(&stream));
        stream
    }

    /// The stream `id` for an answer, while it is kept.
    pub(super) fn answer(&self, id: u64) -> Option<Arc<Stream>> {
        let answers = lock(&self.answers);
        answers.iter().find(|stream| stream.id == id).cloned()
    }

    /// Gives up finished streams that were read, and the oldest ones beyond the budget.
    pub(super) fn trim(&self) {
        let mut answers = lock(&self.answers);
        answers.retain(|stream| !stream.is_spent());
        let mut bytes: usize = answers.iter().map(|stream| stream.bytes()).sum();
        answers.retain(|stream| {
            let keep = bytes <= STREAM_BYTES_MAX || !stream.is_finished();
            if !keep {
                bytes -= stream.bytes();
            }
            keep
        });
    }

    /// Whether somebody reads the stream for what belongs to no call.
    pub(super) fn is_listening(&self) -> bool {
        self.standing().is_some_and(|stream| stream.readers() > 0)
    }

    /// Whether somebody reads one of them: a body of an answer attends the stream it follows.
    pub(super) fn has_reader(&self) -> bool {
        let answers = lock(&self.answers);
        let is_read = answers.iter().any(|stream| stream.readers() > 0);
        drop(answers);
        is_read || self.is_listening()
    }

    /// Finishes all of them.
    pub(super) fn finish(&self) {
        for stream in lock(&self.answers).iter() {
            stream.finish();
        }
        if let Some(standing) = self.standing() {
            standing.finish();
        }
    }
}
