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

mod commented_example;
mod connections;
mod egress;
mod example;
mod forward_headers;
mod governance;
mod harness;
mod item_rules;
mod keys;
mod limits;
mod list_timing;
mod listener;
mod naming;
mod oauth_grants;
mod process_limits;
mod process_settings;
mod recovery;
mod replicas;
mod secrets;
mod timeouts;
mod tls_roots;
mod transports;
mod unix_socket;
mod way_out;

use integration::support;
