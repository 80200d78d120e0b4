//! What tests of the log need: calls to record, and disks that fail when they are told to.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::{sync::watch, time::timeout};
use uuid::Uuid;

use super::{
    AuditError, AuditEvent, AuditLog, ChainId, ChainTotal, EventKind, Opened, Record,
    RecordedDecision, Recovered, TrustAnchors, VerifyReport,
    files::{ChainLock, FileLoss},
    signature::SigningKey,
    upkeep::recovery::{chain_total_signed, recover_with},
    verify_by,
    write::segment_store::{SegmentDirectory, SegmentSink, SegmentStore},
};
use crate::{
    clock,
    config::{self, Durability},
    lock::lock,
    money::Micros,
    names::{AgentId, InvocationId},
};

pub(super) fn config() -> config::Audit {
    config::Audit {
        enabled: true,
        durability: Durability::Process,
        arguments: true,
        results: true,
        result_limit: 64 << 10,
        retention: None,
        retention_size: None,
        quota: None,
    }
}

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The account that every call of these tests is charged to.
pub(super) const ACCOUNT: &str = "agent:total";

pub(super) fn invocation() -> InvocationId {
    InvocationId(Uuid::now_v7())
}

pub(super) fn opened(id: InvocationId) -> Opened<'static> {
    Opened {
        id,
        ts: clock::now(),
        agent_id: AgentId::ANONYMOUS,
        agent_name: "anonymous".into(),
        team: Some("science".into()),
        subject: None,
        act: None,
        server: "github".into(),
        method: "tools/call".into(),
        tool: Some("create_issue".into()),
        exposed: Some("mcp_github_create_issue".into()),
        arguments_digest: None,
        price: Micros::new(15_000),
        accounts: vec![ACCOUNT.into()],
    }
}

pub(super) fn record(id: InvocationId) -> Record<'static> {
    Record {
        decision: RecordedDecision::Allowed,
        execution_time: Duration::from_micros(12_345),
        bytes_in: 17,
        bytes_out: 4711,
        ts: clock::now(),
        ..opened(id).into_interrupted_record()
    }
}

/// A record of a call that was refused, with so many bytes of arguments.
pub(super) fn refusal(bytes: usize) -> Record<'static> {
    let json = format!("\"{}\"", "x".repeat(bytes - 2));
    Record {
        decision: RecordedDecision::Refused,
        price: Micros::ZERO,
        arguments: Some(std::borrow::Cow::Owned(
            RawValue::from_string(json).unwrap(),
        )),
        ..record(invocation())
    }
}

/// An event of this time.
pub(super) fn event(ts: &str) -> AuditEvent<'static> {
    AuditEvent {
        ts: at(ts),
        event: EventKind::ServerConnected,
        subject: "github".into(),
        actor: None,
        detail: None,
        changes: super::ChangedValues::default(),
    }
}

/// Runs a future that should not take long.
pub(super) fn bounded<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let bounded = async { timeout(Duration::from_secs(20), future).await };
    runtime.block_on(bounded).unwrap()
}

/// A disk that fails when it is told to.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    /// Bytes that still fit.
    pub(super) room: Arc<AtomicU64>,
    pub(super) cut_fails: Arc<AtomicBool>,
    pub(super) sync_fails: Arc<AtomicBool>,
    /// Bytes of every `write`.
    pub(super) writes: Arc<Mutex<Vec<usize>>>,
    /// How often something was synced.
    pub(super) syncs: watch::Sender<u64>,
}

impl Faults {
    /// None at first.
    pub(super) fn new() -> Self {
        Self {
            room: Arc::new(u64::MAX.into()),
            cut_fails: Arc::default(),
            sync_fails: Arc::default(),
            writes: Arc::default(),
            syncs: watch::Sender::default(),
        }
    }

    /// How often something was written.
    pub(super) fn writes(&self) -> usize {
        lock(&self.writes).len()
    }

    pub(super) fn leave_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::SeqCst);
    }
}

struct FaultyPlace {
    directory: SegmentDirectory,
    faults: Faults,
}

struct FaultySink {
    sink: Arc<dyn SegmentSink>,
    faults: Faults,
}

/// A log on a disk with faults.
pub(super) fn faulty_log(
    directory: &Path,
    config: config::Audit,
    faults: &Faults,
) -> Result<AuditLog, AuditError> {
    let faults = faults.clone();
    log_on(directory, config, |directory| {
        Box::new(FaultyPlace { directory, faults })
    })
}

/// The key of all logs of these tests.
pub(super) fn key() -> Arc<SigningKey> {
    Arc::new(SigningKey::new(&[7; 32]))
}

/// A log in `directory`.
pub(super) fn open_log(directory: &Path, config: config::Audit) -> Result<AuditLog, AuditError> {
    if !config.enabled {
        return AuditLog::open(directory, config);
    }
    super::files::create_directory(directory)?;
    AuditLog::open_with(directory, config, key())
}

