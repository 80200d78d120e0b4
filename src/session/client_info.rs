//! What a client says of itself when it opens a session.

use std::sync::Arc;
use std::sync::OnceLock;

use super::legacy;
use crate::mcp::{Method, Raw, Revision};

/// What a client said about itself, in its `initialize` or with a request of 2026-07-28.
#[derive(Clone, Debug)]
pub struct ClientInfo {
    /// The revision it speaks.
    pub revision: Revision,
    /// `clientInfo`: what it says it is; for display only.
    pub info: Option<Raw>,
    /// What records call it, see [`ClientInfo::display_name`].
    pub display_name: OnceLock<Option<Box<str>>>,
    /// What it can do for servers: an object.
    pub capabilities: Raw,
    /// The capabilities in a canonical spelling; empty when there are none, or when they come with
    /// each request.
    pub profile: Arc<str>,
}

impl ClientInfo {
    /// What records and the like call it; `name_of` makes that of `clientInfo`, and is asked once, however
    /// many calls there are.
    pub fn display_name(&self, name_of: impl FnOnce(&Raw) -> Option<Box<str>>) -> Option<&str> {
        let find = || name_of(self.info.as_ref()?);
        self.display_name.get_or_init(find).as_deref()
    }

    /// Whether servers can ask the client something.
    pub fn can_be_asked(&self) -> bool {
        legacy::accepts_server_requests(&self.capabilities)
    }

    /// The capability that the client would need to be asked `method`, and has not declared.
    pub fn missing_capability(&self, method: &Method) -> Option<&'static str> {
        legacy::missing_capability(method, &self.capabilities)
    }
}
