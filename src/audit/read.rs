//! Reading of the log: segments, queries, the latest records, verification, export.

pub(super) mod export;
pub(super) mod latest;
pub(super) mod query;
