//! Tollbridge.

pub mod builtin;
