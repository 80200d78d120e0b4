//! How lines reach the file: callers queue them, one thread writes all queued lines at once and notifies
//! the callers.
//!
//! Nothing else writes, so that a slow disk holds up whoever waits for it and no worker of the
//! runtime. Another thread syncs what is written, since that takes as long as the disk likes: one
//! `fdatasync` serves all lines written before it. The writer is woken only when it sleeps.

use std::{
    collections::{HashSet, VecDeque},
    fmt, io,
    pin::pin,
    sync::{
        Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::oneshot, task::unconstrained};
use uuid::Uuid;

use super::{
    entry::{AuditEntry, EntryKind, Reply, WriteFailurePolicy},
    log_space::LogSpace,
    segment_store::SegmentSink,
    writer::{WriteOutcome, Writer, WriterHealth},
};
use crate::{
    audit::{
        AuditError,
        hash_chain::ChainPosition,
        record::record_line::{Opened, Record},
    },
    config::Durability,
    lock::lock,
};

/// How long a line may wait for its sync to begin with the durability `process`: half of the
/// promised 100 ms, the other half is for the disk.
pub const SYNC_DELAY: Duration = Duration::from_millis(50);

/// Bytes of lines that are queued; then calls are refused, and further lines about refused calls and
/// events are given up and counted. Records of calls whose opening was taken are always taken: there
/// are no more of them than calls in flight.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;

/// What a log and its threads share.
pub(in crate::audit) struct SharedQueue {
    queue: Mutex<LineQueue>,
    /// Whether the thread that writes waits to be woken. It is set with the queue locked.
    is_writer_asleep: AtomicBool,
    wake: Condvar,
    /// Wakes the thread that syncs.
    wake_sync: Condvar,
    durability: Durability,
}

type EndRecord = fn(Opened<'static>, Timestamp) -> Record<'static>;

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are told by different threads, and no two of them are one state"
)]
struct LineQueue {
    lines: Vec<AuditEntry>,
    bytes: usize,
    /// Lines given up since the writer last came.
    lost_count: u64,
    /// Calls whose opening was taken, of which there is no record yet; the writer knows which of them it
    /// has written.
    open: HashSet<Uuid, foldhash::fast::RandomState>,
    end: Option<(EndRecord, mpsc::SyncSender<Result<(), AuditError>>)>,
    /// Whether the writer has lines that it took.
    is_writing: bool,
    /// The chain takes no further line.
    closed: bool,
    stopping: bool,
    /// As the writer left it.
    health: WriterHealth,
    /// What somebody found who looked.
    updated_space: Option<LogSpace>,
    /// What a changed config says of it.
    new_segment_bytes_max: Option<u64>,
    /// The number of the last line written.
    written: u64,
    /// What was written and the disk does not have yet, up to this number.
    unsynced: Option<(Arc<dyn SegmentSink>, u64)>,
    /// The number of the last line that the disk has.
    synced: u64,
    /// Whether something was synced since the writer last came.
    is_newly_synced: bool,
    /// Why the disk is not to be trusted.
    broken: Option<Arc<io::Error>>,
    /// Who waits for the disk to have the line of this number.
    waiting: VecDeque<(u64, Reply)>,
    sync_stopping: bool,
}

/// What the writer is to do.
#[derive(Default)]
struct WriteBatch {
    lines: Vec<AuditEntry>,
    replies: Vec<(Option<Reply>, WriteFailurePolicy, bool)>,
    end: Option<(EndRecord, mpsc::SyncSender<Result<(), AuditError>>)>,
    /// Whether to look if the file is still there.
    check_file: bool,
    stopping: bool,
}

impl SharedQueue {
    pub(in crate::audit) fn new(writer: &Writer, durability: Durability) -> Self {
        let queue = LineQueue {
            health: writer.health(),
            written: writer.seq(),
            unsynced: Some((writer.sink(), writer.seq())),
            ..LineQueue::default()
        };
        Self {
            queue: Mutex::new(queue),
            is_writer_asleep: AtomicBool::new(false),
            wake: Condvar::new(),
            wake_sync: Condvar::new(),
            durability,
        }
    }

