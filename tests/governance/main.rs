//! What governance promises, proven on the wire: whole gateways between clients and servers that say
//! what reached them.
//!
//! `keys` holds the list of all keys that govern, each with the test that shows its effect.
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

mod asked;
mod budgets;
mod crash;
#[path = "../settings/governing.rs"]
mod governing;
mod harness;
mod identity;
mod keys;
mod meter;
mod metrics;
mod no_way_around;
mod questions;
mod records;
mod refusals;
mod reload;
mod revoked;
mod rules;
mod scans;
mod states;
mod strangers;
mod tasks;
mod validate;
mod vendor;

use integration::support;
