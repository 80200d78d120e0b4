//! Names of servers, and who owns one.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use super::AgentId;

/// The longest name that routes carry, in characters.
const LENGTH_MAX: usize = 64;

/// What parts the name of a server or a secret from its owner.
pub(crate) const OWNER_MARK: char = '@';

/// The name of a configured server, unique among servers: `github` of the gateway, `github@science` of the
/// workspace `science`, `notes@agent_<uuid>` of one agent.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServerName(Arc<str>);

/// The id of a server, written `srv_<uuid>`: the UUIDv5 of its whole name, everywhere the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerId(pub Uuid);

impl ServerId {
    pub(crate) const PREFIX: &str = "srv_";

    /// The id of the server called `name`.
    pub fn from_name(name: &str) -> Self {
        let text = format!("server {name}");
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()))
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

impl ServerName {
    /// The longest accepted name without its owner, in characters.
    pub const LENGTH_MAX: usize = LENGTH_MAX;

    /// Checks `name`.
    ///
    /// # Errors
    /// Says which rule `name` breaks.
    pub fn parse(name: &str) -> Result<Self, InvalidServerName> {
        let (local, owner) = match name.split_once(OWNER_MARK) {
            Some((local, owner)) => (local, Some(owner)),
            None => (name, None),
        };
        check_name(local)?;
        if let Some(owner) = owner {
            ServerOwner::parse(owner)?;
        }
        Ok(Self(name.into()))
    }

    /// The same for a name without an owner.
    ///
    /// # Errors
    /// Says which rule `name` breaks.
    pub fn parse_local(name: &str) -> Result<Self, InvalidServerName> {
        check_name(name)?;
        Ok(Self(name.into()))
    }

    /// This name without an owner, as one of `owner`.
    #[must_use]
    pub fn owned_by(&self, owner: &ServerOwner) -> Self {
        let local = self.local();
        match owner {
            ServerOwner::Gateway => Self(local.into()),
            ServerOwner::Workspace(workspace) => Self(format!("{local}@{workspace}").into()),
            ServerOwner::Agent(agent) => Self(format!("{local}@{agent}").into()),
        }
    }

    /// The name as text, with its owner.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name without its owner: what exposed names, URIs and policies call it.
    pub fn local(&self) -> &str {
        self.parts().0
    }

    /// Who owns the server.
    pub fn owner(&self) -> ServerOwner {
        // It was checked when the name was made.
        let owner = self.parts().1;
        owner.map_or(ServerOwner::Gateway, |owner| {
            ServerOwner::parse(owner).unwrap_or(ServerOwner::Gateway)
        })
    }

    /// Whether a workspace or an agent owns it, so that others do not see it.
    pub fn is_owned(&self) -> bool {
        self.parts().1.is_some()
    }

    /// Whether `other` has the same owner.
    pub fn has_owner_of(&self, other: &Self) -> bool {
        self.owner_text() == other.owner_text()
    }

    /// What stands behind the `@`.
    pub(super) fn owner_text(&self) -> Option<&str> {
        self.parts().1
    }

    /// Whether an agent owns it: it runs for the sessions of that agent.
    pub fn is_of_agent(&self) -> bool {
        let owner = self.parts().1;
        owner.is_some_and(|owner| owner.starts_with(AgentId::PREFIX))
    }

    /// Whether this is what a text such as the first part of `server/item` calls the server: its name with or
    /// without the owner.
    pub fn is_called(&self, text: &str) -> bool {
        self.as_str() == text || self.local() == text
    }

    fn parts(&self) -> (&str, Option<&str>) {
        match self.0.split_once(OWNER_MARK) {
            Some((local, owner)) => (local, Some(owner)),
            None => (&self.0, None),
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ServerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ServerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Who owns a server or a secret: of a server its owner's agents alone see and start it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ServerOwner {
    /// The gateway: every agent sees it.
    Gateway,
    /// A workspace: the agents whose `team` it is see it.
    Workspace(WorkspaceName),
    /// One agent.
    Agent(AgentId),
}

impl ServerOwner {
    /// Reads what stands behind the `@` of a server's name.
    ///
    /// # Errors
    /// When it is no owner.
    pub fn parse(owner: &str) -> Result<Self, InvalidServerName> {
        if !owner.starts_with(AgentId::PREFIX) {
            let workspace = WorkspaceName::parse(owner);
            return workspace
                .map(Self::Workspace)
                .map_err(InvalidServerName::Owner);
        }
        let agent = owner.parse::<AgentId>().ok();
        // Another spelling of the same id would be another server.
        let agent = agent.filter(|agent| agent.to_string() == owner);
        agent.map(Self::Agent).ok_or(InvalidServerName::OwnerAgent)
    }

    /// Whether the agent `id` of `team` sees the servers of this owner.
    pub fn is_visible_to(&self, id: AgentId, team: Option<&str>) -> bool {
        match self {
            Self::Gateway => true,
            Self::Workspace(workspace) => team == Some(workspace.as_str()),
            Self::Agent(agent) => *agent == id,
        }
    }
}

impl fmt::Display for ServerOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway => f.write_str("gateway"),
            Self::Workspace(workspace) => workspace.fmt(f),
            Self::Agent(agent) => agent.fmt(f),
        }
    }
}