    /// Takes a line, and wakes the writer if it sleeps.
    pub(in crate::audit) fn enqueue(&self, mut line: AuditEntry) -> Durable {
        let (reply, waits) = oneshot::channel();
        line.reply = Some(reply);
        let mut queue = self.queue();
        if queue.closed {
            return Durable(DurableWait::Failed(AuditError::Closed));
        }
        let must_take =
            matches!(&line.kind, EntryKind::Call { id, .. } if queue.open.remove(&id.0));
        let bytes = queue.bytes + line.line.len();
        if bytes > QUEUE_BYTES_MAX && !must_take {
            queue.lost_count += u64::from(line.fallback == WriteFailurePolicy::Keep);
            let mut health = queue.health.clone();
            health.waiting += queue.lines.len();
            return Durable(DurableWait::Failed(health.pending_error()));
        }
        if let EntryKind::Opened(id) = &line.kind {
            queue.open.insert(id.0);
        }
        let is_needed = matches!(line.kind, EntryKind::Call { .. });
        queue.bytes = bytes;
        queue.lines.push(line);
        drop(queue);
        self.wake_writer();
        Durable(DurableWait::Pending(QueuedLine {
            is_required: is_needed,
            result: waits,
        }))
    }

    /// Ends the chain with the records that `record` makes of calls that are still open. It blocks.
    pub(in crate::audit) fn end_chain(&self, record: EndRecord) -> Result<(), AuditError> {
        let (reply, ended) = mpsc::sync_channel(1);
        self.queue().end = Some((record, reply));
        self.wake_writer();
        ended.recv().unwrap_or(Err(AuditError::Closed))
    }

    /// Whether anything may be opened.
    pub(in crate::audit) fn ready(&self) -> Result<(), AuditError> {
        let queue = self.queue();
        if queue.closed {
            return Err(AuditError::Closed);
        }
        queue.check_disk()?;
        queue.health.ready()
    }

    /// Whether the disk can be trusted.
    pub(in crate::audit) fn check_disk(&self) -> Result<(), AuditError> {
        self.queue().check_disk()
    }

    /// Lines that were given up, of which the log does not know yet.
    pub(in crate::audit) fn lost_count(&self) -> u64 {
        let queue = self.queue();
        queue.health.lost + queue.lost_count
    }

    /// The last signed place of the chain that the log was told of.
    pub(in crate::audit) fn head(&self) -> Option<ChainPosition> {
        self.queue().health.head
    }

    /// What room there is.
    pub(in crate::audit) fn space(&self) -> LogSpace {
        self.queue().health.space
    }

    /// Lets the writer know what room there is.
    pub(in crate::audit) fn set_space(&self, space: LogSpace) {
        let mut queue = self.queue();
        queue.updated_space = Some(space);
        queue.health.space = space;
    }

    /// Lets the writer know at which size a segment is full.
    pub(in crate::audit) fn set_segment_bytes_max(&self, bytes: u64) {
        self.queue().new_segment_bytes_max = Some(bytes);
    }

    /// Whether the disk has every line that was put.
    pub(in crate::audit) fn is_synced(&self) -> bool {
        let queue = self.queue();
        queue.lines.is_empty() && !queue.is_writing && queue.synced >= queue.written
    }

    pub(in crate::audit) fn start(self: &Arc<Self>, writer: Writer) -> io::Result<Threads> {
        let (write, sync) = (Arc::clone(self), Arc::clone(self));
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        Ok(Threads {
            sync: named("audit-sync").spawn(move || sync.run_syncer())?,
            write: named("audit").spawn(move || write.run_writer(writer))?,
        })
    }

    /// Ends the threads, once all that is queued is written and synced as far as that can be.
    pub(in crate::audit) fn stop(&self, threads: Threads) {
        self.queue().stopping = true;
        self.wake_writer();
        drop(threads.write.join());
        self.queue().sync_stopping = true;
        self.wake_sync.notify_one();
        drop(threads.sync.join());
    }

    /// Wakes the writer if it sleeps. Whoever has put something before finds it asleep or finds that
    /// it will look once more: it goes to sleep with the queue locked.
    fn wake_writer(&self) {
        if self.is_writer_asleep.load(Ordering::Acquire)
            && self.is_writer_asleep.swap(false, Ordering::AcqRel)
        {
            self.wake.notify_one();
        }
    }

