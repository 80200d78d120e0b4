//! How lines reach the file: callers queue them, one thread writes all queued lines at once and notifies
//! the callers.
//!
//! Nothing else writes, so that a slow disk holds up whoever waits for it and no worker of the
//! runtime. The thread is woken only when it waits; while several calls are open it looks again after
//! [`GATHER_TIME`] first, since waking it for a line costs more than writing one. With the durability `disk` it syncs before it
//! notifies: one `fdatasync` serves all lines of a batch. Else another thread syncs now and then, so
//! that nobody waits for that.

use std::{
    collections::HashSet,
    io,
    pin::pin,
    sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::oneshot, task::unconstrained};
use uuid::Uuid;

use super::{
    entry::{AuditEntry, DueReply, EntryKind, WriteFailurePolicy},
    health::WriterHealth,
    log_space::LogSpace,
    segment_store::SegmentSink,
    writer::Writer,
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

/// How long the writer lets lines gather before it looks again, while more than [`OPEN_CALLS_FEW`] calls
/// are open. Linux adds up to 50 us.
const GATHER_TIME: Duration = Duration::from_micros(100);

/// How often it looks in vain before it waits to be woken.
const GATHERS_MAX: usize = 3;

/// Calls that are open up to which a line is worth waking the writer for.
const OPEN_CALLS_FEW: usize = 3;

/// What a log and its threads share.
pub(in crate::audit) struct SharedQueue {
    queue: Mutex<LineQueue>,
    /// Wakes the thread that writes.
    wake_writer: Condvar,
    /// Wakes the thread that syncs.
    wake_sync: Condvar,
    durability: Durability,
}

type EndRecord = fn(Opened<'static>, Timestamp) -> Record<'static>;
type EndRequest = (EndRecord, mpsc::SyncSender<Result<(), AuditError>>);

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "different threads set them, and no two of them are one state"
)]
struct LineQueue {
    lines: Vec<AuditEntry>,
    bytes: usize,
    /// Lines given up since the writer last came.
    lost_count: u64,
    /// Calls whose opening was taken, of which there is no record yet; the writer knows which of them it
    /// has written.
    open: HashSet<Uuid, foldhash::fast::RandomState>,
    end: Option<EndRequest>,
    /// The chain takes no further line.
    closed: bool,
    /// The writer is to write what is queued and return.
    stopping: bool,
    /// The writer has returned.
    stopped: bool,
    is_asleep: bool,
    is_writing: bool,
    is_syncing: bool,
    /// Whether something was synced since the writer last came.
    is_newly_synced: bool,
    /// What has lines that the disk does not have yet.
    unsynced: Option<Arc<dyn SegmentSink>>,
    /// Why the disk is not to be trusted.
    broken: Option<Arc<io::Error>>,
    /// As the writer left it.
    health: WriterHealth,
    /// What somebody found who looked.
    updated_space: Option<LogSpace>,
    /// What a changed config says of it.
    new_segment_bytes_max: Option<u64>,
}

/// What the writer is to do.
#[derive(Default)]
struct WriteBatch {
    lines: Vec<AuditEntry>,
    end: Option<EndRequest>,
    /// Whether to look if the file is still there.
    check_file: bool,
    stopping: bool,
}

impl SharedQueue {
    pub(in crate::audit) fn new(writer: &Writer, durability: Durability) -> Self {
        let queue = LineQueue {
            health: writer.health(),
            unsynced: Some(writer.sink()),
            ..LineQueue::default()
        };
        Self {
            queue: Mutex::new(queue),
            wake_writer: Condvar::new(),
            wake_sync: Condvar::new(),
            durability,
        }
    }

    /// Takes a line, and wakes the writer if it sleeps.
    pub(in crate::audit) fn enqueue(&self, mut line: AuditEntry) -> Durable {
        let (reply, result) = oneshot::channel();
        line.reply = Some(reply);
        let mut queue = self.queue();
        if queue.closed {
            return Durable::known(Err(AuditError::Closed));
        }
        let must_take =
            matches!(&line.kind, EntryKind::Call { id, .. } if queue.open.remove(&id.0));
        let bytes = queue.bytes + line.line.len();
        if bytes > QUEUE_BYTES_MAX && !must_take {
            queue.lost_count += u64::from(line.fallback == WriteFailurePolicy::Keep);
            let mut health = queue.health.clone();
            health.waiting += queue.lines.len();
            return Durable::known(Err(health.pending_error()));
        }
        if let EntryKind::Opened(id) = &line.kind {
            queue.open.insert(id.0);
        }
        let is_required = matches!(line.kind, EntryKind::Call { .. });
        queue.bytes = bytes;
        queue.lines.push(line);
        self.wake_writer(queue);
        Durable(DurableState::Queued(QueuedLine {
            is_required,
            result,
        }))
    }

