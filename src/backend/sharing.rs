//! Who shares a connection to a server.

use std::sync::Arc;

use crate::{mcp::Era, names::AgentId, session::ForwardedHeaders};

/// Which callers share a connection.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct SharingKey {
    pub(super) sharing: Sharing,
    pub(super) era: Era,
    /// The capabilities declared to a legacy server.
    pub(super) capabilities: Arc<str>,
    /// The headers of the caller that the server gets.
    pub(super) forwarded: Option<Arc<ForwardedHeaders>>,
}

impl SharingKey {
    pub(super) fn new(sharing: Sharing, era: Era, capabilities: Arc<str>) -> Self {
        Self {
            sharing,
            era,
            capabilities,
            forwarded: None,
        }
    }

    /// The same for those who send these headers alone.
    pub(super) fn with_forwarded(mut self, forwarded: Option<Arc<ForwardedHeaders>>) -> Self {
        self.forwarded = forwarded;
        self
    }
}

/// Whose a connection is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Sharing {
    Agent(AgentId),
    Session(String),
    Shared,
}
