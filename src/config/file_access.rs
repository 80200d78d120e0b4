//! How the files are looked at that a config names.

use std::{io, path::Path};

/// The files that a config names; a test or a dry run has its own answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileAccess {
    /// Whether one is there.
    pub(super) is_file: fn(&Path) -> bool,
    /// The text of one.
    pub(super) read: fn(&Path) -> io::Result<String>,
    /// Whether these are the answers of this machine.
    pub(super) are_real: bool,
}
