//! Clients sign in with OAuth, shown on the wire: whole gateways, with a client and a browser in front of them.
//!
//! `keys` holds the list of the keys of the built-in authorization server, each with the test that shows its effect.
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
mod commands;
#[path = "../settings/governance.rs"]
#[allow(dead_code, reason = "the rest is for the tests of governance")]
mod governing;
mod keys;
mod login;
mod sign_in;
mod streams;

use integration::support;
