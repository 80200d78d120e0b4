//! What the writer of a chain can do, as others see it.

use std::{io, sync::Arc};

use super::log_space::LogSpace;
use crate::audit::{AuditError, hash_chain::ChainPosition};

/// What keeps lines from being written.
#[derive(Clone, Debug, Default)]
pub(in crate::audit) struct WriterHealth {
    /// Lines that wait.
    pub(in crate::audit) waiting: usize,
    /// Lines that were given up, of which the log does not know yet.
    pub(in crate::audit) lost: u64,
    /// Why there is no segment to write to.
    pub(super) segment_error: Option<Arc<io::Error>>,
    /// What the system said when it last took no line.
    pub(super) last_write_error: Option<Arc<io::Error>>,
    /// The last signed place of the chain that was told to the log.
    pub(in crate::audit) head: Option<ChainPosition>,
    /// What room there is.
    pub(in crate::audit) space: LogSpace,
}

impl WriterHealth {
    /// Whether anything may be opened on a disk that is to be trusted.
    pub(in crate::audit) fn ready(&self) -> Result<(), AuditError> {
        match &self.segment_error {
            Some(source) => {
                let source = Arc::clone(source);
                Err(AuditError::Write { source })
            }
            None if self.waiting > 0 => Err(self.pending_error()),
            None if self.space.is_exhausted() => {
                let quota = self.space.quota;
                Err(AuditError::Quota { quota })
            }
            None => Ok(()),
        }
    }

    /// What who waits for a line is told that waits in memory.
    pub(in crate::audit) fn pending_error(&self) -> AuditError {
        AuditError::Pending {
            lines: self.waiting,
            source: self.last_write_error.clone(),
        }
    }
}
