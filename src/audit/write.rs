//! Writing of the log: one queue, one thread that writes, one that syncs.

pub(super) mod entry;
mod health;
pub(super) mod log_space;
mod refusal_sums;
pub(super) mod segment;
pub(super) mod segment_store;
pub(super) mod totals;
pub(super) mod write_queue;
pub(super) mod writer;
