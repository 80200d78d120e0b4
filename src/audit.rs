//! The audit log: what every call did and cost, kept so that nobody can change it unnoticed.
//!
//! One directory holds one chain of lines for each process, in segments (see `files`); each line is
//! a JSON object tied to the one before by hashes (see `hash_chain`), written by one thread (see `queue`).
//! Governance writes through [`AuditLog`]: [`AuditLog::record_opened`] before a call leaves, [`AuditLog::record`] once it is over, whatever became of it.
//! [`recover()`] closes the chains of processes that died; the command line and the index read
//! through [`latest_records()`], [`Query`], [`Follow`], [`ChainReader`] and [`verify()`].
//!
//! What must stay true: a call that left has its line `opened` on the other side of a `write`;
//! every invocation has one record; a line once written is never changed; the file ends in a whole
//! line whatever the disk did; what is written can be found at its path, or the chain goes on
//! elsewhere and says so. Secrets and personal data do not belong here: arguments come redacted, and
//! of the raw ones there is only a digest. Some lines are signed, so that nobody without the key can
//! make a chain anew (see `signature`). What a chain cannot show is that its last lines, or a whole
//! chain, are missing: the index does, as far as it knows them (see `truncation`); whoever needs more
//! keeps the hashes that the log of the process and [`verify()`] tell.

mod error;
mod files;
mod flood_meter;
mod hash_chain;
mod read;
mod record;
mod signature;
mod upkeep;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use jiff::Timestamp;

pub use error::LineFault;
pub use error::{AuditError, IndexLag};
pub use files::{ChainId, InvalidChainId};
pub use flood_meter::{FloodMeter, FloodSum, SUM_INTERVAL};
pub use hash_chain::{Hash, InvalidHash};
pub use read::events::{EventFilter, EventPlace, FoundEvent, latest_events};
pub use read::export::{ExportFormat, export};
pub use read::latest_records::{NewRecords, latest_records, new_records};
pub use read::query::{
    FOLLOW_BATCH_MAX, FOLLOW_INTERVAL, Follow, FoundRecord, Query, RecordFilter,
};
pub use reader::{ChainReader, LINE_BYTES_MAX, LogEntry, Position};
pub use record::changed_values::{CHANGES_BYTES_MAX, ChangedValues, MaskedDocument};
pub use record::question_record::QuestionRecord;
pub use record::record_line::{
    ARGUMENTS_BYTES_MAX, ArgumentsDigest, AuditEvent, EventKind, InvalidDecision, LineType, Opened,
    Record, RecordedDecision, TEXT_BYTES_MAX,
};
pub use record::refusal_summary::RefusalSummary;
pub use signature::{InvalidPublicKey, PublicKey};
pub use upkeep::index::Indexer;
pub use upkeep::recovery::{ChainTotal, Recovered, chain_total, chains, recover};
pub use upkeep::retention::Retired;
pub use upkeep::truncation::{TruncatedSegment, record_truncations, truncated_chains};
pub use upkeep::verify::{
    ChainReport, FaultAt, TrustAnchors, VerifyReport, verify, verify_by, verify_with,
};
pub use write::log_space::LogSpace;
pub use write::write_queue::{Durable, QUEUE_BYTES_MAX, SYNC_DELAY};
pub use write::writer::{PENDING_BYTES_MAX, SEGMENT_BYTES_MAX, UNSIGNED_LINES_MAX};

use crate::{config, lock::lock};
use files::ChainLock;
use hash_chain::ChainPosition;
use signature::SigningKey;
use write::{
    entry::AuditEntry,
    segment_store::{SegmentDirectory, SegmentStore},
    write_queue::{SharedQueue, Threads},
    writer::Writer,
};

/// Of so many segments at least the log has one that may go, where only so much is kept.
const SEGMENTS_MIN: u64 = 8;

/// Size that every segment may have.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// The chain of this process, open for writing.
///
/// Every method may be called from any thread. [`AuditLog::record_opened`], [`AuditLog::record`] and [`AuditLog::record_event`]
/// put a line into the queue, in the order of the calls, wake the thread that writes, and wait for
/// nothing.
#[derive(Debug)]
pub struct AuditLog {
    /// Nothing when the audit is switched off.
    open: Option<OpenLog>,
    config: ArcSwap<config::Audit>,
}

struct OpenLog {
    directory: PathBuf,
    chain: ChainId,
    /// The public half of what its lines are signed with.
    key: PublicKey,
    queue: Arc<SharedQueue>,
    threads: Mutex<Option<Threads>>,
    /// Holds the chain until it has ended or the log is dropped.
    chain_lock: Mutex<Option<Arc<ChainLock>>>,
}

impl std::fmt::Debug for OpenLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Open({})", self.chain)
    }
}

