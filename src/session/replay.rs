//! One outgoing stream of a legacy session: a bounded queue that readers follow and may resume.
//!
//! Writers push whole messages; a reader keeps its own place. A message stays after it was read, so
//! that a reader which lost its connection can come back for it, until newer ones need the room.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::lock::lock;

/// Messages kept for resumption.
pub const RETAINED_MESSAGES_MAX: usize = 256;
/// Bytes of messages kept for resumption; one larger message is still kept.
pub const RETAINED_BYTES_MAX: usize = 1 << 20;
/// Messages nobody has read at which a stream is given up.
pub const UNREAD_MESSAGES_MAX: usize = 4096;
/// Bytes of messages nobody has read at which a stream is given up; one larger message may wait.
pub const UNREAD_BYTES_MAX: usize = 64 << 20;
/// How long a finished stream is kept after all of it was read, in case its end did not arrive.
pub const FINISHED_TTL: Duration = Duration::from_secs(120);
/// How long a writer waits for a reader that does not keep up before the stream is ended.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream of messages.
#[derive(Debug)]
pub struct ReplayStream {
    /// Part of the event ids; unique in its session.
    pub id: u64,
    inner: Mutex<StreamInner>,
    pushed: Notify,
    read: Notify,
    /// Cancelled when the reader does not keep up at all.
    overrun: CancellationToken,
    readers: AtomicUsize,
}

#[derive(Debug, Default)]
struct StreamInner {
    retained: VecDeque<RetainedItem>,
    bytes: usize,
    /// Sequence number of the last message pushed; the first is 1.
    last_seq: u64,
    /// Sequence number up to which some reader has read.
    delivered: u64,
    /// Messages after `delivered` that are kept, and their bytes.
    unread: usize,
    unread_bytes: usize,
    /// When something was read last.
    read_at: Option<Instant>,
    /// Readers of an older generation end at message `cut_seq`.
    generation: u64,
    cut_seq: u64,
    finished: bool,
    dropped: u64,
}

#[derive(Debug)]
struct RetainedItem {
    seq: u64,
    item: StreamItem,
    may_drop: bool,
}

/// What a reader gets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StreamItem {
    /// A JSON-RPC message.
    Message(Bytes),
    /// The stream pauses: come back after so many milliseconds.
    Pause(Option<u64>),
}

impl StreamItem {
    fn len(&self) -> usize {
        match self {
            Self::Message(bytes) => bytes.len(),
            Self::Pause(_) => 0,
        }
    }
}

/// A reader's place in a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplayCursor {
    /// The last message read.
    pub seq: u64,
    generation: u64,
}

/// A reader that is connected to a stream.
#[derive(Debug)]
pub struct ReaderGuard(Arc<ReplayStream>);

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream had no room for a message that its reader did not make in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the client does not read its stream")]
pub struct ReaderStalled;

impl ReplayStream {
    /// An empty stream.
    pub fn new(id: u64) -> Self {
        Self::with_overrun(id, CancellationToken::new())
    }

    /// An empty stream that cancels `overrun` when it is given up because nobody reads it.
    pub fn with_overrun(id: u64, overrun: CancellationToken) -> Self {
        Self {
            id,
            inner: Mutex::default(),
            pushed: Notify::new(),
            read: Notify::new(),
            overrun,
            readers: AtomicUsize::new(0),
        }
    }

    /// Adds a message that may be lost when the reader is too slow (progress, logs).
    pub fn push_droppable(&self, message: Bytes) {
        let mut inner = self.lock();
        if inner.finished {
            return;
        }
        if inner.backlog_is_full() {
            inner.dropped += 1;
            return;
        }
        inner.push(StreamItem::Message(message), true);
        drop(inner);
        self.pushed.notify_waiters();
    }

    /// Adds a message that must not be lost and says all of itself: where it waits to be read already
    /// it is not there twice, so that one who is away for long has no more of them than there are.
    pub fn push_deduplicated(&self, message: Bytes) {
        let item = StreamItem::Message(message);
        if !self.lock().is_queued(&item) {
            self.push_required(item);
        }
    }

