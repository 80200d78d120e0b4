//! The person or program behind a token.

use std::fmt;

use uuid::Uuid;

use crate::names::AgentId;

/// The person or program behind a token, as its issuer names them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct User {
    /// Who vouches for them: the claim `iss`.
    pub issuer: String,
    /// Their id at the issuer: the claim `sub`.
    pub subject: String,
    /// What people call them, where a claim says so.
    pub name: Option<String>,
    /// Who acts on their behalf: the `sub` of the claim `act` (RFC 8693, section 4.1).
    pub actor: Option<String>,
}

impl User {
    /// The id of the agent that this user is governed as where the terms are those of `base`. It is the same in
    /// every process, and nobody else's: who acts for a user is somebody else than that user.
    pub fn agent_id(&self, base: AgentId) -> AgentId {
        let name = serde_json::json!([self.issuer, self.subject, self.actor]).to_string();
        AgentId(Uuid::new_v5(&base.0, name.as_bytes()))
    }
}

/// As people know them.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_deref().unwrap_or(&self.subject))
    }
}
