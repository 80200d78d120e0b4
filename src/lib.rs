//! Tollbridge: one URL in front of every MCP server an organisation runs.

pub mod catalog;
pub mod config;
pub mod mcp;
pub mod names;
