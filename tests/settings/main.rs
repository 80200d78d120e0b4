//! Every key of the config changes behaviour: each test runs whole gateways that differ in one key.
//!
//! `keys` holds the list of all keys with their tests, and fails when the schema has another.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../integration"]
mod integration {
    #[allow(
        dead_code,
        unused_imports,
        reason = "these tests need a part of what those need"
    )]
    pub(crate) mod support;
}
#[path = "../cli/support.rs"]
#[allow(
    dead_code,
    reason = "these tests need a part of what those of the command line need"
)]
mod binary;

mod abuse;
mod commented;
mod connections;
mod example;
mod governing;
mod harness;
mod items;
mod keys;
mod limits;
mod listener;
mod lists;
mod naming;
mod process;
mod reach;
mod recovery;
mod replicas;
mod socket;
mod times;
mod trust;

use integration::support;