/// The name of a workspace: that of the team whose agents share its servers. The rules of server names hold,
/// and it is no id of an agent.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WorkspaceName(Arc<str>);

impl WorkspaceName {
    /// Checks `name`.
    ///
    /// # Errors
    /// Says which rule `name` breaks.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        check_name(name)?;
        if name.starts_with(AgentId::PREFIX) {
            return Err(InvalidName::AgentPrefix);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for WorkspaceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for WorkspaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn check_name(name: &str) -> Result<(), InvalidName> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > LENGTH_MAX {
        return Err(InvalidName::Length { found: name.len() });
    }
    match name.chars().find(|c| !legal(*c)) {
        Some(found) => Err(InvalidName::Character { found }),
        None => Ok(()),
    }
}

/// Why a name was refused that stands in routes; the operator mends it in the config.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidName {
    /// A workspace that looks like an agent.
    #[error("names of workspaces do not begin with `agent_`, as ids of agents do")]
    AgentPrefix,
    /// A character that URLs or tool names cannot carry.
    #[error("`{found}` is not allowed in a name (letters, digits, `_`, `-` and `.` are)")]
    Character {
        /// The first offending character.
        found: char,
    },
    /// Empty, or longer than [`ServerName::LENGTH_MAX`].
    #[error("a name has 1 to 64 characters, this one has {found}")]
    Length {
        /// The length found, in bytes.
        found: usize,
    },
}

/// Why the name of a server was refused; the operator mends it in the config.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidServerName {
    /// A character that URLs or tool names cannot carry.
    #[error("`{found}` is not allowed in a server name (letters, digits, `_`, `-` and `.` are)")]
    Character {
        /// The first offending character.
        found: char,
    },
    /// Empty, or longer than [`ServerName::LENGTH_MAX`] without its owner.
    #[error("a server name has 1 to 64 characters, this one has {found}")]
    Length {
        /// The length found, in bytes.
        found: usize,
    },
    /// The owner is no workspace.
    #[error("what follows `@` is no workspace: {0}")]
    Owner(InvalidName),
    /// The owner begins as an agent does.
    #[error("the agent that follows `@` is written `agent_` and a UUID in lower case")]
    OwnerAgent,
}

impl From<InvalidName> for InvalidServerName {
    fn from(error: InvalidName) -> Self {
        match error {
            InvalidName::Character { found } => Self::Character { found },
            InvalidName::AgentPrefix => Self::Owner(InvalidName::AgentPrefix),
            InvalidName::Length { found } => Self::Length { found },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";

    #[test]
    fn a_name_has_a_local_part_and_an_owner() {
        let agent: AgentId = AGENT.parse().unwrap();
        let other = AgentId::from_name("other");
        let science = WorkspaceName::parse("science").unwrap();
        let of_agent = format!("notes@{AGENT}");
        for (name, local, owner, seen_by) in [
            ("github", "github", ServerOwner::Gateway, [true, true, true]),
            (
                "github@science",
                "github",
                ServerOwner::Workspace(science),
                [false, true, false],
            ),
            (
                &of_agent,
                "notes",
                ServerOwner::Agent(agent),
                [true, false, false],
            ),
        ] {
            let parsed = ServerName::parse(name).unwrap();
            assert_eq!((parsed.as_str(), parsed.local()), (name, local));
            assert_eq!(parsed.owner(), owner);
            assert_eq!(parsed.is_owned(), owner != ServerOwner::Gateway);
            assert!(parsed.is_called(local) && parsed.is_called(name) && !parsed.is_called("x"));
            assert_eq!(
                ServerName::parse_local(local).unwrap().owned_by(&owner),
                parsed
            );
            // A team that is called as an agent is no way to its servers.
            let viewers = [
                (agent, None),
                (other, Some("science")),
                (other, Some(AGENT)),
            ];
            let sees = viewers.map(|(id, team)| owner.is_visible_to(id, team));
            assert_eq!(sees, seen_by, "{name}");
        }
    }

    #[test]
    fn only_the_local_part_counts_for_the_limit() {
        let longest = "a".repeat(ServerName::LENGTH_MAX);
        let owned = format!("{longest}@{longest}");
        assert_eq!(ServerName::parse(&owned).unwrap().local(), longest);
        let found = ServerName::LENGTH_MAX + 1;
        for name in [format!("{longest}a"), format!("{longest}a@b")] {
            let refused = ServerName::parse(&name).unwrap_err();
            assert_eq!(refused, InvalidServerName::Length { found }, "{name}");
        }
        let refused = ServerName::parse(&format!("a@{longest}b")).unwrap_err();
        let length = InvalidName::Length { found };
        assert_eq!(refused, InvalidServerName::Owner(length));
    }

    #[test]
    fn other_texts_are_no_names() {
        let upper = format!("a@{}", AGENT.to_uppercase().replace("AGENT", "agent"));
        let braces = "a@agent_{5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11}";
        for name in [
            "", "@", "a@", "@b", "a@b@c", "a b", "a@b c", "a@agent_", &upper, braces,
        ] {
            assert!(ServerName::parse(name).is_err(), "{name}");
        }
        assert!(ServerName::parse_local("a@b").is_err());
        assert!(WorkspaceName::parse(AGENT).is_err());
    }
}
