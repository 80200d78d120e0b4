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

mod agent_changes;
mod audit_records;
mod auth_failures;
mod budgets;
mod client_certificates;
mod crash_recovery;
#[path = "../settings/governance.rs"]
#[allow(dead_code, reason = "the rest is for the tests of OAuth")]
mod governing;
mod harness;
mod identity;
mod input_validation;
mod keys;
mod metrics;
mod owners;
mod policy_bypass;
mod question_audit;
mod question_scanning;
mod refusal_backoff;
mod refusals;
mod reload;
mod request_state;
mod rules;
mod scanning;
mod tasks;
mod tokens;
mod vendor_methods;

use integration::support;