impl AuditLog {
    /// Begins a chain in `directory`, which is made when it is missing.
    ///
    /// With `audit.enabled` off nothing is made, and everything that is written goes nowhere.
    ///
    /// # Errors
    /// When the directory cannot be used, or the first line cannot be written.
    pub fn open(directory: &Path, config: config::Audit) -> Result<Self, AuditError> {
        if !config.enabled {
            return Ok(Self {
                open: None,
                config: ArcSwap::from_pointee(config),
            });
        }
        files::create_directory(directory)?;
        let key = Arc::new(SigningKey::load_or_create(directory)?);
        Self::open_with(directory, config, key)
    }

    /// The same with this key.
    fn open_with(
        directory: &Path,
        config: config::Audit,
        key: Arc<SigningKey>,
    ) -> Result<Self, AuditError> {
        let begun = ChainLock::acquire_new(directory);
        let (chain, owned) = begun.map_err(|source| AuditError::Directory {
            path: directory.to_owned(),
            source,
        })?;
        let lock = Arc::new(owned);
        let place = SegmentDirectory {
            path: directory.to_owned(),
            chain,
            chain_lock: Arc::clone(&lock),
        };
        Self::start_chain(directory, config, (chain, lock), (Box::new(place), key))
    }

    fn start_chain(
        directory: &Path,
        config: config::Audit,
        (chain, owned): (ChainId, Arc<ChainLock>),
        (place, key): (Box<dyn SegmentStore>, Arc<SigningKey>),
    ) -> Result<Self, AuditError> {
        let cannot = |error| AuditError::Write {
            source: Arc::new(error),
        };
        let public = key.public();
        let writer = match Writer::begin(chain, place, key) {
            Ok(mut writer) => {
                writer.space = LogSpace::measure(directory, config.quota)?;
                writer.segment_bytes_max = segment_bytes_max(&config);
                writer
            }
            Err(source) => {
                drop(owned.release());
                return Err(cannot(source));
            }
        };
        let shared = Arc::new(SharedQueue::new(&writer, config.durability));
        let threads = shared.start(writer).map_err(cannot)?;
        let open = OpenLog {
            directory: directory.to_owned(),
            chain,
            key: public,
            queue: shared,
            threads: Mutex::new(Some(threads)),
            chain_lock: Mutex::new(Some(owned)),
        };
        Ok(Self {
            open: Some(open),
            config: ArcSwap::from_pointee(config),
        })
    }

    /// Takes from `config` what may change while the chain is written: whether arguments and results are
    /// recorded, and how long and how many records are kept.
    pub fn update_config(&self, config: config::Audit) {
        let known = **self.config.load();
        self.config.store(Arc::new(config::Audit {
            arguments: config.arguments,
            results: config.results,
            result_limit: config.result_limit,
            retention: config.retention,
            retention_size: config.retention_size,
            quota: config.quota,
            ..known
        }));
        if let Some(open) = &self.open {
            open.queue.set_segment_bytes_max(segment_bytes_max(&config));
        }
    }

    /// The chain that is written; none when the audit is off.
    pub fn chain(&self) -> Option<ChainId> {
        self.open.as_ref().map(|open| open.chain)
    }

    /// Whether arguments are recorded, so that nobody redacts them for nothing.
    pub fn records_arguments(&self) -> bool {
        self.open.is_some() && self.config.load().arguments
    }

    /// Of how many bytes results are recorded; `None`: none is, so that nobody redacts them for nothing.
    pub fn result_limit(&self) -> Option<usize> {
        let config = self.config.load();
        let is_recorded = self.open.is_some() && config.results;
        is_recorded.then_some(config.result_limit)
    }

    /// Whether a call could be opened now.
    ///
    /// # Errors
    /// What [`Durable::durable`] of a call that is opened would return.
    pub fn ready(&self) -> Result<(), AuditError> {
        self.open.as_ref().map_or(Ok(()), |open| open.queue.ready())
    }

    /// Notes that a call is about to reach its server. The call may leave once the returned
    /// [`Durable`] says so, and not at all after an error: then the line cannot be written, or others
    /// wait to be.
    pub fn record_opened(&self, opened: &Opened<'_>) -> Durable {
        self.enqueue(|| AuditEntry::opened(opened))
    }

    /// Records a call that is over; exactly once for each invocation, allowed or refused.
    ///
    /// A record that cannot be written waits in memory and is written before any later line.
    /// [`Durable::durable`] says then that it is not kept yet.
    pub fn record(&self, record: &Record<'_>) -> Durable {
        let config = self.config.load();
        let keeps_all = (record.arguments.is_none() || config.arguments)
            && (record.result.is_none() || config.results);
        self.enqueue(|| {
            if keeps_all {
                AuditEntry::record(record)
            } else {
                AuditEntry::record(&Record {
                    arguments: record.arguments.clone().filter(|_| config.arguments),
                    result: record.result.clone().filter(|_| config.results),
                    ..record.clone()
                })
            }
        })
    }

    /// Notes something that is not a call; it waits in memory as a record does.
    pub fn record_event(&self, event: &AuditEvent<'_>) -> Durable {
        self.enqueue(|| AuditEntry::event(event))
    }

