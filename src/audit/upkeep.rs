//! Care for what is on disk: recovery after a crash, retention, the index.

pub(super) mod index;
pub(super) mod recovery;
pub(super) mod retention;
pub(super) mod truncation;
pub(super) mod verify;
