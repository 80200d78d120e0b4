//! Why the log could not be written or read.

use std::{io, path::PathBuf, sync::Arc};

use super::ChainId;
use crate::{key_file::KeyFileError, store::StoreError};

/// Why the log could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The log was closed. Calls that come after that are ours to mend.
    #[error("the audit log is closed")]
    Closed,
    /// The directory cannot be made or listed. The operator mends the path or its permissions.
    #[error("cannot use the audit directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Where an export goes takes no more. Whoever asked for it makes room.
    #[error("cannot write the export: {source}")]
    Export {
        /// What the system said.
        source: io::Error,
    },
    /// The key that lines are signed with cannot be used. The operator mends it.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A line is not what this version writes: somebody changed it, or a newer version wrote it.
    #[error("line at byte {offset} of segment {segment} of chain {chain}: {fault}")]
    Line {
        /// The chain.
        chain: ChainId,
        /// The segment.
        segment: u32,
        /// Where the line begins.
        offset: u64,
        /// What is wrong.
        fault: LineFault,
    },
    /// Lines are waiting to be written; no call may leave before they are. The operator makes room.
    #[error("cannot write the audit log{}; pending lines: \
        {lines}", source_suffix(source.as_deref()))]
    Pending {
        /// How many.
        lines: usize,
        /// What the system said of the last attempt.
        source: Option<Arc<io::Error>>,
    },
    /// The log has taken all that it may take; no call may be opened. The operator raises `audit.quota`, or
    /// lets less be kept.
    #[error("the audit log has reached its quota of {} MiB: raise `audit.quota`, or lower `audit.retention` or \
             `audit.retention_size`", quota >> 20)]
    Quota {
        /// What it may take, bytes.
        quota: u64,
    },
    /// A file cannot be read, moved or removed. The operator mends its permissions.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk refused to keep what it had taken. What it holds is uncertain, so that no call may
    /// leave until the process is started again. The operator replaces the disk.
    #[error("cannot sync the audit log to disk: {source}")]
    Sync {
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The line could not be written; the log is as it was before. The operator makes room.
    #[error("cannot write the audit log: {source}")]
    Write {
        /// What the system said.
        source: Arc<io::Error>,
    },
}

impl AuditError {
    /// Whether it says that lines could not be written, which are gone with the process, or that it is not
    /// known whether the disk has them.
    pub fn is_line_loss(&self) -> bool {
        match self {
            Self::Pending { .. } | Self::Sync { .. } | Self::Write { .. } => true,
            Self::Closed
            | Self::Directory { .. }
            | Self::Export { .. }
            | Self::File { .. }
            | Self::Key(_)
            | Self::Quota { .. }
            | Self::Line { .. } => false,
        }
    }
}

fn source_suffix(source: Option<&io::Error>) -> String {
    source.map_or_else(String::new, |source| format!(": {source}"))
}

/// Why the index stays behind.
#[derive(Debug, thiserror::Error)]
pub enum IndexLag {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] AuditError),
    /// The store cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread that read was ended.
    #[error("reading the log was interrupted")]
    ReaderPanicked,
}

/// What is wrong with a line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineFault {
    /// There is a line after the end of the chain.
    #[error("line after the end of the chain")]
    AfterEnd,
    /// The line was changed.
    #[error("`hash` is not the hash of the line")]
    Hash,
    /// The segment is not the one that its name says.
    #[error("the segment does not match its file name")]
    WrongSegmentName,
    /// Segments are missing.
    #[error("segment {expected} is missing")]
    MissingSegment {
        /// The first of them.
        expected: u32,
    },
    /// Not a line of the log, or one of a newer version.
    #[error("not a log line")]
    NotALine,
    /// The line does not follow the one before it.
    #[error("`prev` is not the hash of the line before")]
    Prev,
    /// Lines are missing or doubled.
    #[error("`seq` is not {expected}")]
    Seq {
        /// What should be there.
        expected: u64,
    },
    /// The line is signed with a key that is not trusted, or not at all as its signature says.
    #[error(
        "its signature does not match a trusted key: the line was forged or signed with another key"
    )]
    Signature,
    /// The line is longer than any we write.
    #[error("line too long")]
    TooLong,
    /// A line without an end that is not the last of a chain that goes on.
    #[error("line incomplete")]
    Torn,
    /// A signature is missing.
    #[error("missing signature: the lines were forged, or written by a version without signatures")]
    Unsigned,
    /// Lines before it are missing, and no chain that is whole says that they were retired.
    #[error("segments up to {last} are missing, and no record says they were retired")]
    UnprovenRemoval {
        /// The last segment that is missing.
        last: u32,
    },
}