    fn run_writer(&self, mut writer: Writer) {
        let mut turn = WriteBatch::default();
        loop {
            self.next_batch(&mut writer, &mut turn);
            if turn.check_file {
                writer.check_segment();
            }
            writer.sum_refusals(&mut turn.lines, turn.stopping);
            let take = |line: &mut AuditEntry| (line.reply.take(), line.fallback, line.is_durable);
            turn.replies.extend(turn.lines.iter_mut().map(take));
            let outcome = writer.write(&mut turn.lines);
            self.publish_outcome(&writer, &outcome, &mut turn.replies);
            if let Some((record, reply)) = turn.end.take() {
                let ended = writer.end(record);
                let is_over = ended.is_ok();
                self.queue().close(is_over);
                self.publish_outcome(&writer, &outcome, &mut turn.replies);
                // Whoever is gone does not mind.
                drop(reply.send(ended));
                if is_over {
                    return;
                }
            }
            if turn.stopping {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn next_batch(&self, writer: &mut Writer, turn: &mut WriteBatch) {
        let mut queue = self.queue();
        let pause = writer.next_wake();
        while !queue.has_work() {
            self.is_writer_asleep.store(true, Ordering::Release);
            let Some(pause) = pause else {
                queue = ignore_poison(self.wake.wait(queue));
                continue;
            };
            let (left, waited) = ignore_poison(self.wake.wait_timeout(queue, pause));
            queue = left;
            if waited.timed_out() {
                break;
            }
        }
        self.is_writer_asleep.store(false, Ordering::Release);
        let is_first = !queue.lines.is_empty() && queue.synced >= queue.written;
        // Nothing follows an end.
        turn.check_file = queue.is_newly_synced || is_first;
        queue.is_newly_synced = false;
        std::mem::swap(&mut turn.lines, &mut queue.lines);
        queue.bytes = 0;
        queue.is_writing = true;
        turn.end = queue.end.take();
        turn.check_file |= turn.end.is_some();
        turn.stopping = queue.stopping;
        writer.count_lost(std::mem::take(&mut queue.lost_count));
        if let Some(room) = queue.updated_space.take() {
            writer.space = room;
        }
        if let Some(bytes) = queue.new_segment_bytes_max.take() {
            writer.segment_bytes_max = bytes;
        }
        if let Some(source) = &queue.broken {
            writer.mark_disk_failed(Arc::clone(source));
        }
    }

    /// Says what became of lines, to those who wait as well.
    fn publish_outcome(
        &self,
        writer: &Writer,
        outcome: &WriteOutcome,
        replies: &mut Vec<(Option<Reply>, WriteFailurePolicy, bool)>,
    ) {
        let mut queue = self.queue();
        queue.health = writer.health();
        queue.is_writing = false;
        if queue.broken.is_none() {
            queue.broken.clone_from(&writer.broken);
        }
        let (seq, was_idle) = (writer.seq(), queue.unsynced.is_none());
        let mut wakes = false;
        if seq > queue.written {
            queue.written = seq;
            queue.unsynced = Some((writer.sink(), seq));
            wakes = was_idle;
        }
        let is_disk = self.durability == Durability::Disk;
        let mut told = Vec::with_capacity(replies.len());
        for (n, (reply, fallback, is_durable)) in replies.drain(..).enumerate() {
            let Some(reply) = reply else { continue };
            let kept = outcome.of(n, fallback, writer);
            if kept.is_ok() && (is_durable || is_disk) {
                queue.waiting.push_back((seq, reply));
                wakes = true;
            } else {
                told.push((reply, kept));
            }
        }
        queue.reply_synced();
        drop(queue);
        if wakes {
            self.wake_sync.notify_one();
        }
        for (reply, kept) in told {
            // Whoever gave up does not mind.
            drop(reply.send(kept));
        }
    }

    /// Syncs what is written, and tells who waits for that.
    fn run_syncer(&self) {
        let mut queue = self.queue();
        loop {
            let idle = |queue: &mut LineQueue| queue.unsynced.is_none() && !queue.sync_stopping;
            queue = ignore_poison(self.wake_sync.wait_while(queue, idle));
            let gathers = |queue: &mut LineQueue| queue.waiting.is_empty() && !queue.sync_stopping;
            let waited = self
                .wake_sync
                .wait_timeout_while(queue, SYNC_DELAY, gathers);
            queue = ignore_poison(waited).0;
            let Some((sink, seq)) = queue.unsynced.take() else {
                return;
            };
            drop(queue);
            let done = sink.sync();
            queue = self.queue();
            if let Err(error) = done {
                queue.broken.get_or_insert_with(|| Arc::new(error));
            }
            queue.synced = queue.synced.max(seq);
            queue.is_newly_synced = true;
            queue.reply_synced();
            self.wake_writer();
        }
    }

    fn queue(&self) -> MutexGuard<'_, LineQueue> {
        lock(&self.queue)
    }
}

impl LineQueue {
    fn has_work(&self) -> bool {
        !self.lines.is_empty() || self.end.is_some() || self.is_newly_synced || self.stopping
    }

    fn check_disk(&self) -> Result<(), AuditError> {
        let broken = self.broken.clone();
        broken.map_or(Ok(()), |source| Err(AuditError::Sync { source }))
    }

    /// Tells those whose lines the disk has, or may not have.
    fn reply_synced(&mut self) {
        while let Some((_, reply)) = self
            .waiting
            .pop_front_if(|(seq, _)| *seq <= self.synced || self.broken.is_some())
        {
            let broken = self.broken.clone();
            drop(reply.send(broken.map_or(Ok(()), |source| Err(AuditError::Sync { source }))));
        }
    }

    /// Takes no further line once the chain `is_over`; who waits for one that came late is told so.
    fn close(&mut self, is_over: bool) {
        if is_over {
            self.closed = true;
            self.lines.clear();
        }
    }
}

/// What was waited for, also after a panic of another holder, as [`lock`] does.
fn ignore_poison<T>(waited: LockResult<T>) -> T {
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a log.
#[derive(Debug)]
pub(in crate::audit) struct Threads {
    write: thread::JoinHandle<()>,
    sync: thread::JoinHandle<()>,
}

/// Says when a line is kept as `audit.durability` asks.
#[must_use = "nothing may leave before the line is kept"]
pub struct Durable(DurableWait);

enum DurableWait {
    Pending(QueuedLine),
    Failed(AuditError),
    Done,
}

/// A line on its way.
struct QueuedLine {
    /// Whether what follows must not come before the line, which is the record of a call.
    is_required: bool,
    result: oneshot::Receiver<Result<(), AuditError>>,
}

/// Whoever gives up waiting for the record of a call, which happens when the runtime ends, still waits:
/// what the call held of budgets is given back after this.
impl Drop for QueuedLine {
    fn drop(&mut self) {
        if self.is_required {
            // The result is not needed.
            drop(block_on(&mut self.result));
        }
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DurableWait::Pending(line) => f.debug_tuple("Kept").field(&line.result).finish(),
            DurableWait::Failed(error) => f.debug_tuple("Kept").field(error).finish(),
            DurableWait::Done => f.write_str("Kept"),
        }
    }
}

impl Durable {
    pub(in crate::audit) fn now() -> Self {
        Self(DurableWait::Done)
    }

    /// Whether the line is kept; blocks until that is known.
    #[cfg(test)]
    #[expect(clippy::wrong_self_convention, reason = "waiting uses it up")]
    pub(in crate::audit) fn is_written(self) -> bool {
        self.wait_blocking().is_ok()
    }

    /// As [`Durable::kept`], on a thread that may block.
    pub(in crate::audit) fn wait_blocking(self) -> Result<(), AuditError> {
        block_on(self.result())
    }

    /// Returns when the line is kept: with the durability `process` once it is written, with `disk`
    /// after it was synced. Giving up waiting changes nothing.
    ///
    /// # Errors
    /// When the line waits in memory, or the disk did not take it.
    pub async fn durable(self) -> Result<(), AuditError> {
        self.result().await
    }

    async fn result(self) -> Result<(), AuditError> {
        match self.0 {
            DurableWait::Failed(error) => Err(error),
            DurableWait::Done => Ok(()),
            DurableWait::Pending(mut line) => {
                let kept = (&mut line.result).await;
                line.is_required = false;
                kept.unwrap_or(Err(AuditError::Closed))
            }
        }
    }
}

/// Waits for `future` on a thread that may block.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    // Whatever the task has done before in its turn: nobody else runs here.
    let mut future = pin!(unconstrained(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
