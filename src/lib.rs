//! Tollbridge: one URL in front of every MCP server an organisation runs.

pub mod auth;
pub mod backend;
pub mod builtin;
pub mod catalog;
pub mod clock;
pub mod config;
pub mod discovery;
pub mod governance;
pub mod http;
pub mod mcp;
pub mod names;
pub mod proxy;
pub mod router;
pub mod session;
pub mod task;
pub mod telemetry;
