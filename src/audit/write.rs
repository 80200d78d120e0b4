//! Writing of the log: one queue, one thread that writes, one that syncs.

pub(super) mod entry;
pub(super) mod queue;
mod ration;
pub(super) mod room;
pub(super) mod sink;
pub(super) mod totals;
pub(super) mod writer;