    /// Ends the chain with the records that `record` makes of calls that are still open. It blocks.
    pub(in crate::audit) fn end_chain(&self, record: EndRecord) -> Result<(), AuditError> {
        let (reply, ended) = mpsc::sync_channel(1);
        let mut queue = self.queue();
        queue.end = Some((record, reply));
        self.wake_writer(queue);
        ended.recv().unwrap_or(Err(AuditError::Closed))
    }

    /// Whether anything may be opened.
    pub(in crate::audit) fn ready(&self) -> Result<(), AuditError> {
        let queue = self.queue();
        if queue.closed {
            return Err(AuditError::Closed);
        }
        check_disk(queue.broken.as_ref())?;
        queue.health.ready()
    }

    /// Whether the disk can be trusted.
    pub(in crate::audit) fn check_disk(&self) -> Result<(), AuditError> {
        check_disk(self.queue().broken.as_ref())
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
        queue.lines.is_empty() && !queue.is_writing && queue.is_settled()
    }

    /// Starts the threads.
    pub(in crate::audit) fn start(self: &Arc<Self>, writer: Writer) -> io::Result<Threads> {
        let (write, sync) = (Arc::clone(self), Arc::clone(self));
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        Ok([
            named("audit-sync").spawn(move || sync.run_syncer())?,
            named("audit").spawn(move || {
                write.run_writer(writer);
                write.queue().stopped = true;
                write.wake_sync.notify_one();
            })?,
        ])
    }

    /// Ends the threads, once all that is queued is written and synced as far as that can be.
    pub(in crate::audit) fn stop(&self, threads: Threads) {
        let mut queue = self.queue();
        queue.stopping = true;
        self.wake_writer(queue);
        for thread in threads {
            // A panic was reported, and the chain is ended by whoever recovers it.
            drop(thread.join());
        }
    }

    /// Wakes the writer if it sleeps.
    fn wake_writer(&self, mut queue: MutexGuard<'_, LineQueue>) {
        let was_asleep = std::mem::take(&mut queue.is_asleep);
        drop(queue);
        if was_asleep {
            self.wake_writer.notify_one();
        }
    }

