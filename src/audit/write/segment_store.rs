//! Where lines go: files, and in tests something that fails when it is told to.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use crate::audit::{
    ChainId,
    files::{self, ChainLock, FileLoss},
};

/// One segment, open for writing at its end.
pub(in crate::audit) trait SegmentSink: Send + Sync {
    /// Writes some of `bytes` at the end.
    fn append(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Cuts off what is beyond `length`.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Returns when everything written is on disk.
    fn sync(&self) -> io::Result<()>;

    /// What became of the segment, unless it is where it was begun and has at least so many bytes.
    fn loss(&self, length: u64) -> Option<FileLoss>;
}

/// The place of a chain's segments.
pub(in crate::audit) trait SegmentStore: Send + Sync {
    /// An empty segment. One of that number that is there is emptied.
    fn create(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>>;

    /// A segment that is there, as it is.
    fn resume(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>>;

    /// What became of the right to write to the chain, unless it is still ours.
    fn loss(&self) -> Option<FileLoss>;

    /// Makes sure that the chain is ours, and takes it again where it is not.
    fn ensure_owned(&self) -> io::Result<()>;

    /// Removes a segment.
    fn remove(&self, segment: u32) -> io::Result<()>;

    /// Returns when the names of the segments are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// A segment as a file.
struct SegmentFile {
    file: File,
    path: PathBuf,
}

impl SegmentSink for SegmentFile {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        (&self.file).write(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        // One that somebody else cut is not filled up: that would hide it.
        if self.file.metadata()?.len() > length {
            self.file.set_len(length)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn loss(&self, length: u64) -> Option<FileLoss> {
        files::detect_loss(&self.file, &self.path, length)
    }
}

/// Segments as files of the audit directory.
#[derive(Debug)]
pub(in crate::audit) struct SegmentDirectory {
    pub(in crate::audit) path: PathBuf,
    pub(in crate::audit) chain: ChainId,
    pub(in crate::audit) chain_lock: Arc<ChainLock>,
}

impl SegmentDirectory {
    fn segment_path(&self, segment: u32) -> PathBuf {
        files::segment_path(&self.path, self.chain, segment)
    }
}

impl SegmentStore for SegmentDirectory {
    fn create(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        drop(
            files::private_options()
                .truncate(true)
                .open(self.segment_path(segment))?,
        );
        self.resume(segment)
    }

    fn resume(&self, segment: u32) -> io::Result<Arc<dyn SegmentSink>> {
        let path = self.segment_path(segment);
        let file = OpenOptions::new().append(true).open(&path)?;
        Ok(Arc::new(SegmentFile { file, path }))
    }

    fn loss(&self) -> Option<FileLoss> {
        self.chain_lock.loss()
    }

    fn ensure_owned(&self) -> io::Result<()> {
        self.chain_lock.reacquire()
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        fs::remove_file(self.segment_path(segment))
    }

    fn sync(&self) -> io::Result<()> {
        files::sync_directory(&self.path)
    }
}
