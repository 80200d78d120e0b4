//! Tollbridge: one URL in front of every MCP server an organisation runs.

pub mod auth;
pub mod clock;
pub mod config;
pub mod mcp;
pub mod names;
pub mod session;
pub mod task;
