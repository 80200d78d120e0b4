//! The log at its boundary: what is written, what disks and kills do to it, what is read back.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start processes and wait for them"
)]

mod batches;
mod crash;
mod latest;
mod lost;
mod reading;
mod retired;
mod room;
mod shortened;
mod signatures;
mod writing;
