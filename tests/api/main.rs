//! The admin API over HTTP, against a gateway with a file, a store and the built-in server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent_servers;
mod agents;
mod audit;
mod audit_changes;
mod budgets;
mod config;
mod dashboard;
mod events;
#[path = "../settings/governance.rs"]
#[allow(dead_code, reason = "the rest is for other tests")]
mod governing;
mod harness;
mod idempotency;
mod me;
mod openapi;
mod policy;
mod profiles;
mod roles;
mod secrets;
mod server_actions;
mod server_tools;
mod servers;
mod strangers;
mod tools;
mod usage;
mod views;
mod workspaces;
