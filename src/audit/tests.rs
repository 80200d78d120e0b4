//! The log at its boundary: what is written, what disks and kills do to it, what is read back.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start processes and wait for them"
)]

mod batches;
mod crash;
mod latest;
mod lost_segment;
mod quota;
mod reading;
mod retention_proofs;
mod signatures;
mod truncation;
mod writing;
