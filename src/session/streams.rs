//! The streams of one legacy session: one for each answer, and one for what belongs to no call.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use tokio_util::sync::CancellationToken;

use super::replay::ReplayStream;
use crate::lock::lock;

/// Streams of a session that are kept for resumption, the finished ones included.
pub const STREAMS_MAX: usize = 16;
/// Bytes in the streams of a session at which finished ones are given up: those first that were read,
/// and the oldest of them.
pub const STREAM_BYTES_MAX: usize = 16 << 20;
/// Between the numbers of two streams for answers: those are odd. The stream for messages that
/// belong to no call has an even one. A restored session counts on from a larger number, so that an
/// event id of before names none of its streams.
const ANSWER_STREAM_ID_STRIDE: u64 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct SessionStreams {
    answers: Mutex<Vec<Arc<ReplayStream>>>,
    standalone: Mutex<Option<Arc<ReplayStream>>>,
    standalone_id: u64,
    next_id: AtomicU64,
}

impl SessionStreams {
    /// Those of a session that had at most `before` of them in earlier processes.
    pub(super) fn with_ids_after(before: u64) -> Self {
        Self {
            answers: Mutex::default(),
            standalone: Mutex::default(),
            standalone_id: before * ANSWER_STREAM_ID_STRIDE,
            next_id: AtomicU64::new(before * ANSWER_STREAM_ID_STRIDE + 1),
        }
    }

    /// The stream for messages that belong to no call, once its client has opened it.
    pub(super) fn standalone(&self) -> Option<Arc<ReplayStream>> {
        lock(&self.standalone).clone()
    }

    /// The same stream, opened when there is none; `overrun` is cancelled when its reader does not
    /// keep up at all. It is finished where the session `has_ended`.
    pub(super) fn open_standalone(
        &self,
        overrun: impl FnOnce() -> CancellationToken,
        has_ended: impl FnOnce() -> bool,
    ) -> Arc<ReplayStream> {
        let mut standing = lock(&self.standalone);
        if let Some(stream) = standing.as_ref().filter(|stream| !stream.is_finished()) {
            return Arc::clone(stream);
        }
        let stream = Arc::new(ReplayStream::with_overrun(self.standalone_id, overrun()));
        if has_ended() {
            stream.finish();
        }
        *standing = Some(Arc::clone(&stream));
        stream
    }

    /// Whether `id` is that of the stream for messages that belong to no call.
    pub(super) fn is_standalone(&self, id: u64) -> bool {
        id == self.standalone_id
    }

    /// Whether `id` was that of the same stream before a restart.
    pub(super) fn was_standalone(&self, id: u64) -> bool {
        id < self.standalone_id && id.is_multiple_of(ANSWER_STREAM_ID_STRIDE)
    }

    /// A new stream for the answer to one call.
    pub(super) fn open(&self) -> Arc<ReplayStream> {
        let id = self
            .next_id
            .fetch_add(ANSWER_STREAM_ID_STRIDE, Ordering::Relaxed);
        let stream = Arc::new(ReplayStream::new(id));
        self.trim();
        let mut answers = lock(&self.answers);
        if answers.len() >= STREAMS_MAX
            && let Some(spare) = evictable(&answers)
        {
            answers.remove(spare);
        }
        answers.push(Arc::clone(&stream));
        stream
    }

    /// The stream `id` for an answer, while it is kept.
    pub(super) fn answer(&self, id: u64) -> Option<Arc<ReplayStream>> {
        let answers = lock(&self.answers);
        answers.iter().find(|stream| stream.id == id).cloned()
    }

    /// Gives up finished streams that were read, and others beyond the budget.
    pub(super) fn trim(&self) {
        let mut answers = lock(&self.answers);
        answers.retain(|stream| !stream.is_expired());
        let mut bytes: usize = answers.iter().map(|stream| stream.bytes()).sum();
        while bytes > STREAM_BYTES_MAX
            && let Some(spare) = evictable(&answers)
        {
            bytes -= answers.remove(spare).bytes();
        }
    }

    /// Bytes of finished answers that nobody is reading.
    pub(super) fn unread_bytes(&self) -> usize {
        let answers = lock(&self.answers);
        let kept = answers.iter().filter(|stream| stream.is_retained());
        kept.map(|stream| stream.bytes()).sum()
    }

    /// Gives up such answers until `wanted` bytes are free, those that were never read where it is
    /// `also_unread`; how many bytes are.
    pub(super) fn abandon_finished(&self, wanted: usize, also_unread: bool) -> usize {
        let mut freed = 0;
        lock(&self.answers).retain(|stream| {
            let is_spared =
                freed >= wanted || !stream.is_retained() || stream.has_unread() && !also_unread;
            if !is_spared {
                freed += stream.bytes();
            }
            is_spared
        });
        freed
    }

    /// Whether somebody reads the stream for what belongs to no call.
    pub(super) fn is_listening(&self) -> bool {
        self.standalone().is_some_and(|stream| stream.readers() > 0)
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
        if let Some(standing) = self.standalone() {
            standing.finish();
        }
    }
}

/// Which of these streams makes room for others: one that is finished, and may have been missed only
/// at its end; else one with something that nobody has read, which would be lost.
fn evictable(answers: &[Arc<ReplayStream>]) -> Option<usize> {
    let oldest = |fits: fn(&ReplayStream) -> bool| answers.iter().position(|stream| fits(stream));
    oldest(|stream| stream.is_finished() && !stream.has_unread())
        .or_else(|| oldest(ReplayStream::is_finished))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::session::replay::StreamItem;

    /// A finished stream with an answer of so many bytes.
    fn answered(streams: &SessionStreams, bytes: usize) -> Arc<ReplayStream> {
        let stream = streams.open();
        stream.push_required(StreamItem::Message(Bytes::from(vec![b'x'; bytes])));
        stream.finish();
        stream
    }

    /// The same, read to its end.
    async fn read(streams: &SessionStreams, bytes: usize) {
        let stream = answered(streams, bytes);
        let mut place = stream.attach_at_end();
        while stream.next(&mut place).await.is_some() {}
    }

    #[tokio::test]
    async fn what_was_read_makes_room_for_what_was_not() {
        let streams = SessionStreams::with_ids_after(0);
        let unread = answered(&streams, 1);
        for _ in 0..2 * STREAMS_MAX {
            read(&streams, 1).await;
        }
        assert!(streams.answer(unread.id).is_some());
        let kept = lock(&streams.answers).len();
        assert_eq!(kept, STREAMS_MAX);
    }

    #[tokio::test]
    async fn bytes_that_were_read_make_room_for_those_that_were_not() {
        let streams = SessionStreams::with_ids_after(0);
        let unread = answered(&streams, STREAM_BYTES_MAX / 2);
        for _ in 0..4 {
            // Of what was read a stream keeps less than this.
            read(&streams, STREAM_BYTES_MAX / 2).await;
            streams.trim();
        }
        assert!(streams.answer(unread.id).is_some());
        let second = answered(&streams, STREAM_BYTES_MAX / 2 + 1);
        streams.trim();
        assert!(streams.answer(unread.id).is_none(), "the oldest goes");
        assert!(streams.answer(second.id).is_some());
    }

    #[test]
    fn where_nothing_was_read_the_oldest_goes() {
        let streams = SessionStreams::with_ids_after(0);
        let all: Vec<_> = (0..=STREAMS_MAX).map(|_| answered(&streams, 1)).collect();
        assert!(streams.answer(all[0].id).is_none());
        let others = all[1..].iter();
        assert!(
            others
                .map(|stream| stream.id)
                .all(|id| streams.answer(id).is_some())
        );
    }
}
