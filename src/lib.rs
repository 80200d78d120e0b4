//! Tollbridge.
