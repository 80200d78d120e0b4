//! Where the log lies: the directory, the names in it, and who owns a chain.
//!
//! A chain `C` is the segments `C.1.jsonl`, `C.2.jsonl`, ..., and, until it has ended, the file
//! `C.lock`. Whoever holds the exclusive lock of that file is the only one who writes to the chain;
//! the system lets go of it when the process dies, however it dies.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Mutex,
};

use jiff::Timestamp;
use uuid::Uuid;

use super::AuditError;
use crate::{lock::lock, names::uuid_time};

/// The chain of one process, a UUIDv7: chains sort by when they began.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ChainId(Uuid);

impl ChainId {
    /// A new id that no chain has had.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// When the chain was begun, to the millisecond; the epoch when the id does not say.
    pub fn started_at(self) -> Timestamp {
        uuid_time(self.0).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ChainId {
    type Err = InvalidChainId;

    fn from_str(text: &str) -> Result<Self, InvalidChainId> {
        let uuid = Uuid::try_parse(text).map_err(|_| InvalidChainId)?;
        let usual = uuid.to_string() == text;
        usual.then_some(Self(uuid)).ok_or(InvalidChainId)
    }
}

/// A text that is no id of a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the id of a chain is a UUID in lower case with hyphens")]
pub struct InvalidChainId;

/// Times a lock file is looked at again because somebody removed it meanwhile.
const LOCK_ATTEMPTS_MAX: usize = 8;

/// The right to write to a chain, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct ChainLock {
    file: Mutex<File>,
    path: PathBuf,
}

impl ChainLock {
    /// A chain that is nobody else's.
    pub(super) fn acquire_new(directory: &Path) -> io::Result<(ChainId, Self)> {
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let chain = ChainId::generate();
            if let Some(owned) = Self::try_acquire(directory, chain)? {
                return Ok((chain, owned));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// The right to write to `chain`, unless somebody has it.
    ///
    /// Whoever ends a chain removes its lock file while holding the lock. A lock on a file that has
    /// lost its name protects nothing, so the name is looked at again after locking.
    pub(super) fn try_acquire(directory: &Path, chain: ChainId) -> io::Result<Option<Self>> {
        let path = directory.join(format!("{chain}.lock"));
        let file = try_lock_file(&path)?.map(Mutex::new);
        Ok(file.map(|file| Self { file, path }))
    }

    /// What became of the right; `None` while it holds.
    pub(super) fn loss(&self) -> Option<FileLoss> {
        match is_same_file(&lock(&self.file), &self.path) {
            Ok(true) => None,
            Ok(false) => Some(FileLoss::Unlocked),
            Err(error) => Some(FileLoss::Unreachable(error.kind())),
        }
    }

    /// Takes the chain again where somebody removed its lock file: others would think it dead, and
    /// may have done so by now.
    pub(super) fn reacquire(&self) -> io::Result<()> {
        let mut file = lock(&self.file);
        if !is_same_file(&file, &self.path)? {
            *file = try_lock_file(&self.path)?.ok_or(io::ErrorKind::WouldBlock)?;
        }
        Ok(())
    }

    /// Gives the chain up for good: it has ended.
    pub(super) fn release(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// The lock file at `path`, locked, unless somebody else holds it.
fn try_lock_file(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let file = private_options().truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        if is_same_file(&file, path)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Unlocks by name and does not leave it to closing: a child of this process shares the lock
/// between its fork and its exec, and would keep it for that long.
impl Drop for ChainLock {
    fn drop(&mut self) {
        if let Err(error) = lock(&self.file).unlock() {
            tracing::warn!(%error, "cannot release the lock of an audit chain");
        }
    }
}

/// What became of a file of the log while it was open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FileLoss {
    /// It was cut off.
    Truncated {
        /// Bytes that should be there.
        known: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// It is gone, or elsewhere.
    Removed,
    /// There is another file of its name.
    Replaced,
    /// Others could take its chain for a dead one, and end it.
    Unlocked,
    /// It cannot be looked at, so that nobody knows.
    Unreachable(io::ErrorKind),
}

impl fmt::Display for FileLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { known, found } => write!(
                f,
                "was truncated from {known} to {found} \
                bytes"
            ),
            Self::Removed => f.write_str("was removed"),
            Self::Replaced => f.write_str("was replaced by another file"),
            Self::Unlocked => f.write_str("lost its lock: the lock file was removed"),
            Self::Unreachable(why) => write!(f, "could not be read ({why})"),
        }
    }
}

/// What became of `file`, which was opened at `path` and had so many bytes. Of one that cannot be
/// looked at nothing is said.
pub(super) fn detect_loss(file: &File, path: &Path, known: u64) -> Option<FileLoss> {
    let named = match fs::metadata(path) {
        Ok(named) => named,
        Err(error) if is_not_found(&error) => return Some(FileLoss::Removed),
        Err(_) => return None,
    };
    let held = file.metadata().ok()?;
    if (named.dev(), named.ino()) != (held.dev(), held.ino()) {
        return Some(FileLoss::Replaced);
    }
    let found = named.len();
    (found < known).then_some(FileLoss::Truncated { known, found })
}

/// Whether there is nothing of the name that was looked for.
fn is_not_found(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotADirectory | io::ErrorKind::NotFound
    )
}

fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the directory, for its owner's eyes only.
pub(super) fn create_directory(directory: &Path) -> Result<(), AuditError> {
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|source| directory_error(directory, source))
}

/// How files of the log are made: writable, created when missing, for their owner's eyes only.
pub(super) fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Syncs the names in the directory to disk.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Where a segment lies.
pub(super) fn segment_path(directory: &Path, chain: ChainId, segment: u32) -> PathBuf {
    directory.join(format!("{chain}.{segment}.jsonl"))
}

/// Bytes of a segment; none when it is not there.
pub(super) fn length(directory: &Path, chain: ChainId, number: u32) -> Result<u64, AuditError> {
    let path = segment_path(directory, chain, number);
    match fs::metadata(&path) {
        Ok(file) => Ok(file.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(AuditError::File { path, source }),
    }
}

/// Removes a segment, if it is there.
pub(super) fn remove_segment(
    directory: &Path,
    chain: ChainId,
    number: u32,
) -> Result<(), AuditError> {
    let path = segment_path(directory, chain, number);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(AuditError::File { path, source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// All chains with the numbers of their segments in order.
pub(super) fn list_chains(directory: &Path) -> Result<BTreeMap<ChainId, Vec<u32>>, AuditError> {
    let mut chains: BTreeMap<ChainId, Vec<u32>> = BTreeMap::new();
    for (chain, segment) in parse_names(directory, parse_name)? {
        chains.entry(chain).or_default().push(segment);
    }
    for segments in chains.values_mut() {
        segments.sort_unstable();
    }
    Ok(chains)
}

/// The segments of one chain in order.
pub(super) fn chain_segments(directory: &Path, chain: ChainId) -> Result<Vec<u32>, AuditError> {
    Ok(list_chains(directory)?.remove(&chain).unwrap_or_default())
}

/// Chains that have a lock file.
pub(super) fn locked_chains(directory: &Path) -> Result<Vec<ChainId>, AuditError> {
    let parse = |name: &str| name.strip_suffix(".lock")?.parse().ok();
    parse_names(directory, parse)
}

/// What `parse` makes of the names in the directory. No directory is no name; names that mean
/// nothing are nobody's business.
fn parse_names<T>(
    directory: &Path,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, AuditError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(source) => return Err(directory_error(directory, source)),
    };
    for entry in entries {
        let entry = entry.map_err(|source| directory_error(directory, source))?;
        found.extend(entry.file_name().to_str().and_then(&parse));
    }
    Ok(found)
}

fn parse_name(name: &str) -> Option<(ChainId, u32)> {
    let (chain, number) = name.strip_suffix(".jsonl")?.split_once('.')?;
    let segment: u32 = number.parse().ok()?;
    let usual = segment > 0 && segment.to_string() == number;
    usual.then_some((chain.parse().ok()?, segment))
}

/// The error that a directory is.
pub(super) fn directory_error(directory: &Path, source: io::Error) -> AuditError {
    AuditError::Directory {
        path: directory.to_owned(),
        source,
    }
}
