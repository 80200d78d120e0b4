//! Who shares a connection to a server.

use std::sync::Arc;

use crate::{mcp::Era, names::AgentId};

/// Which callers share a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct SharingKey {
    pub(super) sharing: Sharing,
    pub(super) era: Era,
    /// The capabilities declared to a legacy server.
    pub(super) capabilities: Arc<str>,
}

impl SharingKey {
    pub(super) fn new(sharing: Sharing, era: Era, capabilities: Arc<str>) -> Self {
        Self {
            sharing,
            era,
            capabilities,
        }
    }
}

/// Whose a connection is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Sharing {
    Agent(AgentId),
    Session(String),
    Shared,
}