    /// Notes refused calls that have no records of their own; it waits in memory as a record does.
    pub fn record_refusals(&self, refusals: &RefusalSummary<'_>) -> Durable {
        self.enqueue(|| AuditEntry::refusals(refusals))
    }

    /// Notes what became of what a server asked a client; it waits in memory as a record does.
    pub fn record_question(&self, question: &QuestionRecord<'_>) -> Durable {
        self.enqueue(|| AuditEntry::question(question))
    }

    /// Where there is no audit, nothing has to be kept.
    fn enqueue(&self, entry: impl FnOnce() -> AuditEntry) -> Durable {
        let open = self.open.as_ref();
        open.map_or_else(
            || Durable::known(Ok(())),
            |open| open.queue.enqueue(entry()),
        )
    }

    /// Whether everything that was written is on disk by now. With the durability `process` it often
    /// is not yet when an answer leaves; with `disk` it always is for the lines of that call.
    pub fn is_synced(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.queue.is_synced())
    }

    /// Records dropped because too many waited already; 0 unless the disk was full for long.
    pub fn lost_count(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.queue.lost_count())
    }

    /// The last signed line of the chain that the log of the process was told of, which is at most once a
    /// minute: its number and its hash.
    pub fn head(&self) -> Option<(u64, Hash)> {
        let ChainPosition { seq, hash } = self.open.as_ref()?.queue.head()?;
        Some((seq, hash))
    }

    /// What room there is for the log; as much as anybody wants where there is none.
    pub fn space(&self) -> LogSpace {
        let open = self.open.as_ref();
        open.map_or_else(LogSpace::default, |open| open.queue.space())
    }

    /// Looks how much room there is: others write to the directory too, and to its disk. It says so when
    /// there has become little.
    ///
    /// It reads the directory; call it where blocking is allowed, every few seconds.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn check_space(&self) -> Result<(), AuditError> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        let room = LogSpace::measure(&open.directory, self.config.load().quota)?;
        match room.warning() {
            Some(warning) if !open.queue.space().is_low() => tracing::warn!("{warning}"),
            None if open.queue.space().is_low() => {
                tracing::info!("the audit log has enough space again");
            }
            Some(_) | None => {}
        }
        open.queue.set_space(room);
        Ok(())
    }

    /// Whether the log takes more than `audit.retention_size`.
    pub fn exceeds_retention_size(&self) -> bool {
        let size = self.config.load().retention_size;
        size.is_some_and(|size| self.space().used > size)
    }

    /// Removes whole segments of this and other chains in which everything is older than
    /// `audit.retention`, if that is set, and then the oldest until no more is there than
    /// `audit.retention_size`.
    ///
    /// It reads and removes files; call it where blocking is allowed, once in a while.
    ///
    /// # Errors
    /// When the log cannot be written or files cannot be read or removed. What was removed until
    /// then is vouched for.
    pub fn retire(&self, now: Timestamp) -> Result<Vec<Retired>, AuditError> {
        let Some(open) = &self.open else {
            return Ok(Vec::new());
        };
        let config = **self.config.load();
        let mut retired = Vec::new();
        if let Some(retention) = config.retention {
            let oldest = now.checked_sub(retention).unwrap_or(Timestamp::MIN);
            retired = upkeep::retention::retire(open, oldest, 0)?;
        }
        if let Some(size) = config.retention_size {
            retired.extend(upkeep::retention::retire(open, Timestamp::MAX, size)?);
        }
        Ok(retired)
    }

    /// Ends the chain: calls that are still open are recorded as interrupted, then everything is
    /// synced to disk. Nothing can be written afterwards. Closing twice is closing once.
    ///
    /// It waits for the disk; call it where blocking is allowed, after the last call.
    ///
    /// # Errors
    /// When the last lines cannot be written; [`recover()`] ends the chain then.
    pub fn close(&self) -> Result<(), AuditError> {
        self.open.as_ref().map_or(Ok(()), OpenLog::close)
    }
}

/// Size at which a segment is full: where only so much is kept, a part of that.
fn segment_bytes_max(config: &config::Audit) -> u64 {
    let part = config.retention_size.map(|size| size / SEGMENTS_MIN);
    part.map_or(SEGMENT_BYTES_MAX, |part| {
        part.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    })
}

impl OpenLog {
    fn close(&self) -> Result<(), AuditError> {
        let owned = lock(&self.chain_lock).take();
        let Some(owned) = owned else { return Ok(()) };
        self.queue.end_chain(Opened::into_stopped_record)?;
        self.stop_threads();
        self.queue.check_disk()?;
        let path = self.directory.clone();
        owned
            .release()
            .map_err(|source| AuditError::File { path, source })
    }

    /// Ends the threads, after they have written and synced once more.
    fn stop_threads(&self) {
        if let Some(threads) = lock(&self.threads).take() {
            self.queue.stop(threads);
        }
    }
}

/// A log that was not closed leaves its chain without an end, as if the process had died.
impl Drop for OpenLog {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

mod reader;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
