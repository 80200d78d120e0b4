//! Reading of the log: segments, queries, the latest records, verification, export.

pub(super) mod events;
pub(super) mod export;
pub(super) mod latest_records;
pub(super) mod query;