    /// Adds a message that must not be lost, without waiting for room. Far beyond what a reader may
    /// leave unread the stream is given up instead.
    pub fn push_required(&self, item: StreamItem) {
        let mut inner = self.lock();
        if inner.finished {
            return;
        }
        if inner.is_overrun() {
            let (unread, bytes) = (inner.unread, inner.unread_bytes);
            drop(inner);
            tracing::warn!(unread, bytes, "ended a stream: the client does not read it");
            return self.abandon();
        }
        inner.push(item, false);
        drop(inner);
        self.pushed.notify_waiters();
    }

    /// Adds a message that must not be lost, once there is room.
    ///
    /// # Errors
    /// After [`STALL_TIMEOUT`] without room; the stream is finished then.
    pub async fn send(&self, message: Bytes) -> Result<(), ReaderStalled> {
        let deadline = timeout(STALL_TIMEOUT, async {
            loop {
                let room = self.read.notified();
                tokio::pin!(room);
                room.as_mut().enable();
                if self.try_push(&message) {
                    return;
                }
                room.await;
            }
        });
        if deadline.await.is_err() {
            self.abandon();
            return Err(ReaderStalled);
        }
        Ok(())
    }

    /// Adds a message where there is room, or nobody will read it; whether that is done. At one go:
    /// two that find room at once may be too much together.
    fn try_push(&self, message: &Bytes) -> bool {
        let mut inner = self.lock();
        if inner.finished {
            return true;
        }
        if inner.backlog_is_full() {
            return false;
        }
        inner.push(StreamItem::Message(message.clone()), false);
        drop(inner);
        self.pushed.notify_waiters();
        true
    }

    /// Ends the present readers once they have caught up; later ones go on.
    pub fn pause(&self, retry_ms: Option<u64>) {
        let is_paused = self.lock().ends_in_pause();
        if !is_paused {
            self.push_required(StreamItem::Pause(retry_ms));
        }
        let mut inner = self.lock();
        inner.generation += 1;
        inner.cut_seq = inner.last_seq;
        drop(inner);
        self.pushed.notify_waiters();
    }

    /// Ends the stream; what is kept can still be read.
    pub fn finish(&self) {
        self.lock().finished = true;
        self.pushed.notify_waiters();
        self.read.notify_waiters();
    }

    /// Ends the stream for a reader that does not keep up, and keeps nothing for it.
    fn abandon(&self) {
        self.lock().clear();
        self.finish();
        self.overrun.cancel();
    }

    /// Whether everything there will ever be was read a while ago.
    pub fn is_expired(&self) -> bool {
        let inner = self.lock();
        inner.finished
            && inner.unread == 0
            && inner.read_at.is_none_or(|at| at.elapsed() >= FINISHED_TTL)
    }

    /// Notes a reader that is connected, until the result is dropped.
    pub fn attach_reader(self: &Arc<Self>) -> ReaderGuard {
        self.readers.fetch_add(1, Ordering::Relaxed);
        ReaderGuard(Arc::clone(self))
    }

    /// Whether it is finished, and kept in case somebody reads it once more.
    pub fn is_retained(&self) -> bool {
        self.is_finished() && self.readers() == 0
    }

    /// Whether something waits to be read.
    pub fn has_unread(&self) -> bool {
        self.lock().unread > 0
    }

    /// Readers connected.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Bytes of messages that are kept.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Whether nothing more will come.
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Messages that were dropped because the reader was too slow.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// A place after everything that was read so far; earlier readers end.
    pub fn attach_at_end(&self) -> ReplayCursor {
        let delivered = self.lock().delivered;
        self.resume(delivered)
    }

    /// A place right after message `seq`; earlier readers end.
    pub fn resume(&self, seq: u64) -> ReplayCursor {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.cut_seq = inner.delivered;
        let place = ReplayCursor {
            seq: seq.min(inner.last_seq),
            generation: inner.generation,
        };
        drop(inner);
        self.pushed.notify_waiters();
        place
    }

