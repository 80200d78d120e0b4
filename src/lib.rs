//! Tollbridge: one URL in front of every MCP server an organisation runs.
//!
//! `ARCHITECTURE.md` has the picture; the modules stand here in reading order, from the process
//! inwards.

pub mod api;
pub mod app;
pub mod cli;

pub mod control_socket;
mod dashboard;
mod http;
pub mod status;
pub mod stdio;

mod discovery;
mod proxy;

pub mod agent_change;
mod backend;
pub mod config_change;
pub mod governance;
pub mod oauth_client;
pub mod router;
pub mod scan;
pub mod sealing;
pub mod store_reader;

pub mod catalog;
pub mod session;
pub mod sign_in;
pub mod views;

pub mod audit;
pub mod auth;
pub mod authorization_server;
pub mod browser_login;
mod builtin;
pub mod config;
pub mod egress;
pub mod mcp;
pub mod store;
mod telemetry;

mod body;
pub mod clock;
mod escape;
mod json_schema;
mod key_file;
pub mod launcher;
mod limiter;
mod lock;
pub mod money;
pub mod names;
pub mod task;
