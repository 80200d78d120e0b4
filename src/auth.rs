//! Who is calling: the agent behind a request.

pub mod key;

use uuid::Uuid;

/// The identity being governed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Agent {
    /// `agent_<uuid>` without its prefix.
    pub id: Uuid,
    /// Name for people.
    pub name: String,
}

impl Agent {
    /// The agent of callers that present no credential; its id is the same everywhere.
    pub fn anonymous() -> Self {
        Self {
            id: Uuid::nil(),
            name: "anonymous".to_owned(),
        }
    }
}