    /// The next message after `place`, which moves on; `None` at the end.
    pub async fn next(&self, place: &mut ReplayCursor) -> Option<StreamItem> {
        loop {
            let pushed = self.pushed.notified();
            tokio::pin!(pushed);
            pushed.as_mut().enable();
            {
                let mut inner = self.lock();
                let replaced = inner.generation != place.generation;
                if replaced && place.seq >= inner.cut_seq {
                    return None;
                }
                let at = inner.retained.partition_point(|kept| kept.seq <= place.seq);
                if let Some(kept) = inner.retained.get(at) {
                    let item = kept.item.clone();
                    place.seq = kept.seq;
                    inner.mark_delivered(place.seq);
                    drop(inner);
                    self.read.notify_waiters();
                    return Some(item);
                }
                if inner.finished || replaced {
                    return None;
                }
            }
            pushed.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, StreamInner> {
        lock(&self.inner)
    }
}

impl StreamInner {
    /// Drops every message.
    fn clear(&mut self) {
        self.retained = VecDeque::new();
        self.delivered = self.last_seq;
        (self.bytes, self.unread, self.unread_bytes) = (0, 0, 0);
    }

    /// Whether messages that nobody has read yet fill the stream.
    fn backlog_is_full(&self) -> bool {
        self.unread >= RETAINED_MESSAGES_MAX || self.unread_bytes >= RETAINED_BYTES_MAX
    }

    /// Whether far more waits to be read than a reader may leave. One message that is larger than that
    /// counts for nothing: however large an answer is, it is no fault of who is to read it.
    fn is_overrun(&self) -> bool {
        if self.unread >= UNREAD_MESSAGES_MAX {
            return true;
        }
        if self.unread_bytes < UNREAD_BYTES_MAX {
            return false;
        }
        let largest = self.unread().map(|kept| kept.item.len()).max();
        let larger = largest.filter(|len| *len > UNREAD_BYTES_MAX);
        self.unread_bytes - larger.unwrap_or(0) >= UNREAD_BYTES_MAX
    }

    /// What is kept that nobody has read.
    fn unread(&self) -> impl Iterator<Item = &RetainedItem> {
        let first = self
            .retained
            .partition_point(|kept| kept.seq <= self.delivered);
        self.retained.range(first..)
    }

    /// Whether a pause is what comes last and nobody has read it: another would say no more.
    fn ends_in_pause(&self) -> bool {
        let last = self.retained.back();
        last.is_some_and(|last| {
            matches!(last.item, StreamItem::Pause(_)) && last.seq > self.delivered
        })
    }

    /// Whether nobody has read `item` since it was added last.
    fn is_queued(&self, item: &StreamItem) -> bool {
        self.unread()
            .any(|kept| !kept.may_drop && kept.item == *item)
    }

    /// Notes that everything up to `seq` was read.
    fn mark_delivered(&mut self, seq: u64) {
        self.read_at = Some(Instant::now());
        if seq <= self.delivered {
            return;
        }
        let read = self.unread().take_while(|kept| kept.seq <= seq);
        let (count, bytes) = read.fold((0, 0), |(n, b), kept| (n + 1, b + kept.item.len()));
        self.unread -= count;
        self.unread_bytes -= bytes;
        self.delivered = seq;
    }

    fn push(&mut self, item: StreamItem, may_drop: bool) {
        self.last_seq += 1;
        self.bytes += item.len();
        self.unread += 1;
        self.unread_bytes += item.len();
        self.retained.push_back(RetainedItem {
            seq: self.last_seq,
            item,
            may_drop,
        });
        while self.retained.len() > RETAINED_MESSAGES_MAX || self.bytes > RETAINED_BYTES_MAX {
            // Read messages go first, then those that may be lost; the rest stays.
            let read = self
                .retained
                .front()
                .is_some_and(|kept| kept.seq <= self.delivered);
            let victim = if read {
                Some(0)
            } else {
                self.retained.iter().position(|kept| kept.may_drop)
            };
            let Some(gone) = victim.and_then(|at| self.retained.remove(at)) else {
                break;
            };
            self.bytes -= gone.item.len();
            if gone.seq > self.delivered {
                self.unread -= 1;
                self.unread_bytes -= gone.item.len();
            }
        }
    }
}

#[cfg(test)]
mod tests;
