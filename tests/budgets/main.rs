//! Budgets outlive a `kill -9`: what several processes leave behind adds up to what their audits say.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kill_pairs;
mod spender;
