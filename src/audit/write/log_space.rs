//! How much room is left for the log: it has a quota, and a disk. The last part of it is for calls that
//! are allowed, so that whoever may do nothing cannot take it from others.

use std::{fs, path::Path};

use rustix::fs::statvfs;

use crate::audit::{AuditError, files};

/// Part of the quota that is kept for calls that are allowed.
const RESERVE_FRACTION: u64 = 8;

/// The most that is kept for them, bytes: some hundred thousand calls.
const RESERVE_BYTES_MAX: u64 = 256 << 20;

/// What there is and what is taken, bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSpace {
    /// What the log takes.
    pub used: u64,
    /// What it may take.
    pub quota: u64,
    /// What is free on its disk.
    pub free: u64,
}

impl Default for LogSpace {
    /// As much as anybody wants.
    fn default() -> Self {
        Self {
            used: 0,
            quota: u64::MAX,
            free: u64::MAX,
        }
    }
}

impl LogSpace {
    /// Looks at the log in `directory`, which has `quota`, or else half of its disk.
    pub(in crate::audit) fn measure(
        directory: &Path,
        quota: Option<u64>,
    ) -> Result<Self, AuditError> {
        let unusable = |source| files::directory_error(directory, source);
        let mut used: u64 = 0;
        for entry in fs::read_dir(directory).map_err(unusable)? {
            // One that was just removed takes nothing.
            let length = entry.and_then(|entry| entry.metadata());
            used = used.saturating_add(length.map_or(0, |file| file.len()));
        }
        let disk = statvfs(directory).map_err(|error| unusable(error.into()))?;
        // Some file systems do not say how large they are.
        let (all, free) = match disk.f_blocks {
            0 => (u64::MAX, u64::MAX),
            blocks => (
                blocks.saturating_mul(disk.f_frsize),
                disk.f_bavail.saturating_mul(disk.f_frsize),
            ),
        };
        Ok(Self {
            used,
            quota: quota.unwrap_or(all / 2),
            free,
        })
    }

    /// What is kept for calls that are allowed.
    fn reserve_bytes(&self) -> u64 {
        (self.quota / RESERVE_FRACTION).min(RESERVE_BYTES_MAX)
    }

    /// Whether refused calls have to be summed.
    pub fn is_low(&self) -> bool {
        self.quota.saturating_sub(self.used).min(self.free) <= self.reserve_bytes()
    }

    /// Whether no call may be opened.
    pub(in crate::audit) fn is_exhausted(&self) -> bool {
        self.used >= self.quota
    }

    /// What people are told while there is little room; nothing while there is enough.
    pub fn warning(&self) -> Option<String> {
        let Self { used, quota, free } = self;
        let mib = |bytes: &u64| bytes >> 20;
        self.is_low().then(|| {
            format!(
                "the audit log is running out of space: {} of {} MiB used (`audit.quota`), {} MiB \
                 free on disk; refused calls are summarized",
                mib(used),
                mib(quota),
                mib(free)
            )
        })
    }

    pub(in crate::audit) fn consume(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
        self.free = self.free.saturating_sub(bytes);
    }
}
