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
pub const KEPT_MESSAGES_MAX: usize = 256;
/// Bytes of messages kept for resumption; one larger message is still kept.
pub const KEPT_BYTES_MAX: usize = 1 << 20;
/// Messages nobody has read at which a stream is given up.
pub const UNREAD_MESSAGES_MAX: usize = 4096;
/// Bytes of messages nobody has read at which a stream is given up; one larger message may wait.
pub const UNREAD_BYTES_MAX: usize = 64 << 20;
/// How long a finished stream is kept after all of it was read, in case its end did not arrive.
pub const LINGER: Duration = Duration::from_secs(120);
/// How long a writer waits for a reader that does not keep up before the stream is ended.
pub const STALL: Duration = Duration::from_secs(30);

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
    kept: VecDeque<KeptItems>,
    bytes: usize,
    /// Sequence number of the last message pushed; the first is 1.
    last: u64,
    /// Sequence number up to which some reader has read.
    delivered: u64,
    /// Messages after `delivered` that are kept, and their bytes.
    unread: usize,
    unread_bytes: usize,
    /// When something was read last.
    read_at: Option<Instant>,
    /// Readers of an older generation end at message `cut`.
    generation: u64,
    cut: u64,
    finished: bool,
    dropped: u64,
}

#[derive(Debug)]
struct KeptItems {
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
pub struct ReaderPosition {
    /// The last message read.
    pub seq: u64,
    generation: u64,
}

/// A reader that is connected to a stream.
#[derive(Debug)]
pub struct Attendance(Arc<ReplayStream>);

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream had no room for a message that its reader did not make in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the client does not read its stream")]
pub struct Stalled;

impl ReplayStream {
    /// An empty stream.
    pub fn new(id: u64) -> Self {
        Self::watched(id, CancellationToken::new())
    }

    /// An empty stream that cancels `overrun` when it is given up because nobody reads it.
    pub fn watched(id: u64, overrun: CancellationToken) -> Self {
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
    pub fn offer(&self, message: Bytes) {
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
    pub fn keep(&self, message: Bytes) {
        let item = StreamItem::Message(message);
        if !self.lock().waits(&item) {
            self.push(item);
        }
    }

    /// Adds a message that must not be lost, without waiting for room. Far beyond what a reader may
    /// leave unread the stream is given up instead.
    pub fn push(&self, item: StreamItem) {
        let mut inner = self.lock();
        if inner.finished {
            return;
        }
        if inner.is_overrun() {
            let (unread, bytes) = (inner.unread, inner.unread_bytes);
            drop(inner);
            tracing::warn!(
                unread,
                bytes,
                "a stream that its client does not read is ended"
            );
            return self.give_up();
        }
        inner.push(item, false);
        drop(inner);
        self.pushed.notify_waiters();
    }

    /// Adds a message that must not be lost, once there is room.
    ///
    /// # Errors
    /// After [`STALL`] without room; the stream is finished then.
    pub async fn send(&self, message: Bytes) -> Result<(), Stalled> {
        let deadline = timeout(STALL, async {
            loop {
                let room = self.read.notified();
                tokio::pin!(room);
                room.as_mut().enable();
                if self.add_where_room(&message) {
                    return;
                }
                room.await;
            }
        });
        if deadline.await.is_err() {
            self.give_up();
            return Err(Stalled);
        }
        Ok(())
    }

    /// Adds a message where there is room, or nobody will read it; whether that is done. At one go:
    /// two that find room at once may be too much together.
    fn add_where_room(&self, message: &Bytes) -> bool {
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
            self.push(StreamItem::Pause(retry_ms));
        }
        let mut inner = self.lock();
        inner.generation += 1;
        inner.cut = inner.last;
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
    fn give_up(&self) {
        self.lock().forget();
        self.finish();
        self.overrun.cancel();
    }

    /// Whether everything there will ever be was read a while ago.
    pub fn is_spent(&self) -> bool {
        let inner = self.lock();
        inner.finished && inner.unread == 0 && inner.read_at.is_none_or(|at| at.elapsed() >= LINGER)
    }

    /// Notes a reader that is connected, until the result is dropped.
    pub fn attend(self: &Arc<Self>) -> Attendance {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Attendance(Arc::clone(self))
    }

    /// Whether it is finished, and kept in case somebody reads it once more.
    pub fn is_kept(&self) -> bool {
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
    pub fn take_over(&self) -> ReaderPosition {
        let delivered = self.lock().delivered;
        self.resume(delivered)
    }

    /// A place right after message `seq`; earlier readers end.
    pub fn resume(&self, seq: u64) -> ReaderPosition {
        let mut inner = self.lock();
        inner.generation += 1;
        inner.cut = inner.delivered;
        let place = ReaderPosition {
            seq: seq.min(inner.last),
            generation: inner.generation,
        };
        drop(inner);
        self.pushed.notify_waiters();
        place
    }

    /// The next message after `place`, which moves on; `None` at the end.
    pub async fn next(&self, place: &mut ReaderPosition) -> Option<StreamItem> {
        loop {
            let pushed = self.pushed.notified();
            tokio::pin!(pushed);
            pushed.as_mut().enable();
            {
                let mut inner = self.lock();
                let replaced = inner.generation != place.generation;
                if replaced && place.seq >= inner.cut {
                    return None;
                }
                let at = inner.kept.partition_point(|kept| kept.seq <= place.seq);
                if let Some(kept) = inner.kept.get(at) {
                    let item = kept.item.clone();
                    place.seq = kept.seq;
                    inner.deliver(place.seq);
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
    fn forget(&mut self) {
        self.kept = VecDeque::new();
        self.delivered = self.last;
        (self.bytes, self.unread, self.unread_bytes) = (0, 0, 0);
    }

    /// Whether messages that nobody has read yet fill the stream.
    fn backlog_is_full(&self) -> bool {
        self.unread >= KEPT_MESSAGES_MAX || self.unread_bytes >= KEPT_BYTES_MAX
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
    fn unread(&self) -> impl Iterator<Item = &KeptItems> {
        let first = self.kept.partition_point(|kept| kept.seq <= self.delivered);
        self.kept.range(first..)
    }

    /// Whether a pause is what comes last and nobody has read it: another would say no more.
    fn ends_in_pause(&self) -> bool {
        let last = self.kept.back();
        last.is_some_and(|last| {
            matches!(last.item, StreamItem::Pause(_)) && last.seq > self.delivered
        })
    }

    /// Whether nobody has read `item` since it was added last.
    fn waits(&self, item: &StreamItem) -> bool {
        self.unread()
            .any(|kept| !kept.may_drop && kept.item == *item)
    }

    /// Notes that everything up to `seq` was read.
    fn deliver(&mut self, seq: u64) {
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
        self.last += 1;
        self.bytes += item.len();
        self.unread += 1;
        self.unread_bytes += item.len();
        self.kept.push_back(KeptItems {
            seq: self.last,
            item,
            may_drop,
        });
        while self.kept.len() > KEPT_MESSAGES_MAX || self.bytes > KEPT_BYTES_MAX {
            // Read messages go first, then those that may be lost; the rest stays.
            let read = self
                .kept
                .front()
                .is_some_and(|kept| kept.seq <= self.delivered);
            let victim = if read {
                Some(0)
            } else {
                self.kept.iter().position(|kept| kept.may_drop)
            };
            let Some(gone) = victim.and_then(|at| self.kept.remove(at)) else {
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
