//! Care for what is on disk: recovery after a crash, retention, the index.

pub(super) mod index;
pub(super) mod recover;
pub(super) mod retire;
pub(super) mod truncation;
pub(super) mod verify;