    fn run_writer(&self, mut writer: Writer) {
        let mut batch = WriteBatch::default();
        loop {
            self.next_batch(&mut writer, &mut batch);
            if batch.check_file {
                writer.check_segment();
            }
            writer.sum_refusals(&mut batch.lines, batch.stopping);
            let before = writer.seq();
            let replies = writer.write(&mut batch.lines);
            let syncs = replies.iter().any(|reply| self.is_durable(reply));
            let is_new = writer.seq() > before;
            if is_new && syncs {
                writer.sync();
            }
            self.publish_outcome(&writer, is_new, syncs);
            for mut reply in replies {
                if self.is_durable(&reply) && reply.outcome.is_ok() {
                    reply.outcome = check_disk(writer.broken.as_ref());
                }
                reply.send();
            }
            if let Some((record, reply)) = batch.end.take() {
                let ended = writer.end(record);
                let is_over = ended.is_ok();
                self.queue().close(is_over);
                self.publish_outcome(&writer, true, false);
                // Whoever is gone does not mind.
                drop(reply.send(ended));
                if is_over {
                    return;
                }
            }
            if batch.stopping {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn next_batch(&self, writer: &mut Writer, batch: &mut WriteBatch) {
        let mut queue = self.queue();
        let pause = writer.next_wake();
        let mut gathers = 0;
        while !queue.has_work() {
            if queue.open.len() > OPEN_CALLS_FEW && gathers < GATHERS_MAX {
                gathers += 1;
                // Nobody wakes a writer that does not say that it waits.
                queue = ignore_poison(self.wake_writer.wait_timeout(queue, GATHER_TIME)).0;
                continue;
            }
            queue.is_asleep = true;
            let Some(pause) = pause else {
                queue = ignore_poison(self.wake_writer.wait(queue));
                continue;
            };
            let (left, waited) = ignore_poison(self.wake_writer.wait_timeout(queue, pause));
            queue = left;
            if waited.timed_out() {
                break;
            }
        }
        queue.is_asleep = false;
        let is_first = !queue.lines.is_empty() && queue.is_settled();
        batch.check_file = queue.is_newly_synced || is_first || queue.end.is_some();
        queue.is_newly_synced = false;
        std::mem::swap(&mut batch.lines, &mut queue.lines);
        queue.bytes = 0;
        queue.is_writing = true;
        batch.end = queue.end.take();
        batch.stopping = queue.stopping;
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

    /// Says what the writer is like now: whether there are new lines, and whether they were synced.
    fn publish_outcome(&self, writer: &Writer, is_new: bool, is_synced: bool) {
        let mut queue = self.queue();
        queue.health = writer.health();
        queue.is_writing = false;
        if queue.broken.is_none() {
            queue.broken.clone_from(&writer.broken);
        }
        let mut wakes = false;
        if is_new && !is_synced {
            wakes = queue.unsynced.replace(writer.sink()).is_none();
        } else if is_new {
            (queue.unsynced, queue.is_newly_synced) = (None, true);
        }
        drop(queue);
        if wakes {
            self.wake_sync.notify_one();
        }
    }

    /// Whether they wait until the disk has their line.
    fn is_durable(&self, reply: &DueReply) -> bool {
        reply.is_durable || self.durability == Durability::Disk
    }

    /// Syncs what is written, [`SYNC_DELAY`] after the first line.
    fn run_syncer(&self) {
        let mut queue = self.queue();
        loop {
            let idle = |queue: &mut LineQueue| queue.unsynced.is_none() && !queue.stopped;
            queue = ignore_poison(self.wake_sync.wait_while(queue, idle));
            let gathers = |queue: &mut LineQueue| !queue.stopped;
            let waited = self
                .wake_sync
                .wait_timeout_while(queue, SYNC_DELAY, gathers);
            queue = ignore_poison(waited).0;
            let Some(sink) = queue.unsynced.take() else {
                if queue.stopped {
                    return;
                }
                continue;
            };
            queue.is_syncing = true;
            drop(queue);
            let done = sink.sync();
            queue = self.queue();
            queue.is_syncing = false;
            if let Err(error) = done {
                queue.broken.get_or_insert_with(|| Arc::new(error));
            }
            queue.is_newly_synced = true;
            self.wake_writer(queue);
            queue = self.queue();
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

    /// Whether the disk has what is written.
    fn is_settled(&self) -> bool {
        self.unsynced.is_none() && !self.is_syncing
    }

    /// Takes no further line once the chain `is_over`; who waits for one that came late is told so.
    fn close(&mut self, is_over: bool) {
        if is_over {
            self.closed = true;
            self.lines.clear();
        }
    }
}

fn check_disk(broken: Option<&Arc<io::Error>>) -> Result<(), AuditError> {
    broken.map_or(Ok(()), |source| {
        let source = Arc::clone(source);
        Err(AuditError::Sync { source })
    })
}

/// What was waited for, also after a panic of another holder, as [`lock`] does.
fn ignore_poison<T>(waited: LockResult<T>) -> T {
    waited.unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a log.
pub(in crate::audit) type Threads = [thread::JoinHandle<()>; 2];

/// Says when a line is kept as `audit.durability` asks.
#[derive(Debug)]
#[must_use = "nothing may leave before the line is kept"]
pub struct Durable(DurableState);

#[derive(Debug)]
enum DurableState {
    Known(Result<(), AuditError>),
    Queued(QueuedLine),
}

/// A line on its way.
#[derive(Debug)]
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

impl Durable {
    /// What is known already.
    pub(in crate::audit) fn known(kept: Result<(), AuditError>) -> Self {
        Self(DurableState::Known(kept))
    }

    /// Whether the line is kept; blocks until that is known.
    #[cfg(test)]
    #[expect(clippy::wrong_self_convention, reason = "waiting uses it up")]
    pub(in crate::audit) fn is_written(self) -> bool {
        self.wait_blocking().is_ok()
    }

    /// As [`Durable::durable`], on a thread that may block.
    pub(in crate::audit) fn wait_blocking(self) -> Result<(), AuditError> {
        block_on(self.durable())
    }

    /// Returns when the line is kept: with the durability `process` once it is written, with `disk`
    /// after it was synced. Giving up waiting changes nothing.
    ///
    /// # Errors
    /// When the line waits in memory, or the disk did not take it.
    pub async fn durable(self) -> Result<(), AuditError> {
        match self.0 {
            DurableState::Known(kept) => kept,
            DurableState::Queued(mut line) => {
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