pub(super) fn recover(directory: &Path) -> Result<Vec<Result<Recovered, AuditError>>, AuditError> {
    recover_with(directory, &key())
}

pub(super) fn total(directory: &Path, chain: ChainId) -> Result<Option<ChainTotal>, AuditError> {
    chain_total_signed(directory, chain, Some(&key().public()))
}

pub(super) fn trust() -> TrustAnchors {
    TrustAnchors {
        keys: vec![key().public()],
        expected: Vec::new(),
    }
}

pub(super) fn verify(directory: &Path) -> Result<VerifyReport, AuditError> {
    verify_by(directory, &trust())
}

/// A log whose first line goes to a file, and further ones to a device that is always full.
#[cfg(target_os = "linux")]
pub(super) fn full_log(directory: &Path) -> AuditLog {
    let log = log_on(directory, config(), |directory| {
        Box::new(FullPlace { directory })
    });
    log.unwrap()
}

fn log_on(
    directory: &Path,
    config: config::Audit,
    place: impl FnOnce(SegmentDirectory) -> Box<dyn SegmentStore>,
) -> Result<AuditLog, AuditError> {
    let (chain, owned) = ChainLock::acquire_new(directory).unwrap();
    let owned = Arc::new(owned);
    let place = place(SegmentDirectory {
        path: directory.to_owned(),
        chain,
        chain_lock: Arc::clone(&owned),
    });
    AuditLog::start_chain(directory, config, (chain, owned), (place, key()))
}

impl SegmentStore for FaultyPlace {
    fn create(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        let sink = self.directory.create(segment)?;
        let faults = self.faults.clone();
        Ok(Arc::new(FaultySink { sink, faults }))
    }

    fn resume(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        self.directory.resume(segment)
    }

    fn loss(&self) -> Option<FileLoss> {
        self.directory.loss()
    }

    fn ensure_owned(&self) -> io::Result<()> {
        self.directory.ensure_owned()
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        self.directory.remove(segment)
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync()
    }
}

impl SegmentSink for FaultySink {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.faults.room.load(Ordering::SeqCst);
        let fits = bytes.len().min(room.try_into().unwrap_or(usize::MAX));
        if fits == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.sink.append(&bytes[..fits])?;
        self.faults.leave_room(room - written as u64);
        lock(&self.faults.writes).push(written);
        Ok(written)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        if self.faults.cut_fails.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Other.into());
        }
        self.sink.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        if self.faults.sync_fails.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Other.into());
        }
        self.sink.sync()?;
        self.faults.syncs.send_modify(|syncs| *syncs += 1);
        Ok(())
    }

    fn loss(&self, length: u64) -> Option<FileLoss> {
        self.sink.loss(length)
    }
}

#[cfg(target_os = "linux")]
struct FullPlace {
    directory: SegmentDirectory,
}

#[cfg(target_os = "linux")]
struct FullSink(Arc<dyn SegmentSink>, AtomicBool);

#[cfg(target_os = "linux")]
impl SegmentStore for FullPlace {
    fn create(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        let sink = self.directory.create(segment)?;
        Ok(Arc::new(FullSink(sink, AtomicBool::new(false))))
    }

    fn resume(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        self.directory.resume(segment)
    }

    fn loss(&self) -> Option<FileLoss> {
        self.directory.loss()
    }

    fn ensure_owned(&self) -> io::Result<()> {
        self.directory.ensure_owned()
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        self.directory.remove(segment)
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync()
    }
}

#[cfg(target_os = "linux")]
impl SegmentSink for FullSink {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.1.swap(true, Ordering::SeqCst) {
            return self.0.append(bytes);
        }
        let mut full = std::fs::OpenOptions::new().append(true).open("/dev/full")?;
        io::Write::write(&mut full, bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn loss(&self, length: u64) -> Option<FileLoss> {
        self.0.loss(length)
    }
}

/// Waits for a thread of a log.
#[expect(
    clippy::disallowed_methods,
    reason = "threads of a log go by the clock of the system, whatever that of the runtime does"
)]
pub(super) fn until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Does something while the disk takes its time over an event, so that all that is put meanwhile is
/// taken at once.
pub(super) fn while_stalled<T>(
    directory: &Path,
    log: &AuditLog,
    faults: &Faults,
    put: impl FnOnce() -> T,
) -> T {
    let chain = log.chain().unwrap();
    let before = lines(directory, chain).len();
    let held = lock(&faults.writes);
    drop(log.record_event(&event("2026-01-01T00:00:00Z")));
    until(|| lines(directory, chain).len() > before);
    let done = put();
    drop(held);
    done
}

/// The lines of a chain, all segments together.
pub(super) fn lines(directory: &Path, chain: ChainId) -> Vec<String> {
    let mut reader = super::ChainReader::new(directory, chain).unwrap();
    let mut lines = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        lines.push(String::from_utf8(entry.line).unwrap());
    }
    lines
}
